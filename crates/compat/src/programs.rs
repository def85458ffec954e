//! RocksDB's programs, through the scripts in `py/`.
//!
//! `cargo x setup` installs them. Where they are missing the functions say so and the tests fail:
//! a test that is skipped proves nothing.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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
