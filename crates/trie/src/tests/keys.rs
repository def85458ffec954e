//! Keys of many shapes, from a seed.

/// Marsaglia's xorshift.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// How keys are drawn.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Sixteen random bytes.
    Random,
    /// A long common beginning, and numbers.
    Prefixed,
    /// Numbers in rising order.
    Rising,
    /// Up to 2,000 equal bytes with a few others among them.
    Long,
    /// Up to six of the bytes 0, 1, 254 and 255: many end where others go on.
    Nested,
    /// One or two random bytes: nodes of all sizes.
    Dense,
    /// A long path to a node that gets many children.
    DeepDense,
}

pub(super) const SHAPES: [Shape; 7] = [
    Shape::Random,
    Shape::Prefixed,
    Shape::Rising,
    Shape::Long,
    Shape::Nested,
    Shape::Dense,
    Shape::DeepDense,
];

impl Shape {
    pub(super) fn draw(self, random: &mut Random, i: usize) -> Vec<u8> {
        match self {
            Self::Random => random.bytes(16),
            Self::Prefixed => {
                let table = random.below(4);
                format!("family/table-{table}/row:{:06}", random.below(5000)).into_bytes()
            }
            Self::Rising => (i as u64).to_be_bytes().to_vec(),
            Self::Long => {
                let len = random.below(2000);
                let mut key = vec![b'a'; len];
                for _ in 0..random.below(3) {
                    if len > 0 {
                        let at = random.below(len);
                        key[at] = random.next() as u8;
                    }
                }
                key
            }
            Self::Nested => {
                let len = random.below(7);
                (0..len)
                    .map(|_| [0, 1, 254, 255][random.below(4)])
                    .collect()
            }
            Self::Dense => {
                let len = 1 + random.below(2);
                random.bytes(len)
            }
            Self::DeepDense => {
                let mut key = vec![b'p'; [10, 20, 300, 600][random.below(4)]];
                let len = random.below(3);
                key.extend(random.bytes(len));
                key
            }
        }
    }
}
