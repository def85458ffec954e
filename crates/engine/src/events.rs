//! What listeners are told while the database runs.
//!
//! Listeners are called without any lock held, on the thread that did the work; they must
//! return soon.

use orogen_base::{Error, FileNo};

/// A blob file, as the MANIFEST lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobFileAdditionInfo {
    /// The file's number.
    pub number: FileNo,
    /// Values in it.
    pub total_blob_count: u64,
    /// Bytes of their records, headers and keys included.
    pub total_blob_bytes: u64,
}

/// Values of a blob file that lost their last pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobFileGarbageInfo {
    /// The file's number.
    pub number: FileNo,
    /// How many values.
    pub garbage_blob_count: u64,
    /// Bytes of their records.
    pub garbage_blob_bytes: u64,
}

/// A blob file that a job wrote and that is part of the database now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobFileCreationInfo {
    /// The family's name.
    pub column_family: String,
    /// The job's number.
    pub job_id: u64,
    /// Why the job ran.
    pub reason: &'static str,
    /// The file.
    pub file: BlobFileAdditionInfo,
}

/// A memtable became a table.
#[derive(Clone, Debug)]
pub struct FlushInfo {
    /// The family's name.
    pub column_family: String,
    /// The job's number.
    pub job_id: u64,
    /// The new table; `None` if everything in the memtable cancelled out.
    pub file: Option<FileNo>,
    /// Bytes of the new table and the new blob files.
    pub bytes: u64,
    /// The new blob files.
    pub blob_file_additions: Vec<BlobFileAdditionInfo>,
    /// Entries of the memtables.
    pub entries: u64,
    /// Why it was flushed.
    pub reason: &'static str,
    /// How long it took.
    pub micros: u64,
}

/// Tables became better tables.
#[derive(Clone, Debug)]
pub struct CompactionInfo {
    /// The family's name.
    pub column_family: String,
    /// The job's number.
    pub job_id: u64,
    /// The level of the first inputs.
    pub start_level: usize,
    /// The level of the outputs.
    pub output_level: usize,
    /// The inputs.
    pub inputs: Vec<FileNo>,
    /// The outputs.
    pub outputs: Vec<FileNo>,
    /// Those of the inputs that range tombstones delete whole: they were not read.
    pub dropped: Vec<FileNo>,
    /// Bytes of the inputs that were read.
    pub bytes_read: u64,
    /// Bytes of the outputs.
    pub bytes_written: u64,
    /// The new blob files.
    pub blob_file_additions: Vec<BlobFileAdditionInfo>,
    /// What became garbage in older ones.
    pub blob_file_garbages: Vec<BlobFileGarbageInfo>,
    /// Values that were moved between blob files only to lie in key order.
    pub blob_values_ordered: u64,
    /// Bytes of these values, as they were stored.
    pub blob_bytes_ordered: u64,
    /// True if the files were moved as they are.
    pub trivial_move: bool,
    /// Why it ran.
    pub reason: &'static str,
    /// How long it took.
    pub micros: u64,
}

/// Writers are slowed, stopped, or free again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StallInfo {
    /// The family that caused it.
    pub column_family: String,
    /// What holds now.
    pub condition: StallCondition,
    /// Why, with the figures.
    pub cause: String,
}

/// The database takes writes again after the disk was full.
#[derive(Clone, Debug)]
pub struct ErrorRecoveryInfo {
    /// What had made it refuse them.
    pub error: Error,
    /// How often the database tried by itself.
    pub attempts: u64,
    /// How long writes were refused.
    pub micros: u64,
}

/// A step in which values left blob files has ended: a collection of their garbage, or one that
/// puts values into key order.
#[derive(Clone, Debug)]
pub struct BlobCollectionInfo {
    /// The family's name.
    pub column_family: String,
    /// The job's number.
    pub job_id: u64,
    /// Why: `BlobCollection` or `RangeMerge`.
    pub reason: &'static str,
    /// Blob files whose values were moved; those that nothing points to any more are gone.
    pub emptied: Vec<FileNo>,
    /// Tables that point to them and were rewritten.
    pub inputs: Vec<FileNo>,
    /// The tables in their place.
    pub outputs: Vec<FileNo>,
    /// New blob files.
    pub blob_files: Vec<FileNo>,
    /// Values that were moved only to lie in key order.
    pub blob_values_ordered: u64,
    /// Bytes of these values, as they were stored.
    pub blob_bytes_ordered: u64,
    /// Bytes of the tables that were read.
    pub table_bytes_read: u64,
    /// Bytes of records that lost their last pointer, those that were moved among them.
    pub garbage_bytes: u64,
    /// Bytes of all new files.
    pub bytes_written: u64,
    /// How long it took.
    pub micros: u64,
}

/// Values of a family go from tables to blob files, or back.
#[derive(Clone, Debug)]
pub struct BlobConversionInfo {
    /// The family's name.
    pub column_family: String,
    /// The job's number.
    pub job_id: u64,
    /// Where they go, as [`ConvertTo::name`](crate::ConvertTo::name) has it.
    pub to: &'static str,
    /// What came of it; when it begins, nothing yet. Where it ended before its time, what was done until then, and
    /// nothing of what is left.
    pub converted: Converted,
    /// Why it ended before its time: `Aborted` or `Closed` if somebody ended it. `None` if it came to its end, and when it begins.
    pub error: Option<Error>,
    /// How long it took.
    pub micros: u64,
}

/// What came of a conversion of values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Tables that were rewritten.
    pub tables_rewritten: u64,
    /// Bytes of these.
    pub table_bytes_read: u64,
    /// Bytes of the new tables and blob files.
    pub bytes_written: u64,
    /// Tables that are not as they should be, because something in them or behind their pointers is
    /// damaged, or because a value is too large for a blob file.
    pub tables_left: Vec<FileNo>,
    /// Blob files that are still part of the family. Told where values come back only.
    pub blob_files_left: Vec<FileNo>,
}

impl Converted {
    /// True if no value is left where it should not be.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.tables_left.is_empty() && self.blob_files_left.is_empty()
    }
}

/// How writers are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum StallCondition {
    /// Not at all.
    #[default]
    Normal,
    /// They are slowed to a rate.
    Delayed,
    /// They wait.
    Stopped,
}

/// A table that turned out to be damaged.
#[derive(Clone, Debug)]
pub struct DamagedTable {
    /// The family's name.
    pub column_family: String,
    /// The file's number.
    pub number: FileNo,
    /// The level.
    pub level: usize,
    /// Where in the file the damage is, if it is in one place.
    pub offset: Option<u64>,
    /// No key before this user key is touched.
    pub from: Vec<u8>,
    /// No key after this user key is touched.
    pub to: Vec<u8>,
    /// What was met first.
    pub error: Error,
}

/// A blob file that turned out to be damaged.
#[derive(Clone, Debug)]
pub struct DamagedBlobFile {
    /// The family's name.
    pub column_family: String,
    /// The file's number.
    pub number: FileNo,
    /// Where in the file the damage is, if it is in one place.
    pub offset: Option<u64>,
    /// What was met first.
    pub error: Error,
}

/// A setting that was changed while the database was open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionChange {
    /// RocksDB's name; those of tables behind `block_based_table_factory.`.
    pub name: String,
    /// The value before, as an OPTIONS file has it.
    pub old: String,
    /// The value from here on.
    pub new: String,
}

/// Settings were changed while the database was open.
#[derive(Clone, Debug)]
pub struct OptionsChangedInfo {
    /// The family whose settings they are; `None` for the database's.
    pub column_family: Option<String>,
    /// Those that differ now.
    pub changes: Vec<OptionChange>,
}

/// Told of what the database does.
pub trait EventListener: Send + Sync {
    /// Settings were changed and are in effect.
    fn on_options_changed(&self, info: &OptionsChangedInfo) {
        let _ = info;
    }
    /// A flush starts.
    fn on_flush_begin(&self, info: &FlushInfo) {
        let _ = info;
    }
    /// A flush has ended.
    fn on_flush_completed(&self, info: &FlushInfo) {
        let _ = info;
    }
    /// A compaction starts.
    fn on_compaction_begin(&self, info: &CompactionInfo) {
        let _ = info;
    }
    /// A compaction has ended.
    fn on_compaction_completed(&self, info: &CompactionInfo) {
        let _ = info;
    }
    /// Values were moved out of blob files with much garbage.
    fn on_blob_collection_completed(&self, info: &BlobCollectionInfo) {
        let _ = info;
    }
    /// A conversion of values begins.
    fn on_blob_conversion_begin(&self, info: &BlobConversionInfo) {
        let _ = info;
    }
    /// A conversion of values has ended: [`BlobConversionInfo::error`] tells whether before its time. Each that
    /// began ends once.
    fn on_blob_conversion_completed(&self, info: &BlobConversionInfo) {
        let _ = info;
    }
    /// Writers are held back more or less than before.
    fn on_stall_conditions_changed(&self, info: &StallInfo) {
        let _ = info;
    }
    /// A table is gone.
    fn on_table_file_deleted(&self, file: FileNo) {
        let _ = file;
    }
    /// A blob file was written and is part of the database.
    fn on_blob_file_created(&self, info: &BlobFileCreationInfo) {
        let _ = info;
    }
    /// A blob file is gone.
    fn on_blob_file_deleted(&self, file: FileNo) {
        let _ = file;
    }
    /// A blob file is damaged; its other values are read, and what is damaged stays where it is.
    fn on_blob_file_damaged(&self, info: &DamagedBlobFile) {
        let _ = info;
    }
    /// A table is damaged; compactions leave it out, and reads of the rest go on.
    fn on_table_damaged(&self, info: &DamagedTable) {
        let _ = info;
    }
    /// Work failed. After an error of kind `NoSpace` the database may refuse writes until there is
    /// space, after any other it is read-only.
    fn on_background_error(&self, error: &Error) {
        let _ = error;
    }
    /// Writes are refused because of `error` until there is space; the database tries to resume.
    fn on_error_recovery_begin(&self, error: &Error) {
        let _ = error;
    }
    /// Writes are taken again.
    fn on_error_recovery_completed(&self, info: &ErrorRecoveryInfo) {
        let _ = info;
    }
}
