//! RocksDB's programs, through the scripts in `py/`.
//!
//! `cargo x setup` installs them. Where they are missing the functions say so and the tests fail:
//! a test that is skipped proves nothing.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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

/// Every case that RocksDB writes, written below `dir` unless the scripts of this version have
/// been there before.
///
/// # Errors
/// If a program is missing, fails, or disagrees with what another one wrote.
pub fn written_by_rocksdb(dir: &Path) -> Result<Vec<Case>, String> {
    let say = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let mut version = String::new();
    for script in ["cases.py", "make_dirs.py", "rocks.py", "workload.py"] {
        let path = scripts().join(script);
        version.push_str(&fs::read_to_string(&path).map_err(|e| say(&path, e))?);
    }
    let stamp = dir.join("scripts");
    let cases = dir.join("cases");
    if fs::read_to_string(&stamp).unwrap_or_default() != version {
        if dir.exists() {
            fs::remove_dir_all(dir).map_err(|e| say(dir, e))?;
        }
        run("make_dirs.py", [OsStr::new("--out"), cases.as_os_str()])?;
        fs::write(&stamp, version).map_err(|e| say(&stamp, e))?;
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&cases).map_err(|e| say(&cases, e))? {
        found.push(Case::load(&entry.map_err(|e| say(&cases, e))?.path())?);
    }
    found.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(found)
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

fn dirs(cases: &[Case]) -> impl Iterator<Item = &OsStr> {
    cases.iter().map(|case| case.dir().as_os_str())
}
