//! Space that comes back in the middle of blob files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::perf::{PerfContext, PerfCounter, PerfLevel};
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::repair;
use orogen_engine::{
    BottommostLevelCompaction, CollectBlobGarbageOptions, ColumnFamily, CompactRangeOptions, Db,
    FlushOptions, JobKind, JobState, Options, ReadOptions, VerifyOptions,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{
    Clock, Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, PowerCut,
    SystemClock,
};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

use crate::blobs::{assert_exact, assert_no_strays, compact_all, key, separated, w};
use crate::steer::{HookFileSystem, Op, ends, on_thread};
use crate::support::{DIR, scan};

/// Values of up to 40 KiB in files of 400 KiB; every dead byte is looked at.
pub(crate) fn punching(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.write_buffer_size = 4 << 20;
    options.cf.target_file_size_base = 1 << 20;
    options.cf.blob_file_size = 400 << 10;
    options.cf.blob_gc_auto = false;
    options.cf.blob_hole_punching_threshold = 0.0;
    options.cf.blob_hole_punching_min_bytes = 1;
    options
}

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

pub(crate) fn put(db: &Db, map: &mut Map, n: usize, rng: &mut Rng) {
    let value = vec![b'a' + rng.below(26) as u8; 1000 + rng.below(40_000) as usize];
    db.put(&key(n), &value).expect("the disk is well");
    map.insert(key(n), value);
}

pub(crate) fn fill(db: &Db, map: &mut Map, rng: &mut Rng) {
    for n in 0..60 {
        put(db, map, n, rng);
    }
    db.flush().expect("the disk is well");
}

/// Every third value is written anew or deleted, and the old ones are compacted away.
fn overwrite(db: &Db, map: &mut Map, rng: &mut Rng) {
    change(db, map, rng);
    compact_all(db, &db.default_column_family());
}

fn change(db: &Db, map: &mut Map, rng: &mut Rng) {
    for n in 0..60 {
        match rng.below(6) {
            0 => {
                db.delete(&key(n)).expect("the disk is well");
                map.remove(&key(n));
            }
            1 => put(db, map, n, rng),
            _ => {}
        }
    }
}

/// A background thread has met the fault, and the database knows.
pub(crate) fn met_a_shortage(faulty: &FaultFileSystem, db: &Db) {
    let told = || db.statistics().get(Ticker::ErrorHandlerBgErrorCount);
    wait_until(|| told() > 0, "it met no shortage");
    assert!(faulty.faults().injected() > 0);
}

/// Holes may be announced, and find no space, before the compaction that left them has answered.
fn compact_or_run_short(db: &Db) {
    let all = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    let compacted = db.compact_range(&all, &db.default_column_family(), None, None);
    assert!(compacted.map_or_else(|e| e.kind() == ErrorKind::NoSpace, |()| true));
}

fn assert_holds(db: &Db, map: &Map) {
    let family = db.default_column_family();
    let pairs: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(scan(db, &family) == pairs);
    assert_exact(db, &family);
    db.verify_checksums().expect("all is whole");
    db.verify_file_checksums().expect("all is whole");
    let scrubbed = db
        .scrub(&VerifyOptions::default(), &mut |_, _| {})
        .expect("the disk is well");
    assert!(scrubbed.damaged_blob_files.is_empty());
}

/// Disk space of all blob files, and what of it the MANIFEST says was given up.
pub(crate) fn space(fs: &MemFileSystem, db: &Db) -> (u64, u64) {
    let files = db.live_blob_files();
    let path = |n: u64| format!("{DIR}/{n:06}.blob");
    let disk = files
        .iter()
        .map(|f| fs.metadata(Path::new(&path(f.number))).expect("is there"))
        .map(|m| m.allocated)
        .sum();
    let given_up = files.iter().filter_map(|f| f.given_up_bytes).sum();
    (disk, given_up)
}

fn live_bytes(db: &Db) -> u64 {
    let files = db.live_blob_files();
    let live = |f: &orogen_engine::LiveBlobFile| f.total_blob_bytes - f.garbage_blob_bytes;
    files.iter().map(live).sum()
}

pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool, what: &str) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    panic!("{what}");
}

#[test]
fn dead_values_take_no_space_and_the_others_are_there() {
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let fs = MemFileSystem::new();
        let options = punching(&fs);
        let mut db = Db::open(DIR, &options).unwrap();
        let mut map = Map::new();
        fill(&db, &mut map, &mut rng);
        for _ in 0..6 {
            overwrite(&db, &mut map, &mut rng);
            db.wait_for_background_work().unwrap();
            assert_holds(&db, &map);
            // What is left of a dead value are its parts of two blocks, and each file has its end.
            let files = db.live_blob_files().len() as u64;
            let dead: u64 = db
                .live_blob_files()
                .iter()
                .map(|f| f.garbage_blob_count)
                .sum();
            let most = live_bytes(&db) + dead * 8192 + files * 12_288;
            // A thread that looks for work may hold an older version for a moment.
            wait_until(|| space(&fs, &db).0 <= most, "dead values take space");
            db.wait_for_background_work().unwrap();
            let (disk, given_up) = space(&fs, &db);
            assert!(dead == 0 || given_up > 0);
            if rng.chance(1, 3) {
                drop(db);
                db = Db::open(DIR, &options).unwrap();
                let now = space(&fs, &db);
                assert!(now.0 <= disk && now.1 >= given_up);
                assert_holds(&db, &map);
            }
        }
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn a_reader_from_before_keeps_the_places_that_it_sees() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let mut rng = Rng::new(1);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let before = map.clone();
    let family = db.default_column_family();
    let options = ReadOptions {
        allow_unprepared_value: true,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&options, &family).unwrap();
    iter.seek_to_first();
    let (full, _) = space(&fs, &db);
    // No snapshot: the old values are garbage at once, only the cursor's version has them.
    overwrite(&db, &mut map, &mut rng);
    wait_until(
        || {
            db.live_blob_files()
                .iter()
                .any(|f| f.given_up_bytes == Some(0))
        },
        "nothing was announced",
    );
    db.wait_for_background_work().unwrap();
    assert!(space(&fs, &db).0 >= full);
    assert_holds(&db, &map);
    for (key, value) in &before {
        assert!(iter.valid() && iter.prepare_value());
        assert!(iter.key() == &key[..] && iter.value() == &value[..]);
        iter.next();
    }
    drop(iter);
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    assert!(space(&fs, &db).0 < full);
    assert_holds(&db, &map);
}

/// The disk is full for the MANIFEST that holes are announced with.
/// A database that goes on soon after the disk was full.
fn resuming(fs: &MemFileSystem) -> (FaultFileSystem, Db) {
    let faulty = FaultFileSystem::over_memory(fs.clone());
    let mut options = punching(fs);
    options.db.fs = Arc::new(faulty.clone());
    options.db.bgerror_resume_retry_interval = 16_000;
    let db = Db::open(DIR, &options).expect("the disk is well");
    (faulty, db)
}

#[test]
fn a_shortage_while_holes_are_announced_passes_and_harms_no_reader() {
    let fs = MemFileSystem::new();
    let (faulty, db) = resuming(&fs);
    let mut rng = Rng::new(1);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let before = map.clone();
    let family = db.default_column_family();
    let reading = ReadOptions {
        allow_unprepared_value: true,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&reading, &family).unwrap();
    iter.seek_to_first();
    let full = Fault::no_space()
        .on(&[OpKind::Create])
        .path_with("MANIFEST");
    faulty.faults().add(full);
    change(&db, &mut map, &mut rng);
    compact_or_run_short(&db);
    met_a_shortage(&faulty, &db);
    faulty.faults().clear();
    wait_until(|| db.put(b"a", b"1").is_ok(), "no writes are taken");
    map.insert(b"a".to_vec(), b"1".to_vec());

    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    for (key, value) in &before {
        assert!(iter.valid() && iter.prepare_value(), "{:?}", iter.status());
        assert!(iter.key() == &key[..] && iter.value() == &value[..]);
        iter.next();
    }
    drop(iter);
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    assert_holds(&db, &map);
}

#[test]
fn what_is_written_behind_a_manifest_that_half_failed_is_found_again() {
    let fs = MemFileSystem::new();
    let (faulty, db) = resuming(&fs);
    let mut rng = Rng::new(1);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let iter = db.iter(&ReadOptions::default(), &db.default_column_family());
    // CURRENT names the new one by then.
    let full = Fault::no_space().on(&[OpKind::Rename]).path_with(".dbtmp");
    faulty.faults().add(full.after_effect());
    change(&db, &mut map, &mut rng);
    compact_or_run_short(&db);
    met_a_shortage(&faulty, &db);
    faulty.faults().clear();
    wait_until(|| db.put(b"a", b"1").is_ok(), "no writes are taken");
    map.insert(b"a".to_vec(), b"1".to_vec());
    db.flush().unwrap();
    let image = fs.crash(PowerCut::KeepAll);
    assert_holds(&Db::open(DIR, &punching(&image)).unwrap(), &map);
    drop(iter);
}

#[test]
fn a_checkpoint_is_not_harmed_and_its_files_are_left_alone() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut rng = Rng::new(2);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let before = map.clone();
    db.checkpoint("/copy").unwrap();
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    assert_eq!(space(&fs, &db).1, 0);
    assert_holds(&db, &map);
    let mut read_only = options.clone();
    read_only.cf.blob_hole_punching = false;
    assert_holds(&Db::open("/copy", &read_only).unwrap(), &before);
    // It goes, and the next look finds what it kept.
    for name in fs.list(Path::new("/copy")).unwrap() {
        fs.remove_file(&Path::new("/copy").join(name)).unwrap();
    }
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    // One that is made of files with holes has holes, and all values.
    db.checkpoint("/copy2").unwrap();
    let copy = Db::open("/copy2", &options).unwrap();
    assert_holds(&copy, &map);
    assert!(space(&fs, &copy).1 > 0);
}

#[test]
fn a_checkpoint_that_is_made_while_holes_are_punched_does_not_change_any_more() {
    let fs = MemFileSystem::new();
    let holder: Arc<OnceLock<Db>> = Arc::default();
    let copier: Arc<Mutex<Option<Receiver<()>>>> = Arc::default();
    let shared = Arc::new(AtomicBool::new(false));
    let (theirs, thread, seen, files) =
        (holder.clone(), copier.clone(), shared.clone(), fs.clone());
    let hooked = HookFileSystem::new(&fs, move |op, path| {
        let Some(db) = theirs.get().filter(|_| op == Op::PunchHole) else {
            return;
        };
        let has_two = || files.metadata(path).is_ok_and(|m| m.links == 2);
        let mut thread = thread.lock().unwrap();
        if thread.is_none() {
            let db = db.clone();
            *thread = Some(on_thread(move || db.checkpoint("/copy").unwrap()));
            // It has the time to give the file its second name, if it does not wait.
            (0..300).take_while(|_| !has_two()).for_each(|_| {
                SystemClock.sleep(Duration::from_millis(1));
            });
        }
        seen.fetch_or(has_two(), Ordering::SeqCst);
    });
    let mut options = punching(&fs);
    options.db.fs = Arc::new(hooked);
    let db = Db::open(DIR, &options).unwrap();
    let (mut rng, mut map) = (Rng::new(5), Map::new());
    fill(&db, &mut map, &mut rng);
    let _ = holder.set(db.clone());
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    // Holes wait while somebody looks for work in a version from before.
    let is_copied = || copier.lock().unwrap().is_some();
    wait_until(is_copied, "nothing was given up");
    ends(copier.lock().unwrap().as_ref().unwrap());
    assert!(
        !shared.load(Ordering::SeqCst),
        "a hole in a file with two names"
    );
    let copy = Db::open("/copy", &punching(&fs)).unwrap();
    assert_holds(&copy, &map);
}

#[test]
fn backups_hold_files_with_holes() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let backups = BackupEngine::open(
        "/backups",
        BackupOptions {
            fs: Arc::new(fs.clone()),
            ..BackupOptions::default()
        },
    )
    .unwrap();
    let mut rng = Rng::new(3);
    let mut map = Map::new();
    let mut states = Vec::new();
    fill(&db, &mut map, &mut rng);
    for _ in 0..4 {
        overwrite(&db, &mut map, &mut rng);
        if rng.chance(1, 2) {
            db.wait_for_background_work().unwrap();
        }
        let made = backups.create_backup(&db).unwrap();
        states.push((made.id, map.clone()));
    }
    db.wait_for_background_work().unwrap();
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    for (id, map) in states {
        backups.verify(id).unwrap();
        let dir = format!("/restored{id}");
        backups.restore(id, &dir).unwrap();
        assert_holds(&Db::open(&dir, &options).unwrap(), &map);
    }
}

/// All tables point to all files: each file for itself would have all of them read.
#[test]
fn checks_of_many_files_with_holes_read_tables_a_few_times() {
    let blocks = |blob_file_size: u64| {
        let fs = MemFileSystem::new();
        let mut options = punching(&fs);
        options.cf.blob_file_size = blob_file_size;
        options.cf.target_file_size_base = 4 << 10;
        options.cf.table.block_size = 512;
        let db = Db::open(DIR, &options).unwrap();
        for round in 0..3u8 {
            for n in 0..400u32 {
                let key = (n * 37 % 400).to_be_bytes();
                // The first are kept, so that the files are.
                if round == 0 || n % 2 == 0 {
                    db.put(&key, &[round; 9000]).unwrap();
                }
            }
            compact_all(&db, &db.default_column_family());
        }
        wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
        db.wait_for_background_work().unwrap();
        let files = db.live_blob_files();
        let holes = files.iter().filter(|f| f.given_up_bytes > Some(0)).count();
        let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, || {
            db.verify_checksums().unwrap();
        });
        db.scrub(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
        (holes, perf.get(PerfCounter::BlockReadCount))
    };
    let (few, many) = (blocks(1 << 20), blocks(64 << 10));
    assert!(many.0 > 4 * few.0.max(1), "{few:?} {many:?}");
    assert!(many.1 < 3 * few.1.max(1), "{few:?} {many:?}");
}

/// A copy has zeros where there were holes.
#[test]
fn what_a_backup_filled_is_given_up_again() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let backups = BackupOptions {
        fs: Arc::new(fs.clone()),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open("/backups", backups).unwrap();
    let mut rng = Rng::new(8);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    overwrite(&db, &mut map, &mut rng);
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    db.wait_for_background_work().unwrap();
    let made = backups.create_backup(&db).unwrap();
    backups.restore(made.id, "/restored").unwrap();
    let restored = Db::open("/restored", &options).unwrap();
    let allocated = |dir: &str| {
        let names = fs.list(Path::new(dir)).unwrap();
        let blobs = names.iter().filter(|name| name.ends_with(".blob"));
        let of = |name: &String| fs.metadata(&Path::new(dir).join(name)).unwrap().allocated;
        blobs.map(of).sum::<u64>()
    };
    let most = allocated(DIR) + (64 << 10);
    wait_until(|| allocated("/restored") <= most, "the zeros stay");
    assert_holds(&restored, &map);
}

/// A file system may refuse some files another name and not others.
#[test]
fn a_checkpoint_that_copies_some_files_and_shares_others_tells_of_each_what_holds() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    let shared = |number: u64| number.is_multiple_of(2);
    let linked = HookFileSystem::new(&fs, |_, _| {}).linking(move |path| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_suffix(".blob"));
        number.is_none_or(|number| shared(number.parse().expect("a number")))
    });
    options.db.fs = Arc::new(linked);
    let db = Db::open(DIR, &options).unwrap();
    let (mut rng, mut map) = (Rng::new(21), Map::new());
    fill(&db, &mut map, &mut rng);
    let with_holes = |db: &Db, is_shared| {
        let files = db.live_blob_files();
        let files = files.iter().filter(|f| shared(f.number) == is_shared);
        files.filter(|f| f.given_up_bytes > Some(0)).count()
    };
    overwrite(&db, &mut map, &mut rng);
    let has_both = || with_holes(&db, true) > 0 && with_holes(&db, false) > 0;
    wait_until(has_both, "nothing was given up");
    db.wait_for_background_work().unwrap();
    db.checkpoint("/copy").unwrap();
    let counts = [with_holes(&db, true), 0];
    options.cf.blob_hole_punching = false;
    let copy = Db::open("/copy", &options).unwrap();
    assert_eq!([true, false].map(|is| with_holes(&copy, is)), counts);
    assert_holds(&copy, &map);
    drop(copy);
    // Its zeros go as those of any file.
    let copy = Db::open("/copy", &punching(&fs)).unwrap();
    wait_until(|| with_holes(&copy, false) > 0, "the zeros stay");
    assert_holds(&copy, &map);
}

#[test]
fn a_disk_that_has_no_holes_costs_nothing() {
    for fault in [
        Fault::io().on(&[OpKind::PunchHole]).forever(),
        Fault::io().on(&[OpKind::PunchHole]).nth(3),
        Fault::no_space().on(&[OpKind::PunchHole]).nth(2).forever(),
    ] {
        let below = MemFileSystem::new();
        let fs = Arc::new(FaultFileSystem::new(Arc::new(below.clone())));
        fs.faults().add(fault);
        let mut options = punching(&below);
        options.db.fs = fs.clone();
        let db = Db::open(DIR, &options).unwrap();
        let mut rng = Rng::new(4);
        let mut map = Map::new();
        fill(&db, &mut map, &mut rng);
        let mut files = BTreeSet::new();
        for _ in 0..3 {
            overwrite(&db, &mut map, &mut rng);
            db.wait_for_background_work().unwrap();
            assert_holds(&db, &map);
            files.extend(db.live_blob_files().iter().map(|f| f.number));
        }
        // One that could not be punched is left alone.
        let (calls, failed) = (fs.faults().count(OpKind::PunchHole), fs.faults().injected());
        assert!(
            (1..=files.len() as u64).contains(&failed),
            "{failed} of {files:?}"
        );
        assert_eq!(db.statistics().get(Ticker::BlobHoles), calls - failed);
        db.put_opt(&w(), &db.default_column_family(), b"k", b"v")
            .unwrap();
    }
}

#[test]
fn a_dropped_family_takes_its_holes_along() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family: ColumnFamily = db.create_column_family("f", options.cf).unwrap();
    let only = std::slice::from_ref(&family);
    for round in 0..2u8 {
        for n in 0..20 {
            db.put_opt(&w(), &family, &key(n), &[round; 20_000])
                .unwrap();
            if round == 1 && n == 10 {
                break;
            }
        }
        db.flush_opt(&FlushOptions::default(), only).unwrap();
    }
    // It waits for this when the family goes.
    let iter = db.iter(&ReadOptions::default(), &family).unwrap();
    compact_all(&db, &family);
    wait_until(
        || {
            db.live_blob_files()
                .iter()
                .any(|f| f.given_up_bytes.is_some())
        },
        "nothing was announced",
    );
    db.drop_column_family(&family).unwrap();
    drop((iter, family));
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

/// Cuts the power after each call from the compaction on that makes the garbage.
#[test]
fn a_power_cut_at_any_call_harms_nothing() {
    let prepare = || {
        let fs = MemFileSystem::new();
        let mut options = punching(&fs);
        options.cf.level0_file_num_compaction_trigger = 100;
        let db = Db::open(DIR, &options).unwrap();
        let mut rng = Rng::new(5);
        let mut map = Map::new();
        for n in 0..12 {
            put(&db, &mut map, n, &mut rng);
        }
        db.flush().unwrap();
        for n in (0..12).step_by(3) {
            put(&db, &mut map, n, &mut rng);
        }
        db.flush().unwrap();
        fs.sync_all();
        (fs, options, db, map)
    };
    let (fs, _, db, _) = prepare();
    let before = fs.op_count();
    compact_all(&db, &db.default_column_family());
    db.wait_for_background_work().unwrap();
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    let calls = fs.op_count() - before;
    drop(db);
    let mut given_up = 0;
    for at in 0..calls + 4 {
        let (fs, options, db, map) = prepare();
        fs.crash_after(at);
        let family = db.default_column_family();
        let _ = db.compact_range(&Default::default(), &family, None, None);
        let _ = db.wait_for_background_work();
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: at },
        ] {
            let fs = fs.crash(cut);
            let mut options = options.clone();
            options.db.fs = Arc::new(fs.clone());
            let db = Db::open(DIR, &options).unwrap();
            assert_holds(&db, &map);
            compact_all(&db, &db.default_column_family());
            db.wait_for_background_work().unwrap();
            given_up += space(&fs, &db).1;
            assert_holds(&db, &map);
            assert_no_strays(&fs, &db);
        }
    }
    assert!(given_up > 0);
}

#[test]
fn repair_takes_files_with_holes_as_they_are() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let mut rng = Rng::new(6);
    let mut map = Map::new();
    let db = Db::open(DIR, &options).unwrap();
    fill(&db, &mut map, &mut rng);
    for _ in 0..3 {
        overwrite(&db, &mut map, &mut rng);
        db.wait_for_background_work().unwrap();
    }
    let files = db.live_blob_files();
    let holes = files.iter().filter(|f| f.given_up_bytes.is_some()).count();
    assert!(holes > 0);
    drop(db);
    let report = repair::repair(DIR, "/new", &options, &mut |_, _| {}).unwrap();
    assert!(report.is_healthy(), "{report:?}");
    for name in fs.list(Path::new(DIR)).unwrap() {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
        }
    }
    let report = repair::repair(DIR, "/new", &options, &mut |_, _| {}).unwrap();
    assert!(report.blob_files_damaged.is_empty(), "{report:?}");
    assert!(report.values_lost.is_empty());
    let db = Db::open("/new", &options).unwrap();
    assert_eq!(db.live_blob_files().len(), files.len());
    let family = db.default_column_family();
    let pairs: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(scan(&db, &family) == pairs);
    assert_exact(&db, &family);
    db.verify_checksums().unwrap();
    db.verify_file_checksums().unwrap();
}

#[test]
fn a_follower_that_is_behind_is_told_so() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut rng = Rng::new(7);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let before = map.clone();
    let follower = Db::open_as_secondary(DIR, None, &options).unwrap();
    let theirs = follower.default_column_family();
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    let mut given_up = 0;
    for verify_checksums in [true, false] {
        let read = ReadOptions {
            verify_checksums,
            ..ReadOptions::default()
        };
        let keys: Vec<&[u8]> = before.keys().map(Vec::as_slice).collect();
        let together = follower.multi_get(&read, &theirs, &keys);
        for ((key, value), together) in before.iter().zip(together) {
            for found in [follower.get_opt(&read, &theirs, key), together] {
                match found {
                    Ok(found) => assert!(found.as_deref() == Some(&value[..])),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::Busy);
                        given_up += 1;
                    }
                }
            }
        }
        let mut iter = follower.iter(&read, &theirs).unwrap();
        iter.seek_to_first();
        while iter.valid() {
            assert!(before[iter.key()] == *iter.value());
            iter.next();
        }
        assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Busy);
    }
    assert!(given_up > 0);
    follower.try_catch_up_with_primary().unwrap();
    assert!(scan(&follower, &theirs) == scan(&db, &db.default_column_family()));
}

#[test]
fn who_reads_beside_a_writer_is_told_of_holes_as_damage() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut rng = Rng::new(7);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let before = map.clone();
    let reader = Db::open_read_only(DIR, &options).unwrap();
    let theirs = reader.default_column_family();
    assert!(scan(&reader, &theirs) == scan(&db, &db.default_column_family()));
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    let read = ReadOptions {
        verify_checksums: false,
        ..ReadOptions::default()
    };
    let mut given_up = 0;
    for (key, value) in &before {
        match reader.get_opt(&read, &theirs, key) {
            Ok(found) => assert!(found.as_deref() == Some(&value[..])),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption);
                given_up += 1;
            }
        }
    }
    assert!(given_up > 0);
}

fn remove_all(fs: &MemFileSystem, dir: &str) {
    for name in fs.list(Path::new(dir)).expect("the disk is well") {
        fs.remove_file(&Path::new(dir).join(name))
            .expect("the disk is well");
    }
}

#[test]
fn files_that_a_checkpoint_shared_are_looked_at_again_after_a_while_and_not_before() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    let clock = Arc::new(ManualClock::new());
    options.db.clock = clock.clone();
    let db = Db::open(DIR, &options).unwrap();
    let mut rng = Rng::new(5);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    db.checkpoint("/copy").unwrap();
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    let looks = || db.statistics().get(Ticker::BlobLinkLooks);
    let files = db.live_blob_files();
    let with_garbage = files.iter().filter(|f| f.garbage_blob_count > 0).count() as u64;
    let first = looks();
    assert!(first >= with_garbage && with_garbage > 1, "{first}");
    // Nobody looks while nothing happens and no time passes.
    for _ in 0..10 {
        clock.advance(Duration::from_secs(20));
        db.wait_for_background_work().unwrap();
    }
    assert_eq!(looks(), first);
    // Then one call for each file, and the same after as long a time again.
    for times in 1..4 {
        clock.advance(Duration::from_secs(310));
        db.wait_for_background_work().unwrap();
        assert_eq!(looks(), first + times * with_garbage);
    }
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 0);
    assert_eq!(space(&fs, &db).1, 0);
    remove_all(&fs, "/copy");
    db.wait_for_background_work().unwrap();
    assert_eq!(space(&fs, &db).1, 0);
    clock.advance(Duration::from_secs(310));
    wait_until(
        || {
            db.wait_for_background_work().unwrap();
            space(&fs, &db).1 > 0
        },
        "nothing was given up",
    );
    assert_holds(&db, &map);
}

#[test]
fn settings_of_holes_change_while_open_and_are_kept() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    options.cf.blob_hole_punching = false;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut rng = Rng::new(6);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    let holes = || db.statistics().get(Ticker::BlobHoles);
    assert_eq!(holes(), 0);
    // Both bounds count.
    db.set_options(&family, &[("blob_hole_punching_min_bytes", "1000000000")])
        .unwrap();
    db.set_options(&family, &[("blob_hole_punching", "true")])
        .unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(holes(), 0);
    db.set_options(
        &family,
        &[
            ("blob_hole_punching_min_bytes", "1"),
            ("blob_hole_punching_threshold", "1.0"),
        ],
    )
    .unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(holes(), 0);
    let refused = db.set_options(&family, &[("blob_hole_punching_threshold", "1.5")]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    db.set_options(&family, &[("blob_hole_punching_threshold", "0.01")])
        .unwrap();
    wait_until(
        || {
            db.wait_for_background_work().unwrap();
            space(&fs, &db).1 > 0
        },
        "nothing was given up",
    );
    let statistics = db.statistics();
    let bytes = statistics.get(Ticker::BlobHoleBytes);
    assert!(holes() > 0 && bytes >= space(&fs, &db).1 && bytes.is_multiple_of(4096));
    let micros = statistics.histogram(HistogramKind::BlobHoleMicros);
    assert_eq!(micros.count(), holes());
    assert_holds(&db, &map);
    let now = Db::load_latest_options(DIR, &punching(&fs)).unwrap();
    let now = now.family("default");
    assert!(now.blob_hole_punching);
    assert_eq!(now.blob_hole_punching_threshold, 0.01);
    assert_eq!(now.blob_hole_punching_min_bytes, 1);
}

#[test]
fn holes_that_wait_for_a_reader_are_in_the_list_of_jobs() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let mut rng = Rng::new(7);
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    overwrite(&db, &mut map, &mut rng);
    let queued = || {
        let mut jobs = db.jobs();
        jobs.retain(|j| j.kind == JobKind::HolePunching && j.state == JobState::Queued);
        jobs
    };
    wait_until(|| !queued().is_empty(), "nothing waits");
    let job = queued().remove(0);
    assert!(job.input_bytes > 0 && job.input_bytes.is_multiple_of(4096));
    let live: Vec<u64> = db.live_blob_files().iter().map(|f| f.number).collect();
    assert!(!job.input_files.is_empty() && job.input_files.iter().all(|n| live.contains(n)));
    let text = db.property(&family, "orogen.jobs").unwrap();
    assert!(text.contains("hole-punching queued job=-"), "{text}");
    drop(iter);
    wait_until(|| space(&fs, &db).1 > 0, "nothing was given up");
    wait_until(|| queued().is_empty(), "it is queued still");
}

/// Bytes on disk of files of which only the live values are left, each in blocks of its own.
fn aligned_space(db: &Db, map: &Map) -> u64 {
    let blocks = |len: usize| (len as u64).next_multiple_of(4096);
    let values: u64 = map
        .iter()
        .map(|(k, v)| blocks(32 + k.len() + v.len()))
        .sum();
    // The header's block; those of record index, properties and tail; that of the footer.
    values + db.live_blob_files().len() as u64 * 5 * 4096
}

#[test]
fn aligned_values_give_all_of_their_space_back() {
    for codec in [CompressionType::None, CompressionType::Lz4] {
        let fs = MemFileSystem::new();
        let mut options = punching(&fs);
        options.cf.blob_record_alignment = 4096;
        options.cf.blob_compression_type = codec;
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let mut rng = Rng::new(8);
        let mut map = Map::new();
        fill(&db, &mut map, &mut rng);
        let files = db.live_blob_files();
        let counted: u64 = files.iter().map(|f| f.total_blob_bytes).sum();
        if codec == CompressionType::None {
            let records: u64 = map
                .iter()
                .map(|(k, v)| (32 + k.len() + v.len()) as u64)
                .sum();
            assert_eq!(counted, records, "padding is not counted");
        }
        for round in 0..5 {
            overwrite(&db, &mut map, &mut rng);
            db.wait_for_background_work().unwrap();
            let most = aligned_space(&db, &map);
            wait_until(|| space(&fs, &db).0 <= most, "dead values take space");
            db.wait_for_background_work().unwrap();
            for file in db.live_blob_files() {
                assert!(file.given_up_bytes.unwrap_or(0) <= file.garbage_blob_bytes);
            }
            assert_holds(&db, &map);
            if round == 2 {
                // Files of both kinds live beside each other.
                let off = [("blob_record_alignment", "1")];
                db.set_options(&family, &off).unwrap();
                put(&db, &mut map, 3, &mut rng);
                db.flush().unwrap();
                let on = [("blob_record_alignment", "4096")];
                db.set_options(&family, &on).unwrap();
            }
        }
        for wrong in ["3", "131072", "4095"] {
            let refused = db.set_options(&family, &[("blob_record_alignment", wrong)]);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        drop((family, db));
        let db = Db::open(DIR, &options).unwrap();
        assert_holds(&db, &map);
        overwrite(&db, &mut map, &mut rng);
        let most = aligned_space(&db, &map);
        wait_until(
            || space(&fs, &db).0 <= most,
            "after an open dead values take space",
        );
        assert_holds(&db, &map);
        drop(db);
        let kept = Db::load_latest_options(DIR, &punching(&fs)).unwrap();
        assert_eq!(kept.family("default").blob_record_alignment, 4096);
        // Repair goes from front to back through zeros that are padding, and others that are holes.
        for name in fs.list(Path::new(DIR)).unwrap() {
            if name == "CURRENT" || name.starts_with("MANIFEST") {
                fs.remove_file(&Path::new(DIR).join(name)).unwrap();
            }
        }
        let report = repair::repair(DIR, "/new", &options, &mut |_, _| {}).unwrap();
        assert!(report.blob_files_damaged.is_empty(), "{report:?}");
        assert!(report.values_lost.is_empty());
        assert_holds(&Db::open("/new", &options).unwrap(), &map);
    }
}

#[test]
fn a_damaged_table_makes_no_damage_of_the_blob_files_with_holes() {
    let mut rng = Rng::new(3);
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    fill(&db, &mut map, &mut rng);
    overwrite(&db, &mut map, &mut rng);
    db.wait_for_background_work().unwrap();
    wait_until(|| space(&fs, &db).1 > 0, "no holes");
    let table = db.live_files()[0].number;
    db.close().unwrap();
    drop(db);
    let path = Path::new(DIR).join(format!("{table:06}.sst"));
    let mut bytes = read_file(&fs, &path).unwrap();
    let at = bytes.len() - 5;
    bytes[at] ^= 1;
    write_file(&fs, &path, &bytes).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let scrubbed = db.scrub(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(scrubbed.damaged, [table]);
    assert!(scrubbed.damaged_blob_files.is_empty());
    assert!(!scrubbed.unverified_blob_files.is_empty());
    assert!(db.damaged_blob_files().is_empty());
}

#[test]
fn a_file_that_lost_what_leads_to_its_records_is_told_and_gets_no_holes() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    options.cf.blob_hole_punching = false;
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng::new(5));
    fill(&db, &mut map, &mut rng);
    for n in (0..60).step_by(2) {
        db.delete(&key(n)).unwrap();
        map.remove(&key(n));
    }
    db.flush().unwrap();
    compact_all(&db, &db.default_column_family());
    let files = db.live_blob_files();
    assert!(files.len() > 1);
    let lost = files[0].number;
    db.close().unwrap();
    drop(db);
    // Locator and footer are the last: with another magic number this is the end of a file of RocksDB.
    let path = Path::new(DIR).join(format!("{lost:06}.blob"));
    let mut bytes = read_file(&fs, &path).unwrap();
    let magic = bytes.len() - 64 + 20;
    bytes[magic + 3] ^= 16;
    write_file(&fs, &path, &bytes).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let nothing_moved = CollectBlobGarbageOptions {
        discardable_ratio: 1.0,
        ..CollectBlobGarbageOptions::default()
    };
    db.collect_blob_garbage(&nothing_moved, &family).unwrap();
    assert!(
        db.statistics().get(Ticker::BlobHoles) > 0,
        "the others have"
    );
    assert!(read_file(&fs, &path).unwrap() == bytes);
    let told: Vec<u64> = db.damaged_blob_files().iter().map(|d| d.number).collect();
    assert_eq!(told, [lost]);
    let scrubbed = db.scrub(&VerifyOptions::default(), &mut |_, _| {}).unwrap();
    assert_eq!(scrubbed.damaged_blob_files, [lost]);
    let pairs: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(scan(&db, &family) == pairs);
    // Its values are whole, and are moved.
    let all = CollectBlobGarbageOptions {
        discardable_ratio: 0.0,
        ..CollectBlobGarbageOptions::default()
    };
    db.collect_blob_garbage(&all, &family).unwrap();
    assert!(db.live_blob_files().iter().all(|f| f.number != lost));
    assert!(db.damaged_blob_files().is_empty());
    assert!(scan(&db, &family) == pairs);
}
