//! `orogen db checkpoint`: a second database that shares tables with the first.

use std::path::PathBuf;

use serde_json::json;

use crate::failure::{Failure, after_help_of_writer};
use crate::open::{self, Dir};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!("orogen db checkpoint ./quarry ./quarry-monday"))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Directory to make; it must not exist. On the same file system tables are linked.
    target: PathBuf,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let db = open::read_write(&args.dir.path, terminal)?;
    let spinner = terminal.spinner("making the checkpoint");
    let result = db.checkpoint(&args.target);
    spinner.finish_and_clear();
    result?;
    let files = db.live_files();
    let bytes: u64 = files.iter().map(|f| f.size).sum();
    db.close()?;
    if terminal.json {
        terminal.document(&json!({
            "path": args.target.display().to_string(),
            "tables": files.len(),
            "bytes": bytes,
        }))?;
    } else {
        terminal.note(&format!(
            "{}: {} of {}",
            args.target.display(),
            text::plural(files.len() as u64, "table"),
            text::size(bytes)
        ));
    }
    Ok(())
}
