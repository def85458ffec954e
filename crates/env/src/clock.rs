//! Time, so that tests can make their own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Microseconds since some fixed point; never goes back.
    fn now_micros(&self) -> u64;
    /// Microseconds since 1970.
    fn unix_micros(&self) -> u64;
    /// Seconds since 1970.
    fn unix_secs(&self) -> u64 {
        self.unix_micros() / 1_000_000
    }
    /// Waits.
    fn sleep(&self, d: Duration);
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[expect(
    clippy::disallowed_methods,
    reason = "this is the module that the others must use"
)]
impl Clock for SystemClock {
    fn now_micros(&self) -> u64 {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_micros() as u64
    }

    fn unix_micros(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
    }

    fn sleep(&self, d: Duration) {
        std::thread::sleep(d);
    }
}

/// A clock that stands still until a test moves it; a sleep moves it and returns at once.
#[derive(Debug, Default)]
pub struct ManualClock {
    micros: AtomicU64,
}

impl ManualClock {
    /// Seconds since 1970 at which it starts (September 2020).
    pub const START_UNIX_SECS: u64 = 1_600_000_000;

    /// A clock at 0 microseconds and [`Self::START_UNIX_SECS`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock on.
    pub fn advance(&self, d: Duration) {
        let micros = u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_micros(&self) -> u64 {
        self.micros.load(Ordering::SeqCst)
    }

    fn unix_micros(&self) -> u64 {
        Self::START_UNIX_SECS * 1_000_000 + self.now_micros()
    }

    fn sleep(&self, d: Duration) {
        self.advance(d);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new();
        assert_eq!(clock.now_micros(), 0);
        assert_eq!(clock.unix_secs(), ManualClock::START_UNIX_SECS);
        clock.sleep(Duration::from_millis(1500));
        clock.advance(Duration::from_millis(500));
        assert_eq!(clock.now_micros(), 2_000_000);
        assert_eq!(clock.unix_secs(), ManualClock::START_UNIX_SECS + 2);
    }

    #[test]
    fn the_systems_clock_never_goes_back() {
        let first = SystemClock.now_micros();
        assert!(SystemClock.now_micros() >= first);
        assert!(SystemClock.unix_secs() > ManualClock::START_UNIX_SECS);
    }
}
