//! Directories as Titan leaves them, made from the formats' tables, and what they hold.
//!
//! Old writes are at the bottom, then in level 2, in two tables of level 0, and the newest in two
//! logs. Large values are in blob files of several versions. Family `default` went through garbage
//! collection: pointers in the log, and in tables pointers to a file that is gone. `plain` has no
//! pointers, `deep` operands over values in blob files, `back` the reverse order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::key::{ValueKind, append_internal_key};
use orogen_base::{SeqNo, UserComparator};
use orogen_engine::filename;
use orogen_engine::version::manifest::set_current;
use orogen_engine::version::{ColumnFamilyChange, FileMeta, VersionEdit};
use orogen_engine::{Db, WriteBatch};
use orogen_env::fs::write_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_sst::{TableBuilder, TableBuilderOptions};
use orogen_testkit::Rng;
use orogen_testkit::titan::{AddedAs, BlobFile, Stored, edit, pointer, prefixed, varint};
use orogen_wal::Writer;

use crate::support::{DIR, scan};

pub(crate) type Content = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// Values of so many bytes and more are in blob files.
pub(crate) const MIN_BLOB_SIZE: usize = 100;

const FAMILIES: [&str; 4] = ["default", "plain", "deep", "back"];
const LOGS: [u64; 2] = [90, 91];

#[derive(Clone)]
enum Op {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Merge(Vec<u8>, Vec<u8>),
    DeleteRange(Vec<u8>, Vec<u8>),
    /// Of garbage collection: key, pointer and what it leads to.
    Move(Vec<u8>, Vec<u8>, Vec<u8>),
}

struct Write {
    family: usize,
    seqno: SeqNo,
    op: Op,
}

/// Where a record of a value that a reader sees is.
pub(crate) struct Place {
    pub(crate) family: &'static str,
    pub(crate) key: Vec<u8>,
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

pub(crate) struct Sample {
    pub(crate) fs: MemFileSystem,
    pub(crate) want: Content,
    pub(crate) last_seqno: SeqNo,
    /// Records in blob files of what is in `want`, and is no operand's base.
    pub(crate) places: Vec<Place>,
}

pub(crate) fn order(family: usize) -> UserComparator {
    match FAMILIES[family] {
        "back" => UserComparator::by_name("rocksdb.ReverseBytewiseComparator").expect("built in"),
        _ => UserComparator::BYTEWISE,
    }
}

pub(crate) fn content(db: &Db) -> Content {
    let families = db.column_families();
    families
        .iter()
        .map(|f| (f.name().to_owned(), scan(db, f).into_iter().collect()))
        .collect()
}

/// The files of both directories.
pub(crate) fn files(fs: &MemFileSystem) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for dir in [Path::new(DIR).to_path_buf(), titan_dir()] {
        for name in fs.list(&dir).expect("is a directory") {
            let path = dir.join(name);
            if !fs.metadata(&path).expect("is there").is_dir {
                let bytes = orogen_env::fs::read_file(fs, &path).expect("is a file");
                found.insert(path, bytes);
            }
        }
    }
    found
}

pub(crate) fn titan_dir() -> PathBuf {
    Path::new(DIR).join("titandb")
}

struct Maker {
    fs: MemFileSystem,
    rng: Rng,
    next_blob: u64,
    next_table: u64,
    /// Family, number, size, and records: key, sequence number, offset, size.
    blobs: Vec<(usize, u64, u64, Vec<Record>)>,
    edits: Vec<VersionEdit>,
    /// Tables of `back` do not note what they point to, as early releases left it out.
    lacks_notes: bool,
    /// What all others note of each of their files, instead of what is so.
    noted_bytes: Option<u64>,
}

type Record = (Vec<u8>, SeqNo, u64, u64);

impl Maker {
    /// Writes values to a blob file and gives their pointers.
    fn blob_file(&mut self, family: usize, values: &[(&[u8], SeqNo, &[u8])]) -> Vec<Vec<u8>> {
        let number = self.next_blob;
        self.next_blob += 1;
        let (version, block_size) = [(1, 0), (2, 0), (3, 0), (3, 128)][number as usize % 4];
        let mut file = BlobFile::new(version, block_size);
        let (mut pointers, mut records) = (Vec::new(), Vec::new());
        for &(key, seqno, value) in values {
            let stored = *self.rng.pick(&[Stored::Plain, Stored::Lz4, Stored::Snappy]);
            let (offset, size) = file.add(key, value, stored);
            pointers.push(pointer(number, offset, size));
            records.push((key.to_vec(), seqno, offset, size));
        }
        let bytes = file.finish();
        let path = filename::blob_path(&titan_dir(), number);
        write_file(&self.fs, &path, &bytes).expect("memory");
        self.blobs
            .push((family, number, bytes.len() as u64, records));
        pointers
    }

    fn table(&mut self, family: usize, level: usize, epoch: u64, writes: &[&Write]) {
        let order = order(family);
        let mut writes: Vec<&Write> = writes.to_vec();
        let key_of = |w: &Write| match &w.op {
            Op::Put(k, _) | Op::Delete(k) | Op::Merge(k, _) | Op::Move(k, ..) => k.clone(),
            Op::DeleteRange(..) => Vec::new(),
        };
        writes.sort_by(|a, b| {
            let by_key = order.compare(&key_of(a), &key_of(b));
            by_key.then(b.seqno.cmp(&a.seqno))
        });
        let large: Vec<(&[u8], SeqNo, &[u8])> = writes
            .iter()
            .filter_map(|w| match &w.op {
                Op::Put(key, value) if value.len() >= MIN_BLOB_SIZE && family != 1 => {
                    Some((&key[..], w.seqno, &value[..]))
                }
                _ => None,
            })
            .collect();
        let mut referenced = Vec::new();
        let mut pointers = Vec::new();
        if !large.is_empty() {
            pointers = self.blob_file(family, &large);
            let (_, number, _, records) = self.blobs.last().expect("it was just made");
            varint(&mut referenced, 1);
            varint(&mut referenced, *number);
            let bytes = records.iter().map(|r| r.3).sum();
            varint(&mut referenced, self.noted_bytes.unwrap_or(bytes));
        }
        let number = self.next_table;
        self.next_table += 1;
        let path = filename::table_path(Path::new(DIR), number);
        let options = TableBuilderOptions {
            comparator: order,
            file_number: number,
            ..TableBuilderOptions::default()
        };
        let file = self.fs.create(&path).expect("memory");
        let mut builder = TableBuilder::new(file, options).expect("builds");
        let mut pointers = pointers.iter();
        for write in &writes {
            let mut add = |key: &[u8], kind, value: &[u8]| {
                let mut internal = Vec::new();
                append_internal_key(&mut internal, key, write.seqno, kind);
                builder.add(&internal, value).expect("is in order");
            };
            match &write.op {
                Op::Put(key, value) if value.len() >= MIN_BLOB_SIZE && family != 1 => {
                    let pointer = pointers.next().expect("one each");
                    add(key, ValueKind::BlobIndex, pointer);
                }
                Op::Put(key, value) => add(key, ValueKind::Value, value),
                Op::Delete(key) => add(key, ValueKind::Deletion, b""),
                Op::Merge(key, operand) => add(key, ValueKind::Merge, operand),
                Op::Move(..) => unreachable!("stands in the log"),
                Op::DeleteRange(start, end) => builder
                    .add_range_tombstone(start, end, write.seqno)
                    .expect("is a range"),
            }
        }
        let is_noted = !(self.lacks_notes && FAMILIES[family] == "back");
        let note = (is_noted && !referenced.is_empty())
            .then(|| ("TitanDB.blob_discardable_size".to_owned(), referenced));
        let summary = builder.finish(note).expect("ends");
        let mut edit = VersionEdit::of_column_family(family as u32);
        let meta = FileMeta {
            number,
            size: summary.file_size,
            smallest: summary.smallest.expect("has entries"),
            largest: summary.largest.expect("has entries"),
            smallest_seqno: summary.smallest_seqno,
            largest_seqno: summary.largest_seqno,
            epoch_number: epoch,
            ..FileMeta::default()
        };
        edit.add_file(level, Arc::new(meta));
        self.edits.push(edit);
    }
}

fn random_op(rng: &mut Rng, family: usize, n: u64, keys: u64) -> Op {
    let key = |rng: &mut Rng| format!("key{:04}", rng.below(keys)).into_bytes();
    match rng.below(20) {
        0..=2 => Op::Delete(key(rng)),
        3 => {
            let from = rng.below(keys);
            let to = from + 1 + rng.below(6);
            let (a, b) = (format!("key{from:04}"), format!("key{to:04}"));
            match FAMILIES[family] {
                "back" => Op::DeleteRange(b.into_bytes(), a.into_bytes()),
                _ => Op::DeleteRange(a.into_bytes(), b.into_bytes()),
            }
        }
        4..=6 if family == 1 || family == 2 => Op::Merge(key(rng), format!("m{n}").into_bytes()),
        _ => {
            let len = match rng.below(3) {
                0 => rng.below(MIN_BLOB_SIZE as u64),
                1 => 100 + rng.below(300),
                _ => 500 + rng.below(3000),
            };
            let mut value = format!("{n}:").into_bytes();
            value.resize(value.len() + len as usize, b'a' + (n % 26) as u8);
            Op::Put(key(rng), value)
        }
    }
}

/// What a reader sees of a family, and the write that it is, if that is a value alone.
fn model(family: usize, writes: &[Write]) -> BTreeMap<Vec<u8>, (Vec<u8>, Option<SeqNo>)> {
    let order = order(family);
    let mut state: BTreeMap<Vec<u8>, (Vec<u8>, Option<SeqNo>)> = BTreeMap::new();
    for write in writes.iter().filter(|w| w.family == family) {
        match &write.op {
            Op::Put(key, value) | Op::Move(key, _, value) => {
                state.insert(key.clone(), (value.clone(), Some(write.seqno)));
            }
            Op::Delete(key) => {
                state.remove(key);
            }
            Op::Merge(key, operand) => {
                let (value, seqno) = state.entry(key.clone()).or_default();
                if !value.is_empty() {
                    value.push(b',');
                }
                value.extend_from_slice(operand);
                *seqno = None;
            }
            Op::DeleteRange(start, end) => {
                state.retain(|key, _| order.less(key, start) || !order.less(key, end));
            }
        }
    }
    state
}

fn log_record(write: &Write) -> Vec<u8> {
    let cf = write.family as u32;
    let mut batch = WriteBatch::new();
    match &write.op {
        Op::Put(key, value) => batch.put(cf, key, value),
        Op::Delete(key) => batch.delete(cf, key),
        Op::Merge(key, operand) => batch.merge(cf, key, operand),
        Op::DeleteRange(start, end) => batch.delete_range(cf, start, end),
        Op::Move(key, pointer, _) => {
            let mut out = write.seqno.to_le_bytes().to_vec();
            out.extend_from_slice(&1u32.to_le_bytes());
            // As RocksDB has it: nothing, then the operation.
            out.push(0xd);
            match cf {
                0 => out.push(0x11),
                _ => out.extend_from_slice(&[0x10, cf as u8]),
            }
            prefixed(&mut out, key);
            prefixed(&mut out, pointer);
            return out;
        }
    }
    let mut bytes = batch.as_bytes().to_vec();
    bytes[..8].copy_from_slice(&write.seqno.to_le_bytes());
    bytes
}

/// A directory of `count` writes.
pub(crate) fn sample(seed: u64, count: u64) -> Sample {
    sample_noting(seed, count, None)
}

/// The same; its tables note so many bytes of each blob file, if that is given.
pub(crate) fn sample_noting(seed: u64, count: u64, noted_bytes: Option<u64>) -> Sample {
    let mut rng = Rng::new(seed);
    let keys = count / 12 + 4;
    let mut writes: Vec<Write> = (1..=count)
        .map(|n| {
            let family = rng.below(4) as usize;
            let op = random_op(&mut rng, family, n, keys);
            Write {
                family,
                seqno: n,
                op,
            }
        })
        .collect();
    let fs = MemFileSystem::new();
    fs.create_dir_all(&titan_dir()).expect("memory");
    let mut maker = Maker {
        fs: fs.clone(),
        rng,
        next_blob: 1,
        next_table: 10,
        blobs: Vec::new(),
        edits: Vec::new(),
        lacks_notes: seed % 2 == 1,
        noted_bytes,
    };
    let share = |percent: u64| count * percent / 100;
    let chunks = [
        (0, share(40), 3),
        (share(40), share(65), 2),
        (share(65), share(75), 0),
        (share(75), share(85), 0),
    ];
    for (epoch, &(from, to, level)) in chunks.iter().enumerate() {
        for family in 0..FAMILIES.len() {
            let here: Vec<&Write> = writes[from as usize..to as usize]
                .iter()
                .filter(|w| w.family == family)
                .collect();
            if !here.is_empty() {
                maker.table(family, level, epoch as u64 + 1, &here);
            }
        }
    }
    // Garbage collection of the oldest file: what is seen moves on, and the file goes.
    let mut gone = BTreeSet::new();
    let oldest = maker.blobs.iter().position(|b| b.0 == 0);
    if let Some(at) = oldest {
        let seen = model(0, &writes);
        let (_, number, _, records) = &maker.blobs[at];
        gone.insert(*number);
        let moved: Vec<(Vec<u8>, Vec<u8>)> = records
            .iter()
            .filter_map(|(key, seqno, ..)| {
                let (value, by) = seen.get(key)?;
                (*by == Some(*seqno)).then(|| (key.clone(), value.clone()))
            })
            .collect();
        let first = count + 1;
        let values: Vec<(&[u8], SeqNo, &[u8])> = moved
            .iter()
            .enumerate()
            .map(|(n, (k, v))| (&k[..], first + n as u64, &v[..]))
            .collect();
        let pointers = maker.blob_file(0, &values);
        for (n, ((key, value), pointer)) in moved.iter().zip(pointers).enumerate() {
            writes.push(Write {
                family: 0,
                seqno: first + n as u64,
                op: Op::Move(key.clone(), pointer, value.clone()),
            });
        }
    }
    let last_seqno = writes.last().map_or(0, |w| w.seqno);
    // Logs: the second begins in between.
    let from = chunks[3].1 as usize;
    let middle = from + (writes.len() - from) / 2;
    for (log, part) in [
        (LOGS[0], &writes[from..middle]),
        (LOGS[1], &writes[middle..]),
    ] {
        let file = fs
            .create(&filename::wal_path(Path::new(DIR), log))
            .expect("memory");
        let mut writer = Writer::new(file, log, false);
        for write in part {
            writer.add_record(&log_record(write)).expect("memory");
        }
        writer.sync().expect("memory");
    }
    // An old log that nobody needs any more.
    write_file(&fs, &filename::wal_path(Path::new(DIR), 80), b"nothing").expect("memory");
    write_manifest(&fs, &maker, last_seqno.min(chunks[3].1));
    write_titan_manifest(&fs, &maker, &gone);
    for number in &gone {
        fs.remove_file(&filename::blob_path(&titan_dir(), *number))
            .expect("is there");
    }
    // What a crash left.
    let stray = filename::blob_path(&titan_dir(), 500);
    write_file(&fs, &stray, b"not finished").expect("memory");
    write_file(&fs, &filename::lock_path(Path::new(DIR)), b"").expect("memory");
    fs.sync_all();
    let mut want = Content::new();
    let mut places = Vec::new();
    for (family, &name) in FAMILIES.iter().enumerate() {
        let seen = model(family, &writes);
        for (of, file, _, records) in &maker.blobs {
            for (key, seqno, offset, size) in records.iter().filter(|_| *of == family) {
                let by = seen.get(key).and_then(|(_, by)| *by);
                if by == Some(*seqno) && !gone.contains(file) {
                    places.push(Place {
                        family: name,
                        key: key.clone(),
                        file: *file,
                        offset: *offset,
                        size: *size,
                    });
                }
            }
        }
        let pairs = seen.into_iter().map(|(k, (v, _))| (k, v));
        want.insert(name.to_owned(), pairs.collect());
    }
    Sample {
        fs,
        want,
        last_seqno,
        places,
    }
}

fn write_manifest(fs: &MemFileSystem, maker: &Maker, last_seqno: SeqNo) {
    let dir = Path::new(DIR);
    let path = filename::manifest_path(dir, 5);
    let mut writer = Writer::new(fs.create(&path).expect("memory"), 5, false);
    let mut edits = vec![VersionEdit {
        db_id: Some("titan-sample".to_owned()),
        next_file_number: Some(100),
        last_sequence: Some(last_seqno),
        max_column_family: Some(3),
        ..VersionEdit::default()
    }];
    for (id, &name) in FAMILIES.iter().enumerate() {
        let add = || ColumnFamilyChange::Add(name.to_owned());
        edits.push(VersionEdit {
            comparator: Some(order(id).name().to_owned()),
            column_family_change: (id > 0).then(add),
            ..VersionEdit::of_column_family(id as u32)
        });
        edits.push(VersionEdit {
            log_number: Some(LOGS[0]),
            ..VersionEdit::of_column_family(id as u32)
        });
    }
    edits.extend(maker.edits.iter().cloned());
    for edit in edits {
        writer.add_record(&edit.encode()).expect("memory");
    }
    writer.sync().expect("memory");
    set_current(fs, dir, 5).expect("memory");
}

fn write_titan_manifest(fs: &MemFileSystem, maker: &Maker, gone: &BTreeSet<u64>) {
    let dir = titan_dir();
    let path = filename::manifest_path(&dir, 2);
    let mut writer = Writer::new(fs.create(&path).expect("memory"), 0, false);
    let mut add = |bytes: Vec<u8>| writer.add_record(&bytes).expect("memory");
    add(edit(Some(2), 0, AddedAs::V3, &[], &[]));
    let forms = [AddedAs::V1, AddedAs::V2, AddedAs::V3];
    for (n, (family, number, size, _)) in maker.blobs.iter().enumerate() {
        let file: (u64, u64, &[u8], &[u8]) = (*number, *size, b"a", b"z");
        add(edit(Some(600), *family as u32, forms[n % 3], &[file], &[]));
    }
    for &number in gone {
        add(edit(Some(600), 0, AddedAs::V3, &[], &[number]));
    }
    // A family that was dropped.
    add(edit(
        Some(600),
        9,
        AddedAs::V3,
        &[(400, 77, b"a", b"b")],
        &[],
    ));
    writer.sync().expect("memory");
    set_current(fs, &dir, 2).expect("memory");
}
