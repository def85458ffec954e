//! Counters and histograms of one database, under RocksDB's names.
//!
//! Counting costs one relaxed addition on a cache line that few threads share. Histograms are
//! log-linear: 16 steps to each power of two, so a percentile is right within 7 %.
//! `Hot path`.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

macro_rules! tickers {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Ticker { $($(#[$doc])* $name,)* }

        impl Ticker {
            /// All tickers in the order in which they are printed.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// RocksDB's name of the ticker.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

tickers! {
    /// Blocks of any kind not found in the cache.
    BlockCacheMiss = "rocksdb.block.cache.miss",
    /// Blocks of any kind found in the cache.
    BlockCacheHit = "rocksdb.block.cache.hit",
    /// Blocks put into the cache.
    BlockCacheAdd = "rocksdb.block.cache.add",
    /// Data blocks not found in the cache.
    BlockCacheDataMiss = "rocksdb.block.cache.data.miss",
    /// Data blocks found in the cache.
    BlockCacheDataHit = "rocksdb.block.cache.data.hit",
    /// Index blocks not found in the cache.
    BlockCacheIndexMiss = "rocksdb.block.cache.index.miss",
    /// Index blocks found in the cache.
    BlockCacheIndexHit = "rocksdb.block.cache.index.hit",
    /// Filter blocks not found in the cache.
    BlockCacheFilterMiss = "rocksdb.block.cache.filter.miss",
    /// Filter blocks found in the cache.
    BlockCacheFilterHit = "rocksdb.block.cache.filter.hit",
    /// Bytes read out of the cache.
    BlockCacheBytesRead = "rocksdb.block.cache.bytes.read",
    /// Bytes put into the cache.
    BlockCacheBytesWrite = "rocksdb.block.cache.bytes.write",
    /// Table lookups that a filter made needless.
    BloomFilterUseful = "rocksdb.bloom.filter.useful",
    /// Filter answers "may be there".
    BloomFilterFullPositive = "rocksdb.bloom.filter.full.positive",
    /// Filter answers "may be there" that were right.
    BloomFilterFullTruePositive = "rocksdb.bloom.filter.full.true.positive",
    /// Prefix filter checks of seeks.
    BloomFilterPrefixChecked = "rocksdb.bloom.filter.prefix.checked",
    /// Seeks that a prefix filter made needless.
    BloomFilterPrefixUseful = "rocksdb.bloom.filter.prefix.useful",
    /// Gets answered by a memtable.
    MemtableHit = "rocksdb.memtable.hit",
    /// Gets that no memtable answered.
    MemtableMiss = "rocksdb.memtable.miss",
    /// Gets answered by level 0.
    GetHitL0 = "rocksdb.l0.hit",
    /// Gets answered by level 1.
    GetHitL1 = "rocksdb.l1.hit",
    /// Gets answered by level 2 or below.
    GetHitL2AndUp = "rocksdb.l2andup.hit",
    /// Keys dropped by compaction because a newer version hides them.
    CompactionKeyDropNewerEntry = "rocksdb.compaction.key.drop.new",
    /// Tombstones dropped by compaction because nothing is below them.
    CompactionKeyDropObsolete = "rocksdb.compaction.key.drop.obsolete",
    /// Keys dropped by compaction because a range tombstone hides them.
    CompactionKeyDropRangeDel = "rocksdb.compaction.key.drop.range_del",
    /// Keys dropped by compaction filters.
    CompactionKeyDropUser = "rocksdb.compaction.key.drop.user",
    /// Range tombstones dropped by compaction.
    CompactionRangeDelDropObsolete = "rocksdb.compaction.range_del.drop.obsolete",
    /// Keys written.
    NumberKeysWritten = "rocksdb.number.keys.written",
    /// Keys read by get.
    NumberKeysRead = "rocksdb.number.keys.read",
    /// Bytes written by users.
    BytesWritten = "rocksdb.bytes.written",
    /// Bytes read by get.
    BytesRead = "rocksdb.bytes.read",
    /// Seeks of iterators.
    NumberDbSeek = "rocksdb.number.db.seek",
    /// Forward moves of iterators.
    NumberDbNext = "rocksdb.number.db.next",
    /// Backward moves of iterators.
    NumberDbPrev = "rocksdb.number.db.prev",
    /// Seeks that found an entry.
    NumberDbSeekFound = "rocksdb.number.db.seek.found",
    /// Forward moves that found an entry.
    NumberDbNextFound = "rocksdb.number.db.next.found",
    /// Backward moves that found an entry.
    NumberDbPrevFound = "rocksdb.number.db.prev.found",
    /// Bytes that iterators returned.
    IterBytesRead = "rocksdb.db.iter.bytes.read",
    /// Internal entries that iterators stepped over.
    NumberIterSkip = "rocksdb.number.iter.skip",
    /// Iterators made.
    NoIteratorCreated = "rocksdb.num.iterator.created",
    /// Calls of `multi_get`.
    NumberMultigetCalls = "rocksdb.number.multiget.get",
    /// Keys asked for by `multi_get`.
    NumberMultigetKeysRead = "rocksdb.number.multiget.keys.read",
    /// Blocks that `multi_get` read from files.
    MultigetBlocksRead = "orogen.multiget.blocks.read",
    /// Calls with which it read them: neighbours are read together.
    MultigetReads = "orogen.multiget.reads",
    /// Those of the calls that had to wait for the device.
    MultigetReadsWaited = "orogen.multiget.reads.waited",
    /// Microseconds that writers were delayed or stopped.
    StallMicros = "rocksdb.stall.micros",
    /// Syncs of the WAL.
    WalFileSynced = "rocksdb.wal.synced",
    /// Bytes appended to the WAL.
    WalFileBytes = "rocksdb.wal.bytes",
    /// Writes that a leader did for itself.
    WriteDoneBySelf = "rocksdb.write.self",
    /// Writes that another thread's group did.
    WriteDoneByOther = "rocksdb.write.other",
    /// Writes that went through the WAL.
    WriteWithWal = "rocksdb.write.wal",
    /// Bytes that compaction read.
    CompactReadBytes = "rocksdb.compact.read.bytes",
    /// Bytes that compaction wrote.
    CompactWriteBytes = "rocksdb.compact.write.bytes",
    /// Bytes that flush wrote.
    FlushWriteBytes = "rocksdb.flush.write.bytes",
    /// Merge operations that failed.
    NumberMergeFailures = "rocksdb.number.merge.failures",
    /// Tables opened.
    NoFileOpens = "rocksdb.no.file.opens",
    /// Blocks whose checksum was wrong when they were read the second time, too.
    BlockChecksumMismatch = "rocksdb.block.checksum.mismatch.count",
    /// Blocks in the cache whose memory has changed.
    BlockCacheCorruption = "orogen.block.cache.corruption.count",
    /// Blocks that were read a second time because their checksum was wrong.
    FileReadCorruptionRetry = "rocksdb.file.read.corruption.retry.count",
    /// Among those, the ones that were right then.
    FileReadCorruptionRetrySuccess = "rocksdb.file.read.corruption.retry.success.count",
    /// Values of blob files not found in the cache.
    BlobDbCacheMiss = "rocksdb.blobdb.cache.miss",
    /// Values of blob files found in the cache.
    BlobDbCacheHit = "rocksdb.blobdb.cache.hit",
    /// Values of blob files put into the cache.
    BlobDbCacheAdd = "rocksdb.blobdb.cache.add",
    /// Values of blob files that were too large to be put there.
    BlobDbCacheAddFailures = "rocksdb.blobdb.cache.add.failures",
    /// Bytes of values of blob files read out of the cache.
    BlobDbCacheBytesRead = "rocksdb.blobdb.cache.bytes.read",
    /// Bytes of values of blob files put into the cache.
    BlobDbCacheBytesWrite = "rocksdb.blobdb.cache.bytes.write",
    /// Bytes written to blob files.
    BlobDbBlobFileBytesWritten = "rocksdb.blobdb.blob.file.bytes.written",
    /// Blob files that were ended and synced.
    BlobDbBlobFileSynced = "rocksdb.blobdb.blob.file.synced",
    /// Values written to blob files, those that moved among them.
    BlobDbNumKeysWritten = "rocksdb.blobdb.num.keys.written",
    /// Values that came back from blob files into tables.
    BlobValuesReturned = "orogen.blob.returned.keys",
    /// Bytes of these values.
    BlobBytesReturned = "orogen.blob.returned.bytes",
    /// Blob files that steps of collection emptied, as far as nothing pointed to them afterwards.
    BlobDbGcNumFiles = "rocksdb.blobdb.gc.num.files",
    /// Blob files that these steps wrote.
    BlobDbGcNumNewFiles = "rocksdb.blobdb.gc.num.new.files",
    /// Steps that met an error or were given up: nothing had changed.
    BlobDbGcFailures = "rocksdb.blobdb.gc.failures",
    /// Blob files that steps of collection took for the garbage in them.
    BlobGcDiscardable = "orogen.blob.gc.discardable",
    /// Blob files that they took only because they are small.
    BlobGcSmallFile = "orogen.blob.gc.small.file",
    /// Bytes of the tables that these steps read.
    BlobGcTableBytesRead = "orogen.blob.gc.table.bytes.read",
    /// Bytes that these steps wrote, tables and blob files.
    BlobGcBytesWritten = "orogen.blob.gc.bytes.written",
    /// Values that compactions took out of blob files that are to be emptied.
    BlobDbGcNumKeysRelocated = "rocksdb.blobdb.gc.num.keys.relocated",
    /// Bytes of these values, as they were stored.
    BlobDbGcBytesRelocated = "rocksdb.blobdb.gc.bytes.relocated",
    /// Values that were moved between blob files only to lie in key order.
    BlobLocalityKeysRelocated = "orogen.blob.locality.keys.relocated",
    /// Bytes of these values, as they were stored.
    BlobLocalityBytesRelocated = "orogen.blob.locality.bytes.relocated",
    /// Bytes read out of blob files, for values.
    BlobDbBlobFileBytesRead = "rocksdb.blobdb.blob.file.bytes.read",
    /// Calls that gave back disk space in the middle of blob files.
    BlobHoles = "orogen.blob.holes",
    /// Bytes of these holes; those of one that was there already count again.
    BlobHoleBytes = "orogen.blob.hole.bytes",
    /// Looks whether a blob file has other names still, such as in a checkpoint, which keep its dead places.
    BlobLinkLooks = "orogen.blob.link.looks",
    /// Tables that turned out to be damaged and that compactions leave out.
    DamagedTables = "orogen.damaged.tables",
    /// Blob files that turned out to be damaged.
    DamagedBlobFiles = "orogen.damaged.blob.files",
    /// I/O or corruption errors that stopped background work.
    ErrorHandlerBgErrorCount = "rocksdb.error.handler.bg.error.count",
    /// Errors of background work that pass: the disk was full.
    ErrorHandlerBgRetryableIoErrorCount = "rocksdb.error.handler.bg.retryable.io.error.count",
    /// How often writes were refused until there was space.
    ErrorHandlerAutoresumeCount = "rocksdb.error.handler.autoresume.count",
    /// How often the database tried by itself to take writes again.
    ErrorHandlerAutoresumeRetryTotalCount = "rocksdb.error.handler.autoresume.retry.total.count",
    /// How often it succeeded.
    ErrorHandlerAutoresumeSuccessCount = "rocksdb.error.handler.autoresume.success.count",
    /// Transactions that were begun, those begun anew too.
    TxnBegins = "orogen.txn.begins",
    /// Transactions that were committed.
    TxnCommits = "orogen.txn.commits",
    /// Transactions that were rolled back, those too that were dropped before they were committed or prepared.
    TxnRollbacks = "orogen.txn.rollbacks",
    /// Transactions that were prepared.
    TxnPrepares = "orogen.txn.prepares",
    /// Transactions whose writes went on in a file instead of memory.
    TxnSpills = "orogen.txn.spills",
    /// Keys that had been written since a transaction's snapshot, or since it noted them: it was told `Busy`.
    TxnConflicts = "orogen.txn.conflicts",
    /// Requests of transactions that had to wait for a lock.
    TxnLockWaits = "orogen.txn.lock.waits",
    /// Requests for locks that were not granted in time, or at once where they were not to wait.
    TxnLockTimeouts = "orogen.txn.lock.timeouts",
    /// Requests for locks that were refused because waiting would have closed a cycle.
    TxnDeadlocks = "orogen.txn.deadlocks",
    /// Locks that were taken from expired transactions.
    TxnLockSteals = "orogen.txn.lock.steals",
    /// Requests for locks that were refused because there were too many, or they took too much memory.
    TxnLockLimits = "orogen.txn.lock.limits",
    /// Requests and commits that were refused because the time of their transaction was over.
    TxnExpirations = "orogen.txn.expirations",
}

macro_rules! histograms {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What is measured as a distribution.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum HistogramKind { $($(#[$doc])* $name,)* }

        impl HistogramKind {
            /// All histograms in the order in which they are printed.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// RocksDB's name of the histogram.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

histograms! {
    /// Microseconds of a compaction.
    CompactionTime = "rocksdb.compaction.times.micros",
    /// Microseconds of a flush.
    FlushTime = "rocksdb.db.flush.micros",
    /// Microseconds of a WAL sync.
    WalFileSyncMicros = "rocksdb.wal.file.sync.micros",
    /// Microseconds of a MANIFEST sync.
    ManifestFileSyncMicros = "rocksdb.manifest.file.sync.micros",
    /// Microseconds of each delay or stop of a writer.
    WriteStall = "rocksdb.db.write.stall",
    /// Files of a compaction's inputs.
    NumFilesInSingleCompaction = "rocksdb.numfiles.in.singlecompaction",
    /// Bytes of each get's value.
    BytesPerRead = "rocksdb.bytes.per.read",
    /// Bytes of each write group.
    BytesPerWrite = "rocksdb.bytes.per.write",
    /// Subcompactions that ran for one compaction.
    NumSubcompactionsScheduled = "rocksdb.num.subcompactions.scheduled",
    /// Microseconds of each step of collection.
    BlobDbGcMicros = "rocksdb.blobdb.gc.micros",
    /// Bytes of each blob file that a step of collection took, without holes.
    BlobGcInputFileSize = "orogen.blob.gc.input.file.size",
    /// Bytes of each blob file that a step of collection made.
    BlobGcOutputFileSize = "orogen.blob.gc.output.file.size",
    /// Bytes of each value that goes from a memtable or a table to a blob file.
    BlobDbValueSize = "rocksdb.blobdb.value.size",
    /// Blob files that each iterator read from, where it read from any. One that it comes back to after many values
    /// of others counts again.
    BlobIterTouchedFiles = "orogen.blob.iter.touch.file.count",
    /// Microseconds of each call that makes a hole in a blob file.
    BlobHoleMicros = "orogen.blob.hole.micros",
    /// Microseconds of each wait of a transaction for a lock.
    TxnLockWait = "orogen.txn.lock.wait.micros",
}

const SHARDS: usize = 16;

#[repr(align(128))]
struct Shard {
    tickers: [AtomicU64; Ticker::ALL.len()],
}

/// Counters and histograms of a database.
pub struct Statistics {
    shards: Box<[Shard]>,
    histograms: Box<[Histogram]>,
}

fn shard_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static INDEX: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
    }
    INDEX.with(|i| *i)
}

impl Statistics {
    /// All counters at zero.
    #[must_use]
    pub fn new() -> Self {
        let shard = || Shard {
            tickers: [const { AtomicU64::new(0) }; Ticker::ALL.len()],
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            histograms: HistogramKind::ALL
                .iter()
                .map(|_| Histogram::new())
                .collect(),
        }
    }

    /// Adds `n` to a ticker.
    #[inline]
    pub fn add(&self, ticker: Ticker, n: u64) {
        self.shards[shard_index()].tickers[ticker as usize].fetch_add(n, Relaxed);
    }

    /// A ticker's count.
    #[must_use]
    pub fn get(&self, ticker: Ticker) -> u64 {
        self.shards
            .iter()
            .map(|s| s.tickers[ticker as usize].load(Relaxed))
            .sum()
    }

    /// Sets every ticker to zero.
    pub fn reset_tickers(&self) {
        for shard in &self.shards {
            for t in &shard.tickers {
                t.store(0, Relaxed);
            }
        }
    }

    /// Adds a measurement to a histogram.
    #[inline]
    pub fn record(&self, kind: HistogramKind, v: u64) {
        self.histograms[kind as usize].record(v);
    }

    /// A histogram.
    #[must_use]
    pub fn histogram(&self, kind: HistogramKind) -> &Histogram {
        &self.histograms[kind as usize]
    }

    /// All counts as text, in the lines that RocksDB prints.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        for &t in Ticker::ALL {
            let _ = writeln!(out, "{} COUNT : {}", t.name(), self.get(t));
        }
        for &h in HistogramKind::ALL {
            let d = self.histogram(h);
            let _ = writeln!(
                out,
                "{} P50 : {:.6} P95 : {:.6} P99 : {:.6} P100 : {:.6} COUNT : {} SUM : {}",
                h.name(),
                d.percentile(50.0),
                d.percentile(95.0),
                d.percentile(99.0),
                d.max() as f64,
                d.count(),
                d.sum()
            );
        }
        out
    }
}

impl Default for Statistics {
    fn default() -> Self {
        Self::new()
    }
}

const STEP_BITS: u32 = 4;
const STEPS: usize = 1 << STEP_BITS;
const BUCKETS: usize = STEPS * (64 - STEP_BITS as usize + 1);

/// A distribution of whole numbers, recorded by many threads.
pub struct Histogram {
    /// From the first measurement on: of most nobody ever makes one.
    buckets: OnceLock<Box<[AtomicU64]>>,
    count: AtomicU64,
    sum: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    /// An empty distribution.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buckets: OnceLock::new(),
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }

    #[inline]
    fn filled(&self) -> &[AtomicU64] {
        let empty = || (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        self.buckets.get_or_init(empty)
    }

    fn seen(&self) -> &[AtomicU64] {
        self.buckets.get().map_or(&[], |buckets| buckets)
    }

    fn bucket(v: u64) -> usize {
        if v < STEPS as u64 {
            return v as usize;
        }
        let shift = 63 - v.leading_zeros() - STEP_BITS;
        (shift as usize + 1) * STEPS + ((v >> shift) as usize - STEPS)
    }

    fn upper_bound(bucket: usize) -> u64 {
        if bucket < STEPS {
            return bucket as u64;
        }
        let shift = bucket / STEPS - 1;
        let low = ((STEPS + bucket % STEPS) as u64) << shift;
        low + ((1u64 << shift) - 1)
    }

    /// Adds a measurement.
    #[inline]
    pub fn record(&self, v: u64) {
        self.filled()[Self::bucket(v)].fetch_add(1, Relaxed);
        self.count.fetch_add(1, Relaxed);
        self.sum.fetch_add(v, Relaxed);
        self.min.fetch_min(v, Relaxed);
        self.max.fetch_max(v, Relaxed);
    }

    /// Adds all measurements of `other`.
    pub fn merge(&self, other: &Self) {
        for (bucket, b) in other.seen().iter().enumerate() {
            let n = b.load(Relaxed);
            if n != 0 {
                self.filled()[bucket].fetch_add(n, Relaxed);
            }
        }
        self.count.fetch_add(other.count(), Relaxed);
        self.sum.fetch_add(other.sum(), Relaxed);
        self.min.fetch_min(other.min.load(Relaxed), Relaxed);
        self.max.fetch_max(other.max.load(Relaxed), Relaxed);
    }

    /// How many measurements.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// The smallest, 0 if there is none.
    #[must_use]
    pub fn min(&self) -> u64 {
        if self.count() == 0 {
            0
        } else {
            self.min.load(Relaxed)
        }
    }

    /// The largest.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// The arithmetic mean.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum() as f64 / self.count().max(1) as f64
    }

    /// The value that `percent` of the measurements do not exceed, within a bucket's width.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> f64 {
        let want = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, b) in self.seen().iter().enumerate() {
            seen += b.load(Relaxed);
            if seen >= want {
                return Self::upper_bound(i).min(self.max()) as f64;
            }
        }
        self.max() as f64
    }

    /// The filled buckets: upper bound and count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.seen().iter().enumerate().filter_map(|(i, b)| {
            let n = b.load(Relaxed);
            (n != 0).then(|| (Self::upper_bound(i), n))
        })
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_within_a_bucket() {
        let h = Histogram::new();
        for v in 1..=10_000 {
            h.record(v);
        }
        for p in [1.0, 50.0, 99.0, 99.9] {
            let want = 10_000.0 * p / 100.0;
            let got = h.percentile(p);
            assert!(got >= want && got <= want * 1.07, "{p} {got}");
        }
        assert_eq!(h.percentile(100.0), 10_000.0);
        assert_eq!(Histogram::bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn tickers_add_over_threads() {
        let s = Statistics::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| s.add(Ticker::BytesRead, 2)));
            }
        });
        assert_eq!(s.get(Ticker::BytesRead), 8000);
        assert!(s.to_text().contains("rocksdb.bytes.read COUNT : 8000"));
    }
}
