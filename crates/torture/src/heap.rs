//! Counts what the process takes from its allocator, exactly.
//!
//! A program makes [`CountingAllocator`] its global allocator; then [`taken_bytes`] is what is out
//! now and [`taken_bytes_max`] the most since [`forget_max`], both with the huge pages that
//! memtables take straight from the system. What libraries of other languages allocate is not seen.
#![expect(unsafe_code, reason = "an allocator passes raw memory on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use orogen_env::memory::huge_page_bytes;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with a counter before it.
#[derive(Debug)]
pub struct CountingAllocator;

fn took(bytes: usize) {
    let taken = LIVE.fetch_add(bytes, Relaxed) + bytes + huge_page_bytes();
    if taken > MAX.load(Relaxed) {
        MAX.fetch_max(taken, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            took(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let memory = unsafe { System.alloc_zeroed(layout) };
        if !memory.is_null() {
            took(layout.size());
        }
        memory
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) };
        LIVE.fetch_sub(layout.size(), Relaxed);
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise is passed on.
        let moved = unsafe { System.realloc(memory, layout, new_size) };
        if !moved.is_null() {
            took(new_size);
            LIVE.fetch_sub(layout.size(), Relaxed);
        }
        moved
    }
}

/// Bytes that are out now; 0 if nothing counts.
#[must_use]
pub fn taken_bytes() -> u64 {
    match LIVE.load(Relaxed) {
        0 => 0,
        live => (live + huge_page_bytes()) as u64,
    }
}

/// The most bytes that were out at once since [`forget_max`].
#[must_use]
pub fn taken_bytes_max() -> u64 {
    MAX.load(Relaxed) as u64
}

/// Begins to look for the most anew.
pub fn forget_max() {
    MAX.store(taken_bytes() as usize, Relaxed);
}
