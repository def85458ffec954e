//! Calls into liblz4.
//!
//! `Hot path`: one decompression per block that the cache does not have. The output is written
//! by C into memory that Rust has not initialised, which is what the `unsafe` here is for.
#![expect(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::{c_char, c_int};

// What `lz4_sys` links but does not declare.
unsafe extern "C" {
    fn LZ4_decompress_safe_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        dict: *const c_char,
        dict_len: c_int,
    ) -> c_int;
}

fn c_len(n: usize) -> Option<c_int> {
    c_int::try_from(n).ok()
}

/// Appends the compressed `raw` to `out`, which has room for as much; false if that takes more than
/// `room` bytes.
pub(super) fn compress(raw: &[u8], acceleration: i32, room: usize, out: &mut Vec<u8>) -> bool {
    let Some(src_len) = c_len(raw.len()) else {
        return false;
    };
    // The bound of an output may be more than the library can be told, an output never is.
    let room = room.min(out.capacity() - out.len());
    let capacity = c_len(room).unwrap_or(c_int::MAX);
    let spare = out.spare_capacity_mut().as_mut_ptr().cast::<c_char>();
    // SAFETY: `raw` is readable for `src_len` bytes, `spare` writable for `capacity` bytes.
    let n = unsafe {
        lz4_sys::LZ4_compress_fast(raw.as_ptr().cast(), spare, src_len, capacity, acceleration)
    };
    grow(out, n)
}

/// As [`compress`] with the slow search.
pub(super) fn compress_hc(raw: &[u8], level: i32, room: usize, out: &mut Vec<u8>) -> bool {
    let Some(src_len) = c_len(raw.len()) else {
        return false;
    };
    // The bound of an output may be more than the library can be told, an output never is.
    let room = room.min(out.capacity() - out.len());
    let capacity = c_len(room).unwrap_or(c_int::MAX);
    let spare = out.spare_capacity_mut().as_mut_ptr().cast::<c_char>();
    // SAFETY: `raw` is readable for `src_len` bytes, `spare` writable for `capacity` bytes.
    let n =
        unsafe { lz4_sys::LZ4_compress_HC(raw.as_ptr().cast(), spare, src_len, capacity, level) };
    grow(out, n)
}

fn grow(out: &mut Vec<u8>, written: c_int) -> bool {
    match usize::try_from(written) {
        Ok(n) if n > 0 && n <= out.capacity() - out.len() => {
            // SAFETY: the library has written `n` bytes behind the length, within the capacity.
            unsafe { out.set_len(out.len() + n) };
            true
        }
        _ => false,
    }
}

/// Decompresses to `size` bytes at most, into the memory of `out`, which has room for as many;
/// `None` if `data` is damaged.
pub(super) fn decompress(
    data: &[u8],
    dict: &[u8],
    size: usize,
    mut out: Vec<u8>,
) -> Option<Vec<u8>> {
    let (src_len, capacity, dict_len) = (c_len(data.len())?, c_len(size)?, c_len(dict.len())?);
    out.clear();
    let capacity = capacity.min(c_len(out.capacity()).unwrap_or(c_int::MAX));
    let dst = out.as_mut_ptr().cast::<c_char>();
    let src = data.as_ptr().cast::<c_char>();
    let n = if dict.is_empty() {
        // SAFETY: `src` is readable for `src_len` bytes, `dst` writable for `capacity` bytes;
        // the library checks every length in the data against both.
        unsafe { lz4_sys::LZ4_decompress_safe(src, dst, src_len, capacity) }
    } else {
        let dict = dict.as_ptr().cast::<c_char>();
        // SAFETY: as above, and `dict` is readable for `dict_len` bytes.
        unsafe { LZ4_decompress_safe_usingDict(src, dst, src_len, capacity, dict, dict_len) }
    };
    let n = usize::try_from(n).ok().filter(|&n| n <= size)?;
    // SAFETY: the library has written `n` bytes, within the capacity.
    unsafe { out.set_len(n) };
    Some(out)
}
