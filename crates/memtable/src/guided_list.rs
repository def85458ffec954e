//! The memtable over the guided list.
//!
//! Point entries lie in the list under their internal keys, range tombstones beside it.

use orogen_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use orogen_base::key::KIND_FOR_SEEK;
use orogen_base::protection::Protection;
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{
    Error, InternalIterator, ParsedInternalKey, Result, SeqNo, UserComparator, ValueKind,
};
use orogen_env::memory::PagePool;

use crate::iter::Iter;
use crate::list::List;
use crate::node::{LONG_LEN, Node};
use crate::range_tombstones::RangeTombstones;
use crate::trie;
use crate::{Growth, MemTable, Visit};

/// A memtable that is a sorted list with a tree that guides into it.
pub struct GuidedListMemTable {
    list: List,
    range_tombstones: RangeTombstones,
    entries: AtomicU64,
    deletions: AtomicU64,
    /// Behind each value stands the entry's checksum.
    protected: bool,
    /// The write buffer of tries beside which it is made.
    beside_tries: Option<u64>,
}

/// What entries take of the arena beside their bytes: node, trailer, checksum and alignment.
const ENTRY_OVERHEAD: usize = LONG_LEN + 8 + 8 + 8;

#[inline]
pub(crate) fn arena_bytes(entries: usize, bytes: usize) -> usize {
    bytes + entries * ENTRY_OVERHEAD
}

impl GuidedListMemTable {
    /// An empty memtable with user keys in the order of `comparator`.
    #[must_use]
    pub fn new(comparator: UserComparator) -> Arc<Self> {
        Self::with_protection(comparator, false)
    }

    /// The same; if `protected`, with a checksum of 8 bytes for each point entry, which is compared
    /// whenever the entry is read.
    #[must_use]
    pub fn with_protection(comparator: UserComparator, protected: bool) -> Arc<Self> {
        Self::with(comparator, protected, None)
    }

    /// The same for a family that has tries of such a write buffer at other times: what those would refuse is
    /// refused, so that a log or a prepared transaction never has what only a list takes.
    #[must_use]
    pub fn beside_tries(comparator: UserComparator, write_buffer_size: u64) -> Arc<Self> {
        Self::with(comparator, false, Some(write_buffer_size))
    }

    fn with(comparator: UserComparator, protected: bool, beside_tries: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            protected,
            beside_tries,
            list: List::new(comparator),
            range_tombstones: RangeTombstones::default(),
            entries: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
        })
    }

    pub(crate) fn list(&self) -> &List {
        &self.list
    }

    /// Key and value of a node with a checksum, which is compared.
    fn verified<'a>(&self, node: Node<'a>) -> Result<(ParsedInternalKey<'a>, &'a [u8])> {
        let key = ParsedInternalKey::parse(node.key());
        if let (Ok(key), Some((value, sum))) = (key, node.value().split_last_chunk()) {
            let found = Protection::of(key.user_key, key.kind as u8, value).with_seqno(key.seqno);
            if found.to_bytes() == *sum {
                return Ok((key, value));
            }
        }
        let key = node.user_key().escape_ascii();
        Err(Error::corruption("memtable entry is not what was inserted").with("key", key))
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.protected
    }

    /// Key and value of a node.
    ///
    /// # Errors
    /// `Corruption` if they are protected and not what was inserted.
    #[inline]
    pub(crate) fn entry<'a>(&self, node: Node<'a>) -> Result<(ParsedInternalKey<'a>, &'a [u8])> {
        if self.protected {
            return self.verified(node);
        }
        let key = ParsedInternalKey::parse(node.key()).expect("inserted with a known kind");
        Ok((key, node.value()))
    }
}

impl MemTable for GuidedListMemTable {
    fn check_group(&self, entries: usize, bytes: usize) -> Result<()> {
        match self.beside_tries {
            Some(write_buffer_size) => trie::check_group_of(write_buffer_size, entries, bytes),
            None => Ok(()),
        }
    }

    #[inline]
    fn promise(&self, entries: usize, bytes: usize) -> Result<()> {
        self.check_group(entries, bytes)?;
        self.list.promise(arena_bytes(entries, bytes))
    }

    #[inline]
    fn release(&self, entries: usize, bytes: usize) {
        self.list.release(arena_bytes(entries, bytes));
    }

    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        debug_assert!(
            kind != ValueKind::RangeDeletion,
            "range tombstones lie apart"
        );
        if self.protected {
            let sum = Protection::of(key, kind as u8, value).with_seqno(seqno);
            self.list.insert(key, seqno, kind, value, &sum.to_bytes())?;
        } else {
            self.list.insert(key, seqno, kind, value, &[])?;
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        if matches!(kind, ValueKind::Deletion | ValueKind::SingleDeletion) {
            self.deletions.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()> {
        let (start, end) = (start.to_vec(), end.to_vec());
        self.range_tombstones
            .add(self.list.order(), RangeTombstone { start, end, seqno })
    }

    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) -> Result<()> {
        let probe = self
            .list
            .probe(key, (read_seqno << 8) | u64::from(KIND_FOR_SEEK));
        let (before, mut here) = self.list.find(&probe);
        if self.protected {
            // A key that changed is not the one that is looked for, and may stand in its place.
            for node in [before, here].into_iter().flatten() {
                self.verified(node)?;
            }
        }
        while let Some(node) = here.filter(|&n| self.list.has_user_key(n, &probe)) {
            let (parsed, value) = self.entry(node)?;
            if visit(parsed, value) == Visit::Stop {
                break;
            }
            here = node.following();
        }
        Ok(())
    }

    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        Box::new(Iter::new(self))
    }

    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.range_tombstones.fragments(self.list.order())
    }

    fn raw_range_tombstones(&self) -> Vec<RangeTombstone> {
        self.range_tombstones.all()
    }

    fn has_range_tombstones(&self) -> bool {
        self.range_tombstones.count() > 0
    }

    fn memory_usage(&self) -> usize {
        self.list.memory_usage() + self.range_tombstones.memory_usage()
    }

    fn watch_growth(&self, grows: Growth) {
        self.list.watch_growth(grows);
    }

    fn allocate_ahead_at_most(&self, bytes: usize) {
        self.list.allocate_ahead_at_most(bytes);
    }

    fn use_pages(&self, pool: Arc<PagePool>) {
        self.list.use_pages(&pool);
    }

    fn memory_allocated(&self) -> usize {
        self.list.memory_allocated() + self.range_tombstones.memory_usage()
    }

    fn entry_count(&self) -> u64 {
        self.entries.load(Ordering::Relaxed) + self.range_tombstones.count()
    }

    fn deletion_count(&self) -> u64 {
        self.deletions.load(Ordering::Relaxed) + self.range_tombstones.count()
    }
}
