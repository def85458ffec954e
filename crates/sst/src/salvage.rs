//! What can still be read of a damaged table, and exactly what cannot.
//!
//! ```text
//! the table opens       -> its index leads to every block; each that verifies is kept; where a part of the index is damaged,
//!                          blocks are looked for between those that the parts around it lead to
//! its tail is damaged   -> blocks are looked for from the start of the file, one after the
//!                          other: a length fits if the checksum behind it does
//! ```
//! A block is kept if its checksum is right and every entry in it is well formed and after all
//! entries before. Of one that is not, the index tells between which user keys it stood: after
//! the key of the block before, up to its own.
//!
//! Without a tail the format is not known: blocks are tried as formats 2 to 5 write them, with
//! each kind of checksum, up to [`SCAN_BLOCK_MAX`] bytes each. Formats 6 and 7 have a number of the table in each checksum:
//! it is what the first block's lacks, if the next block's lacks it, too.
//!
//! There a block may also stand behind zeros, at a multiple of a power of two, if all before it do (`block_align`).

use std::sync::Arc;

use orogen_base::checksum::ChecksumType;
use orogen_base::coding::{Decoder, get_fixed32};
use orogen_base::key::ParsedInternalKey;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{Error, ErrorKind, Result, UserComparator, ValueKind, memory};
use orogen_env::RandomAccessFile;

use crate::block::{Block, BlockCursor, KeyOrder, compare_internal};
use crate::dump::BlockKind;
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle, context_modifier};
use crate::properties::TableProperties;
use crate::reader::{IndexPosition, TableReadOptions, TableReader, TableReaderOptions};
use orogen_codec::{CompressionType, decompress};

/// Stored bytes of a block that is found without an index, at most.
pub const SCAN_BLOCK_MAX: usize = 64 << 10;

/// The format whose blocks are looked for without an index.
const SCAN_FORMAT_VERSION: u32 = 5;

/// What aligned blocks stand at multiples of.
const ALIGNMENTS: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

/// Lengths of the first block of which it is looked what stands behind them, at most.
const FIRST_LENS_MAX: usize = 16;

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
    /// What is wrong with a part that holds no data: why the table does not open, so that blocks were looked for without its
    /// index, or which part of index or filter is damaged.
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
            check_filter(&table, &mut found)?;
            found.range_tombstones = table.range_tombstones();
            found.range_tombstones_lost = table.range_tombstones_lost();
            found.properties = Some(table.properties());
        }
        Err(e) if is_damage(&e) => scan(file, file_size, &options.comparator, &mut found, visit)?,
        Err(e) => return Err(e),
    }
    Ok(found)
}

/// Tells of a damaged filter, and reads the parts of a partitioned one, to which no block of data leads.
fn check_filter(table: &TableReader, found: &mut Salvaged) -> Result<()> {
    if let Some(error) = table.filter_error() {
        found.tail_error.get_or_insert_with(|| error.clone());
    }
    let parts = match table.filter_partitions() {
        Err(error) if is_damage(&error) => {
            found.tail_error.get_or_insert(error);
            return Ok(());
        }
        parts => parts?,
    };
    for handle in parts {
        match table
            .file()
            .read_block(handle, None, None, true, Vec::new())
        {
            Ok(_) => {}
            Err(error) if is_damage(&error) => {
                found.tail_error.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
    let mut walk = Walk {
        table,
        read: TableReadOptions {
            fill_cache: false,
            ..TableReadOptions::default()
        },
        entries: Entries::new(table.comparator()),
        after: None,
        at: 0,
        gap: None,
    };
    let mut index = table.held_index_position(&walk.read)?;
    let mut step = index.seek_to_first(table, &walk.read);
    loop {
        match step {
            Ok(true) => walk.block(&index, found, visit)?,
            Ok(false) => return walk.close_gap(table.data_end(), found, visit),
            Err(error) if is_damage(&error) => {
                let part = index.unread_part(table);
                let up_to = part.map(|key| table.index_user_key(key).to_vec());
                walk.gap = Some(Gap {
                    up_to: up_to.clone(),
                    error,
                });
                if up_to.is_none() {
                    return walk.close_gap(table.data_end(), found, visit);
                }
            }
            Err(error) => return Err(error),
        }
        step = index.next(table, &walk.read);
    }
}

/// Data blocks that a part of the index led to which cannot be read.
struct Gap {
    up_to: Option<Vec<u8>>,
    error: Error,
}

/// Goes through a table by its index.
struct Walk<'a> {
    table: &'a TableReader,
    read: TableReadOptions,
    entries: Entries,
    /// The user key up to which the blocks so far go.
    after: Option<Vec<u8>>,
    /// Where the blocks so far end.
    at: u64,
    gap: Option<Gap>,
}

impl Walk<'_> {
    /// Takes the block that `index` stands on.
    fn block(
        &mut self,
        index: &IndexPosition<'_>,
        found: &mut Salvaged,
        visit: Visitor<'_>,
    ) -> Result<()> {
        let handle = index.handle();
        self.close_gap(handle.offset, found, visit)?;
        let upper = self.table.index_user_key(index.key()).to_vec();
        match self.take(handle, found, visit)? {
            Ok(()) => {}
            Err(error) => found.lost.push(LostBlock {
                offset: handle.offset,
                bytes: handle.size.saturating_add(BLOCK_TRAILER_LEN as u64),
                after: self.after.take(),
                up_to: Some(upper.clone()),
                error,
            }),
        }
        self.after = Some(upper);
        self.at = end_of(handle);
        Ok(())
    }

    /// Passes a block on; its damage is an answer.
    fn take(
        &mut self,
        handle: BlockHandle,
        found: &mut Salvaged,
        visit: Visitor<'_>,
    ) -> Result<Result<()>> {
        let block = self
            .table
            .read_block(handle, BlockKind::Data, &self.read, None);
        let checked = block.and_then(|b| self.entries.check(&b).map(|checked| (b, checked)));
        match checked {
            Ok((block, (count, last))) => {
                let global = self.table.global_seqno();
                self.entries.pass(&block, last, global, visit)?;
                found.blocks += 1;
                found.entries += count;
                Ok(Ok(()))
            }
            Err(error) if is_damage(&error) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// Looks for the blocks of a gap, which ends at `to`: they stand one behind the other.
    fn close_gap(&mut self, to: u64, found: &mut Salvaged, visit: Visitor<'_>) -> Result<()> {
        let Some(gap) = self.gap.take() else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        while let Some(handle) = self.block_at(to, &mut bytes)? {
            if self.take(handle, found, visit)?.is_err() {
                break;
            }
            self.at = end_of(handle);
            // A block may have no entries.
            if !self.entries.last.is_empty() {
                let last = orogen_base::key::user_key(&self.entries.last);
                self.after = Some(last.to_vec());
            }
        }
        if self.at < to {
            found.lost.push(LostBlock {
                offset: self.at,
                bytes: to - self.at,
                after: self.after.take(),
                up_to: gap.up_to.clone(),
                error: gap.error,
            });
        } else {
            found.tail_error.get_or_insert(gap.error);
        }
        self.after = gap.up_to;
        self.at = to;
        Ok(())
    }

    /// The block from `self.at` on, whose length is told by the checksum behind it.
    fn block_at(&self, to: u64, bytes: &mut Vec<u8>) -> Result<Option<BlockHandle>> {
        let file = self.table.file();
        if file.footer.checksum == ChecksumType::None {
            return Ok(None);
        }
        let len = to.saturating_sub(self.at);
        let len = len.min((SCAN_BLOCK_MAX + BLOCK_TRAILER_LEN) as u64) as usize;
        memory::resize(bytes, len, "a piece of a table")?;
        file.file.read_exact_at(self.at, bytes)?;
        let lens = 1..=len.saturating_sub(BLOCK_TRAILER_LEN);
        let mut handles = lens.map(|size| BlockHandle {
            offset: self.at,
            size: size as u64,
        });
        Ok(handles.find(|handle| {
            let size = handle.size as usize;
            let is_block = |stored| file.check_block(stored, *handle, true).is_ok();
            CompressionType::from_u8(bytes[size]).is_some()
                && is_block(&bytes[..size + BLOCK_TRAILER_LEN])
        }))
    }
}

/// Where blocks begin, as far as that tells whether they are aligned.
#[derive(Default)]
struct Starts {
    /// All of them, one over the other.
    aligned: u64,
    /// Zeros that were passed over.
    zeros: Vec<LostBlock>,
}

impl Starts {
    /// Notes the start of a block, or of something else, behind what ended at `end`; keys around it are given.
    fn add(&mut self, end: u64, start: u64, after: &Option<Vec<u8>>, up_to: Option<&Vec<u8>>) {
        self.aligned |= start;
        if start > end {
            self.zeros.push(LostBlock {
                offset: end,
                bytes: start - end,
                after: after.clone(),
                up_to: up_to.cloned(),
                error: Error::corruption("zeros stand where a block may have been"),
            });
        }
    }

    /// Adds zeros to `found` that are more than what aligns a block, or so many that a short one may have been there.
    fn tell(self, found: &mut Salvaged) {
        let is_unit = |unit: &&u64| self.aligned.is_multiple_of(**unit);
        let unit = ALIGNMENTS.iter().rfind(is_unit).copied().unwrap_or(1);
        let is_lost = |zeros: &LostBlock| {
            let end = zeros.offset.saturating_add(zeros.bytes);
            zeros.offset.next_multiple_of(unit) < end || zeros.bytes > unit / 2
        };
        let lost = self.zeros.into_iter().filter(is_lost);
        found.lost.extend(lost);
    }

    /// Where the next block may begin: at `at`, where `bytes` stand, or behind zeros.
    fn next(&self, at: u64, bytes: &[u8]) -> Vec<u64> {
        let zeros = bytes.iter().take_while(|&&b| b == 0).count() as u64;
        let aligned = ALIGNMENTS
            .into_iter()
            .filter(|&unit| self.aligned.is_multiple_of(unit));
        let behind = aligned.map(|unit| at.next_multiple_of(unit));
        let mut places = vec![at];
        places.extend(behind.filter(|place| place - at <= zeros));
        places.dedup();
        places
    }
}

fn end_of(handle: BlockHandle) -> u64 {
    let end = handle.offset.saturating_add(handle.size);
    end.saturating_add(BLOCK_TRAILER_LEN as u64)
}

/// Looks for blocks from the start of the file.
fn scan(
    file: &Arc<dyn RandomAccessFile>,
    file_size: u64,
    order: &UserComparator,
    found: &mut Salvaged,
    visit: Visitor<'_>,
) -> Result<()> {
    let mut pieces = Pieces {
        file,
        file_size,
        bytes: Vec::new(),
    };
    let mut checks = KINDS.map(|kind| Check { kind, base: 0 }).to_vec();
    let mut entries = Entries::new(order);
    let mut handles = Vec::new();
    let mut starts = Starts::default();
    let mut after = None;
    let mut at = 0;
    while at < file_size {
        let mut next = pieces.next_block(at, &starts, &checks)?;
        if next.is_none() && handles.is_empty() {
            checks = pieces.check_with_context(&entries)?.into_iter().collect();
            next = pieces.next_block(at, &starts, &checks)?;
        }
        let Some((check, handle, block)) = next else {
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
        let last_user_key = orogen_base::key::user_key(&last).to_vec();
        starts.add(at, handle.offset, &after, Some(&last_user_key));
        after = Some(last_user_key);
        entries.pass(&block, last, None, visit)?;
        found.blocks += 1;
        found.entries += count;
        checks = vec![check];
        at = end_of(handle);
        handles.push(handle);
    }
    found.range_tombstones_lost = true;
    starts.tell(found);
    found.lost.push(LostBlock {
        offset: at,
        bytes: file_size - at,
        after,
        up_to: None,
        error: Error::corruption("no block that verifies stands here, and there is no index"),
    });
    Ok(())
}

const KINDS: [ChecksumType; 4] = [
    ChecksumType::Xxh3,
    ChecksumType::Crc32c,
    ChecksumType::XxHash64,
    ChecksumType::XxHash,
];

/// How blocks are checked.
#[derive(Clone, Copy)]
struct Check {
    kind: ChecksumType,
    /// What formats 6 and later mix into each checksum; 0 for none.
    base: u32,
}

impl Check {
    /// True if `bytes` at `at` begin with a block of so many bytes and its trailer.
    fn holds(self, bytes: &[u8], len: usize, at: u64) -> bool {
        let sum = || {
            let sum = self.kind.compute(&bytes[..len], bytes[len]);
            sum.wrapping_add(context_modifier(self.base, at))
        };
        CompressionType::from_u8(bytes[len]).is_some()
            && get_fixed32(&bytes[len + 1..]) == Some(sum())
    }
}

/// A file of which pieces are read that have a block of [`SCAN_BLOCK_MAX`] bytes.
struct Pieces<'a> {
    file: &'a Arc<dyn RandomAccessFile>,
    file_size: u64,
    bytes: Vec<u8>,
}

impl Pieces<'_> {
    fn read(&mut self, at: u64) -> Result<&[u8]> {
        let len = self.file_size.saturating_sub(at);
        let len = len.min((SCAN_BLOCK_MAX + BLOCK_TRAILER_LEN) as u64) as usize;
        memory::resize(&mut self.bytes, len, "a piece of a table")?;
        self.file.read_exact_at(at, &mut self.bytes)?;
        Ok(&self.bytes)
    }

    /// The block that follows at `at`, whose length is told by the checksum behind it.
    ///
    /// # Errors
    /// `Io`; `NoMemory`: it is not known whether there is one.
    fn next_block(
        &mut self,
        at: u64,
        starts: &Starts,
        checks: &[Check],
    ) -> Result<Option<(Check, BlockHandle, Block)>> {
        for offset in starts.next(at, self.read(at)?) {
            let bytes = self.read(offset)?;
            for &check in checks {
                for len in lens(bytes).filter(|&len| check.holds(bytes, len, offset)) {
                    let size = len as u64;
                    if let Some(block) = stored_block(bytes, len)? {
                        return Ok(Some((check, BlockHandle { offset, size }, block)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// How the blocks of a table of format 6 or later are checked: what its first one, which is one by its entries, lacks the
    /// next one lacks, too.
    fn check_with_context(&mut self, entries: &Entries) -> Result<Option<Check>> {
        let first = memory::copied(self.read(0)?, "a piece of a table")?;
        let mut tried = 0;
        for len in lens(&first) {
            let Some(block) = stored_block(&first, len)? else {
                continue;
            };
            if !matches!(entries.check(&block), Ok((1.., _))) {
                continue;
            }
            tried += 1;
            if tried > FIRST_LENS_MAX {
                break;
            }
            for kind in KINDS {
                let stored = get_fixed32(&first[len + 1..]).unwrap_or(0);
                let base = stored.wrapping_sub(kind.compute(&first[..len], first[len]));
                let check = Check { kind, base };
                if base != 0 && self.has_block((len + BLOCK_TRAILER_LEN) as u64, check)? {
                    return Ok(Some(check));
                }
            }
        }
        Ok(None)
    }

    /// True if anything with a right checksum follows at `at`.
    fn has_block(&mut self, at: u64, check: Check) -> Result<bool> {
        for offset in Starts::default().next(at, self.read(at)?) {
            let bytes = self.read(offset)?;
            if lens(bytes).any(|len| check.holds(bytes, len, offset)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The lengths of a block that, with its trailer, begins `bytes`.
fn lens(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let end = (bytes.len() + 1).saturating_sub(BLOCK_TRAILER_LEN);
    0..end
}

/// The block of so many bytes at the start of `bytes`, if it is one but for its checksum.
fn stored_block(bytes: &[u8], len: usize) -> Result<Option<Block>> {
    let Some(codec) = CompressionType::from_u8(bytes[len]) else {
        return Ok(None);
    };
    match decompress(codec, &bytes[..len], None, SCAN_FORMAT_VERSION, Vec::new()) {
        Ok(raw) => Ok(Block::new(raw).ok()),
        Err(e) if e.kind() == ErrorKind::NoMemory => Err(e),
        Err(_) => Ok(None),
    }
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
