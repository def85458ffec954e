//! Goes through the records of a file from front to back, without pointers.
//!
//! For dumps and checks, for jobs that move what lives, and for repair. It needs neither footer
//! nor meta records, so it also reads files that RocksDB wrote and files that a crash has cut off.
//!
//! 1. Zeros between records are passed over: padding, and what was given up inside the file.
//! 2. Records that are not the user's are passed over.
//! 3. At damage it stops and says where; [`RecordCursor::skip_damage`] goes on with the next
//!    record, by the record index if the file has one, else by looking for what may be the head of
//!    one. The value of a user may look so too; what is found by looking is to be judged.
//! 4. In a file that was not finished, what does not hold is its end and no damage;
//!    [`RecordCursor::position`] then is the offset behind the last whole record. Who thinks
//!    otherwise of it skips it as damage.
//! 5. Space is given up in whole blocks, so a record that nobody points to may have lost its middle and
//!    is damage here; [`RecordCursor::is_at_hole`] tells it from other damage, as far as bytes can.

use orogen_base::{Error, ErrorKind, Result};

use crate::format::{
    HEADER_LEN, HOLE_BLOCK, META_MARK, RECORD_HEADER_LEN, RecordHeader, record_checksum,
};
use crate::meta;
use crate::places::RecordPlaces;
use crate::pointer::BlobPointer;
use crate::reader::BlobFileReader;
use crate::window::{WINDOW_LEN, Window};

/// Values of so many bytes are jumped over rather than read with the heads around them.
const FAR_LEN: u64 = 32 << 10;
/// Bytes that a head and its key are read with then.
const PAGE_LEN: u64 = 4 << 10;

/// A record of the user.
#[derive(Clone, Copy)]
pub struct BlobRecord<'c> {
    reader: &'c BlobFileReader,
    /// Bytes before the record.
    pub offset: u64,
    /// The user key.
    pub user_key: &'c [u8],
    /// Bytes of the value as stored.
    pub value_len: u64,
    stored: Option<&'c [u8]>,
}

impl<'c> BlobRecord<'c> {
    /// The pointer to the record's value.
    #[must_use]
    pub fn pointer(&self) -> BlobPointer {
        BlobPointer {
            file: self.reader.file_number(),
            offset: self.offset + (RECORD_HEADER_LEN + self.user_key.len()) as u64,
            size: self.value_len,
            codec: self.reader.header().codec,
        }
    }

    /// Bytes of the record.
    #[must_use]
    pub fn record_len(&self) -> u64 {
        (RECORD_HEADER_LEN + self.user_key.len()) as u64 + self.value_len
    }

    /// The value as it is stored; `None` if the cursor does not read values.
    #[must_use]
    pub fn stored(&self) -> Option<&'c [u8]> {
        self.stored
    }

    /// The value; `None` if the cursor does not read values.
    ///
    /// # Errors
    /// `Corruption` if it does not decompress; `NotSupported` for a codec that is not built in.
    pub fn value(&self) -> Result<Option<Vec<u8>>> {
        let Some(stored) = self.stored else {
            return Ok(None);
        };
        self.reader
            .expand(stored)
            .map(Some)
            .map_err(|e| self.reader.locate(e, self.offset))
    }
}

/// Goes through the records of a file.
pub struct RecordCursor<'r> {
    reader: &'r BlobFileReader,
    window: Window,
    /// Where the next record is looked for.
    next: u64,
    with_values: bool,
    /// Bytes of zeros that were passed over.
    zeros: u64,
    is_at_damage: bool,
    is_done: bool,
    /// The record index, once damage was skipped by it.
    places: Option<RecordPlaces<'r>>,
}

/// What stands at an offset.
enum Found {
    /// The head of a record, which fits into the file.
    Record(u64, RecordHeader),
    /// Something else, behind zeros if there are any.
    Damage(u64),
    /// Zeros up to the end.
    Nothing,
}

impl<'r> RecordCursor<'r> {
    pub(crate) fn new(reader: &'r BlobFileReader, end: u64, with_values: bool) -> Self {
        Self {
            reader,
            window: Window::new(reader.file().clone(), end),
            next: HEADER_LEN as u64,
            with_values,
            zeros: 0,
            is_at_damage: false,
            is_done: false,
            places: None,
        }
    }

    /// The offset behind the last record that was read; of damage where it begins.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Bytes of zeros between the records so far.
    #[must_use]
    pub fn zeros(&self) -> u64 {
        self.zeros
    }

    /// True where [`Self::skip_damage`] has something to skip.
    #[must_use]
    pub fn is_at_damage(&self) -> bool {
        self.is_at_damage
    }

    /// Goes to the record at `offset`, which a pointer or the record index tells of.
    pub fn seek(&mut self, offset: u64) {
        self.next = offset;
        self.is_at_damage = false;
        self.is_done = false;
    }

    /// True if the damage that [`Self::next`] told of may be a record of which whole blocks were
    /// given up: one of it is zeros, or the one around its head. Such a block may also be what a user has written, so this is for files of which something was given up, or
    /// may have been.
    ///
    /// # Errors
    /// `Io`.
    pub fn is_at_hole(&mut self) -> Result<bool> {
        if !self.is_at_damage {
            return Ok(false);
        }
        let at = self.next;
        let Some(header) = self.head_at(at)? else {
            // The end of a record, or one whose head the hole begins in.
            let block = at / HOLE_BLOCK * HOLE_BLOCK;
            let next = at.next_multiple_of(HOLE_BLOCK);
            return Ok((block >= HOLE_BLOCK && self.is_zeros(block - HOLE_BLOCK)?)
                || (next < at + RECORD_HEADER_LEN as u64 && self.is_zeros(next)?));
        };
        let end = at + header.record_len().unwrap_or(0);
        let mut block = at.next_multiple_of(HOLE_BLOCK);
        while block < end {
            if self.is_zeros(block)? {
                return Ok(true);
            }
            block += HOLE_BLOCK;
        }
        Ok(false)
    }

    fn is_zeros(&mut self, block: u64) -> Result<bool> {
        let bytes = self.window.get(block, HOLE_BLOCK)?;
        Ok(bytes.is_some_and(|b| b.iter().all(|&b| b == 0)))
    }

    /// The offset at which records end at the latest.
    pub(crate) fn end(&self) -> u64 {
        self.window.end()
    }

    /// The key of the record at `at`, which was stepped over just now.
    pub(crate) fn key(&mut self, at: u64, header: &RecordHeader) -> Result<&[u8]> {
        let len = RECORD_HEADER_LEN as u64 + header.key_len;
        let bytes = self.window.get(at, len)?.unwrap_or_default();
        Ok(bytes.get(RECORD_HEADER_LEN..).unwrap_or_default())
    }

    /// The next record of the user; `None` at the end.
    ///
    /// # Errors
    /// `Corruption` with the offset of the damage, and the same again until
    /// [`Self::skip_damage`]; `Io`.
    #[expect(
        clippy::should_implement_trait,
        reason = "the record borrows the cursor's memory"
    )]
    pub fn next(&mut self) -> Result<Option<BlobRecord<'_>>> {
        loop {
            match self.step()? {
                None => return Ok(None),
                Some((at, header)) if header.expiration != META_MARK => {
                    return self.record(at, header).map(Some);
                }
                Some(_) => {}
            }
        }
    }

    /// Goes behind the next record of any kind, and checks it.
    pub(crate) fn step(&mut self) -> Result<Option<(u64, RecordHeader)>> {
        let Some((at, header)) = self.find()? else {
            return Ok(None);
        };
        match self.load(at, header) {
            Err(e) if e.kind() == ErrorKind::Corruption => {
                return self.damage(at, e).map(|()| None);
            }
            other => other?,
        }
        self.next = at + header.record_len().unwrap_or(0);
        if !self.with_values {
            // The next head is about as far away as this one was from the one before.
            self.window.set_len(match header.value_len {
                ..FAR_LEN => WINDOW_LEN,
                _ => PAGE_LEN,
            });
        }
        Ok(Some((at, header)))
    }

    /// Bytes of a record that are wanted.
    fn wanted(&self, header: &RecordHeader) -> u64 {
        let len = header.record_len().unwrap_or(0);
        if self.with_values || header.expiration == META_MARK {
            return len;
        }
        len - header.value_len
    }

    /// The record at `at`, which was stepped over just now.
    pub(crate) fn record(&mut self, at: u64, header: RecordHeader) -> Result<BlobRecord<'_>> {
        let want = self.wanted(&header);
        let bytes = self.window.get(at, want)?.unwrap_or_default();
        let (user_key, stored) = bytes[RECORD_HEADER_LEN..].split_at(header.key_len as usize);
        Ok(BlobRecord {
            reader: self.reader,
            offset: at,
            user_key,
            value_len: header.value_len,
            stored: self.with_values.then_some(stored),
        })
    }

    /// Name and content of the first record, if it is a meta record.
    pub(crate) fn find_first_meta(&mut self) -> Result<Option<(Vec<u8>, Vec<u8>)>> {
        let Ok(Some((at, header))) = self.find() else {
            return Ok(None);
        };
        if header.expiration != META_MARK || self.load(at, header).is_err() {
            return Ok(None);
        }
        let (name, content) = meta::split_key(self.key(at, &header)?)?;
        Ok(Some((name.to_vec(), content.to_vec())))
    }

    /// Goes behind the damage that [`Self::next`] told of, to what may be the next record.
    ///
    /// # Errors
    /// `Io`.
    pub fn skip_damage(&mut self) -> Result<()> {
        if !self.is_at_damage {
            return Ok(());
        }
        self.is_at_damage = false;
        self.is_done = false;
        if let Some(at) = self.next_by_index()? {
            self.next = at;
            return Ok(());
        }
        let mut at = self.next + 1;
        while at + RECORD_HEADER_LEN as u64 <= self.window.end() {
            if self.head_at(at)?.is_some() {
                self.next = at;
                return Ok(());
            }
            at += 1;
        }
        self.next = self.window.end();
        self.is_done = true;
        Ok(())
    }

    /// The first record behind the damage, by the record index.
    fn next_by_index(&mut self) -> Result<Option<u64>> {
        if self.places.is_none() {
            // An index that is damaged itself is none.
            self.places = self.reader.places().ok().flatten();
        }
        let Some(places) = &mut self.places else {
            return Ok(None);
        };
        loop {
            match places.next() {
                Ok(Some(place)) if place.offset > self.next => return Ok(Some(place.offset)),
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    return Ok(None);
                }
            }
        }
    }

    /// The head at `at` if its checksum holds, and the record may be one and fits.
    fn head_at(&mut self, at: u64) -> Result<Option<RecordHeader>> {
        let key_len_max = self.reader.key_len_max();
        let end = self.window.end();
        let Some(bytes) = self.window.get(at, RECORD_HEADER_LEN as u64)? else {
            return Ok(None);
        };
        let Some(head) = bytes.first_chunk() else {
            return Ok(None);
        };
        // Cheaper than the checksum, and wrong nearly everywhere.
        if head[16..24] != [0; 8] && head[16..24] != META_MARK.to_le_bytes() {
            return Ok(None);
        }
        let (header, holds) = RecordHeader::parse(head);
        let fits = header.key_len <= key_len_max
            && header
                .record_len()
                .and_then(|len| at.checked_add(len))
                .is_some_and(|after| after <= end);
        Ok((fits && holds).then_some(header))
    }

    /// The next record, behind zeros if there are any; `None` at the end.
    fn find(&mut self) -> Result<Option<(u64, RecordHeader)>> {
        if self.is_done || self.next >= self.window.end() {
            self.is_done = true;
            return Ok(None);
        }
        match self.look()? {
            Found::Record(at, header) => {
                self.zeros += at - self.next;
                Ok(Some((at, header)))
            }
            Found::Nothing => {
                self.zeros += self.window.end() - self.next;
                self.is_done = true;
                Ok(None)
            }
            Found::Damage(at) => {
                let e = Error::corruption("blob record has a damaged head");
                self.damage(at, e).map(|()| None)
            }
        }
    }

    /// What stands at the next offset.
    fn look(&mut self) -> Result<Found> {
        if let Some(header) = self.head_at(self.next)? {
            return Ok(Found::Record(self.next, header));
        }
        let Some(first) = self.first_byte_that_is_set()? else {
            return Ok(Found::Nothing);
        };
        // The head of a record may itself begin with zeros: those of its lengths.
        let least = first.saturating_sub(24).max(self.next);
        for at in least..=first {
            if let Some(header) = self.head_at(at)? {
                return Ok(Found::Record(at, header));
            }
        }
        Ok(Found::Damage(match self.reader.record_count() {
            Some(_) => first,
            // Here it is where the file ends.
            None => self.next,
        }))
    }

    fn first_byte_that_is_set(&mut self) -> Result<Option<u64>> {
        let mut at = self.next;
        let end = self.window.end();
        while at < end {
            let len = WINDOW_LEN.min(end - at);
            let bytes = self.window.get(at, len)?.unwrap_or_default();
            if let Some(i) = bytes.iter().position(|&b| b != 0) {
                return Ok(Some(at + i as u64));
            }
            at += len;
        }
        Ok(None)
    }

    /// Brings a record into the window and checks it, if its value is wanted.
    fn load(&mut self, at: u64, header: RecordHeader) -> Result<()> {
        let want = self.wanted(&header);
        let bytes = self.window.get(at, want)?.unwrap_or_default();
        if header.record_len() != Some(want) {
            return Ok(());
        }
        let (key, stored) = bytes[RECORD_HEADER_LEN..].split_at(header.key_len as usize);
        if header.checksum != record_checksum(key, stored) {
            return Err(Error::corruption("blob record has a bad checksum").with("size", want));
        }
        Ok(())
    }

    /// Notes damage at `at`; in a file that was not finished it is the end.
    fn damage(&mut self, at: u64, error: Error) -> Result<()> {
        self.next = at;
        self.is_at_damage = true;
        if self.reader.record_count().is_none() {
            self.is_done = true;
            return Ok(());
        }
        Err(self.reader.locate(error, at))
    }
}
