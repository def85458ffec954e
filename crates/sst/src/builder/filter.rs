//! Gathers the filter of a table: one for all keys, or one for each stretch of them.
//!
//! Partitions are cut by their number of entries, apart from those of the index. The entry that
//! leads to a partition is its last user key as the oldest version possible, so a search for any
//! version of a key finds the partition that holds it. Where prefixes are added, a partition also
//! has that of the first key behind it, and that of the last key before it: a seek that lands
//! between two partitions asks either.
//! Source: RocksDB `table/block_based/partitioned_filter_block.cc`.

use orogen_base::key::TRAILER_LEN;
use orogen_base::{Result, SliceTransform, memory};

use crate::filter::FilterBuilder;
use crate::options::BlockBasedOptions;

/// The filter of a table that is being written.
pub(super) struct TableFilter {
    current: FilterBuilder,
    /// Entries at which a partition ends; `None` for one filter.
    entries_max: Option<u64>,
    /// The user key that was added last, if there are partitions.
    last_key: Vec<u8>,
    partitions: Vec<FilterPartition>,
    bytes: usize,
    entries: u64,
    whole_keys: bool,
}

/// A finished filter.
pub(super) struct FilterPartition {
    /// The internal key that is behind all keys of the partition.
    pub(super) last_key: Vec<u8>,
    pub(super) filter: Vec<u8>,
}

impl TableFilter {
    pub(super) fn new(table: &BlockBasedOptions) -> Self {
        let current = FilterBuilder::new(table.filter_bits_per_key, table.format_version);
        let entries_max = table
            .partition_filters
            .then(|| current.entries_for(table.metadata_block_size));
        Self {
            current,
            entries_max,
            last_key: Vec::new(),
            partitions: Vec::new(),
            bytes: 0,
            entries: 0,
            whole_keys: table.whole_key_filtering,
        }
    }

    /// Adds a user key; they come in order.
    #[inline]
    pub(super) fn add(&mut self, key: &[u8], extractor: Option<&dyn SliceTransform>) -> Result<()> {
        let prefix = extractor.filter(|e| e.in_domain(key));
        let prefix = prefix.map(|e| e.transform(key));
        if let Some(max) = self.entries_max {
            if self.current.entries() >= max && self.last_key != key {
                self.cut(prefix, extractor)?;
            }
            self.last_key.clear();
            memory::append(&mut self.last_key, key, "key")?;
        }
        if let Some(prefix) = prefix {
            self.current.add_prefix(prefix)?;
        }
        if self.whole_keys {
            self.current.add_key(key)?;
        }
        Ok(())
    }

    fn cut(
        &mut self,
        next_prefix: Option<&[u8]>,
        extractor: Option<&dyn SliceTransform>,
    ) -> Result<()> {
        if let Some(prefix) = next_prefix {
            self.current.add_prefix(prefix)?;
        }
        self.end_partition()?;
        #[cfg(test)]
        if tests::AS_ROCKSDB_BEFORE_9_8.get() {
            return Ok(());
        }
        if let Some(extractor) = extractor.filter(|e| e.in_domain(&self.last_key)) {
            let prefix = extractor.transform(&self.last_key);
            self.current.add_prefix(prefix)?;
        }
        Ok(())
    }

    fn end_partition(&mut self) -> Result<()> {
        let filter = self.current.finish()?;
        self.entries += self.current.entries();
        self.bytes += filter.len();
        let mut last_key = self.last_key.clone();
        last_key.extend_from_slice(&[0; TRAILER_LEN]);
        let partition = FilterPartition { last_key, filter };
        memory::push(&mut self.partitions, partition, "filter partitions")?;
        self.current.clear();
        Ok(())
    }

    /// Bytes of the finished filter, about.
    pub(super) fn size(&self) -> usize {
        self.bytes + self.current.size()
    }

    /// Bytes of memory held, about.
    pub(super) fn memory_usage(&self) -> usize {
        let partitions = self.partitions.capacity() * size_of::<FilterPartition>();
        let keys = self.partitions.len() * (self.last_key.capacity() + TRAILER_LEN);
        self.bytes + self.current.memory_usage() + partitions + keys
    }

    /// The filters in the order of their keys, and the number of their entries.
    pub(super) fn finish(mut self) -> Result<(Vec<FilterPartition>, u64)> {
        if self.current.entries() > 0 {
            self.end_partition()?;
        }
        Ok((self.partitions, self.entries))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    thread_local! {
        /// No partition has the prefix of the last key before it.
        pub(crate) static AS_ROCKSDB_BEFORE_9_8: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
}
