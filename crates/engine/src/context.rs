//! What all the moves share: settings, versions, logs, watermarks, health.
//!
//! A move (write, flush, compaction) is handed the context and nothing else of the database.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ThreadId;

use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::{Error, FileNo, Result};
use orogen_env::{Clock, FileLock, FileSystem};
use orogen_sst::BlockCache;
use parking_lot::{Condvar, Mutex};

use crate::column_family::ColumnFamilyData;
use crate::compact::Scores;
use crate::events::{EventListener, StallInfo};
use crate::health::Health;
use crate::info_log::InfoLog;
use crate::logs::Logs;
use crate::options::DbOptions;
use crate::read::SnapshotList;
use crate::sequence::Sequence;
use crate::stall::{self, Debts, StallController};
use crate::super_version::MemHandle;
use crate::version_set::VersionSet;

/// The shared parts of an open database.
pub(crate) struct Context {
    pub(crate) dir: PathBuf,
    pub(crate) options: DbOptions,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) log: InfoLog,
    pub(crate) health: Arc<Health>,
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) set: VersionSet,
    pub(crate) logs: Logs,
    pub(crate) snapshots: Arc<SnapshotList>,
    pub(crate) stall: StallController,
    pub(crate) default_cache: Arc<BlockCache>,
    pub(crate) session_id: String,
    pub(crate) read_only: bool,
    pub(crate) closing: Arc<AtomicBool>,
    pub(crate) work: Signal,
    pub(crate) progress: Signal,
    /// Keeps others out. A job on a thread keeps a clone: should a listener close the database
    /// from within it, nobody else opens it before the job has ended.
    pub(crate) lock: Mutex<Option<Arc<dyn FileLock>>>,
    /// Threads that run jobs of their own. Leaf lock.
    callers: Mutex<Vec<ThreadId>>,
    /// Threads of `background.rs`. Leaf lock.
    pub(crate) background: Mutex<Vec<ThreadId>>,
    next_memtable_id: AtomicU64,
    next_job_id: AtomicU64,
}

/// What [`Context::new`] is made of.
pub(crate) struct ContextParts {
    pub(crate) dir: PathBuf,
    pub(crate) options: DbOptions,
    pub(crate) log: InfoLog,
    pub(crate) health: Arc<Health>,
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) set: VersionSet,
    pub(crate) default_cache: Arc<BlockCache>,
    pub(crate) session_id: String,
    pub(crate) read_only: bool,
    pub(crate) lock: Option<Arc<dyn FileLock>>,
}

/// A job on its caller's thread, until it is dropped.
pub(crate) struct CallersJob<'a> {
    context: &'a Context,
    _lock: Option<Arc<dyn FileLock>>,
}

impl Drop for CallersJob<'_> {
    fn drop(&mut self) {
        let mut callers = self.context.callers.lock();
        let own = std::thread::current().id();
        if let Some(i) = callers.iter().position(|&id| id == own) {
            callers.swap_remove(i);
        }
        drop(callers);
        self.context.progress.raise();
    }
}

impl Context {
    pub(crate) fn new(parts: ContextParts) -> Self {
        let options = parts.options;
        Self {
            logs: Logs::new(
                parts.dir.clone(),
                options.fs.clone(),
                options.clock.clone(),
                options.statistics.clone(),
                options.recycle_log_file_num,
            ),
            dir: parts.dir,
            fs: options.fs.clone(),
            clock: options.clock.clone(),
            statistics: options.statistics.clone(),
            stall: StallController::new(options.delayed_write_rate),
            options,
            log: parts.log,
            health: parts.health,
            sequence: parts.sequence,
            set: parts.set,
            snapshots: SnapshotList::new(),
            default_cache: parts.default_cache,
            session_id: parts.session_id,
            read_only: parts.read_only,
            closing: Arc::default(),
            work: Signal::default(),
            progress: Signal::default(),
            lock: Mutex::new(parts.lock),
            callers: Mutex::default(),
            background: Mutex::default(),
            next_memtable_id: AtomicU64::new(1),
            next_job_id: AtomicU64::new(1),
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses where no write is taken.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::read_only("database was opened read-only"));
        }
        if self.is_closing() {
            return Err(Error::closed("database is closed"));
        }
        self.health.check()
    }

    /// A new memtable whose first entries will be in log `log_number`.
    pub(crate) fn new_memtable(
        &self,
        options: &crate::options::ColumnFamilyOptions,
        log_number: FileNo,
    ) -> Arc<MemHandle> {
        let table = (options.memtable_factory)(&options.comparator);
        let id = self.next_memtable_id.fetch_add(1, Ordering::Relaxed);
        Arc::new(MemHandle::new(
            table,
            id,
            log_number,
            options.write_buffer_size,
        ))
    }

    /// A number for a job, for log lines and events.
    pub(crate) fn new_job_id(&self) -> u64 {
        self.next_job_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells every listener.
    pub(crate) fn notify(&self, mut tell: impl FnMut(&dyn EventListener)) {
        for listener in &self.options.listeners {
            tell(&**listener);
        }
    }

    /// Makes the database read-only because of `error`, and tells everybody.
    pub(crate) fn fail(&self, error: &Error) {
        self.health.fail(error);
        self.statistics.add(Ticker::ErrorHandlerBgErrorCount, 1);
        self.log
            .error(format_args!("database is read-only from here on: {error}"));
        self.stall.release();
        self.notify(|l| l.on_background_error(error));
        self.progress.raise();
    }

    /// After an error of an operation: if it is one that made the database read-only, tells
    /// everybody.
    pub(crate) fn spread_failure(&self, error: &Error) {
        if self.health.failed() && error.kind() != orogen_base::ErrorKind::ReadOnly {
            self.fail(error);
        }
    }

    /// Looks at a family's debts, holds writers back as they ask, and tells of a change.
    pub(crate) fn update_stall(&self, family: &ColumnFamilyData) {
        if let Some(info) = self.judge_debts(family) {
            self.tell_stall(&info);
        }
    }

    /// Looks at a family's debts and holds writers back as they ask; returns what has changed.
    pub(crate) fn judge_debts(&self, family: &ColumnFamilyData) -> Option<StallInfo> {
        let state = family.state();
        let scores = Scores::compute(&state.version, &family.options);
        family
            .pending_compaction_bytes
            .store(scores.pending_compaction_bytes, Ordering::Relaxed);
        let debts = Debts {
            sealed_memtables: state.imm.len(),
            level0_files: state.version.num_files(0),
            pending_compaction_bytes: scores.pending_compaction_bytes,
        };
        let verdict = (!family.is_dropped()).then(|| stall::judge(&family.options, debts));
        // Under the family's lock: an older look must not undo a newer one, or a writer would
        // wait for a flush that has ended.
        self.stall.set(family.id, &family.name, verdict)
    }

    pub(crate) fn tell_stall(&self, info: &StallInfo) {
        self.log.warn(format_args!(
            "[{}] writers: {:?} {}",
            info.column_family, info.condition, info.cause
        ));
        self.notify(|l| l.on_stall_conditions_changed(info));
    }

    /// Enters a job that runs on its caller's thread: close waits for it.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`.
    pub(crate) fn enter_job(&self) -> Result<CallersJob<'_>> {
        // First listed, then looked whether the database closes: close does it the other way.
        self.callers.lock().push(std::thread::current().id());
        let job = CallersJob {
            context: self,
            _lock: self.lock.lock().clone(),
        };
        self.check_writable()?;
        Ok(job)
    }

    /// Waits until no other thread runs a job of its own.
    pub(crate) fn wait_for_callers(&self) {
        let own = std::thread::current().id();
        loop {
            let seen = self.progress.count();
            if self.callers.lock().iter().all(|&id| id == own) {
                return;
            }
            self.progress.wait_after(seen);
        }
    }

    /// The oldest log that some family still needs.
    pub(crate) fn min_log_needed(&self) -> FileNo {
        let families = self.set.families();
        families
            .iter()
            .map(|f| f.state().min_log_needed())
            .min()
            .unwrap_or(FileNo::MAX)
    }
}

/// Wakes those who wait for something to have changed. Leaf lock.
#[derive(Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    /// Wakes all who wait.
    pub(crate) fn raise(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// How often it was raised; give it to [`Self::wait_after`].
    pub(crate) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until it was raised more often than `seen`.
    pub(crate) fn wait_after(&self, seen: u64) {
        let mut count = self.count.lock();
        while *count == seen {
            self.changed.wait(&mut count);
        }
    }
}
