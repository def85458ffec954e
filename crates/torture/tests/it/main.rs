//! The runs in the sizes of continuous integration.

#![expect(clippy::print_stdout, reason = "each run tells its figure")]

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use orogen_torture::report::{Figure, Kept};
use orogen_torture::{
    allocations, concurrent, crash, damage, determinism, fault, flips, full_disk, guard, kill,
    metamorphic, open, repair, scripts, short_calls, stalls,
};

/// Names the file that gets all figures.
const JSON: &str = "OROGEN_RELIABILITY";

/// Allows that the full disk is left out where no file system can be mounted.
const SKIP_FULL_DISK: &str = "OROGEN_TORTURE_SKIP_FULL_DISK";

/// Adds to the file of all figures.
fn keep(add: impl FnOnce(&mut Kept)) {
    static TOLD: Mutex<Option<Kept>> = Mutex::new(None);
    if let Ok(path) = std::env::var(JSON) {
        let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.get_or_insert_default();
        add(told);
        told.write(Path::new(&path), &["gate".to_owned()])
            .expect("the file can be written");
    }
}

fn tell(figure: &Figure) {
    println!("{figure}");
    keep(|told| told.add(None, figure));
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
            Err(why) => {
                let name = if mapped {
                    "full-disk/mapped"
                } else {
                    "full-disk"
                };
                println!("{name} is skipped: {why}");
                keep(|told| told.add_skipped(None, name, &why));
                let allowed = std::env::var_os(SKIP_FULL_DISK).is_some();
                assert!(allowed, "{why}; {SKIP_FULL_DISK}=1 leaves it out");
            }
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

/// Runs the program, which must end with `code`; gives what it said.
#[track_caller]
fn ends_with(code: i32, path: Option<&str>, args: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_orogen-torture"));
    command.args(args);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let out = command.output().expect("the program runs");
    let text = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    assert_eq!(out.status.code(), Some(code), "{args:?}: {text}");
    text
}

#[test]
fn who_tries_nothing_does_not_pass() {
    let none = ends_with(
        2,
        None,
        &["crash", "--script", "puts", "--point", "99999999"],
    );
    assert!(none.contains("nothing was tried"), "{none}");
    ends_with(2, None, &["open", "--tables", "0", "--log-mib", "0"]);
    let typo = ends_with(2, None, &["repair", "--only", "typo"]);
    assert!(typo.contains("healthy, damaged, crashed"), "{typo}");
    // Without a program that mounts.
    let full = ends_with(2, Some(""), &["full-disk", "--cycles", "1"]);
    assert!(
        full.contains("full-disk is skipped: there is no `mount`"),
        "{full}"
    );
}

#[test]
fn parts_that_are_skipped_are_told_of_behind_the_others() {
    let dir = orogen_testkit::TempDir::new("torture-skipped");
    let path = dir.path().join("all.json");
    let file = path.to_str().expect("it is text");
    let parts = ["full-disk/3", "fault/puts/eintr"];
    let mut args = vec!["all", "--deep", "--json", file];
    args.extend(parts.iter().flat_map(|part| ["--only", part]));
    let said = ends_with(2, Some(""), &args);
    assert!(said.ends_with("skipped: deep/full-disk/3\n"), "{said}");
    let text = std::fs::read_to_string(&path).expect("it was written");
    let told: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    assert_eq!(told["passed"], false);
    let [skipped, ran] = [&told["figures"][0], &told["figures"][1]];
    assert_eq!(
        (&skipped["passed"], &ran["passed"]),
        (&false.into(), &true.into())
    );
    assert!(
        skipped["skipped"]
            .as_str()
            .is_some_and(|why| why.contains("mount")),
        "{text}"
    );
    assert!(ran["skipped"].is_null() && ran["count"] != 0, "{text}");
}

#[test]
fn numbers_with_which_nothing_would_end_are_refused() {
    for line in [
        "--threads 0 determinism --jobs 1",
        "crash --script puts --stride 0",
        "crash --script puts --repeat 0",
        "fault --script puts --stride 0",
        "fault --script puts --rare-stride 0",
        "damage --stride 0",
        "metamorphic --seeds 0",
        "concurrent --seeds 0",
        "short-calls --seeds 0",
        "kill --kills 0",
    ] {
        let args: Vec<&str> = line.split(' ').collect();
        let told = ends_with(2, None, &args);
        assert!(told.contains("invalid value '0'"), "{line}: {told}");
    }
}

/// A fifth of what `all` tries: the gate's other tests want the time.
#[test]
fn refused_allocations() {
    tell(&allocations::run(&allocations::Config {
        program: env!("CARGO_BIN_EXE_orogen-torture").into(),
        threads: guard::default_threads(),
        points: 400,
        seed: 1,
        nth: None,
        trace: false,
    }));
}
