//! Transactions that lock what they write before they write it.
//!
//! ```text
//! begin -> lock, note (any number of times) -> commit                        one batch, then locks go
//!                                           '-> prepare -> commit | roll back   the log has it from prepare on
//!                                           '-> roll back, or drop
//! ```
//! 1. A key is locked from the moment a transaction writes it, or reads it for update, until it ends. A range that is
//!    deleted is locked as a whole.
//! 2. With a snapshot, who locks a key that was written since, or a range with such a key, gets `Busy`: what it reads at
//!    its snapshot is what it locks. What it held before nobody can have written since, and is not looked at again.
//! 3. What a transaction wrote is in memory only, or in a file of its own, and seen by itself only, until it commits: then all at once.
//! 4. Who writes to the database beside its [`TransactionDb`] asks for no locks.
//!
//! What can happen beside others, by what a transaction uses, is in the head of the crate.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind, PinnedValue, Result, SeqNo};
use orogen_engine::batch::{PREPARED_NAME_BYTES_MAX, Spill, SpillOptions};
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, Snapshot, WriteBatch, WriteOptions};

use crate::OwnWritesIterator;
use crate::indexed_batch::IndexedBatch;
use crate::lock_manager::{
    FamilyLocks, KeyRange, LockManager, LockManagerOptions, LockMode, Locked,
    SavePoint as LockSavePoint, TxnId, TxnLockOptions, TxnLocks,
};
use crate::lock_order;
use crate::spill;

/// Settings of a database with transactions.
#[derive(Clone, Debug)]
pub struct TransactionDbOptions {
    /// Those of its locks.
    pub locks: LockManagerOptions,
    /// How long writes without a transaction of their own wait for a lock; `None`: for ever.
    /// Default one second.
    pub default_lock_timeout: Option<Duration>,
    /// When the writes of a large transaction go on in a file; see [`SpillOptions`]. Locks, the index of what was read, and marks
    /// of save points stay in memory. `None`, the default: never.
    pub spill: Option<SpillOptions>,
}

impl Default for TransactionDbOptions {
    fn default() -> Self {
        Self {
            locks: LockManagerOptions::default(),
            default_lock_timeout: Some(Duration::from_secs(1)),
            spill: None,
        }
    }
}

/// Settings of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct TransactionOptions {
    /// Those of its locks: deadlock detection, expiry.
    pub locks: TxnLockOptions,
    /// How long it waits for a lock; zero: not at all; `None`: for ever. Default one second.
    pub lock_timeout: Option<Duration>,
    /// It begins with a snapshot. Default false.
    pub set_snapshot: bool,
    /// How its commit, its prepare and its roll back are written.
    pub write: WriteOptions,
    /// Bytes of its writes from which on they go to a file, instead of those that [`TransactionDbOptions::spill`] says, where that is set;
    /// `usize::MAX`: never. Default `None`: as there.
    pub spill_threshold_bytes: Option<usize>,
    /// Bytes of its writes beyond which it takes no more: what would go over is refused with `TooLarge`. Default 0: as many as memtables
    /// take at once.
    pub max_write_batch_size: usize,
}

impl Default for TransactionOptions {
    fn default() -> Self {
        Self {
            locks: TxnLockOptions::default(),
            lock_timeout: Some(Duration::from_secs(1)),
            set_snapshot: false,
            write: WriteOptions::default(),
            spill_threshold_bytes: None,
            max_write_batch_size: 0,
        }
    }
}

struct Inner {
    db: Db,
    locks: LockManager,
    families: Mutex<BTreeMap<u32, Arc<FamilyLocks>>>,
    default_lock_timeout: Option<Duration>,
    spill: Option<Arc<Spill>>,
    /// What is prepared and in nobody's hands: names and locks.
    prepared: Mutex<Vec<(Vec<u8>, TxnLocks)>>,
}

/// A database whose writers lock what they write. Clones share it.
#[derive(Clone)]
pub struct TransactionDb(Arc<Inner>);

/// How far a transaction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionState {
    /// It can be written to.
    Started,
    /// The log has it; it can be committed or rolled back.
    Prepared,
    /// It is over; its locks are gone.
    Ended,
}

/// A pessimistic transaction; see the module's head. Dropped before it was prepared it is rolled back; dropped
/// while it is prepared it goes back to its database ([`TransactionDb::prepared_transactions`]).
pub struct Transaction {
    home: Arc<Inner>,
    own: RefCell<IndexedBatch>,
    held: TxnLocks,
    /// The families that it has locked something of.
    families: Vec<Arc<FamilyLocks>>,
    options: TransactionOptions,
    snapshot: Option<Snapshot>,
    snapshot_on_next: bool,
    save_points: Vec<SavePoint>,
    name: Option<Vec<u8>>,
    state: TransactionState,
    /// It was counted when it was begun, and counts when it is dropped.
    is_counted: bool,
}

struct SavePoint {
    locks: LockSavePoint,
    snapshot: Option<Snapshot>,
    snapshot_on_next: bool,
}

impl TransactionDb {
    /// Opens a database; what is prepared in it is locked, and in [`Self::prepared_transactions`].
    ///
    /// # Errors
    /// Those of [`Db::open`]; `NoMemory`.
    pub fn open(
        dir: impl AsRef<Path>,
        options: &Options,
        own: TransactionDbOptions,
    ) -> Result<Self> {
        Self::new(Db::open(dir, options)?, own)
    }

    /// Takes an open database. What writes to it must go through this from now on.
    ///
    /// # Errors
    /// `InvalidArgument` if two of what is prepared, by [`Db::prepare`], write the same key; `NoMemory`; `LockLimit` if there is more prepared than may be locked.
    pub fn new(db: Db, options: TransactionDbOptions) -> Result<Self> {
        let this = Self(Arc::new(Inner {
            locks: LockManager::of_db(options.locks, &db),
            families: Mutex::default(),
            default_lock_timeout: options.default_lock_timeout,
            spill: options.spill.map(|s| Spill::new(s, Some(db.statistics()))),
            prepared: Mutex::default(),
            db,
        }));
        for prepared in this.0.db.prepared_writes() {
            let Some(batch) = this.0.db.prepared_batch(&prepared.name)? else {
                continue;
            };
            // Nobody else is here to let a lock go.
            let mut txn = this.begin_uncounted(TransactionOptions {
                lock_timeout: Some(Duration::ZERO),
                ..TransactionOptions::default()
            })?;
            // What it has for families that were dropped since will not be written.
            let families = this.0.db.column_families();
            let locked = txn.lock_all(&batch, |cf| families.iter().any(|f| f.id() == cf));
            locked.map_err(|e| share_a_key(e, &prepared.name))?;
            txn.held.keep()?;
            this.0
                .prepared
                .lock()
                .push((prepared.name, txn.take_locks()));
        }
        Ok(this)
    }

    /// The database itself, for reads and all that is no write.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.0.db
    }

    /// The locks, to look at.
    #[must_use]
    pub fn locks(&self) -> &LockManager {
        &self.0.locks
    }

    /// A property that is a number: `orogen.txn.locks` and `orogen.txn.lock-bytes` of [`LockManager::usage`], `orogen.txn.prepared`, and
    /// those of [`Db::int_property`].
    #[must_use]
    pub fn int_property(&self, family: &ColumnFamily, name: &str) -> Option<u64> {
        let own = self.0.locks.usage().property(name);
        own.or_else(|| self.0.db.int_property(family, name))
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn begin(&self, options: TransactionOptions) -> Result<Transaction> {
        let mut txn = self.begin_uncounted(options)?;
        txn.count_one(Ticker::TxnBegins);
        txn.is_counted = true;
        Ok(txn)
    }

    /// One of the database's own, or one that was begun before.
    fn begin_uncounted(&self, options: TransactionOptions) -> Result<Transaction> {
        let mut own = IndexedBatch::new()?;
        own.set_spill(spill::of(&self.0.spill, options.spill_threshold_bytes));
        own.set_max_bytes(options.max_write_batch_size);
        own.set_protected(options.write.protection_bytes_per_key > 0);
        let mut txn = Transaction {
            home: self.0.clone(),
            own: RefCell::new(own),
            held: self.0.locks.begin(options.locks),
            families: Vec::new(),
            options,
            snapshot: None,
            snapshot_on_next: false,
            save_points: Vec::new(),
            name: None,
            state: TransactionState::Started,
            is_counted: false,
        };
        if options.set_snapshot {
            txn.set_snapshot();
        }
        Ok(txn)
    }

    /// The names of what is prepared and in nobody's hands: left by earlier processes, or dropped.
    #[must_use]
    pub fn prepared_transactions(&self) -> Vec<Vec<u8>> {
        let prepared = self.0.prepared.lock();
        prepared.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The name under which a transaction of this number is prepared, if it is in nobody's hands.
    #[must_use]
    pub fn prepared_name(&self, id: TxnId) -> Option<Vec<u8>> {
        let prepared = self.0.prepared.lock();
        let found = prepared.iter().find(|(_, held)| held.id() == id);
        found.map(|(name, _)| name.clone())
    }

    /// Takes a prepared transaction that is in nobody's hands; it does not see what it wrote. Of `options` those count that
    /// say how its end is written.
    ///
    /// # Errors
    /// `NotFound` if there is none of this name; `NoMemory`.
    pub fn take_prepared(&self, name: &[u8], options: TransactionOptions) -> Result<Transaction> {
        let mut txn = self.begin_uncounted(TransactionOptions {
            set_snapshot: false,
            ..options
        })?;
        let mut prepared = self.0.prepared.lock();
        let at = prepared.iter().position(|(own, _)| own == name);
        let at = at.ok_or_else(|| {
            Error::not_found("no transaction is prepared under this name, or somebody has it")
                .with("name", name.escape_ascii())
        })?;
        let (name, held) = prepared.swap_remove(at);
        txn.held = held;
        txn.name = Some(name);
        txn.state = TransactionState::Prepared;
        Ok(txn)
    }

    /// Writes a batch in a transaction of its own, which locks its keys first, in their order.
    ///
    /// # Errors
    /// Those of [`Transaction::put`] and [`Db::write_opt`].
    pub fn write(&self, options: &WriteOptions, batch: &mut WriteBatch) -> Result<()> {
        let own = TransactionOptions {
            lock_timeout: self.0.default_lock_timeout,
            write: *options,
            ..TransactionOptions::default()
        };
        let mut txn = self.begin_uncounted(own)?;
        txn.lock_all(batch, |_| true)?;
        self.0.db.write_opt(options, batch)
    }

    /// Sets a key in a transaction of its own.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn put(
        &self,
        options: &WriteOptions,
        family: &ColumnFamily,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        self.0.db.check_column_family(family)?;
        let mut batch = WriteBatch::new();
        batch.put(family.id(), key, value);
        self.write(options, &mut batch)
    }

    /// Deletes a key in a transaction of its own.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub fn delete(&self, options: &WriteOptions, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.0.db.check_column_family(family)?;
        let mut batch = WriteBatch::new();
        batch.delete(family.id(), key);
        self.write(options, &mut batch)
    }
}

impl Inner {
    fn family(&self, id: u32) -> Result<Arc<FamilyLocks>> {
        let mut families = self.families.lock();
        if let Some(locks) = families.get(&id) {
            return Ok(locks.clone());
        }
        let locks = lock_order::family(&self.db, &self.locks, id)?;
        families.insert(id, locks.clone());
        Ok(locks)
    }
}

impl Transaction {
    /// The number by which locks and deadlocks name it.
    #[must_use]
    pub fn id(&self) -> TxnId {
        self.held.id()
    }

    /// How far it is.
    #[must_use]
    pub fn state(&self) -> TransactionState {
        self.state
    }

    /// Its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        self.name.as_deref()
    }

    /// Locks that it holds.
    #[must_use]
    pub fn lock_count(&self) -> usize {
        self.held.len()
    }

    /// Operations so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.own.borrow().count()
    }

    /// Bytes of its writes that are in a file; 0 if they are in memory.
    #[must_use]
    pub fn spilled_bytes(&self) -> usize {
        self.own.borrow().batch().spilled_bytes()
    }

    /// Names it; it needs a name to be prepared. 1 to 512 bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if it has one already, is not in its beginning, or the name is too long: it may get
    /// another one then.
    pub fn set_name(&mut self, name: &[u8]) -> Result<()> {
        self.check_started()?;
        if self.name.is_some() || name.is_empty() {
            return Err(Error::invalid_argument(
                "transaction has a name already, or gets none",
            ));
        }
        if name.len() > PREPARED_NAME_BYTES_MAX {
            return Err(Error::invalid_argument("name of a transaction is too long")
                .with("bytes", name.len())
                .with("at_most", PREPARED_NAME_BYTES_MAX));
        }
        self.name = Some(name.to_vec());
        Ok(())
    }

    /// Takes a snapshot: keys that it locks from now on must not have been written since.
    pub fn set_snapshot(&mut self) {
        self.snapshot = Some(self.home.db.snapshot_to_check());
        self.snapshot_on_next = false;
    }

    /// Takes a snapshot once the next lock is taken, before it is looked whether the key was written since; until then the snapshot
    /// that there is counts for reads.
    pub fn set_snapshot_on_next_operation(&mut self) {
        self.snapshot_on_next = true;
    }

    /// Its snapshot, to read at.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Gives the snapshot up.
    pub fn clear_snapshot(&mut self) {
        self.snapshot = None;
        self.snapshot_on_next = false;
    }

    /// Sets a key, which it locks.
    ///
    /// # Errors
    /// `LockTimeout`, `Deadlock`, `LockLimit`, `Expired`: it was not locked, nothing has changed, and the
    /// transaction may go on unless it is expired. `Busy` if it was written since the snapshot.
    /// `InvalidArgument` after the beginning, for a family of another database, or for a key or value that is too large; `NoMemory`; `Corruption`, `Io`. `TooLarge` if its
    /// writes would have more bytes than [`TransactionOptions::max_write_batch_size`], or more bytes or operations than a memtable takes at once,
    /// and `NoSpace`, `Io` of the file that its writes go on in: it is locked, and nothing was written.
    pub fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.lock(family, key, LockMode::Exclusive)?;
        self.own.get_mut().put(family, key, value)
    }

    /// Adds a merge operand to a key, which it locks.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn merge(&mut self, family: &ColumnFamily, key: &[u8], operand: &[u8]) -> Result<()> {
        self.lock(family, key, LockMode::Exclusive)?;
        self.own.get_mut().merge(family, key, operand)
    }

    /// Deletes a key, which it locks.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.lock(family, key, LockMode::Exclusive)?;
        self.own.get_mut().delete(family, key)
    }

    /// Deletes a key that was put once, and which it locks; see [`WriteBatch::single_delete`].
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn single_delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.lock(family, key, LockMode::Exclusive)?;
        self.own.get_mut().single_delete(family, key)
    }

    /// Deletes the keys from `start` up to but not including `end`, a range that it locks. With a snapshot the range is gone through
    /// in memtables and in tables that were written since.
    ///
    /// # Errors
    /// As [`Self::put`]; `Busy` if a key in it was written since the snapshot.
    pub fn delete_range(&mut self, family: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        self.check_takes(family)?;
        if family.options().comparator.less(start, end) {
            let range = KeyRange::new(start, end, false);
            self.lock_and_check_range(family, &range, LockMode::Exclusive)?;
        }
        self.own.get_mut().delete_range(family, start, end)
    }

    /// The value of a key as this transaction sees it: its own writes over the database, at the snapshot of
    /// `options` if there is one, else as it is now.
    ///
    /// # Errors
    /// Those of [`IndexedBatch::get`].
    pub fn get(
        &self,
        options: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<Option<PinnedValue>> {
        self.own.borrow().get(&self.home.db, options, family, key)
    }

    /// The same of a key that it locks first, exclusively or beside others who do this.
    ///
    /// # Errors
    /// Those of [`Self::put`] and [`Self::get`].
    pub fn get_for_update(
        &mut self,
        options: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
        mode: LockMode,
    ) -> Result<Option<PinnedValue>> {
        self.lock(family, key, mode)?;
        self.get(options, family, key)
    }

    /// Iterates over a family as this transaction sees it; locks nothing.
    ///
    /// # Errors
    /// Those of [`Db::iter`].
    pub fn iter(
        &self,
        options: &ReadOptions,
        family: &ColumnFamily,
    ) -> Result<OwnWritesIterator<'_>> {
        OwnWritesIterator::new(&self.own, &self.home.db, options, family)
    }

    /// Locks a range of keys: from now on nobody else writes them, adds any or deletes them. With a snapshot the range is gone through in
    /// memtables and in tables that were written since, so what is read of it at the snapshot is what it has until the transaction ends.
    ///
    /// # Errors
    /// As [`Self::put`]; `Busy` if a key in it was written since the snapshot, and it is not locked then.
    pub fn lock_range<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        range: &KeyRange<K>,
        mode: LockMode,
    ) -> Result<()> {
        self.check_takes(family)?;
        self.lock_and_check_range(family, range, mode)
    }

    /// Remembers writes, locks and snapshot as they are now.
    pub fn set_save_point(&mut self) {
        self.own.get_mut().set_save_point();
        self.save_points.push(SavePoint {
            locks: self.held.save_point(),
            snapshot: self.snapshot.clone(),
            snapshot_on_next: self.snapshot_on_next,
        });
    }

    /// Undoes what was written since the last save point, lets go what was locked since, and forgets the save point.
    ///
    /// # Errors
    /// `NotFound` if there is none; `InvalidArgument` after the beginning.
    pub fn rollback_to_save_point(&mut self) -> Result<()> {
        self.check_started()?;
        self.own.get_mut().rollback_to_save_point()?;
        if let Some(to) = self.save_points.pop() {
            self.home.locks.unlock_since(&mut self.held, to.locks);
            self.snapshot = to.snapshot;
            self.snapshot_on_next = to.snapshot_on_next;
        }
        Ok(())
    }

    /// Forgets the last save point and keeps what came since.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn pop_save_point(&mut self) -> Result<()> {
        self.own.get_mut().pop_save_point()?;
        self.save_points.pop();
        Ok(())
    }

    /// Writes it to the log under its name. From then on it survives this process, and with `sync` a power loss;
    /// its locks are nobody's to take. Until its end there is a second copy of what it wrote, in memory or in a file as the first.
    ///
    /// # Errors
    /// `NoMemory`, `NoSpace`, `Io` if there is no room for the copy; `InvalidArgument` without a name, after the beginning, or if the name is used: it has none then, and may get another one; `Expired`; those of [`Db::prepare`].
    pub fn prepare(&mut self) -> Result<()> {
        self.check_started()?;
        let name = self.name.as_deref();
        let name =
            name.ok_or_else(|| Error::invalid_argument("transaction needs a name to be prepared"))?;
        let batch = self.own.get_mut().batch().clone();
        // A copy in a file may find no room, which tells nothing of the log.
        batch.check_whole()?;
        self.held.keep()?;
        let prepared = self.home.db.prepare(&self.options.write, name, batch);
        if let Err(e) = prepared {
            self.held.give_up_commit(&e);
            // Only a name in use is named by such an error.
            if e.kind() == ErrorKind::InvalidArgument && e.context("name").is_some() {
                self.name = None;
            }
            return Err(e);
        }
        self.count_one(Ticker::TxnPrepares);
        self.state = TransactionState::Prepared;
        Ok(())
    }

    /// Lets what it wrote take effect, at once and whole, and lets its locks go.
    ///
    /// # Errors
    /// `Expired`; `InvalidArgument` if it has ended; those of [`Db::write_opt`] and [`Db::commit_prepared`]. It has not ended then, and
    /// may be committed again or rolled back; after an `Io` error it is not known what the log has. `NotFound` of one that somebody has
    /// ended by [`Db`]: then it has ended here, too.
    pub fn commit(&mut self) -> Result<()> {
        match (self.state, &self.name) {
            (TransactionState::Started, _) => {
                self.held.keep()?;
                let own = self.own.get_mut();
                if !own.is_empty() {
                    let written = own.write(&self.home.db, &self.options.write);
                    written.inspect_err(|e| self.held.give_up_commit(e))?;
                }
            }
            (TransactionState::Prepared, Some(name)) => {
                let written = self.home.db.commit_prepared(&self.options.write, name);
                self.end_if_gone(written)?;
            }
            _ => return Err(has_ended()),
        }
        self.count_one(Ticker::TxnCommits);
        self.end();
        Ok(())
    }

    /// Forgets what it wrote, and lets its locks go.
    ///
    /// # Errors
    /// `InvalidArgument` if it has ended; of a prepared one those of [`Db::rollback_prepared`], and it is prepared still, but behind `NotFound`:
    /// see [`Self::commit`].
    pub fn rollback(&mut self) -> Result<()> {
        match (self.state, &self.name) {
            (TransactionState::Started, _) => {}
            (TransactionState::Prepared, Some(name)) => {
                let written = self.home.db.rollback_prepared(&self.options.write, name);
                self.end_if_gone(written)?;
            }
            _ => return Err(has_ended()),
        }
        self.count_one(Ticker::TxnRollbacks);
        self.end();
        Ok(())
    }

    /// Makes a transaction that has ended into a new one, with the memory that it has.
    ///
    /// # Errors
    /// `InvalidArgument` if it has not ended.
    pub fn restart(&mut self, options: TransactionOptions) -> Result<()> {
        if self.state != TransactionState::Ended {
            return Err(Error::invalid_argument("transaction has not ended"));
        }
        self.home.locks.restart(&mut self.held, options.locks);
        // What was asked of it after its end is nothing of the new one.
        let own = self.own.get_mut();
        own.clear();
        own.set_spill(spill::of(&self.home.spill, options.spill_threshold_bytes));
        own.set_max_bytes(options.max_write_batch_size);
        own.set_protected(options.write.protection_bytes_per_key > 0);
        self.save_points.clear();
        self.clear_snapshot();
        self.options = options;
        self.state = TransactionState::Started;
        self.is_counted = true;
        self.count_one(Ticker::TxnBegins);
        if options.set_snapshot {
            self.set_snapshot();
        }
        Ok(())
    }

    fn count_one(&self, ticker: Ticker) {
        self.home.locks.statistics().add(ticker, 1);
    }

    /// Lets the locks of what is prepared no more go.
    fn end_if_gone(&mut self, written: Result<()>) -> Result<()> {
        written.inspect_err(|e| {
            if e.kind() == ErrorKind::NotFound {
                self.end();
            }
        })
    }

    fn end(&mut self) {
        self.state = TransactionState::Ended;
        self.own.get_mut().clear();
        self.save_points.clear();
        self.clear_snapshot();
        self.name = None;
        self.home.locks.unlock_all(&mut self.held);
    }

    fn check_started(&self) -> Result<()> {
        match self.state {
            TransactionState::Started => Ok(()),
            TransactionState::Prepared => Err(Error::invalid_argument(
                "transaction is prepared and takes no more",
            )),
            TransactionState::Ended => Err(has_ended()),
        }
    }

    /// It goes on, and the family is one of its database.
    fn check_takes(&self, family: &ColumnFamily) -> Result<()> {
        self.check_started()?;
        self.home.db.check_column_family(family)
    }

    fn take_locks(&mut self) -> TxnLocks {
        let none = self.home.locks.begin(TxnLockOptions::default());
        std::mem::replace(&mut self.held, none)
    }

    /// The place of a family in the list.
    #[inline]
    fn family(&mut self, id: u32) -> Result<usize> {
        match self.families.iter().position(|f| f.id() == id) {
            Some(at) => Ok(at),
            None => self.new_family(id),
        }
    }

    #[cold]
    fn new_family(&mut self, id: u32) -> Result<usize> {
        self.families.push(self.home.family(id)?);
        Ok(self.families.len() - 1)
    }

    fn lock(&mut self, family: &ColumnFamily, key: &[u8], mode: LockMode) -> Result<()> {
        self.check_takes(family)?;
        let at = self.family(family.id())?;
        let before = self.held.save_point();
        let (locks, timeout) = (&self.home.locks, self.options.lock_timeout);
        let locked = locks.try_lock(&mut self.held, &self.families[at], key, mode, timeout)?;
        // In this order: what the lock waited for is in the snapshot, and nothing to refuse it for.
        self.take_pending_snapshot();
        // What was held before nobody can have written since.
        if let (Locked::New, Some(snapshot)) = (locked, &self.snapshot) {
            let seen = snapshot.seqno();
            if let Err(e) = self.check_not_written(family, key, seen) {
                self.home.locks.unlock_since(&mut self.held, before);
                return Err(e);
            }
        }
        Ok(())
    }

    fn lock_and_check_range<K: AsRef<[u8]>>(
        &mut self,
        family: &ColumnFamily,
        range: &KeyRange<K>,
        mode: LockMode,
    ) -> Result<()> {
        let at = self.family(family.id())?;
        let before = self.held.save_point();
        let (locks, timeout) = (&self.home.locks, self.options.lock_timeout);
        let locked =
            locks.try_lock_range(&mut self.held, &self.families[at], range, mode, timeout)?;
        if self.take_pending_snapshot() {
            // Nobody can have written to it since.
            return Ok(());
        }
        if let (Locked::New, Some(snapshot)) = (locked, &self.snapshot) {
            let seen = snapshot.seqno();
            if let Err(e) = self.check_range_not_written(family, range, seen) {
                self.home.locks.unlock_since(&mut self.held, before);
                return Err(e);
            }
        }
        Ok(())
    }

    fn check_not_written(&self, family: &ColumnFamily, key: &[u8], seen: SeqNo) -> Result<()> {
        let newest = self.home.db.newest_write(family, key)?;
        if newest <= seen {
            return Ok(());
        }
        Err(self.conflict(family, key, newest, seen))
    }

    fn check_range_not_written<K: AsRef<[u8]>>(
        &self,
        family: &ColumnFamily,
        range: &KeyRange<K>,
        seen: SeqNo,
    ) -> Result<()> {
        let written = self.home.db.written_since(family, range, seen)?;
        match written {
            Some(written) => Err(self.conflict(family, &written.key, written.seqno, seen)),
            None => Ok(()),
        }
    }

    #[cold]
    fn conflict(&self, family: &ColumnFamily, key: &[u8], newest: SeqNo, seen: SeqNo) -> Error {
        self.count_one(Ticker::TxnConflicts);
        Error::busy("key was written since the transaction's snapshot")
            .with("column_family", family.name())
            .with("key", key.escape_ascii())
            .with("seqno", newest)
            .with("snapshot", seen)
    }

    /// True if one was pending.
    fn take_pending_snapshot(&mut self) -> bool {
        let pending = self.snapshot_on_next;
        if pending {
            self.set_snapshot();
        }
        pending
    }

    /// Locks all that a batch writes to families that are `wanted`; it holds nothing else.
    fn lock_all(&mut self, batch: &WriteBatch, wanted: impl Fn(u32) -> bool) -> Result<()> {
        let parts = lock_order::parts_of(batch, |part| wanted(part.family))?;
        let (home, timeout) = (&*self.home, self.options.lock_timeout);
        lock_order::lock(
            &home.locks,
            &mut self.held,
            |id| home.family(id),
            parts,
            timeout,
        )
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.state == TransactionState::Started && self.is_counted {
            self.count_one(Ticker::TxnRollbacks);
        }
        if self.state != TransactionState::Prepared {
            return;
        }
        // Its locks stay for as long as it is prepared.
        if let Some(name) = self.name.take() {
            let held = self.take_locks();
            self.home.prepared.lock().push((name, held));
        }
    }
}

/// Of what is prepared only two that share a key keep each other's locks away.
#[cold]
fn share_a_key(error: Error, name: &[u8]) -> Error {
    match error.kind() {
        ErrorKind::LockTimeout => Error::invalid_argument(
            "two prepared writes share a key: commit or roll back one of them with Db",
        )
        .with("name", name.escape_ascii())
        .caused_by(error),
        _ => error,
    }
}

#[cold]
fn has_ended() -> Error {
    Error::invalid_argument("transaction has ended")
}

#[cfg(test)]
mod tests;
