//! `orogen backup`: a directory of incremental backups.

use std::path::PathBuf;

use clap::Subcommand;
use orogen::engine::backup::{BackupEngine, BackupInfo, BackupOptions};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help, after_help_of_writer};
use crate::open::{self, Dir};
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Commands on a directory of backups.
#[derive(Subcommand)]
pub(crate) enum BackupCommand {
    /// Make a backup; tables that an earlier one holds are not copied again.
    Create(CreateArgs),
    /// List the backups.
    List(ListArgs),
    /// Read backups and compare them with their checksums.
    Verify(VerifyArgs),
    /// Make a database of a backup.
    Restore(RestoreArgs),
    /// Delete a backup.
    Delete(DeleteArgs),
    /// Delete all but the newest backups.
    Purge(PurgeArgs),
}

/// Where the backups are.
#[derive(clap::Args)]
struct Backups {
    /// Directory of the backups.
    #[arg(id = "backups", value_name = "BACKUPS")]
    path: PathBuf,
}

/// How fast they are read.
#[derive(clap::Args)]
struct Pace {
    /// Read at most so many MiB a second.
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..1 << 44))]
    rate: u64,
}

impl Pace {
    fn options(&self) -> BackupOptions {
        BackupOptions {
            bytes_per_second: self.rate << 20,
            ..BackupOptions::default()
        }
    }
}

impl Backups {
    fn open(&self, options: BackupOptions) -> Result<BackupEngine, Failure> {
        Ok(BackupEngine::open(&self.path, options)?)
    }

    fn check_is_there(&self) -> Result<(), Failure> {
        if self.path.join("meta").is_dir() {
            return Ok(());
        }
        Err(Failure::NotFound(format!(
            "there are no backups in {}",
            self.path.display()
        )))
    }

    /// Opens what must be there, to change it.
    fn open_existing(&self) -> Result<BackupEngine, Failure> {
        self.check_is_there()?;
        self.open(BackupOptions::default())
    }

    /// Opens what must be there, and leaves it as it is.
    fn look(&self, options: BackupOptions) -> Result<BackupEngine, Failure> {
        self.check_is_there()?;
        Ok(BackupEngine::open_read_only(&self.path, options)?)
    }
}

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen backup create ./quarry ./backups",
    "orogen backup create ./quarry ./backups --flush --rate 50"
))]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    backups: Backups,
    #[command(flatten)]
    pace: Pace,
    /// Write memtables into tables first instead of copying logs.
    #[arg(long)]
    flush: bool,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen backup list ./backups --json"))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    backups: Backups,
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen backup verify ./backups",
    "orogen backup verify ./backups 7 --rate 50"
))]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    backups: Backups,
    #[command(flatten)]
    pace: Pace,
    /// Number of the backup; default: all.
    id: Option<u32>,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen backup restore ./backups 7 ./quarry-again"))]
pub(crate) struct RestoreArgs {
    #[command(flatten)]
    backups: Backups,
    #[command(flatten)]
    pace: Pace,
    /// Number of the backup.
    id: u32,
    /// Directory to make; it must not exist.
    target: PathBuf,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen backup delete ./backups 7"))]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    backups: Backups,
    /// Number of the backup.
    id: u32,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen backup purge ./backups --keep 7"))]
pub(crate) struct PurgeArgs {
    #[command(flatten)]
    backups: Backups,
    /// How many to keep.
    #[arg(long, value_name = "N")]
    keep: usize,
}

pub(crate) fn run(command: BackupCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    match command {
        BackupCommand::Create(args) => create(&args, terminal),
        BackupCommand::List(args) => list(&args, terminal),
        BackupCommand::Verify(args) => verify(&args, terminal),
        BackupCommand::Restore(args) => restore(&args, terminal),
        BackupCommand::Delete(args) => delete(&args, terminal),
        BackupCommand::Purge(args) => purge(&args, terminal),
    }
}

fn to_json(b: &BackupInfo) -> Value {
    json!({
        "id": b.id,
        "timestamp": b.timestamp,
        "sequence_number": b.sequence,
        "files": b.files,
        "bytes": b.bytes,
        "own_bytes": b.own_bytes,
    })
}

fn create(args: &CreateArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    // The database first: without one no directory of backups is made.
    let db = open::read_write(&args.dir.path, terminal)?;
    let options = BackupOptions {
        flush_before_backup: args.flush,
        ..args.pace.options()
    };
    let backups = args.backups.open(options)?;
    let bar = terminal.bar(0, true, "copying");
    let made = backups.create_backup_with(&db, &mut |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let made = made?;
    db.close()?;
    if terminal.json {
        let mut document = to_json(&made.info);
        document["bytes_copied"] = made.bytes_copied.into();
        terminal.document(&document)?;
    } else {
        terminal.line(&format!(
            "backup {}: {} of {}, {} copied",
            made.info.id,
            text::plural(made.info.files as u64, "file"),
            text::size(made.info.bytes),
            text::size(made.bytes_copied),
        ))?;
    }
    Ok(())
}

fn list(args: &ListArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let backups = args.backups.look(BackupOptions::default())?;
    let (good, damaged) = (backups.list()?, backups.damaged()?);
    if terminal.json {
        let good: Vec<Value> = good.iter().map(to_json).collect();
        let damaged: Vec<Value> = damaged
            .iter()
            .map(|(id, e)| json!({ "id": id, "message": e.to_string() }))
            .collect();
        terminal.document(&json!({ "backups": good, "damaged": damaged }))?;
    } else {
        let head = format!(
            "{:>6} {:>12} {:>14} {:>6} {:>10} {:>10}",
            "id", "seconds", "sequence", "files", "size", "own"
        );
        terminal.line(&terminal.ink(Ink::Bold, &head))?;
        for b in &good {
            terminal.line(&format!(
                "{:>6} {:>12} {:>14} {:>6} {:>10} {:>10}",
                b.id,
                b.timestamp,
                b.sequence,
                b.files,
                text::size(b.bytes),
                text::size(b.own_bytes)
            ))?;
        }
        for (id, e) in &damaged {
            terminal.line(&terminal.ink(Ink::Bad, &format!("damaged: {id}: {e}")))?;
        }
    }
    told(damaged.len())
}

fn told(damaged: usize) -> Result<(), Failure> {
    match damaged as u64 {
        0 => Ok(()),
        n => Err(Failure::Damaged(format!(
            "{} damaged",
            text::plural(n, "backup")
        ))),
    }
}

fn verify(args: &VerifyArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let backups = args.backups.look(args.pace.options())?;
    let ids: Vec<u32> = match args.id {
        Some(id) => vec![id],
        None => {
            let good = backups.list()?.into_iter().map(|b| b.id);
            let mut all: Vec<u32> = good.collect();
            all.extend(backups.damaged()?.into_iter().map(|(id, _)| id));
            all.sort_unstable();
            all
        }
    };
    let mut rows = Vec::new();
    let mut damaged = 0;
    for id in ids {
        let bar = terminal.bar(0, true, &format!("verifying {id}"));
        let result = backups.verify_with(id, &mut |done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let message = match result {
            Ok(()) => None,
            Err(e) if e.kind() == orogen::ErrorKind::Corruption => Some(e.to_string()),
            Err(e) => return Err(e.into()),
        };
        damaged += usize::from(message.is_some());
        if terminal.json {
            rows.push(json!({ "id": id, "damage": message }));
        } else {
            let line = match &message {
                None => terminal.ink(Ink::Good, &format!("backup {id}: no damage found")),
                Some(m) => terminal.ink(Ink::Bad, &format!("damaged: backup {id}: {m}")),
            };
            terminal.line(&line)?;
        }
    }
    if terminal.json {
        terminal.document(&Value::from(rows))?;
    }
    told(damaged)
}

fn restore(args: &RestoreArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let backups = args.backups.look(args.pace.options())?;
    let bar = terminal.bar(0, true, "restoring");
    let mut bytes = 0;
    let result = backups.restore_with(args.id, &args.target, &mut |done, total| {
        bytes = total;
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    result?;
    if terminal.json {
        let path = args.target.display().to_string();
        terminal.document(&json!({ "id": args.id, "path": path, "bytes": bytes }))?;
    } else {
        let size = text::size(bytes);
        terminal.note(&format!("{}: {size} restored", args.target.display()));
    }
    Ok(())
}

fn delete(args: &DeleteArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    args.backups.open_existing()?.delete(args.id)?;
    if terminal.json {
        terminal.document(&json!({ "deleted": [args.id] }))?;
    }
    Ok(())
}

fn purge(args: &PurgeArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let deleted = args.backups.open_existing()?.purge_old(args.keep)?;
    if terminal.json {
        terminal.document(&json!({ "deleted": deleted }))?;
    } else {
        terminal.note(&format!(
            "{} deleted",
            text::plural(deleted.len() as u64, "backup")
        ));
    }
    Ok(())
}
