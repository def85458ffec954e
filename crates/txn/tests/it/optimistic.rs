//! Transactions that look at their end whether they may write.

use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_engine::plugin::merge_operator;
use orogen_engine::{
    BottommostLevelCompaction, ColumnFamily, CompactRangeOptions, Db, Options, ReadOptions,
    WriteBatch,
};
use orogen_engine::{Snapshot, WriteOptions};
use orogen_env::MemFileSystem;
use orogen_testkit::Rng;
use orogen_txn::{
    OptimisticTransaction, OptimisticTransactionDb, OptimisticTransactionDbOptions,
    OptimisticTransactionOptions,
};

fn new() -> (OptimisticTransactionDb, ColumnFamily) {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf.merge_operator = merge_operator::by_name("stringappend");
    options.cf.write_buffer_size = 64 << 10;
    let own = OptimisticTransactionDbOptions::default();
    let db = OptimisticTransactionDb::open("/db", &options, own).expect("it opens");
    let family = db.db().default_column_family();
    (db, family)
}

fn begin(db: &OptimisticTransactionDb) -> OptimisticTransaction {
    db.begin(OptimisticTransactionOptions::default())
        .expect("memory")
}

fn at(snapshot: Option<&Snapshot>) -> ReadOptions {
    ReadOptions {
        snapshot: snapshot.cloned(),
        ..ReadOptions::default()
    }
}

fn get(db: &Db, key: &[u8]) -> Option<Vec<u8>> {
    db.get(key).expect("it reads").map(|v| v.to_vec())
}

fn put(db: &OptimisticTransactionDb, family: &ColumnFamily, key: &[u8], value: &[u8]) {
    db.put(&WriteOptions::default(), family, key, value)
        .expect("nobody is in the way");
}

fn is_busy(txn: &mut OptimisticTransaction) -> bool {
    match txn.commit() {
        Ok(()) => false,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
            true
        }
    }
}

#[test]
fn it_sees_its_own_writes_and_others_see_them_at_its_end() {
    let (db, family) = new();
    put(&db, &family, b"a", b"0");
    put(&db, &family, b"r", b"0");
    let mut txn = begin(&db);
    txn.put(&family, b"a", b"1").unwrap();
    txn.merge(&family, b"a", b"2").unwrap();
    txn.put(&family, b"b", b"1").unwrap();
    txn.delete(&family, b"b").unwrap();
    txn.delete_range(&family, b"q", b"s").unwrap();
    let now = ReadOptions::default();
    let read =
        |txn: &OptimisticTransaction, key| txn.get(&now, &family, key).unwrap().map(|v| v.to_vec());
    assert_eq!(read(&txn, b"a").as_deref(), Some(&b"1,2"[..]));
    assert_eq!((read(&txn, b"b"), read(&txn, b"r")), (None, None));
    let mut iter = txn.iter(&now, &family).unwrap();
    iter.seek_to_first();
    assert!(iter.valid() && iter.key() == b"a");
    iter.next();
    assert!(!iter.valid());
    drop(iter);
    assert_eq!(get(db.db(), b"a").as_deref(), Some(&b"0"[..]));
    assert_eq!((txn.tracked_count(), txn.count()), (2, 5));
    txn.commit().unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some(&b"1,2"[..]));
    assert_eq!((get(db.db(), b"b"), get(db.db(), b"r")), (None, None));
    // It is over, and can be begun anew.
    let ended = txn.put(&family, b"a", b"3").unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::InvalidArgument);
    assert!(txn.commit().is_err() && txn.rollback().is_err());
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    assert_eq!((txn.tracked_count(), txn.count()), (0, 0));
    txn.put(&family, b"a", b"3").unwrap();
    txn.rollback().unwrap();
    assert_eq!(get(db.db(), b"a").as_deref(), Some(&b"1,2"[..]));
}

/// What others may do to a key between a note and the commit; false: nothing.
type Meanwhile = (&'static str, fn(&OptimisticTransactionDb, &ColumnFamily));

const MEANWHILE: [Meanwhile; 8] = [
    ("put", |db, family| put(db, family, b"k", b"theirs")),
    ("delete", |db, family| {
        db.delete(&WriteOptions::default(), family, b"k")
            .expect("nobody is in the way");
    }),
    ("delete_range", |db, _| {
        let mut batch = WriteBatch::new();
        batch.delete_range(0, b"a", b"z");
        db.write(&WriteOptions::default(), &mut batch)
            .expect("nobody is in the way");
    }),
    ("merge", |db, _| {
        let mut batch = WriteBatch::new();
        batch.merge(0, b"k", b"theirs");
        db.write(&WriteOptions::default(), &mut batch)
            .expect("nobody is in the way");
    }),
    ("put and flush", |db, family| {
        put(db, family, b"k", b"theirs");
        db.db().flush().expect("nobody is in the way");
    }),
    ("put and compaction", |db, family| {
        put(db, family, b"k", b"theirs");
        db.db().flush().expect("nobody is in the way");
        let all = CompactRangeOptions::default();
        db.db()
            .compact_range(&all, family, None, None)
            .expect("nobody is in the way");
    }),
    ("delete and compactions", |db, family| {
        put(db, family, b"a", b"1");
        db.delete(&WriteOptions::default(), family, b"k")
            .expect("nobody is in the way");
        put(db, family, b"z", b"1");
        db.db().flush().expect("nobody is in the way");
        let force = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        for _ in 0..2 {
            db.db()
                .compact_range(&force, family, None, None)
                .expect("nobody is in the way");
        }
    }),
    ("came and went", |db, family| {
        put(db, family, b"k", b"theirs");
        let mut batch = WriteBatch::new();
        batch.single_delete(0, b"k");
        db.write(&WriteOptions::default(), &mut batch)
            .expect("nobody is in the way");
        db.db().flush().expect("nobody is in the way");
        let all = CompactRangeOptions::default();
        db.db()
            .compact_range(&all, family, None, None)
            .expect("nobody is in the way");
    }),
];

/// How a transaction comes to go by a key.
type Note = (
    &'static str,
    fn(&mut OptimisticTransaction, &ColumnFamily) -> orogen_base::Result<()>,
);

const NOTES: [Note; 5] = [
    ("put", |txn, family| txn.put(family, b"k", b"ours")),
    ("delete", |txn, family| txn.delete(family, b"k")),
    ("merge", |txn, family| txn.merge(family, b"k", b"ours")),
    ("delete_range", |txn, family| {
        txn.delete_range(family, b"j", b"l")
    }),
    ("get_for_update", |txn, family| {
        txn.get_for_update(&ReadOptions::default(), family, b"k")?;
        txn.put(family, b"other", b"ours")
    }),
];

#[test]
fn what_it_noted_and_others_wrote_since_is_refused_wherever_that_is_by_now() {
    for is_there in [false, true] {
        for (how, note) in NOTES {
            for (what, meanwhile) in MEANWHILE {
                if is_there && what == "came and went" {
                    continue;
                }
                let told = format!("{how} against {what}, there before: {is_there}");
                let (db, family) = new();
                if is_there {
                    put(&db, &family, b"k", b"before");
                }
                let mut txn = begin(&db);
                note(&mut txn, &family).unwrap();
                meanwhile(&db, &family);
                let theirs = get(db.db(), b"k");
                assert!(is_busy(&mut txn), "{told}");
                assert!(is_busy(&mut txn), "{told}, again");
                assert_eq!(get(db.db(), b"k"), theirs, "{told}");
                assert_eq!(get(db.db(), b"other"), None, "{told}");
                // Done anew it goes by what there is.
                txn.rollback().unwrap();
                txn.restart(OptimisticTransactionOptions::default())
                    .unwrap();
                note(&mut txn, &family).unwrap();
                assert!(!is_busy(&mut txn), "{told}");
            }
        }
    }
}

#[test]
fn what_was_written_before_it_noted_it_is_no_matter_unless_its_snapshot_is_older() {
    let (db, family) = new();
    let mut plain = begin(&db);
    let mut reader = db
        .begin(OptimisticTransactionOptions {
            set_snapshot: true,
            ..OptimisticTransactionOptions::default()
        })
        .unwrap();
    put(&db, &family, b"k", b"theirs");
    let seen = reader.get(&at(reader.snapshot()), &family, b"k").unwrap();
    assert!(seen.is_none());
    reader.put(&family, b"k", b"ours").unwrap();
    assert!(is_busy(&mut reader));
    plain.put(&family, b"k", b"ours").unwrap();
    assert!(!is_busy(&mut plain));
    // A snapshot that was given up leaves what was noted under it.
    reader.rollback().unwrap();
    reader
        .restart(OptimisticTransactionOptions::default())
        .unwrap();
    reader.set_snapshot();
    put(&db, &family, b"k", b"theirs");
    reader.put(&family, b"k", b"ours").unwrap();
    reader.clear_snapshot();
    assert!(is_busy(&mut reader));
}

#[test]
fn of_a_deleted_range_only_what_is_in_it_counts() {
    let (db, family) = new();
    let mut txn = begin(&db);
    txn.delete_range(&family, b"c", b"f").unwrap();
    txn.set_save_point();
    txn.delete_range(&family, b"p", b"r").unwrap();
    txn.rollback_to_save_point().unwrap();
    // An empty one is none.
    txn.delete_range(&family, b"x", b"x").unwrap();
    for key in [b"b", b"f", b"q", b"x"] {
        put(&db, &family, key, b"theirs");
    }
    db.db().flush().unwrap();
    assert!(!is_busy(&mut txn));
    assert_eq!(get(db.db(), b"q").as_deref(), Some(&b"theirs"[..]));
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    // With a snapshot what was written before it was noted counts, too.
    txn.set_snapshot();
    put(&db, &family, b"c", b"theirs");
    txn.delete_range(&family, b"c", b"f").unwrap();
    assert!(is_busy(&mut txn));
    txn.rollback().unwrap();
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    txn.delete_range(&family, b"c", b"f").unwrap();
    assert!(!is_busy(&mut txn), "nothing of the last one is left");
    assert_eq!(get(db.db(), b"c"), None);
}

#[test]
fn a_pending_snapshot_is_taken_with_the_next_note_in_place_of_an_older_one() {
    let (db, family) = new();
    put(&db, &family, b"k", b"0");
    let mut txn = begin(&db);
    txn.set_snapshot();
    let old = txn.snapshot().unwrap().seqno();
    txn.set_snapshot_on_next_operation();
    put(&db, &family, b"k", b"1");
    put(&db, &family, b"range", b"1");
    // Reads go by the old one until then.
    assert_eq!(txn.snapshot().unwrap().seqno(), old);
    txn.put(&family, b"k", b"ours").unwrap();
    assert!(txn.snapshot().unwrap().seqno() > old);
    let taken = txn.snapshot().unwrap().seqno();
    put(&db, &family, b"other", b"1");
    txn.delete_range(&family, b"q", b"s").unwrap();
    assert_eq!(txn.snapshot().unwrap().seqno(), taken, "it was taken once");
    assert!(!is_busy(&mut txn));
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    // What a save point remembers is pending again; what is given up is not.
    txn.set_snapshot_on_next_operation();
    txn.set_save_point();
    txn.delete_range(&family, b"q", b"s").unwrap();
    assert!(txn.snapshot().is_some());
    txn.rollback_to_save_point().unwrap();
    assert!(txn.snapshot().is_none());
    txn.put(&family, b"k", b"ours").unwrap();
    assert!(txn.snapshot().is_some());
    txn.set_snapshot_on_next_operation();
    txn.clear_snapshot();
    txn.put(&family, b"l", b"ours").unwrap();
    assert!(txn.snapshot().is_none());
    assert!(!is_busy(&mut txn));
}

#[test]
fn keys_that_a_save_point_took_back_are_nobodys() {
    let (db, family) = new();
    let mut txn = begin(&db);
    txn.put(&family, b"a", b"1").unwrap();
    txn.set_save_point();
    txn.put(&family, b"a", b"2").unwrap();
    txn.put(&family, b"b", b"1").unwrap();
    txn.set_save_point();
    txn.put(&family, b"c", b"1").unwrap();
    txn.pop_save_point().unwrap();
    assert_eq!(txn.tracked_count(), 3);
    txn.rollback_to_save_point().unwrap();
    assert_eq!(txn.tracked_count(), 1);
    let none = txn.rollback_to_save_point().unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    put(&db, &family, b"b", b"theirs");
    put(&db, &family, b"c", b"theirs");
    // Noted anew, it is what it is now.
    txn.put(&family, b"c", b"ours").unwrap();
    assert!(!is_busy(&mut txn));
    assert_eq!(get(db.db(), b"a").as_deref(), Some(&b"1"[..]));
    assert_eq!(get(db.db(), b"b").as_deref(), Some(&b"theirs"[..]));
    assert_eq!(get(db.db(), b"c").as_deref(), Some(&b"ours"[..]));
}

#[test]
fn families_do_not_meet() {
    let (db, family) = new();
    let options = (*family.options()).clone();
    let side = db.db().create_column_family("side", options).unwrap();
    let mut txn = begin(&db);
    txn.put(&side, b"k", b"ours").unwrap();
    put(&db, &family, b"k", b"theirs");
    assert!(!is_busy(&mut txn));
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    txn.put(&side, b"k", b"ours").unwrap();
    put(&db, &side, b"k", b"theirs");
    assert!(is_busy(&mut txn));
}

#[test]
fn money_is_neither_made_nor_lost_and_all_who_try_again_come_through() {
    const ACCOUNTS: u64 = 6;
    const EACH: i64 = 1000;
    const TRANSFERS: usize = 150;
    let (db, family) = new();
    let key = |n: u64| [b'a', n as u8];
    for n in 0..ACCOUNTS {
        put(&db, &family, &key(n), &EACH.to_le_bytes());
    }
    let number = |found: Option<orogen_base::PinnedValue>| {
        let bytes = found.expect("it is there");
        i64::from_le_bytes(bytes.as_ref().try_into().expect("a number"))
    };
    // Threads that have one processor after the other do not meet.
    let round = || -> usize {
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    let (db, family) = (db.clone(), family.clone());
                    s.spawn(move || {
                        let mut rng = Rng::new(t);
                        let mut txn = begin(&db);
                        txn.rollback().unwrap();
                        let (mut done, mut refused) = (0, 0);
                        while done < TRANSFERS {
                            txn.restart(OptimisticTransactionOptions {
                                set_snapshot: rng.chance(1, 2),
                                ..OptimisticTransactionOptions::default()
                            })
                            .unwrap();
                            let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
                            let amount = rng.below(50) as i64;
                            for (account, by) in [(from, -amount), (to, amount)] {
                                // As many read at their snapshot as read what there is now.
                                let options = at(txn.snapshot());
                                let found = txn.get_for_update(&options, &family, &key(account));
                                let now = number(found.unwrap()) + by;
                                txn.put(&family, &key(account), &now.to_le_bytes()).unwrap();
                            }
                            if rng.chance(1, 40) {
                                db.db().flush().unwrap();
                            }
                            match is_busy(&mut txn) {
                                true => {
                                    refused += 1;
                                    txn.rollback().unwrap();
                                }
                                false => done += 1,
                            }
                        }
                        refused
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        })
    };
    let refused = (0..50).map(|_| round()).find(|&refused| refused > 0);
    let sum: i64 = (0..ACCOUNTS)
        .map(|n| number(db.db().get(&key(n)).unwrap()))
        .sum();
    assert_eq!(sum, EACH * ACCOUNTS as i64);
    assert!(refused.is_some(), "nobody met anybody");
}

#[test]
fn commits_of_keys_and_ranges_in_any_order_come_through() {
    let (db, family) = new();
    std::thread::scope(|s| {
        for t in 0..4 {
            let (db, family) = (db.clone(), family.clone());
            s.spawn(move || {
                let mut rng = Rng::new(t);
                for _ in 0..150 {
                    let mut txn = begin(&db);
                    for _ in 0..4 {
                        let [a, b] = [rng.below(40) as u8, rng.below(40) as u8];
                        match rng.chance(1, 2) {
                            true => txn.put(&family, &[a], b"1").unwrap(),
                            false => txn.delete_range(&family, &[a.min(b)], &[a.max(b)]).unwrap(),
                        }
                    }
                    // A circle that is not undone would be told.
                    is_busy(&mut txn);
                    let mut batch = WriteBatch::new();
                    batch.put(0, &[rng.below(40) as u8], b"2");
                    batch.delete_range(0, &[rng.below(20) as u8], &[30]);
                    db.write(&WriteOptions::default(), &mut batch).unwrap();
                }
            });
        }
    });
    assert!(db.locks().lock_status().is_empty());
}

#[test]
fn an_older_snapshot_that_is_back_is_held_for_what_is_noted_at_it() {
    let (db, family) = new();
    put(&db, &family, b"k", b"old");
    let mut txn = begin(&db);
    txn.set_snapshot();
    txn.set_save_point();
    put(&db, &family, b"k", b"theirs");
    txn.set_snapshot();
    txn.put(&family, b"x", b"ours").unwrap();
    txn.rollback_to_save_point().unwrap();
    let seen = txn.get_for_update(&at(txn.snapshot()), &family, b"k");
    assert_eq!(seen.unwrap().as_deref(), Some(&b"old"[..]));
    txn.clear_snapshot();
    db.db().flush().unwrap();
    let force = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    db.db().compact_range(&force, &family, None, None).unwrap();
    txn.put(&family, b"k", b"ours").unwrap();
    assert!(is_busy(&mut txn));
}

#[test]
fn families_of_another_database_are_refused() {
    let ((db, _), (_other, theirs)) = (new(), new());
    let mut txn = begin(&db);
    let refused = [
        txn.put(&theirs, b"k", b"w"),
        txn.merge(&theirs, b"k", b"w"),
        txn.delete(&theirs, b"k"),
        txn.single_delete(&theirs, b"k"),
        txn.delete_range(&theirs, b"a", b"b"),
        txn.delete_range(&theirs, b"b", b"a"),
        txn.get(&ReadOptions::default(), &theirs, b"k").map(drop),
        db.put(&WriteOptions::default(), &theirs, b"k", b"w"),
        db.delete(&WriteOptions::default(), &theirs, b"k"),
    ];
    for (at, refused) in refused.into_iter().enumerate() {
        let kind = refused.expect_err("it is another's").kind();
        assert_eq!(kind, ErrorKind::InvalidArgument, "{at}");
    }
    assert_eq!((txn.count(), txn.tracked_count()), (0, 0));
}
