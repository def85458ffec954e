//! The system's allocator, and how many bytes it has given.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Counted;

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are out, each piece rounded up to 16 and with the 8 that malloc keeps.
pub(crate) fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

fn size(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16)
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(size(layout), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(size(layout), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}
