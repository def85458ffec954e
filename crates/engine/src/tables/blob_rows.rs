//! What a cursor has of blob files: what it has read ahead, and the value that it stands on.
//!
//! Each value is tried without waiting first. Where values are in memory that is all. Else, from the second value
//! of a scan on, those that its tables show next are announced, 16 and then 64 at a time, since values that follow each other
//! by key may be in as many files, and a device that is asked for one at a time does a seventh of what it can. It
//! ends when what is announced turns out to be in memory.
//!
//! Under a budget both are reserved in its cache, as what cursors over tables read ahead is.

use std::sync::Arc;

use orogen_base::metrics::{HistogramKind, Statistics};
use orogen_base::{FileNo, Result};
use orogen_blob::{BlobReadahead, WindowAccount};
use orogen_cache::Reservation;
use orogen_sst::{CachedBlock, Readahead};

use super::FamilyTables;

/// Blob files that a cursor goes through at the same time: where keys came in no order, there is one for
/// each flush since values were written in the order of keys.
const ROWS_MAX: usize = 64;
/// Bytes of all windows, but for the smallest that each file may have.
const WINDOWS_LEN_MAX: usize = 512 << 10;
/// Values after which it is looked at how many files there are.
const ROWS_LOOK: u64 = 256;
/// A file of which so many values none is asked for is left.
const ROW_KEPT: u64 = 1024;
/// Bytes that it reads ahead of each, unless it is told how many.
const ROW_LEN_MAX: u64 = 256 << 10;
/// Values that are announced once the second one of a row is asked for, and one had to be waited for.
const ANNOUNCED_MIN: usize = 16;
/// Values that are announced at most: devices do no more at a time.
const ANNOUNCED_MAX: usize = 64;
/// How many times as many values are announced each time.
const ANNOUNCED_GROWTH: usize = 4;
/// Bytes of them at most, but for one.
const ANNOUNCED_BYTES_MAX: u64 = 1 << 20;
/// After so many announcements of what is in memory there are none until a value has to be waited for again.
const NEEDLESS_MAX: u32 = 2;
/// Smaller windows are not worth a read.
const WINDOW_LEN_MIN: usize = 8 << 10;
/// Smaller values are not worth a reservation.
const UNCOUNTED_VALUE_LEN_MAX: usize = 32 << 10;

/// Values that are announced together.
pub(super) struct Announcement {
    values: usize,
    values_max: usize,
    bytes: u64,
    bytes_max: u64,
}

impl Announcement {
    /// True if nothing that was not known was announced yet.
    pub(super) fn is_first(&self) -> bool {
        self.bytes == 0
    }

    /// Adds a value whose record has so many bytes; 0 if it was announced before. True if there is room for more.
    pub(super) fn add(&mut self, bytes: u64) -> bool {
        self.values += 1;
        self.bytes += bytes;
        self.values < self.values_max && self.bytes < self.bytes_max
    }
}

struct Row {
    /// When it was asked for last.
    asked: u64,
    ahead: BlobReadahead,
}

/// What a cursor has read ahead, of the blob files that it goes through.
#[derive(Default)]
pub(crate) struct BlobRows {
    /// The files of `rows`.
    files: Vec<FileNo>,
    rows: Vec<Row>,
    /// Values asked for.
    clock: u64,
    /// Bytes that each window may have; 0 as long as that was not looked at.
    window_len_max: usize,
    /// Values had to be waited for.
    is_cold: bool,
    /// Values that were announced and not asked for yet.
    announced: usize,
    /// Values to announce the next time.
    announces: usize,
    /// Announcements in a row that began with a value which was in memory.
    needless: u32,
    /// Of the value that it stands on.
    value: Option<Reservation<CachedBlock>>,
    touched: Touched,
}

/// How many files a cursor came to, told when it goes.
#[derive(Default)]
struct Touched {
    files: u64,
    /// Where it is told, once there was a file.
    statistics: Option<Arc<Statistics>>,
    /// It is a job's, and not told of.
    is_of_job: bool,
}

impl Drop for Touched {
    fn drop(&mut self) {
        if let Some(statistics) = &self.statistics {
            statistics.record(HistogramKind::BlobIterTouchedFiles, self.files);
        }
    }
}

impl BlobRows {
    /// That of a job, whose way is no cursor's.
    pub(super) fn of_job() -> Self {
        Self {
            touched: Touched {
                files: 0,
                statistics: None,
                is_of_job: true,
            },
            ..Self::default()
        }
    }

    /// That of a file; the one that was not asked for the longest goes where there are too many.
    pub(super) fn of(
        &mut self,
        tables: &FamilyTables,
        file: FileNo,
        readahead: Readahead,
    ) -> &mut BlobReadahead {
        self.clock += 1;
        if self.clock.is_multiple_of(ROWS_LOOK) {
            self.share_windows();
        }
        let i = match self.files.iter().position(|&f| f == file) {
            Some(i) => i,
            None => self.begin(tables, file, readahead),
        };
        let row = &mut self.rows[i];
        row.asked = self.clock;
        &mut row.ahead
    }

    /// Shares the bytes of windows among the files that the cursor still comes to; the others are left.
    #[cold]
    fn share_windows(&mut self) {
        let since = self.clock.saturating_sub(ROW_KEPT);
        let mut i = 0;
        while i < self.rows.len() {
            if self.rows[i].asked < since {
                self.files.swap_remove(i);
                self.rows.swap_remove(i);
            } else {
                i += 1;
            }
        }
        let len = (WINDOWS_LEN_MAX / self.rows.len().max(1)).max(WINDOW_LEN_MIN);
        self.rows
            .iter_mut()
            .for_each(|row| row.ahead.set_window_len_max(len));
        self.window_len_max = len;
    }

    #[cold]
    fn begin(&mut self, tables: &FamilyTables, file: FileNo, readahead: Readahead) -> usize {
        self.touched.files += 1;
        if self.touched.statistics.is_none() && !self.touched.is_of_job {
            self.touched.statistics = Some(tables.statistics.clone());
        }
        let len_max = match readahead {
            Readahead::Auto => ROW_LEN_MAX,
            Readahead::Off => 0,
            Readahead::Fixed(bytes) => bytes as u64,
        };
        let ahead = match tables.account() {
            Some(account) => BlobReadahead::within(Box::new(Windows(account)), len_max),
            None => BlobReadahead::new(len_max),
        };
        let ahead = match readahead {
            Readahead::Fixed(_) => ahead.at_once(),
            _ => ahead,
        };
        let mut row = Row { asked: 0, ahead };
        if self.window_len_max > 0 {
            row.ahead.set_window_len_max(self.window_len_max);
        }
        if self.rows.len() < ROWS_MAX {
            self.files.push(file);
            self.rows.push(row);
            return self.rows.len() - 1;
        }
        let oldest = self
            .rows
            .iter()
            .enumerate()
            .min_by_key(|(_, row)| row.asked);
        let i = oldest.map_or(0, |(i, _)| i);
        self.files[i] = file;
        self.rows[i] = row;
        i
    }

    /// True if most of what was announced is used. Notes that a value is asked for.
    #[inline]
    pub(super) fn is_announcement_due(&mut self) -> bool {
        if !self.is_cold {
            return false;
        }
        self.announced = self.announced.saturating_sub(1);
        self.announced <= self.announces / 8
    }

    /// Notes that a value had to be waited for.
    pub(super) fn note_waited(&mut self, was_announced: bool) {
        self.is_cold = true;
        if !was_announced {
            // The cursor has come here from elsewhere: how far it goes cannot be told.
            (self.announces, self.announced) = (0, 0);
        }
    }

    /// Begins to announce values, more than before.
    pub(super) fn begin_announcement(&mut self, readahead: Readahead) -> Option<Announcement> {
        let bytes_max = match readahead {
            Readahead::Off => return None,
            Readahead::Auto => ANNOUNCED_BYTES_MAX,
            Readahead::Fixed(bytes) => ANNOUNCED_BYTES_MAX.min(bytes as u64),
        };
        let values_max = self.announces * ANNOUNCED_GROWTH;
        Some(Announcement {
            values: 0,
            values_max: values_max.clamp(ANNOUNCED_MIN, ANNOUNCED_MAX),
            bytes: 0,
            bytes_max,
        })
    }

    /// Tells whether the first value of an announcement was in memory.
    pub(super) fn note_first(&mut self, was_in_memory: bool) {
        self.needless = match was_in_memory {
            true => self.needless + 1,
            false => 0,
        };
    }

    /// Asks the system for what was announced.
    pub(super) fn end_announcement(
        &mut self,
        announcement: &Announcement,
        request: impl Fn(FileNo, &mut BlobReadahead) -> Result<()>,
    ) {
        // The first is the one that is asked for now.
        self.announced = announcement.values.saturating_sub(1);
        self.announces = announcement.values_max;
        if announcement.bytes == 0 {
            // If there were as many as wanted, files are read ahead by now, or the cache has the values.
            self.needless += u32::from(announcement.values >= announcement.values_max);
        } else {
            for (&file, row) in self.files.iter().zip(&mut self.rows) {
                // A file that does not open tells so when it is read.
                let _ = request(file, &mut row.ahead);
            }
        }
        if self.needless >= NEEDLESS_MAX {
            (self.is_cold, self.needless, self.announced) = (false, 0, 0);
        }
    }

    /// The cursor stands on a value of so many bytes, which nobody else counts.
    pub(super) fn hold(&mut self, tables: &FamilyTables, bytes: usize) {
        if bytes > UNCOUNTED_VALUE_LEN_MAX
            && let Some(mut account) = tables.account()
        {
            account.set(bytes);
            self.value = Some(account);
        }
    }

    /// The cursor leaves its value.
    #[inline]
    pub(super) fn let_go(&mut self) {
        self.value = None;
    }
}

impl FamilyTables {
    /// Where what readers hold is reserved, if it is.
    fn account(&self) -> Option<Reservation<CachedBlock>> {
        let budget = self.budget.as_ref()?;
        Some(Reservation::new(budget.block_cache().clone()))
    }
}

struct Windows(Reservation<CachedBlock>);

impl WindowAccount for Windows {
    fn ask(&mut self, bytes: usize) -> usize {
        let mut room = bytes.max(WINDOW_LEN_MIN);
        if !self.0.is_granted_still() {
            // Others need it more by now.
            room = room.min(self.0.bytes() / 2);
            self.0.set(room);
        }
        while room >= WINDOW_LEN_MIN && !self.0.try_grow(room) {
            room /= 2;
        }
        if room < WINDOW_LEN_MIN {
            self.0.set(0);
        }
        self.0.bytes()
    }
}
