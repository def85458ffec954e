//! Against engines of `peers/`: runs the plan on them in turn.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::programs::{self, OROGEN};
use super::{Options, plan, report};

/// Defaults of sizes: the data do not fit the block cache and do fit the OS cache.
const NUM_DEFAULT: u64 = 10_000_000;
const READS_DEFAULT: u64 = 1_000_000;

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
    let mut engines = vec![&OROGEN];
    let others = options.against.iter();
    engines.extend(others.filter_map(|name| programs::by_name(name)));
    for engine in &engines {
        engine.build()?;
    }
    let (num, reads) = (
        options.num.unwrap_or(NUM_DEFAULT),
        options.reads.unwrap_or(READS_DEFAULT),
    );
    let versions: BTreeMap<&str, String> = engines.iter().map(|e| (e.name, e.version())).collect();
    let names: Vec<&str> = engines.iter().map(|e| e.name).collect();
    let db = options.dir.join("db");
    let chains = plan::chains(&options.only);
    let mut samples = Vec::new();
    for pair in 0..options.pairs {
        for chain in &chains {
            for turn in 0..engines.len() {
                let engine = engines[(pair + turn) % engines.len()];
                programs::fresh(&db)?;
                for step in chain {
                    let mut command = programs::command(engine, &db, &step.phases, num, reads);
                    let told = programs::listen(&mut command, step.phases.len(), step.killed)?;
                    for figures in told {
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
