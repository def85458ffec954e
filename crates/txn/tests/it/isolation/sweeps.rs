//! Ranges that are deleted while others write to them: what was counted there is in the sweepers' pots or still in the range.
//!
//! A sweeper reads a range at its snapshot, deletes it, and adds what it read to its pot; others add to keys of the range
//! meanwhile. What somebody adds behind the snapshot and before the deletion would be gone for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::{ErrorKind, PinnedValue, Result};
use orogen_engine::{ColumnFamily, Options, ReadOptions};
use orogen_env::MemFileSystem;
use orogen_testkit::{Rng, tell};

use super::either::{EitherDb, EitherTxn};

const KEYS: u64 = 40;
const SWEEPERS: u64 = 2;
const ADDERS: u64 = 2;
const TXNS_PER_THREAD: u64 = 250;

fn key(n: u64) -> Vec<u8> {
    format!("coin{n:02}").into_bytes()
}

fn pot(sweeper: u64) -> Vec<u8> {
    format!("pot{sweeper}").into_bytes()
}

fn amount(found: Option<PinnedValue>) -> u64 {
    found.map_or(0, |value| number(&value))
}

fn number(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).expect("text");
    text.parse().expect("a number")
}

fn reads(txn: &EitherTxn) -> ReadOptions {
    ReadOptions {
        snapshot: txn.snapshot().cloned(),
        ..ReadOptions::default()
    }
}

fn add(txn: &mut EitherTxn, family: &ColumnFamily, rng: &mut Rng) -> Result<()> {
    for _ in 0..1 + rng.below(3) {
        let key = key(rng.below(KEYS));
        let before = amount(txn.get(&reads(txn), family, &key)?);
        txn.put(family, &key, (before + 1).to_string().as_bytes())?;
        std::thread::yield_now();
    }
    txn.commit()
}

fn sweep(txn: &mut EitherTxn, family: &ColumnFamily, rng: &mut Rng, own: u64) -> Result<()> {
    let first = rng.below(KEYS);
    let (start, end) = (key(first), key(first + 1 + rng.below(KEYS - first)));
    let range = ReadOptions {
        iterate_lower_bound: Some(start.clone()),
        iterate_upper_bound: Some(end.clone()),
        ..reads(txn)
    };
    let mut sum = 0;
    let mut iter = txn.iter(&range, family)?;
    iter.seek_to_first();
    while iter.valid() {
        sum += number(iter.value());
        iter.next();
    }
    iter.status()?;
    drop(iter);
    std::thread::yield_now();
    txn.delete_range(family, &start, &end)?;
    std::thread::yield_now();
    let pot = pot(own);
    let before = amount(txn.get(&reads(txn), family, &pot)?);
    txn.put(family, &pot, (before + sum).to_string().as_bytes())?;
    txn.commit()
}

/// Transfers that were done, and those that were refused.
fn run(is_optimistic: bool, seed: u64) -> (u64, u64) {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf.write_buffer_size = 64 << 10;
    let db = EitherDb::open(is_optimistic, &options, None).expect("opens");
    let family = db.db().default_column_family();
    let (added, done, refused) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for t in 0..SWEEPERS + ADDERS {
            let (db, family) = (&db, &family);
            let (added, done, refused) = (&added, &done, &refused);
            scope.spawn(move || {
                let mut rng = Rng::new(seed * 100 + t);
                for n in 0..TXNS_PER_THREAD {
                    if t == 0 && n % 50 == 25 {
                        db.db().flush().expect("it flushes");
                    }
                    let mut txn = db.begin(true).expect("memory");
                    let worked = if t < SWEEPERS {
                        sweep(&mut txn, family, &mut rng, t)
                    } else {
                        let before = rng.clone();
                        let worked = add(&mut txn, family, &mut rng);
                        if worked.is_ok() {
                            let mut again = before;
                            added.fetch_add(1 + again.below(3), Ordering::Relaxed);
                        }
                        worked
                    };
                    match worked {
                        Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                        Err(e) => {
                            let kinds = [ErrorKind::Busy, ErrorKind::Deadlock];
                            assert!(kinds.contains(&e.kind()), "{e}");
                            txn.rollback().expect("it has not ended");
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
    });
    let held = |key: Vec<u8>| amount(db.db().get(&key).expect("it reads"));
    let in_range: u64 = (0..KEYS).map(key).map(held).sum();
    let in_pots: u64 = (0..SWEEPERS).map(pot).map(held).sum();
    assert_eq!(
        in_range + in_pots,
        added.into_inner(),
        "seed {seed}, optimistic: {is_optimistic}"
    );
    (done.into_inner(), refused.into_inner())
}

#[test]
fn what_is_swept_is_neither_lost_nor_kept_twice() {
    for is_optimistic in [false, true] {
        let (mut done, mut refused) = (0, 0);
        for seed in 0..4 {
            let (d, r) = run(is_optimistic, Rng::seed_or(1) + seed);
            (done, refused) = (done + d, refused + r);
        }
        tell(format_args!(
            "sweeps of ranges, optimistic {is_optimistic}: {done} transactions, {refused} refused, nothing lost"
        ));
        assert!(done > 200 && refused > 20, "{done} {refused}");
    }
}
