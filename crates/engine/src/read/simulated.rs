//! Places made of vectors, for tests: tables that fail on request, a history of writes spread
//! over memtables and levels as flushes and compactions would, and the model it must read like.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use orogen_base::key::{InternalKeyComparator, append_internal_key, seqno_of, user_key};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{
    Error, FileNo, InternalIterator, ParsedInternalKey, PinnedValue, Result, SeqNo, UserComparator,
    ValueKind,
};
use orogen_memtable::Visit;
use parking_lot::Mutex;

use super::{GetState, TableAccess};

mod spread;

use crate::plugin::merge_operator::{MergeOperator, StringAppend};
use crate::version::{FileMeta, Version};
pub(crate) use spread::Lsm;

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

/// Bytes of a key that are its prefix.
pub(crate) const PREFIX_LEN: usize = 3;

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
    type Readahead = ();

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

    fn may_hold_prefix(
        &self,
        file: &Arc<FileMeta>,
        (): &(),
        _: &dyn SliceTransform,
        user_key: &[u8],
    ) -> Result<bool> {
        self.fuse.burn()?;
        // Every fifth file has no filter.
        let entries = &self.tables[&file.number].entries;
        let has_prefix = |e: &(Vec<u8>, Vec<u8>)| e.0.starts_with(&user_key[..PREFIX_LEN]);
        Ok(file.number.is_multiple_of(5) || entries.iter().any(has_prefix))
    }

    fn blob(&self, _: &Version, pointer: &[u8], user_key: &[u8], (): &()) -> Result<PinnedValue> {
        self.fuse.burn()?;
        let bad = || Error::corruption("pointer leads nowhere");
        let [0xfe, len, rest @ ..] = pointer else {
            return Err(bad());
        };
        let (key, value) = rest.split_at(usize::from(*len));
        if key != user_key {
            return Err(bad());
        }
        PinnedValue::copied(value)
    }

    fn get(&self, file: &Arc<FileMeta>, (): &(), state: &mut GetState<'_>) -> Result<()> {
        self.fuse.burn()?;
        let user = &self.order.user;
        for (k, v) in self.tables[&file.number].entries.iter() {
            if user.compare(user_key(k), state.user_key()).is_eq()
                && seqno_of(k) <= state.read_seqno()
                && state.visit(ParsedInternalKey::parse(k)?, || PinnedValue::copied(v))
                    == Visit::Stop
            {
                break;
            }
        }
        Ok(())
    }
}

/// What tables hold in place of some values: a mark, and the key and the value behind it.
pub(crate) fn pointer_to(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&[0xfe, key.len() as u8], key, value].concat()
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
