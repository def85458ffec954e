//! What flushes and compactions take from a rate limiter.

use std::sync::Arc;

use orogen_engine::{BottommostLevelCompaction, CompactRangeOptions, Db};
use orogen_env::{Clock, IoPriority, ManualClock, MemFileSystem, RateLimiter};

use crate::blob_collection::{collect, quiet};
use crate::blob_faults::put;
use crate::blobs::compact_all;
use crate::steer::{Gate, Told, ends, on_thread};
use crate::support::{DIR, small};

fn written(db: &Db) -> u64 {
    db.live_files().iter().map(|f| f.size).sum()
}

#[test]
fn every_byte_of_a_table_is_taken_once_whichever_database_writes_it() {
    let clock = Arc::new(ManualClock::new());
    let limiter = Arc::new(RateLimiter::new(10_000, clock.clone()));
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.disable_auto_compactions = true;
    options.db.rate_limiter = Some(limiter.clone());
    let mut flushed = 0;
    let mut compacted = 0;
    for dir in [DIR, "/other"] {
        let db = Db::open(dir, &options).unwrap();
        for n in 0..100u32 {
            db.put(&n.to_be_bytes(), &[7; 50]).unwrap();
        }
        db.flush().unwrap();
        flushed += written(&db);
        let force = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        db.compact_range(&force, &db.default_column_family(), None, None)
            .unwrap();
        compacted += written(&db);
    }
    assert_eq!(limiter.total_bytes_of(IoPriority::High), flushed);
    assert_eq!(limiter.total_bytes_of(IoPriority::Low), compacted);
    assert_eq!(limiter.total_bytes_of(IoPriority::User), 0, "no log");
    let bytes_per_sec = limiter.total_bytes() * 1_000_000 / clock.now_micros();
    assert_eq!(bytes_per_sec, 10_000);
}

#[test]
fn every_byte_of_a_blob_file_is_taken_too() {
    let limiter = Arc::new(RateLimiter::new(1 << 20, Arc::new(ManualClock::new())));
    let fs = MemFileSystem::new();
    let mut options = quiet(&fs);
    options.db.rate_limiter = Some(limiter.clone());
    let db = Db::open(DIR, &options).unwrap();
    let names = || -> Vec<String> {
        let mut names = orogen_env::FileSystem::list(&fs, DIR.as_ref()).unwrap();
        names.retain(|n| n.ends_with(".blob") || n.ends_with(".sst"));
        names
    };
    let bytes = |names: &[String]| -> u64 {
        let path = |n: &String| std::path::Path::new(DIR).join(n);
        let size = |n| {
            orogen_env::FileSystem::metadata(&fs, &path(n))
                .unwrap()
                .size
        };
        names.iter().map(size).sum()
    };
    (0..20).for_each(|n| put(&db, n, 500));
    db.flush().unwrap();
    let flushed = bytes(&names());
    assert!(flushed > 20 * 500);
    assert_eq!(limiter.total_bytes_of(IoPriority::High), flushed);
    (0..20).step_by(2).for_each(|n| put(&db, n, 20));
    db.flush().unwrap();
    compact_all(&db, &db.default_column_family());
    db.wait_for_background_work().unwrap();
    let (before, low) = (names(), limiter.total_bytes_of(IoPriority::Low));
    collect(&db, &db.default_column_family());
    let mut made = names();
    made.retain(|n| !before.contains(n));
    assert!(made.iter().any(|n| n.ends_with(".blob")));
    let taken = limiter.total_bytes_of(IoPriority::Low) - low;
    assert_eq!(
        taken,
        bytes(&made),
        "a collection steps back behind flushes"
    );
}

#[test]
fn closing_does_not_wait_for_the_limiter() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let theirs = gate.clone();
    let mut options = small(&fs);
    // A real clock: at this rate a table takes hours.
    let clock: Arc<dyn Clock> = Arc::new(orogen_env::SystemClock);
    options.db.rate_limiter = Some(Arc::new(RateLimiter::new(1, clock)));
    options.db.listeners = vec![Arc::new(Told {
        flush_begin: Some(Box::new(move |_| theirs.pass())),
        ..Told::default()
    })];
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a", &[7; 10_000]).unwrap();
    let other = db.clone();
    let flush = on_thread(move || other.flush());
    gate.wait_for(1);
    gate.open();
    let closing = on_thread(move || db.close());
    ends(&closing).unwrap();
    let _ = ends(&flush);
}
