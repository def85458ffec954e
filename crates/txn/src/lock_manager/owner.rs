//! A transaction as the lock manager sees it: what it holds, and how it waits.
//!
//! 1. Locks stand in the list in the order in which they were taken; a savepoint is a length of it.
//! 2. A transaction waits for one lock at most: whoever calls for it holds it mutably.
//! 3. Whether its locks may be stolen is one atomic step: robbed, or kept for the commit.

use std::sync::Arc;
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::sync::atomic::{AtomicU8, Ordering::SeqCst};
use orogen_base::sync::{Condvar, Mutex, spins, thread};
use orogen_base::{Error, ErrorKind, Result};
use orogen_env::Clock;

use super::Core;
use super::family::FamilyLocks;
use super::grant::Woken;

/// The number of a transaction: never 0, never used twice by one manager.
pub type TxnId = u64;

/// How a key or a range is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// Beside others who lock it shared.
    Shared,
    /// Alone.
    Exclusive,
}

impl LockMode {
    /// True if two transactions cannot hold the same thing in these modes.
    #[must_use]
    pub fn conflicts(self, other: Self) -> bool {
        self == Self::Exclusive || other == Self::Exclusive
    }
}

/// Settings of one transaction's locks, under RocksDB's names.
#[derive(Clone, Copy, Debug)]
pub struct TxnLockOptions {
    /// Look for a deadlock when a wait begins. Off: only deadlines end one. Default true (RocksDB:
    /// false).
    pub deadlock_detect: bool,
    /// Waiting transactions that the search looks at before it gives up and *assumes* a deadlock; 0:
    /// all of them, and nothing is assumed. Default 0 (RocksDB: 50).
    pub deadlock_detect_depth: u32,
    /// Microseconds after which others may take its locks; `None`: never. Default `None`.
    pub expiration_micros: Option<u64>,
}

impl Default for TxnLockOptions {
    fn default() -> Self {
        Self {
            deadlock_detect: true,
            deadlock_detect_depth: 0,
            expiration_micros: None,
        }
    }
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Waiting,
    Granted,
    /// Somebody else ended it.
    Cancelled,
    /// There was no memory to grant it.
    NoMemory,
}

/// How often a wait is looked at, and the processor left to others, before it sleeps: most transactions
/// are shorter than putting a thread to sleep and waking it. Ten make eight threads on 100 hot keys 1.6
/// times as fast as none on two processors, and thirty little more.
const LOOKS: usize = spins(10);

const ACTIVE: u8 = 0;
const KEPT: u8 = 1;
const ROBBED: u8 = 2;

/// The part of a transaction that others see.
pub(crate) struct Owner {
    pub(crate) id: TxnId,
    /// Microseconds of the manager's clock; `u64::MAX`: never.
    pub(crate) expires_at: u64,
    state: AtomicU8,
    pub(crate) outcome: Mutex<Outcome>,
    pub(crate) wake: Condvar,
}

impl Owner {
    pub(crate) fn new(id: TxnId, expires_at: u64) -> Arc<Self> {
        Arc::new(Self {
            id,
            expires_at,
            state: AtomicU8::new(ACTIVE),
            outcome: Mutex::new(Outcome::Waiting),
            wake: Condvar::new(),
        })
    }

    /// True if its locks may be taken; it loses them all to whoever asks from now on.
    pub(crate) fn rob(&self, now: u64) -> bool {
        if self.expires_at > now {
            return false;
        }
        match self.state.compare_exchange(ACTIVE, ROBBED, SeqCst, SeqCst) {
            Ok(_) => true,
            Err(state) => state == ROBBED,
        }
    }

    /// Makes a transaction that has ended into another one.
    pub(crate) fn restart(&mut self, id: TxnId, expires_at: u64) {
        self.id = id;
        self.expires_at = expires_at;
        self.state = AtomicU8::new(ACTIVE);
    }

    /// Sleeps until its wait has ended, or until `wake_at`: then it is `Waiting` still.
    pub(crate) fn sleep(&self, clock: &dyn Clock, wake_at: u64) -> Outcome {
        for _ in 0..LOOKS {
            let outcome = *self.outcome.lock();
            if outcome != Outcome::Waiting {
                return outcome;
            }
            thread::yield_now();
        }
        let mut outcome = self.outcome.lock();
        while *outcome == Outcome::Waiting {
            if wake_at == u64::MAX {
                self.wake.wait(&mut outcome);
                continue;
            }
            let left = wake_at.saturating_sub(clock.now_micros());
            if left == 0 {
                break;
            }
            self.wake
                .wait_for(&mut outcome, Duration::from_micros(left));
        }
        *outcome
    }

    /// True if nobody may take its locks any more.
    pub(crate) fn is_kept(&self) -> bool {
        self.state.load(SeqCst) == KEPT
    }
}

/// What a record of a transaction's list says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Taken {
    /// The key was locked.
    New,
    /// A shared lock of the key was made exclusive.
    Upgraded,
    /// A range was locked: `entry` is its number.
    Range,
    /// It was let go before its turn; the place keeps savepoints right.
    Released,
}

/// One lock of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) entry: u32,
    pub(crate) family: u32,
    pub(crate) stripe: u16,
    pub(crate) taken: Taken,
}

const _: () = assert!(size_of::<Record>() == 12);

/// A moment in a transaction: what it locked later can be let go alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SavePoint(pub(crate) usize);

/// The locks of one transaction. Dropping it lets all of them go.
///
/// Made by [`LockManager::begin`](super::LockManager::begin), and to be used again by
/// [`LockManager::restart`](super::LockManager::restart): its lists keep their memory.
pub struct TxnLocks {
    pub(crate) core: Arc<Core>,
    pub(crate) owner: Arc<Owner>,
    pub(crate) options: TxnLockOptions,
    pub(crate) records: Vec<Record>,
    /// Families that records name by their place here.
    pub(crate) families: Vec<Arc<FamilyLocks>>,
}

impl TxnLocks {
    /// Its number.
    #[must_use]
    pub fn id(&self) -> TxnId {
        self.owner.id
    }

    /// Locks that it has taken, and not let go, counting one that was made exclusive twice.
    #[must_use]
    pub fn len(&self) -> usize {
        let held = |record: &&Record| record.taken != Taken::Released;
        self.records.iter().filter(held).count()
    }

    /// True if it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The moment now.
    #[must_use]
    pub fn save_point(&self) -> SavePoint {
        SavePoint(self.records.len())
    }

    /// From now on nobody takes its locks, however late it is: to be called when the transaction
    /// begins to commit, or has been prepared.
    ///
    /// # Errors
    /// `Expired` if its time is over: it cannot commit any more.
    pub fn keep(&self) -> Result<()> {
        let owner = &*self.owner;
        if owner.expires_at == u64::MAX || owner.is_kept() {
            return Ok(());
        }
        let late = owner.expires_at <= self.core.clock.now_micros();
        if late
            || owner
                .state
                .compare_exchange(ACTIVE, KEPT, SeqCst, SeqCst)
                .is_err()
        {
            return Err(self.expired());
        }
        Ok(())
    }

    /// Undoes [`Self::keep`] behind an error after which nothing of it can be in a log: its time goes on. If that was over
    /// meanwhile, those who wait looked already, and do so again.
    pub(crate) fn give_up_commit(&self, error: &Error) {
        let state = &self.owner.state;
        if error.kind() == ErrorKind::Io
            || state
                .compare_exchange(KEPT, ACTIVE, SeqCst, SeqCst)
                .is_err()
        {
            return;
        }
        let mut waits = self.core.waits.lock();
        let mut woken = Woken::default();
        for family in &self.families {
            waits.range_changed(family, &mut woken);
        }
        Core::done(waits, woken);
    }

    /// # Errors
    /// `Expired` if its time is over.
    #[inline]
    pub(crate) fn check_time(&self) -> Result<()> {
        let owner = &*self.owner;
        if owner.expires_at == u64::MAX || owner.is_kept() {
            return Ok(());
        }
        // Nobody is robbed before.
        if owner.expires_at <= self.core.clock.now_micros() {
            return Err(self.expired());
        }
        Ok(())
    }

    /// False if nobody waits for what it holds. Told under the mutex of the waits.
    ///
    /// Looks at a few locks only: who holds more is searched for.
    pub(crate) fn may_be_waited_for(&self) -> bool {
        const LOOKED_AT_MAX: usize = 16;
        if self.records.len() > LOOKED_AT_MAX || self.families.iter().any(|f| f.has_ranges()) {
            return true;
        }
        self.records.iter().any(|record| {
            let family = &self.families[record.family as usize];
            let stripe = family.cell(record.stripe).lock();
            let held = record.taken == Taken::New && stripe.holds(record.entry, self.id());
            held && stripe.queue(record.entry) != 0
        })
    }

    #[cold]
    pub(crate) fn expired(&self) -> Error {
        self.core.statistics.add(Ticker::TxnExpirations, 1);
        Error::new(ErrorKind::Expired, "the time of the transaction is over").with("txn", self.id())
    }

    /// The place of a family in the list.
    #[inline]
    pub(crate) fn place_of(&mut self, family: &Arc<FamilyLocks>) -> u32 {
        let known = self.families.iter().position(|f| Arc::ptr_eq(f, family));
        known.unwrap_or_else(|| {
            self.families.push(family.clone());
            self.families.len() - 1
        }) as u32
    }
}

impl Drop for TxnLocks {
    fn drop(&mut self) {
        let core = self.core.clone();
        core.end(self);
    }
}
