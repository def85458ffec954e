//! The logs read back into memtables.
//!
//! Logs are read oldest first. A family takes the records of a log only if the log is not older
//! than the family's log number: older ones are in its tables. When a memtable is full while
//! logs are read it becomes a table at once, beside the reading, but no version lists that table
//! before all logs are read: a crash in between starts over, and no merge operand counts twice.
//! What is read is not looked up before it is in a table. So it is not kept sorted but sorted
//! once, by the thread that writes the table, and there are several such threads.
//!
//! Where reading stops at damage, what later logs hold is not taken either, for it is newer than
//! what is missing: unless the next log goes on with the very next sequence number. Then nothing
//! is missing, and what looked like damage are former bytes of a log that RocksDB wrote over.
//! A family whose tables already hold writes from beyond the damage would make
//! a state that never was: that is an error.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use orogen_base::{Error, ErrorKind, FileNo, Result, SeqNo};
use orogen_cache::Reservation;
use orogen_env::{Access, threads};
use orogen_sst::CachedBlock;
use orogen_wal::{Damage, ReadOutcome, Reader};
use parking_lot::Mutex;

use crate::batch::{BatchReader, Sections};
use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::filename;
use crate::jobs::flush::{take_epoch, write_level0_table};
use crate::logs::Link;
use crate::obsolete;
use crate::options::WalRecoveryMode;
use crate::output;
use crate::pace::FlushLeft;
use crate::super_version::MemHandle;
use crate::write::apply::MemTables;

const REFUSED_HELP: &str = "writes behind it would be lost: `orogen db repair` saves them into a new directory; \
                            refuse_log_damage=false (of the command: --drop-log-damage) opens without them";

/// What the logs held.
#[derive(Default)]
pub(crate) struct Replayed {
    /// The newest sequence number.
    pub(crate) last_seqno: SeqNo,
    /// Tables that became of full memtables, by family, oldest first.
    pub(crate) tables: BTreeMap<u32, Vec<output::Written>>,
    /// The logs whose records were taken, oldest first, and where the good ones of each end: at its end, or at damage.
    pub(crate) ends: BTreeMap<FileNo, u64>,
    /// The newest log with records that ends before a record of a former use of its file: as RocksDB writes it, nothing in it
    /// tells whether more stood there.
    before_old: Option<FileNo>,
    /// Records read.
    pub(crate) records: u64,
    /// Bytes that were left out because they are damaged or behind damage.
    pub(crate) bytes_dropped: u64,
    /// The first place for which more was left out than a record that a crash cut off.
    damage: Option<Error>,
    /// What is prepared, and neither committed nor rolled back.
    pub(crate) prepared: Sections,
}

impl Replayed {
    fn note_damage(&mut self, of: impl FnOnce() -> Error) {
        self.damage.get_or_insert_with(of);
    }

    /// True if all of `logs` was taken, and none ends where more may have stood.
    pub(crate) fn took_all(&self, logs: &[FileNo]) -> bool {
        self.bytes_dropped == 0 && self.before_old.is_none() && self.ends.len() == logs.len()
    }
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
    let mut tables = TableThreads::new(context);
    if !stays(context) && !logs.is_empty() {
        for family in families {
            let mut state = family.state();
            let log = state.mem.log_number();
            state.mem = context.new_replay_memtable(&family.options(), log);
            family.publish(&state);
        }
    }
    let result = replay_all(context, families, logs, &mut replayed, &mut tables)
        .and_then(|()| refuse(context, &mut replayed))
        .and_then(|()| tables.write_rest(families));
    let mut written = tables.finish();
    written
        .tables
        .sort_by_key(|(_, table)| table.files.first().map(|f| f.epoch_number));
    for (family, table) in written.tables {
        replayed.tables.entry(family).or_default().push(table);
    }
    let result = result.and(written.error.map_or(Ok(()), Err));
    if result.is_err() {
        for written in replayed.tables.values().flatten() {
            obsolete::discard(context, &written.created());
        }
    }
    result.map(|()| replayed)
}

/// Refuses what was left out, if the options ask for it.
fn refuse(context: &Context, replayed: &mut Replayed) -> Result<()> {
    match replayed.damage.take() {
        Some(damage) if context.options.refuse_log_damage => Err(damage
            .with("bytes_left_out", replayed.bytes_dropped)
            .with("help", REFUSED_HELP)),
        _ => Ok(()),
    }
}

/// True if what the logs hold may stay in memory, and be looked up there.
fn stays(context: &Context) -> bool {
    context.read_only || context.options.avoid_flush_during_recovery
}

fn replay_all(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    logs: &[FileNo],
    replayed: &mut Replayed,
    tables: &mut TableThreads,
) -> Result<()> {
    let mut stopped_at = None;
    // As they were before the log that reading stopped at.
    let (mut dropped_before, mut damage_before) = (0, None);
    let mut bounds = Bounds::new(context);
    for &log in logs {
        let before = stopped_at.or(replayed.before_old);
        let follows = match before {
            Some(before) => follows_without_a_gap(context, log, before, replayed)?,
            None => None,
        };
        if let (Some(before), Some(follows)) = (before, follows) {
            match (stopped_at, follows) {
                (None, false) => {
                    dropped_before = replayed.bytes_dropped;
                    damage_before.clone_from(&replayed.damage);
                    stopped_at = Some(before);
                }
                (Some(_), true) => {
                    stopped_at = None;
                    replayed.bytes_dropped = dropped_before;
                    replayed.damage.clone_from(&damage_before);
                }
                _ => {}
            }
        }
        if let Some(at) = stopped_at {
            let size = context
                .fs
                .metadata(&filename::wal_path(&context.dir, log))?
                .size;
            replayed.bytes_dropped += size;
            if has_writes(context, log)? {
                replayed.note_damage(|| is_behind(context, log, at));
            }
            if size > 0 {
                context.log.warn(format_args!(
                    "log {log} with {size} bytes is behind what is missing of log {at} and is left out"
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
        damage_before.clone_from(&replayed.damage);
        stopped_at = replay_one(context, families, log, replayed, tables, &mut bounds)?;
    }
    if let Some(log) = stopped_at {
        check_not_ahead(families, log)?;
    }
    Ok(())
}

/// True if records of writes stand in a log, whatever is damaged there.
fn has_writes(context: &Context, log: FileNo) -> Result<bool> {
    let path = filename::wal_path(&context.dir, log);
    let mut reader = Reader::new(context.fs.open(&path, Access::Sequential)?, log)?;
    let mut record = Vec::new();
    loop {
        match reader.read_record(&mut record)? {
            ReadOutcome::Record { .. } => {
                let is_link = BatchReader::new(&record).is_ok_and(|b| Link::of(&b).is_some());
                if !is_link {
                    return Ok(true);
                }
            }
            ReadOutcome::Damage(_) => {}
            ReadOutcome::EndOfLog { .. } => return Ok(false),
        }
    }
}

fn is_behind(context: &Context, log: FileNo, missing: FileNo) -> Error {
    Error::corruption("log is behind what is missing of another one")
        .with("file", filename::wal_path(&context.dir, log).display())
        .with("log_with_damage", missing)
}

/// True if all that stood before `log` is there though the log `before` has damage, or ends where more may have stood: as
/// `log` itself says, or, where it says nothing, if its first record has the sequence number that comes next. Records without
/// numbers may be missing then. None if no record begins `log`.
fn follows_without_a_gap(
    context: &Context,
    log: FileNo,
    before: FileNo,
    replayed: &Replayed,
) -> Result<Option<bool>> {
    let path = filename::wal_path(&context.dir, log);
    let mut reader = Reader::new(context.fs.open(&path, Access::Sequential)?, log)?;
    let mut record = Vec::new();
    if !matches!(reader.read_record(&mut record)?, ReadOutcome::Record { .. }) {
        return Ok(None);
    }
    let Ok(batch) = BatchReader::new(&record) else {
        return Ok(None);
    };
    let link = Link::of(&batch).filter(|link| link.log == before);
    if let (Some(link), Some(&end)) = (link, replayed.ends.get(&before)) {
        return Ok(Some(link.bytes <= end));
    }
    let last = match (replayed.records, replayed.before_old) {
        (0, None) => return Ok(Some(false)),
        // All that stood there may be in tables.
        (0, Some(_)) => context.sequence.visible(),
        _ => replayed.last_seqno,
    };
    Ok(Some(batch.seqno == last + 1))
}

/// The log whose damage stopped reading, if any did.
fn replay_one(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    log: FileNo,
    replayed: &mut Replayed,
    tables: &mut TableThreads,
    bounds: &mut Bounds<'_>,
) -> Result<Option<FileNo>> {
    let path = filename::wal_path(&context.dir, log);
    let file = context.fs.open(&path, Access::Sequential)?;
    let size = file.size()?;
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
                let mode = context.options.wal_recovery_mode;
                let is_in_doubt =
                    mode == WalRecoveryMode::PointInTimeRecovery && reader.ends_before_old_record();
                if is_in_doubt {
                    replayed.before_old = Some(log);
                }
                return Ok(None);
            }
            ReadOutcome::Damage(damage) => {
                if !goes_on(context, &reader, &damage, log, replayed)? {
                    replayed.ends.insert(log, reader.valid_until());
                    // Where a torn tail is tolerated the log ends there, and the next one tells whether that is its end.
                    let mode = context.options.wal_recovery_mode;
                    let is_end = mode == WalRecoveryMode::TolerateCorruptedTailRecords;
                    return Ok((!is_end).then_some(log));
                }
            }
            ReadOutcome::Record { offset } => {
                let at = |e: Error| e.with("file", path.display()).with("offset", offset);
                let batch = match BatchReader::new(&record).and_then(|b| b.check().map(|()| b)) {
                    Ok(batch) => batch,
                    Err(e) if e.kind() == ErrorKind::Corruption => {
                        if passes_over(context, at(e), log, record.len(), replayed)? {
                            continue;
                        }
                        replayed.ends.insert(log, offset);
                        return Ok(Some(log));
                    }
                    Err(e) => return Err(at(e)),
                };
                if let Some(link) = Link::of(&batch)
                    && !link_holds(context, link, log, replayed)?
                {
                    replayed.bytes_dropped += size;
                    if has_writes(context, log)? {
                        replayed.note_damage(|| is_behind(context, log, link.log));
                    }
                    return Ok(Some(link.log));
                }
                replayed.before_old = None;
                let end = replayed
                    .prepared
                    .take(log, &batch, |op, seqno| {
                        memtables.apply_one(op, seqno, &wanted)
                    })
                    .map_err(at)?;
                replayed.last_seqno = replayed.last_seqno.max(end.saturating_sub(1));
                replayed.records += 1;
                if memtables.any_full() {
                    if memtables.full_families().is_empty() {
                        // Half full is enough to be told of, and to look at all families for each record would be dear.
                        memtables.none_full();
                        for (_, handle) in memtables.to_look_at() {
                            handle.look(context.clock.now_micros(), FlushLeft::default());
                        }
                        continue;
                    }
                    let full = memtables.full_families();
                    drop(memtables);
                    write_memtables(context, &full, log, tables)?;
                    memtables = MemTables::of(families.to_vec());
                } else if bounds.reached(record.len(), &memtables, replayed.prepared.bytes()) {
                    let largest = memtables.largest();
                    drop(memtables);
                    write_memtables(context, largest.as_slice(), log, tables)?;
                    context.balance_memory();
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

/// What the recovery mode does about a record that was written as it is, and is no batch: true to read on behind it, false to
/// stop before it.
fn passes_over(
    context: &Context,
    error: Error,
    log: FileNo,
    bytes: usize,
    replayed: &mut Replayed,
) -> Result<bool> {
    let skips = match context.options.wal_recovery_mode {
        WalRecoveryMode::SkipAnyCorruptedRecords => true,
        WalRecoveryMode::PointInTimeRecovery => false,
        WalRecoveryMode::AbsoluteConsistency | WalRecoveryMode::TolerateCorruptedTailRecords => {
            return Err(error);
        }
    };
    context.log.warn(format_args!(
        "log {log} has a record that is no batch; {}: {error}",
        if skips {
            "reading on behind it"
        } else {
            "keeping what stands before it"
        }
    ));
    replayed.bytes_dropped += bytes as u64;
    replayed.note_damage(|| error);
    Ok(skips)
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
    if !damage.is_tail {
        replayed.note_damage(|| reader.error(damage));
    }
    Ok(skips)
}

/// Families must not hold writes from beyond the place where reading stopped. One alone can where an older log is read for a write
/// that is prepared there.
fn check_not_ahead(families: &[Arc<ColumnFamilyData>], log: FileNo) -> Result<()> {
    for family in families {
        let state = family.state();
        if state.log_number > log && state.version.total_files() > 0 {
            return Err(Error::corruption(
                "log is damaged and the tables of a column family hold later writes",
            )
            .with("log", log)
            .with("column_family", &family.name)
            .with(
                "help",
                "wal_recovery_mode kSkipAnyCorruptedRecords reads on",
            ));
        }
    }
    Ok(())
}

/// Seals the memtables of `families`, which become tables unless nothing may be written.
fn write_memtables(
    context: &Context,
    families: &[Arc<ColumnFamilyData>],
    log: FileNo,
    tables: &mut TableThreads,
) -> Result<()> {
    for family in families {
        let sealed = {
            let mut state = family.state();
            let fresh = match stays(context) {
                true => context.new_memtable(family, log),
                false => context.new_replay_memtable(&family.options(), log),
            };
            let sealed = std::mem::replace(&mut state.mem, fresh);
            if context.read_only {
                // One memtable for all would be more than a memtable takes.
                state.imm.push(sealed);
                family.publish(&state);
                continue;
            }
            family.publish(&state);
            sealed
        };
        tables.write(family, sealed)?;
    }
    Ok(())
}

/// What all memtables together may take while logs are read, with what is prepared: `db_write_buffer_size` and the budget of
/// memory. A read-only open, which writes no tables, keeps to neither.
struct Bounds<'a> {
    context: &'a Context,
    /// Of what is prepared, in the budget.
    reservation: Option<Reservation<CachedBlock>>,
    /// Bytes of records between two looks: to ask all memtables is dear where there are many.
    step: u64,
    left: u64,
}

/// At most so many bytes of records are read between two looks at what memtables take.
const LOOK_BYTES_MAX: u64 = 1 << 20;

impl<'a> Bounds<'a> {
    fn new(context: &'a Context) -> Self {
        let options = &context.options;
        let budget = options.memory_budget.as_ref().map(|b| b.limit());
        let database = Some(options.db_write_buffer_size).filter(|&bytes| bytes > 0);
        let smallest = budget.into_iter().chain(database).min();
        let step = match smallest.filter(|_| !context.read_only) {
            Some(bytes) => (bytes / 64).min(LOOK_BYTES_MAX),
            None => u64::MAX,
        };
        let budget = options.memory_budget.as_ref();
        let budget = budget.filter(|_| !context.read_only);
        Self {
            context,
            reservation: budget.map(|b| Reservation::new(b.block_cache().clone())),
            step,
            left: step,
        }
    }

    /// True if the largest memtable should become a table, now that a record of `bytes` is in and `prepared` bytes are
    /// neither committed nor rolled back.
    fn reached(&mut self, bytes: usize, memtables: &MemTables, prepared: usize) -> bool {
        if self.left > bytes as u64 {
            self.left -= bytes as u64;
            return false;
        }
        let options = &self.context.options;
        let (database, budget) = (options.db_write_buffer_size, &options.memory_budget);
        if let Some(reservation) = &mut self.reservation {
            reservation.set(prepared);
        }
        // It cannot become a table. Where it takes most of the memory others have a quarter all the same: their tables would be tiny.
        let rest = database.saturating_sub(prepared as u64).max(database / 4);
        let is_reached = (database > 0 && memtables.memory_usage() > rest)
            || budget
                .as_ref()
                .is_some_and(|b| b.wants_seal(|| memtables.memory_usage()));
        // One memtable may not be enough.
        self.left = if is_reached { 0 } else { self.step };
        is_reached
    }
}

/// A memtable that is to become a table.
struct Full {
    family: Arc<ColumnFamilyData>,
    memtable: Arc<MemHandle>,
    /// Of the table: memtables are written beside one another, and some sooner than older ones.
    epoch: u64,
}

/// What became of full memtables.
#[derive(Default)]
struct Written {
    tables: Vec<(u32, output::Written)>,
    /// The first; what came after it may not have been written.
    error: Option<Error>,
}

/// Writes one table.
fn write_table(context: &Context, full: &Full, written: &Mutex<Written>) {
    let memtables = std::slice::from_ref(&full.memtable);
    let write = || write_level0_table(context, &full.family, memtables, full.epoch, None);
    // A panic, of a merge operator say, must not end a thread unheard: the logs would go without the table.
    let table = catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| {
        let what = "a table of what logs hold was not written: its thread panicked";
        Err(Error::new(ErrorKind::Aborted, what))
    });
    let mut written = written.lock();
    match table {
        Ok(table) if table.files.is_empty() => {}
        Ok(table) => written.tables.push((full.family.id, table)),
        Err(error) => {
            written.error.get_or_insert(error);
        }
    }
}

/// At most so many threads write tables.
const TABLE_THREADS_MAX: usize = 8;

/// Threads that write tables of full memtables while the logs are read on: reading waits if it
/// fills another memtable while each of them writes one.
struct TableThreads {
    context: Arc<Context>,
    running: Option<(SyncSender<Full>, Vec<threads::Thread>)>,
    written: Arc<Mutex<Written>>,
}

impl TableThreads {
    /// No threads before the first memtable is full.
    fn new(context: &Arc<Context>) -> Self {
        Self {
            context: context.clone(),
            running: None,
            written: Arc::default(),
        }
    }

    /// How many may write: each holds a memtable, and one more is being filled.
    fn count(&self) -> usize {
        let context = &self.context;
        if context.options.memory_budget.is_some() || context.options.db_write_buffer_size > 0 {
            return 1;
        }
        let jobs = context.db_options().max_background_jobs;
        threads::cores().min(jobs).clamp(1, TABLE_THREADS_MAX)
    }

    /// # Errors
    /// `Io` if the system has no thread at all.
    fn start(&self) -> Result<(SyncSender<Full>, Vec<threads::Thread>)> {
        let (sender, queue) = sync_channel::<Full>(0);
        let queue = Arc::new(Mutex::new(queue));
        let mut running = Vec::new();
        for _ in 0..self.count() {
            match self.spawn(queue.clone()) {
                Ok(thread) => running.push(thread),
                Err(e) if running.is_empty() => return Err(e),
                Err(_) => break,
            }
        }
        Ok((sender, running))
    }

    fn spawn(&self, queue: Arc<Mutex<Receiver<Full>>>) -> Result<threads::Thread> {
        let (context, written) = (self.context.clone(), self.written.clone());
        threads::spawn("orogen-replay", move || {
            loop {
                // Those that have nothing to do wait for the lock of the one that waits.
                let Ok(full) = queue.lock().recv() else {
                    return;
                };
                if written.lock().error.is_some() {
                    return;
                }
                write_table(&context, &full, &written);
            }
        })
    }

    /// # Errors
    /// That of an earlier table, or of this one where the system has no thread left.
    fn write(&mut self, family: &Arc<ColumnFamilyData>, memtable: Arc<MemHandle>) -> Result<()> {
        let mut full = Full {
            family: family.clone(),
            memtable,
            epoch: take_epoch(family),
        };
        if self.running.is_none() {
            self.running = self.start().ok();
        }
        if let Some((queue, _)) = &self.running {
            match queue.send(full) {
                Ok(()) => return Ok(()),
                // The threads have ended, for an error.
                Err(back) => full = back.0,
            }
        }
        if self.written.lock().error.is_none() {
            write_table(&self.context, &full, &self.written);
        }
        self.written.lock().error.clone().map_or(Ok(()), Err)
    }

    /// Writes what the last logs left in memory too, beside the tables before it, if there are
    /// threads for it.
    ///
    /// # Errors
    /// As [`Self::write`].
    fn write_rest(&mut self, families: &[Arc<ColumnFamilyData>]) -> Result<()> {
        if self.running.is_none() || stays(&self.context) {
            return Ok(());
        }
        for family in families {
            let rest = {
                let mut state = family.state();
                if state.mem.is_empty() {
                    continue;
                }
                let log = state.mem.log_number();
                let fresh = self.context.new_replay_memtable(&family.options(), log);
                let rest = std::mem::replace(&mut state.mem, fresh);
                family.publish(&state);
                rest
            };
            self.write(family, rest)?;
        }
        Ok(())
    }

    /// Waits until all are written.
    fn finish(mut self) -> Written {
        if let Some((queue, threads)) = self.running.take() {
            drop(queue);
            drop(threads);
        }
        std::mem::take(&mut *self.written.lock())
    }
}
