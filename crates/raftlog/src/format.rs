//! Bytes of a file: its header, and one record for each batch.
//!
//! ```text
//! file:    magic 53 | version u64 BE | alignment u64 BE (version 2 only) | records
//! record:  (length << 8 | compression) u64 BE | footer offset u64 BE | block | crc32 u32 LE | footer
//! footer:  varint count | items | (crc32 ^ signature) u32 LE
//! ```
//! A record begins where the one before it ends. Where the alignment is not 0 there may be zeros up to a multiple of it instead; both readers,
//! ours and raft-engine's, look there only if no record is where the last one ended. So zeros are written where a sync is, and nowhere
//! else: a group that is synced ends with zeros to the next multiple, so that no block is written twice, and what is written
//! without a sync is packed, since the system puts it together anyway. What that needs:
//!
//! - A record that begins at a multiple was written when all before it had been synced. Else one that a power loss has left as zeros would
//!   pass for padding, and the records behind it would count. Where a record would end at a multiple without a sync behind it, an
//!   empty record ([`filler`]) goes before it.
//! - Padding has at least eight bytes: they make a length of 0, which is no record. With fewer the header that begins in them may
//!   look whole to raft-engine, which then does not look at the multiple. Where fewer are left the next record is packed.
//!
//! The pure part: nothing here reads a file. Invariants:
//!
//! 1. Whatever the bytes are, decoding gives a value or `Corruption` with the place in the bytes
//!    given; it does not panic, and asks for no more memory than a small multiple of the input.
//! 2. A footer is looked at only after its checksum was right for the file that it stands in.
//! 3. A block is stored compressed only if that makes it shorter.
//!
//! Tables and reasons: `docs/format/raftlog.md`.

mod lz4;

use std::cell::Cell;
use std::mem;
use std::ops::RangeInclusive;

use orogen_base::coding::{Decoder, get_fixed32, put_fixed32, put_varint64, varint_len};
use orogen_base::{Error, Result, memory};

use crate::item::{Entries, Item, Op};

/// The format of a file, in its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum FormatVersion {
    /// Without signatures: such a file cannot be written over.
    V1 = 1,
    /// Records are signed with the number of their file.
    #[default]
    V2 = 2,
}

const MAGIC: &[u8; 53] = b"RAFT-LOG-FILE-HEADER-9986AB3E47F320B394C8E84916EB0ED5";

/// Bytes of the longest file header.
pub(crate) const FILE_HEADER_LEN_MAX: usize = MAGIC.len() + 16;

impl FormatVersion {
    /// Bytes of the file header.
    pub(crate) fn header_len(self) -> usize {
        match self {
            Self::V1 => MAGIC.len() + 8,
            Self::V2 => MAGIC.len() + 16,
        }
    }

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
        }
    }

    /// What is mixed into the footer checksums of file number `seq`.
    pub(crate) fn signature(self, seq: u64) -> u32 {
        match self {
            Self::V1 => 0,
            Self::V2 => seq as u32,
        }
    }
}

/// Alignments that files are given, powers of two. No disk or file system has smaller blocks than the first, and no page of memory is
/// larger than the last, beyond which the zeros of a small group take longer than its sync.
pub(crate) const ALIGNMENTS: RangeInclusive<u64> = 512..=64 << 10;

/// Fewer zeros are no padding.
const PADDING_MIN: u64 = 8;

/// What a file header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) version: FormatVersion,
    /// Where padding between records ends: a multiple of it. 0 where there is none.
    pub(crate) alignment: u64,
}

impl FileHeader {
    /// The alignment by which records are added to such a file; 0 where they are packed. Others may have given it one that nobody here would.
    pub(crate) fn alignment_kept(self) -> u64 {
        match ALIGNMENTS.contains(&self.alignment) {
            true => self.alignment,
            false => 0,
        }
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&u64::from(self.version as u8).to_be_bytes());
        if self.version == FormatVersion::V2 {
            out.extend_from_slice(&self.alignment.to_be_bytes());
        }
        out
    }

    /// The header at the start of `bytes`, which may go on behind it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &'static str, at: usize| {
            Error::corruption("file header is damaged")
                .with("why", what)
                .with("at", at)
        };
        let (magic, rest) = bytes
            .split_at_checked(MAGIC.len())
            .ok_or_else(|| damaged("cut off", bytes.len()))?;
        if magic != MAGIC {
            return Err(damaged("not the magic bytes", 0));
        }
        let number = |at: usize| {
            let bytes = rest.get(at..).and_then(|b| b.first_chunk());
            bytes
                .map(|b| u64::from_be_bytes(*b))
                .ok_or_else(|| damaged("cut off", rest.len() + MAGIC.len()))
        };
        match number(0)? {
            1 => Ok(Self {
                version: FormatVersion::V1,
                alignment: 0,
            }),
            2 => Ok(Self {
                version: FormatVersion::V2,
                alignment: number(8)?,
            }),
            other => Err(damaged("unknown version", MAGIC.len()).with("version", other)),
        }
    }
}

/// Zeros to be written behind what ends at `end` and is synced.
pub(crate) fn padding(end: u64, alignment: u64) -> u64 {
    let gap = match alignment {
        0 => 0,
        alignment => end.next_multiple_of(alignment) - end,
    };
    if gap < PADDING_MIN { 0 } else { gap }
}

/// A record that says nothing, to be put before one of `len` bytes at `at` that is not synced before the next one is written, so that it
/// does not end at a multiple; not signed.
///
/// # Errors
/// `NoMemory`.
pub(crate) fn filler(at: u64, len: u64, alignment: u64) -> Result<Option<Record>> {
    if alignment == 0 || !(at + len).is_multiple_of(alignment) {
        return Ok(None);
    }
    let never = Lz4Policy {
        threshold: 0,
        acceleration: 1,
    };
    let empty = encode_record(&[], &[], never)?;
    if (at + empty.header.len).is_multiple_of(alignment) {
        // With an entry that nobody asks for it ends behind the multiple.
        return encode_record(&[0], &[], never).map(Some);
    }
    Ok(Some(empty))
}

/// How a block of entries is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Compression {
    None = 0,
    Lz4 = 1,
}

/// Bytes of a record before its block.
pub(crate) const RECORD_HEADER_LEN: usize = 16;

/// Bytes that the raw entries of one record may take.
pub(crate) const BLOCK_LEN_MAX: usize = i32::MAX as usize;

/// Bytes of a checksum.
pub(crate) const CRC_LEN: usize = 4;

/// A count and a checksum.
const FOOTER_LEN_MIN: u64 = 1 + CRC_LEN as u64;

/// The first 16 bytes of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    /// Bytes of the record with this header.
    pub(crate) len: u64,
    pub(crate) compression: Compression,
    /// Bytes of the block with its checksum; 0 without one.
    pub(crate) block_len: u32,
}

impl RecordHeader {
    /// Where the footer stands in the record.
    pub(crate) fn footer_at(self) -> u64 {
        RECORD_HEADER_LEN as u64 + u64::from(self.block_len)
    }

    pub(crate) fn footer_len(self) -> u64 {
        self.len - self.footer_at()
    }

    fn encode(self) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        let first = (self.len << 8) | u64::from(self.compression as u8);
        out[..8].copy_from_slice(&first.to_be_bytes());
        out[8..].copy_from_slice(&self.footer_at().to_be_bytes());
        out
    }

    /// False if [`Self::decode`] would fail, mostly: for who tries it at every byte.
    pub(crate) fn may_be(bytes: &[u8], available: u64) -> bool {
        let Some((header, _)) = bytes.split_first_chunk::<RECORD_HEADER_LEN>() else {
            return false;
        };
        let (first, second) = header.split_at(8);
        let number = |b: &[u8]| b.iter().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        let (len, footer_at) = (number(first) >> 8, number(second));
        first[7] <= 1
            && len <= available
            && footer_at >= RECORD_HEADER_LEN as u64
            && footer_at < len
    }

    /// The header at the start of `bytes`; `available` bytes are left in the file from there.
    pub(crate) fn decode(bytes: &[u8], available: u64) -> Result<Self> {
        let damaged =
            |what: &'static str| Error::corruption("record header is damaged").with("why", what);
        let header: &[u8; RECORD_HEADER_LEN] =
            bytes.first_chunk().ok_or_else(|| damaged("cut off"))?;
        let (first, second) = header.split_at(8);
        let number = |b: &[u8]| b.iter().fold(0u64, |n, b| (n << 8) | u64::from(*b));
        let (first, footer_at) = (number(first), number(second));
        let len = first >> 8;
        let compression = match first & 0xff {
            0 => Compression::None,
            1 => Compression::Lz4,
            other => return Err(damaged("unknown compression").with("type", other)),
        };
        if len > available {
            return Err(damaged("longer than the file")
                .with("length", len)
                .with("available", available));
        }
        let block_len = footer_at
            .checked_sub(RECORD_HEADER_LEN as u64)
            .filter(|_| {
                footer_at
                    .checked_add(FOOTER_LEN_MIN)
                    .is_some_and(|n| n <= len)
            })
            .and_then(|n| u32::try_from(n).ok())
            .filter(|&n| n == 0 || n as usize > CRC_LEN)
            .ok_or_else(|| {
                damaged("footer is out of bounds")
                    .with("length", len)
                    .with("footer_at", footer_at)
            })?;
        Ok(Self {
            len,
            compression,
            block_len,
        })
    }
}

/// A batch as it stands in a file, but for the signature.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) bytes: Vec<u8>,
    pub(crate) header: RecordHeader,
}

/// A thread keeps the room of a record for the next one, up to so many bytes. Beyond a KiB an allocator has its threads
/// wait for one another, and a purge allocates, too.
const ROOM_KEPT_MAX: usize = 256 << 10;

thread_local! {
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl Drop for Record {
    fn drop(&mut self) {
        let room = mem::take(&mut self.bytes);
        if room.capacity() <= ROOM_KEPT_MAX {
            // At the end of a thread there is no next one.
            let _ = ROOM.try_with(|kept| kept.set(room));
        }
    }
}

/// Empty room for a record of `len` bytes.
fn room_for(len: usize) -> Result<Vec<u8>> {
    let mut room = ROOM.try_with(Cell::take).unwrap_or_default();
    if room.capacity() < len {
        // Not grown: what it holds would be copied.
        room = memory::with_capacity(len, "a record")?;
    }
    room.clear();
    Ok(room)
}

impl Record {
    /// Stored bytes of its entries, if they were compressed.
    pub(crate) fn compressed_len(&self) -> Option<usize> {
        let len = (self.header.block_len as usize).saturating_sub(CRC_LEN);
        (self.header.compression == Compression::Lz4).then_some(len)
    }
}

/// When blocks are compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lz4Policy {
    /// Raw bytes from which on it is tried; 0 for never.
    pub(crate) threshold: usize,
    pub(crate) acceleration: i32,
}

/// The record of a batch whose raw entries are `block`.
///
/// # Errors
/// `InvalidArgument` if the entries are more than a record takes; `NoMemory`.
pub(crate) fn encode_record(block: &[u8], items: &[Item], policy: Lz4Policy) -> Result<Record> {
    if block.len() > BLOCK_LEN_MAX {
        return Err(full(block.len()));
    }
    let wanted = policy.threshold > 0 && block.len() >= policy.threshold;
    let packed = if wanted {
        lz4::compress(block, policy.acceleration)?
    } else {
        None
    };
    let (stored, compression) = match &packed {
        Some(packed) => (packed.as_slice(), Compression::Lz4),
        None => (block, Compression::None),
    };
    let block_len = if stored.is_empty() {
        0
    } else {
        stored.len() + CRC_LEN
    };
    let footer_len = items_len(items) + CRC_LEN;
    let len = RECORD_HEADER_LEN + block_len + footer_len;
    let header = RecordHeader {
        len: len as u64,
        compression,
        block_len: u32::try_from(block_len).map_err(|_| full(block_len))?,
    };
    let mut bytes = room_for(len)?;
    bytes.extend_from_slice(&header.encode());
    if !stored.is_empty() {
        bytes.extend_from_slice(stored);
        put_fixed32(&mut bytes, crc32fast::hash(stored));
    }
    let footer_at = bytes.len();
    encode_items(items, &mut bytes);
    let crc = crc32fast::hash(&bytes[footer_at..]);
    put_fixed32(&mut bytes, crc);
    debug_assert_eq!(bytes.len(), len);
    Ok(Record { bytes, header })
}

#[cold]
pub(crate) fn full(bytes: usize) -> Error {
    Error::invalid_argument("batch is full")
        .with("entry_bytes", bytes)
        .with("max", BLOCK_LEN_MAX)
}

/// Mixes a file's signature into a record, or takes it out again.
pub(crate) fn sign(record: &mut [u8], signature: u32) {
    if let Some(crc) = record.last_chunk_mut::<CRC_LEN>() {
        *crc = (u32::from_le_bytes(*crc) ^ signature).to_le_bytes();
    }
}

/// The raw bytes of a stored block with its checksum: as they stand there, or unpacked in `room`.
///
/// # Errors
/// `Corruption`; `NoMemory`.
pub(crate) fn decode_block<'b>(
    stored: &'b [u8],
    compression: Compression,
    room: &'b mut Vec<u8>,
) -> Result<&'b [u8]> {
    if stored.is_empty() {
        return Ok(stored);
    }
    let damaged = || Error::corruption("block of entries has a wrong checksum");
    let (stored, crc) = stored.split_last_chunk::<CRC_LEN>().ok_or_else(damaged)?;
    let expected = u32::from_le_bytes(*crc);
    let found = crc32fast::hash(stored);
    if expected != found {
        return Err(damaged().with("expected", expected).with("found", found));
    }
    match compression {
        Compression::None => Ok(stored),
        Compression::Lz4 => {
            lz4::decompress(stored, room)?;
            Ok(room)
        }
    }
}

const KIND_ENTRIES: u8 = 1;
const KIND_COMMAND: u8 = 2;
const KIND_KEY_VALUE: u8 = 3;
const COMMAND_CLEAN: u8 = 1;
const COMMAND_COMPACT: u8 = 2;
const KEY_PUT: u8 = 1;
const KEY_DELETE: u8 = 2;

/// Bytes of the shortest item: a group and a command.
const ITEM_LEN_MIN: usize = 3;

/// Bytes that an item takes in the footer.
pub(crate) fn item_len(item: &Item) -> usize {
    let body = match &item.op {
        Op::Entries(entries) => {
            let n = entries.ends.len();
            let first = if n == 0 { 0 } else { varint_len(entries.first) };
            let ends: usize = entries.ends.iter().map(|e| varint_len(u64::from(*e))).sum();
            varint_len(n as u64) + first + ends
        }
        Op::Clean => 1,
        Op::Compact { index } => 1 + varint_len(*index),
        Op::Put { key, value } => {
            1 + varint_len(key.len() as u64)
                + key.len()
                + varint_len(value.len() as u64)
                + value.len()
        }
        Op::Delete { key } => 1 + varint_len(key.len() as u64) + key.len(),
    };
    varint_len(item.group) + 1 + body
}

fn items_len(items: &[Item]) -> usize {
    varint_len(items.len() as u64) + items.iter().map(item_len).sum::<usize>()
}

/// Bytes that a record takes whose block is not compressed.
pub(crate) fn record_len(block: usize, items: usize, item_bytes: usize) -> usize {
    let block = if block == 0 { 0 } else { block + CRC_LEN };
    RECORD_HEADER_LEN + block + varint_len(items as u64) + item_bytes + CRC_LEN
}

fn encode_items(items: &[Item], out: &mut Vec<u8>) {
    put_varint64(out, items.len() as u64);
    for item in items {
        put_varint64(out, item.group);
        match &item.op {
            Op::Entries(entries) => {
                out.push(KIND_ENTRIES);
                put_varint64(out, entries.ends.len() as u64);
                if !entries.ends.is_empty() {
                    put_varint64(out, entries.first);
                }
                for end in &entries.ends {
                    put_varint64(out, u64::from(*end));
                }
            }
            Op::Clean => out.extend_from_slice(&[KIND_COMMAND, COMMAND_CLEAN]),
            Op::Compact { index } => {
                out.extend_from_slice(&[KIND_COMMAND, COMMAND_COMPACT]);
                put_varint64(out, *index);
            }
            Op::Put { key, value } => {
                out.extend_from_slice(&[KIND_KEY_VALUE, KEY_PUT]);
                put_string(out, key);
                put_string(out, value);
            }
            Op::Delete { key } => {
                out.extend_from_slice(&[KIND_KEY_VALUE, KEY_DELETE]);
                put_string(out, key);
            }
        }
    }
}

fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    put_varint64(out, s.len() as u64);
    out.extend_from_slice(s);
}

/// Bytes of a footer that tell [`may_be_footer`] all: a count, a group and the kind of an operation.
pub(crate) const FOOTER_START_LEN: usize = 10 + 10 + 2;

/// False if [`decode_footer`] would fail, mostly, for a footer of `len` bytes that begins with `start`.
pub(crate) fn may_be_footer(start: &[u8], len: u64) -> bool {
    let mut decoder = Decoder::new(start);
    let Ok(count) = decoder.varint64("item count") else {
        return false;
    };
    let rest = len.saturating_sub((decoder.position() + CRC_LEN) as u64);
    if count == 0 {
        return rest == 0;
    }
    let mut kind = || {
        decoder.varint64("group")?;
        Ok::<_, Error>((decoder.u8("kind")?, decoder.u8("operation")?))
    };
    count <= rest / ITEM_LEN_MIN as u64
        && match kind() {
            Ok((KIND_ENTRIES, _)) => true,
            Ok((KIND_COMMAND, command)) => [COMMAND_CLEAN, COMMAND_COMPACT].contains(&command),
            Ok((KIND_KEY_VALUE, operation)) => [KEY_PUT, KEY_DELETE].contains(&operation),
            _ => false,
        }
}

/// The signature of the file to which a footer belongs, if it is one.
pub(crate) fn signature_of(footer: &[u8]) -> Option<u32> {
    let (items, crc) = footer.split_last_chunk::<CRC_LEN>()?;
    Some(u32::from_le_bytes(*crc) ^ crc32fast::hash(items))
}

/// The items of a footer of a file with this signature.
///
/// # Errors
/// `Corruption`, also for a whole footer of another file; `NoMemory`.
pub(crate) fn decode_footer(footer: &[u8], signature: u32) -> Result<Vec<Item>> {
    let damaged = |what: &'static str, at: usize| {
        Error::corruption("record footer is damaged")
            .with("why", what)
            .with("at", at)
    };
    let len = footer
        .len()
        .checked_sub(CRC_LEN)
        .ok_or_else(|| damaged("cut off", footer.len()))?;
    let stored = get_fixed32(&footer[len..]).ok_or_else(|| damaged("cut off", len))?;
    let found = crc32fast::hash(&footer[..len]);
    if stored ^ signature != found {
        return Err(damaged("wrong checksum", len)
            .with("expected", stored ^ signature)
            .with("found", found));
    }
    let mut decoder = Decoder::new(&footer[..len]);
    let count = decoder.varint64("item count")?;
    if count > (decoder.rest().len() / ITEM_LEN_MIN) as u64 {
        return Err(damaged("more items than bytes", 0).with("count", count));
    }
    let mut items = memory::with_capacity(count as usize, "items of a record")?;
    // Ends run on over all items.
    let mut end = 0;
    for _ in 0..count {
        items.push(decode_item(&mut decoder, &mut end)?);
    }
    if !decoder.is_empty() {
        return Err(damaged("bytes behind the last item", decoder.position()));
    }
    Ok(items)
}

fn decode_item(decoder: &mut Decoder<'_>, end: &mut u32) -> Result<Item> {
    let damaged = |what: &'static str, at: usize| {
        Error::corruption("item of a record is damaged")
            .with("why", what)
            .with("at", at)
    };
    let group = decoder.varint64("group")?;
    let at = decoder.position();
    let op = match decoder.u8("kind")? {
        KIND_ENTRIES => {
            let n = decoder.varint64("entry count")?;
            if n > decoder.rest().len() as u64 {
                return Err(damaged("more entries than bytes", at).with("count", n));
            }
            let first = if n == 0 {
                0
            } else {
                decoder.varint64("first index")?
            };
            if first.checked_add(n).is_none() {
                return Err(damaged("indexes are out of bounds", at).with("first", first));
            }
            let mut ends = memory::with_capacity(n as usize, "entries of a record")?;
            let start = *end;
            for _ in 0..n {
                let next = decoder.varint64("end of an entry")?;
                *end = u32::try_from(next)
                    .ok()
                    .filter(|&e| e >= *end && e as usize <= BLOCK_LEN_MAX)
                    .ok_or_else(|| {
                        damaged("an entry ends out of bounds", decoder.position()).with("end", next)
                    })?;
                ends.push(*end);
            }
            Op::Entries(Entries { first, start, ends })
        }
        KIND_COMMAND => match decoder.u8("command")? {
            COMMAND_CLEAN => Op::Clean,
            COMMAND_COMPACT => Op::Compact {
                index: decoder.varint64("compacted index")?,
            },
            other => return Err(damaged("unknown command", at).with("command", other)),
        },
        KIND_KEY_VALUE => match decoder.u8("operation")? {
            KEY_PUT => Op::Put {
                key: string(decoder, "key")?,
                value: string(decoder, "value")?,
            },
            KEY_DELETE => Op::Delete {
                key: string(decoder, "key")?,
            },
            other => return Err(damaged("unknown operation", at).with("operation", other)),
        },
        other => return Err(damaged("unknown kind", at).with("kind", other)),
    };
    Ok(Item { group, op })
}

fn string(decoder: &mut Decoder<'_>, what: &'static str) -> Result<Vec<u8>> {
    let len = decoder.varint64(what)?;
    let bytes = decoder.bytes(usize::try_from(len).unwrap_or(usize::MAX), what)?;
    memory::copied(bytes, what)
}

/// The key of the item that marks a record of an atomic group; callers may not use it.
pub(crate) const RESERVED_KEY: &[u8; 3] = b"__\x01";

/// Which record of an atomic group one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    Begin = 0,
    Middle = 1,
    End = 2,
}

/// Takes the marks out of a record's items; the first one counts.
///
/// # Errors
/// `Corruption` if a mark says nothing known.
pub(crate) fn take_mark(items: &mut Vec<Item>) -> Result<Option<(u64, Part)>> {
    let mut found = None;
    for item in items.iter() {
        if let Op::Put { key, value } = &item.op
            && key == RESERVED_KEY
        {
            let part = match value.as_slice() {
                [0] => Part::Begin,
                [1] => Part::Middle,
                [2] => Part::End,
                _ => {
                    return Err(Error::corruption("unknown mark of an atomic group")
                        .with("group", item.group));
                }
            };
            found = found.or(Some((item.group, part)));
        }
    }
    if found.is_some() {
        drop_marks(items);
    }
    Ok(found)
}

/// Takes marks away where they mean nothing, whatever they say.
pub(crate) fn drop_marks(items: &mut Vec<Item>) {
    items.retain(|item| !matches!(&item.op, Op::Put { key, .. } if key == RESERVED_KEY));
}

#[cfg(test)]
mod tests;
