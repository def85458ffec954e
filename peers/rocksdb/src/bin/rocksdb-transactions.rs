//! RocksDB's transactions under the peers' workloads.

use std::ffi::CStr;
use std::hint::black_box;
use std::path::Path;
use std::process::ExitCode;
use std::ptr;

use librocksdb_sys as ffi;
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

/// A `WriteBatchWithIndex` that keeps the newest write of a key alone, as transactions have it; the crate has none.
struct Batch {
    batch: *mut ffi::rocksdb_writebatch_wi_t,
    options: *mut ffi::rocksdb_options_t,
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: both were made by `batch`, and nobody else has them.
        unsafe {
            ffi::rocksdb_writebatch_wi_destroy(self.batch);
            ffi::rocksdb_options_destroy(self.options);
        }
    }
}

impl Transactions for RocksDb {
    const NAME: &'static str = "rocksdb";

    type Batch = Batch;

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

    fn batch(&self) -> Result<Batch> {
        // SAFETY: they take numbers alone, and what they give is destroyed with the batch.
        let (batch, options) = unsafe {
            (
                ffi::rocksdb_writebatch_wi_create(0, 1),
                ffi::rocksdb_options_create(),
            )
        };
        Ok(Batch { batch, options })
    }

    fn fill(&self, batch: &mut Batch, keys: &[Key], value: &[u8]) -> Result<()> {
        for key in keys {
            let (key, len) = (key.as_ptr().cast(), key.len());
            // SAFETY: the batch lives, and key and value are as long as it is told; it copies them.
            unsafe {
                ffi::rocksdb_writebatch_wi_put(
                    batch.batch,
                    key,
                    len,
                    value.as_ptr().cast(),
                    value.len(),
                );
            }
        }
        Ok(())
    }

    fn read(&self, batch: &mut Batch, keys: &[Key]) -> Result<usize> {
        let mut found = 0;
        for key in keys {
            let (mut len, mut error) = (0, ptr::null_mut());
            // SAFETY: batch and options live, the key is as long as it is told, and the rest is there to be written to.
            let value = unsafe {
                ffi::rocksdb_writebatch_wi_get_from_batch(
                    batch.batch,
                    batch.options,
                    key.as_ptr().cast(),
                    key.len(),
                    &raw mut len,
                    &raw mut error,
                )
            };
            if !error.is_null() {
                // SAFETY: it is a text that ends with 0.
                let text = unsafe { CStr::from_ptr(error) };
                return Err(text.to_string_lossy().into_owned().into());
            }
            if !value.is_null() {
                black_box((value, len));
                // SAFETY: it was given to be freed.
                unsafe { ffi::rocksdb_free(value.cast()) };
                found += 1;
            }
        }
        Ok(found)
    }

    fn clear(&self, batch: &mut Batch) {
        // SAFETY: the batch lives.
        unsafe { ffi::rocksdb_writebatch_wi_clear(batch.batch) };
    }
}

fn main() -> ExitCode {
    peers_driver::transactions::main::<RocksDb>()
}
