//! Writers that are faster than compactions, and how long they have to wait.
//!
//! Threads put 1 KiB values on the real file system as fast as they are let, into small memtables
//! and levels, so that the database owes compactions all the time. Told is the distribution of the
//! time of single puts. No time fails the run (machines differ); a put that fails does, and so does
//! a key that is not there afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use orogen_env::{Clock, SystemClock, threads};
use orogen_testkit::{Rng, TempDir};

use crate::engine::{Db, Options};
use crate::guard::timed;
use crate::report::{Failure, Figure};

/// Threads that write.
const WRITERS: u64 = 4;
/// Bytes of a value.
const VALUE_BYTES: usize = 1024;
/// Keys of each thread.
const KEYS: u64 = 100_000;

/// What must hold, in a few words.
const RULE: &str = "every put is taken and is there; the times are told";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long.
    pub seconds: f64,
    /// Decides keys and values.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seconds: 30.0,
            seed: 1,
        }
    }
}

/// Writes for so long, and tells how long single puts took.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let (result, seconds) = timed(|| play(config));
    let repeat = format!("stalls --seconds {} --seed {}", config.seconds, config.seed);
    let (mut micros, failures) = match result {
        Ok(micros) => (micros, Vec::new()),
        Err(what) => (Vec::new(), vec![Failure { what, repeat }]),
    };
    micros.sort_unstable();
    let at = |share: f64| {
        let i = (micros.len() as f64 * share) as usize;
        let last = micros.len().saturating_sub(1);
        micros.get(i.min(last)).map_or(0.0, |&m| m as f64 / 1000.0)
    };
    Figure {
        name: "stalls".to_owned(),
        rule: RULE,
        count: micros.len() as u64,
        unit: "puts",
        seeds: 1,
        seconds,
        details: vec![
            ("p50_ms", at(0.5)),
            ("p99_ms", at(0.99)),
            ("p99_99_ms", at(0.9999)),
            ("max_ms", at(1.0)),
        ],
        failures,
    }
}

fn key(writer: u64, n: u64) -> Vec<u8> {
    format!("{writer}/{n:08}").into_bytes()
}

fn play(config: &Config) -> Result<Vec<u64>, String> {
    let folder = TempDir::new("stalls");
    let mut options = Options::default();
    options.db.create_if_missing = true;
    options.cf.write_buffer_size = 4 << 20;
    options.cf.target_file_size_base = 2 << 20;
    options.cf.max_bytes_for_level_base = 8 << 20;
    let db = Db::open(folder.path().join("db"), &options).map_err(|e| e.to_string())?;
    let end = SystemClock.now_micros() + (config.seconds * 1e6) as u64;
    let written: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|w| {
            let (db, last) = (&db, &written[w as usize]);
            move || -> Result<Vec<u64>, String> {
                let mut rng = Rng::new(config.seed.wrapping_mul(31).wrapping_add(w));
                let mut micros = Vec::new();
                loop {
                    let start = SystemClock.now_micros();
                    if start >= end {
                        return Ok(micros);
                    }
                    let n = rng.below(KEYS);
                    let mut value = n.to_le_bytes().to_vec();
                    value.extend(rng.bytes(VALUE_BYTES - 8));
                    let start = start.max(SystemClock.now_micros());
                    db.put(&key(w, n), &value)
                        .map_err(|e| format!("put: {e}"))?;
                    micros.push(SystemClock.now_micros().saturating_sub(start));
                    last.store(n + 1, Ordering::Relaxed);
                }
            }
        })
        .collect();
    let mut all = Vec::new();
    for micros in threads::run_all("stalls", tasks) {
        all.extend(micros?);
    }
    for (w, last) in written.iter().enumerate() {
        let Some(n) = last.load(Ordering::Relaxed).checked_sub(1) else {
            continue;
        };
        let found = db.get(&key(w as u64, n)).map_err(|e| e.to_string())?;
        if found.is_none_or(|v| v.get(..8) != Some(&n.to_le_bytes()[..])) {
            return Err("the last put is not there".to_owned());
        }
    }
    db.close().map_err(|e| e.to_string())?;
    Ok(all)
}
