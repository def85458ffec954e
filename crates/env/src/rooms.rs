//! Threads that each wait for something of their own and are woken together, by one call of the system.
//!
//! To wake 15 threads one by one is 15 calls, at the end of each of which the system may let one of those run that were woken while the others
//! sleep on. Here a thread sleeps in a room under a bit; who wakes names the bits, of one thread or of all. A bit may be shared: who is
//! woken looks whether it was meant, and sleeps again.
//!
//! 1. What a thread waits for is set before it is woken, and whether it is set is looked at behind the room's count: either the thread sees it,
//!    or the count has changed, and it does not go to sleep.
//! 2. A thread may leave without having slept: a room outlives those who wake, not only those who wait.
//!
//! Source: futex(2), `FUTEX_WAIT_BITSET`. In the model, and on other systems, a lock and a condition do it.

use std::num::NonZeroU32;

use sleep::Word;

/// Where threads sleep.
///
/// A cache line of its own: whoever comes or goes changes the count of what it may lie in.
#[derive(Default)]
#[repr(align(64))]
pub struct Room(Word);

impl Room {
    /// Waits under `bit` until `is_set`, which is asked whenever somebody wakes that bit, and at times otherwise.
    pub fn wait(&self, bit: NonZeroU32, is_set: impl Fn() -> bool) {
        loop {
            let seen = self.0.count();
            if is_set() {
                return;
            }
            self.0.sleep(seen, bit);
        }
    }

    /// Wakes those who wait under `bits`. What they wait for is set.
    pub fn wake(&self, bits: NonZeroU32) {
        self.0.wake(bits);
    }
}

#[cfg(all(target_os = "linux", not(orogen_shuttle)))]
mod sleep {
    use std::num::NonZeroU32;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::thread::futex::{Flags, wait_bitset, wake_bitset};

    #[derive(Default)]
    pub(super) struct Word(AtomicU32);

    impl Word {
        pub(super) fn count(&self) -> u32 {
            self.0.load(Ordering::Acquire)
        }

        /// Sleeps if the count is still what was seen.
        pub(super) fn sleep(&self, seen: u32, bit: NonZeroU32) {
            // It is not, or a signal came: who waits looks again.
            let _ = wait_bitset(&self.0, Flags::PRIVATE, seen, None, bit);
        }

        /// How many slept.
        pub(super) fn wake(&self, bits: NonZeroU32) -> usize {
            self.0.fetch_add(1, Ordering::Release);
            // It fails for an address that is none.
            wake_bitset(&self.0, Flags::PRIVATE, i32::MAX as u32, bits).unwrap_or(0)
        }
    }
}

#[cfg(not(all(target_os = "linux", not(orogen_shuttle))))]
mod sleep {
    use std::num::NonZeroU32;

    use orogen_base::sync::{Condvar, Mistake, Mutex, makes};

    #[derive(Default)]
    pub(super) struct Word {
        count: Mutex<u32>,
        woken: Condvar,
    }

    impl Word {
        pub(super) fn count(&self) -> u32 {
            *self.count.lock()
        }

        /// Sleeps if the count is still what was seen.
        pub(super) fn sleep(&self, seen: u32, _: NonZeroU32) {
            let mut count = self.count.lock();
            if *count == seen {
                self.woken.wait(&mut count);
            }
        }

        /// Wakes all, how many it does not know: bits only spare who is not meant a look.
        pub(super) fn wake(&self, _: NonZeroU32) -> usize {
            if !makes(Mistake::WakeUncounted) {
                let mut count = self.count.lock();
                *count = count.wrapping_add(1);
            }
            self.woken.notify_all();
            0
        }
    }
}

#[cfg(all(test, not(orogen_shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn everybody_is_woken_each_time() {
        const THREADS: u64 = 4;
        const TURNS: u64 = 2_000;
        let room = Room::default();
        let (turn, arrived) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for n in 0..THREADS {
                let (room, turn, arrived) = (&room, &turn, &arrived);
                scope.spawn(move || {
                    // Two share each bit.
                    let bit = NonZeroU32::new(1 << (n / 2)).unwrap();
                    for wanted in 1..=TURNS {
                        room.wait(bit, || turn.load(Ordering::Acquire) >= wanted);
                        arrived.fetch_add(1, Ordering::Release);
                    }
                });
            }
            for now in 1..=TURNS {
                turn.store(now, Ordering::Release);
                room.wake(NonZeroU32::new(0b11).unwrap());
                while arrived.load(Ordering::Acquire) < now * THREADS {
                    thread::yield_now();
                }
            }
        });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn who_is_not_meant_sleeps_on() {
        let room = Room::default();
        let is_set = AtomicBool::new(false);
        let mut woken_for_nothing = 0;
        let (own, other) = (NonZeroU32::new(1).unwrap(), NonZeroU32::new(2).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| room.wait(own, || is_set.load(Ordering::Acquire)));
            for _ in 0..20 {
                // It slept, and goes to sleep again.
                while room.0.wake(own) == 0 {
                    thread::yield_now();
                }
                for _ in 0..20 {
                    thread::yield_now();
                    woken_for_nothing += room.0.wake(other);
                }
            }
            is_set.store(true, Ordering::Release);
            room.wake(own);
        });
        assert_eq!(woken_for_nothing, 0);
    }
}
