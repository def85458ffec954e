//! A directory that is made under a temporary name beside its target and renamed at the end: it is whole or not there.
//!
//! ```text
//! target.tmp/LOCK taken -> what a crash has left goes -> filled -> renamed -> its name synced
//! ```
//! The lock keeps those who make the same target from each other's files: the second one is told `Busy`. It is let go
//! behind the rename, and stays as the LOCK of the database that the directory is by then. With a mark the directory
//! has a file of that name before any other but the lock, and after all others if it is given up: one that somebody else
//! has made is told by that, and left alone.

use std::path::{Path, PathBuf};

use orogen_base::{Error, Result};
use orogen_env::fs::write_file;
use orogen_env::{FileLock, FileSystem};

use crate::filename;

/// A directory that is being made. One that is dropped stays: give it to [`Self::finish`] or [`Self::discard`].
pub(crate) struct TemporaryDir<'a> {
    fs: &'a dyn FileSystem,
    target: &'a Path,
    mark: Option<&'a str>,
    path: PathBuf,
    _held: Box<dyn FileLock>,
}

impl<'a> TemporaryDir<'a> {
    /// Makes it, empty but for lock and mark, unless `check` refuses under the lock.
    ///
    /// # Errors
    /// `Busy` if somebody else makes the same target; `InvalidArgument` if something without the mark is in the way;
    /// those of `check`; `Io`.
    pub(crate) fn begin(
        fs: &'a dyn FileSystem,
        target: &'a Path,
        mark: Option<&'a str>,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let path = path_of(target);
        if let Some(mark) = mark
            && fs.exists(&path)?
        {
            let names = fs.list(&path)?;
            let is_own = |name: &String| name == mark;
            if names.iter().any(|n| n != filename::LOCK) && !names.iter().any(is_own) {
                return Err(Error::invalid_argument(
                    "the new directory is made under a name that is in use: remove or rename that one",
                )
                .with("path", path.display()));
            }
        }
        fs.create_dir_all(&path)?;
        let held = fs.lock(&filename::lock_path(&path))?;
        let made = Self {
            fs,
            target,
            mark,
            path,
            _held: held,
        };
        match check().and_then(|()| made.begin_anew()) {
            Ok(()) => Ok(made),
            Err(e) => {
                made.discard();
                Err(e)
            }
        }
    }

    fn begin_anew(&self) -> Result<()> {
        self.remove_content()?;
        if let Some(mark) = self.mark_path() {
            write_file(self.fs, &mark, b"This directory is not finished.\n")?;
            self.fs.sync_dir(&self.path)?;
        }
        Ok(())
    }

    /// Where it is for now.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the target's name, which is synced.
    ///
    /// # Errors
    /// `Io`: whether it has its name is not known.
    pub(crate) fn finish(self) -> Result<()> {
        self.fs.rename(&self.path, self.target)?;
        self.fs.sync_dir(parent_of(self.target))?;
        match self.mark {
            Some(mark) => self.fs.remove_file(&self.target.join(mark)),
            None => Ok(()),
        }
    }

    /// Takes it away as far as that goes; whoever makes it anew removes the rest.
    pub(crate) fn discard(self) {
        let remove = || {
            self.remove_content()?;
            if let Some(mark) = self.mark_path() {
                self.fs.sync_dir(&self.path)?;
                self.fs.remove_file(&mark)?;
            }
            // Last: whoever makes the directory anew has a lock of its own.
            self.fs.remove_file(&filename::lock_path(&self.path))?;
            self.fs.remove_dir(&self.path)
        };
        // The error that led here is the one that matters.
        let _: Result<()> = remove();
    }

    fn mark_path(&self) -> Option<PathBuf> {
        self.mark.map(|mark| self.path.join(mark))
    }

    /// Removes all but lock and mark.
    fn remove_content(&self) -> Result<()> {
        let names = self.fs.list(&self.path)?;
        let is_content = |n: &&String| *n != filename::LOCK && self.mark != Some(n.as_str());
        let mut content = names.iter().filter(is_content);
        content.try_for_each(|name| self.fs.remove_file(&self.path.join(name)))
    }
}

/// Under which name `target` is made.
fn path_of(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".tmp");
    PathBuf::from(name)
}

/// The directory that holds `path`.
pub(crate) fn parent_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new("."))
}
