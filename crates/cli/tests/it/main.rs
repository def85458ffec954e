//! The `orogen` command as scripts see it: arguments in; data, talk and an exit code out.

use std::path::Path;
use std::process::{Command, Stdio};

use orogen_testkit::TempDir;

mod backup;
mod blob;
mod db;
mod damage;
mod demo;
mod files;
mod help;
mod migrate;
mod raftlog;

/// What a run left behind.
struct Run {
    code: i32,
    out: String,
    err: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_orogen"));
    command
        .args(args)
        .stdin(Stdio::null())
        .env_remove("NO_COLOR")
        .env("LC_ALL", "C.UTF-8");
    command
}

fn orogen(args: &[&str]) -> Run {
    let output = command(args).output().expect("the command starts");
    Run {
        code: output.status.code().expect("the command ends by itself"),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs a command that must succeed and gives its data.
#[track_caller]
fn ok(args: &[&str]) -> String {
    let run = orogen(args);
    assert_eq!(run.code, 0, "{args:?}\n{}\n{}", run.out, run.err);
    run.out
}

/// Runs a command that must succeed with `--json` and gives its document.
#[track_caller]
fn json(args: &[&str]) -> serde_json::Value {
    let mut all = args.to_vec();
    all.push("--json");
    let out = ok(&all);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?} {e}\n{out}"))
}

/// Runs a command that must fail with `code` and gives what it says.
#[track_caller]
fn fails(code: i32, args: &[&str]) -> Run {
    let run = orogen(args);
    assert_eq!(run.code, code, "{args:?}\n{}\n{}", run.out, run.err);
    run
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are text")
}

/// A database of `keys` keys in two families, some in tables and some in the log.
fn sample(dir: &TempDir, keys: u32) -> String {
    let path = text(&dir.path().join("db")).to_owned();
    let mut options = orogen::Options::default();
    options.db.create_if_missing = true;
    let db = orogen::Db::open(&path, &options).expect("opens");
    let rocks = db
        .create_column_family("rocks", orogen::ColumnFamilyOptions::default())
        .expect("is made");
    for n in 0..keys {
        let mut batch = orogen::WriteBatch::new();
        batch.put(
            0,
            format!("key{n:06}").as_bytes(),
            format!("value {n}").as_bytes(),
        );
        batch.put(
            rocks.id(),
            format!("rock{n:06}").as_bytes(),
            &n.to_le_bytes(),
        );
        db.write(batch).expect("writes");
        if n == keys / 2 {
            db.flush_opt(&orogen::FlushOptions::default(), &db.column_families())
                .expect("flushes");
        }
    }
    db.close().expect("closes");
    path
}

/// The files of a database whose names end so, in order.
fn files(db: &str, end: &str) -> Vec<String> {
    let mut found: Vec<String> = std::fs::read_dir(db)
        .expect("is a directory")
        .map(|e| text(&e.expect("can be listed").path()).to_owned())
        .filter(|p| p.ends_with(end))
        .collect();
    found.sort();
    found
}

/// The first table of the default family.
fn table(db: &str) -> String {
    let tree = json(&["db", "tree", db]);
    let file = &tree["column_families"][0]["levels"][0]["tables"][0]["file"];
    format!("{db}/{}", file.as_str().expect("there is a table"))
}
