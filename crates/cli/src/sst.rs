//! `orogen sst`: a table file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Subcommand;
use orogen::{ErrorKind, Options, UserComparator};
use orogen_base::coding::get_varint64;
use orogen_base::key::ParsedInternalKey;
use orogen_base::seqno::SeqNo;
use orogen_base::{Error, InternalIterator as _};
use orogen_engine::filename::{self, FileKind};
use orogen_env::Access;
use orogen_sst::dump::BlockInfo;
use orogen_sst::{TableProperties, TableReadOptions, TableReader, TableReaderOptions};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, after_help};
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Commands on a table file.
#[derive(Subcommand)]
pub(crate) enum SstCommand {
    /// Print properties, and blocks and entries on request.
    Dump(DumpArgs),
    /// Verify every checksum and the order of the entries.
    Check(CheckArgs),
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen sst dump ./quarry/000012.sst",
    "orogen sst dump ./quarry/000012.sst --blocks --entries --limit 20"
))]
pub(crate) struct DumpArgs {
    /// Table file.
    file: PathBuf,
    /// List the blocks.
    #[arg(long)]
    blocks: bool,
    /// List the entries.
    #[arg(long)]
    entries: bool,
    /// At most so many entries.
    #[arg(long, value_name = "N", requires = "entries")]
    limit: Option<u64>,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen sst check ./quarry/000012.sst"))]
pub(crate) struct CheckArgs {
    /// Table file.
    file: PathBuf,
}

pub(crate) fn run(command: SstCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    match command {
        SstCommand::Dump(args) => dump(&args, terminal),
        SstCommand::Check(args) => check(&args, terminal),
    }
}

/// Opens a table in the order in which it was written.
fn open(path: &Path) -> Result<Arc<TableReader>, Failure> {
    let fs = Options::default().db.fs;
    let file = fs.open(path, Access::Sequential)?;
    let size = file.size()?;
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let number = match filename::parse(name) {
        Some(FileKind::Table(number)) => number,
        _ => 0,
    };
    let options = |comparator| TableReaderOptions {
        comparator,
        file_number: number,
        ..Default::default()
    };
    let first = TableReader::open(file.clone(), size, options(UserComparator::BYTEWISE));
    let Err(e) = first else {
        return Ok(first?);
    };
    // Of other kinds of tables the error has the kind's name there.
    let is_order = e.kind() == ErrorKind::InvalidArgument;
    let Some(name) = e.context("table").filter(|_| is_order) else {
        return Err(e.into());
    };
    match UserComparator::by_name(name) {
        Some(order) => Ok(TableReader::open(file, size, options(order))?),
        None => {
            let error = Error::not_supported("table has an order that is not built in");
            Err(error.with("comparator", name).into())
        }
    }
}

/// Properties that are text under their names.
const TEXT_PROPERTIES: [&str; 11] = [
    "rocksdb.creating.db.identity",
    "rocksdb.creating.session.identity",
    "rocksdb.creating.host.identity",
    "rocksdb.filter.policy",
    "rocksdb.column.family.name",
    "rocksdb.comparator",
    "rocksdb.merge.operator",
    "rocksdb.prefix.extractor.name",
    "rocksdb.property.collectors",
    "rocksdb.compression",
    "rocksdb.compression_options",
];

fn property_values(properties: &TableProperties) -> Map<String, Value> {
    let entries = properties.to_entries();
    entries
        .into_iter()
        .map(|(name, bytes)| {
            let is_number = !TEXT_PROPERTIES.contains(&name.as_str())
                && !properties.user_collected.contains_key(&name);
            let value = match get_varint64(&bytes) {
                Some((n, _)) if is_number => n.into(),
                _ => text::escape(&bytes).into(),
            };
            (name, value)
        })
        .collect()
}

fn block_json(b: &BlockInfo) -> Value {
    json!({
        "kind": format!("{:?}", b.kind),
        "offset": b.handle.offset,
        "bytes": b.handle.size,
        "raw_bytes": b.raw_size,
        "compression": format!("{:?}", b.compression),
    })
}

fn dump(args: &DumpArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let table = open(&args.file)?;
    let properties = property_values(&table.properties());
    if terminal.json {
        let head = json!({
            "file": args.file.display().to_string(),
            "bytes": table.file_size(),
            "format_version": table.format_version(),
            "properties": properties,
        });
        let head = head.to_string();
        terminal.raw(head.strip_suffix('}').unwrap_or(&head).as_bytes())?;
    } else {
        terminal.line(&format!(
            "{}: {}, format version {}",
            args.file.display(),
            text::size(table.file_size()),
            table.format_version()
        ))?;
        section(terminal, "Properties")?;
        for (name, value) in &properties {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            terminal.line(&format!("  {name:<52} {value}"))?;
        }
    }
    if args.blocks {
        dump_blocks(&table, terminal)?;
    }
    if args.entries {
        dump_entries(args, &table, terminal)?;
    }
    if terminal.json {
        terminal.raw(b"}\n")?;
    }
    Ok(())
}

fn section(terminal: &mut Terminal, title: &str) -> std::io::Result<()> {
    terminal.line("")?;
    terminal.line(&terminal.ink(Ink::Bold, title))
}

fn dump_blocks(table: &Arc<TableReader>, terminal: &mut Terminal) -> Result<(), Failure> {
    if terminal.json {
        terminal.begin_items(",\"blocks\":[", "]}\n")?;
    } else {
        section(terminal, "Blocks")?;
        let names = ("offset", "stored", "raw", "codec");
        let (offset, stored, raw, codec) = names;
        terminal.line(&format!(
            "  {offset:>12} {stored:>10} {raw:>10}  {codec:<8} kind"
        ))?;
    }
    for block in table.blocks() {
        let b = block?;
        if terminal.json {
            terminal.item(&block_json(&b))?;
        } else {
            terminal.line(&format!(
                "  {:>12} {:>10} {:>10}  {:<8} {:?}",
                b.handle.offset,
                b.handle.size,
                b.raw_size,
                format!("{:?}", b.compression),
                b.kind
            ))?;
        }
    }
    if terminal.json {
        terminal.end_items("]")?;
    }
    Ok(())
}

fn dump_entries(
    args: &DumpArgs,
    table: &Arc<TableReader>,
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    if terminal.json {
        terminal.begin_items(",\"entries\":[", "]}\n")?;
    } else {
        section(terminal, "Entries")?;
    }
    let mut iter = table.iter(TableReadOptions::compaction());
    let mut left = args.limit.unwrap_or(u64::MAX);
    if left > 0 {
        iter.seek_to_first();
    }
    while left > 0 && iter.valid() {
        let key = ParsedInternalKey::parse(iter.key())?;
        let kind = format!("{:?}", key.kind);
        print_entry(
            terminal,
            key.user_key,
            key.seqno,
            &kind,
            ("value", iter.value()),
        )?;
        left -= 1;
        // What is behind the last one may be damaged.
        if left > 0 {
            iter.next();
        }
    }
    if left > 0 {
        iter.status()?;
    }
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    for (start, end, seqno) in table.range_tombstones().iter().take(left) {
        print_entry(terminal, start, seqno, "RangeDeletion", ("end", end))?;
    }
    if terminal.json {
        terminal.end_items("]")?;
    }
    Ok(())
}

fn print_entry(
    terminal: &mut Terminal,
    user_key: &[u8],
    seqno: SeqNo,
    kind: &str,
    (name, value): (&str, &[u8]),
) -> Result<(), Failure> {
    let (user_key, value) = (terminal.show(user_key), terminal.show(value));
    if terminal.json {
        terminal.item(&json!({
            "key": user_key,
            "sequence_number": seqno,
            "kind": kind,
            name: value,
        }))
    } else {
        terminal.line(&format!("  {user_key} @{seqno} {kind}\t{value}"))
    }?;
    Ok(())
}

fn check(args: &CheckArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let table = open(&args.file)?;
    let bar = terminal.bar(table.file_size(), true, "checking blocks");
    let (mut blocks, mut stored, mut raw) = (0u64, 0u64, 0u64);
    for block in table.blocks() {
        let block = block?;
        blocks += 1;
        stored += block.handle.size;
        raw += block.raw_size as u64;
        bar.inc(block.handle.size);
    }
    bar.finish_and_clear();
    let properties = table.properties();
    let comparator = UserComparator::by_name(&properties.comparator).unwrap_or_default();
    let icmp = orogen_base::key::InternalKeyComparator::new(comparator);
    let mut iter = table.iter(TableReadOptions::compaction());
    let mut last: Vec<u8> = Vec::new();
    let mut entries = 0u64;
    iter.seek_to_first();
    while iter.valid() {
        let key = ParsedInternalKey::parse(iter.key())?;
        if entries > 0 && icmp.compare(&last, iter.key()).is_ge() {
            let error = Error::corruption("entries of the table are not in order")
                .with("file", args.file.display())
                .with("key", text::escape(key.user_key));
            return Err(error.into());
        }
        last.clear();
        last.extend_from_slice(iter.key());
        entries += 1;
        iter.next();
    }
    iter.status()?;
    let expected = properties
        .num_entries
        .saturating_sub(properties.num_range_deletions);
    if entries != expected {
        let error = Error::corruption("table has another number of entries than it says")
            .with("file", args.file.display())
            .with("entries", entries)
            .with("expected", expected);
        return Err(error.into());
    }
    if terminal.json {
        terminal.document(&json!({
            "file": args.file.display().to_string(),
            "bytes": table.file_size(),
            "blocks": blocks,
            "stored_bytes": stored,
            "raw_bytes": raw,
            "entries": entries,
            "range_deletions": properties.num_range_deletions,
        }))?;
    } else {
        terminal.line(&format!(
            "{}: no damage found in {} ({} stored, {} raw) with {}",
            args.file.display(),
            text::plural(blocks, "block"),
            text::size(stored),
            text::size(raw),
            text::plural(entries, "entry")
        ))?;
    }
    Ok(())
}
