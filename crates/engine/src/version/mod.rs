//! Which files make up a column family, and how that changes.
//!
//! ```text
//! MANIFEST --decode--> VersionEdit --VersionBuilder--> Version (immutable, shared)
//!     ^                    ^                              |
//!     +------ encode ------+--- flush, compaction <--- Level, FileMeta
//! ```
//! A [`Version`] never changes: readers keep an `Arc` of the one they started with, and the files
//! in it stay on disk as long as that lives. Everything here is pure but for reading and writing
//! `CURRENT`.

pub mod open_slot;
pub mod file_meta;
pub mod wal_set;
pub mod blob_meta;
pub mod blob_counts;
pub mod blob_reach;
pub mod edit;
pub mod level;
#[expect(
    clippy::module_inception,
    reason = "the folder is named after its noun"
)]
pub mod version;
pub mod text;
pub mod builder;
pub mod manifest;

pub use blob_meta::{BlobFile, BlobFileAddition, BlobFileGarbage, BlobFileMeta, Identity};
pub use builder::VersionBuilder;
pub use edit::{ColumnFamilyChange, VersionEdit};
pub use file_meta::{FileChecksum, FileMeta, Temperature};
pub use level::{KeyRange, Level};
pub use manifest::{RecoveredFamily, RecoveredManifest};
pub use version::Version;
pub use wal_set::{WalAddition, WalSet};
