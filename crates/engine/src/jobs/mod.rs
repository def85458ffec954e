//! Jobs own what they work on: sealed memtables, input files, outputs until they are installed.

pub(crate) mod flush;
pub(crate) mod manual_flush;
pub(crate) mod idle_logs;
pub(crate) mod compaction_handle;
pub(crate) mod compaction;
pub(crate) mod punch_due;
pub(crate) mod punch;
pub(crate) mod in_place;
pub(crate) mod blob_collection;
pub(crate) mod blob_conversion;
pub(crate) mod manual_compaction;
