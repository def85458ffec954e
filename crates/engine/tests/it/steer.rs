//! Ways to hold a database still at a chosen place.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use orogen_base::{Error, Result};
use orogen_engine::events::{CompactionInfo, EventListener, FlushInfo};
use orogen_engine::{CollectBlobGarbageOptions, Db, WriteBatch, WriteOptions};
use orogen_env::fs::{Access, FileLock, Metadata, RandomAccessFile, WritableFile};
use orogen_env::{Clock, FileSystem, MemFileSystem, SystemClock};
use parking_lot::{Condvar, Mutex};

/// Longer than anything in these tests takes; only a test that fails waits so long.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Closed: whoever passes waits. Tells how many have come.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn pass(&self) {
        let mut state = self.state.lock();
        state.1 += 1;
        self.changed.notify_all();
        while !state.0 {
            self.changed.wait(&mut state);
        }
    }

    pub(crate) fn open(&self) {
        self.state.lock().0 = true;
        self.changed.notify_all();
    }

    /// Waits until `n` have come to the gate.
    pub(crate) fn wait_for(&self, n: usize) {
        let mut state = self.state.lock();
        while state.1 < n {
            let late = self.changed.wait_for(&mut state, LONG).timed_out();
            assert!(!late, "nobody comes to the gate");
        }
    }
}

/// Runs `body` on a thread; its result comes out of the channel.
pub(crate) fn on_thread<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> Receiver<T> {
    let (sender, receiver) = mpsc::channel();
    // Not joined: one that hangs must not keep the test from failing.
    let thread = std::thread::Builder::new().spawn(move || {
        let _ = sender.send(body());
    });
    thread.expect("the system has a thread");
    receiver
}

/// What a thread of [`on_thread`] ends with; fails if it hangs.
#[track_caller]
pub(crate) fn ends<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(LONG).expect("the thread ends")
}

/// Waits until somebody else's close has begun.
pub(crate) fn until_closing(db: &Db) {
    let nothing = || db.write_opt(&WriteOptions::default(), &mut WriteBatch::new());
    until(|| nothing().is_err());
}

/// Waits until somebody else has disabled compactions by hand.
pub(crate) fn until_disabled(db: &Db) {
    let collection = CollectBlobGarbageOptions {
        discardable_ratio: 1.0,
        ..CollectBlobGarbageOptions::default()
    };
    let family = db.default_column_family();
    until(|| db.collect_blob_garbage(&collection, &family).is_err());
}

/// Waits until `condition` holds; fails if it never does.
#[track_caller]
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        SystemClock.sleep(Duration::from_millis(1));
    }
    panic!("what was waited for does not happen");
}

/// Gives other threads far more time than they need to fall asleep.
pub(crate) fn settle() {
    SystemClock.sleep(Duration::from_millis(20));
}

type OnFlush = Box<dyn Fn(&FlushInfo) + Send + Sync>;
type OnCompaction = Box<dyn Fn(&CompactionInfo) + Send + Sync>;

/// A listener made of closures.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) flush_begin: Option<OnFlush>,
    pub(crate) flush_completed: Option<OnFlush>,
    pub(crate) compaction_begin: Option<OnCompaction>,
    pub(crate) compaction_completed: Option<OnCompaction>,
}

impl EventListener for Told {
    fn on_flush_begin(&self, info: &FlushInfo) {
        if let Some(tell) = &self.flush_begin {
            tell(info);
        }
    }

    fn on_flush_completed(&self, info: &FlushInfo) {
        if let Some(tell) = &self.flush_completed {
            tell(info);
        }
    }

    fn on_compaction_begin(&self, info: &CompactionInfo) {
        if let Some(tell) = &self.compaction_begin {
            tell(info);
        }
    }

    fn on_compaction_completed(&self, info: &CompactionInfo) {
        if let Some(tell) = &self.compaction_completed {
            tell(info);
        }
    }
}

/// A listener that holds the flushes of a family at a gate.
pub(crate) fn hold_flushes_of(family: &'static str, gate: &Arc<Gate>) -> Arc<Told> {
    let gate = gate.clone();
    Arc::new(Told {
        flush_begin: Some(Box::new(move |info| {
            if info.column_family == family {
                gate.pass();
            }
        })),
        ..Told::default()
    })
}

/// What a [`HookFileSystem`] is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Append,
    Sync,
    Lock,
    PunchHole,
    Link,
    Remove,
}

type Hook = Arc<dyn Fn(Op, &Path) + Send + Sync>;
type Opened = Arc<dyn Fn(Arc<dyn RandomAccessFile>) -> Arc<dyn RandomAccessFile> + Send + Sync>;

type Shown = Arc<dyn Fn(Metadata) -> Metadata + Send + Sync>;
type Creating = Arc<dyn Fn(&Path) -> Result<()> + Send + Sync>;
type Links = Arc<dyn Fn(&Path) -> bool + Send + Sync>;

/// A file system in memory that calls a closure before it works.
#[derive(Clone)]
pub(crate) struct HookFileSystem {
    pub(crate) below: MemFileSystem,
    hook: Hook,
    opened: Opened,
    shown: Shown,
    links: Links,
    creating: Creating,
}

impl HookFileSystem {
    pub(crate) fn new(
        below: &MemFileSystem,
        hook: impl Fn(Op, &Path) + Send + Sync + 'static,
    ) -> Self {
        Self {
            below: below.clone(),
            hook: Arc::new(hook),
            opened: Arc::new(|file| file),
            shown: Arc::new(|metadata| metadata),
            links: Arc::new(|_| true),
            creating: Arc::new(|_| Ok(())),
        }
    }

    /// Files are read through what `opened` makes of them.
    pub(crate) fn read_through(
        below: &MemFileSystem,
        opened: impl Fn(Arc<dyn RandomAccessFile>) -> Arc<dyn RandomAccessFile> + Send + Sync + 'static,
    ) -> Self {
        Self {
            opened: Arc::new(opened),
            ..Self::new(below, |_, _| {})
        }
    }

    /// What is told of files is what `shown` makes of it.
    pub(crate) fn showing(
        self,
        shown: impl Fn(Metadata) -> Metadata + Send + Sync + 'static,
    ) -> Self {
        Self {
            shown: Arc::new(shown),
            ..self
        }
    }

    /// Gives second names only where `links` says so, as where a file has too many.
    pub(crate) fn linking(self, links: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        Self {
            links: Arc::new(links),
            ..self
        }
    }

    /// Files are made only where `creating` lets them.
    pub(crate) fn creating(
        self,
        creating: impl Fn(&Path) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            creating: Arc::new(creating),
            ..self
        }
    }

    fn wrap(&self, file: Box<dyn WritableFile>, path: &Path) -> Box<dyn WritableFile> {
        Box::new(HookFile {
            file,
            path: path.to_owned(),
            hook: self.hook.clone(),
        })
    }
}

struct HookFile {
    file: Box<dyn WritableFile>,
    path: PathBuf,
    hook: Hook,
}

impl WritableFile for HookFile {
    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        (self.hook)(Op::Append, &self.path);
        self.file.append(bytes)
    }

    fn sync(&mut self) -> Result<()> {
        (self.hook)(Op::Sync, &self.path);
        self.file.sync()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn seal(&mut self) {
        self.file.seal();
    }
}

impl FileSystem for HookFileSystem {
    fn create(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        (self.creating)(path)?;
        Ok(self.wrap(self.below.create(path)?, path))
    }
    fn open_append(&self, path: &Path) -> Result<Box<dyn WritableFile>> {
        Ok(self.wrap(self.below.open_append(path)?, path))
    }
    fn reuse(&self, old: &Path, new: &Path) -> Result<Box<dyn WritableFile>> {
        Ok(self.wrap(self.below.reuse(old, new)?, new))
    }
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn RandomAccessFile>> {
        Ok((self.opened)(self.below.open(path, access)?))
    }
    fn truncate(&self, path: &Path, size: u64) -> Result<()> {
        self.below.truncate(path, size)
    }
    fn punch_hole(&self, path: &Path, offset: u64, len: u64) -> Result<()> {
        (self.hook)(Op::PunchHole, path);
        self.below.punch_hole(path, offset, len)
    }
    fn metadata(&self, path: &Path) -> Result<Metadata> {
        Ok((self.shown)(self.below.metadata(path)?))
    }
    fn list(&self, dir: &Path) -> Result<Vec<String>> {
        self.below.list(dir)
    }
    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        self.below.create_dir_all(dir)
    }
    fn remove_file(&self, path: &Path) -> Result<()> {
        (self.hook)(Op::Remove, path);
        self.below.remove_file(path)
    }
    fn remove_dir(&self, dir: &Path) -> Result<()> {
        self.below.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.below.rename(from, to)
    }
    fn hard_link(&self, from: &Path, to: &Path) -> Result<()> {
        (self.hook)(Op::Link, to);
        if !(self.links)(to) {
            return Err(Error::not_supported("no more links"));
        }
        self.below.hard_link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.below.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> Result<Box<dyn FileLock>> {
        (self.hook)(Op::Lock, path);
        self.below.lock(path)
    }
    fn free_space(&self, dir: &Path) -> Result<u64> {
        self.below.free_space(dir)
    }
}
