//! What the MANIFEST knows of one table, and its record.
//!
//! A record starts with a tag that says which of four generations it is; only the last is
//! written. After the fixed fields it has custom fields, each `tag | length | bytes`:
//!
//! ```text
//! level varint32 | number varint64 | size varint64 | smallest | largest   (length-prefixed keys)
//! | smallest seqno varint64 | largest seqno varint64
//! | (custom tag varint32 | length-prefixed bytes)* | 1
//! ```
//! A reader skips custom fields that it does not know, unless bit 6 of the tag is set.
//! Source: RocksDB `db/version_edit.{h,cc}` (`NewFileCustomTag`).

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use orogen_base::coding::{Decoder, put_fixed64, put_length_prefixed, put_varint32, put_varint64};
use orogen_base::key::{KIND_FOR_SEEK, TRAILER_LEN, trailer, user_key};
use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_sst::TableReader;

use super::blob_counts::BlobCounts;
use super::open_slot::OpenSlot;

/// Custom fields from here on must be understood.
const CUSTOM_MUST_UNDERSTAND: u32 = 1 << 6;

const TERMINATE: u32 = 1;
const NEED_COMPACTION: u32 = 2;
const MIN_LOG_NUMBER_TO_KEEP: u32 = 3;
const OLDEST_BLOB_FILE_NUMBER: u32 = 4;
const OLDEST_ANCESTER_TIME: u32 = 5;
const FILE_CREATION_TIME: u32 = 6;
const FILE_CHECKSUM: u32 = 7;
const FILE_CHECKSUM_FUNC_NAME: u32 = 8;
const TEMPERATURE: u32 = 9;
const MIN_TIMESTAMP: u32 = 10;
const MAX_TIMESTAMP: u32 = 11;
const UNIQUE_ID: u32 = 12;
const EPOCH_NUMBER: u32 = 13;
const COMPENSATED_RANGE_DELETION_SIZE: u32 = 14;
const TAIL_SIZE: u32 = 15;
const USER_DEFINED_TIMESTAMPS_PERSISTED: u32 = 16;
const FILE_OPEN_METADATA: u32 = 17;
const PATH_ID: u32 = CUSTOM_MUST_UNDERSTAND + 1;

/// Database paths that RocksDB knows at most.
const PATH_ID_MAX: u32 = 3;

/// How often a file is expected to be read; the numbers are RocksDB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Temperature(pub u8);

impl Temperature {
    /// Nobody said.
    pub const UNKNOWN: Self = Self(0);
    /// Read all the time.
    pub const HOT: Self = Self(0x04);
    /// Read now and then.
    pub const WARM: Self = Self(0x08);
    /// Read seldom.
    pub const COOL: Self = Self(0x0a);
    /// Kept.
    pub const COLD: Self = Self(0x0c);
    /// Kept where reading takes long.
    pub const ICE: Self = Self(0x10);
}

/// A checksum over a whole file, as a checksum generator of the user made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChecksum {
    /// The generator's name.
    pub func_name: Vec<u8>,
    /// What it computed.
    pub value: Vec<u8>,
}

impl FileChecksum {
    /// RocksDB's name of the generator of CRC32C.
    pub const CRC32C: &'static str = "FileChecksumCrc32c";

    /// As RocksDB's generator of CRC32C writes it: the checksum, unmasked, in big-endian order.
    #[must_use]
    pub fn of_crc32c(crc: u32) -> Self {
        Self {
            func_name: Self::CRC32C.as_bytes().to_vec(),
            value: crc.to_be_bytes().to_vec(),
        }
    }

    /// The CRC32C, if it is one.
    #[must_use]
    pub fn crc32c(&self) -> Option<u32> {
        let value = <[u8; 4]>::try_from(self.value.as_slice()).ok()?;
        (self.func_name == Self::CRC32C.as_bytes()).then(|| u32::from_be_bytes(value))
    }
}

/// What the MANIFEST knows of one table.
///
/// Shared as `Arc<FileMeta>` by every version that holds the file; two versions with the same
/// file hold the same `Arc`. Equality leaves [`FileMeta::being_compacted`] out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMeta {
    /// The number in its name.
    pub number: FileNo,
    /// Which of the database's paths it is in.
    pub path_id: u32,
    /// Size in bytes.
    pub size: u64,
    /// The first internal key, range tombstones included.
    pub smallest: Vec<u8>,
    /// The last internal key. A range tombstone's end is there as sequence number max and kind
    /// `RangeDeletion`: the file then ends before that user key.
    pub largest: Vec<u8>,
    /// The oldest write in it.
    pub smallest_seqno: SeqNo,
    /// The newest write in it.
    pub largest_seqno: SeqNo,
    /// Somebody asked for it to be compacted.
    pub marked_for_compaction: bool,
    /// When its oldest data was written, in seconds since 1970; 0 if not known.
    pub oldest_ancester_time: u64,
    /// When the file was made, in seconds since 1970; 0 if not known.
    pub file_creation_time: u64,
    /// Orders level 0: a flush gets the next number, a compaction output the lowest of its
    /// inputs. 0 if not known, which only a file that RocksDB before 7.10 wrote may say.
    pub epoch_number: u64,
    /// A checksum over the whole file.
    pub file_checksum: Option<FileChecksum>,
    /// The first 128 bits of the id that its properties give it; zeros if not known.
    pub unique_id: [u64; 2],
    /// How often it is expected to be read.
    pub temperature: Temperature,
    /// Bytes after its data blocks; 0 if not known.
    pub tail_size: u64,
    /// Bytes of the next level that its range tombstones are guessed to delete.
    pub compensated_range_deletion_size: u64,
    /// The oldest blob file that it points into; 0 if none.
    pub oldest_blob_file_number: FileNo,
    /// False if user-defined timestamps were stripped from its keys.
    pub user_defined_timestamps_persisted: bool,
    /// The smallest user-defined timestamp; empty if there are none.
    pub min_timestamp: Vec<u8>,
    /// The largest user-defined timestamp; empty if there are none.
    pub max_timestamp: Vec<u8>,
    /// What the file system gave to open it faster; empty if nothing.
    pub file_open_metadata: Vec<u8>,
    /// Set while a compaction reads it.
    pub being_compacted: CompactionMark,
    /// Entries, and tombstones among them, range tombstones included.
    pub counts: Known<(u64, u64)>,
    /// The codec that it was asked to be written with, under RocksDB's name.
    pub codec: Known<Box<str>>,
    /// What its pointers lead to, where it does not tell itself and was read for that.
    pub counted_pointers: Known<BlobCounts>,
    /// How far it reaches into blob files, once that is known.
    pub blob_depth: BlobDepth,
    /// Set when a part of it turned out to be damaged; no compaction takes it.
    pub damaged: CompactionMark,
    /// The open table.
    pub table: OpenSlot<TableReader>,
}

/// What is known of a file once it was written, opened or read; not in the MANIFEST, and not part of what makes
/// files equal.
#[derive(Clone, Debug)]
pub struct Known<T>(OnceLock<T>);

impl<T> Known<T> {
    /// It; `None` while nobody knows.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }

    /// Tells it; the first one to tell is believed.
    pub fn set(&self, told: T) {
        self.0.get_or_init(|| told);
    }
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> PartialEq for Known<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Known<T> {}

/// How many blob files a scan of a table reads from by turns, see
/// [`BlobReach::depth`](super::blob_reach::BlobReach::depth). Known once the file was written or opened; not in the MANIFEST, and
/// not part of what makes files equal.
#[derive(Debug)]
pub struct BlobDepth {
    told: OnceLock<u64>,
    /// The least depth that a rewrite in place was to bring it to.
    tried: AtomicU64,
    /// Left alone for the length of its values, while nobody asked for order.
    left: AtomicBool,
}

impl Default for BlobDepth {
    fn default() -> Self {
        Self {
            told: OnceLock::new(),
            tried: AtomicU64::new(u64::MAX),
            left: AtomicBool::new(false),
        }
    }
}

impl Clone for BlobDepth {
    fn clone(&self) -> Self {
        Self {
            told: self.told.clone(),
            tried: AtomicU64::new(self.tried()),
            left: AtomicBool::new(self.left.load(Acquire)),
        }
    }
}

impl PartialEq for BlobDepth {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for BlobDepth {}

impl BlobDepth {
    /// The depth; `None` while nobody knows.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        self.told.get().copied()
    }

    /// Tells it; the first one to tell is believed.
    pub fn set(&self, depth: u64) {
        self.told.get_or_init(|| depth);
    }

    /// The least depth that the table, or one that it was made of in place, was to be brought to;
    /// [`u64::MAX`] if nobody has tried.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.tried.load(Acquire)
    }

    /// Notes that it was tried to bring the table to this depth: it is not tried again.
    pub fn note_tried(&self, depth: u64) {
        self.tried.fetch_min(depth, AcqRel);
    }

    /// Notes that its values are so long that it is left as it is while nobody asks for order.
    pub fn note_left(&self) {
        self.left.store(true, Release);
    }

    /// True if the table is deeper than `max` as far as is known, and nobody has tried to change that; one that was
    /// left for its long values only where order `is_asked` for.
    #[must_use]
    pub fn is_above(&self, max: u64, is_asked: bool) -> bool {
        self.get().is_some_and(|depth| depth > max)
            && self.tried() > max
            && (is_asked || !self.left.load(Acquire))
    }
}

/// A mark on a file, such as that a compaction reads it. Not written, and not part of
/// what makes files equal.
#[derive(Debug, Default)]
pub struct CompactionMark(AtomicBool);

impl CompactionMark {
    /// True while the mark is set.
    #[must_use]
    pub fn get(&self) -> bool {
        self.0.load(Acquire)
    }

    /// Sets the mark or takes it away.
    pub fn set(&self, marked: bool) {
        self.0.store(marked, Release);
    }
}

impl Clone for CompactionMark {
    fn clone(&self) -> Self {
        Self(AtomicBool::new(self.get()))
    }
}

impl PartialEq for CompactionMark {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for CompactionMark {}

impl Default for FileMeta {
    fn default() -> Self {
        Self {
            number: 0,
            path_id: 0,
            size: 0,
            smallest: Vec::new(),
            largest: Vec::new(),
            smallest_seqno: 0,
            largest_seqno: 0,
            marked_for_compaction: false,
            oldest_ancester_time: 0,
            file_creation_time: 0,
            epoch_number: 0,
            file_checksum: None,
            unique_id: [0; 2],
            temperature: Temperature::UNKNOWN,
            tail_size: 0,
            compensated_range_deletion_size: 0,
            oldest_blob_file_number: 0,
            user_defined_timestamps_persisted: true,
            min_timestamp: Vec::new(),
            max_timestamp: Vec::new(),
            file_open_metadata: Vec::new(),
            being_compacted: CompactionMark::default(),
            counts: Known::default(),
            codec: Known::default(),
            counted_pointers: Known::default(),
            blob_depth: BlobDepth::default(),
            damaged: CompactionMark::default(),
            table: OpenSlot::default(),
        }
    }
}

impl FileMeta {
    /// True if no compaction may take it now.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.being_compacted.get() || self.damaged.get()
    }

    /// The user key of [`FileMeta::smallest`].
    ///
    /// # Panics
    /// If the file has no keys yet.
    #[inline]
    #[must_use]
    pub fn smallest_user_key(&self) -> &[u8] {
        user_key(&self.smallest)
    }

    /// The user key of [`FileMeta::largest`].
    ///
    /// # Panics
    /// If the file has no keys yet.
    #[inline]
    #[must_use]
    pub fn largest_user_key(&self) -> &[u8] {
        user_key(&self.largest)
    }

    /// Appends the record's body as the fourth generation writes it, the level before it.
    ///
    /// `min_log_number_to_keep` is a property of the edit that RocksDB repeats in its first
    /// file, for readers that do not know the tag of its own.
    pub(crate) fn encode(
        &self,
        level: usize,
        min_log_number_to_keep: Option<FileNo>,
        out: &mut Vec<u8>,
    ) {
        put_varint32(out, u32::try_from(level).expect("levels are few"));
        put_varint64(out, self.number);
        put_varint64(out, self.size);
        put_length_prefixed(out, &self.smallest);
        put_length_prefixed(out, &self.largest);
        put_varint64(out, self.smallest_seqno);
        put_varint64(out, self.largest_seqno);
        put_custom_varint(out, OLDEST_ANCESTER_TIME, self.oldest_ancester_time);
        put_custom_varint(out, FILE_CREATION_TIME, self.file_creation_time);
        if self.epoch_number != 0 {
            put_custom_varint(out, EPOCH_NUMBER, self.epoch_number);
        }
        if let Some(checksum) = &self.file_checksum {
            put_custom(out, FILE_CHECKSUM, &checksum.value);
            put_custom(out, FILE_CHECKSUM_FUNC_NAME, &checksum.func_name);
        }
        if self.path_id != 0 {
            let id = u8::try_from(self.path_id).expect("there are four paths at most");
            put_custom(out, PATH_ID, &[id]);
        }
        if self.temperature != Temperature::UNKNOWN {
            put_custom(out, TEMPERATURE, &[self.temperature.0]);
        }
        if self.marked_for_compaction {
            put_custom(out, NEED_COMPACTION, &[1]);
        }
        if let Some(number) = min_log_number_to_keep {
            put_custom(out, MIN_LOG_NUMBER_TO_KEEP, &number.to_le_bytes());
        }
        if self.oldest_blob_file_number != 0 {
            put_custom_varint(out, OLDEST_BLOB_FILE_NUMBER, self.oldest_blob_file_number);
        }
        if self.unique_id != [0; 2] {
            let mut id = Vec::with_capacity(16);
            put_fixed64(&mut id, self.unique_id[0]);
            put_fixed64(&mut id, self.unique_id[1]);
            put_custom(out, UNIQUE_ID, &id);
        }
        if self.compensated_range_deletion_size != 0 {
            let size = self.compensated_range_deletion_size;
            put_custom_varint(out, COMPENSATED_RANGE_DELETION_SIZE, size);
        }
        if self.tail_size != 0 {
            put_custom_varint(out, TAIL_SIZE, self.tail_size);
        }
        if !self.user_defined_timestamps_persisted {
            put_custom(out, USER_DEFINED_TIMESTAMPS_PERSISTED, &[0]);
        }
        for (tag, bytes) in [
            (MIN_TIMESTAMP, &self.min_timestamp),
            (MAX_TIMESTAMP, &self.max_timestamp),
            (FILE_OPEN_METADATA, &self.file_open_metadata),
        ] {
            if !bytes.is_empty() {
                put_custom(out, tag, bytes);
            }
        }
        put_varint32(out, TERMINATE);
    }

    /// Reads a record's body of the given generation after its level.
    pub(crate) fn decode(input: &mut Decoder<'_>, generation: Generation) -> Result<Decoded> {
        let mut f = Self {
            number: input.varint64("file number")?,
            ..Self::default()
        };
        if generation == Generation::Third {
            f.path_id = input.varint32("path id")?;
        }
        f.size = input.varint64("file size")?;
        f.smallest = internal_key(input, "smallest key")?;
        f.largest = internal_key(input, "largest key")?;
        if generation != Generation::First {
            f.smallest_seqno = input.varint64("smallest seqno")?;
            f.largest_seqno = input.varint64("largest seqno")?;
        }
        let mut min_log_number_to_keep = None;
        if generation == Generation::Fourth {
            f.decode_custom_fields(input, &mut min_log_number_to_keep)?;
        }
        if f.path_id > PATH_ID_MAX {
            return Err(Error::corruption("path id is too large").with("path_id", f.path_id));
        }
        Ok(Decoded {
            file: f,
            min_log_number_to_keep,
        })
    }

    fn decode_custom_fields(
        &mut self,
        input: &mut Decoder<'_>,
        min_log_number_to_keep: &mut Option<FileNo>,
    ) -> Result<()> {
        let mut checksum: Option<&[u8]> = None;
        let mut func_name: Option<&[u8]> = None;
        loop {
            let tag = input.varint32("custom field tag")?;
            if tag == TERMINATE {
                break;
            }
            let field = input.length_prefixed("custom field")?;
            let varint = |what| Decoder::new(field).varint64(what);
            match tag {
                NEED_COMPACTION => {
                    self.marked_for_compaction = one_byte(field, "need compaction")? == 1;
                }
                MIN_LOG_NUMBER_TO_KEEP => {
                    let number = Decoder::new(field).fixed64("min log number to keep")?;
                    *min_log_number_to_keep = Some(number);
                }
                OLDEST_BLOB_FILE_NUMBER => {
                    self.oldest_blob_file_number = varint("oldest blob file number")?;
                }
                OLDEST_ANCESTER_TIME => {
                    self.oldest_ancester_time = varint("oldest ancester time")?;
                }
                FILE_CREATION_TIME => self.file_creation_time = varint("file creation time")?,
                FILE_CHECKSUM => checksum = Some(field),
                FILE_CHECKSUM_FUNC_NAME => func_name = Some(field),
                TEMPERATURE => {
                    let temperature = Temperature(one_byte(field, "temperature")?);
                    if temperature <= Temperature::ICE {
                        self.temperature = temperature;
                    }
                }
                MIN_TIMESTAMP => self.min_timestamp = field.to_vec(),
                MAX_TIMESTAMP => self.max_timestamp = field.to_vec(),
                UNIQUE_ID => {
                    let mut id = Decoder::new(field);
                    self.unique_id = [id.fixed64("unique id")?, id.fixed64("unique id")?];
                }
                EPOCH_NUMBER => self.epoch_number = varint("epoch number")?,
                COMPENSATED_RANGE_DELETION_SIZE => {
                    self.compensated_range_deletion_size =
                        varint("compensated range deletion size")?;
                }
                TAIL_SIZE => self.tail_size = varint("tail size")?,
                USER_DEFINED_TIMESTAMPS_PERSISTED => {
                    self.user_defined_timestamps_persisted =
                        one_byte(field, "user-defined timestamps persisted")? == 1;
                }
                FILE_OPEN_METADATA => self.file_open_metadata = field.to_vec(),
                PATH_ID => self.path_id = u32::from(one_byte(field, "path id")?),
                unknown if unknown & CUSTOM_MUST_UNDERSTAND != 0 => {
                    return Err(
                        Error::not_supported("custom field of a table in the manifest")
                            .with("tag", unknown)
                            .with("file_number", self.number),
                    );
                }
                _ => {}
            }
        }
        if let (Some(value), Some(func_name)) = (checksum, func_name) {
            let (value, func_name) = (value.to_vec(), func_name.to_vec());
            self.file_checksum = Some(FileChecksum { func_name, value });
        }
        Ok(())
    }
}

/// Which of the four records of a file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// LevelDB's: no sequence numbers.
    First,
    /// With sequence numbers.
    Second,
    /// With a path as well.
    Third,
    /// With custom fields.
    Fourth,
}

/// A file's record taken apart.
pub(crate) struct Decoded {
    /// The file.
    pub(crate) file: FileMeta,
    /// A property of the whole edit that stands in the file's record.
    pub(crate) min_log_number_to_keep: Option<FileNo>,
}

/// Reads the internal key at which a file starts or ends.
///
/// Its kind may be none of an entry: where RocksDB cuts a range tombstone it writes one above
/// all that it knows, which is another number in each of its versions.
pub(crate) fn internal_key(input: &mut Decoder<'_>, what: &'static str) -> Result<Vec<u8>> {
    let key = input.length_prefixed(what)?;
    if key.len() < TRAILER_LEN || trailer(key) as u8 > KIND_FOR_SEEK {
        return Err(Error::corruption("bound of a file is no internal key")
            .with("field", what)
            .with("len", key.len()));
    }
    Ok(key.to_vec())
}

fn one_byte(field: &[u8], what: &'static str) -> Result<u8> {
    match field {
        [b] => Ok(*b),
        _ => Err(Error::corruption("custom field has the wrong size")
            .with("field", what)
            .with("size", field.len())),
    }
}

fn put_custom(out: &mut Vec<u8>, tag: u32, bytes: &[u8]) {
    put_varint32(out, tag);
    put_length_prefixed(out, bytes);
}

fn put_custom_varint(out: &mut Vec<u8>, tag: u32, v: u64) {
    let mut bytes = Vec::with_capacity(10);
    put_varint64(&mut bytes, v);
    put_custom(out, tag, &bytes);
}
