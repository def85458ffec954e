//! Keys in an order, and values that compress to a given part.

use crate::rng::{Rng, split_mix};

/// In which order keys are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyOrder {
    /// 0, 1, 2 and so on, from the start again after the last.
    Sequential,
    /// Each as likely.
    Uniform,
    /// The few hot ones mostly: the rank of a key has the probability of its inverse to the power
    /// of the exponent, 0 to 1 without 1. Hot keys lie scattered.
    Zipfian(f64),
}

/// Draws keys of fixed width from a space of `count`.
#[derive(Clone, Debug)]
pub struct Keys {
    count: u64,
    width: usize,
    order: KeyOrder,
    next: u64,
    zipf: Option<Zipf>,
}

impl Keys {
    /// `count` keys of `width` bytes, drawn in `order`.
    ///
    /// # Panics
    /// If there is no key, if the width is below 8, or the exponent out of range.
    #[must_use]
    pub fn new(count: u64, width: usize, order: KeyOrder) -> Self {
        assert!(count > 0, "no keys");
        assert!(width >= 8, "a key has at least 8 bytes");
        let zipf = match order {
            KeyOrder::Zipfian(exponent) => Some(Zipf::new(count, exponent)),
            KeyOrder::Sequential | KeyOrder::Uniform => None,
        };
        Self {
            count,
            width,
            order,
            next: 0,
            zipf,
        }
    }

    /// The number of the next key.
    pub fn draw(&mut self, rng: &mut Rng) -> u64 {
        match (&self.zipf, self.order) {
            (Some(zipf), _) => {
                let mut rank = zipf.rank(rng.unit());
                split_mix(&mut rank) % self.count
            }
            (None, KeyOrder::Uniform) => rng.below(self.count),
            (None, _) => {
                let number = self.next;
                self.next = (number + 1) % self.count;
                number
            }
        }
    }

    /// Writes the key of a number: big-endian, so that numbers and keys are in one order, then
    /// zeros.
    pub fn write(&self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&number.to_be_bytes());
        key.resize(self.width, b'0');
    }

    /// The next key.
    pub fn draw_key(&mut self, rng: &mut Rng) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.width);
        let number = self.draw(rng);
        self.write(number, &mut key);
        key
    }
}

/// Ranks by Zipf's law, from the sums of Gray et al. (1994), as YCSB draws them.
#[derive(Clone, Debug)]
struct Zipf {
    count: f64,
    exponent: f64,
    alpha: f64,
    eta: f64,
    sum: f64,
}

impl Zipf {
    fn new(count: u64, exponent: f64) -> Self {
        assert!(
            (0.0..1.0).contains(&exponent),
            "exponent out of range: {exponent}"
        );
        let sum_of = |n: u64| zipf_sum(n, exponent);
        let sum = sum_of(count);
        let n = count as f64;
        let eta =
            (1.0 - (2.0 / n).powf(1.0 - exponent)) / (1.0 - sum_of(2.min(count)) / sum).max(1e-9);
        Self {
            count: n,
            exponent,
            alpha: 1.0 / (1.0 - exponent),
            eta,
            sum,
        }
    }

    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.sum;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < 1.0 + 0.5f64.powf(self.exponent) {
            return 1;
        }
        let rank = self.count * (self.eta * unit - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.count as u64 - 1)
    }
}

/// The sum of the inverse powers up to `n`; an integral stands for the far ones.
fn zipf_sum(n: u64, exponent: f64) -> f64 {
    const EXACT: u64 = 10_000;
    let near = n.min(EXACT);
    let sum: f64 = (1..=near).map(|i| (i as f64).powf(-exponent)).sum();
    let power = 1.0 - exponent;
    let far = ((n as f64).powf(power) - (near as f64).powf(power)) / power;
    sum + far
}

/// `len` bytes of which about `percent` of a hundred remain after compression: a random piece,
/// repeated.
///
/// # Panics
/// If `percent` is 0 or above 100.
pub fn compressible(rng: &mut Rng, len: usize, percent: usize) -> Vec<u8> {
    assert!(
        (1..=100).contains(&percent),
        "percent out of range: {percent}"
    );
    let piece = (len * percent).div_ceil(100).max(1);
    let mut value = rng.bytes(piece.min(len));
    while value.len() < len {
        let more = piece.min(len - value.len());
        value.extend_from_within(..more);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_numbers() {
        let mut rng = Rng::new(1);
        let mut keys = Keys::new(1000, 16, KeyOrder::Sequential);
        let drawn: Vec<Vec<u8>> = (0..1001).map(|_| keys.draw_key(&mut rng)).collect();
        assert!(drawn[..1000].is_sorted());
        assert_eq!(drawn[0], drawn[1000]);
        assert!(drawn.iter().all(|k| k.len() == 16));
    }

    #[test]
    fn hot_keys_of_a_zipfian_order_take_most_draws() {
        let mut rng = Rng::new(2);
        let mut counts = std::collections::HashMap::new();
        let mut keys = Keys::new(1_000_000, 8, KeyOrder::Zipfian(0.99));
        for _ in 0..50_000 {
            *counts.entry(keys.draw(&mut rng)).or_insert(0u64) += 1;
        }
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u64 = counts[..100].iter().sum();
        assert!(
            (12_000..25_000).contains(&hot),
            "the 100 hottest keys have {hot} draws"
        );
        assert!(
            counts.len() > 10_000,
            "only {} keys were drawn",
            counts.len()
        );
    }

    #[test]
    fn a_value_repeats_its_random_piece() {
        let value = compressible(&mut Rng::new(3), 1000, 25);
        assert_eq!(value.len(), 1000);
        assert_eq!(value[..250], value[250..500]);
        assert_ne!(value[..100], value[100..200]);
        assert_eq!(compressible(&mut Rng::new(3), 0, 50), []);
    }
}
