//! Where the entries of a group lie.
//!
//! ```text
//! runs:  first index | file | place of the block | start     one for each batch and group
//! ends:  e e e e e e e e ...                                  four bytes for each entry
//! ```
//! A run is a stretch of entries in one block; where an entry begins is the end of the one before it,
//! or the run's start. Invariants:
//!
//! 1. Indexes are consecutive: entry `i` is at `i - first` of `ends`, runs lie without gaps.
//! 2. Files of runs do not descend: what is written later lies behind, and what is moved is moved
//!    from the front.
//! 3. [`Span`] says beforehand what [`Index::append`] would refuse; who writes asks it first.

use std::collections::VecDeque;

use orogen_base::{Error, Result};

use super::{Block, Location};
use crate::format::Compression;
use crate::item::{Entries, Op};
use crate::names::{FileId, Queue};

/// Set in [`Run::file`] for the append queue, and in [`Run::start`] for LZ4: a run is 32 bytes.
const APPEND: u64 = 1 << 63;
const LZ4: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    file: u64,
    offset: u64,
    len: u32,
    start: u32,
}

impl Run {
    fn new(first: u64, block: Block, start: u32) -> Self {
        let queue = if block.file.queue == Queue::Append {
            APPEND
        } else {
            0
        };
        let lz4 = if block.compression == Compression::Lz4 {
            LZ4
        } else {
            0
        };
        Self {
            first,
            file: block.file.seq | queue,
            offset: block.offset,
            len: block.len,
            start: start | lz4,
        }
    }

    fn file(&self) -> FileId {
        let queue = if self.file & APPEND == 0 {
            Queue::Rewrite
        } else {
            Queue::Append
        };
        FileId::new(queue, self.file & !APPEND)
    }

    fn start(&self) -> u32 {
        self.start & !LZ4
    }

    fn block(&self) -> Block {
        Block {
            file: self.file(),
            offset: self.offset,
            len: self.len,
            compression: if self.start & LZ4 == 0 {
                Compression::None
            } else {
                Compression::Lz4
            },
        }
    }
}

/// The indexes of a group: `first` up to, and without, `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) next: u64,
}

impl Span {
    pub(crate) fn is_empty(self) -> bool {
        self.first == self.next
    }

    /// What the span is after `op`.
    ///
    /// # Errors
    /// `InvalidArgument` for entries behind a hole or below the first one.
    pub(crate) fn after(self, group: u64, op: &Op) -> Result<Self> {
        Ok(match op {
            Op::Clean => Self::default(),
            Op::Compact { index } if *index >= self.next => Self::default(),
            Op::Compact { index } => Self {
                first: self.first.max(*index),
                next: self.next,
            },
            Op::Entries(entries) if !entries.ends.is_empty() => {
                let first = entries.first;
                let next = first + entries.ends.len() as u64;
                if self.is_empty() {
                    return Ok(Self { first, next });
                }
                let why = if first > self.next {
                    "entries would leave a hole"
                } else if first < self.first {
                    "entries lie below the first one"
                } else {
                    return Ok(Self {
                        first: self.first,
                        next,
                    });
                };
                return Err(Error::invalid_argument(why)
                    .with("group", group)
                    .with("index", first)
                    .with("first", self.first)
                    .with("next", self.next));
            }
            _ => self,
        })
    }
}

/// A stretch of entries in one block, with all that is needed to read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first: u64,
    pub(crate) block: Block,
    pub(crate) start: u32,
    /// Where each entry ends in the raw block.
    pub(crate) ends: Vec<u32>,
}

impl Piece {
    /// The index behind the last entry.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.ends.len() as u64
    }

    /// Raw bytes of the entries.
    pub(crate) fn bytes(&self) -> usize {
        self.ends
            .last()
            .map_or(0, |end| (end - self.start) as usize)
    }
}

/// The entries of a group.
#[derive(Debug, Default)]
pub(crate) struct Index {
    first: u64,
    runs: VecDeque<Run>,
    ends: VecDeque<u32>,
}

/// Room that an index keeps beyond what it needs, and below which nobody looks.
const SLACK_MIN: usize = 64;

impl Index {
    pub(crate) fn span(&self) -> Span {
        Span {
            first: self.first,
            next: self.first + self.ends.len() as u64,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of memory beside its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.runs.capacity() * size_of::<Run>() + self.ends.capacity() * size_of::<u32>()
    }

    /// Puts entries behind, or over, what is there. What [`Span::after`] would refuse replaces
    /// all entries: so it must be read that follows on what a collected file held.
    pub(crate) fn append(&mut self, entries: &Entries, block: Block) {
        if entries.ends.is_empty() {
            return;
        }
        let span = self.span();
        if span.is_empty() || entries.first <= span.first || entries.first > span.next {
            self.clear();
            self.first = entries.first;
        } else {
            self.truncate(entries.first);
        }
        self.runs
            .push_back(Run::new(entries.first, block, entries.start));
        self.ends.extend(&entries.ends);
    }

    /// Puts all of `above` behind what is there, or in its place if it does not follow on that.
    pub(crate) fn stack(&mut self, mut above: Self) {
        if above.is_empty() {
            return;
        }
        if self.is_empty() || self.span().next != above.first {
            *self = above;
            return;
        }
        self.runs.append(&mut above.runs);
        self.ends.append(&mut above.ends);
    }

    pub(crate) fn clear(&mut self) {
        self.runs.clear();
        self.ends.clear();
        self.first = 0;
        self.shrink();
    }

    /// Drops the entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        if index <= self.first {
            self.clear();
            return;
        }
        self.ends
            .truncate(usize::try_from(index - self.first).unwrap_or(usize::MAX));
        while self.runs.back().is_some_and(|run| run.first >= index) {
            self.runs.pop_back();
        }
    }

    /// Drops the entries below `index`; how many that were.
    pub(crate) fn compact(&mut self, index: u64) -> u64 {
        let span = self.span();
        if span.is_empty() || index <= span.first {
            return 0;
        }
        if index >= span.next {
            self.clear();
            return span.next - span.first;
        }
        let count = index - self.first;
        while self.runs.get(1).is_some_and(|run| run.first <= index) {
            self.runs.pop_front();
        }
        if let Some(run) = self.runs.front_mut()
            && run.first < index
        {
            // The entry before `index` is of the same run.
            let start = self.ends[count as usize - 1];
            *run = Run::new(index, run.block(), start);
        }
        self.ends.drain(..count as usize);
        self.first = index;
        self.shrink();
        count
    }

    fn shrink(&mut self) {
        if self.ends.capacity() > SLACK_MIN.max(self.ends.len() * 4) {
            self.ends.shrink_to(self.ends.len() * 2);
        }
        if self.runs.capacity() > SLACK_MIN.max(self.runs.len() * 4) {
            self.runs.shrink_to(self.runs.len() * 2);
        }
    }

    pub(crate) fn locate(&self, index: u64) -> Option<Location> {
        let at = usize::try_from(index.checked_sub(self.first)?).ok()?;
        let end = *self.ends.get(at)?;
        let run = self.runs.partition_point(|run| run.first <= index);
        let run = self.runs.get(run.checked_sub(1)?)?;
        let start = if run.first == index {
            run.start()
        } else {
            self.ends[at - 1]
        };
        Some(Location {
            block: run.block(),
            start,
            end,
        })
    }

    /// The file of an entry.
    pub(crate) fn file_of(&self, index: u64) -> Option<FileId> {
        self.locate(index).map(|location| location.block.file)
    }

    /// How many entries lie in files up to `limit`; they are the first ones.
    pub(crate) fn count_up_to(&self, limit: FileId) -> u64 {
        let run = self.runs.partition_point(|run| run.file() <= limit);
        match self.runs.get(run) {
            Some(run) => run.first - self.first,
            None => self.len(),
        }
    }

    /// The entries from `from` on that lie in files up to `limit`, in pieces of at most
    /// `piece_max` bytes or one entry, until they are `bytes_max` together.
    pub(crate) fn pieces(
        &self,
        from: u64,
        limit: FileId,
        piece_max: usize,
        bytes_max: usize,
    ) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let end = self.first + self.count_up_to(limit);
        let mut at = from.max(self.first);
        let mut run = self.runs.partition_point(|run| run.first <= at);
        let mut total = 0;
        let mut size = 0;
        while at < end && total < bytes_max {
            if self.runs.get(run).is_some_and(|next| next.first == at) {
                run += 1;
            }
            let Some(location) = self.locate(at) else {
                break;
            };
            let len = location.len() + ENTRY_COST;
            total += len;
            match pieces.last_mut() {
                // Entries of other groups may lie between two runs of one block.
                Some(piece)
                    if piece.block == location.block
                        && piece.ends.last() == Some(&location.start)
                        && size + len <= piece_max =>
                {
                    piece.ends.push(location.end);
                    size += len;
                }
                _ => {
                    size = len;
                    pieces.push(Piece {
                        first: at,
                        block: location.block,
                        start: location.start,
                        ends: vec![location.end],
                    });
                }
            }
            at += 1;
        }
        pieces
    }

    /// Lets the entries of `moved`, as far as they still lie in files up to `limit`, lie there; the
    /// index behind the last of them.
    pub(crate) fn relocate(&mut self, moved: &Piece, limit: FileId) -> Option<u64> {
        let low = moved.first.max(self.first);
        let mut high = moved.next().min(self.span().next);
        let run = self.runs.partition_point(|run| run.first <= low);
        let newer = self
            .runs
            .range(run.saturating_sub(1)..)
            .take_while(|run| run.first < high)
            .find(|run| run.file() > limit);
        if let Some(run) = newer {
            high = run.first;
        }
        if low >= high {
            return None;
        }
        let behind = self.locate(high);
        let at = |index: u64| (index - self.first) as usize;
        let (from, to) = (at(low), at(high));
        let skipped = (low - moved.first) as usize;
        let start = match skipped.checked_sub(1) {
            Some(before) => moved.ends[before],
            None => moved.start,
        };
        let before = self.runs.partition_point(|run| run.first < low);
        let mut rest = self.runs.split_off(before);
        while rest.front().is_some_and(|run| run.first < high) {
            rest.pop_front();
        }
        self.runs.push_back(Run::new(low, moved.block, start));
        if let Some(behind) = behind
            && rest.front().is_none_or(|run| run.first > high)
        {
            self.runs
                .push_back(Run::new(high, behind.block, behind.start));
        }
        self.runs.append(&mut rest);
        for (end, new) in self.ends.range_mut(from..to).zip(&moved.ends[skipped..]) {
            *end = *new;
        }
        Some(high)
    }
}

/// Bytes that an entry counts for beyond its own, when work is cut into parts.
pub(crate) const ENTRY_COST: usize = 8;

#[cfg(test)]
mod tests;
