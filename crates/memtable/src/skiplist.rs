//! The memtable over the skip list.
//!
//! Point entries lie in the list under their internal keys, range tombstones beside it.

use orogen_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use orogen_base::key::KIND_FOR_SEEK;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{InternalIterator, ParsedInternalKey, SeqNo, UserComparator, ValueKind};

use crate::iter::Iter;
use crate::list::SkipList;
use crate::range_tombstones::RangeTombstones;
use crate::{MemTable, Visit};

/// A memtable that is a concurrent skip list.
pub struct SkipListMemTable {
    list: SkipList,
    range_tombstones: RangeTombstones,
    entries: AtomicU64,
    deletions: AtomicU64,
}

impl SkipListMemTable {
    /// An empty memtable with user keys in the order of `comparator`.
    #[must_use]
    pub fn new(comparator: UserComparator) -> Arc<Self> {
        Arc::new(Self {
            list: SkipList::new(comparator),
            range_tombstones: RangeTombstones::default(),
            entries: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
        })
    }

    pub(crate) fn list(&self) -> &SkipList {
        &self.list
    }
}

impl MemTable for SkipListMemTable {
    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) {
        debug_assert!(
            kind != ValueKind::RangeDeletion,
            "range tombstones lie apart"
        );
        self.list.insert(key, seqno, kind, value);
        self.entries.fetch_add(1, Ordering::Relaxed);
        if matches!(kind, ValueKind::Deletion | ValueKind::SingleDeletion) {
            self.deletions.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) {
        let (start, end) = (start.to_vec(), end.to_vec());
        self.range_tombstones
            .add(RangeTombstone { start, end, seqno });
    }

    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) {
        let probe = self
            .list
            .probe(key, (read_seqno << 8) | u64::from(KIND_FOR_SEEK));
        let (_, mut here) = self.list.find(&probe);
        while let Some(node) = here.filter(|&n| self.list.has_user_key(n, &probe)) {
            let parsed = ParsedInternalKey::parse(node.key()).expect("inserted with a known kind");
            if visit(parsed, node.value()) == Visit::Stop {
                return;
            }
            here = node.following();
        }
    }

    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        Box::new(Iter::new(self))
    }

    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.range_tombstones.fragments(self.list.order())
    }

    fn has_range_tombstones(&self) -> bool {
        self.range_tombstones.count() > 0
    }

    fn memory_usage(&self) -> usize {
        self.list.memory_usage() + self.range_tombstones.memory_usage()
    }

    fn entry_count(&self) -> u64 {
        self.entries.load(Ordering::Relaxed) + self.range_tombstones.count()
    }

    fn deletion_count(&self) -> u64 {
        self.deletions.load(Ordering::Relaxed) + self.range_tombstones.count()
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, orogen_shuttle))]
mod model;
