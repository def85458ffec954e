//! Settings of block-based tables: plain data, in RocksDB's words.
//!
//! What a table was written with stands in its footer and its properties; a reader needs none
//! of the writer's settings.

use orogen_base::checksum::ChecksumType;
use orogen_codec::CompressionOptions;

/// How the way to data blocks is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockIndex {
    /// One block, in memory as long as the table is open. RocksDB's `kBinarySearch`.
    #[default]
    BinarySearch,
    /// Partitions of [`BlockBasedOptions::metadata_block_size`] bytes, read through the block
    /// cache, below one small block that stays in memory: bounds what an open table holds.
    /// RocksDB's `kTwoLevelIndexSearch`.
    TwoLevel,
}

/// The settings of a block-based table.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockBasedOptions {
    /// Bytes of a data block before compression.
    ///
    /// Larger: smaller index and better compression, more to read per lookup. Default 4 KiB.
    pub block_size: usize,
    /// Percent of `block_size` that may stay free to keep the next entry whole. Default 10.
    pub block_size_deviation: u8,
    /// Entries between keys that are stored whole, in data blocks. Default 16.
    pub block_restart_interval: u32,
    /// The same in index blocks. Default 1.
    pub index_block_restart_interval: u32,
    /// The format to write: 2 to 6. Default 5.
    pub format_version: u32,
    /// The checksum of every block.
    pub checksum: ChecksumType,
    /// Bits of Bloom filter per key; 0 for no filter, which is RocksDB's default.
    ///
    /// 10 gives about one false positive in a hundred.
    pub filter_bits_per_key: f64,
    /// Puts whole keys into the filter; without it only prefixes. Default true.
    pub whole_key_filtering: bool,
    /// One index block, or partitions. Default one.
    pub index_type: BlockIndex,
    /// Writes a filter for each stretch of keys instead of one for the table, read through the
    /// block cache; only with [`BlockIndex::TwoLevel`]. Default false.
    pub partition_filters: bool,
    /// Bytes of a partition of index or filter, about. Default 4 KiB.
    ///
    /// Larger: fewer reads of the top, more memory for each lookup that is not cached.
    pub metadata_block_size: usize,
    /// Keeps index and filter in the block cache instead of in the table reader; the tops of
    /// partitioned ones stay in the reader. Default false.
    pub cache_index_and_filter_blocks: bool,
    /// Compresses index blocks too. Default true.
    pub enable_index_compression: bool,
    /// Decompresses every block after compressing it and compares. Default false.
    pub verify_compression: bool,
}

impl Default for BlockBasedOptions {
    fn default() -> Self {
        Self {
            block_size: 4096,
            block_size_deviation: 10,
            block_restart_interval: 16,
            index_block_restart_interval: 1,
            format_version: 5,
            checksum: ChecksumType::Xxh3,
            filter_bits_per_key: 0.0,
            whole_key_filtering: true,
            index_type: BlockIndex::BinarySearch,
            partition_filters: false,
            metadata_block_size: 4096,
            cache_index_and_filter_blocks: false,
            enable_index_compression: true,
            verify_compression: false,
        }
    }
}

/// The newest format of tables that is written; 7 is read.
pub const FORMAT_VERSION_MAX: u32 = 6;
/// The oldest format that is written.
pub const FORMAT_VERSION_MIN: u32 = 2;

impl BlockBasedOptions {
    /// Rejects what cannot be written.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option.
    pub fn validate(&self) -> orogen_base::Result<()> {
        let bad = |what: &'static str, value: String| {
            Err(
                orogen_base::Error::invalid_argument("table option is out of range")
                    .with("option", what)
                    .with("value", value),
            )
        };
        if self.block_size == 0 || self.block_size > 1 << 30 {
            return bad("block_size", self.block_size.to_string());
        }
        if self.block_restart_interval == 0 {
            return bad("block_restart_interval", "0".to_owned());
        }
        if self.index_block_restart_interval == 0 {
            return bad("index_block_restart_interval", "0".to_owned());
        }
        if self.metadata_block_size == 0 {
            return bad("metadata_block_size", "0".to_owned());
        }
        if self.partition_filters && self.index_type != BlockIndex::TwoLevel {
            return bad(
                "partition_filters",
                "true without a two-level index".to_owned(),
            );
        }
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION_MAX).contains(&self.format_version) {
            return bad("format_version", self.format_version.to_string());
        }
        if !self.filter_bits_per_key.is_finite() || self.filter_bits_per_key < 0.0 {
            return bad("filter_bits_per_key", self.filter_bits_per_key.to_string());
        }
        Ok(())
    }
}

/// The text of the property `rocksdb.compression_options`.
pub(crate) fn compression_options_text(o: &CompressionOptions) -> String {
    format!(
        "window_bits=-14; level={}; strategy=0; max_dict_bytes={}; zstd_max_train_bytes={}; \
         enabled=0; max_dict_buffer_bytes={}; use_zstd_dict_trainer=1; \
         max_compressed_bytes_per_kb={}; checksum={}; ",
        o.level,
        o.max_dict_bytes,
        o.zstd_max_train_bytes,
        o.max_dict_buffer_bytes,
        o.max_compressed_bytes_per_kb,
        u8::from(o.checksum),
    )
}
