//! Opens a table: footer, meta index, properties, range tombstones, index, filter.
//!
//! One read of the file's tail usually brings all of them.

use std::sync::{Arc, OnceLock};

use orogen_base::coding::Decoder;
use orogen_base::metrics::Ticker;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone, overlaps};
use orogen_base::slice_transform;
use orogen_base::{
    Error, ErrorKind, ParsedInternalKey, Result, SeqNo, UserComparator, ValueKind, memory,
};
use orogen_env::RandomAccessFile;

use crate::block::{Block, BlockCursor, IndexFormat, KeyBytes, KeyOrder};
use crate::builder::{DICTIONARY_BLOCK, INDEX_BLOCK, PROPERTIES_BLOCK, RANGE_DEL_BLOCK};
use crate::file::{TableFile, Window};
use crate::filter::{FULL_PREFIX, FilterKind, PARTITIONED_PREFIX, POLICY_NAME};
use crate::footer::{BlockHandle, FOOTER_LEN, Footer};
use crate::properties::{EXTERNAL_SST_FILE_GLOBAL_SEQNO, IndexType, TableProperties};
use orogen_codec::Dictionary;

use super::{Filter, Index, MetaBlock, TableReader, TableReaderOptions};

/// What is read from the end of the file if the tail's size is not known.
const TAIL_READ_MIN: u64 = 16 << 10;
const TAIL_READ_MAX: u64 = 512 << 10;

impl TableReader {
    /// Opens the table of `file_size` bytes in `file`.
    ///
    /// # Errors
    /// `Corruption` if it is no table or damaged; `NotSupported` if it is a table of another
    /// kind; `InvalidArgument` if it was written in another key order; `Io`.
    pub fn open(
        file: Arc<dyn RandomAccessFile>,
        file_size: u64,
        options: TableReaderOptions,
    ) -> Result<Arc<Self>> {
        let path = file.path().display().to_string();
        let reader = Self::open_inner(file, file_size, options).map_err(|e| {
            // Errors of blocks name the file already.
            if e.context("file").is_some() {
                e
            } else {
                e.with("file", path)
            }
        })?;
        Ok(Arc::new(reader))
    }

    fn open_inner(
        file: Arc<dyn RandomAccessFile>,
        file_size: u64,
        options: TableReaderOptions,
    ) -> Result<Self> {
        let (footer, tail) = read_tail(&file, file_size, options.tail_size)?;
        let verify = !options.skip_checksums_at_open;
        let mut file = TableFile {
            file,
            size: file_size,
            footer,
            global_seqno_at: None,
            statistics: options.statistics.clone(),
        };
        let mut tail = Tail {
            file: &file,
            window: tail,
            verify,
        };
        let metaindex = read_metaindex(&tail.block(footer.metaindex)?)?;
        let properties = metaindex.iter().find(|(n, _)| n == PROPERTIES_BLOCK);
        if let Some(&(_, handle)) = properties {
            tail.verify = false;
            let at = tail.block(handle).and_then(|b| place_of_global_seqno(&b));
            let window = tail.window;
            // Damage is found when the block is checked.
            file.global_seqno_at = at.ok().flatten().map(|at| handle.offset + at as u64);
            tail = Tail {
                file: &file,
                window,
                verify,
            };
        }
        let find = |name: &str| metaindex.iter().find(|(n, _)| n == name).map(|&(_, h)| h);
        let properties = match find(PROPERTIES_BLOCK) {
            Some(handle) => TableProperties::decode(&tail.block(handle)?)
                .map_err(|e| file.locate(e, handle.offset))?,
            None => TableProperties::default(),
        };
        check_properties(&properties, &options.comparator, footer.format_version)?;
        let global_seqno = properties.global_seqno(options.largest_seqno)?;

        let index_handle = footer
            .index
            .or_else(|| find(INDEX_BLOCK))
            .ok_or_else(|| Error::corruption("table has no index"))?;
        file.check_handle(index_handle)?;
        let (format, top_format) = index_formats(&properties, &options.comparator)?;
        let keep_in_cache = options.cache_index_and_filter_blocks && options.block_cache.is_some();
        let index_block = tail.block(index_handle)?;
        // The top of a partitioned index is small, and every lookup goes through it.
        let top = if keep_in_cache && top_format.is_none() {
            MetaBlock::Cached(index_handle)
        } else {
            MetaBlock::Pinned(Arc::new(index_block))
        };

        let filter = read_filter(&tail, &metaindex, &format, keep_in_cache);
        // It denies nothing then: the data can be read without it.
        let (filter, filter_error) = match filter {
            Err(e) if e.kind() == ErrorKind::Corruption || options.without_damaged_blocks => {
                (Filter::None, Some(e))
            }
            other => (other?, None),
        };
        let filter_prefix = properties
            .prefix_extractor_name()
            .filter(|_| properties.prefix_filtering())
            .and_then(|name| match options.prefix_extractor {
                Some(ref given) if given.name() == name => Some(given.clone()),
                _ => slice_transform::by_name(name),
            });

        let dictionary = match find(DICTIONARY_BLOCK) {
            Some(handle) => Some(
                Dictionary::new(tail.bytes(handle)?).map_err(|e| file.locate(e, handle.offset))?,
            ),
            None => None,
        };
        let range_tombstones = match find(RANGE_DEL_BLOCK) {
            Some(handle) => tail.block(handle).and_then(|block| {
                read_range_tombstones(&block, &options.comparator, global_seqno)
                    .map_err(|e| file.locate(e, handle.offset))
            }),
            None => Ok(FragmentedRangeTombstones::default()),
        };
        let range_tombstones_lost = options.without_damaged_blocks && range_tombstones.is_err();
        let range_tombstones = match range_tombstones {
            Err(_) if range_tombstones_lost => FragmentedRangeTombstones::default(),
            other => other?,
        };

        let tail_start = properties.tail_start_offset;
        let data_end = match (tail_start, properties.data_size) {
            (0, 0) => index_handle.offset,
            (0, n) | (n, _) => n,
        };
        if let Some(s) = &options.statistics {
            s.add(Ticker::NoFileOpens, 1);
        }
        let cache = options.block_cache.map(|c| {
            let id = c.new_id();
            (c, id)
        });
        Ok(Self {
            whole_key_filtering: properties.whole_key_filtering(),
            filter_prefix,
            comparator: options.comparator,
            properties: Arc::new(properties),
            metaindex,
            index: Index {
                top,
                format,
                top_format,
                digest: OnceLock::new(),
            },
            filter,
            filter_error,
            dictionary,
            range_tombstones: Arc::new(range_tombstones),
            range_tombstones_lost,
            global_seqno,
            cache,
            protect_cached_blocks: options.protect_cached_blocks,
            charge_readahead: options.charge_readahead,
            statistics: options.statistics,
            file_number: options.file_number,
            data_end: data_end.min(file_size),
            file,
        })
    }
}

/// Blocks of the tail, from what was read of it.
struct Tail<'a> {
    file: &'a TableFile,
    window: Window,
    verify: bool,
}

impl Tail<'_> {
    fn bytes(&self, handle: BlockHandle) -> Result<Vec<u8>> {
        Ok(self
            .file
            .read_block(handle, Some(&self.window), None, self.verify, Vec::new())?
            .0)
    }

    fn block(&self, handle: BlockHandle) -> Result<Block> {
        Block::new(self.bytes(handle)?).map_err(|e| self.file.locate(e, handle.offset))
    }
}

fn read_filter(
    tail: &Tail<'_>,
    metaindex: &[(String, BlockHandle)],
    format: &IndexFormat,
    keep_in_cache: bool,
) -> Result<Filter> {
    let find = |name: &str| metaindex.iter().find(|(n, _)| n == name).map(|&(_, h)| h);
    let full = find(&format!("{FULL_PREFIX}{POLICY_NAME}"));
    let partitioned = find(&format!("{PARTITIONED_PREFIX}{POLICY_NAME}"));
    Ok(match (full, partitioned) {
        (Some(handle), _) => {
            let bytes = tail.bytes(handle)?;
            if keep_in_cache {
                Filter::Cached(handle)
            } else {
                let kind = FilterKind::of(&bytes);
                Filter::Pinned(Arc::new(Block::raw(bytes)), kind)
            }
        }
        (None, Some(handle)) => {
            let block = tail.block(handle)?;
            let format = IndexFormat {
                first_keys: false,
                ..format.clone()
            };
            Filter::Partitioned(Arc::new(block), format)
        }
        (None, None) => Filter::None,
    })
}

fn read_tail(
    file: &Arc<dyn RandomAccessFile>,
    file_size: u64,
    tail_size: u64,
) -> Result<(Footer, Window)> {
    let guess = if tail_size != 0 {
        tail_size
    } else {
        (file_size / 32).clamp(TAIL_READ_MIN, TAIL_READ_MAX)
    };
    let len = guess.max(FOOTER_LEN as u64).min(file_size);
    let offset = file_size - len;
    let mut bytes = memory::zeroed(len as usize, "end of a table")?;
    file.read_exact_at(offset, &mut bytes)?;
    let footer = Footer::decode(&bytes, offset).map_err(|e| e.with("file_size", file_size))?;
    Ok((footer, Window { offset, bytes }))
}

/// Where the sequence number of an ingested table stands in its properties.
fn place_of_global_seqno(properties: &Block) -> Result<Option<usize>> {
    let order = KeyOrder::User(UserComparator::BYTEWISE);
    let mut cursor = BlockCursor::new();
    let name = EXTERNAL_SST_FILE_GLOBAL_SEQNO.as_bytes();
    let found = cursor.seek(properties, name, &order)? && cursor.key() == name;
    Ok(found.then(|| cursor.value_range().start))
}

fn read_metaindex(block: &Block) -> Result<Vec<(String, BlockHandle)>> {
    let order = KeyOrder::User(UserComparator::BYTEWISE);
    let mut cursor = BlockCursor::new();
    let mut all = Vec::new();
    let mut keys = KeyBytes::of(block);
    let mut on = cursor.seek_to_first(block, &order)?;
    while on {
        keys.take(cursor.key())?;
        let handle = BlockHandle::decode(&mut Decoder::new(cursor.value(block)))?;
        all.push((String::from_utf8_lossy(cursor.key()).into_owned(), handle));
        on = cursor.next(block, &order)?;
    }
    Ok(all)
}

fn check_properties(
    properties: &TableProperties,
    order: &UserComparator,
    format_version: u32,
) -> Result<()> {
    let name = properties.comparator.as_str();
    if !name.is_empty() && name != order.name() {
        return Err(
            Error::invalid_argument("table was written in another key order")
                .with("table", name)
                .with("expected", order.name()),
        );
    }
    if properties.separate_key_value_in_data_block != 0 {
        return Err(Error::not_supported("table keeps values apart from keys"));
    }
    // From format 7 on the codecs may be the writer's own; the first field names their set.
    if format_version >= 7 {
        let manager = properties.compression.split(';').next().unwrap_or_default();
        if !matches!(manager, "" | "BuiltinV2" | "nullptr") {
            return Err(
                Error::not_supported("table uses codecs that are not built in")
                    .with("compression_manager", manager),
            );
        }
    }
    Ok(())
}

fn index_formats(
    properties: &TableProperties,
    order: &UserComparator,
) -> Result<(IndexFormat, Option<IndexFormat>)> {
    let key_order = if properties.index_key_is_user_key != 0 {
        KeyOrder::User(order.clone())
    } else {
        KeyOrder::Internal(order.clone())
    };
    let index_type = properties.index_type()?;
    let format = IndexFormat {
        order: key_order,
        delta_values: properties.index_value_is_delta_encoded != 0,
        first_keys: index_type == IndexType::BinarySearchWithFirstKey,
    };
    let top = (index_type == IndexType::TwoLevel).then(|| format.clone());
    Ok((format, top))
}

fn read_range_tombstones(
    block: &Block,
    comparator: &UserComparator,
    global_seqno: Option<SeqNo>,
) -> Result<FragmentedRangeTombstones> {
    let order = KeyOrder::Internal(comparator.clone());
    let mut cursor = BlockCursor::new();
    let mut all = Vec::new();
    let mut keys = KeyBytes::of(block);
    let mut on = cursor.seek_to_first(block, &order)?;
    while on {
        keys.take(cursor.key())?;
        let key = ParsedInternalKey::parse(cursor.key())?;
        if key.kind != ValueKind::RangeDeletion {
            return Err(Error::corruption("entry among range tombstones is none"));
        }
        let tombstone = RangeTombstone {
            start: key.user_key.to_vec(),
            end: cursor.value(block).to_vec(),
            seqno: global_seqno.unwrap_or(key.seqno),
        };
        memory::push(&mut all, tombstone, "range tombstones")?;
        on = cursor.next(block, &order)?;
    }
    // Jobs write them cut up, and each is listed once; a table that was made to be ingested may have them overlap.
    let count = all.len() as u64;
    let listed = match count.saturating_mul(2 * count) {
        // Each fragment lists the one number that all have.
        _ if global_seqno.is_some() => 2 * count,
        most if most <= LISTED_TOMBSTONES_MAX => most,
        _ => overlaps(comparator, &all),
    };
    if listed > LISTED_TOMBSTONES_MAX {
        return Err(
            Error::corruption("range tombstones of a table overlap too often")
                .with("listed", listed)
                .with("at_most", LISTED_TOMBSTONES_MAX),
        );
    }
    Ok(FragmentedRangeTombstones::new(comparator, all))
}

/// The fragments of a table's range tombstones list so many at most, of 8 bytes each.
const LISTED_TOMBSTONES_MAX: u64 = 64 << 20;
