//! What the MANIFEST knows of blob files: which there are, and how much of each is garbage.
//!
//! ```text
//! addition: number | count | bytes (varint64 each) | checksum method | checksum value | customs
//! garbage:  number | count | bytes (varint64 each) | customs
//! customs:  (tag varint32 | length-prefixed bytes)* | 0
//! ```
//! A reader skips custom fields that it does not know, unless bit 6 of the tag is set. Ours has tag 33 in
//! garbage: a varint64, bytes whose space was given up inside the file since the last such
//! record. A file that has one, be it of 0 bytes, is not what was written any more: its checksum no longer
//! counts.
//!
//! RocksDB takes a blob file for header, counted bytes and footer, and copies no more than that into a
//! backup. So what is ours between them (meta records, padding) is counted as one record that was
//! garbage from the first moment on: an addition of `count + 1` and all bytes, with tag 33 (a varint64, bytes of
//! that record), and garbage of 1 and these bytes in the same edit, with tag 34 (empty). What we decode has neither; where
//! RocksDB wrote the MANIFEST anew and the tags are gone, the record is garbage like other.
//! Source: RocksDB `db/blob/blob_file_addition.cc`, `db/blob/blob_file_garbage.cc`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use orogen_base::coding::{Decoder, put_length_prefixed, put_varint32, put_varint64};
use orogen_base::{Error, FileNo, Result};
use orogen_blob::BlobFileReader;
use orogen_blob::format::{FOOTER_LEN, HEADER_LEN};

use super::file_meta::{CompactionMark, FileChecksum};
use super::open_slot::OpenSlot;

const END: u32 = 0;
const MUST_UNDERSTAND: u32 = 1 << 6;
const GIVEN_UP: u32 = 33;
const OVERHEAD: u32 = 33;
const OF_OVERHEAD: u32 = 34;
/// Bytes of a block of most file systems.
const BLOCK_BYTES: u64 = 4096;

/// A blob file came into being.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BlobFileAddition {
    /// The number in its name.
    pub number: FileNo,
    /// Values in it.
    pub total_blob_count: u64,
    /// Bytes of its records, header and key included.
    pub total_blob_bytes: u64,
    /// Bytes between header and footer that are in none of them.
    pub overhead_bytes: u64,
    /// Name of the checksum over the whole file; empty if there is none.
    pub checksum_method: Vec<u8>,
    /// That checksum.
    pub checksum_value: Vec<u8>,
    /// Of the file's place in caches. Not written: files that a MANIFEST tells of have new ones.
    pub(crate) identity: Identity,
}

/// Values of a blob file lost their last pointer.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BlobFileGarbage {
    /// The blob file.
    pub number: FileNo,
    /// Values that became garbage.
    pub garbage_blob_count: u64,
    /// Bytes of their records.
    pub garbage_blob_bytes: u64,
    /// Bytes whose space was given up inside the file; with 0 it is about to be.
    pub given_up_bytes: Option<u64>,
}

/// A blob file, which all versions that list it share: it goes when the last of them does.
#[derive(Debug, PartialEq, Eq)]
pub struct BlobFile {
    /// As it was written.
    pub addition: BlobFileAddition,
    /// The open file.
    pub(crate) reader: OpenSlot<BlobFileReader>,
    /// Set when a compaction met a damaged value in it; it is not emptied any more.
    pub(crate) damaged: CompactionMark,
    /// Set when space in it could not be given up; that is not tried again.
    pub(crate) leave_holes: CompactionMark,
    /// Set when moving its values is better than holes while flushes come: none are made before they do not.
    pub(crate) holes_wait_for_quiet: CompactionMark,
    /// Set while none are looked for in it, since those of others have waited long for a reader.
    pub(crate) holes_wait_for_others: CompactionMark,
    seen: Seen,
}

/// A number that no other file of this process has: that of its place in caches.
#[derive(Clone, Copy, Debug)]
pub struct Identity(u64);

impl Default for Identity {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl Identity {
    /// The number.
    #[inline]
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// It is not part of what makes files equal.
impl PartialEq for Identity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Identity {}

/// Garbage that was looked at. No part of what a file is.
#[derive(Debug, Default)]
struct Seen {
    garbage: AtomicU64,
    /// Microseconds of the clock from which on it counts as not looked at; 0: never.
    look_again: AtomicU64,
}

impl PartialEq for Seen {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Seen {}

impl BlobFile {
    /// A file that nobody has opened yet.
    #[must_use]
    pub fn new(addition: BlobFileAddition) -> Self {
        Self {
            addition,
            reader: OpenSlot::default(),
            damaged: CompactionMark::default(),
            leave_holes: CompactionMark::default(),
            holes_wait_for_quiet: CompactionMark::default(),
            holes_wait_for_others: CompactionMark::default(),
            seen: Seen::default(),
        }
    }

    /// A number that no other file of this process has, whatever its own number is.
    #[inline]
    pub(crate) fn identity(&self) -> Identity {
        self.addition.identity
    }

    /// Bytes of garbage when it was last looked for space to be given up; 0 in a database that was just opened, and
    /// when it is to be looked at again.
    pub(crate) fn garbage_seen(&self, now_micros: u64) -> u64 {
        match self.look_again_at() {
            at if at > 0 && at <= now_micros => 0,
            _ => self.seen.garbage.load(Relaxed),
        }
    }

    /// Notes them.
    pub(crate) fn note_seen(&self, bytes: u64) {
        self.look_at(bytes, 0);
    }

    fn look_at(&self, bytes: u64, look_again_micros: u64) {
        self.seen.garbage.store(bytes, Relaxed);
        self.seen.look_again.store(look_again_micros, Relaxed);
    }

    /// When it is to be looked at again though it has no more garbage; 0: never.
    pub(crate) fn look_again_at(&self) -> u64 {
        self.seen.look_again.load(Relaxed)
    }

    /// It has other names, so nothing was looked at: it is to be looked at again at that time, or with more
    /// garbage.
    pub(crate) fn note_other_names(&self, garbage: u64, look_again_micros: u64) {
        self.look_at(garbage, look_again_micros);
    }
}

/// A blob file of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobFileMeta {
    /// The file.
    pub file: Arc<BlobFile>,
    /// Values in it that are garbage.
    pub garbage_blob_count: u64,
    /// Bytes of their records.
    pub garbage_blob_bytes: u64,
    /// Bytes whose space was given up inside the file; `None` if it is what was written.
    pub given_up_bytes: Option<u64>,
}

impl BlobFileMeta {
    /// The file as it was written.
    #[must_use]
    pub fn addition(&self) -> &BlobFileAddition {
        &self.file.addition
    }

    /// The addition as a new MANIFEST has it.
    pub(crate) fn addition_now(&self) -> BlobFileAddition {
        let mut addition = self.file.addition.clone();
        if self.given_up_bytes.is_some() {
            addition.checksum_method.clear();
            addition.checksum_value.clear();
        }
        addition
    }

    /// The checksum over the whole file, if it has one that still counts.
    #[must_use]
    pub fn checksum(&self) -> Option<FileChecksum> {
        match self.given_up_bytes {
            None => self.file.addition.checksum(),
            Some(_) => None,
        }
    }

    /// True while a pointer to a value of it may be left.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.garbage_blob_count < self.file.addition.total_blob_count
    }

    /// Bytes of records that were given up as holes.
    #[must_use]
    pub fn holes(&self) -> u64 {
        let given_up = self.given_up_bytes.unwrap_or(0);
        given_up.min(self.garbage_blob_bytes)
    }

    /// Bytes of records that were not given up.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let total = self.file.addition.total_blob_bytes;
        total.saturating_sub(self.holes())
    }

    /// About the bytes that padding and meta records take: where holes were made they went along with what
    /// is dead.
    #[must_use]
    pub fn padding_bytes(&self) -> u64 {
        let addition = &self.file.addition;
        let total = u128::from(addition.total_blob_bytes.max(1));
        let left = u128::from(addition.overhead_bytes) * u128::from(self.disk_bytes()) / total;
        u64::try_from(left).unwrap_or(u64::MAX)
    }

    /// True if holes are expected to bring more: not once almost all of the garbage was there when
    /// dead places were looked for, nor where the file is left alone, for good or while flushes come or readers are waited for, nor of records that are shorter than a block, on average,
    /// since a dead one between two that live gives nothing back. One that was found to have other names waits: moving its
    /// values frees nothing either while they are there, and it is looked at again.
    #[must_use]
    pub fn waits_for_holes(&self, flushes_come: bool) -> bool {
        let is_left = flushes_come && self.file.holes_wait_for_quiet.get();
        if self.file.leave_holes.get() || self.file.holes_wait_for_others.get() || is_left {
            return false;
        }
        let addition = &self.file.addition;
        // With their padding: aligned ones give back whole blocks.
        let bytes = addition
            .total_blob_bytes
            .saturating_add(addition.overhead_bytes);
        let is_short = bytes / addition.total_blob_count.max(1) < BLOCK_BYTES;
        let seen = self.file.garbage_seen(0).max(self.holes());
        let was_looked_at = is_short || seen >= self.garbage_blob_bytes / 8 * 7;
        self.file.look_again_at() != 0 || !was_looked_at
    }

    /// Values that pointers lead to.
    #[must_use]
    pub fn live_count(&self) -> u64 {
        self.file
            .addition
            .total_blob_count
            .saturating_sub(self.garbage_blob_count)
    }

    /// Bytes of the records that pointers lead to.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.file
            .addition
            .total_blob_bytes
            .saturating_sub(self.garbage_blob_bytes)
    }
}

/// What the blob files of a version take, summed up. Exact, whatever a MANIFEST says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlobSpace {
    disk: u128,
    live: u128,
    padding: u128,
}

impl BlobSpace {
    /// Counts a file.
    pub(crate) fn add(&mut self, blob: &BlobFileMeta) {
        self.disk += u128::from(blob.disk_bytes());
        self.live += u128::from(blob.live_bytes());
        self.padding += u128::from(blob.padding_bytes());
    }

    /// Counts it no more.
    pub(crate) fn remove(&mut self, blob: &BlobFileMeta) {
        self.disk -= u128::from(blob.disk_bytes());
        self.live -= u128::from(blob.live_bytes());
        self.padding -= u128::from(blob.padding_bytes());
    }

    /// Bytes that records take, and those of them that are live.
    pub(crate) fn get(self) -> (u64, u64) {
        let bytes = |sum| u64::try_from(sum).unwrap_or(u64::MAX);
        (bytes(self.disk), bytes(self.live))
    }

    /// About the bytes that lie between them.
    pub(crate) fn padding(self) -> u64 {
        u64::try_from(self.padding).unwrap_or(u64::MAX)
    }
}

impl BlobFileAddition {
    /// The checksum over the whole file, if it has one.
    #[must_use]
    pub fn checksum(&self) -> Option<FileChecksum> {
        (!self.checksum_method.is_empty()).then(|| FileChecksum {
            func_name: self.checksum_method.clone(),
            value: self.checksum_value.clone(),
        })
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (count, bytes) = self.with_overhead();
        put_varint64(out, self.number);
        put_varint64(out, count);
        put_varint64(out, bytes);
        put_length_prefixed(out, &self.checksum_method);
        put_length_prefixed(out, &self.checksum_value);
        if self.overhead_bytes > 0 {
            put_custom_varint64(out, OVERHEAD, self.overhead_bytes);
        }
        put_varint32(out, END);
    }

    /// What is garbage from the first moment on, as it stands in the MANIFEST.
    pub(crate) fn encode_garbage(&self, out: &mut Vec<u8>) {
        put_varint64(out, self.number);
        put_varint64(out, 1);
        put_varint64(out, self.overhead_bytes);
        put_varint32(out, OF_OVERHEAD);
        put_length_prefixed(out, &[]);
        put_varint32(out, END);
    }

    /// Records and bytes as RocksDB counts them.
    fn with_overhead(&self) -> (u64, u64) {
        match self.overhead_bytes {
            0 => (self.total_blob_count, self.total_blob_bytes),
            more => (
                self.total_blob_count.saturating_add(1),
                self.total_blob_bytes.saturating_add(more),
            ),
        }
    }

    /// Bytes of the whole file.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        let ends = (HEADER_LEN + FOOTER_LEN) as u64;
        let between = self.total_blob_bytes.saturating_add(self.overhead_bytes);
        between.saturating_add(ends)
    }

    /// True if this tells of a file with so many values in records of so many bytes, `None` where that is
    /// not known, and so many bytes in all. Where RocksDB wrote the MANIFEST anew, what is ours in the
    /// file is counted among the values.
    #[must_use]
    pub fn tells_of(&self, values: u64, record_bytes: Option<u64>, file_size: u64) -> bool {
        let between = file_size.saturating_sub((HEADER_LEN + FOOTER_LEN) as u64);
        let is_same = |count: u64, bytes: Option<u64>| {
            self.total_blob_count == count && bytes.is_none_or(|b| self.total_blob_bytes == b)
        };
        is_same(values, record_bytes)
            || (is_same(values.saturating_add(1), Some(between)) && record_bytes != Some(between))
    }

    pub(crate) fn decode(input: &mut Decoder<'_>) -> Result<Self> {
        let mut addition = Self {
            number: input.varint64("blob file number")?,
            total_blob_count: input.varint64("total blob count")?,
            total_blob_bytes: input.varint64("total blob bytes")?,
            overhead_bytes: 0,
            checksum_method: input.length_prefixed("blob checksum method")?.to_vec(),
            checksum_value: input.length_prefixed("blob checksum value")?.to_vec(),
            identity: Identity::default(),
        };
        let mut overhead = None;
        custom_fields(input, addition.number, |tag, field| {
            if tag == OVERHEAD {
                overhead = Some(Decoder::new(field).varint64("overhead of a blob file")?);
            }
            Ok(())
        })?;
        if let Some(overhead) = overhead {
            let count = addition.total_blob_count.checked_sub(1);
            let bytes = addition.total_blob_bytes.checked_sub(overhead);
            let (Some(count), Some(bytes)) = (count, bytes) else {
                return Err(
                    Error::corruption("blob file of fewer bytes than its overhead")
                        .with("blob_file_number", addition.number),
                );
            };
            (addition.total_blob_count, addition.total_blob_bytes) = (count, bytes);
            addition.overhead_bytes = overhead;
        }
        Ok(addition)
    }
}

impl BlobFileGarbage {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint64(out, self.number);
        put_varint64(out, self.garbage_blob_count);
        put_varint64(out, self.garbage_blob_bytes);
        if let Some(bytes) = self.given_up_bytes {
            put_custom_varint64(out, GIVEN_UP, bytes);
        }
        put_varint32(out, END);
    }

    /// `None` of the overhead of a file, which the addition tells.
    pub(crate) fn decode(input: &mut Decoder<'_>) -> Result<Option<Self>> {
        let mut is_overhead = false;
        let mut garbage = Self {
            number: input.varint64("blob file number")?,
            garbage_blob_count: input.varint64("garbage blob count")?,
            garbage_blob_bytes: input.varint64("garbage blob bytes")?,
            given_up_bytes: None,
        };
        custom_fields(input, garbage.number, |tag, field| {
            if tag == GIVEN_UP {
                let mut field = Decoder::new(field);
                garbage.given_up_bytes = Some(field.varint64("bytes given up")?);
            }
            is_overhead |= tag == OF_OVERHEAD;
            Ok(())
        })?;
        Ok((!is_overhead).then_some(garbage))
    }
}

fn put_custom_varint64(out: &mut Vec<u8>, tag: u32, value: u64) {
    let mut field = Vec::new();
    put_varint64(&mut field, value);
    put_varint32(out, tag);
    put_length_prefixed(out, &field);
}

fn custom_fields(
    input: &mut Decoder<'_>,
    number: FileNo,
    mut field: impl FnMut(u32, &[u8]) -> Result<()>,
) -> Result<()> {
    loop {
        let tag = input.varint32("blob custom field tag")?;
        if tag == END {
            return Ok(());
        }
        if tag & MUST_UNDERSTAND != 0 {
            return Err(
                Error::not_supported("custom field of a blob file in the manifest")
                    .with("tag", tag)
                    .with("blob_file_number", number),
            );
        }
        field(tag, input.length_prefixed("blob custom field")?)?;
    }
}
