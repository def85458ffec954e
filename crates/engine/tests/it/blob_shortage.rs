//! Garbage in blob files is to be collected, and cannot be: the disk is all but full, or files are damaged.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind};
use orogen_engine::events::{EventListener, StallCondition, StallInfo};
use orogen_engine::{Db, Options};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Clock, Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, SystemClock};

use crate::blobs::{Map, assert_exact, assert_holds, compact_all, key, separated};
use crate::steer::{settle, until};
use crate::support::DIR;

/// When errors of the background were heard, and whether writers were slowed.
#[derive(Default)]
struct Errors(Mutex<Vec<u64>>, AtomicBool);

impl EventListener for Errors {
    fn on_background_error(&self, error: &Error) {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        self.0.lock().push(SystemClock.now_micros());
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

#[test]
fn a_collection_without_space_is_tried_again_less_and_less_often() {
    let it = garbage(|_| {});
    let full = Fault::no_space().on(&[OpKind::Create]).path_with(".blob");
    it.fs.faults().add(full.forever());
    it.go();
    until(|| it.errors.heard() >= 6);
    // Due after 10, 20, 40, 80, and 160 ms.
    let heard = it.errors.0.lock().clone();
    assert!(heard[5] - heard[0] > 250_000, "{heard:?}");
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

/// Writers are slowed for garbage, until it is found that nothing can be done about it.
fn slows_nobody(ending: &str) {
    let it = garbage(|options| {
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
    db.set_db_options(&[("max_background_gc", "1")])
        .expect("it is an option");
    let family = db.default_column_family();
    db.set_options(&family, &[("disable_auto_compactions", "false")])
        .expect("it is an option");
    db.wait_for_background_work().expect("it goes on");
    assert!(garbage_bytes(&db) > 0, "it cannot be collected");
    until(|| !is_slowed(&db));
    assert!(it.errors.1.load(Ordering::SeqCst), "they were before");
}

#[test]
fn garbage_behind_damaged_tables_slows_no_writer() {
    slows_nobody(".sst");
}

#[test]
fn garbage_in_damaged_blob_files_slows_no_writer() {
    slows_nobody(".blob");
}
