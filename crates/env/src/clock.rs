//! Time, so that tests can make their own.

use std::time::Duration;

/// A source of time.
pub trait Clock: Send + Sync {
    /// Microseconds since some fixed point; never goes back.
    fn now_micros(&self) -> u64;
    /// Seconds since 1970.
    fn unix_secs(&self) -> u64;
    /// Waits.
    fn sleep(&self, d: Duration);
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[expect(clippy::disallowed_methods, reason = "this is the module that the others must use")]
impl Clock for SystemClock {
    fn now_micros(&self) -> u64 {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_micros() as u64
    }

    fn unix_secs(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs())
    }

    fn sleep(&self, d: Duration) {
        std::thread::sleep(d);
    }
}
