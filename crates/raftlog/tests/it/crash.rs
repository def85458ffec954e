//! Power cuts at every call, and every call failing.
//!
//! The promise: after a crash an engine holds what it held after some batch: none is torn, none
//! before it is missing, and the last one that was synced is there. A call that fails changes
//! nothing that can be seen.

use std::sync::Arc;

use orogen_env::{Fault, FaultFileSystem, FileSystem, OpKind, PowerCut, TailFill};
use orogen_raftlog::raw::{Engine, LogBatch, Options, Queue};
use orogen_testkit::rng::Rng;

use crate::model::{Model, content, dir, disk, open, options, random_batch};

/// What a script has come to.
struct Outcome {
    /// What the engine held after each batch, the first before any.
    states: Vec<Model>,
    /// How many of them a sync has followed.
    synced: usize,
    /// What it would hold had the failed batch behind each state succeeded.
    attempted: Vec<(usize, Model)>,
    failed_sync: bool,
    /// Whether files of the append queue, and of the rewrite queue, were deleted.
    has_deleted: [bool; 2],
}

impl Outcome {
    /// True if `found` may be what is there after the states up to number `least`.
    fn allows(&self, found: &Model, least: usize) -> bool {
        self.states[least..].contains(found)
            || self
                .attempted
                .iter()
                .any(|(after, state)| *after >= least && state == found)
    }
}

const STEPS: usize = 60;

/// Writes random batches, some synced, purges, and opens again now and then; goes on after errors.
fn run(fs: &Arc<dyn FileSystem>, seed: u64, check: bool) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut out = Outcome {
        states: vec![Model::new()],
        synced: 0,
        attempted: Vec::new(),
        failed_sync: false,
        has_deleted: [false; 2],
    };
    let open = || Engine::open(fs, dir(), options());
    let mut engine = open().ok();
    for step in 0..STEPS {
        if step % 9 == 8
            && let Some(engine) = engine.take()
        {
            if engine.close().is_err() {
                out.failed_sync = true;
                break;
            }
            out.synced = out.states.len() - 1;
        }
        if engine.is_none() {
            engine = open().ok();
        }
        let last = out.states[out.states.len() - 1].clone();
        if step % 3 == 2
            && let Some(engine) = &engine
        {
            // One that fails half-way changes nothing that can be seen.
            if let Err(e) = engine.purge_expired_files()
                && check
            {
                assert_eq!(content(engine), last, "step {step} {e}");
            }
            for (queue, has) in [Queue::Append, Queue::Rewrite]
                .into_iter()
                .zip(&mut out.has_deleted)
            {
                *has |= engine.file_span(queue).is_some_and(|(first, _)| first > 1);
            }
        }
        let mut next = last.clone();
        let mut batch = random_batch(&mut rng, &mut next, 0);
        let sync = rng.chance(1, 3);
        let Some(engine) = &engine else { continue };
        let before = batch.clone();
        match engine.write(&mut batch, sync) {
            Ok(_) => {
                out.states.push(next);
                if sync {
                    out.synced = out.states.len() - 1;
                }
            }
            Err(_) => {
                assert_eq!(batch, before, "a failed batch is as it was");
                out.attempted.push((out.states.len() - 1, next));
                if check {
                    assert_eq!(content(engine), last);
                }
                // What a failed sync has dropped can still be read by who opens again, and is
                // not on the disk: nothing is promised of what is written behind it.
                if engine.sync().is_err() {
                    out.failed_sync = true;
                    break;
                }
                out.synced = out.states.len() - 1;
            }
        }
        if rng.chance(1, 8) {
            if engine.sync().is_err() {
                out.failed_sync = true;
                break;
            }
            out.synced = out.states.len() - 1;
        }
    }
    out
}

#[test]
fn after_a_power_cut_every_synced_batch_is_there_and_none_is_torn() {
    let mut points = 0;
    let mut written_anew = 0;
    for seed in 0..3 {
        let mut at = 0;
        loop {
            at += 1;
            let fs = disk();
            fs.crash_after(at);
            let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let out = run(&arc, seed, false);
            if !fs.is_power_off() {
                assert!(out.has_deleted[0], "seed {seed}");
                written_anew += u32::from(out.has_deleted[1]);
                break;
            }
            points += 1;
            let tail = |fill| PowerCut::Tail { seed: at, fill };
            for cut in [
                PowerCut::KeepAll,
                PowerCut::DropUnsynced,
                PowerCut::Torn { seed: at },
                PowerCut::Torn {
                    seed: at + 1_000_000,
                },
                PowerCut::Names { seed: at },
                tail(TailFill::Zeros),
                tail(TailFill::Garbage),
                tail(TailFill::Stale),
            ] {
                let disk = fs.crash(cut);
                let engine = open(&disk).unwrap_or_else(|e| panic!("{seed} {at} {cut:?}: {e}"));
                let found = content(&engine);
                let least = if cut == PowerCut::KeepAll {
                    out.states.len() - 1
                } else {
                    out.synced
                };
                assert!(out.allows(&found, least), "{seed} {at} {cut:?}");
                // What is there stays, and what is written behind it too, also when purged.
                let mut after = found.clone();
                let mut batch = random_batch(&mut Rng::new(at), &mut after, 0);
                engine.write(&mut batch, true).unwrap();
                if at % 2 == 0 {
                    engine.purge_expired_files().unwrap();
                }
                let engine = open(&disk.crash(PowerCut::DropUnsynced)).unwrap();
                assert_eq!(content(&engine), after, "{seed} {at} {cut:?}");
            }
        }
    }
    assert!(points > 100 && written_anew > 1, "{points} {written_anew}");
}

#[test]
fn a_power_cut_while_a_directory_is_opened_loses_nothing() {
    let mut points = 0;
    for seed in 0..3 {
        // Cuts that fall into purges too; each other one would take long.
        for at in (1..).step_by(7) {
            let fs = disk();
            fs.crash_after(at);
            let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
            let out = run(&arc, seed, false);
            if !fs.is_power_off() {
                break;
            }
            let first = fs.crash(PowerCut::Torn { seed: at });
            let found = content(&open(&first.fork()).unwrap());
            assert!(out.allows(&found, out.synced), "{seed} {at}");
            for calls in 0.. {
                let disk = first.fork();
                disk.crash_after(calls);
                let opened = open(&disk);
                let is_off = disk.is_power_off();
                drop(opened);
                for cut in [PowerCut::DropUnsynced, PowerCut::Torn { seed: calls }] {
                    let again = open(&disk.crash(cut));
                    let again =
                        again.unwrap_or_else(|e| panic!("{seed} {at} {calls} {cut:?}: {e}"));
                    let found = content(&again);
                    assert!(
                        out.allows(&found, out.synced),
                        "{seed} {at} {calls} {cut:?}"
                    );
                }
                points += 1;
                if !is_off {
                    break;
                }
            }
        }
    }
    assert!(points > 100, "{points}");
}

#[test]
fn unsynced_batches_are_there_up_to_the_first_one_in_pieces() {
    let fs = disk();
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let whole = Options::default();
    let engine = Engine::open(&arc, dir(), whole.clone()).unwrap();
    let mut states = vec![content(&engine)];
    let mut rng = Rng::new(Rng::seed_or(41));
    for index in 1..=10 {
        // Several sectors, so that a block can be damaged between a good header and footer.
        let mut batch = LogBatch::default();
        batch.add_entries(1, index, &[rng.bytes(2000)]).unwrap();
        engine.write(&mut batch, false).unwrap();
        states.push(content(&engine));
    }
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let disk: Arc<dyn FileSystem> = Arc::new(fs.crash(PowerCut::Torn { seed }));
        let engine = Engine::open(&disk, dir(), whole.clone()).unwrap();
        let found = content(&engine);
        let at = states.iter().position(|state| *state == found);
        lengths.insert(at.unwrap_or_else(|| panic!("seed {seed}: {found:?}")));
    }
    assert!(lengths.len() > 3, "{lengths:?}");
}

#[test]
fn a_call_that_fails_changes_nothing_and_loses_nothing() {
    for kind in 0..3 {
        for seed in 0..2 {
            for n in 1.. {
                let mem = disk();
                let fs = FaultFileSystem::over_memory(mem.clone());
                let fault = match kind {
                    0 => Fault::io(),
                    1 => Fault::no_space().on(&[OpKind::Append]).short(7),
                    _ => Fault::io().after_effect(),
                };
                fs.faults().add(fault.nth(n));
                let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
                let out = run(&arc, seed, true);
                if fs.faults().injected() == 0 {
                    break;
                }
                let name = format!("kind {kind} seed {seed} n {n}");
                // A process that died and one whose machine lost power.
                let engine = open(&mem.crash(PowerCut::KeepAll)).unwrap();
                let found = content(&engine);
                if out.failed_sync {
                    assert!(out.allows(&found, out.synced), "{name}");
                } else {
                    assert_eq!(Some(&found), out.states.last(), "{name}");
                }
                let engine = open(&mem.crash(PowerCut::DropUnsynced)).unwrap();
                assert!(out.allows(&content(&engine), out.synced), "{name}");
            }
        }
    }
}

#[test]
fn a_failed_append_leaves_the_engine_as_it_was_and_writable() {
    let mem = disk();
    let fs = FaultFileSystem::over_memory(mem.clone());
    let arc: Arc<dyn FileSystem> = Arc::new(fs.clone());
    let engine = Engine::open(&arc, dir(), options()).unwrap();
    let mut batch = LogBatch::default();
    batch.add_entries(1, 1, &["first"]).unwrap();
    engine.write(&mut batch, true).unwrap();
    let before = content(&engine);
    batch.add_entries(1, 2, &["second"]).unwrap();
    for short in 0..20 {
        let fault = Fault::no_space().on(&[OpKind::Append]).short(short);
        fs.faults().add(fault);
        assert!(engine.write(&mut batch, true).is_err());
        assert_eq!(content(&engine), before);
    }
    engine.write(&mut batch, true).unwrap();
    let engine = open(&mem.crash(PowerCut::DropUnsynced)).unwrap();
    assert_eq!(engine.last_index(1), Some(2));
}
