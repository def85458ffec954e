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
    EMPTY_VALUE_LEN_MAX, FOOTER_LEN, FileFooter, FileHeader, HEADER_LEN, LOCATOR_LEN, Locator,
    META_MARK, RECORD_HEADER_LEN, RecordHeader, VERSION_WITH_DICTIONARY, empty_value,
    record_checksum,
};
use crate::meta::{self, BlobFileProperties, Extent, MetaIndex};
use crate::places::RecordPlaces;
use crate::pointer::BlobPointer;

/// The framing of compressed values: that of tables of format 2 and later.
pub(crate) const FRAMING: u32 = 2;

/// What opening a file needs to know.
#[derive(Clone, Default)]
pub struct BlobFileReaderOptions {
    /// The file's number, which pointers are compared with.
    pub file_number: FileNo,
    /// The family that the file belongs to, which its header is compared with; `None`: any.
    pub column_family_id: Option<u32>,
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

/// One value of a [`BlobFileReader::read_many`].
pub struct BlobRead<'k> {
    /// Where it is.
    pub pointer: BlobPointer,
    /// Whose it is.
    pub user_key: &'k [u8],
    /// What came of it; `None` before.
    pub outcome: Option<Result<BlobValue>>,
}

/// How records that stand near each other are read together.
#[derive(Clone, Copy, Debug)]
pub struct Coalesce {
    /// Bytes between two records that are read with them rather than apart.
    pub gap_max: u64,
    /// Bytes that are read at once; a record that is larger by itself is read alone.
    pub run_max: u64,
}

impl Default for Coalesce {
    fn default() -> Self {
        Self {
            gap_max: 4 << 10,
            run_max: 256 << 10,
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
const META_RECORD: &str = "meta record of a blob file";

/// Larger buffers are not kept: each thread has one.
const RAW_KEPT_MAX: usize = 256 << 10;

impl BlobFileReader {
    /// Opens a file of `size` bytes that was finished.
    ///
    /// # Errors
    /// `Corruption` if it is no blob file, damaged, or of another family; `NotSupported` if its
    /// values expire or its version is newer; `Io`.
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
        let header = FileHeader::decode(&bytes).map_err(at)?;
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

    /// An error at `offset` of this file.
    pub(crate) fn locate(&self, error: Error, offset: u64) -> Error {
        if error.context("file").is_some() {
            return error;
        }
        error
            .with("file", self.file.path().display())
            .with("offset", offset)
    }

    fn read_end(&mut self) -> Result<()> {
        let room = self.size - HEADER_LEN as u64;
        if room < FOOTER_LEN as u64 {
            return Err(
                Error::corruption("file is too short for a blob file").with("size", self.size)
            );
        }
        let mut bytes = [0; LOCATOR_LEN + EMPTY_VALUE_LEN_MAX + FOOTER_LEN];
        let have = room.min(bytes.len() as u64) as usize;
        let tail = &mut bytes[..have];
        self.file.read_exact_at(self.size - have as u64, tail)?;
        let (before, footer) = tail.split_last_chunk().expect("it has a footer's bytes");
        self.footer = Some(FileFooter::decode(footer)?);
        self.end = End::Plain;
        for codec in CompressionType::ALL {
            let empty = empty_value(codec).len();
            let Some(locator) = before
                .get(..before.len().saturating_sub(empty))
                .and_then(|b| b.last_chunk())
            else {
                continue;
            };
            let found = match Locator::decode(locator) {
                Ok(None) => continue,
                Ok(Some(l)) => self.tail_at(l).map_or_else(End::Lost, End::Located),
                Err(e) => End::Lost(e),
            };
            // The header has no checksum; here what it says of the codec shows.
            if empty != empty_value(self.header.codec).len() {
                return Err(Error::corruption(
                    "header of a blob file names another codec than its end",
                ));
            }
            self.end = found;
            break;
        }
        Ok(())
    }

    fn tail_at(&self, locator: Locator) -> Result<Extent> {
        let extent = Extent {
            offset: locator.offset,
            size: locator.size,
        };
        let fits = locator.offset >= HEADER_LEN as u64
            && locator.offset.checked_add(locator.size) == Some(self.size - FOOTER_LEN as u64);
        fits.then_some(extent).ok_or_else(|| {
            Error::corruption("locator of a blob file leads elsewhere than to the tail")
                .with("at", locator.offset)
                .with("size", locator.size)
        })
    }

    /// Reads the dictionary by way of the meta index.
    fn read_dictionary(&mut self) -> Result<()> {
        if self.header.version != VERSION_WITH_DICTIONARY || self.dictionary.is_some() {
            return Ok(());
        }
        let missing = || Error::corruption("blob file has no dictionary, and needs one");
        let index = self.meta_index()?;
        let extent = index
            .as_ref()
            .and_then(|index| index.named(meta::DICTIONARY).next())
            .ok_or_else(|| self.locate(missing(), 0))?;
        let raw = self.meta_record(extent, meta::DICTIONARY)?;
        let dictionary = Dictionary::new(raw).map_err(|e| self.locate(e, extent.offset))?;
        self.dictionary = Some(dictionary);
        Ok(())
    }

    /// Reads the dictionary of a file whose end is not known: it is the first record.
    fn read_first_dictionary(&mut self) -> Result<()> {
        if self.header.version != VERSION_WITH_DICTIONARY {
            return Ok(());
        }
        let mut cursor = RecordCursor::new(self, self.size, true);
        let found = cursor.find_first_meta()?;
        let dictionary = match found {
            Some((name, content)) if name == meta::DICTIONARY.as_bytes() => {
                Dictionary::new(content).map_err(|e| self.locate(e, HEADER_LEN as u64))?
            }
            _ => return Ok(()),
        };
        self.dictionary = Some(dictionary);
        Ok(())
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

    /// Where the meta records are; `None` if the file has none, as those of RocksDB.
    ///
    /// # Errors
    /// `Corruption` if they cannot be told; `Io`. Values are read all the same.
    pub fn meta_index(&self) -> Result<Option<MetaIndex>> {
        let tail = match &self.end {
            End::Open | End::Plain => return Ok(None),
            End::Lost(e) => return Err(self.locate(e.clone(), self.records_end())),
            End::Located(tail) => *tail,
        };
        let content = self.meta_record(tail, meta::TAIL)?;
        MetaIndex::decode(&content, tail)
            .map(Some)
            .map_err(|e| self.locate(e, tail.offset))
    }

    /// What the file tells of itself; `None` if it does not.
    ///
    /// # Errors
    /// As [`Self::meta_index`]; `Corruption` too if it contradicts the header or the footer.
    pub fn properties(&self) -> Result<Option<BlobFileProperties>> {
        let Some(index) = self.meta_index()? else {
            return Ok(None);
        };
        let Some(extent) = index.named(meta::PROPERTIES).next() else {
            return Ok(None);
        };
        let content = self.meta_record(extent, meta::PROPERTIES)?;
        let properties =
            BlobFileProperties::decode(&content).map_err(|e| self.locate(e, extent.offset))?;
        let same = properties.column_family_id == u64::from(self.header.column_family_id)
            && properties.compression == self.header.codec.property_name().as_bytes()
            && Some(properties.record_count) == self.record_count();
        if !same {
            let e = Error::corruption("properties of a blob file contradict its header or footer");
            return Err(self.locate(e, extent.offset));
        }
        Ok(Some(properties))
    }

    /// Where each record stands, without reading them; `None` if the file has no such index.
    ///
    /// # Errors
    /// As [`Self::properties`].
    pub fn places(&self) -> Result<Option<RecordPlaces<'_>>> {
        let (Some(index), Some(properties)) = (self.meta_index()?, self.properties()?) else {
            return Ok(None);
        };
        let blocks: Vec<Extent> = index.named(meta::RECORDS).collect();
        if blocks.is_empty() && properties.record_count > 0 {
            return Ok(None);
        }
        let (alignment, end) = (properties.alignment, index.tail.offset);
        Ok(Some(RecordPlaces::new(self, blocks, alignment, end)))
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

    /// The content of a meta record.
    pub(crate) fn meta_record(&self, extent: Extent, name: &'static str) -> Result<Vec<u8>> {
        self.read_meta(extent, name)
            .map_err(|e| self.locate(e, extent.offset).with("record", name))
    }

    fn read_meta(&self, extent: Extent, name: &'static str) -> Result<Vec<u8>> {
        let end = extent.offset.checked_add(extent.size);
        let empty = empty_value(self.header.codec);
        let body = extent
            .size
            .checked_sub((RECORD_HEADER_LEN + empty.len()) as u64)
            .filter(|_| end.is_some_and(|end| end <= self.size))
            .ok_or_else(|| Error::corruption("meta record of a blob file lies outside it"))?;
        let mut bytes = memory::zeroed(extent.size as usize, META_RECORD)?;
        self.file.read_exact_at(extent.offset, &mut bytes)?;
        let (head, rest) = bytes
            .split_first_chunk()
            .expect("it is longer than a record's head");
        let header = RecordHeader::decode(head)?;
        let (key, value) = rest.split_at(body as usize);
        if header.expiration != META_MARK
            || header.key_len != body
            || header.value_len != value.len() as u64
        {
            return Err(Error::corruption(
                "meta record of a blob file is something else",
            ));
        }
        if header.checksum != record_checksum(key, value) {
            return Err(Error::corruption(
                "meta record of a blob file has a bad checksum",
            ));
        }
        let (found, content) = meta::split_key(key)?;
        if found != name.as_bytes() {
            return Err(
                Error::corruption("meta record of a blob file has another name")
                    .with("name", found.escape_ascii()),
            );
        }
        let start = bytes.len() - value.len() - content.len();
        let end = start + content.len();
        bytes.truncate(end);
        bytes.drain(..start);
        Ok(bytes)
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
        match self.read_once(extent, user_key, verify) {
            Err(e) if e.kind() == ErrorKind::Corruption => {
                self.read_again(extent, user_key, verify)
            }
            other => other,
        }
    }

    #[cold]
    fn read_again(&self, extent: Extent, user_key: &[u8], verify: bool) -> Result<BlobValue> {
        let again = self.read_once(extent, user_key, verify);
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

    fn read_once(&self, extent: Extent, user_key: &[u8], verify: bool) -> Result<BlobValue> {
        let is_plain = self.header.codec == CompressionType::None;
        let len = extent.size as usize;
        let mut bytes = if is_plain {
            memory::with_capacity(len, RECORD)
        } else {
            let mut bytes = RAW.take();
            memory::resize(&mut bytes, len, RECORD).map(|()| bytes)
        }
        .map_err(|e| self.locate(e, extent.offset))?;
        self.count_read(extent.size);
        let timer = PerfTimer::start(PerfCounter::BlobReadTime);
        let read = if is_plain {
            self.file.append_exact_at(extent.offset, len, &mut bytes)
        } else {
            self.file.read_exact_at(extent.offset, &mut bytes)
        };
        drop(timer);
        let start = read.and_then(|()| self.check(&bytes, extent, user_key, verify))?;
        if is_plain {
            return Ok(BlobValue { bytes, start });
        }
        let value = self.expand_value(&bytes[start..], extent);
        if bytes.capacity() <= RAW_KEPT_MAX {
            RAW.set(bytes);
        }
        value
    }

    fn expand_value(&self, stored: &[u8], extent: Extent) -> Result<BlobValue> {
        self.expand(stored)
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

    /// Reads several values, those near each other together, and gives each its outcome.
    ///
    /// In any order; they are read in the order of the file. Values out of a run of several are
    /// copied out of it, so that none keeps the others in memory.
    pub fn read_many(&self, reads: &mut [BlobRead<'_>], verify: bool, coalesce: Coalesce) {
        let mut wanted: Vec<(Extent, usize)> = Vec::with_capacity(reads.len());
        for (i, read) in reads.iter_mut().enumerate() {
            match self.record_extent(read.pointer, read.user_key) {
                Ok(extent) => wanted.push((extent, i)),
                Err(e) => read.outcome = Some(Err(e)),
            }
        }
        wanted.sort_unstable();
        let mut rest = &wanted[..];
        while !rest.is_empty() {
            let (run, after) = rest.split_at(run_len(rest, coalesce));
            if run.len() < 2 || self.read_run(run, reads, verify).is_err() {
                // Read one by one, each has its own outcome.
                for &(_, i) in run {
                    let read = &mut reads[i];
                    read.outcome = Some(self.read(read.pointer, read.user_key, verify));
                }
            }
            rest = after;
        }
    }

    fn read_run(
        &self,
        run: &[(Extent, usize)],
        reads: &mut [BlobRead<'_>],
        verify: bool,
    ) -> Result<()> {
        let start = run[0].0.offset;
        let end = run.iter().map(|(e, _)| e.end()).max().unwrap_or(start);
        let mut bytes = RAW.take();
        memory::resize(&mut bytes, (end - start) as usize, RECORD)?;
        self.count_read(end - start);
        let timer = PerfTimer::start(PerfCounter::BlobReadTime);
        let read = self.file.read_exact_at(start, &mut bytes);
        drop(timer);
        if read.is_ok() {
            for &(extent, i) in run {
                let record = &bytes[(extent.offset - start) as usize..][..extent.size as usize];
                let read = &mut reads[i];
                let value = self
                    .check(record, extent, read.user_key, verify)
                    .and_then(|at| self.expand_value(&record[at..], extent));
                read.outcome = Some(match value {
                    Err(e) if e.kind() == ErrorKind::Corruption => {
                        self.read_again(extent, read.user_key, verify)
                    }
                    other => other,
                });
            }
        }
        if bytes.capacity() <= RAW_KEPT_MAX {
            RAW.set(bytes);
        }
        read
    }

    /// The largest key that a record of this file can have.
    pub(crate) fn key_len_max(&self) -> u64 {
        (KEY_SIZE_MAX as u64).min(self.size)
    }
}

/// How many of the first records are read together.
fn run_len(wanted: &[(Extent, usize)], coalesce: Coalesce) -> usize {
    let start = wanted[0].0.offset;
    let mut end = wanted[0].0.end();
    let mut len = 1;
    for (extent, _) in &wanted[1..] {
        let last = end.max(extent.end());
        if extent.offset > end.saturating_add(coalesce.gap_max) || last - start > coalesce.run_max {
            break;
        }
        end = last;
        len += 1;
    }
    len
}
