//! Files of the append queue that were emptied, or filled with zeros beforehand, to be written over.
//!
//! A file that was written before has its blocks: a sync of what is written over has only the
//! data to write, and nothing of where it lies. What a file held before is no record of the new one: records of
//! version 2 are signed with the file's number. Only such files are spare, and only while they have no other name: a fork of the
//! directory, or a copy of it, may share them.
//!
//! ```text
//! purge:  0000000000000003.raftlog -> 0000000000000001.raftlog.reserved, names synced, then it is spare
//! fill:   0000000000000002.raftlog.reserved of zeros, synced, then it is spare
//! rotate: 0000000000000001.raftlog.reserved -> 0000000000000009.raftlog, header written and synced
//! ```
//! Names of spare files are kept in the directory, so a process that dies loses none. Whoever finds no space in a directory has its
//! spare files removed, one after the other.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use orogen_base::Result;
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicBool, Ordering};
use orogen_env::FileSystem;

use crate::dirs::Dirs;
use crate::names::{Name, SEQ_END, reserved_name};

/// The spare files of a log. Each is written over in the directory where it lies.
pub(crate) struct Spares {
    /// Files of the append queue and spare ones together are no more for its sake.
    files_max: u64,
    /// All files of the queue, and spare ones, are likely to have their pages in memory.
    are_in_memory: bool,
    /// Whether the next files will be written over.
    is_wanted: AtomicBool,
    /// Leaf lock.
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    /// Spare, the oldest first.
    free: VecDeque<PathBuf>,
    /// Greater than any that was given.
    next: u64,
}

impl Spares {
    /// Takes up the spare files of the directories; those beyond `files_max` are deleted, none is kept if it is 0.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn open(
        fs: &dyn FileSystem,
        dirs: &Dirs,
        files_max: u64,
        are_in_memory: bool,
    ) -> Result<Self> {
        let mut free: Vec<(u64, PathBuf)> = dirs
            .names(fs)?
            .into_iter()
            .filter_map(|(name, dir)| match name {
                // One of a larger number is left alone: it leaves none for the next.
                Name::Reserved(number) if number < SEQ_END => {
                    Some((number, dir.join(reserved_name(number))))
                }
                _ => None,
            })
            .collect();
        free.sort_unstable();
        let kept = usize::try_from(files_max).unwrap_or(usize::MAX);
        for (_, path) in free.drain(kept.min(free.len())..) {
            fs.remove_file(&path)?;
        }
        let next = free.last().map_or(1, |(last, _)| last.saturating_add(1));
        Ok(Self {
            files_max,
            are_in_memory,
            is_wanted: AtomicBool::new(true),
            numbers: Mutex::new(Numbers {
                free: free.into_iter().map(|(_, path)| path).collect(),
                next,
            }),
        })
    }

    /// Tells whether the next files are written through memory. Then pages that are not there would be read first, only to be
    /// stored over.
    pub(crate) fn set_mapped(&self, is_mapped: bool) {
        let is_wanted = !is_mapped || self.are_in_memory;
        self.is_wanted.store(is_wanted, Ordering::Relaxed);
    }

    /// How many more there may be beside `active` files of the queue.
    pub(crate) fn room(&self, active: u64) -> u64 {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return 0;
        }
        let free = self.numbers.lock().free.len() as u64;
        self.files_max.saturating_sub(active + free)
    }

    /// Whether files are written over at all.
    pub(crate) fn are_kept(&self) -> bool {
        self.files_max > 0
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.numbers.lock().free.len() as u64
    }

    /// Gives a file the name of a spare one of its directory, for [`Self::add`].
    ///
    /// # Errors
    /// Of the file system; the file is as it was.
    pub(crate) fn rename(&self, fs: &dyn FileSystem, path: &Path) -> Result<PathBuf> {
        let dir = path.parent().unwrap_or_else(|| Path::new(""));
        let spare = self.name_in(dir);
        fs.rename(path, &spare)?;
        Ok(spare)
    }

    /// The name of a spare file that is to be made in a directory, for [`Self::add`].
    pub(crate) fn name_in(&self, dir: &Path) -> PathBuf {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        dir.join(reserved_name(number))
    }

    /// Makes files spare that are new, or whose new names were synced: the old ones do not come back.
    pub(crate) fn add(&self, renamed: Vec<PathBuf>) {
        self.numbers.lock().free.extend(renamed);
    }

    /// True if [`Self::take`] would give one.
    pub(crate) fn has(&self, dir: &Path) -> bool {
        let is_there = |path: &PathBuf| path.parent() == Some(dir);
        self.is_wanted.load(Ordering::Relaxed) && self.numbers.lock().free.iter().any(is_there)
    }

    /// Removes the newest spare file of a directory, for its space; false if there is none.
    ///
    /// # Errors
    /// Of the file system; it is spare no more.
    pub(crate) fn give_up(&self, fs: &dyn FileSystem, dir: &Path) -> Result<bool> {
        loop {
            let spare = {
                let free = &mut self.numbers.lock().free;
                let at = free.iter().rposition(|path| path.parent() == Some(dir));
                at.and_then(|at| free.remove(at))
            };
            let Some(spare) = spare else {
                return Ok(false);
            };
            match fs.remove_file(&spare) {
                Err(e) if e.is_file_not_found() => {}
                removed => return removed.map(|()| true),
            }
        }
    }

    /// The oldest spare file of a directory, which its taker renames.
    pub(crate) fn take(&self, dir: &Path) -> Option<PathBuf> {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return None;
        }
        let free = &mut self.numbers.lock().free;
        let at = free.iter().position(|path| path.parent() == Some(dir))?;
        free.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::MemFileSystem;

    use super::*;

    #[test]
    fn what_may_not_be_in_memory_is_not_written_over_through_it() {
        let fs = MemFileSystem::new();
        let dir = Path::new("/log");
        fs.create_dir_all(dir).unwrap();
        for are_in_memory in [false, true] {
            let dirs = Dirs::new(dir, None).unwrap();
            let spares = Spares::open(&fs, &dirs, 5, are_in_memory).unwrap();
            spares.add([1, 2].map(|n| dir.join(reserved_name(n))).to_vec());
            spares.set_mapped(true);
            assert_eq!(spares.room(1), if are_in_memory { 2 } else { 0 });
            assert_eq!(spares.take(dir).is_some(), are_in_memory);
            spares.set_mapped(false);
            assert_eq!(spares.room(1), if are_in_memory { 3 } else { 2 });
            assert!(spares.take(dir).is_some());
        }
    }
}
