//! The range tombstones of a memtable: kept as written, cut into fragments when first asked for.
//!
//! Few memtables have any, so readers first look at one atomic count. The fragments are built
//! by the first reader after a change and shared by the later ones.

use orogen_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone, overlaps};
use orogen_base::sync::Mutex;
use orogen_base::{Result, UserComparator, memory};

/// What the lock guards; it is a leaf.
#[derive(Default)]
struct Written {
    tombstones: Vec<RangeTombstone>,
    /// Those of the first of `tombstones`, and of how many.
    fragments: Option<(usize, Arc<FragmentedRangeTombstones>)>,
}

impl Written {
    /// The fragments, if they are of at least the first `count`.
    fn fragments_of(&self, count: usize) -> Option<Arc<FragmentedRangeTombstones>> {
        let (of, fragments) = self.fragments.as_ref()?;
        (*of >= count).then(|| fragments.clone())
    }
}

#[derive(Default)]
pub(crate) struct RangeTombstones {
    written: Mutex<Written>,
    /// Held by who cuts them; before `written`.
    cutting: Mutex<()>,
    count: AtomicU64,
    bytes: AtomicUsize,
    /// What their fragments will take where they overlap, as it was last looked at.
    overlap_bytes: AtomicUsize,
    /// What those take that are kept for readers.
    fragment_bytes: AtomicUsize,
}

/// From so many tombstones on it is looked how much they overlap, each time that there are twice as many.
const LOOK_FROM: usize = 1024;

impl RangeTombstones {
    pub(crate) fn add(&self, order: &UserComparator, tombstone: RangeTombstone) -> Result<()> {
        let bytes = size_of::<RangeTombstone>() + tombstone.start.len() + tombstone.end.len();
        let mut written = self.written.lock();
        memory::push(&mut written.tombstones, tombstone, "range tombstones")?;
        let count = written.tombstones.len();
        if count >= LOOK_FROM && count.is_power_of_two() {
            // Many that overlap make the memtable full before their fragments take a multiple of it.
            let listed = overlaps(order, &written.tombstones).saturating_mul(8);
            let bytes = usize::try_from(listed).unwrap_or(usize::MAX);
            self.overlap_bytes.store(bytes, Ordering::Relaxed);
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn memory_usage(&self) -> usize {
        let overlap = self.overlap_bytes.load(Ordering::Relaxed);
        // Kept ones have their overlaps in them.
        let fragments = overlap.max(self.fragment_bytes.load(Ordering::Relaxed));
        self.bytes.load(Ordering::Relaxed).saturating_add(fragments)
    }

    /// As written, for who cuts them otherwise.
    pub(crate) fn all(&self) -> Vec<RangeTombstone> {
        self.written.lock().tombstones.clone()
    }

    pub(crate) fn fragments(&self, order: &UserComparator) -> Arc<FragmentedRangeTombstones> {
        // What a reader may see was written before it came.
        let seen = {
            let written = self.written.lock();
            let seen = written.tombstones.len();
            if let Some(fragments) = written.fragments_of(seen) {
                return fragments;
            }
            seen
        };
        // Other readers want what this one makes, and writers are not to wait for it.
        let _cutting = self.cutting.lock();
        let tombstones = {
            let written = self.written.lock();
            if let Some(fragments) = written.fragments_of(seen) {
                return fragments;
            }
            written.tombstones.clone()
        };
        let count = tombstones.len();
        let fragments = Arc::new(FragmentedRangeTombstones::new(order, tombstones));
        let bytes = fragments.memory_usage();
        self.written.lock().fragments = Some((count, fragments.clone()));
        self.fragment_bytes.store(bytes, Ordering::Relaxed);
        fragments
    }
}

#[cfg(all(test, not(orogen_shuttle)))]
mod tests {
    use std::cmp;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use orogen_base::comparator::Comparator;

    use super::*;

    /// Holds whoever compares while it is armed.
    struct Held {
        armed: AtomicBool,
        begins: Mutex<Sender<()>>,
        ends: Mutex<Receiver<()>>,
    }

    impl Comparator for Held {
        fn name(&self) -> &'static str {
            "held"
        }

        fn compare(&self, a: &[u8], b: &[u8]) -> cmp::Ordering {
            if self.armed.swap(false, Ordering::SeqCst) {
                self.begins.lock().send(()).expect("somebody waits");
                self.ends.lock().recv().expect("it is let go");
            }
            a.cmp(b)
        }
    }

    #[test]
    fn a_writer_does_not_wait_for_who_cuts() {
        let ((begins, begun), (end, ends)) = (channel(), channel());
        let held = Arc::new(Held {
            armed: AtomicBool::new(false),
            begins: Mutex::new(begins),
            ends: Mutex::new(ends),
        });
        let order = UserComparator::custom(held.clone());
        let all = RangeTombstones::default();
        let add = |n: u8| {
            let tombstone = RangeTombstone {
                start: vec![n],
                end: vec![n + 1],
                seqno: u64::from(n),
            };
            all.add(&order, tombstone).unwrap();
        };
        (0..10).for_each(add);
        held.armed.store(true, Ordering::SeqCst);
        std::thread::scope(|threads| {
            let cut = threads.spawn(|| all.fragments(&order));
            begun.recv().unwrap();
            add(10);
            end.send(()).unwrap();
            assert_eq!(cut.join().unwrap().count(), 10);
        });
        let whole = all.fragments(&order);
        assert_eq!(whole.count(), 11);
        assert!(Arc::ptr_eq(&whole, &all.fragments(&order)));
    }
}
