//! Write, read, flush, compact, reopen.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_engine::options::MemTableKind;
use orogen_engine::{
    BottommostLevelCompaction, CompactRangeOptions, Db, ReadOptions, WriteBatch, WriteOptions,
};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_testkit::TempDir;
use parking_lot::Mutex;

use crate::support::{DIR, scan, scan_backward, small};

fn key(n: u32) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

#[test]
fn what_was_written_is_read_back_through_every_place() {
    let fs = MemFileSystem::new();
    let mut model = BTreeMap::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let mut seed = 1u32;
    for round in 0..20_000u32 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let k = key((seed >> 8) % 3000);
        if seed.is_multiple_of(5) {
            db.delete(&k).unwrap();
            model.remove(&k);
        } else {
            let v = format!("value-{round}-{}", "x".repeat((seed >> 20) as usize % 50));
            db.put(&k, v.as_bytes()).unwrap();
            model.insert(k, v.into_bytes());
        }
    }
    let want: Vec<_> = model.clone().into_iter().collect();
    let cf = db.default_column_family();
    assert_eq!(scan(&db, &cf), want);
    assert_eq!(scan_backward(&db, &cf), want);
    db.flush().unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(scan(&db, &cf), want);
    for n in 0..3000 {
        let k = key(n);
        assert_eq!(
            db.get(&k).unwrap().map(|v| v.to_vec()),
            model.get(&k).cloned()
        );
    }
    let options = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    db.compact_range(&options, &cf, None, None).unwrap();
    assert_eq!(scan(&db, &cf), want);
    assert_eq!(scan_backward(&db, &cf), want);
    db.verify_checksums().unwrap();
    db.close().unwrap();
    drop(db);
    let db = Db::open(DIR, &small(&fs)).unwrap();
    assert_eq!(scan(&db, &db.default_column_family()), want);
}

#[test]
fn a_snapshot_reads_what_it_saw() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let cf = db.default_column_family();
    db.put(b"a", b"1").unwrap();
    db.put(b"b", b"1").unwrap();
    let snapshot = db.snapshot();
    db.put(b"a", b"2").unwrap();
    db.delete_range_opt(&WriteOptions::default(), &cf, b"b", b"c")
        .unwrap();
    db.flush().unwrap();
    db.compact_range(&CompactRangeOptions::default(), &cf, None, None)
        .unwrap();
    let then = ReadOptions {
        snapshot: Some(snapshot),
        ..ReadOptions::default()
    };
    assert_eq!(&*db.get_opt(&then, &cf, b"a").unwrap().unwrap(), b"1");
    assert_eq!(&*db.get_opt(&then, &cf, b"b").unwrap().unwrap(), b"1");
    assert_eq!(&*db.get(b"a").unwrap().unwrap(), b"2");
    assert!(db.get(b"b").unwrap().is_none());
}

#[test]
fn the_log_brings_back_what_no_table_holds() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(0, b"a", b"1");
    batch.put(0, b"b", b"2");
    batch.delete(0, b"a");
    db.write(batch).unwrap();
    drop(db);
    for _ in 0..3 {
        let db = Db::open(DIR, &small(&fs)).unwrap();
        assert_eq!(
            scan(&db, &db.default_column_family()),
            [(b"b".to_vec(), b"2".to_vec())]
        );
    }
}

#[test]
fn a_second_opener_is_refused() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let error = Db::open(DIR, &small(&fs)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Busy);
    db.put(b"a", b"1").unwrap();
    let reader = Db::open_read_only(DIR, &small(&fs)).unwrap();
    assert_eq!(&*reader.get(b"a").unwrap().unwrap(), b"1");
    assert_eq!(
        reader.put(b"a", b"2").unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    db.close().unwrap();
    Db::open(DIR, &small(&fs)).unwrap();
    assert_eq!(db.put(b"a", b"2").unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn many_threads_write_at_once_and_nothing_is_lost() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u32 {
            let db = &db;
            scope.spawn(move || {
                for n in 0..2000u32 {
                    let mut batch = WriteBatch::new();
                    let big = if n % 10 == 0 { 100 } else { 1 };
                    for i in 0..big {
                        batch.put(0, &key(t * 1_000_000 + n * 100 + i), &n.to_le_bytes());
                    }
                    let options = WriteOptions {
                        sync: n % 50 == 0,
                        ..WriteOptions::default()
                    };
                    db.write_opt(&options, &mut batch).unwrap();
                    assert!(db.get(&key(t * 1_000_000 + n * 100)).unwrap().is_some());
                }
            });
        }
    });
    let cf = db.default_column_family();
    let want = 4 * (2000 - 200 + 200 * 100);
    assert_eq!(scan(&db, &cf).len(), want);
    assert_eq!(db.latest_sequence_number(), want as u64);
    drop(db);
    let db = Db::open(DIR, &small(&fs)).unwrap();
    assert_eq!(scan(&db, &db.default_column_family()).len(), want);
}

#[test]
fn a_checkpoint_is_a_database_of_its_own() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    for n in 0..2000 {
        db.put(&key(n), b"value").unwrap();
    }
    db.checkpoint("/copy").unwrap();
    db.put(b"later", b"1").unwrap();
    let copy = Db::open("/copy", &small(&fs)).unwrap();
    assert_eq!(scan(&copy, &copy.default_column_family()).len(), 2000);
    copy.put(b"own", b"1").unwrap();
    assert!(db.get(b"own").unwrap().is_none());
    assert_eq!(
        db.checkpoint("/copy").unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[test]
fn a_range_that_ends_before_it_starts_is_refused_as_a_whole_batch() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(0, b"a", b"1");
    batch.delete_range(0, b"z", b"b");
    let refused = db.write(batch).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(db.get(b"a").unwrap().is_none());
    let mut empty = WriteBatch::new();
    empty.delete_range(0, b"b", b"b");
    db.write(empty).unwrap();
}

#[test]
fn tables_without_current_are_not_taken_for_strays() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    db.put(b"a", b"1").unwrap();
    db.flush().unwrap();
    drop(db);
    let current = Path::new(DIR).join("CURRENT");
    let content = orogen_env::fs::read_file(&fs, &current).unwrap();
    fs.remove_file(&current).unwrap();
    let refused = Db::open(DIR, &small(&fs)).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Corruption);
    orogen_env::fs::write_file(&fs, &current, &content).unwrap();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    assert_eq!(&*db.get(b"a").unwrap().unwrap(), b"1");
    db.close().unwrap();
    assert_eq!(
        db.write(WriteBatch::new()).unwrap_err().kind(),
        ErrorKind::Closed
    );
}

#[test]
fn memtables_in_files_are_as_others_and_leave_nothing() {
    let dir = TempDir::new("memtables-in-files");
    for place in [dir.path().to_path_buf(), dir.path().join("not there")] {
        let mut options = small(&MemFileSystem::new());
        options.cf.memtable_factory = MemTableKind::trie_in(place);
        options.cf.write_buffer_size = 1 << 20;
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        for round in 0..3 {
            for n in 0..4000 {
                let n = n * 7919 % 4001;
                db.put(&key(n), format!("{n} {round}").as_bytes()).unwrap();
            }
            assert_eq!(
                db.get(&key(17)).unwrap().unwrap(),
                *format!("17 {round}").as_bytes()
            );
            db.flush().unwrap();
        }
        assert_eq!(scan(&db, &family), scan_backward(&db, &family));
        assert_eq!(scan(&db, &family).len(), 4000);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn memtables_are_chosen_by_the_order_of_the_keys_before() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut options = small(&MemFileSystem::new());
    options.cf.write_buffer_size = 64 << 20;
    let kind = MemTableKind::Adaptive.factory();
    let note = asked.clone();
    options.cf.memtable_factory = Arc::new(move |request| {
        note.lock().push(request.keys_rise);
        kind(request)
    });
    let db = Db::open(DIR, &options).unwrap();
    let last = || asked.lock().last().copied();
    // Makes the memtable that is asked for next after a flush has told.
    let fill = |keys: &mut dyn Iterator<Item = u32>| {
        for n in keys {
            db.put(&key(n), b"v").unwrap();
        }
        db.flush().unwrap();
        db.put(&key(0), b"v").unwrap();
        db.flush().unwrap();
        last()
    };
    assert_eq!(fill(&mut (0..2000)), Some(true), "rising");
    assert_eq!(fill(&mut (2000..2010)), Some(true), "too few to tell");
    assert_eq!(fill(&mut (0..2000).rev()), Some(false), "falling");
    let mut mostly = (0..2000).map(|n| if n % 40 == 0 { 9000 - n } else { n });
    assert_eq!(fill(&mut mostly), Some(true), "rising but for one in 40");
    let mut mixed = (0..2000).map(|n| n * 7919 % 2003);
    assert_eq!(fill(&mut mixed), Some(false), "in any order");
    assert_eq!(scan(&db, &db.default_column_family()).len(), 2060);
}
