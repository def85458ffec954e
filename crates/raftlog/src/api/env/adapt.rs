//! Makes of a file system of this API one that the engine can use.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::{Error, Result};
use orogen_env::{
    Access, FileLock, FileSystem as OwnFileSystem, Metadata, PosixFileSystem, RandomAccessFile,
    WritableFile,
};

use super::{FileSystem, Handle as _, Permission, WriteExt as _};

/// The file system that the engine uses in place of `theirs`.
pub(crate) fn adapted<F: FileSystem>(theirs: Arc<F>) -> Arc<dyn OwnFileSystem> {
    let posix = PosixFileSystem::new();
    if theirs.is_plain() {
        return Arc::new(posix);
    }
    Arc::new(Adapted { theirs, posix })
}

struct Adapted<F> {
    theirs: Arc<F>,
    posix: PosixFileSystem,
}

#[cold]
fn failed(doing: &'static str, path: &Path, e: io::Error) -> Error {
    // A file system that wraps errors says so in their text.
    let is_full = e.to_string().contains("nospace");
    let e = if is_full {
        io::Error::new(io::ErrorKind::StorageFull, e)
    } else {
        e
    };
    Error::io(doing, e).with("file", path.display())
}

fn place(at: u64, path: &Path) -> Result<usize> {
    usize::try_from(at)
        .map_err(|_| Error::invalid_argument("file is too long").with("file", path.display()))
}

struct Writing<F: FileSystem> {
    handle: Arc<F::Handle>,
    writer: F::Writer,
    path: PathBuf,
    len: u64,
    /// The file was made longer than it is.
    is_longer: bool,
}

impl<F: FileSystem> Writing<F> {
    fn new(theirs: &F, handle: F::Handle, path: &Path, len: u64) -> Result<Box<Self>> {
        let handle = Arc::new(handle);
        let doing = "cannot write the file";
        let mut writer = theirs
            .new_writer(Arc::clone(&handle))
            .map_err(|e| failed(doing, path, e))?;
        writer
            .seek(SeekFrom::Start(len))
            .map_err(|e| failed(doing, path, e))?;
        Ok(Box::new(Self {
            handle,
            writer,
            path: path.to_owned(),
            len,
            is_longer: false,
        }))
    }

    fn shorten(&mut self) {
        if std::mem::replace(&mut self.is_longer, false)
            && let Ok(len) = usize::try_from(self.len)
        {
            // If this fails zeros stay behind the end, which readers know.
            let _ = self.writer.truncate(len);
        }
    }
}

impl<F: FileSystem> WritableFile for Writing<F> {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer
            .write_all(bytes)
            .and_then(|()| self.writer.flush())
            .map_err(|e| failed("cannot append to the file", &self.path, e))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.handle
            .sync()
            .map_err(|e| failed("cannot sync the file", &self.path, e))
    }

    fn size(&self) -> u64 {
        self.len
    }

    fn seal(&mut self) {
        self.shorten();
    }

    fn lengthen(&mut self, bytes: u64) -> Result<()> {
        let (at, bytes) = (place(self.len, &self.path)?, place(bytes, &self.path)?);
        self.is_longer = true;
        self.writer
            .allocate(at, bytes)
            .map_err(|e| failed("cannot make the file longer", &self.path, e))
    }
}

impl<F: FileSystem> Drop for Writing<F> {
    fn drop(&mut self) {
        self.shorten();
    }
}

struct Reading<F: FileSystem> {
    theirs: Arc<F>,
    handle: Arc<F::Handle>,
    path: PathBuf,
}

impl<F: FileSystem> RandomAccessFile for Reading<F> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let mut read = || {
            let mut reader = self.theirs.new_reader(Arc::clone(&self.handle))?;
            reader.seek(SeekFrom::Start(offset))?;
            let mut n = 0;
            while n < buf.len() {
                match reader.read(&mut buf[n..]) {
                    Ok(0) => break,
                    Ok(more) => n += more,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(n)
        };
        read().map_err(|e| failed("cannot read the file", &self.path, e))
    }

    fn size(&self) -> Result<u64> {
        let size = self.handle.file_size();
        size.map(|size| size as u64)
            .map_err(|e| failed("cannot ask about the file", &self.path, e))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl<F: FileSystem> OwnFileSystem for Adapted<F> {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let doing = "cannot create the file";
        let handle = self
            .theirs
            .create(path)
            .map_err(|e| failed(doing, path, e))?;
        handle.truncate(0).map_err(|e| failed(doing, path, e))?;
        Ok(Writing::new(&*self.theirs, handle, path, 0)?)
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let doing = "cannot open the file to append";
        let opened = self.theirs.open(path, Permission::ReadWrite);
        let handle = opened.map_err(|e| failed(doing, path, e))?;
        let len = handle.file_size().map_err(|e| failed(doing, path, e))? as u64;
        Ok(Writing::new(&*self.theirs, handle, path, len)?)
    }

    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        let opened = self.theirs.reuse_and_open(old, new);
        let handle = opened.map_err(|e| failed("cannot reuse the file", old, e))?;
        Ok(Writing::new(&*self.theirs, handle, new, 0)?)
    }

    fn open(&self, path: &Path, _: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let opened = self.theirs.open(path, Permission::ReadOnly);
        let handle = opened.map_err(|e| failed("cannot open the file", path, e))?;
        Ok(Arc::new(Reading {
            theirs: Arc::clone(&self.theirs),
            handle: Arc::new(handle),
            path: path.to_owned(),
        }))
    }

    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        let size = place(size, path)?;
        let opened = self.theirs.open(path, Permission::ReadWrite);
        opened
            .and_then(|handle| handle.truncate(size))
            .map_err(|e| failed("cannot truncate the file", path, e))
    }

    fn punch_hole(&self, path: &Path, _: u64, _: u64) -> Result<()> {
        Err(Error::not_supported("no holes in such files").with("file", path.display()))
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        self.posix.metadata(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.posix.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.posix.create_dir_all(dir)
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.theirs
            .delete(path)
            .map_err(|e| failed("cannot remove the file", path, e))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.posix.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.theirs
            .rename(from, to)
            .map_err(|e| failed("cannot rename the file", from, e))
    }

    fn hard_link(&self, from: &Path, _: &Path) -> Result<()> {
        // What is kept beside the file would not know of its second name.
        Err(Error::not_supported("no links to such files").with("file", from.display()))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.posix.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.posix.lock(path)
    }
    fn lock_by_flock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.posix.lock_by_flock(path)
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.posix.free_space(dir)
    }
}
