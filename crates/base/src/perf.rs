//! What the operations of one thread cost: counters and times of its own, under RocksDB's names.
//!
//! ```text
//! set_level(EnableCount) -> get, seek, next, put ... -> PerfContext::current() -> reset()
//! ```
//! Statistics tell what a database does; this tells what one request did. Each thread has a level
//! and counters that no other thread touches. Work that another thread does for a request (a
//! leader that writes a group's log, a flush) is counted there, or not at all.
//!
//! Invariants: (1) at [`PerfLevel::Disable`], the default, a place that counts looks at one byte
//! of the thread and does no more; (2) no clock is read below [`PerfLevel::EnableTime`]; (3) what
//! is counted while a level of the tree is searched is kept for that level too.
//! Source: RocksDB `include/rocksdb/perf_context.h`, `perf_level.h`, `iostats_context.h`.
//! `Hot path`.

use std::cell::Cell;
use std::fmt;

/// What is counted, in rising order: each level counts what the ones before it do.
///
/// The numbers are RocksDB's; its levels in between tell kinds of clocks apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum PerfLevel {
    /// Nothing.
    #[default]
    Disable = 1,
    /// Events and bytes.
    EnableCount = 2,
    /// Times too: two looks at a clock for each.
    EnableTime = 6,
}

/// What the numbers of a counter are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfUnit {
    /// Events.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanos,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal $unit:ident,)*) => {
        /// A counter of a thread.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum PerfCounter { $($(#[$doc])* $name,)* }

        impl PerfCounter {
            /// All counters in the order in which they are printed.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// RocksDB's name of the counter.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What its numbers are.
            #[must_use]
            pub fn unit(self) -> PerfUnit {
                match self { $(Self::$name => PerfUnit::$unit,)* }
            }
        }
    };
}

counters! {
    /// Blocks of any kind found in the cache.
    BlockCacheHitCount = "block_cache_hit_count" Count,
    /// Blocks of any kind looked for in the cache in vain.
    BlockCacheMissCount = "block_cache_miss_count" Count,
    /// Index blocks found in the cache.
    BlockCacheIndexHitCount = "block_cache_index_hit_count" Count,
    /// Filter blocks found in the cache.
    BlockCacheFilterHitCount = "block_cache_filter_hit_count" Count,
    /// Blocks taken out of files, those that were read ahead included.
    BlockReadCount = "block_read_count" Count,
    /// Bytes of these blocks as they are in the file.
    BlockReadByte = "block_read_byte" Bytes,
    /// Index blocks among them.
    IndexBlockReadCount = "index_block_read_count" Count,
    /// Filter blocks among them.
    FilterBlockReadCount = "filter_block_read_count" Count,
    /// Time in which blocks were read.
    BlockReadTime = "block_read_time" Nanos,
    /// Time in which their checksums were compared.
    BlockChecksumTime = "block_checksum_time" Nanos,
    /// Time in which they were decompressed.
    BlockDecompressTime = "block_decompress_time" Nanos,
    /// Values of blob files found in the cache.
    BlobCacheHitCount = "blob_cache_hit_count" Count,
    /// Reads of blob files; values that were read together are one.
    BlobReadCount = "blob_read_count" Count,
    /// Bytes of these reads.
    BlobReadByte = "blob_read_byte" Bytes,
    /// Time in which blob files were read.
    BlobReadTime = "blob_read_time" Nanos,
    /// Time in which checksums of their records were compared.
    BlobChecksumTime = "blob_checksum_time" Nanos,
    /// Time in which their values were decompressed.
    BlobDecompressTime = "blob_decompress_time" Nanos,
    /// Answers "may be there" of tables' filters, to keys and to prefixes.
    BloomSstHitCount = "bloom_sst_hit_count" Count,
    /// Answers "not there" of tables' filters.
    BloomSstMissCount = "bloom_sst_miss_count" Count,
    /// Memtables that gets looked into.
    GetFromMemtableCount = "get_from_memtable_count" Count,
    /// Time of gets in memtables.
    GetFromMemtableTime = "get_from_memtable_time" Nanos,
    /// Tables that gets looked into; a filter may have sent them away.
    GetFromTableCount = "get_from_table_count" Count,
    /// Time of gets in tables.
    GetFromOutputFilesTime = "get_from_output_files_time" Nanos,
    /// Bytes of values that gets returned.
    GetReadBytes = "get_read_bytes" Bytes,
    /// Bytes of values that `multi_get` returned.
    MultigetReadBytes = "multiget_read_bytes" Bytes,
    /// Bytes of keys and values that iterators returned.
    IterReadBytes = "iter_read_bytes" Bytes,
    /// Keys that gets found, by level.
    UserKeyReturnCount = "user_key_return_count" Count,
    /// Seeks of iterators.
    IterSeekCount = "iter_seek_count" Count,
    /// Forward moves of iterators.
    IterNextCount = "iter_next_count" Count,
    /// Backward moves of iterators.
    IterPrevCount = "iter_prev_count" Count,
    /// Entries that iterators left or passed: one for each move, and versions that newer ones hide.
    InternalKeySkippedCount = "internal_key_skipped_count" Count,
    /// Tombstones that iterators passed, and entries under range tombstones.
    InternalDeleteSkippedCount = "internal_delete_skipped_count" Count,
    /// Entries that iterators passed because they are newer than what the reader sees.
    InternalRecentSkippedCount = "internal_recent_skipped_count" Count,
    /// Time of iterators' seeks in memtables and tables.
    SeekInternalSeekTime = "seek_internal_seek_time" Nanos,
    /// Time in which iterators found what to show from where they stood.
    FindNextUserEntryTime = "find_next_user_entry_time" Nanos,
    /// Time in which tables were opened.
    FindTableNanos = "find_table_nanos" Nanos,
    /// Tables opened.
    TableOpenCount = "table_open_count" Count,
    /// Time in which the log was written, syncs included. The leader of a group pays for all.
    WriteWalTime = "write_wal_time" Nanos,
    /// Time in which memtables were written.
    WriteMemtableTime = "write_memtable_time" Nanos,
    /// Time in which a write was held back for flushes, compactions or memory.
    WriteDelayTime = "write_delay_time" Nanos,
    /// Time in which full memtables were sealed.
    WriteSchedulingFlushesCompactionsTime =
        "write_scheduling_flushes_compactions_time" Nanos,
    /// Time in which a write waited for the leader of its group, or to become one.
    WriteThreadWaitNanos = "write_thread_wait_nanos" Nanos,
    /// Bytes read from files.
    BytesRead = "bytes_read" Bytes,
    /// Bytes written to files.
    BytesWritten = "bytes_written" Bytes,
    /// Time in which files were opened.
    OpenNanos = "open_nanos" Nanos,
    /// Time in which files were read.
    ReadNanos = "read_nanos" Nanos,
    /// Time in which files were written.
    WriteNanos = "write_nanos" Nanos,
    /// Time in which files were synced.
    FsyncNanos = "fsync_nanos" Nanos,
}

const NUM_COUNTERS: usize = PerfCounter::ALL.len();

/// Levels of the tree that are told apart; the last one stands for all below it too.
pub const PERF_LEVELS: usize = 7;

/// The row of what is counted in all.
const TOTAL: usize = PERF_LEVELS;

type Rows<T> = [[T; NUM_COUNTERS]; PERF_LEVELS + 1];

struct Thread {
    rows: Rows<Cell<u64>>,
    /// The level of the tree that is being searched, or `TOTAL`.
    searched: Cell<usize>,
}

thread_local! {
    static LEVEL: Cell<PerfLevel> = const { Cell::new(PerfLevel::Disable) };
    static THREAD: Thread = const {
        Thread {
            rows: [const { [const { Cell::new(0) }; NUM_COUNTERS] }; PERF_LEVELS + 1],
            searched: Cell::new(TOTAL),
        }
    };
}

/// What this thread counts.
#[inline]
#[must_use]
pub fn level() -> PerfLevel {
    LEVEL.get()
}

/// Sets what this thread counts from now on; counters keep what they have.
pub fn set_level(level: PerfLevel) {
    LEVEL.set(level);
}

/// True if this thread counts anything.
#[inline]
#[must_use]
pub fn is_enabled() -> bool {
    level() != PerfLevel::Disable
}

/// True if this thread takes times.
#[inline]
#[must_use]
pub fn takes_times() -> bool {
    level() >= PerfLevel::EnableTime
}

/// Adds to a counter of this thread, if it counts.
#[inline]
pub fn add(counter: PerfCounter, n: u64) {
    if is_enabled() {
        add_enabled(counter, n);
    }
}

#[cold]
fn add_enabled(counter: PerfCounter, n: u64) {
    THREAD.with(|thread| {
        let add = |row: usize| {
            let cell = &thread.rows[row][counter as usize];
            cell.set(cell.get().wrapping_add(n));
        };
        add(TOTAL);
        if thread.searched.get() != TOTAL {
            add(thread.searched.get());
        }
    });
}

/// Until it is dropped, what the thread counts is kept for one level of the tree too.
#[must_use]
#[derive(Debug)]
pub struct LevelSearch {
    is_noted: bool,
}

/// Tells that `level` of the tree is searched from now on.
#[inline]
pub fn search_level(level: usize) -> LevelSearch {
    let is_noted = is_enabled();
    if is_noted {
        note_searched(level.min(PERF_LEVELS - 1));
    }
    LevelSearch { is_noted }
}

#[cold]
fn note_searched(row: usize) {
    THREAD.with(|thread| thread.searched.set(row));
}

impl Drop for LevelSearch {
    #[inline]
    fn drop(&mut self) {
        if self.is_noted {
            note_searched(TOTAL);
        }
    }
}

/// What a thread counted.
///
/// [`Display`](fmt::Display) prints the counters that are not zero, one a line, those of a level
/// as `name@level2`.
#[derive(Clone, PartialEq, Eq)]
pub struct PerfContext {
    rows: Rows<u64>,
}

impl Default for PerfContext {
    fn default() -> Self {
        Self {
            rows: [[0; NUM_COUNTERS]; PERF_LEVELS + 1],
        }
    }
}

impl PerfContext {
    /// The counters of this thread as they are now.
    #[must_use]
    pub fn current() -> Self {
        let mut context = Self::default();
        THREAD.with(|thread| {
            for (row, cells) in context.rows.iter_mut().zip(&thread.rows) {
                for (n, cell) in row.iter_mut().zip(cells) {
                    *n = cell.get();
                }
            }
        });
        context
    }

    /// Sets all counters of this thread to zero.
    pub fn reset() {
        THREAD.with(|thread| thread.rows.as_flattened().iter().for_each(|c| c.set(0)));
    }

    /// Runs `body` with this thread at `level`, and tells what it counted.
    ///
    /// The thread's level is as before afterwards, also if `body` panics. The counters keep what
    /// was counted, so one measurement within another one is part of it.
    pub fn measure<R>(level: PerfLevel, body: impl FnOnce() -> R) -> (R, Self) {
        struct Restore(PerfLevel);
        impl Drop for Restore {
            fn drop(&mut self) {
                set_level(self.0);
            }
        }
        let before = Self::current();
        let restore = Restore(self::level());
        set_level(level);
        let result = body();
        drop(restore);
        (result, Self::current().since(&before))
    }

    /// A counter.
    #[must_use]
    pub fn get(&self, counter: PerfCounter) -> u64 {
        self.rows[TOTAL][counter as usize]
    }

    /// A counter of what gets did in one level of the tree; the last of [`PERF_LEVELS`] stands
    /// for all below it too.
    #[must_use]
    pub fn get_at_level(&self, counter: PerfCounter, level: usize) -> u64 {
        self.rows[level.min(PERF_LEVELS - 1)][counter as usize]
    }

    /// What was counted after `before`, which this thread's counters were once; of counters that were set back since
    /// then, what was counted since.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut difference = self.clone();
        let all = difference.rows.as_flattened_mut();
        for (n, b) in all.iter_mut().zip(before.rows.as_flattened()) {
            *n = n.checked_sub(*b).unwrap_or(*n);
        }
        difference
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &Self) {
        let all = self.rows.as_flattened_mut();
        for (n, more) in all.iter_mut().zip(other.rows.as_flattened()) {
            *n = n.wrapping_add(*more);
        }
    }

    /// The counters that are not zero: counter, level of the tree (`None`: in all), number.
    pub fn iter(&self) -> impl Iterator<Item = (PerfCounter, Option<usize>, u64)> + '_ {
        let rows = std::iter::once(TOTAL).chain(0..PERF_LEVELS);
        rows.flat_map(move |row| {
            let level = (row != TOTAL).then_some(row);
            let counters = PerfCounter::ALL.iter();
            counters.map(move |&c| (c, level, self.rows[row][c as usize]))
        })
        .filter(|&(_, _, n)| n != 0)
    }
}

impl fmt::Display for PerfContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (counter, level, n)) in self.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            f.write_str(counter.name())?;
            if let Some(level) = level {
                write!(f, "@level{level}")?;
            }
            write!(f, " = {n}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for PerfContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |(counter, level, n): (PerfCounter, Option<usize>, u64)| match level {
            Some(level) => (format!("{}@level{level}", counter.name()), n),
            None => (counter.name().to_owned(), n),
        };
        f.debug_map().entries(self.iter().map(named)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PerfCounter::{BlockReadByte, BlockReadCount};

    #[test]
    fn nothing_is_counted_unless_asked_for() {
        add(BlockReadCount, 1);
        assert_eq!(PerfContext::current(), PerfContext::default());
        let ((), seen) = PerfContext::measure(PerfLevel::EnableCount, || add(BlockReadCount, 2));
        assert_eq!(seen.get(BlockReadCount), 2);
        assert_eq!(level(), PerfLevel::Disable);
        add(BlockReadCount, 1);
        assert_eq!(PerfContext::current(), seen);
        PerfContext::reset();
        assert_eq!(PerfContext::current(), PerfContext::default());
    }

    #[test]
    fn who_sets_counters_back_within_a_measurement_is_counted_from_there() {
        let ((_, inner), outer) = PerfContext::measure(PerfLevel::EnableCount, || {
            add(BlockReadByte, 10);
            PerfContext::measure(PerfLevel::EnableCount, || {
                PerfContext::reset();
                add(BlockReadByte, 3);
            })
        });
        assert_eq!(inner.get(BlockReadByte), 3);
        assert_eq!(outer.get(BlockReadByte), 3);
    }

    #[test]
    fn a_measurement_is_part_of_the_one_around_it() {
        let ((_, inner), outer) = PerfContext::measure(PerfLevel::EnableCount, || {
            add(BlockReadByte, 10);
            PerfContext::measure(PerfLevel::EnableTime, || add(BlockReadByte, 5))
        });
        assert_eq!(inner.get(BlockReadByte), 5);
        assert_eq!(outer.get(BlockReadByte), 15);
    }

    #[test]
    fn the_level_is_as_before_after_a_panic() {
        let caught = std::panic::catch_unwind(|| {
            PerfContext::measure(PerfLevel::EnableTime, || panic!("on purpose"))
        });
        assert!(caught.is_err());
        assert_eq!(level(), PerfLevel::Disable);
    }

    #[test]
    fn threads_do_not_mix() {
        let ((), seen) = PerfContext::measure(PerfLevel::EnableCount, || {
            let other = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    add(BlockReadCount, 1);
                    set_level(PerfLevel::EnableCount);
                    add(BlockReadCount, 4);
                    PerfContext::current()
                });
                other.join().unwrap()
            });
            assert_eq!(other.get(BlockReadCount), 4);
            add(BlockReadCount, 1);
        });
        assert_eq!(seen.get(BlockReadCount), 1);
    }

    #[test]
    fn levels_of_the_tree_are_told_apart_and_printed() {
        let ((), seen) = PerfContext::measure(PerfLevel::EnableCount, || {
            add(BlockReadCount, 1);
            for level in [2, 6, 40] {
                let _search = search_level(level);
                add(BlockReadCount, 1);
            }
            add(BlockReadByte, 7);
        });
        assert_eq!(seen.get(BlockReadCount), 4);
        assert_eq!(seen.get_at_level(BlockReadCount, 2), 1);
        assert_eq!(seen.get_at_level(BlockReadCount, 40), 2);
        assert_eq!(seen.get_at_level(BlockReadCount, 0), 0);
        let text = "block_read_count = 4\nblock_read_byte = 7\n\
                    block_read_count@level2 = 1\nblock_read_count@level6 = 2";
        assert_eq!(seen.to_string(), text);
    }

    #[test]
    fn names_are_unique_and_say_their_unit() {
        let mut names: Vec<_> = PerfCounter::ALL.iter().map(|c| c.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PerfCounter::ALL.len());
        for c in PerfCounter::ALL {
            let time = c.name().ends_with("_time") || c.name().ends_with("_nanos");
            assert_eq!(time, c.unit() == PerfUnit::Nanos, "{}", c.name());
        }
    }
}
