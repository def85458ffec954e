//! Values that leave blob files with much garbage.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_engine::events::{BlobCollectionInfo, BlobFileCreationInfo, EventListener};
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    BottommostLevelCompaction, CollectBlobGarbageOptions, ColumnFamily, CompactRangeOptions, Db,
    FlushOptions, LiveBlobFile, Options, ReadOptions, Snapshot,
};
use orogen_env::fs::read_file;
use orogen_env::{
    Clock, Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, SystemClock,
};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;
use parking_lot::Mutex;

use crate::blob_damage::{assert_damaged, assert_lives_on, damaged_value};
use crate::blob_faults::put;
use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated, value, w,
    write_some,
};
use crate::steer::{Gate, ends, on_thread, until, until_closing, until_disabled};
use crate::support::{DIR, scan};

/// Nothing happens but what is asked for.
pub(crate) fn quiet(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.disable_auto_compactions = true;
    options.cf.blob_gc_auto = false;
    options
}

/// What collects whatever there is.
fn eager(options: &mut Options) {
    options.cf.blob_file_discardable_ratio = 0.2;
    options.cf.min_gc_batch_size = 0;
}

pub(crate) fn any_garbage() -> CollectBlobGarbageOptions {
    CollectBlobGarbageOptions {
        discardable_ratio: 0.0,
        ..CollectBlobGarbageOptions::default()
    }
}

pub(crate) fn collect(db: &Db, family: &ColumnFamily) {
    db.collect_blob_garbage(&any_garbage(), family)
        .expect("the disk is well");
}

pub(crate) fn garbage(files: &[LiveBlobFile]) -> u64 {
    files.iter().map(|b| b.garbage_blob_count).sum()
}

/// Values of 60 keys below level 0, half of which are garbage.
pub(crate) fn half_garbage(db: &Db, map: &mut Map) {
    let family = db.default_column_family();
    for n in 0..60 {
        put(db, n, 500);
    }
    compact_all(db, &family);
    for n in 0..60 {
        let v = vec![b'a' + n as u8; if n % 2 == 0 { 500 } else { 600 }];
        if n % 2 == 1 {
            db.put(&key(n), &v).expect("the disk is well");
        }
        map.insert(key(n), v);
    }
    compact_all(db, &family);
    assert!(garbage(&db.live_blob_files()) >= 30);
}

#[test]
fn values_leave_files_with_garbage_and_the_files_go() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &quiet(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let before = db.live_blob_files();
    // Too little for what is asked.
    let most = CollectBlobGarbageOptions {
        discardable_ratio: 0.9,
        ..CollectBlobGarbageOptions::default()
    };
    db.collect_blob_garbage(&most, &family).unwrap();
    assert_eq!(db.live_blob_files(), before);
    collect(&db, &family);
    let after = db.live_blob_files();
    assert_eq!(garbage(&after), 0);
    for old in before.iter().filter(|b| b.garbage_blob_count > 0) {
        assert!(after.iter().all(|b| b.number != old.number), "{old:?}");
    }
    for old in before.iter().filter(|b| b.garbage_blob_count == 0) {
        assert!(after.contains(old), "{old:?} is well");
    }
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    // Nothing is written again.
    collect(&db, &family);
    assert_eq!(db.live_blob_files(), after);
    db.close().unwrap();
    drop(db);
    let db = Db::open(DIR, &quiet(&fs)).unwrap();
    let family = db.default_column_family();
    assert_eq!(db.live_blob_files(), after);
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
}

#[derive(Default)]
struct Seen(Mutex<Vec<BlobCollectionInfo>>, Mutex<Vec<u64>>);

impl EventListener for Seen {
    fn on_blob_collection_completed(&self, info: &BlobCollectionInfo) {
        self.0.lock().push(info.clone());
    }
    fn on_blob_file_created(&self, info: &BlobFileCreationInfo) {
        self.1.lock().push(info.file.number);
    }
}

#[test]
fn the_background_collects_once_it_is_asked_to() {
    let fs = MemFileSystem::new();
    let seen = Arc::new(Seen::default());
    let mut options = quiet(&fs);
    options.db.listeners = vec![seen.clone()];
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let before = db.live_blob_files();
    let worst = |files: &[LiveBlobFile]| {
        let share = |b: &LiveBlobFile| b.garbage_blob_bytes as f64 / b.total_blob_bytes as f64;
        files.iter().map(share).fold(0.0, f64::max)
    };
    assert!(worst(&before) > 0.2);
    for changes in [
        &[("disable_auto_compactions", "false")][..],
        // A batch is not worth it yet.
        &[
            ("blob_file_discardable_ratio", "0.2"),
            ("blob_file_size", "100000000"),
        ],
    ] {
        db.set_options(&family, changes).unwrap();
        db.wait_for_background_work().unwrap();
        assert_eq!(db.live_blob_files(), before, "{changes:?}");
    }
    db.set_db_options(&[("max_background_gc", "0")]).unwrap();
    db.set_options(&family, &[("min_gc_batch_size", "0")])
        .unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(db.live_blob_files(), before);
    db.set_db_options(&[("max_background_gc", "2")]).unwrap();
    db.wait_for_background_work().unwrap();
    let after = db.live_blob_files();
    assert!(worst(&after) < 0.2, "{after:?}");
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    let created: Vec<u64> = seen.1.lock().clone();
    let seen = seen.0.lock();
    let collected = seen.iter().flat_map(|info| &info.blob_files);
    assert!(collected.clone().count() > 0 && collected.clone().all(|n| created.contains(n)));
    let statistics = db.statistics();
    assert!(statistics.get(Ticker::BlobDbGcNumKeysRelocated) > 0);
    assert_eq!(
        statistics.get(Ticker::BlobDbBlobFileSynced),
        created.len() as u64
    );
    let of = |ticker| statistics.get(ticker);
    assert_eq!(of(Ticker::BlobDbGcNumNewFiles), collected.count() as u64);
    let listed = |number: &u64| after.iter().any(|file| file.number == *number);
    let emptied = seen.iter().flat_map(|info| &info.emptied);
    let gone: HashSet<u64> = emptied.copied().filter(|number| !listed(number)).collect();
    assert_eq!(of(Ticker::BlobDbGcNumFiles), gone.len() as u64);
    let sum = |part: fn(&BlobCollectionInfo) -> u64| seen.iter().map(part).sum::<u64>();
    assert_eq!(
        of(Ticker::BlobGcBytesWritten),
        sum(|info| info.bytes_written)
    );
    assert_eq!(
        of(Ticker::BlobGcTableBytesRead),
        sum(|info| info.table_bytes_read)
    );
    assert_eq!(of(Ticker::BlobDbGcFailures), 0);
    let for_garbage = of(Ticker::BlobGcDiscardable);
    let taken = for_garbage + of(Ticker::BlobGcSmallFile);
    assert!(for_garbage > 0 && taken == sum(|info| info.emptied.len() as u64));
    let steps = statistics.histogram(HistogramKind::BlobDbGcMicros).count();
    assert_eq!(steps, seen.len() as u64);
    let info = seen.first().expect("it is told of");
    assert!(!info.inputs.is_empty() && info.inputs.len() <= info.outputs.len());
    assert!(before.iter().any(|b| info.emptied.contains(&b.number)));
    assert!(!info.blob_files.is_empty());
    assert!(info.garbage_bytes > 0 && info.bytes_written > 0);
    let error = db
        .set_options(&family, &[("blob_file_discardable_ratio", "1.5")])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // RocksDB would refuse a file that has them.
    let names = fs.list(Path::new(DIR)).unwrap();
    for name in names.iter().filter(|n| n.starts_with("OPTIONS-")) {
        let text = read_file(&fs, &Path::new(DIR).join(name)).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines = text.lines().filter(|l| !l.trim_start().starts_with('#'));
        let text: Vec<&str> = lines.collect();
        let text = text.join("\n");
        assert!(text.contains("blob_garbage_collection_age_cutoff"));
        assert!(!text.contains("discardable") && !text.contains("_gc"));
    }
}

#[test]
fn collected_values_fill_files_whatever_tables_they_come_from() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.target_file_size_base = 1;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    db.set_options(&family, &[("max_compaction_bytes", "1000000000")])
        .unwrap();
    let before = db.live_blob_files();
    collect(&db, &family);
    let after = db.live_blob_files();
    let made: Vec<_> = after.iter().filter(|b| !before.contains(b)).collect();
    let moved: u64 = made.iter().map(|b| b.total_blob_count).sum();
    assert!(moved >= 20, "{made:?}");
    // A table each, and files of 8 KiB: not one for each table, and not one for all.
    assert!(made.len() as u64 * 4 < moved, "{made:?}");
    assert!(
        made.iter().all(|b| b.total_blob_bytes < 10 << 10),
        "{made:?}"
    );
    assert_exact(&db, &family);
    assert_holds(&db, &family, &map, None);
    assert_no_strays(&fs, &db);
}

#[test]
fn snapshots_and_cursors_see_what_they_saw() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut rng = Rng::new(7);
    let mut map = Map::new();
    let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
    for _ in 0..4 {
        write_some(&db, &family, &mut rng, &mut map, 100);
        snapshots.push((db.snapshot(), map.clone()));
        compact_all(&db, &family);
    }
    let mut cursor = db.iter(&ReadOptions::default(), &family).unwrap();
    cursor.seek_to_first();
    let (second, _) = snapshots.remove(1);
    drop(second);
    compact_all(&db, &family);
    let before = db.live_blob_files();
    assert!(garbage(&before) > 0);
    // Old versions move as well: no snapshot keeps a file.
    collect(&db, &family);
    let after = db.live_blob_files();
    assert_eq!(garbage(&after), 0);
    for (snapshot, then) in &snapshots {
        assert_holds(&db, &family, then, Some(snapshot));
    }
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    for (k, v) in &map {
        assert_eq!((cursor.key(), cursor.value()), (&k[..], &v[..]));
        cursor.next();
    }
    cursor.status().unwrap();
    drop(cursor);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

#[test]
fn a_key_that_was_moved_is_deleted_for_good() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &quiet(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    collect(&db, &family);
    // One put, one single deletion: there must be no second entry that it uncovers.
    for n in (0..60).step_by(2) {
        db.single_delete_opt(&w(), &family, &key(n)).unwrap();
        map.remove(&key(n));
    }
    for n in (1..60).step_by(4) {
        db.delete(&key(n)).unwrap();
        map.remove(&key(n));
    }
    db.flush().unwrap();
    assert_holds(&db, &family, &map, None);
    collect(&db, &family);
    assert_holds(&db, &family, &map, None);
    compact_all(&db, &family);
    assert_holds(&db, &family, &map, None);
    collect(&db, &family);
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn small_files_are_merged() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.level_compaction_dynamic_level_bytes = false;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for n in 0..10 {
        put(&db, n, 500);
        db.flush().unwrap();
    }
    assert_eq!(db.live_blob_files().len(), 10);
    let small = CollectBlobGarbageOptions {
        merge_small_files: true,
        ..CollectBlobGarbageOptions::default()
    };
    // Level 0 is left alone.
    db.collect_blob_garbage(&small, &family).unwrap();
    assert_eq!(db.live_blob_files().len(), 10);
    compact_all(&db, &family);
    assert_eq!(db.live_blob_files().len(), 10);
    collect(&db, &family);
    assert_eq!(db.live_blob_files().len(), 10);
    db.collect_blob_garbage(&small, &family).unwrap();
    let files = db.live_blob_files();
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!((files[0].total_blob_count, garbage(&files)), (10, 0));
    let statistics = db.statistics();
    assert_eq!(statistics.get(Ticker::BlobGcSmallFile), 10);
    assert_eq!(statistics.get(Ticker::BlobGcDiscardable), 0);
    let sizes = |kind| {
        let told = statistics.histogram(kind);
        (told.count(), told.sum())
    };
    let bytes = files[0].total_blob_bytes;
    assert_eq!(sizes(HistogramKind::BlobGcInputFileSize), (10, bytes));
    assert_eq!(sizes(HistogramKind::BlobGcOutputFileSize), (1, bytes));
    // One alone stays.
    db.collect_blob_garbage(&small, &family).unwrap();
    assert_eq!(db.live_blob_files(), files);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn a_damaged_value_stays_in_its_file_and_the_rest_moves() {
    let (fs, db) = damaged_value(|_| {});
    let family = db.default_column_family();
    let old = db.live_blob_files()[0].number;
    (2..6).for_each(|n| put(&db, n, 500));
    compact_all(&db, &family);
    for _ in 0..2 {
        collect(&db, &family);
        assert_damaged(&db);
        let files = db.live_blob_files();
        // One file has the value that is lost, and is not emptied for ever.
        assert_eq!(files[0].number, old);
        assert_eq!(files[0].total_blob_count - files[0].garbage_blob_count, 1);
    }
    let left = db.live_blob_files();
    collect(&db, &family);
    assert_eq!(db.live_blob_files(), left);
    assert_no_strays(&fs, &db);
    assert_lives_on(&db, &[0, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn values_go_back_into_tables_where_blob_files_are_off() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.blob_compression_type = CompressionType::Zstd;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let whole = |files: Vec<LiveBlobFile>| {
        let mut files = files;
        files.retain(|b| b.garbage_blob_count == 0);
        files
    };
    let kept = whole(db.live_blob_files());
    db.set_options(&family, &[("enable_blob_files", "false")])
        .unwrap();
    collect(&db, &family);
    assert_eq!(db.live_blob_files(), kept);
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn compactions_take_values_out_of_files_of_garbage_that_they_meet() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.blob_file_discardable_ratio = 0.2;
    options.db.max_background_gc = 0;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    // The compaction that made them garbage could not know.
    compact_all(&db, &family);
    let left = db.live_blob_files();
    let much = |b: &LiveBlobFile| b.garbage_blob_bytes as f64 >= 0.2 * b.total_blob_bytes as f64;
    assert!(!left.iter().any(much), "{left:?}");
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
}

/// Holds whoever filters, at its first key.
struct Held(Arc<Gate>);

impl CompactionFilter for Held {
    fn filter(&mut self, _: usize, _: &[u8], _: &[u8]) -> FilterDecision {
        self.0.pass();
        FilterDecision::Keep
    }
    fn filter_blob_by_key(&mut self, _: usize, _: &[u8], _: u64) -> Option<FilterDecision> {
        self.0.pass();
        Some(FilterDecision::Keep)
    }
}

/// Makes them once it is armed.
pub(crate) struct Holds(Arc<Gate>, Arc<AtomicBool>);

impl Holds {
    pub(crate) fn new(gate: Arc<Gate>, armed: Arc<AtomicBool>) -> Self {
        Self(gate, armed)
    }
}

impl CompactionFilterFactory for Holds {
    fn name(&self) -> &str {
        "holds"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        let armed = self.1.load(Ordering::Relaxed);
        armed.then(|| -> Box<dyn CompactionFilter> { Box::new(Held(self.0.clone())) })
    }
}

/// A family whose collection stands at the gate.
pub(crate) fn held_collection(fs: &MemFileSystem) -> (Db, ColumnFamily, Arc<Gate>, Map) {
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let mut options = quiet(fs);
    let db = Db::open(DIR, &options).expect("opens");
    options.cf.target_file_size_base = 1;
    options.cf.max_compaction_bytes = 1 << 30;
    options.cf.blob_file_size = 100 << 10;
    options.cf.compaction_filter_factory = Some(Arc::new(Holds(gate.clone(), armed.clone())));
    let family = db.create_column_family("f", options.cf).expect("it is new");
    let mut map = Map::new();
    for round in 0..2 {
        for n in (0..60).step_by(1 + round) {
            let v = vec![b'a' + round as u8; 3000];
            db.put_opt(&w(), &family, &key(n), &v).expect("writes");
            map.insert(key(n), v);
        }
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
            .expect("flushes");
        compact_all(&db, &family);
    }
    armed.store(true, Ordering::Relaxed);
    (db, family, gate, map)
}

#[test]
fn collections_that_are_given_up_leave_everything_as_it_was() {
    for how in ["cancel", "drop", "disable"] {
        let fs = MemFileSystem::new();
        let (db, family, gate, map) = held_collection(&fs);
        let before = db.live_blob_files();
        let handle = db
            .collect_blob_garbage_async(&any_garbage(), &family)
            .unwrap();
        gate.wait_for(1);
        let disabled = match how {
            "cancel" => {
                handle.cancel();
                None
            }
            "drop" => {
                db.drop_column_family(&family).unwrap();
                None
            }
            _ => {
                let db = db.clone();
                Some(on_thread(move || db.disable_manual_compaction()))
            }
        };
        if how == "disable" {
            until_disabled(&db);
        }
        gate.open();
        let result = handle.wait();
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Aborted, "{how}");
        disabled.iter().for_each(ends);
        if how != "drop" {
            assert_eq!(db.live_blob_files(), before);
            assert_exact(&db, &family);
            assert_eq!(scan(&db, &family).len(), map.len());
        }
        if how == "cancel" {
            // Whoever comes next finds the tables free.
            collect(&db, &family);
            assert_eq!(garbage(&db.live_blob_files()), 0);
            assert_exact(&db, &family);
        }
        drop((handle, family));
        db.wait_for_background_work().unwrap();
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn a_paused_collection_holds_nothing_and_goes_on() {
    let fs = MemFileSystem::new();
    let (db, family, gate, map) = held_collection(&fs);
    let handle = db
        .collect_blob_garbage_async(&any_garbage(), &family)
        .unwrap();
    gate.wait_for(1);
    handle.pause();
    gate.open();
    // It would be in the way if it held its tables.
    compact_all(&db, &family);
    assert!(!handle.is_finished() && handle.progress().paused);
    handle.resume();
    handle.wait().unwrap();
    assert!(handle.progress().finished);
    assert_eq!(garbage(&db.live_blob_files()), 0);
    let held: Map = scan(&db, &family).into_iter().collect();
    assert_eq!(held, map);
    assert_exact(&db, &family);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

#[test]
fn the_codec_may_change_while_values_are_collected() {
    let fs = MemFileSystem::new();
    let (db, family, gate, map) = held_collection(&fs);
    // What is begun with this codec goes on with tables whose values are stored without one.
    let codec = |name| db.set_options(&family, &[("blob_compression_type", name)]);
    codec("kLZ4Compression").unwrap();
    let handle = db
        .collect_blob_garbage_async(&any_garbage(), &family)
        .unwrap();
    gate.wait_for(1);
    codec("kNoCompression").unwrap();
    gate.open();
    handle.wait().unwrap();
    assert_eq!(garbage(&db.live_blob_files()), 0);
    assert_eq!(scan(&db, &family).into_iter().collect::<Map>(), map);
    assert_exact(&db, &family);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

#[test]
fn a_database_closes_while_it_collects() {
    for by_hand in [true, false] {
        let fs = MemFileSystem::new();
        let (db, family, gate, map) = held_collection(&fs);
        let handle = if by_hand {
            let handle = db.collect_blob_garbage_async(&any_garbage(), &family);
            Some(handle.unwrap())
        } else {
            let now = [
                ("disable_auto_compactions", "false"),
                ("blob_file_discardable_ratio", "0.01"),
                ("min_gc_batch_size", "0"),
                ("level0_file_num_compaction_trigger", "100"),
            ];
            db.set_options(&family, &now).unwrap();
            None
        };
        gate.wait_for(1);
        let closing = {
            let db = db.clone();
            on_thread(move || db.close())
        };
        until_closing(&db);
        gate.open();
        ends(&closing).unwrap();
        if let Some(handle) = handle {
            let kind = handle.wait().unwrap_err().kind();
            assert!(matches!(kind, ErrorKind::Aborted | ErrorKind::Closed));
        }
        drop((family, db));
        let mut options = quiet(&fs);
        options.families.insert("f".to_owned(), options.cf.clone());
        let db = Db::open(DIR, &options).unwrap();
        let family = db.column_family("f").unwrap();
        assert_eq!(scan(&db, &family).len(), map.len());
        assert_exact(&db, &family);
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn collections_that_fail_are_done_again_and_leave_nothing() {
    let kinds = [
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::Read,
        OpKind::Open,
        OpKind::SyncDir,
    ];
    for kind in kinds {
        for n in 1..12 {
            let below = MemFileSystem::new();
            let fs = FaultFileSystem::over_memory(below.clone());
            let mut options = quiet(&below);
            options.cf.target_file_size_base = 2 << 10;
            options.cf.paranoid_file_checks = n % 2 == 0;
            options.db.fs = Arc::new(fs.clone());
            let db = Db::open(DIR, &options).unwrap();
            let family = db.default_column_family();
            let mut map = Map::new();
            half_garbage(&db, &mut map);
            fs.faults().add(Fault::no_space().on(&[kind]).nth(n));
            let failed = db.collect_blob_garbage(&any_garbage(), &family);
            fs.faults().clear();
            if let Err(e) = &failed {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{kind:?} {n}: {e}");
            }
            let _ = db.resume();
            assert_holds(&db, &family, &map, None);
            assert_exact(&db, &family);
            collect(&db, &family);
            assert_eq!(garbage(&db.live_blob_files()), 0, "{kind:?} {n}");
            assert_holds(&db, &family, &map, None);
            assert_exact(&db, &family);
            db.wait_for_background_work().unwrap();
            assert_no_strays(&below, &db);
        }
    }
}

/// Writes, snapshots, cursors, flushes and compactions of all kinds while the background collects.
#[test]
fn what_was_written_is_read_while_values_move() {
    for seed in 0..16 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let mut options = separated(&fs);
        eager(&mut options);
        options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
        options.cf.blob_file_discardable_ratio = *rng.pick(&[0.0, 0.2, 0.5]);
        options.cf.merge_small_file_threshold = *rng.pick(&[0, 2 << 10, 1 << 20]);
        options.cf.max_gc_batch_size = *rng.pick(&[1, 16 << 10, 1 << 30]);
        options.cf.blob_file_size = *rng.pick(&[1, 4 << 10, 64 << 10]);
        options.cf.target_file_size_base = *rng.pick(&[1, 4 << 10, 64 << 10]);
        options.cf.level0_file_num_compaction_trigger = *rng.pick(&[1, 2, 4]);
        options.cf.enable_blob_garbage_collection = rng.chance(1, 3);
        options.cf.blob_compression_type =
            *rng.pick(&[CompressionType::None, CompressionType::Lz4]);
        options.db.max_background_gc = 1 + rng.below(3) as usize;
        let mut map = Map::new();
        let mut db = Db::open(DIR, &options).unwrap();
        let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
        for round in 0..10 {
            let family = db.default_column_family();
            let mut cursor = db.iter(&ReadOptions::default(), &family).unwrap();
            let then = map.clone();
            let handle = db
                .collect_blob_garbage_async(&any_garbage(), &family)
                .unwrap();
            write_some(&db, &family, &mut rng, &mut map, 150);
            match rng.below(5) {
                0 => db.flush().unwrap(),
                1 => compact_all(&db, &family),
                2 => {
                    let v = value(&mut rng);
                    let without_log = orogen_engine::WriteOptions {
                        disable_wal: true,
                        ..w()
                    };
                    db.put_opt(&without_log, &family, &key(1), &v).unwrap();
                    map.insert(key(1), v);
                }
                3 => snapshots.push((db.snapshot(), map.clone())),
                _ => {}
            }
            cursor.seek_to_first();
            for (k, v) in &then {
                assert_eq!((cursor.key(), cursor.value()), (&k[..], &v[..]), "{seed}");
                cursor.next();
            }
            cursor.status().unwrap();
            drop(cursor);
            handle.wait().unwrap();
            assert_holds(&db, &family, &map, None);
            for (snapshot, then) in &snapshots {
                assert_holds(&db, &family, then, Some(snapshot));
            }
            if snapshots.len() > 2 {
                snapshots.remove(0);
            }
            if round % 4 == 3 {
                snapshots.clear();
                db.close().unwrap();
                drop((family, db));
                db = Db::open(DIR, &options).unwrap();
            }
        }
        snapshots.clear();
        let family = db.default_column_family();
        db.wait_for_background_work().unwrap();
        assert_exact(&db, &family);
        compact_all(&db, &family);
        collect(&db, &family);
        db.wait_for_background_work().unwrap();
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
        assert_eq!(garbage(&db.live_blob_files()), 0, "{seed}");
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn files_that_are_full_of_padding_are_not_merged_for_ever() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.blob_record_alignment = 16 << 10;
    options.cf.blob_file_size = 64 << 10;
    options.cf.blob_file_discardable_ratio = 0.5;
    options.cf.min_gc_batch_size = 0;
    options.cf.merge_small_file_threshold = 8 << 20;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..100 {
        db.put(&key(n), &[n as u8; 200]).unwrap();
    }
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
    let files = db.live_blob_files();
    assert!((20..=30).contains(&files.len()), "{}", files.len());
    let numbers: Vec<u64> = files.iter().map(|f| f.number).collect();
    db.put(&key(200), &[1; 200]).unwrap();
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
    let after = db.live_blob_files();
    // The full ones stay as they are.
    let kept = after.iter().filter(|f| numbers.contains(&f.number)).count();
    assert!(kept + 1 >= numbers.len(), "{kept} of {}", numbers.len());
    assert_exact(&db, &db.default_column_family());
}

/// Jobs are in the way of garbage, and for what could be put in order meanwhile there is no space.
#[test]
fn a_step_that_finds_no_space_beside_busy_garbage_is_not_looked_for_again_and_again() {
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(below.clone());
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let clock = Arc::new(ManualClock::new());
    let mut options = quiet(&below);
    options.db.fs = Arc::new(fs.clone());
    options.db.clock = clock.clone();
    eager(&mut options);
    options.cf.merge_small_file_threshold = 0;
    options.cf.max_sorted_runs = 2;
    options.cf.target_file_size_base = 1 << 20;
    options.cf.compaction_filter_factory = Some(Arc::new(Holds(gate.clone(), armed.clone())));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    // Another table, whose values are in eight files by turns.
    for part in 0..8 {
        for n in (100 + part..160).step_by(8) {
            let v = vec![n as u8; 500];
            db.put(&key(n), &v).unwrap();
            map.insert(key(n), v);
        }
        db.flush().unwrap();
    }
    let (first, last) = (key(100), key(160));
    let down = CompactRangeOptions::default();
    db.compact_range(&down, &family, Some(&first), Some(&last))
        .unwrap();
    armed.store(true, Ordering::Relaxed);
    let again = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        exclusive_manual_compaction: false,
        ..CompactRangeOptions::default()
    };
    let (theirs, of) = (db.clone(), family.clone());
    let held = on_thread(move || theirs.compact_range(&again, &of, Some(&key(0)), Some(&key(60))));
    gate.wait_for(1);
    let none = Fault::no_space().on(&[OpKind::FreeSpace]).free(0);
    fs.faults().add(none.forever());
    // There are no flushes, so nothing is left to compactions.
    clock.advance(Duration::from_secs(3));
    let on = [
        ("disable_auto_compactions", "false"),
        ("range_merge", "true"),
    ];
    db.set_options(&family, &on).unwrap();
    let looks = || fs.faults().count(OpKind::FreeSpace);
    until(|| looks() > 0);
    SystemClock.sleep(Duration::from_millis(200));
    assert!(looks() < 20, "{} looks", looks());
    fs.faults().clear();
    gate.open();
    ends(&held).unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(
        db.int_property(&family, "orogen.max-blob-reference-depth"),
        Some(2)
    );
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
}
