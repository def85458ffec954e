//! Reading the writes that are in the logs.

use std::path::Path;

use orogen_base::ErrorKind;
use orogen_engine::{Db, Options, Update, WriteBatch, WriteOptions};
use orogen_env::{FileSystem, MemFileSystem};

use crate::steer::until;
use crate::support::{DIR, scan, small};

fn count_of(fs: &MemFileSystem, dir: &str) -> usize {
    let names = fs.list(Path::new(dir)).unwrap_or_default();
    names.iter().filter(|n| n.ends_with(".log")).count()
}

fn all(updates: impl Iterator<Item = orogen_base::Result<Update>>) -> Vec<Update> {
    updates.map(|u| u.expect("works")).collect()
}

/// Each begins where the one before ends; returns the next number.
fn check_chain(updates: &[Update], from: u64) -> u64 {
    updates.iter().fold(from, |expected, update| {
        assert_eq!(update.sequence, expected);
        update.next_sequence()
    })
}

#[test]
fn what_is_replayed_elsewhere_makes_the_same_database() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let mut updates = db.get_updates_since(0).unwrap();
    let other_fs = MemFileSystem::new();
    let copy = Db::open(DIR, &small(&other_fs)).unwrap();
    let mut next = 1;
    for round in 0..20 {
        for n in 0..50u32 {
            let mut batch = WriteBatch::new();
            batch.put(0, format!("key{:03}", n * 7 % 60).as_bytes(), &[b'v'; 40]);
            batch.put(0, format!("round{round}-{n}").as_bytes(), b"x");
            batch.delete(0, format!("key{:03}", n * 3 % 60).as_bytes());
            db.write(batch).unwrap();
        }
        if round % 6 == 5 {
            db.flush().unwrap();
        }
        if round % 3 == 0 {
            // The reader is asked again after it came to an end.
            let found = all(updates.by_ref());
            next = check_chain(&found, next);
            for update in found {
                copy.write(update.batch).unwrap();
            }
            assert_eq!(next, db.latest_sequence_number() + 1);
        }
    }
    let rest = all(updates.by_ref());
    next = check_chain(&rest, next);
    assert_eq!(next, db.latest_sequence_number() + 1);
    for update in rest {
        copy.write(update.batch).unwrap();
    }
    let (ours, theirs) = (db.default_column_family(), copy.default_column_family());
    assert_eq!(scan(&db, &ours), scan(&copy, &theirs));
    assert_eq!(db.latest_sequence_number(), copy.latest_sequence_number());
}

#[test]
fn numbers_that_are_gone_or_to_come_are_refused() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    assert_eq!(all(db.get_updates_since(1).unwrap()).len(), 0);
    for n in 0..10u8 {
        db.put(&[n], b"1").unwrap();
    }
    db.flush().unwrap();
    for n in 0..10u8 {
        db.put(&[n], b"2").unwrap();
    }
    let kind = |since| db.get_updates_since(since).map(|_| ()).unwrap_err().kind();
    db.wait_for_background_work().unwrap();
    // The log of the first ten went with their memtable.
    until(|| db.get_updates_since(0).is_err());
    assert_eq!(kind(0), ErrorKind::NotFound);
    assert_eq!(kind(10), ErrorKind::NotFound);
    let error = db.get_updates_since(3).map(|_| ()).unwrap_err();
    assert_eq!(error.context("oldest"), Some("11"));
    assert_eq!(kind(22), ErrorKind::InvalidArgument);
    assert_eq!(all(db.get_updates_since(21).unwrap()).len(), 0);
    let tail = all(db.get_updates_since(15).unwrap());
    assert_eq!(check_chain(&tail, 15), 21);
}

#[test]
fn a_reader_keeps_its_logs_until_it_is_past_them() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let mut updates = db.get_updates_since(1).unwrap();
    for n in 0..6u8 {
        db.put(&[n], b"v").unwrap();
        db.flush().unwrap();
    }
    // Those of the six writes, and the current one.
    assert_eq!(count_of(&fs, DIR), 7);
    let first: Vec<_> = updates.by_ref().take(3).map(|u| u.unwrap()).collect();
    let mut next = check_chain(&first, 1);
    db.put(b"x", b"v").unwrap();
    db.close().unwrap();
    // The third to the seventh; the reader goes on beside a closed database.
    assert_eq!(count_of(&fs, DIR), 5);
    let rest = all(updates.by_ref());
    next = check_chain(&rest, next);
    assert_eq!(next, 8);
    drop(updates);
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.close().unwrap();
    assert_eq!(count_of(&fs, DIR), 1);
}

#[test]
fn missing_numbers_are_told_once_and_not_passed_over() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let unlogged = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    let family = db.default_column_family();
    db.put(b"a", b"1").unwrap();
    db.put_opt(&unlogged, &family, b"b", b"2").unwrap();
    db.put(b"c", b"3").unwrap();
    let mut updates = db.get_updates_since(1).unwrap();
    assert_eq!(updates.next().unwrap().unwrap().sequence, 1);
    let error = updates.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.context("from"), Some("2"));
    assert_eq!(updates.next().unwrap().unwrap().sequence, 3);
    assert!(updates.next().is_none());
}

fn archiving(fs: &MemFileSystem, ttl: u64, mib: u64) -> Options {
    let mut options = small(fs);
    options.db.wal_ttl_seconds = ttl;
    options.db.wal_size_limit_mb = mib;
    // An archived log is never written over, though this asks for it.
    options.db.recycle_log_file_num = 2;
    options
}

#[test]
fn archived_logs_survive_flushes_and_opens() {
    let fs = MemFileSystem::new();
    let options = archiving(&fs, 1 << 30, 0);
    for round in 0..4u8 {
        let db = Db::open(DIR, &options).unwrap();
        for n in 0..100u8 {
            db.put(&[round, n], &[b'v'; 300]).unwrap();
        }
        if round == 2 {
            db.flush().unwrap();
        }
        let updates = all(db.get_updates_since(0).unwrap());
        assert_eq!(check_chain(&updates, 1), u64::from(round + 1) * 100 + 1);
        let late = all(db
            .get_updates_since(150.min(u64::from(round) * 100))
            .unwrap());
        assert!(late[0].sequence <= 150);
        db.close().unwrap();
    }
    assert!(count_of(&fs, "/db/archive") >= 4);
    Db::destroy(DIR, &options).unwrap();
    assert!(!fs.exists(Path::new(DIR)).unwrap());
}

#[test]
fn the_oldest_archived_logs_go_when_there_are_too_many() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &archiving(&fs, 0, 1)).unwrap();
    for n in 0..4000u32 {
        db.put(&n.to_be_bytes(), &[b'v'; 1000]).unwrap();
    }
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
    let archive = Path::new("/db/archive");
    let bytes = || -> u64 {
        let names = fs.list(archive).unwrap();
        // One may go between.
        let size = |n: &String| fs.metadata(&archive.join(n)).map_or(0, |m| m.size);
        names.iter().map(size).sum()
    };
    until(|| bytes() > 900 << 10 && bytes() <= 1 << 20);
    let error = db.get_updates_since(1).map(|_| ()).unwrap_err();
    let oldest: u64 = error.context("oldest").unwrap().parse().unwrap();
    let found = all(db.get_updates_since(oldest).unwrap());
    assert_eq!(check_chain(&found, oldest), 4001);
}

#[test]
fn the_current_log_of_a_real_directory_is_followed() {
    let dir = orogen_testkit::TempDir::new("updates");
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.cf.write_buffer_size = 64 << 10;
    options.db.wal_size_limit_mb = 64;
    let db = Db::open(dir.path().join("db"), &options).unwrap();
    let mut updates = db.get_updates_since(1).unwrap();
    let mut next = 1;
    for round in 0..50u32 {
        for n in 0..20u32 {
            db.put(&(round * 20 + n).to_be_bytes(), &[b'v'; 200])
                .unwrap();
        }
        let found = all(updates.by_ref());
        next = check_chain(&found, next);
        assert_eq!(next, u64::from((round + 1) * 20) + 1);
    }
    db.flush().unwrap();
    db.close().unwrap();
    // From the archive.
    let db = Db::open(dir.path().join("db"), &options).unwrap();
    let found = all(db.get_updates_since(1).unwrap());
    assert_eq!(check_chain(&found, 1), 1001);
}
