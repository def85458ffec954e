//! Each rule of the lock manager, in one thread; then against a reference, and with many threads.

mod sim;
mod limits;
mod expiry;
mod reference;
mod stress;

use std::sync::Arc;
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::{ErrorKind, UserComparator};

use super::LockMode::{Exclusive, Shared};
use super::{
    DeadlockEdge, DeadlockPath, Endpoint, KeyRange, LockManagerOptions, Locked, TxnLockOptions,
    Wanted,
};
use sim::{NO_WAIT, Sim};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;
const D: usize = 3;

fn range<'a>(start: &'a str, end: &'a str) -> KeyRange<&'a str> {
    KeyRange::new(start, end, false)
}

#[test]
fn shared_locks_stand_beside_each_other_and_exclusive_ones_alone() {
    let mut sim = Sim::new(4);
    assert!(sim.lock(A, "k", Shared).got());
    assert!(sim.lock(B, "k", Shared).got());
    assert!(sim.lock(C, "k", Exclusive).waits());
    assert!(sim.lock(D, "other", Exclusive).got());
    sim.unlock_all(A);
    assert!(!sim.granted(C));
    sim.unlock_all(B);
    assert!(sim.granted(C));
    assert!(sim.lock(A, "k", Shared).waits());
    sim.unlock_all(C);
    assert!(sim.granted(A));
    sim.end();
}

#[test]
fn a_lock_is_taken_once_however_often_it_is_asked_for() {
    let mut sim = Sim::new(2);
    assert!(matches!(
        sim.lock(A, "k", Exclusive),
        sim::Answer::Got(Locked::New)
    ));
    for mode in [Shared, Exclusive, Exclusive] {
        assert!(matches!(
            sim.lock(A, "k", mode),
            sim::Answer::Got(Locked::Held)
        ));
    }
    // It asks again while others wait, too.
    assert!(sim.lock(B, "k", Shared).waits());
    assert!(matches!(
        sim.lock(A, "k", Shared),
        sim::Answer::Got(Locked::Held)
    ));
    assert_eq!(sim.txns[A].locks.len(), 1);
    sim.unlock_all(A);
    assert!(sim.granted(B));
    sim.end();
}

#[test]
fn nobody_passes_those_who_wait() {
    let mut sim = Sim::new(6);
    assert!(sim.lock(A, "k", Shared).got());
    assert!(sim.lock(B, "k", Exclusive).waits());
    // It could stand beside A, but B came first.
    assert!(sim.lock(C, "k", Shared).waits());
    assert!(sim.lock(D, "k", Shared).waits());
    assert!(sim.lock(4, "k", Exclusive).waits());
    assert!(sim.lock(5, "k", Shared).waits());
    let order: Vec<_> = sim.status()[0].waiting.iter().map(|w| w.txn).collect();
    assert_eq!(order, [2, 3, 4, 5, 6]);
    sim.unlock_all(A);
    assert!(sim.granted(B) && !sim.granted(C));
    sim.unlock_all(B);
    assert!(sim.granted(C) && sim.granted(D) && !sim.granted(4) && !sim.granted(5));
    sim.unlock_all(C);
    assert!(!sim.granted(4));
    sim.unlock_all(D);
    assert!(sim.granted(4) && !sim.granted(5));
    sim.end();
}

#[test]
fn one_that_gives_up_lets_those_behind_it_go_on() {
    let mut sim = Sim::new(4);
    assert!(sim.lock(A, "k", Shared).got());
    assert!(sim.lock(B, "k", Exclusive).waits());
    assert!(sim.lock(C, "k", Shared).waits());
    assert!(sim.cancel(B));
    assert!(!sim.cancel(B), "it does not wait any more");
    assert!(sim.granted(C));
    sim.end();
}

#[test]
fn a_shared_lock_becomes_exclusive_before_those_who_wait() {
    let mut sim = Sim::new(4);
    assert!(sim.lock(A, "k", Shared).got());
    assert!(matches!(
        sim.lock(A, "k", Exclusive),
        sim::Answer::Got(Locked::Upgraded)
    ));
    assert!(sim.manager.downgrade(&sim.txns[A].locks, &sim.family, b"k"));
    assert!(!sim.manager.downgrade(&sim.txns[A].locks, &sim.family, b"k"));
    assert!(sim.lock(B, "k", Shared).got());
    assert!(sim.lock(C, "k", Exclusive).waits());
    assert!(sim.lock(D, "k", Shared).waits());
    assert!(sim.lock(A, "k", Exclusive).waits());
    sim.unlock_all(B);
    assert!(sim.granted(A) && !sim.granted(C));
    // Weaker again: C is first, and waits for A still.
    assert!(sim.manager.downgrade(&sim.txns[A].locks, &sim.family, b"k"));
    assert!(!sim.granted(C) && !sim.granted(D));
    sim.cancel(C);
    assert!(sim.granted(D));
    sim.end();
}

#[test]
fn a_downgrade_lets_shared_ones_in() {
    let mut sim = Sim::new(3);
    assert!(sim.lock(A, "k", Exclusive).got());
    assert!(sim.lock(B, "k", Shared).waits());
    assert!(sim.lock(C, "k", Shared).waits());
    assert!(!sim.manager.downgrade(&sim.txns[B].locks, &sim.family, b"k"));
    assert!(sim.manager.downgrade(&sim.txns[A].locks, &sim.family, b"k"));
    assert!(sim.granted(B) && sim.granted(C));
    sim.end();
}

#[test]
fn two_that_want_to_make_the_same_lock_exclusive_are_told() {
    let mut sim = Sim::new(3);
    assert!(sim.lock(A, "k", Shared).got());
    assert!(sim.lock(B, "k", Shared).got());
    assert!(sim.lock(A, "k", Exclusive).waits());
    let answer = sim.lock(B, "k", Exclusive);
    assert_eq!(answer.kind(), Some(ErrorKind::Deadlock));
    assert!(
        sim.lock(C, "k", Shared).waits(),
        "an exclusive one is before it"
    );
    sim.unlock_all(B);
    assert!(sim.granted(A));
    sim.end();
}

#[test]
fn a_deadlock_tells_its_cycle() {
    let mut sim = Sim::new(3);
    let other = sim.manager.add_family(9, UserComparator::BYTEWISE);
    assert!(sim.lock(A, "a", Exclusive).got());
    assert!(sim.lock(B, "b", Shared).got());
    let c = &mut sim.txns[C].locks;
    sim.manager
        .try_lock(c, &other, b"c", Exclusive, NO_WAIT)
        .unwrap();
    assert!(sim.lock(C, "a", Shared).waits());
    assert!(sim.lock(A, "b", Exclusive).waits());
    let b = &mut sim.txns[B].locks;
    let wait = Some(Duration::from_secs(3600));
    let error = sim
        .manager
        .try_lock(b, &other, b"c", Shared, wait)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock);
    let edge = |txn, family, mode, key: &str| DeadlockEdge {
        txn,
        family,
        mode,
        wanted: Wanted::Key(key.as_bytes().into()),
    };
    let path = DeadlockPath::of(&error).unwrap();
    assert_eq!(
        path.edges,
        [
            edge(2, 9, Shared, "c"),
            edge(3, 7, Shared, "a"),
            edge(1, 7, Exclusive, "b"),
        ]
    );
    assert!(!path.limit_exceeded && path.unix_micros > 0);
    let text = error.to_string();
    assert!(text.contains("txn=3 cf=7 mode=shared"), "{text}");
    assert_eq!(**sim.manager.deadlocks().last().unwrap(), *path);
    assert_eq!(sim.manager.statistics().get(Ticker::TxnDeadlocks), 1);
    // The one that was told holds what it held, and waits for nothing.
    assert!(!sim.granted(A));
    sim.unlock_all(B);
    assert!(sim.granted(A));
    sim.unlock_all(A);
    assert!(sim.granted(C));
    sim.end();
}

#[test]
fn waiting_behind_somebody_is_waiting_for_them() {
    let mut sim = Sim::new(3);
    assert!(sim.lock(A, "a", Shared).got());
    assert!(sim.lock(C, "c", Exclusive).got());
    assert!(sim.lock(B, "a", Exclusive).waits());
    // C could stand beside A, but B is before it.
    assert!(sim.lock(C, "a", Shared).waits());
    assert_eq!(
        sim.lock(A, "c", Exclusive).kind(),
        Some(ErrorKind::Deadlock)
    );
    let path = sim.manager.deadlocks().pop().unwrap();
    let txns: Vec<_> = path.edges.iter().map(|edge| edge.txn).collect();
    assert_eq!(txns, [1, 3, 2]);
    sim.end();
}

#[test]
fn edges_follow_a_lock_that_is_handed_over() {
    let mut sim = Sim::new(4);
    assert!(sim.lock(A, "a", Exclusive).got());
    assert!(sim.lock(B, "a", Exclusive).waits());
    assert!(sim.lock(C, "a", Exclusive).waits());
    sim.unlock_all(A);
    assert!(sim.granted(B));
    // C waits for B now, and for A no more.
    assert!(sim.lock(C + 1, "d", Exclusive).got());
    assert!(sim.lock(B, "d", Shared).waits());
    assert!(sim.lock(A, "x", Shared).got());
    assert!(
        sim.lock(D, "x", Exclusive).waits(),
        "no cycle: A waits for nobody"
    );
    sim.unlock_all(A);
    assert!(sim.granted(D));
    sim.end();
}

#[test]
fn the_last_deadlocks_are_remembered() {
    let options = LockManagerOptions {
        max_num_deadlocks: 2,
        ..LockManagerOptions::default()
    };
    let mut sim = Sim::with(2, options, TxnLockOptions::default());
    for round in 0..4 {
        assert!(sim.lock(A, &format!("a{round}"), Exclusive).got());
        assert!(sim.lock(B, &format!("b{round}"), Exclusive).got());
        assert!(sim.lock(A, &format!("b{round}"), Exclusive).waits());
        assert!(
            sim.lock(B, &format!("a{round}"), Exclusive)
                .kind()
                .is_some()
        );
        sim.unlock_all(B);
        assert!(sim.granted(A));
        sim.unlock_all(A);
    }
    let keys = |sim: &Sim| -> Vec<Wanted> {
        let deadlocks = sim.manager.deadlocks();
        deadlocks
            .iter()
            .map(|path| path.edges[0].wanted.clone())
            .collect()
    };
    let key = |key: &str| Wanted::Key(key.as_bytes().into());
    assert_eq!(keys(&sim), [key("a2"), key("a3")]);
    sim.manager.set_max_num_deadlocks(1);
    assert_eq!(keys(&sim), [key("a3")]);
    sim.end();
}

#[test]
fn a_search_that_is_limited_assumes_a_deadlock() {
    let each = TxnLockOptions {
        deadlock_detect_depth: 2,
        ..TxnLockOptions::default()
    };
    let mut sim = Sim::with(5, LockManagerOptions::default(), each);
    for txn in 0..5 {
        assert!(sim.lock(txn, &txn.to_string(), Exclusive).got());
    }
    assert!(sim.lock(3, "4", Exclusive).waits());
    assert!(sim.lock(2, "3", Exclusive).waits());
    // As long as nobody waits for the second one there is nothing to search for.
    assert!(sim.lock(1, "2", Exclusive).waits());
    assert!(sim.cancel(1));
    assert!(sim.lock(0, "1", Exclusive).waits());
    assert_eq!(
        sim.lock(1, "2", Exclusive).kind(),
        Some(ErrorKind::Deadlock)
    );
    let path = sim.manager.deadlocks().pop().unwrap();
    assert!(path.limit_exceeded && path.edges.is_empty());
    sim.end();
}

#[test]
fn without_detection_only_time_ends_a_deadlock() {
    let each = TxnLockOptions {
        deadlock_detect: false,
        ..TxnLockOptions::default()
    };
    let mut sim = Sim::new(2);
    for txn in &mut sim.txns {
        sim.manager.restart(&mut txn.locks, each);
    }
    assert!(sim.lock(A, "a", Exclusive).got());
    assert!(sim.lock(B, "b", Exclusive).got());
    let (manager, family) = (sim.manager.clone(), sim.family.clone());
    let clock = sim.clock.clone();
    let [a, b] = &mut sim.txns[..] else {
        unreachable!()
    };
    std::thread::scope(|scope| {
        for (locks, key) in [(&mut a.locks, b"b"), (&mut b.locks, b"a")] {
            let (manager, family) = (&manager, &family);
            scope.spawn(move || {
                let wait = Some(Duration::from_millis(5));
                let error = manager
                    .try_lock(locks, family, key, Shared, wait)
                    .unwrap_err();
                assert_eq!(error.kind(), ErrorKind::LockTimeout);
                assert_eq!(locks.len(), 1, "what it held it holds still");
            });
        }
        while manager.0.waits.lock().iter().count() < 2 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_millis(6));
    });
    assert_eq!(manager.statistics().get(Ticker::TxnLockTimeouts), 2);
    assert_eq!(manager.statistics().get(Ticker::TxnLockWaits), 2);
    sim.end();
}

#[test]
fn a_savepoint_gives_back_what_came_later() {
    let mut sim = Sim::new(3);
    assert!(sim.lock(A, "old", Shared).got());
    let moment = sim.txns[A].locks.save_point();
    assert!(sim.lock(A, "old", Exclusive).got());
    assert!(sim.lock(A, "new", Exclusive).got());
    assert!(sim.lock(B, "old", Shared).waits());
    assert!(sim.lock(C, "new", Shared).waits());
    let later = sim.txns[A].locks.save_point();
    assert!(sim.lock_range(A, &range("p", "q"), Exclusive).got());
    assert!(later > moment);
    sim.manager.unlock_since(&mut sim.txns[A].locks, moment);
    assert!(sim.granted(B) && sim.granted(C));
    assert!(sim.lock(B, "old", Exclusive).waits(), "A has it shared");
    assert!(sim.lock(C, "p", Exclusive).got());
    sim.unlock_all(A);
    assert!(sim.granted(B));
    sim.end();
}

#[test]
fn one_key_is_let_go_alone() {
    let mut sim = Sim::new(2);
    let (manager, family) = (sim.manager.clone(), sim.family.clone());
    for key in ["a", "b", "c"] {
        assert!(sim.lock(A, key, Shared).got());
    }
    let moment = sim.txns[A].locks.save_point();
    assert!(sim.lock(A, "d", Shared).got());
    assert!(sim.lock(B, "b", Exclusive).waits());
    assert!(manager.unlock(&mut sim.txns[A].locks, &family, b"b"));
    assert!(!manager.unlock(&mut sim.txns[A].locks, &family, b"b"));
    assert!(!manager.unlock(&mut sim.txns[A].locks, &family, b"none"));
    assert!(sim.granted(B));
    manager.unlock_since(&mut sim.txns[A].locks, moment);
    assert_eq!(sim.txns[A].locks.len(), 2);
    assert!(sim.lock(B, "d", Exclusive).got());
    assert!(sim.lock(B, "c", Exclusive).waits());
    sim.unlock_all(A);
    assert!(sim.granted(B));
    sim.end();
}

#[test]
fn a_transaction_that_is_dropped_holds_nothing() {
    let mut sim = Sim::new(2);
    assert!(sim.lock(A, "k", Exclusive).got());
    assert!(sim.lock(B, "k", Exclusive).waits());
    drop(sim.txns.remove(A));
    assert!(sim.granted(0));
    sim.end();
}

#[test]
fn a_refusal_leaves_nothing_behind() {
    let mut sim = Sim::new(2);
    assert!(sim.lock_range(A, &range("a", "c"), Exclusive).got());
    let family = sim.family.clone();
    let (manager, b) = (&sim.manager, &mut sim.txns[B].locks);
    let error = manager.try_lock(b, &family, b"b", Shared, NO_WAIT);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::LockTimeout);
    let error = manager.try_lock_range(b, &family, &range("b", "d"), Shared, NO_WAIT);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::LockTimeout);
    assert!(b.is_empty());
    assert_eq!(family.key_count(), 0);
    assert_eq!(sim.status().len(), 1);
    sim.end();
}

#[test]
fn ranges_and_keys_conflict_both_ways() {
    let mut sim = Sim::new(4);
    assert!(sim.lock(A, "c", Exclusive).got());
    assert!(sim.lock(A, "x", Exclusive).got());
    assert!(sim.lock_range(B, &range("a", "f"), Exclusive).waits());
    assert!(sim.lock_range(C, &range("f", "h"), Exclusive).got());
    assert!(sim.lock(D, "f", Shared).waits());
    sim.cancel(D);
    assert!(
        sim.lock(D, "e", Shared).waits(),
        "a range waits for it before"
    );
    sim.unlock_all(A);
    assert!(sim.granted(B) && !sim.granted(D));
    sim.unlock_all(B);
    assert!(sim.granted(D));
    assert!(sim.lock(A, "g", Shared).waits());
    sim.unlock_all(C);
    assert!(sim.granted(A));
    sim.end();
}

#[test]
fn shared_ranges_overlap_and_exclusive_ones_do_not() {
    let mut sim = Sim::new(4);
    assert!(sim.lock_range(A, &range("a", "f"), Shared).got());
    assert!(sim.lock_range(B, &range("c", "k"), Shared).got());
    assert!(sim.lock(C, "d", Shared).got());
    assert!(
        sim.lock_range(
            D,
            &KeyRange {
                start: Endpoint::First,
                end: Endpoint::Last
            },
            Exclusive
        )
        .waits()
    );
    assert_eq!(sim.status().len(), 4);
    sim.unlock_all(A);
    sim.unlock_all(B);
    assert!(!sim.granted(D));
    sim.unlock_all(C);
    assert!(sim.granted(D));
    assert!(matches!(
        sim.lock_range(D, &range("a", "b"), Shared),
        sim::Answer::Got(Locked::Held)
    ));
    sim.end();
    let mut sim = Sim::new(1);
    let kind = sim.lock_range(A, &range("b", "b"), Shared).kind();
    assert_eq!(kind, Some(ErrorKind::InvalidArgument));
    sim.end();
}

#[test]
fn who_keeps_a_range_waiting_goes_on_inside_it() {
    let mut sim = Sim::new(3);
    assert!(sim.lock(A, "c", Exclusive).got());
    assert!(sim.lock_range(B, &range("a", "f"), Exclusive).waits());
    assert!(
        sim.lock(A, "d", Exclusive).got(),
        "B cannot go on before A does"
    );
    assert!(sim.lock_range(A, &range("b", "e"), Exclusive).got());
    assert!(sim.lock(A, "bb", Shared).got());
    assert!(sim.lock(C, "d", Shared).waits());
    sim.unlock_all(A);
    assert!(sim.granted(B) && !sim.granted(C));
    sim.end();
}

#[test]
fn who_keeps_a_range_waiting_goes_on_before_one_who_does_not() {
    let mut sim = Sim::new(4);
    assert!(sim.lock(A, "k", Exclusive).got());
    assert!(sim.lock(B, "m", Exclusive).got());
    assert!(sim.lock_range(C, &range("a", "z"), Exclusive).waits());
    assert!(sim.lock(D, "k", Shared).waits());
    assert!(sim.lock(B, "k", Shared).waits());
    sim.unlock_all(A);
    assert!(sim.granted(B) && !sim.granted(C) && !sim.granted(D));
    sim.unlock_all(B);
    assert!(sim.granted(C) && !sim.granted(D));
    sim.end();
}

#[test]
fn ranges_and_keys_close_cycles_together() {
    let mut sim = Sim::new(2);
    assert!(sim.lock(A, "k", Exclusive).got());
    assert!(sim.lock_range(B, &range("p", "q"), Shared).got());
    assert!(sim.lock(A, "pp", Exclusive).waits());
    let kind = sim.lock_range(B, &range("a", "l"), Shared).kind();
    assert_eq!(kind, Some(ErrorKind::Deadlock));
    let path = sim.manager.deadlocks().pop().unwrap();
    assert_eq!(
        path.edges[0].wanted,
        Wanted::Range(range("a", "l").to_owned())
    );
    assert_eq!(path.edges[1].wanted, Wanted::Key(b"pp"[..].into()));
    sim.end();
}

#[test]
fn locks_of_another_manager_are_refused() {
    let mut sim = Sim::new(1);
    let theirs = Sim::new(0);
    let locks = &mut sim.txns[A].locks;
    let error = sim
        .manager
        .try_lock(locks, &theirs.family, b"k", Shared, NO_WAIT);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let error = theirs
        .manager
        .try_lock(locks, &theirs.family, b"k", Shared, NO_WAIT);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidArgument);
    sim.end();
}

#[test]
fn a_restart_needs_no_allocation_and_is_somebody_else() {
    let mut sim = Sim::new(1);
    assert!(sim.lock(A, "k", Exclusive).got());
    let locks = &mut sim.txns[A].locks;
    let (id, owner) = (locks.id(), Arc::as_ptr(&locks.owner));
    sim.manager.restart(locks, TxnLockOptions::default());
    assert!(locks.id() > id && locks.is_empty());
    assert_eq!(owner, Arc::as_ptr(&locks.owner));
    sim.assert_empty();
}

#[test]
fn a_table_that_has_grown_allocates_nothing() {
    let mut sim = Sim::new(2);
    let mut allocated = 0;
    for round in 0..40 {
        for key in 0..200 {
            let txn = key % 2;
            assert!(sim.lock(txn, &format!("{key:020}"), Exclusive).got());
        }
        assert!(sim.lock(A, "shared", Shared).got());
        assert!(sim.lock(B, "shared", Shared).got());
        let records: usize = sim
            .txns
            .iter()
            .map(|txn| txn.locks.records.capacity())
            .sum();
        let now = sim.family.allocated_bytes() + records;
        assert!(round == 0 || now == allocated, "round {round}");
        allocated = now;
        sim.unlock_all(A);
        sim.unlock_all(B);
    }
    sim.end();
}

#[test]
fn a_large_stripe_gives_its_memory_back_when_it_is_empty() {
    let mut sim = Sim::new(1);
    for key in 0..100_000 {
        assert!(sim.lock(A, &format!("{key:030}"), Exclusive).got());
    }
    assert_eq!(sim.family.key_count(), 100_000);
    assert_eq!(sim.family.used_bytes(), 100_000 * (32 + 4 + 12 + 32));
    let allocated = sim.family.allocated_bytes();
    assert!(allocated >= 100_000 * (32 + 4 + 32));
    sim.unlock_all(A);
    sim.assert_empty();
    let kept = sim.family.allocated_bytes();
    assert!(kept * 4 < allocated, "{kept} of {allocated} bytes are kept");
    sim.end();
}
