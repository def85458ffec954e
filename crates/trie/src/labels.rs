//! Labels of a node's children: bytes in no order, sixteen of which are looked at in one step. `Hot path`.
//!
//! Labels are only added behind the last one, and then the count in the node's head is raised. So
//! the sixteens that are full of counted labels do not change any more; the words behind them are read as atomics,
//! and what is not counted is masked out.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "instructions of the processor")
)]

use crate::view::{Ref, View};

/// Labels in a vector.
const LANES: usize = 16;

/// The labels of one node.
#[derive(Clone, Copy)]
pub(crate) struct Labels<'a> {
    pub(crate) view: View<'a>,
    pub(crate) at: Ref,
    pub(crate) count: usize,
}

impl<'a> Labels<'a> {
    /// The label at `index`.
    #[inline]
    pub(crate) fn get(self, index: usize) -> u8 {
        let word = self.view.load_relaxed(self.at + index as u32 / 4);
        word.to_le_bytes()[index % 4]
    }

    /// Adds one; the count is the caller's.
    #[inline]
    pub(crate) fn append(self, label: u8) {
        let at = self.at + self.count as u32 / 4;
        let shift = self.count % 4 * 8;
        // The bytes behind are nobody's.
        let word = self.view.load_relaxed(at) & ((1u32 << shift) - 1);
        self.view
            .store_relaxed(at, word | u32::from(label) << shift);
    }

    /// Up to sixteen labels from a multiple of that on, the first one in the lowest byte, and how many of them count.
    #[inline(always)]
    fn vector(self, from: usize) -> (u128, usize) {
        let at = self.at + from as u32 / 4;
        let left = self.count - from;
        if left >= LANES {
            let bytes = self.view.bytes(at, 0, LANES);
            let lanes = u128::from_le_bytes(bytes.try_into().expect("sixteen of them"));
            return (lanes, LANES);
        }
        // Behind fewer than sixteen are children, at least as many. Not through memory: a vector that is loaded
        // from words just stored waits for them.
        let word = |i| u64::from(self.view.load_relaxed(at + i));
        let (low, high) = (word(0) | word(1) << 32, word(2) | word(3) << 32);
        (u128::from(low) | u128::from(high) << 64, left)
    }

    /// Where `label` is.
    #[inline(always)]
    pub(crate) fn find(self, label: u8) -> Option<usize> {
        if self.count <= 4 {
            let word = self.view.load_relaxed(self.at) ^ (u32::from(label) * 0x0101_0101);
            // The lowest byte that is zero is told exactly; those behind the last label come after.
            let zeros = word.wrapping_sub(0x0101_0101) & !word & 0x8080_8080;
            let index = zeros.trailing_zeros() as usize / 8;
            return (index < self.count).then_some(index);
        }
        let mut from = 0;
        while from < self.count {
            let (lanes, counted) = self.vector(from);
            let found = equal(lanes, label) & ((1 << counted) - 1);
            if found != 0 {
                return Some(from + found.trailing_zeros() as usize);
            }
            from += LANES;
        }
        None
    }

    /// The smallest label from `low` on, and where it is.
    pub(crate) fn first_from(self, low: u8) -> Option<(u8, usize)> {
        let mut best = u8::MAX;
        for from in (0..self.count).step_by(LANES) {
            let (lanes, counted) = self.vector(from);
            for (i, lane) in lanes.to_le_bytes().into_iter().enumerate() {
                let is_meant = lane >= low && i < counted;
                best = best.min(if is_meant { lane } else { u8::MAX });
            }
        }
        // The largest byte stands for none, too.
        Some((best, self.find(best)?))
    }

    /// The largest label up to `high`, and where it is.
    pub(crate) fn last_to(self, high: u8) -> Option<(u8, usize)> {
        let mut best = 0;
        for from in (0..self.count).step_by(LANES) {
            let (lanes, counted) = self.vector(from);
            for (i, lane) in lanes.to_le_bytes().into_iter().enumerate() {
                let is_meant = lane <= high && i < counted;
                best = best.max(if is_meant { lane } else { 0 });
            }
        }
        Some((best, self.find(best)?))
    }
}

/// A bit for each lane that is `label`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn equal(lanes: u128, label: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

    #[inline]
    #[target_feature(enable = "sse2")]
    fn equal(lanes: u128, label: u8) -> u32 {
        let lanes = _mm_set_epi64x((lanes >> 64) as i64, lanes as i64);
        let wanted = _mm_set1_epi8(label.cast_signed());
        _mm_movemask_epi8(_mm_cmpeq_epi8(lanes, wanted)).cast_unsigned()
    }
    // SAFETY: every processor of this architecture can.
    unsafe { equal(lanes, label) }
}

/// A bit for each lane that is `label`.
#[cfg(not(target_arch = "x86_64"))]
fn equal(lanes: u128, label: u8) -> u32 {
    let same = lanes
        .to_le_bytes()
        .into_iter()
        .map(|lane| u32::from(lane == label));
    same.rev().fold(0, |bits, bit| bits << 1 | bit)
}
