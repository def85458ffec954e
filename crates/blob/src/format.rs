//! The fixed parts of a blob file: header, head of a record, locator, footer.
//!
//! ```text
//! header   magic (4) | version (4) | column family (4) | flags (1) | codec (1) | expirations (16)
//! record   key length (8) | value length (8) | expiration (8) | checksum of these (4)
//!          | checksum of key and value (4) | user key | value as stored
//! locator  offset (8) and size (8) of the tail record | version (4) | magic (8) | checksum (4)
//! footer   magic (4) | records (8) | expirations (16) | checksum (4)
//! ```
//! Numbers are little-endian, checksums masked CRC32C. The header has no checksum: what it says is
//! checked against what is known from elsewhere.
//! Source: RocksDB `db/blob/blob_log_format.h`, `blob_log_format.cc`.

use orogen_base::checksum::{crc32c, crc32c_extend, mask};
use orogen_base::coding::{get_fixed32, get_fixed64, put_fixed32, put_fixed64};
use orogen_base::{Error, Result};
use orogen_codec::CompressionType;

/// The unit in which space inside a file is given up.
pub const HOLE_BLOCK: u64 = 4 << 10;

/// Bytes of a file's header.
pub const HEADER_LEN: usize = 30;
/// Bytes of a record before its key.
pub const RECORD_HEADER_LEN: usize = 32;
/// Bytes of the locator.
pub const LOCATOR_LEN: usize = 32;
/// Bytes of the footer.
pub const FOOTER_LEN: usize = 32;

const MAGIC: u32 = 2_395_959;

/// The version whose values stand for themselves: RocksDB's.
pub const VERSION: u32 = 1;
/// The version whose values need the dictionary of the file; RocksDB refuses it by its number.
pub const VERSION_WITH_DICTIONARY: u32 = 2;

/// The expiration of records that are not the user's. User's records have 0.
pub const META_MARK: u64 = u64::from_le_bytes(*b"orogen\xb1\x0b");

const LOCATOR_MAGIC: u64 = u64::from_le_bytes(*b"\x0b\xb1bloboo");
const LOCATOR_VERSION: u32 = 1;

const FLAG_TTL: u8 = 1;

/// The beginning of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// [`VERSION`] or [`VERSION_WITH_DICTIONARY`].
    pub version: u32,
    /// The family whose values these are.
    pub column_family_id: u32,
    /// The codec of all values.
    pub codec: CompressionType,
}

impl FileHeader {
    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_fixed32(out, MAGIC);
        put_fixed32(out, self.version);
        put_fixed32(out, self.column_family_id);
        out.extend_from_slice(&[0, self.codec as u8]);
        out.extend_from_slice(&[0; 16]);
    }

    /// Reads a header.
    ///
    /// # Errors
    /// `Corruption` if it is none; `NotSupported` for files of values that expire and for newer
    /// versions.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self> {
        let number = |at: usize| get_fixed32(&bytes[at..]).unwrap_or(0);
        if number(0) != MAGIC {
            return Err(Error::corruption("file is no blob file: bad magic number")
                .with("magic", format!("{:#010x}", number(0))));
        }
        let version = number(4);
        if version != VERSION && version != VERSION_WITH_DICTIONARY {
            return Err(
                Error::not_supported("blob file has a version that is not known")
                    .with("version", version),
            );
        }
        let (flags, codec) = (bytes[12], bytes[13]);
        if flags & FLAG_TTL != 0 {
            return Err(Error::not_supported(
                "blob file of values with expirations, as the stacked BlobDB writes them",
            ));
        }
        if flags != 0 {
            return Err(
                Error::not_supported("blob file has flags that are not known").with("flags", flags),
            );
        }
        if bytes[14..] != [0; 16] {
            return Err(Error::corruption(
                "header of a blob file without expirations has some",
            ));
        }
        let codec = CompressionType::from_u8(codec).ok_or_else(|| {
            Error::corruption("blob file has an unknown compression type")
                .with("compression_type", codec)
        })?;
        if version == VERSION_WITH_DICTIONARY && codec != CompressionType::Zstd {
            return Err(Error::not_supported(
                "blob file with a dictionary for another codec than zstd",
            )
            .with("codec", codec.name()));
        }
        Ok(Self {
            version,
            column_family_id: number(8),
            codec,
        })
    }
}

/// The head of a record whose own checksum holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of the user key.
    pub key_len: u64,
    /// Bytes of the value as stored.
    pub value_len: u64,
    /// 0, or [`META_MARK`].
    pub expiration: u64,
    /// Of key and value.
    pub checksum: u32,
}

impl RecordHeader {
    /// The head of a record of these bytes.
    #[must_use]
    pub fn new(key: &[u8], stored: &[u8], expiration: u64) -> Self {
        Self {
            key_len: key.len() as u64,
            value_len: stored.len() as u64,
            expiration,
            checksum: record_checksum(key, stored),
        }
    }

    /// The head as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_HEADER_LEN] {
        let mut out = [0; RECORD_HEADER_LEN];
        out[..8].copy_from_slice(&self.key_len.to_le_bytes());
        out[8..16].copy_from_slice(&self.value_len.to_le_bytes());
        out[16..24].copy_from_slice(&self.expiration.to_le_bytes());
        let sum = mask(crc32c(&out[..24]));
        out[24..28].copy_from_slice(&sum.to_le_bytes());
        out[28..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// Takes a head apart, without looking at its checksum.
    #[must_use]
    pub(crate) fn parse(bytes: &[u8; RECORD_HEADER_LEN]) -> (Self, bool) {
        let number = |at: usize| get_fixed64(&bytes[at..]).unwrap_or(0);
        let header = Self {
            key_len: number(0),
            value_len: number(8),
            expiration: number(16),
            checksum: get_fixed32(&bytes[28..]).unwrap_or(0),
        };
        let holds = get_fixed32(&bytes[24..]) == Some(mask(crc32c(&bytes[..24])));
        (header, holds)
    }

    /// Reads a head.
    ///
    /// # Errors
    /// `Corruption` if its checksum does not hold.
    pub fn decode(bytes: &[u8; RECORD_HEADER_LEN]) -> Result<Self> {
        match Self::parse(bytes) {
            (header, true) => Ok(header),
            _ => Err(Error::corruption(
                "head of a blob record has a bad checksum",
            )),
        }
    }

    /// Bytes of the whole record, unless they overflow.
    #[must_use]
    pub fn record_len(&self) -> Option<u64> {
        self.key_len
            .checked_add(self.value_len)?
            .checked_add(RECORD_HEADER_LEN as u64)
    }
}

/// The checksum of a record's key and value.
#[inline]
#[must_use]
pub fn record_checksum(key: &[u8], stored: &[u8]) -> u32 {
    mask(crc32c_extend(crc32c(key), stored))
}

/// Where the tail record stands, which leads to all meta records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Locator {
    /// Bytes before the tail record.
    pub offset: u64,
    /// Bytes of the tail record, the locator included.
    pub size: u64,
}

impl Locator {
    /// Appends the locator.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        put_fixed64(out, self.offset);
        put_fixed64(out, self.size);
        put_fixed32(out, LOCATOR_VERSION);
        put_fixed64(out, LOCATOR_MAGIC);
        let sum = mask(crc32c(&out[start..]));
        put_fixed32(out, sum);
    }

    /// Reads a locator; `None` if there is none here: the file is RocksDB's.
    ///
    /// # Errors
    /// `Corruption` if it is one and its checksum does not hold; `NotSupported` for a newer version.
    pub fn decode(bytes: &[u8; LOCATOR_LEN]) -> Result<Option<Self>> {
        let number = |at: usize| get_fixed64(&bytes[at..]).unwrap_or(0);
        if number(20) != LOCATOR_MAGIC {
            return Ok(None);
        }
        let sum = mask(crc32c(&bytes[..LOCATOR_LEN - 4]));
        if get_fixed32(&bytes[LOCATOR_LEN - 4..]) != Some(sum) {
            return Err(Error::corruption(
                "locator of a blob file has a bad checksum",
            ));
        }
        let version = get_fixed32(&bytes[16..]).unwrap_or(0);
        if version != LOCATOR_VERSION {
            return Err(Error::not_supported(
                "locator of a blob file has a version that is not known",
            )
            .with("version", version));
        }
        Ok(Some(Self {
            offset: number(0),
            size: number(8),
        }))
    }
}

/// The end of a file that was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFooter {
    /// Records of the user.
    pub records: u64,
}

impl FileFooter {
    /// Appends the footer.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        put_fixed32(out, MAGIC);
        put_fixed64(out, self.records);
        out.extend_from_slice(&[0; 16]);
        let sum = mask(crc32c(&out[start..]));
        put_fixed32(out, sum);
    }

    /// Reads a footer.
    ///
    /// # Errors
    /// `Corruption` if there is none, or if it speaks of expirations.
    pub fn decode(bytes: &[u8; FOOTER_LEN]) -> Result<Self> {
        if get_fixed32(bytes) != Some(MAGIC) {
            return Err(Error::corruption("blob file has no footer"));
        }
        let sum = mask(crc32c(&bytes[..FOOTER_LEN - 4]));
        if get_fixed32(&bytes[FOOTER_LEN - 4..]) != Some(sum) {
            return Err(Error::corruption(
                "footer of a blob file has a bad checksum",
            ));
        }
        if bytes[12..28] != [0; 16] {
            return Err(Error::corruption(
                "footer of a blob file without expirations has some",
            ));
        }
        Ok(Self {
            records: get_fixed64(&bytes[4..]).unwrap_or(0),
        })
    }
}

/// Bytes of the longest [`empty_value`].
pub(crate) const EMPTY_VALUE_LEN_MAX: usize = 10;

/// What a codec makes of nothing: the value of each meta record, so that whoever decompresses all
/// values of a file finds nothing wrong with it.
#[must_use]
pub(crate) fn empty_value(codec: CompressionType) -> &'static [u8] {
    match codec {
        CompressionType::Snappy => &[0],
        CompressionType::Lz4 | CompressionType::Lz4hc => &[0, 0],
        // Size 0, magic number, a frame of one segment and of 0 bytes, a last block of 0 bytes.
        CompressionType::Zstd => &[0, 0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0],
        _ => &[],
    }
}

/// The first multiple of `alignment` that is not before `offset`; no alignment is 0 or 1.
#[must_use]
pub(crate) fn align_up(offset: u64, alignment: u64) -> u64 {
    if alignment < 2 {
        return offset;
    }
    offset.next_multiple_of(alignment)
}
