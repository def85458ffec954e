//! `cargo x fuzz`: builds the fuzz targets on the stable compiler and runs them.
//!
//! libFuzzer comes with `libfuzzer-sys`; what it needs of the compiler are the coverage counters
//! that LLVM's `sancov-module` pass puts in, which stable rustc runs when it is asked by name.
//! No sanitizer is linked: what is looked for are panics, overflows, endless loops and greed for
//! memory in decoders that have no `unsafe` of their own.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{self, Steps};
use crate::workspace;

pub(crate) const HELP: &str = "
usage: cargo x fuzz [--seconds N] [--jobs N] [--list] [target...]

Builds every target of fuzz/ with coverage counters and runs each (or those named) for N seconds,
60 by default, on its corpus in fuzz/corpus/<target>, started from testdata; two at a time, or
as many as --jobs says. What crashes a target is left in fuzz/artifacts/<target>;
`cargo x fuzz --seconds 0 <target>` runs the corpus and those files once.
";

/// Passes of the compiler that count which edges run and what is compared.
const COVERAGE: [&str; 6] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Greed for memory beyond this is a finding; the tables of libFuzzer are part of it.
const MEMORY_MIB_MAX: u32 = 1024;
/// One input may take this long.
const INPUT_SECONDS_MAX: u32 = 10;
/// Targets that run beside each other.
const JOBS: usize = 2;
/// Lines of libFuzzer's log to show of a run that failed.
const LOG_LINES_TOLD: usize = 80;
/// Longest input.
const INPUT_BYTES_MAX: u32 = 65536;

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let options = Options::parse(args)?;
    let dir = workspace::root().join("fuzz");
    let all = targets(&dir)?;
    if options.list {
        for target in &all {
            println!("{target}");
        }
        return Ok(());
    }
    if let Some(unknown) = options.targets.iter().find(|t| !all.contains(t)) {
        return Err(format!(
            "no target `{unknown}`; there are: {}",
            all.join(" ")
        ));
    }
    let chosen = if options.targets.is_empty() {
        &all
    } else {
        &options.targets
    };
    let host = host()?;
    build(&dir, &host, chosen)?;
    let programs = dir.join("target").join(&host).join("release");
    let mut steps = Steps::default();
    steps.run_together(options.jobs, chosen, |target| {
        run_target(&dir, &programs.join(target), target, options.seconds)
    });
    steps.finish()
}

struct Options {
    seconds: u64,
    jobs: usize,
    list: bool,
    targets: Vec<String>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self, String> {
        let mut options = Self {
            seconds: 60,
            jobs: JOBS,
            list: false,
            targets: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut number = || -> Result<u64, String> {
                let value = args.next().ok_or_else(|| format!("{arg} needs a number"))?;
                let wrong = |_| format!("`{value}` is not a number");
                value.parse().map_err(wrong)
            };
            match arg.as_str() {
                "--seconds" => options.seconds = number()?,
                "--jobs" => {
                    options.jobs = usize::try_from(number()?)
                        .ok()
                        .filter(|n| *n > 0)
                        .ok_or("--jobs is at least 1")?;
                }
                "--list" => options.list = true,
                flag if flag.starts_with('-') => return Err(format!("unknown option `{flag}`")),
                target => options.targets.push(target.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Names of the targets: the files of fuzz/fuzz_targets.
fn targets(dir: &Path) -> Result<Vec<String>, String> {
    let folder = dir.join("fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
        .filter_map(|p| Some(p.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// The platform we are on. Naming it keeps the coverage flags away from build scripts and macros,
/// which are linked without libFuzzer.
fn host() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|e| format!("rustc: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|l| l.strip_prefix("host: "));
    host.map(str::to_owned)
        .ok_or_else(|| "rustc -vV names no host".to_owned())
}

fn build(dir: &Path, host: &str, targets: &[String]) -> Result<(), String> {
    let mut command = workspace::cargo();
    command
        .current_dir(dir)
        .args(["build", "--release", "--locked", "--target", host])
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"))
        .env("CARGO_TARGET_DIR", dir.join("target"));
    for target in targets {
        command.args(["--bin", target]);
    }
    step::shell(&mut command)
}

fn run_target(dir: &Path, program: &Path, target: &str, seconds: u64) -> Result<String, String> {
    let corpus = dir.join("corpus").join(target);
    let artifacts = dir.join("artifacts").join(target);
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let mut command = Command::new(program);
    let mut artifact_prefix = artifacts.clone().into_os_string();
    artifact_prefix.push("/");
    command
        .arg(format!(
            "-artifact_prefix={}",
            artifact_prefix.to_string_lossy()
        ))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .args(["-print_final_stats=1", "-use_value_profile=1"]);
    if seconds == 0 {
        command.arg("-runs=0").arg(&artifacts);
    } else {
        command.arg(format!("-max_total_time={seconds}"));
    }
    command.arg(&corpus);
    command.args(seeds(dir, target));
    let output = command
        .output()
        .map_err(|e| format!("{}: {e}", program.display()))?;
    let log = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let lines: Vec<&str> = log.lines().collect();
        return Err(format!(
            "{}\n`{}` ended with {}",
            lines[lines.len().saturating_sub(LOG_LINES_TOLD)..].join("\n"),
            step::line(&command),
            output.status
        ));
    }
    Ok(Progress::read(&log)?.to_string())
}

/// How far a run came, from libFuzzer's log.
#[derive(Debug, PartialEq, Eq)]
struct Progress {
    runs: u64,
    edges_first: u64,
    edges_last: u64,
    corpus: u64,
}

impl Progress {
    /// Reads `#1024 NEW cov: 77 ft: 120 corp: 30/1Kb ...` and `stat::number_of_executed_units: n`.
    /// A run without edges was built without counters and is an error: it would find nothing.
    fn read(log: &str) -> Result<Self, String> {
        let after = |line: &str, label: &str| -> Option<u64> {
            let rest = line.split_once(label)?.1.trim_start();
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        };
        let last = |label: &str| log.lines().rev().find_map(|l| after(l, label));
        let progress = Self {
            runs: last("stat::number_of_executed_units:").unwrap_or(0),
            edges_first: log.lines().find_map(|l| after(l, " cov: ")).unwrap_or(0),
            edges_last: last(" cov: ").unwrap_or(0),
            corpus: last(" corp: ").unwrap_or(0),
        };
        if progress.edges_last == 0 {
            return Err("no coverage was counted".into());
        }
        Ok(progress)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            runs,
            edges_first,
            edges_last,
            corpus,
        } = self;
        write!(
            f,
            "{runs} runs, edges {edges_first} -> {edges_last}, corpus of {corpus}"
        )
    }
}

/// The folder of files to start from, if the target has one.
fn seeds(dir: &Path, target: &str) -> Option<PathBuf> {
    let folder = dir.parent()?.join("testdata").join("fuzz").join(target);
    folder.is_dir().then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let args = ["wal", "--seconds", "5", "block", "--jobs", "3"].map(str::to_owned);
        let options = Options::parse(&args).expect("good arguments");
        assert_eq!(
            (options.seconds, options.jobs, options.targets.len()),
            (5, 3, 2)
        );
        assert!(!options.list);
        assert!(Options::parse(&["--jobs".to_owned(), "0".to_owned()]).is_err());
        assert!(Options::parse(&["--seconds".to_owned(), "x".to_owned()]).is_err());
        assert!(Options::parse(&["--fast".to_owned()]).is_err());
    }

    #[test]
    fn progress_is_read_and_missing_coverage_is_an_error() {
        let log = "#2\tINITED cov: 7 ft: 8 corp: 1/1b\n#9\tNEW    cov: 12 ft: 20 corp: 5/9b\n\
                   stat::number_of_executed_units: 99\n";
        let want = Progress {
            runs: 99,
            edges_first: 7,
            edges_last: 12,
            corpus: 5,
        };
        assert_eq!(Progress::read(log), Ok(want));
        assert!(Progress::read("#2 INITED ft: 8 corp: 1/1b\n").is_err());
    }
}
