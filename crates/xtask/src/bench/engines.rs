//! Against engines of `peers/`: builds their programs and runs the plan on them in turn.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::plan::{self, Step};
use super::{Options, report};
use crate::{step, workspace};

/// Defaults of sizes: the data do not fit the block cache and do fit the OS cache.
const NUM_DEFAULT: u64 = 10_000_000;
const READS_DEFAULT: u64 = 1_000_000;

/// An engine with a program in `peers/`.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) name: &'static str,
    /// Where its version is told, and as what.
    version: fn(&Path) -> Option<String>,
    is_go: bool,
}

const OROGEN: Engine = Engine {
    name: "orogen",
    version: |_| Some(env!("CARGO_PKG_VERSION").to_owned()),
    is_go: false,
};

const OTHERS: [Engine; 3] = [
    Engine {
        name: "rocksdb",
        // The crate's version and, behind the plus, RocksDB's.
        version: |peers| {
            let version = locked_version(peers, "librocksdb-sys")?;
            Some(version.split_once('+')?.1.to_owned())
        },
        is_go: false,
    },
    Engine {
        name: "fjall",
        version: |peers| locked_version(peers, "fjall"),
        is_go: false,
    },
    Engine {
        name: "pebble",
        version: |peers| {
            let text = std::fs::read_to_string(peers.join("pebble/go.mod")).ok()?;
            let mut words = text.split_whitespace();
            words.find(|w| w.ends_with("cockroachdb/pebble/v2"))?;
            Some(words.next()?.to_owned())
        },
        is_go: true,
    },
];

/// The engine that we are compared with under this name.
pub(super) fn by_name(name: &str) -> Option<&'static Engine> {
    OTHERS.iter().find(|e| e.name == name)
}

/// The version of a crate in the lock file of `peers/`.
fn locked_version(peers: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(peers.join("Cargo.lock")).ok()?;
    let mut lines = text.lines();
    lines.find(|line| *line == format!("name = \"{name}\""))?;
    let version = lines.next()?.strip_prefix("version = ")?;
    Some(version.trim_matches('"').to_owned())
}

impl Engine {
    fn program(&self, peers: &Path) -> PathBuf {
        let name = format!("peers-{}", self.name);
        peers.join("target").join("release").join(name)
    }

    fn build(&self, peers: &Path) -> Result<(), String> {
        eprintln!("building {}", self.name);
        let mut command;
        if self.is_go {
            command = Command::new("go");
            command
                .args(["build", "-trimpath", "-o"])
                .arg(self.program(peers))
                .arg(".")
                .current_dir(peers.join("pebble"));
        } else {
            command = Command::new("cargo");
            command
                .args(["build", "--release", "--locked", "--package"])
                .arg(format!("peers-{}", self.name))
                .current_dir(peers);
        }
        step::shell(&mut command)
    }
}

/// A result of a phase: the document that the engine's program printed.
pub(super) struct Sample {
    pub(super) engine: &'static str,
    pub(super) pair: usize,
    pub(super) figures: Value,
}

impl Sample {
    pub(super) fn phase(&self) -> &str {
        self.figures["phase"].as_str().unwrap_or_default()
    }
}

pub(super) fn run(options: &Options) -> Result<(), String> {
    let peers = workspace::root().join("peers");
    let mut engines = vec![&OROGEN];
    engines.extend(options.against.iter().filter_map(|name| by_name(name)));
    for engine in &engines {
        engine.build(&peers)?;
    }
    let (num, reads) = (
        options.num.unwrap_or(NUM_DEFAULT),
        options.reads.unwrap_or(READS_DEFAULT),
    );
    let versions: BTreeMap<&str, String> = engines
        .iter()
        .map(|e| (e.name, (e.version)(&peers).unwrap_or_default()))
        .collect();
    let names: Vec<&str> = engines.iter().map(|e| e.name).collect();
    let db = options.dir.join("db");
    let chains = plan::chains(&options.only);
    let mut samples = Vec::new();
    for pair in 0..options.pairs {
        for chain in &chains {
            for turn in 0..engines.len() {
                let engine = engines[(pair + turn) % engines.len()];
                fresh(&db)?;
                for step in chain {
                    let program = engine.program(&peers);
                    for figures in run_step(&program, step, &db, num, reads)? {
                        let rate = figures["ops_per_second"].as_f64().unwrap_or_default();
                        eprintln!(
                            "pair {} of {}  {:<8} {:<17} {:>12} ops/s",
                            pair + 1,
                            options.pairs,
                            engine.name,
                            figures["phase"].as_str().unwrap_or_default(),
                            report::short(rate),
                        );
                        samples.push(Sample {
                            engine: engine.name,
                            pair,
                            figures,
                        });
                    }
                }
            }
        }
        let _ = std::fs::remove_dir_all(&db);
        if let Some(path) = &options.json {
            let document = json!({
                "num": num,
                "reads": reads,
                "pairs": pair + 1,
                "versions": versions,
                "cells": report::cells(&samples, &names),
                "samples": samples.iter().map(as_json).collect::<Vec<_>>(),
            });
            std::fs::write(path, format!("{document:#}\n"))
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
    }
    println!(
        "{num} keys, {reads} reads, {} pairs; {}",
        options.pairs,
        versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"))
            .collect::<Vec<_>>()
            .join(", ")
    );
    print!("{}", report::text(&samples, &names));
    Ok(())
}

fn as_json(sample: &Sample) -> Value {
    let mut document = sample.figures.clone();
    document["pair"] = json!(sample.pair);
    document
}

/// Makes an empty directory; what is left of an earlier run must not count.
fn fresh(db: &Path) -> Result<(), String> {
    let _ = std::fs::remove_dir_all(db);
    std::fs::create_dir_all(db).map_err(|e| format!("{}: {e}", db.display()))
}

/// Runs a process to its end, or to where it is killed; gives what it told of each phase.
fn run_step(
    program: &Path,
    step: &Step,
    db: &Path,
    num: u64,
    reads: u64,
) -> Result<Vec<Value>, String> {
    let failed = |what: &dyn std::fmt::Display| {
        format!("{} {}: {what}", program.display(), step.phases.join(","))
    };
    let mut child = Command::new(program)
        .arg("--dir")
        .arg(db)
        .args(["--phases", &step.phases.join(",")])
        .args(["--num", &num.to_string(), "--reads", &reads.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(&e))?;
    let stdout = child.stdout.take().expect("it was asked for");
    let mut told = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.map_err(|e| failed(&e))?;
        let figures: Value = serde_json::from_str(&line).map_err(|e| failed(&e))?;
        told.push(figures);
        if step.killed {
            child.kill().map_err(|e| failed(&e))?;
        }
    }
    let status = child.wait().map_err(|e| failed(&e))?;
    if step.killed && told.len() == 1 {
        return Ok(Vec::new());
    }
    if !status.success() || told.len() != step.phases.len() {
        return Err(failed(&status));
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_version() {
        let peers = workspace::root().join("peers");
        for engine in OTHERS.iter().chain([&OROGEN]) {
            let version = (engine.version)(&peers).unwrap_or_default();
            assert!(version.contains('.'), "{} {version}", engine.name);
        }
    }
}
