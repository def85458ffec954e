//! Live snapshots: the sequence numbers whose view of the data must not be lost.
//!
//! Flush and compaction ask for the list before they drop a version that a newer one hides. A
//! snapshot is taken under the list's lock together with the sequence number it stands for, so
//! a job that asks either sees it or asked before every write that the snapshot does not see.

use std::any::Any;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, OnceLock};

use orogen_base::SeqNo;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::sync::Mutex;

/// The live snapshots of a database.
#[derive(Default)]
pub struct SnapshotList {
    /// A leaf lock.
    live: Mutex<Live>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct Live {
    /// For each sequence number, when each of its snapshots was taken.
    taken: BTreeMap<SeqNo, Vec<u64>>,
    /// How many of each sequence number find out what was written since them.
    checking: BTreeMap<SeqNo, usize>,
    /// Somebody waits until the oldest snapshot is beyond this one.
    wake_behind: Option<SeqNo>,
}

impl SnapshotList {
    /// No snapshots.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes a snapshot at the sequence number that `seqno` tells.
    ///
    /// `seqno` is called under the list's lock: it must read the newest published sequence
    /// number there, and not before. `now_secs` is the clock's time.
    #[must_use]
    pub fn acquire(self: &Arc<Self>, seqno: impl FnOnce() -> SeqNo, now_secs: u64) -> Snapshot {
        self.acquire_pinned(seqno, now_secs, None)
    }

    /// The same for who finds out which keys were written since: whatever is, keeps a trace while it is held.
    #[must_use]
    pub fn acquire_to_check(
        self: &Arc<Self>,
        seqno: impl FnOnce() -> SeqNo,
        now_secs: u64,
    ) -> Snapshot {
        self.hold(seqno, now_secs, true, None)
    }

    /// The same, with what keeps its view readable where the list does not.
    #[must_use]
    pub fn acquire_pinned(
        self: &Arc<Self>,
        seqno: impl FnOnce() -> SeqNo,
        now_secs: u64,
        pinned: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Snapshot {
        self.hold(seqno, now_secs, false, pinned)
    }

    fn hold(
        self: &Arc<Self>,
        seqno: impl FnOnce() -> SeqNo,
        taken_secs: u64,
        checks: bool,
        pinned: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Snapshot {
        let mut live = self.live.lock();
        let seqno = seqno();
        live.taken.entry(seqno).or_default().push(taken_secs);
        if checks {
            *live.checking.entry(seqno).or_default() += 1;
        }
        drop(live);
        Snapshot(Arc::new(Held {
            list: self.clone(),
            seqno,
            taken_secs,
            checks,
            pinned,
        }))
    }

    /// The oldest sequence number that a snapshot stands for.
    #[must_use]
    pub fn oldest(&self) -> Option<SeqNo> {
        self.live.lock().taken.keys().next().copied()
    }

    /// Calls `wake` when the wish of [`Self::wake_behind`] is met. Only the first `wake` counts.
    pub fn on_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.wake.get_or_init(|| Box::new(wake));
    }

    /// Asks to be woken once, when no snapshot up to `seqno` is left; of several wishes the earliest counts, as who is woken looks
    /// anew, and asks again. Wish first, then look at [`Self::oldest`].
    pub fn wake_behind(&self, seqno: SeqNo) {
        let wish = &mut self.live.lock().wake_behind;
        *wish = Some(wish.map_or(seqno, |before| before.min(seqno)));
    }

    /// The sequence numbers of all snapshots, rising, each once.
    #[must_use]
    pub fn sorted_seqnos(&self) -> Vec<SeqNo> {
        self.live.lock().taken.keys().copied().collect()
    }

    /// The same, and the lowest of those of [`Self::acquire_to_check`]; [`SEQNO_MAX`] if there is none.
    #[must_use]
    pub fn for_job(&self) -> (Vec<SeqNo>, SeqNo) {
        let live = self.live.lock();
        let checking = live.checking.keys().next().copied();
        let all = live.taken.keys().copied().collect();
        (all, checking.unwrap_or(SEQNO_MAX))
    }

    /// For each sequence number, rising, when each of its snapshots was taken.
    #[must_use]
    pub fn taken(&self) -> Vec<(SeqNo, Vec<u64>)> {
        let live = self.live.lock();
        live.taken.iter().map(|(&n, t)| (n, t.clone())).collect()
    }

    /// How many snapshots are live.
    #[must_use]
    pub fn count(&self) -> usize {
        self.live.lock().taken.values().map(Vec::len).sum()
    }

    /// When the oldest live snapshot was taken, by the clock of who took it.
    #[must_use]
    pub fn oldest_taken_secs(&self) -> Option<u64> {
        self.live.lock().taken.values().flatten().min().copied()
    }

    fn release(&self, held: &Held) {
        let mut live = self.live.lock();
        if held.checks
            && let Entry::Occupied(mut count) = live.checking.entry(held.seqno)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        let taken = live
            .taken
            .get_mut(&held.seqno)
            .expect("a held snapshot is in its list");
        let i = taken.iter().position(|&t| t == held.taken_secs);
        taken.swap_remove(i.expect("a held snapshot is in its list"));
        if !taken.is_empty() {
            return;
        }
        live.taken.remove(&held.seqno);
        let oldest = live.taken.keys().next().copied();
        let wakes = live
            .wake_behind
            .take_if(|seqno| oldest.is_none_or(|oldest| oldest > *seqno))
            .is_some();
        drop(live);
        if let (true, Some(wake)) = (wakes, self.wake.get()) {
            wake();
        }
    }
}

impl fmt::Debug for SnapshotList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SnapshotList")
            .field(&self.sorted_seqnos())
            .finish()
    }
}

struct Held {
    list: Arc<SnapshotList>,
    seqno: SeqNo,
    taken_secs: u64,
    /// It finds out what was written since.
    checks: bool,
    pinned: Option<Arc<dyn Any + Send + Sync>>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.list.release(self);
    }
}

/// A fixed view of the data. Cheap to clone; given back when the last clone is dropped.
#[derive(Clone)]
pub struct Snapshot(Arc<Held>);

impl Snapshot {
    /// The newest write that it sees.
    #[must_use]
    pub fn seqno(&self) -> SeqNo {
        self.0.seqno
    }

    /// When it was taken, by the clock of who took it.
    #[must_use]
    pub fn taken_secs(&self) -> u64 {
        self.0.taken_secs
    }

    /// What it was given to keep.
    #[must_use]
    pub fn pinned(&self) -> Option<&(dyn Any + Send + Sync)> {
        self.0.pinned.as_deref()
    }

    /// True if it was taken of the database with this list.
    #[must_use]
    pub fn is_of(&self, list: &Arc<SnapshotList>) -> bool {
        Arc::ptr_eq(&self.0.list, list)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshot({})", self.0.seqno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seqno_is_listed_until_its_last_snapshot_is_gone() {
        let list = SnapshotList::new();
        assert_eq!(
            (list.oldest(), list.count(), list.oldest_taken_secs()),
            (None, 0, None)
        );
        let a = list.acquire(|| 5, 10);
        let b = list.acquire(|| 5, 20);
        let c = list.acquire(|| 7, 30);
        let b2 = b.clone();
        assert!(a.is_of(&list) && !a.is_of(&SnapshotList::new()));
        assert_eq!((list.sorted_seqnos(), list.count()), (vec![5, 7], 3));
        assert_eq!(list.oldest_taken_secs(), Some(10));
        drop(a);
        assert_eq!(list.oldest_taken_secs(), Some(20));
        drop(b);
        assert_eq!(
            (list.oldest(), b2.seqno(), b2.taken_secs()),
            (Some(5), 5, 20)
        );
        drop(b2);
        assert_eq!(
            (list.oldest(), list.count(), list.oldest_taken_secs()),
            (Some(7), 1, Some(30))
        );
        drop(c);
        assert_eq!((list.sorted_seqnos(), list.count()), (vec![], 0));
    }

    #[test]
    fn a_job_is_told_since_when_writes_are_checked() {
        let list = SnapshotList::new();
        let plain = list.acquire(|| 3, 0);
        assert_eq!(list.for_job(), (vec![3], SEQNO_MAX));
        let later = list.acquire_to_check(|| 9, 0);
        let [a, b] = [5, 5].map(|n| list.acquire_to_check(|| n, 0));
        assert_eq!(list.for_job(), (vec![3, 5, 9], 5));
        drop(a);
        assert_eq!(list.for_job(), (vec![3, 5, 9], 5));
        drop((b, plain));
        assert_eq!(list.for_job(), (vec![9], 9));
        drop(later);
        assert_eq!(list.for_job(), (vec![], SEQNO_MAX));
    }

    #[test]
    fn who_waits_for_a_snapshot_is_woken_once_when_the_last_of_them_goes() {
        let list = SnapshotList::new();
        let woken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = woken.clone();
        list.on_wake(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        let woken = || woken.load(std::sync::atomic::Ordering::Relaxed);
        let taken: Vec<Snapshot> = [3, 5, 5, 9].map(|n| list.acquire(|| n, 0)).into();
        let [a, b, b2, c] = <[Snapshot; 4]>::try_from(taken).unwrap();
        list.wake_behind(5);
        drop(b);
        drop(a);
        assert_eq!(woken(), 0, "one at 5 is left");
        drop(b2);
        assert_eq!(woken(), 1);
        drop(c);
        assert_eq!(woken(), 1);
        let held = list.acquire(|| 25, 0);
        list.wake_behind(20);
        // Of somebody whose look was earlier.
        list.wake_behind(30);
        drop(list.acquire(|| 10, 0));
        assert_eq!(woken(), 2);
        drop(held);
    }
}
