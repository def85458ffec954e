//! The one place that deletes files of an open database.
//!
//! A table or a blob file goes when no version, and so no reader and no job, refers to it; a log when every
//! memtable that it could rebuild is in a table, and, where there were prepared writes, the MANIFEST says so; a MANIFEST or OPTIONS file when a newer one is
//! current. Logs may be moved to the archive instead. Files that are being written are in no list and so are never touched. What a crash
//! leaves behind is found by [`remove_strays`] at the next open.

use orogen_base::sync::atomic::Ordering;
use std::collections::HashSet;
use std::path::Path;

use orogen_base::{FileNo, Result};

use crate::context::Context;
use crate::filename::{self, DataFile, FileKind};

/// Deletes what nothing refers to any more. Cheap when there is nothing.
pub(crate) fn purge(context: &Context) {
    if context.read_only {
        return;
    }
    let purging = Purging::enter(context);
    let removed = context.set.take_removed();
    let (mut tables, mut blobs) = (Vec::new(), Vec::new());
    for file in removed.tables {
        let number = file.number;
        drop(file);
        if delete(context, &filename::table_path(&context.dir, number))
            || delete(context, &filename::old_table_path(&context.dir, number))
        {
            tables.push(number);
        }
    }
    for file in removed.blobs {
        let number = file.addition.number;
        drop(file);
        if delete(context, &filename::blob_path(&context.dir, number)) {
            blobs.push(number);
        }
    }
    discard(context, &removed.strays);
    for number in removed.manifests {
        delete(context, &filename::manifest_path(&context.dir, number));
    }
    let min_to_keep = context.set.min_log_number_to_keep();
    let mut min_needed = context.min_log_needed();
    if context.prepared.was_used() {
        // A power loss may bring back one that has a prepared write, and not the one behind it where that was ended: the MANIFEST has
        // to say before that none of them counts.
        if min_to_keep < min_needed {
            context.note_idle_logs(min_needed);
        }
        min_needed = min_needed.min(min_to_keep);
    }
    let logs = context.logs.release_before(min_needed, min_to_keep);
    if !logs.is_empty() {
        let gone: Vec<FileNo> = logs
            .into_iter()
            .filter(|&number| give_up_log(context, number))
            .collect();
        context.logs.note_archived(&gone);
        expire_archive(context);
    }
    // Listeners may wait for all that there is to do.
    drop(purging);
    for number in tables {
        context.notify(|l| l.on_table_file_deleted(number));
    }
    for number in blobs {
        context.notify(|l| l.on_blob_file_deleted(number));
    }
}

/// Files are being deleted, until it is dropped.
struct Purging<'a>(&'a Context);

impl<'a> Purging<'a> {
    fn enter(context: &'a Context) -> Self {
        context.purges_running.fetch_add(1, Ordering::SeqCst);
        Self(context)
    }
}

impl Drop for Purging<'_> {
    fn drop(&mut self) {
        self.0.purges_running.fetch_sub(1, Ordering::SeqCst);
        if self.0.waiting_for_purges.load(Ordering::SeqCst) > 0 {
            self.0.progress.raise();
        }
    }
}

/// Waits until nobody deletes files.
pub(crate) fn wait_for_purges(context: &Context) {
    context.waiting_for_purges.fetch_add(1, Ordering::SeqCst);
    loop {
        let seen = context.progress.count();
        if context.purges_running.load(Ordering::SeqCst) == 0 {
            break;
        }
        context.progress.wait_after(seen);
    }
    context.waiting_for_purges.fetch_sub(1, Ordering::SeqCst);
}

/// A log that nothing needs goes, or is kept for readers of updates. False if it could not be
/// archived: it is read where it is, and stays there until the next open finds it.
fn give_up_log(context: &Context, number: FileNo) -> bool {
    let path = filename::wal_path(&context.dir, number);
    if !context.options.archives_logs() {
        delete(context, &path);
        return true;
    }
    let archive = filename::archive_dir(&context.dir);
    let moved = context.fs.create_dir_all(&archive).and_then(|()| {
        context
            .fs
            .rename(&path, &filename::archived_wal_path(&context.dir, number))
    });
    if let Err(e) = &moved {
        context
            .log
            .warn(format_args!("cannot archive log {number}: {e}"));
    }
    moved.is_ok()
}

/// A log in the archive.
pub(crate) struct ArchivedLog {
    pub(crate) number: FileNo,
    pub(crate) bytes: u64,
    modified_secs: u64,
}

/// The archived logs, oldest first.
///
/// # Errors
/// `Io`.
pub(crate) fn archived_logs(context: &Context) -> Result<Vec<ArchivedLog>> {
    let archive = filename::archive_dir(&context.dir);
    if !context.fs.exists(&archive)? {
        return Ok(Vec::new());
    }
    let mut logs = Vec::new();
    for name in context.fs.list(&archive)? {
        let Some(FileKind::Wal(number)) = filename::parse(&name) else {
            continue;
        };
        match context.fs.metadata(&archive.join(&name)) {
            Ok(found) => logs.push(ArchivedLog {
                number,
                bytes: found.size,
                modified_secs: found.modified_secs,
            }),
            // It went meanwhile.
            Err(e) if e.is_file_not_found() => {}
            Err(e) => return Err(e),
        }
    }
    logs.sort_by_key(|l| l.number);
    Ok(logs)
}

/// Deletes archived logs that are too old or too many and that no reader stands before.
fn expire_archive(context: &Context) {
    let options = &context.options;
    if !options.archives_logs() {
        return;
    }
    let logs = match archived_logs(context) {
        Ok(logs) => logs,
        Err(e) => {
            context
                .log
                .warn(format_args!("cannot list archived logs: {e}"));
            return;
        }
    };
    let now = context.clock.unix_secs();
    let mut bytes: u64 = logs.iter().map(|l| l.bytes).sum();
    let bytes_max = options.wal_size_limit_mb.saturating_mul(1 << 20);
    let pinned = context.logs.oldest_pin();
    for log in logs.iter().take_while(|l| l.number < pinned) {
        let age = now.saturating_sub(log.modified_secs);
        let too_old = options.wal_ttl_seconds > 0 && age > options.wal_ttl_seconds;
        let too_many = bytes_max > 0 && bytes > bytes_max;
        if !too_old && !too_many {
            break;
        }
        delete(
            context,
            &filename::archived_wal_path(&context.dir, log.number),
        );
        bytes -= log.bytes;
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

/// OPTIONS files that are kept, the newest among them: one may just be read.
const OPTIONS_FILES_KEPT: usize = 2;

/// Notes that OPTIONS file `newest` is durable, and deletes older ones of this open.
pub(crate) fn retire_options_files(context: &Context, newest: FileNo) {
    let mut files = context.options_files.lock();
    files.push(newest);
    let old = files.len().saturating_sub(OPTIONS_FILES_KEPT);
    let old: Vec<FileNo> = files.drain(..old).collect();
    drop(files);
    for number in old {
        delete(context, &filename::options_path(&context.dir, number));
    }
}

/// Deletes an OPTIONS file that is not to count.
pub(crate) fn discard_options_file(context: &Context, path: &Path) {
    delete(context, path);
}

/// Deletes the partial outputs of a job that failed.
pub(crate) fn discard(context: &Context, files: &[DataFile]) {
    for file in files {
        delete(context, &file.path(&context.dir));
    }
}

/// Removes logs that recovery left out: they hold what never was, and must neither be archived nor be found by another open,
/// which would not know any more why they do not count. Newest first and each for good: of one that is gone nothing
/// contradicts the log behind it.
///
/// # Errors
/// `Io` if one cannot be removed.
pub(crate) fn remove_left_out(context: &Context, left_out: &[FileNo]) -> Result<()> {
    for &log in left_out.iter().rev() {
        match context
            .fs
            .remove_file(&filename::wal_path(&context.dir, log))
        {
            Err(e) if !e.is_file_not_found() => return Err(e),
            _ => context.directory.sync()?,
        }
    }
    Ok(())
}

/// Deletes files of the database that an open which has just recovered does not know. Logs are
/// archived if that is asked for.
///
/// # Errors
/// `Io` if the directory cannot be read.
pub(crate) fn remove_strays(context: &Context, newest_options: FileNo) -> Result<()> {
    let mut live: HashSet<DataFile> = HashSet::new();
    for family in context.set.families() {
        let version = family.state().version.clone();
        live.extend(version.iter_files().map(|(_, f)| DataFile::table(f.number)));
        live.extend(version.blob_files().keys().map(|&n| DataFile::blob(n)));
    }
    let logs: HashSet<FileNo> = context.logs.list().into_iter().map(|l| l.0).collect();
    let manifest = context.set.manifest_number();
    for name in context.fs.list(&context.dir)? {
        let stray = match filename::parse(&name) {
            Some(FileKind::Table(n)) => !live.contains(&DataFile::table(n)),
            Some(FileKind::Blob(n)) => !live.contains(&DataFile::blob(n)),
            Some(FileKind::Wal(n)) if !logs.contains(&n) => {
                if !give_up_log(context, n)
                    && let Ok(found) = context.fs.metadata(&filename::wal_path(&context.dir, n))
                {
                    context.logs.note_not_archived(n, found.size);
                }
                false
            }
            Some(FileKind::Manifest(n)) => n != manifest,
            Some(FileKind::Options(n)) => n != newest_options,
            Some(FileKind::Temporary) => true,
            // It has been finished, and was not told so any more.
            None => name == filename::UNFINISHED,
            _ => false,
        };
        if stray {
            delete(context, &context.dir.join(&name));
        }
    }
    expire_archive(context);
    Ok(())
}
