//! `cargo x bench peers`: our workload tool and RocksDB's, in turn, in one run.
//!
//! Machines are noisy, so no figure of one run is compared with one of another: for each number
//! of threads both programs run all workloads in pairs, one after the other with the order
//! swapped each time, and a workload's result is the median of the pairs' ratios with the
//! smallest and the largest beside it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace;

pub(crate) const HELP: &str = "
usage: cargo x bench peers [--pairs N] [--num N] [--reads N] [--threads A,B] [--json FILE]

Runs `orogen bench` and Debian's `db_bench` in turn with the same flags: 16-byte keys, 100-byte
values, LZ4, WAL on, 64 MiB write buffer, 256 MiB block cache, 10-bit Bloom filter. Prints for
each workload both medians of operations per second, and the median, smallest and largest ratio
of a pair (above 1: Orogen is faster).

  --pairs N      pairs for each number of threads (default 5)
  --num N        keys for each thread (default 2000000)
  --reads N      reads for each thread (default: as --num)
  --threads A,B  numbers of threads (default 1,2)
  --dir DIR      where the databases are made (default target/bench-peers)
  --json FILE    the figures as JSON too

Debian's db_bench is built with assertions on, which flatters us: a quick check, not the judge.
";

const WORKLOADS: [&str; 7] = [
    "fillseq",
    "fillrandom",
    "overwrite",
    "readrandom",
    "readmissing",
    "readseq",
    "seekrandom",
];

struct Options {
    pairs: usize,
    num: u64,
    reads: Option<u64>,
    threads: Vec<u32>,
    dir: PathBuf,
    json: Option<PathBuf>,
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    match args.split_first() {
        Some((what, rest)) if what == "peers" => peers(&parse(rest)?),
        _ => Err("say what to measure: `cargo x bench peers`".to_owned()),
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        pairs: 5,
        num: 2_000_000,
        reads: None,
        threads: vec![1, 2],
        dir: workspace::root().join("target/bench-peers"),
        json: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--num" => options.num = number(value()?)?,
            "--reads" => options.reads = Some(number(value()?)?),
            "--threads" => {
                let list: Result<Vec<u64>, String> = value()?.split(',').map(number).collect();
                options.threads = list?.into_iter().map(|n| n as u32).collect();
            }
            "--dir" => options.dir = PathBuf::from(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    if options.pairs == 0 || options.threads.is_empty() {
        return Err("there is nothing to measure".to_owned());
    }
    Ok(options)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a number"))
}

/// Operations per second by workload.
type Figures = BTreeMap<&'static str, f64>;

fn peers(options: &Options) -> Result<(), String> {
    let root = workspace::root();
    let built = Command::new("cargo")
        .args(["build", "--release", "--locked", "--package", "orogen-cli"])
        .current_dir(&root)
        .status()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    if !built.success() {
        return Err("orogen does not build".to_owned());
    }
    let orogen = root.join("target/release/orogen");
    let mut json = Vec::new();
    for &threads in &options.threads {
        let mut pairs: Vec<(Figures, Figures)> = Vec::new();
        for pair in 0..options.pairs {
            let ours_first = pair % 2 == 0;
            let mut ours = Figures::new();
            let mut theirs = Figures::new();
            for turn in 0..2 {
                if (turn == 0) == ours_first {
                    ours = measure(&orogen, Some("bench"), options, threads)?;
                } else {
                    theirs = measure(Path::new("db_bench"), None, options, threads)?;
                }
            }
            eprintln!(
                "pair {} of {} with {threads} threads done",
                pair + 1,
                options.pairs
            );
            pairs.push((ours, theirs));
        }
        print_table(options, threads, &pairs);
        json.extend(rows(threads, &pairs));
    }
    if let Some(path) = &options.json {
        let text = serde_json::Value::Array(json).to_string();
        std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(())
}

/// Runs one program over all workloads in a new directory.
fn measure(
    program: &Path,
    subcommand: Option<&str>,
    options: &Options,
    threads: u32,
) -> Result<Figures, String> {
    // What is left of an earlier run must not count.
    let _ = std::fs::remove_dir_all(&options.dir);
    std::fs::create_dir_all(&options.dir).map_err(|e| format!("{}: {e}", options.dir.display()))?;
    let mut command = Command::new(program);
    command.args(subcommand).args([
        format!("--db={}", options.dir.join("db").display()),
        format!("--benchmarks={}", WORKLOADS.join(",")),
        format!("--num={}", options.num),
        format!("--threads={threads}"),
        "--key_size=16".to_owned(),
        "--value_size=100".to_owned(),
        "--compression_type=lz4".to_owned(),
        "--write_buffer_size=67108864".to_owned(),
        "--cache_size=268435456".to_owned(),
        "--bloom_bits=10".to_owned(),
        "--seed=1".to_owned(),
    ]);
    if let Some(reads) = options.reads {
        command.arg(format!("--reads={reads}"));
    }
    let output = command
        .output()
        .map_err(|e| format!("cannot run {}: {e}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!(
            "{} failed: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    let figures: Figures = WORKLOADS
        .iter()
        .filter_map(|name| Some((*name, ops_per_second(&text, name)?)))
        .collect();
    let _ = std::fs::remove_dir_all(&options.dir);
    if figures.len() == WORKLOADS.len() {
        Ok(figures)
    } else {
        Err(format!(
            "{} did not print every workload:\n{text}",
            program.display()
        ))
    }
}

/// The figure of a line such as `fillseq : 1.234 micros/op 810123 ops/sec ...`.
fn ops_per_second(text: &str, workload: &str) -> Option<f64> {
    let line = text.lines().rfind(|l| {
        l.split(':')
            .next()
            .is_some_and(|name| name.trim() == workload)
    })?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|w| w.starts_with("ops/sec"))?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

struct Row {
    workload: &'static str,
    ours: f64,
    theirs: f64,
    ratio: f64,
    ratio_min: f64,
    ratio_max: f64,
}

fn summarise(pairs: &[(Figures, Figures)]) -> Vec<Row> {
    WORKLOADS
        .iter()
        .map(|name| {
            let ours: Vec<f64> = pairs.iter().map(|p| p.0[name]).collect();
            let theirs: Vec<f64> = pairs.iter().map(|p| p.1[name]).collect();
            let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(a, b)| a / b).collect();
            Row {
                workload: name,
                ours: median(ours),
                theirs: median(theirs),
                ratio_min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
                ratio_max: ratios.iter().copied().fold(0.0, f64::max),
                ratio: median(ratios),
            }
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 {
        values[middle]
    } else {
        f64::midpoint(values[middle - 1], values[middle])
    }
}

fn print_table(options: &Options, threads: u32, pairs: &[(Figures, Figures)]) {
    println!(
        "\n{} keys for each of {threads} threads, {} pairs; operations per second",
        options.num,
        pairs.len()
    );
    println!(
        "{:<12} {:>12} {:>12} {:>8} {:>8} {:>8}",
        "workload", "orogen", "db_bench", "ratio", "min", "max"
    );
    let rows = summarise(pairs);
    for row in &rows {
        println!(
            "{:<12} {:>12.0} {:>12.0} {:>8.2} {:>8.2} {:>8.2}",
            row.workload, row.ours, row.theirs, row.ratio, row.ratio_min, row.ratio_max
        );
    }
    let mean = rows.iter().map(|r| r.ratio.ln()).sum::<f64>() / rows.len() as f64;
    println!("{:<12} {:>34.2}", "geometric mean", mean.exp());
}

fn rows(threads: u32, pairs: &[(Figures, Figures)]) -> Vec<serde_json::Value> {
    summarise(pairs)
        .into_iter()
        .map(|row| {
            serde_json::json!({
                "workload": row.workload,
                "threads": threads,
                "pairs": pairs.len(),
                "orogen_ops_per_second": row.ours,
                "db_bench_ops_per_second": row.theirs,
                "ratio": row.ratio,
                "ratio_min": row.ratio_min,
                "ratio_max": row.ratio_max,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_db_bench_lines() {
        let text = "keys: 16 bytes each\n\
            fillseq      :       1.234 micros/op 810123 ops/sec 1.234 seconds 1000000 operations;\n\
            readrandom   :  4.5 micros/op 218137 ops/sec 4.5 seconds (6 of 10 found)\n";
        assert_eq!(ops_per_second(text, "fillseq"), Some(810_123.0));
        assert_eq!(ops_per_second(text, "readrandom"), Some(218_137.0));
        assert_eq!(ops_per_second(text, "readseq"), None);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
