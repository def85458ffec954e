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
use orogen_base::sync::atomic::{AtomicU8, Ordering};

use super::NewFiles;

/// Bytes that are written at a time: more would hold up the syncs beside it.
const STEP: u64 = 256 << 10;

/// A shorter file is full before it matters.
const FILE_MIN: u64 = 4 * STEP;

/// What is filled for each byte of the log: it has to be there before the newest file is full.
const fn share_of(bytes: u64) -> u64 {
    bytes + bytes / 4
}

/// Whoever ends the filling first decides how.
fn end(state: &AtomicU8, how: u8) -> bool {
    let before = state.compare_exchange(FILLING, how, Ordering::AcqRel, Ordering::Acquire);
    before.is_ok()
}

/// A spare file that is being made.
pub(super) struct Filling {
    spare: PathBuf,
    size: u64,
    /// Bytes of the log when it was begun.
    began: u64,
    /// Up to here it was asked for.
    asked: u64,
    state: Arc<AtomicU8>,
}

/// It is filled.
const FILLING: u8 = 0;
/// It is given to others, or cannot be made.
const OVER: u8 = 1;
/// Its space is needed: whoever is at it removes what it has written.
const GIVEN_UP: u8 = 2;

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
            state: Arc::default(),
        })
    }

    /// True once it needs nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != FILLING
    }

    /// Removes it, for its space, if it is being filled; not if it was given to others just now.
    pub(super) fn give_up(&self, new: &NewFiles) -> bool {
        end(&self.state, GIVEN_UP) && self.asked > 0 && new.fs.remove_file(&self.spare).is_ok()
    }

    /// Has it filled as far as it should be when the log has `bytes`.
    pub(super) fn go_on(&mut self, new: &NewFiles, bytes: u64) {
        let goal = share_of(bytes - self.began).min(self.size);
        while self.asked + STEP <= goal {
            let offset = self.asked;
            self.asked += STEP;
            let is_last = self.asked == self.size;
            let spare = self.spare.clone();
            let state = Arc::clone(&self.state);
            let (fs, spares, meters) = (
                Arc::clone(&new.fs),
                Arc::clone(&new.spares),
                Arc::clone(&new.meters),
            );
            new.beside.ask(move || {
                if state.load(Ordering::Acquire) != FILLING {
                    return;
                }
                let written = fs.write_zeros_at(&spare, offset, STEP);
                let done = written.and_then(|()| match is_last {
                    true => fs.open_append(&spare)?.sync(),
                    false => Ok(()),
                });
                if done.is_ok() {
                    meters.filled(STEP);
                }
                let is_kept = match &done {
                    Ok(()) if !is_last => state.load(Ordering::Acquire) == FILLING,
                    Ok(()) => end(&state, OVER),
                    Err(_) => {
                        end(&state, OVER);
                        false
                    }
                };
                if is_kept && is_last {
                    spares.add(vec![spare]);
                } else if !is_kept && !done.is_err_and(|e| e.kind() == ErrorKind::NotSupported) {
                    // Then there is none.
                    let _ = fs.remove_file(&spare);
                }
            });
        }
    }
}
