//! Which way garbage in blob files is collected where nobody has said one, and its ceiling.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::sync::Mutex;
use orogen_engine::{Db, JobInfo, JobKind, LiveBlobFile, Options, ReadOptions, filename};
use orogen_env::{
    Clock, FileSystem, IoPriority, ManualClock, MemFileSystem, Metadata, RateLimiter, SystemClock,
};
use orogen_testkit::Rng;

use crate::blobs::{assert_exact, assert_no_strays, key};
use crate::holes::punching;
use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, until};
use crate::support::{DIR, scan};

/// 300 values of 9,000 bytes that are written over `rounds` times, in no order.
fn churn(db: &Db, rounds: usize) {
    let mut rng = Rng::new(7);
    let value = |n: u64| {
        let mut rng = Rng::new(n);
        (0..9000).map(|_| rng.below(256) as u8).collect::<Vec<_>>()
    };
    for n in 0..300 {
        db.put(&key(n), &value(n as u64)).expect("the disk is well");
    }
    let family = db.default_column_family();
    for round in 0..rounds {
        for n in 0..300 {
            let at = rng.below(300) as usize;
            let value = value((300 * round + n) as u64);
            db.put(&key(at), &value).expect("the disk is well");
        }
        db.flush().expect("the disk is well");
        // What level 0 holds is left alone by collections.
        db.compact_range(&Default::default(), &family, None, None)
            .expect("the disk is well");
        db.wait_for_background_work().expect("the disk is well");
    }
    assert_eq!(scan(db, &family).len(), 300);
}

/// Bytes that the blob files take, for each that is live.
fn space_amp(db: &Db) -> f64 {
    amp_of(&db.live_blob_files())
}

fn amp_of(files: &[LiveBlobFile]) -> f64 {
    let disk: u64 = files
        .iter()
        .map(|f| f.total_blob_bytes - f.given_up_bytes.unwrap_or(0))
        .sum();
    let live: u64 = files
        .iter()
        .map(|f| f.total_blob_bytes - f.garbage_blob_bytes)
        .sum();
    disk as f64 / live as f64
}

fn automatic(fs: &MemFileSystem) -> Options {
    let mut options = punching(fs);
    options.cf.blob_gc_auto = true;
    options.cf.min_gc_batch_size = 0;
    options
}

/// Punches with calls of so many microseconds; the calls, the values that were moved, and the space.
fn churned_where_holes_take(micros: u64) -> (u64, u64, f64) {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let calls = Arc::new(AtomicU64::new(0));
    let mut options = automatic(&fs);
    options.db.clock = clock.clone();
    let counted = calls.clone();
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::PunchHole {
            counted.fetch_add(1, Ordering::Relaxed);
            clock.advance(Duration::from_micros(micros));
        }
    }));
    let db = Db::open(DIR, &options).expect("it opens");
    churn(&db, 8);
    assert_exact(&db, &db.default_column_family());
    assert_no_strays(&fs, &db);
    let moved = db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    (calls.load(Ordering::Relaxed), moved, space_amp(&db))
}

#[test]
fn values_are_moved_where_holes_cost_too_much() {
    let (many, _, amp) = churned_where_holes_take(20);
    assert!(many > 100, "{many} holes");
    assert!(amp < 2.0, "{amp}");
    let (few, moved, amp) = churned_where_holes_take(3000);
    assert!((64..=64 + 1).contains(&few), "{few} holes");
    assert!(moved > 100, "{moved} values moved");
    assert!(amp < 2.0, "{amp}");
}

#[test]
fn files_made_since_are_emptied_while_holes_wait_for_a_reader() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let mut options = automatic(&fs);
    options.db.clock = clock.clone();
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let write = |letter: u8, is_chosen: &dyn Fn(usize) -> bool| {
        for n in (0..300).filter(|n| is_chosen(*n)) {
            db.put(&key(n), &[letter ^ n as u8; 9000]).unwrap();
        }
        db.flush().unwrap();
        db.compact_range(&Default::default(), &family, None, None)
            .unwrap();
    };
    write(0, &|_| true);
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    let before: Vec<_> = (0..300).map(key).collect();
    // Garbage is marked, and waits for the iterator.
    write(1, &|n| n % 2 == 0);
    let waits = |job: &JobInfo| job.kind == JobKind::HolePunching && job.reason == "readers";
    until(|| db.jobs().iter().any(waits));
    let last = db.live_blob_files().iter().map(|f| f.number).max();
    // Each tenth value lives on in files of which all else is written over.
    for round in 0..10 {
        write(2 + round as u8, &|n| n % 10 >= round);
    }
    clock.advance(Duration::from_secs(60));
    let made_since = || {
        let files = db.live_blob_files().into_iter();
        files.filter(|f| Some(f.number) > last).collect::<Vec<_>>()
    };
    until(|| amp_of(&made_since()) < 2.0);
    assert!(db.jobs().iter().any(waits), "the iterator is held");
    let moved = db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    assert!(moved > 0, "{moved} values moved");
    for key in &before {
        assert!(iter.key() == &key[..]);
        iter.next();
    }
    iter.status().unwrap();
    drop(iter);
    // Holes are looked for in them again once there is nobody to wait for.
    until(|| !db.jobs().iter().any(waits));
    write(100, &|n| n % 2 == 0);
    until(|| made_since().iter().any(|f| f.given_up_bytes > Some(0)));
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

/// Writes each `step`-th of 1,000 values of 9,000 bytes, and has it compacted; a moment passes.
fn write_down(db: &Db, clock: &ManualClock, step: usize) {
    clock.advance(Duration::from_millis(1));
    for n in (0..1000).step_by(step) {
        db.put(&key(n), &[n as u8; 9000]).expect("the disk is well");
    }
    db.flush().expect("the disk is well");
    let family = db.default_column_family();
    db.compact_range(&Default::default(), &family, None, None)
        .expect("the disk is well");
}

#[test]
fn holes_that_cost_too_much_beside_flushes_are_made_when_none_come() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let (calls, micros) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(3000)));
    let mut options = automatic(&fs);
    options.db.clock = clock.clone();
    let (told, counted, costs) = (clock.clone(), calls.clone(), micros.clone());
    let (gate, stop_at) = (Gate::new(), Arc::new(AtomicU64::new(u64::MAX)));
    let (passed, stop) = (gate.clone(), stop_at.clone());
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::PunchHole {
            let before = counted.fetch_add(1, Ordering::Relaxed);
            if before == stop.load(Ordering::Relaxed) {
                passed.pass();
            }
            told.advance(Duration::from_micros(costs.load(Ordering::Relaxed)));
        }
    }));
    let db = Db::open(DIR, &options).expect("it opens");
    let family = db.default_column_family();
    let write = |step| write_down(&db, &clock, step);
    let holes = || calls.load(Ordering::Relaxed);
    write(1);
    // A sixth of all becomes garbage, too little to be moved.
    write(5);
    until(|| holes() >= 64);
    SystemClock.sleep(Duration::from_millis(300));
    let beside = holes();
    assert!(beside <= 65, "{beside} holes");
    // More garbage changes nothing.
    write(10);
    SystemClock.sleep(Duration::from_millis(300));
    assert_eq!(holes(), beside);
    // When flushes come again the others are left for now.
    micros.store(20, Ordering::Relaxed);
    stop_at.store(beside + 80, Ordering::Relaxed);
    clock.advance(Duration::from_secs(2));
    gate.wait_for(1);
    db.put(&key(2000), b"short").expect("the disk is well");
    db.flush().expect("the disk is well");
    gate.open();
    let waits = |job: &JobInfo| job.kind == JobKind::HolePunching && job.reason == "quiet";
    until(|| db.jobs().iter().any(waits));
    let broken_off = holes();
    assert!(broken_off < beside + 120, "{broken_off} holes");
    // What dies meanwhile is moved, and waits for none of them: a hundred of `write(10)`, and ten more.
    let more = |keys: std::ops::Range<usize>, value: &[u8]| {
        clock.advance(Duration::from_micros(1));
        keys.for_each(|n| db.put(&key(n), value).expect("the disk is well"));
        db.flush().expect("the disk is well");
        db.compact_range(&Default::default(), &family, None, None)
            .expect("the disk is well");
    };
    let moved = || db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    more(3000..3040, &[9; 9000]);
    more(3000..3030, &[9; 9000]);
    more(3000..3001, &[9; 9000]);
    // Compactions come by until it was looked at.
    let mut rounds = 5000..6000;
    until(|| {
        let n = rounds.next().expect("it is looked at soon");
        more(n..n + 1, b"short");
        moved() == 110
    });
    assert_eq!(holes(), broken_off);
    // In the end each of the two hundred that died first is one, once.
    clock.advance(Duration::from_secs(2));
    until(|| holes() >= 200);
    db.wait_for_background_work().expect("the disk is well");
    // And one of key 3000.
    assert_eq!(holes(), 201);
    assert!(space_amp(&db) < 1.15, "{}", space_amp(&db));
    let quiet = holes();
    write(7);
    SystemClock.sleep(Duration::from_millis(300));
    assert_eq!(holes(), quiet);
    assert_eq!(moved(), 110);
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

#[test]
fn who_waits_for_all_work_while_others_write_gives_no_holes_up() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let calls = Arc::new(AtomicU64::new(0));
    let writer: Arc<Mutex<Option<Arc<Db>>>> = Arc::default();
    let mut options = automatic(&fs);
    options.db.clock = clock.clone();
    let (told, counted, writes) = (clock.clone(), calls.clone(), writer.clone());
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::PunchHole {
            let before = counted.fetch_add(1, Ordering::Relaxed);
            told.advance(Duration::from_micros(1500));
            if before % 8 == 0
                && let Some(db) = &*writes.lock()
            {
                db.put(&key(2000), b"short").expect("the disk is well");
                db.flush().expect("the disk is well");
            }
            told.advance(Duration::from_micros(1500));
        }
    }));
    let db = Arc::new(Db::open(DIR, &options).expect("it opens"));
    let family = db.default_column_family();
    let holes = || calls.load(Ordering::Relaxed);
    // A sixth of all becomes garbage, too little to be moved.
    for step in [1, 5] {
        write_down(&db, &clock, step);
    }
    let waits = |job: &JobInfo| job.kind == JobKind::HolePunching && job.reason == "quiet";
    until(|| db.jobs().iter().any(waits));
    assert!(holes() <= 65, "{} holes", holes());
    *writer.lock() = Some(db.clone());
    // For who waits they are made, as slow as they are.
    db.wait_for_background_work().expect("the disk is well");
    assert_eq!(holes(), 200);
    *writer.lock() = None;
    assert_exact(&db, &family);
}

#[test]
fn holes_of_files_that_have_gone_wait_for_nothing() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let mut options = automatic(&fs);
    options.db.clock = clock.clone();
    let told = clock.clone();
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::PunchHole {
            told.advance(Duration::from_millis(3));
        }
    }));
    let db = Db::open(DIR, &options).expect("it opens");
    let family = db.default_column_family();
    write_down(&db, &clock, 1);
    write_down(&db, &clock, 5);
    let waiting = || {
        let mut jobs = db.jobs();
        jobs.retain(|job| job.kind == JobKind::HolePunching && job.reason == "quiet");
        jobs.iter()
            .flat_map(|job| job.input_files.clone())
            .collect()
    };
    until(|| !Vec::is_empty(&waiting()));
    let files: Vec<u64> = waiting();
    write_down(&db, &clock, 1);
    let is_live = |n: &u64| db.live_blob_files().iter().any(|f| f.number == *n);
    assert!(!files.iter().any(is_live));
    assert_eq!(waiting(), [0; 0]);
    assert_exact(&db, &family);
}

#[test]
fn holes_are_whole_blocks_of_the_file_system() {
    let fs = MemFileSystem::new();
    let mut options = automatic(&fs);
    options.db.fs = Arc::new(
        HookFileSystem::new(&fs, |_, _| {}).showing(|shown| Metadata {
            block_size: 64 << 10,
            ..shown
        }),
    );
    let db = Db::open(DIR, &options).expect("it opens");
    churn(&db, 8);
    let statistics = db.statistics();
    let holes = statistics.get(Ticker::BlobHoles);
    let bytes = statistics.get(Ticker::BlobHoleBytes);
    assert!(holes > 0 && bytes.is_multiple_of(64 << 10), "{bytes} bytes");
    // What has no whole block comes back by moving.
    assert!(space_amp(&db) < 2.0, "{}", space_amp(&db));
    assert_exact(&db, &db.default_column_family());
}

#[test]
fn values_are_moved_where_holes_do_not_bring_space_back() {
    let fs = MemFileSystem::new();
    let mut options = automatic(&fs);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    // As with a snapshot of the file system, which goes on having the blocks.
    let keeping = HookFileSystem::new(&fs, move |op, _| {
        counted.fetch_add(u64::from(op == Op::PunchHole), Ordering::Relaxed);
    });
    options.db.fs = Arc::new(keeping.showing(|shown| Metadata {
        allocated: shown.size.next_multiple_of(4096),
        ..shown
    }));
    let db = Db::open(DIR, &options).expect("it opens");
    churn(&db, 8);
    let after_eight = calls.load(Ordering::Relaxed);
    assert!(after_eight > 0);
    churn(&db, 4);
    assert_eq!(
        calls.load(Ordering::Relaxed),
        after_eight,
        "it was given up"
    );
    let given_up = |f: &LiveBlobFile| f.given_up_bytes.unwrap_or(0);
    assert_eq!(db.live_blob_files().iter().map(given_up).sum::<u64>(), 0);
    assert!(db.statistics().get(Ticker::BlobDbGcNumKeysRelocated) > 100);
    assert!(space_amp(&db) < 2.0, "{}", space_amp(&db));
    assert_exact(&db, &db.default_column_family());
    assert_no_strays(&fs, &db);
}

#[test]
fn who_wants_no_value_to_be_moved_says_so() {
    let fs = MemFileSystem::new();
    let mut options = automatic(&fs);
    options.cf.blob_gc_auto = false;
    options.cf.blob_hole_punching = false;
    let db = Db::open(DIR, &options).expect("it opens");
    churn(&db, 4);
    let moved = db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    assert_eq!(moved, 0);
}

#[test]
fn space_is_held_below_the_ceiling() {
    for ceiling in [1.1, 1.5] {
        let fs = MemFileSystem::new();
        let mut options = automatic(&fs);
        options.cf.blob_gc_auto = false;
        options.cf.blob_hole_punching = false;
        options.cf.max_space_amp = ceiling;
        let db = Db::open(DIR, &options).expect("it opens");
        churn(&db, 4);
        assert!(space_amp(&db) <= ceiling, "{} of {ceiling}", space_amp(&db));
        assert_exact(&db, &db.default_column_family());
        // It changes while the database is open.
        let family = db.default_column_family();
        let refused = db.set_options(&family, &[("max_space_amp", "1.01")]);
        assert!(refused.is_err());
        db.set_options(&family, &[("max_space_amp", "1.06")])
            .expect("it may change");
        churn(&db, 1);
        assert!(space_amp(&db) <= 1.06, "{}", space_amp(&db));
    }
}

#[test]
fn while_collection_is_held_compactions_move_nothing_for_the_ceiling() {
    let mut options = automatic(&MemFileSystem::new());
    options.cf.max_space_amp = 1.1;
    let db = Db::open(DIR, &options).expect("it opens");
    let family = db.default_column_family();
    let held = |is_held: bool| {
        db.set_db_options(&[("max_background_gc", if is_held { "0" } else { "1" })])
            .expect("it may change");
    };
    held(true);
    db.set_options(
        &family,
        &[("blob_hole_punching", "false"), ("blob_gc_auto", "false")],
    )
    .expect("they may change");
    let moved = || db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    churn(&db, 4);
    assert_eq!(moved(), 0);
    assert!(space_amp(&db) > 1.1);
    assert_eq!(
        db.int_property(&family, "rocksdb.actual-delayed-write-rate"),
        Some(0)
    );
    // From here on it is held, by compactions too.
    held(false);
    churn(&db, 1);
    assert!(moved() > 0 && space_amp(&db) <= 1.1, "{}", space_amp(&db));
    assert_exact(&db, &family);
}

/// Bytes of the blob files, and of the live records in them, for each live byte.
fn padded_amp(fs: &MemFileSystem, db: &Db) -> (f64, f64) {
    let files = db.live_blob_files();
    let size = |number| {
        let path = filename::blob_path(Path::new(DIR), number);
        fs.metadata(&path).expect("it is listed").size
    };
    let disk: u64 = files.iter().map(|f| size(f.number)).sum();
    let records: u64 = files.iter().map(|f| f.total_blob_bytes).sum();
    let garbage: u64 = files.iter().map(|f| f.garbage_blob_bytes).sum();
    let live = (records - garbage) as f64;
    (disk as f64 / live, records as f64 / live)
}

#[test]
fn padding_counts_below_the_ceiling_as_far_as_that_can_be_held() {
    // A sixth of padding leaves room; as much padding as values leaves none.
    for (len, ceiling, most_of_records) in [(14_000, 1.45, 1.25), (4_200, 1.2, 1.11)] {
        let fs = MemFileSystem::new();
        let mut options = automatic(&fs);
        options.cf.blob_gc_auto = false;
        options.cf.blob_hole_punching = false;
        options.cf.blob_record_alignment = 4096;
        options.cf.max_space_amp = ceiling;
        let db = Db::open(DIR, &options).expect("it opens");
        let family = db.default_column_family();
        let write = |keys: &dyn Fn(usize) -> bool| {
            for n in (0..100).filter(|&n| keys(n)) {
                db.put(&key(n), &vec![n as u8; len])
                    .expect("the disk is well");
            }
            db.compact_range(&Default::default(), &family, None, None)
                .expect("the disk is well");
            db.wait_for_background_work().expect("the disk is well");
        };
        write(&|_| true);
        let moved = || db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
        assert_eq!(moved(), 0, "padding alone moves nothing");
        // Of records there are 1.4 for each live one at most, so one ceiling is kept without padding.
        for at in 0..4 {
            write(&|n| (n + at) % 5 < 2);
            let (disk, records) = padded_amp(&fs, &db);
            assert!(records <= most_of_records, "{len}: {records}");
            assert!(disk <= ceiling || len == 4_200, "{len}: {disk}");
        }
        assert!(moved() > 0);
        assert_exact(&db, &family);
    }
}

/// A database whose limiter flushes of another one keep busy, as no time passes but what a test lets pass. Without holes.
struct BesideAnother {
    db: Db,
    clock: Arc<ManualClock>,
    limiter: Arc<RateLimiter>,
}

impl BesideAnother {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let limiter = Arc::new(RateLimiter::new(1 << 30, clock.clone()));
        let mut options = automatic(&MemFileSystem::new());
        options.cf.blob_hole_punching = false;
        options.db.clock = clock.clone();
        options.db.rate_limiter = Some(limiter.clone());
        let db = Db::open(DIR, &options).expect("it opens");
        Self { db, clock, limiter }
    }

    /// And lets time pass, until there are no flushes but those of the other one.
    fn write(&self, mut keys: std::ops::Range<usize>) {
        let others_flush = || {
            // Of more than is granted at once; they have waited within the second at any time.
            self.clock.advance(Duration::from_millis(900));
            self.limiter
                .request_until(1 << 30, IoPriority::High, &AtomicBool::new(false));
        };
        others_flush();
        let db = &self.db;
        keys.try_for_each(|n| db.put(&key(n), &[7; 9000]))
            .and_then(|()| db.flush())
            .and_then(|()| {
                let family = db.default_column_family();
                db.compact_range(&Default::default(), &family, None, None)
            })
            .expect("the disk is well");
        (0..3).for_each(|_| others_flush());
    }

    fn moved(&self) -> u64 {
        let statistics = self.db.statistics();
        statistics.get(Ticker::BlobDbGcNumKeysRelocated)
    }

    /// Nobody looks again while no time passes, however long one waits.
    fn moves_no_more_than(&self, values: u64) {
        SystemClock.sleep(Duration::from_millis(300));
        assert_eq!(self.moved(), values);
    }

    /// By itself: for who waits for all work more is moved.
    fn moves_in_all(&self, values: u64) {
        until(|| self.moved() >= values);
        self.moves_no_more_than(values);
    }
}

#[test]
fn values_are_moved_for_less_garbage_when_flushes_no_longer_wait() {
    let it = BesideAnother::new();
    it.write(0..10);
    // Six of ten are dead.
    it.write(0..6);
    it.moves_no_more_than(0);
    // Nine of ten, which is worth it at any time.
    it.write(6..9);
    it.moves_in_all(1);
    // Four of the six.
    it.write(0..4);
    it.moves_no_more_than(1);
    it.clock.advance(Duration::from_secs(1));
    it.moves_in_all(3);
    assert_exact(&it.db, &it.db.default_column_family());
}

#[test]
fn who_waits_for_all_work_gets_what_flushes_would_put_off() {
    let it = BesideAnother::new();
    it.write(0..10);
    it.write(0..6);
    it.moves_no_more_than(0);
    let done = it.db.wait_for_background_work();
    done.expect("the disk is well");
    assert_eq!(it.moved(), 4);
    assert_exact(&it.db, &it.db.default_column_family());
}

#[test]
fn while_flushes_come_compactions_take_garbage_along_and_steps_follow_when_none_come() {
    let fs = MemFileSystem::new();
    let clock = Arc::new(ManualClock::new());
    let mut options = automatic(&fs);
    options.cf.blob_hole_punching = false;
    options.cf.level0_file_num_compaction_trigger = 2;
    options.db.clock = clock.clone();
    let db = Db::open(DIR, &options).expect("it opens");
    let family = db.default_column_family();
    let flush = |keys: std::ops::Range<usize>| {
        clock.advance(Duration::from_millis(1));
        keys.for_each(|n| db.put(&key(n), &[7; 9000]).expect("the disk is well"));
        db.flush().expect("the disk is well");
    };
    let compact = || {
        db.compact_range(&Default::default(), &family, None, None)
            .expect("the disk is well");
    };
    let moved = || db.statistics().get(Ticker::BlobDbGcNumKeysRelocated);
    let collected = || db.statistics().get(Ticker::BlobDbGcNumFiles);
    flush(0..10);
    compact();
    flush(0..6);
    compact();
    // Six of ten are dead, and somebody may flush the next moment.
    SystemClock.sleep(Duration::from_millis(300));
    assert_eq!((moved(), collected()), (0, 0));
    // The compaction of two flushes meets what lives.
    flush(9..12);
    flush(9..12);
    until(|| moved() == 3);
    assert_eq!(collected(), 0);
    // Nine of ten of the next file, and then nothing more is flushed.
    flush(30..40);
    compact();
    flush(30..39);
    compact();
    SystemClock.sleep(Duration::from_millis(300));
    assert_eq!((moved(), collected()), (3, 0));
    clock.advance(Duration::from_secs(2));
    until(|| collected() == 1);
    db.wait_for_background_work().expect("the disk is well");
    assert_eq!(moved(), 4);
    assert_exact(&db, &family);
}

#[test]
fn who_waits_for_all_work_waits_until_files_are_deleted() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let mut options = automatic(&fs);
    let passed = gate.clone();
    let is_held = Arc::new(AtomicBool::new(false));
    let held = is_held.clone();
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, path| {
        let is_blob = path.extension().is_some_and(|e| e == "blob");
        if op == Op::Remove && is_blob && held.swap(false, Ordering::AcqRel) {
            passed.pass();
        }
    }));
    let db = Arc::new(Db::open(DIR, &options).expect("it opens"));
    db.put(&key(1), &[7; 9000]).expect("the disk is well");
    db.flush().expect("the disk is well");
    is_held.store(true, Ordering::Release);
    let theirs = db.clone();
    let compaction = on_thread(move || {
        theirs.put(&key(1), &[8; 9000])?;
        theirs.flush()?;
        theirs.compact_range(
            &Default::default(),
            &theirs.default_column_family(),
            None,
            None,
        )
    });
    gate.wait_for(1);
    let theirs = db.clone();
    let waiter = on_thread(move || theirs.wait_for_background_work());
    SystemClock.sleep(Duration::from_millis(200));
    assert!(waiter.try_recv().is_err(), "a file is being deleted");
    gate.open();
    ends(&compaction).expect("the disk is well");
    ends(&waiter).expect("the disk is well");
    assert_no_strays(&fs, &db);
}

/// Bytes that blob files take of the disk, for each byte of the values that a reader sees.
fn disk_for_what_is_seen(fs: &MemFileSystem, db: &Db) -> f64 {
    let files = db.live_blob_files();
    let allocated = |number| {
        let path = filename::blob_path(Path::new(DIR), number);
        fs.metadata(&path).expect("it is listed").allocated
    };
    let disk: u64 = files.iter().map(|f| allocated(f.number)).sum();
    let seen = scan(db, &db.default_column_family());
    let seen: usize = seen.iter().map(|(_, value)| value.len()).sum();
    disk as f64 / seen as f64
}

/// Values die by tombstones and by newer values, and nobody compacts by hand. What level 0 hides, up to four memtables, is
/// more than half of what lives.
#[test]
fn what_nobody_sees_gives_its_space_back_without_being_asked() {
    for is_log in [true, false] {
        let fs = MemFileSystem::new();
        let mut options = automatic(&fs);
        options.cf.write_buffer_size = 512 << 10;
        let db = Db::open(DIR, &options).expect("it opens");
        let mut rng = Rng::new(8);
        let value = |rng: &mut Rng| rng.bytes(9000);
        for n in 0..400 {
            db.put(&key(n), &value(&mut rng)).expect("there is room");
        }
        for n in 400..4000 {
            let at = if is_log { n } else { rng.below(400) as usize };
            db.put(&key(at), &value(&mut rng)).expect("there is room");
            if is_log {
                db.delete(&key(n - 400)).expect("there is room");
            }
        }
        db.flush().expect("there is room");
        db.wait_for_background_work().expect("there is room");
        // Holes wait while a look holds a version from before.
        until(|| db.jobs().is_empty());
        let amp = disk_for_what_is_seen(&fs, &db);
        assert!(amp < 2.0, "log: {is_log}, {amp}");
        assert_exact(&db, &db.default_column_family());
    }
}
