//! Raft logs: Orogen's beside raft-engine, and beside RocksDB, or Orogen's with aligned records, if that is asked for, in turn.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::figures::{Spread, geometric_mean, median, ratio, spread};
use super::programs::{self, listen};
use super::{list, number};
use crate::step;

/// Logs to compare with, and the packages that make their programs.
const OTHERS: [(&str, &str); 3] = [
    ("raft-engine", "peers-raft-engine"),
    ("rocksdb", "peers-raft-rocksdb"),
    (ALIGNED, "peers-raft-engine"),
];
/// Orogen's, with records that begin at multiples of a block behind a sync.
const ALIGNED: &str = "aligned";
const THREADS: [u64; 3] = [1, 4, 16];
const BYTES: [u64; 4] = [256, 1024, 4096, 32768];
const WITH_PURGES: [&str; 7] = [
    "purge",
    "purge-skewed",
    "purge-synced",
    "recycled-1t-4096",
    "recycled-16t-256",
    "recycled-16t-4096",
    "recycled-16t-4096-cold",
];

#[derive(Debug)]
struct Options {
    pairs: usize,
    seconds: String,
    gib: String,
    only: Vec<String>,
    against: Vec<String>,
    dir: PathBuf,
    json: Option<PathBuf>,
}

/// All phases: writes without and with syncs, then those that read what `fill` left, then those with purges.
fn phases() -> Vec<String> {
    let mut all = Vec::new();
    for kind in ["write", "sync"] {
        for threads in THREADS {
            all.extend(BYTES.map(|bytes| format!("{kind}-{threads}t-{bytes}")));
        }
    }
    let rest = ["fill", "open", "open-cold", "tail"];
    all.extend(rest.into_iter().chain(WITH_PURGES).map(str::to_owned));
    all
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        pairs: 3,
        seconds: "3".to_owned(),
        gib: "2".to_owned(),
        only: phases(),
        against: vec![OTHERS[0].0.to_owned()],
        dir: crate::workspace::root().join("target/bench-raftlog"),
        json: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        let positive = |text: &String| match text.parse::<f64>() {
            Ok(n) if n > 0.0 => Ok(text.clone()),
            _ => Err(format!("`{text}` is no number above 0")),
        };
        match arg.as_str() {
            "--pairs" => options.pairs = number(value()?)? as usize,
            "--seconds" => options.seconds = positive(value()?)?,
            "--gib" => options.gib = positive(value()?)?,
            "--only" => options.only = list(value()?),
            "--against" => options.against = list(value()?),
            "--dir" => options.dir = PathBuf::from(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    let all = phases();
    if let Some(name) = options.only.iter().find(|n| !all.contains(n)) {
        return Err(format!("no phase `{name}`: {}", all.join(" ")));
    }
    let is_known = |name: &&String| OTHERS.iter().any(|(other, _)| other == name);
    if let Some(name) = options.against.iter().find(|name| !is_known(name)) {
        return Err(format!("no log `{name}`: raft-engine rocksdb {ALIGNED}"));
    }
    if options.pairs == 0 || options.against.is_empty() {
        return Err("there is nothing to measure".to_owned());
    }
    Ok(options)
}

fn command(engine: &str, phase: &str, dir: &Path, options: &Options) -> Command {
    let programs = programs::peers().join("target/release");
    let (program, alignment) = match engine {
        ALIGNED => ("orogen", "4096"),
        other => (other, "0"),
    };
    let mut command = Command::new(programs.join(format!("raft-logs-{program}")));
    command
        .args(["--record-alignment", alignment])
        .arg("--dir")
        .arg(dir)
        .args(["--phase", phase.strip_suffix("-cold").unwrap_or(phase)])
        .args(["--seconds", &options.seconds, "--gib", &options.gib]);
    if phase.ends_with("-cold") {
        command.args(["--cold", "1"]);
    }
    match phase {
        // As many times the bound as makes old files be emptied again and again.
        name if WITH_PURGES.contains(&name) => {
            command.args(["--file-bytes", "33554432", "--purge-bytes", "536870912"])
        }
        _ => &mut command,
    };
    command
}

/// What each program told of a phase, in each turn.
type Told = Vec<Vec<Value>>;

/// A figure of one program in each turn.
fn row(told: &Told, side: usize, field: &str) -> Vec<f64> {
    let figure = |turn: &Vec<Value>| turn[side][field].as_f64().unwrap_or(f64::NAN);
    told.iter().map(figure).collect()
}

/// How many times as fast the first program is.
fn times(told: &Told, side: usize) -> Spread {
    let rate = |side| row(told, side, "ops_per_second");
    ratio(&rate(0), &rate(side))
}

fn table_row(phase: &str, told: &Told, sides: usize) -> String {
    let mut out = format!("| {phase} |");
    for side in 0..sides {
        let rate = spread(row(told, side, "ops_per_second"));
        out += &format!(" {:.0} ({:.0}..{:.0}) |", rate.median, rate.min, rate.max);
    }
    for side in 1..sides {
        let times = times(told, side);
        out += &format!(
            " {:.2} ({:.2}..{:.2}) |",
            times.median, times.min, times.max
        );
    }
    let mib = f64::from(1 << 20);
    // Where purges run, what is written beside them is what counts.
    let is_beside = phase.starts_with("purge");
    let p999 = if is_beside {
        "purging_p999_ns"
    } else {
        "p999_ns"
    };
    for (field, unit) in [(p999, 1000.0), ("rss_growth_bytes", mib)] {
        let figures = (0..sides).map(|side| median(row(told, side, field)) / unit);
        let figures: Vec<String> = figures.map(|figure| format!("{figure:.0}")).collect();
        out += &format!(" {} |", figures.join(" / "));
    }
    let (field, name) = match has_device(told) {
        true => ("device_bytes", ""),
        false => ("write_bytes", " (write_bytes)"),
    };
    let bytes = (0..sides).map(|side| median(row(told, side, field)) / mib);
    let each = (0..sides).map(|side| {
        let bytes = row(told, side, field);
        let counts = row(told, side, "ops");
        let each = bytes.iter().zip(counts).map(|(bytes, ops)| bytes / ops);
        median(each.collect()) / 1024.0
    });
    let figures: Vec<String> = bytes.map(|figure| format!("{figure:.0}")).collect();
    let of_each: Vec<String> = each.map(|figure| format!("{figure:.2}")).collect();
    out += &format!(" {}{name} | {} |", figures.join(" / "), of_each.join(" / "));
    out
}

/// Whether each program found the device that it wrote to.
fn has_device(told: &Told) -> bool {
    let mut documents = told.iter().flatten();
    documents.all(|document| document["device_bytes"].is_u64())
}

/// The geometric means over the cells of writes, without and with syncs.
fn means(rows: &[(String, f64)]) -> String {
    let of = |kind: &str| {
        let cells = rows.iter().filter(|(name, _)| name.starts_with(kind));
        cells.map(|(_, times)| *times).collect::<Vec<_>>()
    };
    let mut out = String::new();
    for (kind, name) in [("write-", "without syncs"), ("sync-", "with syncs")] {
        let cells = of(kind);
        if !cells.is_empty() {
            let least = cells.iter().copied().fold(f64::INFINITY, f64::min);
            let mean = geometric_mean(&cells);
            out += &format!("{name}: {mean:.2} times in the geometric mean, {least:.2} at least\n");
        }
    }
    out
}

pub(super) fn run(args: &[String]) -> Result<(), String> {
    let options = parse(args)?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked"]);
    // Orogen's program is made by the package of the first.
    for (name, package) in OTHERS {
        if name == OTHERS[0].0 || options.against.iter().any(|other| other == name) {
            build.args(["--package", package]);
        }
    }
    step::shell(build.current_dir(programs::peers()))?;
    let mut engines = vec!["orogen"];
    engines.extend(options.against.iter().map(String::as_str));
    let sides = engines.len();
    let kept = engines
        .iter()
        .map(|name| options.dir.join(format!("kept-{name}")));
    let kept: Vec<PathBuf> = kept.collect();
    let needs_kept = |name: &String| ["open", "open-cold", "tail"].contains(&name.as_str());
    let measured: Vec<&String> = options.only.iter().filter(|n| *n != "fill").collect();
    let mut phases = Vec::new();
    if options.only.len() > measured.len() || options.only.iter().any(needs_kept) {
        phases.push("fill".to_owned());
    }
    phases.extend(measured.into_iter().cloned());
    let (mut rows, mut ratios, mut documents) = (Vec::new(), Vec::new(), Vec::new());
    for phase in &phases {
        let mut told = Vec::new();
        for pair in 0..options.pairs {
            let mut turn_of = vec![Value::Null; sides];
            for turn in 0..sides {
                let side = (pair + turn) % sides;
                let dir = if needs_kept(phase) || phase == "fill" {
                    kept[side].clone()
                } else {
                    options.dir.join("log")
                };
                if !needs_kept(phase) {
                    programs::fresh(&dir)?;
                }
                let mut command = command(engines[side], phase, &dir, &options);
                turn_of[side] = listen(&mut command, 1, false)?.remove(0);
            }
            told.push(turn_of);
        }
        let line = table_row(phase, &told, sides);
        eprintln!("{line}");
        rows.push(line);
        ratios.push((phase.clone(), times(&told, 1).median));
        documents.extend(told.into_iter().flatten());
        if let Some(path) = &options.json {
            let text = json!({ "phases": documents }).to_string();
            std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    for dir in kept.iter().chain([&options.dir.join("log")]) {
        let _ = std::fs::remove_dir_all(dir);
    }
    println!(
        "Operations a second: median of {} pairs (smallest..largest)\n",
        options.pairs
    );
    let columns: String = engines.iter().map(|name| format!(" {name} |")).collect();
    let times: String = (engines[1..].iter())
        .map(|name| format!(" times {name} |"))
        .collect();
    println!(
        "| phase |{columns}{times} p99.9 us | memory of the index, MiB | to the device, MiB | KiB for each |"
    );
    println!("|---|{}", "---:|".repeat(2 * sides + 3));
    for row in rows {
        println!("{row}");
    }
    println!(
        "\nTo the device: what it counts, with the file system synced before and behind; what others write there is in it. \
         Where `write_bytes` stands, no device was found, and it is what the kernel counts for the process."
    );
    println!("\n{}", means(&ratios));
    Ok(())
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
        assert_eq!(parse_line("").unwrap().only.len(), 35);
        for (line, word) in [
            ("--pairs 0", "nothing"),
            ("--gib x", "`x`"),
            ("--seconds 0", "`0`"),
            ("--only locks", "`locks`"),
            ("--json", "value"),
            ("--fast", "`--fast`"),
            ("--against pebble", "`pebble`"),
        ] {
            let error = parse_line(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let of = |rate: u64| {
            json!({
                "ops_per_second": rate, "p999_ns": 5000, "ops": rate,
                "device_bytes": rate << 20, "write_bytes": rate << 21,
            })
        };
        let mut told = vec![vec![of(30), of(10), of(5)], vec![of(20), of(10), of(10)]];
        let line = table_row("open", &told, 3);
        assert_eq!(line.matches('|').count(), 1 + 1 + 3 + 2 + 4);
        assert!(line.contains("| 2.50 (2.00..3.00) | 4.00 (2.00..6.00) | 5 / 5 / 5 |"));
        let device = "| 25 / 10 / 8 | 1024.00 / 1024.00 / 1024.00 |";
        assert!(line.ends_with(device), "{line}");
        // One that found no device.
        told[1][2]["device_bytes"] = Value::Null;
        let line = table_row("open", &told, 3);
        let process = "| 50 / 20 / 15 (write_bytes) | 2048.00 / 2048.00 / 2048.00 |";
        assert!(line.ends_with(process), "{line}");
    }

    #[test]
    fn means_are_of_their_kind() {
        let rows = [("write-1t-256", 2.0), ("write-4t-256", 8.0), ("open", 9.0)];
        let rows = rows.map(|(name, times)| (name.to_owned(), times));
        assert_eq!(
            means(&rows),
            "without syncs: 4.00 times in the geometric mean, 2.00 at least\n"
        );
    }
}
