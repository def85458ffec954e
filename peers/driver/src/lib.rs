//! Workloads that every engine runs, and what is measured of them.
//!
//! An engine is a program of one line: it gives an [`Engine`] to [`main`], which opens a
//! database, runs the phases that the command line names one after another, and prints one JSON
//! document a line for each. There are two sets of phases: of small values ([`phases`]), which
//! `pebble/` says again in Go, so whoever changes a phase, a seed or a field of it changes it
//! there; and of large values ([`large`]), which run where `--value-len` is given.
//!
//! 1. All engines see the same keys, values and operations: everything is drawn from fixed seeds.
//! 2. Every operation is timed, with one look at the clock; what lies between two looks is the
//!    operation's latency, and the driver's own few nanoseconds with it.
//! 3. Phases that write end twice: when the last operation has returned, and when the engine has
//!    no work left. Figures of cost are taken at the second end.

mod data;
mod histogram;
mod process;
mod device;
mod pages;
mod measure;
mod phases;
mod large;
pub mod transactions;
pub mod raft_logs;
mod arguments;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

pub use data::{KEY_LEN, Key};

use arguments::{Arguments, Workload};

/// What an engine fails with.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// What an engine gives.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an engine does not open: it cannot do what the settings ask for, which is no failure of
/// a run. The program then ends with [`UNSUPPORTED`].
#[derive(Debug)]
pub struct Unsupported(pub &'static str);

/// The code with which a program ends whose engine gave [`Unsupported`].
pub const UNSUPPORTED: u8 = 3;

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unsupported {}

/// What is the same for all engines.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the database.
    pub dir: PathBuf,
    /// Bytes of a memtable and of a table file; a quarter of those of level 1.
    pub write_buffer_bytes: u64,
    /// Bytes of the block cache.
    pub cache_bytes: u64,
    /// Bits of Bloom filter for each key.
    pub bloom_bits: f32,
    /// Bytes a second that flush, compaction and the collection of dead values may write
    /// together; `None`: as many as they can.
    pub rate_limit: Option<u64>,
    /// Logs that are kept to be written over, by engines that can.
    pub recycled_logs: usize,
    /// Files are read out of mappings, by engines that can, or by calls; `None`: as the engine does it by itself.
    pub mmap_reads: Option<bool>,
    /// Large values in files of their own; `None`: with their keys.
    pub blob: Option<Blob>,
}

/// Values in files of their own. Fields are RocksDB's options, and so are the defaults of what
/// no command line says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Blob {
    /// Values of so many bytes and more.
    pub min_blob_size: u64,
    /// How the space of dead values comes back.
    pub gc: BlobGc,
    /// The share of the oldest files that a compaction empties where it meets their values. 0.25.
    pub garbage_collection_age_cutoff: f64,
    /// The share of garbage in the oldest files from which compactions are made to empty them.
    /// 1.0, RocksDB's default: never.
    pub garbage_collection_force_threshold: f64,
    /// Bytes of blob files for each that lives, beyond which engines that can empty them at any cost;
    /// 0: no bound.
    pub max_space_amp: f64,
}

/// How the space of dead values comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobGc {
    /// Only with a file of which nothing lives.
    Off,
    /// As the engine does it by itself.
    Auto,
    /// Dead values are cut out of their files.
    Punch,
    /// Compactions rewrite the living.
    Merge,
    /// Living values move to new files.
    Move,
}

impl std::str::FromStr for BlobGc {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "off" => Self::Off,
            "auto" => Self::Auto,
            "punch" => Self::Punch,
            "merge" => Self::Merge,
            "move" => Self::Move,
            _ => return Err(format!("no way of collecting is called `{text}`").into()),
        })
    }
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
    /// Deletes a key.
    fn delete(&self, key: &Key) -> Result<()>;
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

fn run<E: Engine>(args: impl Iterator<Item = String>) -> Result<()> {
    let Arguments {
        settings,
        phases,
        num,
        reads,
        workload,
    } = arguments::parse(args)?;
    match workload {
        Workload::Small => phases::run::<E>(&settings, &phases, num, reads),
        Workload::Large(plan) => large::run::<E>(&settings, &phases, &plan),
    }
}

/// Runs the phases that the command line names; one line of JSON for each goes to standard
/// output. Ends with 1 if anything failed, with [`UNSUPPORTED`] if the engine cannot do what is
/// asked for.
#[must_use]
pub fn main<E: Engine>() -> ExitCode {
    match run::<E>(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(E::NAME, &error),
    }
}

/// Says why a program ends, and gives the code with which it does.
fn fail(name: &str, error: &Error) -> ExitCode {
    eprintln!("{name}: {error}");
    if error.is::<Unsupported>() {
        ExitCode::from(UNSUPPORTED)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests;
