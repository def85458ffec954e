//! Several threads that collect garbage in blob files at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_engine::{ColumnFamily, Db, FlushOptions, JobInfo, JobKind, Options};
use orogen_env::MemFileSystem;

use crate::blob_collection::{Holds, garbage, quiet};
use crate::blobs::{Map, assert_exact, assert_holds, assert_no_strays, compact_all, key, w};
use crate::steer::{Gate, until};
use crate::support::DIR;

/// A family with garbage, and what holds its collections.
struct Held {
    family: ColumnFamily,
    gate: Arc<Gate>,
    map: Map,
}

/// A test that fails must not wait for what it holds.
impl Drop for Held {
    fn drop(&mut self) {
        self.gate.open();
    }
}

impl Held {
    /// Nothing is done for it yet.
    fn new(db: &Db, options: &Options, name: &str) -> Self {
        let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
        let mut cf = options.cf.clone();
        let holds = Holds::new(gate.clone(), armed.clone());
        cf.compaction_filter_factory = Some(Arc::new(holds));
        let family = db.create_column_family(name, cf).expect("it is new");
        let mut map = Map::new();
        for round in 0..2 {
            for n in (0..60).step_by(1 + round) {
                let v = vec![b'a' + round as u8; 500];
                db.put_opt(&w(), &family, &key(n), &v).expect("writes");
                map.insert(key(n), v);
            }
            db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
                .expect("flushes");
            compact_all(db, &family);
        }
        armed.store(true, Ordering::Relaxed);
        let held = Self { family, gate, map };
        assert!(held.garbage(db) > 0);
        held
    }

    /// Its garbage is collected from here on.
    fn begin(&self, db: &Db) {
        let changes = [
            ("blob_file_discardable_ratio", "0.2"),
            ("min_gc_batch_size", "0"),
            ("disable_auto_compactions", "false"),
        ];
        db.set_options(&self.family, &changes)
            .expect("they may change");
    }

    fn garbage(&self, db: &Db) -> u64 {
        let mut files = db.live_blob_files();
        files.retain(|f| f.column_family == self.family.name());
        garbage(&files)
    }

    fn is_collected(&self, db: &Db) -> bool {
        let is_its = |job: &JobInfo| {
            job.kind == JobKind::BlobCollection && job.column_family == self.family.name()
        };
        db.jobs().iter().any(is_its)
    }
}

fn three_families(fs: &MemFileSystem, threads: usize) -> (Db, [Held; 3]) {
    let mut options = quiet(fs);
    options.db.max_background_gc = threads;
    // What waits at a gate is no compaction.
    options.db.max_background_jobs = 2;
    let db = Db::open(DIR, &options).expect("it opens");
    let families = ["f", "g", "h"].map(|name| Held::new(&db, &options, name));
    (db, families)
}

#[test]
fn two_threads_collect_at_once_and_one_ends_before_the_other() {
    let fs = MemFileSystem::new();
    let (db, [f, g, h]) = three_families(&fs, 2);
    f.begin(&db);
    f.gate.wait_for(1);
    g.begin(&db);
    g.gate.wait_for(1);
    assert!(
        f.is_collected(&db) && g.is_collected(&db),
        "{:?}",
        db.jobs()
    );
    // There is no third.
    h.begin(&db);
    assert!(!h.is_collected(&db), "{:?}", db.jobs());
    g.gate.open();
    until(|| g.garbage(&db) == 0);
    assert!(f.is_collected(&db) && f.garbage(&db) > 0);
    // The place that is free is taken, while the other is held still.
    h.gate.wait_for(1);
    assert!(
        f.is_collected(&db) && h.is_collected(&db),
        "{:?}",
        db.jobs()
    );
    f.gate.open();
    until(|| f.garbage(&db) == 0);
    assert!(h.garbage(&db) > 0);
    h.gate.open();
    db.wait_for_background_work().unwrap();
    for held in [&f, &g, &h] {
        assert_eq!(held.garbage(&db), 0);
        assert_holds(&db, &held.family, &held.map, None);
        assert_exact(&db, &held.family);
    }
    assert_no_strays(&fs, &db);
}

#[test]
fn another_thread_collects_once_there_may_be_more() {
    let fs = MemFileSystem::new();
    let (db, [f, g, _]) = three_families(&fs, 1);
    f.begin(&db);
    f.gate.wait_for(1);
    g.begin(&db);
    assert!(f.is_collected(&db) && !g.is_collected(&db));
    db.set_db_options(&[("max_background_gc", "2")]).unwrap();
    g.gate.wait_for(1);
    assert!(
        f.is_collected(&db) && g.is_collected(&db),
        "{:?}",
        db.jobs()
    );
    // Neither is waited for by who closes.
    g.gate.open();
    f.gate.open();
    db.close().unwrap();
    assert_no_strays_after_open(&fs);
}

/// What two collections that were cut short have left is taken away by the next open.
fn assert_no_strays_after_open(fs: &MemFileSystem) {
    let mut options = quiet(fs);
    options.cf.disable_auto_compactions = true;
    for name in ["f", "g", "h"] {
        options.families.insert(name.to_owned(), options.cf.clone());
    }
    let db = Db::open(DIR, &options).expect("it opens");
    assert_no_strays(fs, &db);
}
