//! Our settings as RocksDB's OPTIONS file, and what an open takes from the file that is there.
//!
//! The file is written at every open and whenever families come or go, so that RocksDB's tools
//! (`ldb --try_load_options`) and people see how the directory was used. An open takes from it
//! only what the caller left open and what the data cannot be read without: a built-in merge
//! operator, a fixed or capped prefix extractor, the number of levels. A file that is missing or
//! does not parse is no error: every setting has another source.

use std::path::Path;
use std::sync::Arc;

use orogen_base::slice_transform;
use orogen_env::FileSystem;
use orogen_env::fs::read_file;
use orogen_sst::CompressionType;

use crate::column_family::ColumnFamilyData;
use crate::filename::{self, FileKind};
use crate::options::{ColumnFamilyOptions, DbOptions, FileChecksumKind, WalRecoveryMode};
use crate::options_file::{OptionsFile, Section, SectionKind};
use crate::plugin::merge_operator;

/// The RocksDB whose names and formats are written.
const ROCKSDB_VERSION: &str = "7.8.3";

/// The settings as the text of an OPTIONS file.
pub(crate) fn to_text(db: &DbOptions, families: &[Arc<ColumnFamilyData>]) -> String {
    let mut file = OptionsFile::new(ROCKSDB_VERSION);
    write_db(file.add(SectionKind::Db, ""), db);
    for family in families {
        write_family(
            file.add(SectionKind::ColumnFamily, &family.name),
            &family.options,
        );
        let table = file.add(
            SectionKind::Table("BlockBasedTable".to_owned()),
            &family.name,
        );
        for (key, value) in family.options.table.to_pairs() {
            table.set(key, value);
        }
    }
    file.to_text()
}

fn write_db(out: &mut Section, db: &DbOptions) {
    let mode = match db.wal_recovery_mode {
        WalRecoveryMode::TolerateCorruptedTailRecords => "kTolerateCorruptedTailRecords",
        WalRecoveryMode::AbsoluteConsistency => "kAbsoluteConsistency",
        WalRecoveryMode::PointInTimeRecovery => "kPointInTimeRecovery",
        WalRecoveryMode::SkipAnyCorruptedRecords => "kSkipAnyCorruptedRecords",
    };
    out.set("paranoid_checks", db.paranoid_checks.to_string());
    out.set("max_background_jobs", db.max_background_jobs.to_string());
    out.set("max_subcompactions", db.max_subcompactions.to_string());
    out.set("max_total_wal_size", db.max_total_wal_size.to_string());
    out.set("wal_recovery_mode", mode);
    out.set("recycle_log_file_num", db.recycle_log_file_num.to_string());
    out.set("allow_mmap_writes", db.allow_mmap_writes.to_string());
    out.set("WAL_ttl_seconds", db.wal_ttl_seconds.to_string());
    out.set("WAL_size_limit_MB", db.wal_size_limit_mb.to_string());
    out.set("delayed_write_rate", db.delayed_write_rate.to_string());
    out.set(
        "allow_concurrent_memtable_write",
        db.allow_concurrent_memtable_write.to_string(),
    );
    out.set("db_write_buffer_size", db.db_write_buffer_size.to_string());
    out.set("bytes_per_sync", db.bytes_per_sync.to_string());
    out.set(
        "max_manifest_file_size",
        db.max_manifest_file_size.to_string(),
    );
    let checksum = match db.file_checksum {
        FileChecksumKind::None => "nullptr",
        FileChecksumKind::Crc32c => "FileChecksumGenCrc32cFactory",
    };
    out.set("file_checksum_gen_factory", checksum);
    out.set(
        "avoid_flush_during_recovery",
        db.avoid_flush_during_recovery.to_string(),
    );
    out.set(
        "avoid_flush_during_shutdown",
        db.avoid_flush_during_shutdown.to_string(),
    );
    out.set(
        "max_bgerror_resume_count",
        db.max_bgerror_resume_count.min(i32::MAX as u64).to_string(),
    );
    out.set(
        "bgerror_resume_retry_interval",
        db.bgerror_resume_retry_interval.to_string(),
    );
    out.set("keep_log_file_num", db.keep_log_file_num.to_string());
}

fn write_family(out: &mut Section, cf: &ColumnFamilyOptions) {
    let codec = |c: CompressionType| c.name().to_owned();
    let nullptr = || "nullptr".to_owned();
    out.set_text("comparator", cf.comparator.name());
    out.set_text(
        "merge_operator",
        &cf.merge_operator
            .as_ref()
            .map_or_else(nullptr, |m| m.name().to_owned()),
    );
    out.set_text(
        "prefix_extractor",
        &cf.prefix_extractor
            .as_ref()
            .map_or_else(nullptr, |p| p.name().to_owned()),
    );
    out.set("memtable_factory", "SkipListFactory");
    out.set("table_factory", "BlockBasedTable");
    out.set("compaction_style", "kCompactionStyleLevel");
    out.set("write_buffer_size", cf.write_buffer_size.to_string());
    out.set(
        "max_write_buffer_number",
        cf.max_write_buffer_number.to_string(),
    );
    out.set(
        "min_write_buffer_number_to_merge",
        cf.min_write_buffer_number_to_merge.to_string(),
    );
    out.set("compression", codec(cf.compression));
    let per_level: Vec<String> = cf.compression_per_level.iter().map(|&c| codec(c)).collect();
    out.set("compression_per_level", per_level.join(":"));
    out.set(
        "bottommost_compression",
        cf.bottommost_compression
            .map_or_else(|| "kDisableCompressionOption".to_owned(), codec),
    );
    out.set("num_levels", cf.num_levels.to_string());
    out.set(
        "level0_file_num_compaction_trigger",
        cf.level0_file_num_compaction_trigger.to_string(),
    );
    out.set(
        "level0_slowdown_writes_trigger",
        cf.level0_slowdown_writes_trigger.to_string(),
    );
    out.set(
        "level0_stop_writes_trigger",
        cf.level0_stop_writes_trigger.to_string(),
    );
    out.set(
        "target_file_size_base",
        cf.target_file_size_base.to_string(),
    );
    out.set(
        "target_file_size_multiplier",
        cf.target_file_size_multiplier.to_string(),
    );
    out.set(
        "max_bytes_for_level_base",
        cf.max_bytes_for_level_base.to_string(),
    );
    out.set(
        "max_bytes_for_level_multiplier",
        cf.max_bytes_for_level_multiplier.to_string(),
    );
    out.set(
        "level_compaction_dynamic_level_bytes",
        cf.level_compaction_dynamic_level_bytes.to_string(),
    );
    out.set(
        "soft_pending_compaction_bytes_limit",
        cf.soft_pending_compaction_bytes_limit.to_string(),
    );
    out.set(
        "hard_pending_compaction_bytes_limit",
        cf.hard_pending_compaction_bytes_limit.to_string(),
    );
    out.set(
        "max_compaction_bytes",
        cf.max_compaction_bytes().to_string(),
    );
    out.set("ttl", cf.ttl.to_string());
    out.set(
        "periodic_compaction_seconds",
        cf.periodic_compaction_seconds.to_string(),
    );
    out.set(
        "disable_auto_compactions",
        cf.disable_auto_compactions.to_string(),
    );
}

/// Settings that were found in a directory.
pub(crate) struct StoredOptions(OptionsFile);

/// The newest OPTIONS file among `names`; `None` if there is none that can be read.
pub(crate) fn load_newest(
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
) -> Option<StoredOptions> {
    let newest = names
        .iter()
        .filter_map(|n| match filename::parse(n) {
            Some(FileKind::Options(number)) => Some(number),
            _ => None,
        })
        .max()?;
    let bytes = read_file(fs, &filename::options_path(dir, newest)).ok()?;
    OptionsFile::parse(std::str::from_utf8(&bytes).ok()?)
        .ok()
        .map(StoredOptions)
}

impl StoredOptions {
    /// Fills in what the caller left open for a family.
    pub(crate) fn fill_gaps(&self, family: &str, cf: &mut ColumnFamilyOptions) {
        let Some(stored) = self.0.family(family) else {
            return;
        };
        if cf.merge_operator.is_none() {
            cf.merge_operator = stored
                .get_text("merge_operator")
                .and_then(|n| stored_merge_operator(&n));
        }
        if cf.prefix_extractor.is_none() {
            cf.prefix_extractor = stored
                .get_text("prefix_extractor")
                .and_then(|n| slice_transform::by_name(&n));
        }
        if let Some(levels) = stored
            .get("num_levels")
            .and_then(|n| n.parse::<usize>().ok())
            && levels <= orogen_base::limits::NUM_LEVELS_MAX
        {
            cf.num_levels = cf.num_levels.max(levels);
        }
    }
}

/// RocksDB 7 and later write `{id=StringAppendOperator;delimiter=,;}` for operators with options.
fn stored_merge_operator(text: &str) -> Option<Arc<dyn merge_operator::MergeOperator>> {
    let inner = text.trim().trim_start_matches('{').trim_end_matches('}');
    let mut name = inner;
    let mut delimiter = None;
    for part in inner.split(';') {
        match part.trim().split_once('=') {
            Some(("id", id)) => name = id,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_operators_of_both_spellings_are_found() {
        for text in [
            "StringAppendOperator",
            "{id=StringAppendOperator;delimiter=,;}",
        ] {
            let op = stored_merge_operator(text).unwrap();
            assert_eq!(op.full_merge(b"", Some(b"a"), &[b"b"]).unwrap(), b"a,b");
        }
        assert!(stored_merge_operator("nullptr").is_none());
    }
}
