//! How many reads scans over large values cost.

use orogen_base::perf::{PerfContext, PerfCounter, PerfLevel};
use orogen_engine::{Db, Options, ReadOptions};
use orogen_env::MemFileSystem;
use orogen_testkit::Rng;

use crate::blobs::separated;
use crate::support::DIR;

const VALUES: usize = 2_000;
const VALUE_LEN: usize = 500;

fn key(n: usize) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    Rng::new(n as u64).bytes(VALUE_LEN)
}

fn filled(fs: &MemFileSystem, change: impl FnOnce(&mut Options)) -> Db {
    let mut options = separated(fs);
    options.cf.blob_file_size = 1 << 30;
    options.cf.write_buffer_size = 16 << 20;
    change(&mut options);
    let db = Db::open(DIR, &options).expect("the disk is well");
    for n in 0..VALUES {
        db.put(&key(n), &value(n)).expect("the disk is well");
    }
    db.flush().expect("the disk is well");
    assert_eq!(db.live_blob_files().len(), 1);
    db
}

/// Reads and bytes out of blob files of a walk through all values.
fn walk(db: &Db, options: &ReadOptions, back: bool) -> (u64, u64) {
    let walk = || {
        let mut iter = db
            .iter(options, &db.default_column_family())
            .expect("the disk is well");
        match back {
            true => iter.seek_to_last(),
            false => iter.seek_to_first(),
        }
        for n in 0..VALUES {
            let n = if back { VALUES - 1 - n } else { n };
            assert_eq!((iter.key(), iter.value()), (&key(n)[..], &value(n)[..]));
            match back {
                true => iter.prev(),
                false => iter.next(),
            }
        }
        assert!(!iter.valid());
        iter.status().expect("the disk is well");
    };
    let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, walk);
    (
        perf.get(PerfCounter::BlobReadCount),
        perf.get(PerfCounter::BlobReadByte),
    )
}

#[test]
fn scans_read_values_together_in_both_directions() {
    let fs = MemFileSystem::new();
    let db = filled(&fs, |_| {});
    let bytes = (VALUES * VALUE_LEN) as u64;
    for (fill_cache, readahead_size) in [(true, 0), (false, 0), (true, 1 << 20)] {
        let options = ReadOptions {
            fill_cache,
            readahead_size,
            ..ReadOptions::default()
        };
        let forward = walk(&db, &options, false);
        let backward = walk(&db, &options, true);
        for (reads, read) in [forward, backward] {
            assert!(reads < 30, "{reads} reads");
            assert!((bytes..bytes * 5 / 4).contains(&read), "{read} bytes");
        }
    }
}

#[test]
fn what_the_cache_holds_is_not_read_ahead() {
    let fs = MemFileSystem::new();
    let db = filled(&fs, |options| options.cf.blob_cache = true);
    let without = ReadOptions {
        fill_cache: false,
        ..ReadOptions::default()
    };
    assert!(walk(&db, &without, true).0 > 0);
    assert!(
        walk(&db, &ReadOptions::default(), true).0 > 0,
        "nothing was kept"
    );
    assert_eq!(walk(&db, &ReadOptions::default(), true), (0, 0));
    assert_eq!(walk(&db, &without, false), (0, 0));
}
