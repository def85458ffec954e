//! A real process on a real file system, killed while it writes.
//!
//! Each cycle starts this program again as a child, which opens the database and writes with
//! several threads; each thread tells the number of each batch that has returned through a pipe.
//! After a moment drawn at random (some before the open has ended) the child gets SIGKILL. Then
//! the directory is opened here:
//!
//! 1. Of each thread's batches those up to some number are there, whole, in both families.
//! 2. That number is the last one that was told, or the next: that batch had not returned yet.
//! 3. Nothing else is there, every pointer leads to its value, and blob files are counted as
//!    tables point to them.
//! 4. A follower, which stays open over all cycles, shows whole batches in both families while
//!    the child writes, and in the end what the opened database holds.
//!
//! Options are drawn anew for each cycle: logs by calls or through memory, recycled or not,
//! small and large, replayed into tables or left in memory; in half of them large values go to
//! blob files, which are collected and punched at once.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use orogen_env::{Clock, PosixFileSystem, SystemClock, threads};
use orogen_testkit::{Rng, TempDir};

use crate::engine::{ColumnFamily, Db, Options, ReadOptions, Result, WriteBatch, WriteOptions};
use crate::guard::timed;
use crate::report::{Failure, Figure};

/// Threads that write.
const WRITERS: usize = 4;
/// Data keys of each.
const KEYS: u64 = 400;
const OTHER: &str = "other";

/// What must hold, in a few words.
const RULE: &str =
    "each batch that returned is there whole, and nothing else but the one under way";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// This program.
    pub program: PathBuf,
    /// How many kills.
    pub kills: u64,
    /// Decides when, and under which options.
    pub seed: u64,
}

/// What one thread of the child has written up to a batch.
#[derive(Default)]
struct Written {
    last: u64,
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn options(seed: u64, cycle: u64) -> Options {
    let mut rng = Rng::new(seed ^ (cycle << 20));
    let mut options = Options::default();
    options.db.fs = Arc::new(PosixFileSystem::new());
    options.db.create_if_missing = true;
    options.db.create_missing_column_families = true;
    options.db.allow_mmap_writes = rng.chance(2, 3);
    options.db.allow_mmap_reads = rng.chance(1, 2);
    options.db.recycle_log_file_num = *rng.pick(&[0, 2, 2]);
    options.db.avoid_flush_during_recovery = rng.chance(1, 3);
    options.db.max_total_wal_size = *rng.pick(&[0, 256 << 10]);
    options.cf.write_buffer_size = *rng.pick(&[64 << 10, 512 << 10, 4 << 20]);
    options.cf.target_file_size_base = 128 << 10;
    options.cf.max_bytes_for_level_base = 512 << 10;
    if rng.chance(1, 2) {
        let cf = &mut options.cf;
        cf.enable_blob_files = true;
        cf.min_blob_size = *rng.pick(&[0, 100]);
        cf.blob_file_size = *rng.pick(&[16 << 10, 1 << 20]);
        cf.blob_file_discardable_ratio = 0.3;
        cf.min_gc_batch_size = 0;
        cf.blob_record_alignment = *rng.pick(&[0, 512]);
        cf.blob_hole_punching_threshold = 0.0;
        cf.blob_hole_punching_min_bytes = 1;
    }
    let other = options.cf.clone();
    options.families.insert(OTHER.to_owned(), other);
    options
}

fn counter_key(writer: usize) -> Vec<u8> {
    format!("c{writer}").into_bytes()
}

fn data_key(writer: usize, n: u64) -> Vec<u8> {
    format!("d{writer}/{:04}", n % KEYS).into_bytes()
}

fn value(writer: usize, n: u64) -> Vec<u8> {
    let mut value = format!("{writer}:{n}:").into_bytes();
    value.resize(value.len() + (n * 37 % 300) as usize, n as u8);
    value
}

impl Written {
    /// Does batch `n` of `writer`, here and into `batch`.
    fn step(&mut self, writer: usize, n: u64, other: u32, batch: &mut WriteBatch) {
        self.last = n;
        batch.put(0, &counter_key(writer), &n.to_le_bytes());
        batch.put(other, &counter_key(writer), &n.to_le_bytes());
        let (key, value) = (data_key(writer, n * 7), value(writer, n));
        batch.put(0, &key, &value);
        self.pairs.insert(key, value);
        if n.is_multiple_of(3) {
            let gone = data_key(writer, n * 13 + 5);
            batch.delete(0, &gone);
            self.pairs.remove(&gone);
        }
        if n.is_multiple_of(101) {
            let (start, end) = (data_key(writer, n), data_key(writer, n + 20));
            if start < end {
                batch.delete_range(0, &start, &end);
                self.pairs.retain(|k, _| *k < start || *k >= end);
            }
        }
    }
}

fn counter(db: &Db, family: &ColumnFamily, writer: usize) -> Result<u64> {
    let found = db.get_opt(&ReadOptions::default(), family, &counter_key(writer))?;
    let bytes = found.and_then(|v| v.first_chunk::<8>().copied());
    Ok(bytes.map_or(0, u64::from_le_bytes))
}

/// What the child does: writes until it is killed.
///
/// # Errors
/// What the database or the pipe answers.
pub fn child(dir: &Path, seed: u64, cycle: u64) -> std::result::Result<(), String> {
    let db = Db::open(dir, &options(seed, cycle)).map_err(|e| e.to_string())?;
    let other = db.column_family(OTHER).ok_or("the other family is gone")?;
    let tasks: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (db, other) = (&db, &other);
            move || -> std::result::Result<(), String> {
                let family = db.default_column_family();
                let mut n = counter(db, &family, writer).map_err(|e| e.to_string())?;
                let mut written = Written::default();
                loop {
                    n += 1;
                    let mut batch = WriteBatch::new();
                    written.step(writer, n, other.id(), &mut batch);
                    let options = WriteOptions {
                        sync: n.is_multiple_of(25),
                        ..WriteOptions::default()
                    };
                    db.write_opt(&options, &mut batch)
                        .map_err(|e| e.to_string())?;
                    let mut told = [writer as u8; 9];
                    told[1..].copy_from_slice(&n.to_le_bytes());
                    let mut out = std::io::stdout().lock();
                    let said = out.write_all(&told).and_then(|()| out.flush());
                    said.map_err(|e| e.to_string())?;
                }
            }
        })
        .collect();
    threads::run_all("writer", tasks).into_iter().collect()
}

/// Runs all cycles.
///
/// # Panics
/// If the system gives no temporary folder or no process.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let dir = TempDir::new("orogen-kill");
    let mut models: Vec<Written> = (0..WRITERS).map(|_| Written::default()).collect();
    let mut kills = 0;
    let mut follower = None;
    let (failure, seconds) = timed(|| {
        for cycle in 0..config.kills {
            if let Err(what) = run_cycle(config, dir.path(), cycle, &mut models, &mut follower) {
                return Some(Failure {
                    what: format!("kill {cycle}: {what}"),
                    repeat: format!("kill --seed {} --kills {}", config.seed, cycle + 1),
                });
            }
            kills += 1;
        }
        None
    });
    let batches: u64 = models.iter().map(|m| m.last).sum();
    Figure {
        name: "kill".to_owned(),
        rule: RULE,
        count: kills,
        unit: "kills",
        seeds: 1,
        seconds,
        details: vec![("batches", batches as f64)],
        failures: failure.into_iter().collect(),
    }
}

fn run_cycle(
    config: &Config,
    dir: &Path,
    cycle: u64,
    models: &mut [Written],
    follower: &mut Option<Db>,
) -> std::result::Result<(), String> {
    let mut rng = Rng::new(config.seed.wrapping_mul(0x9e37_79b9) ^ cycle);
    let mut child = Command::new(&config.program)
        .arg("kill-child")
        .arg("--dir")
        .arg(dir)
        .args(["--seed", &config.seed.to_string()])
        .args(["--cycle", &cycle.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot start the child: {e}"))?;
    let mut pipe = child.stdout.take().ok_or("the child has no pipe")?;
    let mut told = [0; WRITERS];
    let mut note = |record: &[u8; 9]| {
        let n = u64::from_le_bytes(*record[1..].first_chunk().unwrap_or(&[0; 8]));
        if let Some(last) = told.get_mut(usize::from(record[0])) {
            *last = n;
        }
    };
    let mut record = [0; 9];
    let mut ended = false;
    if !rng.chance(1, 6) {
        // Once it writes; else while it opens.
        match pipe.read_exact(&mut record) {
            Ok(()) => note(&record),
            Err(_) => ended = true,
        }
    }
    let micros = rng.below(if cycle.is_multiple_of(4) {
        20_000
    } else {
        200_000
    });
    let deadline = SystemClock.now_micros() + micros;
    // Read on meanwhile: a full pipe would hold the child up.
    let pid = child.id().to_string();
    let killed = AtomicBool::new(false);
    let (follower_options, followed) = (options(config.seed, 0), &mut *follower);
    let killer = threads::run_all(
        "kill",
        vec![
            Box::new(|| {
                let mut seen = [0; WRITERS];
                while !killed.load(Ordering::Relaxed) {
                    follow(dir, &follower_options, followed, &mut seen)?;
                    SystemClock.sleep(Duration::from_millis(1));
                }
                Ok(())
            }) as Box<dyn FnOnce() -> std::result::Result<(), String> + Send>,
            Box::new(move || {
                let left = deadline.saturating_sub(SystemClock.now_micros());
                SystemClock.sleep(Duration::from_micros(left));
                let status = Command::new("kill").args(["-KILL", &pid]).status();
                status.map_err(|e| format!("cannot kill the child: {e}"))?;
                Ok(())
            }),
            Box::new(|| {
                while !ended && pipe.read_exact(&mut record).is_ok() {
                    note(&record);
                }
                killed.store(true, Ordering::Relaxed);
                Ok(())
            }),
        ],
    );
    let status = child.wait().map_err(|e| e.to_string())?;
    killer
        .into_iter()
        .collect::<std::result::Result<(), String>>()?;
    if status.code().is_some() {
        return Err(format!("the child ended by itself: {status}"));
    }
    let shown = |follower: &Option<Db>| follower.as_ref().map(pairs).transpose();
    let before = match follower {
        Some(_) => {
            follow(dir, &options(config.seed, 0), follower, &mut [0; WRITERS])?;
            shown(follower)?
        }
        None => None,
    };
    // Some open with other options than the child's.
    let db = Db::open(dir, &options(config.seed, cycle + rng.below(2)))
        .map_err(|e| format!("cannot open: {e}"))?;
    let other = db.column_family(OTHER).ok_or("the other family is gone")?;
    check_blob_files(&db)?;
    for (writer, model) in models.iter_mut().enumerate() {
        check(&db, &other, writer, told[writer], model)?;
    }
    follow(dir, &options(config.seed, 0), follower, &mut [0; WRITERS])?;
    let now = shown(follower)?;
    let now = now.ok_or("there is no follower")?;
    if let Some(before) = before {
        differs(&before, &now).map_or(Ok(()), |d| {
            Err(format!(
                "the follower shows something else after the open: {d}"
            ))
        })?;
    }
    differs(&now, &pairs(&db)?).map_or(Ok(()), |d| {
        Err(format!(
            "the follower does not show what the database holds: {d}"
        ))
    })?;
    db.close().map_err(|e| format!("cannot close: {e}"))
}

fn check_blob_files(db: &Db) -> std::result::Result<(), String> {
    for family in db.column_families() {
        let checks = db
            .check_blob_files(&family, true)
            .map_err(|e| format!("blob files: {e}"))?;
        if let Some(check) = checks.iter().find(|c| !c.is_exact()) {
            return Err(format!("drift {check:?}"));
        }
    }
    Ok(())
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// All pairs of the two families.
fn pairs(db: &Db) -> std::result::Result<Pairs, String> {
    let mut pairs = Vec::new();
    for family in db.column_families() {
        let iter = db.iter(&ReadOptions::default(), &family);
        let mut iter = iter.map_err(|e| format!("cannot read: {e}"))?;
        iter.seek_to_first();
        while iter.valid() {
            pairs.push((iter.key().to_vec(), iter.value().to_vec()));
            iter.next();
        }
        iter.status().map_err(|e| format!("cannot read: {e}"))?;
    }
    Ok(pairs)
}

/// The first difference, if there is one.
fn differs(a: &Pairs, b: &Pairs) -> Option<String> {
    let at = a.iter().zip(b).position(|(a, b)| a != b);
    let at = at.unwrap_or_else(|| a.len().min(b.len()));
    let text = |pair: &(Vec<u8>, Vec<u8>)| {
        let (key, value) = (pair.0.escape_ascii(), &pair.1);
        format!("{key}={}", value[..value.len().min(20)].escape_ascii())
    };
    let show = |pairs: &Pairs| pairs.get(at).map_or_else(|| "nothing".to_owned(), text);
    (a != b).then(|| {
        let (here, there) = (show(a), show(b));
        format!("{here} of {}, {there} of {} pairs", a.len(), b.len())
    })
}

/// Catches up, and looks whether what a snapshot shows is whole batches, and never less than
/// before.
fn follow(
    dir: &Path,
    options: &Options,
    follower: &mut Option<Db>,
    seen: &mut [u64; WRITERS],
) -> std::result::Result<(), String> {
    let failed = |e| format!("the follower: {e}");
    let db = match follower {
        Some(db) => {
            db.try_catch_up_with_primary().map_err(failed)?;
            db
        }
        None if !dir.join("CURRENT").exists() => return Ok(()),
        None => follower.insert(Db::open_as_secondary(dir, None, options).map_err(failed)?),
    };
    let Some(other) = db.column_family(OTHER) else {
        return Ok(());
    };
    let read = ReadOptions {
        snapshot: Some(db.snapshot()),
        ..ReadOptions::default()
    };
    for (writer, last) in seen.iter_mut().enumerate() {
        let count = |family: &ColumnFamily| {
            let found = db.get_opt(&read, family, &counter_key(writer));
            let bytes = found.map_err(failed)?;
            let bytes = bytes.and_then(|v| v.first_chunk::<8>().copied());
            Ok::<u64, String>(bytes.map_or(0, u64::from_le_bytes))
        };
        let (here, beside) = (count(&db.default_column_family())?, count(&other)?);
        if here != beside || here < *last {
            return Err(format!(
                "the follower shows batch {here} of writer {writer} here, {beside} in {OTHER}, \
                 and showed {last} before"
            ));
        }
        *last = here;
    }
    Ok(())
}

fn check(
    db: &Db,
    other: &ColumnFamily,
    writer: usize,
    told: u64,
    model: &mut Written,
) -> std::result::Result<(), String> {
    let family = db.default_column_family();
    let read = |family| counter(db, family, writer).map_err(|e| format!("cannot read: {e}"));
    let (found, beside) = (read(&family)?, read(other)?);
    if found != beside {
        return Err(format!(
            "writer {writer}: batch {found} here, {beside} in {OTHER}"
        ));
    }
    let told = told.max(model.last);
    if found != told && found != told + 1 {
        return Err(format!(
            "writer {writer}: batch {told} had returned, {found} is there"
        ));
    }
    let mut scratch = WriteBatch::new();
    for n in model.last + 1..=found {
        model.step(writer, n, 0, &mut scratch);
        scratch.clear();
    }
    let mut iter = db
        .iter(&ReadOptions::default(), &family)
        .map_err(|e| e.to_string())?;
    let prefix = format!("d{writer}/").into_bytes();
    iter.seek(&prefix);
    let mut expected = model.pairs.iter();
    while iter.valid() && iter.key().starts_with(&prefix) {
        let pair = expected.next().map(|(k, v)| (&k[..], &v[..]));
        if pair != Some((iter.key(), iter.value())) {
            let (key, wanted) = (iter.key().escape_ascii(), pair.map(|p| p.0.escape_ascii()));
            return Err(format!(
                "writer {writer} at batch {found}: {key} is there, expected {}",
                wanted.map_or_else(|| "nothing".to_owned(), |k| k.to_string())
            ));
        }
        iter.next();
    }
    iter.status().map_err(|e| e.to_string())?;
    match expected.next() {
        None => Ok(()),
        Some((key, _)) => Err(format!(
            "writer {writer} at batch {found}: {} is missing",
            key.escape_ascii()
        )),
    }
}
