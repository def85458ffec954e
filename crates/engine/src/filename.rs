//! Names of the files in a database directory.
//!
//! The names are RocksDB's, so that either engine recognises the other's directory. Numbers come
//! from one counter: no two files of a directory share one, whatever their kind.
//!
//! ```text
//! CURRENT            names the live MANIFEST       NNNNNN.sst    table (NNNNNN.ldb when old)
//! MANIFEST-NNNNNN    version edits                 NNNNNN.log    write-ahead log
//! OPTIONS-NNNNNN     options as text               NNNNNN.blob   separated values
//! IDENTITY           the database's id             *.dbtmp       written, then renamed
//! archive/           logs kept for readers of updates
//! LOCK               held while open               LOG, LOG.old.MICROS   information log
//! UNFINISHED         the directory is being made
//! ```
//! Invariant: a name is recognised only if building it again gives the same name, so a file that
//! merely looks alike is never opened or deleted. Source: RocksDB `file/filename.cc`.

use std::path::{Path, PathBuf};

use orogen_base::{FileNo, Result};
use orogen_env::FileSystem;

/// The file that names the live MANIFEST.
pub const CURRENT: &str = "CURRENT";
/// The file that is locked while the database is open.
pub const LOCK: &str = "LOCK";
/// The file that holds the database's id.
pub const IDENTITY: &str = "IDENTITY";
/// The directory of logs that are kept for readers of updates.
pub const ARCHIVE: &str = "archive";
/// A file in a directory that is not whole yet, and of no use.
pub(crate) const UNFINISHED: &str = "UNFINISHED";
/// The information log.
pub const INFO_LOG: &str = "LOG";

const OLD_INFO_LOG_PREFIX: &str = "LOG.old.";
const MANIFEST_PREFIX: &str = "MANIFEST-";
const OPTIONS_PREFIX: &str = "OPTIONS-";
const TEMPORARY_SUFFIX: &str = ".dbtmp";

/// What a file of the directory is, told by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A sorted table.
    Table(FileNo),
    /// A write-ahead log.
    Wal(FileNo),
    /// Separated values.
    Blob(FileNo),
    /// Version edits.
    Manifest(FileNo),
    /// Options as text.
    Options(FileNo),
    /// Names the live MANIFEST.
    Current,
    /// Held while the database is open.
    Lock,
    /// The database's id.
    Identity,
    /// The information log.
    InfoLog,
    /// An information log put aside; when, in microseconds since 1970.
    OldInfoLog(u64),
    /// Half written: to be renamed, or to be removed after a crash.
    Temporary,
}

/// The number in a file's name, of the kinds that have theirs from the counter of a database.
pub(crate) fn number(name: &str) -> Option<FileNo> {
    match parse(name)? {
        FileKind::Table(n)
        | FileKind::Wal(n)
        | FileKind::Blob(n)
        | FileKind::Manifest(n)
        | FileKind::Options(n) => Some(n),
        _ => None,
    }
}

/// Which of the files that hold keys or values a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataFileKind {
    /// A table.
    Table,
    /// A blob file.
    Blob,
}

/// A table or a blob file. Both have their numbers from one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataFile {
    /// Its number.
    pub number: FileNo,
    /// What it is.
    pub kind: DataFileKind,
}

impl DataFile {
    /// The table of a number.
    #[must_use]
    pub fn table(number: FileNo) -> Self {
        let kind = DataFileKind::Table;
        Self { number, kind }
    }

    /// The blob file of a number.
    #[must_use]
    pub fn blob(number: FileNo) -> Self {
        let kind = DataFileKind::Blob;
        Self { number, kind }
    }

    /// Its path; that of a table under its present name.
    #[must_use]
    pub fn path(self, dir: &Path) -> PathBuf {
        match self.kind {
            DataFileKind::Table => table_path(dir, self.number),
            DataFileKind::Blob => blob_path(dir, self.number),
        }
    }
}

/// What the file of this name is; `None` for a file that is not the engine's.
#[must_use]
pub fn parse(name: &str) -> Option<FileKind> {
    match name {
        CURRENT => return Some(FileKind::Current),
        LOCK => return Some(FileKind::Lock),
        IDENTITY => return Some(FileKind::Identity),
        INFO_LOG => return Some(FileKind::InfoLog),
        _ => {}
    }
    if let Some(stem) = name.strip_suffix(TEMPORARY_SUFFIX) {
        let ours = parse_number(stem).is_some() || parse(stem).is_some();
        return ours.then_some(FileKind::Temporary);
    }
    if let Some(n) = name.strip_prefix(MANIFEST_PREFIX) {
        return parse_number(n).map(FileKind::Manifest);
    }
    if let Some(n) = name.strip_prefix(OPTIONS_PREFIX) {
        return parse_number(n).map(FileKind::Options);
    }
    if let Some(n) = name.strip_prefix(OLD_INFO_LOG_PREFIX) {
        let canonical = n == "0" || !n.starts_with('0');
        return parse_decimal(n)
            .filter(|_| canonical)
            .map(FileKind::OldInfoLog);
    }
    let (stem, extension) = name.split_once('.')?;
    let kind = match extension {
        "sst" | "ldb" => FileKind::Table,
        "log" => FileKind::Wal,
        "blob" => FileKind::Blob,
        _ => return None,
    };
    parse_number(stem).map(kind)
}

/// Digits only; no sign, no blank, no overflow.
fn parse_decimal(s: &str) -> Option<u64> {
    if s.is_empty() || !s.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    s.parse().ok()
}

/// A file number as it is printed: six digits, more only if it needs them.
fn parse_number(s: &str) -> Option<FileNo> {
    let canonical = s.len() == 6 || (s.len() > 6 && !s.starts_with('0'));
    if canonical { parse_decimal(s) } else { None }
}

/// `NNNNNN.sst`
#[must_use]
pub fn table_name(number: FileNo) -> String {
    format!("{number:06}.sst")
}

/// `MANIFEST-NNNNNN`
#[must_use]
pub fn manifest_name(number: FileNo) -> String {
    format!("{MANIFEST_PREFIX}{number:06}")
}

/// The path of a table.
#[must_use]
pub fn table_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(table_name(number))
}

/// The path of a table as LevelDB and early RocksDB named it; only ever read.
#[must_use]
pub fn old_table_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(format!("{number:06}.ldb"))
}

/// The path under which a table is there, or its present one if it is not.
///
/// # Errors
/// `Io`.
pub fn find_table(fs: &dyn FileSystem, dir: &Path, number: FileNo) -> Result<PathBuf> {
    let path = table_path(dir, number);
    let old = old_table_path(dir, number);
    Ok(if !fs.exists(&path)? && fs.exists(&old)? {
        old
    } else {
        path
    })
}

/// The path of a write-ahead log.
#[must_use]
pub fn wal_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(format!("{number:06}.log"))
}

/// The directory of logs that are kept for readers of updates.
#[must_use]
pub fn archive_dir(dir: &Path) -> PathBuf {
    dir.join(ARCHIVE)
}

/// The path of a write-ahead log that is kept for readers of updates.
#[must_use]
pub fn archived_wal_path(dir: &Path, number: FileNo) -> PathBuf {
    wal_path(&archive_dir(dir), number)
}

/// The path of a blob file.
#[must_use]
pub fn blob_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(format!("{number:06}.blob"))
}

/// The path of a MANIFEST.
#[must_use]
pub fn manifest_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(manifest_name(number))
}

/// The path of an options file.
#[must_use]
pub fn options_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(format!("{OPTIONS_PREFIX}{number:06}"))
}

/// The path of an options file that is not complete yet.
#[must_use]
pub fn temporary_options_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(format!("{OPTIONS_PREFIX}{number:06}{TEMPORARY_SUFFIX}"))
}

/// The path of a file that is not complete yet.
#[must_use]
pub fn temporary_path(dir: &Path, number: FileNo) -> PathBuf {
    dir.join(format!("{number:06}{TEMPORARY_SUFFIX}"))
}

/// The path of `CURRENT`.
#[must_use]
pub fn current_path(dir: &Path) -> PathBuf {
    dir.join(CURRENT)
}

/// The path of `LOCK`.
#[must_use]
pub fn lock_path(dir: &Path) -> PathBuf {
    dir.join(LOCK)
}

/// The path of `IDENTITY`.
#[must_use]
pub fn identity_path(dir: &Path) -> PathBuf {
    dir.join(IDENTITY)
}

/// The path of the information log.
#[must_use]
pub fn info_log_path(dir: &Path) -> PathBuf {
    dir.join(INFO_LOG)
}

/// The path of an information log put aside at `micros`.
#[must_use]
pub fn old_info_log_path(dir: &Path, micros: u64) -> PathBuf {
    dir.join(format!("{OLD_INFO_LOG_PREFIX}{micros}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_name_is_recognised() {
        let dir = Path::new("db");
        for n in [1, 12, 999_999, 1_000_000, u64::MAX] {
            let built = [
                (table_path(dir, n), FileKind::Table(n)),
                (old_table_path(dir, n), FileKind::Table(n)),
                (wal_path(dir, n), FileKind::Wal(n)),
                (blob_path(dir, n), FileKind::Blob(n)),
                (manifest_path(dir, n), FileKind::Manifest(n)),
                (options_path(dir, n), FileKind::Options(n)),
                (temporary_options_path(dir, n), FileKind::Temporary),
                (temporary_path(dir, n), FileKind::Temporary),
                (current_path(dir), FileKind::Current),
                (dir.join("CURRENT.dbtmp"), FileKind::Temporary),
                (lock_path(dir), FileKind::Lock),
                (identity_path(dir), FileKind::Identity),
                (info_log_path(dir), FileKind::InfoLog),
                (old_info_log_path(dir, n), FileKind::OldInfoLog(n)),
            ];
            for (path, kind) in built {
                let name = path.file_name().unwrap().to_str().unwrap();
                assert_eq!(parse(name), Some(kind), "{name}");
            }
        }
    }

    #[test]
    fn names_that_only_look_alike_are_left_alone() {
        for name in [
            "",
            "foo",
            "1.sst",
            "0000001.sst",
            "+00001.sst",
            "000001.sst.bak",
            "000001.SST",
            "000001",
            ".sst",
            "MANIFEST",
            "MANIFEST-",
            "MANIFEST-5",
            "MANIFEST-000005x",
            "OPTIONS-x",
            "CURRENT.bak",
            "notes.dbtmp",
            "LOG.old",
            "LOG.old.x",
            "LOG.old.0500",
            "99999999999999999999.sst",
            "archive",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }
}
