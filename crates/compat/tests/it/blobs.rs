//! RocksDB reads and writes on what each way of bringing space back leaves.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use orogen_compat::{Case, programs};
use orogen_engine::{CompactRangeOptions, Db, Options};
use orogen_sst::CompressionType;
use orogen_testkit::Rng;

use crate::scratch;
use crate::store::{assert_holds, options};

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
    cf.enable_blob_garbage_collection = way == Way::Merge;
    cf.blob_garbage_collection_age_cutoff = 1.0;
    let is_aligned = way == Way::PunchAligned;
    cf.blob_record_alignment = if is_aligned { 4096 } else { 0 };
    cf.blob_hole_punching = way == Way::Punch || is_aligned;
    cf.blob_hole_punching_threshold = 0.0;
    cf.blob_hole_punching_min_bytes = 1;
    options
}

fn make(way: Way) -> Case {
    let dir = scratch(&format!("blobs-{way:?}").to_lowercase());
    let name = format!("blobs-{way:?}").to_lowercase();
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
            let len = 500 + rng.below(30_000) as usize;
            let value = rng.bytes(len);
            db.put(&key, &value).unwrap();
            map.insert(key, value);
        }
        db.flush().unwrap();
        let all = CompactRangeOptions::default();
        let family = db.default_column_family();
        db.compact_range(&all, &family, None, None).unwrap();
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
        Way::Drop | Way::Merge => assert_eq!(garbage + given_up, 0),
    }
    let pairs: Vec<_> = map.into_iter().collect();
    case.expect("default", &pairs).unwrap();
    assert_holds(&db, &case);
    db.close().unwrap();
    case.copy(&dir.join("left")).unwrap()
}

#[test]
fn rocksdb_reads_and_writes_what_garbage_collection_leaves() {
    let cases: Vec<Case> = [Way::Drop, Way::Punch, Way::PunchAligned, Way::Merge]
        .map(make)
        .into();
    programs::judge(&cases).unwrap();
    programs::judge_and_write(&cases).unwrap();
    for case in &cases {
        let mut options = options(case);
        options.cf = large(Way::Punch).cf;
        let db = Db::open(case.db(), &options).unwrap();
        assert_holds(&db, case);
        db.verify_checksums().unwrap();
        db.verify_file_checksums().unwrap();
        db.close().unwrap();
    }
}
