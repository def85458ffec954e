//! Waiting for something to have changed.

use std::time::Duration;

use orogen_base::sync::{Condvar, Mutex};

/// Wakes those who wait for something to have changed. Leaf lock.
#[derive(Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Signal {
    /// Wakes all who wait.
    pub(crate) fn raise(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// How often it was raised; give it to [`Self::wait_after`].
    pub(crate) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until it was raised more often than `seen`.
    pub(crate) fn wait_after(&self, seen: u64) {
        let mut count = self.count.lock();
        while *count == seen {
            self.changed.wait(&mut count);
        }
    }

    /// The same, but no longer than `micros`.
    pub(crate) fn wait_after_for(&self, seen: u64, micros: u64) {
        let mut count = self.count.lock();
        if *count == seen {
            self.changed
                .wait_for(&mut count, Duration::from_micros(micros));
        }
    }
}
