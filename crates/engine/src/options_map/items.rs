//! Every setting that an OPTIONS file can hold: its name, how it is printed and read, and whether
//! it may change while the database is open.
//!
//! One list serves both directions and both uses: the file, and changes while open. Source:
//! RocksDB `options/cf_options.cc`, `options/db_options.cc`,
//! `table/block_based/block_based_table_factory.cc`.

use std::sync::Arc;

use orogen_base::checksum::ChecksumType;
use orogen_base::{UserComparator, slice_transform};
use orogen_sst::{BlockBasedOptions, BlockIndex, CompressionOptions, CompressionType};

use crate::options::{
    BlobRunMode, ColumnFamilyOptions, DbOptions, FileChecksumKind, PrepopulateBlobCache,
    WalRecoveryMode,
};
use crate::options_file::value;
use crate::plugin::merge_operator::{self, MergeOperator};

/// One setting of a `T`.
pub(crate) struct Item<T> {
    pub(crate) name: &'static str,
    /// It may change while the database is open.
    pub(crate) mutable: bool,
    /// The value as it stands in a file.
    pub(crate) print: fn(&T) -> String,
    /// Takes the value of a file; `None` if it is none. What it names but this process does not
    /// have (an operator of the user's) is left as it is.
    pub(crate) read: fn(&mut T, &str) -> Option<()>,
}

/// Bits for each key of a filter of which only the name is told.
const FILTER_BITS_WHERE_UNTOLD: f64 = 10.0;

const FIXED: bool = false;
const MUTABLE: bool = true;

/// Values as text, in both directions.
trait Text: Sized {
    fn print(&self) -> String;
    fn read(value: &str) -> Option<Self>;
}

impl Text for bool {
    fn print(&self) -> String {
        self.to_string()
    }
    fn read(value: &str) -> Option<Self> {
        value::parse_bool(value)
    }
}

macro_rules! numbers {
    ($($t:ty),*) => {$(
        impl Text for $t {
            fn print(&self) -> String {
                self.to_string()
            }
            fn read(value: &str) -> Option<Self> {
                value::parse_u64(value).and_then(|v| v.try_into().ok())
            }
        }
    )*};
}
numbers!(u8, u32, u64, usize);

impl Text for f64 {
    fn print(&self) -> String {
        self.to_string()
    }
    fn read(value: &str) -> Option<Self> {
        value::parse_f64(value)
    }
}

impl Text for CompressionType {
    fn print(&self) -> String {
        self.name().to_owned()
    }
    fn read(value: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|c| c.name() == value && c.can_write())
    }
}

/// What stands for "as the others".
const NO_CODEC: &str = "kDisableCompressionOption";

impl Text for Option<CompressionType> {
    fn print(&self) -> String {
        self.map_or_else(|| NO_CODEC.to_owned(), |c| c.print())
    }
    fn read(value: &str) -> Option<Self> {
        match value {
            NO_CODEC => Some(None),
            codec => CompressionType::read(codec).map(Some),
        }
    }
}

impl Text for Vec<CompressionType> {
    fn print(&self) -> String {
        let names: Vec<&str> = self.iter().map(|c| c.name()).collect();
        names.join(":")
    }
    fn read(value: &str) -> Option<Self> {
        let names = value::parse_list(value)?;
        names.iter().map(|n| CompressionType::read(n)).collect()
    }
}

fn print_codec_options(options: &CompressionOptions, enabled: bool) -> String {
    let mut entries = vec![
        ("window_bits", "-14".to_owned()),
        ("level", options.level.to_string()),
        ("strategy", "0".to_owned()),
        (
            "max_dict_bytes",
            // RocksDB reads an `int`, and none of a file with a larger one.
            options.max_dict_bytes.min(i32::MAX as u32).to_string(),
        ),
        (
            "zstd_max_train_bytes",
            options.zstd_max_train_bytes.to_string(),
        ),
        ("enabled", enabled.to_string()),
        (
            "max_dict_buffer_bytes",
            options.max_dict_buffer_bytes.to_string(),
        ),
    ];
    // RocksDB 7 does not know these, and refuses what it does not know.
    let default = CompressionOptions::default();
    if options.max_compressed_bytes_per_kb != default.max_compressed_bytes_per_kb {
        let bytes = options.max_compressed_bytes_per_kb.to_string();
        entries.push(("max_compressed_bytes_per_kb", bytes));
    }
    if options.checksum != default.checksum {
        entries.push(("checksum", options.checksum.to_string()));
    }
    value::print_map(entries.iter().map(|(k, v)| (*k, v.as_str())))
}

/// Reads a map over `options`; returns whether it is said to be enabled, if that is said.
fn read_codec_options(options: &mut CompressionOptions, text: &str) -> Option<Option<bool>> {
    let mut enabled = None;
    for (key, v) in value::parse_map(text)? {
        let v = v.as_str();
        match key.as_str() {
            "level" => options.level = value::parse_i64(v)?.try_into().ok()?,
            "max_dict_bytes" => options.max_dict_bytes = Text::read(v)?,
            "zstd_max_train_bytes" => options.zstd_max_train_bytes = Text::read(v)?,
            "max_dict_buffer_bytes" => options.max_dict_buffer_bytes = Text::read(v)?,
            "max_compressed_bytes_per_kb" => options.max_compressed_bytes_per_kb = Text::read(v)?,
            "checksum" => options.checksum = Text::read(v)?,
            "enabled" => enabled = Some(Text::read(v)?),
            // What our codecs do not have, and what RocksDB has for threads of one table.
            "window_bits" | "strategy" | "parallel_threads" | "use_zstd_dict_trainer" => {}
            _ => return None,
        }
    }
    Some(enabled)
}

/// RocksDB writes the largest numbers where it chooses a value itself when it opens.
fn read_age(out: &mut u64, text: &str) -> Option<()> {
    let age: u64 = Text::read(text)?;
    if age < u64::MAX - 1 {
        *out = age;
    }
    Some(())
}

macro_rules! item {
    ($t:ty, $change:ident, $name:literal, $field:ident) => {
        Item::<$t> {
            name: $name,
            mutable: $change,
            print: |o| Text::print(&o.$field),
            read: |o, v| {
                o.$field = Text::read(v)?;
                Some(())
            },
        }
    };
    // Of RocksDB's type `int`: it refuses all of an OPTIONS file with a number that this cannot hold.
    ($t:ty, $change:ident, $name:literal, int $field:ident) => {
        Item::<$t> {
            name: $name,
            mutable: $change,
            print: |o| Text::print(&o.$field.min(i32::MAX as _)),
            read: |o, v| {
                o.$field = Text::read(v)?;
                Some(())
            },
        }
    };
    ($t:ty, $change:ident, $name:literal, $print:expr, $read:expr) => {
        Item::<$t> {
            name: $name,
            mutable: $change,
            print: $print,
            read: $read,
        }
    };
}

const RECOVERY_MODES: [(WalRecoveryMode, &str); 4] = [
    (
        WalRecoveryMode::TolerateCorruptedTailRecords,
        "kTolerateCorruptedTailRecords",
    ),
    (WalRecoveryMode::AbsoluteConsistency, "kAbsoluteConsistency"),
    (WalRecoveryMode::PointInTimeRecovery, "kPointInTimeRecovery"),
    (
        WalRecoveryMode::SkipAnyCorruptedRecords,
        "kSkipAnyCorruptedRecords",
    ),
];

const PREPOPULATE: [(PrepopulateBlobCache, &str); 2] = [
    (PrepopulateBlobCache::Disable, "kDisable"),
    (PrepopulateBlobCache::FlushOnly, "kFlushOnly"),
];

const RUN_MODES: [(BlobRunMode, &str); 3] = [
    (BlobRunMode::Normal, "kNormal"),
    (BlobRunMode::ReadOnly, "kReadOnly"),
    (BlobRunMode::Fallback, "kFallback"),
];

const CHECKSUMS: [(ChecksumType, &str); 5] = [
    (ChecksumType::None, "kNoChecksum"),
    (ChecksumType::Crc32c, "kCRC32c"),
    (ChecksumType::XxHash, "kxxHash"),
    (ChecksumType::XxHash64, "kxxHash64"),
    (ChecksumType::Xxh3, "kXXH3"),
];

const INDEX_TYPES: [(BlockIndex, &str); 2] = [
    (BlockIndex::BinarySearch, "kBinarySearch"),
    (BlockIndex::TwoLevel, "kTwoLevelIndexSearch"),
];

const FILE_CHECKSUMS: [(FileChecksumKind, &str); 2] = [
    (FileChecksumKind::None, "nullptr"),
    (FileChecksumKind::Crc32c, "FileChecksumGenCrc32cFactory"),
];

fn name_in<T: PartialEq>(names: &[(T, &'static str)], value: &T) -> String {
    let found = names.iter().find(|(v, _)| v == value);
    found.map_or("", |(_, name)| name).to_owned()
}

fn value_in<T: Copy>(names: &[(T, &'static str)], name: &str) -> Option<T> {
    let found = names.iter().find(|(_, n)| *n == name);
    found.map(|(v, _)| *v)
}

/// Bits for each key of a filter, in the ways in which RocksDB's versions write them:
///
/// ```text
/// bloomfilter:10:false                                also what `set_options` takes
/// {bits_per_key=10;id=bloomfilter;}, {id=bloomfilter:10:false;}
/// bloomfilter                                         of who came by the C interface, which loses the bits
/// ```
/// RocksDB itself takes the last for no filter. Others, as Ribbon filters, are refused: they are not written here.
fn read_filter(text: &str) -> Option<f64> {
    if text == "nullptr" {
        return Some(0.0);
    }
    let map = match text.starts_with('{') {
        true => value::parse_map(text)?,
        false => vec![("id".to_owned(), text.to_owned())],
    };
    let get = |key: &str| map.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    let mut parts = get("id")?.split(':');
    let kind = parts.next()?;
    let bits = match parts.next().or_else(|| get("bits_per_key")) {
        Some(bits) => value::parse_f64(bits)?,
        None => FILTER_BITS_WHERE_UNTOLD,
    };
    // The last is what RocksDB wrote before 7, without the bits.
    let is_known = matches!(
        kind,
        "bloomfilter" | "rocksdb.BloomFilter" | "rocksdb.BuiltinBloomFilter"
    );
    is_known.then_some(bits)
}

/// RocksDB 7 and later write `{id=StringAppendOperator;delimiter=,;}` for operators with options.
pub(super) fn stored_merge_operator(text: &str) -> Option<Arc<dyn MergeOperator>> {
    let inner = text.trim().trim_start_matches('{').trim_end_matches('}');
    let mut name = inner;
    let mut delimiter = None;
    for part in inner.split(';') {
        // Spaces may be what stands between operands.
        match part.split_once('=').map(|(key, value)| (key.trim(), value)) {
            Some(("id", id)) => name = id.trim(),
            Some(("delimiter", d)) => delimiter = Some(d.as_bytes().to_vec()),
            _ => {}
        }
    }
    if let (Some(delimiter), "StringAppendOperator" | "StringAppendTESTOperator") =
        (delimiter, name)
    {
        return Some(Arc::new(merge_operator::StringAppend { delimiter }));
    }
    merge_operator::by_name(name)
}

type Db = DbOptions;
type Cf = ColumnFamilyOptions;
type Table = BlockBasedOptions;

/// What is only ever one thing here.
fn taken<T>(_: &mut T, _: &str) -> Option<()> {
    Some(())
}

/// The settings of the database.
pub(crate) static DB: &[Item<Db>] = &[
    item!(Db, FIXED, "paranoid_checks", paranoid_checks),
    item!(Db, MUTABLE, "max_background_jobs", int max_background_jobs),
    item!(Db, MUTABLE, "max_subcompactions", int max_subcompactions),
    item!(Db, MUTABLE, "max_total_wal_size", max_total_wal_size),
    item!(
        Db,
        FIXED,
        "wal_recovery_mode",
        |o| name_in(&RECOVERY_MODES, &o.wal_recovery_mode),
        |o, v| {
            o.wal_recovery_mode = value_in(&RECOVERY_MODES, v)?;
            Some(())
        }
    ),
    item!(Db, FIXED, "recycle_log_file_num", recycle_log_file_num),
    item!(Db, FIXED, "allow_mmap_writes", allow_mmap_writes),
    item!(Db, FIXED, "allow_mmap_reads", allow_mmap_reads),
    item!(Db, FIXED, "WAL_ttl_seconds", wal_ttl_seconds),
    item!(Db, FIXED, "WAL_size_limit_MB", wal_size_limit_mb),
    item!(Db, MUTABLE, "delayed_write_rate", delayed_write_rate),
    item!(
        Db,
        FIXED,
        "allow_concurrent_memtable_write",
        allow_concurrent_memtable_write
    ),
    item!(Db, FIXED, "db_write_buffer_size", db_write_buffer_size),
    item!(Db, MUTABLE, "bytes_per_sync", bytes_per_sync),
    item!(Db, FIXED, "max_manifest_file_size", max_manifest_file_size),
    item!(
        Db,
        FIXED,
        "file_checksum_gen_factory",
        |o| name_in(&FILE_CHECKSUMS, &o.file_checksum),
        |o, v| {
            if let Some(kind) = value_in(&FILE_CHECKSUMS, v) {
                o.file_checksum = kind;
            }
            Some(())
        }
    ),
    item!(
        Db,
        FIXED,
        "avoid_flush_during_recovery",
        avoid_flush_during_recovery
    ),
    item!(
        Db,
        MUTABLE,
        "avoid_flush_during_shutdown",
        avoid_flush_during_shutdown
    ),
    item!(
        Db,
        FIXED,
        "max_bgerror_resume_count",
        |o| o.max_bgerror_resume_count.min(i32::MAX as u64).to_string(),
        |o, v| {
            o.max_bgerror_resume_count = Text::read(v)?;
            Some(())
        }
    ),
    item!(
        Db,
        FIXED,
        "bgerror_resume_retry_interval",
        bgerror_resume_retry_interval
    ),
    item!(Db, FIXED, "keep_log_file_num", keep_log_file_num),
];

/// The settings of a family, but for those of its tables.
pub(crate) static FAMILY: &[Item<Cf>] = &[
    item!(
        Cf,
        FIXED,
        "comparator",
        |o| value::escape(o.comparator.name()),
        |o, v| {
            if let Some(order) = UserComparator::by_name(&value::unescape(v)) {
                o.comparator = order;
            }
            Some(())
        }
    ),
    item!(
        Cf,
        FIXED,
        "merge_operator",
        |o| match &o.merge_operator {
            Some(operator) => value::escape(&operator.stored()),
            None => "nullptr".to_owned(),
        },
        |o, v| {
            if o.merge_operator.is_none() {
                o.merge_operator = stored_merge_operator(&value::unescape(v));
            }
            Some(())
        }
    ),
    item!(
        Cf,
        MUTABLE,
        "prefix_extractor",
        |o| value::escape(o.prefix_extractor.as_ref().map_or("nullptr", |p| p.name())),
        |o, v| {
            if o.prefix_extractor.is_none() {
                o.prefix_extractor = slice_transform::by_name(&value::unescape(v));
            }
            Some(())
        }
    ),
    item!(
        Cf,
        FIXED,
        "memtable_factory",
        |_| "SkipListFactory".to_owned(),
        taken
    ),
    item!(
        Cf,
        FIXED,
        "table_factory",
        |_| "BlockBasedTable".to_owned(),
        taken
    ),
    item!(
        Cf,
        FIXED,
        "compaction_style",
        |_| "kCompactionStyleLevel".to_owned(),
        taken
    ),
    item!(Cf, MUTABLE, "paranoid_file_checks", paranoid_file_checks),
    item!(Cf, MUTABLE, "write_buffer_size", write_buffer_size),
    item!(
        Cf,
        MUTABLE,
        "max_write_buffer_number",
        int max_write_buffer_number
    ),
    item!(
        Cf,
        FIXED,
        "min_write_buffer_number_to_merge",
        int min_write_buffer_number_to_merge
    ),
    item!(Cf, MUTABLE, "compression", compression),
    item!(Cf, MUTABLE, "compression_per_level", compression_per_level),
    item!(
        Cf,
        MUTABLE,
        "bottommost_compression",
        bottommost_compression
    ),
    item!(
        Cf,
        MUTABLE,
        "compression_opts",
        |o| print_codec_options(&o.compression_opts, false),
        |o, v| {
            let mut own = o.compression_opts;
            read_codec_options(&mut own, v)?;
            o.compression_opts = own;
            Some(())
        }
    ),
    item!(
        Cf,
        MUTABLE,
        "bottommost_compression_opts",
        |o| print_codec_options(
            &o.bottommost_compression_opts.unwrap_or_default(),
            o.bottommost_compression_opts.is_some()
        ),
        |o, v| {
            let mut own = o.bottommost_compression_opts.unwrap_or_default();
            let enabled = read_codec_options(&mut own, v)?;
            let enabled = enabled.unwrap_or_else(|| o.bottommost_compression_opts.is_some());
            o.bottommost_compression_opts = enabled.then_some(own);
            Some(())
        }
    ),
    item!(Cf, FIXED, "num_levels", num_levels),
    item!(
        Cf,
        MUTABLE,
        "level0_file_num_compaction_trigger",
        int level0_file_num_compaction_trigger
    ),
    item!(
        Cf,
        MUTABLE,
        "level0_slowdown_writes_trigger",
        int level0_slowdown_writes_trigger
    ),
    item!(
        Cf,
        MUTABLE,
        "level0_stop_writes_trigger",
        int level0_stop_writes_trigger
    ),
    item!(Cf, MUTABLE, "target_file_size_base", target_file_size_base),
    item!(
        Cf,
        MUTABLE,
        "target_file_size_multiplier",
        int target_file_size_multiplier
    ),
    item!(
        Cf,
        MUTABLE,
        "max_bytes_for_level_base",
        max_bytes_for_level_base
    ),
    item!(
        Cf,
        MUTABLE,
        "max_bytes_for_level_multiplier",
        max_bytes_for_level_multiplier
    ),
    item!(
        Cf,
        FIXED,
        "level_compaction_dynamic_level_bytes",
        level_compaction_dynamic_level_bytes
    ),
    item!(
        Cf,
        MUTABLE,
        "soft_pending_compaction_bytes_limit",
        soft_pending_compaction_bytes_limit
    ),
    item!(
        Cf,
        MUTABLE,
        "hard_pending_compaction_bytes_limit",
        hard_pending_compaction_bytes_limit
    ),
    item!(
        Cf,
        MUTABLE,
        "max_compaction_bytes",
        |o| o.max_compaction_bytes().to_string(),
        |o, v| {
            o.max_compaction_bytes = Text::read(v)?;
            Some(())
        }
    ),
    item!(Cf, MUTABLE, "ttl", |o| o.ttl.to_string(), |o, v| read_age(
        &mut o.ttl, v
    )),
    item!(
        Cf,
        MUTABLE,
        "periodic_compaction_seconds",
        |o| o.periodic_compaction_seconds.to_string(),
        |o, v| read_age(&mut o.periodic_compaction_seconds, v)
    ),
    item!(
        Cf,
        MUTABLE,
        "disable_auto_compactions",
        disable_auto_compactions
    ),
    item!(Cf, MUTABLE, "enable_blob_files", enable_blob_files),
    item!(Cf, MUTABLE, "min_blob_size", min_blob_size),
    item!(
        Cf,
        MUTABLE,
        "blob_file_starting_level",
        int blob_file_starting_level
    ),
    item!(Cf, MUTABLE, "blob_file_size", blob_file_size),
    item!(Cf, MUTABLE, "blob_compression_type", blob_compression_type),
    item!(
        Cf,
        MUTABLE,
        "enable_blob_garbage_collection",
        enable_blob_garbage_collection
    ),
    item!(
        Cf,
        MUTABLE,
        "blob_garbage_collection_age_cutoff",
        blob_garbage_collection_age_cutoff
    ),
    item!(
        Cf,
        MUTABLE,
        "blob_garbage_collection_force_threshold",
        blob_garbage_collection_force_threshold
    ),
    item!(
        Cf,
        MUTABLE,
        "blob_compaction_readahead_size",
        blob_compaction_readahead_size
    ),
    item!(
        Cf,
        MUTABLE,
        "prepopulate_blob_cache",
        |o| name_in(&PREPOPULATE, &o.prepopulate_blob_cache),
        |o, v| {
            o.prepopulate_blob_cache = value_in(&PREPOPULATE, v)?;
            Some(())
        }
    ),
];

/// Settings of a family that are ours. In a file they stand where its other readers, who would refuse
/// them, see comments.
pub(crate) static OWN_FAMILY: &[Item<Cf>] = &[
    item!(
        Cf,
        MUTABLE,
        "blob_run_mode",
        |o| name_in(&RUN_MODES, &o.blob_run_mode),
        |o, v| {
            o.blob_run_mode = value_in(&RUN_MODES, v)?;
            Some(())
        }
    ),
    item!(
        Cf,
        MUTABLE,
        "blob_file_discardable_ratio",
        blob_file_discardable_ratio
    ),
    item!(Cf, MUTABLE, "blob_gc_auto", blob_gc_auto),
    item!(Cf, MUTABLE, "max_space_amp", max_space_amp),
    item!(Cf, MUTABLE, "min_gc_batch_size", min_gc_batch_size),
    item!(Cf, MUTABLE, "max_gc_batch_size", max_gc_batch_size),
    item!(
        Cf,
        MUTABLE,
        "merge_small_file_threshold",
        merge_small_file_threshold
    ),
    item!(
        Cf,
        MUTABLE,
        "blob_compression_opts",
        |o| print_codec_options(&o.blob_compression_opts, false),
        |o, v| {
            let mut own = o.blob_compression_opts;
            read_codec_options(&mut own, v)?;
            o.blob_compression_opts = own;
            Some(())
        }
    ),
    item!(Cf, MUTABLE, "blob_record_alignment", blob_record_alignment),
    item!(Cf, MUTABLE, "blob_hole_punching", blob_hole_punching),
    item!(
        Cf,
        MUTABLE,
        "blob_hole_punching_threshold",
        blob_hole_punching_threshold
    ),
    item!(
        Cf,
        MUTABLE,
        "blob_hole_punching_min_bytes",
        blob_hole_punching_min_bytes
    ),
    item!(Cf, MUTABLE, "level_merge", level_merge),
    item!(Cf, MUTABLE, "range_merge", range_merge),
    item!(Cf, MUTABLE, "max_sorted_runs", max_sorted_runs),
];

/// The same of the database.
pub(crate) static OWN_DB: &[Item<DbOptions>] = &[
    item!(DbOptions, MUTABLE, "max_background_gc", max_background_gc),
    item!(DbOptions, MUTABLE, "flush_halves_bytes", flush_halves_bytes),
    item!(DbOptions, FIXED, "adaptive_mmap_reads", adaptive_mmap_reads),
];

/// The settings of tables. What only new files depend on may change.
pub(crate) static TABLE: &[Item<Table>] = &[
    item!(Table, MUTABLE, "block_size", block_size),
    item!(Table, MUTABLE, "block_size_deviation", block_size_deviation),
    item!(
        Table,
        MUTABLE,
        "block_restart_interval",
        int block_restart_interval
    ),
    item!(
        Table,
        MUTABLE,
        "index_block_restart_interval",
        int index_block_restart_interval
    ),
    item!(Table, MUTABLE, "format_version", format_version),
    item!(
        Table,
        MUTABLE,
        "checksum",
        |o| name_in(&CHECKSUMS, &o.checksum),
        |o, v| {
            o.checksum = value_in(&CHECKSUMS, v)?;
            Some(())
        }
    ),
    item!(
        Table,
        MUTABLE,
        "filter_policy",
        |o| match o.filter_bits_per_key {
            bits if bits > 0.0 => format!("bloomfilter:{bits}:false"),
            _ => "nullptr".to_owned(),
        },
        |o, v| {
            o.filter_bits_per_key = read_filter(v)?;
            Some(())
        }
    ),
    item!(Table, MUTABLE, "whole_key_filtering", whole_key_filtering),
    item!(
        Table,
        MUTABLE,
        "index_type",
        |o| name_in(&INDEX_TYPES, &o.index_type),
        |o, v| {
            o.index_type = value_in(&INDEX_TYPES, v)?;
            Some(())
        }
    ),
    item!(Table, MUTABLE, "partition_filters", partition_filters),
    item!(Table, MUTABLE, "metadata_block_size", metadata_block_size),
    item!(
        Table,
        FIXED,
        "cache_index_and_filter_blocks",
        cache_index_and_filter_blocks
    ),
    item!(
        Table,
        MUTABLE,
        "enable_index_compression",
        enable_index_compression
    ),
    item!(Table, MUTABLE, "verify_compression", verify_compression),
];
