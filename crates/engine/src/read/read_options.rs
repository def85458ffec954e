//! How a get, a multi-get or an iterator reads. Names and meanings are RocksDB's.

use super::snapshot::Snapshot;

/// How a read is done.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Read as of this snapshot. `None`, the default: as of now.
    pub snapshot: Option<Snapshot>,
    /// The first user key that an iterator may return; seeks before it go to it. Default none.
    ///
    /// Tables that end before it are not opened.
    pub iterate_lower_bound: Option<Vec<u8>>,
    /// The first user key that an iterator may not return any more. Default none.
    ///
    /// Tables that start at or after it are not opened.
    pub iterate_upper_bound: Option<Vec<u8>>,
    /// Check the checksum of every block that is read from disk. Default true. Where it is false, a block that the cache is to have
    /// (`fill_cache`) is checked all the same; one that is damaged is given to this reader, and not to the cache. Separated values
    /// that were not checked are not cached.
    pub verify_checksums: bool,
    /// Keep blocks that were read from disk in the block cache. Default true.
    ///
    /// False: a large scan does not push out what other reads need.
    pub fill_cache: bool,
    /// Use no prefix filter in seeks. Default false.
    ///
    /// Iterators return all keys in order either way; prefix filters are used only under
    /// [`ReadOptions::prefix_same_as_start`], where they cannot hide a key.
    pub total_order_seek: bool,
    /// End an iterator where the prefix of the key is no longer that of the seek's target.
    /// Default false.
    ///
    /// The prefix is what the family's `prefix_extractor` makes of the target; a target that
    /// has no prefix, and a family without an extractor, set no end. After seeks to the first
    /// or the last key it is the prefix of the key found there.
    pub prefix_same_as_start: bool,
    /// Bytes that an iterator reads ahead, of tables and of blob files; of the latter either way. 0, the
    /// default: it grows by itself in long scans.
    pub readahead_size: usize,
    /// Leave values in blob files unread until `DbIterator::prepare_value` asks for them. Default
    /// false: an iterator reads the value of every key that it comes to.
    ///
    /// An iteration that only wants keys, or few of the values, then reads no other blobs.
    pub allow_unprepared_value: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            snapshot: None,
            iterate_lower_bound: None,
            iterate_upper_bound: None,
            verify_checksums: true,
            fill_cache: true,
            total_order_seek: false,
            prefix_same_as_start: false,
            readahead_size: 0,
            allow_unprepared_value: false,
        }
    }
}
