//! What an open looks at before it serves: files that are missing or cut off, as `paranoid_checks` says.

use std::path::{Path, PathBuf};

use orogen_base::{Error, ErrorKind};
use orogen_engine::filename::{old_table_path, table_path, wal_path};
use orogen_engine::version::edit::VersionEdit;
use orogen_engine::version::wal_set::WalAddition;
use orogen_engine::{Db, Options};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};

use crate::blobs::separated;
use crate::hole_hazards::add_edit;
use crate::support::{DIR, small};

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
fn track(fs: &MemFileSystem, log: u64, synced_size: u64) {
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
fn a_tracked_log_that_no_family_needs_may_be_gone() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    filled(&fs, &options);
    // Of before the last flushes.
    track(&fs, 1, 100);
    Db::open(DIR, &options).expect("nothing is missing");
}
