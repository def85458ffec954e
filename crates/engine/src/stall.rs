//! Slows or stops writers when the debts of flush and compaction grow, and says why.
//!
//! Each family's condition follows from three debts: sealed memtables, files in level 0, bytes
//! that compactions owe. Between a debt's slowdown and its stop the rate falls smoothly from
//! `delayed_write_rate` to a sixteenth of it, so that writers meet a slope and not a wall; they
//! stop only at the stop trigger. The worst family decides for all (per-family admission is not
//! there yet). Listeners and the info LOG are told of each change with its cause.
//!
//! `Hot path`: an unhindered writer reads one atomic.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use orogen_base::metrics::{HistogramKind, Statistics, Ticker};
use orogen_env::Clock;
use parking_lot::{Condvar, Mutex};

use crate::events::{StallCondition, StallInfo};
use crate::options::ColumnFamilyOptions;

/// A family's debts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debts {
    pub(crate) sealed_memtables: usize,
    pub(crate) level0_files: usize,
    pub(crate) pending_compaction_bytes: u64,
}

/// How a family holds writers back.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) condition: StallCondition,
    /// Share of `delayed_write_rate` that is allowed, 1/16 to 1.
    pub(crate) share: f64,
    pub(crate) cause: String,
}

/// What the debts of a family call for.
pub(crate) fn judge(options: &ColumnFamilyOptions, debts: Debts) -> Verdict {
    let compacts = !options.disable_auto_compactions;
    let limits = [
        (
            "sealed memtables",
            debts.sealed_memtables as u64,
            if options.max_write_buffer_number > 3 {
                options.max_write_buffer_number as u64 - 1
            } else {
                u64::MAX
            },
            options.max_write_buffer_number as u64,
            true,
        ),
        (
            "level-0 files",
            debts.level0_files as u64,
            options.level0_slowdown_writes_trigger as u64,
            options.level0_stop_writes_trigger as u64,
            compacts,
        ),
        (
            "pending compaction bytes",
            debts.pending_compaction_bytes,
            options.soft_pending_compaction_bytes_limit,
            options.hard_pending_compaction_bytes_limit,
            compacts,
        ),
    ];
    let mut worst = Verdict {
        share: 1.0,
        ..Verdict::default()
    };
    for (what, now, slowdown, stop, counts) in limits {
        if !counts {
            continue;
        }
        if stop > 0 && now >= stop {
            return Verdict {
                condition: StallCondition::Stopped,
                share: 0.0,
                cause: format!("{what}: {now} >= {stop}"),
            };
        }
        if slowdown > 0 && now >= slowdown {
            // Without a stop there is no slope either.
            let slope = stop.saturating_sub(slowdown);
            let depth = match slope {
                0 => 0.0,
                slope => (now - slowdown) as f64 / slope as f64,
            };
            let share = (1.0 - depth).powi(2).max(1.0 / 16.0);
            if worst.condition == StallCondition::Normal || share < worst.share {
                worst = Verdict {
                    condition: StallCondition::Delayed,
                    share,
                    cause: format!("{what}: {now} >= {slowdown}"),
                };
            }
        }
    }
    worst
}

const NORMAL: u8 = 0;
const DELAYED: u8 = 1;
const STOPPED: u8 = 2;

/// A delay is slept when it has grown to this.
const SLEEP_MICROS_MIN: u64 = 1000;
/// One writer sleeps no longer at a time, whatever the group before wrote.
const SLEEP_MICROS_MAX: u64 = 1_000_000;

/// Holds the write leader back.
pub(crate) struct StallController {
    state: AtomicU8,
    rate_bytes_per_sec: AtomicU64,
    /// When the bytes written so far are paid for at the rate.
    due_micros: AtomicU64,
    delayed_write_rate: u64,
    /// Leaf lock.
    verdicts: Mutex<Verdicts>,
    changed: Condvar,
}

#[derive(Default)]
struct Verdicts {
    by_family: BTreeMap<u32, (String, Verdict)>,
    released: bool,
}

impl StallController {
    pub(crate) fn new(delayed_write_rate: u64) -> Self {
        Self {
            state: AtomicU8::new(NORMAL),
            rate_bytes_per_sec: AtomicU64::new(delayed_write_rate),
            due_micros: AtomicU64::new(0),
            delayed_write_rate: delayed_write_rate.max(16),
            verdicts: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes a family's new verdict; tells what has changed for listeners.
    pub(crate) fn set(
        &self,
        family: u32,
        name: &str,
        verdict: Option<Verdict>,
    ) -> Option<StallInfo> {
        let mut verdicts = self.verdicts.lock();
        let before = verdicts
            .by_family
            .get(&family)
            .map(|(_, v)| v.condition)
            .unwrap_or_default();
        let (condition, cause) = match verdict {
            Some(v) => {
                let told = (v.condition, v.cause.clone());
                verdicts.by_family.insert(family, (name.to_owned(), v));
                told
            }
            None => {
                verdicts.by_family.remove(&family);
                (StallCondition::Normal, String::new())
            }
        };
        let mut state = NORMAL;
        let mut share = 1.0f64;
        for (_, v) in verdicts.by_family.values() {
            match v.condition {
                StallCondition::Normal => {}
                StallCondition::Delayed => {
                    state = state.max(DELAYED);
                    share = share.min(v.share);
                }
                StallCondition::Stopped => state = STOPPED,
            }
        }
        self.rate_bytes_per_sec.store(
            (self.delayed_write_rate as f64 * share).max(16.0) as u64,
            Relaxed,
        );
        self.state.store(state, Relaxed);
        self.changed.notify_all();
        (condition != before).then(|| StallInfo {
            column_family: name.to_owned(),
            condition,
            cause,
        })
    }

    /// True if a writer would be held back.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.state.load(Relaxed) != NORMAL
    }

    /// What holds now and why, for properties.
    pub(crate) fn current(&self) -> (StallCondition, u64, String) {
        let condition = match self.state.load(Relaxed) {
            NORMAL => StallCondition::Normal,
            DELAYED => StallCondition::Delayed,
            _ => StallCondition::Stopped,
        };
        let verdicts = self.verdicts.lock();
        let cause = verdicts
            .by_family
            .values()
            .filter(|(_, v)| v.condition == condition);
        let cause = cause
            .map(|(name, v)| format!("[{name}] {}", v.cause))
            .next();
        let cause = cause
            .filter(|_| condition != StallCondition::Normal)
            .unwrap_or_default();
        (condition, self.rate_bytes_per_sec.load(Relaxed), cause)
    }

    /// Lets every writer through for good: the database closes or has failed.
    pub(crate) fn release(&self) {
        let mut verdicts = self.verdicts.lock();
        verdicts.released = true;
        self.state.store(NORMAL, Relaxed);
        self.changed.notify_all();
    }

    /// Waits as long as the debts, and what was written before, ask for.
    ///
    /// Short waits add up until they are worth a sleep: a sleep of microseconds takes far longer.
    #[cold]
    pub(crate) fn wait(&self, clock: &dyn Clock, statistics: &Statistics) {
        let start = clock.now_micros();
        let mut verdicts = self.verdicts.lock();
        while !verdicts.released && self.state.load(Relaxed) == STOPPED {
            self.changed.wait(&mut verdicts);
        }
        let delayed = !verdicts.released && self.state.load(Relaxed) == DELAYED;
        drop(verdicts);
        let ahead = self
            .due_micros
            .load(Relaxed)
            .saturating_sub(clock.now_micros());
        if delayed && ahead >= SLEEP_MICROS_MIN {
            clock.sleep(Duration::from_micros(ahead.min(SLEEP_MICROS_MAX)));
        }
        let micros = clock.now_micros().saturating_sub(start);
        statistics.add(Ticker::StallMicros, micros);
        statistics.record(HistogramKind::WriteStall, micros);
    }

    /// Notes that `bytes` are written while writers are slowed. Only the leader calls it.
    #[cold]
    pub(crate) fn charge(&self, bytes: u64, clock: &dyn Clock) {
        let rate = self.rate_bytes_per_sec.load(Relaxed).max(16);
        let due = self.due_micros.load(Relaxed).max(clock.now_micros());
        self.due_micros
            .store(due.saturating_add(bytes * 1_000_000 / rate), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_falls_smoothly_and_stops_at_the_trigger() {
        let options = ColumnFamilyOptions::default();
        let at = |level0_files| {
            judge(
                &options,
                Debts {
                    level0_files,
                    ..Debts::default()
                },
            )
        };
        assert_eq!(at(19).condition, StallCondition::Normal);
        assert_eq!(at(36).condition, StallCondition::Stopped);
        let mut share = 1.1;
        for n in 20..36 {
            let v = at(n);
            assert_eq!(v.condition, StallCondition::Delayed);
            assert!(v.share <= share && v.cause.contains("level-0 files"));
            share = v.share;
        }
    }

    #[test]
    fn delayed_writers_get_the_rate() {
        use orogen_env::ManualClock;
        let stall = StallController::new(1_000_000);
        let slow = Verdict {
            condition: StallCondition::Delayed,
            share: 0.5,
            cause: "x".to_owned(),
        };
        stall.set(1, "a", Some(slow));
        let (clock, statistics) = (ManualClock::new(), Statistics::new());
        let start = clock.now_micros();
        for _ in 0..10_000 {
            stall.wait(&clock, &statistics);
            stall.charge(100, &clock);
        }
        let seconds = (clock.now_micros() - start) as f64 / 1e6;
        assert!((1.9..=2.0).contains(&seconds), "{seconds}");
    }

    #[test]
    fn the_worst_family_decides() {
        let stall = StallController::new(1000);
        let stopped = Verdict {
            condition: StallCondition::Stopped,
            share: 0.0,
            cause: "x".to_owned(),
        };
        assert!(stall.set(1, "a", Some(stopped)).is_some());
        assert!(
            stall
                .set(
                    2,
                    "b",
                    Some(Verdict {
                        share: 1.0,
                        ..Verdict::default()
                    })
                )
                .is_none()
        );
        assert_eq!(stall.current().0, StallCondition::Stopped);
        assert!(stall.set(1, "a", None).is_some());
        assert!(!stall.is_stalled());
    }
}
