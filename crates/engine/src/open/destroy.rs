//! Deletes a database.

use std::path::Path;

use orogen_base::Result;

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
        match filename::parse(&name) {
            Some(FileKind::Lock) => {}
            Some(_) => fs.remove_file(&dir.join(&name))?,
            None => others = true,
        }
    }
    drop(lock);
    fs.remove_file(&filename::lock_path(dir))?;
    if !others {
        fs.remove_dir(dir)?;
    }
    Ok(())
}
