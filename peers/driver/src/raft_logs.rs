//! Logs of many Raft groups by name, and how each phase is run and measured.
//!
//! | phase | what is done | what is counted |
//! |---|---|---|
//! | `write-1t-256`, `...-16t-32768` | batches of one entry of so many bytes, to 64 groups of which each thread has its share, for `--seconds` | batches |
//! | `sync-1t-256`, ... | the same, each batch synced | batches |
//! | `fill` | batches of `--batch` entries of 1 KiB to any of 1,000 groups, until there are `--gib` GiB | entries |
//! | `open` | the directory is opened; `--cold 1`: after its files were put out of memory | entries that are there |
//! | `tail` | the last 100 entries of any of those groups, for `--seconds` | entries |
//! | `purge` | entries of 1 KiB and a key of 40 bytes to any of `--groups` groups, each of which is compacted to half of `--lag` entries when it has `--lag`, for `--gib` GiB; a purge after each 64 MiB | batches |
//!
//! Payloads are random bytes. Phases of writes and `purge` need an empty directory; `open` and `tail` one that `fill` has left.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::data::Rng;
use crate::measure::{Meter, Watch, Work, print};
use crate::pages::forget_all;
use crate::process::rss;
use crate::{Result, fail};

const GROUPS_OF_WRITES: u64 = 64;
const GROUPS_OF_FILL: u64 = 1000;
const PAYLOAD: usize = 1024;
const TAIL: u64 = 100;
/// Bytes that are written between two purges.
const PURGE_EVERY: u64 = 64 << 20;

/// What is the same for all logs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes from which on a file is full.
    pub file_bytes: u64,
    /// Bytes of files from which on old ones are emptied.
    pub purge_bytes: u64,
    /// Bytes of memory for what was read, for logs that have a cache; without it what is theirs by default.
    pub cache_bytes: Option<usize>,
}

/// Logs under test.
pub trait RaftLogs: Sized + Send + Sync + 'static {
    /// Its name in results.
    const NAME: &'static str;

    /// Operations that are written together.
    type Batch: Default;

    /// Opens a directory, which is made if it is not there.
    fn open(dir: &Path, settings: &Settings) -> Result<Self>;
    /// Adds entries to a batch.
    fn add(
        &self,
        batch: &mut Self::Batch,
        group: u64,
        first: u64,
        payloads: &[&[u8]],
    ) -> Result<()>;
    /// Adds a key to a batch.
    fn put(&self, batch: &mut Self::Batch, group: u64, key: &[u8], value: &[u8]) -> Result<()>;
    /// Adds to a batch that entries below an index go.
    fn compact(&self, batch: &mut Self::Batch, group: u64, index: u64);
    /// Writes a batch, which is then empty.
    fn write(&self, batch: &mut Self::Batch, sync: bool) -> Result<()>;
    /// Empties old files; the groups that should be compacted.
    fn purge(&self) -> Result<Vec<u64>>;
    /// The first index of a group, and the one behind its last.
    fn span(&self, group: u64) -> Option<(u64, u64)>;
    /// Reads entries, as the messages that they are; how many.
    fn read(&self, group: u64, begin: u64, end: u64) -> Result<usize>;
}

#[derive(Clone, Debug)]
struct Arguments {
    dir: PathBuf,
    phase: String,
    settings: Settings,
    seconds: f64,
    gib: f64,
    batch: usize,
    cold: bool,
    groups: u64,
    lag: u64,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments> {
    let mut out = Arguments {
        dir: PathBuf::new(),
        phase: String::new(),
        settings: Settings {
            file_bytes: 128 << 20,
            purge_bytes: 10 << 30,
            cache_bytes: None,
        },
        seconds: 3.0,
        gib: 2.0,
        batch: 10,
        cold: false,
        groups: 10_000,
        lag: 64,
    };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--dir" => out.dir = PathBuf::from(value),
            "--phase" => out.phase = value,
            "--file-bytes" => out.settings.file_bytes = value.parse()?,
            "--purge-bytes" => out.settings.purge_bytes = value.parse()?,
            "--cache-bytes" => out.settings.cache_bytes = Some(value.parse()?),
            "--seconds" => out.seconds = value.parse()?,
            "--gib" => out.gib = value.parse()?,
            "--batch" => out.batch = value.parse()?,
            "--cold" => out.cold = value == "1",
            "--groups" => out.groups = value.parse()?,
            "--lag" => out.lag = value.parse()?,
            _ => return Err(format!("unknown option `{name}`").into()),
        }
    }
    if out.dir.as_os_str().is_empty() || out.phase.is_empty() || out.batch == 0 || out.lag < 2 {
        return Err("usage: --dir DIR --phase NAME [--seconds N] [--gib N] [--batch N] [--cold 1] [--groups N] [--lag N] [--file-bytes N] [--purge-bytes N] [--cache-bytes N]".into());
    }
    Ok(out)
}

/// Random bytes, of which payloads are slices: none is like another for the compressor.
fn pool() -> Vec<u8> {
    let mut rng = Rng::new(0, 0);
    let words = (0..(4 << 20) / 8).map(|_| rng.next().to_le_bytes());
    words.flatten().collect()
}

struct Payloads<'a> {
    pool: &'a [u8],
    rng: Rng,
}

impl<'a> Payloads<'a> {
    fn next(&mut self, len: usize) -> &'a [u8] {
        let at = self.rng.below((self.pool.len() - len) as u64) as usize;
        &self.pool[at..at + len]
    }
}

/// Threads and bytes of a phase of writes, and whether it syncs.
fn writes_of(phase: &str) -> Option<(u64, usize, bool)> {
    let (rest, sync) = match phase.strip_prefix("sync-") {
        Some(rest) => (rest, true),
        None => (phase.strip_prefix("write-")?, false),
    };
    let (threads, bytes) = rest.split_once("t-")?;
    let threads = threads.parse().ok().filter(|n| (1..=64).contains(n))?;
    let bytes = bytes.parse().ok().filter(|n| (1..=1 << 20).contains(n))?;
    Some((threads, bytes, sync))
}

fn write_for<L: RaftLogs>(
    log: &L,
    (threads, bytes, sync): (u64, usize, bool),
    seconds: f64,
    pool: &[u8],
) -> Result<(Work, Duration)> {
    let barrier = Barrier::new(threads as usize + 1);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|thread| {
                let (barrier, ends) = (&barrier, &ends);
                scope.spawn(move || -> Result<Work> {
                    let rng = Rng::new(1, thread);
                    let mut payloads = Payloads { pool, rng };
                    let own: Vec<u64> = (1..=GROUPS_OF_WRITES)
                        .filter(|group| group % threads == thread)
                        .collect();
                    let mut batch = L::Batch::default();
                    barrier.wait();
                    let mut watch = Watch::new();
                    let mut turn = 0;
                    while !ends.load(Relaxed) {
                        let group = own[turn % own.len()];
                        let index = (turn / own.len()) as u64 + 1;
                        log.add(&mut batch, group, index, &[payloads.next(bytes)])?;
                        log.write(&mut batch, sync)?;
                        turn += 1;
                        watch.done(1);
                    }
                    Ok(watch.work)
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        ends.store(true, Relaxed);
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

fn fill<L: RaftLogs>(log: &L, args: &Arguments, pool: &[u8]) -> Result<Work> {
    let mut rng = Rng::new(2, 0);
    let mut payloads = Payloads {
        pool,
        rng: Rng::new(3, 0),
    };
    let mut next = vec![1u64; GROUPS_OF_FILL as usize];
    let batches = (args.gib * f64::from(1 << 30)) as usize / PAYLOAD / args.batch;
    let mut batch = L::Batch::default();
    let mut watch = Watch::new();
    for _ in 0..batches {
        let group = rng.below(GROUPS_OF_FILL);
        let entries: Vec<&[u8]> = (0..args.batch).map(|_| payloads.next(PAYLOAD)).collect();
        let first = &mut next[group as usize];
        log.add(&mut batch, group + 1, *first, &entries)?;
        log.write(&mut batch, false)?;
        *first += args.batch as u64;
        watch.done(args.batch as u64);
    }
    Ok(watch.work)
}

fn tails<L: RaftLogs>(log: &L, seconds: f64) -> Result<Work> {
    let mut rng = Rng::new(4, 0);
    let mut watch = Watch::new();
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let group = rng.below(GROUPS_OF_FILL) + 1;
        let (first, end) = log.span(group).ok_or("a group without entries")?;
        let read = log.read(group, first.max(end.saturating_sub(TAIL)), end)?;
        watch.work.found += read as u64;
        watch.done(read as u64);
    }
    Ok(watch.work)
}

/// What the purges of a phase took.
#[derive(Default)]
struct Purges {
    seconds: f64,
    longest: f64,
    asked: u64,
}

fn purge<L: RaftLogs>(log: &L, args: &Arguments, pool: &[u8]) -> Result<(Work, Purges)> {
    let mut rng = Rng::new(5, 0);
    let mut payloads = Payloads {
        pool,
        rng: Rng::new(6, 0),
    };
    let mut spans = vec![(1u64, 1u64); args.groups as usize];
    let batches = (args.gib * f64::from(1 << 30)) as u64 / PAYLOAD as u64;
    let mut watch = Watch::new();
    let ends = AtomicBool::new(false);
    // A thread of its own purges, as in the systems that use such logs; writers go on.
    let done = std::thread::scope(|scope| {
        let (wake, woken) = std::sync::mpsc::sync_channel::<()>(1);
        let (tell, told) = std::sync::mpsc::channel::<Vec<u64>>();
        let ends = &ends;
        let purger = scope.spawn(move || -> Result<Purges> {
            let mut purges = Purges::default();
            while woken.recv().is_ok() && !ends.load(Relaxed) {
                let start = Instant::now();
                let groups = log.purge()?;
                let took = start.elapsed().as_secs_f64();
                purges.seconds += took;
                purges.longest = purges.longest.max(took);
                purges.asked += groups.len() as u64;
                if tell.send(groups).is_err() {
                    break;
                }
            }
            Ok(purges)
        });
        let mut batch = L::Batch::default();
        for n in 0..batches {
            let group = rng.below(args.groups);
            let (first, next) = &mut spans[group as usize];
            log.add(&mut batch, group + 1, *next, &[payloads.next(PAYLOAD)])?;
            log.put(&mut batch, group + 1, b"state", payloads.next(40))?;
            *next += 1;
            if *next - *first >= args.lag {
                *first = *next - args.lag / 2;
                log.compact(&mut batch, group + 1, *first);
            }
            log.write(&mut batch, false)?;
            watch.done(1);
            if (n + 1) % (PURGE_EVERY / PAYLOAD as u64) == 0 {
                let _ = wake.try_send(());
            }
            for group in told.try_iter().flatten() {
                let (first, next) = &mut spans[group as usize - 1];
                *first = (*first).max(next.saturating_sub(8));
                log.compact(&mut batch, group, *first);
                log.write(&mut batch, false)?;
            }
        }
        ends.store(true, Relaxed);
        drop(wake);
        purger.join().map_err(|_| "a thread panicked")?
    });
    Ok((watch.work, done?))
}

fn file_bytes(dir: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir)? {
        sum += entry?.metadata()?.len();
    }
    Ok(sum)
}

fn run<L: RaftLogs>(args: impl Iterator<Item = String>) -> Result<()> {
    let args = parse(args)?;
    let pool = pool();
    if args.phase == "open" && args.cold {
        forget_all(&args.dir)?;
    }
    let rss_before = rss()?;
    let meter = Meter::start()?;
    let log = L::open(&args.dir, &args.settings)?;
    let opened = meter.elapsed();
    let spans: u64 = (1..=args.groups.max(GROUPS_OF_FILL))
        .filter_map(|group| log.span(group))
        .map(|(first, next)| next - first)
        .sum();
    let rss_open = rss()?;
    let meter = if args.phase == "open" {
        meter
    } else {
        Meter::start()?
    };
    let (mut threads, mut purges) = (1, None);
    let (work, elapsed) = match args.phase.as_str() {
        "open" => {
            let mut watch = Watch::new();
            watch.work.ops = spans;
            watch.work.found = spans;
            (watch.work, opened)
        }
        "fill" => (fill(&log, &args, &pool)?, meter.elapsed()),
        "tail" => (tails(&log, args.seconds)?, meter.elapsed()),
        "purge" => {
            let (work, took) = purge(&log, &args, &pool)?;
            purges = Some(took);
            (work, meter.elapsed())
        }
        name => {
            let writes = writes_of(name).ok_or_else(|| format!("no phase `{name}`"))?;
            threads = writes.0;
            write_for(&log, writes, args.seconds, &pool)?
        }
    };
    let mut document = meter.foreground(L::NAME, &args.phase, threads, &work, elapsed)?;
    let cost = meter.cost()?;
    document["written_bytes"] = json!(cost.write_call_bytes);
    // Bytes that are written through memory are in these, too.
    document["device_bytes"] = json!(cost.device_bytes);
    document["file_bytes"] = json!(file_bytes(&args.dir)?);
    document["rss_growth_bytes"] = json!(rss_open.saturating_sub(rss_before));
    if let Some(purges) = purges {
        document["purge_seconds"] = json!(purges.seconds);
        document["purge_longest_seconds"] = json!(purges.longest);
        document["purge_asked"] = json!(purges.asked);
    }
    print(&document)
}

/// Runs the phase that the command line names, as [`crate::main`] does for engines.
#[must_use]
pub fn main<L: RaftLogs>() -> ExitCode {
    match run::<L>(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(L::NAME, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_phases_say_threads_bytes_and_syncs() {
        assert_eq!(writes_of("write-4t-1024"), Some((4, 1024, false)));
        assert_eq!(writes_of("sync-16t-32768"), Some((16, 32768, true)));
        for name in [
            "write-0t-1",
            "write-4-1024",
            "open",
            "sync-1t-x",
            "write-1t-0",
        ] {
            assert_eq!(writes_of(name), None, "{name}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("", "usage"),
            ("--dir d", "usage"),
            ("--dir d --phase open --lag 1", "usage"),
            ("--what 1", "--what"),
            ("--dir d --phase open --gib x", "invalid"),
        ] {
            let args = line.split_whitespace().map(str::to_owned);
            let error = parse(args).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
