//! A directory that is made under a temporary name beside its target and renamed at the end: it is whole or not there.
//!
//! ```text
//! target.tmp/LOCK taken -> what a crash has left goes -> filled -> renamed -> its name synced
//! ```
//! The lock keeps those who make the same target from each other's files: the second one is told `Busy`. It is let go
//! behind the rename, and stays as the LOCK of the database that the directory is by then. The directory has the file
//! [`filename::UNFINISHED`] before any other but the lock, and after all others: one that somebody else has made, or put
//! aside under such a name, is told by that, and left alone.

use std::path::{Component, Path, PathBuf};

use orogen_base::{Error, Result};
use orogen_env::fs::{make_dir, parent_of, write_file};
use orogen_env::{FileLock, FileSystem};

use crate::filename;

/// A directory that is being made. One that is dropped stays: give it to [`Self::finish`] or [`Self::discard`].
pub(crate) struct TemporaryDir<'a> {
    fs: &'a dyn FileSystem,
    target: PathBuf,
    path: PathBuf,
    _held: Box<dyn FileLock>,
}

impl<'a> TemporaryDir<'a> {
    /// Makes it, empty but for lock and mark, unless `check` refuses under the lock.
    ///
    /// # Errors
    /// `Busy` if somebody else makes the same target; `InvalidArgument` if something without the mark is in the way, or
    /// `target` ends in no name; those of `check`; `Io`.
    pub(crate) fn begin(
        fs: &'a dyn FileSystem,
        target: &Path,
        check: &dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        // Without a slash at the end, which would put the new directory into its target.
        let target: PathBuf = target.components().collect();
        let path = path_of(&target)?;
        if fs.exists(&path)? {
            check_own(fs, &path)?;
        }
        make_dir(fs, &path)?;
        let held = fs.lock(&filename::lock_path(&path))?;
        // Somebody may have put files there meanwhile.
        check_own(fs, &path)?;
        let made = Self {
            fs,
            target,
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
        write_file(
            self.fs,
            &self.mark_path(),
            b"This directory is not finished.\n",
        )?;
        self.fs.sync_dir(&self.path)
    }

    /// Where it is for now.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the target's name, which is synced. If it cannot have it, it is discarded.
    ///
    /// # Errors
    /// `Io`: whether it has its name is not known.
    pub(crate) fn finish(self) -> Result<()> {
        if let Err(e) = self.fs.rename(&self.path, &self.target) {
            self.discard();
            return Err(e);
        }
        self.fs.sync_dir(parent_of(&self.target))?;
        self.fs.remove_file(&self.target.join(filename::UNFINISHED))
    }

    /// Takes it away as far as that goes; whoever makes it anew removes the rest.
    pub(crate) fn discard(self) {
        let remove = || {
            self.remove_content()?;
            self.fs.sync_dir(&self.path)?;
            let mark = self.mark_path();
            if self.fs.exists(&mark)? {
                self.fs.remove_file(&mark)?;
            }
            // Last: whoever makes the directory anew has a lock of its own.
            self.fs.remove_file(&filename::lock_path(&self.path))?;
            self.fs.remove_dir(&self.path)
        };
        // The error that led here is the one that matters.
        let _: Result<()> = remove();
    }

    fn mark_path(&self) -> PathBuf {
        self.path.join(filename::UNFINISHED)
    }

    /// Removes all but lock and mark.
    fn remove_content(&self) -> Result<()> {
        let names = self.fs.list(&self.path)?;
        let is_content = |n: &&String| *n != filename::LOCK && *n != filename::UNFINISHED;
        let mut content = names.iter().filter(is_content);
        content.try_for_each(|name| self.fs.remove_file(&self.path.join(name)))
    }
}

/// Only what has the mark is to be removed.
fn check_own(fs: &dyn FileSystem, path: &Path) -> Result<()> {
    let names = fs.list(path)?;
    let is_own = names.iter().any(|n| n == filename::UNFINISHED);
    if is_own || names.iter().all(|n| n == filename::LOCK) {
        return Ok(());
    }
    Err(Error::invalid_argument(
        "the new directory is made under a name that is in use: remove or rename that one",
    )
    .with("path", path.display()))
}

/// Under which name `target` is made.
fn path_of(target: &Path) -> Result<PathBuf> {
    let Some(Component::Normal(name)) = target.components().next_back() else {
        return Err(
            Error::invalid_argument("a new directory needs a name of its own")
                .with("path", target.display()),
        );
    };
    let mut name = name.to_owned();
    name.push(".tmp");
    Ok(target.with_file_name(name))
}
