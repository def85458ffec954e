//! Breaks of a thread that moves values while others write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_engine::{CollectBlobGarbageOptions, Db, Options};
use orogen_env::{Clock, ManualClock, MemFileSystem, SystemClock};

use crate::blobs::{compact_all, key, separated};
use crate::support::DIR;

/// Time stands still; counts how often somebody sleeps for a microsecond.
struct Sleeps(ManualClock, AtomicU64);

impl Clock for Sleeps {
    fn now_micros(&self) -> u64 {
        self.0.now_micros()
    }

    fn unix_micros(&self) -> u64 {
        self.0.unix_micros()
    }

    fn sleep(&self, d: Duration) {
        self.1
            .fetch_add(u64::from(d == Duration::from_micros(1)), Ordering::Relaxed);
    }
}

/// Half of the values are written anew and their files are emptied; the breaks that those take who move the others.
fn breaks_of(set: impl Fn(&mut Options), collect: impl Fn(&Db)) -> u64 {
    let fs = MemFileSystem::new();
    let clock = Arc::new(Sleeps(ManualClock::new(), AtomicU64::new(0)));
    let mut options = separated(&fs);
    options.db.clock = clock.clone();
    options.cf.blob_file_size = 1 << 20;
    // Nothing is flushed or compacted but below: a compaction that knows of garbage would move it without a break.
    options.cf.write_buffer_size = 16 << 20;
    options.cf.min_gc_batch_size = 0;
    options.cf.blob_file_discardable_ratio = 0.4;
    set(&mut options);
    let db = Db::open(DIR, &options).expect("the disk is well");
    let family = db.default_column_family();
    for keys in [(0..400).step_by(1), (0..400).step_by(2)] {
        for n in keys {
            db.put(&key(n), &vec![b'v'; 4000])
                .expect("the disk is well");
        }
        db.flush().expect("the disk is well");
        compact_all(&db, &family);
    }
    let moved = || db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    collect(&db);
    for _ in 0..3000 {
        if moved() >= 100 {
            break;
        }
        SystemClock.sleep(Duration::from_millis(10));
    }
    assert!(moved() >= 100, "{} values moved", moved());
    clock.1.load(Ordering::Relaxed)
}

#[test]
fn who_moves_values_while_others_write_takes_breaks() {
    assert!(breaks_of(|_| {}, |_| {}) > 0);

    let for_a_caller = |db: &Db| {
        let family = db.default_column_family();
        db.collect_blob_garbage(&CollectBlobGarbageOptions::default(), &family)
            .expect("the disk is well");
    };
    let alone = |options: &mut Options| options.db.max_background_gc = 0;
    assert_eq!(breaks_of(alone, for_a_caller), 0);

    let bounded = |options: &mut Options| options.cf.max_space_amp = 4.0;
    assert_eq!(breaks_of(bounded, |_| {}), 0);
}
