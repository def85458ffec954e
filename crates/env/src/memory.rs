//! How the system backs memory.
#![expect(unsafe_code, reason = "advice is given for raw addresses")]

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page.
pub const HUGE_PAGE_LEN: usize = 2 << 20;

/// Huge pages that are out.
static HUGE_PAGES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all [`HugePage`]s of this process: memory that no allocator knows of.
#[must_use]
pub fn huge_page_bytes() -> usize {
    HUGE_PAGES.load(Ordering::Relaxed) * HUGE_PAGE_LEN
}

/// A huge page's worth of memory straight from the system, and back to it when it is dropped: an
/// allocator in between would keep gaps, for huge pages must begin at multiples of their size.
pub struct HugePage(NonNull<u8>);

// SAFETY: plain memory that this value owns.
unsafe impl Send for HugePage {}
// SAFETY: the value gives out an address and nothing else.
unsafe impl Sync for HugePage {}

impl HugePage {
    /// New memory, zeroed, at a multiple of [`HUGE_PAGE_LEN`]; `None` if the system has none.
    #[must_use]
    pub fn new() -> Option<Self> {
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        let len = 2 * HUGE_PAGE_LEN;
        // SAFETY: at an address of the system's choice, so over nothing that is there.
        let all = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, private) }.ok()?;
        let all: *mut u8 = all.cast();
        let before = all.align_offset(HUGE_PAGE_LEN);
        // SAFETY: `before < HUGE_PAGE_LEN`, so this and a whole page behind it are within `all`.
        let start = unsafe { all.add(before) };
        // SAFETY: the end of the page is within `all`.
        let end = unsafe { start.add(HUGE_PAGE_LEN) };
        for (unused, len) in [(all, before), (end, HUGE_PAGE_LEN - before)] {
            if len > 0 {
                // SAFETY: a part of `all` that nobody uses. If it fails the part is wasted.
                let _ = unsafe { munmap(unused.cast(), len) };
            }
        }
        let page = Self(NonNull::new(start)?);
        HUGE_PAGES.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the page is mapped, and uninitialised bytes may have any content.
        prefer_huge_pages(unsafe { std::slice::from_raw_parts_mut(start.cast(), HUGE_PAGE_LEN) });
        Some(page)
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.0
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody has its address any more.
        let unmapped = unsafe { munmap(self.0.as_ptr().cast(), HUGE_PAGE_LEN) };
        HUGE_PAGES.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(unmapped.is_ok(), "the page was mapped");
    }
}

/// Asks for huge pages under `memory`, which nobody has touched yet: its first use then costs
/// one fault for 2 MiB instead of 512. Only whole huge pages in it are meant. A system that has
/// none, or is told to give none, backs it as ever.
fn prefer_huge_pages(memory: &mut [MaybeUninit<u8>]) {
    let (start, len) = (memory.as_mut_ptr(), memory.len());
    // SAFETY: the advice changes no content, and the range is the caller's.
    let _ = unsafe { madvise(start.cast(), len, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeroed_aligned_and_apart() {
        let pages: Vec<HugePage> = (0..5).map(|_| HugePage::new().unwrap()).collect();
        let mut starts: Vec<usize> = pages.iter().map(|p| p.start().addr().get()).collect();
        starts.sort_unstable();
        assert!(starts.iter().all(|s| s % HUGE_PAGE_LEN == 0));
        assert!(starts.windows(2).all(|s| s[1] - s[0] >= HUGE_PAGE_LEN));
        for (i, page) in pages.iter().enumerate() {
            let bytes = NonNull::slice_from_raw_parts(page.start(), HUGE_PAGE_LEN);
            // SAFETY: mapped, zeroed, and only used here.
            let bytes = unsafe { &mut *bytes.as_ptr() };
            assert!(bytes.iter().all(|&b| b == 0));
            bytes.fill(i as u8 + 1);
        }
    }
}
