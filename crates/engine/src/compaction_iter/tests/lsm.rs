//! A small LSM of sorted runs against the whole history: whatever is flushed and compacted, with
//! snapshots coming and going, every live snapshot reads what it read before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use orogen_base::key::{InternalKeyComparator, user_key};
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{ParsedInternalKey, SeqNo, UserComparator, ValueKind};

use super::super::{CompactionIter, CompactionIterOptions, surviving_tombstones};
use super::{VecIter, format_entry, internal};
use crate::plugin::merge_operator::{MergeOperator, StringAppend};

const PLAIN: &[&[u8]] = &[b"a", b"b", b"d", b"f"];
/// Keys that are written once and then deleted once.
const SINGLE: &[&[u8]] = &[b"c", b"e", b"g"];

/// Joins operands, but refuses one of them.
struct Picky;

impl MergeOperator for Picky {
    fn name(&self) -> &str {
        "picky"
    }
    fn full_merge(&self, k: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        if operands.contains(&b"bad".as_slice()) {
            return None;
        }
        StringAppend::default().full_merge(k, base, operands)
    }
    fn partial_merge(&self, k: &[u8], operands: &[&[u8]]) -> Option<Vec<u8>> {
        if operands.contains(&b"bad".as_slice()) {
            return None;
        }
        StringAppend::default().partial_merge(k, operands)
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (self.0 >> 33) as usize % n
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A sorted run.
#[derive(Clone, Default)]
pub(crate) struct Run {
    pub(crate) points: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) tombstones: Vec<RangeTombstone>,
}

/// Runs one stretch of a compaction: what stays of points and range tombstones.
pub(crate) type Compactor = Box<
    dyn FnMut(
        Vec<(Vec<u8>, Vec<u8>)>,
        Arc<FragmentedRangeTombstones>,
        CompactionIterOptions,
    ) -> Run,
>;

/// The rules alone, without tables.
fn in_memory() -> Compactor {
    Box::new(|entries, tombstones, options| {
        let mut out = Run::default();
        let (kept, _) = surviving_tombstones(&tombstones, &options);
        for f in kept {
            let start = options
                .start
                .clone()
                .map_or_else(|| f.start.clone(), |s| s.max(f.start.clone()));
            let end = options
                .end
                .clone()
                .map_or_else(|| f.end.clone(), |e| e.min(f.end.clone()));
            for seqno in f.seqnos {
                let (start, end) = (start.clone(), end.clone());
                out.tombstones.push(RangeTombstone { start, end, seqno });
            }
        }
        out.tombstones.retain(|t| t.start < t.end);
        let mut iter = CompactionIter::new(VecIter { entries, at: 0 }, tombstones, options);
        iter.seek_to_first();
        while iter.valid() {
            out.points
                .push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        iter.status().unwrap();
        out
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Nothing,
    Value(Vec<u8>),
    Refused,
}

/// What a reader at `at` finds, asking newer runs first.
fn read(runs: &[Run], key: &[u8], at: SeqNo) -> Answer {
    let hidden_below = runs
        .iter()
        .flat_map(|r| &r.tombstones)
        .filter(|t| t.seqno <= at && *t.start <= *key && *key < *t.end)
        .map(|t| t.seqno)
        .max()
        .unwrap_or(0);
    let mut operands: Vec<&[u8]> = Vec::new();
    let mut base = None;
    'versions: for run in runs {
        for (k, value) in run.points.iter().filter(|(k, _)| user_key(k) == key) {
            let k = ParsedInternalKey::parse(k).unwrap();
            if k.seqno > at {
                continue;
            }
            if k.seqno < hidden_below {
                break 'versions;
            }
            match k.kind {
                ValueKind::Merge => operands.insert(0, value),
                ValueKind::Value => {
                    base = Some(value.as_slice());
                    break 'versions;
                }
                _ => break 'versions,
            }
        }
    }
    if operands.is_empty() {
        return base.map_or(Answer::Nothing, |v| Answer::Value(v.to_vec()));
    }
    Picky
        .full_merge(key, base, &operands)
        .map_or(Answer::Refused, Answer::Value)
}

struct Lsm {
    compactor: Compactor,
    rng: Rng,
    history: Run,
    /// Newest first; the first takes the writes.
    runs: Vec<Run>,
    seqno: SeqNo,
    snapshots: BTreeSet<SeqNo>,
    /// Keys of `SINGLE` that hold a value now.
    set: BTreeMap<&'static [u8], bool>,
}

impl Lsm {
    fn new(seed: u64, compactor: Compactor) -> Self {
        Self {
            compactor,
            rng: Rng(seed),
            history: Run::default(),
            runs: vec![Run::default()],
            seqno: 0,
            snapshots: BTreeSet::new(),
            set: BTreeMap::new(),
        }
    }

    fn add(&mut self, key: &[u8], kind: ValueKind, value: &[u8]) {
        let entry = (internal(key, self.seqno, kind), value.to_vec());
        for run in [&mut self.history, &mut self.runs[0]] {
            let order = InternalKeyComparator::default();
            let at = run
                .points
                .partition_point(|(k, _)| order.compare(k, &entry.0).is_lt());
            run.points.insert(at, entry.clone());
        }
    }

    fn write(&mut self) {
        self.seqno += 1;
        let value = format!("{}", self.seqno);
        match self.rng.below(12) {
            0 => {
                let (a, b) = (self.rng.below(8) as u8, self.rng.below(8) as u8);
                let (start, end) = (vec![b'a' + a.min(b)], vec![b'a' + a.max(b)]);
                for (key, set) in &mut self.set {
                    *set &= !(start.as_slice() <= *key && *key < end.as_slice());
                }
                let t = RangeTombstone {
                    start,
                    end,
                    seqno: self.seqno,
                };
                if t.start < t.end {
                    self.history.tombstones.push(t.clone());
                    self.runs[0].tombstones.push(t);
                }
            }
            1..5 => {
                let key = SINGLE[self.rng.below(SINGLE.len())];
                let set = self.set.entry(key).or_default();
                *set = !*set;
                if *set {
                    self.add(key, ValueKind::Value, value.as_bytes());
                } else {
                    self.add(key, ValueKind::SingleDeletion, b"");
                }
            }
            _ => {
                let key = PLAIN[self.rng.below(PLAIN.len())];
                match self.rng.below(10) {
                    0..4 => self.add(key, ValueKind::Value, value.as_bytes()),
                    4..6 => self.add(key, ValueKind::Deletion, b""),
                    _ if self.rng.one_in(25) => self.add(key, ValueKind::Merge, b"bad"),
                    _ => self.add(key, ValueKind::Merge, value.as_bytes()),
                }
            }
        }
    }

    /// Compacts the runs `from..=to` into one.
    fn compact(&mut self, from: usize, to: usize) {
        let below: Vec<Run> = self.runs[to + 1..].to_vec();
        let inputs: Vec<Run> = self.runs.drain(from..=to).collect();
        let mut points: Vec<_> = inputs.iter().flat_map(|r| r.points.clone()).collect();
        let order = InternalKeyComparator::default();
        points.sort_by(|a, b| order.compare(&a.0, &b.0));
        let tombstones = inputs.into_iter().flat_map(|r| r.tombstones).collect();
        let tombstones = Arc::new(FragmentedRangeTombstones::new(
            &UserComparator::BYTEWISE,
            tombstones,
        ));
        let snapshots: Vec<SeqNo> = self.snapshots.iter().copied().collect();
        let bottommost = below.iter().all(|r| r.points.is_empty());

        let mut cuts: Vec<Option<Vec<u8>>> = vec![None];
        let mut keys: Vec<u8> = (b'b'..b'h').filter(|_| self.rng.one_in(4)).collect();
        keys.dedup();
        cuts.extend(keys.into_iter().map(|k| Some(vec![k])));
        cuts.push(None);
        let mut out = Run::default();
        for pair in cuts.windows(2) {
            let below = below.clone();
            let below_again = below.clone();
            let conflict = if snapshots.is_empty() || self.rng.one_in(2) {
                SEQNO_MAX
            } else {
                snapshots[self.rng.below(snapshots.len())]
            };
            let options = CompactionIterOptions {
                earliest_write_conflict_snapshot: conflict,
                bottommost,
                key_not_exists_beyond_output_level: self.rng.one_in(2).then(|| {
                    Box::new(move |key: &[u8]| {
                        !below
                            .iter()
                            .flat_map(|r| &r.points)
                            .any(|(k, _)| user_key(k) == key)
                    }) as Box<dyn FnMut(&[u8]) -> bool + Send>
                }),
                range_not_exists_beyond_output_level: self.rng.one_in(2).then(|| {
                    Box::new(move |start: &[u8], end: &[u8]| {
                        let inside = |k: &[u8]| start <= user_key(k) && user_key(k) < end;
                        !below_again
                            .iter()
                            .flat_map(|r| &r.points)
                            .any(|(k, _)| inside(k))
                    }) as Box<dyn Fn(&[u8], &[u8]) -> bool + Send>
                }),
                start: pair[0].clone(),
                end: pair[1].clone(),
                ..CompactionIterOptions::for_flush(
                    UserComparator::BYTEWISE,
                    snapshots.clone(),
                    Some(Arc::new(Picky)),
                )
            };
            let part = (self.compactor)(points.clone(), Arc::clone(&tombstones), options);
            out.points.extend(part.points);
            out.tombstones.extend(part.tombstones);
        }
        assert!(
            out.points
                .is_sorted_by(|a, b| order.compare(&a.0, &b.0).is_lt()),
            "{}",
            show(&out)
        );
        for key in PLAIN {
            let versions = out.points.iter().filter(|(k, _)| user_key(k) == *key);
            let refused = self
                .history
                .points
                .iter()
                .any(|(k, v)| user_key(k) == *key && v == b"bad");
            assert!(
                refused || versions.count() <= snapshots.len() + 1,
                "{}",
                show(&out)
            );
        }
        self.runs.insert(from, out);
    }

    fn check(&self, what: &str) {
        for key in PLAIN.iter().chain(SINGLE) {
            for &at in self.snapshots.iter().chain([&SEQNO_MAX]) {
                let want = read(std::slice::from_ref(&self.history), key, at);
                let got = read(&self.runs, key, at);
                assert_eq!(
                    got,
                    want,
                    "{what}: key {} at {at}, snapshots {:?}\nhistory {}\nruns {}",
                    key.escape_ascii(),
                    self.snapshots,
                    show(&self.history),
                    self.runs
                        .iter()
                        .map(show)
                        .collect::<Vec<_>>()
                        .join("\n     ")
                );
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..5 => {
                for _ in 0..self.rng.below(6) {
                    self.write();
                }
                self.check("write");
            }
            5 => {
                self.snapshots.insert(self.seqno);
            }
            6 => {
                let i = self.rng.below(self.snapshots.len() + 1);
                if let Some(&s) = self.snapshots.iter().nth(i) {
                    self.snapshots.remove(&s);
                }
            }
            7 => {
                // A flush knows nothing of what is below; here a run compacted alone.
                self.compact(0, 0);
                self.runs.insert(0, Run::default());
                self.check("flush");
            }
            _ if self.runs.len() > 1 => {
                let from = 1 + self.rng.below(self.runs.len() - 1);
                let to = from + self.rng.below(self.runs.len() - from);
                self.compact(from, to);
                self.check("compaction");
            }
            _ => {}
        }
    }
}

fn show(run: &Run) -> String {
    let mut points: Vec<_> = run.points.iter().collect();
    points.sort_by_key(|(k, _)| (user_key(k).to_vec(), Reverse(orogen_base::key::trailer(k))));
    let points: Vec<String> = points.iter().map(|(k, v)| format_entry(k, v)).collect();
    let tombstones: Vec<String> = run
        .tombstones
        .iter()
        .map(|t| {
            format!(
                "[{},{})@{}",
                t.start.escape_ascii(),
                t.end.escape_ascii(),
                t.seqno
            )
        })
        .collect();
    format!("{} | {}", points.join(" "), tombstones.join(" "))
}

/// Every live snapshot reads the same through flushes and compactions by `compactor`.
pub(crate) fn check_many(seeds: std::ops::Range<u64>, compactor: impl Fn() -> Compactor) {
    for seed in seeds {
        let mut lsm = Lsm::new(seed, compactor());
        for _ in 0..60 {
            lsm.step();
        }
        // Nobody looks back: one version of each living key is all that is left.
        lsm.snapshots.clear();
        let last = lsm.runs.len() - 1;
        lsm.compact(0, last);
        lsm.check("last");
        let end = &lsm.runs[0];
        assert!(end.tombstones.is_empty());
        let refused = lsm.history.points.iter().any(|(_, v)| v == b"bad");
        for (k, _) in &end.points {
            let k = ParsedInternalKey::parse(k).unwrap();
            assert!(
                refused || (k.seqno == 0 && k.kind == ValueKind::Value),
                "{}",
                show(end)
            );
        }
    }
}

#[test]
fn every_snapshot_reads_the_same_through_flushes_and_compactions() {
    check_many(0..600, in_memory);
}
