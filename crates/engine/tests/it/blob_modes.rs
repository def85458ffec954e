//! The run modes of blob files: what is separated, what stays, what comes back.

use std::path::Path;

use orogen_base::ErrorKind;
use orogen_base::metrics::Ticker;
use orogen_engine::{BlobRunMode, CollectBlobGarbageOptions, Db, Options};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};

use crate::blob_damage::{assert_damaged, assert_lives_on, damaged_value};
use crate::blob_faults::{get, put};
use crate::blobs::{assert_exact, assert_no_strays, compact_all, separated};
use crate::support::{DIR, scan};

fn quiet(fs: &MemFileSystem) -> Options {
    let mut options = separated(fs);
    options.cf.disable_auto_compactions = true;
    options
}

fn set(db: &Db, name: &str, value: &str) {
    let family = db.default_column_family();
    db.set_options(&family, &[(name, value)])
        .expect("it may change");
}

/// Values that pointers lead to.
pub(crate) fn apart(db: &Db) -> u64 {
    let files = db.live_blob_files();
    files
        .iter()
        .map(|f| f.total_blob_count - f.garbage_blob_count)
        .sum()
}

fn any_garbage() -> CollectBlobGarbageOptions {
    CollectBlobGarbageOptions {
        discardable_ratio: 0.0,
        ..CollectBlobGarbageOptions::default()
    }
}

#[test]
fn modes_say_what_goes_to_blob_files_and_what_comes_back() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &quiet(&fs)).unwrap();
    let family = db.default_column_family();
    let mut at = 0;
    let mut write = |db: &Db| {
        (at..at + 8).for_each(|n| put(db, n, 500));
        at += 8;
        db.flush().expect("the disk is well");
    };
    write(&db);
    assert_eq!(apart(&db), 8);
    // What is apart stays apart, and nothing joins it.
    set(&db, "blob_run_mode", "kReadOnly");
    write(&db);
    assert_eq!(apart(&db), 8);
    compact_all(&db, &family);
    assert_eq!(apart(&db), 8);
    set(&db, "blob_run_mode", "kNormal");
    compact_all(&db, &family);
    assert_eq!(apart(&db), 16);
    write(&db);
    // What a flush meets is inline; what a compaction meets comes back, collections ask for nothing more.
    set(&db, "blob_run_mode", "kFallback");
    write(&db);
    assert_eq!(apart(&db), 24);
    let of = |ticker| db.statistics().get(ticker);
    assert_eq!(of(Ticker::BlobValuesReturned), 0);
    compact_all(&db, &family);
    let returned = of(Ticker::BlobValuesReturned);
    assert!(returned > 0);
    assert_eq!(of(Ticker::BlobBytesReturned), returned * 500);
    assert_eq!(apart(&db), 0);
    assert_eq!(db.live_blob_files(), []);
    // The mode stands above `enable_blob_files`, not in its place.
    for (enabled, mode, wanted) in [
        ("false", "kNormal", 0),
        ("true", "kFallback", 0),
        ("true", "kReadOnly", 0),
        ("true", "kNormal", 32),
    ] {
        set(&db, "enable_blob_files", enabled);
        set(&db, "blob_run_mode", mode);
        compact_all(&db, &family);
        assert_eq!(apart(&db), wanted, "{enabled} {mode}");
    }
    let error = db
        .set_options(&family, &[("blob_run_mode", "kSlow")])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    for n in 0..32 {
        assert_eq!(get(&db, n), Some(vec![b'a' + n as u8; 500]));
    }
    assert_exact(&db, &family);
    assert_no_strays(&fs, &db);
}

/// A blob file of which half is garbage, with values of 500 bytes left.
fn half_dead(db: &Db) {
    let family = db.default_column_family();
    (0..16).for_each(|n| put(db, n, 500));
    compact_all(db, &family);
    (0..16).step_by(2).for_each(|n| put(db, n, 20));
    compact_all(db, &family);
    let garbage: u64 = db
        .live_blob_files()
        .iter()
        .map(|f| f.garbage_blob_count)
        .sum();
    assert_eq!((apart(db), garbage), (8, 8));
}

#[test]
fn garbage_is_collected_in_every_mode() {
    for mode in ["kNormal", "kReadOnly", "kFallback"] {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &quiet(&fs)).unwrap();
        let family = db.default_column_family();
        half_dead(&db);
        // Larger than what is left there, which was separated all the same.
        set(&db, "min_blob_size", "501");
        set(&db, "blob_run_mode", mode);
        let before = db.live_blob_files();
        db.collect_blob_garbage(&any_garbage(), &family).unwrap();
        let after = db.live_blob_files();
        assert!(after.iter().all(|f| f.garbage_blob_count == 0), "{mode}");
        assert!(after.iter().all(|f| !before.contains(f)), "{mode}");
        assert_eq!(
            apart(&db),
            if mode == "kReadOnly" { 8 } else { 0 },
            "{mode}"
        );
        assert_exact(&db, &family);
        assert_no_strays(&fs, &db);
        assert_eq!(scan(&db, &family).len(), 16);
    }
}

#[test]
fn what_cannot_be_read_stays_a_pointer_in_fallback() {
    let (fs, db) = damaged_value(|_| {});
    let family = db.default_column_family();
    set(&db, "blob_run_mode", "kFallback");
    compact_all(&db, &family);
    assert_eq!(apart(&db), 1);
    assert_damaged(&db);
    assert_eq!(db.damaged_blob_files().len(), 1);
    assert_no_strays(&fs, &db);
    // Nothing else comes to the file, nor to another.
    (30..36).for_each(|n| put(&db, n, 500));
    compact_all(&db, &family);
    assert_eq!(apart(&db), 1);
    assert_lives_on(&db, &[0, 2, 3, 4, 5, 6, 7]);
    assert_eq!(db.live_blob_files(), []);
}

#[test]
fn a_mode_is_kept_where_rocksdb_sees_a_comment() {
    let fs = MemFileSystem::new();
    let options = quiet(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    (0..8).for_each(|n| put(&db, n, 500));
    let changes = [
        ("blob_run_mode", "kFallback"),
        ("blob_file_discardable_ratio", "0.25"),
    ];
    db.set_options(&family, &changes).unwrap();
    db.set_db_options(&[("max_background_gc", "3")]).unwrap();
    db.close().unwrap();
    drop((family, db));
    let loaded = Db::load_latest_options(DIR, &options).unwrap();
    let cf = loaded.family("default");
    assert_eq!(cf.blob_run_mode, BlobRunMode::Fallback);
    assert_eq!(cf.blob_file_discardable_ratio, 0.25);
    assert_eq!(loaded.db.max_background_gc, 3);
    let db = Db::open(DIR, &loaded).unwrap();
    db.flush().unwrap();
    assert_eq!(apart(&db), 0);
    db.close().unwrap();
    drop(db);
    // One that is not known is told, as with any other setting; another's comment is none of ours.
    let names = fs.list(Path::new(DIR)).unwrap();
    let newest = names
        .iter()
        .filter(|n| n.starts_with("OPTIONS-"))
        .max()
        .unwrap();
    let path = Path::new(DIR).join(newest);
    let text = String::from_utf8(read_file(&fs, &path).unwrap()).unwrap();
    assert!(
        text.contains("  #orogen blob_run_mode=kFallback\n"),
        "{text}"
    );
    let change = |from: &str, to: &str| {
        let text = text.replace(from, to);
        write_file(&fs, &path, text.as_bytes()).unwrap();
        Db::load_latest_options(DIR, &options)
    };
    let error = change("=kFallback", "=kOther")
        .err()
        .expect("it is refused");
    assert_eq!(error.context("option"), Some("blob_run_mode"));
    let loaded = change("#orogen blob_run_mode", "# orogen blob_run_mode").unwrap();
    assert_eq!(loaded.family("default").blob_run_mode, BlobRunMode::Normal);
}
