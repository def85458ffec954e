//! The files of one sorted level as one cursor.
//!
//! A table is opened when the cursor gets to it, and one is open at a time; files outside the
//! read's bounds are never opened. Source: RocksDB `db/version_set.cc` (`LevelIterator`).
//! `Hot path`.
//!
//! Invariants: (1) `open` is a cursor over file `at` of the level; (2) while `ended`, the cursor
//! is not valid, wherever `open` stands; it is kept because the next seek often wants it again.

use std::ops::Range;
use std::sync::Arc;

use orogen_base::key::InternalKeyComparator;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{Error, InternalIterator, PinnedValue, Result};

use super::table_access::TableAccess;
use crate::version::Level;

/// The cursor over the point entries of a level's files.
pub struct LevelIter<T: TableAccess> {
    order: InternalKeyComparator,
    tables: Arc<T>,
    options: T::Options,
    level: Arc<Level>,
    /// The files that may hold keys within the bounds.
    files: Range<usize>,
    at: usize,
    open: Option<T::Iter>,
    ended: bool,
    error: Option<Error>,
}

impl<T: TableAccess> LevelIter<T> {
    /// A cursor over a level below 0. The bounds are user keys, `lower` included and `upper`
    /// not; entries outside may still be returned. Not valid before a seek.
    #[must_use]
    pub fn new(
        order: InternalKeyComparator,
        tables: Arc<T>,
        options: T::Options,
        level: Arc<Level>,
        lower: Option<&[u8]>,
        upper: Option<&[u8]>,
    ) -> Self {
        let user = &order.user;
        let first = lower.map_or(0, |l| level.find_file(&order, l));
        let end = upper.map_or(level.len(), |u| {
            level
                .files()
                .partition_point(|f| user.less(f.smallest_user_key(), u))
        });
        Self {
            order,
            tables,
            options,
            level,
            files: first..end.max(first),
            at: 0,
            open: None,
            ended: true,
            error: None,
        }
    }

    /// False if the level surely has no key with the prefix of `user_key`, by the files' bounds
    /// and filters.
    ///
    /// # Errors
    /// If a file cannot be opened.
    pub(super) fn may_hold_prefix(
        &self,
        extractor: &dyn SliceTransform,
        user_key: &[u8],
    ) -> Result<bool> {
        let files = self.level.files();
        let has_prefix = |k: &[u8]| {
            extractor.in_domain(k) && extractor.transform(k) == extractor.transform(user_key)
        };
        let at = self.level.find_file(&self.order, user_key);
        let before = at.checked_sub(1).map(|i| files[i].largest_user_key());
        let after = files.get(at + 1).map(|f| f.smallest_user_key());
        if before.into_iter().chain(after).any(has_prefix) {
            return Ok(true);
        }
        // Keys of a prefix stand together, so only the file around the key can have any.
        let Some(file) = files.get(at) else {
            return Ok(false);
        };
        let starts_behind = self.order.user.less(user_key, file.smallest_user_key());
        if starts_behind && !has_prefix(file.smallest_user_key()) {
            return Ok(false);
        }
        self.tables
            .may_hold_prefix(file, &self.options, extractor, user_key)
    }

    /// Opens file `at` unless it is open; false after an error. `is_neighbour` if the cursor goes
    /// on to it from the file that is open.
    fn open(&mut self, at: usize, is_neighbour: bool) -> bool {
        if self.open.is_none() || self.at != at {
            let (file, options) = (&self.level.files()[at], &self.options);
            let opened = match self.open.take() {
                Some(done) => self.tables.next_iter(file, options, done, is_neighbour),
                None => self.tables.iter(file, options),
            };
            match opened {
                Ok(iter) => (self.at, self.open) = (at, Some(iter)),
                Err(error) => {
                    self.error = Some(error);
                    return false;
                }
            }
        }
        self.ended = false;
        true
    }

    /// Forgets where the cursor was; true if a file of the bounds is at `at` and could be opened.
    fn start(&mut self, at: Option<usize>) -> bool {
        self.error = None;
        self.ended = true;
        at.is_some_and(|at| self.files.contains(&at) && self.open(at, false))
    }

    #[inline]
    fn table(&mut self) -> &mut T::Iter {
        self.open
            .as_mut()
            .expect("a cursor that moves has an open table")
    }

    /// True if the open table has nothing more this way and no error either.
    #[inline]
    fn table_ended(&mut self) -> bool {
        let Some(open) = self.open.as_ref().filter(|_| !self.ended) else {
            return false;
        };
        if open.valid() {
            return false;
        }
        if let Err(error) = open.status() {
            self.error = Some(error);
            self.ended = true;
            return false;
        }
        true
    }

    fn skip_ended_forward(&mut self) {
        while self.table_ended() {
            let next = self.at + 1;
            self.ended = true;
            if !self.files.contains(&next) || !self.open(next, true) {
                return;
            }
            self.table().seek_to_first();
        }
    }

    fn skip_ended_backward(&mut self) {
        while self.table_ended() {
            self.ended = true;
            if self.at <= self.files.start || !self.open(self.at - 1, true) {
                return;
            }
            self.table().seek_to_last();
        }
    }
}

impl<T: TableAccess> InternalIterator for LevelIter<T> {
    #[inline]
    fn valid(&self) -> bool {
        !self.ended && self.open.as_ref().is_some_and(T::Iter::valid)
    }

    fn seek_to_first(&mut self) {
        if self.start(Some(self.files.start)) {
            self.table().seek_to_first();
            self.skip_ended_forward();
        }
    }

    fn seek_to_last(&mut self) {
        if self.start(self.files.end.checked_sub(1)) {
            self.table().seek_to_last();
            self.skip_ended_backward();
        }
    }

    fn seek(&mut self, target: &[u8]) {
        let at = self
            .level
            .find_file_for_seek(&self.order, target)
            .max(self.files.start);
        if self.start(Some(at)) {
            self.table().seek(target);
            self.skip_ended_forward();
        }
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let after = self.level.find_file_for_seek(&self.order, target);
        let starts_in_time = |f: &usize| {
            self.order
                .compare(&self.level.files()[*f].smallest, target)
                .is_le()
        };
        let within = (after < self.level.len())
            .then_some(after)
            .filter(starts_in_time);
        let at = within.or_else(|| after.checked_sub(1));
        let at = at.map(|at| at.min(self.files.end.saturating_sub(1)));
        if self.start(at) {
            self.table().seek_for_prev(target);
            self.skip_ended_backward();
        }
    }

    #[inline]
    fn next(&mut self) {
        self.table().next();
        self.skip_ended_forward();
    }

    #[inline]
    fn prev(&mut self) {
        self.table().prev();
        self.skip_ended_backward();
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.open
            .as_ref()
            .expect("a valid cursor has an open table")
            .key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.open
            .as_ref()
            .expect("a valid cursor has an open table")
            .value()
    }

    fn pinned_value(&self) -> Result<PinnedValue> {
        self.open
            .as_ref()
            .expect("a valid cursor has an open table")
            .pinned_value()
    }

    fn peek(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        self.open.as_ref().is_some_and(|open| open.peek(visit))
    }

    fn status(&self) -> Result<()> {
        match (&self.error, &self.open) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(open)) if self.valid() => open.status(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
