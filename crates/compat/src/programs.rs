//! RocksDB's programs, through the scripts in `py/`.
//!
//! `cargo x setup` installs them. Where they are missing the functions say so and the tests fail:
//! a test that is skipped proves nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::case::Case;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("py")
}

/// The interpreter of the environment that `cargo x setup` makes.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("the crate lies two folders below the root")
        .join(".venv/bin/python")
}

/// Runs a script and returns what it printed.
fn run<I: AsRef<OsStr>>(script: &str, args: impl IntoIterator<Item = I>) -> Result<String, String> {
    let python = python();
    if !python.is_file() {
        return Err(format!(
            "{} is missing: run `cargo x setup`",
            python.display()
        ));
    }
    let output = Command::new(&python)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(scripts().join(script))
        .args(args)
        .output()
        .map_err(|e| format!("{}: {e}", python.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "{script} ended with {}\n{text}{errors}",
        output.status
    ))
}

/// A script that does a step for each line, and answers each with `done`.
pub struct Talk {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    /// Starts a script.
    ///
    /// # Errors
    /// If a program is missing.
    pub fn start<I: AsRef<OsStr>>(
        script: &str,
        args: impl IntoIterator<Item = I>,
    ) -> Result<Self, String> {
        let python = python();
        let mut child = Command::new(&python)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(scripts().join(script))
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}: run `cargo x setup`", python.display()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        Ok(Self {
            name: script.to_owned(),
            child,
            input,
            output: BufReader::new(output.ok_or("the script has no output")?),
        })
    }

    /// Has one step done.
    ///
    /// # Errors
    /// If the script ends instead.
    pub fn say(&mut self, line: &str) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{}: {e}", self.name);
        let input = self.input.as_mut().ok_or("the script has no input")?;
        writeln!(input, "{line}").map_err(failed)?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(failed)?;
        match answer.trim() {
            "done" => Ok(()),
            other => Err(format!("{} answers '{other}'", self.name)),
        }
    }

    /// Ends the input, and with it the script.
    ///
    /// # Errors
    /// If the script fails.
    pub fn end(mut self) -> Result<(), String> {
        self.input = None;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("{} ended with {status}", self.name)),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // Only a test that fails leaves it running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has `write` fill `dir` unless `version` is what filled it the last time.
fn once(
    dir: &Path,
    version: &str,
    write: impl FnOnce() -> Result<(), String>,
) -> Result<(), String> {
    let say = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let stamp = dir.join("scripts");
    if fs::read_to_string(&stamp).unwrap_or_default() == version {
        return Ok(());
    }
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(|e| say(dir, e))?;
    }
    fs::create_dir_all(dir).map_err(|e| say(dir, e))?;
    write()?;
    fs::write(&stamp, version).map_err(|e| say(&stamp, e))
}

/// The text of the scripts, one after the other.
fn texts(names: &[&str]) -> Result<String, String> {
    let read = |name: &&str| {
        let path = scripts().join(name);
        fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    names.iter().map(read).collect()
}

/// Every case that RocksDB writes, written below `dir` unless the scripts of this version have
/// been there before.
///
/// # Errors
/// If a program is missing, fails, or disagrees with what another one wrote.
pub fn written_by_rocksdb(dir: &Path) -> Result<Vec<Case>, String> {
    let say = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let version = texts(&["cases.py", "make_dirs.py", "rocks.py", "workload.py"])?;
    let cases = dir.join("cases");
    once(dir, &version, || {
        run("make_dirs.py", [OsStr::new("--out"), cases.as_os_str()]).map(drop)
    })?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&cases).map_err(|e| say(&cases, e))? {
        found.push(Case::load(&entry.map_err(|e| say(&cases, e))?.path())?);
    }
    found.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(found)
}

/// The folder with a case for each of `rows`, written by RocksDB below `dir` unless it has been.
/// The shape of a row is at the head of `py/combinations.py`.
///
/// # Errors
/// If a program is missing or fails.
pub fn written_combinations(dir: &Path, rows: &[Value]) -> Result<PathBuf, String> {
    let cases = dir.join("cases");
    let version = texts(&["combinations.py", "rocks.py"])? + &Value::from(rows).to_string();
    once(dir, &version, || combinations("write", dir, &cases, rows))?;
    Ok(cases)
}

/// Lets RocksDB empty the compressed logs of the cases of `rows` below `dir`.
///
/// # Errors
/// If a program is missing or fails.
pub fn make_logs_plain(dir: &Path, rows: &[Value]) -> Result<(), String> {
    combinations("plain", dir, dir, rows)
}

fn combinations(command: &str, dir: &Path, cases: &Path, rows: &[Value]) -> Result<(), String> {
    let path = dir.join("rows.json");
    fs::write(&path, Value::from(rows).to_string())
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let args = [OsStr::new(command), path.as_os_str(), cases.as_os_str()];
    run("combinations.py", args).map(drop)
}

/// Lets both releases of RocksDB judge the cases that Orogen wrote; the newer writes them on, and
/// the cases then expect what it left in them.
///
/// # Errors
/// Names each case that they do not find as expected, and why.
pub fn judge_combinations(cases: &[Case]) -> Result<(), String> {
    let args = std::iter::once(OsStr::new("judge")).chain(dirs(cases));
    run("combinations.py", args).map(drop)
}

/// Lets both generations of RocksDB judge the cases, without a change to them.
///
/// # Errors
/// Names each case that they do not find as expected, and why.
pub fn judge(cases: &[Case]) -> Result<(), String> {
    let args = std::iter::once(OsStr::new("--read-only")).chain(dirs(cases));
    run("check_orogen_dir.py", args).map(drop)
}

/// Lets both generations of RocksDB judge the cases, then write them on; the cases then expect
/// what RocksDB left in them.
///
/// # Errors
/// Names each case that they do not find as expected, and why.
pub fn judge_and_write(cases: &[Case]) -> Result<(), String> {
    run("check_orogen_dir.py", dirs(cases)).map(drop)
}

/// Lets the newer RocksDB read the cases, write large values into blob files of its own, and empty
/// the oldest blob files; the cases then expect what it left in them.
///
/// # Errors
/// Names each case that it does not find as expected, and why.
pub fn separate(cases: &[Case]) -> Result<(), String> {
    let args = std::iter::once(OsStr::new("--separate")).chain(dirs(cases));
    run("check_orogen_dir.py", args).map(drop)
}

fn dirs(cases: &[Case]) -> impl Iterator<Item = &OsStr> {
    cases.iter().map(|case| case.dir().as_os_str())
}
