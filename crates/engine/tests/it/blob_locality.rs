//! Values that are written anew to lie in key order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_engine::events::{BlobCollectionInfo, CompactionInfo, EventListener};
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    ColumnFamily, CompactRangeOptions, Db, FlushOptions, Options, ReadOptions, Snapshot,
};
use orogen_env::fs::read_file;
use orogen_env::{
    Clock, Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, SystemClock,
};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;
use parking_lot::Mutex;

use crate::blob_damage::{assert_damaged, damaged_value};
use crate::blob_faults::{get, put};
use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated, w, write_some,
};
use crate::support::DIR;

/// Nothing happens but what is asked for.
fn quiet(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.disable_auto_compactions = true;
    options.cf.blob_gc_auto = false;
    options
}

fn number(db: &Db, family: &ColumnFamily, name: &str) -> u64 {
    db.int_property(family, name).expect("it is one")
}

fn depth(db: &Db, family: &ColumnFamily) -> u64 {
    number(db, family, "orogen.max-blob-reference-depth")
}

fn ordered(db: &Db) -> u64 {
    db.statistics().get(Ticker::BlobLocalityKeysRelocated)
}

fn flush(db: &Db, family: &ColumnFamily) {
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
        .expect("the disk is well");
}

/// Level by level, down to the last one that has anything.
fn compact(db: &Db, family: &ColumnFamily) {
    db.compact_range(&CompactRangeOptions::default(), family, None, None)
        .expect("the disk is well");
}

/// Some of 60 keys, in no order, into one blob file or two.
fn update(db: &Db, family: &ColumnFamily, map: &mut Map, rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let k = key(rng.below(60) as usize);
        let letter = b'a' + rng.below(26) as u8;
        let v = vec![letter; 200 + rng.below(100) as usize];
        db.put_opt(&w(), family, &k, &v).expect("the disk is well");
        map.insert(k, v);
    }
    flush(db, family);
}

#[derive(Default)]
struct Seen(Mutex<Vec<CompactionInfo>>, Mutex<Vec<BlobCollectionInfo>>);

impl EventListener for Seen {
    fn on_compaction_completed(&self, info: &CompactionInfo) {
        self.0.lock().push(info.clone());
    }
    fn on_blob_collection_completed(&self, info: &BlobCollectionInfo) {
        self.1.lock().push(info.clone());
    }
}

/// In the default family and in another one, with levels of fixed sizes and of dynamic ones.
fn each_family(mut change: impl FnMut(&mut Options), test: impl Fn(&MemFileSystem, &Db, &Seen)) {
    for dynamic in [false, true] {
        let fs = MemFileSystem::new();
        let seen = Arc::new(Seen::default());
        let mut options = quiet(&fs);
        options.cf.level_compaction_dynamic_level_bytes = dynamic;
        options.db.listeners = vec![seen.clone()];
        change(&mut options);
        let db = Db::open(DIR, &options).expect("opens");
        db.create_column_family("other", options.cf.clone())
            .expect("it is new");
        test(&fs, &db, &seen);
        db.wait_for_background_work().expect("the disk is well");
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn level_merge_puts_what_comes_down_into_key_order() {
    for on in [false, true] {
        let change = |o: &mut Options| o.cf.level_merge = on;
        each_family(change, |_, db, seen| {
            for family in db.column_families() {
                let before = ordered(db);
                let mut rng = Rng::new(1);
                let mut map = Map::new();
                for _ in 0..4 {
                    update(db, &family, &mut map, &mut rng, 60);
                }
                seen.0.lock().clear();
                compact(db, &family);
                assert_holds(db, &family, &map, None);
                assert_exact(db, &family);
                let moved = ordered(db) - before;
                let infos = seen.0.lock();
                let told: u64 = infos.iter().map(|i| i.blob_values_ordered).sum();
                let bytes: u64 = infos.iter().map(|i| i.blob_bytes_ordered).sum();
                assert_eq!(told, moved);
                assert_eq!(bytes > 200 * moved, on);
                if on {
                    assert_eq!(depth(db, &family), 1);
                    assert_eq!(moved, map.len() as u64, "those that live, once");
                } else {
                    assert!(depth(db, &family) >= 4);
                    assert_eq!(moved, 0);
                }
            }
            let statistics = db.statistics();
            assert_eq!(statistics.get(Ticker::BlobDbGcNumKeysRelocated), 0);
        });
    }
}

#[test]
fn what_lies_at_the_bottom_stays_while_only_levels_are_merged() {
    let change = |o: &mut Options| o.cf.level_merge = true;
    each_family(change, |_, db, _| {
        for family in db.column_families() {
            let mut rng = Rng::new(2);
            let mut map = Map::new();
            update(db, &family, &mut map, &mut rng, 300);
            compact(db, &family);
            let before = ordered(db);
            let mut put = Map::new();
            update(db, &family, &mut put, &mut rng, 10);
            map.extend(put.clone());
            compact(db, &family);
            assert_eq!(ordered(db) - before, put.len() as u64);
            assert_eq!(depth(db, &family), 2);
            // Whoever compacts the last level itself has all of it in order.
            compact_all(db, &family);
            assert_eq!(depth(db, &family), 1);
            assert_holds(db, &family, &map, None);
            assert_exact(db, &family);
        }
    });
}

#[test]
fn tables_that_are_only_moved_are_in_order_already() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.level_merge = true;
    options.cf.range_merge = true;
    options.cf.max_sorted_runs = 1;
    options.cf.level0_file_num_compaction_trigger = 1;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for n in 0..60 {
        put(&db, n, 500);
        if n % 10 == 9 {
            db.flush().unwrap();
        }
    }
    db.wait_for_background_work().unwrap();
    let level0 = db.property(&family, "rocksdb.num-files-at-level0");
    assert_eq!(level0.as_deref(), Some("0"));
    assert_eq!((ordered(&db), depth(&db, &family)), (0, 1));
    assert_exact(&db, &family);
}

#[test]
fn range_merge_keeps_tables_of_the_last_level_below_the_limit() {
    for max in [1, 2, 3, 8] {
        let change = |o: &mut Options| {
            o.cf.range_merge = true;
            o.cf.max_sorted_runs = max;
        };
        each_family(change, |_, db, seen| {
            for family in db.column_families() {
                let before = ordered(db);
                let mut rng = Rng::new(max);
                let mut map = Map::new();
                let mut alive = 0;
                for round in 0..20 {
                    update(db, &family, &mut map, &mut rng, 8);
                    compact(db, &family);
                    assert!(depth(db, &family) <= max, "{max} {round}");
                    assert_holds(db, &family, &map, None);
                    alive += map.len() as u64;
                }
                assert_exact(db, &family);
                let moved = ordered(db) - before;
                assert!(moved > 0);
                // The larger the limit, the more stays where it is.
                assert!(
                    max == 1 || moved * max < alive * 2,
                    "{max}: {moved} of {alive}"
                );
            }
            let infos = seen.0.lock();
            assert!(infos.iter().any(|i| i.blob_values_ordered > 0));
        });
    }
}

/// The newest OPTIONS file.
fn options_text(fs: &MemFileSystem) -> String {
    let mut names = fs.list(Path::new(DIR)).expect("the disk is well");
    names.retain(|n| n.starts_with("OPTIONS-"));
    let newest = names.iter().max().expect("there is one");
    let text = read_file(fs, &Path::new(DIR).join(newest)).expect("the disk is well");
    String::from_utf8(text).expect("it is text")
}

/// Values of 60 keys at the bottom, in eight blob files by turns.
fn in_disorder(db: &Db, family: &ColumnFamily, map: &mut Map) {
    in_runs(db, family, map, 8, 300);
}

/// As many runs of pointers over one another in a table of the last level; values of some more bytes than that.
fn in_runs(db: &Db, family: &ColumnFamily, map: &mut Map, runs: usize, value_bytes: usize) {
    for part in 0..runs {
        for n in (part..60).step_by(runs) {
            let v = vec![b'a' + n as u8 % 26; value_bytes + n];
            db.put_opt(&w(), family, &key(n), &v)
                .expect("the disk is well");
            map.insert(key(n), v);
        }
        flush(db, family);
    }
    compact(db, family);
    assert_eq!(depth(db, family), runs as u64);
}

#[test]
fn short_values_are_put_in_order_unasked_for_where_there_is_nothing_else_to_do() {
    // Values of so many bytes are moved, or left.
    for (value_bytes, moves) in [(1000, true), (8000, true), (8200, false)] {
        let fs = MemFileSystem::new();
        let clock = Arc::new(ManualClock::new());
        let mut options = separated(&fs);
        options.db.clock = clock.clone();
        options.cf.target_file_size_base = 1 << 20;
        options.cf.level0_file_num_compaction_trigger = 100;
        options.cf.blob_file_size = 1 << 20;
        // A run is one file, not two that follow one another.
        options.cf.write_buffer_size = 1 << 20;
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let mut map = Map::new();
        in_runs(&db, &family, &mut map, 12, value_bytes);
        // Time stands still, so there was no lull yet.
        assert_eq!(ordered(&db), 0);
        if moves {
            clock.advance(Duration::from_secs(2));
            while ordered(&db) == 0 {
                SystemClock.sleep(Duration::from_millis(1));
            }
        }
        db.wait_for_background_work().unwrap();
        assert_eq!(ordered(&db) > 0, moves);
        assert_eq!(depth(&db, &family), if moves { 8 } else { 12 });
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
        assert_no_strays(&fs, &db);
        // Once is enough.
        let files = db.live_blob_files();
        db.put_opt(&w(), &family, &key(60), b"short").unwrap();
        flush(&db, &family);
        db.wait_for_background_work().unwrap();
        assert_eq!(db.live_blob_files(), files);
        db.close().unwrap();
    }
}

#[test]
fn what_nobody_has_asked_for_is_not_done_where_space_may_be_scarce() {
    let fs = FaultFileSystem::over_memory(MemFileSystem::new());
    let mut options = separated(&MemFileSystem::new());
    options.db.fs = Arc::new(fs.clone());
    options.cf.target_file_size_base = 1 << 20;
    options.cf.level0_file_num_compaction_trigger = 100;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    in_runs(&db, &family, &mut map, 12, 1000);
    let unknown = Fault::io().on(&[OpKind::FreeSpace]).forever();
    fs.faults().add(unknown);
    db.wait_for_background_work().unwrap();
    assert_eq!((ordered(&db), depth(&db, &family)), (0, 12));
    fs.faults().clear();
    db.put_opt(&w(), &family, b"k", b"short").unwrap();
    map.insert(b"k".to_vec(), b"short".to_vec());
    flush(&db, &family);
    db.wait_for_background_work().unwrap();
    assert_eq!(depth(&db, &family), 8);
    assert_holds(&db, &family, &map, None);
}

#[test]
fn tables_are_put_in_order_in_the_background_where_no_compaction_comes_by() {
    each_family(
        |_| {},
        |fs, db, seen| {
            let families = db.column_families();
            let mut map = Map::new();
            let mut snapshots = Vec::new();
            for family in &families {
                map.clear();
                in_disorder(db, family, &mut map);
                snapshots.push(db.snapshot());
            }
            let set = |changes: &[(&str, &str)]| {
                for family in &families {
                    db.set_options(family, changes).unwrap();
                }
                db.wait_for_background_work().unwrap();
            };
            set(&[("range_merge", "true"), ("max_sorted_runs", "5")]);
            set(&[
                ("max_sorted_runs", "0"),
                ("disable_auto_compactions", "false"),
            ]);
            assert_eq!(ordered(db), 0);
            db.set_db_options(&[("max_background_gc", "0")]).unwrap();
            set(&[("max_sorted_runs", "5")]);
            assert_eq!(ordered(db), 0);
            db.set_db_options(&[("max_background_gc", "1")]).unwrap();
            db.wait_for_background_work().unwrap();
            let mut moved = 0;
            for (limit, stays) in [(5, true), (2, true), (1, false), (1, false)] {
                let before = db.live_blob_files();
                set(&[("max_sorted_runs", &limit.to_string())]);
                for (family, snapshot) in families.iter().zip(&snapshots) {
                    assert!(depth(db, family) <= limit, "{limit}");
                    assert_holds(db, family, &map, None);
                    assert_holds(db, family, &map, Some(snapshot));
                    assert_exact(db, family);
                }
                let after = db.live_blob_files();
                let staying = after.iter().filter(|b| before.contains(b));
                assert_eq!(
                    staying.count() > 0,
                    stays || ordered(db) == moved,
                    "{limit}"
                );
                moved = ordered(db);
            }
            let seen = seen.1.lock();
            assert!(seen.iter().all(|i| i.reason == "RangeMerge"));
            let told: u64 = seen.iter().map(|i| i.blob_values_ordered).sum();
            assert_eq!(told, moved);
            let bytes: u64 = seen.iter().map(|i| i.blob_bytes_ordered).sum();
            let ticker = Ticker::BlobLocalityBytesRelocated;
            assert_eq!(bytes, db.statistics().get(ticker));
            // In a line that RocksDB takes for a comment.
            let text = options_text(fs);
            assert!(text.contains("#orogen max_sorted_runs=1\n"), "{text}");
            assert!(text.contains("#orogen range_merge=true\n"), "{text}");
        },
    );
}

#[test]
fn depths_are_known_again_after_an_open_and_what_is_in_order_is_left_alone() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    let mut map = Map::new();
    let db = Db::open(DIR, &options).unwrap();
    in_disorder(&db, &db.default_column_family(), &mut map);
    db.close().unwrap();
    drop(db);
    options.cf.disable_auto_compactions = false;
    options.cf.range_merge = true;
    options.cf.max_sorted_runs = 3;
    let mut left = None;
    for round in 0..3 {
        options.db.statistics = Arc::default();
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        db.wait_for_background_work().unwrap();
        assert_eq!(ordered(&db) > 0, round == 0);
        assert_eq!(depth(&db, &family), 3);
        let name = "orogen.max-blob-reference-depth-at-level";
        assert_eq!(number(&db, &family, &format!("{name}6")), 3);
        assert_eq!(number(&db, &family, &format!("{name}0")), 0);
        assert_eq!(db.int_property(&family, &format!("{name}7")), None);
        assert_eq!(db.int_property(&family, &format!("{name}x")), None);
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
        let files = db.live_blob_files();
        assert_eq!(left.get_or_insert_with(|| files.clone()), &files);
        db.close().unwrap();
    }
}

#[test]
fn nothing_is_put_in_order_where_blob_files_are_off() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    in_disorder(&db, &db.default_column_family(), &mut map);
    db.close().unwrap();
    drop(db);
    options.cf.disable_auto_compactions = false;
    options.cf.enable_blob_files = false;
    options.cf.range_merge = true;
    options.cf.level_merge = true;
    options.cf.max_sorted_runs = 1;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let files = db.live_blob_files();
    db.wait_for_background_work().unwrap();
    compact_all(&db, &family);
    assert_eq!((db.live_blob_files(), ordered(&db)), (files, 0));
    assert_holds(&db, &family, &map, None);
}

#[test]
fn a_value_that_cannot_be_read_stays_and_the_rest_is_put_in_order_once() {
    // By a compaction, and in place.
    for in_place in [false, true] {
        let (fs, db) = damaged_value(|o| {
            o.cf.target_file_size_base = 1 << 20;
            o.cf.blob_gc_auto = false;
        });
        let family = db.default_column_family();
        for round in 0..3 {
            for n in (2 + round..8).step_by(3) {
                put(&db, n, 500);
            }
            db.flush().unwrap();
        }
        if in_place {
            compact(&db, &family);
        }
        let changes = [
            ("range_merge", "true"),
            ("level_merge", "true"),
            ("max_sorted_runs", "1"),
        ];
        db.set_options(&family, &changes).unwrap();
        if in_place {
            db.set_options(&family, &[("disable_auto_compactions", "false")])
                .unwrap();
            db.wait_for_background_work().unwrap();
        } else {
            compact(&db, &family);
        }
        assert_damaged(&db);
        let files = db.live_blob_files();
        assert_eq!(files.len(), 2, "{files:?}");
        let alive = |i: usize| files[i].total_blob_count - files[i].garbage_blob_count;
        // What lay before it in its file was moved before it was met.
        assert!(alive(0) <= 2 && alive(0) + alive(1) == 8, "{files:?}");
        for n in [0, 2, 3, 4, 5, 6, 7] {
            assert_eq!(get(&db, n), Some(vec![b'a' + n as u8; 500]), "{n}");
        }
        db.set_options(&family, &[("max_sorted_runs", "2")])
            .unwrap();
        db.set_options(&family, &[("max_sorted_runs", "1")])
            .unwrap();
        db.wait_for_background_work().unwrap();
        assert_eq!(db.live_blob_files(), files);
        for check in db.check_blob_files(&family, false).unwrap() {
            assert!(check.is_exact(), "{check:?}");
        }
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn pointers_that_are_dropped_are_not_followed() {
    let change = |o: &mut Options| {
        o.cf.level_merge = true;
        o.cf.range_merge = true;
        o.cf.max_sorted_runs = 1;
    };
    each_family(change, |_, db, _| {
        for family in db.column_families() {
            let mut map = Map::new();
            for n in 0..60 {
                let v = vec![b'x'; 400];
                db.put_opt(&w(), &family, &key(n), &v).unwrap();
                map.insert(key(n), v);
            }
            flush(db, &family);
            for n in 0..20 {
                db.single_delete_opt(&w(), &family, &key(n)).unwrap();
                db.put_opt(&w(), &family, &key(20 + n), b"small").unwrap();
                map.insert(key(20 + n), b"small".to_vec());
                map.remove(&key(n));
            }
            db.delete_range_opt(&w(), &family, &key(40), &key(60))
                .unwrap();
            map.retain(|k, _| *k < key(40));
            flush(db, &family);
            let read = || db.statistics().get(Ticker::BlobDbBlobFileBytesRead);
            let before = (read(), ordered(db));
            compact(db, &family);
            assert_eq!((read(), ordered(db)), before);
            assert_holds(db, &family, &map, None);
            assert!(
                db.live_blob_files()
                    .iter()
                    .all(|b| b.column_family != family.name())
            );
        }
    });
}

#[test]
fn a_snapshot_keeps_old_values_which_are_put_in_order_too() {
    let change = |o: &mut Options| {
        o.cf.range_merge = true;
        o.cf.max_sorted_runs = 2;
    };
    each_family(change, |_, db, _| {
        for family in db.column_families() {
            let mut rng = Rng::new(3);
            let mut map = Map::new();
            let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
            for _ in 0..6 {
                update(db, &family, &mut map, &mut rng, 30);
                snapshots.push((db.snapshot(), map.clone()));
                compact(db, &family);
                assert!(depth(db, &family) <= 2);
                for (snapshot, then) in &snapshots {
                    assert_holds(db, &family, then, Some(snapshot));
                }
            }
            assert_exact(db, &family);
            // One put, one single deletion: nothing is uncovered.
            for n in 0..60 {
                db.single_delete_opt(&w(), &family, &key(200 + n)).unwrap();
                db.delete_opt(&w(), &family, &key(n)).unwrap();
            }
            snapshots.clear();
            compact_all(db, &family);
            assert_holds(db, &family, &Map::new(), None);
        }
    });
}

/// Keeps everything, and reads every value for it.
struct Nosy;

impl CompactionFilter for Nosy {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        assert!(value.first() == value.last() || value.contains(&b','));
        FilterDecision::Keep
    }
}

impl CompactionFilterFactory for Nosy {
    fn name(&self) -> &str {
        "nosy"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(Self))
    }
}

#[test]
fn compactions_and_steps_that_fail_are_done_again_and_leave_nothing() {
    let kinds = [
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::Read,
        OpKind::Open,
        OpKind::SyncDir,
    ];
    for (kind, in_place) in kinds.iter().flat_map(|k| [(k, false), (k, true)]) {
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
            in_disorder(&db, &family, &mut map);
            let changes = [("range_merge", "true"), ("max_sorted_runs", "2")];
            db.set_options(&family, &changes).unwrap();
            fs.faults().add(Fault::no_space().on(&[*kind]).nth(n));
            if in_place {
                let on = [("disable_auto_compactions", "false")];
                let _ = db.set_options(&family, &on);
                let _ = db.wait_for_background_work();
            } else {
                let mut rng = Rng::new(n);
                for _ in 0..10 {
                    let k = key(rng.below(60) as usize);
                    let v = vec![b'z'; 400];
                    if db.put_opt(&w(), &family, &k, &v).is_ok() {
                        map.insert(k, v);
                    }
                }
                let failed = db.compact_range(&CompactRangeOptions::default(), &family, None, None);
                if let Err(e) = &failed {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{kind:?} {n}: {e}");
                }
            }
            fs.faults().clear();
            let _ = db.resume();
            assert_holds(&db, &family, &map, None);
            assert_exact(&db, &family);
            let on = [("disable_auto_compactions", "false")];
            db.set_options(&family, &on).unwrap();
            flush(&db, &family);
            compact(&db, &family);
            // A step that was under way may find no space yet after the first look.
            while db.wait_for_background_work().is_err() {
                let _ = db.resume();
            }
            assert!(depth(&db, &family) <= 2, "{kind:?} {n}");
            assert_holds(&db, &family, &map, None);
            assert_exact(&db, &family);
            assert_no_strays(&below, &db);
        }
    }
}

/// Writes, snapshots, cursors, flushes and compactions of all kinds while values are put in order.
#[test]
fn what_was_written_is_read_while_values_are_put_in_order() {
    for seed in 0..24 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let mut options = separated(&fs);
        let cf = &mut options.cf;
        cf.level_merge = rng.chance(1, 2);
        cf.range_merge = !cf.level_merge || rng.chance(1, 2);
        cf.max_sorted_runs = *rng.pick(&[1, 1, 2, 3, 20]);
        cf.merge_operator = Some(Arc::new(StringAppend::default()));
        if rng.chance(1, 3) {
            cf.compaction_filter_factory = Some(Arc::new(Nosy));
        }
        cf.level_compaction_dynamic_level_bytes = rng.chance(1, 2);
        cf.max_bytes_for_level_base = *rng.pick(&[1 << 10, 8 << 10, 64 << 10]);
        cf.max_bytes_for_level_multiplier = 2.0;
        cf.blob_file_size = *rng.pick(&[1, 4 << 10, 64 << 10]);
        cf.target_file_size_base = *rng.pick(&[1, 1 << 10, 64 << 10]);
        cf.level0_file_num_compaction_trigger = *rng.pick(&[1, 2, 4]);
        cf.blob_file_discardable_ratio = *rng.pick(&[1.0, 0.5, 0.0]);
        cf.min_gc_batch_size = 0;
        cf.blob_compression_type = *rng.pick(&[CompressionType::None, CompressionType::Lz4]);
        options.db.max_background_gc = 1 + rng.below(2) as usize;
        options.db.max_subcompactions = 1 + rng.below(3) as usize;
        let mut map = Map::new();
        let mut db = Db::open(DIR, &options).unwrap();
        let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
        for round in 0..12 {
            let family = db.default_column_family();
            let mut cursor = db.iter(&ReadOptions::default(), &family).unwrap();
            let then = map.clone();
            write_some(&db, &family, &mut rng, &mut map, 120);
            match rng.below(6) {
                0 => db.flush().unwrap(),
                1 => compact_all(&db, &family),
                2 => compact(&db, &family),
                3 => snapshots.push((db.snapshot(), map.clone())),
                4 => {
                    let max = rng.below(4).to_string();
                    let on = rng.chance(3, 4).to_string();
                    let changes = [("max_sorted_runs", &*max), ("level_merge", &*on)];
                    db.set_options(&family, &changes).unwrap();
                }
                _ => {}
            }
            cursor.seek_to_first();
            for (k, v) in &then {
                assert_eq!((cursor.key(), cursor.value()), (&k[..], &v[..]), "{seed}");
                cursor.next();
            }
            cursor.status().unwrap();
            drop(cursor);
            assert_holds(&db, &family, &map, None);
            for (snapshot, then) in &snapshots {
                assert_holds(&db, &family, then, Some(snapshot));
            }
            if snapshots.len() > 2 {
                snapshots.remove(0);
            }
            if round % 5 == 4 {
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
        // A collection merges small files whatever their order is.
        let changes = [
            ("level_merge", "true"),
            ("blob_file_discardable_ratio", "1.0"),
            ("blob_gc_auto", "false"),
            ("disable_auto_compactions", "true"),
        ];
        db.set_options(&family, &changes).unwrap();
        db.wait_for_background_work().unwrap();
        compact_all(&db, &family);
        // All is in the last level by now, and is written within it.
        compact_all(&db, &family);
        db.wait_for_background_work().unwrap();
        assert_eq!(
            depth(&db, &family),
            u64::from(!db.live_blob_files().is_empty())
        );
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
        assert_no_strays(&fs, &db);
    }
}
