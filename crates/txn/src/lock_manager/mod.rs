//! Locks of keys and ranges for pessimistic transactions.
//!
//! `try_lock` -> stripe of the key (`stripe.rs`) -> if nobody else wants it: done. Else the waits
//! (`waits.rs`): blockers, place in the queue, search for a deadlock (`wait_for.rs`), sleep; who lets a
//! lock go hands it over (`grant.rs`).
//!
//! 1. A key with a queue, and every key of a family in which a range is locked or waited for, changes
//!    only under the mutex of the waits and that of its stripe; all other keys under the stripe's
//!    alone.
//! 2. Mutexes are taken in the order waits, ranges of a family, stripe, outcome of a wait; one stripe
//!    at a time. Nobody sleeps with one but for the outcome it waits for.
//! 3. A request is granted when it has no blockers and only then: holders that it conflicts with, and
//!    those who wait before it and conflict with it. The edges of the wait-for graph are the same.
//! 4. One that waits holds the lock when it is woken. A newcomer passes nobody.
//! 5. Who holds the key, or a range around it, or keeps a waiting range from being granted, does not
//!    wait for those who wait for it.
//! 6. Edges appear only when a wait begins, or towards transactions that run: so every cycle is found
//!    when the last of its waits begins, and the one that begins it is told.
//! 7. A range counts itself in its family before it looks into the stripes; a point lock reads the
//!    count under the mutex of its stripe.
//! 8. Locks of an expired transaction are taken by who conflicts with them; it gets no further ones.
//!
//! `Hot path`: a lock that nobody else wants takes one mutex of one stripe when it is taken and when
//! it is let go, allocates nothing once lists have grown, and reads no clock.
//!
//! Source: docs/adr/2026-11-23-locks-of-transactions.md.

mod tally;
mod key_pool;
mod stripe;
mod range;
mod family;
mod owner;
mod waits;
mod wait_for;
mod grant;
mod request;
mod release;
mod sleep;
mod status;

#[cfg(test)]
mod tests;
#[cfg(all(test, orogen_shuttle))]
mod model;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Weak};

use orogen_base::UserComparator;
use orogen_base::metrics::Statistics;
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use orogen_engine::Db;
use orogen_env::{Clock, SystemClock};

pub use family::FamilyLocks;
pub use owner::{LockMode, SavePoint, TxnId, TxnLockOptions, TxnLocks};
pub use range::{Endpoint, KeyRange, OwnedRange};
pub use request::Locked;
pub use status::{LockStatus, Waiting};
pub use wait_for::{DeadlockEdge, DeadlockPath, Wanted};

use owner::{Owner, Record, Taken};
use tally::Tally;
use waits::Waits;

/// Settings of a lock manager, under RocksDB's names.
#[derive(Clone, Copy, Debug)]
pub struct LockManagerOptions {
    /// Stripes of each family, a mutex each. More: fewer threads meet at one, 384 bytes each. Default
    /// 16; 1 to 65,535.
    pub num_stripes: usize,
    /// Locks of one family at once: each transaction that holds a key or a range or waits for it is one, so a key that three
    /// share and one waits for is four (RocksDB: keys, however many share them or wait). Default `None`: no limit.
    pub max_num_locks: Option<usize>,
    /// Bytes that locks of all families may take in the tables: about 48 and the key for each key, 28 for each further one that
    /// shares it, and some 200 for each that waits. Default `None`: no limit.
    pub memory_limit_bytes: Option<usize>,
    /// Deadlocks that are remembered. Default 5.
    pub max_num_deadlocks: usize,
}

impl Default for LockManagerOptions {
    fn default() -> Self {
        Self {
            num_stripes: 16,
            max_num_locks: None,
            memory_limit_bytes: None,
            max_num_deadlocks: 5,
        }
    }
}

/// How much is locked; see [`LockManager::usage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockUsage {
    /// Transactions that hold a key or a range or wait for it, each once for each: what
    /// [`LockManagerOptions::max_num_locks`] counts.
    pub locks: usize,
    /// What they count against [`LockManagerOptions::memory_limit_bytes`].
    pub bytes: usize,
}

impl LockUsage {
    /// The number that a property of this name is, if it is one of locks.
    pub(crate) fn property(self, name: &str) -> Option<u64> {
        match name {
            "orogen.txn.locks" => Some(self.locks as u64),
            "orogen.txn.lock-bytes" => Some(self.bytes as u64),
            _ => None,
        }
    }
}

/// Bytes that a range counts.
fn range_cost<K: AsRef<[u8]>>(range: &KeyRange<K>) -> usize {
    size_of::<range::RangeLock>() + size_of::<Record>() + range.key_bytes()
}

/// What all families and transactions of a manager share.
pub(crate) struct Core {
    pub(crate) options: LockManagerOptions,
    pub(crate) is_limited: bool,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) hash_seed: u64,
    last_txn: AtomicU64,
    /// Counted only where there is a limit.
    pub(crate) used_bytes: AtomicUsize,
    /// Rank: above every other mutex here. Guards queues and, with the stripes' own, contended keys.
    pub(crate) waits: Mutex<Waits>,
    families: Mutex<Vec<Weak<FamilyLocks>>>,
}

/// The locks of a database's pessimistic transactions. Cheap to clone.
#[derive(Clone)]
pub struct LockManager(Arc<Core>);

impl LockManager {
    /// A manager by the machine's clock, with counters of its own.
    #[must_use]
    pub fn new(options: LockManagerOptions) -> Self {
        Self::with(options, Arc::new(SystemClock), Arc::default())
    }

    /// A manager that counts where a database does.
    pub(crate) fn of_db(options: LockManagerOptions, db: &Db) -> Self {
        Self::with(options, Arc::new(SystemClock), db.statistics())
    }

    /// A manager that counts in `statistics`, by `clock`.
    #[must_use]
    pub fn with(
        mut options: LockManagerOptions,
        clock: Arc<dyn Clock>,
        statistics: Arc<Statistics>,
    ) -> Self {
        options.num_stripes = options.num_stripes.clamp(1, usize::from(u16::MAX));
        Self(Arc::new(Core {
            options,
            is_limited: options.max_num_locks.is_some() || options.memory_limit_bytes.is_some(),
            clock: clock.clone(),
            statistics,
            // A model has to draw the same stripes each time.
            hash_seed: if cfg!(orogen_shuttle) {
                1
            } else {
                RandomState::new().hash_one(1)
            },
            last_txn: AtomicU64::new(0),
            used_bytes: AtomicUsize::new(0),
            waits: Mutex::new(Waits::new(clock, options.max_num_deadlocks)),
            families: Mutex::new(Vec::new()),
        }))
    }

    /// Where it counts waits, timeouts, deadlocks and thefts.
    #[must_use]
    pub fn statistics(&self) -> &Arc<Statistics> {
        &self.0.statistics
    }

    /// Makes the locks of a column family; they are gone with the last handle. Ask once for each
    /// family: two of one number know nothing of each other.
    #[must_use]
    pub fn add_family(&self, id: u32, order: UserComparator) -> Arc<FamilyLocks> {
        let family = Arc::new(FamilyLocks::new(&self.0, id, order));
        let mut families = self.0.families.lock();
        families.retain(|family| family.strong_count() != 0);
        families.push(Arc::downgrade(&family));
        family
    }

    /// Begins a transaction that holds nothing.
    #[must_use]
    pub fn begin(&self, options: TxnLockOptions) -> TxnLocks {
        let (id, expires_at) = self.0.next_txn(&options);
        let txn = TxnLocks {
            core: self.0.clone(),
            owner: Owner::new(id, expires_at),
            options,
            records: Vec::new(),
            families: Vec::new(),
        };
        self.0.register(&txn);
        txn
    }

    /// Lets all go, and makes of it another transaction: as [`Self::begin`], without allocations.
    pub fn restart(&self, txn: &mut TxnLocks, options: TxnLockOptions) {
        /// Families that a transaction remembers.
        const FAMILIES_KEPT_MAX: usize = 16;
        /// Locks for which its list keeps memory.
        const RECORDS_KEPT_MAX: usize = 16 << 10;
        self.0.end(txn);
        let (id, expires_at) = self.0.next_txn(&options);
        match Arc::get_mut(&mut txn.owner) {
            Some(owner) => owner.restart(id, expires_at),
            None => txn.owner = Owner::new(id, expires_at),
        }
        txn.options = options;
        if txn.families.len() > FAMILIES_KEPT_MAX {
            txn.families.clear();
        }
        if txn.records.capacity() > RECORDS_KEPT_MAX {
            txn.records = Vec::new();
        }
        self.0.register(txn);
    }

    /// Lets all locks of a transaction go, and hands them to those who wait.
    pub fn unlock_all(&self, txn: &mut TxnLocks) {
        self.0.unlock_to(txn, 0);
    }

    /// Lets those go that were taken since; what was made exclusive since is shared again. What was
    /// let go or made shared since stays so.
    pub fn unlock_since(&self, txn: &mut TxnLocks, since: SavePoint) {
        self.0.unlock_to(txn, since.0);
    }

    /// Lets a key go before its turn, whenever it was locked. False if it is not locked. Looks through
    /// the list of the transaction's locks.
    pub fn unlock(&self, txn: &mut TxnLocks, family: &Arc<FamilyLocks>, key: &[u8]) -> bool {
        let place = family.place(key);
        let found = family.cell(place.stripe).lock().find(place.hash, key);
        let number = txn.place_of(family);
        let Some(entry) = found else { return false };
        for record in &mut txn.records {
            let same = record.entry == entry
                && record.stripe == place.stripe
                && record.family == number
                && matches!(record.taken, Taken::New | Taken::Upgraded);
            if same {
                record.taken = Taken::Released;
            }
        }
        self.0.release_key(family, txn.id(), place.stripe, entry)
    }

    /// Makes an exclusive lock of a key shared. False if the transaction does not hold it so.
    pub fn downgrade(&self, txn: &TxnLocks, family: &Arc<FamilyLocks>, key: &[u8]) -> bool {
        let place = family.place(key);
        let found = family.cell(place.stripe).lock().find(place.hash, key);
        found.is_some_and(|entry| self.0.downgrade_key(family, txn.id(), place.stripe, entry))
    }

    /// Ends the wait of a transaction, which gets `Aborted`. False if it does not wait now.
    #[must_use]
    pub fn cancel(&self, txn: TxnId) -> bool {
        self.0.cancel(txn)
    }

    /// The last deadlocks, oldest first.
    #[must_use]
    pub fn deadlocks(&self) -> Vec<Arc<DeadlockPath>> {
        self.0.waits.lock().deadlocks.iter().cloned().collect()
    }

    /// How many deadlocks are remembered from now on.
    pub fn set_max_num_deadlocks(&self, max: usize) {
        let mut waits = self.0.waits.lock();
        waits.deadlocks_max = max;
        let surplus = waits.deadlocks.len().saturating_sub(max);
        waits.deadlocks.drain(..surplus);
    }

    /// Locks that are held or waited for, of all families, and bytes that they count: what limits are compared with, also where there are
    /// none. Who waits is counted at one moment, who holds stripe by stripe: no moment had just so many.
    #[must_use]
    pub fn usage(&self) -> LockUsage {
        let families = self.families();
        let waits = self.0.waits.lock();
        let mut sum = Tally::default();
        for family in &families {
            sum.add(family.tally(&waits));
        }
        LockUsage {
            locks: sum.locks,
            bytes: sum.bytes,
        }
    }

    fn families(&self) -> Vec<Arc<FamilyLocks>> {
        let families = self.0.families.lock();
        families.iter().filter_map(Weak::upgrade).collect()
    }

    /// Every key and range that is locked or waited for, of all families.
    ///
    /// What is contended is shown as it is at one moment; other keys of two stripes are not.
    #[must_use]
    pub fn lock_status(&self) -> Vec<LockStatus> {
        let families = self.families();
        let waits = self.0.waits.lock();
        let of = |family: &Arc<FamilyLocks>| status::of(&waits, family);
        families.iter().flat_map(of).collect()
    }
}

impl Core {
    fn next_txn(&self, options: &TxnLockOptions) -> (TxnId, u64) {
        let id = self.last_txn.fetch_add(1, Relaxed) + 1;
        let expires_at = options.expiration_micros.map_or(u64::MAX, |micros| {
            self.clock.now_micros().saturating_add(micros)
        });
        (id, expires_at)
    }

    /// Others have to find those who may be robbed.
    fn register(&self, txn: &TxnLocks) {
        if txn.owner.expires_at != u64::MAX {
            let owner = txn.owner.clone();
            self.waits.lock().expirable.insert(owner.id, owner);
        }
    }

    /// Lets all go, for good.
    pub(crate) fn end(&self, txn: &mut TxnLocks) {
        self.unlock_to(txn, 0);
        if txn.owner.expires_at != u64::MAX {
            self.waits.lock().expirable.remove(&txn.id());
        }
    }

    fn unlock_to(&self, txn: &mut TxnLocks, len: usize) {
        let id = txn.id();
        while txn.records.len() > len {
            let Some(record) = txn.records.pop() else {
                break;
            };
            let Record { stripe, entry, .. } = record;
            let family = &txn.families[record.family as usize];
            match record.taken {
                Taken::New => {
                    self.release_key(family, id, stripe, entry);
                }
                // What goes entirely needs not be shared first.
                Taken::Upgraded if len == 0 => {}
                Taken::Upgraded => {
                    self.downgrade_key(family, id, stripe, entry);
                }
                Taken::Range => self.release_range(family, id, entry),
                Taken::Released => {}
            }
        }
    }
}
