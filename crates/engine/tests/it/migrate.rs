//! Migration of Titan's directories: the newest state arrives whole, or nothing does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::ErrorKind;
use orogen_engine::filename;
use orogen_engine::migrate::{Phase, TitanOptions, TitanReport, examine_titan, migrate_titan};
use orogen_engine::plugin::merge_operator;
use orogen_engine::{CompactRangeOptions, Db, Options, WriteBatch};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Access, Fault, FaultFileSystem, FileSystem, MemFileSystem, PowerCut};
use orogen_sst::CompressionType;
use orogen_testkit::titan::{pointer, varint};
use orogen_wal::{ReadOutcome, Reader, Writer};

use crate::support::{DIR, small};
use crate::titan::{
    Content, MIN_BLOB_SIZE, Sample, content, files, order, sample, sample_noting, titan_dir,
};

const NEW: &str = "/new";

fn options(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    options.db.create_if_missing = false;
    options.cf.merge_operator = merge_operator::by_name("stringappend");
    options.cf.compression = CompressionType::None;
    options
}

fn titan() -> TitanOptions {
    TitanOptions {
        min_blob_size: Some(MIN_BLOB_SIZE as u64),
        ..TitanOptions::default()
    }
}

fn open(fs: &MemFileSystem) -> Db {
    let mut options = options(fs);
    let mut back = options.cf.clone();
    back.comparator = order(3);
    options.families.insert("back".to_owned(), back);
    Db::open(NEW, &options).expect("opens")
}

fn go(_: Phase, _: u64, _: u64) -> bool {
    true
}

fn migrate(fs: &MemFileSystem, titan: &TitanOptions) -> TitanReport {
    let report = migrate_titan(DIR, NEW, &options(fs), titan, &go);
    report.unwrap_or_else(|e| panic!("{e}"))
}

fn exists(fs: &dyn FileSystem, path: &str) -> bool {
    fs.exists(Path::new(path)).expect("can be asked")
}

#[test]
fn the_newest_state_arrives_and_the_source_stays_as_it_is() {
    for seed in 0..12 {
        let Sample {
            fs,
            want,
            last_seqno,
            places,
        } = sample(seed, 150 + seed * 170);
        let before = files(&fs);
        let how = TitanOptions {
            min_blob_size: [Some(100), Some(1000), None, Some(0)][seed as usize % 4],
            compression: [None, Some(CompressionType::Zstd)][seed as usize % 2],
            threads: 1 + seed as usize % 3,
            ..TitanOptions::default()
        };
        let (last, all) = (AtomicU64::new(0), AtomicU64::new(0));
        let watch = |phase, done: u64, of: u64| {
            assert!(done <= of);
            if phase == Phase::Migrate {
                last.fetch_max(done, Ordering::Relaxed);
                all.store(of, Ordering::Relaxed);
            }
            true
        };
        let dry = examine_titan(DIR, &options(&fs), &how, &watch).expect("is Titan's");
        assert_eq!(last.load(Ordering::Relaxed), 0);
        assert!(dry.made.is_none() && !exists(&fs, NEW));
        let report = migrate_titan(DIR, NEW, &options(&fs), &how, &watch).expect("migrates");
        let (last, all) = (last.into_inner(), all.into_inner());
        assert!(
            last <= all && last > all * 9 / 10,
            "seed {seed}: {last} of {all}"
        );
        assert_eq!(report.values_lost_count, 0);
        assert_eq!(report.files_not_live, [500], "seed {seed}");
        let merged: Vec<bool> = report.families.iter().map(|f| f.is_merged).collect();
        assert_eq!(merged, [true, false, true, true], "seed {seed}");
        for (told, found) in dry.families.iter().zip(&report.families) {
            assert_eq!(told.tables, found.tables);
            assert_eq!(told.referenced_bytes, found.referenced_bytes);
            assert!(told.blob_file_bytes >= told.referenced_bytes || told.id == 0);
        }
        assert!(files(&fs) == before, "seed {seed}");
        assert!(!exists(&fs, "/new.tmp") && !exists(&fs, "/new/UNFINISHED"));
        let made = report.made.expect("it was asked for");
        {
            let db = Db::open_read_only(NEW, &options(&fs)).expect("opens");
            assert_eq!(made.blob_files as usize, db.live_blob_files().len());
            assert_eq!(made.tables as usize, db.live_files().len());
        }
        let db = open(&fs);
        assert!(content(&db) == want, "seed {seed}");
        assert_eq!(db.latest_sequence_number(), last_seqno);
        db.verify_checksums().expect("is whole");
        db.verify_file_checksums().expect("is whole");
        let values: u64 = report.families.iter().map(|f| f.values).sum();
        assert!(values >= places.len() as u64);
        assert_eq!(made.blob_files > 0, how.min_blob_size.is_some());
        for family in db.column_families() {
            db.put_opt(
                &orogen_engine::WriteOptions::default(),
                &family,
                b"new",
                b"1",
            )
            .expect("writes");
            db.compact_range(&CompactRangeOptions::default(), &family, None, None)
                .expect("compacts");
        }
        let mut want = want;
        for pairs in want.values_mut() {
            pairs.insert(b"new".to_vec(), b"1".to_vec());
        }
        assert!(content(&db) == want, "seed {seed}");
        db.close().expect("closes");
        assert!(content(&open(&fs)) == want, "seed {seed}");
    }
}

/// Its sums are estimates, and no reason to end.
#[test]
fn tables_that_note_more_bytes_than_can_be_migrate_all_the_same() {
    let Sample { fs, want, .. } = sample_noting(4, 600, Some(u64::MAX - 1));
    let how = TitanOptions {
        min_blob_size: None,
        ..titan()
    };
    let dry = examine_titan(DIR, &options(&fs), &how, &go).expect("is Titan's");
    let referenced = dry.families.iter().map(|f| f.referenced_bytes).max();
    assert_eq!(referenced, Some(u64::MAX));
    migrate(&fs, &how);
    assert!(content(&open(&fs)) == want);
}

#[test]
fn stretches_of_threads_come_together() {
    let Sample { fs, want, .. } = sample(77, 4000);
    let how = TitanOptions {
        threads: 3,
        ..titan()
    };
    let mut many = options(&fs);
    // A table's worth is what a stretch is worth.
    many.cf.target_file_size_base = 1000;
    let report = migrate_titan(DIR, NEW, &many, &how, &go).expect("migrates");
    assert!(report.made.expect("made").tables > 10);
    assert!(content(&open(&fs)) == want);
}

/// Expects that nothing was made, and that a run without the trouble makes all.
fn nothing_then_all(fs: &MemFileSystem, want: &Content) {
    assert!(!exists(fs, NEW) && !exists(fs, "/new.tmp"));
    migrate(fs, &titan());
    assert!(content(&open(fs)) == *want);
}

#[test]
fn a_damaged_record_stops_it_or_costs_its_key() {
    for seed in 20..28 {
        let Sample {
            fs, want, places, ..
        } = sample(seed, 900);
        let fork = fs.fork();
        let mut hit = BTreeSet::new();
        for place in places.iter().step_by(9) {
            let path = filename::blob_path(&titan_dir(), place.file);
            let mut bytes = read_file(&fs, &path).expect("is there");
            bytes[(place.offset + 4 + place.size / 2) as usize] ^= 0x10;
            write_file(&fs, &path, &bytes).expect("memory");
            hit.insert((place.family.to_owned(), place.key.clone()));
        }
        let e = migrate_titan(DIR, NEW, &options(&fs), &titan(), &go).expect_err("is damaged");
        assert_eq!(e.kind(), ErrorKind::Corruption);
        for name in ["file", "offset", "key", "column_family"] {
            assert!(e.context(name).is_some(), "{name}: {e}");
        }
        nothing_then_all(&fork, &want);
        let how = TitanOptions {
            skip_damaged: true,
            threads: 2,
            ..titan()
        };
        let report = migrate(&fs, &how);
        let lost: BTreeSet<_> = report
            .values_lost
            .iter()
            .map(|v| (v.column_family.clone(), v.key.clone()))
            .collect();
        assert_eq!(report.values_lost_count as usize, lost.len());
        assert!(lost == hit, "seed {seed}");
        // No older version of a lost key shows instead.
        let mut want = want;
        for (family, key) in &lost {
            want.get_mut(family).expect("is there").remove(key);
        }
        assert!(content(&open(&fs)) == want, "seed {seed}");
    }
}

#[test]
fn a_live_file_that_cannot_be_used_is_told_before_anything_is_made() {
    let trouble: [fn(&MemFileSystem, &Path); 4] = [
        |fs, path| fs.remove_file(path).expect("is there"),
        |fs, path| {
            let mut bytes = read_file(fs, path).expect("is there");
            bytes[1] ^= 1;
            write_file(fs, path, &bytes).expect("memory");
        },
        |fs, path| {
            let mut bytes = read_file(fs, path).expect("is there");
            let at = bytes.len() - 20;
            bytes[at] ^= 1;
            write_file(fs, path, &bytes).expect("memory");
        },
        |fs, path| {
            let mut bytes = read_file(fs, path).expect("is there");
            bytes.push(0);
            write_file(fs, path, &bytes).expect("memory");
        },
    ];
    let mut with_operands = 0;
    for (n, spoil) in trouble.into_iter().enumerate() {
        let Sample {
            fs, want, places, ..
        } = sample(40 + n as u64, 800);
        let number = places[places.len() / 2].file;
        let path = filename::blob_path(&titan_dir(), number);
        spoil(&fs, &path);
        let dry = examine_titan(DIR, &options(&fs), &titan(), &go).expect("is Titan's");
        assert_eq!(dry.files_damaged.len(), 1, "{n}");
        assert_eq!(dry.files_damaged[0].number, number);
        let migrating = AtomicU64::new(0);
        let watch = |phase, _, _| {
            migrating.fetch_add(u64::from(phase == Phase::Migrate), Ordering::Relaxed);
            true
        };
        let e = migrate_titan(DIR, NEW, &options(&fs), &titan(), &watch).expect_err("is damaged");
        assert_eq!(e.kind(), ErrorKind::Corruption, "{n}: {e}");
        assert!(e.context("file").is_some() && migrating.into_inner() == 0);
        assert!(!exists(&fs, NEW) && !exists(&fs, "/new.tmp"));
        let how = TitanOptions {
            skip_damaged: true,
            ..titan()
        };
        let report = migrate(&fs, &how);
        let mut want = want;
        let mut lost = 0;
        for place in places.iter().filter(|p| p.file == number) {
            want.get_mut(place.family)
                .expect("is there")
                .remove(&place.key);
            lost += 1;
        }
        // Operands over a lost value are left out with it.
        let of_operands = report.values_lost_count - lost;
        for value in &report.values_lost {
            assert_eq!(value.blob_file, Some(number));
            let of_family = want.get_mut(&value.column_family).expect("is there");
            let had = of_family.remove(&value.key).is_some();
            with_operands += u64::from(had);
            assert!(!had || of_operands > 0);
        }
        let found = content(&open(&fs));
        assert!(found == want, "{n}");
    }
    assert!(with_operands > 0);
}

#[test]
fn every_failing_operation_leaves_nothing_and_the_next_run_succeeds() {
    let Sample { fs, want, .. } = sample(50, 250);
    let mut failed = 0;
    for n in (1..).step_by(3) {
        let image = fs.fork();
        let faulty = FaultFileSystem::over_memory(image.clone());
        faulty.faults().add(Fault::no_space().nth(n));
        let mut options = options(&image);
        options.db.fs = Arc::new(faulty.clone());
        let result = migrate_titan(DIR, NEW, &options, &titan(), &go);
        if faulty.faults().injected() == 0 {
            result.expect("nothing failed");
            break;
        }
        match result {
            Ok(_) => {}
            Err(e) => {
                failed += 1;
                // The last calls come after the directory has its name.
                if !exists(&image, NEW) {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{n}: {e}");
                    migrate(&image, &titan());
                }
            }
        }
        assert!(content(&open(&image)) == want, "{n}");
    }
    assert!(failed > 50, "{failed}");
}

#[test]
fn a_power_cut_at_any_point_leaves_nothing_or_all() {
    let Sample { fs, want, .. } = sample(51, 200);
    let calls = {
        let image = fs.fork();
        let before = image.op_count();
        migrate(&image, &titan());
        image.op_count() - before
    };
    let (mut nothing, mut all) = (0, 0);
    for n in (1..calls).step_by(4).chain(calls - 12..=calls) {
        let image = fs.fork();
        image.crash_after(n);
        let result = migrate_titan(DIR, NEW, &options(&image), &titan(), &go);
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: n },
        ] {
            let after = image.crash(cut);
            if exists(&after, NEW) {
                all += 1;
            } else {
                assert!(result.is_err() || !matches!(cut, PowerCut::KeepAll));
                nothing += 1;
                migrate(&after, &titan());
            }
            assert!(content(&open(&after)) == want, "{n} {cut:?}");
        }
    }
    assert!(nothing > 20 && all > 0, "{nothing} {all}");
}

#[test]
fn giving_up_leaves_nothing() {
    let Sample { fs, want, .. } = sample(52, 600);
    for phase in [Phase::Examine, Phase::Migrate] {
        let watch = |now, _, _| now != phase;
        let e = migrate_titan(DIR, NEW, &options(&fs), &titan(), &watch).expect_err("gives up");
        assert_eq!(e.kind(), ErrorKind::Aborted);
        assert!(!exists(&fs, NEW) && !exists(&fs, "/new.tmp"));
    }
    nothing_then_all(&fs, &want);
}

#[test]
fn a_directory_in_the_way_is_left_alone() {
    let Sample { fs, want, .. } = sample(53, 300);
    let run = || migrate_titan(DIR, NEW, &options(&fs), &titan(), &go);
    fs.create_dir_all(Path::new("/new.tmp")).expect("memory");
    write_file(&fs, Path::new("/new.tmp/theirs"), b"1").expect("memory");
    let e = run().expect_err("is in the way");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(exists(&fs, "/new.tmp/theirs"));
    // As an earlier run leaves it.
    write_file(&fs, Path::new("/new.tmp/UNFINISHED"), b"").expect("memory");
    run().expect("migrates");
    assert!(content(&open(&fs)) == want);
    let e = run().expect_err("is there");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

/// Adds operations on the default family to the newest log.
fn log(fs: &MemFileSystem, seqno: u64, batch: &WriteBatch) {
    let mut bytes = batch.as_bytes().to_vec();
    bytes[..8].copy_from_slice(&seqno.to_le_bytes());
    let path = filename::wal_path(Path::new(DIR), 91);
    let size = fs.metadata(&path).expect("is there").size;
    let file = fs.open_append(&path).expect("is there");
    let mut log = Writer::resume(file, 91, false, size);
    log.add_record(&bytes).expect("memory");
}

fn log_merge(fs: &MemFileSystem, seqno: u64, key: &[u8], operand: &[u8]) {
    let mut batch = WriteBatch::new();
    batch.merge(0, key, operand);
    log(fs, seqno, &batch);
}

#[test]
fn operands_that_only_titan_can_apply_are_refused() {
    let Sample {
        fs,
        last_seqno,
        places,
        ..
    } = sample(3, 400);
    let place = places
        .iter()
        .find(|p| p.family == "default")
        .expect("some value is large");
    // As garbage collection wrote it: where the value is, and where it was.
    let mut operand = pointer(place.file, place.offset, place.size);
    varint(&mut operand, 1);
    varint(&mut operand, 300);
    log_merge(&fs, last_seqno + 1, &place.key, &operand);
    let before = files(&fs);
    for skip_damaged in [false, true] {
        let how = TitanOptions {
            skip_damaged,
            ..titan()
        };
        let e = migrate_titan(DIR, NEW, &options(&fs), &how, &go).expect_err("is refused");
        assert_eq!(e.kind(), ErrorKind::NotSupported, "{e}");
        let text = e.to_string();
        let key = format!("key={}", place.key.escape_ascii());
        assert!(text.contains(&key), "{text}");
        assert!(
            text.contains(&format!("blob_file={}", place.file)),
            "{text}"
        );
        assert!(!exists(&fs, NEW));
    }
    assert!(files(&fs) == before);
    // A newer value hides it, and so it does not matter.
    let mut batch = WriteBatch::new();
    batch.put(0, &place.key, b"newer");
    log(&fs, last_seqno + 2, &batch);
    migrate(&fs, &titan());
    let db = open(&fs);
    assert_eq!(
        db.get(&place.key).expect("is whole").as_deref(),
        Some(&b"newer"[..])
    );
}

#[test]
fn operands_that_look_like_part_of_a_pointer_are_a_users() {
    for operand in [&b"\x01"[..], b"\x01abc", b"\x01abcdef", b"\x02abcde"] {
        let Sample {
            fs,
            last_seqno,
            mut want,
            ..
        } = sample(5, 300);
        log_merge(&fs, last_seqno + 1, b"mine", operand);
        let default = want.get_mut("default").expect("is there");
        default.insert(b"mine".to_vec(), operand.to_vec());
        migrate(&fs, &titan());
        assert!(content(&open(&fs)) == want);
    }
}

#[test]
fn what_is_no_directory_of_titan_or_is_in_use_is_refused() {
    let Sample { fs, .. } = sample(54, 200);
    let run = |titan: &TitanOptions| {
        let e = migrate_titan(DIR, NEW, &options(&fs), titan, &go).expect_err("is refused");
        e.kind()
    };
    let elsewhere = TitanOptions {
        titan_dir: Some(PathBuf::from("/elsewhere")),
        ..titan()
    };
    assert_eq!(run(&elsewhere), ErrorKind::InvalidArgument);
    let lock = fs
        .lock(&filename::lock_path(Path::new(DIR)))
        .expect("locks");
    assert_eq!(run(&titan()), ErrorKind::Busy);
    drop(lock);
    // Logs that lack a record in their middle.
    let path = filename::wal_path(Path::new(DIR), 90);
    let mut bytes = read_file(&fs, &path).expect("is there");
    let half = bytes.len() / 2;
    bytes[half] ^= 1;
    write_file(&fs, &path, &bytes).expect("memory");
    assert_eq!(run(&titan()), ErrorKind::Corruption);
    bytes[half] ^= 1;
    // A log that is cut off, and the next goes on behind what is missing.
    write_file(&fs, &path, &bytes[..bytes.len() - 3]).expect("memory");
    assert_eq!(run(&titan()), ErrorKind::Corruption);
    assert!(!exists(&fs, NEW) && !exists(&fs, "/new.tmp"));
    // The last one may be: that is what a crash leaves.
    write_file(&fs, &path, &bytes).expect("memory");
    let path = filename::wal_path(Path::new(DIR), 91);
    let bytes = read_file(&fs, &path).expect("is there");
    write_file(&fs, &path, &bytes[..bytes.len() - 3]).expect("memory");
    let report = migrate(&fs, &titan());
    assert_eq!(report.logs_torn, [91]);
}

#[test]
fn a_log_that_lacks_its_end_before_a_former_record_is_told() {
    let Sample { fs, want, .. } = sample(54, 600);
    let path = filename::wal_path(Path::new(DIR), 90);
    let mut records = Vec::new();
    let opened = fs.open(&path, Access::Random).expect("is there");
    let mut reader = Reader::new(opened, 90).expect("memory");
    let mut record = Vec::new();
    while let ReadOutcome::Record { .. } = reader.read_record(&mut record).expect("is whole") {
        records.push(record.clone());
    }
    assert!(records.len() > 1);
    // As RocksDB uses files of logs again: the file is as long as it was, and holds what nothing was written over.
    let write = |records: &[Vec<u8>]| {
        let mut log = Writer::new(fs.create(&path).expect("memory"), 90, true);
        for record in records {
            log.add_record(record).expect("memory");
        }
        drop(log);
        let size = fs.metadata(&path).expect("is there").size;
        let file = fs.open_append(&path).expect("is there");
        let mut former = Writer::resume(file, 11, true, size);
        former.add_record(b"former").expect("memory");
    };
    for lacking in [1, records.len() - 1, records.len()] {
        write(&records[..records.len() - lacking]);
        let e = migrate_titan(DIR, NEW, &options(&fs), &titan(), &go).expect_err("lacks writes");
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        assert!(e.context("seqno").is_some(), "{e}");
        assert!(!exists(&fs, NEW) && !exists(&fs, "/new.tmp"));
    }
    write(&records);
    let whole = fs.fork();
    let report = migrate(&whole, &titan());
    assert!(report.logs_torn.is_empty());
    assert!(content(&open(&whole)) == want);
    // All of one may be in tables: then the next goes on with what comes behind those.
    write(&[]);
    let [next, last] = [91, 92].map(|log| filename::wal_path(Path::new(DIR), log));
    let bytes = read_file(&fs, &next).expect("is there");
    write_file(&fs, &last, &bytes).expect("memory");
    let mut log = Writer::new(fs.create(&next).expect("memory"), 91, false);
    for record in &records {
        log.add_record(record).expect("memory");
    }
    drop(log);
    migrate(&fs, &titan());
    assert!(content(&open(&fs)) == want);
}

#[test]
fn logs_may_be_elsewhere_and_tables_may_not_note_their_pointers() {
    let Sample { fs, want, .. } = sample(55, 700);
    fs.create_dir_all(Path::new("/wal")).expect("memory");
    for log in [90, 91] {
        let from = filename::wal_path(Path::new(DIR), log);
        let to = filename::wal_path(Path::new("/wal"), log);
        fs.rename(&from, &to).expect("renames");
    }
    fs.remove_file(&filename::wal_path(Path::new(DIR), 80))
        .expect("is there");
    let text = "[Version]\n  rocksdb_version=8.10.2\n  options_file_version=1.1\n[DBOptions]\n  \
                wal_dir=/wal\n[CFOptions \"default\"]\n";
    let path = filename::options_path(Path::new(DIR), 7);
    write_file(&fs, &path, text.as_bytes()).expect("memory");
    let e = migrate_titan(DIR, NEW, &options(&fs), &titan(), &go).expect_err("lacks its logs");
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert_eq!(e.context("wal_dir"), Some("/wal"));
    let how = TitanOptions {
        wal_dir: Some(PathBuf::from("/wal")),
        ..titan()
    };
    migrate(&fs, &how);
    assert!(content(&open(&fs)) == want);
}
