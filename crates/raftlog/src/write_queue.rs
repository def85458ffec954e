//! Who writes: one thread at a time, for all that wait.
//!
//! A thread that finds nobody leading leads; others leave their request and wait. The leader takes
//! the requests that are there, checks each against the groups as the earlier ones of them will
//! leave them, appends those that pass with one call (one after the other if there is no space for all), syncs once if any of them asks, and
//! applies them in order. Then it hands the lead to the first that came meanwhile, and tells the
//! others what became of theirs.
//!
//! Threads that sync one batch after another would fall into two halves, each of which waits for the
//! other's sync and then for its own. So a leader that syncs waits for as many as there were the last
//! time, for at most half of what a sync takes.
//!
//! 1. A request that is refused, or whose append or sync fails, changes nothing in memory.
//! 2. Nothing is applied that is not in the file.
//! 3. Every request is answered, by a leader that panics too, and gets its items back if it is in no file or memory does not have it; after that
//!    nothing is written any more.
//!
//! Locks: the leader's before the queue's before a ticket's; no file is touched under the last two.

mod ticket;

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;
use std::{iter, mem};

use orogen_base::sync::atomic::{AtomicU64, Ordering};
use orogen_base::sync::{Condvar, Mistake, Mutex, makes, thread};
use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_env::{Clock as _, FileSystem, Stopwatch, SystemClock};

use crate::dirs::Dirs;
use crate::events::FileBlockHandle;
use crate::files::{Appender, LogFile};
use crate::format::{RECORD_HEADER_LEN, Record, sign};
use crate::item::Item;
use crate::memtable::{Block, Memtables, Span};
use crate::metrics::{Meters, Sample};
use crate::names::FileId;
use crate::perf::{self, PerfContext};
use ticket::{Bed, LOOKS, Rooms, Sleepers, State, Ticket};

/// A batch to write, or without a record only a sync.
#[derive(Default)]
pub(crate) struct Request {
    pub(crate) record: Option<Record>,
    pub(crate) items: Vec<Item>,
    pub(crate) sync: bool,
    /// Whether its thread wants to know how long things take.
    pub(crate) is_timed: bool,
}

impl Request {
    fn len(&self) -> usize {
        self.record.as_ref().map_or(0, |record| record.bytes.len())
    }
}

/// What became of a request: nothing left, or the error and its items again.
type Outcome = Result<(), (Error, Vec<Item>)>;

/// What a group spent, if one of it wants to know.
type Spent = Option<Box<PerfContext>>;

#[cold]
pub(crate) fn panicked() -> Error {
    Error::read_only("a thread panicked while it wrote: open the engine again")
}

/// A request and the thread that waits for what becomes of it, which is told in any case.
struct Waiter {
    /// Until it was told. The leader itself has none.
    ticket: Option<Arc<Ticket>>,
    request: Request,
    refused: Option<Error>,
    /// Where its record lies behind the beginning of what was appended with it.
    at: u64,
    /// Its record, once it was appended.
    block: Option<Block>,
    /// Memory has it.
    is_applied: bool,
}

impl Waiter {
    fn new(ticket: Option<Arc<Ticket>>, request: Request) -> Self {
        Self {
            ticket,
            request,
            refused: None,
            at: 0,
            block: None,
            is_applied: false,
        }
    }

    /// Its record was appended, with what begins at `start` of a file.
    fn lies(&mut self, file: FileId, start: u64) {
        self.block = self.request.record.as_ref().map(|record| Block {
            file,
            offset: start + self.at + RECORD_HEADER_LEN as u64,
            len: record.header.block_len,
            compression: record.header.compression,
        });
    }

    fn outcome(&mut self) -> Outcome {
        match self.refused.take() {
            None => Ok(()),
            Some(e) => Err((e, mem::take(&mut self.request.items))),
        }
    }

    fn tell(&mut self, state: State) {
        if let Some(ticket) = self.ticket.take() {
            ticket.set(state);
            ticket.wake();
        }
    }

    /// Has its own thread lead.
    fn lead(mut self) {
        let request = mem::take(&mut self.request);
        self.tell(State::Leads(request));
    }
}

impl Drop for Waiter {
    /// Who wrote it has panicked if nobody was told yet.
    fn drop(&mut self) {
        if self.ticket.is_some() {
            if !self.is_applied {
                self.refused.get_or_insert_with(panicked);
            }
            let outcome = self.outcome();
            self.tell(State::Done(outcome, None));
        }
    }
}

#[derive(Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    has_leader: bool,
    /// A leader has panicked.
    is_broken: bool,
    /// Requests for a sync that a leader who syncs waits for, its own among them.
    expected: usize,
    /// Those that wait for a sync.
    syncs: usize,
    /// Bytes of those that wait.
    bytes: usize,
    /// Where whoever comes now sleeps.
    room: usize,
}

impl Queue {
    /// For who comes next.
    fn bed(&self, rooms: &Rooms) -> Bed {
        let place = self.waiters.len() as u32 % u32::BITS;
        Bed::In {
            rooms: Arc::clone(rooms),
            room: self.room,
            bit: NonZeroU32::new(1 << place).unwrap_or(NonZeroU32::MIN),
        }
    }

    fn push(&mut self, waiter: Waiter) {
        self.bytes += waiter.request.len();
        self.syncs += usize::from(waiter.request.sync);
        self.waiters.push_back(waiter);
    }

    fn pop(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.bytes -= waiter.request.len();
        self.syncs -= usize::from(waiter.request.sync);
        Some(waiter)
    }
}

/// Those that are written together, in their order.
struct Group {
    own: Waiter,
    others: Vec<Waiter>,
}

impl Group {
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Waiter> {
        iter::once(&mut self.own).chain(&mut self.others)
    }

    /// Requests for a sync.
    fn syncs(&mut self) -> usize {
        self.iter_mut().filter(|w| w.request.sync).count()
    }

    /// Those that were not refused.
    fn accepted(&mut self) -> impl Iterator<Item = &mut Waiter> {
        self.iter_mut().filter(|w| w.refused.is_none())
    }
}

/// What only a leader uses; buffers are kept from one to the next.
struct Leader {
    appender: Appender,
    together: Vec<u8>,
    spans: Spans,
}

/// A leader that syncs waits for no more than so many bytes of others: with these a sync takes as long as the disk does with the bytes, and
/// the others can get theirs ready meanwhile.
const GATHERED_BYTES_MAX: usize = 320 << 10;

/// Bytes of a group behind which no further request is taken into it.
const GROUP_BYTES_MAX: usize = 4 << 20;

/// The queue before the append queue's newest file.
pub(crate) struct WriteQueue {
    queue: Mutex<Queue>,
    leader: Mutex<Leader>,
    rooms: Rooms,
    /// What a sync takes, in microseconds: a moving average.
    sync_micros: AtomicU64,
    meters: Arc<Meters>,
}

impl WriteQueue {
    pub(crate) fn new(appender: Appender) -> Self {
        Self {
            queue: Mutex::default(),
            rooms: Arc::default(),
            meters: Arc::clone(appender.meters()),
            leader: Mutex::new(Leader {
                appender,
                together: Vec::new(),
                spans: Spans::default(),
            }),
            sync_micros: AtomicU64::new(0),
        }
    }

    /// Makes all that was written before survive a power loss.
    pub(crate) fn sync(&self, memtables: &Memtables) -> Result<()> {
        let request = Request {
            record: None,
            items: Vec::new(),
            sync: true,
            is_timed: false,
        };
        self.submit(memtables, request, None).map_err(|(e, _)| e)
    }

    /// As [`Self::sync`], of `file`, the newest or one that was, and those who write do not wait meanwhile. What was applied
    /// before is synced.
    pub(crate) fn sync_beside(
        &self,
        fs: &dyn FileSystem,
        dirs: &Dirs,
        file: &LogFile,
    ) -> Result<()> {
        // Of the calls alone: whoever has the lock below may take its time.
        let watch = dirs.watch(|| file.dir());
        let mut handle = fs.open_append(file.reader.path())?;
        let synced = handle.sync();
        drop(watch);
        // The system tells of bytes that it has dropped only once, perhaps to a leader, who has this lock until it is known.
        let appender = &mut self.leader.lock().appender;
        // Only who has it counts.
        self.meters.syncs.increase(file.id.queue, 1);
        match synced {
            Ok(()) => appender.check(),
            Err(e) => {
                appender.fail(&e);
                Err(e)
            }
        }
    }

    /// Nothing is written any more: somebody has panicked.
    pub(crate) fn break_off(&self) {
        self.queue.lock().is_broken = true;
    }

    /// # Errors
    /// `ReadOnly` after a panic.
    pub(crate) fn check(&self) -> Result<()> {
        match self.queue.lock().is_broken {
            true => Err(panicked()),
            false => Ok(()),
        }
    }

    /// Goes on to the next file, unless the newest is empty yet.
    pub(crate) fn start_file(&self) -> Result<()> {
        self.leader.lock().appender.start_file()
    }

    /// Syncs and ends the newest file; nobody writes any more.
    pub(crate) fn close(&self, memtables: &Memtables) -> Result<()> {
        if self.leader.lock().appender.is_closed {
            return Ok(());
        }
        let synced = self.sync(memtables);
        let appender = &mut self.leader.lock().appender;
        let closed = synced.and_then(|()| appender.close());
        // In any case: who has the directory next is not to be disturbed.
        closed.inspect_err(|e| {
            appender.fail(e);
            appender.is_closed = true;
        })
    }

    /// Writes, with others or alone, and returns when that is done. `sample` tells how long the write takes.
    pub(crate) fn submit(
        &self,
        memtables: &Memtables,
        mut request: Request,
        sample: Option<&Sample>,
    ) -> Outcome {
        let watch = perf::start();
        request.is_timed = watch.is_some() || sample.is_some();
        let (outcome, spent) = self.pass(memtables, request);
        if let (Some(sample), Some(spent), Ok(())) = (sample, &spent, &outcome) {
            self.meters.wrote(sample, spent);
        }
        if watch.is_some()
            && let Some(mut spent) = spent
        {
            spent.write_wait_duration = perf::elapsed(watch).saturating_sub(spent.of_group());
            perf::add(&spent);
        }
        outcome
    }

    fn pass(&self, memtables: &Memtables, request: Request) -> (Outcome, Spent) {
        let looks = if request.sync { 0 } else { LOOKS };
        let ticket = {
            let mut queue = self.queue.lock();
            if queue.is_broken {
                return (Err((panicked(), request.items)), None);
            }
            if !mem::replace(&mut queue.has_leader, true) {
                drop(queue);
                return self.lead(memtables, request);
            }
            let bed = match request.sync {
                true => queue.bed(&self.rooms),
                false => Bed::Alone(Condvar::new()),
            };
            let ticket = Arc::new(Ticket::new(bed));
            queue.push(Waiter::new(Some(Arc::clone(&ticket)), request));
            ticket
        };
        match ticket.wait(looks) {
            State::Done(outcome, spent) => (outcome, spent),
            State::Leads(request) => self.lead(memtables, request),
            State::Waiting => unreachable!("nobody waits for that"),
        }
    }

    fn lead(&self, memtables: &Memtables, own: Request) -> (Outcome, Spent) {
        let lead = Lead(self);
        let waits = own.sync;
        if waits {
            self.gather();
        }
        let mut leader = self.leader.lock();
        let mut bytes = own.len();
        let mut group = Group {
            own: Waiter::new(None, own),
            others: Vec::new(),
        };
        {
            let mut queue = self.queue.lock();
            // Some may be left for the next group, who are woken where they are.
            queue.room ^= 1;
            while bytes < GROUP_BYTES_MAX
                && let Some(waiter) = queue.pop()
            {
                bytes += waiter.request.len();
                group.others.push(waiter);
            }
        }
        let spent = self.commit(memtables, &mut leader, &mut group);
        drop(leader);
        let syncs = group.syncs();
        // Who does not sync waits for nobody, and its group says little of those who do.
        lead.hand_over(if waits { syncs } else { 0 });
        let mut sleepers = Sleepers::of(&self.rooms);
        // Without a sync nobody sleeps in a room.
        let all_alone = syncs == 0;
        for waiter in group.others.iter_mut().rev() {
            let outcome = waiter.outcome();
            let spent = spent.as_ref().filter(|_| waiter.request.is_timed);
            let spent = spent.cloned();
            if let Some(ticket) = waiter.ticket.take() {
                ticket.set(State::Done(outcome, spent));
                match all_alone {
                    true => ticket.wake(),
                    false => sleepers.add(ticket),
                }
            }
        }
        // Before the group's memory is given back.
        drop(sleepers);
        (group.own.outcome(), spent)
    }

    /// Waits for those who synced the last time.
    fn gather(&self) {
        let mut end = None;
        loop {
            {
                let queue = self.queue.lock();
                let is_complete = queue.syncs + 1 >= queue.expected;
                if is_complete || queue.bytes >= GATHERED_BYTES_MAX {
                    return;
                }
            }
            let now = SystemClock.now_micros();
            let most = || now + self.sync_micros.load(Ordering::Relaxed) / 2;
            if now >= *end.get_or_insert_with(most) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Writes a group and applies it. Requests that were refused have the error.
    fn commit(&self, memtables: &Memtables, leader: &mut Leader, group: &mut Group) -> Spent {
        let syncs = group.iter_mut().any(|w| w.request.sync);
        let weight = self.meters.weight_of_group(syncs);
        let is_timed = weight.is_some() || group.iter_mut().any(|w| w.request.is_timed);
        let mut spent = is_timed.then(Box::<PerfContext>::default);
        let watch = || spent.is_some().then(Stopwatch::start);
        leader.spans.check(memtables, group);
        // Who is refused gets none.
        let syncs = group.accepted().any(|w| w.request.sync);
        let (mut rotated, mut synced) = (Duration::ZERO, Duration::ZERO);
        let writing = watch();
        let written = leader.append(group, syncs, writing, &mut rotated);
        let wrote = perf::elapsed(writing).saturating_sub(rotated);
        let done = written.and_then(|()| {
            // Some may have been refused meanwhile.
            if syncs && group.accepted().any(|w| w.request.sync) {
                let syncing = watch();
                self.sync_file(&mut leader.appender)?;
                synced = perf::elapsed(syncing);
            }
            Ok(())
        });
        let applying = watch();
        let mut has_records = false;
        match done {
            Ok(()) => {
                let listeners = leader.appender.listeners();
                for waiter in group.accepted() {
                    let Some(block) = waiter.block else {
                        continue;
                    };
                    has_records = true;
                    self.meters.record(waiter.request.len());
                    if makes(Mistake::AnswerBeforeApply) {
                        waiter.tell(State::Done(Ok(()), None));
                    }
                    memtables.apply(waiter.request.items.drain(..), block);
                    waiter.is_applied = true;
                    let file = block.file;
                    listeners.iter().for_each(|l| l.post_apply_memtables(file));
                }
            }
            Err(e) => self.refuse(&e, &mut leader.appender, group),
        }
        if let Some(spent) = &mut spent {
            spent.log_write_duration = wrote;
            spent.log_rotate_duration = rotated;
            spent.log_sync_duration = synced;
            spent.apply_duration = perf::elapsed(applying);
            if let Some(weight) = weight.filter(|_| has_records) {
                self.meters.spent(spent, weight);
            }
        }
        if has_records {
            self.meters.led();
        }
        spent
    }

    /// What was to be written has failed, and nothing of it is in the file. Who only waits for a sync of what was written before
    /// gets it.
    fn refuse(&self, e: &Error, appender: &mut Appender, group: &mut Group) {
        let mut synced = None;
        for waiter in group.accepted() {
            let refused = match (&waiter.request.record, appender.check()) {
                (None, Ok(())) => {
                    let synced = synced.get_or_insert_with(|| self.sync_file(appender));
                    synced.as_ref().err()
                }
                _ => Some(e),
            };
            waiter.refused = refused.cloned();
        }
    }

    fn sync_file(&self, appender: &mut Appender) -> Result<()> {
        let before = SystemClock.now_micros();
        appender.sync()?;
        let took = SystemClock.now_micros().saturating_sub(before);
        let mean = self.sync_micros.load(Ordering::Relaxed);
        let mean = (mean * 7 + took) / 8;
        self.sync_micros.store(mean, Ordering::Relaxed);
        Ok(())
    }
}

/// Who has it leads, and hands the lead over at the end, however that comes.
struct Lead<'q>(&'q WriteQueue);

impl Lead<'_> {
    /// Lets the next one lead. `synced` requests had a sync together, or 0.
    fn hand_over(self, synced: usize) {
        let mut queue = self.0.queue.lock();
        if synced > 0 {
            queue.expected = synced + queue.syncs;
        }
        queue.has_leader = !queue.waiters.is_empty();
        let next = if makes(Mistake::KeepTheLead) {
            None
        } else {
            queue.pop()
        };
        drop(queue);
        if let Some(next) = next {
            next.lead();
        }
        mem::forget(self);
    }
}

impl Drop for Lead<'_> {
    /// It panicked: what is in the file is not known any more.
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.is_broken = true;
        queue.has_leader = false;
        let waiters = mem::take(&mut queue.waiters);
        queue.bytes = 0;
        queue.syncs = 0;
        drop(queue);
        drop(waiters);
    }
}

/// What the groups of entries will be behind the batches that were checked.
#[derive(Default)]
struct Spans {
    /// The last one of a group of entries counts.
    list: Vec<(u64, Span)>,
    /// Where that is, if there are many.
    places: HashMap<u64, usize>,
}

/// So many are looked through one after the other.
const LOOKED_THROUGH: usize = 32;

impl Spans {
    /// Checks each batch of a group.
    fn check(&mut self, memtables: &Memtables, group: &mut Group) {
        self.list.clear();
        self.places.clear();
        for waiter in group.iter_mut() {
            // Those of this batch stand behind the others.
            let passed = self.list.len();
            for item in &waiter.request.items {
                let known = self.find(item.group);
                let span = known.map_or_else(|| memtables.span(item.group), |at| self.list[at].1);
                match (span.after(item.group, &item.op), known) {
                    (Ok(after), Some(at)) if at >= passed => self.list[at].1 = after,
                    (Ok(after), _) => self.push(item.group, after),
                    (Err(e), _) => {
                        self.truncate(passed);
                        waiter.refused = Some(e);
                        break;
                    }
                }
            }
        }
    }

    fn find(&self, group: u64) -> Option<usize> {
        if self.list.len() > LOOKED_THROUGH {
            return self.places.get(&group).copied();
        }
        self.list.iter().rposition(|(id, _)| *id == group)
    }

    fn push(&mut self, group: u64, span: Span) {
        self.list.push((group, span));
        if self.list.len() == LOOKED_THROUGH + 1 {
            self.places = self.list.iter().map(|(id, _)| *id).zip(0..).collect();
        } else if self.list.len() > LOOKED_THROUGH {
            self.places.insert(group, self.list.len() - 1);
        }
    }

    fn truncate(&mut self, len: usize) {
        self.list.truncate(len);
        self.places.clear();
        if len > LOOKED_THROUGH {
            self.places = self.list.iter().map(|(id, _)| *id).zip(0..).collect();
        }
    }
}

impl Leader {
    /// Appends the records that were not refused with one call, and tells of them. If there is no space for all, those are refused for which
    /// there is none. With `syncs` they are synced next. With a watch `rotated` is how long a new file took.
    fn append(
        &mut self,
        group: &mut Group,
        syncs: bool,
        watch: Option<Stopwatch>,
        rotated: &mut Duration,
    ) -> Result<()> {
        if group.accepted().all(|w| w.request.record.is_none()) {
            return Ok(());
        }
        self.appender.rotate_if_full()?;
        *rotated = perf::elapsed(watch);
        let together = &mut self.together;
        let mut tries = 0;
        let appended = self.appender.find_space(true, |appender| {
            if tries > 0 {
                *rotated = perf::elapsed(watch);
            }
            tries += 1;
            append_records(appender, together, group, syncs)
        });
        let records = |group: &mut Group| {
            let has_record = |w: &&mut Waiter| w.request.record.is_some();
            group.accepted().filter(has_record).count()
        };
        match appended {
            Ok(start) => {
                let file = self.appender.file().id;
                group.accepted().for_each(|w| w.lies(file, start));
            }
            Err(e) if e.kind() == ErrorKind::NoSpace && records(group) > 1 => {
                self.append_apart(group);
            }
            Err(e) => return Err(e),
        }
        let listeners = self.appender.listeners();
        if listeners.is_empty() {
            return Ok(());
        }
        for waiter in group.accepted() {
            let Some(block) = waiter.block else {
                continue;
            };
            let handle = FileBlockHandle {
                id: block.file,
                offset: block.offset - RECORD_HEADER_LEN as u64,
                len: waiter.request.len(),
            };
            listeners.iter().for_each(|l| l.on_append_log_file(handle));
        }
        Ok(())
    }

    /// Appends the records that were not refused one after the other, and refuses those for which there is no space. Whoever writes to a
    /// group behind one of these counts on it, and is refused, too.
    fn append_apart(&mut self, group: &mut Group) {
        let (appender, together) = (&mut self.appender, &mut self.together);
        let mut refused: Option<Error> = None;
        let mut groups = HashSet::new();
        // A purge takes what memory does not have to lie in the newest file.
        let mut may_leave = true;
        // There is no space for as many bytes, as each try takes a sync.
        let mut too_long = usize::MAX;
        for waiter in group.accepted() {
            if waiter.request.record.is_none() {
                continue;
            }
            let len = waiter.request.len();
            let counts_on = |item: &Item| groups.contains(&item.group);
            let appended = match &refused {
                Some(e) if len >= too_long || waiter.request.items.iter().any(counts_on) => {
                    Err(e.clone())
                }
                _ => {
                    let appended = appender.find_space(may_leave, |appender| {
                        append_alone(appender, together, waiter, false)
                    });
                    if appended.is_err() {
                        too_long = too_long.min(len);
                    }
                    appended
                }
            };
            match appended {
                Ok(start) => {
                    waiter.lies(appender.file().id, start);
                    may_leave = false;
                }
                Err(e) => {
                    groups.extend(waiter.request.items.iter().map(|item| item.group));
                    waiter.refused = Some(e.clone());
                    refused = Some(e);
                }
            }
        }
    }
}

/// Appends a record by itself, by way of `together` if something has to stand before it; where what was appended begins.
fn append_alone(
    appender: &mut Appender,
    together: &mut Vec<u8>,
    waiter: &mut Waiter,
    syncs: bool,
) -> Result<u64> {
    let (start, signature) = (appender.next(), appender.file().signature());
    // A try before may have put it behind a filler.
    waiter.at = 0;
    let Some(record) = &mut waiter.request.record else {
        return Ok(start);
    };
    let filler = match syncs {
        true => None,
        false => appender.filler(start, record.header.len)?,
    };
    let Some(filler) = filler else {
        sign(&mut record.bytes, signature);
        let appended = appender.append(&mut record.bytes, syncs);
        if appended.is_err() {
            sign(&mut record.bytes, signature);
        }
        return appended;
    };
    together.clear();
    memory::append(together, &filler.bytes, "a record behind a filler")?;
    waiter.at = together.len() as u64;
    memory::append(together, &record.bytes, "a record behind a filler")?;
    sign(&mut together[waiter.at as usize..], signature);
    let appended = appender.append(together, syncs);
    together.shrink_to(GROUP_BYTES_MAX);
    appended
}

/// Appends the records that were not refused with one call, by way of `together` if they are several; where the first of them begins.
fn append_records(
    appender: &mut Appender,
    together: &mut Vec<u8>,
    group: &mut Group,
    syncs: bool,
) -> Result<u64> {
    if group.others.is_empty() {
        return append_alone(appender, together, &mut group.own, syncs);
    }
    let (start, signature) = (appender.next(), appender.file().signature());
    together.clear();
    let has_record = |w: &&mut Waiter| w.request.record.is_some();
    let mut waiters = group.accepted().filter(has_record).peekable();
    while let Some(waiter) = waiters.next() {
        let Some(record) = &waiter.request.record else {
            continue;
        };
        let is_synced_next = syncs && waiters.peek().is_none();
        if !is_synced_next
            && let Some(filler) =
                appender.filler(start + together.len() as u64, record.header.len)?
        {
            memory::append(together, &filler.bytes, "a group of records")?;
        }
        waiter.at = together.len() as u64;
        memory::append(together, &record.bytes, "a group of records")?;
        sign(&mut together[waiter.at as usize..], signature);
    }
    let appended = appender.append(together, syncs);
    together.shrink_to(GROUP_BYTES_MAX);
    appended
}

#[cfg(test)]
mod tests;
