//! Memtables that are watched, and fail when they are told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use orogen_base::iter::InternalIterator;
use orogen_base::range_del::FragmentedRangeTombstones;
use orogen_base::{Error, ParsedInternalKey, Result, SeqNo, ValueKind};
use orogen_engine::options::{MemTableFactory, MemTableRequest};
use orogen_memtable::{GuidedListMemTable, MemTable, Visit};

/// Makes them: their lookups fail while `fails`, and `asked` counts who asks for their memory.
pub(crate) fn watched(fails: &Arc<AtomicBool>, asked: &Arc<AtomicUsize>) -> MemTableFactory {
    let (fails, asked) = (fails.clone(), asked.clone());
    Arc::new(move |request: &MemTableRequest<'_>| {
        let list = GuidedListMemTable::new(request.comparator.clone());
        Arc::new(Watched(list, fails.clone(), asked.clone()))
    })
}

/// Lookups fail while it is told so, and questions for its memory are counted.
struct Watched(Arc<dyn MemTable>, Arc<AtomicBool>, Arc<AtomicUsize>);

impl MemTable for Watched {
    fn promise(&self, entries: usize, bytes: usize) -> Result<()> {
        self.0.promise(entries, bytes)
    }

    fn release(&self, entries: usize, bytes: usize) {
        self.0.release(entries, bytes);
    }

    fn insert(&self, key: &[u8], seqno: SeqNo, kind: ValueKind, value: &[u8]) -> Result<()> {
        self.0.insert(key, seqno, kind, value)
    }

    fn insert_range_deletion(&self, start: &[u8], end: &[u8], seqno: SeqNo) -> Result<()> {
        self.0.insert_range_deletion(start, end, seqno)
    }

    fn get(
        &self,
        key: &[u8],
        read_seqno: SeqNo,
        visit: &mut dyn FnMut(ParsedInternalKey<'_>, &[u8]) -> Visit,
    ) -> Result<()> {
        match self.1.load(Ordering::SeqCst) {
            true => Err(Error::corruption("on purpose")),
            false => self.0.get(key, read_seqno, visit),
        }
    }

    fn iter(self: Arc<Self>) -> Box<dyn InternalIterator> {
        self.0.clone().iter()
    }

    fn range_tombstones(&self) -> Arc<FragmentedRangeTombstones> {
        self.0.range_tombstones()
    }

    fn has_range_tombstones(&self) -> bool {
        self.0.has_range_tombstones()
    }

    fn memory_usage(&self) -> usize {
        self.2.fetch_add(1, Ordering::SeqCst);
        self.0.memory_usage()
    }

    fn memory_allocated(&self) -> usize {
        self.0.memory_allocated()
    }

    fn entry_count(&self) -> u64 {
        self.0.entry_count()
    }

    fn deletion_count(&self) -> u64 {
        self.0.deletion_count()
    }
}
