//! Get out what was put in: point reads, scans, snapshots.
//!
//! ```text
//! get, multi_get --------> GetState <-- memtables, tables
//! DbIterator --> MergingIter --> memtables, tables of level 0, LevelIter --> tables
//!           \--> RangeDelAggregator --> their range tombstones
//! ```
//! A read holds a super version ([`Places`] borrows one) from before it takes its sequence number
//! until its end: so no flush or compaction can drop what it may see.

pub mod snapshot;
pub mod read_options;
pub mod merge;
pub mod table_access;
pub mod get;
pub mod multi_get;
pub mod written;
pub mod level_iter;
pub mod source;
pub mod merging_iter;
pub mod range_del_agg;
pub mod db_iter;

use std::sync::Arc;

use orogen_base::metrics::Statistics;

use crate::plugin::merge_operator::MergeOperator;
use crate::version::Version;

pub use db_iter::{DbIterator, Scan};
pub use get::GetState;
pub use level_iter::LevelIter;
pub use merging_iter::MergingIter;
pub use range_del_agg::RangeDelAggregator;
pub use read_options::ReadOptions;
pub use snapshot::{Snapshot, SnapshotList};
pub use table_access::{Ask, AskBlob, BlobKeeper, BlobSource, TableAccess, Upcoming};
pub use written::Written;

/// The places of one column family that a read looks into, and how: parts of a super version.
pub struct Places<'a, T: TableAccess, M> {
    /// An iterator over the memtables as `&Arc<dyn MemTable>`, newest first.
    pub memtables: M,
    /// The tables.
    pub version: &'a Arc<Version>,
    /// Opens tables.
    pub tables: &'a Arc<T>,
    /// How tables are read.
    pub table_options: &'a T::Options,
    /// Folds merge operands.
    pub merge_operator: Option<&'a Arc<dyn MergeOperator>>,
    /// Counts.
    pub statistics: &'a Arc<Statistics>,
}

#[cfg(test)]
mod simulated;
