//! What an open looks at before it serves: files that are missing or cut off, as `paranoid_checks` says.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::{Error, ErrorKind};
use orogen_engine::filename::{old_table_path, table_path, wal_path};
use orogen_engine::options::BottommostLevelCompaction;
use orogen_engine::version::edit::VersionEdit;
use orogen_engine::version::wal_set::WalAddition;
use orogen_engine::{CompactRangeOptions, Db, Options};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};

use crate::blobs::separated;
use crate::hole_hazards::add_edit;
use crate::steer::HookFileSystem;
use crate::support::{DIR, scan, small};

/// Three tables with a key each, closed; and their paths.
fn filled(fs: &MemFileSystem, options: &Options) -> Vec<PathBuf> {
    let db = Db::open(DIR, options).expect("a new one");
    for key in ["a", "b", "c"] {
        db.put(key.as_bytes(), &[b'v'; 500]).expect("memory");
        db.flush().expect("memory");
    }
    let files = db.live_files();
    db.close().expect("closes");
    assert_eq!(files.len(), 3);
    let path = |number| table_path(Path::new(DIR), number);
    let mut paths: Vec<_> = files.iter().map(|f| path(f.number)).collect();
    paths.sort_unstable();
    fs.sync_all();
    paths
}

fn refused(result: orogen_base::Result<Db>) -> Error {
    let error = result.err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    error
}

fn says(error: &Error, context: &str) -> String {
    error.context(context).unwrap_or_default().to_owned()
}

fn cut(fs: &MemFileSystem, path: &Path) {
    let size = fs.metadata(path).expect("it is there").size;
    fs.truncate(path, size - 1).expect("memory");
}

#[test]
fn what_a_writer_removed_beside_a_reader_is_no_damage() {
    let fs = MemFileSystem::new();
    let options = separated(&fs);
    let large = vec![b'v'; 4000];
    let db = Db::open(DIR, &options).expect("a new one");
    for key in ["a", "b"] {
        db.put(key.as_bytes(), &large).expect("memory");
        db.put(format!("{key}1").as_bytes(), b"short")
            .expect("memory");
        db.flush().expect("memory");
    }
    let reader = Db::open_read_only(DIR, &options).expect("opens");
    let blobs = Db::open_read_only(DIR, &options).expect("opens");
    assert!(blobs.get(b"a1").expect("is there").is_some());
    for key in ["a", "b"] {
        db.delete(key.as_bytes()).expect("memory");
        db.delete(format!("{key}1").as_bytes()).expect("memory");
    }
    let family = db.default_column_family();
    db.compact_range(&CompactRangeOptions::default(), &family, None, None)
        .expect("memory");
    db.wait_for_background_work().expect("works");
    assert!(db.live_files().is_empty());
    for (reader, key) in [(&reader, &b"a1"[..]), (&blobs, b"a")] {
        let error = reader.get(key).expect_err("its file is gone");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(says(&error, "help").contains("secondary"), "{error}");
        assert!(error.context("file").is_some(), "{error}");
        assert!(reader.damaged_tables().is_empty());
        assert!(reader.damaged_blob_files().is_empty());
    }
    // What nobody gave up is lost.
    db.put(b"c", &large).expect("memory");
    db.flush().expect("memory");
    let reader = Db::open_read_only(DIR, &options).expect("opens");
    let number = db.live_files()[0].number;
    fs.remove_file(&table_path(Path::new(DIR), number))
        .expect("is there");
    let error = reader.get(b"c").expect_err("it is gone");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
}

/// Every file but the LOG.
fn files(fs: &MemFileSystem) -> Vec<(String, Vec<u8>)> {
    let mut names = fs.list(Path::new(DIR)).expect("is there");
    names.retain(|name| !name.starts_with("LOG"));
    names.sort();
    let read = |name: String| {
        let bytes = read_file(fs, &Path::new(DIR).join(&name)).expect("is a file");
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

#[test]
fn damage_within_a_log_is_refused_before_anything_is_written_if_asked_for() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 1 << 20;
    let db = Db::open(DIR, &options).expect("a new one");
    for n in 0..200 {
        db.put(format!("key{n:03}").as_bytes(), &[b'v'; 100])
            .expect("memory");
    }
    db.sync_wal().expect("memory");
    let image = fs.crash(PowerCut::KeepAll);
    drop(db);
    let log = |fs: &MemFileSystem| {
        let mut names = fs.list(Path::new(DIR)).expect("is there");
        names.retain(|name| name.ends_with(".log"));
        assert_eq!(names.len(), 1);
        Path::new(DIR).join(&names[0])
    };
    let keys = |db: &Db| scan(db, &db.default_column_family()).len();
    options.db.refuse_log_damage = true;
    let path = log(&image);
    let mut bytes = read_file(&image, &path).expect("is there");
    let end = bytes.iter().rposition(|&b| b != 0).expect("has records");
    // As a crash leaves it.
    let torn = image.fork();
    torn.truncate(&path, end as u64 - 10).expect("memory");
    options.db.fs = Arc::new(torn);
    assert_eq!(keys(&Db::open(DIR, &options).expect("opens")), 199);
    // In the middle; memtables that became tables on the way are gone again.
    bytes[end * 3 / 4] ^= 1;
    write_file(&image, &path, &bytes).expect("memory");
    let before = files(&image);
    for write_buffer_size in [4 << 10, 1 << 20] {
        options.db.fs = Arc::new(image.clone());
        options.cf.write_buffer_size = write_buffer_size;
        options.db.refuse_log_damage = true;
        let errors = [Db::open(DIR, &options), Db::open_read_only(DIR, &options)].map(refused);
        for error in errors {
            assert_eq!(says(&error, "file"), path.display().to_string(), "{error}");
            assert!(says(&error, "help").contains("repair"), "{error}");
            assert!(error.context("bytes_left_out").is_some(), "{error}");
        }
        assert!(files(&image) == before);
        options.db.refuse_log_damage = false;
        let db = Db::open_read_only(DIR, &options).expect("opens");
        assert!((100..199).contains(&keys(&db)), "{}", keys(&db));
    }
}

#[test]
fn a_missing_table_refuses_the_open() {
    for is_cut in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        let paths = filled(&fs, &options);
        for path in &paths[1..] {
            match is_cut {
                true => cut(&fs, path),
                false => fs.remove_file(path).expect("it is there"),
            }
        }
        let before = fs.list(Path::new(DIR)).expect("memory");
        for error in [
            refused(Db::open(DIR, &options)),
            refused(Db::open_read_only(DIR, &options)),
        ] {
            assert_eq!(says(&error, "file"), paths[2].display().to_string());
            assert_eq!(says(&error, "files_wrong"), "2");
            assert!(says(&error, "help").contains("paranoid_checks"), "{error}");
        }
        assert_eq!(fs.list(Path::new(DIR)).expect("memory"), before);
        options.db.paranoid_checks = false;
        let db = Db::open(DIR, &options).expect("what is left");
        // Told of before the first read.
        let damaged = db.damaged_tables();
        assert_eq!(damaged.len(), 2);
        assert!(db.get(b"a").expect("its table is whole").is_some());
        assert_eq!(
            db.get(b"b").expect_err("it is gone").kind(),
            ErrorKind::Corruption
        );
    }
}

#[test]
fn tables_by_their_older_name_are_there() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let paths = filled(&fs, &options);
    let number = paths[0].file_stem().and_then(|s| s.to_str()?.parse().ok());
    let old = old_table_path(Path::new(DIR), number.expect("a number"));
    fs.rename(&paths[0], &old).expect("memory");
    let db = Db::open(DIR, &options).expect("all is there");
    assert!(db.get(b"a").expect("reads").is_some());
}

#[test]
fn a_missing_blob_file_is_told_of_at_the_open() {
    for is_cut in [false, true] {
        let fs = MemFileSystem::new();
        let options = separated(&fs);
        filled(&fs, &options);
        let blob = |name: &&String| Path::new(name).extension().is_some_and(|e| e == "blob");
        let names = fs.list(Path::new(DIR)).expect("memory");
        let lost = Path::new(DIR).join(names.iter().find(blob).expect("values are apart"));
        match is_cut {
            true => cut(&fs, &lost),
            false => fs.remove_file(&lost).expect("it is there"),
        }
        let db = Db::open(DIR, &options).expect("the other values are served");
        let damaged = db.damaged_blob_files();
        assert_eq!(damaged.len(), 1);
        assert_eq!(
            says(&damaged[0].error, "file"),
            lost.display().to_string(),
            "{}",
            damaged[0].error
        );
    }
}

/// The log of a closed database that has its last writes, and its size.
fn log_of(fs: &MemFileSystem, options: &Options) -> (u64, u64) {
    let db = Db::open(DIR, options).expect("a new one");
    db.put(b"key", b"value").expect("memory");
    drop(db);
    let names = fs.list(Path::new(DIR)).expect("memory");
    let number = |name: &String| name.strip_suffix(".log")?.parse().ok();
    let log: u64 = names.iter().find_map(number).expect("a log");
    let path = wal_path(Path::new(DIR), log);
    (log, read_file(fs, &path).expect("reads").len() as u64)
}

/// As RocksDB's `track_and_verify_wals_in_manifest` leaves it.
pub(crate) fn track(fs: &MemFileSystem, log: u64, synced_size: u64) {
    let edit = VersionEdit {
        wal_additions: vec![WalAddition {
            number: log,
            synced_size: Some(synced_size),
        }],
        ..VersionEdit::default()
    };
    add_edit(fs, &edit);
}

#[test]
fn a_synced_log_that_is_missing_or_shorter_refuses_the_open() {
    for (is_gone, more) in [(true, 0), (false, 1), (false, 0)] {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.db.avoid_flush_during_shutdown = true;
        let (log, size) = log_of(&fs, &options);
        track(&fs, log, size + more);
        if is_gone {
            fs.remove_file(&wal_path(Path::new(DIR), log))
                .expect("is there");
        }
        if !is_gone && more == 0 {
            // Recorded as synced, and there.
            let db = Db::open(DIR, &options).expect("all is there");
            assert!(db.get(b"key").expect("reads").is_some());
            continue;
        }
        let before = fs.list(Path::new(DIR)).expect("memory");
        for error in [
            refused(Db::open(DIR, &options)),
            refused(Db::open_read_only(DIR, &options)),
        ] {
            assert!(says(&error, "file").ends_with(&format!("{log:06}.log")));
            assert!(says(&error, "help").contains("paranoid_checks"), "{error}");
        }
        assert_eq!(fs.list(Path::new(DIR)).expect("memory"), before);
        options.db.paranoid_checks = false;
        let db = Db::open(DIR, &options).expect("what is left");
        assert_eq!(db.get(b"key").expect("reads").is_some(), !is_gone);
    }
}

#[test]
fn a_log_that_cannot_be_asked_about_is_not_told_to_be_lost() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.avoid_flush_during_shutdown = true;
    let (log, size) = log_of(&fs, &options);
    track(&fs, log, size);
    let faulty = FaultFileSystem::new(Arc::new(fs));
    let name = format!("{log:06}.log");
    let fault = Fault::io().on(&[OpKind::Metadata]).path_with(name.as_str());
    faulty.faults().add(fault.forever());
    options.db.fs = Arc::new(faulty);
    let error = Db::open(DIR, &options).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert!(error.to_string().contains(&name), "{error}");
    assert_eq!(error.context("help"), None, "{error}");
}

#[test]
fn a_tracked_log_that_no_family_needs_may_be_gone() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    filled(&fs, &options);
    // Of before the last flushes.
    track(&fs, 1, 100);
    Db::open(DIR, &options).expect("nothing is missing");
}

#[test]
fn logs_in_another_directory_are_told_of_as_such() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.avoid_flush_during_shutdown = true;
    let (log, size) = log_of(&fs, &options);
    track(&fs, log, size);
    let here = wal_path(Path::new(DIR), log);
    fs.create_dir_all(Path::new("/wal")).expect("memory");
    fs.rename(&here, &wal_path(Path::new("/wal"), log))
        .expect("memory");
    let names = fs.list(Path::new(DIR)).expect("memory");
    let newest = names.iter().filter(|n| n.starts_with("OPTIONS-")).max();
    let path = Path::new(DIR).join(newest.expect("one is there"));
    let text = String::from_utf8(read_file(&fs, &path).expect("reads")).expect("text");
    assert!(text.contains("[DBOptions]\n"));
    let text = text.replace("[DBOptions]\n", "[DBOptions]\n  wal_dir=/wal\n");
    write_file(&fs, &path, text.as_bytes()).expect("memory");
    let error = Db::open(DIR, &options).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
}

#[test]
fn what_a_writer_gives_up_meanwhile_is_no_damage() {
    for is_paranoid in [false, true] {
        let fs = MemFileSystem::new();
        let mut options = separated(&fs);
        options.cf.enable_blob_garbage_collection = true;
        options.cf.blob_garbage_collection_age_cutoff = 1.0;
        options.cf.disable_auto_compactions = true;
        filled(&fs, &options);
        let writer = Db::open(DIR, &options).expect("all is there");
        let (once, behind) = (AtomicBool::new(true), writer.clone());
        let sizes: Vec<u64> = writer.live_files().iter().map(|f| f.size).collect();
        let hooked = HookFileSystem::new(&fs, |_, _| {}).showing(move |shown| {
            // The first table that is looked for.
            if sizes.contains(&shown.size) && once.swap(false, Ordering::SeqCst) {
                let family = behind.default_column_family();
                let force = CompactRangeOptions {
                    bottommost_level_compaction: BottommostLevelCompaction::Force,
                    ..CompactRangeOptions::default()
                };
                let compacted = behind.compact_range(&force, &family, None, None);
                compacted.expect("memory");
            }
            shown
        });
        options.db.fs = Arc::new(hooked);
        options.db.paranoid_checks = is_paranoid;
        let db = Db::open_read_only(DIR, &options).expect("all is there");
        assert!(db.damaged_tables().is_empty() && db.damaged_blob_files().is_empty());
        let numbers = |db: &Db| -> Vec<_> { db.live_files().iter().map(|f| f.number).collect() };
        assert_eq!(numbers(&db), numbers(&writer));
    }
}
