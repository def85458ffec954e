//! What an iterator counts: in plain numbers, added to the statistics when it ends.

use std::sync::Arc;

use orogen_base::Result;
use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::perf::{self, PerfCounter};

pub(super) struct Counts {
    statistics: Arc<Statistics>,
    seek: u64,
    seek_found: u64,
    next: u64,
    next_found: u64,
    prev: u64,
    prev_found: u64,
    bytes_read: u64,
    /// Internal entries that were passed without being shown.
    pub(super) skipped: u64,
}

impl Counts {
    pub(super) fn new(statistics: Arc<Statistics>) -> Self {
        statistics.add(Ticker::NoIteratorCreated, 1);
        Self {
            statistics,
            seek: 0,
            seek_found: 0,
            next: 0,
            next_found: 0,
            prev: 0,
            prev_found: 0,
            bytes_read: 0,
            skipped: 0,
        }
    }

    /// Adds to a ticker that seeks count, at once.
    pub(super) fn add(&self, ticker: Ticker, n: u64) {
        if n > 0 {
            self.statistics.add(ticker, n);
        }
    }

    /// Counts a merge that failed.
    pub(super) fn merged<V>(&self, result: Result<V>) -> Result<V> {
        if result.is_err() {
            self.statistics.add(Ticker::NumberMergeFailures, 1);
        }
        result
    }

    /// Counts an entry that was passed without being shown, for the reason that `counter` names.
    #[inline]
    pub(super) fn pass(&mut self, counter: PerfCounter) {
        self.skipped += 1;
        perf::add(counter, 1);
    }

    /// Counts a seek that found an entry of so many bytes.
    pub(super) fn seek(&mut self, found: Option<usize>) {
        if perf::is_enabled() {
            perf::add(PerfCounter::IterSeekCount, 1);
            perf::add(PerfCounter::IterReadBytes, found.unwrap_or(0) as u64);
        }
        self.seek += 1;
        self.seek_found += u64::from(found.is_some());
        self.bytes_read += found.unwrap_or(0) as u64;
    }

    #[inline]
    pub(super) fn next(&mut self, found: Option<usize>) {
        if perf::is_enabled() {
            note_move(PerfCounter::IterNextCount, found);
        }
        self.next += 1;
        self.next_found += u64::from(found.is_some());
        self.bytes_read += found.unwrap_or(0) as u64;
    }

    #[inline]
    pub(super) fn prev(&mut self, found: Option<usize>) {
        if perf::is_enabled() {
            note_move(PerfCounter::IterPrevCount, found);
        }
        self.prev += 1;
        self.prev_found += u64::from(found.is_some());
        self.bytes_read += found.unwrap_or(0) as u64;
    }
}

#[cold]
fn note_move(counter: PerfCounter, found: Option<usize>) {
    perf::add(counter, 1);
    // The entry that was left.
    perf::add(PerfCounter::InternalKeySkippedCount, 1);
    perf::add(PerfCounter::IterReadBytes, found.unwrap_or(0) as u64);
}

impl Drop for Counts {
    fn drop(&mut self) {
        for (ticker, n) in [
            (Ticker::NumberDbSeek, self.seek),
            (Ticker::NumberDbSeekFound, self.seek_found),
            (Ticker::NumberDbNext, self.next),
            (Ticker::NumberDbNextFound, self.next_found),
            (Ticker::NumberDbPrev, self.prev),
            (Ticker::NumberDbPrevFound, self.prev_found),
            (Ticker::IterBytesRead, self.bytes_read),
            (Ticker::NumberIterSkip, self.skipped),
        ] {
            if n > 0 {
                self.statistics.add(ticker, n);
            }
        }
    }
}
