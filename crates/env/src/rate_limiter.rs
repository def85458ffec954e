//! A token bucket that keeps background writes from starving the foreground.
//!
//! Tokens are bytes. They come in steadily and at most a tenth of a second's worth is saved, so
//! that a pause is not followed by a burst. A request that finds too few takes what is there
//! and sleeps for the rest in slices of at most a tenth of a second, so a change of the rate is
//! felt by those who wait. Whole seconds are granted at the rate; those who wait share it.
//!
//! Who has a higher [`IoPriority`] goes first, and is taken to wait for a tenth of a second after it last
//! asked: between two writes of a flush its next block is compressed, and what is saved meanwhile is
//! the flush's. So that nobody starves, of the tokens that come in while a lower and a higher one wait,
//! each lower one gets a tenth laid by, and what is more than can be saved:
//!
//! ```text
//! tokens -- a tenth --> low's share     (while low waits and somebody above does, or did just now)
//!        -- a tenth --> high's share    (while high waits and user does)
//!        -- the rest -> common          (the highest that waits takes it; alone, anybody)
//!                          `-- above a tenth of a second's worth --> share of the highest that waits
//! ```

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::Clock;

/// The longest sleep, and the time for which tokens are saved.
const SLICE_MICROS: u64 = 100_000;
/// Token units of one byte: a rate in bytes per second gives as many units in a microsecond.
const UNITS_PER_BYTE: u64 = 1_000_000;
/// Beyond this a rate is as good as none; it keeps the arithmetic within 64 bits.
const MAX_RATE: u64 = 1 << 40;
/// One part in so many goes to each lower priority that waits beside a higher one.
const FAIRNESS: u64 = 10;

/// Who had to wait is short for so long: flushes come one after the other.
const SHORT_MICROS: u64 = 1_000_000;

/// Who goes first at a [`RateLimiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum IoPriority {
    /// Compactions.
    Low,
    /// Flushes: writers may wait for them.
    High,
    /// What a user waits for.
    User,
}

impl IoPriority {
    const COUNT: usize = 3;
}

/// Limits bytes per second. Databases that are given the same one share it.
pub struct RateLimiter {
    clock: Arc<dyn Clock>,
    /// A leaf lock, never held while sleeping.
    bucket: Mutex<Bucket>,
    bytes: [AtomicU64; IoPriority::COUNT],
    waited_micros: [AtomicU64; IoPriority::COUNT],
}

struct Bucket {
    rate: u64,
    common: u64,
    /// Laid by for each priority.
    shares: [u64; IoPriority::COUNT],
    /// Requests of each priority that wait.
    waiting: [usize; IoPriority::COUNT],
    /// When each priority last asked or was granted what it waited for.
    asked_at: [Option<u64>; IoPriority::COUNT],
    /// When each priority last was not granted at once what it asked for.
    short_at: [Option<u64>; IoPriority::COUNT],
    filled_at: u64,
}

impl Bucket {
    /// True if somebody above waits, or is about to again.
    fn is_behind(&self, priority: usize) -> bool {
        let just_now = |at: u64| self.filled_at.saturating_sub(at) < SLICE_MICROS;
        let above = priority + 1..IoPriority::COUNT;
        above
            .into_iter()
            .any(|p| self.waiting[p] > 0 || self.asked_at[p].is_some_and(just_now))
    }

    fn fill(&mut self, now: u64) {
        let micros = now.saturating_sub(self.filled_at).min(SLICE_MICROS);
        self.filled_at = self.filled_at.max(now);
        // One byte at least fits, else a rate below 10 would never grant anything.
        let most = (self.rate * SLICE_MICROS).max(UNITS_PER_BYTE);
        let mut left = micros * self.rate;
        for priority in 0..IoPriority::COUNT {
            if self.waiting[priority] > 0 && self.is_behind(priority) {
                let share = micros * self.rate / FAIRNESS;
                let room = most.saturating_sub(self.shares[priority]);
                left -= share.min(room);
                self.shares[priority] += share.min(room);
            } else {
                left += std::mem::take(&mut self.shares[priority]);
            }
        }
        let all = self.common + left;
        self.common = all.min(most);
        let highest = (0..IoPriority::COUNT).rfind(|&p| self.waiting[p] > 0);
        if let Some(share) = highest.map(|p| &mut self.shares[p]) {
            *share = (*share + all - self.common).min(most);
        }
    }

    /// Takes up to `wanted` bytes for a request.
    fn take(&mut self, priority: usize, wanted: u64) -> u64 {
        let behind = self.is_behind(priority);
        let there = self.shares[priority] + if behind { 0 } else { self.common };
        let taken = wanted.min(there / UNITS_PER_BYTE);
        let units = taken * UNITS_PER_BYTE;
        let of_share = units.min(self.shares[priority]);
        self.shares[priority] -= of_share;
        self.common -= units - of_share;
        taken
    }

    /// Microseconds until there may be enough for `left` bytes.
    fn pause(&self, priority: usize, left: u64) -> u64 {
        let (have, rate) = if self.is_behind(priority) {
            (self.shares[priority], self.rate / FAIRNESS)
        } else {
            (self.shares[priority] + self.common, self.rate)
        };
        let missing = left.saturating_mul(UNITS_PER_BYTE).saturating_sub(have);
        missing.div_ceil(rate.max(1)).clamp(1, SLICE_MICROS)
    }
}

impl RateLimiter {
    /// A limiter with an empty bucket; a rate of 0 means no limit.
    #[must_use]
    pub fn new(bytes_per_sec: u64, clock: Arc<dyn Clock>) -> Self {
        let bucket = Bucket {
            rate: bytes_per_sec.min(MAX_RATE),
            common: 0,
            shares: [0; IoPriority::COUNT],
            waiting: [0; IoPriority::COUNT],
            asked_at: [None; IoPriority::COUNT],
            short_at: [None; IoPriority::COUNT],
            filled_at: clock.now_micros(),
        };
        Self {
            clock,
            bucket: Mutex::new(bucket),
            bytes: Default::default(),
            waited_micros: Default::default(),
        }
    }

    /// Waits until `bytes` may be read or written for somebody who waits for it.
    pub fn request(&self, bytes: u64) {
        self.request_until(bytes, IoPriority::User, &AtomicBool::new(false));
    }

    /// Waits until `bytes` may be written at this priority, or `stop` is set: then the rest is
    /// granted at once.
    pub fn request_until(&self, bytes: u64, priority: IoPriority, stop: &AtomicBool) {
        let own = priority as usize;
        self.bytes[own].fetch_add(bytes, Ordering::Relaxed);
        let mut left = bytes;
        let mut listed = false;
        loop {
            let mut bucket = self.bucket.lock();
            let unlimited = bucket.rate == 0 || stop.load(Ordering::Relaxed);
            if unlimited {
                left = 0;
            } else if left > 0 {
                let now = self.clock.now_micros();
                bucket.fill(now);
                left -= bucket.take(own, left);
                bucket.asked_at[own] = Some(now);
                if listed || left > 0 {
                    bucket.short_at[own] = Some(now);
                }
            }
            if left == 0 {
                bucket.waiting[own] -= usize::from(listed);
                return;
            }
            if !listed {
                bucket.waiting[own] += 1;
                listed = true;
            }
            let micros = bucket.pause(own, left);
            drop(bucket);
            self.waited_micros[own].fetch_add(micros, Ordering::Relaxed);
            self.clock.sleep(Duration::from_micros(micros));
        }
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

    /// The rate at this priority while somebody above waits all the time; without a limit there is none.
    #[must_use]
    pub fn bytes_per_sec_beside(&self, priority: IoPriority) -> u64 {
        match self.bytes_per_sec() {
            0 => u64::MAX,
            rate if priority == IoPriority::User => rate,
            rate => rate / FAIRNESS,
        }
    }

    /// True if somebody above `priority` waits, or did within the last second: whatever is granted below makes them
    /// wait longer.
    #[must_use]
    pub fn is_short_above(&self, priority: IoPriority) -> bool {
        let bucket = self.bucket.lock();
        let now = self.clock.now_micros();
        let just_now = |at: u64| now.saturating_sub(at) < SHORT_MICROS;
        bucket.rate > 0
            && (priority as usize + 1..IoPriority::COUNT)
                .any(|p| bucket.waiting[p] > 0 || bucket.short_at[p].is_some_and(just_now))
    }

    /// Bytes asked for since the start.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().map(|b| b.load(Ordering::Relaxed)).sum()
    }

    /// Bytes asked for at this priority since the start.
    #[must_use]
    pub fn total_bytes_of(&self, priority: IoPriority) -> u64 {
        self.bytes[priority as usize].load(Ordering::Relaxed)
    }

    /// Microseconds slept since the start, by all threads together.
    #[must_use]
    pub fn total_waited_micros(&self) -> u64 {
        let waited = self.waited_micros.iter();
        waited.map(|w| w.load(Ordering::Relaxed)).sum()
    }

    /// The same at this priority.
    #[must_use]
    pub fn total_waited_micros_of(&self, priority: IoPriority) -> u64 {
        self.waited_micros[priority as usize].load(Ordering::Relaxed)
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
    fn who_had_to_wait_is_short_for_a_second() {
        let (clock, limiter) = limiter(1000);
        let ask = |bytes, priority| {
            limiter.request_until(bytes, priority, &AtomicBool::new(false));
        };
        clock.advance(Duration::from_secs(1));
        ask(100, IoPriority::High);
        assert!(!limiter.is_short_above(IoPriority::Low), "granted at once");
        ask(500, IoPriority::Low);
        assert!(!limiter.is_short_above(IoPriority::Low), "not above");
        ask(500, IoPriority::High);
        assert!(limiter.is_short_above(IoPriority::Low));
        assert!(!limiter.is_short_above(IoPriority::High));
        clock.advance(Duration::from_millis(900));
        assert!(limiter.is_short_above(IoPriority::Low));
        clock.advance(Duration::from_millis(100));
        assert!(!limiter.is_short_above(IoPriority::Low));
        ask(500, IoPriority::User);
        assert!(limiter.is_short_above(IoPriority::Low));
        limiter.set_bytes_per_sec(0);
        assert!(!limiter.is_short_above(IoPriority::Low), "no limit");
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
            fn unix_micros(&self) -> u64 {
                self.clock.unix_micros()
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

    /// Bytes that each priority gets in so many steps of a millisecond, all of them always
    /// waiting for more.
    fn shared(rate: u64, waiting: [usize; 3], steps: u64) -> [u64; 3] {
        let (clock, limiter) = limiter(rate);
        limiter.bucket.lock().waiting = waiting;
        let mut got = [0; 3];
        for _ in 0..steps {
            clock.advance(Duration::from_millis(1));
            let mut bucket = limiter.bucket.lock();
            bucket.fill(clock.now_micros());
            // In the order that is worst for the higher ones.
            for priority in 0..3 {
                if waiting[priority] > 0 {
                    got[priority] += bucket.take(priority, u64::MAX / UNITS_PER_BYTE);
                }
            }
        }
        got
    }

    #[test]
    fn the_higher_priority_goes_first_and_the_lower_gets_its_tenth() {
        let (low, high, user) = ([1, 0, 0], [0, 1, 0], [0, 0, 1]);
        assert_eq!(shared(1_000_000, low, 1000), [1_000_000, 0, 0]);
        assert_eq!(shared(1_000_000, high, 1000), [0, 1_000_000, 0]);
        assert_eq!(shared(1_000_000, user, 1000), [0, 0, 1_000_000]);
        assert_eq!(shared(1_000_000, [4, 1, 0], 1000), [100_000, 900_000, 0]);
        assert_eq!(
            shared(1_000_000, [1, 1, 1], 1000),
            [100_000, 100_000, 800_000]
        );
    }

    #[test]
    fn what_comes_in_between_two_requests_of_a_higher_one_is_saved_for_it() {
        let (clock, limiter) = limiter(1_000_000);
        let never = AtomicBool::new(false);
        limiter.request_until(1000, IoPriority::High, &never);
        let take = |priority: usize| {
            let mut bucket = limiter.bucket.lock();
            bucket.fill(clock.now_micros());
            bucket.take(priority, u64::MAX / UNITS_PER_BYTE)
        };
        limiter.bucket.lock().waiting = [1, 0, 0];
        let mut low = 0;
        for _ in 0..50 {
            clock.advance(Duration::from_millis(1));
            low += take(0);
        }
        assert_eq!(low, 5_000, "its tenth");
        assert_eq!(take(1), 45_000);
        // It does not come again: what cannot be saved for it is not lost, and then all is anybody's.
        limiter.bucket.lock().asked_at[1] = Some(clock.now_micros());
        for _ in 0..99 {
            clock.advance(Duration::from_millis(1));
            low += take(0);
        }
        assert_eq!(low, 14_900);
        limiter.bucket.lock().asked_at[1] = Some(clock.now_micros());
        for _ in 0..50 {
            clock.advance(Duration::from_millis(1));
            low += take(0);
        }
        assert_eq!(low, 14_900 + 5_000 + 34_100, "above 100,000");
        clock.advance(Duration::from_millis(50));
        assert_eq!(take(0), 150_000);
    }

    #[test]
    fn what_was_laid_by_is_not_lost_when_nobody_is_in_the_way() {
        let (clock, limiter) = limiter(1_000_000);
        limiter.bucket.lock().waiting = [1, 1, 0];
        clock.advance(Duration::from_millis(50));
        let mut bucket = limiter.bucket.lock();
        bucket.fill(clock.now_micros());
        assert_eq!(bucket.shares[0], 5_000 * UNITS_PER_BYTE);
        bucket.waiting = [0, 1, 0];
        bucket.fill(clock.now_micros());
        assert_eq!(bucket.take(1, u64::MAX / UNITS_PER_BYTE), 50_000);
    }

    #[test]
    fn each_priority_is_accounted_for_by_itself() {
        let (clock, limiter) = limiter(1000);
        let never = AtomicBool::new(false);
        limiter.request_until(500, IoPriority::Low, &never);
        limiter.request_until(1500, IoPriority::High, &never);
        limiter.request(1000);
        assert_eq!(clock.now_micros(), 3_000_000);
        assert_eq!(limiter.total_bytes_of(IoPriority::Low), 500);
        assert_eq!(limiter.total_bytes_of(IoPriority::High), 1500);
        assert_eq!(limiter.total_bytes_of(IoPriority::User), 1000);
        assert_eq!(limiter.total_waited_micros_of(IoPriority::High), 1_500_000);
        assert_eq!(limiter.total_waited_micros(), 3_000_000);
        assert_eq!(limiter.bucket.lock().waiting, [0; 3]);
    }

    #[test]
    fn who_is_told_to_stop_waits_no_longer() {
        let (clock, limiter) = limiter(1);
        limiter.request_until(1 << 40, IoPriority::Low, &AtomicBool::new(true));
        assert_eq!(clock.now_micros(), 0);
        assert_eq!(limiter.total_bytes(), 1 << 40);
    }
}
