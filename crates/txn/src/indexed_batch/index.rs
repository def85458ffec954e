//! Where the keys of a batch are, of its operations up to some byte.
//!
//! ```text
//! entries  for each operation on a key: where it is in the batch, and the one before on the same key
//! keys     per family, key -> newest entry: a trie's root, or a sorted list where the order is not by bytes
//! ```
//! 1. Entries and operations on keys are in the same order, so undoing the newest entries is undoing the newest operations.
//!    An undo takes an entry off its key's chain, and the key away with the first.
//! 2. Where it finds no memory it has caught up to an operation before, and goes on from there.

use orogen_base::{Error, Result, memory};
use orogen_engine::WriteBatch;
use orogen_engine::batch::BatchOp;
use orogen_trie::{BLOCK_MAX, LocalTrie, Root};

use super::{Family, Place, WHAT};

/// Families whose keys are in the trie; those of more are in sorted lists.
const ROOTS: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// In the batch.
    offset: u32,
    /// The entry before on the same key, plus one.
    before: u32,
    /// The place of the family in the list.
    family: u32,
}

#[derive(Default)]
pub(super) struct Index {
    /// Made with the first key.
    map: Option<LocalTrie>,
    entries: Vec<Entry>,
    /// Of each family that has a key: where keys are not in the order of their bytes, or there is no root left, the newest
    /// entry of each key, in order.
    sorted: Vec<Option<Vec<u32>>>,
    /// Bytes of the batch whose operations are here; 0 is none.
    end: usize,
}

impl Index {
    pub(super) fn memory_usage(&self) -> usize {
        let map = self.map.as_ref().map_or(0, |map| map.bytes().0);
        let sorted = self
            .sorted
            .iter()
            .flatten()
            .map(Vec::capacity)
            .sum::<usize>();
        map + self.entries.capacity() * size_of::<Entry>() + sorted * size_of::<u32>()
    }

    /// Forgets everything and keeps the memory.
    pub(super) fn clear(&mut self) {
        if let Some(map) = &mut self.map
            && self.end > 0
        {
            map.clear();
        }
        self.entries.clear();
        self.sorted.clear();
        self.end = 0;
    }

    #[inline]
    pub(super) fn has_all_of(&self, batch: &WriteBatch) -> bool {
        self.end == batch.size_bytes() || batch.is_empty()
    }

    /// Takes up what was written since the last time.
    ///
    /// # Errors
    /// `NoMemory`; `Corruption` if the batch in memory is damaged.
    pub(super) fn catch_up(&mut self, batch: &WriteBatch, families: &[Family]) -> Result<()> {
        let mut operations = batch.operations_from(self.end);
        loop {
            let offset = batch.size_bytes() - operations.left();
            let Some(op) = operations.next() else { break };
            if let Some((cf, key)) = key_of(&op?) {
                let known = families.iter().position(|f| f.id == cf);
                let at = known.ok_or_else(|| Error::corruption("family of a write batch"))?;
                self.add(batch, families, at as u32, key, offset as u32)?;
            }
            self.end = batch.size_bytes() - operations.left();
        }
        Ok(())
    }

    /// Takes the newest operation of `key` up.
    fn add(
        &mut self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        key: &[u8],
        offset: u32,
    ) -> Result<()> {
        memory::reserve(&mut self.entries, 1, WHAT)?;
        while self.sorted.len() <= at as usize {
            let place = self.sorted.len();
            let is_in_trie = families[place].order.is_bytewise() && place < ROOTS as usize;
            self.sorted.push((!is_in_trie).then(Vec::new));
        }
        let before = self.make_newest(batch, families, at, key)?;
        self.entries.push(Entry {
            offset,
            before,
            family: at,
        });
        Ok(())
    }

    /// Makes the next entry the newest of `key`; returns the one before, plus one.
    fn make_newest(
        &mut self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        key: &[u8],
    ) -> Result<u32> {
        let newest = self.entries.len() as u32 + 1;
        if self.sorted[at as usize].is_none() {
            let map = match &mut self.map {
                Some(map) => map,
                none => none.insert(LocalTrie::new(BLOCK_MAX, 1, ROOTS)?),
            };
            let (cell, is_new) = map.insert(Root(at), key, &[newest])?;
            if is_new {
                return Ok(0);
            }
            let before = cell.load(0);
            cell.store(0, newest);
            return Ok(before);
        }
        let place = self.search(batch, families, at, key)?;
        let Some(sorted) = &mut self.sorted[at as usize] else {
            return Ok(0);
        };
        match place {
            Ok(i) => Ok(std::mem::replace(&mut sorted[i], newest)),
            Err(i) => {
                memory::reserve(sorted, 1, WHAT)?;
                sorted.insert(i, newest);
                Ok(0)
            }
        }
    }

    /// False if the family has none: it may not have a root either.
    fn has_keys(&self, at: u32) -> bool {
        (at as usize) < self.sorted.len()
    }

    fn sorted(&self, at: u32) -> Option<&[u32]> {
        self.sorted.get(at as usize)?.as_deref()
    }

    /// The place of a key in the sorted list, or where it would be.
    fn search(
        &self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        key: &[u8],
    ) -> Result<std::result::Result<usize, usize>> {
        let order = &families[at as usize].order;
        let sorted = self.sorted(at).unwrap_or_default();
        let (mut low, mut high) = (0, sorted.len());
        while low < high {
            let mid = low + (high - low) / 2;
            match order.compare(self.key(batch, sorted[mid])?, key) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return Ok(Ok(mid)),
            }
        }
        Ok(Err(low))
    }

    /// The operation of an entry, which is given plus one, and the entry before on the same key.
    pub(super) fn operation<'b>(
        &self,
        batch: &'b WriteBatch,
        entry: u32,
    ) -> Result<(BatchOp<'b>, u32)> {
        let Entry { offset, before, .. } = self.entries[entry as usize - 1];
        Ok((batch.operation_at(offset as usize)?, before))
    }

    /// The key of an entry, which is given plus one.
    fn key<'b>(&self, batch: &'b WriteBatch, entry: u32) -> Result<&'b [u8]> {
        let (op, _) = self.operation(batch, entry)?;
        let (_, key) =
            key_of(&op).ok_or_else(|| Error::corruption("entry of a write batch has no key"))?;
        Ok(key)
    }

    /// The newest entry of a key, plus one; 0 if it has none.
    pub(super) fn newest(
        &self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        key: &[u8],
    ) -> Result<u32> {
        if let Some(sorted) = self.sorted(at) {
            return Ok(self
                .search(batch, families, at, key)?
                .map_or(0, |i| sorted[i]));
        }
        if !self.has_keys(at) {
            return Ok(0);
        }
        let found = self.map.as_ref().and_then(|map| map.get(Root(at), key));
        Ok(found.map_or(0, |cell| cell.load(0)))
    }

    /// Undoes the entries but for the first `keys`.
    pub(super) fn undo(
        &mut self,
        batch: &WriteBatch,
        families: &[Family],
        keys: u32,
    ) -> Result<()> {
        while self.entries.len() > keys as usize {
            let newest = self.entries.len() as u32;
            let key = self.key(batch, newest)?;
            let Entry { before, family, .. } = self.entries[newest as usize - 1];
            if self.sorted(family).is_some() {
                let place = self.search(batch, families, family, key)?;
                if let (Ok(i), Some(sorted)) = (place, &mut self.sorted[family as usize]) {
                    match before {
                        0 => drop(sorted.remove(i)),
                        _ => sorted[i] = before,
                    }
                }
            } else if let Some(map) = &mut self.map {
                if before == 0 {
                    map.remove(Root(family), key);
                } else if let Some(cell) = map.get(Root(family), key) {
                    cell.store(0, before);
                }
            }
            self.entries.pop();
        }
        Ok(())
    }

    /// The batch is no longer than this by now.
    pub(super) fn ends_with(&mut self, batch: &WriteBatch) {
        self.end = self.end.min(batch.size_bytes());
    }

    /// Goes to the first key of the family not before `key`, or from `None` to the first of all.
    pub(super) fn seek(
        &self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        place: &mut Place,
        key: Option<&[u8]>,
    ) -> Result<()> {
        if !self.has_keys(at) {
            *place = Place::default();
            return Ok(());
        }
        if let Some(sorted) = self.sorted(at) {
            let i = match key {
                Some(key) => self.search(batch, families, at, key)?.unwrap_or_else(|i| i),
                None => 0,
            };
            return self.go_to(batch, place, sorted, Some(i));
        }
        match (&self.map, key) {
            (Some(map), Some(key)) => place.trie.seek(map, Root(at), key),
            (Some(map), None) => place.trie.first(map, Root(at)),
            (None, _) => {}
        }
        Ok(())
    }

    /// Goes to the last key not behind `key`, or from `None` to the last of all.
    pub(super) fn seek_for_prev(
        &self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        place: &mut Place,
        key: Option<&[u8]>,
    ) -> Result<()> {
        if !self.has_keys(at) {
            *place = Place::default();
            return Ok(());
        }
        if let Some(sorted) = self.sorted(at) {
            let i = match key {
                Some(key) => match self.search(batch, families, at, key)? {
                    Ok(i) => Some(i),
                    Err(i) => i.checked_sub(1),
                },
                None => sorted.len().checked_sub(1),
            };
            return self.go_to(batch, place, sorted, i);
        }
        match (&self.map, key) {
            (Some(map), Some(key)) => place.trie.seek_for_prev(map, Root(at), key),
            (Some(map), None) => place.trie.last(map, Root(at)),
            (None, _) => {}
        }
        Ok(())
    }

    /// Goes to the next key.
    pub(super) fn next(&self, batch: &WriteBatch, at: u32, place: &mut Place) -> Result<()> {
        if let Some(sorted) = self.sorted(at) {
            let next = place.at.map(|i| i + 1);
            return self.go_to(batch, place, sorted, next);
        }
        if let Some(map) = &self.map {
            place.trie.next(map);
        }
        Ok(())
    }

    /// Goes to the key before.
    pub(super) fn prev(&self, batch: &WriteBatch, at: u32, place: &mut Place) -> Result<()> {
        if let Some(sorted) = self.sorted(at) {
            let before = place.at.and_then(|i| i.checked_sub(1));
            return self.go_to(batch, place, sorted, before);
        }
        if let Some(map) = &self.map {
            place.trie.prev(map);
        }
        Ok(())
    }

    fn go_to(
        &self,
        batch: &WriteBatch,
        place: &mut Place,
        sorted: &[u32],
        i: Option<usize>,
    ) -> Result<()> {
        place.at = i.filter(|&i| i < sorted.len());
        place.key.clear();
        if let Some(i) = place.at {
            place.key.extend_from_slice(self.key(batch, sorted[i])?);
        }
        Ok(())
    }

    /// The key and the newest entry at a place.
    pub(super) fn at<'p>(&self, at: u32, place: &'p Place) -> Option<(&'p [u8], u32)> {
        if let Some(sorted) = self.sorted(at) {
            return Some((&place.key, *sorted.get(place.at?)?));
        }
        let map = self.map.as_ref()?;
        if !place.trie.valid() {
            return None;
        }
        Some((place.trie.key(), place.trie.cell(map)?.load(0)))
    }
}

/// Family and key of an operation on one key.
fn key_of<'b>(op: &BatchOp<'b>) -> Option<(u32, &'b [u8])> {
    match *op {
        BatchOp::Put { cf, key, .. }
        | BatchOp::Merge { cf, key, .. }
        | BatchOp::Delete { cf, key }
        | BatchOp::SingleDelete { cf, key } => Some((cf, key)),
        _ => None,
    }
}
