//! Repair of directories that are whole, that are damaged, and under a power that goes.
//!
//! 1. Of a directory as the death of a process leaves it, or a power cut that spares what was
//!    synced, there is nothing to repair: nothing is made.
//! 2. The directory that is repaired is not changed by a byte, whatever comes of it.
//! 3. What is made of a damaged one opens. A key has its value, unless the report says that its
//!    range was lost, or a log from some place on: then it may have an older one, or none. No key
//!    has a value that it never had. (Damage that the format cannot show is left out; see
//!    [`crate::damage`].)
//! 4. If the power goes meanwhile, the new directory is whole or not there, and repair can be
//!    called again: either way it comes to what a repair comes to that nothing interrupts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_engine::repair::{ManifestState, RepairReport, repair};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem, PowerCut};
use orogen_testkit::Rng;

use crate::content;
use crate::crash;
use crate::damage::{self, Contents, Reference};
use crate::engine::{Db, ErrorKind, Options};
use crate::guard::{Guard, Outcome, timed};
use crate::report::{Failure, Figure};
use crate::script::DIR;
use crate::scripts;

/// Where the repaired database is made.
const TO: &str = "/repaired";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// Directories that a crash left.
    pub healthy: u64,
    /// Damaged directories.
    pub damaged: u64,
    /// The first seed; each directory has its own.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            healthy: 1000,
            damaged: 5000,
            seed: 1,
        }
    }
}

/// Every file of the directory with its bytes.
fn bytes_of(fs: &MemFileSystem) -> Result<BTreeMap<String, Vec<u8>>, String> {
    let told = |e: crate::engine::Error| e.to_string();
    let mut files = BTreeMap::new();
    for name in fs.list(Path::new(DIR)).map_err(told)? {
        let path = Path::new(DIR).join(&name);
        if !fs.metadata(&path).map_err(told)?.is_dir && name != "LOCK" {
            files.insert(name, read_file(fs, &path).map_err(told)?);
        }
    }
    Ok(files)
}

fn exists(fs: &MemFileSystem, dir: &str) -> Result<bool, String> {
    fs.exists(Path::new(dir)).map_err(|e| e.to_string())
}

fn figure(
    name: &str,
    rule: &'static str,
    unit: &'static str,
    ((passed, failures), seconds): ((u64, Vec<Failure>), f64),
    details: Vec<(&'static str, f64)>,
) -> Figure {
    Figure {
        name: name.to_owned(),
        rule,
        count: passed,
        unit,
        seeds: passed,
        seconds,
        details,
        failures,
    }
}

fn guarded(
    config: &Config,
    count: u64,
    repeat: impl Fn(u64) -> String + Sync,
    trial: impl Fn(u64) -> Result<bool, String> + Sync,
) -> ((u64, Vec<Failure>), f64) {
    timed(|| {
        Guard::run(config.threads, config.seed, 1, &repeat, |n| {
            if n >= config.seed.saturating_add(count) {
                return Outcome::NoMore;
            }
            match trial(n) {
                Ok(true) => Outcome::Passed,
                Ok(false) => Outcome::NoMore,
                Err(what) => Outcome::Failed(Failure {
                    what,
                    repeat: repeat(n),
                }),
            }
        })
    })
}

/// Repairs what crashes leave: rule 1.
#[must_use]
pub fn healthy(config: &Config) -> Figure {
    let all = scripts::all();
    let ran = guarded(
        config,
        config.healthy,
        |n| format!("repair --only healthy --seed {n} --healthy 1"),
        |n| {
            let mut rng = Rng::new(n);
            let script = rng.pick(&all);
            // Late enough for the database to be there.
            let point = rng.range(25..220) as u64;
            let fs = MemFileSystem::new();
            fs.crash_after(point);
            crash::run_script(script, &fs)?;
            // Other power cuts may leave a hole between two logs, which repair has to tell of.
            let cut = *rng.pick(&[PowerCut::KeepAll, PowerCut::DropUnsynced]);
            let disk = fs.crash(cut);
            if !exists(&disk, "/db/CURRENT")? {
                return Ok(true);
            }
            let before = bytes_of(&disk)?;
            let options = script.options_on(std::sync::Arc::new(disk.clone()));
            let report = repair(DIR, TO, &options, &mut |_, _| {}).map_err(|e| e.to_string())?;
            if !report.is_healthy() || exists(&disk, TO)? {
                return Err(format!("{} at {point}: {cut:?}: {report:?}", script.name));
            }
            if bytes_of(&disk)? != before {
                return Err("repair changed the directory".to_owned());
            }
            Ok(true)
        },
    );
    let rule = "of a directory that a crash left nothing is repaired, and not a byte is changed";
    figure("repair/healthy", rule, "directories", ran, Vec::new())
}

#[derive(Default)]
struct Counts {
    made: AtomicU64,
    nothing: AtomicU64,
    refused: AtomicU64,
}

/// Repairs damaged directories: rules 2 and 3.
///
/// # Panics
/// If the reference database cannot be made.
#[must_use]
pub fn damaged(config: &Config) -> Figure {
    let reference = Reference::of_tables().expect("nothing fails in memory");
    let counts = Counts::default();
    let ran = guarded(
        config,
        config.damaged,
        |n| format!("repair --only damaged --seed {n} --damaged 1"),
        |n| repair_one(&reference, n, &counts).map(|()| true),
    );
    let details = vec![
        ("made", counts.made.into_inner() as f64),
        ("nothing_to_do", counts.nothing.into_inner() as f64),
        ("refused", counts.refused.into_inner() as f64),
    ];
    let rule = "what was not lost by the report is there; nothing that never was; the old directory \
                is as it was";
    figure("repair/damaged", rule, "directories", ran, details)
}

fn repair_one(reference: &Reference, seed: u64, counts: &Counts) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let way = *rng.pick(&[
        damage::Way::Flip,
        damage::Way::Flip,
        damage::Way::Cut,
        damage::Way::Burst,
        damage::Way::Bits,
    ]);
    let (fs, what, can_be_seen) = reference
        .damaged(way, &mut rng)
        .map_err(|e| e.to_string())?;
    let before = bytes_of(&fs)?;
    let mut options = damage::options(&fs);
    options.db.create_if_missing = false;
    let result = repair(DIR, TO, &options, &mut |_, _| {});
    if bytes_of(&fs)? != before {
        return Err(format!("{what}: repair changed the old directory"));
    }
    let report = match result {
        Ok(report) => report,
        Err(e) => {
            counts.refused.fetch_add(1, Ordering::Relaxed);
            let fits = matches!(
                e.kind(),
                ErrorKind::Corruption | ErrorKind::NotSupported | ErrorKind::InvalidArgument
            );
            return if fits && !exists(&fs, TO)? {
                Ok(())
            } else {
                Err(format!("{what}: {e}"))
            };
        }
    };
    if report.is_healthy() {
        counts.nothing.fetch_add(1, Ordering::Relaxed);
        return if exists(&fs, TO)? {
            Err(format!("{what}: something was made of a whole directory"))
        } else {
            Ok(())
        };
    }
    counts.made.fetch_add(1, Ordering::Relaxed);
    let found = open_repaired(&options).map_err(|e| format!("{what}: {e}"))?;
    if !can_be_seen {
        return Ok(());
    }
    compare(reference, &report, &found).map_err(|e| format!("{what}: {e}; {report:?}"))
}

fn open_repaired(options: &Options) -> Result<Contents, String> {
    let db = Db::open(TO, options).map_err(|e| format!("open: {e}"))?;
    let found = content::pairs(&db).map_err(|e| format!("scan: {e}"))?;
    db.close().map_err(|e| format!("close: {e}"))?;
    Ok(found)
}

/// Rule 3.
fn compare(reference: &Reference, report: &RepairReport, found: &Contents) -> Result<(), String> {
    let expected = reference.last();
    let logs_lost = !report.logs_damaged.is_empty();
    // Without the MANIFEST that was in use, what it alone knew may be gone or come back.
    let older_state = !matches!(report.manifest, ManifestState::Current(_));
    let nothing = BTreeMap::new();
    for (family, pairs) in expected {
        let found = found.get(family).unwrap_or(&nothing);
        let lost = |key: &[u8]| {
            let of_family = report.tables_damaged.iter().filter(|t| {
                t.column_family == *family || t.column_family.is_empty() || t.unassigned
            });
            of_family.into_iter().any(|table| {
                table.unassigned
                    || table.range_tombstones_lost
                    || (table.error.is_some() && table.lost.is_empty())
                    || table.lost.iter().any(|block| {
                        block.after.as_deref().is_none_or(|from| key >= from)
                            && block.up_to.as_deref().is_none_or(|to| key <= to)
                    })
            })
        };
        for key in pairs.keys().chain(found.keys()) {
            let (want, got) = (pairs.get(key), found.get(key));
            if want == got || older_state || lost(key) || (logs_lost && key.starts_with(b"log")) {
                continue;
            }
            return Err(format!(
                "family {family} key {} is {} instead of {}",
                key.escape_ascii(),
                got.map_or("not there", |_| "there"),
                want.map_or("not there", |_| "there"),
            ));
        }
        for (key, value) in found {
            if !reference.was_written(family, key, value) {
                let key = key.escape_ascii();
                return Err(format!(
                    "family {family} key {key} has a value it never had"
                ));
            }
        }
    }
    Ok(())
}

/// Cuts the power at each call of a repair: rule 4.
///
/// # Panics
/// If the reference database cannot be made.
#[must_use]
pub fn crashed(config: &Config) -> Figure {
    let reference = Reference::of_tables().expect("nothing fails in memory");
    let mut points = 0;
    let mut failures = Vec::new();
    let (mut images, mut made) = (0.0, 0.0);
    let start_at = Config {
        seed: 0,
        ..config.clone()
    };
    let ((), seconds) = timed(|| {
        for damage_seed in config.seed..config.seed + CRASHED_REPAIRS {
            let repeat = || format!("repair --only crashed --seed {damage_seed}");
            let damaged = match Damaged::new(&reference, damage_seed) {
                Ok(damaged) => damaged,
                Err(what) => {
                    let repeat = repeat();
                    failures.push(Failure { what, repeat });
                    continue;
                }
            };
            if matches!(damaged.result, Ok(Some(_))) {
                made += 1.0;
            }
            let ran = guarded(
                &start_at,
                u64::MAX,
                |_| repeat(),
                |call| crash_repair(&damaged, call),
            );
            let (passed, failed) = ran.0;
            points += passed;
            images += 3.0 * passed as f64;
            failures.extend(failed);
        }
    });
    let rule = "the new directory has what an uninterrupted repair makes, or is not there; repair can be \
                called again";
    let mut figure = figure(
        "crash/repair",
        rule,
        "points",
        ((points, failures), seconds),
        vec![("images", images), ("made", made)],
    );
    figure.seeds = CRASHED_REPAIRS;
    figure
}

/// Damaged directories whose repair is crashed at each call.
const CRASHED_REPAIRS: u64 = 12;

/// A damaged directory, and what a repair of it comes to.
struct Damaged {
    fs: MemFileSystem,
    what: String,
    before: BTreeMap<String, Vec<u8>>,
    result: Made,
}

/// What is in the new directory; nothing where none is made, and why if there was an error.
type Made = Result<Option<Contents>, ErrorKind>;

impl Damaged {
    fn new(reference: &Reference, seed: u64) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let (fs, what, _) = reference
            .damaged(damage::Way::Burst, &mut rng)
            .map_err(|e| e.to_string())?;
        fs.sync_all();
        let before = bytes_of(&fs)?;
        let result = make(&fs.fork()).map_err(|e| format!("{what}: {e}"))?;
        Ok(Self {
            fs,
            what,
            before,
            result,
        })
    }
}

/// Repairs where there is no new directory yet, and looks into it.
fn make(disk: &MemFileSystem) -> Result<Made, String> {
    let options = damage::options(disk);
    if !exists(disk, TO)? {
        match repair(DIR, TO, &options, &mut |_, _| {}) {
            Ok(report) if report.is_healthy() => return Ok(Ok(None)),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Io => return Err(format!("again: {e}")),
            Err(e) => return Ok(Err(e.kind())),
        }
    }
    open_repaired(&options).map(|found| Ok(Some(found)))
}

/// False if the repair ended before the power went.
fn crash_repair(damaged: &Damaged, call: u64) -> Result<bool, String> {
    let fs = damaged.fs.fork();
    fs.crash_after(call);
    let options = damage::options(&fs);
    let _ = repair(DIR, TO, &options, &mut |_, _| {});
    if !fs.is_power_off() {
        return Ok(false);
    }
    for cut in [
        PowerCut::KeepAll,
        PowerCut::DropUnsynced,
        PowerCut::Torn { seed: call },
    ] {
        let disk = fs.crash(cut);
        let told = |e: &str| format!("{} {cut:?}: {e}", damaged.what);
        if bytes_of(&disk)? != damaged.before {
            return Err(told("the old directory changed"));
        }
        if make(&disk).map_err(|e| told(&e))? != damaged.result {
            return Err(told("it is not what an uninterrupted repair makes"));
        }
    }
    Ok(true)
}
