//! `orogen db compact`: rewrites levels without what nobody can see any more.

use std::ffi::OsString;

use orogen::{BottommostLevelCompaction, CompactRangeOptions, Db};
use orogen_env::{Clock as _, SystemClock};
use serde_json::json;

use crate::failure::{Failure, after_help_of_writer};
use crate::open::{self, Dir, Families};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen db compact ./quarry",
    "orogen db compact ./quarry --column-family rocks --from a --to m --force"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    families: Families,
    /// First key.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,
    /// Last key.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,
    /// Rewrite the tables of the last level, too.
    #[arg(long)]
    force: bool,
}

fn tables(db: &Db) -> (u64, u64) {
    let files = db.live_files();
    (files.len() as u64, files.iter().map(|f| f.size).sum())
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let bytes = |arg: &Option<OsString>| arg.as_deref().map(|a| terminal.bytes(a)).transpose();
    let (from, to) = (bytes(&args.from)?, bytes(&args.to)?);
    let db = open::read_write(&args.dir.path, terminal)?;
    let options = CompactRangeOptions {
        bottommost_level_compaction: if args.force {
            BottommostLevelCompaction::Force
        } else {
            BottommostLevelCompaction::default()
        },
        ..CompactRangeOptions::default()
    };
    let before = tables(&db);
    let start = SystemClock.now_micros();
    args.families.work(&db, terminal, "compacting", |family| {
        db.compact_range_async(&options, family, from.as_deref(), to.as_deref())
    })?;
    let after = tables(&db);
    let took = SystemClock.now_micros() - start;
    db.close()?;
    if terminal.json {
        terminal.document(&json!({
            "tables_before": before.0,
            "bytes_before": before.1,
            "tables_after": after.0,
            "bytes_after": after.1,
            "micros": took,
        }))?;
    } else {
        let show = |(n, bytes): (u64, u64)| {
            format!("{} of {}", text::plural(n, "table"), text::size(bytes))
        };
        terminal.change(&show(before), &show(after), took)?;
    }
    Ok(())
}
