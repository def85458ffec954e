//! Repair without a MANIFEST: what logs have and no table has.

use std::collections::BTreeMap;
use std::path::Path;

use orogen_engine::{BottommostLevelCompaction, CompactRangeOptions, Db, Options, WriteOptions};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{MemFileSystem, PowerCut};

use crate::repair::{Content, content, options, repaired, run, tables, without_manifest};
use crate::support::DIR;

/// An open writes the memtables of its logs as tables, several at the same time.
fn opening(fs: &MemFileSystem) -> Options {
    let mut options = options(fs);
    options.cf.disable_auto_compactions = true;
    options
}

/// A log with three memtables, the last one small; and what it holds.
fn logged() -> (MemFileSystem, Content) {
    let fs = MemFileSystem::new();
    let mut options = options(&fs);
    options.cf.write_buffer_size = 1 << 20;
    let db = Db::open(DIR, &options).expect("opens");
    let (family, write) = (db.default_column_family(), WriteOptions::default());
    for n in 0..300u32 {
        let key = format!("key{:03}", n * 7 % 250);
        db.put(key.as_bytes(), format!("{n:0100}").as_bytes())
            .expect("writes");
        if n % 9 == 0 {
            let key = format!("key{:03}", n * 3 % 250);
            db.delete(key.as_bytes()).expect("writes");
        }
        if n % 10 == 3 {
            // Written once and deleted later, or not.
            db.put(format!("single{n:03}").as_bytes(), b"1")
                .expect("writes");
            if n > 90 {
                let key = format!("single{:03}", n - 90);
                db.single_delete_opt(&write, &family, key.as_bytes())
                    .expect("writes");
            }
        }
        if n == 130 || n == 260 {
            db.delete_range_opt(&write, &family, b"key1", b"key13")
                .expect("writes");
        }
        // Of one memtable, and of all.
        let here = format!("merge{:02}", n / 10);
        for key in [here.as_str(), "merges"] {
            db.merge_opt(&write, &family, key.as_bytes(), n.to_string().as_bytes())
                .expect("writes");
        }
    }
    let want = content(&db);
    (fs.crash(PowerCut::KeepAll), want)
}

/// All is as wanted but for operands: none is there twice.
fn check(want: &Content, found: &Content, what: &str) {
    let (want, found) = (&want["default"], &found["default"]);
    let without = |of: &BTreeMap<Vec<u8>, Vec<u8>>| {
        let mut of = of.clone();
        of.retain(|key, _| !key.starts_with(b"merge"));
        of
    };
    let (puts, puts_found) = (without(want), without(found));
    let differ = |key: &&Vec<u8>| puts.get(*key) != puts_found.get(*key);
    let keys = puts.keys().chain(puts_found.keys());
    let wrong: Vec<_> = keys.filter(differ).map(|k| k.escape_ascii()).collect();
    assert!(wrong.is_empty(), "{what}: {} differ", wrong.len());
    for (key, value) in found.iter().filter(|(key, _)| key.starts_with(b"merge")) {
        let text = std::str::from_utf8(value).expect("text");
        let operands: Vec<u32> = text
            .split(',')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let key = key.escape_ascii();
        assert!(operands.is_sorted_by(|a, b| a < b), "{what}: {key} {text}");
    }
}

/// Keys whose operands all stand in one memtable of those that became `tables`.
fn assert_whole_merges(want: &Content, found: &Content, except: usize, what: &str) {
    let differ = want["default"]
        .iter()
        .filter(|(key, _)| key.starts_with(b"merge"))
        .filter(|(key, value)| found["default"].get(*key) != Some(value))
        .count();
    assert!(differ <= except, "{what}: {differ}");
}

#[test]
fn all_that_logs_have_is_taken_whichever_tables_an_open_has_left() {
    let (image, want) = logged();
    let done = image.fork();
    let db = Db::open(DIR, &opening(&done)).unwrap();
    assert!(content(&db) == want);
    let made = tables(&done);
    drop(db);
    assert!(tables(&image).is_empty() && made.len() >= 3, "{made:?}");
    // Each is whole, cut off in its middle, or not there.
    let made = &made[made.len() - 3..];
    for way in 0..27usize {
        let fs = image.fork();
        for (i, name) in made.iter().enumerate() {
            let mut bytes = read_file(&done, Path::new(name)).unwrap();
            match way / 3usize.pow(i as u32) % 3 {
                0 => continue,
                1 => bytes.truncate(bytes.len() / 2),
                _ => {}
            }
            write_file(&fs, Path::new(name), &bytes).unwrap();
        }
        without_manifest(&fs);
        run(&fs);
        let what = format!("way {way}");
        let found = repaired(&fs);
        check(&want, &found, &what);
        // The one of all memtables, and those that stand on a border.
        assert_whole_merges(&want, &found, made.len(), &what);
    }
}

#[test]
fn all_that_logs_have_is_taken_after_a_power_cut_at_any_call_of_an_open() {
    let (image, want) = logged();
    for calls in 0.. {
        let fs = image.fork();
        fs.crash_after(calls);
        let ended = Db::open(DIR, &opening(&fs)).map(drop).is_ok();
        let fs = fs.crash(PowerCut::KeepAll);
        without_manifest(&fs);
        run(&fs);
        let what = format!("call {calls}");
        let found = repaired(&fs);
        check(&want, &found, &what);
        if ended {
            assert!(calls > 20, "{calls}");
            break;
        }
    }
}

#[test]
fn what_a_compaction_covered_is_not_taken_from_logs_again() {
    let fs = MemFileSystem::new();
    let options = options(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let rocks = db.create_column_family("rocks", options.cf).unwrap();
    let write = WriteOptions::default();
    let unlogged = WriteOptions {
        disable_wal: true,
        ..WriteOptions::default()
    };
    // Keeps the log.
    db.put(b"in-the-log", b"1").unwrap();
    db.put_opt(&write, &rocks, b"rock", b"1").unwrap();
    db.delete_opt(&write, &rocks, b"rock").unwrap();
    db.put_opt(&unlogged, &rocks, b"rock", b"2").unwrap();
    let all = CompactRangeOptions {
        bottommost_level_compaction: BottommostLevelCompaction::Force,
        ..CompactRangeOptions::default()
    };
    for _ in 0..2 {
        db.compact_range(&all, &rocks, None, None).unwrap();
    }
    let want = content(&db);
    assert_eq!(want["rocks"].len(), 1);
    let fs = fs.crash(PowerCut::KeepAll);
    without_manifest(&fs);
    run(&fs);
    assert!(repaired(&fs) == want);
}
