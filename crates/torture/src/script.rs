//! A fixed list of calls, and what the database must hold after each of its batches.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen_env::FileSystem;

use crate::engine::{
    BackupEngine, BackupOptions, CheckpointOptions, CollectBlobGarbageOptions, ColumnFamily,
    ColumnFamilyOptions, CompactRangeOptions, CompactionHandle, ConvertTo, ConvertValuesOptions,
    Db, Error, ErrorKind, FlushOptions, Options, Result, UserKeyRange, WriteBatch, WriteOptions,
    merge_operator,
};
use crate::model::{Family, Model, Op, Prints};

/// Where the database of a script is.
pub const DIR: &str = "/db";

/// A family of this name is made with a larger memtable, so that it pins old logs.
pub const COLD: Family = "cold";

/// One call.
#[derive(Clone, Debug)]
pub enum Step {
    /// Writes a batch.
    Write {
        /// Its operations.
        ops: Vec<Op>,
        /// With sync.
        sync: bool,
        /// Without WAL.
        disable_wal: bool,
    },
    /// Prepares a batch under a name.
    Prepare {
        /// The name.
        name: &'static str,
        /// Its operations.
        ops: Vec<Op>,
        /// With sync.
        sync: bool,
    },
    /// Commits what is prepared under a name, with sync or without.
    CommitPrepared(&'static str, bool),
    /// Rolls back what is prepared under a name, with sync or without.
    RollbackPrepared(&'static str, bool),
    /// Syncs the WAL.
    SyncWal,
    /// Flushes families and waits.
    Flush(Vec<Family>),
    /// Compacts all of a family.
    Compact(Family),
    /// Waits until background work is done.
    Wait,
    /// Makes a family.
    Create(Family),
    /// Drops a family.
    Drop(Family),
    /// Makes a checkpoint in a directory of this number.
    Checkpoint(u32),
    /// Makes a backup.
    Backup,
    /// Deletes all but so many backups.
    Purge(usize),
    /// Makes a database of the newest backup in a directory of this number.
    Restore(u32),
    /// Flushes and compacts a family, then drops all its tables. Needs a database without
    /// compactions of its own, and families that nothing else writes to.
    DropFiles(Family),
    /// Deletes the keys of a family from the first up to but not including the second, with sync, and
    /// drops the tables that lie between them, which then change nothing that is seen.
    DropRange(Family, Vec<u8>, Vec<u8>),
    /// Compacts all of a family on a thread of its own, with a pause.
    CompactPaused(Family),
    /// Begins to compact a family, and cancels that.
    CompactCancelled(Family),
    /// Moves values out of blob files with garbage, and out of small ones.
    Collect(Family),
    /// The same on a thread of its own, with a pause.
    CollectPaused(Family),
    /// Begins to move them, and cancels that.
    CollectCancelled(Family),
    /// Brings the values of a family to blob files, or back into its tables.
    Convert(Family, ConvertTo),
    /// Begins to bring them there, and cancels that.
    ConvertCancelled(Family, ConvertTo),
    /// Changes a setting of a family.
    Set(Family, &'static str, &'static str),
    /// Reads all writes back from the logs, which have to be there.
    Updates,
    /// Closes and opens the database.
    Reopen,
}

/// The settings of a script's database on a file system.
pub type MakeOptions = Arc<dyn Fn() -> Options + Send + Sync>;

/// A fixed list of calls on a new database.
#[derive(Clone)]
pub struct Script {
    /// Its name on the command line.
    pub name: String,
    /// The settings.
    pub options: MakeOptions,
    /// The calls.
    pub steps: Vec<Step>,
    /// Families that are written without WAL; they form a history of their own.
    pub unlogged: &'static [Family],
    /// Every so many of its calls are made to fail, but where all are asked for; 0: none ever. For
    /// long scripts, in which calls are much like each other.
    pub fault_stride: u64,
}

impl Script {
    /// The settings on `fs`.
    #[must_use]
    pub fn options_on(&self, fs: Arc<dyn FileSystem>) -> Options {
        let mut options = (self.options)();
        options.db.fs = fs;
        options
    }

    /// It can be run with calls that fail.
    #[must_use]
    pub fn takes_faults(&self) -> bool {
        self.unlogged.is_empty() && self.fault_stride > 0
    }

    /// The group of a family: those of one group form one history.
    #[must_use]
    pub fn group(&self, family: &str) -> usize {
        usize::from(self.unlogged.contains(&family))
    }
}

/// Settings under which little data makes files: small memtables, small tables.
#[must_use]
pub fn small_options() -> Options {
    let mut options = Options::default();
    options.db.info_log = false;
    options.db.create_if_missing = true;
    options.db.bgerror_resume_retry_interval = 16_000;
    options.cf = small_family();
    options
}

/// The family settings of [`small_options`].
#[must_use]
pub fn small_family() -> ColumnFamilyOptions {
    let mut cf = ColumnFamilyOptions {
        write_buffer_size: 4 << 10,
        merge_operator: merge_operator::by_name("stringappend"),
        target_file_size_base: 4 << 10,
        max_bytes_for_level_base: 16 << 10,
        level0_file_num_compaction_trigger: 3,
        ..ColumnFamilyOptions::default()
    };
    cf.table.block_size = 512;
    cf
}

/// Does one call on an open database. `Reopen` and `Wait`ing belong to the caller.
///
/// # Errors
/// What the call gives.
pub fn call(db: &Db, step: &Step, options: &Options) -> Result<()> {
    match step {
        Step::Write {
            ops,
            sync,
            disable_wal,
        } => {
            let mut batch = batch_of(db, ops);
            let how = WriteOptions {
                sync: *sync,
                disable_wal: *disable_wal,
                ..WriteOptions::default()
            };
            db.write_opt(&how, &mut batch)
        }
        Step::Prepare { name, ops, sync } => {
            db.prepare(&synced(*sync), name.as_bytes(), batch_of(db, ops))
        }
        Step::CommitPrepared(name, sync) => db.commit_prepared(&synced(*sync), name.as_bytes()),
        Step::RollbackPrepared(name, sync) => db.rollback_prepared(&synced(*sync), name.as_bytes()),
        Step::SyncWal => db.sync_wal(),
        Step::Flush(names) => {
            let families: Vec<ColumnFamily> = names
                .iter()
                .filter_map(|name| db.column_family(name))
                .collect();
            db.flush_opt(&FlushOptions::default(), &families)
        }
        Step::Compact(name) => match db.column_family(name) {
            Some(family) => db.compact_range(&CompactRangeOptions::default(), &family, None, None),
            None => Ok(()),
        },
        Step::Wait => db.wait_for_background_work(),
        Step::Create(name) => {
            let mut family = options.cf.clone();
            if *name == COLD {
                family.write_buffer_size = 64 << 10;
            }
            db.create_column_family(name, family).map(|_| ())
        }
        Step::Drop(name) => match db.column_family(name) {
            Some(family) => db.drop_column_family(&family),
            None => Ok(()),
        },
        Step::Checkpoint(n) => {
            let options = CheckpointOptions {
                log_size_for_flush: if flushes_before_checkpoint(*n) {
                    0
                } else {
                    u64::MAX
                },
            };
            db.checkpoint_opt(&options, checkpoint_dir(*n))
        }
        Step::Backup => backups(options)?.create_backup(db).map(|_| ()),
        Step::Purge(keep) => backups(options)?.purge_old(*keep).map(|_| ()),
        Step::Restore(n) => {
            let engine = backups(options)?;
            match engine.list()?.last() {
                Some(newest) => engine.restore(newest.id, restored_dir(*n)),
                None => Ok(()),
            }
        }
        Step::DropFiles(name) => match db.column_family(name) {
            Some(family) => {
                db.flush_opt(&FlushOptions::default(), std::slice::from_ref(&family))?;
                db.compact_range(&CompactRangeOptions::default(), &family, None, None)?;
                db.delete_files_in_ranges(&family, &[UserKeyRange::default()], false)
                    .map(|_| ())
            }
            None => Ok(()),
        },
        Step::DropRange(name, from, to) => match db.column_family(name) {
            Some(family) => {
                db.delete_range_opt(&synced(true), &family, from, to)?;
                db.delete_files_in_ranges(&family, &[UserKeyRange::new(from, to)], false)
                    .map(|_| ())
            }
            None => Ok(()),
        },
        Step::CompactPaused(name) => match begin_to_compact(db, name)? {
            Some(handle) => pause(db, &handle),
            None => Ok(()),
        },
        Step::Collect(name) => match db.column_family(name) {
            Some(family) => db.collect_blob_garbage(&ALL_GARBAGE, &family),
            None => Ok(()),
        },
        Step::CollectPaused(name) => match db.column_family(name) {
            Some(family) => pause(db, &db.collect_blob_garbage_async(&ALL_GARBAGE, &family)?),
            None => Ok(()),
        },
        Step::CollectCancelled(name) => match db.column_family(name) {
            Some(family) => cancel(&db.collect_blob_garbage_async(&ALL_GARBAGE, &family)?),
            None => Ok(()),
        },
        Step::ConvertCancelled(name, to) => match db.column_family(name) {
            Some(family) => {
                let options = ConvertValuesOptions::default();
                cancel(db.convert_values_async(&family, *to, &options)?.job())
            }
            None => Ok(()),
        },
        Step::Convert(name, to) => match db.column_family(name) {
            Some(family) => {
                let converted =
                    db.convert_values(&family, *to, &ConvertValuesOptions::default())?;
                match converted.is_whole() {
                    true => Ok(()),
                    false => Err(Error::corruption("values were left where they were")
                        .with("tables", format_args!("{:?}", converted.tables_left))
                        .with(
                            "blob_files",
                            format_args!("{:?}", converted.blob_files_left),
                        )),
                }
            }
            None => Ok(()),
        },
        Step::Set(name, option, value) => match db.column_family(name) {
            Some(family) => db.set_options(&family, &[(*option, *value)]),
            None => Ok(()),
        },
        Step::CompactCancelled(name) => match begin_to_compact(db, name)? {
            Some(handle) => cancel(&handle),
            None => Ok(()),
        },
        Step::Updates => read_updates(db),
        Step::Reopen => db.close(),
    }
}

/// Any garbage, and small files too.
const ALL_GARBAGE: CollectBlobGarbageOptions = CollectBlobGarbageOptions {
    discardable_ratio: 0.0,
    merge_small_files: true,
};

fn pause(db: &Db, handle: &CompactionHandle) -> Result<()> {
    handle.pause();
    db.get(b"key000")?;
    handle.resume();
    handle.wait()
}

fn cancel(handle: &CompactionHandle) -> Result<()> {
    handle.cancel();
    handle.wait().or_else(|e| match e.kind() {
        ErrorKind::Aborted => Ok(()),
        _ => Err(e),
    })
}

fn synced(sync: bool) -> WriteOptions {
    WriteOptions {
        sync,
        ..WriteOptions::default()
    }
}

/// Where the backups of a script are.
pub const BACKUPS: &str = "/backups";

/// Opens the backups on a script's file system.
///
/// # Errors
/// `Io`, `NoSpace`.
pub fn backups(options: &Options) -> Result<BackupEngine> {
    let how = BackupOptions {
        fs: options.db.fs.clone(),
        ..BackupOptions::default()
    };
    BackupEngine::open(BACKUPS, how)
}

fn begin_to_compact(db: &Db, name: &str) -> Result<Option<CompactionHandle>> {
    match db.column_family(name) {
        Some(family) => db
            .compact_range_async(&CompactRangeOptions::default(), &family, None, None)
            .map(Some),
        None => Ok(None),
    }
}

/// Reads every write from the first one on.
///
/// # Errors
/// What the logs give; `Corruption` if writes are missing or come twice.
pub fn read_updates(db: &Db) -> Result<()> {
    let last = db.latest_sequence_number();
    let mut next = 1;
    if last == 0 {
        return Ok(());
    }
    for update in db.get_updates_since(next)? {
        let update = update?;
        if update.batch.count() > 0 && update.sequence != next {
            return Err(Error::corruption("updates are not one after the other")
                .with("expected", next)
                .with("found", update.sequence));
        }
        next = next.max(update.next_sequence());
    }
    if next <= last {
        return Err(Error::corruption("the last updates are missing").with("next", next));
    }
    Ok(())
}

/// The engine's batch of operations; those on families that are not there are left out.
fn batch_of(db: &Db, ops: &[Op]) -> WriteBatch {
    let mut ids: BTreeMap<Family, Option<u32>> = BTreeMap::new();
    let mut batch = WriteBatch::new();
    for op in ops {
        let family = op.family();
        let id = *ids
            .entry(family)
            .or_insert_with(|| db.column_family(family).map(|family| family.id()));
        if let Some(id) = id {
            op.add_to(&mut batch, id);
        }
    }
    batch
}

/// Where the restored backup `n` of a script is.
#[must_use]
pub fn restored_dir(n: u32) -> String {
    format!("/restored{n}")
}

/// Whether checkpoint `n` of a script has everything in tables, or the logs as they are.
pub(crate) fn flushes_before_checkpoint(n: u32) -> bool {
    n.is_multiple_of(2)
}

/// Where checkpoint `n` of a script is.
#[must_use]
pub fn checkpoint_dir(n: u32) -> String {
    format!("/checkpoint{n}")
}

/// What the database holds after a number of batches.
#[derive(Clone, Debug)]
struct State {
    /// Content of each family that is there.
    prints: Prints,
    /// How many families of each name were made so far.
    births: BTreeMap<Family, u32>,
}

/// What a script's database must hold at every point of its history.
pub struct Plan {
    /// After 0, 1, 2, ... batches.
    states: Vec<State>,
    /// Families with their number of births, after 0, 1, 2, ... creations and drops.
    structures: Vec<BTreeMap<Family, u32>>,
}

impl Plan {
    /// Runs the model through the script.
    #[must_use]
    pub fn of(script: &Script) -> Self {
        let mut model = Model::new();
        let mut births = BTreeMap::from([("default", 1)]);
        let state = |model: &Model, births: &BTreeMap<Family, u32>| State {
            prints: model.prints(),
            births: births.clone(),
        };
        let alive = |model: &Model, births: &BTreeMap<Family, u32>| {
            model
                .families
                .keys()
                .map(|f| (*f, births[f]))
                .collect::<BTreeMap<_, _>>()
        };
        let mut plan = Self {
            states: vec![state(&model, &births)],
            structures: vec![alive(&model, &births)],
        };
        for step in &script.steps {
            match step {
                Step::Write { .. }
                | Step::Prepare { .. }
                | Step::CommitPrepared(..)
                | Step::RollbackPrepared(..) => {
                    model.write(step);
                    plan.states.push(state(&model, &births));
                }
                Step::DropFiles(name) => {
                    if let Some(pairs) = model.families.get_mut(name) {
                        pairs.clear();
                    }
                    plan.states.push(state(&model, &births));
                }
                Step::DropRange(name, from, to) => {
                    model.apply(&Op::DeleteRange(name, from.clone(), to.clone()));
                    plan.states.push(state(&model, &births));
                }
                Step::Create(name) => {
                    model.families.insert(name, BTreeMap::new());
                    *births.entry(name).or_insert(0) += 1;
                    plan.structures.push(alive(&model, &births));
                }
                Step::Drop(name) => {
                    model.families.remove(name);
                    plan.structures.push(alive(&model, &births));
                }
                _ => {}
            }
        }
        plan
    }

    /// How many batches the script has.
    #[must_use]
    pub fn batches(&self) -> usize {
        self.states.len() - 1
    }

    /// The families after so many creations and drops, each with its number of births.
    #[must_use]
    pub fn structure(&self, changes: usize) -> &BTreeMap<Family, u32> {
        &self.structures[changes]
    }

    /// The content of family `name` in its `birth`-th life after `batches` batches.
    #[must_use]
    pub fn print(&self, batches: usize, name: &str, birth: u32) -> u64 {
        let state = &self.states[batches];
        match state.births.get(name) {
            Some(&b) if b == birth => state.prints.get(name).copied().unwrap_or(0),
            _ => 0,
        }
    }
}

/// How far a run of a script came.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// The database was opened once.
    pub opened: bool,
    /// Batches handed to the engine.
    pub begun: usize,
    /// By group: batches that survive the end of the process.
    pub acknowledged: [usize; 2],
    /// By group: batches that survive a power loss.
    pub durable: [usize; 2],
    /// Creations and drops handed to the engine.
    pub changes_begun: usize,
    /// Creations and drops that succeeded.
    pub changes_done: usize,
    /// Checkpoints handed to the engine: number, batches, changes, and whether it succeeded.
    pub checkpoints: Vec<(u32, usize, usize, bool)>,
    /// Backups handed to the engine, the first one has the number 1: batches, changes, and whether
    /// it succeeded.
    pub backups: Vec<(usize, usize, bool)>,
    /// Backups up to this number may be deleted.
    pub purge_begun: usize,
    /// Backups up to this number are deleted.
    pub purge_done: usize,
    /// Restored directories: number, the number of the backup, and whether it succeeded.
    pub restored: Vec<(u32, usize, bool)>,
    /// By family: the last batch that touched it.
    touched: BTreeMap<Family, usize>,
    /// By name: the families of what is prepared.
    prepared: BTreeMap<&'static str, Vec<Family>>,
}

impl Progress {
    /// Notes that a call begins.
    pub fn begin(&mut self, step: &Step) {
        match step {
            Step::Write { ops, .. } => {
                self.begun += 1;
                for op in ops {
                    self.touched.insert(op.family(), self.begun);
                }
            }
            Step::Prepare { name, ops, .. } => {
                self.begun += 1;
                let families = ops.iter().map(Op::family).collect();
                self.prepared.insert(name, families);
            }
            Step::CommitPrepared(name, _) => {
                self.begun += 1;
                for family in self.prepared.remove(name).unwrap_or_default() {
                    self.touched.insert(family, self.begun);
                }
            }
            Step::RollbackPrepared(name, _) => {
                self.begun += 1;
                self.prepared.remove(name);
            }
            Step::Create(_) | Step::Drop(_) => self.changes_begun += 1,
            Step::Checkpoint(n) => {
                self.checkpoints
                    .push((*n, self.begun, self.changes_begun, false));
            }
            Step::DropFiles(name) | Step::DropRange(name, ..) => {
                self.begun += 1;
                self.touched.insert(name, self.begun);
            }
            Step::Backup => self.backups.push((self.begun, self.changes_begun, false)),
            Step::Purge(keep) => self.purge_begun = self.backups.len().saturating_sub(*keep),
            Step::Restore(n) => self.restored.push((*n, self.backups.len(), false)),
            _ => {}
        }
    }

    /// Notes that the call succeeded.
    pub fn end(&mut self, script: &Script, step: &Step) {
        match step {
            Step::Write {
                disable_wal: true, ..
            } => {}
            Step::Write { sync, .. }
            | Step::Prepare { sync, .. }
            | Step::CommitPrepared(_, sync)
            | Step::RollbackPrepared(_, sync) => {
                self.acknowledged[0] = self.begun;
                if *sync {
                    self.durable[0] = self.begun;
                }
            }
            Step::DropRange(..) => {
                self.acknowledged[0] = self.begun;
                self.durable[0] = self.begun;
            }
            Step::SyncWal => self.durable[0] = self.acknowledged[0],
            Step::Flush(names) => self.flushed(script, names),
            Step::Compact(name)
            | Step::CompactPaused(name)
            | Step::DropFiles(name)
            | Step::Convert(name, _) => {
                self.flushed(script, &[*name]);
            }
            Step::Create(_) | Step::Drop(_) => self.changes_done = self.changes_begun,
            Step::Checkpoint(n) => {
                if let Some(last) = self.checkpoints.last_mut() {
                    last.3 = true;
                }
                if !flushes_before_checkpoint(*n) {
                    return;
                }
                let all: Vec<Family> = self.touched.keys().copied().collect();
                self.flushed(script, &all);
            }
            // A clean close flushes what was written without WAL.
            Step::Reopen => {
                self.acknowledged = [self.begun; 2];
                self.durable[1] = self.begun;
            }
            Step::Backup => {
                if let Some(last) = self.backups.last_mut() {
                    last.2 = true;
                }
            }
            Step::Purge(_) => self.purge_done = self.purge_begun,
            Step::Restore(_) => {
                if let Some(last) = self.restored.last_mut() {
                    last.2 = true;
                }
            }
            Step::Wait
            | Step::CompactCancelled(_)
            | Step::Collect(_)
            | Step::CollectPaused(_)
            | Step::CollectCancelled(_)
            | Step::ConvertCancelled(..)
            | Step::Set(..)
            | Step::Updates => {}
        }
    }

    fn flushed(&mut self, script: &Script, names: &[Family]) {
        for name in names {
            let batch = self.touched.get(name).copied().unwrap_or(0);
            let group = script.group(name);
            self.durable[group] = self.durable[group].max(batch);
            self.acknowledged[group] = self.acknowledged[group].max(batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::print_of_pair;

    fn put(family: Family, key: &str, sync: bool) -> Step {
        let ops = vec![Op::Put(family, key.into(), b"v".to_vec())];
        Step::Write {
            ops,
            sync,
            disable_wal: false,
        }
    }

    fn script(steps: Vec<Step>) -> Script {
        Script {
            name: "test".to_owned(),
            options: Arc::new(small_options),
            steps,
            unlogged: &[],
            fault_stride: 1,
        }
    }

    #[test]
    fn a_family_that_comes_again_starts_empty() {
        let plan = Plan::of(&script(vec![
            Step::Create("a"),
            put("a", "x", false),
            Step::Drop("a"),
            put("default", "y", false),
            Step::Create("a"),
            put("a", "z", false),
        ]));
        assert_eq!(plan.batches(), 3);
        assert_eq!(plan.print(1, "a", 1), print_of_pair(b"x", b"v"));
        assert_eq!(plan.print(1, "a", 2), 0);
        assert_eq!(plan.print(3, "a", 2), print_of_pair(b"z", b"v"));
        assert_eq!(plan.structure(2).len(), 1);
        assert_eq!(plan.structure(3)["a"], 2);
    }

    #[test]
    fn what_is_durable_follows_from_the_calls() {
        let steps = vec![
            put("default", "a", true),
            put("default", "b", false),
            put("other", "c", false),
            Step::Flush(vec!["default"]),
        ];
        let script = script(steps.clone());
        let mut progress = Progress::default();
        let mut durable = Vec::new();
        for step in &steps {
            progress.begin(step);
            progress.end(&script, step);
            durable.push(progress.durable[0]);
        }
        assert_eq!(durable, [1, 1, 1, 2]);
        assert_eq!(progress.acknowledged[0], 3);
    }
}
