//! Places where threads, errors and disk could surprise the database.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_base::key::InternalKeyComparator;
use orogen_engine::version::edit::VersionEdit;
use orogen_engine::version::{FileMeta, manifest};
use orogen_engine::{
    BottommostLevelCompaction, CompactRangeOptions, Db, FlushOptions, ReadOptions, WriteBatch,
    WriteOptions,
};
use orogen_env::fault::{Fault, OpKind};
use orogen_env::fs::write_file;
use orogen_env::{FaultFileSystem, FileSystem, MemFileSystem, PowerCut};

use crate::hole_hazards::add_edit;
use crate::steer::{
    Gate, HookFileSystem, LONG, Op, Told, ends, hold_flushes_of, on_thread, settle, until,
};
use crate::support::{DIR, scan, small};

const NO_WAIT: FlushOptions = FlushOptions { wait: false };

#[test]
fn a_checkpoint_holds_what_was_written_between_its_flush_and_its_moment() {
    let fs = MemFileSystem::new();
    let holder: Arc<OnceLock<Db>> = Arc::default();
    let theirs = holder.clone();
    let copying = Arc::new(AtomicBool::new(false));
    let on = copying.clone();
    let mut options = small(&fs);
    options.db.listeners = vec![Arc::new(Told {
        flush_completed: Some(Box::new(move |_| {
            if let (Some(db), true) = (theirs.get(), on.load(Ordering::SeqCst)) {
                db.put(b"late", b"1").unwrap();
            }
        })),
        ..Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    let _ = holder.set(db.clone());
    db.put(b"early", b"1").unwrap();
    copying.store(true, Ordering::SeqCst);
    db.checkpoint("/copy").unwrap();
    let copy = Db::open("/copy", &small(&fs)).unwrap();
    assert!(copy.get(b"early").unwrap().is_some());
    assert!(copy.get(b"late").unwrap().is_some());
}

#[test]
fn a_checkpoint_of_a_read_only_database_holds_what_is_in_its_logs() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"k", b"1").unwrap();
    let reader = Db::open_read_only(DIR, &small(&fs)).unwrap();
    reader.checkpoint("/copy").unwrap();
    let copy = Db::open("/copy", &small(&fs)).unwrap();
    assert!(copy.get(b"k").unwrap().is_some());
}

#[test]
fn who_waits_for_a_flush_is_told_when_the_family_is_dropped() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.db.max_background_jobs = 1;
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let family = db.create_column_family("other", options.cf).unwrap();
    db.put(b"k", b"1").unwrap();
    db.flush_opt(&NO_WAIT, &[db.default_column_family()])
        .unwrap();
    gate.wait_for(1);
    db.put_opt(&WriteOptions::default(), &family, b"k", b"1")
        .unwrap();
    let (theirs, handle) = (db.clone(), family.clone());
    let waiter = on_thread(move || theirs.flush_opt(&FlushOptions::default(), &[handle]));
    until(|| db.int_property(&family, "rocksdb.num-immutable-mem-table") == Some(1));
    // Far beyond the time that the waiter needs to fall asleep.
    settle();
    db.drop_column_family(&family).unwrap();
    let told = waiter.recv_timeout(LONG);
    gate.open();
    told.expect("the waiter is woken").unwrap();
}

#[test]
fn who_waits_for_a_flush_is_told_when_the_manifest_fails_under_another() {
    let fs = Arc::new(FaultFileSystem::over_memory(MemFileSystem::new()));
    let gate = Gate::new();
    let mut options = small(&MemFileSystem::new());
    options.db.fs = fs.clone();
    options.db.max_background_jobs = 1;
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let family = db
        .create_column_family("other", options.cf.clone())
        .unwrap();
    db.put(b"k", b"1").unwrap();
    db.flush_opt(&NO_WAIT, &[db.default_column_family()])
        .unwrap();
    gate.wait_for(1);
    db.put_opt(&WriteOptions::default(), &family, b"k", b"1")
        .unwrap();
    let (theirs, handle) = (db.clone(), family.clone());
    let waiter = on_thread(move || theirs.flush_opt(&FlushOptions::default(), &[handle]));
    until(|| db.int_property(&family, "rocksdb.num-immutable-mem-table") == Some(1));
    settle();
    fs.faults()
        .add(Fault::io().on(&[OpKind::Sync]).path_with("MANIFEST"));
    db.create_column_family("third", options.cf).unwrap_err();
    let told = waiter.recv_timeout(LONG);
    gate.open();
    assert_eq!(
        told.expect("the waiter is woken").unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
}

#[test]
fn close_waits_for_a_manual_compaction() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let theirs = gate.clone();
    let mut options = small(&fs);
    options.db.listeners = vec![Arc::new(Told {
        compaction_begin: Some(Box::new(move |_| theirs.pass())),
        ..Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    let other = db.clone();
    db.put(b"k", b"1").unwrap();
    let compaction = on_thread(move || {
        let family = other.default_column_family();
        let force = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        other.compact_range(&force, &family, None, None)
    });
    gate.wait_for(1);
    let closing = on_thread(move || db.close());
    // Were close to return now, the compaction would go on in a directory of somebody else.
    let early = closing.recv_timeout(Duration::from_millis(100));
    gate.open();
    assert!(early.is_err(), "closed while a compaction runs");
    ends(&closing).unwrap();
    let _ = ends(&compaction);
    let db = Db::open(DIR, &small(&fs)).unwrap();
    assert!(db.get(b"k").unwrap().is_some());
}

#[test]
fn only_logs_that_carry_their_number_are_written_over() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.avoid_flush_during_recovery = true;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..50u32 {
        db.put(&n.to_be_bytes(), b"old").unwrap();
    }
    drop(db);
    options.db.recycle_log_file_num = 2;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..3u32 {
        db.put(&n.to_be_bytes(), b"new").unwrap();
        db.flush().unwrap();
        until(|| {
            db.int_property(&db.default_column_family(), "rocksdb.num-running-flushes") == Some(0)
        });
        db.wait_for_background_work().unwrap();
    }
    db.put(b"last", b"1").unwrap();
    let crashed = fs.fork();
    let db = Db::open(DIR, &small(&crashed)).unwrap();
    for n in 0..50u32 {
        let want: &[u8] = if n < 3 { b"new" } else { b"old" };
        assert_eq!(&*db.get(&n.to_be_bytes()).unwrap().unwrap(), want, "{n}");
    }
    assert!(db.get(b"last").unwrap().is_some());
}

#[test]
fn writers_do_not_stop_below_what_starts_a_compaction() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.level0_file_num_compaction_trigger = 4;
    options.cf.level0_slowdown_writes_trigger = 1;
    options.cf.level0_stop_writes_trigger = 2;
    options.cf.soft_pending_compaction_bytes_limit = 1;
    options.cf.hard_pending_compaction_bytes_limit = 0;
    let db = Db::open(DIR, &options).unwrap();
    let writer = on_thread(move || {
        for n in 0..12u32 {
            db.put(&n.to_be_bytes(), &[7; 3000]).unwrap();
            db.flush().unwrap();
        }
        db.wait_for_background_work().unwrap();
    });
    ends(&writer);
}

#[test]
fn a_single_level_is_made_two() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.num_levels = 1;
    let db = Db::open(DIR, &options).unwrap();
    let writer = on_thread(move || {
        for n in 0..60u32 {
            db.put(&n.to_be_bytes(), b"v").unwrap();
            db.flush().unwrap();
        }
        db.compact_range(&Default::default(), &db.default_column_family(), None, None)
            .unwrap();
        scan(&db, &db.default_column_family()).len()
    });
    assert_eq!(ends(&writer), 60);
}

#[test]
fn logs_beyond_their_bound_are_freed_though_flushes_wait_for_more_memtables() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 1 << 20;
    options.cf.min_write_buffer_number_to_merge = 3;
    options.cf.max_write_buffer_number = 6;
    options.db.max_total_wal_size = 64 << 10;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..200u32 {
        db.put(&n.to_be_bytes(), &[7; 1000]).unwrap();
    }
    until(|| !db.live_files().is_empty());
}

#[test]
fn a_write_that_must_not_wait_does_not_queue_behind_one_that_does() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let other = db.clone();
    let writer = on_thread(move || {
        for n in 0..100u32 {
            other.put(&n.to_be_bytes(), &[7; 1000]).unwrap();
        }
    });
    let family = db.default_column_family();
    until(|| db.int_property(&family, "rocksdb.is-write-stopped") == Some(1));
    settle();
    let theirs = db;
    let hasty = on_thread(move || {
        let options = WriteOptions {
            no_slowdown: true,
            ..WriteOptions::default()
        };
        theirs.put_opt(&options, &theirs.default_column_family(), b"k", b"v")
    });
    let told = hasty.recv_timeout(LONG);
    gate.open();
    ends(&writer);
    assert_eq!(
        told.expect("it does not wait").unwrap_err().kind(),
        ErrorKind::Busy
    );
}

#[test]
fn write_buffers_without_bound_are_taken() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = u64::MAX;
    let db = Db::open(DIR, &options).unwrap();
    db.create_column_family("other", options.cf).unwrap();
    db.put(b"k", b"v").unwrap();
}

#[test]
fn a_log_with_impossible_numbers_is_an_error() {
    let log = |fs: &MemFileSystem, number: u64, seqno: u64| {
        let path = format!("{DIR}/{number:06}.log");
        let mut batch = WriteBatch::new();
        batch.put(0, b"k", b"v");
        batch.put(0, b"l", b"v");
        let mut bytes = batch.as_bytes().to_vec();
        bytes[..8].copy_from_slice(&seqno.to_le_bytes());
        let file = fs.create(Path::new(&path)).unwrap();
        let mut writer = orogen_wal::Writer::new(file, number, false);
        writer.add_record(&bytes).unwrap();
    };
    for (number, seqno) in [(100, u64::MAX), (100, (1 << 56) - 1), (u64::MAX, 7)] {
        let fs = MemFileSystem::new();
        drop(Db::open(DIR, &small(&fs)).unwrap());
        log(&fs, number, seqno);
        let error = Db::open(DIR, &small(&fs)).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Corruption, "{number} {seqno}");
    }
}

#[test]
fn a_database_that_appears_while_the_lock_is_taken_is_opened_and_not_made_anew() {
    let fs = MemFileSystem::new();
    let below = fs.clone();
    let hooked = HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Lock {
            let db = Db::open(DIR, &small(&below)).unwrap();
            db.put(b"k", b"v").unwrap();
            db.flush().unwrap();
        }
    });
    let mut options = small(&fs);
    options.db.fs = Arc::new(hooked);
    let db = Db::open(DIR, &options).unwrap();
    assert!(db.get(b"k").unwrap().is_some());
}

#[test]
fn families_of_another_database_are_refused() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let other = Db::open("/other", &small(&fs)).unwrap();
    let cf = small(&fs).cf;
    db.create_column_family("mine", cf.clone()).unwrap();
    let foreign = other.create_column_family("theirs", cf).unwrap();
    other
        .put_opt(&WriteOptions::default(), &foreign, b"k", b"v")
        .unwrap();
    let refused = [
        db.drop_column_family(&foreign),
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&foreign)),
        db.compact_range(&CompactRangeOptions::default(), &foreign, None, None),
    ];
    for result in refused {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert!(db.column_family("mine").is_some());
}

#[test]
fn a_listener_may_write_and_flush_when_writers_are_slowed() {
    struct Writes(OnceLock<Db>, AtomicBool);
    impl orogen_engine::events::EventListener for Writes {
        fn on_stall_conditions_changed(&self, _: &orogen_engine::events::StallInfo) {
            if let Some(db) = self.0.get()
                && !self.1.swap(true, Ordering::SeqCst)
            {
                db.sync_wal().unwrap();
            }
        }
    }
    let fs = MemFileSystem::new();
    let listener = Arc::new(Writes(OnceLock::new(), AtomicBool::new(false)));
    let mut options = small(&fs);
    options.cf.max_write_buffer_number = 4;
    options.db.max_background_jobs = 1;
    let gate = Gate::new();
    options.db.listeners = vec![listener.clone(), hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let _ = listener.0.set(db.clone());
    let family = db.default_column_family();
    let writer = on_thread(move || {
        for n in 0..100u32 {
            db.put(&n.to_be_bytes(), &[7; 1000]).unwrap();
        }
        db
    });
    gate.wait_for(1);
    until(|| listener.1.load(Ordering::SeqCst));
    gate.open();
    let db = ends(&writer);
    assert_eq!(scan(&db, &family).len(), 100);
}

#[test]
fn a_job_that_panics_makes_the_database_read_only_and_wakes_everybody() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.listeners = vec![Arc::new(Told {
        flush_begin: Some(Box::new(|_| panic!("listener panics for the test"))),
        ..Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"k", b"v").unwrap();
    let theirs = db.clone();
    let flush = on_thread(move || theirs.flush());
    assert_eq!(ends(&flush).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(db.put(b"k", b"v").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(db.get(b"k").unwrap().is_some());
    db.close().unwrap();
}

#[test]
fn the_table_of_a_flush_whose_family_is_dropped_meanwhile_goes() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = small(&fs);
    options.db.listeners = vec![hold_flushes_of("other", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let family = db.create_column_family("other", options.cf).unwrap();
    db.put_opt(&WriteOptions::default(), &family, b"k", b"1")
        .unwrap();
    db.flush_opt(&NO_WAIT, std::slice::from_ref(&family))
        .unwrap();
    gate.wait_for(1);
    db.drop_column_family(&family).unwrap();
    gate.open();
    db.close().unwrap();
    let names = fs.list(Path::new(DIR)).unwrap();
    assert!(!names.iter().any(|n| n.ends_with(".sst")), "{names:?}");
    let got = db.get_opt(&ReadOptions::default(), &family, b"k").unwrap();
    assert!(got.is_some(), "the handle reads what it last saw");
}

#[test]
fn odd_arguments_do_what_they_say() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let cf = db.default_column_family();
    let write = WriteOptions::default();
    db.put(b"", b"empty key").unwrap();
    db.put(b"k", b"").unwrap();
    db.write(WriteBatch::new()).unwrap();
    let sync = WriteOptions {
        sync: true,
        ..write
    };
    db.write_opt(&sync, &mut WriteBatch::new()).unwrap();
    let mut batch = WriteBatch::new();
    batch.put_log_data(b"only for readers of the log");
    db.write(batch).unwrap();
    let mut batch = WriteBatch::new();
    batch.delete_range(0, b"k", b"k");
    db.write(batch.clone()).unwrap();
    batch.delete_range(0, b"z", b"a");
    assert_eq!(
        db.write(batch).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    for _ in 0..2 {
        assert_eq!(&*db.get(b"").unwrap().unwrap(), b"empty key");
        assert_eq!(scan(&db, &cf).len(), 2);
        db.flush().unwrap();
    }
    let refused = db.delete_range_opt(&write, &cf, b"b", b"a").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let neither = WriteOptions {
        sync: true,
        disable_wal: true,
        ..write
    };
    let refused = db.put_opt(&neither, &cf, b"k", b"v").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let other = Db::open("/other", &small(&fs)).unwrap();
    let foreign = ReadOptions {
        snapshot: Some(other.snapshot()),
        ..ReadOptions::default()
    };
    assert!(db.get_opt(&foreign, &cf, b"k").is_err());
    assert!(db.iter(&foreign, &cf).is_err());
    drop(other);
    let before = db.latest_sequence_number();
    drop(db);
    let db = Db::open(DIR, &small(&fs)).unwrap();
    assert_eq!(db.latest_sequence_number(), before);
    assert_eq!(scan(&db, &db.default_column_family()).len(), 2);
    let snapshot = db.snapshot();
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .unwrap();
    drop(db);
    iter.seek_to_first();
    assert!(iter.valid() && iter.key().is_empty());
    drop((iter, snapshot));
}

#[test]
fn what_is_no_database_is_refused_in_words() {
    let fs = MemFileSystem::new();
    let refuse = |options: &orogen_engine::Options| {
        Db::open(DIR, options).err().expect("refused").to_string()
    };
    let mut options = small(&fs);
    options.db.create_if_missing = false;
    assert!(refuse(&options).contains("create_if_missing"));
    assert!(Db::list_column_families(DIR, &options).is_err());
    drop(Db::open(DIR, &small(&fs)).unwrap());
    options.db.error_if_exists = true;
    assert!(refuse(&options).contains("already"));
    let mut options = small(&fs);
    options
        .families
        .insert("new".to_owned(), options.cf.clone());
    assert!(refuse(&options).contains("create_missing_column_families"));
    options.db.create_missing_column_families = true;
    drop(Db::open(DIR, &options).unwrap());
    options.cf.comparator =
        orogen_base::UserComparator::by_name("rocksdb.ReverseBytewiseComparator").unwrap();
    assert!(refuse(&options).contains("comparator"));
    for garbage in [
        &b""[..],
        b"\n",
        b"MANIFEST-\n",
        b"../../etc\n",
        b"MANIFEST-000001",
    ] {
        write_file(&fs, Path::new("/db/CURRENT"), garbage).unwrap();
        assert!(Db::open(DIR, &small(&fs)).is_err());
        assert!(Db::open_read_only(DIR, &small(&fs)).is_err());
        assert!(Db::list_column_families(DIR, &small(&fs)).is_err());
    }
    Db::destroy(DIR, &small(&fs)).unwrap();
    assert!(!fs.exists(Path::new(DIR)).unwrap());
    Db::destroy(DIR, &small(&fs)).unwrap();
}

#[test]
fn a_directory_is_locked_until_nothing_of_it_is_left() {
    let fs = MemFileSystem::new();
    drop(Db::open(DIR, &small(&fs)).unwrap());
    let below = fs.clone();
    let was_looked_at = Arc::new(AtomicBool::new(false));
    let looks = was_looked_at.clone();
    let hooked = HookFileSystem::new(&fs, move |op, path| {
        if op == Op::Remove && path.ends_with("LOCK") {
            let locked = below.lock(path).err().map(|e| e.kind());
            assert_eq!(locked, Some(ErrorKind::Busy));
            looks.store(true, Ordering::Relaxed);
        }
    });
    let mut options = small(&fs);
    options.db.fs = Arc::new(hooked);
    Db::destroy(DIR, &options).unwrap();
    assert!(was_looked_at.load(Ordering::Relaxed));
    assert!(!fs.exists(Path::new(DIR)).unwrap());
}

#[test]
fn fewer_levels_than_on_disk_are_made_as_many() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"k", b"v").unwrap();
    db.compact_range(&Default::default(), &db.default_column_family(), None, None)
        .unwrap();
    drop(db);
    options.cf.num_levels = 3;
    let db = Db::open(DIR, &options).unwrap();
    assert!(db.get(b"k").unwrap().is_some());
    assert_eq!(db.default_column_family().options().num_levels, 7);
}

#[test]
fn nothing_of_a_database_whose_destruction_was_cut_short_comes_back() {
    let mut refused = 0;
    for calls in 0..20 {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &small(&fs)).unwrap();
        db.put(b"flushed", b"1").unwrap();
        db.flush().unwrap();
        drop(db);
        // The log has a higher number than the table, and goes after it.
        let db = Db::open(DIR, &small(&fs)).unwrap();
        db.put(b"logged", b"1").unwrap();
        drop(db);
        fs.crash_after(calls);
        let _ = Db::destroy(DIR, &small(&fs));
        let image = fs.crash(PowerCut::KeepAll);
        let is_whole = image.exists(&Path::new(DIR).join("CURRENT")).unwrap();
        match Db::open(DIR, &small(&image)) {
            Ok(db) => {
                let found = db.get(b"logged").unwrap();
                assert_eq!(found.is_some(), is_whole, "{calls}");
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{calls}: {e}");
                assert!(!is_whole, "{calls}: {e}");
                refused += 1;
                Db::destroy(DIR, &small(&image)).unwrap();
                Db::open(DIR, &small(&image)).unwrap();
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn what_the_next_manifest_would_lose_is_refused_and_nothing_is_written() {
    type Change = Box<dyn Fn(&mut VersionEdit, FileMeta)>;
    let changes: [(&str, Change); 3] = [
        (
            "a table in another path",
            Box::new(|edit, table| {
                edit.delete_file(0, table.number);
                let moved = FileMeta {
                    path_id: 1,
                    ..table
                };
                edit.add_file(0, Arc::new(moved));
            }),
        ),
        (
            "history that was trimmed",
            Box::new(|edit, _| edit.full_history_ts_low = Some(vec![0; 8])),
        ),
        (
            "timestamps that are not kept",
            Box::new(|edit, _| {
                // RocksDB says both together.
                edit.comparator = Some("leveldb.BytewiseComparator".to_owned());
                edit.persist_user_defined_timestamps = Some(false);
            }),
        ),
    ];
    for (what, change) in changes {
        let fs = MemFileSystem::new();
        let options = small(&fs);
        let db = Db::open(DIR, &options).unwrap();
        db.put(b"a", b"1").unwrap();
        db.flush().unwrap();
        db.close().unwrap();
        drop(db);
        let (_, found) = manifest::recover_current(&fs, Path::new(DIR)).unwrap();
        let family = &found.families[&0];
        let version = family
            .version(&InternalKeyComparator::default(), 7)
            .unwrap();
        let (_, table) = version.iter_files().next().unwrap();
        let mut edit = VersionEdit::of_column_family(0);
        change(&mut edit, FileMeta::clone(table));
        add_edit(&fs, &edit);
        let before = fs.list(Path::new(DIR)).unwrap();
        let refused = Db::open(DIR, &options).err().map(|e| e.kind());
        assert_eq!(refused, Some(ErrorKind::NotSupported), "{what}");
        let refused = Db::open_read_only(DIR, &options).err().map(|e| e.kind());
        assert_eq!(refused, Some(ErrorKind::NotSupported), "{what}");
        let mut after = fs.list(Path::new(DIR)).unwrap();
        after.retain(|name| !name.starts_with("LOG"));
        let mut before = before;
        before.retain(|name| !name.starts_with("LOG"));
        assert_eq!(after, before, "{what}");
    }
}
