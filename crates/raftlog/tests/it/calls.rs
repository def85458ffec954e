//! What single calls promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_env::{Fault, FaultFileSystem, FileSystem, OpKind, PosixFileSystem, PowerCut, threads};
use orogen_raftlog::raw::{
    Command, Engine, EventListener, FileBlockHandle, LogBatch, Options, Queue, RewriteSteps,
};
use orogen_testkit::temp_dir::TempDir;

use crate::model::{content, dir, disk, open, options};

fn entries(group: u64, first: u64, bytes: &[&str]) -> LogBatch {
    let mut batch = LogBatch::default();
    batch.add_entries(group, first, bytes).unwrap();
    batch
}

#[test]
fn what_cannot_be_applied_is_refused_before_it_is_written() {
    let fs = disk();
    let engine = open(&fs).unwrap();
    engine
        .write(&mut entries(1, 5, &["a", "b", "c"]), true)
        .unwrap();
    assert_eq!(engine.compact_to(1, 6).unwrap(), 1);
    engine.sync().unwrap();
    let before = content(&engine);
    let mut late = entries(2, 1, &["good"]);
    late.merge(&mut entries(1, 9, &["hole"])).unwrap();
    let mut two_steps = entries(1, 8, &["good"]);
    two_steps.merge(&mut entries(1, 10, &["hole"])).unwrap();
    for mut batch in [entries(1, 5, &["compacted"]), late, two_steps] {
        let ops = fs.op_count();
        let was = batch.clone();
        let error = engine.write(&mut batch, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(batch, was);
        assert_eq!(fs.op_count(), ops, "nothing was written");
    }
    assert_eq!(content(&engine), before);
    // A compaction in the batch makes it right.
    let mut batch = LogBatch::default();
    batch.add_command(1, Command::Compact { index: u64::MAX });
    batch.add_entries(1, 100, &["far"]).unwrap();
    engine.write(&mut batch, false).unwrap();
    assert_eq!(engine.first_index(1), Some(100));
    drop(engine);
    assert_eq!(open(&fs).unwrap().first_index(1), Some(100));
}

#[test]
fn a_sync_is_a_sync() {
    for empty_batch in [false, true] {
        let fs = disk();
        let engine = open(&fs).unwrap();
        engine.write(&mut entries(1, 1, &["a"]), false).unwrap();
        let lost = open(&fs.crash(PowerCut::DropUnsynced)).unwrap();
        assert!(lost.is_empty());
        if empty_batch {
            assert_eq!(engine.write(&mut LogBatch::default(), true).unwrap(), 0);
        } else {
            engine.sync().unwrap();
        }
        let kept = open(&fs.crash(PowerCut::DropUnsynced)).unwrap();
        assert_eq!(content(&kept), content(&engine));
    }
}

#[test]
fn after_a_failed_sync_nothing_is_written() {
    let fs = FaultFileSystem::over_memory(disk());
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    fs.faults().add(Fault::io().on(&[OpKind::Sync]));
    let error = engine.write(&mut entries(1, 1, &["a"]), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    for sync in [false, true] {
        let error = engine.write(&mut entries(1, 1, &["a"]), sync).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    }
    assert!(engine.is_empty());
}

#[test]
fn a_directory_is_open_once() {
    let fs = disk();
    let engine = open(&fs).unwrap();
    assert_eq!(open(&fs).err().map(|e| e.kind()), Some(ErrorKind::Busy));
    engine.close().unwrap();
    open(&fs).unwrap();
}

#[test]
fn fetches_stay_within_what_is_there_and_what_was_asked_for() {
    let engine = open(&disk()).unwrap();
    let mut out = Vec::new();
    assert_eq!(engine.fetch_entries_to(1, 1, 9, None, &mut out).unwrap(), 0);
    let texts = ["aaaa", "bbbb", "cccc", "dddd"];
    engine.write(&mut entries(1, 10, &texts), false).unwrap();
    engine.compact_to(1, 11).unwrap();
    let mut fetch = |begin, end, max| engine.fetch_entries_to(1, begin, end, max, &mut out);
    let kind = |r: orogen_base::Result<usize>| r.unwrap_err().kind();
    assert_eq!(kind(fetch(12, 11, None)), ErrorKind::InvalidArgument);
    assert_eq!(kind(fetch(10, 12, None)), ErrorKind::NotFound);
    assert_eq!(kind(fetch(11, 15, None)), ErrorKind::InvalidArgument);
    assert_eq!(kind(fetch(12, u64::MAX, None)), ErrorKind::InvalidArgument);
    assert_eq!(fetch(12, 12, None).unwrap(), 0);
    assert_eq!(fetch(11, 14, Some(0)).unwrap(), 1, "one in any case");
    assert_eq!(fetch(11, 14, Some(8)).unwrap(), 2);
    assert_eq!(fetch(11, 14, Some(11)).unwrap(), 2);
    assert_eq!(fetch(11, 14, None).unwrap(), 3);
    assert_eq!(out.len(), 8);
    assert_eq!(
        out[5..],
        ["bbbb", "cccc", "dddd"].map(|t| t.as_bytes().to_vec())
    );
    assert_eq!(engine.compact_to(1, 100).unwrap(), 3);
    assert_eq!(engine.compact_to(1, 100).unwrap(), 0);
    let error = engine.fetch_entries_to(1, 13, 14, None, &mut out);
    assert_eq!(kind(error), ErrorKind::InvalidArgument);
    assert_eq!(engine.raft_groups(), [1]);
}

#[test]
fn many_threads_write_to_files_of_the_disk() {
    const THREADS: u64 = 4;
    const BATCHES: u64 = 200;
    let temp = TempDir::new("raftlog");
    let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::new());
    let dir = temp.path().join("log");
    let options = Options {
        target_file_size: 4 << 10,
        ..Options::default()
    };
    let engine = Engine::open(&fs, &dir, options.clone()).unwrap();
    std::thread::scope(|scope| {
        for group in 1..=THREADS {
            let engine = &engine;
            scope.spawn(move || {
                for index in 1..=BATCHES {
                    let text = format!("{group} {index}");
                    let mut batch = entries(group, index, &[&text]);
                    engine.write(&mut batch, index % 50 == 0).unwrap();
                    let read = engine.get_entry(group, index).unwrap();
                    assert_eq!(read, Some(text.into_bytes()), "own writes are seen");
                }
            });
        }
    });
    let (first, last) = engine.file_span(Queue::Append).unwrap();
    assert!(first == 1 && last > 2);
    // And one that the other queue will have.
    let full = options.target_file_size;
    assert_eq!(engine.get_used_size(), (last + 1) * full);
    engine.close().unwrap();
    let engine = Engine::open(&fs, &dir, options).unwrap();
    for group in 1..=THREADS {
        assert_eq!(engine.last_index(group), Some(BATCHES));
        let read = engine.get_entry(group, BATCHES).unwrap();
        assert_eq!(read, Some(format!("{group} {BATCHES}").into_bytes()));
    }
}

#[test]
fn directories_that_were_made_survive_a_power_cut() {
    let fs = orogen_env::MemFileSystem::new();
    let engine = open(&fs).unwrap();
    engine.write(&mut entries(1, 1, &["a"]), true).unwrap();
    let kept = open(&fs.crash(PowerCut::DropUnsynced)).unwrap();
    assert_eq!(content(&kept), content(&engine));
}

#[test]
fn who_scans_a_group_may_write_while_another_thread_writes_to_it() {
    let fs: Arc<dyn FileSystem> = Arc::new(disk());
    let engine = Arc::new(Engine::open(&fs, dir(), options()).unwrap());
    let put = |engine: &Engine, group: u64, key: &[u8]| {
        let mut batch = LogBatch::default();
        batch.put(group, key.to_vec(), vec![1]).unwrap();
        engine.write(&mut batch, false).unwrap();
    };
    for n in 0..1000_u32 {
        put(&engine, 1, &n.to_be_bytes());
    }
    let shown = |reverse| {
        let (start, end) = (3_u32.to_be_bytes(), 990_u32.to_be_bytes());
        let mut keys = Vec::new();
        engine.scan(1, Some(&start), Some(&end), reverse, |key, _| {
            keys.push(u32::from_be_bytes(key.try_into().unwrap()));
            true
        });
        keys
    };
    assert_eq!(shown(false), (3..990).collect::<Vec<_>>());
    assert_eq!(shown(true), (3..990).rev().collect::<Vec<_>>());
    let (done, is_done) = std::sync::mpsc::channel();
    let theirs = Arc::clone(&engine);
    let scanning = threads::spawn("scanning", move || {
        let mut writer = None;
        theirs.scan(1, None, None, false, |_, _| {
            let other = Arc::clone(&theirs);
            writer.get_or_insert_with(|| {
                threads::spawn("writing", move || put(&other, 1, b"other")).unwrap()
            });
            put(&theirs, 2, b"own");
            true
        });
        drop(writer);
        done.send(()).unwrap();
    });
    let scanning = scanning.unwrap();
    if is_done.recv_timeout(Duration::from_secs(60)).is_err() {
        // To join it would take for ever.
        std::mem::forget(scanning);
        panic!("one waits for the other");
    }
}

/// Panics when it is told of the first record of the rewrite queue.
struct Panics;

impl EventListener for Panics {
    fn on_append_log_file(&self, handle: FileBlockHandle) {
        assert_ne!(handle.id.queue, Queue::Rewrite, "a listener panics");
    }
}

#[test]
fn nothing_is_written_behind_a_purge_that_panicked() {
    let fs: Arc<dyn FileSystem> = Arc::new(disk());
    let listeners: Vec<Arc<dyn EventListener>> = vec![Arc::new(Panics)];
    let engine = Engine::open_with_listeners(&fs, dir(), options(), listeners).unwrap();
    let mut batch = LogBatch::default();
    batch.add_entries(1, 1, &["entry"]).unwrap();
    engine.write(&mut batch, true).unwrap();
    let purge = || engine.rewrite_append_queue(None, RewriteSteps::All);
    assert!(catch_unwind(AssertUnwindSafe(purge)).is_err());
    // Memory does not know of what was moved: nobody would tell the rewrite queue that the group has gone.
    batch.add_command(1, Command::Clean);
    let kind = |result: orogen_base::Result<()>| result.unwrap_err().kind();
    assert_eq!(
        kind(engine.write(&mut batch, false).map(drop)),
        ErrorKind::ReadOnly
    );
    assert_eq!(kind(purge()), ErrorKind::ReadOnly);
    assert_eq!(
        kind(engine.purge_expired_files().map(drop)),
        ErrorKind::ReadOnly
    );
    assert_eq!(engine.last_index(1), Some(1));
    drop(engine);
    let again = Engine::open(&fs, dir(), options()).unwrap();
    assert_eq!(again.last_index(1), Some(1));
}
