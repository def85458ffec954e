//! Point reads: the newest visible version of one key, newest place first.
//!
//! ```text
//! memtable -> sealed memtables -> level 0, newest file first -> one file of each level
//! ```
//! Each place first tells its newest range tombstone over the key, then shows its versions of
//! the key, newest first. The search ends at a value or a tombstone, or after a place with a
//! range tombstone over the key: whatever older places hold, it hides. Merge operands are
//! collected on the way. A value in a table is pinned, not copied.
//! Source: RocksDB `db/db_impl/db_impl.cc`, `db/version_set.cc`, `table/get_context.cc`.
//! `Hot path`.

use std::sync::Arc;

use orogen_base::metrics::Ticker;
use orogen_base::perf::{self, PerfCounter};
use orogen_base::{Error, ParsedInternalKey, PinnedValue, Result, SeqNo, ValueKind};
use orogen_env::PerfTimer;
use orogen_memtable::{MemTable, Visit};
use orogen_sst::LookupKey;

use super::Places;
use super::merge::full_merge;
use super::table_access::TableAccess;
use crate::plugin::merge_operator::MergeOperator;
use crate::version::FileMeta;
use crate::version::level::is_exclusive_end;

/// Places whose filters are fetched before the first of them is asked.
const PLACES_AHEAD: usize = 8;

enum Outcome {
    /// Nothing that settles the question yet.
    Searching,
    Value(PinnedValue),
    /// The pointer to the value, which is in a blob file.
    Pointer(PinnedValue),
    Deleted,
    Failed(Error),
}

/// What a point read knows so far; places feed it, newest first.
pub struct GetState<'a> {
    key: LookupKey<'a>,
    read_seqno: SeqNo,
    /// The newest range tombstone over the key; older versions are deleted.
    covering: SeqNo,
    /// The newest version that was shown; 0 if none was.
    newest: SeqNo,
    /// Its number is all that is asked for.
    is_of_number: bool,
    /// Newest first.
    operands: Vec<PinnedValue>,
    outcome: Outcome,
}

impl<'a> GetState<'a> {
    /// A search for the newest version of `user_key` up to `read_seqno`.
    #[must_use]
    pub fn new(user_key: &'a [u8], read_seqno: SeqNo) -> Self {
        Self {
            key: LookupKey::new(user_key),
            read_seqno,
            covering: 0,
            newest: 0,
            is_of_number: false,
            operands: Vec::new(),
            outcome: Outcome::Searching,
        }
    }

    /// A search for the number of the newest version of `user_key` up to `read_seqno`: it ends there, whatever that is, and
    /// asks for no value.
    fn of_number(user_key: &'a [u8], read_seqno: SeqNo) -> Self {
        Self {
            is_of_number: true,
            ..Self::new(user_key, read_seqno)
        }
    }

    /// The key that is searched.
    #[inline]
    #[must_use]
    pub fn user_key(&self) -> &'a [u8] {
        self.key.user_key()
    }

    /// The key that is searched, as tables want it.
    #[inline]
    #[must_use]
    pub fn key(&self) -> LookupKey<'a> {
        self.key
    }

    /// The newest sequence number that the reader sees.
    #[inline]
    #[must_use]
    pub fn read_seqno(&self) -> SeqNo {
        self.read_seqno
    }

    /// Tells a visible range tombstone over the key, before the entries of its place.
    #[inline]
    pub fn add_covering(&mut self, seqno: SeqNo) {
        self.covering = self.covering.max(seqno);
    }

    /// Shows the next older visible version of the key; `value` is called if it is needed.
    #[inline]
    pub fn visit(
        &mut self,
        key: ParsedInternalKey<'_>,
        value: impl FnOnce() -> Result<PinnedValue>,
    ) -> Visit {
        debug_assert!(key.seqno <= self.read_seqno && !self.is_settled());
        self.newest = self.newest.max(key.seqno);
        let kind = if key.seqno < self.covering || self.is_of_number {
            ValueKind::Deletion
        } else {
            key.kind
        };
        self.outcome = match kind {
            ValueKind::Merge => match value() {
                Ok(operand) => {
                    self.operands.push(operand);
                    return Visit::Continue;
                }
                Err(e) => Outcome::Failed(e),
            },
            ValueKind::Value => value().map_or_else(Outcome::Failed, Outcome::Value),
            ValueKind::Deletion | ValueKind::SingleDeletion => Outcome::Deleted,
            ValueKind::BlobIndex => value().map_or_else(Outcome::Failed, Outcome::Pointer),
            ValueKind::RangeDeletion => Outcome::Failed(misplaced_tombstone(key.user_key)),
        };
        Visit::Stop
    }

    /// True if older versions cannot change the result.
    #[inline]
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !matches!(self.outcome, Outcome::Searching)
    }

    /// True if no older place can change the result.
    #[inline]
    pub(super) fn hides_older_places(&self) -> bool {
        self.covering > 0 || self.is_settled()
    }

    /// The pointer that was found in place of a value.
    #[inline]
    #[must_use]
    pub fn pointer(&self) -> Option<&[u8]> {
        match &self.outcome {
            Outcome::Pointer(pointer) => Some(pointer),
            _ => None,
        }
    }

    /// Puts what the pointer leads to in its place.
    pub fn resolve(&mut self, value: Result<PinnedValue>) {
        self.outcome = value.map_or_else(Outcome::Failed, Outcome::Value);
    }

    /// The key's value, merged; `None` if it has none. A pointer was resolved.
    ///
    /// # Errors
    /// As [`full_merge`].
    pub fn finish(self, operator: Option<&Arc<dyn MergeOperator>>) -> Result<Option<PinnedValue>> {
        let base = match self.outcome {
            Outcome::Value(value) => Some(value),
            Outcome::Searching | Outcome::Deleted => None,
            Outcome::Failed(error) => return Err(error),
            Outcome::Pointer(_) => {
                return Err(Error::invalid_argument("a pointer was not followed"));
            }
        };
        if self.operands.is_empty() {
            return Ok(base);
        }
        let operands: Vec<&[u8]> = self.operands.iter().rev().map(|o| &**o).collect();
        full_merge(operator, self.key.user_key(), base.as_deref(), &operands)
            .map(|v| Some(v.into()))
    }
}

/// Counts what a level had for a key, within [`perf::search_level`].
#[inline]
pub(super) fn note_search(files: usize, state: &GetState<'_>) {
    if perf::is_enabled() {
        perf::add(PerfCounter::GetFromTableCount, files as u64);
        let found = matches!(state.outcome, Outcome::Value(_) | Outcome::Pointer(_));
        perf::add(PerfCounter::UserKeyReturnCount, u64::from(found));
    }
}

/// The error for a kind that stands nowhere but apart.
#[cold]
pub(super) fn misplaced_tombstone(user_key: &[u8]) -> Error {
    Error::corruption("range tombstone among point entries").with("key_len", user_key.len())
}

impl<'a, T: TableAccess, M> Places<'a, T, M>
where
    M: Iterator<Item = &'a Arc<dyn MemTable>> + Clone,
{
    /// The value of a key as a reader at `read_seqno` sees it.
    ///
    /// # Errors
    /// If a table or a blob file cannot be read, or if operands cannot be merged.
    pub fn get(&self, user_key: &[u8], read_seqno: SeqNo) -> Result<Option<PinnedValue>> {
        let result = self.search(user_key, read_seqno);
        self.statistics.add(Ticker::NumberKeysRead, 1);
        if let Ok(Some(value)) = &result {
            self.statistics.add(Ticker::BytesRead, value.len() as u64);
            perf::add(PerfCounter::GetReadBytes, value.len() as u64);
        }
        result
    }

    /// The sequence number of the newest write to a key, deletions of ranges included; 0 if there is none,
    /// or none that anybody's snapshot could tell from older ones.
    ///
    /// # Errors
    /// If a table cannot be read.
    pub fn newest_seqno(&self, user_key: &[u8], read_seqno: SeqNo) -> Result<SeqNo> {
        let mut state = GetState::of_number(user_key, read_seqno);
        if !self.search_memtables(&mut state)? {
            self.search_tables(&mut state)?;
        }
        if let Outcome::Failed(e) = state.outcome {
            return Err(e);
        }
        Ok(state.newest.max(state.covering))
    }

    fn search(&self, user_key: &[u8], read_seqno: SeqNo) -> Result<Option<PinnedValue>> {
        let mut state = GetState::new(user_key, read_seqno);
        let level = if self.search_memtables(&mut state)? {
            None
        } else {
            Some(self.search_tables(&mut state)?)
        };
        if let Some(pointer) = state.pointer() {
            let value = self.follow(pointer, user_key);
            state.resolve(value);
        }
        self.finish(state, level)
    }

    #[cold]
    fn follow(&self, pointer: &[u8], user_key: &[u8]) -> Result<PinnedValue> {
        self.tables
            .blob(self.version, pointer, user_key, self.table_options)
    }

    /// The result of a search that ended in the memtables or at `level`, counted.
    pub(super) fn finish(
        &self,
        state: GetState<'_>,
        level: Option<usize>,
    ) -> Result<Option<PinnedValue>> {
        let ticker = match level {
            None => Ticker::MemtableHit,
            Some(_) => Ticker::MemtableMiss,
        };
        self.statistics.add(ticker, 1);
        if let (Some(level), Outcome::Value(_)) = (level, &state.outcome) {
            let ticker = match level {
                0 => Ticker::GetHitL0,
                1 => Ticker::GetHitL1,
                _ => Ticker::GetHitL2AndUp,
            };
            self.statistics.add(ticker, 1);
        }
        let is_merged = !state.operands.is_empty();
        let result = state.finish(self.merge_operator);
        if is_merged && result.is_err() {
            self.statistics.add(Ticker::NumberMergeFailures, 1);
        }
        result
    }

    /// True if the memtables answer.
    fn search_memtables(&self, state: &mut GetState<'_>) -> Result<bool> {
        let _timer = PerfTimer::start(PerfCounter::GetFromMemtableTime);
        for memtable in self.memtables.clone() {
            self.search_memtable(&**memtable, state)?;
            if state.hides_older_places() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn search_memtable(
        &self,
        memtable: &dyn MemTable,
        state: &mut GetState<'_>,
    ) -> Result<()> {
        perf::add(PerfCounter::GetFromMemtableCount, 1);
        let (key, read_seqno) = (state.user_key(), state.read_seqno);
        if memtable.has_range_tombstones() {
            let order = &self.version.icmp().user;
            let tombstones = memtable.range_tombstones();
            state.add_covering(tombstones.max_covering_seqno(order, key, read_seqno));
        }
        memtable.get(key, read_seqno, &mut |key, value| {
            state.visit(key, || PinnedValue::copied(value))
        })
    }

    /// Searches level after level; returns the one where the search ended.
    fn search_tables(&self, state: &mut GetState<'_>) -> Result<usize> {
        let _timer = PerfTimer::start(PerfCounter::GetFromOutputFilesTime);
        let (version, key) = (self.version, state.user_key());
        let newest = version.files(0).iter();
        let newest = newest.filter(|f| self.may_hold(f, key));
        let levels = version.levels().iter().enumerate().skip(1);
        let levels = levels.map(|(number, level)| (number, level.candidates(version.icmp(), key)));
        let mut places = newest
            .map(|file| (0, std::slice::from_ref(file)))
            .chain(levels.filter(|(_, files)| !files.is_empty()));
        loop {
            // What the filters of all places will be asked is known before the first answers.
            let mut ahead: [(usize, &[Arc<FileMeta>]); PLACES_AHEAD] = [(0, &[]); PLACES_AHEAD];
            let mut len = 0;
            for (slot, place) in ahead.iter_mut().zip(&mut places) {
                self.tables.prefetch(&place.1[0], state);
                *slot = place;
                len += 1;
            }
            for &(number, files) in &ahead[..len] {
                let _search = perf::search_level(number);
                self.search_neighbours(files, state)?;
                note_search(files.len(), state);
                if state.hides_older_places() {
                    return Ok(number);
                }
            }
            if len < PLACES_AHEAD {
                return Ok(version.num_levels());
            }
        }
    }

    /// True if the key is within the file's key range.
    pub(super) fn may_hold(&self, file: &FileMeta, user_key: &[u8]) -> bool {
        let order = &self.version.icmp().user;
        !order.less(user_key, file.smallest_user_key())
            && !order.less(file.largest_user_key(), user_key)
            && self.holds_up_to(file, user_key)
    }

    /// True if a key that is not behind the file's last one is before its end.
    #[inline]
    pub(super) fn holds_up_to(&self, file: &FileMeta, user_key: &[u8]) -> bool {
        let order = &self.version.icmp().user;
        !is_exclusive_end(&file.largest) || order.less(user_key, file.largest_user_key())
    }

    /// Searches the files of one place between whose first and last keys the key is. They are
    /// several only where neighbours of a level share it: then their tombstones hide the entries
    /// of all of them.
    pub(super) fn search_neighbours(
        &self,
        files: &[Arc<FileMeta>],
        state: &mut GetState<'_>,
    ) -> Result<()> {
        let order = &self.version.icmp().user;
        let (key, read_seqno) = (state.user_key(), state.read_seqno);
        let holders = || files.iter().filter(|f| self.holds_up_to(f, key));
        for file in holders() {
            state.add_covering(self.tables.covering_seqno(file, order, key, read_seqno)?);
        }
        for file in holders() {
            self.tables.get(file, self.table_options, state)?;
            if state.is_settled() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
