//! Reads that follow each other through a file: a scan, the inputs of a compaction.
//!
//! Pointers in the order of keys lead through a blob file from front to back, past what is garbage;
//! those that are followed against it, from back to front.
//! Once a value is asked for that stands shortly behind the one before, or shortly before it, the system is
//! asked for what comes next that way, twice as much each time, up to a bound: it reads from the device while
//! values are used. Small values are read several at a time, so that there is not a system call for each: as many
//! bytes as the row has gone through, so that a short row is not copied for nothing. A
//! large one is read alone, and so are values that are asked for here and there. Where memory is scarce windows get
//! smaller, down to none.
//!
//! ```text
//! forward    [a][b][c][d][e][f][g]      asked for a: alone; for b: with c; for d: from d to g
//! backward   [a][b][c][d][e][f][g]      asked for g: alone; for f: with e; for d: from a to d
//! ```
//! Who turns around uses what is held; a row the other way begins with the second step.
//!
//! Who knows values that will be asked for announces them, one by one, where one had to be waited for: the device
//! then works on many places at a time. The system is asked for each run of them once, and for what comes behind
//! only where a row has got long. A window that begins with an announced value ends with what was asked for.
//!
//! What is in memory is read without asking the system for anything: the first value of a file that is not
//! begins that. And values that stand further apart than a read of each by itself costs are read alone: where keys were
//! written in no order, those of a table are spread over many files, each of which has one every few KiB.
//!
//! Invariant: of each file together, windows are no more bytes than 8 KiB and the values that were asked
//! for, and the system is asked for no more than 8 times these values, or what one is asked for at first, where
//! each value counts for 4 KiB at least. So values that do not lie in the order of their keys, or far apart,
//! are read alone.

use std::ops::Range;

use orogen_base::{ErrorKind, FileNo, Result, memory};

use super::{BlobFileReader, BlobValue, How};
use crate::format::HEADER_LEN;
use crate::meta::Extent;
use crate::pointer::BlobPointer;

/// Bytes that windows may have beyond the values that were asked for.
const WINDOW_SLACK: u64 = 8 << 10;
/// Bytes of memory that are taken for windows at least.
const WINDOW_ROOM_MIN: usize = 8 << 10;
/// Bytes that are read together at most.
const WINDOW_LEN_MAX: u64 = 64 << 10;
/// Records from so many bytes on are read alone.
const ALONE_SIZE_MIN: u64 = 4 << 10;
/// Bytes that the system is asked for at first.
const HINT_LEN_MIN: u64 = 32 << 10;
/// Bytes that are passed from one record to the next within a window: copying more takes longer than
/// another call of the system.
const WINDOW_GAP_MAX: u64 = 2 << 10;
/// Bytes that are passed from one record to the next of a row.
const GAP_MAX: u64 = 64 << 10;
/// What a value counts for at least: devices read pages.
const PAGE_LEN: u64 = 4 << 10;
/// Where single values are announced, the system is asked for more of a row that has gone through so many
/// bytes,
const HINTED_ROW_LEN_MIN: u64 = 8 << 10;
/// and through so many records as the last one.
const HINTED_ROW_RECORDS_MIN: u64 = 8;
/// Values so near each other are read with one request of the device.
const REQUEST_GAP_MAX: u64 = PAGE_LEN;
/// The system is asked for no more than so many times the bytes of the values.
const HINTED_PER_ASKED: u64 = 8;

/// What came of an attempt to read several records together.
enum Fill {
    /// The window has the record, or what there was of it.
    Window,
    /// It is to be read alone.
    Alone,
}

/// The way that a row goes through its file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Heading {
    Forward,
    Backward,
}

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
    /// Bytes to read together at most.
    window_len_max: u64,
    /// Bytes that this row has gone through.
    row_len: u64,
    /// Bytes of the values of this file that were asked for, at least a page each.
    asked: u64,
    /// Bytes that windows have read of it.
    windowed: u64,
    file: Option<FileNo>,
    /// Where the window begins.
    offset: u64,
    /// The window, and memory for larger ones.
    bytes: Vec<u8>,
    window_len: usize,
    /// The record that was asked for last.
    last: Extent,
    /// Bytes between it and the one before.
    gap: u64,
    /// Where the next one is likely to be, if anywhere.
    heading: Option<Heading>,
    /// The system is asked although nothing had to be waited for.
    hints_always: bool,
    /// A value of this file was not in memory.
    is_cold: bool,
    /// Bytes to ask the system for at first, and the next time.
    hint_len_min: u64,
    hint_len: u64,
    /// The system was asked for all of the row up to here; backward, down to here.
    hinted: u64,
    /// Bytes of this file that it was asked for.
    hinted_bytes: u64,
    /// Values that were announced, the last ones in a row.
    announced: Range<u64>,
    /// The end of them, which the system was not asked for yet.
    request: Range<u64>,
}

/// What stands in the way of a value.
pub enum AheadRead {
    /// Nothing.
    Value(BlobValue),
    /// It is not in memory: [`BlobFileReader::wait_ahead`] reads it.
    NotInMemory(Place),
}

/// Where a value is, and how the row gets there.
pub struct Place {
    extent: Extent,
    row: Option<Heading>,
    was_announced: bool,
}

impl Place {
    /// True if the system was asked for it: it is on its way.
    #[must_use]
    pub fn was_announced(&self) -> bool {
        self.was_announced
    }
}

impl BlobReadahead {
    /// Asks the system for up to `len_max` bytes ahead; with 0 nothing is read ahead.
    #[must_use]
    pub fn new(len_max: u64) -> Self {
        let hint_len_min = HINT_LEN_MIN.min(len_max);
        Self {
            account: None,
            len_max,
            window_len_max: WINDOW_LEN_MAX,
            row_len: 0,
            asked: 0,
            windowed: 0,
            file: None,
            offset: 0,
            bytes: Vec::new(),
            window_len: 0,
            last: Extent::default(),
            gap: 0,
            heading: None,
            hints_always: false,
            is_cold: false,
            hint_len_min,
            hint_len: hint_len_min,
            hinted: 0,
            hinted_bytes: 0,
            announced: 0..0,
            request: 0..0,
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

    /// The same, but the system is asked for as much as it may be from the first time on.
    #[must_use]
    pub fn at_once(mut self) -> Self {
        self.hint_len_min = self.len_max;
        self.hint_len = self.len_max;
        self.hints_always = true;
        self.is_cold = true;
        self
    }

    /// Windows get no longer than so many bytes from now on.
    pub fn set_window_len_max(&mut self, bytes: usize) {
        self.window_len_max = WINDOW_LEN_MAX.min(bytes as u64);
    }

    /// Memory for a window of `want` bytes, or of as many as are granted, empty.
    fn room(&mut self, want: usize) -> Result<usize> {
        self.window_len = 0;
        let granted = match &mut self.account {
            Some(account) => account.ask(want),
            None => WINDOW_ROOM_MIN.max(self.window_len_max as usize),
        };
        let want = want.min(granted);
        if self.bytes.capacity() < want || self.bytes.capacity() > granted {
            // Nothing of it is wanted any more, and not a byte more than was granted.
            self.bytes = Vec::new();
            let len = want.max(WINDOW_ROOM_MIN).min(granted);
            self.bytes = memory::with_capacity(len, "blob readahead")?;
        }
        if self.bytes.len() < want {
            self.bytes.resize(want, 0);
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
        self.bytes[..self.window_len].get(start..end)
    }

    /// Notes that this is asked for; tells which way it continues a row.
    #[inline]
    fn follow(&mut self, file: FileNo, extent: Extent) -> Option<Heading> {
        let is_next = self.file == Some(file)
            && self.heading == Some(Heading::Forward)
            && extent.offset.wrapping_sub(self.last.end()) <= GAP_MAX;
        if !is_next {
            return self.turn(file, extent);
        }
        self.gap = extent.offset - self.last.end();
        self.last = extent;
        self.row_len += self.gap + extent.size;
        self.asked += extent.size.max(PAGE_LEN);
        self.heading
    }

    /// Bytes from a record on that the system was asked for, if that is known: who reads more waits for what nobody
    /// wants yet.
    fn asked_for_from(&self, extent: Extent) -> u64 {
        match self.heading {
            Some(Heading::Forward) if self.announced.contains(&extent.offset) => {
                self.announced.end.max(self.hinted) - extent.offset
            }
            Some(Heading::Forward) if self.is_cold && self.hinted > extent.end() => {
                self.hinted - extent.offset
            }
            _ => u64::MAX,
        }
    }

    fn was_announced(&self, extent: Extent) -> bool {
        self.announced.start <= extent.offset && extent.end() <= self.announced.end
    }

    /// Forgets what is known of another file.
    fn begin(&mut self, file: FileNo) {
        if self.file == Some(file) {
            return;
        }
        self.file = Some(file);
        self.window_len = 0;
        self.heading = None;
        self.is_cold = self.hints_always;
        self.last = Extent::default();
        (self.asked, self.windowed, self.hinted_bytes) = (0, 0, 0);
        (self.announced, self.request) = (0..0, 0..0);
        self.restart(None);
    }

    /// [`Self::follow`] where it is not forward as before.
    fn turn(&mut self, file: FileNo, extent: Extent) -> Option<Heading> {
        self.begin(file);
        let last = std::mem::replace(&mut self.last, extent);
        self.asked += extent.size.max(PAGE_LEN);
        let near = |gap: Option<u64>| gap.filter(|&gap| gap <= GAP_MAX);
        let (after, before) = (
            near(extent.offset.checked_sub(last.end())),
            near(last.offset.checked_sub(extent.end())),
        );
        self.gap = after.or(before).unwrap_or_default();
        let heading = match (after, before) {
            _ if self.len_max == 0 || last.size == 0 => None,
            (Some(_), _) => Some(Heading::Forward),
            (None, Some(_)) => Some(Heading::Backward),
            (None, None) => None,
        };
        let before = std::mem::replace(&mut self.heading, heading);
        if heading != before {
            self.restart(heading);
            self.row_len = last.size;
        }
        self.row_len += self.gap + extent.size;
        heading.filter(|_| before.is_none() || before == heading)
    }

    fn restart(&mut self, heading: Option<Heading>) {
        self.row_len = 0;
        self.hint_len = self.hint_len_min;
        self.hinted = match heading {
            Some(Heading::Backward) => u64::MAX,
            _ => 0,
        };
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
        let place = self.place(ahead, pointer, user_key)?;
        if !ahead.is_cold
            && let Some(value) = self.try_place(ahead, &place, user_key, how)?
        {
            return Ok(value);
        }
        self.wait_place(ahead, &place, user_key, how)
    }

    /// Notes that a value is asked for; tells where it is.
    fn place(
        &self,
        ahead: &mut BlobReadahead,
        pointer: BlobPointer,
        user_key: &[u8],
    ) -> Result<Place> {
        let extent = self.record_extent(pointer, user_key)?;
        let row = ahead.follow(self.options.file_number, extent);
        if let Some(heading) = row.filter(|_| ahead.is_cold) {
            self.hint(ahead, extent, heading);
        }
        Ok(Place {
            extent,
            row,
            was_announced: ahead.was_announced(extent),
        })
    }

    /// As [`Self::read_ahead`] if nobody has to wait for the device. Else there is time to announce other values
    /// before [`Self::wait_ahead`].
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn try_ahead(
        &self,
        ahead: &mut BlobReadahead,
        pointer: BlobPointer,
        user_key: &[u8],
        verify: bool,
    ) -> Result<AheadRead> {
        let place = self.place(ahead, pointer, user_key)?;
        let value = self.try_place(ahead, &place, user_key, How::value(verify))?;
        Ok(value.map_or(AheadRead::NotInMemory(place), AheadRead::Value))
    }

    /// Reads what [`Self::try_ahead`] did not find in memory; `ahead` has not been used since but to announce.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn wait_ahead(
        &self,
        ahead: &mut BlobReadahead,
        place: &Place,
        user_key: &[u8],
        verify: bool,
    ) -> Result<BlobValue> {
        self.wait_place(ahead, place, user_key, How::value(verify))
    }

    fn try_place(
        &self,
        ahead: &mut BlobReadahead,
        place: &Place,
        user_key: &[u8],
        how: How,
    ) -> Result<Option<BlobValue>> {
        let extent = place.extent;
        if let Fill::Window = self.fill_if_due(ahead, extent, place.row, false)? {
            return self.held_value(ahead, extent, user_key, how).map(Some);
        }
        match self.read_once(extent, user_key, how, false) {
            Err(e) if e.kind() == ErrorKind::Corruption => {
                self.read_again(extent, user_key, how).map(Some)
            }
            read => read,
        }
    }

    fn wait_place(
        &self,
        ahead: &mut BlobReadahead,
        place: &Place,
        user_key: &[u8],
        how: How,
    ) -> Result<BlobValue> {
        let extent = place.extent;
        let was_cold = std::mem::replace(&mut ahead.is_cold, true);
        if let Some(heading) = place.row.filter(|_| !was_cold) {
            self.hint(ahead, extent, heading);
        }
        match self.fill_if_due(ahead, extent, place.row, true)? {
            Fill::Window => self.held_value(ahead, extent, user_key, how),
            Fill::Alone => self.read_extent(extent, user_key, how),
        }
    }

    /// The value of a record in the window.
    fn held_value(
        &self,
        ahead: &BlobReadahead,
        extent: Extent,
        user_key: &[u8],
        how: How,
    ) -> Result<BlobValue> {
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

    /// Reads a window for a record that is read with others, unless it is in one.
    fn fill_if_due(
        &self,
        ahead: &mut BlobReadahead,
        extent: Extent,
        row: Option<Heading>,
        waits: bool,
    ) -> Result<Fill> {
        if ahead.held(extent).is_some() {
            return Ok(Fill::Window);
        }
        let together = extent.size < ALONE_SIZE_MIN && ahead.gap <= WINDOW_GAP_MAX;
        match row.filter(|_| together) {
            Some(heading) => self.fill(ahead, extent, heading, waits),
            None => Ok(Fill::Alone),
        }
    }

    /// Notes that a value will be asked for soon: [`Self::request`] asks the system for it, with those behind it.
    /// Gives the bytes of its record; 0 if they were asked for before.
    pub fn announce(
        &self,
        ahead: &mut BlobReadahead,
        pointer: BlobPointer,
        user_key: &[u8],
    ) -> u64 {
        ahead.begin(self.options.file_number);
        let Ok(extent) = self.record_extent(pointer, user_key) else {
            // Who reads it tells why.
            return 0;
        };
        let Extent { offset, size } = extent;
        let is_announced = ahead.was_announced(extent);
        let is_hinted = ahead.heading == Some(Heading::Forward)
            && ahead.last.offset <= offset
            && extent.end() <= ahead.hinted;
        if is_announced || is_hinted || ahead.held(extent).is_some() {
            return 0;
        }
        let continues = |before: &Range<u64>| {
            let gap = offset.checked_sub(before.end);
            !before.is_empty() && gap.is_some_and(|gap| gap <= REQUEST_GAP_MAX)
        };
        if !continues(&ahead.announced) {
            ahead.announced.start = offset;
        }
        ahead.announced.end = extent.end();
        if !continues(&ahead.request) {
            self.request(ahead);
            ahead.request.start = offset;
        }
        ahead.request.end = extent.end();
        size
    }

    /// Asks the system for the values that were announced.
    pub fn request(&self, ahead: &mut BlobReadahead) {
        let request = std::mem::replace(&mut ahead.request, 0..0);
        if !request.is_empty() {
            // If its row gets long, more is asked for at a time.
            ahead.is_cold = true;
            self.file
                .prefetch(request.start, request.end - request.start);
        }
    }

    /// True if the byte in front of a value's end is in memory.
    #[must_use]
    pub fn is_in_memory(&self, pointer: BlobPointer) -> bool {
        let last = pointer
            .offset
            .saturating_add(pointer.size)
            .saturating_sub(1);
        matches!(
            self.file.read_at_without_waiting(last, &mut [0]),
            Ok(Some(_))
        )
    }

    /// Asks the system for what comes after a record of a row, once half of what it was asked for
    /// is used.
    #[inline]
    fn hint(&self, ahead: &mut BlobReadahead, extent: Extent, heading: Heading) {
        let is_short = ahead.row_len
            < HINTED_ROW_LEN_MIN.max(extent.size.saturating_mul(HINTED_ROW_RECORDS_MIN));
        if is_short && !ahead.announced.is_empty() && !ahead.hints_always {
            return;
        }
        let left = match heading {
            Heading::Forward => ahead.hinted.saturating_sub(extent.end()),
            Heading::Backward => extent.offset.saturating_sub(ahead.hinted),
        };
        if left <= ahead.hint_len / 2 {
            self.hint_more(ahead, extent, heading);
        }
    }

    fn hint_more(&self, ahead: &mut BlobReadahead, extent: Extent, heading: Heading) {
        let wanted = ahead.hint_len.max(extent.size);
        let bound = (ahead.asked.saturating_mul(HINTED_PER_ASKED)).max(ahead.hint_len_min);
        if wanted > bound.saturating_sub(ahead.hinted_bytes) {
            return;
        }
        let stretch = match heading {
            Heading::Forward => {
                let mut from = ahead.hinted.max(extent.offset);
                if ahead.announced.contains(&from) {
                    from = ahead.announced.end;
                }
                from..from.saturating_add(wanted).min(self.records_end())
            }
            Heading::Backward => {
                let to = ahead.hinted.min(extent.end());
                to.saturating_sub(wanted).max(HEADER_LEN as u64)..to
            }
        };
        if stretch.is_empty() {
            return;
        }
        let len = stretch.end - stretch.start;
        self.file.prefetch(stretch.start, len);
        ahead.hinted_bytes += len;
        ahead.hinted = match heading {
            Heading::Forward => stretch.end,
            Heading::Backward => stretch.start,
        };
        ahead.hint_len = ahead.hint_len.saturating_mul(2).min(ahead.len_max);
    }

    /// Reads a window that begins with `extent`, backward one that ends with it, unless there is no memory for it,
    /// or too much was read already.
    fn fill(
        &self,
        ahead: &mut BlobReadahead,
        extent: Extent,
        heading: Heading,
        waits: bool,
    ) -> Result<Fill> {
        let room = match heading {
            Heading::Forward => self.records_end() - extent.offset,
            Heading::Backward => extent.end() - HEADER_LEN as u64,
        };
        let bound = (WINDOW_SLACK + ahead.asked).saturating_sub(ahead.windowed);
        // As much as was of use so far: at most half of what is copied is for nothing.
        let want = ahead.row_len.max(ahead.gap + 2 * extent.size);
        let want = want.min(ahead.window_len_max).min(bound).min(room);
        let want = want.min(ahead.asked_for_from(extent));
        if want < extent.size {
            return Ok(Fill::Alone);
        }
        let want = match ahead.room(want as usize) {
            Ok(want) if want as u64 >= extent.size => want,
            _ => return Ok(Fill::Alone),
        };
        ahead.offset = match heading {
            Heading::Forward => extent.offset,
            Heading::Backward => extent.end() - want as u64,
        };
        let window = &mut ahead.bytes[..want];
        // An error may be of what nobody asks for: the record is read alone, and tells its own.
        let read = if waits {
            self.file.read_at(ahead.offset, window).ok()
        } else {
            let read = self.file.read_at_without_waiting(ahead.offset, window);
            read.unwrap_or(None)
        };
        let Some(read) = read else {
            // That may be what nobody asks for. The next window is a small one again.
            ahead.row_len = extent.size;
            return Ok(Fill::Alone);
        };
        self.count_read(want as u64);
        ahead.windowed += want as u64;
        ahead.window_len = read;
        Ok(Fill::Window)
    }
}
