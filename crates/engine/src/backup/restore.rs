//! The way out of a backup: verifying it, and making a database of it.

use std::path::Path;

use orogen_base::{Error, Result};

use super::meta::{BackupFile, Meta};
use super::{BackupEngine, Progress};
use crate::scrub::file_crc32c;
use crate::temporary::TemporaryDir;

impl BackupEngine {
    /// Reads all of a backup and compares it with its checksums.
    ///
    /// # Errors
    /// `NotFound` if there is none of this number; `Corruption` with the file; `Io`.
    pub fn verify(&self, id: u32) -> Result<()> {
        self.verify_with(id, &mut |_, _| {})
    }

    /// As [`Self::verify`]; calls `progress` with bytes done and bytes in all.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub fn verify_with(&self, id: u32, progress: Progress<'_>) -> Result<()> {
        let meta = self.meta(id)?;
        self.check_sizes(&meta)?;
        let total = self.total_of(&meta)?;
        let mut done = 0;
        for file in &meta.files {
            let path = self.dir.join(&file.path);
            let (_, crc) = file_crc32c(self.fs(), &path, &self.limiter, &mut |n| {
                done += n;
                progress(done, total);
            })?;
            check_crc(file, &path, crc)?;
        }
        Ok(())
    }

    fn total_of(&self, meta: &Meta) -> Result<u64> {
        let mut total = 0;
        for file in &meta.files {
            total += self.size_of(file)?;
        }
        Ok(total)
    }

    /// Makes `target` a database that holds what the backup holds; every byte is compared with
    /// its checksum on the way. `target` is on the backups' file system and appears whole or not
    /// at all.
    ///
    /// # Errors
    /// `NotFound` if there is no such backup; `InvalidArgument` if `target` exists; `Busy` if somebody else makes it;
    /// `Corruption` with the file; `Io`, `NoSpace`: what was made is removed.
    pub fn restore(&self, id: u32, target: impl AsRef<Path>) -> Result<()> {
        self.restore_with(id, target, &mut |_, _| {})
    }

    /// As [`Self::restore`]; calls `progress` with bytes done and bytes in all.
    ///
    /// # Errors
    /// As [`Self::restore`].
    pub fn restore_with(
        &self,
        id: u32,
        target: impl AsRef<Path>,
        progress: Progress<'_>,
    ) -> Result<()> {
        let target = target.as_ref();
        let fs = self.fs();
        let meta = self.meta(id)?;
        self.check_sizes(&meta)?;
        let check = || match fs.exists(target)? {
            false => Ok(()),
            true => Err(
                Error::invalid_argument("restore needs a directory that does not exist")
                    .with("path", target.display()),
            ),
        };
        check()?;
        let temporary = TemporaryDir::begin(fs, target, &check)?;
        if let Err(e) = self.fill(&meta, temporary.path(), progress) {
            temporary.discard();
            return Err(e);
        }
        temporary.finish()
    }

    fn fill(&self, meta: &Meta, dir: &Path, progress: Progress<'_>) -> Result<()> {
        let total = self.total_of(meta)?;
        let mut done = 0;
        for file in &meta.files {
            let from = self.dir.join(&file.path);
            let crc = self.copy(
                (self.fs(), &from),
                (self.fs(), &dir.join(file.db_name()?)),
                self.size_of(file)?,
                &mut |n| {
                    done += n;
                    progress(done, total);
                },
            )?;
            check_crc(file, &from, crc)?;
        }
        self.fs().sync_dir(dir)
    }
}

fn check_crc(file: &BackupFile, path: &Path, crc: u32) -> Result<()> {
    if crc == file.crc {
        return Ok(());
    }
    Err(
        Error::corruption("file of a backup is not what was written: its checksum differs")
            .with("file", path.display())
            .with("crc32c", format_args!("{crc:08x}"))
            .with("crc32c_wanted", format_args!("{:08x}", file.crc)),
    )
}
