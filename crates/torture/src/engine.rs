//! The part of the engine's API that the runs use, in one place.

pub use orogen_base::{Error, ErrorKind, PinnedValue, Result, UserComparator};
pub use orogen_engine::backup::{BackupEngine, BackupOptions};
pub use orogen_engine::plugin::merge_operator::{self, MergeOperator};
pub use orogen_engine::{
    BlobRunMode, BottommostLevelCompaction, CheckpointOptions, CollectBlobGarbageOptions,
    ColumnFamily, ColumnFamilyOptions, CompactOnDeletion, CompactRangeOptions, CompactionHandle,
    ConvertTo, ConvertValuesOptions, Db, DbIterator, DbOptions, FlushOptions, Options, ReadOptions,
    Snapshot, UserKeyRange, WriteBatch, WriteOptions,
};
