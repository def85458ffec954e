//! `orogen db put`, `get` and `delete`: one key.

use std::ffi::OsString;

use orogen::{ReadOptions, WriteOptions};
use serde_json::json;

use crate::failure::{Failure, after_help, after_help_of_writer};
use crate::open::{self, DirAndFamily, Reading};
use crate::perf::{self, Perf};
use crate::terminal::Terminal;

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen db put ./quarry granite hard",
    "orogen db put ./quarry --hex 00ff 68617264 --sync"
))]
pub(crate) struct PutArgs {
    #[command(flatten)]
    at: DirAndFamily,
    /// Key.
    #[arg(allow_hyphen_values = true)]
    key: OsString,
    /// Value.
    #[arg(allow_hyphen_values = true)]
    value: OsString,
    /// Return only when the write survives a power loss.
    #[arg(long)]
    sync: bool,
}

pub(crate) fn put(args: &PutArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let (key, value) = (terminal.bytes(&args.key)?, terminal.bytes(&args.value)?);
    let db = open::read_write(&args.at.dir.path, terminal)?;
    let family = open::family(&db, &args.at.column_family)?;
    let options = WriteOptions {
        sync: args.sync,
        ..WriteOptions::default()
    };
    db.put_opt(&options, &family, &key, &value)?;
    let seqno = db.latest_sequence_number();
    db.close()?;
    done(terminal, &key, seqno)
}

/// A write says nothing but to programs.
fn done(terminal: &mut Terminal, key: &[u8], seqno: u64) -> Result<(), Failure> {
    if terminal.json {
        let document = json!({ "key": terminal.show(key), "sequence_number": seqno });
        terminal.document(&document)?;
    }
    Ok(())
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db get ./quarry granite",
    "orogen db get ./quarry --hex 00ff",
    "orogen db get ./quarry granite --perf"
))]
pub(crate) struct GetArgs {
    #[command(flatten)]
    at: DirAndFamily,
    #[command(flatten)]
    reading: Reading,
    /// Key.
    #[arg(allow_hyphen_values = true)]
    key: OsString,
    #[command(flatten)]
    perf: Perf,
    /// Print the value's bytes without a line end.
    #[arg(long, conflicts_with_all = ["json", "hex"])]
    raw: bool,
}

pub(crate) fn get(args: &GetArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let key = terminal.bytes(&args.key)?;
    let db = open::read(&args.at.dir.path, &args.reading, terminal)?;
    let family = open::family(&db, &args.at.column_family)?;
    let (value, counted) = args
        .perf
        .measure(|| db.get_opt(&ReadOptions::default(), &family, &key));
    let Some(value) = value? else {
        // What a get in vain costs is what one asks for most.
        perf::tell(terminal, counted.as_ref());
        return Err(Failure::NotFound(format!(
            "there is no key '{}'",
            terminal.show(&key)
        )));
    };
    if terminal.json {
        let mut document = json!({ "key": terminal.show(&key), "value": terminal.show(&value) });
        if let Some(counted) = &counted {
            document["perf"] = perf::as_json(counted);
        }
        terminal.document(&document)?;
        return Ok(());
    } else if terminal.hex {
        terminal.line(&terminal.show(&value))?;
    } else {
        terminal.raw(&value)?;
        if !args.raw {
            terminal.raw(b"\n")?;
        }
    }
    perf::tell(terminal, counted.as_ref());
    Ok(())
}

#[derive(clap::Args)]
#[command(after_help = after_help_of_writer!(
    "orogen db delete ./quarry granite",
    "orogen db delete ./quarry a --end b     (all keys from a up to but not including b)"
))]
pub(crate) struct DeleteArgs {
    #[command(flatten)]
    at: DirAndFamily,
    /// Key, or the first key of a range.
    #[arg(allow_hyphen_values = true)]
    key: OsString,
    /// Delete all keys from KEY up to but not including this one.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    end: Option<OsString>,
    /// Return only when the write survives a power loss.
    #[arg(long)]
    sync: bool,
}

pub(crate) fn delete(args: &DeleteArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let key = terminal.bytes(&args.key)?;
    let end = args.end.as_deref().map(|e| terminal.bytes(e)).transpose()?;
    let db = open::read_write(&args.at.dir.path, terminal)?;
    let family = open::family(&db, &args.at.column_family)?;
    let options = WriteOptions {
        sync: args.sync,
        ..WriteOptions::default()
    };
    match end {
        Some(end) => db.delete_range_opt(&options, &family, &key, &end)?,
        None => {
            if db
                .get_opt(&ReadOptions::default(), &family, &key)?
                .is_none()
            {
                let key = terminal.show(&key);
                return Err(Failure::NotFound(format!("there is no key '{key}'")));
            }
            db.delete_opt(&options, &family, &key)?;
        }
    }
    let seqno = db.latest_sequence_number();
    db.close()?;
    done(terminal, &key, seqno)
}
