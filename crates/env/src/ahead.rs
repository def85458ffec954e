//! A thread that does beforehand what a writer would stop for.
//!
//! Pages of a new log and huge pages of memtables cost microseconds each, and now and then
//! milliseconds: the kernel's locks for them are held by whoever frees memory just then. Who uses
//! such a thing asks for the next ones before it needs them, and makes them itself if they are
//! late. So nothing depends on this thread but time; if the system has none left there is none.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::clock::{Clock, SystemClock};
use crate::threads::{self, Thread};

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Task>,
    /// Not before their time, in microseconds of the system's clock; few.
    later: Vec<(u64, Task)>,
    is_closed: bool,
}

/// What the thread and those who ask share. The lock is a leaf, held for no task.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// The thread. It starts with the first task, and ends when this is dropped: with the task that
/// runs; those that wait are not done.
#[derive(Default)]
pub struct Ahead {
    shared: Arc<Shared>,
    thread: OnceLock<Option<Thread>>,
    steps_back: bool,
}

impl Ahead {
    /// A thread that has not started yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`Self::new`], and it runs where other threads leave time: for what nobody waits for.
    #[must_use]
    pub fn stepping_back() -> Self {
        Self {
            shared: Arc::default(),
            thread: OnceLock::new(),
            steps_back: true,
        }
    }

    /// Has `task` done soon, after those that were asked for before; perhaps never.
    pub fn ask(&self, task: impl FnOnce() + Send + 'static) {
        self.push(|queue| queue.tasks.push_back(Box::new(task)));
    }

    /// As [`Self::ask`], but not before `delay` has passed.
    pub fn ask_later(&self, delay: Duration, task: impl FnOnce() + Send + 'static) {
        let delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let due = SystemClock.now_micros().saturating_add(delay);
        self.push(|queue| queue.later.push((due, Box::new(task))));
    }

    fn push(&self, push: impl FnOnce(&mut Queue)) {
        if cfg!(orogen_shuttle) {
            // A model runs all threads as one, which would stand still where this one waits.
            return;
        }
        let start = || {
            let (shared, steps_back) = (self.shared.clone(), self.steps_back);
            let run = move || {
                if steps_back {
                    threads::step_back();
                }
                shared.run();
            };
            threads::spawn("orogen-ahead", run).ok()
        };
        if self.thread.get_or_init(start).is_none() {
            return;
        }
        push(&mut self.shared.queue.lock());
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_closed {
                return;
            }
            if let Some(task) = queue.next() {
                MutexGuard::unlocked(&mut queue, || {
                    // The others are not lost with one that panics, of which the panic's hook has told.
                    let _ = catch_unwind(AssertUnwindSafe(task));
                });
                continue;
            }
            match queue.later.iter().map(|&(due, _)| due).min() {
                Some(due) => {
                    let wait = due.saturating_sub(SystemClock.now_micros());
                    self.changed
                        .wait_for(&mut queue, Duration::from_micros(wait));
                }
                None => self.changed.wait(&mut queue),
            }
        }
    }
}

impl Queue {
    fn next(&mut self) -> Option<Task> {
        if let Some(task) = self.tasks.pop_front() {
            return Some(task);
        }
        if self.later.is_empty() {
            return None;
        }
        let now = SystemClock.now_micros();
        let all = self.later.iter().map(|&(due, _)| due).enumerate();
        let (at, _) = all
            .filter(|&(_, due)| due <= now)
            .min_by_key(|&(_, due)| due)?;
        Some(self.later.swap_remove(at).1)
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_one();
        // Joined before the tasks that wait are dropped.
        self.thread.take();
        let mut queue = self.shared.queue.lock();
        let left = (
            std::mem::take(&mut queue.tasks),
            std::mem::take(&mut queue.later),
        );
        drop(queue);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_is_asked_for_later_does_not_hold_up_the_rest() {
        let ahead = Ahead::new();
        let (sender, receiver) = channel();
        for (delay, n) in [(1200, 2), (1000, 1), (3_600_000, 3)] {
            let sender = sender.clone();
            ahead.ask_later(Duration::from_millis(delay), move || {
                sender.send(n).unwrap();
            });
        }
        ahead.ask(move || sender.send(0).unwrap());
        assert!(receiver.iter().take(3).eq(0..3));
        drop(ahead);
        assert!(receiver.recv().is_err(), "it is not done any more");
    }

    #[test]
    fn a_task_that_panics_takes_no_other_along() {
        let ahead = Ahead::new();
        let (sender, receiver) = channel();
        ahead.ask(|| panic!("on purpose"));
        ahead.ask(move || sender.send(1).unwrap());
        assert_eq!(receiver.recv(), Ok(1));
    }

    #[test]
    fn tasks_are_done_in_order_until_it_is_dropped() {
        let ahead = Ahead::new();
        let (sender, receiver) = channel();
        for n in 0..100 {
            let sender = sender.clone();
            ahead.ask(move || sender.send(n).unwrap());
        }
        assert!(receiver.iter().take(100).eq(0..100));
        let (entered, is_entered) = channel();
        let (leave, may_leave) = channel::<()>();
        ahead.ask(move || {
            entered.send(()).unwrap();
            may_leave.recv().unwrap();
        });
        ahead.ask(move || sender.send(100).unwrap());
        is_entered.recv().unwrap();
        let dropping = threads::spawn("drops", move || drop(ahead)).unwrap();
        while !dropping.is_finished() {
            // The first task may only end once it is being dropped.
            std::thread::yield_now();
            let _ = leave.send(());
        }
        drop((dropping, receiver));
    }
}
