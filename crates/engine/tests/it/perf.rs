//! What single requests cost, on trees whose shape is known.

use orogen_base::perf::{PerfContext, PerfCounter, PerfLevel, PerfUnit};
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, WriteOptions};
use orogen_env::MemFileSystem;

use crate::support::{DIR, small};

use PerfCounter::*;

fn options(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    options.cf.disable_auto_compactions = true;
    options.cf.write_buffer_size = 1 << 20;
    options
}

fn key(n: u32) -> Vec<u8> {
    format!("key{n:05}").into_bytes()
}

/// One table of level 1 with every even key to 1000, one of level 0 with every 100th, and the key
/// 1 in the memtable. All tables are open, nothing is cached.
fn layered(fs: &MemFileSystem) -> Db {
    let mut options = options(fs);
    options.cf.target_file_size_base = 16 << 20;
    let db = Db::open(DIR, &options).expect("it works");
    for n in (0..1000).step_by(2) {
        db.put(&key(n), &[1; 50]).expect("it works");
    }
    db.flush().expect("it works");
    let cf = db.default_column_family();
    db.compact_range(&Default::default(), &cf, None, None)
        .expect("it works");
    for n in (0..1000).step_by(100) {
        db.put(&key(n), &[2; 50]).expect("it works");
    }
    db.flush().expect("it works");
    db.put(&key(1), &[3; 50]).expect("it works");
    // In vain, behind the filters: it opens the tables and reads no data.
    assert!(db.get(b"key00501").expect("it works").is_none());
    db
}

fn levels(db: &Db) -> Vec<String> {
    let cf = db.default_column_family();
    (0..7)
        .filter_map(|n| db.property(&cf, &format!("rocksdb.num-files-at-level{n}")))
        .collect()
}

fn deepest(db: &Db) -> usize {
    let files = levels(db);
    files
        .iter()
        .rposition(|n| n != "0")
        .expect("there are tables")
}

fn counted<R>(body: impl FnOnce() -> R) -> (R, PerfContext) {
    PerfContext::measure(PerfLevel::EnableCount, body)
}

#[test]
fn a_missing_key_asks_filters_and_reads_no_block() {
    let fs = MemFileSystem::new();
    let db = layered(&fs);
    let deep = deepest(&db);
    let missing = (1..499).map(|n| key(2 * n + 1));
    let (mut asked, mut sent_away) = (0, 0);
    for k in missing {
        let (value, perf) = counted(|| db.get(&k).unwrap());
        assert!(value.is_none());
        let (hits, misses) = (perf.get(BloomSstHitCount), perf.get(BloomSstMissCount));
        // Beyond the last key of level 0 only one table may have it.
        let tables = 1 + u64::from(k < key(900));
        assert_eq!(perf.get(GetFromTableCount), tables);
        assert_eq!(hits + misses, tables);
        let blocks = perf.get(BlockCacheHitCount) + perf.get(BlockReadCount);
        assert_eq!(
            blocks, hits,
            "a block for each filter that errs, and none else"
        );
        assert_eq!(perf.get(GetFromMemtableCount), 1);
        assert_eq!(perf.get(GetReadBytes), 0);
        assert_eq!(perf.get_at_level(GetFromTableCount, deep), 1);
        assert_eq!(perf.get_at_level(GetFromTableCount, 0), tables - 1);
        (asked, sent_away) = (asked + tables, sent_away + misses);
    }
    assert!(sent_away * 20 > asked * 19, "{sent_away} of {asked}");
}

#[test]
fn a_get_reads_one_block_once_and_says_from_which_level() {
    let fs = MemFileSystem::new();
    let db = layered(&fs);
    let deep = deepest(&db);
    // In the memtable: no table is looked into.
    let (value, perf) = counted(|| db.get(&key(1)).unwrap());
    assert_eq!(value.as_deref(), Some(&[3; 50][..]));
    let seen: Vec<_> = perf.iter().collect();
    let want = [(GetFromMemtableCount, None, 1), (GetReadBytes, None, 50)];
    assert_eq!(seen, want);
    // At the bottom, first from the file, then from the cache.
    let cold = counted(|| db.get(&key(950)).unwrap()).1;
    assert_eq!(cold.get(BlockReadCount), 1);
    assert_eq!(cold.get(BlockCacheMissCount), 1);
    assert_eq!(cold.get(BlockCacheHitCount), 0);
    // The block and its trailer, and nothing else.
    assert_eq!(cold.get(BytesRead), cold.get(BlockReadByte) + 5);
    let warm = counted(|| db.get(&key(950)).unwrap()).1;
    assert_eq!(warm.get(BlockReadCount), 0);
    assert_eq!(warm.get(BytesRead), 0);
    assert_eq!(warm.get(BlockCacheHitCount), 1);
    for perf in [cold, warm] {
        assert_eq!(perf.get_at_level(UserKeyReturnCount, deep), 1);
        assert_eq!(perf.get_at_level(UserKeyReturnCount, 0), 0);
        assert_eq!(perf.get(UserKeyReturnCount), 1);
    }
    // In level 0, above an older version.
    let perf = counted(|| db.get(&key(100)).unwrap()).1;
    assert_eq!(perf.get_at_level(UserKeyReturnCount, 0), 1);
    assert_eq!(perf.get_at_level(GetFromTableCount, deep), 0);
}

#[test]
fn keys_that_are_got_together_are_counted_as_if_one_by_one() {
    let keys: Vec<Vec<u8>> = (0..1000).step_by(7).map(key).collect();
    let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let fs = MemFileSystem::new();
    let db = layered(&fs);
    let (cf, read) = (db.default_column_family(), ReadOptions::default());
    let (found, together) = counted(|| db.multi_get(&read, &cf, &asked));
    let again = counted(|| db.multi_get(&read, &cf, &asked)).1;
    let found = found.into_iter().filter(|v| v.as_ref().unwrap().is_some());
    assert_eq!(together.get(MultigetReadBytes), 50 * found.count() as u64);
    let fs = MemFileSystem::new();
    let db = layered(&fs);
    let single = counted(|| asked.iter().for_each(|k| drop(db.get(k).unwrap()))).1;
    for same in [
        BlockReadCount,
        BlockReadByte,
        BloomSstHitCount,
        BloomSstMissCount,
        GetFromTableCount,
        UserKeyReturnCount,
        GetFromMemtableCount,
    ] {
        assert!(single.get(same) > 0);
        assert_eq!(together.get(same), single.get(same), "{}", same.name());
        for level in 0..7 {
            let (a, b) = (
                together.get_at_level(same, level),
                single.get_at_level(same, level),
            );
            assert_eq!(a, b, "{} at level {level}", same.name());
        }
    }
    assert!(together.get(BytesRead) >= together.get(BlockReadByte));
    assert_eq!(again.get(BlockReadCount), 0);
    assert_eq!(again.get(BytesRead), 0);
}

#[test]
fn an_iterator_tells_what_it_passed() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &options(&fs)).unwrap();
    let cf = db.default_column_family();
    // a, 5 versions; b to e deleted; f; g newer than the reader; h.
    for _ in 0..5 {
        db.put(b"a", b"1").unwrap();
    }
    for k in [b"b", b"c", b"d", b"e"] {
        db.delete(k).unwrap();
    }
    db.put(b"f", b"22").unwrap();
    db.put(b"h", b"4").unwrap();
    let read = ReadOptions {
        snapshot: Some(db.snapshot()),
        ..ReadOptions::default()
    };
    db.put(b"g", b"333").unwrap();
    let mut iter = db.iter(&read, &cf).unwrap();
    let first = counted(|| iter.seek_to_first()).1;
    assert_eq!(first.get(IterSeekCount), 1);
    assert_eq!(first.get(IterReadBytes), 2);
    assert_eq!(first.get(InternalKeySkippedCount), 0);
    let second = counted(|| iter.next()).1;
    assert_eq!(iter.key(), b"f");
    assert_eq!(second.get(IterNextCount), 1);
    assert_eq!(second.get(IterReadBytes), 3);
    assert_eq!(second.get(InternalKeySkippedCount), 1 + 4);
    assert_eq!(second.get(InternalDeleteSkippedCount), 4);
    let third = counted(|| iter.next()).1;
    assert_eq!(iter.key(), b"h");
    assert_eq!(third.get(InternalRecentSkippedCount), 1);
    assert_eq!(third.get(InternalDeleteSkippedCount), 0);
    let back = counted(|| {
        iter.prev();
        iter.prev();
    });
    assert_eq!(iter.key(), b"a");
    assert_eq!(back.1.get(IterPrevCount), 2);
    assert_eq!(back.1.get(InternalDeleteSkippedCount), 4);
    // Nothing here had to do with tables or times.
    for (counter, _, _) in first.iter().chain(second.iter()).chain(back.1.iter()) {
        assert!(!counter.name().contains("block"));
        assert_ne!(counter.unit(), PerfUnit::Nanos);
    }
}

fn write_and_read(db: &Db, cf: &ColumnFamily) {
    let sync = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    db.put_opt(&sync, cf, b"key01000", &[9; 30])
        .expect("it works");
    assert!(db.get(&key(948)).expect("it works").is_some());
    let mut iter = db.iter(&ReadOptions::default(), cf).expect("it works");
    iter.seek(&key(500));
    iter.next();
    assert!(iter.valid());
}

#[test]
fn times_come_only_with_their_level() {
    let fs = MemFileSystem::new();
    let db = layered(&fs);
    let cf = db.default_column_family();
    let timed = [
        WriteWalTime,
        WriteMemtableTime,
        GetFromMemtableTime,
        GetFromOutputFilesTime,
        BlockReadTime,
        BlockChecksumTime,
        SeekInternalSeekTime,
        FindNextUserEntryTime,
    ];
    let perf = PerfContext::measure(PerfLevel::EnableTime, || write_and_read(&db, &cf)).1;
    for counter in timed {
        assert!(perf.get(counter) > 0, "{} in\n{perf}", counter.name());
    }
    assert_eq!(perf.get(WriteDelayTime), 0);
    // The record of the log: header, batch header, tag, key, value, with their lengths.
    assert!(perf.get(BytesWritten) >= 30 + 8 + 12 + 7);
    let perf = counted(|| write_and_read(&db, &cf)).1;
    let times = perf.iter().filter(|(c, ..)| c.unit() == PerfUnit::Nanos);
    assert_eq!(times.count(), 0);
    let before = PerfContext::current();
    write_and_read(&db, &cf);
    assert_eq!(
        PerfContext::current(),
        before,
        "nothing is counted by default"
    );
}

#[test]
fn threads_count_for_themselves() {
    let fs = MemFileSystem::new();
    let db = layered(&fs);
    let one = |n: u64| {
        let db = db.clone();
        move || {
            counted(|| {
                for i in 0..n {
                    db.get(&key(2 * (i as u32 % 500))).unwrap().unwrap();
                }
            })
            .1
        }
    };
    let perfs = std::thread::scope(|scope| {
        let threads: Vec<_> = [10, 1000, 300].map(|n| (n, scope.spawn(one(n)))).into();
        threads
            .into_iter()
            .map(|(n, t)| (n, t.join().unwrap()))
            .collect::<Vec<_>>()
    });
    let mut all = PerfContext::default();
    for (n, perf) in perfs {
        assert_eq!(perf.get(UserKeyReturnCount), n);
        assert_eq!(perf.get(GetReadBytes), 50 * n);
        all.merge(&perf);
    }
    assert_eq!(all.get(GetReadBytes), 50 * 1310);
}
