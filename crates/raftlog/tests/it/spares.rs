//! Files that a purge has emptied are written over, and what they held is gone.

use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::fs::read_file;
use orogen_env::{
    Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PosixFileSystem, PowerCut,
};
use orogen_raftlog::raw::{Command, Engine, FormatVersion, LogBatch, Options, Queue, RecoveryMode};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::model::{content, dir, disk, options};

/// Entries of one group, the newest of which are kept: each step is a file or two. True if all could be written.
fn steps(engine: &Engine, from: u64, count: u64, sync: bool) -> bool {
    (from..from + count).all(|at| {
        let mut batch = LogBatch::default();
        batch
            .add_entries(1, at, &[Rng::new(at).bytes(500)])
            .unwrap();
        batch.add_command(
            1,
            Command::Compact {
                index: at.saturating_sub(1),
            },
        );
        let written = engine.write(&mut batch, sync).is_ok();
        written && engine.purge_expired_files().is_ok()
    })
}

fn names(fs: &MemFileSystem, suffix: &str) -> usize {
    let names = fs.list(dir()).unwrap();
    names.iter().filter(|n| n.ends_with(suffix)).count()
}

fn faulty(fs: &MemFileSystem) -> (Arc<FaultFileSystem>, Arc<dyn FileSystem>) {
    let faulty = Arc::new(FaultFileSystem::over_memory(fs.clone()));
    (faulty.clone(), faulty)
}

#[test]
fn files_are_written_over_and_nothing_of_them_comes_back() {
    let fs = disk();
    let (faulty, arc) = faulty(&fs);
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    assert!(steps(&engine, 1, 50, true));
    assert!(faulty.faults().count(OpKind::Reuse) > 15);
    let files = names(&fs, ".raftlog") + names(&fs, ".reserved");
    assert!(names(&fs, ".reserved") > 0 && files <= 4, "{files}");
    let expected = content(&engine);
    // As a process that is killed leaves it, and as a power loss does.
    for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
        let after = fs.crash(cut);
        let killed = Engine::open(&(Arc::new(after.clone()) as _), dir(), options()).unwrap();
        assert_eq!(content(&killed), expected);
        let reserved = names(&after, ".reserved");
        assert!(reserved > 0, "spare files stay");
        assert!(steps(&killed, 51, 20, true));
    }
    drop(engine);
    let again = Engine::open(&arc, dir(), options()).unwrap();
    assert_eq!(content(&again), expected);
    let before = faulty.faults().count(OpKind::Reuse);
    assert!(steps(&again, 51, 3, true));
    assert!(faulty.faults().count(OpKind::Reuse) > before);
}

#[test]
fn files_that_somebody_shares_are_not_written_over() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    assert!(steps(&engine, 1, 30, true));
    // Those of the queue, and spare ones.
    let mut shared = Vec::new();
    for name in fs.list(dir()).unwrap() {
        if name.contains(".raftlog") {
            let other = dir().with_file_name(format!("shared-{name}"));
            fs.hard_link(&dir().join(&name), &other).unwrap();
            let bytes = read_file(&fs, &other).unwrap();
            shared.push((other, bytes));
        }
    }
    assert!(
        shared
            .iter()
            .any(|(path, _)| path.to_string_lossy().ends_with("reserved"))
    );
    let newest = engine.file_span(Queue::Append).unwrap().1;
    assert!(steps(&engine, 31, 30, true));
    let expected = content(&engine);
    drop(engine);
    for (path, before) in shared {
        let after = read_file(&fs, &path).unwrap();
        // The newest was appended to.
        let is_newest = path
            .to_string_lossy()
            .ends_with(&format!("{newest:016}.raftlog"));
        assert!(after == before || is_newest, "{path:?}");
    }
    assert_eq!(
        content(&Engine::open(&arc, dir(), options()).unwrap()),
        expected
    );
}

#[test]
fn a_closed_directory_ends_with_its_records() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    // Files of some pages: what an old one held behind the first of them stays.
    let options = || Options {
        target_file_size: 9000,
        purge_threshold: 27_000,
        ..options()
    };
    let absolute = Options {
        recovery_mode: RecoveryMode::AbsoluteConsistency,
        ..options()
    };
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    assert!(steps(&engine, 1, 100, true));
    assert!(engine.metrics().files_written_over > 0);
    let expected = content(&engine);
    let killed: Arc<dyn FileSystem> = Arc::new(fs.crash(PowerCut::KeepAll));
    let error = Engine::open(&killed, dir(), absolute.clone())
        .err()
        .unwrap();
    assert_eq!(
        error.kind(),
        ErrorKind::Corruption,
        "what the file held is damage"
    );
    engine.close().unwrap();
    let engine = Engine::open(&arc, dir(), absolute).unwrap();
    assert_eq!(content(&engine), expected);
    assert_eq!(names(&fs, ".reserved"), 0, "none is wanted");
    assert!(steps(&engine, 101, 100, true));
    assert_eq!(names(&fs, ".reserved"), 0);
    let killed: Arc<dyn FileSystem> = Arc::new(fs.crash(PowerCut::KeepAll));
    Engine::open(&killed, dir(), options()).unwrap();
}

#[test]
fn a_closed_directory_ends_with_its_records_after_a_power_cut_too() {
    // Long files are written through memory where nothing is synced.
    for (syncs, size, count) in [(true, 9000, 100), (false, 400_000, 6000)] {
        let fs = disk();
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let options = Options {
            target_file_size: size,
            purge_threshold: 3 * size,
            ..options()
        };
        let engine = Engine::open(&arc, dir(), options.clone()).unwrap();
        assert!(steps(&engine, 1, count, syncs));
        assert!(engine.metrics().files_written_over > 0);
        let expected = content(&engine);
        engine.close().unwrap();
        for cut in [PowerCut::DropUnsynced, PowerCut::KeepAll] {
            let killed: Arc<dyn FileSystem> = Arc::new(fs.crash(cut));
            let absolute = Options {
                recovery_mode: RecoveryMode::AbsoluteConsistency,
                ..options.clone()
            };
            let engine = Engine::open(&killed, dir(), absolute).unwrap();
            assert_eq!(content(&engine), expected);
        }
    }
}

#[test]
fn files_are_deleted_where_they_cannot_be_spare() {
    let never = Options {
        enable_log_recycle: false,
        ..options()
    };
    let old = Options {
        format_version: FormatVersion::V1,
        ..options()
    };
    for options in [never, old] {
        let fs = disk();
        let (faulty, arc) = faulty(&fs);
        let engine = Engine::open(&arc, dir(), options).unwrap();
        assert!(steps(&engine, 1, 50, true));
        assert_eq!(faulty.faults().count(OpKind::Reuse), 0);
        assert_eq!(names(&fs, ".reserved"), 0);
        assert!(engine.file_span(Queue::Append).unwrap().0 > 15);
    }
    // Files of version 1 among others are none either: their records have no signature.
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let old = Options {
        format_version: FormatVersion::V1,
        purge_threshold: u64::MAX,
        ..options()
    };
    let engine = Engine::open(&arc, dir(), old).unwrap();
    assert!(steps(&engine, 1, 8, true));
    engine.close().unwrap();
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    assert!(steps(&engine, 9, 1, true));
    assert_eq!(names(&fs, ".reserved"), 0);
    assert!(engine.file_span(Queue::Append).unwrap().0 > 3);
}

#[test]
fn files_that_are_seldom_synced_are_written_over_through_memory() {
    let fs = disk();
    let (faulty, arc) = faulty(&fs);
    let options = Options {
        target_file_size: 200 << 10,
        purge_threshold: 600 << 10,
        ..options()
    };
    let engine = Engine::open(&arc, dir(), options.clone()).unwrap();
    for at in 1..200 {
        let mut batch = LogBatch::default();
        let entry = Rng::new(at).bytes(30_000);
        batch.add_entries(1, at, &[entry]).unwrap();
        let index = at.saturating_sub(3);
        batch.add_command(1, Command::Compact { index });
        engine.write(&mut batch, at > 150).unwrap();
        if at % 20 == 0 {
            engine.purge_expired_files().unwrap();
        }
        if at == 150 {
            assert!(faulty.faults().count(OpKind::Reuse) > 2);
            // What the file held before is behind its records, and is none of them.
            for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
                let after: Arc<dyn FileSystem> = Arc::new(fs.crash(cut));
                let found = Engine::open(&after, dir(), options.clone()).unwrap();
                let last = found.last_index(1).unwrap();
                assert!(
                    last == 150 || cut != PowerCut::KeepAll && last > 130,
                    "{last}"
                );
                let entry = found.get_entry(1, last).unwrap();
                assert_eq!(entry, Some(Rng::new(last).bytes(30_000)));
            }
        }
    }
    assert!(engine.file_span(Queue::Append).unwrap().0 > 10);
    let expected = content(&engine);
    engine.close().unwrap();
    let engine = Engine::open(&arc, dir(), options).unwrap();
    assert_eq!(content(&engine), expected);
}

#[test]
fn what_fails_with_spare_files_loses_nothing() {
    let mut failed = 0;
    for (kind, n) in [
        (OpKind::Rename, 1),
        (OpKind::Rename, 4),
        (OpKind::Reuse, 1),
        (OpKind::Reuse, 3),
        (OpKind::Metadata, 40),
        (OpKind::SyncDir, 20),
        (OpKind::Remove, 1),
    ] {
        let fs = disk();
        let (faulty, arc) = faulty(&fs);
        let engine = Engine::open(&arc, dir(), options()).unwrap();
        faulty.faults().add(Fault::io().on(&[kind]).nth(n));
        let mut done = 0;
        while done < 40 {
            failed += u32::from(!steps(&engine, done + 1, 1, true));
            // A step that failed may have been written before its purge was not.
            done = engine.last_index(1).unwrap_or(0);
        }
        let expected = content(&engine);
        assert_eq!(engine.last_index(1), Some(40), "{kind:?}");
        faulty.faults().clear();
        engine.close().unwrap();
        let engine = Engine::open(&arc, dir(), options()).unwrap();
        assert_eq!(content(&engine), expected, "{kind:?}");
    }
    assert!(failed >= 3, "{failed}");
}

#[test]
fn too_many_spare_files_are_deleted_when_they_are_found() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    fs.create_dir_all(dir()).unwrap();
    for number in [3, 9, 10, 11, 12, 40] {
        let name = format!("{number:016}.raftlog.reserved");
        drop(fs.create(&dir().join(name)).unwrap());
    }
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    assert!(names(&fs, ".reserved") <= 4);
    assert!(steps(&engine, 1, 30, true));
    let expected = content(&engine);
    drop(engine);
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    assert_eq!(content(&engine), expected);
}

/// As raft-engine forks a directory.
#[test]
fn files_behind_symbolic_links_are_not_written_over() {
    let temp = TempDir::new("raftlog-links");
    let (source, fork) = (temp.path().join("source"), temp.path().join("fork"));
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem);
    let unshared = Options {
        enable_log_recycle: false,
        ..options()
    };
    let engine = Engine::open(&fs, &source, unshared.clone()).unwrap();
    for at in 1..20 {
        let mut batch = LogBatch::default();
        let bytes = Rng::new(at).bytes(500);
        batch.add_entries(1, at, &[bytes]).unwrap();
        engine.write(&mut batch, true).unwrap();
    }
    let expected = content(&engine);
    engine.close().unwrap();
    let mut logs = fs.list(&source).unwrap();
    logs.retain(|name| name.ends_with(".raftlog"));
    logs.sort();
    let newest = logs.pop().unwrap();
    assert!(logs.len() > 5);
    std::fs::create_dir(&fork).unwrap();
    std::fs::copy(source.join(&newest), fork.join(&newest)).unwrap();
    for log in &logs {
        std::os::unix::fs::symlink(source.join(log), fork.join(log)).unwrap();
    }
    let engine = Engine::open(&fs, &fork, options()).unwrap();
    assert_eq!(content(&engine), expected);
    assert!(steps(&engine, 20, 40, true));
    assert!(engine.metrics().files_written_over > 0);
    engine.close().unwrap();
    let engine = Engine::open(&fs, &source, unshared).unwrap();
    assert_eq!(content(&engine), expected);
}
