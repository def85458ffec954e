//! The one place that deletes files of an open database.
//!
//! A table goes when no version, and so no reader and no job, refers to it; a log when every
//! memtable that it could rebuild is in a table; a MANIFEST or OPTIONS file when a newer one is
//! current. Files that are being written are in no list and so are never touched. What a crash
//! leaves behind is found by [`remove_strays`] at the next open.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use orogen_base::{FileNo, Result};

use crate::context::Context;
use crate::filename::{self, FileKind};

/// Deletes what nothing refers to any more. Cheap when there is nothing.
pub(crate) fn purge(context: &Context) {
    if context.read_only {
        return;
    }
    let mut still_used = Vec::new();
    let removed = context.set.take_removed();
    for file in removed.tables {
        if Arc::strong_count(&file) > 1 {
            still_used.push(file);
            continue;
        }
        let number = file.number;
        drop(file);
        if delete(context, &filename::table_path(&context.dir, number)) {
            context.notify(|l| l.on_table_file_deleted(number));
        }
    }
    let had_used = !still_used.is_empty();
    context.set.return_removed(still_used);
    if had_used && context.set.has_freed() {
        // Let go while the list was away: whoever did saw nothing to delete.
        context.work.raise();
    }
    for number in removed.manifests {
        delete(context, &filename::manifest_path(&context.dir, number));
    }
    for number in context.logs.release_before(context.min_log_needed()) {
        delete(context, &filename::wal_path(&context.dir, number));
    }
}

fn delete(context: &Context, path: &Path) -> bool {
    match context.fs.remove_file(path) {
        Ok(()) => true,
        Err(e) => {
            // The file stays until the next open finds it.
            if !e.is_file_not_found() {
                context
                    .log
                    .warn(format_args!("cannot delete an obsolete file: {e}"));
            }
            false
        }
    }
}

/// Deletes the partial outputs of a job that failed.
pub(crate) fn discard(context: &Context, tables: &[FileNo]) {
    for &number in tables {
        delete(context, &filename::table_path(&context.dir, number));
    }
}

/// Deletes files of the database that an open which has just recovered does not know.
///
/// # Errors
/// `Io` if the directory cannot be read.
pub(crate) fn remove_strays(context: &Context, newest_options: FileNo) -> Result<()> {
    let live: HashSet<FileNo> = context
        .set
        .families()
        .iter()
        .flat_map(|f| {
            let version = f.state().version.clone();
            version
                .iter_files()
                .map(|(_, f)| f.number)
                .collect::<Vec<_>>()
        })
        .collect();
    let logs: HashSet<FileNo> = context.logs.list().into_iter().map(|l| l.0).collect();
    let manifest = context.set.manifest_number();
    for name in context.fs.list(&context.dir)? {
        let stray = match filename::parse(&name) {
            Some(FileKind::Table(n)) => !live.contains(&n),
            Some(FileKind::Wal(n)) => !logs.contains(&n),
            Some(FileKind::Manifest(n)) => n != manifest,
            Some(FileKind::Options(n)) => n != newest_options,
            Some(FileKind::Temporary) => true,
            _ => false,
        };
        if stray {
            delete(context, &context.dir.join(&name));
        }
    }
    Ok(())
}
