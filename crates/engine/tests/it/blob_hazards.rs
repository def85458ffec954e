//! Mistakes that engines with large values have made: each test is one, brought about on purpose.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::ErrorKind;
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::{ColumnFamily, Db, FlushOptions, Options, ReadOptions, UserKeyRange};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};

use crate::blob_collection::{any_garbage, collect, garbage, half_garbage, held_collection, quiet};
use crate::blob_faults::{get, put};
use crate::blob_modes::apart;
use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated, w,
};
use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, until};
use crate::support::{DIR, scan};

fn flush(db: &Db, family: &ColumnFamily) {
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
        .expect("the disk is well");
}

#[test]
fn what_is_written_and_deleted_while_its_value_moves_stays_so() {
    let fs = MemFileSystem::new();
    let (db, family, gate, mut map) = held_collection(&fs);
    let handle = db
        .collect_blob_garbage_async(&any_garbage(), &family)
        .unwrap();
    gate.wait_for(1);
    let before = (db.snapshot(), map.clone());
    for n in 0..60 {
        match n % 4 {
            0 => {
                db.put_opt(&w(), &family, &key(n), &[b'n'; 700]).unwrap();
                map.insert(key(n), vec![b'n'; 700]);
            }
            // Put once.
            1 => {
                db.single_delete_opt(&w(), &family, &key(n)).unwrap();
                map.remove(&key(n));
            }
            2 => {
                db.delete_opt(&w(), &family, &key(n)).unwrap();
                map.remove(&key(n));
            }
            _ => {}
        }
    }
    db.delete_range_opt(&w(), &family, &key(50), &key(56))
        .unwrap();
    map.retain(|k, _| !(key(50)..key(56)).contains(k));
    // Half of it is in a table by the time that the values arrive.
    flush(&db, &family);
    db.delete_opt(&w(), &family, &key(0)).unwrap();
    map.remove(&key(0));
    gate.open();
    handle.wait().unwrap();
    assert_holds(&db, &family, &map, None);
    assert_holds(&db, &family, &before.1, Some(&before.0));
    assert_exact(&db, &family);
    drop(before);
    // No tombstone is left that could hide what came back.
    for _ in 0..2 {
        compact_all(&db, &family);
        assert_holds(&db, &family, &map, None);
        collect(&db, &family);
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
    }
    assert_no_strays(&fs, &db);
}

/// Once armed, the next sync of a table waits at the gate.
pub(crate) fn held_before_a_table_is_synced(
    fs: &MemFileSystem,
) -> (Options, Arc<Gate>, Arc<AtomicBool>) {
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (theirs, is_armed) = (gate.clone(), armed.clone());
    let mut options = quiet(fs);
    options.db.fs = Arc::new(HookFileSystem::new(fs, move |op, path| {
        let is_table = path.extension().is_some_and(|e| e == "sst");
        if op == Op::Sync && is_table && is_armed.swap(false, Ordering::SeqCst) {
            theirs.pass();
        }
    }));
    (options, gate, armed)
}

#[test]
fn files_of_a_flush_under_way_are_left_alone() {
    let fs = MemFileSystem::new();
    // Its blob file is whole by then, and no version lists it.
    let (options, gate, armed) = held_before_a_table_is_synced(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let other = db.create_column_family("f", options.cf).unwrap();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let blobs = || {
        let mut names = fs.list(Path::new(DIR)).unwrap();
        names.retain(|n| n.ends_with(".blob"));
        names
    };
    let before = blobs();
    let mut theirs = Map::new();
    for n in 0..20 {
        let value = vec![b'o'; 500];
        db.put_opt(&w(), &other, &key(n), &value).unwrap();
        theirs.insert(key(n), value);
    }
    armed.store(true, Ordering::SeqCst);
    let flushing = {
        let (db, other) = (db.clone(), other.clone());
        on_thread(move || flush(&db, &other))
    };
    gate.wait_for(1);
    let mut young = blobs();
    young.retain(|n| !before.contains(n));
    assert!(!young.is_empty());
    // All that could take a file away for garbage, in both families.
    let family = db.default_column_family();
    collect(&db, &family);
    collect(&db, &other);
    compact_all(&db, &family);
    let all = UserKeyRange {
        start: None,
        end: None,
    };
    db.delete_files_in_ranges(&other, &[all], false).unwrap();
    assert!(young.iter().all(|n| blobs().contains(n)));
    gate.open();
    ends(&flushing);
    assert_holds(&db, &other, &theirs, None);
    assert_holds(&db, &family, &map, None);
    for family in [&family, &other] {
        assert_exact(&db, family);
    }
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

#[test]
fn tables_are_not_dropped_from_under_values_that_move() {
    let fs = MemFileSystem::new();
    let (db, family, gate, map) = held_collection(&fs);
    let handle = db
        .collect_blob_garbage_async(&any_garbage(), &family)
        .unwrap();
    gate.wait_for(1);
    let (start, end) = (key(0), key(60));
    let all = UserKeyRange {
        start: Some(&start),
        end: Some(&end),
    };
    let taken = db.delete_files_in_ranges(&family, &[all], false).unwrap();
    let left: Vec<u64> = db.live_files().iter().map(|f| f.number).collect();
    assert!(!left.is_empty() && taken.tables.iter().all(|n| !left.contains(n)));
    let held: Map = scan(&db, &family).into_iter().collect();
    gate.open();
    handle.wait().unwrap();
    assert_eq!(scan(&db, &family).into_iter().collect::<Map>(), held);
    assert!(held.len() <= map.len() && !held.is_empty());
    assert_exact(&db, &family);
    db.delete_files_in_ranges(&family, &[all], false).unwrap();
    assert_eq!(db.live_blob_files(), []);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

#[test]
fn the_background_goes_on_until_nothing_is_due() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.blob_file_size = 20 << 10;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    for round in 0..2 {
        for n in (0..60).step_by(1 + round) {
            let value = vec![b'a' + round as u8; 5000];
            db.put(&key(n), &value).unwrap();
            map.insert(key(n), value);
        }
        compact_all(&db, &family);
    }
    let due = |db: &Db| {
        let mut files = db.live_blob_files();
        files.retain(|b| b.garbage_blob_bytes as f64 >= 0.2 * b.total_blob_bytes as f64);
        files.len()
    };
    assert!(due(&db) > 3, "several steps");
    // A step takes one file.
    let changes = [
        ("max_gc_batch_size", "1"),
        ("min_gc_batch_size", "0"),
        ("blob_file_discardable_ratio", "0.2"),
        ("disable_auto_compactions", "false"),
    ];
    db.set_options(&family, &changes).unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(due(&db), 0, "{:?}", db.live_blob_files());
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn values_that_move_fill_files_of_the_size_that_is_asked_for() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &quiet(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let before = db.live_blob_files();
    // One table points to all of them: it is rewritten in one step.
    assert_eq!(db.live_files().len(), 1);
    db.set_options(&family, &[("blob_file_size", "2048")])
        .unwrap();
    collect(&db, &family);
    let mut made = db.live_blob_files();
    made.retain(|b| !before.contains(b));
    assert!(made.len() > 4, "{made:?}");
    assert!(
        made.iter().all(|b| b.total_blob_bytes < 2048 + 700),
        "{made:?}"
    );
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn flushes_and_compactions_do_not_wait_for_a_collection() {
    let fs = MemFileSystem::new();
    let (db, family, gate, map) = held_collection(&fs);
    db.set_db_options(&[("max_background_jobs", "1"), ("max_background_gc", "1")])
        .unwrap();
    let now = [
        ("disable_auto_compactions", "false"),
        ("blob_file_discardable_ratio", "0.01"),
        ("min_gc_batch_size", "0"),
        ("level0_file_num_compaction_trigger", "100"),
    ];
    db.set_options(&family, &now).unwrap();
    gate.wait_for(1);
    let default = db.default_column_family();
    let now = [
        ("disable_auto_compactions", "false"),
        ("level0_file_num_compaction_trigger", "2"),
    ];
    db.set_options(&default, &now).unwrap();
    for _ in 0..2 {
        (0..20).for_each(|n| put(&db, n, 500));
        db.flush().unwrap();
    }
    let below = |db: &Db| {
        let files = db.live_files();
        files
            .iter()
            .any(|f| f.column_family == "default" && f.level > 0)
    };
    until(|| below(&db));
    gate.open();
    db.wait_for_background_work().unwrap();
    assert_eq!(scan(&db, &family).into_iter().collect::<Map>(), map);
    assert_exact(&db, &family);
}

#[test]
fn values_below_unlogged_writes_are_there_after_a_power_cut() {
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.cf.write_buffer_size = 1 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let unlogged = orogen_engine::WriteOptions {
        disable_wal: true,
        ..w()
    };
    for n in 0..60 {
        if n % 3 == 0 {
            db.delete_opt(&unlogged, &family, &key(n)).unwrap();
        } else {
            db.put_opt(&unlogged, &family, &key(n), &[b'u'; 800])
                .unwrap();
        }
    }
    // What is newer is in memory only: nothing is garbage for that.
    let live = apart(&db);
    collect(&db, &family);
    assert_eq!(apart(&db), live);
    db.wait_for_background_work().unwrap();
    let image = fs.crash(PowerCut::DropUnsynced);
    let db = Db::open(DIR, &quiet(&image)).unwrap();
    let family = db.default_column_family();
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
}

#[test]
fn a_family_that_could_not_be_dropped_is_collected_as_before() {
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(below.clone());
    let mut options = quiet(&below);
    options.db.fs = Arc::new(fs.clone());
    let db = Db::open(DIR, &options).unwrap();
    let family = db.create_column_family("f", options.cf).unwrap();
    let mut map = Map::new();
    for round in 0..2 {
        for n in (0..60).step_by(1 + round) {
            let value = vec![b'a' + round as u8; 500];
            db.put_opt(&w(), &family, &key(n), &value).unwrap();
            map.insert(key(n), value);
        }
        compact_all(&db, &family);
    }
    assert!(garbage(&db.live_blob_files()) > 0);
    fs.faults().add(
        Fault::no_space()
            .on(&[OpKind::Append])
            .path_with("MANIFEST"),
    );
    let error = db.drop_column_family(&family).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    fs.faults().clear();
    db.resume().unwrap();
    let now = [
        ("disable_auto_compactions", "false"),
        ("blob_file_discardable_ratio", "0.01"),
        ("min_gc_batch_size", "0"),
    ];
    db.set_options(&family, &now).unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(garbage(&db.live_blob_files()), 0);
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&below, &db);
    db.drop_column_family(&family).unwrap();
    drop(family);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&below, &db);
    assert_eq!(db.live_blob_files(), []);
}

#[test]
fn numbers_of_strays_are_not_used_again() {
    let fs = MemFileSystem::new();
    let options = quiet(&fs);
    let db = Db::open(DIR, &options).unwrap();
    (0..20).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    let held = scan(&db, &db.default_column_family());
    let used: Vec<u64> = fs
        .list(Path::new(DIR))
        .unwrap()
        .iter()
        .filter_map(|n| n.split(['.', '-']).find_map(|part| part.parse().ok()))
        .collect();
    let last = used.iter().copied().max().unwrap();
    let blobs: Vec<u64> = db.live_blob_files().iter().map(|b| b.number).collect();
    let image = fs.crash(PowerCut::DropUnsynced);
    // A crash left them: some bear the numbers of tables, MANIFEST and logs, some those that come next.
    let mut strays = Vec::new();
    for number in 1..last + 12 {
        if !blobs.contains(&number) {
            let path = format!("{DIR}/{number:06}.blob");
            write_file(&image, Path::new(&path), &[b'x'; 5000]).unwrap();
            strays.push(number);
        }
    }
    let db = Db::open(DIR, &quiet(&image)).unwrap();
    let family = db.default_column_family();
    assert_no_strays(&image, &db);
    assert_eq!(scan(&db, &family), held);
    (10..40).for_each(|n| put(&db, n, 700));
    db.flush().unwrap();
    compact_all(&db, &family);
    let again = db.live_blob_files();
    assert!(again.iter().all(|b| !strays.contains(&b.number)));
    (10..40).for_each(|n| assert_eq!(get(&db, n), Some(vec![b'a' + n as u8; 700])));
    assert_exact(&db, &family);
    db.verify_checksums().unwrap();
    assert_no_strays(&image, &db);
}

#[test]
fn a_blob_file_that_cannot_be_deleted_is_told_of_and_goes_with_the_next_open() {
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(below.clone());
    let mut options = quiet(&below);
    options.db.fs = Arc::new(fs.clone());
    options.db.info_log = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..20).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    let old = db.live_blob_files();
    fs.faults().add(
        Fault::io()
            .on(&[OpKind::Remove])
            .path_with(".blob")
            .forever(),
    );
    (0..20).for_each(|n| put(&db, n, 600));
    compact_all(&db, &family);
    db.wait_for_background_work().unwrap();
    fs.faults().clear();
    let path = format!("{DIR}/{:06}.blob", old[0].number);
    assert!(below.exists(Path::new(&path)).unwrap());
    let log = read_file(&below, &Path::new(DIR).join("LOG")).unwrap();
    let log = String::from_utf8_lossy(&log).into_owned();
    let told = log
        .lines()
        .filter(|l| l.contains("cannot delete an obsolete file"))
        .count();
    assert_eq!(told, old.len(), "{log}");
    // Nothing else is wrong.
    put(&db, 1, 650);
    db.flush().unwrap();
    assert_eq!(get(&db, 1), Some(vec![b'b'; 650]));
    drop((family, db));
    let db = Db::open(DIR, &options).unwrap();
    assert_no_strays(&below, &db);
    assert_eq!(get(&db, 2), Some(vec![b'c'; 600]));
}

#[test]
fn a_checkpoint_that_met_an_error_is_none() {
    let kinds = [
        OpKind::Link,
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::SyncDir,
        OpKind::Rename,
    ];
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(below.clone());
    let mut options = quiet(&below);
    options.db.fs = Arc::new(fs.clone());
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let mut refused = 0;
    for (k, kind) in kinds.into_iter().enumerate() {
        for n in 1..40 {
            let target = format!("/copy{k}-{n}");
            let at_copy = Fault::io().on(&[kind]).path_with("/copy").nth(n);
            let injected = fs.faults().injected();
            fs.faults().add(at_copy);
            let made = db.checkpoint(&target);
            let has_failed = fs.faults().injected() > injected;
            fs.faults().clear();
            if !has_failed {
                break;
            }
            refused += 1;
            made.unwrap_err();
            // At the last step of all it stands there, and then it is whole.
            if below.exists(Path::new(&target)).unwrap() {
                let copy = Db::open(&target, &quiet(&below)).unwrap();
                assert_holds(&copy, &copy.default_column_family(), &map, None);
            }
        }
    }
    assert!(refused > 20, "{refused}");
    db.checkpoint("/whole").unwrap();
    let copy = Db::open("/whole", &quiet(&below)).unwrap();
    let family = copy.default_column_family();
    assert_holds(&copy, &family, &map, None);
    assert_exact(&copy, &family);
}

/// Removes what it is shown once it is armed.
struct Sweep;

impl CompactionFilter for Sweep {
    fn filter(&mut self, _: usize, _: &[u8], _: &[u8]) -> FilterDecision {
        FilterDecision::Remove
    }
    fn filter_blob_by_key(&mut self, _: usize, key: &[u8], _: u64) -> Option<FilterDecision> {
        assert_eq!(key.len(), 6, "a user key");
        Some(FilterDecision::Remove)
    }
}

struct Sweeps(Arc<AtomicBool>);

impl CompactionFilterFactory for Sweeps {
    fn name(&self) -> &str {
        "sweeps"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        let armed = self.0.load(Ordering::SeqCst);
        armed.then(|| -> Box<dyn CompactionFilter> { Box::new(Sweep) })
    }
}

#[test]
fn a_filter_that_removes_a_pointer_uncovers_none_below() {
    let fs = MemFileSystem::new();
    let armed = Arc::new(AtomicBool::new(false));
    let mut options = separated(&fs);
    options.cf.num_levels = 4;
    options.cf.level_compaction_dynamic_level_bytes = false;
    options.cf.max_bytes_for_level_base = 1;
    options.cf.level0_file_num_compaction_trigger = 2;
    options.cf.compaction_filter_factory = Some(Arc::new(Sweeps(armed.clone())));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let write = |keys: std::ops::Range<usize>, len: usize| {
        for _ in 0..2 {
            keys.clone().for_each(|n| put(&db, n, len));
            db.flush().unwrap();
        }
        db.wait_for_background_work().unwrap();
    };
    let levels = || -> Vec<usize> { db.live_files().iter().map(|f| f.level).collect() };
    write(0..20, 500);
    assert_eq!(levels(), [3]);
    // The newer ones meet the filter on their way into a level above, where the older ones are not met.
    db.set_options(&family, &[("max_bytes_for_level_base", "1000000")])
        .unwrap();
    armed.store(true, Ordering::SeqCst);
    write(5..10, 700);
    armed.store(false, Ordering::SeqCst);
    assert!(!levels().contains(&0) && levels().contains(&3));
    for _ in 0..2 {
        for n in 0..20 {
            assert_eq!(get(&db, n).is_some(), !(5..10).contains(&n), "{n}");
        }
        assert_exact(&db, &family);
        collect(&db, &family);
    }
    compact_all(&db, &family);
    assert_eq!(scan(&db, &family).len(), 15);
    assert_exact(&db, &family);
}

#[test]
fn an_open_that_names_few_families_keeps_the_files_of_all() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut all = Vec::new();
    for name in ["a", "b"] {
        let family = db.create_column_family(name, options.cf.clone()).unwrap();
        for n in 0..20 {
            db.put_opt(&w(), &family, &key(n), &[name.as_bytes()[0]; 500])
                .unwrap();
        }
        flush(&db, &family);
        all.push((name, scan(&db, &family)));
    }
    let files = db.live_blob_files();
    drop(db);
    let mut one = options.clone();
    one.families.insert("a".to_owned(), options.cf.clone());
    for options in [options, one] {
        let db = Db::open(DIR, &options).unwrap();
        assert_eq!(db.live_blob_files(), files);
        assert_no_strays(&fs, &db);
        for (name, held) in &all {
            let family = db.column_family(name).unwrap();
            assert_eq!(scan(&db, &family), *held);
            assert_exact(&db, &family);
        }
    }
}

#[test]
fn pointers_are_followed_where_blob_files_are_off() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let files = db.live_blob_files();
    drop(db);
    let mut off = options;
    off.cf.enable_blob_files = false;
    off.cf.disable_auto_compactions = true;
    let follower = Db::open_as_secondary(DIR, None, &off).unwrap();
    assert_holds(&follower, &follower.default_column_family(), &map, None);
    drop(follower);
    let reader = Db::open_read_only(DIR, &off).unwrap();
    assert_holds(&reader, &reader.default_column_family(), &map, None);
    drop(reader);
    let db = Db::open(DIR, &off).unwrap();
    let family = db.default_column_family();
    assert_holds(&db, &family, &map, None);
    // They pass through compactions, and what is new stays in the tables.
    put(&db, 1, 900);
    map.insert(key(1), vec![b'b'; 900]);
    compact_all(&db, &family);
    let numbers = |files: &[orogen_engine::LiveBlobFile]| -> Vec<u64> {
        files.iter().map(|f| f.number).collect()
    };
    let left = numbers(&db.live_blob_files());
    assert!(left.iter().all(|n| numbers(&files).contains(n)) && !left.is_empty());
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    let view = ReadOptions::default();
    assert!(db.get_opt(&view, &family, &key(1)).unwrap().is_some());
}

#[test]
fn large_values_are_read_and_written_while_the_manifest_waits_for_the_disk() {
    let fs = MemFileSystem::new();
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (theirs, is_armed) = (gate.clone(), armed.clone());
    let mut options = quiet(&fs);
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, path| {
        let name = path.to_string_lossy();
        let is_it = op == Op::Sync && name.contains("MANIFEST");
        if is_it && is_armed.swap(false, Ordering::SeqCst) {
            theirs.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    half_garbage(&db, &mut map);
    let family = db.default_column_family();
    armed.store(true, Ordering::SeqCst);
    let collecting = {
        let (db, family) = (db.clone(), family.clone());
        on_thread(move || collect(&db, &family))
    };
    gate.wait_for(1);
    let others = {
        let (db, mut map) = (db.clone(), map.clone());
        on_thread(move || {
            let family = db.default_column_family();
            assert_holds(&db, &family, &map, None);
            put(&db, 3, 800);
            map.insert(key(3), vec![b'd'; 800]);
            let snapshot = db.snapshot();
            assert_holds(&db, &family, &map, Some(&snapshot));
            map
        })
    };
    let map = ends(&others);
    gate.open();
    ends(&collecting);
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}
