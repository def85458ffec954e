//! What a table says of itself: sizes, counts, and the settings it was written with.
//!
//! The properties stand in one block of sorted entries under RocksDB's names: numbers as
//! varints, names as they are. Properties that are not known, those of user collectors among
//! them, are kept as bytes. Source: RocksDB `include/rocksdb/table_properties.h`,
//! `table/meta_blocks.cc`.

use std::collections::BTreeMap;

use orogen_base::coding::{get_fixed32, get_fixed64, get_varint64, put_varint64};
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, Result, SeqNo, UserComparator};

use crate::block::{Block, BlockBuilder, BlockCursor, KeyBytes, KeyOrder};

pub(crate) const INDEX_TYPE: &str = "rocksdb.block.based.table.index.type";
pub(crate) const WHOLE_KEY_FILTERING: &str = "rocksdb.block.based.table.whole.key.filtering";
pub(crate) const PREFIX_FILTERING: &str = "rocksdb.block.based.table.prefix.filtering";
/// Property of tables written for ingestion: the version of that contract, a fixed32.
pub const EXTERNAL_SST_FILE_VERSION: &str = "rocksdb.external_sst_file.version";
/// Property of tables written for ingestion: the sequence number of all entries, a fixed64.
pub const EXTERNAL_SST_FILE_GLOBAL_SEQNO: &str = "rocksdb.external_sst_file.global_seqno";
/// Property of compacted tables: all operations of the column family up to this sequence number, a
/// fixed64, are in tables. Entries at the bottom lose their own, so they do not tell.
pub const SEQUENCE_COVERED: &str = "orogen.sequence.covered";

macro_rules! properties {
    (
        numbers { $($(#[$ndoc:meta])* $number:ident = $nname:literal, $always:literal;)* }
        names { $($(#[$tdoc:meta])* $text:ident = $tname:literal;)* }
    ) => {
        /// The properties of a table.
        #[derive(Clone, Debug, PartialEq, Eq, Default)]
        pub struct TableProperties {
            $($(#[$ndoc])* pub $number: u64,)*
            $($(#[$tdoc])* pub $text: String,)*
            /// Which sequence numbers were given out when, in RocksDB's encoding.
            pub seqno_to_time_mapping: Vec<u8>,
            /// Everything else, user collectors' properties among it.
            pub user_collected: BTreeMap<String, Vec<u8>>,
        }

        impl TableProperties {
            /// All properties as they stand in the block, sorted by name.
            #[must_use]
            pub fn to_entries(&self) -> BTreeMap<String, Vec<u8>> {
                let mut all = self.user_collected.clone();
                $(if $always || self.$number != 0 {
                    let mut v = Vec::new();
                    put_varint64(&mut v, self.$number);
                    all.insert($nname.to_owned(), v);
                })*
                $(if !self.$text.is_empty() {
                    all.insert($tname.to_owned(), self.$text.clone().into_bytes());
                })*
                if !self.seqno_to_time_mapping.is_empty() {
                    all.insert(SEQNO_TIME_MAP.to_owned(), self.seqno_to_time_mapping.clone());
                }
                all
            }

            /// Bytes of memory held, about.
            #[must_use]
            pub fn memory_usage(&self) -> usize {
                let collected = self.user_collected.iter();
                let collected = collected.map(|(k, v)| k.capacity() + v.capacity() + 64);
                size_of::<Self>()
                    + self.seqno_to_time_mapping.capacity()
                    + collected.sum::<usize>()
                    $(+ self.$text.capacity())*
            }

            fn set(&mut self, name: &str, value: &[u8]) {
                match name {
                    $($nname => {
                        // RocksDB, too, passes over a malformed number.
                        if let Some((v, _)) = get_varint64(value) {
                            self.$number = v;
                        }
                    })*
                    $($tname => self.$text = String::from_utf8_lossy(value).into_owned(),)*
                    SEQNO_TIME_MAP => self.seqno_to_time_mapping = value.to_vec(),
                    _ => {
                        self.user_collected.insert(name.to_owned(), value.to_vec());
                    }
                }
            }
        }
    };
}

const SEQNO_TIME_MAP: &str = "rocksdb.seqno.time.map";

properties! {
    numbers {
        /// The file's number when it was written.
        original_file_number = "rocksdb.original.file.number", true;
        /// Bytes of the data blocks with their trailers.
        data_size = "rocksdb.data.size", true;
        /// Bytes of the index with its trailer.
        index_size = "rocksdb.index.size", true;
        /// Blocks of a partitioned index.
        index_partitions = "rocksdb.index.partitions", false;
        /// Bytes of the top of a partitioned index.
        top_level_index_size = "rocksdb.top-level.index.size", false;
        /// 1 if the index holds user keys, 0 if internal keys.
        index_key_is_user_key = "rocksdb.index.key.is.user.key", true;
        /// 1 if the index's values are deltas.
        index_value_is_delta_encoded = "rocksdb.index.value.is.delta.encoded", true;
        /// Bytes of the filter.
        filter_size = "rocksdb.filter.size", true;
        /// Bytes of all internal keys before compression.
        raw_key_size = "rocksdb.raw.key.size", true;
        /// Bytes of all values before compression.
        raw_value_size = "rocksdb.raw.value.size", true;
        /// Data blocks.
        num_data_blocks = "rocksdb.num.data.blocks", true;
        /// Data blocks that compression did not shrink enough.
        num_data_blocks_compression_rejected =
            "rocksdb.num.data.blocks.compression.rejected", false;
        /// Data blocks that were not given to compression.
        num_data_blocks_compression_bypassed =
            "rocksdb.num.data.blocks.compression.bypassed", false;
        /// Index blocks with evenly spread keys.
        num_uniform_blocks = "rocksdb.num.uniform.blocks", false;
        /// Entries, range tombstones included.
        num_entries = "rocksdb.num.entries", true;
        /// Hashes in the filter.
        num_filter_entries = "rocksdb.num.filter_entries", true;
        /// Entries that delete, range tombstones included.
        num_deletions = "rocksdb.deleted.keys", true;
        /// Merge operands.
        num_merge_operands = "rocksdb.merge.operands", true;
        /// Range tombstones.
        num_range_deletions = "rocksdb.num.range-deletions", true;
        /// Format of the properties; 0.
        format_version = "rocksdb.format.version", true;
        /// Length of all keys if it is the same, else 0.
        fixed_key_len = "rocksdb.fixed.key.length", true;
        /// The column family's number.
        column_family_id = "rocksdb.column.family.id", true;
        /// Seconds since 1970 of the oldest input; 0 if unknown.
        creation_time = "rocksdb.creation.time", true;
        /// Seconds since 1970 of the oldest key; 0 if unknown.
        oldest_key_time = "rocksdb.oldest.key.time", true;
        /// Seconds since 1970 of the newest key; 0 if unknown.
        newest_key_time = "rocksdb.newest.key.time", false;
        /// Seconds since 1970 when the file was made; 0 if unknown.
        file_creation_time = "rocksdb.file.creation.time", false;
        /// Estimated bytes of the data under a slow codec.
        slow_compression_estimated_data_size =
            "rocksdb.sample_for_compression.slow.data.size", false;
        /// Estimated bytes of the data under a fast codec.
        fast_compression_estimated_data_size =
            "rocksdb.sample_for_compression.fast.data.size", false;
        /// Where the data blocks end.
        tail_start_offset = "rocksdb.tail.start.offset", false;
        /// Largest sequence number of a key.
        key_largest_seqno = "rocksdb.key.largest.seqno", true;
        /// Smallest sequence number of a key.
        key_smallest_seqno = "rocksdb.key.smallest.seqno", true;
        /// Entries between whole keys in data blocks.
        data_block_restart_interval = "rocksdb.data.block.restart.interval", false;
        /// Entries between whole keys in index blocks.
        index_block_restart_interval = "rocksdb.index.block.restart.interval", false;
        /// 1 if data blocks keep values apart from keys.
        separate_key_value_in_data_block = "rocksdb.separate.key.value.in.data.block", false;
    }
    names {
        /// The database that wrote the table.
        db_id = "rocksdb.creating.db.identity";
        /// The session of that database.
        db_session_id = "rocksdb.creating.session.identity";
        /// The machine.
        db_host_id = "rocksdb.creating.host.identity";
        /// The filter policy.
        filter_policy = "rocksdb.filter.policy";
        /// The column family's name.
        column_family_name = "rocksdb.column.family.name";
        /// The order of user keys.
        comparator = "rocksdb.comparator";
        /// The merge operator, or `nullptr`.
        merge_operator = "rocksdb.merge.operator";
        /// The prefix extractor, or `nullptr`.
        prefix_extractor = "rocksdb.prefix.extractor.name";
        /// The property collectors, as `[a,b]`.
        property_collectors = "rocksdb.property.collectors";
        /// The codec.
        compression = "rocksdb.compression";
        /// The codec's options as text.
        compression_options = "rocksdb.compression_options";
    }
}

/// How the index of a table is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexType {
    /// One sorted block.
    BinarySearch,
    /// One sorted block, and hashes of prefixes beside it that this reader passes over.
    HashSearch,
    /// A sorted block of sorted blocks.
    TwoLevel,
    /// One sorted block that also holds each data block's first key.
    BinarySearchWithFirstKey,
}

impl TableProperties {
    /// Reads a properties block.
    ///
    /// # Errors
    /// `Corruption` if it is damaged or not sorted.
    pub(crate) fn decode(block: &Block) -> Result<Self> {
        let mut this = Self::default();
        let order = KeyOrder::User(UserComparator::BYTEWISE);
        let mut cursor = BlockCursor::new();
        let mut on = cursor.seek_to_first(block, &order)?;
        let mut last: Option<Vec<u8>> = None;
        let mut keys = KeyBytes::of(block);
        while on {
            keys.take(cursor.key())?;
            if last.as_deref().is_some_and(|l| l >= cursor.key()) {
                return Err(Error::corruption("properties are not sorted"));
            }
            last = Some(cursor.key().to_vec());
            this.set(&String::from_utf8_lossy(cursor.key()), cursor.value(block));
            on = cursor.next(block, &order)?;
        }
        Ok(this)
    }

    /// The properties block.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        // Read once from front to back: one restart point is enough.
        let mut b = BlockBuilder::new(i32::MAX as u32, false);
        for (name, value) in self.to_entries() {
            b.add(name.as_bytes(), &value)?;
        }
        Ok(b.into_block())
    }

    /// The layout of the index.
    ///
    /// # Errors
    /// `NotSupported` for one that is not known.
    pub fn index_type(&self) -> Result<IndexType> {
        let number = self
            .user_collected
            .get(INDEX_TYPE)
            .and_then(|v| get_fixed32(v));
        Ok(match number {
            None | Some(0) => IndexType::BinarySearch,
            Some(1) => IndexType::HashSearch,
            Some(2) => IndexType::TwoLevel,
            Some(3) => IndexType::BinarySearchWithFirstKey,
            Some(n) => {
                return Err(Error::not_supported("table has an index that is not known")
                    .with("index_type", n));
            }
        })
    }

    /// True unless the filter has no whole keys.
    #[must_use]
    pub fn whole_key_filtering(&self) -> bool {
        self.user_collected
            .get(WHOLE_KEY_FILTERING)
            .is_none_or(|v| v != b"0")
    }

    /// True unless the filter has no prefixes.
    #[must_use]
    pub fn prefix_filtering(&self) -> bool {
        self.user_collected
            .get(PREFIX_FILTERING)
            .is_none_or(|v| v != b"0")
    }

    /// The name of the prefix extractor, if there was one.
    #[must_use]
    pub fn prefix_extractor_name(&self) -> Option<&str> {
        Some(self.prefix_extractor.as_str()).filter(|n| !n.is_empty() && *n != "nullptr")
    }

    /// True if the table was written to be ingested.
    #[must_use]
    pub fn is_external(&self) -> bool {
        self.user_collected.contains_key(EXTERNAL_SST_FILE_VERSION)
    }

    /// All operations of the column family up to this number were in tables when this one was
    /// compacted; `None` where nobody noted it.
    #[must_use]
    pub fn sequence_covered(&self) -> Option<SeqNo> {
        get_fixed64(self.user_collected.get(SEQUENCE_COVERED)?)
    }

    /// The sequence number that all entries of an ingested table have, if the table is one.
    ///
    /// `largest_seqno` is what the MANIFEST knows, if anything.
    ///
    /// # Errors
    /// `Corruption` if the properties contradict each other or the MANIFEST.
    pub fn global_seqno(&self, largest_seqno: Option<SeqNo>) -> Result<Option<SeqNo>> {
        let version = self
            .user_collected
            .get(EXTERNAL_SST_FILE_VERSION)
            .map(|v| get_fixed32(v));
        let stored = self.user_collected.get(EXTERNAL_SST_FILE_GLOBAL_SEQNO);
        match version {
            None if stored.is_none() => Ok(None),
            Some(Some(1)) if stored.is_none() => Ok(None),
            Some(Some(2)) => {
                let stored = stored.map_or(Some(0), |v| get_fixed64(v)).ok_or_else(|| {
                    Error::corruption("global sequence number of the table is malformed")
                })?;
                let seqno = match largest_seqno {
                    Some(known) if stored == 0 => known,
                    Some(known) if stored != known => {
                        return Err(
                            Error::corruption("table has another global sequence number")
                                .with("stored", stored)
                                .with("expected", known),
                        );
                    }
                    _ => stored,
                };
                if seqno > SEQNO_MAX {
                    return Err(Error::corruption("global sequence number is too large")
                        .with("seqno", seqno));
                }
                Ok(Some(seqno))
            }
            _ => Err(Error::corruption(
                "table for ingestion has malformed properties",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_round_trip_with_unknown_ones() {
        let mut p = TableProperties {
            data_size: 1 << 40,
            num_entries: 7,
            comparator: "leveldb.BytewiseComparator".into(),
            seqno_to_time_mapping: vec![1, 2, 3],
            ..Default::default()
        };
        p.user_collected.insert("mine".into(), b"\0\xff".to_vec());
        p.user_collected
            .insert(INDEX_TYPE.into(), 2u32.to_le_bytes().to_vec());
        let block = Block::new(p.encode().unwrap()).unwrap();
        assert_eq!(block.num_restarts(), 1);
        let back = TableProperties::decode(&block).unwrap();
        assert_eq!(back, p);
        assert_eq!(back.index_type().unwrap(), IndexType::TwoLevel);
        assert_eq!(back.global_seqno(Some(5)).unwrap(), None);
    }

    #[test]
    fn long_keys_that_a_few_bytes_stand_for_are_refused() {
        let mut builder = BlockBuilder::new(i32::MAX as u32, false);
        let mut key = vec![b'k'; 1 << 16];
        for n in 0..2000u32 {
            key.truncate(1 << 16);
            key.extend_from_slice(&n.to_be_bytes());
            builder.add(&key, b"v").unwrap();
        }
        let block = Block::new(builder.into_block()).unwrap();
        assert!(block.bytes().len() < 100_000);
        let told = TableProperties::decode(&block).unwrap_err();
        assert_eq!(told.kind(), orogen_base::ErrorKind::Corruption);
    }

    #[test]
    fn global_seqnos_must_not_contradict() {
        let mut p = TableProperties::default();
        let mut put = |name: &str, v: Vec<u8>| {
            p.user_collected.insert(name.to_owned(), v);
            p.clone()
        };
        let none = put(EXTERNAL_SST_FILE_VERSION, 2u32.to_le_bytes().to_vec());
        assert_eq!(none.global_seqno(None).unwrap(), Some(0));
        assert_eq!(none.global_seqno(Some(9)).unwrap(), Some(9));
        let nine = put(EXTERNAL_SST_FILE_GLOBAL_SEQNO, 9u64.to_le_bytes().to_vec());
        assert_eq!(nine.global_seqno(Some(9)).unwrap(), Some(9));
        assert_eq!(nine.global_seqno(None).unwrap(), Some(9));
        assert!(nine.global_seqno(Some(8)).is_err());
        let v1 = put(EXTERNAL_SST_FILE_VERSION, 1u32.to_le_bytes().to_vec());
        assert!(v1.global_seqno(None).is_err());
        let v3 = put(EXTERNAL_SST_FILE_VERSION, 3u32.to_le_bytes().to_vec());
        assert!(v3.global_seqno(None).is_err());
    }
}
