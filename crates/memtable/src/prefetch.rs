//! Asks the processor to fetch memory that will be read soon. `Hot path`.
#![expect(unsafe_code, reason = "a prefetch is an instruction of the processor")]

/// Bytes that the processor fetches at once.
const LINE_LEN: usize = 64;

/// Asks for the lines of `bytes`.
#[inline]
pub(crate) fn prefetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_LEN) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, LINE_LEN);
}
