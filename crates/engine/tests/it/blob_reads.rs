//! How many reads scans over large values cost.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use orogen_base::Result;
use orogen_base::perf::{PerfContext, PerfCounter, PerfLevel};
use orogen_base::slice_transform::FixedPrefix;
use orogen_engine::{
    BottommostLevelCompaction, CollectBlobGarbageOptions, CompactRangeOptions, Db, Options,
    ReadOptions,
};
use orogen_env::MemFileSystem;
use orogen_env::fs::RandomAccessFile;
use orogen_testkit::Rng;
use parking_lot::Mutex;

use crate::blobs::separated;
use crate::steer::HookFileSystem;
use crate::support::DIR;

const VALUES: usize = 2_000;
const VALUE_LEN: usize = 500;

fn key(n: usize) -> Vec<u8> {
    format!("key{n:06}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    Rng::new(n as u64).bytes(VALUE_LEN)
}

fn filled(fs: &MemFileSystem, change: impl FnOnce(&mut Options)) -> Db {
    let mut options = separated(fs);
    options.cf.blob_file_size = 1 << 30;
    options.cf.write_buffer_size = 16 << 20;
    change(&mut options);
    let db = Db::open(DIR, &options).expect("the disk is well");
    for n in 0..VALUES {
        db.put(&key(n), &value(n)).expect("the disk is well");
    }
    db.flush().expect("the disk is well");
    assert_eq!(db.live_blob_files().len(), 1);
    db
}

/// Reads and bytes out of blob files of a walk through all values.
fn walk(db: &Db, options: &ReadOptions, back: bool) -> (u64, u64) {
    let walk = || {
        let mut iter = db
            .iter(options, &db.default_column_family())
            .expect("the disk is well");
        match back {
            true => iter.seek_to_last(),
            false => iter.seek_to_first(),
        }
        for n in 0..VALUES {
            let n = if back { VALUES - 1 - n } else { n };
            assert_eq!((iter.key(), iter.value()), (&key(n)[..], &value(n)[..]));
            match back {
                true => iter.prev(),
                false => iter.next(),
            }
        }
        assert!(!iter.valid());
        iter.status().expect("the disk is well");
    };
    let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, walk);
    (
        perf.get(PerfCounter::BlobReadCount),
        perf.get(PerfCounter::BlobReadByte),
    )
}

#[test]
fn scans_read_values_together_in_both_directions() {
    let fs = MemFileSystem::new();
    let db = filled(&fs, |_| {});
    let bytes = (VALUES * VALUE_LEN) as u64;
    for (fill_cache, readahead_size) in [(true, 0), (false, 0), (true, 1 << 20)] {
        let options = ReadOptions {
            fill_cache,
            readahead_size,
            ..ReadOptions::default()
        };
        let forward = walk(&db, &options, false);
        let backward = walk(&db, &options, true);
        for (reads, read) in [forward, backward] {
            assert!(reads < 30, "{reads} reads");
            assert!((bytes..bytes * 5 / 4).contains(&read), "{read} bytes");
        }
    }
}

/// Values in as many files as if their keys had come in no order.
fn spread(fs: &MemFileSystem, files: usize, change: impl FnOnce(&mut Options)) -> Db {
    let mut options = separated(fs);
    change(&mut options);
    options.cf.disable_auto_compactions = true;
    options.cf.blob_file_size = 1 << 30;
    options.cf.write_buffer_size = 16 << 20;
    let db = Db::open(DIR, &options).expect("the disk is well");
    let mut rng = Rng::new(3);
    let mut order: Vec<usize> = (0..VALUES).collect();
    rng.shuffle(&mut order);
    for some in order.chunks(VALUES / files) {
        for &n in some {
            db.put(&key(n), &value(n)).expect("the disk is well");
        }
        db.flush().expect("the disk is well");
    }
    assert_eq!(db.live_blob_files().len(), files);
    db
}

#[test]
fn each_of_many_files_has_a_row_of_its_own() {
    let fs = MemFileSystem::new();
    let db = spread(&fs, 50, |_| {});
    let bytes = (VALUES * VALUE_LEN) as u64;
    for back in [false, true] {
        // 40 values of each file: one, then two, then as many as there were before.
        let (reads, read) = walk(&db, &ReadOptions::default(), back);
        assert!((200..=8 * 50).contains(&reads), "{reads} reads");
        assert!((bytes..bytes * 3 / 2).contains(&read), "{read} bytes");
    }
    // Some of each: what is read for nothing is no more than what was wanted.
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .expect("the disk is well");
    for (from, values) in [(0, 1), (500, 100), (900, 300)] {
        let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, || {
            iter.seek(&key(from));
            for n in from..from + values {
                assert_eq!(iter.value(), value(n));
                iter.next();
            }
        });
        // The last step has read one more.
        let wanted = (values as u64 + 1) * (VALUE_LEN as u64 + 50);
        let read = perf.get(PerfCounter::BlobReadByte);
        assert!(read <= 2 * wanted, "{read} of {wanted} bytes");
        assert!(perf.get(PerfCounter::BlobReadCount) <= values as u64 + 1);
    }
}

#[test]
fn what_the_cache_holds_is_not_read_ahead() {
    let fs = MemFileSystem::new();
    let db = filled(&fs, |options| options.cf.blob_cache = true);
    let without = ReadOptions {
        fill_cache: false,
        ..ReadOptions::default()
    };
    assert!(walk(&db, &without, true).0 > 0);
    assert!(
        walk(&db, &ReadOptions::default(), true).0 > 0,
        "nothing was kept"
    );
    assert_eq!(walk(&db, &ReadOptions::default(), true), (0, 0));
    assert_eq!(walk(&db, &without, false), (0, 0));
}

const PAGE_LEN: u64 = 512;

/// What a device did.
#[derive(Default, Debug)]
struct Device {
    pages: BTreeSet<(String, u64)>,
    /// Those that were asked for ahead; they are there when somebody has waited for any.
    coming: BTreeSet<(String, u64)>,
    /// Reads that somebody waited for.
    waits: usize,
    /// Pages that were asked for ahead.
    ahead: usize,
}

/// A blob file that is not in memory.
struct Cold {
    file: Arc<dyn RandomAccessFile>,
    device: Arc<Mutex<Device>>,
}

impl Cold {
    /// The pages that are not there.
    fn missing(&self, device: &Device, offset: u64, len: usize) -> Vec<(String, u64)> {
        let name = self.path().display().to_string();
        let pages = offset / PAGE_LEN..=(offset + len as u64 - 1) / PAGE_LEN;
        pages
            .map(|page| (name.clone(), page))
            .filter(|page| !device.pages.contains(page))
            .collect()
    }
}

impl RandomAccessFile for Cold {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut device = self.device.lock();
        let missing = self.missing(&device, offset, buf.len());
        if !missing.is_empty() {
            device.waits += 1;
            device.pages.extend(missing);
            let mut coming = std::mem::take(&mut device.coming);
            device.pages.append(&mut coming);
        }
        drop(device);
        self.file.read_at(offset, buf)
    }

    fn read_at_without_waiting(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        if self
            .missing(&self.device.lock(), offset, buf.len())
            .is_empty()
        {
            return self.file.read_at(offset, buf).map(Some);
        }
        Ok(None)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        let mut device = self.device.lock();
        let before = device.coming.len();
        let missing = self.missing(&device, offset, len as usize);
        device.coming.extend(missing);
        device.ahead += device.coming.len() - before;
    }

    fn size(&self) -> Result<u64> {
        self.file.size()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

/// Values in 50 files on a device whose pages are small.
fn cold() -> (Db, Arc<Mutex<Device>>) {
    let fs = MemFileSystem::new();
    let device = Arc::new(Mutex::new(Device::default()));
    let theirs = device.clone();
    let through = HookFileSystem::read_through(&fs, move |file| {
        if file.path().extension().is_some_and(|e| e == "blob") {
            let device = theirs.clone();
            return Arc::new(Cold { file, device });
        }
        file
    });
    let db = spread(&fs, 50, |options| {
        options.db.fs = Arc::new(through);
        options.cf.prefix_extractor = Some(Arc::new(FixedPrefix::new(8)));
    });
    (db, device)
}

/// Reads values from a key on; gives the waits and the pages asked for ahead, of a device that has nothing in
/// memory, and what a second time costs.
fn scan(
    db: &Db,
    device: &Mutex<Device>,
    options: &ReadOptions,
    from: usize,
    n: usize,
) -> [[usize; 2]; 2] {
    *device.lock() = Device::default();
    [(); 2].map(|()| {
        let mut iter = db
            .iter(options, &db.default_column_family())
            .expect("the disk is well");
        iter.seek(&key(from));
        for at in from..from + n {
            assert!(iter.prepare_value());
            assert_eq!((iter.key(), iter.value()), (&key(at)[..], &value(at)[..]));
            if at + 1 < from + n {
                iter.next();
            }
        }
        let mut device = device.lock();
        [
            std::mem::take(&mut device.waits),
            std::mem::take(&mut device.ahead),
        ]
    })
}

#[test]
fn values_that_have_to_be_waited_for_are_asked_for_ahead() {
    let (db, device) = cold();
    let compact = || db.compact_range(&Default::default(), &db.default_column_family(), None, None);
    let options = ReadOptions::default();
    // Each of 50 tables tells only what comes in it, and of each the first value is waited for.
    let [[waits, ahead], again] = scan(&db, &device, &options, 700, 400);
    assert!(waits < 250 && ahead > 100, "{waits} waits, {ahead} pages");
    assert_eq!(again, [0, 0]);
    // One table tells what comes.
    compact().expect("the disk is well");
    // A single value says nothing of others.
    let [[waits, ahead], again] = scan(&db, &device, &options, 700, 1);
    assert!(waits == 1 && ahead == 0 && again == [0, 0]);
    for (values, waits_max) in [(3, 3), (20, 5), (100, 12), (400, 40)] {
        let [[waits, ahead], again] = scan(&db, &device, &options, 700, values);
        assert!(waits <= waits_max, "{values}: {waits} waits");
        // No more than five times what is needed at first, and less later.
        let pages = 3 * (4 * values).clamp(16, values + 64);
        assert!(ahead <= pages, "{values}: {ahead} pages of {pages}");
        assert_eq!(again, [0, 0], "{values}");
    }
    // Not what is behind the end, or nobody may want.
    let bounded = ReadOptions {
        iterate_upper_bound: Some(key(703)),
        ..ReadOptions::default()
    };
    let [[_, ahead], _] = scan(&db, &device, &bounded, 700, 3);
    assert!(ahead <= 6, "{ahead}");
    let of_prefix = ReadOptions {
        prefix_same_as_start: true,
        ..ReadOptions::default()
    };
    let [[_, ahead], _] = scan(&db, &device, &of_prefix, 707, 3);
    assert!(ahead <= 6, "{ahead}");
    // Who has read single values here and there is no further than who begins.
    *device.lock() = Device::default();
    let mut iter = db
        .iter(&options, &db.default_column_family())
        .expect("the disk is well");
    for at in [100, 300, 500, 900, 1100] {
        iter.seek(&key(at));
        assert_eq!(iter.value(), value(at));
    }
    assert_eq!(device.lock().ahead, 0);
    iter.next();
    assert!(device.lock().ahead <= 3 * 16);
    let here_and_there = ReadOptions {
        allow_unprepared_value: true,
        ..ReadOptions::default()
    };
    let [[waits, _], _] = scan(&db, &device, &here_and_there, 700, 20);
    assert!(waits > 15, "{waits} waits");
    // Values that newer entries hide are not asked for.
    (701..800).for_each(|n| db.delete(&key(n)).expect("the disk is well"));
    db.flush().expect("the disk is well");
    *device.lock() = Device::default();
    iter = db
        .iter(&options, &db.default_column_family())
        .expect("the disk is well");
    iter.seek(&key(699));
    for at in [699, 700, 800] {
        assert_eq!(iter.value(), value(at));
        iter.next();
    }
    let loaded = {
        let device = device.lock();
        device.pages.len() + device.coming.len()
    };
    assert!(loaded <= 3 * 20, "{loaded} pages");
}

/// A blob file that notes how many bytes are asked for ahead.
struct Asked {
    file: Arc<dyn RandomAccessFile>,
    lens: Arc<Mutex<Vec<u64>>>,
}

impl RandomAccessFile for Asked {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn prefetch(&self, _: u64, len: u64) {
        self.lens.lock().push(len);
    }

    fn size(&self) -> Result<u64> {
        self.file.size()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

#[test]
fn what_moves_values_reads_as_far_ahead_as_it_is_told() {
    let fs = MemFileSystem::new();
    let lens: Arc<Mutex<Vec<u64>>> = Arc::default();
    let theirs = lens.clone();
    let through = HookFileSystem::read_through(&fs, move |file| {
        match file.path().extension().is_some_and(|e| e == "blob") {
            true => {
                let lens = theirs.clone();
                Arc::new(Asked { file, lens })
            }
            false => file,
        }
    });
    let db = filled(&fs, |options| {
        options.db.fs = Arc::new(through);
        // One table: each is a row of its own where it is rewritten in place.
        options.cf.target_file_size_base = 1 << 20;
    });
    let family = db.default_column_family();
    let mut written_over = 0..VALUES;
    let mut collect = |by_compaction: bool, n: &str| {
        let mut changes = vec![("blob_compaction_readahead_size", n)];
        if by_compaction {
            changes.push(("enable_blob_garbage_collection", "true"));
            changes.push(("blob_garbage_collection_age_cutoff", "1.0"));
        } else {
            changes.push(("enable_blob_garbage_collection", "false"));
        }
        db.set_options(&family, &changes).expect("they may change");
        let files = db.live_blob_files();
        let largest = files.iter().max_by_key(|f| f.total_blob_count);
        let before = largest.expect("there is one").number;
        lens.lock().clear();
        match by_compaction {
            true => {
                let all = CompactRangeOptions {
                    bottommost_level_compaction: BottommostLevelCompaction::Force,
                    ..CompactRangeOptions::default()
                };
                db.compact_range(&all, &family, None, None)
            }
            false => {
                let n = written_over.next().expect("there are more");
                db.put(&key(n), &value(n)).expect("the disk is well");
                db.compact_range(&Default::default(), &family, None, None)
                    .expect("the disk is well");
                let all = CollectBlobGarbageOptions {
                    discardable_ratio: 0.0,
                    ..CollectBlobGarbageOptions::default()
                };
                db.collect_blob_garbage(&all, &family)
            }
        }
        .expect("the disk is well");
        let files = db.live_blob_files();
        assert!(files.iter().all(|f| f.number != before), "nothing moved");
        std::mem::take(&mut *lens.lock())
    };
    let bytes = (VALUES * VALUE_LEN) as u64;
    for by_compaction in [true, false] {
        // All is in memory, and nothing has to be waited for.
        assert_eq!(collect(by_compaction, "0"), []);
        for n in ["100000", "1000000000", "18446744073709551615"] {
            let lens = collect(by_compaction, n);
            let n: u64 = n.parse().expect("a number");
            assert!(lens.iter().all(|&len| len <= n), "{lens:?}");
            assert_eq!(
                lens.len() as u64,
                bytes.div_ceil(n).max(1) + u64::from(n < bytes),
                "{lens:?}"
            );
            let some = (10 * VALUE_LEN) as u64;
            assert!(lens.iter().sum::<u64>() >= bytes - some, "{lens:?}");
        }
    }
}

#[test]
fn values_that_are_asked_for_together_are_read_together_where_they_are_neighbours() {
    let fs = MemFileSystem::new();
    let reads: Arc<Mutex<Vec<usize>>> = Arc::default();
    let theirs = reads.clone();
    let through = HookFileSystem::read_through(&fs, move |file| {
        match file.path().extension().is_some_and(|e| e == "blob") {
            true => {
                let reads = theirs.clone();
                Arc::new(Counted { file, reads })
            }
            false => file,
        }
    });
    let db = filled(&fs, |options| options.db.fs = Arc::new(through));
    let family = db.default_column_family();
    // The file is open from here on.
    let first = db.get(&key(0)).expect("well");
    assert_eq!(first.as_deref(), Some(&value(0)[..]));
    let ask = |asked: &[usize]| {
        reads.lock().clear();
        let keys: Vec<Vec<u8>> = asked.iter().map(|&n| key(n)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = db.multi_get(&ReadOptions::default(), &family, &keys);
        for (&n, found) in asked.iter().zip(found) {
            assert_eq!(found.expect("well").as_deref(), Some(&value(n)[..]));
        }
        std::mem::take(&mut *reads.lock())
    };
    let alone = ask(&[7]);
    assert_eq!(alone.len(), 1, "{alone:?}");
    let record = alone[0];
    // In a row, and in any order.
    let row: Vec<usize> = (500..600).collect();
    let mut shuffled = row.clone();
    Rng::new(1).shuffle(&mut shuffled);
    for asked in [row, shuffled] {
        assert_eq!(ask(&asked), [100 * record]);
    }
    // What lies between is read with them while it is short.
    let few: Vec<usize> = (500..600).step_by(5).collect();
    assert_eq!(ask(&few), [96 * record]);
    // Here and there.
    let apart: Vec<usize> = (0..VALUES).step_by(100).collect();
    assert_eq!(ask(&apart), [record].repeat(apart.len()));
    // Neighbours among others.
    let mut mixed = ask(&[1500, 3, 1501, 4, 1502, 900]);
    mixed.sort_unstable();
    assert_eq!(mixed, [record, 2 * record, 3 * record]);
    // Many are asked for some at a time.
    let all: Vec<usize> = (0..VALUES).collect();
    let reads = ask(&all);
    assert!((4..VALUES / 100).contains(&reads.len()), "{reads:?}");
    assert_eq!(reads.iter().sum::<usize>(), VALUES * record);
}

/// A blob file whose reads are counted.
struct Counted {
    file: Arc<dyn RandomAccessFile>,
    reads: Arc<Mutex<Vec<usize>>>,
}

impl RandomAccessFile for Counted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.reads.lock().push(buf.len());
        self.file.read_at(offset, buf)
    }

    fn size(&self) -> Result<u64> {
        self.file.size()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}
