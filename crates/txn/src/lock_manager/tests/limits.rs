//! Limits of locks and of their memory, and what counts against them.

use std::time::Duration;

use orogen_base::ErrorKind;

use super::sim::Sim;
use super::{A, B, C, D, range};
use crate::lock_manager::LockMode::{Exclusive, Shared};
use crate::lock_manager::{LockManagerOptions, TxnLockOptions};

#[test]
fn limits_are_errors_that_change_nothing() {
    let options = LockManagerOptions {
        max_num_locks: Some(3),
        memory_limit_bytes: Some(1000),
        ..LockManagerOptions::default()
    };
    let mut sim = Sim::with(2, options, TxnLockOptions::default());
    assert!(sim.lock(A, "a", Exclusive).got());
    assert!(sim.lock(A, "b", Exclusive).got());
    let long = "x".repeat(1000);
    assert_eq!(
        sim.lock(A, &long, Exclusive).kind(),
        Some(ErrorKind::LockLimit)
    );
    assert!(sim.lock_range(A, &range("c", "d"), Shared).got());
    assert_eq!(
        sim.lock(A, "e", Exclusive).kind(),
        Some(ErrorKind::LockLimit)
    );
    assert_eq!(
        sim.lock_range(A, &range("c", "e"), Shared).kind(),
        Some(ErrorKind::LockLimit)
    );
    assert!(sim.lock(A, "a", Exclusive).got(), "held already");
    assert_eq!(
        sim.lock(B, "a", Exclusive).kind(),
        Some(ErrorKind::LockLimit),
        "one that waits is one more"
    );
    assert_eq!(sim.status().len(), 3);
    sim.assert_counted();
    sim.unlock_all(A);
    assert!(sim.lock(B, "e", Exclusive).got());
    sim.end();
}

#[test]
fn who_shares_a_lock_or_waits_for_it_counts() {
    let options = LockManagerOptions {
        max_num_locks: Some(4),
        ..LockManagerOptions::default()
    };
    let mut sim = Sim::with(6, options, TxnLockOptions::default());
    let limit = Some(ErrorKind::LockLimit);
    for txn in [A, B] {
        assert!(sim.lock(txn, "k", Shared).got());
    }
    assert!(sim.lock(C, "k", Exclusive).waits());
    // It holds, and waits as well.
    assert!(sim.lock(A, "k", Exclusive).waits());
    assert_eq!(sim.manager.usage().locks, 4);
    assert_eq!(sim.lock(D, "k", Shared).kind(), limit);
    assert_eq!(sim.lock(D, "other", Shared).kind(), limit);
    assert_eq!(sim.lock_range(D, &range("x", "z"), Shared).kind(), limit);
    sim.assert_counted();
    // One goes, one of two is granted: what was two is one.
    sim.unlock_all(B);
    assert!(sim.granted(A));
    assert_eq!(sim.manager.usage().locks, 2);
    assert!(sim.lock(D, "k", Shared).waits());
    assert!(sim.lock(B, "k", Shared).waits());
    assert_eq!(sim.lock(4, "k", Shared).kind(), limit);
    // A lock that passes on needs no room.
    sim.unlock_all(A);
    assert!(sim.granted(C));
    assert_eq!(sim.manager.usage().locks, 3);
    sim.cancel(D);
    assert_eq!(sim.manager.usage().locks, 2);
    sim.assert_counted();
    sim.end();
}

#[test]
fn a_wait_that_ends_badly_counts_no_longer() {
    let options = LockManagerOptions {
        max_num_locks: Some(4),
        memory_limit_bytes: Some(10_000),
        ..LockManagerOptions::default()
    };
    let mut sim = Sim::with(3, options, TxnLockOptions::default());
    assert!(sim.lock(A, "a", Exclusive).got());
    assert!(sim.lock(B, "b", Exclusive).got());
    let two = sim.manager.usage();
    let (manager, family) = (sim.manager.clone(), sim.family.clone());
    let timeout = Some(Duration::from_micros(1));
    let clock = sim.clock.clone();
    for key in ["a", "b"] {
        std::thread::scope(|scope| {
            let c = &mut sim.txns[C].locks;
            let asks = || manager.try_lock(c, &family, key.as_bytes(), Shared, timeout);
            let waits = scope.spawn(asks);
            while manager.0.waits.lock().iter().count() < 1 {
                std::thread::yield_now();
            }
            assert_eq!(manager.usage().locks, 3);
            clock.advance(Duration::from_micros(10));
            let told = waits.join().unwrap().unwrap_err();
            assert_eq!(told.kind(), ErrorKind::LockTimeout);
        });
        assert_eq!(manager.usage(), two);
    }
    assert!(sim.lock(A, "b", Shared).waits());
    let told = sim.lock(B, "a", Exclusive).kind();
    assert_eq!(told, Some(ErrorKind::Deadlock));
    assert_eq!(manager.usage().locks, 3);
    sim.assert_counted();
    let told = sim.lock_range(B, &range("a", "b"), Shared).kind();
    assert_eq!(told, Some(ErrorKind::Deadlock));
    sim.assert_counted();
    assert!(sim.cancel(A));
    assert_eq!(manager.usage(), two);
    sim.end();
}
