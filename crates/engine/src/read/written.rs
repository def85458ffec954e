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
use orogen_base::{InternalIterator, KeyRange, ParsedInternalKey, Result, SeqNo, UserComparator};
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

/// A range of user keys, and which sequence numbers count.
struct Search<'a> {
    order: &'a UserComparator,
    range: KeyRange<&'a [u8]>,
    /// What is not above is old.
    since: SeqNo,
    /// What is above is not there yet.
    read_seqno: SeqNo,
}

impl<'a> Search<'a> {
    fn is_empty(&self) -> bool {
        self.range.is_empty(self.order)
    }

    fn is_before(&self, user_key: &[u8]) -> bool {
        self.range.start.compare_key(self.order, user_key).is_gt()
    }

    fn is_behind(&self, user_key: &[u8]) -> bool {
        self.range.end.compare_key(self.order, user_key).is_lt()
    }

    /// The part of it that is in a file.
    fn within<'f>(&'f self, file: &'f FileMeta) -> Search<'f> {
        let (first, last) = (file.smallest_user_key(), file.largest_user_key());
        let file = KeyRange::new(first, last, !is_exclusive_end(&file.largest));
        let KeyRange { mut start, mut end } = self.range;
        if start.compare(self.order, &file.start).is_lt() {
            start = file.start;
        }
        if end.compare(self.order, &file.end).is_gt() {
            end = file.end;
        }
        Search {
            range: KeyRange { start, end },
            ..*self
        }
    }

    fn in_tombstones(&self, tombstones: &FragmentedRangeTombstones) -> Option<Written> {
        let start = self.range.start.key();
        let from = start.map_or(0, |start| tombstones.first_ending_after(self.order, start));
        let here = tombstones.fragments()[from..].iter();
        let here = here.skip_while(|f| self.is_before(&f.end));
        let mut here = here.take_while(|f| !self.is_behind(&f.start));
        here.find_map(|f| {
            let seqno = f.visible_seqno(self.read_seqno);
            let key = match self.is_before(&f.start) {
                true => start.unwrap_or(&f.start),
                false => &f.start,
            };
            (seqno > self.since).then(|| Written {
                key: key.to_vec(),
                seqno,
            })
        })
    }

    fn in_entries(&self, mut iter: impl InternalIterator) -> Result<Option<Written>> {
        match self.range.start.key() {
            Some(start) => {
                let mut target = Vec::new();
                append_seek_key(&mut target, start, SEQNO_MAX);
                iter.seek(&target);
            }
            None => iter.seek_to_first(),
        }
        while iter.valid() {
            let entry = ParsedInternalKey::parse(iter.key())?;
            if self.is_behind(entry.user_key) {
                return Ok(None);
            }
            let counts = entry.seqno > self.since && entry.seqno <= self.read_seqno;
            if counts && !self.is_before(entry.user_key) {
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
    /// A write above `since`, and up to `read_seqno`, to the keys of a range, deletions included.
    ///
    /// In an order that is not that of bytes a range that begins behind a key may be told of a deleted range that ends so
    /// close behind it that no key lies between.
    ///
    /// # Errors
    /// If a table cannot be read.
    pub fn written_since<K: AsRef<[u8]>>(
        &self,
        range: &KeyRange<K>,
        since: SeqNo,
        read_seqno: SeqNo,
    ) -> Result<Option<Written>> {
        let icmp = self.version.icmp();
        let start = range.start.before_next(&icmp.user);
        let search = Search {
            order: &icmp.user,
            range: KeyRange {
                start: start.borrowed(),
                end: range.end.borrowed(),
            },
            since,
            read_seqno,
        };
        if search.is_empty() {
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
                _ => {
                    let files = level.overlapping(icmp, start.key(), None);
                    let files = &level.files()[files];
                    let here = |f: &Arc<FileMeta>| !search.is_behind(f.smallest_user_key());
                    &files[..files.partition_point(here)]
                }
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
        if search.is_empty() {
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
