//! Blocks that are read together are what each of them is alone, and few calls.

use std::path::Path;

use orogen_base::ErrorKind;
use orogen_env::{Access, FaultFileSystem, FileSystem, MemFileSystem, OpKind};
use orogen_testkit::rng::Rng;

use super::*;
use crate::format::{FormatVersion, Lz4Policy, RECORD_HEADER_LEN, encode_record};
use crate::metrics::Meters;
use crate::names::{FileId, Queue};

/// A file of records with `gaps` bytes of others between them, and what they hold.
struct Log {
    fs: FaultFileSystem,
    table: Table,
    bytes: Vec<u8>,
    blocks: Vec<(Block, Vec<u8>)>,
}

const SEQ: u64 = 7;

fn path() -> &'static Path {
    Path::new("/log")
}

impl Log {
    fn new() -> Self {
        Self {
            fs: FaultFileSystem::over_memory(MemFileSystem::new()),
            table: Table::default(),
            bytes: vec![0; 69],
            blocks: Vec::new(),
        }
    }

    /// A record of `raw`, and `gap` bytes between the end of its block and the next one.
    fn add(&mut self, raw: Vec<u8>, gap: usize, lz4: bool) {
        let threshold = usize::from(lz4);
        let acceleration = 1;
        let policy = Lz4Policy {
            threshold,
            acceleration,
        };
        let record = encode_record(&raw, &[], policy).unwrap();
        let header = record.header;
        let block = Block {
            file: FileId::new(Queue::Append, SEQ),
            offset: (self.bytes.len() + RECORD_HEADER_LEN) as u64,
            len: header.block_len,
            compression: header.compression,
        };
        let end = header.footer_at() as usize;
        self.bytes.extend_from_slice(&record.bytes[..end]);
        self.bytes
            .resize(self.bytes.len() + gap - RECORD_HEADER_LEN, 0xee);
        self.blocks.push((block, raw));
    }

    fn write(&self) {
        let mut writer = self.fs.create(path()).unwrap();
        writer.append(&self.bytes).unwrap();
        writer.sync().unwrap();
        self.table.push(Arc::new(LogFile {
            id: FileId::new(Queue::Append, SEQ),
            version: FormatVersion::V2,
            reader: self.fs.open(path(), Access::Random).unwrap(),
        }));
    }

    /// Reads some blocks; how many calls that was.
    fn read(&self, which: &[usize]) -> Result<u64> {
        self.read_through(None, which)
    }

    fn read_through(&self, cache: Option<&ReadCache>, which: &[usize]) -> Result<u64> {
        let before = self.fs.faults().count(OpKind::Read);
        let mut blocks = Blocks::new(&self.table, cache);
        for (n, at) in which.iter().enumerate() {
            let (block, raw) = &self.blocks[*at];
            let ahead = which[n + 1..].iter().map(|at| self.blocks[*at].0);
            let found = blocks.get(*block, ahead)?.map(|found| found.raw.to_vec());
            assert_eq!(found.as_ref(), Some(raw));
        }
        Ok(self.fs.faults().count(OpKind::Read) - before)
    }
}

fn raw_of(found: Result<Option<Found<'_>>>) -> Option<&[u8]> {
    found.unwrap().map(|found| found.raw)
}

#[test]
fn neighbours_come_with_one_call_and_others_apart() {
    let mut log = Log::new();
    let gap = GAP_MAX as usize;
    for gap in [20, gap, gap + 1, 50, 50] {
        log.add(vec![1; 1000], gap, false);
    }
    // Two that are a read together, to the byte.
    let half = READ_MAX as usize / 2;
    log.add(vec![2; half - 4 - 50], 50, false);
    log.add(vec![3; half - 4], 50, false);
    log.add(vec![4; 3 * half], 50, true);
    log.add(vec![5; 3 * half], 50, false);
    log.add(vec![6; 9], 50, false);
    log.write();
    assert_eq!(log.read(&[0, 1, 2]).unwrap(), 1);
    assert_eq!(log.read(&[0, 0, 1, 1, 1, 2]).unwrap(), 1);
    assert_eq!(
        log.read(&[3, 5]).unwrap(),
        1,
        "what is between is not wanted"
    );
    assert_eq!(log.read(&[2, 3, 4]).unwrap(), 2, "too far");
    assert_eq!(log.read(&[2, 1, 0]).unwrap(), 3, "backwards");
    assert_eq!(log.read(&[5, 6]).unwrap(), 1, "as long as a read may be");
    assert_eq!(log.read(&[4, 5, 6]).unwrap(), 2, "longer than that");
    assert_eq!(
        log.read(&[7, 8, 9]).unwrap(),
        3,
        "one is longer than a read"
    );
    assert_eq!(log.read(&[]).unwrap(), 0);
}

#[test]
fn any_blocks_in_any_order_are_what_they_are() {
    let mut rng = Rng::new(Rng::seed_or(27));
    let mut log = Log::new();
    for _ in 0..200 {
        let bits = rng.below(16);
        let len = rng.range(0..1 << bits);
        let raw = match rng.below(2) {
            0 => vec![b'x'; len],
            _ => rng.bytes(len),
        };
        let bits = rng.below(14);
        let gap = 16 + rng.range(0..1 << bits);
        log.add(raw, gap, rng.chance(1, 2));
    }
    log.write();
    for _ in 0..100 {
        let (from, step) = (rng.range(0..200), rng.range(1..4));
        let mut which = Vec::from_iter((from..200).step_by(step));
        which.truncate(rng.range(1..50));
        for _ in 0..rng.range(0..3) {
            let at = rng.range(0..which.len());
            which[at] = rng.range(0..200);
        }
        log.read(&which).unwrap();
    }
}

#[test]
fn damage_counts_where_it_is_wanted_only() {
    let mut log = Log::new();
    for n in 0..5 {
        log.add(vec![n; 300], 40, n == 3);
    }
    for at in [2, 3] {
        let place = log.blocks[at].0.offset as usize;
        log.bytes[place + 3] ^= 1;
    }
    log.write();
    assert_eq!(log.read(&[0, 1, 4]).unwrap(), 1);
    for at in [2, 3] {
        let error = log.read(&[0, 1, at, 4]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption);
        let offset = log.blocks[at].0.offset.to_string();
        assert_eq!(error.context("offset"), Some(offset.as_str()));
        assert!(error.context("file").is_some());
    }
    let end = log.bytes.len() as u64;
    let mut behind = log.blocks[0].0;
    behind.offset = end - 10;
    let none = std::iter::empty;
    let mut blocks = Blocks::new(&log.table, None);
    let (block, raw) = &log.blocks[1];
    assert_eq!(raw_of(blocks.get(*block, none())), Some(raw.as_slice()));
    let error = blocks.get(behind, none()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corruption);
    assert!(error.context("offset").is_some() && error.context("file").is_some());
    // What failed has written over what was read before.
    assert_eq!(raw_of(blocks.get(*block, none())), Some(raw.as_slice()));
    behind.file.seq = SEQ + 1;
    assert!(
        blocks.get(behind, none()).unwrap().is_none(),
        "no such file"
    );
}

fn cache(bytes: usize) -> (ReadCache, Arc<Meters>) {
    let meters = Arc::new(Meters::new());
    let cache = ReadCache::new(bytes, Arc::clone(&meters)).unwrap();
    (cache, meters)
}

#[test]
fn what_was_read_comes_without_a_call() {
    let mut log = Log::new();
    for n in 0..6 {
        log.add(vec![n; 9000], 10_000, n % 2 == 1);
    }
    log.write();
    let (cache, meters) = cache(1 << 20);
    let counted = || {
        let seen = meters.look();
        (seen.read_cache_hits, seen.read_cache_misses)
    };
    assert_eq!(log.read_through(Some(&cache), &[0, 1, 1, 2]).unwrap(), 3);
    assert_eq!(counted(), (0, 3));
    assert_eq!(log.read_through(Some(&cache), &[2, 1, 1, 0]).unwrap(), 0);
    assert_eq!(counted(), (3, 3));
    assert_eq!(
        log.read_through(Some(&cache), &[0, 1, 3, 2, 4]).unwrap(),
        2,
        "those that are not there are read"
    );
    assert_eq!(counted(), (6, 5));
    // Bytes of another file at the same place are others.
    let mut other = Log::new();
    other.add(vec![9; 9000], 10_000, false);
    other.write();
    let mut elsewhere = other.blocks[0].0;
    assert_eq!(elsewhere.offset, log.blocks[0].0.offset);
    elsewhere.file.seq = SEQ + 1;
    let mut blocks = Blocks::new(&other.table, Some(&cache));
    let none = std::iter::empty;
    assert!(blocks.get(elsewhere, none()).unwrap().is_none());
    // Who has found a place reads it after its file is gone.
    let empty = Table::default();
    let mut blocks = Blocks::new(&empty, Some(&cache));
    let (block, raw) = &log.blocks[0];
    assert_eq!(raw_of(blocks.get(*block, none())), Some(raw.as_slice()));
    let (block, _) = &log.blocks[5];
    assert!(blocks.get(*block, none()).unwrap().is_none());
}

#[test]
fn small_blocks_that_come_together_are_not_kept_and_others_are() {
    let mut log = Log::new();
    for n in 0..40 {
        log.add(vec![n; 256], 50, false);
    }
    // As far from each other as a read may leave between.
    for n in 0..10 {
        log.add(vec![n; 256], GAP_MAX as usize, false);
    }
    log.write();
    let (cache, _) = cache(1 << 20);
    let near = Vec::from_iter(0..40);
    for _ in 0..3 {
        assert_eq!(log.read_through(Some(&cache), &near).unwrap(), 1);
    }
    assert_eq!(cache.bytes(), 0);
    let far = Vec::from_iter(41..50);
    assert_eq!(log.read_through(Some(&cache), &far).unwrap(), 1);
    assert!(cache.bytes() > 0);
    assert_eq!(log.read_through(Some(&cache), &far).unwrap(), 0);
    assert_eq!(log.read_through(Some(&cache), &[7]).unwrap(), 1);
    assert_eq!(log.read_through(Some(&cache), &[7]).unwrap(), 0, "alone");
}

#[test]
fn what_is_damaged_is_found_by_each_who_reads_it() {
    let mut log = Log::new();
    for n in 0..6 {
        log.add(vec![n; 300], [40, 9000][usize::from(n > 2)], n == 3);
    }
    for at in [1, 3, 4] {
        let place = log.blocks[at].0.offset as usize;
        log.bytes[place + 3] ^= 1;
    }
    log.write();
    let (cache, _) = cache(1 << 20);
    for _ in 0..3 {
        for which in [&[0, 1, 2][..], &[3], &[4], &[5, 4]] {
            let error = log.read_through(Some(&cache), which).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{which:?}");
            assert!(error.context("file").is_some() && error.context("offset").is_some());
        }
    }
    assert_eq!(log.read_through(Some(&cache), &[0, 2, 5]).unwrap(), 1);
    assert_eq!(log.read_through(Some(&cache), &[0, 2, 5]).unwrap(), 0);
}

#[test]
fn blocks_of_a_cache_that_is_too_small_are_what_they_are() {
    let mut rng = Rng::new(Rng::seed_or(28));
    let mut log = Log::new();
    for _ in 0..200 {
        let bits = rng.below(14);
        let len = rng.range(0..1 << bits);
        let raw = match rng.below(2) {
            0 => vec![rng.below(256) as u8; len],
            _ => rng.bytes(len),
        };
        let bits = rng.below(14);
        log.add(raw, 16 + rng.range(0..1 << bits), rng.chance(1, 2));
    }
    log.write();
    for bytes in [3000, 30_000, 300_000] {
        let (cache, meters) = cache(bytes);
        for _ in 0..200 {
            let (from, step) = (rng.range(0..200), rng.range(1..4));
            let mut which = Vec::from_iter((from..200).step_by(step));
            which.truncate(rng.range(1..50));
            for _ in 0..rng.range(0..3) {
                let at = rng.range(0..which.len());
                which[at] = rng.range(0..200);
            }
            let before = meters.look();
            log.read_through(Some(&cache), &which).unwrap();
            let after = meters.look();
            which.retain(|at| log.blocks[*at].0.len > 0);
            which.dedup();
            let counted = after.read_cache_hits + after.read_cache_misses;
            let before = before.read_cache_hits + before.read_cache_misses;
            assert_eq!(counted - before, which.len() as u64, "each is counted once");
            assert!(cache.bytes() <= bytes as u64);
        }
        assert!(meters.look().read_cache_hits > 0);
    }
}

#[test]
fn a_block_for_which_there_is_no_memory_is_not_kept() {
    assert!(buffer(&mut Vec::new(), isize::MAX as usize).is_none());
    let mut spare = Vec::with_capacity(1000);
    spare.push(1);
    let place = spare.as_ptr();
    let same = buffer(&mut spare, 900).unwrap();
    assert_eq!((same.len(), same.as_ptr()), (0, place));
    spare = same;
    let other = buffer(&mut spare, 100).unwrap();
    assert!(
        other.is_empty() && other.capacity() < 200,
        "it is not much larger"
    );
}
