//! Runs many small trials at once, and notices those that hang or panic anywhere.
//!
//! 1. A trial that takes longer than [`Guard::LIMIT_SECS`], or what [`set_limit_secs`] says, ends the process with the command that
//!    repeats it: a hung thread cannot be ended otherwise.
//! 2. A panic in any thread, also in the engine's background threads where nobody sees it, counts
//!    as a failure of the trial that was running; under several trials at once it is told of all
//!    of them.
//! 3. The first failures stop the run; later trials are not begun.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use orogen_env::{Clock, SystemClock};
use parking_lot::Mutex;

use crate::report::{self, Failure};

/// Failures after which a run stops.
const FAILURES_MAX: usize = 5;

static LIMIT_SECS: AtomicU64 = AtomicU64::new(Guard::LIMIT_SECS);

/// Lets trials take so long from now on: those of a long run beside other work, which leaves it
/// little of the processor.
pub fn set_limit_secs(secs: u64) {
    LIMIT_SECS.store(secs, Ordering::SeqCst);
}

static PANICS: AtomicU64 = AtomicU64::new(0);
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

/// Panics of all threads are counted from now on.
pub(crate) fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Not that a figure fails beside trials of others.
            if info.location().is_some_and(|l| l.file() == report::FILE) {
                return before(info);
            }
            *LAST_PANIC.lock() = info.to_string().replace('\n', " ");
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
}

/// Panics so far.
pub(crate) fn panics() -> u64 {
    PANICS.load(Ordering::SeqCst)
}

/// What one trial came to.
pub enum Outcome {
    /// All as promised.
    Passed,
    /// There are no more trials from this number on.
    NoMore,
    /// Something is not as promised.
    Failed(Failure),
}

struct Running {
    since_micros: u64,
    repeat: String,
}

/// A thread that runs trials; the end of the last one is the end of the run.
struct AtWork<'a> {
    guard: &'a Guard,
    busy: &'a AtomicUsize,
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.guard.done.store(true, Ordering::SeqCst);
        }
    }
}

/// Watches over trials.
pub struct Guard {
    running: Mutex<Vec<Option<Running>>>,
    failures: Mutex<Vec<Failure>>,
    done: AtomicBool,
    next: AtomicU64,
    end: AtomicU64,
    passed: AtomicU64,
}

impl Guard {
    /// Seconds after which a trial counts as hung.
    pub const LIMIT_SECS: u64 = 60;

    /// Runs `trial(n)` for n = `first`, `first + step`, ... on `threads` threads until one says that
    /// there are no more; `repeat(n)` is the command for number n. Returns how many passed, and
    /// the failures. A thread or a step of 0 counts as one: without a thread nothing would end.
    pub fn run(
        threads: usize,
        first: u64,
        step: u64,
        repeat: impl Fn(u64) -> String + Sync,
        trial: impl Fn(u64) -> Outcome + Sync,
    ) -> (u64, Vec<Failure>) {
        count_panics();
        let (threads, step) = (threads.max(1), step.max(1));
        let guard = Self {
            running: Mutex::new((0..threads).map(|_| None).collect()),
            failures: Mutex::default(),
            done: AtomicBool::new(false),
            next: AtomicU64::new(first),
            end: AtomicU64::new(u64::MAX),
            passed: AtomicU64::new(0),
        };
        let busy = AtomicUsize::new(threads);
        std::thread::scope(|scope| {
            scope.spawn(|| guard.watch());
            for worker in 0..threads {
                let (guard, busy, repeat, trial) = (&guard, &busy, &repeat, &trial);
                scope.spawn(move || {
                    // However it ends: who watches waits for the last one.
                    let _at_work = AtWork { guard, busy };
                    guard.work(worker, step, repeat, trial);
                });
            }
        });
        (guard.passed.into_inner(), guard.failures.into_inner())
    }

    fn work(
        &self,
        worker: usize,
        step: u64,
        repeat: &(impl Fn(u64) -> String + Sync),
        trial: &(impl Fn(u64) -> Outcome + Sync),
    ) {
        while self.failures.lock().len() < FAILURES_MAX {
            let n = self.next.fetch_add(step, Ordering::SeqCst);
            if n >= self.end.load(Ordering::SeqCst) {
                return;
            }
            self.running.lock()[worker] = Some(Running {
                since_micros: SystemClock.now_micros(),
                repeat: repeat(n),
            });
            let panics = PANICS.load(Ordering::SeqCst);
            let outcome = catch_unwind(AssertUnwindSafe(|| trial(n)));
            self.running.lock()[worker] = None;
            let fail = |what: String| {
                self.failures.lock().push(Failure {
                    what,
                    repeat: repeat(n),
                });
            };
            match outcome {
                _ if PANICS.load(Ordering::SeqCst) != panics => {
                    fail(format!("panic: {}", LAST_PANIC.lock()));
                }
                Err(_) => fail("panic".to_owned()),
                Ok(Outcome::Passed) => {
                    self.passed.fetch_add(1, Ordering::SeqCst);
                }
                Ok(Outcome::NoMore) => {
                    self.end.fetch_min(n, Ordering::SeqCst);
                }
                Ok(Outcome::Failed(failure)) => self.failures.lock().push(failure),
            }
        }
    }

    fn watch(&self) {
        while !self.done.load(Ordering::SeqCst) {
            SystemClock.sleep(Duration::from_millis(5));
            let now = SystemClock.now_micros();
            let limit = LIMIT_SECS.load(Ordering::SeqCst).saturating_mul(1_000_000);
            for running in self.running.lock().iter().flatten() {
                if now.saturating_sub(running.since_micros) > limit {
                    let _ = writeln!(
                        std::io::stderr(),
                        "FAIL a trial hangs | cargo run -p orogen-torture -- {}",
                        running.repeat
                    );
                    std::process::abort();
                }
            }
        }
    }
}

/// Threads for trials: as many as the machine has processors.
#[must_use]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, std::num::NonZero::get)
}

/// Seconds that `body` takes, and its result.
pub fn timed<R>(body: impl FnOnce() -> R) -> (R, f64) {
    let start = SystemClock.now_micros();
    let result = body();
    (
        result,
        SystemClock.now_micros().saturating_sub(start) as f64 / 1e6,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Panics of one test would count as failures of another.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn trials_run_until_one_says_no_more_and_failures_are_kept() {
        let _alone = ALONE.lock();
        let (passed, failures) = Guard::run(
            2,
            1,
            1,
            |n| format!("trial {n}"),
            |n| match n {
                3 => Outcome::Failed(Failure {
                    what: "three".into(),
                    repeat: "trial 3".into(),
                }),
                1..=9 => Outcome::Passed,
                _ => Outcome::NoMore,
            },
        );
        assert_eq!(passed, 8);
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].repeat, "trial 3");
    }

    #[test]
    fn a_panic_in_any_thread_is_a_failure() {
        let _alone = ALONE.lock();
        let (_, failures) = Guard::run(
            1,
            0,
            1,
            |n| n.to_string(),
            |n| {
                if n == 1 {
                    return Outcome::NoMore;
                }
                let thread = orogen_env::threads::spawn("panics", || panic!("in the background"));
                drop(thread.unwrap());
                Outcome::Passed
            },
        );
        assert_eq!(failures.len(), 1);
        assert!(failures[0].what.contains("in the background"));
    }
    #[test]
    fn a_run_ends_without_threads_or_steps_and_whatever_panics() {
        let _alone = ALONE.lock();
        let trial = |n| match n {
            0..5 => Outcome::Passed,
            _ => Outcome::NoMore,
        };
        let (passed, _) = Guard::run(0, 0, 0, |n| n.to_string(), trial);
        assert_eq!(passed, 5);
        let run = || Guard::run(2, 0, 1, |_| panic!("on purpose"), trial);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    }
}
