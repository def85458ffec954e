//! Asks the processor to fetch memory that will be read soon. `Hot path`.
#![expect(unsafe_code, reason = "a prefetch is an instruction of the processor")]

/// Bytes of a line.
const LINE: usize = 64;

/// Asks for all lines of `bytes`. Who copies scattered pieces of values waits for memory at the beginning of each if nobody
/// has asked for them before.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    let start = bytes.as_ptr().addr();
    let mut line = start - start % LINE;
    while line < start + bytes.len() {
        prefetch(line);
        line += LINE;
    }
}

/// Asks for the line at an address, which need not be one of anything.
#[inline]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let place = std::ptr::without_provenance(address);
        // SAFETY: a prefetch reads nothing that the program can see, and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
