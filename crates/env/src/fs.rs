//! What the engine asks of a file system.
//!
//! Contracts hold for every implementation: POSIX, memory with power cuts, and the one that
//! fails on purpose. Paths are whole paths. All calls may be made from any thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::{Error, Result, memory};

use crate::ahead::Ahead;

/// A file that is written from its end.
///
/// Dropping it without [`WritableFile::sync`] promises nothing about its bytes after a power
/// loss.
pub trait WritableFile: Send {
    /// Adds bytes at the end; they are with the operating system when this returns.
    ///
    /// # Errors
    /// `NoSpace` or `Io`; some of the bytes may have been written.
    fn append(&mut self, bytes: &[u8]) -> Result<()>;
    /// Makes all appended bytes and the size survive a power loss.
    ///
    /// # Errors
    /// `Io`. The caller must not retry on the same file: what was dirty may be lost for good.
    fn sync(&mut self) -> Result<()>;
    /// Bytes in the file; of one that is written over, those written so far.
    fn size(&self) -> u64;
    /// Asks the system to start writing out what was appended so far, without waiting.
    ///
    /// # Errors
    /// `Io`.
    fn start_writeback(&mut self) -> Result<()> {
        Ok(())
    }
    /// Says that nothing will be appended: what was made ready behind the end is given up, and the file
    /// can be given to another use while this is still there to sync it.
    fn seal(&mut self) {}
    /// Reserves disk space beyond the end without changing the size.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn preallocate(&mut self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }
    /// Makes the file longer by zeros behind the end, which appends then replace: so a sync need not write a new size each time.
    /// They are given up when it is sealed or closed; after a crash the file may end with them. [`Self::size`] does not count them.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn lengthen(&mut self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }
    /// As [`Self::lengthen`], and writes the zeros, so that a sync of what replaces them need not tell where it lies. A file that is
    /// written over stays as it is.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn write_zeros(&mut self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }
    /// Says of a file that is written over that nobody needs the bytes behind the end: some of them may become zeros with the next
    /// appends, so that the system need not read a page of which only a part is replaced.
    fn give_up_old_bytes(&mut self) {}
}

/// How a file will be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Here and there: no readahead.
    Random,
    /// From front to back: readahead.
    Sequential,
    /// Here and there, and where the system can do so out of a mapping of the whole file, see
    /// [`RandomAccessFile::with_mapped`]. For finished files alone, which the page cache mostly holds:
    /// pages that it does not hold are read some at a time, by whoever touches them.
    Mapped,
    /// As that, but only while memory holds nearly all that is read of the files of the same directory;
    /// by calls otherwise.
    MappedInMemory,
}

/// A file that is read at any place by many threads.
pub trait RandomAccessFile: Send + Sync {
    /// Reads up to `buf.len()` bytes at `offset`; fewer only at the end of the file.
    ///
    /// # Errors
    /// `Io`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;
    /// Adds up to `len` bytes at `offset` to `out`; fewer only at the end of the file.
    ///
    /// A vector that was made with room for just so many need not be filled with zeros first. One
    /// without the room grows, and ends the process where there is no memory.
    ///
    /// # Errors
    /// `Io`; some of the bytes may have been added.
    fn append_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<usize> {
        let start = out.len();
        out.resize(start + len, 0);
        let n = self.read_at(offset, &mut out[start..])?;
        out.truncate(start + n);
        Ok(n)
    }
    /// As [`Self::read_at`] if the bytes are in memory; `None` if somebody would have to wait
    /// for the device. Where that cannot be told it waits.
    ///
    /// # Errors
    /// `Io`.
    fn read_at_without_waiting(&self, offset: u64, buf: &mut [u8]) -> Result<Option<usize>> {
        self.read_at(offset, buf).map(Some)
    }
    /// Shows so many bytes at `offset` to `look` where the system has them; `None`, and nothing is shown, where they have to be read by
    /// a call. False if they were not the file's all the while: then what came of the look is not to be used, and they are to be
    /// read by a call, too. They are to be used on this thread, and not within a look at another file: who touches a page there that
    /// the device cannot give ends the process.
    fn with_mapped(&self, offset: u64, len: usize, look: &mut dyn FnMut(&[u8])) -> Option<bool> {
        let _ = (offset, len, look);
        None
    }
    /// Bytes in the file now.
    ///
    /// # Errors
    /// `Io`.
    fn size(&self) -> Result<u64>;
    /// Tells the system how the file will be read.
    fn advise(&self, access: Access) {
        let _ = access;
    }
    /// Asks the system to read a range ahead, without waiting.
    fn prefetch(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// The path, for messages.
    fn path(&self) -> &Path;
}

impl dyn RandomAccessFile {
    /// Reads exactly `buf.len()` bytes at `offset`.
    ///
    /// # Errors
    /// `Corruption` if the file ends before; `Io`.
    pub fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let n = self.read_at(offset, buf)?;
        self.is_whole(offset, buf.len(), n)
    }

    /// Adds exactly `len` bytes at `offset` to `out`, as [`RandomAccessFile::append_at`] does.
    ///
    /// # Errors
    /// `Corruption` if the file ends before; `Io`.
    pub fn append_exact_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let n = self.append_at(offset, len, out)?;
        self.is_whole(offset, len, n)
    }

    fn is_whole(&self, offset: u64, wanted: usize, got: usize) -> Result<()> {
        if got == wanted {
            return Ok(());
        }
        Err(Error::corruption("file is cut off")
            .with("file", self.path().display())
            .with("offset", offset)
            .with("wanted", wanted)
            .with("got", got))
    }
}

/// Keeps other processes and other opens out until it is dropped.
pub trait FileLock: Send + Sync {}

/// What is known of a file without opening it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Size in bytes.
    pub size: u64,
    /// Disk space taken in bytes.
    pub allocated: u64,
    /// True for a directory.
    pub is_dir: bool,
    /// Last change in seconds since 1970.
    pub modified_secs: u64,
    /// How many names the file has; a symbolic link by which it was asked for counts as one more.
    pub links: u64,
    /// Bytes of a block, a power of two: the file system takes whole blocks of the file back.
    pub block_size: u64,
}

/// How long a new file may become.
#[derive(Clone, Copy, Debug, Default)]
pub struct LengthHint {
    /// So long at most, as far as anybody knows.
    pub expected: u64,
    /// So long, if it is like the one before.
    pub likely: u64,
}

/// A file system.
///
/// New, renamed, linked and removed names survive a power loss after
/// [`FileSystem::sync_dir`] of their directory.
pub trait FileSystem: Send + Sync {
    /// A new file; one of that name is emptied.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>>;
    /// As [`Self::create`], for many small appends: written through shared memory where that can
    /// be done, else as any file. Until it is closed the file may be longer than what was
    /// appended, with zeros behind; space for what is expected may be reserved, and `ahead` may
    /// do so, and make pages, before they are needed.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    fn create_mapped(
        &self,
        path: &Path,
        hint: LengthHint,
        ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let _ = (hint, ahead);
        self.create(path)
    }
    /// A file to go on writing at its end.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>>;
    /// Renames `old` to `new` and writes over its bytes from the start (log recycling).
    ///
    /// # Errors
    /// `Io`.
    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>>;
    /// As [`Self::reuse`], but written as by [`Self::create_mapped`].
    ///
    /// # Errors
    /// `Io`.
    fn reuse_mapped(
        &self,
        old: &Path,
        new: &Path,
        hint: LengthHint,
        ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let _ = (hint, ahead);
        self.reuse(old, new)
    }
    /// A file to read.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>>;
    /// Shortens a file.
    ///
    /// # Errors
    /// `Io`.
    fn truncate(&self, path: &Path, size: u64) -> Result<()>;
    /// Gives the disk space of a part of a file back, as far as it is whole blocks. It reads as
    /// zeros from then on, and the file keeps its size. Before a sync of the file a power loss
    /// may bring bytes back.
    ///
    /// # Errors
    /// `NotSupported` where the file system has no holes; `Io`.
    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()>;
    /// Writes zeros over a part of a file, which is made if it is not there and becomes longer if need be: past the page cache where that can be done, for blocks that
    /// are to be written over later. A multiple of 4 KiB is written fastest. Who writes to the file meanwhile must do so
    /// elsewhere. They survive a power loss after a sync of the file.
    ///
    /// # Errors
    /// `NotSupported`, and there is no new file then; `NoSpace` or `Io`, and some zeros may have been written.
    fn write_zeros_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        let _ = (offset, len);
        Err(Error::not_supported("the file system cannot write zeros").with("file", path.display()))
    }
    /// Asks the system to start writing out a part of a file that was appended before, without waiting for it. A matter of speed: nothing
    /// is promised about a power loss.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    fn start_writeback_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        let _ = (path, offset, len);
        Ok(())
    }
    /// What is known of a file.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    fn metadata(&self, path: &Path) -> Result<Metadata>;
    /// The names in a directory, without `.` and `..`, in any order.
    ///
    /// # Errors
    /// `Io`.
    fn list(&self, dir: &Path) -> Result<Vec<String>>;
    /// Makes a directory and its parents; content with one that is there.
    ///
    /// # Errors
    /// `Io`.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    fn remove_file(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    /// `Io`.
    fn remove_dir(&self, dir: &Path) -> Result<()>;
    /// Gives a file another name at once, replacing what has it.
    ///
    /// # Errors
    /// `Io`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Gives a file a second name.
    ///
    /// # Errors
    /// `Io`; `NotSupported` where a copy serves: across file systems, where there are no links, or too many to the file.
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()>;
    /// Makes the names in a directory survive a power loss.
    ///
    /// # Errors
    /// `Io`.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Makes and locks a file, without waiting.
    ///
    /// # Errors
    /// `Busy` if this process or another holds it; `Io`.
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>>;
    /// The same against programs that lock the file by `flock`, which those that lock it by `fcntl` do not notice, as
    /// [`Self::lock`] and RocksDB do.
    ///
    /// # Errors
    /// As [`Self::lock`].
    fn lock_by_flock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.lock(path)
    }
    /// Bytes free to this user on the file system of `dir`.
    ///
    /// # Errors
    /// `Io`.
    fn free_space(&self, dir: &Path) -> Result<u64>;

    /// True if the name exists.
    ///
    /// # Errors
    /// `Io`.
    fn exists(&self, path: &Path) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if e.is_file_not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// The lock of a directory that is only read; none where the file system takes no writes, from nobody.
///
/// # Errors
/// That of `locked`, if it is another one.
pub fn unless_read_only(locked: Result<Box<dyn FileLock>>) -> Result<Option<Box<dyn FileLock>>> {
    match locked {
        Err(e) if e.is_read_only_file_system() => Ok(None),
        locked => locked.map(Some),
    }
}

/// The whole of a file.
///
/// # Errors
/// `Io`; `Corruption` if it shrinks meanwhile.
pub fn read_file(fs: &dyn FileSystem, path: &Path) -> Result<Vec<u8>> {
    let file = fs.open(path, Access::Sequential)?;
    let size = file.size()?;
    let mut bytes = memory::zeroed(usize::try_from(size).unwrap_or(usize::MAX), "a whole file")?;
    file.read_exact_at(0, &mut bytes)?;
    Ok(bytes)
}

/// The directory that holds `path`: `.` for a name alone.
#[must_use]
pub fn parent_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new("."))
}

/// Makes a directory, and those above that are not there, so that their names survive a power loss. One that is there stays.
///
/// # Errors
/// `NoSpace` or `Io`; what was made is removed then.
pub fn make_dir(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let mut made = Vec::new();
    for at in dir.ancestors() {
        if at.as_os_str().is_empty() || fs.exists(at)? {
            break;
        }
        made.push(at);
    }
    if made.is_empty() {
        // Another call may have made it and not got to this. Whoever else made it may keep its parent from us.
        let _ = fs.sync_dir(parent_of(dir));
        return Ok(());
    }
    let result = fs.create_dir_all(dir).and_then(|()| {
        let mut outermost_first = made.iter().rev();
        outermost_first.try_for_each(|at| fs.sync_dir(parent_of(at)))
    });
    if result.is_err() {
        for at in made {
            // It may not be there, or somebody else may have put something into it.
            let _ = fs.remove_dir(at);
        }
    }
    result
}

/// Writes a new file and syncs it; the name is not synced.
///
/// # Errors
/// `NoSpace` or `Io`.
pub fn write_file(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = fs.create(path)?;
    file.append(bytes)?;
    file.sync()
}

/// Replaces a file so that after a power loss either the old or the new bytes are there.
///
/// # Errors
/// `NoSpace` or `Io`; the old file is then still there.
pub fn replace_file(fs: &dyn FileSystem, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".dbtmp");
    let temporary = PathBuf::from(name);
    write_file(fs, &temporary, bytes)?;
    fs.rename(&temporary, path)?;
    if let Some(dir) = path.parent() {
        fs.sync_dir(dir)?;
    }
    Ok(())
}
