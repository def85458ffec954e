//! Against Debian's `db_bench`: our workload tool and RocksDB's with the same flags.
//!
//! For each number of threads both programs run all workloads in pairs, one after the other with
//! the order swapped each time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::figures::{geometric_mean, median, ratio};
use super::{Options, programs};
use crate::workspace;

/// Keys for each thread, where the command line does not say.
const NUM_DEFAULT: u64 = 2_000_000;

const WORKLOADS: [&str; 7] = [
    "fillseq",
    "fillrandom",
    "overwrite",
    "readrandom",
    "readmissing",
    "readseq",
    "seekrandom",
];

/// Operations per second by workload.
type Figures = BTreeMap<&'static str, f64>;

pub(super) fn run(options: &Options) -> Result<(), String> {
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
    let ours = [orogen.as_path(), Path::new("bench")];
    measure_pairs(options, &ours, &[Path::new("db_bench")])
}

/// Runs both programs in turn; each is told with the words that begin its command line.
fn measure_pairs(options: &Options, ours: &[&Path], theirs: &[&Path]) -> Result<(), String> {
    let mut done = Vec::new();
    for &threads in options.threads.as_deref().unwrap_or(&[1, 2]) {
        let mut pairs: Vec<(Figures, Figures)> = Vec::new();
        for pair in 0..options.pairs {
            let ours_first = pair % 2 == 0;
            let mut of_ours = Figures::new();
            let mut of_theirs = Figures::new();
            for turn in 0..2 {
                if (turn == 0) == ours_first {
                    of_ours = measure(ours, options, threads)?;
                } else {
                    of_theirs = measure(theirs, options, threads)?;
                }
            }
            eprintln!(
                "pair {} of {} with {threads} threads done",
                pair + 1,
                options.pairs
            );
            pairs.push((of_ours, of_theirs));
            if let Some(path) = &options.json {
                let so_far = [done.clone(), rows(threads, &pairs)].concat();
                let text = serde_json::Value::Array(so_far).to_string();
                std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
        print_table(options, threads, &pairs);
        done.extend(rows(threads, &pairs));
    }
    Ok(())
}

/// Runs one program over all workloads in a new directory.
fn measure(words: &[&Path], options: &Options, threads: u32) -> Result<Figures, String> {
    // DIR itself is the user's, who may keep other things there.
    let db = options.dir.join("db");
    programs::fresh(&db)?;
    let (program, subcommand) = words.split_first().ok_or("no program")?;
    let mut command = Command::new(program);
    command.args(subcommand).args([
        format!("--db={}", db.display()),
        format!("--benchmarks={}", WORKLOADS.join(",")),
        format!("--num={}", options.num.unwrap_or(NUM_DEFAULT)),
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
    programs::remove(&db)?;
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
            let r = ratio(&ours, &theirs);
            Row {
                workload: name,
                ours: median(ours),
                theirs: median(theirs),
                ratio: r.median,
                ratio_min: r.min,
                ratio_max: r.max,
            }
        })
        .collect()
}

fn print_table(options: &Options, threads: u32, pairs: &[(Figures, Figures)]) {
    println!(
        "\n{} keys for each of {threads} threads, {} pairs; operations per second",
        options.num.unwrap_or(NUM_DEFAULT),
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
    let ratios: Vec<f64> = rows.iter().map(|r| r.ratio).collect();
    println!("{:<12} {:>34.2}", "geometric mean", geometric_mean(&ratios));
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
    fn what_stands_beside_the_databases_stays_and_figures_are_written_after_each_pair() {
        let dir = std::env::temp_dir().join(format!("xtask-db-bench-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("db")).unwrap();
        for name in ["keep", "db/old"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        let (json, script) = (dir.join("json"), dir.join("script"));
        // Tells whether its directory is empty, and what was written before it ran.
        let mut text = format!("cd {}\nls db > left\ncp json seen\n", dir.display());
        for name in WORKLOADS {
            text.push_str(&format!("echo '{name} : 1.0 micros/op 7 ops/sec'\n"));
        }
        std::fs::write(&script, text).unwrap();
        let options = Options {
            against: vec!["db_bench".to_owned()],
            pairs: 2,
            num: Some(1),
            reads: None,
            only: Vec::new(),
            threads: Some(vec![1]),
            dir: dir.clone(),
            json: Some(json),
        };
        let program = [Path::new("sh"), script.as_path()];
        measure_pairs(&options, &program, &program).unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("keep")).unwrap(), "keep");
        assert_eq!(std::fs::read_to_string(dir.join("left")).unwrap(), "");
        assert!(!dir.join("db").exists());
        for (name, pairs) in [("seen", 1), ("json", 2)] {
            let text = std::fs::read_to_string(dir.join(name)).unwrap();
            let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(figures[WORKLOADS.len() - 1]["pairs"], pairs, "{text}");
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
}
