//! The write-ahead logs: the one that is written, and those still needed.
//!
//! A log is needed while a memtable holds entries of it that no table has. Sealing a memtable
//! starts a new log. A closed log whose bytes are not synced yet stays open: the next synced
//! write syncs it first, so that no synced record ever stands behind a hole.
//!
//! A power loss may cut unsynced bytes off the end of a closed log, at a record's border, and
//! keep what is in the next one. So each log but the first of an open begins with a *link*: an
//! empty batch whose log data names the log before and its size ([`Link`]). Replay stops where
//! that log is shorter. RocksDB passes over log data.
//!
//! A write or sync that finds no space breaks its log: behind the last good record there may be
//! a torn one, or a whole one that nobody was promised, or bytes that never reach the disk.
//! [`Logs::mend`] makes that durable which was acknowledged, cuts off the rest, and starts a new
//! log; nothing is appended to a broken one. So a torn record is never followed by another.
//!
//! A log that was written over ends amid records of its former use. It is cut off there when it
//! is closed, so that only the newest log may have something behind its end.
//!
//! The name of a new log is not made durable by the writer that starts it, who would wait for the
//! disk: the flush of what was sealed does it ([`Logs::unnamed`]), a synced write before it
//! returns, or, where neither came, the next start. So of all logs only the newest may lose its
//! name in a power loss, and nothing in it was promised.
//!
//! Lock rank 1 (`writer`): held by the one write leader while it appends; taken before the
//! MANIFEST's lock, never with another log's. `syncing` comes next, held while closed logs are
//! synced: a leader that does not sync never takes it. `closed` and `alive` come last.

use orogen_base::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::coding::{Decoder, put_fixed64};
use orogen_base::metrics::{HistogramKind, Statistics, Ticker};
use orogen_base::sync::Mutex;
use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo, memory};
use orogen_env::{Access, Ahead, Clock, FileSystem, LengthHint};
use orogen_wal::{ReadOutcome, Reader, Writer};

use crate::batch::{BatchOp, BatchReader, WriteBatch};
use crate::directory::Directory;
use crate::filename;

/// The logs of an open database.
pub(crate) struct Logs {
    dir: PathBuf,
    directory: Arc<Directory>,
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    statistics: Arc<Statistics>,
    recycle_max: usize,
    /// Logs that nothing needs are moved to the archive.
    archives: bool,
    /// Logs are written through memory, which this makes ready.
    mapped: Option<Arc<Ahead>>,
    writer: Mutex<LogWriter>,
    /// Held by who syncs closed logs.
    syncing: Mutex<()>,
    /// Closed for writing, not synced, oldest first; without the one that is being synced.
    closed: Mutex<VecDeque<OpenLog>>,
    /// A recovery may read the logs from this one on: what comes behind them is synced after them.
    read_from: AtomicU64,
    alive: Mutex<Alive>,
    total_bytes: AtomicU64,
}

/// What a log says of the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// The log before.
    pub(crate) log: FileNo,
    /// Bytes that were written to it.
    pub(crate) bytes: u64,
}

/// Log data that begins so is a link.
const LINK_MAGIC: &[u8] = b"orogen.log.before\0";

impl Link {
    fn to_record(self, next_seqno: SeqNo) -> Vec<u8> {
        let mut data = LINK_MAGIC.to_vec();
        put_fixed64(&mut data, self.log);
        put_fixed64(&mut data, self.bytes);
        let mut batch = WriteBatch::new();
        batch.put_log_data(&data);
        batch.set_seqno(next_seqno);
        batch.as_bytes().to_vec()
    }

    /// The link that a log's record holds, if it is one.
    pub(crate) fn of(batch: &BatchReader<'_>) -> Option<Self> {
        if batch.count != 0 {
            return None;
        }
        let Some(Ok(BatchOp::LogData(data))) = batch.iter().next() else {
            return None;
        };
        let mut rest = Decoder::new(data.strip_prefix(LINK_MAGIC)?);
        Some(Self {
            log: rest.fixed64("log").ok()?,
            bytes: rest.fixed64("bytes").ok()?,
        })
    }
}

#[derive(Default)]
struct LogWriter {
    current: Option<OpenLog>,
    /// The current log's name may not survive a power loss yet.
    unnamed: bool,
    /// There was no space for a new log.
    start_failed: bool,
}

struct OpenLog {
    number: FileNo,
    writer: Writer,
    /// Where the last acknowledged record ends.
    good: u64,
    dirty: bool,
    /// It was written over: behind its end there may be more.
    recycled: bool,
    broken: Option<Broken>,
    /// Why a sync failed. Another one may succeed without the bytes, so there is none.
    sync_error: Option<Error>,
}

/// What a full disk did to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Broken {
    /// Behind the good records stands what nobody was promised.
    Tail,
    /// A sync failed: the system may show bytes that it will never write.
    Sync,
}

impl OpenLog {
    fn sync(&mut self) -> Result<()> {
        if let Some(e) = &self.sync_error {
            return Err(e.clone());
        }
        self.writer.sync().inspect_err(|e| {
            self.broken = Some(Broken::Sync);
            self.sync_error = Some(e.clone());
        })?;
        self.dirty = false;
        Ok(())
    }
}

#[derive(Default)]
struct Alive {
    /// Number and bytes, oldest first; the last is the current one.
    logs: VecDeque<(FileNo, u64)>,
    /// Bytes of the current log's link.
    link_bytes: u64,
    /// No longer needed, kept to be written over.
    recyclable: Vec<FileNo>,
    /// The first log of this open. Older ones may be in the other format and are not recycled.
    first_own: FileNo,
    /// Somebody copies logs: none is given up.
    holds: usize,
    /// Not needed any more but for readers of updates, with their bytes, oldest first.
    kept: VecDeque<(FileNo, u64)>,
    /// By reader of updates: the oldest log that it may read.
    pins: BTreeMap<u64, FileNo>,
    next_pin: u64,
}

impl Alive {
    fn oldest_pin(&self) -> FileNo {
        self.pins.values().copied().min().unwrap_or(FileNo::MAX)
    }

    fn first_unpinned(&self) -> Option<FileNo> {
        let first = self.kept.front()?.0;
        (first < self.oldest_pin()).then_some(first)
    }
}

impl Logs {
    pub(crate) fn new(
        directory: Arc<Directory>,
        clock: Arc<dyn Clock>,
        statistics: Arc<Statistics>,
        recycle_max: usize,
        archives: bool,
        mapped: Option<Arc<Ahead>>,
    ) -> Self {
        Self {
            dir: directory.path().to_owned(),
            fs: directory.fs().clone(),
            directory,
            clock,
            statistics,
            recycle_max,
            archives,
            mapped,
            writer: Mutex::default(),
            syncing: Mutex::default(),
            closed: Mutex::default(),
            read_from: AtomicU64::new(0),
            alive: Mutex::default(),
            total_bytes: AtomicU64::new(0),
        }
    }

    /// Notes a log of an earlier open that recovery read and memtables still need.
    pub(crate) fn keep(&self, number: FileNo, bytes: u64) {
        self.alive.lock().logs.push_back((number, bytes));
        self.total_bytes.fetch_add(bytes, Relaxed);
    }

    /// Starts log `number`, which may get about `expected` bytes; the one before stays as it is.
    ///
    /// # Errors
    /// `NoSpace` or `Io`; the old log is then still the current one.
    pub(crate) fn start(&self, number: FileNo, next_seqno: SeqNo, expected: u64) -> Result<()> {
        let result = self.try_start(number, next_seqno, expected);
        self.writer.lock().start_failed = result.is_err();
        if result.is_err() {
            // It may hold a torn link. If it cannot be removed either, a recovery passes over it.
            let _ = self.fs.remove_file(&filename::wal_path(&self.dir, number));
        }
        result
    }

    /// A log that follows one of a full memtable most likely becomes as long.
    fn length_hint(&self, expected: u64) -> LengthHint {
        let former = self
            .writer
            .lock()
            .current
            .as_ref()
            .map_or(0, |log| log.good);
        let is_like = former > expected / 2;
        LengthHint {
            expected,
            likely: if is_like { former } else { expected },
        }
    }

    fn try_start(&self, number: FileNo, next_seqno: SeqNo, expected: u64) -> Result<()> {
        // Else this name could be lost, and the next one not.
        self.sync_name()?;
        let path = filename::wal_path(&self.dir, number);
        let former = self.alive.lock().recyclable.pop();
        let recycled = former.is_some();
        let former = former.map(|old| filename::wal_path(&self.dir, old));
        let hint = self.length_hint(expected);
        let file = match (former, &self.mapped) {
            (Some(old), Some(_)) => {
                self.fs
                    .reuse_mapped(&old, &path, hint, self.mapped.as_ref())?
            }
            (Some(old), None) => self.fs.reuse(&old, &path)?,
            (None, Some(_)) => self.fs.create_mapped(&path, hint, self.mapped.as_ref())?,
            (None, None) => self.fs.create(&path)?,
        };
        let mut next = OpenLog {
            number,
            writer: Writer::new(file, number, self.recycle_max > 0),
            good: 0,
            dirty: false,
            recycled,
            broken: None,
            sync_error: None,
        };
        let mut writer = self.writer.lock();
        if let Some(old) = &writer.current {
            let link = Link {
                log: old.number,
                bytes: old.good,
            };
            next.writer.add_record(&link.to_record(next_seqno))?;
            next.good = next.writer.size();
            next.dirty = true;
        }
        let link_bytes = next.good;
        // Only now: had the new log failed, the old one would be appended to as before.
        if let Some(mut old) = writer.current.replace(next) {
            if self.recycle_max > 0 {
                // It may be given to a later log while it is still to be synced here.
                old.writer.seal();
            }
            if old.recycled && old.broken.is_none() {
                // Without it records of its former life stay behind the end, which readers tell by their number.
                let path = filename::wal_path(&self.dir, old.number);
                let _ = self.fs.truncate(&path, old.good);
                old.dirty = true;
            }
            if old.dirty && old.broken.is_none() {
                self.closed.lock().push_back(old);
            }
        }
        writer.unnamed = true;
        drop(writer);
        self.total_bytes.fetch_add(link_bytes, Relaxed);
        let mut alive = self.alive.lock();
        alive.logs.push_back((number, link_bytes));
        alive.link_bytes = link_bytes;
        if alive.first_own == 0 {
            alive.first_own = number;
        }
        Ok(())
    }

    /// True if a write or sync found no space, or there was none for a new log.
    pub(crate) fn is_broken(&self) -> bool {
        let writer = self.writer.lock();
        let closed = self.closed.lock();
        let mut all = closed.iter().chain(&writer.current);
        writer.start_failed || all.any(|log| log.broken.is_some())
    }

    /// Makes broken logs whole and durable up to their last acknowledged record, and starts log
    /// `number` behind them. Only the write leader calls it.
    ///
    /// # Errors
    /// `NoSpace`: nothing has changed, it can be tried again. `Corruption` if a log's bytes are
    /// lost already; `Io`.
    pub(crate) fn mend(&self, number: FileNo, next_seqno: SeqNo, expected: u64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.sync_each_closed(|log| match log.broken {
            None => log.sync(),
            Some(_) => match self.rewrite(log) {
                // Nothing needs it any more, and it was deleted or archived: that is to survive then.
                Err(e) if e.is_file_not_found() && !self.is_kept(log.number) => {
                    self.directory.sync()
                }
                rewritten => rewritten,
            },
        })?;
        let start_failed = writer.start_failed;
        match &mut writer.current {
            Some(log) => match log.broken {
                None if !start_failed => return Ok(()),
                None => {}
                Some(Broken::Tail) => self.cut_tail(log)?,
                Some(Broken::Sync) => self.rewrite(log)?,
            },
            None => return Ok(()),
        }
        drop(writer);
        self.start(number, next_seqno, expected)
    }

    /// True for a log that somebody needs, or may read.
    fn is_kept(&self, number: FileNo) -> bool {
        let alive = self.alive.lock();
        let mut all = alive.logs.iter().chain(&alive.kept);
        all.any(|log| log.0 == number)
    }

    /// Cuts off what is behind the good records, and makes these durable.
    fn cut_tail(&self, log: &mut OpenLog) -> Result<()> {
        let path = filename::wal_path(&self.dir, log.number);
        self.fs.truncate(&path, log.good)?;
        let mut file = self.fs.open_append(&path)?;
        file.sync().inspect_err(|_| log.broken = Some(Broken::Sync))
    }

    /// Writes the good records of a log once more: after a sync that failed, another one of the
    /// same file may succeed without them. Its name is made durable with that of the next log.
    fn rewrite(&self, log: &OpenLog) -> Result<()> {
        let path = filename::wal_path(&self.dir, log.number);
        let temporary = filename::temporary_path(&self.dir, log.number);
        let copied = self.copy(&path, &temporary, log);
        if let Err(e) = copied {
            let _ = self.fs.remove_file(&temporary);
            return Err(e);
        }
        self.fs.rename(&temporary, &path)?;
        self.directory.sync()
    }

    fn copy(&self, path: &Path, to: &Path, log: &OpenLog) -> Result<()> {
        let from = self.fs.open(path, Access::Sequential)?;
        let mut file = self.fs.create(to)?;
        let mut chunk = memory::zeroed(1 << 20, "copy buffer")?;
        let mut at = 0;
        while at < log.good {
            let len = usize::try_from(log.good - at).map_or(chunk.len(), |n| n.min(chunk.len()));
            from.read_exact_at(at, &mut chunk[..len])?;
            file.append(&chunk[..len])?;
            at += len as u64;
        }
        file.sync()?;
        // The system may have given up what it could not write.
        match valid_until(&*self.fs, to, log.number)? {
            valid_until if valid_until == log.good => Ok(()),
            valid_until => Err(Error::corruption("log lost bytes when the disk was full")
                .with("file", path.display())
                .with("offset", valid_until)),
        }
    }

    /// The number of the current log.
    pub(crate) fn current(&self) -> FileNo {
        self.alive.lock().logs.back().map_or(0, |l| l.0)
    }

    /// True if no batch was written to the current log.
    pub(crate) fn current_is_empty(&self) -> bool {
        let alive = self.alive.lock();
        alive.logs.back().is_none_or(|l| l.1 == alive.link_bytes)
    }

    /// Appends one record made of `parts` with one call of the system; with `sync` makes it, and
    /// every record before, survive a power loss.
    ///
    /// # Errors
    /// `NoMemory`: nothing was appended. `NoSpace`: the log is broken until it is mended, and the record will not be there.
    /// `Io`: the log may end in a torn record, or in this one.
    pub(crate) fn append(&self, parts: &[&[u8]], sync: bool) -> Result<()> {
        let mut writer = self.writer.lock();
        let Some(log) = writer.current.as_mut() else {
            return Err(Error::closed("no log is open"));
        };
        let before = log.good;
        log.dirty = true;
        if let Err(e) = log.writer.add_record_parts(parts) {
            if e.kind() == ErrorKind::NoMemory {
                // Before the first byte: the log is as it was.
                return Err(e);
            }
            log.broken = log.broken.max(Some(Broken::Tail));
            return Err(e);
        }
        let after = log.writer.size();
        if sync && let Err(e) = self.sync_locked(&mut writer) {
            // The record is whole, but nobody is promised it.
            if let Some(log) = writer.current.as_mut() {
                log.broken = log.broken.max(Some(Broken::Tail));
            }
            return Err(e);
        }
        if let Some(log) = writer.current.as_mut() {
            log.good = after;
        }
        drop(writer);
        let bytes = after - before;
        self.total_bytes.fetch_add(bytes, Relaxed);
        if let Some(last) = self.alive.lock().logs.back_mut() {
            last.1 += bytes;
        }
        self.statistics.add(Ticker::WalFileBytes, bytes);
        Ok(())
    }

    /// Makes every record so far survive a power loss, older logs first.
    ///
    /// # Errors
    /// `NoSpace`: as for [`Self::append`], but no record is cut off. `Io`: which records are on
    /// disk is then unknown.
    pub(crate) fn sync(&self) -> Result<()> {
        self.sync_locked(&mut self.writer.lock())
    }

    fn sync_locked(&self, writer: &mut LogWriter) -> Result<()> {
        let start = self.clock.now_micros();
        self.sync_closed()?;
        if writer.unnamed {
            self.directory.sync()?;
            writer.unnamed = false;
        }
        if let Some(log) = writer.current.as_mut()
            && log.dirty
        {
            log.sync()?;
            self.statistics.add(Ticker::WalFileSynced, 1);
        }
        let micros = self.clock.now_micros().saturating_sub(start);
        self.statistics
            .record(HistogramKind::WalFileSyncMicros, micros);
        Ok(())
    }

    /// Syncs the logs before the current one.
    ///
    /// # Errors
    /// As for [`Self::sync`].
    pub(crate) fn sync_closed(&self) -> Result<()> {
        self.sync_each_closed(|log| {
            log.sync()?;
            self.statistics.add(Ticker::WalFileSynced, 1);
            Ok(())
        })
    }

    /// Takes closed logs out, oldest first, and forgets those that `sync` made durable.
    fn sync_each_closed(&self, mut sync: impl FnMut(&mut OpenLog) -> Result<()>) -> Result<()> {
        let _syncing = self.syncing.lock();
        loop {
            let Some(mut log) = self.closed.lock().pop_front() else {
                return Ok(());
            };
            if let Err(e) = sync(&mut log) {
                let mut closed = self.closed.lock();
                // Else it was given up meanwhile.
                if log.number >= self.read_from.load(Relaxed) {
                    closed.push_front(log);
                    return Err(e);
                }
            }
        }
    }

    /// The current log, if its name may not survive a power loss yet: who syncs the directory
    /// for another reason then says so with [`Self::note_named`].
    pub(crate) fn unnamed(&self) -> Option<FileNo> {
        let writer = self.writer.lock();
        let current = writer.current.as_ref()?;
        writer.unnamed.then_some(current.number)
    }

    /// The directory was synced while this log was in it.
    pub(crate) fn note_named(&self, log: FileNo) {
        let mut writer = self.writer.lock();
        if writer.current.as_ref().is_some_and(|c| c.number == log) {
            writer.unnamed = false;
        }
    }

    /// Makes the current log's name survive a power loss.
    ///
    /// # Errors
    /// `Io`, `NoSpace`.
    pub(crate) fn sync_name(&self) -> Result<()> {
        if let Some(log) = self.unnamed() {
            self.directory.sync()?;
            self.note_named(log);
        }
        Ok(())
    }

    /// Bytes of all logs that are needed.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Relaxed)
    }

    /// Bytes of the log `from` and of those after it.
    pub(crate) fn bytes_from(&self, from: FileNo) -> u64 {
        let alive = self.alive.lock();
        let newer = alive.logs.iter().rev().take_while(|l| l.0 >= from);
        newer.map(|l| l.1).sum()
    }

    /// Keeps every log until [`Self::unhold`].
    pub(crate) fn hold(&self) {
        self.alive.lock().holds += 1;
    }

    /// Ends one [`Self::hold`].
    pub(crate) fn unhold(&self) {
        self.alive.lock().holds -= 1;
    }

    /// The oldest log that is needed.
    pub(crate) fn oldest(&self) -> FileNo {
        self.alive.lock().logs.front().map_or(0, |l| l.0)
    }

    /// Gives up the logs before `min_needed`; returns those whose files can go.
    ///
    /// Only logs before `min_to_keep`, which the MANIFEST says, are kept to be written over: a
    /// power loss may bring back the old name with what was written under the new one, and a
    /// recovery that reads the log takes that for damage.
    pub(crate) fn release_before(&self, min_needed: FileNo, min_to_keep: FileNo) -> Vec<FileNo> {
        let mut removable = Vec::new();
        let mut alive = self.alive.lock();
        while !self.archives
            && let Some(number) = alive.first_unpinned()
        {
            alive.kept.pop_front();
            removable.push(number);
        }
        while alive.holds == 0
            && alive.logs.len() > 1
            && let Some(&(number, bytes)) = alive.logs.front()
            && number < min_needed
        {
            alive.logs.pop_front();
            self.total_bytes.fetch_sub(bytes, Relaxed);
            if self.archives {
                // Listed until it is there, so that no reader misses it on its way.
                alive.kept.push_back((number, bytes));
                removable.push(number);
            } else if number >= alive.oldest_pin() {
                alive.kept.push_back((number, bytes));
            } else if number >= alive.first_own
                && number < min_to_keep
                && alive.recyclable.len() < self.recycle_max
            {
                alive.recyclable.push(number);
            } else {
                removable.push(number);
            }
        }
        let oldest = alive.logs.front().map_or(0, |l| l.0);
        drop(alive);
        // One that the MANIFEST names is read if it is still there after a power loss, or there again. Cut off by that, it
        // would take those behind it along.
        let read_from = oldest.min(min_to_keep);
        let mut closed = self.closed.lock();
        self.read_from.store(read_from, Relaxed);
        closed.retain(|l| l.number >= read_from);
        drop(closed);
        removable
    }

    /// Keeps all logs that there are for a reader of updates.
    pub(crate) fn pin(&self) -> u64 {
        let mut alive = self.alive.lock();
        alive.next_pin += 1;
        let pin = alive.next_pin;
        alive.pins.insert(pin, 0);
        pin
    }

    /// Keeps the logs from `from` on, and none before for this reader.
    pub(crate) fn move_pin(&self, pin: u64, from: FileNo) {
        self.alive.lock().pins.insert(pin, from);
    }

    /// Ends one [`Self::pin`].
    pub(crate) fn unpin(&self, pin: u64) {
        self.alive.lock().pins.remove(&pin);
    }

    /// The oldest log that a reader of updates may read.
    pub(crate) fn oldest_pin(&self) -> FileNo {
        self.alive.lock().oldest_pin()
    }

    /// Logs that were given up are in the archive.
    pub(crate) fn note_archived(&self, numbers: &[FileNo]) {
        self.alive
            .lock()
            .kept
            .retain(|(number, _)| !numbers.contains(number));
    }

    /// A log that could not be archived is read where it is.
    pub(crate) fn note_not_archived(&self, number: FileNo, bytes: u64) {
        let mut alive = self.alive.lock();
        let at = alive.kept.partition_point(|log| log.0 < number);
        alive.kept.insert(at, (number, bytes));
    }

    /// True if a log was kept for a reader of updates that has moved on.
    pub(crate) fn has_unpinned(&self) -> bool {
        !self.archives && self.alive.lock().first_unpinned().is_some()
    }

    /// The logs that are needed or kept for readers, oldest first, with their bytes.
    pub(crate) fn readable(&self) -> Vec<(FileNo, u64)> {
        let alive = self.alive.lock();
        alive.kept.iter().chain(&alive.logs).copied().collect()
    }

    /// The logs that are needed, oldest first, with their bytes.
    pub(crate) fn list(&self) -> Vec<(FileNo, u64)> {
        self.alive.lock().logs.iter().copied().collect()
    }

    /// Closes the current log; later appends fail.
    pub(crate) fn close(&self) {
        let mut writer = self.writer.lock();
        if let Some(log) = &mut writer.current
            && log.recycled
            && log.broken.is_none()
        {
            log.writer.seal();
            // If that fails old records stay behind the end, as after a crash.
            let path = filename::wal_path(&self.dir, log.number);
            let _ = self.fs.truncate(&path, log.good);
        }
        let mut alive = self.alive.lock();
        // Those that wait to be written over go as well.
        let waiting = std::mem::take(&mut alive.recyclable);
        alive.kept.extend(waiting.into_iter().map(|log| (log, 0)));
        alive.kept.make_contiguous().sort_unstable();
        drop(alive);
        *writer = LogWriter::default();
        self.closed.lock().clear();
    }
}

/// Where the records of a log end, which it has under whatever name.
///
/// # Errors
/// `Corruption` for damage; `Io`.
pub(crate) fn valid_until(fs: &dyn FileSystem, path: &Path, number: FileNo) -> Result<u64> {
    let mut reader = Reader::new(fs.open(path, Access::Sequential)?, number)?;
    let mut record = Vec::new();
    loop {
        match reader.read_record(&mut record)? {
            ReadOutcome::Record { .. } => {}
            ReadOutcome::EndOfLog { valid_until, .. } => return Ok(valid_until),
            ReadOutcome::Damage(damage) => return Err(reader.error(&damage)),
        }
    }
}
