//! The disk is full for a while.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orogen_base::{Error, ErrorKind};
use orogen_engine::events::{ErrorRecoveryInfo, EventListener};
use orogen_engine::{Db, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::fault::Errno;
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};

use crate::steer::until;
use crate::support::{DIR, scan, small};

const SYNC: WriteOptions = WriteOptions {
    protection_bytes_per_key: 0,
    sync: true,
    disable_wal: false,
    no_slowdown: false,
};

#[derive(Default)]
struct Heard {
    errors: AtomicUsize,
    begun: AtomicUsize,
    completed: AtomicUsize,
}

impl EventListener for Heard {
    fn on_background_error(&self, _: &Error) {
        self.errors.fetch_add(1, Ordering::SeqCst);
    }
    fn on_error_recovery_begin(&self, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        self.begun.fetch_add(1, Ordering::SeqCst);
    }
    fn on_error_recovery_completed(&self, info: &ErrorRecoveryInfo) {
        assert_eq!(info.error.kind(), ErrorKind::NoSpace);
        self.completed.fetch_add(1, Ordering::SeqCst);
    }
}

struct Disk {
    memory: MemFileSystem,
    fs: FaultFileSystem,
    heard: Arc<Heard>,
}

impl Disk {
    fn new() -> Self {
        let memory = MemFileSystem::new();
        Self {
            fs: FaultFileSystem::over_memory(memory.clone()),
            memory,
            heard: Arc::default(),
        }
    }

    fn options(&self) -> Options {
        let mut options = small(&self.memory);
        options.db.fs = Arc::new(self.fs.clone());
        options.db.listeners = vec![self.heard.clone()];
        options.db.bgerror_resume_retry_interval = 16_000;
        options
    }

    /// Options under which nothing is resumed but by hand.
    fn by_hand(&self) -> Options {
        let mut options = self.options();
        options.db.max_bgerror_resume_count = 0;
        options
    }

    fn fill(&self, fault: Fault) {
        self.fs.faults().add(fault);
    }

    fn free(&self) {
        self.fs.faults().clear();
    }
}

fn keys(db: &Db) -> Vec<String> {
    scan(db, &db.default_column_family())
        .into_iter()
        .map(|(key, _)| String::from_utf8(key).expect("keys are text"))
        .collect()
}

/// What is there after the process ended, and after the power was cut.
fn keys_after_a_crash(disk: &Disk, cut: PowerCut) -> Vec<String> {
    let image = disk.memory.crash(cut);
    keys(&Db::open(DIR, &small(&image)).expect("it opens"))
}

fn state(db: &Db) -> String {
    db.property(&db.default_column_family(), "orogen.health")
        .expect("the property is there")
}

#[test]
fn writes_are_taken_again_by_itself_once_a_flush_finds_space() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.options()).unwrap();
    let cf = db.default_column_family();
    db.put(b"a", b"1").unwrap();
    disk.fill(
        Fault::no_space()
            .on(&[OpKind::Append])
            .path_with(".sst")
            .forever(),
    );
    assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    let refused = db.put(b"b", b"2").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    assert!(std::error::Error::source(&refused).is_some_and(|s| s.is::<Error>()));
    assert_eq!(db.int_property(&cf, "orogen.out-of-space"), Some(1));
    assert!(
        state(&db).starts_with("out of space: no space"),
        "{}",
        state(&db)
    );
    assert!(db.get(b"a").unwrap().is_some(), "reads go on");
    disk.free();
    until(|| db.int_property(&cf, "orogen.out-of-space") == Some(0));
    db.put(b"b", b"2").unwrap();
    assert_eq!(db.live_files().len(), 1, "what was due is flushed");
    assert_eq!(disk.heard.begun.load(Ordering::SeqCst), 1);
    until(|| disk.heard.completed.load(Ordering::SeqCst) == 1);
    assert_eq!(state(&db), "healthy");
    drop(db);
    assert_eq!(keys_after_a_crash(&disk, PowerCut::KeepAll), ["a", "b"]);
}

#[test]
fn writes_are_taken_again_by_itself_where_a_flush_found_no_space_for_a_log() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.options()).unwrap();
    db.put(b"a", b"1").unwrap();
    disk.fill(Fault::no_space().on(&[OpKind::Create]).path_with(".log"));
    assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    disk.free();
    until(|| db.put(b"b", b"1").is_ok());
    assert_eq!(disk.heard.begun.load(Ordering::SeqCst), 1);
    until(|| disk.heard.completed.load(Ordering::SeqCst) == 1);
    assert_eq!(keys(&db), ["a", "b"]);
}

#[test]
fn a_quota_is_as_a_full_disk() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.options()).unwrap();
    disk.fill(
        Fault::new(Errno::DQUOT)
            .on(&[OpKind::Append])
            .path_with(".log")
            .forever(),
    );
    assert_eq!(db.put(b"a", b"1").unwrap_err().kind(), ErrorKind::NoSpace);
    disk.free();
    until(|| db.put(b"a", b"1").is_ok());
}

#[test]
fn a_record_that_found_no_space_is_gone_and_the_next_one_is_not() {
    let ways: [fn(Fault) -> Fault; 3] = [|f| f, |f| f.short(9), Fault::after_effect];
    for (n, way) in ways.into_iter().enumerate() {
        for recycled in [0, 2] {
            let disk = Disk::new();
            let mut options = disk.by_hand();
            options.db.recycle_log_file_num = recycled;
            let db = Db::open(DIR, &options).unwrap();
            let cf = db.default_column_family();
            for _ in 0..3 {
                db.put_opt(&SYNC, &cf, b"a", b"1").unwrap();
                db.flush().unwrap();
            }
            db.put_opt(&SYNC, &cf, b"b", b"1").unwrap();
            db.put(b"c", b"1").unwrap();
            disk.fill(way(Fault::no_space()
                .on(&[OpKind::Append])
                .path_with(".log")));
            let error = db.put(b"torn", &[7; 100]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            assert_eq!(
                db.put(b"refused", b"1").unwrap_err().kind(),
                ErrorKind::NoSpace
            );
            assert!(db.get(b"torn").unwrap().is_none());
            db.resume().unwrap();
            assert_eq!(keys(&db), ["a", "b", "c"]);
            let image = disk.memory.crash(PowerCut::DropUnsynced);
            let cut = keys(&Db::open(DIR, &small(&image)).unwrap());
            assert_eq!(
                cut,
                ["a", "b", "c"],
                "way {n}: what was acknowledged is durable now"
            );
            db.put_opt(&SYNC, &cf, b"d", b"1").unwrap();
            for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
                let found = keys_after_a_crash(&disk, cut);
                assert_eq!(found, ["a", "b", "c", "d"], "way {n} {cut:?}");
            }
        }
    }
}

#[test]
fn a_log_whose_sync_found_no_space_is_written_anew() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.by_hand()).unwrap();
    let cf = db.default_column_family();
    db.put(b"a", b"1").unwrap();
    disk.fill(Fault::no_space().on(&[OpKind::Sync]).path_with(".log"));
    let error = db.put_opt(&SYNC, &cf, b"lost", b"1").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    db.resume().unwrap();
    assert_eq!(keys(&db), ["a"], "nobody was promised the other");
    db.put(b"b", b"1").unwrap();
    disk.fill(Fault::no_space().on(&[OpKind::Sync]).path_with(".log"));
    assert_eq!(db.sync_wal().unwrap_err().kind(), ErrorKind::NoSpace);
    db.resume().unwrap();
    db.put_opt(&SYNC, &cf, b"c", b"1").unwrap();
    for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
        assert_eq!(keys_after_a_crash(&disk, cut), ["a", "b", "c"], "{cut:?}");
    }
}

#[test]
fn a_log_that_no_flush_could_sync_is_written_anew() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.by_hand()).unwrap();
    let other = db.create_column_family("other", disk.options().cf).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(0, b"a", b"1");
    batch.put(other.id(), b"a", b"1");
    db.write(batch).unwrap();
    disk.fill(Fault::no_space().on(&[OpKind::Sync]).forever());
    assert_eq!(db.flush().unwrap_err().kind(), ErrorKind::NoSpace);
    assert_eq!(db.resume().unwrap_err().kind(), ErrorKind::NoSpace);
    disk.free();
    db.resume().unwrap();
    db.put_opt(&SYNC, &other, b"b", b"1").unwrap();
    let image = disk.memory.crash(PowerCut::DropUnsynced);
    let again = Db::open(DIR, &small(&image)).unwrap();
    let found = scan(&again, &again.column_family("other").unwrap());
    assert_eq!(found.len(), 2, "{found:?}");
}

#[test]
fn a_family_that_could_not_be_dropped_keeps_what_is_written_after() {
    for way in [|f| f, Fault::after_effect as fn(Fault) -> Fault] {
        let disk = Disk::new();
        let db = Db::open(DIR, &disk.by_hand()).unwrap();
        let family = db.create_column_family("x", disk.options().cf).unwrap();
        disk.fill(way(Fault::no_space()
            .on(&[OpKind::Append])
            .path_with("MANIFEST")));
        let error = db.drop_column_family(&family).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let write = WriteOptions::default();
        let refused = db.put_opt(&write, &family, b"a", b"1").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        db.resume().unwrap();
        db.put_opt(&SYNC, &family, b"a", b"1").unwrap();
        let image = disk.memory.crash(PowerCut::DropUnsynced);
        let again = Db::open(DIR, &small(&image)).unwrap();
        let family = again.column_family("x").expect("it was not dropped");
        let found = again.get_opt(&ReadOptions::default(), &family, b"a");
        assert!(found.unwrap().is_some());
    }
}

#[test]
fn a_flush_that_the_manifest_had_no_space_for_leaves_no_table_behind() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.by_hand()).unwrap();
    db.put(b"a", b"1").unwrap();
    disk.fill(
        Fault::no_space()
            .on(&[OpKind::Append])
            .path_with("MANIFEST")
            .after_effect(),
    );
    // Another thread may have tried again before anybody is told.
    let flushed = db.flush();
    assert!(flushed.map_or_else(|e| e.kind() == ErrorKind::NoSpace, |()| true));
    until(|| db.resume().is_ok() && db.flush().is_ok());
    db.wait_for_background_work().unwrap();
    assert_eq!(keys(&db), ["a"]);
    // A look for work may hold them for a moment.
    until(|| {
        let names = disk.memory.list(DIR.as_ref()).unwrap();
        let tables = names.iter().filter(|n| n.ends_with(".sst")).count();
        let manifests = names.iter().filter(|n| n.starts_with("MANIFEST")).count();
        (tables, manifests) == (1, 1)
    });
}

#[test]
fn a_compaction_without_space_does_not_stop_writes_and_is_tried_again() {
    let disk = Disk::new();
    let mut options = disk.options();
    options.cf.level0_file_num_compaction_trigger = 100;
    options.cf.level0_slowdown_writes_trigger = 200;
    options.cf.level0_stop_writes_trigger = 300;
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    for _ in 0..2 {
        db.put(b"a", b"1").unwrap();
        db.put(b"z", b"1").unwrap();
        db.flush().unwrap();
    }
    drop(db);
    options.cf.level0_file_num_compaction_trigger = 2;
    disk.fill(
        Fault::no_space()
            .on(&[OpKind::Create])
            .path_with(".sst")
            .forever(),
    );
    let db2 = Db::open(DIR, &options).unwrap();
    until(|| disk.heard.errors.load(Ordering::SeqCst) >= 3);
    db2.put(b"b", b"1").unwrap();
    assert_eq!(db2.int_property(&cf, "orogen.out-of-space"), Some(0));
    assert_eq!(
        db2.wait_for_background_work().unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    assert_eq!(db2.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    disk.free();
    until(|| db2.wait_for_background_work().is_ok());
    assert!(db2.live_files().iter().all(|f| f.level > 0));
    assert_eq!(disk.heard.begun.load(Ordering::SeqCst), 0);
}

#[test]
fn a_broken_device_is_not_taken_for_a_full_one() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.options()).unwrap();
    let cf = db.default_column_family();
    disk.fill(Fault::io().on(&[OpKind::Sync]).path_with(".log"));
    assert_eq!(
        db.put_opt(&SYNC, &cf, b"a", b"1").unwrap_err().kind(),
        ErrorKind::Io
    );
    assert_eq!(db.put(b"b", b"1").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(db.resume().unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(state(&db).starts_with("read-only"));
}

#[test]
fn a_device_that_breaks_while_the_database_resumes_makes_it_read_only() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.by_hand()).unwrap();
    disk.fill(Fault::no_space().on(&[OpKind::Append]).path_with(".log"));
    assert!(db.put(b"a", b"1").is_err());
    disk.fill(Fault::io().on(&[OpKind::Truncate]));
    assert_eq!(db.resume().unwrap_err().kind(), ErrorKind::Io);
    disk.free();
    assert_eq!(db.resume().unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn writers_that_wait_for_a_flush_are_refused_when_it_finds_no_space() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.options()).unwrap();
    disk.fill(
        Fault::no_space()
            .on(&[OpKind::Create])
            .path_with(".sst")
            .forever(),
    );
    let mut refused = None;
    for n in 0..200u32 {
        if let Err(e) = db.put(&n.to_be_bytes(), &[7; 1000]) {
            refused = Some((n, e));
            break;
        }
    }
    let (n, error) = refused.expect("memtables do not grow without end");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    disk.free();
    until(|| db.put(b"more", b"1").is_ok());
    assert_eq!(scan(&db, &db.default_column_family()).len(), n as usize + 1);
    db.close().unwrap();
}

#[test]
fn closing_a_database_without_space_returns_and_keeps_what_was_acknowledged() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.options()).unwrap();
    db.put(b"a", b"1").unwrap();
    disk.fill(
        Fault::no_space()
            .on(&[OpKind::Append, OpKind::Create])
            .forever(),
    );
    assert!(db.put(b"b", b"1").is_err());
    db.close().unwrap();
    assert_eq!(db.resume().unwrap_err().kind(), ErrorKind::Closed);
    drop(db);
    disk.free();
    assert_eq!(keys_after_a_crash(&disk, PowerCut::KeepAll), ["a"]);
}

#[test]
fn writers_that_wait_for_a_compaction_are_told_when_it_finds_no_space() {
    let disk = Disk::new();
    let mut options = disk.options();
    options.cf.level0_file_num_compaction_trigger = 2;
    options.cf.level0_slowdown_writes_trigger = 3;
    options.cf.level0_stop_writes_trigger = 4;
    let db = Db::open(DIR, &options).unwrap();
    for _ in 0..2 {
        db.put(b"a", b"1").unwrap();
        db.put(b"z", b"1").unwrap();
        db.flush().unwrap();
        db.wait_for_background_work().unwrap();
    }
    let cf = db.default_column_family();
    // Flushes read no table: only compactions fail.
    let reads = Fault::no_space().on(&[OpKind::Read]).path_with(".sst");
    disk.fill(reads.forever());
    // Overlapping tables, else they are moved and not rewritten.
    let put = |n: u32| db.put(&(n * 7919 % 1000).to_be_bytes(), &[7; 1000]);
    let told = (0..2000).find_map(|n| put(n).err());
    let told = told.expect("writers stop");
    assert_eq!(told.kind(), ErrorKind::NoSpace);
    assert!(told.context("cause").unwrap().contains("level-0"), "{told}");
    assert_eq!(db.int_property(&cf, "orogen.out-of-space"), Some(0));
    disk.free();
    until(|| db.put(b"again", b"1").is_ok());
}

fn put_unlogged(db: &Db, key: &[u8]) {
    let unlogged = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    db.put_opt(&unlogged, &db.default_column_family(), key, b"1")
        .expect("writes are taken");
}

#[test]
fn a_close_flushes_what_no_log_has_or_says_that_it_cannot() {
    for is_free in [true, false] {
        let disk = Disk::new();
        let db = Db::open(DIR, &disk.by_hand()).unwrap();
        put_unlogged(&db, b"u");
        let full = Fault::no_space().on(&[OpKind::Append]).path_with(".sst");
        disk.fill(full.forever());
        assert!(db.flush().is_err());
        if is_free {
            disk.free();
        }
        let closed = db.close();
        drop(db);
        disk.free();
        let found = keys_after_a_crash(&disk, PowerCut::KeepAll);
        match is_free {
            true => assert_eq!((closed.unwrap(), found), ((), vec!["u".to_owned()])),
            false => assert_eq!(closed.unwrap_err().kind(), ErrorKind::NoSpace),
        }
    }
}

/// A log that the MANIFEST names for a family that was dropped is synced still.
#[test]
fn a_log_that_was_deleted_is_not_written_once_more() {
    let memory = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(memory.clone());
    let mut options = small(&memory);
    options.db.fs = Arc::new(fs.clone());
    options.db.max_bgerror_resume_count = 0;
    let db = Db::open(DIR, &options).unwrap();
    let mut waits = options.cf;
    waits.min_write_buffer_number_to_merge = 2;
    waits.max_write_buffer_number = 6;
    let waiting = db.create_column_family("waiting", waits).unwrap();
    let logs = || {
        let names = memory.list(Path::new(DIR)).expect("it is there");
        names.iter().filter(|name| name.ends_with(".log")).count()
    };
    let before = logs();
    let mut n = 0u32;
    while logs() == before {
        db.put_opt(
            &WriteOptions::default(),
            &waiting,
            &n.to_be_bytes(),
            &[7; 500],
        )
        .unwrap();
        n += 1;
    }
    db.drop_column_family(&waiting).unwrap();
    assert_eq!(logs(), before, "the older one is gone");
    let full = Fault::no_space().on(&[OpKind::Sync]).path_with(".log");
    fs.faults().add(full);
    let synced = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    let family = db.default_column_family();
    assert!(db.put_opt(&synced, &family, b"x", b"1").is_err());
    db.resume().unwrap();
    db.put_opt(&synced, &family, b"y", b"1").unwrap();
    let found = Db::open(DIR, &small(&memory.crash(PowerCut::DropUnsynced))).unwrap();
    assert!(found.get(b"y").unwrap().is_some());
}

#[test]
fn a_close_says_nothing_of_what_logs_have() {
    let disk = Disk::new();
    let db = Db::open(DIR, &disk.by_hand()).unwrap();
    put_unlogged(&db, b"u");
    db.flush().unwrap();
    db.put(b"logged", b"1").unwrap();
    let full = Fault::no_space().on(&[OpKind::Append]).path_with(".sst");
    disk.fill(full.forever());
    assert!(db.flush().is_err());
    db.close().unwrap();
    drop(db);
    disk.free();
    let found = keys_after_a_crash(&disk, PowerCut::KeepAll);
    assert_eq!(found, ["logged", "u"]);
}
