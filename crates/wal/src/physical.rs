//! Physical records: what stands at a place of a log, before records are put together.

use std::path::Path;
use std::sync::Arc;

use orogen_base::coding::get_fixed32;
use orogen_base::{Result, memory};
use orogen_env::RandomAccessFile;

use crate::format::{
    BLOCK_SIZE, HEADER_LEN, Kind, RECYCLABLE_HEADER_LEN, TYPE_AT, checksum, has_log_number,
};
use crate::reader::DamageReason;

/// Bytes read at once.
const READ_LEN: u64 = 1 << 20;

/// What stands at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Physical {
    /// An intact record of this log.
    Record {
        kind: Kind,
        header_len: usize,
        len: usize,
    },
    /// An intact record of a former use of the file.
    Old,
    /// Nothing: the block's end is left free.
    Padding,
    /// Space that was reserved, or lost.
    Zeros,
    /// The end of the file.
    End,
    /// None of these; by its own length it would take `claimed` bytes.
    Bad {
        reason: DamageReason,
        claimed: usize,
    },
}

/// What stands at the start of `rest`, the bytes up to the end of the block, or up to the end
/// of the file if it `ends_file` within the block.
pub(crate) fn parse(rest: &[u8], ends_file: bool, log_number: u32) -> Physical {
    if rest.is_empty() {
        return Physical::End;
    }
    if rest.len() < HEADER_LEN {
        if !ends_file {
            return Physical::Padding;
        }
        if rest.iter().all(|&b| b == 0) {
            return Physical::Zeros;
        }
        return Physical::Bad {
            reason: DamageReason::TruncatedHeader,
            claimed: rest.len(),
        };
    }
    let record_type = rest[TYPE_AT];
    let len = usize::from(u16::from_le_bytes([rest[4], rest[5]]));
    if rest[..HEADER_LEN].iter().all(|&b| b == 0) {
        let is_padding =
            !ends_file && rest.len() < RECYCLABLE_HEADER_LEN && rest.iter().all(|&b| b == 0);
        return if is_padding {
            Physical::Padding
        } else {
            Physical::Zeros
        };
    }
    let numbered = has_log_number(record_type);
    let header_len = if numbered {
        RECYCLABLE_HEADER_LEN
    } else {
        HEADER_LEN
    };
    let claimed = header_len + len;
    let bad = |reason| Physical::Bad { reason, claimed };
    if claimed > rest.len() {
        return bad(match ends_file {
            true if rest.len() < header_len => DamageReason::TruncatedHeader,
            true => DamageReason::TruncatedBody,
            false => DamageReason::BadLength,
        });
    }
    let record = &rest[..claimed];
    let is_intact = get_fixed32(record) == Some(checksum(&record[TYPE_AT..]));
    if numbered && get_fixed32(&record[HEADER_LEN..]) != Some(log_number) {
        if is_intact {
            return Physical::Old;
        }
        // With our number in its place the record may be whole: then the number is damaged.
        let mut mended = record.to_vec();
        mended[HEADER_LEN..RECYCLABLE_HEADER_LEN].copy_from_slice(&log_number.to_le_bytes());
        if get_fixed32(&mended) == Some(checksum(&mended[TYPE_AT..])) {
            return bad(DamageReason::BadLogNumber);
        }
    }
    if !is_intact {
        return bad(DamageReason::BadChecksum);
    }
    Physical::Record {
        kind: Kind::from_type(record_type),
        header_len,
        len,
    }
}

/// Looks for a length with which the record at the start of `rest`, whose length field cannot
/// be right, has the right checksum; returns where it then ends.
///
/// The checksum does not cover the length, so a damaged length can be told from a torn record.
/// `is_boundary` says whether a record may end at a place: among 32 Ki lengths one in a hundred
/// thousand blocks would fit by chance.
pub(crate) fn true_end(rest: &[u8], is_boundary: impl Fn(&[u8]) -> bool) -> Option<usize> {
    let stored = get_fixed32(rest)?;
    let record_type = *rest.get(TYPE_AT)?;
    let header_len = if has_log_number(record_type) {
        RECYCLABLE_HEADER_LEN
    } else {
        HEADER_LEN
    };
    let covered = rest.get(TYPE_AT..header_len)?;
    let mut crc = orogen_base::checksum::crc32c(covered);
    let fits = |crc: u32, end: usize| {
        orogen_base::checksum::mask(crc) == stored && is_boundary(&rest[end..])
    };
    if fits(crc, header_len) {
        return Some(header_len);
    }
    for end in header_len..rest.len() {
        crc = orogen_base::checksum::crc32c_extend(crc, &rest[end..=end]);
        if fits(crc, end + 1) {
            return Some(end + 1);
        }
    }
    None
}

/// CRC32C's polynomial, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Where the damaged record at the start of `rest` ends if a single flipped bit explains its
/// wrong checksum: then it was whole once, which no cut-off write is.
///
/// A CRC is linear: a flipped bit changes it by a value that depends only on how far the bit is
/// from the end. A bit that is missing before zeros to the end may be cut off as well.
pub(crate) fn end_if_one_bit_is_wrong(rest: &[u8]) -> Option<usize> {
    let stored = get_fixed32(rest)?;
    let len = usize::from(u16::from_le_bytes([*rest.get(4)?, *rest.get(5)?]));
    // The wrong bit may be the one that tells the two headers apart.
    [HEADER_LEN + len, RECYCLABLE_HEADER_LEN + len]
        .into_iter()
        .find(|&end| {
            let Some(covered) = rest.get(TYPE_AT..end) else {
                return false;
            };
            let crc = orogen_base::checksum::crc32c(covered);
            if (orogen_base::checksum::mask(crc) ^ stored).is_power_of_two() {
                return true;
            }
            let wanted = crc ^ orogen_base::checksum::unmask(stored);
            let mut change = POLYNOMIAL;
            for bit in 0..covered.len() * 8 {
                if change == wanted {
                    let at = covered.len() - 1 - bit / 8;
                    return covered[at..].iter().any(|&b| b != 0);
                }
                change = (change >> 1) ^ (POLYNOMIAL & (change & 1).wrapping_neg());
            }
            false
        })
}

/// The file's bytes by blocks, read ahead.
pub(crate) struct Blocks {
    file: Arc<dyn RandomAccessFile>,
    size: u64,
    buffer: Vec<u8>,
    /// Of `buffer` in the file; the start of a block.
    start: u64,
}

impl Blocks {
    pub(crate) fn new(file: Arc<dyn RandomAccessFile>) -> Result<Self> {
        let size = file.size()?;
        Ok(Self {
            file,
            size,
            buffer: Vec::new(),
            start: 0,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The start of the block after the one that `at` stands in.
    pub(crate) fn next_block(at: u64) -> u64 {
        at - at % BLOCK_SIZE as u64 + BLOCK_SIZE as u64
    }

    /// The bytes from `at` to the end of its block, and whether the file ends within the block.
    pub(crate) fn rest(&mut self, at: u64) -> Result<(&[u8], bool)> {
        if at >= self.size {
            return Ok((&[], true));
        }
        let block_end = Self::next_block(at);
        if at < self.start || block_end.min(self.size) > self.start + self.buffer.len() as u64 {
            self.load(block_end - BLOCK_SIZE as u64)?;
        }
        let end = block_end.min(self.size);
        // The file may have shrunk while it was read.
        let from = usize::try_from(at - self.start)
            .unwrap_or(usize::MAX)
            .min(self.buffer.len());
        let to = usize::try_from(end.saturating_sub(self.start)).unwrap_or(usize::MAX);
        Ok((
            &self.buffer[from..to.min(self.buffer.len()).max(from)],
            block_end > self.size,
        ))
    }

    fn load(&mut self, start: u64) -> Result<()> {
        let len = (self.size - start).min(READ_LEN) as usize;
        memory::resize(&mut self.buffer, len, "log read buffer")?;
        let mut got = 0;
        while got < len {
            let read = self
                .file
                .read_at(start + got as u64, &mut self.buffer[got..]);
            // What was there before may be half written over.
            let n = read.inspect_err(|_| self.buffer.clear())?;
            if n == 0 {
                self.size = start + got as u64;
                break;
            }
            got += n;
        }
        self.buffer.truncate(got);
        self.start = start;
        Ok(())
    }
}
