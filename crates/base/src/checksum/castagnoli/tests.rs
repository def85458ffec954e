//! Every way gives what the crate gives, and that what the polynomial says.

use orogen_testkit::Rng;

use super::extend;

type Way = (&'static str, fn(u32, &[u8]) -> u32);

/// All ways that this processor has, by name, and the choice among them.
fn ways() -> Vec<Way> {
    let mut ways = by_name();
    ways.push(("chosen", extend));
    ways
}

#[cfg(not(target_arch = "x86_64"))]
fn by_name() -> Vec<Way> {
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that not every processor has")]
fn by_name() -> Vec<Way> {
    use super::x86_64::{has_ladder, has_narrow, has_wide, ladder, narrow, wide};

    let mut ways: Vec<Way> = Vec::new();
    if has_ladder() {
        // SAFETY: the processor has what the function is compiled for.
        ways.push(("ladder", |crc, data| unsafe { !ladder(!crc, data) }));
    }
    if has_narrow() {
        // SAFETY: the processor has what the function is compiled for.
        ways.push(("narrow", |crc, data| unsafe { !narrow(!crc, data) }));
    }
    if has_wide() {
        // SAFETY: the processor has what the function is compiled for.
        ways.push(("wide", |crc, data| unsafe { !wide(!crc, data) }));
    }
    ways
}

/// Bytes that can be had at any distance from an address that divides by 64.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

impl Aligned {
    fn new(seed: u64, len: usize) -> Self {
        let bytes = Rng::new(seed).bytes(len + 128);
        let start = bytes.as_ptr().align_offset(64);
        Self { bytes, start }
    }

    fn at(&self, offset: usize, len: usize) -> &[u8] {
        &self.bytes[self.start + offset..][..len]
    }
}

fn bit_by_bit(crc: u32, data: &[u8]) -> u32 {
    let mut state = !crc;
    for byte in data {
        state ^= u32::from(*byte);
        for _ in 0..8 {
            let carry = state & 1;
            state >>= 1;
            if carry == 1 {
                state ^= 0x82f6_3b78;
            }
        }
    }
    !state
}

/// From RFC 3720, appendix B.4, which has them in the order of bytes on the wire.
#[test]
fn published_sums() {
    let up: Vec<u8> = (0..32).collect();
    let down: Vec<u8> = (0..32).rev().collect();
    for (name, way) in ways() {
        assert_eq!(way(0, &[]), 0, "{name}");
        assert_eq!(way(0, &[0; 32]), 0x8a91_36aa, "{name}");
        assert_eq!(way(0, &[0xff; 32]), 0x62a8_ab43, "{name}");
        assert_eq!(way(0, &up), 0x46dd_794e, "{name}");
        assert_eq!(way(0, &down), 0x113f_db5c, "{name}");
        assert_eq!(way(0, b"123456789"), 0xe306_9283, "{name}");
    }
}

#[test]
fn all_agree_with_the_polynomial_bit_by_bit() {
    let data = Aligned::new(1, 1200);
    for (name, way) in ways() {
        for len in 0..1200 {
            let crc = (len as u32).wrapping_mul(0x9e37_79b9);
            let data = data.at(len % 64, len);
            assert_eq!(way(crc, data), bit_by_bit(crc, data), "{name}, {len} bytes");
        }
    }
}

#[test]
fn every_length_at_every_alignment() {
    let data = Aligned::new(2, 2048);
    for (name, way) in ways() {
        for len in 0..=2048 {
            for offset in 0..64 {
                let crc = (len * 64 + offset) as u32;
                let data = data.at(offset, len);
                let wanted = crc32c::crc32c_append(crc, data);
                assert_eq!(way(crc, data), wanted, "{name}, {len} bytes at {offset}");
            }
        }
    }
}

#[test]
fn long_data_at_every_alignment() {
    let data = Aligned::new(3, 64 << 10);
    let lens = [
        4096,
        4096 + 5,
        (8 << 10) - 1,
        8 << 10,
        (8 << 10) + 63,
        16_397,
        64 << 10,
    ];
    for (name, way) in ways() {
        for len in lens {
            for offset in 0..64 {
                let data = data.at(offset, len);
                let wanted = crc32c::crc32c(data);
                assert_eq!(way(0, data), wanted, "{name}, {len} bytes at {offset}");
            }
        }
    }
}

/// A state from before must come in whole, also where less than its four bytes stand before the
/// first whole block.
#[test]
fn every_bit_of_the_state_before_counts() {
    let data = Aligned::new(4, 512);
    for (name, way) in ways() {
        for len in 0..=260 {
            for bit in 0..32 {
                let crc = 1 << bit;
                let data = data.at(1, len);
                let wanted = crc32c::crc32c_append(crc, data);
                assert_eq!(way(crc, data), wanted, "{name}, {len} bytes, bit {bit}");
            }
        }
    }
}

#[test]
fn parts_make_the_whole() {
    let seed = Rng::seed_or(5);
    let mut rng = Rng::new(seed);
    let data = Aligned::new(seed, 40_000);
    let ways = ways();
    for round in 0..2000 {
        let len = rng.below(if round % 10 == 0 { 40_000 } else { 2000 }) as usize;
        let mut rest = data.at(0, len);
        let wanted = crc32c::crc32c(rest);
        let mut crc = 0;
        while !rest.is_empty() {
            let bound = [8, 200, 3000, 20_000][rng.below(4) as usize];
            let (part, after) = rest.split_at((rng.below(bound) as usize).min(rest.len()));
            // Each part by any of the ways: they hand on one another's states.
            let (_, way) = ways[rng.below(ways.len() as u64) as usize];
            crc = way(crc, part);
            rest = after;
        }
        assert_eq!(
            crc, wanted,
            "OROGEN_SEED={seed}, round {round}, {len} bytes"
        );
    }
}

#[test]
fn megabytes() {
    let data = Aligned::new(6, (5 << 20) + 3);
    for (name, way) in ways() {
        for (offset, len) in [(0, 1 << 20), (17, (5 << 20) + 3)] {
            let data = data.at(offset, len);
            assert_eq!(
                way(7, data),
                crc32c::crc32c_append(7, data),
                "{name}, {len} bytes"
            );
        }
    }
}
