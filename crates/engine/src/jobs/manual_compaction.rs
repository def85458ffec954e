//! A compaction that a user asked for: level by level down to the last one with data.
//!
//! It runs beside automatic compactions and takes only files that none of them has. Where one is
//! in the way it waits for its end, and *claims* the levels and keys that it waits for, so that
//! automatic ones do not get in before it again and again. With
//! [`CompactRangeOptions::exclusive_manual_compaction`] automatic ones of the family wait all the
//! while. Claims and counts are given back by guards, whatever ends the compaction.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use orogen_base::sync::atomic::Ordering;
use orogen_base::{Error, ErrorKind, FileNo, Result};

use crate::activity::{JobInfo, JobKind, JobState, Listed, RunningJob};
use crate::column_family::{ColumnFamilyData, FamilyState, Look};
use crate::compact::collect::Lull;
use crate::compact::leveled::RangeRequest;
use crate::compact::{self, LevelTargets, Moment, RangePick, Running, Scores};
use crate::context::Context;
use crate::filename;
use crate::jobs::blob_collection;
use crate::jobs::compaction::CompactionJob;
use crate::jobs::compaction_handle::{self, CompactionHandle, Control, Counted};
use crate::jobs::{manual_flush, punch_due};
use crate::obsolete;
use crate::options::{
    BottommostLevelCompaction, ColumnFamilyOptions, CompactRangeOptions, FlushOptions,
};
use crate::version::KeyRange;
use crate::version::version::Version;
use crate::write::commit::WritePath;

/// What is to be compacted, and how.
pub(crate) struct Request {
    pub(crate) family: Arc<ColumnFamilyData>,
    pub(crate) options: CompactRangeOptions,
    pub(crate) begin: Option<Vec<u8>>,
    pub(crate) end: Option<Vec<u8>>,
}

/// Flushes, and compacts the keys of a family, on the caller's thread.
///
/// # Errors
/// `ReadOnly`, `Closed`, `Aborted`, or what a flush or compaction met; steps done so far stay.
pub(crate) fn compact_range(
    context: &Context,
    write: &WritePath,
    request: &Request,
    control: &Arc<Control>,
) -> Result<()> {
    let _job = context.enter_job()?;
    // Those who disable such jobs from here on are heard, also while it waits for its flush.
    control.check(context, &request.family)?;
    let families = std::slice::from_ref(&request.family);
    manual_flush::flush(context, write, &FlushOptions { wait: true }, families)?;
    let manual = Manual {
        context,
        request,
        control,
        id: context.new_job_id(),
        keeps_out: RefCell::default(),
    };
    let _listed = manual.list();
    manual.keep_others_out();
    let result = manual.run();
    manual.let_others_in();
    obsolete::purge(context);
    result.inspect_err(|e| compaction_handle::note_failure(context, e))
}

/// The same on a thread of its own, which ends before the database is closed.
///
/// # Errors
/// `Io` if the system has no thread left.
pub(crate) fn spawn(
    context: &Arc<Context>,
    write: &Arc<WritePath>,
    request: Request,
) -> Result<CompactionHandle> {
    let (theirs, write) = (context.clone(), write.clone());
    compaction_handle::spawn(context, "orogen-manual", move |control| {
        compact_range(&theirs, &write, &request, control)
    })
}

/// Refuses new manual compactions and gives up those that were begun; returns when none of them holds files.
pub(crate) fn disable(context: &Context) {
    context.manual_disabled.fetch_add(1, Ordering::SeqCst);
    context.manual_disables.fetch_add(1, Ordering::SeqCst);
    context.progress.raise();
    if context.runs_callers_job() {
        // A listener of one: it would wait for itself.
        return;
    }
    loop {
        let seen = context.progress.count();
        let families = context.set.families();
        if families.iter().all(|f| f.state().manual_running == 0) {
            return;
        }
        context.progress.wait_after(seen);
    }
}

/// Ends one [`disable`].
pub(crate) fn enable(context: &Context) {
    let disabled = &context.manual_disabled;
    let _ = disabled.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
}

struct Manual<'a> {
    context: &'a Context,
    request: &'a Request,
    control: &'a Arc<Control>,
    id: u64,
    /// While automatic ones wait.
    keeps_out: RefCell<Option<Counted<'a>>>,
}

/// A step that was taken.
struct Step {
    written: Vec<FileNo>,
    /// Where the next one begins, if there is one.
    next: Option<Vec<u8>>,
}

/// The levels and keys that a compaction waits for, until it is dropped.
struct Claim<'a, 'b>(&'a Manual<'b>);

impl Drop for Claim<'_, '_> {
    fn drop(&mut self) {
        let id = self.0.id;
        let mut state = self.0.request.family.state();
        state.claims.retain(|c| c.0 != id);
        drop(state);
        self.0.context.work.raise();
    }
}

impl<'a> Manual<'a> {
    fn count(&self, count: fn(&mut FamilyState) -> &mut usize) -> Counted<'a> {
        Counted::new(self.context, &self.request.family, count)
    }

    /// If that was asked for.
    fn keep_others_out(&self) {
        let mut keeps_out = self.keeps_out.borrow_mut();
        if self.request.options.exclusive_manual_compaction && keeps_out.is_none() {
            *keeps_out = Some(self.count(|state| &mut state.exclusive_manual));
        }
    }

    fn let_others_in(&self) {
        drop(self.keeps_out.take());
    }

    fn list(&self) -> Listed<'_> {
        let context = self.context;
        let begun = JobInfo {
            id: Some(self.id),
            kind: JobKind::ManualCompaction,
            state: JobState::Running,
            column_family: self.request.family.name.clone(),
            start_level: None,
            output_level: None,
            input_files: Vec::new(),
            input_bytes: 0,
            input_bytes_done: 0,
            output_files: Vec::new(),
            output_bytes: 0,
            reason: "requested".to_owned(),
            since_secs: Some(context.clock.unix_secs()),
        };
        let control = self.control.clone();
        let mut job = RunningJob::new(begun, 0);
        job.progress = Some(Box::new(move || control.progress()));
        context.activity.list(self.id, job)
    }

    fn check(&self) -> Result<()> {
        self.control.check(self.context, &self.request.family)
    }

    fn base_level(&self, version: &Version) -> usize {
        LevelTargets::compute(version, &self.request.family.options()).base_level
    }

    fn range(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        (self.request.begin.as_deref(), self.request.end.as_deref())
    }

    fn run(&self) -> Result<()> {
        let family = &*self.request.family;
        let (begin, end) = self.range();
        let deepest = |version: &Version| {
            let levels = 0..version.num_levels();
            levels.rev().find(|&l| version.has_overlap(l, begin, end))
        };
        let Some(mut last) = deepest(&family.state().version) else {
            return Ok(());
        };
        // Others write tables meanwhile, too, and need not do to them what was asked for here: those that the
        // filter is kept out of, or that its factory gives none for.
        let mut made = HashSet::new();
        let rewrite_last = match self.request.options.bottommost_level_compaction {
            BottommostLevelCompaction::Skip => false,
            BottommostLevelCompaction::IfHaveCompactionFilter => {
                family.options().compaction_filter_factory.is_some()
            }
            BottommostLevelCompaction::Force => true,
        };
        let may_move = family.options().compaction_filter_factory.is_none();
        let mut level = 0;
        while level <= last {
            let version = family.state().version.clone();
            // Automatic compactions may have moved some of it further down.
            last = deepest(&version).map_or(last, |l| l.max(last));
            let output_level = if level == 0 {
                let base = self.base_level(&version);
                last = last.max(base);
                base
            } else if level == last {
                if !rewrite_last {
                    break;
                }
                level
            } else {
                level + 1
            };
            self.control
                .set_ahead(self.bytes_ahead(&version, level, last, rewrite_last));
            let request = RangeRequest {
                level,
                output_level,
                begin,
                end,
                made: None,
                allow_trivial_move: may_move,
            };
            self.compact_level(&request, &mut made)?;
            level = if level == 0 {
                // Where it went may be another level than it seemed at first.
                self.base_level(&family.state().version)
                    .min(output_level)
                    .max(1)
            } else {
                level + 1
            };
        }
        Ok(())
    }

    /// Bytes that the steps from `level` on will read, if nothing is dropped on the way.
    fn bytes_ahead(&self, version: &Version, level: usize, last: usize, rewrite: bool) -> u64 {
        let (begin, end) = self.range();
        let mut carried = 0u64;
        let mut all = 0u64;
        for l in level..=last {
            let files = version.overlapping_inputs(l, begin, end);
            let own: u64 = files.iter().map(|f| f.size).sum();
            // What comes from above is read once more where it meets something.
            if l > level && own > 0 && carried > 0 {
                all += carried + own;
            }
            carried += own;
        }
        if rewrite || all == 0 {
            all += carried;
        }
        all
    }

    /// Compacts the range of one level, step by step; in place only what is not in `made`, to which it adds.
    fn compact_level(&self, request: &RangeRequest<'_>, made: &mut HashSet<FileNo>) -> Result<()> {
        let mut from: Option<Vec<u8>> = request.begin.map(<[u8]>::to_vec);
        let in_place = request.output_level == request.level;
        loop {
            self.wait_while_paused()?;
            let step = self.step(&RangeRequest {
                begin: from.as_deref(),
                made: in_place.then_some(&*made),
                ..*request
            });
            self.context.progress.raise();
            match step {
                Ok(Some(step)) => {
                    made.extend(step.written);
                    from = step.next;
                    if from.is_none() {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(e) => {
                    // Why it was given up, in its own words; if for a pause, it begins anew.
                    self.check()?;
                    if e.kind() != ErrorKind::Aborted {
                        return Err(e);
                    }
                }
            }
        }
    }

    /// One step, if there is one.
    fn step(&self, request: &RangeRequest<'_>) -> Result<Option<Step>> {
        let _running = self.count(|state| &mut state.manual_running);
        let Some((job, next)) = self.pick(request)? else {
            return Ok(None);
        };
        let watch = Arc::new(job.watch(self.context, self.control)?);
        let result = job.run_watched(self.context, watch.clone());
        watch.end(result.is_ok());
        result.map(|written| Some(Step { written, next }))
    }

    fn wait_while_paused(&self) -> Result<()> {
        loop {
            let seen = self.context.progress.count();
            self.check()?;
            if !self.control.is_paused() {
                self.keep_others_out();
                return Ok(());
            }
            if self.keeps_out.borrow().is_some() {
                // It tells of progress itself.
                self.let_others_in();
                continue;
            }
            self.context.progress.wait_after(seen);
        }
    }

    /// Takes the next step, waiting for compactions that are in its way; `None` if there is none.
    fn pick(&self, request: &RangeRequest<'_>) -> Result<Option<(CompactionJob, Option<Vec<u8>>)>> {
        let family = &self.request.family;
        let mut claim = None;
        loop {
            let seen = self.context.progress.count();
            self.check()?;
            let mut state = family.state();
            let version = state.version.clone();
            let running = state.taken(Some(self.id));
            // Automatic compactions go on, so that what level 0 goes to may have changed: a level
            // with older data must not be passed over.
            let request = &RangeRequest {
                output_level: match request.level {
                    0 => self.base_level(&version),
                    _ => request.output_level,
                },
                ..*request
            };
            match compact::pick_range(&version, &family.options(), &running, request) {
                RangePick::Nothing => return Ok(None),
                RangePick::Damaged(number) => {
                    let path = filename::table_path(&self.context.dir, number);
                    return Err(
                        Error::corruption("compaction needs a table that is damaged")
                            .with("file", path.display()),
                    );
                }
                RangePick::Plan(plan, next) => {
                    let job = CompactionJob::take(
                        &mut state,
                        family,
                        *plan,
                        self.context.new_job_id(),
                        self.request.options.max_subcompactions,
                    );
                    // The guard takes the lock again.
                    drop(state);
                    drop(claim);
                    return Ok(Some((job, next)));
                }
                RangePick::Conflict => {
                    if claim.is_none() {
                        state.claims.extend(
                            claims(&version, request)
                                .into_iter()
                                .map(|running| (self.id, running)),
                        );
                        claim = Some(Claim(self));
                    }
                }
            }
            drop(state);
            if self.control.is_paused() {
                return Err(Error::aborted("manual compaction was paused"));
            }
            self.context.progress.wait_after(seen);
        }
    }
}

/// What others must keep out of so that a step that waits comes to its turn: the level that it
/// reads, the one that it writes, and what would take files from that one.
fn claims(version: &Version, request: &RangeRequest<'_>) -> Vec<Running> {
    let last = version.num_levels() - 1;
    let levels = [
        request.level,
        request.output_level,
        (request.output_level + 1).min(last),
    ];
    let files = |level| version.overlapping_inputs(level, request.begin, request.end);
    let range = levels[..2]
        .iter()
        .filter_map(|&level| KeyRange::of(version.icmp(), &files(level)))
        .reduce(|a, b| a.union(version.icmp(), b));
    let Some(range) = range else {
        return Vec::new();
    };
    levels
        .into_iter()
        .map(|level| Running {
            start_level: request.level,
            output_level: level,
            range: range.clone(),
        })
        .collect()
}

/// Who waits for all looks at least so often.
const LOOK_AGAIN_MICROS: u64 = 100_000;

/// Waits until no flush, no compaction and no collection is due or running, paused ones apart, and no file is being deleted.
///
/// # Errors
/// What background work met; `NoSpace` also if compactions are put off for lack of it; `Closed`.
pub(crate) fn wait_until_idle(context: &Context) -> Result<()> {
    let _waiting = context.wait_for_all();
    loop {
        let seen = context.progress.count();
        context.check_writable()?;
        let are_put_off = context.shortage.compaction.due_in(0).is_some();
        let is_due = |family: &Arc<ColumnFamilyData>| {
            blob_collection::is_due_in(context, family, Lull::Long)
                || compaction_awaits_space(context, family)
        };
        let waits = || !context.may_move_values() && context.set.families().iter().any(is_due);
        if are_put_off || waits() {
            let what = match are_put_off {
                true => "compactions find no space or memory and are put off",
                false => {
                    "collections of garbage in blob files find no space or memory and are put off"
                }
            };
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        context.work.raise();
        let mut is_busy = false;
        let mut has_changed = false;
        for family in context.set.families() {
            let look = family.state().look(None);
            is_busy |= blob_collection::is_due_in(context, &family, Lull::Long)
                || punch_due::is_busy(&family, context, Lull::Long)
                || compaction_is_due(context, &family, &look);
            let state = family.state();
            is_busy |= is_flushing(&state, &family.options())
                || !state.running.is_empty()
                || state.manual_running > 0;
            // Then what was looked at tells nothing.
            has_changed |= !state.is_as(&look);
        }
        if has_changed {
            continue;
        }
        if !is_busy {
            // What ended, or was put off, since the looks above began may have left more.
            if context.progress.count() != seen {
                continue;
            }
            obsolete::purge(context);
            obsolete::wait_for_purges(context);
            return Ok(());
        }
        // What is due may be so no more without a job, and nobody tells: a snapshot was taken, a table is damaged.
        context.progress.wait_after_for(seen, LOOK_AGAIN_MICROS);
    }
}

fn compaction_is_due(context: &Context, family: &ColumnFamilyData, look: &Look) -> bool {
    is_due_at(family, look, context.moment())
}

/// True if all that is due is to move values, and nobody may.
fn compaction_awaits_space(context: &Context, family: &ColumnFamilyData) -> bool {
    let look = family.state().look(None);
    let now = context.moment();
    let with_space = Moment {
        moves_values: true,
        ..now
    };
    !is_due_at(family, &look, now) && is_due_at(family, &look, with_space)
}

fn is_due_at(family: &ColumnFamilyData, look: &Look, moment: Moment) -> bool {
    let options = family.options();
    if options.disable_auto_compactions || family.state().exclusive_manual > 0 {
        return false;
    }
    let scores = Scores::compute(&look.version, &options);
    compact::pick(&look.version, &options, &scores, &[], moment).is_some()
}

fn is_flushing(state: &FamilyState, options: &ColumnFamilyOptions) -> bool {
    state.flushing.is_some() || state.flush_due(options).is_some()
}
