//! Entries as they came, sorted when they are first read.
//!
//! ```text
//! insert: append to the bytes, note where          iter, get: sort once, then binary search
//! ```
//! For a memtable that is filled by recovery and then written to a table at once: nobody looks
//! anything up meanwhile, and to sort many entries together costs a small part of finding the
//! place of each. Inserts wait for one another.
//!
//! Invariants: (1) once it was read it takes no entries; (2) an entry's bytes (internal key, then
//! value) lie in one piece.
//! Source: RocksDB `memtable/vectorrep.cc`.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use orogen_base::key::{append_internal_key, append_seek_key, trailer, user_key};
use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::sync::Mutex;
use orogen_base::{
    InternalIterator, ParsedInternalKey, Result, SeqNo, UserComparator, ValueKind, memory,
};

use crate::prefetch::prefetch;
use crate::prefix::prefix;
use crate::range_tombstones::RangeTombstones;
use crate::{Growth, MemTable, Moment, Visit};

/// Bytes that are taken from the allocator at once: few at first, for small memtables are many. Larger entries get their
/// own.
const PIECE_LEN_MIN: usize = 4 << 10;
const PIECE_LEN_MAX: usize = 1 << 20;

/// Entries that there is room for at first.
const ENTRIES_MIN: usize = 64;

/// Entries that are fetched before a cursor that goes forward stands on them: in the order of keys
/// each lies elsewhere.
const AHEAD: usize = 12;
/// Bytes of an entry that are.
const AHEAD_BYTES_MAX: usize = 512;

/// Where an entry is.
#[derive(Clone, Copy)]
struct Entry {
    /// Orders as the keys do, as far as it differs.
    prefix: u64,
    piece: u32,
    at: u32,
    /// Of the internal key.
    key_len: u32,
    value_len: u32,
}

#[derive(Default)]
struct Entries {
    pieces: Vec<Vec<u8>>,
    entries: Vec<Entry>,
}

impl Entries {
    #[inline]
    fn key(&self, entry: Entry) -> &[u8] {
        let at = entry.at as usize;
        &self.pieces[entry.piece as usize][at..at + entry.key_len as usize]
    }

    #[inline]
    fn value(&self, entry: Entry) -> &[u8] {
        let at = entry.at as usize + entry.key_len as usize;
        &self.pieces[entry.piece as usize][at..at + entry.value_len as usize]
    }

    #[inline]
    fn prefetch(&self, entry: Entry) {
        let at = entry.at as usize;
        let len = entry.key_len as usize + entry.value_len as usize;
        prefetch(&self.pieces[entry.piece as usize][at..at + len.min(AHEAD_BYTES_MAX)]);
    }
}

/// The order of internal keys.
fn compare(order: &UserComparator, a: &[u8], b: &[u8]) -> Ordering {
    order
        .compare(user_key(a), user_key(b))
        .then_with(|| trailer(b).cmp(&trailer(a)))
}

/// A memtable that is filled first and read then.
pub struct VectorMemTable {
    order: UserComparator,
    bytewise: bool,
    filling: Mutex<Entries>,
    sorted: OnceLock<Arc<Entries>>,
    range_tombstones: RangeTombstones,
    entries: AtomicU64,
    deletions: AtomicU64,
    bytes: AtomicUsize,
    /// Bytes of pieces and of the list of entries, with what is free in them.
    allocated: AtomicUsize,
    piece_max: AtomicUsize,
    /// The last: it is told that the memory is given back by its own end.
    grows: OnceLock<Growth>,
}

impl VectorMemTable {
    /// An empty memtable with user keys in the order of `comparator`.
    #[must_use]
    pub fn new(comparator: UserComparator) -> Arc<Self> {
        Arc::new(Self {
            bytewise: comparator.is_bytewise(),
            order: comparator,
            filling: Mutex::default(),
            sorted: OnceLock::new(),
            range_tombstones: RangeTombstones::default(),
            entries: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            allocated: AtomicUsize::new(0),
            piece_max: AtomicUsize::new(PIECE_LEN_MAX),
            grows: OnceLock::new(),
        })
    }

    /// Sees to it that there is room for one entry more, and for `len` bytes in the last piece.
    fn make_room(&self, filling: &mut Entries, len: usize) -> Result<()> {
        let piece_max = self.piece_max.load(Relaxed);
        let entries = &mut filling.entries;
        let had = entries.capacity();
        if entries.len() == had {
            let more = had.clamp(ENTRIES_MIN, piece_max / size_of::<Entry>());
            self.grow(more * size_of::<Entry>(), || {
                memory::reserve_exact(entries, more, "memtable")
            })?;
        }
        let last = filling.pieces.last();
        if last.is_some_and(|p| p.capacity() - p.len() >= len) {
            return Ok(());
        }
        let twice = last.map_or(PIECE_LEN_MIN, |p| 2 * p.capacity());
        let capacity = len.max(twice.min(piece_max));
        self.grow(capacity, || {
            let piece = memory::with_capacity(capacity, "memtable")?;
            memory::push(&mut filling.pieces, piece, "memtable")
        })
    }

    /// Takes `bytes` more from the system, and tells of them.
    fn grow(&self, bytes: usize, take: impl FnOnce() -> Result<()>) -> Result<()> {
        let tell = |moment| self.grows.get().map_or((), |grows| grows(moment, bytes));
        tell(Moment::Before);
        let taken = take();
        if taken.is_ok() {
            self.allocated.fetch_add(bytes, Relaxed);
        }
        tell(match taken {
            Ok(()) => Moment::After,
            Err(_) => Moment::Not,
        });
        taken
    }

    #[inline]
    fn prefix(&self, user_key: &[u8]) -> u64 {
        prefix(self.bytewise, user_key)
    }

    fn sorted(&self) -> &Arc<Entries> {
        self.sorted.get_or_init(|| {
            let mut all = std::mem::take(&mut *self.filling.lock());
            let mut entries = std::mem::take(&mut all.entries);
            entries.sort_unstable_by(|&a, &b| {
                a.prefix
                    .cmp(&b.prefix)
                    .then_with(|| compare(&self.order, all.key(a), all.key(b)))
            });
            all.entries = entries;
            Arc::new(all)
        })
    }
}

impl MemTable for VectorMemTable {
    /// # Panics
    /// If it was read already.
    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        debug_assert!(
            kind != ValueKind::RangeDeletion,
            "range tombstones lie apart"
        );
        let prefix = self.prefix(key);
        let mut filling = self.filling.lock();
        assert!(
            self.sorted.get().is_none(),
            "it takes no entries once it was read"
        );
        let key_len = key.len() + orogen_base::key::TRAILER_LEN;
        self.make_room(&mut filling, key_len + value.len())?;
        let number = filling.pieces.len() - 1;
        let piece = &mut filling.pieces[number];
        let at = piece.len();
        append_internal_key(piece, key, seqno, kind);
        piece.extend_from_slice(value);
        filling.entries.push(Entry {
            prefix,
            piece: number as u32,
            at: at as u32,
            key_len: key_len as u32,
            value_len: value.len() as u32,
        });
        drop(filling);
        let bytes = key_len + value.len() + size_of::<Entry>();
        self.bytes.fetch_add(bytes, Relaxed);
        self.entries.fetch_add(1, Relaxed);
        if matches!(kind, ValueKind::Deletion | ValueKind::SingleDeletion) {
            self.deletions.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()> {
        let (start, end) = (start.to_vec(), end.to_vec());
        self.range_tombstones
            .add(&self.order, RangeTombstone { start, end, seqno })
    }

    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) -> Result<()> {
        let all = self.sorted();
        let mut target = Vec::new();
        append_seek_key(&mut target, key, read_seqno);
        let from = all
            .entries
            .partition_point(|&e| compare(&self.order, all.key(e), &target).is_lt());
        for &entry in &all.entries[from..] {
            let parsed = ParsedInternalKey::parse(all.key(entry))?;
            if self.order.compare(parsed.user_key, key).is_ne()
                || visit(parsed, all.value(entry)) == Visit::Stop
            {
                break;
            }
        }
        Ok(())
    }

    /// A cursor over the entries that there are; it takes no more from here on.
    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        let all = self.sorted().clone();
        Box::new(Iter {
            at: all.entries.len(),
            all,
            order: self.order.clone(),
        })
    }

    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.range_tombstones.fragments(&self.order)
    }

    fn raw_range_tombstones(&self) -> Vec<RangeTombstone> {
        self.range_tombstones.all()
    }

    fn has_range_tombstones(&self) -> bool {
        self.range_tombstones.count() > 0
    }

    fn memory_usage(&self) -> usize {
        self.bytes.load(Relaxed) + self.range_tombstones.memory_usage()
    }

    fn memory_allocated(&self) -> usize {
        self.allocated.load(Relaxed) + self.range_tombstones.memory_usage()
    }

    fn watch_growth(&self, grows: Growth) {
        let _ = self.grows.set(grows);
    }

    fn allocate_ahead_at_most(&self, bytes: usize) {
        let bytes = bytes.clamp(PIECE_LEN_MIN, PIECE_LEN_MAX);
        self.piece_max.store(bytes, Relaxed);
    }

    fn entry_count(&self) -> u64 {
        self.entries.load(Relaxed) + self.range_tombstones.count()
    }

    fn deletion_count(&self) -> u64 {
        self.deletions.load(Relaxed) + self.range_tombstones.count()
    }
}

/// Stands on an entry, or behind all of them.
struct Iter {
    all: Arc<Entries>,
    at: usize,
    order: UserComparator,
}

impl Iter {
    /// Entries before `target`, and with `or_at` the one that is it.
    fn before(&self, target: &[u8], or_at: bool) -> usize {
        self.all.entries.partition_point(|&e| {
            let ordering = compare(&self.order, self.all.key(e), target);
            ordering.is_lt() || or_at && ordering.is_eq()
        })
    }
}

impl InternalIterator for Iter {
    #[inline]
    fn valid(&self) -> bool {
        self.at < self.all.entries.len()
    }

    fn seek_to_first(&mut self) {
        self.at = 0;
    }

    fn seek_to_last(&mut self) {
        let len = self.all.entries.len();
        self.at = len.checked_sub(1).unwrap_or(len);
    }

    fn seek(&mut self, target: &[u8]) {
        self.at = self.before(target, false);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let before = self.before(target, true);
        self.at = before.checked_sub(1).unwrap_or(self.all.entries.len());
    }

    #[inline]
    fn next(&mut self) {
        if let Some(&entry) = self.all.entries.get(self.at + AHEAD) {
            self.all.prefetch(entry);
        }
        self.at += 1;
    }

    fn prev(&mut self) {
        self.at = self.at.checked_sub(1).unwrap_or(self.all.entries.len());
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.all.key(self.all.entries[self.at])
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.all.value(self.all.entries[self.at])
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
