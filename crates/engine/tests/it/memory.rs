//! One bound for the memory of memtables, tables and blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use orogen_base::PinnedValue;
use orogen_engine::options::MemTableKind;
use orogen_engine::{Db, MemoryBudget, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::{Clock, MemFileSystem, SystemClock};

use crate::steer::{HookFileSystem, Op, ends, on_thread};
use crate::support::{DIR, small};
use crate::watched::watched;

const LIMIT: u64 = 4 << 20;

fn bounded(fs: &MemFileSystem, budget: &Arc<MemoryBudget>) -> Options {
    let mut options = small(fs);
    // Each by itself far beyond the budget.
    options.cf.write_buffer_size = 64 << 20;
    options.cf.max_write_buffer_number = 8;
    options.cf.target_file_size_base = 256 << 10;
    options.cf.table.block_size = 4 << 10;
    options.db.memory_budget = Some(budget.clone());
    options
}

/// What is reserved counts beside the blocks that give way to it while the thread that throws them out is held up.
#[track_caller]
fn within(budget: &MemoryBudget) {
    let most = LIMIT + LIMIT / 20;
    for _ in 0..200 {
        if budget.usage().total() <= most {
            return;
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    let usage = budget.usage();
    assert!(usage.total() <= most, "{usage:?} of {most}");
}

fn key(n: u32) -> Vec<u8> {
    format!("key{:06}", n * 7919 % 100_000).into_bytes()
}

fn load(db: &Db, budget: &MemoryBudget, writes: u32, value: usize) {
    for n in 0..writes {
        db.put(&key(n), &vec![n as u8; value])
            .expect("it is written");
        if n % 64 == 0 {
            within(budget);
        }
    }
}

#[test]
fn writes_large_and_small_stay_within_the_budget() {
    for (writes, value) in [(20_000, 10), (8_000, 2_000), (60, 200_000)] {
        let fs = MemFileSystem::new();
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let db = Db::open(DIR, &bounded(&fs, &budget)).unwrap();
        load(&db, &budget, writes, value);
        assert!(
            value < 100 || !db.live_files().is_empty(),
            "memtables are sealed early"
        );
        let text = db.property(&db.default_column_family(), "orogen.memory-usage");
        assert!(text.unwrap().contains("memtables="));
    }
}

#[test]
fn reads_with_cursors_and_values_held_stay_within_the_budget() {
    let fs = MemFileSystem::new();
    let budget = Arc::new(MemoryBudget::new(LIMIT));
    let db = Db::open(DIR, &bounded(&fs, &budget)).unwrap();
    let cf = db.default_column_family();
    load(&db, &budget, 10_000, 1000);
    db.flush().unwrap();
    let mut cursors = Vec::new();
    let mut values: Vec<PinnedValue> = Vec::new();
    let mut most_blocks = 0;
    for n in 0..10_000u32 {
        let value = db.get(&key(n * 3)).unwrap();
        // Each holds a block of its own: together more than a third of the budget.
        if n % 25 == 0 {
            values.extend(value);
        }
        if n % 500 == 0 {
            let mut cursor = db.iter(&ReadOptions::default(), &cf).unwrap();
            cursor.seek(&key(n));
            cursors.push(cursor);
        }
        if n % 64 == 0 {
            within(&budget);
            let usage = budget.usage();
            most_blocks = most_blocks.max(usage.held_blocks + usage.block_cache);
        }
    }
    // Compactions take much of it.
    db.wait_for_background_work().unwrap();
    for n in 0..2000 {
        db.get(&key(n)).unwrap();
        let usage = budget.usage();
        most_blocks = most_blocks.max(usage.held_blocks + usage.block_cache);
    }
    within(&budget);
    assert!(most_blocks > LIMIT / 2, "{most_blocks}");
    for cursor in &mut cursors {
        for _ in 0..200 {
            if cursor.valid() {
                cursor.next();
            }
        }
        within(&budget);
    }
    drop((cursors, values));
    // A compaction holds the blocks that it stands in.
    db.wait_for_background_work().unwrap();
    // A job's thread may still be letting go of them.
    for _ in 0..1_000_000 {
        if budget.usage().held_blocks == 0 {
            return;
        }
        std::thread::yield_now();
    }
    panic!("blocks are still held: {:?}", budget.usage());
}

#[test]
fn databases_and_families_share_one_budget() {
    let fs = MemFileSystem::new();
    let budget = Arc::new(MemoryBudget::new(LIMIT));
    let options = bounded(&fs, &budget);
    let writers: Vec<_> = ["/a", "/b", "/c"]
        .into_iter()
        .map(|dir| {
            let db = Db::open(dir, &options).unwrap();
            let other = db
                .create_column_family("other", options.cf.clone())
                .unwrap();
            let budget = budget.clone();
            on_thread(move || {
                for n in 0..3000u32 {
                    let write = WriteOptions::default();
                    db.put(&key(n), &[7; 700]).expect("it is written");
                    db.put_opt(&write, &other, &key(n), &[7; 300])
                        .expect("it is written");
                    db.get(&key(n / 2)).expect("it is read");
                    if n % 64 == 0 {
                        within(&budget);
                    }
                }
                db
            })
        })
        .collect();
    let all: Vec<Db> = writers.iter().map(ends).collect();
    within(&budget);
    drop(all);
    let usage = budget.usage();
    assert_eq!((usage.memtables, usage.table_readers), (0, 0), "{usage:?}");
}

#[test]
fn the_limit_can_be_changed() {
    let fs = MemFileSystem::new();
    let budget = Arc::new(MemoryBudget::new(4 * LIMIT));
    let db = Db::open(DIR, &bounded(&fs, &budget)).unwrap();
    for n in 0..10_000 {
        db.put(&key(n), &[7; 1000]).unwrap();
    }
    db.flush().unwrap();
    (0..10_000).for_each(|n| drop(db.get(&key(n)).unwrap()));
    assert!(budget.usage().total() > LIMIT);
    budget.set_limit(LIMIT);
    // A compaction may have windows by the limit before.
    db.wait_for_background_work().unwrap();
    within(&budget);
    load(&db, &budget, 1000, 1000);
}

#[test]
fn large_values_stay_within_the_budget_where_they_are_written_scanned_and_kept() {
    for (blob_cache, value) in [(false, 2_000), (true, 2_000), (false, 100_000)] {
        let fs = MemFileSystem::new();
        let budget = Arc::new(MemoryBudget::new(LIMIT));
        let mut options = bounded(&fs, &budget);
        options.cf.enable_blob_files = true;
        options.cf.min_blob_size = 1000;
        options.cf.blob_file_size = 1 << 20;
        options.cf.blob_cache = blob_cache;
        options.cf.enable_blob_garbage_collection = true;
        let db = Db::open(DIR, &options).unwrap();
        let cf = db.default_column_family();
        load(&db, &budget, 8_000_000 / value as u32, value);
        db.flush().unwrap();
        db.wait_for_background_work().unwrap();
        assert!(db.live_blob_files().len() > 2);
        let idle = budget.usage();
        let mut cursors = Vec::new();
        for n in 0..12u32 {
            let mut cursor = db.iter(&ReadOptions::default(), &cf).unwrap();
            cursor.seek(&key(n));
            for _ in 0..100 {
                if cursor.valid() {
                    cursor.next();
                }
                within(&budget);
            }
            cursor.status().unwrap();
            if cursor.valid() {
                cursors.push(cursor);
            }
            let keys: Vec<Vec<u8>> = (0..8).map(|i| key(n * 8 + i)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let found = db.multi_get(&ReadOptions::default(), &cf, &keys);
            assert!(found.iter().all(Result::is_ok));
            within(&budget);
        }
        let scanned = budget.usage();
        if value > 32 << 10 {
            let values = (cursors.len() * value) as u64;
            assert!(scanned.reserved >= idle.reserved + values, "{scanned:?}");
        } else if blob_cache {
            assert!(
                scanned.block_cache > idle.block_cache + (100 << 10),
                "{scanned:?}"
            );
        } else {
            assert!(scanned.reserved > idle.reserved, "{scanned:?} {idle:?}");
        }
        assert!(scanned.table_readers > 0);
        drop(cursors);
        assert!(budget.usage().reserved <= idle.reserved);
    }
}

#[test]
fn a_batch_over_many_families_is_promised_its_memory_once() {
    let fs = MemFileSystem::new();
    let budget = Arc::new(MemoryBudget::new(LIMIT));
    let mut options = bounded(&fs, &budget);
    options.cf.memtable_factory = MemTableKind::GuidedList.factory();
    let db = Db::open(DIR, &options).unwrap();
    let mut batch = WriteBatch::new();
    for family in 0..20 {
        let name = format!("family {family}");
        let family = db.create_column_family(&name, options.cf.clone()).unwrap();
        for n in 0..8u8 {
            batch.put(family.id(), &[n], &[7; 2000]);
        }
    }
    let bytes = batch.size_bytes() as u64;
    let before = budget.usage().memtables;
    db.write(batch).unwrap();
    let taken = budget.usage().memtables - before;
    assert!(taken < 4 * bytes, "{taken} for {bytes}");
    within(&budget);
}

#[test]
fn not_every_write_asks_all_memtables() {
    const FAMILIES: usize = 200;
    const WRITES: usize = 1000;
    let fs = MemFileSystem::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let mut options = small(&fs);
    options.db.db_write_buffer_size = 2 << 20;
    options.cf.write_buffer_size = 64 << 20;
    options.cf.memtable_factory = watched(&Arc::default(), &asked);
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..FAMILIES {
        let name = format!("family {n}");
        db.create_column_family(&name, options.cf.clone()).unwrap();
    }
    let before = asked.load(Ordering::SeqCst);
    for n in 0..WRITES as u32 {
        db.put(&key(n), &[n as u8; 100]).unwrap();
    }
    let asked = asked.load(Ordering::SeqCst) - before;
    assert!(asked < FAMILIES * WRITES / 10, "{asked}");
    // It is minded all the same.
    for n in 0..30_000 {
        db.put(&key(n), &[n as u8; 100]).unwrap();
    }
    db.wait_for_background_work().unwrap();
    let used = db.int_property(
        &db.default_column_family(),
        "rocksdb.cur-size-all-mem-tables",
    );
    assert!(used.unwrap() < 3 << 20, "{used:?}");
    assert!(!db.live_files().is_empty());
}

/// The files of a database whose process ended with 16 MiB in its logs, and none in tables.
fn killed(families: &[&str]) -> MemFileSystem {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 64 << 20;
    let db = Db::open(DIR, &options).expect("a new one");
    let made = |name: &&str| db.create_column_family(name, options.cf.clone());
    let mut all = vec![db.default_column_family()];
    all.extend(families.iter().map(|f| made(f).expect("memory")));
    for n in 0..16_000 {
        let family = &all[n as usize % all.len()];
        let mut batch = WriteBatch::new();
        batch.put(family.id(), &key(n), &[n as u8; 1000]);
        db.write(batch).expect("memory");
    }
    assert!(db.live_files().is_empty());
    fs.fork()
}

#[test]
fn logs_are_read_within_the_budget() {
    let fs = killed(&["other"]);
    let budget = Arc::new(MemoryBudget::new(LIMIT));
    let most = Arc::new(AtomicUsize::new(0));
    let mut options = bounded(&fs, &budget);
    let (of, seen) = (budget, most.clone());
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Append {
            seen.fetch_max(of.usage().total() as usize, Ordering::SeqCst);
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let most = most.load(Ordering::SeqCst) as u64;
    assert!(most > 0 && most <= LIMIT + LIMIT / 20, "{most}");
    for n in 0..16_000 {
        let family = ["default", "other"][n as usize % 2];
        let family = db.column_family(family).unwrap();
        let found = db.get_opt(&ReadOptions::default(), &family, &key(n));
        assert!(found.unwrap().is_some(), "{n}");
    }
}

#[test]
fn logs_are_read_within_the_write_buffers_of_the_database() {
    let fs = killed(&["other"]);
    let mut options = small(&fs);
    options.cf.write_buffer_size = 64 << 20;
    options.cf.level0_file_num_compaction_trigger = 100;
    options.cf.target_file_size_base = 64 << 20;
    options.db.db_write_buffer_size = 2 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let tables = db.live_files().len();
    assert!((6..20).contains(&tables), "{tables}");
}

/// The same with 4 MiB that are prepared before all else.
fn killed_with_prepared() -> MemFileSystem {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 64 << 20;
    let db = Db::open(DIR, &options).expect("a new one");
    for section in 0..4 {
        let mut batch = WriteBatch::new();
        for n in 0..16u32 {
            batch.put(0, &n.to_be_bytes(), &vec![section; 64 << 10]);
        }
        let name = format!("transaction {section}");
        db.prepare(&WriteOptions::default(), name.as_bytes(), batch)
            .expect("memory");
    }
    for n in 0..16_000 {
        db.put(&key(n), &[n as u8; 1000]).expect("memory");
    }
    assert!(db.live_files().is_empty());
    fs.fork()
}

#[test]
fn what_is_prepared_counts_for_the_write_buffers_that_logs_are_read_within() {
    let fs = killed_with_prepared();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 64 << 20;
    options.cf.disable_auto_compactions = true;
    options.db.db_write_buffer_size = 6 << 20;
    let db = Db::open(DIR, &options).unwrap();
    // Memtables of 2 MiB.
    let tables = db.live_files().len();
    assert!((6..20).contains(&tables), "{tables}");
    assert_eq!(db.prepared_writes().len(), 4);
    drop(db);
    // Of less than is prepared they have a quarter.
    options.db.db_write_buffer_size = 4 << 20;
    let db = Db::open(DIR, &options).unwrap();
    assert_eq!(db.prepared_writes().len(), 4);
    assert!(db.live_files().len() < 40);
}

#[test]
fn what_is_prepared_counts_for_the_budget_that_logs_are_read_within() {
    const PREPARED: u64 = 4 << 20;
    let fs = killed_with_prepared();
    let budget = Arc::new(MemoryBudget::new(2 * PREPARED));
    let most = Arc::new(AtomicUsize::new(0));
    let mut options = bounded(&fs, &budget);
    let (of, seen) = (budget, most.clone());
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Append {
            seen.fetch_max(of.usage().memtables as usize, Ordering::SeqCst);
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let most = most.load(Ordering::SeqCst) as u64;
    assert!(most > 0 && most <= PREPARED, "{most}");
    assert_eq!(db.prepared_writes().len(), 4);
}

#[test]
fn logs_of_many_families_are_read_within_the_write_buffers_of_the_database() {
    const FAMILIES: usize = 300;
    let names: Vec<String> = (0..FAMILIES).map(|n| format!("family {n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let fs = killed(&names);
    let mut options = small(&fs);
    options.cf.write_buffer_size = 64 << 20;
    options.cf.disable_auto_compactions = true;
    options.db.db_write_buffer_size = 2 << 20;
    let db = Db::open(DIR, &options).unwrap();
    // A memtable of a family has 7 KiB when all are 2 MiB: 16 MiB are that many of them.
    let sealed_before_the_end = db.live_files().len() - FAMILIES;
    assert!(sealed_before_the_end > 1000, "{sealed_before_the_end}");
}
