//! Random calls under random options, each answer compared with a map's.
//!
//! One number decides everything that is called and with what; answers never do, so a seed
//! replays the same calls however the engine's threads run. At every reopen new options are drawn
//! for all that may change.
//!
//! What is checked: every `get`, `multi_get`, cursor step (both ways, bounds, prefix mode, over
//! flushes and compactions that happen meanwhile), every snapshot until it is released, the
//! whole content after a reopen, a crash of the process, a power cut after a sync, and in every
//! checkpoint, restored backup and repaired checkpoint; that the logs lead up to the newest write;
//! and that calls which must be refused are.

mod cursor;
mod setup;
mod family;
mod world;
mod copies;
mod actions;

use std::path::PathBuf;

use crate::content;
use crate::guard::{Guard, Outcome, timed};
use crate::report::{Failure, Figure};
use world::World;

/// What must hold, in a few words.
const RULE: &str = "equal to a map under any options, after crashes too";

/// What is tried.
#[derive(Clone, Debug)]
pub struct Config {
    /// Threads.
    pub threads: usize,
    /// The first seed.
    pub seed: u64,
    /// How many seeds.
    pub seeds: u64,
    /// Calls of each.
    pub ops: u64,
    /// How often each: background threads run otherwise each time.
    pub repeat: u64,
    /// Where to write the calls of a seed, of the last one if there are several.
    pub trace: Option<PathBuf>,
    /// Where to put the disk as it was before the open that failed, or the last one.
    pub keep: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: crate::guard::default_threads(),
            seed: 1,
            seeds: 200,
            ops: 2000,
            repeat: 1,
            trace: None,
            keep: None,
        }
    }
}

/// Runs all seeds.
#[must_use]
pub fn run(config: &Config) -> Figure {
    let repeat = |seed: u64| format!("metamorphic --seed {seed} --seeds 1 --ops {}", config.ops);
    let seed_of = |n: u64| config.seed + n % config.seeds.max(1);
    let ((passed, failures), seconds) = timed(|| {
        Guard::run(
            config.threads,
            0,
            1,
            |n| repeat(seed_of(n)),
            |n| {
                if n >= config.seeds * config.repeat {
                    return Outcome::NoMore;
                }
                let seed = seed_of(n);
                match play(seed, config) {
                    Ok(()) => Outcome::Passed,
                    Err(what) => Outcome::Failed(Failure {
                        what,
                        repeat: repeat(seed),
                    }),
                }
            },
        )
    });
    Figure {
        name: "metamorphic".to_owned(),
        rule: RULE,
        count: passed * config.ops,
        unit: "calls",
        seeds: passed,
        seconds,
        details: vec![("calls_per_second", (passed * config.ops) as f64 / seconds)],
        failures,
    }
}

fn play(seed: u64, config: &Config) -> Result<(), String> {
    let mut world = World::new(seed, config.trace.is_some())?;
    let mut result = Ok(());
    for n in 0..config.ops {
        let action = world.draw_action();
        world.note(|| format!("{n} {action:?}"));
        result = world
            .act(action)
            .map_err(|what| format!("call {n} ({action:?}): {what}"));
        if result.is_err() {
            break;
        }
    }
    if let (Some(path), Some(trace)) = (&config.trace, &world.trace) {
        // Without it the failure is still told.
        let _ = std::fs::write(path, trace);
    }
    if let (Err(_), Some(path)) = (&result, &config.keep) {
        content::keep(&world.before_open, path);
    }
    result?;
    world.finish().map_err(|what| format!("at the end: {what}"))
}
