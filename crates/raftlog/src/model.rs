//! The write queue under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! Three threads write batches, two of them with a sync: (1) each is answered; (2) a thread reads what it wrote; (3) a directory that is opened
//! again has the same, so what was applied is in the files, in that order.
//!
//! Two threads sleep in a room: (5) each is woken.
//!
//! Two threads write and do not wait for syncs: (4) each is told once, in the order of its writes, before the engine is closed.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;

use orogen_base::sync::atomic::{AtomicBool, Ordering};
use orogen_base::sync::{Mistake, Mutex, explore, must_find, thread};
use orogen_env::{FileSystem, MemFileSystem, Room};

use crate::raw::{Engine, LogBatch, Options};

const THREADS: u64 = 3;
/// A group whose keys all threads write.
const SHARED: u64 = 9;

fn open(fs: &MemFileSystem) -> Engine {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options = Options {
        target_file_size: 200,
        ..Options::default()
    };
    Engine::open(&fs, Path::new("/log"), options).unwrap()
}

fn write(engine: &Engine, group: u64, index: u64) {
    let mut batch = LogBatch::default();
    let entry = vec![group as u8; index as usize];
    batch.add_entries(group, index, &[&entry]).unwrap();
    batch
        .put(SHARED, b"last".to_vec(), vec![group as u8, index as u8])
        .unwrap();
    engine.write(&mut batch, group < 3 && index == 2).unwrap();
    assert_eq!(
        engine.get_entry(group, index).unwrap(),
        Some(entry),
        "own entry is not found"
    );
}

fn turns() {
    let fs = MemFileSystem::new();
    let engine = Arc::new(open(&fs));
    let threads = [1, 2, 3].map(|group| {
        let engine = engine.clone();
        let builder = thread::Builder::new().name("model".to_owned());
        let body = move || {
            for index in 1..=3 {
                write(&engine, group, index);
            }
        };
        builder.spawn(body).unwrap()
    });
    for thread in threads {
        thread.join().unwrap();
    }
    let last = engine.get(SHARED, b"last");
    assert_eq!(last.as_ref().map(|value| value[1]), Some(3));
    drop(engine);
    let engine = open(&fs);
    for group in 1..=THREADS {
        assert_eq!(engine.last_index(group), Some(3));
    }
    assert_eq!(
        engine.get(SHARED, b"last"),
        last,
        "another order in the file"
    );
}

fn told_later() {
    let fs = MemFileSystem::new();
    let engine = Arc::new(open(&fs));
    let told = Arc::new(Mutex::new(Vec::new()));
    let threads = [1, 2].map(|group: u64| {
        let (engine, told) = (engine.clone(), told.clone());
        let builder = thread::Builder::new().name("model".to_owned());
        let body = move || {
            for index in 1..=2 {
                let mut batch = LogBatch::default();
                batch.add_entries(group, index, &[b"entry"]).unwrap();
                let told = told.clone();
                let on_durable = move |synced: orogen_base::Result<()>| {
                    synced.unwrap();
                    told.lock().push((group, index));
                };
                engine.write_async(&mut batch, on_durable).unwrap();
            }
        };
        builder.spawn(body).unwrap()
    });
    for thread in threads {
        thread.join().unwrap();
    }
    drop(engine);
    let told = told.lock();
    for group in [1, 2] {
        let of_group = told.iter().filter(|(of, _)| *of == group);
        assert!(of_group.map(|(_, index)| *index).eq([1, 2]), "{:?}", *told);
    }
}

fn woken_together() {
    let room = Arc::new(Room::default());
    let set = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let threads = [0, 1].map(|n| {
        let (room, set) = (room.clone(), set.clone());
        let builder = thread::Builder::new().name("model".to_owned());
        let body = move || room.wait(NonZeroU32::MIN, || set[n].load(Ordering::Acquire));
        builder.spawn(body).unwrap()
    });
    for flag in set.iter() {
        flag.store(true, Ordering::Release);
        room.wake(NonZeroU32::MIN);
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn who_waits_in_a_room_is_woken() {
    explore("rooms", woken_together);
}

#[test]
fn holds() {
    explore("raft log", turns);
}

#[test]
fn who_does_not_wait_is_told() {
    explore("raft log, told later", told_later);
}

#[test]
fn mistakes_are_found() {
    for mistake in [Mistake::KeepTheLead, Mistake::AnswerBeforeApply] {
        must_find(mistake, turns);
    }
    must_find(Mistake::WakeUncounted, woken_together);
}
