//! The iterator that users see: the newest visible version of each key, in key order.
//!
//! ```text
//! internal entries  a@9 a@4  b@8:deletion b@2  c@7:merge c@5:merge c@1     (reader at 8)
//! seen by the user  a@4                        c = merge(c@1, c@5, c@7)
//! ```
//! Going forward the cursor below meets the newest version of a key first and the iterator
//! stands on it: key and value are slices of what the cursor pins. Going backward it meets the
//! oldest first, has passed the newest before it knows, and keeps a copy (of small values) or a
//! pin (of large ones).
//!
//! A value in a blob file is read when the iterator comes to it, or when it is asked for.
//!
//! Invariants: (1) at [`At::Entry`] and [`At::Pointer`] the direction is forward and the cursor stands on the
//! current entry; (2) at [`At::Copy`] `key` is the current key, and the cursor stands on or after
//! the older versions of it (forward), or on the last entry before the key (backward), or at the
//! end; (3) turning around always seeks from the current key, so entries that writers add
//! meanwhile cannot mislead it; (4) an error below makes the iterator invalid until the next
//! seek.
//! Source: RocksDB `db/db_iter.cc`. `Hot path`.

use std::any::Any;
use std::sync::Arc;

use orogen_base::key::{ParsedInternalKey, append_internal_key, append_seek_key, user_key};
use orogen_base::perf::PerfCounter;
use orogen_base::slice_transform::SliceTransform;
use orogen_base::{Error, InternalIterator, PinnedValue, Result, SeqNo, UserComparator, ValueKind};
use orogen_env::PerfTimer;
use orogen_memtable::MemTable;

use super::merge::MergeOperands;
use super::source::Source;
use super::table_access::{TableAccess, Upcoming};
use super::{LevelIter, MergingIter, Places, RangeDelAggregator, ReadOptions};
use crate::plugin::merge_operator::MergeOperator;
use crate::version::Version;
use crate::version::level::is_exclusive_end;
use counts::Counts;
use prefix::PrefixFilters;

mod backward;
mod counts;
mod forward;
mod prefix;

/// Entries of one key, or keys of one range tombstone, that are passed one by one before a seek
/// is taken to be cheaper. RocksDB's `max_sequential_skip_in_iterations`.
const SEQUENTIAL_SKIP_MAX: usize = 8;

/// Bytes of a value that are copied rather than pinned when the cursor must leave it.
const COPIED_VALUE_SIZE_MAX: usize = 256;

/// What an iterator reads and how.
pub struct Scan<'a> {
    /// The read's options; their snapshot was resolved to `read_seqno`.
    pub options: &'a ReadOptions,
    /// The newest write that the iterator sees.
    pub read_seqno: SeqNo,
    /// The family's extractor.
    pub prefix_extractor: Option<&'a Arc<dyn SliceTransform>>,
    /// What must live as long as the iterator: the super version.
    pub pin: Arc<dyn Any + Send + Sync>,
}

/// Where the iterator stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Nowhere,
    /// On the entry under the cursor.
    Entry,
    /// On the entry under the cursor, which is a pointer; what it leads to is in `held`.
    Pointer,
    /// On `key`, with the value in `held`.
    Copy,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A value that is not under the cursor.
enum Held {
    /// In `DbIterator::copied`.
    Copied,
    Pinned(PinnedValue),
    /// In a blob file; the pointer is in `DbIterator::copied`.
    InBlobFile,
}

/// Iterates over the keys of one column family as of one sequence number.
pub struct DbIterator<T: TableAccess> {
    iter: MergingIter<Source<T>>,
    tombstones: RangeDelAggregator<T>,
    order: UserComparator,
    read_seqno: SeqNo,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// Set if the iteration ends with the prefix.
    prefix_extractor: Option<Arc<dyn SliceTransform>>,
    /// The prefix that keys must have.
    prefix: Option<Vec<u8>>,
    /// Asked which places may hold the prefix, if it may be asked.
    filters: Option<PrefixFilters<T>>,
    merge_operator: Option<Arc<dyn MergeOperator>>,
    at: At,
    direction: Direction,
    /// The latest move was [`Self::next`].
    goes_on: bool,
    /// At [`At::Entry`] and [`At::Pointer`]: the entry has no older versions.
    is_last_version: bool,
    /// The current key at [`At::Copy`]; else the key whose entries are being passed.
    key: Vec<u8>,
    held: Held,
    copied: Vec<u8>,
    operands: MergeOperands,
    /// The internal key of the latest seek.
    target: Vec<u8>,
    error: Option<Error>,
    counts: Counts,
    /// What pointers are followed with.
    tables: Arc<T>,
    table_options: T::Options,
    version: Arc<Version>,
    ahead: T::Readahead,
    /// Values in blob files are read when they are asked for.
    allow_unprepared_value: bool,
    /// Dropped after all that reads from it.
    _pin: Arc<dyn Any + Send + Sync>,
}

impl<T: TableAccess> DbIterator<T> {
    /// An iterator over `places`. Not valid before a seek.
    ///
    /// # Errors
    /// If a table of level 0 cannot be opened; deeper levels are opened when a seek gets there.
    pub fn new<'a, M>(places: &Places<'a, T, M>, scan: Scan<'_>) -> Result<Self>
    where
        M: Iterator<Item = &'a Arc<dyn MemTable>> + Clone,
    {
        let Scan {
            options,
            read_seqno,
            prefix_extractor,
            pin,
        } = scan;
        let icmp = places.version.icmp();
        let order = icmp.user.clone();
        let lower = options.iterate_lower_bound.clone();
        let upper = options.iterate_upper_bound.clone();
        let prefix_extractor = prefix_extractor.filter(|_| options.prefix_same_as_start);
        let mut filters = prefix_extractor
            .filter(|_| !options.total_order_seek)
            .map(|_| PrefixFilters::new(places.tables, places.table_options));
        let mut children = Vec::new();
        let mut tombstones = RangeDelAggregator::new(icmp.clone(), read_seqno);
        for memtable in places.memtables.clone() {
            if memtable.has_range_tombstones() {
                tombstones.add_memtable(children.len(), memtable.range_tombstones());
            }
            children.push(Source::Boxed(memtable.clone().iter()));
        }
        for file in places.version.files(0) {
            let ends_before = lower.as_ref().is_some_and(|l| {
                let ordering = order.compare(file.largest_user_key(), l);
                ordering.is_lt() || ordering.is_eq() && is_exclusive_end(&file.largest)
            });
            let starts_after = upper
                .as_ref()
                .is_some_and(|u| !order.less(file.smallest_user_key(), u));
            if !ends_before && !starts_after {
                tombstones.add_file(children.len(), file, &**places.tables)?;
                if let Some(filters) = &mut filters {
                    filters.add_file(children.len(), file);
                }
                children.push(Source::Table(
                    places.tables.iter(file, places.table_options)?,
                ));
            }
        }
        for level in places
            .version
            .levels()
            .iter()
            .skip(1)
            .filter(|l| !l.is_empty())
        {
            if places.tables.level_may_have_range_tombstones(level) {
                tombstones.add_level(children.len(), level.clone(), places.tables.clone());
            }
            children.push(Source::Level(LevelIter::new(
                icmp.clone(),
                places.tables.clone(),
                places.table_options.clone(),
                level.clone(),
                lower.as_deref(),
                upper.as_deref(),
            )));
        }
        Ok(Self {
            iter: MergingIter::new(icmp.clone(), children),
            tombstones,
            order,
            read_seqno,
            lower,
            upper,
            prefix_extractor: prefix_extractor.cloned(),
            prefix: None,
            filters,
            merge_operator: places.merge_operator.cloned(),
            at: At::Nowhere,
            direction: Direction::Forward,
            goes_on: false,
            is_last_version: false,
            key: Vec::new(),
            held: Held::Copied,
            copied: Vec::new(),
            operands: MergeOperands::default(),
            target: Vec::new(),
            error: None,
            counts: Counts::new(places.statistics.clone()),
            tables: places.tables.clone(),
            table_options: places.table_options.clone(),
            version: places.version.clone(),
            ahead: T::Readahead::default(),
            allow_unprepared_value: options.allow_unprepared_value,
            _pin: pin,
        })
    }

    /// True while the iterator stands on a key.
    #[inline]
    #[must_use]
    pub fn valid(&self) -> bool {
        self.at != At::Nowhere
    }

    /// Why the iterator is not valid: `Ok` at an end of the keys.
    ///
    /// # Errors
    /// If a table or a blob file cannot be read, or if operands cannot be merged. The next seek
    /// forgets it.
    pub fn status(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The user key here.
    ///
    /// # Panics
    /// If the iterator is not valid.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self.at {
            At::Entry | At::Pointer => user_key(self.iter.key()),
            At::Copy => &self.key,
            At::Nowhere => panic!("key of an iterator that is not valid"),
        }
    }

    /// The value here.
    ///
    /// # Panics
    /// If the iterator is not valid, or [`Self::prepare_value`] was needed and not called.
    #[inline]
    #[must_use]
    pub fn value(&self) -> &[u8] {
        match self.at {
            At::Entry => self.iter.value(),
            At::Copy | At::Pointer => self.held_value(),
            At::Nowhere => panic!("value of an iterator that is not valid"),
        }
    }

    /// The value here, kept beyond the next move; without a copy where it lies in a table.
    ///
    /// # Panics
    /// If the iterator is not valid.
    ///
    /// # Errors
    /// `NoMemory` for a copy.
    pub fn pinned_value(&self) -> Result<PinnedValue> {
        match (self.at, &self.held) {
            (At::Entry, _) => self.iter.pinned_value(),
            // A merged value is no one's but the cursor's.
            (At::Copy | At::Pointer, Held::Pinned(value)) => value.share(),
            _ => PinnedValue::copied(self.value()),
        }
    }

    /// Moves to the first key that is not before `target`.
    pub fn seek(&mut self, target: &[u8]) {
        self.start(Direction::Forward);
        self.set_prefix(target);
        let lower = self.lower.as_deref().filter(|l| self.order.less(target, l));
        let from = lower.unwrap_or(target);
        if !self.is_past_upper(from) {
            self.target.clear();
            append_seek_key(&mut self.target, from, self.read_seqno);
            if self.exclude_by_prefix(target) {
                let timer = PerfTimer::start(PerfCounter::SeekInternalSeekTime);
                self.iter.seek(&self.target);
                drop(timer);
                self.find_forward(false);
            }
        }
        self.counts.seek(self.entry_size());
    }

    /// Moves to the last key that is not after `target`.
    pub fn seek_for_prev(&mut self, target: &[u8]) {
        self.start(Direction::Backward);
        self.set_prefix(target);
        if !self.is_before_lower(target) {
            self.target.clear();
            match self
                .upper
                .as_deref()
                .filter(|u| !self.order.less(target, u))
            {
                Some(upper) => append_key_start(&mut self.target, upper),
                None => append_key_end(&mut self.target, target),
            }
            if self.exclude_by_prefix(target) {
                let timer = PerfTimer::start(PerfCounter::SeekInternalSeekTime);
                self.iter.seek_for_prev(&self.target);
                drop(timer);
                self.find_backward();
            }
        }
        self.counts.seek(self.entry_size());
    }

    /// Moves to the first key.
    pub fn seek_to_first(&mut self) {
        self.start(Direction::Forward);
        self.include_all();
        let timer = PerfTimer::start(PerfCounter::SeekInternalSeekTime);
        match &self.lower {
            Some(lower) => {
                self.target.clear();
                append_key_start(&mut self.target, lower);
                self.iter.seek(&self.target);
            }
            None => self.iter.seek_to_first(),
        }
        drop(timer);
        self.find_forward(false);
        self.set_prefix_here();
        self.counts.seek(self.entry_size());
    }

    /// Moves to the last key.
    pub fn seek_to_last(&mut self) {
        self.start(Direction::Backward);
        self.include_all();
        let timer = PerfTimer::start(PerfCounter::SeekInternalSeekTime);
        match &self.upper {
            Some(upper) => {
                self.target.clear();
                append_key_start(&mut self.target, upper);
                self.iter.seek_for_prev(&self.target);
            }
            None => self.iter.seek_to_last(),
        }
        drop(timer);
        self.find_backward();
        self.set_prefix_here();
        self.counts.seek(self.entry_size());
    }

    /// Moves to the next key; does nothing if the iterator is not valid.
    #[inline]
    pub fn next(&mut self) {
        if self.at == At::Nowhere {
            return;
        }
        let skipping = !(self.at != At::Copy && self.is_last_version);
        if self.direction == Direction::Backward {
            self.direction = Direction::Forward;
            self.seek_past_key();
        } else if self.at != At::Copy {
            if skipping {
                self.copy_key();
            }
            self.iter.next();
        }
        self.goes_on = true;
        self.find_forward(skipping);
        self.counts.next(self.entry_size());
    }

    /// Moves to the previous key; does nothing if the iterator is not valid.
    #[inline]
    pub fn prev(&mut self) {
        if self.at == At::Nowhere {
            return;
        }
        if self.direction == Direction::Forward {
            self.direction = Direction::Backward;
            self.goes_on = false;
            if self.at != At::Copy {
                self.copy_key();
            }
            self.seek_before_key();
        }
        self.find_backward();
        self.counts.prev(self.entry_size());
    }

    fn start(&mut self, direction: Direction) {
        self.direction = direction;
        self.goes_on = false;
        self.at = At::Nowhere;
        self.error = None;
        self.prefix = None;
    }

    /// Bytes of key and value if the iterator is valid.
    #[inline]
    fn entry_size(&self) -> Option<usize> {
        (self.at != At::Nowhere).then(|| {
            let value = match (self.at, &self.held) {
                (At::Pointer | At::Copy, Held::InBlobFile) => 0,
                _ => self.value().len(),
            };
            self.key().len() + value
        })
    }

    fn held_value(&self) -> &[u8] {
        match &self.held {
            Held::Copied => &self.copied,
            Held::Pinned(value) => value,
            Held::InBlobFile => panic!("value that prepare_value was not called for"),
        }
    }

    /// Reads the value here if it is in a blob file and was not read yet; with
    /// [`ReadOptions::allow_unprepared_value`] this must be called before the value is taken. False
    /// if it cannot be read: the iterator is then not valid, and [`Self::status`] tells why.
    ///
    /// # Panics
    /// If the iterator is not valid.
    pub fn prepare_value(&mut self) -> bool {
        assert!(self.valid(), "value of an iterator that is not valid");
        let is_held = matches!(self.at, At::Copy | At::Pointer);
        if !is_held || !matches!(self.held, Held::InBlobFile) {
            return true;
        }
        let key = match self.at {
            At::Pointer => user_key(self.iter.key()),
            _ => &self.key,
        };
        let (version, options) = (&self.version, &self.table_options);
        let is_past = |key: &[u8]| {
            let upper = self.upper.as_ref();
            upper.is_some_and(|upper| !self.order.less(key, upper))
        };
        let is_out_of_prefix = |key: &[u8]| match (&self.prefix, &self.prefix_extractor) {
            (Some(prefix), Some(cut)) => !cut.in_domain(key) || cut.transform(key) != prefix,
            _ => false,
        };
        // Who takes values here and there does not say which.
        let goes_on = self.goes_on && !self.allow_unprepared_value;
        let upcoming = |visit: &mut dyn FnMut(&[u8], &[u8]) -> bool| {
            // Of a key the first entry that is seen hides the others.
            let mut last = key.to_vec();
            let mut show = |key: &[u8], value: &[u8]| {
                let Ok(key) = ParsedInternalKey::parse(key) else {
                    return false;
                };
                let user_key = key.user_key;
                if is_past(user_key) || is_out_of_prefix(user_key) {
                    return false;
                }
                if key.seqno > self.read_seqno || user_key == last {
                    return true;
                }
                last.clear();
                last.extend_from_slice(user_key);
                key.kind != ValueKind::BlobIndex || visit(value, user_key)
            };
            self.iter.peek(&mut show);
        };
        let upcoming: Option<Upcoming<'_>> = goes_on.then_some(&upcoming);
        let ahead = &mut self.ahead;
        let value = self
            .tables
            .blob_in_row(version, &self.copied, key, options, ahead, upcoming);
        match value {
            Ok(value) => {
                self.held = Held::Pinned(value);
                true
            }
            Err(error) => {
                self.fail(error);
                false
            }
        }
    }

    /// The value of `key` that a pointer leads to.
    fn follow(&self, pointer: &[u8], key: &[u8]) -> Result<PinnedValue> {
        self.tables
            .blob(&self.version, pointer, key, &self.table_options)
    }

    /// Keeps the pointer under the cursor; [`Self::prepare_value`] follows it.
    fn hold_pointer(&mut self) {
        self.copied.clear();
        self.copied.extend_from_slice(self.iter.value());
        self.held = Held::InBlobFile;
    }

    /// Reads a value in a blob file that the iterator stands on, if that is not left for later.
    fn prepare_unless_allowed(&mut self) {
        if !self.allow_unprepared_value {
            self.prepare_value();
        }
    }

    /// Keeps the value under the cursor for when the cursor has left it.
    fn hold_value(&mut self) -> Result<()> {
        let value = self.iter.value();
        if value.len() <= COPIED_VALUE_SIZE_MAX {
            self.copied.clear();
            self.copied.extend_from_slice(value);
            self.held = Held::Copied;
        } else {
            self.held = Held::Pinned(self.iter.pinned_value()?);
        }
        Ok(())
    }

    /// Remembers the user key under the cursor.
    #[inline]
    fn copy_key(&mut self) {
        self.key.clear();
        self.key.extend_from_slice(user_key(self.iter.key()));
    }

    /// Moves the cursor behind all versions of `key`.
    fn seek_past_key(&mut self) {
        self.target.clear();
        append_key_end(&mut self.target, &self.key);
        self.iter.seek(&self.target);
    }

    /// Moves the cursor before all versions of `key`.
    fn seek_before_key(&mut self) {
        self.target.clear();
        append_key_start(&mut self.target, &self.key);
        self.iter.seek_for_prev(&self.target);
    }

    fn fail(&mut self, error: Error) {
        self.at = At::Nowhere;
        self.error = Some(error);
    }

    #[inline]
    fn is_past_upper(&self, key: &[u8]) -> bool {
        self.upper
            .as_ref()
            .is_some_and(|u| !self.order.less(key, u))
    }

    #[inline]
    fn is_before_lower(&self, key: &[u8]) -> bool {
        self.lower.as_ref().is_some_and(|l| self.order.less(key, l))
    }
}

/// Appends an internal key that is before all versions of `user_key`.
fn append_key_start(out: &mut Vec<u8>, user_key: &[u8]) {
    out.extend_from_slice(user_key);
    out.extend_from_slice(&u64::MAX.to_le_bytes());
}

/// Appends an internal key that is not before any version of `user_key`.
fn append_key_end(out: &mut Vec<u8>, user_key: &[u8]) {
    append_internal_key(out, user_key, 0, ValueKind::Deletion);
}

#[cfg(test)]
mod tests;
