//! Logs written through shared memory, on the machine's file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_engine::options::WalRecoveryMode;
use orogen_engine::{Db, FlushOptions, Options, WriteOptions};
use orogen_env::fault::Errno;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PosixFileSystem};

use crate::support::{DIR, scan, small};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("orogen-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options() -> Options {
    let mut options = small(&MemFileSystem::new());
    options.db.fs = Arc::new(PosixFileSystem::new());
    options.db.allow_mmap_writes = true;
    options
}

/// What another process would find if this one died now.
fn killed(dir: &Path) -> MemFileSystem {
    let (from, to) = (PosixFileSystem::new(), MemFileSystem::new());
    to.create_dir_all(Path::new(DIR)).expect("it is new");
    for name in from.list(dir).expect("the database is there") {
        let path = dir.join(&name);
        let len = || std::fs::metadata(&path).map(|file| file.len()).ok();
        let before = len();
        match read_file(&from, &path) {
            Ok(bytes) => {
                write_file(&to, &Path::new(DIR).join(&name), &bytes).expect("there is room");
            }
            // A log that nobody needs any more went after the list was made, or was cut to what
            // is in it: from the start.
            Err(_) if len().is_none() || len() != before => return killed(dir),
            Err(e) => panic!("{name}: {e}"),
        }
    }
    to
}

fn put(db: &Db, range: std::ops::Range<u32>, sync: bool) {
    let options = WriteOptions {
        sync,
        ..WriteOptions::default()
    };
    for n in range {
        let (key, value) = (n.to_be_bytes(), vec![n as u8; n as usize % 300]);
        db.put_opt(&options, &db.default_column_family(), &key, &value)
            .expect("the disk is well");
    }
}

#[test]
fn every_write_that_returned_is_there_after_the_death_of_the_process() {
    let lenient = [
        WalRecoveryMode::PointInTimeRecovery,
        WalRecoveryMode::SkipAnyCorruptedRecords,
    ];
    let strict = [
        WalRecoveryMode::AbsoluteConsistency,
        WalRecoveryMode::TolerateCorruptedTailRecords,
    ];
    for mode in strict {
        // They take what is behind the end of a log that was written over for damage; so there is none.
        killed_and_recovered(mode, &[&strict[..], &lenient].concat());
    }
    killed_and_recovered(lenient[0], &lenient);
}

fn killed_and_recovered(own: WalRecoveryMode, modes: &[WalRecoveryMode]) {
    let dir = Scratch::new("mapped-killed");
    let mut options = options();
    options.db.wal_recovery_mode = own;
    options.db.recycle_log_file_num = 2;
    let db = Db::open(&dir.0, &options).expect("opens");
    let family = db.default_column_family();
    for round in 0..6 {
        // More than a window of the log, over several logs.
        put(&db, round * 1000..(round + 1) * 1000, round % 5 == 4);
        if round % 3 == 2 {
            db.flush_opt(&FlushOptions { wait: false }, std::slice::from_ref(&family))
                .expect("the disk is well");
        }
        // Nothing may change while it is copied.
        db.wait_for_background_work().expect("the disk is well");
        for &mode in modes {
            let mut after = small(&killed(&dir.0));
            after.db.wal_recovery_mode = mode;
            let again = Db::open(DIR, &after).expect("the disk is well");
            let found = scan(&again, &again.default_column_family());
            assert_eq!(found.len() as u32, (round + 1) * 1000, "{mode:?}");
            assert!(found == scan(&db, &family), "{mode:?}");
        }
    }
    let held = scan(&db, &family);
    db.close().expect("the disk is well");
    drop(db);
    let db = Db::open(&dir.0, &options).expect("the disk is well");
    assert!(scan(&db, &db.default_column_family()) == held);
}

#[test]
fn a_record_that_was_half_copied_is_a_torn_tail() {
    let dir = Scratch::new("mapped-torn");
    let db = Db::open(&dir.0, &options()).unwrap();
    put(&db, 0..100, false);
    let before = scan(&db, &db.default_column_family());
    let whole = killed(&dir.0);
    put(&db, 299..300, false);
    let with_last = killed(&dir.0);
    let logs = |fs: &MemFileSystem| {
        let mut names = fs.list(Path::new(DIR)).unwrap();
        names.retain(|n| n.ends_with(".log"));
        let path = Path::new(DIR).join(&names[0]);
        (path.clone(), read_file(fs, &path).unwrap())
    };
    let ((path, old), (_, new)) = (logs(&whole), logs(&with_last));
    let first = old.iter().zip(&new).position(|(a, b)| a != b).unwrap();
    let last = old.iter().zip(&new).rposition(|(a, b)| a != b).unwrap();
    // Copied from front to back, or in any other order that the processor likes.
    for cut in (first + 1..last).step_by(7) {
        for from_the_back in [false, true] {
            let mut torn = new.clone();
            let missing = if from_the_back {
                first..cut
            } else {
                cut..last + 1
            };
            torn[missing.clone()].copy_from_slice(&old[missing]);
            let fs = whole.fork();
            write_file(&fs, &path, &torn).unwrap();
            for mode in [
                WalRecoveryMode::PointInTimeRecovery,
                WalRecoveryMode::SkipAnyCorruptedRecords,
                WalRecoveryMode::TolerateCorruptedTailRecords,
            ] {
                let mut options = small(&fs.fork());
                options.db.wal_recovery_mode = mode;
                let db = Db::open(DIR, &options).unwrap();
                assert!(scan(&db, &db.default_column_family()) == before, "{cut}");
            }
        }
    }
}

#[test]
fn a_log_is_written_on_where_the_next_one_could_not_be_begun() {
    for kind in [OpKind::Truncate, OpKind::Reuse, OpKind::SyncDir] {
        let scratch = Scratch::new("not-begun");
        let fs = FaultFileSystem::new(Arc::new(PosixFileSystem::new()));
        let mut options = options();
        options.db.fs = Arc::new(fs.clone());
        options.db.recycle_log_file_num = 2;
        let db = Db::open(&scratch.0, &options).unwrap();
        // The newest is written over.
        for n in 0..6 {
            put(&db, n * 10..n * 10 + 10, false);
            db.flush().unwrap();
        }
        put(&db, 60..61, false);
        let fault = Fault::new(Errno::MFILE).on(&[kind]);
        fs.faults().add(match kind {
            OpKind::SyncDir => fault,
            _ => fault.path_with(".log"),
        });
        let flushed = db.flush();
        assert!(fs.faults().injected() > 0, "{kind:?}");
        fs.faults().clear();
        let written = db.put(b"after", b"1").is_ok();
        assert!(written || flushed.is_err(), "{kind:?}");
        let image = killed(&scratch.0);
        let again = Db::open(DIR, &small(&image)).unwrap();
        assert_eq!(again.get(b"after").unwrap().is_some(), written, "{kind:?}");
        assert!(
            again.get(&60_u32.to_be_bytes()).unwrap().is_some(),
            "{kind:?}"
        );
    }
}
