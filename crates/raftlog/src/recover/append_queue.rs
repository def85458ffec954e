//! The append queue, by several threads, and the digests of its files.
//!
//! ```text
//! some files at a time:   files -> a digest of each, read or made of its records    a thread for each file
//!                         digests -> groups, in the order of the files              a thread for each shard
//! ```
//! Groups share nothing, so this gives what one thread would that reads one record after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use orogen_base::{Error, ErrorKind, Result};
use orogen_env::ahead::Ahead;
use orogen_env::{Access, Clock as _, FileSystem, RandomAccessFile, SystemClock, threads};

use super::{Ending, Found, Scan, Window, damage, list_to_open, newest_of, read_file};
use crate::digest::{self, Builder, Digest};
use crate::dirs::{Dirs, Place};
use crate::files::{LogFile, Table};
use crate::format::{FILE_HEADER_LEN_MAX, FileHeader, drop_marks};
use crate::memtable::{Memtables, SHARDS};
use crate::names::{FileId, Name, Queue};
use crate::options::Options;

/// Files whose digests are in memory at once, for each thread.
const FILES_PER_THREAD: usize = 2;

/// Has `threads` threads do `count` things; the error of the first that failed.
fn each<T: Send>(
    threads: usize,
    count: usize,
    task: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return done;
            }
            done.push((at, task(at)));
        }
    };
    let workers = vec![&work; threads.clamp(1, count.max(1))];
    let mut done: Vec<_> = threads::run_all("orogen-recover", workers)
        .into_iter()
        .flatten()
        .collect();
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// A file with all that it does.
struct Loaded {
    file: Arc<LogFile>,
    digest: Digest,
    is_read: bool,
}

struct Reader<'a> {
    fs: &'a dyn FileSystem,
    dirs: &'a Dirs,
    options: &'a Options,
}

fn has_header(file: &(dyn RandomAccessFile + 'static)) -> Result<bool> {
    let mut header = Vec::new();
    file.append_at(0, FILE_HEADER_LEN_MAX, &mut header)?;
    Ok(damage(FileHeader::decode(&header))?.is_ok())
}

impl Reader<'_> {
    fn load(&self, place: &Place, is_newest: bool) -> Result<Loaded> {
        let Self { fs, dirs, options } = *self;
        let id = place.id;
        if options.uses_digests() {
            let reader = fs.open(&place.path(), Access::Random)?;
            // The newest is written on, for which its header is needed.
            if (!is_newest || has_header(&*reader)?)
                && let Some(digest) = Digest::read(fs, &place.dir, id, &*reader)?
            {
                let version = digest.version;
                let file = Arc::new(LogFile {
                    id,
                    version,
                    reader,
                });
                return Ok(Loaded {
                    file,
                    digest,
                    is_read: false,
                });
            }
        }
        let mut builder = Builder::default();
        let (file, end) = read_file(fs, dirs, place, is_newest, options, |mut items, block| {
            drop_marks(&mut items);
            builder.add(items, block)
        })?;
        let digest = builder.finish(&file, end)?;
        if options.uses_digests() && !is_newest {
            // Without it the next open reads the file again.
            let _ = digest.write(fs, &place.dir, id);
        }
        Ok(Loaded {
            file: Arc::new(file),
            digest,
            is_read: true,
        })
    }
}

/// Reads the append queue into `memtables`.
///
/// # Errors
/// As [`super::read_file`].
pub(crate) fn read_append_queue(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    options: &Options,
    table: &Table,
    memtables: &Memtables,
) -> Result<Found> {
    let places = list_to_open(fs, dirs, Queue::Append)?;
    let newest = newest_of(fs, &places)?;
    let reader = Reader { fs, dirs, options };
    let threads = options.recovery_threads;
    let mut found = Found::default();
    let window = threads.saturating_mul(FILES_PER_THREAD);
    for (from, places) in places.chunks(window).enumerate() {
        let loaded = each(threads, places.len(), |at| {
            reader.load(&places[at], from * window + at >= newest)
        })?;
        each(threads, SHARDS, |shard| {
            loaded.iter().try_for_each(|loaded| {
                let id = loaded.file.id;
                let applied = loaded.digest.apply(shard, id, memtables);
                applied.map_err(|e| told_of(e, loaded))
            })
        })?;
        for Loaded {
            file,
            digest,
            is_read,
        } in loaded
        {
            found.files_read += u64::from(is_read);
            found.is_newest_unread = !is_read && digest.len > digest::TAIL_LEN;
            table.push(Arc::clone(&file));
            found.newest = Some((file, digest.len));
        }
    }
    if let Some((file, _)) = &found.newest {
        if !found.is_newest_unread {
            // What is appended to it from here on is not in its digest.
            digest::remove(fs, file.dir(), file.id)?;
        }
        // raft-engine does not sync the name of the first file that it makes.
        dirs.sync(fs)?;
    }
    remove_strays(fs, dirs, table)?;
    Ok(found)
}

#[cold]
fn told_of(e: Error, loaded: &Loaded) -> Error {
    if loaded.is_read {
        return e.with("file", loaded.file.reader.path().display());
    }
    e.with(
        "file",
        digest::path(loaded.file.dir(), loaded.file.id).display(),
    )
    .with("help", "delete it: the log has all that it tells")
}

/// Removes digests without files beside them, and copies that a process which died has not ended.
fn remove_strays(fs: &dyn FileSystem, dirs: &Dirs, table: &Table) -> Result<()> {
    for (name, dir) in dirs.names(fs)? {
        match name {
            Name::Digest(seq) => {
                let id = FileId::new(Queue::Append, seq);
                if table.find(id).is_none_or(|file| file.dir() != &**dir) {
                    digest::remove(fs, dir, id)?;
                }
            }
            Name::Temporary(seq) => {
                let id = FileId::new(Queue::Append, seq);
                fs.remove_file(&dir.join(id.temporary_name()))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The digest of a file that is full or closed; none if its records do not end at `len`. `each` is called for each record, and its error
/// ends it.
fn digest_of(
    file: &LogFile,
    len: u64,
    mut each: impl FnMut() -> Result<()>,
) -> Result<Option<Digest>> {
    let mut window = Window::new(Arc::clone(&file.reader))?;
    let header = FileHeader::decode(window.get(0, FILE_HEADER_LEN_MAX)?)?;
    let mut scan = Scan {
        file,
        window,
        alignment: header.alignment,
        verify: false,
        flipped: None,
    };
    let mut builder = Builder::default();
    let (end, ending) = scan.run(|mut items, block| {
        each()?;
        drop_marks(&mut items);
        builder.add(items, block)
    })?;
    match ending {
        Ending::Nothing if end == len => builder.finish(file, len).map(Some),
        _ => Ok(None),
    }
}

/// A thread that works for so long at a time, in microseconds, sleeps as long then. It gives way to whoever wakes, but not to one
/// that only lets others run, as who waits for other writers does: on Linux that may cost it milliseconds else.
const WORKS_MICROS: u64 = 100;

/// It looks so often whether it is to go on or to end: what it does may have taken seconds, where it got no processor.
const SLEEPS_MICROS_MAX: u64 = 2000;

/// Behind so many files that wait it does not sleep: each is one more to read whole after a crash.
const WAITING_MAX: usize = 4;

/// Works half of the time, unless it is behind.
struct Pace<'q> {
    queue: &'q ToDigest,
    since: u64,
}

impl Pace<'_> {
    /// # Errors
    /// `Closed` once the log is being closed: who closes it makes the digest.
    fn step(&mut self) -> Result<()> {
        // Without the lock: who waits for one that an idle thread holds waits until all others sleep.
        let is_ending = || self.queue.is_ending.load(Ordering::Relaxed);
        if is_ending() {
            return Err(Error::new(ErrorKind::Closed, "the log is being closed"));
        }
        let took = SystemClock.now_micros().saturating_sub(self.since);
        if took < WORKS_MICROS {
            return Ok(());
        }
        let is_behind = || self.queue.count.load(Ordering::Relaxed) > WAITING_MAX;
        let mut left = took;
        while left > 0 && !is_behind() && !is_ending() {
            let part = left.min(SLEEPS_MICROS_MAX);
            SystemClock.sleep(Duration::from_micros(part));
            left -= part;
        }
        self.since = SystemClock.now_micros();
        Ok(())
    }
}

/// Makes digests of full files in the background, where others leave time: nobody waits for one, and a file that is purged
/// before its turn comes needs none.
///
/// Its thread may stand still as long as others have something to do. So who closes the log does not wait for a digest that it makes, but
/// makes it, too; only for one that is just being written, which is short.
pub(crate) struct Digester {
    queue: Arc<ToDigest>,
    ahead: Ahead,
}

/// Files without digests.
struct ToDigest {
    fs: Arc<dyn FileSystem>,
    table: Arc<Table>,
    waiting: Mutex<Waiting>,
    /// How many wait.
    count: AtomicUsize,
    /// The log is being closed: the thread leaves all to who does that.
    is_ending: AtomicBool,
}

/// A file, and where its records end. Not the file itself: one that somebody holds is not written over.
type Sealed = (FileId, u64);

/// Leaf lock.
#[derive(Default)]
struct Waiting {
    files: VecDeque<Sealed>,
    /// The thread reads this one, and may write its digest as long as it stands here.
    in_work: Option<Sealed>,
}

impl Digester {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, table: Arc<Table>) -> Self {
        Self {
            queue: Arc::new(ToDigest {
                fs,
                table,
                waiting: Mutex::default(),
                count: AtomicUsize::new(0),
                is_ending: AtomicBool::new(false),
            }),
            ahead: Ahead::stepping_back(),
        }
    }

    /// Has the digest of a file whose records end at `len` made soon.
    pub(crate) fn ask(&self, file: FileId, len: u64) {
        {
            let mut waiting = self.queue.waiting.lock();
            waiting.files.push_back((file, len));
            self.queue
                .count
                .store(waiting.files.len(), Ordering::Relaxed);
        }
        let queue = Arc::clone(&self.queue);
        self.ahead.ask(move || queue.make_beside());
    }

    /// Makes those that wait, and the one that the thread makes, which gives it up.
    pub(crate) fn finish(&self) {
        let queue = &*self.queue;
        queue.is_ending.store(true, Ordering::Relaxed);
        {
            let mut waiting = queue.waiting.lock();
            let in_work = waiting.in_work.take();
            waiting.files.extend(in_work);
        }
        while let Some((id, len)) = queue.next() {
            queue.make(id, len, || Ok(()), || true);
        }
    }
}

impl ToDigest {
    fn next(&self) -> Option<Sealed> {
        let mut waiting = self.waiting.lock();
        let next = waiting.files.pop_front();
        self.count.store(waiting.files.len(), Ordering::Relaxed);
        next
    }

    /// Makes the next digest, if one waits, on the thread for that.
    fn make_beside(&self) {
        let next = {
            let mut waiting = self.waiting.lock();
            if self.is_ending.load(Ordering::Relaxed) {
                return;
            }
            waiting.in_work = waiting.files.pop_front();
            self.count.store(waiting.files.len(), Ordering::Relaxed);
            waiting.in_work
        };
        let Some((id, len)) = next else {
            return;
        };
        let mut pace = Pace {
            queue: self,
            since: SystemClock.now_micros(),
        };
        // Whoever closes the log waits for the thread from there on.
        let may_write = || self.waiting.lock().in_work.take().is_some();
        self.make(id, len, || pace.step(), may_write);
    }

    /// Makes a digest, and writes it if it then still may. Errors are none of the caller's: the next open reads the file.
    fn make(
        &self,
        id: FileId,
        len: u64,
        each: impl FnMut() -> Result<()>,
        may_write: impl FnOnce() -> bool,
    ) {
        let Some(file) = self.table.find(id) else {
            // It was purged.
            may_write();
            return;
        };
        let digest = digest_of(&file, len, each);
        if !may_write() {
            return;
        }
        if let Ok(Some(digest)) = digest {
            let _ = digest.write(&*self.fs, file.dir(), id);
        }
        if !self.table.has(id) {
            // It was purged meanwhile.
            let _ = digest::remove(&*self.fs, file.dir(), id);
        }
    }
}
