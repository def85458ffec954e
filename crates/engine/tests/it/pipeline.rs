//! Many writers at once: nothing is lost, numbers are dense, batches are seen whole and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orogen_base::ErrorKind;
use orogen_engine::{ColumnFamily, Db, FlushOptions, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::fault::{Fault, OpKind};
use orogen_env::{FaultFileSystem, MemFileSystem};

use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, settle};
use crate::support::{DIR, scan, small};

const WRITERS: u64 = 4;
const BATCHES: u64 = 250;

fn key(writer: u64, i: u64) -> Vec<u8> {
    format!("w{writer}-{i:04}").into_bytes()
}

/// Batch `n` of a writer sets all its keys to `n`, some twice, and counts up in its last key.
fn batch_of(writer: u64, n: u64) -> WriteBatch {
    let mut batch = WriteBatch::new();
    let keys = [1, 3, 40, 100][(n % 4) as usize];
    for i in 0..keys {
        batch.put(0, &key(writer, i), &n.to_le_bytes());
    }
    batch.put_log_data(b"not counted");
    batch.put(0, &key(writer, 9999), &n.to_le_bytes());
    batch
}

/// What one view shows of a writer: its newest batch, seen whole.
fn check_whole(db: &Db, cf: &ColumnFamily, writer: u64) -> u64 {
    let view = ReadOptions {
        snapshot: Some(db.snapshot()),
        ..ReadOptions::default()
    };
    let read = |i: u64| {
        let value = db
            .get_opt(&view, cf, &key(writer, i))
            .expect("the database works")?;
        Some(u64::from_le_bytes(
            (*value).try_into().expect("values are numbers"),
        ))
    };
    let Some(newest) = read(9999) else {
        assert_eq!(read(0), None, "a batch is seen in part");
        return 0;
    };
    let keys = [1, 3, 40, 100][(newest % 4) as usize];
    for i in 0..keys {
        assert_eq!(
            read(i),
            Some(newest),
            "batch {newest} of {writer} is seen in part"
        );
    }
    newest
}

fn write_all(parallel: bool, walless: bool) {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.allow_concurrent_memtable_write = parallel;
    options.cf.write_buffer_size = 64 << 10;
    let db = Db::open(DIR, &options).expect("the database works");
    let cf = db.default_column_family();
    let done = AtomicBool::new(false);
    let operations = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let (db, cf, operations) = (&db, &cf, &operations);
            writers.push(scope.spawn(move || {
                for n in 1..=BATCHES {
                    let mut batch = batch_of(writer, n);
                    let options = WriteOptions {
                        sync: n % 17 == 0,
                        disable_wal: walless && n % 17 != 0 && n % 3 == 0,
                        ..WriteOptions::default()
                    };
                    db.write_opt(&options, &mut batch)
                        .expect("the database works");
                    operations.fetch_add(u64::from(batch.count()), Ordering::Relaxed);
                    assert_eq!(check_whole(db, cf, writer), n, "own write is seen at once");
                }
            }));
        }
        scope.spawn(|| {
            let mut seen = [0; WRITERS as usize];
            let mut visible = 0;
            while !done.load(Ordering::Acquire) {
                for writer in 0..WRITERS {
                    let newest = check_whole(&db, &cf, writer);
                    assert!(newest >= seen[writer as usize], "what was seen goes away");
                    seen[writer as usize] = newest;
                }
                let now = db.latest_sequence_number();
                assert!(now >= visible, "the visible number falls");
                visible = now;
            }
        });
        scope.spawn(|| {
            let no_wait = FlushOptions { wait: false };
            let mut n = 0;
            while !done.load(Ordering::Acquire) {
                n += 1;
                match n % 4 {
                    0 => db.sync_wal().expect("the database works"),
                    1 => db
                        .flush_opt(&no_wait, std::slice::from_ref(&cf))
                        .expect("the database works"),
                    2 => drop(db.create_column_family(&format!("f{n}"), options.cf.clone())),
                    _ => {
                        let made = db
                            .column_family(&format!("f{}", n - 1))
                            .expect("the database works");
                        db.drop_column_family(&made).expect("the database works");
                    }
                }
                settle();
            }
        });
        let results: Vec<_> = writers.into_iter().map(|w| w.join()).collect();
        done.store(true, Ordering::Release);
        for result in results {
            result.expect("no writer panics");
        }
    });
    assert_eq!(
        db.latest_sequence_number(),
        operations.into_inner(),
        "numbers are dense"
    );
    let before = scan(&db, &cf);
    db.close().expect("the database works");
    drop(db);
    let db = Db::open(DIR, &options).expect("the database works");
    assert_eq!(scan(&db, &db.default_column_family()), before);
}

#[test]
fn writers_of_all_kinds_lose_nothing_and_readers_see_batches_whole() {
    write_all(true, false);
    write_all(false, false);
    write_all(true, true);
}

/// Opens a database whose log's appends wait at a gate once `armed`.
fn with_gated_log(
    below: &MemFileSystem,
    faults: bool,
) -> (Db, Arc<Gate>, Arc<AtomicBool>, Arc<FaultFileSystem>) {
    let gate = Gate::new();
    let armed = Arc::new(AtomicBool::new(false));
    let (theirs, on) = (gate.clone(), armed.clone());
    let hooked = HookFileSystem::new(below, move |op, path| {
        if op == Op::Append
            && path.extension().is_some_and(|e| e == "log")
            && on.load(Ordering::SeqCst)
        {
            theirs.pass();
        }
    });
    let fs = Arc::new(FaultFileSystem::new(Arc::new(hooked)));
    let mut options = small(below);
    options.db.fs = fs.clone();
    let db = Db::open(DIR, &options).expect("the database works");
    if faults {
        // After the gate: the bytes do arrive, the answer does not.
        let fault = Fault::io().on(&[OpKind::Append]).path_with(".log");
        fs.faults().add(fault.after_effect());
    }
    armed.store(true, Ordering::SeqCst);
    (db, gate, armed, fs)
}

#[test]
fn a_failed_append_answers_those_who_wait_behind_it() {
    let below = MemFileSystem::new();
    let (db, gate, _, _) = with_gated_log(&below, true);
    let put = |k: &'static [u8], options: WriteOptions| {
        let db = db.clone();
        on_thread(move || db.put_opt(&options, &db.default_column_family(), k, b"v"))
    };
    let leader = put(b"leader", WriteOptions::default());
    gate.wait_for(1);
    let sync = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    let walless = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    let followers = [
        put(b"a", WriteOptions::default()),
        put(b"b", sync),
        put(b"c", walless),
        put(b"d", WriteOptions::default()),
    ];
    let (theirs, others) = (db.clone(), db.clone());
    let flush = on_thread(move || theirs.flush());
    let synced = on_thread(move || others.sync_wal());
    settle();
    gate.open();
    assert_eq!(ends(&leader).unwrap_err().kind(), ErrorKind::Io);
    for follower in &followers {
        assert_eq!(ends(follower).unwrap_err().kind(), ErrorKind::ReadOnly);
    }
    assert_eq!(ends(&flush).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(ends(&synced).unwrap_err().kind(), ErrorKind::ReadOnly);
    assert_eq!(db.latest_sequence_number(), 0, "no number was given out");
    assert!(db.get(b"leader").unwrap().is_none());
    db.close().unwrap();
    drop(db);
    let db = Db::open(DIR, &small(&below)).unwrap();
    assert!(
        db.get(b"leader").unwrap().is_some(),
        "its bytes had arrived"
    );
    assert!(db.get(b"a").unwrap().is_none());
    db.put(b"a", b"v").unwrap();
    assert_eq!(db.latest_sequence_number(), 2);
}

#[test]
fn writers_who_wait_are_taken_together_in_one_record() {
    let below = MemFileSystem::new();
    let (db, gate, _, fs) = with_gated_log(&below, false);
    let leader = {
        let db = db.clone();
        on_thread(move || db.put(b"leader", b"v"))
    };
    gate.wait_for(1);
    let followers: Vec<_> = (0..6u8)
        .map(|n| {
            let db = db.clone();
            on_thread(move || {
                let mut batch = WriteBatch::new();
                for i in 0..30u8 {
                    batch.put(0, &[n, i], b"v");
                }
                db.write(batch)
            })
        })
        .collect();
    settle();
    let before = fs.faults().count(OpKind::Append);
    gate.open();
    ends(&leader).unwrap();
    for follower in &followers {
        ends(follower).unwrap();
    }
    let appends = fs.faults().count(OpKind::Append) - before;
    assert!(appends <= 6, "{appends}");
    assert_eq!(db.latest_sequence_number(), 181);
    assert_eq!(scan(&db, &db.default_column_family()).len(), 181);
    let crashed = below.fork();
    let db = Db::open(DIR, &small(&crashed)).unwrap();
    assert_eq!(scan(&db, &db.default_column_family()).len(), 181);
}

#[test]
fn after_any_failed_append_what_was_acknowledged_is_there_and_nothing_is_torn() {
    for nth in [1, 2, 7, 40] {
        let below = MemFileSystem::new();
        let fs = Arc::new(FaultFileSystem::over_memory(below.clone()));
        let mut options = small(&below);
        options.db.fs = fs.clone();
        let db = Db::open(DIR, &options).unwrap();
        let fault = Fault::no_space()
            .on(&[OpKind::Append])
            .path_with(".log")
            .nth(nth);
        fs.faults().add(fault.short(5).forever());
        let mut acknowledged = [0; WRITERS as usize];
        std::thread::scope(|scope| {
            for (writer, newest) in acknowledged.iter_mut().enumerate() {
                let db = &db;
                scope.spawn(move || {
                    for n in 1.. {
                        if db.write(batch_of(writer as u64, n)).is_err() {
                            break;
                        }
                        *newest = n;
                    }
                });
            }
        });
        for (writer, &newest) in acknowledged.iter().enumerate() {
            assert_eq!(
                check_whole(&db, &db.default_column_family(), writer as u64),
                newest
            );
        }
        drop(db);
        fs.faults().clear();
        let db = Db::open(DIR, &options).unwrap();
        for (writer, &newest) in acknowledged.iter().enumerate() {
            let found = check_whole(&db, &db.default_column_family(), writer as u64);
            assert_eq!(found, newest, "{nth}: a torn record counts for nothing");
        }
    }
}
