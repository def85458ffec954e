//! Looks at a directory: what is whole, what is not, what of it can be taken.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::limits::NUM_LEVELS_MAX;
use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo, UserComparator};
use orogen_env::fs::unless_read_only;
use orogen_env::{Access, FileLock, FileSystem};
use orogen_sst::salvage::{LostBlock, Salvaged, Visitor, salvage};
use orogen_sst::{TableProperties, TableReader, TableReaderOptions};

use super::blobs::Blobs;
use super::logs::{each_record, note, read_logs};
use super::{LOST_LISTED_MAX, LogDamage, ManifestState, Progress, RepairReport, TableDamage};
use crate::batch::BatchOp;
use crate::column_family::DEFAULT_COLUMN_FAMILY_NAME;
use crate::filename::{self, FileKind};
use crate::new_directory::{NewFamily, order_of};
use crate::options::{ColumnFamilyOptions, Options};
use crate::options_map;
use crate::version::blob_counts::BlobCounts;
use crate::version::file_meta::FileMeta;
use crate::version::manifest::{self, RecoveredManifest};

/// A table that is taken, whole or in part.
pub(super) struct TablePlan {
    pub(super) path: PathBuf,
    pub(super) number: FileNo,
    /// As the MANIFEST has it.
    pub(super) listed: Option<(usize, Arc<FileMeta>)>,
    pub(super) is_whole: bool,
    /// Bytes of the file to look at.
    pub(super) bytes: u64,
    /// Bytes of the file.
    pub(super) on_disk: u64,
    /// Values in blob files that it points to and that can be read.
    pub(super) points_to: BlobCounts,
    /// Others.
    pub(super) values_lost: u64,
}

/// A family as it will be.
pub(super) struct FamilyPlan {
    pub(super) name: String,
    pub(super) options: ColumnFamilyOptions,
    pub(super) tables: Vec<TablePlan>,
    /// Logs before it hold nothing that the tables lack.
    pub(super) log_number: FileNo,
    /// Without a MANIFEST: the newest entry in its tables; older ones of logs are there.
    pub(super) in_tables_up_to: SeqNo,
}

impl FamilyPlan {
    pub(super) fn as_new(&self, id: u32) -> NewFamily<'_> {
        NewFamily {
            id,
            name: &self.name,
            options: &self.options,
        }
    }
}

/// What a new directory is made of.
pub(super) struct Plan {
    pub(super) families: BTreeMap<u32, FamilyPlan>,
    /// Oldest first.
    pub(super) logs: Vec<FileNo>,
    pub(super) has_manifest: bool,
    pub(super) db_id: Option<String>,
    pub(super) last_sequence: SeqNo,
    /// As the MANIFEST has it.
    pub(super) visible: SeqNo,
    /// Above every number in the old directory.
    pub(super) next_file: FileNo,
    pub(super) newest_options: Option<FileNo>,
    pub(super) blobs: Arc<Blobs>,
}

/// Keeps others out of the old directory, if its LOCK file is there: none is made.
pub(super) fn lock(dir: &Path, options: &Options) -> Result<Option<Box<dyn FileLock>>> {
    let fs = &*options.db.fs;
    let path = filename::lock_path(dir);
    if fs.exists(&path)? {
        return unless_read_only(fs.lock(&path));
    }
    Ok(None)
}

/// Reads everything.
pub(super) fn examine(
    dir: &Path,
    options: &Options,
    progress: Progress<'_>,
) -> Result<(RepairReport, Plan)> {
    let fs = &*options.db.fs;
    let names = fs.list(dir)?;
    let found = Found::of(&names);
    if found.tables.is_empty() && found.logs.is_empty() && found.manifests.is_empty() {
        return Err(
            Error::invalid_argument("there is nothing of a database here")
                .with("path", dir.display()),
        );
    }
    let stored = options_map::load_newest(fs, dir, &names)?;
    let family_options = |name: &str, comparator: Option<&str>| {
        let mut cf = options.family(name).clone();
        if let Some(stored) = &stored {
            stored.fill_gaps(name, &mut cf);
        }
        order_of(&mut cf, comparator)?;
        Ok(cf.sanitized())
    };
    let (state, recovered) = find_manifest(fs, dir, &found.manifests);
    let kept = recovered.as_ref().map_or(0, |m| m.min_log_number_to_keep);
    options_map::check_logs_are_here(fs, dir, &names, kept)?;
    let mut plan = Plan {
        families: BTreeMap::new(),
        logs: Vec::new(),
        has_manifest: recovered.is_some(),
        db_id: recovered.as_ref().and_then(|m| m.db_id.clone()),
        last_sequence: recovered.as_ref().map_or(0, |m| m.last_sequence),
        visible: recovered.as_ref().map_or(0, |m| m.last_sequence),
        next_file: found.newest + 1,
        newest_options: found.newest_options,
        blobs: Arc::default(),
    };
    let mut blobs = Blobs::default();
    for &number in &found.blobs {
        blobs.take_up(fs, dir, number, None)?;
    }
    let mut report = RepairReport {
        manifest: state,
        families: Vec::new(),
        tables_whole: 0,
        tables_damaged: Vec::new(),
        tables_ignored: Vec::new(),
        tables_of_unknown_age: Vec::new(),
        table_entries: 0,
        blob_files_whole: 0,
        blob_files_damaged: Vec::new(),
        values_lost: Vec::new(),
        values_lost_count: 0,
        log_operations: 0,
        logs_damaged: Vec::new(),
        prepared_left_out: Vec::new(),
    };
    match recovered {
        Some(recovered) => {
            plan.next_file = plan.next_file.max(recovered.next_file_number);
            let from = first_log_needed(&recovered);
            report.logs_damaged = logs_lost(fs, dir, &recovered, from)?;
            with_manifest(
                dir,
                options,
                &recovered,
                &found,
                &family_options,
                &mut plan,
                &mut blobs,
            )?;
            let listed: Vec<FileNo> = plan
                .families
                .values()
                .flat_map(|f| f.tables.iter().map(|t| t.number))
                .collect();
            report.tables_ignored = found
                .tables
                .keys()
                .copied()
                .filter(|n| !listed.contains(n))
                .collect();
        }
        None => without_manifest(
            dir,
            options,
            &found,
            &family_options,
            &mut plan,
            &mut report,
        )?,
    }
    read_tables(options, &mut plan, &mut blobs, &mut report, progress)?;
    plan.blobs = Arc::new(blobs);
    read_logs(dir, options, &mut plan, &mut report, &family_options)?;
    report.families = plan
        .families
        .iter()
        .map(|(id, f)| (*id, f.name.clone()))
        .collect();
    Ok((report, plan))
}

/// The files of a directory.
#[derive(Default)]
struct Found {
    /// Number and name.
    tables: BTreeMap<FileNo, String>,
    logs: Vec<FileNo>,
    manifests: Vec<FileNo>,
    newest_options: Option<FileNo>,
    newest: FileNo,
    blobs: Vec<FileNo>,
}

impl Found {
    fn of(names: &[String]) -> Self {
        let mut found = Self::default();
        for name in names {
            let number = match filename::parse(name) {
                Some(FileKind::Table(n)) => {
                    found.tables.insert(n, name.clone());
                    n
                }
                Some(FileKind::Wal(n)) => {
                    found.logs.push(n);
                    n
                }
                Some(FileKind::Manifest(n)) => {
                    found.manifests.push(n);
                    n
                }
                Some(FileKind::Options(n)) => {
                    found.newest_options = found.newest_options.max(Some(n));
                    n
                }
                Some(FileKind::Blob(n)) => {
                    found.blobs.push(n);
                    n
                }
                _ => 0,
            };
            found.newest = found.newest.max(number);
        }
        found.logs.sort_unstable();
        found.manifests.sort_unstable();
        found
    }
}

/// The MANIFEST that CURRENT names, else the newest that can be read.
fn find_manifest(
    fs: &dyn FileSystem,
    dir: &Path,
    manifests: &[FileNo],
) -> (ManifestState, Option<RecoveredManifest>) {
    let first = match manifest::recover_current(fs, dir) {
        Ok((number, recovered)) => return (ManifestState::Current(number), Some(recovered)),
        Err(e) => e,
    };
    for &number in manifests.iter().rev() {
        let path = filename::manifest_path(dir, number);
        let recovered = fs
            .open(&path, Access::Sequential)
            .and_then(manifest::recover);
        if let Ok(recovered) = recovered {
            return (ManifestState::Found(number), Some(recovered));
        }
    }
    (ManifestState::Lost(first), None)
}

pub(super) type FamilyOptions<'a> = &'a dyn Fn(&str, Option<&str>) -> Result<ColumnFamilyOptions>;

fn with_manifest(
    dir: &Path,
    options: &Options,
    recovered: &RecoveredManifest,
    found: &Found,
    family_options: FamilyOptions<'_>,
    plan: &mut Plan,
    blobs: &mut Blobs,
) -> Result<()> {
    for (&id, family) in &recovered.families {
        let cf = family_options(&family.name, family.comparator.as_deref())?;
        let icmp = InternalKeyComparator::new(cf.comparator.clone());
        let version = family.version(&icmp, NUM_LEVELS_MAX)?;
        for (&number, file) in version.blob_files() {
            let listed = Some((id, file.addition().clone()));
            blobs.take_up(&*options.db.fs, dir, number, listed)?;
        }
        let mut tables = Vec::new();
        for (level, file) in version.iter_files() {
            let name = found.tables.get(&file.number).cloned();
            let path = dir.join(name.unwrap_or_else(|| filename::table_name(file.number)));
            let on_disk = options.db.fs.metadata(&path).map_or(0, |m| m.size);
            tables.push(TablePlan {
                path,
                number: file.number,
                listed: Some((level, file.clone())),
                is_whole: false,
                bytes: on_disk.min(file.size),
                on_disk,
                points_to: BlobCounts::default(),
                values_lost: 0,
            });
        }
        plan.families.insert(
            id,
            FamilyPlan {
                name: family.name.clone(),
                options: cf,
                tables,
                log_number: family.log_number,
                in_tables_up_to: 0,
            },
        );
    }
    let from = first_log_needed(recovered);
    plan.logs = found.logs.iter().copied().filter(|&n| n >= from).collect();
    Ok(())
}

/// As an open has it.
fn first_log_needed(recovered: &RecoveredManifest) -> FileNo {
    let needed = recovered.families.values().map(|f| f.log_number).min();
    match recovered.min_log_number_to_keep {
        0 => needed.unwrap_or(0),
        kept => kept,
    }
}

/// The logs from `from` on that are missing, or shorter than when they were synced, as far as the MANIFEST tells.
fn logs_lost(
    fs: &dyn FileSystem,
    dir: &Path,
    recovered: &RecoveredManifest,
    mut from: FileNo,
) -> Result<Vec<LogDamage>> {
    let mut lost = Vec::new();
    let mut size_of = |number| match fs.metadata(&filename::wal_path(dir, number)) {
        Ok(found) => Ok(Some(found.size)),
        Err(e) if e.is_file_not_found() => Ok(None),
        Err(e) => Err(e),
    };
    while let Some((number, error)) = recovered.wals.first_wrong(from, &mut size_of)? {
        let file = filename::wal_path(dir, number);
        note(&mut lost, number, error.with("file", file.display()));
        from = number.saturating_add(1);
    }
    Ok(lost)
}

/// Families and their tables as the tables' properties tell.
fn without_manifest(
    dir: &Path,
    options: &Options,
    found: &Found,
    family_options: FamilyOptions<'_>,
    plan: &mut Plan,
    report: &mut RepairReport,
) -> Result<()> {
    let mut unknown = Vec::new();
    plan.families.insert(
        0,
        family_plan(DEFAULT_COLUMN_FAMILY_NAME, family_options, None)?,
    );
    for (&number, name) in &found.tables {
        let path = dir.join(name);
        let bytes = options.db.fs.metadata(&path)?.size;
        let table = TablePlan {
            path,
            number,
            listed: None,
            is_whole: false,
            bytes,
            on_disk: bytes,
            points_to: BlobCounts::default(),
            values_lost: 0,
        };
        let properties = match properties_of(&*options.db.fs, &table) {
            Ok(properties) => properties,
            Err(e) if e.kind() == ErrorKind::Io => return Err(e),
            // Its magic number is one of another kind of table: no damage makes that.
            Err(e) if e.kind() == ErrorKind::NotSupported && e.context("table").is_some() => {
                return Err(e.with("table_number", number));
            }
            Err(_) => {
                unknown.push(table);
                continue;
            }
        };
        if properties.is_external() {
            report.tables_of_unknown_age.push(number);
        }
        let (id, name) = family_of(&properties);
        if !plan.families.contains_key(&id) {
            let taken = plan.families.values().any(|f| f.name == name);
            let name = if taken { format!("{name}.{id}") } else { name };
            let family = family_plan(&name, family_options, Some(&properties.comparator))?;
            plan.families.insert(id, family);
        }
        let family = plan.families.get_mut(&id).expect("it was just made");
        if family.tables.is_empty() {
            order_of(&mut family.options, Some(&properties.comparator))?;
        }
        family.tables.push(table);
    }
    // What does not say where it belongs can only belong to a family that is alone, in the logs too.
    let mut in_logs = BTreeSet::new();
    if !unknown.is_empty() {
        let visit = &mut |_, op: BatchOp<'_>, _| {
            in_logs.extend(op.family());
            Ok(())
        };
        each_record(dir, &*options.db.fs, &found.logs, 0, &mut Vec::new(), visit)?;
    }
    let alone = plan.families.len() == 1 && in_logs.iter().all(|&id| id == 0);
    for table in unknown {
        if alone && let Some(family) = plan.families.get_mut(&0) {
            family.tables.push(table);
            continue;
        }
        report.tables_damaged.push(TableDamage {
            number: table.number,
            column_family: String::new(),
            level: None,
            error: Some(Error::corruption(
                "table does not open, and there is no MANIFEST to tell its column family",
            )),
            entries: 0,
            lost: vec![everything(&table, None)],
            range_tombstones_lost: true,
            unassigned: true,
        });
    }
    plan.logs = found.logs.clone();
    Ok(())
}

pub(super) fn family_plan(
    name: &str,
    family_options: FamilyOptions<'_>,
    comparator: Option<&str>,
) -> Result<FamilyPlan> {
    Ok(FamilyPlan {
        name: name.to_owned(),
        options: family_options(name, comparator)?,
        tables: Vec::new(),
        log_number: 0,
        in_tables_up_to: 0,
    })
}

/// The family that a table says it belongs to; one that does not say belongs to the default.
fn family_of(properties: &TableProperties) -> (u32, String) {
    let name = &properties.column_family_name;
    match u32::try_from(properties.column_family_id) {
        Ok(id) if id != 0 && id < i32::MAX as u32 && !name.is_empty() => (id, name.clone()),
        _ => (0, DEFAULT_COLUMN_FAMILY_NAME.to_owned()),
    }
}

/// The properties of a table whose order is not known yet.
fn properties_of(fs: &dyn FileSystem, table: &TablePlan) -> Result<Arc<TableProperties>> {
    let open = |comparator: UserComparator| {
        let options = TableReaderOptions {
            comparator,
            without_damaged_blocks: true,
            ..TableReaderOptions::default()
        };
        let file = fs.open(&table.path, Access::Random)?;
        TableReader::open(file, table.bytes, options)
    };
    let opened = open(UserComparator::BYTEWISE).or_else(|e| {
        let order = e.context("table").and_then(UserComparator::by_name);
        order.map_or(Err(e), open)
    })?;
    Ok(opened.properties())
}

/// How a table of a family is opened.
pub(super) fn reader_options(family: &FamilyPlan, table: &TablePlan) -> TableReaderOptions {
    TableReaderOptions {
        comparator: family.options.comparator.clone(),
        file_number: table.number,
        largest_seqno: table.listed.as_ref().map(|(_, f)| f.largest_seqno),
        ..TableReaderOptions::default()
    }
}

/// Reads what can be read of a table.
pub(super) fn read_table(
    fs: &dyn FileSystem,
    family: &FamilyPlan,
    table: &TablePlan,
    visit: Visitor<'_>,
) -> Result<Salvaged> {
    let file = fs.open(&table.path, Access::Sequential)?;
    salvage(&file, table.bytes, &reader_options(family, table), visit)
}

/// All keys of a table are lost.
fn everything(table: &TablePlan, error: Option<Error>) -> LostBlock {
    let bounds = table.listed.as_ref().map(|(_, f)| {
        (
            f.smallest_user_key().to_vec(),
            f.largest_user_key().to_vec(),
        )
    });
    let (after, up_to) = bounds.unzip();
    LostBlock {
        offset: 0,
        bytes: table.bytes,
        after,
        up_to,
        error: error.unwrap_or_else(|| Error::corruption("table cannot be used")),
    }
}

/// Bytes of values between two reports of progress.
const PROGRESS_STEP: u64 = 1 << 20;

fn read_tables(
    options: &Options,
    plan: &mut Plan,
    blobs: &mut Blobs,
    report: &mut RepairReport,
    progress: Progress<'_>,
) -> Result<()> {
    let fs = &*options.db.fs;
    let total = plan
        .families
        .values()
        .flat_map(|f| f.tables.iter().map(|t| t.bytes))
        .sum::<u64>()
        + blobs.total_bytes();
    let mut done = 0;
    let mut told = 0;
    progress(0, total);
    let mut points_to = BlobCounts::default();
    let mut names = BTreeMap::new();
    for (&id, family) in &mut plan.families {
        names.insert(id, family.name.clone());
        let mut tables = std::mem::take(&mut family.tables);
        let mut newest = 0;
        for table in &mut tables {
            let mut counts = BlobCounts::default();
            let lost_before = report.values_lost_count;
            let number = table.number;
            let mut visit = |key: &[u8], value: &[u8]| {
                newest = newest.max(orogen_base::key::seqno_of(key));
                let of = (id, family.name.as_str());
                let lost = blobs.follow(of, number, key, value, &mut counts)?;
                if let Some(lost) = lost {
                    report.values_lost_count += 1;
                    if report.values_lost.len() < LOST_LISTED_MAX {
                        report.values_lost.push(lost);
                    }
                }
                let now = done + blobs.followed_bytes();
                if now >= told + PROGRESS_STEP {
                    told = now;
                    progress(now.min(total), total);
                }
                Ok(())
            };
            let salvaged = read_table(fs, family, table, &mut visit);
            table.values_lost = report.values_lost_count - lost_before;
            points_to.add_all(&counts);
            table.points_to = counts;
            let found = judge(family, table, salvaged)?;
            newest = newest.max(found.covered_up_to);
            report.table_entries += found.entries.saturating_sub(table.values_lost);
            table.is_whole = found.damage.is_none();
            report.tables_whole += u64::from(table.is_whole);
            report.tables_damaged.extend(found.damage);
            done += table.bytes;
            progress((done + blobs.followed_bytes()).min(total), total);
        }
        plan.last_sequence = plan.last_sequence.max(newest);
        if !plan.has_manifest {
            family.in_tables_up_to = newest;
        }
        family.tables = tables;
    }
    blobs.judge(&points_to, &names, report)?;
    progress(total, total);
    Ok(())
}

struct Judged {
    entries: u64,
    /// What the entries do not tell: range tombstones, and what a compaction noted.
    covered_up_to: SeqNo,
    damage: Option<TableDamage>,
}

/// What is said of a table after it was read.
fn judge(family: &FamilyPlan, table: &TablePlan, salvaged: Result<Salvaged>) -> Result<Judged> {
    let mut damage = TableDamage {
        number: table.number,
        column_family: family.name.clone(),
        level: table.listed.as_ref().map(|l| l.0),
        error: None,
        entries: 0,
        lost: Vec::new(),
        range_tombstones_lost: false,
        unassigned: false,
    };
    let salvaged = match salvaged {
        Ok(salvaged) => salvaged,
        Err(e) if e.is_file_not_found() => {
            damage.lost.push(everything(table, Some(e.clone())));
            damage.error = Some(e);
            damage.range_tombstones_lost = true;
            return Ok(Judged {
                entries: 0,
                covered_up_to: 0,
                damage: Some(damage),
            });
        }
        Err(e) => return Err(e),
    };
    // Of another kind of table nothing is found, and all of it may be well. A damaged version looks the same, but
    // blocks are found then.
    if let Some(e) = &salvaged.tail_error
        && e.kind() == ErrorKind::NotSupported
        && salvaged.entries == 0
    {
        let e = e.clone();
        return Err(e.with("table_number", table.number));
    }
    let another_size = table
        .listed
        .as_ref()
        .is_some_and(|(_, file)| file.size != table.on_disk);
    let is_whole = salvaged.is_whole() && !another_size;
    let seqnos = salvaged.range_tombstones.iter().map(|(_, _, seqno)| seqno);
    let noted = salvaged
        .properties
        .as_ref()
        .and_then(|p| p.sequence_covered());
    let covered_up_to = seqnos.max().max(noted).unwrap_or(0);
    if is_whole {
        return Ok(Judged {
            entries: salvaged.entries,
            covered_up_to,
            damage: None,
        });
    }
    damage.error = salvaged.tail_error;
    if another_size && damage.error.is_none() {
        damage.error = Some(
            Error::corruption("table has another size than the MANIFEST says")
                .with("size", table.on_disk),
        );
    }
    damage.entries = salvaged.entries;
    damage.lost = salvaged.lost;
    damage.range_tombstones_lost = salvaged.range_tombstones_lost;
    if let Some((_, file)) = &table.listed {
        // The MANIFEST knows where the table began and ended.
        let order = &family.options.comparator;
        let (first, last) = (file.smallest_user_key(), file.largest_user_key());
        for lost in &mut damage.lost {
            lost.after.get_or_insert_with(|| first.to_vec());
            lost.up_to.get_or_insert_with(|| last.to_vec());
        }
        let may_hold = |lost: &LostBlock| match (&lost.after, &lost.up_to) {
            (Some(after), Some(up_to)) => !order.less(up_to, after),
            _ => true,
        };
        damage.lost.retain(may_hold);
    }
    Ok(Judged {
        entries: damage.entries,
        covered_up_to,
        damage: Some(damage),
    })
}
