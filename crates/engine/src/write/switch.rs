//! Seals memtables and starts a new log.
//!
//! Sealing happens in the leader's place with all earlier groups published, so a sealed memtable
//! is complete: nobody writes to it any more. Reasons: it is full; a user asks; the logs are too
//! large and this family pins the oldest; all memtables together are too large.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use orogen_base::Result;

use crate::column_family::ColumnFamilyData;
use crate::options::WriteOptions;
use crate::write::apply::MemTables;
use crate::write::commit::WritePath;

/// When a sealed memtable is written out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// When there are as many as the options ask for.
    WhenEnough,
    /// At once: its log or its memory is wanted back.
    Now,
}

impl WritePath {
    /// Step 1 of the pipeline: waits out a stall, seals what must be sealed.
    pub(crate) fn make_room(&self, options: WriteOptions) -> Result<()> {
        let context = &*self.context;
        if context.stall.is_stalled() {
            if options.no_slowdown {
                return Err(self.would_wait());
            }
            self.refuse_hasty();
            context.stall.wait(&*context.clock, &context.statistics);
        }
        context.check_writable()?;
        let memtables = self.memtables.load();
        if memtables.any_full() {
            let full = memtables.full_families();
            drop(memtables);
            return self.seal(&full, Flush::WhenEnough);
        }
        let db_max = context.options.db_write_buffer_size;
        if db_max > 0 && memtables.memory_usage() > db_max {
            let largest = memtables.largest();
            drop(memtables);
            return self.seal(largest.as_slice(), Flush::Now);
        }
        drop(memtables);
        if context.logs.total_bytes() > self.wal_bytes_max.load(Ordering::Relaxed) {
            return self.seal(&self.families_that_pin_the_oldest_log(), Flush::Now);
        }
        Ok(())
    }

    /// Bytes of logs beyond which the oldest one is freed. With one family there is no bound but
    /// its memtables'.
    fn derive_wal_bytes_max(&self, families: &[Arc<ColumnFamilyData>]) -> u64 {
        match self.context.options.max_total_wal_size {
            0 if families.len() < 2 => u64::MAX,
            0 => families
                .iter()
                .map(|f| {
                    let memtables = f.options.max_write_buffer_number as u64;
                    let bytes = f.options.write_buffer_size.saturating_mul(memtables);
                    bytes.saturating_mul(4)
                })
                .fold(0, u64::saturating_add),
            max => max,
        }
    }

    fn families_that_pin_the_oldest_log(&self) -> Vec<Arc<ColumnFamilyData>> {
        let oldest = self.context.logs.oldest();
        let mut families = self.context.set.families();
        families.retain(|f| {
            let state = f.state();
            !state.mem.is_empty() && state.mem.log_number() <= oldest
        });
        families
    }

    /// Seals the memtables of `families` that hold anything and queues them for flush. Only the
    /// leader calls it.
    ///
    /// # Errors
    /// `NoSpace`, `Io`: no new log could be made; nothing has changed. `Closed`, `ReadOnly`.
    pub(crate) fn seal(&self, families: &[Arc<ColumnFamilyData>], flush: Flush) -> Result<()> {
        let context = &*self.context;
        context.check_writable()?;
        self.drain();
        let sealing: Vec<_> = families
            .iter()
            .filter(|f| !f.is_dropped() && !f.state().mem.is_empty())
            .cloned()
            .collect();
        if sealing.is_empty() {
            return Ok(());
        }
        if !context.logs.current_is_empty() {
            let next_seqno = context.sequence.allocated() + 1;
            context
                .logs
                .start(context.set.new_file_number(), next_seqno)?;
        }
        let log = context.logs.current();
        for family in &sealing {
            let fresh = context.new_memtable(&family.options, log);
            let mut state = family.state();
            let sealed = std::mem::replace(&mut state.mem, fresh);
            if flush == Flush::Now {
                state.flush_requested_up_to = state.flush_requested_up_to.max(sealed.id);
            }
            state.imm.push(sealed);
            family.publish(&state);
        }
        self.refresh_memtables();
        for family in &sealing {
            self.note_stall(family);
        }
        context.work.raise();
        Ok(())
    }

    /// Takes up the families and memtables as they are now. Only the leader calls it.
    pub(crate) fn refresh_memtables(&self) {
        let families = self.context.set.families();
        let log = self.context.logs.current();
        for family in &families {
            let state = family.state();
            if state.mem.is_empty() {
                state.mem.raise_log_number(log);
            }
        }
        self.wal_bytes_max
            .store(self.derive_wal_bytes_max(&families), Ordering::Relaxed);
        self.memtables.store(Arc::new(MemTables::of(families)));
    }
}
