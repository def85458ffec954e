//! The directories of a log, and which of them gets the next file.
//!
//! There is one, or a second beside it for what the first has no room for. The files of both are one sequence: their
//! numbers say where they belong, and not where they lie.
//!
//! 1. A number is given once: a file whose making has failed in one directory is durably gone from there before it is
//!    made in the other.
//! 2. A directory in which an append found no space gets no file as long as it has no more space than it had then.
//! 3. As long as the first directory stalls, files are made in the second. It stalls from a call on that took longer than the threshold,
//!    until [`PROBES_WELL`] probes in a row took at most half of that. Only calls that have come back are known to be slow.
//! 4. Both are locked as long as the log is open, the first one first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use orogen_base::{Error, Result};
use orogen_env::fs::{make_dir, unless_read_only};
use orogen_env::{Clock, FileLock, FileSystem};

use crate::metrics::Meters;
use crate::names::{FileId, LOCK_NAME, Name, parse};

/// A file in one of the directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) id: FileId,
    pub(crate) dir: Arc<Path>,
}

impl Place {
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(self.id.name())
    }
}

fn lock(fs: &dyn FileSystem, dir: &Path) -> Result<Box<dyn FileLock>> {
    let path = dir.join(LOCK_NAME);
    fs.lock_by_flock(&path)
        .map_err(|e| match fs.metadata(&path) {
            Ok(found) if found.is_dir => {
                Error::invalid_argument("a fork is being made here, or was when its process ended")
                    .with("directory", dir.display())
                    .with("help", "if none is at work, remove it, and fork again")
            }
            _ => e,
        })
}

/// The file by which is found out whether the first directory is well again.
const PROBE_NAME: &str = "PROBE";

/// Bytes that a probe writes.
const PROBE_BYTES: usize = 4 << 10;

/// Probes in a row that must be quick.
const PROBES_WELL: u64 = 3;

/// Whether the first directory stalls.
struct Stalls {
    clock: Arc<dyn Clock>,
    threshold_micros: u64,
    is_stalled: AtomicBool,
    /// The second directory took no file for that.
    is_refused: AtomicBool,
    /// Quick probes in a row. Only who purges changes it, or who finds a stall.
    well: AtomicU64,
    meters: Arc<Meters>,
}

/// Times a call to the first directory.
pub(crate) struct Watch {
    stalls: Arc<Stalls>,
    start: u64,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.micros() > self.stalls.threshold_micros {
            self.stalls.well.store(0, Relaxed);
            if !self.stalls.is_stalled.swap(true, Relaxed) {
                self.stalls.meters.stalls.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Watch {
    fn start(stalls: &Arc<Stalls>) -> Self {
        Self {
            start: stalls.clock.now_micros(),
            stalls: Arc::clone(stalls),
        }
    }

    fn micros(&self) -> u64 {
        self.stalls.clock.now_micros().saturating_sub(self.start)
    }
}

/// One directory, or two.
pub(crate) struct Dirs {
    all: Vec<Arc<Path>>,
    /// None where nobody is to look.
    stalls: Option<Arc<Stalls>>,
    /// For each the free space that it had when an append there found none. Leaf lock.
    full: Mutex<Vec<Option<u64>>>,
}

impl Dirs {
    /// # Errors
    /// `InvalidArgument` if both are the same.
    pub(crate) fn new(dir: &Path, spill_dir: Option<&Path>) -> Result<Self> {
        if spill_dir == Some(dir) {
            return Err(
                Error::invalid_argument("both directories of a log are the same")
                    .with("directory", dir.display()),
            );
        }
        let all: Vec<Arc<Path>> = [Some(dir), spill_dir]
            .into_iter()
            .flatten()
            .map(Arc::from)
            .collect();
        Ok(Self {
            full: Mutex::new(vec![None; all.len()]),
            all,
            stalls: None,
        })
    }

    /// Has calls to the first directory timed, if there is a second one.
    pub(crate) fn watching(
        mut self,
        threshold: Option<Duration>,
        clock: Arc<dyn Clock>,
        meters: Arc<Meters>,
    ) -> Self {
        let threshold = threshold.filter(|_| self.all.len() > 1);
        let stalls = threshold.map(|threshold| Stalls {
            clock,
            threshold_micros: u64::try_from(threshold.as_micros()).unwrap_or(u64::MAX),
            is_stalled: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
            well: AtomicU64::new(0),
            meters,
        });
        self.stalls = stalls.map(Arc::new);
        self
    }

    /// Times a call to `dir` until the guard is dropped, if it is the first one and somebody wants to know. Only then is it asked which
    /// one it is: to take a path apart and compare it costs each write about as much as its checksum.
    pub(crate) fn watch<'d>(&self, dir: impl FnOnce() -> &'d Path) -> Option<Watch> {
        let stalls = self.stalls.as_ref().filter(|_| *self.all[0] == *dir())?;
        Some(Watch::start(stalls))
    }

    /// Whether files are made in the second directory for that.
    pub(crate) fn is_stalled(&self) -> bool {
        let stalls = self.stalls.as_ref();
        stalls.is_some_and(|stalls| stalls.is_stalled.load(Relaxed))
    }

    /// The second directory, if a file in `dir` is to be left for one there: it has room for one of `size` bytes, and none was refused
    /// since the newest file was begun or files were purged.
    pub(crate) fn is_to_be_left(
        &self,
        fs: &dyn FileSystem,
        dir: &Path,
        size: u64,
        has_spare: impl Fn(&Path) -> bool,
    ) -> Option<Arc<Path>> {
        let stalls = self.stalls.as_ref()?;
        let is_left = stalls.is_stalled.load(Relaxed)
            && !stalls.is_refused.load(Relaxed)
            && *self.all[0] == *dir
            && (has_spare(&self.all[1]) || self.fits(fs, 1, size));
        is_left.then(|| Arc::clone(&self.all[1]))
    }

    /// Notes that the second directory took no file: the slow one is written on.
    pub(crate) fn refused(&self) {
        if let Some(stalls) = &self.stalls {
            stalls.is_refused.store(true, Relaxed);
        }
        self.stay();
    }

    /// Notes that the second directory may be asked again.
    pub(crate) fn may_leave(&self) {
        if let Some(stalls) = &self.stalls {
            stalls.is_refused.store(false, Relaxed);
        }
    }

    /// Notes that the next files are to be made in the first directory although it stalls. It is left again at the next slow call.
    pub(crate) fn stay(&self) {
        if let Some(stalls) = &self.stalls
            && stalls.is_stalled.swap(false, Relaxed)
        {
            stalls.meters.stalls_stayed.fetch_add(1, Relaxed);
        }
    }

    /// Looks whether the first directory is well again, if it stalls. It may take as long as that does.
    pub(crate) fn probe(&self, fs: &dyn FileSystem) {
        self.may_leave();
        let Some(stalls) = self.stalls.as_ref().filter(|_| self.is_stalled()) else {
            return;
        };
        let path = self.all[0].join(PROBE_NAME);
        let watch = Watch::start(stalls);
        let write = || {
            let mut file = fs.create(&path)?;
            file.append(&[0; PROBE_BYTES])?;
            file.sync()?;
            drop(file);
            fs.remove_file(&path)
        };
        let is_well = write().is_ok() && watch.micros() <= stalls.threshold_micros / 2;
        drop(watch);
        if !is_well {
            stalls.well.store(0, Relaxed);
        } else if stalls.well.fetch_add(1, Relaxed) + 1 >= PROBES_WELL {
            stalls.well.store(0, Relaxed);
            stalls.is_stalled.store(false, Relaxed);
        }
    }

    pub(crate) fn second(&self) -> Option<&Path> {
        self.all.get(1).map(|dir| &**dir)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Path>> {
        self.all.iter()
    }

    /// Makes those that are not there, and locks them.
    ///
    /// # Errors
    /// `Busy` if one is open already; `InvalidArgument` if one is a fork that is not finished; those of the file system.
    pub(crate) fn open(&self, fs: &dyn FileSystem) -> Result<Vec<Box<dyn FileLock>>> {
        let open = |dir: &Arc<Path>| {
            make_dir(fs, dir)?;
            lock(fs, dir)
        };
        self.all.iter().map(open).collect()
    }

    /// Locks those that are there: they are only looked at, or repaired. A file system that takes no writes needs no lock.
    ///
    /// # Errors
    /// `InvalidArgument` if one is not there, or a fork that is not finished; `Busy` if it is open; those of the file system.
    pub(crate) fn lock(&self, fs: &dyn FileSystem) -> Result<Vec<Box<dyn FileLock>>> {
        let lock_one = |dir: &Arc<Path>| match fs.exists(dir)? {
            true => unless_read_only(lock(fs, dir)),
            false => Err(Error::invalid_argument("there is no such directory")
                .with("directory", dir.display())),
        };
        let locked: Result<Vec<_>> = self.all.iter().map(lock_one).collect();
        Ok(locked?.into_iter().flatten().collect())
    }

    /// All names in them that are ours.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn names(&self, fs: &dyn FileSystem) -> Result<Vec<(Name, &Arc<Path>)>> {
        let mut all = Vec::new();
        for dir in &self.all {
            let names = fs.list(dir)?;
            all.extend(names.iter().map(|name| (parse(name), dir)));
        }
        Ok(all)
    }

    /// Makes the names in all of them survive a power loss.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn sync(&self, fs: &dyn FileSystem) -> Result<()> {
        self.all.iter().try_for_each(|dir| fs.sync_dir(dir))
    }

    fn number_of(&self, dir: &Path) -> usize {
        self.all.iter().position(|one| **one == *dir).unwrap_or(0)
    }

    /// Whether a directory has room for a file of `size` bytes. Where the system does not tell it is taken to have none.
    fn fits(&self, fs: &dyn FileSystem, at: usize, size: u64) -> bool {
        let Ok(free) = fs.free_space(&self.all[at]) else {
            return false;
        };
        let was = self.full.lock()[at];
        free >= size && was.is_none_or(|was| free > was)
    }

    /// The directories for a new file of `size` bytes, those first that have room for it, or a spare file to be written over; of these the
    /// first one first, unless it stalls.
    pub(crate) fn for_new_file(
        &self,
        fs: &dyn FileSystem,
        size: u64,
        has_spare: impl Fn(&Path) -> bool,
    ) -> Vec<Arc<Path>> {
        if self.all.len() == 1 {
            return self.all.clone();
        }
        let preferred = if self.is_stalled() { [1, 0] } else { [0, 1] };
        let fits = |at: &usize| has_spare(&self.all[*at]) || self.fits(fs, *at, size);
        let (mut order, others): (Vec<usize>, Vec<usize>) = preferred.into_iter().partition(fits);
        order.extend(others);
        order.iter().map(|at| Arc::clone(&self.all[*at])).collect()
    }

    /// Notes that an append to a file in `dir` found no space; the other directory, if that has room for a file of `size` bytes, or a
    /// spare one.
    pub(crate) fn after_full(
        &self,
        fs: &dyn FileSystem,
        dir: &Path,
        size: u64,
        has_spare: impl Fn(&Path) -> bool,
    ) -> Option<Arc<Path>> {
        if self.all.len() == 1 {
            return None;
        }
        let at = self.number_of(dir);
        self.full.lock()[at] = Some(fs.free_space(dir).unwrap_or(0));
        let other = 1 - at;
        let may_take = has_spare(&self.all[other]) || self.fits(fs, other, size);
        may_take.then(|| Arc::clone(&self.all[other]))
    }

    /// Notes that a file in `dir` found space.
    pub(crate) fn found_space(&self, dir: &Path) {
        if self.all.len() == 1 {
            return;
        }
        self.full.lock()[self.number_of(dir)] = None;
    }
}
