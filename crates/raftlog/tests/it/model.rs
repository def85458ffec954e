//! Maps in the place of logs, and random batches for both.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options, Queue};
use orogen_testkit::rng::Rng;

pub(crate) const GROUPS: u64 = 4;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Group {
    entries: BTreeMap<u64, Vec<u8>>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What an engine should hold.
pub(crate) type Model = BTreeMap<u64, Group>;

pub(crate) fn dir() -> &'static Path {
    Path::new("/raft/log")
}

/// A second directory beside it.
pub(crate) fn spill_dir() -> &'static Path {
    Path::new("/spill/log")
}

/// A disk on which the directory above is there.
pub(crate) fn disk() -> MemFileSystem {
    let fs = MemFileSystem::new();
    fs.create_dir_all(Path::new("/raft")).unwrap();
    fs.create_dir_all(Path::new("/spill")).unwrap();
    fs.sync_all();
    fs
}

/// Files are small, and nothing is done in the background: calls come in the same order each time.
pub(crate) fn options() -> Options {
    Options {
        enable_log_digests: false,
        target_file_size: 700,
        batch_compression_threshold: 100,
        purge_threshold: 2100,
        purge_rewrite_threshold: Some(700),
        purge_rewrite_garbage_ratio: 0.3,
        ..Options::default()
    }
}

/// The same, with a second directory.
pub(crate) fn spilling() -> Options {
    Options {
        spill_dir: Some(spill_dir().to_owned()),
        ..options()
    }
}

pub(crate) fn open(fs: &MemFileSystem) -> orogen_base::Result<Engine> {
    open_with(fs, &options())
}

pub(crate) fn open_with(fs: &MemFileSystem, options: &Options) -> orogen_base::Result<Engine> {
    let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
    Engine::open(&fs, dir(), options.clone())
}

fn entry(rng: &mut Rng) -> Vec<u8> {
    let len = rng.range(0..60);
    if rng.chance(1, 2) {
        rng.bytes(len)
    } else {
        vec![b'e'; len]
    }
}

/// A batch over the groups from `base` + 1 on, done to the model too.
pub(crate) fn random_batch(rng: &mut Rng, model: &mut Model, base: u64) -> LogBatch {
    let mut batch = LogBatch::default();
    for _ in 0..rng.range(1..5) {
        let id = base + 1 + rng.below(GROUPS);
        if rng.chance(1, 20) {
            batch.add_command(id, Command::Clean);
            model.remove(&id);
            continue;
        }
        let group = model.entry(id).or_default();
        let first = group.entries.keys().next().copied();
        let next = group.entries.keys().next_back().map(|last| last + 1);
        match rng.below(8) {
            0..=3 => {
                let at = match (first, next) {
                    (Some(first), Some(next)) if rng.chance(1, 4) => {
                        first + rng.below(next - first + 1)
                    }
                    (_, Some(next)) => next,
                    _ => 1 + rng.below(20),
                };
                let added: Vec<Vec<u8>> = (0..rng.range(1..4)).map(|_| entry(rng)).collect();
                batch.add_entries(id, at, &added).unwrap();
                group.entries.split_off(&at);
                group.entries.extend((at..).zip(added));
            }
            4 => {
                let index = match (first, next) {
                    (Some(first), Some(next)) => first + rng.below(next - first + 2),
                    _ => rng.below(20),
                };
                batch.add_command(id, Command::Compact { index });
                group.entries = group.entries.split_off(&index);
            }
            5 | 6 => {
                let (key, value) = (vec![rng.below(6) as u8], entry(rng));
                batch.put(id, key.clone(), value.clone()).unwrap();
                group.keys.insert(key, value);
            }
            _ => {
                let key = vec![rng.below(6) as u8];
                batch.delete(id, key.clone());
                group.keys.remove(&key);
            }
        }
    }
    batch
}

/// All that an engine holds, read by several ways that must agree.
pub(crate) fn content(engine: &Engine) -> Model {
    content_of_groups(engine, &engine.raft_groups())
}

/// How many of the batches, after each of which an engine held a state, are left by power cuts that keep any part of what was not synced.
///
/// # Panics
/// If one leaves no state.
pub(crate) fn lengths_after_torn_cuts(
    fs: &MemFileSystem,
    options: &Options,
    states: &[Model],
) -> BTreeSet<usize> {
    let length = |seed| {
        let disk: Arc<dyn FileSystem> = Arc::new(fs.crash(PowerCut::Torn { seed }));
        let engine = Engine::open(&disk, dir(), options.clone()).unwrap();
        let found = content(&engine);
        let at = states.iter().position(|state| *state == found);
        at.unwrap_or_else(|| panic!("seed {seed}: {found:?}"))
    };
    (0..200).map(length).collect()
}

/// As [`content`], of the groups that [`random_batch`] makes with `base`.
pub(crate) fn content_of(engine: &Engine, base: u64) -> Model {
    let mut groups = engine.raft_groups();
    groups.retain(|id| (base + 1..=base + GROUPS).contains(id));
    content_of_groups(engine, &groups)
}

fn content_of_groups(engine: &Engine, groups: &[u64]) -> Model {
    let mut model = Model::new();
    for &id in groups {
        let group = model.entry(id).or_default();
        if let (Some(first), Some(last)) = (engine.first_index(id), engine.last_index(id)) {
            let mut fetched = Vec::new();
            engine
                .fetch_entries_to(id, first, last + 1, None, &mut fetched)
                .unwrap();
            for (index, bytes) in (first..=last).zip(&fetched) {
                assert_eq!(engine.get_entry(id, index).unwrap().as_ref(), Some(bytes));
            }
            group.entries.extend((first..).zip(fetched));
            assert_eq!(group.entries.len() as u64, last - first + 1);
            assert_eq!(engine.get_entry(id, last + 1).unwrap(), None);
        }
        let mut backwards = Vec::new();
        engine.scan(id, None, None, true, |key, value| {
            backwards.push((key.to_vec(), value.to_vec()));
            true
        });
        engine.scan(id, None, None, false, |key, value| {
            group.keys.insert(key.to_vec(), value.to_vec());
            true
        });
        for (key, value) in &group.keys {
            assert_eq!(engine.get(id, key).as_ref(), Some(value));
        }
        backwards.reverse();
        assert!(backwards.into_iter().eq(group.keys.clone()));
    }
    model
}

/// Purges, and does for the groups returned what a caller may do.
pub(crate) fn purge(rng: &mut Rng, engine: &Engine, model: &mut Model) {
    for id in engine.purge_expired_files().unwrap() {
        let last = engine.last_index(id).unwrap();
        if rng.chance(1, 2) {
            engine.compact_to(id, last).unwrap();
            let group = model.get_mut(&id).unwrap();
            group.entries = group.entries.split_off(&last);
        }
    }
}

#[test]
fn random_histories_give_what_maps_give_also_when_purged_and_opened_again() {
    let mut rng = Rng::new(Rng::seed_or(31));
    let mut moved = 0;
    let mut written_anew = 0;
    let mut dropped = 0;
    for round in 0..60 {
        let fs = MemFileSystem::new();
        let mut model = Model::new();
        let only_drops = round % 5 > 2;
        let options = Options {
            purge_headroom_ratio: f64::from(round % 3) / 2.0,
            // The rewrite queue is never written anew, and only what is dead at its beginning goes.
            purge_rewrite_garbage_ratio: if only_drops { 1.0 } else { 0.3 },
            ..options()
        };
        let open = |fs| open_with(fs, &options);
        let mut engine = open(&fs).unwrap();
        let purges = round % 4;
        for step in 0..200 {
            if rng.chance(1, 20) {
                drop(engine);
                engine = open(&fs).unwrap();
                assert_eq!(content(&engine), model, "round {round} step {step}");
            }
            if purges > 0 && rng.chance(1, 1 << (2 * purges)) {
                purge(&mut rng, &engine, &mut model);
            }
            let mut batch = random_batch(&mut rng, &mut model, 0);
            engine.write(&mut batch, rng.chance(1, 4)).unwrap();
            assert!(batch.is_empty());
            if step % 10 == 0 {
                assert_eq!(content(&engine), model, "round {round} step {step}");
            }
        }
        let first = |queue| engine.file_span(queue).map_or(1, |(first, _)| first);
        moved += u32::from(first(Queue::Append) > 1);
        *(if only_drops {
            &mut dropped
        } else {
            &mut written_anew
        }) += u32::from(first(Queue::Rewrite) > 1);
        drop(engine);
        let engine = open(&fs).unwrap();
        assert_eq!(content(&engine), model);
        assert_eq!(engine.is_empty(), model.is_empty());
    }
    println!("{moved} moved, {written_anew} written anew, {dropped} shortened");
    assert!(
        moved > 30 && written_anew > 10 && dropped > 5,
        "{moved} {written_anew} {dropped}"
    );
}
