//! A compaction: owns its inputs, runs the plan, installs the outputs.

use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo};
use orogen_env::{IoPriority, threads};
use orogen_sst::TableReadOptions;

use crate::activity::{Counting, JobInfo, JobKind, JobState, Listed, RunningJob};
use crate::column_family::{ColumnFamilyData, FamilyState};
use crate::compact::blobs::Pointed;
use crate::compact::collect::Lull;
use crate::compact::{self, Plan, Reason, Scores, marks};
use crate::compaction_iter::{CompactionIterOptions, CompactionIterStats};
use crate::context::Context;
use crate::events::{BlobFileGarbageInfo, CompactionInfo};
use crate::filename::DataFile;
use crate::jobs::compaction_handle::{Control, StepWatch};
use crate::jobs::flush::{
    addition_info, blob_options, check_entries, count_blobs, new_file, table_options, tell_created,
};
use crate::obsolete;
use crate::options::BlobRunMode;
use crate::output::{BlobCarry, BlobOutputOptions, Breaks, Failed, Written};
use crate::plugin::compaction_filter::FilterContext;
use crate::quarantine;
use crate::read::source::Source;
use crate::read::{LevelIter, MergingIter};
use crate::tables::{FamilyTables, VersionBlobs};
use crate::version::blob_counts::BlobCounts;
use crate::version::edit::VersionEdit;
use crate::version::file_meta::FileMeta;
use crate::version::level::Level;
use crate::version::version::Version;
use crate::version_set::Change;

/// Parts of each input that subcompactions may be cut at.
const ANCHORS_PER_FILE: usize = 32;

/// Looks for work at least so often, whatever the clock of the database says.
const IDLE_MICROS_MAX: u64 = 3_600_000_000;
/// And no more often than this.
const IDLE_MICROS_MIN: u64 = 1_000_000;

/// A level and files of it.
type Inputs = (usize, Vec<Arc<FileMeta>>);

/// First user key and first user key after, where there is one.
type Stretch = (Option<Vec<u8>>, Option<Vec<u8>>);

/// A compaction that a thread has taken.
pub(crate) struct CompactionJob {
    family: Arc<ColumnFamilyData>,
    version: Arc<Version>,
    plan: Plan,
    id: u64,
    max_subcompactions: usize,
    watch: Option<Arc<StepWatch>>,
    /// The user's filter has no say.
    unfiltered: bool,
    released: bool,
}

/// Values that a job takes out of their blob files.
#[derive(Default)]
pub(crate) struct Moves {
    /// The files that are to be emptied.
    pub(crate) emptied: Arc<HashSet<FileNo>>,
    /// Files whose values are only to lie in key order.
    pub(crate) ordered: Arc<HashSet<FileNo>>,
    /// The file that they are moved to, if it goes on from one job to the next.
    pub(crate) carry: Option<Arc<BlobCarry>>,
    /// When the thread takes breaks, if it does.
    pub(crate) breaks: Option<Breaks>,
}

/// A panic of a listener or a filter must not keep the inputs from others.
impl Drop for CompactionJob {
    fn drop(&mut self) {
        self.release();
    }
}

/// Takes the automatic compaction that is needed most.
pub(crate) fn next(context: &Context) -> Option<CompactionJob> {
    // Before the look at them.
    watch_snapshots(context);
    let moment = context.moment();
    let mut due: Vec<(f64, Arc<ColumnFamilyData>)> = context
        .set
        .families()
        .into_iter()
        .filter(|f| !f.options().disable_auto_compactions)
        .filter_map(|family| {
            let version = family.version();
            let options = family.options();
            learn_codecs(context, &family, &version);
            let scores = Scores::compute(&version, &options);
            let base = scores.targets.base_level;
            let wanted = scores.needs_compaction()
                || marks::due(&version, &options, base, moment)
                    .next()
                    .is_some();
            wanted.then(|| (scores.levels.first().map_or(0.0, |l| l.1), family))
        })
        .collect();
    due.sort_by(|a, b| b.0.total_cmp(&a.0));
    due.into_iter()
        .find_map(|(_, family)| pick(context, &family))
}

/// Microseconds in which nothing will be due by age, if nothing changes.
pub(crate) fn idle_micros(context: &Context) -> u64 {
    let due_secs = context
        .set
        .families()
        .iter()
        .filter(|f| !f.options().disable_auto_compactions)
        .filter_map(|f| marks::next_due_secs(&f.version(), &f.options()))
        .min()
        .unwrap_or(u64::MAX);
    // What is due and cannot run waits for another job, which wakes everybody at its end.
    let secs = due_secs.saturating_sub(context.clock.unix_secs());
    secs.saturating_mul(1_000_000)
        .clamp(IDLE_MICROS_MIN, IDLE_MICROS_MAX)
}

/// Arranges to be woken when a snapshot goes that droppable tombstones wait for.
fn watch_snapshots(context: &Context) {
    let waited_for = context
        .set
        .families()
        .iter()
        .filter(|f| !f.options().disable_auto_compactions)
        .map(|f| marks::waited_for_snapshot(&f.version()))
        .min();
    if let Some(seqno) = waited_for.filter(|&seqno| seqno < SEQNO_MAX) {
        context.snapshots.wake_behind(seqno);
    }
}

/// Tells of a compaction that is done.
fn tell(context: &Context, family: &ColumnFamilyData, info: &CompactionInfo, score: f64) {
    let statistics = &context.statistics;
    statistics.record(HistogramKind::CompactionTime, info.micros);
    statistics.record(
        HistogramKind::NumFilesInSingleCompaction,
        info.inputs.len() as u64,
    );
    if !info.trivial_move {
        statistics.add(Ticker::CompactReadBytes, info.bytes_read);
        statistics.add(Ticker::CompactWriteBytes, info.bytes_written);
    }
    context.log.info(format_args!(
        "[{}] compaction job={} level {}->{} inputs={} dropped={} bytes_read={} outputs={} \
         bytes_written={} blob_values_ordered={} blob_bytes_ordered={} trivial_move={} micros={} \
         reason={} score={:.2}",
        info.column_family,
        info.job_id,
        info.start_level,
        info.output_level,
        info.inputs.len(),
        info.dropped.len(),
        info.bytes_read,
        info.outputs.len(),
        info.bytes_written,
        info.blob_values_ordered,
        info.blob_bytes_ordered,
        info.trivial_move,
        info.micros,
        info.reason,
        score,
    ));
    let added = &info.blob_file_additions;
    tell_created(context, family, info.job_id, info.reason, added);
    context.notify(|l| l.on_compaction_completed(info));
}

/// Opens the tables whose codecs have to be known.
fn learn_codecs(context: &Context, family: &ColumnFamilyData, version: &Version) {
    for file in marks::of_unknown_codec(version, &family.options()) {
        if context.is_closing() {
            return;
        }
        if let Err(e) = family.tables.reader(file) {
            // Marked, it is not opened again with each look. What was to be done about debts may not be done any more.
            if quarantine::note(context, &e) {
                context.update_stall(family);
            }
        }
    }
}

/// Takes the compaction of a family that is needed most.
fn pick(context: &Context, family: &Arc<ColumnFamilyData>) -> Option<CompactionJob> {
    loop {
        let options = family.options();
        let look = {
            let state = family.state();
            let is_off = state.exclusive_manual > 0 || options.disable_auto_compactions;
            if is_off || family.is_dropped() {
                return None;
            }
            state.look(None)
        };
        let scores = Scores::compute(&look.version, &options);
        let moment = context.moment();
        let plan = compact::pick(&look.version, &options, &scores, &look.running, moment)?;
        let mut state = family.state();
        if state.exclusive_manual == 0 && state.may_take(&look, &plan) {
            let id = context.new_job_id();
            let parts = context.db_options().max_subcompactions;
            return Some(CompactionJob::take(&mut state, family, plan, id, parts));
        }
    }
}

impl CompactionJob {
    /// Takes a plan that was made of `state`.
    pub(crate) fn take(
        state: &mut FamilyState,
        family: &Arc<ColumnFamilyData>,
        plan: Plan,
        id: u64,
        max_subcompactions: usize,
    ) -> Self {
        plan.mark_inputs(true);
        state.running.push((id, plan.running(&family.icmp)));
        Self {
            family: family.clone(),
            version: state.version.clone(),
            plan,
            id,
            max_subcompactions,
            watch: None,
            unfiltered: false,
            released: false,
        }
    }

    /// Frees the inputs for others.
    fn release(&mut self) {
        if !std::mem::replace(&mut self.released, true) {
            self.plan.mark_inputs(false);
            // Who finds no job running any more has the inputs deleted: nothing holds them from here on.
            self.plan.inputs.clear();
            self.version = self.family.version();
            let id = self.id;
            let mut state = self.family.state();
            state.running.retain(|r| r.0 != id);
            state.jobs_ended += 1;
        }
    }

    /// What tells a manual compaction's handle how this job gets on.
    ///
    /// # Errors
    /// Those of opening the inputs.
    pub(crate) fn watch(&self, context: &Context, control: &Arc<Control>) -> Result<StepWatch> {
        let mut entries = 0u64;
        for (_, file) in self.plan.input_files() {
            let table = self.family.tables.reader(file)?;
            entries += table.properties().num_entries;
        }
        let bytes = self.plan.input_bytes();
        Ok(StepWatch::new(context, control, bytes, entries))
    }

    /// As [`Self::run`] with somebody watching; gives the tables that it wrote.
    ///
    /// # Errors
    /// As [`Self::run`], and those of the watch.
    pub(crate) fn run_watched(
        mut self,
        context: &Context,
        watch: Arc<StepWatch>,
    ) -> Result<Vec<FileNo>> {
        self.watch = Some(watch);
        self.run_to_end(context)
    }

    /// Runs the plan as a part of a collection, which installs what it writes.
    ///
    /// # Errors
    /// As [`Self::run`]; the files made so far are named.
    pub(crate) fn run_part(
        &mut self,
        context: &Context,
        moves: &Moves,
        watch: Option<Arc<StepWatch>>,
        job: &Arc<RunningJob>,
    ) -> Result<Written, Failed> {
        self.watch = watch;
        let tombstones = self.tombstones(context).map_err(|error| Failed {
            error,
            created: Vec::new(),
        })?;
        let options = self.family.options();
        let all = match options.blob_run_mode {
            BlobRunMode::Fallback => Some(Moves {
                emptied: Arc::new(compact::blobs::emptied(
                    &self.version,
                    &options,
                    false,
                    Lull::Long,
                    None,
                )),
                ordered: Arc::default(),
                carry: moves.carry.clone(),
                breaks: moves.breaks.clone(),
            }),
            _ => None,
        };
        let moves = all.as_ref().unwrap_or(moves);
        let whole = (None, None);
        let written = self.run_stretch(
            context,
            &self.plan.inputs,
            moves,
            Arc::new(tombstones),
            whole,
            job,
        )?;
        // What was tried with a table need not be tried with what was made of it in place.
        let files = self.plan.input_files().map(|(_, f)| f);
        let tried = files.map(|f| f.blob_depth.tried()).min();
        for file in &written.files {
            file.blob_depth.note_tried(tried.unwrap_or(u64::MAX));
        }
        Ok(written)
    }

    /// Keeps the family's compaction filter out of it.
    pub(crate) fn without_filter(mut self) -> Self {
        self.unfiltered = true;
        self
    }

    /// What it was decided to do.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Runs the plan and installs its outputs.
    ///
    /// # Errors
    /// `Aborted` if the database closes meanwhile; damage in the inputs, `NoSpace`, `Io`. The
    /// inputs stay and the outputs are gone.
    pub(crate) fn run(self, context: &Context) -> Result<()> {
        self.run_to_end(context).map(drop)
    }

    /// [`Self::run`]; the tables that were written.
    fn run_to_end(self, context: &Context) -> Result<Vec<FileNo>> {
        let start = context.clock.now_micros();
        let mut info = CompactionInfo {
            column_family: self.family.name.clone(),
            job_id: self.id,
            start_level: self.plan.start_level,
            output_level: self.plan.output_level,
            inputs: self.plan.input_files().map(|(_, f)| f.number).collect(),
            outputs: Vec::new(),
            dropped: Vec::new(),
            bytes_read: self.plan.input_bytes(),
            bytes_written: 0,
            blob_file_additions: Vec::new(),
            blob_file_garbages: Vec::new(),
            blob_values_ordered: 0,
            blob_bytes_ordered: 0,
            trivial_move: self.plan.trivial_move,
            reason: self.plan.reason.name(),
            micros: 0,
        };
        let listed = self.list(context, &info);
        context.notify(|l| l.on_compaction_begin(&info));
        let result = if self.plan.trivial_move {
            self.move_files(context)
        } else {
            self.rewrite(context, &mut info, &listed.job)
        };
        drop(listed);
        let (family, score) = (self.family.clone(), self.plan.score);
        drop(self);
        context.balance_memory();
        context.update_stall(&family);
        info.micros = context.clock.now_micros().saturating_sub(start);
        match &result {
            Ok(()) => tell(context, &family, &info, score),
            Err(_) if family.is_dropped() => return Ok(Vec::new()),
            Err(_) => {}
        }
        result.map(|()| info.outputs)
    }

    fn list<'a>(&self, context: &'a Context, info: &CompactionInfo) -> Listed<'a> {
        let files = self.plan.input_files();
        let entries = files.filter_map(|(_, f)| f.counts.get()).map(|(n, _)| n);
        let entries = entries.sum();
        let begun = JobInfo {
            id: Some(self.id),
            kind: JobKind::Compaction,
            state: JobState::Running,
            column_family: self.family.name.clone(),
            start_level: Some(info.start_level),
            output_level: Some(info.output_level),
            input_files: info.inputs.clone(),
            input_bytes: info.bytes_read,
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

    /// An edit that takes the inputs away.
    fn edit_without_inputs(&self) -> VersionEdit {
        let mut edit = VersionEdit::of_column_family(self.family.id);
        self.take_inputs(&mut edit);
        edit
    }

    /// Has `edit` take the inputs away.
    pub(crate) fn take_inputs(&self, edit: &mut VersionEdit) {
        for (level, file) in self.plan.input_files() {
            edit.delete_file(level, file.number);
        }
    }

    fn install(&self, context: &Context, edit: VersionEdit) -> Result<()> {
        context.set.apply(vec![Change {
            family: self.family.clone(),
            edit,
            install: None,
        }])
    }

    fn move_files(&self, context: &Context) -> Result<()> {
        let mut edit = self.edit_without_inputs();
        for (_, file) in self.plan.input_files() {
            edit.add_file(self.plan.output_level, file.clone());
        }
        self.install(context, edit)
    }

    fn rewrite(
        &self,
        context: &Context,
        info: &mut CompactionInfo,
        job: &Arc<RunningJob>,
    ) -> Result<()> {
        let tombstones = Arc::new(self.tombstones(context)?);
        let dropped = self.deleted_whole(context, &tombstones);
        info.bytes_read -= dropped.iter().map(|f| f.size).sum::<u64>();
        info.dropped = dropped.iter().map(|f| f.number).collect();
        let read = &self.inputs_without(&info.dropped);
        let pointed = self.pointed();
        let moves = &self.moves(context, read, pointed.as_ref())?;
        let bounds = self.bounds(context, read, pointed.as_ref())?;
        let stretches: Vec<Stretch> = std::iter::once(None)
            .chain(bounds.iter().cloned().map(Some))
            .zip(
                bounds
                    .iter()
                    .cloned()
                    .map(Some)
                    .chain(std::iter::once(None)),
            )
            .collect();
        let parts = stretches.len();
        let tasks: Vec<_> = stretches
            .into_iter()
            .map(|stretch| {
                let tombstones = tombstones.clone();
                move || self.run_stretch(context, read, moves, tombstones, stretch, job)
            })
            .collect();
        let results = threads::run_all("orogen-compact", tasks);
        context
            .statistics
            .record(HistogramKind::NumSubcompactionsScheduled, parts as u64);
        let mut edit = self.edit_without_inputs();
        let mut failure = None;
        let mut created: Vec<DataFile> = Vec::new();
        let (mut read, mut kept) = (BlobCounts::default(), BlobCounts::default());
        let mut moved = 0;
        for result in results {
            match result {
                Ok(written) => {
                    moved += written.relocated.values + written.ordered.values;
                    count_drops(context, &written);
                    count_blobs(context, &written);
                    info.bytes_written += written.bytes;
                    info.blob_values_ordered += written.ordered.values;
                    info.blob_bytes_ordered += written.ordered.bytes;
                    info.outputs.extend(written.files.iter().map(|f| f.number));
                    created.extend(written.created());
                    read.add_all(&written.pointers_read);
                    kept.add_all(&written.pointers_kept);
                    written.add_to(self.plan.output_level, &mut edit);
                }
                Err(failed) => {
                    created.extend(failed.created);
                    failure.get_or_insert(failed.error);
                }
            }
        }
        for file in &dropped {
            match self.family.tables.blob_references(file) {
                Ok(pointers) => read.add_all(&pointers),
                Err(e) => {
                    failure.get_or_insert(e);
                }
            }
        }
        match read.without(&kept) {
            Ok(garbage) => edit.blob_file_garbages = garbage,
            Err(e) => {
                failure.get_or_insert(e);
            }
        }
        let added = edit.blob_file_additions.iter().map(addition_info);
        info.blob_file_additions = added.collect();
        let garbage = edit.blob_file_garbages.iter().map(|g| BlobFileGarbageInfo {
            number: g.number,
            garbage_blob_count: g.garbage_blob_count,
            garbage_blob_bytes: g.garbage_blob_bytes,
        });
        info.blob_file_garbages = garbage.collect();
        let installed = match failure {
            None => install_outputs(context, &self.family, edit, &created).inspect(|()| {
                if moved > 0 {
                    context.moves_retry.end();
                }
            }),
            Some(e) => {
                obsolete::discard(context, &created);
                Err(e)
            }
        };
        installed.map_err(|e| locate(&self.family, self.plan.input_files().map(|(_, f)| f), e))
    }

    /// The blob files whose values are written anew where they are met. None while there is no space, but for a try now and
    /// then: what can stay where it is must not keep a compaction from its end, for which writers may wait.
    fn moves(
        &self,
        context: &Context,
        read: &[Inputs],
        pointed: Option<&Pointed>,
    ) -> Result<Moves> {
        let options = self.family.options();
        let (is_held, lull) = (context.holds_ceiling(&options), context.lull());
        let emptied = compact::blobs::emptied(&self.version, &options, is_held, lull, pointed);
        let tables = &self.family.tables;
        let ordered = compact::locality::moved_by_compaction(
            &self.version,
            &options,
            &self.plan,
            read,
            &emptied,
            &mut |file| tables.blob_reach(file),
        )?;
        let moves = !emptied.is_empty() || !ordered.is_empty();
        let is_for_space = moves && options.blob_run_mode != BlobRunMode::Fallback;
        if is_for_space && !(context.compactions_may_move() && context.take_move()) {
            return Ok(Moves::default());
        }
        Ok(Moves {
            emptied: Arc::new(emptied),
            ordered: Arc::new(ordered),
            carry: None,
            breaks: None,
        })
    }

    /// What the inputs point to; `None` if somebody waits for all that there is to do, or a table does not tell.
    fn pointed(&self) -> Option<Pointed> {
        if self.plan.reason == Reason::ManualCompaction {
            return None;
        }
        let mut pointed = Pointed::default();
        for (level, file) in self.plan.input_files() {
            // What is damaged there is no more than a hint, and is made anew.
            let Ok(Some(counts)) = self.family.tables.told_blob_references(file) else {
                return None;
            };
            if level == self.plan.start_level {
                pointed.down.add_all(&counts);
            }
            pointed.all.add_all(&counts);
        }
        Some(pointed)
    }

    /// The range tombstones of all inputs, each clipped to what its table answers for.
    fn tombstones(&self, context: &Context) -> Result<FragmentedRangeTombstones> {
        let mut all = Vec::new();
        for (level, files) in &self.plan.inputs {
            let mut with: Vec<(Arc<FileMeta>, Arc<FragmentedRangeTombstones>)> = Vec::new();
            for file in files {
                let tombstones = self.family.tables.reader(file)?.range_tombstones();
                with.push((file.clone(), tombstones));
            }
            all.extend(compact::run::clip_tombstones(
                &self.family.icmp,
                *level,
                &with,
            ));
        }
        // Who takes a snapshot from here on sees the newest of each place, as all of them were written before.
        let (snapshots, _) = context.snapshots.for_job();
        let order = &self.family.icmp.user;
        Ok(FragmentedRangeTombstones::for_job(order, all, &snapshots))
    }

    /// The first user keys of all stretches but the first.
    fn bounds(
        &self,
        context: &Context,
        read: &[Inputs],
        pointed: Option<&Pointed>,
    ) -> Result<Vec<Vec<u8>>> {
        let options = context.db_options();
        let most = match self.max_subcompactions {
            0 => options.max_subcompactions,
            n => n,
        };
        let by_two = options.max_background_jobs >= 2
            && pointed.is_some_and(|pointed| {
                let settings = self.family.options();
                let from = options.flush_halves_bytes;
                compact::blobs::is_behind(&self.plan, &settings, pointed, from)
            });
        let least = if by_two { 2 } else { 1 };
        if most.max(least) < 2 || !self.plan.may_part() {
            return Ok(Vec::new());
        }
        let mut anchors = Vec::new();
        for file in read.iter().flat_map(|(_, files)| files) {
            anchors.extend(self.family.tables.reader(file)?.anchors(ANCHORS_PER_FILE)?);
        }
        Ok(compact::run::subcompaction_bounds(
            &self.family.icmp.user,
            &self.plan,
            anchors,
            least..=most.max(least),
        ))
    }

    fn run_stretch(
        &self,
        context: &Context,
        read: &[Inputs],
        moves: &Moves,
        tombstones: Arc<FragmentedRangeTombstones>,
        (start, end): Stretch,
        job: &Arc<RunningJob>,
    ) -> Result<Written, Failed> {
        let input = self.open(read).map_err(|error| Failed {
            error,
            created: Vec::new(),
        })?;
        let options = self.family.options();
        let filter = options
            .compaction_filter_factory
            .as_ref()
            .filter(|_| !self.unfiltered)
            .and_then(|factory| {
                factory.create(&FilterContext {
                    column_family_id: self.family.id,
                    is_full_compaction: self.plan.is_full,
                    is_manual_compaction: self.plan.reason == Reason::ManualCompaction,
                    output_level: self.plan.output_level,
                })
            });
        let tables = self.family.tables.clone();
        let readahead_size = options.blob_compaction_readahead_size;
        let source = VersionBlobs::new(tables, self.version.clone(), readahead_size);
        let source = Arc::new(source);
        let blobs = BlobOutputOptions {
            relocate: moves.emptied.clone(),
            order: moves.ordered.clone(),
            carry: moves.carry.clone(),
            breaks: moves.breaks.clone(),
            source: Some(source.clone()),
            ..blob_options(context, &self.family, self.plan.output_level)
        };
        let (snapshots, checked_since) = context.snapshots.for_job();
        let rules = CompactionIterOptions {
            snapshots,
            earliest_write_conflict_snapshot: checked_since,
            merge_operator: options.merge_operator.clone(),
            filter: filter.map(|f| (f, self.plan.start_level)),
            start,
            end,
            blobs: Some(source.clone()),
            watch: Some(Arc::new(Counting {
                job: job.clone(),
                beside: Some(match &self.watch {
                    Some(watch) => watch.clone(),
                    None => context.closing.clone(),
                }),
            })),
            ..compact::run::rules_of(&self.plan, &self.version)
        };
        let mut table = table_options(
            context,
            &self.family,
            self.plan.output_level,
            self.plan.bottommost,
        );
        let oldest = self.plan.oldest_ancester_time();
        if oldest > 0 {
            table.creation_time = oldest;
        }
        table.sequence_covered = self.sequence_covered();
        let result = compact::run::run(
            &self.plan,
            input,
            tombstones,
            rules,
            compact::run::Outputs {
                table,
                paranoid_file_checks: options.paranoid_file_checks,
                blobs,
            },
            new_file(context, IoPriority::Low, Some(job.clone())),
        );
        if let Some(e) = source.damaged() {
            context.log.error(format_args!(
                "[{}] compaction job={} leaves a damaged value where it is: {e}",
                self.family.name, self.id
            ));
            quarantine::note(context, &e);
        }
        result.and_then(|written| match check_entries(&self.family, &written) {
            Ok(()) => Ok(written),
            Err(error) => Err(Failed {
                error,
                created: written.created(),
            }),
        })
    }

    /// The number up to which the inputs have all operations of the family.
    fn sequence_covered(&self) -> SeqNo {
        let covered = |file: &FileMeta| {
            let noted = file
                .table
                .get()
                .and_then(|t| t.properties().sequence_covered());
            noted.unwrap_or(0).max(file.largest_seqno)
        };
        let files = self.plan.input_files().map(|(_, f)| covered(f));
        files.max().unwrap_or(0)
    }

    /// The inputs that range tombstones of other inputs delete whole.
    fn deleted_whole(
        &self,
        context: &Context,
        tombstones: &FragmentedRangeTombstones,
    ) -> Vec<Arc<FileMeta>> {
        if tombstones.is_empty() {
            return Vec::new();
        }
        // A snapshot that is taken later sees the tombstones.
        let snapshots = context.snapshots.sorted_seqnos();
        let order = &self.family.icmp.user;
        let files = self.plan.input_files().map(|(_, f)| f);
        files
            .filter(|f| compact::run::is_deleted_whole(order, tombstones, f, &snapshots))
            .cloned()
            .collect()
    }

    fn inputs_without(&self, dropped: &[FileNo]) -> Vec<Inputs> {
        let stays = |f: &&Arc<FileMeta>| !dropped.contains(&f.number);
        let rest = |files: &Vec<Arc<FileMeta>>| files.iter().filter(stays).cloned().collect();
        let inputs = self.plan.inputs.iter();
        inputs.map(|(level, files)| (*level, rest(files))).collect()
    }

    /// One cursor over the entries of the files of `inputs`.
    fn open(&self, inputs: &[Inputs]) -> Result<MergingIter<Source<FamilyTables>>> {
        let tables = &self.family.tables;
        let mut children = Vec::new();
        for (level, files) in inputs {
            if *level == 0 {
                for file in files {
                    let table = tables.reader(file)?;
                    children.push(Source::Table(table.iter(TableReadOptions::compaction())));
                }
            } else {
                let run = Arc::new(Level::new(*level, &self.family.icmp, files.clone()));
                children.push(Source::Level(LevelIter::new(
                    self.family.icmp.clone(),
                    tables.clone(),
                    TableReadOptions::compaction(),
                    run,
                    None,
                    None,
                )));
            }
        }
        Ok(MergingIter::new(self.family.icmp.clone(), children))
    }
}

/// The error of a job over `inputs`, with the table that it comes from: most pointers to blob files pass a job
/// unfollowed, and that one is bad shows only in what a file then has of garbage.
pub(crate) fn locate<'f>(
    family: &ColumnFamilyData,
    inputs: impl Iterator<Item = &'f Arc<FileMeta>>,
    error: Error,
) -> Error {
    let is_of_garbage = error.context("blob_file").is_some() && error.context("file").is_none();
    if error.kind() != ErrorKind::Corruption || !is_of_garbage {
        return error;
    }
    let version = family.version();
    let mut inputs = inputs.filter(|file| file.oldest_blob_file_number != 0);
    let bad = inputs.find_map(|file| family.tables.check_pointers(&version, file).err());
    match bad.filter(|bad| bad.kind() == ErrorKind::Corruption) {
        Some(bad) => bad.caused_by(error),
        None => error,
    }
    .with("column_family", &family.name)
}

/// Installs `edit`, which has the files of `created` come in.
///
/// # Errors
/// `Aborted` if the family was dropped, `NoSpace`, `Io`; the files are gone, or will be.
pub(crate) fn install_outputs(
    context: &Context,
    family: &Arc<ColumnFamilyData>,
    edit: VersionEdit,
    created: &[DataFile],
) -> Result<()> {
    // The MANIFEST must not name files whose names a power loss takes away.
    if !created.is_empty()
        && let Err(e) = context.directory.sync()
    {
        obsolete::discard(context, created);
        return Err(e);
    }
    context.set.apply(vec![Change {
        family: family.clone(),
        edit,
        install: None,
    }])
}

pub(crate) fn count_drops(context: &Context, written: &Written) {
    let CompactionIterStats {
        dropped_hidden,
        dropped_obsolete,
        dropped_range_del,
        dropped_user,
        merge_failures,
        ..
    } = written.stats;
    for (ticker, n) in [
        (Ticker::CompactionKeyDropNewerEntry, dropped_hidden),
        (Ticker::CompactionKeyDropObsolete, dropped_obsolete),
        (Ticker::CompactionKeyDropRangeDel, dropped_range_del),
        (Ticker::CompactionKeyDropUser, dropped_user),
        (Ticker::NumberMergeFailures, merge_failures),
        (
            Ticker::CompactionRangeDelDropObsolete,
            written.dropped_range_tombstones,
        ),
    ] {
        if n > 0 {
            context.statistics.add(ticker, n);
        }
    }
}
