//! One shard: the resident entries behind a lock.
//!
//! The lock guards the table and the queues; it is a leaf, nothing is locked under it. Hits
//! take it shared. What leaves the cache is dropped after the lock is given back.

use std::sync::Arc;

use orogen_base::sync::RwLock;

use crate::resident::{Leaving, Residents};
use crate::{CacheKey, Priority};

/// Aligned so that the locks of two shards share no cache line.
#[repr(align(128))]
pub(crate) struct Shard<V>(RwLock<Residents<V>>);

/// What came of an insert.
pub(crate) struct Inserted<V> {
    /// What the key has now.
    pub(crate) value: Arc<V>,
    /// One of the values that are not here any more.
    pub(crate) left: Option<Arc<V>>,
    /// The shards are to be told new shares.
    pub(crate) overdraft_changed: bool,
}

impl<V> Shard<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self(RwLock::new(Residents::new(capacity)))
    }

    #[inline]
    pub(crate) fn get(&self, key: CacheKey) -> Option<Arc<V>> {
        self.0.read().get(key)
    }

    pub(crate) fn contains(&self, key: CacheKey) -> bool {
        self.0.read().contains(key)
    }

    pub(crate) fn insert(
        &self,
        key: CacheKey,
        value: Arc<V>,
        charge: usize,
        priority: Priority,
    ) -> Inserted<V> {
        let mut leaving = Leaving::new();
        let mut residents = self.0.write();
        residents.prefetch_victim();
        if let Some(resident) = residents.get(key) {
            // The lock goes before `value`, whose drop may be long.
            drop(residents);
            return Inserted {
                value: resident,
                left: Some(value),
                overdraft_changed: false,
            };
        }
        residents.insert(key, &value, charge, priority, &mut leaving);
        let overdraft_changed = residents.overdraft_changed();
        drop(residents);
        Inserted {
            value,
            left: leaving.first.take(),
            overdraft_changed,
        }
    }

    /// True if the shards are to be told new shares.
    pub(crate) fn erase(&self, key: CacheKey) -> bool {
        let mut residents = self.0.write();
        let value = residents.erase(key);
        let overdraft_changed = residents.overdraft_changed();
        drop(residents);
        drop(value);
        overdraft_changed
    }

    /// `leaving` gets what had to go, to be dropped when the caller holds no lock either.
    pub(crate) fn set_capacity(&self, capacity: usize, leaving: &mut Leaving<V>) {
        self.0.write().set_capacity(capacity, leaving);
    }

    pub(crate) fn usage(&self) -> usize {
        self.0.read().usage()
    }

    pub(crate) fn held_usage(&self) -> usize {
        self.0.write().held_usage()
    }

    /// [`Self::held_usage`] as of the last look at what is held: not less.
    pub(crate) fn held_about(&self) -> usize {
        self.0.read().held_about()
    }

    pub(crate) fn pinned_usage(&self) -> usize {
        self.0.read().pinned_usage()
    }

    pub(crate) fn entry_count(&self) -> usize {
        self.0.read().entry_count()
    }

    pub(crate) fn inserted_and_evicted(&self) -> (u64, u64) {
        self.0.read().inserted_and_evicted()
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.0.read().check();
    }
}
