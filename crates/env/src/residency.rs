//! Whether what is read of a directory's files lies in memory.
//!
//! A mapping of a file is the quickest way to what the system holds in memory, and a slow one to
//! what it does not: pages are then read by whoever touches them, without being asked for as a whole. So reads
//! go by calls until looks have found that they need no device, and again from the first look on
//! that finds otherwise.
//!
//! ```text
//! one of about LOOK_EVERY reads of a thread: does memory hold all of it (mincore)?
//!     yes: one more in a row, up to IN_A_ROW -> mappings are used
//!     no:  none in a row                     -> calls are used
//! ```
//! 1. Looked at is what is about to be read, so what is read often counts often. Where one read in a
//!    thousand needs the device mappings are used nine tenths of the time; where one in twenty does, next to never.
//! 2. The files of a directory have one count, which changes with a look at most and not at all
//!    while all is in memory: threads do not get into each other's way.
//! 3. The system tells of pages only who owns the file or may write it; everybody else is told that all are there. Others' files
//!    are read by calls, and all are where the system says of a page that nobody has touched that it is there: where memory is
//!    locked as it is mapped, or nothing is known.
//! 4. A process has [`MAPPINGS_MAX`] such mappings at most, and none where its addresses are bounded: these are needed for threads and
//!    data, too.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use crate::mapping::{self, FileMapping};

/// Reads of a thread for each that is looked at, on the average: a look takes about 1 us. Which ones is left to chance, or it would always
/// be the block and never the value, or the other way round.
const LOOK_EVERY: u32 = 32;

/// So many looks in a row have to find all in memory.
const IN_A_ROW: u32 = 64;

/// An eighth of what Linux allows by default.
const MAPPINGS_MAX: usize = 8 << 10;

thread_local! {
    /// Reads until the next look; 0 before the first read.
    static UNTIL_LOOK: Cell<u32> = const { Cell::new(0) };
    static RANDOM: Cell<u32> = const { Cell::new(0) };
}

/// Threads that have read.
static THREADS: AtomicU32 = AtomicU32::new(0);

static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// Whether there are more addresses than there will be files, and the system tells which pages are there.
static MAY_MAP: LazyLock<bool> = LazyLock::new(|| {
    let has_addresses = usize::BITS >= 64 && getrlimit(Resource::As).current.is_none();
    has_addresses && mapping::tells_of_pages()
});

/// The directories whose files are open. Leaf lock.
static DIRECTORIES: LazyLock<Mutex<HashMap<PathBuf, Weak<Residency>>>> =
    LazyLock::new(Mutex::default);

/// What looks have found in a directory.
#[derive(Debug)]
struct Residency {
    dir: PathBuf,
    in_a_row: AtomicU32,
}

impl Drop for Residency {
    fn drop(&mut self) {
        let mut all = DIRECTORIES.lock();
        // Another one may have taken the place.
        if all.get(&self.dir).is_some_and(|r| r.strong_count() == 0) {
            all.remove(&self.dir);
        }
    }
}

impl Residency {
    fn of(dir: &Path) -> Arc<Self> {
        let mut all = DIRECTORIES.lock();
        if let Some(residency) = all.get(dir).and_then(Weak::upgrade) {
            return residency;
        }
        let residency = Arc::new(Self {
            dir: dir.to_owned(),
            in_a_row: AtomicU32::new(0),
        });
        all.insert(dir.to_owned(), Arc::downgrade(&residency));
        residency
    }

    #[inline]
    fn is_high(&self) -> bool {
        self.in_a_row.load(Ordering::Relaxed) >= IN_A_ROW
    }

    fn note(&self, is_resident: bool) {
        let before = self.in_a_row.load(Ordering::Relaxed);
        let after = match is_resident {
            true => (before + 1).min(IN_A_ROW),
            false => 0,
        };
        // Looks that others make at the same time may get lost.
        if after != before {
            self.in_a_row.store(after, Ordering::Relaxed);
        }
    }
}

/// A file that is read out of a mapping while memory holds what is read of its directory.
pub(crate) struct ResidentMapping {
    residency: Arc<Residency>,
    len: u64,
    /// Made when it is needed first; `None` if it cannot be.
    mapping: OnceLock<Option<Counted>>,
}

impl ResidentMapping {
    /// `None` for a file of somebody else, or where addresses are bounded.
    pub(crate) fn new(path: &Path, metadata: &std::fs::Metadata) -> Option<Self> {
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        if !*MAY_MAP || !(is_own || may_write(path)) {
            return None;
        }
        Some(Self {
            residency: Residency::of(path.parent()?),
            len: metadata.len(),
            mapping: OnceLock::new(),
        })
    }

    /// Shows so many bytes at `offset`, if they are to be read out of the mapping: [`FileMapping::read`].
    #[inline]
    pub(crate) fn read(
        &self,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        look: &mut dyn FnMut(&[u8]),
    ) -> Option<bool> {
        match UNTIL_LOOK.get() {
            0 | 1 => self.look(file, offset, len),
            left => UNTIL_LOOK.set(left - 1),
        }
        if !self.residency.is_high() {
            return None;
        }
        self.mapping(file)?.read(offset, len, look)
    }

    fn mapping(&self, file: BorrowedFd<'_>) -> Option<&FileMapping> {
        let mapping = self.mapping.get_or_init(|| Counted::new(file, self.len));
        mapping.as_ref().map(|counted| &counted.0)
    }

    #[cold]
    fn look(&self, file: BorrowedFd<'_>, offset: u64, len: usize) {
        let is_first = UNTIL_LOOK.get() == 0;
        UNTIL_LOOK.set(reads_until_look());
        if is_first {
            // Of many threads each may read once.
            return;
        }
        let mapping = self.mapping(file);
        if let Some(is_resident) = mapping.and_then(|m| m.is_resident(offset, len)) {
            self.residency.note(is_resident);
        }
    }
}

/// Some number from 1 to twice [`LOOK_EVERY`].
fn reads_until_look() -> u32 {
    let mut random = RANDOM.get();
    if random == 0 {
        // Threads begin in different places, also those that read less than that.
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        random = thread.wrapping_mul(0x9e37_79b9) | 1;
    }
    random ^= random << 13;
    random ^= random >> 17;
    random ^= random << 5;
    RANDOM.set(random);
    random % (2 * LOOK_EVERY) + 1
}

/// Whether the process may write a file of somebody else.
fn may_write(path: &Path) -> bool {
    rustix::fs::accessat(
        rustix::fs::CWD,
        path,
        rustix::fs::Access::WRITE_OK,
        rustix::fs::AtFlags::EACCESS,
    )
    .is_ok()
}

/// A mapping that counts.
struct Counted(FileMapping);

impl Counted {
    fn new(file: BorrowedFd<'_>, len: u64) -> Option<Self> {
        if MAPPINGS.fetch_add(1, Ordering::Relaxed) >= MAPPINGS_MAX {
            MAPPINGS.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let mapping = FileMapping::new(file, len);
        if mapping.is_none() {
            MAPPINGS.fetch_sub(1, Ordering::Relaxed);
        }
        mapping.map(Self)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        MAPPINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
