//! The tables of one level, in order, and which of them a key or a range meets.
//!
//! Level 0 holds whole flushes that may overlap, newest first. Every other level is one sorted
//! run: the files do not overlap, but two neighbours may share a user key, the newer versions of
//! it in the first; then they only go through a compaction together (a "clean cut").
//!
//! Invariants of a sorted run: (1) `smallest <= largest` in each file; (2) `largest` of a file is
//! before `smallest` of the next in internal order. Hot path: `find_file` and `candidates` read
//! one flat array before they touch a file's metadata. Source: RocksDB `db/version_set.cc`
//! (`FindFile`, `GetOverlappingInputs`), `db/compaction/compaction.cc` (`sstableKeyCompare`).

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use orogen_base::key::{InternalKeyComparator, ValueKind, pack, trailer, user_key};
use orogen_base::search::leading;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{FileNo, UserComparator};

use super::file_meta::FileMeta;

/// The internal keys between which something lies, both included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first internal key.
    pub smallest: Vec<u8>,
    /// The last internal key.
    pub largest: Vec<u8>,
}

impl KeyRange {
    /// The range that `files` cover together; `None` if there are none.
    #[must_use]
    pub fn of(icmp: &InternalKeyComparator, files: &[Arc<FileMeta>]) -> Option<Self> {
        let (first, rest) = files.split_first()?;
        let (mut smallest, mut largest) = (&first.smallest, &first.largest);
        for f in rest {
            if icmp.compare(&f.smallest, smallest) == Ordering::Less {
                smallest = &f.smallest;
            }
            if icmp.compare(&f.largest, largest) == Ordering::Greater {
                largest = &f.largest;
            }
        }
        Some(Self {
            smallest: smallest.clone(),
            largest: largest.clone(),
        })
    }

    /// The range that covers this one and `other`.
    #[must_use]
    pub fn union(self, icmp: &InternalKeyComparator, other: Self) -> Self {
        let smallest = match icmp.compare(&self.smallest, &other.smallest) {
            Ordering::Greater => other.smallest,
            _ => self.smallest,
        };
        let largest = match icmp.compare(&self.largest, &other.largest) {
            Ordering::Less => other.largest,
            _ => self.largest,
        };
        Self { smallest, largest }
    }

    /// The user key of the first internal key.
    #[must_use]
    pub fn smallest_user_key(&self) -> &[u8] {
        user_key(&self.smallest)
    }

    /// The user key of the last internal key.
    #[must_use]
    pub fn largest_user_key(&self) -> &[u8] {
        user_key(&self.largest)
    }
}

/// True for a `largest` that a range tombstone's end gave: its user key is not in the file.
#[must_use]
pub fn is_exclusive_end(internal_key: &[u8]) -> bool {
    trailer(internal_key) == pack(SEQNO_MAX, ValueKind::RangeDeletion)
}

/// Orders two ends of tables by user key; an exclusive end is just before its user key.
#[must_use]
pub fn compare_ends(user: &UserComparator, a: &[u8], b: &[u8]) -> Ordering {
    user.compare(user_key(a), user_key(b))
        .then_with(|| is_exclusive_end(b).cmp(&is_exclusive_end(a)))
}

/// The tables of one level. Immutable.
#[derive(Clone, Debug, Default)]
pub struct Level {
    files: Vec<Arc<FileMeta>>,
    /// The files' numbers in the same order, to look one up without touching the files.
    numbers: Vec<FileNo>,
    size_bytes: u64,
    index: Option<BoundaryIndex>,
}

impl Level {
    /// Level `number` with files that are in its order already.
    pub(crate) fn new(
        number: usize,
        icmp: &InternalKeyComparator,
        files: Vec<Arc<FileMeta>>,
    ) -> Self {
        Self {
            numbers: files.iter().map(|f| f.number).collect(),
            size_bytes: files.iter().fold(0, |sum, f| sum.saturating_add(f.size)),
            index: if number == 0 {
                None
            } else {
                BoundaryIndex::new(icmp, &files)
            },
            files,
        }
    }

    /// The files: level 0 newest first, others by key.
    #[inline]
    #[must_use]
    pub fn files(&self) -> &[Arc<FileMeta>] {
        &self.files
    }

    /// How many files.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True if there is no file.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes of all files.
    #[inline]
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The position of the file with this number.
    #[must_use]
    pub fn position(&self, number: FileNo) -> Option<usize> {
        self.numbers.iter().position(|&n| n == number)
    }

    /// In a sorted run: the first file whose largest user key is not before `key`; `len()` if
    /// there is none.
    #[inline]
    #[must_use]
    pub fn find_file(&self, icmp: &InternalKeyComparator, key: &[u8]) -> usize {
        let range = self.narrow(key);
        let start = range.start;
        start + self.files[range].partition_point(|f| icmp.user.less(f.largest_user_key(), key))
    }

    /// In a sorted run: the first file whose largest internal key is not before `target`;
    /// `len()` if there is none. Where a seek starts.
    #[inline]
    #[must_use]
    pub fn find_file_for_seek(&self, icmp: &InternalKeyComparator, target: &[u8]) -> usize {
        let range = self.narrow(user_key(target));
        let start = range.start;
        start
            + self.files[range]
                .partition_point(|f| icmp.compare(&f.largest, target) == Ordering::Less)
    }

    #[inline]
    fn narrow(&self, key: &[u8]) -> Range<usize> {
        match &self.index {
            Some(index) => index.narrow(key),
            None => 0..self.files.len(),
        }
    }

    /// In a sorted run: the files that may hold versions of the user key, newest first. One, but
    /// for a key that neighbours share.
    #[inline]
    #[must_use]
    pub fn candidates(&self, icmp: &InternalKeyComparator, key: &[u8]) -> &[Arc<FileMeta>] {
        let start = self.find_file(icmp, key);
        let not_after =
            |f: &&Arc<FileMeta>| icmp.user.compare(f.smallest_user_key(), key) != Ordering::Greater;
        let count = self.files[start..].iter().take_while(not_after).count();
        &self.files[start..start + count]
    }

    /// In a sorted run: the files that meet the user keys from `begin` to `end`, both included;
    /// `None` is no bound.
    #[must_use]
    pub fn overlapping(
        &self,
        icmp: &InternalKeyComparator,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> Range<usize> {
        let user = &icmp.user;
        let start = begin.map_or(0, |begin| {
            self.files
                .partition_point(|f| ends_before(user, &f.largest, begin))
        });
        let count = end.map_or(self.files.len() - start, |end| {
            self.files[start..]
                .partition_point(|f| user.compare(f.smallest_user_key(), end) != Ordering::Greater)
        });
        start..start + count
    }

    /// In a sorted run: the files that meet a range of internal keys, compared by user key.
    ///
    /// Unlike [`Level::overlapping`] it knows a range that ends just before its last user key.
    #[must_use]
    pub fn overlapping_range(
        &self,
        icmp: &InternalKeyComparator,
        range: &KeyRange,
    ) -> Range<usize> {
        let user = &icmp.user;
        let start = self
            .files
            .partition_point(|f| compare_ends(user, &f.largest, &range.smallest) == Ordering::Less);
        let count = self.files[start..].partition_point(|f| {
            compare_ends(user, &f.smallest, &range.largest) != Ordering::Greater
        });
        start..start + count
    }

    /// In a sorted run: grows a range of positions until no file outside shares a user key with
    /// one inside.
    #[must_use]
    pub fn clean_cut(&self, icmp: &InternalKeyComparator, range: Range<usize>) -> Range<usize> {
        let user = &icmp.user;
        let (mut start, mut end) = (range.start, range.end);
        if start >= end {
            return start..start;
        }
        let shares = |left: usize| {
            let (a, b) = (&self.files[left].largest, &self.files[left + 1].smallest);
            compare_ends(user, a, b) == Ordering::Equal
        };
        while start > 0 && shares(start - 1) {
            start -= 1;
        }
        while end < self.files.len() && shares(end - 1) {
            end += 1;
        }
        start..end
    }
}

/// True if a file with this `largest` ends before the user key.
pub(crate) fn ends_before(user: &UserComparator, largest: &[u8], key: &[u8]) -> bool {
    match user.compare(user_key(largest), key) {
        Ordering::Less => true,
        Ordering::Equal => is_exclusive_end(largest),
        Ordering::Greater => false,
    }
}

/// The first bytes of each file's largest user key, behind the prefix that all of them share.
///
/// Eight bytes tell most keys apart, so a lookup reads one flat array and one file. It is made
/// for sorted runs in the bytewise order; elsewhere a search looks at the files.
#[derive(Clone, Debug)]
struct BoundaryIndex {
    shared_prefix: Vec<u8>,
    heads: Vec<u64>,
}

impl BoundaryIndex {
    fn new(icmp: &InternalKeyComparator, files: &[Arc<FileMeta>]) -> Option<Self> {
        let (first, last) = (files.first()?, files.last()?);
        if !icmp.user.is_bytewise() {
            return None;
        }
        let (a, b) = (first.largest_user_key(), last.largest_user_key());
        let shared = a.iter().zip(b).take_while(|(x, y)| x == y).count();
        let heads: Vec<u64> = files
            .iter()
            .map(|f| head(&f.largest_user_key()[shared..]))
            .collect();
        debug_assert!(heads.is_sorted(), "a sorted run is in key order");
        Some(Self {
            shared_prefix: a[..shared].to_vec(),
            heads,
        })
    }

    /// Where the first file with a largest user key not before `key` is: each file before the
    /// range is before it, each after the range is not.
    #[inline]
    fn narrow(&self, key: &[u8]) -> Range<usize> {
        let (prefix, rest) = key.split_at(key.len().min(self.shared_prefix.len()));
        match prefix.cmp(&self.shared_prefix) {
            Ordering::Less => 0..0,
            Ordering::Greater => self.heads.len()..self.heads.len(),
            Ordering::Equal => {
                let head = head(rest);
                let start = self.heads.partition_point(|&h| h < head);
                start..start + leading(&self.heads[start..], head)
            }
        }
    }
}

/// Eight bytes as a number that orders as they do; what is missing is zero.
#[inline]
fn head(bytes: &[u8]) -> u64 {
    let mut head = [0; 8];
    let n = bytes.len().min(8);
    head[..n].copy_from_slice(&bytes[..n]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests;
