//! The power goes after each call of the file system.
//!
//! For n = 0, 1, 2, ... a script runs until n changing calls were made, then every later call
//! fails; the run ends when a script ends with the power still on. Of the disk at that moment several
//! images are made ([`Cut`]), and each is opened:
//!
//! 1. the families hold what they held after some prefix of the batches, the same prefix for all
//!    of them (families that are written without WAL have a prefix of their own);
//! 2. the prefix has every batch whose durability was acknowledged: by a synced write, a flush, a
//!    checkpoint; if only the process died, every batch that was acknowledged at all;
//! 3. creations and drops of families that succeeded are there;
//! 4. the directory holds no file that the database does not know, and the MANIFEST counts what
//!    the tables point to in blob files; so do copies of rules 6 and 8, and what rule 7 leaves. At
//!    points that get all images every pointer is followed, and all of this holds again once the
//!    blob files are emptied of their garbage and all is compacted;
//! 5. it takes a write, closes, opens, and holds the same and the write;
//! 6. a checkpoint that succeeded opens and holds what it should; one that did not is whole or
//!    not there;
//! 7. at every [`Config::recovery_stride`]-th point: the same after a second crash at every call
//!    of the recovery;
//! 8. every backup that is listed is whole and holds what it should, every one that succeeded is
//!    listed, and none that was deleted; a restored directory is whole or not there;
//! 9. where logs are archived, all is logged and only the process died: they hold every write.
//!
//! The engine on the dying disk must not panic or hang, and must not fail before the power does.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orogen_env::{Clock, FileSystem, MemFileSystem, PowerCut, SystemClock, TailFill};

use crate::content;
use crate::engine::{
    BottommostLevelCompaction, CollectBlobGarbageOptions, CompactRangeOptions, Db, Error, Options,
    WriteOptions,
};
use crate::guard::{Guard, Outcome, timed};
use crate::model::{Prints, print_of_pair};
use crate::report::{Failure, Figure};
use crate::script::{
    DIR, Plan, Progress, Script, Step, backups, call, checkpoint_dir, read_updates, restored_dir,
};

/// What must hold, in a few words.
const RULE: &str =
    "what was acknowledged as durable is there; the state is one of the history; no stray files";

/// So often it is looked whether files that are done with are gone, a millisecond apart.
const PURGE_LOOKS: u32 = 2000;

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// Torn images of each point.
    pub torn: u64,
    /// Every so many points get all 26 images; 0: none.
    pub full_stride: u64,
    /// Every so many points the recovery is crashed too; 0: never.
    pub recovery_stride: u64,
    /// Seed of the torn images.
    pub seed: u64,
    /// Only this point.
    pub point: Option<u64>,
    /// Only this kind of image.
    pub cut: Option<Cut>,
    /// Every so many points.
    pub stride: u64,
    /// How often all of it.
    pub repeat: u64,
    /// Where to put the image of the first failure, on the machine's file system.
    pub keep: Option<std::path::PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            torn: 3,
            full_stride: 7,
            recovery_stride: 16,
            seed: 1,
            point: None,
            cut: None,
            stride: 1,
            repeat: 1,
            keep: None,
        }
    }
}

/// A kind of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The process died.
    Keep,
    /// The machine died; only what was synced is there.
    Drop,
    /// The machine died; what was not synced is there in part.
    Torn,
    /// The machine died; all bytes are there, and any of the unsynced changes of names.
    Names,
    /// The machine died; files have their size, and zeros instead of their last bytes.
    Zeros,
    /// The same with garbage.
    Garbage,
    /// The same with what stood elsewhere in the file.
    Stale,
}

/// Kinds of image with how many of them there are at a point that gets all.
const ALL_IMAGES: [(Cut, u64); 7] = [
    (Cut::Keep, 1),
    (Cut::Drop, 1),
    (Cut::Torn, 16),
    (Cut::Names, 4),
    (Cut::Zeros, 2),
    (Cut::Garbage, 1),
    (Cut::Stale, 1),
];

impl Cut {
    fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Drop => "drop",
            Self::Torn => "torn",
            Self::Names => "names",
            Self::Zeros => "zeros",
            Self::Garbage => "garbage",
            Self::Stale => "stale",
        }
    }
}

impl std::str::FromStr for Cut {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        ALL_IMAGES
            .into_iter()
            .map(|(cut, _)| cut)
            .find(|cut| cut.name() == text)
            .ok_or_else(|| format!("modes are {}", ALL_IMAGES.map(|(c, _)| c.name()).join(", ")))
    }
}

#[derive(Default)]
struct Counts {
    images: AtomicU64,
    recoveries: AtomicU64,
    recovery_micros: AtomicU64,
    script_micros: AtomicU64,
}

/// Crashes a script at every point.
#[must_use]
pub fn run(script: &Script, config: &Config) -> Figure {
    let plan = Plan::of(script);
    let counts = Counts::default();
    let mut points = 0;
    let mut failures = Vec::new();
    let ((), seconds) = timed(|| {
        for _ in 0..config.repeat {
            let (passed, failed) = Guard::run(
                config.threads,
                config.point.unwrap_or(0),
                config.stride,
                |n| format!("crash --script {} --point {n}", script.name),
                |n| {
                    if config.point.is_some_and(|only| n != only) {
                        return Outcome::NoMore;
                    }
                    match crash_at(script, &plan, config, n, &counts) {
                        Ok(true) => Outcome::Passed,
                        Ok(false) => Outcome::NoMore,
                        Err(failure) => Outcome::Failed(failure),
                    }
                },
            );
            points += passed;
            failures.extend(failed);
            if !failures.is_empty() {
                break;
            }
        }
    });
    let recoveries = counts.recoveries.into_inner();
    let per = |micros: AtomicU64, n: u64| micros.into_inner() as f64 / n.max(1) as f64;
    Figure {
        name: format!("crash/{}", script.name),
        rule: RULE,
        count: points,
        unit: "points",
        seeds: config.torn,
        seconds,
        details: vec![
            ("images", counts.images.into_inner() as f64),
            ("recoveries", recoveries as f64),
            ("recovery_us", per(counts.recovery_micros, recoveries)),
            ("script_us", per(counts.script_micros, points)),
        ],
        failures,
    }
}

/// True if the power went before the script ended.
fn crash_at(
    script: &Script,
    plan: &Plan,
    config: &Config,
    point: u64,
    counts: &Counts,
) -> Result<bool, Failure> {
    let fs = MemFileSystem::new();
    fs.crash_after(point);
    let start = SystemClock.now_micros();
    let ran = run_script(script, &fs);
    counts
        .script_micros
        .fetch_add(SystemClock.now_micros() - start, Ordering::Relaxed);
    let fail = |cut: Option<(Cut, u64)>, what: String| {
        let mut repeat = format!("crash --script {} --point {point}", script.name);
        if let Some((cut, seed)) = cut {
            repeat.push_str(&format!(" --mode {} --seed {seed}", cut.name()));
        }
        Failure { what, repeat }
    };
    let progress = ran.map_err(|what| fail(None, what))?;
    if !fs.is_power_off() {
        return Ok(false);
    }
    let mut cuts = Vec::new();
    let is_full = config.full_stride > 0 && point.is_multiple_of(config.full_stride);
    for (cut, images) in ALL_IMAGES {
        let images = match cut {
            _ if is_full => images,
            Cut::Keep | Cut::Drop => 1,
            Cut::Torn => config.torn,
            _ => 0,
        };
        // A point that is asked for by mode and seed is that one image.
        let images = if config.cut == Some(cut) && config.point.is_some() {
            images.max(1)
        } else {
            images
        };
        cuts.extend((0..images).map(|i| (cut, config.seed + i)));
    }
    for (cut, seed) in cuts {
        if config.cut.is_some_and(|only| only != cut) {
            continue;
        }
        let trial = Trial {
            script,
            plan,
            progress: &progress,
            cut,
            is_full: is_full || config.point.is_some(),
            counts,
        };
        let torn_seed = point.wrapping_mul(0x9e37_79b9).wrapping_add(seed);
        let image = fs.crash(power_cut(cut, torn_seed));
        let kept = config.keep.as_ref().map(|_| image.fork());
        trial
            .check(
                &image,
                config.recovery_stride > 0 && point.is_multiple_of(config.recovery_stride),
                torn_seed,
            )
            .map_err(|what| {
                if let (Some(dir), Some(image)) = (&config.keep, &kept) {
                    content::keep(image, dir);
                }
                fail(Some((cut, seed)), format!("{what}; {progress:?}"))
            })?;
    }
    Ok(true)
}

fn power_cut(cut: Cut, seed: u64) -> PowerCut {
    let tail = |fill| PowerCut::Tail { seed, fill };
    match cut {
        Cut::Keep => PowerCut::KeepAll,
        Cut::Drop => PowerCut::DropUnsynced,
        Cut::Torn => PowerCut::Torn { seed },
        Cut::Names => PowerCut::Names { seed },
        Cut::Zeros => tail(TailFill::Zeros),
        Cut::Garbage => tail(TailFill::Garbage),
        Cut::Stale => tail(TailFill::Stale),
    }
}

/// Runs a script to its end or to the end of the power.
pub(crate) fn run_script(script: &Script, fs: &MemFileSystem) -> Result<Progress, String> {
    let mut progress = Progress::default();
    let options = script.options_on(Arc::new(fs.clone()));
    let open = || Db::open(DIR, &options);
    let died = |doing: &dyn fmt::Debug, e: Error| {
        if fs.is_power_off() {
            Ok(())
        } else {
            Err(format!("{doing:?} failed with the power on: {e}"))
        }
    };
    let mut db = match open() {
        Ok(db) => db,
        Err(e) => return died(&"open", e).map(|()| progress),
    };
    progress.opened = true;
    for step in &script.steps {
        progress.begin(step);
        if let Err(e) = call(&db, step, &options) {
            return died(step, e).map(|()| progress);
        }
        // A database that has failed closes without an error and without a flush.
        if !(fs.is_power_off() && matches!(step, Step::Reopen)) {
            progress.end(script, step);
        }
        if matches!(step, Step::Reopen) {
            db = match open() {
                Ok(db) => db,
                Err(e) => return died(&"reopen", e).map(|()| progress),
            };
        }
    }
    match db.close() {
        Ok(()) => Ok(progress),
        Err(e) => died(&"close", e).map(|()| progress),
    }
}

struct Trial<'a> {
    script: &'a Script,
    plan: &'a Plan,
    progress: &'a Progress,
    cut: Cut,
    /// The point is one that gets all images.
    is_full: bool,
    counts: &'a Counts,
}

impl Trial<'_> {
    fn check(&self, image: &MemFileSystem, crash_again: bool, seed: u64) -> Result<(), String> {
        self.counts.images.fetch_add(1, Ordering::Relaxed);
        let again = crash_again.then(|| image.fork());
        self.check_database(image)?;
        self.check_checkpoints(image)?;
        if !self.progress.backups.is_empty() {
            self.check_backups(image, seed)?;
        }
        if let Some(again) = again {
            self.crash_the_recovery(&again, seed)?;
        }
        Ok(())
    }

    fn options(&self, fs: &MemFileSystem) -> Options {
        let mut options = self.script.options_on(Arc::new(fs.clone()));
        options.db.create_if_missing = !self.progress.opened;
        options
    }

    fn open(&self, fs: &MemFileSystem, dir: &str, options: &Options) -> Result<Db, String> {
        let start = SystemClock.now_micros();
        let db = Db::open(dir, options)
            .map_err(|e| format!("open failed: {e}; files {:?}", fs.list(Path::new(dir))));
        self.counts
            .recovery_micros
            .fetch_add(SystemClock.now_micros() - start, Ordering::Relaxed);
        self.counts.recoveries.fetch_add(1, Ordering::Relaxed);
        db
    }

    fn check_database(&self, fs: &MemFileSystem) -> Result<(), String> {
        let mut options = self.options(fs);
        // Nothing in the background, so that the directory stands still.
        options.cf.disable_auto_compactions = true;
        let db = self.open(fs, DIR, &options)?;
        let found = content::prints(&db)?;
        self.judge(&found)?;
        // What is written without WAL has numbers that no log has.
        let logs_all = self.script.unlogged.is_empty();
        if self.cut == Cut::Keep && options.db.wal_ttl_seconds > 0 && logs_all {
            read_updates(&db).map_err(|e| format!("updates: {e}"))?;
        }
        self.check_files(&db, fs, DIR, self.is_full)?;
        let options = WriteOptions {
            sync: true,
            ..WriteOptions::default()
        };
        let family = db.default_column_family();
        db.put_opt(&options, &family, b"~after", b"crash")
            .map_err(|e| format!("write after recovery failed: {e}"))?;
        db.close().map_err(|e| format!("close failed: {e}"))?;
        drop(db);
        let mut options = self.options(fs);
        options.db.create_if_missing = false;
        let db = self.open(fs, DIR, &options)?;
        let mut expected = found;
        let print = expected.entry("default".to_owned()).or_insert(0);
        *print = print.wrapping_add(print_of_pair(b"~after", b"crash"));
        if content::prints(&db)? != expected {
            return Err("content changed by opening it again".to_owned());
        }
        if self.is_full && options.cf.enable_blob_files {
            self.collect_all(&db, fs, &expected)
                .map_err(|e| format!("collected after the crash: {e}"))?;
        }
        db.close().map_err(|e| format!("second close failed: {e}"))
    }

    /// Rule 4, of a directory in which nothing moves.
    fn check_files(
        &self,
        db: &Db,
        fs: &MemFileSystem,
        dir: &str,
        follow: bool,
    ) -> Result<(), String> {
        let lazy = (self.script.options)().db.avoid_flush_during_recovery;
        let logs_max = if lazy { usize::MAX } else { 1 };
        let strays = content::strays(db, fs, Path::new(dir), logs_max, follow)
            .map_err(|e| format!("files: {e}"))?;
        if !strays.is_empty() {
            return Err(format!("stray files {strays:?}"));
        }
        Ok(())
    }

    /// The last part of rule 4: garbage goes, and nothing else.
    fn collect_all(&self, db: &Db, fs: &MemFileSystem, held: &Prints) -> Result<(), String> {
        let fine = |e: Error| e.to_string();
        let (garbage, forced) = (
            CollectBlobGarbageOptions {
                discardable_ratio: 0.0,
                ..CollectBlobGarbageOptions::default()
            },
            CompactRangeOptions {
                bottommost_level_compaction: BottommostLevelCompaction::Force,
                ..CompactRangeOptions::default()
            },
        );
        for family in db.column_families() {
            db.collect_blob_garbage(&garbage, &family).map_err(fine)?;
            db.compact_range(&forced, &family, None, None)
                .map_err(fine)?;
        }
        db.wait_for_background_work().map_err(fine)?;
        if content::prints(db)? != *held {
            return Err("it holds something else".to_owned());
        }
        let mut checked = self.check_files(db, fs, DIR, true);
        for _ in 0..PURGE_LOOKS {
            if checked.is_ok() {
                break;
            }
            // A job that has ended may be about to delete what it has replaced.
            SystemClock.sleep(Duration::from_millis(1));
            checked = self.check_files(db, fs, DIR, true);
        }
        checked
    }

    /// Is it the state after some prefix that has all it must have?
    fn judge(&self, found: &Prints) -> Result<(), String> {
        let p = self.progress;
        let structure = (p.changes_done..=p.changes_begun)
            .map(|n| self.plan.structure(n))
            .find(|s| s.len() == found.len() && s.keys().all(|f| found.contains_key(*f)))
            .ok_or_else(|| format!("column families are {:?}", found.keys()))?;
        for group in 0..2 {
            let least = match self.cut {
                Cut::Keep => p.acknowledged[group],
                _ => p.durable[group],
            };
            let fits = |n: usize| {
                structure.iter().all(|(name, birth)| {
                    self.script.group(name) != group
                        || self.plan.print(n, name, *birth) == found[*name]
                })
            };
            if (least..=p.begun).any(fits) {
                continue;
            }
            return Err(match (0..least).rev().find(|&n| fits(n)) {
                Some(n) => format!("lost: {n} batches are there of at least {least}"),
                None => {
                    let per_family: Vec<String> = structure
                        .iter()
                        .map(|(name, birth)| {
                            let at: Vec<usize> = (0..=p.begun)
                                .filter(|&n| self.plan.print(n, name, *birth) == found[*name])
                                .collect();
                            format!("{name}: {:?}..{:?}", at.first(), at.last())
                        })
                        .collect();
                    format!("no prefix of the history, prefixes of each family: {per_family:?}")
                }
            });
        }
        Ok(())
    }

    fn check_checkpoints(&self, fs: &MemFileSystem) -> Result<(), String> {
        for &(n, batches, changes, done) in &self.progress.checkpoints {
            let dir = checkpoint_dir(n);
            let exists = fs.exists(Path::new(&dir)).map_err(|e| e.to_string())?;
            if !exists {
                if done {
                    return Err(format!("checkpoint {n} is gone"));
                }
                continue;
            }
            let mut options = self.options(fs);
            options.db.create_if_missing = false;
            self.check_copy(fs, &dir, (batches, changes))
                .map_err(|e| format!("checkpoint {n}: {e}"))?;
        }
        Ok(())
    }

    /// A directory that is a copy of the database after so many batches and changes.
    fn check_copy(
        &self,
        fs: &MemFileSystem,
        dir: &str,
        (batches, changes): (usize, usize),
    ) -> Result<(), String> {
        let mut options = self.options(fs);
        options.db.create_if_missing = false;
        options.cf.disable_auto_compactions = true;
        let db = self.open(fs, dir, &options)?;
        let found = content::prints(&db)?;
        let structure = self.plan.structure(changes);
        let whole = structure.len() == found.len()
            && structure.iter().all(|(name, birth)| {
                found.get(*name) == Some(&self.plan.print(batches, name, *birth))
            });
        if !whole {
            return Err("it holds something else".to_owned());
        }
        self.check_files(&db, fs, dir, self.is_full)?;
        db.close().map_err(|e| format!("close failed: {e}"))
    }

    /// Rule 8.
    fn check_backups(&self, fs: &MemFileSystem, seed: u64) -> Result<(), String> {
        let p = self.progress;
        let told = |what: &str, e: &Error| format!("backups: {what}: {e}");
        let engine = backups(&self.options(fs)).map_err(|e| told("open", &e))?;
        if let Some((id, e)) = engine.damaged().map_err(|e| told("damaged", &e))?.first() {
            return Err(format!("backup {id} is half there: {e}"));
        }
        let ids: Vec<usize> = engine
            .list()
            .map_err(|e| told("list", &e))?
            .iter()
            .map(|b| b.id as usize)
            .collect();
        for (i, &(_, _, done)) in p.backups.iter().enumerate() {
            let id = i + 1;
            if done && id > p.purge_begun && !ids.contains(&id) {
                return Err(format!("backup {id} is gone; there are {ids:?}"));
            }
        }
        for &id in &ids {
            let Some(&(batches, changes, _)) = id.checked_sub(1).and_then(|i| p.backups.get(i))
            else {
                return Err(format!("backup {id} was never made"));
            };
            if id <= p.purge_done {
                return Err(format!("backup {id} was deleted and is back"));
            }
            engine
                .verify(id as u32)
                .map_err(|e| told(&format!("verify {id}"), &e))?;
            // All are restored in the end: at one point this one, at another that one.
            if id as u64 % ids.len() as u64 == seed % ids.len() as u64 {
                let dir = format!("/checked{id}");
                engine
                    .restore(id as u32, &dir)
                    .map_err(|e| told(&format!("restore {id}"), &e))?;
                self.check_copy(fs, &dir, (batches, changes))
                    .map_err(|e| format!("restored backup {id}: {e}"))?;
            }
        }
        drop(engine);
        for &(n, id, done) in &p.restored {
            let dir = restored_dir(n);
            if fs.exists(Path::new(&dir)).map_err(|e| e.to_string())? {
                let (batches, changes, _) = p.backups[id - 1];
                self.check_copy(fs, &dir, (batches, changes))
                    .map_err(|e| format!("restored directory {n}: {e}"))?;
            } else if done {
                return Err(format!("restored directory {n} is gone"));
            }
        }
        Ok(())
    }

    /// Rule 7.
    fn crash_the_recovery(&self, image: &MemFileSystem, seed: u64) -> Result<(), String> {
        for call in 0.. {
            let fs = image.fork();
            fs.crash_after(call);
            let opened = Db::open(DIR, &self.options(&fs));
            let survived = !fs.is_power_off();
            match opened {
                Ok(db) => drop(db),
                Err(e) if survived => {
                    return Err(format!("open failed with the power on: {e}"));
                }
                Err(_) => {}
            }
            if survived {
                return Ok(());
            }
            let after = fs.crash(power_cut(self.cut, seed.wrapping_add(call)));
            self.counts.images.fetch_add(1, Ordering::Relaxed);
            let mut options = self.options(&after);
            options.cf.disable_auto_compactions = true;
            let judged = self.open(&after, DIR, &options).and_then(|db| {
                self.judge(&content::prints(&db)?)?;
                self.check_files(&db, &after, DIR, false)
            });
            judged.map_err(|e| format!("after a crash at call {call} of the recovery: {e}"))?;
        }
        Ok(())
    }
}
