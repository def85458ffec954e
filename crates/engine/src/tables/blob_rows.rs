//! What a cursor has of blob files: what it has read ahead, and the value that it stands on.
//!
//! Under a budget both are reserved in its cache, as what cursors over tables read ahead is.

use orogen_base::FileNo;
use orogen_blob::{BlobReadahead, WindowAccount};
use orogen_cache::Reservation;
use orogen_sst::{CachedBlock, Readahead};

use super::FamilyTables;

/// Blob files that a cursor goes through at the same time: where keys came in no order, there is one for
/// each flush since values were written in the order of keys.
const ROWS_MAX: usize = 64;
/// Bytes of all windows, but for the smallest that each file may have.
const WINDOWS_LEN_MAX: usize = 512 << 10;
/// Bytes that it reads ahead of each, unless it is told how many.
const ROW_LEN_MAX: u64 = 256 << 10;
/// Smaller windows are not worth a read.
const WINDOW_LEN_MIN: usize = 8 << 10;
/// Smaller values are not worth a reservation.
const UNCOUNTED_VALUE_LEN_MAX: usize = 32 << 10;

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
    /// Of the value that it stands on.
    value: Option<Reservation<CachedBlock>>,
}

impl BlobRows {
    /// That of a file; the one that was not asked for the longest goes where there are too many.
    pub(super) fn of(
        &mut self,
        tables: &FamilyTables,
        file: FileNo,
        readahead: Readahead,
    ) -> &mut BlobReadahead {
        self.clock += 1;
        let i = match self.files.iter().position(|&f| f == file) {
            Some(i) => i,
            None => self.begin(tables, file, readahead),
        };
        let row = &mut self.rows[i];
        row.asked = self.clock;
        row.ahead
            .set_window_len_max((WINDOWS_LEN_MAX / self.files.len()).max(WINDOW_LEN_MIN));
        &mut row.ahead
    }

    #[cold]
    fn begin(&mut self, tables: &FamilyTables, file: FileNo, readahead: Readahead) -> usize {
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
        let row = Row { asked: 0, ahead };
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
