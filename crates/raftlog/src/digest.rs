//! What one file of the append queue does to the groups, without payloads, in a file beside it.
//!
//! To open a directory is to read the header and the footer of every record of every file: 10 GiB of small records are as many
//! bytes to read, in the order in which groups happened to write. A digest has the same operations by groups, about six bytes for an entry, with
//! the last value of each key only. It is cut into as many sections as memory has shards, so that several threads can
//! apply one, each its own groups, without a lock between them.
//!
//! Invariants:
//!
//! 1. To apply a section is to apply the operations of its groups in the order of the file. Operations on different groups
//!    have no order.
//! 2. A digest says nothing that the file does not: who has lost it reads the file. So it is never synced, and one
//!    that is damaged, or of another length or end of the file than there is, is as good as none.
//! 3. Who cuts a file off removes its digest first.
//! 4. Nothing is appended to a file of which only the digest was read, unless that knows all bytes of it: damage in the file would take with it what is
//!    behind.
//!
//! The layout is told in `docs/format/raftlog.md`; raft-engine does not look at files of such names.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use orogen_base::coding::{Decoder, put_fixed32, put_fixed64, put_varint64};
use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, RandomAccessFile};

use crate::files::LogFile;
use crate::format::{BLOCK_LEN_MAX, Compression, FormatVersion};
use crate::item::{Entries, Item, Op};
use crate::memtable::{Block, Group, Memtables, SHARDS, shard_of};
use crate::names::FileId;

const MAGIC: &[u8; 8] = b"ORORDIG1";

/// Magic bytes, number, length, version and end of the log, and where each section ends.
const HEADER_LEN: usize = 8 + 8 + 8 + 4 + 4 + 8 * SHARDS;
const CRC_LEN: usize = 4;

/// A digest is no longer than so many times its file, and these bytes: an entry takes a byte of the file at least, and a few of the
/// digest.
const LEN_FACTOR_MAX: u64 = 64;
const LEN_MAX_LEAST: u64 = 1 << 20;

/// Bytes at the end of a file by which it is known again.
pub(crate) const TAIL_LEN: u64 = 4 << 10;

const RUN: u8 = 0;
const COMPACT: u8 = 1;
const CLEAN: u8 = 2;
const PUT: u8 = 3;
const DELETE: u8 = 4;
const EXISTS: u8 = 5;
const KIND: u8 = 7;

/// A run does not follow on the one before it: its first index is given.
const HAS_FIRST: u8 = 1 << 3;
/// It does not begin where its block does.
const HAS_START: u8 = 1 << 4;
const IS_LZ4: u8 = 1 << 5;
/// It has more than one entry.
const HAS_COUNT: u8 = 1 << 6;
/// Its block does not end with it.
const HAS_LEN: u8 = 1 << 7;

/// The name of the digest of a file.
pub(crate) fn path(dir: &Path, id: FileId) -> PathBuf {
    dir.join(id.digest_name())
}

/// Removes the digest of a file, if there is one.
///
/// # Errors
/// Of the file system.
pub(crate) fn remove(fs: &dyn FileSystem, dir: &Path, id: FileId) -> Result<()> {
    match fs.remove_file(&path(dir, id)) {
        Err(e) if !e.is_file_not_found() => Err(e),
        _ => Ok(()),
    }
}

/// What is between the checksum of a block and the end of its only entry.
fn block_len_of(end: u32) -> u32 {
    match end {
        0 => 0,
        end => end + CRC_LEN as u32,
    }
}

/// What a file does to one group.
#[derive(Default)]
struct Changes {
    /// The group goes first.
    is_cleaned: bool,
    /// Anything else is done to it.
    exists: bool,
    /// Index behind the last run, if there is one that the next may follow.
    next: Option<u64>,
    /// Where the block of the last run lies.
    offset: u64,
    /// Runs and compactions.
    bytes: Vec<u8>,
    /// The last that is done to each key; no value where it is deleted.
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl Changes {
    fn add_run(&mut self, entries: &Entries, block: Block) -> Result<()> {
        let Some(last) = entries.ends.last() else {
            return Ok(());
        };
        let count = entries.ends.len();
        let mut tag = RUN;
        if self.next != Some(entries.first) {
            tag |= HAS_FIRST;
        }
        if entries.start != 0 {
            tag |= HAS_START;
        }
        if block.compression == Compression::Lz4 {
            tag |= IS_LZ4;
        }
        if count != 1 {
            tag |= HAS_COUNT;
        }
        if block.len != block_len_of(*last) {
            tag |= HAS_LEN;
        }
        let most = 1 + 10 * (5 + count);
        memory::reserve(&mut self.bytes, most, "a digest of a log")?;
        let out = &mut self.bytes;
        out.push(tag);
        // Records of a file lie one behind the other, and so do the runs of a group.
        put_varint64(out, block.offset - self.offset);
        for (flag, value) in [
            (HAS_FIRST, entries.first),
            (HAS_START, u64::from(entries.start)),
            (HAS_COUNT, count as u64),
            (HAS_LEN, u64::from(block.len)),
        ] {
            if tag & flag != 0 {
                put_varint64(out, value);
            }
        }
        let mut start = entries.start;
        for end in &entries.ends {
            put_varint64(out, u64::from(end - start));
            start = *end;
        }
        self.offset = block.offset;
        self.next = Some(entries.first + count as u64);
        Ok(())
    }

    fn add(&mut self, op: Op, block: Block) -> Result<()> {
        if op == Op::Clean {
            *self = Self {
                is_cleaned: true,
                ..Self::default()
            };
            return Ok(());
        }
        self.exists = true;
        match op {
            Op::Clean => {}
            Op::Entries(entries) => self.add_run(&entries, block)?,
            Op::Compact { index } => {
                memory::reserve(&mut self.bytes, 11, "a digest of a log")?;
                self.bytes.push(COMPACT);
                put_varint64(&mut self.bytes, index);
            }
            Op::Put { key, value } => {
                self.keys.insert(key, Some(value));
            }
            Op::Delete { key } => {
                self.keys.insert(key, None);
            }
        }
        Ok(())
    }

    /// Writes the group's part of a section.
    fn encode(self, group: u64, out: &mut Vec<u8>) -> Result<()> {
        let mut ops = Vec::new();
        if self.is_cleaned {
            ops.push(CLEAN);
        }
        if self.exists && self.bytes.is_empty() && self.keys.is_empty() {
            ops.push(EXISTS);
        }
        memory::append(&mut ops, &self.bytes, "a digest of a log")?;
        for (key, value) in self.keys {
            let len = key.len() + value.as_ref().map_or(0, Vec::len);
            memory::reserve(&mut ops, len + 21, "a digest of a log")?;
            ops.push(if value.is_some() { PUT } else { DELETE });
            for string in [Some(key), value].into_iter().flatten() {
                put_varint64(&mut ops, string.len() as u64);
                ops.extend_from_slice(&string);
            }
        }
        memory::reserve(out, ops.len() + 20, "a digest of a log")?;
        put_varint64(out, group);
        put_varint64(out, ops.len() as u64);
        out.extend_from_slice(&ops);
        Ok(())
    }
}

/// Collects the records of a file.
#[derive(Default)]
pub(crate) struct Builder {
    groups: HashMap<u64, Changes>,
}

impl Builder {
    /// Adds a record behind those that it has.
    ///
    /// # Errors
    /// `NoMemory`.
    pub(crate) fn add(&mut self, items: Vec<Item>, block: Block) -> Result<()> {
        for Item { group, op } in items {
            self.groups.entry(group).or_default().add(op, block)?;
        }
        Ok(())
    }

    /// The digest of a file whose records end at `len`.
    ///
    /// # Errors
    /// `NoMemory`; of the file system.
    pub(crate) fn finish(self, file: &LogFile, len: u64) -> Result<Digest> {
        let mut groups: Vec<(usize, u64, Changes)> = self
            .groups
            .into_iter()
            .map(|(group, changes)| (shard_of(group), group, changes))
            .collect();
        groups.sort_unstable_by_key(|(shard, group, _)| (*shard, *group));
        let mut body = Vec::new();
        let mut ends = [0; SHARDS];
        let mut groups = groups.into_iter().peekable();
        for (shard, end) in ends.iter_mut().enumerate() {
            while let Some((_, group, changes)) = groups.next_if(|(at, _, _)| *at == shard) {
                changes.encode(group, &mut body)?;
            }
            *end = body.len() as u64;
        }
        let mut bytes =
            memory::with_capacity(HEADER_LEN + body.len() + CRC_LEN, "a digest of a log")?;
        bytes.extend_from_slice(MAGIC);
        put_fixed64(&mut bytes, file.id.seq);
        put_fixed64(&mut bytes, len);
        put_fixed32(&mut bytes, file.version.number());
        put_fixed32(&mut bytes, tail_crc(&*file.reader, len)?);
        ends.iter().for_each(|end| put_fixed64(&mut bytes, *end));
        bytes.extend_from_slice(&body);
        let crc = crc32fast::hash(&bytes);
        put_fixed32(&mut bytes, crc);
        Ok(Digest {
            bytes,
            version: file.version,
            len,
        })
    }
}

/// The checksum of the end of a file's first `len` bytes.
fn tail_crc(reader: &(dyn RandomAccessFile + 'static), len: u64) -> Result<u32> {
    let from = len.saturating_sub(TAIL_LEN);
    let mut tail = Vec::new();
    reader.append_exact_at(from, (len - from) as usize, &mut tail)?;
    Ok(crc32fast::hash(&tail))
}

/// A digest in memory.
pub(crate) struct Digest {
    bytes: Vec<u8>,
    pub(crate) version: FormatVersion,
    /// Bytes of the file, which holds nothing else.
    pub(crate) len: u64,
}

#[cold]
fn damaged(why: &'static str) -> Error {
    Error::corruption("digest of a log is damaged").with("why", why)
}

impl Digest {
    /// The digest of a file, if it has one that is whole and of what the file now is.
    ///
    /// # Errors
    /// `NoMemory`; of the file system.
    pub(crate) fn read(
        fs: &dyn FileSystem,
        dir: &Path,
        id: FileId,
        reader: &(dyn RandomAccessFile + 'static),
    ) -> Result<Option<Self>> {
        // One that cannot be read is as good as none: the file is. So is one of a length that cannot be.
        let path = path(dir, id);
        let len_max = reader.size()?.saturating_mul(LEN_FACTOR_MAX);
        match fs.metadata(&path) {
            Ok(found) if found.size <= len_max.saturating_add(LEN_MAX_LEAST) => {}
            _ => return Ok(None),
        }
        let bytes = match read_file(fs, &path) {
            Err(e) if e.kind() != ErrorKind::NoMemory => return Ok(None),
            bytes => bytes?,
        };
        match Self::decode(bytes, id, reader) {
            Err(e) if e.kind() == ErrorKind::Corruption => Ok(None),
            digest => digest,
        }
    }

    fn decode(
        mut bytes: Vec<u8>,
        id: FileId,
        reader: &(dyn RandomAccessFile + 'static),
    ) -> Result<Option<Self>> {
        let len = bytes
            .len()
            .checked_sub(CRC_LEN)
            .ok_or_else(|| damaged("cut off"))?;
        if Decoder::new(&bytes[len..]).fixed32("checksum")? != crc32fast::hash(&bytes[..len]) {
            return Err(damaged("wrong checksum"));
        }
        bytes.truncate(len);
        let mut decoder = Decoder::new(&bytes);
        if decoder.bytes(MAGIC.len(), "magic bytes")? != MAGIC {
            return Err(damaged("not the magic bytes"));
        }
        let seq = decoder.fixed64("number")?;
        let log_len = decoder.fixed64("length")?;
        let version = match decoder.fixed32("version")? {
            1 => FormatVersion::V1,
            2 => FormatVersion::V2,
            _ => return Err(damaged("unknown version")),
        };
        let tail = decoder.fixed32("end of the log")?;
        let mut begin = 0;
        for _ in 0..SHARDS {
            let end = decoder.fixed64("end of a section")?;
            if end < begin {
                return Err(damaged("sections are out of order"));
            }
            begin = end;
        }
        if begin != decoder.rest().len() as u64 {
            return Err(damaged("sections do not end where it does"));
        }
        if seq != id.seq || reader.size()? != log_len || tail_crc(reader, log_len)? != tail {
            return Ok(None);
        }
        Ok(Some(Self {
            bytes,
            version,
            len: log_len,
        }))
    }

    /// Writes it beside its file.
    ///
    /// # Errors
    /// Of the file system. What is then there of it is none.
    pub(crate) fn write(&self, fs: &dyn FileSystem, dir: &Path, id: FileId) -> Result<()> {
        let mut writer = fs.create(&path(dir, id))?;
        writer.append(&self.bytes)
    }

    fn section(&self, number: usize) -> Option<&[u8]> {
        let end_of = |section: usize| {
            let at = HEADER_LEN - 8 * SHARDS + 8 * section;
            let end = self.bytes.get(at..)?.first_chunk()?;
            usize::try_from(u64::from_le_bytes(*end)).ok()
        };
        let begin = match number.checked_sub(1) {
            Some(before) => end_of(before)?,
            None => 0,
        };
        self.bytes.get(HEADER_LEN..)?.get(begin..end_of(number)?)
    }

    /// Does to the groups of one shard what the file does.
    ///
    /// # Errors
    /// `Corruption`: it is whole and makes no sense; `NoMemory`.
    pub(crate) fn apply(&self, shard: usize, id: FileId, memtables: &Memtables) -> Result<()> {
        let section = self.section(shard).ok_or_else(|| damaged("no section"))?;
        let mut decoder = Decoder::new(section);
        let mut entries = Entries {
            first: 0,
            start: 0,
            ends: Vec::new(),
        };
        while !decoder.is_empty() {
            let group = decoder.varint64("group")?;
            let len = usize::try_from(decoder.varint64("length of a group")?).unwrap_or(usize::MAX);
            let mut ops = decoder.bytes(len, "operations of a group")?;
            if shard_of(group) != shard {
                return Err(damaged("group is in another section"));
            }
            if let Some((&CLEAN, rest)) = ops.split_first() {
                memtables.clean(group);
                ops = rest;
            }
            if !ops.is_empty() {
                memtables.replay_group(group, |group| {
                    Ops {
                        decoder: Decoder::new(ops),
                        file: id,
                        len: self.len,
                    }
                    .apply(group, &mut entries)
                })?;
            }
        }
        Ok(())
    }
}

/// What is done to one group.
struct Ops<'a> {
    decoder: Decoder<'a>,
    file: FileId,
    len: u64,
}

impl Ops<'_> {
    fn apply(&mut self, group: &mut Group, entries: &mut Entries) -> Result<()> {
        let (mut offset, mut next) = (0, 0);
        while !self.decoder.is_empty() {
            let tag = self.decoder.u8("operation")?;
            let nowhere = Block {
                file: self.file,
                offset: 0,
                len: 0,
                compression: Compression::None,
            };
            match tag & KIND {
                RUN => {
                    let block = self.run(tag, offset, next, entries)?;
                    offset = block.offset;
                    next = entries.first + entries.ends.len() as u64;
                    group.replay_entries(entries, block);
                }
                COMPACT => {
                    let index = self.decoder.varint64("compacted index")?;
                    group.replay(Op::Compact { index }, nowhere);
                }
                PUT => {
                    let (key, value) = (self.string("key")?, self.string("value")?);
                    group.replay(Op::Put { key, value }, nowhere);
                }
                DELETE => {
                    let key = self.string("key")?;
                    group.replay(Op::Delete { key }, nowhere);
                }
                EXISTS => {}
                _ => return Err(damaged("unknown operation")),
            }
        }
        Ok(())
    }

    fn string(&mut self, what: &'static str) -> Result<Vec<u8>> {
        let len = self.decoder.varint64(what)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        memory::copied(self.decoder.bytes(len, what)?, what)
    }

    /// Reads a run into `entries`; its block.
    fn run(&mut self, tag: u8, offset: u64, next: u64, entries: &mut Entries) -> Result<Block> {
        let decoder = &mut self.decoder;
        let delta = decoder.varint64("place of a block")?;
        let mut given = |flag, other, what| match tag & flag {
            0 => Ok(other),
            _ => decoder.varint64(what),
        };
        let first = given(HAS_FIRST, next, "first index")?;
        let start = given(HAS_START, 0, "start of a run")?;
        let count = given(HAS_COUNT, 1, "entries of a run")?;
        let len = given(HAS_LEN, u64::MAX, "length of a block")?;
        let max = BLOCK_LEN_MAX as u64;
        if count == 0 || count > decoder.rest().len() as u64 || first.checked_add(count).is_none() {
            return Err(damaged("entries are out of bounds"));
        }
        entries.first = first;
        entries.ends.clear();
        memory::reserve(&mut entries.ends, count as usize, "entries of a run")?;
        let mut end = start;
        for _ in 0..count {
            let len = decoder.varint64("length of an entry")?;
            end = end
                .checked_add(len)
                .filter(|end| *end <= max)
                .ok_or_else(|| damaged("an entry ends out of bounds"))?;
            entries.ends.push(end as u32);
        }
        entries.start = u32::try_from(start).map_err(|_| damaged("a run starts out of bounds"))?;
        let len = match tag & HAS_LEN {
            0 => block_len_of(end as u32),
            _ => u32::try_from(len).map_err(|_| damaged("a block is out of bounds"))?,
        };
        let offset = offset
            .checked_add(delta)
            .filter(|at| {
                at.checked_add(u64::from(len))
                    .is_some_and(|end| end <= self.len)
            })
            .ok_or_else(|| damaged("a block is out of bounds"))?;
        Ok(Block {
            file: self.file,
            offset,
            len,
            compression: if tag & IS_LZ4 == 0 {
                Compression::None
            } else {
                Compression::Lz4
            },
        })
    }
}

#[cfg(test)]
mod tests;
