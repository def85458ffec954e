//! Writes a blob file: values with their user keys go in, pointers come out at once, and at the
//! end a synced file.
//!
//! A flush, a compaction and a job that moves values each own builders; one builder is one
//! thread's. Keys may come in any order. Invariants: (1) the same records under the same options
//! give the same bytes; (2) nothing is read back; (3) memory is bounded whatever the file's size.
//! Every value is stored with the file's codec, also where it does not shrink: readers compare
//! the codec of a pointer with the file's. `Hot path`: `add` allocates nothing once its buffers
//! have grown. Source: RocksDB `db/blob/blob_file_builder.cc`, `blob_log_writer.cc`.

use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::checksum::crc32c_extend;
use orogen_base::limits::{KEY_SIZE_MAX, VALUE_SIZE_MAX};
use orogen_base::{Error, FileNo, Result, UserComparator, memory};
use orogen_codec::{
    COMPRESSED_SIZE_MAX, CompressionOptions, CompressionType, Compressor, decompressed_len,
};
use orogen_env::WritableFile;

use crate::format::{
    FOOTER_LEN, FileFooter, FileHeader, HEADER_LEN, RECORD_HEADER_LEN, RecordHeader, VERSION,
    VERSION_WITH_DICTIONARY, align_up,
};
use crate::meta::{self, BlobFileProperties, Extent, MetaIndex};
use crate::places::{self, PlacesBuilder, RecordPlace};
use crate::pointer::BlobPointer;
use crate::reader::BlobFileReader;

/// Bytes gathered before the file is asked to append them.
const WRITE_BUFFER_LEN: usize = 1 << 20;

/// A part of a record with so many bytes is not gathered, which would copy it, but appended.
const DIRECT_LEN: usize = 128 << 10;

/// What memory is asked for.
const WRITE_BUFFER: &str = "blob file write buffer";
const USER_KEY: &str = "bounds of a blob file";

/// The largest alignment.
pub const ALIGNMENT_MAX: u32 = 1 << 20;

/// What a blob file is written with.
#[derive(Clone, Default)]
pub struct BlobFileBuilderOptions {
    /// The file's number, which pointers hold.
    pub file_number: FileNo,
    /// The codec of all values.
    pub compression: CompressionType,
    /// Level and checksum of the codec; the rest is for blocks.
    pub compression_options: CompressionOptions,
    /// A dictionary for zstd, such as [`orogen_codec::make_dictionary`] gives. RocksDB refuses
    /// files that have one. Default none.
    pub dictionary: Option<Arc<[u8]>>,
    /// Records begin at multiples of so many bytes, up to [`ALIGNMENT_MAX`]; 0 for anywhere.
    pub alignment: u32,
    /// The order of user keys, by which the smallest and the largest are found.
    pub comparator: UserComparator,
    /// In the header, where RocksDB compares it.
    pub column_family_id: u32,
    /// Recorded.
    pub column_family_name: String,
    /// Seconds since 1970, recorded.
    pub creation_time: u64,
    /// Recorded.
    pub db_id: String,
    /// Recorded.
    pub db_session_id: String,
    /// Computes a checksum over the whole file.
    pub file_checksum: bool,
    /// Bytes that are gathered before the file gets them, of which no more than twice are held; 0, the
    /// default: 1 MiB, or twice that now and then.
    pub write_buffer_len: usize,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct BlobFileSummary {
    /// The file's number.
    pub file_number: FileNo,
    /// Bytes of the file.
    pub file_size: u64,
    /// Records, as the MANIFEST counts them.
    pub total_blob_count: u64,
    /// Bytes of these records, as the MANIFEST counts them: no header, footer, padding or meta
    /// record.
    pub total_blob_bytes: u64,
    /// As they stand in the file.
    pub properties: BlobFileProperties,
    /// CRC32C over the whole file, if it was asked for.
    pub file_checksum: Option<u32>,
}

impl BlobFileSummary {
    /// Bytes between header and footer that are in no counted record: meta records and padding.
    #[must_use]
    pub fn overhead_bytes(&self) -> u64 {
        let ends = (HEADER_LEN + FOOTER_LEN) as u64;
        self.file_size.saturating_sub(ends + self.total_blob_bytes)
    }
}

/// Writes one blob file.
pub struct BlobFileBuilder {
    file: Box<dyn WritableFile>,
    header: FileHeader,
    file_number: FileNo,
    alignment: u64,
    comparator: UserComparator,
    compressor: Option<Compressor>,
    /// A value on its way from the codec to the file.
    stored: Vec<u8>,
    buffer: Vec<u8>,
    /// Bytes of the buffer at which the file gets them.
    buffer_len: usize,
    /// Bytes so far, those in the buffer included.
    offset: u64,
    places: PlacesBuilder,
    index: MetaIndex,
    properties: BlobFileProperties,
    file_checksum: Option<u32>,
}

impl BlobFileBuilder {
    /// A builder that writes to `file`, which is empty.
    ///
    /// # Errors
    /// `InvalidArgument` if the options do not go together; `NotSupported` for a codec that is not
    /// written; `Io` or `NoSpace`.
    pub fn new(file: Box<dyn WritableFile>, options: BlobFileBuilderOptions) -> Result<Self> {
        let codec = options.compression;
        let dictionary = options.dictionary.as_deref().filter(|d| !d.is_empty());
        if dictionary.is_some() && codec != CompressionType::Zstd {
            return Err(Error::invalid_argument(
                "a dictionary of a blob file is for zstd only",
            ));
        }
        if options.alignment > ALIGNMENT_MAX {
            return Err(
                Error::invalid_argument("alignment of a blob file is too large")
                    .with("alignment", options.alignment),
            );
        }
        if options.file_number == 0 {
            return Err(Error::invalid_argument("a blob file has a number above 0"));
        }
        let compressor = match codec {
            CompressionType::None => None,
            _ => Some(Compressor::new(
                codec,
                &options.compression_options,
                dictionary.unwrap_or_default(),
            )?),
        };
        let properties = BlobFileProperties {
            alignment: u64::from(options.alignment),
            column_family_id: u64::from(options.column_family_id),
            column_family_name: options.column_family_name.into_bytes(),
            comparator: options.comparator.name().as_bytes().to_vec(),
            compression: codec.property_name().as_bytes().to_vec(),
            creation_time: options.creation_time,
            db_id: options.db_id.into_bytes(),
            db_session_id: options.db_session_id.into_bytes(),
            file_number: options.file_number,
            writer: concat!("orogen ", env!("CARGO_PKG_VERSION")).into(),
            ..BlobFileProperties::default()
        };
        let (buffer, buffer_len) = match options.write_buffer_len {
            0 => (Vec::new(), WRITE_BUFFER_LEN),
            len => (memory::with_capacity(2 * len, WRITE_BUFFER)?, len),
        };
        let mut this = Self {
            file,
            header: FileHeader {
                version: match dictionary {
                    Some(_) => VERSION_WITH_DICTIONARY,
                    None => VERSION,
                },
                column_family_id: options.column_family_id,
                codec,
            },
            file_number: options.file_number,
            alignment: u64::from(options.alignment),
            comparator: options.comparator,
            compressor,
            stored: Vec::new(),
            buffer,
            buffer_len,
            offset: 0,
            places: PlacesBuilder::default(),
            index: MetaIndex::default(),
            properties,
            file_checksum: options.file_checksum.then_some(0),
        };
        let mut header = Vec::new();
        this.header.encode(&mut header);
        this.append(&header)?;
        if let Some(dictionary) = dictionary {
            this.add_meta(meta::DICTIONARY, dictionary)?;
        }
        Ok(this)
    }

    /// The largest value that a file of this codec takes; larger ones have to stay with their keys.
    #[must_use]
    pub fn value_size_max(codec: CompressionType) -> usize {
        match codec {
            CompressionType::None => VALUE_SIZE_MAX,
            _ => COMPRESSED_SIZE_MAX,
        }
    }

    /// Adds a value.
    ///
    /// # Errors
    /// `InvalidArgument` for a value or key that is too large ([`Self::value_size_max`]), which
    /// leaves the file as it was; `Io` or `NoSpace`, after which the file is to be given up.
    pub fn add(&mut self, user_key: &[u8], value: &[u8]) -> Result<BlobPointer> {
        if value.len() > Self::value_size_max(self.header.codec) || user_key.len() > KEY_SIZE_MAX {
            return Err(
                Error::invalid_argument("record is too large for a blob file")
                    .with("key_size", user_key.len())
                    .with("value_size", value.len()),
            );
        }
        let Some(compressor) = &mut self.compressor else {
            return self.add_record(user_key, value, value.len() as u64);
        };
        let mut stored = std::mem::take(&mut self.stored);
        let added = match compressor.compress_always(value, &mut stored) {
            Ok(()) => self.add_record(user_key, &stored, value.len() as u64),
            Err(e) => Err(e),
        };
        if stored.capacity() <= 2 * self.buffer_len {
            self.stored = stored;
        }
        added
    }

    /// True if values as that file stores them can be passed on as they are: both files have the
    /// same codec and neither has a dictionary.
    #[must_use]
    pub fn takes_stored_of(&self, from: &BlobFileReader) -> bool {
        let header = from.header();
        let ours = (self.header.codec, self.header.version);
        ours == (header.codec, header.version) && header.version == VERSION
    }

    /// Adds a value as that other file has stored it, without decompressing it.
    ///
    /// One that the codec does not understand is added, too: its record's checksum held, so it is what
    /// was once written, and who reads it is told here as there.
    ///
    /// # Errors
    /// As [`Self::add`]; `InvalidArgument` unless [`Self::takes_stored_of`].
    pub fn add_stored(
        &mut self,
        user_key: &[u8],
        stored: &[u8],
        from: &BlobFileReader,
    ) -> Result<BlobPointer> {
        if !self.takes_stored_of(from) {
            return Err(Error::invalid_argument(
                "value of a blob file is stored in another way than this file does",
            ));
        }
        let raw_len = decompressed_len(self.header.codec, stored).unwrap_or(stored.len() as u64);
        if stored.len() > VALUE_SIZE_MAX || user_key.len() > KEY_SIZE_MAX {
            return Err(
                Error::invalid_argument("record is too large for a blob file")
                    .with("key_size", user_key.len())
                    .with("value_size", stored.len()),
            );
        }
        self.add_record(user_key, stored, raw_len)
    }

    /// Records so far.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.properties.record_count
    }

    /// Bytes of the file so far, without what [`Self::finish`] adds.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.offset
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.buffer.capacity() + self.stored.capacity() + self.places.memory_usage()
    }

    /// Writes what stands behind the records, and syncs the file.
    ///
    /// # Errors
    /// `Io` or `NoSpace`.
    pub fn finish(mut self) -> Result<BlobFileSummary> {
        self.write_places()?;
        let properties = self.properties.encode()?;
        self.add_meta(meta::PROPERTIES, &properties)?;
        self.pad()?;
        let mut content = Vec::new();
        self.index
            .encode(self.offset, self.header.codec, &mut content)?;
        let mut tail = Vec::new();
        meta::encode_record(meta::TAIL, &content, self.header.codec, &mut tail)?;
        FileFooter {
            records: self.properties.record_count,
        }
        .encode(&mut tail);
        self.append(&tail)?;
        self.flush()?;
        self.file.sync()?;
        Ok(BlobFileSummary {
            file_number: self.file_number,
            file_size: self.offset,
            total_blob_count: self.properties.record_count,
            total_blob_bytes: self.properties.record_bytes,
            properties: self.properties,
            file_checksum: self.file_checksum,
        })
    }

    fn add_record(&mut self, user_key: &[u8], stored: &[u8], raw_len: u64) -> Result<BlobPointer> {
        self.pad()?;
        let place = RecordPlace {
            offset: self.offset,
            key_len: user_key.len() as u64,
            value_len: stored.len() as u64,
        };
        if self.places.len() + places::entry_len(&place) > places::BLOCK_LEN {
            self.write_places()?;
            return self.add_record(user_key, stored, raw_len);
        }
        let header = RecordHeader::new(user_key, stored, 0).encode();
        self.append(&header)?;
        self.append(user_key)?;
        self.append(stored)?;
        self.places.add(place)?;
        self.note(user_key, stored.len() as u64, raw_len)?;
        Ok(BlobPointer {
            file: self.file_number,
            offset: place.value_offset(),
            size: place.value_len,
            codec: self.header.codec,
        })
    }

    fn note(&mut self, user_key: &[u8], stored_len: u64, raw_len: u64) -> Result<()> {
        let p = &mut self.properties;
        let set = |to: &mut Vec<u8>| {
            to.clear();
            memory::append(to, user_key, USER_KEY)
        };
        if p.record_count == 0 {
            set(&mut p.smallest_key)?;
            set(&mut p.largest_key)?;
        } else {
            match self.comparator.compare(user_key, &p.largest_key) {
                Ordering::Greater => set(&mut p.largest_key)?,
                Ordering::Equal => {}
                Ordering::Less => {
                    if self.comparator.less(user_key, &p.smallest_key) {
                        set(&mut p.smallest_key)?;
                    }
                }
            }
        }
        p.record_count += 1;
        p.record_bytes += (RECORD_HEADER_LEN + user_key.len()) as u64 + stored_len;
        p.raw_key_size += user_key.len() as u64;
        p.raw_value_size += raw_len;
        Ok(())
    }

    fn write_places(&mut self) -> Result<()> {
        if self.places.is_empty() {
            return Ok(());
        }
        let block = self.places.take()?;
        self.add_meta(meta::RECORDS, &block)
    }

    fn add_meta(&mut self, name: &'static str, content: &[u8]) -> Result<()> {
        self.pad()?;
        let offset = self.offset;
        let mut record = Vec::new();
        meta::encode_record(name, content, self.header.codec, &mut record)?;
        self.append(&record)?;
        let size = record.len() as u64;
        self.index.push(name, Extent { offset, size });
        Ok(())
    }

    fn pad(&mut self) -> Result<()> {
        let next = align_up(self.offset, self.alignment);
        let zeros = (next - self.offset) as usize;
        if zeros > 0 {
            let len = self.buffer.len() + zeros;
            memory::resize(&mut self.buffer, len, WRITE_BUFFER)?;
            self.offset = next;
        }
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.offset += bytes.len() as u64;
        if bytes.len() >= DIRECT_LEN.min(self.buffer_len) {
            self.flush()?;
            return Self::write(&mut *self.file, &mut self.file_checksum, bytes);
        }
        memory::append(&mut self.buffer, bytes, WRITE_BUFFER)?;
        if self.buffer.len() >= self.buffer_len {
            self.flush_whole()?;
        }
        Ok(())
    }

    /// Writes what is there up to the last multiple of a buffer's length in the file. Linux then
    /// keeps a file in folios of that length: fewer to find for each read than those of lengths
    /// that begin and end anywhere.
    fn flush_whole(&mut self) -> Result<()> {
        let unit = 1_u64 << self.buffer_len.ilog2();
        let rest = (self.offset % unit) as usize;
        let whole = self.buffer.len() - rest;
        Self::write(
            &mut *self.file,
            &mut self.file_checksum,
            &self.buffer[..whole],
        )?;
        self.buffer.copy_within(whole.., 0);
        self.buffer.truncate(rest);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            Self::write(&mut *self.file, &mut self.file_checksum, &self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn write(file: &mut dyn WritableFile, sum: &mut Option<u32>, bytes: &[u8]) -> Result<()> {
        file.append(bytes)?;
        if let Some(sum) = sum {
            *sum = crc32c_extend(*sum, bytes);
        }
        Ok(())
    }
}
