//! The memtable over the trie: user keys in bytewise order, versions behind each.
//!
//! ```text
//! insert -> trie: key and first version in one piece; later versions are linked behind the key (trie/versions.rs)
//! get    -> trie: the key's cell; its newest version up to the number
//! ```
//! Nothing that an entry needs is taken away before the memtable is: values and versions lie where they were
//! written, so what was found stays valid without being inside of the trie.
//!
//! ADR: docs/adr/2026-11-23-trie-memtable.md.

mod iter;
mod versions;

use std::path::Path;
use std::sync::Arc;

use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicU64, Ordering};
use orogen_base::{
    Error, InternalIterator, ParsedInternalKey, Result, SeqNo, UserComparator, ValueKind, key,
};
use orogen_env::memory::PagePool;
use orogen_trie::{BLOCK_MAX, Trie};

use crate::range_tombstones::RangeTombstones;
use crate::{Growth, MemTable, Moment, Visit};
use iter::Iter;
use versions::{BESIDE_MAX, ROOT, Record};

/// Addresses beside those of the write buffer: for the group that makes it full, and what is promised for it.
const SPARE_ADDRESSES: usize = 6 << 30;
/// Most bytes of one promise: a value of so many with its record is a single piece of the trie.
const GROUP_MAX: usize = (2 << 30) - 64;
/// Threads that may be slower than others at the same place.
const RACING_MAX: u64 = 16;

/// Words that stay promised between groups, so that a small group need not ask the trie for its own.
const KEPT_WORDS: u64 = 1 << 10;

/// What was promised and not released.
#[derive(Default)]
struct Promised {
    entries: u64,
    bytes: u64,
    /// Words that the trie promised for them, or [`KEPT_WORDS`].
    words: u64,
}

/// A memtable that is a trie of user keys, for bytewise order.
///
/// Memory is committed in steps: a first one of a page of 4 KiB, and as much again each time, up to 2 MiB or what
/// [`MemTable::allocate_ahead_at_most`] leaves. It counts from when it is used.
pub struct TrieMemTable {
    trie: Trie,
    range_tombstones: RangeTombstones,
    entries: AtomicU64,
    deletions: AtomicU64,
    /// A leaf, but for the trie's own.
    promised: Mutex<Promised>,
}

/// # Errors
/// `InvalidArgument` of more than a block can hold.
fn capacity_for(write_buffer_size: u64) -> Result<usize> {
    usize::try_from(write_buffer_size)
        .ok()
        .and_then(|size| size.checked_add(SPARE_ADDRESSES))
        .filter(|&capacity| capacity <= BLOCK_MAX)
        .ok_or_else(|| {
            Error::invalid_argument("write buffer of a trie")
                .with("write_buffer_size", write_buffer_size)
        })
}

/// # Errors
/// `TooLarge` of more than a trie of so many words takes at once.
fn check_group(capacity_words: u64, entries: usize, bytes: usize) -> Result<()> {
    let words = TrieMemTable::words_max(entries as u64, bytes as u64, 0);
    let message = if bytes > GROUP_MAX {
        "more bytes than a memtable takes at once"
    } else if words > capacity_words {
        "more operations than a memtable takes at once"
    } else {
        return Ok(());
    };
    Err(Error::too_large(message)
        .with("operations", entries)
        .with("bytes", bytes)
        .with("bytes_max", GROUP_MAX))
}

/// The same of a trie of a family with such a write buffer; all goes where there can be none.
pub(crate) fn check_group_of(write_buffer_size: u64, entries: usize, bytes: usize) -> Result<()> {
    match capacity_for(write_buffer_size) {
        Ok(capacity) => check_group(Trie::words_of(capacity), entries, bytes),
        Err(_) => Ok(()),
    }
}

impl TrieMemTable {
    /// An empty memtable that takes at least `write_buffer_size` bytes, and 2 GiB more in one promise.
    ///
    /// # Errors
    /// `InvalidArgument` of more than 10 GiB; `NoMemory` if the system has not so many addresses.
    pub fn new(write_buffer_size: u64) -> Result<Arc<Self>> {
        let trie = Trie::new(capacity_for(write_buffer_size)?, 1, 1)?;
        Ok(Self::with(trie))
    }

    /// The same in memory of a memtable before, if `pool` has any, which goes back there.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_pool(pool: &PagePool, write_buffer_size: u64) -> Result<Arc<Self>> {
        let trie = Trie::in_pool(pool, capacity_for(write_buffer_size)?, 1, 1)?;
        Ok(Self::with(trie))
    }

    /// The same with keys and values in a file without a name in `dir`, which goes with the memtable: for write buffers that are
    /// larger than memory. It counts as no memory; the log is what survives a crash, as ever.
    ///
    /// # Errors
    /// As [`Self::new`]; `Io`, `NoSpace` if there can be no file. A disk that gets full later gives `NoMemory` to who writes.
    pub fn in_dir(dir: &Path, write_buffer_size: u64) -> Result<Arc<Self>> {
        let trie = Trie::in_dir(dir, capacity_for(write_buffer_size)?, 1, 1)?;
        Ok(Self::with(trie))
    }

    fn with(trie: Trie) -> Arc<Self> {
        Arc::new(Self {
            trie,
            range_tombstones: RangeTombstones::default(),
            entries: AtomicU64::new(0),
            deletions: AtomicU64::new(0),
            promised: Mutex::default(),
        })
    }

    /// Words that entries need at most, beside `present` others.
    ///
    /// Of each entry, beside its bytes: leaf, record, small nodes, and the same again where another thread was
    /// faster. An insert may have a node copied that has got full: a large one for each insert, but all of them together are at
    /// most a few times as large as the tree is then. A path is as long as the key, in nodes of which each has room for
    /// three of four bytes. Of threads that race at one place each may have a copy of its own, and another piece for each
    /// time that it was late.
    pub(crate) fn words_max(entries: u64, bytes: u64, present: u64) -> u64 {
        let racing = entries.min(RACING_MAX);
        let again = bytes.min(2 * BESIDE_MAX as u64 * entries);
        let late = again / entries.max(1) * racing * racing / 8;
        let copies = (330 * entries).min(10 * present + 32 * entries + 266 * racing);
        64 * entries + bytes * 7 / 12 + again / 4 + late + copies
    }

    /// Words for what is promised now.
    fn words_for(&self, promised: &Promised) -> u64 {
        let present = self.entries.load(Ordering::Relaxed);
        Self::words_max(promised.entries, promised.bytes, present)
    }
}

impl MemTable for TrieMemTable {
    /// # Errors
    /// `TooLarge` of more than 2 GiB, or of so many entries that an empty memtable may not hold them.
    fn check_group(&self, entries: usize, bytes: usize) -> Result<()> {
        check_group(self.trie.capacity_words(), entries, bytes)
    }

    fn promise(&self, entries: usize, bytes: usize) -> Result<()> {
        self.check_group(entries, bytes)?;
        let mut promised = self.promised.lock();
        let after = Promised {
            entries: promised.entries + entries as u64,
            bytes: promised.bytes + bytes as u64,
            words: 0,
        };
        let words = self.words_for(&after).max(promised.words);
        // What is kept is not there any more if the system refused memory: pieces were taken of it then.
        if words > promised.words || !self.trie.backs(words) {
            self.trie.promise(words - promised.words)?;
        }
        *promised = Promised { words, ..after };
        Ok(())
    }

    fn release(&self, entries: usize, bytes: usize) {
        let mut promised = self.promised.lock();
        promised.entries -= entries as u64;
        promised.bytes -= bytes as u64;
        let words = self.words_for(&promised).max(KEPT_WORDS);
        if words < promised.words {
            self.trie.release(promised.words - words);
            promised.words = words;
        }
    }

    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        debug_assert!(
            kind != ValueKind::RangeDeletion,
            "range tombstones lie apart"
        );
        versions::add(&self.trie, key, key::pack(seqno, kind), value)?;
        self.entries.fetch_add(1, Ordering::Relaxed);
        if matches!(kind, ValueKind::Deletion | ValueKind::SingleDeletion) {
            self.deletions.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()> {
        let (start, end) = (start.to_vec(), end.to_vec());
        self.range_tombstones.add(
            &UserComparator::BYTEWISE,
            RangeTombstone { start, end, seqno },
        )
    }

    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) -> Result<()> {
        let reader = self.trie.reader();
        let newest = reader
            .get(ROOT, key)
            .map(|cell| Record::newest(&self.trie, cell));
        // Records stay.
        drop(reader);
        let mut here = newest.and_then(|newest| newest.around(read_seqno << 8 | 0xff).1);
        while let Some(record) = here {
            let tag = record.tag();
            let parsed = ParsedInternalKey {
                user_key: key,
                seqno: tag >> 8,
                kind: ValueKind::from_u8(tag as u8).expect("inserted with a known kind"),
            };
            if visit(parsed, record.value()) == Visit::Stop {
                break;
            }
            here = record.older();
        }
        Ok(())
    }

    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        Box::new(Iter::new(self))
    }

    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.range_tombstones.fragments(&UserComparator::BYTEWISE)
    }

    fn raw_range_tombstones(&self) -> Vec<RangeTombstone> {
        self.range_tombstones.all()
    }

    fn has_range_tombstones(&self) -> bool {
        self.range_tombstones.count() > 0
    }

    fn memory_usage(&self) -> usize {
        self.trie.cut() as usize + self.range_tombstones.memory_usage()
    }

    fn watch_growth(&self, grows: Growth) {
        self.trie.watch_growth(Box::new(move |moment, bytes| {
            let moment = match moment {
                orogen_trie::Moment::Before => Moment::Before,
                orogen_trie::Moment::After => Moment::After,
            };
            grows(moment, bytes);
        }));
    }

    fn allocate_ahead_at_most(&self, bytes: usize) {
        self.trie.commit_ahead_at_most(bytes);
    }

    fn memory_allocated(&self) -> usize {
        self.trie.held() + Trie::bytes_beside() + self.range_tombstones.memory_usage()
    }

    fn entry_count(&self) -> u64 {
        self.entries.load(Ordering::Relaxed) + self.range_tombstones.count()
    }

    fn deletion_count(&self) -> u64 {
        self.deletions.load(Ordering::Relaxed) + self.range_tombstones.count()
    }
}
