//! The same entries under the same options are the same tables, byte for byte.
//!
//! Each seed draws options and entries and builds a table twice, the second time on another thread;
//! then the same of flushes and a compaction of what they made ([`jobs`]). Replicas that compact on their own can then compare files, and a table that was
//! built elsewhere is known by its checksum.

mod jobs;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::checksum::ChecksumType;
use orogen_base::{ParsedInternalKey, Result, ValueKind};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem, threads};
use orogen_sst::{BlockIndex, CompressionType, TableBuilder, TableBuilderOptions};
use orogen_testkit::Rng;

use crate::guard::{Guard, Outcome, timed};
use crate::report::{Failure, Figure};

/// What must hold, in a few words.
const RULE: &str = "what a table, a flush or a compaction writes twice is equal byte for byte";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// The first seed.
    pub seed: u64,
    /// How many tables.
    pub jobs: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            seed: 1,
            jobs: 200,
        }
    }
}

/// Builds tables twice.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let (bytes, tables) = (AtomicU64::new(0), AtomicU64::new(0));
    let repeat = |seed: u64| format!("determinism --seed {seed} --jobs 1");
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(config.threads, config.seed, 1, repeat, |seed| {
            if seed >= config.seed + config.jobs {
                return Outcome::NoMore;
            }
            let built = threads::run_all(
                "orogen-build",
                [false, true]
                    .map(|again| {
                        move || -> Result<Vec<Vec<u8>>> {
                            let mut made = jobs::run(seed, again)?;
                            made.push(build(seed)?);
                            Ok(made)
                        }
                    })
                    .into(),
            );
            let mut built = built.into_iter();
            let what = match (built.next(), built.next()) {
                (Some(Ok(one)), Some(Ok(other))) if one == other => {
                    let size: usize = one.iter().map(Vec::len).sum();
                    bytes.fetch_add(size as u64, Ordering::Relaxed);
                    tables.fetch_add(one.len() as u64, Ordering::Relaxed);
                    return Outcome::Passed;
                }
                (Some(Ok(one)), Some(Ok(other))) => {
                    let at = one.iter().zip(&other).position(|(a, b)| a != b);
                    format!(
                        "{} and {} tables, they differ at {at:?}",
                        one.len(),
                        other.len()
                    )
                }
                (one, other) => format!("a table could not be built: {one:?} {other:?}"),
            };
            Outcome::Failed(Failure {
                what,
                repeat: repeat(seed),
            })
        })
    });
    Figure {
        name: "determinism".to_owned(),
        rule: RULE,
        count: passed,
        unit: "jobs",
        seeds: passed,
        seconds,
        details: vec![
            ("tables", tables.into_inner() as f64),
            ("bytes", bytes.into_inner() as f64),
        ],
        failures,
    }
}

fn options(rng: &mut Rng) -> TableBuilderOptions {
    let mut options = TableBuilderOptions {
        compression: *rng.pick(&[
            CompressionType::None,
            CompressionType::Snappy,
            CompressionType::Lz4,
            CompressionType::Zstd,
        ]),
        file_number: rng.below(1000),
        db_session_id: "ABCDEFGHIJ0123456789".to_owned(),
        creation_time: 1_700_000_000,
        file_checksum: rng.chance(1, 2),
        ..TableBuilderOptions::default()
    };
    if rng.chance(1, 3) {
        options.compression_options.max_dict_bytes = 1024;
    }
    let table = &mut options.table;
    table.block_size = *rng.pick(&[256, 1024, 4096]);
    table.block_restart_interval = *rng.pick(&[1, 4, 16]);
    table.format_version = rng.range(2..7) as u32;
    table.checksum = *rng.pick(&[
        ChecksumType::Crc32c,
        ChecksumType::XxHash64,
        ChecksumType::Xxh3,
    ]);
    table.filter_bits_per_key = *rng.pick(&[0.0, 10.0]);
    if rng.chance(1, 3) {
        table.index_type = BlockIndex::TwoLevel;
        table.partition_filters = rng.chance(1, 2);
        table.metadata_block_size = 400;
    }
    options
}

fn build(seed: u64) -> Result<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let options = options(&mut rng);
    let fs = MemFileSystem::new();
    let path = Path::new("/table");
    let mut builder = TableBuilder::new(fs.create(path)?, options)?;
    let count = rng.range(1..3000);
    let mut key = 0;
    for n in 0..count {
        key += rng.range(1..9) as u64;
        let user_key = format!("key{key:010}").into_bytes();
        let len = rng.range(0..60);
        let mut value = rng.bytes(len);
        value.resize(len * 2, b'.');
        let kind = *rng.pick(&[ValueKind::Value, ValueKind::Value, ValueKind::Deletion]);
        let parsed = ParsedInternalKey {
            user_key: &user_key,
            seqno: count as u64 - n as u64,
            kind,
        };
        let value: &[u8] = if kind == ValueKind::Value {
            &value
        } else {
            &[]
        };
        builder.add(&parsed.encode(), value)?;
    }
    builder.finish([])?;
    read_file(&fs, path)
}
