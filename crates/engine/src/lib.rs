//! The LSM engine: write, flush, read, compact.
//!
//! Modules are listed in the order of the flow; each imports only from those above itself.

pub mod events;
pub mod plugin;
pub mod memory;
pub mod options;
mod health;
mod directory;
mod retry;
mod signal;
pub mod filename;
mod info_log;
pub mod version;
mod sequence;
pub mod batch;
pub mod prepared;
mod logs;
pub mod read;
mod tables;
mod holes;
mod pace;
mod super_version;
pub mod compaction_iter;
pub mod output;
pub mod compact;
mod column_family;
mod version_set;
mod stall;
mod shortage;
mod activity;
mod context;
mod quarantine;
mod write;
mod view;
mod obsolete;
mod jobs;
mod resume;
mod background;
mod core;
pub mod options_file;
mod options_map;
mod open;
mod option_changes;
mod follower;
mod temporary;
mod checkpoint;
mod ranges;
mod updates;
mod scrub;
mod blob_files;
mod report;
mod properties;
mod db;
mod new_directory;
pub mod backup;
pub mod repair;
pub mod migrate;
#[cfg(all(test, orogen_shuttle))]
mod model;

pub use activity::{JobInfo, JobKind, JobState};
pub use batch::WriteBatch;
pub use blob_files::{BLOB_DAMAGES_LISTED_MAX, BlobFileCheck, BlobFilesFound, LiveBlobFile};
pub use column_family::DEFAULT_COLUMN_FAMILY_NAME;
pub use db::{ColumnFamily, ColumnFamilyIdentity, Db};
pub use jobs::blob_conversion::{ConversionHandle, ConversionProgress};
pub use jobs::compaction_handle::{CompactionHandle, CompactionProgress};
pub use memory::{MemoryBudget, MemoryUsage};
pub use options::{
    BlobRunMode, BottommostLevelCompaction, CheckpointOptions, CollectBlobGarbageOptions,
    ColumnFamilyOptions, CompactOnDeletion, CompactRangeOptions, ConvertTo, ConvertValuesOptions,
    DbOptions, FlushOptions, Options, PrepopulateBlobCache, WriteOptions,
};
pub use options_map::{check_logs_are_here, logs_elsewhere};
pub use properties::LiveFile;
pub use ranges::{DeletedFiles, SizeApproximationOptions, UserKeyRange};
pub use read::{ReadOptions, Snapshot, Written};
pub use report::{Holders, ObsoleteFile, SnapshotHolder, ViewHolder};
pub use scrub::{FilesVerified, Scrubbed, VerifyOptions};
pub use updates::{Update, UpdatesIterator};
pub use view::DbIterator;
