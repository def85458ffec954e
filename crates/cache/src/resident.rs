//! The entries of a shard and who leaves next: S3-FIFO.
//!
//! ```text
//! insert --new--> small (a tenth) --hit twice--> main (the rest) --no hit--> out
//!    |  |            |                             ^ ^ |
//!    |  |            +--fewer hits--> out, key     | | +--hit: again at the tail
//!    |  +--key in ghost, or of high priority-------+ |
//!    +--of bottom priority--> bottom --hit twice-----+
//! ```
//! Most entries are never asked for again; they leave by the small queue and never reach the
//! main one. A key that comes back soon after it left was misjudged and enters main at once.
//! Entries of bottom priority wait in a queue of their own, which may be as large as the small one and
//! larger only while nobody wants the room; their keys are not remembered when they leave it. So they fill
//! what others leave, and cost others no more than a tenth unless they are asked for as often.
//!
//! 1. The queues' `bytes` together are the sum of the charges in `table`, and with `held_bytes` at
//!    most `capacity`, unless what is held takes more by itself: then nothing is kept.
//! 2. Each entry of `table` has exactly one slot with its ticket, in the queue `stand` says;
//!    slots with another ticket are left over from an erase and are skipped.
//! 3. Hit counts rise only under the shared lock and fall only under the exclusive one, so an
//!    eviction ends; it gives at most `SECOND_CHANCES_MAX` second chances, so it ends soon.
//! 4. A value that leaves while somebody has it is *held*: its memory is not free, so it counts
//!    until it is seen to be gone, which is looked for from time to time, and when what is held may be twice what it was.
//! 5. An entry that somebody has stays while one that nobody has is not far behind it, `IN_USE_PASSED_MAX` such ones at most:
//!    its memory would not be free, and who asks for it next would read it a second time.

use orogen_base::sync::atomic::{AtomicU8, Ordering};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;

use crate::prefetch::prefetch;
use crate::{CacheKey, Priority};

/// The small queue's share of the capacity is one part in this many.
const SMALL_PART: usize = 10;

/// And that of the bottom queue, while others want room.
const BOTTOM_PART: usize = 10;

/// Hits are counted up to here.
const HITS_MAX: u8 = 3;

/// Hits that move an entry from small to main: two, because one lookup and its neighbour often
/// come together.
const HITS_TO_MAIN: u8 = 2;

/// Bounds how long one eviction holds the lock.
const SECOND_CHANCES_MAX: usize = 256;

/// And how many are passed over because somebody has them, which they may have for ever.
const IN_USE_PASSED_MAX: usize = 16;

/// Those that are held are looked at each time so many more have left.
const HELD_LOOK_EVERY: usize = 64;

/// So few that are held are looked at each time that something would have to leave.
const HELD_FEW: usize = 16;

/// And all of them when so large a part of the capacity, and as much as there was at the last look, has come to be held.
const HELD_LOOK_PART: usize = 8;

/// What is held beyond the capacity is told of when it changed by one part in so many.
const OVERDRAFT_PART: usize = 128;

/// Where the others have taken most of the capacity, by one part in so many of what it was.
const FORMER_OVERDRAFT_PART: usize = 32;

/// Left-over slots that are not worth a clean-up.
const STALE_SLOTS_MAX: usize = 64;

/// The queue that an entry stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    Bottom,
    Small,
    Main,
}

struct Entry<V> {
    value: Arc<V>,
    charge: usize,
    ticket: u64,
    hits: AtomicU8,
    stand: Stand,
}

#[derive(Clone, Copy)]
struct Slot {
    key: CacheKey,
    ticket: u64,
    /// Where the value's counters are, only to be fetched ahead of the eviction that asks them.
    address: usize,
}

#[derive(Default)]
struct Queue {
    slots: VecDeque<Slot>,
    bytes: usize,
    live: usize,
}

impl Queue {
    fn push(&mut self, slot: Slot, charge: usize) {
        self.slots.push_back(slot);
        self.bytes += charge;
        self.live += 1;
    }

    fn forget(&mut self, charge: usize) {
        self.bytes -= charge;
        self.live -= 1;
    }
}

/// Keys that left the small queue lately, oldest first.
#[derive(Default)]
struct Ghost {
    order: VecDeque<Slot>,
    tickets: HashMap<CacheKey, u64, RandomState>,
}

impl Ghost {
    fn add(&mut self, slot: Slot, len_max: usize) {
        self.tickets.insert(slot.key, slot.ticket);
        self.order.push_back(slot);
        while self.order.len() > len_max {
            let Some(old) = self.order.pop_front() else {
                break;
            };
            if self.tickets.get(&old.key) == Some(&old.ticket) {
                self.tickets.remove(&old.key);
            }
        }
    }

    fn take(&mut self, key: CacheKey) -> bool {
        self.tickets.remove(&key).is_some()
    }
}

/// How many more an eviction lets stay.
struct Chances {
    hit: usize,
    in_use: usize,
}

impl Chances {
    /// True if a value stays because somebody has it.
    fn passes_over<V>(&mut self, value: &Arc<V>) -> bool {
        let passes = self.in_use > 0 && Arc::strong_count(value) > 1;
        self.in_use -= usize::from(passes);
        passes
    }
}

/// What left, to be dropped outside the lock; most inserts push out one value.
pub(crate) struct Leaving<V> {
    pub(crate) first: Option<Arc<V>>,
    more: Vec<Arc<V>>,
}

impl<V> Leaving<V> {
    pub(crate) fn new() -> Self {
        Self {
            first: None,
            more: Vec::new(),
        }
    }

    fn push(&mut self, value: Arc<V>) {
        match self.first {
            None => self.first = Some(value),
            Some(_) => self.more.push(value),
        }
    }
}

pub(crate) struct Residents<V> {
    table: HashMap<CacheKey, Entry<V>, RandomState>,
    bottom: Queue,
    small: Queue,
    main: Queue,
    ghost: Ghost,
    capacity: usize,
    /// The most that it ever was.
    capacity_max: usize,
    held: Vec<(Weak<V>, usize)>,
    held_bytes: usize,
    /// [`Self::held_bytes`] at the last look.
    held_seen: usize,
    /// [`Self::overdraft`] when the capacity was set.
    told_overdraft: usize,
    /// Values that left since the last look at those that are held.
    left: usize,
    inserted: u64,
    evicted: u64,
}

impl<V> Residents<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            table: HashMap::default(),
            bottom: Queue::default(),
            small: Queue::default(),
            main: Queue::default(),
            ghost: Ghost::default(),
            capacity,
            capacity_max: capacity,
            held: Vec::new(),
            held_bytes: 0,
            held_seen: 0,
            told_overdraft: 0,
            left: 0,
            inserted: 0,
            evicted: 0,
        }
    }

    pub(crate) fn contains(&self, key: CacheKey) -> bool {
        self.table.contains_key(&key)
    }

    #[inline]
    pub(crate) fn get(&self, key: CacheKey) -> Option<Arc<V>> {
        let entry = self.table.get(&key)?;
        // Two hits at once may count as one: a store is cheaper than an atomic add, and hot
        // entries stand at the maximum and are not written at all.
        let hits = entry.hits.load(Ordering::Relaxed);
        if hits < HITS_MAX {
            entry.hits.store(hits + 1, Ordering::Relaxed);
        }
        Some(entry.value.clone())
    }

    /// Adds a key that is not here; `leaving` gets what had to go.
    pub(crate) fn insert(
        &mut self,
        key: CacheKey,
        value: &Arc<V>,
        charge: usize,
        priority: Priority,
        leaving: &mut Leaving<V>,
    ) {
        if charge <= self.capacity {
            self.make_room(charge, leaving);
        }
        if self.usage() + self.held_bytes + charge > self.capacity {
            self.hold(value, charge);
            return;
        }
        self.inserted += 1;
        let slot = Slot {
            key,
            ticket: self.inserted,
            address: Arc::as_ptr(value).addr(),
        };
        let stand = match priority {
            Priority::Bottom => Stand::Bottom,
            _ if self.ghost.take(key) => Stand::Main,
            Priority::Low => Stand::Small,
            Priority::High => Stand::Main,
        };
        self.queue(stand).push(slot, charge);
        let entry = Entry {
            value: value.clone(),
            charge,
            ticket: slot.ticket,
            hits: AtomicU8::new(0),
            stand,
        };
        let before = self.table.insert(key, entry);
        debug_assert!(before.is_none(), "the key was not here");
    }

    pub(crate) fn erase(&mut self, key: CacheKey) -> Option<Arc<V>> {
        let entry = self.table.remove(&key)?;
        if Arc::strong_count(&entry.value) > 1 {
            self.hold(&entry.value, entry.charge);
        }
        let queue = match entry.stand {
            Stand::Bottom => &mut self.bottom,
            Stand::Small => &mut self.small,
            Stand::Main => &mut self.main,
        };
        queue.forget(entry.charge);
        if queue.slots.len() > 2 * queue.live + STALE_SLOTS_MAX {
            let table = &self.table;
            queue
                .slots
                .retain(|s| table.get(&s.key).is_some_and(|e| e.ticket == s.ticket));
        }
        Some(entry.value)
    }

    pub(crate) fn set_capacity(&mut self, capacity: usize, leaving: &mut Leaving<V>) {
        self.capacity = capacity;
        self.capacity_max = self.capacity_max.max(capacity);
        self.make_room(0, leaving);
        self.told_overdraft = self.overdraft();
    }

    /// Bytes that are held beyond the capacity: others have to do without them.
    fn overdraft(&self) -> usize {
        self.held_bytes.saturating_sub(self.capacity)
    }

    /// True if it is so much more or less than when the capacity was set that the others should
    /// give way, or get it back.
    pub(crate) fn overdraft_changed(&self) -> bool {
        let change = self.overdraft().abs_diff(self.told_overdraft);
        change > (self.capacity / OVERDRAFT_PART).max(self.capacity_max / FORMER_OVERDRAFT_PART)
    }

    /// Notes a value that is not here and that somebody has.
    fn hold(&mut self, value: &Arc<V>, charge: usize) {
        self.held.push((Arc::downgrade(value), charge));
        self.held_bytes += charge;
        self.left += 1;
        let grown = self.held_bytes - self.held_seen.min(self.held_bytes);
        if self.left > HELD_LOOK_EVERY.max(self.held.len() / 2)
            || grown >= self.held_seen.max(self.capacity / HELD_LOOK_PART)
        {
            self.look_at_held();
        }
    }

    fn look_at_held(&mut self) {
        self.left = 0;
        self.held.retain(|(value, _)| value.strong_count() > 0);
        self.held_bytes = self.held.iter().map(|h| h.1).sum();
        self.held_seen = self.held_bytes;
    }

    /// Evicts until `charge` more bytes fit, or nothing is here.
    fn make_room(&mut self, charge: usize, leaving: &mut Leaving<V>) {
        let mut chances = Chances {
            hit: SECOND_CHANCES_MAX,
            in_use: IN_USE_PASSED_MAX,
        };
        if self.usage() + self.held_bytes + charge > self.capacity && !self.held.is_empty() {
            self.left += 1;
            if self.left > HELD_LOOK_EVERY || self.held.len() <= HELD_FEW {
                self.look_at_held();
            }
        }
        while self.usage() > 0 && self.usage() + self.held_bytes + charge > self.capacity {
            match self.next_to_leave() {
                Stand::Main => self.step_main(&mut chances, leaving),
                on_probation => self.step_probation(on_probation, &mut chances, leaving),
            }
        }
    }

    /// The queue whose oldest entry is asked next.
    fn next_to_leave(&self) -> Stand {
        let is_over = |queue: &Queue, part| queue.live > 0 && queue.bytes > self.capacity / part;
        if is_over(&self.bottom, BOTTOM_PART) {
            Stand::Bottom
        } else if is_over(&self.small, SMALL_PART) {
            Stand::Small
        } else if self.main.live > 0 {
            Stand::Main
        } else if self.bottom.live > 0 {
            Stand::Bottom
        } else {
            Stand::Small
        }
    }

    fn queue(&mut self, stand: Stand) -> &mut Queue {
        match stand {
            Stand::Bottom => &mut self.bottom,
            Stand::Small => &mut self.small,
            Stand::Main => &mut self.main,
        }
    }

    /// Asks the processor for what the next eviction will look at.
    #[inline]
    pub(crate) fn prefetch_victim(&self) {
        let queue = match self.next_to_leave() {
            Stand::Bottom => &self.bottom,
            Stand::Small => &self.small,
            Stand::Main => &self.main,
        };
        if let Some(slot) = queue.slots.front() {
            prefetch(slot.address);
        }
    }

    /// Takes the oldest entry off one of the first two queues: to main if it was hit, else out.
    fn step_probation(&mut self, stand: Stand, chances: &mut Chances, leaving: &mut Leaving<V>) {
        let Some(slot) = self.queue(stand).slots.pop_front() else {
            return;
        };
        let Some(entry) = self
            .table
            .get_mut(&slot.key)
            .filter(|e| e.ticket == slot.ticket)
        else {
            return;
        };
        let charge = entry.charge;
        let is_wanted = *entry.hits.get_mut() >= HITS_TO_MAIN;
        if !is_wanted && chances.passes_over(&entry.value) {
            self.queue(stand).slots.push_back(slot);
            return;
        }
        if is_wanted {
            *entry.hits.get_mut() = 0;
            entry.stand = Stand::Main;
        }
        self.queue(stand).forget(charge);
        if is_wanted {
            self.main.push(slot, charge);
            return;
        }
        if stand == Stand::Small {
            // The ghost remembers about as many keys as main holds.
            self.ghost.add(slot, self.main.live.max(STALE_SLOTS_MAX));
        }
        self.remove(slot.key, leaving);
    }

    /// Takes the oldest entry off the main queue: back to its tail if it was hit, else out.
    fn step_main(&mut self, chances: &mut Chances, leaving: &mut Leaving<V>) {
        let Some(slot) = self.main.slots.pop_front() else {
            return;
        };
        let Some(entry) = self
            .table
            .get_mut(&slot.key)
            .filter(|e| e.ticket == slot.ticket)
        else {
            return;
        };
        let hits = entry.hits.get_mut();
        let is_hit = *hits > 0 && chances.hit > 0;
        if is_hit {
            *hits -= 1;
            chances.hit -= 1;
        }
        if is_hit || chances.passes_over(&entry.value) {
            self.main.slots.push_back(slot);
            return;
        }
        self.main.forget(entry.charge);
        self.remove(slot.key, leaving);
    }

    fn remove(&mut self, key: CacheKey, leaving: &mut Leaving<V>) {
        if let Some(entry) = self.table.remove(&key) {
            self.evicted += 1;
            if Arc::strong_count(&entry.value) > 1 {
                self.hold(&entry.value, entry.charge);
            }
            leaving.push(entry.value);
        }
    }

    pub(crate) fn usage(&self) -> usize {
        self.bottom.bytes + self.small.bytes + self.main.bytes
    }

    /// Bytes of values that left while somebody had them, and still has.
    pub(crate) fn held_usage(&mut self) -> usize {
        self.look_at_held();
        self.held_bytes
    }

    pub(crate) fn held_about(&self) -> usize {
        self.held_bytes
    }

    pub(crate) fn pinned_usage(&self) -> usize {
        self.table
            .values()
            .filter(|e| Arc::strong_count(&e.value) > 1)
            .map(|e| e.charge)
            .sum()
    }

    pub(crate) fn entry_count(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn inserted_and_evicted(&self) -> (u64, u64) {
        (self.inserted, self.evicted)
    }

    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(self.usage() <= self.capacity);
        assert_eq!(
            self.usage(),
            self.table.values().map(|e| e.charge).sum::<usize>()
        );
        let queues = [
            (&self.bottom, Stand::Bottom),
            (&self.small, Stand::Small),
            (&self.main, Stand::Main),
        ];
        let live: usize = queues.iter().map(|(q, _)| q.live).sum();
        assert_eq!(live, self.table.len());
        for (queue, stand) in queues {
            assert!(queue.slots.len() <= 2 * queue.live + STALE_SLOTS_MAX + 1);
            let is_live = |s: &&Slot| {
                self.table
                    .get(&s.key)
                    .is_some_and(|e| e.ticket == s.ticket && e.stand == stand)
            };
            assert_eq!(queue.slots.iter().filter(is_live).count(), queue.live);
        }
    }
}
