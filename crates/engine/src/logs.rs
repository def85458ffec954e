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
//! A log that was written over ends amid records of its former use. It is cut off there when it
//! is closed, so that only the newest log may have something behind its end.
//!
//! Lock rank 1 (`writer`): held by the one write leader while it appends; taken before the
//! MANIFEST's lock, never with another log's. `alive` is a leaf.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use orogen_base::coding::{Decoder, put_fixed64};
use orogen_base::metrics::{HistogramKind, Statistics, Ticker};
use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_env::{Clock, FileSystem};
use orogen_wal::Writer;
use parking_lot::Mutex;

use crate::batch::{BatchOp, BatchReader, WriteBatch};
use crate::filename;

/// The logs of an open database.
pub(crate) struct Logs {
    dir: PathBuf,
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    statistics: Arc<Statistics>,
    recycle_max: usize,
    writer: Mutex<LogWriter>,
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
    /// Closed for writing, not synced, oldest first.
    unsynced: Vec<OpenLog>,
}

struct OpenLog {
    number: FileNo,
    writer: Writer,
    dirty: bool,
    /// It was written over: behind its end there may be more.
    recycled: bool,
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
}

impl Logs {
    pub(crate) fn new(
        dir: PathBuf,
        fs: Arc<dyn FileSystem>,
        clock: Arc<dyn Clock>,
        statistics: Arc<Statistics>,
        recycle_max: usize,
    ) -> Self {
        Self {
            dir,
            fs,
            clock,
            statistics,
            recycle_max,
            writer: Mutex::default(),
            alive: Mutex::default(),
            total_bytes: AtomicU64::new(0),
        }
    }

    /// Notes a log of an earlier open that recovery read and memtables still need.
    pub(crate) fn keep(&self, number: FileNo, bytes: u64) {
        self.alive.lock().logs.push_back((number, bytes));
        self.total_bytes.fetch_add(bytes, Relaxed);
    }

    /// Starts log `number`; the one before stays as it is.
    ///
    /// # Errors
    /// `NoSpace` or `Io`; the old log is then still the current one.
    pub(crate) fn start(&self, number: FileNo, next_seqno: SeqNo) -> Result<()> {
        let path = filename::wal_path(&self.dir, number);
        let former = self.alive.lock().recyclable.pop();
        let recycled = former.is_some();
        let file = match former {
            Some(old) => self.fs.reuse(&filename::wal_path(&self.dir, old), &path)?,
            None => self.fs.create(&path)?,
        };
        self.fs.sync_dir(&self.dir)?;
        let mut next = OpenLog {
            number,
            writer: Writer::new(file, number, self.recycle_max > 0),
            dirty: false,
            recycled,
        };
        let mut writer = self.writer.lock();
        if let Some(old) = &mut writer.current {
            if old.recycled {
                let path = filename::wal_path(&self.dir, old.number);
                self.fs.truncate(&path, old.writer.size())?;
                old.dirty = true;
            }
            let link = Link {
                log: old.number,
                bytes: old.writer.size(),
            };
            next.writer.add_record(&link.to_record(next_seqno))?;
            next.dirty = true;
        }
        let link_bytes = next.writer.size();
        if let Some(old) = writer.current.replace(next)
            && old.dirty
        {
            writer.unsynced.push(old);
        }
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

    /// The number of the current log.
    pub(crate) fn current(&self) -> FileNo {
        self.alive.lock().logs.back().map_or(0, |l| l.0)
    }

    /// True if no batch was written to the current log.
    pub(crate) fn current_is_empty(&self) -> bool {
        let alive = self.alive.lock();
        alive.logs.back().is_none_or(|l| l.1 == alive.link_bytes)
    }

    /// Appends one record made of `parts` with one call of the system.
    ///
    /// # Errors
    /// `NoSpace`, `Io`; the log may end in a torn record.
    pub(crate) fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut writer = self.writer.lock();
        let Some(log) = writer.current.as_mut() else {
            return Err(Error::closed("no log is open"));
        };
        let before = log.writer.size();
        log.dirty = true;
        log.writer.add_record_parts(parts)?;
        let bytes = log.writer.size() - before;
        drop(writer);
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
    /// `Io`: which records are on disk is then unknown.
    pub(crate) fn sync(&self) -> Result<()> {
        let start = self.clock.now_micros();
        let mut writer = self.writer.lock();
        self.sync_closed_locked(&mut writer)?;
        if let Some(log) = writer.current.as_mut()
            && log.dirty
        {
            log.writer.sync()?;
            log.dirty = false;
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
    /// `Io`, as for [`Self::sync`].
    pub(crate) fn sync_closed(&self) -> Result<()> {
        self.sync_closed_locked(&mut self.writer.lock())
    }

    fn sync_closed_locked(&self, writer: &mut LogWriter) -> Result<()> {
        while let Some(log) = writer.unsynced.first_mut() {
            log.writer.sync()?;
            self.statistics.add(Ticker::WalFileSynced, 1);
            writer.unsynced.remove(0);
        }
        Ok(())
    }

    /// Bytes of all logs that are needed.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Relaxed)
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
    pub(crate) fn release_before(&self, min_needed: FileNo) -> Vec<FileNo> {
        let mut removable = Vec::new();
        let mut alive = self.alive.lock();
        while alive.holds == 0
            && alive.logs.len() > 1
            && let Some(&(number, bytes)) = alive.logs.front()
            && number < min_needed
        {
            alive.logs.pop_front();
            self.total_bytes.fetch_sub(bytes, Relaxed);
            if number >= alive.first_own && alive.recyclable.len() < self.recycle_max {
                alive.recyclable.push(number);
            } else {
                removable.push(number);
            }
        }
        let oldest = alive.logs.front().map_or(0, |l| l.0);
        drop(alive);
        self.writer.lock().unsynced.retain(|l| l.number >= oldest);
        removable
    }

    /// The logs that are needed, oldest first, with their bytes.
    pub(crate) fn list(&self) -> Vec<(FileNo, u64)> {
        self.alive.lock().logs.iter().copied().collect()
    }

    /// Closes the current log; later appends fail.
    pub(crate) fn close(&self) {
        *self.writer.lock() = LogWriter::default();
    }
}
