//! Gathers the index of a table while its data blocks are written.
//!
//! Whether the index can hold user keys alone is known only at the end (no user key may span
//! two blocks), so separators are gathered as internal keys in one buffer.

use std::ops::Range;

use orogen_base::coding::{put_varint64, put_varsigned64};
use orogen_base::key::{TRAILER_LEN, user_key};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Result, UserComparator, memory};

use crate::block::BlockBuilder;
use crate::footer::BlockHandle;
use crate::options::BlockBasedOptions;

/// RocksDB's largest kind, which its separators carry.
const KIND_IN_SEPARATORS: u64 = 0x18;

/// Bytes of an entry's handle in an index block, about.
const HANDLE_LEN_ABOUT: usize = 8;
/// What memory is asked for.
const INDEX: &str = "index";

/// A stretch of the entries.
pub(super) struct Partition {
    entries: Range<usize>,
    /// Their bytes.
    keys: Range<usize>,
}

pub(super) struct IndexBuilder {
    keys: Vec<u8>,
    entries: Vec<(u32, BlockHandle)>,
    separator: Vec<u8>,
    user_keys: bool,
    delta_values: bool,
    restart_interval: u32,
}

impl IndexBuilder {
    pub(super) fn new(options: &BlockBasedOptions) -> Self {
        Self {
            keys: Vec::new(),
            entries: Vec::new(),
            separator: Vec::new(),
            // Readers of format 2 know only internal keys.
            user_keys: options.format_version >= 3,
            delta_values: options.format_version >= 4,
            restart_interval: options.index_block_restart_interval,
        }
    }

    /// Adds the block at `handle`, whose last key is `last`; `next` is the key after it.
    pub(super) fn add(
        &mut self,
        order: &UserComparator,
        last: &[u8],
        next: Option<&[u8]>,
        handle: BlockHandle,
    ) -> Result<()> {
        memory::reserve(&mut self.keys, last.len() + TRAILER_LEN, INDEX)?;
        memory::reserve(&mut self.entries, 1, INDEX)?;
        let start = self.keys.len();
        match next {
            Some(next) if order.compare(user_key(last), user_key(next)).is_eq() => {
                self.user_keys = false;
            }
            Some(next) => self.add_separator(order, user_key(last), user_key(next)),
            None => {}
        }
        if self.keys.len() == start {
            self.keys.extend_from_slice(last);
        }
        self.entries
            .push(((self.keys.len() - start) as u32, handle));
        Ok(())
    }

    /// Adds a key between `last` and `next` that is not longer than `last`, if there is one.
    fn add_separator(&mut self, order: &UserComparator, last: &[u8], next: &[u8]) {
        self.separator.clear();
        self.separator.extend_from_slice(last);
        order.find_shortest_separator(&mut self.separator, next);
        if self.separator.len() <= last.len() && order.less(last, &self.separator) {
            // As an internal key it is before all versions of itself.
            let trailer = (SEQNO_MAX << 8) | KIND_IN_SEPARATORS;
            self.keys.extend_from_slice(&self.separator);
            self.keys.extend_from_slice(&trailer.to_le_bytes());
        }
    }

    pub(super) fn keys_are_user_keys(&self) -> bool {
        self.user_keys
    }

    /// Bytes of the finished index, about.
    pub(super) fn size(&self) -> usize {
        self.keys.len() + 12 * self.entries.len() + 8
    }

    /// Bytes of memory held.
    pub(super) fn memory_usage(&self) -> usize {
        self.keys.capacity() + self.entries.capacity() * size_of::<(u32, BlockHandle)>()
    }

    /// The index as one block.
    pub(super) fn finish(&self) -> Result<Vec<u8>> {
        self.block(&Partition {
            entries: 0..self.entries.len(),
            keys: 0..self.keys.len(),
        })
    }

    /// The entries in stretches of about `bytes`.
    pub(super) fn partitions(&self, bytes: usize) -> Vec<Partition> {
        let mut all = Vec::new();
        let (mut first, mut first_key) = (0, 0);
        let mut end_key = 0;
        for (i, &(len, _)) in self.entries.iter().enumerate() {
            end_key += len as usize;
            let size = end_key - first_key + HANDLE_LEN_ABOUT * (i + 1 - first);
            if size >= bytes || i + 1 == self.entries.len() {
                all.push(Partition {
                    entries: first..i + 1,
                    keys: first_key..end_key,
                });
                (first, first_key) = (i + 1, end_key);
            }
        }
        all
    }

    /// The internal key behind all data blocks of a partition.
    pub(super) fn last_key(&self, partition: &Partition) -> &[u8] {
        let last = self.entries[partition.entries.clone()].last();
        let len = last.map_or(0, |e| e.0 as usize);
        &self.keys[partition.keys.end - len..partition.keys.end]
    }

    /// An index of the same format, for what leads to partitions.
    pub(super) fn top(&self) -> Self {
        Self {
            keys: Vec::new(),
            entries: Vec::new(),
            separator: Vec::new(),
            ..*self
        }
    }

    /// Adds an entry whose separator is `internal_key`.
    pub(super) fn push(&mut self, internal_key: &[u8], handle: BlockHandle) -> Result<()> {
        memory::append(&mut self.keys, internal_key, INDEX)?;
        memory::push(
            &mut self.entries,
            (internal_key.len() as u32, handle),
            INDEX,
        )
    }

    /// The index block of a partition.
    pub(super) fn block(&self, partition: &Partition) -> Result<Vec<u8>> {
        let mut block = BlockBuilder::new(self.restart_interval, self.delta_values);
        let (mut whole, mut delta) = (Vec::new(), Vec::new());
        let mut size_before = 0;
        let mut at = partition.keys.start;
        for &(len, handle) in &self.entries[partition.entries.clone()] {
            let end = at + len as usize;
            let key_end = if self.user_keys {
                end - TRAILER_LEN
            } else {
                end
            };
            whole.clear();
            delta.clear();
            put_varint64(&mut whole, handle.offset);
            put_varint64(&mut whole, handle.size);
            put_varsigned64(&mut delta, handle.size as i64 - size_before);
            block.add_index(&self.keys[at..key_end], &whole, &delta)?;
            size_before = handle.size as i64;
            at = end;
        }
        Ok(block.into_block())
    }
}
