use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use orogen_base::{Error, ErrorKind, Result};
use orogen_env::{RandomAccessFile, WritableFile};

use super::{Damage, DamageReason, ReadOutcome, Reader};
use crate::Writer;
use crate::format::{BLOCK_SIZE, HEADER_LEN, RECYCLABLE_HEADER_LEN, checksum};

const LOG_NUMBER: u64 = 0x1_0000_0007;

struct Bytes(Vec<u8>);

impl RandomAccessFile for Bytes {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = &self.0[(offset as usize).min(self.0.len())..];
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
    fn size(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }
    fn path(&self) -> &Path {
        Path::new("000007.log")
    }
}

/// A file that others can look into, and that counts appends and can be told to fail.
#[derive(Clone, Default)]
struct Shared {
    bytes: Arc<Mutex<Vec<u8>>>,
    appends: Arc<Mutex<usize>>,
    fails: Arc<Mutex<bool>>,
}

impl WritableFile for Shared {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        *self.appends.lock().unwrap() += 1;
        if *self.fails.lock().unwrap() {
            return Err(Error::new(ErrorKind::NoSpace, "full"));
        }
        self.bytes.lock().unwrap().extend_from_slice(bytes);
        Ok(())
    }
    fn sync(&mut self) -> Result<()> {
        Ok(())
    }
    fn size(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }
}

fn write_log(records: &[Vec<u8>], log_number: u64, recyclable: bool) -> Vec<u8> {
    let file = Shared::default();
    let mut writer = Writer::new(Box::new(file.clone()), log_number, recyclable);
    for record in records {
        writer.add_record(record).unwrap();
    }
    assert_eq!(writer.size(), file.size());
    file.bytes.lock().unwrap().clone()
}

#[derive(Debug, PartialEq)]
struct Log {
    records: Vec<(u64, Vec<u8>)>,
    damages: Vec<Damage>,
    clean: bool,
    valid_until: u64,
}

impl Log {
    fn payloads(&self) -> Vec<Vec<u8>> {
        self.records.iter().map(|r| r.1.clone()).collect()
    }
}

fn read_log(bytes: &[u8]) -> Log {
    read_numbered(bytes, LOG_NUMBER)
}

fn read_numbered(bytes: &[u8], log_number: u64) -> Log {
    let mut reader = Reader::new(Arc::new(Bytes(bytes.to_vec())), log_number).unwrap();
    let mut log = Log {
        records: vec![],
        damages: vec![],
        clean: false,
        valid_until: 0,
    };
    let mut out = Vec::new();
    loop {
        match reader.read_record(&mut out).unwrap() {
            ReadOutcome::Record { offset } => log.records.push((offset, out.clone())),
            ReadOutcome::Damage(damage) => log.damages.push(damage),
            end @ ReadOutcome::EndOfLog { clean, valid_until } => {
                assert_eq!(reader.read_record(&mut out).unwrap(), end);
                assert_eq!(reader.valid_until(), valid_until);
                (log.clean, log.valid_until) = (clean, valid_until);
                return log;
            }
        }
    }
}

fn record(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (n * 31 + i * 7 + i / 251) as u8).collect()
}

/// Records of many shapes over a little more than two blocks, and where each ends.
fn small_log(recyclable: bool) -> (Vec<Vec<u8>>, Vec<u64>, Vec<u8>) {
    let lens = [0, 1, 100, 3, 2 * BLOCK_SIZE - 300, 0, 50, 260, 9];
    let records: Vec<_> = lens
        .iter()
        .enumerate()
        .map(|(n, &len)| record(n, len))
        .collect();
    let ends = (1..=records.len())
        .map(|n| write_log(&records[..n], LOG_NUMBER, recyclable).len() as u64)
        .collect();
    let bytes = write_log(&records, LOG_NUMBER, recyclable);
    (records, ends, bytes)
}

#[test]
fn records_of_all_sizes_around_block_boundaries_come_back() {
    for recyclable in [false, true] {
        let header = if recyclable {
            RECYCLABLE_HEADER_LEN
        } else {
            HEADER_LEN
        };
        for gap in 0..=2 * header + 2 {
            let huge = if gap == 1 { 2_500_000 } else { 2 };
            for len in [
                0,
                1,
                header,
                1000,
                BLOCK_SIZE - header,
                3 * BLOCK_SIZE,
                huge,
            ] {
                let first = record(1, BLOCK_SIZE - header - gap);
                let records = vec![first, record(2, len), record(3, 5)];
                let bytes = write_log(&records, LOG_NUMBER, recyclable);
                let log = read_log(&bytes);
                assert_eq!(log.payloads(), records, "gap {gap} len {len}");
                assert_eq!((log.damages.len(), log.clean), (0, true));
                assert_eq!(log.valid_until, bytes.len() as u64);
            }
        }
    }
}

#[test]
fn a_record_is_one_append_unless_it_is_huge() {
    let file = Shared::default();
    let mut writer = Writer::new(Box::new(file.clone()), 1, false);
    writer
        .add_record_parts(&[b"ab", b"", &record(0, 100_000), b"c"])
        .unwrap();
    assert_eq!(*file.appends.lock().unwrap(), 1);
    writer.add_record(&record(1, 5 << 20)).unwrap();
    assert!(*file.appends.lock().unwrap() <= 7);
    let bytes = file.bytes.lock().unwrap().clone();
    let whole = [b"ab", &record(0, 100_000)[..], b"c"].concat();
    assert_eq!(read_log(&bytes).payloads(), [whole, record(1, 5 << 20)]);
}

#[test]
fn a_writer_that_failed_stays_failed() {
    let file = Shared::default();
    let mut writer = Writer::new(Box::new(file.clone()), 1, false);
    *file.fails.lock().unwrap() = true;
    assert_eq!(
        writer.add_record(b"a").unwrap_err().kind(),
        ErrorKind::NoSpace
    );
    *file.fails.lock().unwrap() = false;
    assert!(writer.add_record(b"b").is_err() && writer.sync().is_err());
    assert!(file.bytes.lock().unwrap().is_empty());
}

#[test]
fn a_log_cut_at_any_byte_gives_a_prefix_and_at_most_a_torn_tail() {
    for recyclable in [false, true] {
        let (records, ends, bytes) = small_log(recyclable);
        let near = |cut: &usize| {
            let marks = ends
                .iter()
                .map(|&e| e as usize)
                .chain([0, BLOCK_SIZE, 2 * BLOCK_SIZE]);
            cut.is_multiple_of(397) || marks.into_iter().any(|m| m.abs_diff(*cut) < 24)
        };
        for cut in (0..bytes.len()).filter(near) {
            for zeros in [0, 5, 12, 40_000] {
                let mut torn = bytes[..cut].to_vec();
                torn.resize(cut + zeros, 0);
                let log = read_log(&torn);
                // Bytes that were zero already are not missed.
                let whole = log.records.len();
                assert!(ends.get(whole).is_none_or(|&e| e > cut as u64) || zeros == 0);
                assert_eq!(log.payloads(), records[..whole], "cut at {cut}");
                assert!(log.records.len() >= ends.iter().filter(|&&e| e <= cut as u64).count());
                let torn_only = log.damages.len() <= 1 && log.damages.iter().all(|d| d.is_tail);
                assert!(torn_only, "cut at {cut}, zeros {zeros}: {:?}", log.damages);
                assert_eq!(
                    log.clean,
                    log.damages.is_empty(),
                    "cut at {cut}, zeros {zeros}"
                );
                assert_eq!(
                    log.valid_until,
                    if whole == 0 { 0 } else { ends[whole - 1] }
                );
                if ends.contains(&(cut as u64)) || cut == 0 {
                    assert!(log.clean);
                }
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_found_and_told_from_a_torn_tail() {
    for recyclable in [false, true] {
        let (records, ends, bytes) = small_log(recyclable);
        let near = |at: &usize| {
            let marks = ends
                .iter()
                .map(|&e| e as usize)
                .chain([0, BLOCK_SIZE, 2 * BLOCK_SIZE]);
            at.is_multiple_of(997) || marks.into_iter().any(|m| m.abs_diff(*at) < 15)
        };
        for at in (0..bytes.len()).filter(near) {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let log = read_log(&flipped);
                assert!(!log.damages.is_empty(), "byte {at} bit {bit}");
                assert!(log.records.len() < records.len());
                assert!(log.payloads().iter().all(|r| records.contains(r)));
                // A log number that is wrong may be an old one, before a header that was torn.
                let is_told = |d: &Damage| !d.is_tail || d.reason == DamageReason::BadLogNumber;
                assert!(log.damages.iter().all(is_told), "byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn reading_goes_on_behind_damage() {
    let (mut rest, ends, mut bytes) = small_log(false);
    bytes[ends[1] as usize + HEADER_LEN + 3] ^= 1;
    let log = read_log(&bytes);
    rest.remove(2);
    assert_eq!(log.payloads(), rest);
    let damage = Damage {
        offset: ends[1],
        reason: DamageReason::BadChecksum,
        bytes_dropped: ends[2] - ends[1],
        is_tail: false,
    };
    assert_eq!(log.damages, [damage]);
    // Of a record over three blocks all parts are dropped as one.
    bytes[BLOCK_SIZE + 100] ^= 1;
    let log = read_log(&bytes);
    rest.remove(3);
    assert_eq!(log.payloads(), rest);
    assert_eq!(log.damages[1].bytes_dropped, ends[4] - ends[3]);
    assert!(log.clean && log.valid_until == bytes.len() as u64);
}

#[test]
fn a_damaged_length_that_reaches_beyond_the_file_is_no_torn_tail() {
    let records = [record(0, 10), record(1, 20), record(2, 30)];
    let mut bytes = write_log(&records, LOG_NUMBER, false);
    bytes[HEADER_LEN + 10 + 5] ^= 0x40;
    let log = read_log(&bytes);
    assert_eq!(log.payloads(), [records[0].clone(), records[2].clone()]);
    assert_eq!(log.damages[0].reason, DamageReason::TruncatedBody);
    assert!(!log.damages[0].is_tail);
}

#[test]
fn zeros_between_records_are_damage_and_zeros_at_the_end_are_not() {
    let records = [
        record(0, 100),
        record(1, BLOCK_SIZE),
        record(2, 50),
        record(3, 60),
    ];
    let bytes = write_log(&records, LOG_NUMBER, false);
    let mut hole = bytes.clone();
    let second = HEADER_LEN + 100;
    hole[second..second + 4096].fill(0);
    let log = read_log(&hole);
    assert_eq!(
        log.payloads(),
        [&records[0], &records[2], &records[3]].map(Clone::clone)
    );
    assert_eq!(log.damages.len(), 1);
    assert_eq!(log.damages[0].reason, DamageReason::Hole);
    assert!(!log.damages[0].is_tail);
    let mut reserved = bytes.clone();
    reserved.resize(10 * BLOCK_SIZE + 77, 0);
    let log = read_log(&reserved);
    assert_eq!(log.payloads(), records);
    assert!(log.clean && log.damages.is_empty() && log.valid_until == bytes.len() as u64);
}

#[test]
fn old_records_behind_the_end_of_a_recycled_log_are_not_read() {
    let old: Vec<_> = (0..900).map(|n| record(n, 100)).collect();
    let old = write_log(&old, 3, true);
    for count in 0..300 {
        let new: Vec<_> = (0..count)
            .map(|n| record(n, 100 + n % 7 * (n % 2)))
            .collect();
        let bytes = write_log(&new, LOG_NUMBER, true);
        let mut file = old.clone();
        file[..bytes.len()].copy_from_slice(&bytes);
        let log = read_log(&file);
        assert_eq!(log.payloads(), new);
        assert!(log.damages.iter().all(|d| d.is_tail) && log.damages.len() <= 1);
        assert_eq!(log.valid_until, bytes.len() as u64);
        if count <= 1 {
            assert!(log.clean, "the end falls on the start of an old record");
        }
    }
}

#[test]
fn an_old_record_between_new_ones_is_damage() {
    let new: Vec<_> = (0..700).map(|n| record(n, 100)).collect();
    let mut bytes = write_log(&new, LOG_NUMBER, true);
    let old = write_log(&new, 3, true);
    let len = RECYCLABLE_HEADER_LEN + 100;
    bytes[len..2 * len].copy_from_slice(&old[len..2 * len]);
    let log = read_log(&bytes);
    assert_eq!(log.damages[0].reason, DamageReason::OldRecord);
    assert!(!log.damages[0].is_tail && log.records.len() > 300);
}

#[test]
fn a_writer_resumes_where_the_last_good_record_ends() {
    for recyclable in [false, true] {
        let (records, ends, bytes) = small_log(recyclable);
        let log = read_log(&bytes[..ends[6] as usize + 9]);
        let file = Shared::default();
        file.bytes
            .lock()
            .unwrap()
            .extend_from_slice(&bytes[..log.valid_until as usize]);
        let mut writer = Writer::resume(
            Box::new(file.clone()),
            LOG_NUMBER,
            recyclable,
            log.valid_until,
        );
        for record in &records[7..] {
            writer.add_record(record).unwrap();
        }
        assert_eq!(*file.bytes.lock().unwrap(), bytes);
    }
}

/// A legacy physical record of any type.
fn physical(record_type: u8, payload: &[u8]) -> Vec<u8> {
    let covered = [&[record_type], payload].concat();
    let mut bytes = checksum(&covered).to_le_bytes().to_vec();
    bytes.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    bytes.extend(covered);
    bytes
}

#[test]
fn records_of_other_features_are_skipped_refused_or_damage() {
    for skipped in [10, 130, 131, 200, 255] {
        let mut bytes = physical(1, b"a");
        if skipped == 131 {
            let covered = [&[131][..], &(LOG_NUMBER as u32).to_le_bytes(), b"info"].concat();
            bytes.extend(checksum(&covered).to_le_bytes());
            bytes.extend([4, 0]);
            bytes.extend(covered);
        } else {
            bytes.extend(physical(skipped, b"info"));
        }
        bytes.extend(physical(1, b"b"));
        let log = read_log(&bytes);
        assert_eq!(log.payloads(), [b"a", b"b"]);
        assert!(log.clean && log.damages.is_empty());
    }
    let log = read_log(&[physical(1, b"a"), physical(77, b"?"), physical(1, b"b")].concat());
    assert_eq!(log.payloads(), [b"a", b"b"]);
    assert_eq!(log.damages[0].reason, DamageReason::UnknownType(77));
    assert!(!log.damages[0].is_tail);
    let compressed = physical(9, &7u32.to_le_bytes());
    let mut reader = Reader::new(Arc::new(Bytes(compressed)), 1).unwrap();
    let error = reader.read_record(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotSupported);
    assert_eq!(error.context("compression_type"), Some("7"));
}

#[test]
fn parts_out_of_order_are_damage() {
    let (first, middle, last) = (physical(2, b"f"), physical(3, b"m"), physical(4, b"l"));
    let full = physical(1, b"whole");
    let reasons = |pieces: &[&[u8]]| {
        let log = read_log(&pieces.concat());
        let reasons: Vec<_> = log.damages.iter().map(|d| (d.reason, d.is_tail)).collect();
        (log.records.len(), reasons)
    };
    use DamageReason::{MissingEnd, MissingStart};
    assert_eq!(reasons(&[&first, &middle, &last, &full]), (2, vec![]));
    assert_eq!(reasons(&[&first, &full]), (1, vec![(MissingEnd, false)]));
    assert_eq!(
        reasons(&[&middle, &last, &full]),
        (1, vec![(MissingStart, false)])
    );
    assert_eq!(reasons(&[&full, &last]), (1, vec![(MissingStart, false)]));
    assert_eq!(
        reasons(&[&full, &first, &middle]),
        (1, vec![(MissingEnd, true)])
    );
    assert_eq!(reasons(&[&physical(2, b""), &full]), (1, vec![]));
}

#[test]
fn any_bytes_are_read_without_a_panic() {
    let (_, _, log) = small_log(true);
    let mut seed = 9u64;
    let mut next = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) as usize % n
    };
    for round in 0..300 {
        let mut bytes: Vec<u8> = match round % 3 {
            0 => (0..next(3000)).map(|_| next(256) as u8).collect(),
            1 => (0..next(3000)).map(|_| next(10) as u8).collect(),
            _ => log[..next(log.len())].to_vec(),
        };
        for _ in 0..next(20) {
            let at = next(bytes.len().max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = next(256) as u8;
            }
        }
        let read = read_log(&bytes);
        assert!(read.valid_until <= bytes.len() as u64);
    }
}

fn golden(name: &str) -> Vec<u8> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/wal");
    std::fs::read(dir.join(name)).unwrap()
}

#[test]
fn a_log_of_rocksdb_is_read_and_written_again_to_the_byte() {
    let bytes = golden("legacy.log");
    let log = read_numbered(&bytes, 4);
    assert!(log.clean && log.damages.is_empty());
    assert_eq!(log.records.len(), 23);
    let batch = |seqno: u8, body: &[u8]| [&[seqno, 0, 0, 0, 0, 0, 0, 0], body].concat();
    assert_eq!(
        log.records[0].1,
        batch(1, b"\x01\0\0\0\x01\x06key000\x06value0")
    );
    assert_eq!(log.records[21].1, batch(22, b"\x01\0\0\0\x00\x06key003"));
    assert_eq!(
        log.records[22].1,
        batch(23, b"\x03\0\0\0\x01\x01x\x011\x01\x01y\x012\0\x01x")
    );
    assert_eq!(write_log(&log.payloads(), 4, false), bytes);
}

#[test]
fn a_recycled_log_of_rocksdb_ends_before_its_old_records() {
    let bytes = golden("recycled.log");
    let log = read_numbered(&bytes, 10);
    assert_eq!(log.records.len(), 5);
    assert!(
        log.records
            .iter()
            .enumerate()
            .all(|(i, r)| r.1.ends_with(&[b'0' + i as u8, 1, b'v']))
    );
    assert!(log.damages.iter().all(|d| d.is_tail));
    assert_eq!(
        write_log(&log.payloads(), 10, true),
        bytes[..log.valid_until as usize]
    );
    let of_another = read_numbered(&bytes, 11);
    assert!(of_another.records.is_empty() && of_another.clean);
}

#[test]
fn a_manifest_of_rocksdb_is_a_log() {
    let bytes = golden("MANIFEST");
    let log = read_numbered(&bytes, 0);
    assert!(log.clean && log.damages.is_empty() && log.records.len() == 5);
    assert_eq!(write_log(&log.payloads(), 0, false), bytes);
}
