//! The bytes of Titan's blob files and pointers.
//!
//! ```text
//! header   magic u32 | version u32 | from 2: flags u32 | from 3: block size u64
//! record   checksum u32 | size u32 | codec u8 | body
//! footer   meta index: offset, size varint64, zeros up to 20 bytes | magic u64 | checksum u32
//! pointer  1 | file, offset, size varint64
//! ```
//! Numbers are little-endian. Checksums are CRC32C, not masked.

use orogen_base::checksum::{crc32c, crc32c_extend};
use orogen_base::coding::{Decoder, put_varint64};
use orogen_base::{Error, FileNo, Result};
use orogen_codec::CompressionType;

const HEADER_MAGIC: u32 = 0x2be0_a614;
const FOOTER_MAGIC: u64 = 0x2be0_a614_8e39_edc6;
const HAS_DICTIONARY: u32 = 1;
/// The type of every pointer.
const RECORD: u8 = 1;

/// Bytes of the longest header.
pub const HEADER_LEN_MAX: usize = 20;
/// Bytes of the shortest header.
pub(super) const HEADER_LEN_MIN: usize = 8;
/// Bytes before the body of a record.
pub const RECORD_HEADER_LEN: usize = 9;
/// Bytes of the footer.
pub const FOOTER_LEN: usize = 32;
/// Bytes of a footer's handle with the zeros behind it.
const HANDLE_LEN: usize = 20;

/// The beginning of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TitanHeader {
    /// 1, 2 or 3.
    pub version: u32,
    /// Records are compressed with a dictionary that the file holds.
    pub has_dictionary: bool,
    /// Records begin at multiples of it; 0: where the one before ends.
    pub block_size: u64,
}

impl TitanHeader {
    /// Reads the header at the start of `bytes`, which may go on behind it.
    ///
    /// # Errors
    /// `Corruption` if this is none; `NotSupported` for versions and flags that nobody knows.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes);
        let magic = from.fixed32("magic number")?;
        if magic != HEADER_MAGIC {
            return Err(
                Error::corruption("file is no blob file of Titan's: wrong magic number")
                    .with("magic", format_args!("{magic:#010x}")),
            );
        }
        let version = from.fixed32("version")?;
        if !(1..=3).contains(&version) {
            return Err(
                Error::not_supported("version of a Titan blob file is not known")
                    .with("version", version),
            );
        }
        let flags = match version {
            1 => 0,
            _ => from.fixed32("flags")?,
        };
        if flags & !HAS_DICTIONARY != 0 {
            return Err(
                Error::not_supported("Titan blob file has flags that are not known")
                    .with("flags", format_args!("{flags:#x}")),
            );
        }
        let block_size = match version {
            3 => from.fixed64("block size")?,
            _ => 0,
        };
        Ok(Self {
            version,
            has_dictionary: flags & HAS_DICTIONARY != 0,
            block_size,
        })
    }

    /// Bytes of it.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self.version {
            1 => HEADER_LEN_MIN,
            2 => 12,
            _ => HEADER_LEN_MAX,
        }
    }
}

/// Where a block stands, without its trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Handle {
    pub(super) fn read(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self {
            offset: from.varint64("offset of a block")?,
            size: from.varint64("size of a block")?,
        })
    }
}

/// The end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TitanFooter {
    meta_index: Option<Handle>,
}

impl TitanFooter {
    /// Reads a footer.
    ///
    /// # Errors
    /// `Corruption` if it is none or its checksum does not hold.
    pub fn decode(bytes: &[u8; FOOTER_LEN]) -> Result<Self> {
        let mut from = Decoder::new(&bytes[HANDLE_LEN..]);
        if from.fixed64("magic number")? != FOOTER_MAGIC {
            return Err(Error::corruption(
                "footer of a Titan blob file has a wrong magic number",
            ));
        }
        if from.fixed32("checksum")? != crc32c(&bytes[..FOOTER_LEN - 4]) {
            return Err(Error::corruption(
                "footer of a Titan blob file has a bad checksum",
            ));
        }
        let handle = Handle::read(&mut Decoder::new(&bytes[..HANDLE_LEN]))?;
        let is_none = handle.offset == 0 && handle.size == 0;
        Ok(Self {
            meta_index: (!is_none).then_some(handle),
        })
    }

    pub(super) fn meta_index(&self) -> Option<Handle> {
        self.meta_index
    }
}

/// What stands before the body of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TitanRecordHeader {
    checksum: u32,
    /// Bytes of the body.
    pub size: u32,
    codec: u8,
}

impl TitanRecordHeader {
    /// Reads the first bytes of a record.
    #[must_use]
    pub fn decode(bytes: &[u8; RECORD_HEADER_LEN]) -> Self {
        let [c0, c1, c2, c3, s0, s1, s2, s3, codec] = *bytes;
        Self {
            checksum: u32::from_le_bytes([c0, c1, c2, c3]),
            size: u32::from_le_bytes([s0, s1, s2, s3]),
            codec,
        }
    }

    /// True where a record was and its space was given up: no record has no body.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        *self
            == Self {
                checksum: 0,
                size: 0,
                codec: 0,
            }
    }

    /// Compares the checksum, and gives the codec of the body.
    ///
    /// # Errors
    /// `Corruption`.
    pub fn check(&self, body: &[u8]) -> Result<CompressionType> {
        let [s0, s1, s2, s3] = self.size.to_le_bytes();
        let crc = crc32c_extend(crc32c(&[s0, s1, s2, s3, self.codec]), body);
        if crc != self.checksum {
            return Err(Error::corruption("Titan blob record has a bad checksum"));
        }
        CompressionType::from_u8(self.codec).ok_or_else(|| {
            Error::corruption("Titan blob record has an unknown codec").with("codec", self.codec)
        })
    }
}

/// The value of an entry of kind 0x11 in tables and logs of Titan's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TitanPointer {
    /// The file.
    pub file: FileNo,
    /// Where the record begins, its header included.
    pub offset: u64,
    /// Bytes of the record, its header included.
    pub size: u64,
}

impl TitanPointer {
    /// Reads a pointer. One number behind it is passed over: the size before compression, which
    /// Titan wrote for some weeks.
    ///
    /// # Errors
    /// `Corruption` if it is malformed or no record can be there.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes);
        let kind = from.u8("pointer type")?;
        if kind != RECORD {
            return Err(Error::corruption("Titan pointer is of an unknown type").with("type", kind));
        }
        let pointer = Self {
            file: from.varint64("blob file number")?,
            offset: from.varint64("offset of a blob record")?,
            size: from.varint64("size of a blob record")?,
        };
        if !from.is_empty() {
            from.varint64("size before compression")?;
        }
        if !from.is_empty() {
            return Err(Error::corruption("Titan pointer has bytes behind its end"));
        }
        let is_possible = pointer.file > 0
            && pointer.offset >= HEADER_LEN_MIN as u64
            && pointer.size >= RECORD_HEADER_LEN as u64
            && pointer.offset.checked_add(pointer.size).is_some();
        if !is_possible && !pointer.is_deletion() {
            return Err(
                Error::corruption("Titan pointer leads to where no record can be")
                    .with("blob_file", pointer.file)
                    .with("offset", pointer.offset)
                    .with("size", pointer.size),
            );
        }
        Ok(pointer)
    }

    /// The file that a merge operand names, if it is one of Titan's: a pointer, and behind it the file and the
    /// offset that its value had before. Garbage collection wrote such operands from 2020 to 2022.
    #[must_use]
    pub fn file_of_operand(bytes: &[u8]) -> Option<FileNo> {
        let mut from = Decoder::new(bytes);
        if from.u8("pointer type").ok()? != RECORD {
            return None;
        }
        let file = from.varint64("blob file number").ok()?;
        for field in ["offset", "size", "source file number", "source offset"] {
            from.varint64(field).ok()?;
        }
        from.is_empty().then_some(file)
    }

    /// True for a pointer to nothing: the way in which Titan's merge operator said that the key is
    /// deleted, from 2020 to 2022.
    #[must_use]
    pub fn is_deletion(&self) -> bool {
        (self.file, self.offset, self.size) == (0, 0, 0)
    }

    /// Appends the pointer as it stands in a table.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(RECORD);
        put_varint64(out, self.file);
        put_varint64(out, self.offset);
        put_varint64(out, self.size);
    }
}

/// What the property [`super::REFERENCED_SIZE`] says: each file and the bytes of its records that
/// the table points to.
///
/// # Errors
/// `Corruption`.
pub fn referenced_sizes(bytes: &[u8]) -> Result<Vec<(FileNo, u64)>> {
    let mut from = Decoder::new(bytes);
    let count = from.varint32("number of blob files")?;
    let mut sizes = Vec::new();
    for _ in 0..count {
        sizes.push((
            from.varint64("blob file number")?,
            from.varint64("bytes of a blob file")?,
        ));
    }
    if !from.is_empty() {
        return Err(Error::corruption(
            "list of Titan blob files has bytes behind its end",
        ));
    }
    Ok(sizes)
}
