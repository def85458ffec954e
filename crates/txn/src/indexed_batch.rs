//! A write batch that can be read before it is written.
//!
//! ```text
//! batch    operations as they will stand in the log
//! ranges   per family, each with the number of keys that were written before it: it hides those
//! index    of what was written up to the last read (indexed_batch/index.rs)
//! ```
//! 1. A write goes to the batch alone; who reads has the index catch up first. Who only writes never pays for it.
//! 2. What is refused has changed nothing.
//!
//! Cost: a key that is read for the first time since it was written is one place in a hash table, some 16 to 32 bytes with it, and 16 more beside the
//! batch's own; one insert into a trie when a cursor is placed; rolling back costs what was written since.
//! Where the batch spills ([`SpillOptions`](orogen_engine::batch::SpillOptions)) its own bytes are in a file; the index and the ranges stay in memory.

mod index;
mod table;

use std::cell::{Ref, RefCell};
use std::sync::{Arc, OnceLock};

use orogen_base::range_del::{FragmentedRangeTombstones, RangeTombstone};
use orogen_base::{Error, PinnedValue, Result, SeqNo, UserComparator, memory};
use orogen_engine::batch::{BatchMark, BatchOp, Spill};
use orogen_engine::plugin::merge_operator::MergeOperator;
use orogen_engine::{
    ColumnFamily, ColumnFamilyIdentity, Db, ReadOptions, WriteBatch, WriteOptions,
};
use orogen_trie::Cursor;

use index::{Found, Index};

/// Keys of so many bytes are none for a trie.
const INDEXED_KEY_MAX: usize = 2 << 30;
/// An emptied batch knows no more families than these.
const FAMILIES_KEPT: usize = 8;
/// Smaller batches are taken by every memtable.
const LARGE: usize = 16 << 20;
/// Memtables are asked about so many operations and bytes more, not to be asked for each operation.
const AHEAD: Size = Size {
    operations: 4096,
    bytes: 1 << 20,
};
/// What memory is asked for.
const WHAT: &str = "index of a write batch";

/// A write batch whose operations are found by key.
pub struct IndexedBatch {
    batch: WriteBatch,
    /// Operations on keys.
    keys: u32,
    index: RefCell<Index>,
    families: Vec<Family>,
    /// The families that ranges were deleted in, in that order.
    range_order: Vec<u32>,
    save_points: Vec<SavePoint>,
    /// Rises with every change.
    changes: u64,
    /// Bytes that it may have; 0: as many as memtables take.
    max_bytes: usize,
    /// Up to here it is surely not too large.
    allowed: Size,
}

/// How large a batch is.
#[derive(Clone, Copy, Debug)]
struct Size {
    operations: usize,
    bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct SavePoint {
    mark: BatchMark,
    keys: u32,
    ranges: usize,
}

pub(crate) struct Family {
    id: u32,
    identity: ColumnFamilyIdentity,
    pub(crate) order: UserComparator,
    merge_operator: Option<Arc<dyn MergeOperator>>,
    ranges: Vec<RangeTombstone>,
    fragments: OnceLock<FragmentedRangeTombstones>,
    /// Its memtable takes a part of the batch, or did before something was rolled back.
    is_written: bool,
}

impl Family {
    fn new(family: &ColumnFamily) -> Self {
        let options = family.options();
        Self {
            id: family.id(),
            identity: ColumnFamilyIdentity::of(family),
            order: options.comparator.clone(),
            merge_operator: options.merge_operator.clone(),
            ranges: Vec::new(),
            fragments: OnceLock::new(),
            is_written: false,
        }
    }
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

    /// Takes `batch`, which must be empty, for its settings and memory: checksums, and whether it spills.
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
            keys: 0,
            index: RefCell::default(),
            families: Vec::new(),
            range_order: Vec::new(),
            save_points: Vec::new(),
            changes: 0,
            max_bytes: 0,
            allowed: allowed_at_first(0),
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

    /// Bytes of memory that it holds, the batch's own and the index; none of those in a file.
    #[must_use]
    pub fn memory_usage(&self) -> usize {
        self.batch.memory_usage() + self.index.borrow().memory_usage()
    }

    /// Whether, and from when on, its bytes go to a file.
    pub(crate) fn set_spill(&mut self, spill: Option<Arc<Spill>>) {
        self.batch.set_spill(spill);
    }

    /// See [`WriteBatch::set_protected`].
    pub fn set_protected(&mut self, on: bool) {
        self.batch.set_protected(on);
    }

    /// Bytes that the batch may have, as [`WriteBatch::size_bytes`] counts them; what would go over is refused with `TooLarge`. 0, as it
    /// is in the beginning: as many as memtables take.
    pub fn set_max_bytes(&mut self, max_bytes: usize) {
        self.max_bytes = max_bytes;
        self.allowed = allowed_at_first(max_bytes);
    }

    /// Forgets everything, save points too, and keeps the memory; a file it gives up.
    pub fn clear(&mut self) {
        self.batch.clear();
        self.keys = 0;
        self.index.get_mut().clear();
        if self.families.len() > FAMILIES_KEPT {
            self.families.clear();
        }
        for at in self.range_order.drain(..) {
            if let Some(family) = self.families.get_mut(at as usize) {
                family.ranges.clear();
                family.fragments = OnceLock::new();
            }
        }
        for family in &mut self.families {
            family.is_written = false;
        }
        self.allowed = allowed_at_first(self.max_bytes);
        self.save_points.clear();
        self.changes += 1;
    }

    /// Sets a key.
    ///
    /// # Errors
    /// `TooLarge` if the batch would have more bytes than [`Self::set_max_bytes`] allows, or more bytes or operations than a memtable
    /// takes at once; `InvalidArgument` for a key or value that is too large (4 GiB); `NoMemory`; `NoSpace`, `Io` of the file that it
    /// spills to. Nothing has changed then.
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
        self.check_write(at, &mark)?;
        if is_empty {
            return Ok(());
        }
        self.range_order.push(at);
        let family = &mut self.families[at as usize];
        family.ranges.push(RangeTombstone {
            start: start.to_vec(),
            end: end.to_vec(),
            seqno: SeqNo::from(self.keys) + 1,
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
            keys: self.keys,
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
        db.check_column_family(family)?;
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
        // Of those that lie over a key the newest decides.
        let make = || FragmentedRangeTombstones::for_job(&family.order, family.ranges.clone(), &[]);
        Some(family.fragments.get_or_init(make))
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// The index of all that was written.
    fn index(&self) -> Result<Ref<'_, Index>> {
        if !self.index.borrow().has_all_of(&self.batch) {
            self.index
                .borrow_mut()
                .catch_up(&self.batch, &self.families, self.keys)?;
        }
        Ok(self.index.borrow())
    }

    #[inline]
    fn family(&mut self, family: &ColumnFamily) -> Result<u32> {
        match self.find_family(family.id()) {
            Some(at) if self.keys > 0 || self.families[at as usize].identity.is_of(family) => {
                Ok(at)
            }
            known => self.add_family(known, family),
        }
    }

    /// Gets to know a family, instead of another one of its number that an emptied batch still knew.
    #[cold]
    fn add_family(&mut self, known: Option<u32>, family: &ColumnFamily) -> Result<u32> {
        match known {
            Some(at) if !self.range_order.is_empty() => Ok(at),
            Some(at) => {
                self.index.get_mut().clear();
                self.families[at as usize] = Family::new(family);
                Ok(at)
            }
            None => {
                memory::reserve(&mut self.families, 1, WHAT)?;
                self.families.push(Family::new(family));
                Ok(self.families.len() as u32 - 1)
            }
        }
    }

    /// Takes back what was refused.
    fn check(&mut self, mark: &BatchMark) -> Result<()> {
        let whole = self.batch.check_whole();
        whole
            .and_then(|()| self.check_size())
            .inspect_err(|_| self.batch.roll_back_to(mark))
    }

    #[inline]
    fn check_size(&mut self) -> Result<()> {
        let size = Size {
            operations: self.batch.count() as usize,
            bytes: self.batch.size_bytes(),
        };
        match size.operations <= self.allowed.operations && size.bytes <= self.allowed.bytes {
            true => Ok(()),
            false => self.check_limits(size),
        }
    }

    #[cold]
    fn check_limits(&mut self, size: Size) -> Result<()> {
        if self.max_bytes > 0 && size.bytes > self.max_bytes {
            return Err(Error::too_large("batch has more bytes than it may")
                .with("bytes", size.bytes)
                .with("bytes_max", self.max_bytes));
        }
        if size.bytes < LARGE {
            return Ok(());
        }
        let written = self.families.iter().filter(|f| f.is_written);
        let ask = |operations, bytes| {
            let mut written = written.clone();
            written.try_for_each(|f| f.identity.check_batch_size(operations, bytes))
        };
        let ahead = Size {
            operations: size.operations + AHEAD.operations,
            bytes: size.bytes + AHEAD.bytes,
        };
        if ask(ahead.operations, ahead.bytes).is_err() {
            return ask(size.operations, size.bytes);
        }
        self.allowed = Size {
            bytes: most(self.max_bytes).min(ahead.bytes),
            ..ahead
        };
        Ok(())
    }

    /// As [`Self::check`], of a write to a family, whose memtable has to take the batch from now on.
    #[inline]
    fn check_write(&mut self, at: u32, mark: &BatchMark) -> Result<()> {
        if self.families[at as usize].is_written {
            return self.check(mark);
        }
        self.families[at as usize].is_written = true;
        self.allowed = allowed_at_first(self.max_bytes);
        self.check(mark)
            .inspect_err(|_| self.families[at as usize].is_written = false)
    }

    fn add(
        &mut self,
        family: &ColumnFamily,
        key: &[u8],
        write: impl FnOnce(&mut WriteBatch, u32),
    ) -> Result<()> {
        if key.len() >= INDEXED_KEY_MAX {
            return Err(
                Error::invalid_argument("key is too long to be indexed").with("bytes", key.len())
            );
        }
        let at = self.family(family)?;
        let mark = self.batch.mark();
        write(&mut self.batch, family.id());
        self.check_write(at, &mark)?;
        self.keys += 1;
        self.changes += 1;
        Ok(())
    }

    /// What the batch says of a key of a family; `newest` where that is known.
    pub(crate) fn lookup_in(
        &self,
        at: u32,
        key: &[u8],
        newest: Option<u32>,
    ) -> Result<BatchLookup<'_>> {
        let index = self.index()?;
        let mut next = match newest {
            Some(entry) => index.entry(&self.batch, entry)?,
            None => index.newest(&self.batch, &self.families, at, key)?,
        };
        let order = &self.families[at as usize].order;
        let hidden = self.ranges(at).map_or(0, |ranges| {
            ranges.max_covering_seqno(order, key, SeqNo::MAX)
        });
        let mut operands = Vec::new();
        let mut base = None;
        // Entries before the range are hidden by it.
        while let Some(Found { entry, op, before }) = next
            && SeqNo::from(entry) >= hidden
        {
            match op {
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
            next = index.entry(&self.batch, before)?;
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
        let index = self.index.get_mut();
        index.undo(&self.batch, &self.families, to.keys)?;
        self.keys = to.keys;
        while self.range_order.len() > to.ranges {
            if let Some(at) = self.range_order.pop() {
                let family = &mut self.families[at as usize];
                family.ranges.pop();
                family.fragments = OnceLock::new();
            }
        }
        self.batch.roll_back_to(&to.mark);
        self.index.get_mut().ends_with(&self.batch);
        self.changes += 1;
        Ok(())
    }

    /// Goes to a key of the family: the first not before `key`, or from `None` the first of all.
    pub(crate) fn seek(&self, at: u32, place: &mut Place, key: Option<&[u8]>) -> Result<()> {
        drop(self.index()?);
        self.index
            .borrow_mut()
            .seek(&self.batch, &self.families, at, place, key)
    }

    /// The last not behind `key`, or from `None` the last of all.
    pub(crate) fn seek_for_prev(
        &self,
        at: u32,
        place: &mut Place,
        key: Option<&[u8]>,
    ) -> Result<()> {
        drop(self.index()?);
        self.index
            .borrow_mut()
            .seek_for_prev(&self.batch, &self.families, at, place, key)
    }

    /// The next key; nothing has changed since the last call.
    pub(crate) fn next(&self, at: u32, place: &mut Place) -> Result<()> {
        self.index.borrow().next(&self.batch, at, place)
    }

    /// The key before; nothing has changed since the last call.
    pub(crate) fn prev(&self, at: u32, place: &mut Place) -> Result<()> {
        self.index.borrow().prev(&self.batch, at, place)
    }

    /// The key and the newest entry at a place.
    pub(crate) fn at<'p>(&self, at: u32, place: &'p Place) -> Option<(&'p [u8], u32)> {
        self.index.borrow().at(at, place)
    }

    pub(crate) fn order(&self, at: u32) -> &UserComparator {
        &self.families[at as usize].order
    }
}

/// The bytes that a limit stands for, of which 0 is none.
fn most(max_bytes: usize) -> usize {
    match max_bytes {
        0 => usize::MAX,
        most => most,
    }
}

/// Up to where no memtable need be asked.
fn allowed_at_first(max_bytes: usize) -> Size {
    Size {
        operations: usize::MAX,
        bytes: most(max_bytes).min(LARGE - 1),
    }
}

#[cold]
fn no_save_point() -> Error {
    Error::not_found("write batch has no save point")
}
