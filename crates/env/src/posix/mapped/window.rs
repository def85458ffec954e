//! A stretch of a file in memory, whose pages are made before they are stored to.
//!
//! The writer makes them, or a thread that works ahead of it. Invariants:
//!
//! 1. Bytes of the file before `ready` have pages and disk space, and are the writer's: nobody
//!    else stores to them. Behind what was appended they are zeros, or before `former` what was there.
//! 2. Who makes pages holds `is_made`; only then are zeros written, and only from `ready` on and
//!    behind `written`, which tells what calls wrote beyond `ready`.
//! 3. `reserved` grows only under `is_reserved`. The length of the file is `reserved`.
//!
//! Locks: `state` is a leaf, held for no call of the system. A writer that comes to a place that
//! is just being made waits for it.
#![expect(unsafe_code, reason = "maps a file into memory")]

use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::super::File;

/// Bytes of a page.
pub(super) const PAGE_LEN: u64 = 4096;

/// Bytes that get their pages at a time, at most.
pub(super) const PIECE_MAX: u64 = 64 << 10;

const ZEROS: &[u8; PIECE_MAX as usize] = &[0; PIECE_MAX as usize];

/// What `statfs` calls the file systems that are known to do it right.
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;
const TMPFS: i64 = 0x0102_1994;

/// Of the free space a file does not reserve more than one part in so many ahead: others need
/// some to write out what its bytes hold.
const FREE_PARTS: u64 = 8;

/// Bytes of a file in memory.
pub(super) struct Window {
    start: NonNull<u8>,
    /// Where in the file it begins, and how long it is.
    pub offset: u64,
    pub len: u64,
    /// Pages before this are not mapped any more.
    gone: AtomicU64,
}

// SAFETY: an address that stays mapped until this is dropped; stores go through `place`, which
// only the writer asks for.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    pub(super) fn new(file: &File, offset: u64, len: u64) -> Result<Self, Errno> {
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let bytes = usize::try_from(len).map_err(|_| Errno::NOMEM)?;
        // SAFETY: at an address of the system's choice, so over nothing that is there.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, shared, file, offset)? };
        let start = NonNull::<u8>::new(start.cast()).ok_or(Errno::NOMEM)?;
        // Else Linux reads ahead in large pages, and each store to a new place of one costs as
        // much as all of it: 14 microseconds for 4 KiB, or 2 milliseconds once for 2 MiB.
        // SAFETY: advice on pages that nobody uses yet.
        let _ = unsafe { madvise(start.as_ptr().cast(), bytes, Advice::Random) };
        Ok(Self {
            start,
            offset,
            len,
            gone: AtomicU64::new(offset),
        })
    }

    /// Where the byte at `offset` of the file is, with the rest of the window behind it.
    pub(super) fn place(&self, offset: u64) -> NonNull<u8> {
        debug_assert!((self.offset..self.offset + self.len).contains(&offset));
        // SAFETY: within the window, as everybody who asks has seen.
        unsafe { self.start.add((offset - self.offset) as usize) }
    }

    /// Maps pages of `[from, to)`, which have disk space and lie in the window, for stores.
    fn populate(&self, from: u64, to: u64) -> Result<(), Errno> {
        let from = from.max(self.offset);
        let (place, len) = (self.place(from).as_ptr().cast(), (to - from) as usize);
        // SAFETY: the pages are the window's, and none is given up.
        match unsafe { madvise(place, len, Advice::LinuxPopulateWrite) } {
            // Before Linux 5.14: each store makes its page itself.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

impl Window {
    /// Where the pages begin that are still mapped.
    pub(super) fn gone(&self) -> u64 {
        self.gone.load(Ordering::Relaxed)
    }

    /// Unmaps the pages before `end`, to which nobody stores any more: they stay in the page
    /// cache, and are not counted as this process's memory.
    pub(super) fn let_go(&self, end: u64) {
        let end = end - end % PAGE_LEN;
        let from = self.gone.fetch_max(end, Ordering::Relaxed);
        if from < end {
            let (place, len) = (self.place(from).as_ptr().cast(), (end - from) as usize);
            // SAFETY: nobody borrows from the pages; what was stored is in the page cache.
            let _ = unsafe { madvise(place, len, Advice::LinuxDontNeed) };
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing borrows from it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len as usize) };
        debug_assert!(unmapped.is_ok(), "the window was mapped");
    }
}

/// How far a file is made ready.
struct State {
    reserved: u64,
    is_reserved: bool,
    ready: u64,
    is_made: bool,
    written: u64,
    is_asked: bool,
    is_closed: bool,
}

/// A file that is made ready from its start on.
pub(super) struct Ground {
    file: File,
    /// Bytes of a former use, whole pages: they have disk space, and pages unless the system took these.
    former: u64,
    state: Mutex<State>,
    /// `is_reserved` or `is_made` ended.
    changed: Condvar,
}

impl Ground {
    /// A file of `former` bytes, all of which are there to be written over, with disk space for them
    /// and more, up to a multiple of `step`; gives it back where it must be written by calls.
    pub(super) fn new(file: File, former: u64, step: u64) -> Result<Arc<Self>, File> {
        let reserved = former.max(1).next_multiple_of(step);
        // Where there is no room for a window there may be some for the bytes.
        if !is_suitable(&file) || reserved > former && reserve(&file, former, reserved).is_err() {
            return Err(file);
        }
        let state = State {
            reserved,
            is_reserved: false,
            ready: 0,
            is_made: false,
            written: 0,
            is_asked: false,
            is_closed: false,
        };
        Ok(Arc::new(Self {
            file,
            former: former.next_multiple_of(PAGE_LEN),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }))
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Bytes that have pages.
    pub(super) fn ready(&self) -> u64 {
        self.state.lock().ready
    }

    /// Bytes that have disk space, which is the length of the file.
    pub(super) fn reserved(&self) -> u64 {
        self.state.lock().reserved
    }

    /// Makes sure of disk space for the bytes before `end`; takes more, up to `ahead`, where that
    /// is free and costs no more. Both are rounded up to multiples of `step`.
    pub(super) fn reserve(&self, end: u64, ahead: u64, step: u64) -> Result<(), Errno> {
        let mut state = self.wait(|s| s.is_reserved && s.reserved < end);
        let from = state.reserved;
        if end <= from || state.is_closed {
            return Ok(());
        }
        state.is_reserved = true;
        drop(state);
        let [ahead, one, page] = [(ahead, step), (end, step), (end, PAGE_LEN)]
            .map(|(end, step)| end.next_multiple_of(step));
        let first = match may_reserve_ahead(&self.file, ahead - from) {
            true => ahead,
            false => one,
        };
        let mut result = Err(Errno::NOSPC);
        for to in [first, one, page] {
            result = reserve(&self.file, from, to).map(|()| to);
            if !matches!(result, Err(Errno::NOSPC | Errno::DQUOT)) {
                break;
            }
        }
        let mut state = self.state.lock();
        state.is_reserved = false;
        state.reserved = *result.as_ref().unwrap_or(&from);
        drop(state);
        self.changed.notify_all();
        result.map(|_| ())
    }

    /// Makes pages of at least the bytes before `end`, which lie in `window` and have disk space,
    /// `piece` bytes at a time; without zeros only what is asked for is made dirty.
    pub(super) fn make(
        &self,
        window: &Window,
        end: u64,
        piece: u64,
        zeros: bool,
    ) -> io::Result<()> {
        loop {
            let mut state = self.wait(|s| s.is_made);
            if state.ready >= end || state.is_closed {
                return Ok(());
            }
            let limit = state.reserved.min(window.offset + window.len);
            let from = state.ready.max(window.offset);
            let to = (from + 1).next_multiple_of(piece).min(limit).max(from);
            let written = state.written;
            debug_assert!(end <= limit);
            state.is_made = true;
            drop(state);
            let made = self.make_piece(window, (from, to), written, zeros);
            let mut state = self.state.lock();
            state.is_made = false;
            if made.is_ok() {
                state.ready = to;
            }
            drop(state);
            self.changed.notify_all();
            made?;
        }
    }

    fn make_piece(
        &self,
        window: &Window,
        (from, to): (u64, u64),
        written: u64,
        zeros: bool,
    ) -> io::Result<()> {
        // No page with bytes that were appended.
        let fresh = from.max(written.next_multiple_of(PAGE_LEN));
        let is_there = fresh < to && to <= self.former && self.is_cached(fresh, to);
        if zeros && fresh < to && !is_there {
            let len = (to - fresh).min(PIECE_MAX);
            self.file.write_all_at(&ZEROS[..len as usize], fresh)?;
        }
        // What lies between was written by calls.
        let from = from.max(written - written % PAGE_LEN);
        if from < to {
            window.populate(from, to)?;
        }
        Ok(())
    }

    /// True if the pages of `[from, to)`, which were written together, are most likely in memory. Else
    /// storing to them would read each of them from the device.
    fn is_cached(&self, from: u64, to: u64) -> bool {
        [from, to - 1].iter().all(|&at| {
            let mut byte = [0];
            let buffers = &mut [IoSliceMut::new(&mut byte)];
            preadv2(&self.file, buffers, at, ReadWriteFlags::NOWAIT).is_ok_and(|read| read == 1)
        })
    }

    /// Has the bytes before `end` written by calls, to disk space that they have: `write` does it.
    pub(super) fn write_by_call(
        &self,
        end: u64,
        write: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.wait(|s| s.is_made);
        state.is_made = true;
        drop(state);
        let result = write(&self.file);
        let mut state = self.state.lock();
        state.is_made = false;
        // Also after an error: some of it may be there.
        state.written = state.written.max(end);
        drop(state);
        self.changed.notify_all();
        result
    }

    /// True if nobody has been asked to work ahead yet who has not answered; the caller then asks.
    pub(super) fn may_ask(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_asked, true)
    }

    /// What was asked for is done.
    pub(super) fn answer(&self) {
        self.state.lock().is_asked = false;
    }

    /// Lets nobody make anything from now on.
    pub(super) fn close(&self) {
        let mut state = self.wait(|s| s.is_made || s.is_reserved);
        state.is_closed = true;
    }

    fn wait(&self, is_busy: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while is_busy(&state) {
            self.changed.wait(&mut state);
        }
        state
    }
}

/// True if the file lies where it may be written through memory.
fn is_suitable(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| [EXT4, XFS, TMPFS].contains(&stat.f_type))
}

/// True if `bytes` are little beside the free space, and reserving them takes no longer than
/// reserving less: tmpfs makes every page at once.
fn may_reserve_ahead(file: &File, bytes: u64) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|stat| {
        let free = (stat.f_bavail).saturating_mul(u64::try_from(stat.f_bsize).unwrap_or(0));
        stat.f_type != TMPFS && bytes <= free / FREE_PARTS
    })
}

/// Reserves the bytes `[from, to)` of a file, which becomes so long.
fn reserve(file: &File, from: u64, to: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), from, to - from) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}
