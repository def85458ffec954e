//! Whether anything in a range of keys was written since a sequence number, for who deletes or locks the range.
//!
//! ```text
//! memtables  their range tombstones, then their entries within the range
//! tables     only those whose newest write is new enough: cut to the file, tombstones, then entries
//! ```
//! The first write that is too new ends the search: who asks wants to know whether there is one. What nobody can tell from older writes
//! (versions under the oldest snapshot) may be told of as older, so the answer is exact for a number that a snapshot holds.
//! Costs: the entries of the range in the memtables and in the tables written since; no value is read.

use std::sync::Arc;

use orogen_base::key::append_seek_key;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{InternalIterator, ParsedInternalKey, Result, SeqNo, UserComparator};
use orogen_memtable::MemTable;

use super::Places;
use super::table_access::TableAccess;
use crate::version::FileMeta;
use crate::version::level::is_exclusive_end;

/// A write that was found: which, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The key; of a deleted range the first key of it that was asked for.
    pub key: Vec<u8>,
    /// Its sequence number.
    pub seqno: SeqNo,
}

/// The user keys from `start` up to `end`, and which sequence numbers count.
struct Search<'a> {
    order: &'a UserComparator,
    start: &'a [u8],
    end: &'a [u8],
    /// `end` is one of them.
    with_end: bool,
    /// What is not above is old.
    since: SeqNo,
    /// What is above is not there yet.
    read_seqno: SeqNo,
}

impl<'a> Search<'a> {
    fn is_behind(&self, user_key: &[u8]) -> bool {
        match self.with_end {
            true => self.order.less(self.end, user_key),
            false => !self.order.less(user_key, self.end),
        }
    }

    /// The part of it that is in a file.
    fn within<'f>(&'f self, file: &'f FileMeta) -> Search<'f> {
        let (first, last) = (file.smallest_user_key(), file.largest_user_key());
        let (end, with_end) = match self.is_behind(last) {
            true => (self.end, self.with_end),
            false => (last, !is_exclusive_end(&file.largest)),
        };
        Search {
            start: match self.order.less(self.start, first) {
                true => first,
                false => self.start,
            },
            end,
            with_end,
            ..*self
        }
    }

    fn in_tombstones(&self, tombstones: &FragmentedRangeTombstones) -> Option<Written> {
        let from = tombstones.first_ending_after(self.order, self.start);
        let here = tombstones.fragments()[from..].iter();
        let mut here = here.take_while(|f| !self.is_behind(&f.start));
        here.find_map(|f| {
            let seqno = f.visible_seqno(self.read_seqno);
            let key = match self.order.less(&f.start, self.start) {
                true => self.start,
                false => &f.start,
            };
            // A file may begin behind the end, or end before the start.
            (seqno > self.since && !self.is_behind(key)).then(|| Written {
                key: key.to_vec(),
                seqno,
            })
        })
    }

    fn in_entries(&self, mut iter: impl InternalIterator) -> Result<Option<Written>> {
        let mut target = Vec::new();
        append_seek_key(&mut target, self.start, SEQNO_MAX);
        iter.seek(&target);
        while iter.valid() {
            let entry = ParsedInternalKey::parse(iter.key())?;
            if self.is_behind(entry.user_key) {
                return Ok(None);
            }
            if entry.seqno > self.since && entry.seqno <= self.read_seqno {
                return Ok(Some(Written {
                    key: entry.user_key.to_vec(),
                    seqno: entry.seqno,
                }));
            }
            iter.next();
        }
        iter.status().map(|()| None)
    }
}

impl<'a, T: TableAccess, M> Places<'a, T, M>
where
    M: Iterator<Item = &'a Arc<dyn MemTable>> + Clone,
{
    /// A write above `since`, and up to `read_seqno`, to the keys from `start` up to but not including `end`, deletions included.
    ///
    /// # Errors
    /// If a table cannot be read.
    pub fn written_since(
        &self,
        (start, end): (&[u8], &[u8]),
        since: SeqNo,
        read_seqno: SeqNo,
    ) -> Result<Option<Written>> {
        let icmp = self.version.icmp();
        let search = Search {
            order: &icmp.user,
            start,
            end,
            with_end: false,
            since,
            read_seqno,
        };
        if search.is_behind(start) {
            return Ok(None);
        }
        for memtable in self.memtables.clone() {
            if memtable.has_range_tombstones()
                && let Some(written) = search.in_tombstones(&memtable.range_tombstones())
            {
                return Ok(Some(written));
            }
            if let Some(written) = search.in_entries(memtable.clone().iter())? {
                return Ok(Some(written));
            }
        }
        for (number, level) in self.version.levels().iter().enumerate() {
            let files = match number {
                0 => level.files(),
                _ => &level.files()[level.overlapping(icmp, Some(start), Some(end))],
            };
            for file in files.iter().filter(|f| f.largest_seqno > since) {
                if let Some(written) = self.written_in(file, &search.within(file))? {
                    return Ok(Some(written));
                }
            }
        }
        Ok(None)
    }

    fn written_in(&self, file: &Arc<FileMeta>, search: &Search<'_>) -> Result<Option<Written>> {
        if search.is_behind(search.start) {
            return Ok(None);
        }
        if self.tables.may_have_range_tombstones(file)
            && let Some(written) = search.in_tombstones(&*self.tables.range_tombstones(file)?)
        {
            return Ok(Some(written));
        }
        search.in_entries(self.tables.iter(file, self.table_options)?)
    }
}

#[cfg(test)]
mod tests;
