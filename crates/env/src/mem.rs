//! A file system in memory that can lose its power.
//!
//! The heart of the crash tests: an engine runs on it, the power is cut after any call, and
//! another engine opens what the disk then holds. It behaves as the operating system's files
//! do (an open file stays readable when its name is gone, a rename replaces, two names share a
//! file, a recycled file is written over), and it keeps apart what a program sees from what is
//! on the disk.
//!
//! # What a power cut leaves
//!
//! 1. Bytes reach the disk by [`WritableFile::sync`] of the file, with its size; until then they
//!    are unsynced. `start_writeback` and `preallocate` promise nothing.
//! 2. Names reach the disk by [`FileSystem::sync_dir`] of their directory and by nothing else:
//!    neither the sync of a file nor of a directory above or below it. This holds for the
//!    names of directories too: a new directory is lost with all that is in it until the one
//!    above it is synced. The root `/` is always there.
//! 3. A rename is one change: on the disk is the old name or the new one, never both, never
//!    neither. Between two directories the sync of either brings it to the disk whole.
//! 4. Changes of one name reach the disk in their order: a later one is there only if every
//!    earlier one is. Changes of different names are independent of each other, and of bytes:
//!    a name may be there while the bytes of its file are not.
//! 5. [`PowerCut::DropUnsynced`] leaves what 1 and 2 promise, and nothing more.
//! 6. [`PowerCut::Torn`] draws for every unsynced change of names whether it is there, and
//!    for every unsynced 512-byte sector whether it has its new bytes, its old bytes (zeros if
//!    it had none) or garbage. A file that grew ends anywhere between its synced and its last
//!    size. Synced bytes never change, not even those that share a sector with unsynced ones. A
//!    file that was shortened (or made anew) without a sync may also be found as it was before.
//!    How many are kept is drawn for each file and for the names, from "none" to "all".
//!    [`PowerCut::Names`] and [`PowerCut::Tail`] are two corners of it: all bytes and any names, and
//!    all names with sizes that came to the disk before their bytes.
//! 7. [`PowerCut::KeepAll`] is the death of the process, not of the machine: everything is there
//!    to be read, but what was unsynced is still unsynced when the next cut comes.
//! 8. After a failed sync ([`UnsyncedBytes::lose`]) the unsynced bytes of the file can be
//!    read, and never reach the disk unless they are written again; a later sync succeeds
//!    without them. This is what Linux does. So it is with names after one of a directory ([`MemFileSystem::lose_names`]): they
//!    are as those that were never synced, until they are changed again, with what that rests on.
//! 9. Locks vanish with the power.
//!
//! All that is drawn comes from the seed, the numbers of the files and the order of the
//! changes: one history and one seed give one disk.
//!
//! # Cost
//!
//! Every change takes one mutex; reading takes only the file's own lock. A fork or crash copies
//! a few words for each file and shares the bytes, in pieces of 32 KiB, until they are written.

mod content;
mod inode;
mod random;
mod tree;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use orogen_base::perf::{self, PerfCounter};
use orogen_base::{Error, ErrorKind, Result, memory};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::ahead::Ahead;
use crate::clock::{Clock, SystemClock};
use crate::fs::{
    Access, FileLock, FileSystem, LengthHint, Metadata, RandomAccessFile, WritableFile,
};
use inode::{BLOCK, FileState, Inode};
use tree::Tree;

/// What a power cut spares; the rules are at the head of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// The process died and the machine went on: all is there, unsynced things still unsynced.
    KeepAll,
    /// Only what was synced is there.
    DropUnsynced,
    /// Each unsynced thing is there, or not, or is garbage.
    Torn {
        /// Decides what is; the same seed decides the same.
        seed: u64,
    },
    /// All bytes are there; each unsynced change of names is, or is not.
    Names {
        /// Decides which.
        seed: u64,
    },
    /// All names and sizes are there; of the unsynced bytes behind a file's synced end, those from
    /// some place on are not what was written.
    Tail {
        /// Decides from where.
        seed: u64,
        /// What is there instead.
        fill: TailFill,
    },
}

/// What a disk shows where it has a file's size but not yet its bytes.
///
/// Never are these the written bytes but for a single bit: that is a write which was whole, and
/// logs tell it from one that was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailFill {
    /// Zeros.
    Zeros,
    /// Anything.
    Garbage,
    /// Bytes of the file itself, backwards: data, but no sound record of a log. (One that stood
    /// just where the next belongs could not be told from it in a format that numbers neither
    /// records nor files.)
    Stale,
}

/// A file system in memory. A clone is another handle of the same disk; for another disk see
/// [`MemFileSystem::fork`].
#[derive(Clone)]
pub struct MemFileSystem {
    shared: Arc<Shared>,
}

struct Shared {
    /// Whoever changes anything holds it; files' states are locked under it.
    disk: Mutex<Disk>,
    /// Changed under `disk`.
    power_is_off: AtomicBool,
    /// Changed under `disk`.
    ops: AtomicU64,
    clock: Arc<dyn Clock>,
}

struct Disk {
    tree: Tree,
    /// Numbers of the locked files.
    locked: HashSet<u64>,
    /// Calls until the power goes.
    calls_left: Option<u64>,
    /// Bytes that files can take.
    capacity: Option<u64>,
}

impl Disk {
    /// Bytes that no file takes.
    fn free_space(&self) -> u64 {
        match self.capacity {
            Some(capacity) => capacity.saturating_sub(self.tree.allocated()),
            None => 1 << 40,
        }
    }

    /// Makes a change after which a file is at least `len` bytes long, if there is space for that.
    fn grow(
        &self,
        inode: &Inode,
        len: u64,
        change: impl FnOnce(&mut FileState),
    ) -> Result<(), Errno> {
        let free = self.free_space();
        let mut state = inode.state.write();
        if self.capacity.is_some() && state.allocated_to(len) - state.allocated_to(0) > free {
            return Err(Errno::NOSPC);
        }
        change(&mut state);
        Ok(())
    }
}

impl Default for MemFileSystem {
    fn default() -> Self {
        Self::new()
    }
}

impl MemFileSystem {
    /// An empty disk; files are dated by the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty disk whose files are dated by `clock`.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::of(Tree::new(), clock)
    }

    fn of(tree: Tree, clock: Arc<dyn Clock>) -> Self {
        let disk = Disk {
            tree,
            locked: HashSet::new(),
            calls_left: None,
            capacity: None,
        };
        Self {
            shared: Arc::new(Shared {
                disk: Mutex::new(disk),
                power_is_off: AtomicBool::new(false),
                ops: AtomicU64::new(0),
                clock,
            }),
        }
    }

    /// Another disk with the same content, unsynced things included; it has power, no locks,
    /// and counts its calls from 0. Open files belong to the old disk.
    #[must_use]
    pub fn fork(&self) -> Self {
        let tree = self.shared.disk.lock().tree.fork();
        Self::of(tree, Arc::clone(&self.shared.clock))
    }

    /// Another disk, as this one would be found if the power failed now.
    ///
    /// This one goes on as before: whoever is to be stopped is stopped by
    /// [`MemFileSystem::crash_after`] or [`MemFileSystem::power_off`].
    #[must_use]
    pub fn crash(&self, cut: PowerCut) -> Self {
        if cut == PowerCut::KeepAll {
            return self.fork();
        }
        let tree = self.shared.disk.lock().tree.after_power_cut(cut);
        Self::of(tree, Arc::clone(&self.shared.clock))
    }

    /// Lets `calls` more changing calls pass and then cuts the power: every later call of any
    /// kind fails with `Io`, and the disk stays as it is.
    ///
    /// The changing calls are those that [`MemFileSystem::op_count`] counts. A second call of
    /// this takes the place of the first.
    pub fn crash_after(&self, calls: u64) {
        let mut disk = self.shared.disk.lock();
        disk.calls_left = Some(calls);
        if calls == 0 {
            self.shared.power_is_off.store(true, Ordering::Release);
        }
    }

    /// Cuts the power now; see [`MemFileSystem::crash_after`].
    pub fn power_off(&self) {
        self.crash_after(0);
    }

    /// From now on files take no more than so many bytes together, in blocks of 4 KiB, and what is reserved for them
    /// counts; what finds no space fails as a whole. A file without a name takes none. Another disk made of
    /// this one has no bound.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.disk.lock().capacity = Some(bytes);
    }

    /// True once the power was cut.
    #[must_use]
    pub fn is_power_off(&self) -> bool {
        self.shared.power_is_off.load(Ordering::Acquire)
    }

    /// How many changing calls were made, successful or not: `create`, `append`, `sync`, `reuse`,
    /// `truncate`, `create_dir_all`, `remove_file`, `remove_dir`, `rename`, `hard_link`,
    /// `sync_dir`, and a `lock` that makes its file.
    #[must_use]
    pub fn op_count(&self) -> u64 {
        self.shared.ops.load(Ordering::Acquire)
    }

    /// Makes everything durable, as `sync(1)` does; not counted. For setting up a test.
    pub fn sync_all(&self) {
        self.shared.disk.lock().tree.sync_all();
    }

    /// The unsynced bytes of a file, whatever name it has later. Not counted.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    pub fn unsynced_bytes(&self, path: &Path) -> Result<UnsyncedBytes> {
        let inode = self.look("cannot find the file", path, |tree| tree.file(path))?;
        let shared = Arc::clone(&self.shared);
        Ok(UnsyncedBytes { shared, inode })
    }

    /// Does to the unsynced names of a directory what a failed sync does: see rule 8. Not counted.
    ///
    /// # Errors
    /// `Io`, also where it does not exist.
    pub fn lose_names(&self, dir: &Path) -> Result<()> {
        let mut disk = self.shared.disk.lock();
        self.shared.check_power(dir)?;
        let tree = &mut disk.tree;
        let id = tree.dir(dir);
        let id = id.map_err(|e| failed("cannot find the directory", dir, e))?;
        tree.lose_names(id);
        Ok(())
    }

    fn look<T>(
        &self,
        doing: &'static str,
        path: &Path,
        look: impl FnOnce(&Tree) -> Result<T, Errno>,
    ) -> Result<T> {
        let disk = self.shared.disk.lock();
        self.shared.check_power(path)?;
        look(&disk.tree).map_err(|e| failed(doing, path, e))
    }

    fn change<T>(
        &self,
        doing: &'static str,
        path: &Path,
        change: impl FnOnce(&mut Tree) -> Result<T, Errno>,
    ) -> Result<T> {
        self.shared.change(path, |disk| {
            change(&mut disk.tree).map_err(|e| failed(doing, path, e))
        })
    }

    fn writable(&self, inode: Arc<Inode>, path: &Path, position: usize) -> MemWritableFile {
        MemWritableFile {
            shared: Arc::clone(&self.shared),
            inode,
            path: path.to_owned(),
            position,
            mapped: false,
            is_longer: false,
            gives_up: false,
        }
    }

    fn new_file(&self, path: &Path) -> Result<MemWritableFile> {
        let now = self.shared.now();
        let inode = self.change("cannot create the file", path, |tree| {
            let (inode, _) = tree.create(path)?;
            let mut state = inode.state.write();
            state.set_len(0);
            state.modified_secs = now;
            drop(state);
            Ok(inode)
        })?;
        Ok(self.writable(inode, path, 0))
    }

    fn reused(&self, old: &Path, new: &Path) -> Result<MemWritableFile> {
        let inode = self.change("cannot reuse the file", old, |tree| {
            if tree.dir(old).is_ok() {
                return Err(Errno::ISDIR);
            }
            tree.rename(old, new)?;
            tree.file(new)
        })?;
        Ok(self.writable(inode, new, 0))
    }
}

#[cold]
fn failed(doing: &'static str, path: &Path, e: Errno) -> Error {
    Error::io(doing, e.into()).with("file", path.display())
}

impl Shared {
    fn check_power(&self, path: &Path) -> Result<()> {
        if self.power_is_off.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Io, "power is off").with("file", path.display()));
        }
        Ok(())
    }

    /// Makes one counted call, whole before or whole after a power cut.
    fn change<T>(&self, path: &Path, change: impl FnOnce(&mut Disk) -> Result<T>) -> Result<T> {
        let mut disk = self.disk.lock();
        self.check_power(path)?;
        let result = change(&mut disk);
        self.ops.fetch_add(1, Ordering::AcqRel);
        if let Some(left) = &mut disk.calls_left {
            *left -= 1;
            if *left == 0 {
                self.power_is_off.store(true, Ordering::Release);
            }
        }
        result
    }

    /// Makes a change after which the file is at least `len` bytes long.
    fn grow_file(
        &self,
        path: &Path,
        inode: &Inode,
        len: usize,
        change: impl FnOnce(&mut FileState),
    ) -> Result<()> {
        self.change(path, |disk| {
            let grown = disk.grow(inode, len as u64, change);
            grown.map_err(|e| failed("cannot write the file", path, e))
        })
    }

    fn now(&self) -> u64 {
        self.clock.unix_secs()
    }
}

/// No file in memory is longer than the address space.
fn to_usize(n: u64) -> Result<usize, Errno> {
    usize::try_from(n).map_err(|_| Errno::FBIG)
}

impl FileSystem for MemFileSystem {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.new_file(path)?))
    }

    /// Until it is closed the file is a multiple of 4 KiB long; a crash leaves it so.
    fn create_mapped(
        &self,
        path: &Path,
        _hint: LengthHint,
        _ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let mut file = self.new_file(path)?;
        file.mapped = true;
        Ok(Box::new(file))
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let inode = self.look("cannot open the file to append", path, |tree| {
            tree.file(path)
        })?;
        let size = inode.state.read().len();
        Ok(Box::new(self.writable(inode, path, size)))
    }

    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        Ok(Box::new(self.reused(old, new)?))
    }

    fn reuse_mapped(
        &self,
        old: &Path,
        new: &Path,
        _hint: LengthHint,
        _ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let mut file = self.reused(old, new)?;
        file.mapped = true;
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path, _access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let inode = self.look("cannot open the file", path, |tree| tree.file(path))?;
        let shared = Arc::clone(&self.shared);
        Ok(Arc::new(MemRandomAccessFile {
            shared,
            inode,
            path: path.to_owned(),
        }))
    }

    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        let now = self.shared.now();
        self.change("cannot truncate the file", path, |tree| {
            let inode = tree.file(path)?;
            let mut state = inode.state.write();
            state.set_len(to_usize(size)?);
            state.reserved = state.reserved.min(size);
            state.modified_secs = now;
            Ok(())
        })
    }

    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        let now = self.shared.now();
        self.change("cannot punch a hole into the file", path, |tree| {
            let inode = tree.file(path)?;
            let mut state = inode.state.write();
            state.punch(to_usize(offset)?, to_usize(offset.saturating_add(len))?);
            state.modified_secs = now;
            Ok(())
        })
    }

    fn start_writeback_at(&self, path: &Path, _offset: u64, _len: u64) -> Result<()> {
        self.look("cannot start writing out", path, |tree| tree.file(path))?;
        Ok(())
    }

    fn write_zeros_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        let now = self.shared.now();
        let zeros = memory::zeroed(usize::try_from(len).unwrap_or(usize::MAX), "zeros")?;
        self.shared.change(path, |disk| {
            let mut write = || {
                let (inode, _) = disk.tree.create(path)?;
                let start = to_usize(offset)?;
                disk.grow(&inode, offset.saturating_add(len), |state| {
                    state.write_at(start, &zeros);
                    state.modified_secs = now;
                })
            };
            write().map_err(|e| failed("cannot write zeros", path, e))
        })
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        let inode = self.look("cannot ask about the file", path, |tree| {
            tree.file_or_dir(path)
        })?;
        Ok(match inode {
            None => Metadata {
                size: 0,
                allocated: 0,
                is_dir: true,
                modified_secs: 0,
                links: 1,
                block_size: BLOCK as u64,
            },
            Some(inode) => {
                let state = inode.state.read();
                let size = state.len() as u64;
                Metadata {
                    size,
                    allocated: state.allocated_to(0),
                    is_dir: false,
                    modified_secs: state.modified_secs,
                    links: state.links,
                    block_size: BLOCK as u64,
                }
            }
        })
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.look("cannot list the directory", dir, |tree| tree.list(dir))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.change("cannot create the directory", dir, |tree| {
            tree.create_dir_all(dir)
        })
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.change("cannot remove the file", path, |tree| {
            tree.remove_file(path)
        })
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.change("cannot remove the directory", dir, |tree| {
            tree.remove_dir(dir)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("cannot rename the file", from, |tree| tree.rename(from, to))
            .map_err(|e| e.with("new_name", to.display()))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.change("cannot link the file", from, |tree| {
            tree.hard_link(from, to)
        })
        .map_err(|e| e.with("new_name", to.display()))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.change("cannot sync the directory", dir, |tree| {
            let dir = tree.dir(dir)?;
            tree.sync_dir(dir);
            Ok(())
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        let doing = "cannot lock the file";
        let take = |disk: &mut Disk, id: u64| {
            if !disk.locked.insert(id) {
                let error = Error::busy("the lock is held").with("file", path.display());
                return Err(error.with("by", "this process"));
            }
            let shared = Arc::clone(&self.shared);
            Ok(Box::new(MemLock { shared, id }) as Box<dyn FileLock>)
        };
        {
            let mut disk = self.shared.disk.lock();
            self.shared.check_power(path)?;
            match disk.tree.file(path) {
                Ok(inode) => return take(&mut disk, inode.id),
                Err(Errno::NOENT) => {}
                Err(e) => return Err(failed(doing, path, e)),
            }
        }
        self.shared.change(path, |disk| {
            let (inode, _) = disk.tree.create(path).map_err(|e| failed(doing, path, e))?;
            take(disk, inode.id)
        })
    }

    /// Always 1 TiB without a [bound](MemFileSystem::set_capacity).
    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.look("cannot ask for the free space", dir, |tree| {
            tree.file_or_dir(dir)
        })?;
        Ok(self.shared.disk.lock().free_space())
    }
}

/// What of a file is not on the disk.
pub struct UnsyncedBytes {
    shared: Arc<Shared>,
    inode: Arc<Inode>,
}

impl UnsyncedBytes {
    /// Does to the file what a failed sync does: see rule 8.
    pub fn lose(&self) {
        let _disk = self.shared.disk.lock();
        self.inode.state.write().lose_unsynced();
    }
}

struct MemLock {
    shared: Arc<Shared>,
    id: u64,
}

impl FileLock for MemLock {}

impl Drop for MemLock {
    fn drop(&mut self) {
        self.shared.disk.lock().locked.remove(&self.id);
    }
}

struct MemWritableFile {
    shared: Arc<Shared>,
    inode: Arc<Inode>,
    path: PathBuf,
    /// Where the next byte goes.
    position: usize,
    /// Longer than what was appended until it is closed.
    mapped: bool,
    /// As that, by zeros that were written.
    is_longer: bool,
    /// Nobody needs what is behind `position`.
    gives_up: bool,
}

/// Bytes by which a mapped file grows.
const MAPPED_STEP: usize = 4096;

impl WritableFile for MemWritableFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        perf::add(PerfCounter::BytesWritten, bytes.len() as u64);
        let position = self.position;
        let now = self.shared.now();
        let end = position + bytes.len();
        let (shared, path) = (&self.shared, &self.path);
        shared.grow_file(path, &self.inode, end, |state| {
            if self.mapped && state.len() < end {
                state.set_len(end.next_multiple_of(MAPPED_STEP));
            }
            state.write_at(position, bytes);
            if self.gives_up {
                let whole = end.next_multiple_of(BLOCK).min(state.len());
                state.write_at(end, &vec![0; whole.saturating_sub(end)]);
            }
            state.modified_secs = now;
        })?;
        self.position += bytes.len();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.shared
            .grow_file(&self.path, &self.inode, 0, FileState::sync)
    }

    fn size(&self) -> u64 {
        self.position as u64
    }

    fn start_writeback(&mut self) -> Result<()> {
        self.shared.check_power(&self.path)
    }

    fn seal(&mut self) {
        self.give_up();
    }

    fn give_up_old_bytes(&mut self) {
        self.gives_up = true;
    }

    fn write_zeros(&mut self, bytes: u64) -> Result<()> {
        let position = self.position;
        let zeros = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        let is_longer = &mut self.is_longer;
        let end = position + zeros.len();
        self.shared
            .grow_file(&self.path, &self.inode, end, |state| {
                if state.len() <= position || *is_longer {
                    state.write_at(position, &zeros);
                    *is_longer = true;
                }
            })
    }

    fn preallocate(&mut self, bytes: u64) -> Result<()> {
        let disk = self.shared.disk.lock();
        self.shared.check_power(&self.path)?;
        let end = (self.position as u64).saturating_add(bytes);
        let grown = disk.grow(&self.inode, end, |state| {
            state.reserved = state.reserved.max(end);
        });
        grown.map_err(|e| failed("cannot reserve space for the file", &self.path, e))
    }
}

impl MemWritableFile {
    fn give_up(&mut self) {
        let _disk = self.shared.disk.lock();
        let mut state = self.inode.state.write();
        state.reserved = 0;
        // A process that died has not closed it.
        let is_longer = std::mem::take(&mut self.is_longer);
        let mapped = std::mem::take(&mut self.mapped) || is_longer;
        if mapped && !self.shared.power_is_off.load(Ordering::Acquire) {
            state.set_len(self.position);
        }
    }
}

impl Drop for MemWritableFile {
    fn drop(&mut self) {
        self.give_up();
    }
}

struct MemRandomAccessFile {
    shared: Arc<Shared>,
    inode: Arc<Inode>,
    path: PathBuf,
}

impl RandomAccessFile for MemRandomAccessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.shared.check_power(&self.path)?;
        // An offset that memory cannot have is beyond the end.
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let read = self.inode.state.read().read_at(offset, buf);
        perf::add(PerfCounter::BytesRead, read as u64);
        Ok(read)
    }

    fn size(&self) -> Result<u64> {
        self.shared.check_power(&self.path)?;
        Ok(self.inode.state.read().len() as u64)
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests;
