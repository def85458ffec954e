//! The list of a backup's files: RocksDB's schema 2, with a checksum over the list itself.
//!
//! ```text
//! schema_version 2.0
//! seconds since 1970
//! sequence number
//! orogen.footer 1                     the list is whole only with its footer
//! number of files
//! path crc32 CRC32C size BYTES        a line for each file; the path from the backups' directory
//! // FOOTER
//! orogen.crc32c CRC32C                over all lines before "// FOOTER"
//! ```
//! Numbers are decimal. RocksDB passes over fields that it does not know, the footer's too; this
//! reader does the same, but for those that begin with `ni::`. Schema 1, which has neither sizes
//! nor a first line, is read. Source: RocksDB `utilities/backup/backup_engine.cc`.

use std::fmt::Write as _;

use orogen_base::checksum::crc32c;
use orogen_base::{Error, Result, SeqNo, memory};

use crate::filename;

pub(super) const SHARED: &str = "shared_checksum";
pub(super) const PRIVATE: &str = "private";
pub(super) const META: &str = "meta";
/// Where RocksDB puts shared tables if it is told to do without checksums in their names.
pub(super) const SHARED_PLAIN: &str = "shared";

const SCHEMA: &str = "schema_version ";
const FOOTER: &str = "// FOOTER";
const OWN_FOOTER: &str = "orogen.footer";
const OWN_CHECKSUM: &str = "orogen.crc32c";

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BackupFile {
    /// From the backups' directory.
    pub(super) path: String,
    /// CRC32C of its bytes.
    pub(super) crc: u32,
    /// Bytes; schema 1 does not say.
    pub(super) size: Option<u64>,
}

impl BackupFile {
    /// The file's name in the database.
    pub(super) fn db_name(&self) -> Result<String> {
        let bad = || {
            Error::corruption("backup lists a file that is none of a database")
                .with("path", &self.path)
        };
        let (folder, name) = self.path.rsplit_once('/').ok_or_else(bad)?;
        let own = if folder == SHARED {
            let (stem, extension) = name.rsplit_once('.').ok_or_else(bad)?;
            let number = stem.split('_').next().unwrap_or_default();
            format!("{number}.{extension}")
        } else {
            name.to_owned()
        };
        let is_private = folder
            .strip_prefix(PRIVATE)
            .and_then(|f| f.strip_prefix('/'))
            .is_some_and(|id| id.parse::<u32>().is_ok());
        // Nothing that a list says may lead out of the directory.
        if !is_private && folder != SHARED && folder != SHARED_PLAIN {
            return Err(bad());
        }
        filename::parse(&own).map(|_| own).ok_or_else(bad)
    }
}

/// For errors.
pub(super) const LIST: &str = "list of a backup";
/// Bytes behind the last file's line.
const FOOTER_LEN_MAX: usize = 256;

/// What is known of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) timestamp: u64,
    pub(super) sequence: SeqNo,
    pub(super) files: Vec<BackupFile>,
}

impl Meta {
    /// # Errors
    /// `NoMemory`.
    pub(super) fn encode(&self) -> Result<String> {
        let mut out = format!(
            "{SCHEMA}2.0\n{}\n{}\n{OWN_FOOTER} 1\n{}\n",
            self.timestamp,
            self.sequence,
            self.files.len()
        );
        let mut lines = Vec::new();
        for file in &self.files {
            let mut line = format!("{} crc32 {}", file.path, file.crc);
            if let Some(size) = file.size {
                let _ = write!(line, " size {size}");
            }
            line.push('\n');
            memory::push(&mut lines, line, LIST)?;
        }
        let bytes = lines.iter().map(String::len).sum::<usize>() + FOOTER_LEN_MAX;
        out.try_reserve(bytes)
            .map_err(|_| memory::refused(LIST, bytes))?;
        out.extend(lines);
        let crc = crc32c(out.as_bytes());
        let _ = writeln!(out, "{FOOTER}\n{OWN_CHECKSUM} {crc}");
        Ok(out)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let text = std::str::from_utf8(bytes).map_err(|_| bad("is no text"))?;
        let mut lines = text.lines();
        let mut line = lines.next().ok_or_else(|| bad("is empty"))?;
        match line.strip_prefix(SCHEMA) {
            Some(version) if version == "2" || version.starts_with("2.") => {
                line = lines.next().ok_or_else(|| bad("is cut off"))?;
            }
            Some(version) => {
                return Err(Error::not_supported("schema of a backup's list")
                    .with("schema_version", version));
            }
            None => {}
        }
        let timestamp = number(line)?;
        let sequence = number(lines.next().unwrap_or_default())?;
        let mut wants_footer = false;
        let count = loop {
            let line = lines.next().ok_or_else(|| bad("is cut off"))?;
            if line.starts_with(|c: char| c.is_ascii_digit()) {
                break number(line)?;
            }
            refuse_needed(line)?;
            wants_footer |= line.starts_with(OWN_FOOTER);
        };
        let mut files = Vec::new();
        for line in lines.by_ref() {
            if line == FOOTER {
                break;
            }
            memory::push(&mut files, file_of(line)?, LIST)?;
        }
        if files.len() as u64 != count {
            return Err(bad("has another number of files than it says")
                .with("wanted", count)
                .with("found", files.len()));
        }
        let covered = text.find(FOOTER).unwrap_or(text.len());
        let mut own = None;
        for line in lines {
            refuse_needed(line)?;
            if let Some((OWN_CHECKSUM, crc)) = line.split_once(' ') {
                own = Some(number(crc)?);
            }
        }
        let crc = u64::from(crc32c(&bytes[..covered]));
        if own.is_some_and(|own| own != crc) {
            return Err(bad("does not have its checksum"));
        }
        if own.is_none() && wants_footer {
            return Err(bad("is cut off"));
        }
        Ok(Self {
            timestamp,
            sequence,
            files,
        })
    }
}

fn bad(what: &str) -> Error {
    Error::corruption(format!("list of a backup {what}"))
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        bad("has something else where a number should be").with("found", text.escape_debug())
    })
}

/// Fields that must be understood are not passed over.
fn refuse_needed(field: &str) -> Result<()> {
    if field.starts_with("ni::") {
        return Err(Error::not_supported("field in a backup's list").with("field", field));
    }
    Ok(())
}

fn file_of(line: &str) -> Result<BackupFile> {
    let mut words = line.split(' ');
    let path = words.next().unwrap_or_default().to_owned();
    let (mut crc, mut size) = (None, None);
    while let Some(field) = words.next() {
        let value = words.next().ok_or_else(|| bad("has half a field"))?;
        refuse_needed(field)?;
        match field {
            "crc32" => crc = u32::try_from(number(value)?).ok(),
            "size" => size = Some(number(value)?),
            _ => {}
        }
    }
    let crc = crc.ok_or_else(|| bad("has a file without checksum").with("path", &path))?;
    let file = BackupFile { path, crc, size };
    file.db_name()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Meta {
        let file = |path: &str, crc, size| BackupFile {
            path: path.to_owned(),
            crc,
            size,
        };
        Meta {
            timestamp: 1_700_000_000,
            sequence: 42,
            files: vec![
                file("private/7/CURRENT", 1, Some(16)),
                file("shared_checksum/000008_sABC_123.sst", 2, Some(123)),
            ],
        }
    }

    #[test]
    fn lists_come_back_and_every_changed_byte_is_found() {
        let meta = sample();
        let text = meta.encode().unwrap();
        assert_eq!(Meta::decode(text.as_bytes()).unwrap(), meta);
        assert_eq!(meta.files[1].db_name().unwrap(), "000008.sst");
        let footer = text.find(FOOTER).unwrap();
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            match Meta::decode(&bytes) {
                Ok(found) => assert!(at >= footer && found == meta, "{at} {found:?}"),
                Err(e) => drop(e),
            }
        }
        for end in 0..footer {
            assert!(Meta::decode(&text.as_bytes()[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn lists_of_schema_1_and_with_foreign_fields_are_read() {
        let one = "5\n6\nmetadata 00ff\n1\nprivate/1/MANIFEST-000004 crc32 9\n";
        let meta = Meta::decode(one.as_bytes()).unwrap();
        assert_eq!((meta.timestamp, meta.sequence), (5, 6));
        assert_eq!((meta.files[0].crc, meta.files[0].size), (9, None));
        let two = "schema_version 2.1\n5\n6\nx y\n1\nshared_checksum/000001_s_2.sst temp kWarm crc32 9\n\
                   // FOOTER\nz 1\n";
        assert_eq!(Meta::decode(two.as_bytes()).unwrap().files[0].crc, 9);
        let needed = "schema_version 2.1\n5\n6\nni::x y\n0\n";
        let kind = Meta::decode(needed.as_bytes()).unwrap_err().kind();
        assert_eq!(kind, orogen_base::ErrorKind::NotSupported);
    }

    #[test]
    fn no_list_leads_out_of_the_directory() {
        for path in [
            "../000001.sst",
            "private/../000001.sst",
            "private/1/../000001.sst",
            "/etc/000001.sst",
            "private/1/passwd",
            "shared_checksum/x.sst",
            "000001.sst",
        ] {
            let text = format!("5\n6\n1\n{path} crc32 9\n");
            assert!(Meta::decode(text.as_bytes()).is_err(), "{path}");
        }
    }
}
