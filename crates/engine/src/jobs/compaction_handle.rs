//! A job that a caller asked for, as its caller sees it: how far it is, and what it is told.
//!
//! Manual compactions, collections of garbage in blob files and conversions of values are such jobs. The job looks here every few thousand entries and between its steps. Told to pause, it
//! gives up the step that it is at, so that a paused compaction holds no files and is in nobody's
//! way; the step begins anew when it goes on. Lock: a leaf.

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use Ordering::Relaxed;
use orogen_base::sync::{Condvar, Mutex};
use orogen_base::{Error, ErrorKind, Result};
use orogen_env::threads;

use crate::column_family::{ColumnFamilyData, FamilyState};
use crate::compaction_iter::JobWatch;
use crate::context::Context;
use crate::quarantine;

/// How far a manual compaction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionProgress {
    /// Bytes of tables that were read or moved.
    pub bytes_done: u64,
    /// The same at the end, as far as it is known now; never less than what is done.
    pub bytes_total: u64,
    /// It was told to pause.
    pub paused: bool,
    /// It has ended, well or not.
    pub finished: bool,
}

/// What the compaction and its handle share.
#[derive(Default)]
pub(crate) struct Control {
    cancelled: AtomicBool,
    paused: AtomicBool,
    done: AtomicU64,
    /// Bytes of the levels that are still to be merged into the next, when last looked at.
    ahead: AtomicU64,
    /// How often such jobs had been disabled when it began.
    disables: OnceLock<u64>,
    result: Mutex<Option<Result<()>>>,
    finished: Condvar,
}

impl Control {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Relaxed)
    }

    /// Bytes done, bytes in all as far as is known, and whether it is paused.
    pub(crate) fn progress(&self) -> (u64, u64, bool) {
        let done = self.done.load(Relaxed);
        (done, done + self.ahead.load(Relaxed), self.is_paused())
    }

    /// Sets what is ahead, beside what is done.
    pub(crate) fn set_ahead(&self, bytes: u64) {
        self.ahead.store(bytes, Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
        let _ = self
            .ahead
            .fetch_update(Relaxed, Relaxed, |a| Some(a.saturating_sub(bytes)));
    }

    fn take_back(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Relaxed);
        self.ahead.fetch_add(bytes, Relaxed);
    }

    /// Gives the job up where it must not go on.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`; `Aborted` if it was cancelled, the family was dropped, or such jobs are
    /// disabled.
    pub(super) fn check(&self, context: &Context, family: &ColumnFamilyData) -> Result<()> {
        context.check_writable()?;
        if family.is_dropped() {
            return Err(Error::aborted("column family was dropped"));
        }
        if self.is_cancelled() {
            return Err(Error::aborted("job was cancelled"));
        }
        let times = context.manual_disables.load(Ordering::SeqCst);
        let is_from_before = *self.disables.get_or_init(|| times) != times;
        if context.manual_disabled.load(Ordering::SeqCst) > 0 || is_from_before {
            return Err(Error::aborted("manual compactions are disabled"));
        }
        Ok(())
    }

    pub(crate) fn finish(&self, result: Result<()>) {
        self.ahead.store(0, Relaxed);
        *self.result.lock() = Some(result);
        self.finished.notify_all();
    }
}

/// Runs `body` on a thread of its own, which ends before the database is closed.
///
/// # Errors
/// `Io` if the system has no thread left.
pub(super) fn spawn(
    context: &Arc<Context>,
    name: &str,
    body: impl FnOnce(&Arc<Control>) -> Result<()> + Send + 'static,
) -> Result<CompactionHandle> {
    let control = Arc::new(Control::default());
    let told = control.clone();
    let thread = threads::spawn(name, move || {
        let result = catch_unwind(AssertUnwindSafe(|| body(&told)));
        told.finish(result.unwrap_or_else(|_| Err(Error::aborted("job panicked"))));
    })?;
    context.adopt(thread);
    Ok(CompactionHandle {
        control,
        context: context.clone(),
    })
}

/// Has the database know what a job met. The caller is told; automatic jobs find out for
/// themselves.
pub(super) fn note_failure(context: &Context, error: &Error) {
    match error.kind() {
        ErrorKind::Aborted | ErrorKind::ReadOnly | ErrorKind::Closed => {}
        kind if kind.is_shortage() => context.tell_failure(),
        _ if context.is_closing() => {}
        // A damaged input changes nothing: it is left alone from here on.
        _ if quarantine::note(context, error) => {}
        _ => context.fail(error),
    }
}

/// Watches one step of a manual compaction.
pub(crate) struct StepWatch {
    control: Arc<Control>,
    closing: Arc<AtomicBool>,
    disabled: Arc<AtomicU64>,
    /// Bytes and entries of the step's inputs.
    bytes: u64,
    entries: u64,
    told: AtomicU64,
}

impl StepWatch {
    pub(crate) fn new(context: &Context, control: &Arc<Control>, bytes: u64, entries: u64) -> Self {
        Self {
            control: control.clone(),
            closing: context.closing.clone(),
            disabled: context.manual_disabled.clone(),
            bytes,
            entries: entries.max(1),
            told: AtomicU64::new(0),
        }
    }

    /// Tells the rest of the step, or takes back what was told of one that was given up.
    pub(crate) fn end(&self, done: bool) {
        let told = self.told.load(Relaxed).min(self.bytes);
        if done {
            self.control.advance(self.bytes - told);
        } else {
            self.control.take_back(told);
        }
    }
}

impl JobWatch for StepWatch {
    fn look(&self, entries: u64) -> Result<()> {
        let share = u128::from(self.bytes) * u128::from(entries) / u128::from(self.entries);
        let share = u64::try_from(share).unwrap_or(u64::MAX);
        let before = self.told.fetch_add(share, Relaxed);
        self.control
            .advance(share.min(self.bytes.saturating_sub(before)));
        if self.closing.load(Relaxed) || self.disabled.load(Relaxed) > 0 {
            return Err(Error::aborted("job was cancelled"));
        }
        if self.control.is_cancelled() || self.control.is_paused() {
            return Err(Error::aborted("manual compaction was stopped"));
        }
        Ok(())
    }
}

/// One of the family's counts, raised until it is dropped.
pub(super) struct Counted<'a> {
    context: &'a Context,
    family: &'a ColumnFamilyData,
    count: fn(&mut FamilyState) -> &mut usize,
}

impl<'a> Counted<'a> {
    pub(super) fn new(
        context: &'a Context,
        family: &'a ColumnFamilyData,
        count: fn(&mut FamilyState) -> &mut usize,
    ) -> Self {
        *count(&mut family.state()) += 1;
        Self {
            context,
            family,
            count,
        }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.family.state();
            *(self.count)(&mut state) -= 1;
            state.jobs_ended += 1;
        }
        self.context.work.raise();
        self.context.progress.raise();
    }
}

/// A manual compaction that runs on a thread of its own, from
/// [`Db::compact_range_async`](crate::Db::compact_range_async), or a collection of garbage in blob
/// files, from [`Db::collect_blob_garbage_async`](crate::Db::collect_blob_garbage_async).
///
/// Dropping it lets the compaction go on. Closing the database cancels it.
#[derive(Clone)]
pub struct CompactionHandle {
    pub(crate) control: Arc<Control>,
    pub(crate) context: Arc<Context>,
}

impl CompactionHandle {
    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> CompactionProgress {
        let control = &self.control;
        let finished = control.result.lock().is_some();
        let bytes_done = control.done.load(Relaxed);
        CompactionProgress {
            bytes_done,
            bytes_total: bytes_done + control.ahead.load(Relaxed),
            paused: control.is_paused(),
            finished,
        }
    }

    /// Has it stop where it is, and hold no files, until [`Self::resume`]. Steps that are done
    /// stay done. Returns at once.
    pub fn pause(&self) {
        self.control.paused.store(true, Relaxed);
        self.context.progress.raise();
    }

    /// Has it go on after [`Self::pause`].
    pub fn resume(&self) {
        self.control.paused.store(false, Relaxed);
        self.context.progress.raise();
    }

    /// Ends it; steps that are done stay done. Returns at once: [`Self::wait`] tells when it has
    /// ended, with `Aborted` if it was not done before.
    pub fn cancel(&self) {
        self.control.cancelled.store(true, Relaxed);
        self.context.progress.raise();
    }

    /// True once it has ended.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.control.result.lock().is_some()
    }

    /// Waits for its end. One that is paused does not end before it is told to go on, is
    /// cancelled, or the database closes.
    ///
    /// # Errors
    /// As [`Db::compact_range`](crate::Db::compact_range).
    pub fn wait(&self) -> Result<()> {
        let mut result = self.control.result.lock();
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            self.control.finished.wait(&mut result);
        }
    }
}

impl std::fmt::Debug for CompactionHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.progress().fmt(f)
    }
}
