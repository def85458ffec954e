//! What purge promises: what is gone stays gone, what lives stays, and who is asked to compact.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::ErrorKind;
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue, RecoveryMode, RewriteSteps};
use orogen_testkit::rng::Rng;

use crate::model::{content, dir, disk, open, open_with, options, random_batch};

pub(crate) fn first_file(engine: &Engine, queue: Queue) -> u64 {
    engine.file_span(queue).map_or(0, |(first, _)| first)
}

pub(crate) fn entries(engine: &Engine, group: u64, first: u64, count: u64) {
    let mut batch = LogBatch::default();
    let bytes: Vec<String> = (first..first + count)
        .map(|i| format!("{group}-{i}"))
        .collect();
    batch.add_entries(group, first, &bytes).unwrap();
    engine.write(&mut batch, false).unwrap();
}

/// A group that others have nothing to do with.
pub(crate) const FILLER: u64 = 1000;

/// Writes and purges until the append queue has nothing of what was there before.
pub(crate) fn push_out(engine: &Engine) {
    let (_, last) = engine.file_span(Queue::Append).unwrap();
    for _ in 0..1000 {
        if first_file(engine, Queue::Append) > last {
            return;
        }
        let mut batch = LogBatch::default();
        batch.put(FILLER, b"k".to_vec(), vec![1; 300]).unwrap();
        engine.write(&mut batch, false).unwrap();
        engine.purge_expired_files().unwrap();
    }
    panic!(
        "file {last} is not deleted: {:?}",
        engine.file_span(Queue::Append)
    );
}

/// Does each of `steps` to an engine, with everything pushed out of the append queue in between; what
/// is seen must be the same before and behind, and when opened again.
fn check(steps: &[&dyn Fn(&Engine)]) -> MemFileSystem {
    let fs = disk();
    let mut engine = open(&fs).unwrap();
    for (at, step) in steps.iter().enumerate() {
        step(&engine);
        let mut expected = content(&engine);
        expected.remove(&FILLER);
        push_out(&engine);
        for opened in 0..3 {
            let mut found = content(&engine);
            found.remove(&FILLER);
            assert_eq!(found, expected, "step {at}, opened {opened} times");
            drop(engine);
            engine = open(&fs).unwrap();
            if opened == 1 {
                push_out(&engine);
            }
        }
    }
    drop(engine);
    fs
}

pub(crate) fn put(engine: &Engine, group: u64, key: &str) {
    let mut batch = LogBatch::default();
    batch.put(group, key.into(), b"value".to_vec()).unwrap();
    engine.write(&mut batch, false).unwrap();
}

pub(crate) fn delete(engine: &Engine, group: u64, key: &str) {
    let mut batch = LogBatch::default();
    batch.delete(group, key.into());
    engine.write(&mut batch, false).unwrap();
}

pub(crate) fn command(engine: &Engine, group: u64, command: Command) {
    let mut batch = LogBatch::default();
    batch.add_command(group, command);
    engine.write(&mut batch, false).unwrap();
}

#[test]
fn compacted_entries_do_not_come_back() {
    check(&[
        &|e| entries(e, 1, 1, 10),
        &|e| assert_eq!(e.compact_to(1, 6).unwrap(), 5),
        &|e| entries(e, 1, 11, 2),
        &|e| assert_eq!(e.compact_to(1, 9).unwrap(), 3),
        &|e| assert_eq!(e.compact_to(1, 100).unwrap(), 4),
    ]);
}

#[test]
fn deleted_keys_do_not_come_back() {
    check(&[
        &|e| ["a", "b", "c"].iter().for_each(|k| put(e, 1, k)),
        &|e| delete(e, 1, "a"),
        &|e| {
            put(e, 1, "b");
            delete(e, 1, "b");
            put(e, 1, "a");
        },
        &|e| delete(e, 1, "a"),
        &|e| delete(e, 1, "c"),
    ]);
}

#[test]
fn cleaned_groups_do_not_come_back_and_take_nothing_from_their_successors() {
    let clean = |e: &Engine| command(e, 1, Command::Clean);
    check(&[
        &|e| {
            entries(e, 1, 1, 10);
            put(e, 1, "a");
        },
        &clean,
        &|e| {
            entries(e, 1, 5, 3);
            put(e, 1, "b");
        },
        &|e| {
            clean(e);
            entries(e, 1, 2, 2);
        },
        &|e| {
            clean(e);
            put(e, 1, "a");
            clean(e);
        },
    ]);
}

#[test]
fn entries_that_were_written_over_do_not_come_back() {
    check(&[
        &|e| entries(e, 1, 1, 10),
        // The shadow ends at 10, the truth at 6, and then nowhere.
        &|e| {
            entries(e, 1, 5, 2);
            assert_eq!(e.compact_to(1, 7).unwrap(), 6);
        },
        &|e| entries(e, 1, 3, 9),
        &|e| entries(e, 1, 8, 1),
        &|e| entries(e, 1, 9, 1),
    ]);
}

#[test]
fn empty_groups_stay() {
    check(&[
        &|e| command(e, 1, Command::Compact { index: 7 }),
        &|e| delete(e, 2, "nothing"),
        &|e| put(e, 3, "a"),
        &|e| delete(e, 3, "a"),
        &|e| command(e, 1, Command::Clean),
    ]);
}

#[test]
fn nothing_is_done_below_the_thresholds() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let options = Options {
        purge_threshold: 100 * 700,
        ..options()
    };
    let engine = Engine::open(&arc, dir(), options).unwrap();
    for step in 1..100 {
        entries(&engine, step % 7, 1 + step / 7, 10);
        engine.sync().unwrap();
        let ops = fs.op_count();
        assert_eq!(engine.purge_expired_files().unwrap(), []);
        assert_eq!(fs.op_count(), ops);
    }
    assert_eq!(engine.file_span(Queue::Rewrite), None);
}

#[test]
fn options_that_cannot_be_are_refused() {
    let arc: Arc<dyn FileSystem> = Arc::new(disk());
    for options in [
        Options {
            purge_threshold: 699,
            ..options()
        },
        Options {
            purge_rewrite_garbage_ratio: f64::NAN,
            ..options()
        },
        Options {
            purge_rewrite_garbage_ratio: -0.1,
            ..options()
        },
    ] {
        let error = Engine::open(&arc, dir(), options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn who_has_many_old_entries_is_asked_nine_times() {
    let engine = open(&disk()).unwrap();
    entries(&engine, 1, 1, 40);
    entries(&engine, 2, 1, 31);
    for _ in 0..12 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    let mut answers = Vec::new();
    while first_file(&engine, Queue::Append) == 1 {
        answers.push(engine.purge_expired_files().unwrap());
        assert!(answers.len() < 20);
    }
    assert_eq!(answers, vec![vec![1]; 10], "the last time it is moved, too");
    assert_eq!(engine.last_index(1), Some(40));
    // Those that lie in the rewrite queue count as old, and as asked for the first time.
    for _ in 0..12 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    assert_eq!(engine.purge_expired_files().unwrap(), [1]);
}

#[test]
fn who_has_many_young_entries_is_left_alone() {
    let engine = open(&disk()).unwrap();
    put(&engine, 2, "old");
    for _ in 0..4 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    // In the part that would move, but not among the oldest files.
    entries(&engine, 1, 1, 40);
    let (_, file) = engine.file_span(Queue::Append).unwrap();
    for _ in 0..7 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    assert_eq!(engine.purge_expired_files().unwrap(), []);
    assert_eq!(first_file(&engine, Queue::Append), file);
    // Now it is the oldest.
    assert_eq!(engine.purge_expired_files().unwrap(), [1]);
}

/// A directory whose rewrite queue is full of garbage beside large groups that live.
fn full_of_garbage() -> (MemFileSystem, crate::model::Model) {
    let fs = disk();
    let engine = open(&fs).unwrap();
    for round in 0..3 {
        for group in 1..4 {
            entries(&engine, group, 1 + 31 * round, 31);
            put(&engine, group, &format!("key {round}"));
        }
        for group in 10..200 {
            put(&engine, group, "of short life");
        }
        push_out(&engine);
    }
    for group in 10..200 {
        delete(&engine, group, "of short life");
        if group % 2 == 0 {
            command(&engine, group, Command::Clean);
        }
    }
    engine.sync().unwrap();
    let model = content(&engine);
    drop(engine);
    (fs, model)
}

#[test]
fn a_power_cut_while_the_rewrite_queue_is_written_anew_loses_nothing() {
    let (fs, model) = full_of_garbage();
    let mut files = 0;
    for calls in 0.. {
        let disk = fs.fork();
        let engine = open(&disk).unwrap();
        let before = engine.file_span(Queue::Rewrite).unwrap();
        disk.crash_after(calls);
        let purged = engine.purge_expired_files();
        let after = engine.file_span(Queue::Rewrite).unwrap();
        files = files.max(after.1 - before.1);
        drop(engine);
        for cut in [
            PowerCut::KeepAll,
            PowerCut::DropUnsynced,
            PowerCut::Torn { seed: calls },
            PowerCut::Names { seed: calls },
        ] {
            let disk = disk.crash(cut);
            for _ in 0..2 {
                let engine = open(&disk).unwrap();
                assert_eq!(content(&engine), model, "{calls} {cut:?}");
                // What was cut short is done again, over the atomic group that is in pieces.
                engine.purge_expired_files().unwrap();
                assert_eq!(content(&engine), model, "{calls} {cut:?}");
            }
        }
        if purged.is_ok() {
            assert!(after.0 > before.1, "the old files are deleted");
            break;
        }
    }
    assert!(files > 5, "groups lie over several files: {files}");
}

/// A directory whose oldest file holds something that a purge moves, and no other does.
fn with_old_key() -> MemFileSystem {
    let fs = disk();
    let engine = open(&fs).unwrap();
    entries(&engine, 1, 1, 3);
    put(&engine, 1, "old");
    for _ in 0..8 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    engine.close().unwrap();
    fs
}

#[test]
fn what_a_process_that_died_has_written_is_synced_before_files_are_deleted_for_it() {
    // The rewrite queue is not written anew: that would sync it.
    let open = |fs: &MemFileSystem| {
        let options = Options {
            purge_rewrite_threshold: Some(1 << 30),
            ..options()
        };
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        Engine::open(&fs, dir(), options)
    };
    for is_removal in [false, true] {
        let fs = with_old_key();
        if is_removal {
            let engine = open(&fs).unwrap();
            push_out(&engine);
            delete(&engine, 1, "old");
            // Nothing is to be moved.
            delete(&engine, FILLER, "k");
            for _ in 0..8 {
                put(&engine, FILLER, &"k".repeat(700));
            }
            engine.close().unwrap();
        }
        for calls in 0.. {
            let disk = fs.fork();
            let engine = open(&disk).unwrap();
            let expected = content(&engine);
            let first = first_file(&engine, Queue::Append);
            disk.crash_after(calls);
            let is_done = engine.purge_expired_files().is_ok();
            drop(engine);
            let disk = disk.crash(PowerCut::KeepAll);
            let engine = open(&disk).unwrap();
            engine.purge_expired_files().unwrap();
            assert!(first_file(&engine, Queue::Append) > first);
            let engine = open(&disk.crash(PowerCut::DropUnsynced)).unwrap();
            assert_eq!(content(&engine), expected, "{is_removal} {calls}");
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn a_file_that_is_gone_already_does_not_stop_a_purge() {
    let fs = FaultFileSystem::over_memory(with_old_key());
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    let expected = content(&engine);
    fs.faults()
        .add(Fault::io().on(&[OpKind::Remove]).after_effect());
    assert!(engine.purge_expired_files().is_err());
    assert_eq!(first_file(&engine, Queue::Append), 1);
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > 1);
    assert_eq!(content(&engine), expected);
}

#[test]
fn what_a_failed_sync_has_dropped_is_not_read_again() {
    let disk = with_old_key();
    let fs = FaultFileSystem::over_memory(disk.clone());
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    let expected = content(&engine);
    // The first sync is that of the new file's header.
    let fault = Fault::io().on(&[OpKind::Sync]).path_with(".rewrite").nth(2);
    fs.faults().add(fault);
    assert_eq!(
        engine.purge_expired_files().unwrap_err().kind(),
        ErrorKind::Io
    );
    assert_eq!(
        engine.purge_expired_files().unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    // Writers have nothing to do with it.
    put(&engine, FILLER, "k");
    drop(engine);
    let engine = open(&disk).unwrap();
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > 1);
    let engine = open(&disk.crash(PowerCut::DropUnsynced)).unwrap();
    let mut found = content(&engine);
    found.insert(FILLER, expected[&FILLER].clone());
    assert_eq!(found, expected);
}

#[test]
fn files_are_not_deleted_for_a_removal_that_a_power_cut_may_take_back() {
    let fs = with_old_key();
    let engine = open(&fs).unwrap();
    let before = content(&engine);
    let mut batch = LogBatch::default();
    batch.add_command(1, Command::Clean);
    batch.put(2, b"a".to_vec(), b"b".to_vec()).unwrap();
    engine.write(&mut batch, false).unwrap();
    let after = content(&engine);
    // There is nothing to move.
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > 1);
    assert_eq!(engine.file_span(Queue::Rewrite), None);
    let found = content(&open(&fs.crash(PowerCut::DropUnsynced)).unwrap());
    assert!(found == before || found == after);
}

#[test]
fn damage_of_the_rewrite_queue_is_tolerated_as_the_mode_says() {
    let (fs, model) = full_of_garbage();
    let open_as = |fs: &MemFileSystem, mode| {
        let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let options = Options {
            recovery_mode: mode,
            ..options()
        };
        Engine::open(&arc, dir(), options)
    };
    let (first, last) = open(&fs).unwrap().file_span(Queue::Rewrite).unwrap();
    assert!(first < last);
    let engine = open_as(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(content(&engine), model);
    drop(engine);
    let damage = |seq: u64, change: &dyn Fn(&mut Vec<u8>)| {
        let fs = fs.fork();
        let path = dir().join(format!("{seq:016}.rewrite"));
        let mut bytes = read_file(&fs, &path).unwrap();
        change(&mut bytes);
        write_file(&fs, &path, &bytes).unwrap();
        fs
    };
    let flip = |bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1;
    for (seq, tail) in [(first, false), (last, true)] {
        let fs = damage(seq, &flip);
        assert!(open_as(&fs, RecoveryMode::AbsoluteConsistency).is_err());
        let opened = open_as(&fs, RecoveryMode::TolerateTailCorruption);
        assert_eq!(opened.is_ok(), tail);
        drop(opened);
        let engine = open_as(&fs, RecoveryMode::TolerateAnyCorruption).unwrap();
        engine.purge_expired_files().unwrap();
    }
    // What a crash leaves behind the last record.
    let fs = damage(last, &|bytes| bytes.extend([0; 100]));
    let engine = open_as(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(content(&engine), model);
}

#[test]
fn an_entry_that_cannot_be_read_stops_a_purge_and_loses_nothing() {
    let fs = disk();
    let engine = open(&fs).unwrap();
    entries(&engine, 1, 1, 5);
    put(&engine, 2, "a");
    for _ in 0..8 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    let path = Path::new("/raft/log/0000000000000001.raftlog");
    let mut bytes = read_file(&fs, path).unwrap();
    let good = bytes.clone();
    bytes[69 + 16] ^= 1;
    write_file(&fs, path, &bytes).unwrap();
    for _ in 0..3 {
        let error = engine.purge_expired_files().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(first_file(&engine, Queue::Append), 1);
    }
    write_file(&fs, path, &good).unwrap();
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > 1);
    assert_eq!(engine.last_index(1), Some(5));
}

/// Changes bytes wherever they first stand in files of a queue, or changes them back; the numbers of those files.
fn change(fs: &MemFileSystem, engine: &Engine, queue: Queue, wanted: &[u8], to: &[u8]) -> Vec<u64> {
    assert_eq!(wanted.len(), to.len());
    let (first, last) = engine.file_span(queue).unwrap();
    let extension = match queue {
        Queue::Append => "raftlog",
        Queue::Rewrite => "rewrite",
    };
    let mut changed = Vec::new();
    for seq in first..=last {
        let path = dir().join(format!("{seq:016}.{extension}"));
        let mut bytes = read_file(fs, &path).unwrap();
        let mut found = bytes.windows(wanted.len());
        if let Some(at) = found.position(|found| found == wanted) {
            bytes[at..at + to.len()].copy_from_slice(to);
            write_file(fs, &path, &bytes).unwrap();
            changed.push(seq);
        }
    }
    changed
}

#[test]
fn an_entry_that_cannot_be_read_keeps_no_other_group_and_no_older_file() {
    let fs = disk();
    let engine = open(&fs).unwrap();
    for _ in 0..4 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    for group in 1..4 {
        entries(&engine, group, 1, 5);
    }
    put(&engine, 2, "a");
    let (_, file) = engine.file_span(Queue::Append).unwrap();
    assert_eq!(file, 5);
    for _ in 0..8 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    let expected = content(&engine);
    assert_eq!(
        change(&fs, &engine, Queue::Append, b"1-11-2", b"1-11-3").len(),
        1
    );
    for _ in 0..3 {
        let error = engine.purge_expired_files().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(first_file(&engine, Queue::Append), file);
    }
    assert_eq!(
        change(&fs, &engine, Queue::Rewrite, b"2-12-2", b"2-12-2").len(),
        1
    );
    assert_eq!(
        change(&fs, &engine, Queue::Rewrite, b"3-13-2", b"3-13-2").len(),
        1
    );
    assert_eq!(
        change(&fs, &engine, Queue::Append, b"1-11-3", b"1-11-2").len(),
        1
    );
    assert_eq!(content(&engine), expected);
    let after = open(&fs.crash(PowerCut::DropUnsynced)).unwrap();
    assert_eq!(content(&after), expected);
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > file);
    assert_eq!(content(&engine), expected);
}

#[test]
fn of_a_group_that_cannot_be_read_what_lies_behind_stays_too() {
    let options = Options {
        batch_compression_threshold: 0,
        ..options()
    };
    let open = |fs: &MemFileSystem| open_with(fs, &options).unwrap();
    for damaged in 0..12 {
        let fs = disk();
        let engine = open(&fs);
        for round in 0..12 {
            for group in 1..4 {
                entries(&engine, group, 1001 + 30 * round, 30);
                put(&engine, group, &format!("key {round}"));
            }
        }
        let expected = content(&engine);
        let first = 1001 + 30 * damaged;
        let good = format!("2-{first}2-{}", first + 1);
        let bad = format!("2-{first}3-{}", first + 1);
        let (good, bad) = (good.as_bytes(), bad.as_bytes());
        let files = change(&fs, &engine, Queue::Append, good, bad);
        assert_eq!(files.len(), 1);
        let error = engine
            .rewrite_append_queue(None, RewriteSteps::All)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        for (group, is_moved) in [(1, true), (3, true), (2, damaged > 7)] {
            let entry = format!("{group}-1239{group}-1240");
            let entry = entry.as_bytes();
            let moved = change(&fs, &engine, Queue::Rewrite, entry, entry);
            assert_eq!(!moved.is_empty(), is_moved, "{damaged}: {group}");
        }
        // What was to be written together with it stays, too.
        let first = first_file(&engine, Queue::Append);
        assert!(
            (files[0] - 1..=files[0]).contains(&first),
            "{files:?} {first}"
        );
        for disk in [fs.fork(), fs.crash(PowerCut::DropUnsynced)] {
            let engine = open(&disk);
            assert_eq!(change(&disk, &engine, Queue::Append, bad, good).len(), 1);
            assert_eq!(content(&engine), expected, "{damaged}");
            engine
                .rewrite_append_queue(None, RewriteSteps::All)
                .unwrap();
            assert_eq!(content(&engine), expected, "{damaged}");
            let engine = open(&disk.crash(PowerCut::DropUnsynced));
            assert_eq!(content(&engine), expected, "{damaged}");
        }
    }
}

#[test]
fn who_is_to_compact_is_told_although_an_entry_cannot_be_read() {
    let fs = disk();
    let engine = open(&fs).unwrap();
    entries(&engine, 1, 1, 5);
    entries(&engine, 5, 1, 40);
    for _ in 0..12 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    assert_eq!(
        change(&fs, &engine, Queue::Append, b"1-11-2", b"1-11-3").len(),
        1
    );
    let is_moved = |engine: &Engine| {
        engine.file_span(Queue::Rewrite).is_some()
            && !change(&fs, engine, Queue::Rewrite, b"5-15-2", b"5-15-2").is_empty()
    };
    let (mut told, mut asked) = (0, 0);
    while !is_moved(&engine) {
        match engine.purge_expired_files() {
            Ok(groups) => {
                assert_eq!(groups, [5]);
                asked += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption);
                told += 1;
            }
        }
        assert!(told + asked < 30, "{told} {asked}");
    }
    assert_eq!((told, asked), (10, 9), "nine times before it is moved");
    assert_eq!(first_file(&engine, Queue::Append), 1);
}

/// [`full_of_garbage`], and dead files of the append queue, of which nothing is to be written.
fn with_dead_files(fs: &MemFileSystem) -> Engine {
    let open = |ratio| {
        let options = Options {
            purge_rewrite_garbage_ratio: ratio,
            ..options()
        };
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        Engine::open(&fs, dir(), options).expect("the disk is well")
    };
    let engine = open(1.0);
    push_out(&engine);
    drop(engine);
    let engine = open(0.3);
    for _ in 0..12 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    engine
}

#[test]
fn no_space_to_write_the_rewrite_queue_anew_does_not_keep_the_append_queue() {
    let (fs, _) = full_of_garbage();
    let engine = with_dead_files(&fs);
    let expected = content(&engine);
    let first = first_file(&engine, Queue::Append);
    let (first_rewritten, last) = engine.file_span(Queue::Rewrite).unwrap();
    let files = last - first_rewritten + 1;
    fs.set_capacity(1);
    engine.purge_expired_files().unwrap();
    assert!(first_file(&engine, Queue::Append) > first + 3);
    let (_, last) = engine.file_span(Queue::Rewrite).unwrap();
    // What has come free is for who writes: the rewrite queue waits until as much has gone as it has.
    let until = first + files;
    for _ in 0..4 {
        put(&engine, FILLER, &"k".repeat(700));
        engine.purge_expired_files().unwrap();
        assert_eq!(engine.file_span(Queue::Rewrite).unwrap().1, last);
    }
    assert_eq!(content(&engine), expected);
    fs.set_capacity(u64::MAX);
    let mut rounds = 0;
    while engine.file_span(Queue::Rewrite).unwrap().0 <= last {
        put(&engine, FILLER, &"k".repeat(700));
        engine.purge_expired_files().unwrap();
        rounds += 1;
        assert!(rounds < 1000);
    }
    assert!(first_file(&engine, Queue::Append) >= until);
    assert_eq!(content(&engine), expected);
    drop(engine);
    assert_eq!(content(&open(&fs).unwrap()), expected);
}

#[test]
fn the_rewrite_queue_is_written_anew_again_once_damaged_files_are_gone() {
    let (fs, _) = full_of_garbage();
    let engine = open(&fs).unwrap();
    damage_group_2(&fs, &engine);
    let (_, last) = engine.file_span(Queue::Rewrite).unwrap();
    let error = engine.purge_expired_files().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    // All that lives in the old files.
    command(&engine, 2, Command::Clean);
    command(&engine, 3, Command::Clean);
    push_out(&engine);
    assert!(first_file(&engine, Queue::Rewrite) > last);
    let written = || engine.metrics().background_rewrite_bytes.count();
    let before = written();
    for round in 0..6 {
        for group in 10..110 {
            put(&engine, group, "of short life");
        }
        // So that none of the files is dead.
        put(&engine, 200 + round, "of long life");
        push_out(&engine);
    }
    assert!(written() > before);
}

#[test]
fn a_rewriting_of_the_rewrite_queue_does_not_end_what_another_process_began() {
    let (fs, model) = full_of_garbage();
    let open_as = |fs: Arc<dyn FileSystem>, recovery_mode| {
        let options = Options {
            recovery_mode,
            ..options()
        };
        Engine::open(&fs, dir(), options).unwrap()
    };
    let mode = RecoveryMode::TolerateAnyCorruption;
    let newest = |engine: &Engine| engine.file_span(Queue::Rewrite).unwrap().1;
    let mut cut = 0;
    for calls in 0.. {
        // One dies when it has begun.
        let disk = fs.fork();
        let engine = open_as(Arc::new(disk.clone()), mode);
        let before = newest(&engine);
        disk.crash_after(calls);
        let is_done = engine.rewrite_rewrite_queue().is_ok();
        drop(engine);
        if is_done {
            break;
        }
        // The next one writes all, and dies before it deletes what was there.
        let disk = disk.crash(PowerCut::KeepAll);
        let faulty = FaultFileSystem::over_memory(disk.clone());
        let engine = open_as(Arc::new(faulty.clone()), mode);
        let begun = newest(&engine);
        let fault = Fault::io().on(&[OpKind::Remove, OpKind::Rename]);
        faulty.faults().add(fault.forever());
        engine.rewrite_rewrite_queue().unwrap_err();
        assert_eq!(content(&engine), model);
        drop(engine);
        if begun == before {
            continue;
        }
        // And its first record is damaged.
        for seq in begun..=begun + 1 {
            let path = dir().join(format!("{seq:016}.rewrite"));
            let disk = disk.fork();
            let mut bytes = read_file(&disk, &path).unwrap();
            if seq == begun && bytes.len() > 200 || bytes.len() < 100 {
                continue;
            }
            bytes[80] ^= 1;
            bytes[90] ^= 1;
            write_file(&disk, &path, &bytes).unwrap();
            let engine = open_as(Arc::new(disk), mode);
            assert_eq!(content(&engine), model, "{calls} {before} {begun} {seq}");
            cut += 1;
        }
    }
    assert!(cut > 3, "{cut}");
}

/// Damages the second entry of group 2 wherever it lies in the rewrite queue.
fn damage_group_2(fs: &MemFileSystem, engine: &Engine) {
    let (first, last) = engine.file_span(Queue::Rewrite).unwrap();
    let mut damaged = 0;
    for seq in first..=last {
        let path = dir().join(format!("{seq:016}.rewrite"));
        let mut bytes = read_file(fs, &path).unwrap();
        if let Some(at) = bytes.windows(6).position(|found| found == b"2-12-2") {
            bytes[at] ^= 1;
            write_file(fs, &path, &bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0);
}

#[test]
fn damage_in_the_rewrite_queue_does_not_keep_the_append_queue() {
    let (fs, _) = full_of_garbage();
    let engine = open(&fs).unwrap();
    damage_group_2(&fs, &engine);
    let mut told = 0;
    let (_, last) = engine.file_span(Queue::Append).unwrap();
    for n in 0..300_u64 {
        let mut batch = LogBatch::default();
        batch
            .put(FILLER, n.to_be_bytes()[7..].to_vec(), vec![1; 300])
            .unwrap();
        engine.write(&mut batch, false).unwrap();
        match engine.purge_expired_files() {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Corruption => told += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(first_file(&engine, Queue::Append) > last);
    assert!((1..5).contains(&told), "{told}");
    for group in 1..4 {
        let read = (1..94).map(|index| engine.get_entry(group, index));
        let unread = read.filter(|read| !matches!(read, Ok(Some(_)))).count();
        assert_eq!(unread > 0, group == 2, "{group}: {unread}");
    }
}

#[test]
fn groups_that_a_failed_purge_has_found_are_returned_by_the_next_one() {
    let (fs, _) = full_of_garbage();
    let engine = open(&fs).unwrap();
    damage_group_2(&fs, &engine);
    let error = engine.purge_expired_files().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    // What was compacted meanwhile need not be.
    engine.compact_to(1, 90).unwrap();
    command(&engine, 3, Command::Clean);
    assert_eq!(engine.purge_expired_files().unwrap(), [2]);
    let asked = engine.metrics().purge_groups_returned;
    assert_eq!(engine.purge_expired_files().unwrap(), []);
    assert_eq!((asked, engine.metrics().purge_groups_returned), (1, 1));
}

#[test]
fn a_purge_that_failed_has_asked_nobody() {
    let (fs, _) = full_of_garbage();
    let engine = open(&fs).unwrap();
    damage_group_2(&fs, &engine);
    // So that what comes is the oldest of the append queue.
    engine
        .rewrite_append_queue(None, RewriteSteps::All)
        .unwrap();
    entries(&engine, 5, 1, 40);
    let (_, file) = engine.file_span(Queue::Append).unwrap();
    for _ in 0..12 {
        put(&engine, FILLER, &"k".repeat(700));
    }
    let error = engine.purge_expired_files().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    let mut asked = 0;
    while first_file(&engine, Queue::Append) <= file {
        assert!(engine.purge_expired_files().unwrap().contains(&5));
        asked += 1;
        assert!(asked < 20);
    }
    assert_eq!(asked, 10, "the last time it is moved, too");
}

/// A directory after a random history, with tombstones due and entries that were written over, and what it holds.
fn with_history(seed: u64) -> (MemFileSystem, crate::model::Model) {
    let fs = disk();
    let options = Options {
        purge_rewrite_garbage_ratio: 1.0,
        ..options()
    };
    let engine = open_with(&fs, &options).unwrap();
    let mut rng = Rng::new(seed);
    let mut model = crate::model::Model::new();
    for step in 0..150 {
        let mut batch = random_batch(&mut rng, &mut model, 0);
        engine.write(&mut batch, false).unwrap();
        if step % 50 == 49 && step < 149 {
            engine
                .rewrite_append_queue(None, RewriteSteps::All)
                .unwrap();
        }
    }
    engine.close().unwrap();
    (fs, model)
}

#[test]
fn a_purge_that_can_write_only_so_much_loses_nothing() {
    let (mut tried, mut shortened) = (0, 0);
    let mut try_with =
        |(disk, model): &(MemFileSystem, crate::model::Model), call, fault: Fault, n| {
            let mem = disk.fork();
            let fs = FaultFileSystem::over_memory(mem.clone());
            let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let engine = Engine::open(&arc, dir(), options()).unwrap();
            fs.faults()
                .add(fault.path_with(".rewrite").nth(n).forever());
            let first = first_file(&engine, Queue::Append);
            let purged = match call {
                0 => engine.purge_expired_files().map(drop),
                1 => engine.rewrite_append_queue(None, RewriteSteps::All),
                _ => engine.purge_all_stale(),
            };
            if fs.faults().injected() == 0 {
                purged.unwrap();
                return false;
            }
            tried += 1;
            shortened += u64::from(first_file(&engine, Queue::Append) > first);
            assert_eq!(&content(&engine), model, "{purged:?}");
            drop(engine);
            for cut in [
                PowerCut::KeepAll,
                PowerCut::DropUnsynced,
                PowerCut::Torn { seed: n },
                PowerCut::Names { seed: n },
            ] {
                let mem = mem.crash(cut);
                for _ in 0..2 {
                    let engine = open(&mem).unwrap();
                    assert_eq!(&content(&engine), model, "{purged:?} {cut:?}");
                    engine.purge_expired_files().unwrap();
                    assert_eq!(&content(&engine), model, "{purged:?} {cut:?}");
                }
            }
            true
        };
    for seed in 0..6 {
        let history = with_history(Rng::seed_or(91) + seed);
        for fault in [
            Fault::no_space().on(&[OpKind::Append]).short(9),
            Fault::io().on(&[OpKind::Append, OpKind::Create]),
            Fault::io().on(&[OpKind::Sync]).after_effect(),
        ] {
            for call in 0..3 {
                let last = (1..).find(|n| !try_with(&history, call, fault.clone(), *n));
                assert!(last.is_some());
            }
        }
    }
    println!("{tried} purges failed, {shortened} of them deleted files");
    assert!(tried > 200 && shortened > 50, "{tried} {shortened}");
}

/// Counts a thread that has ended, however it did.
struct Done<'a>(&'a AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn threads_write_and_read_while_one_purges() {
    const WRITERS: u64 = 3;
    let fs = disk();
    let engine = open(&fs).unwrap();
    let done = AtomicU64::new(0);
    let is_running = || done.load(Ordering::SeqCst) < WRITERS;
    let models = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (engine, done) = (&engine, Done(&done));
                scope.spawn(move || {
                    let _done = done;
                    let mut rng = Rng::new(Rng::seed_or(71) + writer);
                    let mut model = crate::model::Model::new();
                    for _ in 0..400 {
                        let mut own = random_batch(&mut rng, &mut model, 10 * writer);
                        engine.write(&mut own, rng.chance(1, 20)).unwrap();
                        let found = crate::model::content_of(engine, 10 * writer);
                        assert_eq!(found, model, "own writes are seen");
                    }
                    model
                })
            })
            .collect();
        scope.spawn(|| {
            let mut rng = Rng::new(Rng::seed_or(72));
            while is_running() {
                let group = rng.below(10 * WRITERS);
                let (Some(first), Some(last)) =
                    (engine.first_index(group), engine.last_index(group))
                else {
                    continue;
                };
                let mut out = Vec::new();
                match engine.fetch_entries_to(group, first, last + 1, None, &mut out) {
                    Ok(n) => assert_eq!(n, out.len()),
                    // Compacted or cut off since then.
                    Err(e) => assert_ne!(e.kind(), ErrorKind::Corruption, "{e}"),
                }
                engine.get_entry(group, first).unwrap();
            }
        });
        scope.spawn(|| {
            while is_running() {
                engine.purge_expired_files().unwrap();
            }
        });
        let joined = writers.into_iter().map(|w| w.join().unwrap());
        joined.collect::<Vec<_>>()
    });
    let mut expected = crate::model::Model::new();
    for mut model in models {
        expected.append(&mut model);
    }
    assert_eq!(content(&engine), expected);
    assert!(first_file(&engine, Queue::Append) > 10);
    // The purges beside the writers may have been few.
    let mut rounds = 0;
    while first_file(&engine, Queue::Rewrite) == 1 {
        push_out(&engine);
        rounds += 1;
        assert!(rounds < 100);
    }
    let expected = content(&engine);
    drop(engine);
    assert_eq!(content(&open(&fs).unwrap()), expected);
}

#[test]
fn an_oldest_file_that_has_lost_what_it_had_is_damage() {
    for is_cut in [true, false] {
        let fs = disk();
        let engine = open(&fs).unwrap();
        let mut index = 1;
        while engine.file_span(Queue::Append).unwrap().1 < 4 {
            entries(&engine, 1, index, 10);
            index += 10;
        }
        drop(engine);
        let file = dir().join(format!("{:016}.raftlog", 1));
        let len = fs.metadata(&file).unwrap().size as usize;
        let left = if is_cut { 0 } else { len };
        write_file(&fs, &file, &vec![0; left]).unwrap();
        for mode in [
            RecoveryMode::AbsoluteConsistency,
            RecoveryMode::TolerateTailCorruption,
        ] {
            let mut options = options();
            options.recovery_mode = mode;
            let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let refused = Engine::open(&fs, dir(), options).err().unwrap();
            assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
        }
    }
}
