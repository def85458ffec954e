//! Paces writers to the flush that their next memtable will wait for.
//!
//! A family has room for so many memtables. When the last of them is written to while an older
//! one is on its way to disk, writers that are faster than the flush would meet a wall: they
//! fill it, and wait as long as the flush still takes, tenths of a second. Instead they pause a
//! little after every step of the memtable's second half, so that it gets full about when the
//! flush is done; what they wait in all is the same. The idea is that of a gear between the
//! levels of a tree (Sears, Ramakrishnan: bLSM, SIGMOD 2012).
//!
//! ```text
//!   a step may take  = time that the flush still takes * bytes of a step / bytes left
//!   pause            = that - what the last step took without its pause
//! ```
//!
//! A step is a 64th of that half, or 64 entries where these are more, but an eighth at most: where one thread writes values of up to some 128 KiB into 64 MiB, one by one, 99 of
//! 100 writes wait for nothing, and the others somewhat longer. Of long entries it is 256 entries, a quarter at most: of each memtable few are written, and
//! half a millisecond behind each 16th value of 32 KiB would be what 3 of 100 writes take. Steps are shorter where a pause would be longer than the longest, and
//! a 64th where there is nothing to pause for: what begins then is to be met soon.
//! Of entries that long a memtable gets full somewhat *after* the flush is done, so that the next one has the memory of the one that
//! was flushed: a new huge page, which the writer would fill with zeros, is met by one of 100 writes then, or more.
//!
//! The first half is not paced: bursts that fit into it are taken as fast as they come. Where
//! nothing is known of the flush, the first one before it has got anywhere, nobody is paced; nor is a
//! writer that asked for `no_slowdown`.
//!
//! `Hot path`: a writer compares the memtable's bytes with one bound, as it would to find it
//! full; all else is done once a step, by the leader.

use std::sync::Arc;

use orogen_base::sync::Mutex;
use orogen_env::memory::HUGE_PAGE_LEN;

/// Steps that the paced half of a memtable is divided into, at most.
const STEPS: u64 = 64;
/// Entries of a step, and steps that there are at least; the same of long entries.
const STEP_ENTRIES: (u64, u64) = (64, 8);
const STEP_LONG_ENTRIES: (u64, u64) = (256, 4);
/// A shorter pause is not worth a sleep.
const PAUSE_MICROS_MIN: u64 = 100;
/// However long the flush still takes, one pause is no longer. Steps get shorter before pauses are cut.
const PAUSE_MICROS_MAX: u64 = 20_000;
/// Entries are long if no more than so many are in a huge page.
const LONG_ENTRIES: u64 = 128;
/// How much later than a flush is done a memtable of long entries is to be full: what a thread may wait for a processor between its
/// flush and letting go of its memory. Once the flush is done nobody pauses for it any more. Of a flush's own time no more than a share of it, because that is what writers lose.
const MARGIN_MICROS: u64 = 4_000;
const MARGIN_SHARE: u64 = 16;
/// A flush is known by its own progress from this share on, and by the one before until then.
const SHARE_KNOWN: f64 = 1.0 / 16.0;

/// Bytes at which a memtable is first looked at.
pub(crate) fn first_look(full_at: u64) -> u64 {
    full_at / 2
}

fn is_long(entry_bytes: u64) -> bool {
    entry_bytes >= HUGE_PAGE_LEN as u64 / LONG_ENTRIES
}

/// Bytes between two looks, where an entry takes `entry_bytes`, and `left` are written until a flush is done that still
/// takes `flush` microseconds: fewer where pauses would be too long else.
fn step(full_at: u64, entry_bytes: u64, left: u64, flush: u64) -> u64 {
    let paced = full_at / 2;
    if flush == 0 {
        // Nobody pauses, and one may begin.
        return (paced / STEPS).max(1);
    }
    let (entries, steps_min) = match is_long(entry_bytes) {
        true => STEP_LONG_ENTRIES,
        false => STEP_ENTRIES,
    };
    let coarse = entry_bytes
        .saturating_mul(entries)
        .clamp(paced / STEPS, paced / steps_min);
    let of_longest_pause = left.saturating_mul(PAUSE_MICROS_MAX) / flush.max(1);
    coarse.min(of_longest_pause.max(paced / STEPS)).max(1)
}

/// What a leader finds when it looks at a memtable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Bytes until the next look.
    step: u64,
    /// Bytes until it is full.
    left: u64,
    /// Microseconds since the last look, or since the pause behind it.
    took: u64,
    /// And until it is to be full.
    flush: u64,
}

/// Microseconds that a flush still takes, and how much later a memtable of long entries is to be full. None of either if there
/// is nothing to wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlushLeft {
    pub(crate) micros: u64,
    pub(crate) margin: u64,
}

impl Look {
    /// Of a memtable that has so many entries, `used` bytes in all.
    pub(crate) fn new(used: u64, entries: u64, full_at: u64, took: u64, flush: FlushLeft) -> Self {
        let left = full_at.saturating_sub(used);
        let entry_bytes = used / entries.max(1);
        let margin = match is_long(entry_bytes) {
            true => flush.margin,
            false => 0,
        };
        let flush = flush.micros.saturating_add(margin);
        Self {
            step: step(full_at, entry_bytes, left, flush),
            left,
            took,
            flush,
        }
    }

    /// Bytes at which the next look is due.
    pub(crate) fn next_at(&self, used: u64) -> u64 {
        used + self.step.min(self.left)
    }

    /// Microseconds to pause now.
    pub(crate) fn pause(&self) -> u64 {
        let share = self.step.min(self.left) as f64 / self.left.max(1) as f64;
        match ((self.flush as f64 * share) as u64).saturating_sub(self.took) {
            ..PAUSE_MICROS_MIN => 0,
            pause => pause.min(PAUSE_MICROS_MAX),
        }
    }
}

/// What counts the entries of a flush.
pub(crate) trait CountsEntries: Send + Sync {
    /// Entries that are written.
    fn done(&self) -> u64;

    /// Entries in all.
    fn total(&self) -> u64;
}

/// How far the flush of a family is. Leaf lock.
#[derive(Default)]
pub(crate) struct FlushProgress(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    running: Option<Running>,
    /// What the last flush took for each entry, and after the last one.
    micros_per_entry: f64,
    micros_after: f64,
    /// What writers have paused since the last flush ended.
    paused_micros: u64,
    /// When that was; 0 if there was none.
    ended: u64,
}

struct Running {
    began: u64,
    entries: Arc<dyn CountsEntries>,
    /// When its last entry was written.
    written: Option<u64>,
}

impl FlushProgress {
    /// A flush begins.
    pub(crate) fn begin(&self, entries: Arc<dyn CountsEntries>, now: u64) {
        self.0.lock().running = Some(Running {
            began: now,
            entries,
            written: None,
        });
    }

    /// All its entries are in tables.
    pub(crate) fn written(&self, now: u64) {
        if let Some(running) = &mut self.0.lock().running {
            running.written = Some(now);
        }
    }

    /// It has ended, well or not.
    pub(crate) fn end(&self, now: u64) {
        let mut progress = self.0.lock();
        progress.ended = now;
        if let Some(running) = progress.running.take()
            && let Some(written) = running.written
        {
            let entries = running.entries.total().max(1) as f64;
            progress.micros_per_entry = written.saturating_sub(running.began) as f64 / entries;
            progress.micros_after = now.saturating_sub(written) as f64;
        }
    }

    /// What the flush that runs still takes; `None` if there is none, or nothing to tell by.
    pub(crate) fn left(&self, now: u64) -> Option<FlushLeft> {
        let progress = self.0.lock();
        let running = progress.running.as_ref()?;
        let after = progress.micros_after;
        let left = |micros: f64| {
            let micros = micros.max(0.0) as u64;
            let whole = now.saturating_sub(running.began) + micros;
            FlushLeft {
                micros,
                margin: MARGIN_MICROS.min(whole / MARGIN_SHARE),
            }
        };
        if let Some(written) = running.written {
            return Some(left(after - now.saturating_sub(written) as f64));
        }
        let total = running.entries.total() as f64;
        let done = running.entries.done() as f64;
        let each = if done > 0.0 && done >= total * SHARE_KNOWN {
            now.saturating_sub(running.began) as f64 / done
        } else if progress.micros_per_entry > 0.0 {
            progress.micros_per_entry
        } else {
            return None;
        };
        Some(left((total - done) * each + after))
    }

    /// When the last flush ended, `now` if one runs; 0 if there was none.
    pub(crate) fn last_end(&self, now: u64) -> u64 {
        let progress = self.0.lock();
        match progress.running {
            Some(_) => now,
            None => progress.ended,
        }
    }

    /// Notes that writers pause for it.
    pub(crate) fn note_pause(&self, micros: u64) {
        self.0.lock().paused_micros += micros;
    }

    /// What writers have paused since this was last asked, for a line of the log.
    pub(crate) fn take_paused(&self) -> u64 {
        std::mem::take(&mut self.0.lock().paused_micros)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;

    struct Entries(AtomicU64, u64);

    impl CountsEntries for Entries {
        fn done(&self) -> u64 {
            self.0.load(Relaxed)
        }

        fn total(&self) -> u64 {
            self.1
        }
    }

    fn entries(total: u64) -> Arc<Entries> {
        Arc::new(Entries(AtomicU64::new(0), total))
    }

    fn without_margin(micros: u64) -> FlushLeft {
        FlushLeft { micros, margin: 0 }
    }

    #[test]
    fn what_a_flush_still_takes_is_told_by_itself_or_by_the_last() {
        let progress = FlushProgress::default();
        let left = |now| progress.left(now).map(|left| left.micros);
        assert_eq!(left(0), None);
        let first = entries(1600);
        progress.begin(first.clone(), 1000);
        first.0.store(99, Relaxed);
        assert_eq!(left(2000), None, "too little to tell");
        first.0.store(400, Relaxed);
        assert_eq!(left(2000), Some(3000));
        first.0.store(1600, Relaxed);
        progress.written(4200);
        assert_eq!(left(4300), Some(0));
        assert_eq!(progress.last_end(4600), 4600, "it runs");
        progress.end(4700);
        assert_eq!(progress.last_end(4800), 4700);
        assert_eq!(left(4700), None);
        progress.begin(entries(100), 5000);
        assert_eq!(left(5100), Some(200 + 500));
        progress.written(5400);
        assert_eq!(left(5600), Some(300));
        progress.end(5700);
        // One that failed tells nothing.
        progress.begin(entries(100), 6000);
        progress.end(9000);
        progress.begin(entries(100), 9000);
        assert_eq!(left(9000), Some(400 + 300));
    }

    #[test]
    fn a_memtable_gets_full_when_its_flush_is_done() {
        let (full_at, flush_done) = (64_000, 100_000);
        // Bytes in a microsecond without pauses, and when it gets full.
        for (speed, expected) in [(0.2, 160_000), (1.0, 100_000), (50.0, 100_000)] {
            let (mut used, mut now, mut resumed) = (first_look(full_at), 0_u64, 0);
            let mut longest = 0;
            while used < full_at {
                let flush = flush_done - now.min(flush_done);
                let look = Look::new(used, used, full_at, now - resumed, without_margin(flush));
                let pause = look.pause();
                longest = longest.max(pause);
                resumed = now + pause;
                let next = look.next_at(used);
                now = resumed + ((next - used) as f64 / speed) as u64;
                used = next;
            }
            assert!(now.abs_diff(expected) < 2000, "{speed}: {now}");
            assert!(longest < 3000, "{speed}: {longest}");
        }
    }

    #[test]
    fn a_memtable_of_long_entries_gets_full_when_the_one_before_it_has_gone() {
        let full_at: u64 = 64 << 20;
        for (flush_took, margin) in [(100_000, 4000), (300_000, 4000), (16_000, 1000)] {
            let progress = FlushProgress::default();
            progress.begin(entries(flush_took), 0);
            progress.written(flush_took);
            progress.end(flush_took);
            let began = flush_took;
            progress.begin(entries(flush_took), began);
            let flush = progress.left(began).unwrap();
            assert_eq!((flush.micros, flush.margin), (flush_took, margin));
            // Of a writer that takes no time itself.
            let until_full = |entry_bytes| {
                let (mut used, mut paused) = (first_look(full_at), 0);
                while used < full_at {
                    let left = flush.micros.saturating_sub(paused);
                    let late = paused - paused.min(flush.micros);
                    let flush = FlushLeft {
                        micros: left,
                        margin: flush.margin.saturating_sub(late),
                    };
                    let look = Look::new(used, used / entry_bytes, full_at, 0, flush);
                    paused += look.pause();
                    used = look.next_at(used);
                }
                paused
            };
            let waits = |entry_bytes, micros: u64| {
                let until_full = until_full(entry_bytes);
                assert!(
                    until_full.abs_diff(micros) < 64,
                    "{until_full} for {micros}"
                );
            };
            waits(16 << 10, flush_took + margin);
            waits(15 << 10, flush_took);
            // And when it takes longer than was thought.
            progress.written(began + flush_took);
            let flush = progress.left(began + flush_took + 500).unwrap();
            assert_eq!(flush.micros, 0);
            assert!(flush.margin >= margin, "{}", flush.margin);
        }
    }

    #[test]
    fn steps_are_fewer_where_values_are_long() {
        let full_at = 64 << 20;
        let steps_beside = |entry_bytes: u64, flush| {
            let mut used = first_look(full_at);
            let looks = std::iter::from_fn(|| {
                let look = Look::new(used, used / entry_bytes, full_at, 0, flush);
                used = look.next_at(used);
                (used < full_at).then_some(())
            });
            1 + looks.count() as u64
        };
        // What begins behind a look is seen by the next one.
        assert_eq!(steps_beside(1 << 20, FlushLeft::default()), STEPS);
        let steps = |entry_bytes| steps_beside(entry_bytes, without_margin(10_000));
        assert_eq!(steps(100), STEPS);
        assert_eq!(steps(4 << 10), STEPS);
        assert_eq!(steps(8 << 10), STEPS);
        assert_eq!(steps(15 << 10), 35);
        assert_eq!(steps(16 << 10), 8);
        assert_eq!(steps(32 << 10), 4);
        assert_eq!(steps(64 << 10), 4);
        assert_eq!(steps(1 << 20), 4);
    }

    /// A leader looks when an entry has passed the bound.
    #[test]
    fn entries_that_pass_the_bounds_do_not_shorten_the_last_step() {
        let (full_at, flush_done) = (64 << 20, 75_000_u64);
        for entry_bytes in [4 << 10, 16 << 10, 33_000, 40_000, 65_600, 131_200] {
            let entries_until = |bytes: u64| bytes.div_ceil(entry_bytes) * entry_bytes;
            let (mut used, mut now) = (entries_until(first_look(full_at)), 0);
            let (mut resumed, mut longest) = (0, 0);
            while used < full_at {
                let flush = without_margin(flush_done.saturating_sub(now));
                let look = Look::new(used, used / entry_bytes, full_at, now - resumed, flush);
                let pause = look.pause();
                longest = longest.max(pause);
                resumed = now + pause;
                let next = entries_until(look.next_at(used)).max(used + entry_bytes);
                now = resumed + (next - used) / 1200;
                used = next;
            }
            assert!(now.abs_diff(flush_done) < 1500, "{entry_bytes}: {now}");
            assert!(longest <= PAUSE_MICROS_MAX, "{entry_bytes}: {longest}");
        }
    }

    #[test]
    fn a_slow_flush_stops_nobody_however_long_values_are() {
        let full_at: u64 = 64 << 20;
        // 1,000 bytes in a microsecond are no limit.
        for entry_bytes in [100, 4 << 10, 32 << 10, 64 << 10, 1 << 20] {
            for flush_done in [100_000, 250_000, 500_000, 1_000_000_u64] {
                let (mut used, mut now, mut resumed) = (first_look(full_at), 0_u64, 0);
                let mut longest = 0;
                while used < full_at {
                    let flush = flush_done - now.min(flush_done);
                    let entries = used / entry_bytes;
                    let look =
                        Look::new(used, entries, full_at, now - resumed, without_margin(flush));
                    let pause = look.pause();
                    longest = longest.max(pause);
                    resumed = now + pause;
                    let next = look.next_at(used).max(used + entry_bytes);
                    now = resumed + (next - used) / 1000;
                    used = next;
                }
                // Behind each entry there is one pause at most.
                let most = full_at / 2 / entry_bytes * PAUSE_MICROS_MAX;
                let paced = now + 30_000 > flush_done.min(most);
                assert!(paced, "{entry_bytes}, {flush_done}: {now}");
                assert!(longest <= PAUSE_MICROS_MAX, "{longest}");
            }
        }
    }

    #[test]
    fn one_pause_is_bounded() {
        let look = Look::new(99, 200, 100, 0, without_margin(u64::MAX));
        assert_eq!(look.pause(), PAUSE_MICROS_MAX);
        assert_eq!(look.next_at(99), 100);
        let over_full = Look::new(200, 400, 100, 0, FlushLeft::default());
        assert_eq!(over_full.next_at(200), 200);
        let short = Look::new(50, 100, 100, 0, without_margin(50 * 90));
        assert_eq!(short.pause(), 0);
    }
}
