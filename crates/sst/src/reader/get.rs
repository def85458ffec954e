//! Point lookups: filter, index, block, entry.
//!
//! A lookup has two halves, so that one of many keys can stop between them (see `batch.rs`): the
//! first asks the filter and finds the data block, the second searches it.
//! `Hot path`: the buffers of the cursors are the thread's and are used again.

use std::cell::Cell;
use std::sync::Arc;

use orogen_base::key::append_seek_key;
use orogen_base::metrics::Ticker;
use orogen_base::perf::{self, PerfCounter};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{ErrorKind, ParsedInternalKey, Result, SeqNo};

use crate::CachedBlock;
use crate::block::{Block, BlockCursor, IndexCursor, IndexFormat, KeyOrder, Located};
use crate::dump::BlockKind;
use crate::filter::{FilterKind, hash64};
use crate::footer::BlockHandle;

use super::{Filter, IndexPosition, TableReadOptions, TableReader, ValueSource, Visit};

#[derive(Default)]
struct Scratch {
    target: Vec<u8>,
    index_key: Vec<u8>,
    part_key: Vec<u8>,
    data_key: Vec<u8>,
}

#[derive(Default)]
struct FilterScratch {
    target: Vec<u8>,
    index_key: Vec<u8>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = const {
        Cell::new(Scratch {
            target: Vec::new(),
            index_key: Vec::new(),
            part_key: Vec::new(),
            data_key: Vec::new(),
        })
    };
    static FILTER_SCRATCH: Cell<FilterScratch> = const {
        Cell::new(FilterScratch { target: Vec::new(), index_key: Vec::new() })
    };
}

/// A user key, hashed once for all the filters that are asked for it.
#[derive(Clone, Copy)]
pub struct LookupKey<'a> {
    user_key: &'a [u8],
    hash: u64,
}

impl<'a> LookupKey<'a> {
    /// The key of a lookup.
    #[inline]
    #[must_use]
    pub fn new(user_key: &'a [u8]) -> Self {
        Self {
            user_key,
            hash: hash64(user_key),
        }
    }

    /// The user key.
    #[inline]
    #[must_use]
    pub fn user_key(&self) -> &'a [u8] {
        self.user_key
    }
}

impl TableReader {
    /// Shows the versions of `user_key` with sequence numbers up to `read_seqno`, newest first,
    /// until `visit` stops it. Range tombstones are not applied.
    ///
    /// # Errors
    /// `Corruption` or `Io`, with file and offset; what was shown before is right.
    pub fn get(
        &self,
        read: &TableReadOptions,
        user_key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, ValueSource<'_>) -> Visit,
    ) -> Result<()> {
        self.lookup(read, LookupKey::new(user_key), read_seqno, visit)
    }

    /// As [`Self::get`] for a key that is looked up in several tables.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn lookup(
        &self,
        read: &TableReadOptions,
        key: LookupKey<'_>,
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, ValueSource<'_>) -> Visit,
    ) -> Result<()> {
        if !self.may_have_version(read, key, read_seqno)? {
            return Ok(());
        }
        let Some(handle) = self.first_block(read, key, read_seqno)? else {
            return Ok(());
        };
        let block = self.block(handle, BlockKind::Data, read)?;
        self.search(read, key, read_seqno, (handle, block), visit)
    }

    /// Asks the processor for what the filter will look at first.
    #[inline]
    pub fn prefetch_filter(&self, key: LookupKey<'_>) {
        if let (Filter::Pinned(block, kind), true) = (&self.filter, self.whole_key_filtering) {
            kind.prefetch(block.bytes(), key.hash);
        }
    }

    /// What is sought in the table's own order: all entries of an ingested table carry one
    /// sequence number, whatever is stored. `None` if no entry is old enough.
    #[inline]
    fn seek_seqno(&self, read_seqno: SeqNo) -> Option<SeqNo> {
        match self.global_seqno {
            Some(global) if global > read_seqno => None,
            Some(_) => Some(SEQNO_MAX),
            None => Some(read_seqno),
        }
    }

    /// False if the table surely has nothing of the key for this reader, by its filter and by
    /// its sequence number.
    #[inline]
    pub(super) fn may_have_version(
        &self,
        read: &TableReadOptions,
        key: LookupKey<'_>,
        read_seqno: SeqNo,
    ) -> Result<bool> {
        if self.seek_seqno(read_seqno).is_none() {
            return Ok(false);
        }
        if matches!(self.filter, Filter::None) {
            return Ok(true);
        }
        let may = if self.whole_key_filtering {
            self.filter_may_match(read, key.user_key, key)?
        } else {
            self.key_prefix_may_match(read, key.user_key)?
        };
        let ticker = match may {
            true => Ticker::BloomFilterFullPositive,
            false => Ticker::BloomFilterUseful,
        };
        self.tick(ticker, 1);
        Ok(may)
    }

    /// The data block where the versions of a key begin that are visible, if there are any.
    #[inline]
    pub(super) fn first_block(
        &self,
        read: &TableReadOptions,
        key: LookupKey<'_>,
        read_seqno: SeqNo,
    ) -> Result<Option<BlockHandle>> {
        if let Some(digest) = self.index_digest() {
            match digest.locate(key.user_key) {
                Located::Entry(i) => return Ok(Some(digest.block(i))),
                Located::AfterAll => return Ok(None),
                Located::Among(..) => {}
            }
        }
        let mut scratch = SCRATCH.take();
        let found = self.seek_index(read, key, read_seqno, &mut scratch, |index, on| {
            Ok(on.then(|| index.handle()))
        });
        SCRATCH.set(scratch);
        found
    }

    /// Places a cursor of the index before the versions of a key and does something with it.
    fn seek_index<T>(
        &self,
        read: &TableReadOptions,
        key: LookupKey<'_>,
        read_seqno: SeqNo,
        scratch: &mut Scratch,
        act: impl FnOnce(&mut IndexPosition<'_>, bool) -> Result<T>,
    ) -> Result<T> {
        let seek_seqno = self.seek_seqno(read_seqno).unwrap_or_default();
        scratch.target.clear();
        append_seek_key(&mut scratch.target, key.user_key, seek_seqno);
        let buffers = [&mut scratch.index_key, &mut scratch.part_key].map(std::mem::take);
        let mut index = self.index_position(read, buffers)?;
        let result = index
            .seek(self, read, &scratch.target)
            .and_then(|on| act(&mut index, on));
        [scratch.index_key, scratch.part_key] = index.into_buffers();
        result
    }

    /// Shows the versions of a key, beginning in the data block where the first one would be.
    pub(super) fn search(
        &self,
        read: &TableReadOptions,
        key: LookupKey<'_>,
        read_seqno: SeqNo,
        block: (BlockHandle, Arc<CachedBlock>),
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, ValueSource<'_>) -> Visit,
    ) -> Result<()> {
        let mut scratch = SCRATCH.take();
        let mut cursor = BlockCursor::with_buffer(std::mem::take(&mut scratch.data_key));
        let mut search = Search {
            table: self,
            read,
            key,
            read_seqno,
            shown: false,
            visit,
        };
        let result = search.run(block, &mut cursor, &mut scratch);
        let shown = search.shown;
        scratch.data_key = cursor.into_buffer();
        SCRATCH.set(scratch);
        result?;
        if shown && !matches!(self.filter, Filter::None) {
            self.tick(Ticker::BloomFilterFullTruePositive, 1);
        }
        Ok(())
    }

    /// False if the table surely has no entry of `user_key`, by its filter.
    ///
    /// # Errors
    /// `Corruption` or `Io` from a filter block.
    pub fn may_contain(&self, read: &TableReadOptions, user_key: &[u8]) -> Result<bool> {
        if self.whole_key_filtering {
            return self.filter_may_match(read, user_key, LookupKey::new(user_key));
        }
        self.key_prefix_may_match(read, user_key)
    }

    /// The same by the prefix of a key that is looked for itself: it is in the part that would have the key.
    fn key_prefix_may_match(&self, read: &TableReadOptions, user_key: &[u8]) -> Result<bool> {
        match &self.filter_prefix {
            Some(extractor) if extractor.in_domain(user_key) => {
                let prefix = LookupKey::new(extractor.transform(user_key));
                self.filter_may_match(read, user_key, prefix)
            }
            _ => Ok(true),
        }
    }

    /// True if the filter holds the prefixes that `extractor` cuts: those of another one tell
    /// nothing about them.
    #[must_use]
    pub fn has_prefixes_of(&self, extractor: &dyn SliceTransform) -> bool {
        let own = self.filter_prefix.as_ref();
        own.is_some_and(|own| own.name() == extractor.name())
    }

    /// False if the table surely has no key with the prefix of `user_key`, by its filter and as
    /// the filter's own extractor cuts it (see [`Self::has_prefixes_of`]).
    ///
    /// # Errors
    /// `Corruption` or `Io` from a filter block.
    pub fn prefix_may_match(&self, read: &TableReadOptions, user_key: &[u8]) -> Result<bool> {
        match &self.filter_prefix {
            Some(extractor) if extractor.in_domain(user_key) => {
                let prefix = LookupKey::new(extractor.transform(user_key));
                Ok(note_filter(!self.prefix_is_denied(read, user_key, prefix)?))
            }
            _ => Ok(true),
        }
    }

    /// Asks the filter for `entry`, which is `user_key` or its prefix.
    #[inline]
    fn filter_may_match(
        &self,
        read: &TableReadOptions,
        user_key: &[u8],
        entry: LookupKey<'_>,
    ) -> Result<bool> {
        Ok(note_filter(self.ask_filter(read, user_key, entry)?))
    }

    #[inline]
    fn ask_filter(
        &self,
        read: &TableReadOptions,
        user_key: &[u8],
        entry: LookupKey<'_>,
    ) -> Result<bool> {
        let handle = match &self.filter {
            Filter::None => return Ok(true),
            Filter::Pinned(block, kind) => {
                return Ok(kind.may_match(block.bytes(), entry.user_key, entry.hash));
            }
            Filter::Cached(handle) => *handle,
            Filter::Partitioned(top, format) => {
                match filter_partition(top, format, user_key, Partition::OfKey)? {
                    Some(handle) => handle,
                    None => return Ok(true),
                }
            }
        };
        self.ask_filter_block(read, handle, entry)
    }

    /// Asks a filter or a part of one. A damaged one denies nothing: the data can be read without it, and whoever checks the table
    /// is told of it.
    fn ask_filter_block(
        &self,
        read: &TableReadOptions,
        handle: BlockHandle,
        entry: LookupKey<'_>,
    ) -> Result<bool> {
        match self.block(handle, BlockKind::Filter, read) {
            Ok(block) => {
                let filter = block.bytes();
                Ok(FilterKind::of(filter).may_match(filter, entry.user_key, entry.hash))
            }
            Err(e) if e.kind() == ErrorKind::Corruption => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// As [`Self::ask_filter`] of a prefix. RocksDB before 9.8 did not put the prefix of a part's last key into that part where
    /// the place looked for is behind that key already in the next: the part before is asked, too, before a prefix is denied.
    fn prefix_is_denied(
        &self,
        read: &TableReadOptions,
        user_key: &[u8],
        prefix: LookupKey<'_>,
    ) -> Result<bool> {
        if self.ask_filter(read, user_key, prefix)? {
            return Ok(false);
        }
        let Filter::Partitioned(top, format) = &self.filter else {
            return Ok(true);
        };
        match filter_partition(top, format, user_key, Partition::Before)? {
            Some(handle) => Ok(!self.ask_filter_block(read, handle, prefix)?),
            None => Ok(true),
        }
    }
}

/// A lookup that has its first data block.
struct Search<'a, 'v> {
    table: &'a TableReader,
    read: &'a TableReadOptions,
    key: LookupKey<'a>,
    read_seqno: SeqNo,
    /// An entry of the key was found.
    shown: bool,
    visit: &'v mut dyn FnMut(ParsedInternalKey<'_>, ValueSource<'_>) -> Visit,
}

impl Search<'_, '_> {
    fn run(
        &mut self,
        (handle, block): (BlockHandle, Arc<CachedBlock>),
        cursor: &mut BlockCursor,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let order = KeyOrder::Internal(self.table.comparator.clone());
        let seek_seqno = self.table.seek_seqno(self.read_seqno).unwrap_or_default();
        scratch.target.clear();
        append_seek_key(&mut scratch.target, self.key.user_key, seek_seqno);
        let on = cursor.seek(&block, &scratch.target, &order);
        if self.show(on, cursor, handle, &block, &order)? {
            return Ok(());
        }
        // Older versions may stand in the next block, but only if this one ends with the key.
        let (table, read, key) = (self.table, self.read, self.key);
        table.seek_index(read, key, self.read_seqno, scratch, |index, mut more| {
            loop {
                let end = table.index_user_key(index.key());
                let ends_with_key = more
                    && table.comparator.compare(end, key.user_key).is_eq()
                    && matches!(table.index_format().order, KeyOrder::Internal(_));
                more = ends_with_key && index.next(table, read)?;
                if !more {
                    return Ok(());
                }
                let handle = index.handle();
                let block = table.block(handle, BlockKind::Data, read)?;
                let on = cursor.seek_to_first(&block, &order);
                if self.show(on, cursor, handle, &block, &order)? {
                    return Ok(());
                }
            }
        })
    }

    /// Shows the versions from the cursor on; false if the block ends before it is known that
    /// there are no more.
    fn show(
        &mut self,
        on: Result<bool>,
        cursor: &mut BlockCursor,
        handle: BlockHandle,
        block: &Arc<CachedBlock>,
        order: &KeyOrder,
    ) -> Result<bool> {
        let table = self.table;
        let locate = |e| table.file.locate(e, handle.offset);
        let mut on = on.map_err(locate)?;
        while on {
            let mut key = ParsedInternalKey::parse(cursor.key()).map_err(locate)?;
            if table
                .comparator
                .compare(key.user_key, self.key.user_key)
                .is_ne()
            {
                return Ok(true);
            }
            if let Some(global) = table.global_seqno {
                key.seqno = global;
            }
            self.shown = true;
            let value = ValueSource {
                block,
                range: cursor.value_range(),
            };
            if (self.visit)(key, value) == Visit::Stop {
                return Ok(true);
            }
            on = cursor.next(block, order).map_err(locate)?;
        }
        Ok(false)
    }
}

#[inline]
fn note_filter(may_match: bool) -> bool {
    perf::add(
        match may_match {
            true => PerfCounter::BloomSstHitCount,
            false => PerfCounter::BloomSstMissCount,
        },
        1,
    );
    may_match
}

/// Which part of a partitioned filter.
#[derive(Clone, Copy)]
enum Partition {
    /// That which has a key.
    OfKey,
    /// The one before it.
    Before,
}

/// A partition of a filter for `user_key`.
fn filter_partition(
    top: &Block,
    format: &IndexFormat,
    user_key: &[u8],
    which: Partition,
) -> Result<Option<BlockHandle>> {
    let mut scratch = FILTER_SCRATCH.take();
    scratch.target.clear();
    append_seek_key(&mut scratch.target, user_key, SEQNO_MAX);
    let mut cursor = IndexCursor::with_buffer(std::mem::take(&mut scratch.index_key));
    let found = cursor
        .seek(top, format.target(&scratch.target), format)
        // Behind all keys: a prefix of the key may still be in the last partition.
        .and_then(|on| Ok(on || cursor.seek_to_last(top, format)?))
        .and_then(|on| match which {
            Partition::Before if on => cursor.prev(top, format),
            _ => Ok(on),
        });
    let handle = cursor.handle();
    scratch.index_key = cursor.into_buffer();
    FILTER_SCRATCH.set(scratch);
    Ok(found?.then_some(handle))
}
