//! Files of large values in RocksDB's blob file format.
//!
//! One of the places of a pair: a flush or a compaction puts the values that are too large to be
//! moved with their keys here through [`BlobFileBuilder`], and tables keep a [`BlobPointer`]
//! instead. Reads follow it through [`BlobFileReader`]; who looks after the file's space walks its
//! records with a [`RecordCursor`]. A file is written once. Its layout is drawn in
//! `docs/format/blob.md`.
//!
//! ```text
//! header | [dictionary] | record ... | [record index] | properties | tail | footer
//! ```
//! All between header and footer are records of one form, with their checksums; those that are not
//! the user's are marked.

pub mod pointer;
pub mod format;
pub mod meta;
mod window;
pub mod reader;
pub mod places;
pub mod cursor;
pub mod builder;
pub mod dictionary;
pub mod extents;
pub mod dump;
pub mod titan;

pub use builder::{BlobFileBuilder, BlobFileBuilderOptions, BlobFileSummary};
pub use cursor::{BlobRecord, RecordCursor};
pub use dictionary::dictionary_for;
pub use format::HOLE_BLOCK;
pub use meta::Extent;
pub use meta::{BlobFileProperties, MetaIndex};
pub use places::{RecordPlace, RecordPlaces};
pub use pointer::{BlobIndex, BlobPointer};
pub use reader::{
    AheadRead, BlobFileReader, BlobFileReaderOptions, BlobRead, BlobReadahead, BlobValue, Coalesce,
    Place, WindowAccount,
};

#[cfg(test)]
mod tests;
