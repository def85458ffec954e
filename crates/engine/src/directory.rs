//! The database's directory, whose names are to survive a power loss.
//!
//! A sync of a directory that fails may drop the names that it should have saved, as one of a file drops pages, and a later one that
//! succeeds tells nothing of them. So after such an error the directory is not synced again, and the database takes no writes: what
//! somebody else's sync would have saved is not acknowledged. Where there was no space nothing was begun, and it can be tried again.
//! Lock: a leaf but for health's, held over the sync, so that nobody syncs between a failure and its note.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::sync::Mutex;
use orogen_base::{Error, Result};
use orogen_env::FileSystem;

use crate::health::Health;

pub(crate) struct Directory {
    path: PathBuf,
    fs: Arc<dyn FileSystem>,
    health: Arc<Health>,
    /// Why names may be lost.
    failed: Mutex<Option<Error>>,
}

impl Directory {
    pub(crate) fn new(path: PathBuf, fs: Arc<dyn FileSystem>, health: Arc<Health>) -> Self {
        Self {
            path,
            fs,
            health,
            failed: Mutex::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// Makes all names in it survive a power loss.
    ///
    /// # Errors
    /// `NoSpace`: it can be tried again. `Io`, and the same again from then on: the database takes no writes.
    pub(crate) fn sync(&self) -> Result<()> {
        let mut failed = self.failed.lock();
        if let Some(e) = &*failed {
            return Err(e.clone());
        }
        self.fs.sync_dir(&self.path).inspect_err(|e| {
            if !e.kind().is_shortage() {
                self.health.note(e);
                *failed = Some(e.clone());
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use orogen_base::ErrorKind;
    use orogen_env::fault::Errno;
    use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind};

    use super::*;

    fn over(errno: Errno) -> (Directory, Arc<Health>) {
        let fs = FaultFileSystem::over_memory(MemFileSystem::new());
        fs.faults().add(Fault::new(errno).on(&[OpKind::SyncDir]));
        let health = Arc::<Health>::default();
        let directory = Directory::new("/".into(), Arc::new(fs), health.clone());
        (directory, health)
    }

    #[test]
    fn after_a_failure_no_sync_is_taken_for_good() {
        let (directory, health) = over(Errno::IO);
        for _ in 0..2 {
            assert_eq!(directory.sync().unwrap_err().kind(), ErrorKind::Io);
            assert!(health.failed());
        }
    }

    #[test]
    fn want_of_space_passes() {
        let (directory, health) = over(Errno::NOSPC);
        assert_eq!(directory.sync().unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(health.check().is_ok() && directory.sync().is_ok());
    }
}
