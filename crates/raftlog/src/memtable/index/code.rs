//! Where an entry lies, in a few bytes: told from where the entry before it lies.
//!
//! ```text
//! code:     varint (length of the entry << 2 | kind) and, by kind,
//! Behind:   -                                    same block, begins where the one before it ends
//! Alone:    gap                                  block of the same file that holds only this entry
//! Among:    gap | start | rest                   block of the same file that holds others, too
//! General:  flags u8 | (number of the file) | gap | length of the block | start
//! gap:      bytes from the end of the block before, or in another file from its beginning, modulo 2^64
//! rest:     bytes from the end of the entry to the checksum of the block
//! ```
//! All but the flags are varints. Blocks of `Alone` and `Among` are not compressed: how long they are
//! follows from the entry. Most gaps are what other groups have written meanwhile. Invariants:
//!
//! 1. Any place has a code behind any other: no order of files and offsets is taken for granted.
//! 2. A code has 1 to [`CODE_LEN_MAX`] bytes.
//! 3. Decoding reads no byte behind the given ones and does not panic; codes that are cut off give some
//!    place.

use crate::format::{CRC_LEN, Compression};
use crate::memtable::{Block, Location};
use crate::names::{FileId, Queue};

/// Bytes of the longest code.
pub(super) const CODE_LEN_MAX: usize = 5 + 1 + 10 + 10 + 5 + 5;

pub(super) const BEHIND: u64 = 0;
pub(super) const ALONE: u64 = 1;
pub(super) const AMONG: u64 = 2;
pub(super) const GENERAL: u64 = 3;

const KIND_BITS: u32 = 2;
const KINDS: u64 = (1 << KIND_BITS) - 1;

/// The number of the file follows; it is of the queue that [`REWRITE`] says.
const OTHER_FILE: u8 = 1;
const REWRITE: u8 = 2;
const LZ4: u8 = 4;

const CHECKSUM: u32 = CRC_LEN as u32;

/// What the first code of a row is told from.
pub(super) const ORIGIN: Location = Location {
    block: Block {
        file: FileId {
            queue: Queue::Append,
            seq: 0,
        },
        offset: 0,
        len: 0,
        compression: Compression::None,
    },
    start: 0,
    end: 0,
};

/// The offset behind a block.
fn end_of(block: &Block) -> u64 {
    block.offset.wrapping_add(u64::from(block.len))
}

/// One code.
pub(super) struct Code {
    bytes: [u8; CODE_LEN_MAX],
    len: usize,
}

impl Code {
    /// The code of `entry`, which begins where it ends or before, behind an entry at `before`.
    #[inline]
    pub(super) fn new(before: &Location, entry: &Location) -> Self {
        let mut code = Self {
            bytes: [0; CODE_LEN_MAX],
            len: 0,
        };
        let (block, old) = (&entry.block, &before.block);
        let len = u64::from(entry.end.wrapping_sub(entry.start)) << KIND_BITS;
        if block == old && entry.start == before.end {
            code.put(len | BEHIND);
            return code;
        }
        let is_other = block.file != old.file;
        let gap = block.offset.wrapping_sub(end_of(old));
        let rest = block
            .len
            .checked_sub(CHECKSUM)
            .and_then(|raw| raw.checked_sub(entry.end));
        match rest {
            Some(rest) if !is_other && block.compression == Compression::None => {
                if entry.start == 0 && rest == 0 {
                    code.put(len | ALONE);
                    code.put(gap);
                } else {
                    code.put(len | AMONG);
                    code.put(gap);
                    code.put(u64::from(entry.start));
                    code.put(u64::from(rest));
                }
            }
            _ => code.put_general(len | GENERAL, entry, is_other, gap),
        }
        code
    }

    #[inline(never)]
    fn put_general(&mut self, head: u64, entry: &Location, is_other: bool, gap: u64) {
        let block = &entry.block;
        let mut flags = 0;
        if is_other {
            flags |= OTHER_FILE;
            if block.file.queue == Queue::Rewrite {
                flags |= REWRITE;
            }
        }
        if block.compression == Compression::Lz4 {
            flags |= LZ4;
        }
        self.put(head);
        self.push(flags);
        if is_other {
            self.put(block.file.seq);
        }
        self.put(if is_other { block.offset } else { gap });
        self.put(u64::from(block.len));
        self.put(u64::from(entry.start));
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.len) {
            *place = byte;
            self.len += 1;
        }
    }

    fn put(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.push(number as u8);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A varint in front of `codes`, which then begin behind it.
#[inline(always)]
fn take(codes: &mut &[u8]) -> u64 {
    let mut number = 0;
    let mut shift = 0;
    while let Some((&byte, rest)) = codes.split_first() {
        *codes = rest;
        number |= u64::from(byte & 0x7f).wrapping_shl(shift);
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    number
}

/// Goes on from an entry at `place` to the one whose code is in front; `codes` then begin behind it.
pub(super) fn step(codes: &mut &[u8], place: &mut Location) {
    advance(codes, place);
}

/// As `count` times [`step`].
pub(super) fn skip(codes: &mut &[u8], place: &mut Location, count: u64) {
    // In registers: what is skipped is most of a look-up.
    let (mut rest, mut at) = (*codes, *place);
    for _ in 0..count {
        advance(&mut rest, &mut at);
    }
    (*codes, *place) = (rest, at);
}

#[inline(always)]
fn advance(codes: &mut &[u8], place: &mut Location) {
    let head = take(codes);
    let len = (head >> KIND_BITS) as u32;
    let block = &mut place.block;
    match head & KINDS {
        BEHIND => place.start = place.end,
        ALONE => {
            block.offset = end_of(block).wrapping_add(take(codes));
            block.len = len.wrapping_add(CHECKSUM);
            block.compression = Compression::None;
            place.start = 0;
        }
        AMONG => {
            block.offset = end_of(block).wrapping_add(take(codes));
            place.start = take(codes) as u32;
            let rest = take(codes) as u32;
            block.len = (place.start.wrapping_add(len))
                .wrapping_add(rest)
                .wrapping_add(CHECKSUM);
            block.compression = Compression::None;
        }
        _ => advance_generally(codes, place),
    }
    place.end = place.start.wrapping_add(len);
}

/// All but where the entry ends.
#[inline(never)]
fn advance_generally(codes: &mut &[u8], place: &mut Location) {
    let flags = take(codes) as u8;
    let block = &mut place.block;
    let mut base = end_of(block);
    if flags & OTHER_FILE != 0 {
        let queue = if flags & REWRITE == 0 {
            Queue::Append
        } else {
            Queue::Rewrite
        };
        block.file = FileId::new(queue, take(codes));
        base = 0;
    }
    block.compression = if flags & LZ4 == 0 {
        Compression::None
    } else {
        Compression::Lz4
    };
    block.offset = base.wrapping_add(take(codes));
    block.len = take(codes) as u32;
    place.start = take(codes) as u32;
}

/// Where the first entry of a row lies.
pub(super) fn first_of(mut codes: &[u8]) -> Location {
    let mut place = ORIGIN;
    step(&mut codes, &mut place);
    place
}
