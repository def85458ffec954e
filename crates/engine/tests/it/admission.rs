//! Writers wait for the families that they write to, and for no other.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_engine::plugin::merge_operator::MergeOperator;
use orogen_engine::{ColumnFamily, Db, Options, WriteBatch, WriteOptions};
use orogen_env::{Clock, ManualClock, MemFileSystem};
use parking_lot::Mutex;

use crate::steer::{Gate, ends, hold_flushes_of, on_thread, settle, until};
use crate::support::{DIR, scan, small};

const WRITE: WriteOptions = WriteOptions {
    protection_bytes_per_key: 0,
    sync: false,
    disable_wal: false,
    no_slowdown: false,
};

/// A database whose family `slow` is stopped: its flush stands at the gate, and a writer waits.
fn stopped(options: &mut Options) -> (Db, ColumnFamily, Arc<Gate>, std::sync::mpsc::Receiver<u32>) {
    let gate = Gate::new();
    options.db.max_background_jobs = 4;
    options.db.listeners = vec![hold_flushes_of("slow", &gate)];
    let db = Db::open(DIR, options).expect("it opens");
    let slow = db
        .create_column_family("slow", options.cf.clone())
        .expect("it is made");
    let (writer, family) = (db.clone(), slow.clone());
    let waiting = on_thread(move || {
        for n in 0..100u32 {
            // The family may be dropped, or the database closed.
            let written = writer.put_opt(&WRITE, &family, &n.to_be_bytes(), &[7; 1000]);
            if written.is_err() {
                return n;
            }
        }
        100
    });
    until(|| db.int_property(&slow, "rocksdb.is-write-stopped") == Some(1));
    settle();
    (db, slow, gate, waiting)
}

#[test]
fn a_stopped_family_does_not_stop_the_others() {
    let fs = MemFileSystem::new();
    let (db, slow, gate, waiting) = stopped(&mut small(&fs));
    let cf = db.default_column_family();
    let cause = |family| db.property(family, "orogen.cf-write-stall-cause");
    assert!(cause(&slow).is_some_and(|c| c.contains("sealed memtables")));
    assert_eq!(cause(&cf).as_deref(), Some(""));
    let writer = db.clone();
    // Many memtables' worth, which are flushed meanwhile.
    let others = on_thread(move || {
        for n in 0..500u32 {
            writer.put(&n.to_be_bytes(), &[7; 1000])?;
        }
        writer.flush()?;
        writer.sync_wal()
    });
    ends(&others).unwrap();
    assert_eq!(scan(&db, &cf).len(), 500);
    assert!(scan(&db, &slow).len() < 100);
    gate.open();
    assert_eq!(ends(&waiting), 100);
    assert_eq!(scan(&db, &slow).len(), 100);
    until(|| cause(&slow).as_deref() == Some(""));
}

#[test]
fn a_batch_waits_if_one_of_its_families_is_stopped() {
    let fs = MemFileSystem::new();
    let (db, slow, gate, waiting) = stopped(&mut small(&fs));
    let mut batch = WriteBatch::new();
    batch.put(0, b"both", b"1");
    batch.put(slow.id(), b"both", b"1");
    let hasty = WriteOptions {
        no_slowdown: true,
        ..WRITE
    };
    let refused = db.write_opt(&hasty, &mut batch.clone()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.context("cause").unwrap().contains("[slow]"));
    let mut alone = WriteBatch::new();
    alone.put(0, b"alone", b"1");
    db.write_opt(&hasty, &mut alone).unwrap();
    let writer = db.clone();
    let both = on_thread(move || writer.write(batch));
    settle();
    assert!(db.get(b"both").unwrap().is_none(), "all or nothing");
    assert!(both.try_recv().is_err());
    gate.open();
    ends(&both).unwrap();
    ends(&waiting);
    assert!(db.get(b"both").unwrap().is_some());
}

#[test]
fn writers_that_queued_before_a_stop_do_not_fill_memtables_without_end() {
    let fs = MemFileSystem::new();
    let (db, slow, gate, waiting) = stopped(&mut small(&fs));
    let writers: Vec<_> = (0..8u32)
        .map(|w| {
            let (db, slow) = (db.clone(), slow.clone());
            on_thread(move || {
                for n in 0..20 {
                    let key = (1000 + w * 100 + n).to_be_bytes();
                    db.put_opt(&WRITE, &slow, &key, &[7; 1000])
                        .expect("it is written in the end");
                    db.put(&key, b"1").expect("written");
                }
            })
        })
        .collect();
    settle();
    let sealed = db.int_property(&slow, "rocksdb.num-immutable-mem-table");
    assert!(sealed.is_some_and(|n| n <= 3), "{sealed:?}");
    gate.open();
    writers.iter().for_each(ends);
    ends(&waiting);
    assert_eq!(scan(&db, &slow).len(), 260);
}

/// Opens a gate in the end: a test that fails must not wait for it.
struct OpensAtLast(Arc<Gate>);

impl Drop for OpensAtLast {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Flushes come to a gate when they fold operands.
#[derive(Default)]
struct Held(Mutex<Arc<Gate>>);

impl MergeOperator for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> Option<Vec<u8>> {
        let gate = self.0.lock().clone();
        gate.pass();
        Some(Vec::new())
    }
}

#[test]
fn writers_pause_a_little_before_they_would_be_stopped() {
    let (fs, clock) = (MemFileSystem::new(), Arc::new(ManualClock::new()));
    let operator = Arc::new(Held::default());
    let mut options = small(&fs);
    options.db.clock = clock.clone();
    options.cf.write_buffer_size = 1 << 20;
    options.cf.merge_operator = Some(operator.clone());
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    let is = |name: &str| db.int_property(&cf, name).expect("such a property");
    let fill = |options: &WriteOptions, count: u32| {
        for n in 0..count {
            let key = (count + n).to_be_bytes();
            db.put_opt(options, &cf, &key, &[7; 1000]).expect("written");
        }
    };
    let merge = || {
        db.put(b"\0", b"").unwrap();
        db.merge_opt(&WRITE, &cf, b"\0", b"").unwrap();
    };
    // A flush that takes ten seconds.
    let gate = operator.0.lock().clone();
    merge();
    fill(&WRITE, 98);
    let flusher = db.clone();
    let flushed = on_thread(move || flusher.flush());
    gate.wait_for(1);
    clock.advance(Duration::from_secs(10));
    gate.open();
    ends(&flushed).unwrap();
    // The next one is a tenth of a second for each entry, and stands still.
    let gate = Gate::new();
    *operator.0.lock() = gate.clone();
    let _opens = OpensAtLast(gate.clone());
    merge();
    let mut count = 0;
    while is("rocksdb.num-immutable-mem-table") == 0 {
        count += 1;
        db.put(
            &[&[1, 0][..], &u32::to_be_bytes(count)].concat(),
            &[7; 1000],
        )
        .unwrap();
    }
    gate.wait_for(1);
    let start = clock.now_micros();
    fill(&WRITE, count * 2 / 5);
    assert_eq!(clock.now_micros(), start, "a burst is taken as it comes");
    let no_slowdown = WriteOptions {
        no_slowdown: true,
        ..WRITE
    };
    fill(&no_slowdown, count / 4);
    assert_eq!(clock.now_micros(), start, "who must not wait does not");
    fill(&WRITE, count / 5);
    let paused = clock.now_micros() - start;
    assert!(paused >= 10_000, "{paused}");
    assert_eq!(is("rocksdb.is-write-stopped"), 0);
    // The next pause ends with the flush that it is for.
    let cause = || db.property(&cf, "orogen.cf-write-stall-cause").unwrap();
    while !cause().contains("paced") {
        db.put(b"\x01", &[7; 100]).unwrap();
    }
    let before = clock.now_micros();
    gate.open();
    db.flush().unwrap();
    assert_eq!(cause(), "");
    fill(&WRITE, count * 4 / 5);
    assert_eq!(clock.now_micros(), before, "nothing is waited for");
}

#[test]
fn closing_and_dropping_let_those_go_who_wait() {
    for drops in [false, true] {
        let fs = MemFileSystem::new();
        let (db, slow, gate, _waiting) = stopped(&mut small(&fs));
        let (writer, family) = (db.clone(), slow.clone());
        let held = on_thread(move || writer.put_opt(&WRITE, &family, b"k", b"v"));
        settle();
        assert!(held.try_recv().is_err());
        if drops {
            db.drop_column_family(&slow).unwrap();
        } else {
            let closing = db.clone();
            let closed = on_thread(move || closing.close());
            settle();
            gate.open();
            let _ = ends(&closed);
        }
        let _ = ends(&held);
        gate.open();
    }
}

#[test]
fn logs_that_a_cold_family_pins_are_freed_and_looked_at_once() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.max_total_wal_size = 64 << 10;
    let db = Db::open(DIR, &options).unwrap();
    let mut cold = options.cf;
    cold.write_buffer_size = 64 << 20;
    cold.min_write_buffer_number_to_merge = 4;
    cold.max_write_buffer_number = 8;
    let cold = db.create_column_family("cold", cold).unwrap();
    for n in 0..1000u32 {
        if n % 50 == 0 {
            db.put_opt(&WRITE, &cold, &n.to_be_bytes(), b"1").unwrap();
        }
        db.put(&n.to_be_bytes(), &[7; 1000]).unwrap();
    }
    db.wait_for_background_work().unwrap();
    let names = orogen_env::FileSystem::list(&fs, DIR.as_ref()).unwrap();
    let logs: u64 = names
        .iter()
        .filter(|n| n.ends_with(".log"))
        .map(|n| {
            let path = std::path::Path::new(DIR).join(n);
            // One that is gone by now takes nothing.
            orogen_env::FileSystem::metadata(&fs, &path).map_or(0, |m| m.size)
        })
        .sum();
    assert!(logs <= 4 * (64 << 10), "{logs} bytes of {names:?}");
    assert_eq!(scan(&db, &cold).len(), 20);
}

#[test]
fn logs_are_bounded_by_what_stays_after_the_flushes_under_way() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    let gate = Gate::new();
    options.db.max_total_wal_size = 64 << 10;
    options.db.max_background_jobs = 4;
    options.cf.max_write_buffer_number = 1000;
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let mut cold = options.cf;
    cold.write_buffer_size = 64 << 20;
    let cold = db.create_column_family("cold", cold).unwrap();
    let mut most = 0;
    for n in 0..1000u32 {
        if n % 10 == 0 {
            db.put_opt(&WRITE, &cold, &n.to_be_bytes(), b"1").unwrap();
        }
        // The oldest log stays that of the first of these.
        db.put(&n.to_be_bytes(), &[7; 1000]).unwrap();
        let held = db.int_property(&cold, "rocksdb.num-entries-active-mem-table");
        most = most.max(held.unwrap());
    }
    gate.open();
    db.flush().unwrap();
    assert!(
        most <= 20,
        "{most} entries of a family were in logs that nobody freed"
    );
}
