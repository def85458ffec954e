//! Seals memtables and starts a new log.
//!
//! Sealing happens in the leader's place with all earlier groups published, so a sealed memtable
//! is complete: nobody writes to it any more. Reasons: it is full; a user asks; the logs are too
//! large and this family pins the oldest; all memtables together are too large. A log that is too large
//! and has nothing for any memtable is left without sealing.

use orogen_base::sync::atomic::Ordering;
use std::sync::Arc;

use orogen_base::{Error, ErrorKind, Result};

use crate::batch::WriteBatch;
use crate::column_family::ColumnFamilyData;
use crate::memory::MemoryBudget;
use crate::options::WriteOptions;
use crate::pace::FlushLeft;
use crate::stall::Admission;
use crate::super_version::MemHandle;
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

/// Between two looks at the memory budget of a writer that waits.
const MEMORY_LOOK_MICROS: u64 = 5000;

impl WritePath {
    /// Waits until the families that a batch names take it. The caller neither leads nor queues.
    ///
    /// # Errors
    /// `Busy` if it would wait and may not; `NoSpace` if it would wait for compactions that find
    /// none.
    #[cold]
    pub(crate) fn admit(&self, options: WriteOptions, batch: &WriteBatch) -> Result<()> {
        let context = &*self.context;
        let Some(batch) = batch.inserted() else {
            return Ok(());
        };
        let admission = context.stall.admit(
            &batch.column_families(),
            batch.size_bytes() as u64,
            !options.no_slowdown,
            &*context.clock,
            &context.statistics,
        );
        match admission {
            Admission::Admitted => Ok(()),
            Admission::WouldWait(cause) => {
                Err(Error::busy("write would be slowed or stopped").with("cause", cause))
            }
            Admission::InVain(cause) => {
                let message = "writes are stopped until compactions find space or memory";
                Err(Error::new(ErrorKind::NoSpace, message).with("cause", cause))
            }
        }
    }

    /// Waits while memtables take nearly all of the memory and some of this database are on their
    /// way to disk.
    ///
    /// # Errors
    /// `Busy` if it would wait and may not; what stopped the flushes.
    #[cold]
    pub(crate) fn wait_for_memory(
        &self,
        options: WriteOptions,
        budget: &MemoryBudget,
    ) -> Result<()> {
        let context = &*self.context;
        loop {
            let seen = context.progress.count();
            context.check_writable()?;
            budget.balance();
            if !budget.is_tight() || !self.flush_what_is_sealed() {
                return Ok(());
            }
            if options.no_slowdown {
                let cause = "memtables take nearly all of the memory budget";
                return Err(Error::busy("write would be stopped").with("cause", cause));
            }
            // Another database may give memory back, and nobody here would be told.
            context.progress.wait_after_for(seen, MEMORY_LOOK_MICROS);
        }
    }

    /// Has sealed memtables flushed though there may be few; false if there are none.
    fn flush_what_is_sealed(&self) -> bool {
        let mut any = false;
        for family in self.context.set.families() {
            let mut state = family.state();
            if let Some(last) = state.imm.last().map(|m| m.id) {
                state.flush_requested_up_to = state.flush_requested_up_to.max(last);
                any = true;
            }
        }
        if any {
            self.context.work.raise();
        }
        any
    }

    /// Step 1 of the pipeline: seals what must be sealed.
    pub(crate) fn make_room(&self) -> Result<()> {
        let context = &*self.context;
        context.check_writable()?;
        let memtables = self.memtables.load();
        if memtables.any_full() {
            let full = memtables.full_families();
            if !full.is_empty() {
                drop(memtables);
                return self.seal(&full, Flush::WhenEnough);
            }
            memtables.none_full();
            for (family, handle) in memtables.to_look_at() {
                self.pace(family, handle);
            }
        }
        let db_max = context.options.db_write_buffer_size;
        // To ask all memtables is dear where there are many.
        if db_max > 0 && self.db_bytes_left.load(Ordering::Relaxed) == 0 {
            let used = memtables.memory_usage();
            if used > db_max {
                let largest = memtables.largest();
                drop(memtables);
                return self.seal(largest.as_slice(), Flush::Now);
            }
            let left = (db_max - used) / 8;
            self.db_bytes_left.store(left, Ordering::Relaxed);
        }
        if let Some(budget) = &context.options.memory_budget
            && budget.wants_seal(|| memtables.memory_usage())
        {
            let largest = memtables.largest();
            drop(memtables);
            self.seal(largest.as_slice(), Flush::Now)?;
            budget.balance();
            return Ok(());
        }
        drop(memtables);
        let (bytes, max) = (
            context.logs.total_bytes(),
            self.wal_bytes_max.load(Ordering::Relaxed),
        );
        if bytes > max {
            return self.free_oldest_logs(bytes, max);
        }
        Ok(())
    }

    /// Has writers of a family pause, if they would else wait for its flush. Only the leader calls it.
    #[cold]
    fn pace(&self, family: &ColumnFamilyData, handle: &MemHandle) {
        let context = &*self.context;
        let now = context.clock.now_micros();
        let flush = &family.flush_progress;
        let memtables_max = family.options().max_write_buffer_number;
        let has_room = family.state().imm.len() + 1 < memtables_max;
        let mut left = match has_room {
            true => FlushLeft::default(),
            false => flush.left(now).unwrap_or_default(),
        };
        if !context.passes_memory_on(memtables_max) {
            left.margin = 0;
        }
        let pause = handle.look(now, left).pause();
        if pause > 0 {
            flush.note_pause(pause);
            handle.pauses_until(now + pause);
            context.stall.pause(family.id, &family.name, now + pause);
        }
    }

    /// Has what pins the oldest logs flushed, if the logs will take more than `max` of their
    /// `bytes` even after all flushes that are due. It looks again when another log is the oldest
    /// or the current one, or when what was below the bound has grown beyond it. Only the leader
    /// calls it.
    fn free_oldest_logs(&self, bytes: u64, max: u64) -> Result<()> {
        let context = &*self.context;
        let key = || context.logs.oldest() ^ context.logs.current().rotate_left(32);
        if self.freeing.load(Ordering::Relaxed) == key()
            && bytes <= self.freeing_again_at.load(Ordering::Relaxed)
        {
            return Ok(());
        }
        // What was written before is in the memtables.
        self.drain();
        let mut freed = None;
        let stays = loop {
            let mut pinning = context.set.families();
            let logs = pinning
                .iter()
                .filter_map(|f| f.state().log_that_stays(&f.options()));
            let Some(oldest) = logs.min() else {
                self.give_up_idle_logs(max)?;
                // A write that is just being rolled back may have kept one.
                break max - max / 8;
            };
            let stays = context.logs.bytes_from(oldest);
            if stays <= max || freed.is_some_and(|freed| freed >= oldest) {
                break stays;
            }
            pinning.retain(|f| {
                let mut state = f.state();
                // Sealed ones may wait for more to be merged with.
                let sealed = state.imm.iter().rev().find(|m| m.log_number() <= oldest);
                if let Some(id) = sealed.map(|m| m.id) {
                    state.flush_requested_up_to = state.flush_requested_up_to.max(id);
                }
                !state.mem.is_empty() && state.mem.log_number() <= oldest
            });
            self.seal(&pinning, Flush::Now)?;
            context.work.raise();
            freed = Some(oldest);
        };
        // Empty memtables need the newest log only.
        self.refresh_memtables();
        self.freeing.store(key(), Ordering::Relaxed);
        let again_at = context.logs.total_bytes() + max.saturating_sub(stays);
        self.freeing_again_at.store(again_at, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of logs beyond which the oldest one is freed. Those of one family alone mostly come to less by themselves, but for what is
    /// in no memtable.
    fn derive_wal_bytes_max(&self, families: &[Arc<ColumnFamilyData>]) -> u64 {
        match self.context.db_options().max_total_wal_size {
            0 => families
                .iter()
                .map(|f| {
                    let options = f.options();
                    let memtables = options.max_write_buffer_number as u64;
                    let bytes = options.write_buffer_size.saturating_mul(memtables);
                    bytes.saturating_mul(4)
                })
                .fold(0, u64::saturating_add),
            max => max,
        }
    }

    /// Seals the memtables of `families` that hold anything and queues them for flush. Only the
    /// leader calls it.
    ///
    /// # Errors
    /// `Io`: no new log could be made; nothing has changed, but no write is taken any more where a sync of a name has failed. `NoSpace`:
    /// the same, and no write is taken until there is space. `Closed`, `ReadOnly`.
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
            self.start_log()?;
        }
        let log = context.logs.current();
        for family in &sealing {
            let fresh = context.new_memtable(family, log);
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
        self.carry_prepared()
    }

    /// Starts a new log.
    ///
    /// # Errors
    /// As [`Self::seal`].
    fn start_log(&self) -> Result<()> {
        let context = &*self.context;
        let next_seqno = context.sequence.allocated() + 1;
        let number = context.set.new_file_number();
        let expected = context.expected_log_bytes();
        let started = context.logs.start(number, next_seqno, expected);
        started.inspect_err(|e| {
            if e.kind() == ErrorKind::NoSpace {
                context.health.note(e);
            }
        })
    }

    /// Has logs given up of which no memtable has anything, the current one if it has more than `max`: they are full of writes that
    /// were prepared and rolled back, or of log data, and no flush comes by for them. Only the leader calls it.
    ///
    /// # Errors
    /// As [`Self::seal`].
    fn give_up_idle_logs(&self, max: u64) -> Result<()> {
        let context = &*self.context;
        if context.logs.bytes_from(context.logs.current()) > max {
            self.start_log()?;
            self.refresh_memtables();
            self.carry_prepared()?;
        }
        context.give_up_idle_logs();
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
