//! `orogen db prepared`: writes that wait for their second phase.

use std::ffi::OsString;

use orogen::WriteOptions;
use serde_json::json;

use crate::failure::{Failure, after_help_of_writer};
use crate::open::{self, Dir};
use crate::terminal::Terminal;
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen db prepared ./quarry",
    "orogen db prepared ./quarry --commit order-4711"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Let what is prepared under this name take effect.
    #[arg(long, value_name = "NAME", conflicts_with = "rollback")]
    commit: Option<OsString>,
    /// Forget what is prepared under this name.
    #[arg(long, value_name = "NAME")]
    rollback: Option<OsString>,
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let synced = WriteOptions {
        sync: true,
        ..WriteOptions::default()
    };
    let db = match (&args.commit, &args.rollback) {
        (None, None) => open::read_only(&args.dir.path, terminal)?,
        (commit, rollback) => {
            let db = open::read_write(&args.dir.path, terminal)?;
            if let Some(name) = commit {
                db.commit_prepared(&synced, &terminal.bytes(name)?)?;
            }
            if let Some(name) = rollback {
                db.rollback_prepared(&synced, &terminal.bytes(name)?)?;
            }
            db
        }
    };
    let prepared = db.prepared_writes();
    db.close()?;
    if terminal.json {
        let all = prepared.iter().map(|p| {
            json!({
                "name": terminal.show(&p.name),
                "operations": p.operations,
                "bytes": p.bytes,
            })
        });
        let all: Vec<_> = all.collect();
        return terminal
            .document(&json!({ "prepared": all }))
            .map_err(Into::into);
    }
    for p in &prepared {
        terminal.line(&format!(
            "{}\t{}, {}",
            terminal.show(&p.name),
            text::plural(u64::from(p.operations), "operation"),
            text::size(p.bytes as u64)
        ))?;
    }
    terminal.note(&text::plural(prepared.len() as u64, "prepared write"));
    Ok(())
}
