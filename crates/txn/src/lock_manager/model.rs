//! The lock manager under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! In each model: (1) who holds exclusively is alone, and nobody holds what was not granted; (2) in
//! the end nothing is locked, waited for or counted; (3) nothing waits for ever.

mod small;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use orogen_base::sync::{Mistake, Mutex, explore, must_find, thread};
use orogen_base::{ErrorKind, UserComparator};
use orogen_env::Clock;

use super::LockMode::{Exclusive, Shared};
use super::{
    FamilyLocks, KeyRange, LockManager, LockManagerOptions, LockMode, Locked, TxnLockOptions,
    TxnLocks,
};

/// A clock that a look moves on by a microsecond.
struct TickingClock(AtomicU64);

impl Clock for TickingClock {
    fn now_micros(&self) -> u64 {
        self.0.fetch_add(1, SeqCst)
    }
    fn unix_micros(&self) -> u64 {
        self.now_micros()
    }
    fn sleep(&self, _: Duration) {}
}

/// A manager with one family, and what its threads hold: -1 alone, else how many.
#[derive(Clone)]
struct World {
    manager: LockManager,
    family: Arc<FamilyLocks>,
    held: Arc<AtomicI64>,
}

impl World {
    fn new() -> Self {
        Self::with(LockManagerOptions {
            num_stripes: 2,
            max_num_locks: Some(100),
            memory_limit_bytes: Some(100_000),
            ..LockManagerOptions::default()
        })
    }

    fn with(options: LockManagerOptions) -> Self {
        let clock = Arc::new(TickingClock(AtomicU64::new(1)));
        let manager = LockManager::with(options, clock, Arc::default());
        let family = manager.add_family(0, UserComparator::BYTEWISE);
        Self {
            manager,
            family,
            held: Arc::default(),
        }
    }

    fn begin(&self) -> TxnLocks {
        self.manager.begin(TxnLockOptions::default())
    }

    fn lock(&self, txn: &mut TxnLocks, key: &[u8], mode: LockMode) -> orogen_base::Result<Locked> {
        self.manager.try_lock(txn, &self.family, key, mode, None)
    }

    /// Holds the one thing that this model is about for some steps.
    fn use_it(&self, mode: LockMode) {
        match mode {
            Exclusive => {
                assert_eq!(self.held.swap(-1, SeqCst), 0, "not alone");
                thread::yield_now();
                assert_eq!(self.held.swap(0, SeqCst), -1, "not alone");
            }
            Shared => {
                assert!(
                    self.held.fetch_add(1, SeqCst) >= 0,
                    "beside an exclusive one"
                );
                thread::yield_now();
                assert!(
                    self.held.fetch_sub(1, SeqCst) > 0,
                    "beside an exclusive one"
                );
            }
        }
    }

    fn waiting(&self) -> Vec<u64> {
        let status = self.manager.lock_status();
        let waiting = status.iter().flat_map(|status| &status.waiting);
        waiting.map(|waiting| waiting.txn).collect()
    }

    fn assert_empty(&self) {
        assert_eq!(self.manager.lock_status(), []);
        assert_eq!(self.family.key_count(), 0);
        assert_eq!(self.family.used_bytes(), 0);
        assert!(!self.family.has_ranges());
        assert_eq!(self.manager.0.used_bytes.load(SeqCst), 0);
        assert_eq!(self.family.limited_count.load(SeqCst), 0);
        assert!(self.manager.0.waits.lock().by_txn.is_empty());
    }
}

fn start<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    let builder = thread::Builder::new().name("model".to_owned());
    builder.spawn(body).unwrap()
}

/// Asks for a key; gives up all if that would be a deadlock, and tells whether it was.
fn told(world: &World, mut txn: TxnLocks, key: &[u8], mode: LockMode) -> bool {
    match world.lock(&mut txn, key, mode) {
        Ok(_) => false,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Deadlock);
            true
        }
    }
}

/// Each holds what the other wants: one of them is told, and the other goes on.
fn deadlock() {
    let world = World::new();
    let (mut a, mut b) = (world.begin(), world.begin());
    world.lock(&mut a, b"a", Exclusive).unwrap();
    world.lock(&mut b, b"b", Exclusive).unwrap();
    let theirs = world.clone();
    let other = start(move || told(&theirs, b, b"a", Shared));
    let first = told(&world, a, b"b", Exclusive);
    let second = other.join().unwrap();
    assert!(first != second, "told: {first} {second}");
    assert_eq!(world.manager.deadlocks().len(), 1);
    world.assert_empty();
}

/// Two hold a key shared, and both want it alone, while a third queues behind them.
fn upgrades() {
    let world = World::new();
    let (mut a, mut b) = (world.begin(), world.begin());
    world.lock(&mut a, b"k", Shared).unwrap();
    world.lock(&mut b, b"k", Shared).unwrap();
    let theirs = world.clone();
    let other = start(move || told(&theirs, b, b"k", Exclusive));
    let theirs = world.clone();
    let third = start(move || {
        let mut txn = theirs.begin();
        theirs.lock(&mut txn, b"k", Shared).unwrap();
    });
    let first = told(&world, a, b"k", Exclusive);
    let second = other.join().unwrap();
    third.join().unwrap();
    assert!(first != second, "told: {first} {second}");
    world.assert_empty();
}

/// A cycle that goes through one that only waits before another, in some of the orders.
fn behind() {
    let world = World::new();
    let (mut a, b, mut c) = (world.begin(), world.begin(), world.begin());
    world.lock(&mut a, b"a", Shared).unwrap();
    world.lock(&mut c, b"c", Exclusive).unwrap();
    let theirs = world.clone();
    let waits = start(move || told(&theirs, b, b"a", Exclusive));
    let theirs = world.clone();
    let queues = start(move || told(&theirs, c, b"a", Shared));
    let first = told(&world, a, b"c", Exclusive);
    let told = [waits.join().unwrap(), queues.join().unwrap(), first];
    assert!(told.iter().filter(|told| **told).count() <= 1, "{told:?}");
    world.assert_empty();
}

/// Three use one key, shared and alone.
fn hand_over() {
    let world = World::new();
    let threads = [
        [Exclusive, Shared],
        [Shared, Exclusive],
        [Exclusive, Exclusive],
    ];
    let threads = threads.map(|modes| {
        let world = world.clone();
        start(move || {
            let mut txn = world.begin();
            for mode in modes {
                world.lock(&mut txn, b"k", mode).unwrap();
                world.use_it(mode);
                world.manager.unlock_all(&mut txn);
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
    world.assert_empty();
}

/// Those who wait get the lock in the order in which they came.
fn order() {
    let world = World::new();
    let mut first = world.begin();
    world.lock(&mut first, b"k", Exclusive).unwrap();
    let got = Arc::new(Mutex::new(Vec::new()));
    let threads = [Exclusive, Exclusive, Exclusive].map(|mode| {
        let (world, got) = (world.clone(), got.clone());
        start(move || {
            let mut txn = world.begin();
            world.lock(&mut txn, b"k", mode).unwrap();
            got.lock().push(txn.id());
        })
    });
    let mut waiting = world.waiting();
    while waiting.len() < 3 {
        thread::yield_now();
        waiting = world.waiting();
    }
    drop(first);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*got.lock(), waiting, "not in order");
    world.assert_empty();
}

/// Deadlines and cancels come when locks are handed over.
fn deadlines() {
    let world = World::new();
    let mut first = world.begin();
    world.lock(&mut first, b"k", Exclusive).unwrap();
    let patient = world.begin();
    let id = patient.id();
    let mut threads = vec![];
    for (mut txn, mode, timeout) in [
        (world.begin(), Shared, Some(Duration::from_micros(1))),
        (patient, Exclusive, None),
    ] {
        let world = world.clone();
        threads.push(start(move || {
            let asked = world
                .manager
                .try_lock(&mut txn, &world.family, b"k", mode, timeout);
            match asked {
                Ok(_) => world.use_it(mode),
                Err(e) => {
                    assert!(matches!(
                        e.kind(),
                        ErrorKind::LockTimeout | ErrorKind::Aborted
                    ));
                    assert!(txn.is_empty());
                }
            }
        }));
    }
    let theirs = world.clone();
    threads.push(start(move || {
        let _ = theirs.manager.cancel(id);
    }));
    drop(first);
    for thread in threads {
        thread.join().unwrap();
    }
    world.assert_empty();
}

/// One locks a range, one a key in it, one a key and then the range.
fn ranges() {
    let world = World::new();
    let range = KeyRange::new(b"a", b"c", false);
    let theirs = world.clone();
    let mut threads = vec![start(move || {
        let mut txn = theirs.begin();
        let (manager, family) = (&theirs.manager, &theirs.family);
        manager
            .try_lock_range(&mut txn, family, &range, Exclusive, None)
            .unwrap();
        theirs.use_it(Exclusive);
    })];
    let theirs = world.clone();
    threads.push(start(move || {
        let mut txn = theirs.begin();
        theirs.lock(&mut txn, b"b", Exclusive).unwrap();
        theirs.use_it(Exclusive);
    }));
    threads.push(start({
        let world = world.clone();
        move || {
            let mut txn = world.begin();
            world.lock(&mut txn, b"b", Shared).unwrap();
            world.use_it(Shared);
            let (manager, family) = (&world.manager, &world.family);
            manager
                .try_lock_range(&mut txn, family, &range, Shared, None)
                .unwrap();
            world.use_it(Shared);
        }
    }));
    for thread in threads {
        thread.join().unwrap();
    }
    world.assert_empty();
}

/// Each holds a key in the range that the other wants.
fn crossing() {
    let world = World::new();
    let (mut a, mut b) = (world.begin(), world.begin());
    world.lock(&mut a, b"b", Shared).unwrap();
    world.lock(&mut b, b"y", Exclusive).unwrap();
    let ask = |world: &World, mut txn: TxnLocks, range: KeyRange<&[u8]>| {
        let (manager, family) = (&world.manager, &world.family);
        let asked = manager.try_lock_range(&mut txn, family, &range, Exclusive, None);
        asked.is_err_and(|e| e.kind() == ErrorKind::Deadlock)
    };
    let theirs = world.clone();
    let other = start(move || ask(&theirs, b, KeyRange::new(&b"a"[..], b"c", false)));
    let first = ask(&world, a, KeyRange::new(&b"x"[..], b"y", true));
    let second = other.join().unwrap();
    assert!(first != second, "told: {first} {second}");
    world.assert_empty();
}

/// A transaction may begin to commit, or may be robbed: not both.
fn expiry() {
    let world = World::new();
    let mut old = world.manager.begin(TxnLockOptions {
        expiration_micros: Some(6),
        ..TxnLockOptions::default()
    });
    world.lock(&mut old, b"k", Exclusive).unwrap();
    let theirs = world.clone();
    let thief = start(move || {
        let mut txn = theirs.begin();
        theirs.lock(&mut txn, b"k", Exclusive).unwrap();
        theirs.use_it(Exclusive);
    });
    match old.keep() {
        Ok(()) => world.use_it(Exclusive),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Expired),
    }
    drop(old);
    thief.join().unwrap();
    world.assert_empty();
}

macro_rules! models {
    ($($name:ident)*) => {
        mod holds {
            $(#[test] fn $name() {
                super::explore(concat!("locks/", stringify!($name)), super::$name);
            })*
        }
    };
}

models!(deadlock upgrades behind hand_over order deadlines ranges crossing expiry);

#[test]
fn a_lock_that_is_not_handed_over_is_found() {
    must_find(Mistake::KeepForNobody, hand_over);
}

#[test]
fn a_look_at_the_queue_before_the_release_is_found() {
    must_find(Mistake::LookBeforeRelease, hand_over);
}

#[test]
fn a_search_of_a_wait_that_others_do_not_see_is_found() {
    must_find(Mistake::SearchUnlisted, deadlock);
}

#[test]
fn a_search_that_follows_holders_only_is_found() {
    must_find(Mistake::SearchHoldersOnly, behind);
}

#[test]
fn a_range_that_is_counted_late_is_found() {
    must_find(Mistake::CountRangeLate, ranges);
}

#[test]
fn a_deadline_that_does_not_look_again_is_found() {
    must_find(Mistake::GiveUpBlindly, deadlines);
}
