//! Times for a thread's perf context: from here until it is dropped.
//!
//! `Hot path`: where no times are taken it is a look at one byte of the thread.

use std::time::{Duration, Instant};

use orogen_base::perf::{self, PerfCounter};

/// Adds the time of its life to a counter of its thread.
#[must_use]
pub struct PerfTimer {
    counter: PerfCounter,
    started: Option<Instant>,
}

impl PerfTimer {
    /// Starts, if this thread takes times.
    #[inline]
    pub fn start(counter: PerfCounter) -> Self {
        let started = perf::takes_times().then(now);
        Self { counter, started }
    }
}

#[cold]
#[expect(
    clippy::disallowed_methods,
    reason = "times of a request are real ones, whatever clock a database has"
)]
fn now() -> Instant {
    Instant::now()
}

#[cold]
fn stop(counter: PerfCounter, started: Instant) {
    let nanos = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    perf::add(counter, nanos);
}

impl Drop for PerfTimer {
    #[inline]
    fn drop(&mut self) {
        if let Some(started) = self.started {
            stop(self.counter, started);
        }
    }
}

/// Tells the real time since it was started.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts it.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// The time since then.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use orogen_base::perf::{PerfContext, PerfLevel};

    #[test]
    fn times_are_taken_only_where_asked_for() {
        let counter = PerfCounter::FsyncNanos;
        let work = || {
            let _timer = PerfTimer::start(counter);
            std::hint::black_box((0..1000).sum::<u64>())
        };
        let (_, counts) = PerfContext::measure(PerfLevel::EnableCount, work);
        assert_eq!(counts.get(counter), 0);
        let (_, times) = PerfContext::measure(PerfLevel::EnableTime, work);
        assert!(times.get(counter) > 0);
    }
}
