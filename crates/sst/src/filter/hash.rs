//! The hashes of keys in filters.
//!
//! Filters of format 5 use a preview of XXH3 (xxHash 0.7.2) that differs from the final one in
//! all lengths; filters before that use a 32-bit Murmur hash that takes its last bytes as
//! signed. Both are part of the format. `Hot path`: one hash per key added or looked up.
//! Source: RocksDB `util/xxph3.h`, `util/hash.cc`; Collet, xxHash.

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME32_2: u64 = 0x85eb_ca77;
const PRIME32_3: u64 = 0xc2b2_ae3d;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME64_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME64_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME64_5: u64 = 0x27d4_eb2f_1656_67c5;

const STRIPE: usize = 64;
const SECRET_LEN: usize = 192;

/// xxHash's default secret; the words are read at byte offsets, so it is kept as bytes.
const SECRET: [u8; SECRET_LEN] = secret();

const fn secret() -> [u8; SECRET_LEN] {
    const WORDS: [u64; 24] = [
        0xbe4b_a423_396c_feb8,
        0x1cad_21f7_2c81_017c,
        0xdb97_9083_e96d_d4de,
        0x1f67_b3b7_a4a4_4072,
        0x78e5_c0cc_4ee6_79cb,
        0x2172_ffcc_7dd0_5a82,
        0x8e24_43f7_7446_08b8,
        0x4c26_3a81_e690_35e0,
        0xcb00_c391_bb52_283c,
        0xa32e_531b_8b65_d088,
        0x4ef9_0da2_9748_6471,
        0xd8ac_dea9_46ef_1938,
        0x3f34_9ce3_3f76_faa8,
        0x1d4f_0bc7_c7bb_dcf9,
        0x3159_b4cd_4be0_518a,
        0x6473_78d9_c97e_9fc8,
        0xc3eb_d334_83ac_c5ea,
        0xeb63_13fa_ffa0_81c5,
        0x49da_f0b7_51dd_0d17,
        0x9e68_d429_2655_16d3,
        0xfca1_477d_58be_162b,
        0xce31_d07a_d1b8_f88f,
        0x2804_1695_8f3a_cb45,
        0x7e40_4bbb_cafb_d7af,
    ];
    let mut out = [0; SECRET_LEN];
    let mut i = 0;
    while i < SECRET_LEN {
        out[i] = (WORDS[i / 8] >> (8 * (i % 8))) as u8;
        i += 1;
    }
    out
}

#[inline]
fn read32(b: &[u8], at: usize) -> u64 {
    b[at..]
        .first_chunk()
        .map_or(0, |c| u64::from(u32::from_le_bytes(*c)))
}

#[inline]
fn read64(b: &[u8], at: usize) -> u64 {
    b[at..].first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

#[inline]
fn avalanche(mut h: u64) -> u64 {
    h ^= h >> 37;
    h = h.wrapping_mul(PRIME64_3);
    h ^ (h >> 32)
}

#[inline]
fn mix16(data: &[u8], at: usize, secret_at: usize) -> u64 {
    fold(
        read64(data, at) ^ read64(&SECRET, secret_at),
        read64(data, at + 8) ^ read64(&SECRET, secret_at + 8),
    )
}

/// The 64-bit hash of filters of format 5.
#[inline]
pub(crate) fn hash64(key: &[u8]) -> u64 {
    let n = key.len();
    match n {
        0 => fold(read64(&SECRET, 0), PRIME64_2),
        1..=3 => {
            let (a, b, c) = (key[0], key[n >> 1], key[n - 1]);
            let word = u32::from_le_bytes([a, b, c, n as u8]);
            avalanche((u64::from(word) ^ read32(&SECRET, 0)).wrapping_mul(PRIME64_1))
        }
        4..=8 => {
            let word = read32(key, 0) | read32(key, n - 4) << 32;
            let keyed = word ^ read64(&SECRET, 0);
            let mixed = (n as u64).wrapping_add((keyed ^ (keyed >> 51)).wrapping_mul(PRIME32_1));
            avalanche((mixed ^ (mixed >> 47)).wrapping_mul(PRIME64_2))
        }
        9..=16 => {
            let low = read64(key, 0) ^ read64(&SECRET, 0);
            let high = read64(key, n - 8) ^ read64(&SECRET, 8);
            let sum = (n as u64).wrapping_add(low.wrapping_add(high));
            avalanche(sum.wrapping_add(fold(low, high)))
        }
        17..=128 => {
            let mut acc = (n as u64).wrapping_mul(PRIME64_1);
            // From the middle outwards, 16 bytes from each side.
            for i in (0..=(n - 1) / 32).rev() {
                acc = acc.wrapping_add(mix16(key, 16 * i, 32 * i));
                acc = acc.wrapping_add(mix16(key, n - 16 * (i + 1), 32 * i + 16));
            }
            avalanche(acc)
        }
        129..=240 => {
            let mut acc = (n as u64).wrapping_mul(PRIME64_1);
            for i in 0..8 {
                acc = acc.wrapping_add(mix16(key, 16 * i, 16 * i));
            }
            acc = avalanche(acc);
            for i in 8..n / 16 {
                acc = acc.wrapping_add(mix16(key, 16 * i, 16 * (i - 8) + 3));
            }
            avalanche(acc.wrapping_add(mix16(key, n - 16, 136 - 17)))
        }
        _ => hash_long(key),
    }
}

fn accumulate(acc: &mut [u64; 8], data: &[u8], secret_at: usize) {
    for (i, lane) in acc.iter_mut().enumerate() {
        let value = read64(data, 8 * i);
        let keyed = value ^ read64(&SECRET, secret_at + 8 * i);
        let product = (keyed & 0xffff_ffff).wrapping_mul(keyed >> 32);
        *lane = lane.wrapping_add(value).wrapping_add(product);
    }
}

#[cold]
fn hash_long(key: &[u8]) -> u64 {
    const STRIPES_PER_BLOCK: usize = (SECRET_LEN - STRIPE) / 8;
    let mut acc = [
        PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1,
    ];
    for block in key.chunks(STRIPE * STRIPES_PER_BLOCK) {
        for (i, stripe) in block.chunks_exact(STRIPE).enumerate() {
            accumulate(&mut acc, stripe, 8 * i);
        }
        if block.len() == STRIPE * STRIPES_PER_BLOCK {
            for (i, lane) in acc.iter_mut().enumerate() {
                *lane ^= *lane >> 47;
                *lane ^= read64(&SECRET, SECRET_LEN - STRIPE + 8 * i);
                *lane = lane.wrapping_mul(PRIME32_1);
            }
        }
    }
    if !key.len().is_multiple_of(STRIPE) {
        accumulate(
            &mut acc,
            &key[key.len() - STRIPE..],
            SECRET_LEN - STRIPE - 7,
        );
    }
    let mut result = (key.len() as u64).wrapping_mul(PRIME64_1);
    for i in 0..4 {
        let low = acc[2 * i] ^ read64(&SECRET, 11 + 16 * i);
        let high = acc[2 * i + 1] ^ read64(&SECRET, 11 + 16 * i + 8);
        result = result.wrapping_add(fold(low, high));
    }
    avalanche(result)
}

/// The 32-bit hash of filters before format 5.
pub(crate) fn hash32(key: &[u8]) -> u32 {
    const M: u32 = 0xc6a4_a793;
    let mut h = 0xbc9f_1d34 ^ (key.len() as u32).wrapping_mul(M);
    let words = key.chunks_exact(4);
    let rest = words.remainder();
    for w in words {
        h = h
            .wrapping_add(u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
            .wrapping_mul(M);
        h ^= h >> 16;
    }
    if !rest.is_empty() {
        for (i, &b) in rest.iter().enumerate() {
            // The sign of a byte spreads over the whole word, as the first writers had it.
            h = h.wrapping_add((i32::from(b as i8) as u32) << (8 * i));
        }
        h = h.wrapping_mul(M);
        h ^= h >> 24;
    }
    h
}
