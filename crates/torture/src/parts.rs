//! All runs as a list of parts, in the size of the gate or in that for a night.
//!
//! A part is what is lost when a long run is stopped: minutes at most on one processor. Its name
//! tells what and how much it tries, so a result that was kept under that name is the result of
//! that part. The parts that tell most in the time they take come first.

use std::path::PathBuf;

use crate::report::Figure;
use crate::{
    allocations, concurrent, crash, damage, determinism, fault, flips, full_disk, kill,
    metamorphic, repair, scripts, short_calls,
};

/// How much is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Minutes.
    Gate,
    /// For a night or several: every bit of ten directories, every call of every script, all
    /// images of each point, scripts and histories drawn from thousands of seeds.
    Deep,
}

/// What parts need of the machine.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Threads for trials.
    pub threads: usize,
    /// This program, as a child that is killed.
    pub program: PathBuf,
}

type Run = Box<dyn Fn(&Machine) -> Result<Figure, String>>;

/// A run that can be done and kept by itself.
pub struct Part {
    /// As `deep/crash-random/7`.
    pub name: String,
    run: Run,
}

impl Part {
    fn new(
        size: Size,
        name: &str,
        run: impl Fn(&Machine) -> Result<Figure, String> + 'static,
    ) -> Self {
        let size = match size {
            Size::Gate => "gate",
            Size::Deep => "deep",
        };
        Self {
            name: format!("{size}/{name}"),
            run: Box::new(run),
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it cannot be tried on this machine.
    pub fn run(&self, machine: &Machine) -> Result<Figure, String> {
        (self.run)(machine)
    }

    /// True if it is `name`, or one of the parts of that name.
    #[must_use]
    pub fn is_of(&self, name: &str) -> bool {
        let short = self.name.split_once('/').map_or("", |(_, short)| short);
        [self.name.as_str(), short].into_iter().any(|own| {
            own.strip_prefix(name)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

/// Random scripts of a part, and how many parts there are of them. A script has some 350 points.
const RANDOM_SCRIPTS: (u64, u64) = (5, 120);
/// All images are tried at each of so many points of a random script.
const RANDOM_FULL_STRIDE: u64 = 3;
/// Directories whose every bit is flipped, and pieces of each.
const REFERENCES: (u64, u64) = (10, 16);
/// Random cases of each way and reference directory, and pieces of them.
const RANDOM_CASES: (usize, u64) = (50_000, 4);
/// Seeds of a part, and parts, of random histories.
const HISTORIES: (u64, u64) = (250, 200);
/// Directories of a part, and parts.
const HEALTHY: (u64, u64) = (2_000, 10);
const DAMAGED: (u64, u64) = (5_000, 40);
/// Flips in each place in memory of a part, and parts.
const FLIPS: (u64, u64) = (12_500, 20);
/// Jobs of a part, and parts.
const JOBS: (u64, u64) = (500, 20);
/// Kills of a part, and parts.
const KILLS: (u64, u64) = (200, 50);
/// Points of a part where memory is refused, and parts.
const ALLOCATIONS: (u64, u64) = (2_000, 10);
/// Full disks of a part, and parts, by calls and as many through memory.
const FULL_DISKS: (u64, u64) = (50, 10);
/// Seeds of a part, and parts, of scripts over calls that are cut short.
const SHORT_CALLS: (u64, u64) = (20, 20);

/// All parts of a size.
#[must_use]
pub fn all(size: Size) -> Vec<Part> {
    match size {
        Size::Gate => gate(),
        Size::Deep => deep(),
    }
}

fn gate() -> Vec<Part> {
    let part =
        |name: &str, run: fn(&Machine) -> Figure| Part::new(Size::Gate, name, move |m| Ok(run(m)));
    let mut parts = Vec::new();
    for script in scripts::all() {
        let faulty = script.takes_faults().then(|| script.clone());
        parts.push(Part::new(
            Size::Gate,
            &format!("crash/{}", script.name),
            move |m| {
                let threads = m.threads;
                Ok(crash::run(
                    &script,
                    &crash::Config {
                        threads,
                        ..crash::Config::default()
                    },
                ))
            },
        ));
        if let Some(script) = faulty {
            parts.push(Part::new(
                Size::Gate,
                &format!("fault/{}", script.name),
                move |m| {
                    let threads = m.threads;
                    Ok(fault::run(
                        &script,
                        &fault::Config {
                            threads,
                            ..fault::Config::default()
                        },
                    ))
                },
            ));
        }
    }
    for way in damage::Way::ALL {
        parts.push(Part::new(
            Size::Gate,
            &format!("damage/{}", way.name()),
            move |m| {
                let threads = m.threads;
                Ok(damage::run(
                    way,
                    &damage::Config {
                        threads,
                        ..damage::Config::default()
                    },
                ))
            },
        ));
    }
    for way in damage::WAYS_BESIDE_HOLES {
        parts.push(Part::new(
            Size::Gate,
            &format!("damage/holes/{}", way.name()),
            move |m| {
                let threads = m.threads;
                Ok(damage::run(
                    way,
                    &damage::Config {
                        threads,
                        ..damage::Config::beside_holes()
                    },
                ))
            },
        ));
    }
    for reference in 0..damage::TABLE_REFERENCES {
        parts.push(Part::new(
            Size::Gate,
            &format!("damage/table-bits/{reference}"),
            move |m| {
                Ok(damage::table_bits(&damage::Config {
                    threads: m.threads,
                    reference,
                    ..damage::Config::default()
                }))
            },
        ));
    }
    for place in flips::Place::ALL {
        parts.push(Part::new(
            Size::Gate,
            &format!("flips/{place:?}").to_lowercase(),
            move |m| {
                let threads = m.threads;
                Ok(flips::run(
                    place,
                    &flips::Config {
                        threads,
                        ..flips::Config::default()
                    },
                ))
            },
        ));
    }
    parts.extend([
        part("metamorphic", |m| {
            metamorphic::run(&metamorphic::Config {
                threads: m.threads,
                ..metamorphic::Config::default()
            })
        }),
        part("concurrent", |_| {
            concurrent::run(&concurrent::Config::default())
        }),
        part("repair/healthy", |m| repair::healthy(&repairs(m))),
        part("repair/damaged", |m| repair::damaged(&repairs(m))),
        part("repair/crashed", |m| repair::crashed(&repairs(m))),
        part("determinism", |m| {
            determinism::run(&determinism::Config {
                threads: m.threads,
                ..determinism::Config::default()
            })
        }),
        part("short-calls", |m| {
            short_calls::run(&short_calls::Config {
                threads: m.threads,
                ..short_calls::Config::default()
            })
        }),
        part("allocations", |m| allocations::run(&points(m, 1))),
        part("kill", |m| {
            kill::run(&kill::Config {
                program: m.program.clone(),
                kills: 150,
                seed: 1,
            })
        }),
    ]);
    parts
}

fn points(machine: &Machine, seed: u64) -> allocations::Config {
    allocations::Config {
        program: machine.program.clone(),
        threads: machine.threads,
        points: ALLOCATIONS.0,
        seed,
        nth: None,
        trace: false,
    }
}

fn repairs(machine: &Machine) -> repair::Config {
    repair::Config {
        threads: machine.threads,
        ..repair::Config::default()
    }
}

/// Parts number 0 to `count`.
fn numbered(
    parts: &mut Vec<Part>,
    name: &str,
    count: u64,
    run: impl Fn(&Machine, u64) -> Result<Figure, String> + Clone + 'static,
) {
    for n in 0..count {
        let run = run.clone();
        parts.push(Part::new(Size::Deep, &format!("{name}/{n}"), move |m| {
            run(m, n)
        }));
    }
}

fn deep() -> Vec<Part> {
    let mut parts = Vec::new();
    let images = |m: &Machine, full_stride, recovery_stride| crash::Config {
        threads: m.threads,
        full_stride,
        recovery_stride,
        ..crash::Config::default()
    };
    let (each, count) = RANDOM_SCRIPTS;
    numbered(&mut parts, "crash-random", count, move |m, n| {
        let seeds = n * each..(n + 1) * each;
        let figures = seeds.map(|seed| {
            let config = images(m, RANDOM_FULL_STRIDE, 16);
            crash::run(&scripts::random(seed), &config)
        });
        Ok(Figure::sum("crash/random", figures.collect()))
    });
    for script in scripts::all() {
        let name = format!("crash/{}", script.name);
        parts.push(Part::new(Size::Deep, &name, move |m| {
            Ok(crash::run(&script, &images(m, 1, 4)))
        }));
    }
    for script in scripts::all().into_iter().filter(|s| s.takes_faults()) {
        for cause in fault::Cause::ALL {
            let (script, name) = (
                script.clone(),
                format!("fault/{}/{}", script.name, cause.name()),
            );
            parts.push(Part::new(Size::Deep, &name, move |m| {
                let mut config = fault::Config {
                    threads: m.threads,
                    rare_stride: 1,
                    every: true,
                    ..fault::Config::default()
                };
                config.variants.retain(|v| v.cause == cause);
                Ok(fault::run(&script, &config))
            }));
        }
    }
    deep_tables(&mut parts);
    deep_damage(&mut parts);
    let (seeds, count) = HISTORIES;
    numbered(&mut parts, "metamorphic", count, move |m, n| {
        Ok(metamorphic::run(&metamorphic::Config {
            threads: m.threads,
            seed: 1 + n * seeds,
            seeds,
            ..metamorphic::Config::default()
        }))
    });
    deep_repair(&mut parts);
    for place in flips::Place::ALL {
        let (flips, count) = FLIPS;
        let name = format!("flips/{place:?}").to_lowercase();
        numbered(&mut parts, &name, count, move |m, n| {
            Ok(flips::run(
                place,
                &flips::Config {
                    threads: m.threads,
                    flips,
                    seed: 1 + n * flips,
                    ..flips::Config::default()
                },
            ))
        });
    }
    let (jobs, count) = JOBS;
    numbered(&mut parts, "determinism", count, move |m, n| {
        Ok(determinism::run(&determinism::Config {
            threads: m.threads,
            seed: 1 + n * jobs,
            jobs,
        }))
    });
    let (seeds, count) = SHORT_CALLS;
    numbered(&mut parts, "short-calls", count, move |m, n| {
        Ok(short_calls::run(&short_calls::Config {
            threads: m.threads,
            seed: 1 + n * seeds,
            seeds,
        }))
    });
    let (kills, count) = KILLS;
    numbered(&mut parts, "kill", count, move |m, n| {
        Ok(kill::run(&kill::Config {
            program: m.program.clone(),
            kills,
            seed: 1 + n,
        }))
    });
    numbered(&mut parts, "allocations", ALLOCATIONS.1, |m, n| {
        // A seed has more than one point.
        Ok(allocations::run(&points(m, 1 + n * ALLOCATIONS.0)))
    });
    for mapped in [false, true] {
        let (cycles, count) = FULL_DISKS;
        let name = if mapped {
            "full-disk-mapped"
        } else {
            "full-disk"
        };
        numbered(&mut parts, name, count, move |_, n| {
            full_disk::run(&full_disk::Config {
                cycles,
                seed: 1 + n,
                mapped,
            })
        });
    }
    numbered(&mut parts, "concurrent", 10, |_, n| {
        Ok(concurrent::run(&concurrent::Config {
            seed: 1 + n * 2,
            seconds: 30.0,
            ..concurrent::Config::default()
        }))
    });
    parts
}

fn deep_damage(parts: &mut Vec<Part>) {
    let (references, pieces) = REFERENCES;
    let (random, random_pieces) = RANDOM_CASES;
    for way in damage::Way::ALL {
        let (references, pieces) = match way {
            damage::Way::Flip => (references, pieces),
            damage::Way::Bits | damage::Way::Burst => (references, random_pieces),
            _ => (references, 1),
        };
        for reference in 0..references {
            let name = format!("damage/{}/{reference}", way.name());
            numbered(parts, &name, pieces, move |m, n| {
                Ok(damage::run(
                    way,
                    &damage::Config {
                        threads: m.threads,
                        stride: 1,
                        random,
                        case: None,
                        reference,
                        holes: false,
                        piece: (n, pieces),
                    },
                ))
            });
        }
    }
    for way in damage::WAYS_BESIDE_HOLES {
        let name = format!("damage/holes/{}", way.name());
        numbered(parts, &name, pieces, move |m, n| {
            Ok(damage::run(
                way,
                &damage::Config {
                    threads: m.threads,
                    stride: 1,
                    random,
                    piece: (n, pieces),
                    ..damage::Config::beside_holes()
                },
            ))
        });
    }
}

/// The bits of all tables of each reference directory.
fn deep_tables(parts: &mut Vec<Part>) {
    numbered(parts, "damage/table-bits", REFERENCES.0, |m, reference| {
        Ok(damage::table_bits(&damage::Config {
            threads: m.threads,
            reference,
            ..damage::Config::default()
        }))
    });
}

fn deep_repair(parts: &mut Vec<Part>) {
    let seeded = |m: &Machine, seed| repair::Config { seed, ..repairs(m) };
    let (healthy, count) = HEALTHY;
    numbered(parts, "repair/healthy", count, move |m, n| {
        Ok(repair::healthy(&repair::Config {
            healthy,
            ..seeded(m, 1 + n * healthy)
        }))
    });
    let (damaged, count) = DAMAGED;
    numbered(parts, "repair/damaged", count, move |m, n| {
        Ok(repair::damaged(&repair::Config {
            damaged,
            ..seeded(m, 1 + n * damaged)
        }))
    });
    parts.push(Part::new(Size::Deep, "repair/crashed", |m| {
        Ok(repair::crashed(&repairs(m)))
    }));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_have_names_of_their_own_and_are_found_by_them() {
        for size in [Size::Gate, Size::Deep] {
            let parts = all(size);
            let names: BTreeSet<&str> = parts.iter().map(|p| p.name.as_str()).collect();
            assert_eq!(names.len(), parts.len());
        }
        let parts = all(Size::Deep);
        let count = |name: &str| parts.iter().filter(|p| p.is_of(name)).count();
        assert_eq!(count("crash-random"), 120);
        assert_eq!(count("deep/crash-random"), 120);
        assert_eq!(count("crash-random/7"), 1);
        assert_eq!(count("crash"), scripts::all().len());
        assert_eq!(count("damage/flip/3"), 16);
        assert_eq!(count("cras"), 0);
    }
}
