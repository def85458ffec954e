//! What a file system still keeps beside files that are gone.
//!
//! Old versions of raft-engine, and people, delete files without asking the file system that wrote them. It finds out when the log is opened: numbers
//! only rise, so names before the first file of a queue are of files that were purged.

use std::path::Path;

use orogen_env::{FileSystem as _, PosixFileSystem};

use super::FileSystem;
use crate::dirs::Dirs;
use crate::names::FileId;

/// So many names, evenly spread, are asked for; if one of them has something, so may all behind the one before.
const SAMPLES: u64 = 100;

/// Removes what is kept of files before the first one of its queue. Whose file is there keeps it: no log reads such a file any more, but
/// somebody may. An error is logged, and the rest is left to the next open.
pub(in crate::api) fn forget<F: FileSystem>(fs: &F, dirs: &Dirs, first: FileId) {
    let path_of = |seq, dir: &Path| dir.join(FileId::new(first.queue, seq).name());
    let is_kept = |seq| dirs.iter().any(|dir| fs.exists_metadata(path_of(seq, dir)));
    // Numbers end long before a product of them could overflow.
    let sample = |at: u64| at * first.seq / SAMPLES;
    let Some(found) = (0..SAMPLES).find(|at| is_kept(sample(*at))) else {
        return;
    };
    let posix = PosixFileSystem::new();
    let mut count = 0_u64;
    for seq in (sample(found.saturating_sub(1))..first.seq).rev() {
        for dir in dirs.iter() {
            let path = path_of(seq, dir);
            // Who cannot be asked may be there.
            if !fs.exists_metadata(&path) || posix.exists(&path).unwrap_or(true) {
                continue;
            }
            if let Err(e) = fs.delete_metadata(&path) {
                tracing::warn!(error = %e, path = %path.display(), "what is kept of a deleted file cannot be removed");
                return;
            }
            count += 1;
        }
    }
    if count > 0 {
        tracing::info!(count, queue = ?first.queue, "removed what was kept of deleted files");
    }
}
