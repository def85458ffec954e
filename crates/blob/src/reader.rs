//! Reads values by their pointers.
//!
//! ```text
//! pointer, user key -> bounds -> one read of the whole record -> its head, lengths, key
//!   -> checksums -> decompress -> value
//! ```
//! Invariants: (1) a pointer is checked against the file's size before memory is taken; (2) the
//! record that a pointer leads to is that of the key that was asked for; (3) checksums are looked
//! at before bytes are believed, unless the caller does without; (4) a record that is damaged is
//! read once more, since what went wrong may have been on its way here; (5) errors name file and
//! offset. A value that is not compressed stays where it was read. `Hot path`.
//! Source: RocksDB `db/blob/blob_file_reader.cc`.

mod end;
mod many;
mod ahead;

use std::cell::Cell;
use std::sync::Arc;

use orogen_base::limits::KEY_SIZE_MAX;
use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::perf::{self, PerfCounter};
use orogen_base::pinned::Pin;
use orogen_base::{Error, ErrorKind, FileNo, PinnedValue, Result, memory};
use orogen_codec::{CompressionType, Dictionary, decompress};
use orogen_env::{PerfTimer, RandomAccessFile};

use crate::cursor::RecordCursor;
use crate::format::{
    FOOTER_LEN, FileFooter, FileHeader, HEADER_LEN, HOLE_BLOCK, RECORD_HEADER_LEN, RecordHeader,
    VERSION, VERSION_WITH_DICTIONARY, record_checksum,
};
use crate::meta::Extent;
use crate::pointer::BlobPointer;

pub use ahead::{AheadRead, BlobReadahead, Place, WindowAccount};
pub use many::{BlobRead, Coalesce};

/// The framing of compressed values: that of tables of format 2 and later.
pub(crate) const FRAMING: u32 = 2;

/// What opening a file needs to know.
#[derive(Clone, Default)]
pub struct BlobFileReaderOptions {
    /// The file's number, which pointers are compared with.
    pub file_number: FileNo,
    /// The family that the file belongs to, which its header is compared with; `None`: any.
    pub column_family_id: Option<u32>,
    /// The file belongs to a database that takes no files but those that it reads, as far as it knows: a header that is not
    /// known then counts as damaged. It has no checksum, so a newer program's looks the same.
    pub is_listed: bool,
    /// Where reads are counted.
    pub statistics: Option<Arc<Statistics>>,
}

/// A value and the record that it was read with; it goes into a [`PinnedValue`], and into a cache,
/// without a copy.
#[derive(Debug)]
pub struct BlobValue {
    bytes: Vec<u8>,
    start: usize,
}

impl BlobValue {
    /// Bytes of memory held.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.bytes.capacity()
    }

    /// The bytes that were read, and where the value begins in them; it goes to their end.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, usize) {
        (self.bytes, self.start)
    }
}

impl Pin for BlobValue {
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl From<BlobValue> for PinnedValue {
    fn from(value: BlobValue) -> Self {
        if value.start == 0 {
            return Self::from(value.bytes);
        }
        let len = value.bytes.len() - value.start;
        Self::pinned(Arc::new(value), 0..len)
    }
}

/// How a record is read.
#[derive(Clone, Copy)]
struct How {
    /// Looks at the checksums.
    verify: bool,
    /// Leaves the value compressed.
    is_stored: bool,
}

impl How {
    const STORED: Self = Self {
        verify: true,
        is_stored: true,
    };

    fn value(verify: bool) -> Self {
        Self {
            verify,
            is_stored: false,
        }
    }
}

/// What the end of a file says of it.
enum End {
    /// It was not finished: there is no footer.
    Open,
    /// RocksDB wrote it: there are no meta records.
    Plain,
    /// Here is the record that leads to the meta records.
    Located(Extent),
    /// There is such a record, but its place cannot be told.
    Lost(Error),
}

/// An open blob file.
pub struct BlobFileReader {
    file: Arc<dyn RandomAccessFile>,
    size: u64,
    header: FileHeader,
    footer: Option<FileFooter>,
    end: End,
    dictionary: Option<Dictionary>,
    options: BlobFileReaderOptions,
}

thread_local! {
    /// A record on its way to decompression; kept for the next.
    static RAW: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What memory is asked for.
const RECORD: &str = "blob record";

/// Larger buffers are not kept: each thread has one.
const RAW_KEPT_MAX: usize = 256 << 10;

impl BlobFileReader {
    /// Opens a file of `size` bytes that was finished.
    ///
    /// # Errors
    /// `Corruption` if it is no blob file, damaged, or of another family; `NotSupported` if its
    /// values expire or its version is newer, which is the source of a `Corruption` if it
    /// [is listed](BlobFileReaderOptions::is_listed); `Io`.
    pub fn open(
        file: Arc<dyn RandomAccessFile>,
        size: u64,
        options: BlobFileReaderOptions,
    ) -> Result<Self> {
        let mut this = Self::open_unfinished(file, size, options)?;
        this.read_end().map_err(|e| {
            let at = size.saturating_sub(FOOTER_LEN as u64);
            this.locate(e, at)
        })?;
        this.read_dictionary()?;
        Ok(this)
    }

    /// Opens a file whose end is not looked at, such as one that a crash has cut off: it has no
    /// footer and no meta records, and its records are found by going through it.
    ///
    /// # Errors
    /// As [`Self::open`], but for its end.
    pub fn open_unfinished(
        file: Arc<dyn RandomAccessFile>,
        size: u64,
        options: BlobFileReaderOptions,
    ) -> Result<Self> {
        let at = |e: Error| e.with("file", file.path().display()).with("offset", 0);
        if size < HEADER_LEN as u64 {
            return Err(at(
                Error::corruption("file is too short for a blob file").with("size", size)
            ));
        }
        let mut bytes = [0; HEADER_LEN];
        file.read_exact_at(0, &mut bytes)?;
        let header = FileHeader::decode(&bytes).map_err(|e| match e.kind() {
            ErrorKind::NotSupported if options.is_listed => at(Error::corruption(
                "header of a blob file is damaged, or that of a newer program",
            ))
            .caused_by(e),
            _ => at(e),
        })?;
        if let Some(id) = options.column_family_id
            && id != header.column_family_id
        {
            return Err(at(Error::corruption(
                "blob file belongs to another column family",
            )
            .with("column_family_id", header.column_family_id)
            .with("wanted", id)));
        }
        let mut this = Self {
            file,
            size,
            header,
            footer: None,
            end: End::Open,
            dictionary: None,
            options,
        };
        this.read_first_dictionary()?;
        Ok(this)
    }

    /// True if a block of 4 KiB that the extent touches is all zeros, as one is whose space was
    /// given up.
    ///
    /// # Errors
    /// `Io`.
    pub fn has_hole(&self, extent: Extent) -> Result<bool> {
        let mut block = extent.offset / HOLE_BLOCK * HOLE_BLOCK;
        let mut bytes = memory::zeroed(HOLE_BLOCK as usize, "block of a blob file")?;
        let end = extent.end().min(self.file_size() / HOLE_BLOCK * HOLE_BLOCK);
        while block < end {
            self.file.read_exact_at(block, &mut bytes)?;
            if bytes.iter().all(|&b| b == 0) {
                return Ok(true);
            }
            block += HOLE_BLOCK;
        }
        Ok(false)
    }

    /// An error at `offset` of this file.
    #[must_use]
    pub fn locate(&self, error: Error, offset: u64) -> Error {
        if error.context("file").is_some() {
            return error;
        }
        error
            .with("file", self.file.path().display())
            .with("offset", offset)
    }

    /// The file's header.
    #[must_use]
    pub fn header(&self) -> FileHeader {
        self.header
    }

    /// Records of the user that the footer tells of; `None` for a file that was not finished.
    #[must_use]
    pub fn record_count(&self) -> Option<u64> {
        self.footer.map(|f| f.records)
    }

    /// Bytes of the file.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.size
    }

    /// The file's number, as it was opened with.
    #[must_use]
    pub fn file_number(&self) -> FileNo {
        self.options.file_number
    }

    /// The file itself.
    #[must_use]
    pub fn file(&self) -> &Arc<dyn RandomAccessFile> {
        &self.file
    }

    /// Bytes of memory held, about.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        size_of::<Self>() + self.dictionary.as_ref().map_or(0, Dictionary::memory_usage)
    }

    /// The offset behind which no record of the user ends.
    #[must_use]
    pub fn records_end(&self) -> u64 {
        match &self.end {
            End::Open => self.size,
            End::Plain | End::Lost(_) => self.size - FOOTER_LEN as u64,
            End::Located(tail) => tail.offset,
        }
    }

    /// A cursor over the records, from the first, with their values and their checksums.
    #[must_use]
    pub fn records(&self) -> RecordCursor<'_> {
        RecordCursor::new(self, self.scan_end(), true)
    }

    /// A cursor over the records without their values, which are not read: neither are they
    /// verified.
    #[must_use]
    pub fn keys(&self) -> RecordCursor<'_> {
        RecordCursor::new(self, self.scan_end(), false)
    }

    /// Where a walk through the records ends.
    fn scan_end(&self) -> u64 {
        match self.end {
            End::Open => self.size,
            _ => self.size - FOOTER_LEN as u64,
        }
    }

    /// Decompresses a value of this file, into memory of its own.
    pub(crate) fn expand(&self, stored: &[u8]) -> Result<Vec<u8>> {
        let _timer = PerfTimer::start(PerfCounter::BlobDecompressTime);
        if self.header.version == VERSION_WITH_DICTIONARY && self.dictionary.is_none() {
            return Err(Error::corruption(
                "blob file has lost the dictionary of its values",
            ));
        }
        decompress(
            self.header.codec,
            stored,
            self.dictionary.as_ref(),
            FRAMING,
            Vec::new(),
        )
    }

    /// The value of `user_key` at `pointer`.
    ///
    /// Without `verify` checksums are not looked at; lengths and key are.
    ///
    /// # Errors
    /// `Corruption` if the pointer leads to anything else than an intact record of this key;
    /// `NotSupported` for a codec that is not built in; `Io`.
    pub fn get(&self, pointer: BlobPointer, user_key: &[u8], verify: bool) -> Result<PinnedValue> {
        self.read(pointer, user_key, verify).map(PinnedValue::from)
    }

    /// As [`Self::get`], in a form that a cache can keep.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn read(&self, pointer: BlobPointer, user_key: &[u8], verify: bool) -> Result<BlobValue> {
        let extent = self.record_extent(pointer, user_key)?;
        self.read_extent(extent, user_key, How::value(verify))
    }

    /// True if a new file of this codec, without a dictionary, stores values as this one does.
    #[must_use]
    pub fn stores_as(&self, codec: CompressionType) -> bool {
        (self.header.codec, self.header.version) == (codec, VERSION)
    }

    /// As [`Self::read`] with checksums, but the value as it is stored, for
    /// [`BlobFileBuilder::add_stored`](crate::BlobFileBuilder::add_stored).
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn read_stored(
        &self,
        ahead: &mut BlobReadahead,
        pointer: BlobPointer,
        user_key: &[u8],
    ) -> Result<BlobValue> {
        self.read_ahead_how(ahead, pointer, user_key, How::STORED)
    }

    fn read_extent(&self, extent: Extent, user_key: &[u8], how: How) -> Result<BlobValue> {
        let first = match self.read_mapped(extent, user_key, how) {
            Some(read) => read.map(Some),
            None => self.read_once(extent, user_key, how, true),
        };
        match first {
            Ok(Some(value)) => Ok(value),
            Ok(None) => self.read_again(extent, user_key, how),
            Err(e) if e.kind() == ErrorKind::Corruption => self.read_again(extent, user_key, how),
            Err(e) => Err(e),
        }
    }

    #[cold]
    fn read_again(&self, extent: Extent, user_key: &[u8], how: How) -> Result<BlobValue> {
        let again = self
            .read_once(extent, user_key, how, true)
            .and_then(|read| {
                let short =
                    || self.locate(Error::corruption("blob file is cut off"), extent.offset);
                read.ok_or_else(short)
            });
        if let Some(s) = &self.options.statistics {
            s.add(Ticker::FileReadCorruptionRetry, 1);
            if again.is_ok() {
                s.add(Ticker::FileReadCorruptionRetrySuccess, 1);
            }
        }
        again
    }

    /// The extent of the record that a pointer leads to, within the file.
    fn record_extent(&self, pointer: BlobPointer, user_key: &[u8]) -> Result<Extent> {
        let wrong = |what: &'static str| {
            let e = Error::corruption(what).with("size", pointer.size);
            Err(self.locate(e, pointer.offset))
        };
        if pointer.file != self.options.file_number {
            return wrong("blob pointer leads into another file");
        }
        if pointer.codec != self.header.codec {
            return wrong("blob pointer has another codec than its file");
        }
        let end = pointer.offset.checked_add(pointer.size);
        match (pointer.record_offset(user_key.len()), end) {
            (Some(offset), Some(end)) if end <= self.records_end() => Ok(Extent {
                offset,
                size: end - offset,
            }),
            _ => wrong("blob pointer leads outside the records of its file"),
        }
    }

    fn count_read(&self, bytes: u64) {
        perf::add(PerfCounter::BlobReadCount, 1);
        perf::add(PerfCounter::BlobReadByte, bytes);
        if let Some(s) = &self.options.statistics {
            s.add(Ticker::BlobDbBlobFileBytesRead, bytes);
        }
    }

    /// The value at `extent` out of the mapping of the file; `None` if there is none, or it did not
    /// give what is in the file.
    fn read_mapped(&self, extent: Extent, user_key: &[u8], how: How) -> Option<Result<BlobValue>> {
        let mut value = None;
        let mut look = |read: &[u8]| {
            let start = self.check(read, extent, user_key, how.verify);
            value = Some(start.and_then(|start| self.expand_value(&read[start..], extent, how)));
        };
        let len = extent.size as usize;
        if !self.file.with_mapped(extent.offset, len, &mut look)? {
            return None;
        }
        self.count_read(extent.size);
        value
    }

    /// The value at `extent`; `None` if it is not to be waited for and is not in memory.
    fn read_once(
        &self,
        extent: Extent,
        user_key: &[u8],
        how: How,
        waits: bool,
    ) -> Result<Option<BlobValue>> {
        let is_plain = self.header.codec == CompressionType::None || how.is_stored;
        let len = extent.size as usize;
        let mut bytes = if is_plain && waits {
            memory::with_capacity(len, RECORD)
        } else if is_plain {
            memory::zeroed(len, RECORD)
        } else {
            let mut bytes = RAW.take();
            memory::resize(&mut bytes, len, RECORD).map(|()| bytes)
        }
        .map_err(|e| self.locate(e, extent.offset))?;
        let timer = PerfTimer::start(PerfCounter::BlobReadTime);
        let file = &self.file;
        let read = match (waits, is_plain) {
            (false, _) => file
                .read_at_without_waiting(extent.offset, &mut bytes)
                .map(|read| read == Some(len)),
            (true, true) => file
                .append_exact_at(extent.offset, len, &mut bytes)
                .map(|()| true),
            (true, false) => file.read_exact_at(extent.offset, &mut bytes).map(|()| true),
        };
        drop(timer);
        let value = match read {
            Ok(false) => Ok(None),
            Err(e) => Err(e),
            Ok(true) => {
                self.count_read(extent.size);
                let start = self.check(&bytes, extent, user_key, how.verify)?;
                if is_plain {
                    return Ok(Some(BlobValue { bytes, start }));
                }
                self.expand_value(&bytes[start..], extent, how).map(Some)
            }
        };
        if !is_plain && bytes.capacity() <= RAW_KEPT_MAX {
            RAW.set(bytes);
        }
        value
    }

    /// A value of its own out of a record that is kept elsewhere.
    fn expand_value(&self, stored: &[u8], extent: Extent, how: How) -> Result<BlobValue> {
        match how.is_stored {
            true => memory::copied(stored, RECORD),
            false => self.expand(stored),
        }
        .map(|bytes| BlobValue { bytes, start: 0 })
        .map_err(|e| self.locate(e, extent.offset))
    }

    /// Checks the record of `user_key` that stands at `extent`; returns where its value begins.
    fn check(&self, bytes: &[u8], extent: Extent, user_key: &[u8], verify: bool) -> Result<usize> {
        let start = RECORD_HEADER_LEN + user_key.len();
        let wrong = |what: &'static str| {
            Err(self.locate(
                Error::corruption(what).with("size", extent.size),
                extent.offset,
            ))
        };
        let Some((head, rest)) = bytes.split_first_chunk() else {
            return wrong("blob record is cut off");
        };
        let (header, holds) = RecordHeader::parse(head);
        let _timer = PerfTimer::start(PerfCounter::BlobChecksumTime);
        if verify && !holds {
            return wrong("head of a blob record has a bad checksum");
        }
        if header.key_len != user_key.len() as u64
            || header.value_len != (bytes.len() - start) as u64
        {
            return wrong("blob record has other lengths than its pointer");
        }
        if header.expiration != 0 {
            return wrong("blob record is none of the user's");
        }
        let (key, stored) = rest.split_at(user_key.len());
        if key != user_key {
            return wrong("blob record is that of another key");
        }
        if verify && header.checksum != record_checksum(key, stored) {
            return wrong("blob record has a bad checksum");
        }
        Ok(start)
    }

    /// The largest key that a record of this file can have.
    pub(crate) fn key_len_max(&self) -> u64 {
        (KEY_SIZE_MAX as u64).min(self.size)
    }
}
