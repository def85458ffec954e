//! Checksums of single entries while they are in memory: what a caller gave is what a table gets.
//!
//! An entry's checksum is the XOR of a hash for each of its parts. So a part can be added, or taken
//! away again, without reading the others: a batch knows no sequence number, a memtable no family.
//! They never reach a disk. Source: RocksDB `db/kv_checksum.h` (the numbers differ).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Error, Result, SeqNo};

/// Bytes that a checksum takes.
pub const PROTECTION_LEN: usize = 8;

const SEED_KEY: u64 = 0x77a0_0858_dde5_f1d6;
const SEED_VALUE: u64 = 0xb0f1_83b0_04e7_9ad3;
const KIND: u64 = 0x4a2a_b503_2ff1_3f49;
const FAMILY: u64 = 0xd28a_ad72_f49b_d50b;
const SEQNO: u64 = 0x77a0_0858_dde5_f1d7;

/// The checksum of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection(u64);

impl Protection {
    /// Of a key, what is done to it, and its value.
    #[must_use]
    pub fn of(key: &[u8], kind: u8, value: &[u8]) -> Self {
        Self(
            xxh3_64_with_seed(key, SEED_KEY)
                ^ xxh3_64_with_seed(value, SEED_VALUE)
                ^ mix(u64::from(kind), KIND),
        )
    }

    /// With a family; twice is without.
    #[must_use]
    pub fn with_family(self, cf: u32) -> Self {
        Self(self.0 ^ mix(u64::from(cf), FAMILY))
    }

    /// With a sequence number; twice is without.
    #[must_use]
    pub fn with_seqno(self, seqno: SeqNo) -> Self {
        Self(self.0 ^ mix(seqno, SEQNO))
    }

    /// As it is kept in memory.
    #[must_use]
    pub fn to_bytes(self) -> [u8; PROTECTION_LEN] {
        self.0.to_le_bytes()
    }
}

/// Refuses numbers of bytes other than none and [`PROTECTION_LEN`].
///
/// # Errors
/// `InvalidArgument` with the option's name.
pub fn check_bytes_per_key(option: &'static str, bytes: usize) -> Result<()> {
    if bytes == 0 || bytes == PROTECTION_LEN {
        return Ok(());
    }
    Err(
        Error::invalid_argument("protection is 0 or 8 bytes for each key")
            .with("option", option)
            .with("bytes", bytes),
    )
}

/// Murmur3's finisher of 64 bits (Austin Appleby): every bit of the result depends on all bits.
fn mix(n: u64, seed: u64) -> u64 {
    let mut x = n ^ seed;
    x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_border_between_key_and_value_count() {
        let whole = Protection::of(b"key", 1, b"value");
        assert_eq!(whole, Protection::of(b"key", 1, b"value"));
        assert_ne!(whole, Protection::of(b"keyv", 1, b"alue"));
        assert_ne!(whole, Protection::of(b"value", 1, b"key"));
        for bit in 0..8 * 3 {
            let mut key = *b"key";
            key[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(whole, Protection::of(&key, 1, b"value"));
        }
        for bit in 0..8 * 5 {
            let mut value = *b"value";
            value[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(whole, Protection::of(b"key", 1, &value));
        }
        for bit in 0..8 {
            assert_ne!(whole, Protection::of(b"key", 1 ^ (1 << bit), b"value"));
            assert_ne!(whole.with_seqno(7), whole.with_seqno(7 ^ (1 << bit)));
            assert_ne!(whole.with_family(7), whole.with_family(7 ^ (1 << bit)));
        }
        assert_eq!(
            whole.with_seqno(9).with_family(3).with_seqno(9),
            whole.with_family(3)
        );
        assert_ne!(whole.with_seqno(3), whole.with_family(3));
    }

    #[test]
    fn only_eight_bytes_are_taken() {
        assert!(check_bytes_per_key("x", 0).is_ok());
        assert!(check_bytes_per_key("x", 8).is_ok());
        assert!(check_bytes_per_key("x", 4).is_err());
    }
}
