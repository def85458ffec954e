//! Lookups of many keys together: each step is done for all of them before the next.
//!
//! ```text
//! filters --> blocks by the index --> cache --> what it lacks, read together --> finish, one by one
//! ```
//! A lookup by itself mostly waits: for lines of memory and for the file. Here the line that a
//! step will look at was asked for while the step before went over the other keys, and blocks that
//! the cache lacks are read with as few calls and as few waits as possible:
//!
//! 1. Blocks that stand together in a file are read at once.
//! 2. What the operating system has in memory is read first; of the rest it is told before
//!    anybody waits, so that the device works on all of it at the same time.
//!
//! A key that shares its block with the one before shares its outcome. `Hot path`.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::perf::PerfCounter;
use orogen_base::{Error, ParsedInternalKey, Result, SeqNo, memory};
use orogen_env::PerfTimer;

use crate::CachedBlock;
use crate::dump::BlockKind;
use crate::file::Window;
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle};

use super::{LookupKey, TableReadOptions, TableReader, ValueSource, Visit};

/// Bytes between two blocks that are read with them rather than apart.
const GAP_BYTES_MAX: u64 = 4 << 10;

/// Bytes that are read at once.
const RUN_BYTES_MAX: u64 = 256 << 10;

thread_local! {
    /// What was read of a file; kept for the next batch.
    static WINDOW: Cell<Window> = const { Cell::new(Window { offset: 0, bytes: Vec::new() }) };
}

/// How far a lookup is.
enum Stage {
    Asked,
    /// The table has nothing of the key.
    Absent,
    /// It needs this block.
    Needs(BlockHandle),
    Has(BlockHandle, Arc<CachedBlock>),
    Failed(Error),
}

/// The lookup of one key in one table, as part of a batch.
pub struct BatchLookup<'a> {
    table: &'a TableReader,
    key: LookupKey<'a>,
    read_seqno: SeqNo,
    stage: Stage,
}

impl<'a> BatchLookup<'a> {
    /// The lookup of the versions of `key` up to `read_seqno`.
    #[must_use]
    pub fn new(table: &'a TableReader, key: LookupKey<'a>, read_seqno: SeqNo) -> Self {
        Self {
            table,
            key,
            read_seqno,
            stage: Stage::Asked,
        }
    }

    /// Brings the blocks of all lookups into memory, as far as they need any.
    ///
    /// Lookups of one table should stand together, in the order of their keys: only neighbours
    /// share blocks and reads. Errors are kept for [`Self::finish`].
    pub fn prepare(lookups: &mut [Self], read: &TableReadOptions) {
        for l in &*lookups {
            l.table.prefetch_filter(l.key);
        }
        for l in &mut *lookups {
            l.ask_filter(read);
        }
        for l in &mut *lookups {
            l.find_block(read);
        }
        let mut missing: Vec<usize> = Vec::new();
        // The one before that needs a block; between them may be some that need none.
        let mut last = None;
        for i in 0..lookups.len() {
            let (before, rest) = lookups.split_at_mut(i);
            let l = &mut rest[0];
            let Stage::Needs(handle) = l.stage else {
                continue;
            };
            match last.replace(i).map(|last: usize| &before[last]) {
                Some(b) if b.shares_block(l) => {
                    // What is missing is given to all who need it when it is there.
                    if let Stage::Has(_, block) = &b.stage {
                        l.stage = Stage::Has(handle, block.clone());
                    }
                }
                _ => match l.table.cached_block(handle, BlockKind::Data) {
                    Some(block) => {
                        block.prefetch();
                        l.stage = Stage::Has(handle, block);
                    }
                    None => missing.push(i),
                },
            }
        }
        if !missing.is_empty() {
            Reads { lookups, read }.read(&missing);
        }
    }

    /// As [`TableReader::get`], after [`Self::prepare`].
    ///
    /// # Errors
    /// As [`TableReader::get`].
    pub fn finish(
        self,
        read: &TableReadOptions,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, ValueSource<'_>) -> Visit,
    ) -> Result<()> {
        let (key, seqno) = (self.key, self.read_seqno);
        match self.stage {
            Stage::Absent => Ok(()),
            Stage::Has(handle, block) => {
                self.table.search(read, key, seqno, (handle, block), visit)
            }
            Stage::Failed(error) => Err(error),
            Stage::Asked | Stage::Needs(_) => self.table.lookup(read, key, seqno, visit),
        }
    }

    fn ask_filter(&mut self, read: &TableReadOptions) {
        match self.table.may_have_version(read, self.key, self.read_seqno) {
            Ok(true) => {
                if let Some(digest) = self.table.index_digest() {
                    digest.prefetch(self.key.user_key());
                }
            }
            Ok(false) => self.stage = Stage::Absent,
            Err(error) => self.stage = Stage::Failed(error),
        }
    }

    fn find_block(&mut self, read: &TableReadOptions) {
        if matches!(self.stage, Stage::Asked) {
            self.stage = match self.table.first_block(read, self.key, self.read_seqno) {
                Ok(Some(handle)) => Stage::Needs(handle),
                Ok(None) => Stage::Absent,
                Err(error) => Stage::Failed(error),
            };
        }
    }

    /// True if this lookup has, or needs, the block that `other` needs.
    fn shares_block(&self, other: &Self) -> bool {
        let (Stage::Needs(a) | Stage::Has(a, _), Stage::Needs(b)) = (&self.stage, &other.stage)
        else {
            return false;
        };
        a == b && std::ptr::eq(self.table, other.table)
    }
}

/// The reads of the blocks that a batch lacks.
struct Reads<'b, 'a> {
    lookups: &'b mut [BatchLookup<'a>],
    read: &'b TableReadOptions,
}

impl Reads<'_, '_> {
    /// Reads the blocks of the lookups `missing`.
    fn read(&mut self, missing: &[usize]) {
        let mut window = WINDOW.take();
        let mut waiting: Vec<&[usize]> = Vec::new();
        let mut rest = missing;
        while !rest.is_empty() {
            let (run, after) = rest.split_at(self.run_len(rest));
            // A batch that reads once has nothing to do while it waits.
            let is_alone = run.len() == missing.len();
            let outcome = match is_alone {
                true => Ok(Some(true)),
                false => self.read_without_waiting(run, &mut window),
            };
            match outcome {
                Ok(Some(is_to_be_read)) => self.take_run(run, &mut window, is_to_be_read),
                Ok(None) => {
                    let (table, span) = self.span(run);
                    let file = &table.file().file;
                    file.prefetch(span.start, span.end - span.start);
                    table.tick(Ticker::MultigetReadsWaited, 1);
                    waiting.push(run);
                }
                Err(error) => self.give(run[0], self.needed(run[0]).0, &Err(error)),
            }
            rest = after;
        }
        for run in waiting {
            self.take_run(run, &mut window, true);
        }
        if window.bytes.capacity() as u64 <= RUN_BYTES_MAX {
            WINDOW.set(window);
        }
    }

    fn needed(&self, i: usize) -> (BlockHandle, u64) {
        let handle = match self.lookups[i].stage {
            Stage::Needs(handle) | Stage::Has(handle, _) => handle,
            _ => BlockHandle::default(),
        };
        let end = handle.offset.saturating_add(handle.size);
        (handle, end.saturating_add(BLOCK_TRAILER_LEN as u64))
    }

    /// How many of the first lookups need blocks that stand together.
    fn run_len(&self, missing: &[usize]) -> usize {
        let first = &self.lookups[missing[0]];
        let (start, mut end) = self.needed(missing[0]);
        let mut len = 1;
        for &i in &missing[1..] {
            let (handle, after) = self.needed(i);
            let near = handle.offset >= end
                && handle.offset - end <= GAP_BYTES_MAX
                && after - start.offset <= RUN_BYTES_MAX;
            if !near || !std::ptr::eq(first.table, self.lookups[i].table) {
                break;
            }
            end = after;
            len += 1;
        }
        len
    }

    /// The table of a run and the bytes that it needs of it.
    fn span(&self, run: &[usize]) -> (&TableReader, Range<u64>) {
        let (first, last) = (run[0], run[run.len() - 1]);
        let span = self.needed(first).0.offset..self.needed(last).1;
        (self.lookups[first].table, span)
    }

    /// Makes room for a run; false if its bytes are not all in the file.
    fn place(&self, run: &[usize], window: &mut Window) -> Result<bool> {
        let (table, span) = self.span(run);
        let inside = run
            .iter()
            .all(|&i| table.file().check_handle(self.needed(i).0).is_ok());
        if inside {
            window.offset = span.start;
            let len = (span.end - span.start) as usize;
            memory::resize(&mut window.bytes, len, "blocks of a batch")?;
        }
        Ok(inside)
    }

    /// Reads a run into the window if that needs no wait for the device, and returns false; true
    /// if its blocks must be read one by one to tell what is wrong; `None` if it must wait.
    fn read_without_waiting(&self, run: &[usize], window: &mut Window) -> Result<Option<bool>> {
        if !self.place(run, window)? {
            return Ok(Some(true));
        }
        let file = &self.span(run).0.file().file;
        let _timer = PerfTimer::start(PerfCounter::BlockReadTime);
        match file.read_at_without_waiting(window.offset, &mut window.bytes) {
            Ok(Some(n)) => {
                window.bytes.truncate(n);
                Ok(Some(false))
            }
            Ok(None) => Ok(None),
            Err(_) if run.len() > 1 => Ok(Some(true)),
            Err(error) => Err(error),
        }
    }

    /// Gives the lookups of a run their blocks, out of the window if they were read already.
    fn take_run(&mut self, run: &[usize], window: &mut Window, is_to_be_read: bool) {
        if is_to_be_read {
            let whole = run.len() > 1 && self.place(run, window).unwrap_or(false) && {
                let file = &self.span(run).0.file().file;
                let _timer = PerfTimer::start(PerfCounter::BlockReadTime);
                file.read_exact_at(window.offset, &mut window.bytes).is_ok()
            };
            if !whole {
                // Read one by one, each block has its own outcome.
                window.bytes.clear();
            }
        }
        let table = self.lookups[run[0]].table;
        table.tick(Ticker::MultigetReads, 1);
        table.tick(Ticker::MultigetBlocksRead, run.len() as u64);
        for &i in run {
            let (handle, _) = self.needed(i);
            let block = table.read_block(handle, BlockKind::Data, self.read, Some(window));
            self.give(i, handle, &block);
        }
    }

    /// Gives a block to the lookup that asked for it and to its neighbours that need it too.
    fn give(&mut self, first: usize, handle: BlockHandle, block: &Result<Arc<CachedBlock>>) {
        let table = self.lookups[first].table;
        for l in &mut self.lookups[first..] {
            match l.stage {
                Stage::Needs(h) if h == handle && std::ptr::eq(l.table, table) => {}
                Stage::Absent | Stage::Failed(_) => continue,
                _ => return,
            }
            l.stage = match block {
                Ok(block) => Stage::Has(handle, block.clone()),
                Err(error) => Stage::Failed(error.clone()),
            };
        }
    }
}
