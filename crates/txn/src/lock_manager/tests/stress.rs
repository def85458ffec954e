//! Many threads and few keys: plain counters show that exclusive holders are alone.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::{ErrorKind, Result, UserComparator};

use crate::lock_manager::LockMode::{Exclusive, Shared};
use crate::lock_manager::{
    KeyRange, LockManager, LockManagerOptions, LockMode, TxnLockOptions, TxnLocks,
};

const THREADS: u64 = 8;
const KEYS: usize = 24;
const ROUNDS: usize = 1500;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }
}

/// What the threads believe that they hold: -1 alone, else how many share it.
struct Used([AtomicI64; KEYS]);

impl Used {
    fn take(&self, key: usize, mode: LockMode) {
        match mode {
            Exclusive => assert_eq!(self.0[key].swap(-1, SeqCst), 0, "{key} is not alone"),
            Shared => assert!(self.0[key].fetch_add(1, SeqCst) >= 0, "{key} is beside one"),
        }
    }

    fn give(&self, key: usize, mode: LockMode) {
        match mode {
            Exclusive => assert_eq!(self.0[key].swap(0, SeqCst), -1, "{key} is not alone"),
            Shared => assert!(self.0[key].fetch_sub(1, SeqCst) > 0, "{key} is beside one"),
        }
    }
}

fn name(key: usize) -> String {
    format!("{key:06}")
}

/// A transaction of some locks, all used while they are held.
fn transaction(
    manager: &LockManager,
    lock: &dyn Fn(&mut TxnLocks, usize, LockMode) -> Result<()>,
    txn: &mut TxnLocks,
    random: &mut Random,
    used: &Used,
) -> Option<ErrorKind> {
    let mut held: Vec<(usize, LockMode)> = Vec::new();
    let mut failed = None;
    for _ in 0..1 + random.below(5) {
        // Low keys are hot.
        let key = random.below(KEYS).min(random.below(KEYS));
        let mode = [Shared, Exclusive][random.below(2)];
        if let Err(e) = lock(txn, key, mode) {
            failed = Some(e.kind());
            break;
        }
        match held.iter_mut().find(|(other, _)| *other == key) {
            Some((_, before)) if *before == mode || *before == Exclusive => {}
            Some((_, before)) => {
                // It is alone with its share of the key.
                used.give(key, *before);
                used.take(key, mode);
                *before = mode;
            }
            None => {
                used.take(key, mode);
                held.push((key, mode));
            }
        }
    }
    if random.below(50) == 0 {
        std::thread::yield_now();
    }
    for (key, mode) in held {
        used.give(key, mode);
    }
    manager.unlock_all(txn);
    failed
}

/// Runs all threads; `ranges` of 100 locks are for a range of one to three keys, of which the first is
/// used.
fn run(ranges: usize, each: TxnLockOptions, timeout: Option<Duration>) -> [u64; 3] {
    let options = LockManagerOptions {
        num_stripes: 4,
        max_num_locks: Some(100_000),
        memory_limit_bytes: Some(100_000_000),
        ..LockManagerOptions::default()
    };
    let manager = LockManager::new(options);
    let families = [0, 1].map(|id| manager.add_family(id, UserComparator::BYTEWISE));
    let used = Used([const { AtomicI64::new(0) }; KEYS]);
    let done: [AtomicU64; 3] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (manager, families, used, done) = (&manager, &families, &used, &done);
            scope.spawn(move || {
                let mut random = Random((thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                let mut dice = Random(thread + 77);
                let dice = std::cell::RefCell::new(&mut dice);
                let lock = |txn: &mut TxnLocks, key: usize, mode| {
                    let family = &families[key % 2];
                    let draw = dice.borrow_mut().below(100);
                    if draw < ranges {
                        let range = KeyRange::new(name(key), name(key + draw % 3), true);
                        manager.try_lock_range(txn, family, &range, mode, timeout)?;
                    } else {
                        manager.try_lock(txn, family, name(key).as_bytes(), mode, timeout)?;
                    }
                    Ok(())
                };
                let mut txn = manager.begin(each);
                for _ in 0..ROUNDS {
                    let failed = transaction(manager, &lock, &mut txn, &mut random, used);
                    let at = match failed {
                        None => 0,
                        Some(ErrorKind::Deadlock) => 1,
                        Some(ErrorKind::LockTimeout) => 2,
                        Some(other) => panic!("{other:?}"),
                    };
                    done[at].fetch_add(1, SeqCst);
                    assert!(txn.is_empty());
                }
            });
        }
    });
    assert_eq!(manager.lock_status(), []);
    for family in &families {
        assert_eq!((family.key_count(), family.used_bytes()), (0, 0));
        assert!(!family.has_ranges());
        assert_eq!(family.limited_count.load(SeqCst), 0);
    }
    assert_eq!(manager.0.used_bytes.load(SeqCst), 0);
    assert!(manager.0.waits.lock().by_txn.is_empty());
    let done = done.map(AtomicU64::into_inner);
    assert_eq!(done.iter().sum::<u64>(), THREADS * ROUNDS as u64);
    let counted = manager.statistics();
    assert_eq!(counted.get(Ticker::TxnDeadlocks), done[1]);
    assert_eq!(counted.get(Ticker::TxnLockTimeouts), done[2]);
    done
}

#[test]
fn threads_on_hot_keys_exclude_each_other() {
    let done = run(0, TxnLockOptions::default(), None);
    assert_eq!(done[2], 0, "nobody has a deadline");
    assert!(done[0] > 0);
}

#[test]
fn threads_on_hot_keys_and_ranges_exclude_each_other() {
    run(5, TxnLockOptions::default(), None);
}

#[test]
fn threads_without_detection_get_on_by_their_deadlines() {
    let each = TxnLockOptions {
        deadlock_detect: false,
        ..TxnLockOptions::default()
    };
    let done = run(1, each, Some(Duration::from_micros(200)));
    assert_eq!(done[1], 0, "nobody searches");
}

/// Locks are used only by those who may commit; the others let go of what is left to them.
#[test]
fn threads_whose_transactions_expire_exclude_each_other() {
    let manager = LockManager::new(LockManagerOptions::default());
    let family = &manager.add_family(0, UserComparator::BYTEWISE);
    let used = &Used([const { AtomicI64::new(0) }; KEYS]);
    let (kept, expired) = (&AtomicU64::new(0), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let manager = &manager;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                let each = TxnLockOptions {
                    expiration_micros: Some(30),
                    ..TxnLockOptions::default()
                };
                let mut txn = manager.begin(each);
                for round in 0..ROUNDS {
                    let key = random.below(4);
                    let bytes = name(key);
                    let mode = [Shared, Exclusive][random.below(2)];
                    let asked = if round % 16 == 0 {
                        let range = KeyRange::new(&bytes, &bytes, true);
                        manager.try_lock_range(&mut txn, family, &range, mode, None)
                    } else {
                        manager.try_lock(&mut txn, family, bytes.as_bytes(), mode, None)
                    };
                    if random.below(4) == 0 {
                        std::thread::yield_now();
                    }
                    let may_commit = asked.and_then(|_| txn.keep());
                    match may_commit {
                        Ok(()) => {
                            used.take(key, mode);
                            kept.fetch_add(1, SeqCst);
                            used.give(key, mode);
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Expired);
                            expired.fetch_add(1, SeqCst);
                        }
                    }
                    manager.restart(&mut txn, each);
                }
            });
        }
    });
    assert_eq!(
        kept.load(SeqCst) + expired.load(SeqCst),
        THREADS * ROUNDS as u64
    );
    assert!(kept.load(SeqCst) > 0);
    assert_eq!(manager.lock_status(), []);
    assert!(manager.0.waits.lock().expirable.is_empty());
}
