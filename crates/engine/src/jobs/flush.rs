//! A flush: owns sealed memtables of one family, writes their table, installs it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::key::user_key;
use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::sync::atomic::Ordering;
use orogen_base::{Error, FileNo, InternalIterator, Result, memory};
use orogen_blob::BlobFileBuilderOptions;
use orogen_env::{BufferedFile, IoPriority, WritableFile};
use orogen_sst::{TableBuilderOptions, TableReadOptions};

use crate::activity::{Counting, JobInfo, JobKind, JobState, Listed, RunningJob};
use crate::column_family::ColumnFamilyData;
use crate::compaction_iter::{CompactionIterOptions, CompactionIterStats, JobWatch};
use crate::context::{Context, LogHolders};
use crate::events::{BlobFileAdditionInfo, BlobFileCreationInfo, FlushInfo};
use crate::filename::{DataFile, DataFileKind};
use crate::obsolete;
use crate::options::{BlobRunMode, FileChecksumKind, PrepopulateBlobCache};
use crate::output::{self, BlobOutputOptions, EntriesHash, NewFile, OutputOptions, Written};
use crate::read::{BlobKeeper, MergingIter};
use crate::super_version::MemHandle;
use crate::version::BlobFileAddition;
use crate::version::edit::VersionEdit;
use crate::version_set::Change;

/// Sealed memtables that a thread has taken for a flush.
pub(crate) struct FlushJob {
    family: Arc<ColumnFamilyData>,
    memtables: Vec<Arc<MemHandle>>,
    reason: &'static str,
}

/// Takes the next flush that is due. Families with the most sealed memtables go first.
pub(crate) fn next(context: &Context) -> Option<FlushJob> {
    let mut families = context.set.families();
    // Cached: the lengths change meanwhile, and a sort must not see that.
    families.sort_by_cached_key(|f| std::cmp::Reverse(f.state().imm.len()));
    families.into_iter().find_map(|family| {
        let mut state = family.state();
        if state.flushing.is_some() {
            return None;
        }
        let reason = state.flush_due(&family.options())?;
        state.flushing = state.imm.first().map(|m| m.id);
        let memtables = state.imm.clone();
        drop(state);
        Some(FlushJob {
            family,
            memtables,
            reason,
        })
    })
}

impl FlushJob {
    /// Writes the table and installs it.
    ///
    /// # Errors
    /// `NoSpace`, `Io`, or damage in what was to be written; the memtables stay.
    pub(crate) fn run(self, context: &Context) -> Result<()> {
        let result = catch_unwind(AssertUnwindSafe(|| self.write_and_install(context)));
        let mut state = self.family.state();
        state.flushing = None;
        self.family.flush_progress.end(context.clock.now_micros());
        context.stall.end_pause(self.family.id);
        drop(state);
        context.balance_memory();
        context.update_stall(&self.family);
        // It is due again, for whoever looks.
        let result = result.unwrap_or_else(|panic| {
            context.work.raise();
            context.progress.raise();
            resume_unwind(panic)
        });
        match result {
            Err(_) if self.family.is_dropped() => Ok(()),
            other => other,
        }
    }

    fn write_and_install(&self, context: &Context) -> Result<()> {
        let start = context.clock.now_micros();
        let mut info = FlushInfo {
            column_family: self.family.name.clone(),
            job_id: context.new_job_id(),
            file: None,
            bytes: 0,
            blob_file_additions: Vec::new(),
            entries: self.memtables.iter().map(|m| m.table.entry_count()).sum(),
            reason: self.reason,
            micros: 0,
        };
        let listed = self.list(context, &info);
        context.notify(|l| l.on_flush_begin(&info));
        let progress = &self.family.flush_progress;
        progress.begin(listed.job.clone(), start);
        // All logs before this one are closed, and what is flushed is in them.
        let closed_before = context.logs.current();
        if context.set.families().len() > 1 || context.prepared.was_used() {
            // Else this family could come back newer than the logs of the others, or than what
            // only logs have.
            context.logs.sync_closed()?;
        }
        let epoch = take_epoch(&self.family);
        let written = write_level0_table(
            context,
            &self.family,
            &self.memtables,
            epoch,
            Some(&listed.job),
        )?;
        progress.written(context.clock.now_micros());
        let rise = keys_rise(&written.stats);
        if let Some(rise) = rise {
            self.family.keys_rise.store(rise, Ordering::Relaxed);
        }
        info.file = written.files.first().map(|f| f.number);
        info.bytes = written.bytes;
        info.blob_file_additions = written.blob_files.iter().map(addition_info).collect();
        self.install(context, written, closed_before)?;
        info.micros = context.clock.now_micros().saturating_sub(start);
        context
            .statistics
            .record(HistogramKind::FlushTime, info.micros);
        context.statistics.add(Ticker::FlushWriteBytes, info.bytes);
        context.hole_punching.note_flush(info.bytes, info.micros);
        context.log.info(format_args!(
            "[{}] flush job={} file={:?} bytes={} entries={} memtables={} micros={} writers_paused_micros={} reason={}",
            info.column_family,
            info.job_id,
            info.file,
            info.bytes,
            info.entries,
            self.memtables.len(),
            info.micros,
            progress.take_paused(),
            info.reason
        ));
        let (family, job) = (&self.family, info.job_id);
        tell_created(context, family, job, self.reason, &info.blob_file_additions);
        context.notify(|l| l.on_flush_completed(&info));
        Ok(())
    }

    fn list<'a>(&self, context: &'a Context, info: &FlushInfo) -> Listed<'a> {
        let bytes = self.memtables.iter().map(|m| m.table.memory_usage() as u64);
        let begun = JobInfo {
            id: Some(info.job_id),
            kind: JobKind::Flush,
            state: JobState::Running,
            column_family: self.family.name.clone(),
            start_level: None,
            output_level: Some(0),
            input_files: Vec::new(),
            input_bytes: bytes.sum(),
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: self.reason.to_owned(),
            since_secs: Some(context.clock.unix_secs()),
        };
        let job = RunningJob::new(begun, info.entries);
        context.activity.list(info.job_id, job)
    }

    fn install(&self, context: &Context, written: Written, closed_before: FileNo) -> Result<()> {
        let mut edit = VersionEdit::of_column_family(self.family.id);
        written.add_to(0, &mut edit);
        let count = self.memtables.len();
        let own_log = {
            let state = self.family.state();
            state
                .imm
                .get(count)
                .map_or_else(|| state.mem.log_number(), |m| m.log_number())
        };
        // A log that was closed meanwhile is not synced yet. This family holds nothing of it, but
        // must not say that it needs none before a later one.
        let own_log = own_log.min(closed_before);
        edit.log_number = Some(own_log);
        // Idle families keep an old log number in the MANIFEST; without this a recovery would
        // read logs that are kept only to be written over, and miss those between them.
        let others = LogHolders::list(context).min_log_needed_beside(Some(self.family.id));
        edit.min_log_number_to_keep = Some(others.min(own_log));
        let install = Box::new(move |state: &mut crate::column_family::FamilyState| {
            state.imm.drain(..count);
        });
        let change = Change {
            family: self.family.clone(),
            edit,
            install: Some(install),
        };
        context.set.apply(vec![change])
    }
}

/// Keys that a flush must have to tell how the next ones will come.
const KEYS_TO_TELL: u64 = 256;

/// Whether the keys of a flush had been written in rising order, but for one of 16; `None` where they are too few to tell.
fn keys_rise(stats: &CompactionIterStats) -> Option<bool> {
    let falling = stats.input_keys - stats.rising_keys;
    (stats.input_keys >= KEYS_TO_TELL).then_some(falling <= stats.input_keys / 16)
}

/// The epoch of the next table of level 0: tables of newer memtables have higher ones.
pub(crate) fn take_epoch(family: &ColumnFamilyData) -> u64 {
    let mut state = family.state();
    state.next_epoch += 1;
    state.next_epoch - 1
}

/// Writes what memtables hold into one table of level 0, and its large values into blob files;
/// there is none if nothing is left.
///
/// # Errors
/// `NoSpace`, `Io`; the partial files are gone.
pub(crate) fn write_level0_table(
    context: &Context,
    family: &ColumnFamilyData,
    memtables: &[Arc<MemHandle>],
    epoch_number: u64,
    job: Option<&Arc<RunningJob>>,
) -> Result<Written> {
    let order = &family.icmp.user;
    let input = || {
        let newest_first = memtables.iter().rev();
        let children = newest_first.map(|m| m.table.clone().iter()).collect();
        MergingIter::<Box<dyn InternalIterator>>::new(family.icmp.clone(), children)
    };
    let (snapshots, checked_since) = context.snapshots.for_job();
    let raw = memtables
        .iter()
        .flat_map(|m| m.table.raw_range_tombstones());
    let tombstones = FragmentedRangeTombstones::for_job(order, raw.collect(), &snapshots);
    let tombstones = Arc::new(tombstones);
    let rules = |start: Option<Vec<u8>>, end: Option<Vec<u8>>| {
        let watch = job.map(|job| -> Arc<dyn JobWatch> {
            Arc::new(Counting {
                job: job.clone(),
                beside: None,
            })
        });
        let merge_operator = family.merge_operator.clone();
        CompactionIterOptions {
            start,
            end,
            watch,
            earliest_write_conflict_snapshot: checked_since,
            ..CompactionIterOptions::for_flush(order.clone(), snapshots.clone(), merge_operator)
        }
    };
    let new_file = |first| new_file_from(first, context, IoPriority::High, job.cloned());
    let options = OutputOptions {
        table: table_options(context, family, 0, false),
        output_level: 0,
        target_file_size: u64::MAX,
        max_file_size: u64::MAX,
        max_compaction_bytes: u64::MAX,
        grandparents: Vec::new(),
        compact_on_deletion: family.options().compact_on_deletion,
        paranoid_file_checks: family.options().paranoid_file_checks,
        epoch_number,
        blobs: BlobOutputOptions {
            keeper: keeper(family).filter(|_| job.is_some()),
            ..blob_options(context, family, 0)
        },
    };
    let written = match middle(context, &options.blobs, memtables, input())? {
        None => output::write(
            input(),
            tombstones,
            rules(None, None),
            options,
            new_file(None),
        ),
        Some(middle) => {
            let half = |start, end, new_file| output::Half {
                input: input(),
                rules: rules(start, end),
                new_file,
            };
            let halves = [
                half(None, Some(middle.clone()), new_file(None)),
                half(
                    Some(middle),
                    None,
                    new_file(Some(context.set.new_file_number())),
                ),
            ];
            output::write_halves(halves, tombstones, options)
        }
    };
    match written {
        Ok(written) => {
            let created = written.created();
            if let Err(e) = check_entries(family, &written) {
                obsolete::discard(context, &created);
                return Err(e);
            }
            // The MANIFEST must not name a file whose name a power loss takes away.
            if !created.is_empty() {
                let log = context.logs.unnamed();
                if let Err(e) = context.directory.sync() {
                    obsolete::discard(context, &created);
                    return Err(e);
                }
                log.inspect(|&log| context.logs.note_named(log));
            }
            count_blobs(context, &written);
            Ok(written)
        }
        Err(failed) => {
            obsolete::discard(context, &failed.created);
            Err(failed.error)
        }
    }
}

/// Who takes the values that a flush writes to blob files, if that is asked for.
fn keeper(family: &ColumnFamilyData) -> Option<Arc<dyn BlobKeeper>> {
    let is_asked = family.options().prepopulate_blob_cache == PrepopulateBlobCache::FlushOnly;
    is_asked.then(|| -> Arc<dyn BlobKeeper> { family.tables.clone() })
}

/// Keys and small values of a flush by two threads have at most so many bytes: half of them wait in
/// memory.
const HELD_BYTES_MAX: u64 = 8 << 20;
/// And under a memory budget at most this part of it.
const HELD_PART_MAX: u64 = 16;
/// The middle is found to this part of the bytes that make two threads worth it.
const MIDDLE_STEPS: u64 = 32;

/// The user key from which on a second thread is to write the large values, where that is worth it:
/// about half of them are before it, and what else is there is a small part. It depends on nothing but
/// the entries, so that the same flush writes the same tables again.
///
/// # Errors
/// `NoMemory`.
fn middle(
    context: &Context,
    blobs: &BlobOutputOptions,
    memtables: &[Arc<MemHandle>],
    mut input: impl InternalIterator,
) -> Result<Option<Vec<u8>>> {
    let options = context.db_options();
    let Some(least) = blobs.min_blob_size else {
        return Ok(None);
    };
    let from = options.flush_halves_bytes;
    let memory: usize = memtables.iter().map(|m| m.table.memory_usage()).sum();
    let waits_for_samples = blobs.dictionary.is_some();
    if options.max_background_jobs < 2 || (memory as u64) < from || waits_for_samples {
        return Ok(None);
    }
    let held_max = context
        .options
        .memory_budget
        .as_ref()
        .map_or(u64::MAX, |budget| {
            budget.block_cache().capacity() as u64 / HELD_PART_MAX
        });
    let held_max = held_max.min(HELD_BYTES_MAX);
    let (mut values, mut rest) = (0u64, 0);
    // Bytes of large values before each of these keys.
    let mut steps: Vec<(u64, Vec<u8>)> = Vec::new();
    input.seek_to_first();
    while input.valid() {
        // Lengths are in the nodes: values are not read.
        let (key, len) = (input.key(), input.value().len() as u64);
        let last = steps.last().map_or(0, |(before, _)| *before);
        if values - last > from / MIDDLE_STEPS {
            let key = memory::copied(user_key(key), "middle of a flush")?;
            memory::push(&mut steps, (values, key), "middle of a flush")?;
        }
        rest += key.len() as u64;
        match len >= least {
            true => values += len,
            false => rest += len,
        }
        if rest > held_max {
            return Ok(None);
        }
        input.next();
    }
    if values < from {
        return Ok(None);
    }
    let at = steps.partition_point(|(before, _)| *before < values / 2);
    Ok(steps.into_iter().nth(at).map(|(_, key)| key))
}

/// A new blob file as listeners are told of it.
pub(crate) fn addition_info(file: &BlobFileAddition) -> BlobFileAdditionInfo {
    BlobFileAdditionInfo {
        number: file.number,
        total_blob_count: file.total_blob_count,
        total_blob_bytes: file.total_blob_bytes,
    }
}

/// Tells listeners of the blob files that a job wrote.
pub(crate) fn tell_created(
    context: &Context,
    family: &ColumnFamilyData,
    job_id: u64,
    reason: &'static str,
    files: &[BlobFileAdditionInfo],
) {
    for file in files {
        let info = BlobFileCreationInfo {
            column_family: family.name.clone(),
            job_id,
            reason,
            file: file.clone(),
        };
        context.notify(|l| l.on_blob_file_created(&info));
    }
}

/// Counts the blob files that a job wrote, and what it took out of older ones.
pub(crate) fn count_blobs(context: &Context, written: &Written) {
    for (ticker, n) in [
        (Ticker::BlobDbBlobFileBytesWritten, written.blob_bytes),
        (
            Ticker::BlobDbBlobFileSynced,
            written.blob_files.len() as u64,
        ),
        (
            Ticker::BlobDbNumKeysWritten,
            written.blob_files.iter().map(|b| b.total_blob_count).sum(),
        ),
        (Ticker::BlobValuesReturned, written.returned.values),
        (Ticker::BlobBytesReturned, written.returned.bytes),
        (Ticker::BlobDbGcNumKeysRelocated, written.relocated.values),
        (Ticker::BlobDbGcBytesRelocated, written.relocated.bytes),
        (Ticker::BlobLocalityKeysRelocated, written.ordered.values),
        (Ticker::BlobLocalityBytesRelocated, written.ordered.bytes),
    ] {
        if n > 0 {
            context.statistics.add(ticker, n);
        }
    }
    if written.dictionary_files > 0 && !context.told_of_dictionary.swap(true, Ordering::Relaxed) {
        context.log.info(format_args!(
            "blob files have dictionaries from here on: RocksDB cannot read their values"
        ));
    }
}

/// Reads new tables back and compares their entries with those that were to be written, if that
/// was asked for when they were.
///
/// # Errors
/// `Corruption` if they differ; what a reader of the table meets.
pub(crate) fn check_entries(family: &ColumnFamilyData, written: &Written) -> Result<()> {
    for (file, expected) in written.files.iter().zip(&written.entries) {
        let Some(expected) = expected else {
            continue;
        };
        let table = family.tables.reader(file)?;
        let mut iter = table.iter(TableReadOptions::compaction());
        let mut found = EntriesHash::default();
        iter.seek_to_first();
        while iter.valid() {
            found.add(iter.key(), iter.value());
            iter.next();
        }
        iter.status()?;
        if found != *expected {
            let error = Error::corruption("table has other entries than were to be written");
            return Err(error.with("file_number", file.number));
        }
    }
    Ok(())
}

/// How tables of a level are built.
pub(crate) fn table_options(
    context: &Context,
    family: &ColumnFamilyData,
    level: usize,
    bottommost: bool,
) -> TableBuilderOptions {
    let options = family.options();
    let now = context.clock.unix_secs();
    let compression_options = match &options.bottommost_compression_opts {
        Some(own) if bottommost => *own,
        _ => options.compression_opts,
    };
    TableBuilderOptions {
        table: options.table.clone(),
        compression: options.compression_of(level, bottommost),
        compression_options,
        comparator: options.comparator.clone(),
        prefix_extractor: options.prefix_extractor.clone(),
        merge_operator_name: options
            .merge_operator
            .as_ref()
            .map_or_else(|| "nullptr".to_owned(), |m| m.name().to_owned()),
        column_family_id: family.id,
        column_family_name: family.name.clone(),
        db_id: context.set.db_id().to_owned(),
        db_session_id: context.session_id.clone(),
        creation_time: now,
        oldest_key_time: now,
        file_creation_time: now,
        file_checksum: context.options.file_checksum == FileChecksumKind::Crc32c,
        reserve_in: context
            .options
            .memory_budget
            .as_ref()
            .map(|budget| budget.block_cache().clone()),
        ..TableBuilderOptions::default()
    }
}

/// Where the large values of new tables of a level go. What is to be written anew is for the job to add.
pub(crate) fn blob_options(
    context: &Context,
    family: &ColumnFamilyData,
    level: usize,
) -> BlobOutputOptions {
    let options = family.options();
    BlobOutputOptions {
        min_blob_size: options.separates_from(level),
        // Where nothing goes to a blob file nothing need wait for one.
        dictionary: options
            .blob_dictionary()
            .filter(|_| options.keeps_apart(level)),
        keep_apart: options.blob_run_mode == BlobRunMode::ReadOnly,
        blob_file_size: options.blob_file_size,
        file: BlobFileBuilderOptions {
            compression: options.blob_compression_type,
            alignment: options.blob_record_alignment,
            compression_options: options.blob_compression_opts,
            comparator: options.comparator.clone(),
            column_family_id: family.id,
            column_family_name: family.name.clone(),
            creation_time: context.clock.unix_secs(),
            db_id: context.set.db_id().to_owned(),
            db_session_id: context.session_id.clone(),
            file_checksum: context.options.file_checksum == FileChecksumKind::Crc32c,
            ..BlobFileBuilderOptions::default()
        },
        statistics: Some(context.statistics.clone()),
        reserve_in: context
            .options
            .memory_budget
            .as_ref()
            .map(|budget| budget.block_cache().clone()),
        ..BlobOutputOptions::default()
    }
}

/// Makes tables and blob files with numbers of their own.
pub(crate) fn new_file(
    context: &Context,
    priority: IoPriority,
    job: Option<Arc<RunningJob>>,
) -> NewFile<'_> {
    new_file_from(None, context, priority, job)
}

/// The same, where the first file has this number: which of two threads asks first must not show in
/// the files.
fn new_file_from(
    mut first: Option<FileNo>,
    context: &Context,
    priority: IoPriority,
    job: Option<Arc<RunningJob>>,
) -> NewFile<'_> {
    Box::new(move |kind: DataFileKind| {
        let number = first
            .take()
            .unwrap_or_else(|| context.set.new_file_number());
        let path: PathBuf = DataFile { number, kind }.path(&context.dir);
        if let Some(job) = &job {
            job.note_output(number);
        }
        // The builder has a buffer of its own: this one only meters.
        let mut file = BufferedFile::with_capacity(context.fs.create(&path)?, 0)
            .bytes_per_sync(context.db_options().bytes_per_sync);
        if let Some(limiter) = &context.options.rate_limiter {
            file = file.rate_limiter(limiter.clone(), priority, context.closing.clone());
        }
        Ok((number, Box::new(file) as Box<dyn WritableFile>))
    })
}
