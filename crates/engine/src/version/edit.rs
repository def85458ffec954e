//! One record of the MANIFEST: a change of the database's state.
//!
//! ```text
//! (tag varint32 | payload)*
//! ```
//! Payloads have no common frame, so a reader must know every tag, but for those with bit 13 set
//! that came after 6.x: they carry a length and can be skipped. Fields are written in RocksDB's
//! order, so that a record that RocksDB wrote comes out again byte for byte.
//!
//! What RocksDB 7.8 does not know is skippable for it: epoch numbers (custom field 13) and the
//! flag of persisted timestamps (tag 8201). Source: RocksDB `db/version_edit.{h,cc}`.

use std::sync::Arc;

use orogen_base::coding::{Decoder, put_length_prefixed, put_varint32, put_varint64, varint_len};
use orogen_base::key::TRAILER_LEN;
use orogen_base::limits::NUM_LEVELS_MAX;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, FileNo, Result, SeqNo, memory};

use super::blob_meta::{BlobFileAddition, BlobFileGarbage};
use super::file_meta::{FileMeta, Generation};
use super::wal_set::WalAddition;

const COMPARATOR: u32 = 1;
const LOG_NUMBER: u32 = 2;
const NEXT_FILE_NUMBER: u32 = 3;
const LAST_SEQUENCE: u32 = 4;
const COMPACT_CURSOR: u32 = 5;
const DELETED_FILE: u32 = 6;
const NEW_FILE: u32 = 7;
const PREV_LOG_NUMBER: u32 = 9;
const MIN_LOG_NUMBER_TO_KEEP: u32 = 10;
const NEW_FILE_2: u32 = 100;
const NEW_FILE_3: u32 = 102;
const NEW_FILE_4: u32 = 103;
const COLUMN_FAMILY: u32 = 200;
const COLUMN_FAMILY_ADD: u32 = 201;
const COLUMN_FAMILY_DROP: u32 = 202;
const MAX_COLUMN_FAMILY: u32 = 203;
const IN_ATOMIC_GROUP: u32 = 300;
const BLOB_FILE_ADDITION: u32 = 400;
const BLOB_FILE_GARBAGE: u32 = 401;

/// Tags with this bit may be skipped; those that are not named below carry a length.
const SKIPPABLE: u32 = 1 << 13;
const DB_ID: u32 = SKIPPABLE + 1;
const BLOB_FILE_ADDITION_DEPRECATED: u32 = SKIPPABLE + 2;
const BLOB_FILE_GARBAGE_DEPRECATED: u32 = SKIPPABLE + 3;
const WAL_ADDITION_DEPRECATED: u32 = SKIPPABLE + 4;
const WAL_DELETION_DEPRECATED: u32 = SKIPPABLE + 5;
const FULL_HISTORY_TS_LOW: u32 = SKIPPABLE + 6;
const WAL_ADDITION: u32 = SKIPPABLE + 7;
const WAL_DELETION: u32 = SKIPPABLE + 8;
const PERSIST_USER_DEFINED_TIMESTAMPS: u32 = SKIPPABLE + 9;
const LAST_COMPACTED_MANIFEST_FILE_SIZE: u32 = SKIPPABLE + 11;

/// For errors.
const EDIT: &str = "manifest record";

/// The largest number that a file may have; RocksDB keeps the path id in the two bits above.
pub const FILE_NUMBER_MAX: FileNo = (1 << 62) - 1;

/// A column family comes or goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnFamilyChange {
    /// It is made, with this name and the edit's id.
    Add(String),
    /// The one with the edit's id is dropped.
    Drop,
}

/// A change of the database's state; what is `None` or empty stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionEdit {
    /// The database's id, as in `IDENTITY`.
    pub db_id: Option<String>,
    /// Name of the column family's comparator.
    pub comparator: Option<String>,
    /// Logs before it hold nothing of this column family that is not in tables.
    pub log_number: Option<FileNo>,
    /// Unused since LevelDB; RocksDB writes 0.
    pub prev_log_number: Option<FileNo>,
    /// No file has this number or a higher one.
    pub next_file_number: Option<FileNo>,
    /// The largest column family id ever used.
    pub max_column_family: Option<u32>,
    /// Logs before it hold nothing that is needed, two-phase commit included.
    pub min_log_number_to_keep: Option<FileNo>,
    /// The newest write that is in tables.
    pub last_sequence: Option<SeqNo>,
    /// Where the next round-robin compaction of a level starts: level and internal key.
    pub compact_cursors: Vec<(usize, Vec<u8>)>,
    /// Tables that leave, with the level they are on.
    pub deleted_files: Vec<(usize, FileNo)>,
    /// Tables that come, with the level they go to. A move keeps the `Arc`.
    pub new_files: Vec<(usize, Arc<FileMeta>)>,
    /// Blob files that come.
    pub blob_file_additions: Vec<BlobFileAddition>,
    /// Garbage that blob files gained.
    pub blob_file_garbages: Vec<BlobFileGarbage>,
    /// Logs that were made or synced.
    pub wal_additions: Vec<WalAddition>,
    /// Logs before it are gone.
    pub wal_deletion: Option<FileNo>,
    /// Id of the column family that the edit is about; 0 is `default`.
    pub column_family: u32,
    /// That column family comes or goes.
    pub column_family_change: Option<ColumnFamilyChange>,
    /// The edit is applied together with this many that follow it, or not at all.
    pub atomic_group_remaining: Option<u32>,
    /// History of user-defined timestamps below it may be gone; never empty.
    pub full_history_ts_low: Option<Vec<u8>>,
    /// Whether tables keep user-defined timestamps; stands beside the comparator.
    pub persist_user_defined_timestamps: Option<bool>,
    /// The MANIFEST's size when it was last written from scratch.
    pub last_compacted_manifest_file_size: Option<u64>,
}

impl VersionEdit {
    /// An edit of the column family `id`.
    #[must_use]
    pub fn of_column_family(id: u32) -> Self {
        Self {
            column_family: id,
            ..Self::default()
        }
    }

    /// Adds a table.
    pub fn add_file(&mut self, level: usize, file: Arc<FileMeta>) {
        self.new_files.push((level, file));
    }

    /// Removes a table.
    pub fn delete_file(&mut self, level: usize, number: FileNo) {
        self.deleted_files.push((level, number));
    }

    /// The record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_to(&mut out);
        out
    }

    /// Appends the record.
    ///
    /// # Panics
    /// If a level is not below 2^32, a path id not below 256, or a key longer than 4 GiB.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        put_string(out, DB_ID, self.db_id.as_deref());
        put_string(out, COMPARATOR, self.comparator.as_deref());
        put_number(out, LOG_NUMBER, self.log_number);
        put_number(out, PREV_LOG_NUMBER, self.prev_log_number);
        put_number(out, NEXT_FILE_NUMBER, self.next_file_number);
        put_number(
            out,
            MAX_COLUMN_FAMILY,
            self.max_column_family.map(u64::from),
        );
        put_number(out, MIN_LOG_NUMBER_TO_KEEP, self.min_log_number_to_keep);
        put_number(out, LAST_SEQUENCE, self.last_sequence);
        for (level, key) in &self.compact_cursors {
            put_varint32(out, COMPACT_CURSOR);
            put_varint64(out, *level as u64);
            put_length_prefixed(out, key);
        }
        for (level, number) in &self.deleted_files {
            put_varint32(out, DELETED_FILE);
            put_varint64(out, *level as u64);
            put_varint64(out, *number);
        }
        let mut min_log_number_to_keep = self.min_log_number_to_keep;
        for (level, file) in &self.new_files {
            put_varint32(out, NEW_FILE_4);
            file.encode(*level, min_log_number_to_keep.take(), out);
        }
        for addition in &self.blob_file_additions {
            put_varint32(out, BLOB_FILE_ADDITION);
            addition.encode(out);
            if addition.overhead_bytes > 0 {
                put_varint32(out, BLOB_FILE_GARBAGE);
                addition.encode_garbage(out);
            }
        }
        for garbage in &self.blob_file_garbages {
            put_varint32(out, BLOB_FILE_GARBAGE);
            garbage.encode(out);
        }
        self.encode_wals(out);
        if self.column_family != 0 {
            put_number(out, COLUMN_FAMILY, Some(u64::from(self.column_family)));
        }
        match &self.column_family_change {
            Some(ColumnFamilyChange::Add(name)) => put_string(out, COLUMN_FAMILY_ADD, Some(name)),
            Some(ColumnFamilyChange::Drop) => put_varint32(out, COLUMN_FAMILY_DROP),
            None => {}
        }
        put_number(
            out,
            IN_ATOMIC_GROUP,
            self.atomic_group_remaining.map(u64::from),
        );
        if let Some(ts) = &self.full_history_ts_low {
            put_varint32(out, FULL_HISTORY_TS_LOW);
            put_length_prefixed(out, ts);
        }
        if let Some(persist) = self.persist_user_defined_timestamps {
            put_varint32(out, PERSIST_USER_DEFINED_TIMESTAMPS);
            put_length_prefixed(out, &[u8::from(persist)]);
        }
        if let Some(size) = self.last_compacted_manifest_file_size {
            put_varint32(out, LAST_COMPACTED_MANIFEST_FILE_SIZE);
            put_varint64(out, varint_len(size) as u64);
            put_varint64(out, size);
        }
    }

    fn encode_wals(&self, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        for wal in &self.wal_additions {
            payload.clear();
            wal.encode(&mut payload);
            put_varint32(out, WAL_ADDITION);
            put_length_prefixed(out, &payload);
        }
        if let Some(number) = self.wal_deletion {
            put_varint32(out, WAL_DELETION);
            put_varint64(out, varint_len(number) as u64);
            put_varint64(out, number);
        }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Corruption` if it is malformed; `NotSupported` if it has a tag or a kind of key that this
    /// version does not know and may not skip. Both name the byte of the record.
    pub fn decode(record: &[u8]) -> Result<Self> {
        let mut edit = Self::default();
        let mut input = Decoder::new(record);
        while !input.is_empty() {
            let at = input.position();
            let tag = input.varint32("tag")?;
            edit.decode_field(tag, &mut input)
                .map_err(|e| e.with("tag", tag).with("byte", at))?;
        }
        Ok(edit)
    }

    fn decode_field(&mut self, tag: u32, input: &mut Decoder<'_>) -> Result<()> {
        match tag {
            DB_ID => self.db_id = Some(text(input, "db id")?),
            COMPARATOR => self.comparator = Some(text(input, "comparator name")?),
            LOG_NUMBER => self.log_number = Some(input.varint64("log number")?),
            PREV_LOG_NUMBER => self.prev_log_number = Some(input.varint64("prev log number")?),
            NEXT_FILE_NUMBER => self.next_file_number = Some(input.varint64("next file number")?),
            MAX_COLUMN_FAMILY => {
                self.max_column_family = Some(input.varint32("max column family")?);
            }
            MIN_LOG_NUMBER_TO_KEEP => {
                self.min_log_number_to_keep = Some(input.varint64("min log number to keep")?);
            }
            LAST_SEQUENCE => self.last_sequence = Some(input.varint64("last sequence")?),
            COMPACT_CURSOR => {
                let level = level(input)?;
                let key = input.length_prefixed("compact cursor")?;
                if key.len() < TRAILER_LEN {
                    return Err(Error::corruption("compact cursor is too short"));
                }
                memory::push(&mut self.compact_cursors, (level, key.to_vec()), EDIT)?;
            }
            DELETED_FILE => {
                let level = level(input)?;
                let deleted = (level, input.varint64("deleted file number")?);
                memory::push(&mut self.deleted_files, deleted, EDIT)?;
            }
            NEW_FILE => self.decode_file(input, Generation::First)?,
            NEW_FILE_2 => self.decode_file(input, Generation::Second)?,
            NEW_FILE_3 => self.decode_file(input, Generation::Third)?,
            NEW_FILE_4 => self.decode_file(input, Generation::Fourth)?,
            BLOB_FILE_ADDITION | BLOB_FILE_ADDITION_DEPRECATED => {
                let addition = BlobFileAddition::decode(input)?;
                memory::push(&mut self.blob_file_additions, addition, EDIT)?;
            }
            BLOB_FILE_GARBAGE | BLOB_FILE_GARBAGE_DEPRECATED => {
                if let Some(garbage) = BlobFileGarbage::decode(input)? {
                    memory::push(&mut self.blob_file_garbages, garbage, EDIT)?;
                }
            }
            WAL_ADDITION_DEPRECATED => {
                memory::push(&mut self.wal_additions, WalAddition::decode(input)?, EDIT)?;
            }
            WAL_ADDITION => {
                let mut payload = Decoder::new(input.length_prefixed("wal addition")?);
                let addition = WalAddition::decode(&mut payload)?;
                memory::push(&mut self.wal_additions, addition, EDIT)?;
            }
            WAL_DELETION_DEPRECATED => self.wal_deletion = Some(input.varint64("wal deletion")?),
            WAL_DELETION => {
                let mut payload = Decoder::new(input.length_prefixed("wal deletion")?);
                self.wal_deletion = Some(payload.varint64("wal deletion")?);
            }
            COLUMN_FAMILY => self.column_family = input.varint32("column family id")?,
            COLUMN_FAMILY_ADD => {
                let name = text(input, "column family name")?;
                self.column_family_change = Some(ColumnFamilyChange::Add(name));
            }
            COLUMN_FAMILY_DROP => self.column_family_change = Some(ColumnFamilyChange::Drop),
            IN_ATOMIC_GROUP => {
                self.atomic_group_remaining = Some(input.varint32("remaining entries")?);
            }
            FULL_HISTORY_TS_LOW => {
                let ts = input.length_prefixed("full history ts low")?;
                if ts.is_empty() {
                    return Err(Error::corruption("full_history_ts_low is empty"));
                }
                self.full_history_ts_low = Some(ts.to_vec());
            }
            PERSIST_USER_DEFINED_TIMESTAMPS => {
                let &[flag] = input.length_prefixed("persist user-defined timestamps")? else {
                    return Err(Error::corruption("flag has the wrong size"));
                };
                self.persist_user_defined_timestamps = Some(flag == 1);
            }
            LAST_COMPACTED_MANIFEST_FILE_SIZE => {
                let mut payload = Decoder::new(input.length_prefixed("manifest size")?);
                let size = payload.varint64("last compacted manifest file size")?;
                self.last_compacted_manifest_file_size = Some(size);
            }
            unknown if unknown & SKIPPABLE != 0 => {
                input.length_prefixed("skippable field")?;
            }
            _ => return Err(Error::not_supported("unknown tag in a manifest record")),
        }
        Ok(())
    }

    fn decode_file(&mut self, input: &mut Decoder<'_>, generation: Generation) -> Result<()> {
        let level = level(input)?;
        let decoded = FileMeta::decode(input, generation)?;
        let f = &decoded.file;
        if f.number > FILE_NUMBER_MAX || f.smallest_seqno.max(f.largest_seqno) > SEQNO_MAX {
            return Err(
                Error::corruption("file number or sequence number is too large")
                    .with("file_number", f.number),
            );
        }
        if decoded.min_log_number_to_keep.is_some() {
            self.min_log_number_to_keep = decoded.min_log_number_to_keep;
        }
        // The next one is one more.
        if f.epoch_number > SEQNO_MAX {
            return Err(Error::corruption("epoch number is too large")
                .with("file_number", f.number)
                .with("epoch_number", f.epoch_number));
        }
        memory::push(&mut self.new_files, (level, Arc::new(decoded.file)), EDIT)
    }
}

fn level(input: &mut Decoder<'_>) -> Result<usize> {
    let level = input.varint32("level")? as usize;
    if level >= NUM_LEVELS_MAX {
        return Err(Error::corruption("level is too large").with("level", level));
    }
    Ok(level)
}

fn text(input: &mut Decoder<'_>, what: &'static str) -> Result<String> {
    let bytes = input.length_prefixed(what)?;
    String::from_utf8(bytes.to_vec())
        .map_err(|_| Error::not_supported("name is not UTF-8").with("field", what))
}

fn put_string(out: &mut Vec<u8>, tag: u32, s: Option<&str>) {
    if let Some(s) = s {
        put_varint32(out, tag);
        put_length_prefixed(out, s.as_bytes());
    }
}

fn put_number(out: &mut Vec<u8>, tag: u32, v: Option<u64>) {
    if let Some(v) = v {
        put_varint32(out, tag);
        put_varint64(out, v);
    }
}

#[cfg(test)]
mod tests;
