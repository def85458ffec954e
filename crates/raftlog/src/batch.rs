//! Operations that take effect together.
//!
//! A batch holds the bytes of its entries in one buffer, as they will stand in the record's block,
//! and beside them the items, in the order in which they were added and will be applied.

use orogen_base::{Error, Result, memory};

use crate::format::{self, BLOCK_LEN_MAX, RESERVED_KEY};
use crate::item::{Entries, Item, Op};

/// An operation on a whole group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Drops the group with all its entries and keys.
    Clean,
    /// Drops the entries below `index`.
    Compact {
        /// Index of the first entry that stays.
        index: u64,
    },
}

/// Operations on any groups, which are there all or none after a crash.
///
/// It is empty again once it was written, and as it was if that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBatch {
    pub(crate) items: Vec<Item>,
    /// Bytes of the entries, one behind the other.
    pub(crate) block: Vec<u8>,
    /// Bytes that the items take in a record.
    item_bytes: usize,
}

/// A buffer larger than this is given back after a write.
const BUFFER_KEPT_MAX: usize = 8 << 20;

impl LogBatch {
    /// A batch with room for `items` operations.
    #[must_use]
    pub fn with_capacity(items: usize) -> Self {
        Self {
            items: Vec::with_capacity(items),
            ..Self::default()
        }
    }

    /// Adds entries with the indexes `first`, `first + 1` and so on.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch's entries would be more than `i32::MAX` bytes, or the last
    /// index would be `u64::MAX` or more; `NoMemory`. The batch is then as it was.
    pub fn add_entries<E: AsRef<[u8]>>(
        &mut self,
        group: u64,
        first: u64,
        entries: &[E],
    ) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        if first.checked_add(entries.len() as u64).is_none() {
            return Err(Error::invalid_argument("indexes are out of bounds")
                .with("group", group)
                .with("first", first));
        }
        let bytes: usize = entries.iter().map(|e| e.as_ref().len()).sum();
        let total = self.block.len().saturating_add(bytes);
        if total > BLOCK_LEN_MAX {
            return Err(format::full(total));
        }
        memory::reserve(&mut self.block, bytes, "entries of a batch")?;
        self.add_with(group, first, entries, |entry, block| {
            block.extend_from_slice(entry.as_ref());
            Ok(())
        })
    }

    /// Adds entries with the indexes from `first` on. `encode` puts the bytes of each behind those
    /// that are in the block, which must not become longer than [`BLOCK_LEN_MAX`].
    ///
    /// # Errors
    /// Those of `encode`; `NoMemory`. The batch is then as it was.
    pub(crate) fn add_with<T, E: From<Error>>(
        &mut self,
        group: u64,
        first: u64,
        entries: &[T],
        mut encode: impl FnMut(&T, &mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ends = memory::with_capacity(entries.len(), "entries of a batch")?;
        let before = self.block.len();
        for entry in entries {
            if let Err(e) = encode(entry, &mut self.block) {
                self.block.truncate(before);
                return Err(e);
            }
            ends.push(self.block.len() as u32);
        }
        let start = before as u32;
        self.push(group, Op::Entries(Entries { first, start, ends }));
        Ok(())
    }

    /// Adds a command.
    pub fn add_command(&mut self, group: u64, command: Command) {
        self.push(
            group,
            match command {
                Command::Clean => Op::Clean,
                Command::Compact { index } => Op::Compact { index },
            },
        );
    }

    /// Sets a key of a group.
    ///
    /// # Errors
    /// `InvalidArgument` for the three bytes `__\x01`, which the format keeps for itself.
    pub fn put(&mut self, group: u64, key: Vec<u8>, value: Vec<u8>) -> Result<()> {
        if key == RESERVED_KEY {
            return Err(Error::invalid_argument("key is reserved").with("group", group));
        }
        self.push(group, Op::Put { key, value });
        Ok(())
    }

    /// Removes a key of a group.
    pub fn delete(&mut self, group: u64, key: Vec<u8>) {
        self.push(group, Op::Delete { key });
    }

    /// Moves the operations of `other` behind those of this batch.
    ///
    /// # Errors
    /// `InvalidArgument` if the entries would be too many bytes together; `NoMemory`. Both batches
    /// are then as they were.
    pub fn merge(&mut self, other: &mut Self) -> Result<()> {
        let total = self.block.len().saturating_add(other.block.len());
        if total > BLOCK_LEN_MAX {
            return Err(format::full(total));
        }
        memory::reserve(&mut self.items, other.items.len(), "items of a batch")?;
        let base = self.block.len() as u32;
        memory::append(&mut self.block, &other.block, "entries of a batch")?;
        for mut item in other.items.drain(..) {
            if let Op::Entries(entries) = &mut item.op {
                entries.start += base;
                for end in &mut entries.ends {
                    *end += base;
                }
            }
            self.item_bytes += format::item_len(&item);
            self.items.push(item);
        }
        other.clear();
        Ok(())
    }

    /// True without operations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes that the record of this batch takes at most; 0 if it is empty.
    #[must_use]
    pub fn approximate_size(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        format::record_len(self.block.len(), self.items.len(), self.item_bytes)
    }

    fn push(&mut self, group: u64, op: Op) {
        let item = Item { group, op };
        self.item_bytes += format::item_len(&item);
        self.items.push(item);
    }

    /// Makes it empty; buffers of usual size are kept.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.block.clear();
        self.block.shrink_to(BUFFER_KEPT_MAX);
        self.item_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LogBatch {
        let mut batch = LogBatch::default();
        batch.add_entries(1, 5, &["ab", "", "c"]).unwrap();
        batch.put(1, b"k".to_vec(), b"v".to_vec()).unwrap();
        batch
    }

    #[test]
    fn the_size_is_that_of_the_record() {
        let never = format::Lz4Policy {
            threshold: 0,
            acceleration: 1,
        };
        let mut batch = sample();
        let mut other = sample();
        other.add_command(300, Command::Compact { index: 1 << 40 });
        other.add_entries(2, 1, &[vec![0; 1000]]).unwrap();
        other.delete(2, vec![1; 200]);
        batch.merge(&mut other).unwrap();
        let record = format::encode_record(&batch.block, &batch.items, never).unwrap();
        assert_eq!(batch.approximate_size(), record.bytes.len());
        assert_eq!(other, LogBatch::default());
        assert_eq!(other.approximate_size(), 0);
    }

    #[test]
    fn a_merged_batch_is_what_would_have_been_added() {
        let mut merged = sample();
        merged.merge(&mut sample()).unwrap();
        let mut added = sample();
        added.add_entries(1, 5, &["ab", "", "c"]).unwrap();
        added.put(1, b"k".to_vec(), b"v".to_vec()).unwrap();
        assert_eq!(merged, added);
    }

    #[test]
    fn what_a_record_cannot_hold_is_refused_and_leaves_the_batch_alone() {
        let mut batch = sample();
        let before = batch.clone();
        assert!(batch.put(1, b"__\x01".to_vec(), Vec::new()).is_err());
        assert!(batch.add_entries(1, u64::MAX, &["x"]).is_err());
        // The same 64 MiB over and over: more than fits, though nothing like it is in memory.
        let large = vec![0u8; 64 << 20];
        let many: Vec<&[u8]> = (0..32).map(|_| large.as_slice()).collect();
        assert!(batch.add_entries(1, 8, &many).is_err());
        assert_eq!(batch, before);
        batch.add_entries(1, 8, &[] as &[&[u8]]).unwrap();
        assert_eq!(batch, before);
        batch.put(1, b"__\x02".to_vec(), Vec::new()).unwrap();
    }
}
