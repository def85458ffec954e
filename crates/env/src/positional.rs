//! A file of the operating system that is read and written at any place.
//!
//! For doors that must offer such files to others. What is ours reads a
//! [`RandomAccessFile`](crate::RandomAccessFile) and writes a [`WritableFile`](crate::WritableFile).

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

#[expect(
    clippy::disallowed_types,
    reason = "this is one of the modules that the others must use"
)]
type File = fs::File;

/// An open file. All calls may be made from any thread.
///
/// Calls that a signal interrupted are to be made again by who makes them.
#[derive(Debug)]
pub struct PositionalFile(File);

impl PositionalFile {
    /// Opens a file to read it, and with `write` to write it, too; with `create` it is made if it is not
    /// there.
    ///
    /// # Errors
    /// Of the system.
    pub fn open(path: &Path, write: bool, create: bool) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true).write(write || create).create(create);
        Ok(Self(how.truncate(false).open(path)?))
    }

    /// Reads up to `buf.len()` bytes; how many.
    ///
    /// # Errors
    /// Of the system.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    /// Writes up to `bytes.len()` bytes; how many.
    ///
    /// # Errors
    /// Of the system.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }

    /// Bytes in the file.
    ///
    /// # Errors
    /// Of the system.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    /// Makes it shorter, or longer by zeros.
    ///
    /// # Errors
    /// Of the system.
    pub fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    /// Makes room for bytes and the file at least so long; where the file system cannot, nothing.
    ///
    /// # Errors
    /// Of the system.
    pub fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), offset, len) {
            Err(e) if e != Errno::OPNOTSUPP => Err(e.into()),
            _ => Ok(()),
        }
    }

    /// Makes its bytes and its size survive a power loss.
    ///
    /// # Errors
    /// Of the system.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
