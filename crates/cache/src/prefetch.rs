//! Asks the processor to fetch memory that will be read soon. `Hot path`.
#![expect(unsafe_code, reason = "a prefetch is an instruction of the processor")]

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
