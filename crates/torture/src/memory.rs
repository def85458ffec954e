//! A budget of memory against what the process really takes.
//!
//! ```text
//! mixed        writes, then reads, then many cursors while both go on
//! fillrandom   random keys into three families
//! overwrite    few keys again and again: compactions all the time
//! zipf         reads of far more data than the budget, most of them of few keys
//! scan         threads and idle cursors, forward and backward, over all data
//! large        values of up to 512 KiB, read while they are written
//! blobs        the same, in blob files that compactions empty
//! blobscan     values of some kibibytes in blob files and in the cache: cursors over all of them,
//!              many at once, one by one, while more are written
//! families     many families of many small tables with partitioned indexes and filters
//! cycles       open, write, read, close, again and again
//! ```
//! Each on the real file system under one [`MemoryBudget`] that is far smaller than its data.
//!
//! 1. What the budget counts never exceeds its limit by more than a twentieth, and values on their
//!    way.
//! 2. Nor does what the process takes from its allocator ([`crate::heap`]), beyond the *base*:
//!    what it took with the database open and idle without what the budget counted then, and
//!    [`UNCOUNTED_BYTES`] for what is small whatever the data is, and values on their way.
//! 3. After a close the process has what it had before the open: from the second cycle on it
//!    grows by less than [`LEAK_BYTES`].
//!
//! The resident memory is told beside: it has what the allocator keeps, too.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_engine::MemoryBudget;
use orogen_env::threads;
use orogen_sst::{BlockIndex, CompressionType};
use orogen_testkit::{Rng, TempDir};

use crate::engine::{ColumnFamily, Db, DbIterator, Options, ReadOptions, WriteOptions};
use crate::guard::timed;
use crate::heap;
use crate::report::{Failure, Figure};

/// Beside the budget: threads' spare buffers, write batches, the log's buffer, small blocks that
/// compactions stand in.
const UNCOUNTED_BYTES: u64 = 2 << 20;
/// And of the largest value so often: each of [`THREADS`] and of two jobs has it at most twice, as
/// it is stored and as it is given.
const VALUES_AT_ONCE: u64 = 2 * (THREADS + 2);
/// What may be left over after cycles: spare buffers of this thread.
const LEAK_BYTES: u64 = 64 << 10;
/// Calls between two looks; of large values each is looked at.
const LOOK_EVERY: u64 = 500;
/// Cursors that are open at once.
const CURSORS: usize = 16;
/// Keys that are asked for at once, where several are.
const READ_TOGETHER: usize = 16;
/// Threads that read or write at once, where there are several.
const THREADS: u64 = 3;
/// Families of the workload that has many.
const FAMILIES: usize = 16;
/// Times that a database is opened and closed.
const CYCLES: u64 = 6;

/// What must hold, in a few words.
const RULE: &str = "what is counted and what the process takes stay within the limit";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget's limit.
    pub limit: u64,
    /// Bytes of values that are written.
    pub data: u64,
    /// Decides keys and values.
    pub seed: u64,
    /// Only this workload.
    pub only: Option<Workload>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: 32 << 20,
            data: 64 << 20,
            seed: 1,
            only: None,
        }
    }
}

/// What is done under the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Writes, reads, cursors.
    Mixed,
    /// Random keys.
    FillRandom,
    /// Few keys again and again.
    Overwrite,
    /// Skewed reads.
    Zipf,
    /// Cursors over all data.
    Scan,
    /// Large values.
    Large,
    /// The same, in blob files that compactions empty.
    Blobs,
    /// Cursors and reads of many blobs.
    BlobScan,
    /// Many families and tables.
    Families,
    /// Open and close.
    Cycles,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 10] = [
        Self::Mixed,
        Self::FillRandom,
        Self::Overwrite,
        Self::Zipf,
        Self::Scan,
        Self::Large,
        Self::Blobs,
        Self::BlobScan,
        Self::Families,
        Self::Cycles,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::FillRandom => "fillrandom",
            Self::Overwrite => "overwrite",
            Self::Zipf => "zipf",
            Self::Scan => "scan",
            Self::Large => "large",
            Self::Blobs => "blobs",
            Self::BlobScan => "blobscan",
            Self::Families => "families",
            Self::Cycles => "cycles",
        }
    }
}

impl std::str::FromStr for Workload {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|workload| workload.name() == text)
            .ok_or_else(|| format!("workloads are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Resident bytes of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// What was seen.
#[derive(Default)]
struct Peaks {
    calls: AtomicU64,
    counted: AtomicU64,
    resident: AtomicU64,
    resident_before: u64,
    /// The most that was taken from the allocator, and what of it is the base.
    heap: u64,
    base: u64,
    /// After the second close, and after the last one.
    closed: Option<(u64, u64)>,
}

/// Runs the workloads, each with a figure of its own.
#[must_use]
pub fn run(config: &Config) -> Vec<Figure> {
    Workload::ALL
        .into_iter()
        .filter(|workload| config.only.is_none_or(|only| only == *workload))
        .map(|workload| one(workload, config))
        .collect()
}

fn one(workload: Workload, config: &Config) -> Figure {
    let mut peaks = Peaks {
        resident_before: resident_bytes(),
        ..Peaks::default()
    };
    let (result, seconds) = timed(|| match workload {
        Workload::Cycles => cycles(config, &mut peaks),
        _ => play(workload, config, &mut peaks),
    });
    let result = result.and_then(|()| judge(workload, config, &peaks));
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let repeat = format!(
        "memory --only {} --limit {} --data {} --seed {}",
        workload.name(),
        config.limit,
        config.data,
        config.seed
    );
    let mut details = vec![
        ("limit_mib", mib(config.limit)),
        ("counted_mib_max", mib(peaks.counted.into_inner())),
        ("heap_mib_max", mib(peaks.heap)),
        ("base_mib", mib(peaks.base)),
        ("resident_growth_mib_max", mib(peaks.resident.into_inner())),
    ];
    if let Some((early, late)) = peaks.closed {
        details.push(("leaked_kib", (late as f64 - early as f64) / 1024.0));
    }
    Figure {
        name: format!("memory/{}", workload.name()),
        rule: RULE,
        count: peaks.calls.into_inner(),
        unit: "calls",
        seeds: 1,
        seconds,
        details,
        failures: result
            .err()
            .map(|what| Failure { what, repeat })
            .into_iter()
            .collect(),
    }
}

fn judge(workload: Workload, config: &Config, peaks: &Peaks) -> Result<(), String> {
    let limit = config.limit + config.limit / 20;
    let value = value_bytes(workload).end as u64;
    // One that moves from place to place while they are added up may be seen in both.
    let most = limit + (THREADS + 2) * value;
    let counted = peaks.counted.load(Ordering::Relaxed);
    if counted > most {
        return Err(format!("{counted} bytes were counted, of {most}"));
    }
    if peaks.heap == 0 {
        return Err("nothing counts what this program allocates".to_owned());
    }
    let most = limit + peaks.base + UNCOUNTED_BYTES + VALUES_AT_ONCE * value;
    if peaks.heap > most {
        let taken = peaks.heap;
        return Err(format!("{taken} bytes were taken at once, of {most}"));
    }
    match peaks.closed {
        Some((early, late)) if late > early + LEAK_BYTES => {
            Err(format!("{early} bytes after two cycles became {late}"))
        }
        _ => Ok(()),
    }
}

/// Lengths of values.
fn value_bytes(workload: Workload) -> Range<usize> {
    match workload {
        Workload::Large | Workload::Blobs => 4 << 10..512 << 10,
        Workload::BlobScan => 512..8 << 10,
        _ => 20..900,
    }
}

fn options(workload: Workload, budget: &Arc<MemoryBudget>) -> Options {
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.db.memory_budget = Some(budget.clone());
    options.cf.max_write_buffer_number = 6;
    options.cf.target_file_size_base = 4 << 20;
    options.cf.max_bytes_for_level_base = 16 << 20;
    options.cf.table.filter_bits_per_key = 10.0;
    match workload {
        Workload::Overwrite => {
            options.cf.write_buffer_size = 2 << 20;
            options.cf.target_file_size_base = 1 << 20;
            options.cf.max_bytes_for_level_base = 4 << 20;
        }
        Workload::Blobs => {
            options.cf.enable_blob_files = true;
            options.cf.blob_file_size = 4 << 20;
            options.cf.blob_compression_type = CompressionType::Lz4;
            options.cf.enable_blob_garbage_collection = true;
            options.cf.blob_garbage_collection_age_cutoff = 1.0;
        }
        Workload::BlobScan => {
            options.cf.enable_blob_files = true;
            options.cf.min_blob_size = 512;
            options.cf.blob_file_size = 4 << 20;
            options.cf.blob_cache = true;
            options.cf.enable_blob_garbage_collection = true;
        }
        Workload::Families => {
            options.cf.write_buffer_size = 1 << 20;
            options.cf.target_file_size_base = 64 << 10;
            options.cf.max_bytes_for_level_base = 256 << 10;
            options.cf.table.index_type = BlockIndex::TwoLevel;
            options.cf.table.partition_filters = true;
        }
        _ => {}
    }
    options
}

fn play(workload: Workload, config: &Config, peaks: &mut Peaks) -> Result<(), String> {
    let folder = TempDir::new("memory");
    let budget = Arc::new(MemoryBudget::new(config.limit));
    let options = options(workload, &budget);
    let db = Db::open(folder.path().join("db"), &options).map_err(|e| e.to_string())?;
    let mut families = vec![db.default_column_family()];
    let more = match workload {
        Workload::Mixed | Workload::FillRandom => 2,
        Workload::Families => FAMILIES - 1,
        _ => 0,
    };
    for n in 0..more {
        let made = db.create_column_family(&n.to_string(), options.cf.clone());
        families.push(made.map_err(|e| e.to_string())?);
    }
    heap::forget_max();
    peaks.base = heap::taken_bytes().saturating_sub(budget.usage().total());
    let world = World {
        db,
        families,
        budget,
        keys: match workload {
            Workload::Overwrite => 20_000,
            Workload::Large | Workload::Blobs => 1000,
            Workload::BlobScan => 20_000,
            _ => 400_000,
        },
        value_bytes: value_bytes(workload),
        look_every: if let Workload::Large | Workload::Blobs = workload {
            1
        } else {
            LOOK_EVERY
        },
        peaks,
    };
    let result = world.act(workload, config);
    world.look();
    drop(world.families);
    world.db.close().map_err(|e| e.to_string())?;
    peaks.heap = heap::taken_bytes_max();
    result
}

fn cycles(config: &Config, peaks: &mut Peaks) -> Result<(), String> {
    let folder = TempDir::new("memory");
    let mut after = Vec::new();
    for cycle in 0..CYCLES {
        let budget = Arc::new(MemoryBudget::new(config.limit));
        let options = options(Workload::Cycles, &budget);
        heap::forget_max();
        let db = Db::open(folder.path().join("db"), &options).map_err(|e| e.to_string())?;
        if cycle == 0 {
            peaks.base = heap::taken_bytes().saturating_sub(budget.usage().total());
        }
        let world = World {
            families: vec![db.default_column_family()],
            db,
            budget,
            keys: 20_000,
            value_bytes: value_bytes(Workload::Cycles),
            look_every: LOOK_EVERY,
            peaks,
        };
        let mut rng = Rng::new(config.seed + cycle);
        world.write_bytes(&mut rng, config.data / 16)?;
        (0..2000).try_for_each(|_| world.get(&mut rng, 1.0))?;
        let mut cursor = world.cursor(&mut rng)?;
        (0..2000).for_each(|_| step(&mut cursor, false));
        drop(cursor);
        let World {
            db,
            families,
            budget,
            ..
        } = world;
        drop(families);
        db.close().map_err(|e| e.to_string())?;
        drop((db, budget, options));
        peaks.heap = peaks.heap.max(heap::taken_bytes_max());
        after.push(heap::taken_bytes());
    }
    peaks.closed = Some((after[1], after[after.len() - 1]));
    Ok(())
}

struct World<'a> {
    db: Db,
    families: Vec<ColumnFamily>,
    budget: Arc<MemoryBudget>,
    keys: u64,
    value_bytes: Range<usize>,
    look_every: u64,
    peaks: &'a Peaks,
}

fn step(cursor: &mut DbIterator, back: bool) {
    if !cursor.valid() {
        if back {
            cursor.seek_to_last();
        } else {
            cursor.seek_to_first();
        }
    } else if back {
        cursor.prev();
    } else {
        cursor.next();
    }
}

impl World<'_> {
    fn key(&self, rng: &mut Rng) -> Vec<u8> {
        format!("key{:08}", rng.below(self.keys)).into_bytes()
    }

    /// Notes a call, and looks now and then.
    fn call(&self) {
        if self
            .peaks
            .calls
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(self.look_every)
        {
            self.look();
        }
    }

    fn look(&self) {
        let peaks = self.peaks;
        let counted = self.budget.usage().total();
        peaks.counted.fetch_max(counted, Ordering::Relaxed);
        let grown = resident_bytes().saturating_sub(peaks.resident_before);
        peaks.resident.fetch_max(grown, Ordering::Relaxed);
    }

    fn write(&self, rng: &mut Rng) -> Result<u64, String> {
        let (key, family) = (self.key(rng), rng.pick(&self.families).clone());
        let len = rng.range(self.value_bytes.clone());
        let value = rng.bytes(len);
        self.db
            .put_opt(&WriteOptions::default(), &family, &key, &value)
            .map_err(|e| format!("put: {e}"))?;
        self.call();
        Ok(value.len() as u64)
    }

    fn write_bytes(&self, rng: &mut Rng, bytes: u64) -> Result<(), String> {
        let mut written = 0;
        while written < bytes {
            written += self.write(rng)?;
        }
        Ok(())
    }

    /// Reads a key; the smaller `skew`, the more often one of the first.
    fn get(&self, rng: &mut Rng, skew: f64) -> Result<(), String> {
        let family = rng.pick(&self.families).clone();
        let n = rng.below(self.keys) as f64;
        let n = if skew < 1.0 {
            (self.keys as f64).powf(rng.unit()) * skew + n * (1.0 - skew) * rng.unit().powi(8)
        } else {
            n
        };
        let key = format!("key{:08}", n as u64).into_bytes();
        self.db
            .get_opt(&ReadOptions::default(), &family, &key)
            .map_err(|e| format!("get: {e}"))?;
        self.call();
        Ok(())
    }

    /// Reads a few keys together; what they give is the caller's.
    fn get_several(&self, rng: &mut Rng) -> Result<(), String> {
        let family = rng.pick(&self.families).clone();
        let keys: Vec<Vec<u8>> = (0..READ_TOGETHER).map(|_| self.key(rng)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = self.db.multi_get(&ReadOptions::default(), &family, &keys);
        self.call();
        found
            .into_iter()
            .try_for_each(|value| value.map(drop).map_err(|e| format!("multi_get: {e}")))
    }

    fn cursor(&self, rng: &mut Rng) -> Result<DbIterator, String> {
        let (key, family) = (self.key(rng), rng.pick(&self.families).clone());
        let cursor = self.db.iter(&ReadOptions::default(), &family);
        let mut cursor = cursor.map_err(|e| format!("iter: {e}"))?;
        cursor.seek(&key);
        Ok(cursor)
    }

    /// Several threads, each with random numbers of its own.
    fn together(
        &self,
        seed: u64,
        act: impl Fn(u64, &mut Rng) -> Result<(), String> + Sync,
    ) -> Result<(), String> {
        let tasks: Vec<_> = (0..THREADS)
            .map(|t| {
                let act = &act;
                move || act(t, &mut Rng::new(seed.wrapping_mul(31).wrapping_add(t)))
            })
            .collect();
        threads::run_all("memory", tasks).into_iter().collect()
    }

    fn act(&self, workload: Workload, config: &Config) -> Result<(), String> {
        let rng = &mut Rng::new(config.seed);
        let (seed, data) = (config.seed, config.data);
        // Reads come in the number that writes do.
        let reads = data >> 11;
        match workload {
            Workload::Mixed => self.mixed(rng, data),
            Workload::FillRandom | Workload::Overwrite => {
                self.together(seed, |_, rng| self.write_bytes(rng, data / THREADS))
            }
            Workload::Zipf => {
                self.write_bytes(rng, data)?;
                self.together(seed, |_, rng| {
                    (0..reads).try_for_each(|_| self.get(rng, 0.7))
                })
            }
            Workload::Scan => {
                self.write_bytes(rng, data)?;
                self.together(seed, |t, rng| {
                    let mut cursors = Vec::new();
                    for _ in 0..CURSORS {
                        cursors.push(self.cursor(rng)?);
                    }
                    // Each goes a long way, then stands still with what it has.
                    for (n, cursor) in cursors.iter_mut().enumerate() {
                        for _ in 0..reads / 2 {
                            step(cursor, (n as u64 + t).is_multiple_of(2));
                            self.call();
                        }
                    }
                    cursors
                        .iter()
                        .try_for_each(|c| c.status().map_err(|e| e.to_string()))
                })
            }
            Workload::Large | Workload::Blobs => self.together(seed, |t, rng| {
                let mut written = 0;
                let mut cursor = self.cursor(rng)?;
                while written < data {
                    if t == 0 {
                        written += self.write(rng)?;
                    } else {
                        written += 32 << 10;
                        self.get(rng, 1.0)?;
                        step(&mut cursor, t == 2);
                    }
                }
                cursor.status().map_err(|e| e.to_string())
            }),
            Workload::BlobScan => {
                self.write_bytes(rng, data)?;
                self.together(seed, |t, rng| {
                    let mut cursors = Vec::new();
                    for _ in 0..CURSORS {
                        cursors.push(self.cursor(rng)?);
                    }
                    for (n, cursor) in cursors.iter_mut().enumerate() {
                        for i in 0..reads / 16 {
                            step(cursor, (n as u64 + t).is_multiple_of(2));
                            self.call();
                            match i % 32 {
                                0 => self.get_several(rng)?,
                                8 | 24 => self.get(rng, 0.7)?,
                                16 => self.write(rng).map(drop)?,
                                _ => {}
                            }
                        }
                    }
                    cursors
                        .iter()
                        .try_for_each(|c| c.status().map_err(|e| e.to_string()))
                })
            }
            Workload::Families => {
                self.together(seed, |_, rng| self.write_bytes(rng, data / 2 / THREADS))?;
                self.together(seed, |_, rng| {
                    (0..reads / 2).try_for_each(|_| self.get(rng, 1.0))
                })
            }
            Workload::Cycles => Ok(()),
        }
    }

    fn mixed(&self, rng: &mut Rng, data: u64) -> Result<(), String> {
        self.write_bytes(rng, data)?;
        (0..data >> 11).try_for_each(|_| self.get(rng, 1.0))?;
        // Cursors hold blocks, and files and memtables that go meanwhile.
        let mut cursors = Vec::new();
        for _ in 0..CURSORS {
            cursors.push(self.cursor(rng)?);
        }
        for _ in 0..data >> 16 {
            cursors.iter_mut().for_each(|c| step(c, false));
            for _ in 0..4 {
                self.write(rng)?;
                self.get(rng, 1.0)?;
            }
        }
        cursors
            .iter()
            .try_for_each(|c| c.status().map_err(|e| e.to_string()))
    }
}
