//! How to compress: plain data, in RocksDB's words.

/// `level` meaning "the codec's own default".
pub const DEFAULT_COMPRESSION_LEVEL: i32 = 32767;

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressionOptions {
    /// Effort of the codec, [`DEFAULT_COMPRESSION_LEVEL`] for the codec's default.
    ///
    /// Larger: smaller blocks, slower writing. Of LZ4 and LZ4HC alike levels from 1 on are LZ4HC's, and
    /// negative ones are accelerations of the fast search (RocksDB 11).
    pub level: i32,
    /// Bytes of the dictionary that all data blocks of a table share; 0 for none.
    pub max_dict_bytes: u32,
    /// Bytes of samples from which a zstd dictionary is trained; 0 takes the samples themselves
    /// as the dictionary.
    pub zstd_max_train_bytes: u32,
    /// Bytes of data blocks held in memory before the dictionary is made at the latest; 0 holds
    /// the whole table.
    pub max_dict_buffer_bytes: u64,
    /// A block stays uncompressed unless it shrinks to so many 1024ths. Default 896: one eighth
    /// must be saved.
    pub max_compressed_bytes_per_kb: u32,
    /// Adds zstd's own checksum to each block.
    pub checksum: bool,
}

impl Default for CompressionOptions {
    fn default() -> Self {
        Self {
            level: DEFAULT_COMPRESSION_LEVEL,
            max_dict_bytes: 0,
            zstd_max_train_bytes: 0,
            max_dict_buffer_bytes: 0,
            max_compressed_bytes_per_kb: 896,
            checksum: false,
        }
    }
}
