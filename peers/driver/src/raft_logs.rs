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
//! | `purge-skewed` | the same, a tenth of the groups has 56 % of the entries, half of them 16 % (a power law) | batches |
//! | `purge-synced` | the same, by 16 threads, each batch synced | batches |
//! | `recycled-16t-4096`, ... | the same with entries of so many bytes to 64 groups: for `--seconds` once three times `--purge-bytes` were written, so that emptied files are written over; `--cold 1`: out of memory, as in a log that is larger than it | batches |
//!
//! Payloads are random bytes. Phases of writes and purges need an empty directory; `open` and `tail` one that `fill` has left. Of phases with purges
//! `purging_...` is of the batches that were written while one ran. `device_bytes` is what the device of the file system has written, which is synced before
//! the phase and behind it; null if there is none. `write_bytes` is what the kernel counts for the process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::data::Rng;
use crate::histogram::Histogram;
use crate::measure::{Meter, Watch, Work, print};
use crate::pages::{forget_all, forget_clean};
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
    /// A multiple of which records behind a sync begin at, for logs that can do so; 0 for none.
    pub record_alignment: u64,
    /// Whether a log that reads full files again to have small files beside them does so.
    pub digests: bool,
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
            record_alignment: 0,
            digests: true,
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
            "--record-alignment" => out.settings.record_alignment = value.parse()?,
            "--digests" => out.settings.digests = value == "1",
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
        return Err("usage: --dir DIR --phase NAME [--seconds N] [--gib N] [--batch N] [--cold 1] [--groups N] [--lag N] [--file-bytes N] [--purge-bytes N] [--record-alignment N] [--digests 0] [--cache-bytes N]".into());
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
    match phase.strip_prefix("sync-") {
        Some(rest) => threads_of(rest).map(|(threads, bytes)| (threads, bytes, true)),
        None => threads_of(phase.strip_prefix("write-")?)
            .map(|(threads, bytes)| (threads, bytes, false)),
    }
}

/// Threads and bytes of the end of a phase's name.
fn threads_of(rest: &str) -> Option<(u64, usize)> {
    let (threads, bytes) = rest.split_once("t-")?;
    let threads = threads.parse().ok().filter(|n| (1..=64).contains(n))?;
    let bytes = bytes.parse().ok().filter(|n| (1..=1 << 20).contains(n))?;
    Some((threads, bytes))
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

/// How a phase writes beside purges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Beside {
    threads: u64,
    payload: usize,
    sync: bool,
    /// Some groups get far more entries than others.
    is_skewed: bool,
    /// Emptied files are written over before anything is measured.
    is_recycled: bool,
}

fn beside_of(phase: &str) -> Option<Beside> {
    let plain = Beside {
        threads: 1,
        payload: PAYLOAD,
        sync: false,
        is_skewed: false,
        is_recycled: false,
    };
    Some(match phase {
        "purge" => plain,
        "purge-skewed" => Beside {
            is_skewed: true,
            ..plain
        },
        "purge-synced" => Beside {
            threads: 16,
            sync: true,
            is_skewed: true,
            ..plain
        },
        _ => {
            let (threads, payload) = threads_of(phase.strip_prefix("recycled-")?)?;
            Beside {
                threads,
                payload,
                sync: true,
                is_recycled: true,
                ..plain
            }
        }
    })
}

/// What the purges of a phase took.
#[derive(Default)]
struct Purges {
    seconds: f64,
    longest: f64,
    asked: u64,
}

/// What the threads of a phase with purges share.
struct Progress {
    barrier: Barrier,
    /// Bytes of entries.
    written: AtomicU64,
    is_purging: AtomicBool,
    is_measured: AtomicBool,
    ends: AtomicBool,
}

/// A thread of its own purges, as in the systems that use such logs; writers go on. Groups to compact go to their writers.
fn purge_when_woken<L: RaftLogs>(
    log: &L,
    args: &Arguments,
    progress: &Progress,
    woken: &Receiver<()>,
    tell: &[Sender<u64>],
) -> Result<Purges> {
    let mut purges = Purges::default();
    while woken.recv().is_ok() && !progress.ends.load(Relaxed) {
        let start = Instant::now();
        progress.is_purging.store(true, Relaxed);
        let groups = log.purge();
        progress.is_purging.store(false, Relaxed);
        if args.cold {
            forget_clean(&args.dir)?;
        }
        let took = start.elapsed().as_secs_f64();
        if progress.is_measured.load(Relaxed) {
            purges.seconds += took;
            purges.longest = purges.longest.max(took);
        }
        for group in groups? {
            purges.asked += 1;
            // A writer that is done needs none.
            let _ = tell[group as usize % tell.len()].send(group);
        }
    }
    Ok(purges)
}

/// The groups of one writer, and which entries each has.
struct Owned {
    groups: Vec<(u64, u64, u64)>,
    /// Where each is in them.
    places: HashMap<u64, usize>,
    rng: Rng,
    is_skewed: bool,
}

impl Owned {
    fn new(all: u64, thread: u64, how: Beside) -> Self {
        let own = (1..=all).filter(|group| group % how.threads == thread);
        let mut groups: Vec<_> = own.map(|group| (group, 1, 1)).collect();
        let mut rng = Rng::new(5, thread);
        if how.is_skewed {
            // Numbers of groups tell nothing of how many entries they get.
            for at in (1..groups.len()).rev() {
                groups.swap(at, rng.below(at as u64 + 1) as usize);
            }
        }
        let places = groups.iter().map(|(group, ..)| *group).zip(0..);
        Self {
            places: places.collect(),
            groups,
            rng,
            is_skewed: how.is_skewed,
        }
    }

    fn pick(&mut self) -> &mut (u64, u64, u64) {
        let count = self.groups.len() as u64;
        let at = if self.is_skewed {
            let part = self.rng.below(1 << 32) as f64 / (1u64 << 32) as f64;
            (part.powi(4) * count as f64) as u64
        } else {
            self.rng.below(count)
        };
        &mut self.groups[at as usize]
    }
}

/// Writes until `batches` are, or the phase ends; what was measured, and how long what took that was written beside a purge.
fn write_beside<L: RaftLogs>(
    log: &L,
    args: &Arguments,
    how: Beside,
    progress: &Progress,
    (thread, batches): (u64, u64),
    payloads: &mut Payloads<'_>,
    (wake, told): (&SyncSender<()>, &Receiver<u64>),
) -> Result<(Work, Histogram)> {
    let groups = if how.is_recycled {
        GROUPS_OF_WRITES
    } else {
        args.groups
    };
    let mut owned = Owned::new(groups, thread, how);
    let mut batch = L::Batch::default();
    let mut beside = Histogram::new();
    progress.barrier.wait();
    let mut watch = Watch::new();
    let mut is_measured = !how.is_recycled;
    for _ in 0..batches {
        if progress.ends.load(Relaxed) {
            break;
        }
        if !is_measured && progress.is_measured.load(Relaxed) {
            is_measured = true;
            watch = Watch::new();
            beside = Histogram::new();
        }
        let (group, first, next) = owned.pick();
        log.add(&mut batch, *group, *next, &[payloads.next(how.payload)])?;
        log.put(&mut batch, *group, b"state", payloads.next(40))?;
        *next += 1;
        if *next - *first >= args.lag {
            *first = *next - args.lag / 2;
            log.compact(&mut batch, *group, *first);
        }
        log.write(&mut batch, how.sync)?;
        let took = watch.done(1);
        if progress.is_purging.load(Relaxed) {
            beside.add(took);
        }
        let more = how.payload as u64;
        let before = progress.written.fetch_add(more, Relaxed);
        if before / PURGE_EVERY < (before + more) / PURGE_EVERY {
            let _ = wake.try_send(());
        }
        for asked in told.try_iter() {
            let found = owned.places.get(&asked);
            let found = found.ok_or("a purge asks for a group that is not there")?;
            let (_, first, next) = &mut owned.groups[*found];
            *first = (*first).max(next.saturating_sub(8));
            log.compact(&mut batch, asked, *first);
            log.write(&mut batch, false)?;
            watch.done(1);
        }
    }
    Ok((watch.work, beside))
}

/// What a phase with purges gives.
struct Purged {
    work: Work,
    beside: Histogram,
    purges: Purges,
    meter: Meter,
    elapsed: Duration,
}

/// Lets the writers begin; what is measured from there on, or once emptied files are written over, until `--seconds` later.
fn meter_of(args: &Arguments, how: Beside, progress: &Progress) -> Result<Meter> {
    let meter = Meter::start_on(&args.dir);
    progress.barrier.wait();
    if !how.is_recycled {
        return meter;
    }
    let enough = 3 * args.settings.purge_bytes;
    while progress.written.load(Relaxed) < enough && !progress.ends.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let meter = Meter::start_on(&args.dir)?;
    progress.is_measured.store(true, Relaxed);
    std::thread::sleep(Duration::from_secs_f64(args.seconds));
    Ok(meter)
}

fn purge<L: RaftLogs>(log: &L, args: &Arguments, how: Beside, pool: &[u8]) -> Result<Purged> {
    let bytes = (args.gib * f64::from(1 << 30)) as u64;
    let batches = if how.is_recycled {
        u64::MAX
    } else {
        bytes / how.payload as u64 / how.threads
    };
    let progress = &Progress {
        barrier: Barrier::new(how.threads as usize + 1),
        written: AtomicU64::new(0),
        is_purging: AtomicBool::new(false),
        is_measured: AtomicBool::new(!how.is_recycled),
        ends: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        let (wake, woken) = sync_channel::<()>(1);
        let (tell, mut told): (Vec<_>, Vec<_>) = (0..how.threads).map(|_| channel()).unzip();
        let purger = scope.spawn(move || purge_when_woken(log, args, progress, &woken, &tell));
        let writers = told.drain(..).zip(0..).map(|(told, thread)| {
            let wake = wake.clone();
            let rng = Rng::new(6, thread);
            scope.spawn(move || {
                let mut payloads = Payloads { pool, rng };
                let turn = (thread, batches);
                let ways = (&wake, &told);
                let done = write_beside(log, args, how, progress, turn, &mut payloads, ways);
                if done.is_err() {
                    // Others need not go on, nor somebody wait for what this one was to write.
                    progress.ends.store(true, Relaxed);
                }
                done
            })
        });
        let writers: Vec<_> = writers.collect();
        let meter = meter_of(args, how, progress);
        if meter.is_err() || how.is_recycled {
            progress.ends.store(true, Relaxed);
        }
        let (mut all, mut beside) = (Watch::new().work, Histogram::new());
        let mut outcome = Ok(());
        for writer in writers {
            match writer.join().map_err(|_| "a thread panicked")? {
                Ok((work, of_purges)) => {
                    all.merge(&work);
                    beside.merge(&of_purges);
                }
                Err(error) => outcome = Err(error),
            }
        }
        let elapsed = meter.as_ref().map(Meter::elapsed).unwrap_or_default();
        progress.ends.store(true, Relaxed);
        drop(wake);
        let purges = purger.join().map_err(|_| "a thread panicked")??;
        outcome?;
        Ok(Purged {
            work: all,
            beside,
            purges,
            meter: meter?,
            elapsed,
        })
    })
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
    std::fs::create_dir_all(&args.dir)?;
    let meter = Meter::start_on(&args.dir)?;
    let log = L::open(&args.dir, &args.settings)?;
    let opened = meter.elapsed();
    let spans: u64 = (1..=args.groups.max(GROUPS_OF_FILL))
        .filter_map(|group| log.span(group))
        .map(|(first, next)| next - first)
        .sum();
    let rss_open = rss()?;
    let mut meter = if args.phase == "open" {
        meter
    } else {
        Meter::start_on(&args.dir)?
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
        name if let Some(how) = beside_of(name) => {
            let done = purge(&log, &args, how, &pool)?;
            threads = how.threads;
            purges = Some((done.purges, done.beside));
            meter = done.meter;
            (done.work, done.elapsed)
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
    // Under the kernel's name: what this is not is told in the head of the module of devices.
    document["write_bytes"] = json!(cost.device_bytes);
    document["device_bytes"] = json!(meter.device_bytes()?);
    document["read_bytes"] = json!(cost.device_read_bytes);
    document["file_bytes"] = json!(file_bytes(&args.dir)?);
    document["rss_growth_bytes"] = json!(rss_open.saturating_sub(rss_before));
    if let Some((purges, beside)) = purges {
        document["purging_ops"] = json!(beside.count());
        document["purging_p99_ns"] = json!(beside.percentile(0.99));
        document["purging_p999_ns"] = json!(beside.percentile(0.999));
        document["purging_p9999_ns"] = json!(beside.percentile(0.9999));
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
            assert_eq!(beside_of(name), None, "{name}");
        }
    }

    #[test]
    fn names_of_phases_with_purges_say_how_they_write() {
        let how = |name| beside_of(name).unwrap();
        assert!(!how("purge").is_skewed && !how("purge").sync);
        assert!(how("purge-skewed").is_skewed && !how("purge-skewed").sync);
        assert!(how("purge-synced").is_skewed && how("purge-synced").sync);
        let recycled = how("recycled-16t-4096");
        assert_eq!((recycled.threads, recycled.payload), (16, 4096));
        assert!(recycled.is_recycled && recycled.sync);
    }

    #[test]
    fn a_tenth_of_the_groups_gets_half_of_the_entries() {
        let mut owned = Owned::new(1000, 0, beside_of("purge-skewed").unwrap());
        let hot: Vec<u64> = owned.groups[..100]
            .iter()
            .map(|(group, ..)| *group)
            .collect();
        let all = 10_000;
        let of_hot = (0..all).filter(|_| hot.contains(&owned.pick().0)).count();
        assert!((all / 2..all * 2 / 3).contains(&of_hot), "{of_hot}");
        assert!(hot.windows(2).any(|pair| pair[0] > pair[1]));
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
