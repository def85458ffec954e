//! `orogen db check`: reads every byte that the directory lives by, and verifies it.
//!
//! ```text
//! CURRENT -> MANIFEST -> levels in order -> each table: size, every block's checksum, the whole
//!                                           file's, key order, key range, count of entries
//! -> each blob file: every record's checksum, count and bytes of its values, the whole file's checksum
//! logs -> every record's checksum and batch
//! ```
//! It needs no lock: of a directory that a process is working in, files that leave meanwhile
//! are looked up again and passed over. It goes on behind damage and tells of all of it. That
//! pointers lead to their values is for `orogen blob check`.

use std::path::Path;
use std::sync::Arc;

use indicatif::ProgressBar;
use orogen::{FileSystem, Options, UserComparator};
use orogen_base::checksum::crc32c_extend;
use orogen_base::key::{InternalKeyComparator, user_key};
use orogen_base::limits::NUM_LEVELS_MAX;
use orogen_base::{Error, ErrorKind, InternalIterator as _};
use orogen_blob::dump::{Piece, dump};
use orogen_blob::{BlobFileReader, BlobFileReaderOptions};
use orogen_engine::batch::BatchReader;
use orogen_engine::check_logs_are_here;
use orogen_engine::filename::{self, FileKind};
use orogen_engine::version::{BlobFileMeta, FileChecksum, FileMeta};
use orogen_env::Access;
use orogen_sst::{TableReadOptions, TableReader, TableReaderOptions};
use orogen_wal::{ReadOutcome, Reader};
use serde_json::{Value, json};

use crate::failure::{Failure, after_help};
use crate::open::{self, Dir};
use crate::terminal::{Ink, Terminal};
use crate::text;

#[derive(clap::Args)]
#[command(after_help = after_help!(
    "orogen db check ./quarry",
    "orogen db check ./quarry --quick --json"
))]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Verify checksums of blocks only, not of files, nor the order and the number of entries.
    #[arg(long)]
    quick: bool,
}

/// What is wrong, and where.
struct Damage {
    file: String,
    offset: Option<u64>,
    message: String,
}

#[derive(Default)]
struct Report {
    families: u64,
    tables: u64,
    table_bytes: u64,
    blocks: u64,
    entries: u64,
    blob_files: u64,
    blob_bytes: u64,
    blob_values: u64,
    logs: u64,
    log_records: u64,
    torn_logs: u64,
    damages: Vec<Damage>,
    /// What is whole, as far as that goes, but of a kind that is not read here.
    unread: Vec<Error>,
}

impl Report {
    fn damage(&mut self, file: &Path, error: &Error) {
        if error.kind() == ErrorKind::NotSupported {
            let with_file = || match error.context("file") {
                Some(_) => error.clone(),
                None => error.clone().with("file", file.display()),
            };
            self.unread.push(with_file());
            return;
        }
        self.damages.push(Damage {
            file: file.display().to_string(),
            offset: error.context("offset").and_then(|o| o.parse().ok()),
            message: error.to_string(),
        });
    }
}

struct Check<'a> {
    fs: Arc<dyn FileSystem>,
    dir: &'a Path,
    quick: bool,
    report: Report,
}

/// What is found of a table.
#[derive(Default)]
struct TableFound {
    blocks: u64,
    entries: u64,
}

impl Check<'_> {
    fn table(
        &self,
        path: &Path,
        file: &FileMeta,
        icmp: &InternalKeyComparator,
        bar: &ProgressBar,
    ) -> orogen::Result<TableFound> {
        let size = self.fs.metadata(path)?.size;
        if size != file.size {
            return Err(
                Error::corruption("table has another size than the MANIFEST says")
                    .with("file", path.display())
                    .with("size", size)
                    .with("expected", file.size),
            );
        }
        let options = TableReaderOptions {
            comparator: icmp.user.clone(),
            file_number: file.number,
            largest_seqno: Some(file.largest_seqno),
            tail_size: file.tail_size,
            ..TableReaderOptions::default()
        };
        let table = TableReader::open(self.fs.open(path, Access::Sequential)?, size, options)?;
        let mut found = TableFound::default();
        for block in table.blocks() {
            let block = block?;
            found.blocks += 1;
            bar.inc(block.handle.size);
        }
        if !self.quick {
            self.file_checksum(path, file.file_checksum.as_ref())?;
            found.entries = entries(&table, file, icmp).map_err(|e| match e.context("file") {
                Some(_) => e,
                None => e.with("file", path.display()),
            })?;
        }
        Ok(found)
    }

    /// Compares the whole file with the checksum that the MANIFEST has of it, if it has one.
    fn file_checksum(&self, path: &Path, checksum: Option<&FileChecksum>) -> orogen::Result<()> {
        let Some(wanted) = checksum.and_then(FileChecksum::crc32c) else {
            return Ok(());
        };
        let opened = self.fs.open(path, Access::Sequential)?;
        let mut chunk = vec![0; 1 << 20];
        let (mut at, mut crc) = (0, 0);
        loop {
            let n = opened.read_at(at, &mut chunk)?;
            if n == 0 {
                break;
            }
            crc = crc32c_extend(crc, &chunk[..n]);
            at += n as u64;
        }
        if crc == wanted {
            return Ok(());
        }
        Err(
            Error::corruption("file is not what was written: its checksum differs")
                .with("file", path.display()),
        )
    }

    /// True if the newest version still lists the table or blob file.
    fn is_live(&self, number: u64) -> Result<bool, Failure> {
        let manifest = open::recover_manifest(&*self.fs, self.dir)?;
        for family in manifest.families.values() {
            let icmp = InternalKeyComparator::new(comparator(family.comparator.as_deref())?);
            let version = family.version(&icmp, NUM_LEVELS_MAX)?;
            if version.find(number).is_some() || version.blob_files().contains_key(&number) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Gives what damage is in a blob file, and how many values it has.
    fn blob_file(
        &self,
        path: &Path,
        blob: &BlobFileMeta,
        family: u32,
        bar: &ProgressBar,
    ) -> orogen::Result<(u64, Vec<Error>)> {
        let file = blob.addition();
        let opened = self.fs.open(path, Access::Sequential)?;
        let size = opened.size()?;
        let options = BlobFileReaderOptions {
            file_number: file.number,
            column_family_id: Some(family),
            is_listed: true,
            ..BlobFileReaderOptions::default()
        };
        let reader = BlobFileReader::open(opened, size, options)?;
        let mut damages = Vec::new();
        let found = dump(&reader, true, &mut |piece| {
            match piece {
                Piece::Record(record) => bar.inc(record.record_len()),
                Piece::Damage { error, .. } => damages.push(error.clone()),
                Piece::Meta { .. } | Piece::Zeros(_) | Piece::Hole(_) => {}
            }
            Ok(())
        })?;
        let is_as_told = match blob.given_up_bytes {
            None => file.tells_of(found.records, Some(found.record_bytes), size),
            Some(_) => found.records >= blob.live_count(),
        };
        if damages.is_empty() && !is_as_told {
            damages.push(
                Error::corruption("blob file holds other values than the MANIFEST says")
                    .with("file", path.display())
                    .with("values", found.records)
                    .with("expected", file.total_blob_count)
                    .with("bytes", found.record_bytes)
                    .with("expected_bytes", file.total_blob_bytes),
            );
        }
        if damages.is_empty()
            && let Err(e) = reader.check_meta(file.overhead_bytes)
        {
            damages.push(e);
        }
        if damages.is_empty() && !self.quick {
            self.file_checksum(path, blob.checksum().as_ref())?;
        }
        Ok((found.records, damages))
    }

    fn log(&mut self, path: &Path, number: u64) -> orogen::Result<()> {
        let mut reader = Reader::new(self.fs.open(path, Access::Sequential)?, number)?;
        let mut record = Vec::new();
        loop {
            match reader.read_record(&mut record)? {
                ReadOutcome::Record { offset } => {
                    self.report.log_records += 1;
                    if let Err(e) = BatchReader::new(&record).and_then(|b| b.check()) {
                        self.report.damage(path, &e.with("offset", offset));
                    }
                }
                ReadOutcome::Damage(d) if d.is_tail => self.report.torn_logs += 1,
                ReadOutcome::Damage(d) => {
                    let error = Error::corruption(d.reason.name())
                        .with("file", path.display())
                        .with("offset", d.offset)
                        .with("bytes_dropped", d.bytes_dropped);
                    self.report.damage(path, &error);
                }
                ReadOutcome::EndOfLog { .. } => return Ok(()),
            }
        }
    }
}

fn comparator(name: Option<&str>) -> Result<UserComparator, Failure> {
    let Some(name) = name else {
        return Ok(UserComparator::BYTEWISE);
    };
    UserComparator::by_name(name).ok_or_else(|| {
        let error = Error::not_supported("column family has an order that is not built in");
        Failure::Engine(error.with("comparator", name))
    })
}

/// Walks over the entries: order, range, count.
fn entries(
    table: &Arc<TableReader>,
    file: &FileMeta,
    icmp: &InternalKeyComparator,
) -> orogen::Result<u64> {
    let mut iter = table.iter(TableReadOptions::compaction());
    let mut last: Vec<u8> = Vec::new();
    let mut count = 0;
    let damage = |what: &'static str, key: &[u8]| {
        Err(Error::corruption(what).with("key", text::escape(user_key(key))))
    };
    iter.seek_to_first();
    while iter.valid() {
        let key = iter.key();
        if count > 0 && icmp.compare(&last, key).is_ge() {
            return damage("entries of the table are not in order", key);
        }
        let user = user_key(key);
        if icmp.user.less(user, file.smallest_user_key())
            || icmp.user.less(file.largest_user_key(), user)
        {
            return damage(
                "entry is outside the range that the MANIFEST gives the table",
                key,
            );
        }
        last.clear();
        last.extend_from_slice(key);
        count += 1;
        iter.next();
    }
    iter.status()?;
    let properties = table.properties();
    let expected = properties
        .num_entries
        .saturating_sub(properties.num_range_deletions);
    if count != expected {
        return Err(
            Error::corruption("table has another number of entries than it says")
                .with("entries", count)
                .with("expected", expected),
        );
    }
    Ok(count)
}

pub(crate) fn run(args: &Args, terminal: &mut Terminal) -> Result<(), Failure> {
    let fs = Options::default().db.fs;
    let dir = args.dir.path.as_path();
    let mut check = Check {
        fs: fs.clone(),
        dir,
        quick: args.quick,
        report: Report::default(),
    };
    let manifest = open::recover_manifest(&*fs, dir)?;
    let (mut tables, mut blobs) = (Vec::new(), Vec::new());
    for (&id, family) in &manifest.families {
        check.report.families += 1;
        let icmp = InternalKeyComparator::new(comparator(family.comparator.as_deref())?);
        // Finds files of a level that overlap or are out of order.
        match family.version(&icmp, NUM_LEVELS_MAX) {
            Ok(version) => {
                tables.extend(version.iter_files().map(|(_, f)| (icmp.clone(), f.clone())));
                let files = version.blob_files().values();
                blobs.extend(files.map(|b| (id, b.clone())));
            }
            Err(e) => check.report.damage(&filename::current_path(dir), &e),
        }
    }
    let bytes = tables.iter().map(|(_, f)| f.size).sum();
    let bar = terminal.bar(bytes, true, "checking tables");
    for (icmp, file) in &tables {
        let path = filename::find_table(&*fs, dir, file.number)?;
        match check.table(&path, file, icmp, &bar) {
            Ok(found) => {
                check.report.tables += 1;
                check.report.table_bytes += file.size;
                check.report.blocks += found.blocks;
                check.report.entries += found.entries;
            }
            // A compaction of another process may have replaced it meanwhile.
            Err(e) if e.is_file_not_found() && !check.is_live(file.number)? => {}
            Err(e) => check.report.damage(&path, &e),
        }
    }
    bar.finish_and_clear();
    let bytes = blobs
        .iter()
        .map(|(_, b)| b.addition().total_blob_bytes)
        .sum();
    let bar = terminal.bar(bytes, true, "checking blob files");
    for (family, file) in &blobs {
        let path = filename::blob_path(dir, file.addition().number);
        match check.blob_file(&path, file, *family, &bar) {
            Ok((values, damages)) => {
                check.report.blob_files += u64::from(damages.is_empty());
                check.report.blob_bytes += file.addition().total_blob_bytes;
                check.report.blob_values += values;
                for e in damages {
                    check.report.damage(&path, &e);
                }
            }
            Err(e) if e.is_file_not_found() && !check.is_live(file.addition().number)? => {}
            Err(e) => check.report.damage(&path, &e),
        }
    }
    bar.finish_and_clear();
    let names = fs.list(dir)?;
    let kept = manifest.min_log_number_to_keep;
    let logs_lost = check_logs_are_here(&*fs, dir, &names, kept).err();
    for name in names {
        if let Some(FileKind::Wal(number)) = filename::parse(&name)
            && number >= kept
        {
            let path = dir.join(&name);
            check.report.logs += 1;
            match check.log(&path, number) {
                Err(e) if e.is_file_not_found() => {}
                Err(e) => check.report.damage(&path, &e),
                Ok(()) => {}
            }
        }
    }
    // What cannot be checked is told behind what was.
    check.report.unread.splice(0..0, logs_lost);
    // Damage is what the command ends with, or the first of these.
    let ends_with = usize::from(check.report.damages.is_empty());
    for e in check.report.unread.iter().skip(ends_with) {
        terminal.note(&format!("not checked: {e}"));
    }
    tell(args, &check.report, terminal)?;
    let first = check.report.unread.into_iter().next();
    first.map_or(Ok(()), |e| Err(e.into()))
}

fn tell(args: &Args, report: &Report, terminal: &mut Terminal) -> Result<(), Failure> {
    if terminal.json {
        let damages: Vec<Value> = report
            .damages
            .iter()
            .map(|d| json!({ "file": d.file, "offset": d.offset, "message": d.message }))
            .collect();
        terminal.document(&json!({
            "path": args.dir.path.display().to_string(),
            "column_families": report.families,
            "tables": report.tables,
            "table_bytes": report.table_bytes,
            "blocks": report.blocks,
            "entries": (!args.quick).then_some(report.entries),
            "blob_files": report.blob_files,
            "blob_bytes": report.blob_bytes,
            "blob_values": report.blob_values,
            "logs": report.logs,
            "log_records": report.log_records,
            "torn_logs": report.torn_logs,
            "damages": damages,
            "not_checked": report.unread.iter().map(Error::to_string).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut row = |name: &str, what: String| terminal.line(&format!("{name:<16} {what}"));
        row("column families", text::count(report.families))?;
        row(
            "tables",
            format!(
                "{}, {}",
                text::count(report.tables),
                text::size(report.table_bytes)
            ),
        )?;
        row(
            "blocks",
            format!("{}, checksums right", text::count(report.blocks)),
        )?;
        if !args.quick {
            row(
                "entries",
                format!("{}, in order", text::count(report.entries)),
            )?;
        }
        if report.blob_files > 0 || report.blob_values > 0 {
            row(
                "blob files",
                format!(
                    "{}, {} in {}",
                    text::count(report.blob_files),
                    text::plural(report.blob_values, "value"),
                    text::size(report.blob_bytes)
                ),
            )?;
        }
        let torn = match report.torn_logs {
            0 => String::new(),
            n => format!(", {} after a crash", text::plural(n, "torn tail")),
        };
        row(
            "logs",
            format!(
                "{}, {}{torn}",
                text::count(report.logs),
                text::plural(report.log_records, "record")
            ),
        )?;
        for d in &report.damages {
            let at = d
                .offset
                .map_or_else(String::new, |o| format!(" at offset {o}"));
            let line = format!("damaged: {}{at}: {}", d.file, d.message);
            terminal.line(&terminal.ink(Ink::Bad, &line))?;
        }
        if report.damages.is_empty() {
            terminal.line(&terminal.ink(Ink::Good, "no damage found"))?;
        }
    }
    match report.damages.len() as u64 {
        0 => Ok(()),
        n => Err(Failure::Damaged(format!(
            "{} found",
            text::plural(n, "damage")
        ))),
    }
}
