//! Transactions: the indexed batch beside one with a skip list, and Orogen beside RocksDB, in turn.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::figures::{median, row, spread, times};
use super::programs::{self, Engine, OROGEN, ROCKSDB};
use super::{list, memtable, number};

/// All phases of `peers/driver/src/transactions.rs`.
const PHASES: [&str; 17] = [
    "locks-1t",
    "locks-8t",
    "locks-hot-1t",
    "locks-hot-8t",
    "commit-1t",
    "commit-8t",
    "commit-hot-1t",
    "commit-hot-8t",
    "batch-10",
    "batch-100",
    "batch-10000",
    "index-10",
    "index-100",
    "index-10000",
    "fill-10",
    "fill-100",
    "fill-10000",
];

#[derive(Debug)]
struct Options {
    pairs: usize,
    num: u64,
    only: Vec<String>,
    dir: PathBuf,
    json: Option<PathBuf>,
    batches: bool,
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        pairs: 5,
        num: 200_000,
        only: PHASES.map(str::to_owned).into(),
        dir: crate::workspace::root().join("target/bench-txn"),
        json: None,
        batches: true,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--num" => options.num = number(value()?)?,
            "--only" => options.only = list(value()?),
            "--dir" => options.dir = PathBuf::from(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            "--no-batches" => options.batches = false,
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    if let Some(name) = options.only.iter().find(|n| !PHASES.contains(&n.as_str())) {
        return Err(format!("no phase `{name}`: {}", PHASES.join(" ")));
    }
    if options.pairs == 0 || options.num == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    Ok(options)
}

fn command(engine: &Engine, phase: &str, options: &Options) -> Command {
    let name = format!("{}-transactions", engine.name);
    let mut command = Command::new(engine.program().with_file_name(name));
    command.arg("--dir").arg(options.dir.join("db")).args([
        "--phases",
        phase,
        "--num",
        &options.num.to_string(),
    ]);
    command
}

/// Lines of a table: transactions a second of both, their ratio, and the slowest of 1,000.
fn table_row(phase: &str, told: &[[Value; 2]]) -> String {
    let rates = [0, 1].map(|side| spread(row(told, side, "ops_per_second")));
    let times = times(told);
    let slow = [0, 1].map(|side| median(row(told, side, "p999_ns")) / 1000.0);
    let missed = [0, 1].map(|side| {
        let (ops, found) = (row(told, side, "ops"), row(told, side, "found"));
        ops.iter().sum::<f64>() - found.iter().sum::<f64>()
    });
    format!(
        "| {phase} | {:.0} ({:.0}..{:.0}) | {:.0} ({:.0}..{:.0}) | {:.2} ({:.2}..{:.2}) | {:.0} / {:.0} | {} / {} |",
        rates[0].median,
        rates[0].min,
        rates[0].max,
        rates[1].median,
        rates[1].min,
        rates[1].max,
        times.median,
        times.min,
        times.max,
        slow[0],
        slow[1],
        missed[0],
        missed[1],
    )
}

pub(super) fn run(args: &[String]) -> Result<(), String> {
    let options = parse(args)?;
    if options.batches {
        let rounds = options.pairs.to_string();
        memtable::run(&["--batches".to_owned(), "--rounds".to_owned(), rounds])?;
    }
    let engines = [&OROGEN, &ROCKSDB];
    for engine in engines {
        engine.build()?;
    }
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for phase in &options.only {
        let mut told = Vec::new();
        for pair in 0..options.pairs {
            let mut both = [Value::Null, Value::Null];
            for turn in 0..2 {
                let side = (pair + turn) % 2;
                programs::fresh(&options.dir.join("db"))?;
                let mut command = command(engines[side], phase, &options);
                both[side] = programs::listen(&mut command, 1, false)?.remove(0);
            }
            told.push(both);
        }
        let row = table_row(phase, &told);
        eprintln!("{row}");
        rows.push(row);
        documents.extend(told.into_iter().flatten());
        if let Some(path) = &options.json {
            let versions = engines.map(|e| (e.name, e.version()));
            let text = json!({ "versions": versions, "phases": documents }).to_string();
            std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    println!(
        "Transactions a second: median of {} pairs (smallest..largest)\n",
        options.pairs
    );
    println!(
        "| phase | orogen | rocksdb {} | times | p99.9 us | not done |",
        ROCKSDB.version()
    );
    println!("|---|---:|---:|---:|---:|---:|");
    for row in rows {
        println!("{row}");
    }
    programs::remove(&options.dir.join("db"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused() {
        let parse_line = |line: &str| {
            let args = line.split_whitespace().map(str::to_owned);
            parse(&args.collect::<Vec<_>>())
        };
        assert_eq!(parse_line("").unwrap().only.len(), PHASES.len());
        for (line, word) in [
            ("--pairs 0", "nothing"),
            ("--num x", "number"),
            ("--only locks", "`locks`"),
            ("--json", "value"),
            ("--fast", "`--fast`"),
        ] {
            let error = parse_line(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn a_row_tells_both_and_how_many_times() {
        let side =
            |rate: f64| json!({"ops_per_second": rate, "p999_ns": 5000, "ops": 3, "found": 3});
        let told = [[side(90.0), side(30.0)], [side(80.0), side(20.0)]];
        let row = table_row("locks-1t", &told);
        assert!(row.contains("| 85 (80..90) | 25 (20..30) | 3.50 (3.00..4.00) | 5 / 5 | 0 / 0 |"));
    }
}
