//! The cursor over the trie's keys and the versions of each.
//!
//! It stands on a record and keeps the memtable alive. Records stay where they are; the trie's cursor has the
//! bytes of the user key. Entries that were there when it was last placed by a seek are all told.
#![expect(
    unsafe_code,
    reason = "remembers the place of a record beside its owner"
)]

use std::sync::Arc;

use orogen_base::key::{trailer, user_key};
use orogen_base::{InternalIterator, Result};
use orogen_trie::{Cursor, Trie};

use super::TrieMemTable;
use super::versions::{ROOT, Record};

pub(crate) struct Iter {
    table: Arc<TrieMemTable>,
    /// At the user key of the record; at none if there is no record.
    cursor: Cursor,
    /// Of a record of `table`; 0 if it stands on none.
    here: u32,
    /// The internal key.
    key: Vec<u8>,
}

impl Iter {
    pub(crate) fn new(table: Arc<TrieMemTable>) -> Self {
        Self {
            table,
            cursor: Cursor::new(),
            here: 0,
            key: Vec::new(),
        }
    }

    fn trie(&self) -> &Trie {
        &self.table.trie
    }

    /// The newest version of the user key where the cursor is.
    #[inline]
    fn newest(&self) -> Option<Record<'_>> {
        let trie = self.trie();
        Some(Record::newest(trie, self.cursor.cell(trie)?))
    }

    /// The record here.
    #[inline]
    fn standing(&self) -> Record<'_> {
        // SAFETY: `here` was set from a record of this table.
        unsafe { Record::new(self.trie(), self.here) }
            .expect("the cursor is valid, as the caller promised")
    }

    /// Stands on what is at `place`, with its tag, of the user key where the cursor is.
    #[inline]
    fn stand(&mut self, place: Option<(u32, u64)>) {
        let Some((at, tag)) = place else {
            self.here = 0;
            return;
        };
        self.here = at;
        self.key.clear();
        self.key.extend_from_slice(self.cursor.key());
        self.key.extend_from_slice(&tag.to_le_bytes());
    }

    #[inline]
    fn stand_on_newest(&mut self) {
        self.stand(self.newest().map(place));
    }

    fn stand_on_oldest(&mut self) {
        self.stand(self.newest().map(Record::oldest).map(place));
    }

    /// True if the cursor is at just this user key.
    fn is_at(&self, key: &[u8]) -> bool {
        self.cursor.valid() && self.cursor.key() == key
    }
}

#[inline]
fn place(record: Record<'_>) -> (u32, u64) {
    (record.at(), record.tag())
}

impl InternalIterator for Iter {
    #[inline]
    fn valid(&self) -> bool {
        self.here != 0
    }

    fn seek_to_first(&mut self) {
        self.cursor.first(&self.table.trie, ROOT);
        self.stand_on_newest();
    }

    fn seek_to_last(&mut self) {
        self.cursor.last(&self.table.trie, ROOT);
        self.stand_on_oldest();
    }

    fn seek(&mut self, target: &[u8]) {
        let key = user_key(target);
        self.cursor.seek(&self.table.trie, ROOT, key);
        if self.is_at(key) {
            // Larger tags come first.
            let tag = trailer(target);
            let found = self.newest().and_then(|newest| newest.around(tag).1);
            if found.is_some() {
                return self.stand(found.map(place));
            }
            self.cursor.next(&self.table.trie);
        }
        self.stand_on_newest();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let key = user_key(target);
        self.cursor.seek_for_prev(&self.table.trie, ROOT, key);
        if self.is_at(key) {
            let found = match trailer(target).checked_sub(1) {
                Some(below) => self.newest().and_then(|n| n.around(below).0),
                None => self.newest().map(Record::oldest),
            };
            if found.is_some() {
                return self.stand(found.map(place));
            }
            self.cursor.prev(&self.table.trie);
        }
        self.stand_on_oldest();
    }

    #[inline]
    fn next(&mut self) {
        let older = self.standing().older();
        if older.is_some() {
            return self.stand(older.map(place));
        }
        self.cursor.next(&self.table.trie);
        self.stand_on_newest();
    }

    fn prev(&mut self) {
        let here = self.standing();
        if let Some(newest) = self.newest().filter(|n| n.at() != here.at()) {
            let mut newer = newest.around(here.tag()).0.unwrap_or(newest);
            // One step, but among versions of one tag.
            while let Some(older) = newer.older().filter(|o| o.at() != here.at()) {
                newer = older;
            }
            return self.stand(Some(place(newer)));
        }
        self.cursor.prev(&self.table.trie);
        self.stand_on_oldest();
    }

    #[inline]
    fn key(&self) -> &[u8] {
        &self.key
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.standing().value()
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
