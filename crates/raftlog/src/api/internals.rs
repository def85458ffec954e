//! Names for those who watch the engine.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Result;
use crate::engine::{Engine as RawEngine, RewriteSteps};

pub use super::Version;
pub use super::look::{
    CompressionType, EntryIndex, EntryIndexes, KeyValue, LogItem, LogItemContent, LogItemReader,
    OpType,
};
pub use crate::events::{EventListener, FileBlockHandle};
pub use crate::names::{FileId, Queue as LogQueue};

/// The way in which [`Engine`](crate::Engine) writes files: the name of one, and nothing to be called.
pub struct FilePipeLog<F>(PhantomData<fn() -> F>);

/// Purges of an engine, as its owner asks for them: see [`Engine::purge_manager`](crate::Engine::purge_manager).
///
/// Where the original panics these give errors, and what it refuses while another thread purges waits for that.
pub struct PurgeManager<P> {
    pub(super) raw: RawEngine,
    marker: PhantomData<fn() -> P>,
}

impl<P> PurgeManager<P> {
    pub(super) fn new(raw: RawEngine) -> Self {
        let marker = PhantomData;
        Self { raw, marker }
    }

    /// As [`Engine::purge_expired_files`](crate::Engine::purge_expired_files).
    ///
    /// # Errors
    /// The same.
    pub fn purge_expired_files(&self) -> Result<Vec<u64>> {
        Ok(self.raw.purge_expired_files()?)
    }

    /// Moves all that lives in files of the append queue up to number `watermark`, or in all of them, to the rewrite queue, and deletes the files. With
    /// `exit_after_step` 1 only removals are written, with 2 no file is deleted.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption); [`Error::Io`](crate::Error::Io). Nothing is lost then.
    pub fn must_rewrite_append_queue(
        &self,
        watermark: Option<FileSeq>,
        exit_after_step: Option<u64>,
    ) -> Result<()> {
        let steps = match exit_after_step {
            Some(1) => RewriteSteps::Removals,
            Some(2) => RewriteSteps::Moves,
            _ => RewriteSteps::All,
        };
        Ok(self.raw.rewrite_append_queue(watermark, steps)?)
    }

    /// Writes the rewrite queue anew.
    ///
    /// # Errors
    /// As [`Self::must_rewrite_append_queue`].
    pub fn must_rewrite_rewrite_queue(&self) -> Result<()> {
        Ok(self.raw.rewrite_rewrite_queue()?)
    }

    /// Deletes all files that nothing living is in. The rewrite queue is written anew for that, which the original does not do: a file
    /// of it is of use as long as others count on what it removes.
    ///
    /// # Errors
    /// As [`Self::must_rewrite_append_queue`].
    pub fn must_purge_all_stale(&self) -> Result<()> {
        Ok(self.raw.purge_all_stale()?)
    }
}

/// Number of a file in its queue.
pub type FileSeq = u64;

/// Counts of entries and keys, for those who keep such counts; the engine has its own.
#[derive(Debug, Default)]
pub struct GlobalStats {
    live_append: AtomicUsize,
    rewritten: AtomicUsize,
    deleted_rewritten: AtomicUsize,
}

impl GlobalStats {
    /// Counts what was written to a queue.
    pub fn add(&self, queue: LogQueue, count: usize) {
        match queue {
            LogQueue::Append => &self.live_append,
            LogQueue::Rewrite => &self.rewritten,
        }
        .fetch_add(count, Ordering::Relaxed);
    }

    /// Counts what is needed no more.
    pub fn delete(&self, queue: LogQueue, count: usize) {
        match queue {
            LogQueue::Append => self.live_append.fetch_sub(count, Ordering::Relaxed),
            LogQueue::Rewrite => self.deleted_rewritten.fetch_add(count, Ordering::Relaxed),
        };
    }

    /// What was written to the rewrite queue, needed or not.
    #[must_use]
    pub fn rewrite_entries(&self) -> usize {
        self.rewritten.load(Ordering::Relaxed)
    }

    /// What of that is needed no more.
    #[must_use]
    pub fn deleted_rewrite_entries(&self) -> usize {
        self.deleted_rewritten.load(Ordering::Relaxed)
    }

    /// Forgets what is needed no more.
    pub fn reset_rewrite_counters(&self) {
        let deleted = self.deleted_rewritten.swap(0, Ordering::Relaxed);
        self.rewritten.fetch_sub(deleted, Ordering::Relaxed);
    }

    /// What is needed of a queue.
    #[must_use]
    pub fn live_entries(&self, queue: LogQueue) -> usize {
        match queue {
            LogQueue::Append => self.live_append.load(Ordering::Relaxed),
            LogQueue::Rewrite => {
                let written = self.rewrite_entries();
                written.saturating_sub(self.deleted_rewrite_entries())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_needed_is_what_was_written_and_not_deleted() {
        let stats = GlobalStats::default();
        stats.add(LogQueue::Append, 5);
        stats.delete(LogQueue::Append, 2);
        stats.add(LogQueue::Rewrite, 7);
        stats.delete(LogQueue::Rewrite, 3);
        assert_eq!(stats.live_entries(LogQueue::Append), 3);
        assert_eq!(stats.live_entries(LogQueue::Rewrite), 4);
        stats.reset_rewrite_counters();
        assert_eq!(stats.rewrite_entries(), 4);
        assert_eq!(stats.deleted_rewrite_entries(), 0);
    }
}
