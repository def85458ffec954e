//! Taking locks: of a key, of a range.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::sync::atomic::Ordering::Relaxed;
use orogen_base::sync::{Mistake, MutexGuard, makes};
use orogen_base::{Error, ErrorKind, Result, limits, memory};

use super::family::{FamilyLocks, Place};
use super::owner::{LockMode, Outcome, Record, Taken, TxnId, TxnLocks};
use super::range::{KeyRange, OwnedRange, RangeLock, Ranges};
use super::stripe::{Fast, Stripe};
use super::tally::{Account, Tally};
use super::waits::{Ask, Found, Target, Wait, Waits};
use super::{Core, LockManager, range_cost};

/// What a request that was granted has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locked {
    /// It was not locked by this transaction before.
    New,
    /// It was locked shared, and is exclusive now.
    Upgraded,
    /// Nothing: it was locked in this mode or a stronger one.
    Held,
}

impl LockManager {
    /// Locks a key, waiting for others up to `timeout`: zero does not wait, `None` waits for ever.
    ///
    /// Who holds the key shared may ask for it exclusively, and waits for the other holders only.
    ///
    /// # Errors
    /// In each case nothing has changed, and what was locked before is locked still:
    /// - `LockTimeout` if it was not granted in time (RocksDB: `TimedOut(kLockTimeout)`; a mutex is
    ///   always waited for, so there is no `kMutexTimeout`);
    /// - `Deadlock` if the wait would have closed a cycle, with its
    ///   [`DeadlockPath`](super::DeadlockPath) (`Busy(kDeadlock)`);
    /// - `LockLimit` if there are too many locks, or they take too much memory (`Busy(kLockLimit)`);
    /// - `Expired` if the transaction's time is over (`Expired`);
    /// - `Aborted` if the wait was [cancelled](Self::cancel);
    /// - `InvalidArgument` for a key that is too long or a family of another manager; `NoMemory`.
    #[inline]
    pub fn try_lock(
        &self,
        txn: &mut TxnLocks,
        family: &Arc<FamilyLocks>,
        key: &[u8],
        mode: LockMode,
        timeout: Option<Duration>,
    ) -> Result<Locked> {
        self.check(txn, family, key.len())?;
        memory::reserve(&mut txn.records, 1, "locks of a transaction")?;
        let place = family.place(key);
        let fast = {
            let mut stripe = family.cell(place.stripe).lock();
            if family.has_ranges() {
                Fast::Contended
            } else {
                let id = txn.owner.id;
                match stripe.try_fast(place.hash, key, id, mode) {
                    Fast::Absent => {
                        let mut account = Account::open(family, &stripe);
                        let entry = insert(&mut account, &mut stripe, place, key, id, mode);
                        account.close(&stripe);
                        Fast::Granted(entry?)
                    }
                    Fast::Shareable(entry) => {
                        share(family, &mut stripe, entry, id)?;
                        Fast::Granted(entry)
                    }
                    fast => fast,
                }
            }
        };
        let (locked, entry) = match fast {
            Fast::Granted(entry) => (Locked::New, entry),
            Fast::Upgraded(entry) => (Locked::Upgraded, entry),
            Fast::Held => return Ok(Locked::Held),
            _ => match self.lock_key(txn, family, key, mode, timeout)? {
                (Locked::Held, _) => return Ok(Locked::Held),
                granted => granted,
            },
        };
        txn.note_key(family, place.stripe, entry, locked);
        Ok(locked)
    }

    #[cold]
    #[inline(never)]
    fn lock_key(
        &self,
        txn: &TxnLocks,
        family: &Arc<FamilyLocks>,
        key: &[u8],
        mode: LockMode,
        timeout: Option<Duration>,
    ) -> Result<(Locked, u32)> {
        let may_wait = timeout != Some(Duration::ZERO);
        let (locked, entry, step) = self.0.ask_for_key(txn, family, key, mode, may_wait)?;
        if let Step::Waits(waits, number) = step {
            self.0.sleep(waits, number, txn, family, timeout)?;
        }
        Ok((locked, entry))
    }

    /// Locks a range, waiting for others as [`Self::try_lock`] does.
    ///
    /// Costs a look at every locked key of the family; until it is let go, locks of the family's keys
    /// are taken and let go one at a time. A range that a held one covers in this mode is `Held`.
    ///
    /// # Errors
    /// As [`Self::try_lock`], and `InvalidArgument` for a range that holds no place.
    pub fn try_lock_range<K: AsRef<[u8]>>(
        &self,
        txn: &mut TxnLocks,
        family: &Arc<FamilyLocks>,
        range: &KeyRange<K>,
        mode: LockMode,
        timeout: Option<Duration>,
    ) -> Result<Locked> {
        self.check(txn, family, range.key_len_max())?;
        if range.is_empty(&family.order) {
            return Err(Error::invalid_argument("a range to lock is empty"));
        }
        memory::reserve(&mut txn.records, 1, "locks of a transaction")?;
        let may_wait = timeout != Some(Duration::ZERO);
        let asked = self.0.ask_for_range(txn, family, range, mode, may_wait)?;
        let Some((id, step)) = asked else {
            return Ok(Locked::Held);
        };
        if let Step::Waits(waits, number) = step {
            self.0.sleep(waits, number, txn, family, timeout)?;
        }
        txn.note_range(family, id);
        Ok(Locked::New)
    }

    #[inline]
    fn check(&self, txn: &TxnLocks, family: &FamilyLocks, key_len: usize) -> Result<()> {
        let ours = |core| Arc::ptr_eq(&self.0, core);
        if !ours(&txn.core) || !ours(&family.core) {
            return Err(Error::invalid_argument("locks of another manager"));
        }
        if key_len > limits::KEY_SIZE_MAX {
            return Err(Error::invalid_argument("a key to lock is too long").with("bytes", key_len));
        }
        txn.check_time()
    }
}

/// Where a request stands.
pub(super) enum Step<'a> {
    /// It is granted.
    Granted,
    /// It is listed under this number, and not granted as long as the mutex is held.
    Waits(MutexGuard<'a, Waits>, u32),
}

/// Makes an entry of a key that has none, held or not: whoever it is made for holds or waits then, and is counted.
#[inline]
fn insert(
    account: &mut Account<'_>,
    stripe: &mut Stripe,
    place: Place,
    key: &[u8],
    holder: u64,
    mode: LockMode,
) -> Result<u32> {
    account.reserve(stripe, Tally::lock(Stripe::cost(key.len())))?;
    stripe.insert(place.hash, key, holder, mode)
}

/// Makes a transaction one more of those who share an entry.
fn share(family: &FamilyLocks, stripe: &mut Stripe, entry: u32, txn: TxnId) -> Result<()> {
    let mut account = Account::open(family, stripe);
    account.reserve(stripe, stripe.cost_of_grant(entry, txn))?;
    let granted = stripe.grant(entry, txn, LockMode::Shared);
    account.close(stripe);
    granted
}

#[cold]
pub(super) fn timed_out(txn: &TxnLocks, family: &FamilyLocks) -> Error {
    let statistics = &txn.core.statistics;
    statistics.add(orogen_base::metrics::Ticker::TxnLockTimeouts, 1);
    Error::new(ErrorKind::LockTimeout, "a lock was not granted in time")
        .with("txn", txn.id())
        .with("cf", family.id)
}

impl TxnLocks {
    #[inline]
    pub(super) fn note_key(
        &mut self,
        family: &Arc<FamilyLocks>,
        stripe: u16,
        entry: u32,
        locked: Locked,
    ) {
        let record = Record {
            entry,
            family: self.place_of(family),
            stripe,
            taken: if locked == Locked::Upgraded {
                Taken::Upgraded
            } else {
                Taken::New
            },
        };
        self.records.push(record);
    }

    pub(super) fn note_range(&mut self, family: &Arc<FamilyLocks>, id: u32) {
        let record = Record {
            entry: id,
            family: self.place_of(family),
            stripe: 0,
            taken: Taken::Range,
        };
        self.records.push(record);
    }

    /// True if a range waits for something that this transaction holds.
    fn keeps_waiting(&self, family: &Arc<FamilyLocks>, ranges: &Ranges, wait: &Wait) -> bool {
        let (id, order, range) = (self.id(), &family.order, wait.range());
        let mut held = ranges.held.iter().filter(|held| held.holder == id);
        if held.any(|h| h.mode.conflicts(wait.mode) && h.range.overlaps(order, range)) {
            return true;
        }
        // What was locked last is where most that is asked for is.
        self.records.iter().rev().any(|record| {
            if record.taken != Taken::New
                || !Arc::ptr_eq(&self.families[record.family as usize], family)
            {
                return false;
            }
            let stripe = family.cell(record.stripe).lock();
            stripe.holds(record.entry, id)
                && (wait.mode == LockMode::Exclusive || stripe.is_exclusive(record.entry))
                && range.contains(order, stripe.key(record.entry))
        })
    }

    /// Places of waiting ranges that conflict with a request, and wait for this transaction.
    fn passes(
        &self,
        waits: &Waits,
        family: &Arc<FamilyLocks>,
        ranges: &Ranges,
        mode: LockMode,
        meets: impl Fn(&OwnedRange) -> bool,
    ) -> Vec<u64> {
        let waiting = ranges.waiting.iter().map(|&number| waits.get(number));
        waiting
            .filter(|wait| wait.mode.conflicts(mode) && meets(wait.range()))
            .filter(|wait| self.keeps_waiting(family, ranges, wait))
            .map(|wait| wait.place)
            .collect()
    }
}

impl Core {
    /// Asks for a key that is contended, or whose family has ranges.
    pub(super) fn ask_for_key(
        &self,
        txn: &TxnLocks,
        family: &Arc<FamilyLocks>,
        key: &[u8],
        mode: LockMode,
        may_wait: bool,
    ) -> Result<(Locked, u32, Step<'_>)> {
        let (id, place) = (txn.id(), family.place(key));
        let mut waits = self.waits.lock();
        let asked = waits.asked_at();
        let mut ranges = family.has_ranges().then(|| family.ranges.lock());
        let mut passes = Vec::new();
        let mut covered = false;
        if let Some(ranges) = &ranges {
            let meets = |range: &OwnedRange| range.contains(&family.order, key);
            covered = ranges
                .held
                .iter()
                .any(|h| h.holder == id && meets(&h.range));
            passes = txn.passes(&waits, family, ranges, mode, meets);
        }
        let mut stripe = family.cell(place.stripe).lock();
        let mut account = Account::open(family, &stripe);
        let entry = match stripe.find(place.hash, key) {
            Some(entry) => entry,
            None => match insert(&mut account, &mut stripe, place, key, 0, mode) {
                Ok(entry) => entry,
                Err(e) => {
                    account.close(&stripe);
                    return Err(e);
                }
            },
        };
        let holds = stripe.holds(entry, id);
        if holds && (mode == LockMode::Shared || stripe.is_exclusive(entry)) {
            return Ok((Locked::Held, entry, Step::Granted));
        }
        let locked = if holds { Locked::Upgraded } else { Locked::New };
        let ask = Ask {
            txn: id,
            mode,
            place: waits.next_place(holds || covered),
            passes: &passes,
        };
        let mut found = Found::any();
        waits.point_blockers(family, ranges.as_deref(), &stripe, entry, ask, &mut found);
        let refused = if found.is_empty() {
            let held = ranges.as_deref_mut();
            match waits.grant_key(held, &mut stripe, &mut account, entry, id, mode) {
                Ok(()) => {
                    account.close(&stripe);
                    return Ok((locked, entry, Step::Granted));
                }
                Err(e) => Some(e),
            }
        } else if !may_wait {
            Some(timed_out(txn, family))
        } else {
            let cost = Tally::lock(Wait::bytes(passes.len()));
            account.reserve(&stripe, cost).err()
        };
        if let Some(error) = refused {
            stripe.remove_if_unused(entry);
            account.close(&stripe);
            return Err(error);
        }
        let wait = Wait {
            owner: txn.owner.clone(),
            family: family.clone(),
            target: Target::Point {
                stripe: place.stripe,
                entry,
            },
            mode,
            place: ask.place,
            asked,
            passes,
            witness: None,
        };
        *txn.owner.outcome.lock() = Outcome::Waiting;
        let number = waits.add_to_key(&mut stripe, entry, wait);
        account.close(&stripe);
        drop(stripe);
        drop(ranges);
        Ok((locked, entry, Step::Waits(waits, number)))
    }

    /// Asks for a range; `None` if it is held already.
    pub(super) fn ask_for_range<K: AsRef<[u8]>>(
        &self,
        txn: &TxnLocks,
        family: &Arc<FamilyLocks>,
        range: &KeyRange<K>,
        mode: LockMode,
        may_wait: bool,
    ) -> Result<Option<(u32, Step<'_>)>> {
        let (id, order) = (txn.id(), &family.order);
        let mut waits = self.waits.lock();
        let asked = waits.asked_at();
        let mut ranges = family.ranges.lock();
        let mine = |h: &&RangeLock| h.holder == id && h.range.covers(order, range);
        let covered: Vec<LockMode> = ranges.held.iter().filter(mine).map(|h| h.mode).collect();
        if covered
            .iter()
            .any(|&held| held == mode || held == LockMode::Exclusive)
        {
            return Ok(None);
        }
        let cost = Tally::lock(range_cost(range));
        family.count(cost)?;
        let late = makes(Mistake::CountRangeLate);
        if !late {
            family.range_count.fetch_add(1, Relaxed);
        }
        let passes = txn.passes(&waits, family, &ranges, mode, |other| {
            other.overlaps(order, range)
        });
        let ask = Ask {
            txn: id,
            mode,
            place: waits.next_place(!covered.is_empty()),
            passes: &passes,
        };
        let mut found = Found::any();
        waits.range_blockers(family, &ranges, range, ask, &mut found);
        if late {
            family.range_count.fetch_add(1, Relaxed);
        }
        let number = ranges.next_id;
        ranges.next_id = number.wrapping_add(1);
        if found.is_empty() {
            waits.grant_range(family, &mut ranges, number, id, mode, range.to_owned());
            return Ok(Some((number, Step::Granted)));
        }
        let waits_cost = Tally::bytes(Wait::bytes(passes.len()));
        let refused = match may_wait {
            true => family.count(waits_cost).err(),
            false => Some(timed_out(txn, family)),
        };
        if let Some(error) = refused {
            family.range_count.fetch_sub(1, Relaxed);
            family.uncount(cost);
            return Err(error);
        }
        let wait = Wait {
            owner: txn.owner.clone(),
            family: family.clone(),
            target: Target::Range {
                id: number,
                range: range.to_owned(),
            },
            mode,
            place: ask.place,
            asked,
            passes,
            witness: found.witness,
        };
        *txn.owner.outcome.lock() = Outcome::Waiting;
        let wait = waits.add_to_ranges(&mut ranges, wait);
        drop(ranges);
        Ok(Some((number, Step::Waits(waits, wait))))
    }
}
