//! Holes that somebody asks for: all that are whole, however few, whatever the settings say.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::metrics::Ticker;
use orogen_base::{Error, ErrorKind};
use orogen_engine::{CollectBlobGarbageOptions, Db, Options, ReadOptions};
use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind};
use orogen_testkit::Rng;

use crate::blobs::{assert_exact, assert_no_strays, compact_all, key};
use crate::holes::{Map, fill, met_a_shortage, punching, put, space, wait_until};
use crate::steer::{ends, on_thread};
use crate::support::{DIR, scan};

/// One large value of seven is dead: 3 MiB of 21, which nobody looks for by himself.
fn some_are_dead(fs: &MemFileSystem, options: &Options) -> (Db, u64) {
    let db = Db::open(DIR, options).expect("opens");
    let family = db.default_column_family();
    for n in 0..42 {
        db.put(&key(n), &vec![b'a'; 512 << 10])
            .expect("the disk is well");
    }
    db.flush().expect("the disk is well");
    for n in (0..42).step_by(7) {
        db.delete(&key(n)).expect("the disk is well");
    }
    compact_all(&db, &family);
    db.wait_for_background_work().expect("the disk is well");
    let (full, given_up) = space(fs, &db);
    assert!(full > 21 << 20 && given_up == 0, "nobody has asked");
    (db, full)
}

/// The options for it as they are by default, but for the sizes.
fn seldom(fs: &MemFileSystem) -> Options {
    let mut options = punching(fs);
    let own = Options::default().cf;
    options.cf.write_buffer_size = 64 << 20;
    options.cf.blob_file_size = own.blob_file_size;
    options.cf.blob_gc_auto = own.blob_gc_auto;
    options.cf.blob_hole_punching_threshold = own.blob_hole_punching_threshold;
    options.cf.blob_hole_punching_min_bytes = own.blob_hole_punching_min_bytes;
    options
}

#[test]
fn who_asks_gets_every_whole_hole_whatever_the_settings() {
    for how in [
        "default",
        "no holes",
        "no compactions",
        "no threads",
        "not at all",
    ] {
        let fs = MemFileSystem::new();
        let mut options = seldom(&fs);
        options.cf.blob_hole_punching = how != "no holes" && how != "not at all";
        options.cf.disable_auto_compactions = how == "no compactions" || how == "not at all";
        options.cf.blob_gc_auto = how != "not at all";
        options.db.max_background_gc = usize::from(how != "no threads");
        let (db, full) = some_are_dead(&fs, &options);
        let family = db.default_column_family();
        let asked = CollectBlobGarbageOptions::default();
        db.collect_blob_garbage(&asked, &family)
            .expect("the disk is well");
        let (disk, given_up) = space(&fs, &db);
        // All but the parts of two blocks of each.
        let whole = 6 * ((512 << 10) - 8192);
        assert!(full - disk >= whole && given_up >= whole, "{how}: {disk}");
        assert_exact(&db, &family);
        assert_eq!(scan(&db, &family).len(), 36);
        // A second call finds nothing.
        let made = db.statistics().get(Ticker::BlobHoles);
        db.collect_blob_garbage(&asked, &family)
            .expect("the disk is well");
        assert_eq!(db.statistics().get(Ticker::BlobHoles), made, "{how}");
    }
}

#[test]
fn who_asks_beside_a_reader_or_a_checkpoint_gets_what_they_leave() {
    let fs = MemFileSystem::new();
    let mut options = seldom(&fs);
    options.cf.blob_hole_punching = false;
    let (db, full) = some_are_dead(&fs, &options);
    let family = db.default_column_family();
    let asked = CollectBlobGarbageOptions::default();
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    db.collect_blob_garbage(&asked, &family).unwrap();
    assert_eq!(space(&fs, &db).0, full, "a reader is there");
    while iter.valid() {
        iter.next();
    }
    iter.status().unwrap();
    drop(iter);
    // It was asked for, and comes when the reader has gone.
    wait_until(|| space(&fs, &db).0 < full, "no space came back");
    db.wait_for_background_work().unwrap();

    let (before, _) = space(&fs, &db);
    for n in (1..42).step_by(7) {
        db.delete(&key(n)).unwrap();
    }
    compact_all(&db, &family);
    db.checkpoint(Path::new("/copy")).unwrap();
    db.collect_blob_garbage(&asked, &family).unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(space(&fs, &db).0, before, "the checkpoint has the files");
    assert_exact(&db, &family);
    assert_eq!(scan(&db, &family).len(), 30);
}

/// A reader from before each round sees what it saw, and no byte is counted twice as given up. The moments that could do it are too short
/// to be held open here: two callers, the background and a writer run beside each other for thirty rounds.
#[test]
fn those_who_ask_and_the_background_do_not_come_between_each_other() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let (mut map, mut rng) = (Map::new(), Rng::new(11));
    fill(&db, &mut map, &mut rng);
    let stop = Arc::new(AtomicBool::new(false));
    let ask = || {
        let (db, stop) = (db.clone(), Arc::clone(&stop));
        on_thread(move || {
            let family = db.default_column_family();
            while !stop.load(Ordering::Relaxed) {
                db.collect_blob_garbage(&CollectBlobGarbageOptions::default(), &family)?;
            }
            Ok::<_, Error>(())
        })
    };
    let askers = [ask(), ask()];
    for round in 0..30 {
        let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
        let before = map.clone();
        for _ in 0..15 {
            let n = rng.below(60) as usize;
            put(&db, &mut map, n, &mut rng);
        }
        compact_all(&db, &family);
        iter.seek_to_first();
        for (key, value) in &before {
            assert!(iter.valid(), "{round}: {:?}", iter.status());
            assert!(iter.key() == key && iter.value() == value, "{round}");
            iter.next();
        }
        iter.status().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    for asker in askers {
        ends(&asker).unwrap();
    }
    db.wait_for_background_work().unwrap();
    assert_exact(&db, &family);
    assert!(db.statistics().get(Ticker::BlobHoles) > 0);
    let seen: Map = scan(&db, &family).into_iter().collect();
    assert!(seen == map);
    assert_no_strays(&fs, &db);
}

#[test]
fn who_asks_is_told_of_a_shortage_and_may_ask_again() {
    let fs = MemFileSystem::new();
    let faulty = FaultFileSystem::new(Arc::new(fs.clone()));
    let mut options = seldom(&fs);
    options.cf.blob_hole_punching = false;
    options.db.fs = Arc::new(faulty.clone());
    options.db.bgerror_resume_retry_interval = 16_000;
    let (db, full) = some_are_dead(&fs, &options);
    let family = db.default_column_family();
    let asked = CollectBlobGarbageOptions::default();
    // What is announced finds no space.
    let fault = Fault::no_space().on(&[OpKind::Append]);
    faulty.faults().add(fault.path_with("MANIFEST"));
    let failed = db.collect_blob_garbage(&asked, &family).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::NoSpace);
    met_a_shortage(&faulty, &db);
    assert_eq!(space(&fs, &db), (full, 0));
    faulty.faults().clear();
    wait_until(|| db.put(b"a", b"1").is_ok(), "no writes are taken");
    db.collect_blob_garbage(&asked, &family).unwrap();
    assert!(space(&fs, &db).0 < full);
    assert_exact(&db, &family);
}
