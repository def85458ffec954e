//! A token bucket that keeps background writes from starving the foreground.
//!
//! Tokens are bytes. They come in steadily and at most a tenth of a second's worth is saved, so
//! that a pause is not followed by a burst. A request that finds too few takes what is there
//! and sleeps for the rest in slices of at most a tenth of a second, so a change of the rate is
//! felt by those who wait. Whole seconds are granted at the rate; two waiting threads share it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;

/// The longest sleep, and the time for which tokens are saved.
const SLICE_MICROS: u64 = 100_000;
/// Token units of one byte: a rate in bytes per second gives as many units in a microsecond.
const UNITS_PER_BYTE: u64 = 1_000_000;
/// Beyond this a rate is as good as none; it keeps the arithmetic within 64 bits.
const MAX_RATE: u64 = 1 << 40;

/// Limits bytes per second.
pub struct RateLimiter {
    clock: Arc<dyn Clock>,
    /// A leaf lock, never held while sleeping.
    bucket: Mutex<Bucket>,
    bytes: AtomicU64,
    waited_micros: AtomicU64,
}

struct Bucket {
    rate: u64,
    units: u64,
    filled_at: u64,
}

impl Bucket {
    fn fill(&mut self, now: u64) {
        let micros = now.saturating_sub(self.filled_at).min(SLICE_MICROS);
        self.filled_at = self.filled_at.max(now);
        // One byte at least fits, else a rate below 10 would never grant anything.
        let most = (self.rate * SLICE_MICROS).max(UNITS_PER_BYTE);
        self.units = (self.units + micros * self.rate).min(most);
    }
}

impl RateLimiter {
    /// A limiter with an empty bucket; a rate of 0 means no limit.
    #[must_use]
    pub fn new(bytes_per_sec: u64, clock: Arc<dyn Clock>) -> Self {
        let bucket = Bucket {
            rate: bytes_per_sec.min(MAX_RATE),
            units: 0,
            filled_at: clock.now_micros(),
        };
        Self {
            clock,
            bucket: Mutex::new(bucket),
            bytes: AtomicU64::new(0),
            waited_micros: AtomicU64::new(0),
        }
    }

    /// Waits until `bytes` may be written.
    pub fn request(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut left = bytes;
        while let Some(micros) = self.take(&mut left) {
            self.waited_micros.fetch_add(micros, Ordering::Relaxed);
            self.clock.sleep(Duration::from_micros(micros));
        }
    }

    /// Takes what is there from the bucket; how long to sleep if it was not enough.
    fn take(&self, left: &mut u64) -> Option<u64> {
        let mut bucket = self.bucket.lock();
        if bucket.rate == 0 || *left == 0 {
            return None;
        }
        bucket.fill(self.clock.now_micros());
        let taken = (*left).min(bucket.units / UNITS_PER_BYTE);
        bucket.units -= taken * UNITS_PER_BYTE;
        *left -= taken;
        if *left == 0 {
            return None;
        }
        let missing = left
            .saturating_mul(UNITS_PER_BYTE)
            .saturating_sub(bucket.units);
        Some(missing.div_ceil(bucket.rate).clamp(1, SLICE_MICROS))
    }

    /// Changes the rate, also for those who wait; 0 means no limit.
    pub fn set_bytes_per_sec(&self, bytes_per_sec: u64) {
        let mut bucket = self.bucket.lock();
        bucket.fill(self.clock.now_micros());
        bucket.rate = bytes_per_sec.min(MAX_RATE);
    }

    /// The rate; 0 means no limit.
    #[must_use]
    pub fn bytes_per_sec(&self) -> u64 {
        self.bucket.lock().rate
    }

    /// Bytes asked for since the start.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Microseconds slept since the start, by all threads together.
    #[must_use]
    pub fn total_waited_micros(&self) -> u64 {
        self.waited_micros.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn limiter(rate: u64) -> (Arc<ManualClock>, RateLimiter) {
        let clock = Arc::new(ManualClock::new());
        (Arc::clone(&clock), RateLimiter::new(rate, clock))
    }

    #[test]
    fn bytes_take_the_time_that_the_rate_says() {
        let (clock, limiter) = limiter(1_000_000);
        for _ in 0..100 {
            limiter.request(50_000);
        }
        let elapsed = clock.now_micros();
        assert!((4_900_000..=5_100_000).contains(&elapsed), "{elapsed}");
        assert_eq!(limiter.total_bytes(), 5_000_000);
        assert_eq!(limiter.total_waited_micros(), elapsed);
    }

    #[test]
    fn a_request_larger_than_the_bucket_is_granted() {
        let (clock, limiter) = limiter(1000);
        limiter.request(10_000);
        assert!(clock.now_micros() >= 9_900_000);
        limiter.request(0);
    }

    #[test]
    fn the_slowest_rate_still_grants() {
        let (clock, limiter) = limiter(1);
        limiter.request(3);
        assert!((2_900_000..=3_200_000).contains(&clock.now_micros()));
    }

    #[test]
    fn a_pause_saves_a_slice_and_no_more() {
        let (clock, limiter) = limiter(1_000_000);
        clock.advance(Duration::from_secs(60));
        let start = clock.now_micros();
        limiter.request(1_000_000);
        assert_eq!(clock.now_micros() - start, 900_000);
    }

    #[test]
    fn zero_means_no_limit_and_the_rate_can_be_changed() {
        let (clock, limiter) = limiter(0);
        limiter.request(u64::MAX);
        assert_eq!(clock.now_micros(), 0);
        limiter.set_bytes_per_sec(100);
        limiter.request(100);
        assert_eq!(clock.now_micros(), 1_000_000);
        assert_eq!(limiter.bytes_per_sec(), 100);
        limiter.set_bytes_per_sec(0);
        limiter.request(1 << 40);
        assert_eq!(clock.now_micros(), 1_000_000);
    }

    #[test]
    fn a_change_of_the_rate_is_felt_by_those_who_wait() {
        struct Changing {
            clock: ManualClock,
            limiter: std::sync::OnceLock<std::sync::Weak<RateLimiter>>,
        }
        impl Clock for Changing {
            fn now_micros(&self) -> u64 {
                self.clock.now_micros()
            }
            fn unix_secs(&self) -> u64 {
                self.clock.unix_secs()
            }
            fn sleep(&self, d: Duration) {
                self.clock.sleep(d);
                if let Some(limiter) = self.limiter.get().and_then(std::sync::Weak::upgrade) {
                    limiter.set_bytes_per_sec(0);
                }
            }
        }
        let clock = Arc::new(Changing {
            clock: ManualClock::new(),
            limiter: std::sync::OnceLock::new(),
        });
        let limiter = Arc::new(RateLimiter::new(1, Arc::clone(&clock) as Arc<dyn Clock>));
        clock.limiter.set(Arc::downgrade(&limiter)).unwrap();
        limiter.request(1 << 30);
        assert_eq!(clock.now_micros(), SLICE_MICROS);
    }
}
