//! Blob files under failing disks, copies, filters, and readers that stay behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::ErrorKind;
use orogen_base::comparator::UserComparator;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::options::FileChecksumKind;
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{ColumnFamily, Db, FlushOptions, ReadOptions, UserKeyRange};
use orogen_env::fs::read_file;
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

use crate::blob_damage::blob_path;
use crate::blobs::{assert_exact, assert_no_strays, compact_all, key, separated, w};
use crate::steer::{Gate, ends, on_thread};
use crate::support::{DIR, scan, scan_backward};

pub(crate) fn put(db: &Db, n: usize, len: usize) {
    db.put(&key(n), &vec![b'a' + n as u8; len])
        .expect("the disk is well");
}

pub(crate) fn get(db: &Db, n: usize) -> Option<Vec<u8>> {
    let found = db.get(&key(n)).expect("the disk is well");
    found.map(|v| v.to_vec())
}

/// Asks what all values are, and keeps them.
pub(crate) struct Nosy;

impl CompactionFilter for Nosy {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        match value.first() {
            Some(b'c') => FilterDecision::Remove,
            // One that stays large, and one that does not.
            Some(b'd') => FilterDecision::ChangeValue(vec![b'D'; 700]),
            Some(b'e') => FilterDecision::ChangeValue(b"E".to_vec()),
            _ => FilterDecision::Keep,
        }
    }
}

impl CompactionFilterFactory for Nosy {
    fn name(&self) -> &str {
        "nosy"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(Nosy))
    }
}

#[test]
fn filters_that_change_values_leave_exact_counts() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.compaction_filter_factory = Some(Arc::new(Nosy));
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..8).for_each(|n| put(&db, n, 500));
    let snapshot = db.snapshot();
    db.flush().unwrap();
    // What a snapshot sees stays as it is.
    compact_all(&db, &family);
    assert_eq!(get(&db, 2), Some(vec![b'c'; 500]));
    drop(snapshot);
    compact_all(&db, &family);
    assert_eq!(get(&db, 1), Some(vec![b'b'; 500]));
    assert_eq!(get(&db, 2), None);
    assert_eq!(get(&db, 3), Some(vec![b'D'; 700]));
    assert_eq!(get(&db, 4), Some(b"E".to_vec()));
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn a_read_that_fails_fails_alone_and_may_be_tried_again() {
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(below.clone());
    let mut options = separated(&below);
    options.db.fs = Arc::new(fs.clone());
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..6).for_each(|n| put(&db, n, 3000));
    db.flush().unwrap();
    let fault = || Fault::io().on(&[OpKind::Read]).path_with(".blob");
    assert!(get(&db, 0).is_some());
    fs.faults().add(fault());
    assert_eq!(db.get(&key(0)).unwrap_err().kind(), ErrorKind::Io);
    assert!(get(&db, 0).is_some());
    // At each read of a scan, either way: an error, and the next seek is well.
    for backward in [false, true] {
        for nth in 1.. {
            let before = fs.faults().injected();
            let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
            fs.faults().add(fault().nth(nth));
            let mut seen = 0;
            if backward {
                iter.seek_to_last();
            } else {
                iter.seek_to_first();
            }
            while iter.valid() {
                assert_eq!(iter.value().len(), 3000);
                seen += 1;
                if backward {
                    iter.prev();
                } else {
                    iter.next();
                }
            }
            if fs.faults().injected() == before {
                // Values are read together: the scan has no more reads.
                assert!(seen == 6 && nth > 3, "{seen} {nth}");
                fs.faults().clear();
                break;
            }
            // What is read ahead is read alone where that fails.
            match iter.status() {
                Ok(()) => assert_eq!(seen, 6, "{nth}"),
                Err(e) => assert!(seen < 6 && e.kind() == ErrorKind::Io, "{nth}: {e}"),
            }
            fs.faults().clear();
            iter.seek_to_first();
            assert!(iter.valid());
            iter.status().unwrap();
        }
    }
    // Where it cannot be read alone either.
    fs.faults().add(fault().forever());
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    assert!(!iter.valid());
    assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Io);
    fs.faults().clear();
    // One that stands on a value it cannot read, and is asked again.
    let unprepared = ReadOptions {
        allow_unprepared_value: true,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&unprepared, &family).unwrap();
    iter.seek(&key(3));
    fs.faults().add(fault());
    assert!(!iter.prepare_value() && !iter.valid());
    iter.seek(&key(3));
    assert!(iter.prepare_value());
    assert_eq!(iter.value(), [b'd'; 3000]);
    // Those that several keys asked for together.
    let keys: Vec<Vec<u8>> = (0..6).map(key).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    fs.faults().add(fault().forever());
    let found = db.multi_get(&ReadOptions::default(), &family, &asked);
    let io = |e: &orogen_base::Error| e.kind() == ErrorKind::Io;
    assert!(found.iter().all(|f| f.as_ref().is_err_and(io)));
    fs.faults().clear();
    let found = db.multi_get(&ReadOptions::default(), &family, &asked);
    assert!(found.iter().all(|f| f.as_ref().is_ok_and(Option::is_some)));
}

#[test]
fn jobs_whose_blob_files_fail_are_done_again_and_leave_nothing() {
    let kinds = [
        OpKind::Create,
        OpKind::Append,
        OpKind::Sync,
        OpKind::Read,
        OpKind::Open,
    ];
    for (kind, halves) in kinds.iter().flat_map(|&k| [(k, u64::MAX), (k, 0)]) {
        let below = MemFileSystem::new();
        let fs = FaultFileSystem::over_memory(below.clone());
        let mut options = separated(&below);
        options.db.fs = Arc::new(fs.clone());
        options.db.flush_halves_bytes = halves;
        options.cf.disable_auto_compactions = true;
        options.cf.enable_blob_garbage_collection = true;
        options.cf.blob_garbage_collection_age_cutoff = 1.0;
        options.cf.paranoid_file_checks = true;
        options.db.max_subcompactions = 3;
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let fault = |n| Fault::no_space().on(&[kind]).path_with(".blob").nth(n);
        for round in 0..4 {
            (0..24).for_each(|n| put(&db, n, 500 + round));
            // The flush itself may fail, or be done again by itself.
            fs.faults().add(fault(1 + round as u64));
            let _ = db.flush();
            fs.faults().clear();
            let _ = db.resume();
            db.flush().unwrap();
            fs.faults().add(fault(1 + round as u64));
            let all = Default::default();
            let _ = db.compact_range(&all, &family, None, None);
            fs.faults().clear();
            let _ = db.resume();
            db.wait_for_background_work().unwrap();
            for n in 0..24 {
                assert_eq!(get(&db, n).unwrap().len(), 500 + round, "{kind:?}");
            }
            assert_exact(&db, &family);
        }
        compact_all(&db, &family);
        assert_exact(&db, &family);
        assert_no_strays(&below, &db);
    }
}

#[test]
fn codec_and_border_may_change_while_it_is_open() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let codecs = [
        "kNoCompression",
        "kSnappyCompression",
        "kLZ4Compression",
        "kLZ4HCCompression",
        "kZSTD",
        "kZlibCompression",
    ];
    let mut rng = Rng::new(7);
    let mut held = BTreeMap::new();
    let mut n = 0;
    for codec in codecs {
        for min in ["0", "1", "300", "1000000"] {
            let changes = [("blob_compression_type", codec), ("min_blob_size", min)];
            if let Err(e) = db.set_options(&family, &changes) {
                // Not every codec is built in, and then the call says so.
                assert_eq!(codec, "kZlibCompression", "{e}");
                continue;
            }
            for len in [0, 1, 299, 300, 5000] {
                // One that shrinks, and one that does not.
                for value in [vec![b'x'; len], rng.bytes(len)] {
                    db.put(&key(n), &value).unwrap();
                    held.insert(key(n), value);
                    n += 1;
                }
            }
            db.flush().unwrap();
        }
    }
    let pairs: Vec<_> = held.into_iter().collect();
    assert!(db.live_blob_files().len() >= 10);
    assert!(scan(&db, &family) == pairs && scan_backward(&db, &family) == pairs);
    assert_exact(&db, &family);
    let old: Vec<u64> = db.live_blob_files().iter().map(|b| b.number).collect();
    // All of them into the last way.
    let gc = [
        ("enable_blob_garbage_collection", "true"),
        ("blob_garbage_collection_age_cutoff", "1.0"),
        ("min_blob_size", "2"),
        ("blob_compression_type", "kLZ4Compression"),
    ];
    db.set_options(&family, &gc).unwrap();
    compact_all(&db, &family);
    assert!(
        db.live_blob_files()
            .iter()
            .all(|b| !old.contains(&b.number))
    );
    assert!(scan(&db, &family) == pairs && scan_backward(&db, &family) == pairs);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
    for bad in ["-0.1", "1.1", "NaN", "much"] {
        let change = [("blob_garbage_collection_age_cutoff", bad)];
        let error = db.set_options(&family, &change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad}");
    }
}

#[test]
fn the_oldest_files_are_emptied_and_the_others_stay() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for n in 0..8 {
        put(&db, n, 500);
        db.flush().unwrap();
    }
    let numbers = |db: &Db| -> Vec<u64> { db.live_blob_files().iter().map(|b| b.number).collect() };
    let before = numbers(&db);
    assert_eq!(before.len(), 8);
    compact_all(&db, &family);
    assert_eq!(numbers(&db), before, "it is not turned on");
    for (cutoff, gone) in [("0.1", 0), ("0.25", 2), ("0.5", 3)] {
        let before = numbers(&db);
        let changes = [
            ("enable_blob_garbage_collection", "true"),
            ("blob_garbage_collection_age_cutoff", cutoff),
        ];
        db.set_options(&family, &changes).unwrap();
        compact_all(&db, &family);
        let after = numbers(&db);
        assert!(before[..gone].iter().all(|n| !after.contains(n)));
        assert!(before[gone..].iter().all(|n| after.contains(n)));
        // Their values went into one.
        assert_eq!(after.len(), before.len() - gone + usize::from(gone > 0));
        assert_exact(&db, &family);
    }
    for n in 0..8 {
        assert_eq!(get(&db, n), Some(vec![b'a' + n as u8; 500]));
    }
    assert_no_strays(&fs, &db);
}

#[test]
fn a_snapshot_keeps_the_values_that_it_sees_and_their_files() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut views = Vec::new();
    for round in 0..4 {
        (0..20).for_each(|n| put(&db, n, 500 + round));
        let snapshot = Some(db.snapshot());
        views.push(ReadOptions {
            snapshot,
            ..ReadOptions::default()
        });
        db.flush().unwrap();
        compact_all(&db, &family);
        assert_exact(&db, &family);
    }
    db.delete_range_opt(&w(), &family, &key(0), &key(99))
        .unwrap();
    compact_all(&db, &family);
    assert_exact(&db, &family);
    let values: u64 = db
        .live_blob_files()
        .iter()
        .map(|b| b.total_blob_count - b.garbage_blob_count)
        .sum();
    assert_eq!(values, 80);
    for (round, view) in views.iter().enumerate() {
        for n in 0..20 {
            let found = db.get_opt(view, &family, &key(n)).unwrap();
            assert_eq!(
                found.as_deref(),
                Some(&vec![b'a' + n as u8; 500 + round][..])
            );
        }
    }
    views.clear();
    compact_all(&db, &family);
    assert!(db.live_blob_files().is_empty());
    assert_no_strays(&fs, &db);
}

#[test]
fn single_deletes_give_up_their_values() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..20).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    compact_all(&db, &family);
    let snapshot = db.snapshot();
    (0..10).for_each(|n| db.single_delete_opt(&w(), &family, &key(n)).unwrap());
    db.flush().unwrap();
    compact_all(&db, &family);
    assert_exact(&db, &family);
    drop(snapshot);
    compact_all(&db, &family);
    assert_exact(&db, &family);
    let values: u64 = db
        .live_blob_files()
        .iter()
        .map(|b| b.total_blob_count - b.garbage_blob_count)
        .sum();
    assert_eq!(values, 10);
}

#[test]
fn older_values_that_dropped_tables_uncover_are_there() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.disable_auto_compactions = true;
    options.cf.num_levels = 4;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..20).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    compact_all(&db, &family);
    (5..10).for_each(|n| put(&db, n, 700));
    db.flush().unwrap();
    // The newer ones are in a level of their own; the ranges leave some of the older table.
    db.compact_range(&Default::default(), &family, Some(&key(5)), Some(&key(9)))
        .unwrap();
    let range = UserKeyRange {
        start: Some(&key(4)),
        end: Some(&key(11)),
    };
    db.delete_files_in_ranges(&family, &[range], false).unwrap();
    for n in 0..20 {
        let found = get(&db, n);
        assert!(
            found.is_none_or(|v| v.len() == 500 || v.len() == 700),
            "{n}"
        );
    }
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn a_very_large_value_goes_in_and_out() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.write_buffer_size = 64 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut rng = Rng::new(3);
    let value = rng.bytes(9 << 20);
    for codec in ["kNoCompression", "kLZ4Compression", "kZSTD"] {
        let change = [
            ("blob_compression_type", codec),
            ("enable_blob_garbage_collection", "true"),
            ("blob_garbage_collection_age_cutoff", "1.0"),
        ];
        db.set_options(&family, &change).unwrap();
        put(&db, 0, 500);
        db.put(&key(1), &value).unwrap();
        put(&db, 2, 500);
        db.flush().unwrap();
        for _ in 0..2 {
            assert!(get(&db, 1).as_deref() == Some(&value[..]));
            let found = db.multi_get(&ReadOptions::default(), &family, &[&key(0), &key(1)]);
            assert!(found[1].as_ref().unwrap().as_deref() == Some(&value[..]));
            assert!(scan(&db, &family)[1].1 == value);
            compact_all(&db, &family);
        }
        assert_exact(&db, &family);
    }
    db.delete(&key(1)).unwrap();
    compact_all(&db, &family);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn a_family_of_the_same_name_has_files_of_its_own() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let old = db.create_column_family("f", options.cf.clone()).unwrap();
    for n in 0..10 {
        db.put_opt(&w(), &old, &key(n), &[b'o'; 500]).unwrap();
    }
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&old))
        .unwrap();
    let mut iter = db.iter(&ReadOptions::default(), &old).unwrap();
    iter.seek_to_first();
    db.drop_column_family(&old).unwrap();
    let new = db.create_column_family("f", options.cf.clone()).unwrap();
    for n in 5..10 {
        db.put_opt(&w(), &new, &key(n), &[b'n'; 600]).unwrap();
    }
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&new))
        .unwrap();
    // Who was reading goes on.
    let mut seen = 0;
    while iter.valid() {
        assert_eq!(iter.value(), [b'o'; 500]);
        seen += 1;
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(seen, 10);
    drop((iter, old));
    assert_exact(&db, &new);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
    db.close().unwrap();
    drop((db, new));
    let mut options = options;
    options.db.create_missing_column_families = true;
    let db = Db::open(DIR, &options).unwrap();
    let new = db.column_family("f").unwrap();
    assert_eq!(scan(&db, &new).len(), 5);
    assert_exact(&db, &new);
    assert_no_strays(&fs, &db);
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// An iterator against a map, with turns, seeks, bounds, and values that are not always asked for.
#[test]
fn cursors_turn_around_among_pointers_merges_and_tombstones() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let fs = MemFileSystem::new();
        let mut options = separated(&fs);
        options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
        options.cf.prefix_extractor = orogen_base::slice_transform::by_name("fixed:5");
        let reverse = rng.chance(1, 3);
        if reverse {
            options.cf.comparator = UserComparator::REVERSE_BYTEWISE;
        }
        options.cf.blob_compression_type =
            *rng.pick(&[CompressionType::None, CompressionType::Lz4]);
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let mut map = Map::new();
        for n in 0..400 {
            let k = key(rng.below(60) as usize);
            let value = vec![b'a' + (n % 26) as u8; *rng.pick(&[20, 99, 100, 300, 3000])];
            match rng.below(12) {
                0 => {
                    db.delete(&k).unwrap();
                    map.remove(&k);
                }
                1..=3 => {
                    db.merge_opt(&w(), &family, &k, &value).unwrap();
                    let new = match map.remove(&k) {
                        Some(old) => [&old[..], b",", &value].concat(),
                        None => value,
                    };
                    map.insert(k, new);
                }
                4 if rng.chance(1, 8) => db.flush().unwrap(),
                _ => {
                    db.put(&k, &value).unwrap();
                    map.insert(k, value);
                }
            }
        }
        let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = map.into_iter().collect();
        if reverse {
            pairs.reverse();
        }
        for _ in 0..20 {
            walk(&db, &family, &pairs, reverse, &mut rng);
        }
        compact_all(&db, &family);
        walk(&db, &family, &pairs, reverse, &mut rng);
    }
}

fn walk(
    db: &Db,
    family: &ColumnFamily,
    pairs: &[(Vec<u8>, Vec<u8>)],
    reverse: bool,
    rng: &mut Rng,
) {
    let before = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
    let bound = |rng: &mut Rng| rng.chance(1, 3).then(|| key(rng.below(60) as usize));
    let prefix = rng
        .chance(1, 3)
        .then(|| key(rng.below(60) as usize)[..5].to_vec());
    let (lower, upper) = match &prefix {
        Some(_) => (None, None),
        None => (bound(rng), bound(rng)),
    };
    let options = ReadOptions {
        iterate_lower_bound: lower.clone(),
        iterate_upper_bound: upper.clone(),
        prefix_same_as_start: prefix.is_some(),
        allow_unprepared_value: rng.chance(1, 2),
        verify_checksums: rng.chance(1, 2),
        ..ReadOptions::default()
    };
    let seen: Vec<&(Vec<u8>, Vec<u8>)> = pairs
        .iter()
        .filter(|(k, _)| {
            lower.as_ref().is_none_or(|l| !before(k, l))
                && upper.as_ref().is_none_or(|u| before(k, u))
                && prefix.as_ref().is_none_or(|p| k.starts_with(p))
        })
        .collect();
    let mut iter = db.iter(&options, family).expect("opens");
    let mut at: Option<usize> = None;
    for _ in 0..60 {
        let target = match &prefix {
            Some(p) => [p, &[b'0' + rng.below(10) as u8][..]].concat(),
            None => key(rng.below(60) as usize),
        };
        let step = if at.is_none() {
            rng.below(2)
        } else {
            rng.below(14)
        };
        match step {
            0 => {
                iter.seek(&target);
                at = seen.iter().position(|(k, _)| !before(k, &target));
            }
            1 => {
                iter.seek_for_prev(&target);
                at = seen.iter().rposition(|(k, _)| !before(&target, k));
            }
            2..=7 => {
                iter.next();
                at = at.map(|i| i + 1).filter(|&i| i < seen.len());
            }
            _ => {
                iter.prev();
                at = at.and_then(|i| i.checked_sub(1));
            }
        }
        iter.status().expect("the disk is well");
        assert_eq!(iter.valid(), at.is_some());
        if let Some(i) = at {
            assert_eq!(iter.key(), seen[i].0);
            if !options.allow_unprepared_value || rng.chance(1, 2) {
                assert!(iter.prepare_value());
                assert!(iter.value() == seen[i].1);
                let pinned = iter.pinned_value().expect("memory is there");
                assert!(*pinned == seen[i].1[..]);
            }
        }
    }
}

#[test]
fn backups_share_blob_files_by_their_checksums() {
    for checksums in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = separated(&fs);
        options.db.file_checksum = match checksums {
            true => FileChecksumKind::Crc32c,
            false => FileChecksumKind::None,
        };
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        let backups = BackupEngine::open(
            "/backups",
            BackupOptions {
                fs: Arc::new(fs.clone()),
                ..BackupOptions::default()
            },
        )
        .unwrap();
        let shared = || -> Vec<String> {
            let names = fs.list(Path::new("/backups/shared_checksum")).unwrap();
            let mut names: Vec<_> = names.into_iter().filter(|n| n.ends_with(".blob")).collect();
            names.sort();
            names
        };
        (0..20).for_each(|n| put(&db, n, 500));
        db.flush().unwrap();
        let first = backups.create_backup(&db).unwrap().id;
        let held = scan(&db, &family);
        let blob = &db.live_blob_files()[0];
        let bytes = read_file(&fs, &blob_path(blob.number)).unwrap();
        // RocksDB's name: number, checksum as a number, bytes.
        let crc = orogen_base::checksum::crc32c(&bytes);
        let name = format!("{:06}_{crc}_{}.blob", blob.number, bytes.len());
        assert!(shared().contains(&name), "{name} {:?}", shared());
        let before = shared();
        put(&db, 30, 500);
        db.flush().unwrap();
        let again = backups.create_backup_with(&db, &mut |_, _| {}).unwrap();
        // The old ones were not copied, and the new ones came along.
        assert!(before.iter().all(|n| shared().contains(n)));
        assert!(shared().len() > before.len());
        assert!(again.bytes_copied < again.info.bytes);
        (0..20).for_each(|n| put(&db, n, 700));
        compact_all(&db, &family);
        let last = backups.create_backup(&db).unwrap().id;
        let now = scan(&db, &family);
        for (id, held) in [(first, &held), (last, &now)] {
            backups.verify(id).unwrap();
            let target = format!("/restored{id}");
            backups.restore(id, &target).unwrap();
            let restored = Db::open(&target, &options).unwrap();
            let family = restored.default_column_family();
            assert!(scan(&restored, &family) == *held);
            assert_exact(&restored, &family);
            restored.verify_file_checksums().unwrap();
        }
        backups.purge_old(1).unwrap();
        assert_eq!(shared().len(), db.live_blob_files().len());
        assert!(!shared().contains(&name));
    }
}

#[test]
fn a_follower_reads_what_the_primary_compacts_away() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..20).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    let follower = Db::open_as_secondary(DIR, None, &options).unwrap();
    let theirs = follower.default_column_family();
    for round in 1..6 {
        let mut iter = follower.iter(&ReadOptions::default(), &theirs).unwrap();
        iter.seek_to_first();
        let before = scan(&follower, &theirs);
        let read = ReadOptions {
            snapshot: Some(follower.snapshot()),
            ..ReadOptions::default()
        };
        (0..20).for_each(|n| put(&db, n, 500 + round));
        compact_all(&db, &family);
        db.wait_for_background_work().unwrap();
        assert_no_strays(&fs, &db);
        // The files are gone from the directory; who has them open reads on.
        assert!(scan(&follower, &theirs) == before);
        follower.try_catch_up_with_primary().unwrap();
        assert!(scan(&follower, &theirs) == scan(&db, &family));
        assert!(scan_backward(&follower, &theirs) == scan(&db, &family));
        let mut seen = Vec::new();
        while iter.valid() {
            seen.push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        iter.status().unwrap();
        assert!(seen == before);
        let keys: Vec<&[u8]> = before.iter().map(|(k, _)| k.as_slice()).collect();
        let found = follower.multi_get(&read, &theirs, &keys);
        for (found, (_, value)) in found.iter().zip(&before) {
            assert!(found.as_ref().unwrap().as_deref() == Some(value));
        }
        assert_exact(&follower, &theirs);
    }
}

#[test]
fn checkpoints_are_whole_while_values_move() {
    let fs = MemFileSystem::new();
    let mut options = separated(&fs);
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    options.cf.blob_file_discardable_ratio = 0.3;
    options.cf.min_gc_batch_size = 0;
    let db = Arc::new(Db::open(DIR, &options).unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let (writer, stop) = (db.clone(), done.clone());
    let writes = on_thread(move || {
        let mut round = 0u64;
        while !stop.load(Ordering::Relaxed) {
            round += 1;
            for n in 0..20 {
                // All of a round together, so that a copy shows which one it has.
                let mut value = round.to_be_bytes().to_vec();
                value.resize(400 + 50 * n, b'v');
                writer.put(&key(n), &value).expect("the disk is well");
            }
            if round.is_multiple_of(3) {
                writer.flush().expect("the disk is well");
            }
        }
    });
    for copy in 0..12 {
        let target = format!("/copy{copy}");
        db.checkpoint(&target).unwrap();
        let copied = Db::open(&target, &options).unwrap();
        let family = copied.default_column_family();
        copied.wait_for_background_work().unwrap();
        assert_exact(&copied, &family);
        copied.verify_checksums().unwrap();
        let rounds: Vec<u64> = scan(&copied, &family)
            .iter()
            .enumerate()
            .map(|(n, (k, v))| {
                assert_eq!((k.as_slice(), v.len()), (&key(n)[..], 400 + 50 * n));
                u64::from_be_bytes(v[..8].try_into().expect("eight bytes"))
            })
            .collect();
        // A prefix of the writes: at most one round is cut in two.
        assert!(rounds.is_sorted_by(|a, b| a >= b), "{rounds:?}");
        if let (Some(first), Some(last)) = (rounds.first(), rounds.last()) {
            assert!(first - last <= 1, "{rounds:?}");
        }
    }
    done.store(true, Ordering::Relaxed);
    ends(&writes);
    db.wait_for_background_work().unwrap();
    assert_exact(&db, &db.default_column_family());
    assert_no_strays(&fs, &db);
}

/// Holds a compaction at its thousandth key.
struct Held(Arc<Gate>, usize);

impl CompactionFilter for Held {
    fn filter(&mut self, _: usize, _: &[u8], _: &[u8]) -> FilterDecision {
        self.1 += 1;
        if self.1 == 1000 {
            self.0.pass();
        }
        FilterDecision::Keep
    }
}

struct Holds(Arc<Gate>);

impl CompactionFilterFactory for Holds {
    fn name(&self) -> &str {
        "holds"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(Held(self.0.clone(), 0)))
    }
}

#[test]
fn compactions_that_are_given_up_leave_counts_and_files_as_they_were() {
    for dropped in [false, true] {
        let fs = MemFileSystem::new();
        let gate = Gate::new();
        let mut options = separated(&fs);
        options.cf.write_buffer_size = 16 << 20;
        options.cf.disable_auto_compactions = true;
        options.cf.enable_blob_garbage_collection = true;
        options.cf.blob_garbage_collection_age_cutoff = 1.0;
        let db = Db::open(DIR, &options).unwrap();
        options.cf.compaction_filter_factory = Some(Arc::new(Holds(gate.clone())));
        let family = db.create_column_family("f", options.cf.clone()).unwrap();
        // More entries than a job reads between two looks.
        for round in 0..2 {
            for n in 0..3000u32 {
                let value = vec![round; 100 + n as usize % 50];
                db.put_opt(&w(), &family, &n.to_be_bytes(), &value).unwrap();
            }
            db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
                .unwrap();
        }
        let before = db.live_blob_files();
        let handle = db
            .compact_range_async(&Default::default(), &family, None, None)
            .unwrap();
        gate.wait_for(1);
        // It has written some already.
        let on_disk = fs.list(Path::new(DIR)).unwrap();
        let blobs = on_disk.iter().filter(|n| n.ends_with(".blob")).count();
        assert!(blobs > before.len());
        if dropped {
            db.drop_column_family(&family).unwrap();
        } else {
            handle.cancel();
        }
        gate.open();
        let result = handle.wait();
        if !dropped {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Aborted);
            assert_eq!(db.live_blob_files(), before);
            assert_exact(&db, &family);
            assert_eq!(scan(&db, &family).len(), 3000);
        }
        drop((handle, family));
        db.wait_for_background_work().unwrap();
        assert_no_strays(&fs, &db);
    }
}
