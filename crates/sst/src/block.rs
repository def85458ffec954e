//! A block of sorted entries: keys without what they share with the key before.
//!
//! ```text
//! entry    varint shared | varint unshared | varint value length | key bytes | value bytes
//!          (index blocks of format 4 and later have no value length: see `index.rs`)
//! block    entries | fixed32 offset of each restart point | [hash index] | fixed32 footer
//! footer   bits 0-27 number of restart points | 28 separated values | 29 keys are uniform
//!          | 31 hash index: buckets (1 byte each) and fixed16 number of buckets before it
//! ```
//! Every n-th entry is a restart point: its key is stored whole, and the restart points are
//! searched in halves. Invariants: (1) the restart array lies inside the block, checked when
//! the block is made; (2) every entry is checked against the restart array's start when it is
//! read, so no byte of a block can lead outside it. `Hot path`.
//! Source: RocksDB `table/block_based/block.cc`, `block_builder.cc`, `data_block_footer.h`.

mod builder;
mod cursor;
mod digest;
mod index;

pub(crate) use builder::BlockBuilder;
pub(crate) use cursor::{BlockCursor, KeyOrder, compare_internal};
pub(crate) use digest::{IndexDigest, Located};
pub(crate) use index::{IndexCursor, IndexFormat};

use std::ops::Range;

use orogen_base::checksum::hash_xxh3;
use orogen_base::coding::get_fixed32;
use orogen_base::pinned::Pin;
use orogen_base::{Error, Result};

use crate::prefetch::prefetch;

const HASH_INDEX: u32 = 1 << 31;
const UNIFORM_KEYS: u32 = 1 << 29;
const SEPARATED_VALUES: u32 = 1 << 28;
const NUM_RESTARTS_MAX: u32 = SEPARATED_VALUES - 1;

/// Keeps keys that are copied out of a block within bounds: a few bytes of a block that shares prefixes may stand for a long key.
pub(crate) struct KeyBytes {
    left: usize,
}

impl KeyBytes {
    /// Sixteen times the block's bytes, or 1 MiB.
    pub(crate) fn of(block: &Block) -> Self {
        Self {
            left: block.bytes.len().saturating_mul(16).max(1 << 20),
        }
    }

    /// # Errors
    /// `Corruption` if the keys so far are longer than is allowed.
    pub(crate) fn take(&mut self, key: &[u8]) -> Result<()> {
        let left = self.left.checked_sub(key.len());
        self.left = left.ok_or_else(|| Error::corruption("keys of a block are too long"))?;
        Ok(())
    }
}

/// The bytes of a block after decompression, as the cache keeps them.
pub struct Block {
    bytes: Vec<u8>,
    /// Where the restart array starts: the entries' end. Of a value: where it begins.
    restarts: u32,
    num_restarts: u32,
    /// Of `bytes`, where that is wanted; 0 stands for none.
    protection: u64,
}

impl Block {
    /// A block of sorted entries.
    ///
    /// # Errors
    /// `Corruption` if the restart array does not fit; `NotSupported` for a newer layout.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        let (restarts, num_restarts) = locate_restarts(&bytes)?;
        Ok(Self {
            bytes,
            restarts,
            num_restarts,
            protection: 0,
        })
    }

    /// A block of other content, such as a filter.
    pub(crate) fn raw(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            restarts: 0,
            num_restarts: 0,
            protection: 0,
        }
    }

    /// False for what [`Self::raw`] made.
    #[inline]
    pub(crate) fn is_sorted(&self) -> bool {
        self.num_restarts > 0
    }

    /// A value that is in no block, behind the first `start` bytes.
    ///
    /// # Panics
    /// If there are fewer bytes.
    #[must_use]
    pub fn of_value(bytes: Vec<u8>, start: usize) -> Self {
        assert!(start <= bytes.len(), "value begins within its bytes");
        Self {
            restarts: u32::try_from(start).expect("a key and a header are shorter than 4 GiB"),
            ..Self::raw(bytes)
        }
    }

    /// Where the value of [`Self::of_value`] is.
    #[inline]
    #[must_use]
    pub fn value_range(&self) -> Range<usize> {
        self.restarts as usize..self.bytes.len()
    }

    /// Keeps a checksum of the bytes as they are now.
    pub fn protect(&mut self) {
        self.protection = hash_xxh3(&self.bytes).max(1);
    }

    /// False if it has a checksum that is not that of its bytes.
    #[inline]
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.protection == 0 || self.protection == hash_xxh3(&self.bytes).max(1)
    }

    /// Asks the processor for what a search looks at first.
    #[inline]
    pub(crate) fn prefetch(&self) {
        prefetch(&self.bytes, self.restarts as usize);
        prefetch(&self.bytes, self.restarts as usize / 2);
    }

    /// The memory of a block that is not needed any more.
    pub(crate) fn take_bytes(&mut self) -> Vec<u8> {
        (self.restarts, self.num_restarts) = (0, 0);
        std::mem::take(&mut self.bytes)
    }

    /// All bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.bytes.capacity() + size_of::<Self>()
    }

    /// How many restart points.
    #[must_use]
    pub fn num_restarts(&self) -> u32 {
        self.num_restarts
    }

    #[inline]
    fn entries(&self) -> &[u8] {
        &self.bytes[..self.restarts as usize]
    }

    /// The offset of restart point `i`; an offset outside the entries reads as their end.
    #[inline]
    fn restart(&self, i: u32) -> u32 {
        debug_assert!(i < self.num_restarts);
        let at = self.restarts as usize + 4 * i as usize;
        get_fixed32(&self.bytes[at..]).map_or(self.restarts, |r| r.min(self.restarts))
    }
}

impl Pin for Block {
    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

fn locate_restarts(bytes: &[u8]) -> Result<(u32, u32)> {
    let too_short = || Error::corruption("block is too short").with("len", bytes.len());
    if u32::try_from(bytes.len()).is_err() {
        return Err(Error::not_supported("block is larger than 4 GiB"));
    }
    let (rest, packed) = bytes.split_last_chunk::<4>().ok_or_else(too_short)?;
    let packed = u32::from_le_bytes(*packed);
    if packed & SEPARATED_VALUES != 0 {
        return Err(Error::not_supported("block keeps its values apart"));
    }
    let num_restarts = packed & !(HASH_INDEX | UNIFORM_KEYS);
    if num_restarts > NUM_RESTARTS_MAX {
        return Err(Error::corruption("block footer has unknown flags").with("footer", packed));
    }
    let mut end = rest.len();
    if packed & HASH_INDEX != 0 {
        let (_, buckets) = rest.split_last_chunk::<2>().ok_or_else(too_short)?;
        let buckets = usize::from(u16::from_le_bytes(*buckets));
        end = end.checked_sub(2 + buckets).ok_or_else(too_short)?;
    }
    let start = end
        .checked_sub(4 * num_restarts as usize)
        .ok_or_else(too_short)?;
    if num_restarts == 0 && start != 0 {
        return Err(Error::corruption("block has entries but no restart point"));
    }
    Ok((start as u32, num_restarts))
}

#[cold]
fn bad_entry(at: u32) -> Error {
    Error::corruption("block entry is damaged").with("at", at)
}

#[cfg(test)]
mod tests;
