//! How the system backs memory.
#![expect(unsafe_code, reason = "advice is given for raw addresses")]

mod file_buffer;
mod pool;

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use orogen_base::{Error, Result};
use parking_lot::Mutex;

pub use file_buffer::FileBuffer;
pub use pool::PagePool;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, unlink};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

/// Bytes of a huge page.
pub const HUGE_PAGE_LEN: usize = 2 << 20;

/// Huge pages that are out.
static HUGE_PAGES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all [`HugePage`]s of this process: memory that no allocator knows of.
#[must_use]
pub fn huge_page_bytes() -> usize {
    HUGE_PAGES.load(Ordering::Relaxed) * HUGE_PAGE_LEN
}

/// Bytes of memory that the machine has.
#[must_use]
pub fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    // The width of these differs between machines.
    let (units, unit) = (info.totalram as u64, u64::from(info.mem_unit));
    units.saturating_mul(unit)
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

    /// Has the system back it, which it otherwise does at the first use.
    fn touch(&self) {
        // SAFETY: mapped, and nobody else has it.
        unsafe { self.0.write_volatile(0) };
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

/// Addresses one after the other, behind which memory comes as it is committed. The first
/// [`HUGE_PAGE_LEN`] are backed by small pages and so cost a small user little, the others by huge
/// ones where the system gives them. All goes back to the system when it is dropped, or to the
/// [`PagePool`] that it is from.
pub struct Reserved {
    /// Of these `whole` bytes are `len` from `start` on used.
    all: NonNull<u8>,
    whole: usize,
    start: NonNull<u8>,
    len: usize,
    /// Bytes from the start that are committed.
    committed: Mutex<usize>,
    /// Bytes from the start that its user has written to, or will at once.
    used: AtomicUsize,
    /// The same of whoever used it before: these are memory, of any content.
    touched: AtomicUsize,
    /// Most bytes that are committed ahead of what is wanted, a power of two.
    step_max: AtomicUsize,
    /// Where the bytes are instead of memory.
    file: Option<OwnedFd>,
    /// Where it goes instead of back to the system.
    home: Weak<PagePool>,
}

/// Used bytes of all that is reserved.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Bytes that are used of all [`Reserved`] memory: as of [`huge_page_bytes`], no allocator knows of them. What is committed
/// and was never used is no memory yet.
#[must_use]
pub fn reserved_bytes() -> usize {
    USED.load(Ordering::Relaxed)
}

/// Addresses of all that is reserved, up to a bound: those that are left are for allocators.
struct Addresses {
    taken: AtomicUsize,
    max: usize,
}

/// A quarter of what a process has with page tables of four levels.
static ADDRESSES: Addresses = Addresses::new(32 << 40);

impl Addresses {
    const fn new(max: usize) -> Self {
        Self {
            taken: AtomicUsize::new(0),
            max,
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.taken.fetch_add(bytes, Ordering::Relaxed);
        let is_there = taken.checked_add(bytes).is_some_and(|all| all <= self.max);
        if !is_there {
            self.give_back(bytes);
        }
        is_there
    }

    fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What is committed at once while a block is small: pages are no larger.
const COMMIT_MIN: usize = if cfg!(target_arch = "x86_64") {
    4 << 10
} else {
    64 << 10
};

/// Why addresses did not become memory.
enum Refused {
    /// The file system has no place.
    Blocks(Errno),
    /// The system has no pages, or there are not so many addresses.
    Pages,
}

// SAFETY: plain memory that this value owns.
unsafe impl Send for Reserved {}
// SAFETY: the value gives out an address, and the lock guards the rest.
unsafe impl Sync for Reserved {}

impl Reserved {
    /// At least `len` bytes of addresses at a multiple of [`HUGE_PAGE_LEN`]; `None` if the system
    /// has none, or 32 TiB are reserved in all.
    #[must_use]
    pub fn new(len: usize) -> Option<Self> {
        Self::with(len, None)
    }

    /// The same with bytes that are in a file without a name in `dir`, of which the system keeps in memory what is used. It
    /// grows by what is committed, whose blocks are taken from the disk then: writing to them cannot fail later, but on file
    /// systems that write elsewhere what is written anew.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: no file could be made; `NoMemory`: no addresses.
    pub fn in_dir(len: usize, dir: &Path) -> Result<Self> {
        let refused =
            |e: Errno| Error::io("no file instead of memory", e.into()).with("dir", dir.display());
        let file = unnamed_file(dir).map_err(refused)?;
        Self::with(len, Some(file)).ok_or_else(|| orogen_base::memory::refused("addresses", len))
    }

    fn with(len: usize, file: Option<OwnedFd>) -> Option<Self> {
        let len = len.max(1).checked_next_multiple_of(HUGE_PAGE_LEN)?;
        let whole = len.checked_add(HUGE_PAGE_LEN)?;
        if !ADDRESSES.take(whole) {
            return None;
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (nowhere, none) = (std::ptr::null_mut(), ProtFlags::empty());
        let all = match &file {
            // SAFETY: at an address of the system's choice, so over nothing that is there.
            None => unsafe { mmap_anonymous(nowhere, whole, none, flags) },
            // SAFETY: as above. Nothing can be read or written before the file has it.
            Some(file) => unsafe { mmap(nowhere, whole, none, MapFlags::SHARED, file, 0) },
        };
        let Ok(all) = all else {
            ADDRESSES.give_back(whole);
            return None;
        };
        let all: *mut u8 = all.cast();
        // What is beyond either end stays reserved, too: giving addresses back waits for all who do so.
        // SAFETY: less than `HUGE_PAGE_LEN`, so this and `len` bytes behind it are within `all`.
        let start = unsafe { all.add(all.align_offset(HUGE_PAGE_LEN)) };
        let committed = Mutex::new(0);
        Some(Self {
            all: NonNull::new(all)?,
            whole,
            start: NonNull::new(start)?,
            len,
            committed,
            used: AtomicUsize::new(0),
            touched: AtomicUsize::new(0),
            home: Weak::new(),
            step_max: AtomicUsize::new(HUGE_PAGE_LEN),
            file,
        })
    }

    /// Where it begins.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Bounds what is committed ahead of what is wanted from now on: to less than `bytes`, but for a page.
    pub fn commit_ahead_at_most(&self, bytes: usize) {
        let bytes = bytes.clamp(COMMIT_MIN, HUGE_PAGE_LEN);
        let step = 1 << bytes.ilog2();
        self.step_max.store(step, Ordering::Relaxed);
    }

    /// Up to where `commit` of `len` bytes goes, if it does: twice as far each time, then by the largest step.
    fn end_of_commit(&self, is: usize, len: usize) -> usize {
        let step = is.clamp(COMMIT_MIN, self.step_max.load(Ordering::Relaxed));
        let end = len.max(is.saturating_add(step)).min(self.len);
        end.next_multiple_of(step).min(self.len)
    }

    /// Bytes that [`Self::commit`] adds if the first `len` are to be memory.
    #[must_use]
    pub fn missing(&self, len: usize) -> usize {
        let is = *self.committed.lock();
        if len <= is || len > self.len {
            return 0;
        }
        self.end_of_commit(is, len) - is
    }

    /// Has the system back committed bytes from `start` to before `end` now, which it otherwise does at the first
    /// use of each page; their content stays. Whoever uses them meanwhile may go on. A system that cannot do
    /// so backs them as ever.
    pub fn populate(&self, start: usize, end: usize) {
        const PAGE: usize = 4 << 10;
        let end = end.min(self.committed());
        let start = start / PAGE * PAGE;
        if start >= end {
            return;
        }
        // SAFETY: within what is reserved.
        let from = unsafe { self.start.add(start) };
        let len = (end - start).next_multiple_of(PAGE);
        // SAFETY: committed, and the advice changes no content.
        let _ = unsafe { madvise(from.as_ptr().cast(), len, Advice::LinuxPopulateWrite) };
    }

    /// Sees to it that the first `len` bytes are memory; new memory is zeroed, but what is from a pool. False if the system
    /// has none, or `len` is more than is reserved: nothing has changed then.
    #[must_use]
    pub fn commit(&self, len: usize) -> bool {
        self.extend(len).is_ok()
    }

    /// The same, and why not.
    ///
    /// # Errors
    /// `NoSpace`, `Io` of the file; `NoMemory`, also of more than is reserved.
    pub fn try_commit(&self, len: usize) -> Result<()> {
        self.extend(len).map_err(|why| match why {
            Refused::Blocks(e) => {
                Error::io("no room in a file instead of memory", e.into()).with("bytes", len)
            }
            Refused::Pages => orogen_base::memory::refused("reserved addresses", len),
        })
    }

    fn extend(&self, len: usize) -> std::result::Result<(), Refused> {
        let mut committed = self.committed.lock();
        let is = *committed;
        if len <= is {
            return Ok(());
        }
        if len > self.len {
            return Err(Refused::Pages);
        }
        let end = self.end_of_commit(is, len);
        // SAFETY: `is` is within what is reserved.
        let from = unsafe { self.start.add(is) };
        if let Some(file) = &self.file {
            // The file is mapped from before `start` on.
            let before = self.start.as_ptr().addr() - self.all.as_ptr().addr();
            take_blocks(file, (before + is) as u64, (end - is) as u64).map_err(Refused::Blocks)?;
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: a part of what is reserved that nobody has used yet.
        unsafe { mprotect(from.as_ptr().cast(), end - is, access) }.map_err(|_| Refused::Pages)?;
        // Before it there is no whole one.
        if self.file.is_none() && end > HUGE_PAGE_LEN {
            // SAFETY: committed just now, and any content is a content of uninitialised bytes.
            prefer_huge_pages(unsafe {
                std::slice::from_raw_parts_mut(from.as_ptr().cast(), end - is)
            });
        }
        *committed = end;
        Ok(())
    }

    /// Notes that the first `len` bytes are used from now on, if it was less before: one thread at a time.
    pub fn use_up_to(&self, len: usize) {
        let before = self.used.load(Ordering::Relaxed);
        if len <= before || self.file.is_some() {
            return;
        }
        self.used.store(len, Ordering::Relaxed);
        let touched = self.touched.load(Ordering::Relaxed);
        if len > touched {
            self.touched.store(len, Ordering::Relaxed);
            USED.fetch_add(len - touched, Ordering::Relaxed);
        }
    }

    /// Gives the memory behind the first `len` bytes back; they stay committed.
    fn forget_beyond(&mut self, len: usize) {
        let len = len.next_multiple_of(HUGE_PAGE_LEN);
        let touched = *self.touched.get_mut();
        let end = touched.next_multiple_of(HUGE_PAGE_LEN).min(self.len);
        if len >= touched {
            return;
        }
        // SAFETY: within what is reserved.
        let from = unsafe { self.start.add(len) };
        // SAFETY: as above; nobody uses it, and zeros are a content like any other.
        let forgotten = unsafe { madvise(from.as_ptr().cast(), end - len, Advice::LinuxDontNeed) };
        if forgotten.is_ok() {
            *self.touched.get_mut() = len;
            USED.fetch_sub(touched - len, Ordering::Relaxed);
        }
    }

    /// The same memory for another user.
    fn take_out(&mut self) -> Self {
        let whole = std::mem::take(&mut self.whole);
        Self {
            all: self.all,
            whole,
            start: self.start,
            len: self.len,
            committed: Mutex::new(*self.committed.get_mut()),
            used: AtomicUsize::new(0),
            touched: AtomicUsize::new(*self.touched.get_mut()),
            step_max: AtomicUsize::new(HUGE_PAGE_LEN),
            file: self.file.take(),
            home: Weak::new(),
        }
    }

    /// Bytes from the start that are used, by what [`Self::use_up_to`] was told; none in a file.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes from the start that can be used.
    #[must_use]
    pub fn committed(&self) -> usize {
        *self.committed.lock()
    }

    /// True if the bytes are in a file: they cost memory only as far as the system sees fit.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.give_back(self.take_out());
        }
        if self.whole == 0 {
            return;
        }
        // SAFETY: reserved by `new`, and nobody has an address of it any more.
        let unmapped = unsafe { munmap(self.all.as_ptr().cast(), self.whole) };
        USED.fetch_sub(*self.touched.get_mut(), Ordering::Relaxed);
        ADDRESSES.give_back(self.whole);
        debug_assert!(unmapped.is_ok(), "the addresses were reserved");
    }
}

/// A new file that nobody else finds: its name is gone at once.
///
/// Names that are taken are passed over: a process of the same number had them, which ended too early to take them away or
/// runs beside this one in another container.
fn unnamed_file(dir: &Path) -> rustix::io::Result<OwnedFd> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let new = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    loop {
        let number = FILES.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("orogen-{}-{number}.tmp", std::process::id()));
        match open(&path, new, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => {}
            Err(e) => return Err(e),
            Ok(file) => return unlink(&path).map(|()| file),
        }
    }
}

/// Makes a file longer by zeros that have their place on disk.
fn take_blocks(file: &OwnedFd, from: u64, len: u64) -> rustix::io::Result<()> {
    let taken = retry_on_intr(|| fallocate(file, FallocateFlags::empty(), from, len));
    if taken != Err(Errno::OPNOTSUPP) {
        return taken;
    }
    let zeros = [0; 16 << 10];
    let mut at = from;
    while at < from + len {
        let some = (from + len - at).min(zeros.len() as u64);
        at += retry_on_intr(|| pwrite(file, &zeros[..some as usize], at))? as u64;
    }
    Ok(())
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

    #[test]
    fn what_is_reserved_is_committed_bit_by_bit_and_zeroed() {
        assert!(Reserved::new(usize::MAX).is_none());
        let reserved = Reserved::new(5 * HUGE_PAGE_LEN - 1).unwrap();
        assert!(!reserved.is_file());
        commit_bit_by_bit(&reserved);
        assert_eq!(reserved.used(), 0, "nobody said so");
        reserved.use_up_to(3 * HUGE_PAGE_LEN);
        reserved.use_up_to(HUGE_PAGE_LEN);
        assert_eq!(reserved.used(), 3 * HUGE_PAGE_LEN);
        assert!(reserved_bytes() >= 3 * HUGE_PAGE_LEN);
    }

    #[test]
    fn not_all_addresses_are_taken() {
        let addresses = Addresses::new(100);
        assert!(addresses.take(60));
        assert!(!addresses.take(41) && !addresses.take(usize::MAX));
        assert!(addresses.take(40));
        addresses.give_back(60);
        assert!(addresses.take(59));
    }

    #[test]
    fn no_more_is_committed_ahead_than_one_may() {
        let reserved = Reserved::new(4 * HUGE_PAGE_LEN).unwrap();
        reserved.commit_ahead_at_most(100 << 10);
        for len in (1..HUGE_PAGE_LEN).step_by(50_000) {
            assert!(reserved.commit(len));
            assert!(reserved.committed() <= len + (64 << 10).max(COMMIT_MIN));
        }
        reserved.commit_ahead_at_most(usize::MAX);
        assert!(reserved.commit(HUGE_PAGE_LEN + 1));
        assert_eq!(reserved.committed(), 2 * HUGE_PAGE_LEN);
        reserved.commit_ahead_at_most(0);
        assert!(reserved.commit(2 * HUGE_PAGE_LEN + 1));
        assert_eq!(reserved.committed(), 2 * HUGE_PAGE_LEN + COMMIT_MIN);
    }

    #[test]
    fn a_file_instead_of_memory_has_no_name_and_its_blocks() {
        let dir = std::env::temp_dir().join(format!("orogen-reserved-{}", std::process::id()));
        assert!(Reserved::in_dir(1, &dir).is_err(), "no such directory");
        std::fs::create_dir(&dir).unwrap();
        let reserved = Reserved::in_dir(5 * HUGE_PAGE_LEN - 1, &dir).unwrap();
        assert!(reserved.is_file());
        commit_bit_by_bit(&reserved);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        let file = rustix::fs::fstat(reserved.file.as_ref().unwrap()).unwrap();
        let len = 5 * HUGE_PAGE_LEN as i64;
        assert!((len..=len + HUGE_PAGE_LEN as i64).contains(&file.st_size));
        assert!(file.st_blocks * 512 >= len, "it can be written to");
        reserved.use_up_to(1);
        assert_eq!(reserved.used(), 0, "it is no memory");
        drop(reserved);
        std::fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn a_file_without_a_name_passes_over_names_that_are_taken() {
        let (dir, process) = (std::env::temp_dir(), std::process::id());
        let dir = dir.join(format!("orogen-names-{process}"));
        std::fs::create_dir(&dir).unwrap();
        let taken = (0..64).map(|n| dir.join(format!("orogen-{process}-{n}.tmp")));
        for path in taken.clone() {
            std::fs::write(path, "of a process of the same number").unwrap();
        }
        assert!(Reserved::in_dir(1, &dir).unwrap().is_file());
        for path in taken {
            std::fs::remove_file(path).unwrap();
        }
        std::fs::remove_dir(&dir).unwrap();
    }

    fn commit_bit_by_bit(reserved: &Reserved) {
        assert_eq!(reserved.start().addr().get() % HUGE_PAGE_LEN, 0);
        assert_eq!(reserved.committed(), 0);
        let mut before = 0;
        for len in [1, COMMIT_MIN + 1, HUGE_PAGE_LEN - 1, 3 * HUGE_PAGE_LEN + 1] {
            let missing = reserved.missing(len);
            assert!(reserved.commit(len));
            let now = reserved.committed();
            assert_eq!(now - before, missing, "told before");
            reserved.populate(before, now);
            assert!(now >= len && now <= (2 * len).max(COMMIT_MIN));
            let bytes = NonNull::slice_from_raw_parts(reserved.start(), now);
            // SAFETY: committed, and only used here.
            let bytes = unsafe { &mut *bytes.as_ptr() };
            assert!(bytes[before..].iter().all(|&b| b == 0));
            bytes.fill(7);
            before = now;
        }
        assert!(reserved.commit(5 * HUGE_PAGE_LEN));
        assert!(!reserved.commit(5 * HUGE_PAGE_LEN + 1));
        assert_eq!(reserved.missing(5 * HUGE_PAGE_LEN + 1), 0);
        assert_eq!(reserved.committed(), 5 * HUGE_PAGE_LEN);
    }
}
