//! Where the entries of a group lie.
//!
//! ```text
//! chunks:  first index | codes    CHUNK_LEN entries each, but for some that were moved; not the last ones
//! tail:    first index | codes    the last ones
//! ```
//! A group has an entry here for each that its log holds, so what one costs is what counts: 6 to 11 bytes.
//! How an entry lies to the one before it is told by [`code`]; the first one of a chunk is told from
//! nothing. So a chunk is read from its front, and who looks for an entry finds the chunk by its index and
//! decodes no more than that one. Entries of the first chunk that are gone stay in it until all are, and
//! the index of the first one says which. A group of few entries has no chunks, and one allocation. Invariants:
//!
//! 1. Indexes are consecutive: those of a chunk end where the next one or the tail begins. The tail
//!    holds the last entry, or there is none at all, and `last` is where that lies.
//! 2. Files of entries do not descend: what is written later lies behind, and what is moved is moved
//!    from the front. Only [`Index::count_up_to`] and [`Index::pieces`] rely on it, and on that those of
//!    the first chunk that are gone do not either.
//! 3. [`Span`] says beforehand what [`Index::append`] would refuse; who writes asks it first.

mod code;

use std::collections::VecDeque;
use std::{iter, mem};

use orogen_base::{Error, Result};

use super::{Block, Location};
use crate::item::{Entries, Op};
use crate::names::FileId;
use code::{Code, ORIGIN};

/// The indexes of a group: `first` up to, and without, `next`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) first: u64,
    pub(crate) next: u64,
    /// Not 0: some are missing before this index that nobody took away, and the group is fenced.
    pub(crate) missing_before: u64,
}

impl Span {
    pub(crate) fn is_empty(self) -> bool {
        self.first == self.next
    }

    /// What the span is after `op`.
    ///
    /// # Errors
    /// `InvalidArgument` for entries behind a hole or below the first one; `Corruption` for entries of a group that is fenced.
    pub(crate) fn after(self, group: u64, op: &Op) -> Result<Self> {
        Ok(match op {
            Op::Clean => Self::default(),
            Op::Compact { index } if *index >= self.next => Self::default(),
            Op::Compact { index } => Self {
                first: self.first.max(*index),
                next: self.next,
                missing_before: missing_after(self.missing_before, *index),
            },
            Op::Entries(entries) if !entries.ends.is_empty() => {
                self.check(group)?;
                let first = entries.first;
                let next = first + entries.ends.len() as u64;
                if self.is_empty() {
                    return Ok(Self {
                        first,
                        next,
                        missing_before: 0,
                    });
                }
                let why = if first > self.next {
                    "entries would leave a hole"
                } else if first < self.first {
                    "entries lie below the first one"
                } else {
                    return Ok(Self {
                        first: self.first,
                        next,
                        missing_before: 0,
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

    /// # Errors
    /// `Corruption` if the group is fenced.
    pub(crate) fn check(self, group: u64) -> Result<()> {
        match self.missing_before {
            0 => Ok(()),
            index => Err(fenced(group, index)),
        }
    }
}

/// Where entries are missing before once those below `index` were taken away.
pub(super) fn missing_after(missing_before: u64, index: u64) -> u64 {
    match index >= missing_before {
        true => 0,
        false => missing_before,
    }
}

#[cold]
pub(crate) fn fenced(group: u64, missing_before: u64) -> Error {
    Error::corruption("entries of the group are missing")
        .with("group", group)
        .with("missing_before", missing_before)
        .with(
            "help",
            "clean the group, compact it up to there, or repair the log",
        )
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

/// Entries of a full chunk. A look-up decodes half of one in the mean, and its header, its allocation and
/// the first code cost some 50 bytes.
const CHUNK_LEN: u64 = 64;

/// Chunks that there is room for beyond what is needed, and below which nobody looks.
const SLACK_MIN: usize = 16;

/// Bytes of the first room for codes: what allocators give at least.
const TAIL_MIN: usize = 24;

/// Consecutive entries.
#[derive(Debug)]
struct Chunk {
    first: u64,
    codes: Box<[u8]>,
}

/// The entries of a group.
#[derive(Debug)]
pub(crate) struct Index {
    /// Of the first entry. The first chunk, or the tail, may begin before.
    first: u64,
    /// Behind the last entry.
    next: u64,
    chunks: VecDeque<Chunk>,
    tail_first: u64,
    tail: Vec<u8>,
    /// What the next code is told from.
    last: Location,
}

impl Default for Index {
    fn default() -> Self {
        Self {
            first: 0,
            next: 0,
            chunks: VecDeque::new(),
            tail_first: 0,
            tail: Vec::new(),
            last: ORIGIN,
        }
    }
}

impl Index {
    pub(crate) fn span(&self) -> Span {
        Span {
            first: self.first,
            next: self.next,
            missing_before: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.next - self.first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// An index without entries whose first one will be `first`.
    fn starting_at(first: u64) -> Self {
        Self {
            first,
            next: first,
            tail_first: first,
            ..Self::default()
        }
    }

    /// Bytes of memory beside its own.
    pub(crate) fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter().map(|chunk| chunk.codes.len());
        self.chunks.capacity() * size_of::<Chunk>() + chunks.sum::<usize>() + self.tail.capacity()
    }

    /// Puts entries behind, or over, what is there. What [`Span::after`] would refuse replaces
    /// all entries: so it must be read that follows on what a collected file held.
    pub(crate) fn append(&mut self, entries: &Entries, block: Block) {
        if entries.ends.is_empty() {
            return;
        }
        if self.is_empty() || entries.first <= self.first || entries.first > self.next {
            *self = Self::starting_at(entries.first);
        } else {
            self.truncate(entries.first);
        }
        self.extend(block, entries.start, &entries.ends);
    }

    /// Puts entries of a block behind the last one.
    fn extend(&mut self, block: Block, mut start: u32, ends: &[u32]) {
        for &end in ends {
            self.push(&Location { block, start, end });
            start = end;
        }
    }

    fn push(&mut self, entry: &Location) {
        if self.next - self.tail_first >= CHUNK_LEN {
            self.seal();
        }
        let code = Code::new(&self.last, entry);
        let code = code.bytes();
        if self.tail.capacity() - self.tail.len() < code.len() {
            // Half, not as much again: most groups are a tail and little else.
            let more = TAIL_MIN.max(self.tail.len() / 2).max(code.len());
            // Small room comes from what a thread has at hand. To make some longer takes the allocator's lock, for which a
            // purge may have the writer wait.
            let mut tail = Vec::with_capacity(self.tail.len() + more);
            tail.extend_from_slice(&self.tail);
            self.tail = tail;
        }
        self.tail.extend_from_slice(code);
        self.last = *entry;
        self.next += 1;
    }

    /// Makes a chunk of the tail; entries go behind it.
    fn seal(&mut self) {
        self.chunks.push_back(Chunk {
            first: self.tail_first,
            codes: mem::take(&mut self.tail).into_boxed_slice(),
        });
        self.tail_first = self.next;
        self.last = ORIGIN;
    }

    /// Puts all of `above` behind what is there, or in its place if it does not follow on that.
    pub(crate) fn stack(&mut self, mut above: Self) {
        if above.is_empty() {
            return;
        }
        if self.is_empty() || self.next != above.first {
            *self = above;
            return;
        }
        // Its first chunk may begin with codes of entries that are gone, which no other one may.
        let end = match above.chunks.len() {
            0 => above.next,
            _ => above.first_of(1),
        };
        for entry in above.locations(above.first, end) {
            self.push(&entry);
        }
        if above.chunks.pop_front().is_none() {
            return;
        }
        self.seal();
        self.chunks.append(&mut above.chunks);
        self.tail_first = above.tail_first;
        self.tail = above.tail;
        self.last = above.last;
        self.next = above.next;
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Drops the entries from `index` on.
    pub(crate) fn truncate(&mut self, index: u64) {
        if index <= self.first {
            self.clear();
            return;
        }
        if index >= self.next {
            return;
        }
        if index <= self.tail_first {
            let end = self.chunks.partition_point(|chunk| chunk.first < index);
            self.chunks.truncate(end);
            if let Some(Chunk { first, codes }) = self.chunks.pop_back() {
                self.tail_first = first;
                self.tail = codes.into_vec();
            }
        }
        self.cut(index);
    }

    /// Drops the entries from `index`, one of the tail but not its first, on.
    fn cut(&mut self, index: u64) {
        let mut codes = self.tail.as_slice();
        self.last = ORIGIN;
        code::skip(&mut codes, &mut self.last, index - self.tail_first);
        let len = self.tail.len() - codes.len();
        self.tail.truncate(len);
        self.next = index;
    }

    /// Drops the entries below `index`; how many that were.
    pub(crate) fn compact(&mut self, index: u64) -> u64 {
        if index <= self.first {
            return 0;
        }
        if index >= self.next {
            let count = self.len();
            self.clear();
            return count;
        }
        let count = index - self.first;
        self.first = index;
        let gone = self.chunk_of(index);
        self.chunks.drain(..gone);
        if self.chunks.capacity() > SLACK_MIN.max(self.chunks.len() * 4) {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
        count
    }

    /// The first index of a chunk, or of the tail.
    fn first_of(&self, chunk: usize) -> u64 {
        let chunk = self.chunks.get(chunk);
        chunk.map_or(self.tail_first, |chunk| chunk.first)
    }

    /// The number of the chunk that holds an entry; how many there are if it is one of the tail.
    fn chunk_of(&self, index: u64) -> usize {
        if index >= self.tail_first {
            return self.chunks.len();
        }
        let behind = self.chunks.partition_point(|chunk| chunk.first <= index);
        behind.saturating_sub(1)
    }

    /// Where the entries from `from` up to, and without, `to` lie, as far as they are there. No more
    /// entries before them are decoded than a chunk has.
    pub(crate) fn locations(&self, from: u64, to: u64) -> Locations<'_> {
        let from = from.max(self.first);
        let to = to.min(self.next);
        let mut locations = Locations {
            index: self,
            chunk: 0,
            codes: &[],
            last: ORIGIN,
            at: to,
            to,
        };
        if from < to {
            let chunk = self.chunk_of(from);
            let gone = from - locations.open(chunk);
            code::skip(&mut locations.codes, &mut locations.last, gone);
            locations.at = from;
        }
        locations
    }

    pub(crate) fn locate(&self, index: u64) -> Option<Location> {
        if index < self.first {
            return None;
        }
        self.locations(index, index.checked_add(1)?).next()
    }

    /// The file of an entry.
    pub(crate) fn file_of(&self, index: u64) -> Option<FileId> {
        self.locate(index).map(|location| location.block.file)
    }

    /// How many entries lie in files up to `limit`; they are the first ones.
    pub(crate) fn count_up_to(&self, limit: FileId) -> u64 {
        let is_old = |place: &Location| place.block.file <= limit;
        let begins_old = |codes: &[u8]| is_old(&code::first_of(codes));
        let begins = if begins_old(&self.tail) {
            self.tail_first
        } else {
            let newer = (self.chunks).partition_point(|chunk| begins_old(&chunk.codes));
            self.first_of(newer.saturating_sub(1))
        };
        let from = begins.max(self.first);
        let count = self.locations(from, self.next).take_while(is_old).count();
        from + count as u64 - self.first
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
        let mut total = 0;
        let mut size = 0;
        let from = from.max(self.first);
        for (location, at) in self.locations(from, self.next).zip(from..) {
            if total >= bytes_max || location.block.file > limit {
                break;
            }
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
        }
        pieces
    }

    /// Lets the entries of `moved`, as far as they still lie in files up to `limit`, lie there; the
    /// index behind the last of them.
    pub(crate) fn relocate(&mut self, moved: &Piece, limit: FileId) -> Option<u64> {
        let low = moved.first.max(self.first);
        let count = self
            .locations(low, moved.next())
            .take_while(|location| location.block.file <= limit)
            .count();
        let skipped = usize::try_from(low - moved.first).ok()?;
        let ends = moved.ends.get(skipped..)?.get(..count)?;
        if ends.is_empty() {
            return None;
        }
        let start = match skipped.checked_sub(1) {
            Some(before) => moved.ends[before],
            None => moved.start,
        };
        let high = low + count as u64;
        if self.len() <= CHUNK_LEN {
            self.relocate_in_tail(low, moved.block, start, ends);
            return Some(high);
        }
        let rest = self.split_off(high);
        self.truncate(low);
        if self.is_empty() {
            *self = Self::starting_at(low);
        }
        self.extend(moved.block, start, ends);
        self.stack(rest);
        Some(high)
    }

    /// Lets entries from `low` on lie in a block, where all entries are so few that the tail has room for them.
    ///
    /// The room that the tail has is used again: who moves entries does so for many groups, one after the other, and
    /// the allocator would have the thread wait that appends to others.
    fn relocate_in_tail(&mut self, low: u64, block: Block, start: u32, ends: &[u32]) {
        let starts = iter::once(start).chain(ends.iter().copied());
        let moved = starts
            .zip(ends)
            .map(|(start, &end)| Location { block, start, end });
        let high = low + ends.len() as u64;
        let before = self.locations(self.first, low);
        let behind = self.locations(high, self.next);
        let mut codes = Vec::with_capacity(TAIL_MIN * 16);
        let mut last = ORIGIN;
        for entry in before.chain(moved).chain(behind) {
            codes.extend_from_slice(Code::new(&last, &entry).bytes());
            last = entry;
        }
        self.chunks.clear();
        self.tail_first = self.first;
        self.last = last;
        self.tail.clear();
        // No more room than twice what growing leaves.
        let is_apt = (codes.len()..=codes.len() * 3 + TAIL_MIN).contains(&self.tail.capacity());
        if !is_apt {
            self.tail = Vec::with_capacity(codes.len() + TAIL_MIN);
        }
        self.tail.extend_from_slice(&codes);
    }

    /// Takes away the entries from `index`, which is not the first one, on.
    fn split_off(&mut self, index: u64) -> Self {
        if index >= self.next {
            return Self::default();
        }
        let chunk = self.chunk_of(index);
        let behind = self.chunks.len().min(chunk + 1);
        let mut chunks = self.chunks.split_off(behind);
        // Both have entries of the one that holds `index`, and each reads its own.
        let tail = match self.chunks.get(chunk) {
            Some(Chunk { first, codes }) => {
                let (first, codes) = (*first, codes.clone());
                chunks.push_front(Chunk { first, codes });
                mem::take(&mut self.tail)
            }
            None => self.tail.clone(),
        };
        let rest = Self {
            first: index,
            next: self.next,
            chunks,
            tail_first: self.tail_first,
            tail,
            last: self.last,
        };
        self.truncate(index);
        rest
    }
}

/// Places of entries, one after the other.
pub(crate) struct Locations<'i> {
    index: &'i Index,
    /// The chunk behind the one that is read.
    chunk: usize,
    codes: &'i [u8],
    last: Location,
    /// The entry whose code is the next one.
    at: u64,
    to: u64,
}

impl Locations<'_> {
    /// Begins to read a chunk, or behind them the tail; its first index.
    fn open(&mut self, chunk: usize) -> u64 {
        let index = self.index;
        let (first, codes) = match index.chunks.get(chunk) {
            Some(chunk) => (chunk.first, &*chunk.codes),
            None => (index.tail_first, index.tail.as_slice()),
        };
        self.chunk = chunk + 1;
        self.codes = codes;
        self.last = ORIGIN;
        first
    }
}

impl Iterator for Locations<'_> {
    type Item = Location;

    #[inline]
    fn next(&mut self) -> Option<Location> {
        if self.at >= self.to {
            return None;
        }
        if self.codes.is_empty() {
            self.open(self.chunk);
        }
        code::step(&mut self.codes, &mut self.last);
        self.at += 1;
        Some(self.last)
    }
}

/// Bytes that an entry counts for beyond its own, when work is cut into parts.
pub(crate) const ENTRY_COST: usize = 8;

#[cfg(test)]
mod tests;
