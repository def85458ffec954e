//! `orogen db scan`: keys and values in order.

use std::ffi::OsString;

use orogen::{DbIterator, ReadOptions};
use serde_json::json;

use crate::failure::{Failure, after_help};
use crate::open::{self, DirAndFamily, Reading};
use crate::perf::{self, Perf};
use crate::terminal::Terminal;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db scan ./quarry --prefix gra --limit 10",
    "orogen db scan ./quarry --from b --to d --reverse --keys-only",
    "orogen db scan ./quarry --count",
    "orogen db scan ./quarry --prefix gra --count --perf"
))]
pub(crate) struct Args {
    #[command(flatten)]
    at: DirAndFamily,
    #[command(flatten)]
    reading: Reading,
    /// First key.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    from: Option<OsString>,
    /// First key that is not printed any more.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    to: Option<OsString>,
    /// Only keys that begin so.
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    prefix: Option<OsString>,
    /// At most so many entries.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// From the last key to the first.
    #[arg(long)]
    reverse: bool,
    /// Without values.
    #[arg(long)]
    keys_only: bool,
    /// Print only how many entries there are.
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    perf: Perf,
}

/// The first key after all that begin with `prefix`, in the order of bytes.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut end = prefix[..=kept].to_vec();
    end[kept] += 1;
    Some(end)
}

fn step(iter: &mut DbIterator, reverse: bool) {
    if reverse {
        iter.prev();
    } else {
        iter.next();
    }
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let bytes = |arg: &Option<OsString>| arg.as_deref().map(|a| terminal.bytes(a)).transpose();
    let (from, to, prefix) = (bytes(&args.from)?, bytes(&args.to)?, bytes(&args.prefix)?);
    let db = open::read(&args.at.dir.path, &args.reading, terminal)?;
    let family = open::family(&db, &args.at.column_family)?;
    let bytewise = family.options().comparator.is_bytewise();
    // Values that nobody asks for are not read out of blob files.
    let needs_values = if args.count {
        terminal.json
    } else {
        !args.keys_only
    };
    let mut options = ReadOptions {
        fill_cache: false,
        allow_unprepared_value: !needs_values,
        ..ReadOptions::default()
    };
    (options.iterate_lower_bound, options.iterate_upper_bound) = (from, to);
    // In another order the keys of a prefix need not be neighbours.
    if let (Some(prefix), true) = (&prefix, bytewise) {
        options.iterate_upper_bound = prefix_end(prefix);
        options.iterate_lower_bound = Some(prefix.clone());
    }
    let list = !args.count;
    if list && terminal.json {
        let (open, ends) = match args.perf.is_asked() {
            true => ("{\"entries\": [", "]}\n"),
            false => ("[", "]\n"),
        };
        terminal.begin_items(open, ends)?;
    }
    let (scanned, counted) = args.perf.measure(|| {
        let iter = db.iter(&options, &family)?;
        scan(args, terminal, iter, prefix.as_deref(), needs_values)
    });
    let found = scanned?;
    let counted = counted.as_ref();
    if !terminal.json {
        if args.count {
            terminal.line(&found.entries.to_string())?;
        }
        perf::tell(terminal, counted);
    } else if list {
        let close = counted.map_or_else(
            || "]\n".to_owned(),
            |c| format!("],\n\"perf\": {}}}\n", perf::as_json(c)),
        );
        terminal.end_items(&close)?;
    } else {
        let mut document = json!({
            "entries": found.entries,
            "key_bytes": found.key_bytes,
            "value_bytes": found.value_bytes,
        });
        if let Some(counted) = counted {
            document["perf"] = perf::as_json(counted);
        }
        terminal.document(&document)?;
    }
    Ok(())
}

#[derive(Default)]
struct Found {
    entries: u64,
    key_bytes: u64,
    value_bytes: u64,
}

/// Goes over the entries, and prints them unless they are only counted.
fn scan(
    args: &Args,
    terminal: &mut Terminal,
    mut iter: DbIterator,
    prefix: Option<&[u8]>,
    needs_values: bool,
) -> Result<Found, Failure> {
    let limit = args.limit.unwrap_or(u64::MAX);
    let mut found = Found::default();
    if limit == 0 {
        return Ok(found);
    }
    if args.reverse {
        iter.seek_to_last();
    } else {
        iter.seek_to_first();
    }
    while iter.valid() {
        if prefix.is_none_or(|p| iter.key().starts_with(p)) {
            found.entries += 1;
            found.key_bytes += iter.key().len() as u64;
            if needs_values {
                found.value_bytes += iter.value().len() as u64;
            }
            if !args.count {
                print(args, terminal, &iter)?;
            }
            // What is behind the last one may be damaged, or large.
            if found.entries == limit {
                return Ok(found);
            }
        }
        step(&mut iter, args.reverse);
    }
    iter.status()?;
    Ok(found)
}

fn print(args: &Args, terminal: &mut Terminal, iter: &DbIterator) -> Result<(), Failure> {
    let key = terminal.show(iter.key());
    if terminal.json {
        let item = if args.keys_only {
            json!({ "key": key })
        } else {
            json!({ "key": key, "value": terminal.show(iter.value()) })
        };
        terminal.item(&item)?;
    } else if args.keys_only {
        terminal.line(&key)?;
    } else {
        let value = terminal.show(iter.value());
        terminal.line(&format!("{key}\t{value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::prefix_end;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(prefix_end(b"ab").unwrap(), b"ac");
        assert_eq!(prefix_end(b"a\xff\xff").unwrap(), b"b");
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
