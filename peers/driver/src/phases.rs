//! The phases by name, and how each is run and measured.
//!
//! `--num` is the number of keys, and of operations of each phase that fills or overwrites;
//! `--reads` the number of point reads of a phase, which seeks do a quarter of. Both are shared
//! out among the threads of a phase.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::data::{KEY_LEN, POOL_LEN, Rng, VALUE_LEN, Values, key_of, missing_key_of, value_pool};
use crate::measure::{Meter, Watch, Work, print};
use crate::process::disk_bytes;
use crate::{Engine, Key, Result, Settings};

const PAIR_LEN: u64 = (KEY_LEN + VALUE_LEN) as u64;
const BATCH_LEN: usize = 100;
const NEXTS: usize = 10;
/// Writes a second beside `readwhilewriting`'s reader.
const WRITES_PER_SECOND_BESIDE: f64 = 100_000.0;
/// User data in the WAL when `loadwal`'s process is killed.
const WAL_PAIRS: u64 = (64 << 20) / PAIR_LEN;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    FillSequential,
    FillRandom,
    FillBatch,
    SyncPut,
    ReadRandom,
    ReadMissing,
    MultiRead,
    ReadWhileWriting,
    Seek,
    Scan { reverse: bool },
}

struct Phase {
    name: &'static str,
    kind: Kind,
    threads: u64,
    seed: u64,
}

const fn phase(name: &'static str, kind: Kind, threads: u64, seed: u64) -> Phase {
    Phase {
        name,
        kind,
        threads,
        seed,
    }
}

/// `fillrandom` and `overwrite` differ in what they find. `loadwal` and `reopen` are beside.
const PHASES: [Phase; 16] = [
    phase("fillseq", Kind::FillSequential, 1, 1),
    phase("fillrandom", Kind::FillRandom, 1, 2),
    phase("fillrandom-2t", Kind::FillRandom, 2, 3),
    phase("overwrite", Kind::FillRandom, 1, 4),
    phase("fillbatch", Kind::FillBatch, 1, 5),
    phase("syncput-1t", Kind::SyncPut, 1, 6),
    phase("syncput-4t", Kind::SyncPut, 4, 7),
    phase("syncput-16t", Kind::SyncPut, 16, 8),
    phase("readrandom", Kind::ReadRandom, 1, 9),
    phase("readrandom-2t", Kind::ReadRandom, 2, 10),
    phase("readmissing", Kind::ReadMissing, 1, 11),
    phase("multireadrandom", Kind::MultiRead, 1, 12),
    phase("readwhilewriting", Kind::ReadWhileWriting, 1, 13),
    phase("seekrandom", Kind::Seek, 1, 14),
    phase("readseq", Kind::Scan { reverse: false }, 1, 15),
    phase("readreverse", Kind::Scan { reverse: true }, 1, 16),
];
const LOADWAL_SEED: u64 = 17;

impl Phase {
    fn writes(&self) -> bool {
        matches!(
            self.kind,
            Kind::FillSequential | Kind::FillRandom | Kind::FillBatch | Kind::SyncPut
        )
    }

    /// Operations of each thread.
    fn ops_per_thread(&self, num: u64, reads: u64) -> u64 {
        let total = match self.kind {
            Kind::FillSequential | Kind::FillRandom | Kind::FillBatch => num,
            Kind::SyncPut => [6000, 12_000, 24_000][self.threads.ilog2() as usize / 2].min(num),
            Kind::Seek => reads / 4,
            Kind::Scan { .. } => 0,
            _ => reads,
        };
        total / self.threads
    }
}

/// What a thread of a phase works with.
struct Thread<'a, E> {
    db: &'a E,
    phase: &'a Phase,
    index: u64,
    num: u64,
    ops: u64,
    pool: &'a [u8],
}

impl<E: Engine> Thread<'_, E> {
    fn run(&self) -> Result<Work> {
        let mut rng = Rng::new(self.phase.seed, self.index);
        let mut values = Values::new(self.pool, VALUE_LEN);
        let mut watch = Watch::new();
        let num = self.num;
        match self.phase.kind {
            Kind::FillSequential => {
                for number in 0..self.ops {
                    self.db.put(&key_of(number), values.next(), false)?;
                    watch.done(1);
                }
            }
            Kind::FillRandom | Kind::SyncPut => {
                let sync = self.phase.kind == Kind::SyncPut;
                for _ in 0..self.ops {
                    self.db.put(&key_of(rng.below(num)), values.next(), sync)?;
                    watch.done(1);
                }
            }
            Kind::FillBatch => {
                let mut batch_keys: Vec<Key> = Vec::with_capacity(BATCH_LEN);
                let mut batch_values: Vec<&[u8]> = Vec::with_capacity(BATCH_LEN);
                for _ in 0..self.ops / BATCH_LEN as u64 {
                    batch_keys.clear();
                    batch_values.clear();
                    for _ in 0..BATCH_LEN {
                        batch_keys.push(key_of(rng.below(num)));
                        batch_values.push(values.next());
                    }
                    self.db.put_batch(&batch_keys, &batch_values)?;
                    watch.done(BATCH_LEN as u64);
                }
            }
            Kind::ReadRandom | Kind::ReadMissing | Kind::ReadWhileWriting => {
                let missing = self.phase.kind == Kind::ReadMissing;
                let make: fn(u64) -> Key = if missing { missing_key_of } else { key_of };
                for _ in 0..self.ops {
                    let len = self.db.get(&make(rng.below(num)))?;
                    watch.work.found += u64::from(len == Some(VALUE_LEN));
                    watch.done(1);
                }
            }
            Kind::MultiRead => {
                let mut keys: Vec<Key> = Vec::with_capacity(BATCH_LEN);
                for _ in 0..self.ops / BATCH_LEN as u64 {
                    keys.clear();
                    keys.extend((0..BATCH_LEN).map(|_| key_of(rng.below(num))));
                    watch.work.found += self.db.multi_get(&keys)? as u64;
                    watch.done(BATCH_LEN as u64);
                }
            }
            Kind::Seek => {
                for _ in 0..self.ops {
                    let seen = self.db.seek(&key_of(rng.below(num)), NEXTS)?;
                    watch.work.found += seen as u64;
                    watch.done(1);
                }
            }
            Kind::Scan { reverse } => {
                let mut bytes = 0;
                self.db.scan(reverse, &mut |key, value| {
                    bytes += (key.len() + value.len()) as u64;
                    watch.done(1);
                })?;
                if bytes != watch.work.ops * PAIR_LEN {
                    return Err(format!("a scan gave {bytes} bytes").into());
                }
                watch.work.found = watch.work.ops;
            }
        }
        Ok(watch.work)
    }
}

/// Overwrites random keys at a fixed rate until it is told to stop; gives the number of writes.
fn write_beside<E: Engine>(db: &E, num: u64, pool: &[u8], stop: &AtomicBool) -> Result<u64> {
    const BURST: u64 = 100;
    let mut rng = Rng::new(LOADWAL_SEED + 1, 0);
    let mut values = Values::new(pool, VALUE_LEN);
    let start = Instant::now();
    let mut written = 0;
    loop {
        for _ in 0..BURST {
            db.put(&key_of(rng.below(num)), values.next(), false)?;
        }
        written += BURST;
        if stop.load(Ordering::Relaxed) {
            return Ok(written);
        }
        let due = Duration::from_secs_f64(written as f64 / WRITES_PER_SECOND_BESIDE);
        if let Some(ahead) = due.checked_sub(start.elapsed()) {
            std::thread::sleep(ahead);
        }
    }
}

/// Runs the threads of a phase; gives their work and how long it took from start to end.
fn run_threads<E: Engine>(
    db: &E,
    phase: &Phase,
    num: u64,
    reads: u64,
    pool: &[u8],
) -> Result<(Work, Duration, u64)> {
    let barrier = Barrier::new(phase.threads as usize + 1);
    let stop = Arc::new(AtomicBool::new(false));
    let beside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = (phase.kind == Kind::ReadWhileWriting).then(|| {
            scope.spawn(|| {
                write_beside(db, num, pool, &stop)
                    .map(|written| beside.store(written, Ordering::Relaxed))
            })
        });
        let handles: Vec<_> = (0..phase.threads)
            .map(|index| {
                let thread = Thread {
                    db,
                    phase,
                    index,
                    num,
                    ops: phase.ops_per_thread(num, reads),
                    pool,
                };
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    thread.run()
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let mut all = Watch::new().work;
        let mut outcome = Ok(());
        for handle in handles {
            match handle.join().map_err(|_| "a thread panicked")? {
                Ok(work) => all.merge(&work),
                Err(error) => outcome = Err(error),
            }
        }
        let elapsed = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        if let Some(writer) = writer {
            writer.join().map_err(|_| "the writer panicked")??;
        }
        outcome?;
        Ok((all, elapsed, beside.load(Ordering::Relaxed)))
    })
}

/// Keys that are there after the phase `name`, and what must run before it.
struct LiveKeys {
    seen: Vec<u64>,
    count: u64,
}

impl LiveKeys {
    fn after(name: &str, num: u64) -> u64 {
        // The one phase that runs on what another left.
        let before = (name == "overwrite").then_some("fillrandom");
        let mut live = Self {
            seen: vec![0; (num as usize).div_ceil(64)],
            count: 0,
        };
        for phase in PHASES
            .iter()
            .filter(|p| p.name == name || before == Some(p.name))
        {
            if phase.kind == Kind::FillSequential {
                return num;
            }
            for thread in 0..phase.threads {
                let mut rng = Rng::new(phase.seed, thread);
                (0..phase.ops_per_thread(num, 0)).for_each(|_| live.add(rng.below(num)));
            }
        }
        live.count
    }

    fn add(&mut self, number: u64) {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        self.count += u64::from(self.seen[word] & bit == 0);
        self.seen[word] |= bit;
    }
}

fn measure<E: Engine>(
    db: &E,
    settings: &Settings,
    phase: &Phase,
    num: u64,
    reads: u64,
    pool: &[u8],
) -> Result<Value> {
    let meter = Meter::start()?;
    let (work, elapsed, beside) = run_threads(db, phase, num, reads, pool)?;
    let mut document = meter.foreground(E::NAME, phase.name, phase.threads, &work, elapsed)?;
    document["multi_get_is_a_loop"] = json!(phase.kind == Kind::MultiRead && !E::HAS_MULTI_GET);
    if phase.kind == Kind::ReadWhileWriting {
        document["writes_beside_per_second"] = json!(beside as f64 / elapsed.as_secs_f64());
    }
    if phase.writes() {
        let settled = db.settle()?;
        let user_bytes = work.ops * PAIR_LEN;
        let live_bytes = LiveKeys::after(phase.name, num) * PAIR_LEN;
        meter.settled(&mut document, settled, user_bytes)?;
        let disk = disk_bytes(&settings.dir)?;
        document["space_amplification"] = json!(disk as f64 / live_bytes as f64);
    }
    Ok(document)
}

/// Leaves user data in the WAL, says so, and waits to be killed.
fn load_wal<E: Engine>(settings: &Settings, pool: &[u8]) -> Result<()> {
    let settings = Settings {
        // So that none of it is flushed.
        write_buffer_bytes: 512 << 20,
        ..settings.clone()
    };
    let db = E::open(&settings)?;
    let mut rng = Rng::new(LOADWAL_SEED, 0);
    let mut values = Values::new(pool, VALUE_LEN);
    for n in 1..=WAL_PAIRS {
        // The last one with sync: no engine may keep some of it in the process.
        db.put(&key_of(rng.next()), values.next(), n == WAL_PAIRS)?;
    }
    print(&json!({ "engine": E::NAME, "phase": "loadwal", "ops": WAL_PAIRS }))?;
    loop {
        std::thread::park();
    }
}

/// How long it takes from open to the first get.
fn reopen<E: Engine>(settings: &Settings) -> Result<E> {
    let mut rng = Rng::new(LOADWAL_SEED, 0);
    let first = key_of(rng.next());
    let last = (1..WAL_PAIRS).fold(first, |_, _| key_of(rng.next()));
    let meter = Meter::start()?;
    let mut watch = Watch::new();
    let db = E::open(settings)?;
    watch.work.found = u64::from(db.get(&first)? == Some(VALUE_LEN));
    watch.done(1);
    let elapsed = meter.elapsed();
    let document = meter.foreground(E::NAME, "reopen", 1, &watch.work, elapsed)?;
    if watch.work.found != 1 || db.get(&last)? != Some(VALUE_LEN) {
        return Err("a pair that was in the WAL is gone".into());
    }
    print(&document)?;
    Ok(db)
}

/// Runs phases one after another on the database of `settings`.
pub(crate) fn run<E: Engine>(
    settings: &Settings,
    names: &[String],
    num: u64,
    reads: u64,
) -> Result<()> {
    let pool = value_pool(POOL_LEN);
    match names {
        [name] if name == "loadwal" => return load_wal::<E>(settings, &pool),
        [name] if name == "reopen" => return reopen::<E>(settings)?.close(),
        _ => {}
    }
    let find = |name: &String| {
        PHASES
            .iter()
            .find(|p| p.name == name)
            .ok_or_else(|| format!("no phase `{name}` among others"))
    };
    let phases = names
        .iter()
        .map(find)
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let db = E::open(settings)?;
    for phase in phases {
        print(&measure(&db, settings, phase, num, reads, &pool)?)?;
    }
    db.close()
}

#[cfg(test)]
mod tests;
