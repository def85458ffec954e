//! Sizes of ranges, and dropping the tables inside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_engine::{
    CompactRangeOptions, Db, DeletedFiles, ReadOptions, SizeApproximationOptions, UserKeyRange,
    WriteOptions,
};
use orogen_env::MemFileSystem;

use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, settle};
use crate::support::{DIR, scan, small};

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// 4000 pairs of incompressible values, all below level 0.
fn filled(fs: &MemFileSystem) -> Db {
    let mut options = small(fs);
    options.cf.compression = orogen_sst::CompressionType::None;
    let db = Db::open(DIR, &options).expect("works");
    for n in 0..4000 {
        db.put(&key(n), &[b'v'; 50]).expect("works");
    }
    let family = db.default_column_family();
    db.compact_range(&CompactRangeOptions::default(), &family, None, None)
        .expect("works");
    db.wait_for_background_work().expect("works");
    assert!(db.live_files().iter().all(|f| f.level > 0));
    db
}

#[test]
fn sizes_of_parts_add_up_to_that_of_the_whole() {
    let fs = MemFileSystem::new();
    let db = filled(&fs);
    let family = db.default_column_family();
    let total: u64 = db.live_files().iter().map(|f| f.size).sum();
    let bounds: Vec<Vec<u8>> = (0..=8).map(|i| key(i * 500)).collect();
    let mut ranges: Vec<_> = bounds
        .windows(2)
        .map(|w| UserKeyRange::new(&w[0], &w[1]))
        .collect();
    ranges.push(UserKeyRange::default());
    ranges.push(UserKeyRange::new(b"x", b"y"));
    ranges.push(UserKeyRange::new(b"key9", b"key0"));
    let files = SizeApproximationOptions::default();
    let sizes = db.approximate_sizes(&files, &family, &ranges).unwrap();
    assert_eq!(sizes[8..], [total, 0, 0]);
    let parts: u64 = sizes[..8].iter().sum();
    assert!(parts.abs_diff(total) < total / 50, "{parts} of {total}");
    for part in &sizes[..8] {
        assert!(part.abs_diff(total / 8) < total / 50, "{part} of {total}");
    }
}

#[test]
fn memtables_count_only_when_asked_for() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let family = db.default_column_family();
    for n in 0..100 {
        db.put(&key(n), &[b'v'; 10]).unwrap();
    }
    let (from, to) = (key(10), key(20));
    let range = UserKeyRange::new(&from, &to);
    let size = |include_files, include_memtables| {
        let options = SizeApproximationOptions {
            include_files,
            include_memtables,
        };
        db.approximate_sizes(&options, &family, &[range])
    };
    assert_eq!(size(true, false).unwrap(), [0]);
    // Ten entries of an eight-byte key, its trailer and ten bytes.
    assert_eq!(size(false, true).unwrap(), [10 * (8 + 8 + 10)]);
    assert!(size(false, false).is_err());
}

#[test]
fn tables_inside_a_range_go_and_everything_outside_stays() {
    let fs = MemFileSystem::new();
    let db = filled(&fs);
    let family = db.default_column_family();
    // In the range, but in memory and in level 0.
    db.put(&key(1500), b"new").unwrap();
    db.flush().unwrap();
    db.put(&key(1501), b"newer").unwrap();
    let mut open = db.iter(&ReadOptions::default(), &family).unwrap();
    let before = db.live_files();
    let (from, to) = (key(1000), key(3000));
    let gone = db
        .delete_files_in_ranges(&family, &[UserKeyRange::new(&from, &to)], false)
        .unwrap();
    assert!(gone.tables.len() > 2, "{gone:?}");
    let sizes = before.iter().filter(|f| gone.tables.contains(&f.number));
    assert_eq!(gone.table_bytes, sizes.map(|f| f.size).sum::<u64>());
    assert_eq!((gone.garbage_blob_count, gone.blob_files.len()), (0, 0));
    for file in &before {
        let inside = file.level > 0 && file.smallest >= from && file.largest < to;
        assert_eq!(gone.tables.contains(&file.number), inside, "{file:?}");
    }
    let check = |db: &Db| {
        let kept = |n: u32| {
            before.iter().any(|f| {
                f.level > 0
                    && !gone.tables.contains(&f.number)
                    && (f.smallest.as_slice()..=f.largest.as_slice()).contains(&key(n).as_slice())
            })
        };
        let want: Vec<Vec<u8>> = (0..4000)
            .filter(|&n| kept(n) || n == 1500 || n == 1501)
            .map(key)
            .collect();
        let got: Vec<Vec<u8>> = scan(db, &db.default_column_family())
            .into_iter()
            .map(|(k, _)| k)
            .collect();
        assert_eq!(got, want);
        assert_eq!(db.get(&key(1500)).unwrap().as_deref(), Some(&b"new"[..]));
    };
    check(&db);
    // Who looks at the tables already keeps them.
    open.seek_to_first();
    let mut count = 0;
    while open.valid() {
        count += 1;
        open.next();
    }
    open.status().unwrap();
    assert_eq!(count, 4000);
    drop(open);
    db.close().unwrap();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    check(&db);
    let none = db
        .delete_files_in_ranges(&db.default_column_family(), &[], false)
        .unwrap();
    assert_eq!(none, DeletedFiles::default());
}

#[test]
fn a_range_that_has_its_end_takes_the_table_that_ends_there() {
    let fs = MemFileSystem::new();
    let db = filled(&fs);
    let family = db.default_column_family();
    let (first, second) = (db.live_files()[0].clone(), db.live_files()[1].clone());
    let range = UserKeyRange::new(&first.smallest, &second.largest);
    let without = db.delete_files_in_ranges(&family, &[range], false).unwrap();
    assert_eq!(without.tables, [first.number]);
    let with = db.delete_files_in_ranges(&family, &[range], true).unwrap();
    assert_eq!(with.tables, [second.number]);
    assert_eq!(with.table_bytes, second.size);
    let left = scan(&db, &family);
    assert!(left[0].0 > second.largest);
}

/// A queue whose beginning is cut off again and again, each time from its first key on.
#[test]
fn ranges_that_all_overlap_take_no_memory_for_each_pair_of_them() {
    const MANY: u32 = 20_000;
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 1 << 40;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let unsynced = WriteOptions::default();
    let snapshot = db.snapshot();
    for n in 0..MANY {
        db.delete_range_opt(&unsynced, &family, b"", &n.to_be_bytes())
            .unwrap();
    }
    db.put(&(MANY - 1).to_be_bytes(), b"1").unwrap();
    db.put(&0u32.to_be_bytes(), b"1").unwrap();
    db.delete_range_opt(&unsynced, &family, b"", &1u32.to_be_bytes())
        .unwrap();
    let killed = fs.fork();
    db.flush().unwrap();
    drop(snapshot);
    options.db.fs = Arc::new(killed);
    for db in [db, Db::open(DIR, &options).unwrap()] {
        let family = db.default_column_family();
        let keys: Vec<_> = scan(&db, &family).into_iter().map(|(k, _)| k).collect();
        assert_eq!(keys, [(MANY - 1).to_be_bytes()]);
    }
    // Of the usual size, memtables are full before fragments for readers take much.
    options.db.fs = Arc::new(MemFileSystem::new());
    options.cf.write_buffer_size = 8 << 20;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for n in 0..MANY / 4 {
        db.delete_range_opt(&unsynced, &family, b"", &n.to_be_bytes())
            .unwrap();
    }
    db.wait_for_background_work().unwrap();
    assert!(!db.live_files().is_empty());
}

#[test]
fn what_another_call_drops_is_gone_when_this_one_ends() {
    let fs = MemFileSystem::new();
    drop(filled(&fs));
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (theirs, is_armed) = (gate.clone(), armed.clone());
    let mut options = small(&fs);
    options.cf.disable_auto_compactions = true;
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, path| {
        let is_manifest = path.to_string_lossy().contains("MANIFEST");
        if op == Op::Sync && is_manifest && is_armed.swap(false, Ordering::SeqCst) {
            theirs.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let all: Vec<u64> = db.live_files().iter().map(|f| f.number).collect();
    let bytes: u64 = db.live_files().iter().map(|f| f.size).sum();
    armed.store(true, Ordering::SeqCst);
    let drop_all = |db: &Db| {
        let db = db.clone();
        on_thread(move || {
            let family = db.default_column_family();
            let whole = [UserKeyRange::default()];
            let dropped = db.delete_files_in_ranges(&family, &whole, false);
            (dropped.expect("the disk is well"), db.live_files().len())
        })
    };
    let first = drop_all(&db);
    gate.wait_for(1);
    let second = drop_all(&db);
    settle();
    gate.open();
    let (first, second) = (ends(&first), ends(&second));
    assert_eq!((first.1, second.1), (0, 0));
    assert_eq!(first.0.tables.len() + second.0.tables.len(), all.len());
    assert_eq!(first.0.table_bytes + second.0.table_bytes, bytes);
}
