//! Copies of a moment, with the logs as they are or with everything in tables.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::{
    CheckpointOptions, ColumnFamily, CompactRangeOptions, Db, FlushOptions, Options, WriteBatch,
    WriteOptions,
};
use orogen_env::fs::write_file;
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_testkit::Rng;

use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, value, write_some,
};
use crate::holes::punching;
use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread};
use crate::support::{DIR, scan, small};

fn never_flushed() -> CheckpointOptions {
    CheckpointOptions {
        log_size_for_flush: u64::MAX,
    }
}

fn options(fs: &MemFileSystem) -> Options {
    let mut options = punching(fs);
    options.cf.merge_operator = orogen_engine::plugin::merge_operator::by_name("stringappend");
    options
}

fn logs(fs: &MemFileSystem, dir: &str) -> Vec<(String, u64)> {
    let mut found: Vec<(String, u64)> = fs
        .list(Path::new(dir))
        .expect("it is there")
        .into_iter()
        .filter(|n| n.ends_with(".log"))
        .map(|n| {
            let path = Path::new(dir).join(&n);
            let bytes = fs.metadata(&path).expect("it is there").size;
            (n, bytes)
        })
        .collect();
    found.sort();
    found
}

fn families(db: &Db, options: &Options) -> [ColumnFamily; 3] {
    let other = |name: &str| match db.column_family(name) {
        Some(family) => family,
        None => db
            .create_column_family(name, options.cf.clone())
            .expect("the disk is well"),
    };
    [db.default_column_family(), other("a"), other("b")]
}

fn assert_all(db: &Db, options: &Options, maps: &[Map; 3]) {
    for (family, map) in families(db, options).iter().zip(maps) {
        assert_holds(db, family, map, None);
        assert_exact(db, family);
    }
}

#[test]
fn small_logs_are_copied_and_large_ones_are_flushed() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..10 {
        db.put(&key(n), &[b'v'; 1000]).unwrap();
    }
    let flushes = || db.live_files().len();
    let at = |log_size_for_flush, dir: &str| {
        let how = CheckpointOptions { log_size_for_flush };
        db.checkpoint_opt(&how, dir).unwrap();
    };
    at(u64::MAX, "/never");
    at(20_000, "/small");
    assert_eq!(flushes(), 0);
    assert_eq!(logs(&fs, "/small").len(), 1);
    at(10_000, "/large");
    assert_eq!(flushes(), 1);
    // Of the new log there is what ties it to the one before.
    assert!(logs(&fs, "/large").iter().all(|(_, bytes)| *bytes < 100));
    db.put(&key(10), &[b'v'; 1000]).unwrap();
    db.checkpoint("/default").unwrap();
    assert_eq!(flushes(), 2);
    for (dir, keys) in [
        ("/never", 10),
        ("/small", 10),
        ("/large", 10),
        ("/default", 11),
    ] {
        let copy = Db::open(dir, &options).unwrap();
        assert_eq!(
            scan(&copy, &copy.default_column_family()).len(),
            keys,
            "{dir}"
        );
    }
}

#[test]
fn what_was_written_without_a_log_is_in_the_copy() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let unlogged = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    let family = db.default_column_family();
    db.put_opt(&unlogged, &family, b"unlogged", &[b'v'; 1000])
        .unwrap();
    db.put(b"logged", b"v").unwrap();
    db.checkpoint_opt(&never_flushed(), "/copy").unwrap();
    let copy = Db::open("/copy", &options).unwrap();
    assert_eq!(scan(&copy, &copy.default_column_family()).len(), 2);
}

#[test]
fn copies_with_logs_hold_every_family_whatever_becomes_of_the_files() {
    for seed in 0..6 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let mut options = options(&fs);
        options.db.max_background_jobs = 2;
        options.db.recycle_log_file_num = if rng.chance(1, 2) { 2 } else { 0 };
        options.cf.enable_blob_garbage_collection = rng.chance(1, 2);
        options.cf.blob_garbage_collection_age_cutoff = 1.0;
        let db = Db::open(DIR, &options).unwrap();
        let all = families(&db, &options);
        let mut maps: [Map; 3] = Default::default();
        let mut copies = Vec::new();
        for round in 0..6 {
            for (family, map) in all.iter().zip(&mut maps) {
                write_some(&db, family, &mut rng, map, 60);
                match rng.below(4) {
                    0 => db
                        .flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
                        .unwrap(),
                    1 => db
                        .compact_range(&CompactRangeOptions::default(), family, None, None)
                        .unwrap(),
                    _ => {}
                }
            }
            let name = format!("t{round}");
            let mut prepared = WriteBatch::new();
            for family in &all {
                prepared.put(family.id(), name.as_bytes(), &value(&mut rng));
            }
            db.prepare(&WriteOptions::default(), name.as_bytes(), prepared)
                .unwrap();
            let dir = format!("/copy{round}");
            let flushed = db.statistics().get(Ticker::FlushWriteBytes);
            db.checkpoint_opt(&never_flushed(), &dir).unwrap();
            // Nobody else flushes here.
            assert_eq!(db.statistics().get(Ticker::FlushWriteBytes), flushed);
            let prepared: Vec<Vec<u8>> = db.prepared_writes().into_iter().map(|p| p.name).collect();
            copies.push((dir, maps.clone(), prepared));
            if rng.chance(1, 2) {
                db.rollback_prepared(&WriteOptions::default(), name.as_bytes())
                    .unwrap();
            }
        }
        // Holes, collections and logs that are written over are the first one's alone.
        for family in &all {
            for n in 0..60 {
                db.delete_opt(&WriteOptions::default(), family, &key(n))
                    .unwrap();
            }
            compact_all(&db, family);
        }
        db.wait_for_background_work().unwrap();
        for (dir, maps, prepared) in copies {
            let cut = if rng.chance(1, 2) {
                PowerCut::DropUnsynced
            } else {
                PowerCut::KeepAll
            };
            let fs = fs.crash(cut);
            let mut options = options.clone();
            options.db.fs = Arc::new(fs.clone());
            let copy = Db::open(&dir, &options).unwrap();
            assert_all(&copy, &options, &maps);
            let names: Vec<Vec<u8>> = copy.prepared_writes().into_iter().map(|p| p.name).collect();
            assert_eq!(names, prepared);
            for name in names {
                copy.commit_prepared(&WriteOptions::default(), &name)
                    .unwrap();
                for family in &families(&copy, &options) {
                    let found = copy.get_opt(&Default::default(), family, &name).unwrap();
                    assert!(found.is_some());
                }
            }
            for family in &families(&copy, &options) {
                compact_all(&copy, family);
            }
            copy.wait_for_background_work().unwrap();
            for family in &families(&copy, &options) {
                assert_exact(&copy, family);
            }
        }
    }
}

#[test]
fn a_copy_with_logs_is_of_one_moment_while_others_write() {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.write_buffer_size = 16 << 10;
    let db = Db::open(DIR, &options).unwrap();
    let [_, a, b] = families(&db, &options);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let mut batch = WriteBatch::new();
                for family in [&a, &b] {
                    batch.put(family.id(), format!("{n:08}").as_bytes(), &[b'v'; 300]);
                }
                db.write(batch).unwrap();
                n += 1;
            }
        });
        for i in 0..12 {
            let how = CheckpointOptions {
                log_size_for_flush: if i % 3 == 0 { 30_000 } else { u64::MAX },
            };
            let before = db.latest_sequence_number();
            let dir = format!("/copy{i}");
            db.checkpoint_opt(&how, &dir).unwrap();
            let copy = Db::open(&dir, &options).unwrap();
            let [_, a, b] = families(&copy, &options);
            let pairs = scan(&copy, &a);
            assert_eq!(pairs, scan(&copy, &b));
            assert!(pairs.len() as u64 * 2 >= before);
            let first = pairs.iter().enumerate();
            assert!(
                first
                    .into_iter()
                    .all(|(n, p)| p.0 == format!("{n:08}").as_bytes())
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_power_cut_while_logs_are_copied_leaves_a_whole_copy_or_none() {
    let prepare = || {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        let db = Db::open(DIR, &options).unwrap();
        let mut rng = Rng::new(3);
        let mut maps: [Map; 3] = Default::default();
        for (family, map) in families(&db, &options).iter().zip(&mut maps) {
            write_some(&db, family, &mut rng, map, 60);
            db.flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
                .unwrap();
            write_some(&db, family, &mut rng, map, 30);
        }
        let mut batch = WriteBatch::new();
        batch.put(0, b"prepared", b"1");
        db.prepare(&WriteOptions::default(), b"t", batch).unwrap();
        fs.sync_all();
        (fs, options, db, maps)
    };
    let (fs, _, db, _) = prepare();
    let before = fs.op_count();
    db.checkpoint_opt(&never_flushed(), "/copy").unwrap();
    let calls = fs.op_count() - before;
    drop(db);
    let (mut whole, mut none) = (0, 0);
    for at in 0..calls + 2 {
        let (fs, options, db, maps) = prepare();
        fs.crash_after(at);
        let made = db.checkpoint_opt(&never_flushed(), "/copy").is_ok();
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: at },
        ] {
            let fs = fs.crash(cut);
            let mut options = options.clone();
            options.db.fs = Arc::new(fs.clone());
            let db = Db::open(DIR, &options).unwrap();
            assert_all(&db, &options, &maps);
            assert_no_strays(&fs, &db);
            drop(db);
            if !fs.exists(Path::new("/copy")).unwrap() {
                assert!(!made, "after call {at} of {calls}");
                none += 1;
                continue;
            }
            whole += 1;
            let copy = Db::open("/copy", &options).unwrap();
            assert_all(&copy, &options, &maps);
            assert_eq!(copy.prepared_writes().len(), 1);
        }
    }
    assert!(whole > 0 && none > 10, "{whole} {none}");
}

#[test]
fn two_do_not_make_the_same_checkpoint_at_once() {
    let fs = MemFileSystem::new();
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(true)));
    let at = gate.clone();
    let mut options = options(&fs);
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Link && armed.swap(false, Ordering::SeqCst) {
            at.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    for n in 0..3 {
        write_some(&db, &family, &mut Rng::new(n), &mut map, 50);
        db.flush().unwrap();
    }
    let making = {
        let db = db.clone();
        on_thread(move || db.checkpoint_opt(&never_flushed(), "/copy"))
    };
    gate.wait_for(1);
    let second = db.checkpoint_opt(&never_flushed(), "/copy");
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Busy);
    gate.open();
    ends(&making).unwrap();
    let copy = Db::open(Path::new("/copy"), &options).unwrap();
    assert_holds(&copy, &copy.default_column_family(), &map, None);
    let third = db.checkpoint_opt(&never_flushed(), "/copy");
    assert_eq!(third.unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.checkpoint_opt(&never_flushed(), "/other").unwrap();
}

#[test]
fn a_log_that_is_written_over_while_it_is_copied_is_no_copy() {
    for backs_up in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.db.recycle_log_file_num = 2;
        options.cf.write_buffer_size = 64 << 20;
        let writer = Db::open(DIR, &options).unwrap();
        for n in 0..400 {
            writer.put(&key(n), &[b'v'; 1000]).unwrap();
        }
        let armed = Arc::new(AtomicBool::new(false));
        let is_armed = armed.clone();
        options.db.fs = Arc::new(HookFileSystem::read_through(&fs, move |file| {
            let is_log = file.path().extension().is_some_and(|e| e == "log");
            if is_log && is_armed.swap(false, Ordering::SeqCst) {
                for round in 0..2 {
                    writer.put(b"other", &[round]).expect("memory");
                    writer.flush().expect("memory");
                    writer.wait_for_background_work().expect("memory");
                }
                // Longer than what the log held.
                writer.put(b"other", &[9; 600_000]).expect("memory");
            }
            file
        }));
        let reader = Db::open_read_only(DIR, &options).unwrap();
        armed.store(true, Ordering::SeqCst);
        let refused = match backs_up {
            true => {
                let memory: Arc<dyn FileSystem> = Arc::new(fs.clone());
                let backups = BackupOptions {
                    fs: memory,
                    ..BackupOptions::default()
                };
                let backups = BackupEngine::open("/backups", backups).unwrap();
                let made = backups.create_backup(&reader).map(|_| ());
                assert_eq!(backups.list().unwrap().len(), 0);
                made
            }
            false => reader.checkpoint_opt(&never_flushed(), "/copy"),
        };
        assert!(!armed.load(Ordering::SeqCst));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(!fs.exists(Path::new("/copy")).unwrap());
    }
}

#[test]
fn nothing_is_left_of_one_whose_name_somebody_took_meanwhile() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let below = fs.clone();
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Link {
            below.create_dir_all(Path::new("/copy")).expect("memory");
            write_file(&below, Path::new("/copy/x"), b"of somebody").expect("memory");
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a", b"1").unwrap();
    db.flush().unwrap();
    db.checkpoint("/copy").unwrap_err();
    assert_eq!(fs.list(Path::new("/copy")).unwrap(), ["x"]);
    assert!(!fs.exists(Path::new("/copy.tmp")).unwrap());
}

#[test]
fn logs_that_one_kept_go_when_it_is_made() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let gate = Gate::new();
    let held = gate.clone();
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Link {
            held.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a", b"1").unwrap();
    db.flush().unwrap();
    let other = db.clone();
    let made = on_thread(move || other.checkpoint_opt(&never_flushed(), "/copy"));
    gate.wait_for(1);
    for _ in 0..3 {
        db.put(b"a", b"2").unwrap();
        db.flush().unwrap();
    }
    db.wait_for_background_work().unwrap();
    assert!(logs(&fs, DIR).len() > 2, "they are kept");
    gate.open();
    ends(&made).unwrap();
    assert_eq!(logs(&fs, DIR).len(), 1);
}
