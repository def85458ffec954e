//! Keys, values and random numbers as db_bench makes them.
//!
//! A key is the number as 8 bytes, most significant first, then `'0'` up to the key's size; a
//! shorter key has the number's last bytes. A value is a slice of one large buffer in which
//! each piece of 100 bytes is a random part repeated, so that it compresses to the ratio.

/// A fast random number generator; one for each thread.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xd1b5_4a32_d192_ed03)
    }

    /// The next number: a Weyl sequence through a multiplication of 128 bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        let product = u128::from(self.0) * u128::from(self.0 ^ 0xe703_7ed1_a0b4_28db);
        (product >> 64) as u64 ^ product as u64
    }

    /// A number below `n`.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

/// The bytes of a key, made anew for each number in place.
pub(crate) struct Key(Vec<u8>);

impl Key {
    pub(crate) fn new(size: usize) -> Self {
        Self(vec![b'0'; size])
    }

    #[inline]
    pub(crate) fn set(&mut self, number: u64) -> &[u8] {
        let bytes = number.to_be_bytes();
        let n = self.0.len().min(8);
        self.0[..n].copy_from_slice(&bytes[8 - n..]);
        &self.0
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes of a piece that compresses by itself.
const PIECE_LEN: usize = 100;

/// Slices of one buffer of compressible bytes.
pub(crate) struct Values {
    data: Vec<u8>,
    at: usize,
    len: usize,
}

impl Values {
    pub(crate) fn new(rng: &mut Rng, len: usize, compression_ratio: f64) -> Self {
        let total = len.max(1 << 20);
        let raw_len = ((PIECE_LEN as f64 * compression_ratio) as usize).max(1);
        let mut data = Vec::with_capacity(total + PIECE_LEN);
        let mut raw = vec![0; raw_len];
        while data.len() < total {
            // Printable bytes, as db_bench has them.
            raw.fill_with(|| b' ' + rng.below(95) as u8);
            data.extend(raw.iter().cycle().take(PIECE_LEN));
        }
        Self { data, at: 0, len }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> &[u8] {
        if self.at + self.len > self.data.len() {
            self.at = 0;
        }
        let value = &self.data[self.at..self.at + self.len];
        self.at += self.len;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_number_padded_with_zeros() {
        assert_eq!(Key::new(16).set(0x0102), b"\0\0\0\0\0\0\x01\x0200000000");
        assert_eq!(Key::new(4).set(0x0102_0304_0506), b"\x03\x04\x05\x06");
    }

    #[test]
    fn values_have_their_length_and_repeat_within_a_piece() {
        let mut values = Values::new(&mut Rng::new(1), 100, 0.5);
        for _ in 0..20_000 {
            let v = values.next();
            assert_eq!(v.len(), 100);
            assert_eq!(v[..50], v[50..]);
        }
        assert_eq!(
            Values::new(&mut Rng::new(1), 3 << 20, 0.5).next().len(),
            3 << 20
        );
    }

    #[test]
    fn random_numbers_stay_below_and_differ() {
        let mut rng = Rng::new(7);
        let numbers: std::collections::BTreeSet<u64> = (0..1000).map(|_| rng.below(1000)).collect();
        assert!(numbers.iter().all(|n| *n < 1000));
        // 1000 draws of 1000 leave about a third unseen.
        assert!((550..720).contains(&numbers.len()), "{}", numbers.len());
    }
}
