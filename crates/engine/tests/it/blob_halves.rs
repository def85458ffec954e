//! Flushes and compactions that write their large values by two threads.

use std::sync::Arc;

use orogen_base::metrics::HistogramKind;
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{Db, LiveBlobFile, Options};
use orogen_env::MemFileSystem;
use orogen_testkit::Rng;

use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, separated, write_some,
};
use crate::support::DIR;

fn options(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    options.cf.disable_auto_compactions = true;
    options.cf.paranoid_file_checks = true;
    options.cf.write_buffer_size = 64 << 20;
    options.cf.blob_file_size = 64 << 20;
    options.db.max_background_jobs = 2;
    options.db.flush_halves_bytes = 0;
    options
}

/// What one flush of drawn calls wrote, after it was read back in every way.
fn flushed(seed: u64, change: impl FnOnce(&mut Options)) -> Vec<LiveBlobFile> {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    change(&mut options);
    let db = Db::open(DIR, &options).expect("opens");
    let family = db.default_column_family();
    let (mut rng, mut map) = (Rng::new(seed), Map::new());
    write_some(&db, &family, &mut rng, &mut map, 60);
    let (snapshot, seen) = (db.snapshot(), map.clone());
    write_some(&db, &family, &mut rng, &mut map, 60);
    db.flush().expect("the disk is well");
    let files = db.live_blob_files();
    assert_holds(&db, &family, &map, None);
    assert_holds(&db, &family, &seen, Some(&snapshot));
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    drop(snapshot);
    db.close().expect("closes");
    let db = Db::open(DIR, &options).expect("opens");
    assert_holds(&db, &db.default_column_family(), &map, None);
    files
}

fn sums(files: &[LiveBlobFile]) -> (u64, u64) {
    let counts = files.iter().map(|f| f.total_blob_count);
    (counts.sum(), files.iter().map(|f| f.total_blob_bytes).sum())
}

#[test]
fn two_threads_write_what_one_would() {
    for seed in 0..40 {
        let one = flushed(seed, |o| o.db.flush_halves_bytes = u64::MAX);
        let two = flushed(seed, |_| {});
        assert_eq!((one.len(), two.len()), (1, 2), "seed {seed}");
        assert_eq!(sums(&one), sums(&two), "seed {seed}");
        // Neither has next to nothing; versions that are written over count in finding the middle.
        let most = two.iter().map(|f| f.total_blob_bytes).max().unwrap();
        assert!(most < sums(&two).1 * 9 / 10, "seed {seed}: {two:?}");
        let small = flushed(seed, |o| o.cf.blob_file_size = 8 << 10);
        assert_eq!(sums(&one), sums(&small), "seed {seed}");
    }
}

#[test]
fn which_thread_is_faster_does_not_show() {
    let layout = |files: &[LiveBlobFile]| -> Vec<(u64, u64)> {
        files
            .iter()
            .map(|f| (f.number, f.total_blob_bytes))
            .collect()
    };
    let first = layout(&flushed(3, |_| {}));
    for _ in 0..50 {
        assert_eq!(layout(&flushed(3, |_| {})), first);
    }
}

#[test]
fn one_thread_writes_where_two_would_not_do() {
    let alone = |change: fn(&mut Options)| assert_eq!(flushed(5, change).len(), 1);
    alone(|o| o.db.max_background_jobs = 1);
    alone(|o| o.db.flush_halves_bytes = 1 << 20);
    alone(|o| {
        o.cf.blob_compression_type = orogen_sst::CompressionType::Zstd;
        o.cf.blob_compression_opts.max_dict_bytes = 4096;
    });
}

/// How many threads a compaction of `files` files of level 0 had; everything is read back after it.
fn threads_of(seed: u64, files: usize, change: impl FnOnce(&mut Options)) -> u64 {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.level0_slowdown_writes_trigger = 100;
    options.cf.level0_stop_writes_trigger = 100;
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    change(&mut options);
    let db = Db::open(DIR, &options).expect("opens");
    let family = db.default_column_family();
    let (mut rng, mut map) = (Rng::new(seed), Map::new());
    for _ in 0..files {
        write_some(&db, &family, &mut rng, &mut map, 60);
        db.flush().expect("the disk is well");
    }
    let on = [("disable_auto_compactions", "false")];
    let (snapshot, seen) = (db.snapshot(), map.clone());
    write_some(&db, &family, &mut rng, &mut map, 20);
    db.set_options(&family, &on).expect("is mutable");
    db.wait_for_background_work().expect("the disk is well");
    assert_holds(&db, &family, &map, None);
    assert_holds(&db, &family, &seen, Some(&snapshot));
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    let threads = db
        .statistics()
        .histogram(HistogramKind::NumSubcompactionsScheduled)
        .max();
    drop(snapshot);
    db.close().expect("closes");
    let db = Db::open(DIR, &options).expect("opens");
    assert_holds(&db, &db.default_column_family(), &map, None);
    threads
}

#[test]
fn a_compaction_that_has_fallen_behind_is_done_by_two_threads() {
    for seed in 0..20 {
        assert_eq!(threads_of(seed, 7, |_| {}), 2, "seed {seed}");
    }
    assert_eq!(threads_of(1, 6, |_| {}), 1);
    assert_eq!(threads_of(1, 7, |o| o.db.max_background_jobs = 1), 1);
    assert_eq!(threads_of(1, 7, |o| o.db.flush_halves_bytes = 1 << 20), 1);
    assert_eq!(threads_of(1, 7, |o| o.cf.enable_blob_files = false), 1);
    assert_eq!(threads_of(1, 7, |o| o.db.max_subcompactions = 3), 2);
    let trigger = |o: &mut Options| o.cf.level0_file_num_compaction_trigger = 7;
    assert_eq!(
        (threads_of(1, 11, trigger), threads_of(1, 12, trigger)),
        (1, 2)
    );
}

/// How many threads a compaction of seven files with values of `len` bytes had.
fn threads_for_values_of(len: usize, compact: fn(&Db)) -> u64 {
    let db = Db::open(DIR, &options(&MemFileSystem::new())).expect("opens");
    for round in 0..7 {
        for n in 0..200_u8 {
            db.put(&[n], &vec![round; len]).expect("the disk is well");
        }
        db.flush().expect("the disk is well");
    }
    compact(&db);
    let kind = HistogramKind::NumSubcompactionsScheduled;
    db.statistics().histogram(kind).max()
}

#[test]
fn one_thread_compacts_long_values_and_what_is_asked_for() {
    let by_itself = |db: &Db| {
        let family = db.default_column_family();
        let on = [("disable_auto_compactions", "false")];
        db.set_options(&family, &on).expect("is mutable");
        db.wait_for_background_work().expect("the disk is well");
    };
    assert_eq!(threads_for_values_of(3000, by_itself), 2);
    assert_eq!(threads_for_values_of(5000, by_itself), 1);
    let asked = |db: &Db| compact_all(db, &db.default_column_family());
    assert_eq!(threads_for_values_of(3000, asked), 1);
}
