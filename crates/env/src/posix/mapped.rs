//! A file that is written through shared memory instead of system calls: a new one, or one that is written
//! over from its start.
//!
//! For logs: many small appends, each of which must outlive the process at once. A byte that was
//! copied into a shared mapping is in the page cache, where `write` would put it, without the
//! 0.5 microseconds and the inode's lock that each call costs. Invariants:
//!
//! 1. A byte is only stored where disk space was reserved before, so running out of space is an
//!    error of [`WritableFile::append`] with nothing written, and no signal.
//! 2. The file is longer than what was written until it is sealed or closed; behind the end are zeros,
//!    and of a file that is written over what was there.
//! 3. Only on ext4, XFS and tmpfs: there a page of reserved space can be made dirty without input
//!    or output.
//! 4. Stores before `look_at` are to pages that are there; the rest is in [`Ground`].
//! 5. Once it is sealed nothing is done to the file: it may be somebody else's by then.
//!
//! Nobody may shorten the file below [`WritableFile::size`] while it is appended to.
//!
//! Cost: two system calls for each [`PIECE_LEN`] where nobody works ahead; with [`Ahead`] a lock
//! and at times a thread to wake for each [`STEP_LEN`]. What the file is expected to hold is
//! mapped at once, as mapping waits for everybody in the process who maps and unmaps. Reserving may
//! wait for the device: the file system's journal lets nobody change what it is just writing out.
//! So space is reserved twice in the life of a file that keeps to what it was expected to hold:
//! [`SPACE_LEN`] for those that stay small, then the rest.
//!
//! Pages come into being where zeros are written by a call: that makes a large page of the cache
//! for all of them, at half the cost of one after the other. But such a page is written out
//! whole, so a file that is often synced gets its pages one at a time, and not ahead.
#![expect(unsafe_code, reason = "writes into mapped memory")]

mod window;

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;

use super::{File, failed, writeback};
use crate::ahead::Ahead;
use crate::fs::{LengthHint, WritableFile};
use window::{Ground, PAGE_LEN, PIECE_MAX, Window};

/// Bytes that are reserved at first, and at a time where there is little space.
const SPACE_LEN: u64 = 1 << 20;

/// Bytes that are mapped, and reserved, at a time beyond what was expected.
const BEYOND_LEN: u64 = 8 * SPACE_LEN;

/// The most that is mapped at once.
const WINDOW_MAX: u64 = 1 << 30;

/// Bytes that get their pages at a time from the writer: fewer faults, and no long pause.
const PIECE_LEN: u64 = 16 << 10;

/// Bytes that are made ready ahead of a writer: milliseconds of the fastest one.
const AHEAD_LEN: u64 = 3 << 20;

/// The same where the file already has about what it was likely to get: what is made and not used
/// was made dirty for nothing.
const AHEAD_AT_END_LEN: u64 = 128 << 10;

/// A writer looks after so many bytes whether more are to be made ready: waking a thread that
/// sleeps may cost more than making a few pages.
const STEP_LEN: u64 = 1 << 20;

/// Fewer bytes than these between two syncs are often.
const SYNCED_OFTEN: u64 = 64 << 10;

/// A writer that nobody works ahead of unmaps so many bytes at a time behind it. Whoever syncs the file has the processors
/// told of each page that is mapped and was stored to.
const LET_GO_LEN: u64 = 8 << 20;

/// Appends of so many bytes are written by a call: that costs no more than making pages for them.
const DIRECT_LEN: usize = 8 << 10;

/// The file. Of its bytes those before `size` were appended.
pub(super) struct MappedFile {
    ground: Arc<Ground>,
    window: Option<Arc<Window>>,
    path: PathBuf,
    size: u64,
    /// Stores that end here or before need no look at `ground`.
    look_at: u64,
    /// Bytes that it will have at most, as far as anybody knows.
    expected: u64,
    /// Bytes that it will have, if it is like the one before.
    likely: u64,
    writeback: u64,
    /// Bytes that were there at the last sync, but for those of less than a page.
    synced: Option<u64>,
    is_sealed: bool,
    ahead: Option<Arc<Ahead>>,
}

impl MappedFile {
    /// Takes a file of `former` bytes, to be written over, that is open for reading and writing; gives it
    /// back where it must be written by calls.
    pub(super) fn new(
        file: File,
        former: u64,
        path: &Path,
        hint: LengthHint,
        ahead: Option<Arc<Ahead>>,
    ) -> Result<Self, File> {
        Ok(Self {
            ground: Ground::new(file, former, SPACE_LEN)?,
            window: None,
            path: path.to_owned(),
            size: 0,
            look_at: 0,
            expected: hint.expected.next_multiple_of(SPACE_LEN).max(SPACE_LEN),
            likely: hint.likely,
            writeback: 0,
            synced: None,
            is_sealed: false,
            ahead,
        })
    }

    /// Makes sure of disk space for the bytes before `end`.
    fn reserve(&self, end: u64) -> orogen_base::Result<()> {
        if end <= self.look_at {
            return Ok(());
        }
        let ahead = match end <= self.expected {
            true => self.expected,
            false => end.saturating_add(BEYOND_LEN - SPACE_LEN),
        };
        self.ground
            .reserve(end, ahead, SPACE_LEN)
            .map_err(|e| failed("cannot append", &self.path, e))
    }

    /// The window around the end; `None` where the system does not map it, for lack of memory or of mappings.
    fn window(&mut self) -> Option<Arc<Window>> {
        if let Some(window) = &self.window
            && (window.offset..window.offset + window.len).contains(&self.size)
        {
            return Some(window.clone());
        }
        // Not two at once, where there is no memory for it.
        self.window = None;
        let offset = self.size - self.size % SPACE_LEN;
        let len = match offset < self.expected {
            true => (self.expected - offset).min(WINDOW_MAX),
            false => BEYOND_LEN,
        };
        let window = Window::new(self.ground.file(), offset, len).ok()?;
        Some(self.window.insert(Arc::new(window)).clone())
    }

    /// Bytes since the last sync; `None` if there was none.
    fn unsynced(&self) -> Option<u64> {
        self.synced.map(|synced| self.size - synced)
    }

    /// Makes pages for the bytes before `end`, which have disk space, as far as the window goes;
    /// has more made ahead. `None` if there is no window.
    fn make_ready(&mut self, end: u64) -> io::Result<Option<Arc<Window>>> {
        let Some(window) = self.window() else {
            return Ok(None);
        };
        let limit = window.offset + window.len;
        let is_synced_often = self.unsynced().unwrap_or(self.size) < SYNCED_OFTEN;
        let piece = if is_synced_often { PAGE_LEN } else { PIECE_LEN };
        self.ground
            .make(&window, end.min(limit), piece, !is_synced_often)?;
        self.look_at = self.ground.ready().min(limit);
        if let Some(ahead) = &self.ahead
            && !is_synced_often
        {
            let likely = self.likely.max(self.size + AHEAD_AT_END_LEN);
            let target = (self.size + AHEAD_LEN).min(likely).min(limit);
            let pages = self.unsynced().is_none_or(|bytes| bytes >= AHEAD_LEN);
            let is_needed = pages && self.look_at < target || self.ground.reserved() < target;
            if is_needed && self.ground.may_ask() {
                let (ground, window) = (self.ground.clone(), window.clone());
                let (size, expected) = (self.size, self.expected);
                ahead.ask(move || {
                    ground.make_ahead(&window, target, expected, pages);
                    window.let_go(size);
                });
            }
            let step = STEP_LEN.min((target - self.size) / 2);
            self.look_at = self.look_at.min(end.max(self.size + step));
        } else if self.size >= window.gone() + LET_GO_LEN {
            window.let_go(self.size);
        }
        Ok(Some(window))
    }

    fn append_by_call(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (offset, end) = (self.size, self.size + bytes.len() as u64);
        self.ground
            .write_by_call(end, |file| file.write_all_at(bytes, offset))?;
        self.size = end;
        Ok(())
    }

    /// Stores bytes as far as the window goes; returns how many. All are written by a call where there is no window: the
    /// next ones may have one.
    #[inline]
    fn append_by_store(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.size + bytes.len() as u64;
        let made;
        let window = match &self.window {
            Some(window) if end <= self.look_at => window,
            _ => {
                let Some(ready) = self.make_ready(end)? else {
                    return self.append_by_call(bytes).map(|()| bytes.len());
                };
                made = ready;
                &made
            }
        };
        let len = bytes
            .len()
            .min((window.offset + window.len - self.size) as usize);
        let place = window.place(self.size);
        // SAFETY: inside the window, on pages that are there and nobody else stores to, and the
        // bytes come from elsewhere.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), len) };
        self.size += len as u64;
        Ok(len)
    }
}

impl Ground {
    /// Makes the bytes before `end` ready, of a file that is to get `expected`; what cannot be
    /// done is left to the writer, who then gets the error.
    fn make_ahead(&self, window: &Window, end: u64, expected: u64, pages: bool) {
        let make = || {
            let end = end.min(self.reserved());
            !pages || self.make(window, end, PIECE_MAX, true).is_ok()
        };
        // First where there is space: the writer goes on there while space is reserved.
        if make() && self.reserved() < end {
            let _ = self.reserve(end, expected.max(end), SPACE_LEN).is_ok() && make();
        }
        self.answer();
    }
}

impl WritableFile for MappedFile {
    fn append(&mut self, mut bytes: &[u8]) -> orogen_base::Result<()> {
        if self.is_sealed {
            // There is no space behind the end any more, and what is stored there is lost.
            return Err(failed("cannot append", &self.path, Errno::BADF));
        }
        self.reserve(self.size.saturating_add(bytes.len() as u64))?;
        let failed = |path: &Path, e| failed("cannot append", path, e);
        if bytes.len() >= DIRECT_LEN {
            return self
                .append_by_call(bytes)
                .map_err(|e| failed(&self.path, e));
        }
        while !bytes.is_empty() {
            let len = self
                .append_by_store(bytes)
                .map_err(|e| failed(&self.path, e))?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn sync(&mut self) -> orogen_base::Result<()> {
        self.ground
            .file()
            .sync_data()
            .map_err(|e| failed("cannot sync the file", &self.path, e))?;
        // What a header's sync says of those that follow is nothing.
        if self.synced.is_some() || self.size >= PAGE_LEN {
            self.synced = Some(self.size);
        }
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn seal(&mut self) {
        if std::mem::replace(&mut self.is_sealed, true) {
            return;
        }
        self.window = None;
        self.ground.close();
        // If that fails the file stays longer. One that somebody else made longer or shorter meanwhile is
        // left as it is.
        let file = self.ground.file();
        let same_size = file
            .metadata()
            .is_ok_and(|meta| meta.len() == self.ground.reserved());
        if same_size {
            let _ = file.set_len(self.size);
        }
    }

    fn start_writeback(&mut self) -> orogen_base::Result<()> {
        let len = self.size - self.writeback;
        if len == 0 {
            return Ok(());
        }
        writeback::start(self.ground.file().as_raw_fd(), self.writeback, len)
            .map_err(|e| failed("cannot start writing out", &self.path, e))?;
        self.writeback = self.size;
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        self.seal();
    }
}

#[cfg(test)]
mod tests;
