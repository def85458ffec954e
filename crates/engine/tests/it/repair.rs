//! Repair: what is not damaged is found, and the rest is told of.

use std::collections::BTreeMap;
use std::path::Path;
use std::slice;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_engine::plugin::merge_operator;
use orogen_engine::repair::{self, ManifestState, RepairReport};
use orogen_engine::{
    BottommostLevelCompaction, ColumnFamilyOptions, CompactRangeOptions, Db, FlushOptions, Options,
    ReadOptions, WriteOptions,
};
use orogen_env::fault::Errno;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_sst::CompressionType;

use crate::support::{DIR, scan, small};

pub(crate) const NEW: &str = "/new";

pub(crate) type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

pub(crate) fn options(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    options.cf.merge_operator = merge_operator::by_name("stringappend");
    options.cf.compression = CompressionType::None;
    options
}

pub(crate) fn content(db: &Db) -> Content {
    let families = db.column_families();
    families
        .iter()
        .map(|f| (f.name().to_owned(), scan(db, f).into_iter().collect()))
        .collect()
}

/// Two families in tables of several levels and in logs, killed; and what it held.
pub(crate) fn sample() -> (MemFileSystem, Content) {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).expect("opens");
    let rocks = db
        .create_column_family("rocks", options.cf)
        .expect("is made");
    let in_tables = FlushOptions::default();
    let write = WriteOptions::default();
    for n in 0..3000u32 {
        let key = format!("key{:04}", n * 7 % 1500);
        db.put(key.as_bytes(), format!("{n:050}").as_bytes())
            .expect("writes");
        if n % 5 == 0 {
            let key = format!("rock{:03}", n % 400);
            db.put_opt(&write, &rocks, key.as_bytes(), &n.to_be_bytes())
                .expect("writes");
        }
        if n % 11 == 0 {
            let key = format!("key{:04}", n * 3 % 1500);
            db.delete(key.as_bytes()).expect("writes");
        }
        if n % 17 == 0 {
            let key = format!("merge{:02}", n % 50);
            db.merge_opt(&write, &rocks, key.as_bytes(), b"m")
                .expect("writes");
        }
        if n == 1200 {
            let family = db.default_column_family();
            db.compact_range(&CompactRangeOptions::default(), &family, None, None)
                .expect("compacts");
        }
        if n == 2000 {
            // At the bottom its entries lose their numbers, while a log still has them.
            let all = CompactRangeOptions::default();
            db.compact_range(&all, &rocks, None, None)
                .expect("compacts");
        }
        if [2000, 2400, 2600].contains(&n) {
            db.flush_opt(&in_tables, slice::from_ref(&rocks))
                .expect("flushes");
        }
    }
    db.wait_for_background_work().expect("rests");
    let want = content(&db);
    let live: Vec<String> = db
        .live_files()
        .iter()
        .map(|f| format!("{DIR}/{:06}.sst", f.number))
        .collect();
    let image = fs.crash(PowerCut::KeepAll);
    // The last compaction's inputs may not be deleted yet, and nothing of them would be lost.
    for table in tables(&image).iter().filter(|t| !live.contains(t)) {
        image.remove_file(Path::new(table)).expect("removes");
    }
    (image, want)
}

pub(crate) fn run(fs: &MemFileSystem) -> RepairReport {
    let mut last = (0, 0);
    let report = repair::repair(DIR, NEW, &options(fs), &mut |done, total| {
        last = (done, total);
    })
    .expect("repairs");
    assert_eq!(last.0, last.1);
    report
}

pub(crate) fn repaired(fs: &MemFileSystem) -> Content {
    let db = Db::open(NEW, &options(fs)).expect("opens");
    db.verify_checksums().expect("is whole");
    db.verify_file_checksums().expect("is whole");
    let before = content(&db);
    assert_exact(&db);
    // A point read stops at the first place that has the key.
    for family in db.column_families() {
        for (key, value) in &before[family.name()] {
            let found = db.get_opt(&ReadOptions::default(), &family, key);
            assert_eq!(found.expect("reads").as_deref(), Some(&value[..]));
        }
    }
    // It can be written and compacted.
    for family in db.column_families() {
        let write = WriteOptions::default();
        db.put_opt(&write, &family, b"new", b"1").expect("writes");
        db.compact_range(&CompactRangeOptions::default(), &family, None, None)
            .expect("compacts");
    }
    assert_exact(&db);
    let mut after = content(&db);
    for pairs in after.values_mut() {
        pairs.remove(&b"new"[..]);
    }
    assert!(after == before, "a compaction changed what is read");
    before
}

/// What the MANIFEST says of blob files is what tables point to, and all values are there.
fn assert_exact(db: &Db) {
    for family in db.column_families() {
        for file in db.check_blob_files(&family, true).expect("is whole") {
            assert!(file.is_exact() && file.live_blob_count > 0, "{file:?}");
        }
    }
}

pub(crate) fn tables(fs: &MemFileSystem) -> Vec<String> {
    let mut names = fs.list(Path::new(DIR)).expect("lists");
    names.retain(|n| n.ends_with(".sst"));
    names.sort();
    names.iter().map(|n| format!("{DIR}/{n}")).collect()
}

fn everything(fs: &MemFileSystem, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = Path::new(dir);
    let names = fs.list(dir).expect("lists");
    let read = |name: &String| read_file(fs, &dir.join(name)).expect("reads");
    names.iter().map(|n| (n.clone(), read(n))).collect()
}

/// What differs between `want` and `got` lies in ranges that the report tells as lost.
pub(crate) fn check(report: &RepairReport, want: &Content, got: &Content, what: &str) {
    for (family, want) in want {
        let got = &got[family];
        let keys = want.keys().chain(got.keys());
        for key in keys.filter(|k| want.get(*k) != got.get(*k)) {
            let told = report
                .tables_damaged
                .iter()
                .filter(|t| &t.column_family == family || t.unassigned)
                .flat_map(|t| &t.lost)
                .any(|lost| {
                    lost.after.as_ref().is_none_or(|a| a <= key)
                        && lost.up_to.as_ref().is_none_or(|b| key <= b)
                })
                || report
                    .values_lost
                    .iter()
                    .any(|lost| &lost.column_family == family && &lost.key == key);
            let key = key.escape_ascii();
            assert!(
                told,
                "{what}: {family} {key} differs, and nothing tells\n{report:?}"
            );
        }
    }
}

#[test]
fn a_healthy_directory_is_left_alone() {
    let (fs, want) = sample();
    // A torn tail is what crashes leave.
    let logs: Vec<String> = {
        let mut names = fs.list(Path::new(DIR)).unwrap();
        names.retain(|n| n.ends_with(".log"));
        names.sort();
        names
    };
    let log = Path::new(DIR).join(logs.last().unwrap());
    let mut file = fs.open_append(&log).unwrap();
    file.append(&[1, 2, 3, 4, 5]).unwrap();
    drop(file);
    let before = everything(&fs, DIR);
    let report = run(&fs);
    assert!(report.is_healthy(), "{report:?}");
    assert!(report.tables_whole > 3 && report.log_operations > 0);
    assert!(!fs.exists(Path::new(NEW)).unwrap());
    assert!(everything(&fs, DIR) == before);
    let db = Db::open(DIR, &options(&fs)).unwrap();
    assert!(content(&db) == want);
    let busy = repair::examine(DIR, &options(&fs), &mut |_, _| {}).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
}

#[test]
fn what_is_on_a_file_system_for_reading_only_is_repaired_into_another() {
    let (fs, want) = sample();
    fs.remove_file(&Path::new(DIR).join("CURRENT")).unwrap();
    let mounted = FaultFileSystem::over_memory(fs.clone());
    // Links are those of the new one.
    let mut kinds = OpKind::CHANGING.to_vec();
    kinds.retain(|&kind| kind != OpKind::Link);
    let fault = Fault::new(Errno::ROFS).on(&kinds).path_with(DIR);
    mounted.faults().add(fault.forever());
    let mut options = options(&fs);
    options.db.fs = Arc::new(mounted);
    repair::repair(DIR, NEW, &options, &mut |_, _| {}).expect("reads only");
    assert!(repaired(&fs) == want);
}

#[test]
fn all_is_found_without_current_and_without_manifest() {
    for (without_manifest, without_options) in [(false, false), (true, false), (true, true)] {
        let (fs, want) = sample();
        for name in fs.list(Path::new(DIR)).unwrap() {
            let gone = name == "CURRENT"
                || (without_manifest && name.starts_with("MANIFEST"))
                || (without_options && name.starts_with("OPTIONS"))
                || (without_options && name == "IDENTITY");
            if gone {
                fs.remove_file(&Path::new(DIR).join(name)).unwrap();
            }
        }
        let before = everything(&fs, DIR);
        let dry = repair::examine(DIR, &options(&fs), &mut |_, _| {}).unwrap();
        assert!(!dry.is_healthy());
        assert!(!fs.exists(Path::new(NEW)).unwrap());
        let report = run(&fs);
        match report.manifest {
            ManifestState::Found(_) => assert!(!without_manifest),
            ManifestState::Lost(_) => assert!(without_manifest),
            ManifestState::Current(_) => panic!("there is no CURRENT"),
        }
        assert!(report.tables_damaged.is_empty() && report.logs_damaged.is_empty());
        assert_eq!(report.families.len(), 2);
        assert!(
            repaired(&fs) == want,
            "{without_manifest} {without_options}"
        );
        assert!(everything(&fs, DIR) == before);
    }
}

#[test]
fn operands_at_the_bottom_are_not_taken_from_a_log_again() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let rocks = db.create_column_family("rocks", options.cf).unwrap();
    let write = WriteOptions::default();
    // Keeps the log.
    db.put(b"in-the-log", b"1").unwrap();
    for _ in 0..3 {
        db.merge_opt(&write, &rocks, b"rock", b"m").unwrap();
    }
    let all = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    for _ in 0..2 {
        db.compact_range(&all, &rocks, None, None).unwrap();
    }
    let want = content(&db);
    let fs = fs.crash(PowerCut::KeepAll);
    for name in fs.list(Path::new(DIR)).unwrap() {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
        }
    }
    let report = run(&fs);
    assert_eq!(report.log_operations, 1, "{report:?}");
    assert!(repaired(&fs) == want);
}

#[test]
fn a_table_that_does_not_open_is_not_given_to_default_beside_other_families() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let rocks = db.create_column_family("rocks", options.cf).unwrap();
    let write = WriteOptions::default();
    db.put(b"in-the-log", b"1").unwrap();
    db.put_opt(&write, &rocks, b"rock", b"1").unwrap();
    db.flush_opt(&FlushOptions::default(), slice::from_ref(&rocks))
        .unwrap();
    let fs = fs.crash(PowerCut::KeepAll);
    let [table] = &tables(&fs)[..] else {
        panic!("one table")
    };
    damage(&fs, table, 2);
    for name in fs.list(Path::new(DIR)).unwrap() {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
        }
    }
    let report = run(&fs);
    assert!(report.tables_damaged[0].unassigned, "{report:?}");
    let got = repaired(&fs);
    let default: Vec<&[u8]> = got["default"].keys().map(|k| &k[..]).collect();
    assert_eq!(default, [b"in-the-log"]);
    // What the log still has of it, under a name that tells what happened.
    assert_eq!(got["recovered_1"].len(), 1);
}

/// Damages a table; the number of the way says how.
pub(crate) fn damage(fs: &MemFileSystem, table: &str, way: usize) {
    let path = Path::new(table);
    let good = read_file(fs, path).expect("reads");
    let bad = match way {
        // In the first block of data; of a small table a third of the way may be its filter.
        0 => {
            let mut bad = good.clone();
            bad[(good.len() / 3).min(100)] ^= 8;
            bad
        }
        1 => good[..good.len() / 2].to_vec(),
        2 => good[..good.len() - 3].to_vec(),
        // In the footer's neighbourhood: index or properties.
        3 => {
            let mut bad = good.clone();
            let at = good.len() - 200.min(good.len() / 2);
            bad[at] ^= 8;
            bad
        }
        4 => vec![0; good.len()],
        _ => {
            fs.remove_file(path).expect("removes");
            return;
        }
    };
    write_file(fs, path, &bad).expect("writes");
}

#[test]
fn only_what_is_told_as_lost_is_lost() {
    let (sound, want) = sample();
    let names = tables(&sound);
    assert!(names.len() >= 4, "{names:?}");
    for way in 0..6 {
        for victims in [vec![0], vec![1], vec![names.len() - 1], vec![0, 2, 3]] {
            for without_manifest in [false, true] {
                let fs = sound.fork();
                for &victim in &victims {
                    damage(&fs, &names[victim], way);
                }
                if without_manifest {
                    for name in fs.list(Path::new(DIR)).unwrap() {
                        if name == "CURRENT" || name.starts_with("MANIFEST") {
                            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
                        }
                    }
                }
                let what = format!("way {way} tables {victims:?} no manifest {without_manifest}");
                let before = everything(&fs, DIR);
                let report = run(&fs);
                assert!(everything(&fs, DIR) == before, "{what}");
                let got = repaired(&fs);
                if way == 5 && without_manifest {
                    // Nobody knows of a table that is gone.
                    assert!(report.tables_damaged.is_empty(), "{what}");
                    continue;
                }
                assert_eq!(report.tables_damaged.len(), victims.len(), "{what}");
                check(&report, &want, &got, &what);
                if way == 0 {
                    for table in &report.tables_damaged {
                        assert_eq!(table.lost.len(), 1, "{what}");
                        assert!(table.lost[0].bytes < 1000, "{what}");
                        assert!(table.lost[0].up_to.is_some(), "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn damage_in_a_log_costs_its_record_only() {
    let (fs, want) = sample();
    let mut logs = fs.list(Path::new(DIR)).unwrap();
    logs.retain(|n| n.ends_with(".log"));
    logs.sort();
    let path = Path::new(DIR).join(logs.last().unwrap());
    let mut bytes = read_file(&fs, &path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    write_file(&fs, &path, &bytes).unwrap();
    let report = run(&fs);
    assert_eq!(report.logs_damaged.len(), 1);
    assert!(report.logs_damaged[0].errors[0].context("offset").is_some());
    let got = repaired(&fs);
    let differences: usize = want
        .iter()
        .map(|(family, want)| {
            let keys = want.keys().chain(got[family].keys());
            let differ = keys.filter(|k| want.get(*k) != got[family].get(*k));
            differ.collect::<std::collections::BTreeSet<_>>().len()
        })
        .sum();
    // A batch of one operation.
    assert!(differences <= 1, "{differences}");
}

#[test]
fn orders_and_empty_directories() {
    let fs = MemFileSystem::new();
    fs.create_dir_all(Path::new(DIR)).unwrap();
    let error = repair::examine(DIR, &options(&fs), &mut |_, _| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // A family in another order is told by its tables.
    let db = Db::open(DIR, &options(&fs)).unwrap();
    let reverse = ColumnFamilyOptions {
        comparator: orogen_base::UserComparator::REVERSE_BYTEWISE,
        ..ColumnFamilyOptions::default()
    };
    let family = db.create_column_family("back", reverse.clone()).unwrap();
    for n in 0..100u8 {
        db.put_opt(&WriteOptions::default(), &family, &[n], &[n])
            .unwrap();
    }
    db.flush_opt(&FlushOptions::default(), &db.column_families())
        .unwrap();
    let want = content(&db);
    db.close().unwrap();
    for name in fs.list(Path::new(DIR)).unwrap() {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
        }
    }
    run(&fs);
    let mut options = options(&fs);
    options.families.insert("back".to_owned(), reverse);
    let db = Db::open(NEW, &options).unwrap();
    assert!(content(&db) == want);
}

#[test]
fn a_crash_at_any_call_leaves_the_new_directory_whole_or_not_there() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    for n in 0..90u32 {
        db.put(format!("key{n:03}").as_bytes(), &[b'v'; 30])
            .unwrap();
        if n % 30 == 20 {
            db.flush().unwrap();
        }
    }
    let want = content(&db);
    db.close().unwrap();
    fs.sync_all();
    for without_manifest in [false, true] {
        let sound = fs.fork();
        for name in sound.list(Path::new(DIR)).unwrap() {
            if name == "CURRENT" || (without_manifest && name.starts_with("MANIFEST")) {
                sound.remove_file(&Path::new(DIR).join(name)).unwrap();
            }
        }
        sound.sync_all();
        let before = everything(&sound, DIR);
        let mut calls = 0;
        loop {
            let fs = sound.fork();
            fs.crash_after(calls);
            let result = repair::repair(DIR, NEW, &options(&fs), &mut |_, _| {});
            let ended = result.is_ok();
            assert!(ended || fs.is_power_off(), "{calls}: {:?}", result.err());
            for cut in [
                PowerCut::KeepAll,
                PowerCut::DropUnsynced,
                PowerCut::Torn { seed: calls },
            ] {
                let disk = fs.crash(cut);
                let what = format!("call {calls}, {cut:?}, no manifest {without_manifest}");
                assert!(everything(&disk, DIR) == before, "{what}");
                if disk.exists(Path::new(NEW)).unwrap() {
                    assert!(repaired(&disk) == want, "{what}");
                } else {
                    assert!(!ended, "{what}: it is gone");
                    // The next one is not in the way of what was left.
                    run(&disk);
                    assert!(repaired(&disk) == want, "{what}: again");
                }
            }
            if ended {
                break;
            }
            calls += 1;
        }
        assert!(calls > 10, "{calls}");
    }
}

fn blobs(fs: &MemFileSystem) -> Vec<String> {
    let mut names = fs.list(Path::new(DIR)).expect("lists");
    names.retain(|n| n.ends_with(".blob"));
    names.sort();
    names.iter().map(|n| format!("{DIR}/{n}")).collect()
}

fn with_blobs(fs: &MemFileSystem) -> Options {
    let mut options = options(fs);
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 100;
    options.cf.blob_file_size = 8 << 10;
    options
}

/// Two families with values in blob files, some of them garbage, killed; and what it held.
fn sample_with_blobs() -> (MemFileSystem, Content) {
    let fs = MemFileSystem::new();
    let options = with_blobs(&fs);
    let db = Db::open(DIR, &options).expect("opens");
    let rocks = db
        .create_column_family("rocks", options.cf)
        .expect("is made");
    let write = WriteOptions::default();
    let everything = [db.default_column_family(), rocks.clone()];
    for n in 0..420u32 {
        let key = format!("key{:03}", n * 7 % 150);
        let len = 90 + (n as usize * 37) % 600;
        db.put(key.as_bytes(), &vec![n as u8; len]).expect("writes");
        if n % 4 == 0 {
            let key = format!("rock{:02}", n % 31);
            db.put_opt(&write, &rocks, key.as_bytes(), &vec![!n as u8; len])
                .expect("writes");
        }
        if n % 13 == 0 {
            let key = format!("key{:03}", n * 3 % 150);
            db.delete(key.as_bytes()).expect("writes");
        }
        if n % 90 == 89 {
            db.flush_opt(&FlushOptions::default(), &everything)
                .expect("flushes");
        }
        if n == 200 {
            for family in &everything {
                db.compact_range(&CompactRangeOptions::default(), family, None, None)
                    .expect("compacts");
            }
        }
    }
    db.wait_for_background_work().expect("rests");
    let want = content(&db);
    let mut live: Vec<String> = db
        .live_files()
        .iter()
        .map(|f| format!("{DIR}/{:06}.sst", f.number))
        .collect();
    let listed = db.live_blob_files();
    assert!(listed.iter().any(|b| b.garbage_blob_count > 0));
    live.extend(listed.iter().map(|b| format!("{DIR}/{:06}.blob", b.number)));
    let image = fs.crash(PowerCut::KeepAll);
    let files = tables(&image).into_iter().chain(blobs(&image));
    for file in files.filter(|t| !live.contains(t)) {
        image.remove_file(Path::new(&file)).expect("removes");
    }
    (image, want)
}

pub(crate) fn without_manifest(fs: &MemFileSystem) {
    for name in fs.list(Path::new(DIR)).expect("lists") {
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            fs.remove_file(&Path::new(DIR).join(name)).expect("removes");
        }
    }
}

#[test]
fn blob_files_come_along() {
    let (sound, want) = sample_with_blobs();
    let report = run(&sound);
    assert!(report.is_healthy(), "{report:?}");
    assert_eq!(report.blob_files_whole as usize, blobs(&sound).len());
    for lost in [false, true] {
        let fs = sound.fork();
        match lost {
            true => without_manifest(&fs),
            false => fs.remove_file(&Path::new(DIR).join("CURRENT")).unwrap(),
        }
        // Nothing points to it.
        write_file(&fs, &Path::new(DIR).join("900000.blob"), b"begun").unwrap();
        let before = everything(&fs, DIR);
        let report = run(&fs);
        assert!(report.blob_files_damaged.is_empty() && report.values_lost.is_empty());
        assert_eq!(report.blob_files_whole as usize, blobs(&sound).len());
        assert!(!fs.exists(&Path::new(NEW).join("900000.blob")).unwrap());
        assert!(repaired(&fs) == want, "{lost}");
        assert!(everything(&fs, DIR) == before);
    }
}

#[test]
fn of_many_lost_values_the_first_are_listed_and_all_are_counted() {
    let fs = MemFileSystem::new();
    let mut options = with_blobs(&fs);
    options.cf.min_blob_size = 0;
    options.cf.blob_file_size = 1 << 30;
    options.cf.write_buffer_size = 64 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let many = repair::LOST_LISTED_MAX + 3;
    for n in 0..many {
        db.put(&n.to_be_bytes(), b"value").unwrap();
    }
    db.flush().unwrap();
    drop(db);
    for name in blobs(&fs) {
        fs.remove_file(Path::new(&name)).unwrap();
    }
    let report = repair::examine(DIR, &options, &mut |_, _| {}).unwrap();
    assert_eq!(report.values_lost.len(), repair::LOST_LISTED_MAX);
    assert_eq!(report.values_lost_count, many as u64);
}

#[test]
fn a_damaged_blob_file_costs_the_values_that_are_told() {
    let (sound, want) = sample_with_blobs();
    let names = blobs(&sound);
    assert!(names.len() >= 6, "{names:?}");
    for way in 0..7 {
        for (i, name) in names.iter().enumerate() {
            for lost in [false, true] {
                let fs = sound.fork();
                let path = Path::new(name);
                let good = read_file(&fs, path).unwrap();
                let mut bad = good.clone();
                match way {
                    0 => bad[good.len() / 2] ^= 4,
                    1 => bad.truncate(good.len() / 2),
                    2 => bad.truncate(good.len() - 3),
                    3 => bad[12] ^= 4,
                    4 => bad[good.len() - 20] ^= 4,
                    5 => bad.fill(0),
                    _ => {}
                }
                match way {
                    6 => fs.remove_file(path).unwrap(),
                    _ => write_file(&fs, path, &bad).unwrap(),
                }
                // A family that separates no values any more gets them back into its tables.
                if lost {
                    without_manifest(&fs);
                }
                let what = format!("way {way} file {i} no manifest {lost}");
                let before = everything(&fs, DIR);
                let mut options = if i % 2 == 0 {
                    with_blobs(&fs)
                } else {
                    options(&fs)
                };
                if i % 2 == 1 {
                    for name in fs.list(Path::new(DIR)).unwrap() {
                        if name.starts_with("OPTIONS") {
                            fs.remove_file(&Path::new(DIR).join(name)).unwrap();
                        }
                    }
                }
                options.db.create_if_missing = false;
                let report = repair::repair(DIR, NEW, &options, &mut |_, _| {}).unwrap();
                if i % 2 == 0 {
                    assert!(everything(&fs, DIR) == before, "{what}");
                }
                // Also if it is garbage that is hit.
                assert_eq!(report.blob_files_damaged.len(), 1, "{what} {report:?}");
                let got = repaired(&fs);
                check(&report, &want, &got, &what);
                // All of a file that is gone, and nothing of one whose end alone is.
                let told = report.values_lost.len();
                match way {
                    0 => assert!(told <= 1, "{what} {report:?}"),
                    2 | 4 => assert_eq!(told, 0, "{what} {report:?}"),
                    3 | 5 | 6 => assert!(told > 0, "{what}"),
                    _ => {}
                }
                if !lost || told > 0 {
                    let numbers: Vec<_> = report.values_lost.iter().map(|l| l.blob_file).collect();
                    let of_it = numbers
                        .iter()
                        .all(|n| n.is_some_and(|n| name.ends_with(&format!("{n:06}.blob"))));
                    assert!(of_it, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_table_that_was_replaced_does_not_point_to_values_again() {
    let fs = MemFileSystem::new();
    let options = with_blobs(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut old = Vec::new();
    for n in 0..60u32 {
        db.put(format!("key{:02}", n % 40).as_bytes(), &[n as u8; 200])
            .unwrap();
        if n % 20 == 19 {
            db.flush().unwrap();
            for name in tables(&fs) {
                let bytes = read_file(&fs, Path::new(&name)).unwrap();
                if old.iter().all(|(n, _)| n != &name) {
                    old.push((name, bytes));
                }
            }
        }
    }
    // In the last level entries lose their sequence numbers, and keep their pointers.
    let all = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    let family = db.default_column_family();
    db.compact_range(&all, &family, None, None).unwrap();
    db.put(b"key01", b"new").unwrap();
    let want = content(&db);
    assert!(!db.live_blob_files().is_empty());
    db.close().unwrap();
    for (name, bytes) in &old {
        write_file(&fs, Path::new(name), bytes).unwrap();
    }
    assert!(tables(&fs).len() > 2);
    without_manifest(&fs);
    let report = run(&fs);
    assert_eq!(report.tables_whole as usize, tables(&fs).len());
    assert!(repaired(&fs) == want);
}
