//! What transactions can see of each other: random histories of several threads, recorded and checked.
//!
//! Ways of use of both kinds of transactions with what each forbids, and such that forbid little, which show that the load
//! brings anomalies about and the checker sees them.

mod by_hand;
mod checker;
mod either;
mod sweeps;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use orogen_base::{ErrorKind, PinnedValue, Result};
use orogen_engine::plugin::merge_operator;
use orogen_engine::{ColumnFamily, Options, ReadOptions};
use orogen_env::MemFileSystem;
use orogen_testkit::{Rng, TempDir, tell};
use orogen_txn::SpillOptions;

use checker::{Anomaly, Element, Key, Op, Report, Txn, check};
use either::{EitherDb, EitherTxn};

/// Lists that all transactions meet at; scans do not come there.
const HOT: Range<Key> = 0..6;
/// Lists that begin absent, so that scans can miss them.
const SPARSE: Range<Key> = 6..60;
const THREADS: u64 = 4;
const TXNS_PER_THREAD: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    /// `get` and `put`, no snapshot.
    ReadCommitted,
    /// Reads at a snapshot.
    Snapshot,
    /// What is read is locked, what a scan does not find is not.
    RepeatableRead,
    /// Ranges of scans are locked, too.
    Serializable,
    /// Reads at a snapshot of what is locked, keys and ranges, and must be so still.
    SerializableSnapshot,
    /// Optimistic, `get` and `put`, no snapshot.
    OptimisticReadCommitted,
    /// Optimistic, reads at a snapshot.
    OptimisticSnapshot,
    /// Optimistic, and what is read at the snapshot must be so still at the end.
    OptimisticRepeatableRead,
}

impl Level {
    fn is_optimistic(self) -> bool {
        matches!(
            self,
            Self::OptimisticReadCommitted
                | Self::OptimisticSnapshot
                | Self::OptimisticRepeatableRead
        )
    }

    fn has_snapshot(self) -> bool {
        matches!(
            self,
            Self::Snapshot
                | Self::SerializableSnapshot
                | Self::OptimisticSnapshot
                | Self::OptimisticRepeatableRead
        )
    }

    fn forbids(self) -> &'static [Anomaly] {
        use Anomaly::{
            G0, G1a, G1b, G1c, G2, G2Item, GSi, GSingle, Internal, LostUpdate, NotStrict, Stale,
        };
        match self {
            // Without a snapshot own writes are over what others commit meanwhile.
            Self::ReadCommitted | Self::OptimisticReadCommitted => &[G0, G1a, G1b, G1c],
            Self::Snapshot | Self::OptimisticSnapshot => {
                &[G0, G1a, G1b, G1c, Internal, LostUpdate, GSingle, GSi, Stale]
            }
            Self::OptimisticRepeatableRead => &[
                G0, G1a, G1b, G1c, Internal, LostUpdate, GSingle, GSi, Stale, G2Item,
            ],
            Self::RepeatableRead => &[G0, G1a, G1b, G1c, Internal, LostUpdate, G2Item],
            Self::Serializable | Self::SerializableSnapshot => &[
                G0, G1a, G1b, G1c, Internal, LostUpdate, GSingle, GSi, G2Item, G2, Stale, NotStrict,
            ],
        }
    }
}

struct World {
    db: EitherDb,
    family: ColumnFamily,
    clock: AtomicU64,
    elements: AtomicU32,
}

fn key_bytes(key: Key) -> Vec<u8> {
    format!("list{key:03}").into_bytes()
}

fn key_of(bytes: &[u8]) -> Key {
    let digits = std::str::from_utf8(&bytes[4..]).expect("text");
    digits.parse().expect("a number")
}

fn list(value: &[u8]) -> Vec<Element> {
    let text = std::str::from_utf8(value).expect("text");
    text.split(',')
        .map(|e| e.parse().expect("a number"))
        .collect()
}

fn list_or_empty(found: Option<PinnedValue>) -> Vec<Element> {
    found.map_or(Vec::new(), |value| list(&value))
}

/// One transaction on its way, and what is recorded of it.
struct Run<'w> {
    world: &'w World,
    level: Level,
    txn: EitherTxn,
    record: Txn,
}

impl Run<'_> {
    fn reads(&self) -> ReadOptions {
        ReadOptions {
            snapshot: self.txn.snapshot().cloned(),
            ..ReadOptions::default()
        }
    }

    fn get(&mut self, key: Key) -> Result<Vec<Element>> {
        let (reads, family) = (self.reads(), &self.world.family);
        let key = key_bytes(key);
        let found = match self.level {
            Level::RepeatableRead
            | Level::Serializable
            | Level::SerializableSnapshot
            | Level::OptimisticRepeatableRead => self.txn.get_for_update(&reads, family, &key)?,
            _ => self.txn.get(&reads, family, &key)?,
        };
        Ok(list_or_empty(found))
    }

    fn read(&mut self, key: Key) -> Result<()> {
        let seen = self.get(key)?;
        self.record.ops.push(Op::Read(key, seen));
        Ok(())
    }

    /// With an operand, or by a read and a write.
    fn append(&mut self, key: Key, by_merge: bool) -> Result<()> {
        let element = self.world.elements.fetch_add(1, Ordering::Relaxed);
        if by_merge {
            let operand = element.to_string();
            self.txn
                .merge(&self.world.family, &key_bytes(key), operand.as_bytes())?;
        } else {
            self.read(key)?;
            let Some(Op::Read(_, seen)) = self.record.ops.last() else {
                unreachable!("it was read just now")
            };
            std::thread::yield_now();
            let all: Vec<_> = seen.iter().chain([&element]).map(u32::to_string).collect();
            self.txn.put(
                &self.world.family,
                &key_bytes(key),
                all.join(",").as_bytes(),
            )?;
        }
        self.record.ops.push(Op::Append(key, element));
        Ok(())
    }

    fn scan(&mut self, range: Range<Key>) -> Result<()> {
        let family = &self.world.family;
        let (start, end) = (key_bytes(range.start), key_bytes(range.end));
        if matches!(
            self.level,
            Level::Serializable | Level::SerializableSnapshot
        ) {
            self.txn.lock_range(family, &start, &end)?;
        }
        let reads = ReadOptions {
            iterate_lower_bound: Some(start),
            iterate_upper_bound: Some(end),
            ..self.reads()
        };
        let mut found = Vec::new();
        let mut iter = self.txn.iter(&reads, family)?;
        iter.seek_to_first();
        while iter.valid() {
            found.push((key_of(iter.key()), list(iter.value())));
            iter.next();
        }
        iter.status()?;
        drop(iter);
        if matches!(
            self.level,
            Level::RepeatableRead | Level::OptimisticRepeatableRead
        ) {
            for (key, seen) in &mut found {
                *seen = self.get(*key)?;
            }
        }
        self.record.ops.push(Op::Scan(range, found));
        Ok(())
    }

    /// What was recorded since is as if it had not been, but for what nobody may see.
    fn take_back(&mut self, since: usize) {
        for op in self.record.ops.drain(since..) {
            if let Op::Append(_, element) = op {
                self.record.undone.push(element);
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) -> Result<()> {
        std::thread::yield_now();
        let hot = HOT.start + rng.below(u64::from(HOT.end - HOT.start)) as Key;
        let sparse = SPARSE.start + rng.below(u64::from(SPARSE.end - SPARSE.start)) as Key;
        match rng.below(8) {
            0 | 1 => self.read(hot),
            2 => self.read(sparse),
            3 => self.append(hot, true),
            4 => self.append(hot, false),
            5 => self.append(sparse, rng.chance(1, 2)),
            _ => {
                let end = (sparse + 1 + rng.below(12) as Key).min(SPARSE.end);
                self.scan(sparse..end)
            }
        }
    }

    fn work(&mut self, rng: &mut Rng) -> Result<()> {
        let mut save_point = None;
        for _ in 0..2 + rng.below(4) {
            if save_point.is_none() && rng.chance(1, 8) {
                self.txn.set_save_point();
                save_point = Some(self.record.ops.len());
            }
            self.step(rng)?;
        }
        if let Some(since) = save_point
            && rng.chance(1, 2)
        {
            self.txn.rollback_to_save_point()?;
            self.take_back(since);
        }
        if rng.chance(1, 12) {
            return self.txn.rollback();
        }
        self.txn.commit()?;
        self.record.committed = true;
        Ok(())
    }
}

fn one_txn(world: &World, level: Level, rng: &mut Rng) -> Txn {
    let began = world.clock.fetch_add(1, Ordering::SeqCst);
    let mut run = Run {
        world,
        level,
        txn: world.db.begin(level.has_snapshot()).expect("memory"),
        record: Txn {
            began,
            ..Txn::default()
        },
    };
    if let Err(e) = run.work(rng) {
        let kinds = [ErrorKind::Busy, ErrorKind::Deadlock];
        assert!(kinds.contains(&e.kind()), "{e}");
        run.txn.rollback().expect("it has not ended");
    }
    if !run.record.committed {
        run.take_back(0);
    }
    run.record.ended = world.clock.fetch_add(1, Ordering::SeqCst);
    run.record
}

/// One history on a new database.
fn history(level: Level, seed: u64) -> Report {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf.merge_operator = merge_operator::by_name("stringappend");
    options.cf.write_buffer_size = 64 << 10;
    // Every other one keeps all that transactions write in files.
    let dir = TempDir::new("isolation");
    let spill = (seed % 2 == 1).then(|| SpillOptions {
        threshold_bytes: 0,
        ..SpillOptions::in_dir(dir.path())
    });
    let db = EitherDb::open(level.is_optimistic(), &options, spill).expect("opens");
    let world = World {
        family: db.db().default_column_family(),
        db,
        clock: AtomicU64::new(0),
        elements: AtomicU32::new(0),
    };
    let txns: Vec<Txn> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let world = &world;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * THREADS + t);
                    (0..TXNS_PER_THREAD)
                        .map(|n| {
                            // Tables, too, say when a key was written.
                            if t == 0 && n % 20 == 10 {
                                world.db.db().flush().expect("it flushes");
                            }
                            one_txn(world, level, &mut rng)
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        let ended = threads.into_iter().map(|t| t.join().expect("it ends"));
        ended.flatten().collect()
    });
    assert!(world.db.locks().lock_status().is_empty());
    let mut last = BTreeMap::new();
    for key in HOT.start..SPARSE.end {
        let found = world.db.db().get(&key_bytes(key)).expect("it reads");
        last.insert(key, list_or_empty(found));
    }
    check(&txns, &last)
}

fn run(level: Level, histories: u64) -> Report {
    let mut sum = Report::default();
    for seed in 0..histories {
        let report = history(level, Rng::seed_or(1) + seed);
        for anomaly in level.forbids() {
            assert!(
                !report.has(*anomaly),
                "{level:?}, history {seed}: {:?}",
                report.found
            );
        }
        sum.add(&report);
    }
    sum
}

/// Histories that the level's promises are checked on.
fn check_level(level: Level) -> Report {
    let sum = run(level, HISTORIES);
    tell(format_args!(
        "isolation {level:?}: {HISTORIES} histories, {} committed, edges ww, wr, rw, phantom {:?}; none of {:?}; found {:?}",
        sum.committed,
        sum.edges,
        level.forbids(),
        sum.found
    ));
    sum
}

const HISTORIES: u64 = 8;

#[test]
fn snapshots_forbid_all_but_write_skew() {
    check_level(Level::Snapshot);
}

#[test]
fn optimistic_snapshots_forbid_all_but_write_skew() {
    check_level(Level::OptimisticSnapshot);
}

#[test]
fn optimistic_reads_for_update_forbid_all_but_phantoms() {
    let report = check_level(Level::OptimisticRepeatableRead);
    assert!(report.committed > 0 && report.edges.iter().all(|&n| n > 0));
}

#[test]
fn locks_of_all_that_is_read_forbid_all_but_phantoms() {
    check_level(Level::RepeatableRead);
}

#[test]
fn locks_of_ranges_too_forbid_everything() {
    let report = check_level(Level::Serializable);
    assert!(report.committed > 0 && report.edges.iter().all(|&n| n > 0));
}

#[test]
fn so_do_locks_of_all_that_is_read_at_a_snapshot() {
    let report = check_level(Level::SerializableSnapshot);
    assert!(report.committed > 0 && report.edges.iter().all(|&n| n > 0));
}

/// The row of each level in a page says "no" of what is forbidden, and of nothing else.
#[test]
fn pages_say_of_each_level_what_it_forbids() {
    use Anomaly::{G0, G1a, G1b, G1c, G2, G2Item, GSingle, LostUpdate};
    let columns: [&[Anomaly]; 5] = [
        &[G0, G1a, G1b, G1c],
        &[LostUpdate],
        &[GSingle],
        &[G2Item],
        &[G2],
    ];
    for page in [
        include_str!("../../src/lib.rs"),
        include_str!("../../../../docs/guide/transactions.md"),
    ] {
        for (name, level) in [
            ("read committed", Level::ReadCommitted),
            ("snapshot isolation", Level::Snapshot),
            ("repeatable read", Level::RepeatableRead),
            ("serializable", Level::Serializable),
            ("serializable at a snapshot", Level::SerializableSnapshot),
            ("optimistic read committed", Level::OptimisticReadCommitted),
            ("optimistic snapshot isolation", Level::OptimisticSnapshot),
            (
                "optimistic repeatable read",
                Level::OptimisticRepeatableRead,
            ),
        ] {
            let head = format!("| {name} |");
            let mut rows = page.lines().filter(|line| line.contains(&head));
            let row = rows.next().expect("each level has a row");
            assert_eq!(rows.next(), None, "{name} has one");
            let cells: Vec<_> = row
                .trim_end_matches('|')
                .split('|')
                .map(str::trim)
                .collect();
            for (cell, anomalies) in cells[3..].iter().zip(columns) {
                let forbidden = anomalies.iter().all(|a| level.forbids().contains(a));
                assert_eq!(*cell == "no", forbidden, "{row}: {anomalies:?}");
            }
            assert_eq!(cells[3..].len(), columns.len());
        }
    }
}

/// If these were never found, the tests above would say nothing.
#[test]
fn weaker_levels_have_what_stronger_ones_forbid() {
    for (level, wanted) in [
        (Level::ReadCommitted, Anomaly::LostUpdate),
        (Level::ReadCommitted, Anomaly::GSingle),
        (Level::ReadCommitted, Anomaly::G2Item),
        (Level::ReadCommitted, Anomaly::G2),
        (Level::Snapshot, Anomaly::G2Item),
        (Level::Snapshot, Anomaly::G2),
        (Level::RepeatableRead, Anomaly::GSingle),
        (Level::RepeatableRead, Anomaly::G2),
        (Level::OptimisticReadCommitted, Anomaly::LostUpdate),
        (Level::OptimisticReadCommitted, Anomaly::GSingle),
        (Level::OptimisticReadCommitted, Anomaly::G2Item),
        (Level::OptimisticReadCommitted, Anomaly::G2),
        (Level::OptimisticSnapshot, Anomaly::G2Item),
        (Level::OptimisticSnapshot, Anomaly::G2),
        (Level::OptimisticRepeatableRead, Anomaly::G2),
    ] {
        let tried = (1..=200).find(|_| run(level, 1).has(wanted));
        let tried = tried.unwrap_or_else(|| panic!("{wanted:?} never happens with {level:?}"));
        tell(format_args!(
            "isolation {level:?}: {wanted:?} found in history {tried}"
        ));
    }
}
