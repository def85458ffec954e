//! Syncs of directories that fail and lose the names that they should have saved: what is acknowledged later does not rest on them.

use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::{ErrorKind, Result};
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::{CompactRangeOptions, Db, FlushOptions, Options, WriteOptions};
use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind, PowerCut};

use crate::steer::{Gate, hold_flushes_of, until};
use crate::support::{DIR, scan, small};

const BACKUPS: &str = "/backups";

/// A write that is acknowledged for good.
fn put_synced(db: &Db, key: &[u8]) -> Result<()> {
    let options = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    db.put_opt(&options, &db.default_column_family(), key, b"v")
}

struct World {
    below: MemFileSystem,
    faulty: FaultFileSystem,
    options: Options,
}

impl World {
    fn new() -> Self {
        Self::over(MemFileSystem::new())
    }

    fn over(below: MemFileSystem) -> Self {
        let faulty = FaultFileSystem::over_memory(below.clone());
        faulty.faults().lose_names();
        let mut options = small(&below);
        options.db.fs = Arc::new(faulty.clone());
        Self {
            below,
            faulty,
            options,
        }
    }

    /// Has the `nth` sync of a directory fail.
    fn fail(&self, nth: u64) {
        let fault = Fault::io().on(&[OpKind::SyncDir]).nth(nth);
        self.faulty.faults().add(fault);
    }

    /// True if it has.
    fn has_failed(&self) -> bool {
        let failed = self.faulty.faults().injected() > 0;
        self.faulty.faults().clear();
        failed
    }

    fn backups(&self) -> Result<BackupEngine> {
        let fs = Arc::new(self.faulty.clone());
        let options = BackupOptions {
            fs,
            ..BackupOptions::default()
        };
        BackupEngine::open(BACKUPS, options)
    }

    /// A synced write is there after a power loss, beside `before`.
    fn check(&self, db: &Db, before: &[&[u8]]) {
        put_synced(db, b"probe").expect("writes");
        let image = self.below.crash(PowerCut::DropUnsynced);
        let db = Db::open(DIR, &small(&image)).expect("opens after a power loss");
        let found = scan(&db, &db.default_column_family());
        let keys: Vec<&[u8]> = found.iter().map(|(k, _)| &**k).collect();
        assert_eq!(keys, [before, &[b"probe"]].concat());
    }
}

#[test]
fn a_database_is_made_again_without_what_a_failed_open_has_left() {
    let mut failures = 0;
    for nth in 1.. {
        let world = World::new();
        world.fail(nth);
        let opened = Db::open(DIR, &world.options);
        if !world.has_failed() {
            break;
        }
        failures += 1;
        let db = opened.or_else(|_| Db::open(DIR, &world.options)).unwrap();
        world.check(&db, &[]);
    }
    assert!(failures > 3, "{failures}");
}

#[test]
fn a_database_is_opened_again_without_what_a_failed_open_has_left() {
    let filled = MemFileSystem::new();
    let db = Db::open(DIR, &small(&filled)).unwrap();
    db.put(b"in a table", b"v").unwrap();
    db.flush().unwrap();
    put_synced(&db, b"logged").unwrap();
    let mut failures = 0;
    for is_lazy in [false, true] {
        for nth in 1.. {
            let mut world = World::over(filled.crash(PowerCut::DropUnsynced));
            world.options.db.avoid_flush_during_recovery = is_lazy;
            world.fail(nth);
            let opened = Db::open(DIR, &world.options);
            if !world.has_failed() {
                break;
            }
            failures += 1;
            let db = opened.or_else(|_| Db::open(DIR, &world.options)).unwrap();
            world.check(&db, &[b"in a table", b"logged"]);
        }
    }
    assert!(failures > 6, "{failures}");
}

#[test]
fn no_write_is_taken_once_a_name_may_be_lost() {
    let world = World::new();
    let db = Db::open(DIR, &world.options).unwrap();
    let family = db.default_column_family();
    for value in [b"v", b"w"] {
        db.put(b"k", value).unwrap();
        db.flush().unwrap();
    }
    world.fail(1);
    // The names of its tables only: but the next synced write could take a log's for saved by the sync after this one.
    let compaction = db.compact_range(&CompactRangeOptions::default(), &family, None, None);
    let told = compaction.unwrap_err().kind();
    assert!(matches!(told, ErrorKind::Io | ErrorKind::ReadOnly));
    assert!(world.has_failed());
    let refused = put_synced(&db, b"later").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    drop(db);
    let db = Db::open(DIR, &world.options).unwrap();
    world.check(&db, &[b"k"]);
}

#[test]
fn writers_are_told_of_a_name_that_a_job_of_a_dropped_family_has_lost() {
    let mut world = World::new();
    let gate = Gate::new();
    world.options.db.listeners = vec![hold_flushes_of("other", &gate)];
    let db = Db::open(DIR, &world.options).unwrap();
    let other = db
        .create_column_family("other", world.options.cf.clone())
        .unwrap();
    db.put_opt(&WriteOptions::default(), &other, b"k", b"v")
        .unwrap();
    db.flush_opt(&FlushOptions { wait: false }, std::slice::from_ref(&other))
        .unwrap();
    gate.wait_for(1);
    db.drop_column_family(&other).unwrap();
    world.fail(1);
    gate.open();
    until(|| db.statistics().get(Ticker::ErrorHandlerBgErrorCount) == 1);
    let refused = put_synced(&db, b"later").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_backup_that_was_deleted_stays_so_while_the_next_one_is_made() {
    let world = World::new();
    let db = Db::open(DIR, &world.options).unwrap();
    db.put(b"k", b"v").unwrap();
    let backups = world.backups().unwrap();
    backups.create_backup(&db).unwrap();
    backups.create_backup(&db).unwrap();
    world.fail(1);
    backups.delete(2).unwrap_err();
    assert!(world.has_failed());
    db.put(b"k2", b"v").unwrap();
    db.flush().unwrap();
    // It gets the same number, and power is lost when all but its list is there.
    let faults = world.faulty.faults();
    let made = backups.create_backup_with(&db, &mut |done, total| {
        if done == total {
            for kind in [OpKind::Sync, OpKind::Remove] {
                faults.add(Fault::io().on(&[kind]).path_with("/meta/").forever());
            }
        }
    });
    made.unwrap_err();
    let after = World::over(world.below.crash(PowerCut::DropUnsynced));
    let backups = after.backups().unwrap();
    assert!(backups.damaged().unwrap().is_empty());
    backups.verify(1).unwrap();
}

#[test]
fn backups_are_whole_after_a_power_loss() {
    let mut failures = 0;
    for nth in 1.. {
        let world = World::new();
        let db = Db::open(DIR, &world.options).unwrap();
        db.put(b"k", b"v").unwrap();
        db.flush().unwrap();
        world.fail(nth);
        let make = || world.backups()?.create_backup(&db);
        // Any of these may fail.
        let made = [make(), make()].iter().filter(|made| made.is_ok()).count();
        let _ = world.backups().and_then(|backups| backups.purge_old(1));
        if !world.has_failed() {
            break;
        }
        failures += 1;
        make().unwrap();
        let after = World::over(world.below.crash(PowerCut::DropUnsynced));
        let backups = after.backups().unwrap();
        assert!(backups.damaged().unwrap().is_empty());
        let listed = backups.list().unwrap();
        assert!(listed.len() > made.min(1), "{nth}: {listed:?}");
        for backup in listed {
            backups.verify(backup.id).unwrap();
        }
    }
    assert!(failures > 10, "{failures}");
}
