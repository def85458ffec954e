//! Logs: which of them a recovery reads.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_engine::options::WalRecoveryMode;
use orogen_engine::{ColumnFamily, Db, FlushOptions, WriteBatch, WriteOptions};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_wal::Writer;

use crate::steer::{Gate, hold_flushes_of};
use crate::support::{DIR, scan, small};

/// The log files, oldest first.
fn logs_of(fs: &MemFileSystem) -> Vec<PathBuf> {
    let mut names = fs.list(Path::new(DIR)).expect("the directory is there");
    names.retain(|name| name.ends_with(".log"));
    names.sort();
    names.iter().map(|name| Path::new(DIR).join(name)).collect()
}

#[test]
fn logs_kept_to_be_written_over_are_not_replayed_beside_an_idle_family() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.recycle_log_file_num = 2;
    let db = Db::open(DIR, &options).unwrap();
    // Never written: its log number in the MANIFEST stays where it began.
    db.create_column_family("idle", options.cf.clone()).unwrap();
    let busy = db.create_column_family("busy", options.cf).unwrap();
    let other = db.default_column_family();
    // One family pins every log until its own flush gives them all up: more than are kept, so
    // that the ones between those and the current log are deleted.
    let write = |round: u32, count: u32| {
        for n in 0..count {
            let key = format!("{round}-{n:04}");
            let family = if n % 8 == 0 { &other } else { &busy };
            db.put_opt(
                &WriteOptions::default(),
                family,
                key.as_bytes(),
                &[b'v'; 40],
            )
            .unwrap();
        }
    };
    for round in 0..6 {
        write(round, 60);
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&busy))
            .unwrap();
    }
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&other))
        .unwrap();
    write(6, 30);
    db.wait_for_background_work().unwrap();
    let want = [scan(&db, &busy), scan(&db, &other)];
    let killed = fs.crash(PowerCut::KeepAll);
    // What stands in a log that is not needed does not matter.
    let logs = logs_of(&killed);
    assert!(logs.len() > 2, "{logs:?}");
    for log in &logs[..logs.len() - 1] {
        killed
            .open_append(log)
            .unwrap()
            .append(&[0x5a; 100])
            .unwrap();
    }
    let db = Db::open(DIR, &small(&killed)).unwrap();
    let got = ["busy", "default"].map(|name| scan(&db, &db.column_family(name).unwrap()));
    assert_eq!(got, want);
}

#[test]
fn a_log_that_was_written_over_does_not_hide_the_logs_after_it() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.recycle_log_file_num = 2;
    let db = Db::open(DIR, &options).unwrap();
    let busy = db.create_column_family("busy", options.cf).unwrap();
    let other = db.default_column_family();
    let write = |round: u32, count: u32| {
        for n in 0..count {
            let key = format!("{round}-{n:04}");
            let family = if n % 3 == 0 { &other } else { &busy };
            db.put_opt(
                &WriteOptions::default(),
                family,
                key.as_bytes(),
                &[b'v'; 40],
            )
            .unwrap();
        }
    };
    for round in 0..4 {
        write(round, 60);
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&busy))
            .unwrap();
    }
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&other))
        .unwrap();
    db.wait_for_background_work().unwrap();
    // Two logs are written over, and neither is needed less than the one after it.
    for round in 4..8 {
        write(round, 31);
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&busy))
            .unwrap();
    }
    write(8, 31);
    let want = [scan(&db, &busy), scan(&db, &other)];
    let killed = fs.crash(PowerCut::KeepAll);
    let db = Db::open(DIR, &small(&killed)).unwrap();
    let got = ["busy", "default"].map(|name| scan(&db, &db.column_family(name).unwrap()));
    assert_eq!(got, want);
}

#[test]
fn bytes_behind_a_log_are_not_damage_if_the_next_log_goes_on_where_it_ends() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let busy = db.create_column_family("busy", options.cf).unwrap();
    let other = db.default_column_family();
    for (family, key) in [(&other, "a"), (&busy, "b")] {
        db.put_opt(&WriteOptions::default(), family, key.as_bytes(), b"1")
            .unwrap();
    }
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&busy))
        .unwrap();
    db.put(b"c", b"2").unwrap();
    let want = [scan(&db, &busy), scan(&db, &other)];
    let killed = fs.crash(PowerCut::KeepAll);
    let logs = logs_of(&killed);
    assert_eq!(logs.len(), 2);
    let mut first = killed.open_append(&logs[0]).unwrap();
    first.append(&[0x5a; 100]).unwrap();
    let db = Db::open(DIR, &small(&killed)).unwrap();
    let got = ["busy", "default"].map(|name| scan(&db, &db.column_family(name).unwrap()));
    assert_eq!(got, want);
}

#[test]
fn a_log_that_the_manifest_still_names_is_not_written_over() {
    // The power goes at each call of the next flush.
    for calls in 0..24 {
        let fs = MemFileSystem::new();
        let mut options = small(&fs);
        options.db.recycle_log_file_num = 2;
        let db = Db::open(DIR, &options).unwrap();
        let idle = db.create_column_family("idle", options.cf.clone()).unwrap();
        let pins = db.create_column_family("pins", options.cf).unwrap();
        let default = db.default_column_family();
        let write = WriteOptions::default();
        let flush = |family: &ColumnFamily| {
            db.flush_opt(&FlushOptions::default(), std::slice::from_ref(family))
        };
        // The MANIFEST says that a log is needed: for a family that is dropped then.
        db.put_opt(&write, &pins, b"a", &[b'v'; 400]).unwrap();
        db.put_opt(&write, &idle, b"a", &[b'v'; 400]).unwrap();
        flush(&idle).unwrap();
        db.put_opt(&write, &default, b"b", &[b'v'; 400]).unwrap();
        flush(&default).unwrap();
        db.drop_column_family(&pins).unwrap();
        db.wait_for_background_work().unwrap();
        db.put_opt(&write, &default, b"c", &[b'v'; 400]).unwrap();
        fs.crash_after(calls);
        // Another log begins, perhaps in the file of one that was given up.
        let _ = flush(&default);
        for seed in 0..20 {
            for cut in [PowerCut::Names { seed }, PowerCut::Torn { seed }] {
                let disk = fs.crash(cut);
                let mut options = small(&disk);
                options.db.recycle_log_file_num = 2;
                let after =
                    Db::open(DIR, &options).unwrap_or_else(|e| panic!("{calls} {cut:?}: {e}"));
                let family = after.default_column_family();
                assert!(!scan(&after, &family).is_empty(), "{calls} {cut:?}");
            }
        }
    }
}

#[test]
fn no_write_is_taken_behind_a_log_whose_name_could_not_be_synced() {
    let fs = FaultFileSystem::over_memory(MemFileSystem::new());
    let gate = Gate::new();
    let mut options = small(&MemFileSystem::new());
    options.db.fs = Arc::new(fs.clone());
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let flush = || db.flush_opt(&FlushOptions { wait: false }, std::slice::from_ref(&family));
    db.put(b"a", b"1").unwrap();
    // Begins a log, and nobody has needed its name yet.
    flush().unwrap();
    gate.wait_for(1);
    db.put(b"b", b"1").unwrap();
    fs.faults().add(Fault::io().on(&[OpKind::SyncDir]));
    let failed = flush();
    let synced = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    let next = db.put_opt(&synced, &family, b"c", b"1");
    gate.open();
    assert!(failed.is_err());
    assert_eq!(next.unwrap_err().kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_log_that_the_manifest_still_names_is_synced_before_what_comes_behind_it() {
    let fs = MemFileSystem::new();
    let options = small(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut waits = options.cf;
    waits.min_write_buffer_number_to_merge = 2;
    waits.max_write_buffer_number = 6;
    let waiting = db.create_column_family("waiting", waits).unwrap();
    let first = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    db.put_opt(&first, &waiting, b"first", b"1").unwrap();
    let reader = db.get_updates_since(1).unwrap();
    let before = logs_of(&fs).len();
    let mut n = 0u32;
    while logs_of(&fs).len() == before {
        db.put_opt(
            &WriteOptions::default(),
            &waiting,
            &n.to_be_bytes(),
            &[7; 500],
        )
        .unwrap();
        n += 1;
    }
    // Nobody needs the older log any more, but for the reader.
    db.drop_column_family(&waiting).unwrap();
    db.put_opt(&first, &db.default_column_family(), b"synced", b"1")
        .unwrap();
    let mut lost = small(&fs.crash(PowerCut::DropUnsynced));
    lost.db.create_if_missing = false;
    drop(reader);
    let again = Db::open(DIR, &lost).unwrap();
    assert_eq!(again.get(b"synced").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn a_log_behind_one_that_lost_a_prepared_write_is_not_taken() {
    let fs = MemFileSystem::new();
    let gate = Arc::new(Gate::default());
    let mut options = small(&fs);
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a", b"1").unwrap();
    let whole = fs.metadata(&logs_of(&fs)[0]).unwrap().size;
    let mut prepared = WriteBatch::new();
    prepared.put(0, b"x", b"1");
    db.prepare(&WriteOptions::default(), b"t", prepared)
        .unwrap();
    let family = db.default_column_family();
    let begun = FlushOptions { wait: false };
    db.flush_opt(&begun, std::slice::from_ref(&family)).unwrap();
    gate.wait_for(1);
    db.put(b"b", b"1").unwrap();
    let killed = fs.crash(PowerCut::KeepAll);
    gate.open();
    drop(db);
    let logs = logs_of(&killed);
    assert_eq!(logs.len(), 2);
    let size = killed.metadata(&logs[0]).unwrap().size;
    assert!(size > whole + 10);
    // In the middle of its record, and before it: numbers follow each other either way.
    for cut in [size - 3, whole] {
        let image = |mode| {
            let image = killed.fork();
            image.truncate(&logs[0], cut).unwrap();
            let mut options = small(&image);
            options.db.wal_recovery_mode = mode;
            options
        };
        let options = image(WalRecoveryMode::PointInTimeRecovery);
        let db = Db::open(DIR, &options).unwrap();
        let all = scan(&db, &db.default_column_family()).into_iter();
        let keys: Vec<_> = all.map(|(k, _)| k).collect();
        assert_eq!((keys, db.prepared_writes().len()), (vec![b"a".to_vec()], 0));
        let options = image(WalRecoveryMode::TolerateCorruptedTailRecords);
        let refused = Db::open(DIR, &options).map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corruption, "{refused}");
    }
}

/// A record of a log that puts `keys` and says that it puts `count`.
pub(crate) fn record(seqno: u64, count: u32, keys: &[&[u8]]) -> Vec<u8> {
    let mut record = [seqno.to_le_bytes().as_slice(), &count.to_le_bytes()].concat();
    for key in keys {
        record.extend([1, key.len() as u8]);
        record.extend_from_slice(key);
        record.extend([1, b'v']);
    }
    record
}

/// The keys that an open with this recovery mode finds.
fn keys_found(fs: &MemFileSystem, mode: WalRecoveryMode) -> String {
    keys_or_refused(fs, mode, false)
}

/// The same with `refuse_log_damage`.
fn keys_or_refused(fs: &MemFileSystem, mode: WalRecoveryMode, refuses: bool) -> String {
    let mut options = small(fs);
    options.db.wal_recovery_mode = mode;
    options.db.refuse_log_damage = refuses;
    match Db::open(DIR, &options) {
        Ok(db) => {
            let all = scan(&db, &db.default_column_family()).into_iter();
            let keys: Vec<_> = all
                .map(|(k, _)| String::from_utf8(k).expect("text"))
                .collect();
            keys.join(" ")
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Corruption);
            "refused".to_owned()
        }
    }
}

#[test]
fn a_record_that_is_no_batch_is_taken_for_damage() {
    let log = |fs: &MemFileSystem, bad: &[u8]| {
        drop(Db::open(DIR, &small(fs)).unwrap());
        let path = Path::new(DIR).join("000900.log");
        let mut writer = Writer::new(fs.create(&path).unwrap(), 900, false);
        let whole = [record(1, 1, &[b"a"]), record(3, 1, &[b"c"])];
        for record in [&whole[0][..], bad, &whole[1]] {
            writer.add_record(record).unwrap();
        }
    };
    // Says two and has one; is shorter than its head.
    for bad in [&record(2, 2, &[b"b"])[..], b"short"] {
        for (mode, keys) in [
            (WalRecoveryMode::SkipAnyCorruptedRecords, "a c"),
            (WalRecoveryMode::PointInTimeRecovery, "a"),
            (WalRecoveryMode::TolerateCorruptedTailRecords, "refused"),
            (WalRecoveryMode::AbsoluteConsistency, "refused"),
        ] {
            let fs = MemFileSystem::new();
            log(&fs, bad);
            assert_eq!(keys_or_refused(&fs, mode, true), "refused", "{mode:?}");
            assert_eq!(keys_found(&fs, mode), keys, "{mode:?}");
        }
    }
}

/// A record that says how long the log before is.
fn link(seqno: u64, log: u64, bytes: u64) -> Vec<u8> {
    let mut data = b"orogen.log.before\0".to_vec();
    data.extend(log.to_le_bytes());
    data.extend(bytes.to_le_bytes());
    let mut batch = WriteBatch::new();
    batch.put_log_data(&data);
    let mut record = batch.as_bytes().to_vec();
    record[..8].copy_from_slice(&seqno.to_le_bytes());
    record
}

#[test]
fn logs_behind_one_that_is_cut_off_are_refused_if_writes_stand_in_them() {
    let mode = WalRecoveryMode::PointInTimeRecovery;
    // A power loss left nothing of the second log but its begin; writes; writes behind a begin that cannot be read.
    for (has_writes, is_garbled) in [(false, false), (true, false), (true, true)] {
        let fs = MemFileSystem::new();
        drop(Db::open(DIR, &small(&fs)).unwrap());
        let [first, second] = [900, 901].map(|n| Path::new(DIR).join(format!("{n:06}.log")));
        let mut writer = Writer::new(fs.create(&first).unwrap(), 900, false);
        for (seqno, key) in [(1, &b"a"[..]), (2, b"b")] {
            writer.add_record(&record(seqno, 1, &[key])).unwrap();
        }
        drop(writer);
        let size = fs.metadata(&first).unwrap().size;
        fs.truncate(&first, size - 3).unwrap();
        let mut writer = Writer::new(fs.create(&second).unwrap(), 901, false);
        writer.add_record(&link(3, 900, size)).unwrap();
        if has_writes {
            writer.add_record(&record(3, 1, &[b"c"])).unwrap();
        }
        drop(writer);
        if is_garbled {
            let mut bytes = read_file(&fs, &second).unwrap();
            bytes[20] ^= 1;
            write_file(&fs, &second, &bytes).unwrap();
        }
        let wanted = if has_writes { "refused" } else { "a" };
        let found = keys_or_refused(&fs, mode, true);
        assert_eq!(found, wanted, "{has_writes} {is_garbled}");
        if has_writes {
            assert_eq!(keys_found(&fs, mode), "a", "{is_garbled}");
        }
    }
}

/// Logs as RocksDB writes them over older ones: without links, and with a whole record of the older log behind their end.
#[test]
fn a_log_that_may_lack_its_end_is_followed_by_the_next_number_only() {
    let write = |fs: &MemFileSystem, number: u64, records: &[(u64, &[u8])], is_recycled: bool| {
        let path = Path::new(DIR).join(format!("{number:06}.log"));
        let mut writer = Writer::new(fs.create(&path).unwrap(), number, true);
        for &(seqno, key) in records {
            writer.add_record(&record(seqno, 1, &[key])).unwrap();
        }
        drop(writer);
        if is_recycled {
            let other = Path::new(DIR).join("other");
            let mut writer = Writer::new(fs.create(&other).unwrap(), 5, true);
            writer.add_record(&record(1, 1, &[b"old"])).unwrap();
            drop(writer);
            let old = read_file(fs, &other).unwrap();
            fs.remove_file(&other).unwrap();
            fs.open_append(&path).unwrap().append(&old).unwrap();
        }
    };
    type Log<'a> = &'a [(u64, &'a [u8])];
    let cases: [(&[Log<'_>], &str); 7] = [
        (&[&[(1, b"a")], &[(3, b"c")]], "a"),
        (&[&[(1, b"a")], &[(2, b"b")]], "a b"),
        (&[&[(1, b"a")], &[(2, b"b")], &[(4, b"d")]], "a b"),
        (&[&[(1, b"a")], &[], &[(3, b"c")]], "a"),
        (&[&[(1, b"a")], &[], &[(2, b"b")]], "a b"),
        (&[&[], &[(1, b"a")], &[(2, b"b")]], "a b"),
        (&[&[], &[(2, b"b")]], ""),
    ];
    for (logs, keys) in cases {
        for is_recycled in [true, false] {
            let fs = MemFileSystem::new();
            drop(Db::open(DIR, &small(&fs)).unwrap());
            for (n, log) in (900..).zip(logs) {
                write(&fs, n, log, is_recycled);
            }
            let all: Vec<_> = logs.iter().copied().flatten().collect();
            let all: Vec<_> = all.iter().map(|r| String::from_utf8_lossy(r.1)).collect();
            let all = all.join(" ");
            let point_in_time = if is_recycled { keys } else { &all };
            for (mode, keys) in [
                (WalRecoveryMode::PointInTimeRecovery, point_in_time),
                (WalRecoveryMode::SkipAnyCorruptedRecords, &all),
                (WalRecoveryMode::TolerateCorruptedTailRecords, &all),
            ] {
                let context = format!("{logs:?} {mode:?} {is_recycled}");
                assert_eq!(keys_found(&fs.fork(), mode), keys, "{context}");
                let wanted = if keys == all { keys } else { "refused" };
                assert_eq!(keys_or_refused(&fs, mode, true), wanted, "{context}");
            }
        }
    }
}

#[test]
fn a_log_that_is_kept_at_open_puts_nothing_behind_it_in_doubt() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.recycle_log_file_num = 2;
    options.db.avoid_flush_during_recovery = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for round in 0..4u8 {
        for n in 0..40u8 {
            db.put(&[round, n], &[b'v'; 40]).unwrap();
        }
        db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))
            .unwrap();
    }
    // As long as those before it: its log ends where an old record begins.
    db.put(&[9, 9], &[b'v'; 40]).unwrap();
    let fs = fs.crash(PowerCut::KeepAll);
    drop(db);
    options.db.fs = Arc::new(fs.clone());
    let db = Db::open(DIR, &options).unwrap();
    // It takes a number, and leaves nothing behind.
    let unlogged = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    let family = db.default_column_family();
    db.put_opt(&unlogged, &family, b"unlogged", b"1").unwrap();
    db.put(b"second", b"1").unwrap();
    let db = Db::open(DIR, &small(&fs.crash(PowerCut::KeepAll))).unwrap();
    for key in [[9, 9].as_slice(), b"second"] {
        assert!(db.get(key).unwrap().is_some(), "{key:?}");
    }
}

#[test]
fn a_secondary_refuses_damage_that_nothing_goes_on_behind() {
    for goes_on in [false, true] {
        let fs = MemFileSystem::new();
        drop(Db::open(DIR, &small(&fs)).unwrap());
        let [first, second] = [900, 901].map(|n| Path::new(DIR).join(format!("{n:06}.log")));
        let mut writer = Writer::new(fs.create(&first).unwrap(), 900, false);
        let mut damaged_at = 0;
        for (seqno, key) in [(1, &b"a"[..]), (2, b"b"), (3, b"c")] {
            writer.add_record(&record(seqno, 1, &[key])).unwrap();
            damaged_at = if seqno == 1 {
                writer.size() as usize + 9
            } else {
                damaged_at
            };
        }
        drop(writer);
        let mut bytes = read_file(&fs, &first).unwrap();
        bytes[damaged_at] ^= 1;
        write_file(&fs, &first, &bytes).unwrap();
        if goes_on {
            // As the recovery of RocksDB does, which has kept the first.
            let mut writer = Writer::new(fs.create(&second).unwrap(), 901, false);
            writer.add_record(&record(2, 1, &[b"d"])).unwrap();
        }
        let mut options = small(&fs);
        options.db.refuse_log_damage = true;
        match Db::open_as_secondary(DIR, None, &options) {
            Ok(db) => {
                assert!(goes_on);
                for _ in 0..2 {
                    db.try_catch_up_with_primary().unwrap();
                    assert!(db.get(b"a").unwrap().is_some() && db.get(b"d").unwrap().is_some());
                    assert!(db.get(b"c").unwrap().is_none());
                }
            }
            Err(e) => {
                assert!(!goes_on, "{e}");
                assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                assert!(e.context("offset").is_some(), "{e}");
                options.db.refuse_log_damage = false;
                let db = Db::open_as_secondary(DIR, None, &options).unwrap();
                assert!(db.get(b"a").unwrap().is_some() && db.get(b"c").unwrap().is_none());
            }
        }
    }
}
