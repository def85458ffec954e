//! Values that go to blob files from a level on.

use std::path::Path;
use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_engine::{
    BottommostLevelCompaction, CollectBlobGarbageOptions, ColumnFamily, CompactRangeOptions,
    ConvertTo, ConvertValuesOptions, Db, Options, repair,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem, PowerCut};

use crate::blobs::{Map, assert_exact, assert_holds, assert_no_strays, key, separated};
use crate::support::{DIR, small};

/// Two levels, nothing by itself, values of 100 bytes and more apart from `level` on.
fn from_level(fs: &MemFileSystem, level: usize) -> Options {
    let mut options = separated(fs);
    options.cf.num_levels = 2;
    options.cf.disable_auto_compactions = true;
    options.cf.blob_file_starting_level = level;
    options
}

/// A value of 500 bytes for each of so many keys, in one table of level 0.
fn write_table(db: &Db, map: &mut Map, keys: std::ops::Range<usize>, letter: u8) {
    for n in keys {
        db.put(&key(n), &[letter; 500]).expect("the disk is well");
        map.insert(key(n), vec![letter; 500]);
    }
    db.flush().expect("the disk is well");
}

fn compact(db: &Db, family: &ColumnFamily) {
    db.compact_range(&CompactRangeOptions::default(), family, None, None)
        .expect("the disk is well");
}

/// Values in blob files that are not garbage.
fn apart(db: &Db) -> u64 {
    let files = db.live_blob_files();
    let live = files
        .iter()
        .map(|f| f.total_blob_count - f.garbage_blob_count);
    live.sum()
}

fn tables_at(db: &Db, level: usize) -> u64 {
    let name = format!("rocksdb.num-files-at-level{level}");
    let files = db.property(&db.default_column_family(), &name);
    files.and_then(|n| n.parse().ok()).expect("a number")
}

fn set_level(db: &Db, level: &str) {
    let family = db.default_column_family();
    db.set_options(&family, &[("blob_file_starting_level", level)])
        .expect("it may change");
}

#[test]
fn values_are_separated_by_the_level_that_their_table_is_written_to() {
    for (starting_level, flushed, compacted) in [(0, 15, 10), (1, 0, 10), (2, 0, 0)] {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &from_level(&fs, starting_level)).unwrap();
        let family = db.default_column_family();
        let mut map = Map::new();
        write_table(&db, &mut map, 0..10, b'a');
        write_table(&db, &mut map, 5..10, b'b');
        assert_eq!(apart(&db), flushed, "level {starting_level}");
        compact(&db, &family);
        assert_eq!((tables_at(&db, 0), apart(&db)), (0, compacted));
        assert_exact(&db, &family);
        assert_holds(&db, &family, &map, None);
        db.wait_for_background_work().unwrap();
        assert_no_strays(&fs, &db);
    }
}

#[test]
fn a_table_that_moves_as_it_is_keeps_its_values_until_it_is_written_anew() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &from_level(&fs, 1)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_table(&db, &mut map, 0..10, b'a');
    compact(&db, &family);
    assert_eq!((tables_at(&db, 0), tables_at(&db, 1)), (0, 1));
    assert_eq!(apart(&db), 0, "it was moved");
    let all = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    db.compact_range(&all, &family, None, None).unwrap();
    assert_eq!(apart(&db), 10);
    assert_holds(&db, &family, &map, None);
}

#[test]
fn the_level_changes_while_the_database_is_open_and_is_kept() {
    let fs = MemFileSystem::new();
    let mut options = from_level(&fs, 0);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_table(&db, &mut map, 0..10, b'a');
    assert_eq!(apart(&db), 10);
    set_level(&db, "1");
    write_table(&db, &mut map, 10..20, b'b');
    assert_eq!(apart(&db), 10, "a flush writes to level 0");
    // Pointers pass, whatever the level.
    set_level(&db, "2");
    write_table(&db, &mut map, 5..15, b'c');
    compact(&db, &family);
    assert_eq!((tables_at(&db, 1), apart(&db)), (1, 5));
    assert_exact(&db, &family);
    assert_holds(&db, &family, &map, None);
    drop((family, db));
    let loaded = Db::load_latest_options(DIR, &options).unwrap();
    assert_eq!(loaded.family("default").blob_file_starting_level, 2);
    let db = Db::open(DIR, &loaded).unwrap();
    write_table(&db, &mut map, 20..30, b'd');
    assert_eq!(apart(&db), 5);
    drop(db);
    options.cf.blob_file_starting_level = 0;
    let db = Db::open(DIR, &options).unwrap();
    write_table(&db, &mut map, 30..40, b'e');
    assert_eq!(apart(&db), 15);
    assert_holds(&db, &db.default_column_family(), &map, None);
}

/// Values in blob files, half of them written over, in a table of level 1; the level is below it from here on.
fn raised(fs: &MemFileSystem, change: impl Fn(&mut Options)) -> (Db, ColumnFamily, Map) {
    let mut options = from_level(fs, 0);
    change(&mut options);
    let db = Db::open(DIR, &options).expect("it opens");
    let family = db.default_column_family();
    let mut map = Map::new();
    write_table(&db, &mut map, 0..20, b'a');
    write_table(&db, &mut map, 10..20, b'b');
    compact(&db, &family);
    assert_eq!((tables_at(&db, 1), apart(&db)), (1, 20));
    set_level(&db, "2");
    (db, family, map)
}

fn returned(db: &Db) -> u64 {
    db.db_options().statistics.get(Ticker::BlobValuesReturned)
}

#[test]
fn what_is_collected_above_the_level_comes_back_into_tables() {
    // By whoever asks for it, table by table.
    let fs = MemFileSystem::new();
    let (db, family, map) = raised(&fs, |_| {});
    let how = CollectBlobGarbageOptions {
        discardable_ratio: 0.1,
        ..CollectBlobGarbageOptions::default()
    };
    db.collect_blob_garbage(&how, &family).unwrap();
    // The file without garbage is left alone.
    assert_eq!((apart(&db), returned(&db)), (10, 10));
    assert_exact(&db, &family);
    assert_holds(&db, &family, &map, None);
    // By RocksDB's way, in a compaction.
    let fs = MemFileSystem::new();
    let (db, family, mut map) = raised(&fs, |o| {
        o.cf.enable_blob_garbage_collection = true;
        o.cf.blob_garbage_collection_age_cutoff = 1.0;
    });
    let before = returned(&db);
    write_table(&db, &mut map, 15..25, b'c');
    compact(&db, &family);
    assert_eq!(
        (db.live_blob_files().len(), returned(&db) - before),
        (0, 15)
    );
    assert_holds(&db, &family, &map, None);
    assert_no_strays(&fs, &db);
    // And out again at the level.
    set_level(&db, "1");
    write_table(&db, &mut map, 20..25, b'd');
    compact(&db, &family);
    assert_eq!(apart(&db), 25);
    assert_exact(&db, &family);
    assert_holds(&db, &family, &map, None);
}

#[test]
fn nothing_is_put_in_order_where_it_would_come_back_into_tables() {
    let fs = MemFileSystem::new();
    let (db, family, mut map) = raised(&fs, |o| {
        o.cf.level_merge = true;
        o.cf.range_merge = true;
        o.cf.max_sorted_runs = 1;
    });
    let ordered = |db: &Db| {
        let statistics = &db.db_options().statistics;
        statistics.get(Ticker::BlobLocalityKeysRelocated)
    };
    let before = ordered(&db);
    write_table(&db, &mut map, 5..15, b'c');
    compact(&db, &family);
    assert_eq!((ordered(&db), returned(&db)), (before, 0));
    assert_eq!(apart(&db), 10, "0 to 5 and 15 to 20");
    set_level(&db, "1");
    write_table(&db, &mut map, 0..1, b'd');
    compact(&db, &family);
    assert!(ordered(&db) > before);
    assert_exact(&db, &family);
    assert_holds(&db, &family, &map, None);
}

#[test]
fn a_conversion_separates_from_the_level_on() {
    let fs = MemFileSystem::new();
    let mut options = from_level(&fs, 1);
    options.cf.enable_blob_files = false;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_table(&db, &mut map, 0..10, b'a');
    compact(&db, &family);
    write_table(&db, &mut map, 10..15, b'b');
    assert_eq!((tables_at(&db, 0), tables_at(&db, 1)), (1, 1));
    for rewritten in [1, 0] {
        let converted = db
            .convert_values(
                &family,
                ConvertTo::Separated,
                &ConvertValuesOptions::default(),
            )
            .unwrap();
        assert!(converted.is_whole(), "{converted:?}");
        assert_eq!((converted.tables_rewritten, apart(&db)), (rewritten, 10));
    }
    assert_eq!(tables_at(&db, 0), 1);
    assert_holds(&db, &family, &map, None);
    let converted = db
        .convert_values(&family, ConvertTo::Inline, &ConvertValuesOptions::default())
        .unwrap();
    assert!(converted.is_whole(), "{converted:?}");
    assert_eq!(db.live_blob_files(), []);
    assert_holds(&db, &family, &map, None);
}

#[test]
fn what_is_replayed_is_of_level_0() {
    for (level, wanted) in [(0, 10), (1, 0)] {
        let fs = MemFileSystem::new();
        let options = from_level(&fs, level);
        let db = Db::open(DIR, &options).unwrap();
        let mut map = Map::new();
        for n in 0..10 {
            db.put(&key(n), &[7; 500]).unwrap();
            map.insert(key(n), vec![7; 500]);
        }
        let fs = fs.crash(PowerCut::KeepAll);
        drop(db);
        let db = Db::open(DIR, &from_level(&fs, level)).unwrap();
        assert_eq!(apart(&db), wanted, "level {level}");
        assert_holds(&db, &db.default_column_family(), &map, None);
    }
}

#[test]
fn a_repair_that_knows_no_levels_writes_to_the_last() {
    for (level, wanted) in [(1, 10), (2, 0)] {
        let fs = MemFileSystem::new();
        let options = from_level(&fs, level);
        let db = Db::open(DIR, &options).unwrap();
        let mut map = Map::new();
        write_table(&db, &mut map, 0..10, b'a');
        assert_eq!(apart(&db), 0);
        db.close().unwrap();
        drop(db);
        for name in fs.list(Path::new(DIR)).unwrap() {
            if name.starts_with("MANIFEST-") {
                fs.remove_file(&Path::new(DIR).join(name)).unwrap();
            }
        }
        repair::repair(DIR, "/repaired", &options, &mut |_, _| {}).unwrap();
        let db = Db::open("/repaired", &options).unwrap();
        assert_eq!((tables_at(&db, 1), apart(&db)), (1, wanted));
        assert_holds(&db, &db.default_column_family(), &map, None);
    }
}

#[test]
fn an_options_file_of_rocksdb_tells_the_level() {
    for version in ["rocksdb-7.8", "rocksdb-9.8"] {
        let fs = MemFileSystem::new();
        drop(Db::open(DIR, &small(&fs)).unwrap());
        let mut names = fs.list(Path::new(DIR)).unwrap();
        names.retain(|name| name.starts_with("OPTIONS-"));
        let path = Path::new(DIR).join(names.last().expect("there is one"));
        let golden = Path::new("../../testdata/options").join(version);
        let text = std::fs::read_to_string(golden).unwrap();
        let line = "\n  blob_file_starting_level=0\n";
        assert!(text.contains(line), "{version}");
        let text = text.replace(line, "\n  blob_file_starting_level=4\n");
        write_file(&fs, &path, text.as_bytes()).unwrap();
        let mut options = Db::load_latest_options(DIR, &small(&fs)).unwrap();
        assert_eq!(options.family("default").blob_file_starting_level, 4);
        // And ours tells it in a line that RocksDB reads.
        options.db.fs = Arc::new(fs.clone());
        drop(Db::open(DIR, &options).unwrap());
        let mut names = fs.list(Path::new(DIR)).unwrap();
        names.retain(|name| name.starts_with("OPTIONS-"));
        names.sort();
        let path = Path::new(DIR).join(names.last().expect("there is one"));
        let ours = String::from_utf8(read_file(&fs, &path).unwrap()).unwrap();
        assert!(ours.contains("\n  blob_file_starting_level=4\n"), "{ours}");
    }
}
