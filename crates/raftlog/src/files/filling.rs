//! The next spare file, made while the newest file is written.
//!
//! To sync what is written over takes about half as long as to sync what goes to blocks that were never written: those have to be marked
//! as written each time. A log that has run for a while has [emptied files](crate::spares) for that. Before it has, a thread fills one
//! with zeros, past the page cache and in short steps, a little faster than the newest file becomes full. Invariants:
//!
//! 1. It is a spare file to whoever opens the directory, however far it was filled: it has such a name from the beginning. Who fills it
//!    gives it to others when it is whole and synced.
//! 2. Nothing depends on it: without space, or with an error, there is none, and what was begun is removed.
//! 3. One at a time, and only while there are fewer files than may be kept for this log.
//! 4. It costs as many bytes of the disk as the log has, and only until enough files were emptied.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::sync::atomic::{AtomicBool, Ordering};

use super::NewFiles;

/// Bytes that are written at a time: more would hold up the syncs beside it.
const STEP: u64 = 256 << 10;

/// A shorter file is full before it matters.
const FILE_MIN: u64 = 4 * STEP;

/// What is filled for each byte of the log: it has to be there before the newest file is full.
const fn share_of(bytes: u64) -> u64 {
    bytes + bytes / 4
}

/// A spare file that is being made.
pub(super) struct Filling {
    spare: PathBuf,
    size: u64,
    /// Bytes of the log when it was begun.
    began: u64,
    /// Up to here it was asked for.
    asked: u64,
    /// It is given to others, or cannot be made.
    is_over: Arc<AtomicBool>,
    /// Its space is needed.
    is_given_up: Arc<AtomicBool>,
}

impl Filling {
    /// Begins one in `dir`, if there is use and room for it. `bytes` are those of the log so far, in `files` files.
    pub(super) fn begin(new: &NewFiles, dir: &Path, files: u64, bytes: u64) -> Option<Self> {
        let size = new.target_size.next_multiple_of(STEP);
        let is_wanted = size >= FILE_MIN && !new.spares.has(dir) && new.spares.room(files) > 0;
        // What the newest file may still need, too.
        let has_space = || (new.fs.free_space(dir)).is_ok_and(|free| free / 2 >= size);
        if !is_wanted || !has_space() {
            return None;
        }
        let spare = new.spares.name_in(dir);
        Some(Self {
            spare,
            size,
            began: bytes,
            asked: 0,
            is_over: Arc::default(),
            is_given_up: Arc::default(),
        })
    }

    /// True once it needs nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Removes it, for its space, if it is being filled.
    pub(super) fn give_up(&self, new: &NewFiles) -> bool {
        self.is_given_up.store(true, Ordering::SeqCst);
        // The thread that is at it removes it once more, and should it have given it to others, it is one of those.
        !self.is_over() && self.asked > 0 && new.fs.remove_file(&self.spare).is_ok()
    }

    /// Has it filled as far as it should be when the log has `bytes`.
    pub(super) fn go_on(&mut self, new: &NewFiles, bytes: u64) {
        let goal = share_of(bytes - self.began).min(self.size);
        while self.asked + STEP <= goal {
            let offset = self.asked;
            self.asked += STEP;
            let is_last = self.asked == self.size;
            let spare = self.spare.clone();
            let (is_over, is_given_up) = (self.is_over.clone(), self.is_given_up.clone());
            let (fs, spares, meters) = (
                Arc::clone(&new.fs),
                Arc::clone(&new.spares),
                Arc::clone(&new.meters),
            );
            new.beside.ask(move || {
                if is_over.load(Ordering::Acquire) || is_given_up.load(Ordering::SeqCst) {
                    return;
                }
                let written = fs.write_zeros_at(&spare, offset, STEP);
                if is_given_up.load(Ordering::SeqCst) {
                    let _ = fs.remove_file(&spare);
                    return;
                }
                let done = written.and_then(|()| match is_last {
                    true => fs.open_append(&spare)?.sync(),
                    false => Ok(()),
                });
                match done {
                    Ok(()) => {
                        meters.filled(STEP);
                        if !is_last {
                            return;
                        }
                        spares.add(vec![spare]);
                    }
                    // Then there is none.
                    Err(e) if e.kind() == ErrorKind::NotSupported => {}
                    Err(_) => {
                        let _ = fs.remove_file(&spare);
                    }
                }
                is_over.store(true, Ordering::Release);
            });
        }
    }
}
