//! `orogen db repair`: a new directory out of what can be read of a damaged one.

use std::path::PathBuf;

use orogen::engine::repair::{self, ManifestState, RepairReport, TableDamage};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help};
use crate::open::Dir;
use crate::terminal::{Ink, Terminal};
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db repair ./quarry                    (tells what would be done, changes nothing)",
    "orogen db repair ./quarry --to ./quarry-new"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Directory to make; it must not exist. Without it nothing is made. The old directory is
    /// never changed.
    #[arg(long, value_name = "NEW")]
    to: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let dir = &args.dir.path;
    if !dir.is_dir() {
        let dir = dir.display();
        return Err(Failure::NotFound(format!("there is no directory {dir}")));
    }
    let options = orogen::Options::default();
    let bar = terminal.bar(0, true, "reading tables");
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let result = match &args.to {
        None => repair::examine(dir, &options, &mut progress),
        Some(to) => repair::repair(dir, to, &options, &mut progress),
    };
    bar.finish_and_clear();
    let report = result?;
    let healthy = report.is_healthy();
    let made = args.to.as_ref().filter(|_| !healthy);
    if terminal.json {
        let mut document = to_json(&report, terminal);
        document["repaired_to"] = made.map(|to| to.display().to_string()).into();
        terminal.document(&document)?;
    } else {
        tell(&report, terminal)?;
        match made {
            Some(to) => terminal.note(&format!("made {}", to.display())),
            None if healthy => terminal.line(&terminal.ink(Ink::Good, "nothing to repair"))?,
            None => {
                terminal.note("nothing was changed; --to NEW makes a directory of what is left")
            }
        }
    }
    if healthy || made.is_some() {
        return Ok(());
    }
    Err(Failure::Damaged("the directory needs repair".to_owned()))
}

fn manifest_text(state: &ManifestState) -> String {
    match state {
        ManifestState::Current(n) => format!("MANIFEST-{n:06}, read whole"),
        ManifestState::Found(n) => format!("MANIFEST-{n:06}, which CURRENT does not name"),
        ManifestState::Lost(e) => format!("none: families and tables as the tables tell ({e})"),
    }
}

fn lost_text(table: &TableDamage, terminal: &Terminal) -> Vec<String> {
    table
        .lost
        .iter()
        .map(|lost| {
            let after = lost.after.as_ref().map_or_else(
                || "the first key".to_owned(),
                |k| format!("'{}'", terminal.show(k)),
            );
            let up_to = lost.up_to.as_ref().map_or_else(
                || "the last key".to_owned(),
                |k| format!("'{}'", terminal.show(k)),
            );
            format!(
                "lost: keys from {after} to {up_to}, {} at offset {}",
                text::size(lost.bytes),
                lost.offset
            )
        })
        .collect()
}

fn tell(report: &RepairReport, terminal: &mut Terminal) -> Result<(), Failure> {
    let names = report.families.iter();
    let names: Vec<String> = names.map(|f| text::escape(f.1.as_bytes())).collect();
    for (name, what) in [
        ("manifest", manifest_text(&report.manifest)),
        ("column families", names.join(", ")),
        (
            "tables",
            format!(
                "{} whole, {} damaged, {} entries",
                text::count(report.tables_whole),
                text::count(report.tables_damaged.len() as u64),
                text::count(report.table_entries)
            ),
        ),
        (
            "logs",
            format!(
                "{} to take, {} damaged",
                text::plural(report.log_operations, "operation"),
                text::count(report.logs_damaged.len() as u64)
            ),
        ),
    ] {
        terminal.line(&format!("{name:<16} {what}"))?;
    }
    let damaged = &report.blob_files_damaged;
    if report.blob_files_whole > 0 || !damaged.is_empty() || report.values_lost_count > 0 {
        terminal.line(&format!(
            "{:<16} {} whole, {} damaged, {} lost",
            "blob files",
            text::count(report.blob_files_whole),
            text::count(damaged.len() as u64),
            text::plural(report.values_lost_count, "value")
        ))?;
    }
    if !report.tables_ignored.is_empty() {
        let n = text::plural(report.tables_ignored.len() as u64, "table");
        terminal.line(&format!(
            "{:<16} {n} that the MANIFEST does not list",
            "left out"
        ))?;
    }
    if !report.tables_of_unknown_age.is_empty() {
        let n = text::plural(report.tables_of_unknown_age.len() as u64, "table");
        let what = "taken in from elsewhere: without a MANIFEST they count as the oldest";
        terminal.line(&format!("{:<16} {n} {what}", "unknown age"))?;
    }
    for table in &report.tables_damaged {
        let family = match table.column_family.as_str() {
            "" => "of an unknown column family".to_owned(),
            name => format!("of {name}"),
        };
        let error = table
            .error
            .as_ref()
            .map_or_else(String::new, |e| format!(": {e}"));
        let kept = text::count(table.entries);
        let line = format!(
            "table {:06} {family}, {kept} entries kept{error}",
            table.number
        );
        terminal.line(&terminal.ink(Ink::Bad, &line))?;
        for line in lost_text(table, terminal) {
            terminal.line(&format!("  {line}"))?;
        }
        if table.range_tombstones_lost {
            terminal.line("  range deletions may be lost: what they deleted may show again")?;
        }
    }
    for file in &report.blob_files_damaged {
        let family = match file.column_family.as_str() {
            "" => "of an unknown column family".to_owned(),
            name => format!("of {name}"),
        };
        let kept = text::plural(file.values, "value");
        let line = format!(
            "blob file {:06} {family}, {kept} kept: {}",
            file.number, file.error
        );
        terminal.line(&terminal.ink(Ink::Bad, &line))?;
    }
    for lost in &report.values_lost {
        terminal.line(&format!(
            "  lost: value of '{}' in {}, by table {:06}{}: {}",
            terminal.show(&lost.key),
            lost.column_family,
            lost.table,
            lost.blob_file
                .map_or_else(String::new, |n| format!(" and blob file {n:06}")),
            lost.error
        ))?;
    }
    let told = report.values_lost.len() as u64;
    if told < report.values_lost_count {
        let more = text::plural(report.values_lost_count - told, "value");
        terminal.line(&format!("  lost: {more} more"))?;
    }
    for name in &report.prepared_left_out {
        let line = format!(
            "prepared, not committed, and not taken: '{}'",
            terminal.show(name)
        );
        terminal.line(&terminal.ink(Ink::Bad, &line))?;
    }
    for log in &report.logs_damaged {
        for error in &log.errors {
            let line = format!("log {:06}: {error}", log.number);
            terminal.line(&terminal.ink(Ink::Bad, &line))?;
        }
    }
    Ok(())
}

fn to_json(report: &RepairReport, terminal: &Terminal) -> Value {
    let key = |k: &Option<Vec<u8>>| k.as_ref().map(|k| terminal.show(k));
    let tables: Vec<Value> = report
        .tables_damaged
        .iter()
        .map(|t| {
            let lost: Vec<Value> = t
                .lost
                .iter()
                .map(|l| {
                    json!({
                        "offset": l.offset,
                        "bytes": l.bytes,
                        "after": key(&l.after),
                        "up_to": key(&l.up_to),
                        "message": l.error.to_string(),
                    })
                })
                .collect();
            json!({
                "number": t.number,
                "column_family": t.column_family,
                "level": t.level,
                "message": t.error.as_ref().map(ToString::to_string),
                "entries_kept": t.entries,
                "range_deletions_lost": t.range_tombstones_lost,
                "not_taken": t.unassigned,
                "lost": lost,
            })
        })
        .collect();
    let logs: Vec<Value> = report
        .logs_damaged
        .iter()
        .map(|l| {
            let errors: Vec<String> = l.errors.iter().map(ToString::to_string).collect();
            json!({ "number": l.number, "errors": errors })
        })
        .collect();
    let families: Vec<Value> = report
        .families
        .iter()
        .map(|(id, name)| json!({ "id": id, "name": name }))
        .collect();
    let blob_files: Vec<Value> = report
        .blob_files_damaged
        .iter()
        .map(|f| {
            json!({
                "number": f.number,
                "column_family": f.column_family,
                "values_kept": f.values,
                "message": f.error.to_string(),
            })
        })
        .collect();
    let values: Vec<Value> = report
        .values_lost
        .iter()
        .map(|v| {
            json!({
                "column_family": v.column_family,
                "key": terminal.show(&v.key),
                "table": v.table,
                "blob_file": v.blob_file,
                "message": v.error.to_string(),
            })
        })
        .collect();
    json!({
        "healthy": report.is_healthy(),
        "manifest": manifest_text(&report.manifest),
        "column_families": families,
        "tables_whole": report.tables_whole,
        "tables_damaged": tables,
        "tables_ignored": report.tables_ignored,
        "tables_of_unknown_age": report.tables_of_unknown_age,
        "table_entries": report.table_entries,
        "blob_files_whole": report.blob_files_whole,
        "blob_files_damaged": blob_files,
        "values_lost": values,
        "values_lost_count": report.values_lost_count,
        "log_operations": report.log_operations,
        "logs_damaged": logs,
        "prepared_left_out": report.prepared_left_out.iter().map(|n| terminal.show(n)).collect::<Vec<_>>(),
    })
}
