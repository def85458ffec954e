//! Sharded cache counted in bytes: what was read from files and decoded, shared by all readers.
//!
//! The engine owns one cache; a table reader asks it for a block before it reads the file and
//! offers what it read. Values are handed out as `Arc`, so an evicted value lives on for those
//! who hold it. Hot path: a hit takes one shard's lock shared and stores at most one byte.
//!
//! 1. Each shard keeps the charges it was told of within its share of the capacity; values that
//!    left but are held by somebody count too. Where these alone are more than the share, the other
//!    shards give way.
//! 2. A key has one value at a time; the first insert wins and the others get it.
//! 3. What is reserved beside the cache is taken from the shards' shares (see `reserve.rs`).
//! 4. Keys of different [`Cache::new_id`] never meet, so a file's number may be used again.
//!
//! Eviction is S3-FIFO (see `resident.rs`): a scan passes through without pushing out what is
//! read again and again, or what is of high [`Priority`]. Source: Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023.

mod prefetch;
mod resident;
mod shard;
mod reserve;

use orogen_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use orogen_base::inspect::Inspect;
use orogen_base::sync::Mutex;

pub use prefetch::prefetch_bytes;
pub use reserve::Reservation;
use shard::Shard;

/// Shards at most.
const SHARDS_MAX: usize = 64;

/// Bytes below which splitting further would leave too few blocks in a shard.
const SHARD_BYTES_MIN: usize = 512 << 10;

/// Values of one size that a shard has at least, if their sizes differ.
const VALUES_IN_SHARD_MIN: usize = 16;

/// What a value is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey {
    /// The opened file, from [`Cache::new_id`].
    pub id: u64,
    /// The place in the file.
    pub offset: u64,
}

/// How a value enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Priority {
    /// As [`Self::Low`], but it waits apart for being asked for again, and pushes out others of this
    /// kind first: what takes much room for each lookup that it helps.
    Bottom,
    /// It must be asked for again before it counts as worth keeping: a scan's blocks are not.
    #[default]
    Low,
    /// It counts as worth keeping from the first: what many lookups need, such as an index.
    High,
}

impl CacheKey {
    /// Mixes both halves so that all bits of the result depend on all bits of the key.
    #[inline]
    fn mix(self) -> u64 {
        let x = self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.offset;
        let wide = u128::from(x ^ 0xa076_1d64_78bd_642f) * 0xe703_7ed1_a0b4_28db;
        (wide as u64) ^ ((wide >> 64) as u64)
    }
}

/// A cache of values of type `V`, counted in bytes.
///
/// All methods may be called from any thread. Values are dropped outside the locks.
pub struct Cache<V: Send + Sync + 'static> {
    shards: Box<[Shard<V>]>,
    capacity: AtomicUsize,
    next_id: AtomicU64,
    /// Bytes beside the cache that are taken from its capacity.
    reserved: AtomicUsize,
    /// Bytes that the shards were not given because of that.
    withdrawn: AtomicUsize,
    /// How often somebody was refused what is held by others.
    refused: AtomicUsize,
    /// Held while the shards are told their shares; their locks are taken under it.
    sizing: Mutex<()>,
}

impl<V: Send + Sync + 'static> Cache<V> {
    /// A cache that holds up to `capacity_bytes`, split over up to 64 shards of at least 512 KiB.
    #[must_use]
    pub fn new(capacity_bytes: usize) -> Self {
        let wanted = (capacity_bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let count = 1 << wanted.ilog2();
        let shards = (0..count)
            .map(|_| Shard::new(capacity_bytes / count))
            .collect();
        Self {
            shards,
            capacity: AtomicUsize::new(capacity_bytes),
            next_id: AtomicU64::new(1),
            reserved: AtomicUsize::new(0),
            withdrawn: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
            sizing: Mutex::new(()),
        }
    }

    /// A number that no other opened file of this cache has.
    #[must_use]
    pub fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    fn shard(&self, mixed: u64) -> &Shard<V> {
        // The count is a power of two, and the high bits are not used by the shard's own table.
        &self.shards[(mixed >> 48) as usize & (self.shards.len() - 1)]
    }

    /// The value of `key`, if it is here.
    #[inline]
    #[must_use]
    pub fn get(&self, key: CacheKey) -> Option<Arc<V>> {
        self.shard(key.mix()).get(key)
    }

    /// True if the value of `key` is here. It is no use of it.
    #[must_use]
    pub fn contains(&self, key: CacheKey) -> bool {
        self.shard(key.mix()).contains(key)
    }

    /// Keeps `value`, which takes `charge` bytes, and returns it; if the key has a value
    /// already, returns that one.
    ///
    /// A value that does not fit a shard is returned but not kept.
    pub fn insert(&self, key: CacheKey, value: Arc<V>, charge: usize) -> Arc<V> {
        self.insert_and_take(key, value, charge, Priority::Low).0
    }

    /// As [`Self::insert`], and one of the values that are not here any more because of it: its
    /// memory can be used again if nobody else has it.
    pub fn insert_and_take(
        &self,
        key: CacheKey,
        value: Arc<V>,
        charge: usize,
        priority: Priority,
    ) -> (Arc<V>, Option<Arc<V>>) {
        let shard = self.shard(key.mix());
        let inserted = shard.insert(key, value, charge, priority);
        self.spread_overdraft(inserted.overdraft_changed);
        (inserted.value, inserted.left)
    }

    /// Bytes that one value may have to be worth keeping: with larger ones a shard would hold little
    /// else.
    #[must_use]
    pub fn charge_max(&self) -> usize {
        let capacity = self.capacity().saturating_sub(self.reserved_usage());
        capacity / self.shards.len() / VALUES_IN_SHARD_MIN
    }

    /// Drops the value of `key`, if it is here.
    pub fn erase(&self, key: CacheKey) {
        let overdraft_changed = self.shard(key.mix()).erase(key);
        self.spread_overdraft(overdraft_changed);
    }

    /// Bytes charged for what is here.
    #[must_use]
    pub fn usage(&self) -> usize {
        self.shards.iter().map(|s| s.usage()).sum()
    }

    /// Bytes of values that are not here any more, or never were, and are held by somebody who
    /// got them here. They take from the capacity.
    #[must_use]
    pub fn held_usage(&self) -> usize {
        self.shards.iter().map(Shard::held_usage).sum()
    }

    /// Bytes charged for what is here and held by somebody at this moment; walks the cache.
    #[must_use]
    pub fn pinned_usage(&self) -> usize {
        self.shards.iter().map(Shard::pinned_usage).sum()
    }

    /// Bytes that may be charged, reservations included.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Changes the capacity and evicts down to it; the number of shards stays.
    pub fn set_capacity(&self, capacity_bytes: usize) {
        self.capacity.store(capacity_bytes, Ordering::Relaxed);
        self.size_shards();
    }

    /// Values that are here.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.shards.iter().map(|s| s.entry_count()).sum()
    }
}

impl<V: Send + Sync + 'static> Inspect for Cache<V> {
    fn inspect(&self, visit: &mut dyn FnMut(&str, String)) {
        visit("capacity_bytes", self.capacity().to_string());
        visit("usage_bytes", self.usage().to_string());
        visit("pinned_usage_bytes", self.pinned_usage().to_string());
        visit("reserved_usage_bytes", self.reserved_usage().to_string());
        visit("entry_count", self.entry_count().to_string());
        visit("shard_count", self.shards.len().to_string());
        let (mut inserted, mut evicted) = (0, 0);
        for shard in &self.shards {
            let (i, e) = shard.inserted_and_evicted();
            inserted += i;
            evicted += e;
        }
        visit("inserted_total", inserted.to_string());
        visit("evicted_total", evicted.to_string());
    }
}

#[cfg(test)]
mod tests;

#[cfg(all(test, orogen_shuttle))]
mod model;
