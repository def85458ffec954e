//! A damaged table is left alone, and everything else goes on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orogen_base::ErrorKind;
use orogen_base::key::{ValueKind, append_internal_key};
use orogen_base::metrics::Ticker;
use orogen_blob::BlobPointer;
use orogen_engine::events::{DamagedTable, EventListener};
use orogen_engine::options::BottommostLevelCompaction;
use orogen_engine::version::{FileMeta, VersionEdit};
use orogen_engine::{
    CompactRangeOptions, Db, LiveFile, Options, ReadOptions, UserKeyRange, VerifyOptions, filename,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_sst::{CompressionType, TableBuilder, TableBuilderOptions};

use crate::blobs::{Map, assert_exact, assert_no_strays, compact_all, separated};
use crate::hole_hazards::add_edit;
use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, settle};
use crate::support::{DIR, scan, small};

#[derive(Default)]
struct Counter(AtomicU64);

impl EventListener for Counter {
    fn on_table_damaged(&self, info: &DamagedTable) {
        assert!(info.from <= info.to);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// Tables below level 0 over 4000 keys, closed; and the files.
fn filled(fs: &MemFileSystem) -> Vec<LiveFile> {
    let db = Db::open(DIR, &small(fs)).expect("opens");
    for n in 0..4000 {
        db.put(&key(n), format!("{n:050}").as_bytes())
            .expect("writes");
    }
    let family = db.default_column_family();
    db.compact_range(&CompactRangeOptions::default(), &family, None, None)
        .expect("compacts");
    let files = db.live_files();
    db.close().expect("closes");
    assert!(files.len() > 4 && files.iter().all(|f| f.level > 0));
    files
}

fn flip(fs: &MemFileSystem, number: u64) {
    let path = filename::table_path(Path::new(DIR), number);
    let mut bytes = read_file(fs, &path).expect("reads");
    let at = bytes.len() / 3;
    bytes[at] ^= 2;
    write_file(fs, &path, &bytes).expect("writes");
}

fn options(fs: &MemFileSystem, listener: &Arc<Counter>) -> Options {
    let mut options = small(fs);
    options.db.listeners.push(listener.clone());
    options
}

#[test]
fn a_read_that_meets_damage_marks_the_table_and_the_rest_is_served() {
    let fs = MemFileSystem::new();
    let files = filled(&fs);
    let victim = &files[files.len() / 2];
    flip(&fs, victim.number);
    let listener = Arc::new(Counter::default());
    let db = Db::open(DIR, &options(&fs, &listener)).unwrap();
    let family = db.default_column_family();
    assert_eq!(db.property(&family, "orogen.damaged-files").unwrap(), "");
    let mut failed = Vec::new();
    for n in 0..4000 {
        match db.get(&key(n)) {
            Ok(found) => assert!(found.is_some(), "{n}"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption);
                failed.push(key(n));
            }
        }
    }
    // One block.
    assert!(!failed.is_empty() && failed.len() < 40, "{}", failed.len());
    let damaged = db.damaged_tables();
    assert_eq!(damaged.len(), 1);
    let table = &damaged[0];
    assert_eq!((table.number, table.level), (victim.number, victim.level));
    assert!(table.offset.is_some());
    // The range is exact: it holds what fails, and no block more.
    assert!(table.from < failed[0] && table.to >= *failed.last().unwrap());
    let inside = (0..4000).filter(|&n| key(n) > table.from && key(n) <= table.to);
    assert_eq!(inside.count(), failed.len());
    let text = db.property(&family, "orogen.damaged-files").unwrap();
    assert!(
        text.starts_with(&filename::table_name(victim.number)),
        "{text}"
    );
    assert_eq!(listener.0.load(Ordering::Relaxed), 1);
    let tickers = db.statistics();
    assert_eq!(tickers.get(Ticker::DamagedTables), 1);
    assert_eq!(
        tickers.get(Ticker::BlockChecksumMismatch),
        tickers.get(Ticker::FileReadCorruptionRetry)
    );
    // A scan ends with the error, behind it another one goes on.
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek(failed.last().unwrap());
    assert!(!iter.valid() && iter.status().is_err());
    let mut next = table.to.clone();
    next.push(0);
    iter.seek(&next);
    assert!(iter.valid());
    assert_eq!(listener.0.load(Ordering::Relaxed), 1);
}

#[test]
fn compactions_leave_a_damaged_table_and_the_database_takes_writes() {
    let fs = MemFileSystem::new();
    let files = filled(&fs);
    let victim = files[files.len() / 2].clone();
    flip(&fs, victim.number);
    let listener = Arc::new(Counter::default());
    let db = Db::open(DIR, &options(&fs, &listener)).unwrap();
    let family = db.default_column_family();
    // Over all keys, so that compactions have to read the damaged table.
    for round in 0..4 {
        for n in 0..4000 {
            db.put(&key(n), format!("{round} {n:050}").as_bytes())
                .unwrap();
        }
    }
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
    let all = db.compact_range(&CompactRangeOptions::default(), &family, None, None);
    assert_eq!(all.unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(db.damaged_tables().len(), 1);
    assert_eq!(listener.0.load(Ordering::Relaxed), 1);
    assert_eq!(
        db.int_property(&family, "rocksdb.background-errors"),
        Some(0)
    );
    // Newer versions hide the damage.
    for n in 0..4000 {
        let value = db.get(&key(n)).unwrap().unwrap();
        assert!(value.starts_with(b"3 "), "{n}");
    }
    // The table alone goes; what hides it stays.
    let mut end = victim.largest.clone();
    end.push(0);
    let gone = db
        .delete_files_in_ranges(&family, &[UserKeyRange::new(&victim.smallest, &end)], false)
        .unwrap();
    assert!(gone.tables.contains(&victim.number));
    assert!(db.damaged_tables().is_empty());
    assert_eq!(db.property(&family, "orogen.damaged-files").unwrap(), "");
    db.compact_range(&CompactRangeOptions::default(), &family, None, None)
        .unwrap();
    assert!(scan(&db, &family).len() > 3000);
    db.close().unwrap();
}

#[test]
fn a_scrub_finds_every_damaged_table() {
    let fs = MemFileSystem::new();
    let files = filled(&fs);
    let mut victims = vec![files[0].number, files[3].number];
    victims.sort_unstable();
    for &victim in &victims {
        flip(&fs, victim);
    }
    let gone = filename::table_path(Path::new(DIR), files[1].number);
    fs.remove_file(&gone).unwrap();
    let mut options = small(&fs);
    options.db.paranoid_checks = false;
    let db = Db::open(DIR, &options).unwrap();
    let mut last = (0, 0);
    let mut found = db
        .scrub(&VerifyOptions::default(), &mut |done, total| {
            assert!(done >= last.0 && done <= total);
            last = (done, total);
        })
        .unwrap();
    assert_eq!(last.0, last.1);
    assert_eq!(found.tables, files.len() as u64);
    victims.push(files[1].number);
    victims.sort_unstable();
    found.damaged.sort_unstable();
    assert_eq!(found.damaged, victims);
    let marked: Vec<u64> = db.damaged_tables().iter().map(|d| d.number).collect();
    assert_eq!(marked, victims);
    assert!(db.verify_checksums().is_err());
    db.put(b"still", b"writable").unwrap();
}

#[test]
fn a_damaged_table_in_level_0_does_not_stop_writers() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..100 {
        db.put(&key(n), &[b'v'; 50]).unwrap();
    }
    db.flush().unwrap();
    let victim = db.live_files()[0].clone();
    assert_eq!(victim.level, 0);
    db.close().unwrap();
    flip(&fs, victim.number);
    let db = Db::open(DIR, &options).unwrap();
    // Every flush overlaps it, so none of them may sink below level 0.
    for round in 0..3 * options.cf.level0_stop_writes_trigger {
        for n in 0..100 {
            db.put(&key(n), format!("{round}").as_bytes()).unwrap();
        }
        db.flush().unwrap();
    }
    db.wait_for_background_work().unwrap();
    assert_eq!(db.damaged_tables().len(), 1);
    let level0 = db.live_files().iter().filter(|f| f.level == 0).count();
    assert!(level0 < options.cf.level0_stop_writes_trigger, "{level0}");
    let last = format!("{}", 3 * options.cf.level0_stop_writes_trigger - 1);
    for n in 0..100 {
        assert_eq!(db.get(&key(n)).unwrap().as_deref(), Some(last.as_bytes()));
    }
}

#[test]
fn a_damaged_table_does_not_stop_writers_however_much_is_written() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    // Not even two tables of level 0 are merged with each other.
    options.cf.max_compaction_bytes = 1;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..100 {
        db.put(&key(n), &[b'v'; 50]).unwrap();
    }
    db.flush().unwrap();
    let victim = db.live_files()[0].clone();
    db.close().unwrap();
    flip(&fs, victim.number);
    for _ in 0..2 {
        let db = Db::open(DIR, &options).unwrap();
        let rounds = 2 * options.cf.level0_stop_writes_trigger;
        let writer = on_thread(move || {
            for round in 0..rounds {
                for n in 0..100 {
                    db.put(&key(n), format!("{round}").as_bytes()).unwrap();
                }
                db.flush().unwrap();
            }
            db.wait_for_background_work().unwrap();
            assert_eq!(db.damaged_tables().len(), 1);
            db.get(&key(7)).unwrap().map(|v| v.to_vec())
        });
        let last = format!("{}", rounds - 1);
        assert_eq!(ends(&writer), Some(last.into_bytes()));
    }
}

fn separating(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.blob_file_size = 64 << 10;
    options.cf.target_file_size_base = 1 << 10;
    options.cf.disable_auto_compactions = true;
    options
}

/// Each table of level 6 points to values in the same blob files as its neighbours. Two of them do not open; closed.
fn with_two_damaged(fs: &MemFileSystem) -> ([LiveFile; 2], Map) {
    let db = Db::open(DIR, &separating(fs)).expect("the disk is well");
    let family = db.default_column_family();
    let mut map = Map::new();
    for round in 0..2 {
        for n in (0..600).step_by(1 + round) {
            let value = vec![b'a' + round as u8; 300];
            db.put(&key(n), &value).expect("the disk is well");
            map.insert(key(n), value);
        }
        compact_all(&db, &family);
    }
    let files = db.live_files();
    assert!(files.len() > 5, "{files:?}");
    drop(family);
    db.close().expect("the disk is well");
    // Its footer, so that nothing in it is told.
    for victim in [&files[1], &files[3]] {
        let path = filename::table_path(Path::new(DIR), victim.number);
        let mut bytes = read_file(fs, &path).expect("the disk is well");
        bytes.iter_mut().rev().take(8).for_each(|b| *b ^= 0xff);
        write_file(fs, &path, &bytes).expect("the disk is well");
    }
    for victim in [&files[1], &files[3]] {
        map.retain(|key, _| *key < victim.smallest || *key > victim.largest);
    }
    ([files[1].clone(), files[3].clone()], map)
}

#[test]
fn a_damaged_table_with_pointers_can_be_dropped() {
    let fs = MemFileSystem::new();
    let (victims, map) = with_two_damaged(&fs);
    let db = Db::open(DIR, &separating(&fs)).unwrap();
    let family = db.default_column_family();
    // The first goes while the second does not tell either, and takes its share along with that.
    for victim in &victims {
        let range = UserKeyRange::new(&victim.smallest, &victim.largest);
        let dropped = db.delete_files_in_ranges(&family, &[range], true).unwrap();
        assert_eq!(dropped.tables, [victim.number]);
    }
    assert_eq!(scan(&db, &family), map.into_iter().collect::<Vec<_>>());
    assert_exact(&db, &family);
}

#[test]
fn two_damaged_tables_can_be_dropped_at_the_same_time() {
    let fs = MemFileSystem::new();
    let (victims, map) = with_two_damaged(&fs);
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (theirs, is_armed) = (gate.clone(), armed.clone());
    let mut options = separating(&fs);
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, path| {
        let is_manifest = path.to_string_lossy().contains("MANIFEST");
        if op == Op::Sync && is_manifest && is_armed.swap(false, Ordering::SeqCst) {
            theirs.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    armed.store(true, Ordering::SeqCst);
    let dropping = |victim: &LiveFile| {
        let (db, victim) = (db.clone(), victim.clone());
        on_thread(move || {
            let range = UserKeyRange::new(&victim.smallest, &victim.largest);
            let family = db.default_column_family();
            let dropped = db.delete_files_in_ranges(&family, &[range], true);
            assert_eq!(dropped.unwrap().tables, [victim.number]);
        })
    };
    let first = dropping(&victims[0]);
    gate.wait_for(1);
    let second = dropping(&victims[1]);
    settle();
    gate.open();
    ends(&first);
    ends(&second);
    let family = db.default_column_family();
    assert_eq!(scan(&db, &family), map.into_iter().collect::<Vec<_>>());
    assert_exact(&db, &family);
}

/// A table of level 6 whose one pointer leads past the end of its blob file, or to a file that is not there, beside others; closed.
/// Gives its number.
fn with_a_bad_pointer(fs: &MemFileSystem, options: &Options, is_of_no_file: bool) -> u64 {
    let db = Db::open(DIR, options).expect("the disk is well");
    let family = db.default_column_family();
    for n in 0..10 {
        db.put(&key(n), &[b'a'; 300]).expect("the disk is well");
    }
    compact_all(&db, &family);
    let blob = db.live_blob_files()[0].number;
    drop(family);
    db.close().expect("the disk is well");
    let number = 5000;
    let mut pointer = Vec::new();
    BlobPointer {
        file: if is_of_no_file { blob + 1000 } else { blob },
        offset: 1 << 40,
        size: 300,
        codec: CompressionType::None,
    }
    .encode(&mut pointer);
    let path = filename::table_path(Path::new(DIR), number);
    let building = TableBuilderOptions {
        file_number: number,
        ..TableBuilderOptions::default()
    };
    let mut builder = TableBuilder::new(fs.create(&path).expect("the disk is well"), building)
        .expect("the disk is well");
    let mut internal = Vec::new();
    append_internal_key(&mut internal, &key(50), 1, ValueKind::BlobIndex);
    builder.add(&internal, &pointer).expect("the disk is well");
    let summary = builder.finish(Vec::new()).expect("the disk is well");
    fs.sync_dir(Path::new(DIR)).expect("the disk is well");
    let mut edit = VersionEdit {
        next_file_number: Some(number + 1),
        ..VersionEdit::of_column_family(0)
    };
    let file = FileMeta {
        number,
        size: summary.file_size,
        smallest: summary.smallest.expect("has an entry"),
        largest: summary.largest.expect("has an entry"),
        smallest_seqno: 1,
        largest_seqno: 1,
        epoch_number: 1,
        oldest_blob_file_number: blob,
        ..FileMeta::default()
    };
    edit.add_file(6, Arc::new(file));
    add_edit(fs, &edit);
    number
}

#[test]
fn a_table_with_a_bad_pointer_is_named_and_left_alone() {
    for is_of_no_file in [false, true] {
        let fs = MemFileSystem::new();
        let mut separating = separated(&fs);
        separating.cf.disable_auto_compactions = true;
        let victim = with_a_bad_pointer(&fs, &separating, is_of_no_file);
        let db = Db::open(DIR, &separating).unwrap();
        let family = db.default_column_family();
        let files = |db: &Db| {
            let live = db.live_files().into_iter().map(|f| f.number);
            live.collect::<Vec<_>>()
        };
        // What the pointer leads to becomes garbage, which no file has.
        for n in 0..100 {
            db.put(&key(n), &[b'b'; 300]).unwrap();
        }
        db.flush().unwrap();
        let before = files(&db);
        let force = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        let compact = || db.compact_range(&force, &family, None, None);
        let error = compact().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        let told = |what| error.context(what).unwrap_or_default();
        assert!(
            told("file").ends_with(&filename::table_name(victim)),
            "{error}"
        );
        assert_eq!(told("column_family"), "default", "{error}");
        assert!(told("blob_file").parse::<u64>().is_ok(), "{error}");
        let damaged: Vec<u64> = db.damaged_tables().iter().map(|d| d.number).collect();
        assert_eq!(damaged, [victim]);
        assert_eq!(files(&db), before);
        assert_no_strays(&fs, &db);
        // Writes and reads go on.
        db.put(&key(1000), b"v").unwrap();
        assert!(db.get(&key(50)).unwrap().is_some());
        let range = UserKeyRange::new(b"key00050", b"key00051");
        let gone = db.delete_files_in_ranges(&family, &[range], false).unwrap();
        assert_eq!(gone.tables, [victim]);
        compact().unwrap();
        assert_eq!(scan(&db, &family).len(), 101);
        assert_exact(&db, &family);
        db.close().unwrap();
    }
}
