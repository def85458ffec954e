//! Garbage in blob files is to be collected, and cannot be: the disk is all but full, or files are damaged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind};
use orogen_engine::events::{BlobCollectionInfo, EventListener, StallCondition, StallInfo};
use orogen_engine::{Db, Options, filename};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{
    Clock, Fault, FaultFileSystem, FileSystem, ManualClock, MemFileSystem, OpKind, SystemClock,
};

use orogen_testkit::Rng;

use crate::blobs::{
    Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, separated,
};
use crate::steer::{HookFileSystem, settle, until};
use crate::support::DIR;

/// When errors of the background were heard, whether writers were slowed, and how many steps of collections were done.
#[derive(Default)]
struct Errors(Mutex<Vec<u64>>, AtomicBool, AtomicUsize);

impl EventListener for Errors {
    fn on_background_error(&self, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        self.0.lock().push(SystemClock.now_micros());
    }

    fn on_blob_collection_completed(&self, _: &BlobCollectionInfo) {
        self.2.fetch_add(1, Ordering::SeqCst);
    }

    fn on_stall_conditions_changed(&self, info: &StallInfo) {
        let slows = info.condition == StallCondition::Delayed;
        self.1.fetch_or(slows, Ordering::SeqCst);
    }
}

impl Errors {
    fn heard(&self) -> usize {
        self.0.lock().len()
    }
}

struct Garbage {
    fs: FaultFileSystem,
    errors: Arc<Errors>,
    options: Options,
    db: Db,
    map: Map,
}

/// Two of three values are written anew, which is more garbage than is left alone once compactions are on.
fn garbage(set: impl FnOnce(&mut Options)) -> Garbage {
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(below.clone());
    let errors = Arc::<Errors>::default();
    let mut options = separated(&below);
    options.db.fs = Arc::new(fs.clone());
    options.db.listeners = vec![errors.clone()];
    options.db.bgerror_resume_retry_interval = 160_000;
    options.cf.disable_auto_compactions = true;
    options.cf.blob_file_discardable_ratio = 0.3;
    options.cf.min_gc_batch_size = 0;
    set(&mut options);
    let db = Db::open(DIR, &options).expect("the disk is well");
    let family = db.default_column_family();
    let mut map = Map::new();
    for (round, skipped) in [(0, usize::MAX), (1, 3)] {
        for n in (0..60).filter(|n| n % skipped != 2) {
            let value = vec![b'a' + round; 500];
            db.put(&key(n), &value).expect("the disk is well");
            map.insert(key(n), value);
        }
        compact_all(&db, &family);
    }
    assert!(garbage_bytes(&db) > 0);
    Garbage {
        fs,
        errors,
        options,
        db,
        map,
    }
}

fn garbage_bytes(db: &Db) -> u64 {
    let files = db.live_blob_files();
    files.iter().map(|f| f.garbage_blob_bytes).sum()
}

impl Garbage {
    fn go(&self) {
        let family = self.db.default_column_family();
        let on = [("disable_auto_compactions", "false")];
        self.db.set_options(&family, &on).expect("it is an option");
    }

    /// Tables of level 0 become fewer.
    fn compacts(&self) {
        for n in 0..20 {
            self.db
                .put(&key(n % 4), b"short")
                .expect("writes are taken");
            self.db.flush().expect("there is space for tables");
        }
        until(|| {
            let files = self.db.live_files();
            files.iter().filter(|f| f.level == 0).count() < 4
        });
    }

    /// Nothing but the want of space was in the way.
    fn collects_at_last(self) {
        self.fs.faults().clear();
        until(|| garbage_bytes(&self.db) == 0);
        let family = self.db.default_column_family();
        self.db
            .wait_for_background_work()
            .expect("nothing is put off");
        assert_holds(&self.db, &family, &self.map, None);
        assert_exact(&self.db, &family);
    }
}

fn is_tried_less_and_less(options: &[(&str, &str)]) {
    let it = garbage(|_| {});
    let family = it.db.default_column_family();
    it.db
        .set_options(&family, options)
        .expect("they are options");
    drop(family);
    let full = Fault::no_space().on(&[OpKind::Create]).path_with(".blob");
    it.fs.faults().add(full.forever());
    it.go();
    until(|| it.errors.heard() >= 6);
    // Due after 10, 20, 40, 80, and 160 ms.
    let heard = it.errors.0.lock().clone();
    assert!(heard[5] - heard[0] > 150_000, "{heard:?}");
    it.collects_at_last();
}

#[test]
fn a_collection_without_space_is_tried_again_less_and_less_often() {
    is_tried_less_and_less(&[("blob_file_discardable_ratio", "0.3")]);
}

#[test]
fn a_compaction_for_garbage_alone_is_tried_again_less_and_less_often() {
    is_tried_less_and_less(&[
        ("enable_blob_garbage_collection", "true"),
        ("blob_garbage_collection_age_cutoff", "1.0"),
        ("blob_garbage_collection_force_threshold", "0.1"),
        ("blob_file_discardable_ratio", "1.0"),
    ]);
}

/// Stands still, and goes on by a second behind the call that it counts down to.
#[derive(Default)]
struct Jumping(AtomicU64, AtomicU64);

impl Clock for Jumping {
    fn now_micros(&self) -> u64 {
        let now = self.0.load(Ordering::SeqCst);
        let less = |left: u64| left.checked_sub(1);
        let left = self
            .1
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if left == Ok(1) {
            self.0.fetch_add(1_000_000, Ordering::SeqCst);
        }
        now
    }

    fn unix_micros(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn sleep(&self, _: Duration) {}
}

/// Whoever looks for work finds it not due yet, and due when it asks how long to sleep.
#[test]
fn what_comes_to_be_due_while_it_is_looked_for_is_tried() {
    let clock = Arc::<Jumping>::default();
    let it = garbage(|options| {
        options.db.clock = clock.clone();
        options.db.max_background_jobs = 1;
        options.db.bgerror_resume_retry_interval = 1600;
    });
    // Long after the last flush, so that nobody looks again for that.
    clock.0.fetch_add(1 << 33, Ordering::SeqCst);
    let full = Fault::no_space().on(&[OpKind::Create]).path_with(".blob");
    it.fs.faults().add(full.forever());
    it.go();
    until(|| it.errors.heard() > 0);
    // More than a look has.
    for calls in 1..80 {
        settle();
        let heard = it.errors.heard();
        clock.1.store(calls, Ordering::SeqCst);
        until(|| it.errors.heard() > heard);
    }
    it.fs.faults().clear();
    clock.0.fetch_add(1_000_000, Ordering::SeqCst);
    it.collects_at_last();
}

#[test]
fn a_collection_without_space_keeps_no_compaction_waiting() {
    let it = garbage(|options| options.db.bgerror_resume_retry_interval = u64::MAX / 2);
    let full = Fault::no_space().on(&[OpKind::Create]).path_with(".blob");
    it.fs.faults().add(full.forever());
    it.go();
    until(|| it.errors.heard() > 0);
    let error = it.db.wait_for_background_work().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    it.compacts();
}

#[test]
fn a_compaction_moves_no_values_while_there_is_no_space_for_them() {
    let it = garbage(|options| options.db.max_background_gc = 0);
    let full = Fault::no_space().on(&[OpKind::Create]).path_with(".blob");
    it.fs.faults().add(full.forever());
    it.go();
    it.compacts();
    assert!(it.errors.heard() > 0);
}

#[test]
fn what_a_flush_is_to_write_is_left_free() {
    let it = garbage(|options| options.cf.write_buffer_size = 1 << 20);
    let free = |bytes| Fault::no_space().on(&[OpKind::FreeSpace]).free(bytes);
    it.fs.faults().add(free(1 << 20).forever());
    let before = it.db.live_blob_files();
    it.go();
    for _ in 0..3 {
        settle();
    }
    assert_eq!(it.db.live_blob_files(), before);
    let error = it.db.wait_for_background_work().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(it.errors.heard(), 0, "nothing has failed");
    it.collects_at_last();
}

fn is_slowed(db: &Db) -> bool {
    let family = db.default_column_family();
    let rate = db.int_property(&family, "rocksdb.actual-delayed-write-rate");
    rate.expect("there is such a property") > 0
}

/// Writers are slowed for garbage, until it is found that nothing can be done about it: soon after the open, or `later`, when
/// nothing was flushed for long.
fn slows_nobody(ending: &str, later: Duration) {
    let clock = Arc::new(ManualClock::new());
    let it = garbage(|options| {
        options.db.clock = clock.clone();
        options.cf.write_buffer_size = 4 << 10;
        options.cf.max_space_amp = 1.06;
        options.db.max_background_gc = 0;
    });
    let (fs, options) = (it.fs, it.options);
    it.db.close().expect("the disk is well");
    drop(it.db);
    let names = fs.list(Path::new(DIR)).expect("the disk is well");
    for name in names.iter().filter(|name| name.ends_with(ending)) {
        let path = Path::new(DIR).join(name);
        let mut bytes = read_file(&fs, &path).expect("the disk is well");
        let whole = bytes.len() * 2 / 3;
        bytes[100..whole].iter_mut().for_each(|b| *b ^= 1);
        write_file(&fs, &path, &bytes).expect("the disk is well");
    }
    let db = Db::open(DIR, &options).expect("the ends of files are whole");
    clock.advance(later);
    // Nobody finds that nothing can be done before they are.
    let none = Fault::no_space().on(&[OpKind::FreeSpace]).free(0);
    fs.faults().add(none.forever());
    db.set_db_options(&[("max_background_gc", "1")])
        .expect("it is an option");
    let family = db.default_column_family();
    db.set_options(&family, &[("disable_auto_compactions", "false")])
        .expect("it is an option");
    until(|| it.errors.1.load(Ordering::SeqCst));
    fs.faults().clear();
    until(|| {
        clock.advance(Duration::from_millis(1));
        !is_slowed(&db)
    });
    until(|| {
        clock.advance(Duration::from_millis(1));
        db.wait_for_background_work().is_ok()
    });
    assert!(garbage_bytes(&db) > 0, "it cannot be collected");
    until(|| !is_slowed(&db));
}

#[test]
fn garbage_that_nobody_is_to_collect_any_more_slows_no_writer() {
    let it = garbage(|options| {
        options.cf.write_buffer_size = 4 << 10;
        options.cf.max_space_amp = 1.06;
    });
    // It stays.
    let none = Fault::no_space().on(&[OpKind::FreeSpace]).free(0);
    it.fs.faults().add(none.forever());
    it.go();
    until(|| is_slowed(&it.db));
    for (max, slows) in [("0", false), ("1", true)] {
        it.db
            .set_db_options(&[("max_background_gc", max)])
            .expect("it is an option");
        assert_eq!(is_slowed(&it.db), slows, "{max}");
    }
    it.collects_at_last();
}

#[test]
fn garbage_behind_damaged_tables_slows_no_writer() {
    for later in [0, 3] {
        slows_nobody(".sst", Duration::from_secs(later));
    }
}

#[test]
fn garbage_in_damaged_blob_files_slows_no_writer() {
    for later in [0, 3] {
        slows_nobody(".blob", Duration::from_secs(later));
    }
}

/// Level 0 has as many tables as a compaction waits for, and none comes.
#[test]
fn garbage_is_collected_beside_a_damaged_table_of_level_0() {
    let it = garbage(|options| {
        options.cf.level0_file_num_compaction_trigger = 2;
        options.cf.max_compaction_bytes = 1;
        options.cf.max_space_amp = 1.06;
    });
    for round in 0..3u8 {
        for n in 0..60 {
            it.db.put(&key(n), &[round]).unwrap();
        }
        it.db.flush().unwrap();
    }
    let mut level0 = it.db.live_files();
    level0.retain(|f| f.level == 0);
    let oldest = level0.iter().map(|f| f.number).min().unwrap();
    assert_eq!(level0.len(), 3);
    let (fs, options) = (it.fs, it.options);
    it.db.close().unwrap();
    drop(it.db);
    let path = filename::table_path(Path::new(DIR), oldest);
    let mut bytes = read_file(&fs, &path).unwrap();
    let at = bytes.len() / 3;
    bytes[at] ^= 2;
    write_file(&fs, &path, &bytes).unwrap();
    let db = Db::open(DIR, &options).unwrap();
    assert!(db.verify_checksums().is_err());
    assert_eq!(db.damaged_tables().len(), 1);
    let family = db.default_column_family();
    let before = garbage_bytes(&db);
    assert!(before > 0);
    db.set_options(&family, &[("disable_auto_compactions", "false")])
        .unwrap();
    until(|| garbage_bytes(&db) == 0 && !is_slowed(&db));
    assert_eq!(db.live_files().iter().filter(|f| f.level == 0).count(), 3);
}

/// Level 0 has as many tables as a compaction waits for, and each that is tried finds no space: what it lacks is in the garbage.
/// It takes all tables that there are below, and both are tried again at the same moments.
#[test]
fn garbage_is_collected_where_compactions_of_level_0_find_no_space() {
    let clock = Arc::new(ManualClock::new());
    let is_full = Arc::new(AtomicBool::new(false));
    let full = is_full.clone();
    let fs = HookFileSystem::new(&MemFileSystem::new(), |_, _| {}).creating(move |path| {
        let is_compaction = || {
            let own = std::thread::current();
            own.name().is_some_and(|name| name.starts_with("orogen-bg"))
        };
        let is_table = path.extension().is_some_and(|e| e == "sst");
        if full.load(Ordering::SeqCst) && is_table && is_compaction() {
            return Err(Error::new(ErrorKind::NoSpace, "on purpose"));
        }
        Ok(())
    });
    let it = garbage(|options| {
        options.db.fs = Arc::new(fs);
        options.db.clock = clock.clone();
        options.db.bgerror_resume_retry_interval = 160_000;
        options.cf.level0_file_num_compaction_trigger = 4;
        options.db.max_background_gc = 0;
    });
    for _ in 0..4 {
        for n in [0, 59] {
            it.db.put(&key(n), &[b'l'; 90]).unwrap();
        }
        it.db.flush().unwrap();
    }
    let level0 = || {
        let files = it.db.live_files();
        files.iter().filter(|f| f.level == 0).count()
    };
    assert_eq!(level0(), 4);
    is_full.store(true, Ordering::SeqCst);
    it.go();
    until(|| it.errors.heard() > 0);
    it.db.set_db_options(&[("max_background_gc", "1")]).unwrap();
    assert!(garbage_bytes(&it.db) > 10_000);
    // So little time that flushes are said to come still.
    let mut passed = 0;
    until(|| {
        clock.advance(Duration::from_micros(200));
        passed += 200;
        garbage_bytes(&it.db) == 0
    });
    assert!(passed < 1_900_000, "{passed}");
    assert_eq!(level0(), 4);
    is_full.store(false, Ordering::SeqCst);
    until(|| {
        clock.advance(Duration::from_millis(1));
        level0() == 0
    });
}

#[test]
fn what_was_put_off_is_not_waited_for_once_nobody_is_to_collect() {
    let it = garbage(|_| {});
    let none = Fault::no_space().on(&[OpKind::FreeSpace]).free(0);
    it.fs.faults().add(none.forever());
    it.go();
    until(|| it.db.wait_for_background_work().is_err());
    let off = [("max_background_gc", "0")];
    it.db.set_db_options(&off).unwrap();
    it.db.wait_for_background_work().unwrap();
    it.db.set_db_options(&[("max_background_gc", "1")]).unwrap();
    it.collects_at_last();
}

#[test]
fn compactions_for_garbage_alone_that_are_put_off_are_told_to_who_waits() {
    let it = garbage(|options| {
        options.db.max_background_gc = 0;
        options.cf.blob_garbage_collection_age_cutoff = 1.0;
        options.cf.blob_garbage_collection_force_threshold = 0.2;
    });
    let full = Fault::no_space().on(&[OpKind::Create]).path_with(".blob");
    it.fs.faults().add(full.forever());
    let family = it.db.default_column_family();
    let on = [("enable_blob_garbage_collection", "true")];
    it.db.set_options(&family, &on).unwrap();
    it.go();
    for tries in 1..4 {
        until(|| it.errors.heard() > tries);
        for _ in 0..20 {
            let told = it.db.wait_for_background_work().unwrap_err();
            assert_eq!(told.kind(), ErrorKind::NoSpace);
            SystemClock.sleep(Duration::from_millis(1));
        }
    }
    it.collects_at_last();
}

#[test]
fn where_a_step_finds_no_room_a_smaller_one_is_taken() {
    let steps_with = |free: u64| {
        let it = garbage(|options| {
            options.cf.target_file_size_base = 100;
            options.cf.table.block_size = 32;
            options.cf.table.filter_bits_per_key = 0.0;
            options.cf.blob_file_size = 64 << 10;
            options.cf.write_buffer_size = 4 << 10;
        });
        let free = Fault::no_space().on(&[OpKind::FreeSpace]).free(free);
        it.fs.faults().add(free.forever());
        let tables = it.db.live_files().len();
        assert!(tables > 4, "{tables}");
        it.go();
        // Once no step fits the rest is put off.
        it.db.wait_for_background_work().ok()?;
        assert_eq!(garbage_bytes(&it.db), 0);
        Some(it.errors.2.load(Ordering::SeqCst))
    };
    let whole = steps_with(1 << 40).unwrap();
    let frees = (1..128).rev().map(|n| n << 8);
    let steps: Vec<usize> = frees.map_while(steps_with).collect();
    assert!(steps.iter().any(|n| *n > whole), "{whole}, then {steps:?}");
}

/// Leaves so many blocks of the disk.
fn leave(fs: &MemFileSystem, blocks: u64) {
    fs.set_capacity(u64::MAX);
    let free = fs.free_space(Path::new("/")).expect("it is there");
    fs.set_capacity(u64::MAX - free + (blocks << 12));
}

#[test]
fn on_a_disk_that_is_full_now_and_then_nothing_is_lost() {
    let mut refused = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(Rng::seed_or(seed));
        let fs = MemFileSystem::new();
        let mut options = separated(&fs);
        options.db.bgerror_resume_retry_interval = 160;
        options.cf.write_buffer_size = 8 << 10;
        options.cf.target_file_size_base = 4 << 10;
        options.cf.level0_file_num_compaction_trigger = 2;
        options.cf.min_gc_batch_size = 0;
        options.cf.blob_file_discardable_ratio = 0.3;
        options.cf.blob_hole_punching = rng.chance(1, 2);
        options.cf.max_space_amp = *rng.pick(&[0.0, 1.5]);
        options.db.max_background_gc = *rng.pick(&[1, 2]);
        let mut db = Db::open(DIR, &options).expect("there is space");
        let mut map = Map::new();
        for step in 0..1500 {
            if rng.chance(1, 12) {
                leave(&fs, rng.below(12));
            }
            let key = key(rng.below(60) as usize);
            let (len, is_put) = (rng.below(900) as usize, rng.chance(9, 10));
            let value = rng.bytes(len);
            let written = match is_put {
                true => db.put(&key, &value),
                false => db.delete(&key),
            };
            match written {
                Ok(()) if is_put => drop(map.insert(key, value)),
                Ok(()) => drop(map.remove(&key)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    refused += 1;
                    leave(&fs, 40);
                    until(|| db.resume().is_ok());
                }
            }
            if step % 300 == 299 {
                leave(&fs, 400);
                until(|| db.resume().is_ok() && db.wait_for_background_work().is_ok());
                let family = db.default_column_family();
                assert_holds(&db, &family, &map, None);
                assert_exact(&db, &family);
                assert_no_strays(&fs, &db);
                drop(family);
                drop(db);
                db = Db::open(DIR, &options).expect("there is space");
                let family = db.default_column_family();
                assert_holds(&db, &family, &map, None);
            }
        }
    }
    assert!(refused > 50, "{refused}");
}
