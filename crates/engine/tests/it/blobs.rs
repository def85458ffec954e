//! Large values in blob files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    BottommostLevelCompaction, ColumnFamily, CompactRangeOptions, Db, DeletedFiles, FlushOptions,
    Options, ReadOptions, Snapshot, UserKeyRange, WriteOptions,
};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Clock, FileSystem, MemFileSystem, SystemClock};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

use crate::support::{DIR, scan, scan_backward, small};

/// Values of 100 bytes and more go to blob files of some kibibytes.
pub(crate) fn separated(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 100;
    options.cf.blob_file_size = 8 << 10;
    options
}

pub(crate) type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn pairs(map: &Map) -> Vec<(Vec<u8>, Vec<u8>)> {
    map.iter().map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Reads everything in every way.
pub(crate) fn assert_holds(db: &Db, family: &ColumnFamily, map: &Map, snapshot: Option<&Snapshot>) {
    let options = ReadOptions {
        snapshot: snapshot.cloned(),
        ..ReadOptions::default()
    };
    if snapshot.is_none() {
        assert_eq!(scan(db, family), pairs(map));
        assert_eq!(scan_backward(db, family), pairs(map));
    }
    let keys: Vec<Vec<u8>> = (0..60).map(key).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let together = db.multi_get(&options, family, &asked);
    for (key, found) in keys.iter().zip(together) {
        let wanted = map.get(key).map(Vec::as_slice);
        assert_eq!(found.expect("the disk is well").as_deref(), wanted);
        let alone = db.get_opt(&options, family, key).expect("the disk is well");
        assert_eq!(alone.as_deref(), wanted);
    }
}

/// What the MANIFEST says of each blob file is what the tables point to.
pub(crate) fn assert_exact(db: &Db, family: &ColumnFamily) {
    for check in db.check_blob_files(family, true).expect("the disk is well") {
        assert!(check.is_exact(), "{check:?}");
        assert!(check.live_blob_count > 0, "{check:?} should be gone");
    }
}

/// The blob files in the directory are those that the version lists, once the background has
/// taken the others away.
pub(crate) fn assert_no_strays(fs: &MemFileSystem, db: &Db) {
    let on_disk = || {
        let mut names: Vec<String> = fs.list(Path::new(DIR)).expect("the disk is well");
        names.retain(|n| n.ends_with(".blob"));
        names.sort();
        names
    };
    let mut listed: Vec<String> = db
        .live_blob_files()
        .iter()
        .map(|b| format!("{:06}.blob", b.number))
        .collect();
    listed.sort();
    for _ in 0..5_000 {
        if on_disk() == listed {
            return;
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    assert_eq!(on_disk(), listed);
}

pub(crate) fn w() -> WriteOptions {
    WriteOptions::default()
}

pub(crate) fn key(n: usize) -> Vec<u8> {
    format!("key{n:03}").into_bytes()
}

pub(crate) fn value(rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(4) {
        0 => rng.below(99),
        1 => 99 + rng.below(3),
        2 => 100 + rng.below(300),
        _ => 1000 + rng.below(3000),
    };
    let letter = b'a' + rng.below(26) as u8;
    vec![letter; len as usize]
}

pub(crate) fn write_some(
    db: &Db,
    family: &ColumnFamily,
    rng: &mut Rng,
    map: &mut Map,
    calls: usize,
) {
    for _ in 0..calls {
        let k = key(rng.below(60) as usize);
        match rng.below(20) {
            0..=1 => {
                db.delete_opt(&w(), family, &k).expect("the disk is well");
                map.remove(&k);
            }
            2..=4 => {
                let operand = value(rng);
                db.merge_opt(&w(), family, &k, &operand)
                    .expect("the disk is well");
                let old = map.remove(&k);
                let new = match old {
                    Some(old) => [&old[..], b",", &operand].concat(),
                    None => operand,
                };
                map.insert(k, new);
            }
            5 if rng.chance(1, 3) => {
                let end = key(rng.below(60) as usize);
                if k < end {
                    db.delete_range_opt(&w(), family, &k, &end)
                        .expect("the disk is well");
                    map.retain(|key, _| *key < k || *key >= end);
                }
            }
            _ => {
                let v = value(rng);
                db.put_opt(&w(), family, &k, &v).expect("the disk is well");
                map.insert(k, v);
            }
        }
    }
}

pub(crate) fn compact_all(db: &Db, family: &ColumnFamily) {
    let all = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    db.compact_range(&all, family, None, None)
        .expect("the disk is well");
}

#[test]
fn what_was_written_is_read_whatever_becomes_of_the_files() {
    for seed in 0..12 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let mut options = separated(&fs);
        options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
        options.cf.blob_compression_type = *rng.pick(&[
            CompressionType::None,
            CompressionType::Lz4,
            CompressionType::Zstd,
            CompressionType::Snappy,
        ]);
        options.cf.enable_blob_garbage_collection = rng.chance(1, 2);
        options.cf.blob_garbage_collection_age_cutoff = *rng.pick(&[0.25, 0.5, 1.0]);
        options.cf.blob_cache = rng.chance(1, 2);
        options.db.max_subcompactions = 1 + rng.below(3) as usize;
        options.db.avoid_flush_during_recovery = rng.chance(1, 2);
        let mut map = Map::new();
        let mut db = Db::open(DIR, &options).unwrap();
        let mut snapshots: Vec<(Snapshot, Map)> = Vec::new();
        for _ in 0..12 {
            let family = db.default_column_family();
            write_some(&db, &family, &mut rng, &mut map, 120);
            if rng.chance(1, 2) {
                snapshots.push((db.snapshot(), map.clone()));
            }
            match rng.below(6) {
                0 => db.flush().unwrap(),
                1 => compact_all(&db, &family),
                2 => {
                    snapshots.clear();
                    db.close().unwrap();
                    drop(db);
                    options.cf.enable_blob_files = rng.chance(4, 5);
                    options.cf.min_blob_size = *rng.pick(&[0, 100, 101, 2000]);
                    db = Db::open(DIR, &options).unwrap();
                }
                3 => {
                    let on = rng.chance(4, 5).to_string();
                    db.set_options(&family, &[("enable_blob_files", &on)])
                        .unwrap();
                }
                _ => {}
            }
            let family = db.default_column_family();
            assert_holds(&db, &family, &map, None);
            for (snapshot, then) in &snapshots {
                assert_holds(&db, &family, then, Some(snapshot));
            }
            if snapshots.len() > 2 {
                snapshots.remove(0);
            }
            db.wait_for_background_work().unwrap();
            assert_exact(&db, &family);
        }
        snapshots.clear();
        let family = db.default_column_family();
        compact_all(&db, &family);
        db.wait_for_background_work().unwrap();
        assert_exact(&db, &family);
        assert_no_strays(&fs, &db);
        db.close().unwrap();
        drop(db);
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
    }
}

#[test]
fn small_values_stay_and_large_ones_go() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &separated(&fs)).unwrap();
    let family = db.default_column_family();
    db.put(b"a", &[1; 99]).unwrap();
    db.put(b"b", &[2; 100]).unwrap();
    db.put(b"c", b"").unwrap();
    assert!(db.live_blob_files().is_empty());
    db.flush().unwrap();
    let files = db.live_blob_files();
    assert_eq!(files.len(), 1);
    assert_eq!(files[0].total_blob_count, 1);
    assert_eq!(files[0].total_blob_bytes, 32 + 1 + 100);
    assert_exact(&db, &family);
    assert_eq!(db.get(b"b").unwrap().as_deref(), Some(&[2; 100][..]));
    // A file goes with its last value.
    db.delete(b"b").unwrap();
    compact_all(&db, &family);
    assert!(db.live_blob_files().is_empty());
    assert_no_strays(&fs, &db);
}

#[test]
fn a_reader_keeps_the_file_that_it_reads_from() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &separated(&fs)).unwrap();
    let family = db.default_column_family();
    for n in 0..20 {
        db.put(&key(n), &[n as u8; 500]).unwrap();
    }
    db.flush().unwrap();
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    for n in 0..20 {
        db.delete(&key(n)).unwrap();
    }
    compact_all(&db, &family);
    assert!(db.live_blob_files().is_empty());
    for n in 0..20 {
        assert_eq!(iter.value(), [n as u8; 500]);
        iter.next();
    }
    assert!(!iter.valid());
    iter.status().unwrap();
    drop(iter);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
}

#[test]
fn keys_alone_touch_no_blob() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &separated(&fs)).unwrap();
    let family = db.default_column_family();
    for n in 0..20 {
        db.put(&key(n), &[n as u8; 500]).unwrap();
    }
    db.flush().unwrap();
    // They are gone, and nobody may notice.
    for blob in db.live_blob_files() {
        let path = format!("{DIR}/{:06}.blob", blob.number);
        fs.remove_file(Path::new(&path)).unwrap();
    }
    let options = ReadOptions {
        allow_unprepared_value: true,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&options, &family).unwrap();
    iter.seek_to_first();
    let mut keys = 0;
    while iter.valid() {
        assert_eq!(iter.key(), key(keys));
        keys += 1;
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(keys, 20);
    iter.seek_to_last();
    assert_eq!(iter.key(), key(19));
    iter.prev();
    assert_eq!(iter.key(), key(18));
    assert!(!iter.prepare_value());
    assert!(!iter.valid());
    let error = iter.status().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.to_string().contains(".blob"), "{error}");
    // Without it each step reads its value.
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    assert!(!iter.valid());
    assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn a_damaged_value_is_an_error_of_its_own() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..3 {
        db.put(&key(n), &[b'a' + n as u8; 500]).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    let name = fs.list(Path::new(DIR)).unwrap();
    let name = name.iter().find(|n| n.ends_with(".blob")).unwrap();
    let path = Path::new(DIR).join(name);
    let mut bytes = read_file(&fs, &path).unwrap();
    let at = bytes.iter().position(|&b| b == b'b').unwrap();
    bytes[at + 100] ^= 4;
    write_file(&fs, &path, &bytes).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let asked = [&key(0)[..], &key(1), &key(2)];
    let found = db.multi_get(&ReadOptions::default(), &family, &asked);
    assert_eq!(
        found[0].as_ref().unwrap().as_deref(),
        Some(&[b'a'; 500][..])
    );
    assert_eq!(found[1].as_ref().unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(
        found[2].as_ref().unwrap().as_deref(),
        Some(&[b'c'; 500][..])
    );
    assert_eq!(db.get(&key(1)).unwrap_err().kind(), ErrorKind::Corruption);
    let found = db.scrub(&Default::default(), &mut |_, _| {}).unwrap();
    assert_eq!((found.blob_files, found.damaged_blob_files.len()), (1, 1));
    assert!(db.verify_checksums().is_err());
}

#[test]
fn values_go_back_into_tables() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_some_puts(&db, &mut map);
    assert!(!db.live_blob_files().is_empty());
    db.set_options(
        &family,
        &[
            ("enable_blob_files", "false"),
            ("enable_blob_garbage_collection", "true"),
            ("blob_garbage_collection_age_cutoff", "1.0"),
        ],
    )
    .unwrap();
    compact_all(&db, &family);
    assert!(db.live_blob_files().is_empty());
    assert_no_strays(&fs, &db);
    assert_holds(&db, &family, &map, None);
    // And out again.
    db.set_options(&family, &[("enable_blob_files", "true")])
        .unwrap();
    compact_all(&db, &family);
    assert!(!db.live_blob_files().is_empty());
    assert_exact(&db, &family);
    assert_holds(&db, &family, &map, None);
}

fn write_some_puts(db: &Db, map: &mut Map) {
    for n in 0..60 {
        let v = vec![n as u8; 50 + 10 * n];
        db.put(&key(n), &v).expect("the disk is well");
        map.insert(key(n), v);
    }
    db.flush().expect("the disk is well");
}

/// Drops tables; what is told of their values is what the files say before and after, to the byte.
fn drop_tables(db: &Db, range: UserKeyRange<'_>) -> DeletedFiles {
    let family = db.default_column_family();
    let before = db.live_blob_files();
    let gone = db
        .delete_files_in_ranges(&family, &[range], false)
        .expect("the disk is well");
    let after = db.live_blob_files();
    let mut died = (0, 0);
    for file in &before {
        let now = after.iter().find(|f| f.number == file.number);
        assert_eq!(gone.blob_files.contains(&file.number), now.is_none());
        let all = (file.total_blob_count, file.total_blob_bytes);
        let now = now.map_or(all, |f| (f.garbage_blob_count, f.garbage_blob_bytes));
        died.0 += now.0 - file.garbage_blob_count;
        died.1 += now.1 - file.garbage_blob_bytes;
    }
    assert_eq!((gone.garbage_blob_count, gone.garbage_blob_bytes), died);
    gone
}

#[test]
fn tables_that_are_dropped_whole_give_up_what_they_point_to() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.target_file_size_base = 1;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_some_puts(&db, &mut map);
    compact_all(&db, &family);
    let (start, end) = (key(20), key(40));
    let range = UserKeyRange {
        start: Some(&start),
        end: Some(&end),
    };
    assert!(drop_tables(&db, range).garbage_blob_count > 0);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    // With the last table that points into it a file goes.
    let left = drop_tables(&db, UserKeyRange::new(&key(0), &key(20)));
    assert!(!left.blob_files.is_empty(), "{left:?}");
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    // The same by a range tombstone, whose tables are not read.
    db.delete_range_opt(&w(), &family, &key(0), &key(60))
        .unwrap();
    compact_all(&db, &family);
    assert!(db.live_blob_files().is_empty());
    assert_no_strays(&fs, &db);
}

#[test]
fn families_have_files_of_their_own_and_take_them_away() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let other = db.create_column_family("other", options.cf).unwrap();
    db.put(b"k", &[1; 200]).unwrap();
    db.put_opt(&w(), &other, b"k", &[2; 300]).unwrap();
    db.flush_opt(
        &FlushOptions::default(),
        &[db.default_column_family(), other.clone()],
    )
    .unwrap();
    assert_eq!(db.live_blob_files().len(), 2);
    assert_eq!(
        db.get_opt(&ReadOptions::default(), &other, b"k")
            .unwrap()
            .as_deref(),
        Some(&[2; 300][..])
    );
    db.drop_column_family(&other).unwrap();
    drop(other);
    assert_eq!(db.live_blob_files().len(), 1);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
    assert_eq!(db.get(b"k").unwrap().as_deref(), Some(&[1; 200][..]));
}

#[test]
fn checkpoints_hold_the_blobs() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_some_puts(&db, &mut map);
    db.checkpoint(Path::new("/copy")).unwrap();
    let kept = map.clone();
    for n in 0..60 {
        db.put(&key(n), &[0; 500]).unwrap();
    }
    compact_all(&db, &family);
    let copy = Db::open("/copy", &options).unwrap();
    let family = copy.default_column_family();
    assert_holds(&copy, &family, &kept, None);
    assert_exact(&copy, &family);
}

/// Drops keys that end in an odd digit, without a look at their values.
struct DropOdd;

impl CompactionFilter for DropOdd {
    fn filter(&mut self, _: usize, key: &[u8], _: &[u8]) -> FilterDecision {
        match key.last() {
            Some(b) if b % 2 == 1 => FilterDecision::Remove,
            _ => FilterDecision::Keep,
        }
    }
    fn filter_blob_by_key(&mut self, level: usize, key: &[u8], _: u64) -> Option<FilterDecision> {
        Some(self.filter(level, key, b""))
    }
}

impl CompactionFilterFactory for DropOdd {
    fn name(&self) -> &str {
        "drop odd"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(DropOdd))
    }
}

#[test]
fn filters_drop_values_that_they_have_not_read() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.compaction_filter_factory = Some(Arc::new(DropOdd));
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_some_puts(&db, &mut map);
    compact_all(&db, &family);
    map.retain(|k, _| k.last().is_some_and(|b| b % 2 == 0));
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
}

#[test]
fn garbage_in_the_oldest_files_makes_them_go() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    write_some_puts(&db, &mut map);
    compact_all(&db, &family);
    let oldest = db.live_blob_files()[0].number;
    // Each third key: what is left of the files is worth keeping.
    for n in (0..60).step_by(3) {
        db.put(&key(n), &[7; 300]).unwrap();
        map.insert(key(n), vec![7; 300]);
    }
    let keep = [("blob_garbage_collection_age_cutoff", "0.0")];
    db.set_options(&family, &keep).unwrap();
    compact_all(&db, &family);
    assert!(db.live_blob_files().iter().any(|b| b.number == oldest));
    assert!(
        db.live_blob_files()
            .iter()
            .any(|b| b.garbage_blob_count > 0)
    );
    db.set_options(
        &family,
        &[
            ("blob_garbage_collection_age_cutoff", "1.0"),
            ("blob_garbage_collection_force_threshold", "0.1"),
            ("disable_auto_compactions", "false"),
        ],
    )
    .unwrap();
    db.wait_for_background_work().unwrap();
    let left = db.live_blob_files();
    assert!(left.iter().all(|b| b.number != oldest), "{left:?}");
    assert_holds(&db, &family, &map, None);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}
