//! The MANIFEST: the database's state as a log of version edits.
//!
//! A MANIFEST begins with a snapshot of the whole state and goes on with one edit for each change;
//! `CURRENT` names the live one. Opening a database replays it; when it has grown too long, or at
//! each open, a new one is begun and `CURRENT` is replaced.
//!
//! ```text
//! db id, counters | for each column family: name and comparator | its files | edit | edit | ...
//! ```
//! Invariants: (1) edits of an atomic group are applied together, or not at all if the log ends
//! before the last of them; (2) a log that ends within a record ends before it: nobody was told
//! that the record is safe; (3) any other damage is an error with file and offset, never a state;
//! (4) `CURRENT` is replaced only by a rename, after the MANIFEST that it names is synced. Byte
//! tables: `docs/format/manifest.md`. Source: RocksDB `db/version_edit_handler.cc`,
//! `db/version_set.cc`, `file/filename.cc`.

mod tail;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::error::ResultExt;
use orogen_base::key::InternalKeyComparator;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_env::fs::{Access, FileSystem, RandomAccessFile, read_file, write_file};
use orogen_wal::{ReadOutcome, Reader, Writer};

use super::blob_meta::BlobFileGarbage;
use super::builder::VersionBuilder;
use super::edit::{ColumnFamilyChange, FILE_NUMBER_MAX, VersionEdit};
use super::file_meta::FileMeta;
use super::level::Level;
use super::text;
use super::version::Version;
use super::wal_set::WalSet;
use crate::filename::{self, FileKind};
pub(crate) use tail::ManifestTail;

/// The column family that every database has; its id is 0 and no edit adds it.
pub const DEFAULT_COLUMN_FAMILY: &str = "default";

/// Longer than any `CURRENT`.
const CURRENT_SIZE_MAX: u64 = 256;

/// The number of the live MANIFEST, as `CURRENT` says.
///
/// # Errors
/// `Io`, also where there is no `CURRENT`; `Corruption` if it does not name a MANIFEST.
pub fn current(fs: &dyn FileSystem, dir: &Path) -> Result<FileNo> {
    let path = filename::current_path(dir);
    let bad = |what: &'static str| Error::corruption(what).with("file", path.display());
    if fs.metadata(&path)?.size > CURRENT_SIZE_MAX {
        return Err(bad("CURRENT is too long"));
    }
    let bytes = read_file(fs, &path)?;
    let Some(name) = bytes.strip_suffix(b"\n") else {
        return Err(bad("CURRENT does not end with a newline"));
    };
    match std::str::from_utf8(name).ok().and_then(filename::parse) {
        Some(FileKind::Manifest(number)) => Ok(number),
        _ => Err(bad("CURRENT does not name a MANIFEST").with("content", name.escape_ascii())),
    }
}

/// Makes a MANIFEST the live one; it must be synced, with its name.
///
/// # Errors
/// `NoSpace` or `Io`: either MANIFEST may be the live one after a power loss.
pub fn set_current(fs: &dyn FileSystem, dir: &Path, number: FileNo) -> Result<()> {
    write_current(fs, dir, number)?;
    fs.sync_dir(dir)
}

/// [`set_current`] for one that syncs the directory itself.
///
/// # Errors
/// `NoSpace` or `Io`: the old one is still the live one.
pub(crate) fn write_current(fs: &dyn FileSystem, dir: &Path, number: FileNo) -> Result<()> {
    let temporary = write_current_temporary(fs, dir, number)?;
    fs.rename(&temporary, &filename::current_path(dir))
}

/// Writes the file that is to become CURRENT; where it is.
///
/// # Errors
/// `NoSpace` or `Io`: there is none.
pub(crate) fn write_current_temporary(
    fs: &dyn FileSystem,
    dir: &Path,
    number: FileNo,
) -> Result<PathBuf> {
    let temporary = filename::temporary_path(dir, number);
    let content = format!("{}\n", filename::manifest_name(number));
    let written = write_file(fs, &temporary, content.as_bytes());
    written.inspect_err(|_| {
        let _ = fs.remove_file(&temporary);
    })?;
    Ok(temporary)
}

/// One column family in a [`Snapshot`].
#[derive(Clone, Copy, Debug)]
pub struct FamilySnapshot<'a> {
    /// Its id; 0 is `default`.
    pub id: u32,
    /// Its name.
    pub name: &'a str,
    /// Its comparator's name.
    pub comparator: &'a str,
    /// Logs before it hold nothing of this column family that is not in tables.
    pub log_number: FileNo,
    /// Its files.
    pub version: &'a Version,
    /// History of user-defined timestamps below it may be gone.
    pub full_history_ts_low: Option<&'a [u8]>,
}

/// The whole state, to begin a MANIFEST with.
#[derive(Clone, Debug)]
pub struct Snapshot<'a> {
    /// The database's id.
    pub db_id: Option<&'a str>,
    /// No file has this number or a higher one.
    pub next_file_number: FileNo,
    /// The newest write that is in tables.
    pub last_sequence: SeqNo,
    /// Logs before it hold nothing that is needed; 0 if that is not known.
    pub min_log_number_to_keep: FileNo,
    /// The largest column family id ever used.
    pub max_column_family: u32,
    /// Logs that should be on disk.
    pub wals: WalSet,
    /// Blob files of a copy that have zeros, which take space, where those of the database have holes.
    pub filled_blob_files: BTreeSet<FileNo>,
    /// The column families, `default` first.
    pub families: Vec<FamilySnapshot<'a>>,
}

impl Snapshot<'_> {
    /// The edits that rebuild the state from nothing.
    #[must_use]
    pub fn edits(&self) -> Vec<VersionEdit> {
        let mut edits = vec![VersionEdit {
            db_id: self.db_id.map(str::to_owned),
            prev_log_number: Some(0),
            next_file_number: Some(self.next_file_number),
            max_column_family: (self.max_column_family > 0).then_some(self.max_column_family),
            last_sequence: Some(self.last_sequence),
            ..VersionEdit::default()
        }];
        if !self.wals.is_empty() {
            let wal_additions = self.wals.iter().collect();
            edits.push(VersionEdit {
                wal_additions,
                ..VersionEdit::default()
            });
        }
        if self.min_log_number_to_keep > 0 {
            // Else a late addition of a log that is gone would bring it back.
            let wal_deletion = Some(self.min_log_number_to_keep);
            edits.push(VersionEdit {
                wal_deletion,
                ..VersionEdit::default()
            });
        }
        for family in &self.families {
            let add = || ColumnFamilyChange::Add(family.name.to_owned());
            edits.push(VersionEdit {
                comparator: Some(family.comparator.to_owned()),
                column_family_change: (family.id != 0).then(add),
                ..VersionEdit::of_column_family(family.id)
            });
            edits.push(self.files_of(family));
        }
        edits
    }

    fn files_of(&self, family: &FamilySnapshot<'_>) -> VersionEdit {
        let version = family.version;
        let blobs = version.blob_files().values();
        let garbages = blobs
            .clone()
            .filter(|b| b.garbage_blob_count > 0 || b.given_up_bytes.is_some());
        let min_log = (family.id == 0 && self.min_log_number_to_keep > 0)
            .then_some(self.min_log_number_to_keep);
        VersionEdit {
            log_number: Some(family.log_number),
            min_log_number_to_keep: min_log,
            last_sequence: Some(self.last_sequence),
            compact_cursors: version.compact_cursors().clone().into_iter().collect(),
            new_files: version
                .iter_files()
                .map(|(level, f)| (level, Arc::clone(f)))
                .collect(),
            blob_file_additions: blobs.map(|b| b.addition_now()).collect(),
            blob_file_garbages: garbages
                .map(|b| BlobFileGarbage {
                    number: b.addition().number,
                    garbage_blob_count: b.garbage_blob_count,
                    garbage_blob_bytes: b.garbage_blob_bytes,
                    given_up_bytes: match self.filled_blob_files.contains(&b.addition().number) {
                        true => b.given_up_bytes.map(|_| 0),
                        false => b.given_up_bytes,
                    },
                })
                .collect(),
            full_history_ts_low: family.full_history_ts_low.map(<[u8]>::to_vec),
            ..VersionEdit::of_column_family(family.id)
        }
    }

    /// Appends the edits to a MANIFEST that was just made; does not sync.
    ///
    /// # Errors
    /// `NoSpace` or `Io`.
    pub fn write(&self, writer: &mut Writer) -> Result<()> {
        self.edits()
            .iter()
            .try_for_each(|edit| writer.add_record(&edit.encode()))
    }
}

/// One column family as a MANIFEST has it.
pub struct RecoveredFamily {
    /// Its id; 0 is `default`.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its comparator's name; `None` only in a MANIFEST that LevelDB did not finish.
    pub comparator: Option<String>,
    /// Logs before it hold nothing of this column family that is not in tables.
    pub log_number: FileNo,
    /// History of user-defined timestamps below it may be gone.
    pub full_history_ts_low: Option<Vec<u8>>,
    /// False if its tables do not keep user-defined timestamps.
    pub persist_user_defined_timestamps: bool,
    builder: VersionBuilder,
    edits: u64,
}

impl RecoveredFamily {
    /// How many edits were of it.
    pub(crate) fn edits(&self) -> u64 {
        self.edits
    }

    /// Lets go of files that its newest version does not have any more.
    pub(crate) fn forget_gone(&mut self, version: &Version) {
        self.builder.forget_gone(version);
    }

    /// Its files in the order of `icmp`.
    ///
    /// Where a file has no epoch number, because RocksDB before 7.10 wrote it, all files get
    /// numbers that order them as their sequence numbers do.
    ///
    /// # Errors
    /// `InvalidArgument` if the MANIFEST names another comparator or has files below
    /// `num_levels`; `Corruption` if the files of a level overlap.
    pub fn version(&self, icmp: &InternalKeyComparator, num_levels: usize) -> Result<Version> {
        if let Some(name) = &self.comparator
            && name != icmp.user.name()
        {
            return Err(
                Error::invalid_argument("comparator is not the one that wrote the files")
                    .with("column_family", &self.name)
                    .with("comparator", icmp.user.name())
                    .with("written_with", name),
            );
        }
        let version = self.builder.clone().build_as(icmp.clone(), num_levels);
        let version = version.context("column_family", || &self.name)?;
        let is_missing = version.iter_files().any(|(_, f)| f.epoch_number == 0);
        Ok(if is_missing {
            with_inferred_epochs(&version)
        } else {
            version
        })
    }
}

/// Deeper levels are older, and each is of one age; level 0 is in order already.
fn with_inferred_epochs(version: &Version) -> Version {
    let mut version = version.clone();
    let mut epoch_number = 0;
    for n in (0..version.levels.len()).rev() {
        if version.levels[n].is_empty() {
            continue;
        }
        epoch_number += 1;
        let mut files = Vec::with_capacity(version.levels[n].len());
        for f in version.levels[n].files().iter().rev() {
            files.push(Arc::new(FileMeta {
                epoch_number,
                ..FileMeta::clone(f)
            }));
            epoch_number += u64::from(n == 0);
        }
        files.reverse();
        version.levels[n] = Arc::new(Level::new(n, &version.icmp, files));
    }
    version
}

/// What a MANIFEST says.
pub struct RecoveredManifest {
    /// The live column families by id; `default` is always there.
    pub families: BTreeMap<u32, RecoveredFamily>,
    /// The database's id.
    pub db_id: Option<String>,
    /// Above every file number that the MANIFEST mentions.
    pub next_file_number: FileNo,
    /// The newest write that is in tables.
    pub last_sequence: SeqNo,
    /// Unused since LevelDB.
    pub prev_log_number: FileNo,
    /// Logs before it hold nothing that is needed; 0 if that is not known.
    pub min_log_number_to_keep: FileNo,
    /// The largest column family id ever used.
    pub max_column_family: u32,
    /// Logs that should be on disk; empty unless RocksDB tracked them.
    pub wals: WalSet,
    /// How many edits were applied.
    pub edits: u64,
    /// The end of the last record that was applied.
    pub valid_until: u64,
    /// True if something stands behind [`RecoveredManifest::valid_until`] that was not applied: a
    /// record or an atomic group that a crash cut off. Then nothing may be appended.
    pub is_torn: bool,
}

impl RecoveredManifest {
    /// The state as text, for debugging and tests. Keys are in the bytewise order.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let _ = writeln!(out, "db_id={}", self.db_id.as_deref().unwrap_or("none"));
        let _ = writeln!(
            out,
            "next_file_number={} last_sequence={} prev_log_number={} min_log_number_to_keep={} \
             max_column_family={} edits={} torn={}",
            self.next_file_number,
            self.last_sequence,
            self.prev_log_number,
            self.min_log_number_to_keep,
            self.max_column_family,
            self.edits,
            self.is_torn,
        );
        for wal in self.wals.iter() {
            let _ = writeln!(out, "wal {} synced_size={:?}", wal.number, wal.synced_size);
        }
        for family in self.families.values() {
            let _ = writeln!(
                out,
                "column family {} \"{}\" comparator={} log_number={}",
                family.id,
                family.name.escape_default(),
                family.comparator.as_deref().unwrap_or("none"),
                family.log_number,
            );
            let icmp = InternalKeyComparator::default();
            let levels = orogen_base::limits::NUM_LEVELS_MAX;
            match family.builder.clone().build_as(icmp, levels) {
                Ok(version) => out.push_str(&text::draw(&version)),
                Err(e) => {
                    let _ = writeln!(out, "{e}");
                }
            }
        }
        out
    }
}

/// Reads the MANIFEST that `CURRENT` names, the newest one if another process begins one meanwhile; gives its number as well.
///
/// # Errors
/// As [`current`] and [`recover`].
pub fn recover_current(fs: &dyn FileSystem, dir: &Path) -> Result<(FileNo, RecoveredManifest)> {
    let mut number = current(fs, dir)?;
    loop {
        match fs.open(&filename::manifest_path(dir, number), Access::Sequential) {
            Ok(file) => return Ok((number, recover(file)?)),
            Err(e) if e.is_file_not_found() => {
                let now = current(fs, dir)?;
                if now == number {
                    return Err(e);
                }
                number = now;
            }
            Err(e) => return Err(e),
        }
    }
}

/// Reads a MANIFEST.
///
/// A log that ends within a record, or within an atomic group, ends before it.
///
/// # Errors
/// `Corruption` with file and offset for any other damage, for an edit that contradicts those
/// before it, and where the log does not tell the whole state; `NotSupported` for a record of a
/// feature that is not there; `Io`.
pub fn recover(file: Arc<dyn RandomAccessFile>) -> Result<RecoveredManifest> {
    let path = file.path().to_owned();
    let mut reader = Reader::new(file, 0)?;
    let mut replay = Replay::default();
    let mut record = Vec::new();
    let is_clean = loop {
        match reader.read_record(&mut record)? {
            ReadOutcome::Record { offset } => {
                VersionEdit::decode(&record)
                    .and_then(|edit| replay.add(edit, reader.valid_until()))
                    .context("file", || path.display())
                    .context("offset", || offset)?;
            }
            ReadOutcome::Damage(damage) if damage.is_tail => break false,
            ReadOutcome::Damage(damage) => return Err(reader.error(&damage)),
            ReadOutcome::EndOfLog { clean, .. } => break clean,
        }
    };
    replay.finish(is_clean).context("file", || path.display())
}

/// The state while edits are applied.
#[derive(Default)]
struct Replay {
    families: BTreeMap<u32, RecoveredFamily>,
    db_id: Option<String>,
    /// As the log says it, and what its file numbers ask for.
    next_file_number: Option<FileNo>,
    file_number_used: FileNo,
    log_number: Option<FileNo>,
    last_sequence: Option<SeqNo>,
    prev_log_number: FileNo,
    min_log_number_to_keep: FileNo,
    max_column_family: u32,
    wals: WalSet,
    /// The edits of an atomic group that is not complete, and how many it will have.
    group: Vec<VersionEdit>,
    group_len: u64,
    edits: u64,
    valid_until: u64,
}

impl Replay {
    /// Takes the next edit, whose record ends at `end`.
    fn add(&mut self, edit: VersionEdit, end: u64) -> Result<()> {
        let Some(remaining) = edit.atomic_group_remaining else {
            if !self.group.is_empty() {
                return Err(Error::corruption("atomic group is interrupted"));
            }
            self.apply(&edit)?;
            self.valid_until = end;
            return Ok(());
        };
        if self.group.is_empty() {
            self.group_len = u64::from(remaining) + 1;
        }
        self.group.push(edit);
        if self.group.len() as u64 + u64::from(remaining) != self.group_len {
            return Err(Error::corruption("atomic group does not count down")
                .with("edits", self.group.len())
                .with("remaining", remaining)
                .with("expected", self.group_len));
        }
        if remaining == 0 {
            for edit in std::mem::take(&mut self.group) {
                self.apply(&edit)?;
            }
            self.valid_until = end;
        }
        Ok(())
    }

    fn apply(&mut self, edit: &VersionEdit) -> Result<()> {
        self.families
            .entry(0)
            .or_insert_with(|| new_family(0, DEFAULT_COLUMN_FAMILY));
        self.apply_counters(edit)?;
        for wal in &edit.wal_additions {
            self.wals.add(wal)?;
        }
        if let Some(number) = edit.wal_deletion {
            self.wals.delete_before(number);
        }
        let id = edit.column_family;
        match &edit.column_family_change {
            Some(ColumnFamilyChange::Add(name)) => {
                let is_taken = self
                    .families
                    .values()
                    .any(|f| f.id == id || f.name == *name);
                if is_taken {
                    return Err(family_error("column family is added twice", id).with("name", name));
                }
                self.families.insert(id, new_family(id, name));
                self.max_column_family = self.max_column_family.max(id);
            }
            Some(ColumnFamilyChange::Drop) if id == 0 => {
                return Err(family_error("default column family is dropped", id));
            }
            Some(ColumnFamilyChange::Drop) => {
                self.edits += 1;
                return match self.families.remove(&id) {
                    Some(_) => Ok(()),
                    None => Err(family_error("column family is dropped but not there", id)),
                };
            }
            None => {}
        }
        let Some(family) = self.families.get_mut(&id) else {
            return Err(family_error(
                "edit of a column family that is not there",
                id,
            ));
        };
        family
            .apply(edit)
            .context("column_family", || &family.name)?;
        self.edits += 1;
        Ok(())
    }

    fn apply_counters(&mut self, edit: &VersionEdit) -> Result<()> {
        let logs = [
            edit.log_number,
            edit.prev_log_number,
            edit.min_log_number_to_keep,
        ];
        let tables = edit.new_files.iter().map(|(_, f)| f.number);
        let blobs = edit.blob_file_additions.iter().map(|b| b.number);
        let wals = edit.wal_additions.iter().map(|w| w.number);
        for number in tables
            .chain(blobs)
            .chain(wals)
            .chain(logs.into_iter().flatten())
        {
            self.file_number_used = self.file_number_used.max(number);
        }
        let largest = self
            .file_number_used
            .max(edit.next_file_number.unwrap_or(0));
        if largest > FILE_NUMBER_MAX {
            return Err(Error::corruption("file number is too large").with("number", largest));
        }
        if let Some(id) = &edit.db_id {
            self.db_id = Some(id.clone());
        }
        self.next_file_number = self.next_file_number.max(edit.next_file_number);
        self.log_number = edit.log_number.or(self.log_number);
        self.prev_log_number = edit.prev_log_number.unwrap_or(self.prev_log_number);
        let min_log = edit.min_log_number_to_keep.unwrap_or(0);
        self.min_log_number_to_keep = self.min_log_number_to_keep.max(min_log);
        self.max_column_family = self
            .max_column_family
            .max(edit.max_column_family.unwrap_or(0));
        if let Some(seqno) = edit.last_sequence {
            if seqno > SEQNO_MAX {
                return Err(Error::corruption("sequence number is too large").with("seqno", seqno));
            }
            self.last_sequence = self.last_sequence.max(Some(seqno));
        }
        Ok(())
    }

    fn finish(self, is_clean: bool) -> Result<RecoveredManifest> {
        let missing = |what: &'static str| {
            move || Error::corruption("manifest is incomplete").with("missing", what)
        };
        let next_file_number = self
            .next_file_number
            .ok_or_else(missing("next file number"))?;
        let last_sequence = self.last_sequence.ok_or_else(missing("last sequence"))?;
        self.log_number.ok_or_else(missing("log number"))?;
        Ok(RecoveredManifest {
            families: self.families,
            db_id: self.db_id,
            next_file_number: next_file_number.max(self.file_number_used + 1),
            last_sequence,
            prev_log_number: self.prev_log_number,
            min_log_number_to_keep: self.min_log_number_to_keep,
            max_column_family: self.max_column_family,
            wals: self.wals,
            edits: self.edits,
            valid_until: self.valid_until,
            is_torn: !is_clean || !self.group.is_empty(),
        })
    }
}

impl RecoveredFamily {
    fn apply(&mut self, edit: &VersionEdit) -> Result<()> {
        // RocksDB ignores a log number that falls: families flushed together may log theirs in
        // any order.
        self.edits += 1;
        self.log_number = self.log_number.max(edit.log_number.unwrap_or(0));
        if let Some(name) = &edit.comparator {
            self.comparator = Some(name.clone());
            self.persist_user_defined_timestamps =
                edit.persist_user_defined_timestamps.unwrap_or(true);
        }
        if let Some(ts) = &edit.full_history_ts_low {
            self.full_history_ts_low = Some(ts.clone());
        }
        self.builder.apply(edit)
    }
}

fn new_family(id: u32, name: &str) -> RecoveredFamily {
    let nothing = Arc::new(Version::empty(InternalKeyComparator::default(), 0));
    RecoveredFamily {
        id,
        name: name.to_owned(),
        comparator: None,
        log_number: 0,
        full_history_ts_low: None,
        persist_user_defined_timestamps: true,
        builder: VersionBuilder::new(&nothing),
        edits: 0,
    }
}

fn family_error(what: &'static str, id: u32) -> Error {
    Error::corruption(what).with("column_family_id", id)
}

#[cfg(test)]
mod tests;
