//! Values of blob files in the block cache.

use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_engine::{Db, MemoryBudget, Options, PrepopulateBlobCache, ReadOptions};
use orogen_env::MemFileSystem;
use orogen_sst::{BlockCache, CompressionType};
use orogen_testkit::Rng;

use crate::blobs::{compact_all, key, separated};
use crate::steer::until;
use crate::support::DIR;

const VALUES: usize = 20;

fn cached(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.blob_cache = true;
    options
}

fn value(n: usize) -> Vec<u8> {
    Rng::new(n as u64).bytes(500 + n)
}

fn fill(db: &Db) {
    for n in 0..VALUES {
        db.put(&key(n), &value(n)).expect("the disk is well");
    }
    db.flush().expect("the disk is well");
}

/// Bytes read out of blob files, hits and misses, by `act`.
fn counted(db: &Db, act: impl FnOnce()) -> [u64; 3] {
    let of = |ticker| db.statistics().get(ticker);
    let all = || {
        [
            of(Ticker::BlobDbBlobFileBytesRead),
            of(Ticker::BlobDbCacheHit),
            of(Ticker::BlobDbCacheMiss),
        ]
    };
    let before = all();
    act();
    let after = all();
    [0, 1, 2].map(|i| after[i] - before[i])
}

fn get_all(db: &Db, options: &ReadOptions) {
    let family = db.default_column_family();
    for n in 0..VALUES {
        let found = db
            .get_opt(options, &family, &key(n))
            .expect("the disk is well");
        assert_eq!(found.as_deref(), Some(&value(n)[..]));
    }
}

fn get_together(db: &Db, options: &ReadOptions) {
    let keys: Vec<Vec<u8>> = (0..VALUES).map(key).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let found = db.multi_get(options, &db.default_column_family(), &asked);
    for (n, found) in found.into_iter().enumerate() {
        assert_eq!(
            found.expect("the disk is well").as_deref(),
            Some(&value(n)[..])
        );
    }
}

fn scan_all(db: &Db, options: &ReadOptions) {
    let mut iter = db
        .iter(options, &db.default_column_family())
        .expect("the disk is well");
    for back in [false, true] {
        if back {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        for n in 0..VALUES {
            let n = if back { VALUES - 1 - n } else { n };
            assert_eq!((iter.key(), iter.value()), (&key(n)[..], &value(n)[..]));
            if back {
                iter.prev();
            } else {
                iter.next();
            }
        }
        assert!(!iter.valid());
        iter.status().expect("the disk is well");
    }
}

#[test]
fn a_value_is_read_once_however_it_is_asked_for() {
    type Ask = fn(&Db, &ReadOptions);
    for codec in [CompressionType::None, CompressionType::Lz4] {
        for first in [get_all as Ask, get_together, scan_all] {
            let fs = MemFileSystem::new();
            let mut options = cached(&fs);
            options.cf.blob_compression_type = codec;
            options.cf.block_protection_bytes_per_key = 8;
            let db = Db::open(DIR, &options).unwrap();
            fill(&db);
            let [bytes, _, misses] = counted(&db, || first(&db, &ReadOptions::default()));
            assert!(bytes > 0);
            assert_eq!(misses, VALUES as u64);
            assert_eq!(db.statistics().get(Ticker::BlobDbCacheAdd), misses);
            for (then, hits) in [(get_all as Ask, 1), (get_together, 1), (scan_all, 2)] {
                let did = counted(&db, || then(&db, &ReadOptions::default()));
                assert_eq!(did, [0, hits * VALUES as u64, 0]);
            }
        }
    }
}

#[test]
fn without_fill_cache_nothing_is_kept_and_what_is_there_is_used() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &cached(&fs)).unwrap();
    fill(&db);
    let past = ReadOptions {
        fill_cache: false,
        ..ReadOptions::default()
    };
    for _ in 0..2 {
        get_all(&db, &past);
        get_together(&db, &past);
        scan_all(&db, &past);
    }
    let of = |ticker| db.statistics().get(ticker);
    assert_eq!(of(Ticker::BlobDbCacheAdd), 0);
    assert_eq!(of(Ticker::BlobDbCacheHit), 0);
    get_all(&db, &ReadOptions::default());
    assert_eq!(counted(&db, || get_all(&db, &past)), [0, VALUES as u64, 0]);
    // Nor do compactions look into it, or add to it.
    let added = of(Ticker::BlobDbCacheAdd);
    let family = db.default_column_family();
    db.set_options(&family, &[("enable_blob_files", "false")])
        .unwrap();
    db.set_options(&family, &[("enable_blob_garbage_collection", "true")])
        .unwrap();
    db.set_options(&family, &[("blob_garbage_collection_age_cutoff", "1.0")])
        .unwrap();
    let [bytes, hits, misses] = counted(&db, || compact_all(&db, &family));
    assert!(bytes > 0 && db.live_blob_files().is_empty());
    assert_eq!((hits, misses), (0, 0));
    assert_eq!(of(Ticker::BlobDbCacheAdd), added);
    get_all(&db, &ReadOptions::default());
}

#[test]
fn by_default_no_value_is_kept() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &separated(&fs)).unwrap();
    fill(&db);
    get_all(&db, &ReadOptions::default());
    let did = counted(&db, || get_all(&db, &ReadOptions::default()));
    assert!(did[0] > 0);
    assert_eq!(did[1..], [0, 0]);
    assert_eq!(db.statistics().get(Ticker::BlobDbCacheAdd), 0);
}

#[test]
fn a_directory_that_is_made_anew_meets_no_value_of_the_old_one() {
    let cache = Arc::new(BlockCache::new(4 << 20));
    for turn in 0..3u8 {
        // The same names and numbers, keys, and places of values.
        let fs = MemFileSystem::new();
        let mut options = cached(&fs);
        options.cf.block_cache = Some(cache.clone());
        let db = Db::open(DIR, &options).unwrap();
        db.put(b"key", &[turn; 500]).unwrap();
        db.flush().unwrap();
        for _ in 0..2 {
            assert_eq!(db.get(b"key").unwrap().as_deref(), Some(&[turn; 500][..]));
        }
        assert_eq!(db.statistics().get(Ticker::BlobDbCacheHit), 1);
    }
}

#[test]
fn a_value_that_would_fill_a_shard_is_not_kept() {
    let fs = MemFileSystem::new();
    let mut options = cached(&fs);
    let cache = Arc::new(BlockCache::new(1 << 20));
    options.cf.block_cache = Some(cache.clone());
    let db = Db::open(DIR, &options).unwrap();
    let large = vec![7; 40 << 10];
    db.put(b"large", &large).unwrap();
    db.put(b"small", &[8; 10 << 10]).unwrap();
    db.flush().unwrap();
    for _ in 0..2 {
        assert_eq!(db.get(b"large").unwrap().as_deref(), Some(&large[..]));
        assert!(db.get(b"small").unwrap().is_some());
    }
    let of = |ticker| db.statistics().get(ticker);
    assert_eq!(of(Ticker::BlobDbCacheAddFailures), 2);
    assert_eq!(of(Ticker::BlobDbCacheAdd), 1);
    assert_eq!(of(Ticker::BlobDbCacheHit), 1);
    assert!(cache.usage() < 40 << 10);
}

#[test]
fn a_value_outlives_its_place_in_the_cache() {
    let fs = MemFileSystem::new();
    let mut options = cached(&fs);
    let cache = Arc::new(BlockCache::new(1 << 20));
    options.cf.block_cache = Some(cache.clone());
    let db = Db::open(DIR, &options).unwrap();
    fill(&db);
    get_all(&db, &ReadOptions::default());
    let held = db.get(&key(3)).unwrap().unwrap();
    assert!(cache.pinned_usage() >= 500);
    cache.set_capacity(0);
    assert!(cache.usage() == 0 && cache.held_usage() >= 500);
    db.close().unwrap();
    drop(db);
    assert_eq!(&*held, &value(3)[..]);
    drop(held);
    assert_eq!(cache.held_usage(), 0);
}

#[test]
fn a_flush_gives_its_values_to_the_cache_if_it_is_asked_to() {
    let fs = MemFileSystem::new();
    let mut options = cached(&fs);
    options.cf.disable_auto_compactions = true;
    options.cf.prepopulate_blob_cache = PrepopulateBlobCache::FlushOnly;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    fill(&db);
    assert!(db.live_blob_files().len() > 1, "files end between values");
    let options = ReadOptions::default();
    // No file is even opened.
    let hits = VALUES as u64;
    assert_eq!(counted(&db, || get_all(&db, &options)), [0, hits, 0]);
    assert_eq!(counted(&db, || get_together(&db, &options)), [0, hits, 0]);
    assert_eq!(counted(&db, || scan_all(&db, &options)), [0, 2 * hits, 0]);
    assert_eq!(db.statistics().get(Ticker::BlobDbCacheAdd), hits);
    // It may change, and is kept.
    db.set_options(&family, &[("prepopulate_blob_cache", "kDisable")])
        .unwrap();
    fill(&db);
    let [read, ..] = counted(&db, || get_all(&db, &options));
    assert!(read > 0);
    db.set_options(&family, &[("prepopulate_blob_cache", "kFlushOnly")])
        .unwrap();
    let refused = db.set_options(&family, &[("prepopulate_blob_cache", "kAlways")]);
    assert!(refused.is_err());
    drop((family, db));
    let loaded = Db::load_latest_options(DIR, &cached(&fs)).unwrap();
    let stored = loaded.family("default").prepopulate_blob_cache;
    assert_eq!(stored, PrepopulateBlobCache::FlushOnly);
    // What a recovery writes is not given to it.
    let mut options = cached(&fs);
    options.cf.prepopulate_blob_cache = PrepopulateBlobCache::FlushOnly;
    let db = Db::open(DIR, &options).unwrap();
    db.put(&key(0), &value(0)).unwrap();
    drop(db);
    let db = Db::open(DIR, &options).unwrap();
    assert_eq!(db.statistics().get(Ticker::BlobDbCacheAdd), 0);
    // Nor is anything without a cache for it.
    drop(db);
    options.cf.blob_cache = false;
    let db = Db::open(DIR, &options).unwrap();
    fill(&db);
    assert_eq!(db.statistics().get(Ticker::BlobDbCacheAdd), 0);
    let all = ReadOptions::default();
    get_all(&db, &all);
}

#[test]
fn values_of_flushes_stay_within_the_budget() {
    const LIMIT: u64 = 8 << 20;
    let fs = MemFileSystem::new();
    let mut options = cached(&fs);
    options.cf.prepopulate_blob_cache = PrepopulateBlobCache::FlushOnly;
    options.cf.write_buffer_size = 1 << 20;
    options.cf.blob_file_size = 1 << 20;
    options.cf.disable_auto_compactions = true;
    let budget = Arc::new(MemoryBudget::new(LIMIT));
    options.db.memory_budget = Some(budget.clone());
    let db = Db::open(DIR, &options).unwrap();
    let mut rng = Rng::new(4);
    for n in 0..3_000 {
        db.put(&format!("key{n:05}").into_bytes(), &rng.bytes(10_000))
            .unwrap();
        if n % 100 == 0 {
            // What is reserved counts beside the values that give way to it until they are thrown out.
            until(|| budget.usage().total() <= LIMIT);
        }
    }
    db.flush().unwrap();
    let statistics = db.statistics();
    assert_eq!(statistics.get(Ticker::BlobDbCacheAdd), 3_000);
    until(|| budget.usage().total() <= LIMIT);
    let usage = budget.usage();
    assert!(usage.block_cache > LIMIT / 4, "{usage:?}");
}
