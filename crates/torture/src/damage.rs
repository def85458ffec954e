//! Bytes on disk that are not what was written.
//!
//! A small database with tables of several formats, blob files, a log and all other files is damaged in one
//! place at a time and opened, read from front to back and key by key; every fourth time it is
//! compacted before. Of a table or blob file that is damaged only the family that has it is read and compacted, but for
//! every sixteenth time: no other reads it; and every second time the database is opened for reading only. Then
//!
//! 1. nothing panics or hangs;
//! 2. every answer is an error, or what was written;
//! 3. damage in the log may take writes from its end, and only whole batches: what a crash cut
//!    off and what was damaged later cannot be told apart there;
//! 4. where a blob file is damaged, values that the damage is not in are answered (`rest.rs`).
//!
//! Two kinds of damage cannot be found in RocksDB's formats, and their wrong answers are counted,
//! not refused: a MANIFEST that is cut off between two records, or in which several bits together
//! make it look so, or whose last byte one bit turns to zero, tells an earlier state; and tables
//! before format 6 do not say in a block's checksum where the block belongs.
//!
//! One more reference has blob files with holes, as a database has that gave up the space of dead values: what
//! is damaged inside a hole is nothing that anybody reads, and what is around it is found as ever.
//!
//! Ways: a flipped bit, two or three, a scrambled row of bits; a file cut off; something behind the end; two pieces of a file exchanged
//! (sectors, or whole blocks of a table); a file in the place of another.

mod rest;
mod tables;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use orogen_base::checksum::ChecksumType;
use orogen_engine::filename::{self, FileKind};
use orogen_env::fs::read_file;
use orogen_env::{Access, Clock, FileSystem, MemFileSystem, SystemClock};
use orogen_sst::{BlockIndex, CompressionType, TableReader, TableReaderOptions};
use orogen_testkit::Rng;

use crate::content;
use crate::engine::{
    ColumnFamily, ColumnFamilyOptions, CompactRangeOptions, Db, Error, ErrorKind, FlushOptions,
    Options, ReadOptions, Result, WriteBatch,
};
use crate::guard::{Guard, Outcome, timed};
use crate::model::Pairs;
use crate::report::{Failure, Figure};
use crate::script::{DIR, small_options};

pub use tables::table_bits;

/// Reference directories whose tables have each of their bits flipped in the gate.
pub const TABLE_REFERENCES: u64 = 2;

/// Bytes that a disk writes at once.
const SECTOR: usize = 512;

/// Every so many cases all families are read, whosever file is damaged.
const ALL_READ_EVERY: u64 = 16;

/// So many lengths are tried for each bit that is flipped.
const CUTS_FOR_A_FLIP: usize = 8;

/// Bytes of a value, but for those in the log.
const VALUE_LEN: usize = 40;

/// Bytes of a value of a family whose blob files have holes: five in a row have whole blocks, compressed too.
const HOLED_VALUE_LEN: usize = 4000;

/// What the names of such families begin with.
const HOLED: &str = "holes";

/// How long holes may take: the looks of others at an older version end.
const HOLES_WAIT: u32 = 2_000;

/// What is merged.
const OPERAND: &[u8] = b"operand";

/// Bytes of compression type and checksum behind a block.
const TRAILER: usize = 5;

/// A way to damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Flips a bit.
    Flip,
    /// Cuts a file off.
    Cut,
    /// Adds something behind the end of a file.
    Grow,
    /// Exchanges two sectors of a file.
    SwapSectors,
    /// Exchanges two blocks of a table.
    SwapBlocks,
    /// Puts the bytes of one file into another of its kind.
    Replace,
    /// Flips two or three bits of a file.
    Bits,
    /// Scrambles up to 64 bits in a row.
    Burst,
}

impl Way {
    /// All ways.
    pub const ALL: [Self; 8] = [
        Self::Flip,
        Self::Cut,
        Self::Grow,
        Self::SwapSectors,
        Self::SwapBlocks,
        Self::Replace,
        Self::Bits,
        Self::Burst,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Flip => "flip",
            Self::Cut => "cut",
            Self::Grow => "grow",
            Self::SwapSectors => "swap-sectors",
            Self::SwapBlocks => "swap-blocks",
            Self::Replace => "replace",
            Self::Bits => "bits",
            Self::Burst => "burst",
        }
    }
}

impl std::str::FromStr for Way {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|way| way.name() == text)
            .ok_or_else(|| format!("ways are {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// The ways that are tried beside holes: what is exchanged with them is zeros.
pub const WAYS_BESIDE_HOLES: [Way; 6] = [
    Way::Flip,
    Way::Cut,
    Way::Grow,
    Way::Replace,
    Way::Bits,
    Way::Burst,
];

/// What must hold, in a few words.
const RULE: &str = "an error, or what was written; wrong answers only at places that the format leaves unprotected; beside a damaged value all others";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// Every so many flipped bits, and every so many lengths.
    pub stride: usize,
    /// Cases of `bits` and `burst`, each drawn.
    pub random: usize,
    /// Only this case.
    pub case: Option<u64>,
    /// Which reference database: 0 is the one by hand, the others are drawn.
    pub reference: u64,
    /// Instead the one whose blob files have holes.
    pub holes: bool,
    /// Only one piece of so many of the cases: (which, of how many).
    pub piece: (u64, u64),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            stride: 29,
            random: 4000,
            case: None,
            reference: 0,
            holes: false,
            piece: (0, 1),
        }
    }
}

impl Config {
    /// The gate's, of the directory whose blob files have holes: most of its bytes are theirs.
    #[must_use]
    pub fn beside_holes() -> Self {
        Self {
            stride: 199,
            random: 1000,
            holes: true,
            ..Self::default()
        }
    }
}

/// Content of all families.
pub(crate) type Contents = BTreeMap<String, Pairs>;

struct File {
    name: String,
    path: PathBuf,
    bytes: Vec<u8>,
    kind: Option<FileKind>,
    /// Of a table or blob file: whose it is, or was last.
    family: Option<String>,
    /// Of a table: where its blocks are, with their trailers.
    blocks: Vec<(usize, usize)>,
    /// Of a table: blocks may be exchanged.
    swappable: bool,
}

impl File {
    /// True if a wrong answer cannot be helped.
    fn is_unprotected(&self, change: Change) -> bool {
        match change {
            // Several bits may make a record's length reach beyond the end of the file, as that of
            // a record that a crash cut off does.
            Change::Cut(_) | Change::Bits(_) | Change::Burst(_) => {
                matches!(self.kind, Some(FileKind::Manifest(_)))
            }
            // With zeros from there to the end: what a crash may leave of the last record.
            Change::Flip(bit) => {
                let (at, mask) = (bit / 8, 1 << (bit % 8));
                matches!(self.kind, Some(FileKind::Manifest(_)))
                    && self.bytes[at] == mask
                    && self.bytes[at + 1..].iter().all(|&b| b == 0)
            }
            Change::Swap(..) => self.swappable,
            _ => false,
        }
    }
}

/// The database before it is damaged.
pub(crate) struct Reference {
    number: u64,
    holes: bool,
    fs: MemFileSystem,
    files: Vec<File>,
    /// What it holds, last; before that, with fewer and fewer batches of the log.
    history: Vec<Contents>,
    /// Every value that a key ever had, by family.
    written: BTreeSet<(String, Vec<u8>, Vec<u8>)>,
    places: rest::Places,
}

/// One change of one file.
#[derive(Clone, Copy, Debug)]
enum Change {
    Flip(usize),
    Cut(usize),
    GrowZeros(usize),
    GrowGarbage(usize),
    GrowTail(usize),
    /// Exchanges two ranges of the same length.
    Swap(usize, usize, usize),
    Replace(usize),
    /// Drawn from a seed.
    Bits(u64),
    Burst(u64),
}

#[derive(Default)]
struct Counts {
    refused: AtomicU64,
    unchanged: AtomicU64,
    tail_lost: AtomicU64,
    unprotected: AtomicU64,
    /// Values that were answered beside a damaged blob file.
    beside: AtomicU64,
}

/// Damages the reference database in one way.
///
/// # Panics
/// If the reference database cannot be made.
#[must_use]
pub fn run(way: Way, config: &Config) -> Figure {
    let reference = match config.holes {
        true => Reference::with_holes(),
        false => Reference::build(config.reference),
    };
    let reference = reference.expect("nothing fails in memory");
    let cases = reference.cases(way, config.stride, config.random);
    let counts = Counts::default();
    let repeat = |n: u64| {
        let mut text = format!(
            "damage --way {} --stride {} --random {} --case {n}",
            way.name(),
            config.stride,
            config.random
        );
        if config.reference > 0 {
            text.push_str(&format!(" --reference {}", config.reference));
        }
        if config.holes {
            text.push_str(" --holes");
        }
        text
    };
    let (which, of) = config.piece;
    let border = |n: u64| cases.len() as u64 * n / of.max(1);
    let (first, end) = match config.case {
        Some(only) => (only, only + 1),
        None => (border(which), border(which + 1)),
    };
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(config.threads, first, 1, repeat, |n| {
            let case = usize::try_from(n).ok().and_then(|n| cases.get(n));
            let Some(&(file, change)) = case.filter(|_| n < end) else {
                return Outcome::NoMore;
            };
            match reference.judge(file, change, n, &counts) {
                Ok(()) => Outcome::Passed,
                Err(what) => {
                    let what = format!("{} {change:?}: {what}", reference.files[file].name);
                    Outcome::Failed(Failure {
                        what,
                        repeat: repeat(n),
                    })
                }
            }
        })
    });
    let bytes: usize = reference.files.iter().map(|f| f.bytes.len()).sum();
    Figure {
        name: format!(
            "damage/{}{}",
            way.name(),
            if config.holes { "/holes" } else { "" }
        ),
        rule: RULE,
        count: passed,
        unit: "cases",
        seeds: 1,
        seconds,
        details: vec![
            ("bytes", bytes as f64),
            ("refused", counts.refused.into_inner() as f64),
            ("unchanged", counts.unchanged.into_inner() as f64),
            ("log_tail_lost", counts.tail_lost.into_inner() as f64),
            ("wrong_unprotected", counts.unprotected.into_inner() as f64),
            ("answered_beside", counts.beside.into_inner() as f64),
        ],
        failures,
    }
}

/// Families with tables of different formats.
fn families() -> BTreeMap<String, ColumnFamilyOptions> {
    let family = |format, checksum, compression, bits: f64, prefix: &str| {
        let mut cf = ColumnFamilyOptions {
            compression,
            ..crate::script::small_family()
        };
        cf.prefix_extractor = orogen_base::slice_transform::by_name(prefix);
        cf.disable_auto_compactions = true;
        cf.write_buffer_size = 1 << 20;
        cf.table.block_size = 160;
        cf.table.format_version = format;
        cf.table.checksum = checksum;
        cf.table.filter_bits_per_key = bits;
        cf
    };
    use ChecksumType as Sum;
    use CompressionType as Codec;
    let large = ColumnFamilyOptions {
        enable_blob_files: true,
        min_blob_size: VALUE_LEN as u64,
        blob_file_size: 2 << 10,
        blob_compression_type: Codec::Zstd,
        enable_blob_garbage_collection: true,
        blob_garbage_collection_age_cutoff: 0.5,
        ..family(6, Sum::Xxh3, Codec::None, 0.0, "none")
    };
    BTreeMap::from([
        ("large".to_owned(), large),
        (
            "default".to_owned(),
            family(5, Sum::Xxh3, Codec::Lz4, 10.0, "none"),
        ),
        (
            "crc".to_owned(),
            family(4, Sum::Crc32c, Codec::Snappy, 0.0, "none"),
        ),
        (
            "newest".to_owned(),
            family(6, Sum::XxHash64, Codec::Zstd, 10.0, "fixed:3"),
        ),
        (
            "plain".to_owned(),
            family(6, Sum::Xxh3, Codec::None, 0.0, "none"),
        ),
        (
            "plain5".to_owned(),
            family(5, Sum::Crc32c, Codec::None, 0.0, "none"),
        ),
        (
            "oldest".to_owned(),
            family(2, Sum::XxHash, Codec::None, 5.0, "none"),
        ),
    ])
}

/// The families of reference `number`, with formats that are drawn.
fn drawn_families(number: u64) -> BTreeMap<String, ColumnFamilyOptions> {
    let mut rng = Rng::new(number);
    // Of its own, so that the tables of a reference are what they were.
    let mut of_blobs = Rng::new(!number);
    let mut families = families();
    for cf in families.values_mut() {
        cf.blob_record_alignment = *of_blobs.pick(&[0, 0, 64]);
        cf.blob_compression_opts.max_dict_bytes = *of_blobs.pick(&[0, 200]);
        cf.compression = *rng.pick(&[
            CompressionType::None,
            CompressionType::Snappy,
            CompressionType::Lz4,
            CompressionType::Lz4hc,
            CompressionType::Zstd,
        ]);
        cf.prefix_extractor = orogen_base::slice_transform::by_name(
            rng.pick::<&str>(&["none", "fixed:3", "capped:4"]),
        );
        if rng.chance(1, 3) {
            cf.compression_opts.max_dict_bytes = 1024;
        }
        cf.enable_blob_files = rng.chance(1, 3);
        cf.min_blob_size = *rng.pick(&[0, VALUE_LEN as u64]);
        cf.blob_file_size = *rng.pick(&[400, 1 << 10, 1 << 20]);
        cf.blob_compression_type = *rng.pick(&[
            CompressionType::None,
            CompressionType::Snappy,
            CompressionType::Lz4,
            CompressionType::Zstd,
        ]);
        cf.enable_blob_garbage_collection = rng.chance(1, 2);
        cf.blob_garbage_collection_age_cutoff = *rng.pick(&[0.25, 1.0]);
        let table = &mut cf.table;
        table.format_version = rng.range(2..7) as u32;
        table.checksum = *rng.pick(&[
            ChecksumType::Crc32c,
            ChecksumType::XxHash,
            ChecksumType::XxHash64,
            ChecksumType::Xxh3,
        ]);
        table.block_size = *rng.pick(&[64, 160, 600]);
        table.block_restart_interval = *rng.pick(&[1, 4, 16]);
        table.index_block_restart_interval = *rng.pick(&[1, 3]);
        table.filter_bits_per_key = *rng.pick(&[0.0, 5.0, 10.0]);
        table.enable_index_compression = rng.chance(1, 2);
        if rng.chance(1, 2) {
            table.index_type = BlockIndex::TwoLevel;
            table.partition_filters = rng.chance(1, 2);
            table.metadata_block_size = *rng.pick(&[32, 200]);
        }
    }
    families
}

/// Families whose dead values leave holes, and one without blob files.
fn holed_families() -> BTreeMap<String, ColumnFamilyOptions> {
    let mut families = families();
    families.retain(|name, _| name == "default" || name == "large");
    let Some(mut large) = families.remove("large") else {
        return families;
    };
    large.blob_file_size = 1 << 20;
    large.enable_blob_garbage_collection = false;
    large.blob_gc_auto = false;
    large.blob_hole_punching_threshold = 0.0;
    large.blob_hole_punching_min_bytes = 1;
    let plain = ColumnFamilyOptions {
        blob_compression_type: CompressionType::None,
        ..large.clone()
    };
    let aligned = ColumnFamilyOptions {
        blob_record_alignment: 512,
        ..large
    };
    families.insert(HOLED.to_owned(), plain);
    families.insert(format!("{HOLED}-aligned"), aligned);
    families
}

/// Has the space of dead values given up.
fn punch(db: &Db, family: &ColumnFamily) -> Result<()> {
    db.set_options(family, &[("disable_auto_compactions", "false")])?;
    let is_punched = || {
        let files = db.live_blob_files().into_iter();
        let mut files = files.filter(|f| f.column_family == family.name());
        files.any(|f| f.given_up_bytes.is_some_and(|n| n > 0))
    };
    for _ in 0..HOLES_WAIT {
        db.wait_for_background_work()?;
        if is_punched() {
            return db.set_options(family, &[("disable_auto_compactions", "true")]);
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    Err(Error::aborted("no holes were made").with("family", family.name()))
}

/// Those of [`Reference::of_tables`].
pub(crate) fn options(fs: &MemFileSystem) -> Options {
    let mut options = options_of(fs, 0, false);
    for cf in options.families.values_mut() {
        cf.enable_blob_files = false;
    }
    options
}

fn options_of(fs: &MemFileSystem, number: u64, holes: bool) -> Options {
    let mut options = small_options();
    options.db.fs = Arc::new(fs.clone());
    options.families = match number {
        _ if holes => holed_families(),
        0 => families(),
        _ => drawn_families(number),
    };
    options.cf.disable_auto_compactions = true;
    options
}

impl Reference {
    /// The database of a number; see [`Config::reference`].
    pub(crate) fn build(number: u64) -> Result<Self> {
        let fs = MemFileSystem::new();
        let options = options_of(&fs, number, false);
        Self::fill(number, false, fs, &options)
    }

    /// One whose blob files have holes.
    fn with_holes() -> Result<Self> {
        let fs = MemFileSystem::new();
        let options = options_of(&fs, 0, true);
        Self::fill(0, true, fs, &options)
    }

    /// That of number 0 without blob files, which repair does not know.
    pub(crate) fn of_tables() -> Result<Self> {
        let fs = MemFileSystem::new();
        let options = options(&fs);
        Self::fill(0, false, fs, &options)
    }

    fn fill(number: u64, holes: bool, fs: MemFileSystem, options: &Options) -> Result<Self> {
        let db = Db::open(DIR, options)?;
        let mut rng = Rng::new(number + 1);
        let mut written = BTreeSet::new();
        for round in 0..3 {
            for family in db.column_families() {
                let mut batch = WriteBatch::new();
                let id = family.id();
                let is_holed = family.name().starts_with(HOLED);
                for n in 0..if is_holed { 18 } else { 40 } {
                    let key = match is_holed {
                        // Of six neighbours five die.
                        true if round > 0 && n % 6 == 0 => continue,
                        true => format!("key{n:03}"),
                        false => format!("key{:03}", (n * 3 + round) % 97),
                    };
                    // Half of a value can be compressed; all are of one length.
                    let len = if is_holed { HOLED_VALUE_LEN } else { VALUE_LEN };
                    let mut value = rng.bytes(len / 2);
                    value.resize(len, b'.');
                    batch.put(id, key.as_bytes(), &value);
                    let family = family.name().to_owned();
                    written.insert((family, key.into_bytes(), value));
                }
                batch.merge(id, b"key050", OPERAND);
                batch.delete(id, b"key060");
                batch.delete_range(id, b"key070", b"key073");
                db.write(batch)?;
            }
            db.flush_opt(&FlushOptions::default(), &db.column_families())?;
            if round == 1 {
                for family in db.column_families() {
                    db.compact_range(&CompactRangeOptions::default(), &family, None, None)?;
                    if family.name().starts_with(HOLED) {
                        punch(&db, &family)?;
                    }
                }
            }
        }
        let mut history = vec![content::pairs(&db)?];
        for n in 0..12 {
            let mut batch = WriteBatch::new();
            for family in db.column_families() {
                batch.put(family.id(), format!("log{n}").as_bytes(), &rng.bytes(30));
            }
            db.write(batch)?;
            history.push(content::pairs(&db)?);
        }
        let owners = owners(&db);
        db.close()?;
        drop(db);
        let mut reference = Self {
            number,
            holes,
            fs,
            files: Vec::new(),
            history,
            written,
            places: rest::Places::default(),
        };
        reference.list_files(&owners)?;
        reference.find_values()?;
        Ok(reference)
    }

    /// What it holds.
    pub(crate) fn last(&self) -> &Contents {
        &self.history[self.history.len() - 1]
    }

    /// True if a key had this value, or its operands upon this one, at some time.
    pub(crate) fn was_written(&self, family: &str, key: &[u8], value: &[u8]) -> bool {
        let mut base = value;
        loop {
            let entry = (family.to_owned(), key.to_vec(), base.to_vec());
            if base == OPERAND || self.written.contains(&entry) {
                return true;
            }
            match base
                .strip_suffix(OPERAND)
                .and_then(|b| b.strip_suffix(b","))
            {
                Some(rest) => base = rest,
                None => break,
            }
        }
        self.history
            .iter()
            .any(|held| held.get(family).and_then(|p| p.get(key)).map(Vec::as_slice) == Some(value))
    }

    /// Another disk with one drawn damage, what it is, and whether the format can show it.
    pub(crate) fn damaged(&self, way: Way, rng: &mut Rng) -> Result<(MemFileSystem, String, bool)> {
        let file = self.draw_file(rng.u64());
        let len = self.files[file].bytes.len();
        let change = match way {
            Way::Flip => Change::Flip(rng.range(0..len * 8)),
            Way::Cut => Change::Cut(rng.range(0..len)),
            Way::Bits => Change::Bits(rng.u64()),
            _ => Change::Burst(rng.u64()),
        };
        let fs = self.fs.fork();
        fs.create(&self.files[file].path)?
            .append(&self.changed(file, change))?;
        let what = format!("{} {change:?}", self.files[file].name);
        Ok((fs, what, !self.files[file].is_unprotected(change)))
    }

    fn list_files(&mut self, owners: &BTreeMap<String, String>) -> Result<()> {
        for name in self.fs.list(Path::new(DIR))? {
            let path = Path::new(DIR).join(&name);
            let bytes = read_file(&self.fs, &path)?;
            let kind = filename::parse(&name);
            let (blocks, format) = match kind {
                Some(FileKind::Table(_)) => blocks_of(&self.fs, &path, bytes.len())?,
                _ => (Vec::new(), 0),
            };
            if !bytes.is_empty() {
                self.files.push(File {
                    family: owners.get(&name).cloned(),
                    name,
                    path,
                    bytes,
                    kind,
                    blocks,
                    swappable: (1..6).contains(&format),
                });
            }
        }
        self.files.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(())
    }

    fn cases(&self, way: Way, stride: usize, random: usize) -> Vec<(usize, Change)> {
        if let Way::Bits | Way::Burst = way {
            let drawn = (0..random as u64).map(|seed| {
                let change = match way {
                    Way::Bits => Change::Bits(seed),
                    _ => Change::Burst(seed),
                };
                (self.draw_file(seed), change)
            });
            return drawn.collect();
        }
        let mut cases = Vec::new();
        for (i, file) in self.files.iter().enumerate() {
            let len = file.bytes.len();
            let mut add = |change| cases.push((i, change));
            match way {
                Way::Flip => (i % stride..len * 8)
                    .step_by(stride)
                    .for_each(|b| add(Change::Flip(b))),
                // Lengths are fewer than bits.
                Way::Cut => (i % stride..len)
                    .step_by((stride / CUTS_FOR_A_FLIP).max(1))
                    .for_each(|n| add(Change::Cut(n))),
                Way::Grow => {
                    for n in [1, 7, 11, 512, 40_000] {
                        add(Change::GrowZeros(n));
                        add(Change::GrowGarbage(n));
                        add(Change::GrowTail(n.min(len)));
                    }
                }
                Way::SwapSectors => {
                    for a in (0..len).step_by(SECTOR) {
                        for b in (a + SECTOR..len.saturating_sub(SECTOR - 1)).step_by(SECTOR) {
                            add(Change::Swap(a, b, SECTOR));
                        }
                    }
                }
                Way::SwapBlocks => {
                    for (n, &(a, size)) in file.blocks.iter().enumerate() {
                        for &(b, other) in &file.blocks[n + 1..] {
                            if size == other {
                                add(Change::Swap(a, b, size));
                            }
                        }
                    }
                }
                Way::Replace => {
                    let same_kind = |other: &File| {
                        std::mem::discriminant(&other.kind) == std::mem::discriminant(&file.kind)
                    };
                    for (j, other) in self.files.iter().enumerate() {
                        if j != i && same_kind(other) {
                            add(Change::Replace(j));
                        }
                    }
                }
                Way::Bits | Way::Burst => {}
            }
        }
        cases
    }

    /// A file, the likelier the longer it is.
    fn draw_file(&self, seed: u64) -> usize {
        let total: usize = self.files.iter().map(|f| f.bytes.len()).sum();
        let mut at = Rng::new(!seed).range(0..total);
        self.files
            .iter()
            .position(|f| {
                let here = at < f.bytes.len();
                at = at.saturating_sub(f.bytes.len());
                here
            })
            .unwrap_or(0)
    }

    fn changed(&self, file: usize, change: Change) -> Vec<u8> {
        let mut bytes = self.files[file].bytes.clone();
        match change {
            Change::Flip(bit) => bytes[bit / 8] ^= 1 << (bit % 8),
            Change::Cut(len) => bytes.truncate(len),
            Change::GrowZeros(n) => bytes.resize(bytes.len() + n, 0),
            Change::GrowGarbage(n) => bytes.extend(Rng::new(n as u64).bytes(n)),
            Change::GrowTail(n) => bytes.extend_from_within(bytes.len() - n..),
            Change::Swap(a, b, len) => {
                let (front, back) = bytes.split_at_mut(b);
                front[a..a + len].swap_with_slice(&mut back[..len]);
            }
            Change::Replace(other) => bytes.clone_from(&self.files[other].bytes),
            Change::Bits(seed) => {
                let mut rng = Rng::new(seed);
                for _ in 0..rng.range(2..4) {
                    let bit = rng.range(0..bytes.len() * 8);
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
            Change::Burst(seed) => {
                let mut rng = Rng::new(seed);
                let first = rng.range(0..bytes.len() * 8);
                let last = (first + rng.range(1..64)).min(bytes.len() * 8 - 1);
                for bit in first..=last {
                    // Its ends turn over for sure.
                    let turns = bit == first || bit == last || rng.chance(1, 2);
                    bytes[bit / 8] ^= u8::from(turns) << (bit % 8);
                }
            }
        }
        bytes
    }

    fn judge(
        &self,
        file: usize,
        change: Change,
        number: u64,
        counts: &Counts,
    ) -> std::result::Result<(), String> {
        let fs = self.fs.fork();
        let owner = self.files[file].family.as_deref();
        let how = Look {
            compacts: number.is_multiple_of(4),
            read_only: owner.is_some() && !number.is_multiple_of(2),
            only: owner.filter(|_| !number.is_multiple_of(ALL_READ_EVERY)),
        };
        let bytes = self.changed(file, change);
        let wrote = fs
            .create(&self.files[file].path)
            .and_then(|mut f| f.append(&bytes));
        wrote.map_err(|e| e.to_string())?;
        let is_log = matches!(self.files[file].kind, Some(FileKind::Wal(_)));
        match self.read(&fs, is_log, &how) {
            Ok(Seen::All) => counts.unchanged.fetch_add(1, Ordering::Relaxed),
            Ok(Seen::Fewer) => counts.tail_lost.fetch_add(1, Ordering::Relaxed),
            Err(Trouble::Refused(e)) => {
                let fits = matches!(
                    e.kind(),
                    ErrorKind::Corruption
                        | ErrorKind::NotSupported
                        | ErrorKind::InvalidArgument
                        | ErrorKind::Io
                        | ErrorKind::ReadOnly
                );
                if !fits {
                    return Err(format!("the wrong kind of error: {e}"));
                }
                if self.knows_the_rest(file) {
                    let answered = self.ask_for_the_rest(file, change, how.compacts, how.only)?;
                    counts.beside.fetch_add(answered, Ordering::Relaxed);
                }
                counts.refused.fetch_add(1, Ordering::Relaxed)
            }
            Err(Trouble::Wrong(_)) if self.files[file].is_unprotected(change) => {
                counts.unprotected.fetch_add(1, Ordering::Relaxed)
            }
            Err(Trouble::Wrong(what)) => return Err(what),
        };
        Ok(())
    }

    fn read(
        &self,
        fs: &MemFileSystem,
        is_log: bool,
        how: &Look<'_>,
    ) -> std::result::Result<Seen, Trouble> {
        let is_wanted = |family: &str| how.only.is_none_or(|only| only == family);
        let mut options = options_of(fs, self.number, self.holes);
        options.db.create_if_missing = false;
        // Tables that are cut off are refused at the one kind of open, and read after the other.
        options.db.paranoid_checks = how.read_only;
        if self.holes {
            // What is compacted moves out of the files with holes.
            for cf in options.families.values_mut() {
                cf.enable_blob_garbage_collection = true;
                cf.blob_garbage_collection_age_cutoff = 1.0;
            }
        }
        let db = match how.read_only {
            true => Db::open_read_only(DIR, &options)?,
            false => Db::open(DIR, &options)?,
        };
        if how.compacts {
            for family in db.column_families() {
                if is_wanted(family.name()) {
                    db.compact_range(&CompactRangeOptions::default(), &family, None, None)?;
                }
            }
        }
        let found = content::pairs_where(&db, is_wanted)?;
        let earliest = if is_log { 0 } else { self.history.len() - 1 };
        let at = self.history[earliest..].iter().rposition(|held| {
            let held = held.iter().filter(|(family, _)| is_wanted(family));
            held.eq(&found)
        });
        let Some(at) = at else {
            return Err(Trouble::Wrong(self.difference(&found, is_wanted)));
        };
        let held = &self.history[earliest + at];
        self.look_up(&db, held, is_wanted)?;
        let seen = if earliest + at + 1 == self.history.len() {
            Seen::All
        } else {
            Seen::Fewer
        };
        Ok(seen)
    }

    /// Asks for keys one by one, also for some that are not there.
    fn look_up(
        &self,
        db: &Db,
        held: &Contents,
        is_wanted: impl Fn(&str) -> bool,
    ) -> std::result::Result<(), Trouble> {
        for family in db.column_families() {
            if !is_wanted(family.name()) {
                continue;
            }
            let pairs = &held[family.name()];
            for n in (0..97).step_by(4) {
                let key = format!("key{n:03}").into_bytes();
                let found = db.get_opt(&ReadOptions::default(), &family, &key)?;
                if found.as_deref() != pairs.get(&key).map(Vec::as_slice) {
                    let what = format!("get {family:?} {} is wrong", key.escape_ascii());
                    return Err(Trouble::Wrong(what));
                }
            }
        }
        Ok(())
    }

    fn difference(&self, found: &Contents, is_wanted: impl Fn(&str) -> bool) -> String {
        let expected = &self.history[self.history.len() - 1];
        for (name, pairs) in expected.iter().filter(|(name, _)| is_wanted(name)) {
            let Some(found) = found.get(name) else {
                return format!("family {name} is gone");
            };
            let all = pairs.keys().chain(found.keys());
            let differ: Vec<_> = all.filter(|k| pairs.get(*k) != found.get(*k)).collect();
            if let Some(key) = differ.first() {
                return format!(
                    "wrong answer: family {name}: {} keys differ, the first is {}: {} instead of {}",
                    differ.len(),
                    key.escape_ascii(),
                    if found.contains_key(*key) {
                        "there"
                    } else {
                        "not there"
                    },
                    if pairs.contains_key(*key) {
                        "there"
                    } else {
                        "not there"
                    },
                );
            }
        }
        "wrong answer: more families".to_owned()
    }
}

/// What is done with a damaged database.
struct Look<'a> {
    compacts: bool,
    read_only: bool,
    /// Only this family is read.
    only: Option<&'a str>,
}

enum Seen {
    All,
    Fewer,
}

enum Trouble {
    Refused(Error),
    Wrong(String),
}

impl From<Error> for Trouble {
    fn from(e: Error) -> Self {
        Self::Refused(e)
    }
}

/// The family of each table and blob file, by the file's name.
fn owners(db: &Db) -> BTreeMap<String, String> {
    let name_of = |path: PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let dir = Path::new(DIR);
    let tables = db.live_files().into_iter().map(|f| {
        let path = filename::table_path(dir, f.number);
        (name_of(path), f.column_family)
    });
    let blobs = db.live_blob_files().into_iter().map(|f| {
        let path = filename::blob_path(dir, f.number);
        (name_of(path), f.column_family)
    });
    tables.chain(blobs).collect()
}

/// Where the blocks of a table are, each with its trailer, and the table's format.
type Blocks = (Vec<(usize, usize)>, u32);

fn blocks_of(fs: &MemFileSystem, path: &Path, size: usize) -> Result<Blocks> {
    let file = fs.open(path, Access::Random)?;
    let table = TableReader::open(file, size as u64, TableReaderOptions::default())?;
    let mut blocks = Vec::new();
    for block in table.blocks() {
        let handle = block?.handle;
        blocks.push((handle.offset as usize, handle.size as usize + TRAILER));
    }
    Ok((blocks, table.format_version()))
}
