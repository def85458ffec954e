//! Many threads at once, and what every snapshot must show whatever they do.
//!
//! 1. A writer's batch sets all its keys, over three families, to one number: in a snapshot they
//!    are equal.
//! 2. A writer moves money between its accounts: in a snapshot their sum is what it was.
//! 3. A later snapshot never shows an older number than an earlier one of the same reader.
//! 4. A batch that was acknowledged before a snapshot was taken is in it.
//! 5. A cursor shows what its snapshot shows, both ways, also when files go from under it.
//! 6. After the end, a crash of the process and an open, the last acknowledged numbers are there,
//!    no other files than those of the database are, and every pointer leads to its value.
//! 7. So does a checkpoint that was made meanwhile.
//!
//! Others flush, compact, make and drop a family, and for even seeds collect garbage of blob
//! files, give up dead places, and bring values to blob files and back, all the time.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use orogen_env::{Clock, MemFileSystem, PowerCut, SystemClock};
use orogen_testkit::Rng;

use crate::content;
use crate::engine::{
    CheckpointOptions, CollectBlobGarbageOptions, ColumnFamily, CompactRangeOptions, ConvertTo,
    ConvertValuesOptions, Db, Error, FlushOptions, Options, ReadOptions, Result, WriteBatch,
    WriteOptions,
};
use crate::guard::{Guard, Outcome, timed};
use crate::report::{Failure, Figure};
use crate::script::{DIR, small_options};

const FAMILIES: [&str; 3] = ["default", "a", "b"];
/// Keys of a writer in each family that are always equal.
const EQUAL_KEYS: usize = 6;
const ACCOUNTS: usize = 10;
const BALANCE: u64 = 1000;

/// What must hold, in a few words.
const RULE: &str = "each snapshot is one moment";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads that write.
    pub writers: usize,
    /// Threads that read.
    pub readers: usize,
    /// How long each seed.
    pub seconds: f64,
    /// The first seed.
    pub seed: u64,
    /// How many seeds.
    pub seeds: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            writers: 4,
            readers: 3,
            seconds: 2.0,
            seed: 1,
            seeds: 2,
        }
    }
}

/// Runs all seeds, one after the other.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let repeat = |seed: u64| {
        format!(
            "concurrent --seed {seed} --seeds 1 --seconds {}",
            config.seconds
        )
    };
    let batches = AtomicU64::new(0);
    let snapshots = AtomicU64::new(0);
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(1, config.seed, 1, repeat, |seed| {
            if seed >= config.seed + config.seeds {
                return Outcome::NoMore;
            }
            match play(seed, config) {
                Ok((b, s)) => {
                    batches.fetch_add(b, Ordering::Relaxed);
                    snapshots.fetch_add(s, Ordering::Relaxed);
                    Outcome::Passed
                }
                Err(what) => Outcome::Failed(Failure {
                    what,
                    repeat: repeat(seed),
                }),
            }
        })
    });
    Figure {
        name: "concurrent".to_owned(),
        rule: RULE,
        count: batches.into_inner(),
        unit: "batches",
        seeds: passed,
        seconds,
        details: vec![("snapshots", snapshots.into_inner() as f64)],
        failures,
    }
}

struct Shared {
    db: Db,
    families: Vec<ColumnFamily>,
    stop: AtomicBool,
    /// By writer: the last acknowledged number.
    acknowledged: Vec<AtomicU64>,
    batches: AtomicU64,
    snapshots: AtomicU64,
}

fn options(fs: &MemFileSystem, seed: u64, rng: &mut Rng) -> Options {
    let mut options = small_options();
    options.db.fs = Arc::new(fs.clone());
    options.db.max_background_jobs = rng.range(1..5);
    options.db.max_subcompactions = rng.range(1..4);
    options.db.allow_concurrent_memtable_write = rng.chance(3, 4);
    options.db.delayed_write_rate = 1 << 30;
    options.cf.write_buffer_size = *rng.pick(&[4 << 10, 16 << 10, 64 << 10]);
    options.cf.max_write_buffer_number = rng.range(2..5);
    if seed.is_multiple_of(2) {
        let cf = &mut options.cf;
        cf.enable_blob_files = true;
        cf.min_blob_size = *rng.pick(&[0, 40]);
        cf.blob_file_size = *rng.pick(&[1 << 10, 16 << 10]);
        cf.blob_file_discardable_ratio = *rng.pick(&[0.0, 0.4]);
        cf.min_gc_batch_size = 0;
        cf.level_merge = rng.chance(1, 2);
        // Values take whole blocks, so that holes come of them.
        cf.blob_record_alignment = *rng.pick(&[0, 4 << 10]);
        cf.blob_hole_punching_threshold = 0.0;
        cf.blob_hole_punching_min_bytes = 1;
    }
    options
}

fn equal_key(writer: usize, n: usize) -> Vec<u8> {
    format!("equal/{writer}/{n}").into_bytes()
}

fn account_key(writer: usize, n: usize) -> Vec<u8> {
    format!("account/{writer}/{n:02}").into_bytes()
}

fn play(seed: u64, config: &Config) -> std::result::Result<(u64, u64), String> {
    let mut rng = Rng::new(seed);
    let fs = MemFileSystem::new();
    let options = options(&fs, seed, &mut rng);
    let fine = |e: Error| e.to_string();
    let db = Db::open(DIR, &options).map_err(fine)?;
    for name in &FAMILIES[1..] {
        db.create_column_family(name, options.cf.clone())
            .map_err(fine)?;
    }
    let families = FAMILIES
        .iter()
        .filter_map(|name| db.column_family(name))
        .collect();
    let shared = Shared {
        db,
        families,
        stop: AtomicBool::new(false),
        acknowledged: (0..config.writers).map(|_| AtomicU64::new(0)).collect(),
        batches: AtomicU64::new(0),
        snapshots: AtomicU64::new(0),
    };
    for writer in 0..config.writers {
        shared.begin(writer).map_err(fine)?;
    }
    let results: Vec<std::result::Result<(), String>> = std::thread::scope(|scope| {
        let shared = &shared;
        let mut threads = Vec::new();
        for writer in 0..config.writers {
            let rng = Rng::new(rng.u64());
            threads.push(scope.spawn(move || shared.write(writer, rng).map_err(|e| e.to_string())));
        }
        for _ in 0..config.readers {
            let rng = Rng::new(rng.u64());
            threads.push(scope.spawn(move || shared.read(rng)));
        }
        let other = Rng::new(rng.u64());
        let theirs = &options;
        threads.push(scope.spawn(move || shared.disturb(theirs, other)));
        let end = SystemClock.now_micros() + (config.seconds * 1e6) as u64;
        while SystemClock.now_micros() < end && !shared.stop.load(Ordering::Relaxed) {
            SystemClock.sleep(Duration::from_millis(5));
        }
        shared.stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|t| {
                t.join()
                    .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
            })
            .collect()
    });
    results
        .into_iter()
        .collect::<std::result::Result<(), _>>()?;
    let image = fs.crash(PowerCut::KeepAll);
    let counts = (
        shared.batches.load(Ordering::Relaxed),
        shared.snapshots.load(Ordering::Relaxed),
    );
    let mut after = options;
    after.db.fs = Arc::new(image);
    let acknowledged = shared.acknowledged;
    shared.db.close().map_err(fine)?;
    // Nothing in the background, so that the directory stands still.
    after.cf.disable_auto_compactions = true;
    let db = Db::open(DIR, &after).map_err(fine)?;
    check_files(&db, &after, DIR)?;
    for (writer, number) in acknowledged.iter().enumerate() {
        let found = db.get(&equal_key(writer, 0)).map_err(fine)?;
        let expected = number.load(Ordering::Relaxed);
        if found.as_deref().map(number_of) != Some(expected) {
            return Err(format!(
                "after a crash writer {writer} lost number {expected}"
            ));
        }
    }
    Ok(counts)
}

fn check_files(db: &Db, options: &Options, dir: &str) -> std::result::Result<(), String> {
    let strays = content::strays(db, &*options.db.fs, Path::new(dir), 1, true);
    let strays = strays.map_err(|e| format!("{dir}: {e}"))?;
    if !strays.is_empty() {
        return Err(format!("stray files in {dir}: {strays:?}"));
    }
    Ok(())
}

fn number_of(value: &[u8]) -> u64 {
    value
        .first_chunk()
        .map_or(u64::MAX, |b| u64::from_le_bytes(*b))
}

/// A number, and bytes behind it that fill memtables.
fn padded(number: u64, rng: &mut Rng) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(rng.range(8..120), b'.');
    value
}

impl Shared {
    fn begin(&self, writer: usize) -> Result<()> {
        let mut batch = WriteBatch::new();
        for (i, family) in self.families.iter().enumerate() {
            for n in 0..EQUAL_KEYS {
                batch.put(family.id(), &equal_key(writer, n), &0u64.to_le_bytes());
            }
            for n in (0..ACCOUNTS).filter(|n| n % FAMILIES.len() == i) {
                batch.put(family.id(), &account_key(writer, n), &BALANCE.to_le_bytes());
            }
        }
        self.db.write(batch)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn write(&self, writer: usize, mut rng: Rng) -> Result<()> {
        let mut balances = [BALANCE; ACCOUNTS];
        let mut batch = WriteBatch::new();
        for number in 1.. {
            if self.stopped() {
                break;
            }
            batch.clear();
            for family in &self.families {
                // Sometimes a large range goes and comes again within one batch.
                if number % 16 == 0 {
                    let (from, to) = (equal_key(writer, 0), equal_key(writer, EQUAL_KEYS));
                    batch.delete_range(family.id(), &from, &to);
                }
                for n in 0..EQUAL_KEYS {
                    batch.put(
                        family.id(),
                        &equal_key(writer, n),
                        &padded(number, &mut rng),
                    );
                }
            }
            let (from, to) = (rng.range(0..ACCOUNTS), rng.range(0..ACCOUNTS));
            let amount = rng.below(balances[from] + 1);
            balances[from] -= amount;
            balances[to] += amount;
            for n in [from, to] {
                let family = &self.families[n % FAMILIES.len()];
                batch.put(
                    family.id(),
                    &account_key(writer, n),
                    &balances[n].to_le_bytes(),
                );
            }
            let options = WriteOptions {
                sync: rng.chance(1, 16),
                ..WriteOptions::default()
            };
            self.db.write_opt(&options, &mut batch)?;
            self.acknowledged[writer].store(number, Ordering::Release);
            self.batches.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read(&self, mut rng: Rng) -> std::result::Result<(), String> {
        let mut seen = vec![0; self.acknowledged.len()];
        while !self.stopped() {
            if let Err(what) = self.look(&mut rng, &mut seen) {
                self.stop.store(true, Ordering::Relaxed);
                return Err(what);
            }
            self.snapshots.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn look(&self, rng: &mut Rng, seen: &mut [u64]) -> std::result::Result<(), String> {
        let least: Vec<u64> = self
            .acknowledged
            .iter()
            .zip(&*seen)
            .map(|(a, &s)| a.load(Ordering::Acquire).max(s))
            .collect();
        let options = ReadOptions {
            snapshot: Some(self.db.snapshot()),
            ..ReadOptions::default()
        };
        let writer = rng.range(0..seen.len());
        let number = match rng.below(3) {
            0 => self.look_with_get(&options, writer)?,
            1 => self.look_with_multi_get(&options, writer)?,
            _ => self.look_with_cursor(&self.db, &options, writer, rng.chance(1, 2))?,
        };
        if number < least[writer] {
            return Err(format!(
                "writer {writer}: number {number} after {}",
                least[writer]
            ));
        }
        seen[writer] = number;
        Ok(())
    }

    fn look_with_get(
        &self,
        options: &ReadOptions,
        writer: usize,
    ) -> std::result::Result<u64, String> {
        let get = |family: &ColumnFamily, key: &[u8]| {
            let found = self
                .db
                .get_opt(options, family, key)
                .map_err(|e| e.to_string())?;
            found
                .map(|v| number_of(&v))
                .ok_or_else(|| format!("{} is gone", key.escape_ascii()))
        };
        let mut numbers = Vec::new();
        for family in &self.families {
            for n in 0..EQUAL_KEYS {
                numbers.push(get(family, &equal_key(writer, n))?);
            }
        }
        let mut sum = 0;
        for n in 0..ACCOUNTS {
            sum += get(&self.families[n % FAMILIES.len()], &account_key(writer, n))?;
        }
        judge("get", writer, &numbers, sum)
    }

    fn look_with_multi_get(
        &self,
        options: &ReadOptions,
        writer: usize,
    ) -> std::result::Result<u64, String> {
        let (mut numbers, mut sum) = (Vec::new(), 0);
        for (i, family) in self.families.iter().enumerate() {
            let mut keys: Vec<Vec<u8>> = (0..EQUAL_KEYS).map(|n| equal_key(writer, n)).collect();
            keys.extend(
                (i..ACCOUNTS)
                    .step_by(FAMILIES.len())
                    .map(|n| account_key(writer, n)),
            );
            let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            for (n, found) in self
                .db
                .multi_get(options, family, &asked)
                .into_iter()
                .enumerate()
            {
                let value = found.map_err(|e| e.to_string())?;
                let number = value.map(|v| number_of(&v)).ok_or("a key is gone")?;
                if n < EQUAL_KEYS {
                    numbers.push(number)
                } else {
                    sum += number
                }
            }
        }
        judge("multi_get", writer, &numbers, sum)
    }

    fn look_with_cursor(
        &self,
        db: &Db,
        options: &ReadOptions,
        writer: usize,
        backward: bool,
    ) -> std::result::Result<u64, String> {
        let (mut numbers, mut sum) = (Vec::new(), 0);
        for family in &self.families {
            let mut found: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            let family = db.column_family(family.name()).ok_or("a family is gone")?;
            let mut iter = db.iter(options, &family).map_err(|e| e.to_string())?;
            for name in ["account", "equal"] {
                let prefix = format!("{name}/{writer}/").into_bytes();
                let mut end = prefix.clone();
                *end.last_mut().expect("it ends with a slash") += 1;
                if backward {
                    iter.seek_for_prev(&end)
                } else {
                    iter.seek(&prefix)
                }
                while iter.valid() && iter.key().starts_with(&prefix) {
                    if found
                        .insert(iter.key().to_vec(), number_of(iter.value()))
                        .is_some()
                    {
                        return Err("a cursor shows a key twice".to_owned());
                    }
                    if backward { iter.prev() } else { iter.next() }
                }
                iter.status().map_err(|e| e.to_string())?;
            }
            for (key, number) in found {
                if key.starts_with(b"equal") {
                    numbers.push(number)
                } else {
                    sum += number
                }
            }
        }
        judge(
            if backward { "prev" } else { "next" },
            writer,
            &numbers,
            sum,
        )
    }

    /// Does what else there is to do, in a loop.
    fn disturb(&self, options: &Options, mut rng: Rng) -> std::result::Result<(), String> {
        for n in 0.. {
            if self.stopped() {
                break;
            }
            match rng.chance(1, 20) {
                true => self.copy(options, n)?,
                false => self.disturb_once(&mut rng).map_err(|e| e.to_string())?,
            }
            SystemClock.sleep(Duration::from_millis(rng.below(10)));
        }
        Ok(())
    }

    fn disturb_once(&self, rng: &mut Rng) -> Result<()> {
        let (db, family) = (&self.db, &self.families[rng.range(0..FAMILIES.len())]);
        let separates = family.options().enable_blob_files;
        match rng.below(if separates { 9 } else { 6 }) {
            0..=2 => db.flush_opt(&FlushOptions::default(), &self.families),
            3 => db.compact_range(&CompactRangeOptions::default(), family, None, None),
            4 => {
                let extra = db.create_column_family("extra", (*family.options()).clone())?;
                for n in 0..rng.below(3) {
                    let value = padded(n, rng);
                    db.put_opt(&WriteOptions::default(), &extra, b"k", &value)?;
                    db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&extra))?;
                }
                db.put_opt(&WriteOptions::default(), &extra, b"k", b"v")?;
                db.drop_column_family(&extra)
            }
            5 => db.sync_wal(),
            6 | 7 => {
                let how = CollectBlobGarbageOptions {
                    discardable_ratio: *rng.pick(&[0.0, 0.5]),
                    merge_small_files: rng.chance(1, 2),
                };
                db.collect_blob_garbage(&how, family)
            }
            _ => {
                let convert = |to| {
                    let converted =
                        db.convert_values(family, to, &ConvertValuesOptions::default())?;
                    match converted.is_whole() {
                        true => Ok(()),
                        false => Err(Error::corruption("values were left where they were")),
                    }
                };
                convert(ConvertTo::Inline)?;
                convert(ConvertTo::Separated)
            }
        }
    }

    /// Makes a checkpoint, opens it and takes it away.
    fn copy(&self, options: &Options, n: u64) -> std::result::Result<(), String> {
        let dir = format!("/copy{n}");
        let fine = |e: Error| format!("checkpoint: {e}");
        let how = CheckpointOptions {
            log_size_for_flush: if n.is_multiple_of(2) { 0 } else { u64::MAX },
        };
        self.db.checkpoint_opt(&how, &dir).map_err(fine)?;
        let mut options = options.clone();
        options.cf.disable_auto_compactions = true;
        let db = Db::open(&dir, &options).map_err(fine)?;
        check_files(&db, &options, &dir)?;
        for writer in 0..self.acknowledged.len() {
            self.look_with_cursor(&db, &ReadOptions::default(), writer, false)
                .map_err(|e| format!("checkpoint: {e}"))?;
        }
        db.close().map_err(fine)?;
        drop(db);
        Db::destroy(&dir, &options).map_err(fine)
    }
}

fn judge(how: &str, writer: usize, numbers: &[u64], sum: u64) -> std::result::Result<u64, String> {
    let first = numbers.first().copied().unwrap_or(u64::MAX);
    if numbers.len() != FAMILIES.len() * EQUAL_KEYS || numbers.iter().any(|&n| n != first) {
        return Err(format!(
            "{how}: writer {writer}: a snapshot shows numbers {numbers:?}"
        ));
    }
    if sum != BALANCE * ACCOUNTS as u64 {
        return Err(format!(
            "{how}: writer {writer}: a snapshot shows a sum of {sum}"
        ));
    }
    Ok(first)
}
