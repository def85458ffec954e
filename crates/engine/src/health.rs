//! Whether the database may be written.
//!
//! ```text
//!            a write finds no space, or memory      any other error of WAL, MANIFEST, flush
//! healthy ---------------------------> out of space ----------------------------> failed
//!    |  ^                                  |                                         ^
//!    |  +---- resume: logs and MANIFEST ---+                                         |
//!    |        made whole, flushes done                                               |
//!    +-------------------------------------------------------------------------------+
//! ```
//! A full disk passes, and so does want of memory: writes are refused until `resume.rs` has made whole what was cut off. Any
//! other failed write, and each failed sync but for space, leaves it unknown what is on disk: the
//! database then serves reads only, until it is opened anew. The first error of a state is kept
//! and every later write is refused with it. Lock: a leaf.

use orogen_base::sync::atomic::{AtomicU8, Ordering};

use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind, Result};

const HEALTHY: u8 = 0;
const OUT_OF_SPACE: u8 = 1;
const FAILED: u8 = 2;

/// Healthy, out of space or memory for now, or read-only after an error.
#[derive(Debug, Default)]
pub(crate) struct Health {
    state: AtomicU8,
    cause: Mutex<Cause>,
}

#[derive(Debug, Default)]
struct Cause {
    first: Option<Error>,
    /// An error that listeners were not told of.
    untold: Option<Error>,
    /// How often a write found no space.
    full: u64,
    /// How often writes were taken again.
    cleared: u64,
}

impl Health {
    /// Refuses if no write is taken now.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            HEALTHY => Ok(()),
            _ => self.refuse(),
        }
    }

    /// Refuses if nothing but an open can help.
    pub(crate) fn check_failed(&self) -> Result<()> {
        match self.state.load(Ordering::Acquire) {
            FAILED => self.refuse(),
            _ => Ok(()),
        }
    }

    /// True once the database has failed for good.
    pub(crate) fn failed(&self) -> bool {
        self.state.load(Ordering::Acquire) == FAILED
    }

    /// True while the disk is full, or was when it was last looked; the same of memory.
    pub(crate) fn out_of_space(&self) -> bool {
        self.state.load(Ordering::Acquire) == OUT_OF_SPACE
    }

    /// Refuses writes because of an error that leaves a file of the database as nobody knows.
    pub(crate) fn note(&self, error: &Error) {
        let next = match error.kind() {
            kind if kind.is_shortage() => OUT_OF_SPACE,
            _ => FAILED,
        };
        let mut cause = self.cause.lock();
        let before = self.state.load(Ordering::Relaxed);
        if next == OUT_OF_SPACE {
            cause.full += 1;
        }
        if next > before {
            cause.first = Some(error.clone());
            cause.untold = Some(error.clone());
            self.state.store(next, Ordering::Release);
        }
    }

    /// An error that listeners must be told of.
    pub(crate) fn take_untold(&self) -> Option<Error> {
        self.cause.lock().untold.take()
    }

    /// Makes the database read-only for good because of `error`.
    pub(crate) fn fail(&self, error: &Error) {
        let mut cause = self.cause.lock();
        if self.state.swap(FAILED, Ordering::AcqRel) != FAILED {
            cause.first = Some(error.clone());
            cause.untold = Some(error.clone());
        }
    }

    /// How often a write found no space; give it to [`Self::clear`].
    pub(crate) fn times_full(&self) -> u64 {
        self.cause.lock().full
    }

    /// How often writes were taken again: what began before found what is no more.
    pub(crate) fn times_cleared(&self) -> u64 {
        self.cause.lock().cleared
    }

    /// Takes writes again unless one found no space since `seen`; true if so.
    pub(crate) fn clear(&self, seen: u64) -> bool {
        let mut cause = self.cause.lock();
        if cause.full != seen || self.state.load(Ordering::Relaxed) != OUT_OF_SPACE {
            return false;
        }
        cause.first = None;
        cause.cleared += 1;
        self.state.store(HEALTHY, Ordering::Release);
        true
    }

    /// The error that the state follows from; `None` while healthy.
    pub(crate) fn cause(&self) -> Option<Error> {
        self.cause.lock().first.clone()
    }

    #[cold]
    fn refuse(&self) -> Result<()> {
        let cause = self.cause.lock();
        let (kind, message) = match self.state.load(Ordering::Relaxed) {
            HEALTHY => return Ok(()),
            OUT_OF_SPACE => (
                cause.first.as_ref().map_or(ErrorKind::NoSpace, Error::kind),
                "database takes no writes until there is space and memory; it resumes by itself",
            ),
            _ => (
                ErrorKind::ReadOnly,
                "database is read-only after an error; reopen it",
            ),
        };
        let refusal = Error::new(kind, message);
        Err(match &cause.first {
            Some(first) => refusal.caused_by(first.clone()),
            None => refusal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Error {
        Error::new(ErrorKind::NoSpace, "full")
    }

    #[test]
    fn a_full_disk_passes_and_a_failure_stays() {
        let health = Health::default();
        health.note(&full());
        assert!(health.out_of_space() && health.take_untold().is_some());
        assert_eq!(health.check().unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(health.check_failed().is_ok());
        let seen = health.times_full();
        assert!(health.clear(seen) && health.check().is_ok());
        health.fail(&Error::new(ErrorKind::Io, "broken"));
        health.note(&full());
        assert!(health.failed() && !health.clear(health.times_full()));
        let refused = health.check().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        assert!(refused.to_string().contains("broken"));
    }

    #[test]
    fn want_of_memory_passes_and_is_named() {
        let health = Health::default();
        health.note(&Error::no_memory("refused"));
        assert!(!health.failed());
        assert_eq!(health.check().unwrap_err().kind(), ErrorKind::NoMemory);
        assert!(health.clear(health.times_full()) && health.check().is_ok());
    }

    #[test]
    fn what_fills_up_again_meanwhile_is_not_taken_for_resumed() {
        let health = Health::default();
        health.note(&full());
        let seen = health.times_full();
        health.note(&full());
        assert!(!health.clear(seen) && health.out_of_space());
    }
}
