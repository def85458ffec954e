//! File systems as raft-engine asks for them, and how the engine uses them.
//!
//! Files are opened, written, renamed and deleted through it; directories, locks and sizes of files that
//! are not open are asked of the system.

mod adapt;
mod default;
mod stale;

use std::io::{Read, Result, Seek, Write};
use std::path::Path;
use std::sync::Arc;

pub(super) use adapt::adapted;
pub use default::{DefaultFileSystem, LogFd, LogFile};
pub(super) use stale::forget;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// To be read.
    ReadOnly,
    /// To be read and written.
    ReadWrite,
}

/// A file system. Bytes that are read from a file are those that were written to it, at the same
/// place; what they are on the disk is its own affair.
pub trait FileSystem: Send + Sync + 'static {
    /// An open file.
    type Handle: Send + Sync + Handle + 'static;
    /// Reads a file.
    type Reader: Seek + Read + Send + 'static;
    /// Writes a file.
    type Writer: Seek + Write + Send + WriteExt + 'static;

    /// Opens a file to be read and written; it is made if it is not there, and keeps its bytes if it is.
    ///
    /// # Errors
    /// Of the system; where there is no space the kind `StorageFull`, or `nospace` in its text.
    fn create<P: AsRef<Path>>(&self, path: P) -> Result<Self::Handle>;

    /// Opens a file that is there.
    ///
    /// # Errors
    /// Of the system.
    fn open<P: AsRef<Path>>(&self, path: P, perm: Permission) -> Result<Self::Handle>;

    /// Removes a file.
    ///
    /// # Errors
    /// Of the system.
    fn delete<P: AsRef<Path>>(&self, path: P) -> Result<()>;

    /// Gives a file another name.
    ///
    /// # Errors
    /// Of the system.
    fn rename<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> Result<()>;

    /// Gives a file another name, to be written over.
    ///
    /// # Errors
    /// Of the system.
    fn reuse<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> Result<()> {
        self.rename(src_path, dst_path)
    }

    /// As [`Self::reuse`], and opens it.
    ///
    /// # Errors
    /// Of the system.
    fn reuse_and_open<P: AsRef<Path>>(&self, src_path: P, dst_path: P) -> Result<Self::Handle> {
        self.reuse(src_path.as_ref(), dst_path.as_ref())?;
        self.open(dst_path, Permission::ReadWrite)
    }

    /// Removes what is kept beside a file that is gone. Files are deleted by [`Self::delete`], which is to remove it as well; this is
    /// called when a log is opened, for names before its first file of which something is still kept: their files were deleted by
    /// other ways.
    ///
    /// # Errors
    /// Of the system.
    fn delete_metadata<P: AsRef<Path>>(&self, path: P) -> Result<()> {
        let _ = path;
        Ok(())
    }

    /// Whether anything is kept beside a file, which may be gone.
    fn exists_metadata<P: AsRef<Path>>(&self, path: P) -> bool {
        let _ = path;
        false
    }

    /// A reader that stands at the beginning.
    ///
    /// # Errors
    /// Of the system.
    fn new_reader(&self, handle: Arc<Self::Handle>) -> Result<Self::Reader>;

    /// A writer that stands at the beginning.
    ///
    /// # Errors
    /// Of the system.
    fn new_writer(&self, handle: Arc<Self::Handle>) -> Result<Self::Writer>;

    /// True for the files of the system as they are, which the engine then uses by better ways. For
    /// the one of this module only.
    #[doc(hidden)]
    fn is_plain(&self) -> bool {
        false
    }
}

/// An open file.
pub trait Handle {
    /// Makes it so long.
    ///
    /// # Errors
    /// Of the system.
    fn truncate(&self, offset: usize) -> Result<()>;

    /// Bytes in it.
    ///
    /// # Errors
    /// Of the system.
    fn file_size(&self) -> Result<usize>;

    /// Makes what was written survive a power loss.
    ///
    /// # Errors
    /// Of the system.
    fn sync(&self) -> Result<()>;
}

/// What a writer of files can, too.
pub trait WriteExt {
    /// Makes the file so long, and stands at its end.
    ///
    /// # Errors
    /// Of the system.
    fn truncate(&mut self, offset: usize) -> Result<()>;

    /// Makes room for bytes; the file may be longer by zeros then.
    ///
    /// # Errors
    /// Of the system.
    fn allocate(&mut self, offset: usize, size: usize) -> Result<()>;
}

#[cfg(test)]
mod tests;
