//! Operations of a batch into the memtables of their families.
//!
//! Several threads apply batches at once; the sequence numbers in the batches keep their order.
//! `Hot path`.

use orogen_base::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

use orogen_base::{Error, Result, SeqNo, ValueKind};

use crate::batch::{BatchOp, Operations, WriteBatch};
use crate::column_family::ColumnFamilyData;
use crate::super_version::MemHandle;

/// The memtables that take writes, by family.
pub(crate) struct MemTables {
    entries: Vec<Entry>,
    /// Set by whoever fills one of them up; the next leader seals it.
    full: AtomicBool,
}

/// What a group wants to insert into one of its families.
#[derive(Clone, Copy, Default)]
struct Part {
    cf: u32,
    entries: usize,
    bytes: usize,
}

/// What a group wants to insert.
#[derive(Default)]
pub(crate) struct Need {
    /// Of batches that were not looked through, which are for the default family. Nothing once there are others.
    default: Part,
    /// By family, if some batch was looked through.
    families: Vec<Part>,
}

impl Need {
    /// Adds what a batch will insert.
    pub(crate) fn add(&mut self, batch: &WriteBatch) {
        let Some(batch) = batch.inserted() else {
            return;
        };
        if batch.needs_check() {
            let mut last = None;
            for op in batch.iter().flatten() {
                let Some(cf) = op.family() else { continue };
                let at = last.filter(|&at: &usize| self.families[at].cf == cf);
                let at = at.unwrap_or_else(|| self.part(cf));
                self.families[at].entries += 1;
                self.families[at].bytes += op.operand_bytes();
                last = Some(at);
            }
        } else {
            self.default.entries += batch.count() as usize;
            self.default.bytes += batch.size_bytes();
        }
        if !self.families.is_empty() && self.default.entries > 0 {
            let own = std::mem::take(&mut self.default);
            let at = self.part(own.cf);
            self.families[at].entries += own.entries;
            self.families[at].bytes += own.bytes;
        }
    }

    /// Where the part of a family is.
    fn part(&mut self, cf: u32) -> usize {
        let found = self.families.binary_search_by_key(&cf, |part| part.cf);
        found.unwrap_or_else(|at| {
            let part = Part {
                cf,
                ..Part::default()
            };
            self.families.insert(at, part);
            at
        })
    }

    fn parts(&self) -> &[Part] {
        if self.families.is_empty() {
            std::slice::from_ref(&self.default)
        } else {
            &self.families
        }
    }

    /// About the bytes of memory that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let each = |part: &Part| (part.bytes + part.entries * ENTRY_BYTES) as u64;
        self.parts().iter().map(each).sum()
    }
}

/// What an entry of a memtable takes beside key and value, about.
const ENTRY_BYTES: usize = 64;

struct Entry {
    family: Arc<ColumnFamilyData>,
    handle: Arc<MemHandle>,
}

impl MemTables {
    /// The active memtables of `families`, which are sorted by id.
    pub(crate) fn of(families: Vec<Arc<ColumnFamilyData>>) -> Self {
        let entries: Vec<Entry> = families
            .into_iter()
            .map(|family| {
                let handle = family.state().mem.clone();
                Entry { family, handle }
            })
            .collect();
        let full = entries.iter().any(|e| e.handle.is_full());
        Self {
            entries,
            full: AtomicBool::new(full),
        }
    }

    /// These memtables of families, which are sorted by id.
    pub(crate) fn with(handles: Vec<(Arc<ColumnFamilyData>, Arc<MemHandle>)>) -> Self {
        let entries = handles.into_iter();
        Self {
            entries: entries
                .map(|(family, handle)| Entry { family, handle })
                .collect(),
            full: AtomicBool::new(false),
        }
    }

    #[inline]
    fn find(&self, cf: u32) -> Option<&Entry> {
        match self.entries.first() {
            Some(first) if first.family.id == cf => Some(first),
            _ => {
                let i = self
                    .entries
                    .binary_search_by_key(&cf, |e| e.family.id)
                    .ok()?;
                self.entries.get(i)
            }
        }
    }

    /// True if a memtable may be full.
    #[inline]
    pub(crate) fn any_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Forgets that one is: the bytes of a memtable may become less when a writer is done.
    pub(crate) fn none_full(&self) {
        self.full.store(false, Relaxed);
    }

    /// The families whose memtables are full.
    pub(crate) fn full_families(&self) -> Vec<Arc<ColumnFamilyData>> {
        self.entries
            .iter()
            .filter(|e| e.handle.is_full())
            .map(|e| e.family.clone())
            .collect()
    }

    /// The families whose memtables a leader is to look at.
    pub(crate) fn to_look_at(
        &self,
    ) -> impl Iterator<Item = (&Arc<ColumnFamilyData>, &Arc<MemHandle>)> {
        let entries = self.entries.iter().filter(|e| e.handle.wants_look());
        entries.map(|e| (&e.family, &e.handle))
    }

    /// Bytes of all these memtables.
    pub(crate) fn memory_usage(&self) -> u64 {
        self.entries
            .iter()
            .map(|e| e.handle.table.memory_usage() as u64)
            .sum()
    }

    /// The family with the largest memtable.
    pub(crate) fn largest(&self) -> Option<Arc<ColumnFamilyData>> {
        let largest = self
            .entries
            .iter()
            .max_by_key(|e| e.handle.table.memory_usage())?;
        Some(largest.family.clone())
    }

    /// Refuses a batch for families that are not there, merges that nobody can fold, ranges
    /// that end before they start, and markers of two-phase commits that came in from outside.
    ///
    /// # Errors
    /// `InvalidArgument` naming the family; `NotSupported`.
    pub(crate) fn check(&self, batch: &WriteBatch) -> Result<()> {
        for op in batch {
            let op = op?;
            if op.is_marker() && batch.is_plain() {
                return Err(marked());
            }
            let Some(cf) = op.family() else {
                continue;
            };
            let Some(entry) = self.find(cf) else {
                return Err(Error::invalid_argument(
                    "write batch names a column family that does not exist",
                )
                .with("column_family_id", cf));
            };
            let wrong = match op {
                BatchOp::Merge { .. } if entry.family.merge_operator.is_none() => {
                    "merge needs a merge operator in the column family's options"
                }
                BatchOp::DeleteRange { start, end, .. }
                    if entry.family.icmp.user.less(end, start) =>
                {
                    "end of the range is before its start"
                }
                _ => continue,
            };
            return Err(Error::invalid_argument(wrong).with("column_family", &entry.family.name));
        }
        Ok(())
    }

    /// Looks whether a batch is something that memtables take at once.
    ///
    /// # Errors
    /// `TooLarge`.
    pub(crate) fn check_size(&self, batch: &WriteBatch) -> Result<()> {
        let mut need = Need::default();
        need.add(batch);
        need.parts().iter().try_for_each(|part| {
            let entry = self.find(part.cf);
            entry.map_or(Ok(()), |entry| {
                entry.handle.table.check_group(part.entries, part.bytes)
            })
        })
    }

    /// Sees to it that a group's operations find memory.
    ///
    /// # Errors
    /// `NoMemory`, `TooLarge`; nothing is promised.
    pub(crate) fn promise(&self, need: &Need) -> Result<()> {
        for (done, part) in need.parts().iter().enumerate() {
            let Some(entry) = self.find(part.cf) else {
                continue;
            };
            if let Err(e) = entry.handle.table.promise(part.entries, part.bytes) {
                self.release_all(&need.parts()[..done]);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Notes that what a group brings is in no log.
    pub(crate) fn note_unlogged(&self, need: &Need) {
        for entry in need.parts().iter().filter_map(|part| self.find(part.cf)) {
            entry.handle.note_unlogged();
        }
    }

    /// Ends what [`Self::promise`] promised.
    pub(crate) fn release(&self, need: &Need) {
        self.release_all(need.parts());
    }

    fn release_all(&self, parts: &[Part]) {
        for part in parts {
            if let Some(entry) = self.find(part.cf) {
                entry.handle.table.release(part.entries, part.bytes);
            }
        }
    }

    /// Inserts the operations, the first at `seqno`; returns the number after the last.
    /// Operations for families that are not here are left out: they were dropped.
    ///
    /// # Errors
    /// `Corruption` if the batch does not decode, `NoMemory`; operations before are inserted.
    pub(crate) fn apply(
        &self,
        operations: Operations<'_>,
        mut seqno: SeqNo,
        wanted: impl Fn(u32) -> bool,
    ) -> Result<SeqNo> {
        for op in operations {
            let op = op?;
            if op.counts() {
                self.apply_one(op, seqno, &wanted)?;
                seqno += 1;
            }
        }
        Ok(seqno)
    }

    /// Inserts an operation, if its family is here and `wanted`.
    ///
    /// # Errors
    /// `NoMemory`.
    #[inline]
    pub(crate) fn apply_one(
        &self,
        op: BatchOp<'_>,
        seqno: SeqNo,
        wanted: &impl Fn(u32) -> bool,
    ) -> Result<()> {
        match op {
            BatchOp::Put { cf, key, value } => {
                self.insert(cf, key, seqno, ValueKind::Value, value, wanted)
            }
            BatchOp::Merge { cf, key, operand } => {
                self.insert(cf, key, seqno, ValueKind::Merge, operand, wanted)
            }
            BatchOp::Delete { cf, key } => {
                self.insert(cf, key, seqno, ValueKind::Deletion, &[], wanted)
            }
            BatchOp::SingleDelete { cf, key } => {
                self.insert(cf, key, seqno, ValueKind::SingleDeletion, &[], wanted)
            }
            BatchOp::DeleteRange { cf, start, end } => {
                if let Some(entry) = self.find(cf).filter(|_| wanted(cf)) {
                    let table = &entry.handle.table;
                    table.insert_range_deletion(start, end, seqno)?;
                    self.note_full(entry);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn insert(
        &self,
        cf: u32,
        key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        value: &[u8],
        wanted: &impl Fn(u32) -> bool,
    ) -> Result<()> {
        if let Some(entry) = self.find(cf)
            && wanted(cf)
        {
            entry.handle.table.insert(key, seqno, kind, value)?;
            self.note_full(entry);
        }
        Ok(())
    }

    #[inline]
    fn note_full(&self, entry: &Entry) {
        if entry.handle.wants_look() && !self.full.load(Relaxed) {
            self.full.store(true, Relaxed);
        }
    }
}

/// The error of a batch that came out of a log.
#[cold]
pub(super) fn marked() -> Error {
    Error::not_supported(
        "write batch holds records of two-phase commits: give what is in them to prepare, commit_prepared and rollback_prepared",
    )
}
