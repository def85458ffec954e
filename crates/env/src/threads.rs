//! Named threads that are joined.

use orogen_base::sync::thread;
use orogen_base::{Error, Result};

/// A running thread; dropping it waits for its end.
pub struct Thread(Option<thread::JoinHandle<()>>);

/// Starts a thread; `name` shows in `top` and in panics (15 bytes are kept by Linux).
///
/// # Errors
/// `Io` if the system has no thread left.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map(|h| Thread(Some(h)))
        .map_err(|e| Error::io("cannot start a thread", e).with("name", name))
}

impl Thread {
    /// True once its body has ended.
    #[must_use]
    #[cfg(not(orogen_shuttle))]
    pub fn is_finished(&self) -> bool {
        self.0.as_ref().is_none_or(|handle| handle.is_finished())
    }

    /// Shuttle cannot tell.
    #[must_use]
    #[cfg(orogen_shuttle)]
    pub fn is_finished(&self) -> bool {
        self.0.is_none()
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(handle) = self.0.take()
            && handle.thread().id() != thread::current().id()
        {
            // A panic was already printed by the thread itself.
            let _ = handle.join();
        }
    }
}

/// Threads that can run at once here; 1 if the system does not say.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Has this thread run, from here on, where others leave time. Where the system refuses, it runs as before.
///
/// Whoever wakes interrupts it at once. One of a low priority only would keep its processor for the rest of its slice, which is
/// 3 ms and more (Linux, "EEVDF Scheduler"). It must not hold a lock for long that others want.
pub fn step_back() {
    if !idle::become_idle() {
        // On Linux a priority is a thread's, though the call is named after processes.
        let _ = rustix::process::setpriority_process(None, PRIORITY_LOWEST);
    }
}

/// A thread of this priority gets a hundredth of the time of one that competes with it.
const PRIORITY_LOWEST: i32 = 19;

/// A system call that neither std nor rustix has.
mod idle {
    #![expect(unsafe_code, reason = "sched_setscheduler is only in the C library")]

    /// Puts this thread behind all that are not idle; false if it stays as it was.
    #[cfg(target_os = "linux")]
    pub(super) fn become_idle() -> bool {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: 0 is the calling thread; the call reads the structure, which outlives it, and keeps nothing of it.
        unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) == 0 }
    }

    /// There is no such thing.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn become_idle() -> bool {
        false
    }
}

/// Lets other threads run first.
pub fn yield_now() {
    thread::yield_now();
}

/// Runs all tasks at once, the last one on this thread, and gives their results in order. A task
/// for which the system has no thread left runs on this one.
///
/// # Panics
/// If a task panics.
#[cfg(orogen_shuttle)]
pub fn run_all<T: Send, F: FnOnce() -> T + Send>(_: &str, tasks: Vec<F>) -> Vec<T> {
    // Tasks share nothing: their order shows nothing new.
    tasks.into_iter().map(|task| task()).collect()
}

/// Runs all tasks at once, the last one on this thread, and gives their results in order. A task
/// for which the system has no thread left runs on this one.
///
/// # Panics
/// If a task panics.
#[cfg(not(orogen_shuttle))]
pub fn run_all<T: Send, F: FnOnce() -> T + Send>(name: &str, tasks: Vec<F>) -> Vec<T> {
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        let mut tasks = tasks.into_iter().peekable();
        while let Some(task) = tasks.next() {
            if tasks.peek().is_none() {
                running.push(Err(task()));
                continue;
            }
            let slot = std::sync::Arc::new(std::sync::Mutex::new(Some(task)));
            let theirs = slot.clone();
            let take = move |slot: &std::sync::Mutex<Option<F>>| {
                let task = slot.lock().ok().and_then(|mut s| s.take());
                task.map(|task| task())
            };
            let builder = std::thread::Builder::new().name(name.to_owned());
            match builder.spawn_scoped(scope, move || take(&theirs)) {
                Ok(handle) => running.push(Ok(handle)),
                Err(_) => running.extend(take(&slot).map(Err)),
            }
        }
        running
            .into_iter()
            .map(|r| match r {
                Err(done) => done,
                // The panic goes on with its own message.
                Ok(handle) => handle
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                    .expect("a spawned task runs once"),
            })
            .collect()
    })
}

/// Runs `beside` on a thread of its own and `here` on this one, at once, and gives both results. If
/// the system has no thread left `beside` runs here as well, before `here`.
///
/// # Panics
/// If one of them panics.
#[cfg(orogen_shuttle)]
pub fn run_both<A: Send, B>(
    _: &str,
    beside: impl FnOnce() -> A + Send,
    here: impl FnOnce() -> B,
) -> (A, B) {
    // They share nothing: their order shows nothing new.
    (beside(), here())
}

/// Runs `beside` on a thread of its own and `here` on this one, at once, and gives both results. If
/// the system has no thread left `beside` runs here as well, before `here`.
///
/// # Panics
/// If one of them panics.
#[cfg(not(orogen_shuttle))]
pub fn run_both<A: Send, B>(
    name: &str,
    beside: impl FnOnce() -> A + Send,
    here: impl FnOnce() -> B,
) -> (A, B) {
    let slot = std::sync::Mutex::new(Some(beside));
    let run = || {
        let task = slot.lock().ok().and_then(|mut slot| slot.take());
        task.map(|task| task())
    };
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name(name.to_owned());
        match builder.spawn_scoped(scope, run) {
            Ok(handle) => {
                let ours = here();
                let theirs = handle.join().expect("a task does not panic");
                (theirs.expect("a spawned task runs once"), ours)
            }
            Err(_) => (run().expect("it did not run elsewhere"), here()),
        }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn who_steps_back_is_interrupted_by_all_others() {
        // proc(5): the 41st field, behind the name in parentheses; SCHED_IDLE is 5.
        let policy = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("it is there");
            let (_, fields) = stat.rsplit_once(')').expect("a name");
            fields.split_whitespace().nth(41 - 3).map(str::to_owned)
        };
        let before = policy();
        let beside = move || {
            super::step_back();
            policy()
        };
        assert_eq!(
            super::run_both("test", beside, policy),
            (Some("5".to_owned()), before)
        );
    }

    #[test]
    fn a_panic_of_a_task_keeps_its_message() {
        let tasks: Vec<fn()> = vec![|| panic!("told"), || {}];
        let panic = std::panic::catch_unwind(|| super::run_all("test", tasks));
        let panic = panic.expect_err("it panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"told"));
    }

    #[test]
    fn two_tasks_run_at_once() {
        let (send, receive) = std::sync::mpsc::channel();
        // Each ends only when the other one runs.
        let (back, forth) = std::sync::mpsc::channel();
        let beside = move || {
            send.send(1).expect("it is waited for");
            forth.recv().expect("it is sent")
        };
        let here = move || {
            let got = receive.recv().expect("it is sent");
            back.send(2).expect("it is waited for");
            got
        };
        assert_eq!(super::run_both("test", beside, here), (2, 1));
    }

    #[test]
    fn results_come_in_the_order_of_the_tasks() {
        let tasks: Vec<_> = (0..5u64).map(|n| move || n * n).collect();
        assert_eq!(super::run_all("test", tasks), [0, 1, 4, 9, 16]);
    }
}
