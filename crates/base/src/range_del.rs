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
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
    ///
    /// Each fragment lists all that lie over it: n that all overlap take 8 bytes for each of n * n / 2 places, see
    /// [`overlaps`].
    #[must_use]
    pub fn new(order: &UserComparator, tombstones: Vec<RangeTombstone>) -> Self {
        let all = |open: &BTreeMap<SeqNo, usize>| {
            // Most are of one: a list that is collected has room for four.
            let mut seqnos = Vec::with_capacity(open.len());
            seqnos.extend(open.keys().rev());
            seqnos
        };
        Self::cut(order, tombstones, all)
    }

    /// The same for a job, which needs no more than the newest tombstone that each snapshot sees, and the newest of all:
    /// a fragment lists at most one more than there are snapshots, which rise.
    #[must_use]
    pub fn for_job(
        order: &UserComparator,
        tombstones: Vec<RangeTombstone>,
        snapshots: &[SeqNo],
    ) -> Self {
        let newest = |open: &BTreeMap<SeqNo, usize>| {
            let mut seqnos = Vec::new();
            let mut read = SeqNo::MAX;
            while let Some((&seqno, _)) = open.range(..=read).next_back() {
                seqnos.push(seqno);
                // All snapshots that see this one see none that is newer.
                let older = snapshots.partition_point(|&snapshot| snapshot < seqno);
                match older.checked_sub(1) {
                    Some(newest) => read = snapshots[newest],
                    None => break,
                }
            }
            seqnos
        };
        Self::cut(order, tombstones, newest)
    }

    /// Goes through the bounds in key order; `open` is what lies over the next stretch, with how often each is there.
    fn cut(
        order: &UserComparator,
        mut tombstones: Vec<RangeTombstone>,
        list: impl Fn(&BTreeMap<SeqNo, usize>) -> Vec<SeqNo>,
    ) -> Self {
        tombstones.retain(|t| order.less(&t.start, &t.end));
        let count = tombstones.len();
        let mut fragments = Vec::new();
        let mut open = BTreeMap::new();
        each_stretch(order, &tombstones, |start, end, opened, closed| {
            for seqno in closed {
                if let Entry::Occupied(mut times) = open.entry(seqno) {
                    *times.get_mut() -= 1;
                    if *times.get() == 0 {
                        times.remove();
                    }
                }
            }
            for seqno in opened {
                *open.entry(seqno).or_insert(0) += 1;
            }
            if let Some(end) = end.filter(|_| !open.is_empty()) {
                fragments.push(Fragment {
                    start: start.to_vec(),
                    end: end.to_vec(),
                    seqnos: list(&open),
                });
            }
        });
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
        let beside = |f: &Fragment| f.start.len() + f.end.len() + size_of_val(&*f.seqnos);
        let fragments = self.fragments.capacity() * size_of::<Fragment>();
        fragments + self.fragments.iter().map(beside).sum::<usize>()
    }
}

/// How often the fragments of some tombstones list one, which is what they take: found without cutting them.
///
/// n * log(n) comparisons, and 32 bytes for each tombstone.
#[must_use]
pub fn overlaps(order: &UserComparator, tombstones: &[RangeTombstone]) -> u64 {
    let (mut listed, mut open) = (0u64, 0u64);
    each_stretch(order, tombstones, |_, end, opened, closed| {
        open += opened.count() as u64;
        open -= closed.count() as u64;
        if end.is_some() {
            listed = listed.saturating_add(open);
        }
    });
    listed
}

/// Tells of each stretch between two bounds of `tombstones`, in key order: its start and end, and the numbers of those
/// that begin and that end with its start. The last stretch has no end.
fn each_stretch<'a>(
    order: &UserComparator,
    tombstones: &'a [RangeTombstone],
    mut tell: impl FnMut(
        &'a [u8],
        Option<&'a [u8]>,
        &mut dyn Iterator<Item = SeqNo>,
        &mut dyn Iterator<Item = SeqNo>,
    ),
) {
    let real = || tombstones.iter().filter(|t| order.less(&t.start, &t.end));
    let mut starts: Vec<&RangeTombstone> = real().collect();
    starts.sort_by(|a, b| order.compare(&a.start, &b.start));
    let mut ends: Vec<&RangeTombstone> = real().collect();
    ends.sort_by(|a, b| order.compare(&a.end, &b.end));
    let mut starts = starts.into_iter().peekable();
    let mut ends = ends.into_iter().peekable();
    let next_bound = |a: Option<&&'a RangeTombstone>, b: Option<&&'a RangeTombstone>| {
        let bounds = [a.map(|t| &t.start[..]), b.map(|t| &t.end[..])];
        bounds
            .into_iter()
            .flatten()
            .min_by(|a, b| order.compare(a, b))
    };
    let (mut opened, mut closed) = (Vec::new(), Vec::new());
    let mut start = next_bound(starts.peek(), ends.peek());
    while let Some(from) = start {
        let is_here = |bound: &[u8]| order.compare(bound, from) != Ordering::Greater;
        while let Some(t) = starts.next_if(|t| is_here(&t.start)) {
            opened.push(t.seqno);
        }
        while let Some(t) = ends.next_if(|t| is_here(&t.end)) {
            closed.push(t.seqno);
        }
        let end = next_bound(starts.peek(), ends.peek());
        tell(from, end, &mut opened.drain(..), &mut closed.drain(..));
        start = end;
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
        for round in 0..1000 {
            let n = next(8);
            // Those of a file that was ingested have one number.
            let repeats = round % 2 == 1;
            let all: Vec<RangeTombstone> = (0..n)
                .map(|i| RangeTombstone {
                    start: vec![next(20) as u8],
                    end: vec![next(20) as u8],
                    seqno: if repeats { 1 + next(3.min(n)) } else { i + 1 },
                })
                .collect();
            let cut = FragmentedRangeTombstones::new(&order, all.clone());
            let listed: usize = cut.fragments().iter().map(|f| f.seqnos.len()).sum();
            let overlaps = overlaps(&order, &all);
            assert!(overlaps == listed as u64 || repeats && overlaps > listed as u64);
            let mut snapshots: Vec<SeqNo> = (0..next(3)).map(|_| next(n + 1)).collect();
            snapshots.sort_unstable();
            snapshots.dedup();
            let job = FragmentedRangeTombstones::for_job(&order, all.clone(), &snapshots);
            for f in job.fragments() {
                assert!(f.seqnos.len() <= snapshots.len() + 1);
                assert!(f.seqnos.is_sorted_by(|a, b| a > b));
            }
            for k in 0..22u8 {
                for read in snapshots.iter().copied().chain([n]) {
                    let want = cut.max_covering_seqno(&order, &[k], read);
                    assert_eq!(job.max_covering_seqno(&order, &[k], read), want);
                }
            }
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
