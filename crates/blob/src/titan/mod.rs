//! Blob files of Titan, the store of large values beside RocksDB: read, never written.
//!
//! Titan keeps its files in a directory of its own (`titandb`) with a MANIFEST of its own, and
//! pointers in tables that look like ours at first sight. Who moves such a directory to ours reads
//! [`TitanEdit`]s to know the live files, and follows [`TitanPointer`]s with a [`TitanFile`]. Byte
//! tables: `docs/format/titan.md`.
//!
//! ```text
//! header 8, 12 or 20 | record ... | [dictionary] | [meta index] | footer 32
//! record: checksum, size, codec | key, value compressed together
//! ```
//! Invariant: whatever the bytes, an answer or an error with file and offset; memory is taken only
//! for what the file can hold.
//! Source: tikv/titan `src/blob_format.h`, `src/version_edit.h`.

mod format;
mod manifest;
mod reader;

pub use format::{
    FOOTER_LEN, HEADER_LEN_MAX, RECORD_HEADER_LEN, TitanFooter, TitanHeader, TitanPointer,
    TitanRecordHeader, referenced_sizes,
};
pub use manifest::{TitanEdit, TitanFileMeta, TitanLive};
pub use reader::{TitanFile, TitanWindow};

/// The directory of Titan's files, inside the database's.
pub const DIR: &str = "titandb";

/// Property of tables: how many bytes of records they point to, file by file.
pub const REFERENCED_SIZE: &str = "TitanDB.blob_discardable_size";

#[cfg(test)]
mod tests;
