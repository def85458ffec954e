//! Filters: "this table surely does not have the key", from a few bits per key.
//!
//! ```text
//! format 5 Bloom     64-byte cache lines | ff | 00 | probes in bits 0-4 (1) | 00 00
//! older Bloom        cache lines | probes (1, below 128) | fixed32 number of lines
//! Ribbon             segments | fe | seed (1) | 3 bytes: number of blocks
//! others             anything | marker (1, 80 to fd) | 4 bytes: read as "may be there"
//! ```
//! A partitioned filter is an index block whose entries lead to filters of key ranges. A filter
//! is written under `fullfilter.<policy>` in the meta index, with RocksDB's policy name for all
//! built-in filters. Invariants: (1) a filter never denies a key that was added; (2) a filter
//! that is not understood denies nothing. `Hot path`.
//! Source: RocksDB `util/bloom_impl.h`, `table/block_based/filter_policy.cc`.

mod hash;
mod ribbon;

use orogen_base::coding::get_fixed32;
use orogen_base::{Result, memory};

use hash::hash32;
pub(crate) use hash::hash64;
use ribbon::Ribbon;

use crate::prefetch::prefetch;

/// The name under which all of RocksDB's built-in filters are found.
pub(crate) const POLICY_NAME: &str = "rocksdb.BuiltinBloomFilter";
/// Before the policy's name: one filter for the table.
pub(crate) const FULL_PREFIX: &str = "fullfilter.";
/// Before the policy's name: an index of filters.
pub(crate) const PARTITIONED_PREFIX: &str = "partitionedfilter.";

/// What memory is asked for.
const FILTER: &str = "filter";

const METADATA_LEN: usize = 5;
const LINE_LEN: usize = 64;
const LEGACY_LINE_LEN_MAX: u32 = 1 << 16;
/// Largest filter without metadata: 32 bits of length, in whole lines.
const LEN_MAX: u64 = 0xffff_ffc0;

/// Collects hashes of keys and makes the filter of a table.
pub(crate) struct FilterBuilder {
    hashes: Vec<u64>,
    last_prefix: Option<u64>,
    millibits_per_key: u64,
    legacy: bool,
}

impl FilterBuilder {
    /// A builder for tables of `format_version`.
    pub(crate) fn new(bits_per_key: f64, format_version: u32) -> Self {
        let bits = bits_per_key.clamp(1.0, 100.0);
        Self {
            hashes: Vec::new(),
            last_prefix: None,
            millibits_per_key: (bits * 1000.0 + 0.500_001) as u64,
            legacy: format_version < 5,
        }
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        if self.legacy {
            u64::from(hash32(key))
        } else {
            hash64(key)
        }
    }

    /// Adds a key; keys come in order, so a key that comes again is the one before.
    #[inline]
    pub(crate) fn add_key(&mut self, key: &[u8]) -> Result<()> {
        let h = self.hash(key);
        if self.hashes.last() == Some(&h) {
            return Ok(());
        }
        memory::push(&mut self.hashes, h, FILTER)
    }

    /// Adds a prefix; once for all its keys.
    #[inline]
    pub(crate) fn add_prefix(&mut self, prefix: &[u8]) -> Result<()> {
        let h = self.hash(prefix);
        if self.last_prefix == Some(h) {
            return Ok(());
        }
        self.last_prefix = Some(h);
        memory::push(&mut self.hashes, h, FILTER)
    }

    pub(crate) fn entries(&self) -> u64 {
        self.hashes.len() as u64
    }

    /// The entries of a filter of `bytes`, about; at least one.
    pub(crate) fn entries_for(&self, bytes: usize) -> u64 {
        let bits = bytes.saturating_sub(METADATA_LEN) as u64 * 8;
        (bits * 1000 / self.millibits_per_key).max(1)
    }

    /// Starts over.
    pub(crate) fn clear(&mut self) {
        self.hashes.clear();
        self.last_prefix = None;
    }

    /// Bytes of memory held.
    pub(crate) fn memory_usage(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
    }

    /// Bytes of the finished filter.
    pub(crate) fn size(&self) -> usize {
        if self.hashes.is_empty() {
            return 0;
        }
        self.filter_len() as usize + METADATA_LEN
    }

    fn filter_len(&self) -> u64 {
        let n = self.hashes.len() as u64;
        if self.legacy {
            let bits = (n * self.whole_bits()).max(64);
            // An odd number of lines: the line is the hash modulo their number.
            let lines = bits.div_ceil(512) | 1;
            return (lines * LINE_LEN as u64).min(LEN_MAX | LINE_LEN as u64);
        }
        let target = (n * self.millibits_per_key).div_ceil(8000).min(LEN_MAX);
        target.next_multiple_of(LINE_LEN as u64)
    }

    fn whole_bits(&self) -> u64 {
        (self.millibits_per_key + 500) / 1000
    }

    /// The filter block; empty if no key was added.
    pub(crate) fn finish(&self) -> Result<Vec<u8>> {
        if self.hashes.is_empty() {
            return Ok(Vec::new());
        }
        let len = self.filter_len() as usize;
        let mut out = memory::zeroed(len + METADATA_LEN, FILTER)?;
        if self.legacy {
            let probes = ((self.whole_bits() as f64 * 0.69) as u8).clamp(1, 30);
            let lines = (len / LINE_LEN) as u32;
            for &h in &self.hashes {
                legacy_add(h as u32, lines, probes, &mut out);
            }
            out[len] = probes;
            out[len + 1..].copy_from_slice(&lines.to_le_bytes());
            return Ok(out);
        }
        let probes = num_probes(self.millibits_per_key);
        for &h in &self.hashes {
            let at = line_of(h as u32, len as u32);
            let line = &mut out[at..at + LINE_LEN];
            let mut x = (h >> 32) as u32;
            for _ in 0..probes {
                let bit = (x >> 23) as usize;
                line[bit >> 3] |= 1 << (bit & 7);
                x = x.wrapping_mul(0x9e37_79b9);
            }
        }
        out[len] = 0xff;
        out[len + 1] = 0;
        out[len + 2] = probes;
        Ok(out)
    }
}

/// The probes that give the fewest false positives with lines of 512 bits, as measured by
/// RocksDB's authors.
fn num_probes(millibits_per_key: u64) -> u8 {
    const UP_TO: [u64; 12] = [
        2080, 3580, 5100, 6640, 8300, 10_070, 11_720, 14_001, 16_050, 18_300, 22_001, 25_501,
    ];
    if let Some(i) = UP_TO.iter().position(|&m| millibits_per_key <= m) {
        return i as u8 + 1;
    }
    if millibits_per_key > 50_000 {
        24
    } else {
        ((millibits_per_key - 1) / 2000 - 1) as u8
    }
}

#[inline]
fn line_of(h: u32, len: u32) -> usize {
    let lines = u64::from(len >> 6);
    ((u64::from(h) * lines) >> 32) as usize * LINE_LEN
}

fn legacy_add(mut h: u32, lines: u32, probes: u8, bits: &mut [u8]) {
    let at = (h % lines) as usize * LINE_LEN;
    let delta = h.rotate_right(17);
    for _ in 0..probes {
        let bit = (h % 512) as usize;
        bits[at + bit / 8] |= 1 << (bit % 8);
        h = h.wrapping_add(delta);
    }
}

/// How a filter block is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterKind {
    /// Lines of 64 bytes, probed with a 64-bit hash.
    FastLocalBloom { probes: u8, len: u32 },
    /// Lines of `1 << log2_line` bytes, probed with a 32-bit hash.
    LegacyBloom {
        probes: u8,
        lines: u32,
        log2_line: u32,
    },
    /// The solution of a linear system.
    Ribbon(Ribbon),
    /// No key was added.
    AlwaysFalse,
    /// Not understood: denies nothing.
    AlwaysTrue,
}

impl FilterKind {
    /// Reads a filter's metadata.
    pub(crate) fn of(filter: &[u8]) -> Self {
        let Some(len) = filter.len().checked_sub(METADATA_LEN).filter(|&n| n > 0) else {
            return Self::AlwaysFalse;
        };
        let Ok(len32) = u32::try_from(len) else {
            return Self::AlwaysTrue;
        };
        let meta = &filter[len..];
        match meta[0] {
            0xff => {
                let probes = meta[2] & 31;
                let understood = meta[1] == 0
                    && meta[2] >> 5 == 0
                    && (1..=30).contains(&probes)
                    && meta[3..] == [0, 0]
                    && len >= LINE_LEN;
                if understood {
                    Self::FastLocalBloom { probes, len: len32 }
                } else {
                    Self::AlwaysTrue
                }
            }
            0xfe => match meta.first_chunk().and_then(|meta| Ribbon::of(len, meta)) {
                Some(ribbon) => Self::Ribbon(ribbon),
                None => Self::AlwaysTrue,
            },
            probes @ 1..=127 => {
                let lines = get_fixed32(&meta[1..]).unwrap_or(0);
                if lines == 0 || !len32.is_multiple_of(lines) {
                    return Self::AlwaysTrue;
                }
                let line = len32 / lines;
                // No machine has longer lines; without a bound the bit numbers would overflow.
                if !line.is_power_of_two() || line > LEGACY_LINE_LEN_MAX {
                    return Self::AlwaysTrue;
                }
                Self::LegacyBloom {
                    probes,
                    lines,
                    log2_line: line.ilog2(),
                }
            }
            _ => Self::AlwaysTrue,
        }
    }

    /// Asks the processor for what `may_match` will look at first, for a key of this hash.
    #[inline]
    pub(crate) fn prefetch(self, filter: &[u8], hash: u64) {
        if let Self::FastLocalBloom { len, .. } = self {
            prefetch(filter, line_of(hash as u32, len));
        }
    }

    /// False if `key`, whose [`hash64`] is `hash`, was surely not added to `filter`.
    #[inline]
    pub(crate) fn may_match(self, filter: &[u8], key: &[u8], hash: u64) -> bool {
        match self {
            Self::FastLocalBloom { probes, len } => {
                let at = line_of(hash as u32, len);
                let Some(line) = filter.get(at..).and_then(|f| f.first_chunk::<LINE_LEN>()) else {
                    return true;
                };
                let mut x = (hash >> 32) as u32;
                // To go on after a zero costs less than a branch that is guessed wrong.
                let mut all = 1;
                for _ in 0..probes {
                    let bit = (x >> 23) as usize;
                    all &= line[bit >> 3] >> (bit & 7);
                    x = x.wrapping_mul(0x9e37_79b9);
                }
                all != 0
            }
            Self::LegacyBloom {
                probes,
                lines,
                log2_line,
            } => {
                let mut h = hash32(key);
                let at = ((h % lines) as usize) << log2_line;
                let mask = (1u32 << (log2_line + 3)).wrapping_sub(1);
                let delta = h.rotate_right(17);
                for _ in 0..probes {
                    let bit = (h & mask) as usize;
                    if filter
                        .get(at + bit / 8)
                        .is_some_and(|b| b & (1 << (bit % 8)) == 0)
                    {
                        return false;
                    }
                    h = h.wrapping_add(delta);
                }
                true
            }
            Self::Ribbon(ribbon) => ribbon.may_match(filter, hash),
            Self::AlwaysFalse => false,
            Self::AlwaysTrue => true,
        }
    }
}

#[cfg(test)]
mod tests;
