//! Writers that are faster than compactions, and how long they have to wait.
//!
//! Threads put 1 KiB values on the real file system as fast as they are let, into small memtables
//! and levels, so that the database owes compactions all the time. Told is the distribution of the
//! time of single puts. No time fails the run (machines differ); a put that fails does, and so does
//! a key that has not its last value afterwards, or was never put.

use orogen_env::{Clock, SystemClock, threads};
use orogen_testkit::{Rng, TempDir};

use crate::engine::{Db, Options, ReadOptions};
use crate::guard::timed;
use crate::report::{Failure, Figure};

/// Threads that write.
const WRITERS: u64 = 4;
/// Bytes of a value.
const VALUE_BYTES: usize = 1024;
/// Keys of each thread.
const KEYS: u64 = 100_000;

/// What must hold, in a few words.
const RULE: &str = "every put is taken, every key has its last value; the times are told";

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
    let tasks: Vec<_> = (0..WRITERS)
        .map(|w| {
            let db = &db;
            move || -> Result<(Vec<u64>, Vec<Option<u64>>), String> {
                let mut rng = Rng::new(config.seed.wrapping_mul(31).wrapping_add(w));
                let (mut micros, mut last) = (Vec::new(), vec![None; KEYS as usize]);
                loop {
                    let start = SystemClock.now_micros();
                    if start >= end {
                        return Ok((micros, last));
                    }
                    let n = rng.below(KEYS);
                    let seed = rng.u64();
                    let value = value(seed);
                    let start = start.max(SystemClock.now_micros());
                    db.put(&key(w, n), &value)
                        .map_err(|e| format!("put: {e}"))?;
                    micros.push(SystemClock.now_micros().saturating_sub(start));
                    last[n as usize] = Some(seed);
                }
            }
        })
        .collect();
    let (mut all, mut written) = (Vec::new(), Vec::new());
    for done in threads::run_all("stalls", tasks) {
        let (micros, last) = done?;
        all.extend(micros);
        written.push(last);
    }
    check(&db, &written)?;
    db.close().map_err(|e| e.to_string())?;
    Ok(all)
}

/// A value that its seed tells: who checks needs to keep no more.
fn value(seed: u64) -> Vec<u8> {
    Rng::new(seed).bytes(VALUE_BYTES)
}

/// Compares all that is there with the seed of each writer's last value of each key.
fn check(db: &Db, written: &[Vec<Option<u64>>]) -> Result<(), String> {
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .map_err(|e| e.to_string())?;
    iter.seek_to_first();
    // Keys of a writer rise with their numbers, and so do those of writers.
    for (writer, keys) in (0u64..).zip(written) {
        for (n, seed) in (0u64..).zip(keys) {
            let Some(seed) = seed else { continue };
            let key = key(writer, n);
            if !iter.valid() || iter.key() != key {
                iter.status().map_err(|e| e.to_string())?;
                let found = if iter.valid() { iter.key() } else { b"the end" };
                let (key, found) = (key.escape_ascii(), found.escape_ascii());
                return Err(format!("instead of key {key} there is {found}"));
            }
            if iter.value() != value(*seed) {
                let key = key.escape_ascii();
                return Err(format!("key {key} has not its last value"));
            }
            iter.next();
        }
    }
    iter.status().map_err(|e| e.to_string())?;
    if iter.valid() {
        let key = iter.key().escape_ascii();
        return Err(format!("key {key} was never put"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_missing_old_or_new_is_told() {
        let folder = TempDir::new("stalls-check");
        let mut options = Options::default();
        options.db.create_if_missing = true;
        let db = Db::open(folder.path().join("db"), &options).unwrap();
        let written = vec![vec![Some(1), None, Some(2)], vec![None, Some(3)]];
        for (key, seed) in [(key(0, 0), 1), (key(0, 2), 2), (key(1, 1), 3)] {
            db.put(&key, &value(seed)).unwrap();
        }
        check(&db, &written).unwrap();
        let told = |word: &str| {
            let error = check(&db, &written).unwrap_err();
            assert!(error.contains(word), "{error}");
        };
        // Not the last put of its writer.
        db.put(&key(0, 0), &value(9)).unwrap();
        told("0/00000000 has not its last value");
        db.put(&key(0, 0), &value(1)).unwrap();
        db.delete(&key(1, 1)).unwrap();
        told("key 1/00000001 there is the end");
        db.put(&key(1, 1), &value(3)).unwrap();
        db.put(&key(1, 7), &value(7)).unwrap();
        told("1/00000007 was never put");
    }
}
