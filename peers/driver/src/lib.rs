//! Workloads that every engine runs, and what is measured of them.
//!
//! An engine is a program of one line: it gives an [`Engine`] to [`main`], which opens a
//! database, runs the phases that the command line names one after another, and prints one JSON
//! document a line for each. `pebble/` says the same in Go: whoever changes a phase, a seed or a
//! field here changes it there.
//!
//! 1. All engines see the same keys, values and operations: everything is drawn from fixed seeds.
//! 2. Every operation is timed, with one look at the clock; what lies between two looks is the
//!    operation's latency, and the driver's own few nanoseconds with it.
//! 3. Phases that write end twice: when the last operation has returned, and when the engine has
//!    no work left. Figures of cost are taken at the second end.

mod data;
mod histogram;
mod process;
mod phases;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub use data::{KEY_LEN, Key};

/// What an engine fails with.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// What an engine gives.
pub type Result<T> = std::result::Result<T, Error>;

/// Budgets that are the same for all engines.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the database.
    pub dir: PathBuf,
    /// Bytes of a memtable.
    pub write_buffer_bytes: u64,
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// Bits of Bloom filter for each key.
    pub bloom_bits: f32,
}

/// A database under test. Writes go to its WAL before they return; `sync` asks for the device.
pub trait Engine: Sized + Send + Sync + 'static {
    /// Its name in results.
    const NAME: &'static str;
    /// True if [`Self::multi_get`] is more than a loop.
    const HAS_MULTI_GET: bool;

    /// Opens the database, or makes it where there is none.
    fn open(settings: &Settings) -> Result<Self>;
    /// Writes one pair.
    fn put(&self, key: &Key, value: &[u8], sync: bool) -> Result<()>;
    /// Writes all pairs or none.
    fn put_batch(&self, keys: &[Key], values: &[&[u8]]) -> Result<()>;
    /// The length of a key's value, which was brought to where a caller can read it.
    fn get(&self, key: &Key) -> Result<Option<usize>>;
    /// How many of the keys there are.
    fn multi_get(&self, keys: &[Key]) -> Result<usize> {
        let mut found = 0;
        for key in keys {
            found += usize::from(self.get(key)?.is_some());
        }
        Ok(found)
    }
    /// Visits every pair in order, or in the opposite order.
    fn scan(&self, reverse: bool, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<()>;
    /// Makes an iterator, seeks `key`, and moves `nexts` times; gives the number of entries seen.
    fn seek(&self, key: &Key, nexts: usize) -> Result<usize>;
    /// Writes memtables to tables and waits until there is nothing left to do; gives the moment
    /// at which that was so.
    fn settle(&self) -> Result<Instant>;
    /// Closes the database.
    fn close(self) -> Result<()>;
}

/// Asks until background work is `busy` no more, for so long that none can be about to start.
/// Gives the moment at which the quiet began.
pub fn wait_until_idle(mut busy: impl FnMut() -> Result<bool>) -> Result<Instant> {
    const PAUSE: Duration = Duration::from_millis(20);
    const QUIET: Duration = Duration::from_millis(300);
    let mut quiet_since = Instant::now();
    loop {
        if busy()? {
            std::thread::sleep(PAUSE);
            quiet_since = Instant::now();
        } else if quiet_since.elapsed() >= QUIET {
            return Ok(quiet_since);
        } else {
            std::thread::sleep(PAUSE);
        }
    }
}

/// What the command line says.
#[derive(Debug)]
struct Arguments {
    dir: PathBuf,
    phases: Vec<String>,
    num: u64,
    reads: u64,
}

fn arguments(mut args: impl Iterator<Item = String>) -> Result<Arguments> {
    let mut parsed = Arguments {
        dir: PathBuf::new(),
        phases: Vec::new(),
        num: 1_000_000,
        reads: 1_000_000,
    };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--dir" => parsed.dir = PathBuf::from(value),
            "--phases" => parsed.phases = value.split(',').map(str::to_owned).collect(),
            "--num" => parsed.num = value.parse()?,
            "--reads" => parsed.reads = value.parse()?,
            _ => return Err(format!("unknown option `{name}`").into()),
        }
    }
    if parsed.dir == Path::new("") || parsed.phases.is_empty() || parsed.num == 0 {
        return Err("usage: --dir DIR --phases A,B [--num N] [--reads N]".into());
    }
    Ok(parsed)
}

/// Runs the phases that the command line names; one line of JSON for each goes to standard
/// output. Ends with 1 if anything failed.
#[must_use]
pub fn main<E: Engine>() -> ExitCode {
    let outcome = arguments(std::env::args().skip(1))
        .and_then(|a| phases::run::<E>(&a.dir, &a.phases, a.num, a.reads));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", E::NAME);
            ExitCode::FAILURE
        }
    }
}
