//! Which files a purge empties, and how fast: no more of the append queue than it must, and of the rewrite queue those first in which
//! nothing lives.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_env::{
    Clock as _, Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, PowerCut,
};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue, RewriteSteps};

use crate::model::{Model, content, dir, disk, open_with, options};
use crate::purge::{FILLER, command, delete, entries, first_file, push_out, put};

/// Each key fills a file.
fn fill(engine: &Engine, groups: std::ops::Range<u64>) {
    groups.for_each(|group| put(engine, group, &"k".repeat(700)));
}

#[test]
fn as_much_is_emptied_as_is_asked_for() {
    let moved = |ratio, files: u64| {
        let options = Options {
            purge_threshold: 16 * 700,
            purge_headroom_ratio: ratio,
            ..options()
        };
        let engine = open_with(&disk(), &options).unwrap();
        fill(&engine, 1..files + 1);
        let (first, last) = engine.file_span(Queue::Append).unwrap();
        assert_eq!((first, last), (1, files));
        assert_eq!(engine.purge_expired_files().unwrap(), []);
        let moved = engine.metrics().purge_groups_moved;
        assert_eq!(first_file(&engine, Queue::Append), moved + 1);
        moved
    };
    assert_eq!(moved(0.0, 16), 0, "not above the threshold");
    assert_eq!(moved(0.0, 17), 1);
    assert_eq!(moved(1.0 / 16.0, 17), 2);
    assert_eq!(moved(1.0 / 16.0, 30), 15);
    assert_eq!(moved(0.25, 20), 8);
    // As raft-engine: seven tenths, and one.
    assert_eq!(moved(1.0, 20), 15);
    assert_eq!(moved(0.9, 20), 15);
    assert_eq!(moved(0.0, 100), 71);
}

#[test]
fn a_purge_keeps_to_its_rate() {
    let seconds = |rate| {
        let fs: Arc<dyn FileSystem> = Arc::new(disk());
        let clock = Arc::new(ManualClock::new());
        let options = Options {
            purge_rate_bytes_per_sec: rate,
            ..options()
        };
        let engine =
            Engine::open_with_clock(&fs, dir(), options, Vec::new(), clock.clone()).unwrap();
        fill(&engine, 1..30);
        let before = clock.now_micros();
        engine.purge_expired_files().unwrap();
        let moved = engine.metrics().background_append_bytes.sum() as u64;
        assert!(moved > 14_000, "{moved}");
        (clock.now_micros() - before, moved)
    };
    assert_eq!(seconds(0).0, 0);
    let (micros, moved) = seconds(1000);
    let expected = Duration::from_secs(moved / 1000).as_micros() as u64;
    assert!(
        (expected * 8 / 10..expected * 12 / 10).contains(&micros),
        "{micros} {moved}"
    );
}

/// The rewrite queue is never written anew.
fn only_drops() -> Options {
    Options {
        purge_rewrite_garbage_ratio: 1.0,
        ..options()
    }
}

/// Moves all that the append queue has to a new file of the rewrite queue.
fn move_all(engine: &Engine) {
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .unwrap();
}

/// What comes to the rewrite queue from here on stands in another file.
fn end_rewritten(engine: &Engine) -> u64 {
    let (_, last) = engine.file_span(Queue::Rewrite).unwrap();
    while engine.file_span(Queue::Rewrite).unwrap().1 == last {
        fill(engine, FILLER..FILLER + 1);
        move_all(engine);
    }
    last
}

/// A directory in whose rewrite queue all but the newest file is dead.
fn with_dead_files() -> (MemFileSystem, Model) {
    let fs = disk();
    let engine = open_with(&fs, &only_drops()).unwrap();
    for round in 0..4_u64 {
        for group in 1..6 {
            entries(&engine, group, 1 + 20 * round, 20);
            put(&engine, group, "key");
        }
        move_all(&engine);
        for group in 1..6 {
            engine.compact_to(group, 1 + 20 * round).unwrap();
        }
    }
    engine.sync().unwrap();
    let (first, last) = engine.file_span(Queue::Rewrite).unwrap();
    assert!(last - first > 3, "{first} {last}");
    let model = content(&engine);
    drop(engine);
    (fs, model)
}

#[test]
fn dead_files_of_the_rewrite_queue_go_and_nothing_is_written_for_it() {
    let (fs, model) = with_dead_files();
    let engine = open_with(&fs, &only_drops()).unwrap();
    let (first, last) = engine.file_span(Queue::Rewrite).unwrap();
    engine.purge_expired_files().unwrap();
    let (left, end) = engine.file_span(Queue::Rewrite).unwrap();
    assert!(
        left > first + 2 && end == last,
        "{first} {left} {end} {last}"
    );
    assert_eq!(engine.metrics().background_rewrite_bytes.count(), 0);
    assert_eq!(engine.metrics().files_deleted.rewrite, left - first);
    assert_eq!(content(&engine), model);
    drop(engine);
    let engine = open_with(&fs, &only_drops()).unwrap();
    assert_eq!(content(&engine), model);
}

#[test]
fn a_dead_file_that_cannot_be_deleted_does_not_keep_the_append_queue() {
    for kind in [OpKind::Remove, OpKind::Sync] {
        let (fs, mut model) = with_dead_files();
        let fs = FaultFileSystem::over_memory(fs);
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let engine = Engine::open(&arc, dir(), only_drops()).unwrap();
        let first = first_file(&engine, Queue::Append);
        // Nothing but the last one lives, and is in the newest file.
        for _ in 0..12 {
            fill(&engine, FILLER..FILLER + 1);
        }
        let expected = content(&engine);
        fs.faults()
            .add(Fault::io().on(&[kind]).path_with(".rewrite").forever());
        let error = engine.purge_expired_files().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        let is_purged = first_file(&engine, Queue::Append) > first + 3;
        // After a failed sync nobody knows what the rewrite queue has.
        assert_eq!(is_purged, kind == OpKind::Remove);
        assert_eq!(content(&engine), expected);
        drop(engine);
        fs.faults().clear();
        let engine = Engine::open(&arc, dir(), only_drops()).unwrap();
        let mut found = content(&engine);
        assert_eq!(found, expected);
        found.remove(&FILLER);
        model.remove(&FILLER);
        assert_eq!(found, model);
    }
}

#[test]
fn a_power_cut_while_dead_files_go_loses_nothing() {
    let (fs, model) = with_dead_files();
    for calls in 0.. {
        let disk = fs.fork();
        let engine = open_with(&disk, &only_drops()).unwrap();
        disk.crash_after(calls);
        let is_done = engine.purge_expired_files().is_ok();
        drop(engine);
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: calls },
            PowerCut::Names { seed: calls },
        ] {
            let engine = open_with(&disk.crash(cut), &only_drops()).unwrap();
            assert_eq!(content(&engine), model, "{calls} {cut:?}");
            engine.purge_expired_files().unwrap();
            assert_eq!(content(&engine), model, "{calls} {cut:?}");
        }
        if is_done {
            assert!(calls > 3);
            break;
        }
    }
}

#[test]
fn files_do_not_go_for_a_removal_that_a_power_cut_may_take_back() {
    for calls in 0.. {
        let fs = disk();
        let engine = open_with(&fs, &only_drops()).unwrap();
        entries(&engine, 1, 1, 31);
        move_all(&engine);
        end_rewritten(&engine);
        engine.sync().unwrap();
        let before = content(&engine);
        let mut batch = LogBatch::default();
        batch.add_command(1, Command::Clean);
        batch.put(2, b"a".to_vec(), b"b".to_vec()).unwrap();
        engine.write(&mut batch, false).unwrap();
        let after = content(&engine);
        fs.crash_after(calls);
        let is_done = engine.purge_expired_files().is_ok();
        let disk = fs.crash(PowerCut::DropUnsynced);
        let found = content(&open_with(&disk, &only_drops()).unwrap());
        assert!(found == before || found == after, "{calls}: {found:?}");
        if is_done {
            assert!(first_file(&engine, Queue::Rewrite) > 1);
            break;
        }
    }
}

#[test]
fn files_do_not_go_for_a_copy_that_a_power_cut_may_take_back() {
    let (fs, model) = with_dead_files();
    let mut dropped = 0;
    for calls in 0.. {
        let disk = fs.fork();
        let engine = open_with(&disk, &only_drops()).unwrap();
        disk.crash_after(calls);
        let is_done = engine.rewrite_rewrite_queue().is_ok();
        drop(engine);
        // The process dies, and what it has written is read.
        let disk = disk.crash(PowerCut::KeepAll);
        let engine = open_with(&disk, &only_drops()).unwrap();
        let (first, last) = engine.file_span(Queue::Rewrite).unwrap();
        engine.purge_expired_files().unwrap();
        dropped = dropped.max(first_file(&engine, Queue::Rewrite) - first);
        let engine = open_with(&disk.crash(PowerCut::DropUnsynced), &only_drops()).unwrap();
        assert_eq!(content(&engine), model, "{calls} {first} {last}");
        if is_done {
            break;
        }
    }
    assert!(dropped > 4, "{dropped}");
}

#[test]
fn a_group_stays_whose_files_have_gone() {
    let fs = disk();
    let engine = open_with(&fs, &only_drops()).unwrap();
    // Each of them is there by what stands in the first file.
    for group in 1..4 {
        command(&engine, group, Command::Compact { index: 1 });
    }
    move_all(&engine);
    let last = end_rewritten(&engine);
    // And now by what stands in the append queue, but for group 3, which keeps the file.
    put(&engine, 1, "a");
    put(&engine, 2, "a");
    engine.purge_expired_files().unwrap();
    assert_eq!(first_file(&engine, Queue::Rewrite), 1);
    command(&engine, 3, Command::Clean);
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Rewrite) > last);
    delete(&engine, 1, "a");
    let mut expected = content(&engine);
    assert_eq!(expected.len(), 3);
    for _ in 0..2 {
        push_out(&engine);
        let mut found = content(&open_with(&fs.fork(), &only_drops()).unwrap());
        found.remove(&FILLER);
        expected.remove(&FILLER);
        assert_eq!(found, expected);
    }
}

/// A directory whose rewrite queue has an atomic group over several files, of which only the end lives, and more behind it.
fn with_atomic_group() -> (MemFileSystem, Model, (u64, u64)) {
    let fs = disk();
    let engine = open_with(&fs, &only_drops()).unwrap();
    for round in 0..8 {
        entries(&engine, 1, 1 + round * 30, 30);
        move_all(&engine);
    }
    engine.rewrite_rewrite_queue().unwrap();
    let files = engine.file_span(Queue::Rewrite).unwrap();
    assert!(files.1 > files.0 + 2, "{files:?}");
    end_rewritten(&engine);
    engine.compact_to(1, 239).unwrap();
    engine.sync().unwrap();
    let model = content(&engine);
    drop(engine);
    (fs, model, files)
}

#[test]
fn an_atomic_group_goes_as_a_whole() {
    let (fs, mut model, (first, last)) = with_atomic_group();
    for _ in 0..3 {
        let engine = open_with(&fs, &only_drops()).unwrap();
        assert_eq!(content(&engine), model);
        engine.purge_expired_files().unwrap();
        assert_eq!(content(&engine), model);
        assert_eq!(first_file(&engine, Queue::Rewrite), first);
    }
    let engine = open_with(&fs, &only_drops()).unwrap();
    command(&engine, 1, Command::Clean);
    model.remove(&1);
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Rewrite) > last);
    drop(engine);
    assert_eq!(content(&open_with(&fs, &only_drops()).unwrap()), model);
}

#[test]
fn an_atomic_group_that_was_just_written_goes_as_a_whole() {
    let fs = disk();
    let engine = open_with(&fs, &only_drops()).unwrap();
    for round in 0..8 {
        entries(&engine, 1, 1 + round * 30, 30);
        move_all(&engine);
    }
    engine.rewrite_rewrite_queue().unwrap();
    let (first, _) = engine.file_span(Queue::Rewrite).unwrap();
    end_rewritten(&engine);
    engine.compact_to(1, 239).unwrap();
    engine.purge_expired_files().unwrap();
    assert_eq!(first_file(&engine, Queue::Rewrite), first);
    let model = content(&engine);
    drop(engine);
    assert_eq!(content(&open_with(&fs, &only_drops()).unwrap()), model);
}
