//! A file system that fails on purpose.
//!
//! It stands before another one, counts the calls by kind, and makes those fail that a test
//! asked for: the n-th sync, every write to the MANIFEST, the n-th call of any kind for
//! n = 1, 2, ... until a whole run meets no fault.
//!
//! 1. Every call of the traits that gives a `Result` is counted and can fail; `size` of a
//!    writable file and hints to a reader cannot, and are not counted.
//! 2. A call that fails does nothing, unless the fault says otherwise: [`Fault::short`] lets
//!    some bytes of an append through, [`Fault::after_effect`] lets the call happen and then
//!    reports that it failed.
//! 3. The first fault that is due decides; each call that a fault looks at counts for it, also
//!    where an earlier one decided.
//! 4. Before a [`MemFileSystem`] ([`FaultFileSystem::over_memory`]) a failed sync also drops
//!    what it should have saved, as the kernel does: a second sync that succeeds does not
//!    bring it back. So it is with the names that the sync of a directory should have saved where that is asked for
//!    ([`Faults::lose_names`]), but for want of space: what found none is not begun. Else the next sync saves them, as a file
//!    system with a journal takes no more changes after such a failure.
//! 5. An injected error has the kind and cause that the operating system's would have, so
//!    `ENOSPC` gives `NoSpace`; `Faults::injected` tells how many there were.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use orogen_base::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use crate::ahead::Ahead;
use crate::clock::Clock;
use crate::fs::{
    Access, FileLock, FileSystem, LengthHint, Metadata, RandomAccessFile, WritableFile,
};
use crate::mem::{MemFileSystem, UnsyncedBytes};

/// The operating system's error numbers, for [`Fault::new`].
pub use rustix::io::Errno;

/// A kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OpKind {
    /// [`FileSystem::create`].
    Create,
    /// [`FileSystem::open_append`].
    OpenAppend,
    /// [`FileSystem::reuse`].
    Reuse,
    /// [`FileSystem::open`].
    Open,
    /// [`WritableFile::append`].
    Append,
    /// [`WritableFile::sync`].
    Sync,
    /// [`WritableFile::start_writeback`].
    StartWriteback,
    /// [`WritableFile::preallocate`].
    Preallocate,
    /// [`RandomAccessFile::read_at`].
    Read,
    /// [`FileSystem::truncate`].
    Truncate,
    /// [`FileSystem::punch_hole`].
    PunchHole,
    /// [`FileSystem::metadata`] and [`RandomAccessFile::size`].
    Metadata,
    /// [`FileSystem::list`].
    List,
    /// [`FileSystem::create_dir_all`].
    CreateDir,
    /// [`FileSystem::remove_file`] and [`FileSystem::remove_dir`].
    Remove,
    /// [`FileSystem::rename`].
    Rename,
    /// [`FileSystem::hard_link`].
    Link,
    /// [`FileSystem::sync_dir`].
    SyncDir,
    /// [`FileSystem::lock`].
    Lock,
    /// [`FileSystem::free_space`].
    FreeSpace,
}

impl OpKind {
    /// All kinds.
    pub const ALL: [Self; 20] = [
        Self::Create,
        Self::OpenAppend,
        Self::Reuse,
        Self::Open,
        Self::Append,
        Self::Sync,
        Self::StartWriteback,
        Self::Preallocate,
        Self::Read,
        Self::Truncate,
        Self::PunchHole,
        Self::Metadata,
        Self::List,
        Self::CreateDir,
        Self::Remove,
        Self::Rename,
        Self::Link,
        Self::SyncDir,
        Self::Lock,
        Self::FreeSpace,
    ];

    /// The kinds that change what is on the disk.
    pub const CHANGING: [Self; 12] = [
        Self::Create,
        Self::Reuse,
        Self::Append,
        Self::Sync,
        Self::Truncate,
        Self::PunchHole,
        Self::CreateDir,
        Self::Remove,
        Self::Rename,
        Self::Link,
        Self::SyncDir,
        Self::Lock,
    ];

    fn bit(self) -> u32 {
        1 << self as u8
    }
}

/// How long a call takes, by whose time.
#[derive(Clone)]
struct Slow(Arc<dyn Clock>, Duration);

impl fmt::Debug for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.1.fmt(f)
    }
}

/// Which calls fail, and how. By default the next call of any kind, once.
#[derive(Clone, Debug)]
pub struct Fault {
    errno: Errno,
    /// A bit for each kind.
    kinds: u32,
    path_part: Option<String>,
    /// Calls to let pass.
    pass: u64,
    forever: bool,
    short: Option<usize>,
    after_effect: bool,
    flip: Option<u64>,
    free: Option<u64>,
    slow: Option<Slow>,
}

impl Fault {
    /// A fault that reports `errno`.
    #[must_use]
    pub fn new(errno: Errno) -> Self {
        Self {
            errno,
            kinds: u32::MAX,
            path_part: None,
            pass: 0,
            forever: false,
            short: None,
            after_effect: false,
            flip: None,
            free: None,
            slow: None,
        }
    }

    /// `EIO`: the device failed.
    #[must_use]
    pub fn io() -> Self {
        Self::new(Errno::IO)
    }

    /// `ENOSPC`: the disk is full.
    #[must_use]
    pub fn no_space() -> Self {
        Self::new(Errno::NOSPC)
    }

    /// Only calls of these kinds.
    #[must_use]
    pub fn on(mut self, kinds: &[OpKind]) -> Self {
        self.kinds = kinds.iter().fold(0, |bits, kind| bits | kind.bit());
        self
    }

    /// Only calls whose path (the old one of two) has `part` in its text.
    #[must_use]
    pub fn path_with(mut self, part: impl Into<String>) -> Self {
        self.path_part = Some(part.into());
        self
    }

    /// The n-th such call from now, counted from 1.
    #[must_use]
    pub fn nth(mut self, n: u64) -> Self {
        self.pass = n.saturating_sub(1);
        self
    }

    /// And every such call after it, until the fault is cleared.
    #[must_use]
    pub fn forever(mut self) -> Self {
        self.forever = true;
        self
    }

    /// An append writes that many of its bytes (all but the last at most) before it fails.
    #[must_use]
    pub fn short(mut self, bytes: usize) -> Self {
        self.short = Some(bytes);
        self
    }

    /// An append succeeds and writes its bytes with bit `n` (modulo their number) turned over: what
    /// memory or a bus does to bytes whose checksum was made before.
    #[must_use]
    pub fn flip(mut self, bit: u64) -> Self {
        self.flip = Some(bit);
        self
    }

    /// A question for free space is answered with so many bytes, and does not fail.
    #[must_use]
    pub fn free(mut self, bytes: u64) -> Self {
        self.free = Some(bytes);
        self
    }

    /// The call takes so long by a clock, which sleeps, and then happens and does not fail: a disk that stalls.
    #[must_use]
    pub fn slow(mut self, clock: Arc<dyn Clock>, time: Duration) -> Self {
        self.slow = Some(Slow(clock, time));
        self
    }

    /// The call happens, and its success is reported as failure: what was returned is dropped.
    #[must_use]
    pub fn after_effect(mut self) -> Self {
        self.after_effect = true;
        self
    }
}

/// Sets faults and reads counters; a clone is another handle of the same.
#[derive(Clone, Default)]
pub struct Faults(Arc<Shared>);

#[derive(Default)]
struct Shared {
    counts: [AtomicU64; OpKind::ALL.len()],
    injected: AtomicU64,
    /// False only if `faults` is empty: the common call looks no further.
    any: AtomicBool,
    /// A leaf lock: no call goes to the file system below under it.
    faults: Mutex<Vec<Fault>>,
    memory: Option<MemFileSystem>,
    /// A failed sync of a directory loses names.
    loses_names: AtomicBool,
}

impl Faults {
    /// Adds a fault; it counts calls from now on.
    pub fn add(&self, fault: Fault) {
        let mut faults = self.0.faults.lock();
        faults.push(fault);
        self.0.any.store(true, Ordering::Release);
    }

    /// From now on a sync of a directory that fails, and not for want of space, loses the names that it should have saved.
    pub fn lose_names(&self) {
        self.0.loses_names.store(true, Ordering::Relaxed);
    }

    /// Takes all faults away: the device is whole again.
    pub fn clear(&self) {
        let mut faults = self.0.faults.lock();
        faults.clear();
        self.0.any.store(false, Ordering::Release);
    }

    /// Calls of a kind so far, failed ones included.
    #[must_use]
    pub fn count(&self, kind: OpKind) -> u64 {
        self.0.counts[kind as usize].load(Ordering::Relaxed)
    }

    /// Calls of all kinds so far.
    #[must_use]
    pub fn total(&self) -> u64 {
        OpKind::ALL.iter().map(|kind| self.count(*kind)).sum()
    }

    /// Calls that were made to fail so far.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.0.injected.load(Ordering::Relaxed)
    }

    /// Counts a call; the fault it is to meet.
    fn meet(&self, kind: OpKind, path: &Path) -> Option<Fault> {
        self.0.counts[kind as usize].fetch_add(1, Ordering::Relaxed);
        if !self.0.any.load(Ordering::Acquire) {
            return None;
        }
        let mut met = None;
        let mut faults = self.0.faults.lock();
        faults.retain_mut(|fault| {
            let concerned = fault.kinds & kind.bit() != 0
                && fault
                    .path_part
                    .as_ref()
                    .is_none_or(|p| path.to_string_lossy().contains(p));
            if !concerned {
                return true;
            }
            if fault.pass > 0 {
                fault.pass -= 1;
                return true;
            }
            if met.is_some() {
                // It stays due and meets a later call.
                return true;
            }
            met = Some(fault.clone());
            fault.forever
        });
        self.0.any.store(!faults.is_empty(), Ordering::Release);
        drop(faults);
        if let Some(Slow(clock, time)) = met.as_ref().and_then(|fault| fault.slow.as_ref()) {
            clock.sleep(*time);
            return None;
        }
        if met.is_some() {
            self.0.injected.fetch_add(1, Ordering::Relaxed);
        }
        met
    }

    fn call<T>(&self, kind: OpKind, path: &Path, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(fault) = self.meet(kind, path) else {
            return call();
        };
        if fault.after_effect {
            // Where the call itself fails, that is what is reported.
            drop(call()?);
        }
        Err(injected(&fault, kind, path))
    }
}

#[cold]
fn injected(fault: &Fault, kind: OpKind, path: &Path) -> Error {
    Error::io("fault on purpose", fault.errno.into())
        .with("file", path.display())
        .with("call", format_args!("{kind:?}"))
}

/// A file system that fails on purpose; a clone is another handle of the same.
#[derive(Clone)]
pub struct FaultFileSystem {
    below: Arc<dyn FileSystem>,
    faults: Faults,
}

impl FaultFileSystem {
    /// Stands before `below`; without faults it only counts.
    #[must_use]
    pub fn new(below: Arc<dyn FileSystem>) -> Self {
        Self {
            below,
            faults: Faults::default(),
        }
    }

    /// Stands before a file system in memory; a sync that fails drops the unsynced bytes.
    #[must_use]
    pub fn over_memory(below: MemFileSystem) -> Self {
        let shared = Shared {
            memory: Some(below.clone()),
            ..Shared::default()
        };
        Self {
            below: Arc::new(below),
            faults: Faults(Arc::new(shared)),
        }
    }

    /// The handle by which faults are set, also while files are open.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    fn writable(&self, file: Box<dyn WritableFile>, path: &Path) -> Box<dyn WritableFile> {
        let memory = self.faults.0.memory.as_ref();
        Box::new(FaultWritableFile {
            file,
            path: path.to_owned(),
            unsynced: memory.and_then(|memory| memory.unsynced_bytes(path).ok()),
            faults: self.faults.clone(),
        })
    }
}

impl FileSystem for FaultFileSystem {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let file = self
            .faults
            .call(OpKind::Create, path, || self.below.create(path))?;
        Ok(self.writable(file, path))
    }

    fn create_mapped(
        &self,
        path: &Path,
        hint: LengthHint,
        ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let file = self.faults.call(OpKind::Create, path, || {
            self.below.create_mapped(path, hint, ahead)
        })?;
        Ok(self.writable(file, path))
    }

    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        let file = self
            .faults
            .call(OpKind::OpenAppend, path, || self.below.open_append(path))?;
        Ok(self.writable(file, path))
    }

    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        let file = self
            .faults
            .call(OpKind::Reuse, old, || self.below.reuse(old, new))?;
        Ok(self.writable(file, new))
    }

    fn reuse_mapped(
        &self,
        old: &Path,
        new: &Path,
        hint: LengthHint,
        ahead: Option<&Arc<Ahead>>,
    ) -> Result<Box<dyn WritableFile>> {
        let file = self.faults.call(OpKind::Reuse, old, || {
            self.below.reuse_mapped(old, new, hint, ahead)
        })?;
        Ok(self.writable(file, new))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        let file = self
            .faults
            .call(OpKind::Open, path, || self.below.open(path, access))?;
        Ok(Arc::new(FaultRandomAccessFile {
            file,
            faults: self.faults.clone(),
        }))
    }

    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        self.faults
            .call(OpKind::Truncate, path, || self.below.truncate(path, size))
    }

    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        self.faults.call(OpKind::PunchHole, path, || {
            self.below.punch_hole(path, offset, len)
        })
    }

    fn write_zeros_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        self.faults.call(OpKind::Append, path, || {
            self.below.write_zeros_at(path, offset, len)
        })
    }

    fn start_writeback_at(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        self.faults.call(OpKind::StartWriteback, path, || {
            self.below.start_writeback_at(path, offset, len)
        })
    }

    fn metadata(&self, path: &Path) -> Result<Metadata> {
        self.faults
            .call(OpKind::Metadata, path, || self.below.metadata(path))
    }

    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.faults.call(OpKind::List, dir, || self.below.list(dir))
    }

    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.faults
            .call(OpKind::CreateDir, dir, || self.below.create_dir_all(dir))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        self.faults
            .call(OpKind::Remove, path, || self.below.remove_file(path))
    }

    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.faults
            .call(OpKind::Remove, dir, || self.below.remove_dir(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.faults
            .call(OpKind::Rename, from, || self.below.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        self.faults
            .call(OpKind::Link, from, || self.below.hard_link(from, to))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let Some(fault) = self.faults.meet(OpKind::SyncDir, dir) else {
            return self.below.sync_dir(dir);
        };
        if fault.after_effect {
            self.below.sync_dir(dir)?;
        } else if let Some(memory) = &self.faults.0.memory
            && self.faults.0.loses_names.load(Ordering::Relaxed)
            && injected(&fault, OpKind::SyncDir, dir).kind() != ErrorKind::NoSpace
        {
            memory.lose_names(dir)?;
        }
        Err(injected(&fault, OpKind::SyncDir, dir))
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.faults
            .call(OpKind::Lock, path, || self.below.lock(path))
    }

    fn lock_by_flock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        self.faults
            .call(OpKind::Lock, path, || self.below.lock_by_flock(path))
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        let Some(fault) = self.faults.meet(OpKind::FreeSpace, dir) else {
            return self.below.free_space(dir);
        };
        fault
            .free
            .ok_or_else(|| injected(&fault, OpKind::FreeSpace, dir))
    }
}

struct FaultWritableFile {
    file: Box<dyn WritableFile>,
    /// As it was opened; a rename since is not followed.
    path: PathBuf,
    /// Of a file in memory.
    unsynced: Option<UnsyncedBytes>,
    faults: Faults,
}

impl WritableFile for FaultWritableFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(fault) = self.faults.meet(OpKind::Append, &self.path) else {
            return self.file.append(bytes);
        };
        if let Some(bit) = fault.flip {
            let mut bytes = bytes.to_vec();
            if !bytes.is_empty() {
                let bit = bit % (bytes.len() as u64 * 8);
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
            return self.file.append(&bytes);
        }
        let passed = match fault.short {
            Some(n) => n.min(bytes.len().saturating_sub(1)),
            None if fault.after_effect => bytes.len(),
            None => 0,
        };
        if passed > 0 {
            self.file.append(&bytes[..passed])?;
        }
        Err(injected(&fault, OpKind::Append, &self.path))
    }

    fn sync(&mut self) -> Result<()> {
        let Some(fault) = self.faults.meet(OpKind::Sync, &self.path) else {
            return self.file.sync();
        };
        if fault.after_effect {
            self.file.sync()?;
        } else if let Some(unsynced) = &self.unsynced {
            unsynced.lose();
        }
        Err(injected(&fault, OpKind::Sync, &self.path))
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn seal(&mut self) {
        self.file.seal();
    }

    fn start_writeback(&mut self) -> Result<()> {
        let file = &mut self.file;
        self.faults.call(OpKind::StartWriteback, &self.path, || {
            file.start_writeback()
        })
    }

    fn preallocate(&mut self, bytes: u64) -> Result<()> {
        let file = &mut self.file;
        self.faults
            .call(OpKind::Preallocate, &self.path, || file.preallocate(bytes))
    }

    fn lengthen(&mut self, bytes: u64) -> Result<()> {
        let file = &mut self.file;
        self.faults
            .call(OpKind::Preallocate, &self.path, || file.lengthen(bytes))
    }

    fn write_zeros(&mut self, bytes: u64) -> Result<()> {
        let file = &mut self.file;
        self.faults
            .call(OpKind::Append, &self.path, || file.write_zeros(bytes))
    }

    fn give_up_old_bytes(&mut self) {
        self.file.give_up_old_bytes();
    }
}

struct FaultRandomAccessFile {
    file: Arc<dyn RandomAccessFile>,
    faults: Faults,
}

impl RandomAccessFile for FaultRandomAccessFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.faults.call(OpKind::Read, self.file.path(), || {
            self.file.read_at(offset, buf)
        })
    }

    fn size(&self) -> Result<u64> {
        self.faults
            .call(OpKind::Metadata, self.file.path(), || self.file.size())
    }

    fn advise(&self, access: Access) {
        self.file.advise(access);
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.file.prefetch(offset, len);
    }

    fn path(&self) -> &Path {
        self.file.path()
    }
}

#[cfg(test)]
mod tests;
