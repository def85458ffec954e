//! Files of the append queue that were emptied, to be written over.
//!
//! A file that was written before has its blocks: a sync of what is written over has only the
//! data to write, and nothing of where it lies. What a file held before is no record of the new one: records of
//! version 2 are signed with the file's number. Only such files are spare, and only while they have no other name: a fork of the
//! directory, or a copy of it, may share them.
//!
//! ```text
//! purge:  0000000000000003.raftlog -> 0000000000000001.raftlog.reserved, names synced, then it is spare
//! rotate: 0000000000000001.raftlog.reserved -> 0000000000000009.raftlog, header written and synced
//! ```
//! Names of spare files are kept in the directory, so a process that dies loses none.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use orogen_base::Result;
use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicBool, Ordering};
use orogen_env::FileSystem;

use crate::names::{Name, parse, reserved_name};

/// The spare files of a directory.
pub(crate) struct Spares {
    dir: PathBuf,
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
    free: VecDeque<u64>,
    /// Greater than any that was given.
    next: u64,
}

impl Spares {
    /// Takes up the spare files of a directory; those beyond `files_max` are deleted, none is kept if it is 0.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn open(
        fs: &dyn FileSystem,
        dir: &Path,
        files_max: u64,
        are_in_memory: bool,
    ) -> Result<Self> {
        let names = fs.list(dir)?;
        let mut free: Vec<u64> = names
            .iter()
            .filter_map(|name| match parse(name) {
                Name::Reserved(number) => Some(number),
                _ => None,
            })
            .collect();
        free.sort_unstable();
        let kept = usize::try_from(files_max).unwrap_or(usize::MAX);
        for number in free.drain(kept.min(free.len())..) {
            fs.remove_file(&dir.join(reserved_name(number)))?;
        }
        let next = free.last().map_or(1, |last| last.saturating_add(1));
        Ok(Self {
            dir: dir.to_owned(),
            files_max,
            are_in_memory,
            is_wanted: AtomicBool::new(true),
            numbers: Mutex::new(Numbers {
                free: free.into(),
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

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.numbers.lock().free.len() as u64
    }

    /// Gives a file the name of a spare one; its number, for [`Self::add`].
    ///
    /// # Errors
    /// Of the file system; the file is as it was.
    pub(crate) fn rename(&self, fs: &dyn FileSystem, path: &Path) -> Result<u64> {
        let number = {
            let mut numbers = self.numbers.lock();
            let number = numbers.next;
            numbers.next += 1;
            number
        };
        fs.rename(path, &self.path(number))?;
        Ok(number)
    }

    /// Makes files spare whose new names were synced: the old ones do not come back.
    pub(crate) fn add(&self, renamed: Vec<u64>) {
        self.numbers.lock().free.extend(renamed);
    }

    /// A spare file, which its taker renames.
    pub(crate) fn take(&self) -> Option<PathBuf> {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return None;
        }
        let number = self.numbers.lock().free.pop_front()?;
        Some(self.path(number))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(reserved_name(number))
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
            let spares = Spares::open(&fs, dir, 5, are_in_memory).unwrap();
            spares.add(vec![1, 2]);
            spares.set_mapped(true);
            assert_eq!(spares.room(1), if are_in_memory { 2 } else { 0 });
            assert_eq!(spares.take().is_some(), are_in_memory);
            spares.set_mapped(false);
            assert_eq!(spares.room(1), if are_in_memory { 3 } else { 2 });
            assert!(spares.take().is_some());
        }
    }
}
