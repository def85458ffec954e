//! Handing locks over: after each release, the waits that it left without blockers are granted.
//!
//! Runs under the mutex of the waits. Who was granted is woken when that mutex has been let go.

use std::sync::Arc;

use orogen_base::sync::{Mistake, makes};

use orogen_base::metrics::Ticker;
use orogen_base::sync::atomic::Ordering::Relaxed;

use super::family::FamilyLocks;
use super::owner::{LockMode, Outcome, Owner, TxnId};
use super::range::{OwnedRange, RangeLock, Ranges};
use super::range_cost;
use super::stripe::Stripe;
use super::tally::{Account, Tally};
use super::waits::{Found, Target, Wait, Waits, Witness};

/// Threads to wake once no mutex is held, or, where a comparator panics meanwhile, with one held: they have their locks.
#[derive(Default)]
pub(crate) struct Woken(Vec<Arc<Owner>>);

impl Woken {
    pub(crate) fn push(&mut self, owner: Arc<Owner>) {
        self.0.push(owner);
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        for owner in &self.0 {
            owner.wake.notify_one();
        }
    }
}

impl Waits {
    /// Changes one key, grants what can be granted then, and frees its entry if nobody is left.
    ///
    /// One step of the stripe: an entry that nobody holds and nobody waits for is never seen by others.
    fn change_key<R>(
        &mut self,
        family: &Arc<FamilyLocks>,
        stripe_number: u16,
        entry: u32,
        woken: &mut Woken,
        change: impl FnOnce(&mut Self, &mut Stripe) -> Option<R>,
    ) -> Option<R> {
        let mut ranges = family.has_ranges().then(|| family.ranges.lock());
        let mut stripe = family.cell(stripe_number).lock();
        let mut account = Account::open(family, &stripe);
        let changed = change(self, &mut stripe)?;
        let mut at = 0;
        while let Some(&number) = self.queue(stripe.queue(entry)).get(at) {
            if makes(Mistake::KeepForNobody) {
                break;
            }
            let wait = self.get(number);
            let mut found = Found::any();
            self.point_blockers(
                family,
                ranges.as_deref(),
                &stripe,
                entry,
                wait.ask(),
                &mut found,
            );
            if found.is_empty() {
                // What the wait counts is more than what the lock does, so no limit refuses it.
                let wait = self.remove_from_key(&mut stripe, entry, number);
                let (txn, mode) = (wait.owner.id, wait.mode);
                let held = ranges.as_deref_mut();
                let granted = self.grant_key(held, &mut stripe, &mut account, entry, txn, mode);
                let outcome = match granted {
                    Ok(()) => Outcome::Granted,
                    Err(_) => Outcome::NoMemory,
                };
                Self::tell(&wait, outcome, woken);
            } else if ranges.is_none() && wait.is_newcomer() {
                // All behind it conflict with it, or with what it conflicts with.
                break;
            } else {
                at += 1;
            }
        }
        stripe.remove_if_unused(entry);
        account.close(&stripe);
        Some(changed)
    }

    /// Gives an entry to a transaction that has no blockers, taking it from those who are gone.
    /// `ranges` is there if the family has any.
    ///
    /// # Errors
    /// `LockLimit`, `NoMemory`; it is not granted then.
    pub(crate) fn grant_key(
        &self,
        ranges: Option<&mut Ranges>,
        stripe: &mut Stripe,
        account: &mut Account<'_>,
        entry: u32,
        txn: TxnId,
        mode: LockMode,
    ) -> orogen_base::Result<()> {
        if !self.expirable.is_empty() {
            let family = account.family();
            if let Some(ranges) = ranges {
                let key = stripe.key(entry);
                steal_ranges(family, ranges, txn, mode, |r| {
                    r.contains(&family.order, key)
                });
            }
            steal_key(family, stripe, entry, txn, mode);
        }
        account.reserve(stripe, stripe.cost_of_grant(entry, txn))?;
        stripe.grant(entry, txn, mode)
    }

    /// Grants what can be granted of the ranges that are waited for, where only `changed` has changed,
    /// or anything.
    fn settle_ranges(
        &mut self,
        family: &Arc<FamilyLocks>,
        changed: Option<Witness>,
        woken: &mut Woken,
    ) {
        if !family.has_ranges() {
            return;
        }
        let mut ranges = family.ranges.lock();
        let mut at = 0;
        while let Some(&number) = ranges.waiting.get(at) {
            let wait = self.get(number);
            if changed.is_some() && wait.witness.is_some() && wait.witness != changed {
                at += 1;
                continue;
            }
            let mut found = Found::any();
            self.range_blockers(family, &ranges, wait.range(), wait.ask(), &mut found);
            if !found.is_empty() {
                self.set_witness(number, found.witness);
                at += 1;
                continue;
            }
            let wait = self.remove_from_ranges(&mut ranges, number);
            family.uncount(Tally::bytes(Wait::bytes(wait.passes.len())));
            Self::tell(&wait, Outcome::Granted, woken);
            if let Target::Range { id, range } = wait.target {
                self.grant_range(family, &mut ranges, id, wait.owner.id, wait.mode, range);
            }
        }
    }

    /// Gives a range to a transaction that has no blockers, taking it from those who are gone.
    pub(crate) fn grant_range(
        &self,
        family: &FamilyLocks,
        ranges: &mut Ranges,
        id: u32,
        holder: TxnId,
        mode: LockMode,
        range: OwnedRange,
    ) {
        if !self.expirable.is_empty() {
            steal_ranges(family, ranges, holder, mode, |held| {
                held.overlaps(&family.order, &range)
            });
            steal_keys(family, holder, mode, &range);
        }
        ranges.held.push(RangeLock {
            id,
            holder,
            mode,
            range,
        });
    }

    /// Lets a lock of one key go, or makes it weaker, or lets one that waits for it give up; then
    /// grants what that held up. `change` tells by `None` that there was nothing to change.
    pub(crate) fn key_changed<R>(
        &mut self,
        family: &Arc<FamilyLocks>,
        stripe: u16,
        entry: u32,
        woken: &mut Woken,
        change: impl FnOnce(&mut Self, &mut Stripe) -> Option<R>,
    ) -> Option<R> {
        let changed = self.change_key(family, stripe, entry, woken, change)?;
        self.settle_ranges(family, Some((stripe, entry)), woken);
        Some(changed)
    }

    /// After a range went, or one that waited for it gave up.
    pub(crate) fn range_changed(&mut self, family: &Arc<FamilyLocks>, woken: &mut Woken) {
        let mut keys: Vec<(u16, u32)> = self
            .iter()
            .filter(|wait| Arc::ptr_eq(&wait.family, family))
            .filter_map(|wait| match wait.target {
                Target::Point { stripe, entry } => Some((stripe, entry)),
                Target::Range { .. } => None,
            })
            .collect();
        keys.sort_unstable();
        keys.dedup();
        for (stripe, entry) in keys {
            self.change_key(family, stripe, entry, woken, |_, _| Some(()));
        }
        self.settle_ranges(family, None, woken);
    }
}

/// Takes a key from all that a new holder conflicts with: they are gone, or it had blockers.
fn steal_key(family: &FamilyLocks, stripe: &mut Stripe, entry: u32, txn: TxnId, mode: LockMode) {
    if mode == LockMode::Shared && !stripe.is_exclusive(entry) {
        return;
    }
    let gone: Vec<TxnId> = stripe.holders(entry).filter(|&h| h != txn).collect();
    for holder in gone {
        stripe.release(entry, holder);
        family.core.statistics.add(Ticker::TxnLockSteals, 1);
    }
}

/// Takes all keys of a range that its new holder conflicts with.
fn steal_keys(family: &FamilyLocks, txn: TxnId, mode: LockMode, range: &OwnedRange) {
    for cell in &family.cells {
        let mut stripe = cell.0.lock();
        let account = Account::open(family, &stripe);
        let inside: Vec<u32> = stripe
            .entries()
            .filter(|&entry| range.contains(&family.order, stripe.key(entry)))
            .collect();
        for entry in inside {
            steal_key(family, &mut stripe, entry, txn, mode);
            stripe.remove_if_unused(entry);
        }
        account.close(&stripe);
    }
}

/// Takes all ranges that a new holder conflicts with.
fn steal_ranges(
    family: &FamilyLocks,
    ranges: &mut Ranges,
    txn: TxnId,
    mode: LockMode,
    meets: impl Fn(&OwnedRange) -> bool,
) {
    ranges.held.retain(|held| {
        let stolen = held.holder != txn && held.mode.conflicts(mode) && meets(&held.range);
        if stolen {
            family.range_count.fetch_sub(1, Relaxed);
            family.uncount(Tally::lock(range_cost(&held.range)));
            family.core.statistics.add(Ticker::TxnLockSteals, 1);
        }
        !stolen
    });
}
