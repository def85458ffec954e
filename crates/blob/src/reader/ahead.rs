//! Reads that follow each other through a file: a scan, the inputs of a compaction.
//!
//! Pointers in the order of keys lead through a blob file from front to back, past what is garbage.
//! Once a value is asked for that stands shortly behind the one before, the system is asked for what
//! comes next, twice as much each time, up to a bound: it reads from the device while values are
//! used. Small values are read several at a time, so that there is not a system call for each; a
//! large one alone, as it would be copied for nothing. So are values that are asked for here and
//! there. Where memory is scarce windows get smaller, down to none.

use orogen_base::{FileNo, Result, memory};

use super::{BlobFileReader, BlobValue, How};
use crate::meta::Extent;
use crate::pointer::BlobPointer;

/// Bytes that are read together at first.
const WINDOW_LEN_MIN: u64 = 8 << 10;
/// Bytes that are read together at most.
const WINDOW_LEN_MAX: u64 = 64 << 10;
/// Records from so many bytes on are read alone.
const ALONE_SIZE_MIN: u64 = 4 << 10;
/// Bytes that the system is asked for at first.
const HINT_LEN_MIN: u64 = 32 << 10;
/// Bytes that are passed from one record to the next of a row.
const GAP_MAX: u64 = 64 << 10;

/// Where the memory of windows is asked for, if it is bounded.
pub trait WindowAccount: Send + Sync {
    /// Asks for `bytes` in all, and tells what may be held from now on: more, where more was granted
    /// before; less where memory is scarce, down to nothing. What is held beyond that is let go of at
    /// once.
    fn ask(&mut self, bytes: usize) -> usize;
}

/// What was read ahead, of one file of one database at a time.
pub struct BlobReadahead {
    account: Option<Box<dyn WindowAccount>>,
    len_max: u64,
    /// Bytes to read together the next time.
    window_len: u64,
    file: Option<FileNo>,
    offset: u64,
    bytes: Vec<u8>,
    /// Behind the last value that was asked for.
    next: u64,
    /// Bytes to ask the system for the next time.
    hint_len: u64,
    /// The system was asked for all of the row up to here.
    hinted: u64,
}

impl BlobReadahead {
    /// Asks the system for up to `len_max` bytes ahead; with 0 nothing is read ahead.
    #[must_use]
    pub fn new(len_max: u64) -> Self {
        Self {
            account: None,
            len_max,
            window_len: WINDOW_LEN_MIN,
            file: None,
            offset: 0,
            bytes: Vec::new(),
            next: 0,
            hint_len: HINT_LEN_MIN.min(len_max),
            hinted: 0,
        }
    }

    /// As [`Self::new`], within what an account grants.
    #[must_use]
    pub fn within(account: Box<dyn WindowAccount>, len_max: u64) -> Self {
        Self {
            account: Some(account),
            ..Self::new(len_max)
        }
    }

    /// Memory for a window of `want` bytes, or of as many as are granted, empty.
    fn room(&mut self, want: usize) -> Result<usize> {
        self.bytes.clear();
        let granted = match &mut self.account {
            Some(account) => account.ask(want),
            None => usize::MAX,
        };
        let want = want.min(granted);
        if self.bytes.capacity() < want || self.bytes.capacity() > granted {
            // Nothing of it is wanted any more, and not a byte more than was granted.
            self.bytes = Vec::new();
            self.bytes = memory::with_capacity(want, "blob readahead")?;
        }
        Ok(want)
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
        let is_in_row = self.len_max > 0
            && is_same
            && extent.offset >= self.next
            && extent.offset - self.next <= GAP_MAX;
        if !is_same {
            self.file = Some(file);
            self.bytes.clear();
        }
        if !is_in_row {
            self.window_len = WINDOW_LEN_MIN;
            self.hint_len = HINT_LEN_MIN.min(self.len_max);
            self.hinted = 0;
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
        if is_in_row {
            self.hint(ahead, extent);
        }
        if ahead.held(extent).is_none() {
            let is_alone = !is_in_row || extent.size >= ALONE_SIZE_MIN;
            if is_alone || !self.fill(ahead, extent)? {
                return self.read_extent(extent, user_key, how);
            }
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

    /// Asks the system for what comes behind a record of a row, once half of what it was asked for
    /// is used.
    fn hint(&self, ahead: &mut BlobReadahead, extent: Extent) {
        let from = ahead.hinted.max(extent.offset);
        let end = self.records_end();
        if from >= end || extent.end() + ahead.hint_len / 2 < ahead.hinted {
            return;
        }
        let len = ahead.hint_len.max(extent.size).min(end - from);
        self.file.prefetch(from, len);
        ahead.hinted = from + len;
        ahead.hint_len = (ahead.hint_len * 2).min(ahead.len_max);
    }

    /// Reads a window that begins with `extent`; false if there is no memory for it.
    fn fill(&self, ahead: &mut BlobReadahead, extent: Extent) -> Result<bool> {
        let want = ahead.window_len.min(self.records_end() - extent.offset) as usize;
        let want = ahead.room(want)?;
        if (want as u64) < extent.size {
            return Ok(false);
        }
        ahead.offset = extent.offset;
        self.count_read(want as u64);
        let read = self.file.append_at(extent.offset, want, &mut ahead.bytes);
        if let Err(e) = read {
            ahead.bytes.clear();
            return Err(e);
        }
        ahead.window_len = (ahead.window_len * 2).min(WINDOW_LEN_MAX);
        Ok(true)
    }
}
