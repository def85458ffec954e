//! Compression as RocksDB frames it.
//!
//! A tool of the places that are files of values: tables compress their blocks with it, blob files
//! their values. It knows no file; who calls it checks checksums first and names file and offset
//! in its errors.

mod options;
mod compress;

pub use compress::{
    COMPRESSED_SIZE_MAX, CompressionType, Compressor, Dictionary, decompress, decompressed_len,
    fitting, make_dictionary,
};
pub use options::{CompressionOptions, DEFAULT_COMPRESSION_LEVEL};
