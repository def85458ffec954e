//! The file that a table is written to, and the way of data blocks into it.
//!
//! Blocks are gathered so that the file is asked to append once per mebibyte, or more often where
//! memory is scarce. `Hot path`: one
//! compression and one checksum per block, no allocation.

use orogen_base::checksum::{ChecksumType, crc32c_extend};
use orogen_base::{Error, Result, UserComparator, memory};
use orogen_env::WritableFile;

use super::index::IndexBuilder;
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle, context_modifier};
use orogen_codec::{CompressionType, Compressor, Dictionary, decompress};

/// Bytes gathered before the file is asked to append them.
pub(super) const WRITE_BUFFER_LEN: usize = 1 << 20;
/// The same where memory is scarce.
pub(super) const WRITE_BUFFER_LEN_MIN: usize = 64 << 10;
/// The buffer takes at most one part in so many of the memory that it is reserved in.
pub(super) const WRITE_BUFFER_PART: usize = 64;

/// What memory is asked for.
const WRITE_BUFFER: &str = "table write buffer";

/// The file, with the bytes that it was not given yet.
pub(super) struct Output {
    file: Box<dyn WritableFile>,
    buffer: Vec<u8>,
    /// Bytes of the buffer at which the file gets them.
    buffer_len: usize,
    /// Bytes so far, those in the buffer included.
    offset: u64,
    checksum: ChecksumType,
    base_context_checksum: u32,
    scratch: Vec<u8>,
    /// CRC32C over what the file was given, if it is asked for.
    pub(super) file_checksum: Option<u32>,
}

/// Where data blocks go: into the file, and into the index.
pub(super) struct DataBlocks {
    pub(super) out: Output,
    pub(super) index: IndexBuilder,
    pub(super) order: UserComparator,
    pub(super) compressor: Option<Compressor>,
    pub(super) max_per_kb: u32,
    /// Checks every compressed block, with the dictionary if there is one.
    pub(super) verify: Option<Option<Dictionary>>,
    pub(super) count: u64,
    pub(super) rejected: u64,
}

impl DataBlocks {
    pub(super) fn write(
        &mut self,
        block: &[u8],
        last_key: &[u8],
        next_key: Option<&[u8]>,
    ) -> Result<()> {
        let (handle, stored) =
            self.out
                .write_compressed(block, self.compressor.as_mut(), self.max_per_kb)?;
        if stored == CompressionType::None {
            self.rejected += u64::from(self.compressor.is_some());
        } else if let Some(dictionary) = &self.verify {
            self.out.verify(block, stored, dictionary.as_ref())?;
        }
        self.count += 1;
        self.index.add(&self.order, last_key, next_key, handle)
    }
}

impl Output {
    pub(super) fn new(
        file: Box<dyn WritableFile>,
        checksum: ChecksumType,
        base_context_checksum: u32,
        buffer_len: usize,
    ) -> Result<Self> {
        Ok(Self {
            file,
            buffer: memory::with_capacity(buffer_len + buffer_len / 8, WRITE_BUFFER)?,
            buffer_len,
            offset: 0,
            checksum,
            base_context_checksum,
            scratch: Vec::new(),
            file_checksum: None,
        })
    }

    /// Bytes so far, those that the file was not given yet included.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of memory held.
    pub(super) fn memory_usage(&self) -> usize {
        self.buffer.capacity() + self.scratch.capacity()
    }

    pub(super) fn base_context_checksum(&self) -> u32 {
        self.base_context_checksum
    }

    /// Gives the file everything and syncs it.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync()
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        memory::append(&mut self.buffer, bytes, WRITE_BUFFER)?;
        self.offset += bytes.len() as u64;
        if self.buffer.len() >= self.buffer_len {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn flush(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.file.append(&self.buffer)?;
            if let Some(crc) = &mut self.file_checksum {
                *crc = crc32c_extend(*crc, &self.buffer);
            }
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes a block as it is.
    pub(super) fn write_plain(&mut self, block: &[u8]) -> Result<BlockHandle> {
        self.write(block, CompressionType::None)
    }

    /// Writes a block, compressed if that saves enough.
    pub(super) fn write_compressed(
        &mut self,
        block: &[u8],
        compressor: Option<&mut Compressor>,
        max_per_kb: u32,
    ) -> Result<(BlockHandle, CompressionType)> {
        if let Some(c) = compressor {
            // At most 1023: a block that does not shrink is stored as it is.
            let limit = (block.len() as u64 * u64::from(max_per_kb.min(1023))) >> 10;
            let mut scratch = std::mem::take(&mut self.scratch);
            let shrunk = c.compress(block, limit as usize, &mut scratch);
            self.scratch = scratch;
            if shrunk? {
                let compressed = std::mem::take(&mut self.scratch);
                let handle = self.write(&compressed, c.kind());
                self.scratch = compressed;
                return Ok((handle?, c.kind()));
            }
        }
        Ok((self.write_plain(block)?, CompressionType::None))
    }

    /// Checks that what was just compressed gives `block` again.
    pub(super) fn verify(
        &self,
        block: &[u8],
        kind: CompressionType,
        dictionary: Option<&Dictionary>,
    ) -> Result<()> {
        if decompress(kind, &self.scratch, dictionary, 2, Vec::new())? == block {
            return Ok(());
        }
        Err(
            Error::corruption("compressed block does not give back what it was made of")
                .with("offset", self.offset),
        )
    }

    fn write(&mut self, bytes: &[u8], kind: CompressionType) -> Result<BlockHandle> {
        let handle = BlockHandle {
            offset: self.offset,
            size: bytes.len() as u64,
        };
        let sum = self
            .checksum
            .compute(bytes, kind as u8)
            .wrapping_add(context_modifier(self.base_context_checksum, handle.offset));
        let mut trailer = [0; BLOCK_TRAILER_LEN];
        trailer[0] = kind as u8;
        trailer[1..].copy_from_slice(&sum.to_le_bytes());
        memory::append(&mut self.buffer, bytes, WRITE_BUFFER)?;
        self.offset += bytes.len() as u64;
        self.append(&trailer)?;
        Ok(handle)
    }
}
