//! Reads that follow each other through a file: a scan, the inputs of a compaction.
//!
//! Pointers in the order of keys lead through a blob file from front to back, past what is garbage.
//! Once a value is asked for that stands shortly behind the one before, more than it is read, and
//! twice as much each time, up to a bound. Values that are asked for here and there are read alone.

use orogen_base::{FileNo, Result, memory};

use super::{BlobFileReader, BlobValue, How};
use crate::meta::Extent;
use crate::pointer::BlobPointer;

/// Bytes that are read ahead at first.
const AHEAD_LEN_MIN: u64 = 32 << 10;

/// What was read ahead, of one file of one database at a time.
#[derive(Debug)]
pub struct BlobReadahead {
    len_max: u64,
    /// Bytes to read the next time.
    len: u64,
    file: Option<FileNo>,
    offset: u64,
    bytes: Vec<u8>,
    /// Behind the last value that was asked for.
    next: u64,
}

impl BlobReadahead {
    /// Reads up to `len_max` bytes ahead; with 0 never.
    #[must_use]
    pub fn new(len_max: u64) -> Self {
        Self {
            len_max,
            len: AHEAD_LEN_MIN.min(len_max),
            file: None,
            offset: 0,
            bytes: Vec::new(),
            next: 0,
        }
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.bytes.capacity()
    }

    fn held(&self, extent: Extent) -> Option<&[u8]> {
        let start = usize::try_from(extent.offset.checked_sub(self.offset)?).ok()?;
        let end = start.checked_add(usize::try_from(extent.size).ok()?)?;
        self.bytes.get(start..end)
    }

    /// Notes that this is asked for; true if it stands shortly behind what was asked for before.
    fn follow(&mut self, file: FileNo, extent: Extent) -> bool {
        let is_same = self.file == Some(file);
        let is_in_row =
            is_same && extent.offset >= self.next && extent.offset - self.next <= self.len;
        if !is_same {
            self.file = Some(file);
            self.bytes.clear();
        }
        if !is_in_row {
            self.len = AHEAD_LEN_MIN.min(self.len_max);
        }
        self.next = extent.end();
        is_in_row
    }
}

impl BlobFileReader {
    /// As [`Self::read`], with what `ahead` has read already, and reading more where it is likely
    /// to be asked for.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_ahead(
        &self,
        ahead: &mut BlobReadahead,
        pointer: BlobPointer,
        user_key: &[u8],
        verify: bool,
    ) -> Result<BlobValue> {
        self.read_ahead_how(ahead, pointer, user_key, How::value(verify))
    }

    pub(super) fn read_ahead_how(
        &self,
        ahead: &mut BlobReadahead,
        pointer: BlobPointer,
        user_key: &[u8],
        how: How,
    ) -> Result<BlobValue> {
        let extent = self.record_extent(pointer, user_key)?;
        let is_in_row = ahead.follow(self.options.file_number, extent);
        if ahead.held(extent).is_none() {
            // What is large has no need of neighbours, and would have to be copied.
            if !is_in_row || extent.size > ahead.len / 2 {
                return self.read_extent(extent, user_key, how);
            }
            self.fill(ahead, extent)?;
        }
        let value = ahead.held(extent).map(|record| {
            self.check(record, extent, user_key, how.verify)
                .and_then(|start| self.expand_value(&record[start..], extent, how))
        });
        match value {
            Some(Ok(value)) => Ok(value),
            // The file is shorter than it was, or what was read is damaged: it tells which.
            _ => self.read_extent(extent, user_key, how),
        }
    }

    fn fill(&self, ahead: &mut BlobReadahead, extent: Extent) -> Result<()> {
        let want = ahead.len.min(self.records_end() - extent.offset);
        ahead.bytes.clear();
        ahead.offset = extent.offset;
        memory::resize(&mut ahead.bytes, want as usize, "blob readahead")?;
        self.count_read(want);
        let n = match self.file.read_at(extent.offset, &mut ahead.bytes) {
            Ok(n) => n,
            Err(e) => {
                ahead.bytes.clear();
                return Err(e);
            }
        };
        ahead.bytes.truncate(n);
        ahead.len = (ahead.len * 2).min(ahead.len_max);
        Ok(())
    }
}
