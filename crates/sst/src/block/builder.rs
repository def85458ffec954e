//! Builds a block: entries in rising order, keys shortened by what they share.
//!
//! `Hot path`: adding an entry appends to one buffer and allocates nothing once that has grown.

use orogen_base::coding::{put_varint32, varint_len};
use orogen_base::{Result, memory};

/// Of the lengths before an entry.
const HEAD_LEN_MAX: usize = 15;

/// A block being built.
pub(crate) struct BlockBuilder {
    buffer: Vec<u8>,
    restarts: Vec<u32>,
    restart_interval: u32,
    since_restart: u32,
    last_key: Vec<u8>,
    /// Index blocks of format 4 and later: values without their length.
    bare_values: bool,
}

/// Bytes that `a` and `b` begin with in common.
#[inline]
pub(crate) fn shared_prefix(a: &[u8], b: &[u8]) -> usize {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut i = 0;
    while let (Some(x), Some(y)) = (a[i..].first_chunk::<8>(), b[i..].first_chunk::<8>()) {
        let difference = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if difference != 0 {
            return i + (difference.trailing_zeros() / 8) as usize;
        }
        i += 8;
    }
    while i < n && a[i] == b[i] {
        i += 1;
    }
    i
}

impl BlockBuilder {
    pub(crate) fn new(restart_interval: u32, bare_values: bool) -> Self {
        Self {
            buffer: Vec::new(),
            restarts: vec![0],
            restart_interval,
            since_restart: 0,
            last_key: Vec::new(),
            bare_values,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Bytes that the finished block has if nothing more is added.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.buffer.len() + 4 * self.restarts.len() + 4
    }

    /// Bytes of memory held.
    pub(crate) fn memory_usage(&self) -> usize {
        self.buffer.capacity() + 4 * self.restarts.capacity() + self.last_key.capacity()
    }

    /// RocksDB's guess of the size after one more entry; high, since it ignores sharing.
    #[inline]
    pub(crate) fn size_after(&self, key: &[u8], value: &[u8]) -> usize {
        let restart = if self.since_restart >= self.restart_interval {
            4
        } else {
            0
        };
        self.size()
            + key.len()
            + value.len()
            + restart
            + 4
            + varint_len(key.len() as u64)
            + varint_len(value.len() as u64)
    }

    /// Adds an entry; `key` is after all keys so far, and lengths fit 32 bits.
    ///
    /// # Errors
    /// `NoMemory`; the entry was not added.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.make_room(key.len(), value.len())?;
        self.add_within(key, value);
        Ok(())
    }

    /// Sees to it that an entry and the end of the block have room.
    #[inline]
    fn make_room(&mut self, key_len: usize, value_len: usize) -> Result<()> {
        let tail = 4 * self.restarts.len() + 8;
        let entry = key_len + value_len + HEAD_LEN_MAX;
        memory::reserve(&mut self.buffer, entry + tail, "block")?;
        memory::reserve(&mut self.restarts, 1, "restart points")?;
        let more = key_len.saturating_sub(self.last_key.len());
        memory::reserve(&mut self.last_key, more, "key")
    }

    #[inline]
    fn add_within(&mut self, key: &[u8], value: &[u8]) {
        let shared = self.begin(key);
        let unshared = &key[shared..];
        if (shared | unshared.len() | value.len()) < 0x80 {
            let head = [shared as u8, unshared.len() as u8, value.len() as u8];
            self.buffer.extend_from_slice(&head);
        } else {
            put_varint32(&mut self.buffer, shared as u32);
            put_varint32(&mut self.buffer, unshared.len() as u32);
            put_varint32(&mut self.buffer, value.len() as u32);
        }
        self.buffer.extend_from_slice(unshared);
        self.buffer.extend_from_slice(value);
    }

    /// Adds an index entry: `delta` is stored where the key shares bytes with the key before.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub(crate) fn add_index(&mut self, key: &[u8], whole: &[u8], delta: &[u8]) -> Result<()> {
        self.make_room(key.len(), whole.len())?;
        if !self.bare_values {
            self.add_within(key, whole);
            return Ok(());
        }
        let shared = self.begin(key);
        put_varint32(&mut self.buffer, shared as u32);
        put_varint32(&mut self.buffer, (key.len() - shared) as u32);
        self.buffer.extend_from_slice(&key[shared..]);
        self.buffer
            .extend_from_slice(if shared == 0 { whole } else { delta });
        Ok(())
    }

    /// Opens a restart point if one is due; returns how much of `key` is shared.
    #[inline]
    fn begin(&mut self, key: &[u8]) -> usize {
        let shared = if self.since_restart >= self.restart_interval {
            self.restarts.push(self.buffer.len() as u32);
            self.since_restart = 0;
            0
        } else if self.buffer.is_empty() {
            0
        } else {
            shared_prefix(&self.last_key, key)
        };
        self.since_restart += 1;
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(&key[shared..]);
        shared
    }

    /// Appends the restart array and returns the block.
    pub(crate) fn finish(&mut self) -> &[u8] {
        for r in &self.restarts {
            self.buffer.extend_from_slice(&r.to_le_bytes());
        }
        self.buffer
            .extend_from_slice(&(self.restarts.len() as u32).to_le_bytes());
        &self.buffer
    }

    /// As [`Self::finish`], of a builder that is not needed any more.
    pub(crate) fn into_block(mut self) -> Vec<u8> {
        self.finish();
        self.buffer
    }

    /// Empties the builder for the next block.
    pub(crate) fn reset(&mut self) {
        self.buffer.clear();
        self.restarts.clear();
        self.restarts.push(0);
        self.since_restart = 0;
        self.last_key.clear();
    }
}
