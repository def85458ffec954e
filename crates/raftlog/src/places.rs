//! Where the entries lie that a call reads, block by block.
//!
//! The group is not locked while blocks are read, so all places are taken out of its index before. Entries that lie one behind
//! the other in a block are a run: four bytes for each of them.

use orogen_base::{Result, memory};

use crate::memtable::{Block, Location};

/// Places for which there is room before they are looked for.
const AT_ONCE: u64 = 256;

/// Entries one behind the other in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) block: Block,
    /// Where the first one begins.
    pub(crate) start: u32,
    /// Which of all entries it is.
    first: usize,
}

/// Places of entries.
#[derive(Debug, Default)]
pub(crate) struct Places {
    runs: Vec<Run>,
    /// Where each entry ends in its block.
    ends: Vec<u32>,
}

impl Places {
    /// Makes room for so many entries, or what is reasonable: what bounds a call may be bytes.
    ///
    /// # Errors
    /// `NoMemory`.
    pub(crate) fn reserve(&mut self, count: u64) -> Result<()> {
        memory::reserve(
            &mut self.ends,
            count.min(AT_ONCE) as usize,
            "places of entries",
        )
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// `NoMemory`.
    #[inline]
    pub(crate) fn push(&mut self, entry: &Location) -> Result<()> {
        let follows = match self.runs.last() {
            Some(run) => run.block == entry.block && self.ends.last() == Some(&entry.start),
            None => false,
        };
        if !follows {
            let run = Run {
                block: entry.block,
                start: entry.start,
                first: self.ends.len(),
            };
            memory::push(&mut self.runs, run, "places of entries")?;
        }
        memory::push(&mut self.ends, entry.end, "places of entries")
    }

    /// How many entries there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Where the entries of a run end.
    pub(crate) fn ends(&self, run: usize) -> &[u32] {
        let end = self
            .runs
            .get(run + 1)
            .map_or(self.ends.len(), |next| next.first);
        &self.ends[self.runs[run].first..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Compression;
    use crate::names::{FileId, Queue};

    #[test]
    fn runs_end_where_blocks_do_or_others_lie_between() {
        let block = |offset| Block {
            file: FileId::new(Queue::Append, 1),
            offset,
            len: 100,
            compression: Compression::None,
        };
        let mut places = Places::default();
        places.reserve(u64::MAX).unwrap();
        assert_eq!((places.count(), places.runs().len()), (0, 0));
        let entries = [
            (5, 0, 10),
            (5, 10, 30),
            (5, 40, 40),
            (5, 40, 50),
            (9, 50, 60),
            (5, 60, 61),
        ];
        for (offset, start, end) in entries {
            let block = block(offset);
            places.push(&Location { block, start, end }).unwrap();
        }
        assert_eq!(places.count(), entries.len());
        let mut found = Vec::new();
        for (n, run) in places.runs().iter().enumerate() {
            let mut start = run.start;
            for &end in places.ends(n) {
                found.push((run.block.offset, start, end));
                start = end;
            }
        }
        assert_eq!(found, entries);
        assert_eq!(places.runs().len(), 4);
    }
}
