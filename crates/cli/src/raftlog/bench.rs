//! `orogen raftlog bench`: threads that append to groups, and what it took.
//!
//! Every thread has groups of its own. A group drops its older half when it has as many entries as it keeps, so that
//! purge has something to delete; groups that a purge returns are compacted to an eighth of that.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::value_parser;
use orogen::Options;
use orogen_base::metrics::Histogram;
use orogen_env::{Clock as _, FileSystem, Stopwatch, SystemClock};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Metrics, Options as LogOptions};
use serde_json::json;

use super::{change, is_log};
use crate::failure::{Failure, after_help};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen raftlog bench --path ./bench-raft --threads 4 --entry-size 1024 --seconds 10",
    "orogen raftlog bench --path ./bench-raft --sync --count 10000 --metrics"
))]
pub(crate) struct BenchArgs {
    /// Directory, which must have no logs. What is written stays there.
    #[arg(long, value_name = "DIR")]
    path: PathBuf,
    /// Second directory, for files that the first has no room for; it must have no logs either.
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
    /// Threads that write.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=1024))]
    threads: u64,
    /// Groups of all threads together.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = value_parser!(u64).range(1..=10_000_000))]
    groups: u64,
    /// Bytes of an entry; they are random.
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = value_parser!(u64).range(0..=64 << 20))]
    entry_size: u64,
    /// Entries of a group in a batch.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=4096))]
    entries: u64,
    /// Groups in a batch.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u64).range(1..=4096))]
    batch_groups: u64,
    /// Entries that a group has at most.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = value_parser!(u64).range(2..))]
    keep: u64,
    /// Sync each batch.
    #[arg(long)]
    sync: bool,
    /// Write for so long.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u64).range(1..=31_536_000), conflicts_with = "count")]
    seconds: u64,
    /// Write so many batches.
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Purge every second.
    #[arg(long)]
    purge: bool,
    /// Bytes from which on a file is full.
    #[arg(long, value_name = "BYTES", default_value_t = LogOptions::default().target_file_size)]
    file_size: u64,
    /// Bytes of the append queue above which a purge does something.
    #[arg(long, value_name = "BYTES", default_value_t = LogOptions::default().purge_threshold)]
    purge_threshold: u64,
    /// Begin what is written behind a sync at a multiple of so many bytes: 0, or a power of two from 512 to 65536.
    #[arg(long, value_name = "BYTES", default_value_t = LogOptions::default().record_alignment)]
    record_alignment: u64,
    /// Also print the metrics of the engine, as Prometheus reads them.
    #[arg(long)]
    metrics: bool,
}

/// Between two looks at how far it is.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Between two purges.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// Random bytes that entries are cut out of, beside the length of one.
const BYTES: usize = 1 << 20;

/// Numbers that look random, the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What all threads share.
struct Load<'a> {
    args: &'a BenchArgs,
    engine: &'a Engine,
    bytes: &'a [u8],
    watch: Stopwatch,
    /// Batches that were begun.
    begun: AtomicU64,
    /// Batches that were written.
    written: AtomicU64,
    /// Entries in them. Threads with few groups have fewer in a batch than others.
    entries: AtomicU64,
    is_over: AtomicBool,
}

impl Load<'_> {
    /// Whether another batch is due.
    fn goes_on(&self) -> bool {
        if self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        match self.args.count {
            Some(count) => self.begun.fetch_add(1, Ordering::Relaxed) < count,
            None => self.watch.elapsed() < Duration::from_secs(self.args.seconds),
        }
    }

    /// Writes what is the share of a thread, and takes the time of each write.
    fn write(&self, thread: u64) -> orogen::Result<Histogram> {
        let args = self.args;
        let groups: Vec<u64> = (0..args.groups)
            .filter(|group| group % args.threads == thread)
            .map(|group| group + 1)
            .collect();
        let mut lasts = vec![0u64; groups.len()];
        let mut numbers = Numbers(thread);
        let (nanos, mut batch, mut at) = (Histogram::new(), LogBatch::default(), 0);
        let size = args.entry_size as usize;
        let groups_of_batch = args.batch_groups.min(groups.len() as u64);
        while self.goes_on() {
            for _ in 0..groups_of_batch {
                let (group, last) = (groups[at], &mut lasts[at]);
                let mut entries = Vec::with_capacity(args.entries as usize);
                for _ in 0..args.entries {
                    let from = (numbers.next() % BYTES as u64) as usize;
                    entries.push(&self.bytes[from..from + size]);
                }
                batch.add_entries(group, *last + 1, &entries)?;
                let before = *last / args.keep;
                *last += args.entries;
                if *last / args.keep > before {
                    let index = *last - args.keep / 2;
                    batch.add_command(group, Command::Compact { index });
                }
                at = (at + 1) % groups.len();
            }
            let watch = Stopwatch::start();
            self.engine.write(&mut batch, args.sync)?;
            nanos.record(u64::try_from(watch.elapsed().as_nanos()).unwrap_or(u64::MAX));
            self.written.fetch_add(1, Ordering::Relaxed);
            let entries = groups_of_batch * args.entries;
            self.entries.fetch_add(entries, Ordering::Relaxed);
        }
        Ok(nanos)
    }

    fn purge(&self) -> orogen::Result<()> {
        let mut next = PURGE_EVERY;
        while !self.is_over.load(Ordering::Relaxed) {
            SystemClock.sleep(LOOK_EVERY);
            if self.watch.elapsed() < next {
                continue;
            }
            for group in self.engine.purge_expired_files()? {
                let last = self.engine.last_index(group).unwrap_or(0);
                let index = last.saturating_sub(self.args.keep / 8);
                self.engine.compact_to(group, index)?;
            }
            next = self.watch.elapsed() + PURGE_EVERY;
        }
        Ok(())
    }
}

/// What was measured.
struct Measured {
    nanos: Histogram,
    entries: u64,
    seconds: f64,
    metrics: Metrics,
}

pub(crate) fn run(args: &BenchArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    if args.threads > args.groups {
        return Err(Failure::Usage(
            "a thread needs a group of its own".to_owned(),
        ));
    }
    let fs: Arc<dyn FileSystem> = Options::default().db.fs;
    for dir in [Some(&args.path), args.spill_dir.as_ref()]
        .into_iter()
        .flatten()
    {
        if fs.exists(dir)? && fs.list(dir)?.iter().any(|name| is_log(name)) {
            let shown = dir.display();
            return Err(Failure::Usage(format!("{shown} has logs already")));
        }
    }
    let options = LogOptions {
        spill_dir: args.spill_dir.clone(),
        target_file_size: args.file_size,
        purge_threshold: args.purge_threshold,
        record_alignment: args.record_alignment,
        ..LogOptions::default()
    };
    let engine = Engine::open(&fs, &args.path, options).map_err(change::refused)?;
    let measured = measure(args, &engine, terminal)?;
    engine.close()?;
    tell(args, &measured, terminal)
}

fn measure(args: &BenchArgs, engine: &Engine, terminal: &Terminal) -> Result<Measured, Failure> {
    let mut numbers = Numbers(u64::MAX);
    let len = BYTES + args.entry_size as usize;
    let bytes: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| numbers.next().to_le_bytes())
        .collect();
    let total = args.count.unwrap_or(args.seconds * 1000);
    let bar = terminal.bar(total, false, "writing");
    let load = Load {
        args,
        engine,
        bytes: &bytes,
        watch: Stopwatch::start(),
        begun: AtomicU64::new(0),
        written: AtomicU64::new(0),
        entries: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    };
    let nanos = Histogram::new();
    let (seconds, results) = std::thread::scope(|scope| {
        let load = &load;
        let writers: Vec<_> = (0..args.threads)
            .map(|thread| scope.spawn(move || load.write(thread)))
            .collect();
        let purger = args.purge.then(|| scope.spawn(|| load.purge()));
        while !writers.iter().all(|writer| writer.is_finished()) {
            bar.set_position(match args.count {
                Some(_) => load.written.load(Ordering::Relaxed),
                None => load.watch.elapsed().as_millis() as u64,
            });
            SystemClock.sleep(LOOK_EVERY.min(Duration::from_millis(5)));
        }
        let mut results = Vec::new();
        for writer in writers {
            results.push(writer.join().map(|done| done.map(|own| nanos.merge(&own))));
        }
        let seconds = load.watch.elapsed().as_secs_f64();
        load.is_over.store(true, Ordering::Relaxed);
        results.extend(purger.map(|purger| purger.join()));
        (seconds, results)
    });
    bar.finish_and_clear();
    for result in results {
        result.map_err(|_| Failure::Failed("a thread panicked".to_owned()))??;
    }
    Ok(Measured {
        nanos,
        entries: load.entries.into_inner(),
        seconds,
        metrics: engine.metrics(),
    })
}

fn tell(args: &BenchArgs, measured: &Measured, terminal: &mut Terminal) -> Result<(), Failure> {
    let Measured {
        nanos,
        entries,
        seconds,
        metrics,
    } = measured;
    let writes = nanos.count();
    let bytes = entries * args.entry_size;
    let per_second = writes as f64 / seconds.max(1e-9);
    let mib_per_second = bytes as f64 / f64::from(1 << 20) / seconds.max(1e-9);
    let micros = |percent: f64| nanos.percentile(percent) / 1e3;
    let appended = metrics.appended_bytes;
    let text_of_metrics = args.metrics.then(|| metrics.to_prometheus(&[]));
    if terminal.json {
        let queue = |bytes: u64, syncs: u64, files: u64| json!({ "appended_bytes": bytes, "syncs": syncs, "files": files });
        let (syncs, files) = (metrics.syncs, metrics.log_file_count);
        terminal.document(&json!({
            "writes": writes,
            "seconds": seconds,
            "writes_per_second": per_second,
            "entry_mib_per_second": mib_per_second,
            "write_micros": {
                "p50": micros(50.0),
                "p99": micros(99.0),
                "p99.9": micros(99.9),
                "max": nanos.max() as f64 / 1e3,
            },
            "append": queue(appended.append, syncs.append, files.append),
            "rewrite": queue(appended.rewrite, syncs.rewrite, files.rewrite),
            "metrics": text_of_metrics,
        }))?;
        return Ok(());
    }
    terminal.line(&format!(
        "{} in {seconds:.2} s: {}/s, {mib_per_second:.1} MiB/s of entries",
        text::plural(writes, "write"),
        text::count(per_second as u64),
    ))?;
    terminal.line(&format!(
        "a write took p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, max {:.1} us",
        micros(50.0),
        micros(99.0),
        micros(99.9),
        nanos.max() as f64 / 1e3,
    ))?;
    for (name, bytes, syncs, files) in [
        (
            "append queue: ",
            appended.append,
            metrics.syncs.append,
            metrics.log_file_count.append,
        ),
        (
            "rewrite queue:",
            appended.rewrite,
            metrics.syncs.rewrite,
            metrics.log_file_count.rewrite,
        ),
    ] {
        terminal.line(&format!(
            "{name} {} written, {}, {}",
            text::size(bytes),
            text::plural(syncs, "sync"),
            text::plural(files, "file"),
        ))?;
    }
    if let Some(text) = text_of_metrics {
        terminal.raw(text.as_bytes())?;
    }
    Ok(())
}
