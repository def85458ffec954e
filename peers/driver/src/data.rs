//! Keys, values and random numbers.
//!
//! A key is a number as 8 bytes, most significant first, and eight times `'0'`; a key that was
//! never written ends in `'1'` instead, so it lies between two that were. A value is a slice of
//! one large buffer in which each piece of 100 bytes is 50 random bytes twice.

/// Bytes of a key.
pub const KEY_LEN: usize = 16;
/// A key.
pub type Key = [u8; KEY_LEN];

/// Bytes of a value where no other length is asked for, and of a piece of the buffer.
pub(crate) const VALUE_LEN: usize = 100;
/// Bytes of the buffer behind the values, and a little more.
pub(crate) const POOL_LEN: usize = 1 << 20;

/// The key of a number.
#[inline]
pub(crate) fn key_of(number: u64) -> Key {
    let mut key = [b'0'; KEY_LEN];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// A key that was never written, next to that of a number.
#[inline]
pub(crate) fn missing_key_of(number: u64) -> Key {
    let mut key = key_of(number);
    key[KEY_LEN - 1] = b'1';
    key
}

/// A fast random number generator: a Weyl sequence through a multiplication of 128 bits.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The generator of a phase's thread.
    pub(crate) fn new(seed: u64, thread: u64) -> Self {
        let mixed = (seed * 1000 + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self(mixed ^ 0xd1b5_4a32_d192_ed03)
    }

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

/// A random order of the numbers below `n`, each once: four rounds of a Feistel network over
/// the next power of four, walked on until a number is below `n`.
pub(crate) struct Shuffle {
    n: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Shuffle {
    pub(crate) fn new(n: u64, seed: u64) -> Self {
        let mut rng = Rng::new(seed, 0);
        let bits = (64 - n.saturating_sub(1).leading_zeros()).max(2);
        Self {
            n,
            half_bits: bits.div_ceil(2),
            keys: std::array::from_fn(|_| rng.next()),
        }
    }

    /// The number at a place of the order.
    #[inline]
    pub(crate) fn at(&self, place: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let mut number = place;
        loop {
            let (mut left, mut right) = (number >> self.half_bits, number & mask);
            for key in self.keys {
                let mixed = (right ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                (left, right) = (right, left ^ (mixed >> 32 & mask));
            }
            number = left << self.half_bits | right;
            if number < self.n {
                return number;
            }
        }
    }
}

/// The buffer of which values are slices: so many bytes, rounded up to a piece.
pub(crate) fn value_pool(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(0, 0);
    let mut pool = Vec::with_capacity(len + VALUE_LEN);
    let mut raw = [0; VALUE_LEN / 2];
    while pool.len() < len {
        raw.fill_with(|| b' ' + rng.below(95) as u8);
        pool.extend_from_slice(&raw);
        pool.extend_from_slice(&raw);
    }
    pool
}

/// One value of `len` bytes after another, round and round.
pub(crate) struct Values<'a> {
    pool: &'a [u8],
    len: usize,
    at: usize,
}

impl<'a> Values<'a> {
    pub(crate) fn new(pool: &'a [u8], len: usize) -> Self {
        Self { pool, len, at: 0 }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> &'a [u8] {
        if self.at + self.len > self.pool.len() {
            self.at = 0;
        }
        let value = &self.pool[self.at..self.at + self.len];
        self.at += self.len;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keys_and_values_are_those_of_the_go_driver() {
        // The same figures stand in pebble/data_test.go.
        let mut rng = Rng::new(7, 3);
        let drawn: Vec<u64> = (0..4).map(|_| rng.below(1_000_000)).collect();
        assert_eq!(drawn, DRAWN);
        assert_eq!(&key_of(0x0102), b"\0\0\0\0\0\0\x01\x0200000000");
        assert_eq!(missing_key_of(5)[15], b'1');
        let pool = value_pool(POOL_LEN);
        assert_eq!(pool.len() % VALUE_LEN, 0);
        assert_eq!(&pool[..8], POOL_START);
        assert_eq!(pool[..50], pool[50..100]);
    }

    #[test]
    fn a_shuffle_has_each_number_once_and_in_no_order() {
        for n in [1, 2, 3, 1000, 4096, 4097] {
            let shuffle = Shuffle::new(n, 1);
            let order: Vec<u64> = (0..n).map(|place| shuffle.at(place)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..n).collect::<Vec<_>>());
            // In a random order every second step goes up.
            let rises = order.windows(2).filter(|w| w[0] < w[1]).count() as u64;
            assert!(n < 1000 || (n * 2 / 5..n * 3 / 5).contains(&rises), "{n}");
        }
        assert_ne!(Shuffle::new(1000, 1).at(0), Shuffle::new(1000, 2).at(0));
    }

    #[test]
    fn values_go_round_in_the_buffer() {
        let pool = value_pool(1000);
        let mut values = Values::new(&pool, 300);
        let starts: Vec<usize> = (0..4)
            .map(|_| values.next().as_ptr() as usize - pool.as_ptr() as usize)
            .collect();
        assert_eq!(starts, [0, 300, 600, 0]);
    }

    const DRAWN: [u64; 4] = [323252, 854670, 937498, 248029];
    const POOL_START: &[u8] = b"a+k}D3*s";
}
