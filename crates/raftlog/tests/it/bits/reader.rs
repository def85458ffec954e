//! A reader of a directory that shares nothing with the crate's own, and of which each step can be followed.
//!
//! The bytes of an entry follow from its group, index and length, so it does not unpack blocks to know them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use orogen_base::Result;
use orogen_base::coding::Decoder;
use orogen_testkit::rng::Rng;

use crate::model::dir;

/// Magic bytes and version, and then the alignment.
pub(super) const MAGIC_LEN: usize = 61;
pub(super) const HEADER_LEN: usize = 69;
const RECORD_HEADER_LEN: usize = 16;

const MARK: &[u8] = b"__\x01";

pub(super) fn entry(group: u64, index: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(group << 40 | index << 20 | len as u64);
    match (group + index) % 3 {
        0 => vec![rng.u64() as u8; len],
        _ => rng.bytes(len),
    }
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    Entries { first: u64, lens: Vec<usize> },
    Clean,
    Compact { index: u64 },
    Put { key: Vec<u8>, value: Vec<u8> },
    Delete { key: Vec<u8> },
}

/// Where a record is in its file, and what it does.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) at: usize,
    pub(super) footer: usize,
    pub(super) end: usize,
    pub(super) is_lz4: bool,
    /// Which part of which atomic group it is.
    pub(super) mark: Option<(u64, u8)>,
    pub(super) ops: Vec<(u64, Op)>,
}

impl Record {
    pub(super) fn block(&self) -> usize {
        self.at + RECORD_HEADER_LEN
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Append,
    Rewrite,
    /// What an open can do without: a digest, or a spare file.
    Beside,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) is_newest: bool,
    pub(super) alignment: usize,
    pub(super) bytes: Vec<u8>,
    pub(super) records: Vec<Record>,
}

impl File {
    pub(super) fn path(&self) -> PathBuf {
        dir().join(&self.name)
    }

    /// Whether a byte is of a block of entries.
    pub(super) fn is_raw(&self, at: usize) -> bool {
        let mut records = self.records.iter();
        records.any(|record| (record.block()..record.footer).contains(&at))
    }

    /// The bits of a byte that are flipped: all of what says where and what things are, else one.
    pub(super) fn bits(&self, at: usize, rng: &mut Rng) -> Range<u8> {
        let is_header = self.kind != Kind::Beside && (MAGIC_LEN - 8..HEADER_LEN).contains(&at);
        let mut records = self.records.iter();
        let is_of_record = records.any(|record| (record.at..record.end).contains(&at));
        match is_header || is_of_record && !self.is_raw(at) {
            true => 0..8,
            false => {
                let bit = rng.below(8) as u8;
                bit..bit + 1
            }
        }
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b))
}

fn string(decoder: &mut Decoder<'_>) -> Result<Vec<u8>> {
    let len = decoder.varint64("length")? as usize;
    decoder.bytes(len, "string").map(<[u8]>::to_vec)
}

fn ops_of(footer: &[u8]) -> Result<Vec<(u64, Op)>> {
    let mut decoder = Decoder::new(footer);
    let mut ops = Vec::new();
    let mut end = 0;
    for _ in 0..decoder.varint64("count")? {
        let group = decoder.varint64("group")?;
        let kind = decoder.u8("kind")?;
        let op = if kind == 1 {
            let count = decoder.varint64("count")?;
            let first = decoder.varint64("first")?;
            let mut lens = Vec::new();
            for _ in 0..count {
                let next = decoder.varint64("end")? as usize;
                lens.push(next - end);
                end = next;
            }
            Op::Entries { first, lens }
        } else {
            match (kind, decoder.u8("operation")?) {
                (2, 1) => Op::Clean,
                (2, _) => {
                    let index = decoder.varint64("index")?;
                    Op::Compact { index }
                }
                (_, 1) => Op::Put {
                    key: string(&mut decoder)?,
                    value: string(&mut decoder)?,
                },
                _ => Op::Delete {
                    key: string(&mut decoder)?,
                },
            }
        };
        ops.push((group, op));
    }
    assert!(decoder.is_empty());
    Ok(ops)
}

/// The record at `at`, if there is one of the file with this number.
fn record_at(bytes: &[u8], at: usize, seq: u32) -> Option<Record> {
    let header = bytes.get(at..at + RECORD_HEADER_LEN)?;
    let end = at + (number(&header[..8]) >> 8);
    let footer = at + number(&header[8..]);
    let items = bytes.get(footer..end.checked_sub(4)?)?;
    let sum = (crc32fast::hash(items) ^ seq).to_le_bytes();
    if end == at || bytes.get(end - 4..end)? != sum {
        return None;
    }
    let mut ops = ops_of(items).unwrap();
    let mark = ops.iter().find_map(|(group, op)| match op {
        Op::Put { key, value } if key == MARK => Some((*group, value[0])),
        _ => None,
    });
    ops.retain(|(_, op)| !matches!(op, Op::Put { key, .. } if key == MARK));
    Some(Record {
        at,
        footer,
        end,
        is_lz4: header[7] == 1,
        mark,
        ops,
    })
}

pub(super) fn parse(name: String, bytes: Vec<u8>) -> File {
    let mut file = File {
        kind: match name.rsplit('.').next() {
            Some("raftlog") => Kind::Append,
            Some("rewrite") => Kind::Rewrite,
            _ => Kind::Beside,
        },
        name,
        is_newest: false,
        alignment: 0,
        bytes,
        records: Vec::new(),
    };
    if file.kind == Kind::Beside {
        return file;
    }
    let seq = file.name[..16].parse().unwrap();
    file.alignment = number(&file.bytes[MAGIC_LEN..HEADER_LEN]);
    let mut at = HEADER_LEN;
    loop {
        let padded = match file.alignment {
            0 => at,
            alignment => at.next_multiple_of(alignment),
        };
        let mut found = [at, padded].into_iter();
        let Some(record) = found.find_map(|at| record_at(&file.bytes, at, seq)) else {
            return file;
        };
        at = record.end;
        file.records.push(record);
    }
}

/// A file, and a record of it.
pub(super) type Source = (usize, usize);

/// An entry: its length, and where it is.
type Place = (usize, Source);

#[derive(Default)]
pub(super) struct Group {
    /// Those of the rewrite queue.
    pub(super) below: BTreeMap<u64, Place>,
    /// Those of the append queue on top.
    above: BTreeMap<u64, Place>,
    pub(super) missing_before: u64,
    pub(super) keys: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Takes away all from `first` on; what is left is none if it does not reach up to there.
fn lay(map: &mut BTreeMap<u64, Place>, first: u64, entries: impl Iterator<Item = Place>) {
    map.split_off(&first);
    if map.keys().next_back().is_some_and(|last| last + 1 < first) {
        map.clear();
    }
    map.extend((first..).zip(entries));
}

impl Group {
    fn apply(&mut self, kind: Kind, op: &Op, at: Source) {
        match op {
            Op::Clean => {}
            Op::Entries { first, lens } => {
                let entries = lens.iter().map(|len| (*len, at));
                if kind == Kind::Rewrite {
                    lay(&mut self.below, *first, entries);
                    return;
                }
                let last = self.above.keys().next_back();
                if last.is_some_and(|last| last + 1 < *first) {
                    self.missing_before = *first;
                }
                self.below.split_off(first);
                lay(&mut self.above, *first, entries);
            }
            Op::Compact { index } => {
                for map in [&mut self.below, &mut self.above] {
                    *map = map.split_off(index);
                }
                let is_empty = self.below.is_empty() && self.above.is_empty();
                if is_empty || *index >= self.missing_before {
                    self.missing_before = 0;
                }
            }
            Op::Put { key, value } => {
                self.keys.insert(key.clone(), value.clone());
            }
            Op::Delete { key } => {
                self.keys.remove(key);
            }
        }
    }

    /// Both queues were read.
    fn settle(&mut self) {
        let last = self.below.keys().next_back();
        let first = self.above.keys().next();
        if let (Some(last), Some(first)) = (last, first)
            && last + 1 != *first
        {
            self.below.clear();
        }
        self.below.append(&mut self.above);
    }
}

/// Records of atomic groups that are not complete, by the groups' numbers.
type Begun<'f> = BTreeMap<u64, Vec<(&'f Record, Source)>>;

/// The records that take effect now, with this one.
fn due<'f>(begun: &mut Begun<'f>, record: &'f Record, at: Source) -> Vec<(&'f Record, Source)> {
    let Some((id, part)) = record.mark else {
        return vec![(record, at)];
    };
    if part == 0 {
        begun.insert(id, Vec::new());
    }
    // Without a first one it is the rest of what was begun.
    if let Some(records) = begun.get_mut(&id) {
        records.push((record, at));
    }
    match part {
        2 => begun.remove(&id).unwrap_or_default(),
        _ => Vec::new(),
    }
}

/// What files hold without some of their records.
pub(super) fn replay(
    files: &[File],
    is_left_out: impl Fn(usize, usize) -> bool,
) -> BTreeMap<u64, Group> {
    let mut groups: BTreeMap<u64, Group> = BTreeMap::new();
    for kind in [Kind::Rewrite, Kind::Append] {
        let mut begun = Begun::new();
        let of_kind = |(_, file): &(usize, &File)| file.kind == kind;
        for (f, file) in files.iter().enumerate().filter(of_kind) {
            for (r, record) in file.records.iter().enumerate() {
                if is_left_out(f, r) {
                    continue;
                }
                for (record, at) in due(&mut begun, record, (f, r)) {
                    for (id, op) in &record.ops {
                        match op {
                            Op::Clean => drop(groups.remove(id)),
                            op => groups.entry(*id).or_default().apply(kind, op, at),
                        }
                    }
                }
            }
        }
    }
    groups.values_mut().for_each(Group::settle);
    groups
}
