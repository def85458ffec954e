//! What the command line says.

use std::path::{Path, PathBuf};

use crate::large::Plan;
use crate::{Blob, BlobGc, Result, Settings};

const USAGE: &str = "usage: --dir DIR --phases A,B [--num N] [--reads N] [--recycled-logs N] [--mmap-reads true|false]
large values: --value-len BYTES [--updates N] [--memory BYTES] [--rate-limit BYTES]
              [--write-buffer BYTES]
              [--min-blob-size BYTES [--blob-gc off|auto|punch|merge|move]
              [--blob-gc-force-threshold SHARE] [--max-space-amp X]]";

const WRITE_BUFFER_BYTES: u64 = 64 << 20;
const CACHE_BYTES: u64 = 256 << 20;
/// The share of a bounded memory that the block cache has.
const CACHE_PART: u64 = 4;

/// The set of phases.
#[derive(Debug, PartialEq)]
pub(crate) enum Workload {
    Small,
    Large(Plan),
}

#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) settings: Settings,
    pub(crate) phases: Vec<String>,
    pub(crate) num: u64,
    pub(crate) reads: u64,
    pub(crate) workload: Workload,
}

pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Arguments> {
    let (mut dir, mut phases) = (PathBuf::new(), Vec::new());
    let (mut num, mut reads) = (1_000_000, 1_000_000);
    let (mut value_len, mut updates) = (None, None);
    let (mut memory, mut rate_limit) = (None, None);
    let mut recycled_logs = 0;
    let mut mmap_reads = None;
    let mut write_buffer_bytes = WRITE_BUFFER_BYTES;
    let (mut min_blob_size, mut gc, mut force_threshold) = (None, None, None);
    let mut max_space_amp = None;
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--dir" => dir = PathBuf::from(value),
            "--phases" => phases = value.split(',').map(str::to_owned).collect(),
            "--num" => num = value.parse()?,
            "--reads" => reads = value.parse()?,
            "--value-len" => value_len = Some(value.parse::<usize>()?),
            "--updates" => updates = Some(value.parse::<u64>()?),
            "--memory" => memory = Some(value.parse::<u64>()?),
            "--rate-limit" => rate_limit = Some(value.parse::<u64>()?),
            "--recycled-logs" => recycled_logs = value.parse::<usize>()?,
            "--mmap-reads" => mmap_reads = Some(value.parse::<bool>()?),
            "--write-buffer" => write_buffer_bytes = value.parse::<u64>()?,
            "--min-blob-size" => min_blob_size = Some(value.parse::<u64>()?),
            "--blob-gc" => gc = Some(value.parse::<BlobGc>()?),
            "--max-space-amp" => max_space_amp = Some(value.parse::<f64>()?),
            "--blob-gc-force-threshold" => force_threshold = Some(value.parse::<f64>()?),
            _ => return Err(format!("unknown option `{name}`").into()),
        }
    }
    if dir == Path::new("") || phases.is_empty() || num == 0 || value_len == Some(0) {
        return Err(USAGE.into());
    }
    let of_large = updates.is_some() || memory.is_some() || min_blob_size.is_some();
    if value_len.is_none() && (of_large || rate_limit.is_some()) {
        return Err("options of large values need --value-len".into());
    }
    let of_gc = gc.is_some() || force_threshold.is_some() || max_space_amp.is_some();
    if min_blob_size.is_none() && of_gc {
        return Err("options of --blob-gc need --min-blob-size".into());
    }
    Ok(Arguments {
        settings: Settings {
            dir,
            write_buffer_bytes,
            cache_bytes: memory.map_or(CACHE_BYTES, |bytes| bytes / CACHE_PART),
            bloom_bits: 10.0,
            rate_limit,
            recycled_logs,
            mmap_reads,
            blob: min_blob_size.map(|min_blob_size| Blob {
                min_blob_size,
                gc: gc.unwrap_or(BlobGc::Auto),
                garbage_collection_age_cutoff: 0.25,
                garbage_collection_force_threshold: force_threshold.unwrap_or(1.0),
                max_space_amp: max_space_amp.unwrap_or(0.0),
            }),
        },
        phases,
        num,
        reads,
        workload: value_len.map_or(Workload::Small, |value_len| {
            Workload::Large(Plan {
                value_len,
                num,
                reads,
                updates: updates.unwrap_or(num),
                // The rest is the block cache's.
                cached_pages_bytes: memory.map(|bytes| bytes - bytes / CACHE_PART),
            })
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Arguments> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn small_values_have_the_budgets_that_they_always_had() {
        let parsed = parse_line("--dir d --phases fillseq,readseq --num 7").unwrap();
        assert_eq!(parsed.phases, ["fillseq", "readseq"]);
        assert_eq!((parsed.num, parsed.reads), (7, 1_000_000));
        assert_eq!(parsed.workload, Workload::Small);
        assert_eq!(parsed.settings.cache_bytes, 256 << 20);
        assert_eq!(
            (parsed.settings.blob, parsed.settings.rate_limit),
            (None, None)
        );
    }

    #[test]
    fn a_bounded_memory_is_shared_by_the_block_cache_and_the_pages() {
        let line = "--dir d --phases load --value-len 4096 --memory 400 --min-blob-size 512";
        let parsed = parse_line(&format!("{line} --blob-gc punch")).unwrap();
        let Workload::Large(plan) = parsed.workload else {
            panic!("{:?}", parsed.workload);
        };
        assert_eq!(parsed.settings.cache_bytes, 100);
        assert_eq!(plan.cached_pages_bytes, Some(300));
        assert_eq!((plan.value_len, plan.updates), (4096, 1_000_000));
        let blob = parsed.settings.blob.unwrap();
        assert_eq!((blob.min_blob_size, blob.gc), (512, BlobGc::Punch));
        assert_eq!(blob.garbage_collection_force_threshold, 1.0);
        assert_eq!(
            parse_line(line).unwrap().settings.blob.unwrap().gc,
            BlobGc::Auto
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (line, word) in [
            ("", "usage"),
            ("--dir d --phases load --value-len 0", "usage"),
            ("--dir d --phases load --memory 5", "--value-len"),
            (
                "--dir d --phases load --value-len 9 --blob-gc off",
                "--min-blob-size",
            ),
            (
                "--dir d --phases load --value-len 9 --min-blob-size 1 --blob-gc x",
                "`x`",
            ),
            ("--what 1", "--what"),
        ] {
            let error = parse_line(line).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
