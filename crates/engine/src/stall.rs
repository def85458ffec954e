//! Slows or stops writers when the debts of flush and compaction grow, and says why.
//!
//! Each family's condition follows from three debts: sealed memtables, files in level 0, bytes
//! that compactions owe. Between a debt's slowdown and its stop the rate falls smoothly from
//! `delayed_write_rate` to a sixteenth of it, so that writers meet a slope and not a wall; they
//! stop only at the stop trigger. Listeners and the info LOG are told of each change with its
//! cause.
//!
//! Before a memtable's worth of writes would meet that stop, writers pause a little now and then
//! ([`crate::pace`]).
//!
//! A writer waits for the families that its batch names, and for no other; it waits before it
//! queues up, so that it is in nobody's way. Each family has a rate of its own, and whoever
//! writes to it takes the next free stretch of time at that rate.
//!
//! `Hot path`: while no family holds anybody back, a writer reads one atomic.

use std::collections::BTreeMap;
use std::time::Duration;

use orogen_base::metrics::{HistogramKind, Statistics, Ticker};
use orogen_base::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use orogen_base::sync::{Condvar, Mutex};
use orogen_env::Clock;

use crate::events::{StallCondition, StallInfo};
use crate::options::ColumnFamilyOptions;

/// A family's debts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debts {
    pub(crate) sealed_memtables: usize,
    pub(crate) level0_files: usize,
    pub(crate) pending_compaction_bytes: u64,
    /// Bytes that blob files take, and the most that they may; while they can come back only.
    pub(crate) blob_space: Option<(u64, u64)>,
}

/// How a family holds writers back.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) condition: StallCondition,
    /// Share of `delayed_write_rate` that is allowed, 1/16 to 1.
    pub(crate) share: f64,
    pub(crate) cause: String,
    /// Only a compaction can end it.
    pub(crate) awaits_compaction: bool,
}

const SEALED_MEMTABLES: &str = "sealed memtables";

/// Why writers pause where no debt slows them (pace.rs).
const PACED: &str = "paced to a flush that the next memtable will wait for";

/// What the debts of a family call for.
pub(crate) fn judge(options: &ColumnFamilyOptions, debts: Debts) -> Verdict {
    let compacts = !options.disable_auto_compactions;
    let limits = [
        (
            SEALED_MEMTABLES,
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
                awaits_compaction: what != SEALED_MEMTABLES,
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
                    awaits_compaction: what != SEALED_MEMTABLES,
                };
            }
        }
    }
    // Never stopped for: garbage makes nothing slower, and writers may write over what is small.
    if let Some((now, most)) = debts.blob_space
        && now >= most
    {
        let depth = ((now - most) as f64 / most.max(1) as f64).min(1.0);
        let share = (1.0 - depth).powi(2).max(1.0 / 16.0);
        if worst.condition == StallCondition::Normal || share < worst.share {
            worst = Verdict {
                condition: StallCondition::Delayed,
                share,
                cause: format!("bytes of blob files: {now} >= {most}"),
                awaits_compaction: true,
            };
        }
    }
    worst
}

const NORMAL: u8 = 0;
const DELAYED: u8 = 1;
const STOPPED: u8 = 2;

/// A delay is slept when it has grown to this.
const SLEEP_MICROS_MIN: u64 = 1000;
/// One writer sleeps no longer at a time, whatever was written before.
const SLEEP_MICROS_MAX: u64 = 1_000_000;

/// What becomes of a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It may go on.
    Admitted,
    /// It would be held back, and must not wait.
    WouldWait(String),
    /// It would wait for compactions that find no space.
    InVain(String),
}

/// Holds writers back.
pub(crate) struct StallController {
    state: AtomicU8,
    delayed_write_rate: AtomicU64,
    /// Leaf lock.
    verdicts: Mutex<Verdicts>,
    changed: Condvar,
}

struct Held {
    name: String,
    verdict: Verdict,
    /// When the bytes written so far are paid for at the family's rate.
    due_micros: u64,
    /// Writers pause until then, for the flush that they would wait for.
    paused_until: u64,
}

#[derive(Default)]
struct Verdicts {
    by_family: BTreeMap<u32, Held>,
    released: bool,
    /// Writers are refused for now: none waits.
    refusing: bool,
    /// Compactions find no space.
    stuck: bool,
}

impl Verdicts {
    fn held(&mut self, family: u32, name: &str) -> &mut Held {
        self.by_family.entry(family).or_insert_with(|| Held {
            name: name.to_owned(),
            verdict: Verdict {
                share: 1.0,
                ..Verdict::default()
            },
            due_micros: 0,
            paused_until: 0,
        })
    }

    /// What a writer finds without the lock.
    fn state(&self) -> u8 {
        let states = self.by_family.values().map(|h| match h.verdict.condition {
            StallCondition::Normal if h.paused_until == 0 => NORMAL,
            StallCondition::Normal | StallCondition::Delayed => DELAYED,
            StallCondition::Stopped => STOPPED,
        });
        states.max().unwrap_or(NORMAL)
    }

    /// Microseconds that writers of some families are to pause. Ends the pauses that are over, of all families: nobody may write
    /// to this one any more.
    fn pause_left(&mut self, families: &[u32], now: u64) -> u64 {
        let mut longest = 0;
        for (id, held) in &mut self.by_family {
            if held.paused_until <= now {
                held.paused_until = 0;
                continue;
            }
            if families.contains(id) {
                longest = longest.max(held.paused_until - now);
            }
        }
        longest
    }

    /// A family whose writers pause.
    fn paused(&self, family: Option<u32>) -> Option<&Held> {
        let mut all = self.by_family.iter();
        all.find(|(id, held)| held.paused_until > 0 && family.is_none_or(|f| f == **id))
            .map(|(_, held)| held)
    }

    /// The worst of some families, or of all, if any holds writers back.
    fn worst(&self, families: Option<&[u32]>) -> Option<&Held> {
        if self.released || self.refusing {
            return None;
        }
        let concerned = self
            .by_family
            .iter()
            .filter(|(id, _)| families.is_none_or(|all| all.contains(id)));
        concerned
            .map(|(_, held)| held)
            .filter(|held| held.verdict.condition != StallCondition::Normal)
            .min_by(|a, b| a.verdict.share.total_cmp(&b.verdict.share))
    }
}

fn cause_of(held: &Held) -> String {
    format!("[{}] {}", held.name, held.verdict.cause)
}

impl StallController {
    pub(crate) fn new(delayed_write_rate: u64) -> Self {
        Self {
            state: AtomicU8::new(NORMAL),
            delayed_write_rate: AtomicU64::new(delayed_write_rate.max(16)),
            verdicts: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes another rate for the writers to come.
    pub(crate) fn set_delayed_write_rate(&self, bytes_per_sec: u64) {
        self.delayed_write_rate
            .store(bytes_per_sec.max(16), Relaxed);
    }

    fn rate(&self, verdict: &Verdict) -> u64 {
        (self.delayed_write_rate.load(Relaxed) as f64 * verdict.share).max(16.0) as u64
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
            .map(|held| held.verdict.condition)
            .unwrap_or_default();
        let (condition, cause) = match verdict {
            Some(v) => {
                let told = (v.condition, v.cause.clone());
                verdicts.held(family, name).verdict = v;
                told
            }
            None => {
                verdicts.by_family.remove(&family);
                (StallCondition::Normal, String::new())
            }
        };
        self.state.store(verdicts.state(), Relaxed);
        self.changed.notify_all();
        (condition != before).then(|| StallInfo {
            column_family: name.to_owned(),
            condition,
            cause,
        })
    }

    /// Has writers of a family pause until `micros`.
    pub(crate) fn pause(&self, family: u32, name: &str, micros: u64) {
        let mut verdicts = self.verdicts.lock();
        if verdicts.released {
            return;
        }
        verdicts.held(family, name).paused_until = micros;
        self.state.store(verdicts.state(), Relaxed);
    }

    /// Ends the pause of a family: what it was for has ended.
    pub(crate) fn end_pause(&self, family: u32) {
        let mut verdicts = self.verdicts.lock();
        if let Some(held) = verdicts.by_family.get_mut(&family) {
            held.paused_until = 0;
            self.state.store(verdicts.state(), Relaxed);
        }
    }

    /// True if writers of some family would be held back.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.state.load(Relaxed) != NORMAL
    }

    /// What holds now for the family that is worst off, its rate, and why, for properties.
    pub(crate) fn current(&self) -> (StallCondition, u64, String) {
        let verdicts = self.verdicts.lock();
        match verdicts.worst(None) {
            None => (
                StallCondition::Normal,
                self.delayed_write_rate.load(Relaxed),
                verdicts
                    .paused(None)
                    .map_or_else(String::new, |held| format!("[{}] {PACED}", held.name)),
            ),
            Some(held) => (
                held.verdict.condition,
                self.rate(&held.verdict),
                cause_of(held),
            ),
        }
    }

    /// Why writers of a family are held back; empty if they are not.
    pub(crate) fn cause_of(&self, family: u32) -> String {
        let verdicts = self.verdicts.lock();
        let held = verdicts.worst(Some(&[family]));
        match (held, verdicts.paused(Some(family))) {
            (Some(held), _) => held.verdict.cause.clone(),
            (None, Some(_)) => PACED.to_owned(),
            (None, None) => String::new(),
        }
    }

    /// Lets every writer through for good: the database closes or has failed.
    pub(crate) fn release(&self) {
        let mut verdicts = self.verdicts.lock();
        verdicts.released = true;
        self.state.store(NORMAL, Relaxed);
        self.changed.notify_all();
    }

    /// Notes whether writers are refused for now: if so those who wait are let through to it.
    pub(crate) fn set_refusing(&self, refusing: bool) {
        self.verdicts.lock().refusing = refusing;
        self.changed.notify_all();
    }

    /// True while writers are refused.
    #[cfg(all(test, orogen_shuttle))]
    pub(crate) fn is_refusing(&self) -> bool {
        self.verdicts.lock().refusing
    }

    /// Notes whether compactions find no space. Whoever waits for them then is told so.
    pub(crate) fn set_stuck(&self, stuck: bool) {
        self.verdicts.lock().stuck = stuck;
        self.changed.notify_all();
    }

    /// True if a batch for these families would be stopped.
    #[cold]
    pub(crate) fn stops(&self, families: &[u32]) -> bool {
        let verdicts = self.verdicts.lock();
        let worst = verdicts.worst(Some(families));
        worst.is_some_and(|held| held.verdict.condition == StallCondition::Stopped)
    }

    /// Waits as long as the debts of `families`, and what was written to them before, ask for.
    ///
    /// Short waits add up until they are worth a sleep: a sleep of microseconds takes far longer.
    #[cold]
    pub(crate) fn admit(
        &self,
        families: &[u32],
        bytes: u64,
        may_wait: bool,
        clock: &dyn Clock,
        statistics: &Statistics,
    ) -> Admission {
        let start = clock.now_micros();
        let mut verdicts = self.verdicts.lock();
        while let Some(held) = verdicts.worst(Some(families)) {
            if !may_wait {
                return Admission::WouldWait(cause_of(held));
            }
            if held.verdict.condition != StallCondition::Stopped {
                break;
            }
            if verdicts.stuck && held.verdict.awaits_compaction {
                return Admission::InVain(cause_of(held));
            }
            self.changed.wait(&mut verdicts);
        }
        let mut ahead = 0;
        let mut pause = verdicts.pause_left(families, clock.now_micros());
        self.state.store(verdicts.state(), Relaxed);
        if verdicts.worst(Some(families)).is_some() {
            let now = clock.now_micros();
            for id in families {
                if let Some(held) = verdicts.by_family.get_mut(id)
                    && held.verdict.condition == StallCondition::Delayed
                {
                    let due = held.due_micros.max(now);
                    ahead = ahead.max(due - now);
                    let takes = bytes.saturating_mul(1_000_000) / self.rate(&held.verdict);
                    // Nobody is put off much further than one sleep.
                    held.due_micros = due.saturating_add(takes).min(now + 2 * SLEEP_MICROS_MAX);
                }
            }
        }
        drop(verdicts);
        if ahead < SLEEP_MICROS_MIN {
            ahead = 0;
        }
        if !may_wait {
            // Pauses are for the writers' own sake, and this one says what it prefers.
            pause = 0;
        }
        let sleep = ahead.max(pause).min(SLEEP_MICROS_MAX);
        if sleep > 0 {
            clock.sleep(Duration::from_micros(sleep));
        }
        let micros = clock.now_micros().saturating_sub(start);
        statistics.add(Ticker::StallMicros, micros);
        statistics.record(HistogramKind::WriteStall, micros);
        Admission::Admitted
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::ManualClock;

    use super::*;

    fn verdict(condition: StallCondition, share: f64) -> Verdict {
        Verdict {
            condition,
            share,
            cause: "x".to_owned(),
            awaits_compaction: true,
        }
    }

    #[test]
    fn garbage_slows_writers_and_never_stops_them() {
        let options = ColumnFamilyOptions::default();
        let at = |now| {
            judge(
                &options,
                Debts {
                    blob_space: Some((now, 1000)),
                    ..Debts::default()
                },
            )
        };
        assert_eq!(at(999).condition, StallCondition::Normal);
        let mut share = 1.1;
        for now in [1000, 1200, 1700, 2000, 10_000] {
            let v = at(now);
            assert_eq!(v.condition, StallCondition::Delayed);
            assert!(v.share <= share && v.share >= 1.0 / 16.0);
            assert!(v.cause.contains("blob files"));
            share = v.share;
        }
    }

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
    fn delayed_writers_get_the_rate_and_others_do_not_wait() {
        let stall = StallController::new(1_000_000);
        stall.set(1, "a", Some(verdict(StallCondition::Delayed, 0.5)));
        stall.set(2, "b", Some(verdict(StallCondition::Normal, 1.0)));
        let (clock, statistics) = (ManualClock::new(), Statistics::new());
        let admit = |families: &[u32]| stall.admit(families, 100, true, &clock, &statistics);
        let start = clock.now_micros();
        for _ in 0..10_000 {
            assert_eq!(admit(&[1]), Admission::Admitted);
        }
        let seconds = (clock.now_micros() - start) as f64 / 1e6;
        assert!((1.9..=2.0).contains(&seconds), "{seconds}");
        let start = clock.now_micros();
        for families in [&[2][..], &[3], &[2, 3], &[]] {
            assert_eq!(admit(families), Admission::Admitted);
        }
        assert_eq!(clock.now_micros(), start);
    }

    #[test]
    fn writers_of_a_family_pause_and_nobody_is_told() {
        let stall = StallController::new(1000);
        let (clock, statistics) = (ManualClock::new(), Statistics::new());
        let admit = |families: &[u32], wait| stall.admit(families, 1, wait, &clock, &statistics);
        let start = clock.now_micros();
        stall.pause(1, "a", start + 300);
        assert!(stall.is_stalled() && !stall.stops(&[1]));
        assert_eq!(stall.current().0, StallCondition::Normal);
        assert!(stall.current().2.starts_with("[a] paced") && stall.cause_of(2).is_empty());
        assert_eq!(admit(&[2], true), Admission::Admitted);
        assert_eq!(admit(&[1], false), Admission::Admitted);
        assert_eq!(
            clock.now_micros(),
            start,
            "others, and who must not wait, do not"
        );
        assert_eq!(admit(&[2, 1], true), Admission::Admitted);
        assert_eq!(clock.now_micros(), start + 300);
        // Whoever comes next sees that it is over.
        assert_eq!(admit(&[2], true), Admission::Admitted);
        assert!(!stall.is_stalled() && stall.cause_of(1).is_empty());
        stall.pause(1, "a", start + 500);
        let verdict = verdict(StallCondition::Normal, 1.0);
        assert!(stall.set(1, "a", Some(verdict)).is_none());
        assert!(stall.is_stalled(), "a verdict ends no pause");
        stall.end_pause(2);
        assert!(stall.is_stalled(), "that of another");
        stall.end_pause(1);
        assert!(!stall.is_stalled());
        stall.pause(1, "a", start + 500);
        assert!(stall.set(1, "a", None).is_none(), "a family that is gone");
        assert!(!stall.is_stalled());
    }

    #[test]
    fn only_batches_that_name_a_stopped_family_are_stopped() {
        let stall = StallController::new(1000);
        let stopped = verdict(StallCondition::Stopped, 0.0);
        assert!(stall.set(1, "a", Some(stopped)).is_some());
        let normal = verdict(StallCondition::Normal, 1.0);
        assert!(stall.set(2, "b", Some(normal)).is_none());
        assert_eq!(stall.current().0, StallCondition::Stopped);
        assert!(stall.stops(&[2, 1]) && !stall.stops(&[2]) && stall.is_stalled());
        let (clock, statistics) = (ManualClock::new(), Statistics::new());
        let admit = |families: &[u32], wait| stall.admit(families, 1, wait, &clock, &statistics);
        assert_eq!(admit(&[2], false), Admission::Admitted);
        let refused = Admission::WouldWait("[a] x".to_owned());
        assert_eq!(admit(&[1, 2], false), refused);
        stall.set_stuck(true);
        assert_eq!(admit(&[1], true), Admission::InVain("[a] x".to_owned()));
        stall.set_refusing(true);
        assert_eq!(admit(&[1], true), Admission::Admitted);
        stall.set_refusing(false);
        assert!(stall.stops(&[1]));
        assert_eq!(stall.cause_of(1), "x");
        assert!(stall.set(1, "a", None).is_some());
        assert!(!stall.is_stalled() && !stall.stops(&[1]));
    }
}
