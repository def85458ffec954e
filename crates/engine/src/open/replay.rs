//! The logs read back into memtables.
//!
//! Logs are read oldest first. A family takes the records of a log only if the log is not older
//! than the family's log number: older ones are in its tables. When a memtable is full while
//! logs are read it becomes a table at once, beside the reading, but no version lists that table
//! before all logs are read: a crash in between starts over, and no merge operand counts twice.
//!
//! Where reading stops at damage, what later logs hold is not taken either, for it is newer than
//! what is missing: unless the next log goes on with the very next sequence number. Then nothing
//! is missing, and what looked like damage are former bytes of a log that RocksDB wrote over.
//! A family whose tables already hold writes from beyond the damage would make
//! a state that never was: that is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use orogen_base::seqno::SEQNO_MAX;
use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_env::{Access, threads};
use orogen_wal::{Damage, ReadOutcome, Reader};
use parking_lot::Mutex;

use crate::batch::BatchReader;
use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::filename;
use crate::jobs::flush::write_level0_table;
use crate::logs::Link;
use crate::obsolete;
use crate::options::WalRecoveryMode;
use crate::super_version::MemHandle;
use crate::version::file_meta::FileMeta;
use crate::write::apply::MemTables;

/// What the logs held.
#[derive(Default)]
pub(crate) struct Replayed {
    /// The newest sequence number.
    pub(crate) last_seqno: SeqNo,
    /// Tables that became of full memtables, by family, oldest first.
    pub(crate) tables: BTreeMap<u32, Vec<FileMeta>>,
    /// The logs with their bytes, oldest first.
    pub(crate) logs: Vec<(FileNo, u64)>,
    /// Where the good records of each log end.
    ends: BTreeMap<FileNo, u64>,
    /// Logs whose records were taken, up to their end or to damage.
    pub(crate) taken: BTreeSet<FileNo>,
    /// Records read.
    pub(crate) records: u64,
    /// Bytes that were left out because they are damaged or behind damage.
    pub(crate) bytes_dropped: u64,
}

/// Reads `logs` (sorted) into the memtables of `families`.
///
/// # Errors
/// `Corruption` with file and offset where the recovery mode does not go on; `NotSupported` for
/// records of other features; `Io`, `NoSpace`.
pub(crate) fn replay(
    context: &Arc<Context>,
    families: &[Arc<ColumnFamilyData>],
    logs: &[FileNo],
) -> Result<Replayed> {
    let mut replayed = Replayed::default();
    let mut tables = TableThread::new(context);
    let result = replay_all(context, families, logs, &mut replayed, &mut tables);
    let written = tables.finish();
    for (family, table) in written.tables {
        replayed.tables.entry(family).or_default().push(table);
    }
    let result = result.and(written.error.map_or(Ok(()), Err));
    if result.is_err() {
        let files: Vec<FileNo> = replayed
            .tables
            .values()
            .flatten()
            .map(|f| f.number)
            .collect();
        obsolete::discard(context, &files);
    }
    result.map(|()| replayed)
}

fn replay_all(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    logs: &[FileNo],
    replayed: &mut Replayed,
    tables: &mut TableThread,
) -> Result<()> {
    let mut stopped_at = None;
    let mut dropped_before = 0;
    for &log in logs {
        if stopped_at.is_some() && follows_without_a_gap(context, log, replayed)? {
            stopped_at = None;
            replayed.bytes_dropped = dropped_before;
        }
        if let Some(at) = stopped_at {
            let size = context
                .fs
                .metadata(&filename::wal_path(&context.dir, log))?
                .size;
            replayed.bytes_dropped += size;
            if size > 0 {
                context.log.warn(format_args!(
                    "log {log} with {size} bytes is behind the damage in log {at} and is left out"
                ));
            }
            continue;
        }
        for family in families {
            let state = family.state();
            if state.mem.is_empty() {
                state.mem.raise_log_number(log.max(state.log_number));
            }
        }
        dropped_before = replayed.bytes_dropped;
        stopped_at = replay_one(context, families, log, replayed, tables)?;
    }
    if let Some(log) = stopped_at {
        check_not_ahead(families, log)?;
    }
    Ok(())
}

/// True if the first record of `log` has the sequence number that comes next.
fn follows_without_a_gap(context: &Context, log: FileNo, replayed: &Replayed) -> Result<bool> {
    if replayed.records == 0 {
        return Ok(false);
    }
    let path = filename::wal_path(&context.dir, log);
    let mut reader = Reader::new(context.fs.open(&path, Access::Sequential)?, log)?;
    let mut record = Vec::new();
    if !matches!(reader.read_record(&mut record)?, ReadOutcome::Record { .. }) {
        return Ok(false);
    }
    Ok(BatchReader::new(&record).is_ok_and(|batch| batch.seqno == replayed.last_seqno + 1))
}

/// The log whose damage stopped reading, if any did.
fn replay_one(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    log: FileNo,
    replayed: &mut Replayed,
    tables: &mut TableThread,
) -> Result<Option<FileNo>> {
    let path = filename::wal_path(&context.dir, log);
    let file = context.fs.open(&path, Access::Sequential)?;
    let size = file.size()?;
    replayed.logs.push((log, size));
    let mut reader = Reader::new(file, log)?;
    let log_numbers: BTreeMap<u32, FileNo> = families
        .iter()
        .map(|f| (f.id, f.state().log_number))
        .collect();
    let wanted = |cf: u32| log_numbers.get(&cf).is_some_and(|&from| log >= from);
    let mut memtables = MemTables::of(families.to_vec());
    let mut record = Vec::new();
    loop {
        match reader.read_record(&mut record)? {
            ReadOutcome::EndOfLog { valid_until, .. } => {
                replayed.ends.insert(log, valid_until);
                replayed.taken.insert(log);
                return Ok(None);
            }
            ReadOutcome::Damage(damage) => {
                if !goes_on(context, &reader, &damage, log, replayed)? {
                    replayed.taken.insert(log);
                    return Ok(Some(log));
                }
            }
            ReadOutcome::Record { offset } => {
                let at = |e: Error| e.with("file", path.display()).with("offset", offset);
                let batch = BatchReader::new(&record).map_err(at)?;
                batch.check().map_err(at)?;
                if batch.seqno.saturating_add(SeqNo::from(batch.count)) > SEQNO_MAX {
                    let error = Error::corruption("sequence number is too large");
                    return Err(at(error.with("seqno", batch.seqno)));
                }
                if let Some(link) = Link::of(&batch)
                    && !link_holds(context, link, log, replayed)?
                {
                    replayed.bytes_dropped += size;
                    return Ok(Some(link.log));
                }
                let end = memtables
                    .apply(batch.iter(), batch.seqno, wanted)
                    .map_err(at)?;
                replayed.last_seqno = replayed.last_seqno.max(end.saturating_sub(1));
                replayed.records += 1;
                if memtables.any_full() && !context.read_only {
                    drop(memtables);
                    write_full_memtables(context, families, log, tables)?;
                    memtables = MemTables::of(families.to_vec());
                }
            }
        }
    }
}

/// Looks whether the log before is whole, and what the recovery mode does if it is not: true to
/// read on, false to stop.
fn link_holds(context: &Context, link: Link, log: FileNo, replayed: &Replayed) -> Result<bool> {
    let Some(&end) = replayed
        .ends
        .get(&link.log)
        .filter(|&&end| end < link.bytes)
    else {
        return Ok(true);
    };
    let missing = link.bytes - end;
    context.log.warn(format_args!(
        "log {} lacks its last {missing} bytes, which stood before those of log {log}",
        link.log
    ));
    match context.options.wal_recovery_mode {
        WalRecoveryMode::PointInTimeRecovery => Ok(false),
        WalRecoveryMode::SkipAnyCorruptedRecords => Ok(true),
        WalRecoveryMode::AbsoluteConsistency | WalRecoveryMode::TolerateCorruptedTailRecords => {
            Err(Error::corruption("log is cut off and another one follows")
                .with("file", filename::wal_path(&context.dir, link.log).display())
                .with("offset", end)
                .with("bytes_missing", missing))
        }
    }
}

/// What the recovery mode does about damage: true to read on, false to stop.
fn goes_on(
    context: &Context,
    reader: &Reader,
    damage: &Damage,
    log: FileNo,
    replayed: &mut Replayed,
) -> Result<bool> {
    let refused = match context.options.wal_recovery_mode {
        WalRecoveryMode::AbsoluteConsistency => true,
        WalRecoveryMode::TolerateCorruptedTailRecords => !damage.is_tail,
        WalRecoveryMode::PointInTimeRecovery | WalRecoveryMode::SkipAnyCorruptedRecords => false,
    };
    if refused {
        return Err(reader.error(damage));
    }
    let skips = context.options.wal_recovery_mode == WalRecoveryMode::SkipAnyCorruptedRecords;
    let kind = if damage.is_tail {
        "a torn tail"
    } else {
        "damage in the middle"
    };
    context.log.warn(format_args!(
        "log {log} has {kind} at offset {}: {}; {}",
        damage.offset,
        damage.reason.name(),
        if skips {
            "reading on behind it"
        } else {
            "keeping what stands before it"
        },
    ));
    replayed.bytes_dropped += damage.bytes_dropped;
    Ok(skips)
}

/// Families must not hold writes from beyond the place where reading stopped.
fn check_not_ahead(families: &[Arc<ColumnFamilyData>], log: FileNo) -> Result<()> {
    for family in families {
        let state = family.state();
        if state.log_number > log && state.version.total_files() > 0 && families.len() > 1 {
            return Err(Error::corruption(
                "log is damaged and the tables of a column family hold later writes",
            )
            .with("log", log)
            .with("column_family", &family.name));
        }
    }
    Ok(())
}

fn write_full_memtables(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    log: FileNo,
    tables: &mut TableThread,
) -> Result<()> {
    for family in families {
        let full = {
            let mut state = family.state();
            if !state.mem.is_full() {
                continue;
            }
            let fresh = context.new_memtable(&family.options(), log);
            let full = std::mem::replace(&mut state.mem, fresh);
            family.publish(&state);
            full
        };
        tables.write(family, full)?;
    }
    Ok(())
}

/// A memtable that is to become a table.
type Full = (Arc<ColumnFamilyData>, Arc<MemHandle>);

/// What became of full memtables, oldest first.
#[derive(Default)]
struct Written {
    tables: Vec<(u32, FileMeta)>,
    /// Nothing was written after it.
    error: Option<Error>,
}

impl Written {
    fn add(&mut self, context: &Context, (family, full): &Full) {
        match write_level0_table(context, family, std::slice::from_ref(full), None) {
            Ok(table) => self.tables.extend(table.map(|table| (family.id, table))),
            Err(error) => self.error = Some(error),
        }
    }
}

/// Writes tables of full memtables, one after the other, while the logs are read on: reading
/// waits if it fills a second memtable before the first is written.
struct TableThread {
    context: Arc<Context>,
    running: Option<(SyncSender<Full>, threads::Thread)>,
    written: Arc<Mutex<Written>>,
}

impl TableThread {
    /// No thread before the first memtable is full.
    fn new(context: &Arc<Context>) -> Self {
        Self {
            context: context.clone(),
            running: None,
            written: Arc::default(),
        }
    }

    fn start(&self) -> Result<(SyncSender<Full>, threads::Thread)> {
        let (sender, queue) = sync_channel::<Full>(0);
        let (context, written) = (self.context.clone(), self.written.clone());
        let thread = threads::spawn("orogen-replay", move || {
            for full in queue {
                // The lock is held over the write: nobody asks before this thread has ended.
                let mut written = written.lock();
                written.add(&context, &full);
                if written.error.is_some() {
                    return;
                }
            }
        })?;
        Ok((sender, thread))
    }

    /// # Errors
    /// That of an earlier table, or of this one where the system has no thread left.
    fn write(&mut self, family: &Arc<ColumnFamilyData>, full: Arc<MemHandle>) -> Result<()> {
        let mut full = (family.clone(), full);
        if self.running.is_none() {
            self.running = self.start().ok();
        }
        if let Some((queue, _)) = &self.running {
            match queue.send(full) {
                Ok(()) => return Ok(()),
                // The thread has ended, for an error.
                Err(back) => full = back.0,
            }
        }
        let mut written = self.written.lock();
        if written.error.is_none() {
            written.add(&self.context, &full);
        }
        written.error.clone().map_or(Ok(()), Err)
    }

    /// Waits until all are written.
    fn finish(mut self) -> Written {
        if let Some((queue, thread)) = self.running.take() {
            drop(queue);
            drop(thread);
        }
        std::mem::take(&mut *self.written.lock())
    }
}
