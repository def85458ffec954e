//! Going backward: versions of a key are met oldest first.

use orogen_base::perf::{self, PerfCounter};
use orogen_base::{InternalIterator, ParsedInternalKey, Result, SeqNo, ValueKind};
use orogen_env::PerfTimer;

use super::{At, DbIterator, Held, SEQUENTIAL_SKIP_MAX, append_key_start};
use crate::read::get::misplaced_tombstone;
use crate::read::merge::{Collected, fold};
use crate::read::table_access::TableAccess;

/// What a key has for the reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// A value, in `held`.
    Value,
    Nothing,
    /// Nothing, because of a range tombstone.
    Covered,
}

/// What lies under the operands that were met last.
#[derive(Clone, Copy)]
enum Base {
    Nothing,
    /// A value, in `held`.
    Value,
    /// A pointer to a value, in `held`.
    Pointer,
    /// What stands nowhere but apart; an error only if nothing newer hides it.
    Misplaced,
}

impl<T: TableAccess> DbIterator<T> {
    /// Finds the previous key to show, from the cursor back.
    #[inline]
    pub(super) fn find_backward(&mut self) {
        if perf::takes_times() {
            return self.find_backward_timed();
        }
        self.find_visible_backward();
    }

    #[cold]
    fn find_backward_timed(&mut self) {
        let _timer = PerfTimer::start(PerfCounter::FindNextUserEntryTime);
        self.find_visible_backward();
    }

    fn find_visible_backward(&mut self) {
        self.at = At::Nowhere;
        // Keys hidden by range tombstones since the last jump.
        let mut covered = 0;
        while self.iter.valid() {
            let user_key = match ParsedInternalKey::parse(self.iter.key()) {
                Ok(entry) => entry.user_key,
                Err(error) => return self.fail(error),
            };
            if self.is_before_lower(user_key) || self.is_out_of_prefix(user_key) {
                return;
            }
            let covering = match self.tombstones.covering(user_key) {
                Ok(covering) => covering,
                Err(error) => return self.fail(error),
            };
            self.copy_key();
            let found = self.newest_version(covering.seqno).and_then(|found| {
                self.step_before_key()?;
                Ok(found)
            });
            match found {
                Ok(Found::Value) => {
                    self.at = At::Copy;
                    return self.prepare_unless_allowed();
                }
                Ok(Found::Nothing) => {}
                Ok(Found::Covered) => {
                    covered += 1;
                    if covered > SEQUENTIAL_SKIP_MAX && self.iter.valid() {
                        covered = 0;
                        self.skip_tombstone_backward(covering.child);
                    }
                }
                Err(error) => return self.fail(error),
            }
        }
        if let Err(error) = self.iter.status() {
            self.fail(error);
        }
    }

    /// Looks through the versions of `key` from the oldest, under the cursor, to the newest that
    /// the reader sees. The cursor ends behind the latter.
    fn newest_version(&mut self, covering: SeqNo) -> Result<Found> {
        let mut base = Base::Nothing;
        let mut is_covered = false;
        self.operands.clear();
        for steps in 0.. {
            let entry = ParsedInternalKey::parse(self.iter.key())?;
            if entry.seqno > self.read_seqno
                || (steps > 0 && self.order.compare(entry.user_key, &self.key).is_ne())
            {
                break;
            }
            if steps == SEQUENTIAL_SKIP_MAX {
                return self.newest_version_by_seek(covering);
            }
            is_covered = entry.seqno < covering;
            match entry.kind {
                ValueKind::Merge if !is_covered => self.operands.push(self.iter.value())?,
                kind => {
                    self.operands.clear();
                    base = match kind {
                        ValueKind::Value if !is_covered => Base::Value,
                        ValueKind::BlobIndex if !is_covered => Base::Pointer,
                        ValueKind::RangeDeletion if !is_covered => Base::Misplaced,
                        _ => Base::Nothing,
                    };
                    match base {
                        Base::Value => self.hold_value()?,
                        Base::Pointer => self.hold_pointer(),
                        _ => {}
                    }
                }
            }
            self.counts.pass(match base {
                Base::Nothing if self.operands.is_empty() => {
                    PerfCounter::InternalDeleteSkippedCount
                }
                _ => PerfCounter::InternalKeySkippedCount,
            });
            self.iter.prev();
            if !self.iter.valid() {
                self.iter.status()?;
                break;
            }
        }
        if let Base::Misplaced = base {
            return Err(misplaced_tombstone(&self.key));
        }
        if self.operands.is_empty() {
            return Ok(match base {
                Base::Value | Base::Pointer => Found::Value,
                _ if is_covered => Found::Covered,
                _ => Found::Nothing,
            });
        }
        if let Base::Pointer = base {
            self.held = Held::Pinned(self.follow(&self.copied, &self.key)?);
        }
        let under = matches!(base, Base::Value | Base::Pointer).then(|| self.held_value());
        let operator = self.merge_operator.as_ref();
        let merged = fold(
            operator,
            &self.key,
            under,
            &self.operands,
            Collected::OldestFirst,
        );
        self.held = Held::Pinned(self.counts.merged(merged)?.into());
        Ok(Found::Value)
    }

    /// As [`Self::newest_version`], for a key with many versions: seeks the newest.
    #[cold]
    fn newest_version_by_seek(&mut self, covering: SeqNo) -> Result<Found> {
        self.seek_visible_version();
        if !self.iter.valid() {
            self.iter.status()?;
            return Ok(Found::Nothing);
        }
        let entry = ParsedInternalKey::parse(self.iter.key())?;
        let is_covered = entry.seqno < covering;
        let found = match entry.kind {
            _ if is_covered => Found::Covered,
            ValueKind::Value => {
                self.hold_value()?;
                Found::Value
            }
            ValueKind::Merge => {
                self.merge_from_here(covering)?;
                Found::Value
            }
            ValueKind::BlobIndex => {
                self.hold_pointer();
                Found::Value
            }
            ValueKind::Deletion | ValueKind::SingleDeletion => Found::Nothing,
            ValueKind::RangeDeletion => return Err(misplaced_tombstone(entry.user_key)),
        };
        self.seek_before_key();
        Ok(found)
    }

    /// Moves the cursor before all versions of `key`.
    fn step_before_key(&mut self) -> Result<()> {
        for steps in 0.. {
            if !self.iter.valid() {
                break;
            }
            let entry = ParsedInternalKey::parse(self.iter.key())?;
            if self.order.less(entry.user_key, &self.key) {
                break;
            }
            self.counts.pass(PerfCounter::InternalKeySkippedCount);
            if steps == SEQUENTIAL_SKIP_MAX {
                self.seek_before_key();
                break;
            }
            self.iter.prev();
        }
        self.iter.status()
    }

    /// Moves what is older than the range tombstone of `child` before the tombstone's start.
    fn skip_tombstone_backward(&mut self, child: usize) {
        if let Some(start) = self.tombstones.tombstone_start() {
            self.target.clear();
            append_key_start(&mut self.target, start);
            self.iter.seek_older_for_prev(child, &self.target);
        }
    }
}
