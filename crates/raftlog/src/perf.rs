//! What the writes of a thread spend their time on.
//!
//! No clock is read for a thread that never asked: its times count from its first call of one of the functions here.
//! The leader of a group takes times if any thread of the group has asked, and each that has gets them
//! all.

use std::cell::{Cell, RefCell};
use std::ops::AddAssign;
use std::time::Duration;

use orogen_env::Stopwatch;

/// Times of the writes of one thread, summed up.
///
/// Default: all 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfContext {
    /// Batches were made into records: compression and checksums.
    pub log_populating_duration: Duration,
    /// Waiting for others to write, and until the own group is formed.
    pub write_wait_duration: Duration,
    /// Records were given to the system.
    pub log_write_duration: Duration,
    /// A full file was synced and the next one made.
    pub log_rotate_duration: Duration,
    /// Syncs that were asked for.
    pub log_sync_duration: Duration,
    /// Memory was told where the records are.
    pub apply_duration: Duration,
}

impl AddAssign<&Self> for PerfContext {
    fn add_assign(&mut self, other: &Self) {
        self.log_populating_duration += other.log_populating_duration;
        self.write_wait_duration += other.write_wait_duration;
        self.log_write_duration += other.log_write_duration;
        self.log_rotate_duration += other.log_rotate_duration;
        self.log_sync_duration += other.log_sync_duration;
        self.apply_duration += other.apply_duration;
    }
}

impl PerfContext {
    /// What a group spent together.
    pub(crate) fn of_group(&self) -> Duration {
        self.log_write_duration
            + self.log_rotate_duration
            + self.log_sync_duration
            + self.apply_duration
    }
}

thread_local! {
    static CONTEXT: RefCell<PerfContext> = RefCell::default();
    static IS_ASKED: Cell<bool> = const { Cell::new(false) };
}

/// The times of this thread until now; from now on they are taken.
#[must_use]
pub fn get_perf_context() -> PerfContext {
    IS_ASKED.set(true);
    CONTEXT.with_borrow(PerfContext::clone)
}

/// The times of this thread, which are then 0; from now on they are taken.
pub fn take_perf_context() -> PerfContext {
    IS_ASKED.set(true);
    CONTEXT.take()
}

/// Sets the times of this thread; from now on they are taken.
pub fn set_perf_context(perf_context: PerfContext) {
    IS_ASKED.set(true);
    CONTEXT.set(perf_context);
}

/// A watch, if this thread takes times.
pub(crate) fn start() -> Option<Stopwatch> {
    IS_ASKED.get().then(Stopwatch::start)
}

/// What a watch says.
pub(crate) fn elapsed(watch: Option<Stopwatch>) -> Duration {
    watch.map_or(Duration::ZERO, |watch| watch.elapsed())
}

/// Adds to the times of this thread.
pub(crate) fn add(spent: &PerfContext) {
    CONTEXT.with_borrow_mut(|context| *context += spent);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_never_asked_takes_no_times() {
        let look = || {
            assert!(start().is_none());
            assert_eq!(get_perf_context(), PerfContext::default());
            assert!(start().is_some());
            let spent = PerfContext {
                apply_duration: Duration::from_nanos(7),
                ..PerfContext::default()
            };
            add(&spent);
            add(&spent);
            assert_eq!(take_perf_context().apply_duration.as_nanos(), 14);
            set_perf_context(spent.clone());
            assert_eq!(get_perf_context(), spent);
        };
        std::thread::scope(|scope| {
            scope.spawn(look);
        });
    }
}
