//! Models of two or three threads and a lock or two, under every schedule with few preemptions.

use orogen_base::Result;
use orogen_base::sync::{explore_all, must_find_in_all};

use super::*;

/// Long enough to be over at the next look at the clock.
const SOON: Option<Duration> = Some(Duration::from_micros(1));
const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

/// Locks a key alone for some steps.
fn use_key(world: &World, txn: &mut TxnLocks, key: &[u8]) {
    world.lock(txn, key, Exclusive).unwrap();
    world.use_it(Exclusive);
    world.manager.unlock_all(txn);
}

fn lock_range(
    world: &World,
    txn: &mut TxnLocks,
    range: &KeyRange<&[u8]>,
    timeout: Option<Duration>,
) -> Result<Locked> {
    let (manager, family) = (&world.manager, &world.family);
    manager.try_lock_range(txn, family, range, Exclusive, timeout)
}

/// A lock that this one was told to have is its own, and what it was refused is not.
fn check_answer(world: &World, txn: &mut TxnLocks, told: &Result<Locked>, kind: ErrorKind) {
    match told {
        Ok(_) => {
            world.use_it(Exclusive);
            assert_eq!(txn.len(), 1);
            world.manager.unlock_all(txn);
        }
        Err(e) => {
            assert_eq!(e.kind(), kind);
            assert!(txn.is_empty());
        }
    }
}

/// Two lock a key exclusively.
fn one_key() {
    let world = World::new();
    let theirs = world.clone();
    let other = start(move || use_key(&theirs, &mut theirs.begin(), b"k"));
    use_key(&world, &mut world.begin(), b"k");
    other.join().unwrap();
    world.assert_empty();
}

/// Of two that share a key one makes its lock exclusive, while the other goes and comes back.
fn upgrade() {
    let world = World::new();
    let (mut a, mut b) = (world.begin(), world.begin());
    world.lock(&mut a, b"k", Shared).unwrap();
    world.lock(&mut b, b"k", Shared).unwrap();
    let theirs = world.clone();
    let other = start(move || {
        theirs.manager.unlock_all(&mut b);
        use_key(&theirs, &mut b, b"k");
    });
    let locked = world.lock(&mut a, b"k", Exclusive).unwrap();
    assert_eq!(locked, Locked::Upgraded);
    world.use_it(Exclusive);
    world.manager.unlock_all(&mut a);
    other.join().unwrap();
    world.assert_empty();
}

/// Two that share a key want it alone: just one is told.
fn two_upgrades() {
    let world = World::new();
    let (mut a, mut b) = (world.begin(), world.begin());
    world.lock(&mut a, b"k", Shared).unwrap();
    world.lock(&mut b, b"k", Shared).unwrap();
    let theirs = world.clone();
    let other = start(move || told(&theirs, b, b"k", Exclusive));
    let first = told(&world, a, b"k", Exclusive);
    let second = other.join().unwrap();
    assert!(first != second, "told: {first} {second}");
    world.assert_empty();
}

/// A lock is let go while the time of one that waits for it ends.
fn time_is_over() {
    let world = World::new();
    let mut first = world.begin();
    world.lock(&mut first, b"k", Exclusive).unwrap();
    let theirs = world.clone();
    let other = start(move || {
        let mut txn = theirs.begin();
        let (manager, family) = (&theirs.manager, &theirs.family);
        let asked = manager.try_lock(&mut txn, family, b"k", Exclusive, SOON);
        check_answer(&theirs, &mut txn, &asked, ErrorKind::LockTimeout);
        txn
    });
    world.use_it(Exclusive);
    world.manager.unlock_all(&mut first);
    let kept = other.join().unwrap();
    // Nobody has it: not the one that was told so, either.
    let (manager, family) = (&world.manager, &world.family);
    let now = manager.try_lock(&mut first, family, b"k", Exclusive, NO_WAIT);
    assert_eq!(now.unwrap(), Locked::New);
    drop((first, kept));
    world.assert_empty();
}

/// The same with one behind it that has time.
fn time_is_over_before_another() {
    let world = World::new();
    let mut first = world.begin();
    world.lock(&mut first, b"k", Exclusive).unwrap();
    let theirs = world.clone();
    let hurried = start(move || {
        let mut txn = theirs.begin();
        let (manager, family) = (&theirs.manager, &theirs.family);
        let asked = manager.try_lock(&mut txn, family, b"k", Exclusive, SOON);
        check_answer(&theirs, &mut txn, &asked, ErrorKind::LockTimeout);
    });
    let theirs = world.clone();
    let patient = start(move || use_key(&theirs, &mut theirs.begin(), b"k"));
    world.use_it(Exclusive);
    drop(first);
    hurried.join().unwrap();
    patient.join().unwrap();
    world.assert_empty();
}

/// The time for a range ends while a key in it is let go.
fn time_for_a_range_is_over() {
    let world = World::new();
    let mut first = world.begin();
    world.lock(&mut first, b"b", Exclusive).unwrap();
    let theirs = world.clone();
    let other = start(move || {
        let mut txn = theirs.begin();
        let range = KeyRange::new(&b"a"[..], b"c", false);
        let asked = lock_range(&theirs, &mut txn, &range, SOON);
        check_answer(&theirs, &mut txn, &asked, ErrorKind::LockTimeout);
    });
    world.use_it(Exclusive);
    world.manager.unlock_all(&mut first);
    other.join().unwrap();
    world.assert_empty();
}

/// A wait is cancelled while it is granted: whoever cancels knows which it was.
fn cancel() {
    let world = World::new();
    let mut first = world.begin();
    world.lock(&mut first, b"k", Exclusive).unwrap();
    let mut txn = world.begin();
    let id = txn.id();
    let theirs = world.clone();
    let other = start(move || {
        let asked = theirs.lock(&mut txn, b"k", Exclusive);
        check_answer(&theirs, &mut txn, &asked, ErrorKind::Aborted);
        asked.is_err()
    });
    let cancelled = world.manager.cancel(id);
    world.manager.unlock_all(&mut first);
    assert_eq!(other.join().unwrap(), cancelled);
    world.assert_empty();
}

/// One locks a range, one a key in it.
fn range_and_key() {
    let world = World::new();
    let theirs = world.clone();
    let other = start(move || use_key(&theirs, &mut theirs.begin(), b"b"));
    let mut txn = world.begin();
    lock_range(
        &world,
        &mut txn,
        &KeyRange::new(&b"a"[..], b"c", false),
        None,
    )
    .unwrap();
    world.use_it(Exclusive);
    world.manager.unlock_all(&mut txn);
    other.join().unwrap();
    world.assert_empty();
}

/// There may be one lock in all, and two ask for a key of their own: one is refused at most, and as long as the other has its lock.
fn limit() {
    let world = World::with(LockManagerOptions {
        max_num_locks: Some(1),
        ..LockManagerOptions::default()
    });
    let ask = |world: &World, key: &[u8]| {
        let mut txn = world.begin();
        let asked = world.lock(&mut txn, key, Exclusive);
        // While one has its lock no other can be had: of any key.
        check_answer(world, &mut txn, &asked, ErrorKind::LockLimit);
        asked.is_ok()
    };
    let theirs = world.clone();
    let other = start(move || ask(&theirs, b"a"));
    let first = ask(&world, b"b");
    assert!(
        other.join().unwrap() || first,
        "each was refused for the other"
    );
    world.assert_empty();
}

macro_rules! models {
    ($($name:ident up to $preemptions:literal)*) => {
        mod always_holds {
            $(#[test] fn $name() {
                super::explore_all(concat!("locks/all/", stringify!($name)), $preemptions, super::$name);
            })*
        }
    };
}

models! {
    one_key up to 3
    upgrade up to 2
    two_upgrades up to 2
    deadlock up to 2
    time_is_over up to 3
    time_is_over_before_another up to 1
    time_for_a_range_is_over up to 2
    cancel up to 4
    range_and_key up to 2
    crossing up to 2
    limit up to 3
}

#[test]
fn all_that_the_small_ones_are_about_is_found() {
    let models: [(Mistake, fn()); 5] = [
        (Mistake::KeepForNobody, one_key),
        (Mistake::LookBeforeRelease, one_key),
        (Mistake::SearchUnlisted, deadlock),
        (Mistake::CountRangeLate, range_and_key),
        (Mistake::GiveUpBlindly, time_is_over),
    ];
    for (mistake, model) in models {
        must_find_in_all(mistake, 2, model);
    }
}
