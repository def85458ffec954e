//! What a table keeps in place of a value: the place of a record in a blob file.
//!
//! ```text
//! 0  inlined with expiration   expiration varint64 | value
//! 1  blob                      file, offset, size varint64 | codec (1)
//! 2  blob with expiration      expiration, file, offset, size varint64 | codec (1)
//! ```
//! It is the value of an entry of kind 0x11. The offset is that of the value, not of its record:
//! the record begins as many bytes before as its header and the user key take. Kinds 0 and 2 are
//! those of the stacked BlobDB with a time to live; they are taken apart and refused by name.
//! Source: RocksDB `db/blob/blob_index.h`.

use orogen_base::coding::{Decoder, put_varint64};
use orogen_base::{Error, FileNo, Result};
use orogen_codec::CompressionType;

use crate::format::{HEADER_LEN, RECORD_HEADER_LEN};

const INLINED_TTL: u8 = 0;
const BLOB: u8 = 1;
const BLOB_TTL: u8 = 2;

/// Bytes of the longest pointer.
pub const POINTER_LEN_MAX: usize = 1 + 3 * 10 + 1;

/// The place of a value in a blob file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlobPointer {
    /// The file.
    pub file: FileNo,
    /// Bytes before the value in the file.
    pub offset: u64,
    /// Bytes of the value as it is stored.
    pub size: u64,
    /// The codec that the value is stored with: that of the file.
    pub codec: CompressionType,
}

/// Any value of an entry of kind 0x11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobIndex<'a> {
    /// The value itself, which expires.
    InlinedTtl {
        /// Seconds since 1970.
        expiration: u64,
        /// The value.
        value: &'a [u8],
    },
    /// A place.
    Blob(BlobPointer),
    /// The place of a value that expires.
    BlobTtl {
        /// Seconds since 1970.
        expiration: u64,
        /// Where it is.
        pointer: BlobPointer,
    },
}

impl BlobPointer {
    /// Appends the pointer as it stands in a table.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(BLOB);
        self.encode_place(out);
    }

    fn encode_place(&self, out: &mut Vec<u8>) {
        put_varint64(out, self.file);
        put_varint64(out, self.offset);
        put_varint64(out, self.size);
        out.push(self.codec as u8);
    }

    /// Reads the value of an entry of kind 0x11.
    ///
    /// # Errors
    /// `Corruption` if it is malformed or no file can have such a place; `NotSupported` for values
    /// that expire, and for those that stand in the table's own file.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        match BlobIndex::decode(bytes)? {
            BlobIndex::Blob(pointer) => Ok(pointer),
            BlobIndex::InlinedTtl { .. } => Err(expires("inlined")),
            BlobIndex::BlobTtl { .. } => Err(expires("blob")),
        }
    }

    /// Bytes of the record that holds the value under a user key of so many bytes, as the MANIFEST
    /// counts them.
    #[must_use]
    pub fn record_len(&self, key_len: usize) -> u64 {
        self.size
            .saturating_add((RECORD_HEADER_LEN + key_len) as u64)
    }

    /// Where that record begins, unless no record can.
    #[must_use]
    pub fn record_offset(&self, key_len: usize) -> Option<u64> {
        self.offset
            .checked_sub((RECORD_HEADER_LEN + key_len) as u64)
            .filter(|&at| at >= HEADER_LEN as u64)
    }

    fn read(from: &mut Decoder<'_>) -> Result<Self> {
        let file = from.varint64("blob file number")?;
        let offset = from.varint64("blob offset")?;
        let size = from.varint64("blob size")?;
        let codec = from.u8("blob compression type")?;
        if !from.is_empty() {
            return Err(
                Error::corruption("blob pointer has bytes behind its end").with("size", size)
            );
        }
        if file == 0 {
            return Err(Error::not_supported(
                "blob pointer leads into the table's own file",
            ));
        }
        let codec = CompressionType::from_u8(codec).ok_or_else(|| {
            Error::corruption("blob pointer has an unknown compression type")
                .with("compression_type", codec)
        })?;
        let least = (HEADER_LEN + RECORD_HEADER_LEN) as u64;
        if offset < least || offset.checked_add(size).is_none() {
            return Err(
                Error::corruption("blob pointer leads to where no value can be")
                    .with("blob_file", file)
                    .with("offset", offset)
                    .with("size", size),
            );
        }
        Ok(Self {
            file,
            offset,
            size,
            codec,
        })
    }
}

impl<'a> BlobIndex<'a> {
    /// Takes the value of an entry of kind 0x11 apart, whatever its form.
    ///
    /// # Errors
    /// As [`BlobPointer::decode`], but for values that expire.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes);
        match from.u8("blob index type")? {
            INLINED_TTL => Ok(Self::InlinedTtl {
                expiration: from.varint64("blob expiration")?,
                value: from.rest(),
            }),
            BLOB => BlobPointer::read(&mut from).map(Self::Blob),
            BLOB_TTL => Ok(Self::BlobTtl {
                expiration: from.varint64("blob expiration")?,
                pointer: BlobPointer::read(&mut from)?,
            }),
            other => Err(Error::corruption("blob index is of an unknown type").with("type", other)),
        }
    }

    /// Appends the value as it stands in a table.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::InlinedTtl { expiration, value } => {
                out.push(INLINED_TTL);
                put_varint64(out, *expiration);
                out.extend_from_slice(value);
            }
            Self::Blob(pointer) => pointer.encode(out),
            Self::BlobTtl {
                expiration,
                pointer,
            } => {
                out.push(BLOB_TTL);
                put_varint64(out, *expiration);
                pointer.encode_place(out);
            }
        }
    }
}

#[cold]
fn expires(what: &'static str) -> Error {
    Error::not_supported("value with an expiration, as the stacked BlobDB writes them")
        .with("blob_index", what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_base::ErrorKind;

    fn sample() -> BlobPointer {
        BlobPointer {
            file: 300,
            offset: 70_000,
            size: 4096,
            codec: CompressionType::Zstd,
        }
    }

    #[test]
    fn a_pointer_has_the_bytes_that_rocksdb_writes() {
        let mut out = Vec::new();
        sample().encode(&mut out);
        assert_eq!(out, b"\x01\xac\x02\xf0\xa2\x04\x80\x20\x07");
        assert_eq!(BlobPointer::decode(&out).unwrap(), sample());
    }

    #[test]
    fn all_forms_round_trip_and_those_that_expire_are_refused_by_name() {
        let forms = [
            BlobIndex::Blob(sample()),
            BlobIndex::InlinedTtl {
                expiration: 1 << 40,
                value: b"inside",
            },
            BlobIndex::BlobTtl {
                expiration: 7,
                pointer: sample(),
            },
        ];
        for form in forms {
            let mut out = Vec::new();
            form.encode(&mut out);
            assert_eq!(BlobIndex::decode(&out).unwrap(), form);
            match BlobPointer::decode(&out) {
                Ok(pointer) => assert_eq!(form, BlobIndex::Blob(pointer)),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NotSupported);
                    assert!(e.to_string().contains("expiration"), "{e}");
                }
            }
        }
    }

    #[test]
    fn cut_off_long_and_senseless_pointers_are_corrupt() {
        let mut whole = Vec::new();
        sample().encode(&mut whole);
        for n in 0..whole.len() {
            let e = BlobPointer::decode(&whole[..n]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corruption, "{n}");
        }
        let mut long = whole.clone();
        long.push(0);
        assert!(BlobPointer::decode(&long).is_err());
        for (pointer, kind) in [
            (
                BlobPointer {
                    file: 0,
                    ..sample()
                },
                ErrorKind::NotSupported,
            ),
            (
                BlobPointer {
                    offset: 61,
                    ..sample()
                },
                ErrorKind::Corruption,
            ),
            (
                BlobPointer {
                    offset: u64::MAX,
                    size: 1,
                    ..sample()
                },
                ErrorKind::Corruption,
            ),
        ] {
            let mut out = Vec::new();
            pointer.encode(&mut out);
            assert_eq!(BlobPointer::decode(&out).unwrap_err().kind(), kind);
        }
        let mut unknown = whole.clone();
        *unknown.last_mut().unwrap() = 0x55;
        assert!(BlobPointer::decode(&unknown).is_err());
        assert!(BlobPointer::decode(b"\x03").is_err());
    }
}
