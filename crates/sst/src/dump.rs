//! The blocks of a table one by one, for tools that look at a file and for checking all of it.

use orogen_base::{Result, memory};

use crate::builder::{DICTIONARY_BLOCK, INDEX_BLOCK, PROPERTIES_BLOCK, RANGE_DEL_BLOCK};
use crate::file::Window;
use crate::filter::{FULL_PREFIX, PARTITIONED_PREFIX};
use crate::footer::BlockHandle;
use crate::reader::{IndexPosition, TableReadOptions, TableReader};
use orogen_codec::CompressionType;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Entries.
    Data,
    /// The index, or its top, or a part of it.
    Index,
    /// A filter.
    Filter,
    /// The top of a partitioned filter.
    FilterIndex,
    /// The compression dictionary.
    Dictionary,
    /// Range tombstones.
    RangeDeletion,
    /// Properties.
    Properties,
    /// The names of the blocks above.
    MetaIndex,
    /// Something that this reader does not use.
    Other,
}

/// A block as it stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// What it holds.
    pub kind: BlockKind,
    /// Where it stands.
    pub handle: BlockHandle,
    /// How it is stored.
    pub compression: CompressionType,
    /// Bytes after decompression.
    pub raw_size: usize,
}

/// The kind of a block that the meta index names.
pub(crate) fn kind_of_meta_block(name: &str) -> BlockKind {
    match name {
        PROPERTIES_BLOCK => BlockKind::Properties,
        INDEX_BLOCK => BlockKind::Index,
        DICTIONARY_BLOCK => BlockKind::Dictionary,
        RANGE_DEL_BLOCK => BlockKind::RangeDeletion,
        _ if name.starts_with(FULL_PREFIX) => BlockKind::Filter,
        _ if name.starts_with(PARTITIONED_PREFIX) => BlockKind::FilterIndex,
        _ => BlockKind::Other,
    }
}

/// Bytes of the file read at a time.
const READ_LEN: usize = 2 << 20;

/// The blocks of a table: its data blocks in order, then those of the tail, parts of filter and index among them.
pub struct Blocks<'a> {
    table: &'a TableReader,
    read: TableReadOptions,
    window: Window,
    index: Option<IndexPosition<'a>>,
    tail: Vec<(BlockKind, BlockHandle)>,
    started: bool,
    failed: bool,
}

impl TableReader {
    /// Every block of the file, read and checked.
    #[must_use]
    pub fn blocks(&self) -> Blocks<'_> {
        let footer = &self.file().footer;
        let mut tail = vec![(BlockKind::MetaIndex, footer.metaindex)];
        tail.extend(
            self.meta_blocks()
                .iter()
                .map(|(n, h)| (kind_of_meta_block(n), *h)),
        );
        tail.extend(footer.index.map(|h| (BlockKind::Index, h)));
        tail.sort_by_key(|(_, h)| std::cmp::Reverse(h.offset));
        Blocks {
            table: self,
            read: TableReadOptions {
                fill_cache: false,
                ..Default::default()
            },
            window: Window::default(),
            index: None,
            tail,
            started: false,
            failed: false,
        }
    }
}

impl Blocks<'_> {
    fn next_data_block(&mut self) -> Result<Option<BlockHandle>> {
        let on = match &mut self.index {
            Some(index) => index.next(self.table, &self.read)?,
            None if !self.started => {
                self.started = true;
                let index = self
                    .table
                    .index_position(&self.read, <[Vec<u8>; 2]>::default())?;
                self.index
                    .insert(index)
                    .seek_to_first(self.table, &self.read)?
            }
            None => false,
        };
        if !on && self.index.take().is_some() {
            // From the file, wherever the index was read from.
            self.tail.extend(self.table.partitions(&self.read)?);
            self.tail.sort_by_key(|(_, h)| std::cmp::Reverse(h.offset));
        }
        Ok(self.index.as_ref().map(IndexPosition::handle))
    }

    fn info(&mut self, kind: BlockKind, handle: BlockHandle) -> Result<BlockInfo> {
        let file = self.table.file();
        if kind == BlockKind::Data && self.window.block(handle).is_none() {
            let len = file.check_handle(handle)?.max(READ_LEN);
            let len = len.min((file.size - handle.offset) as usize);
            memory::resize(&mut self.window.bytes, len, "readahead")?;
            self.window.offset = handle.offset;
            file.file
                .read_exact_at(handle.offset, &mut self.window.bytes)?;
        }
        let dictionary = if kind == BlockKind::Data {
            self.table.dictionary()
        } else {
            None
        };
        let (bytes, compression) =
            file.read_block(handle, Some(&self.window), dictionary, true, Vec::new())?;
        Ok(BlockInfo {
            kind,
            handle,
            compression,
            raw_size: bytes.len(),
        })
    }

    fn step(&mut self) -> Result<Option<BlockInfo>> {
        if let Some(handle) = self.next_data_block()? {
            return self.info(BlockKind::Data, handle).map(Some);
        }
        match self.tail.pop() {
            Some((kind, handle)) => self.info(kind, handle).map(Some),
            None => Ok(None),
        }
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<BlockInfo>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let item = self.step().transpose();
        self.failed = matches!(item, Some(Err(_)));
        item
    }
}
