//! A first directory that stalls: new files are made in the second, and in the first again once it is well.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_env::fs::write_file;
use orogen_env::{
    Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, PowerCut,
};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue};

use crate::model::{content, dir, disk, spill_dir, spilling};

const THRESHOLD: Duration = Duration::from_millis(100);

struct Disk {
    mem: MemFileSystem,
    fs: FaultFileSystem,
    clock: Arc<ManualClock>,
}

impl Disk {
    fn new() -> Self {
        let mem = disk();
        Self {
            fs: FaultFileSystem::over_memory(mem.clone()),
            mem,
            clock: Arc::new(ManualClock::new()),
        }
    }

    fn open(&self) -> Engine {
        let fs: Arc<dyn FileSystem> = Arc::new(self.fs.clone());
        let options = Options {
            spill_stall_threshold: Some(THRESHOLD),
            batch_compression_threshold: 0,
            ..spilling()
        };
        let clock = self.clock.clone();
        Engine::open_with_clock(&fs, dir(), options, Vec::new(), clock).unwrap()
    }

    /// The next call of a kind to a path takes so long.
    fn slow(&self, kind: OpKind, part: &str, time: Duration) {
        let fault = Fault::io().on(&[kind]).path_with(part);
        self.fs.faults().add(fault.slow(self.clock.clone(), time));
    }

    fn files(&self, dir: &Path) -> usize {
        let names = self.mem.list(dir).unwrap();
        names.iter().filter(|n| n.ends_with(".raftlog")).count()
    }
}

fn write(engine: &Engine, index: u64) {
    let mut batch = LogBatch::default();
    batch.add_entries(1, index, &[[index as u8; 10]]).unwrap();
    engine.write(&mut batch, true).unwrap();
}

fn fill(engine: &Engine, index: u64) {
    let mut batch = LogBatch::default();
    batch.add_entries(1, index, &[[index as u8; 700]]).unwrap();
    engine.write(&mut batch, true).unwrap();
}

fn is_stalled(engine: &Engine) -> bool {
    engine.metrics().dirs_stalled == 1
}

#[test]
fn after_a_slow_call_files_are_made_in_the_second_directory_until_the_first_is_well() {
    let more = THRESHOLD + Duration::from_micros(1);
    for kind in [OpKind::Append, OpKind::Sync] {
        let disk = Disk::new();
        let engine = disk.open();
        write(&engine, 1);
        disk.slow(kind, "/raft/log", THRESHOLD);
        write(&engine, 2);
        assert!(!is_stalled(&engine), "{kind:?} took just as long as it may");
        disk.slow(kind, "/raft/log", more);
        write(&engine, 3);
        assert!(is_stalled(&engine), "{kind:?}");
        // The slow batch itself is where it was written.
        assert_eq!((disk.files(dir()), disk.files(spill_dir())), (1, 0));
        write(&engine, 4);
        assert_eq!((disk.files(dir()), disk.files(spill_dir())), (1, 1));
        for index in 5..8 {
            fill(&engine, index);
        }
        let spilled = disk.files(spill_dir());
        assert!(spilled >= 3 && disk.files(dir()) == 1);
        // Two quick probes and one that is not quick enough: it begins anew.
        engine.purge_expired_files().unwrap();
        engine.purge_expired_files().unwrap();
        disk.slow(
            OpKind::Sync,
            "PROBE",
            THRESHOLD / 2 + Duration::from_micros(1),
        );
        for _ in 0..3 {
            engine.purge_expired_files().unwrap();
            assert!(is_stalled(&engine));
        }
        engine.purge_expired_files().unwrap();
        assert!(!is_stalled(&engine));
        // The file of the second directory is filled first.
        let (first, second) = (disk.files(dir()), disk.files(spill_dir()));
        fill(&engine, 8);
        fill(&engine, 9);
        assert!(disk.files(dir()) > first && disk.files(spill_dir()) <= second + 1);
        assert_eq!(engine.metrics().dir_stalls, 1);
        assert_eq!(engine.metrics().dir_stalls_stayed, 0);
        assert!(!disk.mem.exists(&dir().join("PROBE")).unwrap());
        let expected = content(&engine);
        let after = disk.mem.crash(PowerCut::DropUnsynced);
        let after: Arc<dyn FileSystem> = Arc::new(after);
        assert_eq!(
            content(&Engine::open(&after, dir(), spilling()).unwrap()),
            expected
        );
    }
}

#[test]
fn a_probe_that_fails_is_none_of_a_disk_that_is_well() {
    let disk = Disk::new();
    let engine = disk.open();
    disk.slow(OpKind::Sync, "/raft/log", THRESHOLD * 2);
    write(&engine, 1);
    for kind in [OpKind::Create, OpKind::Append, OpKind::Sync, OpKind::Remove] {
        engine.purge_expired_files().unwrap();
        engine.purge_expired_files().unwrap();
        let fault = Fault::io().on(&[kind]).path_with("PROBE");
        disk.fs.faults().add(fault);
        engine.purge_expired_files().unwrap();
        assert!(is_stalled(&engine), "{kind:?}");
    }
    for _ in 0..3 {
        engine.purge_expired_files().unwrap();
    }
    assert!(!is_stalled(&engine));
}

#[test]
fn where_the_second_directory_takes_no_file_the_slow_one_is_written_on() {
    let disk = Disk::new();
    let engine = disk.open();
    write(&engine, 1);
    let full = Fault::no_space().on(&[OpKind::FreeSpace]).free(0);
    let faults = disk.fs.faults();
    faults.add(full.path_with("/spill/log").forever());
    disk.slow(OpKind::Sync, "/raft/log", THRESHOLD * 2);
    for index in 2..6 {
        write(&engine, index);
    }
    assert_eq!((disk.files(dir()), disk.files(spill_dir())), (1, 0));
    assert!(is_stalled(&engine));
    // It says that it has space, and no file can be made there.
    faults.clear();
    let broken = Fault::io().on(&[OpKind::Create]).path_with("/spill/log");
    faults.add(broken.forever());
    for index in 6..10 {
        write(&engine, index);
    }
    assert!(!is_stalled(&engine));
    assert_eq!(engine.metrics().dir_stalls_stayed, 1);
    assert_eq!((disk.files(dir()), disk.files(spill_dir())), (1, 0));
    // It is tried again after a purge.
    faults.clear();
    engine.purge_expired_files().unwrap();
    disk.slow(OpKind::Sync, "/raft/log", THRESHOLD * 2);
    write(&engine, 10);
    write(&engine, 11);
    assert_eq!(disk.files(spill_dir()), 1);
    assert_eq!(engine.metrics().dir_stalls, 2);
}

#[test]
fn a_slow_directory_is_written_on_in_its_file_where_the_other_takes_none() {
    let disk = Disk::new();
    let engine = disk.open();
    write(&engine, 1);
    let faults = disk.fs.faults();
    let broken = Fault::io().on(&[OpKind::Create]).path_with("/spill/log");
    faults.add(broken.forever());
    let slow = Fault::io().on(&[OpKind::Sync]).path_with("/raft/log");
    let slow = slow.slow(disk.clock.clone(), THRESHOLD * 2);
    faults.add(slow.forever());
    for index in 2..22 {
        write(&engine, index);
    }
    // A file gets full.
    assert_eq!((disk.files(dir()), disk.files(spill_dir())), (2, 0));
    // It is asked for once for each file, and when that is full.
    assert!(faults.count(OpKind::Create) < 10);
    // The next file is asked for there.
    for index in 22..25 {
        fill(&engine, index);
    }
    faults.clear();
    for index in 25..28 {
        fill(&engine, index);
    }
    assert!(disk.files(spill_dir()) > 0);
    let expected = content(&engine);
    engine.close().unwrap();
    assert_eq!(content(&disk.open()), expected);
}

#[test]
fn a_second_directory_that_dies_while_a_file_is_made_there_stops_nobody() {
    for kind in [OpKind::Sync, OpKind::SyncDir, OpKind::Append] {
        let disk = Disk::new();
        let engine = disk.open();
        write(&engine, 1);
        let faults = disk.fs.faults();
        for kind in [kind, OpKind::Remove] {
            faults.add(Fault::io().on(&[kind]).path_with("/spill/log").forever());
        }
        disk.slow(OpKind::Sync, "/raft/log", THRESHOLD * 2);
        for index in 2..10 {
            write(&engine, index);
        }
        for index in 10..13 {
            fill(&engine, index);
        }
        assert!(disk.files(dir()) > 1, "{kind:?}");
        // The file that was made in the first directory in its place goes, and what is left of it in the other one stays.
        for index in 13..30 {
            fill(&engine, index);
            let mut batch = LogBatch::default();
            batch.add_command(1, Command::Compact { index });
            engine.write(&mut batch, true).unwrap();
            // It syncs the names in both directories.
            let purged = engine.purge_expired_files();
            assert!(purged.is_ok() || kind == OpKind::SyncDir);
            let killed: Arc<dyn FileSystem> = Arc::new(disk.mem.crash(PowerCut::KeepAll));
            let killed = Engine::open(&killed, dir(), spilling()).unwrap();
            assert_eq!(content(&killed), content(&engine), "{kind:?} {index}");
        }
        assert!(engine.file_span(Queue::Append).unwrap().0 > 3);
        let expected = content(&engine);
        let killed = disk.mem.crash(PowerCut::KeepAll);
        let killed: Arc<dyn FileSystem> = Arc::new(killed);
        let killed = Engine::open(&killed, dir(), spilling()).unwrap();
        assert_eq!(content(&killed), expected);
        engine.close().unwrap();
        faults.clear();
        assert_eq!(content(&disk.open()), expected);
    }
}

#[test]
fn a_second_directory_that_takes_nothing_at_all_stops_nobody() {
    let disk = Disk::new();
    let engine = disk.open();
    write(&engine, 1);
    let faults = disk.fs.faults();
    for kind in [OpKind::Create, OpKind::Remove, OpKind::SyncDir] {
        // As one that was mounted anew to be read only.
        faults.add(Fault::io().on(&[kind]).path_with("/spill/log").forever());
    }
    disk.slow(OpKind::Sync, "/raft/log", THRESHOLD * 2);
    for index in 2..10 {
        write(&engine, index);
    }
    assert_eq!(disk.files(spill_dir()), 0);
    let expected = content(&engine);
    engine.close().unwrap();
    faults.clear();
    assert_eq!(content(&disk.open()), expected);
}

#[test]
fn a_file_that_is_slow_to_make_is_left_at_once() {
    let disk = Disk::new();
    let engine = disk.open();
    fill(&engine, 1);
    disk.slow(OpKind::Create, "/raft/log", THRESHOLD * 2);
    write(&engine, 2);
    assert_eq!((disk.files(dir()), disk.files(spill_dir())), (2, 0));
    assert!(is_stalled(&engine));
    write(&engine, 3);
    assert_eq!((disk.files(dir()), disk.files(spill_dir())), (2, 1));
    assert_eq!(engine.file_span(Queue::Append), Some((1, 3)));
    let expected = content(&engine);
    engine.close().unwrap();
    assert_eq!(content(&disk.open()), expected);
}

#[test]
fn a_threshold_needs_a_second_directory() {
    let fs: Arc<dyn FileSystem> = Arc::new(disk());
    let options = Options {
        spill_dir: None,
        spill_stall_threshold: Some(THRESHOLD),
        ..spilling()
    };
    let e = Engine::open(&fs, dir(), options).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}

/// What is left of one that could not be made lies before all others once the one made in its place is purged.
#[test]
fn an_empty_file_before_all_others_counts_for_nothing() {
    let disk = Disk::new();
    let engine = disk.open();
    for index in 1..20 {
        fill(&engine, index);
        let mut batch = LogBatch::default();
        batch.add_command(1, Command::Compact { index });
        engine.write(&mut batch, true).unwrap();
        engine.purge_expired_files().unwrap();
    }
    let (oldest, _) = engine.file_span(Queue::Append).unwrap();
    assert!(oldest > 2);
    let expected = content(&engine);
    engine.close().unwrap();
    for header in [&b""[..], &[0; 100]] {
        let left = spill_dir().join(format!("{:016}.raftlog", oldest - 1));
        write_file(&disk.mem, &left, header).unwrap();
        assert_eq!(content(&disk.open()), expected);
        assert!(!disk.mem.exists(&left).unwrap());
    }
}
