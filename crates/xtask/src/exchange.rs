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
deletes and compacts all of it, and brings back space in blob files; RocksDB reads what Orogen reads, both ways and by key.
";

/// The families that RocksDB's side makes.
const FAMILIES: [&str; 2] = ["default", "second"];
/// The exchange of prepared transactions.
const PREPARED: &str = "prepared";
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
    if PREPARED.contains(wanted) {
        match prepared(&programs, &dir.join(PREPARED)) {
            Ok(count) => {
                println!("{PREPARED:<20} ok, {count} pairs compared");
                done += 1;
                pairs += count;
            }
            Err(e) => {
                println!("{PREPARED:<20} FAILED: {e}");
                failed.push(PREPARED);
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
            if name.starts_with("blobs") {
                // Values that RocksDB separated move, or their places are given up; it separates on.
                collect(programs, dir, family, if turn == 1 { "0" } else { "0.9" })?;
            }
            on("put", &[&format!("in-the-log{turn}"), "ours"])?;
        }
        pairs += compare(programs, dir, &format!("turn {turn}, Orogen wrote"))?;
    }
    Ok(pairs)
}

/// Brings back space in blob files, and counts what is left.
fn collect(programs: &Programs, dir: &Path, family: &str, ratio: &str) -> Result<(), String> {
    let on = |command: &str, rest: &[&str]| {
        let mut program = Command::new(&programs.ours);
        program.args(["blob", command, "--no-progress"]).arg(dir);
        output(program.args(rest)).map(|_| ())
    };
    let only = ["--column-family", family];
    on("gc", &[&["--discardable-ratio", ratio][..], &only].concat())?;
    on("check", &[])
}

/// Transactions that RocksDB prepared are ended by both: what it left in its log, and what we wrote anew in ours.
fn prepared(programs: &Programs, dir: &Path) -> Result<usize, String> {
    let theirs = |args: &[&str]| {
        let mut program = Command::new(&programs.theirs);
        output(program.arg(args[0]).arg(dir).args(&args[1..]))
    };
    let ours = |args: &[&str]| {
        let mut program = Command::new(&programs.ours);
        output(program.args(["db", "prepared"]).arg(dir).args(args))
    };
    let names = |text: &str| {
        let names = text.lines().filter_map(|l| l.split('\t').next());
        names.collect::<Vec<_>>().join(" ")
    };
    let expect = |who: &str, text: &str, expected: &str| match names(text) {
        found if found == expected => Ok(()),
        found => Err(format!("{who} has prepared `{found}`, not `{expected}`")),
    };
    theirs(&["prepare"])?;
    expect("Orogen", &ours(&[])?, "a b c")?;
    // Copies have the logs that have them.
    let copy = dir.with_extension("copy");
    let mut checkpoint = Command::new(&programs.ours);
    checkpoint.args(["db", "checkpoint", "--no-progress"]);
    output(checkpoint.arg(dir).arg(&copy))?;
    let prepared = output(Command::new(&programs.theirs).arg("prepared").arg(&copy))?;
    expect("RocksDB, of a checkpoint,", &prepared, "a b c")?;
    expect("Orogen", &ours(&["--commit", "a"])?, "b c")?;
    expect("RocksDB", &theirs(&["prepared"])?, "b c")?;
    theirs(&["end", "b", "commit"])?;
    expect("Orogen", &ours(&[])?, "c")?;
    expect("Orogen", &ours(&["--rollback", "c"])?, "")?;
    // A log of its own, without a trace of them: RocksDB reads it without transactions.
    let mut compact = Command::new(&programs.ours);
    output(
        compact
            .args(["db", "compact"])
            .arg(dir)
            .arg("--no-progress"),
    )?;
    let scanned = output(Command::new(&programs.theirs).arg("scan").arg(dir))?;
    let mut scan = Command::new(&programs.ours);
    scan.args(["db", "scan", "--hex", "--no-progress"]).arg(dir);
    let own = output(&mut scan)?;
    let own: Vec<String> = own.lines().map(|l| format!("default\t{l}")).collect();
    if own.len() != 11 || own != scanned.lines().collect::<Vec<_>>() {
        return Err(format!(
            "{} pairs here, {} there, or not the same",
            own.len(),
            scanned.lines().count()
        ));
    }
    Ok(own.len())
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
