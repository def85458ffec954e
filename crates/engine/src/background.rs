//! The one scheduler: flushes and compactions on a few threads, collections on threads of their own.
//!
//! Threads look for work whenever the context's `work` signal is raised: a flush first, then a
//! compaction, as long as one thread stays free for flushes. Where garbage in blob files is to be
//! collected they start a thread for that, which ends when there is no more: collections neither
//! keep compactions waiting nor wait for them, also where one of the two finds no space. While the disk is full they try to
//! resume from time to time. Close cancels compactions, lets flushes end, and joins the threads.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use orogen_base::sync::atomic::{AtomicUsize, Ordering};
use orogen_base::sync::{Mutex, thread};
use orogen_base::{Error, ErrorKind, Result};
use orogen_env::threads::{self, Thread};

use crate::context::Context;
use crate::jobs::{blob_collection, compaction, flush, idle_logs, punch, punch_due};
use crate::obsolete;
use crate::quarantine;
use crate::resume;
use crate::write::commit::WritePath;

/// The threads of an open database.
pub(crate) struct Background {
    context: Arc<Context>,
    budget: Arc<Budget>,
    threads: Mutex<Vec<Thread>>,
}

struct Budget {
    /// Threads that there are to be: those of higher places end.
    jobs: AtomicUsize,
    compactions: AtomicUsize,
    /// The places of the threads that run. Leaf lock.
    places: Mutex<BTreeSet<usize>>,
    /// Threads that collect.
    collecting: AtomicUsize,
    /// Their handles; those that have ended go when the next one is started. Leaf lock.
    collectors: Mutex<Vec<Thread>>,
}

/// A thread that collects, until it is dropped.
struct Collecting {
    context: Arc<Context>,
    budget: Arc<Budget>,
}

impl Drop for Collecting {
    fn drop(&mut self) {
        self.budget.collecting.fetch_sub(1, Ordering::AcqRel);
        self.context.progress.raise();
    }
}

impl Budget {
    fn compactions_max(&self) -> usize {
        self.jobs.load(Ordering::Relaxed).saturating_sub(1).max(1)
    }

    /// True if the thread at `place` is one too many; its place is then free.
    fn gives_up(&self, place: usize) -> bool {
        if place < self.jobs.load(Ordering::Relaxed) {
            return false;
        }
        let mut places = self.places.lock();
        // Looked at again: there may have come to be more.
        let gives_up = place >= self.jobs.load(Ordering::Relaxed);
        if gives_up {
            places.remove(&place);
        }
        gives_up
    }
}

impl Background {
    /// Starts the threads.
    ///
    /// # Errors
    /// `Io` if the system gives no thread.
    pub(crate) fn start(write: &Arc<WritePath>) -> Result<Self> {
        let context = &write.context;
        let jobs = context.db_options().max_background_jobs.max(1);
        let background = Self {
            context: context.clone(),
            budget: Arc::new(Budget {
                jobs: AtomicUsize::new(0),
                compactions: AtomicUsize::new(0),
                places: Mutex::default(),
                collecting: AtomicUsize::new(0),
                collectors: Mutex::default(),
            }),
            threads: Mutex::default(),
        };
        background.resize(write, jobs).inspect_err(|_| {
            // Those that run are joined when they are dropped: let them end.
            context.closing.store(true, Ordering::Release);
            context.work.raise();
        })?;
        Ok(background)
    }

    /// Makes it `jobs` threads. Those that are too many end with the job that they run.
    ///
    /// # Errors
    /// `Io` if the system gives no thread: there are as many as before. `Closed`.
    pub(crate) fn resize(&self, write: &Arc<WritePath>, jobs: usize) -> Result<()> {
        let mut threads = self.threads.lock();
        if self.context.is_closing() {
            return Err(Error::closed("database is closed"));
        }
        threads.retain(|t| !t.is_finished());
        let before = {
            let places = self.budget.places.lock();
            let before = self.budget.jobs.swap(jobs, Ordering::Relaxed);
            drop(places);
            before
        };
        for place in 0..jobs {
            if !self.budget.places.lock().insert(place) {
                continue;
            }
            let theirs = (write.clone(), self.budget.clone());
            let spawned = threads::spawn(&format!("orogen-bg{place}"), move || {
                work(&theirs.0, &theirs.1, place);
            });
            match spawned {
                Ok(thread) => threads.push(thread),
                Err(e) => {
                    self.budget.places.lock().remove(&place);
                    self.budget.jobs.store(before, Ordering::Relaxed);
                    self.context.work.raise();
                    return Err(e);
                }
            }
        }
        self.context.work.raise();
        Ok(())
    }

    /// Ends the threads and waits for them. The context must be closing.
    pub(crate) fn join(&self) {
        self.context.work.raise();
        // Joined without the lock: one may wait for somebody who is about to ask for other threads. Nobody is left to start another one.
        let threads = std::mem::take(&mut *self.threads.lock());
        drop(threads);
        let collectors = std::mem::take(&mut *self.budget.collectors.lock());
        drop(collectors);
    }
}

const FLUSH: &str = "flush";
const COMPACTION: &str = "compaction";
const COLLECTION: &str = "blob collection";
const IDLE_LOGS: &str = "removal of logs";

/// A thread waits so long at least before it looks again for what is to be retried.
const RETRY_MICROS_MIN: u64 = 1000;

/// Looks so often whether files that were still held can go: not all who hold a version for a
/// moment, such as a point read or a look for work, tell when they let go.
const HELD_MICROS: u64 = 500_000;

fn work(write: &WritePath, budget: &Arc<Budget>, place: usize) {
    let context = &*write.context;
    let _lock = context.lock.lock().clone();
    let own = thread::current().id();
    context.background.lock().push(own);
    loop {
        // Counted before looking: what is raised after the look ends the wait.
        let seen = context.work.count();
        let looked_at = context.clock.now_micros();
        if context.is_closing() {
            return;
        }
        if budget.gives_up(place) {
            context.background.lock().retain(|&id| id != own);
            return;
        }
        // A panic, of a user's listener or filter say, must not leave waiters without an answer.
        let found = catch_unwind(AssertUnwindSafe(|| run_one(write, budget)));
        let found = found.unwrap_or_else(|_| {
            let panicked = Error::new(ErrorKind::Aborted, "a background job panicked");
            context.fail(&panicked);
            false
        });
        if !found {
            if context.set.has_removed() || context.logs.has_unpinned() {
                obsolete::purge(context);
            }
            let retry = context.next_retry_micros(looked_at).unwrap_or(u64::MAX);
            let held = match context.set.has_removed() {
                true => HELD_MICROS,
                false => u64::MAX,
            };
            let due = compaction::idle_micros(context).min(punch_due::idle_micros(context));
            let due = due.min(blob_collection::idle_micros(context)).min(held);
            context
                .work
                .wait_after_for(seen, retry.min(due).max(RETRY_MICROS_MIN));
        }
    }
}

/// Runs one job if there is one.
fn run_one(write: &WritePath, budget: &Arc<Budget>) -> bool {
    let context = &write.context;
    if context.health.failed() {
        return false;
    }
    if context.health.out_of_space() {
        return resume::probe(context, write);
    }
    // On a thread of its own: a call of it may wait for the device, and there may be many.
    punch::spawn_if_due(context);
    let cleared = context.health.times_cleared();
    if let Some(job) = flush::next(context) {
        let result = job.run(context);
        let is_short = result.as_ref().is_err_and(|e| e.kind().is_shortage());
        if is_short && context.health.times_cleared() != cleared {
            // Somebody has resumed since: it is tried again before writes are refused.
            finish(context, FLUSH, Ok(()));
        } else {
            finish(context, FLUSH, result);
        }
        return true;
    }
    if idle_logs::take(context) {
        finish(context, IDLE_LOGS, idle_logs::run(context));
        return true;
    }
    start_collection(context, budget);
    let put_off = context.shortage.compaction.due_in(0).is_some();
    if put_off
        && !context.shortage.compaction.take(
            context.clock.now_micros(),
            context.options.bgerror_resume_retry_interval,
        )
    {
        return false;
    }
    if budget.compactions.fetch_add(1, Ordering::AcqRel) >= budget.compactions_max() {
        budget.compactions.fetch_sub(1, Ordering::AcqRel);
        return false;
    }
    let job = compaction::next(context);
    let found = job.is_some();
    if let Some(job) = job {
        let result = job.run(context);
        if result.is_ok() {
            context.end_put_off();
        }
        finish(context, COMPACTION, result);
    } else {
        // Nothing is due, or what is waits for another job and is looked for when that ends.
        context.end_put_off();
    }
    budget.compactions.fetch_sub(1, Ordering::AcqRel);
    if found {
        context.work.raise();
    }
    found
}

/// Starts a thread that collects garbage in blob files, if there is any to collect, a place is
/// free, and it is not put off.
fn start_collection(context: &Arc<Context>, budget: &Arc<Budget>) {
    let max = context.db_options().max_background_gc;
    let has_place = budget.collecting.load(Ordering::Acquire) < max;
    if !has_place || !context.may_move_values() || !blob_collection::is_due(context) {
        return;
    }
    let mut collectors = budget.collectors.lock();
    collectors.retain(|t| !t.is_finished());
    if context.is_closing() || budget.collecting.load(Ordering::Acquire) >= max {
        return;
    }
    // Looked at again: a thread that found no space has put it off before it left its place.
    if !context.take_move() {
        return;
    }
    budget.collecting.fetch_add(1, Ordering::AcqRel);
    let place = Collecting {
        context: context.clone(),
        budget: budget.clone(),
    };
    let body = move || {
        collect(&place);
        let context = place.context.clone();
        drop(place);
        // What came to be due since its last look found the place taken.
        if blob_collection::is_due(&context) {
            context.work.raise();
        }
    };
    match threads::spawn("orogen-gc", body) {
        Ok(thread) => collectors.push(thread),
        // The next look tries again.
        Err(e) => context
            .log
            .warn(format_args!("{COLLECTION} was not started: {e}")),
    }
}

/// Collects until there is nothing left that is worth it.
fn collect(place: &Collecting) {
    let context = &*place.context;
    let _lock = context.lock.lock().clone();
    let own = thread::current().id();
    context.background.lock().push(own);
    while !context.is_closing() && !context.health.failed() && !context.health.out_of_space() {
        let step = catch_unwind(AssertUnwindSafe(|| {
            let result = blob_collection::next(context).and_then(|job| {
                let found = job.is_some();
                job.map_or(Ok(()), |job| job.run(context)).map(|()| found)
            });
            let goes_on = matches!(result, Ok(true));
            if goes_on {
                context.moves_retry.end();
            }
            if !matches!(result, Ok(false)) {
                finish(context, COLLECTION, result.map(drop));
            }
            goes_on
        }));
        match step {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                let panicked = Error::new(ErrorKind::Aborted, "a background job panicked");
                context.fail(&panicked);
                break;
            }
        }
    }
    context.background.lock().retain(|&id| id != own);
}

fn finish(context: &Context, what: &str, result: Result<()>) {
    match result {
        // Of a family that was dropped meanwhile it may have met what makes the database read-only: writers may wait all the same.
        Ok(()) => context.tell_failure(),
        Err(e)
            if e.kind() == ErrorKind::Aborted
                || (e.kind() == ErrorKind::Closed && context.is_closing()) =>
        {
            context.log.info(format_args!("{what} was given up: {e}"));
        }
        // Its inputs stay and its outputs are gone; the damaged one is left alone from here on.
        Err(e) if quarantine::note(context, &e) => {
            context.log.warn(format_args!("{what} was given up: {e}"));
            // What was to be done about debts may not be done any more.
            for family in context.set.families() {
                context.update_stall(&family);
            }
        }
        Err(e) => {
            context.log.error(format_args!("{what} failed: {e}"));
            match what {
                FLUSH => context.fail_flush(&e),
                COLLECTION => context.fail_collection(&e),
                _ => context.fail_compaction(&e),
            }
        }
    }
    obsolete::purge(context);
    context.work.raise();
    context.progress.raise();
}
