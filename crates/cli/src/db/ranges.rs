//! `orogen db sizes` and `orogen db delete-files`: ranges of keys as a whole.

use std::ffi::OsString;

use orogen::{SizeApproximationOptions, UserKeyRange};
use serde_json::json;

use crate::failure::{Failure, after_help, after_help_of_writer};
use crate::open::{self, DirAndFamily, Reading};
use crate::terminal::Terminal;
use crate::text;

/// The ends of a range.
#[derive(clap::Args)]
struct Ends {
    /// First key.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,
    /// First key after the range.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,
}

impl Ends {
    fn bytes(&self, terminal: &Terminal) -> Result<[Option<Vec<u8>>; 2], Failure> {
        let bytes = |arg: &Option<OsString>| arg.as_deref().map(|a| terminal.bytes(a)).transpose();
        Ok([bytes(&self.from)?, bytes(&self.to)?])
    }
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db sizes ./quarry --from a --to m",
    "orogen db sizes ./quarry --column-family rocks --json"
))]
pub(crate) struct SizesArgs {
    #[command(flatten)]
    at: DirAndFamily,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    ends: Ends,
}

pub(crate) fn sizes(args: &SizesArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let [from, to] = args.ends.bytes(terminal)?;
    let db = open::read(&args.at.dir.path, &args.reading, terminal)?;
    let family = open::family(&db, &args.at.column_family)?;
    let range = UserKeyRange {
        start: from.as_deref(),
        end: to.as_deref(),
    };
    let size = |include_files, include_memtables| {
        let options = SizeApproximationOptions {
            include_files,
            include_memtables,
        };
        db.approximate_sizes(&options, &family, &[range])
    };
    let (tables, log) = (size(true, false)?[0], size(false, true)?[0]);
    if terminal.json {
        terminal.document(&json!({ "table_bytes": tables, "memtable_bytes": log }))?;
    } else {
        terminal.line(&format!("tables    {}", text::size(tables)))?;
        terminal.line(&format!("memtables {}", text::size(log)))?;
    }
    Ok(())
}

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen db delete-files ./quarry --from a --to m",
    "orogen db delete-files ./quarry --all-keys --column-family rocks"
))]
pub(crate) struct DeleteFilesArgs {
    #[command(flatten)]
    at: DirAndFamily,
    #[command(flatten)]
    ends: Ends,
    /// Needed where neither end is given.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    all_keys: bool,
    /// The key given by --to is in the range, too.
    #[arg(long, requires = "to", conflicts_with = "all_keys")]
    include_end: bool,
}

/// Frees space: keys in level 0, in the log and in tables that the range cuts stay.
pub(crate) fn delete_files(args: &DeleteFilesArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let [from, to] = args.ends.bytes(terminal)?;
    if from.is_none() && to.is_none() && !args.all_keys {
        return Err(Failure::Usage(
            "give --from, --to or both; --all-keys if every key is meant".to_owned(),
        ));
    }
    let db = open::read_write(&args.at.dir.path, terminal)?;
    let family = open::family(&db, &args.at.column_family)?;
    let range = UserKeyRange {
        start: from.as_deref(),
        end: to.as_deref(),
    };
    let gone = db.delete_files_in_ranges(&family, &[range], args.include_end)?;
    db.close()?;
    if terminal.json {
        terminal.document(&json!({
            "tables": gone.tables,
            "bytes": gone.table_bytes,
            "garbage_blob_count": gone.garbage_blob_count,
            "garbage_blob_bytes": gone.garbage_blob_bytes,
            "blob_files": gone.blob_files,
        }))?;
    } else {
        let tables = text::plural(gone.tables.len() as u64, "table");
        let mut told = format!("{tables} of {} deleted", text::size(gone.table_bytes));
        if gone.garbage_blob_count > 0 {
            let values = text::plural(gone.garbage_blob_count, "value");
            let bytes = text::size(gone.garbage_blob_bytes);
            let files = text::plural(gone.blob_files.len() as u64, "blob file");
            told.push_str(&format!("; {values} of {bytes} died, {files} went"));
        }
        terminal.note(&told);
    }
    Ok(())
}
