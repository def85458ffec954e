//! Transactions that lock nothing before they commit, and find out then whether what they went by was written meanwhile.
//!
//! ```text
//! begin -> note what is written or read for update -> commit: lock it, look it up, write, unlock
//!                                                  '-> roll back, or drop
//! ```
//! 1. A key is noted when a transaction first writes it or reads it for update, with the newest write that there was then, or that its
//!    snapshot sees. If it was written since, the commit is refused with `Busy` and nothing is written.
//! 2. What is looked at are the keys themselves, in memory and in tables: however much was flushed meanwhile, a commit is not
//!    refused for want of history (as it is where memtables alone are asked). From the first key that it notes
//!    a transaction holds a snapshot, so that what was written and deleted since has left a trace.
//! 3. Commits lock their keys, all at once as far as anybody can tell, so that nobody who writes through the same
//!    [`OptimisticTransactionDb`] comes between the look and the write. Who writes to the database beside it does.
//! 4. A range that is deleted is noted as a key is, and gone through at the end, in memtables and in tables that were written since.
//!
//! What can happen beside others, by what a transaction uses, is in the head of the crate.

mod tracked;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::metrics::Ticker;
use orogen_base::sync::Mutex;
use orogen_base::{Error, PinnedValue, Result, SeqNo, memory};
use orogen_engine::batch::{Spill, SpillOptions};
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, Snapshot, WriteBatch, WriteOptions};

use crate::OwnWritesIterator;
use crate::indexed_batch::IndexedBatch;
use crate::lock_manager::{
    FamilyLocks, KeyRange, LockManager, LockManagerOptions, TxnLockOptions, TxnLocks,
};
use crate::lock_order::{self, Part};
use crate::spill;
use tracked::{End, Tracked};

/// Settings of a database with optimistic transactions.
#[derive(Clone, Debug)]
pub struct OptimisticTransactionDbOptions {
    /// Those of the locks that commits take.
    pub locks: LockManagerOptions,
    /// How long a commit waits for others that commit the same keys; `None`: for ever. Default one second.
    pub lock_timeout: Option<Duration>,
    /// When the writes of a large transaction go on in a file; see [`SpillOptions`]. Noted keys, the index of what was read, and marks
    /// of save points stay in memory. `None`, the default: never.
    pub spill: Option<SpillOptions>,
}

impl Default for OptimisticTransactionDbOptions {
    fn default() -> Self {
        Self {
            locks: LockManagerOptions::default(),
            lock_timeout: Some(Duration::from_secs(1)),
            spill: None,
        }
    }
}

/// Settings of one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptimisticTransactionOptions {
    /// It begins with a snapshot. Default false.
    pub set_snapshot: bool,
    /// How its commit is written.
    pub write: WriteOptions,
    /// Bytes of its writes from which on they go to a file, instead of those that [`OptimisticTransactionDbOptions::spill`] says, where that is set;
    /// `usize::MAX`: never. Default `None`: as there.
    pub spill_threshold_bytes: Option<usize>,
    /// Bytes of its writes beyond which it takes no more: what would go over is refused with `TooLarge`. Default 0: as many as memtables
    /// take at once.
    pub max_write_batch_size: usize,
}

struct Inner {
    db: Db,
    locks: LockManager,
    families: Mutex<BTreeMap<u32, Arc<FamilyLocks>>>,
    lock_timeout: Option<Duration>,
    spill: Option<Arc<Spill>>,
}

/// A database whose transactions look at their end whether they may write. Clones share it.
#[derive(Clone)]
pub struct OptimisticTransactionDb(Arc<Inner>);

/// An optimistic transaction; see the module's head. Dropped without a commit it has written nothing.
pub struct OptimisticTransaction {
    home: Arc<Inner>,
    own: RefCell<IndexedBatch>,
    tracked: Tracked,
    /// Held from the first key on that is noted.
    hold: Option<Snapshot>,
    snapshot: Option<Snapshot>,
    snapshot_on_next: bool,
    options: OptimisticTransactionOptions,
    save_points: Vec<SavePoint>,
    has_ended: bool,
}

struct SavePoint {
    /// Keys that were noted before.
    keys: End,
    snapshot: Option<Snapshot>,
    snapshot_on_next: bool,
}

impl OptimisticTransactionDb {
    /// Opens a database.
    ///
    /// # Errors
    /// Those of [`Db::open`].
    pub fn open(
        dir: impl AsRef<Path>,
        options: &Options,
        own: OptimisticTransactionDbOptions,
    ) -> Result<Self> {
        Ok(Self::new(Db::open(dir, options)?, own))
    }

    /// Takes an open database. What writes to it must go through this from now on.
    #[must_use]
    pub fn new(db: Db, options: OptimisticTransactionDbOptions) -> Self {
        Self(Arc::new(Inner {
            locks: LockManager::of_db(options.locks, &db),
            families: Mutex::default(),
            lock_timeout: options.lock_timeout,
            spill: options.spill.map(|s| Spill::new(s, Some(db.statistics()))),
            db,
        }))
    }

    /// The database.
    #[must_use]
    pub fn db(&self) -> &Db {
        &self.0.db
    }

    /// The locks that commits take.
    #[must_use]
    pub fn locks(&self) -> &LockManager {
        &self.0.locks
    }

    /// A property that is a number: `orogen.txn.locks` and `orogen.txn.lock-bytes` of [`LockManager::usage`], and those of
    /// [`Db::int_property`].
    #[must_use]
    pub fn int_property(&self, family: &ColumnFamily, name: &str) -> Option<u64> {
        let own = self.0.locks.usage().property(name);
        own.or_else(|| self.0.db.int_property(family, name))
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn begin(&self, options: OptimisticTransactionOptions) -> Result<OptimisticTransaction> {
        let mut own = IndexedBatch::new()?;
        own.set_spill(spill::of(&self.0.spill, options.spill_threshold_bytes));
        own.set_max_bytes(options.max_write_batch_size);
        own.set_protected(options.write.protection_bytes_per_key > 0);
        let mut txn = OptimisticTransaction {
            home: self.0.clone(),
            own: RefCell::new(own),
            tracked: Tracked::default(),
            hold: None,
            snapshot: None,
            snapshot_on_next: false,
            options,
            save_points: Vec::new(),
            has_ended: false,
        };
        if options.set_snapshot {
            txn.set_snapshot();
        }
        txn.count_one(Ticker::TxnBegins);
        Ok(txn)
    }

    /// Writes a batch, between the commits of transactions that note its keys.
    ///
    /// # Errors
    /// `LockTimeout`; those of [`Db::write_opt`].
    pub fn write(&self, options: &WriteOptions, batch: &mut WriteBatch) -> Result<()> {
        let _held = self.0.lock(lock_order::parts_of(batch, |_| true)?)?;
        self.0.db.write_opt(options, batch)
    }

    /// Sets a key; see [`Self::write`].
    ///
    /// # Errors
    /// As there.
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

    /// Deletes a key; see [`Self::write`].
    ///
    /// # Errors
    /// As there.
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

    /// Locks these until what is returned is dropped.
    fn lock(&self, parts: Vec<Part<'_>>) -> Result<TxnLocks> {
        let mut held = self.locks.begin(TxnLockOptions::default());
        let timeout = self.lock_timeout;
        lock_order::lock(&self.locks, &mut held, |id| self.family(id), parts, timeout)?;
        Ok(held)
    }
}

impl OptimisticTransaction {
    /// Keys that it has noted.
    #[must_use]
    pub fn tracked_count(&self) -> usize {
        self.tracked.count()
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

    /// Takes a snapshot, to read at: keys that it notes from now on must not have been written since.
    pub fn set_snapshot(&mut self) {
        self.snapshot = Some(self.home.db.snapshot_to_check());
        self.snapshot_on_next = false;
    }

    /// Takes a snapshot when it next notes a key or a range; until then the snapshot that there is counts for reads.
    pub fn set_snapshot_on_next_operation(&mut self) {
        self.snapshot_on_next = true;
    }

    /// Its snapshot.
    #[must_use]
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    /// Gives the snapshot up; keys that are noted stay so.
    pub fn clear_snapshot(&mut self) {
        self.snapshot = None;
        self.snapshot_on_next = false;
    }

    /// Sets a key, which it notes.
    ///
    /// # Errors
    /// `InvalidArgument` after its end, for a family of another database, or for a key or value that is too large; `NoMemory`. `TooLarge` if its writes would have more bytes
    /// than [`OptimisticTransactionOptions::max_write_batch_size`], or more bytes or operations than a memtable takes at once, and `NoSpace`, `Io` of the file
    /// that its writes go on in: it is noted, and nothing was written.
    pub fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.track(family, key)?;
        self.own.get_mut().put(family, key, value)
    }

    /// Adds a merge operand to a key, which it notes.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn merge(&mut self, family: &ColumnFamily, key: &[u8], operand: &[u8]) -> Result<()> {
        self.track(family, key)?;
        self.own.get_mut().merge(family, key, operand)
    }

    /// Deletes a key, which it notes.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.track(family, key)?;
        self.own.get_mut().delete(family, key)
    }

    /// Deletes a key that was put once, which it notes; see [`WriteBatch::single_delete`].
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn single_delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.track(family, key)?;
        self.own.get_mut().single_delete(family, key)
    }

    /// Deletes the keys from `start` up to but not including `end`, a range that it notes.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete_range(&mut self, family: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        self.check_takes(family)?;
        if family.options().comparator.less(start, end) {
            self.hold();
            let seen = seen(&self.home.db, self.snapshot.as_ref());
            self.tracked.note_range(family, start, end, seen)?;
        }
        self.own.get_mut().delete_range(family, start, end)
    }

    /// The value of a key as this transaction sees it: its own writes over the database, at the snapshot of
    /// `options` if there is one, else as it is now. The key is not noted.
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

    /// The same of a key that it notes first.
    ///
    /// # Errors
    /// Those of [`Self::put`] and [`Self::get`].
    pub fn get_for_update(
        &mut self,
        options: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<Option<PinnedValue>> {
        self.track(family, key)?;
        self.get(options, family, key)
    }

    /// Iterates over a family as this transaction sees it; notes nothing.
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

    /// Remembers writes, noted keys and snapshot as they are now.
    pub fn set_save_point(&mut self) {
        self.own.get_mut().set_save_point();
        self.save_points.push(SavePoint {
            keys: self.tracked.end(),
            snapshot: self.snapshot.clone(),
            snapshot_on_next: self.snapshot_on_next,
        });
    }

    /// Undoes what was written since the last save point, forgets the keys that were noted since, and the save point.
    ///
    /// # Errors
    /// `NotFound` if there is none; `InvalidArgument` after its end.
    pub fn rollback_to_save_point(&mut self) -> Result<()> {
        self.check_started()?;
        self.own.get_mut().rollback_to_save_point()?;
        if let Some(to) = self.save_points.pop() {
            self.tracked.truncate(to.keys);
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

    /// Writes what it has, at once and whole, if no key that it noted was written since.
    ///
    /// # Errors
    /// `Busy` if one was: nothing is written, and a commit will be refused again; it is to be rolled back and done anew. `LockTimeout`
    /// if others commit the same keys for too long; `InvalidArgument` after its end; those of [`Db::write_opt`]: it
    /// may be committed again, and after an `Io` error it is not known what the log has.
    pub fn commit(&mut self) -> Result<()> {
        self.check_started()?;
        let own = self.own.get_mut();
        let home = &*self.home;
        let noted = self.tracked.iter().map(|n| Part::key(n.family, n.key));
        let ranges = self.tracked.ranges().iter().map(|r| Part {
            end: Some(&r.end),
            ..Part::key(r.family.id(), &r.start)
        });
        let mut parts = Vec::new();
        for part in noted.chain(ranges) {
            memory::push(&mut parts, part, "keys of a transaction")?;
        }
        let held = home.lock(parts)?;
        for noted in self.tracked.iter() {
            let family = self.tracked.family(&noted);
            let newest = home.db.newest_write(family, noted.key)?;
            if newest > noted.seen {
                return Err(conflict(home, family, noted.key, newest, noted.seen));
            }
        }
        for range in self.tracked.ranges() {
            let (family, seen) = (&range.family, range.seen);
            let keys = KeyRange::new(&range.start, &range.end, false);
            let written = home.db.written_since(family, &keys, seen)?;
            if let Some(written) = written {
                return Err(conflict(home, family, &written.key, written.seqno, seen));
            }
        }
        if !own.is_empty() {
            own.write(&home.db, &self.options.write)?;
        }
        drop(held);
        home.locks.statistics().add(Ticker::TxnCommits, 1);
        self.end();
        Ok(())
    }

    /// Forgets what it wrote and noted.
    ///
    /// # Errors
    /// `InvalidArgument` if it has ended.
    pub fn rollback(&mut self) -> Result<()> {
        self.check_started()?;
        self.count_one(Ticker::TxnRollbacks);
        self.end();
        Ok(())
    }

    /// Makes a transaction that has ended into a new one, with the memory that it has.
    ///
    /// # Errors
    /// `InvalidArgument` if it has not ended.
    pub fn restart(&mut self, options: OptimisticTransactionOptions) -> Result<()> {
        if !self.has_ended {
            return Err(Error::invalid_argument("transaction has not ended"));
        }
        // What was asked of it after its end is nothing of the new one.
        let own = self.own.get_mut();
        own.clear();
        own.set_spill(spill::of(&self.home.spill, options.spill_threshold_bytes));
        own.set_max_bytes(options.max_write_batch_size);
        own.set_protected(options.write.protection_bytes_per_key > 0);
        self.save_points.clear();
        self.clear_snapshot();
        self.options = options;
        self.has_ended = false;
        self.count_one(Ticker::TxnBegins);
        if options.set_snapshot {
            self.set_snapshot();
        }
        Ok(())
    }

    fn count_one(&self, ticker: Ticker) {
        self.home.locks.statistics().add(ticker, 1);
    }

    fn end(&mut self) {
        self.has_ended = true;
        self.own.get_mut().clear();
        self.tracked.clear();
        self.save_points.clear();
        self.clear_snapshot();
        self.hold = None;
    }

    fn check_started(&self) -> Result<()> {
        match self.has_ended {
            false => Ok(()),
            true => Err(Error::invalid_argument("transaction has ended")),
        }
    }

    /// It goes on, and the family is one of its database.
    fn check_takes(&self, family: &ColumnFamily) -> Result<()> {
        self.check_started()?;
        self.home.db.check_column_family(family)
    }

    fn track(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.check_takes(family)?;
        self.hold();
        let (db, snapshot) = (&self.home.db, &self.snapshot);
        self.tracked
            .note(family, key, || seen(db, snapshot.as_ref()))
    }

    /// Before the number: what is written from it on leaves a trace.
    fn hold(&mut self) {
        if self.snapshot_on_next {
            self.set_snapshot();
        }
        let (db, snapshot) = (&self.home.db, &self.snapshot);
        let is_newer = |hold: &Snapshot| matches!(snapshot, Some(s) if hold.seqno() > s.seqno());
        if self.hold.as_ref().is_none_or(is_newer) {
            let hold = snapshot.clone().unwrap_or_else(|| db.snapshot_to_check());
            self.hold = Some(hold);
        }
    }
}

impl Drop for OptimisticTransaction {
    fn drop(&mut self) {
        if !self.has_ended {
            self.count_one(Ticker::TxnRollbacks);
        }
    }
}

/// The newest write that somebody with this snapshot sees, or without one.
fn seen(db: &Db, snapshot: Option<&Snapshot>) -> SeqNo {
    match snapshot {
        Some(snapshot) => snapshot.seqno(),
        None => db.latest_sequence_number(),
    }
}

#[cold]
fn conflict(home: &Inner, family: &ColumnFamily, key: &[u8], newest: SeqNo, noted: SeqNo) -> Error {
    home.locks.statistics().add(Ticker::TxnConflicts, 1);
    Error::busy("key was written since the transaction noted it")
        .with("column_family", family.name())
        .with("key", key.escape_ascii())
        .with("seqno", newest)
        .with("noted", noted)
}
