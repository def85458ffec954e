//! CRC-32C by x86-64's `crc32` instruction and by carry-less multiplication. `Hot path`.
//!
//! | Way | Instructions | For | Bytes a step |
//! |---|---|---|---|
//! | [`ladder`] | SSE 4.2 | less than 128 bytes | 8, each waiting for the one before |
//! | [`narrow`] | and PCLMULQDQ | less than 1 KiB | 4 registers of 16 |
//! | [`wide`] | and AVX-512 with VPCLMULQDQ | all the rest | 4 registers of 64 |
//!
//! Without AVX-512 the crate `crc32c` has the rest: three chains of the instruction keep up with
//! 16-byte registers there, and overtake them where a multiplication takes two cycles.
//!
//! # Folding
//!
//! A message is a polynomial over GF(2), its first bit the highest power; its CRC is what remains
//! of it modulo P. Modulo P, 16 bytes that stand n bits before the end of a register can be put
//! onto that register: their halves times x^(n+64) and x^n modulo P, two carry-less products that
//! are XORed in. So long input is folded onto the register (the four of them) that is to come
//! next, at last onto 16 bytes, and those have the CRC of all. What came before the message, its
//! `state`, is XORed into the first four bytes; bytes of zero before those change nothing.
//!
//! Bits are reflected: the lowest bit of a register is the highest power, so a product of two
//! 64-bit words comes out one bit low, and a 32-bit constant in the low half of a word stands for
//! itself times x^32. Both are made up for in the constants' powers: see [`carried`].
//!
//! Source: Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction", Intel 2009.
#![expect(unsafe_code, reason = "instructions that not every processor has")]

use std::arch::x86_64::{
    __m128i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32,
    _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128,
    _mm_set_epi64x, _mm_setzero_si128, _mm_xor_si128, _mm256_castsi256_si128,
    _mm256_extracti128_si256, _mm256_xor_si256, _mm512_add_epi8, _mm512_castsi512_si256,
    _mm512_clmulepi64_epi128, _mm512_extracti64x4_epi64, _mm512_loadu_si512,
    _mm512_maskz_mov_epi64, _mm512_maskz_permutexvar_epi8, _mm512_set_epi64, _mm512_set1_epi8,
    _mm512_setzero_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// From here on folding is faster than the instruction, also when nobody waits for the result.
const LADDER_LEN: usize = 128;
/// From here on [`narrow`] is not faster than the crate on every processor that has it.
const NARROW_LEN: usize = 1024;
/// From here on it pays that no load of [`wide`] crosses lines of the cache.
const ALIGNED_LEN: usize = 8 << 10;

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const LADDER: u8 = 2;
const NARROW: u8 = 3;
const WIDE: u8 = 4;

/// The best way of this processor. Whoever finds it unknown finds out the same.
static BEST: AtomicU8 = AtomicU8::new(UNKNOWN);

#[cold]
fn find() -> u8 {
    let best = match (has_ladder(), has_narrow(), has_wide()) {
        (_, _, true) => WIDE,
        (_, true, _) => NARROW,
        (true, _, _) => LADDER,
        _ => NONE,
    };
    BEST.store(best, Relaxed);
    best
}

/// True if this processor has all that [`ladder`] is compiled for.
pub(super) fn has_ladder() -> bool {
    is_x86_feature_detected!("sse4.2")
}

/// True if this processor has all that [`narrow`] is compiled for.
pub(super) fn has_narrow() -> bool {
    has_ladder() && is_x86_feature_detected!("pclmulqdq")
}

/// True if this processor has all that [`wide`] is compiled for.
pub(super) fn has_wide() -> bool {
    has_narrow()
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
}

/// CRC-32C of what `crc` covers followed by `data`, or nothing if the crate is the better way.
#[inline]
pub(super) fn extend(crc: u32, data: &[u8]) -> Option<u32> {
    let mut best = BEST.load(Relaxed);
    if best == UNKNOWN {
        best = find();
    }
    let state = if data.len() < LADDER_LEN && best >= LADDER {
        // SAFETY: `find` saw SSE 4.2, or it would have said NONE.
        unsafe { ladder(!crc, data) }
    } else if best == WIDE {
        // SAFETY: `find` saw all that `wide` is compiled for.
        unsafe { wide(!crc, data) }
    } else if data.len() < NARROW_LEN && best == NARROW {
        // SAFETY: `find` saw all that `narrow` is compiled for.
        unsafe { narrow(!crc, data) }
    } else {
        return None;
    };
    Some(!state)
}

/// The state after `data`, eight bytes at a time. Any length.
#[target_feature(enable = "sse4.2")]
pub(super) fn ladder(state: u32, data: &[u8]) -> u32 {
    let (words, rest) = data.as_chunks::<8>();
    let long = words.iter().fold(u64::from(state), |state, word| {
        _mm_crc32_u64(state, u64::from_le_bytes(*word))
    });
    // The instruction leaves the upper half zero.
    let mut state = long as u32;
    let mut rest = rest;
    if let Some((word, after)) = rest.split_first_chunk::<4>() {
        state = _mm_crc32_u32(state, u32::from_le_bytes(*word));
        rest = after;
    }
    if let Some((word, after)) = rest.split_first_chunk::<2>() {
        state = _mm_crc32_u16(state, u16::from_le_bytes(*word));
        rest = after;
    }
    if let [byte] = rest {
        state = _mm_crc32_u8(state, *byte);
    }
    state
}

/// The state after the 16 bytes of a register, which hold the state before.
#[inline]
#[target_feature(enable = "sse4.2")]
fn state_of(folded: __m128i) -> u32 {
    let state = _mm_crc32_u64(0, _mm_cvtsi128_si64(folded).cast_unsigned());
    _mm_crc32_u64(state, _mm_extract_epi64::<1>(folded).cast_unsigned()) as u32
}

/// The state after `data`, by four registers of 16 bytes. Any length.
#[target_feature(enable = "pclmulqdq,sse4.2")]
pub(super) fn narrow(state: u32, data: &[u8]) -> u32 {
    let (head, body) = data.split_at(data.len() % 64);
    let state = ladder(state, head);
    let (blocks, _) = body.as_chunks::<16>();
    let (groups, _) = blocks.as_chunks::<4>();
    let Some(([first, second, third, fourth], groups)) = groups.split_first() else {
        return state;
    };
    let mut a = _mm_xor_si128(load_16(first), _mm_cvtsi32_si128(state.cast_signed()));
    let mut b = load_16(second);
    let mut c = load_16(third);
    let mut d = load_16(fourth);
    let next = lane::<64>();
    for [first, second, third, fourth] in groups {
        a = fold_16(a, next, load_16(first));
        b = fold_16(b, next, load_16(second));
        c = fold_16(c, next, load_16(third));
        d = fold_16(d, next, load_16(fourth));
    }
    let cd = fold_16(c, lane::<16>(), d);
    let bd = fold_16(b, lane::<32>(), _mm_setzero_si128());
    let ad = fold_16(a, lane::<48>(), cd);
    state_of(_mm_xor_si128(ad, bd))
}

/// The state after `data`, by four registers of 64 bytes. Any length.
///
/// Blocks of 64 bytes end where `data` ends. What stands before the first of them is taken as a
/// block that begins with zeros, so that nothing is left for smaller steps.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,sse4.2")]
pub(super) fn wide(state: u32, data: &[u8]) -> u32 {
    if data.len() >= ALIGNED_LEN && !data.as_ptr_range().end.addr().is_multiple_of(64) {
        return wide_aligned(state, data);
    }
    let (head, body) = data.split_at(data.len() % 64);
    let (blocks, _) = body.as_chunks::<64>();
    let (Some((second, rest)), Some(start)) = (blocks.split_first(), data.first_chunk::<64>())
    else {
        return ladder(state, data);
    };

    // The first bytes as a block's last ones. What of the state is longer than they are goes to
    // the next block.
    let short = state_in_front(state, load_64(start));
    let index = _mm512_add_epi8(load_64(&COUNT), _mm512_set1_epi8(head.len() as i8 - 64));
    let short = _mm512_maskz_permutexvar_epi8(!(u64::MAX >> head.len()), index, short);
    let remaining = (u64::from(state) >> (8 * head.len().min(4))) as u32;
    let second = state_in_front(remaining, load_64(second));

    let zero = _mm512_setzero_si512();
    let (lead, groups) = rest.split_at(rest.len() % 4);
    let (mut a, mut b, mut c, mut d) = match lead {
        [] => (zero, zero, short, second),
        [third] => (zero, short, second, load_64(third)),
        [third, fourth] => (short, second, load_64(third), load_64(fourth)),
        [third, fourth, fifth, ..] => {
            let second = fold_64(short, lanes::<64, 64, 64, 64>(), second);
            (second, load_64(third), load_64(fourth), load_64(fifth))
        }
    };
    let next = lanes::<256, 256, 256, 256>();
    for [first, second, third, fourth] in groups.as_chunks::<4>().0 {
        a = fold_64(a, next, load_64(first));
        b = fold_64(b, next, load_64(second));
        c = fold_64(c, next, load_64(third));
        d = fold_64(d, next, load_64(fourth));
    }
    // All sixteen lanes at once onto the last, which stays.
    let last = _mm512_maskz_mov_epi64(0b1100_0000, d);
    let ad = fold_64(a, lanes::<240, 224, 208, 192>(), last);
    let bd = fold_64(b, lanes::<176, 160, 144, 128>(), zero);
    let cd = fold_64(c, lanes::<112, 96, 80, 64>(), ad);
    let dd = fold_64(d, lanes::<48, 32, 16, 0>(), bd);
    let sum = _mm512_xor_si512(cd, dd);
    let sum = _mm256_xor_si256(
        _mm512_castsi512_si256(sum),
        _mm512_extracti64x4_epi64::<1>(sum),
    );
    let sum = _mm_xor_si128(
        _mm256_castsi256_si128(sum),
        _mm256_extracti128_si256::<1>(sum),
    );
    state_of(sum)
}

/// The same, but for the bytes after the last whole line of the cache.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,vpclmulqdq,pclmulqdq,sse4.2")]
fn wide_aligned(state: u32, data: &[u8]) -> u32 {
    let past = data.as_ptr_range().end.addr() % 64;
    let (data, tail) = data.split_at(data.len() - past);
    ladder(wide(state, data), tail)
}

/// 0, 1, 2, ...: the bytes of a register where they are.
static COUNT: [u8; 64] = {
    let mut count = [0; 64];
    let mut i = 0;
    while i < 64 {
        count[i] = i as u8;
        i += 1;
    }
    count
};

#[inline]
#[target_feature(enable = "avx512f")]
fn state_in_front(state: u32, block: __m512i) -> __m512i {
    let state = _mm_cvtsi32_si128(state.cast_signed());
    _mm512_xor_si512(block, _mm512_zextsi128_si512(state))
}

#[inline]
#[target_feature(enable = "sse2")]
fn load_16(block: &[u8; 16]) -> __m128i {
    // SAFETY: the reference is to 16 bytes; the instruction asks for no alignment.
    unsafe { _mm_loadu_si128(block.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_64(block: &[u8; 64]) -> __m512i {
    // SAFETY: the reference is to 64 bytes; the instruction asks for no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

/// Carries `from` onto `to`, as far as the constant says.
#[inline]
#[target_feature(enable = "pclmulqdq")]
fn fold_16(from: __m128i, far: __m128i, to: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(from, far);
    let high = _mm_clmulepi64_si128::<0x11>(from, far);
    _mm_xor_si128(_mm_xor_si128(low, high), to)
}

/// Carries the four lanes of `from` onto those of `to`, as far as the constants say.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold_64(from: __m512i, far: __m512i, to: __m512i) -> __m512i {
    const XOR_OF_THREE: i32 = 0x96;
    let low = _mm512_clmulepi64_epi128::<0x00>(from, far);
    let high = _mm512_clmulepi64_epi128::<0x11>(from, far);
    _mm512_ternarylogic_epi64::<XOR_OF_THREE>(low, high, to)
}

/// What carries 16 bytes onto those that stand `BYTES` further.
#[inline]
#[target_feature(enable = "sse2")]
fn lane<const BYTES: u32>() -> __m128i {
    let [low, high] = const { carried(BYTES) };
    _mm_set_epi64x(high, low)
}

/// The same for the four lanes of 64 bytes, each as far as it says.
#[inline]
#[target_feature(enable = "avx512f")]
fn lanes<const A: u32, const B: u32, const C: u32, const D: u32>() -> __m512i {
    let [[a, e], [b, f], [c, g], [d, h]] =
        const { [carried(A), carried(B), carried(C), carried(D)] };
    _mm512_set_epi64(h, d, g, c, f, b, e, a)
}

/// What the halves of 16 bytes are multiplied with to be carried onto those `bytes` further:
/// x^(n+64) and x^n modulo P with n bits, each over x^33 for where product and constant stand.
/// Zero for no distance: what is already there is not multiplied.
const fn carried(bytes: u32) -> [i64; 2] {
    if bytes == 0 {
        return [0, 0];
    }
    [
        power_of_x(8 * bytes + 64 - 33) as i64,
        power_of_x(8 * bytes - 33) as i64,
    ]
}

/// x^n modulo P, reflected: the highest bit is x^0.
const fn power_of_x(n: u32) -> u32 {
    const P: u32 = 0x82f6_3b78;
    let mut power = 1 << 31;
    let mut i = 0;
    while i < n {
        power = (power >> 1) ^ (P * (power & 1));
        i += 1;
    }
    power
}
