//! Random batches that both take, and what an engine shows.

use std::collections::{BTreeMap, BTreeSet};

use orogen_raftlog::raw::{Command, Engine, FormatVersion, LogBatch, Options};
use orogen_testkit::rng::Rng;

use crate::theirs::{Theirs, encoded};

const GROUPS: u64 = 5;

pub(crate) enum Op {
    /// Index of the first, and what they carry.
    Entries(u64, Vec<Vec<u8>>),
    Compact(u64),
    Clean,
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
}

/// Operations on groups.
pub(crate) struct Batch(pub(crate) Vec<(u64, Op)>);

impl Batch {
    pub(crate) fn for_ours(&self) -> LogBatch {
        let mut ours = LogBatch::default();
        for (group, op) in &self.0 {
            match op {
                Op::Entries(first, payloads) => {
                    let entries = payloads.iter().zip(*first..);
                    let entries: Vec<_> = entries.map(|(p, index)| encoded(index, p)).collect();
                    ours.add_entries(*group, *first, &entries).expect("it fits");
                }
                Op::Compact(index) => ours.add_command(*group, Command::Compact { index: *index }),
                Op::Clean => ours.add_command(*group, Command::Clean),
                Op::Put(key, value) => ours
                    .put(*group, key.clone(), value.clone())
                    .expect("it is a key"),
                Op::Delete(key) => ours.delete(*group, key.clone()),
            }
        }
        ours
    }
}

/// Sizes that make many files of few records.
pub(crate) fn options(rng: &mut Rng) -> Options {
    let target_file_size = rng.range(500..5000) as u64;
    let batch_compression_threshold = [0, 100, 1000][rng.below(3) as usize];
    let format_version = *rng.pick(&[FormatVersion::V1, FormatVersion::V2]);
    Options {
        target_file_size,
        batch_compression_threshold,
        format_version,
        record_alignment: match format_version {
            FormatVersion::V1 => 0,
            FormatVersion::V2 => [0, 512, 4096][target_file_size as usize % 3],
        },
        ..Options::default()
    }
}

/// The indexes that the groups have, so that only what both take is written.
#[derive(Default)]
pub(crate) struct History {
    spans: BTreeMap<u64, (u64, u64)>,
    /// No entry is written at an index that has one.
    only_appends: bool,
    written_over: BTreeSet<u64>,
}

impl History {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// One that writes no entry over.
    pub(crate) fn of_appends() -> Self {
        Self {
            only_appends: true,
            ..Self::default()
        }
    }

    /// Groups of which entries were written over.
    pub(crate) fn written_over(&self) -> &BTreeSet<u64> {
        &self.written_over
    }

    pub(crate) fn batch(&mut self, rng: &mut Rng) -> Batch {
        let mut ops = Vec::new();
        for _ in 0..rng.range(1..5) {
            let group = 1 + rng.below(GROUPS);
            let span = self.spans.get(&group).copied();
            let op = match rng.below(12) {
                0..6 => {
                    let first = match span {
                        Some((first, next)) if !self.only_appends && rng.chance(1, 4) => {
                            self.written_over.insert(group);
                            first + rng.below(next - first)
                        }
                        Some((_, next)) => next,
                        None => 1 + rng.below(20),
                    };
                    let payloads: Vec<Vec<u8>> = (0..rng.range(1..4))
                        .map(|_| {
                            let len = rng.range(0..90);
                            if rng.chance(1, 2) {
                                rng.bytes(len)
                            } else {
                                vec![b'e'; len]
                            }
                        })
                        .collect();
                    let begin = span.map_or(first, |(begin, _)| begin);
                    self.spans
                        .insert(group, (begin, first + payloads.len() as u64));
                    Op::Entries(first, payloads)
                }
                6..8 => {
                    let Some((first, next)) = span else { continue };
                    let index = first + rng.below(next - first + 1);
                    if index == next {
                        self.spans.remove(&group);
                    } else {
                        self.spans.insert(group, (index, next));
                    }
                    Op::Compact(index)
                }
                8 if rng.chance(1, 5) => {
                    self.spans.remove(&group);
                    Op::Clean
                }
                8..11 => {
                    let len = rng.range(0..40);
                    Op::Put(vec![b'a' + rng.below(6) as u8], rng.bytes(len))
                }
                _ => Op::Delete(vec![b'a' + rng.below(6) as u8]),
            };
            ops.push((group, op));
        }
        Batch(ops)
    }

    /// Goes on with what the engine has: it may have more again than it had.
    pub(crate) fn begin_anew(&mut self, engine: &Theirs) {
        let ids = engine.groups().into_iter();
        let spans = ids.filter_map(|id| Some((id, engine.span(id)?)));
        self.spans = spans
            .map(|(id, (first, last))| (id, (first, last + 1)))
            .collect();
    }

    /// The same, with ours.
    pub(crate) fn begin_anew_with(&mut self, engine: &Engine) {
        let ids = engine.raft_groups().into_iter();
        let spans =
            ids.filter_map(|id| Some((id, (engine.first_index(id)?, engine.last_index(id)? + 1))));
        self.spans = spans.collect();
    }

    /// Lets go of what a purge asks for, but for the last entry.
    pub(crate) fn compact(&mut self, group: u64, engine: &Theirs) {
        if let Some((_, last)) = engine.span(group) {
            engine.write(&self.compacted(group, last), false);
        }
    }

    /// Lets go of a group's entries but for the last.
    pub(crate) fn compacted(&mut self, group: u64, last: u64) -> Batch {
        self.spans.insert(group, (last, last + 1));
        Batch(vec![(group, Op::Compact(last))])
    }
}

/// First and last index of a group, its entries, and its keys.
type Group = (Option<(u64, u64)>, Vec<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

/// All that an engine shows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen(BTreeMap<u64, Group>);

impl Seen {
    /// All but one group.
    pub(crate) fn without(mut self, group: u64) -> Self {
        self.0.remove(&group);
        self
    }

    /// The groups that have anything.
    pub(crate) fn living(mut self) -> Self {
        self.0
            .retain(|_, (span, _, keys)| span.is_some() || !keys.is_empty());
        self
    }

    /// Fails with the first difference.
    #[track_caller]
    pub(crate) fn assert_same(&self, theirs: &Self, what: &str) {
        self.assert_same_but(theirs, &BTreeSet::new(), what);
    }

    /// The same, but of groups `may_return` theirs may have entries where this has none; how many have.
    #[track_caller]
    pub(crate) fn assert_same_but(
        &self,
        theirs: &Self,
        may_return: &BTreeSet<u64>,
        what: &str,
    ) -> usize {
        let mut returned = 0;
        let ids = |seen: &Self| seen.0.keys().copied().collect::<Vec<_>>();
        assert_eq!(ids(self), ids(theirs), "{what}: groups");
        for (id, (own, other)) in self.0.keys().zip(self.0.values().zip(theirs.0.values())) {
            assert_eq!(own.2, other.2, "{what}: keys of group {id}");
            if own.0.is_none() && other.0.is_some() && may_return.contains(id) {
                returned += 1;
                continue;
            }
            assert_eq!(own.0, other.0, "{what}: indexes of group {id}");
            assert_eq!(own.1.len(), other.1.len(), "{what}: entries of group {id}");
            let place = own.1.iter().zip(&other.1).position(|(a, b)| a != b);
            assert_eq!(place, None, "{what}: entry of group {id}");
        }
        returned
    }

    /// Fails unless all of `live` is there: groups and keys with their values, and the entries of each group at the end of its.
    #[track_caller]
    pub(crate) fn assert_holds(&self, live: &Self, what: &str) {
        for (id, (span, entries, keys)) in &live.0 {
            let own = self.0.get(id);
            if entries.is_empty() && keys.is_empty() {
                continue;
            }
            let (own_span, own_entries, own_keys) =
                own.unwrap_or_else(|| panic!("{what}: group {id} is gone"));
            if let Some((_, last)) = span {
                assert_eq!(
                    own_span.map(|s| s.1),
                    Some(*last),
                    "{what}: end of group {id}"
                );
            }
            assert!(
                own_entries.ends_with(entries),
                "{what}: entries of group {id}: {own_span:?} of {span:?}"
            );
            for pair in keys {
                assert!(own_keys.contains(pair), "{what}: a key of group {id}");
            }
        }
    }

    pub(crate) fn of_ours(engine: &Engine) -> Self {
        let group = |id: u64| {
            let span = engine.first_index(id).zip(engine.last_index(id));
            let mut entries = Vec::new();
            if let Some((first, last)) = span {
                let read = engine.fetch_entries_to(id, first, last + 1, None, &mut entries);
                assert_eq!(read.expect("they are whole") as u64, last + 1 - first);
            }
            let mut keys = Vec::new();
            engine.scan(id, None, None, false, |key, value| {
                keys.push((key.to_vec(), value.to_vec()));
                true
            });
            (span, entries, keys)
        };
        let groups = engine.raft_groups();
        Self(groups.into_iter().map(|id| (id, group(id))).collect())
    }

    pub(crate) fn of_theirs(engine: &Theirs) -> Self {
        let mut groups = BTreeMap::new();
        for id in engine.groups() {
            let span = engine.span(id);
            let entries = match span {
                Some((first, last)) => engine.entries(id, first, last),
                None => Vec::new(),
            };
            groups.insert(id, (span, entries, engine.keys(id)));
        }
        Self(groups)
    }
}
