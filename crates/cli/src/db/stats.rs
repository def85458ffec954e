//! `orogen db stats`: sizes and counts.

use std::collections::BTreeMap;

use orogen::{ColumnFamily, Db, LiveFile};
use orogen_engine::LiveBlobFile;
use serde_json::{Value, json};

use crate::blob::Sums;
use crate::failure::{Failure, after_help};
use crate::open::{self, Dir, Reading};
use crate::terminal::{Ink, Terminal};
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db stats ./quarry",
    "orogen db stats ./quarry --property rocksdb.levelstats"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    reading: Reading,
    /// Print this property of each family instead, such as rocksdb.stats.
    #[arg(long, value_name = "NAME")]
    property: Option<String>,
}

struct FamilyFacts {
    name: String,
    id: u32,
    comparator: String,
    files: u64,
    bytes: u64,
    keys_estimated: u64,
    memtable_entries: u64,
    memtable_bytes: u64,
    /// Files and bytes by level.
    levels: BTreeMap<usize, (u64, u64)>,
    blobs: Sums,
}

fn facts(db: &Db, family: &ColumnFamily, live: &[LiveFile], blobs: &[LiveBlobFile]) -> FamilyFacts {
    let number = |name: &str| {
        db.int_property(family, &format!("rocksdb.{name}"))
            .unwrap_or(0)
    };
    let mut levels: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
    for file in live.iter().filter(|f| f.column_family_id == family.id()) {
        let level = levels.entry(file.level).or_default();
        level.0 += 1;
        level.1 += file.size;
    }
    FamilyFacts {
        name: family.name().to_owned(),
        id: family.id(),
        comparator: family.options().comparator.name().to_owned(),
        files: levels.values().map(|l| l.0).sum(),
        bytes: levels.values().map(|l| l.1).sum(),
        keys_estimated: open::keys_estimated(db, family),
        memtable_entries: number("num-entries-active-mem-table")
            + number("num-entries-imm-mem-tables"),
        memtable_bytes: number("cur-size-all-mem-tables"),
        levels,
        blobs: Sums::of(blobs.iter().filter(|b| b.column_family == family.name())),
    }
}

fn to_json(f: &FamilyFacts) -> Value {
    let levels: Vec<Value> = f
        .levels
        .iter()
        .map(|(level, (files, bytes))| json!({ "level": level, "files": files, "bytes": bytes }))
        .collect();
    json!({
        "name": f.name,
        "id": f.id,
        "comparator": f.comparator,
        "files": f.files,
        "bytes": f.bytes,
        "keys_estimated": f.keys_estimated,
        "memtable_entries": f.memtable_entries,
        "memtable_bytes": f.memtable_bytes,
        "levels": levels,
        "blobs": f.blobs.to_json(),
    })
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let path = &args.dir.path;
    let db = open::read(path, &args.reading, terminal)?;
    let families = db.column_families();
    if let Some(name) = &args.property {
        return property(&db, &families, name, terminal);
    }
    let live = db.live_files();
    let blobs = db.live_blob_files();
    let facts: Vec<FamilyFacts> = families
        .iter()
        .map(|f| facts(&db, f, &live, &blobs))
        .collect();
    let seqno = db.latest_sequence_number();
    let bytes: u64 = facts.iter().map(|f| f.bytes).sum();
    if terminal.json {
        let families: Vec<Value> = facts.iter().map(to_json).collect();
        return Ok(terminal.document(&json!({
            "path": path.display().to_string(),
            "latest_sequence_number": seqno,
            "files": live.len(),
            "bytes": bytes,
            "blobs": Sums::of(&blobs).to_json(),
            "column_families": families,
        }))?);
    }
    terminal.line(&format!(
        "{}: {} in {}, sequence number {}",
        path.display(),
        text::size(bytes),
        text::plural(live.len() as u64, "table"),
        text::count(seqno)
    ))?;
    for f in &facts {
        terminal.line("")?;
        let title = terminal.ink(Ink::Bold, &text::escape(f.name.as_bytes()));
        terminal.line(&format!("{title}  (id {}, {})", f.id, f.comparator))?;
        let mut row = |name: &str, value: String| terminal.line(&format!("  {name:<12} {value}"));
        row("keys", format!("about {}", text::count(f.keys_estimated)))?;
        row(
            "tables",
            format!("{}, {}", text::count(f.files), text::size(f.bytes)),
        )?;
        row(
            "memtables",
            format!(
                "{}, {}",
                text::plural(f.memtable_entries, "operation"),
                text::size(f.memtable_bytes)
            ),
        )?;
        for (level, (files, bytes)) in &f.levels {
            let files = text::plural(*files, "table");
            row(
                &format!("level {level}"),
                format!("{files}, {}", text::size(*bytes)),
            )?;
        }
        if f.blobs.files > 0 {
            row(
                "blob files",
                format!(
                    "{}, {} in {}, {}",
                    text::count(f.blobs.files),
                    text::plural(f.blobs.values, "value"),
                    text::size(f.blobs.bytes),
                    f.blobs.garbage()
                ),
            )?;
            row("by garbage", f.blobs.parts())?;
        }
    }
    Ok(())
}

fn property(
    db: &Db,
    families: &[ColumnFamily],
    name: &str,
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    let mut document = serde_json::Map::new();
    for family in families {
        let Some(value) = db.property(family, name) else {
            return Err(Failure::NotFound(format!("there is no property '{name}'")));
        };
        if terminal.json {
            document.insert(family.name().to_owned(), value.into());
        } else {
            terminal.line(&format!(
                "{}: {value}",
                text::escape(family.name().as_bytes())
            ))?;
        }
    }
    if terminal.json {
        terminal.document(&Value::Object(document))?;
    }
    Ok(())
}
