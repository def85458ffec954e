//! The disk runs full.

use std::sync::Arc;

use orogen_base::{Error, ErrorKind, Result};
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, RewriteSteps};
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, options, random_batch};

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
