//! An open table: point lookups, cursors, and what is known of it.
//!
//! The engine keeps one reader per live file. Index and filter stay in the reader unless they
//! are to be cached; data blocks go through the block cache. Invariants: (1) what is returned
//! was checked against its checksum when it was read from the file, unless the caller asked
//! otherwise; (2) a reader never changes, so all methods may be called from any thread;
//! (3) errors name file and offset. `Hot path`: `get` takes no lock but the cache's and
//! allocates only for blocks that it must read.
//! Source: RocksDB `table/block_based/block_based_table_reader.cc`.

mod get;
mod batch;
mod open;
mod position;

use std::cell::Cell;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::perf::{self, PerfCounter};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{
    Error, ErrorKind, FileNo, PinnedValue, Result, SeqNo, SliceTransform, UserComparator,
};
use orogen_cache::{CacheKey, Priority};

use crate::block::{Block, IndexDigest, IndexFormat};
use crate::dump::BlockKind;
use crate::file::{TableFile, Window};
use crate::filter::FilterKind;
use crate::footer::BlockHandle;
use crate::iter::TableIter;
use crate::properties::TableProperties;
use crate::{BlockCache, CachedBlock};
use orogen_codec::Dictionary;

pub use batch::BatchLookup;
pub use get::LookupKey;
pub(crate) use position::IndexPosition;

/// How a table is opened.
#[derive(Clone, Default)]
pub struct TableReaderOptions {
    /// The order of user keys; the table must have been written in it.
    pub comparator: UserComparator,
    /// Where blocks are kept; without it every read goes to the file.
    pub block_cache: Option<Arc<BlockCache>>,
    /// Where reads are counted.
    pub statistics: Option<Arc<Statistics>>,
    /// The column family's prefix extractor, for tables whose filter was made with it.
    pub prefix_extractor: Option<Arc<dyn SliceTransform>>,
    /// The file's number, for messages.
    pub file_number: FileNo,
    /// The largest sequence number as the MANIFEST has it; a table that was ingested takes it
    /// for all its entries. `None` if nothing is known.
    pub largest_seqno: Option<SeqNo>,
    /// Bytes behind the data blocks as the MANIFEST has it; 0 if nothing is known.
    pub tail_size: u64,
    /// Keeps index and filter in the block cache instead of in the reader.
    pub cache_index_and_filter_blocks: bool,
    /// Blocks in the cache have checksums, compared whenever one is looked up; one that has changed
    /// is dropped and read again.
    pub protect_cached_blocks: bool,
    /// Cursors reserve the memory of what they read ahead in the block cache, and read less ahead
    /// where that is scarce.
    pub charge_readahead: bool,
    /// Reads blocks at open without checking them.
    pub skip_checksums_at_open: bool,
    /// Opens a table whose range tombstones are damaged, without them: for salvage.
    pub without_damaged_blocks: bool,
}

/// How far a cursor reads ahead of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Readahead {
    /// Starts when blocks are read one after the other, and grows from 8 to 256 KiB.
    #[default]
    Auto,
    /// So many bytes at each read from the first.
    Fixed(usize),
    /// Block by block.
    Off,
}

/// How a table is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableReadOptions {
    /// Checks blocks that are read from the file. Default true. One that the cache is to have is checked in any case: a damaged
    /// block is given to who does not ask, and to nobody else.
    pub verify_checksums: bool,
    /// Puts blocks that are read into the cache. Default true.
    pub fill_cache: bool,
    /// Of cursors.
    pub readahead: Readahead,
}

impl Default for TableReadOptions {
    fn default() -> Self {
        Self {
            verify_checksums: true,
            fill_cache: true,
            readahead: Readahead::Auto,
        }
    }
}

impl TableReadOptions {
    /// For reading a whole table once, as compaction does: 2 MiB ahead, past the cache.
    #[must_use]
    pub fn compaction() -> Self {
        Self {
            verify_checksums: true,
            fill_cache: false,
            readahead: Readahead::Fixed(2 << 20),
        }
    }
}

/// What a lookup does after it was shown an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Show the next older version.
    Continue,
    /// Enough.
    Stop,
}

/// A value where it lies in its block.
#[derive(Clone)]
pub struct ValueSource<'a> {
    block: &'a Arc<Block>,
    range: Range<usize>,
}

impl<'a> ValueSource<'a> {
    /// The value's bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.block
            .bytes()
            .get(self.range.clone())
            .unwrap_or_default()
    }

    /// The value without a copy; it keeps its block in memory.
    #[must_use]
    pub fn pin(&self) -> PinnedValue {
        PinnedValue::pinned(self.block.clone(), self.range.clone())
    }
}

/// A user key in the table with the bytes of data up to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// A user key that divides the table.
    pub user_key: Vec<u8>,
    /// Bytes of data blocks between the anchor before and this one.
    pub weight_bytes: u64,
}

/// The user keys before and behind a place.
pub type KeysAround = (Option<Vec<u8>>, Option<Vec<u8>>);

/// A block of the tail: in the reader, or found through the cache.
enum MetaBlock {
    Pinned(Arc<Block>),
    Cached(BlockHandle),
}

struct Index {
    top: MetaBlock,
    /// The blocks that lead to data blocks.
    format: IndexFormat,
    /// The top, if it leads to more index blocks.
    top_format: Option<IndexFormat>,
    /// Made at the first seek, of an index that is one block in the reader.
    digest: OnceLock<Option<IndexDigest>>,
}

enum Filter {
    None,
    /// In the reader, with how it is read.
    Pinned(Arc<Block>, FilterKind),
    /// Found through the cache.
    Cached(BlockHandle),
    /// The top stays in the reader.
    Partitioned(Arc<Block>, IndexFormat),
}

/// A block that is borrowed from the reader or held.
pub(crate) enum BlockRef<'a> {
    Borrowed(&'a Arc<Block>),
    Held(Arc<Block>),
}

impl BlockRef<'_> {
    #[inline]
    pub(crate) fn get(&self) -> &Block {
        match self {
            Self::Borrowed(b) => b,
            Self::Held(b) => b,
        }
    }
}

thread_local! {
    /// A block that left the cache: the next one that is read takes its memory, which spares
    /// the allocator two calls for each.
    static SPARE: Cell<Option<Arc<Block>>> = const { Cell::new(None) };
}

#[cold]
fn note_cache_lookup(found: bool, kind: BlockKind) {
    if !found {
        return perf::add(PerfCounter::BlockCacheMissCount, 1);
    }
    perf::add(PerfCounter::BlockCacheHitCount, 1);
    match kind {
        BlockKind::Data => {}
        BlockKind::Filter | BlockKind::FilterIndex => {
            perf::add(PerfCounter::BlockCacheFilterHitCount, 1);
        }
        _ => perf::add(PerfCounter::BlockCacheIndexHitCount, 1),
    }
}

#[cold]
fn note_block_read(handle: BlockHandle, kind: BlockKind) {
    perf::add(PerfCounter::BlockReadCount, 1);
    perf::add(PerfCounter::BlockReadByte, handle.size);
    match kind {
        BlockKind::Data => {}
        BlockKind::Filter | BlockKind::FilterIndex => {
            perf::add(PerfCounter::FilterBlockReadCount, 1);
        }
        _ => perf::add(PerfCounter::IndexBlockReadCount, 1),
    }
}

/// Larger blocks are not kept.
const SPARE_BYTES_MAX: usize = 64 << 10;

/// An open table.
pub struct TableReader {
    file: TableFile,
    comparator: UserComparator,
    properties: Arc<TableProperties>,
    metaindex: Vec<(String, BlockHandle)>,
    index: Index,
    filter: Filter,
    /// Why there is none, where it is damaged.
    filter_error: Option<Error>,
    whole_key_filtering: bool,
    /// What the filter's prefixes were cut with, if it has any.
    filter_prefix: Option<Arc<dyn SliceTransform>>,
    dictionary: Option<Dictionary>,
    range_tombstones: Arc<FragmentedRangeTombstones>,
    /// They are damaged, and left out.
    range_tombstones_lost: bool,
    global_seqno: Option<SeqNo>,
    cache: Option<(Arc<BlockCache>, u64)>,
    protect_cached_blocks: bool,
    charge_readahead: bool,
    statistics: Option<Arc<Statistics>>,
    file_number: FileNo,
    /// Where the data blocks end.
    data_end: u64,
}

impl TableReader {
    /// A cursor over the point entries.
    #[must_use]
    pub fn iter(self: &Arc<Self>, read: TableReadOptions) -> TableIter {
        TableIter::new(self.clone(), read)
    }

    /// The range tombstones.
    #[must_use]
    pub fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.range_tombstones.clone()
    }

    /// What is wrong with its filter, if it is read without one for that.
    #[must_use]
    pub fn filter_error(&self) -> Option<&Error> {
        self.filter_error.as_ref()
    }

    /// True if the table had range tombstones that could not be read, and was opened all the same.
    #[must_use]
    pub fn range_tombstones_lost(&self) -> bool {
        self.range_tombstones_lost
    }

    /// True if the table has range tombstones.
    #[inline]
    #[must_use]
    pub fn has_range_tombstones(&self) -> bool {
        !self.range_tombstones.is_empty()
    }

    /// What the table says of itself.
    #[must_use]
    pub fn properties(&self) -> Arc<TableProperties> {
        self.properties.clone()
    }

    /// The format of the table.
    #[must_use]
    pub fn format_version(&self) -> u32 {
        self.file.footer.format_version
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.file.size
    }

    /// The file's number, as it was given at open.
    #[must_use]
    pub fn file_number(&self) -> FileNo {
        self.file_number
    }

    /// The sequence number of all entries, if the table was ingested.
    #[must_use]
    pub fn global_seqno(&self) -> Option<SeqNo> {
        self.global_seqno
    }

    /// Bytes of memory that the reader itself holds, blocks of the cache not included.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        let meta = |m: &MetaBlock| match m {
            MetaBlock::Pinned(b) => b.memory_usage(),
            MetaBlock::Cached(_) => 0,
        };
        let filter = match &self.filter {
            Filter::None | Filter::Cached(_) => 0,
            Filter::Pinned(block, _) | Filter::Partitioned(block, _) => block.memory_usage(),
        };
        size_of::<Self>()
            + meta(&self.index.top)
            + self
                .index
                .digest
                .get()
                .and_then(Option::as_ref)
                .map_or(0, IndexDigest::memory_usage)
            + filter
            + self.dictionary.as_ref().map_or(0, Dictionary::memory_usage)
            + self.range_tombstones.memory_usage()
            + self.properties.memory_usage()
    }

    pub(crate) fn comparator(&self) -> &UserComparator {
        &self.comparator
    }

    pub(crate) fn file(&self) -> &TableFile {
        &self.file
    }

    /// Where windows that are read ahead are reserved, if they are.
    pub(crate) fn readahead_account(&self) -> Option<&Arc<BlockCache>> {
        let cache = self.cache.as_ref().map(|(cache, _)| cache);
        cache.filter(|_| self.charge_readahead)
    }

    pub(crate) fn data_end(&self) -> u64 {
        self.data_end
    }

    pub(crate) fn meta_blocks(&self) -> &[(String, BlockHandle)] {
        &self.metaindex
    }

    pub(crate) fn dictionary(&self) -> Option<&Dictionary> {
        self.dictionary.as_ref()
    }

    #[inline]
    pub(crate) fn tick(&self, ticker: Ticker, n: u64) {
        if let Some(s) = &self.statistics {
            s.add(ticker, n);
        }
    }

    /// A block that the cache has.
    #[inline]
    pub(crate) fn cached_block(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
    ) -> Option<Arc<CachedBlock>> {
        let (cache, id) = self.cache.as_ref()?;
        let key = CacheKey {
            id: *id,
            offset: handle.offset,
        };
        let block = cache.get(key).filter(|block| {
            let intact = block.is_intact();
            if !intact {
                self.tick(Ticker::BlockCacheCorruption, 1);
            }
            // A handle that is not sound may have brought it here as a filter.
            let is_raw = matches!(kind, BlockKind::Filter | BlockKind::Dictionary);
            let serves = intact && (is_raw || block.is_sorted());
            if !serves {
                cache.erase(key);
            }
            serves
        });
        let (hit, miss) = match kind {
            BlockKind::Data => (Ticker::BlockCacheDataHit, Ticker::BlockCacheDataMiss),
            BlockKind::Filter | BlockKind::FilterIndex => {
                (Ticker::BlockCacheFilterHit, Ticker::BlockCacheFilterMiss)
            }
            _ => (Ticker::BlockCacheIndexHit, Ticker::BlockCacheIndexMiss),
        };
        if perf::is_enabled() {
            note_cache_lookup(block.is_some(), kind);
        }
        match &block {
            Some(b) => {
                self.tick(Ticker::BlockCacheHit, 1);
                self.tick(hit, 1);
                self.tick(Ticker::BlockCacheBytesRead, b.bytes().len() as u64);
            }
            None => {
                self.tick(Ticker::BlockCacheMiss, 1);
                self.tick(miss, 1);
            }
        }
        block
    }

    /// Reads a block from the file and offers it to the cache.
    pub(crate) fn read_block(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
        read: &TableReadOptions,
        window: Option<&Window>,
    ) -> Result<Arc<CachedBlock>> {
        let dictionary = if kind == BlockKind::Data {
            self.dictionary()
        } else {
            None
        };
        if perf::is_enabled() {
            note_block_read(handle, kind);
        }
        let mut spare = SPARE
            .take()
            .unwrap_or_else(|| Arc::new(Block::raw(Vec::new())));
        let memory = Arc::get_mut(&mut spare).map(Block::take_bytes);
        let memory = memory.unwrap_or_default();
        let mut cache = self.cache.as_ref().filter(|_| read.fill_cache);
        // A damaged filter denies what is there.
        let is_filter = kind == BlockKind::Filter;
        let verify = read.verify_checksums || cache.is_some() || is_filter;
        let read_with = |verify, memory| {
            let file = &self.file;
            file.read_block(handle, window, dictionary, verify, memory)
        };
        let (bytes, _) = match read_with(verify, memory) {
            Err(e)
                if e.kind() == ErrorKind::Corruption
                    && !read.verify_checksums
                    && !is_filter
                    && verify =>
            {
                cache = None;
                read_with(false, Vec::new())?
            }
            other => other?,
        };
        let mut read_block = match kind {
            BlockKind::Filter | BlockKind::Dictionary => Block::raw(bytes),
            _ => Block::new(bytes).map_err(|e| self.file.locate(e, handle.offset))?,
        };
        if self.protect_cached_blocks {
            read_block.protect();
        }
        let block = match Arc::get_mut(&mut spare) {
            Some(place) => {
                *place = read_block;
                spare
            }
            None => Arc::new(read_block),
        };
        let Some((cache, id)) = cache else {
            return Ok(block);
        };
        let charge = block.memory_usage();
        self.tick(Ticker::BlockCacheAdd, 1);
        self.tick(Ticker::BlockCacheBytesWrite, charge as u64);
        let key = CacheKey {
            id: *id,
            offset: handle.offset,
        };
        let priority = match kind {
            BlockKind::Data => Priority::Low,
            _ => Priority::High,
        };
        let (block, left) = cache.insert_and_take(key, block, charge, priority);
        // Not one that another reader still holds: its memory could not be taken, and would be
        // held here when that reader lets go of it.
        if let Some(mut left) = left
            && Arc::get_mut(&mut left).is_some()
            && left.memory_usage() <= SPARE_BYTES_MAX
        {
            SPARE.set(Some(left));
        }
        Ok(block)
    }

    /// A block from the cache or from the file.
    #[inline]
    pub(crate) fn block(
        &self,
        handle: BlockHandle,
        kind: BlockKind,
        read: &TableReadOptions,
    ) -> Result<Arc<CachedBlock>> {
        match self.cached_block(handle, kind) {
            Some(block) => Ok(block),
            None => self.read_block(handle, kind, read, None),
        }
    }

    fn meta_block<'a>(
        &'a self,
        meta: &'a MetaBlock,
        kind: BlockKind,
        read: &TableReadOptions,
    ) -> Result<BlockRef<'a>> {
        Ok(match meta {
            MetaBlock::Pinned(b) => BlockRef::Borrowed(b),
            MetaBlock::Cached(handle) => BlockRef::Held(self.block(*handle, kind, read)?),
        })
    }

    /// A place in the index.
    pub(crate) fn index_position<'a>(
        &'a self,
        read: &TableReadOptions,
        buffers: [Vec<u8>; 2],
    ) -> Result<IndexPosition<'a>> {
        let top = self.meta_block(&self.index.top, BlockKind::Index, read)?;
        Ok(IndexPosition::new(top, buffers))
    }

    /// The blocks that the tops of a partitioned filter and of an index of two levels lead to.
    ///
    /// # Errors
    /// `Corruption` or `Io` of a top.
    pub(crate) fn partitions(
        &self,
        read: &TableReadOptions,
    ) -> Result<Vec<(BlockKind, BlockHandle)>> {
        let index = self.index_position(read, <[Vec<u8>; 2]>::default())?;
        let index = index.parts(self)?.into_iter();
        let filters = self.filter_partitions()?.into_iter();
        let filters = filters.map(|handle| (BlockKind::Filter, handle));
        Ok(index
            .map(|handle| (BlockKind::Index, handle))
            .chain(filters)
            .collect())
    }

    /// The blocks that the top of a partitioned filter leads to.
    ///
    /// # Errors
    /// `Corruption` of the top.
    pub(crate) fn filter_partitions(&self) -> Result<Vec<BlockHandle>> {
        match &self.filter {
            Filter::Partitioned(top, format) => position::handles_of(top, format),
            _ => Ok(Vec::new()),
        }
    }

    /// A place in the index that borrows nothing.
    pub(crate) fn held_index_position(
        &self,
        read: &TableReadOptions,
    ) -> Result<IndexPosition<'static>> {
        let top = match &self.index.top {
            MetaBlock::Pinned(b) => b.clone(),
            MetaBlock::Cached(handle) => self.block(*handle, BlockKind::Index, read)?,
        };
        Ok(IndexPosition::new(
            BlockRef::Held(top),
            <[Vec<u8>; 2]>::default(),
        ))
    }

    pub(crate) fn index_format(&self) -> &IndexFormat {
        &self.index.format
    }

    pub(crate) fn top_index_format(&self) -> Option<&IndexFormat> {
        self.index.top_format.as_ref()
    }

    /// The digest of the index, if it has one.
    #[inline]
    pub(crate) fn index_digest(&self) -> Option<&IndexDigest> {
        let make = || match (&self.index.top, &self.index.top_format) {
            (MetaBlock::Pinned(block), None) => IndexDigest::new(block, &self.index.format),
            // It would have to be made again whenever the block is read.
            (MetaBlock::Cached(_), _) => None,
            // The top of an index of two levels is small.
            (_, Some(_)) => None,
        };
        self.index.digest.get_or_init(make).as_ref()
    }

    /// Where the entries from `internal_key` on begin, about.
    ///
    /// # Errors
    /// `Corruption` or `Io` from an index block.
    pub fn approximate_offset_of(&self, internal_key: &[u8]) -> Result<u64> {
        if internal_key.len() < orogen_base::key::TRAILER_LEN {
            return Err(Error::invalid_argument("internal key is too short"));
        }
        let read = TableReadOptions::default();
        let mut index = self.index_position(&read, <[Vec<u8>; 2]>::default())?;
        let found = index.seek(self, &read, internal_key)?;
        Ok(if found {
            index.handle().offset
        } else {
            self.data_end
        })
    }

    /// About the bytes of the file that the entries from `start` up to but not including `end`
    /// take, both internal keys; `None` is no bound. What stands behind the data blocks counts in
    /// proportion.
    ///
    /// # Errors
    /// `Corruption` or `Io` from an index block.
    pub fn approximate_size(&self, start: Option<&[u8]>, end: Option<&[u8]>) -> Result<u64> {
        let from = start.map_or(Ok(0), |key| self.approximate_offset_of(key))?;
        let to = end.map_or(Ok(self.data_end), |key| self.approximate_offset_of(key))?;
        if from >= to {
            return Ok(0);
        }
        let scaled =
            u128::from(to - from) * u128::from(self.file.size) / u128::from(self.data_end.max(1));
        Ok(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// The user keys between which the entries of the data block at `offset` stand: after or at
    /// the first, up to the second. `None` for an offset where no data block begins; a key is
    /// `None` where there is no block before.
    ///
    /// # Errors
    /// `Corruption` or `Io` from an index block.
    pub fn keys_around(&self, offset: u64) -> Result<Option<KeysAround>> {
        let read = TableReadOptions {
            fill_cache: false,
            ..Default::default()
        };
        let mut index = self.held_index_position(&read)?;
        let mut before = None;
        let mut on = index.seek_to_first(self, &read)?;
        while on {
            let key = self.index_user_key(index.key()).to_vec();
            if index.handle().offset == offset {
                return Ok(Some((before, Some(key))));
            }
            before = Some(key);
            on = index.next(self, &read)?;
        }
        Ok(None)
    }

    /// About `count` user keys that divide the table into parts of equal size.
    ///
    /// # Errors
    /// `Corruption` or `Io` from an index block.
    pub fn anchors(&self, count: usize) -> Result<Vec<Anchor>> {
        let read = TableReadOptions {
            fill_cache: false,
            ..Default::default()
        };
        let step = self.data_end.div_ceil(count.max(1) as u64).max(1);
        let mut index = self.index_position(&read, <[Vec<u8>; 2]>::default())?;
        let mut anchors = Vec::new();
        let mut weight_bytes = 0;
        let mut on = index.seek_to_first(self, &read)?;
        while on {
            weight_bytes = u64::saturating_add(weight_bytes, index.handle().size);
            let key = self.index_user_key(index.key()).to_vec();
            on = index.next(self, &read)?;
            if weight_bytes >= step || !on {
                anchors.push(Anchor {
                    user_key: key,
                    weight_bytes,
                });
                weight_bytes = 0;
            }
        }
        Ok(anchors)
    }

    /// The user key of an index key.
    pub(crate) fn index_user_key<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        match self.index.format.order {
            crate::block::KeyOrder::Internal(_) => orogen_base::key::user_key(key),
            crate::block::KeyOrder::User(_) => key,
        }
    }

    /// Reads every block of the file and checks it.
    ///
    /// # Errors
    /// `Corruption` or `Io` of the first block that is damaged.
    pub fn verify_checksums(&self) -> Result<()> {
        for block in self.blocks() {
            block?;
        }
        // Its checksum may be right.
        match &self.filter_error {
            Some(e) => Err(e.clone()),
            None => Ok(()),
        }
    }
}
