//! The end of a file, and what it leads to: meta records.

use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_codec::{CompressionType, Dictionary};

use super::{BlobFileReader, End};
use crate::cursor::RecordCursor;
use crate::format::{
    EMPTY_VALUE_LEN_MAX, FOOTER_LEN, FileFooter, HEADER_LEN, LOCATOR_LEN, Locator, META_MARK,
    RECORD_HEADER_LEN, RecordHeader, VERSION_WITH_DICTIONARY, empty_value, record_checksum,
};
use crate::meta::{self, BlobFileProperties, Extent, MetaIndex};
use crate::places::RecordPlaces;

/// What memory is asked for.
const META_RECORD: &str = "meta record of a blob file";

impl BlobFileReader {
    pub(super) fn read_end(&mut self) -> Result<()> {
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
    pub(super) fn read_dictionary(&mut self) -> Result<()> {
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
    pub(super) fn read_first_dictionary(&mut self) -> Result<()> {
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

    /// True if nothing leads to meta records: the file is one of RocksDB, or has lost what did.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        matches!(self.end, End::Open | End::Plain)
    }

    /// Looks whether the end leads to meta records, where a MANIFEST says that padding and meta records take `overhead_bytes`.
    ///
    /// # Errors
    /// `Corruption` if they are more than 0 and it does not.
    pub fn check_end(&self, overhead_bytes: u64) -> Result<()> {
        if overhead_bytes == 0 || !self.is_plain() {
            return Ok(());
        }
        let error = Error::corruption("end of a blob file does not lead to its meta records");
        let error = error.with("overhead_bytes", overhead_bytes);
        Err(self.locate(error, self.records_end()))
    }

    /// As [`Self::check_end`], and whether the header, which has no checksum, says what the properties say.
    ///
    /// # Errors
    /// `Corruption` if not; `Io`.
    pub fn check_meta(&self, overhead_bytes: u64) -> Result<()> {
        self.check_end(overhead_bytes)?;
        match self.properties() {
            Err(e) if e.kind() == ErrorKind::NotSupported => Ok(()),
            told => told.map(drop),
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
}
