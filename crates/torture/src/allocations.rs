//! The n-th big allocation gets nothing.
//!
//! Each trial draws options and calls from its seed and does them on a real file system: small and
//! large values, batches, merges, range deletions, gets, multi-gets, scans, flushes, compactions,
//! checkpoints, backups, reads of updates, closes and opens. One allocation of at least
//! [`orogen_base::memory::BIG_ALLOCATION`] bytes, of whichever thread, gets nothing; at times
//! several in a row. Then:
//!
//! 1. The process lives, and no thread panics.
//! 2. A call that fails says `NoMemory`. It may say `ReadOnly` if it names that as the cause: the
//!    database is then opened anew.
//! 3. Writes are taken again by themselves, at the latest a moment after the last one was refused
//!    memory; flush, compaction and open work.
//! 4. Every write that returned is there, and nothing that never was; a write that failed is there
//!    whole or not at all.
//! 5. After the close the process has what it had before the open, but for [`LEAK_BYTES`].
//!
//! Trials run in children of this program: of one that aborts the number is known, and the next
//! child goes on behind it.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orogen_env::{Clock, SystemClock, threads};
use orogen_sst::{BlockIndex, CompressionType};
use orogen_testkit::{Rng, TempDir};
use parking_lot::Mutex;

use crate::engine::{
    BackupEngine, BackupOptions, ColumnFamily, CompactRangeOptions, Db, Error, ErrorKind, Options,
    ReadOptions, WriteBatch, WriteOptions, merge_operator,
};
use crate::guard::{self, timed};
use crate::heap;
use crate::report::{Failure, Figure};

/// Calls of a trial.
const CALLS: usize = 24;
/// Keys that are written, of each family.
const KEYS: u64 = 300;
/// Background threads.
const JOBS_MAX: usize = 3;
/// Of a seed's allocations so many are passed over between two that are refused.
const STEP: u64 = 2;
/// What may be left over after a close: what is made once in a process.
const LEAK_BYTES: u64 = 64 << 10;
/// So long it may take until it has come back.
const SETTLE_MILLIS: u32 = 2_000;
/// Far longer than a resume takes; only a trial that fails waits so long.
const WAIT_STEPS: u64 = 10_000;
/// A trial that takes longer hangs.
const LIMIT_SECS: u64 = 120;
/// Failures after which no seed is begun.
const FAILURES_MAX: usize = 5;
/// Of a merge operand.
const MERGED_LEN_MAX: usize = 4000;
const OTHER: &str = "other";

/// What must hold, in a few words.
const RULE: &str = "an error that says so, nothing acknowledged is lost, no abort, no panic, no leak, and it works on";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// This program.
    pub program: PathBuf,
    /// Children at once.
    pub threads: usize,
    /// How many points.
    pub points: u64,
    /// The first seed.
    pub seed: u64,
    /// Only this allocation of the first seed.
    pub nth: Option<u64>,
    /// Tell who was refused.
    pub trace: bool,
}

#[derive(Default)]
struct Totals {
    points: AtomicU64,
    seeds: AtomicU64,
    next_seed: AtomicU64,
    refused: AtomicU64,
    errors: AtomicU64,
    reopens: AtomicU64,
    failures: Mutex<Vec<Failure>>,
}

/// Runs trials until there are enough points.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let totals = Totals::default();
    totals.next_seed.store(config.seed, Ordering::Relaxed);
    let workers = if config.nth.is_some() {
        1
    } else {
        config.threads
    };
    let ((), seconds) = timed(|| {
        let tasks: Vec<_> = (0..workers).map(|_| || work(config, &totals)).collect();
        threads::run_all("allocations", tasks);
    });
    let count = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
    Figure {
        name: "allocations".to_owned(),
        rule: RULE,
        count: totals.points.load(Ordering::Relaxed),
        unit: "points",
        seeds: totals.seeds.load(Ordering::Relaxed),
        seconds,
        details: vec![
            ("refused", count(&totals.refused)),
            ("errors", count(&totals.errors)),
            ("reopens", count(&totals.reopens)),
        ],
        failures: totals.failures.into_inner(),
    }
}

fn work(config: &Config, totals: &Totals) {
    while totals.points.load(Ordering::Relaxed) < config.points
        && totals.failures.lock().len() < FAILURES_MAX
    {
        let seed = totals.next_seed.fetch_add(1, Ordering::Relaxed);
        totals.seeds.fetch_add(1, Ordering::Relaxed);
        let mut from = config.nth.unwrap_or(1 + seed % STEP);
        // A child that dies is followed by one that begins behind the point.
        while let Some((died_at, how)) = run_child(config, totals, seed, from) {
            let mut failures = totals.failures.lock();
            failures.push(Failure {
                what: format!("allocation {died_at} of seed {seed}: {how}"),
                repeat: format!("allocations --seed {seed} --nth {died_at}"),
            });
            if failures.len() >= FAILURES_MAX || config.nth.is_some() {
                return;
            }
            from = died_at + STEP;
        }
        if config.nth.is_some() {
            return;
        }
    }
}

/// Runs points `from`, `from + STEP`, ... of a seed in a child; the point that it ended at and how,
/// unless all passed.
fn run_child(config: &Config, totals: &Totals, seed: u64, from: u64) -> Option<(u64, String)> {
    let mut command = Command::new(&config.program);
    command
        .arg("allocations-child")
        .args(["--seed", &seed.to_string(), "--from", &from.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if config.nth.is_some() {
        command.arg("--once");
    }
    if config.trace {
        command.arg("--trace");
    } else {
        command.stderr(Stdio::piped());
    }
    // What is tried is memory: a disk would only take time.
    let memory = Path::new("/dev/shm");
    if std::env::var_os("TMPDIR").is_none() && memory.is_dir() {
        command.env("TMPDIR", memory);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return Some((from, format!("no child: {e}"))),
    };
    let said = child.stderr.take().and_then(|stderr| {
        let reader = std::thread::Builder::new().spawn(move || {
            let lines: Vec<String> = BufReader::new(stderr)
                .lines()
                .map_while(Result::ok)
                .collect();
            lines.join(" / ")
        });
        reader.ok()
    });
    let mut at = from;
    let mut failed = None;
    let mut ended = false;
    let lines = child.stdout.take().map(BufReader::new);
    for line in lines.into_iter().flat_map(BufReader::lines) {
        let Ok(line) = line else { break };
        let (what, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let number = || rest.parse().unwrap_or(0);
        match what {
            "begin" => at = number(),
            "refused" => {
                totals.points.fetch_add(1, Ordering::Relaxed);
                totals.refused.fetch_add(number(), Ordering::Relaxed);
            }
            "errors" => _ = totals.errors.fetch_add(number(), Ordering::Relaxed),
            "reopens" => _ = totals.reopens.fetch_add(number(), Ordering::Relaxed),
            "failed" => failed = Some(rest.to_owned()),
            "end" => ended = true,
            _ => {}
        }
    }
    let status = child.wait();
    let said = said.and_then(|s| s.join().ok()).unwrap_or_default();
    if let Some(what) = failed {
        return Some((at, what));
    }
    match status {
        Ok(status) if status.success() && ended => None,
        Ok(status) => Some((at, format!("the process ended: {status}: {said}"))),
        Err(e) => Some((at, format!("the process cannot be waited for: {e}"))),
    }
}

fn tell(what: &str, value: &str) {
    // Whoever reads has gone if it fails; the next look finds the child's parent gone.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{what} {value}").and_then(|()| out.flush());
}

/// What a child does: points `from`, `from + STEP`, ... of a seed until one is beyond the trial's
/// last big allocation, or only `from`.
///
/// # Errors
/// What is not as promised; it was told to the parent.
pub fn child(seed: u64, from: u64, once: bool, trace: bool) -> Result<(), String> {
    guard::count_panics();
    watch();
    let mut nth = from;
    loop {
        tell("begin", &nth.to_string());
        // A thread of its own: what it keeps for itself goes with it.
        let before = heap::taken_bytes();
        let trial = std::thread::Builder::new().spawn(move || {
            heap::outside(|| {
                let mut counts = Counts::default();
                let result = trial(seed, nth, trace, &mut counts);
                (result, counts)
            })
        });
        let joined = trial.map_err(|e| e.to_string())?.join();
        BEGUN.fetch_add(1, Ordering::Relaxed);
        let after = settled(before + LEAK_BYTES);
        let (result, counts) = joined.map_err(|_| "a thread panicked".to_owned())?;
        let result = result.and_then(|()| match guard::panics() {
            0 => Ok(()),
            _ => Err("a thread panicked".to_owned()),
        });
        let result = result.and_then(|()| {
            // The first trial makes what is made once.
            if nth == from || after <= before + LEAK_BYTES {
                return Ok(());
            }
            Err(format!("{} bytes are left over", after - before))
        });
        if let Err(what) = result {
            tell("failed", &what.replace('\n', " "));
            return Err(what);
        }
        tell("errors", &counts.errors.to_string());
        tell("reopens", &counts.reopens.to_string());
        if counts.refused == 0 {
            break;
        }
        tell("refused", &counts.refused.to_string());
        if once {
            break;
        }
        nth += STEP;
    }
    tell("end", "");
    Ok(())
}

/// What is taken, once it is not more than `enough`: a thread that makes pages beforehand may be
/// about to let go of them.
fn settled(enough: u64) -> u64 {
    for _ in 0..SETTLE_MILLIS {
        if heap::taken_bytes() <= enough {
            break;
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    heap::taken_bytes()
}

/// Trials that have ended.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// Ends the process if a trial hangs.
fn watch() {
    // Without it a trial that hangs is seen by who waits for the whole run.
    let _ = std::thread::Builder::new().spawn(|| {
        heap::outside(|| {
            loop {
                let seen = BEGUN.load(Ordering::Relaxed);
                SystemClock.sleep(Duration::from_secs(LIMIT_SECS));
                if BEGUN.load(Ordering::Relaxed) == seen {
                    tell("failed", "it hangs");
                    std::process::exit(3);
                }
            }
        });
    });
}

#[derive(Default)]
struct Counts {
    refused: u64,
    errors: u64,
    reopens: u64,
}

/// What a key may have, by the sum of its value; `None`: it is not there.
type Possible = Vec<Option<u64>>;

/// A key of a family, and the sum of what it has then.
type Change = ((usize, Vec<u8>), Option<u64>);

struct World<'a> {
    folder: TempDir,
    options: Options,
    db: Option<Db>,
    /// By the family's place and the key.
    model: BTreeMap<(usize, Vec<u8>), Possible>,
    rng: Rng,
    counts: &'a mut Counts,
    copies: u64,
}

fn sum(value: &[u8]) -> u64 {
    orogen_base::checksum::crc32c(value).into()
}

fn options(rng: &mut Rng) -> Options {
    let mut options = Options::default();
    let db = &mut options.db;
    db.create_if_missing = true;
    db.create_missing_column_families = true;
    db.info_log = false;
    db.bgerror_resume_retry_interval = 2000;
    db.max_background_jobs = rng.range(1..JOBS_MAX + 1);
    db.max_subcompactions = rng.range(1..3);
    db.allow_mmap_writes = rng.chance(1, 4);
    db.allow_concurrent_memtable_write = rng.chance(3, 4);
    db.avoid_flush_during_recovery = rng.chance(1, 2);
    db.avoid_flush_during_shutdown = rng.chance(1, 2);
    db.max_manifest_file_size = *rng.pick(&[1, 1 << 30]);
    let cf = &mut options.cf;
    cf.write_buffer_size = *rng.pick(&[128 << 10, 512 << 10, 2 << 20]);
    cf.target_file_size_base = *rng.pick(&[64 << 10, 256 << 10]);
    cf.max_bytes_for_level_base = 512 << 10;
    cf.level0_file_num_compaction_trigger = rng.range(2..5);
    cf.merge_operator = merge_operator::by_name("put");
    cf.compression = *rng.pick(&[
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ]);
    if rng.chance(1, 4) {
        cf.compression = CompressionType::Zstd;
        cf.compression_opts.max_dict_bytes = *rng.pick(&[4 << 10, 64 << 10]);
        cf.compression_opts.zstd_max_train_bytes = *rng.pick(&[0, 128 << 10]);
    }
    cf.enable_blob_files = rng.chance(1, 2);
    cf.min_blob_size = *rng.pick(&[0, 4 << 10, 64 << 10]);
    cf.blob_file_size = *rng.pick(&[1, 256 << 10, 4 << 20]);
    cf.blob_compression_type = *rng.pick(&[
        CompressionType::None,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ]);
    cf.enable_blob_garbage_collection = rng.chance(1, 2);
    cf.blob_garbage_collection_age_cutoff = *rng.pick(&[0.25, 1.0]);
    cf.blob_cache = rng.chance(1, 2);
    cf.memtable_protection_bytes_per_key = *rng.pick(&[0, 0, 8]);
    cf.block_protection_bytes_per_key = *rng.pick(&[0, 0, 8]);
    cf.paranoid_file_checks = rng.chance(1, 6);
    let table = &mut cf.table;
    table.block_size = *rng.pick(&[4 << 10, 64 << 10]);
    table.cache_index_and_filter_blocks = rng.chance(1, 2);
    table.verify_compression = rng.chance(1, 6);
    table.format_version = rng.range(2..7) as u32;
    if rng.chance(1, 3) {
        table.index_type = BlockIndex::TwoLevel;
        table.partition_filters = rng.chance(1, 2);
    }
    let other = cf.clone();
    options.families.insert(OTHER.to_owned(), other);
    options
}

fn trial(seed: u64, nth: u64, trace: bool, counts: &mut Counts) -> Result<(), String> {
    let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let options = options(&mut rng);
    let mut world = World {
        folder: TempDir::new("allocations"),
        options,
        db: None,
        model: BTreeMap::new(),
        rng,
        counts,
        copies: 0,
    };
    // Most of the time one, else a time without.
    let mut length = Rng::new(seed ^ nth << 32);
    let count = match length.chance(3, 4) {
        true => 1,
        false => length.range(2..12) as u64,
    };
    heap::refuse(nth, count, trace);
    let acted = (0..CALLS).try_for_each(|_| world.act());
    let (_, refused) = heap::relent();
    world.counts.refused = refused;
    acted?;
    world.end()
}

impl World<'_> {
    /// Notes a call that failed for want of memory.
    ///
    /// # Errors
    /// A sentence if it failed for anything else.
    fn accept(&mut self, doing: &str, error: &Error) -> Result<(), String> {
        self.counts.errors += 1;
        let memory = error.kind() == ErrorKind::NoMemory;
        let read_only = error.kind() == ErrorKind::ReadOnly
            && error
                .source()
                .and_then(|s| s.downcast_ref::<Error>())
                .is_some_and(|cause| cause.kind() == ErrorKind::NoMemory);
        if read_only {
            self.counts.reopens += 1;
            self.close()?;
        }
        match memory || read_only {
            true => Ok(()),
            false => Err(format!("{doing}: {error}")),
        }
    }

    fn close(&mut self) -> Result<(), String> {
        if let Some(db) = self.db.take()
            && let Err(e) = heap::inside(|| db.close())
        {
            // It is closed all the same.
            self.counts.errors += 1;
            if !matches!(e.kind(), ErrorKind::NoMemory | ErrorKind::ReadOnly) {
                return Err(format!("close: {e}"));
            }
        }
        Ok(())
    }

    /// The database, opened if it is not; `None` if there was no memory for that.
    fn db(&mut self) -> Result<Option<Db>, String> {
        if self.db.is_none() {
            let path = self.folder.path().join("db");
            match heap::inside(|| Db::open(&path, &self.options)) {
                Ok(db) => self.db = Some(db),
                Err(e) => self.accept("open", &e)?,
            }
        }
        Ok(self.db.clone())
    }

    fn family(db: &Db, place: usize) -> Result<ColumnFamily, String> {
        match place {
            0 => Ok(db.default_column_family()),
            _ => db
                .column_family(OTHER)
                .ok_or_else(|| "a family is gone".to_owned()),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key{:05}", self.rng.below(KEYS)).into_bytes()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = match self.rng.below(20) {
            0 => self.rng.range(30_000..300_000),
            1..5 => self.rng.range(1000..6000),
            _ => self.rng.range(10..200),
        };
        if self.rng.chance(1, 2) {
            return self.rng.bytes(len);
        }
        let byte = self.rng.below(256) as u8;
        let mut value = vec![byte; len];
        value[0] = self.rng.below(256) as u8;
        value
    }

    fn act(&mut self) -> Result<(), String> {
        let Some(db) = self.db()? else { return Ok(()) };
        match self.rng.below(40) {
            0..18 => self.write(&db),
            18..21 => self.gets(&db),
            21..24 => self.multi_get(&db),
            24..28 => self.scan(&db),
            28 | 29 => self.delete_range(&db),
            30 | 31 => self.call("flush", || db.flush()),
            32 => {
                let family = Self::family(&db, self.rng.range(0..2))?;
                let options = CompactRangeOptions::default();
                self.call("compaction", || {
                    db.compact_range(&options, &family, None, None)
                })
            }
            33 => self.writers(&db),
            34 => self.copy(&db),
            35 => self.backup(&db),
            36 => self.call("verify", || db.verify_checksums()),
            37 => self.updates(&db),
            _ => {
                drop(db);
                self.close()
            }
        }
    }

    fn call(
        &mut self,
        doing: &str,
        body: impl FnOnce() -> crate::engine::Result<()>,
    ) -> Result<(), String> {
        match heap::inside(body) {
            Ok(()) => Ok(()),
            Err(e) => self.accept(doing, &e),
        }
    }

    /// Notes what a write did, or may have done.
    fn note(&mut self, done: bool, changes: Vec<Change>) {
        let changes: BTreeMap<_, _> = changes.into_iter().collect();
        for (at, now) in changes {
            let possible = self.model.entry(at).or_insert_with(|| vec![None]);
            if done {
                possible.clear();
            }
            possible.push(now);
        }
    }

    fn write(&mut self, db: &Db) -> Result<(), String> {
        let count = match self.rng.below(10) {
            0 => self.rng.range(50..400),
            1..4 => self.rng.range(2..40),
            _ => 1,
        };
        let other = Self::family(db, 1)?.id();
        let mut batch = WriteBatch::new();
        let mut changes = Vec::new();
        for _ in 0..count {
            let (key, place) = (self.key(), usize::from(self.rng.chance(1, 4)));
            let id = if place == 0 { 0 } else { other };
            match self.rng.below(10) {
                0 => {
                    heap::inside(|| batch.delete(id, &key));
                    changes.push(((place, key), None));
                }
                merge_or_put => {
                    let mut value = self.value();
                    if merge_or_put == 1 {
                        // What a merge operator makes is its own affair.
                        value.truncate(MERGED_LEN_MAX);
                        heap::inside(|| batch.merge(id, &key, &value));
                    } else {
                        heap::inside(|| batch.put(id, &key, &value));
                    }
                    changes.push(((place, key), Some(sum(&value))));
                }
            }
        }
        let options = WriteOptions {
            sync: self.rng.chance(1, 8),
            protection_bytes_per_key: *self.rng.pick(&[0, 0, 8]),
            ..WriteOptions::default()
        };
        self.written(heap::inside(|| db.write_opt(&options, &mut batch)), changes)
    }

    fn written(
        &mut self,
        result: crate::engine::Result<()>,
        changes: Vec<Change>,
    ) -> Result<(), String> {
        self.note(result.is_ok(), changes);
        match result {
            Ok(()) => Ok(()),
            Err(e) => self.accept("write", &e),
        }
    }

    fn delete_range(&mut self, db: &Db) -> Result<(), String> {
        let place = self.rng.range(0..2);
        let family = Self::family(db, place)?;
        let (a, b) = (self.key(), self.key());
        let (start, end) = (a.clone().min(b.clone()), a.max(b));
        let keys = self
            .model
            .keys()
            .filter(|(f, k)| *f == place && *k >= start && *k < end);
        let changes = keys.map(|at| (at.clone(), None)).collect();
        let options = WriteOptions::default();
        let result = heap::inside(|| db.delete_range_opt(&options, &family, &start, &end));
        self.written(result, changes)
    }

    /// Three threads write keys of their own.
    fn writers(&mut self, db: &Db) -> Result<(), String> {
        let seeds: Vec<u64> = (0..3).map(|_| self.rng.u64()).collect();
        let tasks: Vec<_> = seeds
            .iter()
            .enumerate()
            .map(|(t, &seed)| {
                move || {
                    heap::outside(|| {
                        let mut rng = Rng::new(seed);
                        let mut all = Vec::new();
                        for _ in 0..4 {
                            let mut batch = WriteBatch::new();
                            let mut changes = Vec::new();
                            for _ in 0..rng.range(1..60) {
                                let key = format!("writer{t}/{}", rng.below(40)).into_bytes();
                                let len = rng.range(10..2000);
                                let value = rng.bytes(len);
                                heap::inside(|| batch.put(0, &key, &value));
                                changes.push(((0, key), Some(sum(&value))));
                            }
                            all.push((
                                heap::inside(|| db.write_opt(&WriteOptions::default(), &mut batch)),
                                changes,
                            ));
                        }
                        all
                    })
                }
            })
            .collect();
        for (result, changes) in threads::run_all("writer", tasks).into_iter().flatten() {
            self.written(result, changes)?;
        }
        Ok(())
    }

    fn check(&self, place: usize, key: &[u8], found: Option<u64>) -> Result<(), String> {
        let never = vec![None];
        let possible = self.model.get(&(place, key.to_vec())).unwrap_or(&never);
        match possible.contains(&found) {
            true => Ok(()),
            false => Err(format!(
                "family {place} key {} has {found:?}, may have {possible:?}",
                key.escape_ascii()
            )),
        }
    }

    fn gets(&mut self, db: &Db) -> Result<(), String> {
        for _ in 0..6 {
            let place = self.rng.range(0..2);
            let (family, key) = (Self::family(db, place)?, self.key());
            match heap::inside(|| db.get_opt(&ReadOptions::default(), &family, &key)) {
                Ok(found) => self.check(place, &key, found.map(|v| sum(&v)))?,
                Err(e) => self.accept("get", &e)?,
            }
        }
        Ok(())
    }

    fn multi_get(&mut self, db: &Db) -> Result<(), String> {
        let place = self.rng.range(0..2);
        let family = Self::family(db, place)?;
        let keys: Vec<Vec<u8>> = (0..30).map(|_| self.key()).collect();
        let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = heap::inside(|| db.multi_get(&ReadOptions::default(), &family, &slices));
        for (key, found) in keys.iter().zip(found) {
            match found {
                Ok(found) => self.check(place, key, found.map(|v| sum(&v)))?,
                Err(e) => self.accept("multi-get", &e)?,
            }
        }
        Ok(())
    }

    fn scan(&mut self, db: &Db) -> Result<(), String> {
        let (place, back) = (self.rng.range(0..2), self.rng.chance(1, 2));
        let family = Self::family(db, place)?;
        match self.pairs(db, &family, back) {
            Ok(found) => self.check_all(place, &found),
            Err(e) => self.accept("scan", &e),
        }
    }

    fn pairs(
        &self,
        db: &Db,
        family: &ColumnFamily,
        back: bool,
    ) -> crate::engine::Result<BTreeMap<Vec<u8>, u64>> {
        let mut iter = heap::inside(|| db.iter(&ReadOptions::default(), family))?;
        let mut found = BTreeMap::new();
        heap::inside(|| match back {
            true => iter.seek_to_last(),
            false => iter.seek_to_first(),
        });
        while iter.valid() {
            found.insert(iter.key().to_vec(), sum(iter.value()));
            heap::inside(|| match back {
                true => iter.prev(),
                false => iter.next(),
            });
        }
        iter.status()?;
        Ok(found)
    }

    fn check_all(&self, place: usize, found: &BTreeMap<Vec<u8>, u64>) -> Result<(), String> {
        for (key, &value) in found {
            self.check(place, key, Some(value))?;
        }
        let own = self.model.keys().filter(|(p, _)| *p == place);
        for (_, key) in own {
            if !found.contains_key(key) {
                self.check(place, key, None)?;
            }
        }
        Ok(())
    }

    /// A checkpoint, opened.
    fn copy(&mut self, db: &Db) -> Result<(), String> {
        self.copies += 1;
        let target = self.folder.path().join(format!("copy{}", self.copies));
        if let Err(e) = heap::inside(|| db.checkpoint(&target)) {
            return self.accept("checkpoint", &e);
        }
        self.look_into(&target)
    }

    fn look_into(&mut self, dir: &Path) -> Result<(), String> {
        let copy = match heap::inside(|| Db::open_read_only(dir, &self.options)) {
            Ok(copy) => copy,
            Err(e) => return self.accept("open of a copy", &e),
        };
        for place in 0..2 {
            let family = Self::family(&copy, place)?;
            match self.pairs(&copy, &family, false) {
                Ok(found) => self.check_all(place, &found)?,
                Err(e) => self.accept("scan of a copy", &e)?,
            }
        }
        Ok(())
    }

    fn backup(&mut self, db: &Db) -> Result<(), String> {
        let dir = self.folder.path().join("backup");
        let result = heap::inside(|| {
            let backups = BackupEngine::open(&dir, BackupOptions::default())?;
            backups.create_backup(db)
        });
        match result {
            Ok(_) => Ok(()),
            Err(e) => self.accept("backup", &e),
        }
    }

    fn updates(&mut self, db: &Db) -> Result<(), String> {
        let since = self.rng.below(db.latest_sequence_number() + 1);
        let result = heap::inside(|| -> crate::engine::Result<()> {
            for update in db.get_updates_since(since)? {
                update?;
            }
            Ok(())
        });
        match result {
            Err(e) if e.kind() != ErrorKind::NotFound => self.accept("updates", &e),
            _ => Ok(()),
        }
    }

    /// With memory again: it works on, closed and opened too.
    fn end(mut self) -> Result<(), String> {
        self.wait_until_resumed()?;
        for round in 0..2 {
            let db = self.db()?.ok_or("it does not open with memory")?;
            let failed = |doing: &'static str| move |e: Error| format!("{doing} with memory: {e}");
            db.put(b"last", b"1").map_err(failed("put"))?;
            self.note(true, vec![((0, b"last".to_vec()), Some(sum(b"1")))]);
            for place in 0..2 {
                let family = Self::family(&db, place)?;
                let found = self.pairs(&db, &family, round == 1);
                self.check_all(place, &found.map_err(failed("scan"))?)?;
            }
            if round == 0 {
                self.flush(&db).map_err(failed("flush"))?;
                let family = db.default_column_family();
                db.compact_range(&CompactRangeOptions::default(), &family, None, None)
                    .map_err(failed("compaction"))?;
            } else {
                db.verify_checksums().map_err(failed("verify"))?;
            }
            self.db = None;
            db.close().map_err(failed("close"))?;
        }
        Ok(())
    }

    /// A flush. A job that was refused memory may tell of it only now, if its thread had to wait.
    fn flush(&self, db: &Db) -> crate::engine::Result<()> {
        for _ in 0..JOBS_MAX {
            match db.flush() {
                Err(e) if e.kind() == ErrorKind::NoMemory => db.resume()?,
                other => return other,
            }
        }
        db.flush()
    }

    fn wait_until_resumed(&mut self) -> Result<(), String> {
        for _ in 0..WAIT_STEPS {
            let Some(db) = self.db()? else { continue };
            match db.put(b"resumed", b"1") {
                Ok(()) => {
                    self.note(true, vec![((0, b"resumed".to_vec()), Some(sum(b"1")))]);
                    return Ok(());
                }
                Err(e) => {
                    self.note(false, vec![((0, b"resumed".to_vec()), Some(sum(b"1")))]);
                    self.accept("put", &e)?;
                    SystemClock.sleep(Duration::from_millis(1));
                }
            }
        }
        Err("writes are not taken again".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_refusal_a_trial_passes() {
        for seed in 1..4 {
            let mut counts = Counts::default();
            trial(seed, u64::MAX, false, &mut counts).unwrap();
            assert_eq!((counts.refused, counts.errors), (0, 0));
        }
    }
}
