//! System calls that do a part of their work.
//!
//! On a real file system, half of all reads and writes move some of the bytes only, and a quarter
//! is interrupted before it begins. A database on it is written, flushed, compacted, opened again,
//! and compared with a map:
//!
//! 1. no call of the engine fails;
//! 2. it holds what was written; by the plain calls of the system, too, so that what is on the disk
//!    is right and not only what is read back in the same bad way.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_env::{FileSystem, PosixFileSystem, ShortCallsFileSystem};
use orogen_testkit::{Rng, TempDir};

use crate::engine::{
    CompactRangeOptions, Db, Options, ReadOptions, Result, WriteBatch, WriteOptions,
};
use crate::guard::{Guard, Outcome, timed};
use crate::model::Pairs;
use crate::report::{Failure, Figure};
use crate::script::small_family;

/// Calls of a seed.
const STEPS: u64 = 600;
/// Different keys.
const KEYS: u64 = 300;

/// What must hold, in a few words.
const RULE: &str = "no call of the engine fails, and what is there is what was written";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// The first seed.
    pub seed: u64,
    /// How many seeds.
    pub seeds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            seed: 1,
            seeds: 4,
        }
    }
}

#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    cut_short: AtomicU64,
    interrupted: AtomicU64,
}

/// Runs all seeds.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let counts = Counts::default();
    let repeat = |seed: u64| format!("short-calls --seed {seed} --seeds 1");
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(config.threads, config.seed, 1, repeat, |seed| {
            if seed >= config.seed + config.seeds {
                return Outcome::NoMore;
            }
            match play(seed, &counts) {
                Ok(()) => Outcome::Passed,
                Err(what) => Outcome::Failed(Failure {
                    what,
                    repeat: repeat(seed),
                }),
            }
        })
    });
    Figure {
        name: "short-calls".to_owned(),
        rule: RULE,
        count: counts.cut_short.into_inner() + counts.interrupted.load(Ordering::Relaxed),
        unit: "bad calls",
        seeds: passed,
        seconds,
        details: vec![
            ("system_calls", counts.calls.into_inner() as f64),
            ("interrupted", counts.interrupted.into_inner() as f64),
        ],
        failures,
    }
}

fn options(rng: &mut Rng, fs: Arc<dyn FileSystem>) -> Options {
    let mut options = Options::default();
    options.db.fs = fs;
    options.db.create_if_missing = true;
    options.db.recycle_log_file_num = *rng.pick(&[0, 2]);
    options.db.avoid_flush_during_recovery = rng.chance(1, 3);
    options.db.bytes_per_sync = *rng.pick(&[0, 4096]);
    options.cf = small_family();
    options.cf.write_buffer_size = 32 << 10;
    options.cf.target_file_size_base = 16 << 10;
    options.cf.paranoid_file_checks = rng.chance(1, 2);
    options
}

fn play(seed: u64, counts: &Counts) -> std::result::Result<(), String> {
    let folder = TempDir::new("short-calls");
    let dir = folder.path().join("db");
    let fs = Arc::new(ShortCallsFileSystem::new(seed));
    let played = write(seed, &dir, fs.clone());
    let did = fs.counts();
    counts.calls.fetch_add(did.calls, Ordering::Relaxed);
    counts.cut_short.fetch_add(did.cut_short, Ordering::Relaxed);
    counts
        .interrupted
        .fetch_add(did.interrupted, Ordering::Relaxed);
    let model = played.map_err(|e| e.to_string())??;
    let mut options = options(&mut Rng::new(seed), Arc::new(PosixFileSystem));
    options.db.create_if_missing = false;
    let db = Db::open(&dir, &options).map_err(|e| format!("by plain calls: {e}"))?;
    if pairs(&db).map_err(|e| e.to_string())? != model {
        return Err("by plain calls it holds something else".to_owned());
    }
    db.verify_checksums().map_err(|e| format!("verify: {e}"))?;
    db.close().map_err(|e| e.to_string())
}

/// Writes, and gives what must be there; the inner error is a wrong answer.
fn write(
    seed: u64,
    dir: &Path,
    fs: Arc<ShortCallsFileSystem>,
) -> Result<std::result::Result<Pairs, String>> {
    let mut rng = Rng::new(seed);
    let options = options(&mut rng, fs);
    let mut db = Db::open(dir, &options)?;
    let mut model: Pairs = BTreeMap::new();
    for step in 0..STEPS {
        let key = format!("key{:04}", rng.below(KEYS)).into_bytes();
        match rng.below(40) {
            0 => db.flush()?,
            1 => {
                let family = db.default_column_family();
                db.compact_range(&CompactRangeOptions::default(), &family, None, None)?;
            }
            2 => {
                db.close()?;
                db = Db::open(dir, &options)?;
                if pairs(&db)? != model {
                    return Ok(Err(format!("step {step}: it holds something else")));
                }
            }
            3..=6 => {
                if db.get(&key)?.as_deref() != model.get(&key).map(Vec::as_slice) {
                    return Ok(Err(format!("step {step}: a get is wrong")));
                }
            }
            7..=9 => {
                db.delete(&key)?;
                model.remove(&key);
            }
            _ => {
                let mut batch = WriteBatch::new();
                for n in 0..rng.range(1..6) {
                    let key = format!("key{:04}", rng.below(KEYS)).into_bytes();
                    let value = rng.bytes(50 + n * 300);
                    batch.put(0, &key, &value);
                    model.insert(key, value);
                }
                let how = WriteOptions {
                    sync: rng.chance(1, 4),
                    ..WriteOptions::default()
                };
                db.write_opt(&how, &mut batch)?;
            }
        }
    }
    db.close()?;
    Ok(Ok(model))
}

fn pairs(db: &Db) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut iter = db.iter(&ReadOptions::default(), &db.default_column_family())?;
    iter.seek_to_first();
    while iter.valid() {
        pairs.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status()?;
    Ok(pairs)
}
