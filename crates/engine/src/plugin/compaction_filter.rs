//! Compaction filters: the user's say about each value that a compaction meets.

use std::fmt;

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterDecision {
    /// It stays.
    Keep,
    /// It is deleted: a tombstone takes its place where older versions may be below.
    Remove,
    /// It gets another value.
    ChangeValue(Vec<u8>),
    /// All that the compaction has of the keys from this one up to but not including the given one is
    /// dropped, of whatever kind it is, and the filter is asked about none of it. Values are not read;
    /// where no input points into blob files, neither are the tables in between. A user key that is
    /// not after this one: it stays.
    ///
    /// As in RocksDB no tombstones take the place of what is dropped, so older versions below the
    /// output come back; and snapshots do not see it any more, nor do transactions that check
    /// for conflicts. Range tombstones stay. It ends where the compaction ends, or the stretch of
    /// it that this filter was made for.
    RemoveAndSkipUntil(Vec<u8>),
}

/// What a compaction tells its filters.
#[derive(Clone, Copy, Debug)]
pub struct FilterContext {
    /// The column family.
    pub column_family_id: u32,
    /// True if all files of the family are inputs.
    pub is_full_compaction: bool,
    /// True if a user asked for the compaction.
    pub is_manual_compaction: bool,
    /// The level that is written.
    pub output_level: usize,
}

/// Looks at each key's newest version, and at merge operands, during one compaction, or the part of it that a thread does. Entries that a
/// live snapshot may read are not shown.
pub trait CompactionFilter: Send {
    /// Decides about one value.
    fn filter(&mut self, level: usize, key: &[u8], value: &[u8]) -> FilterDecision;

    /// Decides about a value in a blob file that has not been read, by its key and the
    /// `stored_len` bytes that it takes there. `None`, which is what it gives if it is not
    /// overridden: the value is read, and [`Self::filter`] asked.
    fn filter_blob_by_key(
        &mut self,
        level: usize,
        key: &[u8],
        stored_len: u64,
    ) -> Option<FilterDecision> {
        let _ = (level, key, stored_len);
        None
    }

    /// Decides about one merge operand, before it is folded; each operand of a key that no live
    /// snapshot may read is shown, newest first, down to what they rest on. `Keep`, if it is not
    /// overridden.
    ///
    /// `Remove` drops this operand without a trace, and what is below it counts as if it had not
    /// been there; `ChangeValue` puts another operand in its place; `RemoveAndSkipUntil` drops the
    /// whole key, operands that were kept before included. As in RocksDB neither what a fold comes
    /// to nor what removed operands rested on is shown to [`Self::filter`].
    fn filter_merge_operand(&mut self, level: usize, key: &[u8], operand: &[u8]) -> FilterDecision {
        let _ = (level, key, operand);
        FilterDecision::Keep
    }
}

/// Makes a filter for each compaction, and each thread of one, so that filters need not be shared between threads.
pub trait CompactionFilterFactory: Send + Sync {
    /// The stable name.
    fn name(&self) -> &str;
    /// A filter for one compaction, or a thread's part of it; `None` if this one needs no filtering.
    fn create(&self, context: &FilterContext) -> Option<Box<dyn CompactionFilter>>;
}

impl fmt::Debug for dyn CompactionFilterFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
