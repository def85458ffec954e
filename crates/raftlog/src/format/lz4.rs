//! Blocks of entries through liblz4.
//!
//! A compressed block is the raw length as u32 little-endian and one LZ4 block. The `unsafe` here
//! is the calls into the C library; all memory they get is initialised and bounded by Rust.
#![expect(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::c_int;

use orogen_base::{Error, Result, coding, memory};

/// No LZ4 block says more raw bytes than this for each of its own.
const RATIO_MAX: usize = 255;

/// The compressed block, if it is shorter than `raw`.
pub(super) fn compress(raw: &[u8], acceleration: i32) -> Result<Option<Vec<u8>>> {
    let Ok(raw_len) = c_int::try_from(raw.len()) else {
        return Ok(None);
    };
    let prefix = size_of::<u32>();
    if raw.len() <= prefix + 1 {
        return Ok(None);
    }
    // One byte less than what would be no gain.
    let mut out = memory::zeroed(raw.len() - 1, "a compressed block of entries")?;
    out[..prefix].copy_from_slice(&raw_len.cast_unsigned().to_le_bytes());
    let room = &mut out[prefix..];
    let capacity = c_int::try_from(room.len()).unwrap_or(c_int::MAX);
    // SAFETY: `raw` is readable for `raw_len` bytes, `room` is writable for `capacity` bytes.
    let written = unsafe {
        lz4_sys::LZ4_compress_fast(
            raw.as_ptr().cast(),
            room.as_mut_ptr().cast(),
            raw_len,
            capacity,
            acceleration,
        )
    };
    match usize::try_from(written) {
        Ok(n) if n > 0 => {
            out.truncate(prefix + n);
            Ok(Some(out))
        }
        _ => Ok(None),
    }
}

/// Makes `raw` the raw block of what [`compress`], or another writer of the format, made.
///
/// # Errors
/// `Corruption` if it is none; `NoMemory`.
pub(super) fn decompress(stored: &[u8], raw: &mut Vec<u8>) -> Result<()> {
    let damaged = |what: &'static str| {
        Error::corruption("compressed block of entries is damaged").with("why", what)
    };
    let raw_len = coding::get_fixed32(stored).ok_or_else(|| damaged("no room for its length"))?;
    let data = &stored[size_of::<u32>()..];
    let capacity = c_int::try_from(raw_len).map_err(|_| damaged("length is out of bounds"))?;
    let data_len = c_int::try_from(data.len()).map_err(|_| damaged("too many bytes"))?;
    let raw_len = raw_len as usize;
    if raw_len > data.len().saturating_mul(RATIO_MAX) {
        return Err(damaged("says more than its bytes can hold"));
    }
    memory::resize(raw, raw_len, "a block of entries")?;
    // SAFETY: `data` is readable for `data_len` bytes, `raw` is writable for `capacity` bytes; the
    // library checks every length in the data against both.
    let written = unsafe {
        lz4_sys::LZ4_decompress_safe(
            data.as_ptr().cast(),
            raw.as_mut_ptr().cast(),
            data_len,
            capacity,
        )
    };
    if usize::try_from(written) != Ok(raw_len) {
        return Err(damaged("does not give the length it says"));
    }
    Ok(())
}
