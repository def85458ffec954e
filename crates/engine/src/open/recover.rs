//! Opens a database: MANIFEST, then logs, then a clean start.
//!
//! ```text
//! lock -> CURRENT -> MANIFEST -> families and versions -> logs into memtables
//!      -> new MANIFEST -> new log -> memtables into tables -> left-out logs away -> one edit -> OPTIONS -> strays away
//! ```
//! Invariants: (1) until the new MANIFEST is current nothing that the old one needs is changed or
//! removed; (2) the edit that lists what came from the logs is one atomic group over all
//! families; (3) after one open the directory holds no file that the database does not know.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use orogen_base::key::InternalKeyComparator;
use orogen_base::{Error, ErrorKind, FileNo, Result, UserComparator};
use orogen_blob::format::VERSION_WITH_DICTIONARY;
use orogen_env::fs::{make_dir, read_file, write_file};
use orogen_env::{FileLock, FileSystem};
use orogen_sst::BlockCache;

use crate::background::Background;
use crate::batch::{self, WriteBatch};
use crate::column_family::{ColumnFamilyData, DEFAULT_COLUMN_FAMILY_NAME};
use crate::context::{Context, ContextParts};
use crate::core::Core;
use crate::directory::Directory;
use crate::filename::{self, FileKind};
use crate::health::Health;
use crate::info_log::InfoLog;
use crate::jobs::flush::{take_epoch, write_level0_table};
use crate::obsolete;
use crate::open::families::{self, assemble};
use crate::open::files;
use crate::open::identity::{identity, new_session_id, new_uuid};
use crate::open::replay::{Replayed, replay};
use crate::options::{ColumnFamilyOptions, DbOptions, Options, WalRecoveryMode};
use crate::options_map::{self, NamedFamily, StoredOptions};
use crate::sequence::Sequence;
use crate::version::edit::{FILE_NUMBER_MAX, VersionEdit};
use crate::version::manifest::{self, RecoveredFamily, RecoveredManifest};
use crate::version::version::Version;
use crate::version_set::{Change, VersionSet, VersionSetParts};
use crate::write::commit::WritePath;

/// Bytes of the block cache that families share if they bring none.
const DEFAULT_BLOCK_CACHE_BYTES: usize = 32 << 20;

/// What the database is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    ReadWrite,
    ReadOnly,
}

/// The names of the families in `dir`.
///
/// # Errors
/// `InvalidArgument` if there is no database; `Corruption`, `Io`.
pub(crate) fn list_column_families(dir: &Path, options: &Options) -> Result<Vec<String>> {
    let fs = &*options.db.fs;
    if !fs.exists(&filename::current_path(dir))? {
        return Err(no_database(dir));
    }
    let (_, recovered) = manifest::recover_current(fs, dir)?;
    Ok(recovered.families.into_values().map(|f| f.name).collect())
}

fn no_database(dir: &Path) -> Error {
    Error::invalid_argument("there is no database here; set create_if_missing to make one")
        .with("path", dir.display())
}

/// Refuses a directory that holds tables or logs but no CURRENT: making a new database there would take
/// them for strays, and logs for its own. A crash cannot leave it so, for CURRENT is there before the first of them; one in the midst of a
/// destruction can.
fn refuse_headless(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let held = fs.list(dir)?.into_iter().find(|name| {
        matches!(
            filename::parse(name),
            Some(FileKind::Table(_) | FileKind::Blob(_) | FileKind::Wal(_))
        )
    });
    match held {
        None => Ok(()),
        Some(name) => Err(Error::corruption(
            "directory holds tables or logs but no CURRENT file; put CURRENT back, or destroy it",
        )
        .with("path", dir.display())
        .with("file", name)),
    }
}

/// Opens the database in `dir`.
///
/// # Errors
/// See [`crate::Db::open`].
pub(crate) fn open(dir: &Path, options: &Options, mode: Mode) -> Result<Core> {
    let mut tries = 1;
    loop {
        match open_once(dir, options, mode) {
            // Another process gives files up while they are read.
            Err(e) if mode == Mode::ReadOnly && tries < TRIES_MAX && may_be_settled(&e) => {
                tries += 1;
                options.db.clock.sleep(PAUSE);
            }
            done => return done,
        }
    }
}

/// How often a read-only open begins anew where another process changes the database meanwhile.
const TRIES_MAX: usize = 20;

const PAUSE: Duration = Duration::from_millis(1);

fn may_be_settled(error: &Error) -> bool {
    error.kind() == ErrorKind::Busy || error.is_file_not_found()
}

/// The MANIFEST that is current, and its size.
fn manifest_now(fs: &dyn FileSystem, dir: &Path) -> Result<(FileNo, u64)> {
    let number = manifest::current(fs, dir)?;
    let path = filename::manifest_path(dir, number);
    Ok((number, fs.metadata(&path)?.size))
}

/// Refuses files that were looked for after the MANIFEST was seen as `before`, where it has changed meanwhile.
///
/// # Errors
/// `Busy`; those of reading the MANIFEST.
fn check_same_manifest(context: &Context, before: Option<(FileNo, u64)>) -> Result<()> {
    match before {
        Some(before) if manifest_now(&*context.fs, &context.dir)? != before => Err(Error::busy(
            "another process changed the MANIFEST while its files were looked for; try again, or open it as a secondary",
        )
        .with("path", context.dir.display())),
        _ => Ok(()),
    }
}

/// Refuses logs that were listed without the lock after the MANIFEST was seen as `before`, where it gave up one of them meanwhile: it
/// may have been gone by then, and what it held would be missing among what is older and what is newer.
///
/// # Errors
/// `Busy`; those of reading the MANIFEST.
fn check_not_moved(
    context: &Context,
    before: (FileNo, u64),
    found: &RecoveredManifest,
) -> Result<()> {
    let (fs, dir) = (&*context.fs, &*context.dir);
    if manifest_now(fs, dir)? == before {
        return Ok(());
    }
    let (_, now) = manifest::recover_current(fs, dir)?;
    let needed = |of: &RecoveredManifest| {
        let families = of.families.iter().map(|(&id, f)| (id, f.log_number));
        (of.min_log_number_to_keep, families.collect::<Vec<_>>())
    };
    if needed(&now) == needed(found) {
        return Ok(());
    }
    Err(
        Error::busy("another process gave up logs while they were read; try again")
            .with("path", dir.display()),
    )
}

fn open_once(dir: &Path, options: &Options, mode: Mode) -> Result<Core> {
    let fs = options.db.fs.clone();
    let read_only = mode == Mode::ReadOnly;
    options.cf.validate()?;
    options.db.validate()?;
    let exists = fs.exists(&filename::current_path(dir))?;
    if exists && options.db.error_if_exists {
        return Err(
            Error::invalid_argument("there is a database here already").with("path", dir.display())
        );
    }
    if !exists && (read_only || !options.db.create_if_missing) {
        return Err(no_database(dir));
    }
    let lock = if read_only {
        None
    } else {
        if !exists {
            make_dir(&*fs, dir)?;
        }
        Some(Arc::from(fs.lock(&filename::lock_path(dir))?))
    };
    if !exists && fs.exists(&filename::current_path(dir))? {
        // Somebody made it before the lock was ours.
        drop(lock);
        return open(dir, options, mode);
    }
    if !exists {
        refuse_headless(&*fs, dir)?;
    }
    let log = if read_only || !options.db.info_log {
        InfoLog::disabled(options.db.clock.clone())
    } else {
        InfoLog::open(
            &*fs,
            options.db.clock.clone(),
            dir,
            options.db.info_log_level,
            options.db.keep_log_file_num,
        )?
    };
    let manifest_before = match read_only {
        true => Some(manifest_now(&*fs, dir)?),
        false => None,
    };
    let found = if exists {
        Some(manifest::recover_current(&*fs, dir)?)
    } else {
        None
    };
    let db_id = match &found {
        Some((_, m)) => identity(&*fs, dir, m.db_id.as_deref())?,
        None => new_uuid(),
    };
    // One of a database that was never made says nothing.
    if !exists || (!read_only && !fs.exists(&filename::identity_path(dir))?) {
        write_file(&*fs, &filename::identity_path(dir), db_id.as_bytes())?;
    }
    let context = Arc::new(new_context(dir, options, log, db_id, found.as_ref(), lock));
    context.log.info(format_args!(
        "opening db_id={} session={} {}",
        context.set.db_id(),
        context.session_id,
        if exists { "existing" } else { "new" }
    ));
    let recovered = found.as_ref().map(|f| &f.1);
    let result = finish_open(&context, options, recovered, manifest_before);
    if let Err(e) = &result {
        context.log.error(format_args!("cannot open: {e}"));
    }
    let (default_family, write) = result?;
    let write = Arc::new(write);
    let background = if read_only {
        None
    } else {
        Some(Background::start(&write)?)
    };
    context.log.info(format_args!(
        "open, last sequence {}",
        context.sequence.visible()
    ));
    Ok(Core {
        context,
        write,
        default_family,
        background,
    })
}

fn new_context(
    dir: &Path,
    options: &Options,
    log: InfoLog,
    db_id: String,
    found: Option<&(FileNo, RecoveredManifest)>,
    lock: Option<Arc<dyn FileLock>>,
) -> Context {
    let health = Arc::new(Health::default());
    let sequence = Arc::new(Sequence::default());
    if let Some((_, recovered)) = found {
        sequence.reset(recovered.last_sequence);
    }
    let directory = Directory::new(dir.to_owned(), options.db.fs.clone(), health.clone());
    let directory = Arc::new(directory);
    let set = VersionSet::new(VersionSetParts {
        directory: directory.clone(),
        clock: options.db.clock.clone(),
        statistics: options.db.statistics.clone(),
        health: health.clone(),
        sequence: sequence.clone(),
        db_id,
        max_manifest_file_size: options.db.max_manifest_file_size,
        next_file: found.map_or(2, |(_, m)| m.next_file_number),
        min_log_number_to_keep: found.map_or(0, |(_, m)| m.min_log_number_to_keep),
        manifest_number: found.map_or(0, |(n, _)| *n),
    });
    Context::new(ContextParts {
        directory,
        options: options.db.clone(),
        log,
        health,
        sequence,
        set,
        default_cache: match &options.db.memory_budget {
            Some(budget) => budget.block_cache().clone(),
            None => Arc::new(BlockCache::new(DEFAULT_BLOCK_CACHE_BYTES)),
        },
        session_id: new_session_id(),
        read_only: lock.is_none(),
        lock,
    })
}

fn finish_open(
    context: &Arc<Context>,
    options: &Options,
    found: Option<&RecoveredManifest>,
    manifest_before: Option<(FileNo, u64)>,
) -> Result<(Arc<ColumnFamilyData>, WritePath)> {
    let on_disk = context.fs.list(&context.dir)?;
    let stored = options_map::load_newest(&*context.fs, &context.dir, &on_disk)?;
    register_families(context, options, found, stored.as_ref(), &on_disk)?;
    if stored.as_ref().is_some_and(|s| !s.is_readable_by_rocksdb()) {
        let has_some = has_dictionaries(context);
        context.has_dictionaries.store(has_some, Ordering::Relaxed);
    }
    let missing: Vec<(&String, &ColumnFamilyOptions)> = options
        .families
        .iter()
        .filter(|(name, _)| context.set.family_named(name).is_none())
        .collect();
    // Before anything is written.
    let may_create = found.is_none() || context.options.create_missing_column_families;
    if !missing.is_empty() && !may_create && !context.read_only {
        return Err(Error::invalid_argument(
            "column family is not there; set create_missing_column_families to make it",
        )
        .with("column_family", missing[0].0));
    }
    let families = context.set.families();
    let default_family = context
        .set
        .family(0)
        .ok_or_else(|| Error::corruption("MANIFEST has no default column family"))?;
    let check_not_moved = || match (manifest_before, found) {
        (Some(before), Some(found)) => check_not_moved(context, before, found),
        _ => Ok(()),
    };
    let from = first_log_needed(context, found);
    let stored = stored.as_ref();
    options_map::check_logs_of(stored, &*context.fs, &context.dir, &on_disk, from)?;
    if let Some(found) = found {
        files::check(context, &|| check_same_manifest(context, manifest_before))?;
        files::check_logs(context, &found.wals, from).or_else(|e| check_not_moved().and(Err(e)))?;
    }
    let logs = logs_from(&on_disk, from);
    if let Some(&log) = logs.last().filter(|&&log| log > FILE_NUMBER_MAX) {
        return Err(Error::corruption("file number is too large").with("log", log));
    }
    if let Some(&log) = logs.last() {
        context.set.mark_file_number_used(log);
    }
    // A file of an open that failed may have a name that no later sync saves, so none is made in its place.
    let strays = on_disk.iter().filter_map(|name| filename::number(name));
    // One of no database of ours does not use the numbers up.
    if let Some(stray) = strays.filter(|&number| number < FILE_NUMBER_MAX / 2).max() {
        context.set.mark_file_number_used(stray);
    }
    check_not_moved()?;
    let replayed = replay(context, &families, &logs).or_else(|e| check_not_moved().and(Err(e)))?;
    let is_whole = context.options.wal_recovery_mode == WalRecoveryMode::PointInTimeRecovery
        && replayed.took_all(&logs);
    if !is_whole {
        // One may have been written over while it was read.
        check_not_moved()?;
    }
    if !context.read_only {
        // Before numbers of logs are taken over: it must not say more than tables hold, or a second open, after a crash before
        // the edit below, judges the logs by what stands in them.
        context.set.roll_manifest()?;
    }
    let last = context.sequence.visible().max(replayed.last_seqno);
    context.sequence.reset(last);
    if !logs.is_empty() {
        context.log.info(format_args!(
            "replayed logs={} records={} bytes_dropped={}",
            logs.len(),
            replayed.records,
            replayed.bytes_dropped
        ));
    }
    if context.read_only {
        // A checkpoint copies them.
        for (&log, &end) in &replayed.ends {
            context.logs.keep(log, end);
        }
        // One of them has each: all are kept.
        let oldest = replayed.ends.first_key_value().map_or(0, |(&log, _)| log);
        for (name, batch) in replayed.prepared.left() {
            let batch = batch.into_prepare(&name, Arc::default())?;
            context.prepared.restore(name, batch, oldest);
        }
        return Ok((default_family, WritePath::new(context.clone())));
    }
    let mut left_out = logs;
    left_out.retain(|log| !replayed.ends.contains_key(log));
    start_clean(context, &families, replayed, &left_out)?;
    let write = WritePath::new(context.clone());
    for (name, family_options) in missing {
        let family_options = family_options.clone();
        families::create_without_options_file(context, &write, name, family_options)?;
    }
    let all = options_map::current(&context.set.families());
    let newest_options = write_options_file(context, &context.db_options(), &all)?;
    obsolete::purge(context);
    obsolete::remove_strays(context, newest_options)?;
    for family in context.set.families() {
        context.update_stall(&family);
    }
    Ok((default_family, write))
}

/// Builds the families from the MANIFEST, or the default family of a new database.
fn register_families(
    context: &Context,
    options: &Options,
    recovered: Option<&RecoveredManifest>,
    stored: Option<&StoredOptions>,
    on_disk: &[String],
) -> Result<()> {
    let Some(recovered) = recovered else {
        let cf = options.family(DEFAULT_COLUMN_FAMILY_NAME);
        let cf = cf.clone().sanitized();
        cf.validate()?;
        let icmp = InternalKeyComparator::new(cf.comparator.clone());
        let version = Arc::new(Version::empty(icmp, cf.num_levels));
        context.set.register(assemble(
            context,
            0,
            DEFAULT_COLUMN_FAMILY_NAME,
            cf,
            version,
            0,
        )?);
        return Ok(());
    };
    if let (None, Some(number)) = (stored, options_map::newest(on_disk)) {
        context.log.warn(format_args!(
            "OPTIONS-{number:06} cannot be read: what the caller leaves open (merge operator, prefix extractor, levels) is not filled in from it"
        ));
    }
    for (&id, family) in &recovered.families {
        let assembled = assemble_recovered(context, options, stored, id, family)?;
        context.set.register(assembled);
    }
    if recovered.max_column_family == u32::MAX {
        return Err(
            Error::corruption("MANIFEST leaves no number for another column family")
                .with("max_column_family", recovered.max_column_family),
        );
    }
    context.set.raise_max_family(recovered.max_column_family);
    Ok(())
}

/// A family as the MANIFEST has it, with an empty memtable; it is not registered.
///
/// # Errors
/// `InvalidArgument` for settings that do not fit the files; `Corruption`.
pub(crate) fn assemble_recovered(
    context: &Context,
    options: &Options,
    stored: Option<&StoredOptions>,
    id: u32,
    family: &RecoveredFamily,
) -> Result<Arc<ColumnFamilyData>> {
    let mut cf = options.family(&family.name).clone();
    if let Some(stored) = stored {
        stored.fill_gaps(&family.name, &mut cf);
    }
    cf = cf.sanitized();
    cf.validate()?;
    if let Some(order) = family
        .comparator
        .as_deref()
        .and_then(UserComparator::by_name)
        && cf.comparator.is_bytewise()
    {
        cf.comparator = order;
    }
    let icmp = InternalKeyComparator::new(cf.comparator.clone());
    let version = family.version(&icmp, cf.num_levels)?;
    refuse_features(family, &version).map_err(|e| e.with("column_family", &family.name))?;
    assemble(
        context,
        id,
        &family.name,
        cf,
        Arc::new(version),
        family.log_number,
    )
}

/// Refuses what the next MANIFEST would lose, and reads would answer wrongly: nothing was written yet.
fn refuse_features(family: &RecoveredFamily, version: &Version) -> Result<()> {
    let elsewhere = version.iter_files().find(|(_, f)| f.path_id != 0);
    if let Some((_, file)) = elsewhere {
        return Err(Error::not_supported(
            "table is in another of several paths (db_paths, cf_paths)",
        )
        .with("table", file.number)
        .with("path_id", file.path_id));
    }
    if family.full_history_ts_low.is_some() || !family.persist_user_defined_timestamps {
        return Err(Error::not_supported("keys have user-defined timestamps"));
    }
    Ok(())
}

/// What a follower of the database in `dir` shares. Its LOG is in `own_dir`, or nowhere.
///
/// # Errors
/// See [`crate::Db::open_as_secondary`].
pub(crate) fn open_context(
    dir: &Path,
    own_dir: Option<&Path>,
    options: &Options,
) -> Result<Context> {
    let fs = &*options.db.fs;
    if own_dir == Some(dir) {
        return Err(
            Error::invalid_argument("a secondary needs another directory for its LOG")
                .with("path", dir.display()),
        );
    }
    if !fs.exists(&filename::current_path(dir))? {
        return Err(no_database(dir));
    }
    let found = manifest::recover_current(fs, dir)?;
    let kept = found.1.min_log_number_to_keep;
    options_map::check_logs_are_here(fs, dir, &fs.list(dir)?, kept)?;
    let db_id = identity(fs, dir, found.1.db_id.as_deref())?;
    let clock = options.db.clock.clone();
    let log = match own_dir.filter(|_| options.db.info_log) {
        Some(own) => {
            fs.create_dir_all(own)?;
            let (level, keep) = (options.db.info_log_level, options.db.keep_log_file_num);
            InfoLog::open(fs, clock, own, level, keep)?
        }
        None => InfoLog::disabled(clock),
    };
    let mut context = new_context(dir, options, log, db_id, Some(&found), None);
    context.follows = true;
    context.log.info(format_args!(
        "following db_id={} in {}",
        context.set.db_id(),
        dir.display()
    ));
    Ok(context)
}

/// The first log that some family may need, or that may have what is prepared.
fn first_log_needed(context: &Context, recovered: Option<&RecoveredManifest>) -> FileNo {
    let families = context.set.families();
    let needed = families.iter().map(|f| f.state().log_number).min();
    match recovered.map_or(0, |m| m.min_log_number_to_keep) {
        0 => needed.unwrap_or(0),
        kept => kept,
    }
}

/// The logs from number `from` on, oldest first.
fn logs_from(on_disk: &[String], from: FileNo) -> Vec<FileNo> {
    let mut logs: Vec<FileNo> = on_disk
        .iter()
        .filter_map(|name| match filename::parse(name) {
            Some(FileKind::Wal(n)) if n >= from => Some(n),
            _ => None,
        })
        .collect();
    logs.sort_unstable();
    logs
}

/// Writes a log that memtables still need once more, up to its `end`. A sync is not enough: where an earlier one failed, the
/// system may show bytes that it will never write, and a later sync succeeds without them; and behind the end may stand records
/// of a former use, which put in doubt what comes after this log. The new name is made durable with that of the next log.
fn rewrite_log(context: &Context, number: FileNo, end: u64) -> Result<()> {
    let path = filename::wal_path(&context.dir, number);
    let temporary = filename::temporary_path(&context.dir, number);
    let mut records = read_file(&*context.fs, &path)?;
    records.truncate(usize::try_from(end).unwrap_or(usize::MAX));
    write_file(&*context.fs, &temporary, &records)?;
    context.fs.rename(&temporary, &path)
}

/// Starts a log; what the old logs held goes into tables, unless the options leave it in memory.
fn start_clean(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    mut replayed: Replayed,
    left_out: &[FileNo],
) -> Result<()> {
    let stays_in_memory = context.options.avoid_flush_during_recovery
        && replayed.tables.is_empty()
        && replayed.bytes_dropped == 0
        && left_out.is_empty()
        // The log of a commit would be kept and that of what it commits would go.
        && !replayed.prepared.crossed_logs();
    if stays_in_memory {
        for (&number, &end) in &replayed.ends {
            rewrite_log(context, number, end)?;
            context.logs.keep(number, end);
        }
    }
    let log = context.set.new_file_number();
    let expected = context.expected_log_bytes();
    context
        .logs
        .start(log, context.sequence.allocated() + 1, expected)?;
    context.logs.sync_name()?;
    let next = context.sequence.allocated() + 1;
    for (name, batch) in std::mem::take(&mut replayed.prepared).left() {
        let batch = batch.into_prepare(&name, Arc::default())?;
        let anew = WriteBatch::rollback(&name);
        let header = batch::header(next, batch.count());
        let parts = [&header, anew.operations(), batch.operations()];
        context.logs.append(&parts, true)?;
        context.prepared.restore(name, batch, log);
    }
    let mut changes = Vec::new();
    for family in families {
        let mut tables = replayed.tables.remove(&family.id).unwrap_or_default();
        let mem = family.state().mem.clone();
        if stays_in_memory && !mem.is_empty() {
            continue;
        }
        if !mem.is_empty() {
            tables.push(write_level0_table(
                context,
                family,
                std::slice::from_ref(&mem),
                take_epoch(family),
                None,
            )?);
        }
        let mut edit = VersionEdit {
            log_number: Some(log),
            min_log_number_to_keep: (!stays_in_memory).then_some(log),
            ..VersionEdit::of_column_family(family.id)
        };
        for table in tables {
            table.add_to(0, &mut edit);
        }
        let fresh = context.new_memtable(family, log);
        changes.push(Change {
            family: family.clone(),
            edit,
            install: Some(Box::new(move |state| state.mem = fresh)),
        });
    }
    obsolete::remove_left_out(context, left_out)?;
    context.set.apply(changes)
}

/// True if a blob file has a dictionary, or does not open.
fn has_dictionaries(context: &Context) -> bool {
    context.set.families().iter().any(|family| {
        let version = family.version();
        let mut numbers = version.blob_files().keys();
        numbers.any(
            |&number| match family.tables.blob_reader(&version, number) {
                Ok(reader) => reader.header().version == VERSION_WITH_DICTIONARY,
                Err(_) => true,
            },
        )
    })
}

/// Writes the settings of all families as RocksDB's OPTIONS file; returns its number.
///
/// # Errors
/// `Io`, `NoSpace`: there is no such file.
pub(crate) fn write_options_file(
    context: &Context,
    db: &DbOptions,
    families: &[NamedFamily],
) -> Result<FileNo> {
    let number = context.set.new_file_number();
    if options_map::ask_for_dictionaries(families) {
        // A job that has begun may write some even if they are not asked for any more.
        context.has_dictionaries.store(true, Ordering::Relaxed);
    }
    let has_dictionaries = context.has_dictionaries.load(Ordering::Relaxed);
    let text = options_map::to_text(db, families, has_dictionaries);
    let temporary = filename::temporary_options_path(&context.dir, number);
    let path = filename::options_path(&context.dir, number);
    let named = write_file(&*context.fs, &temporary, text.as_bytes())
        .and_then(|()| context.fs.rename(&temporary, &path))
        .inspect_err(|_| obsolete::discard_options_file(context, &temporary));
    named.and_then(|()| {
        context.directory.sync().inspect_err(|_| {
            // The newest one is what the next open goes by.
            obsolete::discard_options_file(context, &path);
        })
    })?;
    obsolete::retire_options_files(context, number);
    Ok(number)
}
