//! The LSM engine: write, flush, read, compact.
//!
//! Modules are listed in the order of the flow; each imports only from those above itself.

pub mod events;
pub mod plugin;
pub mod options;
mod health;
pub mod filename;
mod info_log;
pub mod version;
mod sequence;
pub mod batch;
mod logs;
pub mod read;
mod tables;
mod super_version;
pub mod compaction_iter;
pub mod output;
pub mod compact;
mod column_family;
mod version_set;
mod stall;
mod context;
mod write;
mod view;
mod obsolete;
mod jobs;
mod background;
mod core;
pub mod options_file;
mod options_map;
mod open;
mod checkpoint;
mod properties;
mod db;

pub use batch::WriteBatch;
pub use column_family::DEFAULT_COLUMN_FAMILY_NAME;
pub use db::{ColumnFamily, Db};
pub use options::{
    BottommostLevelCompaction, ColumnFamilyOptions, CompactRangeOptions, DbOptions, FlushOptions,
    Options, WriteOptions,
};
pub use properties::LiveFile;
pub use read::{ReadOptions, Snapshot};
pub use view::DbIterator;
