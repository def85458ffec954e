//! The files of the system, for file systems that wrap them.

use std::io::{Error, ErrorKind, Read, Result, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use orogen_env::{FileSystem as _, PositionalFile, PosixFileSystem};

use super::{FileSystem, Handle, Permission, WriteExt};

/// The files of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefaultFileSystem;

/// An open file of the system.
#[derive(Debug)]
pub struct LogFd(PositionalFile);

impl Handle for LogFd {
    fn truncate(&self, offset: usize) -> Result<()> {
        self.0.set_size(offset as u64)
    }

    fn file_size(&self) -> Result<usize> {
        usize::try_from(self.0.size()?).map_err(Error::other)
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

/// A place in a file of the system, to read or to write.
#[derive(Debug)]
pub struct LogFile {
    file: Arc<LogFd>,
    at: u64,
}

impl Read for LogFile {
    fn read(&mut self, buf: &mut [u8]) -> Result<usize> {
        let n = self.file.0.read_at(self.at, buf)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = self.file.0.write_at(self.at, bytes)?;
        self.at += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Seek for LogFile {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.0.size()?.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}

impl WriteExt for LogFile {
    fn truncate(&mut self, offset: usize) -> Result<()> {
        self.file.truncate(offset)?;
        self.at = offset as u64;
        Ok(())
    }

    fn allocate(&mut self, offset: usize, size: usize) -> Result<()> {
        self.file.0.allocate(offset as u64, size as u64)
    }
}

impl FileSystem for DefaultFileSystem {
    type Handle = LogFd;
    type Reader = LogFile;
    type Writer = LogFile;

    fn create<P: AsRef<Path>>(&self, path: P) -> Result<LogFd> {
        PositionalFile::open(path.as_ref(), true, true).map(LogFd)
    }

    fn open<P: AsRef<Path>>(&self, path: P, perm: Permission) -> Result<LogFd> {
        let write = perm == Permission::ReadWrite;
        PositionalFile::open(path.as_ref(), write, false).map(LogFd)
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        let removed = PosixFileSystem::new().remove_file(path.as_ref());
        removed.map_err(io)
    }

    fn rename<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> Result<()> {
        let renamed = PosixFileSystem::new().rename(src_path.as_ref(), dst_path.as_ref());
        renamed.map_err(io)
    }

    fn new_reader(&self, handle: Arc<LogFd>) -> Result<LogFile> {
        Ok(LogFile {
            file: handle,
            at: 0,
        })
    }

    fn new_writer(&self, handle: Arc<LogFd>) -> Result<LogFile> {
        self.new_reader(handle)
    }

    fn is_plain(&self) -> bool {
        true
    }
}

/// The system's error, with where it was met.
fn io(e: orogen_base::Error) -> Error {
    match crate::Error::from(e) {
        crate::Error::Io(e) => e,
        other => Error::other(other),
    }
}
