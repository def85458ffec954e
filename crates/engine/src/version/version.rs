//! The tables of one column family at one moment. Immutable and shared.
//!
//! Readers and jobs hold an `Arc<Version>` for as long as they need its files; a new version is
//! built from edits by the builder and shares the levels that did not change. Source: RocksDB
//! `db/version_set.cc` (`VersionStorageInfo`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use orogen_base::FileNo;
use orogen_base::key::InternalKeyComparator;

use super::blob_meta::{BlobFileMeta, BlobSpace};
use super::file_meta::FileMeta;
use super::level::{KeyRange, Level, ends_before};
use super::text;

/// The tables of one column family at one moment.
#[derive(Clone)]
pub struct Version {
    pub(crate) icmp: InternalKeyComparator,
    pub(crate) levels: Vec<Arc<Level>>,
    pub(crate) compact_cursors: BTreeMap<usize, Vec<u8>>,
    pub(crate) blob_files: BTreeMap<FileNo, Arc<BlobFileMeta>>,
    pub(crate) blob_space: BlobSpace,
    pub(crate) era: Era,
}

/// What the versions share that may point to the same places of blob files. An edit that says that space
/// inside a file is about to be given up begins a new one, whose versions all know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Era(Arc<()>);

impl Era {
    /// True if they are one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True if no version of it is held any more, this handle being the only one.
    pub(crate) fn is_over(&self) -> bool {
        let is_over = Arc::strong_count(&self.0) == 1;
        // What others read of it came before they let go.
        fence(Ordering::Acquire);
        is_over
    }
}

impl Version {
    /// A version without files.
    #[must_use]
    pub fn empty(icmp: InternalKeyComparator, num_levels: usize) -> Self {
        Self {
            icmp,
            levels: vec![Arc::default(); num_levels],
            compact_cursors: BTreeMap::new(),
            blob_files: BTreeMap::new(),
            blob_space: BlobSpace::default(),
            era: Era::default(),
        }
    }

    /// The order of the keys.
    #[must_use]
    pub fn icmp(&self) -> &InternalKeyComparator {
        &self.icmp
    }

    /// How many levels there are, empty ones included.
    #[must_use]
    pub fn num_levels(&self) -> usize {
        self.levels.len()
    }

    /// One above the deepest level that has files; 0 if there are none.
    #[must_use]
    pub fn num_non_empty_levels(&self) -> usize {
        self.levels
            .iter()
            .rposition(|l| !l.is_empty())
            .map_or(0, |i| i + 1)
    }

    /// All levels, from 0 down.
    #[must_use]
    pub fn levels(&self) -> &[Arc<Level>] {
        &self.levels
    }

    /// A level.
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn level(&self, level: usize) -> &Level {
        &self.levels[level]
    }

    /// The files of a level: level 0 newest first, others by key.
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn files(&self, level: usize) -> &[Arc<FileMeta>] {
        self.levels[level].files()
    }

    /// How many files a level has.
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn num_files(&self, level: usize) -> usize {
        self.levels[level].len()
    }

    /// Bytes of a level's files.
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn level_bytes(&self, level: usize) -> u64 {
        self.levels[level].size_bytes()
    }

    /// Bytes of all tables.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.levels
            .iter()
            .fold(0, |sum, l| sum.saturating_add(l.size_bytes()))
    }

    /// How many tables there are.
    #[must_use]
    pub fn total_files(&self) -> usize {
        self.levels.iter().map(|l| l.len()).sum()
    }

    /// All tables with their levels, from level 0 down.
    pub fn iter_files(&self) -> impl Iterator<Item = (usize, &Arc<FileMeta>)> {
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(n, l)| l.files().iter().map(move |f| (n, f)))
    }

    /// The table with this number, and its level.
    #[must_use]
    pub fn find(&self, number: FileNo) -> Option<(usize, &Arc<FileMeta>)> {
        self.levels
            .iter()
            .enumerate()
            .find_map(|(n, l)| l.position(number).map(|i| (n, &l.files()[i])))
    }

    /// The blob files that tables of this version may point into.
    #[must_use]
    pub fn blob_files(&self) -> &BTreeMap<FileNo, Arc<BlobFileMeta>> {
        &self.blob_files
    }

    /// Bytes of records that the blob files take, and those of them that are live. Known without going over
    /// the files: it is asked for under the family's lock.
    #[must_use]
    pub fn blob_space(&self) -> (u64, u64) {
        self.blob_space.get()
    }

    /// About the bytes that padding and meta records take in the blob files.
    #[must_use]
    pub fn blob_padding(&self) -> u64 {
        self.blob_space.padding()
    }

    /// Where the next round-robin compaction of a level starts: an internal key.
    #[must_use]
    pub fn compact_cursor(&self, level: usize) -> Option<&[u8]> {
        self.compact_cursors.get(&level).map(Vec::as_slice)
    }

    /// The levels' cursors.
    #[must_use]
    pub fn compact_cursors(&self) -> &BTreeMap<usize, Vec<u8>> {
        &self.compact_cursors
    }

    /// The highest epoch number of a table; 0 if there are no tables.
    #[must_use]
    pub fn max_epoch_number(&self) -> u64 {
        self.iter_files()
            .map(|(_, f)| f.epoch_number)
            .max()
            .unwrap_or(0)
    }

    /// The files of a level that a compaction of the user keys from `begin` to `end` must take,
    /// both included; `None` is no bound. In the level's order.
    ///
    /// In level 0 a file that is taken widens the bounds to its own, and so on: an older version
    /// of a key may not sink below a newer one. Other levels are not widened; see
    /// [`Version::clean_cut`].
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn overlapping_inputs(
        &self,
        level: usize,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> Vec<Arc<FileMeta>> {
        let files = self.files(level);
        if level > 0 {
            return files[self.levels[level].overlapping(&self.icmp, begin, end)].to_vec();
        }
        let user = &self.icmp.user;
        let (mut begin, mut end) = (begin, end);
        let mut taken = vec![false; files.len()];
        loop {
            let mut grew = false;
            for (f, taken) in files.iter().zip(&mut taken) {
                let before = begin.is_some_and(|b| user.less(f.largest_user_key(), b));
                let after = end.is_some_and(|e| user.less(e, f.smallest_user_key()));
                if *taken || before || after {
                    continue;
                }
                (*taken, grew) = (true, true);
                if begin.is_some_and(|b| user.less(f.smallest_user_key(), b)) {
                    begin = Some(f.smallest_user_key());
                }
                if end.is_some_and(|e| user.less(e, f.largest_user_key())) {
                    end = Some(f.largest_user_key());
                }
            }
            if !grew {
                break;
            }
        }
        files
            .iter()
            .zip(taken)
            .filter(|(_, taken)| *taken)
            .map(|(f, _)| Arc::clone(f))
            .collect()
    }

    /// The files of a level below 0 that meet `range`, not widened.
    ///
    /// # Panics
    /// If there is no such level, or it is level 0.
    #[must_use]
    pub fn overlapping_range(&self, level: usize, range: &KeyRange) -> &[Arc<FileMeta>] {
        assert!(level > 0, "level 0 is not a sorted run");
        let level = &self.levels[level];
        &level.files()[level.overlapping_range(&self.icmp, range)]
    }

    /// Grows a set of neighbouring files so that no file outside it holds a user key that is
    /// inside: only then may they be compacted. Level 0 grows by overlap. In the level's order.
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn clean_cut(&self, level: usize, inputs: &[Arc<FileMeta>]) -> Vec<Arc<FileMeta>> {
        let Some(range) = KeyRange::of(&self.icmp, inputs) else {
            return Vec::new();
        };
        if level == 0 {
            let (begin, end) = (range.smallest_user_key(), range.largest_user_key());
            return self.overlapping_inputs(0, Some(begin), Some(end));
        }
        let level = &self.levels[level];
        let positions = level.overlapping_range(&self.icmp, &range);
        level.files()[level.clean_cut(&self.icmp, positions)].to_vec()
    }

    /// True if a file of the level meets the user keys from `begin` to `end`, both included.
    ///
    /// # Panics
    /// If there is no such level.
    #[must_use]
    pub fn has_overlap(&self, level: usize, begin: Option<&[u8]>, end: Option<&[u8]>) -> bool {
        let user = &self.icmp.user;
        if level > 0 {
            return !self.levels[level]
                .overlapping(&self.icmp, begin, end)
                .is_empty();
        }
        self.files(0).iter().any(|f| {
            !begin.is_some_and(|b| ends_before(user, &f.largest, b))
                && !end.is_some_and(|e| user.less(e, f.smallest_user_key()))
        })
    }

    /// True if a file of a deeper level than `level` meets the user keys from `begin` to `end`.
    #[must_use]
    pub fn has_overlap_below(
        &self,
        level: usize,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> bool {
        (level + 1..self.num_levels()).any(|l| self.has_overlap(l, begin, end))
    }

    /// The range of internal keys of all tables; `None` if there are none.
    #[must_use]
    pub fn key_range(&self) -> Option<KeyRange> {
        let ranges = self
            .levels
            .iter()
            .filter_map(|l| KeyRange::of(&self.icmp, l.files()));
        ranges.reduce(|a, b| a.union(&self.icmp, b))
    }

    /// The levels drawn as text; [`text::parse`] reads it.
    #[must_use]
    pub fn to_text(&self) -> String {
        text::draw(self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::draw(self))
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({} levels)\n{self}", self.num_levels())
    }
}

#[cfg(test)]
mod tests;
