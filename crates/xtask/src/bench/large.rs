//! `cargo x bench blob` and `cargo x bench gc`: large values, in their tree and in files beside it.
//!
//! Both are the same machine: [`candidates`](candidates::Candidate) run the steps of
//! [`cells`](plan::Cell) in turn, each on a directory of its own that is gone afterwards, and
//! [`tables`] make medians of what they told. They differ in what is compared, in what runs, and
//! in the tables.

mod options;
mod candidates;
mod plan;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::{programs, report};
use crate::step;
use candidates::Candidate;
use options::Options;
use plan::Cell;

/// Which of the two benches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bench {
    /// Loads, reads, updates and deletes; values apart against values in the tree.
    Blob,
    /// Updates only; ways of getting space back.
    Gc,
}

/// What a phase of a cell gave.
struct Sample {
    setting: &'static str,
    value_len: u64,
    candidate: &'static str,
    pair: usize,
    figures: Value,
}

impl Sample {
    fn phase(&self) -> &str {
        self.figures["phase"].as_str().unwrap_or_default()
    }

    fn as_json(&self) -> Value {
        let mut document = self.figures.clone();
        document["setting"] = json!(self.setting);
        document["candidate"] = json!(self.candidate);
        document["pair"] = json!(self.pair);
        document
    }
}

/// A candidate that was asked for and cannot do what the bench needs, and what it said.
struct LeftOut {
    candidate: &'static str,
    reason: String,
}

/// The code with which an engine's program ends that cannot do what is asked for: the driver's.
const UNSUPPORTED: i32 = 3;

pub(super) fn run(bench: Bench, args: &[String]) -> Result<(), String> {
    let options = options::parse(bench, args)?;
    let asked = candidates::chosen(bench, &options);
    let mut built: Vec<&str> = Vec::new();
    for candidate in &asked {
        if !built.contains(&candidate.engine.name) {
            candidate.engine.build()?;
            built.push(candidate.engine.name);
        }
    }
    let cells = plan::cells(bench, &options);
    let db = options.dir.join("db");
    let mut left_out = Vec::new();
    let mut candidates = Vec::new();
    for candidate in asked {
        match probe(candidate, &cells, &options, &db)? {
            None => candidates.push(candidate),
            Some(reason) => left_out.push(LeftOut {
                candidate: candidate.name,
                reason,
            }),
        }
    }
    for LeftOut { candidate, reason } in &left_out {
        println!("{candidate} is left out: {reason}");
    }
    if candidates.is_empty() {
        return Err("no candidate can do what is to be measured".to_owned());
    }
    let mut run = Run {
        bench,
        progress: Progress::new(plan::seconds(&cells, &candidates) * options.pairs as f64),
        options,
        candidates,
        left_out,
        samples: Vec::new(),
        memory_is_filled: true,
    };
    run.announce(&cells)?;
    let ran = run.pairs(&cells, &db);
    let _ = std::fs::remove_file(programs::filler(&run.options.dir));
    ran?;
    for table in run.tables() {
        print!("\n{}", table.text());
    }
    for LeftOut { candidate, reason } in &run.left_out {
        println!("\n{candidate} was left out: {reason}");
    }
    if !run.memory_is_filled {
        println!(
            "\nmemory was not filled: /proc/sys/vm/drop_caches needs root, and the directory files with holes"
        );
    }
    Ok(())
}

/// Asks a candidate to open a database under each setting; what it says if it cannot do that.
fn probe(
    candidate: &Candidate,
    cells: &[Cell],
    options: &Options,
    db: &Path,
) -> Result<Option<String>, String> {
    let mut probed = Vec::new();
    for cell in cells {
        if probed.contains(&cell.setting) {
            continue;
        }
        probed.push(cell.setting);
        programs::fresh(db)?;
        let mut command = command(candidate, cell, options, db, &["open"]);
        let line = step::line(&command);
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("`{line}`: {e}"))?;
        let _ = std::fs::remove_dir_all(db);
        let told = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.code() == Some(UNSUPPORTED) {
            return Ok(Some(told));
        }
        if !output.status.success() {
            return Err(format!("`{line}` ended with {}: {told}", output.status));
        }
    }
    Ok(None)
}

/// The process of some phases of a cell.
fn command(
    candidate: &Candidate,
    cell: &Cell,
    options: &Options,
    db: &Path,
    phases: &[&str],
) -> Command {
    let mut command = programs::command(candidate.engine, db, phases, cell.num, cell.reads);
    command.args(cell.arguments());
    command.args(candidate.arguments(options));
    command
}

/// How far it is, in seconds.
struct Progress {
    start: Instant,
    /// What all was estimated at.
    estimated: f64,
    /// What was finished was estimated at.
    done: f64,
    /// What it took.
    done_took: f64,
}

impl Progress {
    fn new(estimated: f64) -> Self {
        Self {
            start: Instant::now(),
            estimated,
            done: 0.0,
            done_took: 0.0,
        }
    }

    /// Something was finished that was estimated at so much.
    fn finished(&mut self, estimated: f64) {
        self.done += estimated;
        self.done_took = self.start.elapsed().as_secs_f64();
    }

    fn line(&self) -> String {
        self.line_after(self.start.elapsed().as_secs_f64())
    }

    /// The share that is done, and the time that the rest may take at the pace of what is.
    fn line_after(&self, seconds: f64) -> String {
        let pace = if self.done > 0.0 {
            self.done_took / self.done
        } else {
            1.0
        };
        let left = pace * (self.estimated - self.done) - (seconds - self.done_took);
        let percent = self.done / self.estimated * 100.0;
        format!("{percent:>3.0} %, {} left", plan::hours(left.max(0.0)))
    }
}

struct Run {
    bench: Bench,
    progress: Progress,
    options: Options,
    candidates: Vec<&'static Candidate>,
    left_out: Vec<LeftOut>,
    samples: Vec<Sample>,
    /// Every candidate began with free memory in one piece.
    memory_is_filled: bool,
}

impl Run {
    /// Says what will be run, how long it may take and what it needs, before it begins.
    fn announce(&self, cells: &[Cell]) -> Result<(), String> {
        let disk = plan::disk_bytes(cells, &self.candidates);
        let available = plan::available_bytes(&self.options.dir)?;
        println!(
            "cells: {}, candidates: {}, pairs: {}; about {}, at most {} of {} GiB of disk at a time",
            cells.len(),
            self.candidates.len(),
            self.options.pairs,
            plan::hours(self.progress.estimated),
            report::short(plan::gib(disk)),
            report::short(plan::gib(available)),
        );
        if disk > available {
            return Err(format!(
                "{} has too little space; see --gib and --dir",
                self.options.dir.display()
            ));
        }
        Ok(())
    }

    fn pairs(&mut self, cells: &[Cell], db: &Path) -> Result<(), String> {
        for pair in 0..self.options.pairs {
            for cell in cells {
                self.cell(cell, pair, db)?;
                self.write(pair)?;
            }
        }
        Ok(())
    }

    /// Runs a cell on all candidates, in the order of the pair.
    fn cell(&mut self, cell: &Cell, pair: usize, db: &Path) -> Result<(), String> {
        for turn in 0..self.candidates.len() {
            let candidate = self.candidates[(pair + turn) % self.candidates.len()];
            programs::fresh(db)?;
            self.memory_is_filled &= programs::fill_memory(&self.options.dir);
            for phases in &cell.steps {
                let mut command = command(candidate, cell, &self.options, db, phases);
                for figures in programs::listen(&mut command, phases.len(), false)? {
                    let sample = Sample {
                        setting: cell.setting.name,
                        value_len: cell.value_len,
                        candidate: candidate.name,
                        pair,
                        figures,
                    };
                    let rate = sample.figures["ops_per_second"].as_f64();
                    eprintln!(
                        "{}  pair {} of {}  {:<6} {:>7} {:<12} {:<9} {:>9} ops/s",
                        self.progress.line(),
                        pair + 1,
                        self.options.pairs,
                        sample.setting,
                        plan::size(sample.value_len),
                        sample.candidate,
                        sample.phase(),
                        report::short(rate.unwrap_or(f64::NAN)),
                    );
                    self.samples.push(sample);
                }
            }
            self.progress.finished(cell.seconds(candidate));
            std::fs::remove_dir_all(db).map_err(|e| format!("{}: {e}", db.display()))?;
        }
        Ok(())
    }

    fn tables(&self) -> Vec<tables::Table> {
        match self.bench {
            Bench::Blob => tables::blob(&self.samples),
            Bench::Gc => tables::gc(&self.samples),
        }
    }

    /// Writes what there is so far to the files that were asked for.
    fn write(&self, pair: usize) -> Result<(), String> {
        let put = |path: &Path, text: String| {
            std::fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
        };
        if let Some(path) = &self.options.json {
            let versions: BTreeMap<&str, String> = self
                .candidates
                .iter()
                .map(|c| (c.engine.name, c.engine.version()))
                .collect();
            let left_out: BTreeMap<&str, &str> = self
                .left_out
                .iter()
                .map(|l| (l.candidate, l.reason.as_str()))
                .collect();
            let document = json!({
                "bench": match self.bench { Bench::Blob => "blob", Bench::Gc => "gc" },
                "options": self.options.as_json(),
                "pairs": pair + 1,
                "versions": versions,
                "left_out": left_out,
                "memory_is_filled": self.memory_is_filled,
                "cells": tables::cells(&self.samples),
                "samples": self.samples.iter().map(Sample::as_json).collect::<Vec<_>>(),
            });
            put(path, format!("{document:#}\n"))?;
        }
        if let Some(path) = &self.options.markdown {
            let tables: Vec<String> = self.tables().iter().map(tables::Table::markdown).collect();
            put(path, tables.join("\n"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_follows_from_what_was_done() {
        let mut progress = Progress::new(1000.0);
        assert_eq!(progress.line_after(100.0), "  0 %, 15 min left");
        progress.finished(500.0);
        // Half of it took six times as long as was thought.
        progress.done_took = 3000.0;
        assert_eq!(progress.line_after(3000.0), " 50 %, 50 min left");
        assert_eq!(progress.line_after(3060.0), " 50 %, 49 min left");
        assert_eq!(progress.line_after(9999.0), " 50 %, 0 min left");
    }
}
