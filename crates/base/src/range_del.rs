//! Range tombstones cut into fragments that do not overlap.
//!
//! A range tombstone `[start, end)@n` hides every version older than `n` of the user keys from
//! `start` up to but not including `end`. Overlapping tombstones are cut at each other's ends;
//! a fragment lists the sequence numbers of all tombstones over it, newest first. So one binary
//! search answers which tombstone covers a key. Source: RocksDB
//! `db/range_tombstone_fragmenter.h`.
//!
//! Invariants: (1) fragments are sorted and disjoint, `start < end`; (2) the sequence numbers of
//! a fragment fall strictly.

use std::cmp::Ordering;

use crate::comparator::UserComparator;
use crate::seqno::SeqNo;

/// One `delete_range`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeTombstone {
    /// First user key that it deletes.
    pub start: Vec<u8>,
    /// First user key after it.
    pub end: Vec<u8>,
    /// When it was written.
    pub seqno: SeqNo,
}

/// A stretch of keys under the same tombstones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// First user key of the stretch.
    pub start: Vec<u8>,
    /// First user key after it.
    pub end: Vec<u8>,
    /// The tombstones over it, newest first.
    pub seqnos: Vec<SeqNo>,
}

/// Sorted, disjoint fragments of a set of range tombstones.
#[derive(Clone, Debug, Default)]
pub struct FragmentedRangeTombstones {
    fragments: Vec<Fragment>,
    count: usize,
}

impl FragmentedRangeTombstones {
    /// Cuts `tombstones` into fragments. Those with `start >= end` delete nothing.
    #[must_use]
    pub fn new(order: &UserComparator, mut tombstones: Vec<RangeTombstone>) -> Self {
        tombstones.retain(|t| order.less(&t.start, &t.end));
        let count = tombstones.len();
        let mut bounds: Vec<&[u8]> = tombstones
            .iter()
            .flat_map(|t| [t.start.as_slice(), t.end.as_slice()])
            .collect();
        bounds.sort_by(|a, b| order.compare(a, b));
        bounds.dedup_by(|a, b| order.compare(a, b) == Ordering::Equal);
        let mut by_start: Vec<&RangeTombstone> = tombstones.iter().collect();
        by_start.sort_by(|a, b| order.compare(&a.start, &b.start));
        let mut fragments = Vec::new();
        let mut open: Vec<&RangeTombstone> = Vec::new();
        let mut next = by_start.into_iter().peekable();
        for pair in bounds.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            open.retain(|t| order.less(start, &t.end));
            while let Some(t) =
                next.next_if(|t| order.compare(&t.start, start) != Ordering::Greater)
            {
                open.push(t);
            }
            if open.is_empty() {
                continue;
            }
            let mut seqnos: Vec<SeqNo> = open.iter().map(|t| t.seqno).collect();
            seqnos.sort_unstable_by(|a, b| b.cmp(a));
            seqnos.dedup();
            fragments.push(Fragment {
                start: start.to_vec(),
                end: end.to_vec(),
                seqnos,
            });
        }
        Self { fragments, count }
    }

    /// True if nothing is deleted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The fragments in key order.
    #[must_use]
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// How many tombstones were cut up.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The position of the first fragment that ends after `user_key`.
    #[must_use]
    pub fn first_ending_after(&self, order: &UserComparator, user_key: &[u8]) -> usize {
        self.fragments
            .partition_point(|f| order.compare(&f.end, user_key) != Ordering::Greater)
    }

    /// The fragment over `user_key`.
    #[must_use]
    pub fn covering(&self, order: &UserComparator, user_key: &[u8]) -> Option<&Fragment> {
        let f = self
            .fragments
            .get(self.first_ending_after(order, user_key))?;
        (order.compare(&f.start, user_key) != Ordering::Greater).then_some(f)
    }

    /// The newest tombstone over `user_key` that a reader at `read_seqno` sees; 0 if there is
    /// none. A version older than it is deleted.
    #[must_use]
    pub fn max_covering_seqno(
        &self,
        order: &UserComparator,
        user_key: &[u8],
        read_seqno: SeqNo,
    ) -> SeqNo {
        if self.fragments.is_empty() {
            return 0;
        }
        self.covering(order, user_key)
            .map_or(0, |f| f.visible_seqno(read_seqno))
    }

    /// The tombstones as they stand in an SST: a fragment for each of its sequence numbers.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8], SeqNo)> {
        self.fragments.iter().flat_map(|f| {
            f.seqnos
                .iter()
                .map(|&s| (f.start.as_slice(), f.end.as_slice(), s))
        })
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.fragments
            .iter()
            .map(|f| size_of::<Fragment>() + f.start.len() + f.end.len() + f.seqnos.len() * 8)
            .sum()
    }
}

impl Fragment {
    /// The newest tombstone here that a reader at `read_seqno` sees, or 0.
    #[must_use]
    pub fn visible_seqno(&self, read_seqno: SeqNo) -> SeqNo {
        let i = self.seqnos.partition_point(|&s| s > read_seqno);
        self.seqnos.get(i).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_answer_as_the_tombstones_do() {
        let order = UserComparator::BYTEWISE;
        let mut seed = 3u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        for _ in 0..500 {
            let n = next(8);
            let all: Vec<RangeTombstone> = (0..n)
                .map(|i| RangeTombstone {
                    start: vec![next(20) as u8],
                    end: vec![next(20) as u8],
                    seqno: i + 1,
                })
                .collect();
            let cut = FragmentedRangeTombstones::new(&order, all.clone());
            for w in cut.fragments().windows(2) {
                assert!(w[0].start < w[0].end && w[0].end <= w[1].start);
            }
            for k in 0..22u8 {
                for read in 0..=n {
                    let want = all
                        .iter()
                        .filter(|t| t.start <= vec![k] && vec![k] < t.end && t.seqno <= read)
                        .map(|t| t.seqno)
                        .max()
                        .unwrap_or(0);
                    assert_eq!(cut.max_covering_seqno(&order, &[k], read), want);
                }
            }
        }
    }
}
