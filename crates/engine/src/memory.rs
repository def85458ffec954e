//! One bound for the memory of memtables, open tables and blocks.
//!
//! The budget owns a block cache. What memtables and open tables take is taken from the cache's
//! capacity, and the cache itself counts blocks that left it while a reader holds them: so the
//! sum stays within the limit while memtables have room. When they take half of it, they are
//! sealed before they are full; when they take seven eighths, writers wait for flushes.
//!
//! ```text
//! limit = memtables (active, sealed, held by readers) + open tables + cache + blocks held
//!         `-- counted --------------------------------------------'   `-- the rest --'
//! ```
//! Counted again every 64th of the limit that is written or that tables were opened for, and when
//! a job ends. Families whose blocks are in the budget's cache keep index and filter blocks there too.
//! Not counted: buffers of flushes and compactions, blocks read without filling the cache.
//! Locks: leaves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use orogen_memtable::MemTable;
use orogen_sst::{BlockCache, TableReader};
use parking_lot::Mutex;

/// One part in so many of the limit may be written between two counts.
const STEPS: u64 = 64;

/// Bytes of memory by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Memtables: active, sealed, and flushed ones that a reader still holds.
    pub memtables: u64,
    /// What open tables keep of their files outside the cache.
    pub table_readers: u64,
    /// Blocks in the cache.
    pub block_cache: u64,
    /// Blocks that are not in the cache any more, held by readers.
    pub held_blocks: u64,
    /// What may be used in all; 0 for no bound.
    pub limit: u64,
}

impl MemoryUsage {
    /// All kinds together.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.memtables + self.table_readers + self.block_cache + self.held_blocks
    }

    pub(crate) fn to_text(self) -> String {
        format!(
            "memtables={} table_readers={} block_cache={} held_blocks={} total={} limit={}",
            self.memtables,
            self.table_readers,
            self.block_cache,
            self.held_blocks,
            self.total(),
            self.limit
        )
    }
}

/// A bound on memory that databases share if they are given the same.
pub struct MemoryBudget {
    limit: AtomicU64,
    cache: Arc<BlockCache>,
    memtables: Mutex<Vec<Weak<dyn MemTable>>>,
    tables: Mutex<Vec<Weak<TableReader>>>,
    /// Bytes written, and of tables opened, since the last count.
    written: AtomicU64,
    /// Bytes of memtables at the last count.
    memtable_bytes: AtomicU64,
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
            written: AtomicU64::new(0),
            memtable_bytes: AtomicU64::new(0),
            tight: AtomicBool::new(false),
        }
    }

    /// What may be used in all.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Changes the limit; blocks are evicted down to it at once.
    pub fn set_limit(&self, limit_bytes: u64) {
        self.limit.store(limit_bytes.max(1 << 20), Relaxed);
        self.balance();
    }

    /// The cache of all families that bring none of their own.
    #[must_use]
    pub fn block_cache(&self) -> &Arc<BlockCache> {
        &self.cache
    }

    /// What is used now.
    #[must_use]
    pub fn usage(&self) -> MemoryUsage {
        MemoryUsage {
            memtables: sum(&self.memtables, |m| m.memory_usage()),
            table_readers: sum(&self.tables, TableReader::memory_usage),
            block_cache: self.cache.usage() as u64,
            held_blocks: self.cache.held_usage() as u64,
            limit: self.limit(),
        }
    }

    /// Counts, and gives the cache what the others leave.
    pub(crate) fn balance(&self) {
        self.written.store(0, Relaxed);
        let limit = self.limit();
        let memtables = sum(&self.memtables, |m| m.memory_usage());
        let tables = sum(&self.tables, TableReader::memory_usage);
        self.memtable_bytes.store(memtables, Relaxed);
        self.tight.store(memtables > limit / 8 * 7, Relaxed);
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

    /// True if a database whose active memtables take `active` bytes should seal the largest.
    pub(crate) fn wants_seal(&self, active: impl FnOnce() -> u64) -> bool {
        let (limit, all) = (self.limit(), self.memtable_bytes.load(Relaxed));
        if all <= limit / 2 {
            return false;
        }
        let active = active();
        // Not while most is on its way to disk already, else tables would be tiny.
        active >= limit / 8 || (all > limit / 8 * 7 && active > limit / STEPS)
    }

    /// True if writers should wait for flushes.
    pub(crate) fn is_tight(&self) -> bool {
        self.tight.load(Relaxed)
    }

    pub(crate) fn add_memtable(&self, memtable: &Arc<dyn MemTable>) {
        self.memtables.lock().push(Arc::downgrade(memtable));
    }

    pub(crate) fn add_table(&self, table: &Arc<TableReader>) {
        self.tables.lock().push(Arc::downgrade(table));
        // Not a count for each: a scan may open thousands of small ones.
        self.wrote(table.memory_usage() as u64);
    }
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
    let mut total = 0;
    all.lock().retain(|one| match one.upgrade() {
        Some(one) => {
            total += bytes(&one) as u64;
            true
        }
        None => false,
    });
    total
}
