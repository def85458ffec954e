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
mod told;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orogen_env::Stopwatch;

use crate::names::Queue;
use crate::perf::PerfContext;

pub use told::{Distribution, Metrics, PerQueue};

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
            groups_fenced: 0,
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

#[cfg(test)]
mod tests;
