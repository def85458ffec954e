//! Groups become visible in the order of their numbers, and no writer returns before its own is.
//!
//! ```text
//! ticket       published          next
//!                  |                |
//! done[t % N]   x  x  .  x  x  .    |     x: inserted, .: still inserting
//! ```
//! The leader takes a ticket for its group. Whoever ends a group marks its place, then moves
//! `published` over all marked places that follow it and raises `visible` to the last number of
//! the last of them. Neither takes a lock.
//!
//! 1. `last[t % N]` is written by the leader before anybody can mark ticket `t`, and not again
//!    before `published` has passed `t`: at most N groups are open.
//! 2. A mark is the ticket plus one, so marks of an earlier round say nothing.
//! 3. Marking and then looking at the front is in one total order with every other writer's: of
//!    two that end at once, one sees the other's mark.
//! 4. Who moves `published` raises `visible` after it. So a writer waits for `visible`, not for
//!    `published`.

use orogen_base::SeqNo;
use orogen_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use orogen_base::sync::{self, Condvar, Mistake, Mutex};

use crate::sequence::Sequence;

/// Groups that may be open at once; a power of two.
const OPEN_MAX: usize = 256;
/// Looks before a writer sleeps until the groups before its own are done: about what a few
/// inserts take, and less than a sleep and a wake-up cost.
const SPINS: usize = sync::spins(200);

struct Slot {
    /// The last number of the group.
    last: AtomicU64,
    /// The ticket plus one, once its inserts are done.
    done: AtomicU64,
}

/// Groups in the order of their numbers.
pub(super) struct PublicationOrder {
    slots: Box<[Slot]>,
    /// The ticket of the next group; the leader's alone.
    next: AtomicU64,
    /// All groups with smaller tickets are done.
    published: AtomicU64,
    /// Threads that sleep or are about to.
    sleepers: AtomicUsize,
    /// Leaf lock.
    sleep: Mutex<()>,
    moved: Condvar,
}

/// The place of a group.
pub(super) struct Place {
    ticket: u64,
    last: SeqNo,
}

impl Default for PublicationOrder {
    fn default() -> Self {
        Self {
            slots: (0..OPEN_MAX)
                .map(|_| Slot {
                    last: AtomicU64::new(0),
                    done: AtomicU64::new(0),
                })
                .collect(),
            next: AtomicU64::new(0),
            published: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            moved: Condvar::new(),
        }
    }
}

impl PublicationOrder {
    #[inline]
    fn slot(&self, ticket: u64) -> &Slot {
        &self.slots[ticket as usize % OPEN_MAX]
    }

    /// Takes the next place for a group whose last number is `last`. Only the leader calls it.
    pub(super) fn enter(&self, last: SeqNo) -> Place {
        let ticket = self.next.load(Ordering::Relaxed);
        self.wait_until(|| ticket - self.published.load(Ordering::SeqCst) < OPEN_MAX as u64);
        self.slot(ticket).last.store(last, Ordering::Relaxed);
        self.next.store(ticket + 1, Ordering::Relaxed);
        Place { ticket, last }
    }

    /// Marks a group done and waits until readers see it.
    pub(super) fn leave(&self, place: &Place, sequence: &Sequence) {
        let done = &self.slot(place.ticket).done;
        done.swap(place.ticket + 1, Ordering::SeqCst);
        if sync::makes(Mistake::PublishOutOfOrder) {
            sequence.raise_visible(place.last);
        }
        self.advance(sequence);
        self.wait_until(|| sequence.visible() >= place.last);
    }

    /// Publishes what is done at the front.
    fn advance(&self, sequence: &Sequence) {
        let mut published = self.published.load(Ordering::SeqCst);
        loop {
            let mut end = published;
            let mut last = 0;
            while self.slot(end).done.load(Ordering::SeqCst) == end + 1 {
                last = self.slot(end).last.load(Ordering::Relaxed);
                end += 1;
            }
            if end == published {
                return;
            }
            match self.published.compare_exchange(
                published,
                end,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => {
                    sequence.raise_visible(last);
                    let is_awaited = self.sleepers.load(Ordering::SeqCst) > 0;
                    if is_awaited && !sync::makes(Mistake::ForgetToWake) {
                        drop(self.sleep.lock());
                        self.moved.notify_all();
                    }
                    // What was marked after the look may have been left to this thread.
                    published = end;
                }
                Err(now) => published = now,
            }
        }
    }

    /// Waits until every group is done and seen. Only the leader calls it, so none is added.
    pub(super) fn wait_until_empty(&self, sequence: &Sequence) {
        let next = self.next.load(Ordering::Relaxed);
        let all = sequence.allocated();
        self.wait_until(|| {
            self.published.load(Ordering::SeqCst) == next && sequence.visible() >= all
        });
    }

    #[inline]
    fn wait_until(&self, is_reached: impl Fn() -> bool) {
        for _ in 0..SPINS {
            if is_reached() {
                return;
            }
            std::hint::spin_loop();
        }
        self.sleep_until(&is_reached);
    }

    #[cold]
    fn sleep_until(&self, is_reached: &dyn Fn() -> bool) {
        let mut guard = self.sleep.lock();
        // Either this thread sees what was raised, or the raiser sees it here.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !is_reached() {
            self.moved.wait(&mut guard);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn visible_waits_for_the_oldest() {
        let order = PublicationOrder::default();
        let sequence = Sequence::default();
        sequence.set_allocated(30);
        let [first, second, third] = [10, 20, 30].map(|last| order.enter(last));
        std::thread::scope(|scope| {
            let later = [third, second].map(|place| {
                let (order, sequence) = (&order, &sequence);
                scope.spawn(move || {
                    order.leave(&place, sequence);
                    assert!(sequence.visible() >= place.last);
                })
            });
            while order.sleepers.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            assert_eq!(sequence.visible(), 0);
            assert!(later.iter().all(|t| !t.is_finished()));
            order.leave(&first, &sequence);
            assert_eq!(sequence.visible(), 30);
        });
        order.wait_until_empty(&sequence);
    }

    #[test]
    fn more_groups_than_places_wait_for_each_other() {
        let order = PublicationOrder::default();
        let sequence = Sequence::default();
        let lead = Mutex::new(0);
        // A number is here once its group's inserts are done.
        let inserted: Vec<AtomicBool> = (0..40_001).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    loop {
                        let place = {
                            let mut last = lead.lock();
                            if *last == 40_000 {
                                return;
                            }
                            *last += 2;
                            sequence.set_allocated(*last);
                            order.enter(*last)
                        };
                        for number in [place.last - 1, place.last] {
                            inserted[number as usize].store(true, Ordering::Relaxed);
                        }
                        order.leave(&place, &sequence);
                        let visible = sequence.visible();
                        assert!(visible >= place.last);
                        // From the newest: the older ones have been looked at before.
                        for number in (1..=visible).rev().take(50) {
                            assert!(inserted[number as usize].load(Ordering::Relaxed));
                        }
                    }
                });
            }
        });
        assert_eq!(sequence.visible(), 40_000);
        order.wait_until_empty(&sequence);
        assert_eq!(order.sleepers.load(Ordering::Relaxed), 0);
    }
}
