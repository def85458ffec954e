//! Places made of vectors, for tests: tables that fail on request, a history of writes spread
//! over memtables and levels as flushes and compactions would, and the model it must read like.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use orogen_base::key::{InternalKeyComparator, append_internal_key, seqno_of, user_key};
use orogen_base::metrics::Statistics;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{
    Error, FileNo, InternalIterator, ParsedInternalKey, PinnedValue, Result, SeqNo, UserComparator,
    ValueKind,
};
use orogen_memtable::{MemTable, SkipListMemTable, Visit};
use parking_lot::Mutex;

use super::{GetState, Places, TableAccess};
use crate::plugin::merge_operator::{MergeOperator, StringAppend};
use crate::version::{FileMeta, Version, VersionBuilder, VersionEdit};

/// Numbers that look random, the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963);
        ((self.0 >> 33) % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

pub(crate) fn internal_key(key: &[u8], seqno: SeqNo, kind: ValueKind) -> Vec<u8> {
    let mut out = Vec::new();
    append_internal_key(&mut out, key, seqno, kind);
    out
}

/// Counts down to the operation that fails; negative: none does.
#[derive(Clone)]
pub(crate) struct Fuse(Arc<AtomicI64>);

impl Fuse {
    pub(crate) fn never() -> Self {
        Self(Arc::new(AtomicI64::new(-1)))
    }

    pub(crate) fn set(&self, n: i64) {
        self.0.store(n, SeqCst);
    }

    pub(crate) fn burn(&self) -> Result<()> {
        if self.0.load(SeqCst) >= 0 && self.0.fetch_sub(1, SeqCst) == 0 {
            return Err(Error::corruption("simulated damage"));
        }
        Ok(())
    }
}

pub(crate) type Entries = Arc<Vec<(Vec<u8>, Vec<u8>)>>;

/// A cursor over sorted entries: as simple as can be.
pub(crate) struct VecIter {
    order: InternalKeyComparator,
    entries: Entries,
    /// `entries.len()`: not valid.
    at: usize,
    fuse: Fuse,
    error: Option<Error>,
}

impl VecIter {
    pub(crate) fn new(order: InternalKeyComparator, entries: Entries, fuse: Fuse) -> Self {
        Self {
            order,
            at: entries.len(),
            entries,
            fuse,
            error: None,
        }
    }

    fn go(&mut self, at: Option<usize>) {
        self.at = at.unwrap_or(self.entries.len());
        self.error = self.fuse.burn().err();
    }

    fn lower_bound(&self, target: &[u8]) -> usize {
        self.entries
            .partition_point(|(k, _)| self.order.compare(k, target) == Ordering::Less)
    }
}

impl InternalIterator for VecIter {
    fn valid(&self) -> bool {
        self.at < self.entries.len() && self.error.is_none()
    }
    fn seek_to_first(&mut self) {
        self.go(Some(0));
    }
    fn seek_to_last(&mut self) {
        self.go(self.entries.len().checked_sub(1));
    }
    fn seek(&mut self, target: &[u8]) {
        self.go(Some(self.lower_bound(target)));
    }
    fn seek_for_prev(&mut self, target: &[u8]) {
        let is_after = |(k, _): &(Vec<u8>, Vec<u8>)| self.order.compare(k, target).is_gt();
        self.go(self
            .entries
            .partition_point(|e| !is_after(e))
            .checked_sub(1));
    }
    fn next(&mut self) {
        assert!(self.valid(), "next of a cursor that is not valid");
        self.go(Some(self.at + 1));
    }
    fn prev(&mut self) {
        assert!(self.valid(), "prev of a cursor that is not valid");
        self.go(self.at.checked_sub(1));
    }
    fn key(&self) -> &[u8] {
        &self.entries[self.at].0
    }
    fn value(&self) -> &[u8] {
        &self.entries[self.at].1
    }
    fn status(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }
}

/// What a simulated table holds.
#[derive(Default)]
pub(crate) struct SimTable {
    pub(crate) entries: Entries,
    pub(crate) tombstones: Arc<FragmentedRangeTombstones>,
}

/// All simulated tables by the numbers of their files.
pub(crate) struct SimTables {
    pub(crate) order: InternalKeyComparator,
    pub(crate) tables: BTreeMap<FileNo, SimTable>,
    pub(crate) fuse: Fuse,
    /// The files that were opened for iteration.
    pub(crate) opened: Mutex<Vec<FileNo>>,
}

impl SimTables {
    pub(crate) fn new(order: InternalKeyComparator) -> Self {
        Self {
            order,
            tables: BTreeMap::new(),
            fuse: Fuse::never(),
            opened: Mutex::default(),
        }
    }
}

impl TableAccess for SimTables {
    type Iter = VecIter;
    type Options = ();

    fn iter(&self, file: &Arc<FileMeta>, (): &()) -> Result<VecIter> {
        self.fuse.burn()?;
        self.opened.lock().push(file.number);
        let entries = self.tables[&file.number].entries.clone();
        Ok(VecIter::new(self.order.clone(), entries, self.fuse.clone()))
    }

    fn range_tombstones(&self, file: &Arc<FileMeta>) -> Result<Arc<FragmentedRangeTombstones>> {
        self.fuse.burn()?;
        Ok(self.tables[&file.number].tombstones.clone())
    }

    fn may_have_range_tombstones(&self, file: &FileMeta) -> bool {
        // Every other file without tombstones is not known to have none.
        file.number.is_multiple_of(2) || !self.tables[&file.number].tombstones.is_empty()
    }

    fn get(&self, file: &Arc<FileMeta>, (): &(), state: &mut GetState<'_>) -> Result<()> {
        self.fuse.burn()?;
        let user = &self.order.user;
        for (k, v) in self.tables[&file.number].entries.iter() {
            if user.compare(user_key(k), state.user_key()).is_eq()
                && seqno_of(k) <= state.read_seqno()
                && state.visit(ParsedInternalKey::parse(k)?, || {
                    PinnedValue::from(v.as_slice())
                }) == Visit::Stop
            {
                break;
            }
        }
        Ok(())
    }
}

/// One write of a history.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Point(Vec<u8>, ValueKind, Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Writes in order; the first has sequence number 1.
pub(crate) type History = Vec<Op>;

pub(crate) fn merge_operator() -> Arc<dyn MergeOperator> {
    Arc::new(StringAppend::default())
}

/// A key of a small universe; the keys have different lengths and share beginnings.
pub(crate) fn key(i: usize) -> Vec<u8> {
    match i % 3 {
        0 => format!("k{:02}", i / 3).into_bytes(),
        1 => format!("k{:02}long-enough-to-differ-late", i / 3).into_bytes(),
        _ => format!("k{:02}long-enough-to-differ-later", i / 3).into_bytes(),
    }
}

pub(crate) fn random_history(r: &mut Random, order: &UserComparator, keys: usize) -> History {
    let len = r.below(60) + r.below(200);
    let range_share = *r.pick(&[0, 10, 30]);
    let favourite = r.below(keys);
    (0..len)
        .map(|i| {
            let k = if r.one_in(4) {
                favourite
            } else {
                r.below(keys)
            };
            if r.below(100) < range_share {
                let (mut a, mut b) = (key(k), key(r.below(keys)));
                if order.less(&b, &a) {
                    std::mem::swap(&mut a, &mut b);
                }
                return Op::DeleteRange(a, b);
            }
            let long = if r.one_in(6) {
                "v".repeat(300)
            } else {
                String::new()
            };
            let value = format!("{}{long}", i + 1).into_bytes();
            match r.below(10) {
                0 | 1 => Op::Point(key(k), ValueKind::Deletion, Vec::new()),
                2 => Op::Point(key(k), ValueKind::SingleDeletion, Vec::new()),
                3..=5 => Op::Point(key(k), ValueKind::Merge, value),
                _ => Op::Point(key(k), ValueKind::Value, value),
            }
        })
        .collect()
}

/// What a reader at `read_seqno` must see, in the order of `order`.
pub(crate) fn model(
    order: &UserComparator,
    history: &[Op],
    read_seqno: SeqNo,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut map: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for op in history.iter().take(read_seqno as usize) {
        match op {
            Op::Point(k, ValueKind::Value, v) => {
                map.insert(k.clone(), v.clone());
            }
            Op::Point(k, ValueKind::Merge, v) => {
                let old = map.remove(k);
                let new = match old {
                    Some(old) => [&old[..], b",", v].concat(),
                    None => v.clone(),
                };
                map.insert(k.clone(), new);
            }
            Op::Point(k, ..) => {
                map.remove(k);
            }
            Op::DeleteRange(a, b) => {
                map.retain(|k, _| order.less(k, a) || !order.less(k, b));
            }
        }
    }
    let mut all: Vec<_> = map.into_iter().collect();
    all.sort_by(|a, b| order.compare(&a.0, &b.0));
    all
}

/// A history spread over places.
pub(crate) struct Lsm {
    pub(crate) order: InternalKeyComparator,
    /// Newest first.
    pub(crate) memtables: Vec<Arc<dyn MemTable>>,
    pub(crate) version: Version,
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
                let memtable: Arc<dyn MemTable> = SkipListMemTable::new(order.clone());
                for (i, op) in history.iter().enumerate().take(end).skip(start) {
                    match op {
                        Op::Point(k, kind, v) => memtable.insert(k, i as SeqNo + 1, *kind, v),
                        Op::DeleteRange(a, b) => {
                            memtable.insert_range_deletion(a, b, i as SeqNo + 1);
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
        let version = builder.build().unwrap();
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
            .map(|(k, seqno, kind, v)| (internal_key(k, *seqno, *kind), v.clone()))
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
