//! A real file system of a few megabytes that is filled up, freed, and filled up again.
//!
//! A `tmpfs` is mounted in a temporary folder (that takes root), and one database lives on it
//! from the first cycle to the last. In each cycle:
//!
//! 1. Writes go on until one finds no space: its error, and those of later ones, are `NoSpace`.
//! 2. A file beside the database is removed. The database takes writes again by itself, without
//!    being opened anew; a flush and a compaction by hand succeed, if not at once, then after
//!    compactions of its own have given back what they took meanwhile.
//! 3. Every write that was acknowledged is there, and no other.
//! 4. Everything is deleted and compacted away, and the file beside is put back: there is space
//!    for it as soon as no job of the background holds files that were deleted.
//!
//! In every second cycle large values go to blob files, which are collected and punched at once; their
//! counts are those of the pointers, and each pointer leads to its value.
//!
//! Every few cycles, and at the end, the process is taken to have died with the disk full: a copy
//! of the directory elsewhere is opened and holds the same.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use orogen_env::fs::write_file;
use orogen_env::{Clock, FileSystem, PosixFileSystem, SystemClock};
use orogen_testkit::{Rng, TempDir};

use crate::engine::{
    CompactRangeOptions, Db, ErrorKind, Options, ReadOptions, WriteBatch, WriteOptions,
};
use crate::guard::timed;
use crate::report::{Failure, Figure};

/// Bytes of the file system.
const DISK_BYTES: usize = 16 << 20;
/// Bytes of the file that is removed to make space.
const BALLAST_BYTES: usize = 9 << 20;
/// A copy is opened every so many cycles.
const COPY_EVERY: u64 = 5;
/// A copy that files came or went under is made again so often.
const COPY_TRIES: usize = 20;
/// Far longer than a resume takes; only a run that fails waits so long.
const WAIT_STEPS: u64 = 2000;

/// What must hold, in a few words.
const RULE: &str = "NoSpace while it is full, writes without a reopen once there is space, nothing acknowledged is lost";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// How often the disk is filled and freed.
    pub cycles: u64,
    /// Decides keys and values.
    pub seed: u64,
    /// Logs are written through memory.
    pub mapped: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cycles: 50,
            seed: 1,
            mapped: false,
        }
    }
}

/// A mounted file system; dropping it unmounts it.
struct Mount(PathBuf);

impl Mount {
    fn new(dir: &Path) -> Result<Self, String> {
        std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        let size = format!("size={DISK_BYTES}");
        let out = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "orogen-torture"])
            .arg(dir)
            .output()
            .map_err(|e| format!("there is no `mount`: {e}"))?;
        if out.status.success() {
            return Ok(Self(dir.to_owned()));
        }
        let why = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        Err(format!("cannot mount a tmpfs (are you root?): {why}"))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What stays mounted is in a folder of its own.
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

/// Runs all cycles; `Err` tells why nothing could be tried.
///
/// # Errors
/// A sentence if no file system can be mounted.
pub fn run(config: &Config) -> Result<Figure, String> {
    let folder = TempDir::new("full-disk");
    let mount = Mount::new(&folder.path().join("disk"))?;
    let mut counts = Counts::default();
    let mut cycles = 0;
    let (result, seconds) = timed(|| -> Result<(), String> {
        let mut world = World::new(config, &mount.0, &mut counts)?;
        while cycles < config.cycles {
            world
                .cycle(cycles, &mut counts)
                .map_err(|e| format!("cycle {cycles}: {e}"))?;
            cycles += 1;
        }
        world.end()
    });
    drop(mount);
    let repeat = format!(
        "full-disk --cycles {} --seed {}{}",
        config.cycles,
        config.seed,
        if config.mapped { " --mapped" } else { "" }
    );
    Ok(Figure {
        name: format!("full-disk{}", if config.mapped { "/mapped" } else { "" }),
        rule: RULE,
        count: cycles,
        unit: "cycles",
        seeds: 1,
        seconds,
        details: vec![
            ("writes", counts.writes as f64),
            ("refused", counts.refused as f64),
            ("copies", counts.copies as f64),
            ("resume_ms_max", counts.resume_ms_max as f64),
            ("ballast_ms_max", counts.ballast_ms_max as f64),
        ],
        failures: result
            .err()
            .map(|what| Failure { what, repeat })
            .into_iter()
            .collect(),
    })
}

#[derive(Default)]
struct Counts {
    writes: u64,
    refused: u64,
    copies: u64,
    resume_ms_max: u64,
    ballast_ms_max: u64,
}

struct World {
    db: Option<Db>,
    options: Options,
    dir: PathBuf,
    ballast: PathBuf,
    copies: TempDir,
    rng: Rng,
    model: BTreeMap<Vec<u8>, u64>,
}

impl World {
    fn new(config: &Config, disk: &Path, counts: &mut Counts) -> Result<Self, String> {
        let mut options = Options::default();
        options.db.create_if_missing = true;
        options.db.info_log = false;
        options.db.allow_mmap_writes = config.mapped;
        options.db.bgerror_resume_retry_interval = 50_000;
        options.cf.write_buffer_size = 256 << 10;
        options.cf.target_file_size_base = 256 << 10;
        options.cf.max_bytes_for_level_base = 1 << 20;
        // Every second cycle turns blob files on.
        let cf = &mut options.cf;
        cf.min_blob_size = 1000;
        cf.blob_file_size = 256 << 10;
        cf.blob_file_discardable_ratio = 0.3;
        cf.min_gc_batch_size = 0;
        cf.blob_record_alignment = 4 << 10;
        cf.blob_hole_punching_threshold = 0.0;
        cf.blob_hole_punching_min_bytes = 1;
        let dir = disk.join("db");
        let db = Db::open(&dir, &options).map_err(|e| format!("open: {e}"))?;
        let world = Self {
            db: Some(db),
            options,
            dir,
            ballast: disk.join("ballast"),
            copies: TempDir::new("full-disk-copy"),
            rng: Rng::new(config.seed),
            model: BTreeMap::new(),
        };
        world.put_ballast(counts)?;
        Ok(world)
    }

    /// Takes the space away; a job that began before may hold on to deleted files for a while.
    fn put_ballast(&self, counts: &mut Counts) -> Result<(), String> {
        let fs = PosixFileSystem::new();
        let bytes = vec![7; BALLAST_BYTES];
        let start = SystemClock.now_micros();
        let put = until_done(|| {
            // What a try in vain has written takes space from the jobs.
            write_file(&fs, &self.ballast, &bytes).inspect_err(|_| {
                let _ = fs.remove_file(&self.ballast);
            })
        });
        let micros = SystemClock.now_micros() - start;
        counts.ballast_ms_max = counts.ballast_ms_max.max(micros / 1000);
        put.map_err(|e| {
            let left = self.listing().unwrap_or_default();
            format!("space does not come back: {e}; the directory has {left:?}")
        })
    }

    fn cycle(&mut self, cycle: u64, counts: &mut Counts) -> Result<(), String> {
        self.separate(cycle % 2 == 1)?;
        self.fill(counts)?;
        if cycle.is_multiple_of(COPY_EVERY) {
            for _ in 0..COPY_TRIES {
                if self.check_copy(cycle)? {
                    counts.copies += 1;
                    break;
                }
            }
        }
        PosixFileSystem::new()
            .remove_file(&self.ballast)
            .map_err(|e| e.to_string())?;
        self.wait_until_resumed(counts)?;
        let db = &self.db.clone().ok_or("no database")?;
        check(db, &self.model)?;
        let family = db.default_column_family();
        let failed = |doing: &'static str| move |e| format!("{doing} with space gave: {e}");
        until_done(|| db.flush()).map_err(failed("flush"))?;
        check(db, &self.model)?;
        for blob in db
            .check_blob_files(&family, true)
            .map_err(|e| e.to_string())?
        {
            if !blob.is_exact() {
                return Err(format!("drift {blob:?}"));
            }
        }
        until_done(|| db.delete_range_opt(&WriteOptions::default(), &family, b"", b"~"))
            .map_err(failed("delete"))?;
        until_done(|| db.compact_range(&CompactRangeOptions::default(), &family, None, None))
            .map_err(failed("compaction"))?;
        self.model.clear();
        check(db, &self.model)?;
        self.put_ballast(counts)
    }

    /// Large values go to blob files from now on, or no more.
    fn separate(&self, on: bool) -> Result<(), String> {
        let db = self.db.clone().ok_or("no database")?;
        let (family, value) = (db.default_column_family(), on.to_string());
        until_done(|| db.set_options(&family, &[("enable_blob_files", &value)]))
            .map_err(|e| format!("turning blob files on or off gave: {e}"))
    }

    /// Writes until there is no space.
    fn fill(&mut self, counts: &mut Counts) -> Result<(), String> {
        let db = self.db.clone().ok_or("no database")?;
        let family = db.default_column_family();
        loop {
            let mut batch = WriteBatch::new();
            let mut pairs = Vec::new();
            for _ in 0..self.rng.range(1..4) {
                let key = format!("key{:06}", self.rng.below(100_000)).into_bytes();
                let len = self.rng.range(100..6000);
                let value = self.rng.bytes(len);
                batch.put(0, &key, &value);
                pairs.push((key, print(&value)));
            }
            let options = WriteOptions {
                sync: self.rng.chance(1, 8),
                ..WriteOptions::default()
            };
            match db.write_opt(&options, &mut batch) {
                Ok(()) => {
                    counts.writes += 1;
                    self.model.extend(pairs);
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => break,
                Err(e) => return Err(format!("a write on a full disk gave: {e}")),
            }
        }
        for _ in 0..3 {
            match db.put_opt(&WriteOptions::default(), &family, b"refused", b"") {
                // It found the space that a failed table gave back.
                Ok(()) => {
                    self.model.insert(b"refused".to_vec(), print(b""));
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => counts.refused += 1,
                Err(e) => return Err(format!("a write after a full disk gave: {e}")),
            }
        }
        Ok(())
    }

    fn wait_until_resumed(&mut self, counts: &mut Counts) -> Result<(), String> {
        let db = self.db.clone().ok_or("no database")?;
        let start = SystemClock.now_micros();
        for _ in 0..WAIT_STEPS {
            match db.put(b"resumed", b"1") {
                Ok(()) => {
                    self.model.insert(b"resumed".to_vec(), print(b"1"));
                    let micros = SystemClock.now_micros() - start;
                    counts.resume_ms_max = counts.resume_ms_max.max(micros / 1000);
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    SystemClock.sleep(Duration::from_millis(5));
                }
                Err(e) => return Err(format!("a write after space was freed gave: {e}")),
            }
        }
        let state = db.property(&db.default_column_family(), "orogen.health");
        Err(format!("it does not resume: {}", state.unwrap_or_default()))
    }

    fn listing(&self) -> Result<BTreeMap<std::ffi::OsString, u64>, String> {
        let entries = std::fs::read_dir(&self.dir).map_err(|e| e.to_string())?;
        let sizes = entries.flatten().filter_map(|entry| {
            let size = entry.metadata().ok()?.len();
            Some((entry.file_name(), size))
        });
        Ok(sizes.collect())
    }

    /// What a process that died now would leave behind, opened elsewhere; false if it was not one
    /// moment.
    fn check_copy(&self, cycle: u64) -> Result<bool, String> {
        let copy = self.copies.path().join(format!("{cycle}"));
        // Where files came or went meanwhile it is not what one moment left.
        let before = self.listing()?;
        let _ = std::fs::remove_dir_all(&copy);
        std::fs::create_dir_all(&copy).map_err(|e| e.to_string())?;
        for name in before.keys() {
            let _ = std::fs::copy(self.dir.join(name), copy.join(name));
        }
        if before != self.listing()? {
            return Ok(false);
        }
        let db = Db::open(&copy, &self.options).map_err(|e| format!("copy: {e}"))?;
        // The write that failed may be in the log still.
        let mut found = pairs(&db)?;
        let extra = found.len().saturating_sub(self.model.len());
        found.retain(|key, _| self.model.contains_key(key));
        if found.len() != self.model.len() || extra > 4 {
            return Err(format!(
                "the copy has {} of {} keys and {extra} more",
                found.len(),
                self.model.len()
            ));
        }
        Ok(true)
    }

    fn end(mut self) -> Result<(), String> {
        let db = self.db.take().ok_or("no database")?;
        db.put(b"last", b"1").map_err(|e| e.to_string())?;
        self.model.insert(b"last".to_vec(), print(b"1"));
        db.close().map_err(|e| format!("close: {e}"))?;
        drop(db);
        let db = Db::open(&self.dir, &self.options).map_err(|e| format!("open again: {e}"))?;
        check(&db, &self.model)
    }
}

/// Tries again while there is no space, for a while.
fn until_done(mut body: impl FnMut() -> crate::engine::Result<()>) -> crate::engine::Result<()> {
    for _ in 0..WAIT_STEPS {
        match body() {
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                SystemClock.sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
    body()
}

fn print(value: &[u8]) -> u64 {
    value.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn pairs(db: &Db) -> Result<BTreeMap<Vec<u8>, u64>, String> {
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .map_err(|e| e.to_string())?;
    let mut found = BTreeMap::new();
    iter.seek_to_first();
    while iter.valid() {
        found.insert(iter.key().to_vec(), print(iter.value()));
        iter.next();
    }
    iter.status().map_err(|e| e.to_string())?;
    Ok(found)
}

fn check(db: &Db, model: &BTreeMap<Vec<u8>, u64>) -> Result<(), String> {
    let found = pairs(db)?;
    if found == *model {
        return Ok(());
    }
    let lost = model.keys().filter(|k| !found.contains_key(*k)).count();
    let new = found.keys().filter(|k| !model.contains_key(*k)).count();
    Err(format!(
        "of {} keys {lost} are lost, {new} were never acknowledged",
        model.len()
    ))
}
