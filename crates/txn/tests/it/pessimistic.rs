//! Transactions that lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use orogen_base::slice_transform::FixedPrefix;
use orogen_base::{Comparator, ErrorKind, UserComparator};
use orogen_engine::plugin::merge_operator;
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::{MemFileSystem, PowerCut};
use orogen_testkit::{Rng, tell};
use orogen_txn::lock_manager::{Endpoint, KeyRange, LockMode, TxnLockOptions};
use orogen_txn::{
    Transaction, TransactionDb, TransactionDbOptions, TransactionOptions, TransactionState,
};

fn options(fs: &MemFileSystem) -> Options {
    let mut options = Options::default();
    options.db.fs = Arc::new(fs.clone());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf.merge_operator = merge_operator::by_name("stringappend");
    options.cf.write_buffer_size = 64 << 10;
    options
}

fn open(fs: &MemFileSystem) -> TransactionDb {
    TransactionDb::open("/db", &options(fs), TransactionDbOptions::default()).expect("it opens")
}

fn new() -> (TransactionDb, ColumnFamily) {
    let db = open(&MemFileSystem::new());
    let family = db.db().default_column_family();
    (db, family)
}

/// One that waits for no lock.
fn begin(db: &TransactionDb) -> Transaction {
    let options = TransactionOptions {
        lock_timeout: Some(Duration::ZERO),
        ..TransactionOptions::default()
    };
    db.begin(options).expect("memory")
}

fn at_snapshot(txn: &Transaction) -> ReadOptions {
    ReadOptions {
        snapshot: txn.snapshot().cloned(),
        ..ReadOptions::default()
    }
}

fn now() -> ReadOptions {
    ReadOptions::default()
}

fn text(found: Option<orogen_base::PinnedValue>) -> Option<String> {
    Some(String::from_utf8(found?.to_vec()).expect("text"))
}

fn get(db: &Db, key: &[u8]) -> Option<String> {
    text(db.get(key).expect("it reads"))
}

#[test]
fn what_it_wrote_is_its_own_until_it_commits() {
    let (db, family) = new();
    let mut txn = begin(&db);
    txn.put(&family, b"a", b"1").unwrap();
    txn.merge(&family, b"a", b"2").unwrap();
    txn.delete(&family, b"b").unwrap();
    assert_eq!(
        text(txn.get(&now(), &family, b"a").unwrap()).as_deref(),
        Some("1,2")
    );
    assert_eq!(get(db.db(), b"a"), None);
    let mut iter = txn.iter(&now(), &family).unwrap();
    iter.seek_to_first();
    assert_eq!((iter.key(), iter.value()), (&b"a"[..], &b"1,2"[..]));
    drop(iter);
    assert_eq!((txn.lock_count(), txn.count()), (2, 3));
    txn.commit().unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some("1,2"));
    assert_eq!(
        (txn.state(), txn.lock_count()),
        (TransactionState::Ended, 0)
    );
    assert_eq!(
        txn.put(&family, b"a", b"x").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert!(txn.commit().is_err() && txn.rollback().is_err());
    txn.restart(TransactionOptions::default()).unwrap();
    txn.put(&family, b"a", b"x").unwrap();
    txn.rollback().unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some("1,2"));
    assert!(db.locks().lock_status().is_empty());
}

#[test]
fn who_comes_second_waits_or_is_told() {
    let (db, family) = new();
    let (mut one, mut two) = (begin(&db), begin(&db));
    one.put(&family, b"a", b"1").unwrap();
    let kind = |r: orogen_base::Result<()>| r.unwrap_err().kind();
    assert_eq!(kind(two.put(&family, b"a", b"2")), ErrorKind::LockTimeout);
    // Writes without a transaction ask for locks, too.
    let quick = TransactionDbOptions {
        default_lock_timeout: Some(Duration::ZERO),
        ..TransactionDbOptions::default()
    };
    assert_eq!(quick.locks.num_stripes, 16);
    two.put(&family, b"b", b"2").unwrap();
    two.get_for_update(&now(), &family, b"c", LockMode::Shared)
        .unwrap();
    one.get_for_update(&now(), &family, b"c", LockMode::Shared)
        .unwrap();
    assert_eq!(kind(one.put(&family, b"c", b"1")), ErrorKind::LockTimeout);
    assert_eq!(
        kind(one.delete_range(&family, b"a", b"c")),
        ErrorKind::LockTimeout
    );
    two.commit().unwrap();
    one.delete_range(&family, b"a", b"c").unwrap();
    let mut three = begin(&db);
    assert_eq!(
        kind(three.put(&family, b"bb", b"3")),
        ErrorKind::LockTimeout
    );
    three.put(&family, b"d", b"3").unwrap();
    drop(one);
    three.put(&family, b"bb", b"3").unwrap();
    three.commit().unwrap();
    assert_eq!(
        get(db.db(), b"b").as_deref(),
        Some("2"),
        "what was dropped is rolled back"
    );
    assert!(db.locks().lock_status().is_empty());
}

#[test]
fn a_deadlock_is_told_with_its_cycle() {
    let (db, family) = new();
    let patient = TransactionOptions {
        lock_timeout: None,
        ..TransactionOptions::default()
    };
    let mut one = db.begin(patient).unwrap();
    one.put(&family, b"a", b"1").unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut two = db.begin(patient).expect("memory");
            two.put(&family, b"b", b"2").expect("nobody has it");
            two.put(&family, b"a", b"2").map_err(|e| e.kind())
        });
        while db
            .locks()
            .lock_status()
            .iter()
            .all(|s| s.waiting.is_empty())
        {
            std::thread::yield_now();
        }
        let told = one.put(&family, b"b", b"1").unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Deadlock);
        let path = orogen_txn::lock_manager::DeadlockPath::of(&told).unwrap();
        assert_eq!(path.edges.len(), 2);
        // It keeps what it has until it gives up.
        one.rollback().unwrap();
        assert_eq!(waits.join().unwrap(), Ok(()));
    });
}

#[test]
fn with_a_snapshot_what_was_written_since_is_not_overwritten() {
    let (db, family) = new();
    let plain = WriteOptions::default();
    db.put(&plain, &family, b"a", b"0").unwrap();
    db.put(&plain, &family, b"flushed", b"0").unwrap();
    let mut txn = begin(&db);
    txn.set_snapshot();
    db.put(&plain, &family, b"a", b"1").unwrap();
    db.delete(&plain, &family, b"flushed").unwrap();
    let mut range = WriteBatch::new();
    range.delete_range(0, b"m", b"n");
    db.write(&plain, &mut range).unwrap();
    db.db().flush().unwrap();
    for key in [&b"a"[..], b"flushed", b"mm"] {
        let told = txn.put(&family, key, b"2").unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Busy, "{key:?}");
    }
    assert_eq!(txn.lock_count(), 0, "what is refused is not locked");
    assert_eq!(
        text(txn.get(&at_snapshot(&txn), &family, b"a").unwrap()).as_deref(),
        Some("0")
    );
    assert_eq!(
        text(txn.get(&now(), &family, b"a").unwrap()).as_deref(),
        Some("1")
    );
    txn.put(&family, b"untouched", b"2").unwrap();
    txn.clear_snapshot();
    txn.put(&family, b"a", b"2").unwrap();
    // Taken after the next lock: nothing can come between.
    txn.set_snapshot_on_next_operation();
    assert!(txn.snapshot().is_none());
    txn.get_for_update(&now(), &family, b"b", LockMode::Exclusive)
        .unwrap();
    assert!(txn.snapshot().is_some());
    txn.commit().unwrap();
}

#[test]
fn with_a_snapshot_what_was_written_since_is_not_deleted_with_its_range() {
    let plain = WriteOptions::default();
    for place in ["memtable", "table", "compacted"] {
        for what in ["put", "delete", "merge", "delete_range"] {
            let told = format!("{what} in a {place}");
            let (db, family) = new();
            for key in [b"c", b"m"] {
                db.put(&plain, &family, key, b"before").unwrap();
            }
            let mut txn = begin(&db);
            txn.set_snapshot();
            let mut theirs = WriteBatch::new();
            match what {
                "put" => theirs.put(0, b"m", b"theirs"),
                "delete" => theirs.delete(0, b"m"),
                "merge" => theirs.merge(0, b"m", b"theirs"),
                _ => theirs.delete_range(0, b"l", b"n"),
            }
            db.write(&plain, &mut theirs).unwrap();
            if place != "memtable" {
                db.db().flush().unwrap();
            }
            if place == "compacted" {
                let all = orogen_engine::CompactRangeOptions::default();
                db.db().compact_range(&all, &family, None, None).unwrap();
            }
            for (start, end) in [(b"a", b"z"), (b"m", b"z"), (b"a", b"n")] {
                let busy = txn.delete_range(&family, start, end).unwrap_err();
                assert_eq!(busy.kind(), ErrorKind::Busy, "{told}");
                assert_eq!(
                    busy.context("key").map(|k| k == "m" || k == "l"),
                    Some(true)
                );
            }
            // Nor locked, in any mode and with any kind of ends.
            let behind = if what == "delete_range" { b"l" } else { b"m" };
            for (start, end) in [
                (Endpoint::First, Endpoint::Last),
                (Endpoint::Before(b"m"), Endpoint::After(b"m")),
                (Endpoint::Before(b"a"), Endpoint::AfterPrefix(b"m")),
                (Endpoint::AfterPrefix(b"c"), Endpoint::Last),
            ] {
                for mode in [LockMode::Shared, LockMode::Exclusive] {
                    let range = KeyRange { start, end };
                    let busy = txn.lock_range(&family, &range, mode).unwrap_err();
                    assert_eq!(busy.kind(), ErrorKind::Busy, "{told} {range:?}");
                }
            }
            assert_eq!((txn.lock_count(), txn.count()), (0, 0), "{told}");
            // Beside it nothing has changed.
            let mut others = begin(&db);
            for (start, end) in [
                (Endpoint::First, Endpoint::Before(behind)),
                (Endpoint::AfterPrefix(b"n"), Endpoint::Last),
            ] {
                let range = KeyRange { start, end };
                txn.lock_range(&family, &range, LockMode::Shared).unwrap();
            }
            let told_now = others.put(&family, b"c", b"theirs").unwrap_err();
            assert_eq!(told_now.kind(), ErrorKind::LockTimeout, "{told}");
            drop(others);
            txn.delete_range(&family, b"a", b"l").unwrap();
            txn.delete_range(&family, b"n", b"z").unwrap();
            txn.clear_snapshot();
            txn.delete_range(&family, b"m", b"n").unwrap();
            txn.commit().unwrap();
            assert_eq!(
                (get(db.db(), b"c"), get(db.db(), b"m")),
                (None, None),
                "{told}"
            );
        }
    }
}

#[test]
fn a_pending_snapshot_is_taken_with_the_next_lock_in_place_of_an_older_one() {
    type Work = fn(&mut Transaction, &ColumnFamily) -> orogen_base::Result<()>;
    let works: [(&str, Work); 4] = [
        ("put", |txn, family| txn.put(family, b"k", b"ours")),
        ("get_for_update", |txn, family| {
            let found = txn.get_for_update(&now(), family, b"k", LockMode::Shared)?;
            assert_eq!(text(found).as_deref(), Some("theirs"));
            Ok(())
        }),
        ("delete_range", |txn, family| {
            txn.delete_range(family, b"j", b"l")
        }),
        ("lock_range", |txn, family| {
            let range = KeyRange::new(b"j", b"l", false);
            txn.lock_range(family, &range, LockMode::Exclusive)
        }),
    ];
    for (what, work) in works {
        let (db, family) = new();
        let mut txn = begin(&db);
        txn.set_snapshot();
        let old = txn.snapshot().unwrap().seqno();
        txn.set_snapshot_on_next_operation();
        db.put(&WriteOptions::default(), &family, b"k", b"theirs")
            .unwrap();
        assert_eq!(txn.snapshot().unwrap().seqno(), old, "{what}");
        work(&mut txn, &family).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(txn.snapshot().unwrap().seqno() > old, "{what}");
        // From then on that one counts.
        db.put(&WriteOptions::default(), &family, b"m", b"theirs")
            .unwrap();
        let busy = txn.put(&family, b"m", b"ours").unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Busy, "{what}");
        txn.commit().unwrap();
    }
}

#[test]
fn save_points_give_writes_and_locks_back() {
    let (db, family) = new();
    let mut txn = begin(&db);
    txn.put(&family, b"a", b"1").unwrap();
    txn.set_save_point();
    txn.put(&family, b"a", b"2").unwrap();
    txn.put(&family, b"b", b"2").unwrap();
    txn.set_snapshot();
    txn.rollback_to_save_point().unwrap();
    assert!(txn.snapshot().is_none());
    assert_eq!(
        text(txn.get(&now(), &family, b"a").unwrap()).as_deref(),
        Some("1")
    );
    let mut other = begin(&db);
    other.put(&family, b"b", b"3").unwrap();
    assert_eq!(
        other.put(&family, b"a", b"3").unwrap_err().kind(),
        ErrorKind::LockTimeout
    );
    assert_eq!(
        txn.rollback_to_save_point().unwrap_err().kind(),
        ErrorKind::NotFound
    );
    txn.commit().unwrap();
    other.commit().unwrap();
    assert_eq!(
        (get(db.db(), b"a"), get(db.db(), b"b")),
        (Some("1".into()), Some("3".into()))
    );
}

#[test]
fn what_is_prepared_outlives_its_process_with_its_locks() {
    let fs = MemFileSystem::new();
    let db = open(&fs);
    let family = db.db().default_column_family();
    let synced = TransactionOptions {
        lock_timeout: Some(Duration::ZERO),
        write: WriteOptions {
            sync: true,
            ..WriteOptions::default()
        },
        ..TransactionOptions::default()
    };
    for name in ["commits", "rolls back", "dropped"] {
        let mut txn = db.begin(synced).unwrap();
        assert_eq!(
            txn.prepare().unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "no name"
        );
        txn.set_name(name.as_bytes()).unwrap();
        txn.put(&family, name.as_bytes(), b"1").unwrap();
        txn.delete_range(
            &family,
            &[name.as_bytes(), b"x"].concat(),
            &[name.as_bytes(), b"y"].concat(),
        )
        .unwrap();
        txn.prepare().unwrap();
        assert!(txn.put(&family, b"more", b"1").is_err());
        if name == "dropped" {
            drop(txn);
        } else {
            std::mem::forget(txn);
        }
    }
    assert_eq!(db.prepared_transactions(), [b"dropped".to_vec()]);
    let mut other = db.begin(synced).unwrap();
    let refused = |txn: &mut Transaction, key: &[u8]| {
        txn.put(&family, key, b"2").map_err(|e| e.kind()) == Err(ErrorKind::LockTimeout)
    };
    assert!(refused(&mut other, b"dropped") && refused(&mut other, b"droppedxx"));
    let mut again = db
        .take_prepared(b"dropped", TransactionOptions::default())
        .unwrap();
    assert!(
        db.take_prepared(b"dropped", TransactionOptions::default())
            .is_err()
    );
    again.commit().unwrap();
    db.db().sync_wal().unwrap();
    assert_eq!(get(db.db(), b"dropped").as_deref(), Some("1"));
    drop(other);
    let fs = fs.crash(PowerCut::DropUnsynced);
    let db = open(&fs);
    let family = db.db().default_column_family();
    assert_eq!(
        db.prepared_transactions(),
        [b"commits".to_vec(), b"rolls back".to_vec()]
    );
    let mut other = db.begin(synced).unwrap();
    for key in [&b"commits"[..], b"rolls back", b"commitsxx"] {
        let told = other.put(&family, key, b"2").unwrap_err();
        assert_eq!(told.kind(), ErrorKind::LockTimeout);
    }
    db.take_prepared(b"commits", TransactionOptions::default())
        .unwrap()
        .commit()
        .unwrap();
    db.take_prepared(b"rolls back", TransactionOptions::default())
        .unwrap()
        .rollback()
        .unwrap();
    other.put(&family, b"rolls back", b"2").unwrap();
    other.commit().unwrap();
    assert_eq!(get(db.db(), b"commits").as_deref(), Some("1"));
    assert_eq!(get(db.db(), b"rolls back").as_deref(), Some("2"));
    assert!(db.prepared_transactions().is_empty() && db.locks().lock_status().is_empty());
}

#[test]
fn a_name_that_is_too_long_is_refused_and_another_one_is_taken() {
    let (db, family) = new();
    let mut txn = begin(&db);
    txn.put(&family, b"a", b"1").unwrap();
    let refused = txn.set_name(&[b'n'; 513]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    txn.set_name(&[b'n'; 512]).unwrap();
    txn.prepare().unwrap();
    txn.commit().unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some("1"));
}

#[test]
fn an_iterator_that_keeps_to_a_prefix_does_so_around_the_batch() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.prefix_extractor = Some(Arc::new(FixedPrefix::new(1)));
    let db = TransactionDb::open("/db", &options, TransactionDbOptions::default()).unwrap();
    let family = db.db().default_column_family();
    for key in ["a1", "a2", "a3", "b1"] {
        db.db().put(key.as_bytes(), b"1").unwrap();
    }
    let mut txn = begin(&db);
    txn.delete_range(&family, b"a2", b"b0").unwrap();
    txn.put(&family, b"a5", b"1").unwrap();
    txn.put(&family, b"b0", b"1").unwrap();
    let within = ReadOptions {
        prefix_same_as_start: true,
        ..ReadOptions::default()
    };
    let keys = |target: &str, is_forward: bool| {
        let mut iter = txn.iter(&within, &family).unwrap();
        match is_forward {
            true => iter.seek(target.as_bytes()),
            false => iter.seek_for_prev(target.as_bytes()),
        }
        let mut found = Vec::new();
        while iter.valid() {
            found.push(String::from_utf8(iter.key().to_vec()).unwrap());
            match is_forward {
                true => iter.next(),
                false => iter.prev(),
            }
        }
        found
    };
    assert_eq!(keys("a1", true), ["a1", "a5"]);
    assert_eq!(keys("a9", false), ["a5", "a1"]);
    assert_eq!(keys("b", true), ["b0", "b1"]);
    assert_eq!(keys("b9", false), ["b1", "b0"]);
}

/// Upper case and lower case are the same.
struct AnyCase;

impl Comparator for AnyCase {
    fn name(&self) -> &'static str {
        "any_case"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase())
    }
}

#[test]
fn keys_that_mean_the_same_are_one_to_an_iterator() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.comparator = UserComparator::custom(Arc::new(AnyCase));
    let db = TransactionDb::open("/db", &options, TransactionDbOptions::default()).unwrap();
    let family = db.db().default_column_family();
    for key in [b"A", b"B", b"D"] {
        db.db().put(key, b"old").unwrap();
    }
    let mut txn = begin(&db);
    txn.put(&family, b"b", b"new").unwrap();
    txn.delete_range(&family, b"a", b"b").unwrap();
    txn.delete_range(&family, b"d", b"e").unwrap();
    let pairs = |is_forward: bool| {
        let mut iter = txn.iter(&now(), &family).unwrap();
        let mut found = Vec::new();
        match is_forward {
            true => iter.seek_to_first(),
            false => iter.seek_to_last(),
        }
        // The range of "d" ends a walk that does not go on.
        while iter.valid() && found.len() < 10 {
            found.push((iter.key().to_vec(), iter.value().to_vec()));
            match is_forward {
                true => iter.next(),
                false => iter.prev(),
            }
        }
        found
    };
    let all = vec![(b"b".to_vec(), b"new".to_vec())];
    assert_eq!(pairs(true), all);
    assert_eq!(pairs(false), all);
}

#[test]
fn a_family_that_was_dropped_keeps_nobody_from_opening() {
    let fs = MemFileSystem::new();
    let db = open(&fs);
    let family = db.db().default_column_family();
    let side = db
        .db()
        .create_column_family("side", options(&fs).cf)
        .unwrap();
    let mut txn = begin(&db);
    txn.set_name(b"t").unwrap();
    txn.put(&family, b"a", b"1").unwrap();
    txn.put(&side, b"s", b"1").unwrap();
    txn.prepare().unwrap();
    db.db().drop_column_family(&side).unwrap();
    drop((txn, side, family, db));
    let db = open(&fs);
    let family = db.db().default_column_family();
    let told = begin(&db).put(&family, b"a", b"2").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::LockTimeout);
    db.take_prepared(b"t", TransactionOptions::default())
        .unwrap()
        .commit()
        .unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some("1"));
}

#[test]
fn a_key_that_came_and_went_since_the_snapshot_is_noticed_after_a_flush() {
    for level in ["memtable", "level 0", "below"] {
        let (db, family) = new();
        let mut txn = begin(&db);
        txn.set_snapshot();
        db.db().put(b"k", b"1").unwrap();
        if level == "below" {
            db.db().flush().unwrap();
        }
        let mut gone = WriteBatch::new();
        gone.single_delete(0, b"k");
        db.write(&WriteOptions::default(), &mut gone).unwrap();
        if level != "memtable" {
            db.db().flush().unwrap();
        }
        if level == "below" {
            let all = orogen_engine::CompactRangeOptions::default();
            db.db().compact_range(&all, &family, None, None).unwrap();
        }
        let told = txn.put(&family, b"k", b"2").unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Busy, "{level}");
        // Nobody asks any more: nothing of it is kept.
        drop(txn);
        let force = orogen_engine::CompactRangeOptions {
            bottommost_level_compaction: orogen_engine::BottommostLevelCompaction::Force,
            ..Default::default()
        };
        db.db().compact_range(&force, &family, None, None).unwrap();
        assert!(db.db().live_files().is_empty(), "{level}");
    }
}

#[test]
fn one_that_is_expired_cannot_commit_and_loses_its_locks() {
    let (db, family) = new();
    let short = TransactionOptions {
        locks: TxnLockOptions {
            expiration_micros: Some(0),
            ..TxnLockOptions::default()
        },
        ..TransactionOptions::default()
    };
    let mut txn = db.begin(short).unwrap();
    let first = txn.put(&family, b"a", b"1");
    let mut other = begin(&db);
    other.put(&family, b"a", b"2").unwrap();
    other.commit().unwrap();
    assert!(first.is_err() || txn.commit().unwrap_err().kind() == ErrorKind::Expired);
    txn.rollback().unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some("2"));
}

const ACCOUNTS: u64 = 20;
const EACH: u64 = 100;

fn account(n: u64) -> Vec<u8> {
    format!("account{n:02}").into_bytes()
}

fn amount(found: Option<orogen_base::PinnedValue>) -> u64 {
    text(found).and_then(|t| t.parse().ok()).expect("a number")
}

/// Moves money; false if it has to be tried again.
fn transfer(txn: &mut Transaction, family: &ColumnFamily, rng: &mut Rng, how: u64) -> bool {
    let (from, to) = (account(rng.below(ACCOUNTS)), account(rng.below(ACCOUNTS)));
    if from == to {
        return txn.rollback().is_ok();
    }
    let mut work = || -> orogen_base::Result<()> {
        let read = |txn: &mut Transaction, key: &[u8]| match how {
            // Locked first, and read as it is then.
            0 => txn
                .get_for_update(&now(), family, key, LockMode::Exclusive)
                .map(amount),
            // Read at a snapshot; the write is refused if that is not what is overwritten.
            _ => {
                let at = at_snapshot(txn);
                txn.get(&at, family, key).map(amount)
            }
        };
        if how == 1 {
            txn.set_snapshot();
        }
        let (a, b) = (read(txn, &from)?, read(txn, &to)?);
        let moved = a.min(7);
        txn.put(family, &from, (a - moved).to_string().as_bytes())?;
        txn.put(family, &to, (b + moved).to_string().as_bytes())?;
        txn.commit()
    };
    match work() {
        Ok(()) => true,
        Err(e) => {
            let kinds = [ErrorKind::Deadlock, ErrorKind::Busy, ErrorKind::LockTimeout];
            assert!(kinds.contains(&e.kind()), "{e}");
            txn.rollback().expect("it has not ended");
            false
        }
    }
}

#[test]
fn money_is_neither_made_nor_lost() {
    for how in 0..2 {
        let (db, family) = new();
        for n in 0..ACCOUNTS {
            db.put(
                &WriteOptions::default(),
                &family,
                &account(n),
                EACH.to_string().as_bytes(),
            )
            .unwrap();
        }
        let (stop, done, failed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let sum = |snapshot| {
            let at = ReadOptions {
                snapshot,
                ..ReadOptions::default()
            };
            let accounts = (0..ACCOUNTS).map(account);
            accounts
                .map(|a| amount(db.db().get_opt(&at, &family, &a).expect("reads")))
                .sum::<u64>()
        };
        std::thread::scope(|scope| {
            for t in 0..4 {
                let (db, family, stop, done, failed) = (&db, &family, &stop, &done, &failed);
                scope.spawn(move || {
                    let mut rng = Rng::new(t);
                    let mut txn = db.begin(TransactionOptions::default()).expect("memory");
                    while !stop.load(Ordering::Relaxed) {
                        let counter = if transfer(&mut txn, family, &mut rng, how) {
                            done
                        } else {
                            failed
                        };
                        counter.fetch_add(1, Ordering::Relaxed);
                        txn.restart(TransactionOptions::default())
                            .expect("it has ended");
                    }
                });
            }
            while done.load(Ordering::Relaxed) < 3000 {
                assert_eq!(sum(Some(db.db().snapshot())), ACCOUNTS * EACH);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(sum(None), ACCOUNTS * EACH);
        assert!(db.locks().lock_status().is_empty());
        let by = if how == 0 { "locks" } else { "snapshots" };
        tell(format_args!(
            "bank by {by}: {done:?} transfers, {failed:?} tried again, no money made or lost"
        ));
    }
}

#[test]
fn write_skew_happens_under_snapshots_and_not_under_locks_of_all_that_is_read() {
    let (db, family) = new();
    for key in [b"a", b"b"] {
        db.put(&WriteOptions::default(), &family, key, b"on")
            .unwrap();
    }
    // Each turns its own off if the other is on.
    let (mut one, mut two) = (begin(&db), begin(&db));
    one.set_snapshot();
    two.set_snapshot();
    assert_eq!(
        text(one.get(&at_snapshot(&one), &family, b"b").unwrap()).as_deref(),
        Some("on")
    );
    assert_eq!(
        text(two.get(&at_snapshot(&two), &family, b"a").unwrap()).as_deref(),
        Some("on")
    );
    one.put(&family, b"a", b"off").unwrap();
    two.put(&family, b"b", b"off").unwrap();
    one.commit().unwrap();
    two.commit().unwrap();
    assert_eq!(
        (get(db.db(), b"a"), get(db.db(), b"b")),
        (Some("off".into()), Some("off".into()))
    );
    let (mut one, mut two) = (begin(&db), begin(&db));
    one.get_for_update(&now(), &family, b"b", LockMode::Shared)
        .unwrap();
    two.get_for_update(&now(), &family, b"a", LockMode::Shared)
        .unwrap();
    assert_eq!(
        one.put(&family, b"a", b"1").unwrap_err().kind(),
        ErrorKind::LockTimeout
    );
    assert_eq!(
        two.put(&family, b"b", b"1").unwrap_err().kind(),
        ErrorKind::LockTimeout
    );
}

#[test]
fn a_locked_range_has_no_phantoms() {
    let (db, family) = new();
    let mut reader = begin(&db);
    let range = KeyRange::new(&b"a"[..], &b"c"[..], false);
    reader
        .lock_range(&family, &range, LockMode::Shared)
        .unwrap();
    let mut writer = begin(&db);
    assert_eq!(
        writer.put(&family, b"b", b"1").unwrap_err().kind(),
        ErrorKind::LockTimeout
    );
    writer.put(&family, b"c", b"1").unwrap();
    let mut second = begin(&db);
    second
        .lock_range(&family, &range, LockMode::Shared)
        .unwrap();
    drop((reader, second));
    writer.put(&family, b"b", b"1").unwrap();
    writer.commit().unwrap();
}

#[test]
fn what_is_asked_of_one_that_has_ended_is_refused_and_nothing_of_the_next() {
    let (db, family) = new();
    let mut txn = begin(&db);
    txn.put(&family, b"k", b"1").unwrap();
    txn.commit().unwrap();
    let told = txn.delete_range(&family, b"a", b"a").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::InvalidArgument);
    txn.set_snapshot();
    txn.set_save_point();
    txn.restart(TransactionOptions::default()).unwrap();
    assert_eq!(txn.count(), 0);
    assert!(txn.snapshot().is_none());
    assert!(txn.rollback_to_save_point().is_err());
}

#[test]
fn one_whose_prepare_is_refused_expires_as_before() {
    let (db, family) = new();
    let mut first = begin(&db);
    first.set_name(b"used").unwrap();
    first.put(&family, b"a", b"1").unwrap();
    first.prepare().unwrap();
    let mut txn = db
        .begin(TransactionOptions {
            locks: TxnLockOptions {
                expiration_micros: Some(200_000),
                ..TxnLockOptions::default()
            },
            ..TransactionOptions::default()
        })
        .unwrap();
    txn.set_name(b"used").unwrap();
    txn.put(&family, b"k", b"1").unwrap();
    assert!(txn.prepare().is_err());
    // Waits until it is over.
    let mut other = db
        .begin(TransactionOptions {
            lock_timeout: None,
            ..TransactionOptions::default()
        })
        .unwrap();
    other.put(&family, b"k", b"2").unwrap();
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Expired);
    other.commit().unwrap();
    first.rollback().unwrap();
}

#[test]
fn values_in_blob_files_are_read_although_they_need_not_be_prepared() {
    let mut options = options(&MemFileSystem::new());
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 10;
    let db = TransactionDb::open("/db", &options, TransactionDbOptions::default()).unwrap();
    let family = db.db().default_column_family();
    db.db().put(b"a", &[b'v'; 500]).unwrap();
    db.db().put(b"b", &[b'v'; 500]).unwrap();
    db.db().flush().unwrap();
    let mut txn = begin(&db);
    txn.merge(&family, b"b", b"more").unwrap();
    let unprepared = ReadOptions {
        allow_unprepared_value: true,
        ..ReadOptions::default()
    };
    let mut iter = txn.iter(&unprepared, &family).unwrap();
    iter.seek_to_first();
    assert_eq!(iter.value(), [b'v'; 500]);
    iter.next();
    assert!(iter.value().ends_with(b"v,more"));
    iter.next();
    assert!(!iter.valid());
    iter.status().unwrap();
}

#[test]
fn prepared_writes_that_share_a_key_are_told_at_once() {
    let fs = MemFileSystem::new();
    let db = Db::open("/db", &options(&fs)).unwrap();
    for name in [b"t1", b"t2"] {
        let mut batch = WriteBatch::new();
        batch.put(0, b"a", b"1");
        db.prepare(&WriteOptions::default(), name, batch).unwrap();
    }
    let again = db.clone();
    let told = TransactionDb::new(again, TransactionDbOptions::default())
        .map(drop)
        .unwrap_err();
    assert_eq!(told.kind(), ErrorKind::InvalidArgument, "{told}");
    assert_eq!(told.context("name"), Some("t2"));
    db.rollback_prepared(&WriteOptions::default(), b"t1")
        .unwrap();
    let db = TransactionDb::new(db, TransactionDbOptions::default()).unwrap();
    assert_eq!(db.prepared_transactions().len(), 1);
}

/// Panics once when it is armed.
struct Fused(AtomicBool);

impl Comparator for Fused {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> std::cmp::Ordering {
        assert!(!self.0.swap(false, Ordering::SeqCst), "on purpose");
        a.cmp(b)
    }
}

/// The lock is handed over, and then it is looked whether a range that waits may have it, too.
#[test]
fn who_was_granted_a_lock_is_woken_though_a_comparator_panics_then() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    let fuse = Arc::new(Fused(AtomicBool::new(false)));
    options.cf.comparator = UserComparator::custom(fuse.clone());
    let db = TransactionDb::open("/db", &options, TransactionDbOptions::default()).unwrap();
    let db = Arc::new(db);
    let family = db.db().default_column_family();
    let patient = TransactionOptions {
        lock_timeout: None,
        ..TransactionOptions::default()
    };
    let mut one = db.begin(patient).unwrap();
    one.put(&family, b"k", b"1").unwrap();
    let waiting = |count: usize| {
        let waits = || {
            let all = db.locks().lock_status();
            all.iter().map(|s| s.waiting.len()).sum::<usize>()
        };
        while waits() < count {
            std::thread::yield_now();
        }
    };
    // Not joined: one that is not woken must not keep the test from failing.
    let (tell, told) = std::sync::mpsc::channel();
    let (theirs, of_them) = (db.clone(), family.clone());
    std::thread::Builder::new()
        .spawn(move || {
            let mut two = theirs.begin(patient).expect("memory");
            let locked = two.put(&of_them, b"k", b"2").is_ok();
            let _ = tell.send(locked);
        })
        .unwrap();
    waiting(1);
    let (theirs, of_them) = (db.clone(), family);
    std::thread::Builder::new()
        .spawn(move || {
            let mut three = theirs.begin(patient).expect("memory");
            let range = KeyRange {
                start: Endpoint::Before(b"a"),
                end: Endpoint::Before(b"z"),
            };
            let _ = three.lock_range(&of_them, &range, LockMode::Exclusive);
        })
        .unwrap();
    waiting(2);
    fuse.0.store(true, Ordering::SeqCst);
    let rolled_back = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one.rollback()));
    assert!(rolled_back.is_err(), "somebody compared");
    let locked = told.recv_timeout(Duration::from_secs(20));
    assert_eq!(locked, Ok(true));
}

#[test]
fn families_of_another_database_are_refused() {
    let (db, _) = new();
    let (other, _) = new();
    let own = db
        .db()
        .create_column_family("users", options(&MemFileSystem::new()).cf)
        .unwrap();
    let theirs = other
        .db()
        .create_column_family("orders", options(&MemFileSystem::new()).cf)
        .unwrap();
    assert_eq!(own.id(), theirs.id());
    let mut txn = begin(&db);
    txn.put(&own, b"k", b"v").unwrap();
    let range = KeyRange::new(b"a", b"b", false);
    let refused = [
        txn.put(&theirs, b"k", b"w"),
        txn.merge(&theirs, b"k", b"w"),
        txn.delete(&theirs, b"k"),
        txn.single_delete(&theirs, b"k"),
        txn.delete_range(&theirs, b"a", b"b"),
        txn.delete_range(&theirs, b"b", b"a"),
        txn.lock_range(&theirs, &range, LockMode::Shared),
        txn.get(&now(), &theirs, b"k").map(drop),
        txn.iter(&now(), &theirs).map(drop),
        db.put(&WriteOptions::default(), &theirs, b"k", b"w"),
        db.delete(&WriteOptions::default(), &theirs, b"k"),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        let kind = refused.expect_err("it is another's").kind();
        assert_eq!(kind, ErrorKind::InvalidArgument, "{at}");
    }
    assert_eq!((txn.count(), txn.lock_count()), (1, 1));
    txn.commit().unwrap();
}

/// Prepares a write of `key` under a name.
fn prepared(db: &TransactionDb, name: &[u8], key: &[u8]) -> Transaction {
    let mut txn = begin(db);
    txn.set_name(name).expect("a new name");
    let family = db.db().default_column_family();
    txn.put(&family, key, b"v").expect("it is free");
    txn.prepare().expect("it is prepared");
    txn
}

#[test]
fn what_was_prepared_and_ended_by_way_of_the_database_lets_its_locks_go() {
    let (db, family) = new();
    let write = WriteOptions::default();
    let mut txn = prepared(&db, b"x", b"a");
    db.db().commit_prepared(&write, b"x").unwrap();
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(txn.state(), TransactionState::Ended);
    begin(&db).put(&family, b"a", b"w").unwrap();
    // In nobody's hands when it is ended.
    drop(prepared(&db, b"y", b"b"));
    db.db().rollback_prepared(&write, b"y").unwrap();
    begin(&db).put(&family, b"b", b"w").unwrap_err();
    let mut txn = db
        .take_prepared(b"y", TransactionOptions::default())
        .unwrap();
    assert_eq!(txn.rollback().unwrap_err().kind(), ErrorKind::NotFound);
    begin(&db).put(&family, b"b", b"w").unwrap();
    assert!(db.prepared_transactions().is_empty());
}

#[test]
fn what_is_prepared_keeps_its_locks_whatever_had_its_name_before() {
    let (db, family) = new();
    let first = prepared(&db, b"x", b"a");
    let write = WriteOptions::default();
    db.db().rollback_prepared(&write, b"x").unwrap();
    drop(prepared(&db, b"x", b"b"));
    drop(first);
    begin(&db).put(&family, b"b", b"w").unwrap_err();
}

#[test]
fn whose_name_is_used_may_get_another_one() {
    let (db, family) = new();
    let first = prepared(&db, b"x", b"a");
    let mut txn = begin(&db);
    txn.set_name(b"x").unwrap();
    txn.put(&family, b"b", b"v").unwrap();
    assert_eq!(
        txn.prepare().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(txn.name(), None);
    txn.set_name(b"y").unwrap();
    txn.prepare().unwrap();
    txn.commit().unwrap();
    assert!(db.db().get(b"a").unwrap().is_none());
    drop(first);
}
