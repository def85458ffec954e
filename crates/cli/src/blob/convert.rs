//! `orogen blob convert`: brings large values to blob files, or back.

use orogen::{ConvertTo, ConvertValuesOptions, Converted};
use orogen_env::{Clock as _, SystemClock};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help_of_rewriter};
use crate::open::{self, Dir, Families};
use crate::terminal::Terminal;
use crate::text;

/// Where values are to be.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Place {
    /// In blob files.
    Separated,
    /// In the tables.
    Inline,
}

#[derive(clap::Args)]
#[command(after_help = after_help_of_rewriter!(
    "orogen blob convert ./quarry --to separated --min-blob-size 8192",
    "orogen blob convert ./quarry --column-family rocks --to inline"
))]
pub(crate) struct ConvertArgs {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    families: Families,
    /// Where large values are to be. The OPTIONS file is told, and jobs of who opens with it go on so.
    #[arg(long, value_enum)]
    to: Place,
    /// To separated: values of so many bytes and more are large; default: as the OPTIONS file has it.
    #[arg(long, value_name = "BYTES")]
    min_blob_size: Option<u64>,
}

fn to_json(family: &str, converted: &Converted) -> Value {
    json!({
        "column_family": family,
        "whole": converted.is_whole(),
        "tables_rewritten": converted.tables_rewritten,
        "table_bytes_read": converted.table_bytes_read,
        "bytes_written": converted.bytes_written,
        "tables_left": converted.tables_left,
        "blob_files_left": converted.blob_files_left,
    })
}

fn to_text(family: &str, converted: &Converted) -> String {
    let mut line = format!(
        "{}: {} rewritten, {} read, {} written",
        text::escape(family.as_bytes()),
        text::plural(converted.tables_rewritten, "table"),
        text::size(converted.table_bytes_read),
        text::size(converted.bytes_written)
    );
    for (what, left) in [
        ("table", &converted.tables_left),
        ("blob file", &converted.blob_files_left),
    ] {
        if !left.is_empty() {
            let count = text::plural(left.len() as u64, what);
            line.push_str(&format!(", {count} left: {left:?}"));
        }
    }
    line
}

pub(super) fn run(args: &ConvertArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let (to, place) = match args.to {
        Place::Separated => (ConvertTo::Separated, "separated"),
        Place::Inline => (ConvertTo::Inline, "inline"),
    };
    if to == ConvertTo::Inline && args.min_blob_size.is_some() {
        return Err(Failure::Usage(
            "--min-blob-size is for --to separated".to_owned(),
        ));
    }
    let db = open::read_write_as_set(&args.dir.path, terminal)?;
    let options = ConvertValuesOptions {
        min_blob_size: args.min_blob_size,
    };
    let start = SystemClock.now_micros();
    let mut begun = Vec::new();
    args.families.work(&db, terminal, "converting", |family| {
        let handle = db.convert_values_async(family, to, &options)?;
        let job = handle.job().clone();
        begun.push((family.name().to_owned(), handle));
        Ok(job)
    })?;
    let mut done = Vec::new();
    for (name, handle) in begun {
        done.push((name, handle.wait()?));
    }
    let took = SystemClock.now_micros() - start;
    // Files that are done with go before the command ends.
    db.wait_for_background_work()?;
    db.close()?;
    if terminal.json {
        let families: Vec<Value> = done.iter().map(|(name, c)| to_json(name, c)).collect();
        terminal.document(&json!({
            "path": args.dir.path.display().to_string(),
            "to": place,
            "column_families": families,
            "micros": took,
        }))?;
    } else {
        for (name, converted) in &done {
            terminal.line(&to_text(name, converted))?;
        }
        terminal.line(&format!("values are {place} in {}", text::duration(took)))?;
    }
    match done.iter().all(|(_, c)| c.is_whole()) {
        true => Ok(()),
        false => Err(Failure::Damaged(
            "some values are where they were: `orogen db check` tells what is damaged".to_owned(),
        )),
    }
}
