//! Deletes a database.

use std::path::Path;

use orogen_base::Result;
use orogen_env::FileSystem;

use crate::filename::{self, FileKind};
use crate::options::Options;

/// Deletes the files of the database in `dir`, and the directory if nothing else is in it.
///
/// # Errors
/// `Busy` if somebody has it open; `Io`.
pub(crate) fn destroy(dir: &Path, options: &Options) -> Result<()> {
    let fs = &*options.db.fs;
    if !fs.exists(dir)? {
        return Ok(());
    }
    let lock = fs.lock(&filename::lock_path(dir))?;
    let mut others = false;
    // CURRENT goes first: without it a half-deleted directory is not taken for a database.
    let current = filename::current_path(dir);
    if fs.exists(&current)? {
        fs.remove_file(&current)?;
        fs.sync_dir(dir)?;
    }
    for name in fs.list(dir)? {
        if name == filename::ARCHIVE {
            others |= !remove_archive(fs, dir)?;
            continue;
        }
        match filename::parse(&name) {
            Some(FileKind::Lock) => {}
            Some(_) => fs.remove_file(&dir.join(&name))?,
            None => others = true,
        }
    }
    // Before it is let go of: else it may be somebody else's by then, and a third would make another.
    fs.remove_file(&filename::lock_path(dir))?;
    drop(lock);
    if !others {
        fs.remove_dir(dir)?;
    }
    Ok(())
}

/// Removes the archived logs; false if there is something else among them.
fn remove_archive(fs: &dyn FileSystem, dir: &Path) -> Result<bool> {
    let archive = filename::archive_dir(dir);
    let mut others = false;
    for name in fs.list(&archive)? {
        match filename::parse(&name) {
            Some(FileKind::Wal(_)) => fs.remove_file(&archive.join(&name))?,
            _ => others = true,
        }
    }
    if !others {
        fs.remove_dir(&archive)?;
    }
    Ok(!others)
}
