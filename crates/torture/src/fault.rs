//! The n-th call of a kind fails, once or from then on, for n = 1, 2, ... until a script ends
//! without a failure.
//!
//! 1. Every failure that the caller sees is an error of a kind that fits: `Io` or `NoSpace` first,
//!    `ReadOnly` or `NoSpace` after; never `Corruption`, never a panic, never a hang.
//! 2. A write that failed and made the database refuse more may be there or not, all of it or
//!    nothing; one that failed and left the database healthy is not there, nor is one that was
//!    refused because of an earlier error; one that was acknowledged is there.
//! 3. With the device whole again the open database can be read, and holds what 2 says; it takes
//!    writes or refuses them with `ReadOnly`. After a full disk, of whatever call, it takes them.
//! 4. It holds the same after it was closed and opened again, and then takes writes.
//! 5. What survives a power cut at that moment has every write whose sync was acknowledged, and is
//!    the state after some prefix of the history (families come and go apart from it). A failed
//!    sync drops what it should have saved, of files and of names.
//!    Backups that succeeded and were not deleted are listed and whole; none is half there.
//! 6. After a failed sync of WAL or MANIFEST that the caller was told of, writes are refused with
//!    `ReadOnly` until the database is opened again.
//! 7. A power cut behind a synced write after the reopen leaves all that it held.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_env::fault::Errno;
use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind, PowerCut};

use crate::content;
use crate::engine::{Db, Error, ErrorKind, Options, WriteOptions};
use crate::guard::{Guard, Outcome, timed};
use crate::model::{Family, Model, Op, Prints};
use crate::report::{Failure, Figure};
use crate::script::{self, DIR, Script, Step, backups, call};

/// More unknown outcomes than this in one run are not followed.
const CANDIDATES_MAX: usize = 256;

/// Resumes by hand after the disk has space again, of which one must succeed.
const RESUMES_MAX: usize = 50;

/// The kinds of call that a full disk can refuse.
const NEEDS_SPACE: [OpKind; 8] = [
    OpKind::Create,
    OpKind::Reuse,
    OpKind::Append,
    OpKind::Sync,
    OpKind::Truncate,
    OpKind::Rename,
    OpKind::Link,
    OpKind::SyncDir,
];

/// The kinds of call that open a file.
const OPENS_FILES: [OpKind; 6] = [
    OpKind::Create,
    OpKind::OpenAppend,
    OpKind::Reuse,
    OpKind::Open,
    OpKind::List,
    OpKind::Lock,
];

/// How calls fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The kind of call.
    pub kind: OpKind,
    /// What the system says.
    pub cause: Cause,
    /// From the n-th call on, instead of the n-th only.
    pub forever: bool,
    /// How the call fails.
    pub way: Way,
    /// Only calls on files whose path has this part.
    pub part: &'static str,
}

/// What the system says of a failing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// `EIO`: the device is broken.
    Io,
    /// `ENOSPC`: the disk is full.
    NoSpace,
    /// `EDQUOT`: the quota is used up.
    Quota,
    /// `EINTR`: a signal came.
    Interrupted,
    /// `EMFILE`: the process has too many files open.
    TooManyFiles,
    /// `ESTALE`: the file is gone on a server.
    Stale,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Io,
        Self::NoSpace,
        Self::Quota,
        Self::Interrupted,
        Self::TooManyFiles,
        Self::Stale,
    ];

    fn errno(self) -> Errno {
        match self {
            Self::Io => Errno::IO,
            Self::NoSpace => Errno::NOSPC,
            Self::Quota => Errno::DQUOT,
            Self::Interrupted => Errno::INTR,
            Self::TooManyFiles => Errno::MFILE,
            Self::Stale => Errno::STALE,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Io => "eio",
            Self::NoSpace => "enospc",
            Self::Quota => "edquot",
            Self::Interrupted => "eintr",
            Self::TooManyFiles => "emfile",
            Self::Stale => "estale",
        }
    }

    /// It passes, and writes go on without a reopen.
    fn is_lack_of_space(self) -> bool {
        matches!(self, Self::NoSpace | Self::Quota)
    }

    /// The kinds of call that can meet it.
    fn concerns(self, kind: OpKind) -> bool {
        match self {
            Self::Io | Self::Interrupted | Self::Stale => true,
            Self::NoSpace | Self::Quota => NEEDS_SPACE.contains(&kind),
            Self::TooManyFiles => OPENS_FILES.contains(&kind),
        }
    }

    /// Beside the device and the disk, of which every call is tried.
    fn is_rare(self) -> bool {
        !matches!(self, Self::Io | Self::NoSpace)
    }
}

impl std::str::FromStr for Cause {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|cause| cause.name() == text)
            .ok_or_else(|| format!("causes are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What a failing call does before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing.
    Nothing,
    /// Writes some of the bytes.
    Short,
    /// All that it should.
    All,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Short => "short",
            Self::All => "all",
        }
    }
}

impl Variant {
    fn fault(self, n: u64) -> Fault {
        let mut fault = Fault::new(self.cause.errno()).on(&[self.kind]).nth(n);
        if self.forever {
            fault = fault.forever();
        }
        fault = match self.way {
            Way::Nothing => fault,
            Way::Short => fault.short(5),
            Way::All => fault.after_effect(),
        };
        if self.part.is_empty() {
            fault
        } else {
            fault.path_with(self.part)
        }
    }

    /// Rule 6 holds for it.
    fn turns_read_only(self) -> bool {
        self.kind == OpKind::Sync && !self.part.is_empty()
    }

    fn arguments(self) -> String {
        let mut text = format!(
            "--kind {:?} --way {} --errno {}",
            self.kind,
            self.way.name(),
            self.cause.name()
        );
        if self.forever {
            text.push_str(" --forever");
        }
        if !self.part.is_empty() {
            text.push_str(&format!(" --part {}", self.part));
        }
        text
    }

    /// All that make sense.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for kind in OpKind::ALL {
            let writes = OpKind::CHANGING.contains(&kind) && kind != OpKind::Lock;
            for cause in Cause::ALL {
                if !cause.concerns(kind) {
                    continue;
                }
                for forever in [false, true] {
                    // A signal does not come again and again.
                    if forever && cause == Cause::Interrupted {
                        continue;
                    }
                    let plain = Self {
                        kind,
                        cause,
                        forever,
                        way: Way::Nothing,
                        part: "",
                    };
                    all.push(plain);
                    if kind == OpKind::Append {
                        all.push(Self {
                            way: Way::Short,
                            ..plain
                        });
                    }
                }
                if writes && !cause.is_rare() {
                    let way = Way::All;
                    all.push(Self {
                        kind,
                        cause,
                        forever: false,
                        way,
                        part: "",
                    });
                }
            }
        }
        for part in [".log", "MANIFEST"] {
            let kind = OpKind::Sync;
            all.push(Self {
                kind,
                cause: Cause::Io,
                forever: false,
                way: Way::Nothing,
                part,
            });
        }
        all
    }
}

/// What must hold, in a few words.
const RULE: &str = "one clear error; nothing acknowledged is lost; after a full disk writes go on without a reopen";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// How calls fail.
    pub variants: Vec<Variant>,
    /// Only this call.
    pub nth: Option<u64>,
    /// Every so many calls.
    pub stride: u64,
    /// Every so many of those, for causes beside `EIO` and `ENOSPC`.
    pub rare_stride: u64,
    /// Also of long scripts every call.
    pub every: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            variants: Variant::all(),
            nth: None,
            stride: 1,
            rare_stride: 5,
            every: false,
        }
    }
}

#[derive(Default)]
struct Counts {
    resumed: AtomicU64,
    read_only: AtomicU64,
    unseen: AtomicU64,
}

/// Runs a script with every fault.
#[must_use]
pub fn run(script: &Script, config: &Config) -> Figure {
    let counts = Counts::default();
    let mut runs = 0;
    let mut failures = Vec::new();
    let ((), seconds) = timed(|| {
        for &variant in &config.variants {
            let repeat = |n: u64| {
                format!(
                    "fault --script {} --nth {n} {}",
                    script.name,
                    variant.arguments()
                )
            };
            let rare = if variant.cause.is_rare() {
                config.rare_stride
            } else {
                1
            };
            let long = if config.every { 1 } else { script.fault_stride };
            let (passed, failed) = Guard::run(
                config.threads,
                config.nth.unwrap_or(1),
                config.stride * rare * long,
                repeat,
                |n| {
                    if config.nth.is_some_and(|only| n != only) {
                        return Outcome::NoMore;
                    }
                    match trial(script, variant, n, &counts) {
                        Ok(true) => Outcome::Passed,
                        Ok(false) => Outcome::NoMore,
                        Err(what) => Outcome::Failed(Failure {
                            what,
                            repeat: repeat(n),
                        }),
                    }
                },
            );
            runs += passed;
            failures.extend(failed);
            if failures.len() >= 5 {
                break;
            }
        }
    });
    Figure {
        name: format!("fault/{}", script.name),
        rule: RULE,
        count: runs,
        unit: "faults",
        seeds: 1,
        seconds,
        details: vec![
            ("resumed", counts.resumed.into_inner() as f64),
            ("read_only", counts.read_only.into_inner() as f64),
            ("not_noticed", counts.unseen.into_inner() as f64),
        ],
        failures,
    }
}

/// True for the error of a write that was not tried because of an earlier one.
fn is_refusal(error: &Error) -> bool {
    let earlier = std::error::Error::source(error).is_some_and(|s| s.is::<Error>());
    matches!(error.kind(), ErrorKind::ReadOnly | ErrorKind::NoSpace) && earlier
}

/// False if no fault was met.
fn trial(script: &Script, variant: Variant, n: u64, counts: &Counts) -> Result<bool, String> {
    let memory = MemFileSystem::new();
    let fs = FaultFileSystem::over_memory(memory.clone());
    fs.faults().lose_names();
    fs.faults().add(variant.fault(n));
    let mut world = World {
        script,
        variant,
        options: script.options_on(Arc::new(fs.clone())),
        fs: &fs,
        candidates: vec![Model::new()],
        history: Vec::new(),
        births: BTreeMap::new(),
        durable: 0,
        opened: false,
        told: false,
        backups: 0,
    };
    world.note_moment();
    let db = world.play()?;
    if fs.faults().injected() == 0 {
        return Ok(false);
    }
    if !world.told {
        counts.unseen.fetch_add(1, Ordering::Relaxed);
    }
    fs.faults().clear();
    let db = world.look_at_open(db, counts)?;
    world.look_after_power_cut(&memory)?;
    if let Some(db) = db {
        // An error of the last flush is no news after the failure.
        let _ = db.close();
    }
    world.look_after_reopen(&memory)?;
    Ok(true)
}

/// What the database may have held after a step.
struct Moment {
    candidates: Vec<Prints>,
    births: BTreeMap<Family, u32>,
}

struct World<'a> {
    script: &'a Script,
    variant: Variant,
    options: Options,
    fs: &'a FaultFileSystem,
    /// What the database may hold now.
    candidates: Vec<Model>,
    /// What it may have held after each step.
    history: Vec<Moment>,
    /// How often each family was made.
    births: BTreeMap<Family, u32>,
    /// The step after which nothing may be lost by a power cut.
    durable: usize,
    opened: bool,
    /// The caller got an error.
    told: bool,
    /// Backups that succeeded since the last purge began.
    backups: usize,
}

fn is_prepared(db: &Db, name: &str) -> bool {
    let prepared = db.prepared_writes();
    prepared.iter().any(|p| p.name == name.as_bytes())
}

impl World<'_> {
    fn play(&mut self) -> Result<Option<Db>, String> {
        let Some(mut db) = self.open()? else {
            return Ok(None);
        };
        for step in &self.script.steps {
            let step = self.known_part(&db, step);
            if let Step::Purge(keep) = step {
                self.backups = self.backups.min(keep);
            }
            match call(&db, &step, &self.options) {
                Ok(()) => {
                    self.apply(&step, false);
                    self.note_durable(&step);
                    self.backups += usize::from(matches!(step, Step::Backup));
                }
                Err(e) => {
                    self.judge_error(&step, &e)?;
                    // A database that stays healthy has done nothing of it, but of a call of two parts.
                    let healthy =
                        db.int_property(&db.default_column_family(), "rocksdb.background-errors");
                    let has_two_parts = matches!(step, Step::DropRange(..));
                    if has_two_parts || (healthy != Some(0) && !is_refusal(&e)) {
                        self.apply(&step, true);
                        if self.variant.turns_read_only() && !matches!(step, Step::Reopen) {
                            self.must_refuse(&db)?;
                        }
                    }
                }
            }
            self.note_moment();
            if matches!(step, Step::Reopen) {
                drop(db);
                match self.open()? {
                    Some(again) => db = again,
                    None => return Ok(None),
                }
            }
        }
        Ok(Some(db))
    }

    /// Opens; tries again if the fault was for one call.
    fn open(&mut self) -> Result<Option<Db>, String> {
        for _ in 0..3 {
            match Db::open(DIR, &self.options) {
                Ok(db) => {
                    self.opened = true;
                    return Ok(Some(db));
                }
                Err(e) => self.judge_error(&"open", &e)?,
            }
            if self.variant.forever {
                return Ok(None);
            }
        }
        Err("open fails again and again after one fault".to_owned())
    }

    fn judge_error(&mut self, doing: &dyn fmt::Debug, e: &Error) -> Result<(), String> {
        self.told = true;
        let what = match e.kind() {
            _ if self.fs.faults().injected() == 0 => "failed without a fault",
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::ReadOnly => return Ok(()),
            _ => "gave the wrong kind of error",
        };
        // A step has many bytes, and most errors are as they should be.
        let doing: String = format!("{doing:?}").chars().take(60).collect();
        Err(format!("{doing} {what}: {e}"))
    }

    /// A batch without the families that the database does not have.
    fn known_part(&self, db: &Db, step: &Step) -> Step {
        match step {
            Step::Write {
                ops,
                sync,
                disable_wal,
            } => Step::Write {
                ops: ops
                    .iter()
                    .filter(|op| db.column_family(op.family()).is_some())
                    .cloned()
                    .collect(),
                sync: *sync,
                disable_wal: *disable_wal,
            },
            Step::Prepare { name, ops, sync } if !is_prepared(db, name) => Step::Prepare {
                name,
                ops: ops
                    .iter()
                    .filter(|op| db.column_family(op.family()).is_some())
                    .cloned()
                    .collect(),
                sync: *sync,
            },
            // After a call that failed it may be prepared, or not.
            Step::Prepare { .. } => Step::Wait,
            Step::CommitPrepared(name, _) | Step::RollbackPrepared(name, _)
                if !is_prepared(db, name) =>
            {
                Step::Wait
            }
            // After a change that failed the family may be there still, or not yet.
            Step::Create(name) if db.column_family(name).is_some() => Step::Wait,
            Step::Drop(name) if db.column_family(name).is_none() => Step::Wait,
            other => other.clone(),
        }
    }

    /// Carries out a step on the candidates; where it `may` have failed they double.
    fn apply(&mut self, step: &Step, may: bool) {
        if let Step::Create(name) = step {
            *self.births.entry(name).or_insert(0) += 1;
        }
        let before = if may {
            self.candidates.clone()
        } else {
            Vec::new()
        };
        for model in &mut self.candidates {
            match step {
                Step::Write { .. }
                | Step::Prepare { .. }
                | Step::CommitPrepared(..)
                | Step::RollbackPrepared(..) => model.write(step),
                Step::Create(name) => {
                    model.families.entry(name).or_default();
                }
                Step::Drop(name) => {
                    model.families.remove(name);
                }
                Step::DropRange(name, from, to) => {
                    model.apply(&Op::DeleteRange(name, from.clone(), to.clone()));
                }
                Step::DropFiles(name) => {
                    if let Some(pairs) = model.families.get_mut(name) {
                        pairs.clear();
                    }
                }
                _ => {}
            }
        }
        for model in before {
            if !self.candidates.contains(&model) {
                self.candidates.push(model);
            }
        }
        self.candidates.truncate(CANDIDATES_MAX);
    }

    fn note_moment(&mut self) {
        self.history.push(Moment {
            candidates: self.candidates.iter().map(Model::prints).collect(),
            births: self.births.clone(),
        });
    }

    fn note_durable(&mut self, step: &Step) {
        let one_family = self.candidates.iter().all(|m| m.families.len() == 1);
        let durable = match step {
            Step::Write { sync, ops, .. } => *sync && !ops.is_empty(),
            Step::Prepare { sync, .. }
            | Step::CommitPrepared(_, sync)
            | Step::RollbackPrepared(_, sync) => *sync,
            Step::SyncWal | Step::DropRange(..) => true,
            Step::Flush(_) | Step::Compact(_) | Step::CompactPaused(_) | Step::DropFiles(_) => {
                one_family
            }
            Step::Checkpoint(n) => one_family && script::flushes_before_checkpoint(*n),
            _ => false,
        };
        if durable {
            // The history gets the state of this step next.
            self.durable = self.history.len();
        }
    }

    fn must_refuse(&self, db: &Db) -> Result<(), String> {
        match db.put(b"probe", b"x") {
            Err(e) if e.kind() == ErrorKind::ReadOnly => Ok(()),
            Err(e) => Err(format!("a write after a failed sync gave: {e}")),
            Ok(()) => Err("a write after a failed sync was taken".to_owned()),
        }
    }

    fn is_candidate(&self, found: &Prints) -> bool {
        self.candidates.iter().any(|model| model.prints() == *found)
    }

    /// Rule 3.
    fn look_at_open(&mut self, db: Option<Db>, counts: &Counts) -> Result<Option<Db>, String> {
        let Some(db) = db else { return Ok(None) };
        let found = content::prints(&db).map_err(|e| format!("open database: {e}"))?;
        if !self.is_candidate(&found) {
            return Err(format!(
                "open database holds something else: {found:?} of {}",
                self.candidates.len()
            ));
        }
        let probe = Op::Put("default", b"~probe".to_vec(), b"x".to_vec());
        let step = Step::Write {
            ops: vec![probe],
            sync: true,
            disable_wal: false,
        };
        let mut written = call(&db, &step, &self.options);
        for _ in 0..RESUMES_MAX {
            if !self.variant.cause.is_lack_of_space() || written.is_ok() {
                break;
            }
            // A job that began while the disk was full may fail after the first of these.
            written = db.resume().and_then(|()| call(&db, &step, &self.options));
        }
        match written {
            Ok(()) => {
                counts.resumed.fetch_add(1, Ordering::Relaxed);
                self.apply(&step, false);
                self.note_moment();
                self.durable = self.history.len() - 1;
            }
            Err(e) if e.kind() == ErrorKind::ReadOnly && !self.variant.cause.is_lack_of_space() => {
                counts.read_only.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => return Err(format!("a write after the fault gave: {e}")),
        }
        Ok(Some(db))
    }

    /// Rule 5.
    fn look_after_power_cut(&self, memory: &MemFileSystem) -> Result<(), String> {
        let image = memory.crash(PowerCut::DropUnsynced);
        let mut options = self.script.options_on(Arc::new(image));
        options.db.create_if_missing = !self.opened;
        self.look_at_backups(&options)
            .map_err(|e| format!("backups after a power cut: {e}"))?;
        let db = Db::open(DIR, &options).map_err(|e| format!("open after a power cut: {e}"))?;
        let found = content::prints(&db).map_err(|e| format!("after a power cut: {e}"))?;
        let same_families = |m: &Model| m.families.keys().eq(found.keys());
        if !self.candidates.iter().any(same_families) {
            return Err(format!("after a power cut families are {:?}", found.keys()));
        }
        // Families come and go at once for good; what is in them is from a moment of the history.
        let fits = |moment: &Moment| {
            moment.candidates.iter().any(|held| {
                found.iter().all(|(name, print)| {
                    let born = |births: &BTreeMap<Family, u32>| births.get(name.as_str()).copied();
                    let same_life = born(&moment.births) == born(&self.births);
                    let held = held.get(name).filter(|_| same_life);
                    *print == held.copied().unwrap_or(0)
                })
            })
        };
        if self.history[self.durable..].iter().any(fits) {
            return Ok(());
        }
        Err(match self.history.iter().position(fits) {
            Some(at) => format!(
                "power cut lost synced writes: state {at} of {}",
                self.durable
            ),
            None => "state after a power cut never was".to_owned(),
        })
    }

    fn look_at_backups(&self, options: &Options) -> Result<(), String> {
        if !self.script.steps.iter().any(|s| matches!(s, Step::Backup)) {
            return Ok(());
        }
        let told = |e: Error| e.to_string();
        let engine = backups(options).map_err(told)?;
        if let Some((id, e)) = engine.damaged().map_err(told)?.first() {
            return Err(format!("{id} is half there: {e}"));
        }
        let listed = engine.list().map_err(told)?;
        if listed.len() < self.backups {
            return Err(format!("{} of {} are there", listed.len(), self.backups));
        }
        for backup in listed {
            engine.verify(backup.id).map_err(told)?;
        }
        Ok(())
    }

    /// Rule 4.
    fn look_after_reopen(&self, memory: &MemFileSystem) -> Result<(), String> {
        let mut options = self.script.options_on(Arc::new(memory.clone()));
        options.db.create_if_missing = !self.opened;
        options.cf.disable_auto_compactions = true;
        let db = Db::open(DIR, &options).map_err(|e| format!("open again: {e}"))?;
        let found = content::prints(&db).map_err(|e| format!("after reopen: {e}"))?;
        if !self.is_candidate(&found) {
            let expected: Vec<Prints> = self.candidates.iter().map(Model::prints).collect();
            return Err(format!(
                "reopened database holds {found:?}, not one of {expected:?}"
            ));
        }
        self.look_at_backups(&options)
            .map_err(|e| format!("backups: {e}"))?;
        let lazy = self.options.db.avoid_flush_during_recovery;
        let logs_max = if lazy { usize::MAX } else { 1 };
        let strays = content::strays(&db, memory, Path::new(DIR), logs_max, false)
            .map_err(|e| format!("after reopen: {e}"))?;
        if !strays.is_empty() {
            return Err(format!("stray files after reopen: {strays:?}"));
        }
        let options = WriteOptions {
            sync: true,
            ..WriteOptions::default()
        };
        db.put_opt(&options, &db.default_column_family(), b"~probe", b"y")
            .map_err(|e| format!("a write after reopen gave: {e}"))?;
        self.look_after_second_power_cut(&db, memory)?;
        db.close().map_err(|e| format!("close after reopen: {e}"))
    }

    /// Rule 7.
    fn look_after_second_power_cut(&self, db: &Db, memory: &MemFileSystem) -> Result<(), String> {
        let expected = content::prints(db).map_err(|e| format!("after reopen: {e}"))?;
        let image = Arc::new(memory.crash(PowerCut::DropUnsynced));
        let mut options = self.script.options_on(image);
        options.db.create_if_missing = false;
        let db =
            Db::open(DIR, &options).map_err(|e| format!("open after reopen and power cut: {e}"))?;
        let found = content::prints(&db).map_err(|e| format!("after reopen and power cut: {e}"))?;
        if found != expected {
            return Err(format!(
                "a power cut behind a synced write after reopen left {found:?} of {expected:?}"
            ));
        }
        db.close()
            .map_err(|e| format!("close after reopen and power cut: {e}"))
    }
}
