//! One bound for the memory of memtables, open tables and blocks.
//!
//! The budget owns a block cache. What memtables and open tables take is taken from the cache's
//! capacity; what is read ahead and what tables under construction take is reserved in the cache,
//! which gives way at once; and the cache itself counts blocks that left it while a reader holds
//! them. So the sum stays within the limit while memtables have room.
//!
//! ```text
//! limit = memtables (active, sealed, held by readers) + open tables + reserved + cache + blocks held
//!         `-- counted --------------------------------------------'   `-- the rest --------------'
//! ```
//! Who gives way, in this order: cached blocks; windows that are read ahead, which get at most half
//! of the rest; writers. Of what is neither reserved nor held, memtables may take half before they are sealed
//! though they are not full, and three quarters before writers wait for flushes.
//!
//! Counted again every 64th of the limit that is written or that tables were opened for, and when
//! a job or a memtable ends. Families whose blocks are in the budget's cache keep index and filter blocks there too.
//! Not counted: blocks of up to 32 KiB that compactions stand in, what codecs of other languages allocate, and
//! what is small whatever the data is. Locks: `counting`, then leaves; taken under memtables' own.

use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Weak};

use orogen_blob::BlobFileReader;
use orogen_env::threads;
use orogen_memtable::{MemTable, Moment};
use orogen_sst::{BlockCache, TableReader};
use parking_lot::Mutex;

/// One part in so many of the limit may be written between two counts.
const STEPS: u64 = 64;

/// Times that memory is counted again while it moves.
const RECOUNTS_MAX: usize = 16;

/// Bytes of memory by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Memtables: active, sealed, and flushed ones that a reader still holds.
    pub memtables: u64,
    /// What open tables and blob files keep of themselves outside the cache.
    pub table_readers: u64,
    /// Blocks in the cache.
    pub block_cache: u64,
    /// Blocks that are not in the cache any more, held by readers; a thread that read keeps one for
    /// its next read.
    pub held_blocks: u64,
    /// What cursors and compactions read ahead, large values that cursors stand on and that are not
    /// in the cache, and files that are being written.
    pub reserved: u64,
    /// What may be used in all; 0 for no bound.
    pub limit: u64,
}

impl MemoryUsage {
    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.memtables + self.table_readers + self.block_cache + self.held_blocks + self.reserved
    }

    pub(crate) fn to_text(self) -> String {
        format!(
            "memtables={} table_readers={} block_cache={} held_blocks={} reserved={} total={} limit={}",
            self.memtables,
            self.table_readers,
            self.block_cache,
            self.held_blocks,
            self.reserved,
            self.total(),
            self.limit
        )
    }
}

/// A bound on memory that databases share if they are given the same.
pub struct MemoryBudget {
    limit: AtomicU64,
    cache: Arc<BlockCache>,
    memtables: Mutex<Vec<Watched>>,
    tables: Mutex<Vec<Weak<TableReader>>>,
    blobs: Mutex<Vec<Weak<BlobFileReader>>>,
    /// Bytes written, and of tables opened, since the last count.
    written: AtomicU64,
    /// Bytes that memtables are about to take.
    promised: AtomicU64,
    /// Held while it is counted: an older count must not undo a newer one.
    counting: Mutex<()>,
    /// A memtable ended since the last count began.
    is_outdated: AtomicBool,
    /// Bytes of memtables at the last count.
    memtable_bytes: AtomicU64,
    /// Bytes of held blocks then.
    held_bytes: AtomicU64,
    tight: AtomicBool,
}

impl MemoryBudget {
    /// A budget of `limit_bytes`, at least 1 MiB.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        let limit = limit_bytes.max(1 << 20);
        Self {
            limit: AtomicU64::new(limit),
            cache: Arc::new(BlockCache::new(to_usize(limit))),
            memtables: Mutex::default(),
            tables: Mutex::default(),
            blobs: Mutex::default(),
            written: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            counting: Mutex::default(),
            is_outdated: AtomicBool::new(false),
            memtable_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            tight: AtomicBool::new(false),
        }
    }

    /// What may be used in all.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit; blocks are evicted down to it at once. What jobs and cursors read ahead gives way when they read on.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes.max(1 << 20), Relaxed);
        self.balance();
    }

    /// The cache of all families that bring none of their own.
    #[must_use]
    pub fn block_cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// What is used now. The kinds are counted one after the other; where bytes move from one to
    /// another meanwhile, or the cache is just giving way, they are counted again, a few times.
    #[must_use]
    pub fn usage(&self) -> MemoryUsage {
        let mut usage = self.count();
        for _ in 0..RECOUNTS_MAX {
            let again = self.count();
            let is_still = (again.reserved, again.memtables) == (usage.reserved, usage.memtables);
            usage = again;
            if is_still && usage.total() <= usage.limit {
                break;
            }
            threads::yield_now();
        }
        usage
    }

    fn count(&self) -> MemoryUsage {
        // Before what gives way to it: else what is counted between would count twice.
        let reserved = self.cache.reserved_usage() as u64;
        MemoryUsage {
            memtables: self.memtables(),
            table_readers: self.open_files(),
            block_cache: self.cache.usage() as u64,
            held_blocks: self.cache.held_usage() as u64,
            reserved,
            limit: self.limit(),
        }
    }

    /// Counts, and gives the cache what the others leave.
    pub(crate) fn balance(&self) {
        let counting = self.counting.lock();
        self.recount();
        drop(counting);
        self.recount_if_outdated();
    }

    /// A memtable is no more; perhaps under any lock, even that of a count.
    fn memtable_ended(&self) {
        self.is_outdated.store(true, SeqCst);
        self.recount_if_outdated();
    }

    fn recount_if_outdated(&self) {
        while self.is_outdated.load(SeqCst) {
            // Who holds it looks again when it is free.
            let Some(_counting) = self.counting.try_lock() else {
                return;
            };
            self.is_outdated.store(false, SeqCst);
            self.recount();
        }
    }

    fn recount(&self) {
        self.written.store(0, Relaxed);
        let limit = self.limit();
        // First what is promised: what is counted meanwhile counts twice, for a moment.
        let promised = self.promised.load(Relaxed);
        let memtables = promised + self.memtables();
        let tables = self.open_files();
        self.memtable_bytes.store(memtables, Relaxed);
        self.held_bytes
            .store(self.cache.held_about() as u64, Relaxed);
        self.tight.store(memtables > self.room() / 4 * 3, Relaxed);
        // What memtables grow by until the next count is taken already.
        let rest = limit.saturating_sub(memtables + tables + limit / STEPS);
        let rest = to_usize(rest);
        if rest != self.cache.capacity() {
            self.cache.set_capacity(rest);
        }
    }

    /// Notes that `bytes` more are taken; counts if that were many since the last count.
    pub(crate) fn wrote(&self, bytes: u64) {
        let written = self.written.fetch_add(bytes, Relaxed) + bytes;
        if written > self.limit() / STEPS / 2 {
            self.balance();
        }
    }

    /// What memtables share: what is neither reserved nor held, and a quarter of the limit in any
    /// case.
    fn room(&self) -> u64 {
        let (limit, reserved) = (self.limit(), self.cache.reserved_usage() as u64);
        let others = reserved + self.held_bytes.load(Relaxed);
        limit.saturating_sub(others).max(limit / 4)
    }

    /// True if a database whose active memtables take `active` bytes should seal the largest.
    pub(crate) fn wants_seal(&self, active: impl FnOnce() -> u64) -> bool {
        let (limit, all) = (self.room(), self.memtable_bytes.load(Relaxed));
        if all <= limit / 2 {
            return false;
        }
        let active = active();
        // Not while most is on its way to disk already, else tables would be tiny.
        active >= limit / 8 || (all > limit / 4 * 3 && active > limit / STEPS)
    }

    /// True if writers should wait for flushes.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.load(Relaxed)
    }

    pub(crate) fn add_memtable(self: &Arc<Self>, memtable: &Arc<dyn MemTable>) {
        let told = Arc::new(Told {
            budget: self.clone(),
            bytes: AtomicU64::new(memtable.memory_allocated() as u64),
        });
        self.memtables.lock().push(Watched {
            memtable: Arc::downgrade(memtable),
            told: Arc::downgrade(&told),
        });
        memtable.allocate_ahead_at_most(to_usize(self.limit() / STEPS));
        memtable.watch_growth(Box::new(move |moment, bytes| {
            let (budget, bytes) = (&told.budget, bytes as u64);
            match moment {
                // So the cache gives way before the memory is there.
                Moment::Before => {
                    budget.promised.fetch_add(bytes, Relaxed);
                    budget.wrote(bytes);
                }
                Moment::After | Moment::Not => {
                    budget.promised.fetch_sub(bytes, Relaxed);
                }
            }
        }));
    }

    /// Bytes of memtables that are there, if only in part.
    fn memtables(&self) -> u64 {
        let mut there = Vec::new();
        self.memtables.lock().retain(|one| {
            let one = (one.memtable.upgrade(), one.told.upgrade());
            let is_there = one.0.is_some() || one.1.is_some();
            there.push(one);
            is_there
        });
        // Not under the lock: these may be the last references.
        let bytes = there.iter().map(|one| match one {
            (Some(memtable), told) => {
                let bytes = memtable.memory_allocated() as u64;
                if let Some(told) = told {
                    told.bytes.store(bytes, Relaxed);
                }
                bytes
            }
            // On its way back to the system.
            (None, Some(told)) => told.bytes.load(Relaxed),
            (None, None) => 0,
        });
        bytes.sum()
    }

    /// Bytes of open tables and blob files.
    fn open_files(&self) -> u64 {
        sum(&self.tables, TableReader::memory_usage)
            + sum(&self.blobs, BlobFileReader::memory_usage)
    }

    pub(crate) fn add_blob_file(&self, file: &Arc<BlobFileReader>) {
        self.blobs.lock().push(Arc::downgrade(file));
        self.wrote(file.memory_usage() as u64);
    }

    pub(crate) fn add_table(&self, table: &Arc<TableReader>) {
        self.tables.lock().push(Arc::downgrade(table));
        // Not a count for each: a scan may open thousands of small ones.
        self.wrote(table.memory_usage() as u64);
    }
}

/// What a memtable tells of its growth, and by its own end of that: a reader may have been the
/// last to hold it, and nobody writes any more.
struct Told {
    budget: Arc<MemoryBudget>,
    /// Of the memtable, when it was counted last.
    bytes: AtomicU64,
}

impl Drop for Told {
    fn drop(&mut self) {
        self.budget.memtable_ended();
    }
}

/// A memtable that is counted until its memory is given back: nobody holds it any more a while before.
struct Watched {
    memtable: Weak<dyn MemTable>,
    told: Weak<Told>,
}

impl std::fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.usage().fmt(f)
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Sums up what is still there, and forgets the rest.
fn sum<T: ?Sized>(all: &Mutex<Vec<Weak<T>>>, bytes: impl Fn(&T) -> usize) -> u64 {
    let mut alive = Vec::new();
    all.lock().retain(|one| {
        let one = one.upgrade();
        let is_there = one.is_some();
        alive.extend(one);
        is_there
    });
    // Not under the lock: these may be the last references.
    alive.iter().map(|one| bytes(one) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;

    use orogen_base::range_del::FragmentedRangeTombstones;
    use orogen_base::{InternalIterator, ParsedInternalKey, Result, SeqNo, ValueKind};
    use orogen_memtable::{Growth, Visit};

    const BYTES: usize = 4 << 20;

    /// A memtable that looks at the budget when nobody holds it any more and its memory is still there.
    struct Ending {
        budget: Arc<MemoryBudget>,
        seen: Arc<AtomicU64>,
        grows: OnceLock<Growth>,
    }

    impl Drop for Ending {
        fn drop(&mut self) {
            self.seen.store(self.budget.usage().memtables, Relaxed);
        }
    }

    impl MemTable for Ending {
        fn insert(&self, _: &[u8], _: SeqNo, _: ValueKind, _: &[u8]) -> Result<()> {
            unreachable!("nobody writes")
        }

        fn insert_range_deletion(&self, _: &[u8], _: &[u8], _: SeqNo) -> Result<()> {
            unreachable!("nobody writes")
        }

        fn get(
            &self,
            _: &[u8],
            _: SeqNo,
            _: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
        ) -> Result<()> {
            unreachable!("nobody reads")
        }

        fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
            unreachable!("nobody reads")
        }

        fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
            unreachable!("nobody reads")
        }

        fn has_range_tombstones(&self) -> bool {
            false
        }

        fn memory_usage(&self) -> usize {
            BYTES
        }

        fn watch_growth(&self, grows: Growth) {
            let _ = self.grows.set(grows);
        }

        fn entry_count(&self) -> u64 {
            0
        }

        fn deletion_count(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_memtable_counts_until_its_memory_is_given_back() {
        let budget = Arc::new(MemoryBudget::new(32 << 20));
        let seen = Arc::new(AtomicU64::new(0));
        let memtable: Arc<dyn MemTable> = Arc::new(Ending {
            budget: budget.clone(),
            seen: seen.clone(),
            grows: OnceLock::new(),
        });
        budget.add_memtable(&memtable);
        budget.balance();
        let with = budget.block_cache().capacity();
        drop(memtable);
        assert_eq!(seen.load(Relaxed), BYTES as u64);
        assert_eq!(budget.usage().memtables, 0);
        assert!(budget.block_cache().capacity() >= with + BYTES);
    }
}
