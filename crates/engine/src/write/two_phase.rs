//! Prepares batches under names, and ends them later.
//!
//! Rules and formats: `docs/adr/2026-11-23-two-phase-commit.md`.

use orogen_base::{Error, Result};

use crate::batch::{self, WriteBatch};
use crate::options::WriteOptions;
use crate::write::apply::marked;
use crate::write::commit::WritePath;

/// What prepared writes hold back in logs is written anew if it is so many times what they are.
const HELD_BACK_FACTOR: u64 = 4;

impl WritePath {
    /// Writes a batch to the log under `name`.
    ///
    /// # Errors
    /// See [`crate::Db::prepare`].
    pub(crate) fn prepare(
        &self,
        options: WriteOptions,
        name: &[u8],
        batch: WriteBatch,
    ) -> Result<()> {
        check_logged(options)?;
        self.context.check_writable()?;
        if batch.needs_check() && batch.iter().any(|op| op.is_ok_and(|op| op.is_marker())) {
            // Within another one it would be no section that a recovery can read.
            return Err(marked());
        }
        // It is to be committed one day.
        self.memtables.load().check_size(&batch)?;
        let reserved = self.context.prepared.reserve(name)?;
        let mut batch = batch.into_prepare(name, reserved.log())?;
        self.write(options, &mut batch)?;
        reserved.prepared(batch);
        Ok(())
    }

    /// Lets what is prepared under `name` take effect.
    ///
    /// # Errors
    /// See [`crate::Db::commit_prepared`].
    pub(crate) fn commit_prepared(&self, options: WriteOptions, name: &[u8]) -> Result<()> {
        check_logged(options)?;
        self.context.check_writable()?;
        let ending = self.context.prepared.take(name)?;
        let mut batch = WriteBatch::commit(name, ending.section.clone(), ending.log);
        self.write(options, &mut batch)?;
        ending.ended();
        Ok(())
    }

    /// Forgets what is prepared under `name`.
    ///
    /// # Errors
    /// See [`crate::Db::rollback_prepared`].
    pub(crate) fn rollback_prepared(&self, options: WriteOptions, name: &[u8]) -> Result<()> {
        check_logged(options)?;
        self.context.check_writable()?;
        let ending = self.context.prepared.take(name)?;
        self.write(options, &mut WriteBatch::rollback(name))?;
        ending.ended();
        Ok(())
    }

    /// Writes what is prepared in old logs to the current one, where it alone holds back many times
    /// its own bytes. Only the leader calls it.
    ///
    /// # Errors
    /// `NoSpace`, `Io` of the log.
    pub(crate) fn carry_prepared(&self) -> Result<()> {
        let context = &*self.context;
        if context.prepared.is_empty() {
            return Ok(());
        }
        let current = context.logs.current();
        let held = context.prepared.hold();
        let Some(oldest) = held.oldest_log().filter(|&log| log < current) else {
            return Ok(());
        };
        let families = context.set.families();
        let needed = families.iter().map(|f| f.state().min_log_needed());
        let needed = needed.fold(current, u64::min);
        let held_back = context
            .logs
            .bytes_from(oldest)
            .saturating_sub(context.logs.bytes_from(needed));
        let own: usize = held.older_than(current).map(|(_, b)| b.size_bytes()).sum();
        if own == 0 || held_back < HELD_BACK_FACTOR * own as u64 {
            return Ok(());
        }
        let next = context.sequence.allocated() + 1;
        let count = held.older_than(current).count();
        for (i, (name, section)) in held.older_than(current).enumerate() {
            let header = batch::header(next, section.count());
            let unprepare = WriteBatch::rollback(name);
            let parts = [&header, unprepare.operations(), section.operations()];
            // One sync makes all of them durable.
            let written = context.logs.append(&parts, i + 1 == count);
            written.inspect_err(|e| context.health.note(e))?;
        }
        held.moved_to(current);
        Ok(())
    }
}

/// # Errors
/// `InvalidArgument`.
fn check_logged(options: WriteOptions) -> Result<()> {
    if options.disable_wal {
        return Err(Error::invalid_argument(
            "a write that is prepared, committed or rolled back needs the WAL",
        ));
    }
    Ok(())
}
