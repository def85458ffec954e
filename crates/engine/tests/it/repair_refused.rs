//! Repair: what an open refuses, and sends to a repair, has something to repair.

use std::path::Path;

use orogen_base::ErrorKind;
use orogen_engine::repair::{self, RepairReport};
use orogen_engine::{Db, FlushOptions, Options, WriteOptions};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_wal::Writer;

use crate::logs::record;
use crate::paranoid::track;
use crate::repair::{NEW, check, damage, options, repaired, run, sample, tables};
use crate::support::{DIR, scan, small};

fn examine(fs: &MemFileSystem) -> RepairReport {
    repair::examine(DIR, &options(fs), &mut |_, _| {}).expect("reads")
}

fn refusing(fs: &MemFileSystem) -> Options {
    let mut options = options(fs);
    options.db.refuse_log_damage = true;
    options
}

fn assert_refused(fs: &MemFileSystem, what: &str) {
    let opened = Db::open(DIR, &refusing(fs));
    let error = opened.map(drop).expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Corruption, "{what}: {error}");
}

fn keys(fs: &MemFileSystem, dir: &str) -> String {
    let db = Db::open(dir, &refusing(fs)).expect("opens");
    let all = scan(&db, &db.default_column_family()).into_iter();
    let keys: Vec<_> = all
        .map(|(key, _)| String::from_utf8(key).expect("text"))
        .collect();
    keys.join(" ")
}

/// How a log ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Whole,
    /// Within its last record.
    Torn,
    /// Before a record of a former use of its file.
    Old,
}

type Log<'a> = (&'a [(u64, &'a [u8])], End);

/// Logs without links, as RocksDB writes them, from number 900 on.
fn with_logs(logs: &[Log<'_>]) -> MemFileSystem {
    let fs = MemFileSystem::new();
    drop(Db::open(DIR, &small(&fs)).expect("a new one"));
    let write = |path: &Path, number, records: &[(u64, &[u8])]| {
        let mut writer = Writer::new(fs.create(path).expect("memory"), number, true);
        for &(seqno, key) in records {
            let record = record(seqno, 1, &[key]);
            writer.add_record(&record).expect("memory");
        }
    };
    for (number, &(records, end)) in (900..).zip(logs) {
        let path = Path::new(DIR).join(format!("{number:06}.log"));
        write(&path, number, records);
        match end {
            End::Whole => {}
            End::Torn => {
                let size = fs.metadata(&path).expect("is there").size;
                fs.truncate(&path, size - 3).expect("memory");
            }
            End::Old => {
                let other = Path::new(DIR).join("other");
                write(&other, 5, &[(1, b"old")]);
                let old = read_file(&fs, &other).expect("reads");
                fs.remove_file(&other).expect("memory");
                let mut file = fs.open_append(&path).expect("memory");
                file.append(&old).expect("memory");
            }
        }
    }
    fs
}

#[test]
fn writes_behind_a_log_that_may_lack_its_end_are_told_of_and_taken() {
    let (a, b, c): ((u64, &[u8]), _, _) = ((1, b"a"), (2, &b"b"[..]), (3, &b"c"[..]));
    let cases: [(&[Log<'_>], &str); 5] = [
        (&[(&[a, b], End::Torn), (&[c], End::Whole)], "a c"),
        (&[(&[a], End::Old), (&[c], End::Whole)], "a c"),
        (
            &[(&[a, b], End::Torn), (&[], End::Whole), (&[c], End::Whole)],
            "a c",
        ),
        (
            &[(&[a], End::Old), (&[], End::Whole), (&[c], End::Whole)],
            "a c",
        ),
        (&[(&[b], End::Torn), (&[c], End::Torn)], "none"),
    ];
    for (logs, found) in cases {
        let what = format!("{logs:?}");
        let fs = with_logs(logs);
        if found == "none" {
            // No write stands behind what is cut off.
            assert!(examine(&fs).is_healthy(), "{what}");
            assert_eq!(keys(&fs, DIR), "", "{what}");
            continue;
        }
        assert_refused(&fs.fork(), &what);
        let report = run(&fs);
        assert!(!report.is_healthy(), "{what}");
        let [log] = &report.logs_damaged[..] else {
            panic!("{what}: {report:?}")
        };
        assert_eq!((log.number, log.errors.len()), (900, 1), "{report:?}");
        assert!(log.errors[0].context("offset").is_some(), "{report:?}");
        assert_eq!(report.log_operations, 2, "{what}");
        assert_eq!(keys(&fs, NEW), found, "{what}");
    }
}

#[test]
fn a_log_that_goes_on_with_the_next_number_puts_nothing_in_doubt() {
    let (a, b, c): ((u64, &[u8]), _, _) = ((1, b"a"), (2, &b"b"[..]), (2, &b"c"[..]));
    let cases: [(&[Log<'_>], &str); 3] = [
        (&[(&[a, b], End::Torn), (&[c], End::Whole)], "a c"),
        (&[(&[a], End::Old), (&[b], End::Whole)], "a b"),
        (&[(&[], End::Old), (&[a], End::Whole)], "a"),
    ];
    for (logs, found) in cases {
        let fs = with_logs(logs);
        let report = examine(&fs);
        assert!(report.is_healthy(), "{logs:?}: {report:?}");
        assert_eq!(keys(&fs, DIR), found, "{logs:?}");
    }
}

#[test]
fn tables_that_are_ahead_of_a_log_that_is_cut_off_are_told_of() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let rocks = db.create_column_family("rocks", options.cf).unwrap();
    db.put(b"a", b"1").unwrap();
    db.put_opt(&WriteOptions::default(), &rocks, b"rock", b"1")
        .unwrap();
    db.put(b"b", b"1").unwrap();
    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&rocks))
        .unwrap();
    let fs = fs.crash(PowerCut::KeepAll);
    let mut logs = fs.list(Path::new(DIR)).unwrap();
    logs.retain(|name| name.ends_with(".log"));
    logs.sort();
    let [first, second] = &logs[..] else {
        panic!("{logs:?}")
    };
    fs.remove_file(&Path::new(DIR).join(second)).unwrap();
    let first = Path::new(DIR).join(first);
    fs.truncate(&first, fs.metadata(&first).unwrap().size - 3)
        .unwrap();
    assert_refused(&fs.fork(), "ahead");
    let report = run(&fs);
    assert_eq!(report.logs_damaged.len(), 1, "{report:?}");
    let found = repaired(&fs);
    assert_eq!((found["default"].len(), found["rocks"].len()), (1, 1));
}

#[test]
fn a_table_that_is_longer_than_the_manifest_says_is_made_anew() {
    for is_another_damaged in [false, true] {
        let (fs, want) = sample();
        let names = tables(&fs);
        let mut file = fs.open_append(Path::new(&names[0])).unwrap();
        file.append(b"x").unwrap();
        drop(file);
        if is_another_damaged {
            damage(&fs, &names[1], 0);
        }
        assert_refused(&fs, &names[0]);
        let report = run(&fs);
        let damaged = 1 + usize::from(is_another_damaged);
        assert_eq!(report.tables_damaged.len(), damaged, "{report:?}");
        let found = repaired(&fs);
        match is_another_damaged {
            true => check(&report, &want, &found, &names[1]),
            false => assert!(found == want),
        }
        let longer = &report.tables_damaged[..];
        let longer = longer
            .iter()
            .find(|t| names[0].ends_with(&format!("{:06}.sst", t.number)));
        assert!(longer.is_some_and(|t| t.lost.is_empty() && t.entries > 0));
    }
}

#[test]
fn a_tracked_log_that_is_missing_or_short_is_told_of() {
    for (is_gone, found) in [(true, "table"), (false, "log table")] {
        let fs = MemFileSystem::new();
        let mut options = options(&fs);
        options.db.avoid_flush_during_shutdown = true;
        let db = Db::open(DIR, &options).unwrap();
        db.put(b"table", b"1").unwrap();
        db.flush().unwrap();
        db.put(b"log", b"1").unwrap();
        db.close().unwrap();
        let mut logs = fs.list(Path::new(DIR)).unwrap();
        logs.retain(|name| name.ends_with(".log"));
        let [log] = &logs[..] else { panic!("{logs:?}") };
        let number = log.strip_suffix(".log").unwrap().parse().unwrap();
        let path = Path::new(DIR).join(log);
        // One that is in no use any more is not missed.
        track(&fs, 1, 100);
        let size = fs.metadata(&path).unwrap().size;
        track(&fs, number, size);
        assert!(examine(&fs).is_healthy(), "{is_gone}");
        match is_gone {
            true => fs.remove_file(&path).unwrap(),
            false => track(&fs, number, size + 1),
        }
        assert_refused(&fs, log);
        let report = run(&fs);
        assert!(!report.is_healthy());
        let told: Vec<_> = report.logs_damaged.iter().map(|l| l.number).collect();
        assert_eq!(told, [number], "{report:?}");
        assert_eq!(keys(&fs, NEW), found);
    }
}

#[test]
fn a_table_of_another_kind_is_not_left_out() {
    let (fs, _) = sample();
    let name = tables(&fs).pop().expect("there is one");
    let path = Path::new(DIR).join(&name);
    let mut bytes = read_file(&fs, &path).expect("reads");
    let size = bytes.len();
    // As a plain table of RocksDB ends, which has no blocks.
    bytes.fill(7);
    bytes[size - 8..].copy_from_slice(&0x8242_2296_63bf_9564_u64.to_le_bytes());
    write_file(&fs, &path, &bytes).expect("writes");
    for manifest in [true, false] {
        if !manifest {
            for name in fs.list(Path::new(DIR)).expect("lists") {
                if name == "CURRENT" || name.starts_with("MANIFEST") {
                    fs.remove_file(&Path::new(DIR).join(name))
                        .expect("is there");
                }
            }
        }
        let told = repair::repair(DIR, NEW, &options(&fs), &mut |_, _| {});
        let error = told.map(drop).expect_err("nothing may be lost");
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        assert!(!fs.exists(Path::new(NEW)).expect("asks"));
    }
}
