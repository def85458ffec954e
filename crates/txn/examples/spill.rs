//! Measures the memory of one large transaction, in a process of its own.
//!
//! `cargo run --release -p orogen-txn --example spill -- KIND WHERE MIB VALUE DIR`: KIND is `batch`, `locking` or `optimistic`; WHERE is
//! `memory` or `file`; values have VALUE bytes, keys 16. The database, its memtables' files and those of the transaction are in DIR. It prints
//! the anonymous memory of the process, less that before, and the time: when all is written, when it was read once, when a
//! cursor was placed (not of a batch), and the peak of the commit.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a program that shows what it measured"
)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use orogen_base::Result;
use orogen_engine::batch::{Spill, SpillOptions};
use orogen_engine::options::MemTableKind;
use orogen_engine::{ColumnFamily, Db, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_txn::indexed_batch::IndexedBatch;
use orogen_txn::{
    OptimisticTransaction, OptimisticTransactionDb, OptimisticTransactionDbOptions,
    OptimisticTransactionOptions, Transaction, TransactionDb, TransactionDbOptions,
    TransactionOptions,
};

/// Bytes of this process's anonymous memory.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

enum Writer {
    Batch(Db, Box<IndexedBatch>),
    Locking(Box<Transaction>),
    Optimistic(Box<OptimisticTransaction>),
}

impl Writer {
    fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        match self {
            Self::Batch(_, own) => own.put(family, key, value),
            Self::Locking(own) => own.put(family, key, value),
            Self::Optimistic(own) => own.put(family, key, value),
        }
    }

    fn read(&self, family: &ColumnFamily, key: &[u8]) -> Result<bool> {
        let options = ReadOptions::default();
        let found = match self {
            Self::Batch(db, own) => own.get(db, &options, family, key),
            Self::Locking(own) => own.get(&options, family, key),
            Self::Optimistic(own) => own.get(&options, family, key),
        };
        Ok(found?.is_some())
    }

    /// Places a cursor.
    fn seek(&self, family: &ColumnFamily) -> Result<()> {
        let options = ReadOptions::default();
        let mut iter = match self {
            Self::Batch(..) => return Ok(()),
            Self::Locking(own) => own.iter(&options, family)?,
            Self::Optimistic(own) => own.iter(&options, family)?,
        };
        iter.seek_to_first();
        assert!(iter.valid());
        iter.status()
    }

    fn commit(&mut self) -> Result<()> {
        match self {
            Self::Batch(db, own) => own.write(db, &WriteOptions::default()),
            Self::Locking(own) => own.commit(),
            Self::Optimistic(own) => own.commit(),
        }
    }
}

/// A writer and its database.
fn begin(kind: &str, dir: &Path, spill: Option<SpillOptions>) -> Result<(Db, Writer)> {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.cf.memtable_factory = MemTableKind::trie_in(dir);
    let db = Db::open(dir.join("db"), &options)?;
    let writer = match kind {
        "batch" => {
            let mut batch = WriteBatch::new();
            batch.set_spill(spill.map(|s| Spill::new(s, None)));
            Writer::Batch(db.clone(), Box::new(IndexedBatch::with(batch)?))
        }
        "locking" => {
            let own = TransactionDbOptions {
                spill,
                ..TransactionDbOptions::default()
            };
            let txns = TransactionDb::new(db.clone(), own)?;
            Writer::Locking(Box::new(txns.begin(TransactionOptions::default())?))
        }
        _ => {
            let own = OptimisticTransactionDbOptions {
                spill,
                ..OptimisticTransactionDbOptions::default()
            };
            let txns = OptimisticTransactionDb::new(db.clone(), own);
            let options = OptimisticTransactionOptions::default();
            Writer::Optimistic(Box::new(txns.begin(options)?))
        }
    };
    Ok((db, writer))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, place, mib, value, dir] = &args[..] else {
        println!("spill batch|locking|optimistic memory|file MIB VALUE DIR");
        return Ok(());
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let (bytes, value) = (number(mib) << 20, vec![b'v'; number(value)]);
    let dir = Path::new(dir);
    let spill = (place == "file").then(|| SpillOptions::in_dir(dir));
    let (db, mut writer) = begin(kind, dir, spill)?;
    let family = db.default_column_family();
    let before = anonymous_bytes();
    let peak = AtomicU64::new(0);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                peak.fetch_max(anonymous_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let tell = |what: &str, since: Instant| {
            let now = anonymous_bytes();
            let peak = peak.swap(0, Ordering::Relaxed).max(now);
            let mib = |bytes: u64| bytes.saturating_sub(before) as f64 / f64::from(1 << 20);
            let (now, peak, seconds) = (mib(now), mib(peak), since.elapsed().as_secs_f64());
            println!("{what:<8} {now:9.1} MiB, peak {peak:9.1} MiB, {seconds:7.2} s");
        };
        let mut all = || -> Result<()> {
            let start = Instant::now();
            let count = bytes / (16 + value.len());
            for n in 0..count {
                // Not in their order.
                let key = format!("{:016x}", (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                writer.put(&family, key.as_bytes(), &value)?;
            }
            println!("{kind}, {place}: {count} puts");
            tell("written", start);
            let start = Instant::now();
            assert!(!writer.read(&family, b"not there")?);
            tell("read", start);
            let start = Instant::now();
            writer.seek(&family)?;
            tell("cursor", start);
            let start = Instant::now();
            writer.commit()?;
            tell("commit", start);
            Ok(())
        };
        let result = all();
        ends.store(true, Ordering::Relaxed);
        result
    })
}
