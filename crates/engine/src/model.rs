//! The database under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! Whole databases run here, on files in memory: commit pipeline, publication of super versions,
//! snapshots, background threads, the end. `cargo x model` runs it. In each model
//!
//! 1. a snapshot shows the batches up to some moment, and each whole;
//! 2. later snapshots of one thread never show an earlier moment;
//! 3. what a thread has written it sees, unless something newer is there;
//! 4. nothing waits for ever.

use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::sync::{Mistake, explore, must_find, thread};
use orogen_env::{Fault, FaultFileSystem, ManualClock, MemFileSystem, OpKind};

use crate::{
    BlobFileCheck, BottommostLevelCompaction, CompactRangeOptions, Db, FlushOptions, Options,
    ReadOptions, UserKeyRange, WriteBatch, WriteOptions,
};

fn options() -> Options {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.clock = Arc::new(ManualClock::new());
    options.db.info_log = false;
    options.db.create_if_missing = true;
    options.db.max_background_jobs = 1;
    options.cf.write_buffer_size = 1 << 20;
    options
}

fn open(options: &Options) -> Arc<Db> {
    Arc::new(Db::open("/db", options).unwrap())
}

fn start(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    let builder = thread::Builder::new().name("model".to_owned());
    builder.spawn(body).unwrap()
}

fn number(db: &Db, options: &ReadOptions, key: &[u8]) -> u64 {
    let family = db.default_column_family();
    let found = db.get_opt(options, &family, key).unwrap();
    found.map_or(0, |v| u64::from_le_bytes(v.as_ref().try_into().unwrap()))
}

/// Sets two keys of writer `w` to one number.
fn write(db: &Db, w: u8, n: u64, sync: bool) {
    let mut batch = WriteBatch::new();
    batch.put(0, &[b'a', w], &n.to_le_bytes());
    batch.put(0, &[b'z', w], &n.to_le_bytes());
    let options = WriteOptions {
        sync,
        ..WriteOptions::default()
    };
    db.write_opt(&options, &mut batch).unwrap();
}

/// What a new snapshot shows of two writers: rule 1.
fn look(db: &Db) -> [u64; 2] {
    let options = ReadOptions {
        snapshot: Some(db.snapshot()),
        ..ReadOptions::default()
    };
    [1, 2].map(|w| {
        let z = number(db, &options, &[b'z', w]);
        let a = number(db, &options, &[b'a', w]);
        assert_eq!(a, z, "a batch of writer {w} is seen in part");
        a
    })
}

/// Two that write, one that reads.
fn commit() {
    let db = open(&options());
    let writers = [1, 2].map(|w| {
        let db = db.clone();
        start(move || {
            for n in 1..=2 {
                write(&db, w, n, n == 2 && w == 1);
                assert!(look(&db)[usize::from(w) - 1] >= n, "own write is not seen");
            }
        })
    });
    let mut before = [0; 2];
    for _ in 0..3 {
        let now = look(&db);
        assert!(now[0] >= before[0] && now[1] >= before[1], "time goes back");
        before = now;
    }
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(look(&db), [2, 2]);
    db.close().unwrap();
}

/// Three that write, so that there are groups; one of them without a log.
fn groups() {
    let db = open(&options());
    let writers = [1, 2, 3].map(|w| {
        let db = db.clone();
        start(move || {
            let mut batch = WriteBatch::new();
            for key in 0..24u8 {
                batch.put(0, &[w, key], &[key]);
            }
            let options = WriteOptions {
                disable_wal: w == 3,
                ..WriteOptions::default()
            };
            db.write_opt(&options, &mut batch).unwrap();
            assert!(db.get(&[w, 23]).unwrap().is_some());
        })
    });
    for _ in 0..4 {
        let options = ReadOptions {
            snapshot: Some(db.snapshot()),
            ..ReadOptions::default()
        };
        let family = db.default_column_family();
        for w in [1, 2, 3] {
            let has = |key| db.get_opt(&options, &family, &[w, key]).unwrap().is_some();
            assert_eq!(has(23), has(0), "batch {w} is seen in part");
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .unwrap();
    let mut found = 0;
    iter.seek_to_first();
    while iter.valid() {
        found += 1;
        iter.next();
    }
    assert_eq!(found, 72);
    drop(iter);
    assert_eq!(db.latest_sequence_number(), 72);
    db.close().unwrap();
}

/// A key is written over while memtables are sealed, flushed and compacted: a reader finds it in
/// every moment, and never an older value than before.
fn places() {
    let db = open(&options());
    write(&db, 1, 1, false);
    let theirs = db.clone();
    let mover = start(move || {
        let family = theirs.default_column_family();
        theirs.flush().unwrap();
        write(&theirs, 1, 2, false);
        theirs
            .flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
            .unwrap();
        let all = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        theirs.compact_range(&all, &family, None, None).unwrap();
        write(&theirs, 1, 3, false);
    });
    let mut before = 1;
    for _ in 0..4 {
        let now = number(&db, &ReadOptions::default(), &[b'a', 1]);
        assert!(now >= before, "a key shows {now} after {before}");
        before = now;
    }
    mover.join().unwrap();
    assert_eq!(look(&db), [3, 0]);
    db.close().unwrap();
}

/// The only version that a reader may see goes while it looks.
fn overtaken() {
    let db = open(&options());
    write(&db, 1, 1, false);
    let theirs = db.clone();
    let mover = start(move || {
        write(&theirs, 1, 2, false);
        theirs.flush().unwrap();
    });
    assert!(
        number(&db, &ReadOptions::default(), &[b'a', 1]) > 0,
        "a key is gone"
    );
    mover.join().unwrap();
    assert_eq!(look(&db), [2, 0]);
    db.close().unwrap();
}

/// A snapshot outlives compactions, and is let go while one runs.
fn snapshots() {
    let db = open(&options());
    write(&db, 1, 1, false);
    let snapshot = db.snapshot();
    let theirs = db.clone();
    let mover = start(move || {
        write(&theirs, 1, 2, false);
        let family = theirs.default_column_family();
        let all = CompactRangeOptions::default();
        theirs.compact_range(&all, &family, None, None).unwrap();
    });
    let options = ReadOptions {
        snapshot: Some(snapshot.clone()),
        ..ReadOptions::default()
    };
    for _ in 0..2 {
        assert_eq!(number(&db, &options, &[b'a', 1]), 1);
    }
    drop((options, snapshot));
    mover.join().unwrap();
    assert_eq!(look(&db), [2, 0]);
    db.close().unwrap();
}

/// Families come and go beside writers.
fn families() {
    let settings = options();
    let db = open(&settings);
    let theirs = db.clone();
    let maker = start(move || {
        let family = theirs.create_column_family("a", settings.cf).unwrap();
        theirs
            .put_opt(&WriteOptions::default(), &family, b"k", b"v")
            .unwrap();
        theirs.drop_column_family(&family).unwrap();
    });
    write(&db, 1, 1, false);
    write(&db, 1, 2, true);
    assert_eq!(look(&db), [2, 0]);
    maker.join().unwrap();
    assert!(db.column_family("a").is_none());
    db.close().unwrap();
}

/// Closing, while others write and flush: each call ends, and what was taken is there later.
fn closing() {
    let settings = options();
    let db = open(&settings);
    let theirs = db.clone();
    let writer = start(move || {
        let written = theirs.put(b"k", b"v").is_ok();
        let flushed = theirs.flush().is_ok();
        assert!(written || !flushed || theirs.get(b"k").is_err() || flushed);
        if written {
            theirs.close().ok();
        }
    });
    db.close().unwrap();
    writer.join().unwrap();
}

/// Values die in blob files and are given up, while versions change under those who look for them.
fn holes() {
    let mut settings = options();
    settings.db.max_background_jobs = 2;
    settings.cf.enable_blob_files = true;
    settings.cf.blob_gc_auto = false;
    settings.cf.blob_hole_punching_threshold = 0.0;
    settings.cf.blob_hole_punching_min_bytes = 1;
    let db = open(&settings);
    let put = |db: &Db, key: &[u8], n: u8| db.put(key, &vec![n; 9000]).unwrap();
    for key in [b"a", b"b", b"c"] {
        put(&db, key, 1);
    }
    db.flush().unwrap();
    let theirs = db.clone();
    let mover = start(move || {
        let family = theirs.default_column_family();
        let all = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        for (key, n) in [(b"b", 2), (b"a", 2)] {
            put(&theirs, key, n);
            theirs.compact_range(&all, &family, None, None).unwrap();
        }
    });
    for _ in 0..2 {
        for key in [b"a", b"b", b"c"] {
            let value = db.get(key).unwrap().unwrap();
            assert!(value[0] > 0 && value.iter().all(|&b| b == value[0]));
        }
    }
    mover.join().unwrap();
    db.wait_for_background_work().unwrap();
    let checked = db.check_blob_files(&db.default_column_family(), true);
    assert!(checked.unwrap().iter().all(BlobFileCheck::is_exact));
    db.close().unwrap();
}

/// Several look for compactions, while tables are taken from under them.
fn picks() {
    let mut settings = options();
    settings.db.max_background_jobs = 3;
    settings.cf.level0_file_num_compaction_trigger = 2;
    let db = open(&settings);
    let theirs = db.clone();
    let deleter = start(move || {
        let family = theirs.default_column_family();
        for _ in 0..4 {
            let range = UserKeyRange::new(b"g", b"n");
            theirs
                .delete_files_in_ranges(&family, &[range], false)
                .unwrap();
        }
    });
    for (n, key) in (1..).zip([b"a", b"h", b"h", b"h", b"h", b"z"]) {
        db.put(key, &[n]).unwrap();
        db.flush().unwrap();
    }
    deleter.join().unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(db.get(b"a").unwrap().as_deref(), Some(&[1][..]));
    assert_eq!(db.get(b"z").unwrap().as_deref(), Some(&[6][..]));
    db.verify_checksums().unwrap();
    db.close().unwrap();
}

/// Logs and flushes find no space now and then, and who writes resumes: it is told each time, and never
/// waits for a flush that nobody tries.
fn shortage() {
    let mut settings = options();
    let fs = FaultFileSystem::new(settings.db.fs);
    let full = |file: &str| Fault::no_space().on(&[OpKind::Append]).path_with(file);
    for n in [1, 3, 5, 7] {
        fs.faults().add(full(".sst").nth(n));
    }
    settings.db.fs = Arc::new(fs);
    settings.db.max_background_jobs = 2;
    settings.db.max_bgerror_resume_count = 0;
    settings.cf.write_buffer_size = 4 << 10;
    let db = open(&settings);
    for n in 0..14 {
        while let Err(e) = db.put(&[n], &[n; 3000]) {
            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
            let _ = db.resume();
        }
    }
    while let Err(e) = db.wait_for_background_work() {
        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
        let _ = db.resume();
    }
    db.close().unwrap();
}

macro_rules! models {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn holds() {
                super::explore(stringify!($name), super::$name);
            }
        })*
    };
}

models!(commit groups places overtaken snapshots families closing holes picks shortage);

#[test]
fn a_group_that_is_shown_too_early_is_found() {
    must_find(Mistake::PublishBeforeInsert, commit);
}

#[test]
fn groups_that_are_shown_out_of_order_are_found() {
    must_find(Mistake::PublishOutOfOrder, groups);
}

#[test]
fn a_group_that_is_not_woken_is_found() {
    must_find(Mistake::ForgetToWake, commit);
}

#[test]
fn a_reader_that_takes_its_number_first_is_found() {
    must_find(Mistake::NumberBeforePlaces, overtaken);
}

#[test]
fn a_job_that_is_taken_from_an_old_look_is_found() {
    must_find(Mistake::TakeWithoutLooking, picks);
}
