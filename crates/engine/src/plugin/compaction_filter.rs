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

/// Looks at each key's newest version during one compaction. Entries that a live snapshot may
/// read are not shown.
pub trait CompactionFilter: Send {
    /// Decides about one value.
    fn filter(&mut self, level: usize, key: &[u8], value: &[u8]) -> FilterDecision;
}

/// Makes a filter for each compaction, so that filters need not be shared between threads.
pub trait CompactionFilterFactory: Send + Sync {
    /// The stable name.
    fn name(&self) -> &str;
    /// A filter for one compaction; `None` if this one needs no filtering.
    fn create(&self, context: &FilterContext) -> Option<Box<dyn CompactionFilter>>;
}

impl fmt::Debug for dyn CompactionFilterFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
