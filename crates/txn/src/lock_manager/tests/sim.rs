//! Many transactions in one thread: a request that has to wait is listed, and looked after later.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::sync::atomic::Ordering::SeqCst;
use orogen_base::{Error, ErrorKind, UserComparator};
use orogen_env::ManualClock;

use crate::lock_manager::owner::Outcome;
use crate::lock_manager::request::Step;
use crate::lock_manager::stripe::Stripe;
use crate::lock_manager::tally::Tally;
use crate::lock_manager::waits::{Wait, Waits};
use crate::lock_manager::{
    FamilyLocks, KeyRange, LockManager, LockManagerOptions, LockMode, LockStatus, LockUsage,
    Locked, TxnLockOptions, TxnLocks, Wanted, range_cost,
};

pub(super) const NO_WAIT: Option<Duration> = Some(Duration::ZERO);

enum Pending {
    Key(u16, u32, Locked),
    Range(u32),
}

pub(super) struct Txn {
    pub(super) locks: TxnLocks,
    pending: Option<Pending>,
}

/// What came of a request.
#[derive(Debug)]
pub(super) enum Answer {
    Got(Locked),
    Waits,
    Refused(Error),
}

impl Answer {
    pub(super) fn got(&self) -> bool {
        matches!(self, Self::Got(_))
    }

    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Waits)
    }

    pub(super) fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Refused(e) => Some(e.kind()),
            _ => None,
        }
    }
}

pub(super) struct Sim {
    pub(super) manager: LockManager,
    pub(super) clock: Arc<ManualClock>,
    pub(super) family: Arc<FamilyLocks>,
    pub(super) txns: Vec<Txn>,
}

impl Sim {
    pub(super) fn new(txns: usize) -> Self {
        Self::with(
            txns,
            LockManagerOptions::default(),
            TxnLockOptions::default(),
        )
    }

    pub(super) fn with(txns: usize, options: LockManagerOptions, each: TxnLockOptions) -> Self {
        let clock = Arc::new(ManualClock::new());
        let manager = LockManager::with(options, clock.clone(), Arc::default());
        let family = manager.add_family(7, UserComparator::BYTEWISE);
        let txns = (0..txns)
            .map(|_| Txn {
                locks: manager.begin(each),
                pending: None,
            })
            .collect();
        Self {
            manager,
            clock,
            family,
            txns,
        }
    }

    pub(super) fn lock(&mut self, txn: usize, key: &str, mode: LockMode) -> Answer {
        let (manager, family) = (&self.manager, &self.family);
        let Txn { locks, pending } = &mut self.txns[txn];
        match manager.try_lock(locks, family, key.as_bytes(), mode, NO_WAIT) {
            Ok(locked) => return Answer::Got(locked),
            Err(e) if e.kind() != ErrorKind::LockTimeout => return Answer::Refused(e),
            Err(_) => {}
        }
        let core = &manager.0;
        let asked = core.ask_for_key(locks, family, key.as_bytes(), mode, true);
        let (locked, entry, step) = match asked {
            Ok(asked) => asked,
            Err(e) => return Answer::Refused(e),
        };
        let Step::Waits(waits, number) = step else {
            panic!("it was refused a moment ago")
        };
        if let Err(e) = core.search(waits, number, locks) {
            return Answer::Refused(e);
        }
        let stripe = family.place(key.as_bytes()).stripe;
        *pending = Some(Pending::Key(stripe, entry, locked));
        Answer::Waits
    }

    pub(super) fn lock_range(
        &mut self,
        txn: usize,
        range: &KeyRange<&str>,
        mode: LockMode,
    ) -> Answer {
        let (manager, family) = (&self.manager, &self.family);
        let Txn { locks, pending } = &mut self.txns[txn];
        match manager.try_lock_range(locks, family, range, mode, NO_WAIT) {
            Ok(locked) => return Answer::Got(locked),
            Err(e) if e.kind() != ErrorKind::LockTimeout => return Answer::Refused(e),
            Err(_) => {}
        }
        let core = &manager.0;
        let asked = match core.ask_for_range(locks, family, range, mode, true) {
            Ok(asked) => asked,
            Err(e) => return Answer::Refused(e),
        };
        let Some((id, Step::Waits(waits, number))) = asked else {
            panic!("it was refused a moment ago")
        };
        if let Err(e) = core.search(waits, number, locks) {
            return Answer::Refused(e);
        }
        *pending = Some(Pending::Range(id));
        Answer::Waits
    }

    /// True if a wait was granted; what was granted is put on the transaction's list.
    pub(super) fn granted(&mut self, txn: usize) -> bool {
        let Txn { locks, pending } = &mut self.txns[txn];
        let outcome = *locks.owner.outcome.lock();
        if pending.is_none() || outcome == Outcome::Waiting {
            return false;
        }
        match pending.take().unwrap() {
            _ if outcome != Outcome::Granted => return false,
            Pending::Key(stripe, entry, locked) => {
                locks.note_key(&self.family, stripe, entry, locked);
            }
            Pending::Range(id) => locks.note_range(&self.family, id),
        }
        true
    }

    pub(super) fn is_waiting(&self, txn: usize) -> bool {
        self.txns[txn].pending.is_some()
    }

    pub(super) fn unlock_all(&mut self, txn: usize) {
        assert!(
            !self.is_waiting(txn),
            "a transaction that waits does nothing else"
        );
        self.manager.unlock_all(&mut self.txns[txn].locks);
    }

    /// Gives a wait up; true if there was one still.
    pub(super) fn cancel(&mut self, txn: usize) -> bool {
        let cancelled = self.manager.cancel(self.txns[txn].locks.id());
        if cancelled {
            self.txns[txn].pending = None;
        }
        cancelled
    }

    /// Moves the clock on; those who wait look whether somebody has expired.
    pub(super) fn advance(&mut self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
        let core = &self.manager.0;
        for txn in &self.txns {
            let id = txn.locks.id();
            let number = core.waits.lock().by_txn.get(&id).copied();
            if let Some(number) = number {
                core.look_again(number, &txn.locks, false);
            }
        }
    }

    /// What is locked and waited for, in an order that does not depend on stripes.
    pub(super) fn status(&self) -> Vec<LockStatus> {
        let mut status = self.manager.lock_status();
        for key in &mut status {
            key.holders.sort_unstable();
        }
        status.sort_by(|a, b| {
            let name = |status: &LockStatus| match &status.what {
                Wanted::Key(key) => (0, format!("{key:?}")),
                Wanted::Range(range) => (1, format!("{range:?}")),
            };
            (name(a), &a.holders).cmp(&(name(b), &b.holders))
        });
        status
    }

    /// What counts, added up anew from what is listed.
    pub(super) fn recounted(&self) -> Tally {
        let waits = self.manager.0.waits.lock();
        let bytes_of_waits = |status: &LockStatus| -> usize {
            let numbers = status.waiting.iter().map(|w| waits.by_txn[&w.txn]);
            let bytes = numbers.map(|n| Wait::bytes(waits.get(n).passes.len()));
            bytes.sum()
        };
        let mut sum = Tally::default();
        for status in &self.listed(&waits) {
            sum.locks += status.holders.len() + status.waiting.len();
            sum.bytes += bytes_of_waits(status);
            sum.bytes += match &status.what {
                Wanted::Key(key) => {
                    // A record and a node of the list each.
                    Stripe::cost(key.len()) + status.holders.len().saturating_sub(1) * (16 + 12)
                }
                Wanted::Range(range) => range_cost(range),
            };
        }
        sum
    }

    fn listed(&self, waits: &Waits) -> Vec<LockStatus> {
        crate::lock_manager::status::of(waits, &self.family)
    }

    /// Shows that what is counted is what is there, and within the limits.
    pub(super) fn assert_counted(&self) {
        let there = self.recounted();
        let usage = self.manager.usage();
        assert_eq!((usage.locks, usage.bytes), (there.locks, there.bytes));
        let core = &self.manager.0;
        if core.is_limited {
            let counted = Tally {
                locks: self.family.limited_count.load(SeqCst),
                bytes: core.used_bytes.load(SeqCst),
            };
            assert_eq!(counted, there);
        }
        let LockManagerOptions {
            max_num_locks,
            memory_limit_bytes,
            ..
        } = core.options;
        assert!(there.locks <= max_num_locks.unwrap_or(usize::MAX));
        assert!(there.bytes <= memory_limit_bytes.unwrap_or(usize::MAX));
    }

    /// Ends all transactions, waits first, and shows that nothing is left.
    pub(super) fn end(mut self) {
        for txn in 0..self.txns.len() {
            self.granted(txn);
            self.cancel(txn);
        }
        for txn in 0..self.txns.len() {
            self.granted(txn);
            self.unlock_all(txn);
        }
        self.assert_empty();
    }

    pub(super) fn assert_empty(&self) {
        assert_eq!(self.manager.lock_status(), []);
        assert_eq!(self.family.key_count(), 0);
        assert_eq!(self.family.used_bytes(), 0);
        assert!(!self.family.has_ranges());
        let core = &self.manager.0;
        assert_eq!(core.waits.lock().iter().count(), 0);
        assert!(core.waits.lock().by_txn.is_empty());
        assert_eq!(core.used_bytes.load(SeqCst), 0);
        assert_eq!(self.family.limited_count.load(SeqCst), 0);
        assert_eq!(self.manager.usage(), LockUsage::default());
    }
}
