//! Checksums of blocks and records: masked CRC32C, XXH64, XXH3.
//!
//! Block trailers hold the checksum of the block's bytes and its one compression-type byte.
//! Source: RocksDB `table/format.cc` (`ComputeBuiltinChecksum`), `util/crc32c.h` (mask).

mod castagnoli;

use xxhash_rust::xxh3::xxh3_64;
use xxhash_rust::xxh64::xxh64;

const MASK_DELTA: u32 = 0xa282_ead8;

/// CRC32C (Castagnoli) of `data`.
#[inline]
#[must_use]
pub fn crc32c(data: &[u8]) -> u32 {
    castagnoli::extend(0, data)
}

/// CRC32C of what `crc` covers followed by `data`.
#[inline]
#[must_use]
pub fn crc32c_extend(crc: u32, data: &[u8]) -> u32 {
    castagnoli::extend(crc, data)
}

/// Rotates and shifts a CRC so that a CRC of bytes holding CRCs stays strong.
#[inline]
#[must_use]
pub fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(MASK_DELTA)
}

/// The inverse of [`mask`].
#[inline]
#[must_use]
pub fn unmask(masked: u32) -> u32 {
    masked.wrapping_sub(MASK_DELTA).rotate_left(15)
}

/// XXH64 with seed 0.
#[inline]
#[must_use]
pub fn hash_xxh64(data: &[u8]) -> u64 {
    xxh64(data, 0)
}

/// XXH3 in 64 bits with seed 0.
#[inline]
#[must_use]
pub fn hash_xxh3(data: &[u8]) -> u64 {
    xxh3_64(data)
}

/// Which checksum an SST uses; the numbers stand in its footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum ChecksumType {
    /// None: the trailer holds zero.
    None = 0,
    /// Masked CRC32C.
    Crc32c = 1,
    /// Low 32 bits of XXH32.
    XxHash = 2,
    /// Low 32 bits of XXH64.
    XxHash64 = 3,
    /// XXH3 with the last byte mixed in; RocksDB's default since 6.27.
    #[default]
    Xxh3 = 4,
}

impl ChecksumType {
    /// The type with this number.
    #[must_use]
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::None,
            1 => Self::Crc32c,
            2 => Self::XxHash,
            3 => Self::XxHash64,
            4 => Self::Xxh3,
            _ => return None,
        })
    }

    /// The checksum of `data` followed by the byte `last`, as it stands in a block's trailer.
    #[must_use]
    pub fn compute(self, data: &[u8], last: u8) -> u32 {
        match self {
            Self::None => 0,
            Self::Crc32c => mask(crc32c_extend(crc32c(data), &[last])),
            Self::XxHash => {
                let mut h = xxhash_rust::xxh32::Xxh32::new(0);
                h.update(data);
                h.update(&[last]);
                h.digest()
            }
            Self::XxHash64 => {
                let mut h = xxhash_rust::xxh64::Xxh64::new(0);
                h.update(data);
                h.update(&[last]);
                h.digest() as u32
            }
            // RocksDB hashes the block without the type byte and mixes that in, so that the
            // checksum can be computed before the type is known.
            Self::Xxh3 => (xxh3_64(data) as u32) ^ u32::from(last).wrapping_mul(0x6b90_83d9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_standard_vectors() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c_extend(crc32c(b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(unmask(mask(0x1234_5678)), 0x1234_5678);
    }
}
