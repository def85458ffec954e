//! Tables and blob files that are read out of mappings, on the machine's file system.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::perf::{PerfContext, PerfCounter, PerfLevel};

use orogen_engine::{CompactRangeOptions, Db, Options};
use orogen_env::{FileSystem, MemFileSystem, PosixFileSystem};
use orogen_sst::{BlockCache, CompressionType};

use crate::support::{scan, scan_backward, small};

const KEYS: u32 = 600;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("orogen-mapped-reads-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn files(&self, kind: &str) -> Vec<PathBuf> {
        let names = PosixFileSystem::new().list(&self.0).expect("it is there");
        names
            .into_iter()
            .map(|name| self.0.join(name))
            .filter(|path| path.extension().is_some_and(|found| found == kind))
            .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(codec: CompressionType, mapped: bool) -> Options {
    let mut options = small(&MemFileSystem::new());
    options.db.fs = Arc::new(PosixFileSystem::new());
    options.db.allow_mmap_reads = mapped;
    options.cf.enable_blob_files = true;
    options.cf.min_blob_size = 1000;
    options.cf.blob_compression_type = codec;
    options.cf.compression = codec;
    options.cf.write_buffer_size = 8 << 20;
    options.cf.disable_auto_compactions = true;
    options
}

/// Every third value is in a blob file.
fn value(n: u32) -> Vec<u8> {
    let len = if n.is_multiple_of(3) { 5000 } else { 50 };
    (0..len).map(|at| (n * 7 + at / 9) as u8).collect()
}

fn filled(dir: &Path, codec: CompressionType) {
    let db = Db::open(dir, &options(codec, false)).expect("the disk is well");
    for n in 0..KEYS {
        db.put(&n.to_be_bytes(), &value(n)).expect("there is room");
    }
    db.flush().expect("there is room");
}

#[test]
fn answers_are_the_same_and_no_call_reads() {
    for codec in [
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ] {
        let scratch = Scratch::new("same");
        filled(&scratch.0, codec);
        let db = Db::open(&scratch.0, &options(codec, true)).expect("the disk is well");
        assert_eq!(db.get(&0_u32.to_be_bytes()).unwrap().unwrap()[..], value(0));
        let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, || {
            for n in 1..KEYS {
                let got = db.get(&n.to_be_bytes()).unwrap().expect("it was put");
                assert_eq!(got[..], value(n), "{codec:?} {n}");
            }
        });
        assert_eq!(perf.get(PerfCounter::BlobReadCount), 199);
        assert!(perf.get(PerfCounter::BlockReadCount) > 10);
        assert!(
            perf.get(PerfCounter::BytesRead) < 20_000,
            "no more than what opens the other tables: {}",
            perf.get(PerfCounter::BytesRead)
        );
        let family = db.default_column_family();
        let all = scan(&db, &family);
        assert_eq!(all.len(), KEYS as usize);
        assert_eq!(all, scan_backward(&db, &family));
        db.compact_range(&CompactRangeOptions::default(), &family, None, None)
            .expect("there is room");
        assert_eq!(scan(&db, &family), all);
    }
}

/// Bytes that calls read for a get of each key.
fn read_by_calls(db: &Db) -> u64 {
    let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, || {
        for n in 0..KEYS {
            let got = db.get(&n.to_be_bytes()).expect("the disk is well");
            assert_eq!(got.expect("it was put")[..], value(n));
        }
    });
    perf.get(PerfCounter::BytesRead)
}

#[test]
fn what_memory_has_held_for_a_while_is_read_by_no_call() {
    for is_asked in [true, false] {
        let scratch = Scratch::new("adaptive");
        filled(&scratch.0, CompressionType::Lz4);
        let mut options = options(CompressionType::Lz4, false);
        options.db.adaptive_mmap_reads = is_asked;
        options.cf.block_cache = Some(Arc::new(BlockCache::new(0)));
        let db = Db::open(&scratch.0, &options).expect("the disk is well");
        let first = read_by_calls(&db);
        let later = (0..8).fold(first, |_, _| read_by_calls(&db));
        assert_eq!(later == 0, is_asked, "{first}, then {later}");
        assert!(first > 0);
    }
}

#[test]
fn what_somebody_cuts_off_is_an_error_and_not_the_end_of_the_process() {
    for kind in ["blob", "sst"] {
        let scratch = Scratch::new(kind);
        filled(&scratch.0, CompressionType::Lz4);
        let mut options = options(CompressionType::Lz4, true);
        options.cf.block_cache = Some(Arc::new(BlockCache::new(0)));
        let db = Db::open(&scratch.0, &options).expect("the disk is well");
        let read = |n: u32| db.get(&n.to_be_bytes());
        let before: Vec<_> = (0..KEYS).map(|n| read(n).unwrap().unwrap()).collect();
        for path in scratch.files(kind) {
            let fs = PosixFileSystem::new();
            fs.truncate(&path, 4096).expect("it is ours");
        }
        let (mut same, mut damaged) = (0, 0);
        for n in 0..KEYS {
            match read(n) {
                Ok(value) => {
                    assert_eq!(value.unwrap()[..], before[n as usize][..]);
                    same += 1;
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
                    assert!(e.context("file").is_some(), "{e}");
                    damaged += 1;
                }
            }
        }
        assert!(same > 0 && damaged > 10, "{kind}: {same}, {damaged}");
    }
}

/// A value that is checked where it lies may be a hole before it is copied.
#[test]
fn who_reads_beside_a_writer_copies_values_before_they_are_checked() {
    let scratch = Scratch::new("beside");
    filled(&scratch.0, CompressionType::None);
    let options = options(CompressionType::None, true);
    let follower = Db::open_as_secondary(&scratch.0, None, &options).unwrap();
    let ((), perf) = PerfContext::measure(PerfLevel::EnableCount, || {
        let got = follower
            .get(&3u32.to_be_bytes())
            .unwrap()
            .expect("it was put");
        assert_eq!(got[..], value(3));
    });
    let read = perf.get(PerfCounter::BytesRead);
    assert!(read >= 5000, "{read}");
}
