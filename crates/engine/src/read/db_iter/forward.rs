//! Going forward: versions of a key are met newest first.

use orogen_base::key::append_seek_key;
use orogen_base::perf::{self, PerfCounter};
use orogen_base::{InternalIterator, ParsedInternalKey, Result, SeqNo, ValueKind};
use orogen_env::PerfTimer;

use super::{At, DbIterator, Held, SEQUENTIAL_SKIP_MAX, append_key_end, append_key_start};
use crate::read::get::misplaced_tombstone;
use crate::read::merge::{Collected, fold};
use crate::read::table_access::TableAccess;

impl<T: TableAccess> DbIterator<T> {
    /// Finds the next key to show, from the cursor on. With `skipping`, entries of `key` and
    /// before it are passed.
    #[inline]
    pub(super) fn find_forward(&mut self, skipping: bool) {
        if perf::takes_times() {
            return self.find_forward_timed(skipping);
        }
        self.find_visible_forward(skipping);
    }

    #[cold]
    fn find_forward_timed(&mut self, skipping: bool) {
        let _timer = PerfTimer::start(PerfCounter::FindNextUserEntryTime);
        self.find_visible_forward(skipping);
    }

    fn find_visible_forward(&mut self, mut skipping: bool) {
        self.at = At::Nowhere;
        // Entries of one key passed in a row.
        let mut passed = 0;
        // True while `key` is a key of which only newer versions than the reader's were met.
        let mut is_invisible = false;
        // Keys hidden by range tombstones since the last jump.
        let mut covered = 0;
        while self.iter.valid() {
            let entry = match ParsedInternalKey::parse(self.iter.key()) {
                Ok(entry) => entry,
                Err(error) => return self.fail(error),
            };
            if skipping && !self.order.less(&self.key, entry.user_key) {
                self.counts.pass(PerfCounter::InternalKeySkippedCount);
                passed += 1;
                if passed > SEQUENTIAL_SKIP_MAX {
                    passed = 0;
                    self.seek_past_key();
                } else {
                    self.iter.next();
                }
                continue;
            }
            if self.is_past_upper(entry.user_key) || self.is_out_of_prefix(entry.user_key) {
                return;
            }
            if entry.seqno > self.read_seqno {
                let is_same = is_invisible && self.order.compare(&self.key, entry.user_key).is_eq();
                passed = if is_same { passed + 1 } else { 1 };
                (skipping, is_invisible) = (false, true);
                if !is_same {
                    self.copy_key();
                }
                self.counts.pass(PerfCounter::InternalRecentSkippedCount);
                if passed > SEQUENTIAL_SKIP_MAX {
                    passed = 0;
                    self.seek_visible_version();
                } else {
                    self.iter.next();
                }
                continue;
            }
            let covering = match self.tombstones.covering(entry.user_key) {
                Ok(covering) => covering,
                Err(error) => return self.fail(error),
            };
            let is_covered = entry.seqno < covering.seqno;
            match entry.kind {
                ValueKind::Value if !is_covered => {
                    self.is_last_version = entry.seqno == 0;
                    self.at = At::Entry;
                    return;
                }
                ValueKind::BlobIndex if !is_covered => {
                    self.is_last_version = entry.seqno == 0;
                    self.hold_pointer();
                    self.at = At::Pointer;
                    return self.prepare_unless_allowed();
                }
                ValueKind::Merge if !is_covered => {
                    match self.merge_from_here(covering.seqno) {
                        Ok(()) => self.at = At::Copy,
                        Err(error) => self.fail(error),
                    }
                    return;
                }
                ValueKind::RangeDeletion if !is_covered => {
                    return self.fail(misplaced_tombstone(entry.user_key));
                }
                _ => {}
            }
            self.counts.pass(PerfCounter::InternalDeleteSkippedCount);
            self.copy_key();
            (skipping, is_invisible, passed) = (true, false, 0);
            covered += usize::from(is_covered);
            if covered > SEQUENTIAL_SKIP_MAX {
                covered = 0;
                self.skip_tombstone_forward(covering.child);
            } else {
                self.iter.next();
            }
        }
        if let Err(error) = self.iter.status() {
            self.fail(error);
        }
    }

    /// Moves the cursor to the first version of `key` that the reader sees.
    pub(super) fn seek_visible_version(&mut self) {
        self.target.clear();
        append_seek_key(&mut self.target, &self.key, self.read_seqno);
        self.iter.seek(&self.target);
    }

    /// Moves what is older than the range tombstone of `child` to the tombstone's end. The entry
    /// under the cursor may stay: it is passed as an entry of `key`.
    fn skip_tombstone_forward(&mut self, child: usize) {
        self.target.clear();
        match self.tombstones.tombstone_end() {
            Some(end) if end.inclusive => append_key_end(&mut self.target, end.user_key),
            Some(end) => append_key_start(&mut self.target, end.user_key),
            None => return self.iter.next(),
        }
        self.iter.seek_older(child, &self.target);
    }

    /// Merges the operands of one key from the newest, under the cursor, on. `key` becomes the
    /// key; the cursor ends on or behind the older versions.
    pub(super) fn merge_from_here(&mut self, covering: SeqNo) -> Result<()> {
        self.copy_key();
        self.operands.clear();
        self.operands.push(self.iter.value())?;
        let mut base = None;
        let fetched;
        loop {
            self.iter.next();
            if !self.iter.valid() {
                self.iter.status()?;
                break;
            }
            let entry = ParsedInternalKey::parse(self.iter.key())?;
            if entry.seqno < covering || self.order.compare(entry.user_key, &self.key).is_ne() {
                break;
            }
            match entry.kind {
                ValueKind::Merge => self.operands.push(self.iter.value())?,
                ValueKind::Deletion | ValueKind::SingleDeletion => break,
                ValueKind::Value => {
                    base = Some(self.iter.value());
                    break;
                }
                ValueKind::BlobIndex => {
                    fetched = self.follow(self.iter.value(), &self.key)?;
                    base = Some(&*fetched);
                    break;
                }
                ValueKind::RangeDeletion => return Err(misplaced_tombstone(entry.user_key)),
            }
        }
        let operator = self.merge_operator.as_ref();
        let merged = fold(
            operator,
            &self.key,
            base,
            &self.operands,
            Collected::NewestFirst,
        );
        self.held = Held::Pinned(self.counts.merged(merged)?.into());
        Ok(())
    }
}
