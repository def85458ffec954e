//! Mistakes that punching holes into blob files invites: each test is one, brought about on purpose.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_engine::backup::{BackupEngine, BackupOptions};
use orogen_engine::version::BlobFileGarbage;
use orogen_engine::version::edit::VersionEdit;
use orogen_engine::{BlobFileCheck, Db, ReadOptions};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_wal::Writer;

use crate::blob_collection::collect;
use crate::blobs::{assert_exact, assert_no_strays, compact_all, key};
use crate::holes::punching;
use crate::steer::{Gate, HookFileSystem, Op, ends, on_thread, settle, until};
use crate::support::{DIR, scan};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const LEN: usize = 20_000;

fn put(db: &Db, map: &mut Map, n: usize, letter: u8) {
    let value = vec![letter; LEN];
    db.put(&key(n), &value).expect("the disk is well");
    map.insert(key(n), value);
}

/// Twenty values in one file.
fn fill(db: &Db, map: &mut Map) {
    (0..20).for_each(|n| put(db, map, n, b'a'));
    db.flush().expect("the disk is well");
}

/// Every second one of them becomes garbage.
fn overwrite(db: &Db, map: &mut Map) {
    (0..20).step_by(2).for_each(|n| put(db, map, n, b'b'));
    compact_all(db, &db.default_column_family());
}

fn given_up(db: &Db) -> Option<u64> {
    let files = db.live_blob_files();
    files.iter().filter_map(|f| f.given_up_bytes).max()
}

fn assert_holds(db: &Db, map: &Map) {
    let pairs: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert!(scan(db, &db.default_column_family()) == pairs);
}

#[test]
fn a_checkpoint_under_way_keeps_the_places_that_it_is_about_to_share() {
    let fs = MemFileSystem::new();
    let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(true)));
    let (theirs, is_armed) = (gate.clone(), armed);
    let mut options = punching(&fs);
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::Link && is_armed.swap(false, Ordering::SeqCst) {
            theirs.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    fill(&db, &mut map);
    let before = map.clone();
    let copying = {
        let db = db.clone();
        on_thread(move || db.checkpoint("/copy"))
    };
    gate.wait_for(1);
    // The file has one name still when its dead places are looked for and announced.
    overwrite(&db, &mut map);
    until(|| given_up(&db) == Some(0));
    gate.open();
    ends(&copying).unwrap();
    db.wait_for_background_work().unwrap();
    assert_eq!(given_up(&db), Some(0));
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 0);
    let mut alone = punching(&fs);
    alone.cf.blob_hole_punching = false;
    let copy = Db::open("/copy", &alone).unwrap();
    assert_holds(&copy, &before);
    assert_exact(&copy, &copy.default_column_family());
    assert_holds(&db, &map);
}

#[test]
fn a_file_that_tables_point_to_more_often_than_is_counted_gives_nothing_up() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    options.cf.blob_hole_punching = false;
    options.db.info_log = true;
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    fill(&db, &mut map);
    overwrite(&db, &mut map);
    let file = db.live_blob_files()[0].number;
    drop(db);
    // The MANIFEST takes a value for garbage that a table points to.
    say_of_garbage(
        &fs,
        BlobFileGarbage {
            number: file,
            garbage_blob_count: 1,
            garbage_blob_bytes: (32 + 6 + LEN) as u64,
            given_up_bytes: None,
        },
    );
    options.cf.blob_hole_punching = true;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let checks = db.check_blob_files(&family, true).unwrap();
    assert!(checks.iter().any(|c| c.number == file && !c.is_exact()));
    db.wait_for_background_work().unwrap();
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 0);
    assert_holds(&db, &map);
    let log = read_file(&fs, &Path::new(DIR).join("LOG")).unwrap();
    let told = format!("no space is given up in blob file {file}");
    assert!(String::from_utf8_lossy(&log).contains(&told));
}

fn say_of_garbage(fs: &MemFileSystem, garbage: BlobFileGarbage) {
    let mut edit = VersionEdit::of_column_family(0);
    edit.blob_file_garbages.push(garbage);
    add_edit(fs, &edit);
}

/// Adds an edit to the MANIFEST of a database that is closed.
pub(crate) fn add_edit(fs: &MemFileSystem, edit: &VersionEdit) {
    let current = read_file(fs, &Path::new(DIR).join("CURRENT")).expect("it is there");
    let name = String::from_utf8(current).expect("it is a name");
    let path = Path::new(DIR).join(name.trim_end());
    let size = fs.metadata(&path).expect("it is there").size;
    let (_, number) = name.trim_end().rsplit_once('-').expect("it has a number");
    let number: u64 = number.parse().expect("it is a number");
    let file = fs.open_append(&path).expect("it is there");
    let mut manifest = Writer::resume(file, number, false, size);
    manifest.add_record(&edit.encode()).expect("there is room");
    manifest.sync().expect("the disk is well");
}

#[test]
fn more_space_given_up_than_is_dead_is_told() {
    let fs = MemFileSystem::new();
    let mut options = punching(&fs);
    options.cf.blob_hole_punching = false;
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    fill(&db, &mut map);
    overwrite(&db, &mut map);
    let checks = |db: &Db| {
        db.check_blob_files(&db.default_column_family(), false)
            .unwrap()
    };
    let before = checks(&db);
    assert!(before.iter().all(BlobFileCheck::is_exact));
    let dead = before.iter().find(|c| c.punchable_bytes > Some(0)).unwrap();
    let (number, punchable_bytes) = (dead.number, dead.punchable_bytes.unwrap());
    let garbage = dead.file.as_ref().unwrap().garbage_blob_bytes;
    assert!(punchable_bytes <= garbage);
    drop(db);
    // What edits say adds up.
    for (more, holds) in [(punchable_bytes, true), (1, false)] {
        say_of_garbage(
            &fs,
            BlobFileGarbage {
                number,
                garbage_blob_count: 0,
                garbage_blob_bytes: 0,
                given_up_bytes: Some(more),
            },
        );
        let db = Db::open(DIR, &options).unwrap();
        for check in checks(&db) {
            assert_eq!(
                check.is_exact(),
                holds || check.number != number,
                "{check:?}"
            );
        }
    }
}

#[test]
fn a_file_whose_holes_wait_for_a_reader_may_be_emptied_meanwhile() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    fill(&db, &mut map);
    let before = map.clone();
    let old = db.live_blob_files()[0].number;
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    overwrite(&db, &mut map);
    until(|| given_up(&db) == Some(0));
    collect(&db, &family);
    assert!(db.live_blob_files().iter().all(|f| f.number != old));
    for (key, value) in &before {
        assert!(iter.key() == &key[..] && iter.value() == &value[..]);
        iter.next();
    }
    iter.status().unwrap();
    drop(iter);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
    // What comes next gets its holes as ever.
    (0..20).step_by(3).for_each(|n| put(&db, &mut map, n, b'c'));
    compact_all(&db, &family);
    until(|| given_up(&db).is_some_and(|bytes| bytes > 0));
    assert_holds(&db, &map);
    assert_exact(&db, &family);
}

#[test]
fn a_snapshot_keeps_what_it_sees_and_no_place_else() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    fill(&db, &mut map);
    // Nobody sees the first ones any more, the snapshot those of every second key.
    overwrite(&db, &mut map);
    let (snapshot, then) = (db.snapshot(), map.clone());
    until(|| given_up(&db).is_some_and(|bytes| bytes > 0));
    db.wait_for_background_work().unwrap();
    let with_snapshot = given_up(&db);
    (0..20).for_each(|n| put(&db, &mut map, n, b'c'));
    compact_all(&db, &family);
    db.wait_for_background_work().unwrap();
    assert_eq!(given_up(&db), with_snapshot);
    let view = ReadOptions {
        snapshot: Some(snapshot),
        ..ReadOptions::default()
    };
    for (key, value) in &then {
        let found = db.get_opt(&view, &family, key).unwrap();
        assert!(found.as_deref() == Some(&value[..]));
    }
    // More is written over while it is held: what neither sees goes.
    (0..10).for_each(|n| put(&db, &mut map, n, b'd'));
    compact_all(&db, &family);
    until(|| {
        let files = db.live_blob_files();
        files.iter().filter(|f| f.given_up_bytes > Some(0)).count() > 1
    });
    for (key, value) in &then {
        let found = db.get_opt(&view, &family, key).unwrap();
        assert!(found.as_deref() == Some(&value[..]));
    }
    assert_holds(&db, &map);
    assert_exact(&db, &family);
}

#[test]
fn dead_values_beside_each_other_are_one_hole() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    fill(&db, &mut map);
    for n in 4..14 {
        db.delete(&key(n)).unwrap();
        map.remove(&key(n));
    }
    compact_all(&db, &family);
    until(|| given_up(&db).is_some_and(|bytes| bytes > 0));
    db.wait_for_background_work().unwrap();
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 1);
    let bytes = db.statistics().get(Ticker::BlobHoleBytes);
    assert!(bytes as usize > 9 * LEN, "{bytes}");
    assert_holds(&db, &map);
    assert_exact(&db, &family);
}

#[test]
fn files_that_a_backup_copies_get_no_holes_meanwhile() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let gate = Gate::new();
    let theirs = gate.clone();
    let hooked = HookFileSystem::new(&fs, move |op, path| {
        let is_blob = path.to_string_lossy().contains(".blob");
        if op == Op::Append && is_blob {
            theirs.pass();
        }
    });
    let backup_options = BackupOptions {
        fs: Arc::new(hooked),
        ..BackupOptions::default()
    };
    let backups = Arc::new(BackupEngine::open("/backups", backup_options).unwrap());
    let mut map = Map::new();
    fill(&db, &mut map);
    let iter = db.iter(&ReadOptions::default(), &family).unwrap();
    overwrite(&db, &mut map);
    until(|| given_up(&db) == Some(0));
    // Its version is one of those that need the places no more.
    let copying = {
        let (db, backups) = (db.clone(), backups.clone());
        on_thread(move || backups.create_backup(&db))
    };
    gate.wait_for(1);
    drop(iter);
    db.wait_for_background_work().unwrap();
    settle();
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 0);
    gate.open();
    let made = ends(&copying).unwrap();
    backups.verify(made.id).unwrap();
    until(|| given_up(&db).is_some_and(|bytes| bytes > 0));
    backups.verify(made.id).unwrap();
    backups.restore(made.id, "/restored").unwrap();
    let restored = Db::open("/restored", &punching(&fs)).unwrap();
    assert_holds(&restored, &map);
    assert_exact(&restored, &restored.default_column_family());
}

/// Whoever only reads has no way to keep the writer from giving space up.
#[test]
fn a_checkpoint_beside_a_writer_is_whole_or_an_error() {
    for held_at in [".blob", ".sst"] {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &punching(&fs)).unwrap();
        let mut map = Map::new();
        fill(&db, &mut map);
        let before = map.clone();
        // The logs that the other one copies stay.
        let next = db.latest_sequence_number() + 1;
        let _pin = db.get_updates_since(next).unwrap();
        let (gate, armed) = (Gate::new(), Arc::new(AtomicBool::new(true)));
        let (theirs, is_armed) = (gate.clone(), armed);
        let mut options = punching(&fs);
        options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, path| {
            let is_held = op == Op::Link && path.to_string_lossy().ends_with(held_at);
            if is_held && is_armed.swap(false, Ordering::SeqCst) {
                theirs.pass();
            }
        }));
        let reader = Db::open_read_only(DIR, &options).unwrap();
        let copying = on_thread(move || reader.checkpoint("/copy"));
        gate.wait_for(1);
        overwrite(&db, &mut map);
        if held_at == ".blob" {
            until(|| given_up(&db) > Some(0));
        } else {
            settle();
        }
        gate.open();
        if ends(&copying).is_ok() {
            let mut alone = punching(&fs);
            alone.cf.blob_hole_punching = false;
            assert_holds(&Db::open("/copy", &alone).unwrap(), &before);
        }
        assert_holds(&db, &map);
    }
}

#[test]
fn who_reads_on_behind_a_close_is_told_of_holes() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    fill(&db, &mut map);
    let before = map.clone();
    let unchecked = ReadOptions {
        verify_checksums: false,
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&unchecked, &db.default_column_family()).unwrap();
    iter.seek_to_first();
    db.close().unwrap();
    drop(db);
    let db = Db::open(DIR, &options).unwrap();
    overwrite(&db, &mut map);
    until(|| given_up(&db) > Some(0));
    iter.seek_to_first();
    while iter.valid() {
        assert_eq!(iter.value(), &before[iter.key()][..]);
        iter.next();
    }
    assert!(iter.status().is_err(), "half of the values are gone");
}

/// The next open knows nothing of it, and makes holes as it likes.
#[test]
fn of_a_closed_database_no_backup_is_made() {
    let fs = MemFileSystem::new();
    let options = punching(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let mut map = Map::new();
    fill(&db, &mut map);
    let backup_options = BackupOptions {
        fs: Arc::new(fs),
        ..BackupOptions::default()
    };
    let backups = BackupEngine::open("/backups", backup_options).unwrap();
    backups.create_backup(&db).unwrap();
    db.close().unwrap();
    let other = Db::open(DIR, &options).unwrap();
    overwrite(&other, &mut map);
    until(|| given_up(&other) > Some(0));
    let e = backups.create_backup(&db).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed);
    assert_eq!(backups.list().unwrap().len(), 1);
    backups.create_backup(&other).unwrap();
}

#[test]
fn holes_end_at_once_when_they_are_turned_off() {
    let fs = MemFileSystem::new();
    let gate = Gate::new();
    let (passed, is_first) = (gate.clone(), AtomicBool::new(true));
    let mut options = punching(&fs);
    options.db.fs = Arc::new(HookFileSystem::new(&fs, move |op, _| {
        if op == Op::PunchHole && is_first.swap(false, Ordering::AcqRel) {
            passed.pass();
        }
    }));
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    fill(&db, &mut map);
    overwrite(&db, &mut map);
    gate.wait_for(1);
    let set = |on: &str| {
        let change = [("blob_hole_punching", on)];
        db.set_options(&family, &change).unwrap();
    };
    set("false");
    gate.open();
    // What was given up counts.
    until(|| given_up(&db) > Some(0));
    let noted = given_up(&db);
    for _ in 0..5 {
        settle();
    }
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 1);
    set("true");
    until(|| given_up(&db) > noted);
    assert!(db.statistics().get(Ticker::BlobHoles) > 1);
    assert_holds(&db, &map);
}

#[test]
fn holes_that_wait_are_not_made_once_they_are_off() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &punching(&fs)).unwrap();
    let family = db.default_column_family();
    let mut map = Map::new();
    fill(&db, &mut map);
    let iter = db.iter(&ReadOptions::default(), &family).unwrap();
    overwrite(&db, &mut map);
    until(|| given_up(&db) == Some(0));
    let set = |on: &str| {
        let change = [("blob_hole_punching", on)];
        db.set_options(&family, &change).unwrap();
    };
    set("false");
    drop(iter);
    for _ in 0..5 {
        settle();
    }
    assert_eq!(db.statistics().get(Ticker::BlobHoles), 0);
    assert_eq!(given_up(&db), Some(0));
    set("true");
    until(|| given_up(&db) > Some(0));
    assert_holds(&db, &map);
}
