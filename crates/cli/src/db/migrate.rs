//! `orogen db migrate`: a new directory out of one that another engine wrote.

use std::path::PathBuf;

use clap::ValueEnum;
use orogen::engine::migrate::{
    FamilyReport, Phase, TitanOptions, TitanReport, examine_titan, migrate_titan,
};
use orogen::{CompressionType, Options};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help};
use crate::open;
use crate::terminal::{Ink, Terminal};
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db migrate --from titan ./tikv/db ./moved --dry-run",
    "orogen db migrate --from titan ./tikv/db ./moved --threads 4",
    "orogen db migrate --from titan ./tikv/db ./moved --skip-damaged   (4 if a value was lost)"
))]
pub(crate) struct Args {
    /// What wrote the directory.
    #[arg(long, value_enum)]
    from: From,
    /// Directory to read; it is never changed. Nobody may have it open.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Directory to make; it must not exist. It appears when it is whole: until then it is
    /// TARGET.tmp, which the next run removes.
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// Values of so many bytes and more go to blob files, the others into the tables.
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    min_blob_size: u64,
    /// All values go into the tables.
    #[arg(long, conflicts_with = "min_blob_size")]
    inline: bool,
    /// Codec of values in blob files; without it that of the newest blob file of each family.
    #[arg(long, value_enum, value_name = "CODEC")]
    compression: Option<Codec>,
    /// Directory of Titan's files, if it is not SOURCE/titandb.
    #[arg(long, value_name = "DIR")]
    titan_dir: Option<PathBuf>,
    /// Directory of the logs, if they are not in SOURCE.
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
    /// Threads that merge and write.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Look at everything but the values, tell what would be done, and make nothing.
    #[arg(long)]
    dry_run: bool,
    /// Go on where a value is damaged: its key is told and not taken, nor are merge operands above the value.
    #[arg(long)]
    skip_damaged: bool,
    /// Do not compare free space with what the new directory takes, about.
    #[arg(long)]
    no_space_check: bool,
}

/// Where directories can come from.
#[derive(Clone, Copy, ValueEnum)]
enum From {
    /// Titan: RocksDB with large values in a directory titandb.
    Titan,
}

/// The codecs that are written.
#[derive(Clone, Copy, ValueEnum)]
enum Codec {
    None,
    Snappy,
    Lz4,
    Lz4hc,
    Zstd,
}

impl Codec {
    fn kind(self) -> CompressionType {
        match self {
            Self::None => CompressionType::None,
            Self::Snappy => CompressionType::Snappy,
            Self::Lz4 => CompressionType::Lz4,
            Self::Lz4hc => CompressionType::Lz4hc,
            Self::Zstd => CompressionType::Zstd,
        }
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let From::Titan = args.from;
    let source = &args.source;
    if !source.is_dir() {
        let source = source.display();
        return Err(Failure::NotFound(format!("there is no directory {source}")));
    }
    let mut options = Options::default();
    options.db.info_log = false;
    match open::known_options(source, options.clone(), terminal) {
        Ok(stored) => options = stored,
        Err(e) => terminal.note(&format!("orogen: settings are the defaults: {e}")),
    }
    let titan = TitanOptions {
        titan_dir: args.titan_dir.clone(),
        wal_dir: args.wal_dir.clone(),
        min_blob_size: (!args.inline).then_some(args.min_blob_size),
        compression: args.compression.map(Codec::kind),
        skip_damaged: args.skip_damaged,
        check_space: !args.no_space_check,
        threads: usize::from(args.threads),
    };
    let files = terminal.bar(0, false, "looking at files");
    let bytes = terminal.bar(0, true, "moving");
    let watch = |phase, done, all| {
        let bar = match phase {
            Phase::Examine => &files,
            Phase::Migrate => &bytes,
        };
        bar.set_length(all);
        bar.set_position(done);
        true
    };
    let result = match args.dry_run {
        true => examine_titan(source, &options, &titan, &watch),
        false => migrate_titan(source, &args.target, &options, &titan, &watch),
    };
    files.finish_and_clear();
    bytes.finish_and_clear();
    let report = result?;
    if terminal.json {
        terminal.document(&to_json(&report, args, terminal))?;
    } else {
        tell(&report, args, terminal)?;
    }
    let lost = report.values_lost_count;
    if lost > 0 {
        let what = text::plural(lost, "value");
        return Err(Failure::Damaged(format!("{what} could not be read")));
    }
    // A dry run tells what a run would stop at.
    if args.dry_run && !report.files_damaged.is_empty() {
        return Err(Failure::Damaged(
            "live blob files are missing or damaged".to_owned(),
        ));
    }
    Ok(())
}

fn what_becomes(family: &FamilyReport) -> &'static str {
    match family.is_merged {
        true => "merged",
        false => "tables as they are",
    }
}

fn tell(report: &TitanReport, args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    for family in &report.families {
        let name = text::escape(family.name.as_bytes());
        terminal.line(&terminal.ink(Ink::Bold, &name))?;
        let of = |n, noun, bytes| format!("{} of {}", text::plural(n, noun), text::size(bytes));
        let mut lines = vec![
            ("tables", of(family.tables, "table", family.table_bytes)),
            (
                "blob files",
                format!(
                    "{}, of which tables point to {}",
                    of(family.blob_files, "file", family.blob_file_bytes),
                    text::size(family.referenced_bytes)
                ),
            ),
            ("logs", text::plural(family.log_operations, "operation")),
            ("becomes", what_becomes(family).to_owned()),
        ];
        if report.made.is_some() && family.is_merged {
            lines.push((
                "taken",
                format!(
                    "{}, {} of blob files with {}",
                    text::plural(family.entries, "entry"),
                    text::plural(family.values, "value"),
                    text::size(family.value_bytes)
                ),
            ));
        }
        for (name, what) in lines {
            terminal.line(&format!("  {name:<12} {what}"))?;
        }
    }
    if !report.files_not_live.is_empty() {
        let n = text::plural(report.files_not_live.len() as u64, "blob file");
        terminal.line(&format!("left out: {n} that nobody has"))?;
    }
    for log in &report.logs_torn {
        terminal.line(&format!(
            "log {log:06} ends in a torn record, as a crash leaves it"
        ))?;
    }
    for file in &report.files_damaged {
        let line = format!(
            "blob file {:06} of {}: {}",
            file.number, file.column_family, file.error
        );
        terminal.line(&terminal.ink(Ink::Bad, &line))?;
    }
    for lost in &report.values_lost {
        let line = format!(
            "lost: value of '{}' in {}: {}",
            terminal.show(&lost.key),
            lost.column_family,
            lost.error
        );
        terminal.line(&terminal.ink(Ink::Bad, &line))?;
    }
    let told = report.values_lost.len() as u64;
    if told < report.values_lost_count {
        let more = text::plural(report.values_lost_count - told, "value");
        terminal.line(&format!("lost: {more} more"))?;
    }
    match &report.made {
        Some(made) => {
            terminal.line(&format!(
                "made {}: {} of {}, {} of {}",
                args.target.display(),
                text::plural(made.tables, "table"),
                text::size(made.table_bytes),
                text::plural(made.blob_files, "blob file"),
                text::size(made.blob_file_bytes)
            ))?;
        }
        None => terminal.note(&format!(
            "nothing was made; it would take about {}",
            text::size(report.bytes_needed)
        )),
    }
    Ok(())
}

fn to_json(report: &TitanReport, args: &Args, terminal: &Terminal) -> Value {
    let families: Vec<Value> = report
        .families
        .iter()
        .map(|f| {
            json!({
                "id": f.id,
                "name": f.name,
                "tables": f.tables,
                "table_bytes": f.table_bytes,
                "blob_files": f.blob_files,
                "blob_file_bytes": f.blob_file_bytes,
                "referenced_bytes": f.referenced_bytes,
                "log_operations": f.log_operations,
                "merged": f.is_merged,
                "blob_compression": f.blob_compression.name(),
                "entries": f.entries,
                "values": f.values,
                "value_bytes": f.value_bytes,
            })
        })
        .collect();
    let damaged: Vec<Value> = report
        .files_damaged
        .iter()
        .map(|f| {
            json!({
                "number": f.number,
                "column_family": f.column_family,
                "message": f.error.to_string(),
            })
        })
        .collect();
    let lost: Vec<Value> = report
        .values_lost
        .iter()
        .map(|v| {
            json!({
                "column_family": v.column_family,
                "key": terminal.show(&v.key),
                "blob_file": v.blob_file,
                "message": v.error.to_string(),
            })
        })
        .collect();
    let made = report.made.as_ref().map(|made| {
        json!({
            "path": args.target.display().to_string(),
            "tables": made.tables,
            "table_bytes": made.table_bytes,
            "blob_files": made.blob_files,
            "blob_file_bytes": made.blob_file_bytes,
        })
    });
    json!({
        "column_families": families,
        "blob_files_damaged": damaged,
        "blob_files_not_live": report.files_not_live,
        "logs_torn": report.logs_torn,
        "bytes_needed": report.bytes_needed,
        "values_lost": lost,
        "values_lost_count": report.values_lost_count,
        "made": made,
    })
}
