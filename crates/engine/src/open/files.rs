//! Looks whether the files are there that the MANIFEST lists, before anything is written.
//!
//! A table is never changed once it is listed, so one that is missing or has another size was lost or cut off by something
//! else. With `paranoid_checks` that refuses the open; without it the table is told of as damaged, and the rest is served. A blob file
//! is told of in either case: RocksDB lists some that no table points into any more. Source: RocksDB `DBImpl::CheckConsistency`.
//!
//! Cost: a `stat` for each file, nothing is opened.

use std::path::{Path, PathBuf};

use orogen_base::{Error, ErrorKind, FileNo, Result};

use crate::context::Context;
use crate::filename;
use crate::quarantine;
use crate::version::blob_meta::BlobFileAddition;
use crate::version::wal_set::WalSet;

const HELP: &str = "restore it from a backup, or make a directory of what is left with `orogen db repair`; \
                    paranoid_checks=false opens without it";

/// Looks for the tables and blob files of all families. `is_settled` is asked before what is missing is told: beside a writer it
/// may have been given up meanwhile.
///
/// # Errors
/// `Corruption` for the first table that is missing or has another size, with how many there are, if `paranoid_checks` is set;
/// `Io`; that of `is_settled`.
pub(crate) fn check(context: &Context, is_settled: &dyn Fn() -> Result<()>) -> Result<()> {
    let (mut tables, mut blobs) = (Vec::new(), Vec::new());
    for family in context.set.families() {
        let version = family.state().version.clone();
        for (level, file) in version.iter_files() {
            if let Some(error) = table_error(context, file.number, file.size)? {
                let error = error.with("column_family", &family.name);
                tables.push(error.with("level", level));
            }
        }
        for file in version.blob_files().values() {
            blobs.extend(blob_error(context, &file.file.addition)?);
        }
    }
    if !tables.is_empty() || !blobs.is_empty() {
        is_settled()?;
    }
    let wrong = tables.len();
    if context.options.paranoid_checks
        && let Some(first) = tables.first()
    {
        return Err(first.clone().with("files_wrong", wrong).with("help", HELP));
    }
    for error in tables.iter().chain(&blobs) {
        quarantine::note(context, error);
    }
    Ok(())
}

/// Compares the logs from `from` on with what RocksDB's `track_and_verify_wals_in_manifest` left in the MANIFEST, if
/// `paranoid_checks` is set.
///
/// # Errors
/// `Corruption` if one is missing, or shorter than when it was synced; `Io`.
pub(crate) fn check_logs(context: &Context, tracked: &WalSet, from: FileNo) -> Result<()> {
    if !context.options.paranoid_checks {
        return Ok(());
    }
    let mut asked = PathBuf::new();
    tracked
        .check(from, &mut |number| {
            asked = filename::wal_path(&context.dir, number);
            size_of(context, &asked)
        })
        .map_err(|e| match e.kind() {
            ErrorKind::Corruption if !asked.as_os_str().is_empty() => {
                e.with("file", asked.display()).with("help", HELP)
            }
            // The system could not tell: no log is known to be lost.
            _ => e,
        })
}

/// The size of a file; `None` if it is not there.
fn size_of(context: &Context, path: &Path) -> Result<Option<u64>> {
    match context.fs.metadata(path) {
        Ok(found) => Ok(Some(found.size)),
        Err(e) if e.is_file_not_found() => Ok(None),
        Err(e) => Err(e),
    }
}

fn table_error(context: &Context, number: FileNo, size: u64) -> Result<Option<Error>> {
    let path = filename::table_path(&context.dir, number);
    let mut found = size_of(context, &path)?;
    if found.is_none() {
        found = size_of(context, &filename::old_table_path(&context.dir, number))?;
    }
    let error = match found {
        Some(found) if found == size => return Ok(None),
        Some(found) => Error::corruption("table has another size than the MANIFEST says")
            .with("size", found)
            .with("size_in_manifest", size),
        None => Error::corruption("table is missing"),
    };
    Ok(Some(error.with("file", path.display())))
}

fn blob_error(context: &Context, listed: &BlobFileAddition) -> Result<Option<Error>> {
    let path = filename::blob_path(&context.dir, listed.number);
    let size = listed.file_size();
    let error = match size_of(context, &path)? {
        Some(found) if found >= size => return Ok(None),
        Some(found) => Error::corruption("blob file is shorter than the MANIFEST says")
            .with("size", found)
            .with("size_in_manifest", size),
        None => Error::corruption("blob file is missing"),
    };
    Ok(Some(error.with("file", path.display())))
}
