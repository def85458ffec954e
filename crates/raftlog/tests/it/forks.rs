//! A second directory with what another one has: neither sees what becomes of the other.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::fault::Errno;
use orogen_env::fs::read_file;
use orogen_env::{
    Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PosixFileSystem, PowerCut,
};
use orogen_raftlog::raw::{Engine, LogBatch, Options, RecoveryMode, RewriteSteps, check, fork};
use orogen_testkit::TempDir;
use orogen_testkit::rng::Rng;

use crate::model::{content, options};

fn system() -> Arc<dyn FileSystem> {
    Arc::new(PosixFileSystem)
}

fn write(engine: &Engine, from: u64, to: u64) {
    for at in from..to {
        let mut batch = LogBatch::default();
        let bytes = Rng::new(at).bytes(500);
        batch
            .add_entries(at % 3 + 1, at / 3 + 1, &[bytes])
            .expect("follows");
        engine.write(&mut batch, true).expect("there is room");
    }
}

/// A closed directory with full files in both queues.
fn filled(dir: &Path) {
    filled_on(&system(), dir);
}

fn filled_on(fs: &Arc<dyn FileSystem>, dir: &Path) {
    let engine = Engine::open(fs, dir, options()).expect("a new one");
    write(&engine, 0, 60);
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .expect("there is room");
    write(&engine, 60, 120);
    engine.close().expect("closes");
}

fn logs(dir: &Path, suffix: &str) -> Vec<String> {
    let mut names = PosixFileSystem.list(dir).expect("it is there");
    names.retain(|name| name.ends_with(suffix));
    names.sort();
    names
}

fn links(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").nlink()
}

#[test]
fn a_file_system_for_reading_only_is_looked_at_and_forked() {
    let mem = MemFileSystem::new();
    let fs: Arc<dyn FileSystem> = Arc::new(mem.clone());
    let [source, target] = ["/source", "/target"].map(Path::new);
    filled_on(&fs, source);
    let want = content(&Engine::open(&fs, source, options()).expect("opens"));
    let mounted = FaultFileSystem::over_memory(mem);
    let fault = Fault::new(Errno::ROFS).path_with("/source").forever();
    mounted.faults().add(fault.on(&OpKind::CHANGING));
    let checked = check(&mounted, source, None, |_, _| {}).expect("reads only");
    assert!(checked.files.len() > 3 && checked.files.iter().all(|f| f.damage.is_none()));
    fork(&mounted, source, None, target, false).expect("reads only");
    assert!(content(&Engine::open(&fs, target, options()).expect("opens")) == want);
}

#[test]
fn what_may_be_written_over_is_not_shared() {
    let temp = TempDir::new("raftlog-forks");
    let [source, target] = ["source", "target"].map(|name| temp.path().join(name));
    filled(&source);
    let made = fork(&*system(), &source, None, &target, false).unwrap();
    assert!(logs(&source, ".raftlog").len() > 3 && logs(&source, ".rewrite").len() > 1);
    assert_eq!(made.shared.len(), logs(&source, ".rewrite").len() - 1);
    for name in logs(&target, ".raftlog") {
        assert_eq!(links(&target.join(&name)), 1, "{name}");
        let of = |dir: &Path| read_file(&PosixFileSystem, &dir.join(&name)).unwrap();
        assert_eq!(of(&target), of(&source));
    }
    let open = |dir: &Path| Engine::open(&system(), dir, options()).unwrap();
    let (first, second) = (open(&source), open(&target));
    let before = content(&first);
    assert_eq!(content(&second), before);
    write(&second, 120, 150);
    assert_eq!(content(&first), before);
}

#[test]
fn the_newest_file_is_not_shared_though_another_one_is_ready_behind_it() {
    let temp = TempDir::new("raftlog-forks");
    let [source, target] = ["source", "target"].map(|name| temp.path().join(name));
    filled(&source);
    let newest = logs(&source, ".raftlog").pop().unwrap();
    let number: u64 = newest.trim_end_matches(".raftlog").parse().unwrap();
    std::fs::write(source.join(format!("{:016}.raftlog", number + 1)), b"").unwrap();
    let made = fork(&*system(), &source, None, &target, true).unwrap();
    assert!(made.shared.len() > 5);
    assert_eq!(links(&target.join(&newest)), 1);
}

#[test]
fn what_one_recovery_cuts_off_is_still_there_for_the_other() {
    // In the header of the file, and in that of a record.
    for at in [2, 30] {
        let temp = TempDir::new("raftlog-forks");
        let [source, target] = ["source", "target"].map(|name| temp.path().join(name));
        filled(&source);
        let made = fork(&*system(), &source, None, &target, false).unwrap();
        let shared = made.shared[0].file_name().unwrap();
        let file = source.join(shared);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[at] ^= 1;
        // In place, as a disk does it.
        let written = std::fs::OpenOptions::new().write(true).open(&file);
        std::io::Write::write_all(&mut written.unwrap(), &bytes).unwrap();
        assert_eq!(links(&file), 2);
        let tolerant = Options {
            recovery_mode: RecoveryMode::TolerateAnyCorruption,
            ..options()
        };
        let engine = Engine::open(&system(), &target, tolerant.clone()).unwrap();
        let before = content(&engine);
        engine.close().unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), bytes, "{at}");
        let refused = Engine::open(&system(), &source, options()).map(|_| ());
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Corruption);
        assert!(logs(&target, ".tmp").is_empty());
        let again = Engine::open(&system(), &target, tolerant).unwrap();
        assert_eq!(content(&again), before);
    }
}

#[test]
fn after_an_error_there_is_no_part_of_a_fork() {
    let temp = TempDir::new("raftlog-forks");
    let [source, target] = ["source", "target"].map(|name| temp.path().join(name));
    filled(&source);
    let mut failed = 0;
    for kind in [
        OpKind::Create,
        OpKind::Append,
        OpKind::Read,
        OpKind::Sync,
        OpKind::SyncDir,
    ] {
        for nth in 1.. {
            std::fs::create_dir_all(&target).unwrap();
            let faulty = FaultFileSystem::new(system());
            faulty.faults().add(Fault::io().on(&[kind]).nth(nth));
            let result = fork(&faulty, &source, None, &target, false);
            let count = logs(&target, ".raftlog").len() + logs(&target, ".rewrite").len();
            if result.is_ok() {
                std::fs::remove_dir_all(&target).unwrap();
                break;
            }
            assert_eq!(count, 0, "{kind:?} {nth}");
            failed += 1;
        }
    }
    assert!(failed > 20, "{failed}");
}

#[test]
fn a_fork_that_somebody_has_opened_is_left_whole() {
    let [source, target] = ["/source", "/target"].map(Path::new);
    let mem = MemFileSystem::new();
    let arc: Arc<dyn FileSystem> = Arc::new(mem.clone());
    filled_on(&arc, source);
    let whole = content(&Engine::open(&arc, source, options()).unwrap());
    let faulty = FaultFileSystem::over_memory(mem);
    // Behind the file of that name the directory, which is gone all the same.
    let removal = Fault::io().on(&[OpKind::Remove]).path_with("LOCK").nth(2);
    faulty.faults().add(removal.after_effect());
    // By then LOCK is a file of theirs.
    let exists = Fault::new(Errno::EXIST).on(&[OpKind::CreateDir]);
    faulty.faults().add(exists.path_with("LOCK").nth(2));
    assert!(fork(&faulty, source, None, target, false).is_err());
    assert_eq!(faulty.faults().injected(), 2);
    assert!(content(&Engine::open(&arc, target, options()).unwrap()) == whole);
}

#[test]
fn whoever_meets_a_fork_that_is_being_made_is_not_told_to_remove_it() {
    let [source, target] = ["/source", "/target"].map(Path::new);
    let arc: Arc<dyn FileSystem> = Arc::new(MemFileSystem::new());
    filled_on(&arc, source);
    arc.create_dir_all(&target.join("LOCK")).unwrap();
    for e in [
        fork(&*arc, source, None, target, false).unwrap_err(),
        Engine::open(&arc, target, options()).err().unwrap(),
    ] {
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.to_string().contains("is being made here"), "{e}");
        let help = e.context("help");
        assert!(help.is_some_and(|help| help.starts_with("if none is at work")));
    }
}

#[test]
fn after_a_power_cut_a_fork_is_whole_or_cannot_be_opened() {
    let [source, target] = ["/source", "/target"].map(Path::new);
    let filled = MemFileSystem::new();
    let arc: Arc<dyn FileSystem> = Arc::new(filled.clone());
    filled_on(&arc, source);
    filled.sync_all();
    let whole = content(&Engine::open(&arc, source, options()).unwrap());
    let mut refused = 0;
    for calls in 0.. {
        let disk = filled.fork();
        disk.crash_after(calls);
        let result = fork(&disk, source, None, target, false);
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: calls },
            PowerCut::Names { seed: calls },
        ] {
            let after: Arc<dyn FileSystem> = Arc::new(disk.crash(cut));
            let is_log = |name: &String| name.ends_with("log") || name.ends_with("rewrite");
            let names = after.list(target).unwrap_or_default();
            let is_empty = !names.iter().any(is_log);
            match Engine::open(&after, target, options()) {
                Ok(engine) if is_empty => assert!(result.is_err() && engine.is_empty()),
                Ok(engine) => assert_eq!(content(&engine), whole, "{calls} {cut:?}"),
                Err(e) => {
                    assert!(result.is_err());
                    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
                    let again = fork(&*after, source, None, target, false).unwrap_err();
                    assert_eq!(again.kind(), ErrorKind::InvalidArgument);
                    refused += 1;
                }
            }
        }
        if result.is_ok() {
            break;
        }
    }
    assert!(refused > 50, "{refused}");
}

#[test]
fn what_a_crash_left_of_a_copy_is_removed_by_the_next_open() {
    let temp = TempDir::new("raftlog-forks");
    let source = temp.path().join("source");
    filled(&source);
    let other = "mine.tmp";
    for name in ["0000000000000001.tmp", other] {
        std::fs::write(source.join(name), b"a part").unwrap();
    }
    drop(Engine::open(&system(), &source, options()).unwrap());
    assert_eq!(logs(&source, ".tmp"), [other]);
}
