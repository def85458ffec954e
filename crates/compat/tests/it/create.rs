//! What Orogen makes from nothing, under many combinations of options, RocksDB takes for its own.

use std::path::Path;

use orogen_base::checksum::ChecksumType;
use orogen_base::{UserComparator, slice_transform};
use orogen_compat::{Case, programs};
use orogen_engine::plugin::merge_operator;
use orogen_engine::{CheckpointOptions, ColumnFamilyOptions, Db, Options};
use orogen_sst::{BlockBasedOptions, BlockIndex, CompressionType};
use orogen_testkit::Rng;

use crate::scratch;
use crate::store::{Model, assert_holds, options};

/// The newest table format that RocksDB 7.8.3 reads.
const LDB_FORMAT_VERSION_MAX: u32 = 5;

/// Options of a seed, for a family.
fn any_options(rng: &mut Rng) -> ColumnFamilyOptions {
    let codecs = [
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ];
    let checksums = [
        ChecksumType::Crc32c,
        ChecksumType::XxHash,
        ChecksumType::XxHash64,
        ChecksumType::Xxh3,
    ];
    let mut options = ColumnFamilyOptions {
        compression: *rng.pick(&codecs),
        bottommost_compression: rng.chance(1, 3).then_some(CompressionType::Zstd),
        write_buffer_size: 16 << rng.range(10..14),
        target_file_size_base: 8 << rng.range(10..14),
        max_bytes_for_level_base: 64 << 10,
        level_compaction_dynamic_level_bytes: rng.chance(1, 2),
        num_levels: rng.range(3..8),
        table: BlockBasedOptions {
            block_size: 256 << rng.below(5),
            block_restart_interval: 1 + rng.below(20) as u32,
            index_block_restart_interval: 1 + rng.below(4) as u32,
            format_version: 2 + rng.below(5) as u32,
            checksum: *rng.pick(&checksums),
            filter_bits_per_key: *rng.pick(&[0.0, 10.0, 15.5]),
            whole_key_filtering: rng.chance(3, 4),
            ..BlockBasedOptions::default()
        },
        ..ColumnFamilyOptions::default()
    };
    if rng.chance(1, 2) {
        options.table.index_type = BlockIndex::TwoLevel;
        options.table.partition_filters = rng.chance(2, 3);
        options.table.metadata_block_size = *rng.pick(&[64, 500, 4096]);
    }
    if rng.chance(1, 3) {
        options.prefix_extractor = slice_transform::by_name("rocksdb.FixedPrefix.4");
        assert!(options.prefix_extractor.is_some());
    }
    if options.compression == CompressionType::Zstd && rng.chance(1, 2) {
        options.compression_opts.max_dict_bytes = 1024;
    }
    options
}

/// A database of its own options, written at random: closed, as a killed process leaves it, or
/// a checkpoint of it.
fn make(dir: &Path, seed: u64) -> Case {
    let mut rng = Rng::new(seed);
    let mut options = Options {
        cf: any_options(&mut rng),
        ..Options::default()
    };
    options.db.create_if_missing = true;
    options.db.create_missing_column_families = true;
    if rng.chance(1, 4) {
        options.db.recycle_log_file_num = 2;
    }
    let merge = [
        None,
        None,
        Some("StringAppendOperator"),
        Some("UInt64AddOperator"),
    ];
    let merge = *rng.pick(&merge);
    for name in ["one", "two"] {
        if rng.chance(1, 2) {
            options
                .families
                .insert(name.to_owned(), any_options(&mut rng));
        }
    }
    let reverse = rng.chance(1, 5);
    let mut newest_format = options.cf.table.format_version;
    for cf in options.families.values_mut().chain([&mut options.cf]) {
        newest_format = newest_format.max(cf.table.format_version);
        cf.merge_operator = merge.and_then(merge_operator::by_name);
        assert_eq!(cf.merge_operator.is_some(), merge.is_some());
        if reverse {
            cf.comparator = UserComparator::REVERSE_BYTEWISE;
        }
    }
    let ldb_reads = newest_format <= LDB_FORMAT_VERSION_MAX;
    let order = options.cf.comparator.name().to_owned();
    let name = format!("created-{seed}");
    let mut case = Case::create(
        &dir.join("live"),
        &name,
        &order,
        merge.unwrap_or_default(),
        ldb_reads,
    )
    .unwrap();
    let db = Db::open(case.db(), &options).unwrap();
    let mut models: Vec<Model> = db
        .column_families()
        .iter()
        .map(|f| Model::new(&db, f.name(), Vec::new(), merge.unwrap_or_default()))
        .collect();
    for _ in 0..4 {
        for model in &mut models {
            model.write(&db, &mut rng, 200);
            if rng.chance(1, 2) {
                db.flush_opt(&Default::default(), std::slice::from_ref(model.family()))
                    .unwrap();
            }
            if rng.chance(1, 4) {
                db.compact_range(&Default::default(), model.family(), None, None)
                    .unwrap();
            }
        }
    }
    for model in &models {
        case.expect(&model.name(), &model.pairs()).unwrap();
    }
    assert_holds(&db, &case);
    match rng.below(3) {
        0 => db.close().unwrap(),
        // A copy is an image of one moment only while nothing is written or removed.
        1 => db.wait_for_background_work().unwrap(),
        _ => {
            let checkpoint = dir.join("checkpoint");
            // The logs or what they hold.
            let how = CheckpointOptions {
                log_size_for_flush: if rng.chance(1, 2) { 0 } else { u64::MAX },
            };
            db.checkpoint_opt(&how, &checkpoint).unwrap();
            for model in &mut models {
                model.write(&db, &mut rng, 50);
            }
            db.close().unwrap();
            std::fs::remove_dir_all(case.db()).unwrap();
            std::fs::rename(&checkpoint, case.db()).unwrap();
        }
    }
    case.copy(&dir.join("left")).unwrap()
}

#[test]
fn rocksdb_reads_and_writes_what_orogen_made_under_any_options() {
    let dir = scratch("created");
    let seed = Rng::seed_or(1000);
    let cases: Vec<Case> = (seed..seed + 24)
        .map(|s| make(&dir.join(s.to_string()), s))
        .collect();
    programs::judge(&cases).unwrap();
    programs::judge_and_write(&cases).unwrap();
    for case in &cases {
        let db = Db::open(case.db(), &options(case)).unwrap();
        assert_holds(&db, case);
        db.verify_checksums().unwrap();
        db.close().unwrap();
    }
}
