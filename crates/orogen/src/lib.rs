//! An embedded key-value store whose files are RocksDB's.
//!
//! A database is a directory with ordered byte keys and byte values, in one or more column
//! families. Writes go through a write-ahead log; a batch over any families happens as a whole
//! or not at all. A directory that RocksDB wrote opens in place, and RocksDB opens ours.
//!
//! ```
//! use orogen::{Db, Options, ReadOptions, WriteBatch};
//!
//! # fn main() -> orogen::Result<()> {
//! let mut options = Options::default();
//! options.db.create_if_missing = true;
//! # options.db.fs = std::sync::Arc::new(orogen::MemFileSystem::new());
//! let db = Db::open("quarry", &options)?;
//!
//! // Single keys.
//! db.put(b"granite", b"hard")?;
//! assert_eq!(db.get(b"granite")?.as_deref(), Some(&b"hard"[..]));
//! assert!(db.get(b"chalk")?.is_none());
//!
//! // Several writes as one: all of them or none survive a crash.
//! let mut batch = WriteBatch::new();
//! batch.put(0, b"basalt", b"dark");
//! batch.put(0, b"gneiss", b"banded");
//! batch.delete(0, b"granite");
//! db.write(batch)?;
//!
//! // A scan in key order, as of one moment.
//! let mut iter = db.iter(&ReadOptions::default(), &db.default_column_family())?;
//! let mut keys = Vec::new();
//! iter.seek_to_first();
//! while iter.valid() {
//!     keys.push(iter.key().to_vec());
//!     iter.next();
//! }
//! iter.status()?;
//! assert_eq!(keys, [b"basalt".to_vec(), b"gneiss".to_vec()]);
//! db.close()
//! # }
//! ```
//!
//! # What survives what
//!
//! | Write | End of the process | Power loss |
//! |---|---|---|
//! | default | survives | the newest writes may be lost, never a part of a batch |
//! | [`WriteOptions::sync`] | survives | survives |
//! | [`WriteOptions::disable_wal`] | lost unless flushed | lost unless flushed |
//!
//! # Transactions
//!
//! [`TransactionDb`] locks what its transactions write, and [`OptimisticTransactionDb`] looks at their end whether it was written
//! meanwhile. [`txn`] tells what others can do to a transaction, for each way of use.
//!
//! ```
//! use orogen::txn::lock_manager::LockMode;
//! use orogen::{
//!     ErrorKind, Options, ReadOptions, TransactionDb, TransactionDbOptions, TransactionOptions,
//! };
//!
//! # fn main() -> orogen::Result<()> {
//! let mut options = Options::default();
//! options.db.create_if_missing = true;
//! # options.db.fs = std::sync::Arc::new(orogen::MemFileSystem::new());
//! let db = TransactionDb::open("bank", &options, TransactionDbOptions::default())?;
//! let accounts = db.db().default_column_family();
//! let mut txn = db.begin(TransactionOptions::default())?;
//! let now = ReadOptions::default();
//! let before = txn.get_for_update(&now, &accounts, b"ann", LockMode::Exclusive)?;
//! assert!(before.is_none());
//! txn.put(&accounts, b"ann", b"100")?;
//!
//! // Who else writes it waits, and is told after a while.
//! let at_once = TransactionOptions {
//!     lock_timeout: Some(std::time::Duration::ZERO),
//!     ..TransactionOptions::default()
//! };
//! let mut other = db.begin(at_once)?;
//! let refused = other.put(&accounts, b"ann", b"0").unwrap_err();
//! assert_eq!(refused.kind(), ErrorKind::LockTimeout);
//!
//! txn.commit()?;
//! assert_eq!(db.db().get(b"ann")?.as_deref(), Some(&b"100"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//!
//! - [`Db`]: open, write, read, families, snapshots, flush, compaction, checkpoints.
//! - [`Options`]: settings under RocksDB's names, as plain structs with defaults.
//! - [`Error`]: one type; [`ErrorKind`] says what to do about it.
//! - [`FileSystem`] and [`Clock`]: what the engine asks of the machine. [`MemFileSystem`] keeps
//!   a database in memory and loses power on request, for tests.
//! - [`sst`], [`engine`], [`txn`], [`base`], [`env`](mod@env): everything behind this page.

/// What the guide shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/transactions.md")]
struct Guide;

pub use orogen_base as base;
pub use orogen_engine as engine;
pub use orogen_env as env;
pub use orogen_sst as sst;
pub use orogen_txn as txn;

pub use orogen_base::metrics::{HistogramKind, Statistics, Ticker};
pub use orogen_base::perf::{self, PerfContext, PerfCounter, PerfLevel};
pub use orogen_base::slice_transform::{CappedPrefix, FixedPrefix, SliceTransform};
pub use orogen_base::{
    Comparator, Error, ErrorKind, FileNo, PinnedValue, Result, SeqNo, UserComparator,
};
pub use orogen_engine::events::{
    BlobCollectionInfo, BlobConversionInfo, BlobFileAdditionInfo, BlobFileCreationInfo,
    BlobFileGarbageInfo, CompactionInfo, Converted, DamagedBlobFile, DamagedTable,
    ErrorRecoveryInfo, EventListener, FlushInfo, StallCondition, StallInfo,
};
pub use orogen_engine::options::{
    FileChecksumKind, InfoLogLevel, MemTableFactory, MemTableKind, MemTableRequest, WalRecoveryMode,
};
pub use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterDecision,
};
pub use orogen_engine::plugin::merge_operator::{
    self, Max, MergeOperator, PutLast, StringAppend, UInt64Add,
};
pub use orogen_engine::{
    BlobRunMode, BottommostLevelCompaction, CheckpointOptions, CollectBlobGarbageOptions,
    ColumnFamily, ColumnFamilyOptions, CompactOnDeletion, CompactRangeOptions, CompactionHandle,
    CompactionProgress, ConversionHandle, ConversionProgress, ConvertTo, ConvertValuesOptions,
    DEFAULT_COLUMN_FAMILY_NAME, Db, DbIterator, DbOptions, DeletedFiles, FilesVerified,
    FlushOptions, LiveFile, MemoryBudget, MemoryUsage, Options, PrepopulateBlobCache, ReadOptions,
    Scrubbed, SizeApproximationOptions, Snapshot, Update, UpdatesIterator, UserKeyRange,
    VerifyOptions, WriteBatch, WriteOptions, Written,
};
pub use orogen_env::{
    Clock, FaultFileSystem, FileSystem, IoPriority, ManualClock, MemFileSystem, PosixFileSystem,
    PowerCut, RateLimiter, SystemClock,
};
pub use orogen_sst::{
    BlockBasedOptions, BlockCache, BlockIndex, CompressionOptions, CompressionType,
};
pub use orogen_txn::{
    OptimisticTransaction, OptimisticTransactionDb, OptimisticTransactionDbOptions,
    OptimisticTransactionOptions, SpillOptions, Transaction, TransactionDb, TransactionDbOptions,
    TransactionOptions, TransactionState,
};
