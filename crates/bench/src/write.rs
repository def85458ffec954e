//! Workloads that change the database.

use orogen::{CompactRangeOptions, WriteBatch};
use orogen_base::Result;
use orogen_env::{Clock, SystemClock};

use crate::workload::Worker;

/// `--num` writes of each thread in batches; `next` gives the numbers of the keys.
fn fill(w: &mut Worker, mut next: impl FnMut(&mut Worker) -> u64) -> Result<()> {
    let (mut key, mut values) = (w.key(), w.values());
    let options = w.write_options();
    let entries = w.flags.batch_size;
    let pair_bytes = (w.key_size + w.flags.value_size) as u64;
    let mut batch = WriteBatch::with_capacity(entries * (pair_bytes as usize + 16));
    let mut budget = w.budget(w.flags.num);
    while budget.take(entries as u64) {
        batch.clear();
        for _ in 0..entries {
            batch.put(0, key.set(next(w)), values.next());
        }
        w.db.write_opt(&options, &mut batch)?;
        w.stats.bytes += entries as u64 * pair_bytes;
        w.stats.finished(entries as u64);
    }
    Ok(())
}

pub(crate) fn sequential(w: &mut Worker) -> Result<()> {
    let mut number = 0;
    fill(w, |_| {
        number += 1;
        number - 1
    })
}

pub(crate) fn random(w: &mut Worker) -> Result<()> {
    let num = w.flags.num;
    fill(w, |w| w.rng.below(num))
}

fn delete(w: &mut Worker, mut next: impl FnMut(&mut Worker) -> u64) -> Result<()> {
    let mut key = w.key();
    let options = w.write_options();
    let entries = w.flags.batch_size;
    let mut batch = WriteBatch::new();
    let mut budget = w.budget(w.flags.num);
    while budget.take(entries as u64) {
        batch.clear();
        for _ in 0..entries {
            batch.delete(0, key.set(next(w)));
        }
        w.db.write_opt(&options, &mut batch)?;
        w.stats.finished(entries as u64);
    }
    Ok(())
}

pub(crate) fn delete_sequential(w: &mut Worker) -> Result<()> {
    let mut number = 0;
    delete(w, |_| {
        number += 1;
        number - 1
    })
}

pub(crate) fn delete_random(w: &mut Worker) -> Result<()> {
    let num = w.flags.num;
    delete(w, |w| w.rng.below(num))
}

/// Writes random keys until no reader is left, at `--benchmark_write_rate_limit`.
pub(crate) fn beside_readers(w: &mut Worker) -> Result<()> {
    let (mut key, mut values) = (w.key(), w.values());
    let options = w.write_options();
    let pair_bytes = (w.key_size + w.flags.value_size) as u64;
    let rate = w.flags.benchmark_write_rate_limit;
    let mut batch = WriteBatch::new();
    let start = SystemClock.now_micros();
    let mut written = 0;
    while w.others_run() {
        batch.clear();
        let number = w.rng.below(w.flags.num);
        batch.put(0, key.set(number), values.next());
        w.db.write_opt(&options, &mut batch)?;
        written += pair_bytes;
        if rate > 0 {
            let due = start + (written as f64 / rate as f64 * 1e6) as u64;
            let ahead = due.saturating_sub(SystemClock.now_micros());
            // Sleeps shorter than this are not kept by the system.
            if ahead > 1000 {
                SystemClock.sleep(std::time::Duration::from_micros(ahead.min(100_000)));
            }
        }
    }
    Ok(())
}

pub(crate) fn compact(w: &mut Worker) -> Result<()> {
    w.db.compact_range(&CompactRangeOptions::default(), &w.family, None, None)?;
    w.stats.finished(1);
    Ok(())
}
