//! Reads out of a mapping of a file, without a copy, and what becomes of a page that the device
//! cannot give.
//!
//! ```text
//! file.with_mapped(offset, len, look) -> look(bytes) -> true:  they were the file's all the while
//!                                                    false: read by a call, which tells why
//! ```
//! Who touches a mapped page that cannot be read, or is behind the end of a file that somebody cut
//! off, gets `SIGBUS`, which ends a process. Invariants:
//!
//! 1. While bytes are looked at the thread names the mapping in [`CURRENT`], and ends that before it lets go of the mapping: they
//!    are shown to a function, since a value of the caller's that stands for the look could be forgotten. The handler puts
//!    zeros in the place of a page of that mapping, and marks it lost; any other `SIGBUS` goes to
//!    whoever was asked before.
//! 2. What was read is believed only if the mapping is not lost when it has been used. A lost one
//!    is never used again: reads are calls from then on. The page may have been replaced on behalf of another thread, so
//!    fences keep the mark before the zeros there, and the look at it behind the bytes here, as in a sequence lock (Boehm,
//!    "Can seqlocks get along with programming language memory models?", 2012).
//! 3. The handler is installed with the first mapping, once. A program that installs its own
//!    afterwards has to pass on what it does not know, or dies of such a page.
//! 4. A thread in which the signal is blocked would end the process: it reads by calls. It is asked now and then.
//!
//! A file is mapped only once it is finished. Where somebody else writes to it nevertheless, bytes
//! may change while they are used: checksums tell, or nobody does, as with reads by calls.
#![expect(unsafe_code, reason = "maps files and handles a signal")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::ptr::{NonNull, null, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

thread_local! {
    /// The mapping that this thread reads from. Neither made lazily nor dropped, so that a signal
    /// handler may ask for it.
    static CURRENT: Cell<*const FileMapping> = const { Cell::new(null()) };
}

/// Pages of which is asked at once whether they are in memory.
const LOOKED_AT: usize = 64;

/// Reads of a thread for which it is known that the signal is not blocked.
const HEARS_FOR: u32 = 256;

thread_local! {
    static HEARS: Cell<u32> = const { Cell::new(0) };
}

/// What was done with `SIGBUS` before.
static FORMER: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A whole file in memory, to be read.
pub(crate) struct FileMapping {
    start: NonNull<u8>,
    len: usize,
    page_len: usize,
    is_lost: AtomicBool,
}

// SAFETY: an address that stays mapped until this is dropped, and is only read from.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// The first `len` bytes of a file; `None` where there are none, or the system does not map it.
    pub(crate) fn new(file: impl AsFd, len: u64) -> Option<Self> {
        let len = usize::try_from(len).ok().filter(|&len| len > 0)?;
        (*FORMER.get_or_init(install))?;
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: at an address of the system's choice, so over nothing that is there.
        let start = unsafe { mmap(null_mut(), len, access, flags, file, 0) }.ok()?;
        Some(Self {
            start: NonNull::new(start.cast())?,
            len,
            page_len: rustix::param::page_size(),
            is_lost: AtomicBool::new(false),
        })
    }

    /// Shows so many bytes at `offset` to `look`; true if they were the file's all the while. `None` if they are not all in the mapping, or
    /// it is lost.
    pub(crate) fn read(
        &self,
        offset: u64,
        len: usize,
        look: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        let offset = usize::try_from(offset).ok()?;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        if !is_inside || self.is_lost.load(Ordering::Relaxed) || !hears() {
            return None;
        }
        // SAFETY: inside the mapping.
        let start = unsafe { self.start.as_ptr().add(offset) };
        // SAFETY: inside the mapping, which lives as long as the borrow of it; pages that cannot
        // be read are replaced by the handler.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        let current = Current::enter(self);
        look(bytes);
        drop(current);
        // An acquiring load alone would keep what follows behind it, not itself behind the bytes.
        fence(Ordering::Acquire);
        Some(!self.is_lost.load(Ordering::Relaxed))
    }

    /// Whether memory holds so many bytes at `offset`, as far as the first [`LOOKED_AT`] pages; `None` if they are not in the mapping, or it
    /// cannot be told.
    pub(crate) fn is_resident(&self, offset: u64, len: usize) -> Option<bool> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset
            .checked_add(len.max(1))
            .filter(|&end| end <= self.len)?;
        let first = offset / self.page_len * self.page_len;
        let pages = (end - first).div_ceil(self.page_len).min(LOOKED_AT);
        let mut told = [0u8; LOOKED_AT];
        // SAFETY: inside the mapping.
        let start = unsafe { self.start.as_ptr().add(first) };
        let len = pages * self.page_len;
        // SAFETY: pages of the mapping, and a byte for each.
        let result = unsafe { libc::mincore(start.cast(), len, told.as_mut_ptr()) };
        (result == 0).then(|| told[..pages].iter().all(|page| page & 1 == 1))
    }

    /// Puts zeros in the place of the page of `address`; false if it is none of this mapping's.
    /// Called by the handler: makes one system call and stores a flag.
    fn replace_page(&self, address: usize) -> bool {
        let start = self.start.as_ptr() as usize;
        let len = self.len.next_multiple_of(self.page_len);
        if !(start..start + len).contains(&address) {
            return false;
        }
        self.is_lost.store(true, Ordering::Relaxed);
        // Who sees the new page sees that, too.
        fence(Ordering::Release);
        let before = (address - start) % self.page_len;
        let page = (address - before) as *mut c_void;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: one page of this mapping, whose content nobody believes from now on.
        unsafe { mmap_anonymous(page, self.page_len, ProtFlags::READ, flags) }.is_ok()
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody borrows any more. If it fails address space is
        // wasted.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// What a thread looks at, until this is dropped; then it is what it was before.
struct Current(*const FileMapping);

impl Current {
    fn enter(mapping: &FileMapping) -> Self {
        // The handler has to know which page is touched, of an outer look, too.
        compiler_fence(Ordering::SeqCst);
        let outer = CURRENT.replace(mapping);
        compiler_fence(Ordering::SeqCst);
        Self(outer)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        CURRENT.set(self.0);
        compiler_fence(Ordering::SeqCst);
    }
}

/// Whether this thread is told of a page that the device cannot give.
#[inline]
fn hears() -> bool {
    match HEARS.get() {
        0 => asks_whether_it_hears(),
        left => {
            HEARS.set(left - 1);
            true
        }
    }
}

#[cold]
fn asks_whether_it_hears() -> bool {
    // SAFETY: plain data, for which zeros are a value.
    let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set, and what is blocked is written to a value of this function.
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut blocked) };
    // SAFETY: the set was filled, or is of zeros.
    let is_blocked = unsafe { libc::sigismember(&raw const blocked, libc::SIGBUS) };
    let hears = (result, is_blocked) == (0, 0);
    HEARS.set(if hears { HEARS_FOR } else { 0 });
    hears
}

/// Whether the system knows of a page that nobody has touched that it is not there.
pub(crate) fn tells_of_pages() -> bool {
    let len = rustix::param::page_size();
    let (access, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
    // SAFETY: at an address of the system's choice, so over nothing that is there.
    let Ok(page) = (unsafe { mmap_anonymous(null_mut(), len, access, flags) }) else {
        return false;
    };
    let mut told = [1u8; 1];
    // SAFETY: one page that is mapped, and a byte for it.
    let result = unsafe { libc::mincore(page, len, told.as_mut_ptr()) };
    // SAFETY: the page from above, which nobody borrows.
    let _ = unsafe { munmap(page, len) };
    result == 0 && told[0] & 1 == 0
}

/// Installs the handler; returns what was there, or `None` if the system refuses.
fn install() -> Option<libc::sigaction> {
    type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
    let handler: Handler = on_bus_error;
    // SAFETY: plain data, for which zeros are a value.
    let none: libc::sigaction = unsafe { std::mem::zeroed() };
    let (mut own, mut former) = (none, none);
    own.sa_sigaction = handler as usize;
    // On the stack that the standard library keeps for the signals of a stack that is full.
    own.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: both are values of this function; the handler does nothing that one must not do.
    let result = unsafe { libc::sigaction(libc::SIGBUS, &raw const own, &raw mut former) };
    (result == 0).then_some(former)
}

extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system calls a handler with SA_SIGINFO with what happened.
    let info_of = unsafe { &*info };
    // SAFETY: SIGBUS tells an address.
    let address = unsafe { info_of.si_addr() } as usize;
    // SAFETY: null, or a mapping that a call of `read` below this one on the stack borrows.
    let current = unsafe { CURRENT.get().as_ref() };
    if current.is_some_and(|mapping| mapping.replace_page(address)) {
        return;
    }
    let former = FORMER.get().and_then(Option::as_ref);
    match former.map(|former| (former.sa_sigaction, former.sa_flags)) {
        None | Some((libc::SIG_DFL | libc::SIG_IGN, _)) => {
            // What cannot be ignored: the process ends by this signal.
            // SAFETY: a plain call, allowed in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            // SAFETY: as above.
            unsafe { libc::raise(signal) };
        }
        Some((handler, flags)) if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: who installed it with this flag gave a function of this kind.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        Some((handler, _)) => {
            // SAFETY: who installed it without that flag gave a function of this kind.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests;
