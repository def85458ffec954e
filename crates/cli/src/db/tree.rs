//! `orogen db tree`: the shape of the LSM tree.
//!
//! Every level of every family is a line: a bar to the scale of the largest level, files,
//! bytes, and the keys it spans. New data is at the top and sinks. Blob files are a line below.

use std::collections::BTreeMap;

use orogen::{Db, LiveFile, UserComparator};
use orogen_engine::LiveBlobFile;
use serde_json::{Value, json};

use crate::blob::{self, Sums};
use crate::failure::{Failure, after_help};
use crate::open::{self, Dir, Reading};
use crate::terminal::{Ink, Terminal};
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db tree ./quarry",
    "orogen db tree ./quarry --files --ascii"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    reading: Reading,
    /// List the tables of each level, and the blob files.
    #[arg(long)]
    files: bool,
    /// Draw with ASCII characters only.
    #[arg(long)]
    ascii: bool,
}

/// How a tree is drawn.
pub(crate) struct Style {
    /// Bars of eighths of a character instead of `#`.
    pub(crate) unicode: bool,
    /// A line for each table and blob file.
    pub(crate) files: bool,
    /// Families without data, too.
    pub(crate) empty: bool,
}

const BAR_WIDTH: usize = 30;
const KEY_WIDTH: usize = 24;

/// A bar of `part` of `whole`; whatever is there shows.
fn bar(part: u64, whole: u64, unicode: bool) -> String {
    if part == 0 || whole == 0 {
        return String::new();
    }
    let eighths = (part as f64 / whole as f64 * (BAR_WIDTH * 8) as f64).round() as usize;
    let eighths = eighths.clamp(1, BAR_WIDTH * 8);
    if !unicode {
        return "#".repeat(eighths.div_ceil(8));
    }
    let mut out = "\u{2588}".repeat(eighths / 8);
    // The blocks from one to seven eighths stand in falling order behind the full one.
    if let Some(last) = char::from_u32(0x2590 - (eighths % 8) as u32)
        && !eighths.is_multiple_of(8)
    {
        out.push(last);
    }
    out
}

fn key(terminal: &Terminal, key: &[u8]) -> String {
    text::shorten(&terminal.show(key), KEY_WIDTH)
}

fn range(terminal: &Terminal, files: &[&LiveFile], order: &UserComparator) -> String {
    let smallest = files
        .iter()
        .map(|f| &f.smallest)
        .min_by(|a, b| order.compare(a, b));
    let largest = files
        .iter()
        .map(|f| &f.largest)
        .max_by(|a, b| order.compare(a, b));
    smallest.zip(largest).map_or_else(String::new, |(a, b)| {
        format!("{} -> {}", key(terminal, a), key(terminal, b))
    })
}

struct FamilyShape<'a> {
    name: String,
    keys: u64,
    memtable_entries: u64,
    memtable_bytes: u64,
    order: UserComparator,
    levels: BTreeMap<usize, Vec<&'a LiveFile>>,
    /// How many blob files a scan of one table reads from by turns at most, by level.
    depths: BTreeMap<usize, u64>,
    blobs: Vec<&'a LiveBlobFile>,
}

fn shapes<'a>(db: &Db, live: &'a [LiveFile], blobs: &'a [LiveBlobFile]) -> Vec<FamilyShape<'a>> {
    let families = db.column_families();
    families
        .iter()
        .map(|family| {
            let number = |name: &str| {
                db.int_property(family, &format!("rocksdb.{name}"))
                    .unwrap_or(0)
            };
            let mut levels: BTreeMap<usize, Vec<&LiveFile>> = BTreeMap::new();
            for file in live.iter().filter(|f| f.column_family_id == family.id()) {
                levels.entry(file.level).or_default().push(file);
            }
            let memtable_entries =
                number("num-entries-active-mem-table") + number("num-entries-imm-mem-tables");
            FamilyShape {
                name: family.name().to_owned(),
                keys: open::keys_estimated(db, family),
                memtable_entries,
                // An empty memtable has memory, too, but nothing in it.
                memtable_bytes: if memtable_entries == 0 {
                    0
                } else {
                    number("cur-size-all-mem-tables")
                },
                order: family.options().comparator.clone(),
                depths: blob::depths(db, family, live),
                levels,
                blobs: blobs
                    .iter()
                    .filter(|b| b.column_family == family.name())
                    .collect(),
            }
        })
        .collect()
}

fn bytes_of(files: &[&LiveFile]) -> u64 {
    files.iter().map(|f| f.size).sum()
}

/// The tree in lines.
pub(crate) fn draw(db: &Db, terminal: &Terminal, style: &Style) -> Vec<String> {
    let (live, blobs) = (db.live_files(), db.live_blob_files());
    let shapes = shapes(db, &live, &blobs);
    let whole = shapes
        .iter()
        .flat_map(|s| {
            s.levels
                .values()
                .map(|f| bytes_of(f))
                .chain([s.memtable_bytes, Sums::of(s.blobs.iter().copied()).bytes])
        })
        .max()
        .unwrap_or(0);
    let mut lines = Vec::new();
    for shape in &shapes {
        if !style.empty && shape.levels.is_empty() && shape.memtable_entries == 0 {
            continue;
        }
        if !lines.is_empty() {
            lines.push(String::new());
        }
        let title = terminal.ink(Ink::Bold, &text::escape(shape.name.as_bytes()));
        lines.push(format!(
            "{title}  about {}",
            text::plural(shape.keys, "key")
        ));
        let row = |name: &str, bytes: u64, what: String, size: String, keys: String| {
            let bar = bar(bytes, whole, style.unicode);
            let pad = " ".repeat(BAR_WIDTH - bar.chars().count());
            let bar = terminal.ink(Ink::Accent, &bar);
            let keys = terminal.ink(Ink::Faint, &keys);
            format!("  {name:<4} {bar}{pad} {what:>16} {size:>11}  {keys}")
                .trim_end()
                .to_owned()
        };
        lines.push(row(
            "mem",
            shape.memtable_bytes,
            text::plural(shape.memtable_entries, "operation"),
            text::size(shape.memtable_bytes),
            String::new(),
        ));
        for (level, files) in &shape.levels {
            let bytes = bytes_of(files);
            lines.push(row(
                &format!("L{level}"),
                bytes,
                text::plural(files.len() as u64, "table"),
                text::size(bytes),
                range(terminal, files, &shape.order),
            ));
            for file in files.iter().filter(|_| style.files) {
                let line = format!(
                    "       {:06}.sst {:>11}  {}  sequence {} to {}",
                    file.number,
                    text::size(file.size),
                    range(terminal, &[file], &shape.order),
                    file.smallest_seqno,
                    file.largest_seqno
                );
                lines.push(terminal.ink(Ink::Faint, &line));
            }
        }
        if shape.blobs.is_empty() {
            continue;
        }
        let sums = Sums::of(shape.blobs.iter().copied());
        lines.push(row(
            "blob",
            sums.bytes,
            text::plural(sums.files, "file"),
            text::size(sums.bytes),
            sums.garbage(),
        ));
        lines.push(terminal.ink(
            Ink::Faint,
            &format!("       files by garbage: {}", sums.parts()),
        ));
        if let Some(told) = blob::depths_told(&shape.depths) {
            lines.push(terminal.ink(Ink::Faint, &format!("       {told}")));
        }
        for &file in shape.blobs.iter().filter(|_| style.files) {
            let line = format!(
                "       {:06}.blob {:>10}  {}, {}",
                file.number,
                text::size(file.total_blob_bytes),
                text::plural(file.total_blob_count, "value"),
                Sums::of([file]).garbage()
            );
            lines.push(terminal.ink(Ink::Faint, &line));
        }
    }
    lines
}

fn to_json(terminal: &Terminal, shape: &FamilyShape<'_>) -> Value {
    let levels: Vec<Value> = shape
        .levels
        .iter()
        .map(|(level, files)| {
            let tables: Vec<Value> = files
                .iter()
                .map(|f| {
                    json!({
                        "file": format!("{:06}.sst", f.number),
                        "bytes": f.size,
                        "smallest": terminal.show(&f.smallest),
                        "largest": terminal.show(&f.largest),
                        "smallest_sequence_number": f.smallest_seqno,
                        "largest_sequence_number": f.largest_seqno,
                        "being_compacted": f.being_compacted,
                    })
                })
                .collect();
            json!({
                "level": level,
                "bytes": bytes_of(files),
                "max_blob_reference_depth": shape.depths.get(level),
                "tables": tables,
            })
        })
        .collect();
    let mut blobs = Sums::of(shape.blobs.iter().copied()).to_json();
    blobs["blob_files"] = shape
        .blobs
        .iter()
        .map(|b| {
            json!({
                "file": format!("{:06}.blob", b.number),
                "values": b.total_blob_count,
                "bytes": b.total_blob_bytes,
                "garbage_values": b.garbage_blob_count,
                "garbage_bytes": b.garbage_blob_bytes,
            })
        })
        .collect();
    json!({
        "name": shape.name,
        "keys_estimated": shape.keys,
        "memtable_entries": shape.memtable_entries,
        "memtable_bytes": shape.memtable_bytes,
        "levels": levels,
        "blobs": blobs,
    })
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let path = &args.dir.path;
    let db = open::read(path, &args.reading, terminal)?;
    let live = db.live_files();
    let bytes: u64 = live.iter().map(|f| f.size).sum();
    if terminal.json {
        let blobs = db.live_blob_files();
        let families: Vec<Value> = shapes(&db, &live, &blobs)
            .iter()
            .map(|s| to_json(terminal, s))
            .collect();
        let document = json!({
            "path": path.display().to_string(),
            "tables": live.len(),
            "bytes": bytes,
            "column_families": families,
        });
        return Ok(terminal.document(&document)?);
    }
    terminal.line(&format!(
        "{}: {} in {}, sequence number {}",
        path.display(),
        text::size(bytes),
        text::plural(live.len() as u64, "table"),
        text::count(db.latest_sequence_number())
    ))?;
    terminal.line("")?;
    let style = Style {
        unicode: terminal.unicode && !args.ascii,
        files: args.files,
        empty: true,
    };
    for line in draw(&db, terminal, &style) {
        terminal.line(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_to_scale_and_never_vanish() {
        assert_eq!(bar(0, 10, true), "");
        assert_eq!(bar(10, 10, false), "#".repeat(BAR_WIDTH));
        assert_eq!(bar(5, 10, true), "\u{2588}".repeat(BAR_WIDTH / 2));
        assert_eq!(bar(1, 1 << 40, false), "#");
        assert_eq!(bar(1, 1 << 40, true), "\u{258f}");
        // Seven eighths of one character.
        assert_eq!(bar(7, BAR_WIDTH as u64 * 8, true), "\u{2589}");
    }
}
