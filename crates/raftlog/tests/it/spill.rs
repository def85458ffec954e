//! Two directories: the files of both are one log.

use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_raftlog::raw::{Engine, LogBatch, Options, Queue, Verdict, repair};
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, random_batch, spill_dir, spilling};

fn faulty(mem: &MemFileSystem) -> (FaultFileSystem, Arc<dyn FileSystem>) {
    let fs = FaultFileSystem::over_memory(mem.clone());
    (fs.clone(), Arc::new(fs))
}

fn open(fs: &Arc<dyn FileSystem>, options: Options) -> Engine {
    Engine::open(fs, dir(), options).unwrap()
}

/// A directory says that it has so much free space.
fn has_free(fs: &FaultFileSystem, dir: &Path, bytes: u64) {
    let fault = Fault::no_space().on(&[OpKind::FreeSpace]).free(bytes);
    fs.faults()
        .add(fault.path_with(dir.to_string_lossy()).forever());
}

fn full(fs: &FaultFileSystem, dir: &Path) {
    has_free(fs, dir, 699);
}

/// No append to a file of a directory finds space.
fn full_to_appends(fs: &FaultFileSystem, dir: &Path) {
    let fault = Fault::no_space().on(&[OpKind::Append]);
    fs.faults()
        .add(fault.path_with(dir.to_string_lossy()).forever());
}

fn logs(fs: &dyn FileSystem, dir: &Path, suffix: &str) -> Vec<String> {
    let mut names = fs.list(dir).unwrap();
    names.retain(|name| name.ends_with(suffix));
    names.sort();
    names
}

fn write(engine: &Engine, group: u64, index: u64, len: usize) -> orogen_base::Result<usize> {
    let mut batch = LogBatch::default();
    batch.add_entries(group, index, &[vec![index as u8; len]])?;
    engine.write(&mut batch, true)
}

#[test]
fn a_file_is_made_where_there_is_room() {
    let mem = disk();
    let (fs, arc) = faulty(&mem);
    let options = Options {
        batch_compression_threshold: 0,
        purge_threshold: 7000,
        enable_log_digests: true,
        ..spilling()
    };
    let engine = open(&arc, options.clone());
    for index in 1..=8 {
        fs.faults().clear();
        if index % 3 != 0 {
            full(&fs, dir());
        }
        if index % 3 == 2 {
            // Without room in either it is the first.
            full(&fs, spill_dir());
        }
        write(&engine, 1, index, 700).unwrap();
    }
    let expected = content(&engine);
    assert_eq!(engine.metrics().files_spilled.append, 2);
    assert_eq!(engine.metrics().spill_dir_file_count, 2);
    let text = engine.metrics().to_prometheus(&[]);
    assert!(text.contains("orogen_raftlog_spill_dir_file_count 2\n"));
    engine.close().unwrap();
    let spilled = ["0000000000000004.raftlog", "0000000000000007.raftlog"];
    assert_eq!(logs(&mem, spill_dir(), ".raftlog"), spilled);
    assert_eq!(logs(&mem, dir(), ".raftlog").len(), 6);
    // Digests lie beside their files.
    assert_eq!(logs(&mem, spill_dir(), ".digest").len(), 2);
    let again = open(&arc, options);
    assert_eq!(content(&again), expected);
    assert_eq!(again.files_read_at_open(), 0);
}

#[test]
fn what_finds_no_space_is_written_to_the_other_directory() {
    let mem = disk();
    let (fs, arc) = faulty(&mem);
    let engine = open(&arc, spilling());
    write(&engine, 1, 1, 100).unwrap();
    for (index, full, other) in [(2, dir(), spill_dir()), (4, spill_dir(), dir())] {
        fs.faults().clear();
        full_to_appends(&fs, full);
        // More than when it was full.
        has_free(&fs, other, 2 << 40);
        write(&engine, 1, index, 100).unwrap();
        write(&engine, 1, index + 1, 100).unwrap();
    }
    let expected = content(&engine);
    for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
        let after: Arc<dyn FileSystem> = Arc::new(mem.crash(cut));
        assert_eq!(content(&open(&after, spilling())), expected);
    }
    assert_eq!(engine.file_span(Queue::Append), Some((1, 3)));
    assert_eq!(logs(&mem, spill_dir(), ".raftlog").len(), 1);
}

#[test]
fn where_neither_has_space_a_write_fails_and_no_files_pile_up() {
    let mem = disk();
    let (fs, arc) = faulty(&mem);
    let engine = open(&arc, spilling());
    write(&engine, 1, 1, 100).unwrap();
    let expected = content(&engine);
    full_to_appends(&fs, dir());
    full_to_appends(&fs, spill_dir());
    for _ in 0..20 {
        let e = write(&engine, 1, 2, 100).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        assert_eq!(content(&engine), expected);
    }
    let files = |dir: &Path| logs(&mem, dir, ".raftlog").len();
    assert!(files(dir()) + files(spill_dir()) <= 2);
    fs.faults().clear();
    write(&engine, 1, 2, 100).unwrap();
    let expected = content(&engine);
    drop(engine);
    assert_eq!(content(&open(&arc, spilling())), expected);
}

#[test]
fn emptied_files_of_both_are_written_over_and_deleted_where_they_are() {
    let mem = disk();
    let (fs, arc) = faulty(&mem);
    let options = Options {
        purge_threshold: 4200,
        ..spilling()
    };
    let engine = open(&arc, options.clone());
    let mut rng = Rng::new(Rng::seed_or(5));
    let mut model = Model::new();
    let mut spare = [0; 2];
    for step in 0..200 {
        fs.faults().clear();
        let [first, other] = [[dir(), spill_dir()], [spill_dir(), dir()]][rng.range(0..2)];
        has_free(&fs, other, (2 << 40) + step);
        if rng.chance(1, 4) {
            full_to_appends(&fs, first);
        } else {
            full(&fs, first);
        }
        let mut batch = random_batch(&mut rng, &mut model, 0);
        engine.write(&mut batch, true).unwrap();
        if step % 10 == 9 {
            engine.purge_expired_files().unwrap();
        }
        for (most, dir) in spare.iter_mut().zip([dir(), spill_dir()]) {
            *most = logs(&mem, dir, ".reserved").len().max(*most);
        }
    }
    let metrics = engine.metrics();
    assert!(metrics.files_spilled.append > 10, "{metrics:?}");
    assert!(metrics.files_spilled.rewrite > 0, "{metrics:?}");
    assert!(metrics.files_written_over > 5, "{metrics:?}");
    assert!(spare[0] > 0 && spare[1] > 0, "{spare:?}");
    let expected = content(&engine);
    drop(engine);
    assert_eq!(content(&open(&arc, options.clone())), expected);
    // Without recycling all spare files go, of both directories.
    let none = Options {
        enable_log_recycle: false,
        ..options
    };
    assert_eq!(content(&open(&arc, none)), expected);
    for dir in [dir(), spill_dir()] {
        assert!(logs(&mem, dir, ".reserved").is_empty());
    }
}

#[test]
fn of_two_files_with_a_number_the_empty_one_goes() {
    let mem = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(mem.clone());
    let engine = open(&arc, spilling());
    write(&engine, 1, 1, 100).unwrap();
    let expected = content(&engine);
    drop(engine);
    let name = "0000000000000001.raftlog";
    let real = read_file(&mem, &dir().join(name)).unwrap();
    let other = spill_dir().join(name);
    let mut zeros = real[..69].to_vec();
    zeros.resize(5000, 0);
    for empty in [&real[..0], &real[..30], &real[..69], &zeros] {
        write_file(&mem, &other, empty).unwrap();
        assert_eq!(content(&open(&arc, spilling())), expected);
        assert!(!mem.exists(&other).unwrap());
    }
    write_file(&mem, &other, &real).unwrap();
    let e = Engine::open(&arc, dir(), spilling()).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
    assert!(e.to_string().contains("/spill/log"), "{e}");
    assert_eq!(read_file(&mem, &other).unwrap(), real);
}

#[test]
fn both_directories_are_locked_and_are_two() {
    let mem = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(mem);
    let engine = open(&arc, spilling());
    let other = Options {
        spill_dir: None,
        ..spilling()
    };
    let e = Engine::open(&arc, spill_dir(), other).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
    drop(engine);
    let same = Options {
        spill_dir: Some(dir().to_owned()),
        ..spilling()
    };
    let e = Engine::open(&arc, dir(), same).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
}

#[test]
fn a_repair_takes_out_of_both() {
    let mem = disk();
    let (fs, arc) = faulty(&mem);
    let options = Options {
        batch_compression_threshold: 0,
        ..spilling()
    };
    let engine = open(&arc, options);
    for index in 1..=4 {
        fs.faults().clear();
        if index == 2 {
            full(&fs, dir());
        }
        write(&engine, 1, index, 800).unwrap();
        write(&engine, 2, index, 800).unwrap();
    }
    drop(engine);
    let decide = |incoming: &orogen_raftlog::raw::Incoming| {
        Ok(match incoming.group {
            1 => Verdict::DropIncoming,
            _ => Verdict::Apply,
        })
    };
    let done = repair(&mem, dir(), Some(spill_dir()), None, decide).unwrap();
    assert!(done.files.len() > 2, "{done:?}");
    let engine = open(&arc, spilling());
    assert_eq!(engine.first_index(1), None);
    assert_eq!(engine.last_index(2), Some(4));
}
