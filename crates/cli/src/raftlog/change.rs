//! `orogen raftlog repair` and `orogen raftlog purge`: the commands that change a directory.

use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use orogen::{Error, ErrorKind, Options};
use orogen_env::FileSystem;
use orogen_env::fs::read_file;
use orogen_raftlog::raw::{
    Engine, Options as LogOptions, Queue, RecoveryMode, RepairScript, repair as repair_logs,
};
use serde_json::{Value, json};

use super::{SecondDir, check_is_there};
use crate::failure::{Failure, after_help};
use crate::terminal::Terminal;
use crate::text;

/// Which files.
#[derive(Clone, Copy, ValueEnum)]
enum Queues {
    /// What callers wrote.
    Append,
    /// What purges moved.
    Rewrite,
    /// Both, the append queue first.
    All,
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen raftlog repair --path ./raft --queue all --script drop-group-7.rhai"
))]
pub(crate) struct RepairArgs {
    /// Directory of logs.
    #[arg(long, value_name = "DIR")]
    path: PathBuf,
    #[command(flatten)]
    second: SecondDir,
    /// The files that are looked at.
    #[arg(long, value_enum)]
    queue: Queues,
    /// File with the script.
    #[arg(long, value_name = "FILE")]
    script: PathBuf,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen raftlog purge --path ./raft --purge-threshold 1073741824"))]
pub(crate) struct PurgeArgs {
    /// Directory of logs.
    #[arg(long, value_name = "DIR")]
    path: PathBuf,
    #[command(flatten)]
    second: SecondDir,
    /// Bytes from which on a file counts as full; that of the program that writes the directory.
    #[arg(long, value_name = "BYTES", default_value_t = LogOptions::default().target_file_size)]
    file_size: u64,
    /// Bytes of the append queue above which something is done.
    #[arg(long, value_name = "BYTES", default_value_t = LogOptions::default().purge_threshold)]
    purge_threshold: u64,
}

/// What the arguments make impossible is no fault of the directory.
fn usage(e: &Error) -> Failure {
    Failure::Usage(e.to_string())
}

/// The same of an open that is refused for what it is told.
pub(super) fn refused(e: Error) -> Failure {
    match e.kind() {
        ErrorKind::InvalidArgument => usage(&e),
        _ => Failure::Engine(e),
    }
}

pub(crate) fn repair(args: &RepairArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    args.second.check_logs(&args.path)?;
    check_is_there(&args.script)?;
    let fs = Options::default().db.fs;
    let script = read_file(&*fs, &args.script)?;
    let script = String::from_utf8(script).map_err(|_| {
        let shown = args.script.display();
        Failure::Usage(format!("{shown} is no text in UTF-8"))
    })?;
    let script = RepairScript::compile(&script).map_err(|e| usage(&e))?;
    let queue = match args.queue {
        Queues::Append => Some(Queue::Append),
        Queues::Rewrite => Some(Queue::Rewrite),
        Queues::All => None,
    };
    let spinner = terminal.spinner("reading and writing files");
    let mut asked = 0u64;
    let spill_dir = args.second.spill_dir.as_deref();
    let done = repair_logs(&*fs, &args.path, spill_dir, queue, |incoming| {
        asked += 1;
        spinner.set_position(asked);
        script.decide(incoming)
    });
    spinner.finish_and_clear();
    let done = done?;
    let name = |queue| match queue {
        Queue::Append => "append",
        Queue::Rewrite => "rewrite",
    };
    if terminal.json {
        let files = done.files.iter();
        let files: Vec<Value> = files
            .map(|file| json!({ "queue": name(file.queue), "number": file.seq }))
            .collect();
        terminal.document(&json!({
            "asked": asked,
            "dropped": done.dropped,
            "added": done.added,
            "files": files,
            "damaged": done.damaged,
        }))?;
    } else {
        for file in &done.files {
            terminal.line(&format!("{} file {}", name(file.queue), file.seq))?;
        }
        terminal.line(&format!(
            "{} written anew, {} of {} dropped, {} added",
            text::plural(done.files.len() as u64, "file"),
            text::count(done.dropped),
            text::plural(asked, "operation"),
            text::plural(done.added, "command"),
        ))?;
    }
    for damaged in &done.damaged {
        terminal.note(&format!(
            "what is behind damage was not kept; the original is {}",
            damaged.display()
        ));
    }
    for left in &done.left {
        terminal.note(&format!(
            "an original cannot be removed: {}",
            left.display()
        ));
    }
    Ok(())
}

pub(crate) fn purge(args: &PurgeArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    args.second.check_logs(&args.path)?;
    let fs: Arc<dyn FileSystem> = Options::default().db.fs;
    let options = LogOptions {
        spill_dir: args.second.spill_dir.clone(),
        recovery_mode: RecoveryMode::TolerateTailCorruption,
        target_file_size: args.file_size,
        purge_threshold: args.purge_threshold,
        ..LogOptions::default()
    };
    let engine = Engine::open(&fs, &args.path, options).map_err(refused)?;
    let files = |engine: &Engine| {
        let count = engine.metrics().log_file_count;
        (count.append, count.rewrite)
    };
    let before = files(&engine);
    let spinner = terminal.spinner("purging");
    let groups = engine.purge_expired_files();
    spinner.finish_and_clear();
    let groups = groups?;
    let after = files(&engine);
    let moved = engine.metrics().purge_groups_moved;
    engine.close()?;
    if terminal.json {
        let of = |(append, rewrite): (u64, u64)| json!({ "append": append, "rewrite": rewrite });
        terminal.document(&json!({
            "files_before": of(before),
            "files_after": of(after),
            "groups_moved": moved,
            "groups_to_compact": groups,
        }))?;
    } else {
        let of = |(append, rewrite): (u64, u64)| {
            let append = text::plural(append, "file");
            let rewrite = text::plural(rewrite, "file");
            format!("{append} of the append queue, {rewrite} of the rewrite queue")
        };
        terminal.line(&format!("before: {}", of(before)))?;
        terminal.line(&format!("after:  {}", of(after)))?;
        terminal.line(&format!("{} moved", text::plural(moved, "group")))?;
        for group in groups {
            terminal.line(&format!("to be compacted: group {group}"))?;
        }
    }
    Ok(())
}
