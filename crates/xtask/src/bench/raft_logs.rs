//! Raft logs: Orogen's beside raft-engine, in turn.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::figures::{geometric_mean, median, row, spread, times};
use super::programs::{self, listen};
use super::{list, number};
use crate::step;

const ENGINES: [&str; 2] = ["orogen", "raft-engine"];
const THREADS: [u64; 3] = [1, 4, 16];
const BYTES: [u64; 4] = [256, 1024, 4096, 32768];

#[derive(Debug)]
struct Options {
    pairs: usize,
    seconds: String,
    gib: String,
    only: Vec<String>,
    dir: PathBuf,
    json: Option<PathBuf>,
}

/// All phases: writes without and with syncs, then those that read what `fill` left, then purges.
fn phases() -> Vec<String> {
    let mut all = Vec::new();
    for kind in ["write", "sync"] {
        for threads in THREADS {
            all.extend(BYTES.map(|bytes| format!("{kind}-{threads}t-{bytes}")));
        }
    }
    all.extend(["fill", "open", "open-cold", "tail", "purge"].map(str::to_owned));
    all
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options = Options {
        pairs: 3,
        seconds: "3".to_owned(),
        gib: "2".to_owned(),
        only: phases(),
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
            "--dir" => options.dir = PathBuf::from(value()?),
            "--json" => options.json = Some(PathBuf::from(value()?)),
            other => return Err(format!("unknown option `{other}`")),
        }
    }
    let all = phases();
    if let Some(name) = options.only.iter().find(|n| !all.contains(n)) {
        return Err(format!("no phase `{name}`: {}", all.join(" ")));
    }
    if options.pairs == 0 {
        return Err("there is nothing to measure".to_owned());
    }
    Ok(options)
}

fn command(engine: &str, phase: &str, dir: &Path, options: &Options) -> Command {
    let program = programs::peers().join("target/release");
    let mut command = Command::new(program.join(format!("raft-logs-{engine}")));
    command
        .arg("--dir")
        .arg(dir)
        .args(["--phase", phase.strip_suffix("-cold").unwrap_or(phase)])
        .args(["--seconds", &options.seconds, "--gib", &options.gib]);
    match phase {
        "open-cold" => command.args(["--cold", "1"]),
        // As many times the bound as makes old files be emptied again and again.
        "purge" => command.args(["--file-bytes", "33554432", "--purge-bytes", "536870912"]),
        _ => &mut command,
    };
    command
}

fn table_row(phase: &str, told: &[[Value; 2]]) -> String {
    let rates = [0, 1].map(|side| spread(row(told, side, "ops_per_second")));
    let times = times(told);
    let of = |field, unit: f64| [0, 1].map(|side| median(row(told, side, field)) / unit);
    let slow = of("p999_ns", 1000.0);
    let memory = of("rss_growth_bytes", f64::from(1 << 20));
    let written = of("written_bytes", f64::from(1 << 20));
    format!(
        "| {phase} | {:.0} ({:.0}..{:.0}) | {:.0} ({:.0}..{:.0}) | {:.2} ({:.2}..{:.2}) | {:.0} / {:.0} | {:.0} / {:.0} | {:.0} / {:.0} |",
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
        memory[0],
        memory[1],
        written[0],
        written[1],
    )
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
    step::shell(
        Command::new("cargo")
            .args(["build", "--release", "--locked", "--package"])
            .arg("peers-raft-engine")
            .current_dir(programs::peers()),
    )?;
    let kept = ENGINES.map(|name| options.dir.join(format!("kept-{name}")));
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
            let mut both = [Value::Null, Value::Null];
            for turn in 0..2 {
                let side = (pair + turn) % 2;
                let dir = if needs_kept(phase) || phase == "fill" {
                    kept[side].clone()
                } else {
                    options.dir.join("log")
                };
                if !needs_kept(phase) {
                    programs::fresh(&dir)?;
                }
                let mut command = command(ENGINES[side], phase, &dir, &options);
                both[side] = listen(&mut command, 1, false)?.remove(0);
            }
            told.push(both);
        }
        let line = table_row(phase, &told);
        eprintln!("{line}");
        rows.push(line);
        let times = times(&told);
        ratios.push((phase.clone(), times.median));
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
    println!(
        "| phase | orogen | raft-engine | times | p99.9 us | memory of the index, MiB | written, MiB |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for row in rows {
        println!("{row}");
    }
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
        assert_eq!(parse_line("").unwrap().only.len(), 29);
        for (line, word) in [
            ("--pairs 0", "nothing"),
            ("--gib x", "`x`"),
            ("--seconds 0", "`0`"),
            ("--only locks", "`locks`"),
            ("--json", "value"),
            ("--fast", "`--fast`"),
        ] {
            let error = parse_line(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
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
