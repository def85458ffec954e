//! Small directories under two hundred combinations of options, there and back.
//!
//! RocksDB 9.8.4 and 7.8.3 each write about half of them; every pair of values of two options meets
//! in one at least. Orogen reads each, says which of its options it does not write itself, writes,
//! compacts all of it under the options of the row, and hands it back: RocksDB verifies, scans,
//! writes and compacts, and Orogen reads again. Not here, for no program of the two writes it: the
//! block-based filter (gone in 7.0), merge operands by 9.8.4 (its binding has none), records of
//! two-phase commits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;

use orogen_base::checksum::ChecksumType;
use orogen_base::{ErrorKind, UserComparator, slice_transform};
use orogen_compat::covering::{self, Covering, Factor, Row, Rule};
use orogen_compat::{Case, programs};
use orogen_engine::options::BottommostLevelCompaction;
use orogen_engine::plugin::merge_operator;
use orogen_engine::{CompactRangeOptions, Db, Options, ReadOptions};
use orogen_env::{Access, FileSystem, PosixFileSystem};
use orogen_sst::{
    BlockBasedOptions, BlockIndex, CompressionType, Footer, IndexType, TableReader,
    TableReaderOptions,
};
use orogen_testkit::Rng;
use serde_json::{Map, Value, json};

use crate::open::image;
use crate::store::{Model, assert_holds, hand_over};
use crate::{live_tables, scratch, several_at_once};

const COMBINATIONS: usize = 200;
/// Bytes at the end of a table that hold its footer, in formats from 1 on.
const FOOTER_LEN: usize = 53;
/// Where a log's first record has its type.
const RECORD_TYPE_AT: usize = 6;
/// Types of records in recycled logs.
const RECYCLED: std::ops::RangeInclusive<u8> = 5..=8;
/// The type of the record that says how a log is compressed.
const COMPRESSION_SET: u8 = 9;

const fn factor(name: &'static str, values: &'static [&'static str]) -> Factor {
    Factor { name, values }
}

const FACTORS: [Factor; 16] = [
    factor("writer", &["9.8.4", "7.8.3"]),
    factor("format", &["2", "3", "4", "5", "6"]),
    factor("checksum", &["none", "crc32c", "xxhash", "xxh64", "xxh3"]),
    factor(
        "codec",
        &["none", "snappy", "zlib", "bzip2", "lz4", "lz4hc", "zstd"],
    ),
    factor("dictionary", &["none", "raw", "trained"]),
    factor("index", &["binary", "hash", "two-level", "first-key"]),
    factor(
        "filter",
        &["none", "bloom", "bloom-parts", "ribbon", "ribbon-parts"],
    ),
    factor("whole-keys", &["true", "false"]),
    factor(
        "prefix",
        &["none", "rocksdb.FixedPrefix.8", "rocksdb.CappedPrefix.10"],
    ),
    // Bytes of a block, entries between restart points of data and of index blocks.
    factor("block", &["256/1/1", "512/16/4", "1024/3/16", "4096/16/1"]),
    factor("hash-in-blocks", &["false", "true"]),
    factor(
        "log",
        &["flushed", "kept", "recycled", "compressed", "manual"],
    ),
    factor("deletes", &["none", "points", "ranges"]),
    factor(
        "merge",
        &["none", "StringAppendOperator", "UInt64AddOperator"],
    ),
    factor("families", &["1", "3"]),
    factor("order", &["forwards", "reverse"]),
];
/// Where the tables lie; all but the first factor meet each of them too.
const LEVELS: Factor = factor("level", &["0", "last", "mixed"]);

const fn rule(never: &'static [(&'static str, &'static str)], why: &'static str) -> Rule {
    Rule { never, why }
}

const PARTS: &str = "RocksDB has parts of filters beside parts of indexes only";
const ZLIB: &str = "Orogen refuses it by name, which a test of its own looks at";
const BINDING: &str = "the binding has no call for it";
const DEFLATE: &str = "the binding takes zlib and compresses nothing";
const RULES: [Rule; 18] = [
    rule(
        &[("writer", "7.8.3"), ("format", "6")],
        "it does not know it",
    ),
    rule(
        &[("writer", "9.8.4"), ("merge", "StringAppendOperator")],
        BINDING,
    ),
    rule(
        &[("writer", "9.8.4"), ("merge", "UInt64AddOperator")],
        BINDING,
    ),
    rule(
        &[("format", "6"), ("merge", "StringAppendOperator")],
        BINDING,
    ),
    rule(&[("format", "6"), ("merge", "UInt64AddOperator")], BINDING),
    rule(&[("writer", "9.8.4"), ("codec", "zlib")], DEFLATE),
    rule(&[("format", "6"), ("codec", "zlib")], DEFLATE),
    rule(
        &[("index", "hash"), ("prefix", "none")],
        "RocksDB does not open it",
    ),
    rule(&[("filter", "bloom-parts"), ("index", "binary")], PARTS),
    rule(&[("filter", "bloom-parts"), ("index", "hash")], PARTS),
    rule(&[("filter", "bloom-parts"), ("index", "first-key")], PARTS),
    rule(&[("filter", "ribbon-parts"), ("index", "binary")], PARTS),
    rule(&[("filter", "ribbon-parts"), ("index", "hash")], PARTS),
    rule(&[("filter", "ribbon-parts"), ("index", "first-key")], PARTS),
    rule(&[("codec", "zlib"), ("dictionary", "raw")], ZLIB),
    rule(&[("codec", "zlib"), ("dictionary", "trained")], ZLIB),
    rule(
        &[
            ("writer", "7.8.3"),
            ("order", "reverse"),
            ("deletes", "ranges"),
        ],
        "the ranges of db_bench begin with the smaller number",
    ),
    rule(
        &[("writer", "7.8.3"), ("families", "3"), ("log", "recycled")],
        "a flush of all families ends 7.8.3 with a fault there",
    ),
];

fn factors() -> Vec<Factor> {
    FACTORS.into_iter().chain([LEVELS]).collect()
}

fn draw() -> Covering {
    let mut rng = Rng::new(Rng::seed_or(200));
    let mut below = |bound: usize| rng.range(0..bound);
    covering::rows(&factors(), &RULES, COMBINATIONS, &mut below).unwrap()
}

/// A row by the names of its factors.
struct Combination(BTreeMap<&'static str, &'static str>);

impl Combination {
    fn new(row: &Row) -> Self {
        let named = factors().into_iter().zip(row);
        Self(named.map(|(f, &v)| (f.name, f.values[v])).collect())
    }

    fn is(&self, factor: &str, value: &str) -> bool {
        let factors = factors();
        let known = factors.iter().find(|f| f.name == factor).unwrap();
        assert!(known.values.contains(&value), "{factor}={value}");
        self.0[factor] == value
    }

    fn number(&self, factor: &str) -> u32 {
        self.0[factor].parse().unwrap()
    }

    /// Block size and both restart intervals.
    fn block(&self) -> [u32; 3] {
        let numbers: Vec<u32> = self.0["block"]
            .split('/')
            .map(|n| n.parse().unwrap())
            .collect();
        numbers.try_into().unwrap()
    }

    /// What `combinations.py` writes it with.
    fn to_json(&self, name: &str, seed: usize) -> Value {
        let codec = match self.0["codec"] {
            "none" => "kNoCompression",
            "snappy" => "kSnappyCompression",
            "zlib" => "kZlibCompression",
            "bzip2" => "kBZip2Compression",
            "lz4" => "kLZ4Compression",
            "lz4hc" => "kLZ4HCCompression",
            _ => "kZSTD",
        };
        let (dictionary, train) = match self.0["dictionary"] {
            "none" => (0, 0),
            "raw" => (1024, 0),
            _ => (1024, 16384),
        };
        let comparator = self.comparator();
        let merge = match self.0["merge"] {
            "none" => "nullptr",
            "StringAppendOperator" => "{id=StringAppendOperator;delimiter=,;}",
            other => other,
        };
        let prefix = match self.0["prefix"] {
            "none" => "nullptr",
            name => name,
        };
        let cf = json!({
            "compression": codec,
            "compression_opts": format!(
                "{{window_bits=-14;level=32767;strategy=0;max_dict_bytes={dictionary};\
                 zstd_max_train_bytes={train};parallel_threads=1;enabled=false;\
                 max_dict_buffer_bytes=0;use_zstd_dict_trainer=true;}}"
            ),
            "comparator": comparator.name(),
            "merge_operator": merge,
            "prefix_extractor": prefix,
            "disable_auto_compactions": "true",
        });
        let checksum = match self.0["checksum"] {
            "none" => "kNoChecksum",
            "crc32c" => "kCRC32c",
            "xxhash" => "kxxHash",
            "xxh64" => "kxxHash64",
            _ => "kXXH3",
        };
        let index = match self.0["index"] {
            "binary" => "kBinarySearch",
            "hash" => "kHashSearch",
            "two-level" => "kTwoLevelIndexSearch",
            _ => "kBinarySearchWithFirstKey",
        };
        let filter = match self.0["filter"] {
            "none" => "nullptr",
            "bloom" | "bloom-parts" => "bloomfilter:10:false",
            _ => "ribbonfilter:10:-1",
        };
        let in_blocks = match self.is("hash-in-blocks", "true") {
            true => "kDataBlockBinaryAndHash",
            false => "kDataBlockBinarySearch",
        };
        let [size, restart, index_restart] = self.block();
        let table = json!({
            "format_version": self.0["format"],
            "checksum": checksum,
            "index_type": index,
            "filter_policy": filter,
            "partition_filters": self.0["filter"].ends_with("-parts").to_string(),
            "metadata_block_size": "256",
            "whole_key_filtering": self.0["whole-keys"],
            "data_block_index_type": in_blocks,
            "block_size": size.to_string(),
            "block_restart_interval": restart.to_string(),
            "index_block_restart_interval": index_restart.to_string(),
        });
        let mut db = Map::new();
        let mut set = |key: &str, value: &str| db.insert(key.to_owned(), value.into());
        match self.0["log"] {
            "recycled" => {
                set("recycle_log_file_num", "2");
                // The default of 7.8.3 recycles nothing.
                set("wal_recovery_mode", "kSkipAnyCorruptedRecords");
            }
            "compressed" => drop(set("wal_compression", "kZSTD")),
            "manual" => drop(set("manual_wal_flush", "true")),
            _ => {}
        }
        json!({
            "name": name,
            "seed": seed,
            "writer": self.0["writer"],
            "wal": self.0["log"],
            "level": self.0["level"],
            "deletes": self.0["deletes"],
            "merge": self.0["merge"].trim_start_matches("none"),
            "families": self.number("families"),
            "comparator": comparator.name(),
            "prefix": self.0["prefix"].trim_start_matches("none"),
            "ldb_reads": !self.is("format", "6"),
            "db": db,
            "cf": cf,
            "table": table,
        })
    }

    fn comparator(&self) -> UserComparator {
        match self.is("order", "reverse") {
            true => UserComparator::REVERSE_BYTEWISE,
            false => UserComparator::BYTEWISE,
        }
    }

    fn checksum(&self) -> ChecksumType {
        match self.0["checksum"] {
            "none" => ChecksumType::None,
            "crc32c" => ChecksumType::Crc32c,
            "xxhash" => ChecksumType::XxHash,
            "xxh64" => ChecksumType::XxHash64,
            _ => ChecksumType::Xxh3,
        }
    }

    fn codec(&self) -> CompressionType {
        match self.0["codec"] {
            "none" => CompressionType::None,
            "snappy" => CompressionType::Snappy,
            "zlib" => CompressionType::Zlib,
            "bzip2" => CompressionType::Bzip2,
            "lz4" => CompressionType::Lz4,
            "lz4hc" => CompressionType::Lz4hc,
            _ => CompressionType::Zstd,
        }
    }

    fn index(&self) -> IndexType {
        match self.0["index"] {
            "binary" => IndexType::BinarySearch,
            "hash" => IndexType::HashSearch,
            "two-level" => IndexType::TwoLevel,
            _ => IndexType::BinarySearchWithFirstKey,
        }
    }

    /// Options of the row that Orogen reads in tables and does not write.
    fn read_only_options(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        if !self.codec().can_write() {
            names.push("compression");
        }
        if self.is("index", "hash") || self.is("index", "first-key") {
            names.push("index_type");
        }
        if self.0["filter"].starts_with("ribbon") {
            names.push("filter_policy");
        }
        names
    }

    /// The options of the row, with the nearest of ours in place of what we only read.
    fn options(&self) -> Options {
        let mut options = Options::default();
        let [block_size, restart, index_restart] = self.block();
        let cf = &mut options.cf;
        cf.comparator = self.comparator();
        cf.merge_operator = merge_operator::by_name(self.0["merge"]);
        cf.prefix_extractor = slice_transform::by_name(self.0["prefix"]);
        cf.disable_auto_compactions = true;
        cf.compression = match self.codec() {
            codec if codec.can_write() => codec,
            _ => CompressionType::Zstd,
        };
        if !self.is("dictionary", "none") {
            cf.compression_opts.max_dict_bytes = 1024;
        }
        if self.is("dictionary", "trained") {
            cf.compression_opts.zstd_max_train_bytes = 16384;
        }
        cf.table = BlockBasedOptions {
            format_version: self.number("format"),
            checksum: self.checksum(),
            block_size: block_size as usize,
            block_restart_interval: restart,
            index_block_restart_interval: index_restart,
            filter_bits_per_key: if self.is("filter", "none") { 0.0 } else { 10.0 },
            whole_key_filtering: self.is("whole-keys", "true"),
            index_type: match self.is("index", "two-level") {
                true => BlockIndex::TwoLevel,
                false => BlockIndex::BinarySearch,
            },
            partition_filters: self.0["filter"].ends_with("-parts"),
            metadata_block_size: 256,
            ..BlockBasedOptions::default()
        };
        options
    }

    /// Orogen reads the directory's options as they are, or names one that it does not write.
    fn assert_options_are_read_or_refused(&self, case: &Case) {
        let name = case.name();
        let refused = self.read_only_options();
        match Db::load_latest_options(case.db(), &Options::default()) {
            Ok(loaded) => {
                assert!(refused.is_empty(), "{name}: {refused:?} is taken");
                let want = self.options().cf;
                for family in case.families() {
                    let cf = loaded.family(family);
                    assert_eq!(cf.table, want.table, "{name}");
                    assert_eq!(cf.compression, want.compression, "{name}");
                    assert_eq!(cf.compression_opts, want.compression_opts, "{name}");
                    assert_eq!(cf.comparator.name(), want.comparator.name(), "{name}");
                    assert_eq!(
                        cf.merge_operator.as_ref().map(|m| m.name()),
                        want.merge_operator.as_ref().map(|m| m.name()),
                        "{name}"
                    );
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}: {error}");
                let text = error.to_string();
                let named = |option: &&str| text.contains(&format!("option={option}"));
                assert!(refused.iter().any(named), "{name}: {text}");
            }
        }
    }

    /// The live tables are what the row says, as far as their writer follows it.
    fn assert_tables(&self, case: &Case, by_orogen: bool, seen: &mut Seen) {
        let fs = PosixFileSystem::new();
        let ours = self.options().cf;
        for number in live_tables(case) {
            let path = case.db().join(format!("{number:06}.sst"));
            let bytes = std::fs::read(&path).unwrap();
            let shown = path.display();
            let tail = bytes.len() - FOOTER_LEN;
            let footer = Footer::decode(&bytes[tail..], tail as u64).unwrap();
            assert_eq!(footer.checksum, self.checksum(), "{shown}");
            let options = TableReaderOptions {
                comparator: self.comparator(),
                ..TableReaderOptions::default()
            };
            let file = fs.open(&path, Access::Random).unwrap();
            let table = TableReader::open(file, bytes.len() as u64, options).unwrap();
            let properties = table.properties();
            if properties.num_entries == properties.num_range_deletions {
                continue;
            }
            let (codec, index) = match by_orogen {
                true if self.is("index", "two-level") => (ours.compression, IndexType::TwoLevel),
                true => (ours.compression, IndexType::BinarySearch),
                false => (self.codec(), self.index()),
            };
            assert_eq!(table.format_version(), self.number("format"), "{shown}");
            assert_eq!(properties.compression, codec.property_name(), "{shown}");
            assert_eq!(properties.index_type().unwrap(), index, "{shown}");
            assert_eq!(properties.comparator, self.comparator().name(), "{shown}");
            let prefix = properties.prefix_extractor_name().unwrap_or("none");
            assert_eq!(prefix, self.0["prefix"], "{shown}");
            if self.is("whole-keys", "true") {
                let has_filter = properties.filter_size > 0;
                assert_eq!(has_filter, !self.is("filter", "none"), "{shown}");
            }
            let raw = properties.raw_key_size + properties.raw_value_size;
            if properties.data_size * 10 < raw * 8 && codec != CompressionType::None {
                seen.shrunk.insert((self.0["writer"], self.0["codec"]));
            }
            let holds = |word: &[u8]| bytes.windows(word.len()).any(|w| w == word);
            seen.tables += 1;
            seen.dictionaries += usize::from(holds(b"rocksdb.compression_dict"));
            seen.range_deletions += usize::from(properties.num_range_deletions > 0);
            seen.merge_operands += usize::from(properties.num_merge_operands > 0);
        }
    }

    /// Orogen writes and compacts all of it; the case then expects what Orogen wrote.
    fn write(&self, case: &mut Case, seed: usize) {
        let db =
            Db::open(case.db(), &self.options()).unwrap_or_else(|e| panic!("{}: {e}", case.name()));
        let mut rng = Rng::new(seed as u64);
        let operator = self.0["merge"].trim_start_matches("none").to_owned();
        let all = CompactRangeOptions {
            bottommost_level_compaction: BottommostLevelCompaction::Force,
            ..CompactRangeOptions::default()
        };
        let mut written = Vec::new();
        for name in case.families() {
            let pairs = case.expected(name).unwrap();
            let mut model = Model::new(&db, name, pairs, &operator);
            model.write(&db, &mut rng, 40);
            db.compact_range(&all, model.family(), None, None).unwrap();
            model.write(&db, &mut rng, 40);
            db.flush_opt(&Default::default(), std::slice::from_ref(model.family()))
                .unwrap();
            // This stays in the log.
            model.write(&db, &mut rng, 15);
            written.push((model.name(), model.pairs()));
        }
        hand_over(&db, case, written);
    }
}

/// What was met, for a combination that holds nothing of its kind shows nothing.
#[derive(Debug, Default)]
struct Seen {
    tables: usize,
    /// Writers with codecs that really compressed something.
    shrunk: BTreeSet<(&'static str, &'static str)>,
    dictionaries: usize,
    range_deletions: usize,
    merge_operands: usize,
    logs_recycled: usize,
    logs_compressed: usize,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.tables += other.tables;
        self.shrunk.extend(other.shrunk);
        self.dictionaries += other.dictionaries;
        self.range_deletions += other.range_deletions;
        self.merge_operands += other.merge_operands;
        self.logs_recycled += other.logs_recycled;
        self.logs_compressed += other.logs_compressed;
    }

    /// Looks at the logs as RocksDB left them.
    fn look_at_logs(&mut self, case: &Case) {
        let mut types = BTreeSet::new();
        for entry in std::fs::read_dir(case.db()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "log") {
                let bytes = std::fs::read(path).unwrap();
                types.extend(bytes.get(RECORD_TYPE_AT));
            }
        }
        self.logs_recycled += usize::from(types.iter().any(|t| RECYCLED.contains(t)));
        self.logs_compressed += usize::from(types.contains(&COMPRESSION_SET));
    }
}

/// Reads all of it without a change to a byte.
fn assert_read(case: &Case, options: &Options) {
    let before = image(&case.db());
    let db =
        Db::open_read_only(case.db(), options).unwrap_or_else(|e| panic!("{}: {e}", case.name()));
    assert_holds(&db, case);
    db.verify_checksums()
        .unwrap_or_else(|e| panic!("{}: {e}", case.name()));
    drop(db);
    assert!(image(&case.db()) == before, "{} was changed", case.name());
}

/// Orogen reads and writes all cases; how many pairs they hold then, and what was in the tables
/// before.
fn write_all(combinations: &[Combination], cases: &mut [Case]) -> (usize, Seen) {
    let total = Mutex::new((0, Seen::default()));
    let all = combinations.iter().zip(cases).enumerate();
    several_at_once(all, |(at, (combination, case))| {
        let mut seen = Seen::default();
        assert_read(case, &combination.options());
        combination.assert_tables(case, false, &mut seen);
        combination.write(case, at);
        combination.assert_tables(case, true, &mut Seen::default());
        let families = case.families().into_iter();
        let pairs = families.map(|f| case.expected(f).unwrap().len());
        let mut total = total.lock().unwrap();
        total.0 += pairs.sum::<usize>();
        total.1.add(seen);
    });
    total.into_inner().unwrap()
}

/// A compressed log is refused by name, and stays as it is.
fn assert_log_is_refused(case: &Case, options: &Options) {
    let before = image(&case.db());
    for opened in [
        Db::open_read_only(case.db(), options),
        Db::open(case.db(), options),
    ] {
        let error = opened.map(drop).expect_err(case.name());
        assert_eq!(
            error.kind(),
            ErrorKind::NotSupported,
            "{}: {error}",
            case.name()
        );
        assert!(error.to_string().contains("compressed"), "{error}");
    }
    let after = image(&case.db());
    for (file, bytes) in before.iter().filter(|(f, _)| !f.starts_with("LOG")) {
        assert!(after.get(file) == Some(bytes), "{}: {file}", case.name());
    }
}

#[test]
fn two_hundred_combinations_go_there_and_back() {
    let covering = draw();
    let combinations: Vec<Combination> = covering.rows.iter().map(Combination::new).collect();
    let name_of = |at: usize| format!("row{at:03}");
    let rows: Vec<Value> = combinations
        .iter()
        .enumerate()
        .map(|(at, c)| c.to_json(&name_of(at), at))
        .collect();
    let dir = scratch("combinations");
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR")).join("combinations");
    let written = programs::written_combinations(&tmp, &rows).unwrap();
    let mut seen = Seen::default();
    let mut compressed = Vec::new();
    let mut cases = Vec::new();
    for (at, combination) in combinations.iter().enumerate() {
        let case = Case::load(&written.join(name_of(at))).unwrap();
        let case = case.copy(&dir.join(case.name())).unwrap();
        seen.look_at_logs(&case);
        combination.assert_options_are_read_or_refused(&case);
        if combination.is("log", "compressed") {
            assert_log_is_refused(&case, &combination.options());
            compressed.push(rows[at].clone());
        }
        cases.push(case);
    }
    programs::make_logs_plain(&dir, &compressed).unwrap();
    let (pairs, tables) = write_all(&combinations, &mut cases);
    seen.add(tables);
    programs::judge_combinations(&cases).unwrap();
    several_at_once(combinations.iter().zip(&cases), |(combination, case)| {
        assert_read(case, &combination.options());
    });
    let by_older = combinations.iter().filter(|c| c.is("writer", "7.8.3"));
    let by_older = by_older.count();
    println!(
        "{} combinations, {by_older} written by RocksDB 7.8.3, {} by 9.8.4: all {} pairs of values \
         ({} forbidden), {} of {} triples; {pairs} pairs of keys and values; {seen:?}",
        cases.len(),
        cases.len() - by_older,
        covering.pairs,
        covering.pairs_forbidden,
        covering.triples,
        covering.triples_all,
    );
    let Seen {
        tables,
        shrunk,
        dictionaries,
        range_deletions,
        merge_operands,
        logs_recycled,
        logs_compressed,
    } = seen;
    assert_eq!(cases.len(), COMBINATIONS);
    assert!((COMBINATIONS / 3..=COMBINATIONS * 2 / 3).contains(&by_older));
    assert!(tables > 2 * COMBINATIONS);
    assert!(dictionaries > 20 && range_deletions > 20 && merge_operands > 20);
    // Six codecs of the older, and zlib is none of the newer's.
    assert_eq!(shrunk.len(), 11, "{shrunk:?}");
    assert!(logs_recycled > 10);
    assert_eq!(logs_compressed, compressed.len());
}

#[test]
fn zlib_with_a_dictionary_is_refused_by_name() {
    let mut combination = Combination::new(&vec![0; FACTORS.len() + 1]);
    combination.0.insert("writer", "7.8.3");
    combination.0.insert("codec", "zlib");
    combination.0.insert("dictionary", "raw");
    combination.0.insert("level", "last");
    // Smaller ones do not shrink enough to be compressed.
    combination.0.insert("block", "4096/16/1");
    let dir = scratch("combinations-zlib");
    let rows = [combination.to_json("zlib", 0)];
    let written = programs::written_combinations(&dir.join("written"), &rows).unwrap();
    let case = Case::load(&written.join("zlib")).unwrap();
    let db = Db::open_read_only(case.db(), &Options::default()).unwrap();
    let mut iter = db
        .iter(&ReadOptions::default(), &db.default_column_family())
        .unwrap();
    iter.seek_to_first();
    while iter.valid() {
        iter.next();
    }
    let error = iter.status().expect_err("it is not read");
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
    assert!(error.to_string().contains("zlib"), "{error}");
}
