//! What memory knows of the groups: where each entry lies, and all keys with their values.
//!
//! ```text
//! runs:  first index | file | place of the block | start     one for each batch and group
//! ends:  e e e e e e e e ...                                  four bytes for each entry
//! ```
//! A run is a stretch of entries in one block; where an entry begins is the end of the one before it,
//! or the run's start. Invariants:
//!
//! 1. Indexes are consecutive: entry `i` is at `i - first` of `ends`, runs lie without gaps.
//! 2. Runs of the rewrite queue come before those of the append queue.
//! 3. [`Span`] says beforehand what [`Group::append`] would refuse; who writes asks it first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use orogen_base::sync::RwLock;
use orogen_base::{Error, Result};

use crate::format::Compression;
use crate::item::{Entries, Item, Op};
use crate::names::{FileId, Queue};

/// Where the block of a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    /// With its checksum.
    pub(crate) len: u32,
    pub(crate) compression: Compression,
}

/// Where an entry lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) block: Block,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Location {
    pub(crate) fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

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

/// One group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    first: u64,
    runs: VecDeque<Run>,
    ends: VecDeque<u32>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// While a directory is read: entries of the rewrite queue that what comes next may follow on.
    aside: Option<Box<Aside>>,
}

/// Entries with their places.
#[derive(Debug)]
struct Aside {
    first: u64,
    runs: VecDeque<Run>,
    ends: VecDeque<u32>,
}

/// Room that an index keeps beyond what it needs, and below which nobody looks.
const SLACK_MIN: usize = 64;

impl Group {
    pub(crate) fn span(&self) -> Span {
        Span {
            first: self.first,
            next: self.first + self.ends.len() as u64,
        }
    }

    /// Puts entries behind, or over, what is there. What [`Span::after`] would refuse replaces
    /// all entries: so it must be read that follows on what a collected file held. What is read next may lie
    /// between that and what the rewrite queue has: 1 and 2 were rewritten, 3 and 4 stood in a file that is gone,
    /// then come 4, and 3 and 4 over it.
    pub(crate) fn append(&mut self, entries: &Entries, block: Block) {
        if entries.ends.is_empty() {
            return;
        }
        let span = self.span();
        if span.is_empty() || entries.first < span.first || entries.first > span.next {
            self.begin_at(entries.first);
        } else {
            self.truncate(entries.first);
        }
        self.runs
            .push_back(Run::new(entries.first, block, entries.start));
        self.ends.extend(&entries.ends);
    }

    /// Drops all entries but those of the rewrite queue that end before `index`, if that follows on them.
    fn begin_at(&mut self, index: u64) {
        let aside = self.take_rewritten().or_else(|| self.aside.take());
        self.drop_entries();
        self.first = index;
        let Some(aside) = aside else { return };
        let next = aside.first + aside.ends.len() as u64;
        if (aside.first..=next).contains(&index) {
            let Aside { first, runs, ends } = *aside;
            (self.first, self.runs, self.ends) = (first, runs, ends);
            self.truncate(index);
        } else {
            self.aside = Some(aside);
        }
    }

    fn take_rewritten(&mut self) -> Option<Box<Aside>> {
        let count = self.runs.partition_point(|run| run.file & APPEND == 0);
        if count == 0 {
            return None;
        }
        let end = self
            .runs
            .get(count)
            .map_or_else(|| self.span().next, |run| run.first);
        self.truncate(end);
        Some(Box::new(Aside {
            first: self.first,
            runs: std::mem::take(&mut self.runs),
            ends: std::mem::take(&mut self.ends),
        }))
    }

    /// Nothing more is read.
    fn end_recovery(&mut self) {
        self.aside = None;
    }

    fn drop_entries(&mut self) {
        self.runs.clear();
        self.ends.clear();
        self.first = 0;
        self.shrink();
    }

    /// Drops the entries from `index` on, which is not below the first one.
    fn truncate(&mut self, index: u64) {
        self.ends.truncate((index - self.first) as usize);
        while self.runs.back().is_some_and(|run| run.first >= index) {
            self.runs.pop_back();
        }
    }

    /// Drops the entries below `index`; how many that were.
    pub(crate) fn compact(&mut self, index: u64) -> u64 {
        if let Some(aside) = self.aside.take_if(|aside| aside.first < index) {
            let entries = Aside {
                first: self.first,
                runs: std::mem::take(&mut self.runs),
                ends: std::mem::take(&mut self.ends),
            };
            let Aside { first, runs, ends } = *aside;
            (self.first, self.runs, self.ends) = (first, runs, ends);
            self.compact(index);
            self.aside = self.take_rewritten();
            (self.first, self.runs, self.ends) = (entries.first, entries.runs, entries.ends);
        }
        let span = self.span();
        if span.is_empty() || index <= span.first {
            return 0;
        }
        if index >= span.next {
            self.drop_entries();
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

    /// Does what an item of a record in `block` says, but for `Clean`.
    pub(crate) fn apply(&mut self, op: Op, block: Block) {
        match op {
            Op::Clean => {}
            Op::Entries(entries) => self.append(&entries, block),
            Op::Compact { index } => {
                self.compact(index);
            }
            Op::Put { key, value } => {
                self.keys.insert(key, value);
            }
            Op::Delete { key } => {
                self.keys.remove(&key);
            }
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.keys.get(key).map(Vec::as_slice)
    }

    /// The keys from `start` up to, and without, `end`.
    pub(crate) fn range(
        &self,
        start: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        // The map panics at a range whose ends are the wrong way round.
        let is_void = matches!((start, end), (Some(start), Some(end)) if end <= start);
        let start = start.map_or(Bound::Unbounded, Bound::Included);
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = if is_void {
            (Bound::Unbounded, Bound::Excluded(&[][..]))
        } else {
            (start, end)
        };
        self.keys
            .range::<[u8], _>(bounds)
            .map(|(k, v)| (k.as_slice(), v.as_slice()))
    }
}

const SHARDS: usize = 64;

type Shard = RwLock<HashMap<u64, Arc<RwLock<Group>>>>;

/// All groups. The lock of a shard is taken before that of a group.
pub(crate) struct Memtables {
    shards: Vec<Shard>,
}

impl Memtables {
    pub(crate) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
        }
    }

    fn shard(&self, group: u64) -> &Shard {
        // Numbers of groups are often consecutive or multiples of something.
        let hash = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        &self.shards[hash as usize % SHARDS]
    }

    pub(crate) fn get(&self, group: u64) -> Option<Arc<RwLock<Group>>> {
        self.shard(group).read().get(&group).cloned()
    }

    fn get_or_make(&self, group: u64) -> Arc<RwLock<Group>> {
        if let Some(found) = self.get(group) {
            return found;
        }
        Arc::clone(self.shard(group).write().entry(group).or_default())
    }

    pub(crate) fn span(&self, group: u64) -> Span {
        self.get(group)
            .map_or_else(Span::default, |g| g.read().span())
    }

    /// Does what the items of a record say.
    pub(crate) fn apply(&self, items: impl IntoIterator<Item = Item>, block: Block) {
        let mut last: Option<(u64, Arc<RwLock<Group>>)> = None;
        for Item { group, op } in items {
            if op == Op::Clean {
                last = None;
                self.shard(group).write().remove(&group);
                continue;
            }
            if last.as_ref().is_none_or(|(id, _)| *id != group) {
                last = Some((group, self.get_or_make(group)));
            }
            if let Some((_, found)) = &last {
                found.write().apply(op, block);
            }
        }
    }

    /// Nothing more is read of the directory.
    pub(crate) fn end_recovery(&self) {
        for shard in &self.shards {
            for group in shard.read().values() {
                group.write().end_recovery();
            }
        }
    }

    pub(crate) fn groups(&self) -> Vec<u64> {
        let mut ids: Vec<u64> = Vec::new();
        for shard in &self.shards {
            ids.extend(shard.read().keys());
        }
        ids.sort_unstable();
        ids
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.read().is_empty())
    }
}

#[cfg(test)]
mod tests;
