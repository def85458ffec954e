//! Sorted string tables in RocksDB's block-based format.
//!
//! One of the four places of a pair: a flush and each compaction write tables through
//! [`TableBuilder`], reads go through [`TableReader`]. A table is written once and never
//! changed. Its layout is drawn in `docs/format/sst_block.md`.
//!
//! ```text
//! data blocks | filter | index | dictionary | range tombstones | properties | meta index | footer
//! ```
//! Every block is followed by its compression type and its checksum. The footer leads to the
//! meta index, the meta index to the rest, the index to the data blocks.

pub mod options;
pub mod footer;
pub mod block;
mod prefetch;
mod filter;
pub mod properties;
pub mod builder;
mod file;
pub mod reader;
pub mod iter;
pub mod dump;
pub mod salvage;

pub use block::Block;
pub use builder::{TableBuilder, TableBuilderOptions, TableSummary};
pub use footer::{BlockHandle, Footer};
pub use iter::TableIter;
pub use options::{BlockBasedOptions, BlockIndex, FORMAT_VERSION_MAX, FORMAT_VERSION_MIN};
pub use orogen_codec::{CompressionOptions, CompressionType};
pub use properties::{IndexType, TableProperties};
pub use reader::{
    Anchor, BatchLookup, LookupKey, Readahead, TableReadOptions, TableReader, TableReaderOptions,
    ValueSource, Visit,
};

/// What the block cache keeps: a block's bytes after decompression.
pub type CachedBlock = Block;

/// The block cache that table readers share.
pub type BlockCache = orogen_cache::Cache<CachedBlock>;

#[cfg(test)]
mod tests_support;
#[cfg(test)]
mod tests;
