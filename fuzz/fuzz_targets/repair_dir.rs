//! Any bytes as the files of a database: repair ends, changes none of them, and what it makes opens.

#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_engine::repair::repair;
use orogen_engine::{Db, Options, ReadOptions};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::Choices;

const FILES: [&str; 6] = [
    "MANIFEST-000001",
    "000002.log",
    "000003.sst",
    "000004.sst",
    "CURRENT",
    "OPTIONS-000005",
];

fuzz_target!(|data: &[u8]| {
    let fs = MemFileSystem::new();
    fs.create_dir_all(Path::new("/db")).expect("memory");
    let mut choices = Choices::new(data);
    let mut files = Vec::new();
    while !choices.is_empty() {
        let name = FILES[usize::from(choices.byte()) % FILES.len()];
        let len = choices.short();
        let rest = choices.rest();
        let (bytes, rest) = rest.split_at(len.min(rest.len()));
        let path = Path::new("/db").join(name);
        write_file(&fs, &path, bytes).expect("memory");
        files.retain(|(p, _)| *p != path);
        files.push((path, bytes));
        choices = Choices::new(rest);
    }
    let mut options = Options::default();
    options.db.fs = Arc::new(fs.clone());
    options.db.info_log = false;
    let repaired = repair("/db", "/repaired", &options, &mut |_, _| {});
    for (path, bytes) in files {
        assert_eq!(read_file(&fs, &path).expect("memory"), bytes);
    }
    let made = fs.exists(Path::new("/repaired")).expect("memory");
    assert!(!made || repaired.is_ok());
    if made {
        let db = Db::open_read_only("/repaired", &options).expect("what repair made opens");
        for family in db.column_families() {
            let mut iter = db.iter(&ReadOptions::default(), &family).expect("memory");
            iter.seek_to_first();
            while iter.valid() {
                iter.next();
            }
            iter.status().expect("what repair made is whole");
        }
    }
});
