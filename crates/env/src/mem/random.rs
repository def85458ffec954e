//! The random numbers of a power cut: from a seed, the same on every machine.

/// Splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub(super) struct Random(u64);

impl Random {
    /// A generator for one thing of many, so that what others draw does not change it.
    pub(super) fn of(seed: u64, thing: u64) -> Self {
        let mut random = Self(seed ^ thing.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(random.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// True in `percent` of 100 cases.
    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let random = self.next().to_le_bytes();
            part.copy_from_slice(&random[..part.len()]);
        }
    }
}
