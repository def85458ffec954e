//! A cursor over the point entries of a table.
//!
//! It owns its reader, holds one data block, and reads ahead of itself once it moves from block
//! to block. `Hot path`: moving inside a block touches nothing but that block.
//! Source: RocksDB `table/block_based/block_based_table_iterator.h`,
//! `file/file_prefetch_buffer.h`.

use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::key::{trailer, user_key};
use orogen_base::perf::PerfCounter;
use orogen_base::{Error, InternalIterator, PinnedValue, Result, memory};
use orogen_cache::Reservation;
use orogen_env::PerfTimer;

use crate::block::{Block, BlockCursor, KeyOrder};
use crate::dump::BlockKind;
use crate::file::Window;
use crate::footer::BlockHandle;
use crate::reader::{IndexPosition, Readahead, TableReadOptions, TableReader};

/// Blocks read one after the other before reading ahead begins.
const SEQUENTIAL_BLOCKS_MIN: u32 = 2;
const READAHEAD_BYTES_MIN: usize = 8 << 10;
const READAHEAD_BYTES_MAX: usize = 256 << 10;

/// Smaller blocks are not worth a reservation.
const UNCOUNTED_BLOCK_BYTES_MAX: usize = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Backward,
}

/// Reads the file in larger pieces while blocks are asked for one after the other, either way.
struct ReadAhead {
    window: Window,
    /// Of the window's memory, where that is asked for.
    reservation: Option<Reservation<Block>>,
    bytes: usize,
    /// Blocks that followed on the one before, this way.
    sequential: u32,
    way: Way,
    last: Option<BlockHandle>,
    /// The first block of this file follows on the last one of another.
    continues: bool,
}

impl ReadAhead {
    fn new() -> Self {
        Self {
            window: Window::default(),
            reservation: None,
            bytes: READAHEAD_BYTES_MIN,
            sequential: 0,
            way: Way::Forward,
            last: None,
            continues: false,
        }
    }

    /// Goes to another file. If that is its neighbour, what was learned is still true there.
    fn leave_file(&mut self, is_neighbour: bool) {
        self.window.bytes.clear();
        self.last = None;
        self.continues = is_neighbour;
    }

    /// Reserves memory for a window of `want` bytes, or of as many as there are; 0 for none.
    fn room(&mut self, table: &TableReader, want: usize) -> usize {
        let Some(cache) = table.readahead_account() else {
            return want;
        };
        let reservation = self
            .reservation
            .get_or_insert_with(|| Reservation::new(cache.clone()));
        let mut room = want;
        if !reservation.is_granted_still() {
            // Others need it more by now.
            room = room.min(reservation.bytes() / 2);
            self.window.bytes = Vec::new();
            reservation.set(room);
        }
        while room >= READAHEAD_BYTES_MIN && !reservation.try_grow(room) {
            room /= 2;
        }
        if room < READAHEAD_BYTES_MIN {
            self.window.bytes = Vec::new();
            reservation.set(0);
            return 0;
        }
        room
    }

    /// Notes that the block at `handle` is wanted.
    fn note(&mut self, handle: BlockHandle) {
        let way = match self.last {
            Some(last) if last.end() == Some(handle.offset) => Some(Way::Forward),
            Some(last) if handle.end() == Some(last.offset) => Some(Way::Backward),
            None if self.continues => Some(self.way),
            _ => None,
        };
        if way == Some(self.way) {
            self.sequential += 1;
        } else {
            self.way = way.unwrap_or(Way::Forward);
            self.sequential = u32::from(way.is_some());
            self.bytes = READAHEAD_BYTES_MIN;
        }
        self.last = Some(handle);
        self.continues = false;
    }

    /// Reads ahead from `handle` on if that is due; afterwards the window has the block if
    /// anything was read.
    fn fill(&mut self, table: &TableReader, handle: BlockHandle, mode: Readahead) -> Result<()> {
        let want = match mode {
            Readahead::Off => return Ok(()),
            Readahead::Auto if self.sequential < SEQUENTIAL_BLOCKS_MIN => return Ok(()),
            Readahead::Auto => self.bytes,
            Readahead::Fixed(n) => n,
        };
        if self.window.block(handle).is_some() {
            return Ok(());
        }
        let file = table.file();
        let block_len = file.check_handle(handle)? as u64;
        let want = self.room(table, (want as u64).max(block_len) as usize) as u64;
        if want < block_len {
            // Memory is scarce: block by block.
            return Ok(());
        }
        // A block that is cut by the window's end is read again as a whole.
        let (start, len) = match self.way {
            Way::Forward => {
                let left = table.data_end().saturating_sub(handle.offset);
                (handle.offset, want.min(left).max(block_len))
            }
            Way::Backward => {
                let end = handle.offset + block_len;
                (end.saturating_sub(want), want.min(end))
            }
        };
        if mode == Readahead::Auto {
            self.bytes = (self.bytes * 2).min(READAHEAD_BYTES_MAX);
        }
        let bytes = &mut self.window.bytes;
        if bytes.capacity() < len as usize {
            // Nothing of it is wanted any more, and not a byte more than was reserved.
            *bytes = Vec::new();
            match memory::with_capacity(len as usize, "readahead") {
                Ok(room) => *bytes = room,
                // Memory is scarce here, too.
                Err(_) => return Ok(()),
            }
        }
        bytes.resize(len as usize, 0);
        self.window.offset = start;
        let timer = PerfTimer::start(PerfCounter::BlockReadTime);
        let result = file.file.read_exact_at(start, &mut self.window.bytes);
        drop(timer);
        if result.is_err() {
            // It may be of what nobody asks for: the block is read alone, and tells its own error.
            self.window.bytes.clear();
        } else if mode == Readahead::Auto && want == READAHEAD_BYTES_MAX as u64 {
            // A long scan: the device works on the next piece while this one is used.
            match self.way {
                Way::Forward => {
                    let next = start + len;
                    let left = table.data_end().saturating_sub(next);
                    file.file.prefetch(next, want.min(left));
                }
                Way::Backward => file
                    .file
                    .prefetch(start.saturating_sub(want), want.min(start)),
            }
        }
        Ok(())
    }
}

/// A cursor over the point entries of a table.
pub struct TableIter {
    table: Arc<TableReader>,
    read: TableReadOptions,
    order: KeyOrder,
    index: Option<IndexPosition<'static>>,
    block: Option<(BlockHandle, Arc<Block>)>,
    /// Of the block's memory, if it is large and no cache counts it.
    block_reservation: Option<Reservation<Block>>,
    cursor: BlockCursor,
    /// The key with the sequence number of an ingested table.
    patched: Vec<u8>,
    ahead: ReadAhead,
    error: Option<Error>,
}

impl TableIter {
    pub(crate) fn new(table: Arc<TableReader>, read: TableReadOptions) -> Self {
        Self {
            order: KeyOrder::Internal(table.comparator().clone()),
            table,
            read,
            index: None,
            block: None,
            block_reservation: None,
            cursor: BlockCursor::new(),
            patched: Vec::new(),
            ahead: ReadAhead::new(),
            error: None,
        }
    }

    /// A cursor over another table that takes over the memory of this one, and how far it reads
    /// ahead if the table is the neighbour to which the scan goes on.
    #[must_use]
    pub fn into_next(self, table: Arc<TableReader>, is_neighbour: bool) -> Self {
        let mut next = Self {
            patched: self.patched,
            cursor: self.cursor,
            ahead: self.ahead,
            ..Self::new(table, self.read)
        };
        next.cursor.invalidate();
        next.ahead.leave_file(is_neighbour);
        next
    }

    /// The table that the cursor is over.
    #[must_use]
    pub fn table(&self) -> &Arc<TableReader> {
        &self.table
    }

    /// Takes the outcome of a move: on an entry, at the end, or failed.
    fn settle(&mut self, outcome: Result<bool>) {
        match outcome {
            Ok(true) => {
                if let Some(global) = self.table.global_seqno() {
                    self.patched.clear();
                    self.patched.extend_from_slice(user_key(self.cursor.key()));
                    let kind = trailer(self.cursor.key()) & 0xff;
                    self.patched
                        .extend_from_slice(&((global << 8) | kind).to_le_bytes());
                }
            }
            Ok(false) => self.cursor.invalidate(),
            Err(e) => {
                self.cursor.invalidate();
                self.error = Some(e);
            }
        }
    }

    /// The place in the index, made at the first move.
    fn with_index(
        &mut self,
        act: impl FnOnce(&mut IndexPosition<'static>, &TableReader, &TableReadOptions) -> Result<bool>,
    ) -> Result<bool> {
        let mut index = match self.index.take() {
            Some(index) => index,
            None => self.table.held_index_position(&self.read)?,
        };
        let result = act(&mut index, &self.table, &self.read);
        self.index = Some(index);
        result
    }

    /// Looks whether the block at hand is what it was when it was checked, if blocks are protected
    /// and what is read goes elsewhere for good, as in compactions: what was copied out of it since
    /// must not be believed else.
    fn check_block(&self) -> Result<()> {
        match &self.block {
            Some((handle, block)) if !self.read.fill_cache && !block.is_intact() => {
                // Without the file: it is not to blame.
                Err(
                    Error::corruption("block changed in memory while it was read")
                        .with("block", handle.offset),
                )
            }
            _ => Ok(()),
        }
    }

    /// Opens the data block that the index stands on.
    fn enter_block(&mut self) -> Result<()> {
        let handle = self
            .index
            .as_ref()
            .map(IndexPosition::handle)
            .unwrap_or_default();
        if self.block.as_ref().is_some_and(|(h, _)| *h == handle) {
            return Ok(());
        }
        self.check_block()?;
        self.ahead.note(handle);
        let block = match self.table.cached_block(handle, BlockKind::Data) {
            Some(block) => block,
            None => {
                self.ahead.fill(&self.table, handle, self.read.readahead)?;
                let window = Some(&self.ahead.window);
                self.table
                    .read_block(handle, BlockKind::Data, &self.read, window)?
            }
        };
        self.reserve_block(&block);
        self.block = Some((handle, block));
        Ok(())
    }

    /// Has the memory of a block counted that the cache does not count.
    fn reserve_block(&mut self, block: &Block) {
        if self.read.fill_cache {
            return;
        }
        let Some(cache) = self.table.readahead_account() else {
            return;
        };
        let bytes = block.memory_usage();
        if bytes > UNCOUNTED_BLOCK_BYTES_MAX {
            self.block_reservation
                .get_or_insert_with(|| Reservation::new(cache.clone()))
                .set(bytes);
        } else {
            self.block_reservation = None;
        }
    }

    /// Does something with the cursor on the open block.
    #[inline]
    fn in_block(
        &mut self,
        act: impl FnOnce(&mut BlockCursor, &Block, &KeyOrder) -> Result<bool>,
    ) -> Result<bool> {
        let Some((handle, block)) = &self.block else {
            return Ok(false);
        };
        act(&mut self.cursor, block, &self.order)
            .map_err(|e| self.table.file().locate(e, handle.offset))
    }

    fn first_of_next_blocks(&mut self, mut on: bool) -> Result<bool> {
        while on {
            self.enter_block()?;
            if self.in_block(BlockCursor::seek_to_first)? {
                return Ok(true);
            }
            on = self.with_index(IndexPosition::next)?;
        }
        Ok(false)
    }

    fn last_of_blocks_before(&mut self, mut on: bool) -> Result<bool> {
        while on {
            self.enter_block()?;
            if self.in_block(BlockCursor::seek_to_last)? {
                return Ok(true);
            }
            on = self.with_index(IndexPosition::prev)?;
        }
        Ok(false)
    }

    fn try_seek(&mut self, target: &[u8]) -> Result<bool> {
        let on = self.with_index(|index, table, read| index.seek(table, read, target))?;
        if !on {
            return Ok(false);
        }
        self.enter_block()?;
        let mut on = self.in_block(|c, block, order| c.seek(block, target, order))?;
        if let Some(global) = self.table.global_seqno()
            && on
        {
            // The stored number is older than the real one: the entry may be before the target.
            let key = self.cursor.key();
            let real = (global << 8) | (trailer(key) & 0xff);
            if self
                .table
                .comparator()
                .compare(user_key(key), user_key(target))
                .is_eq()
                && real > trailer(target)
            {
                on = self.in_block(BlockCursor::next)?;
            }
        }
        if on {
            return Ok(true);
        }
        let on = self.with_index(IndexPosition::next)?;
        self.first_of_next_blocks(on)
    }

    fn try_seek_to_last(&mut self) -> Result<bool> {
        let on = self.with_index(IndexPosition::seek_to_last)?;
        self.last_of_blocks_before(on)
    }

    #[cold]
    fn next_block(&mut self) -> Result<bool> {
        let on = self.with_index(IndexPosition::next)?;
        self.first_of_next_blocks(on)
    }

    #[cold]
    fn prev_block(&mut self) -> Result<bool> {
        let on = self.with_index(IndexPosition::prev)?;
        self.last_of_blocks_before(on)
    }
}

impl InternalIterator for TableIter {
    #[inline]
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn seek_to_first(&mut self) {
        self.error = None;
        let outcome = self
            .with_index(IndexPosition::seek_to_first)
            .and_then(|on| self.first_of_next_blocks(on));
        self.settle(outcome);
    }

    fn seek_to_last(&mut self) {
        self.error = None;
        let outcome = self.try_seek_to_last();
        self.settle(outcome);
    }

    fn seek(&mut self, target: &[u8]) {
        self.error = None;
        let outcome = self.try_seek(target);
        self.settle(outcome);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.seek(target);
        if self.error.is_some() {
            return;
        }
        if !self.valid() {
            let outcome = self.try_seek_to_last();
            self.settle(outcome);
        } else if self.order.compare(self.key(), target) == Ordering::Greater {
            self.prev();
        }
    }

    #[inline]
    fn next(&mut self) {
        let outcome = match self.in_block(BlockCursor::next) {
            Ok(false) => self.next_block(),
            outcome => outcome,
        };
        self.settle(outcome);
    }

    fn prev(&mut self) {
        let outcome = match self.in_block(BlockCursor::prev) {
            Ok(false) => self.prev_block(),
            outcome => outcome,
        };
        self.settle(outcome);
    }

    #[inline]
    fn key(&self) -> &[u8] {
        if self.table.global_seqno().is_some() {
            &self.patched
        } else {
            self.cursor.key()
        }
    }

    #[inline]
    fn value(&self) -> &[u8] {
        match &self.block {
            Some((_, block)) => self.cursor.value(block),
            None => &[],
        }
    }

    fn pinned_value(&self) -> Result<PinnedValue> {
        Ok(match &self.block {
            Some((_, block)) => PinnedValue::pinned(block.clone(), self.cursor.value_range()),
            None => PinnedValue::from(Vec::new()),
        })
    }

    fn peek(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        if let Some((_, block)) = &self.block {
            self.cursor.peek(block, &self.order, visit);
        }
        true
    }

    fn status(&self) -> Result<()> {
        match &self.error {
            Some(e) => Err(e.clone()),
            None => self.check_block(),
        }
    }
}
