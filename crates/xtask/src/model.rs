//! `cargo x model`: the code of locks, waits and publication under a scheduler that takes turns
//! with its threads.

use std::process::Command;

use crate::step::{output, shell};
use crate::workspace::{cargo, root};

pub(crate) const HELP: &str = "
usage: cargo x model [--schedules N] [--seed N] [name]

Builds engine, memtable, cache, trie, transactions and raft log with `--cfg orogen_shuttle`, in target/model, and runs every model
(or those with the name in theirs, of which there must be one) under N schedules, 2,300 by default; small ones of the lock manager (`small`) under every
schedule with up to two preemptions. Each mistake that the code
can make on purpose in that build has to be found. A failure tells its schedule; the same seed and
number repeat it. Before that the trie's epochs run under loom (`--cfg orogen_loom`, target/loom), which tries each order of steps and
of memory. A line tells how many schedules, or interleavings, each model had. What panics on purpose says goes to target/model.txt, and is shown where the run fails.
ADR: docs/adr/2026-11-21-models-run-the-real-code.md.
";

/// Schedules of each model.
const SCHEDULES: &str = "2300";

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut schedules = SCHEDULES;
    let mut seed = "1";
    let mut name = "model::";
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut value = || {
            let value = rest.next();
            value.ok_or_else(|| format!("{arg} needs a number"))
        };
        match arg.as_str() {
            "--schedules" => schedules = value()?,
            "--seed" => seed = value()?,
            flag if flag.starts_with('-') => return Err(format!("unknown argument `{flag}`")),
            other => name = other,
        }
    }
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    shell(
        cargo()
            .args(["test", "--locked", "--lib", "--target-dir"])
            .arg(root().join("target/loom"))
            .args(["-p", "orogen-trie", "--", "--nocapture", "loom_model"])
            .env("RUSTFLAGS", format!("{flags} --cfg orogen_loom")),
    )?;
    let models = || {
        let mut command = cargo();
        command
            .args(["test", "--locked", "--lib", "--target-dir"])
            .arg(root().join("target/model"))
            .args(["-p", "orogen-engine", "-p", "orogen-memtable"])
            .args(["-p", "orogen-cache", "-p", "orogen-trie"])
            .args(["-p", "orogen-txn", "-p", "orogen-raftlog"])
            .args(["--", "--nocapture"])
            .arg(name)
            .env("RUSTFLAGS", format!("{flags} --cfg orogen_shuttle"))
            // Mistakes panic on purpose, by the dozen.
            .env("RUST_BACKTRACE", "0")
            .env("SHUTTLE_SILENCE_WARNINGS", "1")
            .env("OROGEN_SCHEDULES", schedules)
            .env("OROGEN_SEED", seed);
        command
    };
    // Tests of which none is run pass.
    if !has_model(&output(models().arg("--list"))?) {
        return Err(format!("no model has `{name}` in its name"));
    }
    shell_without_errors(&mut models())
}

/// Whether a list of tests has a model.
fn has_model(listed: &str) -> bool {
    let mut tests = listed.lines().filter(|line| line.ends_with(": test"));
    tests.any(|test| test.contains("model::"))
}

/// As [`shell`], but what goes to standard error is seen only after a failure.
fn shell_without_errors(command: &mut Command) -> Result<(), String> {
    let path = root().join("target/model.txt");
    let file = std::fs::OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}", path.display()))?;
    shell(command.stderr(file)).inspect_err(|_| {
        let told = std::fs::read(&path).unwrap_or_default();
        eprintln!("{}", String::from_utf8_lossy(&told));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_models_is_told_from_one_with_some() {
        let some = "lock_manager::model::two_readers: test\n\n1 test, 0 benchmarks\n";
        assert!(has_model(some));
        assert!(!has_model("0 tests, 0 benchmarks\n"));
        assert!(!has_model(
            "coding::tests::numbers: test\n1 test, 0 benchmarks\n"
        ));
    }
}
