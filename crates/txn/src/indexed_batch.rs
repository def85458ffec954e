//! A write batch that can be read before it is written.
//!
//! ```text
//! batch    operations as they will stand in the log
//! entries  for each operation on a key: where it is in the batch, and the one before on the same key
//! index    per family, key -> newest entry: a trie's root, or a sorted list where the order is not by bytes
//! ranges   per family, each with the number of entries that were there before it: it hides those
//! ```
//! 1. Entries and operations on keys are in the same order, so undoing the newest entries is undoing the newest operations.
//!    An undo takes an entry off its key's chain, and the key away with the first.
//! 2. What is refused has changed nothing.
//!
//! Cost: an operation is one insert into the trie and 16 bytes beside the batch's own; rolling back costs what was written since.

use std::sync::{Arc, OnceLock};

use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{Error, PinnedValue, Result, SeqNo, UserComparator, memory};
use orogen_engine::batch::{BatchMark, BatchOp};
use orogen_engine::plugin::merge_operator::MergeOperator;
use orogen_engine::{ColumnFamily, Db, ReadOptions, WriteBatch, WriteOptions};
use orogen_trie::{BLOCK_MAX, Cursor, LocalTrie, Root};

/// Families whose keys are in the trie; those of more are in sorted lists.
const ROOTS: u32 = 64;
/// What memory is asked for.
const WHAT: &str = "index of a write batch";

/// A write batch whose operations are found by key.
pub struct IndexedBatch {
    batch: WriteBatch,
    map: LocalTrie,
    entries: Vec<Entry>,
    families: Vec<Family>,
    /// The families that ranges were deleted in, in that order.
    range_order: Vec<u32>,
    save_points: Vec<SavePoint>,
    /// Rises with every change.
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// In the batch.
    offset: u32,
    /// The entry before on the same key, plus one.
    before: u32,
    /// The place of the family in the list.
    family: u32,
}

#[derive(Clone, Copy, Debug)]
struct SavePoint {
    mark: BatchMark,
    entries: usize,
    ranges: usize,
}

pub(crate) struct Family {
    id: u32,
    pub(crate) order: UserComparator,
    merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Where keys are not in the order of their bytes, or there is no root left: the newest entry of each key, in order.
    sorted: Option<Vec<u32>>,
    ranges: Vec<RangeTombstone>,
    fragments: OnceLock<FragmentedRangeTombstones>,
}

/// What a batch says of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchLookup<'a> {
    /// Nothing: what is below counts.
    NotFound,
    /// It has this value.
    Value(&'a [u8]),
    /// It is deleted.
    Deleted,
    /// It is merged with these operands, oldest first, onto what is below.
    Merge(Vec<&'a [u8]>),
    /// It is merged with these operands, oldest first, onto this value, or onto none.
    MergeOnto(Option<&'a [u8]>, Vec<&'a [u8]>),
}

/// A place among the keys of one family of a batch.
#[derive(Default)]
pub(crate) struct Place {
    trie: Cursor,
    /// In the sorted list.
    at: Option<usize>,
    key: Vec<u8>,
}

impl IndexedBatch {
    /// An empty batch.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new() -> Result<Self> {
        Self::with(WriteBatch::new())
    }

    /// Takes `batch`, which must be empty, for its settings and memory.
    ///
    /// # Errors
    /// `InvalidArgument` for one that is not empty; `NoMemory`.
    pub fn with(batch: WriteBatch) -> Result<Self> {
        if !batch.is_empty() {
            return Err(Error::invalid_argument("batch to be indexed is not empty")
                .with("operations", batch.count()));
        }
        Ok(Self {
            batch,
            map: LocalTrie::new(BLOCK_MAX, 1, ROOTS)?,
            entries: Vec::new(),
            families: Vec::new(),
            range_order: Vec::new(),
            save_points: Vec::new(),
            changes: 0,
        })
    }

    /// The batch as it will be written.
    #[must_use]
    pub fn batch(&self) -> &WriteBatch {
        &self.batch
    }

    /// Writes the batch; it stays as it is.
    ///
    /// # Errors
    /// Those of [`Db::write_opt`].
    pub fn write(&mut self, db: &Db, options: &WriteOptions) -> Result<()> {
        db.write_opt(options, &mut self.batch)
    }

    /// Operations that take a sequence number.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.batch.count()
    }

    /// True if there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Bytes of memory that it holds, the batch's own and the index.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.batch.size_bytes() + self.map.bytes().0 + self.entries.capacity() * size_of::<Entry>()
    }

    /// Forgets everything, save points too, and keeps the memory.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.map.clear();
        self.entries.clear();
        self.families.clear();
        self.range_order.clear();
        self.save_points.clear();
        self.changes += 1;
    }

    /// Sets a key.
    ///
    /// # Errors
    /// `InvalidArgument` for a key, value or batch that is too large (4 GiB); `NoMemory`.
    pub fn put(&mut self, family: &ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        self.add(family, key, |batch, cf| batch.put(cf, key, value))
    }

    /// Adds a merge operand to a key.
    ///
    /// # Errors
    /// As [`Self::put`]; `InvalidArgument` if the family has no merge operator.
    pub fn merge(&mut self, family: &ColumnFamily, key: &[u8], operand: &[u8]) -> Result<()> {
        if family.options().merge_operator.is_none() {
            return Err(Error::invalid_argument(
                "merge needs a merge operator in the column family's options",
            )
            .with("column_family", family.name()));
        }
        self.add(family, key, |batch, cf| batch.merge(cf, key, operand))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.add(family, key, |batch, cf| batch.delete(cf, key))
    }

    /// Deletes a key that was put once; see [`WriteBatch::single_delete`].
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn single_delete(&mut self, family: &ColumnFamily, key: &[u8]) -> Result<()> {
        self.add(family, key, |batch, cf| batch.single_delete(cf, key))
    }

    /// Deletes the keys from `start` up to but not including `end`.
    ///
    /// # Errors
    /// As [`Self::put`]; `InvalidArgument` if `end` is before `start`.
    pub fn delete_range(&mut self, family: &ColumnFamily, start: &[u8], end: &[u8]) -> Result<()> {
        let at = self.family(family)?;
        let order = &self.families[at as usize].order;
        if order.less(end, start) {
            return Err(
                Error::invalid_argument("end of the range is before its start")
                    .with("column_family", family.name()),
            );
        }
        let is_empty = !order.less(start, end);
        let mark = self.batch.mark();
        memory::reserve(&mut self.range_order, 1, WHAT)?;
        self.batch.delete_range(family.id(), start, end);
        self.check(&mark)?;
        if is_empty {
            return Ok(());
        }
        self.range_order.push(at);
        let family = &mut self.families[at as usize];
        family.ranges.push(RangeTombstone {
            start: start.to_vec(),
            end: end.to_vec(),
            seqno: self.entries.len() as SeqNo + 1,
        });
        family.fragments = OnceLock::new();
        self.changes += 1;
        Ok(())
    }

    /// Adds bytes that only readers of the log see.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn put_log_data(&mut self, data: &[u8]) -> Result<()> {
        let mark = self.batch.mark();
        self.batch.put_log_data(data);
        self.check(&mark)
    }

    /// Remembers the state of now for [`Self::rollback_to_save_point`].
    pub fn set_save_point(&mut self) {
        self.save_points.push(SavePoint {
            mark: self.batch.mark(),
            entries: self.entries.len(),
            ranges: self.range_order.len(),
        });
    }

    /// Undoes everything since the last save point, and forgets it.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn rollback_to_save_point(&mut self) -> Result<()> {
        let save_point = self.save_points.pop().ok_or_else(no_save_point)?;
        self.undo(&save_point)
    }

    /// Forgets the last save point and keeps what was written since.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn pop_save_point(&mut self) -> Result<()> {
        self.save_points.pop().map(|_| ()).ok_or_else(no_save_point)
    }

    /// What the batch says of a key.
    ///
    /// # Errors
    /// `Corruption` if the batch in memory is damaged.
    pub fn lookup(&self, family: &ColumnFamily, key: &[u8]) -> Result<BatchLookup<'_>> {
        match self.find_family(family.id()) {
            Some(at) => self.lookup_in(at, key, None),
            None => Ok(BatchLookup::NotFound),
        }
    }

    /// The value of a key as it would be after the batch was written to `db`.
    ///
    /// # Errors
    /// Those of [`Db::get_opt`] and [`Self::lookup`]; `InvalidArgument` if operands cannot be merged.
    pub fn get(
        &self,
        db: &Db,
        options: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<Option<PinnedValue>> {
        let below = || db.get_opt(options, family, key);
        let Some(at) = self.find_family(family.id()) else {
            return below();
        };
        match self.lookup_in(at, key, None)? {
            BatchLookup::NotFound => below(),
            BatchLookup::Deleted => Ok(None),
            BatchLookup::Value(value) => Ok(Some(PinnedValue::from(value.to_vec()))),
            BatchLookup::Merge(operands) => {
                let base = below()?;
                let merged = self.merged(at, key, base.as_deref(), &operands)?;
                Ok(Some(PinnedValue::from(merged)))
            }
            BatchLookup::MergeOnto(base, operands) => {
                let merged = self.merged(at, key, base, &operands)?;
                Ok(Some(PinnedValue::from(merged)))
            }
        }
    }

    pub(crate) fn merged(
        &self,
        at: u32,
        key: &[u8],
        base: Option<&[u8]>,
        operands: &[&[u8]],
    ) -> Result<Vec<u8>> {
        let operator = self.families[at as usize].merge_operator.as_ref();
        let merged = operator.and_then(|o| o.full_merge(key, base, operands));
        merged.ok_or_else(|| {
            Error::invalid_argument("merge operands of a write batch do not fit the value")
                .with("key", key.escape_ascii())
        })
    }

    /// The place of a family that the batch has written to.
    pub(crate) fn find_family(&self, id: u32) -> Option<u32> {
        let at = self.families.iter().position(|f| f.id == id)?;
        Some(at as u32)
    }

    /// The fragments of the ranges that are deleted in a family.
    pub(crate) fn ranges(&self, at: u32) -> Option<&FragmentedRangeTombstones> {
        let family = &self.families[at as usize];
        if family.ranges.is_empty() {
            return None;
        }
        let make = || FragmentedRangeTombstones::new(&family.order, family.ranges.clone());
        Some(family.fragments.get_or_init(make))
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    fn family(&mut self, family: &ColumnFamily) -> Result<u32> {
        if let Some(at) = self.find_family(family.id()) {
            return Ok(at);
        }
        let options = family.options();
        let is_in_trie = options.comparator.is_bytewise() && self.families.len() < ROOTS as usize;
        self.families.push(Family {
            id: family.id(),
            order: options.comparator.clone(),
            merge_operator: options.merge_operator.clone(),
            sorted: (!is_in_trie).then(Vec::new),
            ranges: Vec::new(),
            fragments: OnceLock::new(),
        });
        Ok(self.families.len() as u32 - 1)
    }

    /// Takes back what was refused.
    fn check(&mut self, mark: &BatchMark) -> Result<()> {
        self.batch
            .check_whole()
            .inspect_err(|_| self.batch.roll_back_to(mark))
    }

    fn add(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        write: impl FnOnce(&mut WriteBatch, u32),
    ) -> Result<()> {
        let at = self.family(family)?;
        memory::reserve(&mut self.entries, 1, WHAT)?;
        let mark = self.batch.mark();
        let offset = self.batch.size_bytes() as u32;
        write(&mut self.batch, family.id());
        self.check(&mark)?;
        match self.index(at, key) {
            Ok(before) => {
                self.entries.push(Entry {
                    offset,
                    before,
                    family: at,
                });
                self.changes += 1;
                Ok(())
            }
            Err(e) => {
                self.batch.roll_back_to(&mark);
                Err(e)
            }
        }
    }

    /// Makes the next entry the newest of `key`; returns the one before, plus one.
    fn index(&mut self, at: u32, key: &[u8]) -> Result<u32> {
        let newest = self.entries.len() as u32 + 1;
        if self.families[at as usize].sorted.is_none() {
            let (cell, is_new) = self.map.insert(Root(at), key, &[newest])?;
            if is_new {
                return Ok(0);
            }
            let before = cell.load(0);
            cell.store(0, newest);
            return Ok(before);
        }
        let place = self.search(at, key)?;
        let Some(sorted) = &mut self.families[at as usize].sorted else {
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

    /// The place of a key in the sorted list, or where it would be.
    fn search(&self, at: u32, key: &[u8]) -> Result<std::result::Result<usize, usize>> {
        let family = &self.families[at as usize];
        let sorted = family.sorted.as_deref().unwrap_or_default();
        let (mut low, mut high) = (0, sorted.len());
        while low < high {
            let mid = low + (high - low) / 2;
            match family.order.compare(self.key_of(sorted[mid])?, key) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return Ok(Ok(mid)),
            }
        }
        Ok(Err(low))
    }

    /// The key of an entry, which is given plus one.
    fn key_of(&self, entry: u32) -> Result<&[u8]> {
        let offset = self.entries[entry as usize - 1].offset;
        match self.batch.operation_at(offset as usize)? {
            BatchOp::Put { key, .. }
            | BatchOp::Merge { key, .. }
            | BatchOp::Delete { key, .. }
            | BatchOp::SingleDelete { key, .. } => Ok(key),
            _ => Err(Error::corruption("entry of a write batch has no key")),
        }
    }

    fn newest(&self, at: u32, key: &[u8]) -> Result<u32> {
        if let Some(sorted) = &self.families[at as usize].sorted {
            return Ok(self.search(at, key)?.map_or(0, |i| sorted[i]));
        }
        Ok(self.map.get(Root(at), key).map_or(0, |cell| cell.load(0)))
    }

    /// What the batch says of a key of a family; `newest` where that is known.
    pub(crate) fn lookup_in(
        &self,
        at: u32,
        key: &[u8],
        newest: Option<u32>,
    ) -> Result<BatchLookup<'_>> {
        let mut entry = match newest {
            Some(entry) => entry,
            None => self.newest(at, key)?,
        };
        let order = &self.families[at as usize].order;
        let hidden = self.ranges(at).map_or(0, |ranges| {
            ranges.max_covering_seqno(order, key, SeqNo::MAX)
        });
        let mut operands = Vec::new();
        let mut base = None;
        // Entries before the range are hidden by it.
        while SeqNo::from(entry) >= hidden.max(1) {
            let Entry { offset, before, .. } = self.entries[entry as usize - 1];
            match self.batch.operation_at(offset as usize)? {
                BatchOp::Merge { operand, .. } => operands.push(operand),
                BatchOp::Put { value, .. } => {
                    base = Some(Some(value));
                    break;
                }
                _ => {
                    base = Some(None);
                    break;
                }
            }
            entry = before;
        }
        operands.reverse();
        let base = base.or_else(|| (hidden > 0).then_some(None));
        Ok(match (base, operands.is_empty()) {
            (None, true) => BatchLookup::NotFound,
            (None, false) => BatchLookup::Merge(operands),
            (Some(None), true) => BatchLookup::Deleted,
            (Some(Some(value)), true) => BatchLookup::Value(value),
            (Some(base), false) => BatchLookup::MergeOnto(base, operands),
        })
    }

    fn undo(&mut self, to: &SavePoint) -> Result<()> {
        while self.entries.len() > to.entries {
            let newest = self.entries.len() as u32;
            let key = self.key_of(newest)?.to_vec();
            let Entry { before, family, .. } = self.entries[newest as usize - 1];
            if self.families[family as usize].sorted.is_some() {
                let place = self.search(family, &key)?;
                if let (Ok(i), Some(sorted)) = (place, &mut self.families[family as usize].sorted) {
                    match before {
                        0 => drop(sorted.remove(i)),
                        _ => sorted[i] = before,
                    }
                }
            } else if before == 0 {
                self.map.remove(Root(family), &key);
            } else if let Some(cell) = self.map.get(Root(family), &key) {
                cell.store(0, before);
            }
            self.entries.pop();
        }
        while self.range_order.len() > to.ranges {
            if let Some(at) = self.range_order.pop() {
                let family = &mut self.families[at as usize];
                family.ranges.pop();
                family.fragments = OnceLock::new();
            }
        }
        self.batch.roll_back_to(&to.mark);
        self.changes += 1;
        Ok(())
    }

    /// Goes to a key of the family: the first not before `key`, or from `None` the first of all.
    pub(crate) fn seek(&self, at: u32, place: &mut Place, key: Option<&[u8]>) -> Result<()> {
        if let Some(sorted) = &self.families[at as usize].sorted {
            let i = match key {
                Some(key) => self.search(at, key)?.unwrap_or_else(|i| i),
                None => 0,
            };
            return self.go_to(place, sorted, Some(i));
        }
        match key {
            Some(key) => place.trie.seek(&self.map, Root(at), key),
            None => place.trie.first(&self.map, Root(at)),
        }
        Ok(())
    }

    /// The last not behind `key`, or from `None` the last of all.
    pub(crate) fn seek_for_prev(
        &self,
        at: u32,
        place: &mut Place,
        key: Option<&[u8]>,
    ) -> Result<()> {
        if let Some(sorted) = &self.families[at as usize].sorted {
            let i = match key {
                Some(key) => match self.search(at, key)? {
                    Ok(i) => Some(i),
                    Err(i) => i.checked_sub(1),
                },
                None => sorted.len().checked_sub(1),
            };
            return self.go_to(place, sorted, i);
        }
        match key {
            Some(key) => place.trie.seek_for_prev(&self.map, Root(at), key),
            None => place.trie.last(&self.map, Root(at)),
        }
        Ok(())
    }

    /// The next key; nothing has changed since the last call.
    pub(crate) fn next(&self, at: u32, place: &mut Place) -> Result<()> {
        match &self.families[at as usize].sorted {
            Some(sorted) => {
                let next = place.at.map(|i| i + 1);
                self.go_to(place, sorted, next)
            }
            None => {
                place.trie.next(&self.map);
                Ok(())
            }
        }
    }

    /// The key before; nothing has changed since the last call.
    pub(crate) fn prev(&self, at: u32, place: &mut Place) -> Result<()> {
        match &self.families[at as usize].sorted {
            Some(sorted) => {
                let before = place.at.and_then(|i| i.checked_sub(1));
                self.go_to(place, sorted, before)
            }
            None => {
                place.trie.prev(&self.map);
                Ok(())
            }
        }
    }

    fn go_to(&self, place: &mut Place, sorted: &[u32], i: Option<usize>) -> Result<()> {
        place.at = i.filter(|&i| i < sorted.len());
        place.key.clear();
        if let Some(i) = place.at {
            place.key.extend_from_slice(self.key_of(sorted[i])?);
        }
        Ok(())
    }

    /// The key and the newest entry at a place.
    pub(crate) fn at<'p>(&self, at: u32, place: &'p Place) -> Option<(&'p [u8], u32)> {
        match &self.families[at as usize].sorted {
            Some(sorted) => Some((&place.key, *sorted.get(place.at?)?)),
            None => {
                if !place.trie.valid() {
                    return None;
                }
                Some((place.trie.key(), place.trie.cell(&self.map)?.load(0)))
            }
        }
    }

    pub(crate) fn order(&self, at: u32) -> &UserComparator {
        &self.families[at as usize].order
    }
}

#[cold]
fn no_save_point() -> Error {
    Error::not_found("write batch has no save point")
}
