//! A history of writes spread over memtables and levels, as flushes and partial compactions do.

use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::metrics::Statistics;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{FileNo, SeqNo, UserComparator, ValueKind};
use orogen_memtable::{GuidedListMemTable, MemTable};

use super::{Op, Random, SimTable, SimTables, internal_key, merge_operator, pointer_to};
use crate::plugin::merge_operator::MergeOperator;
use crate::read::Places;
use crate::version::{FileMeta, Version, VersionBuilder, VersionEdit};

/// A history spread over places.
pub(crate) struct Lsm {
    pub(crate) order: InternalKeyComparator,
    /// Newest first.
    pub(crate) memtables: Vec<Arc<dyn MemTable>>,
    pub(crate) version: Arc<Version>,
    pub(crate) tables: Arc<SimTables>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) operator: Arc<dyn MergeOperator>,
    /// Readers below this may not exist any more.
    pub(crate) oldest_reader: SeqNo,
}

/// Entries and tombstones of one place, with their sequence numbers.
#[derive(Default)]
struct Chunk {
    points: Vec<(Vec<u8>, SeqNo, ValueKind, Vec<u8>)>,
    tombstones: Vec<RangeTombstone>,
}

impl Chunk {
    fn add(&mut self, seqno: SeqNo, op: &Op) {
        match op {
            Op::Point(k, kind, v) => self.points.push((k.clone(), seqno, *kind, v.clone())),
            Op::DeleteRange(a, b) => {
                self.tombstones.push(RangeTombstone {
                    start: a.clone(),
                    end: b.clone(),
                    seqno,
                });
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.points.is_empty() && self.tombstones.is_empty()
    }
}

impl Lsm {
    pub(crate) fn places(
        &self,
    ) -> Places<'_, SimTables, impl Iterator<Item = &Arc<dyn MemTable>> + Clone> {
        Places {
            memtables: self.memtables.iter(),
            version: &self.version,
            tables: &self.tables,
            table_options: &(),
            merge_operator: Some(&self.operator),
            statistics: &self.statistics,
        }
    }

    /// Spreads a history: each place has what is older than the place before it. Level 0 and the
    /// memtables hold all keys of a time; in deeper levels each stretch of keys has times of its
    /// own, as partial compactions make them, and files are cut anywhere, between versions of one
    /// key too. Tombstones of deep files reach beyond the files, as they do where a file was
    /// moved away from its neighbours, and what the last level holds has lost its sequence
    /// numbers as far as no reader can tell.
    pub(crate) fn spread(r: &mut Random, order: &UserComparator, history: &[Op]) -> Self {
        let icmp = InternalKeyComparator::new(order.clone());
        let mut spread = Spread {
            order: icmp.clone(),
            tables: SimTables::new(icmp.clone()),
            edit: VersionEdit::default(),
            next_file: 1,
        };
        let n = history.len();
        let oldest_reader = if r.one_in(2) {
            r.below(n + 1) as SeqNo
        } else {
            0
        };
        // Times at which memtables and files of level 0 begin, falling.
        let shallow = r.below(6);
        let mut cuts: Vec<usize> = (0..shallow).map(|_| r.below(n + 1)).collect();
        cuts.sort_unstable_by(|a, b| b.cmp(a));
        let memtables_count = 1 + r.below(3);
        let mut memtables: Vec<Arc<dyn MemTable>> = Vec::new();
        let mut end = n;
        for start in cuts.iter().copied().chain([0]) {
            let is_deep = start == 0 && memtables.len() >= memtables_count && r.below(4) > 0;
            if is_deep {
                break;
            }
            if memtables.len() < memtables_count {
                let memtable: Arc<dyn MemTable> = GuidedListMemTable::new(order.clone());
                for (i, op) in history.iter().enumerate().take(end).skip(start) {
                    match op {
                        Op::Point(k, kind, v) => {
                            memtable.insert(k, i as SeqNo + 1, *kind, v).unwrap()
                        }
                        Op::DeleteRange(a, b) => {
                            memtable
                                .insert_range_deletion(a, b, i as SeqNo + 1)
                                .unwrap();
                        }
                    }
                }
                memtables.push(memtable);
            } else {
                let mut chunk = Chunk::default();
                for (i, op) in history.iter().enumerate().take(end).skip(start) {
                    chunk.add(i as SeqNo + 1, op);
                }
                if !chunk.is_empty() {
                    // Files of level 0 are told apart by what is newest in them.
                    spread.file(0, &chunk, None, None, false, end as u64);
                }
            }
            end = start;
        }
        if end > 0 {
            spread.levels(r, &history[..end], oldest_reader);
        }
        let mut builder = VersionBuilder::new(&Arc::new(Version::empty(icmp.clone(), 4)));
        builder.apply(&spread.edit).unwrap();
        let version = Arc::new(builder.build().unwrap());
        Self {
            order: icmp,
            memtables,
            version,
            tables: Arc::new(spread.tables),
            statistics: Arc::new(Statistics::new()),
            operator: merge_operator(),
            oldest_reader,
        }
    }
}

/// A spreading under way.
struct Spread {
    order: InternalKeyComparator,
    tables: SimTables,
    edit: VersionEdit,
    next_file: FileNo,
}

impl Spread {
    /// Levels 1 to 3 from what is older than level 0.
    fn levels(&mut self, r: &mut Random, history: &[Op], oldest_reader: SeqNo) {
        let user = self.order.user.clone();
        let mut keys: Vec<Vec<u8>> = history
            .iter()
            .flat_map(|op| match op {
                Op::Point(k, ..) => vec![k.clone()],
                Op::DeleteRange(a, b) => vec![a.clone(), b.clone()],
            })
            .collect();
        keys.sort_by(|a, b| user.compare(a, b));
        keys.dedup();
        // Stretches of keys, each `[start, end)`.
        let mut borders: Vec<Option<Vec<u8>>> = vec![None];
        for k in &keys[1..] {
            if r.one_in(6) {
                borders.push(Some(k.clone()));
            }
        }
        borders.push(None);
        for pair in borders.windows(2) {
            let (start, end) = (pair[0].as_deref(), pair[1].as_deref());
            let mut times: Vec<usize> = (0..2).map(|_| r.below(history.len() + 1)).collect();
            times.sort_unstable();
            // Level 3 has the writes before times[0], level 2 those before times[1].
            for (level, from, to) in [
                (1, times[1], history.len()),
                (2, times[0], times[1]),
                (3, 0, times[0]),
            ] {
                self.stretch(
                    r,
                    level,
                    &history[from..to],
                    from,
                    (start, end),
                    oldest_reader,
                );
            }
        }
    }

    /// The files of one stretch of keys in one level.
    fn stretch(
        &mut self,
        r: &mut Random,
        level: usize,
        history: &[Op],
        from: usize,
        (start, end): (Option<&[u8]>, Option<&[u8]>),
        oldest_reader: SeqNo,
    ) {
        let user = self.order.user.clone();
        let is_inside = |k: &[u8]| {
            start.is_none_or(|s| !user.less(k, s)) && end.is_none_or(|e| user.less(k, e))
        };
        let meets = |a: &[u8], b: &[u8]| {
            user.less(a, b)
                && start.is_none_or(|s| user.less(s, b))
                && end.is_none_or(|e| user.less(a, e))
        };
        let mut chunk = Chunk::default();
        for (i, op) in history.iter().enumerate() {
            match op {
                Op::Point(k, ..) if !is_inside(k) => {}
                Op::DeleteRange(a, b) if !meets(a, b) => {}
                _ => chunk.add((from + i) as SeqNo + 1, op),
            }
        }
        if level == 3 {
            forget_history(&user, &mut chunk, oldest_reader);
        }
        let points = &mut chunk.points;
        points.sort_by(|a, b| user.compare(&a.0, &b.0).then(b.1.cmp(&a.1)));
        // Cut into files of a few entries; a cut may fall between versions of one key.
        let mut rest = std::mem::take(&mut chunk.points);
        let mut low = start.map(<[u8]>::to_vec);
        let mut shares_low = false;
        loop {
            let take = if r.one_in(2) {
                rest.len()
            } else {
                r.below(8).min(rest.len())
            };
            let after = rest.split_off(take);
            let high = after
                .first()
                .map(|p| p.0.clone())
                .or_else(|| end.map(<[u8]>::to_vec));
            let shares_high = rest
                .last()
                .zip(after.first())
                .is_some_and(|(a, b)| user.compare(&a.0, &b.0).is_eq());
            let is_last = after.is_empty();
            let mut piece = Chunk {
                points: rest,
                tombstones: Vec::new(),
            };
            piece.tombstones = chunk
                .tombstones
                .iter()
                .filter(|t| {
                    low.as_ref().is_none_or(|l| user.less(l, &t.end))
                        && high.as_ref().is_none_or(|h| {
                            user.less(&t.start, h) && low.as_ref().is_none_or(|l| user.less(l, h))
                        })
                })
                .cloned()
                .collect();
            // A file of nothing but tombstones must end where the next begins.
            if !piece.is_empty() && (!piece.points.is_empty() || is_last) {
                let bounds = (low.as_deref(), high.as_deref());
                self.file(level, &piece, bounds.0, bounds.1, shares_low, 0);
            }
            if is_last {
                return;
            }
            if !piece.points.is_empty() {
                (low, shares_low) = (high, shares_high);
            }
            rest = after;
        }
    }

    /// Adds a file. Its tombstones count between `low` and `high`; they are stored whole.
    fn file(
        &mut self,
        level: usize,
        chunk: &Chunk,
        low: Option<&[u8]>,
        high: Option<&[u8]>,
        shares_low: bool,
        epoch_number: u64,
    ) {
        let user = &self.order.user;
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = chunk
            .points
            .iter()
            .map(|(k, seqno, kind, v)| {
                // Each third value is in a blob file.
                let sum: usize = v.iter().map(|&b| usize::from(b)).sum();
                if *kind == ValueKind::Value && sum.is_multiple_of(3) {
                    let key = internal_key(k, *seqno, ValueKind::BlobIndex);
                    return (key, pointer_to(k, v));
                }
                (internal_key(k, *seqno, *kind), v.clone())
            })
            .collect();
        entries.sort_by(|a, b| self.order.compare(&a.0, &b.0));
        let mut ends: Vec<Vec<u8>> = entries.iter().map(|e| e.0.clone()).collect();
        for t in &chunk.tombstones {
            if !user.less(&t.start, &t.end) {
                continue;
            }
            match low.filter(|l| !user.less(l, &t.start)) {
                Some(l) => {
                    let seqno = if shares_low { 0 } else { t.seqno };
                    ends.push(internal_key(l, seqno, ValueKind::RangeDeletion));
                }
                None => ends.push(internal_key(&t.start, t.seqno, ValueKind::RangeDeletion)),
            }
            let end = high.filter(|h| user.less(h, &t.end)).unwrap_or(&t.end);
            ends.push(internal_key(end, SEQNO_MAX, ValueKind::RangeDeletion));
        }
        ends.sort_by(|a, b| self.order.compare(a, b));
        let (Some(smallest), Some(largest)) = (ends.first(), ends.last()) else {
            return;
        };
        let number = self.next_file;
        self.next_file += 1;
        let seqnos = || {
            let points = chunk.points.iter().map(|p| p.1);
            points.chain(chunk.tombstones.iter().map(|t| t.seqno))
        };
        let meta = FileMeta {
            number,
            size: 1,
            smallest: smallest.clone(),
            largest: largest.clone(),
            smallest_seqno: seqnos().min().unwrap_or(0),
            largest_seqno: seqnos().max().unwrap_or(0),
            epoch_number,
            ..FileMeta::default()
        };
        self.edit.new_files.push((level, meta.into()));
        let tombstones = FragmentedRangeTombstones::new(user, chunk.tombstones.clone());
        let table = SimTable {
            entries: Arc::new(entries),
            tombstones: Arc::new(tombstones),
        };
        self.tables.tables.insert(number, table);
    }
}

/// What a compaction into the last level does for the readers that are left: versions that none
/// of them sees go, the oldest that is seen loses its sequence number.
fn forget_history(user: &UserComparator, chunk: &mut Chunk, oldest_reader: SeqNo) {
    chunk
        .points
        .sort_by(|a, b| user.compare(&a.0, &b.0).then(b.1.cmp(&a.1)));
    let mut kept: Vec<(Vec<u8>, SeqNo, ValueKind, Vec<u8>)> = Vec::new();
    let old: Vec<_> = chunk
        .tombstones
        .iter()
        .filter(|t| t.seqno <= oldest_reader)
        .cloned()
        .collect();
    let old = FragmentedRangeTombstones::new(user, old);
    let mut settled: Option<Vec<u8>> = None;
    for (k, seqno, kind, v) in chunk.points.drain(..) {
        if seqno > oldest_reader {
            kept.push((k, seqno, kind, v));
            continue;
        }
        if settled.as_ref() == Some(&k) {
            continue;
        }
        let is_deleted = seqno < old.max_covering_seqno(user, &k, oldest_reader);
        match kind {
            ValueKind::Merge if !is_deleted => kept.push((k, seqno, kind, v)),
            ValueKind::Value if !is_deleted => {
                let has_operands = kept
                    .last()
                    .is_some_and(|p| p.0 == k && p.1 <= oldest_reader);
                settled = Some(k.clone());
                kept.push((k, if has_operands { seqno } else { 0 }, kind, v));
            }
            _ => settled = Some(k),
        }
    }
    chunk.points = kept;
    chunk.tombstones.retain(|t| t.seqno > oldest_reader);
}
