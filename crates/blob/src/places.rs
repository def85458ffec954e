//! The record index: where each record of the user stands, without reading the records.
//!
//! ```text
//! orogen.records  number of the first record varint64 | its offset varint64 | records varint64
//!                 | (key length, value length: varint64)*
//! ```
//! A record begins where the one before ends, or at the next multiple of the alignment, so two
//! lengths are all that it takes: 3 or 4 bytes a record. A block is written as soon as it has
//! [`BLOCK_LEN`] bytes, between records, so a builder holds no more than one of a file of any
//! size; a file of 256 MiB with values of 4 KiB has one of 200 KiB.

use orogen_base::coding::{Decoder, VARINT64_LEN_MAX, put_varint64, varint_len};
use orogen_base::{Error, Result, memory};

use crate::format::{RECORD_HEADER_LEN, align_up};
use crate::meta::Extent;
use crate::reader::BlobFileReader;

/// Bytes at which a block of the index is written.
pub(crate) const BLOCK_LEN: usize = 256 << 10;

/// What memory is asked for.
const RECORD_INDEX: &str = "record index of a blob file";

/// Where a record of the user stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace {
    /// Bytes before the record.
    pub offset: u64,
    /// Bytes of its user key.
    pub key_len: u64,
    /// Bytes of its value as stored.
    pub value_len: u64,
}

impl RecordPlace {
    /// Bytes of the record, unless they overflow.
    #[must_use]
    pub fn record_len(&self) -> Option<u64> {
        self.key_len
            .checked_add(self.value_len)?
            .checked_add(RECORD_HEADER_LEN as u64)
    }

    /// Bytes before the value, which is what pointers hold.
    #[must_use]
    pub fn value_offset(&self) -> u64 {
        self.offset
            .saturating_add(RECORD_HEADER_LEN as u64)
            .saturating_add(self.key_len)
    }

    /// The offset behind the record, unless it overflows.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.record_len()?)
    }
}

/// Gathers places for a block.
#[derive(Default)]
pub(crate) struct PlacesBuilder {
    first_number: u64,
    first_offset: u64,
    count: u64,
    lengths: Vec<u8>,
}

impl PlacesBuilder {
    pub(crate) fn add(&mut self, place: RecordPlace) -> Result<()> {
        memory::reserve(&mut self.lengths, 2 * VARINT64_LEN_MAX, RECORD_INDEX)?;
        if self.count == 0 {
            self.first_offset = place.offset;
        }
        self.count += 1;
        put_varint64(&mut self.lengths, place.key_len);
        put_varint64(&mut self.lengths, place.value_len);
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.lengths.len()
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.lengths.capacity()
    }

    /// The block, and a beginning of the next.
    pub(crate) fn take(&mut self) -> Result<Vec<u8>> {
        let len = self.lengths.len() + 3 * VARINT64_LEN_MAX;
        let mut out = memory::with_capacity(len, RECORD_INDEX)?;
        put_varint64(&mut out, self.first_number);
        put_varint64(&mut out, self.first_offset);
        put_varint64(&mut out, self.count);
        out.extend_from_slice(&self.lengths);
        self.first_number += self.count;
        self.count = 0;
        self.lengths.clear();
        Ok(out)
    }
}

/// The places in a file, in its order; one block of them is in memory.
pub struct RecordPlaces<'r> {
    reader: &'r BlobFileReader,
    alignment: u64,
    blocks: std::vec::IntoIter<Extent>,
    /// Behind the last user's record: the first byte of the tail record at the latest.
    end: u64,
    block: Vec<u8>,
    at: usize,
    left: u64,
    /// The number of the next record, and the first offset that it may have.
    number: u64,
    next: u64,
    /// True after an error: what follows cannot be told.
    is_lost: bool,
}

impl<'r> RecordPlaces<'r> {
    pub(crate) fn new(
        reader: &'r BlobFileReader,
        blocks: Vec<Extent>,
        alignment: u64,
        end: u64,
    ) -> Self {
        Self {
            reader,
            alignment,
            blocks: blocks.into_iter(),
            end,
            block: Vec::new(),
            at: 0,
            left: 0,
            number: 0,
            next: crate::format::HEADER_LEN as u64,
            is_lost: false,
        }
    }

    fn open_block(&mut self, extent: Extent) -> Result<()> {
        self.block = self.reader.meta_record(extent, crate::meta::RECORDS)?;
        let mut from = Decoder::new(&self.block);
        let number = from.varint64("number of the first record")?;
        let offset = from.varint64("offset of the first record")?;
        self.left = from.varint64("number of records")?;
        self.at = from.position();
        if number != self.number || offset < self.next {
            return Err(
                Error::corruption("record index does not go on where it ended")
                    .with("number", number)
                    .with("at", offset),
            );
        }
        self.next = offset;
        Ok(())
    }

    fn read(&mut self) -> Result<Option<RecordPlace>> {
        while self.left == 0 {
            if self.at != self.block.len() {
                return Err(Error::corruption("record index has bytes behind its end"));
            }
            match self.blocks.next() {
                Some(extent) => self.open_block(extent)?,
                None => return Ok(None),
            }
        }
        let rest = self.block.get(self.at..).unwrap_or_default();
        let mut from = Decoder::new(rest);
        let place = RecordPlace {
            offset: self.next,
            key_len: from.varint64("key length")?,
            value_len: from.varint64("value length")?,
        };
        self.at += from.position();
        let end = place.end().filter(|&e| e <= self.end).ok_or_else(|| {
            Error::corruption("record index leads outside the records").with("at", place.offset)
        })?;
        self.next = align_up(end, self.alignment);
        self.left -= 1;
        self.number += 1;
        Ok(Some(place))
    }

    /// The next place; `None` at the end.
    ///
    /// # Errors
    /// `Corruption` if the index is damaged, and then no more places; `Io`.
    #[expect(
        clippy::should_implement_trait,
        reason = "it fails, as all cursors here do"
    )]
    pub fn next(&mut self) -> Result<Option<RecordPlace>> {
        if self.is_lost {
            return Ok(None);
        }
        self.read().map_err(|e| {
            self.is_lost = true;
            self.reader.locate(e, self.next)
        })
    }
}

/// Bytes that a record takes in the index.
#[must_use]
pub(crate) fn entry_len(place: &RecordPlace) -> usize {
    varint_len(place.key_len) + varint_len(place.value_len)
}
