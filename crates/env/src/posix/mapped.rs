//! A new file that is written through shared memory instead of system calls.
//!
//! For logs: many small appends, each of which must outlive the process at once. A byte that was
//! copied into a shared mapping is in the page cache, where `write` would put it, without the
//! 0.5 microseconds and the inode's lock that each call costs. Invariants:
//!
//! 1. A byte is only stored where disk space was reserved before, so running out of space is an
//!    error of [`WritableFile::append`] with nothing written, and no signal.
//! 2. The file is longer than what was written until it is closed; behind the end are zeros.
//! 3. Only the file systems of [`is_suitable`] are written so: there a page of reserved space can
//!    be made dirty without input or output.
//!
//! Nobody may shorten the file below [`WritableFile::size`] while it is appended to.
//!
//! Cost: three system calls for each [`WINDOW_LEN`] and two for each [`PIECE_LEN`], none of which
//! waits for the device. Reserving may: the file system's journal lets nobody change what it is
//! just writing out. So space is reserved twice in the life of a file that keeps to what it was
//! expected to hold: a window for those that stay small, then the rest.
//!
//! Pages come into being where zeros are written by a call: that makes a large page of the cache
//! for all of them, at half the cost of one after the other. But such a page is written out
//! whole, so a file that is often synced gets its pages one at a time.
#![expect(unsafe_code, reason = "writes into mapped memory")]

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::{File, failed, writeback};
use crate::fs::WritableFile;

/// Bytes that are mapped at a time, and reserved where there is little space.
const WINDOW_LEN: usize = 1 << 20;

/// Windows that are reserved at a time beyond what was expected.
const WINDOWS_BEYOND: u64 = 8;

/// Of the free space a file does not reserve more than one part in so many ahead: others need
/// some to write out what its bytes hold.
const FREE_PARTS: u64 = 8;

/// Bytes of a window that get their pages at a time: fewer faults, and no long pause.
const PIECE_LEN: usize = 16 << 10;

/// Fewer bytes than these between two syncs are often.
const SYNCED_OFTEN: u64 = 64 << 10;

/// Appends of so many bytes are written by a call: that costs no more than making pages for them.
const DIRECT_LEN: usize = 8 << 10;

/// Bytes that are reserved at a time when there is no room for a window.
const PAGE_LEN: usize = 4096;

/// What `statfs` calls the file systems that are known to do it right.
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;
const TMPFS: i64 = 0x0102_1994;

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

struct Window {
    start: NonNull<u8>,
    /// Where in the file it begins.
    offset: u64,
    /// Bytes from the start that have pages.
    populated: usize,
}

/// The file. Of its bytes those before `size` were appended, those before `reserved` are zeros.
pub(super) struct MappedFile {
    file: File,
    path: PathBuf,
    size: u64,
    reserved: u64,
    /// Bytes that it will have, as far as anybody knows.
    expected: u64,
    writeback: u64,
    /// Bytes that were there at the last sync.
    synced: u64,
    window: Option<Window>,
}

// SAFETY: the window is this file's alone, and plain memory wherever the file is moved.
unsafe impl Send for MappedFile {}

impl MappedFile {
    /// Takes a new, empty file that is open for reading and writing; gives it back where it must
    /// be written by calls.
    pub(super) fn new(file: File, path: &Path, expected: u64) -> Result<Self, File> {
        // Where there is no room for a window there may be some for the bytes.
        if !is_suitable(&file) || reserve(&file, 0, WINDOW_LEN as u64).is_err() {
            return Err(file);
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            size: 0,
            reserved: WINDOW_LEN as u64,
            expected,
            writeback: 0,
            synced: 0,
            window: None,
        })
    }

    /// Makes sure of disk space for the bytes before `end`.
    fn grow(&mut self, end: u64) -> orogen_base::Result<()> {
        if end <= self.reserved {
            return Ok(());
        }
        let window = WINDOW_LEN as u64;
        let ahead = match end <= self.expected {
            true => self.expected,
            false => end.saturating_add((WINDOWS_BEYOND - 1) * window),
        };
        let [ahead, one, page] = [(ahead, window), (end, window), (end, PAGE_LEN as u64)]
            .map(|(e, s)| e.next_multiple_of(s));
        let first = match may_reserve_ahead(&self.file, ahead - self.reserved) {
            true => ahead,
            false => one,
        };
        let mut result = Err(Errno::NOSPC);
        for to in [first, one, page] {
            result = reserve(&self.file, self.reserved, to).map(|()| to);
            if !matches!(result, Err(Errno::NOSPC | Errno::DQUOT)) {
                break;
            }
        }
        self.reserved = result.map_err(|e| failed("cannot append", &self.path, e))?;
        Ok(())
    }

    /// The window around the end, with pages for the next `len` bytes of it, for which there is
    /// disk space.
    fn window(&mut self, len: usize) -> io::Result<&Window> {
        let offset = self.size - self.size % WINDOW_LEN as u64;
        let start = (self.size - offset) as usize;
        let mut window = match self.window.take() {
            Some(window) if window.offset == offset => window,
            _ => Window::new(&self.file, offset)?,
        };
        if start + len > window.populated {
            let is_synced_often = self.size - self.synced < SYNCED_OFTEN;
            let piece = if is_synced_often { PAGE_LEN } else { PIECE_LEN };
            let limit = usize::try_from(self.reserved - offset).unwrap_or(usize::MAX);
            let to = (start + len).next_multiple_of(piece);
            let to = to.min(limit).min(WINDOW_LEN);
            // No page with bytes that were appended.
            let fresh = start.next_multiple_of(PAGE_LEN).max(window.populated);
            if !is_synced_often && fresh < to {
                let zeros = &[0; PIECE_LEN][..(to - fresh).min(PIECE_LEN)];
                self.file.write_all_at(zeros, offset + fresh as u64)?;
            }
            window.populate(start, to)?;
        }
        Ok(self.window.insert(window))
    }

    fn append_by_call(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.size)?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// Stores bytes of one window.
    fn append_by_store(&mut self, bytes: &[u8]) -> io::Result<()> {
        let at = (self.size % WINDOW_LEN as u64) as usize;
        let window = self.window(bytes.len())?;
        // SAFETY: `at + bytes.len() <= WINDOW_LEN`, as the caller says.
        let place = unsafe { window.start.add(at) };
        // SAFETY: inside the window, and the bytes come from elsewhere.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.size += bytes.len() as u64;
        Ok(())
    }
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

impl Window {
    fn new(file: &File, offset: u64) -> Result<Self, Errno> {
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: at an address of the system's choice, so over nothing that is there.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                WINDOW_LEN,
                access,
                shared,
                file,
                offset,
            )?
        };
        let start = NonNull::<u8>::new(start.cast()).ok_or(Errno::NOMEM)?;
        // Else Linux reads ahead in large pages, and each store to a new place of one costs as
        // much as all of it: 14 microseconds for 4 KiB, or 2 milliseconds once for 2 MiB.
        // SAFETY: advice on pages that nobody uses yet.
        let _ = unsafe { madvise(start.as_ptr().cast(), WINDOW_LEN, Advice::Random) };
        Ok(Self {
            start,
            offset,
            populated: 0,
        })
    }

    /// Makes the pages from that of `start` to `to` ready to be stored to; they have disk space.
    fn populate(&mut self, start: usize, to: usize) -> Result<(), Errno> {
        // What lies between was written by calls.
        let from = self.populated.max(start - start % PAGE_LEN);
        // SAFETY: within the window, since `from <= to <= WINDOW_LEN`.
        let place = unsafe { self.start.add(from) };
        // SAFETY: the pages are the window's, and none is given up.
        match unsafe { madvise(place.as_ptr().cast(), to - from, Advice::LinuxPopulateWrite) } {
            // Before Linux 5.14: each store makes its page itself.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(e) => return Err(e),
        }
        self.populated = to;
        Ok(())
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; nothing borrows from it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), WINDOW_LEN) };
        debug_assert!(unmapped.is_ok(), "the window was mapped");
    }
}

impl WritableFile for MappedFile {
    fn append(&mut self, mut bytes: &[u8]) -> orogen_base::Result<()> {
        self.grow(self.size.saturating_add(bytes.len() as u64))?;
        let failed = |path: &Path, e| failed("cannot append", path, e);
        if bytes.len() >= DIRECT_LEN {
            return self
                .append_by_call(bytes)
                .map_err(|e| failed(&self.path, e));
        }
        while !bytes.is_empty() {
            let at = (self.size % WINDOW_LEN as u64) as usize;
            let (now, later) = bytes.split_at(bytes.len().min(WINDOW_LEN - at));
            self.append_by_store(now)
                .map_err(|e| failed(&self.path, e))?;
            bytes = later;
        }
        Ok(())
    }

    fn sync(&mut self) -> orogen_base::Result<()> {
        self.file
            .sync_data()
            .map_err(|e| failed("cannot sync the file", &self.path, e))?;
        self.synced = self.size;
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn start_writeback(&mut self) -> orogen_base::Result<()> {
        let len = self.size - self.writeback;
        if len == 0 {
            return Ok(());
        }
        writeback::start(self.file.as_raw_fd(), self.writeback, len)
            .map_err(|e| failed("cannot start writing out", &self.path, e))?;
        self.writeback = self.size;
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.window = None;
        // If that fails zeros stay behind the end. A file that somebody else made longer or
        // shorter meanwhile is left as it is.
        let same_size = self
            .file
            .metadata()
            .is_ok_and(|meta| meta.len() == self.reserved);
        if same_size {
            let _ = self.file.set_len(self.size);
        }
    }
}

#[cfg(test)]
mod tests;
