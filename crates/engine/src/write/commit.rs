//! The commit pipeline: queue, leader, group, sequence numbers, publication in order.
//!
//! ```text
//! writer:   wait for families that hold writers back                               (stall.rs)
//!           no leader?  -> lead
//!           else queue up and sleep until told: lead | insert your own batch | done
//! leader:   1 seal full memtables                                                 (switch.rs)
//!           2 take the writers that wait and fit: the group
//!           3 have memory for all of it in the memtables, number the batches, append one WAL record, one sync if the leader asked for it
//!           4 allocated := last number; take a place in the publication order
//!           5 hand the lead to the next writer that waits
//!           6 insert into memtables, alone or with the group's members in parallel
//!           7 publish when every group before has; wake the members
//! ```
//! So while one group inserts, the next one already writes the log.
//!
//! Invariants: (1) one leader at a time between 1 and 5; numbers, log records and places in the
//! publication order are all taken there, so they agree; (2) a member that asked for a sync is
//! only in a group whose leader syncs; (3) `visible` reaches a group's last number only when all
//! its inserts, and those of every group before, are done; (4) no lock is held over I/O: leading
//! is a flag in the queue, and the log's own lock is the leader's alone (the first sync of a log waits for who else syncs the
//! directory); (5) after a failed
//! append or sync no number is allocated and no write is taken: for good, or, where there was no
//! space, until `resume.rs` has cut off what the group left in the log; (6) a panic in code of the caller's, which is a comparator or a memtable here, is an error of the write, or goes on
//! from [`WritePath::exclusive`]; either way the lead is handed over, the group leaves its place, its members are
//! answered, and the database is read-only.
//!
//! What failed in others: publishing per writer out of order (readers saw holes); holding the
//! queue's lock while the log is synced (writers could not even queue).
//!
//! `Hot path`: a lone writer takes the queue's lock twice, uncontended, and allocates nothing.
//! Writers publish without a lock (order.rs).

use orogen_base::protection::check_bytes_per_key;
use orogen_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use orogen_base::sync::thread::{self, Thread};
use orogen_base::sync::{self, Mistake};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::perf::PerfCounter;
use orogen_base::sync::ArcSwap;
use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind, Result, SeqNo};
use orogen_env::{PerfTimer, threads};

use crate::batch::{WriteBatch, header};
use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::events::StallInfo;
use crate::options::WriteOptions;
use crate::write::apply::{MemTables, Need};
use crate::write::order::PublicationOrder;

/// A group takes no more members beyond so many bytes.
const GROUP_BYTES_MAX: usize = 1 << 20;
/// A small leader's group stays small, so that its latency does.
const SMALL_BYTES: usize = 128 << 10;
/// Groups of fewer operations are inserted by their leader alone: waking a member costs more
/// than its inserts.
const PARALLEL_OPERATIONS_MIN: u32 = 64;
/// A synced group waits so long at most for writers that the last one has just let go: they come
/// back at once, and a sync costs more.
const GATHER_MICROS: u64 = 50;
/// And lets others run so often at most.
const GATHER_YIELDS_MAX: usize = sync::spins(200);
/// Looks at a waiter's state before it goes to sleep.
const SPINS: usize = sync::spins(100);

/// Batches of so many bytes may be too large for memtables.
const LARGE: usize = 16 << 20;

/// Writes come in here.
pub(crate) struct WritePath {
    pub(crate) context: Arc<Context>,
    pub(crate) memtables: ArcSwap<MemTables>,
    /// Bytes of logs beyond which the families that pin the oldest are sealed.
    pub(crate) wal_bytes_max: AtomicU64,
    /// The oldest and the current log, folded, for which all that pins the oldest is being
    /// flushed. The leader's alone.
    pub(crate) freeing: AtomicU64,
    /// Bytes of logs at which this is looked at again all the same.
    pub(crate) freeing_again_at: AtomicU64,
    /// Bytes that groups may still bring before all memtables are asked for theirs: far less than would fill `db_write_buffer_size`.
    /// The leader's alone.
    pub(crate) db_bytes_left: AtomicU64,
    queue: Mutex<Queue>,
    /// Stalls that listeners are told of when the lead is handed on: they may write.
    news: Mutex<Vec<StallInfo>>,
    has_news: AtomicBool,
    order: PublicationOrder,
    /// Writers that were there when the last synced group was on disk, its own included.
    synced_writers: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    leading: bool,
    waiting: VecDeque<Arc<Waiter>>,
}

const WAITING: u8 = 0;
const LEAD: u8 = 1;
const INSERT: u8 = 2;
const DONE: u8 = 3;

struct Waiter {
    state: AtomicU8,
    thread: Thread,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    batch: WriteBatch,
    options: WriteOptions,
    /// Wants to lead alone, without a batch.
    exclusive: bool,
    task: Option<InsertTask>,
    result: Option<Result<()>>,
}

struct InsertTask {
    memtables: Arc<MemTables>,
    remaining: Arc<AtomicUsize>,
    failure: Arc<Mutex<Option<Error>>>,
    leader: Thread,
}

impl Waiter {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU8::new(WAITING),
            thread: thread::current(),
            slot: Mutex::default(),
        })
    }

    fn tell(&self, state: u8) {
        self.state.store(state, Ordering::Release);
        self.thread.unpark();
    }

    fn wait_for_change(&self, from: u8) -> u8 {
        for _ in 0..SPINS {
            let state = self.state.load(Ordering::Acquire);
            if state != from {
                return state;
            }
            std::hint::spin_loop();
        }
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state != from {
                return state;
            }
            thread::park();
        }
    }
}

impl WritePath {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let memtables = MemTables::of(context.set.families());
        let path = Self {
            context,
            memtables: ArcSwap::from_pointee(memtables),
            wal_bytes_max: AtomicU64::new(u64::MAX),
            freeing: AtomicU64::new(0),
            freeing_again_at: AtomicU64::new(0),
            db_bytes_left: AtomicU64::new(0),
            queue: Mutex::default(),
            news: Mutex::default(),
            has_news: AtomicBool::new(false),
            order: PublicationOrder::default(),
            synced_writers: AtomicUsize::new(0),
        };
        path.refresh_memtables();
        path
    }

    /// Writes a batch. It comes back as it was but for its sequence number.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch that cannot be written, `Busy` where the write would wait
    /// and may not, `ReadOnly`, `Closed`, `Io`, `NoSpace`: nothing was written, or, after an
    /// error of the log, it is not known and the database is read-only; `Aborted` if a comparator or a memtable panicked: the same.
    pub(crate) fn write(&self, options: WriteOptions, batch: &mut WriteBatch) -> Result<()> {
        self.context.check_writable()?;
        check_bytes_per_key("protection_bytes_per_key", options.protection_bytes_per_key)?;
        if options.protection_bytes_per_key > 0 {
            batch.set_protected(true);
        }
        batch.check_whole()?;
        batch.verify()?;
        if options.sync && options.disable_wal {
            return Err(Error::invalid_argument(
                "a write without WAL cannot be synced",
            ));
        }
        if batch.needs_check() {
            self.memtables.load().check(batch)?;
        }
        if batch.inserted().is_some_and(|b| b.size_bytes() >= LARGE) {
            self.memtables.load().check_size(batch)?;
        }
        loop {
            if self.context.stall.is_stalled() {
                let _timer = PerfTimer::start(PerfCounter::WriteDelayTime);
                self.admit(options, batch)?;
                self.context.check_writable()?;
            }
            if let Some(budget) = &self.context.options.memory_budget
                && budget.is_tight()
            {
                let _timer = PerfTimer::start(PerfCounter::WriteDelayTime);
                self.wait_for_memory(options, budget)?;
            }
            if let Some(result) = self.write_admitted(options, batch) {
                return result;
            }
        }
    }

    /// Writes a batch that was admitted; `None` if its families have been stopped since.
    fn write_admitted(&self, options: WriteOptions, batch: &mut WriteBatch) -> Option<Result<()>> {
        let waiter = {
            let mut queue = self.queue.lock();
            if queue.leading {
                let waiter = Waiter::new();
                {
                    let mut slot = waiter.slot.lock();
                    slot.batch = std::mem::take(batch);
                    slot.options = options;
                }
                queue.waiting.push_back(waiter.clone());
                Some(waiter)
            } else {
                queue.leading = true;
                None
            }
        };
        let Some(waiter) = waiter else {
            return self.lead(options, batch);
        };
        let mut state = WAITING;
        loop {
            let timer = PerfTimer::start(PerfCounter::WriteThreadWaitNanos);
            state = waiter.wait_for_change(state);
            drop(timer);
            match state {
                LEAD => {
                    *batch = std::mem::take(&mut waiter.slot.lock().batch);
                    return self.lead(options, batch);
                }
                INSERT => Self::insert_own(&waiter),
                _ => {
                    let mut slot = waiter.slot.lock();
                    *batch = std::mem::take(&mut slot.batch);
                    self.context.statistics.add(Ticker::WriteDoneByOther, 1);
                    let result = slot.result.take();
                    return Some(result.expect("a leader answers every member"));
                }
            }
        }
    }

    /// Runs `body` as the leader, with every earlier write in its memtable and published.
    pub(crate) fn exclusive<R>(&self, body: impl FnOnce() -> R) -> R {
        let waiter = {
            let mut queue = self.queue.lock();
            if queue.leading {
                let waiter = Waiter::new();
                waiter.slot.lock().exclusive = true;
                queue.waiting.push_back(waiter.clone());
                Some(waiter)
            } else {
                queue.leading = true;
                None
            }
        };
        if let Some(waiter) = waiter {
            waiter.wait_for_change(WAITING);
        }
        let led = catch_unwind(AssertUnwindSafe(|| {
            self.drain();
            body()
        }));
        if led.is_err() {
            self.context.health.fail(&panicked());
        }
        self.hand_over();
        self.tell_news();
        led.unwrap_or_else(|panic| {
            self.context.tell_failure();
            resume_unwind(panic)
        })
    }

    /// Looks at a family's debts in the leader's place.
    pub(crate) fn note_stall(&self, family: &ColumnFamilyData) {
        if let Some(info) = self.context.judge_debts(family) {
            self.news.lock().push(info);
            self.has_news.store(true, Ordering::Relaxed);
        }
    }

    /// Tells what was noted. The caller neither leads nor has a group that is not published.
    fn tell_news(&self) {
        if self.has_news.load(Ordering::Relaxed) && self.has_news.swap(false, Ordering::Relaxed) {
            let news = std::mem::take(&mut *self.news.lock());
            for info in news {
                self.context.tell_stall(&info);
            }
        }
    }

    /// Waits until every group that took a number is published. Only the leader calls it.
    pub(crate) fn drain(&self) {
        self.order.wait_until_empty(&self.context.sequence);
    }

    /// True if a batch names a family whose writers are stopped.
    fn is_stopped(&self, batch: &WriteBatch) -> bool {
        let stall = &self.context.stall;
        stall.is_stalled()
            && batch
                .inserted()
                .is_some_and(|b| stall.stops(&b.column_families()))
    }

    fn lead(&self, options: WriteOptions, batch: &mut WriteBatch) -> Option<Result<()>> {
        if self.is_stopped(batch) {
            // Not here, where it would be in the way of others.
            self.hand_over();
            return None;
        }
        let result = self.lead_group(options, batch);
        self.tell_news();
        if result.is_err() {
            self.context.tell_failure();
        }
        Some(result)
    }

    fn lead_group(&self, mut options: WriteOptions, batch: &mut WriteBatch) -> Result<()> {
        let context = &*self.context;
        let timer = PerfTimer::start(PerfCounter::WriteSchedulingFlushesCompactionsTime);
        let room = catch_unwind(AssertUnwindSafe(|| self.make_room()));
        drop(timer);
        let room = room.unwrap_or_else(|_| {
            let panicked = panicked();
            context.health.fail(&panicked);
            Err(panicked)
        });
        if let Err(e) = room {
            self.hand_over();
            return Err(e);
        }
        options.sync |= self.frees_a_log(batch);
        if options.sync {
            self.gather();
        }
        let members = self.take_members(options, batch.bytes_moved());
        let first = context.sequence.allocated() + 1;
        // Memory first: what is in the log must come into the memtables.
        let mut need = Need::default();
        need.add(batch);
        for member in &members {
            need.add(&member.slot.lock().batch);
        }
        if context.options.db_write_buffer_size > 0 {
            let left = self.db_bytes_left.load(Ordering::Relaxed);
            let left = left.saturating_sub(need.memory_bytes());
            self.db_bytes_left.store(left, Ordering::Relaxed);
        }
        let memtables = self.memtables.load_full();
        // Refused for want of memory, or because it is too large, the log is as it was.
        let mut is_refused = true;
        let written = memtables.promise(&need).and_then(|()| {
            is_refused = false;
            if options.disable_wal {
                memtables.note_unlogged(&need);
            }
            self.write_log(options, batch, &members, first)
                .inspect_err(|_| memtables.release(&need))
        });
        match written {
            Ok(end) => {
                let result = self.insert_and_publish(&memtables, batch, &members, first..end);
                memtables.release(&need);
                result
            }
            Err(e) => {
                // Before another leads; listeners are told when this one no longer does. Where it
                // was memory the log is as it was.
                if !is_refused && e.kind() != ErrorKind::NoMemory {
                    context.health.note(&e);
                }
                self.hand_over();
                answer(&members, &Err(e.clone()));
                Err(e)
            }
        }
    }

    /// True if a batch writes anew what an older log has, which may go as soon as this is logged. So
    /// that has to be synced. Only the leader calls it.
    #[inline]
    fn frees_a_log(&self, batch: &WriteBatch) -> bool {
        !batch.is_plain() && batch.repeats(self.context.logs.current()).is_some()
    }

    /// Before a sync: waits a little until as many writers are here as there were at the last.
    fn gather(&self) {
        let expected = self.synced_writers.load(Ordering::Relaxed);
        if expected < 2 {
            return;
        }
        let clock = &*self.context.clock;
        let start = clock.now_micros();
        // Counted too: a test's clock may stand still.
        for _ in 0..GATHER_YIELDS_MAX {
            let all_here = self.queue.lock().waiting.len() + 1 >= expected;
            if all_here || clock.now_micros().saturating_sub(start) >= GATHER_MICROS {
                return;
            }
            threads::yield_now();
        }
    }

    /// Step 2: takes the writers that wait and fit.
    fn take_members(&self, options: WriteOptions, bytes: usize) -> Vec<Arc<Waiter>> {
        let max = if bytes <= SMALL_BYTES {
            bytes + SMALL_BYTES
        } else {
            GROUP_BYTES_MAX
        };
        let mut total = bytes;
        let mut members = Vec::new();
        let mut queue = self.queue.lock();
        while let Some(next) = queue.waiting.front() {
            let slot = next.slot.lock();
            total += slot.batch.bytes_moved();
            let syncs = slot.options.sync || self.frees_a_log(&slot.batch);
            let fits = !slot.exclusive
                && total <= max
                && slot.options.disable_wal == options.disable_wal
                && (options.sync || !syncs)
                && !self.is_stopped(&slot.batch);
            drop(slot);
            if !fits {
                break;
            }
            members.extend(queue.waiting.pop_front());
        }
        members
    }

    /// Steps 3 and 4 up to `allocated`: returns the number after the group's last.
    fn write_log(
        &self,
        options: WriteOptions,
        batch: &mut WriteBatch,
        members: &[Arc<Waiter>],
        first: SeqNo,
    ) -> Result<SeqNo> {
        let context = &*self.context;
        let mut end = first;
        batch.set_seqno(end);
        end += batch.numbers();
        let mut slots: Vec<_> = members.iter().map(|m| m.slot.lock()).collect();
        for slot in &mut slots {
            slot.batch.set_seqno(end);
            end += slot.batch.numbers();
        }
        if !options.disable_wal {
            let _timer = PerfTimer::start(PerfCounter::WriteWalTime);
            if slots.is_empty() && batch.is_plain() {
                context.logs.append(&[batch.as_bytes()], options.sync)?;
            } else {
                let others = slots.iter().map(|s| &s.batch);
                let all = std::iter::once(&*batch).chain(others);
                append_together(context, all, first, options.sync)?;
            }
        }
        let others = slots.iter().map(|s| s.batch.size_bytes());
        let bytes = batch.size_bytes() + others.sum::<usize>();
        drop(slots);
        if options.sync {
            let waiting = self.queue.lock().waiting.len();
            self.synced_writers
                .store(1 + members.len() + waiting, Ordering::Relaxed);
        }
        if let Some(budget) = &context.options.memory_budget {
            budget.wrote(bytes as u64);
        }
        let statistics = &context.statistics;
        statistics.add(Ticker::WriteDoneBySelf, 1);
        statistics.add(Ticker::NumberKeysWritten, end - first);
        statistics.add(Ticker::BytesWritten, bytes as u64);
        statistics.record(HistogramKind::BytesPerWrite, bytes as u64);
        if !options.disable_wal {
            statistics.add(Ticker::WriteWithWal, 1 + members.len() as u64);
        }
        Ok(end)
    }

    /// Steps 4 to 7.
    fn insert_and_publish(
        &self,
        memtables: &Arc<MemTables>,
        batch: &WriteBatch,
        members: &[Arc<Waiter>],
        numbers: std::ops::Range<SeqNo>,
    ) -> Result<()> {
        let context = &*self.context;
        let (first, end) = (numbers.start, numbers.end);
        context.sequence.set_allocated(end - 1);
        let place = self.order.enter(end - 1);
        if sync::makes(Mistake::PublishBeforeInsert) {
            context.sequence.raise_visible(end - 1);
        }
        let concurrent = context.options.allow_concurrent_memtable_write;
        if concurrent {
            self.hand_over();
        }
        let parallel = concurrent
            && !members.is_empty()
            && end - first >= SeqNo::from(PARALLEL_OPERATIONS_MIN);
        let inserted = if parallel {
            insert_in_parallel(memtables, batch, members)
        } else {
            insert_all(memtables, batch, members)
        };
        if let Err(e) = &inserted {
            // Listeners are told once this group is out of the way of those who wait for it.
            context.health.fail(e);
        }
        self.order.leave(&place, &context.sequence);
        if !concurrent {
            self.hand_over();
        }
        answer(members, &inserted);
        inserted
    }

    fn insert_own(waiter: &Waiter) {
        let mut slot = waiter.slot.lock();
        let Some(task) = slot.task.take() else { return };
        if let Err(e) = insert_batch(&task.memtables, &slot.batch) {
            task.failure.lock().get_or_insert(e);
        }
        drop(slot);
        if task.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            task.leader.unpark();
        }
    }

    /// Step 5: the next writer leads, or nobody does.
    fn hand_over(&self) {
        let mut queue = self.queue.lock();
        match queue.waiting.pop_front() {
            Some(next) => {
                drop(queue);
                next.tell(LEAD);
            }
            None => queue.leading = false,
        }
    }
}

/// Appends one record of several batches, or of one that is not plain.
fn append_together<'a>(
    context: &Context,
    batches: impl Iterator<Item = &'a WriteBatch>,
    first: SeqNo,
    sync: bool,
) -> Result<()> {
    let current = context.logs.current();
    let mut parts: Vec<&[u8]> = vec![&[]];
    let mut count = 0;
    for batch in batches {
        batch.note_log(current);
        if let Some((unprepare, section)) = batch.repeats(current) {
            count += section.count();
            parts.extend([unprepare, section.operations()]);
        }
        count += batch.count();
        parts.push(batch.operations());
    }
    let header = header(first, count);
    parts[0] = &header;
    context.logs.append(&parts, sync)
}

/// Looks once more whether the batch is what its writer gave: it waited meanwhile, and was logged.
fn insert_batch(memtables: &MemTables, batch: &WriteBatch) -> Result<()> {
    let _timer = PerfTimer::start(PerfCounter::WriteMemtableTime);
    batch.verify()?;
    let Some(inserted) = batch.inserted() else {
        return Ok(());
    };
    if !batch.is_plain() {
        inserted.verify()?;
    }
    let apply = || memtables.apply(inserted.iter(), batch.seqno(), |_| true);
    // Of a comparator say: nobody would be told, and those behind would wait for ever.
    match catch_unwind(AssertUnwindSafe(apply)) {
        Ok(applied) => applied.map(|_| ()),
        Err(_) => Err(panicked()),
    }
}

/// What the caller's code does within a write must not leave others waiting for it.
#[cold]
fn panicked() -> Error {
    let what = "a write panicked: in a comparator, a memtable or a listener of the caller's";
    Error::new(ErrorKind::Aborted, what)
}

fn insert_all(memtables: &MemTables, batch: &WriteBatch, members: &[Arc<Waiter>]) -> Result<()> {
    insert_batch(memtables, batch)?;
    for member in members {
        insert_batch(memtables, &member.slot.lock().batch)?;
    }
    Ok(())
}

fn insert_in_parallel(
    memtables: &Arc<MemTables>,
    batch: &WriteBatch,
    members: &[Arc<Waiter>],
) -> Result<()> {
    let remaining = Arc::new(AtomicUsize::new(members.len()));
    let failure = Arc::new(Mutex::new(None));
    for member in members {
        member.slot.lock().task = Some(InsertTask {
            memtables: memtables.clone(),
            remaining: remaining.clone(),
            failure: failure.clone(),
            leader: thread::current(),
        });
        member.tell(INSERT);
    }
    let own = insert_batch(memtables, batch);
    while remaining.load(Ordering::Acquire) > 0 {
        thread::park();
    }
    own?;
    failure.lock().take().map_or(Ok(()), Err)
}

fn answer(members: &[Arc<Waiter>], result: &Result<()>) {
    for member in members {
        member.slot.lock().result = Some(result.clone());
        member.tell(DONE);
    }
}
