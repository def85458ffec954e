//! Bits that turn over in memory, with protection on.
//!
//! ```text
//! batch     a bit of a batch between its making and its write
//! memtable  a bit of an entry's key, value or checksum
//! block     a bit of an entry in a cached block
//! input     a bit of a block that a compaction reads, between its check and the new table
//! output    a bit of a new table between its checksums and the file
//! ```
//! A bit is turned through `/proc/self/mem`, behind the program's back. After each
//!
//! 1. every answer is an error of kind `Corruption`, or what was written;
//! 2. a batch is refused and the database goes on; a block is read again;
//! 3. what is on the disk, opened again, is what was written: nothing was persisted in silence.
//!
//! Out of reach: lengths and links of memtable entries, indexes that open tables hold, and what the
//! processor has in its registers. Run without protection, the same flips give wrong answers.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::metrics::Ticker;
use orogen_engine::plugin::compaction_filter::{
    CompactionFilter, CompactionFilterFactory, FilterContext, FilterDecision,
};
use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind, PowerCut};
use orogen_testkit::Rng;
use parking_lot::Mutex;

use crate::content;
use crate::engine::{CompactRangeOptions, Db, ErrorKind, Options, ReadOptions, WriteBatch};
use crate::guard::{Guard, Outcome, timed};
use crate::model::Pairs;
use crate::report::{Failure, Figure};
use crate::script::{DIR, small_options};

/// Keys of the database.
const KEYS: u64 = 40;

/// What must hold, in a few words.
const RULE: &str = "an error, or what was written; nothing wrong is persisted in silence";

/// Where bits turn over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a batch.
    Batch,
    /// In a memtable.
    Memtable,
    /// In a cached block.
    Block,
    /// In a block that a compaction reads.
    Input,
    /// In a new table.
    Output,
}

impl Place {
    /// All places.
    pub const ALL: [Self; 5] = [
        Self::Batch,
        Self::Memtable,
        Self::Block,
        Self::Input,
        Self::Output,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Memtable => "memtable",
            Self::Block => "block",
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl std::str::FromStr for Place {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|place| place.name() == text)
            .ok_or_else(|| format!("places are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// Flips of each place.
    pub flips: u64,
    /// The first seed; each flip has its own.
    pub seed: u64,
    /// Without protection: to see that the flips do harm.
    pub unprotected: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            flips: 2500,
            seed: 1,
            unprotected: false,
        }
    }
}

#[derive(Default)]
struct Counts {
    told: AtomicU64,
    harmless: AtomicU64,
}

/// Turns bits over in one place.
#[must_use]
pub fn run(place: Place, config: &Config) -> Figure {
    let counts = Counts::default();
    let off = if config.unprotected {
        " --unprotected"
    } else {
        ""
    };
    let repeat = |seed: u64| {
        format!(
            "flips --place {} --seed {seed} --flips 1{off}",
            place.name()
        )
    };
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(config.threads, config.seed, 1, repeat, |seed| {
            if seed >= config.seed + config.flips {
                return Outcome::NoMore;
            }
            match trial(place, seed, !config.unprotected, &counts) {
                Ok(()) => Outcome::Passed,
                Err(what) => Outcome::Failed(Failure {
                    what,
                    repeat: repeat(seed),
                }),
            }
        })
    });
    Figure {
        name: format!("flips/{}", place.name()),
        rule: RULE,
        count: passed,
        unit: "flips",
        seeds: passed,
        seconds,
        details: vec![
            ("told", counts.told.into_inner() as f64),
            ("harmless", counts.harmless.into_inner() as f64),
        ],
        failures,
    }
}

/// Turns a bit over at an address of this process.
fn flip(address: usize, bit: u64) -> Result<(), String> {
    let told = |e: std::io::Error| format!("/proc/self/mem: {e}");
    let memory = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/proc/self/mem")
        .map_err(told)?;
    let mut byte = [0];
    memory
        .read_exact_at(&mut byte, address as u64)
        .map_err(told)?;
    byte[0] ^= 1 << bit;
    memory.write_all_at(&byte, address as u64).map_err(told)
}

fn options(place: Place, protected: bool) -> Options {
    let mut options = small_options();
    let bytes = if protected { 8 } else { 0 };
    options.cf.write_buffer_size = 1 << 20;
    options.cf.disable_auto_compactions = true;
    match place {
        Place::Batch => {}
        Place::Memtable => options.cf.memtable_protection_bytes_per_key = bytes,
        Place::Block | Place::Input => options.cf.block_protection_bytes_per_key = bytes,
        Place::Output => options.cf.paranoid_file_checks = protected,
    }
    options
}

struct World {
    db: Db,
    pairs: Pairs,
    rng: Rng,
    memory: MemFileSystem,
    faults: FaultFileSystem,
    options: Options,
}

impl World {
    fn key(n: u64) -> Vec<u8> {
        format!("key{n:05}-abcdefgh").into_bytes()
    }

    fn batch(&mut self, protected: bool) -> WriteBatch {
        let mut batch = if protected {
            WriteBatch::with_protection()
        } else {
            WriteBatch::new()
        };
        for _ in 0..6 {
            let key = Self::key(self.rng.below(KEYS));
            let len = self.rng.range(20..90);
            let value = self.rng.bytes(len);
            batch.put(0, &key, &value);
            self.pairs.insert(key, value);
        }
        batch
    }

    fn fill(&mut self) -> Result<(), String> {
        for _ in 0..12 {
            let batch = self.batch(false);
            self.db.write(batch).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Every answer is right, or an error of damage; true if all are right.
    fn ask(&self, db: &Db) -> Result<bool, String> {
        let mut right = true;
        let family = db.default_column_family();
        for n in 0..KEYS {
            let key = Self::key(n);
            match db.get_opt(&ReadOptions::default(), &family, &key) {
                Ok(found) if found.as_deref() == self.pairs.get(&key).map(Vec::as_slice) => {}
                Ok(_) => return Err(format!("wrong answer for {}", key.escape_ascii())),
                Err(e) if e.kind() == ErrorKind::Corruption => right = false,
                Err(e) => return Err(format!("the wrong kind of error: {e}")),
            }
        }
        match content::pairs(db) {
            Ok(found) if found["default"] == self.pairs => {}
            Ok(_) => return Err("a scan shows something else".to_owned()),
            Err(e) if e.kind() == ErrorKind::Corruption => right = false,
            Err(e) => return Err(format!("the wrong kind of error: {e}")),
        }
        Ok(right)
    }

    /// Rule 3.
    fn ask_again(&self, disk: MemFileSystem) -> Result<(), String> {
        let mut options = self.options.clone();
        options.db.fs = Arc::new(disk);
        let db = Db::open(DIR, &options).map_err(|e| format!("open again: {e}"))?;
        if self.ask(&db)? {
            return Ok(());
        }
        Err("what was persisted is damaged".to_owned())
    }
}

fn trial(place: Place, seed: u64, protected: bool, counts: &Counts) -> Result<(), String> {
    let memory = MemFileSystem::new();
    let faults = FaultFileSystem::new(Arc::new(memory.clone()));
    let mut options = options(place, protected);
    let armed = Arc::new(Armed::default());
    if place == Place::Input {
        options.cf.compaction_filter_factory = Some(Arc::new(Factory(armed.clone())));
    }
    options.db.fs = Arc::new(faults.clone());
    let db = Db::open(DIR, &options).map_err(|e| e.to_string())?;
    let mut world = World {
        db,
        pairs: Pairs::new(),
        rng: Rng::new(seed),
        memory,
        faults,
        options,
    };
    world.fill()?;
    let told = match place {
        Place::Batch => in_batch(&mut world, protected),
        Place::Memtable => in_memtable(&mut world),
        Place::Block => in_block(&mut world),
        Place::Input => in_input(&mut world, &armed),
        Place::Output => in_output(&mut world),
    }?;
    let count = if told { &counts.told } else { &counts.harmless };
    count.fetch_add(1, Ordering::Relaxed);
    // As a process that ends now would leave it.
    let disk = world.memory.crash(PowerCut::KeepAll);
    world.ask_again(disk)
}

fn in_batch(world: &mut World, protected: bool) -> Result<bool, String> {
    let before = world.pairs.clone();
    let batch = world.batch(protected);
    let bytes = batch.as_bytes();
    // The sequence number is not known yet.
    let at = world.rng.range(8..bytes.len());
    flip(bytes.as_ptr() as usize + at, world.rng.below(8))?;
    match world.db.write(batch) {
        Err(e) if e.kind() == ErrorKind::Corruption => world.pairs = before,
        Err(e) => return Err(format!("the wrong kind of error: {e}")),
        Ok(()) => return Err("a batch that had changed was written".to_owned()),
    }
    // Nothing else is harmed.
    let next = world.batch(protected);
    world.db.write(next).map_err(|e| format!("next: {e}"))?;
    if !world.ask(&world.db)? {
        return Err("a refused batch did harm".to_owned());
    }
    Ok(true)
}

fn in_memtable(world: &mut World) -> Result<bool, String> {
    let told = |e: crate::engine::Error| e.to_string();
    {
        let family = world.db.default_column_family();
        let mut iter = world
            .db
            .iter(&ReadOptions::default(), &family)
            .map_err(told)?;
        iter.seek(&World::key(world.rng.below(KEYS)));
        if !iter.valid() {
            iter.seek_to_first();
        }
        let (key, value) = (iter.key().len() + 8, iter.value().len());
        let start = iter.value().as_ptr() as usize;
        // Link 8 bytes | lengths 4 bytes | key | value | checksum 8 bytes, where there is one.
        let checksum = world.options.cf.memtable_protection_bytes_per_key;
        let address = start - key + world.rng.range(0..key + value + checksum);
        flip(address, world.rng.below(8))?;
    }
    let right = world.ask(&world.db)?;
    if right {
        return Err("a changed entry was not noticed".to_owned());
    }
    match world.db.flush() {
        Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::ReadOnly) => Ok(true),
        Err(e) => Err(format!("the wrong kind of error: {e}")),
        Ok(()) => Err("a changed entry was flushed".to_owned()),
    }
}

fn in_block(world: &mut World) -> Result<bool, String> {
    let told = |e: crate::engine::Error| e.to_string();
    world.db.flush().map_err(told)?;
    world.ask(&world.db)?;
    let keys: Vec<Vec<u8>> = world.pairs.keys().cloned().collect();
    let key = world.rng.pick(&keys).clone();
    {
        let found = world.db.get(&key).map_err(told)?;
        let value = found.ok_or("a key is gone")?;
        // Before the value stands the number and kind of the entry, at least.
        let at = world.rng.range(0..value.len() + 8);
        let address = value.as_ptr() as usize + at - 8;
        flip(address, world.rng.below(8))?;
    }
    let dropped = || {
        let statistics = world.db.statistics();
        statistics.get(Ticker::BlockCacheCorruption)
    };
    if !world.ask(&world.db)? {
        return Err("a block was not read again".to_owned());
    }
    if dropped() == 0 {
        return Err("a changed block was not noticed".to_owned());
    }
    Ok(true)
}

/// Turns a bit over around the value that a compaction shows it, once.
#[derive(Debug, Default)]
struct Armed(Mutex<Option<Shot>>);

/// What is still to be done.
#[derive(Debug)]
struct Shot {
    /// Values to pass before.
    after: u64,
    rng: Rng,
    failed: Option<String>,
    done: bool,
}

struct Filter(Arc<Armed>);

impl CompactionFilter for Filter {
    fn filter(&mut self, _: usize, _: &[u8], value: &[u8]) -> FilterDecision {
        let mut armed = self.0.0.lock();
        let Some(shot) = armed.as_mut().filter(|shot| !shot.done) else {
            return FilterDecision::Keep;
        };
        if shot.after > 0 {
            shot.after -= 1;
            return FilterDecision::Keep;
        }
        shot.done = true;
        // Of the value, or of the key or the value before it.
        let at = shot.rng.range(0..value.len() + 8);
        let bit = shot.rng.below(8);
        shot.failed = flip(value.as_ptr() as usize + at - 8, bit).err();
        FilterDecision::Keep
    }
}

struct Factory(Arc<Armed>);

impl CompactionFilterFactory for Factory {
    fn name(&self) -> &str {
        "flips"
    }
    fn create(&self, _: &FilterContext) -> Option<Box<dyn CompactionFilter>> {
        Some(Box::new(Filter(self.0.clone())))
    }
}

fn in_input(world: &mut World, armed: &Armed) -> Result<bool, String> {
    let told = |e: crate::engine::Error| e.to_string();
    world.db.flush().map_err(told)?;
    world.fill()?;
    world.db.flush().map_err(told)?;
    let mut rng = world.rng.clone();
    *armed.0.lock() = Some(Shot {
        after: rng.below(KEYS / 2),
        rng,
        failed: None,
        done: false,
    });
    let family = world.db.default_column_family();
    let result = world
        .db
        .compact_range(&CompactRangeOptions::default(), &family, None, None);
    let shot = armed.0.lock().take().ok_or("nobody was there to shoot")?;
    if let Some(why) = shot.failed {
        return Err(why);
    }
    if !shot.done {
        return Err("no value was shown".to_owned());
    }
    match result {
        Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::ReadOnly) => Ok(true),
        Err(e) => Err(format!("the wrong kind of error: {e}")),
        Ok(()) => Err("a changed block was compacted".to_owned()),
    }
}

fn in_output(world: &mut World) -> Result<bool, String> {
    let told = |e: crate::engine::Error| e.to_string();
    let compacts = world.rng.chance(1, 2);
    if compacts {
        world.db.flush().map_err(told)?;
        world.fill()?;
        world.db.flush().map_err(told)?;
    }
    let flip = Fault::io()
        .on(&[OpKind::Append])
        .path_with(".sst")
        .flip(world.rng.u64());
    world.faults.faults().add(flip);
    let family = world.db.default_column_family();
    let result = if compacts {
        world
            .db
            .compact_range(&CompactRangeOptions::default(), &family, None, None)
    } else {
        world.db.flush()
    };
    world.faults.faults().clear();
    if world.faults.faults().injected() == 0 {
        return Err("no table was written".to_owned());
    }
    match result {
        Ok(()) => {}
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::Corruption | ErrorKind::ReadOnly | ErrorKind::NotSupported
            ) =>
        {
            return Ok(true);
        }
        Err(e) => return Err(format!("the wrong kind of error: {e}")),
    }
    // In bytes that nobody reads.
    if world.ask(&world.db)? {
        return Ok(false);
    }
    Err("a changed table was installed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_protection_flips_do_harm() {
        for place in Place::ALL {
            let config = Config {
                threads: 1,
                flips: 40,
                unprotected: true,
                ..Config::default()
            };
            assert!(!run(place, &config).passed(), "{place:?}");
        }
    }
}
