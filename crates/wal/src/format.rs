//! The words of the format: blocks, headers, record types, checksums.
//!
//! ```text
//! legacy:      masked crc32c u32 | length u16 | type u8 | payload
//! recyclable:  masked crc32c u32 | length u16 | type u8 | log number u32 | payload
//! ```
//! Numbers are little-endian. The checksum covers all from the type on. No record crosses a
//! block of 32 KiB; where a header does not fit, zeros fill the block.

use orogen_base::checksum;

/// Bytes of a block.
pub const BLOCK_SIZE: usize = 32 << 10;

/// Bytes of a legacy header.
pub const HEADER_LEN: usize = 7;

/// Bytes of a recyclable header.
pub const RECYCLABLE_HEADER_LEN: usize = 11;

/// Where the type stands in a header, and where the checksum's cover begins.
pub(crate) const TYPE_AT: usize = 6;

/// Added to a legacy data type to make it recyclable.
const RECYCLABLE_STEP: u8 = 4;

const SET_COMPRESSION: u8 = 9;
const TIMESTAMP_SIZES: u8 = 10;
const RECYCLABLE_TIMESTAMP_SIZES: u8 = 11;
const PREDECESSOR_INFO: u8 = 130;
const RECYCLABLE_PREDECESSOR_INFO: u8 = 131;

/// A reader that does not know a type with this bit skips the record.
const IGNORABLE: u8 = 0x80;

/// Which part of a logical record a physical one holds. The numbers are the legacy types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Part {
    Full = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

impl Part {
    pub(crate) fn of(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Full,
            (true, false) => Self::First,
            (false, false) => Self::Middle,
            (false, true) => Self::Last,
        }
    }

    pub(crate) fn record_type(self, recyclable: bool) -> u8 {
        self as u8 + if recyclable { RECYCLABLE_STEP } else { 0 }
    }

    /// True if a logical record begins here.
    pub(crate) fn is_start(self) -> bool {
        matches!(self, Self::Full | Self::First)
    }
}

/// What a physical record is, by its type byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Data {
        part: Part,
        recyclable: bool,
    },
    SetCompression,
    /// Of user-defined timestamps, of the log before, or of something newer that may be skipped.
    Skippable,
    Unknown(u8),
}

impl Kind {
    pub(crate) fn from_type(record_type: u8) -> Self {
        let recyclable = (5..=8).contains(&record_type);
        let legacy = if recyclable {
            record_type - RECYCLABLE_STEP
        } else {
            record_type
        };
        let part = match legacy {
            1 => Part::Full,
            2 => Part::First,
            3 => Part::Middle,
            4 => Part::Last,
            SET_COMPRESSION => return Self::SetCompression,
            TIMESTAMP_SIZES | RECYCLABLE_TIMESTAMP_SIZES => return Self::Skippable,
            other if other & IGNORABLE != 0 => return Self::Skippable,
            other => return Self::Unknown(other),
        };
        Self::Data { part, recyclable }
    }
}

/// False if a file that begins with these bytes, of a header or fewer, is no log: neither the beginning of a record nor zeros
/// that were reserved.
#[must_use]
pub fn may_begin_log(header: &[u8]) -> bool {
    let known = |record_type: u8| {
        matches!(
            record_type,
            0..=RECYCLABLE_TIMESTAMP_SIZES | PREDECESSOR_INFO | RECYCLABLE_PREDECESSOR_INFO
        )
    };
    header.get(TYPE_AT).is_none_or(|&t| known(t))
}

/// True if the type's header carries the log number.
pub(crate) fn has_log_number(record_type: u8) -> bool {
    matches!(
        record_type,
        5..=8 | RECYCLABLE_TIMESTAMP_SIZES | RECYCLABLE_PREDECESSOR_INFO
    )
}

const _: () = assert!(PREDECESSOR_INFO & IGNORABLE != 0 && RECYCLABLE_PREDECESSOR_INFO != 0);

/// The checksum as it stands in the header; `covered` is all from the type on.
pub(crate) fn checksum(covered: &[u8]) -> u32 {
    checksum::mask(checksum::crc32c(covered))
}
