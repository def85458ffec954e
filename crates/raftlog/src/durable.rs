//! Telling writers that did not wait for it that what they wrote survives a power loss.
//!
//! One thread syncs for all that were written since its last sync, and then calls each of their functions. So who writes one
//! batch after the other has as many under way as he likes, and the device has one sync at a time.
//!
//! 1. Functions are called in the order in which they came, each once, and only after a sync that began when what it waits for
//!    was written; with the error if that sync failed.
//!    One that panics keeps none of the others from being called.
//! 2. All are called before [`Durable::finish`] returns.
//!
//! The lock is a leaf: neither a sync nor a function is called under it.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use orogen_base::Result;
use orogen_base::sync::{Condvar, Mutex};
use orogen_env::threads::{self, Thread};

use crate::memtable::Memtables;
use crate::write_queue::{WriteQueue, panicked};

/// What is called when something survives a power loss, or with why it may not.
pub(crate) type OnDurable = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
struct Queue {
    waiting: Vec<OnDurable>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The thread, which starts with the first function.
pub(crate) struct Durable {
    shared: Arc<Shared>,
    thread: Mutex<Option<Thread>>,
}

impl Durable {
    pub(crate) fn new() -> Self {
        Self {
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Makes sure that there is a thread.
    ///
    /// # Errors
    /// If the system has none left.
    pub(crate) fn start(&self, writes: &Arc<WriteQueue>, memtables: &Arc<Memtables>) -> Result<()> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let (writes, memtables) = (Arc::clone(writes), Arc::clone(memtables));
            let run = move || shared.run(&writes, &memtables);
            *thread = Some(threads::spawn("raftlog-sync", run)?);
        }
        Ok(())
    }

    /// Has `tell` called when all that is written now survives a power loss. There is a thread.
    pub(crate) fn tell(&self, tell: OnDurable) {
        self.shared.queue.lock().waiting.push(tell);
        self.shared.changed.notify_one();
    }

    /// Waits until all were told, and ends the thread.
    pub(crate) fn finish(&self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        drop(thread);
    }
}

impl Shared {
    fn run(&self, writes: &WriteQueue, memtables: &Memtables) {
        loop {
            let waiting = {
                let mut queue = self.queue.lock();
                while queue.waiting.is_empty() {
                    if queue.is_closed {
                        return;
                    }
                    self.changed.wait(&mut queue);
                }
                mem::take(&mut queue.waiting)
            };
            let synced = catch_unwind(AssertUnwindSafe(|| writes.sync(memtables)));
            let synced = synced.unwrap_or_else(|_| Err(panicked()));
            for tell in waiting {
                // Its panic was printed, and is its own.
                let _ = catch_unwind(AssertUnwindSafe(|| tell(synced.clone())));
            }
        }
    }
}
