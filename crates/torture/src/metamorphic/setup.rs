//! Options drawn at random.

use std::sync::Arc;

use orogen_base::checksum::ChecksumType;
use orogen_base::slice_transform;
use orogen_engine::options::MemTableKind;
use orogen_engine::{MemoryBudget, PrepopulateBlobCache};
use orogen_env::{RateLimiter, SystemClock};
use orogen_sst::{BlockIndex, CompressionOptions, CompressionType};
use orogen_testkit::Rng;

use crate::engine::{
    BlobRunMode, ColumnFamilyOptions, CompactOnDeletion, DbOptions, UserComparator, merge_operator,
};

/// What stays the same for the life of a family.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    pub(super) reverse: bool,
    pub(super) num_levels: usize,
    pub(super) operator: &'static str,
}

impl Fixed {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        Self {
            reverse: rng.chance(1, 4),
            num_levels: *rng.pick(&[2, 3, 4, 7, 7, 7]),
            operator: *rng.pick(&["stringappend", "stringappend", "uint64add", "put", "max"]),
        }
    }
}

const CODECS: [CompressionType; 5] = [
    CompressionType::None,
    CompressionType::Snappy,
    CompressionType::Lz4,
    CompressionType::Lz4hc,
    CompressionType::Zstd,
];

const CHECKSUMS: [ChecksumType; 5] = [
    ChecksumType::None,
    ChecksumType::Crc32c,
    ChecksumType::XxHash,
    ChecksumType::XxHash64,
    ChecksumType::Xxh3,
];

/// Settings of a family.
pub(super) fn family(rng: &mut Rng, fixed: &Fixed) -> ColumnFamilyOptions {
    let mut o = ColumnFamilyOptions::default();
    if fixed.reverse {
        o.comparator = UserComparator::REVERSE_BYTEWISE;
    }
    o.num_levels = fixed.num_levels;
    o.merge_operator = merge_operator::by_name(fixed.operator);
    o.prefix_extractor = match rng.below(5) {
        0 => slice_transform::by_name("fixed:1"),
        1 => slice_transform::by_name("fixed:2"),
        2 => slice_transform::by_name("capped:3"),
        3 => slice_transform::by_name("noop"),
        _ => None,
    };
    o.write_buffer_size = *rng.pick(&[4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20]);
    o.max_write_buffer_number = rng.range(2..6);
    o.min_write_buffer_number_to_merge = rng.range(1..o.max_write_buffer_number);
    o.compression = *rng.pick(&CODECS);
    if rng.chance(1, 3) {
        o.compression_per_level = (0..rng.range(1..5)).map(|_| *rng.pick(&CODECS)).collect();
    }
    if rng.chance(1, 3) {
        o.bottommost_compression = Some(*rng.pick(&CODECS));
    }
    o.compression_opts = compression(rng);
    if rng.chance(1, 4) {
        o.bottommost_compression_opts = Some(compression(rng));
    }
    o.level0_file_num_compaction_trigger = rng.range(1..6);
    o.target_file_size_base = *rng.pick(&[2 << 10, 8 << 10, 32 << 10, 1 << 20]);
    o.target_file_size_multiplier = rng.range(1..4) as u64;
    o.max_bytes_for_level_base = *rng.pick(&[4 << 10, 16 << 10, 64 << 10, 1 << 20]);
    o.max_bytes_for_level_multiplier = *rng.pick(&[2.0, 3.5, 10.0]);
    o.level_compaction_dynamic_level_bytes = rng.chance(1, 2);
    o.max_compaction_bytes = *rng.pick(&[0, 0, 8 << 10, 64 << 10]);
    o.ttl = *rng.pick(&[0, 0, 1]);
    o.periodic_compaction_seconds = *rng.pick(&[0, 0, 1]);
    o.max_size_amplification_percent = *rng.pick(&[0, 0, 20, 200]);
    o.recompress_bottommost_files = rng.chance(1, 3);
    o.compact_on_deletion = rng.chance(2, 3).then_some(CompactOnDeletion {
        sliding_window_size: *rng.pick(&[0, 8, 64]),
        deletion_trigger: 6,
        deletion_ratio: *rng.pick(&[0.0, 0.3]),
    });
    o.disable_auto_compactions = rng.chance(1, 10);
    o.enable_blob_files = rng.chance(1, 2);
    o.blob_run_mode = *rng.pick(&[
        BlobRunMode::Normal,
        BlobRunMode::Normal,
        BlobRunMode::ReadOnly,
        BlobRunMode::Fallback,
    ]);
    o.min_blob_size = *rng.pick(&[0, 10, 50, 200]);
    o.blob_file_size = *rng.pick(&[1, 1 << 10, 16 << 10]);
    o.blob_compression_type = *rng.pick(&CODECS);
    o.enable_blob_garbage_collection = rng.chance(1, 2);
    o.blob_garbage_collection_age_cutoff = *rng.pick(&[0.25, 0.5, 1.0]);
    o.blob_garbage_collection_force_threshold = *rng.pick(&[1.0, 0.3, 0.0]);
    o.blob_cache = rng.chance(1, 2);
    o.prepopulate_blob_cache = *rng.pick(&[
        PrepopulateBlobCache::Disable,
        PrepopulateBlobCache::FlushOnly,
    ]);
    if rng.chance(1, 2) {
        o.blob_compression_opts.max_dict_bytes = *rng.pick(&[64, 1 << 10]);
        o.blob_compression_opts.zstd_max_train_bytes = *rng.pick(&[0, 400, 16 << 10]);
        o.blob_compression_opts.max_dict_buffer_bytes = *rng.pick(&[0, 1, 4 << 10]);
    }
    o.blob_record_alignment = *rng.pick(&[0, 0, 1, 64, 4096]);
    o.blob_hole_punching = rng.chance(3, 4);
    o.blob_hole_punching_threshold = 0.0;
    o.blob_hole_punching_min_bytes = 1;
    o.blob_file_discardable_ratio = *rng.pick(&[1.0, 1.0, 0.4, 0.0]);
    o.blob_gc_auto = rng.chance(2, 3);
    o.max_space_amp = *rng.pick(&[0.0, 0.0, 1.1, 1.5]);
    o.min_gc_batch_size = 0;
    o.memtable_protection_bytes_per_key = *rng.pick(&[0, 0, 8]);
    let kind = *rng.pick(&[
        MemTableKind::GuidedList,
        MemTableKind::Trie,
        MemTableKind::Adaptive,
    ]);
    o.memtable_factory = kind.factory();
    o.block_protection_bytes_per_key = *rng.pick(&[0, 0, 8]);
    o.paranoid_file_checks = rng.chance(1, 4);
    let t = &mut o.table;
    t.block_size = *rng.pick(&[64, 256, 1024, 4096]);
    t.block_size_deviation = *rng.pick(&[0, 10, 50]);
    t.block_restart_interval = *rng.pick(&[1, 2, 7, 16]);
    t.index_block_restart_interval = *rng.pick(&[1, 1, 3, 16]);
    t.format_version = rng.range(2..7) as u32;
    t.checksum = *rng.pick(&CHECKSUMS);
    t.filter_bits_per_key = *rng.pick(&[0.0, 1.0, 5.5, 10.0, 20.0]);
    t.whole_key_filtering = rng.chance(3, 4);
    t.cache_index_and_filter_blocks = rng.chance(1, 3);
    if rng.chance(1, 2) {
        t.index_type = BlockIndex::TwoLevel;
        t.partition_filters = rng.chance(2, 3);
        t.metadata_block_size = *rng.pick(&[32, 200, 4096]);
    }
    t.enable_index_compression = rng.chance(1, 2);
    t.verify_compression = rng.chance(1, 4);
    o.blob_file_discardable_ratio = *rng.pick(&[1.0, 0.5, 0.0]);
    o.min_gc_batch_size = *rng.pick(&[0, 0, 4 << 10]);
    o.max_gc_batch_size = *rng.pick(&[1, 16 << 10, 1 << 30]);
    o.merge_small_file_threshold = *rng.pick(&[0, 1 << 10, 1 << 20]);
    o.level_merge = rng.chance(1, 3);
    o.range_merge = rng.chance(1, 2);
    o.max_sorted_runs = *rng.pick(&[0, 1, 2, 4, 20]);
    o.blob_file_starting_level = *rng.pick(&[0, 0, 1, 2, 6]);
    o
}

fn compression(rng: &mut Rng) -> CompressionOptions {
    let mut o = CompressionOptions::default();
    if rng.chance(1, 4) {
        o.max_dict_bytes = *rng.pick(&[64, 1024, 16 << 10]);
        o.zstd_max_train_bytes = *rng.pick(&[0, 4 << 10, 64 << 10]);
        o.max_dict_buffer_bytes = *rng.pick(&[0, 4 << 10]);
    }
    o.max_compressed_bytes_per_kb = *rng.pick(&[896, 1024, 512]);
    o.checksum = rng.chance(1, 4);
    o
}

/// What is changed while the database is open, and to what.
pub(super) const CHANGES: [(&str, &[&str]); 39] = [
    ("write_buffer_size", &["4k", "16k", "1m"]),
    ("max_write_buffer_number", &["2", "3", "6"]),
    ("level0_file_num_compaction_trigger", &["1", "2", "5"]),
    ("target_file_size_base", &["2k", "8k", "1m"]),
    ("target_file_size_multiplier", &["1", "3"]),
    ("max_bytes_for_level_base", &["4k", "64k", "1m"]),
    ("max_bytes_for_level_multiplier", &["2", "3.5", "10.0"]),
    ("max_compaction_bytes", &["8k", "64k", "1g"]),
    ("ttl", &["0", "1"]),
    ("periodic_compaction_seconds", &["0", "1"]),
    ("disable_auto_compactions", &["true", "false", "false"]),
    (
        "compression",
        &["kNoCompression", "kLZ4Compression", "kZSTD"],
    ),
    (
        "compression_per_level",
        &["", "kNoCompression:kZSTD", "kSnappyCompression"],
    ),
    (
        "compression_opts",
        &["{level=1;}", "{max_dict_bytes=1024;}"],
    ),
    (
        "block_based_table_factory",
        &[
            "{block_size=64;block_restart_interval=1;}",
            "{block_size=4k;format_version=5;}",
            "{checksum=kCRC32c;filter_policy=bloomfilter:5:false;}",
            "{filter_policy=nullptr;}",
            "{index_type=kTwoLevelIndexSearch;partition_filters=true;}",
            "{index_type=kBinarySearch;partition_filters=false;}",
        ],
    ),
    (
        "bottommost_compression",
        &["kDisableCompressionOption", "kZSTD"],
    ),
    ("enable_blob_files", &["true", "true", "false"]),
    (
        "blob_run_mode",
        &["kNormal", "kNormal", "kReadOnly", "kFallback"],
    ),
    ("min_blob_size", &["0", "10", "200"]),
    ("blob_file_size", &["1", "1k", "16k"]),
    (
        "blob_compression_type",
        &["kNoCompression", "kLZ4Compression", "kZSTD"],
    ),
    (
        "blob_compression_opts",
        &[
            "{max_dict_bytes=0;}",
            "{level=3;}",
            "{max_dict_bytes=1024;}",
        ],
    ),
    ("blob_record_alignment", &["0", "64", "4096"]),
    ("prepopulate_blob_cache", &["kDisable", "kFlushOnly"]),
    ("enable_blob_garbage_collection", &["true", "false"]),
    ("blob_garbage_collection_age_cutoff", &["0.25", "1.0"]),
    (
        "blob_garbage_collection_force_threshold",
        &["1.0", "0.3", "0.0"],
    ),
    ("blob_hole_punching", &["true", "true", "false"]),
    ("blob_hole_punching_threshold", &["0.0", "0.125"]),
    ("blob_hole_punching_min_bytes", &["1", "4k"]),
    ("blob_file_discardable_ratio", &["1.0", "0.5", "0.0"]),
    ("min_gc_batch_size", &["0", "4k"]),
    ("max_gc_batch_size", &["1", "16k", "1g"]),
    ("merge_small_file_threshold", &["0", "1k", "1m"]),
    ("level_merge", &["true", "false"]),
    ("range_merge", &["true", "false"]),
    ("max_sorted_runs", &["0", "1", "3"]),
    ("blob_file_starting_level", &["0", "1", "6"]),
    ("blob_compaction_readahead_size", &["0", "4k", "1m"]),
];

/// Settings of large values, those that RocksDB has and those that are ours, as text.
pub(super) fn blob_settings(o: &ColumnFamilyOptions) -> String {
    format!(
        "{} {:?} {} {} {:?} {:?} {} {:?} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
        o.enable_blob_files,
        o.blob_run_mode,
        o.min_blob_size,
        o.blob_file_size,
        o.blob_compression_type,
        o.blob_compression_opts,
        o.blob_record_alignment,
        o.prepopulate_blob_cache,
        o.enable_blob_garbage_collection,
        o.blob_garbage_collection_age_cutoff,
        o.blob_garbage_collection_force_threshold,
        o.blob_hole_punching,
        o.blob_hole_punching_threshold,
        o.blob_hole_punching_min_bytes,
        o.blob_file_discardable_ratio,
        o.min_gc_batch_size,
        o.max_gc_batch_size,
        o.merge_small_file_threshold,
        o.level_merge,
        o.range_merge,
        o.max_sorted_runs,
        o.blob_file_starting_level
    )
}

/// Settings of the database.
pub(super) fn database(rng: &mut Rng) -> DbOptions {
    DbOptions {
        create_if_missing: true,
        max_background_jobs: rng.range(1..5),
        max_subcompactions: rng.range(1..4),
        max_background_gc: rng.range(0..3),
        flush_halves_bytes: *rng.pick(&[0, 4 << 10, u64::MAX]),
        max_total_wal_size: *rng.pick(&[0, 0, 8 << 10, 64 << 10]),
        recycle_log_file_num: *rng.pick(&[0, 0, 1, 3]),
        wal_size_limit_mb: *rng.pick(&[0, 0, 0, 1]),
        delayed_write_rate: 1 << 30,
        allow_concurrent_memtable_write: rng.chance(3, 4),
        db_write_buffer_size: *rng.pick(&[0, 0, 16 << 10]),
        memory_budget: rng
            .chance(1, 4)
            .then(|| Arc::new(MemoryBudget::new(1 << 20))),
        rate_limiter: rng
            .chance(1, 4)
            .then(|| Arc::new(RateLimiter::new(64 << 20, Arc::new(SystemClock)))),
        bytes_per_sync: *rng.pick(&[0, 512, 1 << 20]),
        max_manifest_file_size: *rng.pick(&[1, 1000, 1 << 30]),
        avoid_flush_during_recovery: rng.chance(1, 2),
        avoid_flush_during_shutdown: rng.chance(1, 2),
        info_log: rng.chance(1, 8),
        ..DbOptions::default()
    }
}
