//! When to try again what found no space: soon at first, then less and less often.
//!
//! The n-th try comes `interval / 16 * 2^n` after the one before, at most [`STEPS_MAX`] doublings
//! on. Nobody sleeps here: threads of `background.rs` ask how long they may. Lock: a leaf.

use orogen_base::sync::Mutex;

/// Doublings of the pause between two tries, from a sixteenth of the interval to four of it.
const STEPS_MAX: u32 = 6;

/// A try that is due again and again until it succeeds.
#[derive(Debug, Default)]
pub(crate) struct Retry(Mutex<Option<Waiting>>);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    since_micros: u64,
    due_micros: u64,
    tries: u64,
}

impl Retry {
    /// Plans a first try, and returns true; one that is planned stays as it is.
    pub(crate) fn plan(&self, now_micros: u64, interval_micros: u64) -> bool {
        let mut waiting = self.0.lock();
        let is_first = waiting.is_none();
        waiting.get_or_insert(Waiting {
            since_micros: now_micros,
            due_micros: now_micros + interval_micros / 16,
            tries: 0,
        });
        is_first
    }

    /// Microseconds until a try is due, 0 if one is; `None` if none is planned.
    pub(crate) fn due_in(&self, now_micros: u64) -> Option<u64> {
        let waiting = (*self.0.lock())?;
        Some(waiting.due_micros.saturating_sub(now_micros))
    }

    /// Takes the try that is due, and plans the next; false if none is due.
    pub(crate) fn take(&self, now_micros: u64, interval_micros: u64) -> bool {
        let mut waiting = self.0.lock();
        let Some(waiting) = waiting.as_mut().filter(|w| w.due_micros <= now_micros) else {
            return false;
        };
        waiting.tries += 1;
        let steps = u32::try_from(waiting.tries).map_or(STEPS_MAX, |n| n.min(STEPS_MAX));
        let pause = (interval_micros / 16).saturating_mul(1 << steps).max(1);
        waiting.due_micros = now_micros.saturating_add(pause);
        true
    }

    /// Tries taken since it was planned.
    pub(crate) fn tries(&self) -> u64 {
        self.0.lock().map_or(0, |w| w.tries)
    }

    /// Nothing is tried any more; since when it was, and how often.
    pub(crate) fn end(&self) -> Option<(u64, u64)> {
        let ended = self.0.lock().take()?;
        Some((ended.since_micros, ended.tries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_come_less_and_less_often_and_never_twice_at_once() {
        let retry = Retry::default();
        assert_eq!(retry.due_in(0), None);
        assert!(retry.plan(1000, 1600) && !retry.plan(5000, 1600));
        assert_eq!(retry.due_in(1000), Some(100));
        assert!(!retry.take(1099, 1600));
        let mut pauses = Vec::new();
        let mut now = 1100;
        for _ in 0..9 {
            assert!(retry.take(now, 1600) && !retry.take(now, 1600));
            let pause = retry.due_in(now).unwrap();
            pauses.push(pause);
            now += pause;
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 6400, 6400, 6400]);
        assert_eq!(retry.end(), Some((1000, 9)));
        assert_eq!((retry.due_in(now), retry.tries()), (None, 0));
    }
}
