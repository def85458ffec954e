//! Tables put together block by block, without a builder's care: blocks of any bytes, in the
//! layout of formats 1 to 5 and without checksums.

use std::sync::Arc;

use orogen_base::Result;
use orogen_base::checksum::ChecksumType;
use orogen_base::coding::{put_length_prefixed, put_varint32};
use orogen_sst::{
    BlockHandle, CompressionType, Footer, TableReadOptions, TableReader, TableReaderOptions,
};

use crate::file;

/// Above every key of [`crate::Choices::key`], as an internal key.
pub const LAST_KEY: [u8; 24] = [0xff; 24];

/// A table on the way.
#[derive(Default)]
pub struct RawTable {
    bytes: Vec<u8>,
    meta: Vec<(Vec<u8>, BlockHandle)>,
}

impl RawTable {
    /// Appends a block as it stands in the file.
    pub fn block(&mut self, bytes: &[u8], compression: CompressionType) -> BlockHandle {
        let handle = BlockHandle {
            offset: self.bytes.len() as u64,
            size: bytes.len() as u64,
        };
        self.bytes.extend_from_slice(bytes);
        self.bytes
            .extend_from_slice(&[compression as u8, 0, 0, 0, 0]);
        handle
    }

    /// Appends a block that the meta index names; in the order of the names.
    pub fn meta_block(&mut self, name: &str, bytes: &[u8]) {
        let handle = self.block(bytes, CompressionType::None);
        self.meta.push((name.as_bytes().to_vec(), handle));
    }

    /// Appends an index that leads every lookup to one block.
    pub fn index_of(&mut self, data: BlockHandle) -> BlockHandle {
        let mut value = Vec::new();
        data.encode(&mut value);
        self.block(
            &sorted_block(&[(LAST_KEY.to_vec(), value)], 1),
            CompressionType::None,
        )
    }

    /// Appends the meta index and the footer, and opens it.
    pub fn open(
        mut self,
        index: BlockHandle,
        format_version: u32,
        options: TableReaderOptions,
    ) -> Result<Arc<TableReader>> {
        let entries: Vec<_> = std::mem::take(&mut self.meta)
            .into_iter()
            .map(|(name, handle)| {
                let mut value = Vec::new();
                handle.encode(&mut value);
                (name, value)
            })
            .collect();
        let footer = Footer {
            format_version,
            checksum: ChecksumType::None,
            base_context_checksum: 0,
            metaindex: self.block(&sorted_block(&entries, 1), CompressionType::None),
            index: Some(index),
            len: 0,
        };
        let at = self.bytes.len() as u64;
        footer.encode(at, &mut self.bytes).expect("an old format");
        let len = self.bytes.len() as u64;
        TableReader::open(file(self.bytes), len, options)
    }
}

/// How such tables are read.
pub fn unchecked() -> TableReadOptions {
    TableReadOptions {
        verify_checksums: false,
        ..Default::default()
    }
}

/// A block of entries in this order, with a restart point at every `interval`-th.
pub fn sorted_block(entries: &[(Vec<u8>, Vec<u8>)], interval: usize) -> Vec<u8> {
    let values: Vec<_> = entries.iter().map(|(_, value)| value).collect();
    block_of(
        entries.iter().map(|(key, _)| key.as_slice()),
        interval,
        |i, _| (Some(values[i].len()), values[i].clone()),
    )
}

/// As [`sorted_block`], with the values that `value` gives, told the entry's number and whether
/// its key shares bytes with the key before; the length stands in the block where it is given.
pub fn block_of<'a>(
    keys: impl Iterator<Item = &'a [u8]>,
    interval: usize,
    mut value: impl FnMut(usize, bool) -> (Option<usize>, Vec<u8>),
) -> Vec<u8> {
    let (mut out, mut restarts, mut before) = (Vec::new(), Vec::new(), &[][..]);
    for (i, key) in keys.enumerate() {
        let mut shared = 0;
        if i % interval == 0 {
            restarts.push(out.len() as u32);
        } else {
            shared = key.iter().zip(before).take_while(|(a, b)| a == b).count();
        }
        let (len, value) = value(i, shared != 0);
        put_varint32(&mut out, shared as u32);
        put_varint32(&mut out, (key.len() - shared) as u32);
        if let Some(len) = len {
            put_varint32(&mut out, len as u32);
        }
        out.extend_from_slice(&key[shared..]);
        out.extend_from_slice(&value);
        before = key;
    }
    if restarts.is_empty() {
        restarts.push(0);
    }
    for at in &restarts {
        out.extend_from_slice(&at.to_le_bytes());
    }
    out.extend_from_slice(&(restarts.len() as u32).to_le_bytes());
    out
}

/// The value of an index of whole handles, with the block's first key where it is given.
pub fn index_value(handle: BlockHandle, first_key: Option<&[u8]>) -> Vec<u8> {
    let mut value = Vec::new();
    handle.encode(&mut value);
    if let Some(key) = first_key {
        put_length_prefixed(&mut value, key);
    }
    value
}
