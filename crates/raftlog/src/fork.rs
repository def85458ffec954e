//! A second directory that begins with what another one has.
//!
//! What may be written later must not be shared. That are the newest files of each queue: the last one with records, and those
//! behind it, which are written next. And it may be any file of the append queue: raft-engine writes over emptied ones in place, whatever
//! other names they have. So these are copied, unless the caller knows that nobody does so. Where a recovery cuts off or makes
//! anew what is damaged, it takes a file of its own first (`recover::own`).
//!
//! A part of the files would open as an older log. So as long as a fork is being made `LOCK` is a directory in it: neither we nor raft-engine
//! open such a one, after a crash either.
//!
//! ```text
//! LOCK locked, then a directory | synced | files | synced | LOCK removed | synced
//! ```

use std::path::{Path, PathBuf};

use orogen_base::{Error, Result};
use orogen_env::FileSystem;
use orogen_env::fs::make_dir;

use crate::dirs::Dirs;
use crate::files::copy;
use crate::names::{LOCK_NAME, Queue};
use crate::recover::{list, newest_of};

/// The files of a fork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forked {
    /// Those that were copied.
    pub copied: Vec<PathBuf>,
    /// Those that both directories share. They are hard links: either directory may delete its own.
    pub shared: Vec<PathBuf>,
}

impl Forked {
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.copied.iter().chain(&self.shared)
    }
}

/// Makes `target` with what the directory `dir` has, and its second one, which must not be open. With `share_append` full
/// files of the append queue are shared as those of the rewrite queue are: then neither directory may ever be opened by raft-engine
/// with `enable_log_recycle`, which would write over the other's.
///
/// `target` survives a power loss when this returns. After an error there is no file of a log in it, or, if it could not be closed to others
/// again, it is whole or cannot be opened. After a crash it is whole, has no file of a log, or cannot be opened and is to be removed.
///
/// # Errors
/// `InvalidArgument` if there is no such directory, or if `target` has files of logs or is a fork that is not finished; `Busy` if the logs are open; `Corruption` if two files
/// have the same number; those of the file system.
pub fn fork(
    fs: &dyn FileSystem,
    dir: &Path,
    spill_dir: Option<&Path>,
    target: &Path,
    share_append: bool,
) -> Result<Forked> {
    fork_dirs(fs, &Dirs::new(dir, spill_dir)?, target, share_append)
}

/// As [`fork`].
pub(crate) fn fork_dirs(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    target: &Path,
    share_append: bool,
) -> Result<Forked> {
    let _locks = dirs.lock(fs)?;
    make_dir(fs, target)?;
    let targets = Dirs::new(target, None)?;
    let _target_lock = targets.lock(fs)?;
    for queue in [Queue::Append, Queue::Rewrite] {
        if !list(fs, &targets, queue)?.is_empty() {
            return Err(Error::invalid_argument(
                "the target has files already; take an empty directory",
            )
            .with("path", target.display()));
        }
    }
    let lock = target.join(LOCK_NAME);
    // Still locked, for who has opened the file meanwhile.
    fs.remove_file(&lock)?;
    let mut made = Forked::default();
    let result = close_up(fs, target, &lock)
        .and_then(|()| fill(fs, dirs, target, share_append, &mut made))
        .and_then(|()| open_up(fs, target, &lock));
    if result.is_err() {
        // The error is what counts.
        let closed = close_up(fs, target, &lock);
        // Else somebody may have opened it since: it is whole where it can be opened.
        if closed.is_ok() {
            for path in made.paths() {
                let _ = fs.remove_file(path);
            }
            let _ = fs
                .sync_dir(target)
                .and_then(|()| open_up(fs, target, &lock));
        }
    }
    result.map(|()| made)
}

/// Keeps all from opening `target`.
fn close_up(fs: &dyn FileSystem, target: &Path, lock: &Path) -> Result<()> {
    fs.create_dir_all(lock)?;
    fs.sync_dir(target)
}

fn open_up(fs: &dyn FileSystem, target: &Path, lock: &Path) -> Result<()> {
    fs.remove_dir(lock)?;
    fs.sync_dir(target)
}

fn fill(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    target: &Path,
    share_append: bool,
    made: &mut Forked,
) -> Result<()> {
    for queue in [Queue::Append, Queue::Rewrite] {
        let places = list(fs, dirs, queue)?;
        let newest = newest_of(fs, &places)?;
        for (at, place) in places.iter().enumerate() {
            let (from, to) = (place.path(), target.join(place.id.name()));
            let may_share = at < newest && (share_append || queue == Queue::Rewrite);
            // Across file systems there are no links.
            if may_share && fs.hard_link(&from, &to).is_ok() {
                made.shared.push(to);
            } else {
                made.copied.push(to.clone());
                copy(fs, &from, &to, u64::MAX)?;
            }
        }
    }
    fs.sync_dir(target)
}
