//! Migration: a directory of ours out of one that Titan wrote.
//!
//! Titan is RocksDB with large values in files of its own. What it wrote opens here but for the
//! pointers, which look like ours and lead elsewhere; so a migration reads it and makes a new one.
//!
//! ```text
//! family without pointers   tables are linked and keep their levels; its log becomes tables of level 0
//! family with pointers      tables and log are merged into one sorted run in the last level:
//!                           of each key what a reader sees, values in our blob files or in the tables
//! ```
//! Old pointers that a newer write hides may lead to files that are gone, as Titan's garbage
//! collection leaves them: they are dropped unread. That newer write may stand in the log only, so
//! the log takes part in the merge.
//!
//! Invariants: (1) the source is only read; (2) the target is whole or not there; (3) entries keep
//! their sequence numbers, and merge operands stay operands; (4) a value is taken only if its
//! record verifies and is that of the key; (5) what is lost is told by key, and neither an older
//! version nor operands above it show instead; (6) memory is bounded, whatever the sizes, but for the
//! operands of one key.

mod blobs;
mod build;
mod entries;
mod logs;
mod source;

use std::path::{Path, PathBuf};

use orogen_base::{Error, FileNo, Result};
use orogen_sst::CompressionType;

use crate::options::Options;

/// How a migration is done.
#[derive(Clone, Debug)]
pub struct TitanOptions {
    /// Where Titan's files are. Default `None`: `titandb` in the source.
    pub titan_dir: Option<PathBuf>,
    /// Where the source's logs are. Default `None`: in the source.
    pub wal_dir: Option<PathBuf>,
    /// Values of so many bytes and more go to blob files, the others into the tables; `None`: all
    /// into the tables. Default 4096, as Titan's.
    pub min_blob_size: Option<u64>,
    /// The codec of values in blob files. Default `None`: for each family that of its newest blob
    /// file, or zstd where that is one that is not written.
    pub compression: Option<CompressionType>,
    /// Goes on where a value cannot be read: its key is told and not taken, nor are merge operands
    /// above the value. Default false.
    pub skip_damaged: bool,
    /// Looks up front whether there is space for what is made, as far as that can be told. Default
    /// true.
    pub check_space: bool,
    /// Threads that merge and write, 1 or more. Default 1.
    pub threads: usize,
}

impl Default for TitanOptions {
    fn default() -> Self {
        Self {
            titan_dir: None,
            wal_dir: None,
            min_blob_size: Some(4096),
            compression: None,
            skip_damaged: false,
            check_space: true,
            threads: 1,
        }
    }
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Files are looked at; steps are files.
    Examine,
    /// Entries and values are read and written; steps are their bytes before compression of tables.
    Migrate,
}

/// Called now and then, from any thread, with steps done and in all; false gives up.
pub type Watch<'a> = &'a (dyn Fn(Phase, u64, u64) -> bool + Sync);

/// A family of the source.
#[derive(Clone, Debug, Default)]
pub struct FamilyReport {
    /// Its id.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Its tables.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Its blob files that Titan counts as live.
    pub blob_files: u64,
    /// Their bytes.
    pub blob_file_bytes: u64,
    /// Bytes of records that its tables point to, as they note it: old versions count.
    pub referenced_bytes: u64,
    /// Operations in logs that its tables lack.
    pub log_operations: u64,
    /// True if it is merged; false if its tables are taken as they are.
    pub is_merged: bool,
    /// The codec that its values in blob files get.
    pub blob_compression: CompressionType,
    /// Entries that were taken; 0 of a family that is not merged.
    pub entries: u64,
    /// Values that were taken out of Titan's blob files.
    pub values: u64,
    /// Their bytes before compression.
    pub value_bytes: u64,
}

/// A blob file that counts as live and is missing or cannot be used.
#[derive(Clone, Debug)]
pub struct TitanFileDamage {
    /// Its number.
    pub number: FileNo,
    /// Its family.
    pub column_family: String,
    /// What is wrong.
    pub error: Error,
}

/// A value that a reader would see and that cannot be read.
#[derive(Clone, Debug)]
pub struct LostTitanValue {
    /// Its family.
    pub column_family: String,
    /// Its key.
    pub key: Vec<u8>,
    /// The blob file, unless the pointer itself is malformed.
    pub blob_file: Option<FileNo>,
    /// What is wrong.
    pub error: Error,
}

/// Values that are lost and told one by one; the others are counted.
pub const LOST_LISTED_MAX: usize = 100_000;

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Tables.
    pub tables: u64,
    /// Their bytes.
    pub table_bytes: u64,
    /// Blob files.
    pub blob_files: u64,
    /// Their bytes.
    pub blob_file_bytes: u64,
}

/// What was found, and what came of it.
#[derive(Clone, Debug, Default)]
pub struct TitanReport {
    /// The families by id.
    pub families: Vec<FamilyReport>,
    /// Live blob files that are missing or cannot be used.
    pub files_damaged: Vec<TitanFileDamage>,
    /// Blob files on disk that no family has: a crash or garbage collection left them.
    pub files_not_live: Vec<FileNo>,
    /// Logs that end in a torn record, as a crash leaves them.
    pub logs_torn: Vec<FileNo>,
    /// Bytes that the target takes, about.
    pub bytes_needed: u64,
    /// The first values that are lost.
    pub values_lost: Vec<LostTitanValue>,
    /// How many are.
    pub values_lost_count: u64,
    /// What was made; `None` if that was not asked for.
    pub made: Option<Made>,
}

/// Looks at a directory that Titan wrote and tells what a migration would do. Makes nothing.
///
/// # Errors
/// `Busy` if somebody has it open; `InvalidArgument` if it is none of Titan's; `Corruption` if a
/// MANIFEST, a log or the beginning of a table is damaged; `NotSupported` for an order, a codec or a
/// feature that is not here; `Aborted` on request; `Io`.
pub fn examine_titan(
    dir: impl AsRef<Path>,
    options: &Options,
    titan: &TitanOptions,
    watch: Watch<'_>,
) -> Result<TitanReport> {
    let dir = dir.as_ref();
    let _locks = source::lock(dir, options, titan)?;
    let source = source::Source::open(dir, options, titan, watch)?;
    Ok(source.report(titan))
}

/// Makes the database `to` of the newest state of `dir`, which is not changed.
///
/// # Errors
/// As [`examine_titan`]; `InvalidArgument` if `to` exists; `NotSupported` for a merge operand of Titan's own; `Corruption` if a table or a blob file is
/// damaged, the latter only without [`TitanOptions::skip_damaged`]; `NoSpace`. What was made is
/// removed.
pub fn migrate_titan(
    dir: impl AsRef<Path>,
    to: impl AsRef<Path>,
    options: &Options,
    titan: &TitanOptions,
    watch: Watch<'_>,
) -> Result<TitanReport> {
    let (dir, to) = (dir.as_ref(), to.as_ref());
    if options.db.fs.exists(to)? {
        return Err(
            Error::invalid_argument("migration needs a directory that does not exist")
                .with("path", to.display()),
        );
    }
    let _locks = source::lock(dir, options, titan)?;
    let mut source = source::Source::open(dir, options, titan, watch)?;
    build::build(&mut source, to, options, titan, watch)
}
