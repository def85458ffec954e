//! One column family: its settings, its memtables, its current version.
//!
//! Invariants: (1) `imm` is sorted oldest first, and a flush takes a prefix of it; (2) the super
//! version is published under the lock that guards what it was made from; (3) ids are never used
//! twice in the life of a database.

use orogen_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};

use orogen_base::key::InternalKeyComparator;
use orogen_base::seqno::SEQNO_MAX;
use orogen_base::sync::{self, ArcSwap, Mistake, Mutex, MutexGuard};
use orogen_base::{Error, FileNo, Result, SeqNo};
use orogen_blob::Extent;
use orogen_env::Clock;
use orogen_sst::BlockCache;

use crate::compact::collect::Lull;
use crate::compact::{Plan, Running};
use crate::holes::Waits;
use crate::options::ColumnFamilyOptions;
use crate::pace::FlushProgress;
use crate::plugin::merge_operator::MergeOperator;
use crate::signal::Signal;
use crate::super_version::{MemHandle, SuperVersion};
use crate::tables::FamilyTables;
use crate::version::version::{Era, Version};

/// The family that always exists.
pub const DEFAULT_COLUMN_FAMILY_NAME: &str = "default";

/// What changes in a family.
pub(crate) struct FamilyState {
    /// Takes the writes.
    pub(crate) mem: Arc<MemHandle>,
    /// Sealed memtables, oldest first.
    pub(crate) imm: Vec<Arc<MemHandle>>,
    /// The tables.
    pub(crate) version: Arc<Version>,
    /// Logs before this one hold nothing that the tables lack.
    pub(crate) log_number: FileNo,
    /// A flush of this family runs, of memtables from this id on.
    pub(crate) flushing: Option<u64>,
    /// Sealed memtables up to this id are to be flushed though there are few of them.
    pub(crate) flush_requested_up_to: u64,
    /// Compactions under way, by job.
    pub(crate) running: Vec<(u64, Running)>,
    /// Manual compactions that keep automatic ones out.
    pub(crate) exclusive_manual: usize,
    /// Steps of manual compactions under way or waiting for others.
    pub(crate) manual_running: usize,
    /// What manual compactions wait for, by their ids: nobody else begins anything there.
    pub(crate) claims: Vec<(u64, Running)>,
    /// The epoch that the next file of level 0 gets.
    pub(crate) next_epoch: u64,
    /// When nothing in blob files could be collected.
    pub(crate) nothing_to_collect: Option<NothingToCollect>,
    /// Compactions, and manual ones as wholes, that have ended.
    pub(crate) jobs_ended: u64,
    /// What is done about dead places in blob files.
    pub(crate) holes: Holes,
    /// Blob files that somebody has asked to be looked at for them.
    pub(crate) holes_asked: BTreeSet<FileNo>,
    /// Those that wait do so for long: files of this version that were made since are left to who moves values.
    pub(crate) holes_wait_long: Option<Weak<Version>>,
}

/// For what nothing in blob files was found that could be collected.
pub(crate) struct NothingToCollect {
    pub(crate) version: Weak<Version>,
    pub(crate) options: Weak<ColumnFamilyOptions>,
    /// Jobs were in the way when so many had ended; `None`: there was nothing.
    pub(crate) jobs_ended: Option<u64>,
    /// In a longer lull than this more would have been looked for.
    pub(crate) lull: Lull,
    /// Tables below level 0 were left to compactions, as flushes came.
    pub(crate) left_to_compactions: bool,
}

/// What is done about dead places in the blob files of a family.
#[derive(Default)]
pub(crate) enum Holes {
    /// Nothing.
    #[default]
    Idle,
    /// A job looks for them, or gives them up.
    Running,
    /// They are given up when no version of this era is held.
    Waiting {
        era: Era,
        files: Vec<HolesOfFile>,
        #[expect(dead_code, reason = "it is counted")]
        counted: Option<Waits>,
        since_micros: u64,
        /// Files from this number on were made since.
        made_since: FileNo,
    },
}

/// Places of a file that are to be given up.
pub(crate) struct HolesOfFile {
    pub(crate) number: FileNo,
    /// Whole blocks, in the order of the file.
    pub(crate) extents: Vec<Extent>,
    /// Bytes of them and of those that were made.
    pub(crate) bytes: u64,
    /// Bytes that came back.
    pub(crate) made: u64,
    /// Somebody has asked for them, so they are made whatever the settings say, and whatever they cost.
    pub(crate) is_asked: bool,
}

/// What a job is picked from. Going over the files of a version may take longer than writers are to wait, so
/// it is done without the family's lock, and the job is taken if [`FamilyState::may_take`] says that
/// all is still as it was.
pub(crate) struct Look {
    pub(crate) version: Arc<Version>,
    /// What a pick must keep out of.
    pub(crate) running: Vec<Running>,
    taken_by: Vec<u64>,
    jobs_ended: u64,
}

/// One column family.
pub(crate) struct ColumnFamilyData {
    pub(crate) id: u32,
    pub(crate) name: String,
    /// Folds merge operands; fixed, like everything that reads depend on.
    pub(crate) merge_operator: Option<Arc<dyn MergeOperator>>,
    /// Of the open of the database that it belongs to.
    open_number: u64,
    /// Replaced as a whole by `option_changes.rs`; no read and no write looks at it.
    options: ArcSwap<ColumnFamilyOptions>,
    pub(crate) icmp: InternalKeyComparator,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) tables: Arc<FamilyTables>,
    pub(crate) dropped: AtomicBool,
    /// The keys of what was flushed last were written in their order: what comes next may be, too.
    pub(crate) keys_rise: AtomicBool,
    /// How far its flush is.
    pub(crate) flush_progress: FlushProgress,
    /// Bytes that compactions owe, as of the newest version; for properties and stalls.
    pub(crate) pending_compaction_bytes: AtomicU64,
    /// Held by whoever drops tables of ranges, until they are gone. Taken before the MANIFEST's.
    pub(crate) dropping_tables: Mutex<()>,
    /// Lock rank 2: below the MANIFEST's, above the queues'. No I/O under it.
    state: Mutex<FamilyState>,
    current: ArcSwap<SuperVersion>,
    clock: Arc<dyn Clock>,
    /// Super versions that were replaced, and when; only those that somebody still reads matter.
    /// Leaf lock.
    replaced: Mutex<Vec<(Weak<SuperVersion>, u64)>>,
    /// Set when the family is dropped. The last of the fields: what they refer to is free then.
    gone: OnceLock<RaisedAtDrop>,
}

/// Tells the background that the last who could read a dropped family is gone.
struct RaisedAtDrop(Arc<Signal>);

impl Drop for RaisedAtDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl ColumnFamilyData {
    pub(crate) fn new(
        (id, name): (u32, &str),
        options: ColumnFamilyOptions,
        tables: FamilyTables,
        mem: Arc<MemHandle>,
        version: Arc<Version>,
        log_number: FileNo,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        options.validate()?;
        options.table.validate()?;
        let next_epoch = version.max_epoch_number() + 1;
        let current = SuperVersion {
            mem: mem.table.clone(),
            sealed: Vec::new(),
            version: version.clone(),
            limit: SEQNO_MAX,
        };
        Ok(Self {
            id,
            name: name.to_owned(),
            icmp: InternalKeyComparator::new(options.comparator.clone()),
            merge_operator: options.merge_operator.clone(),
            options: ArcSwap::from_pointee(options),
            open_number: tables.open_number,
            cache: tables.cache.clone(),
            tables: Arc::new(tables),
            dropped: AtomicBool::new(false),
            keys_rise: AtomicBool::new(false),
            flush_progress: FlushProgress::default(),
            pending_compaction_bytes: AtomicU64::new(0),
            dropping_tables: Mutex::default(),
            state: Mutex::new(FamilyState {
                mem,
                imm: Vec::new(),
                version,
                log_number,
                flushing: None,
                flush_requested_up_to: 0,
                running: Vec::new(),
                exclusive_manual: 0,
                manual_running: 0,
                claims: Vec::new(),
                next_epoch,
                nothing_to_collect: None,
                jobs_ended: 0,
                holes: Holes::Idle,
                holes_asked: BTreeSet::new(),
                holes_wait_long: None,
            }),
            current: ArcSwap::from_pointee(current),
            clock,
            replaced: Mutex::default(),
            gone: OnceLock::new(),
        })
    }

    /// Refuses a family of another database than that of `open_number`, or of another open of it: its number means something else
    /// there.
    ///
    /// # Errors
    /// `InvalidArgument`.
    #[inline]
    pub(crate) fn check_is_of(&self, open_number: u64) -> Result<()> {
        match self.open_number == open_number {
            true => Ok(()),
            false => Err(self.of_another()),
        }
    }

    #[cold]
    fn of_another(&self) -> Error {
        Error::invalid_argument("column family is of another database")
            .with("column_family", &self.name)
    }

    /// The state, locked.
    pub(crate) fn state(&self) -> MutexGuard<'_, FamilyState> {
        self.state.lock()
    }

    /// The newest version. What is looked for in it is looked for without the lock.
    pub(crate) fn version(&self) -> Arc<Version> {
        self.state.lock().version.clone()
    }

    /// The settings as they are now. Whoever takes several steps with them takes them once.
    pub(crate) fn options(&self) -> Arc<ColumnFamilyOptions> {
        self.options.load_full()
    }

    /// Takes other settings, which differ only where they may. The caller leads the write path.
    pub(crate) fn set_options(&self, options: Arc<ColumnFamilyOptions>) {
        self.options.store(options);
    }

    /// Publishes the memtables and version of `state` to readers.
    pub(crate) fn publish(&self, state: &FamilyState) {
        self.publish_up_to(state, SEQNO_MAX);
    }

    /// The same for readers that see nothing newer than `limit`.
    pub(crate) fn publish_up_to(&self, state: &FamilyState, limit: SeqNo) {
        // The state is locked: nobody else publishes.
        let old = self.current.load_full();
        self.current.store(Arc::new(SuperVersion {
            mem: state.mem.table.clone(),
            sealed: state.imm.iter().rev().map(|m| m.table.clone()).collect(),
            version: state.version.clone(),
            limit,
        }));
        let mut replaced = self.replaced.lock();
        replaced.retain(|(view, _)| view.strong_count() > 0);
        replaced.push((Arc::downgrade(&old), self.clock.unix_secs()));
    }

    /// The replaced super versions that somebody still has, oldest first: how many have it, and
    /// when it was replaced, in seconds since 1970.
    pub(crate) fn replaced(&self) -> Vec<(Arc<SuperVersion>, usize, u64)> {
        let replaced = self.replaced.lock();
        let held = replaced.iter().filter_map(|(view, secs)| {
            let view = view.upgrade()?;
            let others = Arc::strong_count(&view) - 1;
            (others > 0).then_some((view, others, *secs))
        });
        held.collect()
    }

    /// The memtables and version for one short read.
    #[inline]
    pub(crate) fn load(&self) -> arc_swap::Guard<Arc<SuperVersion>> {
        self.current.load()
    }

    /// The memtables and version for a longer read.
    pub(crate) fn pin(&self) -> Arc<SuperVersion> {
        self.current.load_full()
    }

    /// Raises `work` when the last who could read the family, which is dropped, is gone.
    pub(crate) fn raise_when_gone(&self, work: &Arc<Signal>) {
        self.gone.get_or_init(|| RaisedAtDrop(work.clone()));
    }

    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }
}

impl FamilyState {
    /// Why sealed memtables are to be flushed, if they are.
    pub(crate) fn flush_due(&self, options: &ColumnFamilyOptions) -> Option<&'static str> {
        let oldest = self.imm.first()?.id;
        let enough = self.imm.len() >= options.min_write_buffer_number_to_merge.max(1)
            || self.imm.len() + 1 >= options.max_write_buffer_number;
        match oldest <= self.flush_requested_up_to {
            true => Some("requested"),
            false => enough.then_some("write buffer full"),
        }
    }

    /// The oldest log that is needed even after the flush that is due, if any is.
    pub(crate) fn log_that_stays(&self, options: &ColumnFamilyOptions) -> Option<FileNo> {
        let sealed = self.imm.first().filter(|_| {
            // A flush takes all that is sealed.
            self.flush_due(options).is_none()
        });
        match sealed {
            Some(memtable) => Some(memtable.log_number()),
            None => (!self.mem.is_empty()).then(|| self.mem.log_number()),
        }
    }

    /// True if sealed memtables up to `id` are in tables, and their flush has been told of.
    pub(crate) fn is_flushed(&self, id: u64) -> bool {
        let oldest = self.imm.first().map(|m| m.id);
        oldest.is_none_or(|oldest| oldest > id) && self.flushing.is_none_or(|from| from > id)
    }

    /// True if nothing in blob files was found worth collecting in this version with these settings.
    pub(crate) fn can_collect_nothing(
        &self,
        options: &Arc<ColumnFamilyOptions>,
        lull: Lull,
    ) -> bool {
        let noted = self.nothing_to_collect.as_ref();
        noted.is_some_and(|noted| noted.jobs_ended.is_none())
            && self.has_nothing_to_collect(options, lull, false)
    }

    /// The same, or jobs were in the way that are at it still, or will be: `is_fed`, flushes come to level 0.
    pub(crate) fn has_nothing_to_collect(
        &self,
        options: &Arc<ColumnFamilyOptions>,
        lull: Lull,
        is_fed: bool,
    ) -> bool {
        let noted = self.nothing_to_collect.as_ref();
        noted.is_some_and(|noted| {
            // In the longest lull holes go before files that else are emptied at once.
            let is_longest = |lull| lull == Lull::Long;
            // Pointers that are held weakly are not given out anew.
            is_longest(lull) == is_longest(noted.lull)
                && noted.version.as_ptr() == Arc::as_ptr(&self.version)
                && noted.options.as_ptr() == Arc::as_ptr(options)
                && lull <= noted.lull
                && (is_fed || !noted.left_to_compactions)
                && noted
                    .jobs_ended
                    .is_none_or(|ended| ended == self.jobs_ended)
        })
    }

    /// True if somebody has asked for holes that were not made.
    pub(crate) fn are_holes_asked(&self) -> bool {
        let waits = match &self.holes {
            Holes::Waiting { files, .. } => files.iter().any(|f| f.is_asked),
            Holes::Idle | Holes::Running => false,
        };
        waits || !self.holes_asked.is_empty()
    }

    /// What a pick must keep out of; `own` is the id of a manual compaction, for which only older
    /// ones' claims hold: else two that wait would wait for each other.
    pub(crate) fn taken(&self, own: Option<u64>) -> Vec<Running> {
        let claimed = self
            .claims
            .iter()
            .filter(|c| own.is_none_or(|own| c.0 < own));
        let all = self.running.iter().chain(claimed);
        all.map(|r| r.1.clone()).collect()
    }

    /// Notes what a job is picked from; `own` as for [`Self::taken`].
    pub(crate) fn look(&self, own: Option<u64>) -> Look {
        Look {
            version: self.version.clone(),
            running: self.taken(own),
            taken_by: self.taken_by(),
            jobs_ended: self.jobs_ended,
        }
    }

    /// True if a plan that was made of `look` can be taken: nothing that it was made of has changed, and nobody
    /// has its tables.
    pub(crate) fn may_take(&self, look: &Look, plan: &Plan) -> bool {
        if sync::makes(Mistake::TakeWithoutLooking) {
            return true;
        }
        // Who deletes tables of a range marks them, and is no job.
        self.is_as(look) && plan.input_files().all(|(_, f)| !f.is_busy())
    }

    /// True if the version is the same, and no job began or ended.
    pub(crate) fn is_as(&self, look: &Look) -> bool {
        Arc::ptr_eq(&self.version, &look.version)
            && self.jobs_ended == look.jobs_ended
            && self.taken_by() == look.taken_by
    }

    fn taken_by(&self) -> Vec<u64> {
        let all = self.running.iter().chain(&self.claims);
        all.map(|r| r.0).collect()
    }

    /// The oldest log that is needed to rebuild what the tables lack.
    pub(crate) fn min_log_needed(&self) -> FileNo {
        self.imm
            .first()
            .map_or_else(|| self.mem.log_number(), |m| m.log_number())
    }
}
