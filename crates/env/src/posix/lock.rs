//! The lock that makes a database directory belong to one open.
//!
//! RocksDB takes an `fcntl` write lock on the whole file, so that is what keeps the two out of
//! each other. Such a lock belongs to a process, which has two consequences:
//!
//! 1. It does not keep out a second open of the same process: a table of the locked files,
//!    by device and inode, does. So another path to the same file is also found.
//! 2. The process loses the lock when it closes ANY descriptor of the file. So a file in the
//!    table is never opened here, and nobody may open a lock file by another way. Giving back
//!    and taking happen under the table's mutex, for the same reason.
//!
//! The raft log's directories are locked by `flock`, as raft-engine locks them. Neither lock knows of the other, and
//! on NFS they are the same, so that a file is locked in one way only.
//!
//! The file stays when the lock is given back: removing it then would let two holders exist, one on
//! the old and one on the new file. Who removes it does so while it has the lock, and who comes to have a lock on a file
//! that the path does not lead to any more looks again.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use orogen_base::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{File, failed};
use crate::fs::FileLock;

/// Device and inode.
type FileId = (u64, u64);

/// The files that this process holds. A leaf lock: nothing else is locked under it.
static HELD: Mutex<Option<HashSet<FileId>>> = Mutex::new(None);

struct PosixLock {
    file: Option<File>,
    id: FileId,
    by: By,
}

impl FileLock for PosixLock {}

impl Drop for PosixLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        if let (By::Flock, Some(file)) = (self.by, &self.file) {
            // A child that was forked just now has the file open until it executes another program, and the lock with it. If
            // this fails closing it does as much.
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
        drop(self.file.take());
        if let Some(held) = held.as_mut() {
            held.remove(&self.id);
        }
    }
}

#[cold]
fn busy(by: &'static str, path: &Path) -> Error {
    Error::busy("the lock is held")
        .with("file", path.display())
        .with("by", by)
}

fn id(meta: &fs::Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// How a file is locked.
#[derive(Clone, Copy)]
pub(super) enum By {
    Fcntl,
    Flock,
}

/// How often a file is looked for again whose holder removed it in between.
const TRIES_MAX: usize = 100;

pub(super) fn lock(path: &Path, by: By) -> Result<Box<dyn FileLock>> {
    for _ in 0..TRIES_MAX {
        let lock = try_lock(path, by)?;
        // Its holder may have removed it before it let go: then nobody else will find this one.
        if fs::metadata(path).is_ok_and(|meta| id(&meta) == lock.id) {
            return Ok(Box::new(lock));
        }
    }
    Err(busy("those who remove it", path))
}

fn try_lock(path: &Path, by: By) -> Result<PosixLock> {
    let doing = "cannot lock the file";
    let mut held = HELD.lock();
    let held = held.get_or_insert_default();
    match fs::metadata(path) {
        Ok(meta) if held.contains(&id(&meta)) => return Err(busy("this process", path)),
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(failed(doing, path, e)),
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|e| failed(doing, path, e))?;
    let id = id(&file.metadata().map_err(|e| failed(doing, path, e))?);
    if held.contains(&id) {
        // The path was moved onto a held file since it was looked at. Closing this descriptor
        // would give that lock up, so it is leaked.
        std::mem::forget(file);
        return Err(busy("this process", path));
    }
    let how = FlockOperation::NonBlockingLockExclusive;
    loop {
        let locked = match by {
            By::Fcntl => rustix::fs::fcntl_lock(&file, how),
            By::Flock => rustix::fs::flock(&file, how),
        };
        match locked {
            Ok(()) => break,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => return Err(busy("another process", path)),
            Err(e) => return Err(failed(doing, path, e)),
        }
    }
    held.insert(id);
    Ok(PosixLock {
        file: Some(file),
        id,
        by,
    })
}
