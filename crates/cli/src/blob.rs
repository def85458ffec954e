//! `orogen blob`: the files of large values.

mod convert;
mod gc;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use orogen::{ColumnFamily, Db, LiveFile, Options};
use orogen_base::{Error, ErrorKind, FileNo};
use orogen_blob::dump::{self, DumpSummary, Piece};
use orogen_blob::{BlobFileReader, BlobFileReaderOptions, BlobRecord};
use orogen_engine::filename::{self, FileKind};
use orogen_engine::{BlobFileCheck, BlobFilesFound, LiveBlobFile};
use orogen_env::{Access, FileSystem};
use serde_json::{Map, Value, json};

use crate::failure::{Failure, after_help};
use crate::open::{self, Dir, Reading};
use crate::terminal::{Ink, Terminal};
use crate::text;

/// Commands on blob files.
#[derive(Subcommand)]
pub(crate) enum BlobCommand {
    /// List the blob files of a database, what of them is garbage, and how many one table reads by turns.
    List(ListArgs),
    /// Print the records of a blob file.
    Dump(DumpArgs),
    /// Follow all pointers of a database, and count the garbage anew.
    Check(CheckArgs),
    /// Empty files with much garbage, and give back the space of dead values in the others, as holes of whole blocks.
    Gc(gc::GcArgs),
    /// Bring large values from the tables to blob files, or back. Stopped halfway, it goes on with the next call.
    Convert(convert::ConvertArgs),
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen blob list ./quarry", "orogen blob list ./quarry --json"))]
pub(crate) struct ListArgs {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    reading: Reading,
}

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen blob dump ./quarry/000012.blob",
    "orogen blob dump ./quarry/000012.blob --values --limit 20"
))]
pub(crate) struct DumpArgs {
    /// Blob file.
    file: PathBuf,
    /// Print the values too. Only then they are read and their checksums verified.
    #[arg(long)]
    values: bool,
    /// Print at most so many records. The file is gone through to its end all the same.
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
}

#[derive(clap::Args)]
#[command(after_help = after_help!("orogen blob check ./quarry", "orogen blob check ./quarry --no-follow"))]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    reading: Reading,
    /// Read and verify the value behind each pointer: the default.
    #[arg(long, overrides_with = "no_follow")]
    follow: bool,
    /// Only count the pointers. Of a blob file no more than header and footer is looked at.
    #[arg(long, overrides_with = "follow")]
    no_follow: bool,
}

pub(crate) fn run(command: BlobCommand, terminal: &mut Terminal) -> Result<(), Failure> {
    match command {
        BlobCommand::List(args) => list(&args, terminal),
        BlobCommand::Dump(args) => dump_file(&args, terminal),
        BlobCommand::Check(args) => check(&args, terminal),
        BlobCommand::Gc(args) => gc::run(&args, terminal),
        BlobCommand::Convert(args) => convert::run(&args, terminal),
    }
}

/// Several blob files together.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    pub(crate) files: u64,
    pub(crate) values: u64,
    pub(crate) bytes: u64,
    pub(crate) garbage_values: u64,
    pub(crate) garbage_bytes: u64,
    /// What is left of the files beside holes.
    kept_bytes: u64,
    /// Files whose garbage is no more than so many percent and more than the bound before.
    by_garbage: [u64; GARBAGE_PERCENTS.len()],
}

/// Bounds that files are counted by.
const GARBAGE_PERCENTS: [u64; 5] = [0, 20, 50, 80, 100];

impl Sums {
    pub(crate) fn of<'f>(files: impl IntoIterator<Item = &'f LiveBlobFile>) -> Self {
        files.into_iter().fold(Self::default(), |mut sums, f| {
            sums.files += 1;
            sums.values += f.total_blob_count;
            sums.bytes += f.total_blob_bytes;
            sums.garbage_values += f.garbage_blob_count;
            sums.garbage_bytes += f.garbage_blob_bytes;
            sums.kept_bytes += f.kept_bytes;
            let bound = f.garbage_percent_le();
            let part = GARBAGE_PERCENTS.iter().position(|&p| p >= bound);
            sums.by_garbage[part.unwrap_or(GARBAGE_PERCENTS.len() - 1)] += 1;
            sums
        })
    }

    /// Bytes that the files keep on the disk for each byte that a pointer leads to; 0 if there is none. This is what
    /// `max_space_amp` bounds.
    fn space_amplification(&self) -> f64 {
        match self.bytes.saturating_sub(self.garbage_bytes) {
            0 => 0.0,
            live => self.kept_bytes as f64 / live as f64,
        }
    }

    pub(crate) fn to_json(self) -> Value {
        let by_garbage = GARBAGE_PERCENTS.iter().zip(self.by_garbage);
        let by_garbage: Vec<Value> = by_garbage
            .map(|(percent, files)| json!({ "percent_le": percent, "files": files }))
            .collect();
        json!({
            "files": self.files,
            "values": self.values,
            "bytes": self.bytes,
            "garbage_values": self.garbage_values,
            "garbage_bytes": self.garbage_bytes,
            "space_amplification": self.space_amplification(),
            "files_by_garbage": by_garbage,
        })
    }

    /// Files by how much of them is garbage.
    pub(crate) fn parts(&self) -> String {
        let parts = GARBAGE_PERCENTS.iter().zip(self.by_garbage);
        let parts = parts.filter(|(_, files)| *files > 0);
        let parts: Vec<String> = parts
            .map(|(percent, files)| match percent {
                0 => format!("{} without", text::count(files)),
                _ => format!("{} up to {percent} %", text::count(files)),
            })
            .collect();
        parts.join(", ")
    }

    /// How much is garbage.
    pub(crate) fn garbage(&self) -> String {
        format!(
            "{} garbage ({:.1} %)",
            text::size(self.garbage_bytes),
            percent(self.garbage_bytes, self.bytes)
        )
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 * 100.0 / whole as f64,
    }
}

/// Bytes of a file, and those of the blocks that it takes; none if it is not there.
fn on_disk(fs: &dyn FileSystem, path: &Path) -> Result<Option<(u64, u64)>, Failure> {
    match fs.metadata(path) {
        Ok(m) => Ok(Some((m.size, m.allocated))),
        Err(e) if e.is_file_not_found() => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// How many blob files a scan of one table reads from by turns at most, by level with tables.
pub(crate) fn depths(db: &Db, family: &ColumnFamily, live: &[LiveFile]) -> BTreeMap<usize, u64> {
    let levels = live.iter().filter(|f| f.column_family_id == family.id());
    let levels: BTreeSet<usize> = levels.map(|f| f.level).collect();
    let depth = |level| {
        let name = format!("orogen.max-blob-reference-depth-at-level{level}");
        db.int_property(family, &name).unwrap_or(0)
    };
    levels.into_iter().map(|l| (l, depth(l))).collect()
}

/// The same for people; none where no table points to a blob file.
pub(crate) fn depths_told(depths: &BTreeMap<usize, u64>) -> Option<String> {
    let deep = depths.iter().filter(|(_, depth)| **depth > 0);
    let told: Vec<String> = deep.map(|(level, d)| format!("L{level} {d}")).collect();
    (!told.is_empty()).then(|| {
        format!(
            "most files that one table reads by turns: {}",
            told.join(", ")
        )
    })
}

fn list(args: &ListArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let fs = Options::default().db.fs;
    let dir = &args.dir.path;
    let db = open::read(dir, &args.reading, terminal)?;
    let files = db.live_blob_files();
    let mut rows = Vec::with_capacity(files.len());
    for file in &files {
        rows.push((file, on_disk(&*fs, &filename::blob_path(dir, file.number))?));
    }
    let sums = Sums::of(&files);
    let allocated: u64 = rows.iter().filter_map(|r| r.1).map(|d| d.1).sum();
    let (families, live) = (db.column_families(), db.live_files());
    let families: Vec<_> = families
        .iter()
        .map(|family| (family.name(), depths(&db, family, &live)))
        .collect();
    if terminal.json {
        let listed: Vec<Value> = rows
            .iter()
            .map(|(f, disk)| {
                json!({
                    "column_family": f.column_family,
                    "file": name_of(f.number),
                    "number": f.number,
                    "values": f.total_blob_count,
                    "bytes": f.total_blob_bytes,
                    "garbage_values": f.garbage_blob_count,
                    "garbage_bytes": f.garbage_blob_bytes,
                    "garbage_percent": percent(f.garbage_blob_bytes, f.total_blob_bytes),
                    "given_up_bytes": f.given_up_bytes,
                    "file_bytes": disk.map(|d| d.0),
                    "disk_bytes": disk.map(|d| d.1),
                })
            })
            .collect();
        let mut total = sums.to_json();
        total["disk_bytes"] = allocated.into();
        total["space_amplification"] = sums.space_amplification().into();
        let deepest = families.iter().flat_map(|(_, depths)| depths.values());
        total["max_blob_reference_depth"] = deepest.max().copied().unwrap_or(0).into();
        let level = |(level, depth): (&usize, &u64)| json!({ "level": level, "max_blob_reference_depth": depth });
        let families = families.iter().map(|(name, depths)| {
            let levels: Vec<Value> = depths.iter().map(level).collect();
            json!({ "column_family": name, "levels": levels })
        });
        return Ok(terminal.document(&json!({
            "path": dir.display().to_string(),
            "blob_files": listed,
            "column_families": families.collect::<Vec<Value>>(),
            "total": total,
        }))?);
    }
    terminal.line(&format!(
        "{:<16} {:>12} {:>10} {:>11} {:>10} {:>11} {:>7} {:>11}",
        "family", "file", "values", "bytes", "garbage", "bytes", "share", "on disk"
    ))?;
    for (f, disk) in &rows {
        terminal.line(&format!(
            "{:<16} {:>12} {:>10} {:>11} {:>10} {:>11} {:>5.1} % {:>11}",
            text::shorten(&text::escape(f.column_family.as_bytes()), 16),
            name_of(f.number),
            text::count(f.total_blob_count),
            text::size(f.total_blob_bytes),
            text::count(f.garbage_blob_count),
            text::size(f.garbage_blob_bytes),
            percent(f.garbage_blob_bytes, f.total_blob_bytes),
            disk.map_or_else(|| "missing".to_owned(), |d| text::size(d.1)),
        ))?;
    }
    for (name, depths) in &families {
        if let Some(told) = depths_told(depths) {
            let name = text::shorten(&text::escape(name.as_bytes()), 16);
            terminal.line(&format!("{name:<16} {told}"))?;
        }
    }
    Ok(terminal.line(&format!(
        "{}: {} in {}, {}, {} on disk, space amplification {:.2}",
        text::plural(sums.files, "blob file"),
        text::plural(sums.values, "value"),
        text::size(sums.bytes),
        sums.garbage(),
        text::size(allocated),
        sums.space_amplification()
    ))?)
}

fn name_of(number: FileNo) -> String {
    format!("{number:06}.blob")
}

/// Opens a blob file of any family. One that was not finished is gone through as far as it holds.
fn open_file(path: &Path) -> Result<(BlobFileReader, Option<Error>), Failure> {
    let fs = Options::default().db.fs;
    let file = fs.open(path, Access::Sequential)?;
    let size = file.size()?;
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    let options = BlobFileReaderOptions {
        file_number: match filename::parse(name) {
            Some(FileKind::Blob(number)) => number,
            _ => 0,
        },
        ..BlobFileReaderOptions::default()
    };
    match BlobFileReader::open(file.clone(), size, options.clone()) {
        Ok(reader) => Ok((reader, None)),
        Err(e) if e.kind() == ErrorKind::Corruption => {
            let reader = BlobFileReader::open_unfinished(file, size, options)?;
            Ok((reader, Some(e)))
        }
        Err(e) => Err(e.into()),
    }
}

/// Prints pieces as they come.
struct Printer<'t> {
    terminal: &'t mut Terminal,
    left: u64,
    /// Values that do not decompress.
    damaged_values: u64,
    /// Why nothing more can be printed.
    output: Option<std::io::Error>,
}

impl Printer<'_> {
    fn piece(&mut self, piece: &Piece<'_>) -> orogen::Result<()> {
        let (object, line) = match piece {
            Piece::Record(record) => match self.record(record)? {
                Some(shown) => shown,
                None => return Ok(()),
            },
            Piece::Meta { name, extent } => {
                let name = text::escape(name);
                let (offset, size) = (extent.offset, extent.size);
                (
                    json!({ "piece": "meta", "offset": offset, "bytes": size, "name": name }),
                    format!("{offset:>12} {size:>10}  meta record {name}"),
                )
            }
            Piece::Zeros(_) if self.left == 0 => return Ok(()),
            Piece::Zeros(extent) => {
                let (offset, size) = (extent.offset, extent.size);
                (
                    json!({ "piece": "zeros", "offset": offset, "bytes": size }),
                    format!("{offset:>12} {size:>10}  zeros"),
                )
            }
            Piece::Hole(_) if self.left == 0 => return Ok(()),
            Piece::Hole(extent) => {
                let (offset, size) = (extent.offset, extent.size);
                (
                    json!({ "piece": "hole", "offset": offset, "bytes": size }),
                    format!("{offset:>12} {size:>10}  given up"),
                )
            }
            Piece::Damage { extent, error } => {
                let (offset, size) = (extent.offset, extent.size);
                let message = error.to_string();
                let line = format!("{offset:>12} {size:>10}  damage: {message}");
                (
                    json!({
                        "piece": "damage", "offset": offset, "bytes": size, "message": message,
                    }),
                    self.terminal.ink(Ink::Bad, &line),
                )
            }
        };
        let printed = match self.terminal.json {
            true => self.terminal.item(&object),
            false => self.terminal.line(&line),
        };
        printed.map_err(|e| {
            self.output = Some(e);
            Error::new(ErrorKind::Aborted, "output cannot be written")
        })
    }

    fn record(&mut self, record: &BlobRecord<'_>) -> orogen::Result<Option<(Value, String)>> {
        let value = match record.value() {
            Ok(value) => Ok(value),
            Err(e) if e.kind() == ErrorKind::Corruption => {
                self.damaged_values += 1;
                Err(e)
            }
            Err(e) => return Err(e),
        };
        if self.left == 0 && value.is_ok() {
            return Ok(None);
        }
        self.left = self.left.saturating_sub(1);
        let key = self.terminal.show(record.user_key);
        let pointer = record.pointer();
        let mut object = json!({
            "piece": "record",
            "offset": record.offset,
            "bytes": record.record_len(),
            "value_offset": pointer.offset,
            "stored_bytes": record.value_len,
            "key": key,
        });
        let mut line = format!(
            "{:>12} {:>10} {:>12} {:>10}  {key}",
            record.offset,
            record.record_len(),
            pointer.offset,
            record.value_len
        );
        match value {
            Ok(None) => {}
            Ok(Some(value)) => {
                let shown = self.terminal.show(&value);
                line.push_str(&format!("\t{shown}"));
                object["value_bytes"] = value.len().into();
                object["value"] = shown.into();
            }
            Err(e) => {
                line = self.terminal.ink(Ink::Bad, &format!("{line}\tdamage: {e}"));
                object["message"] = e.to_string().into();
            }
        }
        Ok(Some((object, line)))
    }
}

fn dump_file(args: &DumpArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let (reader, unfinished) = open_file(&args.file)?;
    let header = reader.header();
    // Of a file that was not finished the end was not looked at.
    let properties = match &unfinished {
        None => reader.properties().unwrap_or(None),
        Some(_) => None,
    };
    let properties = properties.map_or_else(Vec::new, |p| p.lines());
    if terminal.json {
        let named: Map<String, Value> = properties
            .into_iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        let head = json!({
            "file": args.file.display().to_string(),
            "bytes": reader.file_size(),
            "version": header.version,
            "column_family_id": header.column_family_id,
            "compression": header.codec.name(),
            "records": reader.record_count(),
            "unfinished": unfinished.as_ref().map(ToString::to_string),
            "properties": named,
        });
        let head = head.to_string();
        terminal.raw(head.strip_suffix('}').unwrap_or(&head).as_bytes())?;
        terminal.begin_items(",\"pieces\":[", "]}\n")?;
    } else {
        terminal.line(&format!(
            "{}: {}, version {}, column family {}, {}, {}",
            args.file.display(),
            text::size(reader.file_size()),
            header.version,
            header.column_family_id,
            header.codec.name(),
            reader
                .record_count()
                .map_or_else(|| "not finished".to_owned(), |n| text::plural(n, "record"))
        ))?;
        if let Some(e) = &unfinished {
            terminal.line(&terminal.ink(Ink::Bad, &format!("damage: {e}")))?;
        }
        for (name, value) in &properties {
            terminal.line(&format!("  {name:<40} {value}"))?;
        }
        terminal.line(&format!(
            "{:>12} {:>10} {:>12} {:>10}  key",
            "offset", "bytes", "value at", "stored"
        ))?;
    }
    let mut printer = Printer {
        terminal,
        left: args.limit.unwrap_or(u64::MAX),
        damaged_values: 0,
        output: None,
    };
    let walked = dump::dump(&reader, args.values, &mut |piece| printer.piece(&piece));
    if let Some(e) = printer.output.take() {
        return Err(e.into());
    }
    let summary = walked?;
    let damaged_values = printer.damaged_values;
    tell_summary(&summary, damaged_values, args.values, terminal)?;
    if let Some(e) = unfinished {
        return Err(Failure::Engine(e));
    }
    match summary.damages + damaged_values {
        0 => Ok(()),
        n => Err(damages(n)),
    }
}

fn damages(n: u64) -> Failure {
    Failure::Damaged(format!("{} found", text::plural(n, "damage")))
}

fn tell_summary(
    summary: &DumpSummary,
    damaged_values: u64,
    with_values: bool,
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    if terminal.json {
        let summary = json!({
            "records": summary.records,
            "record_bytes": summary.record_bytes,
            "key_bytes": summary.key_bytes,
            "stored_bytes": summary.stored_bytes,
            "value_bytes": with_values.then_some(summary.raw_bytes),
            "meta_bytes": summary.meta_bytes,
            "zero_bytes": summary.zero_bytes,
            "hole_bytes": summary.hole_bytes,
            "damages": summary.damages,
            "damaged_bytes": summary.damaged_bytes,
            "damaged_values": damaged_values,
        });
        return Ok(terminal.end_items(&format!("],\"summary\":{summary}}}\n"))?);
    }
    let raw = match with_values {
        true => format!(" of {}", text::size(summary.raw_bytes)),
        false => String::new(),
    };
    Ok(terminal.line(&format!(
        "{} in {}: keys {}, values {}{raw}; meta records {}, zeros {}, given up {}",
        text::plural(summary.records, "record"),
        text::size(summary.record_bytes),
        text::size(summary.key_bytes),
        text::size(summary.stored_bytes),
        text::size(summary.meta_bytes),
        text::size(summary.zero_bytes),
        text::size(summary.hole_bytes)
    ))?)
}

/// What was found of a family.
struct FamilyFound {
    name: String,
    found: BlobFilesFound,
}

/// Opens each listed file, and counts and follows the pointers into them.
fn check_family(
    db: &Db,
    dir: &Path,
    family: &ColumnFamily,
    follow: bool,
) -> Result<FamilyFound, Failure> {
    let mut found = db.examine_blob_files(family, follow)?;
    let differ = found.files.iter().filter(|f| f.is_counted && !f.is_exact());
    let differ = differ.map(|file| {
        let path = filename::blob_path(dir, file.number);
        let error = match &file.file {
            None => Error::corruption("tables point into a blob file that is not listed"),
            Some(_) => Error::corruption("MANIFEST has other garbage than the tables tell"),
        };
        error.with("file", path.display())
    });
    let differ: Vec<Error> = differ.collect();
    found.damage_count += differ.len() as u64;
    found.damages.extend(differ);
    Ok(FamilyFound {
        name: family.name().to_owned(),
        found,
    })
}

fn check(args: &CheckArgs, terminal: &mut Terminal) -> Result<(), Failure> {
    let dir = &args.dir.path;
    let db = open::read(dir, &args.reading, terminal)?;
    let follow = !args.no_follow;
    let live = db.live_files();
    let blobs = db.live_blob_files();
    // What is read of a family.
    let weight = |family: &ColumnFamily| {
        let tables = live.iter().filter(|f| f.column_family_id == family.id());
        let blobs = blobs.iter().filter(|f| f.column_family == family.name());
        let sums = Sums::of(blobs);
        let values = sums.bytes.saturating_sub(sums.garbage_bytes);
        tables.map(|f| f.size).sum::<u64>() + if follow { values } else { 0 }
    };
    let families = db.column_families();
    let bar = terminal.bar(families.iter().map(weight).sum(), true, "counting pointers");
    let mut all = Vec::with_capacity(families.len());
    for family in &families {
        all.push(check_family(&db, dir, family, follow)?);
        bar.inc(weight(family));
    }
    bar.finish_and_clear();
    tell_check(args, follow, &all, terminal)?;
    match all.iter().map(|f| f.found.damage_count).sum() {
        0 => Ok(()),
        n => Err(damages(n)),
    }
}

fn tell_check(
    args: &CheckArgs,
    follow: bool,
    all: &[FamilyFound],
    terminal: &mut Terminal,
) -> Result<(), Failure> {
    if terminal.json {
        let families: Vec<Value> = all
            .iter()
            .map(|FamilyFound { name, found }| {
                let files: Vec<Value> = found.files.iter().map(check_json).collect();
                let damages: Vec<Value> = found.damages.iter().map(damage_json).collect();
                json!({
                    "name": name,
                    "blob_files": files,
                    "values_read": found.values_read,
                    "bytes_read": found.bytes_read,
                    "damages": damages,
                    "damage_count": found.damage_count,
                })
            })
            .collect();
        return Ok(terminal.document(&json!({
            "path": args.dir.path.display().to_string(),
            "followed": follow,
            "column_families": families,
        }))?);
    }
    for FamilyFound { name, found } in all {
        let (values, bytes) = match follow {
            true => (found.values_read, found.bytes_read),
            false => (
                found.files.iter().map(|f| f.live_blob_count).sum(),
                found.files.iter().map(|f| f.live_blob_bytes).sum(),
            ),
        };
        terminal.line(&format!(
            "{:<16} {}, {} {}, {}",
            text::escape(name.as_bytes()),
            text::plural(found.files.len() as u64, "blob file"),
            text::plural(values, "value"),
            if follow { "read" } else { "pointed to" },
            text::size(bytes)
        ))?;
        for e in &found.damages {
            terminal.line(&terminal.ink(Ink::Bad, &format!("damaged: {e}")))?;
        }
        let more = found.damage_count - found.damages.len() as u64;
        if more > 0 {
            let told = format!("and {} more, which are not listed", text::count(more));
            terminal.line(&terminal.ink(Ink::Bad, &told))?;
        }
        let uncounted = found.files.iter().filter(|f| !f.is_counted).count() as u64;
        if uncounted > 0 {
            terminal.line(&format!(
                "garbage not checked of {}: a table that may point there is damaged",
                text::plural(uncounted, "blob file")
            ))?;
        }
    }
    if all.iter().all(|f| f.found.damage_count == 0) {
        terminal.line(&terminal.ink(Ink::Good, "no damage found"))?;
    }
    Ok(())
}

fn check_json(check: &BlobFileCheck) -> Value {
    let told = check.file.as_ref();
    json!({
        "file": name_of(check.number),
        "number": check.number,
        "values": told.map(|f| f.total_blob_count),
        "bytes": told.map(|f| f.total_blob_bytes),
        "garbage_values": told.map(|f| f.garbage_blob_count),
        "garbage_bytes": told.map(|f| f.garbage_blob_bytes),
        "live_values": check.live_blob_count,
        "live_bytes": check.live_blob_bytes,
        "given_up_bytes": told.and_then(|f| f.given_up_bytes),
        "punchable_bytes": check.punchable_bytes,
        "counted": check.is_counted,
        "exact": check.is_exact(),
    })
}

fn damage_json(error: &Error) -> Value {
    json!({
        "file": error.context("file"),
        "offset": error.context("offset").and_then(|o| o.parse::<u64>().ok()),
        "message": error.to_string(),
    })
}
