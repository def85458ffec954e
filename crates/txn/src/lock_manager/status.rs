//! What is locked and waited for, as data.

use std::sync::Arc;

use super::family::FamilyLocks;
use super::owner::{LockMode, TxnId};
use super::wait_for::Wanted;
use super::waits::Waits;

/// One that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its number.
    pub txn: TxnId,
    /// How it wants to lock.
    pub mode: LockMode,
}

/// A key or a range that is locked or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// The column family.
    pub family: u32,
    /// The key or range.
    pub what: Wanted,
    /// How it is held; `None` if somebody only waits.
    pub mode: Option<LockMode>,
    /// Who holds it, in no order.
    pub holders: Vec<TxnId>,
    /// Who waits for it, first come first.
    pub waiting: Vec<Waiting>,
}

pub(super) fn of(waits: &Waits, family: &Arc<FamilyLocks>) -> Vec<LockStatus> {
    let mut found = Vec::new();
    let waiting = |&number: &u32| {
        let wait = waits.get(number);
        Waiting {
            txn: wait.owner.id,
            mode: wait.mode,
        }
    };
    let ranges = family.ranges.lock();
    found.extend(ranges.held.iter().map(|held| LockStatus {
        family: family.id,
        what: Wanted::Range(held.range.clone()),
        mode: Some(held.mode),
        holders: vec![held.holder],
        waiting: Vec::new(),
    }));
    found.extend(ranges.waiting.iter().map(|number| LockStatus {
        family: family.id,
        what: Wanted::Range(waits.get(*number).range().clone()),
        mode: None,
        holders: Vec::new(),
        waiting: vec![waiting(number)],
    }));
    for cell in &family.cells {
        let stripe = cell.0.lock();
        for entry in stripe.entries() {
            let holders: Vec<TxnId> = stripe.holders(entry).collect();
            let mode = match holders.is_empty() {
                true => None,
                false if stripe.is_exclusive(entry) => Some(LockMode::Exclusive),
                false => Some(LockMode::Shared),
            };
            found.push(LockStatus {
                family: family.id,
                what: Wanted::Key(stripe.key(entry).into()),
                mode,
                holders,
                waiting: waits
                    .queue(stripe.queue(entry))
                    .iter()
                    .map(waiting)
                    .collect(),
            });
        }
    }
    found
}
