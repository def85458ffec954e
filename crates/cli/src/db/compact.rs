//! `orogen db compact`: rewrites levels without what nobody can see any more.

use std::ffi::OsString;

use orogen::{BottommostLevelCompaction, CompactRangeOptions, Db};
use orogen_env::{Clock as _, SystemClock};
use serde_json::json;

use crate::failure::{Failure, after_help};
use crate::open::{self, Dir};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db compact ./quarry",
    "orogen db compact ./quarry --column-family rocks --from a --to m --force"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Only these column families; default: all.
    #[arg(long, visible_alias = "cf", value_name = "NAME")]
    column_family: Vec<String>,
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
    let db = open::read_write(&args.dir.path)?;
    let families = if args.column_family.is_empty() {
        db.column_families()
    } else {
        args.column_family
            .iter()
            .map(|n| open::family(&db, n))
            .collect::<Result<_, _>>()?
    };
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
    for family in &families {
        let what = format!("compacting {}", family.name());
        let handle = db.compact_range_async(&options, family, from.as_deref(), to.as_deref())?;
        terminal.follow(&handle, &what)?;
    }
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
        terminal.line(&format!("before: {}", show(before)))?;
        terminal.line(&format!(
            "after:  {} in {}",
            show(after),
            text::duration(took)
        ))?;
    }
    Ok(())
}
