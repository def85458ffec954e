//! Reads Ribbon filters: the solution of a banded linear system over bits.
//!
//! A key's hash gives a start slot, 128 coefficients from there on, and the bits that they must
//! add up to, one per column. The solution's columns are interleaved in segments of 128 bits:
//! for each block of 128 slots one segment per column. Blocks from `upper_start` on have one
//! column more than those before. Source: RocksDB `util/ribbon_impl.h`, `util/ribbon_alg.h`;
//! Dillinger, Walzer, "Ribbon filter: practically smaller than Bloom and Xor", 2021.

const BLOCK_SLOTS: u32 = 128;
const SEGMENT_LEN: usize = 16;
const COLUMNS_MAX: u32 = 32;

/// The shape of a Ribbon filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ribbon {
    seed: u32,
    blocks: u32,
    columns: u32,
    upper_start: u32,
}

impl Ribbon {
    /// The shape that the last five bytes tell; nothing if there is none such.
    pub(super) fn of(len: usize, meta: &[u8; 5]) -> Option<Self> {
        let blocks = u32::from_le_bytes([meta[2], meta[3], meta[4], 0]);
        let segments = u32::try_from(len / SEGMENT_LEN).ok()?;
        if blocks < 2 {
            return None;
        }
        let mut columns = segments.div_ceil(blocks);
        // No overflow: fewer than 2^24 blocks, and at most one column more than fits `len`.
        let mut upper_start = (u64::from(columns) * u64::from(blocks) - u64::from(segments)) as u32;
        if columns > COLUMNS_MAX {
            (columns, upper_start) = (COLUMNS_MAX, 0);
        }
        let mut seed = u64::from(meta[1]).wrapping_mul(0xc782_19a2_3eea_dd03);
        seed ^= (seed & 0xf0f0_f0f0_f0f0_f0f0) >> 4;
        Some(Self {
            seed: seed as u32,
            blocks,
            columns,
            upper_start,
        })
    }

    /// False if a key of this hash was surely not added to `filter`.
    pub(super) fn may_match(self, filter: &[u8], hash: u64) -> bool {
        let h = (hash ^ u64::from(self.seed)).wrapping_mul(0x6193_d459_236a_3a0d);
        let starts = u128::from(self.blocks * BLOCK_SLOTS - BLOCK_SLOTS + 1);
        let start = ((starts * u128::from(h)) >> 64) as u32;
        let (block, bit) = (start / BLOCK_SLOTS, start % BLOCK_SLOTS);
        let columns = self.columns - u32::from(block < self.upper_start);
        let first = block * self.columns - block.min(self.upper_start);

        let mixed = h.wrapping_mul(0xc28f_8282_2b65_0bed);
        let low = mixed ^ 0xc367_844a_6e52_731d;
        let coefficients = (u128::from(mixed) << 64 | u128::from(low)) | 1;
        let expected = mixed.swap_bytes() as u32;
        for i in 0..columns {
            let Some(mut sum) = segment(filter, first + i) else {
                return true;
            };
            sum &= coefficients << bit;
            if bit > 0 {
                let Some(right) = segment(filter, first + columns + i) else {
                    return true;
                };
                sum ^= right & (coefficients >> (BLOCK_SLOTS - bit));
            }
            if sum.count_ones() & 1 != (expected >> i) & 1 {
                return false;
            }
        }
        true
    }
}

fn segment(filter: &[u8], i: u32) -> Option<u128> {
    filter
        .get(i as usize * SEGMENT_LEN..)?
        .first_chunk()
        .map(|b| u128::from_le_bytes(*b))
}
