//! The end of a table: everything behind the data blocks.

use std::cmp::Ordering;

use orogen_base::Result;
use orogen_base::ValueKind;
use orogen_base::key::{TRAILER_LEN, append_internal_key, user_key};
use orogen_base::seqno::SEQNO_MAX;

use super::filter::TableFilter;
use super::{
    DICTIONARY_BLOCK, INDEX_BLOCK, PROPERTIES_BLOCK, RANGE_DEL_BLOCK, TableBuilder, TableSummary,
};
use crate::block::{BlockBuilder, compare_internal};
use crate::filter::{FULL_PREFIX, PARTITIONED_PREFIX, POLICY_NAME};
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle, FOOTER_LEN, Footer};
use crate::options::{BlockIndex, compression_options_text};
use crate::properties::{INDEX_TYPE, PREFIX_FILTERING, SEQUENCE_COVERED, WHOLE_KEY_FILTERING};

impl TableBuilder {
    /// Writes everything behind the data blocks, with the properties that collectors gathered,
    /// and syncs the file.
    ///
    /// # Errors
    /// `NoSpace` or `Io`; the file is then no table.
    pub fn finish(
        mut self,
        user_properties: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Result<TableSummary> {
        self.flush_block(None)?;
        self.release_held(None)?;
        let tail_start = self.blocks.out.offset();
        self.properties.data_size = tail_start;
        self.properties.num_data_blocks = self.blocks.count;
        self.properties.num_data_blocks_compression_rejected = self.blocks.rejected;
        let mut metaindex: Vec<(String, BlockHandle)> = Vec::new();
        // Index and filter are put together beside what they are made of.
        let tail = self.blocks.index.size() + self.filter.as_ref().map_or(0, TableFilter::size);
        self.reserve(2 * tail + self.tombstone_bytes);

        self.write_filter(&mut metaindex)?;
        let index_handle = self.write_index()?;
        let format_version = self.options.table.format_version;
        if format_version >= 6 {
            metaindex.push((INDEX_BLOCK.to_owned(), index_handle));
        }

        if !self.dictionary.is_empty() {
            let dictionary = std::mem::take(&mut self.dictionary);
            metaindex.push((
                DICTIONARY_BLOCK.to_owned(),
                self.blocks.out.write_plain(&dictionary)?,
            ));
        }
        if let Some(block) = self.range_tombstone_block()? {
            metaindex.push((
                RANGE_DEL_BLOCK.to_owned(),
                self.blocks.out.write_plain(&block)?,
            ));
        }

        self.fill_properties(tail_start);
        self.properties.user_collected.extend(user_properties);
        let handle = self.blocks.out.write_plain(&self.properties.encode()?)?;
        metaindex.push((PROPERTIES_BLOCK.to_owned(), handle));

        metaindex.sort_by(|a, b| a.0.cmp(&b.0));
        let mut block = BlockBuilder::new(1, false);
        for (name, handle) in &metaindex {
            let mut value = Vec::new();
            handle.encode(&mut value);
            block.add(name.as_bytes(), &value)?;
        }
        let metaindex = self.blocks.out.write_plain(block.finish())?;

        let footer = Footer {
            format_version,
            checksum: self.options.table.checksum,
            base_context_checksum: self.blocks.out.base_context_checksum(),
            metaindex,
            index: (format_version < 6).then_some(index_handle),
            len: FOOTER_LEN,
        };
        let mut bytes = Vec::with_capacity(FOOTER_LEN);
        footer.encode(self.blocks.out.offset(), &mut bytes)?;
        self.blocks.out.append(&bytes)?;
        self.blocks.out.sync()?;

        let (smallest, largest) = self.bounds();
        let (smallest_seqno, largest_seqno) = self.seqnos.unwrap_or((0, 0));
        Ok(TableSummary {
            file_size: self.blocks.out.offset(),
            tail_size: self.blocks.out.offset() - tail_start,
            properties: self.properties,
            smallest,
            largest,
            smallest_seqno,
            largest_seqno,
            file_checksum: self.blocks.out.file_checksum,
        })
    }

    fn write_filter(&mut self, metaindex: &mut Vec<(String, BlockHandle)>) -> Result<()> {
        let Some((filters, entries)) = self.filter.take().map(TableFilter::finish).transpose()?
        else {
            return Ok(());
        };
        let out = &mut self.blocks.out;
        let (prefix, handle) = if self.options.table.partition_filters {
            if filters.is_empty() {
                return Ok(());
            }
            let mut top = self.blocks.index.top();
            for part in &filters {
                top.push(&part.last_key, out.write_plain(&part.filter)?)?;
                self.properties.filter_size += part.filter.len() as u64;
            }
            let top = top.finish()?;
            self.properties.filter_size += top.len() as u64;
            (PARTITIONED_PREFIX, out.write_plain(&top)?)
        } else {
            let Some(only) = filters.first() else {
                return Ok(());
            };
            self.properties.filter_size = only.filter.len() as u64;
            (FULL_PREFIX, out.write_plain(&only.filter)?)
        };
        metaindex.push((format!("{prefix}{POLICY_NAME}"), handle));
        self.properties.num_filter_entries = entries;
        Ok(())
    }

    fn write_index(&mut self) -> Result<BlockHandle> {
        let per_kb = self.options.compression_options.max_compressed_bytes_per_kb;
        let table = &self.options.table;
        let (index, out) = (&self.blocks.index, &mut self.blocks.out);
        let mut bytes = BLOCK_TRAILER_LEN;
        let last = if table.index_type == BlockIndex::TwoLevel {
            let mut top = index.top();
            let partitions = index.partitions(table.metadata_block_size);
            for partition in &partitions {
                let block = index.block(partition)?;
                let (handle, _) =
                    out.write_compressed(&block, self.index_compressor.as_mut(), per_kb)?;
                top.push(index.last_key(partition), handle)?;
                bytes += block.len();
            }
            let top = top.finish()?;
            self.properties.index_partitions = partitions.len() as u64;
            self.properties.top_level_index_size = top.len() as u64;
            top
        } else {
            index.finish()?
        };
        self.properties.index_size = (bytes + last.len()) as u64;
        let (handle, _) = out.write_compressed(&last, self.index_compressor.as_mut(), per_kb)?;
        Ok(handle)
    }

    fn range_tombstone_block(&mut self) -> Result<Option<Vec<u8>>> {
        if self.range_tombstones.is_empty() {
            return Ok(None);
        }
        let order = &self.options.comparator;
        // In place: tombstones that are equal in both are equal.
        self.range_tombstones.sort_unstable_by(|a, b| {
            compare_internal(order, &a.key, &b.key).then_with(|| order.compare(&a.end, &b.end))
        });
        let mut block = BlockBuilder::new(1, false);
        for t in &self.range_tombstones {
            block.add(&t.key, &t.end)?;
        }
        Ok(Some(block.into_block()))
    }

    fn fill_properties(&mut self, tail_start: u64) {
        let o = &self.options;
        let or_nullptr = |s: &str| if s.is_empty() { "nullptr" } else { s }.to_owned();
        let p = &mut self.properties;
        p.original_file_number = o.file_number;
        p.index_key_is_user_key = u64::from(self.blocks.index.keys_are_user_keys());
        p.index_value_is_delta_encoded = u64::from(o.table.format_version >= 4);
        p.column_family_id = u64::from(o.column_family_id);
        p.column_family_name = o.column_family_name.clone();
        p.creation_time = o.creation_time;
        p.oldest_key_time = o.oldest_key_time;
        p.file_creation_time = o.file_creation_time;
        p.tail_start_offset = tail_start;
        (p.key_smallest_seqno, p.key_largest_seqno) = self.seqnos.unwrap_or((0, 0));
        p.data_block_restart_interval = u64::from(o.table.block_restart_interval);
        p.index_block_restart_interval = u64::from(o.table.index_block_restart_interval);
        p.db_id = o.db_id.clone();
        p.db_session_id = o.db_session_id.clone();
        p.db_host_id = o.db_host_id.clone();
        if o.table.filter_bits_per_key > 0.0 {
            p.filter_policy = "bloomfilter".to_owned();
        }
        p.comparator = o.comparator.name().to_owned();
        p.merge_operator = or_nullptr(&o.merge_operator_name);
        p.prefix_extractor = or_nullptr(o.prefix_extractor.as_ref().map_or("", |e| e.name()));
        p.property_collectors = format!("[{}]", o.property_collectors.join(","));
        p.compression = o.compression.property_name().to_owned();
        p.compression_options = compression_options_text(&o.compression_options);
        let flag = |on: bool| if on { b"1".to_vec() } else { b"0".to_vec() };
        let collected = &mut p.user_collected;
        if o.sequence_covered > p.key_largest_seqno {
            let covered = o.sequence_covered.to_le_bytes().to_vec();
            collected.insert(SEQUENCE_COVERED.to_owned(), covered);
        }
        let index_type: u32 = match o.table.index_type {
            BlockIndex::BinarySearch => 0,
            BlockIndex::TwoLevel => 2,
        };
        collected.insert(INDEX_TYPE.to_owned(), index_type.to_le_bytes().to_vec());
        collected.insert(
            WHOLE_KEY_FILTERING.to_owned(),
            flag(o.table.whole_key_filtering),
        );
        collected.insert(
            PREFIX_FILTERING.to_owned(),
            flag(o.prefix_extractor.is_some()),
        );
    }

    fn bounds(&self) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
        let order = &self.options.comparator;
        let mut smallest = Some(&self.first_key).filter(|k| !k.is_empty()).cloned();
        let mut largest = Some(&self.last_key).filter(|k| !k.is_empty()).cloned();
        for t in &self.range_tombstones {
            if order.compare(user_key(&t.key), &t.end) != Ordering::Less {
                continue;
            }
            let mut end = Vec::with_capacity(t.end.len() + TRAILER_LEN);
            append_internal_key(&mut end, &t.end, SEQNO_MAX, ValueKind::RangeDeletion);
            if smallest
                .as_ref()
                .is_none_or(|s| compare_internal(order, &t.key, s).is_lt())
            {
                smallest = Some(t.key.clone());
            }
            if largest
                .as_ref()
                .is_none_or(|l| compare_internal(order, &end, l).is_gt())
            {
                largest = Some(end);
            }
        }
        (smallest, largest)
    }
}
