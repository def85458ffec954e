//! `orogen db updates`: the writes that are still in the logs.

use orogen::Result;
use serde_json::{Value, json};

use crate::failure::{Failure, after_help};
use crate::open::{self, Dir};
use crate::terminal::Terminal;
use crate::text;
use crate::wal::{operation_json, operation_text};

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db updates ./quarry",
    "orogen db updates ./quarry --since 1000 --limit 10 --json"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// First sequence number; default: the oldest that is there.
    #[arg(long, value_name = "N")]
    since: Option<u64>,
    /// At most so many batches.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Print values of any length whole.
    #[arg(long)]
    whole_values: bool,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let db = open::read_only(&args.dir.path, terminal)?;
    let updates = match (args.since, db.get_updates_since(args.since.unwrap_or(0))) {
        (None, Err(e)) => {
            // It says what is there.
            let oldest = e.context("oldest").and_then(|n| n.parse().ok());
            let next = db.latest_sequence_number() + 1;
            db.get_updates_since(oldest.unwrap_or(next))?
        }
        (_, other) => other?,
    };
    if terminal.json {
        terminal.begin_items("[", "]\n")?;
    }
    let mut batches = 0;
    for update in updates.take(args.limit.unwrap_or(usize::MAX)) {
        let update = update?;
        batches += 1;
        if terminal.json {
            let operations = update
                .batch
                .iter()
                .map(|op| op.map(|op| operation_json(terminal, &op)))
                .collect::<Result<Vec<Value>>>()?;
            terminal.item(&json!({
                "sequence_number": update.sequence,
                "count": update.batch.count(),
                "operations": operations,
            }))?;
        } else {
            let head = format!(
                "sequence {} count {}",
                update.sequence,
                update.batch.count()
            );
            terminal.line(&head)?;
            for op in &update.batch {
                let line = operation_text(args.whole_values, terminal, &op?);
                terminal.line(&format!("  {line}"))?;
            }
        }
    }
    if terminal.json {
        terminal.end_items("]\n")?;
    } else {
        terminal.note(&text::plural(batches, "batch"));
    }
    Ok(())
}
