//! Transactions whose time is over: what others may take of theirs, and who waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::{Error, ErrorKind, UserComparator};
use orogen_env::Clock;

use super::sim::Sim;
use super::{A, B, C, D, range};
use crate::lock_manager::LockMode::{Exclusive, Shared};
use crate::lock_manager::{LockManager, LockManagerOptions, Locked, TxnLockOptions, Wanted};

fn expiring(micros: u64) -> TxnLockOptions {
    TxnLockOptions {
        expiration_micros: Some(micros),
        ..TxnLockOptions::default()
    }
}

#[test]
fn locks_of_an_expired_transaction_are_taken() {
    let mut sim = Sim::new(3);
    sim.manager.restart(&mut sim.txns[A].locks, expiring(100));
    for key in ["k", "other"] {
        assert!(sim.lock(A, key, Exclusive).got());
    }
    assert!(sim.lock_range(A, &range("p", "q"), Exclusive).got());
    assert!(sim.lock(B, "k", Shared).waits());
    sim.cancel(B);
    sim.clock.advance(Duration::from_micros(100));
    assert!(sim.lock(B, "k", Shared).got());
    assert!(sim.lock(C, "k", Shared).got());
    assert!(
        sim.lock_range(B, &range("o", "r"), Shared).got(),
        "of both kinds"
    );
    assert_eq!(sim.manager.statistics().get(Ticker::TxnLockSteals), 3);
    assert_eq!(sim.lock(A, "z", Shared).kind(), Some(ErrorKind::Expired));
    assert_eq!(
        sim.txns[A].locks.keep().unwrap_err().kind(),
        ErrorKind::Expired
    );
    // It lets go what it has still, and nothing of what others have.
    sim.unlock_all(A);
    assert!(sim.lock(A, "k", Exclusive).kind().is_some());
    let status = sim.status();
    assert_eq!(status.len(), 2);
    assert_eq!(
        status[0].holders,
        [sim.txns[B].locks.id(), sim.txns[C].locks.id()]
    );
    sim.end();
}

#[test]
fn only_what_conflicts_is_taken_and_only_from_the_expired() {
    let mut sim = Sim::new(4);
    sim.manager.restart(&mut sim.txns[A].locks, expiring(100));
    assert!(sim.lock_range(A, &range("p", "q"), Exclusive).got());
    assert!(sim.lock(A, "s", Exclusive).got());
    assert!(sim.lock(A, "x", Exclusive).got());
    assert!(sim.lock(C, "r", Shared).got());
    sim.clock.advance(Duration::from_micros(99));
    assert!(sim.lock(D, "pp", Shared).waits());
    assert!(sim.cancel(D));
    sim.clock.advance(Duration::from_micros(1));
    assert!(sim.lock(D, "pp", Shared).got());
    assert!(sim.lock_range(B, &range("r", "t"), Shared).got());
    assert_eq!(sim.manager.statistics().get(Ticker::TxnLockSteals), 2);
    let key = |key: &str| Wanted::Key(key.as_bytes().into());
    let status = sim.status();
    assert_eq!(status.len(), 4, "{status:?}");
    assert_eq!((&status[1].what, &status[1].holders), (&key("r"), &vec![3]));
    assert_eq!(
        (&status[3].holders, status[3].mode),
        (&vec![2], Some(Shared))
    );
    // What nobody wanted is A's still.
    assert_eq!(status[2].holders, [sim.txns[A].locks.id()]);
    sim.end();
}

#[test]
fn one_that_waits_takes_a_range_when_a_holder_in_it_expires() {
    let mut sim = Sim::new(2);
    sim.manager.restart(&mut sim.txns[A].locks, expiring(1000));
    assert!(sim.lock(A, "b", Exclusive).got());
    let (manager, family, clock) = (sim.manager.clone(), sim.family.clone(), sim.clock.clone());
    let b = &mut sim.txns[B].locks;
    let all = range("a", "c");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| manager.try_lock_range(b, &family, &all, Shared, None));
        while manager.0.waits.lock().iter().count() < 1 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_micros(1000));
        assert_eq!(waits.join().unwrap().unwrap(), Locked::New);
    });
    assert_eq!(manager.statistics().get(Ticker::TxnLockSteals), 1);
    sim.end();
}

#[test]
fn a_transaction_that_commits_is_not_robbed() {
    let mut sim = Sim::new(2);
    sim.manager.restart(&mut sim.txns[A].locks, expiring(100));
    assert!(sim.lock(A, "k", Exclusive).got());
    sim.txns[A].locks.keep().unwrap();
    sim.clock.advance(Duration::from_secs(1));
    assert!(sim.lock(B, "k", Exclusive).waits());
    sim.txns[A].locks.keep().unwrap();
    sim.unlock_all(A);
    assert!(sim.granted(B));
    sim.end();
}

#[test]
fn one_that_waits_takes_a_lock_when_a_commit_of_an_expired_holder_is_given_up() {
    for is_kept_before in [true, false] {
        let mut sim = Sim::new(2);
        sim.manager.restart(&mut sim.txns[A].locks, expiring(1000));
        assert!(sim.lock(A, "k", Exclusive).got());
        if is_kept_before {
            sim.txns[A].locks.keep().unwrap();
        }
        let (manager, family, clock) = (sim.manager.clone(), sim.family.clone(), sim.clock.clone());
        let [a, b] = &mut sim.txns[..] else {
            panic!("there are two");
        };
        let b = &mut b.locks;
        std::thread::scope(|scope| {
            let waits =
                scope.spawn(|| manager.try_lock(b, &family, b"k", Exclusive, None).unwrap());
            while manager.0.waits.lock().iter().count() < 1 {
                std::thread::yield_now();
            }
            a.locks.keep().unwrap();
            clock.advance(Duration::from_micros(1000));
            for _ in 0..100 {
                std::thread::yield_now();
            }
            assert_eq!(manager.statistics().get(Ticker::TxnLockSteals), 0);
            a.locks
                .give_up_commit(&Error::new(ErrorKind::NoSpace, "full"));
            assert_eq!(waits.join().unwrap(), Locked::New);
        });
        sim.end();
    }
}

#[test]
fn one_that_waits_takes_a_lock_when_its_holder_expires() {
    let mut sim = Sim::new(3);
    sim.manager.restart(&mut sim.txns[A].locks, expiring(1000));
    assert!(sim.lock(A, "k", Exclusive).got());
    let (manager, family, clock) = (sim.manager.clone(), sim.family.clone(), sim.clock.clone());
    let b = &mut sim.txns[B].locks;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| manager.try_lock(b, &family, b"k", Exclusive, None).unwrap());
        while manager.0.waits.lock().iter().count() < 1 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_micros(999));
        std::thread::yield_now();
        assert_eq!(manager.statistics().get(Ticker::TxnLockSteals), 0);
        clock.advance(Duration::from_micros(1));
        assert_eq!(waits.join().unwrap(), Locked::New);
    });
    assert_eq!(manager.statistics().get(Ticker::TxnLockSteals), 1);
    sim.end();
}

#[test]
fn a_wait_ends_with_its_own_transaction() {
    let mut sim = Sim::new(2);
    assert!(sim.lock(A, "k", Exclusive).got());
    sim.manager.restart(&mut sim.txns[B].locks, expiring(50));
    let (manager, family, clock) = (sim.manager.clone(), sim.family.clone(), sim.clock.clone());
    let b = &mut sim.txns[B].locks;
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| manager.try_lock(b, &family, b"k", Exclusive, None));
        while manager.0.waits.lock().iter().count() < 1 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_micros(50));
        assert_eq!(
            waits.join().unwrap().unwrap_err().kind(),
            ErrorKind::Expired
        );
    });
    sim.end();
}

/// A clock that goes on whenever it is looked at.
struct Stepping(AtomicU64);

impl Clock for Stepping {
    fn now_micros(&self) -> u64 {
        self.0.fetch_add(1, Relaxed)
    }

    fn unix_micros(&self) -> u64 {
        self.now_micros()
    }

    fn sleep(&self, _: Duration) {}
}

#[test]
fn a_holder_that_expires_while_a_wait_begins_is_noticed() {
    for micros in 1..16 {
        let clock = Arc::new(Stepping(AtomicU64::new(1)));
        let manager = LockManager::with(LockManagerOptions::default(), clock, Arc::default());
        let family = manager.add_family(0, UserComparator::BYTEWISE);
        let mut holder = manager.begin(expiring(micros));
        let held = manager.try_lock(&mut holder, &family, b"k", Exclusive, None);
        if held.is_err() {
            continue;
        }
        let (tell, told) = std::sync::mpsc::channel();
        let waits = std::thread::Builder::new().spawn(move || {
            let mut waiter = manager.begin(TxnLockOptions::default());
            let locked = manager.try_lock(&mut waiter, &family, b"k", Exclusive, None);
            tell.send(locked.is_ok()).expect("somebody listens");
        });
        let got = told.recv_timeout(Duration::from_secs(30));
        assert_eq!(got, Ok(true), "expires after {micros}");
        waits.unwrap().join().unwrap();
    }
}
