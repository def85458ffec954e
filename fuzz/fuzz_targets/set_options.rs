//! Any text as settings of an open database, under RocksDB's names: all of a call change or none,
//! and what was taken stands in the OPTIONS file, from which it is read as the same.

#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::ErrorKind;
use orogen_engine::options_file::value;
use orogen_engine::{ColumnFamilyOptions, Db, Options};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::Choices;

const DIR: &str = "/db";
const CALLS_MAX: usize = 6;

/// Names that are known, and a few that are not or may not change.
const NAMES: [&str; 30] = [
    "write_buffer_size",
    "max_write_buffer_number",
    "level0_file_num_compaction_trigger",
    "level0_slowdown_writes_trigger",
    "level0_stop_writes_trigger",
    "soft_pending_compaction_bytes_limit",
    "hard_pending_compaction_bytes_limit",
    "target_file_size_base",
    "target_file_size_multiplier",
    "max_bytes_for_level_base",
    "max_bytes_for_level_multiplier",
    "max_compaction_bytes",
    "ttl",
    "periodic_compaction_seconds",
    "disable_auto_compactions",
    "compression",
    "compression_per_level",
    "compression_opts",
    "bottommost_compression",
    "bottommost_compression_opts",
    "prefix_extractor",
    "paranoid_file_checks",
    "block_based_table_factory",
    "table_factory",
    "max_background_jobs",
    "max_subcompactions",
    "max_total_wal_size",
    "delayed_write_rate",
    "bytes_per_sync",
    "comparator",
];

/// What of a family's settings can be compared.
fn shown(cf: &ColumnFamilyOptions) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
        cf.write_buffer_size,
        cf.compression,
        cf.compression_per_level,
        cf.compression_opts,
        cf.bottommost_compression,
        cf.table,
        (
            cf.max_write_buffer_number,
            cf.level0_file_num_compaction_trigger,
            cf.target_file_size_base,
            cf.max_bytes_for_level_base,
            cf.ttl,
            cf.disable_auto_compactions,
        )
    )
}

/// The words of a value, put together again, are the same words.
fn check_words(text: &str) {
    if let Some(map) = value::parse_map(text) {
        let again = value::print_map(map.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        assert_eq!(value::parse_map(&again), Some(map), "{text:?} {again:?}");
    }
    assert_eq!(value::unescape(&value::escape(text)), text);
    let _ = value::parse_list(text);
    if let Some(number) = value::parse_f64(text).filter(|n| n.is_finite()) {
        let printed = value::print_f64(number);
        assert!(value::parse_f64(&printed).is_some(), "{printed:?}");
    }
    if let Some(number) = value::parse_u64(text) {
        assert_eq!(value::parse_u64(&number.to_string()), Some(number));
    }
    if let Some(number) = value::parse_i64(text) {
        assert_eq!(value::parse_i64(&number.to_string()), Some(number));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let fs = MemFileSystem::new();
    fs.create_dir_all(Path::new(DIR)).expect("memory");
    let mut options = Options::default();
    options.db.fs = Arc::new(fs);
    options.db.info_log = false;
    options.db.max_background_jobs = 1;
    options.cf.write_buffer_size = 64 << 10;
    options.db.create_if_missing = true;
    let db = Db::open(DIR, &options).expect("memory");
    let family = db.default_column_family();
    for _ in 0..CALLS_MAX {
        if choices.is_empty() {
            break;
        }
        let head = choices.byte();
        let mut pairs = Vec::new();
        for _ in 0..1 + head % 3 {
            let name = NAMES[usize::from(choices.byte()) % NAMES.len()];
            let len = usize::from(choices.byte() & 63);
            let text: Vec<u8> = (0..len).map(|_| choices.byte()).collect();
            pairs.push((name, String::from_utf8_lossy(&text).into_owned()));
        }
        pairs.iter().for_each(|(_, text)| check_words(text));
        let changes: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (*n, v.as_str())).collect();
        let before = (
            shown(&family.options()),
            format!("{:?}", db.db_options().max_background_jobs),
        );
        let told = match head & 0x80 {
            0 => db.set_options(&family, &changes),
            _ => db.set_db_options(&changes),
        };
        let after = (
            shown(&family.options()),
            format!("{:?}", db.db_options().max_background_jobs),
        );
        if let Err(error) = told {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            assert_eq!(
                before, after,
                "{changes:?} is refused and changes something"
            );
            continue;
        }
        let base = Options {
            db: options.db.clone(),
            ..Options::default()
        };
        let loaded = Db::load_latest_options(DIR, &base).expect("it was just written");
        assert_eq!(shown(loaded.family("default")), after.0, "{changes:?}");
    }
    db.close().expect("memory");
});
