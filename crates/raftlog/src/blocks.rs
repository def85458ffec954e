//! Reading blocks of entries, those that are neighbours at once.
//!
//! Between the blocks of two records lie a footer and a header, some 50 bytes, and maybe what others have
//! written. A call to the system costs as much as to copy a few KiB. So who wants several blocks says so
//! in advance, and those that follow closely on one another come with one call. Invariants:
//!
//! 1. Only what is asked for is looked at: damage in a block that nobody wants is no error.
//! 2. No read is longer than [`READ_MAX`], unless one block is.
//! 3. Room is that of the longest read so far, and is used again by the next ones.

use std::ops::Range;
use std::sync::Arc;

use orogen_base::{Result, memory};

use crate::files::{LogFile, Table};
use crate::format::{Compression, decode_block};
use crate::memtable::Block;

/// Bytes between two blocks that are read rather than left out.
const GAP_MAX: u64 = 4 << 10;

/// Bytes of several blocks that are read at once: more would not stay in the processor's caches.
const READ_MAX: u64 = 64 << 10;

/// Reads blocks one after the other.
pub(crate) struct Blocks<'t> {
    table: &'t Table,
    file: Option<Arc<LogFile>>,
    /// What was read last, and maybe bytes of longer reads behind it.
    bytes: Vec<u8>,
    /// Where that stands in `file`.
    span: Range<u64>,
    /// The raw bytes of a block that was compressed.
    unpacked: Vec<u8>,
    /// The block that was asked for last, and where it is in `bytes` if it was not.
    last: Option<(Block, Range<usize>)>,
}

impl<'t> Blocks<'t> {
    pub(crate) fn new(table: &'t Table) -> Self {
        Self {
            table,
            file: None,
            bytes: Vec::new(),
            span: 0..0,
            unpacked: Vec::new(),
            last: None,
        }
    }

    /// The raw entries of a record; none if its file was deleted meanwhile. `ahead` are the blocks that
    /// will be asked for next.
    ///
    /// # Errors
    /// `Corruption` with file and offset; `NoMemory`; those of the file system.
    pub(crate) fn get(
        &mut self,
        block: Block,
        ahead: impl Iterator<Item = Block>,
    ) -> Result<Option<&[u8]>> {
        if block.len == 0 {
            return Ok(Some(&[]));
        }
        let range = match &self.last {
            Some((last, range)) if *last == block => range.clone(),
            _ => {
                self.last = None;
                if !self.covers(&block) && !self.read(&block, ahead)? {
                    return Ok(None);
                }
                let range = self.decode(&block)?;
                self.last = Some((block, range.clone()));
                range
            }
        };
        Ok(Some(match block.compression {
            Compression::None => &self.bytes[range],
            Compression::Lz4 => &self.unpacked,
        }))
    }

    fn covers(&self, block: &Block) -> bool {
        self.file.as_ref().is_some_and(|file| file.id == block.file)
            && self.span.start <= block.offset
            && end_of(block) <= self.span.end
    }

    /// Reads a block and those ahead that follow closely on it; false if its file is gone.
    fn read(&mut self, block: &Block, ahead: impl Iterator<Item = Block>) -> Result<bool> {
        self.span = 0..0;
        if self.file.as_ref().is_none_or(|file| file.id != block.file) {
            self.file = self.table.find(block.file);
        }
        let Some(file) = &self.file else {
            return Ok(false);
        };
        let start = block.offset;
        let end = end_of_read(block, ahead);
        let len = (end - start) as usize;
        match self.bytes.get_mut(..len) {
            Some(bytes) => file.reader.read_exact_at(start, bytes)?,
            None => {
                self.bytes = memory::with_capacity(len, "blocks of entries")?;
                file.reader.append_exact_at(start, len, &mut self.bytes)?;
            }
        }
        self.span = start..end;
        Ok(true)
    }

    /// Checks a block that was read and unpacks it; where it is in `bytes` if it is not compressed.
    fn decode(&mut self, block: &Block) -> Result<Range<usize>> {
        let at = (block.offset - self.span.start) as usize;
        let stored = &self.bytes[at..at + block.len as usize];
        match decode_block(stored, block.compression, &mut self.unpacked) {
            Ok(raw) => Ok(at..at + raw.len()),
            Err(e) => Err(match &self.file {
                Some(file) => e.with("file", file.reader.path().display()),
                None => e,
            }
            .with("offset", block.offset)),
        }
    }
}

/// The offset behind a block.
fn end_of(block: &Block) -> u64 {
    block.offset.saturating_add(u64::from(block.len))
}

/// Where a read ends that begins with `block`.
fn end_of_read(block: &Block, ahead: impl Iterator<Item = Block>) -> u64 {
    let mut last = *block;
    for next in ahead {
        if next == last {
            continue;
        }
        let gap = next.offset.checked_sub(end_of(&last));
        let is_near = next.file == block.file && gap.is_some_and(|gap| gap <= GAP_MAX);
        if !is_near || end_of(&next) - block.offset > READ_MAX {
            break;
        }
        last = next;
    }
    end_of(&last)
}

#[cfg(test)]
mod tests;
