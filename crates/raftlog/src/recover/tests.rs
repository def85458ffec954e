//! Directories put together byte by byte.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use orogen_base::perf::{PerfContext, PerfCounter, PerfLevel};
use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind};
use orogen_env::fs::{read_file, write_file};
use orogen_env::{
    Access, Clock, Fault, FaultFileSystem, FileSystem, MemFileSystem, OpKind, SystemClock,
};

use super::{Digester, LogFile, Table};
use crate::check::{Checked, check};
use crate::digest::{self, Digest};
use crate::format::{
    FileHeader, FormatVersion, Lz4Policy, Part, RESERVED_KEY, encode_record, padding, sign,
};
use crate::item::{Item, Op};
use crate::names::{FileId, Queue};
use crate::raw::{Command, Engine, Fenced, LogBatch, Options, RecoveryMode};

const NEVER: Lz4Policy = Lz4Policy {
    threshold: 0,
    acceleration: 1,
};

fn record(batch: &LogBatch, marks: &[Item], seq: u64) -> Vec<u8> {
    let mut items = batch.items.clone();
    items.extend_from_slice(marks);
    let mut bytes = encode_record(&batch.block, &items, NEVER)
        .unwrap()
        .bytes
        .clone();
    sign(&mut bytes, FormatVersion::V2.signature(seq));
    bytes
}

fn header(alignment: u64) -> Vec<u8> {
    let version = FormatVersion::V2;
    FileHeader { version, alignment }.encode()
}

fn disk(files: &[(Queue, u64, Vec<u8>)]) -> Arc<dyn FileSystem> {
    let fs = MemFileSystem::new();
    fs.create_dir_all(Path::new("/log")).unwrap();
    for (queue, seq, bytes) in files {
        let name = FileId::new(*queue, *seq).name();
        write_file(&fs, &Path::new("/log").join(name), bytes).unwrap();
    }
    Arc::new(fs)
}

fn open(fs: &Arc<dyn FileSystem>, mode: RecoveryMode) -> orogen_base::Result<Engine> {
    let options = Options {
        recovery_mode: mode,
        ..Options::default()
    };
    Engine::open(fs, Path::new("/log"), options)
}

fn entries(group: u64, first: u64, bytes: &[&str]) -> LogBatch {
    let mut batch = LogBatch::default();
    batch.add_entries(group, first, bytes).unwrap();
    batch
}

fn all(engine: &Engine, group: u64) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(first) = engine.first_index(group) {
        let end = engine.last_index(group).unwrap() + 1;
        let n = engine
            .fetch_entries_to(group, first, end, None, &mut out)
            .unwrap();
        assert_eq!(n, out.len());
    }
    out.iter()
        .map(|e| String::from_utf8(e.clone()).unwrap())
        .collect()
}

fn mark(id: u64, part: Part) -> Item {
    let (key, value) = (RESERVED_KEY.to_vec(), vec![part as u8]);
    Item {
        group: id,
        op: Op::Put { key, value },
    }
}

#[test]
fn the_append_queue_lies_on_top_of_the_rewrite_queue() {
    let mut rewrite = header(0);
    rewrite.extend(record(&entries(1, 1, &["a", "b", "c"]), &[], 4));
    rewrite.extend(record(&entries(2, 7, &["x", "y"]), &[], 4));
    let mut append = header(0);
    append.extend(record(&entries(1, 3, &["C", "D"]), &[], 9));
    let mut batch = entries(2, 20, &["z"]);
    batch.add_command(1, Command::Compact { index: 2 });
    append.extend(record(&batch, &[], 9));
    let fs = disk(&[(Queue::Rewrite, 4, rewrite), (Queue::Append, 9, append)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1), ["b", "C", "D"]);
    assert_eq!(all(&engine, 2), ["z"], "not adjacent: it takes the place");
    assert_eq!(engine.file_span(Queue::Rewrite), Some((4, 4)));
    assert_eq!(engine.file_span(Queue::Append), Some((9, 9)));
}

#[test]
fn records_may_follow_on_what_only_later_ones_take_away() {
    let mut rewrite = header(0);
    for group in 1..=4 {
        let old = entries(group, 1, &["a", "b", "c", "d"]);
        rewrite.extend(record(&old, &[], 1));
    }
    let mut append = header(0);
    for group in 1..=4 {
        // Entries 5 to 10 went away with their file, since they were to be written over.
        append.extend(record(&entries(group, 11, &["k", "l"]), &[], 5));
    }
    append.extend(record(&entries(1, 3, &["C", "D", "E"]), &[], 5));
    let mut batch = LogBatch::default();
    batch.add_command(2, Command::Compact { index: 13 });
    batch.add_entries(2, 2, &["B"]).unwrap();
    append.extend(record(&batch, &[], 5));
    batch.clear();
    batch.add_command(3, Command::Compact { index: 12 });
    append.extend(record(&batch, &[], 5));
    let mut batch = entries(4, 6, &["f"]);
    batch.merge(&mut entries(4, 7, &["g"])).unwrap();
    batch.merge(&mut entries(4, 5, &["e"])).unwrap();
    append.extend(record(&batch, &[], 5));
    let fs = disk(&[(Queue::Rewrite, 1, rewrite), (Queue::Append, 5, append)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1), ["a", "b", "C", "D", "E"]);
    assert_eq!(all(&engine, 2), ["B"]);
    assert_eq!(all(&engine, 3), ["l"]);
    assert_eq!(all(&engine, 4), ["a", "b", "c", "d", "e"]);
}

#[test]
fn removals_in_the_rewrite_queue_count_there() {
    let mut rewrite = header(0);
    let mut batch = entries(1, 1, &["a", "b", "c"]);
    batch.put(1, b"x".to_vec(), b"1".to_vec()).unwrap();
    batch.put(1, b"y".to_vec(), b"2".to_vec()).unwrap();
    batch.add_command(1, Command::Compact { index: 3 });
    batch.delete(1, b"x".to_vec());
    batch.merge(&mut entries(2, 1, &["no"])).unwrap();
    batch.add_command(2, Command::Clean);
    batch.merge(&mut entries(2, 7, &["yes"])).unwrap();
    batch.merge(&mut entries(3, 1, &["no"])).unwrap();
    batch.add_command(3, Command::Clean);
    rewrite.extend(record(&batch, &[], 1));
    let fs = disk(&[(Queue::Rewrite, 1, rewrite)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(engine.raft_groups(), [1, 2]);
    assert_eq!(all(&engine, 1), ["c"]);
    assert_eq!(engine.get(1, b"x"), None);
    assert_eq!(engine.get(1, b"y"), Some(b"2".to_vec()));
    assert_eq!(all(&engine, 2), ["yes"]);
}

#[test]
fn an_atomic_group_is_there_whole_or_not_at_all() {
    let mut first = header(0);
    let mut second = header(0);
    // The end of a group whose beginning was collected, and one that a crash left unfinished.
    first.extend(record(&entries(1, 90, &["no"]), &[mark(5, Part::End)], 1));
    first.extend(record(&entries(2, 90, &["no"]), &[mark(6, Part::Begin)], 1));
    // A new one with the same number, over two files.
    first.extend(record(&entries(1, 1, &["a"]), &[mark(6, Part::Begin)], 1));
    first.extend(record(&entries(1, 2, &["b"]), &[mark(6, Part::Middle)], 1));
    first.extend(record(&entries(3, 1, &["between"]), &[], 1));
    second.extend(record(&entries(1, 3, &["c"]), &[mark(6, Part::End)], 2));
    second.extend(record(&entries(4, 1, &["no"]), &[mark(7, Part::Begin)], 2));
    let fs = disk(&[(Queue::Rewrite, 1, first), (Queue::Rewrite, 2, second)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(engine.raft_groups(), [1, 3]);
    assert_eq!(all(&engine, 1), ["a", "b", "c"]);
}

#[test]
fn marks_in_the_append_queue_mean_nothing() {
    let mut file = header(0);
    file.extend(record(&entries(1, 1, &["a"]), &[mark(6, Part::Middle)], 1));
    let fs = disk(&[(Queue::Append, 1, file)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1), ["a"]);
    assert_eq!(engine.get(6, RESERVED_KEY), None);
}

#[test]
fn a_file_that_was_written_over_ends_where_its_own_records_end() {
    let mut file = header(0);
    file.extend(record(&entries(1, 1, &["a"]), &[], 2));
    let good = file.len() as u64;
    // What stood there when the file had number 1.
    file.extend(record(&entries(1, 2, &["stale"]), &[], 1));
    file.extend(record(&entries(1, 3, &["stale"]), &[], 1));
    let files = [(Queue::Append, 2, file)];
    assert!(open(&disk(&files), RecoveryMode::AbsoluteConsistency).is_err());
    let fs = disk(&files);
    let engine = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
    assert_eq!(all(&engine, 1), ["a"]);
    let path = Path::new("/log").join(FileId::new(Queue::Append, 2).name());
    assert_eq!(fs.metadata(&path).unwrap().size, good);
    engine.write(&mut entries(1, 2, &["b"]), true).unwrap();
    drop(engine);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1), ["a", "b"]);
}

#[test]
fn aligned_records_are_found_behind_zeros() {
    let mut file = header(512);
    for index in 1..=3u64 {
        file.extend(record(&entries(1, index, &["e"]), &[], 1));
        let len = file.len().next_multiple_of(512);
        if index < 3 {
            file.resize(len, 0);
        }
    }
    let fs = disk(&[(Queue::Append, 1, file)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1).len(), 3);
}

/// Three records at multiples of 512 of a file, and where they end.
fn aligned_file(seq: u64) -> (Vec<u8>, Vec<usize>) {
    let (mut file, mut ends) = (header(512), Vec::new());
    for index in 1..=3u64 {
        file.resize(file.len().next_multiple_of(512), 0);
        file.extend(record(&entries(1, index + 3 * (seq - 1), &["e"]), &[], seq));
        ends.push(file.len());
    }
    (file, ends)
}

#[test]
fn one_byte_in_padding_loses_nothing_and_is_told() {
    let (file, ends) = aligned_file(1);
    let id = FileId::new(Queue::Append, 1);
    for place in [69, 300, 511, ends[0], ends[1] + 15, 1023] {
        for is_newest in [true, false] {
            let mut damaged = file.clone();
            damaged[place] ^= 0x10;
            let mut files = vec![(Queue::Append, 1, damaged)];
            if !is_newest {
                files.push((Queue::Append, 2, aligned_file(2).0));
            }
            for mode in [
                RecoveryMode::TolerateTailCorruption,
                RecoveryMode::TolerateAnyCorruption,
            ] {
                let engine = open(&disk(&files), mode).unwrap();
                assert_eq!(all(&engine, 1).len(), 3 * files.len(), "{place} {mode:?}");
            }
            let error = open(&disk(&files), RecoveryMode::AbsoluteConsistency);
            let error = error.err().unwrap();
            let expected = place.to_string();
            assert_eq!(error.context("offset"), Some(expected.as_str()));
            let fs = disk(&files);
            let mut records = 0;
            let path = Path::new("/log").join(id.name());
            let told = super::look(&*fs, &path, id, true, |_, _| {
                records += 1;
                Ok(())
            });
            let told = told.unwrap().told(is_newest).unwrap();
            assert_eq!(told.context("offset"), Some(expected.as_str()));
            assert_eq!(records, 3);
        }
    }
}

#[test]
fn what_is_no_padding_ends_the_file() {
    // Two bytes; a damaged record in the place of padding; one without a record behind it.
    let (file, ends) = aligned_file(1);
    let mut two = file.clone();
    two[ends[0]] = 1;
    two[ends[0] + 9] = 1;
    let mut packed = file[..ends[0]].to_vec();
    packed.extend(record(&entries(1, 2, &["e"]), &[], 1));
    packed[ends[0] + 6] ^= 1;
    packed.resize(1024, 0);
    packed.extend_from_slice(&file[1024..]);
    let mut without = file.clone();
    without[ends[0]] = 1;
    without.truncate(1024);
    for bytes in [two, packed, without] {
        let files = [(Queue::Append, 1, bytes)];
        assert!(open(&disk(&files), RecoveryMode::AbsoluteConsistency).is_err());
        let engine = open(&disk(&files), RecoveryMode::TolerateTailCorruption).unwrap();
        assert_eq!(all(&engine, 1).len(), 1);
    }
}

#[test]
fn a_file_may_end_with_its_padding() {
    let earlier = |len: usize| {
        let mut bytes = aligned_file(1).0;
        bytes.resize(len, 0);
        let newest = aligned_file(2).0;
        disk(&[(Queue::Append, 1, bytes), (Queue::Append, 2, newest)])
    };
    for mode in [
        RecoveryMode::AbsoluteConsistency,
        RecoveryMode::TolerateTailCorruption,
    ] {
        let fs = earlier(2048);
        for _ in 0..2 {
            let engine = open(&fs, mode).unwrap();
            assert_eq!(all(&engine, 1).len(), 6);
            engine.close().unwrap();
        }
        // Zeros behind that are none of it.
        assert!(open(&earlier(2049), mode).is_err());
    }
    // It has a digest as others do.
    let fs = earlier(2048);
    drop(open(&fs, RecoveryMode::TolerateTailCorruption).unwrap());
    let reopened = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
    assert_eq!(reopened.files_read_at_open(), 0);
    drop(reopened);
    // The newest is cut off, and goes on.
    let mut bytes = aligned_file(1).0;
    bytes.resize(2048, 0);
    let fs = disk(&[(Queue::Append, 1, bytes)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    engine.write(&mut entries(1, 4, &["e"]), true).unwrap();
    drop(engine);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1).len(), 4);
}

#[test]
fn damage_is_tolerated_as_the_mode_says() {
    use RecoveryMode::{AbsoluteConsistency, TolerateAnyCorruption, TolerateTailCorruption};
    let file = |seq: u64| {
        let mut bytes = header(0);
        for n in 0..3 {
            bytes.extend(record(&entries(seq, 1 + n, &["entry"]), &[], seq));
        }
        bytes
    };
    let len = file(1).len();
    // A bit of the middle record's block: its footer is whole.
    let in_block = 69 + (len - 69) / 3 + 18;
    for (which, expected) in [
        (1, [None, None, Some([3, 3])]),
        (2, [None, Some([3, 1]), Some([3, 1])]),
    ] {
        // A cut in the last record; a bit in a footer; zeros behind.
        for damage in 0..3 {
            let mut files = [(Queue::Append, 1, file(1)), (Queue::Append, 2, file(2))];
            let bytes = &mut files[which - 1].2;
            let mut kept = 1;
            match damage {
                0 => {
                    bytes.truncate(len - 3);
                    kept = 2;
                }
                1 => bytes[in_block + 12] ^= 4,
                _ if which == 2 => bytes[in_block] ^= 4,
                _ => {
                    bytes.resize(len + 1000, 0);
                    kept = 3;
                }
            }
            for (mode, counts) in [
                AbsoluteConsistency,
                TolerateTailCorruption,
                TolerateAnyCorruption,
            ]
            .into_iter()
            .zip(expected)
            {
                let fs = disk(&files);
                match counts {
                    None => assert!(open(&fs, mode).is_err(), "{which} {damage} {mode:?}"),
                    Some(_) => {
                        let engine = open(&fs, mode).unwrap();
                        let count = |group| all(&engine, group).len();
                        assert_eq!(count(which as u64), kept, "{damage} {mode:?}");
                        assert_eq!(count(3 - which as u64), 3);
                        drop(engine);
                        open(&fs, AbsoluteConsistency).unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn files_before_a_gap_are_not_read() {
    let file = |seq: u64| {
        let mut bytes = header(0);
        bytes.extend(record(&entries(seq, 1, &["e"]), &[], seq));
        (Queue::Append, seq, bytes)
    };
    let fs = disk(&[file(1), file(3), file(4)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(engine.raft_groups(), [3, 4]);
    assert_eq!(engine.file_span(Queue::Append), Some((3, 4)));
}

#[test]
fn a_file_that_was_being_made_is_made_anew() {
    let mut old = header(0);
    old.extend(record(&entries(1, 1, &["a"]), &[], 1));
    for rest in [Vec::new(), header(0)[..40].to_vec(), vec![0; 69], header(0)] {
        let fs = disk(&[(Queue::Append, 1, old.clone()), (Queue::Append, 2, rest)]);
        let engine = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
        assert_eq!(engine.file_span(Queue::Append), Some((1, 2)));
        engine.write(&mut entries(1, 2, &["b"]), true).unwrap();
        drop(engine);
        let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
        assert_eq!(all(&engine, 1), ["a", "b"]);
    }
}

#[test]
fn records_behind_a_damaged_first_sector_are_not_thrown_away() {
    for alignment in [0, 4096] {
        let mut bytes = header(alignment);
        bytes.resize(
            bytes.len() + padding(bytes.len() as u64, alignment) as usize,
            0,
        );
        for index in 1..=50 {
            let value = "v".repeat(300);
            bytes.extend(record(&entries(1, index, &[&value]), &[], 1));
        }
        bytes[..512].fill(0xff);
        let fs = disk(&[(Queue::Append, 1, bytes.clone())]);
        for mode in [
            RecoveryMode::AbsoluteConsistency,
            RecoveryMode::TolerateTailCorruption,
        ] {
            let e = open(&fs, mode).err().unwrap();
            assert_eq!(e.kind(), ErrorKind::Corruption);
            let path = Path::new("/log").join(FileId::new(Queue::Append, 1).name());
            assert_eq!(read_file(&*fs, &path).unwrap(), bytes);
        }
        let any = open(&fs, RecoveryMode::TolerateAnyCorruption).unwrap();
        assert_eq!(any.last_index(1), None);
    }
}

#[test]
fn what_marks_say_in_the_append_queue_means_nothing() {
    let strange = Item {
        group: 1,
        op: Op::Put {
            key: RESERVED_KEY.to_vec(),
            value: vec![9],
        },
    };
    let mut bytes = header(0);
    bytes.extend(record(&entries(1, 1, &["a"]), &[strange], 1));
    let fs = disk(&[(Queue::Append, 1, bytes)]);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1), ["a"]);
    assert_eq!(engine.get(1, RESERVED_KEY), None);
}

#[test]
fn version_1_is_read_and_written() {
    let fs = disk(&[]);
    let options = Options {
        format_version: FormatVersion::V1,
        target_file_size: 1,
        ..Options::default()
    };
    let engine = Engine::open(&fs, Path::new("/log"), options).unwrap();
    for index in 1..5 {
        engine.write(&mut entries(1, index, &["e"]), false).unwrap();
    }
    drop(engine);
    // Newer files are of version 2.
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    engine.write(&mut entries(1, 5, &["e"]), false).unwrap();
    drop(engine);
    let engine = open(&fs, RecoveryMode::AbsoluteConsistency).unwrap();
    assert_eq!(all(&engine, 1).len(), 5);
}

fn checked(fs: &Arc<dyn FileSystem>) -> Checked {
    check(&**fs, Path::new("/log"), None, |_, _| {}).unwrap()
}

#[test]
fn what_the_rewrite_queue_lacks_is_a_hole_only_beside_damage() {
    // Entries 4 to 9 and 11 to 19 were compacted, of which no record there has to tell.
    let mut files = [header(0), header(0)];
    files[0].extend(record(&entries(1, 1, &["a", "b", "c"]), &[], 1));
    files[1].extend(record(&entries(1, 10, &["j"]), &[], 2));
    files[1].extend(record(&entries(1, 20, &["t"]), &[], 2));
    let disk = |[first, second]: [Vec<u8>; 2]| {
        let second = (Queue::Rewrite, 2, second);
        disk(&[(Queue::Rewrite, 1, first), second])
    };
    assert_eq!(checked(&disk(files.clone())).holes, []);
    files[0].extend_from_slice(b"a record that cannot be read");
    assert_eq!(checked(&disk(files)).holes, [(1, 3)]);
}

#[test]
fn an_atomic_group_that_is_not_complete_leaves_no_hole() {
    let mut first = header(0);
    first.extend(record(&entries(1, 1, &["a", "b", "c"]), &[], 1));
    first.extend(record(&entries(1, 1, &["a"]), &[mark(6, Part::Begin)], 1));
    first.extend_from_slice(b"a record that cannot be read");
    let mut second = header(0);
    second.extend(record(&entries(1, 4, &["d"]), &[], 2));
    let fs = disk(&[(Queue::Rewrite, 1, first), (Queue::Rewrite, 2, second)]);
    assert_eq!(checked(&fs).holes, []);
}

#[test]
fn a_mark_that_says_nothing_known_is_damage_of_its_file() {
    let (key, value) = (RESERVED_KEY.to_vec(), vec![9]);
    let op = Op::Put { key, value };
    let mut bytes = header(0);
    bytes.extend(record(&entries(1, 1, &["a"]), &[Item { group: 6, op }], 1));
    let fs = disk(&[(Queue::Rewrite, 1, bytes)]);
    assert!(open(&fs, RecoveryMode::TolerateTailCorruption).is_err());
    let file = &checked(&fs).files[0];
    assert!(file.damage.is_some() && !file.is_torn_end);
}

/// A file whose header is damaged, with what looks like the header of a record at every 32nd byte. Its footer would begin `far` bytes behind,
/// with `footer`, and go on to the end of the file.
fn look_alikes(len: usize, far: usize, footer: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff; 96];
    while bytes.len() + 64 <= len {
        let record = ((len - bytes.len()) as u64) << 8;
        bytes.extend_from_slice(&record.to_be_bytes());
        bytes.extend_from_slice(&(far as u64 + 16).to_be_bytes());
        bytes.extend_from_slice(footer);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
    }
    bytes.resize(len, 0);
    bytes
}

#[test]
fn to_look_for_records_is_to_read_the_file_a_few_times() {
    const LEN: usize = 256 << 10;
    for far in [0, LEN / 2] {
        // What is no footer, and the beginning of a key that could go on for long.
        for (footer, is_told) in [([0; 5], false), ([1, 1, 3, 1, 100], true)] {
            let fs = disk(&[(Queue::Append, 1, look_alikes(LEN, far, &footer))]);
            let (checked, perf) = PerfContext::measure(PerfLevel::EnableCount, || checked(&fs));
            let read = perf.get(PerfCounter::BytesRead);
            assert!(read < 20 * LEN as u64, "{far} {read}");
            let file = &checked.files[0];
            assert!(file.damage.is_some());
            assert_eq!(file.is_torn_end, !is_told);
            let path = Path::new("/log").join(FileId::new(Queue::Append, 1).name());
            let reader = fs.open(&path, Access::Random).unwrap();
            let (is_found, spent) = super::has_record(&reader, &[0, 1]).unwrap();
            assert_eq!(is_found, is_told);
            assert!(spent < 18 * LEN as u64, "{far} {spent}");
            let opened = open(&fs, RecoveryMode::TolerateTailCorruption);
            assert_eq!(opened.is_err(), is_told);
        }
    }
}

#[test]
fn records_that_a_file_held_before_are_none_of_it_however_many() {
    let mut bytes = vec![0xff; 96];
    while bytes.len() < 300 << 10 {
        bytes.extend(record(&entries(1, 1, &["an entry"]), &[], 1));
    }
    let mut old = header(0);
    old.extend(record(&entries(1, 1, &["a"]), &[], 1));
    let fs = disk(&[(Queue::Append, 1, old), (Queue::Append, 2, bytes)]);
    let engine = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
    assert_eq!(all(&engine, 1), ["a"]);
}

/// Whoever sleeps says so, and goes on when it is let go.
struct Held {
    entered: Mutex<Sender<()>>,
    may_leave: Mutex<Receiver<()>>,
}

impl Clock for Held {
    fn now_micros(&self) -> u64 {
        SystemClock.now_micros()
    }

    fn unix_micros(&self) -> u64 {
        SystemClock.unix_micros()
    }

    fn sleep(&self, _: Duration) {
        self.entered.lock().send(()).unwrap();
        let _ = self.may_leave.lock().recv();
    }
}

#[test]
fn who_closes_makes_the_digest_that_an_idle_thread_does_not_get_on_with() {
    let mut bytes = header(0);
    for index in 1..=9 {
        bytes.extend(record(&entries(1, index, &["an entry"]), &[], 1));
    }
    let len = bytes.len() as u64;
    let faulty = FaultFileSystem::new(disk(&[(Queue::Append, 1, bytes)]));
    let fs: Arc<dyn FileSystem> = Arc::new(faulty.clone());
    let (dir, id) = (Path::new("/log"), FileId::new(Queue::Append, 1));
    let file = Arc::new(LogFile {
        id,
        version: FormatVersion::V2,
        reader: fs.open(&dir.join(id.name()), Access::Random).unwrap(),
    });
    let table = Arc::new(Table::default());
    table.push(Arc::clone(&file));
    let digester = Digester::new(Arc::clone(&fs), table);
    let ((entered, is_entered), (leave, may_leave)) = (channel(), channel());
    let held = Arc::new(Held {
        entered: Mutex::new(entered),
        may_leave: Mutex::new(may_leave),
    });
    let fault = Fault::io().on(&[OpKind::Read]);
    faulty.faults().add(fault.slow(held, Duration::ZERO));
    digester.ask(id, len);
    is_entered.recv().unwrap();
    // The thread does not get on.
    digester.finish();
    let is_whole = || {
        Digest::read(&*fs, dir, id, &*file.reader)
            .unwrap()
            .is_some()
    };
    assert!(is_whole());
    // When it does, somebody else may have the directory.
    digest::remove(&*fs, dir, id).unwrap();
    drop(leave);
    drop(digester);
    assert!(!is_whole());
}

/// Groups 1 and 2: entries 1 to 3 in a first file, 4 in a second one, 6 and 7 of group 1 and 5 of group 2 in a third.
fn with_a_hole() -> Arc<dyn FileSystem> {
    let mut files = [header(0), header(0), header(0)];
    for group in [1, 2] {
        files[0].extend(record(&entries(group, 1, &["a", "b", "c"]), &[], 1));
        files[1].extend(record(&entries(group, 4, &["d"]), &[], 2));
    }
    let mut keys = LogBatch::default();
    keys.put(1, b"state".to_vec(), b"s".to_vec()).unwrap();
    files[1].extend(record(&keys, &[], 2));
    files[2].extend(record(&entries(1, 6, &["f", "g"]), &[], 3));
    files[2].extend(record(&entries(2, 5, &["e"]), &[], 3));
    let files: Vec<_> = (1..).zip(files).collect();
    let files: Vec<_> = files
        .into_iter()
        .map(|(seq, bytes)| (Queue::Append, seq, bytes))
        .collect();
    disk(&files)
}

#[test]
fn a_group_with_a_hole_is_fenced_and_the_others_go_on() {
    let fs = with_a_hole();
    let e = open(&fs, RecoveryMode::AbsoluteConsistency).map(|_| ());
    assert_eq!(e.unwrap_err().kind(), ErrorKind::Corruption);
    // The second time from digests.
    for files_read in [3, 0] {
        let engine = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
        assert_eq!(engine.files_read_at_open(), files_read);
        let fenced = Fenced {
            group: 1,
            missing_before: 6,
        };
        assert_eq!(engine.fenced_groups(), [fenced]);
        assert_eq!(engine.metrics().groups_fenced, 1);
        let is_told = |e: Error| {
            assert_eq!(e.kind(), ErrorKind::Corruption);
            assert_eq!(e.context("group"), Some("1"));
        };
        for index in [1, 5, 6] {
            is_told(engine.get_entry(1, index).unwrap_err());
        }
        let mut out = Vec::new();
        is_told(
            engine
                .fetch_entries_to(1, 6, 8, None, &mut out)
                .unwrap_err(),
        );
        for first in [5, 8] {
            let mut both = entries(1, first, &["x"]);
            both.add_entries(2, 6, &["y"]).unwrap();
            is_told(engine.write(&mut both, true).unwrap_err());
        }
        is_told(engine.purge_expired_files().unwrap_err());
        is_told(engine.purge_all_stale().unwrap_err());
        assert_eq!(engine.get(1, b"state").unwrap(), b"s");
        assert_eq!(all(&engine, 2), ["a", "b", "c", "d", "e"]);
        engine.close().unwrap();
    }
    assert_eq!(checked(&fs).holes, [(1, 4)], "all that there was is there");
}

#[test]
fn a_fence_is_lifted_where_nothing_that_is_missing_counts() {
    let clean = Command::Clean;
    let up_to = |index| Command::Compact { index };
    let cases = [
        (clean, true, 0),
        (up_to(5), false, 0),
        (up_to(6), true, 2),
        (up_to(7), true, 1),
        (up_to(8), true, 0),
    ];
    for (command, is_lifted, left) in cases {
        let fs = with_a_hole();
        let engine = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
        let mut batch = LogBatch::default();
        batch.add_command(1, command);
        engine.write(&mut batch, true).unwrap();
        for engine in [Some(engine), None] {
            let open = || open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
            let engine = engine.unwrap_or_else(open);
            assert_eq!(engine.fenced_groups().is_empty(), is_lifted, "{command:?}");
            if is_lifted {
                assert_eq!(all(&engine, 1).len(), left, "{command:?}");
                engine.purge_expired_files().unwrap();
            }
        }
        assert_eq!(checked(&fs).holes.is_empty(), is_lifted, "{command:?}");
        let engine = open(&fs, RecoveryMode::TolerateTailCorruption).unwrap();
        let next = engine.last_index(1).map_or(1, |last| last + 1);
        let written = engine.write(&mut entries(1, next, &["n"]), false);
        assert_eq!(written.is_ok(), is_lifted, "{command:?}");
    }
    // By a call that drops no entry, too.
    let engine = open(&with_a_hole(), RecoveryMode::TolerateTailCorruption).unwrap();
    assert_eq!(engine.compact_to(1, 5).unwrap(), 0);
    assert_eq!(engine.fenced_groups().len(), 1);
    assert_eq!(engine.compact_to(1, 6).unwrap(), 0);
    assert_eq!(all(&engine, 1), ["f", "g"]);
}

#[test]
fn what_damage_that_is_tolerated_takes_from_the_middle_fences() {
    let mut files = [header(0), header(0)];
    files[0].extend(record(&entries(1, 1, &["a"]), &[], 1));
    files[0].extend(record(&entries(2, 1, &["a"]), &[], 1));
    let end = files[0].len();
    files[0].extend(record(&entries(1, 2, &["b"]), &[], 1));
    files[0][end..].fill(0xff);
    files[1].extend(record(&entries(1, 3, &["c"]), &[], 2));
    files[1].extend(record(&entries(2, 2, &["b"]), &[], 2));
    let [first, second] = files;
    let fs = disk(&[(Queue::Append, 1, first), (Queue::Append, 2, second)]);
    let engine = open(&fs, RecoveryMode::TolerateAnyCorruption).unwrap();
    let fenced: Vec<u64> = engine.fenced_groups().iter().map(|f| f.group).collect();
    assert_eq!(fenced, [1]);
    assert_eq!(all(&engine, 2), ["a", "b"]);
}

#[test]
fn what_was_taken_away_between_is_no_hole() {
    // Each of these is what an engine may write, or what is left of it once the oldest file is gone.
    let compact = |index| {
        let mut batch = LogBatch::default();
        batch.add_command(1, Command::Compact { index });
        batch
    };
    let mut clean = LogBatch::default();
    clean.add_command(1, Command::Clean);
    let cases: [(Vec<LogBatch>, &[&str]); 5] = [
        (
            vec![
                entries(1, 1, &["a", "b"]),
                compact(3),
                entries(1, 9, &["i"]),
            ],
            &["i"],
        ),
        (
            vec![entries(1, 1, &["a", "b"]), clean, entries(1, 9, &["i"])],
            &["i"],
        ),
        (
            vec![
                entries(1, 50, &["x"]),
                entries(1, 40, &["y"]),
                entries(1, 41, &["z"]),
            ],
            &["y", "z"],
        ),
        (
            vec![
                entries(1, 1, &["a", "b", "c"]),
                entries(1, 2, &["B"]),
                entries(1, 3, &["C"]),
            ],
            &["a", "B", "C"],
        ),
        (
            vec![compact(7), entries(1, 9, &["i"]), entries(1, 10, &["j"])],
            &["i", "j"],
        ),
    ];
    for (records, expected) in cases {
        // In one file, and each in a file of its own.
        let mut one = header(0);
        let mut apart = Vec::new();
        for (batch, seq) in records.iter().zip(1..) {
            one.extend(record(batch, &[], 1));
            let mut file = header(0);
            file.extend(record(batch, &[], seq));
            apart.push((Queue::Append, seq, file));
        }
        for files in [vec![(Queue::Append, 1, one)], apart] {
            let engine = open(&disk(&files), RecoveryMode::AbsoluteConsistency).unwrap();
            assert_eq!(engine.fenced_groups(), []);
            assert_eq!(all(&engine, 1), expected);
        }
    }
}
