//! A stretch of a file in memory, moved along as records are asked for.
//!
//! Invariant: what is asked for was checked against the file's size before memory is taken.

use std::sync::Arc;

use orogen_base::{Result, memory};
use orogen_env::RandomAccessFile;

/// Bytes that are read at once.
pub(crate) const WINDOW_LEN: u64 = 256 << 10;

pub(crate) struct Window {
    file: Arc<dyn RandomAccessFile>,
    /// The bytes behind are not looked at.
    end: u64,
    offset: u64,
    bytes: Vec<u8>,
    /// Bytes to read at once, unless more are asked for.
    len: u64,
}

impl Window {
    pub(crate) fn new(file: Arc<dyn RandomAccessFile>, end: u64) -> Self {
        Self {
            file,
            end,
            offset: 0,
            bytes: Vec::new(),
            len: WINDOW_LEN,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Reads so many bytes at once from now on, [`WINDOW_LEN`] at most.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.len = len.min(WINDOW_LEN);
    }

    /// `len` bytes at `offset`; `None` if they are not all before the end.
    pub(crate) fn get(&mut self, offset: u64, len: u64) -> Result<Option<&[u8]>> {
        let Some(after) = offset.checked_add(len).filter(|&a| a <= self.end) else {
            return Ok(None);
        };
        let held = self.offset..self.offset + self.bytes.len() as u64;
        if offset < held.start || after > held.end {
            let want = len.max(self.len).min(self.end - offset);
            // The larger ones are not kept for the next.
            if self.bytes.capacity() as u64 > want.max(WINDOW_LEN) {
                self.bytes = Vec::new();
            }
            self.bytes.clear();
            self.offset = offset;
            memory::resize(&mut self.bytes, want as usize, "stretch of a blob file")?;
            if let Err(e) = self.file.read_exact_at(offset, &mut self.bytes) {
                self.bytes.clear();
                return Err(e);
            }
        }
        let start = (offset - self.offset) as usize;
        Ok(Some(&self.bytes[start..start + len as usize]))
    }
}
