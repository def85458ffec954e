//! What others are told while the log works.

use std::sync::Arc;

use crate::names::{FileId, Queue};

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBlockHandle {
    /// Its file.
    pub id: FileId,
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Bytes of it.
    pub len: usize,
}

/// Is told of files and records of both queues.
///
/// It is called by the thread that does the work, in the middle of it and under its locks: it must
/// be quick, and must call nothing of the engine. If it panics nothing is written any more.
pub trait EventListener: Send + Sync {
    /// A file is there: one that was found when the directory was opened, or a new one.
    fn post_new_log_file(&self, file_id: FileId) {
        let _ = file_id;
    }

    /// A record was written, and perhaps not synced yet. If the write fails after that, which is
    /// when its sync does, nothing more is said of it.
    fn on_append_log_file(&self, handle: FileBlockHandle) {
        let _ = handle;
    }

    /// What a record in this file says is seen by readers.
    fn post_apply_memtables(&self, file_id: FileId) {
        let _ = file_id;
    }

    /// The oldest file of a queue that must stay; none if all may go. Only the append queue is asked for, as in raft-engine.
    fn first_file_not_ready_for_purge(&self, queue: Queue) -> Option<u64> {
        let _ = queue;
        None
    }

    /// Files of a queue were deleted; this is the newest of them.
    fn post_purge(&self, file_id: FileId) {
        let _ = file_id;
    }
}

/// Those who are told.
pub(crate) type Listeners = Arc<[Arc<dyn EventListener>]>;

/// The oldest file of the append queue that somebody wants to stay.
pub(crate) fn oldest_wanted(listeners: &Listeners) -> Option<u64> {
    let wanted = listeners
        .iter()
        .filter_map(|l| l.first_file_not_ready_for_purge(Queue::Append));
    wanted.min()
}
