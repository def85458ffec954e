//! A run: the workloads of `--benchmarks` one after another on one database.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use orogen::{
    BlockBasedOptions, BlockCache, BlockIndex, ColumnFamilyOptions, CompressionType, Db, DbOptions,
    FlushOptions, Options, Statistics,
};
use orogen_base::{Error, Result};
use orogen_env::{Clock, SystemClock, threads};

use crate::flags::Flags;
use crate::generate::Rng;
use crate::report::{BenchResult, environment_text, header_text};
use crate::stats::Stats;
use crate::workload::{self, Worker, Workload};

/// Why a run ended early.
#[derive(Debug)]
pub enum BenchError {
    /// The command line is wrong.
    Usage(String),
    /// The database failed.
    Db(Error),
    /// Nobody reads the output any more, or it cannot be written.
    Output(std::io::Error),
}

impl From<Error> for BenchError {
    fn from(e: Error) -> Self {
        Self::Db(e)
    }
}

impl From<std::io::Error> for BenchError {
    fn from(e: std::io::Error) -> Self {
        Self::Output(e)
    }
}

impl std::fmt::Display for BenchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Usage(text) => f.write_str(text),
            Self::Db(e) => e.fmt(f),
            Self::Output(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for BenchError {}

/// Names that are done and not measured.
const ACTIONS: [&str; 5] = [
    "flush",
    "waitforcompaction",
    "stats",
    "levelstats",
    "resetstats",
];

fn compression(name: &str) -> Option<CompressionType> {
    Some(match name.to_ascii_lowercase().as_str() {
        "none" => CompressionType::None,
        "snappy" => CompressionType::Snappy,
        "lz4" => CompressionType::Lz4,
        "lz4hc" => CompressionType::Lz4hc,
        "zstd" => CompressionType::Zstd,
        _ => return None,
    })
}

fn options(flags: &Flags, codec: CompressionType, statistics: &Arc<Statistics>) -> Options {
    let table = BlockBasedOptions {
        block_size: flags.block_size,
        filter_bits_per_key: flags.bloom_bits.max(0.0),
        cache_index_and_filter_blocks: flags.cache_index_and_filter_blocks,
        index_type: if flags.partition_index_and_filters {
            BlockIndex::TwoLevel
        } else {
            BlockIndex::BinarySearch
        },
        partition_filters: flags.partition_index_and_filters,
        metadata_block_size: flags.metadata_block_size,
        ..BlockBasedOptions::default()
    };
    let cache_bytes = usize::try_from(flags.cache_size).unwrap_or(usize::MAX);
    Options {
        db: DbOptions {
            create_if_missing: true,
            max_background_jobs: flags.max_background_jobs,
            max_subcompactions: flags.subcompactions,
            allow_mmap_writes: flags.mmap_write,
            allow_mmap_reads: flags.mmap_read,
            statistics: statistics.clone(),
            ..DbOptions::default()
        },
        cf: ColumnFamilyOptions {
            write_buffer_size: flags.write_buffer_size,
            max_write_buffer_number: flags.max_write_buffer_number,
            compression: codec,
            target_file_size_base: flags.target_file_size_base,
            max_bytes_for_level_base: flags.max_bytes_for_level_base,
            level0_file_num_compaction_trigger: flags.level0_file_num_compaction_trigger,
            disable_auto_compactions: flags.disable_auto_compactions,
            block_cache: Some(Arc::new(BlockCache::new(cache_bytes))),
            table,
            ..ColumnFamilyOptions::default()
        },
        ..Options::default()
    }
}

/// Where text goes: to `out`, or beside it where `out` is kept for one JSON document.
struct Sink<'a> {
    out: &'a mut dyn Write,
    talk: &'a mut dyn Write,
    json: bool,
    results: Vec<BenchResult>,
    texts: serde_json::Map<String, serde_json::Value>,
}

impl Sink<'_> {
    fn line(&mut self, text: &str) -> std::io::Result<()> {
        if self.json {
            tell(self.talk, text);
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    fn text(&mut self, name: &str, text: &str) -> std::io::Result<()> {
        self.texts.insert(name.to_owned(), text.into());
        self.line(&format!("\n{text}\n"))
    }
}

/// Tells what is no result. If it cannot be written there is nobody to tell.
fn tell(talk: &mut dyn Write, text: &str) {
    let _ = talk.write_all(text.as_bytes());
    let _ = talk.flush();
}

/// Runs what `args` asks for. Results go to `out`, everything else to `talk`.
///
/// # Errors
/// [`BenchError::Usage`] before anything was touched; what the database met; what `out` met.
pub fn run(args: &[String], out: &mut dyn Write, talk: &mut dyn Write) -> Result<(), BenchError> {
    let mut flags = Flags::parse(args).map_err(BenchError::Usage)?;
    let codec = compression(&flags.compression_type)
        .ok_or_else(|| BenchError::Usage("flag --compression_type is unknown".to_owned()))?;
    let names: Vec<String> = flags
        .benchmarks
        .split(',')
        .filter(|n| !n.is_empty())
        .map(str::to_owned)
        .collect();
    if let Some(name) = names
        .iter()
        .find(|n| workload::by_name(n).is_none() && !ACTIONS.contains(&n.as_str()))
    {
        return Err(BenchError::Usage(format!("unknown benchmark '{name}'")));
    }
    if flags.seed == 0 {
        flags.seed = SystemClock.unix_secs() ^ (u64::from(std::process::id()) << 32);
        let seed = flags.seed;
        tell(talk, &format!("Set seed to {seed} because --seed was 0\n"));
    }
    tell(talk, &environment_text(SystemClock.unix_secs()));
    let statistics = Arc::new(Statistics::new());
    let options = options(&flags, codec, &statistics);
    let json = flags.json;
    // Before the database gives way.
    if let Err(e) = options.validate() {
        return Err(BenchError::Usage(e.to_string()));
    }
    let mut sink = Sink {
        out,
        talk,
        json,
        results: Vec::new(),
        texts: Default::default(),
    };
    sink.line(&header_text(&flags))?;
    let mut runner = Runner {
        next_seed: flags.seed,
        flags: Arc::new(flags),
        options,
        db: None,
    };
    if !runner.flags.use_existing_db {
        Db::destroy(&runner.flags.db, &runner.options)?;
    }
    for name in &names {
        runner.step(name, &mut sink)?;
    }
    if let Some(db) = runner.db.take() {
        db.close()?;
    }
    if runner.flags.statistics {
        let text = format!("STATISTICS:\n{}", statistics.to_text());
        sink.text("statistics", &text)?;
    }
    if json {
        let document = serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "results": sink.results,
            "texts": sink.texts,
        });
        writeln!(sink.out, "{document:#}")?;
        sink.out.flush()?;
    }
    Ok(())
}

struct Runner {
    flags: Arc<Flags>,
    options: Options,
    db: Option<Db>,
    /// The seed of the next thread: no two threads of a run draw the same numbers.
    next_seed: u64,
}

impl Runner {
    fn open(&mut self) -> Result<Db> {
        if let Some(db) = &self.db {
            return Ok(db.clone());
        }
        let db = Db::open(&self.flags.db, &self.options)?;
        self.db = Some(db.clone());
        Ok(db)
    }

    fn step(&mut self, name: &str, sink: &mut Sink<'_>) -> Result<(), BenchError> {
        let Some(workload) = workload::by_name(name) else {
            return self.act(name, sink);
        };
        if workload.fresh {
            if self.flags.use_existing_db {
                let text = format!("{name:<12} : skipped (--use_existing_db is true)\n");
                sink.line(&text)?;
                return Ok(());
            }
            if let Some(db) = self.db.take() {
                db.close()?;
            }
            Db::destroy(&self.flags.db, &self.options)?;
        }
        let db = self.open()?;
        if name == "multireadrandom" {
            sink.line(&format!("entries_per_batch = {}\n", self.flags.batch_size))?;
        }
        sink.line(&format!("DB path: [{}]\n", self.flags.db.display()))?;
        let stats = run_threads(&db, &self.flags, workload, &mut self.next_seed)?;
        sink.line(&stats.to_text(name, workload.found_ends_line))?;
        sink.results.push(BenchResult::of(name, &stats));
        Ok(())
    }

    fn act(&mut self, name: &str, sink: &mut Sink<'_>) -> Result<(), BenchError> {
        let db = self.open()?;
        let family = db.default_column_family();
        match name {
            "flush" => {
                db.flush_opt(&FlushOptions::default(), &[family])?;
                sink.line("flush memtable\n")?;
            }
            "waitforcompaction" => {
                db.wait_for_background_work()?;
                sink.line("waitforcompaction: finished\n")?;
            }
            "resetstats" => db.statistics().reset_tickers(),
            _ => {
                let property = format!("rocksdb.{name}");
                let text = db.property(&family, &property).unwrap_or_default();
                sink.text(name, &text)?;
            }
        }
        Ok(())
    }
}

/// Takes a thread off those that run.
struct Done(Arc<AtomicUsize>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs a workload in all its threads, which start together.
fn run_threads(
    db: &Db,
    flags: &Arc<Flags>,
    workload: &'static Workload,
    next_seed: &mut u64,
) -> Result<Stats> {
    let measured = workload.threads.unwrap_or(flags.threads);
    let total = measured + usize::from(workload.beside.is_some());
    let running = Arc::new(AtomicUsize::new(measured));
    let barrier = Arc::new(Barrier::new(total));
    let results = Arc::new(Mutex::new(Vec::with_capacity(total)));
    let mut started = Vec::with_capacity(total);
    for id in 0..total {
        let beside = workload.beside.filter(|_| id == measured);
        let mut worker = Worker {
            db: db.clone(),
            family: db.default_column_family(),
            flags: flags.clone(),
            key_size: flags.key_size + usize::from(workload.missing),
            rng: Rng::new(*next_seed),
            stats: Stats::new(id, false, 0),
            running: running.clone(),
        };
        *next_seed = next_seed.wrapping_add(1);
        let (barrier, results) = (barrier.clone(), results.clone());
        started.push(threads::spawn(&format!("bench-{id}"), move || {
            let flags = worker.flags.clone();
            barrier.wait();
            worker.stats = Stats::new(id, flags.histogram, flags.stats_interval_seconds);
            worker.stats.verb = workload.verb;
            worker.stats.excluded = beside.is_some();
            // Also when it panics: the thread beside must not wait for it.
            let done = beside.is_none().then(|| Done(worker.running.clone()));
            let result = beside.unwrap_or(workload.run)(&mut worker);
            worker.stats.stop();
            drop(done);
            let result = result.map(|()| worker.stats);
            results
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(result);
        })?);
    }
    // Joins them.
    drop(started);
    let mut merged: Option<Stats> = None;
    for result in results
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        let stats = result?;
        match &mut merged {
            _ if stats.excluded => {}
            Some(merged) => merged.merge(&stats),
            None => merged = Some(stats),
        }
    }
    merged.ok_or_else(|| Error::aborted("a thread of the workload panicked"))
}
