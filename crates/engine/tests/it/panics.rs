//! Code of the caller's panics, or closes the database, where others wait for its thread: nobody waits for ever, and
//! nothing is lost.

use std::cmp;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use orogen_base::metrics::Ticker;
use orogen_base::{Comparator, Error, ErrorKind, Result, UserComparator};
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::events::{ErrorRecoveryInfo, EventListener};

use orogen_engine::plugin::merge_operator::MergeOperator;
use orogen_engine::{Db, Options, WriteOptions};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind};

use crate::steer::{Told, ends, on_thread, settle, until};
use crate::support::{DIR, scan, small};

/// Panics while it is armed.
#[derive(Clone, Default)]
struct Fuse(Arc<AtomicBool>);

impl Fuse {
    fn arm(&self, armed: bool) {
        self.0.store(armed, Ordering::SeqCst);
    }

    fn check(&self) {
        assert!(!self.0.load(Ordering::SeqCst), "on purpose");
    }
}

struct LastMerge(Fuse);

impl MergeOperator for LastMerge {
    fn name(&self) -> &'static str {
        "last"
    }

    fn full_merge(&self, _: &[u8], _: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        self.0.check();
        operands.last().map(|o| o.to_vec())
    }
}

#[test]
fn a_panic_beside_the_replay_of_logs_fails_the_open_and_loses_nothing() {
    let (fs, fuse) = (MemFileSystem::new(), Fuse::default());
    let mut options = small(&fs);
    options.cf.merge_operator = Some(Arc::new(LastMerge(fuse.clone())));
    options.cf.write_buffer_size = 1 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    db.put(b"k", b"1").unwrap();
    db.merge_opt(&WriteOptions::default(), &family, b"k", b"2")
        .unwrap();
    for n in 0..60u8 {
        db.put(&[b'n', n], &[n; 1000]).unwrap();
    }
    let killed = fs.fork();
    options.db.fs = Arc::new(killed);
    options.cf.write_buffer_size = 16 << 10;
    fuse.arm(true);
    let opened = catch_unwind(AssertUnwindSafe(|| Db::open(DIR, &options).map(drop)));
    assert!(!matches!(opened, Ok(Ok(()))));
    fuse.arm(false);
    let again = Db::open(DIR, &options).unwrap();
    let theirs = again.default_column_family();
    assert_eq!(scan(&again, &theirs), scan(&db, &family));
}

/// Panics at keys of one byte.
struct LongKeys;

impl Comparator for LongKeys {
    fn name(&self) -> &'static str {
        "long_keys"
    }

    fn compare(&self, a: &[u8], b: &[u8]) -> cmp::Ordering {
        assert!(a.len() != 1 && b.len() != 1, "on purpose");
        a.cmp(b)
    }
}

/// Writing and closing end, and the first tells that nothing is taken any more.
fn takes_nothing_and_closes(db: Arc<Db>) {
    let theirs = db.clone();
    let written = ends(&on_thread(move || theirs.put(b"other", b"1")));
    let refused = written.expect_err("nothing is taken");
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    let _: Result<()> = ends(&on_thread(move || db.close()));
}

#[test]
fn a_panic_in_an_insert_is_an_error_and_holds_up_nobody() {
    for concurrent in [true, false] {
        let mut options = small(&MemFileSystem::new());
        options.cf.comparator = UserComparator::custom(Arc::new(LongKeys));
        options.db.allow_concurrent_memtable_write = concurrent;
        let db = Arc::new(Db::open(DIR, &options).unwrap());
        db.put(b"good", b"1").unwrap();
        assert_eq!(db.put(b"x", b"1").unwrap_err().kind(), ErrorKind::Aborted);
        takes_nothing_and_closes(db);
    }
}

#[test]
fn a_panic_where_memtables_are_sealed_holds_up_nobody() {
    for by_hand in [true, false] {
        let fuse = Fuse::default();
        let mut options = small(&MemFileSystem::new());
        let (theirs, make) = (fuse.clone(), options.cf.memtable_factory.clone());
        options.cf.memtable_factory = Arc::new(move |request| {
            theirs.check();
            make(request)
        });
        let db = Arc::new(Db::open(DIR, &options).unwrap());
        db.put(b"a", b"1").unwrap();
        fuse.arm(true);
        let went = catch_unwind(AssertUnwindSafe(|| match by_hand {
            true => db.flush(),
            false => (0..64u8).try_for_each(|n| db.put(&[b'n', n], &[n; 1000])),
        }));
        assert!(!matches!(went, Ok(Ok(()))));
        takes_nothing_and_closes(db);
    }
}

/// Closes the database from within an error, or writes it out behind a resume.
#[derive(Default)]
struct Within {
    db: OnceLock<Arc<Db>>,
    closes_on_error: AtomicBool,
    flushes_behind_resume: AtomicBool,
    heard: AtomicUsize,
}

impl EventListener for Within {
    fn on_background_error(&self, _: &Error) {
        self.heard.fetch_add(1, Ordering::SeqCst);
        if let Some(db) = self.db.get()
            && self.closes_on_error.load(Ordering::SeqCst)
        {
            db.close().expect("it closes");
        }
    }

    fn on_error_recovery_completed(&self, _: &ErrorRecoveryInfo) {
        if let Some(db) = self.db.get()
            && self.flushes_behind_resume.load(Ordering::SeqCst)
        {
            db.put(b"behind", b"1").expect("writes are taken");
            db.flush().expect("there is space");
        }
    }
}

#[test]
fn a_listener_that_closes_when_it_hears_of_a_failed_insert_is_not_waited_for() {
    let within = Arc::new(Within::default());
    let mut options = small(&MemFileSystem::new());
    options.cf.comparator = UserComparator::custom(Arc::new(LongKeys));
    options.db.listeners = vec![within.clone()];
    let db = Arc::new(Db::open(DIR, &options).unwrap());
    assert!(within.db.set(db.clone()).is_ok());
    within.closes_on_error.store(true, Ordering::SeqCst);
    db.put(b"good", b"1").unwrap();
    let theirs = db;
    let written = ends(&on_thread(move || theirs.put(b"x", b"1")));
    assert_eq!(written.unwrap_err().kind(), ErrorKind::Aborted);
    assert_eq!(within.heard.load(Ordering::SeqCst), 1);
}

/// A database that refuses writes because no table could be written.
fn out_of_space(options: &Options) -> (FaultFileSystem, Arc<Db>) {
    let fs = FaultFileSystem::new(options.db.fs.clone());
    let mut options = options.clone();
    options.db.fs = Arc::new(fs.clone());
    let full = Fault::no_space()
        .on(&[OpKind::Append])
        .path_with(".sst")
        .forever();
    fs.faults().add(full);
    let db = Arc::new(Db::open(DIR, &options).expect("it opens"));
    db.put(b"a", b"1").expect("logs have space");
    let refused = db.flush().expect_err("tables have none");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    (fs, db)
}

#[test]
fn a_listener_that_closes_while_it_resumes_is_not_waited_for() {
    let holder = Arc::new(OnceLock::<Arc<Db>>::new());
    let closes = Arc::new(AtomicBool::new(false));
    let mut options = small(&MemFileSystem::new());
    options.db.bgerror_resume_retry_interval = 16_000;
    let (db_of, armed) = (holder.clone(), closes.clone());
    options.db.listeners = vec![Arc::new(Told {
        flush_begin: Some(Box::new(move |_| {
            let is_users = std::thread::current().name() == Some("user");
            if let Some(db) = db_of.get()
                && is_users
                && armed.swap(false, Ordering::SeqCst)
            {
                // Threads of the background try, too, and find that this one does.
                let tries = || {
                    let statistics = db.statistics();
                    statistics.get(Ticker::ErrorHandlerAutoresumeRetryTotalCount)
                };
                let before = tries();
                until(|| tries() > before);
                settle();
                db.close().expect("it closes");
            }
        })),
        ..Told::default()
    })];
    let (_, db) = out_of_space(&options);
    assert!(holder.set(db.clone()).is_ok());
    closes.store(true, Ordering::SeqCst);
    ends(&on_thread(move || {
        let resume = move || drop(db.resume());
        drop(orogen_env::threads::spawn("user", resume));
    }));
    until(|| !closes.load(Ordering::SeqCst));
}

#[test]
fn a_listener_flushes_behind_a_resume_while_others_want_to_resume() {
    let within = Arc::new(Within::default());
    let cures = Arc::new(OnceLock::<FaultFileSystem>::new());
    let mut options = small(&MemFileSystem::new());
    options.db.bgerror_resume_retry_interval = 16_000;
    options.db.max_background_jobs = 1;
    let (holder, disk) = (within.clone(), cures.clone());
    options.db.listeners = vec![
        within.clone(),
        Arc::new(Told {
            flush_begin: Some(Box::new(move |_| {
                let is_users = std::thread::current().name() == Some("user");
                if let (Some(db), Some(disk)) = (holder.db.get(), disk.get())
                    && is_users
                {
                    let statistics = db.statistics();
                    let tries = || statistics.get(Ticker::ErrorHandlerAutoresumeRetryTotalCount);
                    let before = tries();
                    until(|| tries() > before);
                    settle();
                    disk.faults().clear();
                }
            })),
            ..Told::default()
        }),
    ];
    let (fs, db) = out_of_space(&options);
    assert!(within.db.set(db.clone()).is_ok() && cures.set(fs).is_ok());
    within.flushes_behind_resume.store(true, Ordering::SeqCst);
    let theirs = db.clone();
    ends(&on_thread(move || {
        let resume = move || theirs.resume().expect("there is space again");
        drop(orogen_env::threads::spawn("user", resume));
    }));
    until(|| db.get(b"behind").is_ok_and(|v| v.is_some()));
}

#[test]
fn a_flush_that_panics_on_the_thread_that_resumes_is_done_by_the_next_one() {
    let fuse = Fuse::default();
    let theirs = fuse.clone();
    let mut options = small(&MemFileSystem::new());
    options.db.max_bgerror_resume_count = 0;
    options.db.listeners = vec![Arc::new(Told {
        flush_begin: Some(Box::new(move |_| theirs.check())),
        ..Told::default()
    })];
    let (fs, db) = out_of_space(&options);
    fs.faults().clear();
    fuse.arm(true);
    assert!(catch_unwind(AssertUnwindSafe(|| db.resume())).is_err());
    fuse.arm(false);
    db.resume().unwrap();
    let flushing = db.clone();
    ends(&on_thread(move || flushing.flush())).unwrap();
    assert_eq!(db.live_files().len(), 1);
}

#[test]
fn a_backup_whose_report_panics_keeps_no_logs() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    let backups = BackupOptions {
        fs: Arc::new(fs.clone()),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open("/backups", backups).unwrap();
    // Once with nothing copied, once in the middle of a log.
    for calls in [0, 1] {
        let mut left = calls;
        let body = || {
            backups.create_backup_with(&db, &mut |_, _| {
                assert!(left > 0, "on purpose");
                left -= 1;
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(body)).is_err());
    }
    for n in 0..5u8 {
        db.put(&[n], b"1").unwrap();
        db.flush().unwrap();
    }
    until(|| {
        let names = fs.list(Path::new(DIR)).expect("it is there");
        names.iter().filter(|n| n.ends_with(".log")).count() <= 2
    });
    let made = backups.create_backup(&db).unwrap();
    backups.verify(made.id).unwrap();
}
