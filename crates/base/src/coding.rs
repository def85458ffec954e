//! Integers and strings as bytes: LEB128 varints and little-endian fixed widths.
//!
//! Readers never panic: a short or overlong input is a `Corruption`. Source: LevelDB's
//! `util/coding.h`, kept by RocksDB in every file format.

use crate::error::{Error, Result};

/// Bytes of the longest 32-bit varint.
pub const VARINT32_LEN_MAX: usize = 5;
/// Bytes of the longest 64-bit varint.
pub const VARINT64_LEN_MAX: usize = 10;

/// Appends `v` as four little-endian bytes.
#[inline]
pub fn put_fixed32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_le_bytes());
}

/// Appends `v` as eight little-endian bytes.
#[inline]
pub fn put_fixed64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

/// Appends `v` as a varint of 1 to 5 bytes.
#[inline]
pub fn put_varint32(out: &mut Vec<u8>, v: u32) {
    put_varint64(out, u64::from(v));
}

/// Appends `v` as a varint of 1 to 10 bytes.
#[inline]
pub fn put_varint64(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push((v as u8) | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Appends `v` zigzag-coded as a varint.
#[inline]
pub fn put_varsigned64(out: &mut Vec<u8>, v: i64) {
    put_varint64(out, ((v << 1) ^ (v >> 63)) as u64);
}

/// Appends the length as a varint, then the bytes.
///
/// # Panics
/// If `s` is longer than a 32-bit length can say.
#[inline]
pub fn put_length_prefixed(out: &mut Vec<u8>, s: &[u8]) {
    assert!(
        u32::try_from(s.len()).is_ok(),
        "length-prefixed string longer than 4 GiB"
    );
    put_varint64(out, s.len() as u64);
    out.extend_from_slice(s);
}

/// Bytes that `v` takes as a varint.
#[inline]
#[must_use]
pub fn varint_len(v: u64) -> usize {
    (64 - (v | 1).leading_zeros() as usize).div_ceil(7)
}

/// The first four bytes as a little-endian number.
#[inline]
#[must_use]
pub fn get_fixed32(s: &[u8]) -> Option<u32> {
    s.first_chunk().map(|b| u32::from_le_bytes(*b))
}

/// The first eight bytes as a little-endian number.
#[inline]
#[must_use]
pub fn get_fixed64(s: &[u8]) -> Option<u64> {
    s.first_chunk().map(|b| u64::from_le_bytes(*b))
}

/// A varint at the start of `s`: its value and its length.
#[inline]
#[must_use]
pub fn get_varint64(s: &[u8]) -> Option<(u64, usize)> {
    let mut v = 0u64;
    for (i, &b) in s.iter().take(VARINT64_LEN_MAX).enumerate() {
        let bits = u64::from(b & 0x7f);
        if i == 9 && bits > 1 {
            return None;
        }
        v |= bits << (7 * i);
        if b < 0x80 {
            return Some((v, i + 1));
        }
    }
    None
}

/// A varint of at most 32 bits at the start of `s`: its value and its length.
#[inline]
#[must_use]
pub fn get_varint32(s: &[u8]) -> Option<(u32, usize)> {
    if let Some(&b) = s.first()
        && b < 0x80
    {
        return Some((u32::from(b), 1));
    }
    let (v, n) = get_varint64(s)?;
    Some((u32::try_from(v).ok()?, n))
}

/// Reads a byte string from the front, each read checked.
#[derive(Clone, Copy, Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            len: bytes.len(),
        }
    }

    /// Bytes read so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    /// Bytes not read yet.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// True when all bytes are read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[cold]
    fn short(&self, what: &'static str) -> Error {
        Error::corruption("value is cut off or malformed")
            .with("field", what)
            .with("at", self.position())
    }

    /// One byte.
    ///
    /// # Errors
    /// `Corruption` where the input ends.
    pub fn u8(&mut self, what: &'static str) -> Result<u8> {
        let (&b, rest) = self.rest.split_first().ok_or_else(|| self.short(what))?;
        self.rest = rest;
        Ok(b)
    }

    /// Four little-endian bytes.
    ///
    /// # Errors
    /// `Corruption` where the input ends.
    pub fn fixed32(&mut self, what: &'static str) -> Result<u32> {
        let v = get_fixed32(self.rest).ok_or_else(|| self.short(what))?;
        self.rest = &self.rest[4..];
        Ok(v)
    }

    /// Eight little-endian bytes.
    ///
    /// # Errors
    /// `Corruption` where the input ends.
    pub fn fixed64(&mut self, what: &'static str) -> Result<u64> {
        let v = get_fixed64(self.rest).ok_or_else(|| self.short(what))?;
        self.rest = &self.rest[8..];
        Ok(v)
    }

    /// A varint of at most 32 bits.
    ///
    /// # Errors
    /// `Corruption` where the input ends or the number is too large.
    pub fn varint32(&mut self, what: &'static str) -> Result<u32> {
        let (v, n) = get_varint32(self.rest).ok_or_else(|| self.short(what))?;
        self.rest = &self.rest[n..];
        Ok(v)
    }

    /// A varint of at most 64 bits.
    ///
    /// # Errors
    /// `Corruption` where the input ends or the number is too large.
    pub fn varint64(&mut self, what: &'static str) -> Result<u64> {
        let (v, n) = get_varint64(self.rest).ok_or_else(|| self.short(what))?;
        self.rest = &self.rest[n..];
        Ok(v)
    }

    /// A zigzag-coded varint.
    ///
    /// # Errors
    /// `Corruption` where the input ends.
    pub fn varsigned64(&mut self, what: &'static str) -> Result<i64> {
        let v = self.varint64(what)?;
        Ok(((v >> 1) as i64) ^ -((v & 1) as i64))
    }

    /// The next `n` bytes.
    ///
    /// # Errors
    /// `Corruption` where the input ends.
    pub fn bytes(&mut self, n: usize, what: &'static str) -> Result<&'a [u8]> {
        if n > self.rest.len() {
            return Err(self.short(what));
        }
        let (head, rest) = self.rest.split_at(n);
        self.rest = rest;
        Ok(head)
    }

    /// A length-prefixed string.
    ///
    /// # Errors
    /// `Corruption` where the input ends.
    #[inline]
    pub fn length_prefixed(&mut self, what: &'static str) -> Result<&'a [u8]> {
        let n = self.varint32(what)? as usize;
        self.bytes(n, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_at_every_width() {
        for shift in 0..64 {
            for v in [1u64 << shift, (1u64 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint64(&mut out, v);
                assert_eq!(out.len(), varint_len(v));
                assert_eq!(get_varint64(&out), Some((v, out.len())));
                assert_eq!(get_varint64(&out[..out.len() - 1]), None);
                let signed = v as i64;
                out.clear();
                put_varsigned64(&mut out, signed);
                assert_eq!(Decoder::new(&out).varsigned64("v").unwrap(), signed);
            }
        }
    }

    #[test]
    fn overlong_varints_are_refused() {
        assert_eq!(get_varint64(&[0xff; 11]), None);
        assert_eq!(get_varint32(&[0xff, 0xff, 0xff, 0xff, 0x7f]), None);
        let mut max = vec![0xff; 9];
        max.push(1);
        assert_eq!(get_varint64(&max), Some((u64::MAX, 10)));
        max[9] = 2;
        assert_eq!(get_varint64(&max), None);
    }

    #[test]
    fn a_decoder_says_which_field_is_cut_off() {
        let mut d = Decoder::new(&[5, b'a', b'b']);
        let error = d.length_prefixed("name").unwrap_err();
        assert_eq!(error.context("field"), Some("name"));
    }
}
