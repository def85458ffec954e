use std::sync::Mutex;

use orogen_testkit::TempDir;
use protobuf::well_known_types::{Any, Duration as Time};

use super::*;
use crate::api::internals::{FileBlockHandle, FileId, LogItemContent, OpType};
use crate::api::{ReadableSize, RecoveryMode, Version};
use crate::{get_perf_context, take_perf_context};

/// Entries say their index in the place of their type.
#[derive(Clone)]
struct Entries;

impl MessageExt for Entries {
    type Entry = Any;

    fn index(e: &Any) -> u64 {
        e.get_type_url().parse().unwrap_or(0)
    }
}

fn entry(index: u64, len: usize) -> Any {
    let mut any = Any::new();
    any.set_type_url(index.to_string());
    any.set_value(vec![index as u8; len]);
    any
}

fn entries(first: u64, count: u64, len: usize) -> Vec<Any> {
    (first..first + count)
        .map(|index| entry(index, len))
        .collect()
}

fn config(dir: &Path) -> Config {
    Config {
        dir: dir.to_str().unwrap().to_owned(),
        target_file_size: ReadableSize::kb(4),
        purge_threshold: ReadableSize::kb(16),
        enable_log_recycle: false,
        ..Config::default()
    }
}

fn add(engine: &Engine, group: u64, first: u64, count: u64, len: usize) -> usize {
    let mut batch = LogBatch::default();
    let entries = entries(first, count, len);
    batch.add_entries::<Entries>(group, &entries).unwrap();
    engine.write(&mut batch, false).unwrap()
}

#[test]
fn entries_come_back_and_ranges_outside_are_told_apart() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    assert_eq!(engine.path(), temp.path().to_str().unwrap());
    assert!(engine.is_empty());
    add(&engine, 7, 3, 5, 10);
    let fetch = |begin, end, max| {
        let mut out = vec![entry(1, 1)];
        let fetched = engine.fetch_entries_to::<Entries>(7, begin, end, max, &mut out);
        match &fetched {
            Ok(n) => assert_eq!(out.len(), n + 1),
            Err(_) => assert_eq!(out.len(), 1),
        }
        fetched.map(|_| out[1..].to_vec())
    };
    assert_eq!(fetch(3, 8, None).unwrap(), entries(3, 5, 10));
    assert_eq!(fetch(4, 8, Some(1)).unwrap(), entries(4, 1, 10));
    assert_eq!(fetch(4, 4, None).unwrap(), []);
    assert!(matches!(fetch(2, 4, None), Err(Error::EntryCompacted)));
    assert!(matches!(fetch(3, 9, None), Err(Error::EntryNotFound)));
    assert!(matches!(
        fetch(3, u64::MAX, None),
        Err(Error::EntryNotFound)
    ));
    assert!(matches!(fetch(5, 4, None), Err(Error::InvalidArgument(_))));
    assert_eq!(engine.get_entry::<Entries>(7, 8).unwrap(), None);
    assert_eq!(
        engine.get_entry::<Entries>(7, 7).unwrap(),
        Some(entry(7, 10))
    );
    assert_eq!(engine.compact_to(7, 6), 3);
    assert_eq!(
        (engine.first_index(7), engine.last_index(7)),
        (Some(6), Some(7))
    );
    assert_eq!(engine.compact_to(7, u64::MAX), 2);
    assert_eq!(engine.compact_to(7, u64::MAX), 0);
    assert_eq!(engine.first_index(7), None);
    assert!(matches!(fetch(3, 4, None), Err(Error::EntryNotFound)));
    let unknown = engine.fetch_entries_to::<Entries>(8, 1, 5, None, &mut Vec::new());
    assert_eq!(unknown.unwrap(), 0);
    assert_eq!(engine.raft_groups(), [7]);
    assert_eq!(engine.file_span(LogQueue::Append), (1, 1));
    assert_eq!(engine.file_span(LogQueue::Rewrite), (1, 1));
    assert_eq!(engine.get_used_size(), 2 * 4096);
}

#[test]
fn who_writes_is_told_later_that_it_is_durable_and_who_closes_what_that_met() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    for index in 1..=20 {
        let mut batch = LogBatch::default();
        batch
            .add_entries::<Entries>(7, &entries(index, 1, 100))
            .unwrap();
        let tell = tell.clone();
        let on_durable = move |synced: Result<()>| tell.send((index, synced.is_ok())).unwrap();
        assert!(engine.write_async(&mut batch, on_durable).unwrap() > 100);
        assert!(batch.is_empty());
        assert_eq!(engine.last_index(7), Some(index));
    }
    // One that is refused is not told of.
    let mut apart = LogBatch::default();
    apart
        .add_entries::<Entries>(7, &entries(30, 1, 100))
        .unwrap();
    let refused = engine.write_async(&mut apart, |_| panic!("it was not written"));
    assert!(matches!(refused, Err(Error::InvalidArgument(_))));
    drop(tell);
    assert!(told.iter().eq((1..=20).map(|index| (index, true))));
    engine.close().unwrap();
    let engine = Engine::open(config(temp.path())).unwrap();
    assert_eq!(engine.last_index(7), Some(20));
}

#[test]
fn what_cannot_be_is_refused_and_can_be_mended() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    let mut batch = LogBatch::with_capacity(4);
    let apart = [entry(3, 1), entry(5, 1)];
    assert!(matches!(
        batch.add_entries::<Entries>(1, &apart),
        Err(Error::InvalidArgument(_))
    ));
    batch.add_entries::<Entries>(1, &[]).unwrap();
    assert!(batch.is_empty() && batch.approximate_size() == 0);
    assert!(matches!(
        batch.put(1, b"__\x01".to_vec(), Vec::new()),
        Err(Error::InvalidArgument(_))
    ));
    assert_eq!(engine.write(&mut batch, true).unwrap(), 0);
    add(&engine, 1, 1, 2, 1);
    batch.add_entries::<Entries>(1, &entries(4, 1, 1)).unwrap();
    assert!(matches!(
        engine.write(&mut batch, false),
        Err(Error::InvalidArgument(_))
    ));
    assert_eq!(engine.last_index(1), Some(2));
    let mut mended = LogBatch::default();
    mended.add_entries::<Entries>(1, &entries(3, 1, 1)).unwrap();
    mended.merge(&mut batch).unwrap();
    assert!(batch.is_empty());
    let size = mended.approximate_size();
    assert_eq!(engine.write(&mut mended, true).unwrap(), size);
    assert!(mended.is_empty());
    assert_eq!(engine.last_index(1), Some(4));
    engine.sync().unwrap();
    let open_twice = Engine::open(config(temp.path()));
    assert!(matches!(open_twice, Err(Error::Other(_))));
}

#[test]
fn keys_are_messages_or_bytes() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    let time = |secs| {
        let mut time = Time::new();
        time.set_seconds(secs);
        time
    };
    let mut batch = LogBatch::default();
    for secs in 1..5 {
        batch
            .put_message(1, vec![b'k', secs], &time(i64::from(secs)))
            .unwrap();
    }
    batch.put(1, b"k\x02x".to_vec(), vec![0xff; 3]).unwrap();
    engine.write(&mut batch, false).unwrap();
    assert_eq!(
        engine.get_message::<Time>(1, b"k\x03").unwrap(),
        Some(time(3))
    );
    assert_eq!(engine.get_message::<Time>(1, b"k").unwrap(), None);
    assert_eq!(engine.get(1, b"k\x02x"), Some(vec![0xff; 3]));
    assert!(matches!(
        engine.get_message::<Time>(1, b"k\x02x"),
        Err(Error::Protobuf(_))
    ));
    let scan = |start: Option<&[u8]>, end: Option<&[u8]>, reverse, most| {
        let mut seen = Vec::new();
        let each = |_: &[u8], time: Time| {
            seen.push(time.get_seconds());
            seen.len() < most
        };
        engine.scan_messages(1, start, end, reverse, each).unwrap();
        seen
    };
    assert_eq!(scan(None, None, false, 9), [1, 2, 3, 4]);
    assert_eq!(scan(Some(b"k\x02"), Some(b"k\x04"), true, 9), [3, 2]);
    assert_eq!(scan(None, None, true, 2), [4, 3]);
    let mut count = 0;
    let each = |_: &[u8], _: &[u8]| {
        count += 1;
        true
    };
    engine
        .scan_raw_messages(1, None, None, false, each)
        .unwrap();
    assert_eq!(count, 5);
}

#[derive(Default)]
struct Told {
    files: Mutex<Vec<FileId>>,
    records: Mutex<Vec<FileBlockHandle>>,
    applied: Mutex<Vec<FileId>>,
    purged: Mutex<Vec<FileId>>,
    wanted: Mutex<Option<u64>>,
}

impl EventListener for Told {
    fn post_new_log_file(&self, file_id: FileId) {
        self.files.lock().unwrap().push(file_id);
    }

    fn on_append_log_file(&self, handle: FileBlockHandle) {
        self.records.lock().unwrap().push(handle);
    }

    fn post_apply_memtables(&self, file_id: FileId) {
        self.applied.lock().unwrap().push(file_id);
    }

    fn first_file_not_ready_for_purge(&self, queue: LogQueue) -> Option<u64> {
        let wanted = *self.wanted.lock().unwrap();
        wanted.filter(|_| queue == LogQueue::Append)
    }

    fn post_purge(&self, file_id: FileId) {
        self.purged.lock().unwrap().push(file_id);
    }
}

#[test]
fn listeners_are_told_of_files_records_and_purges() {
    let temp = TempDir::new("raftlog-api");
    let told = Arc::new(Told::default());
    let open = || Engine::open_with_listeners(config(temp.path()), vec![told.clone()]).unwrap();
    let engine = open();
    let mut written = 0;
    for index in 1..40 {
        written += add(&engine, 1, index, 1, 1000);
    }
    let (first, last) = engine.file_span(LogQueue::Append);
    let ids = |queue, first, last| (first..=last).map(move |seq| FileId::new(queue, seq));
    let files: Vec<FileId> = ids(LogQueue::Append, first, last).collect();
    assert_eq!(*told.files.lock().unwrap(), files);
    let records = told.records.lock().unwrap().clone();
    assert_eq!(records.iter().map(|r| r.len).sum::<usize>(), written);
    assert_eq!(told.applied.lock().unwrap().len(), 39);
    for record in &records {
        let name = temp.path().join(format!("{:016}.raftlog", record.id.seq));
        let bytes = std::fs::read(name).unwrap();
        let at = record.offset as usize;
        let len = u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap()) >> 8;
        assert_eq!(len as usize, record.len);
    }
    *told.wanted.lock().unwrap() = Some(3);
    engine.compact_to(1, 39);
    engine.purge_expired_files().unwrap();
    assert_eq!(engine.file_span(LogQueue::Append).0, 3);
    assert_eq!(
        *told.purged.lock().unwrap(),
        [FileId::new(LogQueue::Append, 2)]
    );
    *told.wanted.lock().unwrap() = None;
    engine.purge_expired_files().unwrap();
    assert!(engine.file_span(LogQueue::Append).0 > 3);
    told.files.lock().unwrap().clear();
    drop(engine);
    let engine = open();
    let (first, last) = engine.file_span(LogQueue::Append);
    let files = told.files.lock().unwrap().clone();
    assert!(files.ends_with(&ids(LogQueue::Append, first, last).collect::<Vec<_>>()));
}

/// Wants the oldest file of which a record is not applied, as a count for each file tells it; whichever queue is asked for.
#[derive(Default)]
struct Counting(Mutex<std::collections::BTreeMap<(bool, u64), i64>>);

impl Counting {
    fn add(&self, file: FileId, n: i64) {
        let key = (file.queue == LogQueue::Append, file.seq);
        *self.0.lock().unwrap().entry(key).or_default() += n;
    }
}

impl EventListener for Counting {
    fn on_append_log_file(&self, handle: FileBlockHandle) {
        self.add(handle.id, 1);
    }

    fn post_apply_memtables(&self, file_id: FileId) {
        self.add(file_id, -1);
    }

    fn first_file_not_ready_for_purge(&self, _: LogQueue) -> Option<u64> {
        let counts = self.0.lock().unwrap();
        let mut busy = counts.iter().filter(|(_, n)| **n > 0);
        busy.next().map(|(&(_, seq), _)| seq)
    }
}

#[test]
fn listeners_are_told_of_each_record_that_a_purge_moves_once_it_is_applied() {
    let temp = TempDir::new("raftlog-api");
    let told = Arc::new(Counting::default());
    let engine = Engine::open_with_listeners(config(temp.path()), vec![told.clone()]).unwrap();
    for group in 1..20 {
        add(&engine, group, 1, 50, 2000);
    }
    for _ in 0..3 {
        let manager = engine.purge_manager();
        manager.must_rewrite_append_queue(None, None).unwrap();
        manager.must_rewrite_rewrite_queue().unwrap();
    }
    let counts = told.0.lock().unwrap().clone();
    assert!(counts.keys().any(|(is_append, _)| !is_append));
    assert!(counts.values().all(|n| *n == 0), "{counts:?}");
    let (first, last) = engine.file_span(LogQueue::Rewrite);
    let oldest = *counts
        .keys()
        .find(|(is_append, _)| !is_append)
        .map(|(_, seq)| seq)
        .unwrap();
    assert!(first > oldest && last >= first);
}

#[test]
fn times_are_taken_once_asked_for() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    take_perf_context();
    let mut batch = LogBatch::default();
    batch
        .add_entries::<Entries>(1, &entries(1, 4, 3000))
        .unwrap();
    engine.write(&mut batch, true).unwrap();
    let first = get_perf_context();
    assert!(!first.log_populating_duration.is_zero());
    assert!(!first.log_write_duration.is_zero());
    assert!(!first.log_sync_duration.is_zero());
    assert!(!first.apply_duration.is_zero());
    add(&engine, 1, 5, 2, 3000);
    let second = get_perf_context();
    assert!(second.log_populating_duration > first.log_populating_duration);
    assert!(second.log_rotate_duration > first.log_rotate_duration);
    assert_eq!(second.log_sync_duration, first.log_sync_duration);
}

#[test]
fn a_dump_shows_what_was_written() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    let mut batch = LogBatch::default();
    batch
        .add_entries::<Entries>(1, &entries(5, 2, 2000))
        .unwrap();
    batch.put(1, b"k".to_vec(), b"v".to_vec()).unwrap();
    batch.delete(1, b"k".to_vec());
    batch.add_command(1, Command::Compact { index: 6 });
    batch.add_command(2, Command::Clean);
    engine.write(&mut batch, false).unwrap();
    add(&engine, 1, 7, 1, 10);
    drop(engine);
    let items: Vec<_> = Engine::dump(temp.path()).unwrap().collect();
    let items: Vec<_> = items.into_iter().map(Result::unwrap).collect();
    assert_eq!(items.len(), 6);
    let indexes = |at: usize| match &items[at].content {
        LogItemContent::EntryIndexes(entries) => {
            let indexes = entries.0.iter().map(|e| (e.index, e.entry_len));
            indexes.collect::<Vec<_>>()
        }
        other => panic!("{other:?}"),
    };
    let len = |index| entry(index, 2000).compute_size();
    assert_eq!(indexes(0), [(5, len(5)), (6, len(6))]);
    assert!(matches!(&items[1].content,
        LogItemContent::Kv(kv) if kv.op_type == OpType::Put && kv.value == Some(b"v".to_vec())));
    assert!(matches!(&items[2].content,
        LogItemContent::Kv(kv) if kv.op_type == OpType::Del && kv.value.is_none()));
    let command = LogItemContent::Command(Command::Compact { index: 6 });
    assert_eq!((items[3].raft_group_id, &items[3].content), (1, &command));
    let command = LogItemContent::Command(Command::Clean);
    assert_eq!((items[4].raft_group_id, &items[4].content), (2, &command));
    let file = temp.path().join("0000000000000002.raftlog");
    assert_eq!(Engine::dump(&file).unwrap().count(), 1);
    assert!(matches!(
        Engine::dump(&temp.path().join("LOCK")),
        Err(Error::InvalidArgument(_))
    ));
    assert!(Engine::dump(&temp.path().join("absent")).is_err());
}

#[test]
fn missing_entries_are_found_and_compacted_ones_not_missed() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    for index in [1, 4, 7] {
        add(&engine, 1, index, 3, 2000);
        add(&engine, 2, index, 3, 1);
    }
    let mut batch = LogBatch::default();
    batch.add_command(2, Command::Compact { index: 50 });
    batch.add_entries::<Entries>(2, &entries(50, 1, 1)).unwrap();
    engine.write(&mut batch, false).unwrap();
    assert!(matches!(
        Engine::consistency_check(temp.path()),
        Err(Error::Other(_))
    ));
    drop(engine);
    assert_eq!(Engine::consistency_check(temp.path()).unwrap(), []);
    let damaged = temp.path().join("0000000000000002.raftlog");
    let mut bytes = std::fs::read(&damaged).unwrap();
    // The length of the first record.
    bytes[Version::V2.format().header_len() + 2] ^= 1;
    std::fs::write(&damaged, &bytes).unwrap();
    // Of the other group the first entries are gone, which cannot be told.
    assert_eq!(Engine::consistency_check(temp.path()).unwrap(), [(1, 3)]);
    assert_eq!(std::fs::read(&damaged).unwrap(), bytes);
    let dumped: Vec<_> = Engine::dump(temp.path()).unwrap().collect();
    assert_eq!(dumped.iter().filter(|item| item.is_err()).count(), 1);
    assert!(matches!(
        Engine::consistency_check(&temp.path().join("absent")),
        Err(Error::InvalidArgument(_))
    ));
}

#[test]
fn zeros_behind_an_earlier_file_are_told_as_an_open_tells_them() {
    let temp = TempDir::new("raftlog-api");
    let engine = Engine::open(config(temp.path())).unwrap();
    for index in 1..6 {
        add(&engine, 1, index, 1, 2000);
    }
    drop(engine);
    let damages = || {
        let items = Engine::dump(temp.path()).unwrap();
        items.filter(Result::is_err).count()
    };
    let lengthen = |seq: u64| {
        let path = temp.path().join(format!("{seq:016}.raftlog"));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.resize(bytes.len() + 100, 0);
        std::fs::write(&path, &bytes).unwrap();
    };
    // Room that was never written to.
    lengthen(3);
    assert_eq!(damages(), 0);
    lengthen(1);
    assert_eq!(damages(), 1);
    let config = Config {
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        ..config(temp.path())
    };
    assert!(matches!(Engine::open(config), Err(Error::Corruption(_))));
}

#[test]
fn a_fork_goes_its_own_way() {
    let temp = TempDir::new("raftlog-api");
    let [source, target] = ["source", "target"].map(|name| temp.path().join(name));
    let config = config(&source);
    let engine = Engine::open(config.clone()).unwrap();
    for index in 1..20 {
        add(&engine, 1, index, 1, 1000);
    }
    let fork = |config: &Config| Engine::fork(config, Arc::new(DefaultFileSystem), &target);
    assert!(fork(&config).is_err(), "it is open");
    drop(engine);
    let recycling = Config {
        enable_log_recycle: true,
        ..config.clone()
    };
    assert!(fork(&recycling).is_err());
    let details = fork(&config).unwrap();
    assert_eq!(details.copied.len(), 1);
    assert!(details.symlinked.len() > 2);
    assert!(fork(&config).is_err(), "it is there");
    let engine = Engine::open(config.clone()).unwrap();
    let forked = Engine::open(Config {
        dir: target.to_str().unwrap().to_owned(),
        ..config
    })
    .unwrap();
    add(&forked, 1, 20, 2, 1000);
    engine.compact_to(1, 20);
    engine.purge_expired_files().unwrap();
    assert!(engine.file_span(LogQueue::Append).0 > 1);
    let mut all = Vec::new();
    forked
        .fetch_entries_to::<Entries>(1, 1, 22, None, &mut all)
        .unwrap();
    assert_eq!(all, entries(1, 21, 1000));
}

#[cfg(feature = "scripting")]
#[test]
fn a_script_repairs_and_both_parameters_can_be_spelled() {
    type Spelled = Engine<DefaultFileSystem, FilePipeLog<DefaultFileSystem>>;
    let dir = TempDir::new("raftlog-repair");
    let config = Config {
        dir: dir.path().display().to_string(),
        ..Config::default()
    };
    let log: Spelled = Engine::open(config.clone()).unwrap();
    let mut batch = LogBatch::default();
    batch.add_command(1, Command::Compact { index: 3 });
    batch.put(1, b"k".to_vec(), b"v".to_vec()).unwrap();
    batch.add_command(1, Command::Clean);
    log.write(&mut batch, true).unwrap();
    assert_eq!(log.metrics().write_size.count(), 1);
    let repair = |queue, script: &str| Spelled::unsafe_repair(dir.path(), queue, script.to_owned());
    let keep = "fn filter_clean(id, first, count, rewrite_count, queue) { 1 }";
    assert!(
        matches!(repair(None, keep), Err(Error::Other(_))),
        "it is open"
    );
    drop(log);
    assert!(matches!(repair(None, "fn"), Err(Error::InvalidArgument(_))));
    repair(Some(LogQueue::Rewrite), keep).unwrap();
    assert!(Engine::open(config.clone()).unwrap().is_empty());
    repair(None, keep).unwrap();
    assert_eq!(
        Engine::open(config).unwrap().get(1, b"k"),
        Some(b"v".to_vec())
    );
}
