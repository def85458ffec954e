//! `orogen raftlog`: directories of Raft logs, this crate's or raft-engine's.

mod bench;
mod change;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use orogen::Options;
use orogen_raftlog::env::DefaultFileSystem;
use orogen_raftlog::internals::{LogItemContent, OpType};
use orogen_raftlog::raw::{Checked, CheckedFile, check as check_logs, fork as fork_logs};
use orogen_raftlog::{Command as GroupCommand, Config, Engine, Error};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help};
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Commands on directories of Raft logs.
#[derive(Subcommand)]
pub(crate) enum RaftlogCommand {
    /// List the operations in a file, or in all files in the order in which an open reads them.
    ///
    /// Of entries their indexes and lengths are told. The directory may be open elsewhere.
    Dump(DumpArgs),
    /// Read every file of a directory that is not open, and tell what is damaged or missing.
    ///
    /// Damage at the end of the newest file of a queue is what a crash leaves, or what a file that is written over
    /// held before: it is told, and is no failure. Holes are, and files that are not read since one behind them is missing.
    Check(CheckArgs),
    /// Make a directory that begins with what another one has, which is not open.
    ///
    /// Files of entries are copied, for raft-engine may write over them later. Full files of what purges moved are
    /// shared by hard links. After an error there is no log in the new directory, or it is whole or cannot be opened.
    Fork(ForkArgs),
    /// Take operations out of a directory that is not open, as a script says.
    ///
    /// The script has up to three functions, in the part of Rhai that has numbers, truth values, branches and loops, and gives 0 to keep what
    /// comes, 1 to drop it, 2 to drop the group's entries before it. After an error every file is as it was.
    Repair(change::RepairArgs),
    /// Delete the files of a directory that are not needed any more, once.
    ///
    /// What lives in old files is written to the rewrite queue first. Nothing is done as long as the queues are short.
    Purge(change::PurgeArgs),
    /// Measure writes to a directory that has no logs yet, which they leave behind.
    Bench(bench::BenchArgs),
}

/// The second directory of a log.
#[derive(clap::Args)]
struct SecondDir {
    /// Second directory of the logs, which hold files that the first had no room for.
    #[arg(long, value_name = "DIR")]
    spill_dir: Option<PathBuf>,
}

impl SecondDir {
    /// Those of logs.
    fn config(&self, path: &Path) -> Result<Config, Failure> {
        if path.is_dir() {
            self.check_logs(path)?;
        } else {
            check_is_there(path)?;
            self.check()?;
        }
        // A configuration file is where these come from elsewhere.
        let named = |dir: &Path| match dir.to_str() {
            Some(name) => Ok(name.to_owned()),
            None => Err(Failure::Usage(format!(
                "the name of {} is not UTF-8; reach it by a link whose name is",
                dir.display()
            ))),
        };
        Ok(Config {
            dir: named(path)?,
            spill_dir: self.spill_dir.as_deref().map(named).transpose()?,
            ..Config::default()
        })
    }

    fn check(&self) -> Result<(), Failure> {
        self.spill_dir.as_deref().map_or(Ok(()), check_is_there)
    }

    /// Refuses what is no log: a name that was mistyped would be one that is whole.
    fn check_logs(&self, dir: &Path) -> Result<(), Failure> {
        check_is_there(dir)?;
        self.check()?;
        let fs = Options::default().db.fs;
        for dir in std::iter::once(dir).chain(self.spill_dir.as_deref()) {
            if fs.list(dir)?.iter().any(|name| is_log(name)) {
                return Ok(());
            }
        }
        Err(Failure::NotFound(format!(
            "there is no Raft log in {}",
            dir.display()
        )))
    }
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen raftlog dump ./raft",
    "orogen raftlog dump ./raft/0000000000000003.raftlog --group 7 --limit 100"
))]
pub(crate) struct DumpArgs {
    /// Log file, or a directory of them.
    path: PathBuf,
    #[command(flatten)]
    second: SecondDir,
    /// Only operations on this group.
    #[arg(long, value_name = "N")]
    group: Option<u64>,
    /// At most so many operations.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen raftlog check ./raft"))]
pub(crate) struct CheckArgs {
    /// Directory of logs.
    dir: PathBuf,
    #[command(flatten)]
    second: SecondDir,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen raftlog fork ./raft ./raft-of-yesterday"))]
pub(crate) struct ForkArgs {
    /// Directory of logs.
    source: PathBuf,
    /// The new directory; it must have no log files.
    target: PathBuf,
    #[command(flatten)]
    second: SecondDir,
    /// Share full files of entries by hard links, too: for directories that raft-engine never opens with enable-log-recycle,
    /// which would write over the other's.
    #[arg(long)]
    share: bool,
}

pub(crate) fn run(command: RaftlogCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    match command {
        RaftlogCommand::Dump(args) => dump(&args, terminal),
        RaftlogCommand::Check(args) => check(&args, terminal),
        RaftlogCommand::Fork(args) => fork(&args, terminal),
        RaftlogCommand::Repair(args) => change::repair(&args, terminal),
        RaftlogCommand::Purge(args) => change::purge(&args, terminal),
        RaftlogCommand::Bench(args) => bench::run(&args, terminal),
    }
}

fn failure(e: Error) -> Failure {
    match e {
        Error::Corruption(what) => Failure::Damaged(what),
        Error::InvalidArgument(what) => Failure::Usage(what),
        Error::Io(e) => Failure::Engine(orogen::Error::io("raft log", e)),
        other => Failure::Failed(other.to_string()),
    }
}

/// True for the name of a file of either queue.
fn is_log(name: &str) -> bool {
    name.ends_with(".raftlog") || name.ends_with(".rewrite")
}

fn check_is_there(path: &Path) -> Result<(), Failure> {
    match Options::default().db.fs.exists(path)? {
        true => Ok(()),
        false => Err(Failure::NotFound(format!("there is no {}", path.display()))),
    }
}

fn dump(args: &DumpArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let config = args.second.config(&args.path)?;
    let items = match &args.second.spill_dir {
        None => Engine::dump(&args.path),
        Some(_) => Engine::dump_with_config(&config, Arc::new(DefaultFileSystem)),
    };
    let items = items.map_err(failure)?;
    if terminal.json {
        terminal.begin_items("[", "]\n")?;
    }
    let (mut operations, mut damages) = (0, 0);
    for item in items {
        if args.limit.is_some_and(|limit| operations >= limit) {
            break;
        }
        match item {
            Ok(item) if args.group.is_some_and(|group| group != item.raft_group_id) => {}
            Ok(item) => {
                operations += 1;
                if terminal.json {
                    let value = operation_json(terminal, item.raft_group_id, &item.content);
                    terminal.item(&value)?;
                } else {
                    let line = operation_text(terminal, &item.content);
                    terminal.line(&format!("group {:<8} {line}", item.raft_group_id))?;
                }
            }
            Err(Error::Corruption(what)) => {
                damages += 1;
                terminal.note(&what);
            }
            Err(e) => return Err(failure(e)),
        }
    }
    if terminal.json {
        terminal.end_items("]\n")?;
    } else {
        terminal.note(&text::plural(operations, "operation"));
    }
    match damages {
        0 => Ok(()),
        n => Err(Failure::Damaged(format!(
            "{} in {}; `orogen raftlog check` tells whether a crash explains them",
            text::plural(n, "damage"),
            args.path.display()
        ))),
    }
}

fn operation_text(terminal: &Terminal, content: &LogItemContent) -> String {
    match content {
        LogItemContent::EntryIndexes(entries) => {
            let Some((first, last)) = entries.0.first().zip(entries.0.last()) else {
                return "entries none".to_owned();
            };
            let bytes: u64 = entries.0.iter().map(|e| u64::from(e.entry_len)).sum();
            let place = first.entries.map_or_else(String::new, |block| {
                format!(" at {} of file {}", block.offset, block.id.seq)
            });
            format!(
                "entries {}..={} bytes {bytes}{place}",
                first.index, last.index
            )
        }
        LogItemContent::Command(GroupCommand::Clean) => "clean".to_owned(),
        LogItemContent::Command(GroupCommand::Compact { index }) => format!("compact {index}"),
        LogItemContent::Kv(change) => match (change.op_type, &change.value) {
            (OpType::Put, Some(value)) => {
                let value = text::shorten(&terminal.show(value), 64);
                format!("put {}\t{value}", terminal.show(&change.key))
            }
            _ => format!("delete {}", terminal.show(&change.key)),
        },
    }
}

fn operation_json(terminal: &Terminal, group: u64, content: &LogItemContent) -> Value {
    match content {
        LogItemContent::EntryIndexes(entries) => {
            let block = entries.0.first().and_then(|e| e.entries);
            json!({
                "group": group,
                "operation": "entries",
                "first": entries.0.first().map(|e| e.index),
                "last": entries.0.last().map(|e| e.index),
                "bytes": entries.0.iter().map(|e| u64::from(e.entry_len)).sum::<u64>(),
                "file": block.map(|b| b.id.seq),
                "offset": block.map(|b| b.offset),
            })
        }
        LogItemContent::Command(GroupCommand::Clean) => {
            json!({ "group": group, "operation": "clean" })
        }
        LogItemContent::Command(GroupCommand::Compact { index }) => {
            json!({ "group": group, "operation": "compact", "index": index })
        }
        LogItemContent::Kv(change) => {
            let key = terminal.show(&change.key);
            match (change.op_type, &change.value) {
                (OpType::Put, Some(value)) => json!({
                    "group": group, "operation": "put", "key": key, "value": terminal.show(value),
                }),
                _ => json!({ "group": group, "operation": "delete", "key": key }),
            }
        }
    }
}

fn check(args: &CheckArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    args.second.check_logs(&args.dir)?;
    let fs = Options::default().db.fs;
    let spill_dir = args.second.spill_dir.as_deref();
    let bar = terminal.bar(0, false, "reading files");
    let checked = check_logs(&*fs, &args.dir, spill_dir, |done, count| {
        bar.set_length(count);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let Checked {
        files,
        groups,
        holes,
        ..
    } = checked.map_err(change::refused)?;
    let is_damaged = |file: &&CheckedFile| file.damage.is_some() && !file.is_torn_end;
    let damaged = files.iter().filter(is_damaged).count() as u64;
    // In the directory that was asked for it is known by its name.
    let shown = |path: &Path| {
        path.strip_prefix(&args.dir)
            .unwrap_or(path)
            .display()
            .to_string()
    };
    let name = |file: &CheckedFile| shown(&file.path);
    let mut spare = 0;
    // Whatever is before a file that is missing, or was not in this directory, counts for nothing.
    let mut not_read = Vec::new();
    for dir in [Some(&*args.dir), spill_dir].into_iter().flatten() {
        for file in fs.list(dir)? {
            spare += usize::from(file.ends_with(".raftlog.reserved"));
            let path = dir.join(&file);
            if is_log(&file) && files.iter().all(|read| read.path != path) {
                not_read.push(shown(&path));
            }
        }
    }
    not_read.sort();
    if terminal.json {
        let each: Vec<Value> = files
            .iter()
            .map(|file| {
                json!({
                    "file": name(file),
                    "operations": file.operations,
                    "entries": file.entries,
                    "entry_bytes": file.entry_bytes,
                    "damage": file.damage.as_ref().map(ToString::to_string),
                    "torn_end": file.is_torn_end,
                    "newest_of_its_queue": file.is_newest,
                })
            })
            .collect();
        let holes: Vec<Value> = holes
            .iter()
            .map(|(group, last)| json!({ "group": group, "last_before_hole": last }))
            .collect();
        terminal.document(&json!({
            "files": each,
            "not_read": not_read,
            "spare_files": spare,
            "groups": groups,
            "holes": holes,
            "damaged_files": damaged,
        }))?;
    } else {
        for file in &files {
            terminal.line(&format!(
                "{}  {}, {} entries of {}",
                name(file),
                text::plural(file.operations, "operation"),
                text::count(file.entries),
                text::size(file.entry_bytes),
            ))?;
            if let Some(what) = &file.damage {
                let (ink, word) = match file.is_torn_end {
                    true => (Ink::Faint, "ends with what is no record, as after a crash"),
                    false => (Ink::Bad, "damage"),
                };
                terminal.line(&terminal.ink(ink, &format!("  {word}: {what}")))?;
            }
        }
        for file in &not_read {
            let line = format!(
                "{file}  not read: a file behind it is missing, or is in another directory"
            );
            terminal.line(&terminal.ink(Ink::Bad, &line))?;
        }
        for (group, last) in &holes {
            let line = format!("group {group}: entries are missing behind {last}");
            terminal.line(&terminal.ink(Ink::Bad, &line))?;
        }
        terminal.line(&format!(
            "{}, {}, {}, {}, {}",
            text::plural(files.len() as u64, "file"),
            text::plural(spare as u64, "spare file"),
            text::plural(groups, "group"),
            text::plural(damaged, "damaged file"),
            text::plural(holes.len() as u64, "hole"),
        ))?;
    }
    match damaged + (holes.len() + not_read.len()) as u64 {
        0 => Ok(()),
        _ => Err(Failure::Damaged(format!(
            "{} has damage, holes, or files that are not read",
            args.dir.display()
        ))),
    }
}

fn fork(args: &ForkArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    args.second.check_logs(&args.source)?;
    let (second, share) = (args.second.spill_dir.as_deref(), args.share);
    let fs = Options::default().db.fs;
    let made = fork_logs(&*fs, &args.source, second, &args.target, share)?;
    if terminal.json {
        let shown = |paths: &[PathBuf]| -> Vec<String> {
            paths.iter().map(|p| p.display().to_string()).collect()
        };
        let (copied, shared) = (shown(&made.copied), shown(&made.shared));
        terminal.document(&json!({ "copied": copied, "shared": shared }))?;
    } else {
        terminal.line(&format!(
            "{} copied, {} shared",
            text::plural(made.copied.len() as u64, "file"),
            text::plural(made.shared.len() as u64, "file")
        ))?;
    }
    Ok(())
}
