//! What AddressSanitizer is told of a block. `Hot path`: in every build but the sanitizer's, nothing.
//!
//! To the sanitizer a block is one piece of memory, all of which may be used. With `--cfg orogen_asan` (`cargo x sanitize address`)
//! what is free in it is poisoned, in lists, in ranges or not taken yet: who reads or writes it is reported.
//!
//! 1. The sanitizer keeps one byte for 8 bytes of memory, and pieces begin at multiples of 4. Poisoned are only whole
//!    groups of 8 inside of one free piece; where a piece begins or ends within a group, all of the group may be used.
//!    So of a group that two pieces share all threads say the same, and need not agree on who says it first.
//! 2. What is retired may be read until it is free, and is not poisoned before.

#[cfg(orogen_asan)]
mod real {
    #![expect(unsafe_code, reason = "the sanitizer's own functions")]

    /// Bytes for which the sanitizer keeps one.
    const GROUP: usize = 8;

    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const u8, bytes: usize);
        fn __asan_unpoison_memory_region(start: *const u8, bytes: usize);
    }

    /// From now on nobody may use these bytes.
    pub(crate) fn poison(start: *const u8, bytes: usize) {
        let skipped = start.align_offset(GROUP);
        let whole = bytes.saturating_sub(skipped) / GROUP * GROUP;
        // SAFETY: changes what the sanitizer knows, not the bytes.
        unsafe { __asan_poison_memory_region(start.wrapping_add(skipped), whole) };
    }

    /// They may be used.
    pub(crate) fn unpoison(start: *const u8, bytes: usize) {
        let before = start.addr() % GROUP;
        let whole = (before + bytes).next_multiple_of(GROUP);
        // SAFETY: as above.
        unsafe { __asan_unpoison_memory_region(start.wrapping_sub(before), whole) };
    }
}

#[cfg(not(orogen_asan))]
mod real {
    #[inline(always)]
    pub(crate) const fn poison(_: *const u8, _: usize) {}

    #[inline(always)]
    pub(crate) const fn unpoison(_: *const u8, _: usize) {}
}

pub(crate) use real::{poison, unpoison};
