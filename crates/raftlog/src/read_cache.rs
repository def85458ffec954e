//! Blocks that were read lately, verified and unpacked, shared by all readers of an engine.
//!
//! Several followers ask for the same entries one after the other, and a follower for ten entries of one block in two
//! calls: the second time neither a call to the system is made, nor a checksum, nor is anything unpacked. Who reads asks here
//! first, and offers what it had to read ([`Blocks`](crate::blocks::Blocks)). Purge reads past it: it reads everything once. Invariants:
//!
//! 1. What is here was verified. Damage is found by who reads a block first, and by each one after him.
//! 2. A block is known by its place, which is written once as long as the engine is open: numbers of files are not used
//!    again, a spare file that is written over gets a new one, and where an append failed nobody was told of the place. So
//!    nothing has to be taken out when a file is deleted, or entries are written again at the same indexes.
//! 3. Who found a place in a group before its file was deleted may get the block from here all the same: its bytes are those that
//!    the group had at that moment.
//! 4. Memory that the allocator does not give is no error: the block is not kept.
//!
//! `Hot path`: a hit allocates nothing.

use std::sync::Arc;

use orogen_cache::{Cache, CacheKey, Priority};

use crate::memtable::Block;
use crate::metrics::Meters;
use crate::names::Queue;

/// Bytes that a block takes beyond its own: of the table and the queues, and of two allocations.
const COST: usize = 160;

/// The raw bytes of a block.
pub(crate) type Kept = Vec<u8>;

/// The blocks.
pub(crate) struct ReadCache {
    cache: Cache<Kept>,
    /// Bytes of the largest block that is kept: a few of those would be all that a shard holds.
    block_max: usize,
    meters: Arc<Meters>,
}

/// No file is so long that this bit is one of an offset.
const REWRITE: u64 = 1 << 63;

fn key_of(block: &Block) -> CacheKey {
    let queue = match block.file.queue {
        Queue::Append => 0,
        Queue::Rewrite => REWRITE,
    };
    CacheKey {
        id: block.file.seq,
        offset: block.offset ^ queue,
    }
}

impl ReadCache {
    /// A cache of so many bytes; none for 0.
    pub(crate) fn new(bytes: usize, meters: Arc<Meters>) -> Option<Self> {
        let cache = (bytes > 0).then(|| Cache::new(bytes))?;
        let block_max = cache.charge_max().saturating_mul(2).saturating_sub(COST);
        Some(Self {
            cache,
            block_max,
            meters,
        })
    }

    /// Whether a block of so many raw bytes may be kept.
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        bytes <= self.block_max
    }

    #[inline]
    pub(crate) fn get(&self, block: &Block) -> Option<Arc<Kept>> {
        self.cache.get(key_of(block))
    }

    /// Keeps the raw bytes of a block, or has them already; and the buffer of one that is not here any more because of that, if
    /// nobody has it.
    pub(crate) fn insert(&self, block: &Block, raw: Kept) -> (Arc<Kept>, Option<Kept>) {
        let charge = raw.capacity() + COST;
        let raw = Arc::new(raw);
        let (raw, gone) = (self.cache).insert_and_take(key_of(block), raw, charge, Priority::Low);
        (raw, gone.and_then(Arc::into_inner))
    }

    /// So many blocks were found here, and so many were not.
    pub(crate) fn count(&self, hits: u64, misses: u64) {
        self.meters.looked_up(hits, misses);
    }

    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.cache.usage() as u64
    }
}

#[cfg(test)]
mod tests;
