//! Reads that meet an error, or what is of another database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use orogen_base::{Error, ErrorKind, Result};
use orogen_engine::{Db, ReadOptions, Update, WriteOptions};
use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind, RandomAccessFile};
use orogen_sst::{BlockCache, CompressionType};

use crate::steer::HookFileSystem;
use crate::support::{DIR, small};
use crate::watched::watched;

#[test]
fn a_memtable_that_cannot_be_read_hides_what_is_older() {
    let fs = MemFileSystem::new();
    let armed = Arc::new(AtomicBool::new(false));
    let mut options = small(&fs);
    options.cf.memtable_factory = watched(&armed, &Arc::default());
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    db.put(b"k", b"old").unwrap();
    db.flush().unwrap();
    db.put(b"k", b"new").unwrap();
    armed.store(true, Ordering::SeqCst);
    assert!(db.get(b"k").is_err());
    let found = db.multi_get(&ReadOptions::default(), &family, &[b"k", b"a"]);
    assert!(found.iter().all(Result::is_err), "{found:?}");
    armed.store(false, Ordering::SeqCst);
    let found = db.multi_get(&ReadOptions::default(), &family, &[b"k"]);
    assert_eq!(found[0].as_ref().unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_family_of_another_database_is_refused() {
    let open = || Db::open(DIR, &small(&MemFileSystem::new())).expect("memory");
    let (one, other) = (open(), open());
    let theirs = one.default_column_family();
    one.put(b"k", b"1").unwrap();
    let (read, write) = (ReadOptions::default(), WriteOptions::default());
    for refused in [
        other.get_opt(&read, &theirs, b"k").map(drop),
        other.multi_get(&read, &theirs, &[b"k"]).remove(0).map(drop),
        other.iter(&read, &theirs).map(drop),
        other.put_opt(&write, &theirs, b"k", b"2"),
        other.delete_opt(&write, &theirs, b"k"),
        other.delete_range_opt(&write, &theirs, b"a", b"z"),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(one.get(b"k").unwrap().as_deref(), Some(&b"1"[..]));
    assert!(other.get(b"k").unwrap().is_none());
    // One that was dropped is read on.
    let dropped = one
        .create_column_family("d", theirs.options().as_ref().clone())
        .unwrap();
    one.put_opt(&write, &dropped, b"k", b"1").unwrap();
    one.drop_column_family(&dropped).unwrap();
    assert!(one.get_opt(&read, &dropped, b"k").unwrap().is_some());
}

#[test]
fn updates_go_on_behind_an_error_of_the_disk() {
    let below = MemFileSystem::new();
    let fs = FaultFileSystem::new(Arc::new(below.clone()));
    let mut options = small(&below);
    options.db.fs = Arc::new(fs.clone());
    options.cf.write_buffer_size = 64 << 20;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..4000u32 {
        db.put(&n.to_be_bytes(), &[7; 1000]).unwrap();
    }
    for nth in 1.. {
        let mut updates = db.get_updates_since(1).unwrap();
        let before = fs.faults().injected();
        let fault = Fault::io().on(&[OpKind::Read]).path_with(".log");
        fs.faults().add(fault.nth(nth));
        let mut found: Vec<Update> = Vec::new();
        for update in updates.by_ref() {
            match update {
                Ok(update) => found.push(update),
                Err(e) => assert_eq!(e.kind(), ErrorKind::Io, "{nth}: {e}"),
            }
        }
        fs.faults().clear();
        assert_eq!(found.len(), 4000, "{nth}");
        if fs.faults().injected() == before {
            assert!(nth > 3);
            break;
        }
    }
}

/// Has a bad place.
struct BadAt(Arc<dyn RandomAccessFile>, u64);

impl RandomAccessFile for BadAt {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let range = offset..offset + buf.len() as u64;
        match range.contains(&self.1) && self.path().extension().is_some_and(|e| e == "sst") {
            true => Err(Error::new(ErrorKind::Io, "bad sector")),
            false => self.0.read_at(offset, buf),
        }
    }

    fn size(&self) -> Result<u64> {
        self.0.size()
    }

    fn path(&self) -> &std::path::Path {
        self.0.path()
    }
}

#[test]
fn a_scan_meets_only_the_errors_of_what_it_asks_for() {
    let fs = MemFileSystem::new();
    let mut options = small(&fs);
    options.cf.write_buffer_size = 4 << 20;
    options.cf.target_file_size_base = 4 << 20;
    options.cf.compression = CompressionType::None;
    options.cf.block_cache = Some(Arc::new(BlockCache::new(0)));
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..2000u32 {
        db.put(&n.to_be_bytes(), &[n as u8; 100]).unwrap();
    }
    db.flush().unwrap();
    db.close().unwrap();
    let bad = 150 << 10;
    options.db.fs = Arc::new(HookFileSystem::read_through(&fs, move |file| {
        Arc::new(BadAt(file, bad))
    }));
    let db = Db::open_read_only(DIR, &options).unwrap();
    let family = db.default_column_family();
    // A little before it: about 120 bytes a key.
    let read = ReadOptions {
        iterate_upper_bound: Some(1200u32.to_be_bytes().to_vec()),
        ..ReadOptions::default()
    };
    let mut iter = db.iter(&read, &family).unwrap();
    iter.seek_to_first();
    let mut seen = 0;
    while iter.valid() {
        seen += 1;
        iter.next();
    }
    iter.status().unwrap();
    assert_eq!(seen, 1200);
    let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
    iter.seek_to_first();
    while iter.valid() {
        iter.next();
    }
    assert_eq!(iter.status().unwrap_err().kind(), ErrorKind::Io);
}
