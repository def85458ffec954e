//! Where the keys of a batch are, of its operations up to some byte.
//!
//! ```text
//! entries  for each operation on a key: where it is in the batch, and the one before on the same key
//! table    family and key -> newest entry: for look-ups
//! trie     per family a root, key -> newest entry: for cursors, of the first entries, up to when one was last placed
//! sorted   per family, instead of both, where the order is neither by bytes nor against them: the newest entry of each key, in order
//! ```
//! 1. Entries and operations on keys are in the same order, so undoing the newest entries is undoing the newest operations.
//!    An undo takes an entry off its key's chain, and the key away with the first.
//! 2. Where it finds no memory it has caught up to an operation before, and goes on from there.
//! 3. Cursors move in a trie that has all entries: who changes the batch places them anew.

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::fast::RandomState;
use orogen_base::{Error, Result, memory};
use orogen_engine::WriteBatch;
use orogen_engine::batch::BatchOp;
use orogen_trie::{BLOCK_MAX, LocalTrie, Root};

use super::table::Table;
use super::{Family, Place, WHAT};

/// Families whose keys are in the trie; those of more are in sorted lists, into which each key is moved.
const ROOTS: u32 = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// In the batch.
    offset: u32,
    /// The entry before on the same key, plus one.
    before: u32,
    /// The place of the family in the list.
    family: u32,
    /// Of the key, where it is in the table.
    hash: u32,
}

/// An entry and what it leads to.
pub(super) struct Found<'b> {
    /// Plus one.
    pub(super) entry: u32,
    pub(super) op: BatchOp<'b>,
    /// The entry before on the same key, plus one.
    pub(super) before: u32,
}

/// Where the keys of a family are.
enum Keys {
    /// In the table, and in the trie in the order of bytes; for the family that may be backwards.
    Hashed { backwards: bool },
    /// The newest entry of each key, in order.
    Sorted(Vec<u32>),
}

#[derive(Default)]
pub(super) struct Index {
    entries: Vec<Entry>,
    table: Table,
    hasher: RandomState,
    /// Made with the first cursor.
    map: Option<LocalTrie>,
    /// Entries that it has.
    mapped: usize,
    /// Of each family that has a key.
    keys: Vec<Keys>,
    /// Bytes of the batch whose operations are here; 0 is none.
    end: usize,
}

impl Index {
    pub(super) fn memory_usage(&self) -> usize {
        let map = self.map.as_ref().map_or(0, |map| map.bytes().0);
        let sorted = self.keys.iter().map(|keys| match keys {
            Keys::Sorted(sorted) => sorted.capacity(),
            Keys::Hashed { .. } => 0,
        });
        let sorted = sorted.sum::<usize>();
        map + self.table.memory_usage()
            + self.entries.capacity() * size_of::<Entry>()
            + sorted * size_of::<u32>()
    }

    /// Forgets everything and keeps the memory.
    pub(super) fn clear(&mut self) {
        if let Some(map) = &mut self.map
            && self.mapped > 0
        {
            map.clear();
        }
        self.mapped = 0;
        self.table.clear();
        self.entries.clear();
        self.keys.clear();
        self.end = 0;
    }

    #[inline]
    pub(super) fn has_all_of(&self, batch: &WriteBatch) -> bool {
        self.end == batch.size_bytes() || batch.is_empty()
    }

    /// Takes up what was written since the last time; `keys` operations on keys are there by now.
    ///
    /// # Errors
    /// `NoMemory`; `Corruption` if the batch in memory is damaged.
    pub(super) fn catch_up(
        &mut self,
        batch: &WriteBatch,
        families: &[Family],
        keys: u32,
    ) -> Result<()> {
        let more = (keys as usize).saturating_sub(self.entries.len());
        memory::reserve(&mut self.entries, more, WHAT)?;
        let mut operations = batch.operations_from(self.end);
        let mut at = 0;
        loop {
            let offset = batch.size_bytes() - operations.left();
            let Some(op) = operations.next() else { break };
            if let Some((cf, key)) = key_of(&op?) {
                if families.get(at).is_none_or(|f| f.id != cf) {
                    let known = families.iter().position(|f| f.id == cf);
                    at = known.ok_or_else(|| Error::corruption("family of a write batch"))?;
                }
                self.add(batch, families, at as u32, key, offset as u32, keys)?;
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
        keys: u32,
    ) -> Result<()> {
        memory::reserve(&mut self.entries, 1, WHAT)?;
        while self.keys.len() <= at as usize {
            let place = self.keys.len();
            let order = &families[place].order;
            let backwards = order.is_reverse_bytewise();
            let is_hashed = (order.is_bytewise() || backwards) && place < ROOTS as usize;
            self.keys.push(match is_hashed {
                true => Keys::Hashed { backwards },
                false => Keys::Sorted(Vec::new()),
            });
        }
        let (before, hash) = if self.sorted(at).is_some() {
            (self.make_newest_of_list(batch, families, at, key)?, 0)
        } else {
            let hash = self.hash(at, key);
            if !self.table.has_room() {
                self.grow_table(keys as usize)?;
            }
            (self.make_newest(batch, at, key, hash)?, hash)
        };
        self.entries.push(Entry {
            offset,
            before,
            family: at,
            hash,
        });
        Ok(())
    }

    #[inline]
    fn hash(&self, at: u32, key: &[u8]) -> u32 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(at);
        hasher.write(key);
        hasher.finish() as u32
    }

    #[cold]
    fn grow_table(&mut self, keys: usize) -> Result<()> {
        let hashed = self.entries.iter().zip(1..);
        let is_hashed = |e: &Entry| matches!(self.keys[e.family as usize], Keys::Hashed { .. });
        let hashed = hashed.filter(|(e, _)| is_hashed(e));
        self.table
            .grow(keys, hashed.map(|(e, n)| (e.hash, e.before, n)))
    }

    /// Makes the next entry the newest of `key`, for which the table has room; returns the one before, plus one.
    #[inline]
    fn make_newest(&mut self, batch: &WriteBatch, at: u32, key: &[u8], hash: u32) -> Result<u32> {
        let newest = self.entries.len() as u32 + 1;
        let is_it = |entry| self.is_entry_of(batch, entry, at, key);
        match self.table.find(hash, is_it)? {
            Ok((slot, before)) => {
                self.table.set(slot, hash, newest);
                Ok(before)
            }
            Err(slot) => {
                self.table.add(slot, hash, newest);
                Ok(0)
            }
        }
    }

    fn make_newest_of_list(
        &mut self,
        batch: &WriteBatch,
        families: &[Family],
        at: u32,
        key: &[u8],
    ) -> Result<u32> {
        let newest = self.entries.len() as u32 + 1;
        let place = self.search(batch, families, at, key)?;
        let Keys::Sorted(sorted) = &mut self.keys[at as usize] else {
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

    /// Puts into the trie what is not there yet, for cursors.
    ///
    /// # Errors
    /// `NoMemory`.
    fn fill_map(&mut self, batch: &WriteBatch) -> Result<()> {
        while let Some(&Entry { family, .. }) = self.entries.get(self.mapped) {
            let entry = self.mapped as u32 + 1;
            if self.sorted(family).is_none() {
                let key = self.key(batch, entry)?;
                let map = match &mut self.map {
                    Some(map) => map,
                    none => none.insert(LocalTrie::new(BLOCK_MAX, 1, ROOTS)?),
                };
                let (cell, is_new) = map.insert(Root(family), key, &[entry])?;
                if !is_new {
                    cell.store(0, entry);
                }
            }
            self.mapped += 1;
        }
        Ok(())
    }

    #[inline]
    fn is_entry_of(&self, batch: &WriteBatch, entry: u32, at: u32, key: &[u8]) -> Result<bool> {
        Ok(self.entries[entry as usize - 1].family == at && self.key(batch, entry)? == key)
    }

    /// False if the family has none: it may not have a root either.
    fn has_keys(&self, at: u32) -> bool {
        (at as usize) < self.keys.len()
    }

    fn sorted(&self, at: u32) -> Option<&[u32]> {
        match self.keys.get(at as usize)? {
            Keys::Sorted(sorted) => Some(sorted),
            Keys::Hashed { .. } => None,
        }
    }

    /// True if the family's order is the trie's backwards.
    fn is_backwards(&self, at: u32) -> bool {
        matches!(
            self.keys.get(at as usize),
            Some(Keys::Hashed { backwards: true })
        )
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

    /// What an entry, which is given plus one, leads to; nothing for 0.
    #[inline]
    pub(super) fn entry<'b>(&self, batch: &'b WriteBatch, entry: u32) -> Result<Option<Found<'b>>> {
        let Some(at) = (entry as usize).checked_sub(1) else {
            return Ok(None);
        };
        let Entry { offset, before, .. } = self.entries[at];
        let op = batch.operation_at(offset as usize)?;
        Ok(Some(Found { entry, op, before }))
    }

    /// The key of an entry, which is given plus one.
    fn key<'b>(&self, batch: &'b WriteBatch, entry: u32) -> Result<&'b [u8]> {
        let found = self.entry(batch, entry)?;
        let key = found.and_then(|found| key_of(&found.op));
        let none = || Error::corruption("entry of a write batch has no key");
        Ok(key.ok_or_else(none)?.1)
    }

    /// The newest entry of a key.
    #[inline]
    pub(super) fn newest<'b>(
        &self,
        batch: &'b WriteBatch,
        families: &[Family],
        at: u32,
        key: &[u8],
    ) -> Result<Option<Found<'b>>> {
        if let Some(sorted) = self.sorted(at) {
            let place = self.search(batch, families, at, key)?;
            return self.entry(batch, place.map_or(0, |i| sorted[i]));
        }
        if !self.has_keys(at) {
            return Ok(None);
        }
        let mut found = None;
        let is_it = |entry: u32| {
            if self.entries[entry as usize - 1].family != at {
                return Ok(false);
            }
            found = self.entry(batch, entry)?;
            Ok(found
                .as_ref()
                .and_then(|found| key_of(&found.op))
                .is_some_and(|(_, own)| own == key))
        };
        let place = self.table.find(self.hash(at, key), is_it)?;
        Ok(found.filter(|_| place.is_ok()))
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
            let Entry {
                before,
                family,
                hash,
                ..
            } = self.entries[newest as usize - 1];
            if self.sorted(family).is_some() {
                let place = self.search(batch, families, family, key)?;
                if let (Ok(i), Keys::Sorted(sorted)) = (place, &mut self.keys[family as usize]) {
                    match before {
                        0 => drop(sorted.remove(i)),
                        _ => sorted[i] = before,
                    }
                }
            } else {
                if let Ok((slot, _)) = self.table.find(hash, |entry| Ok(entry == newest))? {
                    match before {
                        0 => self.table.remove_last(slot),
                        _ => self.table.set(slot, hash, before),
                    }
                }
                if let Some(map) = &mut self.map
                    && newest as usize <= self.mapped
                {
                    if before == 0 {
                        map.remove(Root(family), key);
                    } else if let Some(cell) = map.get(Root(family), key) {
                        cell.store(0, before);
                    }
                }
            }
            self.mapped = self.mapped.min(newest as usize - 1);
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
        &mut self,
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
        self.fill_map(batch)?;
        let Some(map) = &self.map else {
            return Ok(());
        };
        match (key, self.is_backwards(at)) {
            (Some(key), false) => place.trie.seek(map, Root(at), key),
            (Some(key), true) => place.trie.seek_for_prev(map, Root(at), key),
            (None, false) => place.trie.first(map, Root(at)),
            (None, true) => place.trie.last(map, Root(at)),
        }
        Ok(())
    }

    /// Goes to the last key not behind `key`, or from `None` to the last of all.
    pub(super) fn seek_for_prev(
        &mut self,
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
        self.fill_map(batch)?;
        let Some(map) = &self.map else {
            return Ok(());
        };
        match (key, self.is_backwards(at)) {
            (Some(key), false) => place.trie.seek_for_prev(map, Root(at), key),
            (Some(key), true) => place.trie.seek(map, Root(at), key),
            (None, false) => place.trie.last(map, Root(at)),
            (None, true) => place.trie.first(map, Root(at)),
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
            match self.is_backwards(at) {
                false => place.trie.next(map),
                true => place.trie.prev(map),
            }
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
            match self.is_backwards(at) {
                false => place.trie.prev(map),
                true => place.trie.next(map),
            }
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
