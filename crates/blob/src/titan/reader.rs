//! Reads the values that Titan's pointers lead to.
//!
//! ```text
//! pointer, user key -> bounds -> one read -> size, checksum -> decompress -> key, value
//! ```
//! Invariants: (1) a pointer is checked against the file before memory is taken; (2) the record that
//! it leads to is that of the key that was asked for; (3) a record that is damaged is read once more
//! from the file, since what went wrong may have been on its way here; (4) errors name file and
//! offset. Pointers in the order of keys lead through a file from front to back, because Titan
//! writes files so: a window reads several records at once then.

use std::ops::Range;
use std::sync::Arc;

use orogen_base::checksum::{crc32c, crc32c_extend, unmask};
use orogen_base::coding::{Decoder, get_fixed32};
use orogen_base::{Error, ErrorKind, FileNo, Result, memory};
use orogen_codec::{CompressionType, Dictionary, decompress};
use orogen_env::RandomAccessFile;

use super::format::{
    FOOTER_LEN, HEADER_LEN_MAX, HEADER_LEN_MIN, Handle, RECORD_HEADER_LEN, TitanFooter,
    TitanHeader, TitanPointer, TitanRecordHeader,
};
use crate::reader::FRAMING;

/// Bytes behind a block: its type and a checksum.
const TRAILER_LEN: usize = 5;
/// A dictionary of more bytes is refused: Titan's have some 100 KiB.
const META_LEN_MAX: u64 = 64 << 20;
/// The entry of the meta index that leads to the dictionary.
const DICTIONARY: &[u8] = b"rocksdb.compression_dict";

/// Bytes that are read together at first, once records are asked for in a row.
const WINDOW_LEN_MIN: u64 = 16 << 10;
/// Records that are so many bytes apart are read together.
const GAP_MAX: u64 = 32 << 10;

/// What memory is asked for.
const RECORD: &str = "Titan blob record";

/// An open blob file of Titan's.
pub struct TitanFile {
    file: Arc<dyn RandomAccessFile>,
    number: FileNo,
    size: u64,
    header: TitanHeader,
    records_end: u64,
    dictionary: Option<Dictionary>,
}

/// What was read of one file, and is read ahead of what is asked for.
#[derive(Debug)]
pub struct TitanWindow {
    len_max: u64,
    len: u64,
    offset: u64,
    bytes: Vec<u8>,
    /// Behind the record that was asked for last.
    next: u64,
    /// The last record that was compressed.
    plain: Vec<u8>,
}

impl TitanWindow {
    /// Reads up to `len_max` bytes at once, or one record if that is larger.
    #[must_use]
    pub fn new(len_max: u64) -> Self {
        Self {
            len_max,
            len: WINDOW_LEN_MIN.min(len_max),
            offset: 0,
            bytes: Vec::new(),
            next: 0,
            plain: Vec::new(),
        }
    }

    fn held(&self, pointer: &TitanPointer) -> Option<Range<usize>> {
        let start = usize::try_from(pointer.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(usize::try_from(pointer.size).ok()?)?;
        (end <= self.bytes.len()).then_some(start..end)
    }
}

impl TitanFile {
    /// Opens a file.
    ///
    /// # Errors
    /// `Corruption` if it is none of Titan's or damaged; `NotSupported` for what is not known yet;
    /// `Io`.
    pub fn open(file: Arc<dyn RandomAccessFile>, number: FileNo) -> Result<Self> {
        let size = file.size()?;
        let at = |offset: u64| {
            let path = file.path().display().to_string();
            move |e: Error| e.with("file", &path).with("offset", offset)
        };
        if size < (HEADER_LEN_MIN + FOOTER_LEN) as u64 {
            let e = Error::corruption("file is too short for a Titan blob file");
            return Err(at(0)(e.with("size", size)));
        }
        let mut bytes = [0; HEADER_LEN_MAX];
        file.read_exact_at(0, &mut bytes)?;
        let header = TitanHeader::decode(&bytes).map_err(at(0))?;
        let footer_at = size - FOOTER_LEN as u64;
        let mut bytes = [0; FOOTER_LEN];
        file.read_exact_at(footer_at, &mut bytes)?;
        let footer = TitanFooter::decode(&bytes).map_err(at(footer_at))?;
        if footer_at < header.encoded_len() as u64 {
            let e = Error::corruption("file is too short for a Titan blob file");
            return Err(at(0)(e.with("size", size)));
        }
        let mut this = Self {
            file,
            number,
            size,
            header,
            records_end: footer_at,
            dictionary: None,
        };
        this.read_dictionary(footer.meta_index())?;
        Ok(this)
    }

    /// Its number.
    #[must_use]
    pub fn number(&self) -> FileNo {
        self.number
    }

    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its beginning.
    #[must_use]
    pub fn header(&self) -> TitanHeader {
        self.header
    }

    /// The codec of the first record; `None` if there is none, or it is damaged.
    ///
    /// # Errors
    /// `Io`.
    pub fn first_codec(&self) -> Result<Option<CompressionType>> {
        let mut offset = self.header.encoded_len() as u64;
        if self.header.block_size > 0 {
            offset = offset.next_multiple_of(self.header.block_size);
        }
        if offset.saturating_add(RECORD_HEADER_LEN as u64) > self.records_end {
            return Ok(None);
        }
        let mut bytes = [0; RECORD_HEADER_LEN];
        self.file.read_exact_at(offset, &mut bytes)?;
        let record = TitanRecordHeader::decode(&bytes);
        let pointer = TitanPointer {
            file: self.number,
            offset,
            size: u64::from(record.size) + RECORD_HEADER_LEN as u64,
        };
        if self.check_bounds(&pointer).is_err() {
            return Ok(None);
        }
        let mut body = memory::zeroed(record.size as usize, RECORD)?;
        self.file
            .read_exact_at(offset + RECORD_HEADER_LEN as u64, &mut body)?;
        Ok(record.check(&body).ok())
    }

    /// The value that `pointer` leads to, if it is that of `user_key`.
    ///
    /// # Errors
    /// `Corruption`; `NotSupported` for a codec that is not built in; `Io`, `NoMemory`.
    pub fn read<'w>(
        &self,
        window: &'w mut TitanWindow,
        pointer: &TitanPointer,
        user_key: &[u8],
    ) -> Result<&'w [u8]> {
        self.check_bounds(pointer)?;
        let found = match self.fill(window, pointer) {
            Ok(record) => self.take(window, record, pointer, user_key),
            Err(e) => Err(e),
        };
        let found = match found {
            Err(e) if e.kind() == ErrorKind::Corruption => {
                window.bytes.clear();
                self.load(window, pointer.offset, pointer.size)?;
                let all = 0..window.bytes.len();
                self.take(window, all, pointer, user_key)
            }
            other => other,
        };
        let (is_plain, value) = found.map_err(|e| self.locate(e, pointer.offset))?;
        Ok(match is_plain {
            true => &window.plain[value],
            false => &window.bytes[value],
        })
    }

    fn locate(&self, e: Error, offset: u64) -> Error {
        e.with("file", self.file.path().display())
            .with("offset", offset)
    }

    fn check_bounds(&self, pointer: &TitanPointer) -> Result<()> {
        let header = self.header.encoded_len() as u64;
        let end = pointer.offset.checked_add(pointer.size);
        if pointer.offset >= header
            && pointer.size >= RECORD_HEADER_LEN as u64
            && end.is_some_and(|end| end <= self.records_end)
        {
            return Ok(());
        }
        let e = Error::corruption("Titan pointer leads beyond the records of its file");
        Err(self.locate(e.with("size", pointer.size), pointer.offset))
    }

    /// Has the record in the window, and tells where.
    fn fill(&self, window: &mut TitanWindow, pointer: &TitanPointer) -> Result<Range<usize>> {
        let is_in_row = pointer.offset >= window.next && pointer.offset - window.next <= GAP_MAX;
        window.next = pointer.offset + pointer.size;
        if let Some(held) = window.held(pointer) {
            return Ok(held);
        }
        let len = match is_in_row {
            true => {
                let len = window.len;
                window.len = (len * 2).min(window.len_max);
                len
            }
            false => {
                window.len = WINDOW_LEN_MIN.min(window.len_max);
                0
            }
        };
        let len = len.max(pointer.size).min(self.records_end - pointer.offset);
        self.load(window, pointer.offset, len)?;
        let len = usize::try_from(pointer.size).unwrap_or(usize::MAX);
        Ok(0..len.min(window.bytes.len()))
    }

    fn load(&self, window: &mut TitanWindow, offset: u64, len: u64) -> Result<()> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        window.bytes.clear();
        window.offset = offset;
        // One large record is no reason to keep so much.
        if window.bytes.capacity() as u64 > 4 * window.len_max.max(len as u64) {
            window.bytes = Vec::new();
        }
        memory::reserve(&mut window.bytes, len, RECORD)?;
        let read = self.file.append_exact_at(offset, len, &mut window.bytes);
        if read.is_err() {
            window.bytes.clear();
        }
        read
    }

    /// Takes a record of the window apart: where its value is, and whether it is in `plain`.
    fn take(
        &self,
        window: &mut TitanWindow,
        record: Range<usize>,
        pointer: &TitanPointer,
        user_key: &[u8],
    ) -> Result<(bool, Range<usize>)> {
        let bytes = &window.bytes[record.clone()];
        let Some((head, body)) = bytes.split_first_chunk() else {
            return Err(Error::corruption("Titan blob record is cut off"));
        };
        let head = TitanRecordHeader::decode(head);
        if head.is_hole() {
            return Err(Error::corruption(
                "Titan pointer leads to a hole where a record was",
            ));
        }
        if body.len() != head.size as usize {
            return Err(Error::corruption(
                "Titan blob record has another size than its pointer says",
            )
            .with("size", head.size)
            .with("pointer_size", pointer.size));
        }
        let codec = head.check(body)?;
        let is_plain = codec != CompressionType::None;
        let (pair, start) = if is_plain {
            let spare = std::mem::take(&mut window.plain);
            window.plain = decompress(codec, body, self.dictionary.as_ref(), FRAMING, spare)?;
            (&window.plain[..], 0)
        } else {
            (body, record.start + RECORD_HEADER_LEN)
        };
        let mut from = Decoder::new(pair);
        let key = from.length_prefixed("key of a Titan blob record")?;
        let value = from.length_prefixed("value of a Titan blob record")?;
        if !from.is_empty() {
            return Err(Error::corruption(
                "Titan blob record has bytes behind its value",
            ));
        }
        if key != user_key {
            return Err(
                Error::corruption("Titan pointer leads to the record of another key")
                    .with("found", key.escape_ascii()),
            );
        }
        let end = start + pair.len();
        Ok((is_plain, end - value.len()..end))
    }

    /// Reads the dictionary, and finds where the records end.
    fn read_dictionary(&mut self, meta_index: Option<Handle>) -> Result<()> {
        let Some(handle) = meta_index else {
            if self.header.has_dictionary {
                let e = Error::corruption("Titan blob file has no dictionary, and needs one");
                return Err(self.locate(e, self.records_end));
            }
            return Ok(());
        };
        let index = self.read_block(handle)?;
        let dictionary = find_entry(&index, DICTIONARY)
            .and_then(|entry| {
                entry
                    .map(|e| Handle::read(&mut Decoder::new(e)))
                    .transpose()
            })
            .map_err(|e| self.locate(e, handle.offset))?;
        self.records_end = handle.offset;
        let Some(dictionary) = dictionary else {
            if self.header.has_dictionary {
                let e = Error::corruption("Titan blob file has no dictionary, and needs one");
                return Err(self.locate(e, handle.offset));
            }
            return Ok(());
        };
        let raw = self.read_block(dictionary)?;
        self.records_end = dictionary.offset;
        let made = Dictionary::new(raw).map_err(|e| self.locate(e, dictionary.offset))?;
        self.dictionary = Some(made);
        Ok(())
    }

    /// The content of a block before the records' end, its checksum compared.
    fn read_block(&self, handle: Handle) -> Result<Vec<u8>> {
        let header = self.header.encoded_len() as u64;
        let end = handle
            .size
            .checked_add(TRAILER_LEN as u64)
            .and_then(|len| handle.offset.checked_add(len));
        let is_inside = end.is_some_and(|end| end <= self.records_end);
        if !is_inside || handle.offset < header || handle.size > META_LEN_MAX {
            let e = Error::corruption("block of a Titan blob file lies outside of it");
            return Err(self.locate(e.with("size", handle.size), handle.offset));
        }
        let len = handle.size as usize + TRAILER_LEN;
        let mut bytes = memory::zeroed(len, "meta block of a Titan blob file")?;
        self.file.read_exact_at(handle.offset, &mut bytes)?;
        let (content, trailer) = bytes.split_at(handle.size as usize);
        let noted = get_fixed32(&trailer[1..]).map(unmask);
        if noted != Some(crc32c_extend(crc32c(content), &trailer[..1])) {
            let e = Error::corruption("block of a Titan blob file has a bad checksum");
            return Err(self.locate(e, handle.offset));
        }
        if trailer[0] != 0 {
            let e = Error::not_supported("meta block of a Titan blob file is compressed");
            return Err(self.locate(e.with("codec", trailer[0]), handle.offset));
        }
        bytes.truncate(handle.size as usize);
        Ok(bytes)
    }
}

/// The value of an entry of a block in RocksDB's form: entries whose keys share their beginning with
/// the one before, then the places of those that do not, and their number.
fn find_entry<'a>(block: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>> {
    let damaged = || Error::corruption("meta index of a Titan blob file is malformed");
    let (rest, count) = block.split_last_chunk::<4>().ok_or_else(damaged)?;
    let restarts = (u32::from_le_bytes(*count) as usize).checked_mul(4);
    let end = restarts.and_then(|n| rest.len().checked_sub(n));
    let mut from = Decoder::new(&rest[..end.ok_or_else(damaged)?]);
    let mut key: Vec<u8> = Vec::new();
    while !from.is_empty() {
        let shared = from.varint32("shared bytes")? as usize;
        let own = from.varint32("own bytes")? as usize;
        let value = from.varint32("value bytes")? as usize;
        if shared > key.len() {
            return Err(damaged());
        }
        key.truncate(shared);
        key.extend_from_slice(from.bytes(own, "key")?);
        let value = from.bytes(value, "value")?;
        if key == name {
            return Ok(Some(value));
        }
    }
    Ok(None)
}
