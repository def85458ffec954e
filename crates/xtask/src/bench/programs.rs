//! The engines' programs in `peers/`: built, run, and listened to.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{step, workspace};

/// An engine with a program in `peers/`.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) name: &'static str,
    /// Where its version is told, and as what.
    version: fn(&Path) -> Option<String>,
    is_go: bool,
}

pub(super) static OROGEN: Engine = Engine {
    name: "orogen",
    version: |_| Some(env!("CARGO_PKG_VERSION").to_owned()),
    is_go: false,
};

pub(super) static ROCKSDB: Engine = Engine {
    name: "rocksdb",
    // The crate's version and, behind the plus, RocksDB's.
    version: |peers| {
        let version = locked_version(peers, "librocksdb-sys")?;
        Some(version.split_once('+')?.1.to_owned())
    },
    is_go: false,
};

static FJALL: Engine = Engine {
    name: "fjall",
    version: |peers| locked_version(peers, "fjall"),
    is_go: false,
};

static PEBBLE: Engine = Engine {
    name: "pebble",
    version: |peers| {
        let text = std::fs::read_to_string(peers.join("pebble/go.mod")).ok()?;
        let mut words = text.split_whitespace();
        words.find(|w| w.ends_with("cockroachdb/pebble/v2"))?;
        Some(words.next()?.to_owned())
    },
    is_go: true,
};

const OTHERS: [&Engine; 3] = [&ROCKSDB, &FJALL, &PEBBLE];

/// The engine that we are compared with under this name.
pub(super) fn by_name(name: &str) -> Option<&'static Engine> {
    OTHERS.into_iter().find(|e| e.name == name)
}

/// The version of a crate in the lock file of `peers/`.
fn locked_version(peers: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(peers.join("Cargo.lock")).ok()?;
    let mut lines = text.lines();
    lines.find(|line| *line == format!("name = \"{name}\""))?;
    let version = lines.next()?.strip_prefix("version = ")?;
    Some(version.trim_matches('"').to_owned())
}

/// The folder of the engines' programs.
pub(super) fn peers() -> PathBuf {
    workspace::root().join("peers")
}

impl Engine {
    pub(super) fn version(&self) -> String {
        (self.version)(&peers()).unwrap_or_default()
    }

    pub(super) fn program(&self) -> PathBuf {
        let name = format!("peers-{}", self.name);
        peers().join("target").join("release").join(name)
    }

    pub(super) fn build(&self) -> Result<(), String> {
        let peers = peers();
        eprintln!("building {}", self.name);
        let mut command;
        if self.is_go {
            command = Command::new("go");
            command
                .args(["build", "-trimpath", "-o"])
                .arg(self.program())
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

/// Makes an empty directory; what is left of an earlier run must not count.
pub(super) fn fresh(db: &Path) -> Result<(), String> {
    remove(db)?;
    std::fs::create_dir_all(db).map_err(|e| format!("{}: {e}", db.display()))
}

/// Deletes a directory and all that it holds, if it is there.
pub(super) fn remove(db: &Path) -> Result<(), String> {
    match std::fs::remove_dir_all(db) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("{}: {e}", db.display())),
        _ => Ok(()),
    }
}

/// Fills the system's memory with pages of a file of holes, for what follows to take over; true if that could be done.
///
/// A virtual machine gives memory that nobody uses back to its host within seconds, and pages of large files cost twice as much where the
/// host has to be asked for each: then what ran before, and how long ago, decides who is fast. Pages of a file that was read once stay with
/// the machine, and are the first to be given to others.
pub(super) fn fill_memory(dir: &Path) -> bool {
    let told = |name: &str, what: &str| std::fs::write(format!("/proc/sys/vm/{name}"), what);
    let synced = Command::new("sync").status();
    synced.is_ok_and(|status| status.success())
        && told("drop_caches", "3").is_ok()
        && told("compact_memory", "1").is_ok()
        && read_holes(&filler(dir)).is_ok()
}

/// The file whose pages fill memory. It takes no space; its pages are free once it is gone.
pub(super) fn filler(dir: &Path) -> PathBuf {
    dir.join("memory-filler")
}

fn read_holes(path: &Path) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    file.set_len(available_memory()?)?;
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

/// Bytes of memory that programs may have without others being swapped out.
fn available_memory() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.parse::<u64>().ok())
        .map(|kib| kib << 10)
        .ok_or_else(|| std::io::Error::other("/proc/meminfo does not tell MemAvailable"))
}

/// A program with the options that all phases have.
pub(super) fn command(
    engine: &Engine,
    db: &Path,
    phases: &[&str],
    num: u64,
    reads: u64,
) -> Command {
    let mut command = Command::new(engine.program());
    command
        .arg("--dir")
        .arg(db)
        .args(["--phases", &phases.join(",")])
        .args(["--num", &num.to_string(), "--reads", &reads.to_string()]);
    command
}

/// Runs a process to its end, or, if it is to be killed, to its first word; gives what it told
/// of its phases, of which there are so many.
pub(super) fn listen(
    command: &mut Command,
    phases: usize,
    killed: bool,
) -> Result<Vec<Value>, String> {
    let line = step::line(command);
    let failed = |what: &dyn std::fmt::Display| format!("`{line}`: {what}");
    let mut child = command
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
        if killed {
            child.kill().map_err(|e| failed(&e))?;
        }
    }
    let status = child.wait().map_err(|e| failed(&e))?;
    if killed && told.len() == 1 {
        return Ok(Vec::new());
    }
    if !status.success() || told.len() != phases {
        return Err(failed(&status));
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_engine_has_a_version() {
        for engine in OTHERS.into_iter().chain([&OROGEN]) {
            let version = engine.version();
            assert!(version.contains('.'), "{} {version}", engine.name);
        }
    }

    #[test]
    fn a_process_that_tells_too_little_or_nonsense_failed() {
        let told = |script: &str, phases, killed| {
            listen(Command::new("sh").args(["-c", script]), phases, killed)
        };
        assert_eq!(told("echo 1; echo 2", 2, false).unwrap().len(), 2);
        assert!(told("echo 1", 2, false).is_err());
        assert!(told("echo x", 1, false).is_err());
        assert!(told("echo 1; exit 3", 1, false).is_err());
        // It would never end by itself; what it told of is not a result.
        assert_eq!(told("echo 1; exec sleep 1000", 1, true).unwrap().len(), 0);
    }
}
