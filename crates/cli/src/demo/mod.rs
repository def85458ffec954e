//! `orogen demo`: the engine at work on real data, with proofs.
//!
//! ```text
//! package index -> records -> load: three families, atomic batches -> reads, scans, the tree
//!                          -> a writer in a process of its own, killed -> reopen -> proof; again
//! ```
//! The directory holds the marker [`directory::MARKER`], the input, and two databases:
//! `packages` from the load, `killed` from the writer. Only a directory with the marker is ever
//! emptied, and only of these.

mod control;
mod directory;
mod index;
mod load;
mod show;
mod kill;
mod proof;
mod story;

use std::path::PathBuf;
use std::process::Command;

use clap::Subcommand;
use orogen::Options;
use orogen_env::fs::read_file;
use serde_json::json;

use crate::failure::{Failure, after_help};
use crate::terminal::Terminal;
use crate::text;
use control::Records;
use directory::Directory;
pub(crate) use kill::{WriterArgs, run_writer};
use story::Story;

/// Demonstrations.
#[derive(Subcommand)]
pub(crate) enum DemoCommand {
    /// Load Debian's package index, read it, and prove that a killed writer loses nothing.
    Packages(PackagesArgs),
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen demo packages",
    "orogen demo packages --db ./demo --input ./Packages --kills 5"
))]
pub(crate) struct PackagesArgs {
    /// Directory to make; one that a demo made before is made anew, any other is left alone.
    /// Default: build/demo in a source tree, else a folder among the system's temporary files.
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    /// File with records as `apt-cache dumpavail` prints them. Default: what it prints, or
    /// dpkg's status file.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// How often the writer is killed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    kills: u32,
    /// Records of a batch.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    batch: u32,
}

/// dpkg's list of installed packages.
const STATUS_FILE: &str = "/var/lib/dpkg/status";

/// The records and where they came from.
fn input(args: &PackagesArgs) -> Result<(Vec<u8>, String), Failure> {
    let fs = Options::default().db.fs;
    if let Some(path) = &args.input {
        return Ok((read_file(&*fs, path)?, path.display().to_string()));
    }
    let printed = Command::new("apt-cache").arg("dumpavail").output();
    if let Ok(output) = printed
        && output.status.success()
        && output.stdout.iter().any(|b| !b.is_ascii_whitespace())
    {
        return Ok((output.stdout, "apt-cache dumpavail".to_owned()));
    }
    match read_file(&*fs, STATUS_FILE.as_ref()) {
        Ok(bytes) => Ok((bytes, STATUS_FILE.to_owned())),
        Err(e) => Err(Failure::NotFound(format!(
            "this machine has no package index; give one with --input ({e})"
        ))),
    }
}

pub(crate) fn run(command: DemoCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    let DemoCommand::Packages(args) = command;
    let path = args.db.clone().unwrap_or_else(directory::default_path);
    let (bytes, source) = input(&args)?;
    let records = Records::parse(&bytes);
    if records.list.len() < 2 {
        return Err(Failure::Failed(format!("{source} has no package records")));
    }
    let directory = Directory::prepare(&path)?;
    directory.keep_input(&bytes)?;

    let mut story = Story::new(terminal);
    story.heading("The data")?;
    story.say(&format!(
        "{} of {} from {source}{}",
        text::plural(records.list.len() as u64, "package record"),
        text::size(records.bytes()),
        match records.left_out {
            0 => String::new(),
            n => format!(
                " ({} without name and version, or twice, left out)",
                text::count(n)
            ),
        }
    ))?;
    story.say(&format!("directory {}", path.display()))?;
    story.fact(
        "data",
        json!({
            "source": source,
            "records": records.list.len(),
            "bytes": records.bytes(),
            "left_out": records.left_out,
            "directory": path.display().to_string(),
        }),
    );

    let batch = args.batch as usize;
    let loaded = load::run(&mut story, &directory, &records, batch)?;
    let reads = show::run(&mut story, &loaded.db, &records)?;
    loaded.db.close()?;
    let kills = kill::run(&mut story, &directory, &records, batch, args.kills)?;
    summary(&mut story, &directory, &records, &loaded, &reads, &kills)?;
    story.end()
}

fn summary(
    story: &mut Story<'_>,
    directory: &Directory,
    records: &Records<'_>,
    loaded: &load::Loaded,
    reads: &show::Reads,
    kills: &[kill::Killed],
) -> Result<(), Failure> {
    let acknowledged = kills.last().map_or(0, |k| k.acknowledged_records);
    let compared: u64 = kills
        .iter()
        .map(|k| k.proof.point_reads + k.proof.scanned)
        .sum();
    let lines = [
        format!(
            "Orogen is an embedded key-value store that keeps its data in RocksDB's file formats. \
             This demo put {} into it, each together with the entries that index it by section \
             and by what it depends on, in batches that happen as a whole or not at all.",
            text::plural(records.list.len() as u64, "Debian package record")
        ),
        format!(
            "Writing took {} ({} records/s, {:.1} MB/s). A package was then found in {:.1} us, and \
             index entries were listed at {} a second.",
            text::duration(loaded.micros),
            text::count(loaded.records_per_sec()),
            loaded.megabytes_per_sec(),
            reads.micros_per_get,
            text::count(reads.scanned_per_sec)
        ),
        format!(
            "Then a second process wrote the same records into a second database and told of \
             each batch as soon as it was written. It was killed without warning in the middle of \
             its work, {} in a row. After each kill the database was opened again and compared \
             with what had been told, {} in all. Of the {} that had been told of in the end none \
             was missing and none had changed; no index entry stood without its record and no \
             record without its index entries.",
            text::plural(kills.len() as u64, "time"),
            text::plural(compared, "comparison"),
            text::plural(acknowledged, "record"),
        ),
    ];
    story.heading("Summary")?;
    for line in &lines {
        story.paragraph(line)?;
    }
    let packages = directory.packages().display().to_string();
    let killed = directory.killed().display().to_string();
    story.say("The databases are ordinary directories. Try:")?;
    for command in [
        format!("orogen db tree {packages} --files"),
        format!("orogen db scan {packages} --cf by-section --prefix editors --limit 5"),
        format!("orogen db check {killed}"),
        format!("ldb --db={packages} --column_family=packages scan --max_keys=1"),
    ] {
        story.say(&format!("  {command}"))?;
    }
    Ok(())
}
