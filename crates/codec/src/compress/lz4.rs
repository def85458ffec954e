//! Calls into liblz4.
//!
//! `Hot path`: one decompression per block that the cache does not have, one compression per block or value that is
//! written. The output is written by C into memory that Rust has not initialised, which is what the `unsafe` here is for.
//!
//! Who compresses keeps what it compares with in a [`State`]: 16 KiB of places, which the library would make zeros for
//! each call of `LZ4_compress_fast`, and 256 KiB, which it would allocate, too, for each one of `LZ4_compress_HC`. Places of
//! former inputs are told from those of this one by their numbers, so the output is the same.
#![expect(unsafe_code, reason = "liblz4 is a C library")]

use std::ffi::{c_char, c_int, c_void};

use orogen_base::{Result, memory};

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
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        dst_capacity: c_int,
        level: c_int,
    ) -> c_int;
}

/// What one search keeps from one input to the next.
pub(super) struct State {
    /// As many as the library asks for, at an address for its pointers. Zeros are what it makes of a new one.
    words: Vec<u64>,
    is_hc: bool,
}

impl State {
    /// For the slow search, or the fast one.
    ///
    /// # Errors
    /// `NoMemory`.
    pub(super) fn new(is_hc: bool) -> Result<Self> {
        let size_of_state = match is_hc {
            true => LZ4_sizeofStateHC,
            false => LZ4_sizeofState,
        };
        // SAFETY: it takes nothing and gives a constant.
        let size = unsafe { size_of_state() };
        let mut words = Vec::new();
        let count = usize::try_from(size)
            .unwrap_or(0)
            .div_ceil(size_of::<u64>());
        memory::reserve_exact(&mut words, count, "state of a compressor")?;
        words.resize(count, 0);
        Ok(Self { words, is_hc })
    }

    /// Appends the compressed `raw` to `out`, which has room for as much; false if that takes more than `room` bytes. `level`
    /// is the acceleration of the fast search.
    pub(super) fn compress(
        &mut self,
        raw: &[u8],
        level: i32,
        room: usize,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(src_len) = c_len(raw.len()) else {
            return false;
        };
        // The bound of an output may be more than the library can be told, an output never is.
        let room = room.min(out.capacity() - out.len());
        let capacity = c_len(room).unwrap_or(c_int::MAX);
        let spare = out.spare_capacity_mut().as_mut_ptr().cast::<c_char>();
        let state = self.words.as_mut_ptr().cast::<c_void>();
        let src = raw.as_ptr().cast::<c_char>();
        let search = match self.is_hc {
            true => LZ4_compress_HC_extStateHC_fastReset,
            false => LZ4_compress_fast_extState_fastReset,
        };
        // SAFETY: `state` has the size of this search and was zeros, or left by it; `src` is readable for `src_len` bytes,
        // `spare` writable for `capacity` bytes.
        let n = unsafe { search(state, src, spare, src_len, capacity, level) };
        grow(out, n)
    }
}

fn c_len(n: usize) -> Option<c_int> {
    c_int::try_from(n).ok()
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
