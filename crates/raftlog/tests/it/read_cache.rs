//! Reads from the cache give what was written, whatever becomes of the files meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orogen_base::ErrorKind;
use orogen_env::{FaultFileSystem, FileSystem, OpKind};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options};
use orogen_testkit::rng::Rng;

use crate::model::{dir, disk, options};

const GROUPS: u64 = 3;
const INDEXES: u64 = 4000;

/// The entry that was written at an index as the so many'th of its group: bytes that no other has.
fn bytes_of(group: u64, index: u64, version: u64) -> Vec<u8> {
    let seed = version * INDEXES * GROUPS + index * GROUPS + group;
    let mut rng = Rng::new(seed);
    let mut bytes = [group, index, version].map(u64::to_le_bytes).concat();
    let len = rng.range(0..80);
    bytes.extend(rng.bytes(len));
    bytes
}

fn version_of(group: u64, index: u64, bytes: &[u8]) -> u64 {
    let version = bytes[16..24].try_into().map(u64::from_le_bytes).unwrap();
    assert_eq!(
        bytes,
        bytes_of(group, index, version),
        "not what was written"
    );
    version
}

/// What was written of a group, at least: versions by index.
struct Known(Vec<AtomicU64>);

impl Known {
    fn new() -> Self {
        Self((0..INDEXES + 10).map(|_| AtomicU64::new(0)).collect())
    }

    fn of(&self, index: u64) -> u64 {
        self.0[index as usize].load(Ordering::SeqCst)
    }
}

/// Appends to a group, writes over its end, compacts it, and purges now and then.
fn write(engine: &Engine, group: u64, known: &Known) {
    let mut rng = Rng::new(group);
    let (mut first, mut next, mut version) = (1, 1, 0);
    while next < INDEXES {
        let mut batch = LogBatch::default();
        let at = match rng.below(4) {
            0 => first + rng.below(next - first + 1),
            _ => next,
        };
        let from = version + 1;
        let added: Vec<Vec<u8>> = (at..at + 1 + rng.below(4))
            .map(|index| {
                version += 1;
                bytes_of(group, index, version)
            })
            .collect();
        batch.add_entries(group, at, &added).unwrap();
        next = at + added.len() as u64;
        if next - first > 20 + rng.below(20) {
            first = next - 1 - rng.below(15);
            batch.add_command(group, Command::Compact { index: first });
        }
        engine.write(&mut batch, rng.chance(1, 2)).unwrap();
        if rng.chance(1, 20) {
            engine.purge_expired_files().unwrap();
        }
        for (index, version) in (at..next).zip(from..) {
            known.0[index as usize].store(version, Ordering::SeqCst);
        }
    }
}

/// Reads entries of any group near its end; each must be what was written last or later.
fn read(engine: &Engine, seed: u64, known: &[Known], ends: &AtomicBool) {
    let mut rng = Rng::new(seed);
    while !ends.load(Ordering::SeqCst) {
        let group = rng.below(GROUPS + 1);
        let of_group = &known[group as usize];
        let Some(last) = engine.last_index(group) else {
            continue;
        };
        let begin = last.saturating_sub(rng.below(30)).max(1);
        if rng.chance(1, 2) {
            let before = of_group.of(begin);
            if let Some(bytes) = engine.get_entry(group, begin).unwrap() {
                assert!(version_of(group, begin, &bytes) >= before);
            }
            continue;
        }
        let before: Vec<u64> = (begin..=last).map(|index| of_group.of(index)).collect();
        let mut found = Vec::new();
        match engine.fetch_entries_to(group, begin, last + 1, None, &mut found) {
            Ok(count) => assert_eq!(count, found.len()),
            // It was compacted or cut off.
            Err(e) => assert!(matches!(
                e.kind(),
                ErrorKind::NotFound | ErrorKind::InvalidArgument
            )),
        }
        for ((index, bytes), before) in (begin..).zip(&found).zip(before) {
            assert!(version_of(group, index, bytes) >= before);
        }
    }
}

#[test]
fn readers_see_what_was_written_while_files_are_moved_and_written_over() {
    for read_cache_bytes in [1 << 20, 5000] {
        let arc: Arc<dyn FileSystem> = Arc::new(disk());
        let options = Options {
            read_cache_bytes,
            ..options()
        };
        let engine = Engine::open(&arc, dir(), options).unwrap();
        let known: Vec<Known> = (0..=GROUPS).map(|_| Known::new()).collect();
        // One group is left alone, so that purges move it again and again.
        let mut batch = LogBatch::default();
        let alone = [1, 2, 3].map(|index| bytes_of(GROUPS, index, index));
        batch.add_entries(GROUPS, 1, &alone).unwrap();
        engine.write(&mut batch, true).unwrap();
        (1..=3).for_each(|index| {
            known[GROUPS as usize].0[index].store(index as u64, Ordering::SeqCst)
        });
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..=2 {
                let (engine, known, ends) = (&engine, &known, &ends);
                scope.spawn(move || read(engine, seed, known, ends));
            }
            scope.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    engine.purge_expired_files().unwrap();
                    std::thread::yield_now();
                }
            });
            let writers = (0..GROUPS).map(|group| {
                let (engine, known) = (&engine, &known[group as usize]);
                scope.spawn(move || write(engine, group, known))
            });
            let writers: Vec<_> = writers.collect();
            let outcome: Vec<_> = writers.into_iter().map(|writer| writer.join()).collect();
            ends.store(true, Ordering::SeqCst);
            assert!(outcome.iter().all(Result::is_ok));
        });
        let seen = engine.metrics();
        assert!(seen.read_cache_hits > 0 && seen.read_cache_misses > 0);
        assert!(seen.read_cache_bytes <= read_cache_bytes as u64);
        assert!(seen.files_written_over > 0 && seen.purge_groups_moved > 0);
    }
}

/// An engine with ten entries of a group, each far from the others, and its file system.
fn ten_entries(read_cache_bytes: usize) -> (Arc<FaultFileSystem>, Engine) {
    let faulty = Arc::new(FaultFileSystem::over_memory(disk()));
    let arc: Arc<dyn FileSystem> = faulty.clone();
    let options = Options {
        read_cache_bytes,
        ..Options::default()
    };
    let engine = Engine::open(&arc, dir(), options).unwrap();
    for index in 1..=10 {
        for group in [1, 2] {
            let mut batch = LogBatch::default();
            let bytes = Rng::new(index * group).bytes(6000);
            batch.add_entries(group, index, &[bytes]).unwrap();
            engine.write(&mut batch, false).unwrap();
        }
    }
    (faulty, engine)
}

#[test]
fn what_is_read_again_makes_no_call_and_is_counted() {
    let (faulty, engine) = ten_entries(1 << 20);
    let reads = || faulty.faults().count(OpKind::Read);
    let fetch = || {
        let mut found = Vec::new();
        engine.fetch_entries_to(1, 1, 11, None, &mut found).unwrap();
        found
    };
    let before = reads();
    let first = fetch();
    assert_eq!(reads() - before, 10);
    let metrics = engine.metrics();
    assert_eq!(
        (metrics.read_cache_hits, metrics.read_cache_misses),
        (0, 10)
    );
    assert!((60_000..70_000).contains(&metrics.read_cache_bytes));
    assert_eq!(fetch(), first);
    assert_eq!(engine.get_entry(1, 3).unwrap().as_ref(), Some(&first[2]));
    let mut made = Vec::new();
    let make = |index, bytes: &[u8]| Ok::<_, orogen_base::Error>((index, bytes.len()));
    engine
        .fetch_entries_as(1, 9, 11, None, &mut made, make)
        .unwrap();
    assert_eq!(made, [(9, 6000), (10, 6000)]);
    assert_eq!(reads() - before, 10);
    let metrics = engine.metrics();
    assert_eq!(
        (metrics.read_cache_hits, metrics.read_cache_misses),
        (13, 10)
    );
    let text = metrics.to_prometheus(&[]);
    for line in [
        "orogen_raftlog_read_cache_hits_total 13",
        "orogen_raftlog_read_cache_misses_total 10",
        "# TYPE orogen_raftlog_read_cache_bytes gauge",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\n{text}");
    }
}

#[test]
fn without_a_cache_all_is_read_each_time() {
    let (faulty, engine) = ten_entries(0);
    let before = faulty.faults().count(OpKind::Read);
    for _ in 0..2 {
        let mut found = Vec::new();
        engine.fetch_entries_to(1, 1, 11, None, &mut found).unwrap();
        assert_eq!(found.len(), 10);
    }
    assert_eq!(faulty.faults().count(OpKind::Read) - before, 20);
    let metrics = engine.metrics();
    assert_eq!((metrics.read_cache_hits, metrics.read_cache_misses), (0, 0));
    assert_eq!(metrics.read_cache_bytes, 0);
}
