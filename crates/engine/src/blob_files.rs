//! The blob files of a database, told and checked.
//!
//! What the MANIFEST says of a file's garbage is what jobs counted; [`check`] counts anew from the
//! tables of one version, which is what is true.

use orogen_base::{FileNo, Result};
use orogen_blob::HOLE_BLOCK;
use orogen_blob::extents::dead_extents;
use orogen_sst::TableReadOptions;

use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::holes;
use crate::tables::FamilyTables;
use crate::version::blob_counts::{BlobCount, BlobCounts};
use crate::version::{BlobFileMeta, Version};

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
    /// Bytes of whole blocks in the places that no table points to, but no more than the file's garbage: so much of its
    /// space can have been given up. `None` if that cannot be told: the counts differ, or the
    /// file cannot be read.
    pub punchable_bytes: Option<u64>,
}

impl BlobFileCheck {
    /// True if the MANIFEST says the same, and no more was given up than is dead.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.file.as_ref().is_some_and(|f| {
            let given_up = f.given_up_bytes.unwrap_or(0);
            self.punchable_bytes.is_none_or(|most| given_up <= most)
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

/// Counts the pointers in the tables of the family's newest version, by reading all of them, and
/// sets them against what the MANIFEST says. With `follow` each pointer is followed too.
///
/// # Errors
/// Damage in a table; with `follow` in a blob file; `Io`.
pub(crate) fn check(family: &ColumnFamilyData, follow: bool) -> Result<Vec<BlobFileCheck>> {
    let pinned = family.pin();
    let version = &pinned.version;
    let mut counts = BlobCounts::default();
    for (_, file) in version.iter_files() {
        let told = family.tables.blob_references(file)?;
        let counted = family.tables.count_pointers(file)?;
        if told != counted {
            return Err(orogen_base::Error::corruption(
                "table points to other values than its properties say",
            )
            .with("file_number", file.number));
        }
        counts.add_all(&counted);
        if follow {
            follow_all(&family.tables, version, file)?;
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
    let mut rest = &mut checks[..];
    while !rest.is_empty() {
        let values = rest.iter().scan(0, |sum, check| {
            *sum += check.live_blob_count;
            Some(*sum)
        });
        let taken = values.take_while(|&sum| sum <= holes::MARKED_MAX).count();
        let (part, more) = rest.split_at_mut(taken.max(1));
        find_dead(&family.tables, version, part)?;
        rest = more;
    }
    Ok(checks)
}

/// Finds what of some files is dead, from the places that tables point to.
fn find_dead(tables: &FamilyTables, version: &Version, part: &mut [BlobFileCheck]) -> Result<()> {
    let listed = part.iter().filter(|check| check.file.is_some());
    let numbers: Vec<FileNo> = listed.map(|check| check.number).collect();
    let mut marked = holes::mark(tables, version, &numbers, &mut || Ok(()))?;
    for check in part {
        let (Some(live), Some(file)) = (marked.get_mut(&check.number), &check.file) else {
            continue;
        };
        let reader = tables.blob_reader(version, check.number);
        let dead = reader.and_then(|reader| dead_extents(reader, live));
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
        punchable_bytes: None,
    }
}

fn follow_all(
    tables: &FamilyTables,
    version: &Version,
    file: &crate::version::FileMeta,
) -> Result<()> {
    tables.each_pointer(file, TableReadOptions::compaction(), &mut |pointer, key| {
        let reader = tables.blob_reader(version, pointer.file)?;
        reader.read(*pointer, key, true).map(drop)
    })
}
