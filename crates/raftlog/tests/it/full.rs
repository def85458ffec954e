//! The disk runs full.

use std::sync::Arc;

use orogen_base::{Error, ErrorKind, Result};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue, RewriteSteps};
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, options, random_batch};
use crate::purge::{entries, first_file};

const FILE: usize = 16 << 10;

fn larger() -> Options {
    Options {
        target_file_size: FILE as u64,
        purge_threshold: 8 * FILE as u64,
        purge_rewrite_threshold: Some(2 * FILE as u64),
        batch_compression_threshold: 0,
        ..options()
    }
}

fn open(fs: &MemFileSystem, options: Options) -> Result<Engine> {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Engine::open(&fs, dir(), options)
}

fn spares(fs: &MemFileSystem) -> usize {
    let names = fs.list(dir()).expect("it is there");
    names
        .iter()
        .filter(|name| name.ends_with(".reserved"))
        .count()
}

/// Leaves so many blocks of the disk.
fn leave(fs: &MemFileSystem, blocks: u64) {
    fs.set_capacity(u64::MAX);
    let free = fs.free_space(dir()).expect("it is there");
    fs.set_capacity(u64::MAX - free + (blocks << 12));
}

fn put(group: u64, index: u64, len: usize) -> LogBatch {
    let mut batch = LogBatch::default();
    let entry = Rng::new(index).bytes(len);
    batch
        .add_entries(group, index, &[entry])
        .expect("it is short");
    batch
}

fn faulty(mem: &MemFileSystem) -> (FaultFileSystem, Engine) {
    let fs = FaultFileSystem::over_memory(mem.clone());
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), larger()).expect("there is space");
    (fs, engine)
}

fn leave_no_space_to_move(fs: &FaultFileSystem) {
    let full = Fault::no_space()
        .on(&[OpKind::Append])
        .path_with(".rewrite");
    fs.faults().add(full.forever());
}

/// With space purges go on where they ended.
fn assert_goes_on(fs: &FaultFileSystem, engine: &Engine, mem: &MemFileSystem) {
    fs.faults().clear();
    let first = first_file(engine, Queue::Append);
    engine.purge_expired_files().expect("there is space");
    assert!(first_file(engine, Queue::Append) > first);
    assert_survives(engine, mem);
}

/// A group whose entries were compacted, so that there are spare files.
fn with_spares(fs: &MemFileSystem) -> Engine {
    let engine = open(fs, larger()).expect("there is space");
    for index in 1..=40 {
        let mut batch = put(1, index, FILE / 4);
        batch.add_command(1, Command::Compact { index });
        engine.write(&mut batch, true).expect("there is space");
    }
    engine.purge_expired_files().expect("there is space");
    assert!(spares(fs) >= 5, "{}", spares(fs));
    engine
}

fn assert_survives(engine: &Engine, fs: &MemFileSystem) {
    let after = fs.crash(PowerCut::DropUnsynced);
    let again = open(&after, larger()).expect("it is whole");
    assert_eq!(content(&again), content(engine));
}

#[test]
fn a_write_takes_the_space_of_spare_files() {
    let fs = disk();
    drop(with_spares(&fs));
    leave(&fs, 0);
    let engine = open(&fs, larger()).unwrap();
    let before = spares(&fs);
    // Longer than any spare file.
    for index in 41..=42 {
        engine
            .write(&mut put(1, index, FILE * 5 / 4), true)
            .unwrap();
    }
    assert!(spares(&fs) < before);
    assert_survives(&engine, &fs);
}

#[test]
fn a_purge_takes_the_space_of_spare_files() {
    let fs = disk();
    let engine = with_spares(&fs);
    for index in 1..=24 {
        engine.write(&mut put(2, index, FILE / 8), true).unwrap();
    }
    leave(&fs, 0);
    let before = spares(&fs);
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .unwrap();
    assert!(spares(&fs) < before);
    assert_survives(&engine, &fs);
}

/// Appends entries to group 1 that take away all before them.
fn append_alone(engine: &Engine, indexes: std::ops::RangeInclusive<u64>) {
    for index in indexes {
        let mut batch = put(1, index, FILE / 4);
        batch.add_command(1, Command::Compact { index });
        engine.write(&mut batch, false).expect("there is space");
    }
}

/// A log without spare files, and the oldest of its files that something living is in: a key, and nothing else but in the newest.
fn with_dead_files(fs: &MemFileSystem) -> (Engine, u64) {
    let engine = open(fs, larger()).expect("there is space");
    append_alone(&engine, 1..=16);
    put_key(&engine);
    let (_, file) = engine.file_span(Queue::Append).expect("it is there");
    assert!(file > 3, "{file}");
    append_alone(&engine, 17..=60);
    engine.sync().expect("there is space");
    assert_eq!(spares(fs), 0);
    (engine, file)
}

fn put_key(engine: &Engine) {
    let mut batch = LogBatch::default();
    batch
        .put(2, b"key".to_vec(), b"value".to_vec())
        .expect("it is short");
    engine.write(&mut batch, false).expect("there is space");
}

#[test]
fn dead_files_go_where_there_is_no_space_to_move_what_lives_behind_them() {
    let fs = disk();
    let (engine, file) = with_dead_files(&fs);
    leave(&fs, 0);
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > file, "it was moved");
    assert_survives(&engine, &fs);
}

#[test]
fn dead_files_go_where_there_is_no_space_for_a_new_one() {
    let fs = disk();
    let (engine, file) = with_dead_files(&fs);
    leave(&fs, 0);
    engine.purge_all_stale().unwrap();
    assert_eq!(first_file(&engine, Queue::Append), file);
    assert_survives(&engine, &fs);
    append_alone(&engine, 61..=70);
    engine.sync().unwrap();
    assert_survives(&engine, &fs);
}

#[test]
fn dead_files_go_although_what_lives_can_never_be_moved() {
    let mem = disk();
    let (engine, file) = with_dead_files(&mem);
    drop(engine);
    let (fs, engine) = faulty(&mem);
    leave_no_space_to_move(&fs);
    for _ in 0..3 {
        let error = engine.purge_expired_files().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(first_file(&engine, Queue::Append), file);
        assert_survives(&engine, &mem);
    }
    assert_goes_on(&fs, &engine, &mem);
}

#[test]
fn files_stay_whose_removals_find_no_space() {
    let mem = disk();
    let (engine, _) = with_dead_files(&mem);
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .unwrap();
    drop(engine);
    let (fs, engine) = faulty(&mem);
    let mut batch = LogBatch::default();
    batch.delete(2, b"key".to_vec());
    engine.write(&mut batch, false).unwrap();
    let first = first_file(&engine, Queue::Append);
    append_alone(&engine, 61..=120);
    leave_no_space_to_move(&fs);
    for _ in 0..3 {
        let error = engine.purge_expired_files().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        engine.purge_all_stale().unwrap_err();
        assert_eq!(first_file(&engine, Queue::Append), first);
        assert_survives(&engine, &mem);
    }
    assert_goes_on(&fs, &engine, &mem);
}

#[test]
fn who_is_to_compact_is_told_although_the_disk_is_full() {
    let fs = disk();
    let engine = open(&fs, larger()).unwrap();
    put_key(&engine);
    entries(&engine, 3, 1, 40);
    append_alone(&engine, 1..=60);
    leave(&fs, 0);
    let (mut told, mut asked) = (0, 0);
    for _ in 0..6 {
        match engine.purge_expired_files() {
            Ok(groups) => {
                assert_eq!(groups, [3]);
                asked += 1;
            }
            Err(e) => {
                is_told_rightly(&fs, &e);
                told += 1;
            }
        }
    }
    assert_eq!((told, asked), (3, 3));
}

fn is_told_rightly(fs: &MemFileSystem, told: &Error) {
    assert_eq!(told.kind(), ErrorKind::NoSpace, "{told}");
    assert_eq!(spares(fs), 0, "there was space: {told}");
}

#[test]
fn whoever_finds_no_space_finds_no_spare_file_either() {
    let mut rng = Rng::new(Rng::seed_or(11));
    let fs = disk();
    let mut engine = open(&fs, larger()).unwrap();
    let mut model = Model::new();
    let mut refused = [0; 2];
    for step in 0..6000 {
        if step > 1000 && rng.chance(1, 8) {
            leave(&fs, 0);
        }
        let mut next = model.clone();
        let mut batch = random_batch(&mut rng, &mut next, 0);
        match engine.write(&mut batch, rng.chance(1, 3)) {
            Ok(_) => model = next,
            Err(e) => {
                is_told_rightly(&fs, &e);
                refused[0] += 1;
                leave(&fs, 1 + rng.below(4));
            }
        }
        if step % 40 == 0 {
            leave(&fs, 0);
            let purged = match rng.chance(1, 2) {
                true => engine.rewrite_append_queue(None, RewriteSteps::All),
                false => engine.purge_expired_files().map(drop),
            };
            if let Err(e) = purged {
                is_told_rightly(&fs, &e);
                refused[1] += 1;
            }
        }
        if step % 200 == 0 {
            assert_eq!(content(&engine), model);
            drop(engine);
            leave(&fs, 4);
            engine = open(&fs, larger()).unwrap();
            assert_eq!(content(&engine), model);
        }
    }
    assert!(refused.iter().all(|n| *n > 0), "{refused:?}");
}
