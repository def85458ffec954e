//! What an engine counts of itself, and how it is told: under raft-engine's names, and under our own where it has none.
//!
//! Every engine has counters of its own, and asks nothing of a registry: [`Metrics`] is what they say at one
//! moment, and [`Metrics::to_prometheus`] the text that a server gives to who asks it. Those of all engines of a process
//! together, as raft-engine has them, are [`process_metrics`].
//!
//! Writes and reads take a microsecond, and to ask a clock twice a twentieth of one. So of what may be that quick one call in
//! [`SAMPLE_EVERY`] of each thread is timed, and counts for all of them; what syncs, and what purge does, is always
//! timed. Sizes, bytes, syncs, groups and files are exact.
//!
//! 1. A write adds to counters that only the leader of its group adds to, without a locked instruction.
//! 2. Counters never go down as long as the process lives, those of engines that were closed included.
//!
//! `Hot path`.

mod text;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orogen_env::Stopwatch;

use crate::names::Queue;
use crate::perf::PerfContext;

/// Of so many unsynced writes, or of so many reads, of a thread one is timed. A prime: a thread that does 8 or 64 things in turn is not
/// timed for the same one each time.
pub const SAMPLE_EVERY: u64 = 127;

/// Upper bounds of buckets, each 1.8 times the one before.
const fn bounds<const N: usize>(first: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * 1.8;
        at += 1;
    }
    bounds
}

const BOUNDS_MAX: usize = 26;

/// How many small units, which are whole, make one that is told.
const NANOS: f64 = 1e9;
const MILLIONTHS: f64 = 1e6;

/// Buckets, and how the one of a value is found without a search.
struct Scale {
    bounds: &'static [f64],
    per_unit: f64,
    /// The bounds in small units.
    limits: [u64; BOUNDS_MAX],
    /// By how many bits a value has: where its bucket can be at the earliest.
    starts: [u8; 65],
}

impl Scale {
    const fn new(bounds: &'static [f64], per_unit: f64) -> Self {
        let mut limits = [u64::MAX; BOUNDS_MAX];
        let mut at = 0;
        while at < bounds.len() {
            // A bound that is whole in small units may come out a little below.
            limits[at] = (bounds[at] * per_unit + 1e-6) as u64;
            at += 1;
        }
        let mut starts = [0; 65];
        let mut bits = 1;
        while bits <= 64 {
            let least = 1u64 << (bits - 1);
            let mut at = 0;
            while at < bounds.len() && limits[at] < least {
                at += 1;
            }
            starts[bits] = at as u8;
            bits += 1;
        }
        Self {
            bounds,
            per_unit,
            limits,
            starts,
        }
    }

    fn bucket(&self, small: u64) -> usize {
        let bits = (u64::BITS - small.leading_zeros()) as usize;
        let mut at = usize::from(self.starts[bits]);
        while at < self.bounds.len() && self.limits[at] < small {
            at += 1;
        }
        at
    }
}

static SHORT_BOUNDS: [f64; 26] = bounds(0.000_05);
static LONG_BOUNDS: [f64; 22] = bounds(0.001);
static SIZE_BOUNDS: [f64; 22] = bounds(256.0);
static COUNT_BOUNDS: [f64; 22] = bounds(1.0);
static RATIO_BOUNDS: [f64; 16] = bounds(0.000_5);
static SHORT_TIMES: Scale = Scale::new(&SHORT_BOUNDS, NANOS);
static LONG_TIMES: Scale = Scale::new(&LONG_BOUNDS, NANOS);
static SIZES: Scale = Scale::new(&SIZE_BOUNDS, 1.0);
static COUNTS: Scale = Scale::new(&COUNT_BOUNDS, 1.0);
static RATIOS: Scale = Scale::new(&RATIO_BOUNDS, MILLIONTHS);

/// A distribution that is added to while it is read.
#[repr(C)]
pub(crate) struct Histogram {
    sum: AtomicU64,
    scale: &'static Scale,
    counts: [AtomicU64; BOUNDS_MAX + 1],
}

impl Histogram {
    const fn new(scale: &'static Scale) -> Self {
        Self {
            scale,
            counts: [const { AtomicU64::new(0) }; BOUNDS_MAX + 1],
            sum: AtomicU64::new(0),
        }
    }

    fn bucket(&self, small: u64) -> &AtomicU64 {
        &self.counts[self.scale.bucket(small)]
    }

    /// Adds a value in small units, which stands for `weight` of them.
    pub(crate) fn add(&self, small: u64, weight: u64) {
        self.bucket(small).fetch_add(weight, Relaxed);
        self.sum.fetch_add(small.saturating_mul(weight), Relaxed);
    }

    /// As [`Self::add`], for a histogram that nobody else adds to at the same time.
    fn add_alone(&self, small: u64) {
        increase(self.bucket(small), 1);
        increase(&self.sum, small);
    }

    fn add_time(&self, time: Duration, weight: u64) {
        self.add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), weight);
    }

    /// Times what is done until the guard is dropped.
    pub(crate) fn time(&self) -> Timing<'_> {
        Timing(self, Stopwatch::start())
    }

    fn look(&self) -> Distribution {
        let counts = &self.counts[..=self.scale.bounds.len()];
        Distribution {
            bounds: self.scale.bounds,
            counts: counts.iter().map(|count| count.load(Relaxed)).collect(),
            small_sum: self.sum.load(Relaxed),
            per_unit: self.scale.per_unit,
        }
    }
}

/// Times something.
pub(crate) struct Timing<'m>(&'m Histogram, Stopwatch);

impl Drop for Timing<'_> {
    fn drop(&mut self) {
        self.0.add_time(self.1.elapsed(), 1);
    }
}

/// Adds to a counter that nobody else adds to at the same time.
fn increase(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Two counters, one for each queue.
#[derive(Default)]
pub(crate) struct Counters {
    append: AtomicU64,
    rewrite: AtomicU64,
}

impl Counters {
    fn of(&self, queue: Queue) -> &AtomicU64 {
        match queue {
            Queue::Append => &self.append,
            Queue::Rewrite => &self.rewrite,
        }
    }

    /// Adds, where only who holds the queue's appender does.
    pub(crate) fn increase(&self, queue: Queue, by: u64) {
        increase(self.of(queue), by);
    }

    fn look(&self) -> PerQueue {
        PerQueue {
            append: self.append.load(Relaxed),
            rewrite: self.rewrite.load(Relaxed),
        }
    }
}

/// A call that is timed, and for how many it counts.
pub(crate) struct Sample {
    watch: Stopwatch,
    weight: u64,
}

thread_local! {
    /// Calls until the next one is timed, of writes and of reads. The first is not, or a thread that does little would count for
    /// one that does much.
    static UNTIL_TIMED: [Cell<u64>; 2] = const { [Cell::new(SAMPLE_EVERY / 2), Cell::new(SAMPLE_EVERY / 2)] };
}

fn sample(kind: usize) -> Option<Sample> {
    UNTIL_TIMED.with(|cells| {
        let cell = &cells[kind];
        match cell.get() {
            0 => {
                cell.set(SAMPLE_EVERY - 1);
                Some(Sample {
                    watch: Stopwatch::start(),
                    weight: SAMPLE_EVERY,
                })
            }
            left => {
                cell.set(left - 1);
                None
            }
        }
    })
}

/// Times a write, if it is its turn; one that syncs always.
pub(crate) fn sample_write(sync: bool) -> Option<Sample> {
    if sync {
        let (watch, weight) = (Stopwatch::start(), 1);
        return Some(Sample { watch, weight });
    }
    sample(0)
}

/// A read, which is timed if it is its turn.
pub(crate) struct Reading<'m> {
    sample: Option<Sample>,
    time: &'m Histogram,
    count: &'m Histogram,
}

impl Reading<'_> {
    /// It gave so many entries.
    pub(crate) fn found(&self, entries: usize) {
        if let Some(sample) = &self.sample {
            self.count.add(entries as u64, sample.weight);
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if let Some(sample) = &self.sample {
            self.time.add_time(sample.watch.elapsed(), sample.weight);
        }
    }
}

/// Why a purge did nothing.
#[derive(Clone, Copy)]
pub(crate) enum Skip {
    /// Another thread was at it.
    Busy,
    /// Neither queue was long enough.
    Short,
}

/// What every write adds to, by its leader only, in as few cache lines as can be: they go from one core to the next.
#[repr(C, align(64))]
struct Led {
    groups: AtomicU64,
    unsynced_groups: AtomicU64,
    write_size: Histogram,
}

/// The counters of one engine.
pub(crate) struct Meters {
    write: Histogram,
    preprocess: Histogram,
    leader: Histogram,
    apply: Histogram,
    led: Led,
    compression_ratio: Histogram,
    pub(crate) allocate: Histogram,
    pub(crate) sync: Histogram,
    pub(crate) rotate: Histogram,
    read_entry: Histogram,
    read_count: Histogram,
    read_message: Histogram,
    pub(crate) purge: Histogram,
    pub(crate) rewrite_append: Histogram,
    pub(crate) rewrite_rewrite: Histogram,
    background_append: Histogram,
    background_rewrite: Histogram,
    /// Bytes that were appended.
    pub(crate) bytes: Counters,
    /// Zeros that were written behind records.
    pub(crate) padding: Counters,
    pub(crate) syncs: Counters,
    /// Files that were made, those that were written over included.
    pub(crate) made: Counters,
    /// Those of them that were made in the second directory.
    pub(crate) spilled: Counters,
    pub(crate) deleted: Counters,
    pub(crate) stalls: AtomicU64,
    pub(crate) stalls_stayed: AtomicU64,
    written_over: AtomicU64,
    spared: AtomicU64,
    filled: AtomicU64,
    skips_busy: AtomicU64,
    skips_short: AtomicU64,
    moved: AtomicU64,
    asked: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
}

impl Meters {
    pub(crate) fn new() -> Self {
        let short = || Histogram::new(&SHORT_TIMES);
        let long = || Histogram::new(&LONG_TIMES);
        let sizes = || Histogram::new(&SIZES);
        Self {
            write: short(),
            preprocess: short(),
            leader: short(),
            apply: short(),
            led: Led {
                groups: AtomicU64::new(0),
                unsynced_groups: AtomicU64::new(0),
                write_size: sizes(),
            },
            compression_ratio: Histogram::new(&RATIOS),
            allocate: short(),
            sync: short(),
            rotate: short(),
            read_entry: short(),
            read_count: Histogram::new(&COUNTS),
            read_message: short(),
            purge: long(),
            rewrite_append: long(),
            rewrite_rewrite: long(),
            background_append: sizes(),
            background_rewrite: sizes(),
            bytes: Counters::default(),
            padding: Counters::default(),
            syncs: Counters::default(),
            made: Counters::default(),
            spilled: Counters::default(),
            deleted: Counters::default(),
            stalls: AtomicU64::new(0),
            stalls_stayed: AtomicU64::new(0),
            written_over: AtomicU64::new(0),
            spared: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            skips_busy: AtomicU64::new(0),
            skips_short: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            cache_hits: AtomicU64::new(0),
            cache_misses: AtomicU64::new(0),
        }
    }

    /// A batch of entries was compressed.
    pub(crate) fn compressed(&self, raw: usize, stored: usize) {
        let ratio = stored as f64 / raw.max(1) as f64;
        self.compression_ratio.add((ratio * MILLIONTHS) as u64, 1);
    }

    /// A write that was timed has ended well; what its group spent.
    pub(crate) fn wrote(&self, sample: &Sample, of_group: &PerfContext) {
        let (time, weight) = (sample.watch.elapsed(), sample.weight);
        self.write.add_time(time, weight);
        let own = time.saturating_sub(of_group.of_group());
        self.preprocess.add_time(own, weight);
        self.apply.add_time(of_group.apply_duration, weight);
    }

    /// Whether the next group is timed, and for how many it counts. Only for a leader.
    pub(crate) fn weight_of_group(&self, sync: bool) -> Option<u64> {
        if sync {
            return Some(1);
        }
        let before = self.led.unsynced_groups.load(Relaxed);
        increase(&self.led.unsynced_groups, 1);
        (before % SAMPLE_EVERY == SAMPLE_EVERY / 2).then_some(SAMPLE_EVERY)
    }

    /// A group was written. Only for a leader.
    pub(crate) fn led(&self) {
        increase(&self.led.groups, 1);
    }

    /// What a group that was timed has spent.
    pub(crate) fn spent(&self, of_group: &PerfContext, weight: u64) {
        self.leader.add_time(of_group.of_group(), weight);
    }

    /// A record of a batch was written. Only for a leader.
    pub(crate) fn record(&self, bytes: usize) {
        self.led.write_size.add_alone(bytes as u64);
    }

    /// Entries are read.
    pub(crate) fn read_entries(&self) -> Reading<'_> {
        Reading {
            sample: sample(1),
            time: &self.read_entry,
            count: &self.read_count,
        }
    }

    /// Keys are read.
    pub(crate) fn read_keys(&self) -> Reading<'_> {
        Reading {
            sample: sample(1),
            time: &self.read_message,
            count: &self.read_count,
        }
    }

    /// Purge wrote a record of what was in files of a queue.
    pub(crate) fn moved_record(&self, from: Queue, bytes: usize) {
        let histogram = match from {
            Queue::Append => &self.background_append,
            Queue::Rewrite => &self.background_rewrite,
        };
        histogram.add(bytes as u64, 1);
    }

    /// A purge did nothing.
    pub(crate) fn skipped(&self, why: Skip) {
        let counter = match why {
            Skip::Busy => &self.skips_busy,
            Skip::Short => &self.skips_short,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// A purge moved the old entries or keys of a group.
    pub(crate) fn moved_group(&self) {
        self.moved.fetch_add(1, Relaxed);
    }

    /// A purge asked its caller to compact so many groups.
    pub(crate) fn asked(&self, groups: usize) {
        self.asked.fetch_add(groups as u64, Relaxed);
    }

    /// A read found so many blocks in the read cache, and so many not. Most find either all or none.
    pub(crate) fn looked_up(&self, hits: u64, misses: u64) {
        if hits > 0 {
            self.cache_hits.fetch_add(hits, Relaxed);
        }
        if misses > 0 {
            self.cache_misses.fetch_add(misses, Relaxed);
        }
    }

    /// A spare file was taken to be written over.
    pub(crate) fn wrote_over(&self) {
        self.written_over.fetch_add(1, Relaxed);
    }

    /// A file was emptied and kept.
    pub(crate) fn spared(&self) {
        self.spared.fetch_add(1, Relaxed);
    }

    /// So many zeros were written to a file that is to be a spare one.
    pub(crate) fn filled(&self, bytes: u64) {
        self.filled.fetch_add(bytes, Relaxed);
    }

    /// What was counted. The gauges are 0, for those are not counted.
    pub(crate) fn look(&self) -> Metrics {
        Metrics {
            write_duration: self.write.look(),
            write_preprocess_duration: self.preprocess.look(),
            write_leader_duration: self.leader.look(),
            write_apply_duration: self.apply.look(),
            write_size: self.led.write_size.look(),
            write_compression_ratio: self.compression_ratio.look(),
            allocate_log_duration: self.allocate.look(),
            sync_log_duration: self.sync.look(),
            rotate_log_duration: self.rotate.look(),
            read_entry_duration: self.read_entry.look(),
            read_entry_count: self.read_count.look(),
            read_message_duration: self.read_message.look(),
            purge_duration: self.purge.look(),
            rewrite_append_duration: self.rewrite_append.look(),
            rewrite_rewrite_duration: self.rewrite_rewrite.look(),
            background_append_bytes: self.background_append.look(),
            background_rewrite_bytes: self.background_rewrite.look(),
            log_file_count: PerQueue::default(),
            recycled_file_count: PerQueue::default(),
            log_entry_count: PerQueue::default(),
            swap_file_count: 0,
            memory_usage: 0,
            write_groups: self.led.groups.load(Relaxed),
            appended_bytes: self.bytes.look(),
            padding_bytes: self.padding.look(),
            syncs: self.syncs.look(),
            files_made: self.made.look(),
            files_spilled: self.spilled.look(),
            spill_dir_file_count: 0,
            dirs_stalled: 0,
            dir_stalls: self.stalls.load(Relaxed),
            dir_stalls_stayed: self.stalls_stayed.load(Relaxed),
            files_deleted: self.deleted.look(),
            files_written_over: self.written_over.load(Relaxed),
            files_spared: self.spared.load(Relaxed),
            filled_bytes: self.filled.load(Relaxed),
            purge_skips_busy: self.skips_busy.load(Relaxed),
            purge_skips_short: self.skips_short.load(Relaxed),
            purge_groups_moved: self.moved.load(Relaxed),
            purge_groups_returned: self.asked.load(Relaxed),
            read_cache_hits: self.cache_hits.load(Relaxed),
            read_cache_misses: self.cache_misses.load(Relaxed),
            read_cache_bytes: 0,
        }
    }
}

/// A number for each queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerQueue {
    /// Of the append queue.
    pub append: u64,
    /// Of the rewrite queue.
    pub rewrite: u64,
}

impl PerQueue {
    fn add(&mut self, other: Self) {
        self.append += other.append;
        self.rewrite += other.rewrite;
    }
}

/// How many values lie in which bucket, at one moment. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    bounds: &'static [f64],
    counts: Vec<u64>,
    small_sum: u64,
    per_unit: f64,
}

impl Distribution {
    /// The upper bounds of the buckets, but for the last one, which has none. A value that is equal to a bound lies below it.
    #[must_use]
    pub fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// How many values lie in each bucket; there is one more than bounds.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.small_sum as f64 / self.per_unit
    }

    /// Their mean, 0 if there are none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum() / self.count().max(1) as f64
    }

    fn add(&mut self, other: &Self) {
        for (own, other) in self.counts.iter_mut().zip(&other.counts) {
            *own += other;
        }
        self.small_sum += other.small_sum;
    }
}

/// What an engine, or all of a process, has counted since it was opened, and what it has at this moment.
///
/// Times, and [`Self::read_entry_count`], of unsynced writes and of reads are those of one in [`SAMPLE_EVERY`] calls of a
/// thread, which count for all of them: their counts are near the number of calls. All else is exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Seconds of writes, from the call to its end. Sampled if unsynced.
    pub write_duration: Distribution,
    /// Seconds of a write until its group is written: its record is made, it waits for its turn. Sampled if unsynced.
    pub write_preprocess_duration: Distribution,
    /// Seconds in which a group of writes was written, synced and applied. Sampled if nobody of the group syncs.
    pub write_leader_duration: Distribution,
    /// Seconds in which memory was told of the group of a write. Sampled if unsynced.
    pub write_apply_duration: Distribution,
    /// Bytes of the records of batches.
    pub write_size: Distribution,
    /// Stored bytes of entries for each raw one, of batches that were compressed.
    pub write_compression_ratio: Distribution,
    /// Seconds in which room for bytes to come was made.
    pub allocate_log_duration: Distribution,
    /// Seconds of syncs of files of both queues.
    pub sync_log_duration: Distribution,
    /// Seconds in which a full file was ended and the next one made.
    pub rotate_log_duration: Distribution,
    /// Seconds of reads of entries. Sampled.
    pub read_entry_duration: Distribution,
    /// Entries that a read gave. Sampled.
    pub read_entry_count: Distribution,
    /// Seconds of reads of keys. Sampled.
    pub read_message_duration: Distribution,
    /// Seconds of purges, those that had nothing to do included.
    pub purge_duration: Distribution,
    /// Seconds in which a purge emptied old files of the append queue.
    pub rewrite_append_duration: Distribution,
    /// Seconds in which a purge wrote the rewrite queue anew.
    pub rewrite_rewrite_duration: Distribution,
    /// Bytes of the records that a purge made of what was in the append queue.
    pub background_append_bytes: Distribution,
    /// Bytes of the records that a purge made of what was in the rewrite queue.
    pub background_rewrite_bytes: Distribution,
    /// Files.
    pub log_file_count: PerQueue,
    /// Spare files.
    pub recycled_file_count: PerQueue,
    /// Entries and keys that live, by where they lie.
    pub log_entry_count: PerQueue,
    /// Always 0: memory is not swapped to files of our own.
    pub swap_file_count: u64,
    /// Bytes of memory for places of entries, for keys and values, and for groups. Those of the nodes and tables that hold them
    /// are estimated.
    pub memory_usage: u64,
    /// Groups of writes that were written together; a write alone is one, too, and a sync without a batch is none.
    pub write_groups: u64,
    /// Bytes of records that were appended.
    pub appended_bytes: PerQueue,
    /// Bytes of zeros that were written behind records for [`Options::record_alignment`](crate::raw::Options::record_alignment).
    pub padding_bytes: PerQueue,
    /// Syncs of files, those of headers not included.
    pub syncs: PerQueue,
    /// Files that were made, those that were written over included.
    pub files_made: PerQueue,
    /// Files of those that were made in the second directory.
    pub files_spilled: PerQueue,
    /// Files of both queues that lie in the second directory.
    pub spill_dir_file_count: u64,
    /// First directories that stall, for which files are made in the second.
    pub dirs_stalled: u64,
    /// Times that one began to stall.
    pub dir_stalls: u64,
    /// Times that files went on to be made in it all the same, as none could be made in the second directory.
    pub dir_stalls_stayed: u64,
    /// Files that a purge deleted.
    pub files_deleted: PerQueue,
    /// Spare files that were taken to be written over.
    pub files_written_over: u64,
    /// Files that a purge emptied and kept as spare ones.
    pub files_spared: u64,
    /// Bytes of zeros that spare files were filled with before there were emptied ones.
    pub filled_bytes: u64,
    /// Purges that did nothing because another thread was at it.
    pub purge_skips_busy: u64,
    /// Purges that did nothing because neither queue was long enough, or had enough garbage.
    pub purge_skips_short: u64,
    /// Groups whose old entries or keys a purge moved; one counts for each purge.
    pub purge_groups_moved: u64,
    /// Groups that a purge returned to be compacted; one counts for each purge.
    pub purge_groups_returned: u64,
    /// Blocks of entries that reads found in the read cache. A read of entries that lie in one block looks for it once.
    pub read_cache_hits: u64,
    /// Blocks that they did not find there and had to read; 0 without a cache.
    pub read_cache_misses: u64,
    /// Bytes of memory that the read cache takes.
    pub read_cache_bytes: u64,
}

impl Metrics {
    /// Adds what another engine counted and has.
    pub fn add(&mut self, other: &Self) {
        self.add_counted(other);
        self.log_file_count.add(other.log_file_count);
        self.recycled_file_count.add(other.recycled_file_count);
        self.log_entry_count.add(other.log_entry_count);
        self.swap_file_count += other.swap_file_count;
        self.memory_usage += other.memory_usage;
        self.spill_dir_file_count += other.spill_dir_file_count;
        self.dirs_stalled += other.dirs_stalled;
        self.read_cache_bytes += other.read_cache_bytes;
    }

    /// Adds what another engine counted, and not what it has.
    pub(crate) fn add_counted(&mut self, other: &Self) {
        self.write_duration.add(&other.write_duration);
        self.write_preprocess_duration
            .add(&other.write_preprocess_duration);
        self.write_leader_duration.add(&other.write_leader_duration);
        self.write_apply_duration.add(&other.write_apply_duration);
        self.write_size.add(&other.write_size);
        self.write_compression_ratio
            .add(&other.write_compression_ratio);
        self.allocate_log_duration.add(&other.allocate_log_duration);
        self.sync_log_duration.add(&other.sync_log_duration);
        self.rotate_log_duration.add(&other.rotate_log_duration);
        self.read_entry_duration.add(&other.read_entry_duration);
        self.read_entry_count.add(&other.read_entry_count);
        self.read_message_duration.add(&other.read_message_duration);
        self.purge_duration.add(&other.purge_duration);
        self.rewrite_append_duration
            .add(&other.rewrite_append_duration);
        self.rewrite_rewrite_duration
            .add(&other.rewrite_rewrite_duration);
        self.background_append_bytes
            .add(&other.background_append_bytes);
        self.background_rewrite_bytes
            .add(&other.background_rewrite_bytes);
        self.write_groups += other.write_groups;
        self.appended_bytes.add(other.appended_bytes);
        self.padding_bytes.add(other.padding_bytes);
        self.syncs.add(other.syncs);
        self.files_made.add(other.files_made);
        self.files_spilled.add(other.files_spilled);
        self.dir_stalls += other.dir_stalls;
        self.dir_stalls_stayed += other.dir_stalls_stayed;
        self.files_deleted.add(other.files_deleted);
        self.files_written_over += other.files_written_over;
        self.files_spared += other.files_spared;
        self.filled_bytes += other.filled_bytes;
        self.purge_skips_busy += other.purge_skips_busy;
        self.purge_skips_short += other.purge_skips_short;
        self.purge_groups_moved += other.purge_groups_moved;
        self.purge_groups_returned += other.purge_groups_returned;
        self.read_cache_hits += other.read_cache_hits;
        self.read_cache_misses += other.read_cache_misses;
    }
}

#[cfg(test)]
mod tests;
