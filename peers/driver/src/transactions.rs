//! Transactions by name, and how each phase is run and measured. What is counted is transactions.
//!
//! | phase | transactions | keys |
//! |---|---|---|
//! | `locks-1t`, `locks-8t` | ten writes, each under its lock, then rolled back | any of ten million |
//! | `locks-hot-1t`, `locks-hot-8t` | the same | ten of two hundred, in their order: nobody waits in a circle |
//! | `commit-...` | the same, committed: to the WAL without sync, and to the memtable | as above |
//! | `batch-10`, `batch-100`, `batch-10000` | so many writes, then a read of each, then dropped; no locks | any of ten million |
//! | `index-10`, `index-100`, `index-10000` | the same with an indexed batch alone, emptied and used again | any of ten million |
//! | `fill-10`, `fill-100`, `fill-10000` | the same without the reads | any of ten million |
//!
//! `--num` is how many transactions of ten writes the threads of a phase make together; larger ones are as many fewer.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::data::{Key, Rng, VALUE_LEN, key_of, value_pool};
use crate::measure::{Meter, Watch, Work, print};
use crate::{Result, fail};

/// Numbers that keys are drawn from.
const SPREAD: u64 = 10_000_000;
const HOT: u64 = 200;
/// Writes of a transaction with locks.
const WRITES: usize = 10;

/// A database with transactions under test.
pub trait Transactions: Sized + Send + Sync + 'static {
    /// Its name in results.
    const NAME: &'static str;

    /// A write batch that can be read.
    type Batch;

    /// Makes a database.
    fn open(dir: &std::path::Path) -> Result<Self>;
    /// Writes keys in one transaction that locks each first, waiting at most a second, and commits it or rolls it
    /// back; false if a lock was not to be had.
    fn write(&self, keys: &[Key], value: &[u8], commit: bool) -> Result<bool>;
    /// Writes keys in one transaction without locks, reads each back, and drops it; gives how many were found.
    fn write_and_read(&self, keys: &[Key], value: &[u8]) -> Result<usize>;

    /// An empty batch.
    fn batch(&self) -> Result<Self::Batch>;
    /// Writes keys to an empty batch.
    fn fill(&self, batch: &mut Self::Batch, keys: &[Key], value: &[u8]) -> Result<()>;
    /// Copies the value of each key out of a batch; gives how many were found.
    fn read(&self, batch: &mut Self::Batch, keys: &[Key]) -> Result<usize>;
    /// Empties a batch.
    fn clear(&self, batch: &mut Self::Batch);
}

#[derive(Clone, Copy)]
enum Kind {
    Locks { keys: u64, commit: bool },
    Batch { writes: usize },
    Index { writes: usize, reads: bool },
}

struct Phase {
    name: &'static str,
    kind: Kind,
    threads: u64,
    seed: u64,
}

const fn locks(name: &'static str, keys: u64, threads: u64, commit: bool, seed: u64) -> Phase {
    Phase {
        name,
        kind: Kind::Locks { keys, commit },
        threads,
        seed,
    }
}

const fn batch(name: &'static str, writes: usize, seed: u64) -> Phase {
    Phase {
        name,
        kind: Kind::Batch { writes },
        threads: 1,
        seed,
    }
}

const fn index(name: &'static str, writes: usize, reads: bool, seed: u64) -> Phase {
    Phase {
        name,
        kind: Kind::Index { writes, reads },
        threads: 1,
        seed,
    }
}

const PHASES: [Phase; 17] = [
    locks("locks-1t", SPREAD, 1, false, 1),
    locks("locks-8t", SPREAD, 8, false, 2),
    locks("locks-hot-1t", HOT, 1, false, 3),
    locks("locks-hot-8t", HOT, 8, false, 4),
    locks("commit-1t", SPREAD, 1, true, 5),
    locks("commit-8t", SPREAD, 8, true, 6),
    locks("commit-hot-1t", HOT, 1, true, 7),
    locks("commit-hot-8t", HOT, 8, true, 8),
    batch("batch-10", 10, 9),
    batch("batch-100", 100, 10),
    batch("batch-10000", 10_000, 11),
    index("index-10", 10, true, 12),
    index("index-100", 100, true, 13),
    index("index-10000", 10_000, true, 14),
    index("fill-10", 10, false, 15),
    index("fill-100", 100, false, 16),
    index("fill-10000", 10_000, false, 17),
];

impl Phase {
    /// Transactions of each thread.
    fn per_thread(&self, num: u64) -> u64 {
        let writes = match self.kind {
            Kind::Locks { .. } => WRITES,
            Kind::Batch { writes } | Kind::Index { writes, .. } => writes,
        };
        (num * WRITES as u64 / writes as u64 / self.threads).max(1)
    }

    fn run<T: Transactions>(&self, db: &T, thread: u64, count: u64, pool: &[u8]) -> Result<Work> {
        let mut rng = Rng::new(self.seed, thread);
        let mut keys: Vec<Key> = Vec::new();
        let value = &pool[..VALUE_LEN];
        let mut batch = db.batch()?;
        let mut watch = Watch::new();
        for _ in 0..count {
            keys.clear();
            match self.kind {
                Kind::Locks { keys: from, commit } => {
                    while keys.len() < WRITES {
                        let key = key_of(rng.below(from));
                        if let Err(place) = keys.binary_search(&key) {
                            keys.insert(place, key);
                        }
                    }
                    watch.work.found += u64::from(db.write(&keys, value, commit)?);
                }
                Kind::Batch { writes } => {
                    keys.extend((0..writes).map(|_| key_of(rng.below(SPREAD))));
                    let found = db.write_and_read(&keys, value)?;
                    watch.work.found += u64::from(found == writes);
                }
                Kind::Index { writes, reads } => {
                    keys.extend((0..writes).map(|_| key_of(rng.below(SPREAD))));
                    db.fill(&mut batch, &keys, value)?;
                    let found = if reads {
                        db.read(&mut batch, &keys)?
                    } else {
                        writes
                    };
                    db.clear(&mut batch);
                    watch.work.found += u64::from(found == writes);
                }
            }
            watch.done(1);
        }
        Ok(watch.work)
    }
}

fn run_threads<T: Transactions>(
    db: &T,
    phase: &Phase,
    num: u64,
    pool: &[u8],
) -> Result<(Work, Duration)> {
    let barrier = Barrier::new(phase.threads as usize + 1);
    let count = phase.per_thread(num);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..phase.threads)
            .map(|thread| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    phase.run(db, thread, count, pool)
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
        outcome.map(|()| (all, start.elapsed()))
    })
}

fn run<T: Transactions>(mut args: impl Iterator<Item = String>) -> Result<()> {
    let (mut dir, mut names, mut num) = (PathBuf::new(), Vec::new(), 200_000);
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--dir" => dir = PathBuf::from(value),
            "--phases" => names = value.split(',').map(str::to_owned).collect(),
            "--num" => num = value.parse::<u64>()?,
            _ => return Err(format!("unknown option `{name}`").into()),
        }
    }
    if dir.as_os_str().is_empty() || names.is_empty() || num == 0 {
        return Err("usage: --dir DIR --phases A,B [--num N]".into());
    }
    let pool = value_pool(VALUE_LEN);
    let db = T::open(&dir)?;
    for name in names {
        let phase = PHASES.iter().find(|p| p.name == name);
        let phase = phase.ok_or_else(|| format!("no phase `{name}`"))?;
        let meter = Meter::start()?;
        let (work, elapsed) = run_threads(&db, phase, num, &pool)?;
        print(&meter.foreground(T::NAME, phase.name, phase.threads, &work, elapsed)?)?;
    }
    Ok(())
}

/// Runs the phases that the command line names, as [`crate::main`] does for engines.
#[must_use]
pub fn main<T: Transactions>() -> ExitCode {
    match run::<T>(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(T::NAME, &error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use super::*;

    /// Counts what it is asked for.
    struct Counting(Mutex<(usize, usize, usize)>);

    impl Transactions for Counting {
        const NAME: &'static str = "counting";

        type Batch = usize;

        fn open(_: &Path) -> Result<Self> {
            Ok(Self(Mutex::default()))
        }

        fn write(&self, keys: &[Key], value: &[u8], commit: bool) -> Result<bool> {
            assert!(keys.is_sorted_by(|a, b| a < b) && keys.len() == WRITES);
            assert_eq!(value.len(), VALUE_LEN);
            let mut counts = self.0.lock().unwrap();
            counts.0 += 1;
            counts.1 += usize::from(commit);
            Ok(true)
        }

        fn write_and_read(&self, keys: &[Key], _: &[u8]) -> Result<usize> {
            self.0.lock().unwrap().2 += keys.len();
            Ok(keys.len())
        }

        fn batch(&self) -> Result<usize> {
            Ok(0)
        }

        fn fill(&self, batch: &mut usize, keys: &[Key], _: &[u8]) -> Result<()> {
            assert_eq!(*batch, 0, "it was emptied");
            *batch = keys.len();
            Ok(())
        }

        fn read(&self, batch: &mut usize, keys: &[Key]) -> Result<usize> {
            self.0.lock().unwrap().2 += keys.len();
            Ok(*batch)
        }

        fn clear(&self, batch: &mut usize) {
            *batch = 0;
        }
    }

    #[test]
    fn phases_make_what_they_say() {
        let db = Counting::open(Path::new("")).unwrap();
        for phase in &PHASES {
            let (work, _) = run_threads(&db, phase, 2000, &[0; VALUE_LEN]).unwrap();
            assert_eq!(work.ops, phase.per_thread(2000) * phase.threads);
            assert_eq!(work.found, work.ops);
        }
        assert_eq!(*db.0.lock().unwrap(), (16_000, 8000, 120_000));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("", "usage"),
            ("--dir d --phases x", "`x`"),
            ("--dir d --phases locks-1t --num 0", "usage"),
            ("--what 1", "--what"),
        ] {
            let args = line.split_whitespace().map(str::to_owned);
            let error = run::<Counting>(args).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
