//! What a directory of Titan's consists of, as its two MANIFESTs, its tables and its logs tell.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use orogen_base::error::ResultExt as _;
use orogen_base::key::{InternalKeyComparator, ValueKind, trailer};
use orogen_base::limits::NUM_LEVELS_MAX;
use orogen_base::range_del::RangeTombstone;
use orogen_base::{Error, ErrorKind, FileNo, InternalIterator as _, Result, SeqNo};
use orogen_blob::titan::{self, TitanEdit, TitanFile, TitanFileMeta, TitanLive, referenced_sizes};
use orogen_env::fs::unless_read_only;
use orogen_env::{Access, FileLock, FileSystem};
use orogen_sst::CompressionType;
use orogen_sst::{Anchor, TableReadOptions, TableReader};
use orogen_wal::{ReadOutcome, Reader};

use super::entries::SourceTable;
use super::logs::each_operation;
use super::{FamilyReport, Phase, TitanFileDamage, TitanOptions, TitanReport, Watch};
use crate::batch::LoggedOp;
use crate::compact::run::clip_tombstones;
use crate::filename::{self, FileKind};
use crate::new_directory::{NewFamily, order_of};
use crate::options::{ColumnFamilyOptions, Options};
use crate::options_map;
use crate::version::FileMeta;
use crate::version::manifest;
use std::sync::Arc;

/// Where a table's key space is parted, for threads.
const ANCHORS_PER_TABLE: usize = 16;

/// A blob file that a family has.
pub(super) struct LiveFile {
    pub(super) path: PathBuf,
    meta: TitanFileMeta,
    /// Why it cannot be used.
    pub(super) error: Option<Error>,
}

/// A family of the source.
pub(super) struct Family {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) options: ColumnFamilyOptions,
    /// By level, in the level's order; each file of level 0 is alone.
    pub(super) runs: Vec<Vec<SourceTable>>,
    /// As the MANIFEST lists them.
    pub(super) listed: Vec<(usize, Arc<FileMeta>)>,
    pub(super) tombstones: Vec<RangeTombstone>,
    pub(super) anchors: Vec<Anchor>,
    /// Bytes of keys and values in its tables.
    pub(super) raw_bytes: u64,
    pub(super) live: HashMap<FileNo, LiveFile>,
    /// Bytes of each blob file that its tables point to, as they note it.
    referenced: BTreeMap<FileNo, u64>,
    pub(super) has_pointers: bool,
    log_number: FileNo,
    log_operations: u64,
    pub(super) log_bytes: u64,
}

impl Family {
    pub(super) fn as_new(&self) -> NewFamily<'_> {
        NewFamily {
            id: self.id,
            name: &self.name,
            options: &self.options,
        }
    }

    pub(super) fn order(&self) -> InternalKeyComparator {
        InternalKeyComparator::new(self.options.comparator.clone())
    }

    /// True for operations of a log that its tables lack.
    pub(super) fn wants(&self, log: FileNo) -> bool {
        log >= self.log_number
    }

    pub(super) fn referenced_bytes(&self) -> u64 {
        let sizes = self.referenced.values();
        sizes.fold(0, |sum, &bytes| sum.saturating_add(bytes))
    }

    fn table_bytes(&self) -> u64 {
        self.listed.iter().map(|(_, file)| file.size).sum()
    }

    /// About what its values in blob files take: no more than the files have.
    fn live_bytes(&self) -> u64 {
        let sizes = self.referenced.iter().map(|(number, &bytes)| {
            let size = self.live.get(number).map_or(0, |file| file.meta.size);
            bytes.min(size)
        });
        sizes.sum()
    }
}

/// All of it.
pub(super) struct Source<'a> {
    pub(super) fs: &'a dyn FileSystem,
    pub(super) dir: PathBuf,
    pub(super) wal_dir: PathBuf,
    pub(super) families: BTreeMap<u32, Family>,
    pub(super) logs: Vec<FileNo>,
    logs_torn: Vec<FileNo>,
    files_not_live: Vec<FileNo>,
    pub(super) db_id: Option<String>,
    pub(super) last_sequence: SeqNo,
    /// That of the MANIFEST.
    pub(super) in_tables: SeqNo,
    pub(super) next_file: FileNo,
}

/// Keeps others out of the source, where it has files for that: none are made.
pub(super) fn lock(
    dir: &Path,
    options: &Options,
    titan: &TitanOptions,
) -> Result<Vec<Box<dyn FileLock>>> {
    let fs = &*options.db.fs;
    let mut locks = Vec::new();
    for dir in [dir, &titan_dir(dir, titan)] {
        let path = filename::lock_path(dir);
        if fs.exists(&path)? {
            locks.extend(unless_read_only(fs.lock(&path))?);
        }
    }
    Ok(locks)
}

fn titan_dir(dir: &Path, titan: &TitanOptions) -> PathBuf {
    titan
        .titan_dir
        .clone()
        .unwrap_or_else(|| dir.join(titan::DIR))
}

/// What takes steps of an examination.
struct Steps<'w> {
    watch: Watch<'w>,
    done: u64,
    all: u64,
}

impl Steps<'_> {
    fn step(&mut self) -> Result<()> {
        self.done += 1;
        match (self.watch)(Phase::Examine, self.done, self.all) {
            true => Ok(()),
            false => Err(Error::aborted("migration was given up")),
        }
    }
}

impl<'a> Source<'a> {
    /// Looks at everything but the tables' entries and the values.
    pub(super) fn open(
        dir: &Path,
        options: &'a Options,
        titan: &TitanOptions,
        watch: Watch<'_>,
    ) -> Result<Self> {
        let fs = &*options.db.fs;
        let titan_dir = titan_dir(dir, titan);
        if !fs.exists(&filename::current_path(&titan_dir))? {
            return Err(Error::invalid_argument(
                "there is no directory of Titan's here: it has no CURRENT",
            )
            .with("path", titan_dir.display()));
        }
        let names = fs.list(dir)?;
        let (number, recovered) = manifest::recover_current(fs, dir)?;
        let of_families = live_files(fs, &titan_dir)?;
        let tables: HashMap<FileNo, &String> = names
            .iter()
            .filter_map(|name| match filename::parse(name)? {
                FileKind::Table(n) => Some((n, name)),
                _ => None,
            })
            .collect();
        let stored = options_map::load_newest(fs, dir, &names)?;
        let wal_dir = wal_dir(fs, dir, &names, titan)?;
        let oldest = recovered.families.values().map(|f| f.log_number).min();
        let from = recovered.min_log_number_to_keep.max(oldest.unwrap_or(0));
        let mut logs: Vec<FileNo> = fs
            .list(&wal_dir)?
            .iter()
            .filter_map(|name| match filename::parse(name)? {
                FileKind::Wal(n) if n >= from => Some(n),
                _ => None,
            })
            .collect();
        logs.sort_unstable();
        let newest = names.iter().filter_map(|name| filename::number(name));
        let newest = newest.chain(logs.iter().copied()).chain([number]).max();
        let mut this = Self {
            fs,
            dir: dir.to_path_buf(),
            wal_dir,
            families: BTreeMap::new(),
            logs,
            logs_torn: Vec::new(),
            files_not_live: not_live(fs, &titan_dir, &of_families)?,
            db_id: recovered.db_id.clone(),
            last_sequence: recovered.last_sequence,
            in_tables: recovered.last_sequence,
            next_file: recovered.next_file_number.max(newest.unwrap_or(0) + 1),
        };
        for (&id, found) in &recovered.families {
            let mut cf = options.family(&found.name).clone();
            if let Some(stored) = &stored {
                stored.fill_gaps(&found.name, &mut cf);
            }
            order_of(&mut cf, found.comparator.as_deref())?;
            let icmp = InternalKeyComparator::new(cf.comparator.clone());
            let version = found.version(&icmp, NUM_LEVELS_MAX)?;
            if !version.blob_files().is_empty() {
                return Err(Error::not_supported(
                    "directory has blob files of RocksDB's beside those of Titan's",
                )
                .with("column_family", &found.name));
            }
            let mut runs: Vec<Vec<SourceTable>> = Vec::new();
            let mut listed = Vec::new();
            for (level, file) in version.iter_files() {
                if file.path_id != 0 {
                    return Err(Error::not_supported("table is in another of several paths")
                        .with("table", file.number));
                }
                let name = tables.get(&file.number).map(|name| (*name).clone());
                let table = SourceTable {
                    path: dir.join(name.unwrap_or_else(|| filename::table_name(file.number))),
                    number: file.number,
                    size: file.size,
                    largest: file.largest.clone(),
                    largest_seqno: Some(file.largest_seqno),
                };
                let goes_on = level > 0 && listed.last().is_some_and(|(l, _)| *l == level);
                match runs.last_mut().filter(|_| goes_on) {
                    Some(run) => run.push(table),
                    None => runs.push(vec![table]),
                }
                listed.push((level, file.clone()));
            }
            let files = of_families.range((id, 0)..=(id, FileNo::MAX));
            let live = files.map(|(&(_, number), meta)| {
                let file = LiveFile {
                    path: filename::blob_path(&titan_dir, number),
                    meta: meta.clone(),
                    error: None,
                };
                (number, file)
            });
            let family = Family {
                id,
                name: found.name.clone(),
                options: cf.sanitized(),
                runs,
                listed,
                tombstones: Vec::new(),
                anchors: Vec::new(),
                raw_bytes: 0,
                live: live.collect(),
                referenced: BTreeMap::new(),
                has_pointers: false,
                log_number: found.log_number,
                log_operations: 0,
                log_bytes: 0,
            };
            this.families.insert(id, family);
        }
        this.look_at_files(titan, watch)?;
        this.look_at_logs()?;
        Ok(this)
    }

    fn look_at_files(&mut self, titan: &TitanOptions, watch: Watch<'_>) -> Result<()> {
        let files = |f: &Family| f.listed.len() + f.live.len();
        let mut steps = Steps {
            watch,
            done: 0,
            all: self.families.values().map(files).sum::<usize>() as u64,
        };
        let fs = self.fs;
        for family in self.families.values_mut() {
            look_at_tables(fs, family, &mut steps)
                .context("column_family", || family.name.clone())?;
            let mut codec = None;
            let mut numbers: Vec<FileNo> = family.live.keys().copied().collect();
            numbers.sort_unstable();
            for number in numbers {
                if let Some(file) = family.live.get_mut(&number) {
                    match look_at_blob_file(fs, number, file) {
                        Ok(found) => codec = found.or(codec),
                        Err(e) if e.kind() == ErrorKind::Corruption => file.error = Some(e),
                        Err(e) => return Err(e),
                    }
                }
                steps.step()?;
            }
            let writable = codec.map(|c| match c.can_write() {
                true => c,
                false => CompressionType::Zstd,
            });
            let cf = &mut family.options;
            cf.enable_blob_files = titan.min_blob_size.is_some();
            cf.min_blob_size = titan.min_blob_size.unwrap_or(cf.min_blob_size);
            cf.blob_compression_type = titan
                .compression
                .or(writable)
                .unwrap_or(cf.blob_compression_type);
        }
        Ok(())
    }

    fn look_at_logs(&mut self) -> Result<()> {
        let families = &mut self.families;
        let mut visit = |log, _, op: LoggedOp<'_>| {
            let wanted = op.family().and_then(|id| families.get_mut(&id));
            if let Some(family) = wanted.filter(|f| f.wants(log)) {
                family.log_operations += 1;
                family.log_bytes += bytes_of(&op);
                family.has_pointers |= matches!(op, LoggedOp::Pointer { .. });
            }
            Ok(())
        };
        let (torn, last) = each_operation(
            self.fs,
            &self.wal_dir,
            &self.logs,
            self.in_tables,
            &mut visit,
        )?;
        self.logs_torn = torn;
        self.last_sequence = last;
        Ok(())
    }

    /// Finds families whose tables note no pointers and have some all the same: older releases lacked
    /// the note in families that were made later. All of their entries are read for it.
    ///
    /// # Errors
    /// `Corruption` of a block; `Io`, `Aborted`.
    pub(super) fn look_for_pointers(&mut self, passed: &dyn Fn(u64) -> Result<()>) -> Result<()> {
        for family in self.families.values_mut().filter(|f| !f.has_pointers) {
            let order = family.order();
            'tables: for table in family.runs.iter().flatten() {
                let reader = table.open(self.fs, &order)?;
                let mut iter = reader.iter(TableReadOptions::compaction());
                iter.seek_to_first();
                let mut bytes = 0;
                while iter.valid() {
                    let key = iter.key();
                    if trailer(key) as u8 == ValueKind::BlobIndex as u8 {
                        family.has_pointers = true;
                        break 'tables;
                    }
                    bytes += (key.len() + iter.value().len()) as u64;
                    iter.next();
                }
                iter.status()?;
                passed(bytes)?;
            }
        }
        Ok(())
    }

    /// Bytes that the target takes, about: what is merged, and values as they are compressed now.
    pub(super) fn bytes_needed(&self) -> u64 {
        let merged = self.families.values().filter(|f| f.has_pointers);
        let merged = merged.map(|f| f.table_bytes() + f.live_bytes() + f.log_bytes);
        let logs: u64 = self.families.values().map(|f| f.log_bytes).sum();
        merged.sum::<u64>() + logs
    }

    /// What was found.
    pub(super) fn report(&self, titan: &TitanOptions) -> TitanReport {
        let families = self.families.values().map(|f| FamilyReport {
            id: f.id,
            name: f.name.clone(),
            tables: f.listed.len() as u64,
            table_bytes: f.table_bytes(),
            blob_files: f.live.len() as u64,
            blob_file_bytes: f.live.values().map(|file| file.meta.size).sum(),
            referenced_bytes: f.referenced_bytes(),
            log_operations: f.log_operations,
            is_merged: f.has_pointers,
            blob_compression: match titan.min_blob_size {
                Some(_) => f.options.blob_compression_type,
                None => CompressionType::None,
            },
            ..FamilyReport::default()
        });
        let mut files_damaged = Vec::new();
        for family in self.families.values() {
            let damaged = family.live.iter().filter_map(|(&number, file)| {
                Some(TitanFileDamage {
                    number,
                    column_family: family.name.clone(),
                    error: file.error.clone()?,
                })
            });
            files_damaged.extend(damaged);
        }
        files_damaged.sort_by_key(|f| f.number);
        TitanReport {
            families: families.collect(),
            files_damaged,
            files_not_live: self.files_not_live.clone(),
            logs_torn: self.logs_torn.clone(),
            bytes_needed: self.bytes_needed(),
            ..TitanReport::default()
        }
    }
}

/// Bytes of an operation's key and value.
pub(super) fn bytes_of(op: &LoggedOp<'_>) -> u64 {
    use crate::batch::BatchOp as B;
    let (key, value): (&[u8], &[u8]) = match *op {
        LoggedOp::Op(B::Put { key, value, .. }) => (key, value),
        LoggedOp::Op(B::Merge { key, operand, .. }) => (key, operand),
        LoggedOp::Op(B::Delete { key, .. } | B::SingleDelete { key, .. }) => (key, &[]),
        LoggedOp::Op(B::DeleteRange { start, end, .. }) => (start, end),
        LoggedOp::Op(_) => (&[], &[]),
        LoggedOp::Pointer { key, pointer, .. } => (key, pointer),
    };
    (key.len() + value.len()) as u64
}

fn look_at_tables(fs: &dyn FileSystem, family: &mut Family, steps: &mut Steps<'_>) -> Result<()> {
    let order = family.order();
    let mut on_level = Vec::new();
    let tables: Vec<&SourceTable> = family.runs.iter().flatten().collect();
    for (i, (level, file)) in family.listed.iter().enumerate() {
        let reader: Arc<TableReader> = tables[i].open(fs, &order)?;
        let properties = reader.properties();
        // What a table tells of itself may be anything, and is no more than an estimate here.
        let raw_bytes = properties
            .raw_key_size
            .saturating_add(properties.raw_value_size);
        family.raw_bytes = family.raw_bytes.saturating_add(raw_bytes);
        if let Some(noted) = properties.user_collected.get(titan::REFERENCED_SIZE) {
            let noted =
                referenced_sizes(noted).map_err(|e| e.with("file", tables[i].path.display()))?;
            for (number, bytes) in noted {
                family.has_pointers = true;
                let sum = family.referenced.entry(number).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        family.anchors.extend(reader.anchors(ANCHORS_PER_TABLE)?);
        on_level.push((file.clone(), reader.range_tombstones()));
        let is_last = family.listed.get(i + 1).is_none_or(|(l, _)| l != level);
        if is_last {
            // RocksDB lets them reach beyond their tables.
            family
                .tombstones
                .extend(clip_tombstones(&order, *level, &on_level));
            on_level.clear();
        }
        steps.step()?;
    }
    Ok(())
}

/// The codec of a file's first record. What is wrong with the file is an error.
fn look_at_blob_file(
    fs: &dyn FileSystem,
    number: FileNo,
    file: &LiveFile,
) -> Result<Option<CompressionType>> {
    let opened = fs
        .open(&file.path, Access::Random)
        .map_err(|e| match e.is_file_not_found() {
            true => Error::corruption("blob file is missing").with("file", file.path.display()),
            false => e,
        })?;
    let opened = TitanFile::open(opened, number)?;
    if opened.size() != file.meta.size {
        return Err(
            Error::corruption("blob file has another size than Titan's MANIFEST says")
                .with("file", file.path.display())
                .with("size", opened.size())
                .with("wanted", file.meta.size),
        );
    }
    opened.first_codec()
}

/// What Titan's MANIFEST lists, by family and number.
fn live_files(fs: &dyn FileSystem, dir: &Path) -> Result<BTreeMap<(u32, FileNo), TitanFileMeta>> {
    let number = manifest::current(fs, dir)?;
    let path = filename::manifest_path(dir, number);
    let mut reader = Reader::new(fs.open(&path, Access::Sequential)?, 0)?;
    let mut live = TitanLive::default();
    let mut record = Vec::new();
    loop {
        match reader.read_record(&mut record)? {
            ReadOutcome::EndOfLog { .. } => break,
            // As a crash leaves it: nobody was told that the edit is there.
            ReadOutcome::Damage(damage) if damage.is_tail => {}
            ReadOutcome::Damage(damage) => return Err(reader.error(&damage)),
            ReadOutcome::Record { offset } => {
                let edit = TitanEdit::decode(&record);
                live.apply(
                    edit.map_err(|e| e.with("file", path.display()).with("offset", offset))?,
                );
            }
        }
    }
    live.finish().context("file", || path.display().to_string())
}

/// Blob files that nobody has.
fn not_live(
    fs: &dyn FileSystem,
    dir: &Path,
    live: &BTreeMap<(u32, FileNo), TitanFileMeta>,
) -> Result<Vec<FileNo>> {
    let listed: BTreeSet<FileNo> = live.keys().map(|&(_, number)| number).collect();
    let names = fs.list(dir)?;
    let found = names
        .iter()
        .filter_map(|name| match filename::parse(name)? {
            FileKind::Blob(n) if !listed.contains(&n) => Some(n),
            _ => None,
        });
    let mut found: Vec<FileNo> = found.collect();
    found.sort_unstable();
    Ok(found)
}

/// Where the logs are. A directory without any may have them elsewhere, as its OPTIONS file tells:
/// then nothing is taken before that is clear.
fn wal_dir(
    fs: &dyn FileSystem,
    dir: &Path,
    names: &[String],
    titan: &TitanOptions,
) -> Result<PathBuf> {
    if let Some(given) = &titan.wal_dir {
        return Ok(given.clone());
    }
    if let Some(path) = options_map::logs_elsewhere(fs, dir, names, 0)? {
        return Err(Error::invalid_argument(
            "logs are in another directory, as the OPTIONS file tells: say which are to be read",
        )
        .with("wal_dir", path.display()));
    }
    Ok(dir.to_path_buf())
}
