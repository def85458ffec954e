//! What can still be read of a damaged table, and exactly what cannot.
//!
//! ```text
//! the table opens       -> its index leads to every block; each that verifies is kept
//! its tail is damaged   -> blocks are looked for from the start of the file, one after the
//!                          other: a length fits if the checksum behind it does
//! ```
//! A block is kept if its checksum is right and every entry in it is well formed and after all
//! entries before. Of one that is not, the index tells between which user keys it stood: after
//! the key of the block before, up to its own.
//!
//! Without a tail the format is not known: blocks are tried as formats 2 to 5 write them, with
//! each kind of checksum, up to [`SCAN_BLOCK_MAX`] bytes each.

use std::sync::Arc;

use orogen_base::checksum::ChecksumType;
use orogen_base::coding::{Decoder, get_fixed32};
use orogen_base::key::ParsedInternalKey;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{Error, ErrorKind, Result, UserComparator, ValueKind, memory};
use orogen_env::RandomAccessFile;

use crate::block::{Block, BlockCursor, KeyOrder, compare_internal};
use crate::dump::BlockKind;
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use crate::properties::TableProperties;
use crate::reader::{TableReadOptions, TableReader, TableReaderOptions};
use orogen_codec::{CompressionType, decompress};

/// Stored bytes of a block that is found without an index, at most.
pub const SCAN_BLOCK_MAX: usize = 64 << 10;

/// The format whose blocks are looked for without an index.
const SCAN_FORMAT_VERSION: u32 = 5;

/// Entries that were lost.
#[derive(Clone, Debug)]
pub struct LostBlock {
    /// Where the bytes stand.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// Every key that was lost is after this user key or equal to it; `None`: from the start.
    pub after: Option<Vec<u8>>,
    /// No key that was lost is after this user key; `None`: up to the end.
    pub up_to: Option<Vec<u8>>,
    /// What is wrong.
    pub error: Error,
}

/// What was found of a table.
#[derive(Clone, Debug, Default)]
pub struct Salvaged {
    /// Blocks that were kept.
    pub blocks: u64,
    /// Entries in them.
    pub entries: u64,
    /// What was lost, in the order of the file.
    pub lost: Vec<LostBlock>,
    /// The range tombstones.
    pub range_tombstones: Arc<FragmentedRangeTombstones>,
    /// There were range tombstones that cannot be read: what they deleted may show again.
    pub range_tombstones_lost: bool,
    /// Why the table does not open, if it does not; blocks were looked for without its index.
    pub tail_error: Option<Error>,
    /// Its properties, where it opens.
    pub properties: Option<Arc<TableProperties>>,
}

impl Salvaged {
    /// True if nothing is wrong with the table.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost.is_empty() && self.tail_error.is_none() && !self.range_tombstones_lost
    }
}

/// Takes an entry: internal key and value.
pub type Visitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<()>;

/// Reads all that can be read of the table of `file_size` bytes in `file`, in the order of its
/// keys.
///
/// # Errors
/// `Io`; what `visit` gives. Damage is told in the answer.
pub fn salvage(
    file: &Arc<dyn RandomAccessFile>,
    file_size: u64,
    options: &TableReaderOptions,
    visit: Visitor<'_>,
) -> Result<Salvaged> {
    let open = |without_damaged_blocks| {
        let options = TableReaderOptions {
            without_damaged_blocks,
            ..options.clone()
        };
        TableReader::open(file.clone(), file_size, options)
    };
    let (opened, mut found) = match open(false) {
        Ok(table) => (Ok(table), Salvaged::default()),
        Err(first) if is_damage(&first) => {
            let found = Salvaged {
                tail_error: Some(first),
                ..Salvaged::default()
            };
            (open(true), found)
        }
        Err(e) => return Err(e),
    };
    match opened {
        Ok(table) => {
            by_index(&table, &mut found, visit)?;
            found.range_tombstones = table.range_tombstones();
            found.range_tombstones_lost = table.range_tombstones_lost();
            found.properties = Some(table.properties());
        }
        Err(e) if is_damage(&e) => scan(file, file_size, &options.comparator, &mut found, visit)?,
        Err(e) => return Err(e),
    }
    Ok(found)
}

fn is_damage(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Corruption | ErrorKind::NotSupported
    )
}

/// Passes entries on that are well formed and in order.
struct Entries {
    order: KeyOrder,
    user: UserComparator,
    last: Vec<u8>,
}

impl Entries {
    fn new(user: &UserComparator) -> Self {
        Self {
            order: KeyOrder::Internal(user.clone()),
            user: user.clone(),
            last: Vec::new(),
        }
    }

    /// The entries of a block with its last key.
    fn check(&self, block: &Block) -> Result<(u64, Vec<u8>)> {
        let mut cursor = BlockCursor::new();
        let mut last = self.last.clone();
        let mut count = 0;
        let mut on = cursor.seek_to_first(block, &self.order)?;
        while on {
            let key = ParsedInternalKey::parse(cursor.key())?;
            if key.kind == ValueKind::RangeDeletion {
                return Err(Error::corruption("range tombstone among entries"));
            }
            if !last.is_empty() && compare_internal(&self.user, &last, cursor.key()).is_ge() {
                return Err(Error::corruption("entries of the table are not in order"));
            }
            last.clear();
            last.extend_from_slice(cursor.key());
            count += 1;
            on = cursor.next(block, &self.order)?;
        }
        Ok((count, last))
    }

    /// Passes on a block that was checked.
    fn pass(
        &mut self,
        block: &Block,
        last: Vec<u8>,
        global: Option<u64>,
        visit: Visitor<'_>,
    ) -> Result<()> {
        let mut cursor = BlockCursor::new();
        let mut patched = Vec::new();
        let mut on = cursor.seek_to_first(block, &self.order)?;
        while on {
            match global {
                None => visit(cursor.key(), cursor.value(block))?,
                Some(seqno) => {
                    let key = ParsedInternalKey::parse(cursor.key())?;
                    patched.clear();
                    orogen_base::key::append_internal_key(
                        &mut patched,
                        key.user_key,
                        seqno,
                        key.kind,
                    );
                    visit(&patched, cursor.value(block))?;
                }
            }
            on = cursor.next(block, &self.order)?;
        }
        self.last = last;
        Ok(())
    }
}

fn by_index(table: &Arc<TableReader>, found: &mut Salvaged, visit: Visitor<'_>) -> Result<()> {
    let read = TableReadOptions {
        fill_cache: false,
        ..TableReadOptions::default()
    };
    let mut entries = Entries::new(table.comparator());
    let mut index = table.held_index_position(&read)?;
    let mut after: Option<Vec<u8>> = None;
    let mut step = index.seek_to_first(table, &read);
    loop {
        match step {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) if is_damage(&error) => {
                let offset = index_offset(&error, table);
                found.lost.push(LostBlock {
                    offset,
                    bytes: table.data_end().saturating_sub(offset),
                    after,
                    up_to: None,
                    error,
                });
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        let handle = index.handle();
        let upper = table.index_user_key(index.key()).to_vec();
        let checked = table
            .read_block(handle, BlockKind::Data, &read, None)
            .and_then(|block| entries.check(&block).map(|checked| (block, checked)));
        match checked {
            Ok((block, (count, last))) => {
                entries.pass(&block, last, table.global_seqno(), visit)?;
                found.blocks += 1;
                found.entries += count;
            }
            Err(error) if is_damage(&error) => found.lost.push(LostBlock {
                offset: handle.offset,
                bytes: handle.size + BLOCK_TRAILER_LEN as u64,
                after: after.take(),
                up_to: Some(upper.clone()),
                error,
            }),
            Err(error) => return Err(error),
        }
        after = Some(upper);
        step = index.next(table, &read);
    }
}

/// Where data is lost when a part of the index is: it is not known, so from the start.
fn index_offset(error: &Error, table: &TableReader) -> u64 {
    let offset = error.context("offset").and_then(|o| o.parse().ok());
    offset.unwrap_or(0).min(table.data_end())
}

/// Looks for blocks from the start of the file.
fn scan(
    file: &Arc<dyn RandomAccessFile>,
    file_size: u64,
    order: &UserComparator,
    found: &mut Salvaged,
    visit: Visitor<'_>,
) -> Result<()> {
    let kinds = [
        ChecksumType::Xxh3,
        ChecksumType::Crc32c,
        ChecksumType::XxHash64,
        ChecksumType::XxHash,
    ];
    let mut candidates: Vec<ChecksumType> = kinds.to_vec();
    let mut entries = Entries::new(order);
    let mut handles = Vec::new();
    let mut at = 0;
    let mut bytes = Vec::new();
    while at < file_size {
        let len = (file_size - at).min((SCAN_BLOCK_MAX + BLOCK_TRAILER_LEN) as u64) as usize;
        memory::resize(&mut bytes, len, "a piece of a table")?;
        file.read_exact_at(at, &mut bytes)?;
        let mut next = None;
        for &kind in &candidates {
            if let Some(block) = block_at(&bytes, kind)? {
                next = Some((kind, block));
                break;
            }
        }
        let Some((kind, (stored, block))) = next else {
            break;
        };
        if leads_to(&block, &handles) {
            break;
        }
        let Ok((count, last)) = entries.check(&block) else {
            break;
        };
        if count == 0 {
            break;
        }
        entries.pass(&block, last, None, visit)?;
        found.blocks += 1;
        found.entries += count;
        candidates = vec![kind];
        handles.push(BlockHandle {
            offset: at,
            size: stored as u64,
        });
        at += (stored + BLOCK_TRAILER_LEN) as u64;
    }
    let after =
        (!entries.last.is_empty()).then(|| orogen_base::key::user_key(&entries.last).to_vec());
    found.range_tombstones_lost = true;
    found.lost.push(LostBlock {
        offset: at,
        bytes: file_size - at,
        after,
        up_to: None,
        error: Error::corruption("no block that verifies stands here, and there is no index"),
    });
    Ok(())
}

/// The block at the start of `bytes`, whose length is told by the checksum behind it.
///
/// # Errors
/// `NoMemory`: it is not known whether there is one.
fn block_at(bytes: &[u8], kind: ChecksumType) -> Result<Option<(usize, Block)>> {
    let Some(last) = bytes.len().checked_sub(BLOCK_TRAILER_LEN) else {
        return Ok(None);
    };
    for len in 0..=last {
        let codec = CompressionType::from_u8(bytes[len]);
        let (Some(codec), Some(wanted)) = (codec, get_fixed32(&bytes[len + 1..])) else {
            continue;
        };
        if kind.compute(&bytes[..len], bytes[len]) != wanted {
            continue;
        }
        match decompress(codec, &bytes[..len], None, SCAN_FORMAT_VERSION, Vec::new()) {
            Ok(raw) => {
                if let Ok(block) = Block::new(raw) {
                    return Ok(Some((len, block)));
                }
            }
            Err(e) if e.kind() == ErrorKind::NoMemory => return Err(e),
            Err(_) => {}
        }
    }
    Ok(None)
}

/// True for an index of the blocks so far: its values are their handles.
fn leads_to(block: &Block, handles: &[BlockHandle]) -> bool {
    let order = KeyOrder::User(UserComparator::BYTEWISE);
    let mut cursor = BlockCursor::new();
    let mut known = handles.iter();
    let mut on = cursor.seek_to_first(block, &order).unwrap_or(false);
    while on {
        let mut value = Decoder::new(cursor.value(block));
        let handle = BlockHandle::decode(&mut value);
        if !value.is_empty() || handle.ok().as_ref() != known.next() {
            return false;
        }
        on = cursor.next(block, &order).unwrap_or(false);
    }
    known.next().is_none() && !handles.is_empty()
}

#[cfg(test)]
mod tests;
