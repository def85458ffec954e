//! 10,000 groups, of which few are written often and most seldom, by several threads, while others read and purge.
//!
//! What is seldom written lies in the oldest files and is moved again and again; what is often written is the caller's to compact.
//! Each writer owns its groups, and compacts those that a purge returns. The bytes of an entry tell what it is, so who reads beside
//! the writers can check each one. What there must be is known from the writers after each of some rounds; an open after a power
//! cut must give it, too.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use orogen_base::ErrorKind;
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue};
use orogen_testkit::figures::tell;
use orogen_testkit::rng::Rng;

use crate::model::{dir, disk};

const GROUPS: u64 = 10_000;
const WRITERS: u64 = 3;
/// Of each writer in a round, at least.
const BATCHES: u64 = 1000;
const PURGES_OF_ROUND: u64 = 2;
const ROUNDS_MIN: u64 = 6;

/// Purges of each queue that rounds go on for.
const PURGES_MIN: u64 = 2;

/// Entries that whoever is asked to compact keeps.
const KEPT: u64 = 5;

fn options() -> Options {
    Options {
        target_file_size: 32 << 10,
        batch_compression_threshold: 300,
        purge_threshold: 256 << 10,
        purge_rewrite_threshold: Some(256 << 10),
        purge_rewrite_garbage_ratio: 0.2,
        read_cache_bytes: 64 << 10,
        ..Options::default()
    }
}

/// Group, index and version, and bytes that follow from these.
fn entry(group: u64, index: u64, version: u64) -> Vec<u8> {
    let mut rng = Rng::new(group << 48 ^ index << 24 ^ version);
    let numbers = [group, index, version].map(u64::to_le_bytes);
    let mut bytes = numbers.concat();
    let len = rng.range(0..50);
    bytes.extend(rng.bytes(len));
    bytes
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn check_entry(group: u64, index: u64, bytes: &[u8]) {
    let version = number(&bytes[16..]);
    assert!(
        bytes == entry(group, index, version),
        "{group} {index}: {bytes:?}"
    );
}

/// What a group should hold: the versions of its entries and the values of its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    first: u64,
    versions: Vec<u64>,
    keys: BTreeMap<u8, u64>,
}

impl Group {
    fn next(&self) -> u64 {
        self.first + self.versions.len() as u64
    }

    fn compact(&mut self, index: u64) {
        let gone = index.min(self.next()).saturating_sub(self.first);
        self.versions.drain(..gone as usize);
        self.first += gone;
    }
}

type Groups = HashMap<u64, Group>;

struct Writer<'e> {
    engine: &'e Engine,
    /// Its groups are those with this rest.
    number: u64,
    rng: Rng,
    version: u64,
    groups: Groups,
    batches: u64,
    compacted: u64,
}

impl Writer<'_> {
    fn group(&self, rank: u64) -> u64 {
        1 + self.number + rank * WRITERS
    }

    fn count(&self) -> u64 {
        (GROUPS - self.number).div_ceil(WRITERS)
    }

    /// A group, the first ones most often: the nth one with a probability like 1 / n.
    fn draw(&mut self) -> u64 {
        let rank = (self.count() as f64).powf(self.rng.unit()) as u64 - 1;
        self.group(rank.min(self.count() - 1))
    }

    fn append(&mut self, batch: &mut LogBatch, id: u64, at: u64, count: u64) {
        let versions: Vec<u64> = (0..count).map(|n| self.version + n).collect();
        self.version += count;
        let entries: Vec<Vec<u8>> = (at..)
            .zip(&versions)
            .map(|(i, v)| entry(id, i, *v))
            .collect();
        batch.add_entries(id, at, &entries).unwrap();
        let group = self.groups.entry(id).or_default();
        if group.versions.is_empty() {
            group.first = at;
        }
        group.versions.truncate((at - group.first) as usize);
        group.versions.extend(versions);
    }

    /// Something of each of its groups.
    fn begin(&mut self) {
        for rank in 0..self.count() {
            let mut batch = LogBatch::default();
            let id = self.group(rank);
            self.append(&mut batch, id, 1 + rank, 1 + rank % 3);
            if rank % 5 == 0 {
                self.put(&mut batch, id);
            }
            self.engine.write(&mut batch, false).unwrap();
        }
    }

    fn put(&mut self, batch: &mut LogBatch, id: u64) {
        let key = self.rng.below(3) as u8;
        self.version += 1;
        let value = self.version.to_le_bytes().to_vec();
        batch.put(id, vec![key], value).unwrap();
        let group = self.groups.entry(id).or_default();
        group.keys.insert(key, self.version);
    }

    fn step(&mut self) {
        let mut batch = LogBatch::default();
        for _ in 0..1 + self.rng.below(6) {
            let id = self.draw();
            let group = self.groups.entry(id).or_default();
            let (first, next) = (group.first, group.next());
            match self.rng.below(20) {
                0..=12 => {
                    let count = 1 + self.rng.below(3);
                    self.append(&mut batch, id, next.max(1), count);
                }
                13 | 14 if first < next => {
                    let at = next - 1 - self.rng.below((next - first).min(4));
                    self.append(&mut batch, id, at, 1);
                }
                15 => {
                    let index = next.saturating_sub(self.rng.below(8));
                    batch.add_command(id, Command::Compact { index });
                    group.compact(index);
                }
                16 => {
                    let key = self.rng.below(3) as u8;
                    batch.delete(id, vec![key]);
                    group.keys.remove(&key);
                }
                17 if self.rng.chance(1, 4) => {
                    batch.add_command(id, Command::Clean);
                    self.groups.remove(&id);
                }
                _ => self.put(&mut batch, id),
            }
        }
        let sync = self.rng.chance(1, 50);
        self.engine.write(&mut batch, sync).unwrap();
    }

    /// Does what a purge has asked for.
    fn obey(&mut self, asked: &Receiver<u64>) {
        for id in asked.try_iter() {
            // It may have been cleaned meanwhile.
            let Some(group) = self.groups.get_mut(&id) else {
                continue;
            };
            let index = group.next().saturating_sub(KEPT);
            let count = index.saturating_sub(group.first);
            assert_eq!(self.engine.compact_to(id, index).unwrap(), count);
            group.compact(index);
            self.compacted += 1;
        }
    }
}

fn check<'g>(engine: &Engine, groups: impl Iterator<Item = &'g Groups>, what: &str) {
    let groups: BTreeMap<&u64, &Group> = groups.flatten().collect();
    let ids: Vec<u64> = groups.keys().map(|id| **id).collect();
    assert!(engine.raft_groups() == ids, "{what}");
    let mut entries = Vec::new();
    for (id, group) in groups {
        let span = (group.first < group.next()).then(|| (group.first, group.next() - 1));
        let found = engine.first_index(*id).zip(engine.last_index(*id));
        assert_eq!(found, span, "{what}: group {id}");
        entries.clear();
        if span.is_some() {
            let next = group.next();
            let fetched = engine.fetch_entries_to(*id, group.first, next, None, &mut entries);
            fetched.unwrap();
        }
        let indexes = group.first..;
        let versions = indexes.zip(&group.versions);
        let expected = versions.map(|(index, version)| entry(*id, index, *version));
        assert!(expected.eq(entries.iter().cloned()), "{what}: group {id}");
        let mut keys = BTreeMap::new();
        engine.scan(*id, None, None, false, |key, value| {
            keys.insert(key[0], number(value));
            true
        });
        assert_eq!(keys, group.keys, "{what}: group {id}");
    }
}

/// Counts so many when it is dropped, also by a panic: others wait for it.
struct Done<'d>(&'d AtomicU64, u64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(self.1, Ordering::SeqCst);
    }
}

/// Reads groups, most often those that are written often, until all have written; how many entries.
fn read(engine: &Engine, is_running: impl Fn() -> bool) -> u64 {
    let mut rng = Rng::new(Rng::seed_or(82));
    let mut read = 0;
    let mut entries = Vec::new();
    while is_running() {
        let id = (GROUPS as f64).powf(rng.unit()) as u64;
        let Some((first, last)) = engine.first_index(id).zip(engine.last_index(id)) else {
            continue;
        };
        entries.clear();
        match engine.fetch_entries_to(id, first, last + 1, Some(4 << 10), &mut entries) {
            Ok(_) => {
                for (index, bytes) in (first..).zip(&entries) {
                    check_entry(id, index, bytes);
                }
                read += entries.len() as u64;
            }
            // Compacted or cut off since then.
            Err(e) => assert_ne!(e.kind(), ErrorKind::Corruption, "{e}"),
        }
        if let Some(bytes) = engine.get_entry(id, last).unwrap() {
            check_entry(id, last, &bytes);
        }
    }
    read
}

fn purge(
    engine: &Engine,
    owners: &[Sender<u64>],
    purged: &AtomicU64,
    is_running: impl Fn() -> bool,
) {
    let _ended = Done(purged, PURGES_OF_ROUND);
    while is_running() {
        for group in engine.purge_expired_files().unwrap() {
            let owner = &owners[((group - 1) % WRITERS) as usize];
            // Who has written all does not listen any more.
            let _ = owner.send(group);
        }
        purged.fetch_add(1, Ordering::SeqCst);
    }
}

/// Has all write for a while, and others read and purge; how many entries were read.
fn round(engine: &Engine, writers: &mut [Writer<'_>]) -> u64 {
    let (done, purged) = (AtomicU64::new(0), AtomicU64::new(0));
    let is_running = || done.load(Ordering::SeqCst) < WRITERS;
    let (owners, asked): (Vec<_>, Vec<_>) = (0..WRITERS).map(|_| channel()).unzip();
    std::thread::scope(|scope| {
        for (writer, asked) in writers.iter_mut().zip(asked) {
            let (done, purged) = (Done(&done, 1), &purged);
            scope.spawn(move || {
                let _done = done;
                let mut batches = 0;
                while batches < BATCHES || purged.load(Ordering::SeqCst) < PURGES_OF_ROUND {
                    writer.step();
                    writer.obey(&asked);
                    batches += 1;
                }
                writer.batches += batches;
            });
        }
        let reader = scope.spawn(|| read(engine, is_running));
        scope.spawn(|| purge(engine, &owners, &purged, is_running));
        reader.join().unwrap()
    })
}

#[test]
fn many_groups_of_which_few_are_written_often() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    let of_number = |number| Writer {
        engine: &engine,
        number,
        rng: Rng::new(Rng::seed_or(81) + number),
        version: 1,
        groups: Groups::new(),
        batches: 0,
        compacted: 0,
    };
    let mut writers: Vec<Writer<'_>> = (0..WRITERS).map(of_number).collect();
    writers.iter_mut().for_each(Writer::begin);
    let has_purged = || {
        let seen = engine.metrics();
        let purges = [seen.rewrite_append_duration, seen.rewrite_rewrite_duration];
        purges.iter().all(|purges| purges.count() >= PURGES_MIN)
    };
    let (mut rounds, mut read) = (0, 0);
    while rounds < ROUNDS_MIN || !has_purged() {
        rounds += 1;
        read += round(&engine, &mut writers);
        let what = format!("round {rounds}");
        let groups = writers.iter().map(|writer| &writer.groups);
        check(&engine, groups.clone(), &what);
        engine.sync().unwrap();
        let lost = fs.crash(PowerCut::DropUnsynced);
        check_again(&lost, groups, &format!("{what}, opened again"));
    }
    let compacted: u64 = writers.iter().map(|writer| writer.compacted).sum();
    let batches: u64 = writers.iter().map(|writer| writer.batches).sum();
    let groups: Vec<Groups> = writers.into_iter().map(|writer| writer.groups).collect();
    let count: usize = groups.iter().map(Groups::len).sum();
    let seen = engine.metrics();
    let first = |queue| engine.file_span(queue).map_or(0, |(first, _)| first);
    tell(format_args!(
        "many: {count} groups, {rounds} rounds, {batches} batches, {read} entries read; purges {} + {}, files gone {} + {}, groups moved {}, \
         returned {}, compacted {compacted}",
        seen.rewrite_append_duration.count(),
        seen.rewrite_rewrite_duration.count(),
        first(Queue::Append) - 1,
        first(Queue::Rewrite) - 1,
        seen.purge_groups_moved,
        seen.purge_groups_returned,
    ));
    assert!(count as u64 > GROUPS * 9 / 10);
    assert!(first(Queue::Append) > 20 && first(Queue::Rewrite) > 20);
    assert!(seen.purge_groups_moved > GROUPS && seen.files_deleted.rewrite > 20);
    let moved = [seen.background_append_bytes, seen.background_rewrite_bytes];
    assert!(moved.iter().all(|bytes| bytes.sum() > 100_000.0));
    assert!(compacted > 10 && seen.purge_groups_returned >= compacted && read > 1000);
    engine.close().unwrap();
    check_again(&fs, groups.iter(), "closed");
}

fn check_again<'g>(fs: &MemFileSystem, groups: impl Iterator<Item = &'g Groups>, what: &str) {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&fs, dir(), options()).unwrap();
    check(&engine, groups, what);
}
