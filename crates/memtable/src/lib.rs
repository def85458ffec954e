//! Sorted memory of recent writes: the place between the log and the first table.
//!
//! Writers insert in parallel; readers never wait. Point entries and range tombstones live
//! apart. A memtable only grows; it is dropped whole after its flush.

mod prefetch;
mod prefix;
mod arena;
mod node;
mod guide;
mod list;
mod range_tombstones;
mod iter;
pub mod trie;
pub mod guided_list;
pub mod vector;
#[cfg(all(test, orogen_shuttle))]
mod model;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{InternalIterator, ParsedInternalKey, Result, SeqNo, ValueKind};

use orogen_env::memory::PagePool;

pub use guided_list::GuidedListMemTable;
pub use trie::TrieMemTable;
pub use vector::VectorMemTable;

/// What a lookup does after it was shown an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visit {
    /// Show the next older version.
    Continue,
    /// Enough.
    Stop,
}

/// When somebody is told of bytes that a memtable takes from the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// They are not counted yet.
    Before,
    /// They are in [`MemTable::memory_allocated`].
    After,
    /// There were none: what was told before is not to be.
    Not,
}

/// Told twice of bytes that a memtable takes from the system. It may be told under a lock of the
/// memtable, and asks the memtable no more than what it has allocated. It is dropped when the memtable has given
/// all of it back.
pub type Growth = Box<dyn Fn(Moment, usize) + Send + Sync>;

/// Sorted memory of writes of one column family.
///
/// All methods may be called from any thread at once. An entry is visible to readers when its
/// `insert` has returned; which entries a reader may see is decided by sequence numbers above.
pub trait MemTable: Send + Sync {
    /// Looks whether so many entries of so many bytes are something that [`Self::promise`] could promise at all.
    ///
    /// # Errors
    /// `TooLarge` if no memory would be enough.
    fn check_group(&self, entries: usize, bytes: usize) -> Result<()> {
        let _ = (entries, bytes);
        Ok(())
    }

    /// Sees to it that so many entries, whose keys and values have so many bytes, find memory when
    /// they are inserted, beside those that were promised before; [`Self::release`] ends it. One
    /// thread at a time promises. Without it an insert may find none.
    ///
    /// # Errors
    /// `NoMemory`; those of [`Self::check_group`]; nothing is promised.
    fn promise(&self, entries: usize, bytes: usize) -> Result<()> {
        let _ = (entries, bytes);
        Ok(())
    }

    /// Ends a promise of so much: all was inserted that will be.
    fn release(&self, entries: usize, bytes: usize) {
        let _ = (entries, bytes);
    }

    /// Adds an entry. The pair (key, sequence number) must be new, `kind` any but
    /// `RangeDeletion`.
    ///
    /// # Errors
    /// `NoMemory`; it was not added.
    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()>;

    /// Adds a range tombstone over `[start, end)`.
    ///
    /// # Errors
    /// `NoMemory`; it was not added.
    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()>;

    /// Shows the versions of `key` with sequence numbers up to `read_seqno`, newest first, until
    /// `visit` stops it.
    ///
    /// # Errors
    /// `Corruption` if entries are protected and one is not what was inserted.
    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) -> Result<()>;

    /// A cursor over the point entries. Those that were there when it was last placed by a seek are all told; of those
    /// that came later it may tell some.
    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator>;

    /// The range tombstones so far; shared and cheap if none was added since the last call.
    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones>;

    /// The same as written, for a flush, which cuts them with less memory; else what
    /// [`Self::range_tombstones`] lists.
    fn raw_range_tombstones(&self) -> Vec<RangeTombstone> {
        let all = self.range_tombstones();
        let copied = all.iter().map(|(start, end, seqno)| RangeTombstone {
            start: start.to_vec(),
            end: end.to_vec(),
            seqno,
        });
        copied.collect()
    }

    /// True if there is a range tombstone; cheap.
    fn has_range_tombstones(&self) -> bool;

    /// Bytes of memory held, for deciding when it is full.
    fn memory_usage(&self) -> usize;

    /// Bytes taken from the system, what no entry has yet included.
    fn memory_allocated(&self) -> usize {
        self.memory_usage()
    }

    /// Has `grows` told of the bytes that are taken from the system from now on; the first call
    /// counts. Without it nobody is told.
    fn watch_growth(&self, grows: Growth) {
        let _ = grows;
    }

    /// Takes less than so many bytes from the system ahead of what entries need from now on, but for a few KiB.
    /// Without it these are up to 2 MiB.
    fn allocate_ahead_at_most(&self, bytes: usize) {
        let _ = bytes;
    }

    /// Takes huge pages from `pool` from now on; the first call counts. Without it, or in a
    /// memtable that has no use for them, they come from the system.
    fn use_pages(&self, pool: Arc<PagePool>) {
        let _ = pool;
    }

    /// Point entries and range tombstones.
    fn entry_count(&self) -> u64;

    /// Entries that delete, range tombstones included.
    fn deletion_count(&self) -> u64;
}
