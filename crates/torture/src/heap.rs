//! Counts what the process takes from its allocator, exactly.
//!
//! A program makes [`CountingAllocator`] its global allocator; then [`taken_bytes`] is what is out
//! now and [`taken_bytes_max`] the most since [`forget_max`], both with the huge pages that
//! memtables take straight from the system. What libraries of other languages allocate is not seen.
//!
//! It can also refuse: between [`refuse`] and [`relent`] the n-th allocation of at least
//! [`BIG_ALLOCATION`] bytes by any thread that is not [`outside`] gets nothing, and so do some
//! after it.
#![expect(unsafe_code, reason = "an allocator passes raw memory on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use orogen_base::memory::BIG_ALLOCATION;
use orogen_env::memory::{huge_page_bytes, reserved_bytes};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static MAX: AtomicUsize = AtomicUsize::new(0);

/// Big allocations since [`refuse`].
static SEEN: AtomicU64 = AtomicU64::new(0);
/// The number of the first one that gets nothing; 0: none does.
static REFUSED_FROM: AtomicU64 = AtomicU64::new(0);
/// And of the first one after it that gets something again.
static REFUSED_TO: AtomicU64 = AtomicU64::new(0);
/// Tell who was refused.
static TRACED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OUTSIDE: Cell<bool> = const { Cell::new(false) };
}

/// True if this allocation gets nothing.
#[inline]
fn refuses(bytes: usize) -> bool {
    bytes >= BIG_ALLOCATION && REFUSED_FROM.load(Relaxed) > 0 && refuses_big(bytes)
}

#[cold]
#[expect(clippy::print_stderr, reason = "asked for by who looks for the place")]
fn refuses_big(bytes: usize) -> bool {
    if OUTSIDE.get() {
        return false;
    }
    let number = SEEN.fetch_add(1, Relaxed) + 1;
    let refused = (REFUSED_FROM.load(Relaxed)..REFUSED_TO.load(Relaxed)).contains(&number);
    if refused && TRACED.load(Relaxed) {
        outside(|| eprintln!("refused {bytes} bytes:\n{}", Backtrace::force_capture()));
    }
    refused
}

/// From now on counts big allocations; number `nth` and the `count - 1` after it get nothing. With
/// `traced`, tells who they were.
pub fn refuse(nth: u64, count: u64, traced: bool) {
    TRACED.store(traced, Relaxed);
    SEEN.store(0, Relaxed);
    REFUSED_TO.store(nth.saturating_add(count), Relaxed);
    REFUSED_FROM.store(nth, Relaxed);
}

/// Refuses nothing any more; returns how many big allocations there were and how many of them got
/// nothing.
pub fn relent() -> (u64, u64) {
    let from = REFUSED_FROM.swap(0, Relaxed);
    let seen = SEEN.load(Relaxed);
    let refused = (seen + 1)
        .min(REFUSED_TO.load(Relaxed))
        .saturating_sub(from);
    (seen, refused)
}

/// Runs what is no part of what is tried: its allocations are neither counted nor refused.
pub fn outside<R>(body: impl FnOnce() -> R) -> R {
    let before = OUTSIDE.replace(true);
    let result = body();
    OUTSIDE.set(before);
    result
}

/// Within [`outside`]: runs what is tried.
pub fn inside<R>(body: impl FnOnce() -> R) -> R {
    let before = OUTSIDE.replace(false);
    let result = body();
    OUTSIDE.set(before);
    result
}

/// The system's allocator with a counter before it.
#[derive(Debug)]
pub struct CountingAllocator;

fn took(bytes: usize) {
    let taken = LIVE.fetch_add(bytes, Relaxed) + bytes + huge_page_bytes() + reserved_bytes();
    if taken > MAX.load(Relaxed) {
        MAX.fetch_max(taken, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came, or gets nothing, as from a
// system that has none.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller's promise is passed on.
        let memory = unsafe { System.alloc(layout) };
        if !memory.is_null() {
            took(layout.size());
        }
        memory
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
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
        if new_size > layout.size() && refuses(new_size) {
            return null_mut();
        }
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
        live => (live + huge_page_bytes() + reserved_bytes()) as u64,
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
