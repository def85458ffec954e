//! A second database with the same content, made while the first goes on.
//!
//! Under the write path's lead the moment is fixed: versions are pinned, the logs' lengths are
//! noted and kept from being given up. Then tables are linked, logs are copied up to the noted
//! length, and a MANIFEST of its own lists them. Everything is made under a temporary name and
//! renamed at the end, so a checkpoint is whole or not there.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use orogen_base::{Error, ErrorKind, FileNo, Result, memory};
use orogen_env::fs::write_file;
use orogen_env::{Access, BufferedFile, FileSystem, WritableFile};
use orogen_wal::Writer;

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::filename;
use crate::logs;
use crate::obsolete;
use crate::options_map;
use crate::temporary::TemporaryDir;
use crate::version::manifest::{self, FamilySnapshot};
use crate::version::version::Version;
use crate::version::wal_set::WalSet;
use crate::write::commit::WritePath;

/// What a copy is made of. It pins the versions; the logs must be held before it is fixed.
pub(crate) struct Moment {
    /// Each family, its tables, and the oldest log that it needs.
    pub(crate) families: Vec<(Arc<ColumnFamilyData>, Arc<Version>, FileNo)>,
    logs: Vec<(FileNo, u64)>,
    /// The oldest log that has a prepared write.
    prepared: Option<FileNo>,
    next_file: FileNo,
    pub(crate) last_sequence: u64,
    max_family: u32,
}

impl Moment {
    /// The logs that the copy needs, with their bytes.
    pub(crate) fn needed_logs(&self) -> impl Iterator<Item = (FileNo, u64)> {
        let oldest = self.oldest_log();
        let logs = self.logs.iter().copied();
        logs.filter(move |&(log, bytes)| log >= oldest && bytes > 0)
    }

    fn oldest_log(&self) -> FileNo {
        let needed = self.families.iter().map(|(_, _, log)| *log);
        needed.chain(self.prepared).min().unwrap_or(0)
    }
}

/// Makes `target` a database that holds what this one holds now.
///
/// # Errors
/// `InvalidArgument` if `target` exists; `Busy` if somebody else makes it; `Io`, `NoSpace`: what was made is removed.
pub(crate) fn create(context: &Context, write: &WritePath, target: &Path) -> Result<()> {
    context.check_not_following("checkpoint")?;
    let fs = &*context.fs;
    let check = || match fs.exists(target)? {
        false => Ok(()),
        true => Err(
            Error::invalid_argument("checkpoint needs a directory that does not exist")
                .with("path", target.display()),
        ),
    };
    check()?;
    let temporary = TemporaryDir::begin(fs, target, &check)?;
    let held = context.hold_files();
    let moment = write.exclusive(|| fix(context));
    let result = fill(context, &moment, temporary.path());
    drop(held);
    // Logs that it kept.
    obsolete::purge(context);
    if let Err(e) = result {
        temporary.discard();
        return Err(e);
    }
    temporary.finish()?;
    context
        .log
        .info(format_args!("checkpoint made at {}", target.display()));
    Ok(())
}

/// What the database holds now. Called in the write path's lead.
pub(crate) fn fix(context: &Context) -> Moment {
    let families = context.set.families();
    Moment {
        families: families
            .into_iter()
            .map(|family| {
                let state = family.state();
                let (version, log) = (state.version.clone(), state.log_number);
                drop(state);
                (family, version, log)
            })
            .collect(),
        logs: context.logs.list(),
        prepared: context.prepared.oldest_log(),
        next_file: context.set.new_file_number(),
        last_sequence: context.sequence.visible(),
        max_family: context.set.next_family_id() - 1,
    }
}

fn fill(context: &Context, moment: &Moment, dir: &Path) -> Result<()> {
    let fs = &*context.fs;
    let mut copied = BTreeSet::new();
    for (_, version, _) in &moment.families {
        // Before the tables that point to them: beside a writer of another process a value is a hole only once no such table is
        // there any more (jobs/punch.rs), and then the table is missed.
        for &number in version.blob_files().keys() {
            let from = filename::blob_path(&context.dir, number);
            if !link_or_copy(fs, &from, &filename::blob_path(dir, number))? {
                copied.insert(number);
            }
        }
        for (_, file) in version.iter_files() {
            let from = filename::find_table(fs, &context.dir, file.number)?;
            let to = filename::table_path(dir, file.number);
            link_or_copy(fs, &from, &to)?;
        }
    }
    for (log, bytes) in moment.needed_logs() {
        let from = filename::wal_path(&context.dir, log);
        let to = filename::wal_path(dir, log);
        copy(fs, &from, &to, bytes)?;
        check_copied_log(context, (log, bytes), fs, &to)?;
    }
    write_head(context, moment, (fs, dir), copied)
}

/// Refuses a copy of a log that another process may have written over while it was read: that gives it the name of the next log first. Where
/// the name is gone the copy tells; the log may only have been deleted.
///
/// # Errors
/// `Busy`; `Io`.
pub(crate) fn check_copied_log(
    context: &Context,
    (log, bytes): (FileNo, u64),
    fs: &dyn FileSystem,
    copy: &Path,
) -> Result<()> {
    let path = filename::wal_path(&context.dir, log);
    if !context.read_only || context.fs.exists(&path)? {
        return Ok(());
    }
    match logs::valid_until(fs, copy, log) {
        Ok(valid_until) if valid_until == bytes => Ok(()),
        Err(e) if e.kind() != ErrorKind::Corruption => Err(e),
        _ => Err(Error::busy(
            "another process wrote over a log while it was copied; open the database anew and try again",
        )
        .with("file", path.display())),
    }
}

/// Writes all of a copy that is neither table nor log: its names survive a power loss, CURRENT's
/// last. What was given up of the blob files of `copied` takes space again.
///
/// # Errors
/// `Io`, `NoSpace`.
pub(crate) fn write_head(
    context: &Context,
    moment: &Moment,
    (fs, dir): (&dyn FileSystem, &Path),
    copied: BTreeSet<FileNo>,
) -> Result<()> {
    write_file(
        fs,
        &filename::identity_path(dir),
        context.set.db_id().as_bytes(),
    )?;
    let families: Vec<_> = moment.families.iter().map(|(f, _, _)| f.clone()).collect();
    let has_dictionaries = context.has_dictionaries.load(Ordering::Relaxed);
    let settings = options_map::current(&families);
    let text = options_map::to_text(&context.db_options(), &settings, has_dictionaries);
    write_file(
        fs,
        &filename::options_path(dir, moment.next_file),
        text.as_bytes(),
    )?;
    let number = moment.next_file + 1;
    let file = fs.create(&filename::manifest_path(dir, number))?;
    let mut writer = Writer::new(file, number, false);
    let snapshot = manifest::Snapshot {
        db_id: Some(context.set.db_id()),
        next_file_number: number + 1,
        last_sequence: moment.last_sequence,
        min_log_number_to_keep: moment.oldest_log(),
        max_column_family: moment.max_family,
        wals: WalSet::default(),
        filled_blob_files: copied,
        families: moment
            .families
            .iter()
            .map(|(family, version, log_number)| FamilySnapshot {
                id: family.id,
                name: &family.name,
                comparator: family.icmp.user.name(),
                log_number: *log_number,
                version,
                full_history_ts_low: None,
            })
            .collect(),
    };
    snapshot.write(&mut writer)?;
    writer.sync()?;
    fs.sync_dir(dir)?;
    manifest::set_current(fs, dir, number)
}

/// Gives a file a second name, or copies it where the file system cannot; true for the name.
///
/// # Errors
/// `Io`, `NoSpace`.
pub(crate) fn link_or_copy(fs: &dyn FileSystem, from: &Path, to: &Path) -> Result<bool> {
    match fs.hard_link(from, to) {
        Err(e) if e.kind() == ErrorKind::NotSupported => {
            copy(fs, from, to, fs.metadata(from)?.size).map(|()| false)
        }
        other => other.map(|()| true),
    }
}

fn copy(fs: &dyn FileSystem, from: &Path, to: &Path, bytes: u64) -> Result<()> {
    let source = fs.open(from, Access::Sequential)?;
    let mut target = BufferedFile::new(fs.create(to)?);
    let mut chunk = memory::zeroed(256 << 10, "copy buffer")?;
    let mut at = 0;
    while at < bytes {
        let n = (bytes - at).min(chunk.len() as u64) as usize;
        source.read_exact_at(at, &mut chunk[..n])?;
        target.append(&chunk[..n])?;
        at += n as u64;
    }
    target.sync()
}
