//! A collection of garbage in blob files, by a background thread or for a caller; and, for lack of
//! garbage, a background thread's step that puts values into key order
//! ([`locality`](crate::compact::locality)).
//!
//! ```text
//! choose files -> select tables -> a step that rewrites them in place -> ...
//! ```
//! 1. A file is given up by nobody here: it goes when no table of the version points to it. What could not be
//!    read stays where it is, and so does its file.
//! 2. A step holds tables of some seconds' work. A paused collection gives its step up.
//! 3. What a caller's collection leaves in its files gives up its dead places behind the last step ([`punch`]).
//!
//! How steps run, and why they harm nobody: [`in_place`].

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::{Error, ErrorKind, FileNo, Result};
use orogen_env::IoPriority;

use crate::activity::{JobInfo, JobKind, JobState};
use crate::column_family::{ColumnFamilyData, FamilyState, NothingToCollect};
use crate::compact::collect::{self, Lull, Rules, Selected};
use crate::compact::locality::{self, InPlace};
use crate::compact::{LevelTargets, Reason, Scores};
use crate::context::Context;
use crate::events::BlobCollectionInfo;
use crate::jobs::compaction_handle::{self, CompactionHandle, Control, Counted, StepWatch};
use crate::jobs::in_place::{self, Next, Steps, Taken};
use crate::jobs::{punch, punch_due};
use crate::obsolete;
use crate::options::{CollectBlobGarbageOptions, ColumnFamilyOptions};
use crate::quarantine;
use crate::version::FileMeta;
use crate::version::blob_counts::BlobCounts;
use crate::version::version::Version;

/// Between two looks whether flushes still wait.
const LOOK_AGAIN_MICROS: u64 = 100_000;

/// A step that a thread has taken.
pub(crate) struct CollectionJob {
    family: Arc<ColumnFamilyData>,
    step: in_place::Step,
    /// The files that are emptied, or out of which values are moved.
    victims: Vec<FileNo>,
    /// So many of them only because they are small.
    merged: usize,
    id: u64,
    bytes_ahead: u64,
    /// At most, about.
    bytes_to_write: u64,
    /// It puts values in order because jobs were in the way of garbage.
    garbage_is_busy: bool,
}

/// Who looks for a step.
#[derive(Clone, Copy)]
enum Asker<'a> {
    /// Somebody who waits for it, and may give it up.
    Caller(&'a Manual<'a>),
    /// A thread of the background, and what it puts in order for lack of garbage.
    Background { order: Option<InPlace> },
}

enum Picked {
    Nothing,
    Busy,
    Job(CollectionJob),
}

/// True if there may be something to collect for a thread of the background.
pub(crate) fn is_due(context: &Context) -> bool {
    let (families, lull) = (context.set.families(), context.lull());
    families.iter().any(|f| is_due_in(context, f, lull))
}

/// Microseconds after which it is to be looked again: nobody tells that flushes no longer wait, or that there was none for long.
pub(crate) fn idle_micros(context: &Context) -> u64 {
    let (families, lull) = (context.set.families(), context.lull());
    let is_due = |lull| families.iter().any(|f| is_due_in(context, f, lull));
    let is_left = |f: &&Arc<ColumnFamilyData>| {
        context.is_fed(f, lull) && is_due_beside(context, f, lull, false)
    };
    let fed = families.iter().filter(is_left);
    let fed = fed.map(|f| context.micros_to_quiet(f)).min();
    if lull == Lull::None && is_due(Lull::Short) {
        LOOK_AGAIN_MICROS
    } else if let Some(micros) = fed {
        micros.max(LOOK_AGAIN_MICROS)
    } else if lull < Lull::Long && is_due(Lull::Long) {
        context.micros_to_long_lull().max(LOOK_AGAIN_MICROS)
    } else {
        u64::MAX
    }
}

/// The same in one family and in such a lull. Told again for each version and for other settings, until it was found that
/// there is nothing.
pub(crate) fn is_due_in(context: &Context, family: &ColumnFamilyData, lull: Lull) -> bool {
    is_due_beside(context, family, lull, context.is_fed(family, lull))
}

/// The same where flushes come to its level 0, or not.
fn is_due_beside(context: &Context, family: &ColumnFamilyData, lull: Lull, is_fed: bool) -> bool {
    let options = family.options();
    let is_off = options.disable_auto_compactions || context.db_options().max_background_gc == 0;
    if is_off || family.is_dropped() {
        return false;
    }
    let version = {
        let state = family.state();
        if state.version.blob_files().is_empty()
            || state.exclusive_manual > 0
            || state.has_nothing_to_collect(&options, lull, is_fed)
        {
            return false;
        }
        state.version.clone()
    };
    let rules = rules_of(context, &version, &options, lull, is_fed);
    // What holes bring need not be moved.
    if rules.after_holes && punch_due::is_busy(family, context, lull) {
        return false;
    }
    if collect::level0_waits(&version, &options) && !context.leaves_level0(family) {
        return false;
    }
    let is_chosen = || collect::choose(&version, &rules, &HashSet::new()).is_some();
    collect::may_rewrite(&version, &rules) && is_chosen()
        || locality::in_place(&version, &options, lull)
            .is_some_and(|limit| may_order(&version, &options, limit))
}

/// What a thread of the background goes by.
fn rules_of(
    context: &Context,
    version: &Version,
    options: &ColumnFamilyOptions,
    lull: Lull,
    is_fed: bool,
) -> Rules {
    let mut rules = Rules::of(version, options).in_lull(lull);
    if is_fed {
        rules = rules.beside_flushes(version, LevelTargets::compute(version, options).base_level);
    }
    match &context.options.rate_limiter {
        Some(limiter) => rules.paced(limiter.bytes_per_sec_beside(IoPriority::Low)),
        None => rules,
    }
}

/// True if there may be tables to put in order that no compaction is about to come by.
fn may_order(version: &Version, options: &ColumnFamilyOptions, limit: InPlace) -> bool {
    locality::may_be_due(version, limit) && !Scores::compute(version, options).needs_compaction()
}

/// Takes the next step that is due.
///
/// # Errors
/// What a reader of a table's properties meets; what is due is then not looked for again in the same version.
pub(crate) fn next(context: &Context) -> Result<Option<CollectionJob>> {
    let lull = context.lull();
    for family in context.set.families() {
        if !is_due_in(context, &family, lull) {
            continue;
        }
        let options = family.options();
        let (version, mut jobs_ended) = {
            let state = family.state();
            (state.version.clone(), state.jobs_ended)
        };
        let is_fed = context.is_fed(&family, lull);
        let rules = rules_of(context, &version, &options, lull, is_fed);
        let order = locality::in_place(&version, &options, lull);
        let asker = Asker::Background { order };
        let picked = pick(context, &family, &version, &rules, asker);
        let mut is_busy = matches!(picked, Ok(Picked::Busy));
        let failed = match picked {
            Ok(Picked::Job(job)) if job.leaves_room(context) => return Ok(Some(job)),
            Ok(Picked::Job(job)) if job.step.ordered_to.is_none() => {
                drop(job);
                match pick_small(context, &family, &version, &rules)? {
                    Some(job) => return Ok(Some(job)),
                    None => continue,
                }
            }
            // What only puts values in order waits for another version.
            Ok(Picked::Job(job)) => {
                is_busy = job.garbage_is_busy;
                // What is given back here counts as ended, and is no reason to look again.
                jobs_ended += job.step.parts.len() as u64;
                drop(job);
                // Others may have found its tables taken.
                context.work.raise();
                context.progress.raise();
                None
            }
            Ok(_) => None,
            Err(e) => Some(e),
        };
        family.state().nothing_to_collect = Some(NothingToCollect {
            version: Arc::downgrade(&version),
            options: Arc::downgrade(&options),
            jobs_ended: is_busy.then_some(jobs_ended),
            lull: as_far_as(context, &version, &options, lull),
            left_to_compactions: rules.spared_level.is_some(),
        });
        // Writers are slowed for nothing else.
        context.update_stall(&family);
        if let Some(e) = failed {
            return Err(e);
        }
    }
    Ok(None)
}

/// Takes a step for garbage that flushes find room beside. If there is none who moves values is put off: no error, for nothing was tried.
fn pick_small(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    version: &Arc<Version>,
    rules: &Rules,
) -> Result<Option<CollectionJob>> {
    let room = room(context).unwrap_or(u64::MAX);
    // A step ends behind the table with which it has so many bytes.
    let part = room / 4;
    let small = Rules {
        output_bytes: rules.output_bytes.min(part),
        table_bytes_max: rules.table_bytes_max.min(part),
        ..*rules
    };
    let asker = Asker::Background { order: None };
    if let Picked::Job(job) = pick(context, family, version, &small, asker)?
        && job.leaves_room(context)
    {
        return Ok(Some(job));
    }
    let retry = &context.moves_retry;
    if retry.due_in(0).is_none() {
        context.log.warn(format_args!(
            "[{}] blob collections are put off: the {room} bytes that flushes leave are too few",
            family.name
        ));
    }
    let interval = context.options.bgerror_resume_retry_interval;
    retry.plan(context.clock.now_micros(), interval);
    // The tables are free again.
    context.work.raise();
    context.progress.raise();
    Ok(None)
}

/// Bytes of the disk that flushes do not need; `None` if the file system does not tell.
fn room(context: &Context) -> Option<u64> {
    let free = context.fs.free_space(&context.dir).ok()?;
    Some(free.saturating_sub(context.bytes_to_flush()))
}

/// The longest lull in which nothing else is looked for than in this one.
fn as_far_as(
    context: &Context,
    version: &Version,
    options: &ColumnFamilyOptions,
    lull: Lull,
) -> Lull {
    let looked_for = |lull| {
        let rules = rules_of(context, version, options, lull, false);
        let order = locality::in_place(version, options, lull);
        (rules.discardable_ratio, rules.flushes_come, order)
    };
    let longer = [Lull::Long, Lull::Short].into_iter().filter(|l| *l > lull);
    let mut same = longer.filter(|l| looked_for(*l) == looked_for(lull));
    same.next().unwrap_or(lull)
}

/// Takes a step that was decided on `version`, if that is still the newest.
fn pick(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    version: &Arc<Version>,
    rules: &Rules,
    asker: Asker<'_>,
) -> Result<Picked> {
    let is_automatic = matches!(asker, Asker::Background { .. });
    let mut ordered_to = None;
    let mut selected = select_garbage(family, version, rules, asker)?;
    let garbage_is_busy = matches!(selected, Selected::Busy);
    if let Asker::Background { order: Some(limit) } = asker
        && !matches!(selected, Selected::Step(_))
    {
        ordered_to = Some(limit.depth_max);
        let found = select_disorder(context, family, version, &family.options(), limit)?;
        if !matches!(found, Selected::Nothing) {
            selected = found;
        }
    }
    let step = match selected {
        Selected::Nothing => return Ok(Picked::Nothing),
        Selected::Busy => return Ok(Picked::Busy),
        Selected::Step(step) => step,
    };
    let reason = reason_of(ordered_to);
    let kept_out = |state: &FamilyState| is_automatic && state.exclusive_manual > 0;
    let taken = in_place::take(context, family, version, &step.tables, reason, &kept_out);
    let mut parts = match taken {
        Taken::Parts(parts) => parts,
        Taken::Nothing => return Ok(Picked::Nothing),
        // Whoever changed it looks again.
        Taken::Busy | Taken::Stale => return Ok(Picked::Busy),
    };
    if let Some(max) = ordered_to {
        for part in &mut parts {
            // A table's neighbours that share user keys with it have come along.
            let mut files = part.job.plan().input_files().map(|(_, f)| f);
            part.ordered = locality::moved_in_place(version, max, &mut files, &mut |f| {
                Ok(family.tables.told_blob_reach(f)?.unwrap_or_default())
            })?;
        }
    }
    let mut victims: Vec<FileNo> = step.victims.iter().copied().collect();
    victims.sort_unstable();
    let inputs = parts.iter().flat_map(|p| p.job.plan().input_files());
    let table_bytes: u64 = inputs.map(|(_, f)| f.size).sum();
    Ok(Picked::Job(CollectionJob {
        family: family.clone(),
        step: in_place::Step {
            parts,
            emptied: match ordered_to {
                Some(_) => HashSet::new(),
                None => step.victims,
            },
            ordered_to,
            reason,
        },
        victims,
        merged: step.merged,
        id: context.new_job_id(),
        bytes_ahead: step.bytes_ahead,
        bytes_to_write: table_bytes.saturating_add(step.moved_bytes),
        garbage_is_busy,
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
    asker: Asker<'_>,
) -> Result<Selected> {
    let tables = &family.tables;
    let mut references = |file: &FileMeta| match (tables.told_blob_references(file)?, asker) {
        (Some(told), _) => Ok(told),
        // Tables of RocksDB are not all read for what nobody asked for: compactions rewrite them.
        (None, Asker::Background { .. }) => Ok(BlobCounts::default()),
        (None, Asker::Caller(manual)) => {
            manual.check()?;
            tables.blob_references(file)
        }
    };
    collect::select(version, rules, &mut references)
}

/// True if all values can be moved and half of the free space is left: what nobody has asked for must not fill a disk.
fn has_room(context: &Context, version: &Version) -> bool {
    let (_, live) = version.blob_space();
    let free = context.fs.free_space(&context.dir);
    free.is_ok_and(|free| free / 2 >= live)
}

fn select_disorder(
    context: &Context,
    family: &ColumnFamilyData,
    version: &Version,
    options: &ColumnFamilyOptions,
    limit: InPlace,
) -> Result<Selected> {
    if !may_order(version, options, limit) || !(limit.is_asked() || has_room(context, version)) {
        return Ok(Selected::Nothing);
    }
    for file in locality::of_unknown_depth(version) {
        if context.is_closing() {
            return Ok(Selected::Nothing);
        }
        if let Err(e) = family.tables.reader(file) {
            // Marked, it is not opened again with each look.
            quarantine::note(context, &e);
        }
    }
    locality::select(version, options, limit, &mut |file| {
        Ok(family.tables.told_blob_reach(file)?.unwrap_or_default())
    })
}

impl CollectionJob {
    /// True if flushes find room beside it, as far as is known. What frees space later must not take the last of it
    /// now, or writes are refused.
    fn leaves_room(&self, context: &Context) -> bool {
        room(context).is_none_or(|room| room >= self.bytes_to_write)
    }

    /// Rewrites the tables and installs what came of it.
    ///
    /// # Errors
    /// `Aborted` if it is given up; damage in the tables, `NoSpace`, `Io`. Then nothing has changed.
    pub(crate) fn run(self, context: &Context) -> Result<()> {
        self.run_watched(context, None)
    }

    fn run_watched(self, context: &Context, watch: Option<&Arc<StepWatch>>) -> Result<()> {
        let start = context.clock.now_micros();
        let counts = self.step.inputs().filter_map(|(_, f)| f.counts.get());
        let entries = counts.map(|(entries, _)| entries).sum();
        let begun = self.info(context);
        let mut info = BlobCollectionInfo {
            column_family: self.family.name.clone(),
            job_id: self.id,
            reason: self.step.reason.name(),
            emptied: self.victims,
            inputs: begun.input_files.clone(),
            outputs: Vec::new(),
            blob_files: Vec::new(),
            blob_values_ordered: 0,
            blob_bytes_ordered: 0,
            table_bytes_read: begun.input_bytes,
            garbage_bytes: 0,
            bytes_written: 0,
            micros: 0,
        };
        let (family, listed) = (&self.family, (self.id, begun));
        let is_for_order = self.step.ordered_to.is_some();
        let sizes = sizes_of(&family.version(), &info.emptied);
        let result = self.step.run(context, family, listed, entries, watch);
        let done = match result {
            Ok(done) => done,
            Err(_) if family.is_dropped() => return Ok(()),
            Err(e) => {
                context.statistics.add(Ticker::BlobDbGcFailures, 1);
                return Err(e);
            }
        };
        info.outputs = done.tables;
        info.blob_files = done.blob_files.iter().map(|b| b.number).collect();
        (info.blob_values_ordered, info.blob_bytes_ordered) = done.ordered;
        info.garbage_bytes = done.garbage_bytes;
        info.bytes_written = done.bytes_written;
        info.micros = context.clock.now_micros().saturating_sub(start);
        count(context, family, &info);
        if !is_for_order {
            let statistics = &context.statistics;
            let for_garbage = info.emptied.len().saturating_sub(self.merged);
            statistics.add(Ticker::BlobGcDiscardable, for_garbage as u64);
            statistics.add(Ticker::BlobGcSmallFile, self.merged as u64);
            for size in sizes {
                statistics.record(HistogramKind::BlobGcInputFileSize, size);
            }
            for file in &done.blob_files {
                statistics.record(HistogramKind::BlobGcOutputFileSize, file.total_blob_bytes);
            }
        }
        tell(context, &info);
        Ok(())
    }

    fn info(&self, context: &Context) -> JobInfo {
        JobInfo {
            id: Some(self.id),
            kind: JobKind::BlobCollection,
            state: JobState::Running,
            column_family: self.family.name.clone(),
            start_level: None,
            output_level: None,
            input_files: self.step.inputs().map(|(_, f)| f.number).collect(),
            input_bytes: self.step.table_bytes(),
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: self.step.reason.name().to_owned(),
            since_secs: Some(context.clock.unix_secs()),
        }
    }
}

/// Bytes of files, without holes.
fn sizes_of(version: &Version, files: &[FileNo]) -> Vec<u64> {
    let blobs = files.iter().filter_map(|n| version.blob_files().get(n));
    blobs.map(|blob| blob.disk_bytes()).collect()
}

fn count(context: &Context, family: &ColumnFamilyData, info: &BlobCollectionInfo) {
    let version = family.version();
    let left = |number| version.blob_files().contains_key(number);
    let gone = info.emptied.iter().filter(|number| !left(number)).count();
    let statistics = &context.statistics;
    for (ticker, n) in [
        (Ticker::BlobDbGcNumFiles, gone as u64),
        (Ticker::BlobDbGcNumNewFiles, info.blob_files.len() as u64),
        (Ticker::BlobGcTableBytesRead, info.table_bytes_read),
        (Ticker::BlobGcBytesWritten, info.bytes_written),
    ] {
        statistics.add(ticker, n);
    }
    statistics.record(HistogramKind::BlobDbGcMicros, info.micros);
}

fn tell(context: &Context, info: &BlobCollectionInfo) {
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
        garbage_share_max: 1.0,
        min_batch_bytes: 0,
        small_file_bytes: match options.merge_small_files {
            true => settings.small_file_bytes,
            false => 0,
        },
        small_files_max: 0,
        at_any_cost: true,
        after_holes: false,
        // What becomes garbage meanwhile would keep it at work for ever.
        made_before: context.set.new_file_number(),
        ..settings
    };
    let mut manual = Manual {
        context,
        family,
        rules,
        control,
    };
    let result = in_place::run_all(context, family, control, &mut manual);
    obsolete::purge(context);
    result.inspect_err(|e| compaction_handle::note_failure(context, e))?;
    context.moves_retry.end();
    punch::give_up_all(context, family, control)
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

impl Steps for Manual<'_> {
    fn check(&self) -> Result<()> {
        self.control.check(self.context, self.family)
    }

    fn next(&mut self, version: &Arc<Version>) -> Result<Next> {
        match pick(
            self.context,
            self.family,
            version,
            &self.rules,
            Asker::Caller(self),
        )? {
            Picked::Nothing => Ok(Next::Done),
            Picked::Busy => Ok(Next::Wait),
            Picked::Job(job) => self.step(job).map(|()| Next::Again),
        }
    }
}

impl Manual<'_> {
    fn step(&self, job: CollectionJob) -> Result<()> {
        let running = Counted::new(self.context, self.family, |s| &mut s.manual_running);
        // Its tables are free before that tells others to look.
        let job = job;
        let mut entries = 0;
        for (_, file) in job.step.inputs() {
            entries += self.family.tables.reader(file)?.properties().num_entries;
        }
        self.control.set_ahead(job.bytes_ahead);
        let bytes = job.step.table_bytes();
        let watch = Arc::new(StepWatch::new(self.context, self.control, bytes, entries));
        let result = job.run_watched(self.context, Some(&watch));
        drop(running);
        match result {
            // For a pause; it begins anew.
            Err(e) if e.kind() == ErrorKind::Aborted => self.check(),
            other => other,
        }
    }
}
