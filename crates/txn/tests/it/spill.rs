//! Transactions whose writes go on in files.

use std::path::Path;
use std::process::Command;

use orogen_base::metrics::Ticker;
use orogen_base::{Error, ErrorKind};
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_testkit::{Rng, TempDir};
use orogen_txn::indexed_batch::{BatchLookup, IndexedBatch};
use orogen_txn::{
    OptimisticTransactionDb, OptimisticTransactionDbOptions, OptimisticTransactionOptions,
    SpillOptions, TransactionDb, TransactionDbOptions, TransactionOptions,
};

fn options() -> Options {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf.write_buffer_size = 1 << 20;
    options
}

fn spill(dir: &Path, threshold_bytes: usize) -> Option<SpillOptions> {
    Some(SpillOptions {
        threshold_bytes,
        ..SpillOptions::in_dir(dir)
    })
}

fn locking(dir: &TempDir, threshold_bytes: usize) -> TransactionDb {
    let own = TransactionDbOptions {
        spill: spill(dir.path(), threshold_bytes),
        ..TransactionDbOptions::default()
    };
    TransactionDb::open(dir.path().join("db"), &options(), own).expect("it opens")
}

fn optimistic(dir: &TempDir, threshold_bytes: usize) -> OptimisticTransactionDb {
    let own = OptimisticTransactionDbOptions {
        spill: spill(dir.path(), threshold_bytes),
        ..OptimisticTransactionDbOptions::default()
    };
    OptimisticTransactionDb::open(dir.path().join("db"), &options(), own).expect("it opens")
}

const KEYS: u32 = 3000;

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Of about 1.5 KiB.
fn value(n: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(n));
    (0..1000 + rng.below(1000))
        .map(|i| (i ^ n as u64) as u8)
        .collect()
}

fn write_all(mut put: impl FnMut(&[u8], &[u8]) -> orogen_base::Result<()>) {
    for n in 0..KEYS {
        put(&key(n), &value(n)).expect("there is room");
    }
}

fn has_all(db: &Db) {
    for n in 0..KEYS {
        let found = db.get(&key(n)).expect("it reads");
        assert!(found.as_deref() == Some(&value(n)[..]), "{n}");
    }
}

fn has_none(db: &Db) {
    let family = db.default_column_family();
    let mut iter = db.iter(&ReadOptions::default(), &family).expect("it reads");
    iter.seek_to_first();
    assert!(!iter.valid() && iter.status().is_ok());
}

/// The directory has the database and nothing else.
fn has_no_files(dir: &TempDir) {
    let all = std::fs::read_dir(dir.path()).expect("it is there");
    assert!(all.flatten().all(|entry| entry.file_name() == "db"));
}

#[test]
fn a_transaction_that_locks_commits_what_it_spilled() {
    let dir = TempDir::new("spill-locking");
    let db = locking(&dir, 64 << 10);
    let family = db.db().default_column_family();
    let checked = TransactionOptions {
        write: WriteOptions {
            protection_bytes_per_key: 8,
            ..WriteOptions::default()
        },
        ..TransactionOptions::default()
    };
    for commits in [false, true] {
        let mut txn = db.begin(checked).unwrap();
        txn.put(&family, b"gone", b"1").unwrap();
        txn.delete(&family, b"gone").unwrap();
        assert_eq!(txn.spilled_bytes(), 0);
        write_all(|k, v| txn.put(&family, k, v));
        assert!(txn.spilled_bytes() > 4 << 20);
        has_no_files(&dir);
        let read = txn.get(&ReadOptions::default(), &family, &key(7)).unwrap();
        assert!(read.as_deref() == Some(&value(7)[..]));
        match commits {
            true => txn.commit().unwrap(),
            false => txn.rollback().unwrap(),
        }
        assert_eq!(txn.spilled_bytes(), 0);
        match commits {
            true => has_all(db.db()),
            false => has_none(db.db()),
        }
        // The same again, with a threshold that it never reaches.
        txn.restart(TransactionOptions {
            spill_threshold_bytes: Some(usize::MAX),
            ..checked
        })
        .unwrap();
        write_all(|k, v| txn.put(&family, k, v));
        assert_eq!(txn.spilled_bytes(), 0);
        txn.rollback().unwrap();
        txn.restart(checked).unwrap();
        write_all(|k, v| txn.put(&family, k, v));
        assert!(
            txn.spilled_bytes() > 4 << 20,
            "the memory that it has is too much"
        );
    }
    assert_eq!(db.db().statistics().get(Ticker::TxnSpills), 4);
    drop((family, db));
    has_all(locking(&dir, 0).db());
}

#[test]
fn an_optimistic_transaction_commits_what_it_spilled() {
    let dir = TempDir::new("spill-optimistic");
    let db = optimistic(&dir, 1 << 20);
    let family = db.db().default_column_family();
    let mut txn = db.begin(OptimisticTransactionOptions::default()).unwrap();
    write_all(|k, v| txn.put(&family, k, v));
    assert!(txn.spilled_bytes() > 4 << 20);
    db.put(&WriteOptions::default(), &family, &key(KEYS - 1), b"other")
        .unwrap();
    assert_eq!(txn.commit().unwrap_err().kind(), ErrorKind::Busy);
    assert!(txn.spilled_bytes() > 4 << 20, "it has what it had");
    txn.rollback().unwrap();
    assert_eq!(txn.spilled_bytes(), 0);
    db.delete(&WriteOptions::default(), &family, &key(KEYS - 1))
        .unwrap();
    has_none(db.db());
    txn.restart(OptimisticTransactionOptions::default())
        .unwrap();
    write_all(|k, v| txn.put(&family, k, v));
    has_no_files(&dir);
    txn.commit().unwrap();
    assert_eq!(db.db().statistics().get(Ticker::TxnSpills), 2);
    drop((txn, family, db));
    has_all(optimistic(&dir, 0).db());
}

#[test]
fn what_spilled_is_prepared_and_outlives_its_process() {
    let dir = TempDir::new("spill-prepared");
    let begin = |db: &TransactionDb, name: &[u8]| {
        let mut txn = db.begin(TransactionOptions::default()).expect("memory");
        txn.set_name(name).expect("it has none");
        txn
    };
    for ends in ["by itself", "by another", "after an open", "rolled back"] {
        let db = locking(&dir, 64 << 10);
        let family = db.db().default_column_family();
        let mut txn = begin(&db, ends.as_bytes());
        write_all(|k, v| txn.put(&family, k, v));
        txn.prepare().unwrap();
        assert!(txn.spilled_bytes() > 4 << 20);
        has_none(db.db());
        let prepared = db.db().prepared_batch(ends.as_bytes()).unwrap().unwrap();
        assert_eq!(prepared.count(), KEYS);
        assert!(prepared.spilled_bytes() > 4 << 20, "a copy spills, too");
        has_no_files(&dir);
        let take = |db: &TransactionDb| {
            db.take_prepared(ends.as_bytes(), TransactionOptions::default())
                .expect("it is prepared")
        };
        let db = match ends {
            "by itself" => {
                txn.commit().unwrap();
                db
            }
            "by another" => {
                drop(txn);
                take(&db).commit().unwrap();
                db
            }
            "after an open" => {
                drop((txn, family, prepared, db));
                let db = locking(&dir, 64 << 10);
                take(&db).commit().unwrap();
                db
            }
            _ => {
                txn.rollback().unwrap();
                has_none(db.db());
                return;
            }
        };
        has_all(db.db());
        let mut all = WriteBatch::new();
        all.delete_range(0, &key(0), &key(KEYS));
        db.db().write(all).unwrap();
    }
}

/// A batch with something in it that cannot go on in `dir` for want of room, what was refused, and how often it went before.
fn refused(dir: &Path, family: &ColumnFamily) -> (IndexedBatch, Error, u32) {
    let batch = spill(dir, 1000).map(WriteBatch::with_spill);
    let mut batch = IndexedBatch::with(batch.expect("it spills")).expect("it is empty");
    batch.put(family, b"first", b"1").expect("in memory");
    batch.set_save_point();
    for n in 0..100_000 {
        if let Err(e) = batch.put(family, &key(n), &value(n)) {
            return (batch, e, n);
        }
    }
    panic!("there was room for all");
}

/// The batch is as it was before it was refused something, and goes on as soon as there is room.
fn is_as_before(batch: &mut IndexedBatch, family: &ColumnFamily, wrote: u32) {
    assert_eq!(batch.count(), wrote + 1);
    batch.batch().check_whole().expect("nothing is missing");
    for n in 0..wrote {
        let found = batch.lookup(family, &key(n)).expect("it reads");
        assert!(found == BatchLookup::Value(&value(n)), "{n}");
    }
    let none = batch.lookup(family, &key(wrote)).expect("it reads");
    assert_eq!(none, BatchLookup::NotFound);
    let small = batch.put(family, b"small", b"fits");
    let size = batch.batch().size_bytes();
    assert_eq!(small.is_ok(), batch.count() == wrote + 2);
    let all = vec![b'z'; 64 << 20];
    batch.put(family, b"large", &all).expect_err("no room");
    batch.delete_range(family, b"a", &all).expect_err("no room");
    batch.put_log_data(&all).expect_err("no room");
    assert_eq!(batch.batch().size_bytes(), size);
    batch.rollback_to_save_point().expect("there is one");
    assert_eq!(batch.count(), 1);
    let first = batch.lookup(family, b"first").expect("it reads");
    assert_eq!(first, BatchLookup::Value(b"1"));
}

#[test]
fn without_its_directory_a_batch_stays_as_it_is() {
    let dir = TempDir::new("spill-nowhere");
    let db = Db::open(dir.path().join("db"), &options()).unwrap();
    let family = db.default_column_family();
    let missing = dir.path().join("missing");
    let (mut batch, error, wrote) = refused(&missing, &family);
    assert_eq!((error.kind(), wrote), (ErrorKind::Io, 0));
    assert!(error.context("dir").is_some());
    assert_eq!(batch.batch().spilled_bytes(), 0);
    is_as_before(&mut batch, &family, wrote);
    std::fs::create_dir(&missing).unwrap();
    write_all(|k, v| batch.put(&family, k, v));
    assert!(batch.batch().spilled_bytes() > 4 << 20);
    // A copy has no place any more: it is refused as a whole, and what it is of is not.
    std::fs::remove_dir(&missing).unwrap();
    let copy = batch.batch().clone();
    assert!(copy.is_empty());
    assert_eq!(db.write(copy).unwrap_err().kind(), ErrorKind::Io);
    has_none(&db);
    batch.write(&db, &WriteOptions::default()).unwrap();
    has_all(&db);
}

#[test]
fn a_transaction_without_room_for_its_copy_is_not_prepared_and_can_go_on() {
    let dir = TempDir::new("spill-no-copy");
    let files = dir.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let own = TransactionDbOptions {
        spill: spill(&files, 64 << 10),
        ..TransactionDbOptions::default()
    };
    let db = TransactionDb::open(dir.path().join("db"), &options(), own).unwrap();
    let family = db.db().default_column_family();
    let mut txn = db.begin(TransactionOptions::default()).unwrap();
    txn.set_name(b"t").unwrap();
    write_all(|k, v| txn.put(&family, k, v));
    std::fs::remove_dir(&files).unwrap();
    assert_eq!(txn.prepare().unwrap_err().kind(), ErrorKind::Io);
    assert!(db.db().prepared_writes().is_empty());
    txn.put(&family, b"more", b"1").unwrap();
    txn.commit().unwrap();
    has_all(db.db());
}

/// A small file system in memory; dropping it unmounts it.
struct Disk<'a>(&'a Path);

impl<'a> Disk<'a> {
    /// None where this process may not.
    fn mount(dir: &'a Path, bytes: usize) -> Option<Self> {
        let size = format!("size={bytes}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "orogen-spill"]);
        let out = mount.arg(dir).output().ok()?;
        out.status.success().then_some(Self(dir))
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        // What stays mounted is in a folder of its own.
        let _ = Command::new("umount").arg(self.0).output();
    }
}

#[test]
fn on_a_full_disk_a_batch_stays_as_it_is_and_can_roll_back() {
    let (dir, small) = (TempDir::new("spill-full-db"), TempDir::new("spill-full"));
    let Some(_disk) = Disk::mount(small.path(), 8 << 20) else {
        println!("no file system can be mounted here");
        return;
    };
    let db = Db::open(dir.path().join("db"), &options()).unwrap();
    let family = db.default_column_family();
    let (mut batch, error, wrote) = refused(small.path(), &family);
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert!(wrote > 1000 && batch.batch().spilled_bytes() > 4 << 20);
    is_as_before(&mut batch, &family, wrote);
    // What was taken back is room again.
    write_all(|k, v| batch.put(&family, k, v));
    batch.write(&db, &WriteOptions::default()).unwrap();
    has_all(&db);
    let copy = batch.batch().clone();
    assert_eq!(copy.check_whole().unwrap_err().kind(), ErrorKind::NoSpace);
    batch.clear();
    let (batch, _, again) = refused(small.path(), &family);
    assert_eq!(again, wrote, "the file is gone with the batch");
    drop(batch);
}
