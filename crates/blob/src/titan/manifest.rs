//! Titan's own MANIFEST: which blob files are live, and whose.
//!
//! It is a log of edits as RocksDB's is; who reads it opens the log, this takes its records. An edit
//! is of one column family. Titan refuses tags that it does not know; we pass over those that
//! RocksDB's rule lets readers pass over, and refuse the others by number.

use std::collections::{BTreeMap, BTreeSet};

use orogen_base::coding::Decoder;
use orogen_base::{Error, FileNo, Result};

const NEXT_FILE_NUMBER: u32 = 1;
const COLUMN_FAMILY_ID: u32 = 10;
const ADDED_FILE_V1: u32 = 11;
const DELETED_FILE: u32 = 12;
const ADDED_FILE_V2: u32 = 13;
const ADDED_FILE_V3: u32 = 14;
/// Tags with this bit have a length, and may be passed over.
const SAFE_TO_IGNORE: u32 = 1 << 13;

/// A blob file as the MANIFEST has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TitanFileMeta {
    /// Its number.
    pub number: FileNo,
    /// Its bytes.
    pub size: u64,
    /// Its records; 0 for files that garbage collection made, and for old ones.
    pub entries: u64,
    /// The level that it was made for.
    pub level: u32,
    /// Its alignment as it is noted here, always 0 so far; the header knows.
    pub block_size: u64,
    /// First user key; empty if it is not known.
    pub smallest: Vec<u8>,
    /// Last user key; empty if it is not known.
    pub largest: Vec<u8>,
}

/// A record of the MANIFEST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TitanEdit {
    /// No file has this number or a higher one.
    pub next_file_number: Option<FileNo>,
    /// The family that it is about.
    pub column_family: u32,
    /// Files that came.
    pub added: Vec<TitanFileMeta>,
    /// Files that went.
    pub deleted: Vec<FileNo>,
}

impl TitanEdit {
    /// Reads a record.
    ///
    /// # Errors
    /// `Corruption` if it is malformed; `NotSupported` for a tag that must be understood and is not
    /// known.
    pub fn decode(record: &[u8]) -> Result<Self> {
        let mut edit = Self::default();
        let mut from = Decoder::new(record);
        while !from.is_empty() {
            match from.varint32("tag")? {
                NEXT_FILE_NUMBER => {
                    edit.next_file_number = Some(from.varint64("next file number")?);
                }
                COLUMN_FAMILY_ID => edit.column_family = from.varint32("column family")?,
                tag @ (ADDED_FILE_V1 | ADDED_FILE_V2 | ADDED_FILE_V3) => {
                    edit.added.push(added(tag, &mut from)?);
                }
                DELETED_FILE => edit.deleted.push(from.varint64("deleted file")?),
                tag if tag & SAFE_TO_IGNORE != 0 => {
                    from.length_prefixed("optional field")?;
                }
                tag => {
                    return Err(Error::not_supported(
                        "Titan's MANIFEST has a field that is not known",
                    )
                    .with("tag", tag));
                }
            }
        }
        Ok(edit)
    }
}

fn added(tag: u32, from: &mut Decoder<'_>) -> Result<TitanFileMeta> {
    let mut file = TitanFileMeta {
        number: from.varint64("file number")?,
        size: from.varint64("file size")?,
        ..TitanFileMeta::default()
    };
    if tag == ADDED_FILE_V1 {
        return Ok(file);
    }
    file.entries = from.varint64("file entries")?;
    file.level = from.varint32("file level")?;
    if tag == ADDED_FILE_V3 {
        file.block_size = from.varint64("block size")?;
    }
    file.smallest = from.length_prefixed("smallest key")?.to_vec();
    file.largest = from.length_prefixed("largest key")?.to_vec();
    Ok(file)
}

/// What all edits come to: the live files of each column family.
///
/// The order of the edits is of no weight, as it is of none to Titan: a file that went is gone.
#[derive(Clone, Debug, Default)]
pub struct TitanLive {
    added: BTreeMap<(u32, FileNo), TitanFileMeta>,
    deleted: BTreeSet<(u32, FileNo)>,
    next_file_number: Option<FileNo>,
}

impl TitanLive {
    /// Takes an edit. A file that comes or goes twice is no error: Titan has noted it so.
    pub fn apply(&mut self, edit: TitanEdit) {
        let cf = edit.column_family;
        self.next_file_number = self.next_file_number.max(edit.next_file_number);
        for file in edit.added {
            self.added.entry((cf, file.number)).or_insert(file);
        }
        self.deleted
            .extend(edit.deleted.into_iter().map(|number| (cf, number)));
    }

    /// Ends it: the files that came and did not go, by family and number.
    ///
    /// # Errors
    /// `Corruption` if a file went that never came, or no edit tells the next file number, as each
    /// MANIFEST does in its first.
    pub fn finish(mut self) -> Result<BTreeMap<(u32, FileNo), TitanFileMeta>> {
        if self.next_file_number.is_none() {
            return Err(Error::corruption(
                "Titan's MANIFEST does not tell the next file number",
            ));
        }
        for key in &self.deleted {
            if self.added.remove(key).is_none() {
                return Err(
                    Error::corruption("Titan's MANIFEST deletes a file that never came")
                        .with("column_family", key.0)
                        .with("blob_file", key.1),
                );
            }
        }
        Ok(self.added)
    }
}
