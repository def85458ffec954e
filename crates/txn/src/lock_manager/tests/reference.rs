//! Random histories against a plain implementation of the rules: lists, and loops over all of them.
//!
//! After every step both must agree on who holds what and how, who waits and in which order, and on
//! who was told of a deadlock.

use std::fmt::Write as _;

use orogen_base::{ErrorKind, UserComparator};

use super::sim::{Answer, Sim};
use crate::lock_manager::LockMode::{Exclusive, Shared};
use crate::lock_manager::{
    Endpoint, KeyRange, LockManagerOptions, LockMode, Locked, SavePoint, TxnLockOptions, Wanted,
};

const TXNS: usize = 7;
const KEYS: [&str; 6] = ["a", "aa", "ab", "b", "c", "d"];
const ORDER: UserComparator = UserComparator::BYTEWISE;

#[derive(Clone, PartialEq, Debug)]
enum What {
    Key(&'static str),
    Range(KeyRange<&'static str>),
}

impl What {
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Key(a), Self::Key(b)) => a == b,
            (Self::Key(a), Self::Range(b)) | (Self::Range(b), Self::Key(a)) => {
                b.contains(&ORDER, a.as_bytes())
            }
            (Self::Range(a), Self::Range(b)) => a.overlaps(&ORDER, b),
        }
    }

    /// As both implementations print it.
    fn name(&self) -> String {
        match self {
            Self::Key(key) => format!("{:?}", Wanted::Key(key.as_bytes().into())),
            Self::Range(range) => format!("{:?}", Wanted::Range(range.to_owned())),
        }
    }
}

#[derive(Clone, Debug)]
struct Hold {
    txn: usize,
    what: What,
    mode: LockMode,
}

#[derive(Clone, Debug)]
struct Waits {
    txn: usize,
    what: What,
    mode: LockMode,
    /// Those who hold already come first, then in the order of arrival.
    place: (bool, u64),
    passes: Vec<u64>,
}

#[derive(Clone, PartialEq, Debug)]
enum Note {
    New(What),
    Upgraded(What),
    Released,
}

#[derive(Default)]
struct Reference {
    holds: Vec<Hold>,
    waits: Vec<Waits>,
    notes: [Vec<Note>; TXNS],
    arrivals: u64,
    now: u64,
    expires: [Option<u64>; TXNS],
    kept: [bool; TXNS],
    max_num_locks: Option<usize>,
}

impl Reference {
    fn held(&self, txn: usize) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(move |hold| hold.txn == txn)
    }

    fn is_gone(&self, txn: usize) -> bool {
        !self.kept[txn] && self.expires[txn].is_some_and(|at| at <= self.now)
    }

    /// Held in this mode or a stronger one.
    fn has(&self, txn: usize, what: &What, mode: LockMode) -> bool {
        self.held(txn).any(|hold| {
            let enough = hold.mode == mode || hold.mode == Exclusive;
            enough
                && match (what, &hold.what) {
                    (What::Key(a), What::Key(b)) => a == b,
                    (What::Range(a), What::Range(b)) => b.covers(&ORDER, a),
                    _ => false,
                }
        })
    }

    fn around(&self, txn: usize, what: &What) -> bool {
        self.held(txn).any(|hold| match (what, &hold.what) {
            (What::Range(a), What::Range(b)) => b.covers(&ORDER, a),
            (What::Range(_), What::Key(_)) => false,
            (what, held) => what.meets(held),
        })
    }

    fn blockers(&self, ask: &Waits) -> Vec<usize> {
        let others = self.holds.iter().filter(|hold| {
            hold.txn != ask.txn
                && hold.mode.conflicts(ask.mode)
                && hold.what.meets(&ask.what)
                && !self.is_gone(hold.txn)
        });
        let mut blockers: Vec<usize> = others.map(|hold| hold.txn).collect();
        if !ask.place.0 {
            return blockers;
        }
        for wait in &self.waits {
            let before = wait.txn != ask.txn
                && wait.place < ask.place
                && wait.mode.conflicts(ask.mode)
                && wait.what.meets(&ask.what);
            let passed = match (&wait.what, &ask.what) {
                (What::Range(_), _) => ask.passes.contains(&wait.place.1),
                (What::Key(_), What::Range(_)) => self.held(ask.txn).any(|hold| {
                    hold.what == wait.what
                        || (matches!(hold.what, What::Range(_))
                            && hold.what.meets(&wait.what)
                            && hold.mode.conflicts(wait.mode))
                }),
                (What::Key(_), What::Key(_)) => false,
            };
            if before && !passed {
                blockers.push(wait.txn);
            }
        }
        blockers
    }

    fn give(&mut self, ask: &Waits) {
        // Who conflicts and is no blocker is gone.
        self.holds.retain(|hold| {
            hold.txn == ask.txn || !hold.mode.conflicts(ask.mode) || !hold.what.meets(&ask.what)
        });
        let same = |hold: &&mut Hold| hold.txn == ask.txn && hold.what == ask.what;
        let key = matches!(ask.what, What::Key(_));
        if let Some(hold) = self.holds.iter_mut().find(same).filter(|_| key) {
            hold.mode = ask.mode;
            self.notes[ask.txn].push(Note::Upgraded(ask.what.clone()));
            return;
        }
        self.holds.push(Hold {
            txn: ask.txn,
            what: ask.what.clone(),
            mode: ask.mode,
        });
        self.notes[ask.txn].push(Note::New(ask.what.clone()));
    }

    fn settle(&mut self) {
        self.waits.sort_by_key(|wait| wait.place);
        while let Some(at) = (0..self.waits.len()).find(|&at| {
            let wait = &self.waits[at];
            self.blockers(wait).is_empty()
        }) {
            let wait = self.waits.remove(at);
            self.give(&wait);
        }
    }

    fn closes_cycle(&self, start: usize) -> bool {
        let mut reached = vec![start];
        let mut at = 0;
        while at < reached.len() {
            if let Some(wait) = self.waits.iter().find(|wait| wait.txn == reached[at]) {
                for txn in self.blockers(wait) {
                    if txn == start {
                        return true;
                    }
                    if !reached.contains(&txn) {
                        reached.push(txn);
                    }
                }
            }
            at += 1;
        }
        false
    }

    /// `refused` if a limit of memory did, which is looked at when the lock or the wait is to be counted.
    fn ask(&mut self, txn: usize, what: What, mode: LockMode, refused: bool) -> &'static str {
        if self.is_gone(txn) {
            return "expired";
        }
        if self.has(txn, &what, mode) {
            return "held";
        }
        self.arrivals += 1;
        let keeps = |wait: &Waits| {
            let mut held = self.held(txn);
            held.any(|hold| hold.mode.conflicts(wait.mode) && hold.what.meets(&wait.what))
        };
        let ranges = self
            .waits
            .iter()
            .filter(|w| matches!(w.what, What::Range(_)));
        let ask = Waits {
            txn,
            place: (!self.around(txn, &what), self.arrivals),
            passes: ranges.filter(|w| keeps(w)).map(|w| w.place.1).collect(),
            what,
            mode,
        };
        let free = self.blockers(&ask).is_empty();
        // A lock that is made exclusive at once is no other one.
        let same = |hold: &Hold| hold.txn == ask.txn && hold.what == ask.what;
        let upgraded = matches!(ask.what, What::Key(_)) && self.holds.iter().any(same);
        let full = self.max_num_locks == Some(self.holds.len() + self.waits.len());
        if (full || refused) && !(free && upgraded) {
            return "limit";
        }
        if free {
            self.give(&ask);
            return "got";
        }
        self.waits.push(ask);
        if self.closes_cycle(txn) {
            self.waits.pop();
            return "deadlock";
        }
        "waits"
    }

    fn unlock_to(&mut self, txn: usize, len: usize) {
        while self.notes[txn].len() > len {
            match self.notes[txn].pop().unwrap() {
                Note::New(what) => {
                    let same = |hold: &Hold| hold.txn == txn && hold.what == what;
                    let at = self.holds.iter().rposition(same);
                    assert!(at.is_some() || self.is_gone(txn));
                    at.map(|at| self.holds.remove(at));
                }
                Note::Upgraded(what) => self.weaken(txn, &what),
                Note::Released => {}
            }
        }
        self.settle();
    }

    fn weaken(&mut self, txn: usize, what: &What) {
        for hold in &mut self.holds {
            if hold.txn == txn && hold.what == *what {
                hold.mode = Shared;
            }
        }
    }

    fn unlock(&mut self, txn: usize, key: &'static str) {
        let what = What::Key(key);
        self.holds
            .retain(|hold| hold.txn != txn || hold.what != what);
        for note in &mut self.notes[txn] {
            if *note == Note::New(what.clone()) || *note == Note::Upgraded(what.clone()) {
                *note = Note::Released;
            }
        }
        self.settle();
    }

    /// A line for each key and range.
    fn print(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for key in KEYS {
            let what = What::Key(key);
            let mut holders: Vec<u64> = Vec::new();
            let mut mode = None;
            for hold in self.holds.iter().filter(|hold| hold.what == what) {
                holders.push(hold.txn as u64 + 1);
                mode = Some(hold.mode);
            }
            holders.sort_unstable();
            let waits = self.waits.iter().filter(|wait| wait.what == what);
            let mut waits: Vec<_> = waits.map(|w| (w.place, w.txn as u64 + 1, w.mode)).collect();
            waits.sort_by_key(|wait| wait.0);
            if holders.is_empty() && waits.is_empty() {
                continue;
            }
            let mut line = format!("{} {mode:?} {holders:?}", what.name());
            for (_, txn, mode) in waits {
                write!(line, " {txn} {mode:?}").unwrap();
            }
            lines.push(line);
        }
        let ranges = self
            .holds
            .iter()
            .filter(|h| matches!(h.what, What::Range(_)));
        lines.extend(ranges.map(|h| {
            format!(
                "{} {:?} {:?}",
                h.what.name(),
                Some(h.mode),
                [h.txn as u64 + 1]
            )
        }));
        let ranges = self
            .waits
            .iter()
            .filter(|w| matches!(w.what, What::Range(_)));
        lines.extend(ranges.map(|w| {
            let nobody: Option<LockMode> = None;
            format!("{} {nobody:?} [] {} {:?}", w.what.name(), w.txn + 1, w.mode)
        }));
        lines.sort();
        lines
    }
}

fn print(sim: &Sim) -> Vec<String> {
    // Numbers of transactions as the reference has them.
    let number = |id: &u64| {
        let same = |txn: &super::sim::Txn| txn.locks.id() == *id;
        sim.txns.iter().position(same).unwrap() as u64 + 1
    };
    let mut status = sim.status();
    for status in &mut status {
        status.holders = status.holders.iter().map(number).collect();
        status.holders.sort_unstable();
        for wait in &mut status.waiting {
            wait.txn = number(&wait.txn);
        }
    }
    let mut lines: Vec<String> = status
        .iter()
        .map(|status| {
            let mut line = format!("{:?} {:?} {:?}", status.what, status.mode, status.holders);
            for wait in &status.waiting {
                write!(line, " {} {:?}", wait.txn, wait.mode).unwrap();
            }
            line
        })
        .collect();
    lines.sort();
    lines
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as usize % n
    }

    fn end(&mut self) -> Endpoint<&'static str> {
        let key = KEYS[self.below(KEYS.len())];
        match self.below(8) {
            0 => Endpoint::First,
            1 => Endpoint::Last,
            2 | 3 => Endpoint::After(key),
            4 => Endpoint::AfterPrefix(key),
            _ => Endpoint::Before(key),
        }
    }

    fn range(&mut self) -> KeyRange<&'static str> {
        loop {
            let range = KeyRange {
                start: self.end(),
                end: self.end(),
            };
            if !range.is_empty(&ORDER) {
                return range;
            }
        }
    }
}

#[derive(Default, Debug)]
struct Seen {
    waits: usize,
    grants: usize,
    deadlocks: usize,
    range_waits: usize,
    upgrades: usize,
    expired: usize,
    limits: usize,
}

/// Moves both clocks; who would expire while it waits gives up before.
fn time_passes(sim: &mut Sim, reference: &mut Reference, micros: u64) {
    for txn in 0..TXNS {
        let late = reference.expires[txn].is_some_and(|at| at <= reference.now + micros);
        if late && !reference.kept[txn] && sim.is_waiting(txn) && sim.cancel(txn) {
            reference.waits.retain(|wait| wait.txn != txn);
            reference.settle();
        }
        sim.granted(txn);
    }
    sim.advance(micros);
    reference.now += micros;
    reference.settle();
}

/// One history; `ranges` of 100 requests are for ranges; in some transactions expire.
fn history(seed: u64, ranges: usize, expiring: bool, seen: &mut Seen) {
    let limits = LockManagerOptions {
        max_num_locks: Some(1000),
        ..LockManagerOptions::default()
    };
    history_within(seed, ranges, expiring, limits, seen);
}

fn history_within(
    seed: u64,
    ranges: usize,
    expiring: bool,
    limits: LockManagerOptions,
    seen: &mut Seen,
) {
    let options = LockManagerOptions {
        num_stripes: 1 + seed as usize % 4,
        ..limits
    };
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut sim = Sim::with(TXNS, options, TxnLockOptions::default());
    let mut reference = Reference {
        max_num_locks: limits.max_num_locks,
        ..Reference::default()
    };
    let mut points: Vec<Vec<(SavePoint, usize)>> = vec![Vec::new(); TXNS];
    for step in 0..300 {
        let txn = random.below(TXNS);
        if expiring && random.below(6) == 0 {
            time_passes(&mut sim, &mut reference, random.below(30) as u64);
        } else if expiring && !sim.is_waiting(txn) && random.below(10) == 0 {
            let micros = [None, Some(1 + random.below(100) as u64)][random.below(2)];
            let options = TxnLockOptions {
                expiration_micros: micros,
                ..TxnLockOptions::default()
            };
            sim.manager.restart(&mut sim.txns[txn].locks, options);
            reference.unlock_to(txn, 0);
            reference.expires[txn] = micros.map(|micros| reference.now + micros);
            reference.kept[txn] = false;
            points[txn].clear();
        } else if expiring && random.below(12) == 0 {
            let kept = sim.txns[txn].locks.keep().is_ok();
            assert_eq!(kept, !reference.is_gone(txn));
            reference.kept[txn] |= kept;
        } else if sim.is_waiting(txn) {
            if random.below(8) == 0 {
                assert!(sim.cancel(txn));
                reference.waits.retain(|wait| wait.txn != txn);
                reference.settle();
            }
        } else {
            let key = KEYS[random.below(KEYS.len())];
            let mode = [Shared, Exclusive][random.below(2)];
            match random.below(22) {
                0 | 20 | 21 => {
                    sim.unlock_all(txn);
                    reference.unlock_to(txn, 0);
                    points[txn].clear();
                }
                1 => {
                    points[txn].push((sim.txns[txn].locks.save_point(), reference.notes[txn].len()))
                }
                2 => {
                    if let Some((point, len)) = points[txn].pop() {
                        sim.manager.unlock_since(&mut sim.txns[txn].locks, point);
                        reference.unlock_to(txn, len);
                    }
                }
                3 => {
                    let held = reference.has(txn, &What::Key(key), Shared);
                    let family = sim.family.clone();
                    let locks = &mut sim.txns[txn].locks;
                    assert_eq!(sim.manager.unlock(locks, &family, key.as_bytes()), held);
                    reference.unlock(txn, key);
                }
                4 => {
                    let held = reference.has(txn, &What::Key(key), Exclusive);
                    let locks = &sim.txns[txn].locks;
                    assert_eq!(
                        sim.manager.downgrade(locks, &sim.family, key.as_bytes()),
                        held
                    );
                    if held {
                        reference.weaken(txn, &What::Key(key));
                        reference.settle();
                    }
                }
                _ => {
                    let (what, answer) = if random.below(100) < ranges {
                        let range = random.range();
                        (What::Range(range), sim.lock_range(txn, &range, mode))
                    } else {
                        (What::Key(key), sim.lock(txn, key, mode))
                    };
                    let range = matches!(what, What::Range(_));
                    let got = match &answer {
                        Answer::Got(Locked::Held) => "held",
                        Answer::Got(Locked::Upgraded) => {
                            seen.upgrades += 1;
                            "got"
                        }
                        Answer::Got(Locked::New) => "got",
                        Answer::Waits => {
                            seen.waits += 1;
                            seen.range_waits += usize::from(range);
                            "waits"
                        }
                        Answer::Refused(e) if e.kind() == ErrorKind::Expired => {
                            seen.expired += 1;
                            "expired"
                        }
                        Answer::Refused(e) if e.kind() == ErrorKind::LockLimit => {
                            seen.limits += 1;
                            "limit"
                        }
                        Answer::Refused(e) => {
                            assert_eq!(e.kind(), ErrorKind::Deadlock);
                            seen.deadlocks += 1;
                            "deadlock"
                        }
                    };
                    // Which bytes there are is looked at behind each step; whether these were too many is not said again here.
                    let refused = got == "limit" && limits.memory_limit_bytes.is_some();
                    let wanted = reference.ask(txn, what.clone(), mode, refused);
                    assert_eq!(
                        got, wanted,
                        "seed {seed} step {step}: {txn} {what:?} {mode:?}"
                    );
                }
            }
        }
        for txn in 0..TXNS {
            seen.grants += usize::from(sim.granted(txn));
            let waits = reference.waits.iter().any(|wait| wait.txn == txn);
            assert_eq!(sim.is_waiting(txn), waits, "seed {seed} step {step}: {txn}");
            assert_eq!(
                sim.txns[txn].locks.save_point().0,
                reference.notes[txn].len()
            );
        }
        assert_eq!(print(&sim), reference.print(), "seed {seed} step {step}");
        sim.assert_counted();
    }
    sim.end();
}

#[test]
fn histories_of_keys_agree_with_the_reference() {
    let mut seen = Seen::default();
    for seed in 0..150 {
        history(seed, 0, false, &mut seen);
    }
    assert!(
        seen.deadlocks > 100 && seen.grants > 1000 && seen.upgrades > 100,
        "{seen:?}"
    );
}

#[test]
fn histories_of_keys_and_ranges_agree_with_the_reference() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        history(seed, [3, 20, 60][seed as usize % 3], false, &mut seen);
    }
    assert!(seen.deadlocks > 100 && seen.grants > 1000, "{seen:?}");
    assert!(
        seen.range_waits > 1000 && seen.waits > seen.range_waits,
        "{seen:?}"
    );
}

#[test]
fn histories_in_which_transactions_expire_agree_with_the_reference() {
    let mut seen = Seen::default();
    for seed in 1000..1300 {
        history(seed, [0, 10, 40][seed as usize % 3], true, &mut seen);
    }
    assert!(
        seen.expired > 1000 && seen.grants > 1000 && seen.deadlocks > 100,
        "{seen:?}"
    );
}

/// 300 histories from a seed on, within limits that are wider or narrower by a number from 0 to 8.
fn histories_within(
    first: u64,
    limits: impl Fn(usize) -> LockManagerOptions,
    expiring: impl Fn(u64) -> bool,
) -> Seen {
    let mut seen = Seen::default();
    for seed in first..first + 300 {
        let ranges = [0, 3, 20][seed as usize % 3];
        let limits = limits(seed as usize % 9);
        history_within(seed, ranges, expiring(seed), limits, &mut seen);
    }
    assert!(
        seen.limits > 1000 && seen.waits > 1000 && seen.upgrades > 100,
        "{seen:?}"
    );
    seen
}

#[test]
fn histories_within_a_limit_of_locks_agree_with_the_reference() {
    let limits = |wider| LockManagerOptions {
        max_num_locks: Some(4 + wider),
        ..LockManagerOptions::default()
    };
    let seen = histories_within(2000, limits, |_| false);
    assert!(seen.grants > 1000 && seen.deadlocks > 10, "{seen:?}");
}

#[test]
fn histories_within_a_limit_of_memory_agree_with_the_reference() {
    let limits = |wider| LockManagerOptions {
        memory_limit_bytes: Some(300 + 100 * wider),
        ..LockManagerOptions::default()
    };
    let seen = histories_within(3000, limits, |seed| seed % 2 == 0);
    assert!(seen.grants > 500 && seen.expired > 100, "{seen:?}");
}
