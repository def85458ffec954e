//! Who waits, for what, and because of whom: all queues of all families under one mutex.
//!
//! 1. A transaction has at most one wait. Its number is in the queue of its key, or in the list of its
//!    family's ranges, from before it sleeps until it is granted or given up.
//! 2. Places in a queue rise; one that holds the key already has a place before all that do not.
//! 3. [`Waits::point_blockers`] and [`Waits::range_blockers`] are the only place that says who blocks
//!    whom: grants and the search for deadlocks both ask there.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use orogen_base::sync::{Mistake, makes};
use orogen_env::Clock;

use super::family::FamilyLocks;
use super::grant::Woken;
use super::owner::{LockMode, Outcome, Owner, TxnId};
use super::range::{KeyRange, OwnedRange, Ranges};
use super::range_cost;
use super::stripe::Stripe;
use super::tally::Tally;
use super::wait_for::DeadlockPath;

type Map<V> = HashMap<TxnId, V, FixedState>;

/// Places of those who hold nothing of what they ask for.
const NEWCOMER: u64 = 1 << 63;

/// What somebody waits for.
pub(crate) enum Target {
    Point { stripe: u16, entry: u32 },
    Range { id: u32, range: OwnedRange },
}

/// One that waits.
pub(crate) struct Wait {
    pub(crate) owner: Arc<Owner>,
    pub(crate) family: Arc<FamilyLocks>,
    pub(crate) target: Target,
    pub(crate) mode: LockMode,
    pub(crate) place: u64,
    /// [`Waits::asked_at`] of its beginning.
    pub(crate) asked: u64,
    /// Places of ranges that wait for this transaction, and that it does not wait for: rule 5 of the
    /// module.
    pub(crate) passes: Vec<u64>,
    /// Of one that waits for a range: a key in it whose holder blocks it. As long as nothing changes
    /// there, other keys need not be looked at.
    pub(crate) witness: Option<Witness>,
}

/// A stripe and an entry in it.
pub(crate) type Witness = (u16, u32);

impl Wait {
    pub(crate) fn ask(&self) -> Ask<'_> {
        Ask {
            txn: self.owner.id,
            mode: self.mode,
            place: self.place,
            passes: &self.passes,
        }
    }
}

/// A request, waiting or not.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) txn: TxnId,
    pub(crate) mode: LockMode,
    pub(crate) place: u64,
    pub(crate) passes: &'a [u64],
}

impl Ask<'_> {
    fn holds_already(&self) -> bool {
        self.place < NEWCOMER
    }

    /// True if this wait stands before the request and keeps it from being granted.
    fn is_behind(&self, wait: &Wait) -> bool {
        wait.place < self.place
            && wait.owner.id != self.txn
            && wait.mode.conflicts(self.mode)
            && !self.passes.contains(&wait.place)
    }
}

/// Blockers that were found.
pub(crate) struct Found {
    /// Who they are; nobody where only whether there are any is asked.
    pub(crate) txns: Vec<TxnId>,
    count: usize,
    first_only: bool,
    /// Where the first one is found, if it holds a key in a range that is asked for.
    pub(crate) witness: Option<Witness>,
}

impl Found {
    pub(crate) fn all() -> Self {
        Self {
            txns: Vec::new(),
            count: 0,
            first_only: false,
            witness: None,
        }
    }

    /// Only whether there are any.
    pub(crate) fn any() -> Self {
        Self {
            txns: Vec::new(),
            count: 0,
            first_only: true,
            witness: None,
        }
    }

    /// True if nobody was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn push(&mut self, txn: TxnId) {
        self.count += 1;
        if !self.first_only {
            self.txns.push(txn);
        }
    }

    fn is_done(&self) -> bool {
        self.first_only && self.count != 0
    }
}

/// All that wait.
///
/// Rank: above every other mutex of the lock manager.
pub(crate) struct Waits {
    pub(crate) clock: Arc<dyn Clock>,
    waits: Vec<Option<Wait>>,
    free_waits: Vec<u32>,
    /// Queue `n` is at `n - 1`.
    queues: Vec<Vec<u32>>,
    free_queues: Vec<u32>,
    pub(crate) by_txn: Map<u32>,
    /// Transactions whose locks may be stolen one day.
    pub(crate) expirable: Map<Arc<Owner>>,
    last_place: u64,
    pub(crate) deadlocks: VecDeque<Arc<DeadlockPath>>,
    pub(crate) deadlocks_max: usize,
}

impl Waits {
    pub(crate) fn new(clock: Arc<dyn Clock>, deadlocks_max: usize) -> Self {
        Self {
            clock,
            waits: Vec::new(),
            free_waits: Vec::new(),
            queues: Vec::new(),
            free_queues: Vec::new(),
            by_txn: Map::default(),
            expirable: Map::default(),
            last_place: 0,
            deadlocks: VecDeque::new(),
            deadlocks_max,
        }
    }

    /// The next place; before all newcomers for one that holds already.
    pub(crate) fn next_place(&mut self, holds_already: bool) -> u64 {
        self.last_place += 1;
        self.last_place | if holds_already { 0 } else { NEWCOMER }
    }

    pub(crate) fn get(&self, number: u32) -> &Wait {
        self.waits[number as usize]
            .as_ref()
            .expect("a number in a queue is that of a wait")
    }

    /// Notes where a wait for a range is blocked.
    pub(crate) fn set_witness(&mut self, number: u32, witness: Option<Witness>) {
        if let Some(Some(wait)) = self.waits.get_mut(number as usize) {
            wait.witness = witness;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().flatten()
    }

    /// The waits of a queue of a key, in order; none for 0.
    pub(crate) fn queue(&self, queue: u32) -> &[u32] {
        match queue.checked_sub(1) {
            Some(at) => &self.queues[at as usize],
            None => &[],
        }
    }

    fn add(&mut self, wait: Wait) -> u32 {
        let txn = wait.owner.id;
        let number = self.free_waits.pop().unwrap_or_else(|| {
            self.waits.push(None);
            self.waits.len() as u32 - 1
        });
        self.waits[number as usize] = Some(wait);
        self.by_txn.insert(txn, number);
        number
    }

    /// Puts one that waits for an entry into its queue.
    pub(crate) fn add_to_key(&mut self, stripe: &mut Stripe, entry: u32, wait: Wait) -> u32 {
        let place = wait.place;
        stripe.add_wait(wait.cost());
        let number = self.add(wait);
        let mut queue = stripe.queue(entry);
        if queue == 0 {
            queue = self.free_queues.pop().unwrap_or_else(|| {
                self.queues.push(Vec::new());
                self.queues.len() as u32
            });
            stripe.set_queue(entry, queue);
        }
        let waits = self.queue(queue);
        let at = waits.partition_point(|&other| self.get(other).place < place);
        self.queues[queue as usize - 1].insert(at, number);
        number
    }

    /// Takes one out of the queue of an entry.
    pub(crate) fn remove_from_key(&mut self, stripe: &mut Stripe, entry: u32, number: u32) -> Wait {
        let queue = stripe.queue(entry);
        let waits = &mut self.queues[queue as usize - 1];
        waits.retain(|&other| other != number);
        if waits.is_empty() {
            self.free_queues.push(queue);
            stripe.set_queue(entry, 0);
        }
        let wait = self.remove(number);
        stripe.remove_wait(wait.cost());
        wait
    }

    /// Puts one that waits for a range into its family's list.
    pub(crate) fn add_to_ranges(&mut self, ranges: &mut Ranges, wait: Wait) -> u32 {
        let place = wait.place;
        let number = self.add(wait);
        let before = |&other: &u32| self.get(other).place < place;
        let at = ranges.waiting.partition_point(before);
        ranges.waiting.insert(at, number);
        number
    }

    /// Takes one out of its family's list.
    pub(crate) fn remove_from_ranges(&mut self, ranges: &mut Ranges, number: u32) -> Wait {
        ranges.waiting.retain(|&other| other != number);
        self.remove(number)
    }

    fn remove(&mut self, number: u32) -> Wait {
        let wait = self.waits[number as usize]
            .take()
            .expect("a number in a queue is that of a wait");
        self.free_waits.push(number);
        self.by_txn.remove(&wait.owner.id);
        wait
    }

    /// True if a holder's locks may be taken: it is robbed then.
    pub(crate) fn is_gone(&self, txn: TxnId) -> bool {
        if self.expirable.is_empty() {
            return false;
        }
        let owner = self.expirable.get(&txn);
        owner.is_some_and(|owner| owner.rob(self.clock.now_micros()))
    }

    /// Who keeps a request for an entry from being granted.
    ///
    /// Of those who wait before it not all are told, but enough: the nearest exclusive one waits for
    /// all that are before it. `ranges` is there if the family has any.
    pub(crate) fn point_blockers(
        &self,
        family: &FamilyLocks,
        ranges: Option<&Ranges>,
        stripe: &Stripe,
        entry: u32,
        ask: Ask<'_>,
        found: &mut Found,
    ) {
        if ask.mode == LockMode::Exclusive || stripe.is_exclusive(entry) {
            for holder in stripe.holders(entry) {
                if holder != ask.txn && !self.is_gone(holder) {
                    found.push(holder);
                    if found.is_done() {
                        return;
                    }
                }
            }
        }
        let newcomer = !ask.holds_already();
        if newcomer {
            let queue = self.queue(stripe.queue(entry));
            let before = queue.partition_point(|&number| self.get(number).place < ask.place);
            for &number in queue[..before].iter().rev() {
                let wait = self.get(number);
                if ask.is_behind(wait) {
                    found.push(wait.owner.id);
                    if found.is_done() || wait.mode == LockMode::Exclusive {
                        break;
                    }
                }
            }
        }
        let Some(ranges) = ranges else { return };
        let key = stripe.key(entry);
        for held in &ranges.held {
            if held.holder != ask.txn
                && held.mode.conflicts(ask.mode)
                && held.range.contains(&family.order, key)
                && !self.is_gone(held.holder)
            {
                found.push(held.holder);
            }
        }
        if newcomer {
            for &number in &ranges.waiting {
                let wait = self.get(number);
                if ask.is_behind(wait) && wait.range().contains(&family.order, key) {
                    found.push(wait.owner.id);
                }
            }
        }
    }

    /// Who keeps a request for a range from being granted. Looks through all stripes of the family.
    pub(crate) fn range_blockers<K: AsRef<[u8]>>(
        &self,
        family: &FamilyLocks,
        ranges: &Ranges,
        range: &KeyRange<K>,
        ask: Ask<'_>,
        found: &mut Found,
    ) {
        let order = &family.order;
        for held in &ranges.held {
            if held.holder != ask.txn
                && held.mode.conflicts(ask.mode)
                && held.range.overlaps(order, range)
                && !self.is_gone(held.holder)
            {
                found.push(held.holder);
            }
        }
        if !ask.holds_already() {
            for &number in &ranges.waiting {
                let wait = self.get(number);
                if ask.is_behind(wait) && wait.range().overlaps(order, range) {
                    found.push(wait.owner.id);
                }
            }
        }
        for (number, cell) in (0..).zip(&family.cells) {
            if found.is_done() {
                return;
            }
            let stripe = cell.0.lock();
            for entry in stripe.entries() {
                if !range.contains(order, stripe.key(entry)) {
                    continue;
                }
                let none_yet = found.is_empty();
                if self.blockers_at(ranges, order, &stripe, entry, ask, found) && none_yet {
                    found.witness = Some((number, entry));
                }
                if found.is_done() {
                    return;
                }
            }
        }
    }

    /// Those at one key inside a range that is asked for; true if a holder is among them.
    fn blockers_at(
        &self,
        ranges: &Ranges,
        order: &orogen_base::UserComparator,
        stripe: &Stripe,
        entry: u32,
        ask: Ask<'_>,
        found: &mut Found,
    ) -> bool {
        let before = found.count;
        if ask.mode == LockMode::Exclusive || stripe.is_exclusive(entry) {
            for holder in stripe.holders(entry) {
                if holder != ask.txn && !self.is_gone(holder) {
                    found.push(holder);
                }
            }
        }
        let held = found.count != before;
        let queue = self.queue(stripe.queue(entry));
        if ask.holds_already() || queue.is_empty() || stripe.holds(entry, ask.txn) {
            return held;
        }
        for &number in queue {
            let wait = self.get(number);
            let waits_for_us = |held: &super::range::RangeLock| {
                held.holder == ask.txn
                    && held.mode.conflicts(wait.mode)
                    && held.range.contains(order, stripe.key(entry))
            };
            if ask.is_behind(wait) && !ranges.held.iter().any(waits_for_us) {
                found.push(wait.owner.id);
            }
        }
        held
    }

    /// Who keeps a wait from being granted: its edges in the wait-for graph.
    pub(crate) fn blockers_of(&self, wait: &Wait, found: &mut Found) {
        let family = &*wait.family;
        match &wait.target {
            Target::Point { stripe, entry } => {
                let ranges = family.has_ranges().then(|| family.ranges.lock());
                let stripe = family.cell(*stripe).lock();
                let mut ask = wait.ask();
                if makes(Mistake::SearchHoldersOnly) {
                    ask.place = 0;
                }
                self.point_blockers(family, ranges.as_deref(), &stripe, *entry, ask, found);
            }
            Target::Range { range, .. } => {
                let ranges = family.ranges.lock();
                self.range_blockers(family, &ranges, range, wait.ask(), found);
            }
        }
    }

    /// The time, where anybody expires: to be read before it is asked who blocks a request.
    pub(crate) fn asked_at(&self) -> u64 {
        if self.expirable.is_empty() {
            return 0;
        }
        self.clock.now_micros()
    }

    /// When somebody who may keep this wait from being granted expires; `u64::MAX`: nobody does. Who had expired before
    /// it was asked who blocks it, at `asked`, does not; who did since may have been taken for one.
    pub(crate) fn next_expiry(&self, wait: &Wait, asked: u64) -> u64 {
        if self.expirable.is_empty() {
            return u64::MAX;
        }
        let family = &*wait.family;
        let mut txns = Vec::new();
        let ranges = family.has_ranges().then(|| family.ranges.lock());
        if let Some(ranges) = &ranges {
            txns.extend(ranges.held.iter().map(|held| held.holder));
            txns.extend(ranges.waiting.iter().map(|&n| self.get(n).owner.id));
        }
        if let Target::Point { stripe, entry } = wait.target {
            let stripe = family.cell(stripe).lock();
            txns.extend(stripe.holders(entry));
            let queue = self.queue(stripe.queue(entry));
            txns.extend(queue.iter().map(|&n| self.get(n).owner.id));
        } else {
            txns.extend(self.expirable.keys());
        }
        txns.iter()
            .filter_map(|txn| self.expirable.get(txn))
            // Also one that commits: its time may go on.
            .filter(|owner| owner.expires_at > asked)
            .map(|owner| owner.expires_at)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Ends a wait for the thread that sleeps in it.
    pub(crate) fn tell(wait: &Wait, outcome: Outcome, woken: &mut Woken) {
        *wait.owner.outcome.lock() = outcome;
        woken.push(wait.owner.clone());
    }
}

impl Wait {
    /// Bytes of a wait that passes so many: itself, and its number in a queue and by its transaction.
    pub(crate) const fn bytes(passes: usize) -> usize {
        size_of::<Self>() + size_of::<u32>() + size_of::<(TxnId, u32)>() + passes * size_of::<u64>()
    }

    /// What it counts; one for a range has the range counted as it will be held.
    pub(crate) fn cost(&self) -> Tally {
        let bytes = Self::bytes(self.passes.len());
        match &self.target {
            Target::Point { .. } => Tally::lock(bytes),
            Target::Range { range, .. } => Tally::lock(bytes + range_cost(range)),
        }
    }

    /// True if it queues behind those who wait before it.
    pub(crate) fn is_newcomer(&self) -> bool {
        self.place >= NEWCOMER
    }

    /// The range that a wait in a list of ranges is for.
    pub(crate) fn range(&self) -> &OwnedRange {
        match &self.target {
            Target::Range { range, .. } => range,
            Target::Point { .. } => unreachable!("only ranges stand in the list of ranges"),
        }
    }
}
