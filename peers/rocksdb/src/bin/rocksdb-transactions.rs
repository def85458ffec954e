//! RocksDB's transactions under the peers' workloads.

use std::path::Path;
use std::process::ExitCode;

use peers_driver::transactions::Transactions;
use peers_driver::{Key, Result};
use rocksdb::{
    DBCompressionType, ErrorKind, OptimisticTransactionDB, Options, TransactionDB,
    TransactionDBOptions,
};

struct RocksDb {
    locking: TransactionDB,
    optimistic: OptimisticTransactionDB,
}

impl Transactions for RocksDb {
    const NAME: &'static str = "rocksdb";

    fn open(dir: &Path) -> Result<Self> {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.set_max_background_jobs(2);
        options.set_compression_type(DBCompressionType::Lz4);
        Ok(Self {
            locking: TransactionDB::open(
                &options,
                &TransactionDBOptions::default(),
                dir.join("locking"),
            )?,
            optimistic: OptimisticTransactionDB::open(&options, dir.join("optimistic"))?,
        })
    }

    fn write(&self, keys: &[Key], value: &[u8], commit: bool) -> Result<bool> {
        let txn = self.locking.transaction();
        for key in keys {
            match txn.put(key, value) {
                Ok(()) => {}
                Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::Busy) => {
                    return Ok(false);
                }
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
        let txn = self.optimistic.transaction();
        for key in keys {
            txn.put(key, value)?;
        }
        let mut found = 0;
        for key in keys {
            found += usize::from(txn.get_pinned(key)?.is_some());
        }
        txn.rollback()?;
        Ok(found)
    }
}

fn main() -> ExitCode {
    peers_driver::transactions::main::<RocksDb>()
}
