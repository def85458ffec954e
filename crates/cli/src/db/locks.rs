//! `orogen db locks`: what prepared writes keep locked.

use orogen::txn::lock_manager::{Endpoint, LockStatus, Wanted};
use orogen::txn::{TransactionDb, TransactionDbOptions};
use serde_json::json;

use crate::failure::{Failure, after_help};
use crate::open::{self, Dir};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(
    long_about = "Print the keys and ranges that a TransactionDb of this directory holds locked as soon as it is open, for \
                  prepared writes that were neither committed nor rolled back. Locks of a process that has the directory open are in its \
                  memory: it tells them by LockManager::lock_status.",
    after_help = after_help!("orogen db locks ./quarry", "orogen db locks ./quarry --json")
)]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
}

/// An end of a range; prepared writes have such as begin with a key and end before one.
fn end(terminal: &Terminal, at: &Endpoint<Box<[u8]>>) -> String {
    match at {
        Endpoint::First => "the first key".to_owned(),
        Endpoint::Before(key) => terminal.show(key),
        Endpoint::After(key) => format!("after {}", terminal.show(key)),
        Endpoint::AfterPrefix(key) => format!("after all that begin with {}", terminal.show(key)),
        Endpoint::Last => "the last key".to_owned(),
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let db = TransactionDb::new(
        open::read_only(&args.dir.path, terminal)?,
        TransactionDbOptions::default(),
    )?;
    let names = |lock: &LockStatus| {
        let names = lock.holders.iter().filter_map(|&txn| db.prepared_name(txn));
        names.map(|name| terminal.show(&name)).collect::<Vec<_>>()
    };
    let families = db.db().column_families();
    let family = |id: u32| {
        let family = families.iter().find(|f| f.id() == id);
        family.map_or_else(|| id.to_string(), |f| f.name().to_owned())
    };
    let mut rows = Vec::new();
    for lock in db.locks().lock_status() {
        let (start, end) = match &lock.what {
            Wanted::Key(key) => (terminal.show(key), None),
            Wanted::Range(range) => (end(terminal, &range.start), Some(end(terminal, &range.end))),
        };
        rows.push((family(lock.family), start, end, names(&lock)));
    }
    rows.sort();
    if terminal.json {
        let row = |(family, start, end, names): &(_, _, Option<String>, _)| match end {
            None => json!({ "column_family": family, "key": start, "prepared": names }),
            Some(end) => {
                json!({ "column_family": family, "start": start, "end": end, "prepared": names })
            }
        };
        let all: Vec<_> = rows.iter().map(row).collect();
        return Ok(terminal.document(&json!({ "locks": all }))?);
    }
    let count = rows.len() as u64;
    for (family, start, end, names) in rows {
        let what = match end {
            None => start,
            Some(end) => format!("[{start}, {end})"),
        };
        let family = text::escape(family.as_bytes());
        terminal.line(&format!("{family}\t{what}\t{}", names.join(" ")))?;
    }
    terminal.note(&text::plural(count, "lock"));
    Ok(())
}
