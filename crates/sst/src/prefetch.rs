//! Asks the processor to fetch memory that will be read soon.
//!
//! A lookup waits for memory more than it computes: what it will need next is often known some
//! steps before it is looked at. `Hot path`.
#![expect(unsafe_code, reason = "a prefetch is an instruction of the processor")]

/// Asks for the line that `bytes` has at `at`; nothing happens where there is none.
#[inline]
pub(crate) fn prefetch<T>(items: &[T], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(item) = items.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes nothing and cannot fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (items, at);
}
