//! Both kinds of databases with transactions behind the calls that the histories make.

use std::time::Duration;

use orogen_base::{PinnedValue, Result};
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, Snapshot};
use orogen_txn::lock_manager::{KeyRange, LockManager, LockMode};
use orogen_txn::{
    OptimisticTransaction, OptimisticTransactionDb, OptimisticTransactionDbOptions,
    OptimisticTransactionOptions, OwnWritesIterator, SpillOptions, Transaction, TransactionDb,
    TransactionDbOptions, TransactionOptions,
};

/// Longer than anybody holds a lock.
const LONG: Option<Duration> = Some(Duration::from_secs(10));

pub(super) enum EitherDb {
    Locking(TransactionDb),
    Optimistic(OptimisticTransactionDb),
}

pub(super) enum EitherTxn {
    Locking(Transaction),
    Optimistic(OptimisticTransaction),
}

impl EitherDb {
    pub(super) fn open(
        is_optimistic: bool,
        options: &Options,
        spill: Option<SpillOptions>,
    ) -> Result<Self> {
        let db = Db::open("/db", options)?;
        if is_optimistic {
            let own = OptimisticTransactionDbOptions {
                lock_timeout: LONG,
                spill,
                ..OptimisticTransactionDbOptions::default()
            };
            return Ok(Self::Optimistic(OptimisticTransactionDb::new(db, own)));
        }
        let own = TransactionDbOptions {
            spill,
            ..TransactionDbOptions::default()
        };
        let db = TransactionDb::new(db, own)?;
        Ok(Self::Locking(db))
    }

    pub(super) fn begin(&self, set_snapshot: bool) -> Result<EitherTxn> {
        Ok(match self {
            Self::Locking(db) => EitherTxn::Locking(db.begin(TransactionOptions {
                lock_timeout: LONG,
                set_snapshot,
                ..TransactionOptions::default()
            })?),
            Self::Optimistic(db) => {
                EitherTxn::Optimistic(db.begin(OptimisticTransactionOptions {
                    set_snapshot,
                    ..OptimisticTransactionOptions::default()
                })?)
            }
        })
    }

    pub(super) fn db(&self) -> &Db {
        match self {
            Self::Locking(db) => db.db(),
            Self::Optimistic(db) => db.db(),
        }
    }

    pub(super) fn locks(&self) -> &LockManager {
        match self {
            Self::Locking(db) => db.locks(),
            Self::Optimistic(db) => db.locks(),
        }
    }
}

/// The same call of either.
macro_rules! either {
    ($txn:expr, $it:ident => $call:expr) => {
        match $txn {
            EitherTxn::Locking($it) => $call,
            EitherTxn::Optimistic($it) => $call,
        }
    };
}

impl EitherTxn {
    pub(super) fn snapshot(&self) -> Option<&Snapshot> {
        either!(self, txn => txn.snapshot())
    }

    pub(super) fn get(
        &self,
        reads: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<Option<PinnedValue>> {
        either!(self, txn => txn.get(reads, family, key))
    }

    /// Beside others who do this.
    pub(super) fn get_for_update(
        &mut self,
        reads: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<Option<PinnedValue>> {
        match self {
            Self::Locking(txn) => txn.get_for_update(reads, family, key, LockMode::Shared),
            Self::Optimistic(txn) => txn.get_for_update(reads, family, key),
        }
    }

    pub(super) fn lock_range(
        &mut self,
        family: &ColumnFamily,
        start: &[u8],
        end: &[u8],
    ) -> Result<()> {
        match self {
            Self::Locking(txn) => {
                let range = KeyRange::new(start, end, false);
                txn.lock_range(family, &range, LockMode::Shared)
            }
            Self::Optimistic(_) => unreachable!("they lock no ranges"),
        }
    }

    pub(super) fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        either!(self, txn => txn.put(family, key, value))
    }

    pub(super) fn merge(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        operand: &[u8],
    ) -> Result<()> {
        either!(self, txn => txn.merge(family, key, operand))
    }

    pub(super) fn delete_range(
        &mut self,
        family: &ColumnFamily,
        start: &[u8],
        end: &[u8],
    ) -> Result<()> {
        either!(self, txn => txn.delete_range(family, start, end))
    }

    pub(super) fn iter(
        &self,
        reads: &ReadOptions,
        family: &ColumnFamily,
    ) -> Result<OwnWritesIterator<'_>> {
        either!(self, txn => txn.iter(reads, family))
    }

    pub(super) fn set_save_point(&mut self) {
        either!(self, txn => txn.set_save_point());
    }

    pub(super) fn rollback_to_save_point(&mut self) -> Result<()> {
        either!(self, txn => txn.rollback_to_save_point())
    }

    pub(super) fn rollback(&mut self) -> Result<()> {
        either!(self, txn => txn.rollback())
    }

    pub(super) fn commit(&mut self) -> Result<()> {
        either!(self, txn => txn.commit())
    }
}
