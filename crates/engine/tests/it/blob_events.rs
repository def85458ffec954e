//! What is told of blob files: events, counters, properties.

use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_engine::events::{
    BlobFileCreationInfo, CompactionInfo, DamagedBlobFile, EventListener, FlushInfo,
};
use orogen_engine::{Db, Options, ReadOptions, filename};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{FileSystem, MemFileSystem};
use parking_lot::Mutex;

use crate::blobs::{assert_no_strays, compact_all, key, separated};
use crate::steer::until;
use crate::support::DIR;

#[derive(Default)]
struct Told {
    flushes: Mutex<Vec<FlushInfo>>,
    compactions: Mutex<Vec<CompactionInfo>>,
    created: Mutex<Vec<BlobFileCreationInfo>>,
    deleted: Mutex<Vec<u64>>,
    damaged: Mutex<Vec<DamagedBlobFile>>,
}

impl EventListener for Told {
    fn on_flush_completed(&self, info: &FlushInfo) {
        self.flushes.lock().push(info.clone());
    }
    fn on_compaction_completed(&self, info: &CompactionInfo) {
        self.compactions.lock().push(info.clone());
    }
    fn on_blob_file_created(&self, info: &BlobFileCreationInfo) {
        self.created.lock().push(info.clone());
    }
    fn on_blob_file_deleted(&self, file: u64) {
        self.deleted.lock().push(file);
    }
    fn on_blob_file_damaged(&self, info: &DamagedBlobFile) {
        self.damaged.lock().push(info.clone());
    }
}

fn listened(fs: &MemFileSystem) -> (Arc<Told>, Options) {
    let told = Arc::new(Told::default());
    let mut options = separated(fs);
    options.cf.disable_auto_compactions = true;
    options.cf.blob_file_size = 1 << 20;
    options.cf.enable_blob_garbage_collection = true;
    options.cf.blob_garbage_collection_age_cutoff = 1.0;
    options.db.listeners.push(told.clone());
    (told, options)
}

fn number(db: &Db, name: &str) -> u64 {
    let family = db.default_column_family();
    db.int_property(&family, name)
        .unwrap_or_else(|| panic!("{name}"))
}

/// Bytes of the record of `key` with 500 bytes.
fn record() -> u64 {
    32 + key(0).len() as u64 + 500
}

#[test]
fn files_are_told_of_from_their_first_byte_to_their_end() {
    let fs = MemFileSystem::new();
    let (told, options) = listened(&fs);
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    let of = |ticker| db.statistics().get(ticker);
    for n in 0..10 {
        db.put(&key(n), &[1; 500]).unwrap();
    }
    db.flush().unwrap();
    let first = db.live_blob_files().remove(0);
    let flush = told.flushes.lock().remove(0);
    assert_eq!(flush.blob_file_additions.len(), 1);
    let addition = flush.blob_file_additions[0].clone();
    assert_eq!(addition.number, first.number);
    assert_eq!(
        (addition.total_blob_count, addition.total_blob_bytes),
        (10, 10 * record())
    );
    let created = told.created.lock().remove(0);
    assert_eq!((created.job_id, &created.file), (flush.job_id, &addition));
    assert_eq!(
        (created.column_family.as_str(), created.reason),
        ("default", flush.reason)
    );
    let path = filename::blob_path(Path::new(DIR), first.number);
    let size = fs.metadata(&path).unwrap().size;
    assert_eq!(of(Ticker::BlobDbBlobFileBytesWritten), size);
    assert_eq!(of(Ticker::BlobDbBlobFileSynced), 1);
    assert_eq!(of(Ticker::BlobDbNumKeysWritten), 10);
    assert_eq!(number(&db, "orogen.num-blob-files-at-level0"), 1);
    assert!(flush.bytes > size);

    // A third of it becomes garbage, and the rest is moved on.
    for n in 0..3 {
        db.put(&key(n), &[2; 500]).unwrap();
    }
    db.flush().unwrap();
    let mut reader = db.iter(&ReadOptions::default(), &family).unwrap();
    reader.seek_to_first();
    assert_eq!(number(&db, "orogen.num-blob-files-garbage-le0"), 2);
    compact_all(&db, &family);
    let compaction = told.compactions.lock().pop().unwrap();
    let garbages = &compaction.blob_file_garbages;
    assert_eq!(garbages.len(), 2, "{garbages:?}");
    assert_eq!(garbages[0].number, first.number);
    assert_eq!(
        (
            garbages[0].garbage_blob_count,
            garbages[0].garbage_blob_bytes
        ),
        (10, 10 * record())
    );
    assert_eq!(
        (
            garbages[1].garbage_blob_count,
            garbages[1].garbage_blob_bytes
        ),
        (3, 3 * record())
    );
    let added: u64 = compaction
        .blob_file_additions
        .iter()
        .map(|a| a.total_blob_count)
        .sum();
    assert_eq!(added, 10);
    let created = told.created.lock().clone();
    let last = created.last().unwrap();
    assert_eq!(Some(&last.file), compaction.blob_file_additions.last());
    assert_eq!(last.job_id, compaction.job_id);
    assert_eq!(of(Ticker::BlobDbGcNumKeysRelocated), 10);
    assert_eq!(of(Ticker::BlobDbNumKeysWritten), 10 + 3 + 10);
    assert_eq!(number(&db, "orogen.num-blob-files-at-level0"), 0);
    assert_eq!(of(Ticker::BlobDbGcBytesRelocated), 10 * 500);

    // The reader keeps the old files.
    assert!(told.deleted.lock().is_empty());
    assert_eq!(number(&db, "orogen.num-obsolete-blob-files"), 2);
    // Of whole files, as the disk has them.
    let size = |n: u64| {
        let path = filename::blob_path(Path::new(DIR), n);
        fs.metadata(&path).unwrap().size
    };
    let old = size(garbages[0].number) + size(garbages[1].number);
    let live: u64 = db.live_blob_files().iter().map(|f| size(f.number)).sum();
    assert!(old > 13 * record() && live > 10 * record());
    assert_eq!(number(&db, "orogen.obsolete-blob-file-size"), old);
    assert_eq!(number(&db, "rocksdb.live-blob-file-size"), live);
    assert_eq!(number(&db, "rocksdb.total-blob-file-size"), live + old);
    let stats = db.property(&family, "rocksdb.blob-stats").unwrap();
    let total = format!("Total size of blob files: {live}\n");
    assert!(stats.contains(&total), "{stats}");
    assert_eq!(number(&db, "orogen.live-blob-size"), 10 * record());
    let holders = db.holders();
    assert_eq!(holders.obsolete_blob_files.len(), 2);
    assert!(holders.to_text().contains("obsolete blob_file="));
    drop(reader);
    db.wait_for_background_work().unwrap();
    assert_no_strays(&fs, &db);
    until(|| told.deleted.lock().len() == 2);
    let mut deleted = told.deleted.lock().clone();
    deleted.sort_unstable();
    assert_eq!(deleted, [garbages[0].number, garbages[1].number]);
    assert_eq!(number(&db, "orogen.num-obsolete-blob-files"), 0);
}

#[test]
fn properties_tell_files_by_how_much_of_them_is_garbage() {
    let fs = MemFileSystem::new();
    let (_, mut options) = listened(&fs);
    options.cf.enable_blob_garbage_collection = false;
    options.cf.blob_gc_auto = false;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for n in 0..10 {
        db.put(&key(n), &[1; 500]).unwrap();
    }
    db.flush().unwrap();
    let buckets = || {
        [0, 20, 50, 80, 100].map(|p| number(&db, &format!("orogen.num-blob-files-garbage-le{p}")))
    };
    assert_eq!(buckets(), [1, 0, 0, 0, 0]);
    for (gone, wanted) in [
        (2, [0, 1, 0, 0, 0]),
        (3, [0, 0, 1, 0, 0]),
        (6, [0, 0, 0, 1, 0]),
        (9, [0, 0, 0, 0, 1]),
    ] {
        for n in 0..gone {
            db.delete(&key(n)).unwrap();
        }
        db.flush().unwrap();
        compact_all(&db, &family);
        assert_eq!(buckets(), wanted, "{gone}");
        assert_eq!(
            number(&db, "orogen.live-blob-size"),
            (10 - gone as u64) * record()
        );
        assert_eq!(
            number(&db, "rocksdb.live-blob-file-garbage-size"),
            gone as u64 * record()
        );
        assert_eq!(
            db.live_blob_files()[0].garbage_percent_le(),
            [0, 20, 50, 80, 100][wanted.iter().position(|&w| w == 1).unwrap()]
        );
    }
    assert!(
        db.int_property(&family, "orogen.num-blob-files-garbage-le30")
            .is_none()
    );
    assert!(
        db.int_property(&family, "rocksdb.blob-cache-capacity")
            .is_none()
    );
    db.close().unwrap();
    options.cf.blob_cache = true;
    let db = Db::open(DIR, &options).unwrap();
    assert_eq!(number(&db, "rocksdb.blob-cache-capacity"), 32 << 20);
    let before = number(&db, "rocksdb.blob-cache-usage");
    let held = db.get(&key(9)).unwrap().unwrap();
    assert!(number(&db, "rocksdb.blob-cache-usage") >= before + 500);
    assert!(number(&db, "rocksdb.blob-cache-pinned-usage") >= 500);
    drop(held);
}

#[test]
fn a_damaged_blob_file_is_told_of_once() {
    let fs = MemFileSystem::new();
    let (told, mut options) = listened(&fs);
    options.cf.enable_blob_garbage_collection = false;
    let db = Db::open(DIR, &options).unwrap();
    for n in 0..3 {
        db.put(&key(n), &[b'a' + n as u8; 500]).unwrap();
    }
    db.flush().unwrap();
    let blob = db.live_blob_files().remove(0).number;
    db.close().unwrap();
    let path = filename::blob_path(Path::new(DIR), blob);
    let mut bytes = read_file(&fs, &path).unwrap();
    let at = bytes.iter().position(|&b| b == b'b').unwrap();
    bytes[at + 100] ^= 4;
    write_file(&fs, &path, &bytes).unwrap();
    options.cf.enable_blob_garbage_collection = true;

    type Meet = fn(&Db);
    let ways: [Meet; 6] = [
        |db| {
            let error = db.get(&key(1)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption);
        },
        |db| {
            let family = db.default_column_family();
            let found = db.multi_get(&ReadOptions::default(), &family, &[&key(0), &key(1)]);
            assert!(found[0].is_ok() && found[1].is_err());
        },
        |db| {
            let family = db.default_column_family();
            let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
            iter.seek_to_first();
            iter.next();
            assert!(iter.status().is_err());
        },
        |db| {
            let found = db.scrub(&Default::default(), &mut |_, _| {}).unwrap();
            assert_eq!(found.damaged_blob_files.len(), 1);
        },
        |db| assert!(db.verify_checksums().is_err()),
        |db| compact_all(db, &db.default_column_family()),
    ];
    for meet in ways {
        told.damaged.lock().clear();
        let db = Db::open(DIR, &options).unwrap();
        let family = db.default_column_family();
        assert!(db.damaged_blob_files().is_empty());
        assert_eq!(number(&db, "orogen.num-damaged-blob-files"), 0);
        let before = db.statistics().get(Ticker::DamagedBlobFiles);
        meet(&db);
        assert!(db.get(&key(1)).is_err());
        let listed = db.damaged_blob_files();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].number, blob);
        assert!(listed[0].offset.is_some(), "{listed:?}");
        assert_eq!(told.damaged.lock().len(), 1);
        assert_eq!(db.statistics().get(Ticker::DamagedBlobFiles), before + 1);
        assert_eq!(number(&db, "orogen.num-damaged-blob-files"), 1);
        let text = db.property(&family, "orogen.damaged-files").unwrap();
        assert!(text.starts_with(&format!("{blob:06}.blob ")), "{text}");
        // The others are read, and it takes writes.
        assert!(db.get(&key(0)).unwrap().is_some() && db.get(&key(2)).unwrap().is_some());
        db.put(b"more", b"").unwrap();
        db.close().unwrap();
    }
}

#[test]
fn lengths_of_values_and_files_that_iterators_read_are_distributions() {
    let fs = MemFileSystem::new();
    let (_, mut options) = listened(&fs);
    options.cf.enable_blob_garbage_collection = false;
    let db = Db::open(DIR, &options).unwrap();
    let family = db.default_column_family();
    for (round, len) in [300, 500, 50, 900].into_iter().enumerate() {
        for n in 0..5 {
            db.put(&key(10 * n + round), &vec![b'v'; len]).unwrap();
        }
        db.flush().unwrap();
    }
    let told = |kind| {
        let statistics = db.statistics();
        let histogram = statistics.histogram(kind);
        (histogram.count(), histogram.sum())
    };
    // What is short stays where it is, and what moves was told of before.
    let lengths = (15, 5 * (300 + 500 + 900));
    assert_eq!(told(HistogramKind::BlobDbValueSize), lengths);
    compact_all(&db, &family);
    assert_eq!(told(HistogramKind::BlobDbValueSize), lengths);
    assert_eq!(told(HistogramKind::BlobIterTouchedFiles), (0, 0));
    let scan_first = |values: usize| {
        let mut iter = db.iter(&ReadOptions::default(), &family).unwrap();
        iter.seek_to_first();
        (1..values).for_each(|_| iter.next());
        assert!(iter.valid() && iter.status().is_ok());
    };
    scan_first(20);
    assert_eq!(told(HistogramKind::BlobIterTouchedFiles), (1, 3));
    scan_first(1);
    assert_eq!(told(HistogramKind::BlobIterTouchedFiles), (2, 4));
    db.get(&key(0)).unwrap();
    assert_eq!(told(HistogramKind::BlobIterTouchedFiles), (2, 4));
}
