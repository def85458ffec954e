//! Who writes: one thread at a time, for all that wait.
//!
//! A thread that finds nobody leading leads; others leave their request and sleep. The leader takes
//! the requests that are there, checks each against the groups as the earlier ones of them will
//! leave them, appends those that pass with one call, syncs once if any of them asks, and
//! applies them in order. Then it wakes their threads, and hands the lead to the first that came
//! meanwhile.
//!
//! 1. A request that is refused, or whose append or sync fails, changes nothing in memory.
//! 2. Nothing is applied that is not in the file.
//!
//! Locks: the queue's is let go before the appender's is taken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use orogen_base::sync::{Condvar, Mutex};
use orogen_base::{Error, Result};

use crate::files::Appender;
use crate::format::{RECORD_HEADER_LEN, Record, sign};
use crate::item::Item;
use crate::memtable::{Block, Memtables, Span};

/// A batch to write, or without a record only a sync.
pub(crate) struct Request {
    pub(crate) record: Option<Record>,
    pub(crate) items: Vec<Item>,
    pub(crate) sync: bool,
}

/// What became of a request: nothing left, or the error and its items again.
type Outcome = Result<(), (Error, Vec<Item>)>;

enum State {
    Waiting,
    Leads,
    Done(Outcome),
}

struct Ticket {
    state: Mutex<State>,
    wake: Condvar,
}

impl Ticket {
    fn set(&self, state: State) {
        *self.state.lock() = state;
        self.wake.notify_one();
    }

    /// Waits until the request is done, or to be led by its own thread.
    fn wait(&self) -> State {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, State::Waiting) {
                State::Waiting => self.wake.wait(&mut state),
                other => return other,
            }
        }
    }
}

struct Waiter {
    ticket: Arc<Ticket>,
    request: Request,
}

#[derive(Default)]
struct Waiters {
    waiters: VecDeque<Waiter>,
    has_leader: bool,
}

/// Bytes of a group behind which no further request is taken into it.
const GROUP_BYTES_MAX: usize = 4 << 20;

/// The queue before the append queue's newest file.
pub(crate) struct WriteQueue {
    waiters: Mutex<Waiters>,
    appender: Mutex<Appender>,
}

impl WriteQueue {
    pub(crate) fn new(appender: Appender) -> Self {
        Self {
            waiters: Mutex::default(),
            appender: Mutex::new(appender),
        }
    }

    /// Makes all that was written before survive a power loss.
    pub(crate) fn sync(&self, memtables: &Memtables) -> Result<()> {
        let request = Request {
            record: None,
            items: Vec::new(),
            sync: true,
        };
        self.submit(memtables, request).map_err(|(e, _)| e)
    }

    /// Writes, with others or alone, and returns when that is done.
    pub(crate) fn submit(&self, memtables: &Memtables, request: Request) -> Outcome {
        let ticket = Arc::new(Ticket {
            state: Mutex::new(State::Waiting),
            wake: Condvar::new(),
        });
        let leads = {
            let mut waiters = self.waiters.lock();
            waiters.waiters.push_back(Waiter {
                ticket: Arc::clone(&ticket),
                request,
            });
            !std::mem::replace(&mut waiters.has_leader, true)
        };
        if !leads && let State::Done(outcome) = ticket.wait() {
            return outcome;
        }
        self.lead(memtables);
        // A leader is the first of its group.
        match ticket.wait() {
            State::Done(outcome) => outcome,
            State::Waiting | State::Leads => unreachable!("a leader's own request is done"),
        }
    }

    fn lead(&self, memtables: &Memtables) {
        let mut group = Vec::new();
        {
            let mut waiters = self.waiters.lock();
            let mut bytes = 0;
            while bytes < GROUP_BYTES_MAX
                && let Some(waiter) = waiters.waiters.pop_front()
            {
                bytes += waiter.request.record.as_ref().map_or(0, |r| r.bytes.len());
                group.push(waiter);
            }
        }
        self.commit(memtables, group);
        let mut waiters = self.waiters.lock();
        match waiters.waiters.front() {
            Some(next) => next.ticket.set(State::Leads),
            None => waiters.has_leader = false,
        }
    }

    fn commit(&self, memtables: &Memtables, group: Vec<Waiter>) {
        let mut appender = self.appender.lock();
        let mut spans = HashMap::new();
        let mut accepted = Vec::with_capacity(group.len());
        for waiter in group {
            match check(memtables, &mut spans, &waiter.request.items) {
                Ok(()) => accepted.push(waiter),
                Err(e) => refuse(waiter, e),
            }
        }
        match write(&mut appender, &mut accepted) {
            Ok(blocks) => {
                for (waiter, block) in accepted.iter_mut().zip(blocks) {
                    if let Some(block) = block {
                        memtables.apply(waiter.request.items.drain(..), block);
                    }
                }
                // The next leader may write while these wake up.
                drop(appender);
                for waiter in accepted {
                    waiter.ticket.set(State::Done(Ok(())));
                }
            }
            Err(e) => {
                drop(appender);
                for waiter in accepted {
                    refuse(waiter, e.clone());
                }
            }
        }
    }
}

fn refuse(waiter: Waiter, e: Error) {
    let outcome = Err((e, waiter.request.items));
    waiter.ticket.set(State::Done(outcome));
}

/// Checks a batch against what the groups will be behind those before it.
fn check(memtables: &Memtables, spans: &mut HashMap<u64, Span>, items: &[Item]) -> Result<()> {
    let mut changed: HashMap<u64, Span> = HashMap::new();
    for item in items {
        let span = match changed.get(&item.group).or_else(|| spans.get(&item.group)) {
            Some(span) => *span,
            None => memtables.span(item.group),
        };
        changed.insert(item.group, span.after(item.group, &item.op)?);
    }
    spans.extend(changed);
    Ok(())
}

/// Appends the records with one call and syncs if anybody asks; where the blocks lie.
fn write(appender: &mut Appender, group: &mut [Waiter]) -> Result<Vec<Option<Block>>> {
    let records = group.iter().filter(|w| w.request.record.is_some()).count();
    let mut blocks = Vec::with_capacity(group.len());
    if records > 0 {
        appender.rotate_if_full()?;
        let signature = appender.file().signature();
        let file = appender.file().id;
        let mut together = Vec::new();
        let mut headers = Vec::with_capacity(group.len());
        let mut len = 0;
        for waiter in &mut *group {
            let record = waiter.request.record.as_mut();
            headers.push(record.map(|record| {
                let at = len;
                len += record.header.len;
                sign(&mut record.bytes, signature);
                if records > 1 {
                    together.append(&mut record.bytes);
                } else {
                    together = std::mem::take(&mut record.bytes);
                }
                (at, record.header)
            }));
        }
        let start = appender.append(&together)?;
        blocks.extend(headers.into_iter().map(|header| {
            header.map(|(at, header)| Block {
                file,
                offset: start + at + RECORD_HEADER_LEN as u64,
                len: header.block_len,
                compression: header.compression,
            })
        }));
    }
    if group.iter().any(|w| w.request.sync) {
        appender.sync()?;
    }
    Ok(blocks)
}
