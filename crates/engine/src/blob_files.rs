//! The blob files of a database, told and checked.
//!
//! What the MANIFEST says of a file's garbage is what jobs counted; [`examine`] counts anew from the
//! tables of one version, which is what is true. It goes on behind damage: a value, a file or a table that cannot be
//! read costs the answer what depends on it, and no more.

use std::collections::BTreeSet;

use orogen_base::{Error, ErrorKind, FileNo, Result};
use orogen_blob::HOLE_BLOCK;
use orogen_sst::TableReadOptions;

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::filename;
use crate::holes;
use crate::tables::FamilyTables;
use crate::version::blob_counts::{BlobCount, BlobCounts};
use crate::version::{BlobFileMeta, FileMeta, Version};

/// A blob file of the newest version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveBlobFile {
    /// The family's name.
    pub column_family: String,
    /// The file's number.
    pub number: FileNo,
    /// Values in it.
    pub total_blob_count: u64,
    /// Bytes of their records, headers and keys included.
    pub total_blob_bytes: u64,
    /// Values that no table points to any more.
    pub garbage_blob_count: u64,
    /// Bytes of their records.
    pub garbage_blob_bytes: u64,
    /// Bytes of dead values whose space was given up inside the file, without the padding around them;
    /// `None` if it is what was written.
    pub given_up_bytes: Option<u64>,
    /// About the bytes that are left: of records that were not given up, and of padding and meta records. This is what
    /// [`max_space_amp`](crate::ColumnFamilyOptions::max_space_amp) goes by.
    pub kept_bytes: u64,
}

impl LiveBlobFile {
    /// The least of 0, 20, 50, 80 and 100 that its garbage is no more than, in percent of its bytes.
    #[must_use]
    pub fn garbage_percent_le(&self) -> u64 {
        garbage_percent_le(self.garbage_blob_bytes, self.total_blob_bytes)
    }

    fn new(family: &ColumnFamilyData, blob: &BlobFileMeta) -> Self {
        let addition = blob.addition();
        Self {
            column_family: family.name.clone(),
            number: addition.number,
            total_blob_count: addition.total_blob_count,
            total_blob_bytes: addition.total_blob_bytes,
            garbage_blob_count: blob.garbage_blob_count,
            garbage_blob_bytes: blob.garbage_blob_bytes,
            given_up_bytes: blob.given_up_bytes,
            kept_bytes: blob.disk_bytes().saturating_add(blob.padding_bytes()),
        }
    }
}

/// Bounds of the parts of files that are garbage, in percent.
pub(crate) const GARBAGE_PERCENTS: [u64; 5] = [0, 20, 50, 80, 100];

pub(crate) fn garbage_percent_le(garbage: u64, total: u64) -> u64 {
    let (garbage, total) = (u128::from(garbage) * 100, u128::from(total));
    let bound = GARBAGE_PERCENTS.into_iter();
    let mut bound = bound.filter(|&p| garbage <= total * u128::from(p));
    bound.next().unwrap_or(100)
}

/// What pointers to a blob file lead to, and what the MANIFEST says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobFileCheck {
    /// The file, as the MANIFEST has it; `None` if it does not list it.
    pub file: Option<LiveBlobFile>,
    /// The file's number.
    pub number: FileNo,
    /// Values that tables point to.
    pub live_blob_count: u64,
    /// Bytes of their records.
    pub live_blob_bytes: u64,
    /// False if a table that may point to the file could not be read: then there may be more.
    pub is_counted: bool,
    /// Bytes of whole blocks in the places that no table points to, but no more than the file's garbage: so much of its
    /// space can have been given up. `None` if that cannot be told: the counts differ or are not known, or the
    /// file cannot be read.
    pub punchable_bytes: Option<u64>,
}

impl BlobFileCheck {
    /// True if the MANIFEST says the same, and no more was given up than is dead. That is not known of a file
    /// whose values could not all be counted.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.file.as_ref().is_some_and(|f| {
            let given_up = f.given_up_bytes.unwrap_or(0);
            self.is_counted
                && self.punchable_bytes.is_none_or(|most| given_up <= most)
                && f.total_blob_count.checked_sub(f.garbage_blob_count)
                    == Some(self.live_blob_count)
                && f.total_blob_bytes.checked_sub(f.garbage_blob_bytes)
                    == Some(self.live_blob_bytes)
        })
    }
}

/// The blob files of all families, by family and number.
pub(crate) fn live(context: &Context) -> Vec<LiveBlobFile> {
    let mut out = Vec::new();
    for family in context.set.families() {
        let version = family.state().version.clone();
        let blobs = version.blob_files().values();
        out.extend(blobs.map(|b| LiveBlobFile::new(&family, b)));
    }
    out
}

/// Damages of a family that [`BlobFilesFound`] lists at most; all are counted.
pub const BLOB_DAMAGES_LISTED_MAX: usize = 10_000;

/// The blob files of a family as they were found.
#[derive(Debug, Default)]
pub struct BlobFilesFound {
    /// What leads to them, and what the MANIFEST says of them: one entry for each file, by number.
    pub files: Vec<BlobFileCheck>,
    /// What is damaged: tables, files and, where pointers were followed, values; the first
    /// [`BLOB_DAMAGES_LISTED_MAX`] of them. Files that are not [`BlobFileCheck::is_exact`] are not among them.
    pub damages: Vec<Error>,
    /// All of them.
    pub damage_count: u64,
    /// Values that were read and are whole; 0 if pointers were not followed.
    pub values_read: u64,
    /// Bytes of their records.
    pub bytes_read: u64,
}

impl BlobFilesFound {
    /// Notes damage; any other error ends the look.
    fn note(&mut self, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Corruption {
            return Err(error);
        }
        self.damage_count += 1;
        if self.damages.len() < BLOB_DAMAGES_LISTED_MAX {
            self.damages.push(error);
        }
        Ok(())
    }
}

/// Opens the blob files of the family's newest version, counts the pointers in its tables, by reading all of them, and
/// sets them against what the MANIFEST says. With `follow` each pointer into a file that opens is followed too.
///
/// # Errors
/// `Io`, `NotSupported`. Damage is in the answer.
pub(crate) fn examine(family: &ColumnFamilyData, follow: bool) -> Result<BlobFilesFound> {
    let pinned = family.pin();
    let (version, tables) = (&pinned.version, &family.tables);
    let mut found = BlobFilesFound::default();
    let mut unread = BTreeSet::new();
    for &number in version.blob_files().keys() {
        if let Err(e) = tables.blob_reader(version, number) {
            unread.insert(number);
            found.note(in_file(tables, number, e))?;
        }
    }
    let mut counts = BlobCounts::default();
    let mut uncounted = Uncounted::default();
    for (_, file) in version.iter_files() {
        let told = tables.blob_references(file);
        match tables.count_pointers(file) {
            Ok(counted) => {
                counts.add_all(&counted);
                match told {
                    Ok(told) if told != counted => {
                        let told = "table points to other values than its properties say";
                        found.note(Error::corruption(told).with("file_number", file.number))?;
                    }
                    Ok(_) => {}
                    Err(e) => found.note(e)?,
                }
            }
            Err(e) => {
                uncounted.add(file, told)?;
                found.note(e)?;
            }
        }
        if follow {
            follow_all(tables, version, file, &unread, &mut found)?;
        }
    }
    let mut checks: Vec<BlobFileCheck> = counts
        .iter()
        .map(|(number, count)| check_of(family, version, number, count))
        .collect();
    for &number in version.blob_files().keys() {
        if counts.iter().all(|(n, _)| n != number) {
            checks.push(check_of(family, version, number, BlobCount::default()));
        }
    }
    checks.sort_by_key(|c| c.number);
    for check in &mut checks {
        check.is_counted = uncounted.has_all_of(check.number);
    }
    let mut rest = &mut checks[..];
    while !rest.is_empty() {
        let values = rest.iter().scan(0, |sum, check| {
            *sum += check.live_blob_count;
            Some(*sum)
        });
        let taken = values.take_while(|&sum| sum <= holes::MARKED_MAX).count();
        let (part, more) = rest.split_at_mut(taken.max(1));
        find_dead(tables, version, part)?;
        rest = more;
    }
    found.files = checks;
    Ok(found)
}

/// The same for who wants no damage.
///
/// # Errors
/// The first damage; `Io`.
pub(crate) fn check(family: &ColumnFamilyData, follow: bool) -> Result<Vec<BlobFileCheck>> {
    let mut found = examine(family, follow)?;
    match found.damages.is_empty() {
        true => Ok(found.files),
        false => Err(found.damages.swap_remove(0)),
    }
}

/// An error with the name of the blob file, where it has none.
fn in_file(tables: &FamilyTables, number: FileNo, error: Error) -> Error {
    match error.context("file") {
        Some(_) => error,
        None => error.with("file", filename::blob_path(&tables.dir, number).display()),
    }
}

/// Blob files that tables point to which could not be read.
#[derive(Default)]
struct Uncounted {
    files: BTreeSet<FileNo>,
    /// All from this one on.
    from: Option<FileNo>,
}

impl Uncounted {
    /// Adds those of a table, which tells them or does not.
    fn add(&mut self, table: &FileMeta, told: Result<BlobCounts>) -> Result<()> {
        match told {
            Ok(told) => self.files.extend(told.iter().map(|(number, _)| number)),
            Err(e) if e.kind() == ErrorKind::Corruption => {
                let oldest = table.oldest_blob_file_number;
                self.from = Some(self.from.map_or(oldest, |from| from.min(oldest)));
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// True if no such table points to the file.
    fn has_all_of(&self, number: FileNo) -> bool {
        !self.files.contains(&number) && self.from.is_none_or(|from| number < from)
    }
}

/// Finds what of some files is dead, from the places that tables point to.
fn find_dead(tables: &FamilyTables, version: &Version, part: &mut [BlobFileCheck]) -> Result<()> {
    let listed = part.iter().filter(|c| c.file.is_some() && c.is_counted);
    let numbers: Vec<FileNo> = listed.map(|check| check.number).collect();
    let mut marked = match holes::mark(tables, version, &numbers, &mut || Ok(())) {
        // A table that does not tell where it points to.
        Err(e) if e.kind() == ErrorKind::Corruption => return Ok(()),
        marked => marked?,
    };
    for check in part {
        let (Some(live), Some(file)) = (marked.get_mut(&check.number), &check.file) else {
            continue;
        };
        let dead = tables.dead_extents(version, check.number, live);
        // A file that cannot be read is told of where it is read.
        check.punchable_bytes = dead.ok().map(|dead| {
            // The file system that has the file now may have longer blocks than the one it came from.
            let blocks = dead.iter().filter_map(|e| e.whole_blocks(HOLE_BLOCK));
            let bytes: u64 = blocks.map(|extent| extent.size).sum();
            bytes.min(file.garbage_blob_bytes)
        });
    }
    Ok(())
}

/// What is told of a file, all pointers being counted.
fn check_of(
    family: &ColumnFamilyData,
    version: &Version,
    number: FileNo,
    count: BlobCount,
) -> BlobFileCheck {
    let file = version.blob_files().get(&number);
    BlobFileCheck {
        file: file.map(|b| LiveBlobFile::new(family, b)),
        number,
        live_blob_count: count.values,
        live_blob_bytes: count.bytes,
        is_counted: true,
        punchable_bytes: None,
    }
}

/// Reads the values that a table points to, but for those in files that are not listed or not read.
fn follow_all(
    tables: &FamilyTables,
    version: &Version,
    file: &FileMeta,
    unread: &BTreeSet<FileNo>,
    found: &mut BlobFilesFound,
) -> Result<()> {
    let options = TableReadOptions::compaction();
    let followed = tables.each_pointer(file, options, &mut |pointer, key| {
        let number = pointer.file;
        if unread.contains(&number) || !version.blob_files().contains_key(&number) {
            return Ok(());
        }
        let reader = tables.blob_reader(version, number)?;
        match reader.read(*pointer, key, true) {
            Ok(_) => {
                found.values_read += 1;
                found.bytes_read += pointer.record_len(key.len());
                Ok(())
            }
            Err(e) => found.note(in_file(tables, number, e)),
        }
    });
    match followed {
        // Who counted has met it, too, and it is told.
        Err(e) if e.kind() == ErrorKind::Corruption => Ok(()),
        followed => followed,
    }
}
