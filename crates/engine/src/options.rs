//! Settings as plain data. Names and meanings are RocksDB's. So are defaults, but for codecs, `bytes_per_sync`,
//! `keep_log_file_num`, `ttl`, `compact_on_deletion` and where something else is said.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::metrics::Statistics;
use orogen_base::protection::check_bytes_per_key;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{Error, Result, UserComparator};
use orogen_env::memory::PagePool;
use orogen_env::{Clock, FileSystem, PosixFileSystem, RateLimiter, SystemClock};
use orogen_memtable::{GuidedListMemTable, MemTable, TrieMemTable};
use orogen_sst::{BlockBasedOptions, BlockCache, CompressionOptions, CompressionType};

use crate::events::EventListener;
use crate::memory::MemoryBudget;
use crate::plugin::compaction_filter::CompactionFilterFactory;
use crate::plugin::merge_operator::MergeOperator;

/// What recovery does about damage in the WAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WalRecoveryMode {
    /// A record cut off at the end of a log is dropped; any other damage is an error.
    TolerateCorruptedTailRecords,
    /// Any damage is an error, a cut-off tail too.
    AbsoluteConsistency,
    /// Everything up to the first damage is kept and everything after it is dropped, with a
    /// warning in the info LOG that tells a torn tail from damage in the middle.
    ///
    /// A power loss may leave both in what was not synced; what was acknowledged with sync stands
    /// before it. It is `Corruption` if there are several families and the tables of one hold later writes:
    /// [`Self::SkipAnyCorruptedRecords`] reads on.
    #[default]
    PointInTimeRecovery,
    /// Damaged records are left out: for salvage.
    SkipAnyCorruptedRecords,
}

/// Whether values get into the cache before anybody reads them. Names are RocksDB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PrepopulateBlobCache {
    /// `kDisable`: they do not.
    #[default]
    Disable,
    /// `kFlushOnly`: those that a flush writes to blob files do.
    FlushOnly,
}

/// The largest alignment of values in blob files.
const BLOB_RECORD_ALIGNMENT_MAX: u32 = 64 << 10;

/// What a family does with values that are, or could be, in blob files. Titan's option, with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BlobRunMode {
    /// `kNormal`: as [`ColumnFamilyOptions::enable_blob_files`] and
    /// [`ColumnFamilyOptions::min_blob_size`] say.
    #[default]
    Normal,
    /// `kReadOnly`: no value goes to a blob file that is in none, whatever `enable_blob_files` says.
    /// Those that are in one stay in one: where garbage is collected they go to a new blob file.
    ReadOnly,
    /// `kFallback`: no value goes to a blob file, and each job that rewrites a table puts the values
    /// that its pointers lead to back into the new table. One that cannot be read stays where it is, and is
    /// told of. What no job comes by is brought back by [`Db::convert_values`](crate::Db::convert_values).
    Fallback,
}

/// What is computed over each whole table while it is written, and kept in the MANIFEST.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FileChecksumKind {
    /// Nothing.
    None,
    /// CRC32C, as RocksDB's `FileChecksumGenCrc32cFactory` does.
    #[default]
    Crc32c,
}

/// How much the info LOG says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum InfoLogLevel {
    /// Everything.
    Debug,
    /// Changes of state.
    #[default]
    Info,
    /// The unexpected.
    Warn,
    /// What a person must look at.
    Error,
}

/// Settings of a database.
#[derive(Clone)]
pub struct DbOptions {
    /// Make the database if it is not there. Default false.
    pub create_if_missing: bool,
    /// Make families that are named in [`Options::families`] but not there. Default false.
    pub create_missing_column_families: bool,
    /// Refuse a database that is there. Default false.
    pub error_if_exists: bool,
    /// Refuse to open where a table that the MANIFEST lists is missing or has another size, or a log that RocksDB
    /// tracked (`track_and_verify_wals_in_manifest`) is missing or shorter than when it was synced. Otherwise such tables
    /// count as damaged from the open on ([`crate::Db::damaged_tables`]) and the rest is served. What is read is checked in any case. Default true.
    pub paranoid_checks: bool,
    /// Refuse to open, with nothing changed but the LOG, where `wal_recovery_mode` would leave out more of the logs than a record that a crash
    /// cut off: damage in the middle of a log and what stands behind it, or writes in logs behind one that lacks its end. A power loss
    /// can leave the same of writes that were not synced. Ours. Default false: they are dropped, and the LOG says so. A secondary refuses to catch up then, and to open: where a log
    /// has bytes that are no record and that no crash leaves. It looks 20 times, as a log that is written meanwhile may look so.
    pub refuse_log_damage: bool,
    /// Threads for flushes and compactions together, 1 to 1024; from 2 on one is kept for flushes, with 1 a flush waits for the
    /// compaction that runs. Default 2.
    pub max_background_jobs: usize,
    /// Threads that one compaction may use. Default 1. See `flush_halves_bytes` for one that has two all the same.
    pub max_subcompactions: usize,
    /// Threads for collections of garbage in blob files, beside those for flushes and compactions;
    /// there are none while nothing is to be collected. 0: none by itself. Default 1.
    pub max_background_gc: usize,
    /// A flush that has so many bytes of values for blob files writes them by two threads, if
    /// `max_background_jobs` is at least 2: each takes half of the keys, and a blob file of its own. So does an
    /// automatic compaction of level 0 that has fallen behind, with seven files of it or more and 1.75 times
    /// `level0_file_num_compaction_trigger`, where those bring down so many bytes of values in blob files that are shorter than
    /// 4 KiB there, on average, whatever `max_subcompactions` says.
    /// Default 8 MiB; [`u64::MAX`]: never.
    pub flush_halves_bytes: u64,
    /// Bytes of WAL beyond which the families that pin the oldest log are flushed, and a log is left that has nothing for any
    /// memtable, such as writes that were prepared and rolled back. 0, the default: four times what the memtables of all families may
    /// hold (`write_buffer_size` times `max_write_buffer_number`), also where there is one family.
    pub max_total_wal_size: u64,
    /// What recovery does about damage in the WAL.
    pub wal_recovery_mode: WalRecoveryMode,
    /// Old logs kept to be written over while the database is open: no space to allocate, and no pages to
    /// make. None where `wal_recovery_mode` is `AbsoluteConsistency` or `TolerateCorruptedTailRecords`, which
    /// would take what a crash leaves behind the end for damage, nor where logs are archived. RocksDB's
    /// secondary instances do not follow such logs. Default 0.
    pub recycle_log_file_num: usize,
    /// Writes new logs through shared memory instead of system calls, on ext4, XFS and tmpfs
    /// under Linux. A write then costs about half a microsecond less and outlives the process as
    /// before. Disk space is reserved first, so a full disk is an error as before; but if the
    /// file system itself shuts down (its journal fails), the system kills the process with
    /// SIGBUS where a call would return an error. Default false.
    pub allow_mmap_writes: bool,
    /// Reads blocks of tables and values of blob files out of mappings of the files instead of by
    /// system calls: gets take a fifth to a quarter less, since no copy is made before the bytes
    /// are decompressed. For data that the system's memory holds: pages that it does
    /// not hold come one or a few at a time. The memory then counts as the process's, too (shared,
    /// and the system's to take away). A page that the device cannot read raises SIGBUS, which a
    /// handler, installed with the first such file, turns into the error that a call would have
    /// given; a program with a handler of its own for SIGBUS has to install it before, or to pass
    /// on what it does not know. Default false.
    pub allow_mmap_reads: bool,
    /// Without [`Self::allow_mmap_reads`] does the same as long as memory holds nearly all that is read: one read of a thread in 32 is
    /// looked at, and after 64 such looks in a row that found all of it in memory mappings are used, until a look finds otherwise. For files that
    /// the process's user owns or may write, in databases that it has open to write. Default true.
    pub adaptive_mmap_reads: bool,
    /// Seconds from the last write to a log for which it is kept in `archive/` once nothing needs it, for
    /// [`crate::Db::get_updates_since`]; 0, the default: not for their age. Old ones go when the
    /// next log is given up and at open: where no process had it open for longer, all of them. Archived logs are not written over.
    pub wal_ttl_seconds: u64,
    /// Bytes of archived logs, in MiB, beyond which the oldest go; 0, the default: no bound if
    /// [`Self::wal_ttl_seconds`] is set, else no archive.
    pub wal_size_limit_mb: u64,
    /// Bytes a second that writers get when compaction is behind. Default 16 MiB/s.
    pub delayed_write_rate: u64,
    /// Let the writers of a group insert in parallel. Default true.
    pub allow_concurrent_memtable_write: bool,
    /// Bytes of all memtables together beyond which the largest is flushed. 0, the default:
    /// no bound.
    pub db_write_buffer_size: u64,
    /// One bound for memtables, open tables and blocks, shared by the databases that are given the
    /// same. Families that bring no block cache use the budget's. `None`, the default: each kind
    /// has its own bound or none.
    pub memory_budget: Option<Arc<MemoryBudget>>,
    /// Start writing out SSTs each time so many bytes were written. Default 1 MiB; 0: never.
    pub bytes_per_sync: u64,
    /// Bytes a second that flushes (at high priority) and compactions (at low) may write; shared
    /// by the databases that are given the same. Logs and the MANIFEST are not limited. `None`,
    /// the default: no limit.
    pub rate_limiter: Option<Arc<RateLimiter>>,
    /// Start a new MANIFEST when it has grown so large, and to six times what it began with. Default 1 GiB.
    pub max_manifest_file_size: u64,
    /// What is computed over each table while it is written, for [`crate::Db::verify_file_checksums`],
    /// backups and RocksDB's `ldb file_checksum_dump`. Default CRC32C.
    pub file_checksum: FileChecksumKind,
    /// Leave what the WAL held in memtables after open instead of flushing it. Default false.
    pub avoid_flush_during_recovery: bool,
    /// Do not flush at close what a WAL-less write left in memtables. Default false.
    pub avoid_flush_during_shutdown: bool,
    /// How often the database tries by itself to take writes again after the disk was full. 0:
    /// only [`crate::Db::resume`] does. Default: without end.
    pub max_bgerror_resume_count: u64,
    /// Microseconds that set the pace of these tries, and of compactions that found no space: the
    /// first comes after a sixteenth, later ones at most four times as far apart. Default 1 s.
    pub bgerror_resume_retry_interval: u64,
    /// What the info LOG says. Default: changes of state.
    pub info_log_level: InfoLogLevel,
    /// Old info LOGs kept. Default 10.
    pub keep_log_file_num: usize,
    /// Keep the info LOG. Default true.
    pub info_log: bool,
    /// Counters; shared if several databases are given the same.
    pub statistics: Arc<Statistics>,
    /// Told of flushes, compactions, stalls and errors.
    pub listeners: Vec<Arc<dyn EventListener>>,
    /// Where the files are.
    pub fs: Arc<dyn FileSystem>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
}

impl Default for DbOptions {
    fn default() -> Self {
        Self {
            create_if_missing: false,
            create_missing_column_families: false,
            error_if_exists: false,
            paranoid_checks: true,
            refuse_log_damage: false,
            max_background_jobs: 2,
            max_subcompactions: 1,
            max_background_gc: 1,
            flush_halves_bytes: 8 << 20,
            max_total_wal_size: 0,
            wal_recovery_mode: WalRecoveryMode::default(),
            recycle_log_file_num: 0,
            allow_mmap_writes: false,
            allow_mmap_reads: false,
            adaptive_mmap_reads: true,
            wal_ttl_seconds: 0,
            wal_size_limit_mb: 0,
            delayed_write_rate: 16 << 20,
            allow_concurrent_memtable_write: true,
            db_write_buffer_size: 0,
            bytes_per_sync: 1 << 20,
            memory_budget: None,
            rate_limiter: None,
            max_manifest_file_size: 1 << 30,
            file_checksum: FileChecksumKind::default(),
            avoid_flush_during_recovery: false,
            avoid_flush_during_shutdown: false,
            max_bgerror_resume_count: i32::MAX as u64,
            bgerror_resume_retry_interval: 1_000_000,
            info_log_level: InfoLogLevel::default(),
            keep_log_file_num: 10,
            info_log: true,
            statistics: Arc::new(Statistics::new()),
            listeners: Vec::new(),
            fs: Arc::new(PosixFileSystem::new()),
            clock: Arc::new(SystemClock),
        }
    }
}

/// Threads for flushes and compactions at most.
const BACKGROUND_JOBS_MAX: usize = 1024;

impl DbOptions {
    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// `InvalidArgument` naming the setting, its value and its bounds.
    pub(crate) fn validate(&self) -> Result<()> {
        if (1..=BACKGROUND_JOBS_MAX).contains(&self.max_background_jobs) {
            return Ok(());
        }
        Err(Error::invalid_argument("option is out of bounds")
            .with("option", "max_background_jobs")
            .with("value", self.max_background_jobs)
            .with("bounds", "1 to 1024"))
    }

    /// True if logs that nothing needs are kept for readers of updates.
    #[must_use]
    pub fn archives_logs(&self) -> bool {
        self.wal_ttl_seconds > 0 || self.wal_size_limit_mb > 0
    }

    /// How many logs are kept to be written over.
    pub(crate) fn recycled_logs(&self) -> usize {
        match self.wal_recovery_mode {
            _ if self.archives_logs() => 0,
            WalRecoveryMode::AbsoluteConsistency
            | WalRecoveryMode::TolerateCorruptedTailRecords => 0,
            WalRecoveryMode::PointInTimeRecovery | WalRecoveryMode::SkipAnyCorruptedRecords => {
                self.recycle_log_file_num
            }
        }
    }
}

/// What a memtable is for.
#[derive(Clone, Copy, Debug)]
pub struct MemTableRequest<'a> {
    /// The order of its keys.
    pub comparator: &'a UserComparator,
    /// Bytes that it is to hold before it is sealed.
    pub write_buffer_size: u64,
    /// The keys of the family's last flush had been written in their order, nearly all of them.
    pub keys_rise: bool,
    /// Memory of memtables that were flushed, where it is kept.
    pub pages: Option<&'a Arc<PagePool>>,
}

/// Makes the memtables of a family.
pub type MemTableFactory = Arc<dyn Fn(&MemTableRequest<'_>) -> Arc<dyn MemTable> + Send + Sync>;

/// Memtables that there are; [`Self::factory`] is for [`ColumnFamilyOptions::memtable_factory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemTableKind {
    /// A trie, but a guided list behind a flush whose keys had been written in rising order: the list knows where the last key
    /// went, and is faster by a third then. Batches are refused as for [`Self::Trie`].
    Adaptive,
    /// A sorted list in an arena with a tree that guides into it.
    GuidedList,
    /// A trie of user keys, each with its versions, in a block of up to 16 GiB of addresses. Guided lists are made instead for
    /// orders other than bytewise, for write buffers of more than 10 GiB, and where the system has no addresses.
    ///
    /// A batch of more than 2 GiB is refused with `TooLarge`, or one of more small operations than an empty trie may
    /// hold, some 15 million.
    Trie,
}

impl Default for MemTableKind {
    /// [`Self::Adaptive`]; with the feature `memtable-from-env`, which only tests have, [`Self::GuidedList`] where `OROGEN_TEST_LISTS` is set.
    fn default() -> Self {
        if cfg!(feature = "memtable-from-env") && std::env::var_os("OROGEN_TEST_LISTS").is_some() {
            return Self::GuidedList;
        }
        Self::Adaptive
    }
}

impl MemTableKind {
    /// What makes tries whose content is in files without names in `dir`, for write buffers that are larger than memory; what
    /// [`Self::Trie`] makes where there can be no file, such as one in a directory that does not exist.
    #[must_use]
    pub fn trie_in(dir: impl Into<PathBuf>) -> MemTableFactory {
        let dir = dir.into();
        let other = Self::Trie.factory();
        Arc::new(move |request| {
            if request.comparator.is_bytewise()
                && let Ok(trie) = TrieMemTable::in_dir(&dir, request.write_buffer_size)
            {
                return trie;
            }
            other(request)
        })
    }

    /// What makes memtables of this kind.
    #[must_use]
    pub fn factory(self) -> MemTableFactory {
        Arc::new(move |request| {
            let is_trie = match self {
                Self::Adaptive => !request.keys_rise,
                Self::GuidedList => false,
                Self::Trie => true,
            };
            if is_trie
                && request.comparator.is_bytewise()
                && let Ok(trie) = match request.pages {
                    Some(pool) => TrieMemTable::in_pool(pool, request.write_buffer_size),
                    None => TrieMemTable::new(request.write_buffer_size),
                }
            {
                return trie;
            }
            let order = request.comparator.clone();
            match self != Self::GuidedList && order.is_bytewise() {
                true => GuidedListMemTable::beside_tries(order, request.write_buffer_size),
                false => GuidedListMemTable::new(order),
            }
        })
    }
}

/// When a new file is marked for compaction because of its tombstones, in the words of RocksDB's
/// `CompactOnDeletionCollector`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CompactOnDeletion {
    /// Entries that are looked at together; 0 for no window.
    pub sliding_window_size: usize,
    /// Point tombstones among them that mark the file.
    pub deletion_trigger: u64,
    /// Share of tombstones in the whole file that marks it; 0 for none.
    pub deletion_ratio: f64,
}

impl Default for CompactOnDeletion {
    fn default() -> Self {
        Self {
            sliding_window_size: 1024,
            deletion_trigger: 768,
            deletion_ratio: 0.0,
        }
    }
}

impl CompactOnDeletion {
    /// True for a file of so many entries and tombstones, the most in one window being `most`.
    pub(crate) fn is_reached(&self, most: u64, entries: u64, deletions: u64) -> bool {
        let in_window = self.sliding_window_size > 0 && most >= self.deletion_trigger.max(1);
        let in_file = self.deletion_ratio > 0.0
            && deletions as f64 >= self.deletion_ratio * entries as f64
            && deletions > 0;
        in_window || in_file
    }
}

/// Settings of a column family.
#[derive(Clone)]
pub struct ColumnFamilyOptions {
    /// The order of keys; fixed for the family's life.
    pub comparator: UserComparator,
    /// Folds merge operands. `None`: an operator that the directory names is taken if it is
    /// built in; else merges fail.
    pub merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Filters values in compactions.
    pub compaction_filter_factory: Option<Arc<dyn CompactionFilterFactory>>,
    /// Cuts the prefix of a key that filters index too.
    ///
    /// Changeable while open, by the name of one that is built in (`fixed:4`, `capped:8`, `noop`)
    /// or `nullptr`. Each table says with which one its filter was made: it is asked for prefixes
    /// of no other. Default none.
    pub prefix_extractor: Option<Arc<dyn SliceTransform>>,
    /// Bytes a memtable may hold before it is sealed and queued for flush; one part in 64 more is
    /// let pass, as RocksDB does with a part of an arena block.
    ///
    /// Larger: fewer flushes, longer recovery. Default 64 MiB.
    pub write_buffer_size: u64,
    /// Sealed memtables at which writers stop until one is flushed; from 4 on they are slowed at one fewer. Default 2,
    /// at least 2.
    pub max_write_buffer_number: usize,
    /// Sealed memtables that a flush waits for and merges. Default 1.
    pub min_write_buffer_number_to_merge: usize,
    /// Makes memtables. Default: those of [`MemTableKind::Adaptive`]. `OPTIONS` files name RocksDB's own kind, whatever it makes.
    pub memtable_factory: MemTableFactory,
    /// 8: each entry of a memtable has a checksum, compared whenever it is read, and by the flush.
    /// Memory that has changed is then an error and never gets into a table. Memtables are guided
    /// lists then, whatever [`Self::memtable_factory`] makes. 0, the default: none.
    pub memtable_protection_bytes_per_key: usize,
    /// How blocks are compressed. Default LZ4.
    pub compression: CompressionType,
    /// How blocks of each level are compressed, from level 0; the last holds for those below.
    /// Empty, the default: [`Self::compression`] for all.
    pub compression_per_level: Vec<CompressionType>,
    /// How blocks of the last level with data are compressed. `None`, the default: as the others.
    pub bottommost_compression: Option<CompressionType>,
    /// Level, dictionary and so on of the codecs.
    pub compression_opts: CompressionOptions,
    /// The same for the last level, if it differs.
    pub bottommost_compression_opts: Option<CompressionOptions>,
    /// Levels. Default 7.
    pub num_levels: usize,
    /// Files in level 0 that start a compaction. Default 4.
    pub level0_file_num_compaction_trigger: usize,
    /// Files in level 0 at which writers are slowed. Default 20.
    pub level0_slowdown_writes_trigger: usize,
    /// Files in level 0 at which writers stop. Default 36.
    pub level0_stop_writes_trigger: usize,
    /// Bytes of a file of level 1. Default 64 MiB.
    pub target_file_size_base: u64,
    /// How much larger files are a level further down. Default 1.
    pub target_file_size_multiplier: u64,
    /// Bytes of level 1. Default 256 MiB.
    pub max_bytes_for_level_base: u64,
    /// How much larger a level is than the one above. Default 10.
    pub max_bytes_for_level_multiplier: f64,
    /// Derive the sizes of levels from the last level's real size. Default true.
    pub level_compaction_dynamic_level_bytes: bool,
    /// Bytes of compaction debt at which writers are slowed. Default 64 GiB.
    pub soft_pending_compaction_bytes_limit: u64,
    /// Bytes of compaction debt at which writers stop. Default 256 GiB.
    pub hard_pending_compaction_bytes_limit: u64,
    /// Bytes of inputs of one compaction at most. 0, the default: 25 files.
    pub max_compaction_bytes: u64,
    /// Files whose oldest data is older than so many seconds are compacted down to the last
    /// level, where what is deleted goes. 0, the default: never.
    pub ttl: u64,
    /// Files made longer ago than so many seconds are compacted, those of the last level into
    /// themselves: compaction filters and new settings (codecs too) reach all data in that
    /// time. 0, the default: never.
    pub periodic_compaction_seconds: u64,
    /// A ceiling for what is stored twice: bytes of the levels above the last one with data, in
    /// percent of that one. Above it their largest files are compacted down, one after another, as
    /// soon as nothing more urgent waits; so space passes the ceiling while data comes faster than
    /// compactions work, and by the inputs of those that run. Costs writes: 100 is seldom met by
    /// levels of their usual sizes (about 11), below 12 most data is rewritten all the time. 0, the
    /// default: no ceiling. Not kept in OPTIONS files, whose other readers do not know it.
    pub max_size_amplification_percent: u64,
    /// Rewrites files of the last level with data whose codec is not the one that is asked for now,
    /// one after another, when nothing else is due: files that were moved there as they were, and all
    /// of them after [`Self::compression`] or [`Self::bottommost_compression`] was changed. It opens
    /// all tables of that level once; a codec's level and other options do not count. Default false:
    /// they wait for the next compaction that takes them. Not kept in OPTIONS files, whose other
    /// readers do not know it.
    pub recompress_bottommost_files: bool,
    /// Marks files with many tombstones, so that scans need not step over them. Default: 768
    /// among 1024 entries. `None`: files are not marked.
    pub compact_on_deletion: Option<CompactOnDeletion>,
    /// No compaction but on request. Default false.
    pub disable_auto_compactions: bool,
    /// 8: each block in the cache has a checksum, compared whenever a lookup or a cursor comes to
    /// the block. One that has changed is dropped and read again. A compaction compares each block
    /// of its inputs once more when it has copied all that it needs of it, and fails rather than
    /// write what had changed. About 0.2 us for 4 KiB. 0, the default: none.
    pub block_protection_bytes_per_key: usize,
    /// Reads each table back when it is written, and compares its entries with those that were to
    /// be written; a table that differs is thrown away. Default false.
    pub paranoid_file_checks: bool,
    /// How tables are laid out.
    pub table: BlockBasedOptions,
    /// Put values of [`Self::min_blob_size`] and more into blob files, at flushes and compactions,
    /// with pointers to them in the tables. Default false. Values that are in blob files are read
    /// whatever this says. Counts only in [`BlobRunMode::Normal`].
    pub enable_blob_files: bool,
    /// Whether values go to blob files, stay there, or come back. Default `kNormal`; may change while
    /// the database is open.
    pub blob_run_mode: BlobRunMode,
    /// Bytes of a value from which on it goes to a blob file. Default 4 KiB (RocksDB: 0).
    pub min_blob_size: u64,
    /// The level from which on values go to blob files. A flush writes to level 0; a compaction is judged by the level that
    /// it writes to, and a table that moves down as it is keeps its values. Default 0: all; may change while the
    /// database is open. Counts only in [`BlobRunMode::Normal`].
    ///
    /// Higher: values that die on their way down are never in a blob file, and are no garbage there; those that live are written
    /// once more for each level above it. Values of blob files that a collection, or a compaction into a level above it, writes
    /// anew come back into tables there.
    pub blob_file_starting_level: usize,
    /// Bytes at which a blob file ends and the next begins. Default 256 MiB.
    pub blob_file_size: u64,
    /// The codec of values in new blob files. Default none.
    pub blob_compression_type: CompressionType,
    /// How these values are compressed: `level`, `checksum`, and for zstd `max_dict_bytes` (default 0: no
    /// dictionary), `zstd_max_train_bytes` and `max_dict_buffer_bytes`. RocksDB has no such option.
    ///
    /// With a dictionary small values that are like each other take a fraction of what each by itself takes.
    /// **RocksDB cannot read a blob file that has one**: it refuses it by its version. Each
    /// flush and each part of a compaction holds its first large values, and all entries between them, until they are
    /// `zstd_max_train_bytes` (0: `max_dict_bytes`, which then are the dictionary themselves), at most
    /// `max_dict_buffer_bytes` (0: 16 MiB, and never more) and no more than the memory budget grants; trains
    /// on seven of eight and tries the others: a dictionary that does not save a 16th of them is given up.
    pub blob_compression_opts: CompressionOptions,
    /// New blob files have each value begin at a multiple of so many bytes, with zeros between: 0 or
    /// 1, the default, for anywhere; else a power of two up to 64 KiB; ours.
    ///
    /// With 4096 all of a dead value comes back as a hole ([`Self::blob_hole_punching`]), at the cost of half
    /// an alignment for each value, on average; a value a little longer than the alignment takes twice its
    /// size. So not for values of less than some 16 KiB. Padding counts in
    /// [`Self::blob_file_size`] and [`Self::max_space_amp`], and in no count of bytes of values or of garbage.
    pub blob_record_alignment: u32,
    /// Let compactions write anew the values that they meet and that are in the oldest blob files,
    /// so that these files go. Default false.
    pub enable_blob_garbage_collection: bool,
    /// The part of the blob files, from the oldest on, that compactions empty. 0.0 to 1.0, default
    /// 0.25.
    pub blob_garbage_collection_age_cutoff: f64,
    /// The part of the oldest blob file that is garbage from which on the tables that point into it
    /// are compacted for that alone. 0.0 to 1.0; 1.0, the default: they never are.
    pub blob_garbage_collection_force_threshold: f64,
    /// Bytes that the system is asked for ahead of each blob file out of which a compaction or a collection takes values, filters
    /// and merges them, from the second value in a row on, whether they are in memory or not; after the first time no more than
    /// 8 times what was taken. 0, the default: as scans do it, from 32 KiB to 256 KiB once a value had to be waited for
    /// (RocksDB: nothing).
    pub blob_compaction_readahead_size: u64,
    /// Keep values of blob files, decompressed, in the block cache, with the lowest priority: they
    /// take what blocks leave, and a tenth. Default false.
    ///
    /// True where the values that are read again and again fit into the cache beside the blocks: a hit
    /// saves the read, the checksum and the codec. Where they do not, blocks lose room for nothing, and
    /// the system's cache serves as well. A value of more than a 16th of a shard (of
    /// the default cache: 32 KiB) is never kept.
    pub blob_cache: bool,
    /// Give values that flushes write to blob files to [`Self::blob_cache`], without which this does
    /// nothing. They have the lowest priority there, as those that are read: they take
    /// what blocks leave, and a tenth, and the oldest of them go first. Each is copied. Default `kDisable`.
    ///
    /// `kFlushOnly` where what is written is read soon, and the disk is slow or far away.
    pub prepopulate_blob_cache: PrepopulateBlobCache,
    /// Give back the disk space of values in the middle of blob files that nothing points to any more, as
    /// holes of whole blocks of 4 KiB; no value is moved. Values of less than 8 KiB leave few whole
    /// blocks, unless their neighbours are dead too. Files with several names, such as those of a checkpoint,
    /// are left alone. Nothing begins by itself while `disable_auto_compactions` is set; a collection that is asked
    /// for ([`Db::collect_blob_garbage`](crate::Db::collect_blob_garbage)) makes holes whatever is set here. Default true; ours.
    pub blob_hole_punching: bool,
    /// Look for holes once the dead values that were not looked at yet come to this part of the
    /// live ones of the family. Looking reads the tables that point to the files with most of
    /// them. 0.0 to 1.0, default 0.125.
    pub blob_hole_punching_threshold: f64,
    /// And to so many bytes. Default 4 MiB.
    pub blob_hole_punching_min_bytes: u64,
    /// The part of a blob file that is garbage from which on the file is emptied, whatever its age:
    /// in the background the tables that point to it are rewritten where they are and the values go
    /// to a new file, and compactions take along those that they meet. 0.0 to 1.0; 1.0, the default:
    /// as [`Self::blob_gc_auto`] says. Titan's option, as are `min_gc_batch_size`,
    /// `max_gc_batch_size` and `merge_small_file_threshold`.
    pub blob_file_discardable_ratio: f64,
    /// Where no other way is asked for (`blob_file_discardable_ratio` is 1.0 and
    /// `enable_blob_garbage_collection` is false) choose by cost: dead places are given up as holes while a call brings
    /// enough, and what they leave, or all if holes cannot be had or cost too much, is emptied at a ratio of
    /// 0.5, or of 0.8 while flushes wait for a rate limiter; once a quarter of all is garbage the worst files are emptied
    /// from a quarter on; small files are merged. While flushes come compactions do it for the level that they
    /// go to, without a wait for holes in files whose records are shorter than 4 KiB on average. When nothing else is to be done and
    /// nothing was flushed for two seconds, values shorter than 8 KiB are put in key order, as with [`Self::range_merge`]
    /// and 8 runs at most. Default true; ours. False: values are moved only where another setting asks for it.
    pub blob_gc_auto: bool,
    /// The most that blob files of the family may take for each byte that is live in them. Beyond it the files with most
    /// garbage are emptied at any cost in tables, whatever the ratio, and a tenth
    /// beyond it writers are slowed while that goes on. 1.05 or more; 0.0, the default: no bound.
    /// Padding ([`Self::blob_record_alignment`]) counts; but where that of live values takes more than half of
    /// what is left for garbage, garbage still gets that half, and the files take more than this.
    /// Files that only readers of older versions keep do not count.
    pub max_space_amp: f64,
    /// Bytes of blob files that are worth a step, unless what lives in them fills a new file.
    /// Default 16 MiB (Titan: 512 MiB).
    pub min_gc_batch_size: u64,
    /// Bytes of blob files beyond which a step takes no more. Default 1 GiB.
    pub max_gc_batch_size: u64,
    /// Blob files of fewer bytes are merged, if there are several. At most half of
    /// [`Self::blob_file_size`] counts. Under [`Self::blob_gc_auto`] only where there are more than 256 of them.
    /// Default 8 MiB.
    pub merge_small_file_threshold: u64,
    /// Compactions into the last two levels write the values that come down into them anew, in key
    /// order, so that scans read blob files from front to back. Each value is written up to twice more for
    /// that. Default false. Titan's option, as the next two, which count only where values that are
    /// written anew go to blob files: with [`Self::enable_blob_files`], or in [`BlobRunMode::ReadOnly`].
    pub level_merge: bool,
    /// Tables of the last level are kept from reading by turns from more than
    /// [`Self::max_sorted_runs`] blob files: where one would, the values of files with few
    /// of its values are written anew in key order, by the compactions that write it or,
    /// where none is due, in the background. Needs no [`Self::level_merge`] (Titan's does). Default false.
    pub range_merge: bool,
    /// Blob files that a scan of a table of the last level reads from by turns at most, with
    /// [`Self::range_merge`]. Files that follow one another in key order count as one. Smaller: longer reads in a row,
    /// more values written anew, all that a compaction meets at 1. 0: no limit, also for what [`Self::blob_gc_auto`]
    /// does. Default 20.
    pub max_sorted_runs: u64,
    /// Cache of blocks. `None`, the default: one of 32 MiB shared by the families of the
    /// database.
    pub block_cache: Option<Arc<BlockCache>>,
}

impl Default for ColumnFamilyOptions {
    fn default() -> Self {
        Self {
            comparator: UserComparator::BYTEWISE,
            merge_operator: None,
            compaction_filter_factory: None,
            prefix_extractor: None,
            write_buffer_size: 64 << 20,
            max_write_buffer_number: 2,
            min_write_buffer_number_to_merge: 1,
            memtable_factory: MemTableKind::default().factory(),
            memtable_protection_bytes_per_key: 0,
            block_protection_bytes_per_key: 0,
            paranoid_file_checks: false,
            compression: CompressionType::Lz4,
            compression_per_level: Vec::new(),
            bottommost_compression: None,
            compression_opts: CompressionOptions::default(),
            bottommost_compression_opts: None,
            num_levels: 7,
            level0_file_num_compaction_trigger: 4,
            level0_slowdown_writes_trigger: 20,
            level0_stop_writes_trigger: 36,
            target_file_size_base: 64 << 20,
            target_file_size_multiplier: 1,
            max_bytes_for_level_base: 256 << 20,
            max_bytes_for_level_multiplier: 10.0,
            level_compaction_dynamic_level_bytes: true,
            soft_pending_compaction_bytes_limit: 64 << 30,
            hard_pending_compaction_bytes_limit: 256 << 30,
            max_compaction_bytes: 0,
            ttl: 0,
            periodic_compaction_seconds: 0,
            max_size_amplification_percent: 0,
            recompress_bottommost_files: false,
            compact_on_deletion: Some(CompactOnDeletion::default()),
            disable_auto_compactions: false,
            table: BlockBasedOptions::default(),
            enable_blob_files: false,
            blob_run_mode: BlobRunMode::Normal,
            min_blob_size: 4 << 10,
            blob_file_starting_level: 0,
            blob_file_size: 256 << 20,
            blob_compression_type: CompressionType::None,
            blob_compression_opts: CompressionOptions::default(),
            blob_record_alignment: 0,
            enable_blob_garbage_collection: false,
            blob_garbage_collection_age_cutoff: 0.25,
            blob_garbage_collection_force_threshold: 1.0,
            blob_compaction_readahead_size: 0,
            blob_cache: false,
            prepopulate_blob_cache: PrepopulateBlobCache::Disable,
            blob_hole_punching: true,
            blob_hole_punching_threshold: 0.125,
            blob_hole_punching_min_bytes: 4 << 20,
            blob_file_discardable_ratio: 1.0,
            blob_gc_auto: true,
            max_space_amp: 0.0,
            min_gc_batch_size: 16 << 20,
            max_gc_batch_size: 1 << 30,
            merge_small_file_threshold: 8 << 20,
            level_merge: false,
            range_merge: false,
            max_sorted_runs: 20,
            block_cache: None,
        }
    }
}

impl ColumnFamilyOptions {
    /// An empty memtable, behind a flush of keys that rose or did not.
    pub(crate) fn make_memtable(
        &self,
        keys_rise: bool,
        pages: Option<&Arc<PagePool>>,
    ) -> Arc<dyn MemTable> {
        (self.memtable_factory)(&MemTableRequest {
            comparator: &self.comparator,
            write_buffer_size: self.write_buffer_size,
            keys_rise,
            pages,
        })
    }

    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// `InvalidArgument` naming the setting, its value and its bounds.
    pub fn validate(&self) -> Result<()> {
        let refuse = |option: &'static str, value: String, bounds: &'static str| {
            Err(Error::invalid_argument("option is out of bounds")
                .with("option", option)
                .with("value", value)
                .with("bounds", bounds))
        };
        if !(1..=orogen_base::limits::NUM_LEVELS_MAX).contains(&self.num_levels) {
            return refuse("num_levels", self.num_levels.to_string(), "1 to 64");
        }
        check_bytes_per_key(
            "memtable_protection_bytes_per_key",
            self.memtable_protection_bytes_per_key,
        )?;
        check_bytes_per_key(
            "block_protection_bytes_per_key",
            self.block_protection_bytes_per_key,
        )?;
        if self.max_write_buffer_number < 2 {
            return refuse(
                "max_write_buffer_number",
                self.max_write_buffer_number.to_string(),
                "at least 2",
            );
        }
        if self.write_buffer_size < 4 << 10 {
            return refuse(
                "write_buffer_size",
                self.write_buffer_size.to_string(),
                "at least 4 KiB",
            );
        }
        if self.target_file_size_base == 0 || self.target_file_size_multiplier == 0 {
            return refuse("target_file_size_base", "0".to_owned(), "at least 1");
        }
        let multiplier = self.max_bytes_for_level_multiplier;
        let multiplies = multiplier >= 1.0 && multiplier.is_finite();
        if self.max_bytes_for_level_base == 0 || !multiplies {
            return refuse(
                "max_bytes_for_level_multiplier",
                multiplier.to_string(),
                "at least 1 and finite, over a base of at least 1",
            );
        }
        if self.level0_slowdown_writes_trigger > self.level0_stop_writes_trigger {
            return refuse(
                "level0_slowdown_writes_trigger",
                self.level0_slowdown_writes_trigger.to_string(),
                "at most level0_stop_writes_trigger",
            );
        }
        let names = [
            ("comparator", Some(self.comparator.name().to_owned())),
            (
                "merge_operator",
                self.merge_operator.as_ref().map(|o| o.stored()),
            ),
            (
                "prefix_extractor",
                self.prefix_extractor.as_ref().map(|p| p.name().to_owned()),
            ),
        ];
        for (option, name) in names {
            if let Some(name) = name
                && name.trim() != name
            {
                let bounds = "a name that neither begins nor ends with a blank: an OPTIONS file cannot hold one";
                return refuse(option, name, bounds);
            }
        }
        let alignment = self.blob_record_alignment;
        if alignment > BLOB_RECORD_ALIGNMENT_MAX || alignment & alignment.wrapping_sub(1) != 0 {
            return refuse(
                "blob_record_alignment",
                alignment.to_string(),
                "0, or a power of two up to 64 KiB",
            );
        }
        for (option, share) in [
            (
                "blob_garbage_collection_age_cutoff",
                self.blob_garbage_collection_age_cutoff,
            ),
            (
                "blob_garbage_collection_force_threshold",
                self.blob_garbage_collection_force_threshold,
            ),
            (
                "blob_hole_punching_threshold",
                self.blob_hole_punching_threshold,
            ),
            (
                "blob_file_discardable_ratio",
                self.blob_file_discardable_ratio,
            ),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return refuse(option, share.to_string(), "0 to 1");
            }
        }
        let ceiling = self.max_space_amp;
        if ceiling != 0.0 && !(ceiling >= 1.05 && ceiling.is_finite()) {
            return refuse("max_space_amp", ceiling.to_string(), "0, or 1.05 and more");
        }
        Ok(())
    }

    /// These settings with those raised that would contradict others, as RocksDB does it:
    /// writers never stop below what starts a compaction, and there is a level to compact to.
    pub(crate) fn sanitized(mut self) -> Self {
        self.num_levels = self.num_levels.max(2);
        let slowdown = &mut self.level0_slowdown_writes_trigger;
        *slowdown = (*slowdown).max(self.level0_file_num_compaction_trigger);
        self.level0_stop_writes_trigger = self.level0_stop_writes_trigger.max(*slowdown);
        let hard = self.hard_pending_compaction_bytes_limit;
        let soft = &mut self.soft_pending_compaction_bytes_limit;
        if hard > 0 && (*soft == 0 || *soft > hard) {
            *soft = hard;
        }
        self
    }

    /// True where nobody has said how garbage in blob files is to be collected.
    #[must_use]
    pub fn chooses_gc_by_cost(&self) -> bool {
        let is_told = self.enable_blob_garbage_collection || self.blob_file_discardable_ratio < 1.0;
        self.blob_gc_auto && !is_told
    }

    /// True if dead places in blob files are looked for, to be given up as holes.
    #[must_use]
    pub(crate) fn punches_holes(&self) -> bool {
        self.blob_hole_punching && !self.disable_auto_compactions
    }

    /// How dictionaries for the values of new blob files are made; `None`: none are.
    #[must_use]
    pub(crate) fn blob_dictionary(&self) -> Option<CompressionOptions> {
        let opts = self.blob_compression_opts;
        let asked = self.blob_compression_type == CompressionType::Zstd && opts.max_dict_bytes > 0;
        asked.then_some(opts)
    }

    /// True if large values go to blob files, at one level or another.
    #[must_use]
    pub fn separates_values(&self) -> bool {
        self.enable_blob_files && self.blob_run_mode == BlobRunMode::Normal
    }

    /// Bytes of a value from which on it goes to a blob file where a table of `level` is written; `None`: none does.
    #[must_use]
    pub fn separates_from(&self, level: usize) -> Option<u64> {
        let separates = self.separates_values() && level >= self.blob_file_starting_level;
        separates.then_some(self.min_blob_size)
    }

    /// True if values of blob files that are written anew with a table of `level` may go to blob files.
    #[must_use]
    pub(crate) fn keeps_apart(&self, level: usize) -> bool {
        match self.blob_run_mode {
            BlobRunMode::Normal => self.separates_from(level).is_some(),
            BlobRunMode::ReadOnly => true,
            BlobRunMode::Fallback => false,
        }
    }

    /// Bytes of a file of `level` (0 counts as 1).
    #[must_use]
    pub fn target_file_size(&self, level: usize) -> u64 {
        let steps = u32::try_from(level.saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = self.target_file_size_multiplier.saturating_pow(steps);
        self.target_file_size_base.saturating_mul(factor)
    }

    /// Bytes of inputs of one compaction at most.
    #[must_use]
    pub fn max_compaction_bytes(&self) -> u64 {
        if self.max_compaction_bytes > 0 {
            self.max_compaction_bytes
        } else {
            self.target_file_size_base.saturating_mul(25)
        }
    }

    /// The codec of a file of `level`; `bottommost` if nothing lies below it.
    #[must_use]
    pub fn compression_of(&self, level: usize, bottommost: bool) -> CompressionType {
        if let (true, Some(c)) = (bottommost, self.bottommost_compression) {
            return c;
        }
        let per_level = &self.compression_per_level;
        per_level
            .get(level.min(per_level.len().wrapping_sub(1)))
            .copied()
            .unwrap_or(self.compression)
    }
}

impl fmt::Debug for ColumnFamilyOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColumnFamilyOptions")
            .field("comparator", &self.comparator)
            .field("write_buffer_size", &self.write_buffer_size)
            .field("compression", &self.compression)
            .field("num_levels", &self.num_levels)
            .finish_non_exhaustive()
    }
}

/// Everything that opening a database asks for.
#[derive(Clone, Default)]
pub struct Options {
    /// Settings of the database.
    pub db: DbOptions,
    /// Settings of every family that [`Self::families`] does not name.
    pub cf: ColumnFamilyOptions,
    /// Settings of single families.
    pub families: BTreeMap<String, ColumnFamilyOptions>,
}

impl Options {
    /// The settings of a family.
    #[must_use]
    pub fn family(&self, name: &str) -> &ColumnFamilyOptions {
        self.families.get(name).unwrap_or(&self.cf)
    }

    /// Refuses settings that cannot work, as an open would.
    ///
    /// # Errors
    /// `InvalidArgument` naming the setting, its value and its bounds.
    pub fn validate(&self) -> Result<()> {
        self.db.validate()?;
        for cf in std::iter::once(&self.cf).chain(self.families.values()) {
            cf.validate()?;
            cf.table.validate()?;
        }
        Ok(())
    }
}

/// How a write is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct WriteOptions {
    /// Return only when the write survives a power loss. Without it a write survives the end of
    /// the process, not of the machine. Default false.
    pub sync: bool,
    /// Do not write the WAL: the write is lost if the process ends before a flush, and of a batch over several families what was
    /// not flushed. Default false.
    pub disable_wal: bool,
    /// Fail with `Busy` where the write would be slowed or stopped. Default false.
    pub no_slowdown: bool,
    /// 8: a checksum of each operation goes with the batch (see
    /// [`WriteBatch::with_protection`](crate::WriteBatch::with_protection)) until it is in the
    /// memtable; the write fails with `Corruption` where memory has changed meanwhile, and if that
    /// was after it was logged, the database is read-only. 0, the default: none.
    pub protection_bytes_per_key: usize,
}

/// How a flush is done.
#[derive(Clone, Copy, Debug)]
pub struct FlushOptions {
    /// Return when the data is in a table. Default true.
    pub wait: bool,
}

impl Default for FlushOptions {
    fn default() -> Self {
        Self { wait: true }
    }
}

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Bytes of the logs in use from which on all families are flushed first. With fewer nothing is flushed,
    /// and the logs are copied. Default 0: always flushed; `u64::MAX`: never.
    ///
    /// A larger one makes checkpoints shorter and leaves no small tables behind; who opens them reads the
    /// logs. Where something was written without a log it is flushed all the same, and logs that
    /// prepared writes need are copied in any case.
    pub log_size_for_flush: u64,
}

/// What a collection of garbage in blob files that is asked for does, before it gives up what is dead in the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CollectBlobGarbageOptions {
    /// The part of a file that is garbage from which on the file is emptied; 0.0: any garbage.
    /// Default 0.5.
    pub discardable_ratio: f64,
    /// Merges small files too, as
    /// [`ColumnFamilyOptions::merge_small_file_threshold`] has it. Default false.
    pub merge_small_files: bool,
}

impl Default for CollectBlobGarbageOptions {
    fn default() -> Self {
        Self {
            discardable_ratio: 0.5,
            merge_small_files: false,
        }
    }
}

/// Where the large values of a family are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTo {
    /// In blob files.
    Separated,
    /// In the tables.
    Inline,
}

impl ConvertTo {
    /// The place in a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Separated => "separated",
            Self::Inline => "inline",
        }
    }
}

/// How values are converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConvertValuesOptions {
    /// To [`ConvertTo::Separated`]: sets [`ColumnFamilyOptions::min_blob_size`]. `None`, the default:
    /// it is what it is.
    pub min_blob_size: Option<u64>,
}

/// What a manual compaction does with the last level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BottommostLevelCompaction {
    /// Leave its files where nothing above overlaps them.
    Skip,
    /// Rewrite its files only if a compaction filter wants to see them.
    #[default]
    IfHaveCompactionFilter,
    /// Rewrite its files.
    Force,
}

/// How a manual compaction is done.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompactRangeOptions {
    /// What happens to the last level.
    pub bottommost_level_compaction: BottommostLevelCompaction,
    /// Threads; 0: as [`DbOptions::max_subcompactions`].
    pub max_subcompactions: usize,
    /// No automatic compaction of the family runs meanwhile, but while this one is paused. Default false: they go on with
    /// the files that this one is not at.
    pub exclusive_manual_compaction: bool,
}
