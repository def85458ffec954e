//! Letting locks go, and giving up waits.

use std::sync::Arc;

use orogen_base::sync::MutexGuard;
use orogen_base::sync::atomic::Ordering::Relaxed;
use orogen_base::sync::{Mistake, makes};

use super::family::FamilyLocks;
use super::grant::Woken;
use super::owner::{Outcome, TxnId};
use super::tally::{Account, Tally};
use super::waits::{Target, Wait, Waits};
use super::{Core, range_cost};

impl Core {
    /// Lets the mutex of the waits go, then wakes.
    pub(crate) fn done(waits: MutexGuard<'_, Waits>, woken: Woken) {
        drop(waits);
        drop(woken);
    }

    /// Lets go of an entry; false if it is not held. The number may be that of a lock that was stolen.
    #[inline]
    pub(crate) fn release_key(
        &self,
        family: &Arc<FamilyLocks>,
        txn: TxnId,
        stripe_number: u16,
        entry: u32,
    ) -> bool {
        let mut stripe = family.cell(stripe_number).lock();
        if !stripe.holds(entry, txn) {
            return false;
        }
        let alone = !family.has_ranges() && stripe.queue(entry) == 0;
        if makes(Mistake::LookBeforeRelease) {
            drop(stripe);
            stripe = family.cell(stripe_number).lock();
        }
        if alone {
            let account = Account::open(family, &stripe);
            stripe.release(entry, txn);
            stripe.remove_if_unused(entry);
            account.close(&stripe);
            return true;
        }
        drop(stripe);
        self.release_contended(family, txn, stripe_number, entry)
    }

    #[cold]
    fn release_contended(
        &self,
        family: &Arc<FamilyLocks>,
        txn: TxnId,
        stripe: u16,
        entry: u32,
    ) -> bool {
        let mut waits = self.waits.lock();
        let mut woken = Woken::default();
        let released = waits.key_changed(family, stripe, entry, &mut woken, |_, stripe| {
            stripe.release(entry, txn).then_some(())
        });
        Self::done(waits, woken);
        released.is_some()
    }

    /// Makes an exclusive lock shared; false if it is not held so.
    pub(crate) fn downgrade_key(
        &self,
        family: &Arc<FamilyLocks>,
        txn: TxnId,
        stripe_number: u16,
        entry: u32,
    ) -> bool {
        {
            let mut stripe = family.cell(stripe_number).lock();
            if !stripe.holds(entry, txn) {
                return false;
            }
            if !family.has_ranges() && stripe.queue(entry) == 0 {
                return stripe.downgrade(entry, txn);
            }
        }
        let mut waits = self.waits.lock();
        let mut woken = Woken::default();
        let weaker = waits.key_changed(family, stripe_number, entry, &mut woken, |_, stripe| {
            stripe.downgrade(entry, txn).then_some(())
        });
        Self::done(waits, woken);
        weaker.is_some()
    }

    /// Lets go of a range; nothing happens if it was stolen.
    pub(crate) fn release_range(&self, family: &Arc<FamilyLocks>, txn: TxnId, id: u32) {
        let mut waits = self.waits.lock();
        let mut woken = Woken::default();
        let held = {
            let mut ranges = family.ranges.lock();
            let mine = |held: &super::range::RangeLock| held.id == id && held.holder == txn;
            let at = ranges.held.iter().position(mine);
            at.map(|at| ranges.held.swap_remove(at))
        };
        if let Some(held) = held {
            family.uncount(Tally::lock(range_cost(&held.range)));
            family.range_count.fetch_sub(1, Relaxed);
            waits.range_changed(family, &mut woken);
        }
        Self::done(waits, woken);
    }

    /// Takes a wait out of its queue, and grants what it held up.
    pub(crate) fn give_up(&self, waits: &mut Waits, number: u32, woken: &mut Woken) -> Wait {
        let wait = waits.get(number);
        let family = wait.family.clone();
        if let Target::Point { stripe, entry } = wait.target {
            let removed = waits.key_changed(&family, stripe, entry, woken, |waits, stripe| {
                Some(waits.remove_from_key(stripe, entry, number))
            });
            return removed.expect("a wait is always removed");
        }
        let wait = waits.remove_from_ranges(&mut family.ranges.lock(), number);
        family.uncount(wait.cost());
        family.range_count.fetch_sub(1, Relaxed);
        waits.range_changed(&family, woken);
        wait
    }

    /// Ends the wait of a transaction, if it has one.
    pub(crate) fn cancel(&self, txn: TxnId) -> bool {
        let mut waits = self.waits.lock();
        let Some(&number) = waits.by_txn.get(&txn) else {
            return false;
        };
        let mut woken = Woken::default();
        let wait = self.give_up(&mut waits, number, &mut woken);
        Waits::tell(&wait, Outcome::Cancelled, &mut woken);
        Self::done(waits, woken);
        true
    }
}
