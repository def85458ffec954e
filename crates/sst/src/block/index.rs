//! Index blocks: a key not before the last of a data block, and where that block stands.
//!
//! ```text
//! value, whole   varint offset | varint size [| varint length | first internal key]
//! value, delta   zigzag varint: size minus the size of the block before [| as above]
//! ```
//! In formats 4 and later an entry has no value length, and a value is a delta where its key
//! shares bytes with the key before: the block then stands right behind the block before.
//! Keys are internal keys or, where no user key spans two blocks, user keys alone. The first
//! keys are there with index type `kBinarySearchWithFirstKey`. `Hot path`.
//! Source: RocksDB `table/format.cc` (`IndexValue`), `table/block_based/index_builder.h`.

use std::cmp::Ordering;

use orogen_base::coding::{Decoder, get_varint32};
use orogen_base::{Error, Result};

use super::{Block, KeyOrder, bad_entry};
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle};

/// What the entries of an index look like.
#[derive(Clone, Debug)]
pub(crate) struct IndexFormat {
    /// The order of the keys, and whether they are whole internal keys.
    pub(crate) order: KeyOrder,
    /// Values have no length and may be deltas.
    pub(crate) delta_values: bool,
    /// Values hold the block's first key.
    pub(crate) first_keys: bool,
}

impl IndexFormat {
    /// What of an internal key is compared with the index's keys.
    #[inline]
    pub(crate) fn target<'a>(&self, internal_key: &'a [u8]) -> &'a [u8] {
        match self.order {
            KeyOrder::Internal(_) => internal_key,
            KeyOrder::User(_) => orogen_base::key::user_key(internal_key),
        }
    }
}

const NOWHERE: u32 = u32::MAX;

/// A place among the entries of an index block.
pub(crate) struct IndexCursor {
    key: Vec<u8>,
    at: u32,
    next: u32,
    handle: BlockHandle,
}

struct Head {
    shared: u32,
    key: usize,
    value: usize,
}

#[inline]
fn decode_head(entries: &[u8], at: u32, delta_values: bool) -> Option<Head> {
    let head = entries.get(at as usize..)?;
    let (shared, i) = get_varint32(head)?;
    let (unshared, j) = get_varint32(&head[i..])?;
    let mut n = i + j;
    if !delta_values {
        n += get_varint32(&head[n..])?.1;
    }
    let key = at as usize + n;
    let value = key.checked_add(unshared as usize)?;
    (value <= entries.len()).then_some(Head { shared, key, value })
}

/// The whole key at a restart point.
#[inline]
pub(super) fn restart_key(block: &Block, at: u32, delta_values: bool) -> Option<&[u8]> {
    let entries = block.entries();
    let head = decode_head(entries, at, delta_values).filter(|h| h.shared == 0)?;
    Some(&entries[head.key..head.value])
}

impl IndexCursor {
    pub(crate) fn with_buffer(buffer: Vec<u8>) -> Self {
        Self {
            key: buffer,
            at: NOWHERE,
            next: 0,
            handle: BlockHandle::default(),
        }
    }

    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.key
    }

    #[inline]
    pub(crate) fn valid(&self) -> bool {
        self.at != NOWHERE
    }

    #[inline]
    pub(crate) fn invalidate(&mut self) {
        self.at = NOWHERE;
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The data block here.
    #[inline]
    pub(crate) fn handle(&self) -> BlockHandle {
        self.handle
    }

    #[cold]
    fn damaged(&mut self, at: u32) -> Result<bool> {
        self.at = NOWHERE;
        Err(bad_entry(at).with("block", "index"))
    }

    fn enter(&mut self, block: &Block, at: u32, format: &IndexFormat) -> Result<bool> {
        let entries = block.entries();
        if at as usize >= entries.len() {
            self.at = NOWHERE;
            return Ok(false);
        }
        let head = match decode_head(entries, at, format.delta_values) {
            Some(h) if h.shared as usize <= self.key.len() => h,
            _ => return self.damaged(at),
        };
        self.key.truncate(head.shared as usize);
        self.key.extend_from_slice(&entries[head.key..head.value]);
        if self.key.len() < format.order.key_len_min() {
            return self.damaged(at);
        }
        match decode_value(
            &entries[head.value..],
            head.shared != 0,
            self.handle,
            format,
        ) {
            Ok((handle, len)) => {
                self.handle = handle;
                self.at = at;
                self.next = (head.value + len) as u32;
                Ok(true)
            }
            Err(_) => self.damaged(at),
        }
    }

    pub(crate) fn seek_to_first(&mut self, block: &Block, format: &IndexFormat) -> Result<bool> {
        self.key.clear();
        self.enter(block, 0, format)
    }

    pub(crate) fn seek_to_last(&mut self, block: &Block, format: &IndexFormat) -> Result<bool> {
        let Some(last) = block.num_restarts().checked_sub(1) else {
            self.at = NOWHERE;
            return Ok(false);
        };
        self.scan_to(
            block,
            format,
            block.restart(last),
            block.entries().len() as u32,
        )
    }

    /// Stands on the last entry before the offset `end`, starting from a restart point.
    fn scan_to(
        &mut self,
        block: &Block,
        format: &IndexFormat,
        start: u32,
        end: u32,
    ) -> Result<bool> {
        self.key.clear();
        let mut at = start;
        while self.enter(block, at, format)? && self.next < end {
            at = self.next;
        }
        Ok(self.valid())
    }

    pub(crate) fn next(&mut self, block: &Block, format: &IndexFormat) -> Result<bool> {
        debug_assert!(self.valid());
        self.enter(block, self.next, format)
    }

    pub(crate) fn prev(&mut self, block: &Block, format: &IndexFormat) -> Result<bool> {
        debug_assert!(self.valid());
        let here = self.at;
        let (mut low, mut high) = (0, block.num_restarts());
        while low < high {
            let mid = low + (high - low) / 2;
            if block.restart(mid) < here {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        if low == 0 {
            self.at = NOWHERE;
            return Ok(false);
        }
        self.scan_to(block, format, block.restart(low - 1), here)
    }

    /// Moves to the first entry that is not before `target`, which is of the index's own kind
    /// of key; false if there is none.
    pub(crate) fn seek(
        &mut self,
        block: &Block,
        target: &[u8],
        format: &IndexFormat,
    ) -> Result<bool> {
        let last = block.num_restarts().saturating_sub(1);
        self.seek_within(block, target, format, (0, last))
    }

    /// Moves to the entry at restart point `i`.
    pub(crate) fn seek_to_restart(
        &mut self,
        block: &Block,
        i: u32,
        format: &IndexFormat,
    ) -> Result<bool> {
        self.key.clear();
        self.enter(block, block.restart(i), format)
    }

    /// As `seek`, where the last restart point before `target` is known to be in `range`.
    pub(crate) fn seek_within(
        &mut self,
        block: &Block,
        target: &[u8],
        format: &IndexFormat,
        range: (u32, u32),
    ) -> Result<bool> {
        self.key.clear();
        if block.num_restarts() == 0 {
            self.at = NOWHERE;
            return Ok(false);
        }
        let (mut low, mut high) = range;
        while low < high {
            let mid = low + (high - low).div_ceil(2);
            let at = block.restart(mid);
            let Some(key) = restart_key(block, at, format.delta_values) else {
                return self.damaged(at);
            };
            match format.order.compare(key, target) {
                Ordering::Less => low = mid,
                Ordering::Equal => (low, high) = (mid, mid),
                Ordering::Greater => high = mid - 1,
            }
        }
        let mut at = block.restart(low);
        while self.enter(block, at, format)? {
            if format.order.compare(&self.key, target) != Ordering::Less {
                return Ok(true);
            }
            at = self.next;
        }
        Ok(false)
    }
}

/// Reads a value: the handle, and the bytes it took.
fn decode_value(
    bytes: &[u8],
    shared: bool,
    before: BlockHandle,
    format: &IndexFormat,
) -> Result<(BlockHandle, usize)> {
    let mut d = Decoder::new(bytes);
    let handle = if format.delta_values && shared {
        let delta = d.varsigned64("block size")?;
        let bad = || Error::corruption("block handle overflows");
        let offset = before.offset.checked_add(before.size).ok_or_else(bad)?;
        BlockHandle {
            offset: offset
                .checked_add(BLOCK_TRAILER_LEN as u64)
                .ok_or_else(bad)?,
            size: before.size.checked_add_signed(delta).ok_or_else(bad)?,
        }
    } else {
        BlockHandle::decode(&mut d)?
    };
    if format.first_keys {
        d.length_prefixed("first key")?;
    }
    Ok((handle, d.position()))
}
