//! What databases with transactions count.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_engine::{ColumnFamily, Db, Options, WriteOptions};
use orogen_env::MemFileSystem;
use orogen_txn::lock_manager::{KeyRange, LockManagerOptions, LockMode, TxnLockOptions};
use orogen_txn::{
    OptimisticTransactionDb, OptimisticTransactionDbOptions, OptimisticTransactionOptions,
    TransactionDb, TransactionDbOptions, TransactionOptions,
};

/// A new database in memory.
pub(crate) fn options() -> Options {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options
}

fn open(locks: LockManagerOptions) -> (TransactionDb, ColumnFamily) {
    let own = TransactionDbOptions {
        locks,
        ..TransactionDbOptions::default()
    };
    let db = TransactionDb::open("/db", &options(), own).expect("it opens");
    let family = db.db().default_column_family();
    (db, family)
}

/// Begun, committed, rolled back.
fn counts(db: &Db) -> [u64; 3] {
    let statistics = db.statistics();
    [Ticker::TxnBegins, Ticker::TxnCommits, Ticker::TxnRollbacks].map(|t| statistics.get(t))
}

#[test]
fn each_transaction_is_begun_and_ends_once_however_it_does() {
    let (db, family) = open(LockManagerOptions::default());
    let options = TransactionOptions::default();
    let mut txn = db.begin(options).unwrap();
    txn.put(&family, b"a", b"1").unwrap();
    assert_eq!(counts(db.db()), [1, 0, 0]);
    txn.commit().unwrap();
    assert_eq!(counts(db.db()), [1, 1, 0]);
    txn.restart(options).unwrap();
    txn.rollback().unwrap();
    assert_eq!(counts(db.db()), [2, 1, 1]);
    // Dropped when it has ended it is nothing more, in its midst it is rolled back.
    drop(txn);
    assert_eq!(counts(db.db()), [2, 1, 1]);
    let mut txn = db.begin(options).unwrap();
    txn.put(&family, b"a", b"2").unwrap();
    drop(txn);
    assert_eq!(counts(db.db()), [3, 1, 2]);
    // One that is prepared is not over when it is dropped, and not begun when it is taken.
    let mut txn = db.begin(options).unwrap();
    txn.set_name(b"t").unwrap();
    txn.put(&family, b"a", b"3").unwrap();
    txn.prepare().unwrap();
    drop(txn);
    assert_eq!(counts(db.db()), [4, 1, 2]);
    let prepared = || db.int_property(&family, "orogen.txn.prepared");
    assert_eq!(prepared(), Some(1));
    db.take_prepared(b"t", options).unwrap().commit().unwrap();
    assert_eq!((counts(db.db()), prepared()), ([4, 2, 2], Some(0)));
    // Writes that have none of the user's are not counted.
    db.put(&WriteOptions::default(), &family, b"a", b"4")
        .unwrap();
    assert_eq!(counts(db.db()), [4, 2, 2]);
}

#[test]
fn so_is_each_optimistic_one() {
    let own = OptimisticTransactionDbOptions::default();
    let db = OptimisticTransactionDb::open("/db", &options(), own).unwrap();
    let family = db.db().default_column_family();
    let options = OptimisticTransactionOptions::default();
    let mut txn = db.begin(options).unwrap();
    txn.put(&family, b"a", b"1").unwrap();
    txn.commit().unwrap();
    txn.restart(options).unwrap();
    txn.rollback().unwrap();
    drop(txn);
    drop(db.begin(options).unwrap());
    assert_eq!(counts(db.db()), [3, 1, 2]);
    assert_eq!(db.int_property(&family, "orogen.txn.locks"), Some(0));
}

#[test]
fn what_is_refused_for_limits_or_time_is_counted() {
    let (db, family) = open(LockManagerOptions {
        max_num_locks: Some(2),
        ..LockManagerOptions::default()
    });
    let count = |ticker| db.db().statistics().get(ticker);
    let mut txn = db.begin(TransactionOptions::default()).unwrap();
    txn.put(&family, b"a", b"1").unwrap();
    txn.put(&family, b"b", b"1").unwrap();
    let told = txn.put(&family, b"c", b"1").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::LockLimit);
    assert_eq!(count(Ticker::TxnLockLimits), 1);
    txn.commit().unwrap();
    let over = TransactionOptions {
        locks: TxnLockOptions {
            expiration_micros: Some(0),
            ..TxnLockOptions::default()
        },
        lock_timeout: Some(Duration::ZERO),
        ..TransactionOptions::default()
    };
    let mut txn = db.begin(over).unwrap();
    let told = txn.put(&family, b"a", b"1").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Expired);
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Expired);
    assert_eq!(count(Ticker::TxnExpirations), 2);
}

#[test]
fn properties_tell_of_locks_while_they_are_held() {
    let (db, family) = open(LockManagerOptions::default());
    let other = db.db().create_column_family("other", Default::default());
    let other = other.unwrap();
    let now = || {
        let number = |name| db.int_property(&family, name).expect("it is known");
        (number("orogen.txn.locks"), number("orogen.txn.lock-bytes"))
    };
    assert_eq!(now(), (0, 0));
    let mut txn = db.begin(TransactionOptions::default()).unwrap();
    txn.put(&family, b"a", b"1").unwrap();
    let one = now();
    assert!(one.0 == 1 && one.1 > 0, "{one:?}");
    txn.put(&other, b"a", b"1").unwrap();
    let range = KeyRange::new(b"x", b"z", false);
    txn.lock_range(&family, &range, LockMode::Exclusive)
        .unwrap();
    let three = now();
    assert!(three.0 == 3 && three.1 > 2 * one.1, "{three:?}");
    assert!(
        db.int_property(&family, "rocksdb.estimate-num-keys")
            .is_some()
    );
    txn.commit().unwrap();
    assert_eq!(now(), (0, 0));
}
