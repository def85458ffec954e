//! What a reader pins: the memtables and the version of one family, together.
//!
//! A super version never changes. Writers that change the set publish a new one in the family's
//! `ArcSwap`; readers load it without a lock and without touching a shared counter, so a get
//! costs no contended cache line. `Hot path`.
//!
//! Invariant: every entry up to the sequence number that was visible when the super version was
//! loaded is in it, or is hidden by a newer one that is.

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use orogen_base::{FileNo, SeqNo};
use orogen_memtable::MemTable;

use crate::pace::{self, FlushLeft, Look};
use crate::version::version::Version;

/// A memtable with what the engine knows of it.
pub(crate) struct MemHandle {
    /// The entries.
    pub(crate) table: Arc<dyn MemTable>,
    /// Rises with each memtable of the database.
    pub(crate) id: u64,
    /// The oldest log that holds entries of this memtable.
    log_number: AtomicU64,
    /// Bytes beyond which it is full.
    pub(crate) full_at: u64,
    /// Bytes beyond which a leader looks at it: it is full, or writers are to be paced.
    look_at: AtomicU64,
    /// When the last look, or the pause behind it, was over.
    resumed_micros: AtomicU64,
    /// It has what no log has.
    has_unlogged: AtomicBool,
}

impl MemHandle {
    pub(crate) fn new(table: Arc<dyn MemTable>, id: u64, log_number: FileNo, full_at: u64) -> Self {
        Self {
            table,
            id,
            log_number: AtomicU64::new(log_number),
            full_at,
            look_at: AtomicU64::new(pace::first_look(full_at)),
            resumed_micros: AtomicU64::new(0),
            has_unlogged: AtomicBool::new(false),
        }
    }

    /// Notes that it gets what no log has.
    pub(crate) fn note_unlogged(&self) {
        self.has_unlogged.store(true, Relaxed);
    }

    /// True if it may have what no log has.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.has_unlogged.load(Relaxed)
    }

    /// The oldest log that holds entries of this memtable.
    pub(crate) fn log_number(&self) -> FileNo {
        self.log_number.load(Relaxed)
    }

    /// An empty memtable needs no log but the newest.
    pub(crate) fn raise_log_number(&self, log_number: FileNo) {
        self.log_number.store(log_number, Relaxed);
    }

    /// True if a leader is to look at it.
    #[inline]
    pub(crate) fn wants_look(&self) -> bool {
        self.table.memory_usage() as u64 >= self.look_at.load(Relaxed)
    }

    /// A leader looks, and notes when the next look is due; `flush`: what the flush still takes which a full
    /// one would wait for.
    pub(crate) fn look(&self, now: u64, flush: FlushLeft) -> Look {
        let used = self.table.memory_usage() as u64;
        let took = now.saturating_sub(self.resumed_micros.swap(now, Relaxed));
        let entries = self.table.entry_count();
        let look = Look::new(used, entries, self.full_at, took, flush);
        self.look_at.store(look.next_at(used), Relaxed);
        look
    }

    /// Writers pause until then.
    pub(crate) fn pauses_until(&self, micros: u64) {
        self.resumed_micros.store(micros, Relaxed);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.table.memory_usage() as u64 >= self.full_at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.entry_count() == 0
    }
}

/// Memtables and version of one family, as one reader sees them.
pub(crate) struct SuperVersion {
    /// Takes the writes.
    pub(crate) mem: Arc<dyn MemTable>,
    /// Sealed, newest first.
    pub(crate) sealed: Vec<Arc<dyn MemTable>>,
    /// The tables.
    pub(crate) version: Arc<Version>,
    /// Readers see nothing newer: what a follower takes up before it is published. In a database
    /// that is written here the largest number.
    pub(crate) limit: SeqNo,
}

impl SuperVersion {
    /// The memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<dyn MemTable>> + Clone {
        std::iter::once(&self.mem).chain(&self.sealed)
    }
}
