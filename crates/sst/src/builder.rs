//! Writes a table: entries in rising order go in, a synced file comes out.
//!
//! A flush, a compaction and a bulk load each own builders; one builder is one thread's.
//! Invariants: (1) keys rise, which every `add` checks; (2) the same entries under the same
//! options give the same bytes; (3) nothing is read back. With a dictionary the data blocks are
//! held until the dictionary is made, then written. Memory is reserved where that is asked for,
//! looked at for each data block. `Hot path`: `add` allocates nothing once
//! its buffers have grown. Source: RocksDB `table/block_based/block_based_table_builder.cc`.

mod index;
mod filter;
#[cfg(test)]
pub(crate) use filter::tests::AS_ROCKSDB_BEFORE_9_8;
mod output;
mod finish;

use std::cmp::Ordering;
use std::sync::Arc;

use orogen_base::key::{TRAILER_LEN, append_internal_key, seqno_of, user_key};
use orogen_base::limits::BLOCK_SIZE_MAX;
use orogen_base::{
    Error, FileNo, Result, SeqNo, SliceTransform, UserComparator, ValueKind, memory,
};
use orogen_cache::Reservation;
use orogen_env::WritableFile;

use crate::BlockCache;
use crate::block::{Block, BlockBuilder, BlockCursor, KeyOrder, compare_internal};
use crate::filter::hash64;
use crate::options::BlockBasedOptions;
use crate::properties::TableProperties;
use filter::TableFilter;
use index::IndexBuilder;
use orogen_codec::{CompressionOptions, CompressionType, Compressor, Dictionary, make_dictionary};
use output::{DataBlocks, Output, WRITE_BUFFER_LEN, WRITE_BUFFER_LEN_MIN, WRITE_BUFFER_PART};

/// The meta index's name of the properties.
pub(crate) const PROPERTIES_BLOCK: &str = "rocksdb.properties";
/// The meta index's name of the index, in formats 6 and later.
pub(crate) const INDEX_BLOCK: &str = "rocksdb.index";
/// The meta index's name of the compression dictionary.
pub(crate) const DICTIONARY_BLOCK: &str = "rocksdb.compression_dict";
/// The meta index's name of the range tombstones.
pub(crate) const RANGE_DEL_BLOCK: &str = "rocksdb.range_del";

/// Everything that a table is written with.
#[derive(Clone, Default)]
pub struct TableBuilderOptions {
    /// Layout.
    pub table: BlockBasedOptions,
    /// The codec of data blocks, and of index blocks if they are compressed.
    pub compression: CompressionType,
    /// The codec's options.
    pub compression_options: CompressionOptions,
    /// The order of user keys.
    pub comparator: UserComparator,
    /// Puts prefixes into the filter.
    pub prefix_extractor: Option<Arc<dyn SliceTransform>>,
    /// Recorded; empty stands for none.
    pub merge_operator_name: String,
    /// Names of the property collectors, recorded.
    pub property_collectors: Vec<String>,
    /// Recorded.
    pub column_family_id: u32,
    /// Recorded.
    pub column_family_name: String,
    /// The file's number, recorded; with the session it makes the table's identity.
    pub file_number: FileNo,
    /// Recorded.
    pub db_id: String,
    /// Recorded.
    pub db_session_id: String,
    /// Recorded.
    pub db_host_id: String,
    /// Seconds since 1970 of the oldest input, recorded.
    pub creation_time: u64,
    /// Seconds since 1970 of the oldest key, recorded.
    pub oldest_key_time: u64,
    /// Seconds since 1970, recorded.
    pub file_creation_time: u64,
    /// All operations up to this sequence number are in tables; recorded where the entries do not
    /// tell.
    pub sequence_covered: SeqNo,
    /// Computes a checksum over the whole file.
    pub file_checksum: bool,
    /// Reserves the builder's memory beside this cache, which gives way; `None`: nowhere.
    pub reserve_in: Option<Arc<BlockCache>>,
}

/// What was written.
#[derive(Clone, Debug)]
pub struct TableSummary {
    /// Bytes of the file.
    pub file_size: u64,
    /// Bytes behind the data blocks, which a reader wants first.
    pub tail_size: u64,
    /// As they stand in the table.
    pub properties: TableProperties,
    /// The smallest internal key, starts of range tombstones included.
    pub smallest: Option<Vec<u8>>,
    /// The largest internal key; the end of a range tombstone stands with the largest sequence
    /// number, since the end itself is not deleted.
    pub largest: Option<Vec<u8>>,
    /// Smallest sequence number of all entries, 0 without any.
    pub smallest_seqno: SeqNo,
    /// Largest sequence number of all entries, 0 without any.
    pub largest_seqno: SeqNo,
    /// CRC32C over the whole file, if it was asked for.
    pub file_checksum: Option<u32>,
}

struct RangeTombstoneEntry {
    key: Vec<u8>,
    end: Vec<u8>,
}

/// Data blocks that wait for the dictionary.
struct Held {
    blocks: Vec<Vec<u8>>,
    bytes: u64,
}

/// Bytes of key and value of an entry: what a block takes beside them is less than the rest.
const ENTRY_SIZE_MAX: usize = BLOCK_SIZE_MAX - 64;

/// What memory is asked for.
const HELD: &str = "blocks that wait for a dictionary";

/// The reservation follows the memory in steps of so many bytes.
const RESERVED_STEP: usize = 64 << 10;

/// Writes one table.
pub struct TableBuilder {
    options: TableBuilderOptions,
    blocks: DataBlocks,
    data: BlockBuilder,
    filter: Option<TableFilter>,
    index_compressor: Option<Compressor>,
    dictionary: Vec<u8>,
    held: Option<Held>,
    last_key: Vec<u8>,
    first_key: Vec<u8>,
    range_tombstones: Vec<RangeTombstoneEntry>,
    /// Of their keys.
    tombstone_bytes: usize,
    properties: TableProperties,
    seqnos: Option<(SeqNo, SeqNo)>,
    block_size_min: usize,
    reservation: Option<Reservation<Block>>,
}

impl TableBuilder {
    /// A builder that writes to `file`, which is empty.
    ///
    /// # Errors
    /// `InvalidArgument` for options that cannot be written; `NotSupported` for a codec that is
    /// only read.
    pub fn new(file: Box<dyn WritableFile>, options: TableBuilderOptions) -> Result<Self> {
        let table = &options.table;
        table.validate()?;
        let kind = options.compression;
        let compressor = || match kind {
            CompressionType::None => Ok(None),
            _ => Compressor::new(kind, &options.compression_options, &[]).map(Some),
        };
        let with_dictionary =
            kind == CompressionType::Zstd && options.compression_options.max_dict_bytes > 0;
        let filter = (table.filter_bits_per_key > 0.0
            && (table.whole_key_filtering || options.prefix_extractor.is_some()))
        .then(|| TableFilter::new(table));
        let deviation = 100 - usize::from(table.block_size_deviation.min(100));
        let base_context_checksum = if table.format_version >= 6 {
            // Files of one session differ in their numbers; 0 would switch the context off.
            let mut identity = options.db_session_id.clone().into_bytes();
            identity.extend_from_slice(&options.file_number.to_le_bytes());
            (hash64(&identity) as u32).max(1)
        } else {
            0
        };
        let account = options.reserve_in.as_ref();
        let write_buffer_len = account.map_or(WRITE_BUFFER_LEN, |cache| {
            (cache.capacity() / WRITE_BUFFER_PART).clamp(WRITE_BUFFER_LEN_MIN, WRITE_BUFFER_LEN)
        });
        let reservation = account.map(|cache| {
            let mut reservation = Reservation::new(cache.clone());
            reservation.set(write_buffer_len);
            reservation
        });
        let mut out = Output::new(
            file,
            table.checksum,
            base_context_checksum,
            write_buffer_len,
        )?;
        out.file_checksum = options.file_checksum.then_some(0);
        Ok(Self {
            reservation,
            blocks: DataBlocks {
                out,
                index: IndexBuilder::new(table),
                order: options.comparator.clone(),
                compressor: compressor()?,
                max_per_kb: options.compression_options.max_compressed_bytes_per_kb,
                verify: table.verify_compression.then_some(None),
                count: 0,
                rejected: 0,
            },
            data: BlockBuilder::new(table.block_restart_interval, false),
            filter,
            index_compressor: if table.enable_index_compression {
                compressor()?
            } else {
                None
            },
            dictionary: Vec::new(),
            held: with_dictionary.then(|| Held {
                blocks: Vec::new(),
                bytes: 0,
            }),
            last_key: Vec::new(),
            first_key: Vec::new(),
            range_tombstones: Vec::new(),
            tombstone_bytes: 0,
            properties: TableProperties::default(),
            seqnos: None,
            block_size_min: (table.block_size * deviation).div_ceil(100),
            options,
        })
    }

    /// Adds an entry that is after all entries so far.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not, or is too large; `NoSpace` or `Io` from the file. The
    /// builder must then be abandoned.
    pub fn add(&mut self, internal_key: &[u8], value: &[u8]) -> Result<()> {
        let kind = match internal_key.len().checked_sub(TRAILER_LEN) {
            Some(at) if u32::try_from(internal_key.len()).is_ok() => internal_key[at],
            _ => return Err(bad_input("internal key has a bad length", internal_key)),
        };
        if internal_key.len() + value.len() > ENTRY_SIZE_MAX {
            return Err(bad_input("entry is too large", internal_key));
        }
        if !self.last_key.is_empty() {
            let order = &self.options.comparator;
            if compare_internal(order, &self.last_key, internal_key) != Ordering::Less {
                return Err(bad_input("key is not after the key before", internal_key));
            }
            if self.is_block_full(internal_key, value) {
                self.flush_block(Some(internal_key))?;
            }
        } else {
            self.first_key.extend_from_slice(internal_key);
        }
        match ValueKind::from_u8(kind) {
            Some(ValueKind::Value | ValueKind::BlobIndex) => {}
            Some(ValueKind::Deletion | ValueKind::SingleDeletion) => {
                self.properties.num_deletions += 1;
            }
            Some(ValueKind::Merge) => self.properties.num_merge_operands += 1,
            Some(ValueKind::RangeDeletion) | None => {
                return Err(bad_input(
                    "key is of a kind that does not stand here",
                    internal_key,
                ));
            }
        }
        if self.held.is_none() {
            self.add_to_filter(user_key(internal_key))?;
        }
        self.data.add(internal_key, value)?;
        self.last_key.clear();
        memory::append(&mut self.last_key, internal_key, "key")?;
        self.count(internal_key, value.len());
        Ok(())
    }

    #[inline]
    fn count(&mut self, internal_key: &[u8], value_len: usize) {
        let p = &mut self.properties;
        p.num_entries += 1;
        p.raw_key_size += internal_key.len() as u64;
        p.raw_value_size += value_len as u64;
        let seqno = seqno_of(internal_key);
        self.seqnos = Some(match self.seqnos {
            Some((low, high)) => (low.min(seqno), high.max(seqno)),
            None => (seqno, seqno),
        });
    }

    /// Adds a range tombstone over `[start, end)`; they may come in any order, between entries.
    ///
    /// # Errors
    /// `InvalidArgument` if a key is too long.
    pub fn add_range_tombstone(&mut self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()> {
        if start.len().max(end.len()) > orogen_base::limits::KEY_SIZE_MAX {
            return Err(bad_input("range tombstone is too large", &[]));
        }
        let mut key = Vec::with_capacity(start.len() + TRAILER_LEN);
        append_internal_key(&mut key, start, seqno, ValueKind::RangeDeletion);
        memory::reserve(&mut self.range_tombstones, 1, "range tombstones")?;
        self.count(&key, end.len());
        self.properties.num_deletions += 1;
        self.properties.num_range_deletions += 1;
        self.tombstone_bytes += key.len() + end.len();
        self.range_tombstones.push(RangeTombstoneEntry {
            key,
            end: end.to_vec(),
        });
        Ok(())
    }

    #[inline]
    fn is_block_full(&self, key: &[u8], value: &[u8]) -> bool {
        if self.data.is_empty() {
            return false;
        }
        let (size, limit) = (self.data.size(), self.options.table.block_size);
        size >= limit
            || (size > self.block_size_min && self.data.size_after(key, value) > limit)
            || size + key.len() + value.len() > ENTRY_SIZE_MAX
    }

    #[inline]
    fn add_to_filter(&mut self, key: &[u8]) -> Result<()> {
        match &mut self.filter {
            Some(filter) => filter.add(key, self.options.prefix_extractor.as_deref()),
            None => Ok(()),
        }
    }

    /// Ends the data block; `next_key` is the first key after it.
    fn flush_block(&mut self, next_key: Option<&[u8]>) -> Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        self.reserve(0);
        if let Some(held) = &mut self.held {
            let block = memory::copied(self.data.finish(), HELD)?;
            self.data.reset();
            held.bytes += block.len() as u64;
            memory::push(&mut held.blocks, block, HELD)?;
            let limit = self.options.compression_options.max_dict_buffer_bytes;
            if limit != 0 && held.bytes > limit {
                self.release_held(next_key)?;
            }
            return Ok(());
        }
        self.blocks
            .write(self.data.finish(), &self.last_key, next_key)?;
        self.data.reset();
        Ok(())
    }

    /// Has as much reserved as is used, and `more` bytes that will be.
    fn reserve(&mut self, more: usize) {
        if self.reservation.is_none() {
            return;
        }
        let used = self.memory_usage() + more;
        if let Some(reservation) = &mut self.reservation
            && (used > reservation.bytes() || used + 2 * RESERVED_STEP < reservation.bytes())
        {
            reservation.set(used.next_multiple_of(RESERVED_STEP));
        }
    }

    /// Bytes of memory held, about; what codecs keep is not known.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        let held = self.held.as_ref().map_or(0, |h| h.bytes as usize);
        let tombstones = self.range_tombstones.capacity() * size_of::<RangeTombstoneEntry>();
        self.blocks.out.memory_usage()
            + self.blocks.index.memory_usage()
            + self.filter.as_ref().map_or(0, TableFilter::memory_usage)
            + self.data.memory_usage()
            + self.dictionary.capacity()
            + held
            + tombstones
            + self.tombstone_bytes
            + self.last_key.capacity()
            + self.first_key.capacity()
    }

    /// Makes the dictionary out of the held blocks and writes them.
    fn release_held(&mut self, next_key: Option<&[u8]>) -> Result<()> {
        let Some(held) = self.held.take() else {
            return Ok(());
        };
        if held.blocks.is_empty() {
            return Ok(());
        }
        let options = self.options.compression_options;
        self.dictionary = make_dictionary(&held.blocks, &options)?;
        if !self.dictionary.is_empty() {
            self.blocks.compressor = Some(Compressor::new(
                CompressionType::Zstd,
                &options,
                &self.dictionary,
            )?);
            if let Some(verify) = &mut self.blocks.verify {
                *verify = Some(Dictionary::new(memory::copied(&self.dictionary, HELD)?)?);
            }
        }
        let order = KeyOrder::Internal(self.options.comparator.clone());
        let mut blocks = held.blocks.into_iter().peekable();
        let mut cursor = BlockCursor::new();
        while let Some(bytes) = blocks.next() {
            let block = Block::new(bytes)?;
            let mut last_key = Vec::new();
            let mut on = cursor.seek_to_first(&block, &order)?;
            while on {
                self.add_to_filter(user_key(cursor.key()))?;
                last_key.clear();
                last_key.extend_from_slice(cursor.key());
                on = cursor.next(&block, &order)?;
            }
            let following = match blocks.peek() {
                Some(next) => {
                    let next = Block::new(memory::copied(next, HELD)?)?;
                    cursor.seek_to_first(&next, &order)?;
                    Some(cursor.key().to_vec())
                }
                None => next_key.map(<[u8]>::to_vec),
            };
            self.blocks
                .write(block.bytes(), &last_key, following.as_deref())?;
        }
        Ok(())
    }

    /// Bytes that the file would have if it were finished now, about.
    #[must_use]
    pub fn estimated_file_size(&self) -> u64 {
        let held = self.held.as_ref().map_or(0, |h| h.bytes);
        let tail = self.blocks.index.size() + self.filter.as_ref().map_or(0, TableFilter::size);
        self.blocks.out.offset() + held + self.data.size() as u64 + tail as u64
    }

    /// Bytes of finished data blocks; grows by whole blocks.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.blocks.out.offset() + self.held.as_ref().map_or(0, |h| h.bytes)
    }

    /// Entries and range tombstones so far.
    #[must_use]
    pub fn num_entries(&self) -> u64 {
        self.properties.num_entries
    }

    /// True if nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.properties.num_entries == 0
    }

    /// Gives up; the file keeps what was appended so far, and is no table.
    pub fn abandon(self) {
        drop(self);
    }
}

#[cold]
fn bad_input(message: &'static str, internal_key: &[u8]) -> Error {
    Error::invalid_argument(message).with("key_len", internal_key.len())
}
