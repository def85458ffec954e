//! The runs in the sizes of continuous integration.

#![expect(clippy::print_stdout, reason = "each run tells its figure")]

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use orogen_torture::report::{self, Figure};
use orogen_torture::{
    concurrent, crash, damage, determinism, fault, flips, full_disk, kill, metamorphic, open,
    repair, scripts, short_calls, stalls,
};

/// Names the file that gets all figures.
const JSON: &str = "OROGEN_RELIABILITY";

fn tell(figure: &Figure) {
    println!("{figure}");
    static TOLD: Mutex<Vec<Figure>> = Mutex::new(Vec::new());
    if let Ok(path) = std::env::var(JSON) {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        told.push(figure.clone());
        report::write_json(Path::new(&path), &told, &["gate".to_owned()])
            .expect("the file can be written");
    }
    figure.must_pass();
}

/// Crash points that a run must have had to count.
const CRASH_POINTS_MIN: u64 = 10_000;

#[test]
fn crash_points_of_all_scripts() {
    let mut points = 0;
    for script in scripts::all() {
        let figure = crash::run(&script, &crash::Config::default());
        tell(&figure);
        points += figure.count;
    }
    println!("crash points in all: {points}");
    assert!(points >= CRASH_POINTS_MIN, "scripts have become shorter");
}

/// Every fifth point of a few scripts that nobody wrote by hand.
#[test]
fn crash_points_of_random_scripts() {
    let config = crash::Config {
        stride: 5,
        full_stride: 25,
        recovery_stride: 80,
        ..crash::Config::default()
    };
    for seed in 0..8 {
        tell(&crash::run(&scripts::random(seed), &config));
    }
}

#[test]
fn short_calls() {
    tell(&short_calls::run(&short_calls::Config::default()));
}

#[test]
fn faults_of_all_scripts() {
    for script in scripts::all().iter().filter(|s| s.takes_faults()) {
        tell(&fault::run(script, &fault::Config::default()));
    }
}

#[test]
fn metamorphic() {
    tell(&metamorphic::run(&metamorphic::Config::default()));
}

#[test]
fn concurrent() {
    tell(&concurrent::run(&concurrent::Config::default()));
}

#[test]
fn damage() {
    for reference in 0..damage::TABLE_REFERENCES {
        tell(&damage::table_bits(&damage::Config {
            reference,
            ..damage::Config::default()
        }));
    }
    for way in damage::Way::ALL {
        tell(&damage::run(way, &damage::Config::default()));
    }
}

#[test]
fn damage_beside_holes() {
    for way in damage::WAYS_BESIDE_HOLES {
        tell(&damage::run(way, &damage::Config::beside_holes()));
    }
}

#[test]
fn stalls() {
    let config = stalls::Config {
        seconds: 30.0,
        ..stalls::Config::default()
    };
    tell(&stalls::run(&config));
}

#[test]
fn repaired_directories() {
    let config = repair::Config::default();
    tell(&repair::healthy(&config));
    tell(&repair::damaged(&config));
    tell(&repair::crashed(&config));
}

#[test]
fn flipped_memory() {
    for place in flips::Place::ALL {
        tell(&flips::run(place, &flips::Config::default()));
    }
}

#[test]
fn tables_built_twice() {
    tell(&determinism::run(&determinism::Config::default()));
}

#[test]
fn full_disk() {
    for mapped in [false, true] {
        let config = full_disk::Config {
            cycles: 25,
            mapped,
            ..full_disk::Config::default()
        };
        match full_disk::run(&config) {
            Ok(figure) => tell(&figure),
            Err(why) => println!("skipped: {why}"),
        }
    }
}

#[test]
fn killed_processes() {
    tell(&kill::run(&kill::Config {
        program: env!("CARGO_BIN_EXE_orogen-torture").into(),
        kills: 150,
        seed: 1,
    }));
}

/// In a process of its own, whose memory nothing else takes.
#[test]
fn memory() {
    let out = std::process::Command::new(env!("CARGO_BIN_EXE_orogen-torture"))
        .arg("memory")
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&out.stdout);
    println!("{text}");
    assert!(out.status.success(), "{text}");
}

#[test]
fn who_does_not_listen_to_the_end_does_no_harm() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_orogen-torture"));
    let command = command.args(["all", "--deep", "--list"]);
    let mut listed = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it is started");
    drop(listed.stdout.take());
    assert!(listed.wait().expect("it ends").success());
}

#[test]
fn many_tables_and_a_long_log_open_whole() {
    let config = open::Config {
        tables: 300,
        log_mib: 24,
    };
    for figure in open::run(&config) {
        tell(&figure);
    }
}
