//! A budget of memory against what the process really takes.
//!
//! A database on the real file system is written, read at random, and scanned by many cursors at
//! once, all under one [`MemoryBudget`] that is far smaller than its data.
//!
//! 1. What the budget counts never exceeds its limit by more than a twentieth.
//! 2. The resident memory of the process grows by no more than the limit, a quarter of it for
//!    what the allocator wastes, and [`JOBS_BYTES`] for buffers of flushes and compactions, which
//!    the budget does not count.

use std::sync::Arc;

use orogen_engine::MemoryBudget;
use orogen_testkit::{Rng, TempDir};

use crate::engine::{ColumnFamily, Db, Options, ReadOptions, Result, WriteOptions};
use crate::guard::timed;
use crate::report::{Failure, Figure};

/// Buffers of flushes and compactions at most: about 35 to 50 MiB were seen, whatever the limit.
const JOBS_BYTES: u64 = 48 << 20;
/// Calls between two looks.
const LOOK_EVERY: u64 = 500;
/// Cursors that are open at once.
const CURSORS: usize = 16;

/// What must hold, in a few words.
const RULE: &str = "what is counted stays within the limit, and what the process takes near it";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// The budget's limit.
    pub limit: u64,
    /// Bytes of values that are written.
    pub data: u64,
    /// Decides keys and values.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limit: 48 << 20,
            data: 192 << 20,
            seed: 1,
        }
    }
}

/// Resident bytes of this process; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

struct World {
    db: Db,
    families: Vec<ColumnFamily>,
    budget: Arc<MemoryBudget>,
    rng: Rng,
    resident_before: u64,
    resident_max: u64,
    counted_max: u64,
    calls: u64,
}

/// Runs all phases.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let mut peaks = (0, 0, 0);
    let (result, seconds) = timed(|| play(config, &mut peaks));
    let (calls, counted, resident) = peaks;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let repeat = format!(
        "memory --limit {} --data {} --seed {}",
        config.limit, config.data, config.seed
    );
    Figure {
        name: "memory".to_owned(),
        rule: RULE,
        count: calls,
        unit: "calls",
        seeds: 1,
        seconds,
        details: vec![
            ("limit_mib", mib(config.limit)),
            ("counted_mib_max", mib(counted)),
            ("resident_growth_mib_max", mib(resident)),
        ],
        failures: result
            .err()
            .map(|what| Failure { what, repeat })
            .into_iter()
            .collect(),
    }
}

fn play(config: &Config, peaks: &mut (u64, u64, u64)) -> Result<(), String> {
    let folder = TempDir::new("memory");
    let resident_before = resident_bytes();
    let budget = Arc::new(MemoryBudget::new(config.limit));
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.db.memory_budget = Some(budget.clone());
    options.cf.max_write_buffer_number = 6;
    options.cf.target_file_size_base = 4 << 20;
    options.cf.max_bytes_for_level_base = 16 << 20;
    options.cf.table.filter_bits_per_key = 10.0;
    let told = |e: crate::engine::Error| e.to_string();
    let db = Db::open(folder.path().join("db"), &options).map_err(told)?;
    let mut families = vec![db.default_column_family()];
    for name in ["a", "b"] {
        let made = db.create_column_family(name, options.cf.clone());
        families.push(made.map_err(told)?);
    }
    let mut world = World {
        db,
        families,
        budget,
        rng: Rng::new(config.seed),
        resident_before,
        resident_max: 0,
        counted_max: 0,
        calls: 0,
    };
    let result = world.phases(config.data);
    *peaks = (world.calls, world.counted_max, world.resident_max);
    result?;
    world.db.close().map_err(told)?;
    if world.counted_max > config.limit + config.limit / 20 {
        return Err(format!("{} bytes were counted", world.counted_max));
    }
    let most = config.limit + config.limit / 4 + JOBS_BYTES;
    if world.resident_max > most {
        return Err(format!(
            "resident memory grew by {} of {most} bytes",
            world.resident_max
        ));
    }
    Ok(())
}

impl World {
    fn key(&mut self) -> Vec<u8> {
        format!("key{:08}", self.rng.below(400_000)).into_bytes()
    }

    fn family(&mut self) -> ColumnFamily {
        self.rng.pick(&self.families).clone()
    }

    fn look(&mut self) {
        self.calls += 1;
        if self.calls.is_multiple_of(LOOK_EVERY) {
            self.counted_max = self.counted_max.max(self.budget.usage().total());
            let grown = resident_bytes().saturating_sub(self.resident_before);
            self.resident_max = self.resident_max.max(grown);
        }
    }

    fn write(&mut self) -> Result<u64, String> {
        let (key, family) = (self.key(), self.family());
        let len = self.rng.range(20..900);
        let value = self.rng.bytes(len);
        self.db
            .put_opt(&WriteOptions::default(), &family, &key, &value)
            .map_err(|e| format!("put: {e}"))?;
        self.look();
        Ok(value.len() as u64)
    }

    fn get(&mut self) -> Result<(), String> {
        let (key, family) = (self.key(), self.family());
        self.db
            .get_opt(&ReadOptions::default(), &family, &key)
            .map_err(|e| format!("get: {e}"))?;
        self.look();
        Ok(())
    }

    fn phases(&mut self, data: u64) -> Result<(), String> {
        let mut written = 0;
        while written < data {
            written += self.write()?;
        }
        for _ in 0..100_000 {
            self.get()?;
        }
        // Cursors hold blocks, and files and memtables that go meanwhile.
        let mut cursors = Vec::new();
        for _ in 0..CURSORS {
            let (key, family) = (self.key(), self.family());
            let cursor = self.db.iter(&ReadOptions::default(), &family);
            let mut cursor = cursor.map_err(|e| format!("iter: {e}"))?;
            cursor.seek(&key);
            cursors.push(cursor);
        }
        for _ in 0..3000 {
            for cursor in &mut cursors {
                if cursor.valid() {
                    cursor.next();
                }
            }
            for _ in 0..4 {
                self.write()?;
                self.get()?;
            }
        }
        Ok(())
    }
}
