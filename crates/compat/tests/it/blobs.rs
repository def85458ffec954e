//! RocksDB reads and writes on what each way of bringing space back leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_compat::{Case, programs};
use orogen_engine::{
    BottommostLevelCompaction, CheckpointOptions, CollectBlobGarbageOptions, CompactRangeOptions,
    ConvertTo, ConvertValuesOptions, Db, FlushOptions, LiveBlobFile, Options, WriteOptions,
};
use orogen_env::{Clock, SystemClock};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

use crate::open::is_supported;
use crate::store::{assert_holds, options};
use crate::{case, scratch, several_at_once, written_by_rocksdb};

/// How the space of dead values comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Files go with their last value.
    Drop,
    /// Holes in the middle of files.
    Punch,
    /// The same, where each value begins a block.
    PunchAligned,
    /// Compactions empty the oldest files.
    Merge,
    /// The same of files that had dictionaries, once that was turned off.
    MergeDictionaries,
    /// Compactions, and rewrites in place, put values into key order.
    Order,
    /// Files with much garbage are emptied in the background.
    Collect,
    /// As it is where nobody has said a way, and what then puts short values into order.
    Auto,
}

fn large(way: Way) -> Options {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    let cf = &mut options.cf;
    cf.write_buffer_size = 4 << 20;
    cf.enable_blob_files = true;
    cf.min_blob_size = 1000;
    cf.blob_file_size = if way == Way::Drop { 1 } else { 1 << 20 };
    cf.blob_compression_type = CompressionType::Lz4;
    let merges = matches!(way, Way::Merge | Way::MergeDictionaries);
    cf.enable_blob_garbage_collection = merges;
    if way == Way::MergeDictionaries {
        cf.blob_compression_type = CompressionType::Zstd;
        cf.blob_compression_opts.max_dict_bytes = 4 << 10;
    }
    cf.blob_garbage_collection_age_cutoff = 1.0;
    let is_aligned = way == Way::PunchAligned;
    cf.blob_record_alignment = if is_aligned { 4096 } else { 0 };
    cf.blob_hole_punching = way == Way::Punch || is_aligned;
    cf.blob_hole_punching_threshold = 0.0;
    cf.blob_hole_punching_min_bytes = 1;
    // One way alone.
    cf.blob_gc_auto = way == Way::Auto;
    if way == Way::Collect {
        cf.blob_file_discardable_ratio = 0.3;
        cf.min_gc_batch_size = 0;
        cf.merge_small_file_threshold = 0;
    }
    cf.level_merge = way == Way::Order;
    cf.range_merge = way == Way::Order;
    cf.max_sorted_runs = 2;
    if way == Way::Auto {
        cf.blob_hole_punching = true;
        cf.min_gc_batch_size = 0;
    }
    options
}

fn depth(db: &Db) -> u64 {
    let name = "orogen.max-blob-reference-depth";
    db.int_property(&db.default_column_family(), name).unwrap()
}

fn make(test: &str, way: Way) -> Case {
    let name = format!("{test}-{way:?}").to_lowercase();
    let dir = scratch(&name);
    let order = "leveldb.BytewiseComparator";
    let mut case = Case::create(&dir.join("live"), &name, order, "", true).unwrap();
    let db = Db::open(case.db(), &large(way)).unwrap();
    let mut rng = Rng::new(way as u64);
    let mut map = BTreeMap::new();
    for round in 0..4 {
        for n in 0..200 {
            if round > 0 && rng.chance(2, 3) {
                continue;
            }
            let key = format!("key{n:03}").into_bytes();
            let len = match way {
                Way::Auto => 1000 + rng.below(2000) as usize,
                _ => 500 + rng.below(30_000) as usize,
            };
            let value = match way {
                Way::MergeDictionaries => b"what is the same in all values; ".repeat(len / 32),
                _ => rng.bytes(len),
            };
            db.put(&key, &value).unwrap();
            map.insert(key, value);
        }
        db.flush().unwrap();
        let all = CompactRangeOptions::default();
        let family = db.default_column_family();
        db.compact_range(&all, &family, None, None).unwrap();
        db.wait_for_background_work().unwrap();
    }
    if way == Way::MergeDictionaries {
        let family = db.default_column_family();
        let off = [("blob_compression_opts", "{max_dict_bytes=0;}")];
        db.set_options(&family, &off).unwrap();
        let all = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        db.compact_range(&all, &family, None, None).unwrap();
        db.wait_for_background_work().unwrap();
    }
    if matches!(way, Way::Punch | Way::PunchAligned) {
        // A thread that looks for work may hold an older version for a moment.
        for _ in 0..1_000 {
            let files = db.live_blob_files();
            let left = files.iter().filter(|f| f.garbage_blob_bytes > 8192);
            if left
                .clone()
                .all(|f| f.given_up_bytes.is_some_and(|n| n > 0))
            {
                break;
            }
            SystemClock.sleep(Duration::from_millis(10));
        }
        db.wait_for_background_work().unwrap();
    }
    let files = db.live_blob_files();
    let garbage: u64 = files.iter().map(|f| f.garbage_blob_bytes).sum();
    let live: u64 = files.iter().map(|f| f.total_blob_bytes).sum::<u64>() - garbage;
    let given_up: u64 = files.iter().filter_map(|f| f.given_up_bytes).sum();
    match way {
        Way::Punch | Way::PunchAligned => {
            let all = way == Way::PunchAligned;
            assert!(given_up == garbage || !all, "{given_up} of {garbage}");
            assert!(given_up > garbage / 2, "{given_up} of {garbage}");
            let disk: u64 = files
                .iter()
                .map(|f| case.db().join(format!("{:06}.blob", f.number)))
                .map(|path| std::fs::metadata(path).unwrap().blocks() * 512)
                .sum();
            // Where the file system has holes, which those of tests have.
            let padding = if all { 4096 * 200 } else { 0 };
            assert!(disk < live + padding + garbage - given_up / 2, "{disk}");
        }
        Way::Drop | Way::Merge | Way::MergeDictionaries => assert_eq!(garbage + given_up, 0),
        Way::Collect => {
            let moved = db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
            assert!(moved > 0);
            let is_emptied =
                |f: &LiveBlobFile| (f.garbage_blob_bytes as f64) < 0.3 * f.total_blob_bytes as f64;
            assert!(files.iter().all(is_emptied), "{files:?}");
        }
        Way::Auto => {
            let ordered = db.statistics().get(Ticker::BlobLocalityKeysRelocated);
            assert!(ordered > 0);
            assert!(depth(&db) <= 2, "{files:?}");
        }
        Way::Order => {
            assert_eq!(depth(&db), 2);
            // Less disorder than before is allowed, and none of it is in the way of a compaction.
            let family = db.default_column_family();
            db.set_options(&family, &[("max_sorted_runs", "1")])
                .unwrap();
            db.wait_for_background_work().unwrap();
            assert_eq!((depth(&db), given_up), (1, 0));
        }
    }
    let pairs: Vec<_> = map.into_iter().collect();
    case.expect("default", &pairs).unwrap();
    assert_holds(&db, &case);
    db.close().unwrap();
    case.copy(&dir.join("left")).unwrap()
}

#[test]
fn rocksdb_reads_and_writes_what_garbage_collection_leaves() {
    let cases: Vec<Case> = [
        Way::Drop,
        Way::Punch,
        Way::PunchAligned,
        Way::Merge,
        Way::MergeDictionaries,
        Way::Order,
        Way::Collect,
        Way::Auto,
    ]
    .map(|way| make("blobs", way))
    .into();
    programs::judge(&cases).unwrap();
    programs::judge_and_write(&cases).unwrap();
    for case in &cases {
        let mut options = options(case);
        // RocksDB's MANIFEST does not tell of holes: first nobody makes any, so that nobody knows of them.
        for way in [Way::Drop, Way::Punch] {
            options.cf = large(way).cf;
            let db = Db::open(case.db(), &options).unwrap();
            assert_holds(&db, case);
            db.verify_checksums().unwrap();
            db.verify_file_checksums().unwrap();
            db.close().unwrap();
        }
        // What RocksDB's tables point to they do not tell.
        options.cf = large(Way::Order).cf;
        let db = Db::open(case.db(), &options).unwrap();
        let family = db.default_column_family();
        for n in 0..3 {
            let key = format!("key{n:03}").into_bytes();
            let value = db.get(&key).unwrap();
            match value {
                Some(value) => db.put(&key, &value).unwrap(),
                None => db.delete(&key).unwrap(),
            }
        }
        db.compact_range(&CompactRangeOptions::default(), &family, None, None)
            .unwrap();
        db.wait_for_background_work().unwrap();
        assert!(depth(&db) <= 2);
        let checks = db.check_blob_files(&family, true).unwrap();
        assert!(checks.iter().all(|c| c.is_exact()), "{checks:?}");
        assert_holds(&db, case);
        db.close().unwrap();
    }
    programs::judge(&cases).unwrap();
}

/// A crash and a checkpoint leave the same: files of a moment, and logs with what is in no table.
#[test]
fn rocksdb_opens_copies_that_have_logs_beside_blob_files() {
    let ways = [Way::Punch, Way::Collect, Way::Auto];
    let mut cases: Vec<Case> = ways.map(|way| make("logged", way)).into();
    for (case, way) in cases.iter_mut().zip(ways) {
        let mut options = options(case);
        options.cf = large(way).cf;
        let db = Db::open(case.db(), &options).unwrap();
        let other = db.create_column_family("other", options.cf).unwrap();
        let mut rng = Rng::new(9);
        let all = case.expected("default").unwrap();
        let mut maps = [all.into_iter().collect::<BTreeMap<_, _>>(), BTreeMap::new()];
        let families = [db.default_column_family(), other];
        for (family, map) in families.iter().zip(&mut maps) {
            for n in 0..60 {
                let key = format!("key{n:03}").into_bytes();
                let len = 100 + rng.below(3000) as usize;
                let value = rng.bytes(len);
                db.put_opt(&WriteOptions::default(), family, &key, &value)
                    .unwrap();
                map.insert(key, value);
                if n == 40 && family.name() == "other" {
                    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
                        .unwrap();
                }
            }
        }
        let tables = db.live_files().len();
        let never_flushed = CheckpointOptions {
            log_size_for_flush: u64::MAX,
        };
        let copy = case.dir().join("checkpoint");
        db.checkpoint_opt(&never_flushed, &copy).unwrap();
        assert_eq!(db.live_files().len(), tables);
        // What the first one goes on with is its own.
        for family in &families {
            for n in 0..200 {
                let key = format!("key{n:03}");
                db.delete_opt(&WriteOptions::default(), family, key.as_bytes())
                    .unwrap();
            }
            db.compact_range(&CompactRangeOptions::default(), family, None, None)
                .unwrap();
        }
        db.wait_for_background_work().unwrap();
        db.close().unwrap();
        std::fs::remove_dir_all(case.db()).unwrap();
        std::fs::rename(&copy, case.db()).unwrap();
        for (name, map) in ["default", "other"].iter().zip(maps) {
            let pairs: Vec<_> = map.into_iter().collect();
            case.expect(name, &pairs).unwrap();
        }
    }
    programs::judge(&cases).unwrap();
    programs::judge_and_write(&cases).unwrap();
    for (case, way) in cases.iter().zip(ways) {
        let mut options = options(case);
        options.cf = large(way).cf;
        let db = Db::open(case.db(), &options).unwrap();
        assert_holds(&db, case);
        db.verify_checksums().unwrap();
        db.close().unwrap();
    }
}

/// The numbers of the blob files that the newest version has.
fn blob_files(db: &Db) -> BTreeSet<u64> {
    db.live_blob_files().iter().map(|f| f.number).collect()
}

/// Each writes separated values on the other's, and empties the other's files.
#[test]
fn rocksdb_separates_values_beside_what_garbage_collection_leaves() {
    let ways = [
        Way::Drop,
        Way::Punch,
        Way::PunchAligned,
        Way::Merge,
        Way::MergeDictionaries,
        Way::Order,
        Way::Collect,
        Way::Auto,
    ];
    let mut cases: Vec<Case> = ways.map(|way| make("separated", way)).into();
    let mut ours: Vec<BTreeSet<u64>> = Vec::new();
    for case in &cases {
        let db = Db::open_read_only(case.db(), &options(case)).unwrap();
        ours.push(blob_files(&db));
    }
    for turn in 0..2 {
        programs::separate(&cases).unwrap();
        for ((case, way), ours) in cases.iter_mut().zip(ways).zip(&mut ours) {
            let mut rng = Rng::new(turn);
            let mut options = options(case);
            options.cf = large(way).cf;
            // RocksDB is to read it again.
            options.cf.blob_compression_opts.max_dict_bytes = 0;
            let db = Db::open(case.db(), &options).unwrap();
            let family = db.default_column_family();
            let found = blob_files(&db);
            assert!(found.difference(ours).count() > 0, "{way:?}: it separates");
            assert!(ours.difference(&found).count() > 0, "{way:?}: it collects");
            // All values, and what its MANIFEST says of every file.
            assert_holds(&db, case);
            db.verify_checksums().unwrap();
            let mut map: BTreeMap<_, _> = case.expected("default").unwrap().into_iter().collect();
            for (key, value) in &mut map {
                if rng.chance(1, 3) {
                    let len = 500 + rng.below(8000) as usize;
                    *value = rng.bytes(len);
                    db.put(key, value).unwrap();
                }
            }
            db.flush().unwrap();
            let all = CompactRangeOptions::default();
            db.compact_range(&all, &family, None, None).unwrap();
            db.wait_for_background_work().unwrap();
            if way == Way::Collect {
                let all = CollectBlobGarbageOptions {
                    discardable_ratio: 0.0,
                    ..CollectBlobGarbageOptions::default()
                };
                db.collect_blob_garbage(&all, &family).unwrap();
                let left = db.live_blob_files();
                assert!(left.iter().all(|f| f.garbage_blob_count == 0), "{left:?}");
            }
            let pairs: Vec<_> = map.into_iter().collect();
            case.expect("default", &pairs).unwrap();
            assert_holds(&db, case);
            *ours = blob_files(&db);
            db.close().unwrap();
        }
        programs::judge(&cases).unwrap();
    }
}

/// Runs RocksDB's tool on `db`.
fn ldb(db: &std::path::Path, arguments: &[&str]) -> String {
    let mut command = std::process::Command::new("ldb");
    command
        .arg(format!("--db={}", db.display()))
        .args(arguments);
    let output = command.output().expect("ldb runs");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !told.contains("Failed"),
        "{arguments:?}: {told}{errors}"
    );
    told
}

/// RocksDB copies as many bytes of a blob file as the MANIFEST counts.
#[test]
fn rocksdbs_backups_of_blob_files_are_whole() {
    for way in [Way::Drop, Way::Punch, Way::PunchAligned] {
        let case = make("backup", way);
        let (dir, own) = (scratch("backup-restored"), case.db());
        let db = own.as_path();
        let backups = format!("--backup_dir={}", dir.join("backups").display());
        // It is opened for that, and its MANIFEST written anew.
        ldb(db, &[&backups, "backup"]);
        let restored = dir.join("restored");
        ldb(&restored, &[&backups, "restore"]);
        let expected = case.expected("default").unwrap();
        for place in [db, restored.as_path()] {
            let lines = ldb(place, &["scan", "--hex"]);
            let found = lines.lines().filter(|l| l.contains(" : 0x")).count();
            assert_eq!(found, expected.len(), "{way:?}");
            let mut options = options(&case);
            options.cf = large(way).cf;
            let db = Db::open(place, &options).unwrap();
            assert_holds(&db, &case);
            let family = db.default_column_family();
            let files = db.check_blob_files(&family, true).unwrap();
            assert!(files.iter().all(|f| f.is_exact()), "{way:?} {files:?}");
            db.verify_checksums().unwrap();
            db.verify_file_checksums().unwrap();
            db.close().unwrap();
        }
    }
}

/// Brings the values of all families where they are to be, and proves it by reading every table.
fn convert(case: &mut Case, to: ConvertTo) {
    let mut options = options(case);
    options.cf.blob_compression_type = CompressionType::Lz4;
    options.db.create_if_missing = false;
    let db = Db::open(case.db(), &options).unwrap();
    assert_holds(&db, case);
    let how = ConvertValuesOptions {
        min_blob_size: (to == ConvertTo::Separated).then_some(20),
    };
    for name in case.families() {
        let family = db.column_family(name).unwrap();
        let converted = db.convert_values(&family, to, &how).unwrap();
        assert!(converted.is_whole(), "{} {name} {converted:?}", case.name());
        let files = db.check_blob_files(&family, true).unwrap();
        assert!(files.iter().all(|f| f.is_exact() && f.live_blob_count > 0));
        let pairs = case.expected(name).unwrap();
        let has_large = pairs.iter().any(|(_, v)| v.len() >= 20);
        assert_eq!(!files.is_empty(), has_large && to == ConvertTo::Separated);
        // There is nothing left to do, and what RocksDB wrote need not be read for that again.
        let again = db.convert_values(&family, to, &how).unwrap();
        assert_eq!(again.tables_rewritten, 0, "{} {name}", case.name());
    }
    assert_holds(&db, case);
    db.verify_checksums().unwrap();
    db.close().unwrap();
    case.set_written_by_orogen().unwrap();
}

#[test]
fn what_rocksdb_was_told_of_levels_and_readahead_is_read_and_handed_back() {
    let dir = scratch("blobs-by-level");
    let case = case("blobs-by-level").copy(&dir).unwrap();
    let told = |options: &Options| {
        let cf = options.family("default");
        assert_eq!(
            (
                cf.blob_file_starting_level,
                cf.blob_compaction_readahead_size
            ),
            (1, 65536)
        );
    };
    let loaded = Db::load_latest_options(case.db(), &Options::default()).unwrap();
    told(&loaded);
    // The file is ours from here on.
    let db = Db::open(case.db(), &loaded).unwrap();
    assert_holds(&db, &case);
    db.close().unwrap();
    told(&Db::load_latest_options(case.db(), &Options::default()).unwrap());
    programs::judge(&[case]).unwrap();
}

#[test]
fn what_rocksdb_wrote_is_converted_to_and_fro_and_it_goes_on() {
    let dir = scratch("blobs-converted");
    // Three with blob files, and some of other kinds without.
    let wanted = |case: &&Case| {
        let kinds = [
            "blobs",
            "blobs-all",
            "deletes",
            "merge",
            "families",
            "snapshots",
        ];
        is_supported(case) && kinds.iter().any(|k| case.name().contains(k))
    };
    let mut cases: Vec<Case> = written_by_rocksdb()
        .iter()
        .filter(wanted)
        .map(|c| c.copy(&dir.join(c.name())).unwrap())
        .collect();
    let separated = cases
        .iter()
        .filter(|c| c.features().contains(&"blob"))
        .count();
    assert!(separated == 3 && cases.len() == 10, "{}", cases.len());
    let mut to = ConvertTo::Inline;
    for _ in 0..3 {
        several_at_once(cases.iter_mut(), |case| convert(case, to));
        // It reads all, writes on, and compacts what it likes.
        programs::judge_and_write(&cases).unwrap();
        to = match to {
            ConvertTo::Inline => ConvertTo::Separated,
            ConvertTo::Separated => ConvertTo::Inline,
        };
    }
    for case in &cases {
        let db = Db::open_read_only(case.db(), &options(case)).unwrap();
        assert_holds(&db, case);
    }
}
