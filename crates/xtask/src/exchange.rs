//! `cargo x exchange`: directories go to and fro between Orogen and the newest RocksDB.
//!
//! The gate exchanges with the releases that a package brings (`crates/compat`); this one is built
//! from source in `peers/`, which takes long, so it is a command of its own.

use std::path::Path;
use std::process::Command;

use crate::step::{output, shell};
use crate::workspace::{cargo, root};

pub(crate) const HELP: &str = "
usage: cargo x exchange [name]

Builds RocksDB of `peers/` (half an hour of one core the first time) and the orogen command. For
every option set of RocksDB (or those with the name in theirs), in turn and three times: RocksDB
writes a directory of two families; Orogen verifies it and reads what RocksDB reads; Orogen writes,
deletes and compacts all of it; RocksDB reads what Orogen reads, both ways and by key.
";

/// The families that RocksDB's side makes.
const FAMILIES: [&str; 2] = ["default", "second"];
/// Turns of each option set.
const TURNS: u64 = 3;

struct Programs {
    theirs: std::path::PathBuf,
    ours: std::path::PathBuf,
}

pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let wanted = match args {
        [] => "",
        [name] if !name.starts_with('-') => name,
        _ => return Err(format!("unknown arguments: {}", args.join(" "))),
    };
    let peers = root().join("peers");
    let build = [
        "build",
        "--release",
        "--locked",
        "--package",
        "peers-rocksdb",
    ];
    shell(Command::new("cargo").args(build).current_dir(&peers))?;
    shell(cargo().args(["build", "--locked", "--package", "orogen-cli"]))?;
    let programs = Programs {
        theirs: peers.join("target/release/exchange"),
        ours: root().join("target/debug/orogen"),
    };
    let names = output(Command::new(&programs.theirs).arg("variants"))?;
    let dir = root().join("target").join("exchange");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut done = 0;
    let mut pairs = 0;
    let mut failed = Vec::new();
    for name in names.lines().filter(|n| n.contains(wanted)) {
        match exchange(&programs, &dir.join(name), name) {
            Ok(count) => {
                println!("{name:<20} ok, {count} pairs compared");
                done += 1;
                pairs += count;
            }
            Err(e) => {
                println!("{name:<20} FAILED: {e}");
                failed.push(name);
            }
        }
    }
    println!("{done} option sets, {TURNS} turns each, {pairs} pairs compared");
    if !failed.is_empty() {
        return Err(format!("failed: {}", failed.join(", ")));
    }
    if done == 0 {
        return Err(format!("no option set has `{wanted}` in its name"));
    }
    Ok(())
}

/// All turns of one option set; how many pairs were compared.
fn exchange(programs: &Programs, dir: &Path, name: &str) -> Result<usize, String> {
    let mut pairs = 0;
    for turn in 1..=TURNS {
        let seed = turn.to_string();
        let mut write = Command::new(&programs.theirs);
        output(write.arg("write").arg(dir).args([name, &seed]))?;
        pairs += compare(programs, dir, &format!("turn {turn}, RocksDB wrote"))?;
        for family in FAMILIES {
            let on = |command: &str, rest: &[&str]| {
                let mut program = Command::new(&programs.ours);
                program.args(["db", command]).arg(dir).args(rest);
                program.args(["--column-family", family, "--no-progress"]);
                output(&mut program).map(|_| ())
            };
            on("put", &[&format!("key00{turn}"), "ours"])?;
            // It need not be there, and what is not there cannot be deleted.
            let hidden = format!("key0{turn}000");
            on("put", &[&hidden, "ours"])?;
            on("delete", &[&hidden])?;
            on("compact", &[])?;
            on("put", &[&format!("in-the-log{turn}"), "ours"])?;
        }
        pairs += compare(programs, dir, &format!("turn {turn}, Orogen wrote"))?;
    }
    Ok(pairs)
}

/// Both read the same, and we find no damage.
fn compare(programs: &Programs, dir: &Path, when: &str) -> Result<usize, String> {
    let theirs = output(Command::new(&programs.theirs).arg("scan").arg(dir))?;
    output(
        Command::new(&programs.ours)
            .args(["db", "check", "--no-progress"])
            .arg(dir),
    )?;
    let mut ours = String::new();
    for family in FAMILIES {
        let mut scan = Command::new(&programs.ours);
        scan.args(["db", "scan", "--hex", "--no-progress"]).arg(dir);
        let lines = output(scan.args(["--column-family", family]))?;
        for line in lines.lines() {
            ours.push_str(&format!("{family}\t{line}\n"));
        }
    }
    if ours.is_empty() {
        return Err(format!("{when}: nothing to compare"));
    }
    if ours == theirs {
        return Ok(ours.lines().count());
    }
    let at = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b);
    let (ours, theirs) = at.unwrap_or(("(fewer or more lines)", ""));
    Err(format!("{when}: we read {ours}, RocksDB {theirs}"))
}
