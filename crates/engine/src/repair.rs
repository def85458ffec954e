//! Repair: a new directory out of what can still be read of a damaged one.
//!
//! ```text
//! MANIFEST readable   tables keep their levels; a damaged one is replaced by what is left of it
//! MANIFEST lost       all tables of a family are merged into one sorted run in its last level
//! both                what the logs hold becomes tables of level 0; blob files that tables point to
//!                     are taken, and of damaged ones the values that verify are written anew
//! ```
//! The old directory is only read. [`examine`] tells what would be done; [`repair`] does it,
//! under a temporary name that is renamed at the end. Of a directory that is whole there is
//! nothing to repair, and nothing is made.
//!
//! Invariants: (1) an entry is kept if its block, or its record of a log, verifies, and so does the
//! value in a blob file that it points to; (2) where it is not, the report names the file, the bytes
//! and the user keys between which it stood, or the key whose value is lost; (3) newer
//! versions win over older ones: levels and epochs are kept, and where they are not known entries
//! are merged by their sequence numbers; (4) no two entries point to one value.
//!
//! What cannot be known without a MANIFEST: whether a table was out of use already. A table whose
//! entries a compaction had dropped, and that a crash left behind, brings them back; where it points
//! into a blob file that is gone with it, values are told as lost that nobody misses. The report says
//! when tables were taken without a MANIFEST.

mod blobs;
mod examine;
mod logs;
mod rebuild;

use std::path::Path;

use orogen_base::{Error, FileNo, Result};
use orogen_sst::salvage::LostBlock;

use crate::options::Options;

/// Where the state of the tables comes from.
#[derive(Clone, Debug)]
pub enum ManifestState {
    /// From the MANIFEST that CURRENT names.
    Current(FileNo),
    /// From a MANIFEST that CURRENT does not name, because it is missing or damaged.
    Found(FileNo),
    /// There is none that can be read, and why: from the tables themselves.
    Lost(Error),
}

/// A table that is not whole.
#[derive(Clone, Debug)]
pub struct TableDamage {
    /// Its number.
    pub number: FileNo,
    /// Its column family; empty if that is not known.
    pub column_family: String,
    /// Its level, if the MANIFEST tells.
    pub level: Option<usize>,
    /// What is wrong with it as a whole, such as that it is missing or does not open.
    pub error: Option<Error>,
    /// Entries that are kept.
    pub entries: u64,
    /// What is lost.
    pub lost: Vec<LostBlock>,
    /// Range tombstones were lost: what they deleted may show again.
    pub range_tombstones_lost: bool,
    /// Nobody knows which family it belongs to, so nothing of it is taken.
    pub unassigned: bool,
}

/// A log with damage in it.
#[derive(Clone, Debug)]
pub struct LogDamage {
    /// Its number.
    pub number: FileNo,
    /// What is wrong, with offset and bytes.
    pub errors: Vec<Error>,
}

/// A blob file that is not whole.
#[derive(Clone, Debug)]
pub struct BlobFileDamage {
    /// Its number.
    pub number: FileNo,
    /// Its column family; empty if that is not known.
    pub column_family: String,
    /// Values of it that tables point to and that are kept.
    pub values: u64,
    /// What is wrong with it, or with the first value of it that is lost.
    pub error: Error,
}

/// A value that a table points to and that cannot be read. The entry is dropped: an older version
/// of the key may show again.
#[derive(Clone, Debug)]
pub struct LostValue {
    /// The column family.
    pub column_family: String,
    /// The table that points to it.
    pub table: FileNo,
    /// The user key.
    pub key: Vec<u8>,
    /// The blob file; `None` if the pointer itself cannot be read.
    pub blob_file: Option<FileNo>,
    /// What is wrong.
    pub error: Error,
}

/// What was found, and what of it is taken.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// Where the state comes from.
    pub manifest: ManifestState,
    /// The column families by id.
    pub families: Vec<(u32, String)>,
    /// Tables that are whole.
    pub tables_whole: u64,
    /// The others.
    pub tables_damaged: Vec<TableDamage>,
    /// Tables that the MANIFEST does not list; they are not taken.
    pub tables_ignored: Vec<FileNo>,
    /// Tables that were made elsewhere and taken in, without a MANIFEST to tell when: their
    /// entries count as older than all others, and may be hidden by what they once replaced.
    pub tables_of_unknown_age: Vec<FileNo>,
    /// Entries that are taken from tables.
    pub table_entries: u64,
    /// Blob files that are whole.
    pub blob_files_whole: u64,
    /// The others, as far as the MANIFEST lists them or tables point to them.
    pub blob_files_damaged: Vec<BlobFileDamage>,
    /// The first [`LOST_LISTED_MAX`] values in blob files that are lost.
    pub values_lost: Vec<LostValue>,
    /// All of them.
    pub values_lost_count: u64,
    /// Operations that are taken from logs.
    pub log_operations: u64,
    /// Logs with damage. A torn tail, as a crash leaves it, is none, unless writes stand behind it.
    pub logs_damaged: Vec<LogDamage>,
    /// Names of writes that are prepared, and neither committed nor rolled back. A healthy directory
    /// keeps them; a new one has no log to keep them in.
    pub prepared_left_out: Vec<Vec<u8>>,
}

/// Lost values that a [`RepairReport`] lists; the others are counted.
pub const LOST_LISTED_MAX: usize = 100_000;

impl RepairReport {
    /// True if there is nothing to repair.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        matches!(self.manifest, ManifestState::Current(_))
            && self.tables_damaged.is_empty()
            && self.blob_files_damaged.is_empty()
            && self.values_lost_count == 0
            && self.logs_damaged.is_empty()
    }
}

/// Called with bytes of tables read and bytes of tables in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Looks at all of the directory `dir` and tells what a repair would do. Changes nothing.
///
/// # Errors
/// `Busy` if somebody has it open; `InvalidArgument` if there is nothing of a database;
/// `NotSupported` for values that expire, for tables of another format, and for an order or a codec that is not built in; `Io`.
pub fn examine(
    dir: impl AsRef<Path>,
    options: &Options,
    progress: Progress<'_>,
) -> Result<RepairReport> {
    let dir = dir.as_ref();
    let _lock = examine::lock(dir, options)?;
    Ok(examine::examine(dir, options, progress)?.0)
}

/// Makes the database `to` of what can be read of `dir`, which is not changed. Makes nothing if
/// there is nothing to repair: see [`RepairReport::is_healthy`].
///
/// # Errors
/// As [`examine`]; `InvalidArgument` if `to` exists; `NoSpace`: what was made is removed.
pub fn repair(
    dir: impl AsRef<Path>,
    to: impl AsRef<Path>,
    options: &Options,
    progress: Progress<'_>,
) -> Result<RepairReport> {
    let (dir, to) = (dir.as_ref(), to.as_ref());
    if options.db.fs.exists(to)? {
        return Err(
            Error::invalid_argument("repair needs a directory that does not exist")
                .with("path", to.display()),
        );
    }
    let _lock = examine::lock(dir, options)?;
    let (report, plan) = examine::examine(dir, options, progress)?;
    if !report.is_healthy() {
        rebuild::rebuild(dir, to, options, &plan)?;
    }
    Ok(report)
}
