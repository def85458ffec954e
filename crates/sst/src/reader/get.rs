//! Point lookups: filter, index, block, entry.
//!
//! `Hot path`: the buffers of the cursors are the thread's and are used again.

use std::cell::Cell;

use orogen_base::key::append_seek_key;
use orogen_base::metrics::Ticker;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{ParsedInternalKey, Result, SeqNo};

use crate::block::{Block, BlockCursor, IndexCursor, IndexFormat, KeyOrder};
use crate::dump::BlockKind;
use crate::filter::FilterKind;

use super::{Filter, TableReadOptions, TableReader, ValueSource, Visit};

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
        // All entries of an ingested table carry one sequence number, whatever is stored.
        let seek_seqno = match self.global_seqno {
            Some(global) if global > read_seqno => return Ok(()),
            Some(_) => SEQNO_MAX,
            None => read_seqno,
        };
        let filtered = !matches!(self.filter, Filter::None);
        if filtered {
            if !self.may_contain(read, user_key)? {
                self.tick(Ticker::BloomFilterUseful, 1);
                return Ok(());
            }
            self.tick(Ticker::BloomFilterFullPositive, 1);
        }
        let mut scratch = SCRATCH.take();
        scratch.target.clear();
        append_seek_key(&mut scratch.target, user_key, seek_seqno);
        let result = self.get_filtered(read, user_key, &mut scratch, visit);
        SCRATCH.set(scratch);
        if result? && filtered {
            self.tick(Ticker::BloomFilterFullTruePositive, 1);
        }
        Ok(())
    }

    /// As `get` without the filter; true if there was an entry.
    fn get_filtered(
        &self,
        read: &TableReadOptions,
        user_key: &[u8],
        scratch: &mut Scratch,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, ValueSource<'_>) -> Visit,
    ) -> Result<bool> {
        let order = KeyOrder::Internal(self.comparator.clone());
        let buffers = [&mut scratch.index_key, &mut scratch.part_key].map(std::mem::take);
        let mut index = self.index_position(read, buffers)?;
        let mut cursor = BlockCursor::with_buffer(std::mem::take(&mut scratch.data_key));
        let mut shown = false;
        let mut more = index.seek(self, read, &scratch.target)?;
        let mut first = true;
        'blocks: while more {
            let handle = index.handle();
            let locate = |e| self.file.locate(e, handle.offset);
            let block = self.block(handle, BlockKind::Data, read)?;
            let mut on = if first {
                cursor
                    .seek(&block, &scratch.target, &order)
                    .map_err(locate)?
            } else {
                cursor.seek_to_first(&block, &order).map_err(locate)?
            };
            first = false;
            while on {
                let mut key = ParsedInternalKey::parse(cursor.key()).map_err(locate)?;
                if self.comparator.compare(key.user_key, user_key).is_ne() {
                    break 'blocks;
                }
                if let Some(global) = self.global_seqno {
                    key.seqno = global;
                }
                shown = true;
                let value = ValueSource {
                    block: &block,
                    range: cursor.value_range(),
                };
                if visit(key, value) == Visit::Stop {
                    break 'blocks;
                }
                on = cursor.next(&block, &order).map_err(locate)?;
            }
            // Older versions may stand in the next block only if this one ends with the key.
            let end = self.index_user_key(index.key());
            let ends_with_key = self.comparator.compare(end, user_key).is_eq()
                && matches!(self.index_format().order, KeyOrder::Internal(_));
            more = ends_with_key && index.next(self, read)?;
        }
        [scratch.index_key, scratch.part_key] = index.into_buffers();
        scratch.data_key = cursor.into_buffer();
        Ok(shown)
    }

    /// False if the table surely has no entry of `user_key`, by its filter.
    ///
    /// # Errors
    /// `Corruption` or `Io` from a filter block.
    pub fn may_contain(&self, read: &TableReadOptions, user_key: &[u8]) -> Result<bool> {
        if self.whole_key_filtering {
            return self.filter_may_match(read, user_key, user_key);
        }
        self.prefix_may_match(read, user_key)
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
                self.filter_may_match(read, extractor.transform(user_key), user_key)
            }
            _ => Ok(true),
        }
    }

    /// Asks the filter for `entry`, which is `user_key` or its prefix.
    fn filter_may_match(
        &self,
        read: &TableReadOptions,
        entry: &[u8],
        user_key: &[u8],
    ) -> Result<bool> {
        match &self.filter {
            Filter::None => Ok(true),
            Filter::Full(meta) => {
                let block = self.meta_block(meta, BlockKind::Filter, read)?;
                let bytes = block.get().bytes();
                Ok(FilterKind::of(bytes).may_match(bytes, entry))
            }
            Filter::Partitioned(top, format) => {
                let Some(handle) = filter_partition(top, format, user_key)? else {
                    return Ok(true);
                };
                let block = self.block(handle, BlockKind::Filter, read)?;
                Ok(FilterKind::of(block.bytes()).may_match(block.bytes(), entry))
            }
        }
    }
}

/// The partition that has the filter of `user_key`.
fn filter_partition(
    top: &Block,
    format: &IndexFormat,
    user_key: &[u8],
) -> Result<Option<crate::BlockHandle>> {
    let mut scratch = FILTER_SCRATCH.take();
    scratch.target.clear();
    append_seek_key(&mut scratch.target, user_key, SEQNO_MAX);
    let mut cursor = IndexCursor::with_buffer(std::mem::take(&mut scratch.index_key));
    let found = cursor
        .seek(top, format.target(&scratch.target), format)
        // Behind all keys: a prefix of the key may still be in the last partition.
        .and_then(|on| Ok(on || cursor.seek_to_last(top, format)?));
    let handle = cursor.handle();
    scratch.index_key = cursor.into_buffer();
    FILTER_SCRATCH.set(scratch);
    Ok(found?.then_some(handle))
}
