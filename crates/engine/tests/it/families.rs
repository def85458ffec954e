//! Column families.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::ErrorKind;
use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{ColumnFamilyOptions, Db, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{Clock, Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, SystemClock};

use crate::support::{DIR, scan, small};

#[test]
fn families_live_apart_and_are_written_together() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let options = small(&fs).cf;
    let users = db.create_column_family("users", options.clone()).unwrap();
    let posts = db.create_column_family("posts", options.clone()).unwrap();
    assert_eq!(
        db.create_column_family("users", options)
            .unwrap_err()
            .kind(),
        ErrorKind::InvalidArgument
    );
    let mut batch = WriteBatch::new();
    batch.put(0, b"k", b"default");
    batch.put(users.id(), b"k", b"user");
    batch.put(posts.id(), b"k", b"post");
    db.write(batch).unwrap();
    db.flush_opt(&Default::default(), std::slice::from_ref(&users))
        .unwrap();
    drop(db);
    let db = Db::open(DIR, &small(&fs)).unwrap();
    for (name, value) in [("default", "default"), ("users", "user"), ("posts", "post")] {
        let family = db.column_family(name).unwrap();
        let got = db
            .get_opt(&ReadOptions::default(), &family, b"k")
            .unwrap()
            .unwrap();
        assert_eq!(&*got, value.as_bytes());
    }
    let posts = db.column_family("posts").unwrap();
    db.drop_column_family(&posts).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(posts.id(), b"k", b"gone");
    assert_eq!(
        db.write(batch).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    drop(db);
    assert_eq!(
        Db::list_column_families(DIR, &small(&fs)).unwrap(),
        ["default", "users"]
    );
}

#[test]
fn merges_fold_in_memory_in_tables_and_after_reopen() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    let write = WriteOptions::default();
    for part in ["a", "b", "c", "d"] {
        db.merge_opt(&write, &cf, b"k", part.as_bytes()).unwrap();
        if part == "b" {
            db.flush().unwrap();
        }
    }
    assert_eq!(&*db.get(b"k").unwrap().unwrap(), b"a,b,c,d");
    drop(db);
    // The operator's name stands in the OPTIONS file.
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let cf = db.default_column_family();
    assert_eq!(&*db.get(b"k").unwrap().unwrap(), b"a,b,c,d");
    db.compact_range(&Default::default(), &cf, None, None)
        .unwrap();
    assert_eq!(scan(&db, &cf), [(b"k".to_vec(), b"a,b,c,d".to_vec())]);
    drop(db);
    let plain = ColumnFamilyOptions::default();
    let other = MemFileSystem::new();
    let mut options = small(&other);
    options.cf = plain;
    let db = Db::open(DIR, &options).unwrap();
    let cf = db.default_column_family();
    let refused = db.merge_opt(&write, &cf, b"k", b"x").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn an_options_file_that_cannot_be_read_is_told_in_the_log() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.db.info_log = true;
    drop(Db::open(DIR, &options).unwrap());
    let names = fs.list(Path::new(DIR)).unwrap();
    let newest = names.iter().filter(|n| n.starts_with("OPTIONS-")).max();
    let newest = newest.expect("an open database writes one").clone();
    let told = || {
        let log = read_file(&fs, &Path::new(DIR).join("LOG")).unwrap();
        String::from_utf8(log)
            .unwrap()
            .contains(&format!("{newest} cannot be read"))
    };
    drop(Db::open(DIR, &options).unwrap());
    assert!(!told());
    for name in names.iter().filter(|n| n.starts_with("OPTIONS-")) {
        write_file(&fs, &Path::new(DIR).join(name), b"[CFOptions").unwrap();
    }
    let names = fs.list(Path::new(DIR)).unwrap();
    for name in names
        .iter()
        .filter(|n| n.starts_with("OPTIONS-") && **n > newest)
    {
        fs.remove_file(&Path::new(DIR).join(name)).unwrap();
    }
    drop(Db::open(DIR, &options).unwrap());
    assert!(told());
}

#[test]
fn tables_of_a_dropped_family_go_with_its_last_reader() {
    let fs = MemFileSystem::new();
    let db = Db::open(DIR, &small(&fs)).unwrap();
    let family = db.create_column_family("f", small(&fs).cf).unwrap();
    db.put_opt(&WriteOptions::default(), &family, b"k", b"v")
        .unwrap();
    db.flush_opt(&Default::default(), std::slice::from_ref(&family))
        .unwrap();
    let tables = || {
        let names = fs.list(Path::new(DIR)).unwrap();
        names.iter().filter(|n| n.ends_with(".sst")).count()
    };
    db.drop_column_family(&family).unwrap();
    db.wait_for_background_work().unwrap();
    // The background looks a last time and goes to sleep.
    SystemClock.sleep(Duration::from_millis(100));
    assert_eq!(tables(), 1);
    assert!(
        db.get_opt(&ReadOptions::default(), &family, b"k")
            .unwrap()
            .is_some()
    );
    drop(family);
    for _ in 0..5_000 {
        if tables() == 0 {
            return;
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    panic!("nobody deleted it");
}

#[test]
fn an_open_that_makes_many_families_writes_one_options_file() {
    let faulty = FaultFileSystem::new(Arc::new(MemFileSystem::new()));
    // The second one is not written.
    let second = Fault::io().on(&[OpKind::Create]).path_with("OPTIONS");
    let mut options = small(&MemFileSystem::new());
    options.db.fs = Arc::new(faulty.clone());
    options.db.create_missing_column_families = true;
    for n in 0..10 {
        let family = options.cf.clone();
        options.families.insert(format!("cf{n}"), family);
    }
    faulty.faults().add(second.nth(2).forever());
    drop(Db::open(DIR, &options).unwrap());
    assert_eq!(faulty.faults().injected(), 0);
}
