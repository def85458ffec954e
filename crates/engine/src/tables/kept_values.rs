//! Values of blob files in the block cache.
//!
//! They are kept as they are given, decompressed, and looked up before the file is read or even
//! opened; a hit costs what that of a block does, and the value is pinned. A flush may give its values
//! before anybody asks for them. Invariants: (1) a key of
//! the cache means one file of one open database: a number that is used again, there or in another
//! directory, meets nothing old; (2) what compactions read is not looked up and not kept; (3) without
//! `fill_cache` nothing is added. `Hot path`.

use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::perf::{self, PerfCounter};
use orogen_base::{PinnedValue, memory};
use orogen_blob::{BlobPointer, BlobValue};
use orogen_cache::{CacheKey, Priority};
use orogen_sst::{CachedBlock, TableReadOptions};

use super::FamilyTables;
use crate::read::BlobKeeper;
use crate::version::{BlobFile, Identity};

/// In ids of blob files; those that caches give to tables count up from 1.
const BLOB_FILE: u64 = 1 << 63;

fn key(file: Identity, pointer: &BlobPointer) -> CacheKey {
    CacheKey {
        id: BLOB_FILE | file.get(),
        offset: pointer.offset,
    }
}

fn charge(bytes: usize) -> usize {
    bytes + size_of::<CachedBlock>()
}

impl FamilyTables {
    /// The value at `pointer`, if the cache has it. It was compared with its key when it was read.
    #[inline]
    pub(super) fn cached_value(
        &self,
        file: &BlobFile,
        pointer: &BlobPointer,
    ) -> Option<PinnedValue> {
        if !self.blob_cache {
            return None;
        }
        let key = key(file.identity(), pointer);
        let found = self.cache.get(key).filter(|found| {
            let intact = found.is_intact();
            if !intact {
                self.cache.erase(key);
                self.statistics.add(Ticker::BlockCacheCorruption, 1);
            }
            intact
        });
        let Some(found) = found else {
            self.statistics.add(Ticker::BlobDbCacheMiss, 1);
            return None;
        };
        let range = found.value_range();
        perf::add(PerfCounter::BlobCacheHitCount, 1);
        self.statistics.add(Ticker::BlobDbCacheHit, 1);
        self.statistics
            .add(Ticker::BlobDbCacheBytesRead, range.len() as u64);
        Some(PinnedValue::pinned(found, range))
    }

    /// True if the cache has the value at `pointer`, for who does not read it now.
    pub(super) fn is_cached(&self, file: &BlobFile, pointer: &BlobPointer) -> bool {
        self.blob_cache && self.cache.contains(key(file.identity(), pointer))
    }

    /// True if the cache is to have a value that was read: not one that nobody checked, which others would take as checked.
    pub(super) fn keeps(&self, value: &BlobValue, options: &TableReadOptions) -> bool {
        self.blob_cache
            && options.fill_cache
            && options.verify_checksums
            && charge(value.memory_usage()) <= self.cache.charge_max()
    }

    /// Gives a value that was read to its reader, and to the cache if that is wanted and it is not
    /// too large.
    pub(super) fn keep_value(
        &self,
        file: &BlobFile,
        pointer: &BlobPointer,
        value: BlobValue,
        options: &TableReadOptions,
    ) -> PinnedValue {
        if !self.keeps(&value, options) {
            if self.blob_cache && options.fill_cache {
                self.statistics.add(Ticker::BlobDbCacheAddFailures, 1);
            }
            return value.into();
        }
        let (bytes, start) = value.into_parts();
        let kept = self.insert(key(file.identity(), pointer), bytes, start);
        let range = kept.value_range();
        PinnedValue::pinned(kept, range)
    }

    fn insert(&self, key: CacheKey, bytes: Vec<u8>, start: usize) -> Arc<CachedBlock> {
        let charge = charge(bytes.capacity());
        let mut kept = CachedBlock::of_value(bytes, start);
        if self.protect_cached_blocks {
            kept.protect();
        }
        self.statistics.add(Ticker::BlobDbCacheAdd, 1);
        self.statistics
            .add(Ticker::BlobDbCacheBytesWrite, charge as u64);
        let kept = Arc::new(kept);
        let (kept, left) = self
            .cache
            .insert_and_take(key, kept, charge, Priority::Bottom);
        drop(left);
        kept
    }
}

impl BlobKeeper for FamilyTables {
    fn keep(&self, file: Identity, pointer: &BlobPointer, value: &[u8]) {
        if !self.blob_cache {
            return;
        }
        let copied = (charge(value.len()) <= self.cache.charge_max())
            .then(|| memory::copied(value, "value for the blob cache").ok())
            .flatten();
        match copied {
            Some(bytes) => drop(self.insert(key(file, pointer), bytes, 0)),
            None => self.statistics.add(Ticker::BlobDbCacheAddFailures, 1),
        }
    }
}
