//! `cargo x check`: all of the gate, in the order of what fails fastest.

use std::process::Command;

use crate::step::{Steps, shell};
use crate::workspace::{cargo, root};
use crate::{fuzz, model, tidy};

pub(crate) const HELP: &str = "
usage: cargo x check [--fast]

Runs, and goes on after a failure so that one run shows all of them:
  fmt     cargo fmt --check
  tidy    cargo x tidy
  clippy  every crate and target, warnings are errors
  docs    cargo doc, warnings are errors
  test    every test of the workspace but torture's long runs; those that draw or count tell how much: histories
          checked for isolation, transfers, crash points of two-phase commit
  lists   tests of engine, transactions and command, and all unit tests, with guided lists for memtables
  model   cargo x model: the code of locks and waits under 2,300 schedules each, and loom's; a line
          with the count of each
  torture crash points, random histories, threads: a line with the count of each, and all
          of them in target/reliability.json
  fuzz    every fuzz target for 8 seconds on a kept corpus, two at a time, before the tests
A table with the seconds of each step closes the run. `--fast` leaves out docs, fuzz, lists
and model.
Needs `cargo x setup` once.
";

/// Seconds for each fuzz target.
const FUZZ_SECONDS: u64 = 8;

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let fast = match args {
        [] => false,
        [flag] if flag == "--fast" => true,
        _ => return Err(format!("unknown arguments `{}`", args.join(" "))),
    };
    let mut steps = Steps::default();
    steps.run("fmt", || shell(cargo().args(["fmt", "--all", "--check"])));
    steps.run("tidy", || tidy::run(&[]));
    steps.run("clippy", || {
        for targets in [&["--all-targets"][..], &["--test", "torture"]] {
            shell(
                cargo()
                    .args(["clippy", "--workspace", "--locked"])
                    .args(targets)
                    .args(["--", "-D", "warnings"]),
            )?;
        }
        Ok(())
    });
    if !fast {
        steps.run("docs", || {
            shell(
                cargo()
                    .args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"])
                    // Heads of modules speak of what only the module sees.
                    .env(
                        "RUSTDOCFLAGS",
                        "-D warnings -A rustdoc::private_intra_doc_links",
                    ),
            )
        });
        steps.run("fuzz", || {
            fuzz::run(&["--seconds".into(), FUZZ_SECONDS.to_string()])
        });
    }
    steps.run("test", || shell(&mut test_of_workspace()));
    if !fast {
        steps.run("lists", || {
            shell(
                test_of_workspace()
                    .args(["--lib", "--bins"])
                    .args(["--test", "engine", "--test", "txn", "--test", "cli"])
                    .env("OROGEN_TEST_LISTS", "1"),
            )
        });
        steps.run("model", || model::run(&[]));
    }
    // Apart, so that its figures are seen.
    let mut torture = test_of_workspace();
    torture
        .args(["--test", "torture"])
        .args(["--", "--nocapture"])
        .env("OROGEN_RELIABILITY", root().join("target/reliability.json"));
    let mounted = try_mount();
    if mounted.is_err() {
        torture.env("OROGEN_TORTURE_SKIP_FULL_DISK", "1");
    }
    steps.run("torture", || shell(&mut torture));
    let finished = steps.finish();
    if let Err(why) = mounted {
        eprintln!("*** the full disk was not tried, for no file system can be mounted here: {why}");
    }
    finished
}

/// Tests by the names of their targets: cargo would choose other features of dependencies for some of the packages than for all, and
/// build all anew.
fn test_of_workspace() -> Command {
    let mut command = cargo();
    command.args(["test", "--workspace", "--locked"]);
    command
}

/// Mounts a file system as the test of the full disk does. Users without rights cannot, nor can some containers.
fn try_mount() -> Result<(), String> {
    let dir = std::env::temp_dir().join(format!("orogen-mount-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "orogen-mount"])
        .arg(&dir)
        .output();
    let mounted = match mount {
        Ok(out) if out.status.success() => Ok(()),
        Ok(out) => Err(String::from_utf8_lossy(&out.stderr).trim().to_owned()),
        Err(e) => Err(format!("mount: {e}")),
    };
    if mounted.is_ok() {
        let _ = Command::new("umount").arg(&dir).status();
    }
    let _ = std::fs::remove_dir(&dir);
    mounted
}
