//! Compaction filters that drop whole stretches of keys, over values in blob files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::metrics::Ticker;
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_engine::{Db, Options};
use orogen_env::MemFileSystem;
use orogen_testkit::Rng;

use crate::blob_collection::collect;
use crate::blob_faults::{get, put};
use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated, w,
};
use crate::support::DIR;

/// Where a skip from key `n` ends, if there is one.
type SkipsTo = fn(n: usize) -> Option<usize>;

struct Skips {
    skips_to: SkipsTo,
    /// About values in blob files of even keys, or of all, it decides unread.
    all_unread: bool,
}

fn number(key: &[u8]) -> usize {
    let text = std::str::from_utf8(key).expect("keys are text");
    text["key".len()..].parse().expect("and have a number")
}

impl Skips {
    fn decide(&self, key: &[u8]) -> FilterDecision {
        match (self.skips_to)(number(key)) {
            Some(until) => FilterDecision::RemoveAndSkipUntil(crate::blobs::key(until)),
            None => FilterDecision::Keep,
        }
    }
}

impl CompactionFilter for Skips {
    fn filter(&mut self, _: usize, key: &[u8], _: &[u8]) -> FilterDecision {
        self.decide(key)
    }

    fn filter_blob_by_key(&mut self, _: usize, key: &[u8], _: u64) -> Option<FilterDecision> {
        let unread = self.all_unread || number(key).is_multiple_of(2);
        unread.then(|| self.decide(key))
    }
}

struct Factory {
    skips_to: SkipsTo,
    all_unread: bool,
    armed: Arc<AtomicBool>,
}

impl CompactionFilterFactory for Factory {
    fn name(&self) -> &str {
        "skips"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        let armed = self.armed.load(Ordering::SeqCst);
        armed.then(|| -> Box<dyn CompactionFilter> {
            Box::new(Skips {
                skips_to: self.skips_to,
                all_unread: self.all_unread,
            })
        })
    }
}

/// Where everything but what is in level 0 is in one run; compactions are asked for.
fn options(fs: &MemFileSystem, skips_to: SkipsTo, all_unread: bool) -> (Options, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let mut options = separated(fs);
    options.cf.num_levels = 2;
    options.cf.level_compaction_dynamic_level_bytes = false;
    options.cf.disable_auto_compactions = true;
    options.cf.compaction_filter_factory = Some(Arc::new(Factory {
        skips_to,
        all_unread,
        armed: armed.clone(),
    }));
    (options, armed)
}

fn without_skipped(map: &mut Map, skips_to: SkipsTo) {
    let mut until = 0;
    map.retain(|key, _| {
        let n = number(key);
        if n < until {
            return false;
        }
        match skips_to(n).filter(|&to| to > n) {
            Some(to) => until = to,
            None => return true,
        }
        false
    });
}

#[test]
fn what_is_skipped_is_gone_and_counted_to_the_byte() {
    let skips_to: SkipsTo = |n| (n % 5 == 3).then(|| (n + 1 + n % 7).saturating_sub(2));
    let mut dropped = 0;
    for seed in 0..10 {
        let fs = MemFileSystem::new();
        let mut rng = Rng::new(seed);
        let (mut options, armed) = options(&fs, skips_to, false);
        options.cf.blob_run_mode = match seed % 5 {
            4 => orogen_engine::BlobRunMode::Fallback,
            _ => orogen_engine::BlobRunMode::Normal,
        };
        options.cf.enable_blob_garbage_collection = rng.chance(1, 3);
        let mut map = Map::new();
        let mut db = Db::open(DIR, &options).unwrap();
        for round in 0..8 {
            let family = db.default_column_family();
            for _ in 0..40 {
                let n = rng.below(60) as usize;
                match rng.below(12) {
                    0 => {
                        db.delete(&key(n)).unwrap();
                        map.remove(&key(n));
                    }
                    1 if rng.chance(1, 3) => {
                        let end = key(n + 1 + rng.below(10) as usize);
                        db.delete_range_opt(&w(), &family, &key(n), &end).unwrap();
                        map.retain(|k, _| *k < key(n) || *k >= end);
                    }
                    _ => {
                        let value = crate::blobs::value(&mut rng);
                        db.put(&key(n), &value).unwrap();
                        map.insert(key(n), value);
                    }
                }
                if rng.chance(1, 12) {
                    db.flush().unwrap();
                }
            }
            armed.store(round % 3 != 2, Ordering::SeqCst);
            compact_all(&db, &family);
            if round % 3 != 2 {
                let before = map.len();
                without_skipped(&mut map, skips_to);
                dropped += before - map.len();
            }
            assert_holds(&db, &family, &map, None);
            assert_exact(&db, &family);
            armed.store(false, Ordering::SeqCst);
            match rng.below(3) {
                0 => {
                    collect(&db, &family);
                    assert_holds(&db, &family, &map, None);
                    assert_exact(&db, &family);
                }
                1 => {
                    db.close().unwrap();
                    drop(db);
                    db = Db::open(DIR, &options).unwrap();
                }
                _ => {}
            }
        }
        let family = db.default_column_family();
        compact_all(&db, &family);
        assert_holds(&db, &family, &map, None);
        assert_exact(&db, &family);
        assert_no_strays(&fs, &db);
    }
    assert!(dropped > 300, "{dropped}");
}

#[test]
fn a_skip_decided_by_key_reads_no_value() {
    let fs = MemFileSystem::new();
    let (options, armed) = options(&fs, |n| (n == 10).then_some(50), true);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..60).for_each(|n| put(&db, n, 500));
    compact_all(&db, &family);
    let of = |ticker| db.statistics().get(ticker);
    let read = of(Ticker::BlobDbBlobFileBytesRead);
    let files = db.live_blob_files().len();
    armed.store(true, Ordering::SeqCst);
    compact_all(&db, &family);
    assert_eq!(of(Ticker::BlobDbBlobFileBytesRead), read);
    assert_eq!(of(Ticker::CompactionKeyDropUser), 40);
    for n in 0..60 {
        assert_eq!(get(&db, n).is_some(), !(10..50).contains(&n), "{n}");
    }
    // Whole files went with what was skipped.
    assert!(db.live_blob_files().len() < files);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn a_pointer_that_a_skip_uncovers_leads_to_its_value() {
    let fs = MemFileSystem::new();
    let (mut options, armed) = options(&fs, |n| (n == 5).then_some(10), true);
    options.cf.num_levels = 4;
    options.cf.write_buffer_size = 1 << 20;
    options.cf.disable_auto_compactions = false;
    options.cf.max_bytes_for_level_base = 1;
    options.cf.level0_file_num_compaction_trigger = 2;
    // Dead values leave holes at once.
    options.cf.blob_hole_punching_threshold = 0.01;
    options.cf.blob_hole_punching_min_bytes = 1;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let write = |keys: std::ops::Range<usize>, len: usize| {
        for _ in 0..2 {
            keys.clone().for_each(|n| put(&db, n, len));
            db.flush().unwrap();
        }
        db.wait_for_background_work().unwrap();
    };
    write(0..20, 5000);
    db.set_options(&family, &[("max_bytes_for_level_base", "1000000")])
        .unwrap();
    // The newer values meet the filter in a level above that of the older ones.
    armed.store(true, Ordering::SeqCst);
    write(5..10, 7000);
    armed.store(false, Ordering::SeqCst);
    assert!(db.live_files().iter().all(|f| f.level != 0));
    for _ in 0..2 {
        for n in 0..20 {
            let found = get(&db, n).expect("the older value is back");
            assert_eq!(found, vec![b'a' + n as u8; 5000], "{n}");
        }
        assert_exact(&db, &family);
        collect(&db, &family);
        db.wait_for_background_work().unwrap();
    }
    compact_all(&db, &family);
    db.wait_for_background_work().unwrap();
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}
