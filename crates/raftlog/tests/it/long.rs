//! Long records of many threads, appends of which fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orogen_env::{
    Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut, SystemClock,
};
use orogen_raftlog::raw::{Engine, LogBatch, Options};
use orogen_testkit::rng::Rng;

use crate::model::{content, dir, disk, spill_dir};

const THREADS: u64 = 8;
const ENTRIES: u64 = 40;

fn entry(group: u64, index: u64) -> Vec<u8> {
    let mut rng = Rng::new(group << 32 | index);
    let len = match index % 4 {
        0 => rng.range(100..3000),
        _ => rng.range(17_000..40_000),
    };
    rng.bytes(len)
}

fn options(spills: bool) -> Options {
    Options {
        enable_log_digests: false,
        target_file_size: 2 << 20,
        spill_dir: spills.then(|| spill_dir().to_owned()),
        ..Options::default()
    }
}

/// An engine whose syncs take so long that other writers come meanwhile.
fn opened(options: Options, of_sync: Duration) -> (MemFileSystem, Arc<FaultFileSystem>, Engine) {
    let memory = disk();
    let faulty = Arc::new(FaultFileSystem::over_memory(memory.clone()));
    let fs: Arc<dyn FileSystem> = faulty.clone();
    let engine = Engine::open(&fs, dir(), options).unwrap();
    let slow = Fault::io().on(&[OpKind::Sync]).path_with("raftlog");
    let slow = slow.slow(Arc::new(SystemClock), of_sync);
    faulty.faults().add(slow.forever());
    (memory, faulty, engine)
}

/// Appends fail now and then, in the midst of a record, and their batches are written again.
#[test]
fn none_is_lost_or_torn_where_appends_fail() {
    let (mut refused, mut groups, mut spilled) = (0, 0, 0);
    for (seed, spills) in [(1, false), (2, true), (3, false), (4, true)] {
        let (memory, faulty, engine) = opened(options(spills), Duration::from_millis(1));
        let fs: Arc<dyn FileSystem> = faulty.clone();
        let failures = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for group in 1..=THREADS {
                let (engine, faulty, failures) = (&engine, &faulty, &failures);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed << 32 | group);
                    for index in 1..=ENTRIES {
                        let mut batch = LogBatch::default();
                        batch
                            .add_entries(group, index, &[entry(group, index)])
                            .unwrap();
                        if rng.chance(1, 6) {
                            let fault = if rng.chance(1, 2) {
                                Fault::no_space()
                            } else {
                                Fault::io()
                            };
                            let fault = fault.on(&[OpKind::Append]).path_with(".raftlog");
                            let nth = rng.range(1..5) as u64;
                            faulty
                                .faults()
                                .add(fault.short(rng.range(0..50_000)).nth(nth));
                        }
                        while engine.write(&mut batch, rng.chance(5, 6)).is_err() {
                            failures.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(engine.last_index(group).unwrap_or(0), index - 1);
                        }
                    }
                });
            }
        });
        engine.sync().unwrap();
        refused += failures.into_inner();
        let seen = engine.metrics();
        groups += seen.write_groups;
        spilled += seen.files_spilled.append;
        let check = |engine: &Engine, what: &str| {
            for group in 1..=THREADS {
                assert_eq!(engine.last_index(group), Some(ENTRIES), "{what}");
                for index in 1..=ENTRIES {
                    let found = engine.get_entry(group, index).unwrap();
                    assert!(
                        found == Some(entry(group, index)),
                        "{what}: {group} {index}"
                    );
                }
            }
        };
        check(&engine, "written");
        let expected = content(&engine);
        for cut in [PowerCut::KeepAll, PowerCut::DropUnsynced] {
            let fs: Arc<dyn FileSystem> = Arc::new(memory.crash(cut));
            let again = Engine::open(&fs, dir(), options(spills)).unwrap();
            check(&again, "after a crash");
            assert_eq!(content(&again), expected, "{cut:?}");
        }
        faulty.faults().clear();
        engine.close().unwrap();
        check(
            &Engine::open(&fs, dir(), options(spills)).unwrap(),
            "closed",
        );
    }
    let batches = 4 * THREADS * ENTRIES;
    assert!(groups < batches * 3 / 4, "{groups} groups of {batches}");
    assert!(
        refused > 30 && spilled > 0,
        "{refused} refused, {spilled} files"
    );
}

/// What was refused and is not written again does not come back, though its own record was whole in the file.
#[test]
fn what_is_refused_with_others_does_not_come_back() {
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..12 {
        let (memory, faulty, engine) = opened(options(false), Duration::from_millis(5));
        let fault = Fault::io().on(&[OpKind::Append]).path_with(".raftlog");
        // The first is the file's header, then comes who leads alone, then the others: some records are whole in the file.
        faulty.faults().add(fault.short(60_000).nth(2 + round % 2));
        let mut is_there = [false; THREADS as usize];
        std::thread::scope(|scope| {
            for (group, is_there) in (1..=THREADS).zip(&mut is_there) {
                let engine = &engine;
                scope.spawn(move || {
                    let mut batch = LogBatch::default();
                    batch.add_entries(group, 1, &[entry(group, 1)]).unwrap();
                    *is_there = engine.write(&mut batch, true).is_ok();
                });
            }
        });
        let killed: Arc<dyn FileSystem> = Arc::new(memory.crash(PowerCut::KeepAll));
        let killed = Engine::open(&killed, dir(), options(false)).unwrap();
        for engine in [&engine, &killed] {
            for (group, is_there) in (1..=THREADS).zip(is_there) {
                let found = engine.get_entry(group, 1).unwrap();
                assert!(
                    found == is_there.then(|| entry(group, 1)),
                    "{round}: {group}"
                );
            }
        }
        accepted += is_there.iter().filter(|is| **is).count();
        refused += is_there.iter().filter(|is| !**is).count();
    }
    // Each round has one at least of each, however they came together.
    assert!(refused >= 12 && accepted >= 12, "{refused} {accepted}");
}
