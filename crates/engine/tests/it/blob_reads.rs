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

/// Values in as many files as if their keys had come in no order.
fn spread(fs: &MemFileSystem, files: usize) -> Db {
    let mut options = separated(fs);
    options.cf.disable_auto_compactions = true;
    options.cf.blob_file_size = 1 << 30;
    options.cf.write_buffer_size = 16 << 20;
    let db = Db::open(DIR, &options).expect("the disk is well");
    let mut rng = Rng::new(3);
    let mut order: Vec<usize> = (0..VALUES).collect();
    rng.shuffle(&mut order);
    for some in order.chunks(VALUES / files) {
        for &n in some {
            db.put(&key(n), &value(n)).expect("the disk is well");
        }
        db.flush().expect("the disk is well");
    }
    assert_eq!(db.live_blob_files().len(), files);
    db
}

#[test]
fn each_of_many_files_has_a_row_of_its_own() {
    let fs = MemFileSystem::new();
    let db = spread(&fs, 50);
    let bytes = (VALUES * VALUE_LEN) as u64;
    for back in [false, true] {
        // 40 values of each file: one, then two, then as many as there were before.
        let (reads, read) = walk(&db, &ReadOptions::default(), back);
        assert!((200..=8 * 50).contains(&reads), "{reads} reads");
        assert!((bytes..bytes * 3 / 2).contains(&read), "{read} bytes");
    }
    // Some of each: what is read for nothing is no more than what was wanted.
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .expect("the disk is well");
    for (from, values) in [(0, 1), (500, 100), (900, 300)] {
        let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, || {
            iter.seek(&key(from));
            for n in from..from + values {
                assert_eq!(iter.value(), value(n));
                iter.next();
            }
        });
        // The last step has read one more.
        let wanted = (values as u64 + 1) * (VALUE_LEN as u64 + 50);
        let read = perf.get(PerfCounter::BlobReadByte);
        assert!(read <= 2 * wanted, "{read} of {wanted} bytes");
        assert!(perf.get(PerfCounter::BlobReadCount) <= values as u64 + 1);
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
