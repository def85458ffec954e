//! What all the moves share: settings, versions, logs, watermarks, health.
//!
//! A move (write, flush, compaction) is handed the context and nothing else of the database.

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use orogen_base::sync::thread::{self, ThreadId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::sync::{ArcSwap, Mutex};
use orogen_base::{Error, FileNo, Result};
use orogen_env::memory::PagePool;
use orogen_env::threads::Thread;
use orogen_env::{Ahead, Clock, FileLock, FileSystem};
use orogen_memtable::{GuidedListMemTable, MemTable, VectorMemTable};
use orogen_sst::BlockCache;

use crate::activity::Activity;
use crate::column_family::ColumnFamilyData;
use crate::compact::Moment;
use crate::directory::Directory;
use crate::events::{DamagedBlobFile, DamagedTable, EventListener};
use crate::health::Health;
use crate::holes::HolePunching;
use crate::info_log::InfoLog;
use crate::logs::Logs;
use crate::options::{ColumnFamilyOptions, DbOptions};
use crate::prepared::PreparedWrites;
use crate::read::SnapshotList;
use crate::retry::Retry;
use crate::sequence::Sequence;
use crate::shortage::{Followed, Shortage};
use crate::signal::Signal;
use crate::stall::StallController;
use crate::super_version::MemHandle;
use crate::version_set::VersionSet;

/// Disk space that a new log reserves at most.
const LOG_RESERVATION_MAX: u64 = 256 << 20;

/// Bytes of pages that flushed memtables leave to later ones, at most.
const SPARE_PAGES_MAX: u64 = 128 << 20;

/// Blocks of memtables of a family: of one that is written to and of one on its way to disk.
const BLOCKS_KEPT: usize = 2;

/// Databases that this process has opened.
static OPENS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// The shared parts of an open database.
pub(crate) struct Context {
    pub(crate) dir: PathBuf,
    pub(crate) directory: Arc<Directory>,
    /// The settings that the database was opened with. Those that may change: [`Self::db_options`].
    pub(crate) options: DbOptions,
    current_options: ArcSwap<DbOptions>,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) log: InfoLog,
    pub(crate) health: Arc<Health>,
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) prepared: PreparedWrites,
    pub(crate) set: VersionSet,
    pub(crate) logs: Logs,
    pub(crate) snapshots: Arc<SnapshotList>,
    pub(crate) stall: StallController,
    pub(crate) activity: Activity,
    pub(crate) default_cache: Arc<BlockCache>,
    pub(crate) session_id: String,
    pub(crate) read_only: bool,
    /// Somebody else writes it, and it is followed.
    pub(crate) follows: bool,
    pub(crate) closing: Arc<AtomicBool>,
    pub(crate) work: Arc<Signal>,
    pub(crate) progress: Signal,
    pub(crate) shortage: Shortage,
    /// Planned while who moves values of blob files finds none: collections wait, and compactions leave values where they
    /// are, but for a try now and then.
    pub(crate) moves_retry: Retry,
    /// The thread that resumes. Leaf lock.
    resuming: Mutex<Option<ThreadId>>,
    /// Keeps others out. A job on a thread keeps a clone: should a listener close the database
    /// from within it, nobody else opens it before the job has ended.
    pub(crate) lock: Mutex<Option<Arc<dyn FileLock>>>,
    /// Of this open of the database among all of the process.
    pub(crate) open_number: u64,
    /// Above 0: no manual compaction runs.
    pub(crate) manual_disabled: Arc<AtomicU64>,
    /// How often they were disabled: those from before do not go on after it.
    pub(crate) manual_disables: AtomicU64,
    /// Threads of manual compactions; joined when the database closes. Leaf lock.
    adopted: Mutex<Vec<Thread>>,
    /// Threads that run jobs of their own. Leaf lock.
    callers: Mutex<Vec<ThreadId>>,
    /// Threads of `background.rs`. Leaf lock.
    pub(crate) background: Mutex<Vec<ThreadId>>,
    /// Tables that turned out to be damaged. Leaf lock.
    pub(crate) damaged: Mutex<BTreeMap<FileNo, DamagedTable>>,
    /// Blob files that did. Leaf lock.
    pub(crate) damaged_blobs: Mutex<BTreeMap<FileNo, DamagedBlobFile>>,
    /// OPTIONS files written since the open, oldest first. Leaf lock.
    pub(crate) options_files: Mutex<Vec<FileNo>>,
    /// Huge pages that memtables gave back; unused under a memory budget.
    pages: Arc<PagePool>,
    pub(crate) hole_punching: HolePunching,
    opened_micros: u64,
    /// How many threads wait for all that there is to do.
    waiting_for_all: AtomicU64,
    /// How many delete files that nothing needs any more.
    pub(crate) purges_running: AtomicU64,
    /// There are logs that nothing needs, and no flush comes by for them.
    pub(crate) has_idle_logs: AtomicBool,
    /// Somebody who cleans up has asked already for those before this one.
    idle_logs_noted: AtomicU64,
    /// How many wait until none does: first counted, then looked, as the others do it the other way.
    pub(crate) waiting_for_purges: AtomicU64,
    /// The LOG tells that RocksDB cannot read new blob files.
    pub(crate) told_of_dictionary: AtomicBool,
    /// Blob files may have dictionaries: some had when the database was opened, or settings have asked for them since.
    pub(crate) has_dictionaries: AtomicBool,
    next_memtable_id: AtomicU64,
    next_job_id: AtomicU64,
}

/// What [`Context::new`] is made of.
pub(crate) struct ContextParts {
    pub(crate) directory: Arc<Directory>,
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
        let own = thread::current().id();
        if let Some(i) = callers.iter().position(|&id| id == own) {
            callers.swap_remove(i);
        }
        drop(callers);
        self.context.progress.raise();
    }
}

/// What [`Context::hold_files`] keeps.
pub(crate) struct HeldFiles<'a>(&'a Context);

impl Drop for HeldFiles<'_> {
    fn drop(&mut self) {
        self.0.hole_punching.unhold();
        self.0.logs.unhold();
    }
}

/// The right to resume, until it is dropped.
pub(crate) struct ResumeTurn<'a>(&'a Context);

impl Drop for ResumeTurn<'_> {
    fn drop(&mut self) {
        self.0.resuming.lock().take();
        self.0.progress.raise();
    }
}

impl Context {
    pub(crate) fn new(parts: ContextParts) -> Self {
        let options = parts.options;
        let work = Arc::<Signal>::default();
        let snapshots = SnapshotList::new();
        let woken = work.clone();
        snapshots.on_wake(move || woken.raise());
        let ahead = Arc::new(Ahead::new());
        let opened_micros = options.clock.now_micros();
        Self {
            logs: Logs::new(
                parts.directory.clone(),
                options.clock.clone(),
                options.statistics.clone(),
                options.recycled_logs(),
                options.archives_logs(),
                options.allow_mmap_writes.then(|| ahead.clone()),
            ),
            pages: PagePool::new(ahead),
            dir: parts.directory.path().to_owned(),
            directory: parts.directory,
            fs: options.fs.clone(),
            clock: options.clock.clone(),
            statistics: options.statistics.clone(),
            stall: StallController::new(options.delayed_write_rate),
            current_options: ArcSwap::from_pointee(options.clone()),
            options,
            log: parts.log,
            health: parts.health,
            sequence: parts.sequence,
            prepared: PreparedWrites::default(),
            set: parts.set,
            snapshots,
            default_cache: parts.default_cache,
            session_id: parts.session_id,
            read_only: parts.read_only,
            follows: false,
            activity: Activity::default(),
            closing: Arc::default(),
            work,
            progress: Signal::default(),
            shortage: Shortage::default(),
            moves_retry: Retry::default(),
            resuming: Mutex::default(),
            lock: Mutex::new(parts.lock),
            open_number: OPENS.fetch_add(1, Ordering::Relaxed) as u64,
            manual_disabled: Arc::default(),
            manual_disables: AtomicU64::new(0),
            adopted: Mutex::default(),
            callers: Mutex::default(),
            background: Mutex::default(),
            damaged: Mutex::default(),
            damaged_blobs: Mutex::default(),
            options_files: Mutex::default(),
            hole_punching: HolePunching::default(),
            opened_micros,
            waiting_for_all: AtomicU64::new(0),
            purges_running: AtomicU64::new(0),
            has_idle_logs: AtomicBool::new(false),
            idle_logs_noted: AtomicU64::new(0),
            waiting_for_purges: AtomicU64::new(0),
            told_of_dictionary: AtomicBool::new(false),
            has_dictionaries: AtomicBool::new(false),
            next_memtable_id: AtomicU64::new(1),
            next_job_id: AtomicU64::new(1),
        }
    }

    /// The settings as they are now.
    pub(crate) fn db_options(&self) -> Arc<DbOptions> {
        self.current_options.load_full()
    }

    /// Takes other settings, which differ only where they may. The caller leads the write path.
    pub(crate) fn set_db_options(&self, options: Arc<DbOptions>) {
        self.current_options.store(options);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses what needs files of the directory to stay: a follower has no say in that.
    pub(crate) fn check_not_following(&self, what: &'static str) -> Result<()> {
        if self.follows {
            return Err(Error::not_supported("a secondary cannot do this").with("call", what));
        }
        Ok(())
    }

    /// Refuses where no write is taken.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        self.health.check()
    }

    fn check_open(&self) -> Result<()> {
        if self.read_only {
            return Err(Error::read_only("database was opened read-only"));
        }
        if self.is_closing() {
            return Err(Error::closed("database is closed"));
        }
        Ok(())
    }

    /// A new memtable whose first entries will be in log `log_number`.
    pub(crate) fn new_memtable(
        &self,
        family: &ColumnFamilyData,
        log_number: FileNo,
    ) -> Arc<MemHandle> {
        let keys_rise = family.keys_rise.load(Ordering::Relaxed);
        self.first_memtable(&family.options(), keys_rise, log_number)
    }

    /// The same for a family that there is not yet, or by what is known of its keys.
    pub(crate) fn first_memtable(
        &self,
        options: &ColumnFamilyOptions,
        keys_rise: bool,
        log_number: FileNo,
    ) -> Arc<MemHandle> {
        let table = if options.memtable_protection_bytes_per_key > 0 {
            GuidedListMemTable::with_protection(options.comparator.clone(), true)
        } else {
            // Spare memory is no part of a budget, so there is none under one.
            let pages = match self.options.memory_budget {
                Some(_) => None,
                None => Some(self.pages_for(options)),
            };
            options.make_memtable(keys_rise, pages)
        };
        self.memtable_of(table, options, log_number)
    }

    /// An empty memtable for what logs hold: it becomes a table before anything is looked up.
    pub(crate) fn new_replay_memtable(
        &self,
        options: &ColumnFamilyOptions,
        log_number: FileNo,
    ) -> Arc<MemHandle> {
        if options.memtable_protection_bytes_per_key > 0 {
            return self.first_memtable(options, false, log_number);
        }
        let table = VectorMemTable::new(options.comparator.clone());
        self.memtable_of(table, options, log_number)
    }

    /// True if a memtable may have the memory of the one whose flush it is to wait for, of so many in a family at most.
    pub(crate) fn passes_memory_on(&self, memtables_max: usize) -> bool {
        self.options.memory_budget.is_none() && memtables_max <= BLOCKS_KEPT
    }

    fn pages_for(&self, options: &ColumnFamilyOptions) -> &Arc<PagePool> {
        let bytes = options.write_buffer_size.min(SPARE_PAGES_MAX);
        self.pages.keep_at_least(bytes as usize);
        let families = self.set.families().len().max(1);
        self.pages.keep_blocks_up_to(BLOCKS_KEPT * families);
        &self.pages
    }

    fn memtable_of(
        &self,
        table: Arc<dyn MemTable>,
        options: &ColumnFamilyOptions,
        log_number: FileNo,
    ) -> Arc<MemHandle> {
        match &self.options.memory_budget {
            Some(budget) => budget.add_memtable(&table),
            None => table.use_pages(self.pages_for(options).clone()),
        }
        let id = self.next_memtable_id.fetch_add(1, Ordering::Relaxed);
        let size = options.write_buffer_size;
        let full_at = size.saturating_add(size / 64);
        Arc::new(MemHandle::new(table, id, log_number, full_at))
    }

    /// About how many bytes the next log gets, to reserve them at once: those of the largest
    /// memtable and an eighth, which other families' writes may need.
    pub(crate) fn expected_log_bytes(&self) -> u64 {
        let families = self.set.families();
        let buffers = families.iter().map(|f| f.options().write_buffer_size);
        let largest = buffers.max().unwrap_or(0).min(LOG_RESERVATION_MAX);
        let mut bytes = largest + largest / 8;
        let database = &self.options;
        for bound in [
            database.db_write_buffer_size,
            self.db_options().max_total_wal_size,
        ] {
            if bound > 0 {
                bytes = bytes.min(bound);
            }
        }
        bytes
    }

    /// Bytes of memtables that wait for a flush.
    pub(crate) fn sealed_bytes(&self) -> u64 {
        let families = self.set.families();
        let sealed = families.iter().map(|f| {
            let state = f.state();
            let bytes = state.imm.iter().map(|m| m.table.memory_usage() as u64);
            bytes.sum::<u64>()
        });
        sealed.sum()
    }

    /// About the space that flushes and logs need next: for what is in memtables, and for the next log.
    pub(crate) fn bytes_to_flush(&self) -> u64 {
        let families = self.set.families();
        let mutable = families
            .iter()
            .map(|f| f.state().mem.table.memory_usage() as u64);
        let mutable: u64 = mutable.sum();
        self.sealed_bytes()
            .saturating_add(mutable)
            .saturating_add(self.expected_log_bytes())
    }

    /// Counts memory anew, if it is bounded.
    pub(crate) fn balance_memory(&self) {
        if let Some(budget) = &self.options.memory_budget {
            budget.balance();
        }
    }

    /// A number for a job, for log lines and events.
    pub(crate) fn new_job_id(&self) -> u64 {
        self.next_job_id.fetch_add(1, Ordering::Relaxed)
    }

    /// What picks of compactions depend on besides versions.
    pub(crate) fn moment(&self) -> Moment {
        Moment {
            unix_secs: self.clock.unix_secs(),
            oldest_snapshot: self.snapshots.oldest().unwrap_or(SEQNO_MAX),
            moves_values: self.compactions_may_move(),
        }
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
        self.health.take_untold();
        self.tell_error(error);
    }

    /// Refuses writes because of the error of a flush: until there is space, if that was what it
    /// lacked, or for good.
    pub(crate) fn fail_flush(&self, error: &Error) {
        self.health.note(error);
        self.health.take_untold();
        self.tell_error(error);
    }

    /// After the error of a compaction. One that found no space or memory is put off, and writes go on; but
    /// not if it was the MANIFEST that had no space. The next one moves no values.
    pub(crate) fn fail_compaction(&self, error: &Error) {
        self.put_off(true, error);
    }

    /// The same for a collection of garbage: no writer waits for one.
    pub(crate) fn fail_collection(&self, error: &Error) {
        self.put_off(false, error);
    }

    fn put_off(&self, is_compaction: bool, error: &Error) {
        if !error.kind().is_shortage() {
            return self.fail(error);
        }
        if self.health.out_of_space() {
            return self.tell_failure();
        }
        let interval = self.options.bgerror_resume_retry_interval;
        let now = self.clock.now_micros();
        self.moves_retry.plan(now, interval);
        if is_compaction {
            self.shortage
                .put_off_compactions(&self.stall, now, interval);
        }
        self.statistics
            .add(Ticker::ErrorHandlerBgRetryableIoErrorCount, 1);
        self.notify(|l| l.on_background_error(error));
        self.progress.raise();
    }

    /// True unless who moves values is put off, and no try is due.
    pub(crate) fn may_move_values(&self) -> bool {
        let due = self.moves_retry.due_in(self.clock.now_micros());
        due.is_none_or(|micros| micros == 0)
    }

    /// The same of compactions: one that is tried again because it found no space is to end first.
    pub(crate) fn compactions_may_move(&self) -> bool {
        self.shortage.compaction.due_in(0).is_none() && self.may_move_values()
    }

    /// The same for who does so: if a try is due it is this one.
    pub(crate) fn take_move(&self) -> bool {
        let interval = self.options.bgerror_resume_retry_interval;
        let now = self.clock.now_micros();
        self.moves_retry.due_in(now).is_none() || self.moves_retry.take(now, interval)
    }

    /// Compactions find space again, or none is due.
    pub(crate) fn end_put_off(&self) {
        if self.shortage.end_put_off(&self.stall) {
            // Compactions for garbage alone have waited for that, too.
            self.work.raise();
        }
    }

    /// After an error of an operation: if it is one that made the database refuse writes, tells
    /// everybody.
    pub(crate) fn tell_failure(&self) {
        if let Some(error) = self.health.take_untold() {
            self.tell_error(&error);
        }
    }

    /// Has writers refused and a resume planned, or neither, as health says by now.
    pub(crate) fn follow_health(&self) -> Followed {
        let interval = self.options.bgerror_resume_retry_interval;
        let now = self.clock.now_micros();
        self.shortage
            .follow(&self.health, &self.stall, now, interval)
    }

    fn tell_error(&self, error: &Error) {
        self.statistics.add(Ticker::ErrorHandlerBgErrorCount, 1);
        let followed = self.follow_health();
        if self.health.failed() {
            self.log
                .error(format_args!("database is read-only from here on: {error}"));
            self.stall.release();
        } else {
            self.statistics
                .add(Ticker::ErrorHandlerBgRetryableIoErrorCount, 1);
            let full = matches!(followed, Followed::Full { .. });
            let until = if full { "" } else { ", which there are again" };
            self.log.error(format_args!(
                "no writes until there is space and memory{until}: {error}"
            ));
        }
        self.notify(|l| l.on_background_error(error));
        let begins = matches!(followed, Followed::Full { begins: true });
        if begins && self.options.max_bgerror_resume_count > 0 {
            self.statistics.add(Ticker::ErrorHandlerAutoresumeCount, 1);
            self.notify(|l| l.on_error_recovery_begin(error));
        }
        self.work.raise();
        self.progress.raise();
    }

    /// Microseconds until something that found no space is to be tried again; `None` if nothing
    /// is. For who has looked for work since `looked_at`.
    pub(crate) fn next_retry_micros(&self, looked_at: u64) -> Option<u64> {
        let now = self.clock.now_micros();
        let resume = self.shortage.resume.due_in(now).filter(|_| {
            self.health.out_of_space()
                && self.shortage.resume.tries() < self.options.max_bgerror_resume_count
        });
        // Neither is looked for meanwhile.
        let is_stopped = self.health.failed() || self.health.out_of_space();
        let compaction = self.shortage.compaction.due_in(now).filter(|_| !is_stopped);
        // Who was due at the look and has not begun is told when there is a place. Who came to be due during it may have been
        // missed.
        let moves = self.moves_retry.due_in(looked_at);
        let moves = moves.filter(|&due| due > 0);
        resume.into_iter().chain(compaction).chain(moves).min()
    }

    /// Keeps logs, and holes out of files, until it is dropped.
    pub(crate) fn hold_files(&self) -> HeldFiles<'_> {
        self.logs.hold();
        // A file that was looked at when it had one name would still get holes under its second one.
        self.hole_punching.hold();
        HeldFiles(self)
    }

    /// Waits until no other thread resumes, and keeps others from it.
    ///
    /// # Errors
    /// `Busy` if this thread does; `Closed`: whoever resumes may wait for this one to end.
    pub(crate) fn take_resume_turn(&self) -> Result<ResumeTurn<'_>> {
        loop {
            let seen = self.progress.count();
            if let Some(turn) = self.try_resume_turn()? {
                return Ok(turn);
            }
            if self.is_closing() {
                return Err(Error::closed("database is closed"));
            }
            self.progress.wait_after(seen);
        }
    }

    /// The same; `None` if another thread does.
    pub(crate) fn try_resume_turn(&self) -> Result<Option<ResumeTurn<'_>>> {
        let own = thread::current().id();
        let mut resuming = self.resuming.lock();
        match *resuming {
            None => {
                *resuming = Some(own);
                Ok(Some(ResumeTurn(self)))
            }
            Some(id) if id == own => Err(Error::busy("this thread resumes the database already")),
            Some(_) => Ok(None),
        }
    }

    /// True if a memtable may have what no log has.
    pub(crate) fn has_unlogged(&self) -> bool {
        let has = |family: &Arc<ColumnFamilyData>| {
            let state = family.state();
            state.mem.has_unlogged() || state.imm.iter().any(|mem| mem.has_unlogged())
        };
        self.set.families().iter().any(has)
    }

    /// Enters a job that runs on its caller's thread: close waits for it.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`.
    pub(crate) fn enter_job(&self) -> Result<CallersJob<'_>> {
        let job = self.enter_resume()?;
        self.check_writable()?;
        Ok(job)
    }

    /// The same for one that runs while no writes are taken.
    ///
    /// # Errors
    /// `ReadOnly` if the database was opened so; `Closed`.
    pub(crate) fn enter_resume(&self) -> Result<CallersJob<'_>> {
        // First listed, then looked whether the database closes: close does it the other way.
        self.callers.lock().push(thread::current().id());
        let job = CallersJob {
            context: self,
            _lock: self.lock.lock().clone(),
        };
        self.check_open()?;
        Ok(job)
    }

    /// True if this thread runs a job of its own.
    pub(crate) fn runs_callers_job(&self) -> bool {
        let own = thread::current().id();
        self.callers.lock().contains(&own)
    }

    /// Takes a thread that ends when the database closes.
    pub(crate) fn adopt(&self, thread: Thread) {
        let mut adopted = self.adopted.lock();
        adopted.retain(|t| !t.is_finished());
        adopted.push(thread);
    }

    /// Waits until no other thread runs a job of its own.
    pub(crate) fn wait_for_callers(&self) {
        self.wait_for_listed();
        // None that was adopted is at work now. Joined without the lock: one may just end.
        let adopted = std::mem::take(&mut *self.adopted.lock());
        drop(adopted);
    }

    fn wait_for_listed(&self) {
        let own = thread::current().id();
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
        LogHolders::list(self).min_log_needed()
    }

    /// Has logs given up that nothing needs, if there are any.
    pub(crate) fn give_up_idle_logs(&self) {
        if self.logs.oldest() < self.min_log_needed() {
            self.has_idle_logs.store(true, Ordering::Relaxed);
            self.work.raise();
        }
    }

    /// The same where logs before `needed` are not needed and the MANIFEST does not say so; once for each of them, so that one who
    /// cannot say it is not asked again and again.
    pub(crate) fn note_idle_logs(&self, needed: FileNo) {
        if self.logs.oldest() < needed
            && self.idle_logs_noted.fetch_max(needed, Ordering::Relaxed) < needed
        {
            self.has_idle_logs.store(true, Ordering::Relaxed);
            self.work.raise();
        }
    }
}

/// The families that may need old logs.
///
/// Families are listed before each is asked, and one may be made in between, written to, and left
/// behind by the others. It began with the log that was current, so none before the log that was
/// current when the list was made can be given up for it, and none after.
pub(crate) struct LogHolders {
    current: FileNo,
    families: Vec<Arc<ColumnFamilyData>>,
    /// The oldest log that has a prepared write.
    prepared: Option<FileNo>,
}

impl LogHolders {
    pub(crate) fn list(context: &Context) -> Self {
        // In this order.
        let current = context.logs.current();
        Self {
            current,
            families: context.set.families(),
            prepared: context.prepared.oldest_log(),
        }
    }

    /// A log that is not newer than any that a family needs, those made meanwhile included.
    pub(crate) fn min_log_needed(&self) -> FileNo {
        self.min_log_needed_beside(None)
    }

    /// The same without what family `but` needs.
    pub(crate) fn min_log_needed_beside(&self, but: Option<u32>) -> FileNo {
        let others = self.families.iter().filter(|f| Some(f.id) != but);
        others
            .map(|f| f.state().min_log_needed())
            .chain(self.prepared)
            .fold(self.current, FileNo::min)
    }
}

mod lull;
mod stalls;
#[cfg(test)]
mod tests;
