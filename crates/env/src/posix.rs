//! The file system of the operating system (Linux).
//!
//! Floor of everything that is on a real disk. Invariants:
//!
//! 1. A writable file keeps its own place and writes there (`pwrite`), so a failed append never
//!    makes a later one leave a hole or write twice at one place.
//! 2. A call that a signal interrupted is made again; no other failure is retried, a failed sync
//!    least of all.
//! 3. Every error names its file in the context `file`.
//! 4. Room reserved beyond the end is given back when the file is closed.
//! 5. A lock keeps out other processes, RocksDB among them, and other opens of this process:
//!    see `posix/lock.rs`. Nobody may open a lock file by another way: closing it would give
//!    the lock up.

mod calls;
mod lock;
mod mapped;
mod short;
mod zeros;

use std::fs::{self, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::perf::{self, PerfCounter};
use orogen_base::{Error, Result};
use rustix::fs::{Advice, FallocateFlags};
use rustix::io::{Errno, retry_on_intr};

use calls::{Calls, System};
use mapped::MappedFile;
pub use short::{ShortCalls, ShortCallsFileSystem};

use crate::PerfTimer;
use crate::ahead::Ahead;
use crate::fs::{
    Access, FileLock, FileSystem, LengthHint, Metadata, RandomAccessFile, WritableFile,
};
use crate::mapping::FileMapping;
use crate::residency::ResidentMapping;

#[expect(
    clippy::disallowed_types,
    reason = "this is the module that the others must use"
)]
type File = fs::File;

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct PosixFileSystem;

impl PosixFileSystem {
    /// The file system; it has no state of its own.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

#[cold]
fn failed(doing: &'static str, path: &Path, e: impl Into<io::Error>) -> Error {
    let e = e.into();
    let has_too_many = e.raw_os_error() == Some(Errno::MFILE.raw_os_error());
    let error = Error::io(doing, e).with("file", path.display());
    if has_too_many {
        return error.with("help", "let the process have more open files (ulimit -n)");
    }
    error
}

/// `Path::parent` of a bare name is empty and means the working directory.
fn directory(path: &Path) -> &Path {
    if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    }
}

/// [`FileSystem::create`], with these calls.
fn create<C: Calls>(path: &Path, calls: C) -> Result<Box<dyn WritableFile>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| failed("cannot create the file", path, e))?;
    Ok(Box::new(PosixWritableFile::new(file, calls, path, 0, 0)))
}

/// A file that is there, to write to it.
fn opened_to_write(path: &Path, doing: &'static str) -> Result<File> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .map_err(|e| failed(doing, path, e))
}

/// [`FileSystem::open_append`], with these calls.
fn open_append<C: Calls>(path: &Path, calls: C) -> Result<Box<dyn WritableFile>> {
    let doing = "cannot open the file to append";
    let file = opened_to_write(path, doing)?;
    let size = file.metadata().map_err(|e| failed(doing, path, e))?.len();
    Ok(Box::new(PosixWritableFile::new(
        file, calls, path, size, size,
    )))
}

/// A file under its new name, with its bytes.
fn renamed(old: &Path, new: &Path) -> Result<(File, u64)> {
    let doing = "cannot reuse the file";
    fs::rename(old, new).map_err(|e| failed(doing, old, e).with("new_name", new.display()))?;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(new)
        .map_err(|e| failed(doing, new, e))?;
    let size = file.metadata().map_err(|e| failed(doing, new, e))?.len();
    Ok((file, size))
}

/// [`FileSystem::reuse`], with these calls.
fn reuse<C: Calls>(old: &Path, new: &Path, calls: C) -> Result<Box<dyn WritableFile>> {
    let (file, size) = renamed(old, new)?;
    Ok(Box::new(PosixWritableFile::new(file, calls, new, 0, size)))
}

/// [`FileSystem::open`], with these calls.
fn open<C: Calls>(path: &Path, access: Access, calls: C) -> Result<Arc<dyn RandomAccessFile>> {
    let doing = "cannot open the file";
    let _timer = PerfTimer::start(PerfCounter::OpenNanos);
    let file = OpenOptions::new()
        .read(true)
        .open(path)
        .map_err(|e| failed(doing, path, e))?;
    let metadata = file.metadata().map_err(|e| failed(doing, path, e))?;
    if metadata.is_dir() {
        return Err(failed(doing, path, Errno::ISDIR));
    }
    let mapping = match access {
        Access::Mapped => FileMapping::new(&file, metadata.len()).map(Mapping::Always),
        Access::MappedInMemory => ResidentMapping::new(path, &metadata).map(Mapping::InMemory),
        Access::Random | Access::Sequential => None,
    };
    let file = PosixRandomAccessFile {
        file,
        mapping,
        calls,
        path: path.to_owned(),
    };
    file.advise(access);
    Ok(Arc::new(file))
}

/// True of errors of a link where a copy serves: to another file system, on one without links, to a file with too many, or
/// to one that the system does not let this user link.
fn has_no_links(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::XDEV | Errno::OPNOTSUPP | Errno::PERM | Errno::MLINK)
    )
}

impl FileSystem for PosixFileSystem {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        create(path, System)
    }

    fn create_mapped(
        &self,
        path: &Path,
        hint: LengthHint,
        ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(|e| failed("cannot create the file", path, e))?;
        Ok(match MappedFile::new(file, 0, path, hint, ahead.cloned()) {
            Ok(mapped) => Box::new(mapped),
            Err(file) => Box::new(PosixWritableFile::new(file, System, path, 0, 0)),
        })
    }

    fn reuse_mapped(
        &self,
        old: &Path,
        new: &Path,
        hint: LengthHint,
        ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let (file, size) = renamed(old, new)?;
        Ok(
            match MappedFile::new(file, size, new, hint, ahead.cloned()) {
                Ok(mapped) => Box::new(mapped),
                Err(file) => Box::new(PosixWritableFile::new(file, System, new, 0, size)),
            },
        )
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        open_append(path, System)
    }

    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        reuse(old, new, System)
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        open(path, access, System)
    }

    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        let doing = "cannot truncate the file";
        let file = opened_to_write(path, doing)?;
        file.set_len(size).map_err(|e| failed(doing, path, e))
    }

    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        let doing = "cannot punch a hole into the file";
        let file = opened_to_write(path, doing)?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&file, how, offset, len)) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Err(Error::not_supported(
                "the file system has no holes in files",
            )
            .with("file", path.display())),
            Err(e) => Err(failed(doing, path, e)),
        }
    }

    fn write_zeros_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        zeros::write_at(path, offset, len, &System)
    }

    fn start_writeback_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        let doing = "cannot start writing out";
        let file = opened_to_write(path, doing)?;
        writeback::start(file.as_raw_fd(), offset, len).map_err(|e| failed(doing, path, e))
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        let failed = |e| failed("cannot ask about the file", path, e);
        let mut meta = fs::symlink_metadata(path).map_err(failed)?;
        let is_link = meta.is_symlink();
        if is_link {
            meta = fs::metadata(path).map_err(failed)?;
        }
        Ok(Metadata {
            size: meta.len(),
            allocated: meta.blocks() * 512,
            is_dir: meta.is_dir(),
            modified_secs: u64::try_from(meta.mtime()).unwrap_or(0),
            links: meta.nlink() + u64::from(is_link),
            block_size: block_size(meta.blksize()),
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        let doing = "cannot list the directory";
        fs::read_dir(directory(dir))
            .map_err(|e| failed(doing, dir, e))?
            .map(|entry| match entry {
                // A name that is not UTF-8 is no file of ours; it is shown and never opened.
                Ok(entry) => Ok(entry.file_name().to_string_lossy().into_owned()),
                Err(e) => Err(failed(doing, dir, e)),
            })
            .collect()
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(|e| failed("cannot create the directory", dir, e))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| failed("cannot remove the file", path, e))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        fs::remove_dir(dir).map_err(|e| failed("cannot remove the directory", dir, e))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to)
            .map_err(|e| failed("cannot rename the file", from, e).with("new_name", to.display()))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        fs::hard_link(from, to).map_err(|e| {
            // That of a directory is refused everywhere.
            let error = match has_no_links(&e) && from.is_file() {
                true => Error::not_supported("cannot link the file here")
                    .with("file", from.display())
                    .caused_by(e),
                false => failed("cannot link the file", from, e),
            };
            error.with("new_name", to.display())
        })
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        OpenOptions::new()
            .read(true)
            .open(directory(dir))
            .and_then(|d| {
                if d.metadata()?.is_dir() {
                    d.sync_all()
                } else {
                    Err(Errno::NOTDIR.into())
                }
            })
            .map_err(|e| failed("cannot sync the directory", dir, e))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        lock::lock(path, lock::By::Fcntl)
    }

    fn lock_by_flock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        lock::lock(path, lock::By::Flock)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        let stat = rustix::fs::statvfs(directory(dir))
            .map_err(|e| failed("cannot ask for the free space", dir, e))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// Block that files are taken to have where the file system tells none.
const BLOCK: u64 = 4 << 10;
/// A longer one is the length of a request that the file system would like, as with NFS.
const BLOCK_MAX: u64 = 128 << 10;

/// Zeros behind the end of a file are written in such pieces.
const ZEROS_AT_ONCE: u64 = 64 << 10;

/// The block of a file, by what `stat` tells of its length.
fn block_size(told: u64) -> u64 {
    if told.is_power_of_two() && told <= BLOCK_MAX {
        told.max(BLOCK)
    } else {
        BLOCK
    }
}

struct PosixWritableFile<C> {
    file: File,
    calls: C,
    path: PathBuf,
    /// Where the next byte goes.
    position: u64,
    /// Bytes in the file; more than `position` where an old file is written over.
    end: u64,
    /// Up to here writeback was asked for.
    writeback: u64,
    /// Up to here room was reserved.
    reserved: u64,
    /// Behind `position` are zeros up to `end`, which nobody wrote.
    is_longer: bool,
    /// Nobody needs what is behind `position`.
    gives_up: bool,
    /// Up to here pages were written over as a whole.
    whole: u64,
}

impl<C> PosixWritableFile<C> {
    fn new(file: File, calls: C, path: &Path, position: u64, end: u64) -> Self {
        Self {
            file,
            calls,
            path: path.to_owned(),
            position,
            end,
            writeback: position,
            reserved: 0,
            is_longer: false,
            gives_up: false,
            whole: position,
        }
    }

    /// Zeros to write behind bytes that end at `end`, to the end of a page of which the rest would be read first.
    fn rest_of_page(&mut self, end: u64) -> &'static [u8] {
        let whole = end.next_multiple_of(BLOCK);
        if !self.gives_up || end <= self.whole || whole > self.end {
            return &[];
        }
        self.whole = whole;
        zeros::some(whole - end)
    }

    /// Gives up the zeros behind the end. If that fails the file stays longer. One that somebody else made longer or
    /// shorter meanwhile is left as it is.
    fn shorten(&mut self) {
        if !std::mem::take(&mut self.is_longer) || self.end == self.position {
            return;
        }
        let metadata = self.file.metadata();
        if metadata.is_ok_and(|meta| meta.len() == self.end) {
            let _ = self.file.set_len(self.position);
        }
        self.end = self.position;
    }
}

impl<C: Calls> WritableFile for PosixWritableFile<C> {
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        let _timer = PerfTimer::start(PerfCounter::WriteNanos);
        perf::add(PerfCounter::BytesWritten, bytes.len() as u64);
        let rest = self.rest_of_page(self.position + bytes.len() as u64);
        while !bytes.is_empty() {
            let at = self.position;
            let written = match rest {
                [] => self.calls.write_at(&self.file, bytes, at),
                rest => self.calls.write_both_at(&self.file, bytes, rest, at),
            };
            match written {
                Ok(0) => return Err(failed("cannot append", &self.path, Errno::IO)),
                Ok(n) => {
                    let n = n.min(bytes.len());
                    self.position += n as u64;
                    bytes = &bytes[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed("cannot append", &self.path, e)),
            }
        }
        self.end = self.end.max(self.position);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let _timer = PerfTimer::start(PerfCounter::FsyncNanos);
        self.file
            .sync_data()
            .map_err(|e| failed("cannot sync the file", &self.path, e))
    }

    /// Of a file that is reused: what was written over.
    fn size(&self) -> u64 {
        self.position
    }

    fn start_writeback(&mut self) -> Result<()> {
        let len = self.position - self.writeback;
        if len == 0 {
            return Ok(());
        }
        writeback::start(self.file.as_raw_fd(), self.writeback, len)
            .map_err(|e| failed("cannot start writing out", &self.path, e))?;
        self.writeback = self.position;
        Ok(())
    }

    fn preallocate(&mut self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        loop {
            return match self.calls.reserve(&self.file, self.position, bytes) {
                Ok(()) => {
                    self.reserved = self.reserved.max(self.position.saturating_add(bytes));
                    Ok(())
                }
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
                Err(e) => {
                    // ext4 keeps what it found before there was no more.
                    self.reserved = self.reserved.max(self.position.saturating_add(bytes));
                    Err(failed("cannot reserve disk space", &self.path, e))
                }
            };
        }
    }

    fn lengthen(&mut self, bytes: u64) -> Result<()> {
        let is_written_over = self.end > self.position && !self.is_longer;
        if bytes == 0 || is_written_over {
            return Ok(());
        }
        loop {
            return match self.calls.lengthen(&self.file, self.position, bytes) {
                Ok(()) => {
                    self.end = self.end.max(self.position.saturating_add(bytes));
                    self.is_longer = true;
                    Ok(())
                }
                Err(Errno::INTR) => continue,
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
                Err(e) => {
                    // It may be longer by what was found before there was no more.
                    let len = self.file.metadata().map_or(0, |meta| meta.len());
                    if len > self.end {
                        self.end = len;
                        self.is_longer = true;
                    }
                    Err(failed("cannot make the file longer", &self.path, e))
                }
            };
        }
    }

    fn write_zeros(&mut self, bytes: u64) -> Result<()> {
        let is_written_over = self.end > self.position && !self.is_longer;
        if is_written_over {
            return Ok(());
        }
        let mut at = self.position;
        let end = at.saturating_add(bytes);
        while at < end {
            let some = zeros::some((end - at).min(ZEROS_AT_ONCE));
            match self.calls.write_at(&self.file, some, at) {
                Ok(0) => return Err(failed("cannot write zeros", &self.path, Errno::IO)),
                Ok(n) => {
                    at += n as u64;
                    self.end = self.end.max(at);
                    self.is_longer = true;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed("cannot write zeros", &self.path, e)),
            }
        }
        Ok(())
    }

    fn seal(&mut self) {
        self.free_reserved();
    }

    fn give_up_old_bytes(&mut self) {
        self.gives_up = true;
    }
}

impl<C> PosixWritableFile<C> {
    /// Gives up what was made ready behind the end; from then on the file may be another's.
    fn free_reserved(&mut self) {
        self.shorten();
        let reserved = std::mem::take(&mut self.reserved);
        if reserved > self.end {
            // Setting the size that the file has frees what is reserved behind it. If that
            // fails, disk space is wasted and nothing else. A file that somebody else made
            // longer or shorter meanwhile is left as it is.
            let same_size = self
                .file
                .metadata()
                .is_ok_and(|meta| meta.len() == self.end);
            if same_size {
                let _ = self.file.set_len(self.end);
            }
        }
    }
}

impl<C> Drop for PosixWritableFile<C> {
    fn drop(&mut self) {
        self.free_reserved();
    }
}

/// The one system call that neither std nor rustix has.
mod writeback {
    #![expect(unsafe_code, reason = "sync_file_range is only in the C library")]

    use std::io;
    use std::os::fd::RawFd;

    const SYNC_FILE_RANGE_WRITE: u32 = 2;

    unsafe extern "C" {
        fn sync_file_range(fd: i32, offset: i64, nbytes: i64, flags: u32) -> i32;
    }

    /// Starts writing out a range of dirty pages; a file system without the call is content.
    pub(super) fn start(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
        let (Ok(offset), Ok(len)) = (i64::try_from(offset), i64::try_from(len)) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        loop {
            // SAFETY: the call takes integers only and touches no memory of this process; a
            // wrong descriptor would be answered with EBADF.
            let result = unsafe { sync_file_range(fd, offset, len, SYNC_FILE_RANGE_WRITE) };
            if result == 0 {
                return Ok(());
            }
            let e = io::Error::last_os_error();
            match e.kind() {
                io::ErrorKind::Interrupted => {}
                // It is a hint: pipes and odd file systems do not know it.
                io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput => return Ok(()),
                io::ErrorKind::NotSeekable => return Ok(()),
                _ => return Err(e),
            }
        }
    }
}

/// How a file is read without calls.
enum Mapping {
    Always(FileMapping),
    InMemory(ResidentMapping),
}

struct PosixRandomAccessFile<C> {
    file: File,
    mapping: Option<Mapping>,
    calls: C,
    path: PathBuf,
}

impl<C: Calls> RandomAccessFile for PosixRandomAccessFile<C> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _timer = PerfTimer::start(PerfCounter::ReadNanos);
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match self.calls.read_at(&self.file, &mut buf[done..], at) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(failed("cannot read", &self.path, e)
                        .with("offset", offset)
                        .with("bytes", buf.len()));
                }
            }
        }
        perf::add(PerfCounter::BytesRead, done as u64);
        Ok(done)
    }

    fn append_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize> {
        let start = out.len();
        let timer = PerfTimer::start(PerfCounter::ReadNanos);
        // The call fills all the room there is, which must not be more than was asked for.
        while out.len() - start < len && out.capacity() - start == len {
            let at = offset + (out.len() - start) as u64;
            match self.calls.append_at(&self.file, out, at) {
                Ok(n) => {
                    perf::add(PerfCounter::BytesRead, n as u64);
                    if n == 0 {
                        return Ok(out.len() - start);
                    }
                }
                Err(Errno::INTR) => {}
                Err(e) => {
                    return Err(failed("cannot read", &self.path, e)
                        .with("offset", offset)
                        .with("bytes", len));
                }
            }
        }
        drop(timer);
        let done = out.len();
        out.resize(start + len, 0);
        let rest = &mut out[done..];
        let n = match rest.len() {
            0 => 0,
            _ => self.read_at(offset + (done - start) as u64, rest)?,
        };
        out.truncate(done + n);
        Ok(done + n - start)
    }

    fn read_at_without_waiting(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        let wanted = buf.len();
        loop {
            let timer = PerfTimer::start(PerfCounter::ReadNanos);
            let read = self.calls.read_at_without_waiting(&self.file, buf, offset);
            drop(timer);
            match read {
                Ok(n) if n == wanted => {
                    perf::add(PerfCounter::BytesRead, n as u64);
                    return Ok(Some(n));
                }
                // Some of it is in memory, or the file ends: `read_at` tells these apart.
                Ok(_) | Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                // The file system cannot tell. Any other failure is met again by `read_at`.
                Err(_) => return self.read_at(offset, buf).map(Some),
            }
        }
    }

    fn with_mapped(&self, offset: u64, len: usize, look: &mut dyn FnMut(&[u8])) -> Option<bool> {
        match self.mapping.as_ref()? {
            Mapping::Always(mapping) => mapping.read(offset, len, look),
            Mapping::InMemory(mapping) => mapping.read(self.file.as_fd(), offset, len, look),
        }
    }

    fn size(&self) -> Result<u64> {
        let meta = self.file.metadata();
        Ok(meta
            .map_err(|e| failed("cannot ask for the size", &self.path, e))?
            .len())
    }

    fn advise(&self, access: Access) {
        let advice = match access {
            Access::Random | Access::Mapped | Access::MappedInMemory => Advice::Random,
            Access::Sequential => Advice::Sequential,
        };
        // A hint; a file system that does not take it serves all the same.
        let _ = rustix::fs::fadvise(&self.file, 0, None, advice);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if let Some(len) = NonZeroU64::new(len) {
            let _ = rustix::fs::fadvise(&self.file, offset, Some(len), Advice::WillNeed);
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests;
