//! The last bytes of a table: what it is, and where its meta index stands.
//!
//! ```text
//! format 0    metaindex handle | index handle | zeros to 40 bytes | magic (8)
//! format 1-5  checksum type (1) | metaindex handle | index handle | zeros to 40 bytes
//!             | format version (4) | magic (8)
//! format 6-7  checksum type (1) | 3e 00 7a 00 | checksum of the footer (4)
//!             | base context checksum (4) | metaindex size (4) | 16 bytes unused
//!             | 8 zero bytes | format version (4) | magic (8)
//! ```
//! A handle is two varints, offset and size without the trailer. In format 6 the meta index
//! stands right before the footer and names the index block, and every block's checksum
//! depends on where the block stands. Source: RocksDB `table/format.h`, `table/format.cc`.

use orogen_base::checksum::ChecksumType;
use orogen_base::coding::{Decoder, get_fixed32, get_fixed64, put_varint64};
use orogen_base::{Error, Result};

/// Bytes behind each block: compression type and checksum.
pub const BLOCK_TRAILER_LEN: usize = 5;

/// Bytes of the footer of formats 1 and later.
pub const FOOTER_LEN: usize = 53;

/// Bytes of the footer of format 0.
const LEGACY_FOOTER_LEN: usize = 48;

const HANDLES_LEN: usize = 40;

/// The magic number of block-based tables.
pub const MAGIC: u64 = 0x88e2_41b7_85f4_cff7;

/// The magic number of block-based tables of format 0.
pub const LEGACY_MAGIC: u64 = 0xdb47_7524_8b80_fb57;

const EXTENDED_MAGIC: [u8; 4] = [0x3e, 0x00, 0x7a, 0x00];

/// The newest format that is read.
pub const FORMAT_VERSION_MAX: u32 = 7;

/// Where a block stands: its offset, and its size without the trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct BlockHandle {
    /// Bytes before it in the file.
    pub offset: u64,
    /// Its bytes without the trailer.
    pub size: u64,
}

impl BlockHandle {
    /// Appends the handle.
    pub fn encode(self, out: &mut Vec<u8>) {
        put_varint64(out, self.offset);
        put_varint64(out, self.size);
    }

    /// Reads a handle.
    ///
    /// # Errors
    /// `Corruption` if it is cut off.
    pub fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self {
            offset: from.varint64("block offset")?,
            size: from.varint64("block size")?,
        })
    }

    /// The offset behind the trailer, unless it overflows.
    #[inline]
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.offset
            .checked_add(self.size)?
            .checked_add(BLOCK_TRAILER_LEN as u64)
    }
}

/// What is added to the checksum of a block at `offset` in a table of format 6 or later.
#[inline]
#[must_use]
pub(crate) fn context_modifier(base: u32, offset: u64) -> u32 {
    if base == 0 {
        0
    } else {
        base ^ (offset as u32).wrapping_add((offset >> 32) as u32)
    }
}

/// A footer taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The format of the table.
    pub format_version: u32,
    /// How blocks are checked.
    pub checksum: ChecksumType,
    /// Mixed into all checksums; 0 before format 6.
    pub base_context_checksum: u32,
    /// The meta index.
    pub metaindex: BlockHandle,
    /// The index; in formats 6 and later the meta index knows it.
    pub index: Option<BlockHandle>,
    /// Bytes of the footer itself.
    pub len: usize,
}

impl Footer {
    /// Appends the footer, which will stand at `offset`.
    ///
    /// # Errors
    /// `NotSupported` if a format 6 meta index is 4 GiB or more.
    pub fn encode(&self, offset: u64, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.push(self.checksum as u8);
        if self.format_version < 6 {
            self.metaindex.encode(out);
            self.index.unwrap_or_default().encode(out);
            out.resize(start + 1 + HANDLES_LEN, 0);
        } else {
            let size = u32::try_from(self.metaindex.size)
                .map_err(|_| Error::not_supported("meta index is larger than 4 GiB"))?;
            out.extend_from_slice(&EXTENDED_MAGIC);
            out.extend_from_slice(&[0; 4]);
            out.extend_from_slice(&self.base_context_checksum.to_le_bytes());
            out.extend_from_slice(&size.to_le_bytes());
            out.resize(start + 1 + HANDLES_LEN, 0);
        }
        out.extend_from_slice(&self.format_version.to_le_bytes());
        out.extend_from_slice(&MAGIC.to_le_bytes());
        if self.format_version >= 6 {
            let sum = footer_checksum(self.checksum, &out[start..])
                .wrapping_add(context_modifier(self.base_context_checksum, offset));
            out[start + 5..start + 9].copy_from_slice(&sum.to_le_bytes());
        }
        Ok(())
    }

    /// Reads the footer at the end of `tail`, whose first byte stands at `tail_offset`.
    ///
    /// # Errors
    /// `Corruption` if it is no table or damaged; `NotSupported` if it is a table of another
    /// kind or of a newer format.
    pub fn decode(tail: &[u8], tail_offset: u64) -> Result<Self> {
        let Some((_, magic)) = tail.split_last_chunk::<8>() else {
            return Err(Error::corruption("file is too short for a table"));
        };
        let magic = u64::from_le_bytes(*magic);
        let len = match magic {
            MAGIC => FOOTER_LEN,
            LEGACY_MAGIC => LEGACY_FOOTER_LEN,
            _ => return Err(other_magic(magic)),
        };
        let Some(at) = tail.len().checked_sub(len) else {
            return Err(Error::corruption("file is too short for a table"));
        };
        let footer = &tail[at..];
        if magic == LEGACY_MAGIC {
            let mut d = Decoder::new(footer);
            return Ok(Self {
                format_version: 0,
                checksum: ChecksumType::Crc32c,
                base_context_checksum: 0,
                metaindex: BlockHandle::decode(&mut d)?,
                index: Some(BlockHandle::decode(&mut d)?),
                len,
            });
        }
        let version = get_fixed32(&footer[FOOTER_LEN - 12..]).unwrap_or(u32::MAX);
        if version == 0 || version > FORMAT_VERSION_MAX {
            return Err(Error::not_supported("table has a format that is not known")
                .with("format_version", version));
        }
        let checksum = ChecksumType::from_u8(footer[0]).ok_or_else(|| {
            Error::corruption("footer names an unknown checksum").with("checksum", footer[0])
        })?;
        if version >= 6 {
            return Self::decode_extended(footer, tail_offset + at as u64, version, checksum);
        }
        let mut d = Decoder::new(&footer[1..=HANDLES_LEN]);
        Ok(Self {
            format_version: version,
            checksum,
            base_context_checksum: 0,
            metaindex: BlockHandle::decode(&mut d)?,
            index: Some(BlockHandle::decode(&mut d)?),
            len,
        })
    }

    fn decode_extended(
        footer: &[u8],
        offset: u64,
        format_version: u32,
        checksum: ChecksumType,
    ) -> Result<Self> {
        if footer[1..5] != EXTENDED_MAGIC {
            return Err(Error::corruption("footer has a bad extended magic number"));
        }
        let number = |i: usize| get_fixed32(&footer[i..]).unwrap_or(0);
        let (stored, base, size) = (number(5), number(9), number(13));
        if base == 0 {
            return Err(Error::corruption("footer has no base context checksum"));
        }
        let mut plain = [0; FOOTER_LEN];
        plain.copy_from_slice(footer);
        plain[5..9].fill(0);
        let sum = footer_checksum(checksum, &plain).wrapping_add(context_modifier(base, offset));
        if sum != stored {
            return Err(Error::corruption("footer has a bad checksum")
                .with("stored", stored)
                .with("computed", sum));
        }
        if get_fixed64(&footer[33..]) != Some(0) {
            return Err(Error::not_supported(
                "table uses a newer feature of its format",
            ));
        }
        let size = u64::from(size);
        let start = offset
            .checked_sub(BLOCK_TRAILER_LEN as u64 + size)
            .ok_or_else(|| Error::corruption("meta index is larger than the file"))?;
        Ok(Self {
            format_version,
            checksum,
            base_context_checksum: base,
            metaindex: BlockHandle {
                offset: start,
                size,
            },
            index: None,
            len: FOOTER_LEN,
        })
    }
}

fn footer_checksum(kind: ChecksumType, bytes: &[u8]) -> u32 {
    let (last, rest) = bytes.split_last().expect("a footer is not empty");
    kind.compute(rest, *last)
}

#[cold]
fn other_magic(magic: u64) -> Error {
    let name = match magic {
        0x8242_2296_63bf_9564 | 0x4f34_18eb_7a8f_13b8 => "plain table",
        0x9267_89d0_c5f1_7873 => "cuckoo table",
        _ => {
            return Error::corruption("file is no table: bad magic number")
                .with("magic", format!("{magic:#018x}"));
        }
    };
    Error::not_supported("table has another format").with("table", name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(format_version: u32) -> Footer {
        let v6 = format_version >= 6;
        Footer {
            format_version,
            checksum: ChecksumType::Xxh3,
            base_context_checksum: if v6 { 0x1234_5678 } else { 0 },
            metaindex: BlockHandle {
                offset: 70_000,
                size: 195,
            },
            index: (!v6).then_some(BlockHandle {
                offset: 60_000,
                size: 9_995,
            }),
            len: FOOTER_LEN,
        }
    }

    #[test]
    fn footers_round_trip_in_every_format() {
        for version in 1..=FORMAT_VERSION_MAX {
            let footer = sample(version);
            let mut bytes = b"block".to_vec();
            footer.encode(70_200, &mut bytes).unwrap();
            assert_eq!(bytes.len(), 5 + FOOTER_LEN);
            assert_eq!(Footer::decode(&bytes, 70_195).unwrap(), footer);
        }
    }

    #[test]
    fn every_flip_in_a_checked_footer_is_seen() {
        let mut bytes = Vec::new();
        sample(6).encode(70_200, &mut bytes).unwrap();
        for i in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[i / 8] ^= 1 << (i % 8);
            // A flip can turn format 6 into 7 or 4; 4 has no footer checksum but its handles
            // then begin with the extended magic number, which no index can have.
            if let Ok(f) = Footer::decode(&bad, 70_200) {
                assert!(f.format_version < 6, "bit {i}");
                assert_eq!(
                    f.metaindex,
                    BlockHandle {
                        offset: 0x3e,
                        size: 0
                    }
                );
            }
        }
        assert!(
            Footer::decode(&bytes, 70_201).is_err(),
            "the footer knows where it stands"
        );
    }

    #[test]
    fn other_tables_are_refused_by_name() {
        let mut bytes = vec![0; 60];
        for (magic, name) in [
            (0x8242_2296_63bf_9564_u64, "plain"),
            (0x9267_89d0_c5f1_7873, "cuck"),
        ] {
            bytes[52..].copy_from_slice(&magic.to_le_bytes());
            let error = Footer::decode(&bytes, 0).unwrap_err();
            assert_eq!(error.kind(), orogen_base::ErrorKind::NotSupported);
            assert!(error.context("table").unwrap().starts_with(name));
        }
        assert!(Footer::decode(&[1, 2, 3], 0).is_err());
    }
}
