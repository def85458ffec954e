//! A collection of garbage in blob files, by a background thread or for a caller; and, for lack of
//! garbage, a background thread's step that puts values into key order
//! ([`locality`](crate::compact::locality)).
//!
//! ```text
//! choose files -> select tables -> take them, as compactions do -> rewrite one after the other,
//! values to one blob file that goes on from table to table -> one edit
//! ```
//! Each of its parts is a compaction of a table within its level. What pointers lead to is written anew
//! at the place of the pointer, under the same sequence number: nobody who reads, at whatever
//! snapshot, can tell, and no write has to be looked out for. The edit is conditional as every
//! compaction's is: the tables are its own until it has ended.
//!
//! 1. A file is given up by nobody here: it goes when no table of the version points to it. What could not be
//!    read stays where it is, and so does its file.
//! 2. New files are durable, by name too, before the edit that lists them with the tables that
//!    point to them. A crash before it leaves strays, and everything as it was.
//! 3. A step holds tables of some seconds' work. Between steps it holds nothing; a paused
//!    collection gives its step up.
//! 4. Tables are taken and given back by guards, whatever ends the step.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::{Error, ErrorKind, FileNo, Result};

use crate::activity::{JobInfo, JobKind, JobState, Listed, RunningJob};
use crate::column_family::{ColumnFamilyData, FamilyState, NothingToCollect};
use crate::compact::collect::{self, Rules, Selected, Step};
use crate::compact::{self, Reason, Scores, locality};
use crate::compaction_iter::JobWatch;
use crate::context::Context;
use crate::events::BlobCollectionInfo;
use crate::filename::DataFile;
use crate::jobs::compaction::{CompactionJob, Moves, count_drops, install_outputs};
use crate::jobs::compaction_handle::{self, CompactionHandle, Control, Counted, StepWatch};
use crate::jobs::flush::{addition_info, count_blobs, tell_created};
use crate::jobs::punch;
use crate::obsolete;
use crate::options::{CollectBlobGarbageOptions, ColumnFamilyOptions};
use crate::output::BlobCarry;
use crate::version::FileMeta;
use crate::version::blob_counts::BlobCounts;
use crate::version::edit::VersionEdit;
use crate::version::version::Version;

/// A step that a thread has taken.
pub(crate) struct CollectionJob {
    family: Arc<ColumnFamilyData>,
    parts: Vec<Part>,
    /// The files that are emptied, or out of which values are moved.
    victims: HashSet<FileNo>,
    /// The depth that the tables are to have, if this is why they are rewritten.
    ordered_to: Option<u64>,
    id: u64,
    bytes_ahead: u64,
}

/// The rewrite of one table, or of some that share user keys.
struct Part {
    job: CompactionJob,
    /// Files whose values are moved only to lie in key order.
    ordered: HashSet<FileNo>,
}

enum Picked {
    Nothing,
    Busy,
    Job(CollectionJob),
}

/// True if there may be something to collect for a thread of the background.
pub(crate) fn is_due(context: &Context) -> bool {
    let families = context.set.families();
    families.iter().any(|f| is_due_in(context, f))
}

/// The same in one family. Told again for each version and for other settings, until it was found
/// that there is nothing.
pub(crate) fn is_due_in(context: &Context, family: &ColumnFamilyData) -> bool {
    let options = family.options();
    let is_off = options.disable_auto_compactions || context.db_options().max_background_gc == 0;
    if is_off || family.is_dropped() {
        return false;
    }
    let version = {
        let state = family.state();
        if state.version.blob_files().is_empty()
            || state.exclusive_manual > 0
            || state.has_nothing_to_collect(&options)
        {
            return false;
        }
        state.version.clone()
    };
    let rules = Rules::of(&version, &options);
    // What holes bring need not be moved.
    if rules.after_holes && punch::is_busy(family, context) {
        return false;
    }
    collect::choose(&version, &rules).is_some()
        || locality::limit(&options).is_some_and(|max| may_order(&version, &options, max))
}

/// True if there may be tables to put in order that no compaction is about to come by.
fn may_order(version: &Version, options: &ColumnFamilyOptions, max: u64) -> bool {
    locality::may_be_due(version, max) && !Scores::compute(version, options).needs_compaction()
}

/// Takes the next step that is due.
///
/// # Errors
/// What a reader of a table's properties meets; what is due is then not looked for again in the same version.
pub(crate) fn next(context: &Context) -> Result<Option<CollectionJob>> {
    for family in context.set.families() {
        if !is_due_in(context, &family) {
            continue;
        }
        let options = family.options();
        let (version, jobs_ended) = {
            let state = family.state();
            (state.version.clone(), state.jobs_ended)
        };
        let rules = Rules::of(&version, &options);
        let picked = pick(context, &family, &version, &rules, true);
        let is_busy = matches!(picked, Ok(Picked::Busy));
        if let Ok(Picked::Job(job)) = picked {
            return Ok(Some(job));
        }
        family.state().nothing_to_collect = Some(NothingToCollect {
            version: Arc::downgrade(&version),
            options: Arc::downgrade(&options),
            jobs_ended: is_busy.then_some(jobs_ended),
        });
        picked?;
    }
    Ok(None)
}

/// Takes a step that was decided on `version`, if that is still the newest.
fn pick(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    version: &Arc<Version>,
    rules: &Rules,
    is_automatic: bool,
) -> Result<Picked> {
    let mut ordered_to = None;
    let mut selected = select_garbage(family, version, rules, is_automatic)?;
    if is_automatic && !matches!(selected, Selected::Step(_)) {
        let options = family.options();
        ordered_to = locality::limit(&options);
        if let Some(max) = ordered_to {
            let found = select_disorder(context, family, version, &options, max)?;
            if !matches!(found, Selected::Nothing) {
                selected = found;
            }
        }
    }
    let step = match selected {
        Selected::Nothing => return Ok(Picked::Nothing),
        Selected::Busy => return Ok(Picked::Busy),
        Selected::Step(step) => step,
    };
    let mut state = family.state();
    let is_kept_out = is_automatic && state.exclusive_manual > 0;
    if !Arc::ptr_eq(&state.version, version) || is_kept_out {
        // Whoever changed it looks again.
        return Ok(Picked::Busy);
    }
    let mut parts = take(context, family, &mut state, &step, reason_of(ordered_to));
    if parts.is_empty() {
        // If it is no job that is in the way, it is damage.
        let waits = !state.taken(None).is_empty();
        return Ok(if waits { Picked::Busy } else { Picked::Nothing });
    }
    drop(state);
    if let Some(max) = ordered_to {
        for part in &mut parts {
            // A table's neighbours that share user keys with it have come along.
            let mut files = part.job.plan().input_files().map(|(_, f)| f);
            part.ordered = locality::moved_in_place(version, max, &mut files, &mut |f| {
                Ok(family.tables.told_blob_reach(f)?.unwrap_or_default())
            })?;
        }
    }
    Ok(Picked::Job(CollectionJob {
        family: family.clone(),
        parts,
        victims: step.victims,
        ordered_to,
        id: context.new_job_id(),
        bytes_ahead: step.bytes_ahead,
    }))
}

fn reason_of(ordered_to: Option<u64>) -> Reason {
    match ordered_to {
        Some(_) => Reason::RangeMerge,
        None => Reason::BlobCollection,
    }
}

fn select_garbage(
    family: &ColumnFamilyData,
    version: &Version,
    rules: &Rules,
    is_automatic: bool,
) -> Result<Selected> {
    let Some(victims) = collect::choose(version, rules) else {
        return Ok(Selected::Nothing);
    };
    let tables = &family.tables;
    let mut references = |file: &FileMeta| match tables.told_blob_references(file)? {
        Some(told) => Ok(told),
        // A table of RocksDB would be read again with each version: compactions rewrite it.
        None if is_automatic => Ok(BlobCounts::default()),
        None => tables.count_pointers(file),
    };
    collect::select(version, rules, victims, &mut references)
}

fn select_disorder(
    context: &Context,
    family: &ColumnFamilyData,
    version: &Version,
    options: &ColumnFamilyOptions,
    max: u64,
) -> Result<Selected> {
    if !may_order(version, options, max) {
        return Ok(Selected::Nothing);
    }
    for file in locality::of_unknown_depth(version) {
        if context.is_closing() {
            return Ok(Selected::Nothing);
        }
        // One that does not open is told of by the first who needs it.
        let _ = family.tables.reader(file);
    }
    locality::select(version, options, max, &mut |file| {
        Ok(family.tables.told_blob_reach(file)?.unwrap_or_default())
    })
}

/// Takes the tables of a step that nobody is in the way of.
fn take(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    state: &mut FamilyState,
    step: &Step,
    reason: Reason,
) -> Vec<Part> {
    let options = family.options();
    let version = state.version.clone();
    let mut parts = Vec::new();
    for (level, file) in &step.tables {
        let running = state.taken(None);
        let at = (*level, file);
        // One that went with its neighbour is busy by now.
        let plan = compact::pick_in_place(&version, &options, &running, at, reason);
        let Some(plan) = plan else { continue };
        let id = context.new_job_id();
        parts.push(Part {
            job: CompactionJob::take(state, family, plan, id, 1),
            ordered: HashSet::new(),
        });
    }
    parts
}

impl CollectionJob {
    /// Rewrites the tables and installs what came of it.
    ///
    /// # Errors
    /// `Aborted` if it is given up; damage in the tables, `NoSpace`, `Io`. Then nothing has changed.
    pub(crate) fn run(self, context: &Context) -> Result<()> {
        self.run_watched(context, None)
    }

    fn run_watched(mut self, context: &Context, watch: Option<&Arc<StepWatch>>) -> Result<()> {
        let start = context.clock.now_micros();
        let inputs = || self.parts.iter().flat_map(|p| p.job.plan().input_files());
        let mut emptied: Vec<FileNo> = self.victims.iter().copied().collect();
        emptied.sort_unstable();
        let mut info = BlobCollectionInfo {
            column_family: self.family.name.clone(),
            job_id: self.id,
            reason: reason_of(self.ordered_to).name(),
            emptied,
            inputs: inputs().map(|(_, f)| f.number).collect(),
            outputs: Vec::new(),
            blob_files: Vec::new(),
            blob_values_ordered: 0,
            blob_bytes_ordered: 0,
            table_bytes_read: inputs().map(|(_, f)| f.size).sum(),
            garbage_bytes: 0,
            bytes_written: 0,
            micros: 0,
        };
        let listed = self.list(context, &info);
        let result = self.move_values(context, &mut info, watch, &listed.job);
        drop(listed);
        // The tables are free before anybody is told.
        self.parts.clear();
        context.balance_memory();
        context.update_stall(&self.family);
        info.micros = context.clock.now_micros().saturating_sub(start);
        match &result {
            Ok(()) => tell(context, &info),
            Err(_) if self.family.is_dropped() => return Ok(()),
            Err(_) => {}
        }
        result
    }

    fn list<'a>(&self, context: &'a Context, info: &BlobCollectionInfo) -> Listed<'a> {
        let files = self.parts.iter().flat_map(|p| p.job.plan().input_files());
        let entries = files.filter_map(|(_, f)| f.counts.get()).map(|(n, _)| n);
        let entries = entries.sum();
        let begun = JobInfo {
            id: Some(self.id),
            kind: JobKind::BlobCollection,
            state: JobState::Running,
            column_family: self.family.name.clone(),
            start_level: None,
            output_level: None,
            input_files: info.inputs.clone(),
            input_bytes: info.table_bytes_read,
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: info.reason.to_owned(),
            since_secs: Some(context.clock.unix_secs()),
        };
        context
            .activity
            .list(self.id, RunningJob::new(begun, entries))
    }

    fn move_values(
        &mut self,
        context: &Context,
        info: &mut BlobCollectionInfo,
        watch: Option<&Arc<StepWatch>>,
        job: &Arc<RunningJob>,
    ) -> Result<()> {
        let mut edit = VersionEdit::of_column_family(self.family.id);
        let mut created: Vec<DataFile> = Vec::new();
        self.write(context, info, watch, job, &mut edit, &mut created)
            .inspect_err(|_| obsolete::discard(context, &created))?;
        let blobs = edit.blob_file_additions.iter();
        info.blob_files = blobs.map(|b| b.number).collect();
        info.outputs = edit.new_files.iter().map(|(_, f)| f.number).collect();
        let garbage = edit.blob_file_garbages.iter();
        info.garbage_bytes = garbage.map(|g| g.garbage_blob_bytes).sum();
        let added: Vec<_> = edit.blob_file_additions.iter().map(addition_info).collect();
        install_outputs(context, &self.family, edit, &created)?;
        tell_created(context, &self.family, self.id, info.reason, &added);
        Ok(())
    }

    /// Writes all new files; `created` names them whatever happens.
    fn write(
        &mut self,
        context: &Context,
        info: &mut BlobCollectionInfo,
        watch: Option<&Arc<StepWatch>>,
        job: &Arc<RunningJob>,
        edit: &mut VersionEdit,
        created: &mut Vec<DataFile>,
    ) -> Result<()> {
        let carry = Arc::new(BlobCarry::default());
        let emptied = match self.ordered_to {
            Some(_) => HashSet::new(),
            None => std::mem::take(&mut self.victims),
        };
        let emptied = Arc::new(emptied);
        let (mut read, mut kept) = (BlobCounts::default(), BlobCounts::default());
        for part in &mut self.parts {
            // A table alone may be too small for a look.
            match watch {
                Some(watch) => watch.look(0)?,
                None => context.closing.look(0)?,
            }
            let moves = Moves {
                emptied: emptied.clone(),
                ordered: Arc::new(std::mem::take(&mut part.ordered)),
                carry: Some(carry.clone()),
            };
            let written = part
                .job
                .run_part(context, &moves, watch.cloned(), job)
                .map_err(|failed| {
                    created.extend(failed.created);
                    created.extend(carry.open_file());
                    failed.error
                })?;
            count_drops(context, &written);
            count_blobs(context, &written);
            created.extend(written.created());
            created.extend(carry.open_file());
            info.bytes_written += written.bytes;
            info.blob_values_ordered += written.ordered.values;
            info.blob_bytes_ordered += written.ordered.bytes;
            for file in &written.files {
                file.blob_depth
                    .note_tried(self.ordered_to.unwrap_or(u64::MAX));
            }
            read.add_all(&written.pointers_read);
            kept.add_all(&written.pointers_kept);
            part.job.take_inputs(edit);
            written.add_to(part.job.plan().output_level, edit);
        }
        if let Some((addition, bytes)) = carry.finish()? {
            info.bytes_written += bytes;
            context
                .statistics
                .add(Ticker::BlobDbBlobFileBytesWritten, bytes);
            context.statistics.add(Ticker::BlobDbBlobFileSynced, 1);
            edit.blob_file_additions.push(addition);
        }
        edit.blob_file_garbages = read.without(&kept)?;
        Ok(())
    }
}

fn tell(context: &Context, info: &BlobCollectionInfo) {
    let statistics = &context.statistics;
    statistics.add(Ticker::CompactReadBytes, info.table_bytes_read);
    statistics.add(Ticker::CompactWriteBytes, info.bytes_written);
    context.log.info(format_args!(
        "[{}] blob collection job={} reason={} emptied={:?} tables={} table_bytes_read={} outputs={} \
         blob_files={:?} blob_values_ordered={} blob_bytes_ordered={} garbage_bytes={} \
         bytes_written={} micros={}",
        info.column_family,
        info.job_id,
        info.reason,
        info.emptied,
        info.inputs.len(),
        info.table_bytes_read,
        info.outputs.len(),
        info.blob_files,
        info.blob_values_ordered,
        info.blob_bytes_ordered,
        info.garbage_bytes,
        info.bytes_written,
        info.micros,
    ));
    context.notify(|l| l.on_blob_collection_completed(info));
}

/// Collects what a caller asks for, on its thread.
///
/// # Errors
/// `ReadOnly`, `Closed`, `Aborted`, or what a step met; steps done so far stay.
pub(crate) fn collect(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    options: &CollectBlobGarbageOptions,
    control: &Arc<Control>,
) -> Result<()> {
    check_ratio(options)?;
    let _job = context.enter_job()?;
    let settings = Rules::of(&family.version(), &family.options());
    let rules = Rules {
        // One that is all garbage goes by itself.
        discardable_ratio: options.discardable_ratio.min(0.999_999),
        min_batch_bytes: 0,
        small_file_bytes: match options.merge_small_files {
            true => settings.small_file_bytes,
            false => 0,
        },
        at_any_cost: true,
        after_holes: false,
        // What becomes garbage meanwhile would keep it at work for ever.
        made_before: context.set.new_file_number(),
        ..settings
    };
    let manual = Manual {
        context,
        family,
        rules,
        control,
    };
    let result = manual.run();
    obsolete::purge(context);
    result.inspect_err(|e| compaction_handle::note_failure(context, e))
}

fn check_ratio(options: &CollectBlobGarbageOptions) -> Result<()> {
    if (0.0..=1.0).contains(&options.discardable_ratio) {
        return Ok(());
    }
    Err(Error::invalid_argument("option is out of bounds")
        .with("option", "discardable_ratio")
        .with("value", options.discardable_ratio)
        .with("bounds", "0 to 1"))
}

/// The same on a thread of its own, which ends before the database is closed.
///
/// # Errors
/// `InvalidArgument` for a ratio that is none; `Io` if the system has no thread left.
pub(crate) fn spawn(
    context: &Arc<Context>,
    family: &Arc<ColumnFamilyData>,
    options: CollectBlobGarbageOptions,
) -> Result<CompactionHandle> {
    check_ratio(&options)?;
    let (theirs, family) = (context.clone(), family.clone());
    compaction_handle::spawn(context, "orogen-collect", move |control| {
        collect(&theirs, &family, &options, control)
    })
}

struct Manual<'a> {
    context: &'a Context,
    family: &'a Arc<ColumnFamilyData>,
    rules: Rules,
    control: &'a Arc<Control>,
}

impl Manual<'_> {
    fn check(&self) -> Result<()> {
        self.control.check(self.context, self.family)
    }

    fn run(&self) -> Result<()> {
        loop {
            let seen = self.context.progress.count();
            self.check()?;
            if self.control.is_paused() {
                self.context.progress.wait_after(seen);
                continue;
            }
            let version = self.family.state().version.clone();
            match pick(self.context, self.family, &version, &self.rules, false)? {
                Picked::Nothing => return Ok(()),
                Picked::Job(job) => self.step(job)?,
                Picked::Busy => {
                    let is_newest = Arc::ptr_eq(&self.family.state().version, &version);
                    if is_newest {
                        self.context.progress.wait_after(seen);
                    }
                }
            }
        }
    }

    fn step(&self, job: CollectionJob) -> Result<()> {
        let running = Counted::new(self.context, self.family, |s| &mut s.manual_running);
        let (mut bytes, mut entries) = (0, 0);
        for (_, file) in job.parts.iter().flat_map(|p| p.job.plan().input_files()) {
            bytes += file.size;
            entries += self.family.tables.reader(file)?.properties().num_entries;
        }
        self.control.set_ahead(job.bytes_ahead);
        let watch = Arc::new(StepWatch::new(self.context, self.control, bytes, entries));
        let result = job.run_watched(self.context, Some(&watch));
        watch.end(result.is_ok());
        drop(running);
        match result {
            // For a pause; it begins anew.
            Err(e) if e.kind() == ErrorKind::Aborted => self.check(),
            other => other,
        }
    }
}
