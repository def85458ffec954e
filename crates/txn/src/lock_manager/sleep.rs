//! One wait, from its place in a queue to its end.
//!
//! ```text
//! listed --search--> cycle: given up, Deadlock
//!   |                                                  granted by who released: the lock is held
//!   +--> asleep --+-- woken: Granted | Cancelled ------> or ended by who cancelled
//!          ^      +-- time: looked at again under the mutex of the waits
//!          |                  granted meanwhile: it holds
//!          |                  its deadline: given up
//!          +----------------- a holder's expiry: what it kept is granted
//! ```

use std::sync::Arc;
use std::time::Duration;

use orogen_base::metrics::{HistogramKind, Ticker};
use orogen_base::sync::{Mistake, MutexGuard, makes};
use orogen_base::{Error, ErrorKind, Result, memory};

use super::Core;
use super::family::FamilyLocks;
use super::grant::Woken;
use super::owner::{Outcome, TxnLocks};
use super::request::timed_out;
use super::wait_for::{Cycle, Search};
use super::waits::{Target, Waits};

impl Core {
    /// Sleeps until a wait that is listed has ended.
    pub(super) fn sleep<'a>(
        &'a self,
        mut waits: MutexGuard<'a, Waits>,
        number: u32,
        txn: &TxnLocks,
        family: &Arc<FamilyLocks>,
        timeout: Option<Duration>,
    ) -> Result<()> {
        if txn.options.deadlock_detect {
            waits = self.search(waits, number, txn)?;
        }
        self.statistics.add(Ticker::TxnLockWaits, 1);
        let began = self.clock.now_micros();
        let own_end = if txn.owner.is_kept() {
            u64::MAX
        } else {
            txn.owner.expires_at
        };
        let deadline = timeout.map_or(u64::MAX, |timeout| {
            let micros = u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX);
            began.saturating_add(micros.max(1))
        });
        let end = deadline.min(own_end);
        let wait = waits.get(number);
        let mut wake_at = end.min(waits.next_expiry(wait, wait.asked));
        drop(waits);
        let outcome = loop {
            let outcome = txn.owner.sleep(&*self.clock, wake_at);
            if outcome != Outcome::Waiting {
                break outcome;
            }
            let late = self.clock.now_micros() >= end;
            match self.look_again(number, txn, late) {
                (Outcome::Waiting, expiry) if !late => wake_at = end.min(expiry),
                (outcome, _) => break outcome,
            }
        };
        let micros = self.clock.now_micros().saturating_sub(began);
        self.statistics.record(HistogramKind::TxnLockWait, micros);
        match outcome {
            Outcome::Granted => Ok(()),
            Outcome::Waiting if own_end <= deadline => Err(txn.expired()),
            Outcome::Waiting => Err(timed_out(txn, family)),
            Outcome::Cancelled => {
                Err(Error::aborted("a wait for a lock was cancelled").with("txn", txn.id()))
            }
            Outcome::NoMemory => Err(memory::refused("locks", 0)),
        }
    }

    /// Its time is over, or that of a holder: gives up, or grants what the holder kept.
    ///
    /// Whatever was decided before the mutex of the waits was had stands: who was granted holds.
    pub(super) fn look_again(&self, number: u32, txn: &TxnLocks, late: bool) -> (Outcome, u64) {
        let mut waits = self.waits.lock();
        let mut woken = Woken::default();
        let mut outcome = *txn.owner.outcome.lock();
        if makes(Mistake::GiveUpBlindly) && late {
            outcome = Outcome::Waiting;
            if waits.by_txn.get(&txn.id()) != Some(&number) {
                return (outcome, 0);
            }
        }
        let mut expiry = u64::MAX;
        if outcome == Outcome::Waiting && late {
            self.give_up(&mut waits, number, &mut woken);
        } else if outcome == Outcome::Waiting {
            let asked = waits.asked_at();
            let wait = waits.get(number);
            let family = wait.family.clone();
            match wait.target {
                Target::Point { stripe, entry } => {
                    waits.key_changed(&family, stripe, entry, &mut woken, |_, _| Some(()));
                }
                Target::Range { .. } => waits.range_changed(&family, &mut woken),
            }
            outcome = *txn.owner.outcome.lock();
            if outcome == Outcome::Waiting {
                expiry = waits.next_expiry(waits.get(number), asked);
            }
        }
        Self::done(waits, woken);
        (outcome, expiry)
    }

    /// Gives a wait up if it closes a cycle.
    pub(super) fn search<'a>(
        &'a self,
        mut waits: MutexGuard<'a, Waits>,
        number: u32,
        txn: &TxnLocks,
    ) -> Result<MutexGuard<'a, Waits>> {
        let id = txn.id();
        let unlisted = makes(Mistake::SearchUnlisted);
        if unlisted {
            waits.by_txn.remove(&id);
        }
        let search = if waits.get(number).is_newcomer() && !txn.may_be_waited_for() {
            Search::Free
        } else {
            waits.find_cycle(id, number, txn.options.deadlock_detect_depth)
        };
        if unlisted {
            drop(waits);
            waits = self.waits.lock();
            if *txn.owner.outcome.lock() == Outcome::Waiting {
                waits.by_txn.insert(id, number);
            }
        }
        let path = match search {
            Search::Free => return Ok(waits),
            Search::Cycle(txns) => waits.keep_deadlock(&txns, false),
            Search::GivenUp => waits.keep_deadlock(&[], true),
        };
        self.statistics.add(Ticker::TxnDeadlocks, 1);
        let mut woken = Woken::default();
        self.give_up(&mut waits, number, &mut woken);
        Self::done(waits, woken);
        Err(
            Error::new(ErrorKind::Deadlock, "a wait would close a cycle")
                .with("txn", id)
                .caused_by(Cycle(path)),
        )
    }
}
