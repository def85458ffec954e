//! Digests stand for files, and nothing depends on them.

use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{
    Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PosixFileSystem, PowerCut,
};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, RecoveryMode};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, options, purge, random_batch};

fn digesting() -> Options {
    Options {
        enable_log_digests: true,
        ..options()
    }
}

fn try_open(fs: &MemFileSystem, options: Options) -> orogen_base::Result<Engine> {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Engine::open(&fs, dir(), options)
}

fn open(fs: &MemFileSystem) -> Engine {
    try_open(fs, digesting()).unwrap()
}

fn names(fs: &MemFileSystem, suffix: &str) -> Vec<PathBuf> {
    let mut names = fs.list(dir()).unwrap();
    names.sort();
    let names = names.iter().filter(|name| name.ends_with(suffix));
    names.map(|name| dir().join(name)).collect()
}

fn digests(fs: &MemFileSystem) -> Vec<PathBuf> {
    names(fs, ".digest")
}

/// A closed directory of several files, and what it holds.
fn written(seed: u64) -> (MemFileSystem, Model) {
    let fs = disk();
    let engine = open(&fs);
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    for _ in 0..60 {
        let mut batch = random_batch(&mut rng, &mut model, 0);
        engine.write(&mut batch, false).unwrap();
    }
    engine.close().unwrap();
    (fs, model)
}

#[test]
fn what_is_closed_is_opened_without_reading_logs() {
    let (fs, model) = written(1);
    let logs = names(&fs, ".raftlog").len();
    assert!(logs > 4);
    assert_eq!(digests(&fs).len(), logs);
    let engine = open(&fs);
    assert_eq!(engine.files_read_at_open(), 0);
    assert_eq!(content(&engine), model);
    // What is appended to the newest file from here on would not be in its digest.
    assert_eq!(digests(&fs).len(), logs - 1);
    let killed = fs.crash(PowerCut::KeepAll);
    let engine = open(&killed);
    assert_eq!(engine.files_read_at_open(), 1);
    assert_eq!(content(&engine), model);
}

#[test]
fn digests_that_are_missing_or_damaged_are_made_anew() {
    let (fs, model) = written(2);
    let all = digests(&fs);
    let mut rng = Rng::new(3);
    for (at, path) in all.iter().enumerate() {
        let fs = fs.crash(PowerCut::KeepAll);
        match at % 3 {
            0 => fs.remove_file(path).unwrap(),
            1 => {
                let len = read_file(&fs, path).unwrap().len();
                fs.truncate(path, rng.below(len as u64)).unwrap();
            }
            _ => {
                let mut bytes = read_file(&fs, path).unwrap();
                let at = rng.range(0..bytes.len());
                bytes[at] ^= 4;
                write_file(&fs, path, &bytes).unwrap();
            }
        }
        let engine = open(&fs);
        assert_eq!(engine.files_read_at_open(), 1);
        assert_eq!(content(&engine), model);
        engine.close().unwrap();
        assert_eq!(digests(&fs), all);
        assert_eq!(open(&fs).files_read_at_open(), 0);
    }
}

#[test]
fn without_them_the_same_is_read() {
    for threads in [1, 2, 7] {
        let (fs, model) = written(4);
        let none = Options {
            enable_log_digests: false,
            recovery_threads: threads,
            ..options()
        };
        let logs = names(&fs, ".raftlog").len() as u64;
        let engine = try_open(&fs, none).unwrap();
        assert_eq!(engine.files_read_at_open(), logs);
        assert_eq!(content(&engine), model);
        let with = Options {
            recovery_threads: threads,
            ..digesting()
        };
        drop(engine);
        assert_eq!(content(&try_open(&fs, with).unwrap()), model);
    }
}

#[test]
fn damage_behind_a_digest_is_met_by_who_reads_the_entry_and_by_absolute_consistency() {
    let fs = disk();
    // Damage in the last 4 KiB of a file would be noticed.
    let large = Options {
        target_file_size: 10_000,
        purge_threshold: 10_000,
        ..digesting()
    };
    let open = || try_open(&fs, large.clone()).unwrap();
    let engine = open();
    let mut rng = Rng::new(9);
    for at in 1..90 {
        let mut batch = LogBatch::default();
        batch.add_entries(1, at, &[rng.bytes(300)]).unwrap();
        engine.write(&mut batch, false).unwrap();
    }
    engine.close().unwrap();
    let log = names(&fs, ".raftlog").remove(1);
    let mut bytes = read_file(&fs, &log).unwrap();
    bytes[200] ^= 1;
    write_file(&fs, &log, &bytes).unwrap();
    let engine = open();
    assert_eq!(engine.files_read_at_open(), 0);
    let unread = (1..90).filter(|at| match engine.get_entry(1, *at) {
        Ok(entry) => {
            assert!(entry.is_some());
            false
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corruption);
            true
        }
    });
    assert_eq!(unread.count(), 1);
    drop(engine);
    // The footer of the first record.
    bytes[200] ^= 1;
    let at = 69 + 16 + 300 + 4 + 1;
    bytes[at] ^= 1;
    write_file(&fs, &log, &bytes).unwrap();
    let absolute = Options {
        recovery_mode: RecoveryMode::AbsoluteConsistency,
        ..large.clone()
    };
    let refused = try_open(&fs, absolute).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corruption);
    // All of it is known from elsewhere.
    let engine = open();
    assert!((1..90).all(|at| engine.get_entry(1, at).unwrap().is_some()));
}

#[test]
fn a_file_that_is_cut_off_loses_its_digest() {
    let (fs, _) = written(6);
    let log = names(&fs, ".raftlog").remove(1);
    let len = read_file(&fs, &log).unwrap().len() as u64;
    fs.truncate(&log, len - 3).unwrap();
    let refused = try_open(&fs, digesting()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corruption);
    let any = Options {
        recovery_mode: RecoveryMode::TolerateAnyCorruption,
        ..digesting()
    };
    let engine = try_open(&fs, any.clone()).unwrap();
    assert_eq!(engine.files_read_at_open(), 1);
    let model = content(&engine);
    drop(engine);
    let engine = try_open(&fs, any).unwrap();
    assert_eq!(engine.files_read_at_open(), 0);
    assert_eq!(content(&engine), model);
}

#[test]
fn digests_go_with_their_files() {
    let fs = disk();
    let engine = open(&fs);
    for at in 1..200 {
        let mut batch = LogBatch::default();
        batch.add_entries(1, at, &[[7; 90]]).unwrap();
        batch.add_command(1, Command::Compact { index: at });
        engine.write(&mut batch, true).unwrap();
        engine.purge_expired_files().unwrap();
    }
    engine.close().unwrap();
    let logs = names(&fs, ".raftlog").len();
    assert!(logs < 6);
    assert_eq!(digests(&fs).len(), logs);
    let stray = dir().join("0000000000000999.raftlog.digest");
    write_file(&fs, &stray, b"whatever").unwrap();
    drop(open(&fs));
    assert!(!fs.exists(&stray).unwrap());
    assert_eq!(digests(&fs).len(), logs);
}

#[test]
fn random_histories_survive_power_cuts_whatever_is_left_of_digests() {
    let mut rng = Rng::new(Rng::seed_or(77));
    let (mut read, mut opened) = (0, 0);
    for round in 0..60 {
        let mut fs = disk();
        let mut model = Model::new();
        let mut engine = open(&fs);
        for step in 0..150 {
            let mut batch = random_batch(&mut rng, &mut model, 0);
            engine.write(&mut batch, true).unwrap();
            if rng.chance(1, 15) {
                purge(&mut rng, &engine, &mut model);
                engine.sync().unwrap();
            }
            if rng.chance(1, 15) {
                let after = fs.crash(match rng.below(3) {
                    0 => PowerCut::KeepAll,
                    1 => PowerCut::DropUnsynced,
                    _ => PowerCut::Torn { seed: rng.u64() },
                });
                drop(engine);
                fs = after;
                engine = open(&fs);
                opened += 1;
                read += engine.files_read_at_open();
                assert_eq!(content(&engine), model, "round {round} step {step}");
            }
        }
    }
    assert!(read > opened, "{read} {opened}");
}

#[test]
fn a_digest_that_cannot_be_read_is_as_good_as_none() {
    let (mem, model) = written(6);
    for kind in [OpKind::Open, OpKind::Read] {
        let fs = FaultFileSystem::over_memory(mem.crash(PowerCut::KeepAll));
        fs.faults()
            .add(Fault::io().on(&[kind]).path_with(".digest").forever());
        let arc: Arc<dyn FileSystem> = Arc::new(fs);
        let engine = Engine::open(&arc, dir(), digesting()).unwrap();
        assert_eq!(content(&engine), model, "{kind:?}");
    }
}

#[test]
fn a_damaged_header_of_the_newest_file_is_met_although_there_is_a_digest() {
    let fs = disk();
    let large = Options {
        target_file_size: 10_000,
        purge_threshold: 10_000,
        ..digesting()
    };
    let engine = try_open(&fs, large.clone()).unwrap();
    for at in 1..20 {
        let mut batch = LogBatch::default();
        batch.add_entries(1, at, &[vec![at as u8; 300]]).unwrap();
        engine.write(&mut batch, false).unwrap();
    }
    engine.close().unwrap();
    let log = names(&fs, ".raftlog").pop().unwrap();
    let mut bytes = read_file(&fs, &log).unwrap();
    bytes[3] ^= 1;
    write_file(&fs, &log, &bytes).unwrap();
    // However often it is tried.
    for _ in 0..2 {
        let e = try_open(&fs, large.clone()).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert_eq!(read_file(&fs, &log).unwrap(), bytes);
    }
}

#[test]
fn a_digest_of_a_length_that_cannot_be_is_as_good_as_none() {
    let temp = TempDir::new("raftlog-digest");
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem);
    let engine = Engine::open(&fs, temp.path(), digesting()).unwrap();
    let mut model = Model::new();
    let mut rng = Rng::new(9);
    for _ in 0..30 {
        let mut batch = random_batch(&mut rng, &mut model, 0);
        engine.write(&mut batch, false).unwrap();
    }
    engine.close().unwrap();
    let mut names = fs.list(temp.path()).unwrap();
    names.retain(|name| name.ends_with(".digest"));
    for (name, len) in names.iter().zip([1 << 46, 1 << 40, 1 << 33]) {
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).open(temp.path().join(name)).unwrap();
        // Where the file system has no such files there is none to be met.
        let _ = file.set_len(len);
    }
    let engine = Engine::open(&fs, temp.path(), digesting()).unwrap();
    assert_eq!(content(&engine), model);
}

#[test]
fn numbers_that_leave_none_for_the_next_file_are_refused() {
    let (fs, _) = written(4);
    let first = names(&fs, ".raftlog").remove(0);
    let far = dir().join("9999999999999999.raftlog");
    fs.rename(&first, &far).unwrap();
    let told = try_open(&fs, digesting()).err().unwrap();
    assert_eq!(told.kind(), ErrorKind::Corruption, "{told}");
    assert!(told.to_string().contains("9999999999999999"));
}

#[test]
fn what_is_written_behind_damage_that_a_digest_hides_is_not_lost() {
    let large = Options {
        target_file_size: 20_000,
        purge_threshold: 20_000,
        ..digesting()
    };
    let entry = |at| Rng::new(at).bytes(300);
    let write = |engine: &Engine, at| {
        let mut batch = LogBatch::default();
        batch.add_entries(1, at, &[entry(at)]).unwrap();
        engine.write(&mut batch, true).unwrap();
    };
    // In the header of the first record, and in its block.
    for damaged in [69 + 3, 69 + 16 + 5] {
        let fs = disk();
        let open = |fs: &MemFileSystem| try_open(fs, large.clone()).unwrap();
        let engine = open(&fs);
        (1..30).for_each(|at| write(&engine, at));
        engine.close().unwrap();
        let log = names(&fs, ".raftlog").pop().unwrap();
        let mut bytes = read_file(&fs, &log).unwrap();
        assert!(bytes.len() > 4096 + damaged);
        bytes[damaged] ^= 1;
        write_file(&fs, &log, &bytes).unwrap();
        fs.sync_all();
        let engine = open(&fs);
        assert_eq!(engine.files_read_at_open(), 0);
        engine.sync().unwrap();
        (30..40).for_each(|at| write(&engine, at));
        // However it ends.
        for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
            let again = open(&fs.crash(cut));
            assert_eq!(again.last_index(1), Some(39), "{damaged} {cut:?}");
            for at in 2..40 {
                let found = again.get_entry(1, at).unwrap();
                assert!(found == Some(entry(at)), "{damaged} {cut:?} {at}");
            }
        }
        drop(engine);
        assert_eq!(open(&fs).last_index(1), Some(39));
    }
}

#[test]
fn no_room_is_reserved_behind_a_file_that_is_not_written_on() {
    for (entries, expected) in [(3, 1), (30, 0)] {
        let large = Options {
            target_file_size: 20_000,
            purge_threshold: 20_000,
            ..digesting()
        };
        let fs = FaultFileSystem::over_memory(disk());
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let open = || Engine::open(&arc, dir(), large.clone()).unwrap();
        let engine = open();
        for at in 1..=entries {
            let mut batch = LogBatch::default();
            let entry = Rng::new(at).bytes(300);
            batch.add_entries(1, at, &[entry]).unwrap();
            engine.write(&mut batch, true).unwrap();
        }
        engine.close().unwrap();
        let before = fs.faults().count(OpKind::Preallocate);
        let engine = open();
        assert_eq!(engine.files_read_at_open(), 0);
        assert_eq!(fs.faults().count(OpKind::Preallocate) - before, expected);
    }
}
