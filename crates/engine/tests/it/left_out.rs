//! Logs that recovery leaves out: what they hold must never come back, by whatever way and whenever the power fails.

use std::path::Path;

use orogen_base::ErrorKind;
use orogen_engine::batch::BatchOp;
use orogen_engine::options::WalRecoveryMode;
use orogen_engine::{Db, FlushOptions, Options};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_wal::Writer;

use crate::logs::record;
use crate::steer::{Gate, hold_flushes_of};
use crate::support::{DIR, scan, small};

/// A log as RocksDB writes it: puts with their numbers, and bytes behind them.
fn write_log(fs: &MemFileSystem, number: u64, puts: &[(u64, &str)], behind: &[u8]) {
    let path = Path::new(DIR).join(format!("{number:06}.log"));
    let mut writer = Writer::new(fs.create(&path).expect("memory"), number, true);
    for &(seqno, key) in puts {
        let record = record(seqno, 1, &[key.as_bytes()]);
        writer.add_record(&record).expect("memory");
    }
    drop(writer);
    let mut file = fs.open_append(&path).expect("it is there");
    file.append(behind).expect("memory");
}

/// A record of an older use of a log.
fn old_record(fs: &MemFileSystem) -> Vec<u8> {
    let path = Path::new("/old.log");
    let mut writer = Writer::new(fs.create(path).expect("memory"), 5, true);
    writer.add_record(&record(1, 1, &[b"old"])).expect("memory");
    drop(writer);
    read_file(fs, path).expect("it is there")
}

/// A disk with the files of a database, all of them synced, that was closed and to which logs were added.
fn disk(logs: impl FnOnce(&MemFileSystem)) -> MemFileSystem {
    let fs = MemFileSystem::new();
    drop(Db::open(DIR, &small(&fs)).expect("a new one"));
    logs(&fs);
    fs.sync_all();
    fs
}

fn keys(db: &Db) -> String {
    let all = scan(db, &db.default_column_family()).into_iter();
    let keys: Vec<_> = all
        .map(|(key, _)| String::from_utf8(key).expect("text"))
        .collect();
    keys.join(" ")
}

/// The keys of all updates that are in the logs, whatever stands between them.
fn updates(db: &Db) -> String {
    let mut keys = Vec::new();
    let updates = db.get_updates_since(1).or_else(|e| {
        let oldest = e.context("oldest").expect("some are there");
        db.get_updates_since(oldest.parse().expect("a number"))
    });
    let updates = updates.expect("it says itself that they are there");
    for update in updates {
        let update = match update {
            Ok(update) => update,
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                continue;
            }
        };
        for op in update.batch.iter() {
            if let BatchOp::Put { key, .. } = op.expect("it was written") {
                keys.push(String::from_utf8(key.to_vec()).expect("text"));
            }
        }
    }
    keys.join(" ")
}

/// Opens `disk`, with a power cut after each of its calls and after all of them; whatever of names is found then, another open
/// must have these keys, and none of `never` among its updates.
fn opens_alike(disk: &MemFileSystem, set: impl Fn(&mut Options), want: &str, never: &[&str]) {
    for calls in 0.. {
        let fs = disk.fork();
        let mut options = small(&fs);
        set(&mut options);
        fs.crash_after(calls);
        let opened = Db::open(DIR, &options);
        let is_whole = !fs.is_power_off();
        let cuts = (0..6)
            .map(|seed| PowerCut::Names { seed })
            .chain([PowerCut::KeepAll, PowerCut::DropUnsynced]);
        for cut in cuts {
            let fs = fs.crash(cut);
            let mut options = small(&fs);
            set(&mut options);
            let context = format!("{calls} calls, {cut:?}");
            let db = Db::open(DIR, &options).unwrap_or_else(|e| panic!("{context}: {e}"));
            assert_eq!(keys(&db), want, "{context}");
            for n in 0..5u8 {
                db.put(&[b'v' + n], b"new").expect("memory");
            }
            let all = updates(&db);
            for never in never {
                assert!(!all.split(' ').any(|key| key == *never), "{context}: {all}");
            }
            assert!(all.ends_with("v w x y z"), "{context}: {all}");
        }
        drop(opened);
        if is_whole {
            return;
        }
    }
}

#[test]
fn they_are_neither_archived_nor_found_by_another_open() {
    let disk = disk(|fs| {
        write_log(fs, 900, &[(1, "a")], &[0x5a; 100]);
        write_log(fs, 901, &[(3, "left")], &[]);
        write_log(fs, 902, &[(4, "left")], &[]);
    });
    let archiving = |options: &mut Options| options.db.wal_ttl_seconds = 1 << 30;
    opens_alike(&disk, archiving, "a", &["left"]);
}

#[test]
fn one_between_two_that_count_does_not_come_back() {
    let disk = disk(|fs| {
        write_log(fs, 900, &[(1, "a")], &[0x5a; 100]);
        write_log(fs, 901, &[(3, "left")], &[]);
        write_log(fs, 902, &[(2, "b")], &[]);
    });
    let in_memory = |options: &mut Options| options.db.avoid_flush_during_recovery = true;
    opens_alike(&disk, in_memory, "a b", &["left"]);
    opens_alike(&disk, |_| (), "a b", &["left"]);
}

#[test]
fn a_second_open_takes_what_the_first_took() {
    let disk = disk(|fs| {
        let old = old_record(fs);
        write_log(fs, 900, &[], &old);
        write_log(fs, 901, &[(1, "a")], &[]);
        write_log(fs, 902, &[(2, "b")], &[]);
    });
    opens_alike(&disk, |_| (), "a b", &[]);
}

#[test]
fn updates_end_at_a_record_where_recovery_ended() {
    // Says two and has one; is shorter than its head.
    for bad in [&record(2, 2, &[b"b"])[..], b"short"] {
        let fs = disk(|fs| {
            let path = Path::new(DIR).join("000900.log");
            let mut writer = Writer::new(fs.create(&path).unwrap(), 900, false);
            for record in [&record(1, 1, &[b"a"]), bad, &record(3, 1, &[b"c"])] {
                writer.add_record(record).unwrap();
            }
        });
        let mut options = small(&fs);
        options.db.wal_ttl_seconds = 1 << 30;
        let db = Db::open(DIR, &options).unwrap();
        assert_eq!(keys(&db), "a");
        db.put(b"x", b"new").unwrap();
        db.put(b"y", b"new").unwrap();
        assert_eq!(updates(&db), "a x y");
    }
}

#[test]
fn a_read_only_open_gives_no_updates_of_them() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.wal_recovery_mode = WalRecoveryMode::PointInTimeRecovery;
    let gate = Gate::new();
    options.db.listeners = vec![hold_flushes_of("default", &gate)];
    let db = Db::open(DIR, &options).unwrap();
    db.put(b"a1", b"1").unwrap();
    let first = {
        let mut names = fs.list(Path::new(DIR)).unwrap();
        names.retain(|name| name.ends_with(".log"));
        Path::new(DIR).join(names.iter().max().unwrap())
    };
    let size = read_file(&fs, &first).unwrap().len() as u64;
    db.put(b"a2", b"1").unwrap();
    let no_wait = FlushOptions { wait: false };
    let family = db.default_column_family();
    db.flush_opt(&no_wait, std::slice::from_ref(&family))
        .unwrap();
    db.put(b"b", b"1").unwrap();
    db.create_column_family("other", options.cf).unwrap();
    let killed = fs.crash(PowerCut::KeepAll);
    gate.open();
    drop(db);
    killed.truncate(&first, size).unwrap();
    let db = Db::open_read_only(DIR, &small(&killed)).unwrap();
    assert_eq!(keys(&db), "a1");
    assert_eq!(updates(&db), "a1");
}
