//! The operating system's files, whose calls do less than they were asked to.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use orogen_base::Result;

use super::calls::{Counts, Short};
use super::{PosixFileSystem, create, open, open_append, reuse, zeros};
use crate::fs::{Access, FileLock, FileSystem, Metadata, RandomAccessFile, WritableFile};

/// [`PosixFileSystem`], with reads and writes that move some of the bytes only or are interrupted
/// by a signal that never came: to test that nobody notices. Logs are written by calls, also where
/// they are asked to be mapped.
#[derive(Clone, Debug)]
pub struct ShortCallsFileSystem {
    calls: Short,
}

/// How often [`ShortCallsFileSystem`] did what it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortCalls {
    /// Reads, writes and reservations in all.
    pub calls: u64,
    /// Reads and writes that moved at least one byte and not all.
    pub cut_short: u64,
    /// Calls that gave `EINTR` and did nothing.
    pub interrupted: u64,
}

impl ShortCallsFileSystem {
    /// The file system; `seed` and the order of calls decide which of them go badly.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let counts = Arc::<Counts>::default();
        Self {
            calls: Short { counts, seed },
        }
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> ShortCalls {
        let counts = &self.calls.counts;
        ShortCalls {
            calls: counts.calls.load(Ordering::Relaxed),
            cut_short: counts.cut_short.load(Ordering::Relaxed),
            interrupted: counts.interrupted.load(Ordering::Relaxed),
        }
    }
}

impl FileSystem for ShortCallsFileSystem {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        create(path, self.calls.clone())
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        open_append(path, self.calls.clone())
    }

    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        reuse(old, new, self.calls.clone())
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        open(path, access, self.calls.clone())
    }

    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        PosixFileSystem.truncate(path, size)
    }

    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        PosixFileSystem.punch_hole(path, offset, len)
    }

    fn write_zeros_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        zeros::write_at(path, offset, len, &self.calls)
    }

    fn start_writeback_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        PosixFileSystem.start_writeback_at(path, offset, len)
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        PosixFileSystem.metadata(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        PosixFileSystem.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        PosixFileSystem.create_dir_all(dir)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        PosixFileSystem.remove_file(path)
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        PosixFileSystem.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        PosixFileSystem.rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        PosixFileSystem.hard_link(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        PosixFileSystem.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        PosixFileSystem.lock(path)
    }

    fn lock_by_flock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        PosixFileSystem.lock_by_flock(path)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        PosixFileSystem.free_space(dir)
    }
}
