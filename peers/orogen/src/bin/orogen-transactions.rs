//! Orogen's transactions under the peers' workloads.

use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;

use orogen::txn::indexed_batch::{BatchLookup, IndexedBatch};
use orogen::txn::{
    OptimisticTransactionDb, OptimisticTransactionDbOptions, OptimisticTransactionOptions,
    TransactionDb, TransactionDbOptions, TransactionOptions,
};
use orogen::{ColumnFamily, Db, DbOptions, ErrorKind, Options, ReadOptions};
use peers_driver::transactions::Transactions;
use peers_driver::{Key, Result};

struct Orogen {
    locking: TransactionDb,
    optimistic: OptimisticTransactionDb,
    family: ColumnFamily,
    optimistic_family: ColumnFamily,
}

fn options() -> Options {
    Options {
        db: DbOptions {
            create_if_missing: true,
            max_background_jobs: 2,
            ..DbOptions::default()
        },
        ..Options::default()
    }
}

impl Transactions for Orogen {
    const NAME: &'static str = "orogen";

    type Batch = IndexedBatch;

    fn open(dir: &Path) -> Result<Self> {
        let locking = Db::open(dir.join("locking"), &options())?;
        let optimistic = Db::open(dir.join("optimistic"), &options())?;
        Ok(Self {
            family: locking.default_column_family(),
            optimistic_family: optimistic.default_column_family(),
            locking: TransactionDb::new(locking, TransactionDbOptions::default())?,
            optimistic: OptimisticTransactionDb::new(
                optimistic,
                OptimisticTransactionDbOptions::default(),
            ),
        })
    }

    fn write(&self, keys: &[Key], value: &[u8], commit: bool) -> Result<bool> {
        let mut txn = self.locking.begin(TransactionOptions::default())?;
        for key in keys {
            match txn.put(&self.family, key, value) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::LockTimeout => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
        if commit {
            txn.commit()?;
        } else {
            txn.rollback()?;
        }
        Ok(true)
    }

    fn write_and_read(&self, keys: &[Key], value: &[u8]) -> Result<usize> {
        let mut txn = self
            .optimistic
            .begin(OptimisticTransactionOptions::default())?;
        for key in keys {
            txn.put(&self.optimistic_family, key, value)?;
        }
        let mut found = 0;
        for key in keys {
            let value = txn.get(&ReadOptions::default(), &self.optimistic_family, key)?;
            found += usize::from(value.is_some());
        }
        txn.rollback()?;
        Ok(found)
    }

    fn batch(&self) -> Result<IndexedBatch> {
        Ok(IndexedBatch::new()?)
    }

    fn fill(&self, batch: &mut IndexedBatch, keys: &[Key], value: &[u8]) -> Result<()> {
        for key in keys {
            batch.put(&self.family, key, value)?;
        }
        Ok(())
    }

    fn read(&self, batch: &mut IndexedBatch, keys: &[Key]) -> Result<usize> {
        let mut found = 0;
        for key in keys {
            if let BatchLookup::Value(value) = batch.lookup(&self.family, key)? {
                black_box(value.to_vec());
                found += 1;
            }
        }
        Ok(found)
    }

    fn clear(&self, batch: &mut IndexedBatch) {
        batch.clear();
    }
}

fn main() -> ExitCode {
    peers_driver::transactions::main::<Orogen>()
}
