use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_sst::{CompressionOptions, CompressionType};

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

#[test]
fn the_delimiter_of_an_operator_is_kept() {
    let item = items::FAMILY.iter().find(|i| i.name == "merge_operator");
    let item = item.unwrap();
    for delimiter in ["|", ",", "", "#:\\", "\u{e9}", ", ", " "] {
        let given = ColumnFamilyOptions {
            merge_operator: Some(Arc::new(crate::plugin::merge_operator::StringAppend {
                delimiter: delimiter.as_bytes().to_vec(),
            })),
            ..ColumnFamilyOptions::default()
        };
        let mut read = ColumnFamilyOptions::default();
        let text = (item.print)(&given);
        // RocksDB would read another one.
        assert!(!text.contains("= ") && !text.contains(" ;"), "{text}");
        (item.read)(&mut read, &text).unwrap();
        let merged = read.merge_operator.unwrap();
        let merged = merged.full_merge(b"", Some(b"a"), &[b"b"]).unwrap();
        assert_eq!(merged, format!("a{delimiter}b").as_bytes());
    }
}

#[test]
fn a_map_changes_only_what_it_names() {
    let cf = ColumnFamilyOptions {
        bottommost_compression_opts: Some(CompressionOptions::default()),
        ..ColumnFamilyOptions::default()
    };
    let level_of = |cf: &ColumnFamilyOptions, text: &str| {
        let changes = [("bottommost_compression_opts", text)];
        let (after, _) = change_family(cf, &changes).unwrap();
        after.bottommost_compression_opts.map(|o| o.level)
    };
    assert_eq!(level_of(&cf, "{level=5;}"), Some(5));
    assert_eq!(level_of(&cf, "{level=5;enabled=false;}"), None);
    let off = ColumnFamilyOptions::default();
    assert_eq!(level_of(&off, "{level=5;}"), None);
    assert_eq!(level_of(&off, "{level=5;enabled=true;}"), Some(5));
}

#[test]
fn a_map_that_is_not_known_changes_nothing() {
    let item = items::FAMILY.iter().find(|i| i.name == "compression_opts");
    let mut cf = ColumnFamilyOptions::default();
    let read = item.expect("is there").read;
    assert!(read(&mut cf, "{level=3;no_such_key=1;}").is_none());
    assert_eq!(
        cf.compression_opts.level,
        ColumnFamilyOptions::default().compression_opts.level
    );
}

#[test]
fn numbers_are_such_as_rocksdb_can_hold() {
    let mut cf = ColumnFamilyOptions {
        level0_slowdown_writes_trigger: usize::MAX,
        level0_stop_writes_trigger: usize::MAX,
        max_write_buffer_number: usize::MAX,
        target_file_size_multiplier: u64::MAX,
        blob_file_starting_level: usize::MAX,
        ..ColumnFamilyOptions::default()
    };
    cf.table.block_restart_interval = u32::MAX;
    cf.validate().expect("within bounds");
    let db = DbOptions {
        max_subcompactions: usize::MAX,
        ..DbOptions::default()
    };
    let text = to_text(&db, &[("default".to_owned(), Arc::new(cf.clone()))], false);
    for name in [
        "max_subcompactions",
        "level0_slowdown_writes_trigger",
        "level0_stop_writes_trigger",
        "max_write_buffer_number",
        "target_file_size_multiplier",
        "blob_file_starting_level",
        "block_restart_interval",
    ] {
        assert!(text.contains(&format!("  {name}=2147483647\n")), "{name}");
    }
    cf.max_bytes_for_level_multiplier = f64::INFINITY;
    cf.validate().expect_err("is written as what nobody reads");
}

/// Every item, by printing what it reads.
fn round_trip<T: Clone>(items: &[Item<T>], options: &T, other: &T) {
    for item in items {
        let mut copy = options.clone();
        for text in [(item.print)(other), (item.print)(options)] {
            (item.read)(&mut copy, &text).unwrap_or_else(|| panic!("{}={text}", item.name));
            assert_eq!((item.print)(&copy), text, "{}", item.name);
        }
        let named: Vec<_> = items.iter().filter(|i| i.name == item.name).collect();
        assert_eq!(named.len(), 1, "{}", item.name);
    }
}

#[test]
fn what_is_printed_is_read_back() {
    let cf = ColumnFamilyOptions::default();
    let mut other = ColumnFamilyOptions {
        write_buffer_size: 1 << 20,
        compression: CompressionType::Zstd,
        compression_per_level: vec![CompressionType::None, CompressionType::Lz4],
        bottommost_compression: Some(CompressionType::Zstd),
        bottommost_compression_opts: Some(CompressionOptions {
            level: -3,
            checksum: true,
            max_compressed_bytes_per_kb: 1000,
            ..CompressionOptions::default()
        }),
        max_bytes_for_level_multiplier: 2.5,
        disable_auto_compactions: true,
        ttl: 7,
        max_compaction_bytes: 1 << 30,
        blob_file_starting_level: 3,
        blob_compaction_readahead_size: 2 << 20,
        ..cf.clone()
    };
    other.table.filter_bits_per_key = 9.9;
    other.table.checksum = orogen_base::checksum::ChecksumType::Crc32c;
    other.table.cache_index_and_filter_blocks = true;
    round_trip(items::FAMILY, &cf, &other);
    round_trip(items::TABLE, &cf.table, &other.table);
    let db = DbOptions::default();
    let mut other = db.clone();
    other.max_background_jobs = 7;
    other.wal_recovery_mode = crate::options::WalRecoveryMode::AbsoluteConsistency;
    round_trip(items::DB, &db, &other);
}

#[test]
fn changes_are_all_made_or_none_and_the_culprit_is_named() {
    let cf = ColumnFamilyOptions::default();
    let change = |changes: &[(&str, &str)]| change_family(&cf, changes);
    for (name, text) in [
        ("num_levels", "9"),
        ("comparator", "leveldb.BytewiseComparator"),
        ("write_bufer_size", "1"),
        ("write_buffer_size", "many"),
        ("write_buffer_size", "1"),
        ("disable_auto_compactions", "maybe"),
        ("compression", "kXpressCompression"),
        ("level0_slowdown_writes_trigger", "1000"),
        (
            "block_based_table_factory.cache_index_and_filter_blocks",
            "true",
        ),
        ("block_based_table_factory.block_size", "0"),
        ("block_based_table_factory", "{block_size"),
    ] {
        let error = change(&[("ttl", "5"), (name, text)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        let named = error.context("option").expect("the option is named");
        assert!(name.contains(named), "{name}: {error}");
    }
    let (after, changed) = change(&[
        ("write_buffer_size", "1m"),
        ("compression", "kZSTD"),
        ("ttl", "0"),
        ("compression_opts", "{level=9;}"),
        (
            "block_based_table_factory",
            "{block_size=16k;filter_policy=bloomfilter:12:false;}",
        ),
    ])
    .unwrap();
    assert_eq!(after.write_buffer_size, 1 << 20);
    assert_eq!(after.compression_opts.level, 9);
    assert_eq!(
        (after.table.block_size, after.table.filter_bits_per_key),
        (16 << 10, 12.0)
    );
    let names: Vec<&str> = changed.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "write_buffer_size",
            "compression",
            "compression_opts",
            "block_based_table_factory.block_size",
            "block_based_table_factory.filter_policy",
        ]
    );
    assert_eq!(
        (changed[0].old.as_str(), changed[0].new.as_str()),
        ("67108864", "1048576")
    );
    let db = DbOptions::default();
    for (name, text) in [
        ("max_background_jobs", "0"),
        ("recycle_log_file_num", "3"),
        ("x", "1"),
    ] {
        let refused = change_db(&db, &[("bytes_per_sync", "7"), (name, text)]);
        let error = refused.err().expect("it is refused");
        assert_eq!(error.context("option"), Some(name));
    }
}

#[test]
fn filters_are_read_in_every_way_in_which_they_are_written() {
    let bits = |text: &str| {
        let text = format!("{{filter_policy={text};}}");
        let changes = [("block_based_table_factory", text.as_str())];
        let cf = ColumnFamilyOptions::default();
        let (after, _) = change_family(&cf, &changes).map_err(|e| e.kind())?;
        Ok(after.table.filter_bits_per_key)
    };
    for (text, expected) in [
        ("nullptr", 0.0),
        ("bloomfilter:12:false", 12.0),
        ("bloomfilter:9.5", 9.5),
        ("rocksdb.BloomFilter:7:false", 7.0),
        ("{bits_per_key=8;id=bloomfilter;}", 8.0),
        ("{id=bloomfilter:6:false;}", 6.0),
        ("bloomfilter", 10.0),
        ("{id=bloomfilter;}", 10.0),
        ("rocksdb.BuiltinBloomFilter", 10.0),
    ] {
        assert_eq!(bits(text), Ok(expected), "{text}");
    }
    for text in [
        "bloomfilter:many",
        "xorfilter:10",
        "ribbonfilter:11:0",
        "{id=ribbonfilter:11:0;bloom_before_level=0;}",
        "{bits_per_key=8;}",
        "bloomfilter:",
    ] {
        assert_eq!(bits(text), Err(ErrorKind::InvalidArgument), "{text}");
    }
}
