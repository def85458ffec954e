//! The database: public methods of a few lines, each calling one verb above.

use std::path::Path;
use std::sync::{Arc, Weak};

use orogen_base::metrics::Statistics;
use orogen_base::{Error, KeyRange, PinnedValue, Result, SeqNo};

use crate::activity::JobInfo;
use crate::batch::WriteBatch;
use crate::blob_files::{self, BlobFileCheck, BlobFilesFound, LiveBlobFile};
use crate::checkpoint;
use crate::column_family::{ColumnFamilyData, DEFAULT_COLUMN_FAMILY_NAME};
use crate::context::Context;
use crate::core::Core;
use crate::events::{Converted, DamagedBlobFile, DamagedTable};
use crate::follower::{self, Follower};
use crate::jobs::blob_conversion::{self, ConversionHandle};
use crate::jobs::compaction_handle::CompactionHandle;
use crate::jobs::{blob_collection, manual_compaction, manual_flush};
use crate::obsolete;
use crate::open;
use crate::option_changes;
use crate::options::{
    CheckpointOptions, CollectBlobGarbageOptions, ColumnFamilyOptions, CompactRangeOptions,
    ConvertTo, ConvertValuesOptions, DbOptions, FlushOptions, Options, WriteOptions,
};
use crate::options_map;
use crate::prepared::PreparedWrite;
use crate::properties;
use crate::quarantine;
use crate::ranges::{self, DeletedFiles, SizeApproximationOptions, UserKeyRange};
use crate::read::{ReadOptions, Snapshot, Written};
use crate::report::{self, Holders};
use crate::resume;
use crate::scrub::{self, FilesVerified, Scrubbed, VerifyOptions};
use crate::updates::{self, UpdatesIterator};
use crate::view::{self, DbIterator};
use crate::write::commit::WritePath;

/// A column family of an open database.
#[derive(Clone)]
pub struct ColumnFamily(pub(crate) Arc<ColumnFamilyData>);

impl ColumnFamily {
    /// The number that batches name it by.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its settings as they are now; see [`Db::set_options`].
    #[must_use]
    pub fn options(&self) -> Arc<ColumnFamilyOptions> {
        self.0.options()
    }
}

/// Tells whether a [`ColumnFamily`] is the one that it was made of, and keeps nothing of it alive.
#[derive(Clone)]
pub struct ColumnFamilyIdentity(Weak<ColumnFamilyData>);

impl ColumnFamilyIdentity {
    /// What tells `family` from all others, of other databases too.
    #[must_use]
    pub fn of(family: &ColumnFamily) -> Self {
        Self(Arc::downgrade(&family.0))
    }

    /// True if it was made of this family.
    #[inline]
    #[must_use]
    pub fn is_of(&self, family: &ColumnFamily) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&family.0))
    }

    /// Looks whether a batch of so many operations and bytes, with one for this family among them, is something that the family's
    /// memtable takes at once. Of a family that is gone there is nothing to say.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn check_batch_size(&self, operations: usize, bytes: usize) -> Result<()> {
        let Some(family) = self.0.upgrade() else {
            return Ok(());
        };
        let view = family.load();
        let mut memtables = view.memtables();
        memtables
            .next()
            .map_or(Ok(()), |active| active.check_group(operations, bytes))
    }
}

impl std::fmt::Debug for ColumnFamily {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.0.name, self.0.id)
    }
}

fn manual_request(
    options: &CompactRangeOptions,
    family: &ColumnFamily,
    begin: Option<&[u8]>,
    end: Option<&[u8]>,
) -> manual_compaction::Request {
    manual_compaction::Request {
        family: family.0.clone(),
        options: *options,
        begin: begin.map(<[u8]>::to_vec),
        end: end.map(<[u8]>::to_vec),
    }
}

/// An open database. Clones share it; the last one to go closes it.
#[derive(Clone)]
pub struct Db {
    core: Arc<Core>,
    /// Only of a secondary.
    follower: Option<Arc<Follower>>,
}

impl Db {
    /// Opens the database in `path` with all its column families. Families that `options` does
    /// not name get the settings in `options.cf`. Logs behind a place where
    /// [`crate::DbOptions::wal_recovery_mode`] stops are deleted, also where the open fails later,
    /// unless [`crate::DbOptions::refuse_log_damage`] refuses them.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not there (or is, and must not be), or was written with
    /// another key order; `Busy` if somebody has it open; `Corruption`, `NotSupported`, `Io`.
    pub fn open(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let core = open::recover::open(path.as_ref(), options, open::recover::Mode::ReadWrite)?;
        Ok(Self {
            core: Arc::new(core),
            follower: None,
        })
    }

    /// Opens the database in `path` to read it, as it is now, without changing a byte. Another
    /// process may have it open.
    ///
    /// # Errors
    /// As [`Self::open`]; `Busy` if another process gives up logs each time that they are looked for. So are reads of a file that
    /// it has removed since.
    pub fn open_read_only(path: impl AsRef<Path>, options: &Options) -> Result<Self> {
        let core = open::recover::open(path.as_ref(), options, open::recover::Mode::ReadOnly)?;
        Ok(Self {
            core: Arc::new(core),
            follower: None,
        })
    }

    /// Opens the database in `path` to follow it while another process, ours or RocksDB's, has it
    /// open and writes. No file there is made, changed, locked or removed; a LOG of its own goes
    /// to `secondary_path`, or nowhere. It shows what the primary had written when it was opened;
    /// later writes appear with [`Self::try_catch_up_with_primary`].
    ///
    /// All tables are opened at once and stay open, so that they stay readable when the primary
    /// removes them. What the logs hold is kept in memory until the primary has flushed it.
    /// Writes that the primary does without WAL appear when it has flushed them. Options are given
    /// as for [`Self::open_read_only`].
    ///
    /// # Errors
    /// `InvalidArgument` if there is no database, or `secondary_path` is `path`; `Corruption`,
    /// `NotSupported`, `Io`.
    pub fn open_as_secondary(
        path: impl AsRef<Path>,
        secondary_path: Option<&Path>,
        options: &Options,
    ) -> Result<Self> {
        let follower = follower::open(path.as_ref(), secondary_path, options)?;
        let context = follower.context().clone();
        let default_family = context
            .set
            .family(0)
            .ok_or_else(|| Error::corruption("MANIFEST has no default column family"))?;
        let write = Arc::new(WritePath::new(context.clone()));
        let core = Core {
            context,
            write,
            default_family,
            background: None,
        };
        Ok(Self {
            core: Arc::new(core),
            follower: Some(Arc::new(follower)),
        })
    }

    /// Takes up what the primary has written since; see [`Self::open_as_secondary`].
    ///
    /// Each family moves to the new state at once; readers that hold several families together
    /// take a [`Self::snapshot`], which is of one state of all. Iterators and snapshots keep
    /// their view. A family that the primary has made appears; one that it has dropped is not
    /// listed any more, and its handle shows what it last saw. A record, a log or a MANIFEST
    /// whose end is missing was not written yet, and is taken the next time.
    ///
    /// # Errors
    /// `NotSupported` if this is no secondary; `Busy` if the primary changes its files faster
    /// than they can be opened; `InvalidArgument` if the directory is another database's by now;
    /// `Corruption`, `Io`. What was shown before is shown on.
    pub fn try_catch_up_with_primary(&self) -> Result<()> {
        match &self.follower {
            Some(follower) => follower.catch_up(),
            None => Err(Error::not_supported(
                "database was not opened as a secondary",
            )),
        }
    }

    /// The names of the families in `path`, without opening it.
    ///
    /// # Errors
    /// `Corruption`, `Io`; `InvalidArgument` if there is no database.
    pub fn list_column_families(path: impl AsRef<Path>, options: &Options) -> Result<Vec<String>> {
        open::recover::list_column_families(path.as_ref(), options)
    }

    /// Deletes the database in `path` with all its files; foreign files stay.
    ///
    /// # Errors
    /// `Busy` if somebody has it open; `Io`.
    pub fn destroy(path: impl AsRef<Path>, options: &Options) -> Result<()> {
        open::destroy::destroy(path.as_ref(), options)
    }

    /// The parts, for modules that work on a whole database.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    fn context(&self) -> &Arc<Context> {
        &self.core.context
    }

    /// Refuses handles of another database: their numbers mean something else here.
    fn check_own(&self, families: &[ColumnFamily]) -> Result<()> {
        let mut families = families.iter();
        families.try_for_each(|family| family.0.check_is_of(self.context().open_number))
    }

    /// Refuses a family of another database, or of an earlier open of this one: its number may mean something else here.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_column_family(&self, family: &ColumnFamily) -> Result<()> {
        self.check_own(std::slice::from_ref(family))
    }

    /// The family that always exists.
    #[must_use]
    pub fn default_column_family(&self) -> ColumnFamily {
        ColumnFamily(self.core.default_family.clone())
    }

    /// A family by name.
    #[must_use]
    pub fn column_family(&self, name: &str) -> Option<ColumnFamily> {
        self.context().set.family_named(name).map(ColumnFamily)
    }

    /// All families in the order of their ids.
    #[must_use]
    pub fn column_families(&self) -> Vec<ColumnFamily> {
        self.context()
            .set
            .families()
            .into_iter()
            .map(ColumnFamily)
            .collect()
    }

    /// Makes a family.
    ///
    /// # Errors
    /// `InvalidArgument` if the name is taken or a setting is out of bounds; `ReadOnly`, `Io`.
    pub fn create_column_family(
        &self,
        name: &str,
        options: ColumnFamilyOptions,
    ) -> Result<ColumnFamily> {
        let core = &self.core;
        core.context.check_writable()?;
        let create = || open::families::create(&core.context, &core.write, name, options);
        let created = core.write.exclusive(create);
        // Of what the OPTIONS file met too.
        core.context.tell_failure();
        created.map(ColumnFamily)
    }

    /// Changes settings of a family under RocksDB's names, with values as an OPTIONS file has
    /// them: `[("write_buffer_size", "32m"), ("compression", "kZSTD")]`; those of tables as
    /// `("block_based_table_factory", "{block_size=16384;}")`. All of one call change, or none.
    ///
    /// May change: `write_buffer_size` (from the next memtable on), `max_write_buffer_number`,
    /// the triggers of level 0, the pending-bytes limits, sizes of files and levels and their
    /// multipliers, `max_compaction_bytes`, `ttl`, `periodic_compaction_seconds`,
    /// `disable_auto_compactions` (from the next look on, which follows at once), all settings of
    /// compression and of blob files but `blob_cache`, `paranoid_file_checks`, `prefix_extractor`, and of tables what their
    /// files are made by (from the next job on). When it
    /// returns, a new OPTIONS file that holds the values is on disk for
    /// [`Self::load_latest_options`]; [`Self::open`] itself does not take them from there.
    ///
    /// # Errors
    /// `InvalidArgument` naming the `option` if it is not known, may not change, or has no such
    /// value; `ReadOnly`, `Closed`; `Io` or `NoSpace` if the file cannot be written. Nothing has
    /// changed then, and the file is removed. Where its name could not be synced, and not for want of space, the database is
    /// read-only until it is opened anew.
    pub fn set_options(&self, family: &ColumnFamily, changes: &[(&str, &str)]) -> Result<()> {
        self.check_own(std::slice::from_ref(family))?;
        option_changes::set_options(&self.core, &family.0, changes)
    }

    /// Changes settings of the database in the same way: `max_background_jobs`,
    /// `max_subcompactions`, `max_background_gc`, `flush_halves_bytes`, `max_total_wal_size`, `delayed_write_rate`,
    /// `bytes_per_sync`, `avoid_flush_during_shutdown`. The rate of background writes is changed at the
    /// [`orogen_env::RateLimiter`] itself.
    ///
    /// # Errors
    /// See [`Self::set_options`].
    pub fn set_db_options(&self, changes: &[(&str, &str)]) -> Result<()> {
        option_changes::set_db_options(&self.core, changes)
    }

    /// The settings of the database as they are now.
    #[must_use]
    pub fn db_options(&self) -> Arc<DbOptions> {
        self.context().db_options()
    }

    /// The settings that the newest OPTIONS file in `path` holds, over `base` for what it
    /// does not hold: file system, clock, caches, memory budget, rate limiter, statistics, plugins, listeners, kinds of memtables,
    /// `create_if_missing` and its like, `refuse_log_damage`, `blob_cache`, `compact_on_deletion`,
    /// `memtable_protection_bytes_per_key`, `block_protection_bytes_per_key`, `max_size_amplification_percent`,
    /// `recompress_bottommost_files` and what the info LOG says. Of operators and orders the
    /// file has only names; those that are built in are taken where `base` has none. Where the file asks
    /// for tables of a newer format than we write, they will be of format 6.
    ///
    /// # Errors
    /// `NotFound` if there is no OPTIONS file; `Corruption` if it does not parse;
    /// `InvalidArgument` naming an `option` whose value we do not have; `Io`.
    pub fn load_latest_options(path: impl AsRef<Path>, base: &Options) -> Result<Options> {
        options_map::load(path.as_ref(), base, &mut Err)
    }

    /// The same without the settings whose values we do not have: they are as in `base`, and told, each as the
    /// `InvalidArgument` that [`Self::load_latest_options`] would give. A writer that is opened with
    /// these settings writes a file with those of `base` in their place.
    ///
    /// # Errors
    /// `NotFound`, `Corruption`, `Io` as there.
    pub fn load_known_options(
        path: impl AsRef<Path>,
        base: &Options,
    ) -> Result<(Options, Vec<Error>)> {
        let mut unknown = Vec::new();
        let options = options_map::load(path.as_ref(), base, &mut |e| {
            unknown.push(e);
            Ok(())
        })?;
        Ok((options, unknown))
    }

    /// Drops a family: its data is gone, its handle reads what it last saw.
    ///
    /// # Errors
    /// `InvalidArgument` for the default family; `ReadOnly`, `Io`.
    pub fn drop_column_family(&self, family: &ColumnFamily) -> Result<()> {
        let core = &self.core;
        core.context.check_writable()?;
        self.check_own(std::slice::from_ref(family))?;
        if family.name() == DEFAULT_COLUMN_FAMILY_NAME {
            return Err(Error::invalid_argument(
                "the default column family cannot be dropped",
            ));
        }
        let drop_it = || open::families::drop(&core.context, &core.write, &family.0);
        let dropped = core.write.exclusive(drop_it);
        core.context.tell_failure();
        dropped?;
        // Who waits for a job of the family waits in vain.
        core.context.progress.raise();
        obsolete::purge(&core.context);
        Ok(())
    }

    /// Writes a batch: all of it or nothing.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn write(&self, mut batch: WriteBatch) -> Result<()> {
        self.write_opt(&WriteOptions::default(), &mut batch)
    }

    /// Writes a batch. When it returns, readers see it, and it survives the end of the process;
    /// with `sync` also a power loss. The batch can be cleared and used again.
    ///
    /// # Errors
    /// `InvalidArgument` for a family that is not there, a merge without an operator, a key or
    /// value that is too large, `TooLarge` for a batch that is; `NoMemory`: nothing was written; `Busy` with `no_slowdown`; `ReadOnly` after an earlier error.
    /// `Io`: the batch may or may not be there after a reopen. `NoSpace`: it is not there, but may
    /// be after a reopen if the process ends before the database has resumed; a write that is
    /// refused because of an earlier one (the error's cause is that one's) never is.
    pub fn write_opt(&self, options: &WriteOptions, batch: &mut WriteBatch) -> Result<()> {
        // It may be empty because what was added was refused.
        batch.check_whole()?;
        if batch.is_empty() {
            self.context().check_writable()?;
            return if options.sync {
                self.sync_wal()
            } else {
                Ok(())
            };
        }
        self.core.write.write(*options, batch)
    }

    /// Writes a batch to the log under `name`, 1 to 512 bytes, and to nothing else: readers do not see
    /// it. From then on [`Self::commit_prepared`] or [`Self::rollback_prepared`] ends it, by this
    /// process or by one that opens the database later; a copy of it stays in memory, or in the file of a batch that
    /// spilled, until then; an open reads it into memory. With
    /// `sync` it survives a power loss. Nobody is kept from writing the same keys: see the crate of transactions.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is used or cannot be one, or without WAL; else as
    /// [`Self::write_opt`].
    pub fn prepare(&self, options: &WriteOptions, name: &[u8], batch: WriteBatch) -> Result<()> {
        self.core.write.prepare(*options, name, batch)
    }

    /// Lets what is prepared under `name` take effect, at once and whole, as if it were written now.
    /// Operations for families that were dropped meanwhile are left out.
    ///
    /// # Errors
    /// `NotFound` if nothing is; `Busy` while somebody else ends it; else as [`Self::write_opt`], and it
    /// is prepared as before, as far as this process knows.
    pub fn commit_prepared(&self, options: &WriteOptions, name: &[u8]) -> Result<()> {
        self.core.write.commit_prepared(*options, name)
    }

    /// Forgets what is prepared under `name`.
    ///
    /// # Errors
    /// See [`Self::commit_prepared`].
    pub fn rollback_prepared(&self, options: &WriteOptions, name: &[u8]) -> Result<()> {
        self.core.write.rollback_prepared(*options, name)
    }

    /// What is prepared, and neither committed nor rolled back, by name; what earlier processes left
    /// included.
    #[must_use]
    pub fn prepared_writes(&self) -> Vec<PreparedWrite> {
        self.context().prepared.list()
    }

    /// The operations that are prepared under `name`; `None` if nothing is.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn prepared_batch(&self, name: &[u8]) -> Result<Option<WriteBatch>> {
        let Some(section) = self.context().prepared.section(name) else {
            return Ok(None);
        };
        let mut batch = WriteBatch::new();
        batch.set_spill(section.spill().cloned());
        for op in section.iter().flatten() {
            batch.add(op);
        }
        batch.check_whole()?;
        Ok(Some(batch))
    }

    fn write_one(&self, options: &WriteOptions, fill: impl FnOnce(&mut WriteBatch)) -> Result<()> {
        thread_local! {
            static BATCH: std::cell::Cell<Option<WriteBatch>> = const { std::cell::Cell::new(None) };
        }
        let mut batch = BATCH.take().unwrap_or_default();
        batch.clear();
        batch.set_protected(options.protection_bytes_per_key > 0);
        fill(&mut batch);
        let result = self.write_opt(options, &mut batch);
        if batch.size_bytes() <= 1 << 20 {
            BATCH.set(Some(batch));
        }
        result
    }

    /// Sets a key of the default family.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        self.write_one(&WriteOptions::default(), |b| b.put(0, key, value))
    }

    /// Sets a key.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn put_opt(
        &self,
        options: &WriteOptions,
        family: &ColumnFamily,
        key: &[u8],
        value: &[u8],
    ) -> Result<()> {
        family.0.check_is_of(self.context().open_number)?;
        self.write_one(options, |b| b.put(family.id(), key, value))
    }

    /// Deletes a key of the default family.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        self.write_one(&WriteOptions::default(), |b| b.delete(0, key))
    }

    /// Deletes a key.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn delete_opt(
        &self,
        options: &WriteOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<()> {
        family.0.check_is_of(self.context().open_number)?;
        self.write_one(options, |b| b.delete(family.id(), key))
    }

    /// Deletes a key that was put at most once since its last single deletion, and that no merge
    /// and no plain deletion ever touched.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn single_delete_opt(
        &self,
        options: &WriteOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<()> {
        family.0.check_is_of(self.context().open_number)?;
        self.write_one(options, |b| b.single_delete(family.id(), key))
    }

    /// Adds a merge operand to a key.
    ///
    /// # Errors
    /// See [`Self::write_opt`].
    pub fn merge_opt(
        &self,
        options: &WriteOptions,
        family: &ColumnFamily,
        key: &[u8],
        operand: &[u8],
    ) -> Result<()> {
        family.0.check_is_of(self.context().open_number)?;
        self.write_one(options, |b| b.merge(family.id(), key, operand))
    }

    /// Deletes the keys from `start` up to but not including `end`.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` is before `start`; see [`Self::write_opt`].
    pub fn delete_range_opt(
        &self,
        options: &WriteOptions,
        family: &ColumnFamily,
        start: &[u8],
        end: &[u8],
    ) -> Result<()> {
        family.0.check_is_of(self.context().open_number)?;
        self.write_one(options, |b| b.delete_range(family.id(), start, end))
    }

    /// The value of a key of the default family.
    ///
    /// # Errors
    /// See [`Self::get_opt`].
    pub fn get(&self, key: &[u8]) -> Result<Option<PinnedValue>> {
        view::get(
            self.context(),
            &self.core.default_family,
            &ReadOptions::default(),
            key,
        )
    }

    /// The value of a key, without a copy where it lies in a block.
    ///
    /// # Errors
    /// `Corruption` or `Io` met on the way; `InvalidArgument` if operands cannot be merged.
    pub fn get_opt(
        &self,
        options: &ReadOptions,
        family: &ColumnFamily,
        key: &[u8],
    ) -> Result<Option<PinnedValue>> {
        view::get(self.context(), &family.0, options, key)
    }

    /// The sequence number of the newest write to a key, deletions included; 0 if there is none. A compaction may
    /// have set it to 0 where no snapshot is older, so it is exact for whoever holds one: greater than the
    /// snapshot's if and only if the key was written since. One thing leaves a trace only for a snapshot of
    /// [`Self::snapshot_to_check`]: a key that was put and then deleted by a single delete, both since the snapshot.
    ///
    /// # Errors
    /// `Corruption` or `Io` met on the way.
    pub fn newest_write(&self, family: &ColumnFamily, key: &[u8]) -> Result<SeqNo> {
        view::newest_write(self.context(), &family.0, key)
    }

    /// A write after sequence number `since` to a key of a range, deletions included: the first that is met, or `None`
    /// if there is none. Exact, as [`Self::newest_write`] is, for who holds a snapshot of that number from
    /// [`Self::snapshot_to_check`]. It goes through the range in memtables and in the tables that were written since.
    ///
    /// # Errors
    /// `Corruption` or `Io` met on the way.
    pub fn written_since<K: AsRef<[u8]>>(
        &self,
        family: &ColumnFamily,
        range: &KeyRange<K>,
        since: SeqNo,
    ) -> Result<Option<Written>> {
        view::written_since(self.context(), &family.0, range, since)
    }

    /// The values of several keys as of one moment, in the order of the keys.
    #[must_use]
    pub fn multi_get(
        &self,
        options: &ReadOptions,
        family: &ColumnFamily,
        keys: &[&[u8]],
    ) -> Vec<Result<Option<PinnedValue>>> {
        view::multi_get(self.context(), &family.0, options, keys)
    }

    /// A cursor over a family as of now, or of the snapshot in `options`.
    ///
    /// # Errors
    /// `Corruption` or `Io` if a table cannot be opened.
    pub fn iter(&self, options: &ReadOptions, family: &ColumnFamily) -> Result<DbIterator> {
        view::iter(self.context(), &family.0, options)
    }

    /// A snapshot for who finds out by [`Self::newest_write`] which keys were written since, as transactions do: as
    /// [`Self::snapshot`], and while it is held a put and the single delete after it, both since, do not vanish together.
    #[must_use]
    pub fn snapshot_to_check(&self) -> Snapshot {
        if let Some(follower) = &self.follower {
            return follower.snapshot();
        }
        let context = self.context();
        let now_secs = context.clock.unix_secs();
        context
            .snapshots
            .acquire_to_check(|| context.sequence.visible(), now_secs)
    }

    /// Keeps what readers see now readable until it is dropped.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        if let Some(follower) = &self.follower {
            return follower.snapshot();
        }
        let context = self.context();
        let now_secs = context.clock.unix_secs();
        context
            .snapshots
            .acquire(|| context.sequence.visible(), now_secs)
    }

    /// Makes the log survive a power loss up to here.
    ///
    /// # Errors
    /// `Io`: the database is then read-only; `NoSpace`: until there is space.
    pub fn sync_wal(&self) -> Result<()> {
        let context = self.context();
        context.check_writable()?;
        self.core
            .write
            .exclusive(|| {
                context.check_writable()?;
                context.logs.sync().inspect_err(|e| {
                    context.health.note(e);
                })
            })
            .inspect_err(|_| context.tell_failure())
    }

    /// Tries to take writes again after the disk was full, without waiting for the next try that
    /// the database makes by itself. What flushes were due is flushed first.
    ///
    /// Nothing is to be done, and `Ok` comes at once, if writes are taken.
    ///
    /// # Errors
    /// `NoSpace` if there is still none; `ReadOnly` if an error of another kind was met, now or
    /// before: only an open helps; `Busy` from within a listener that is called meanwhile;
    /// `Closed`.
    pub fn resume(&self) -> Result<()> {
        let context = self.context();
        let _job = context.enter_resume()?;
        resume::resume(context, &self.core.write)
    }

    /// Writes the memtables of the default family into a table and waits for it.
    ///
    /// # Errors
    /// See [`Self::flush_opt`].
    pub fn flush(&self) -> Result<()> {
        self.flush_opt(&FlushOptions::default(), &[self.default_column_family()])
    }

    /// Writes the memtables of `families` into tables.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, or the error that the flush met.
    pub fn flush_opt(&self, options: &FlushOptions, families: &[ColumnFamily]) -> Result<()> {
        self.check_own(families)?;
        let families: Vec<_> = families.iter().map(|f| f.0.clone()).collect();
        manual_flush::flush(&self.core.context, &self.core.write, options, &families)
    }

    /// Compacts the keys from `begin` to `end` (both included; `None`: open) of a family down to
    /// the last level that holds any, and waits for it. What is in memtables is flushed first.
    ///
    /// Automatic compactions go on beside it, unless the options say otherwise; for one that is
    /// in the way it waits.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, or the error that a compaction met; `Aborted` if manual compactions
    /// are disabled. What was done stays.
    pub fn compact_range(
        &self,
        options: &CompactRangeOptions,
        family: &ColumnFamily,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> Result<()> {
        self.check_own(std::slice::from_ref(family))?;
        let request = manual_request(options, family, begin, end);
        let core = &self.core;
        manual_compaction::compact_range(&core.context, &core.write, &request, &Arc::default())
    }

    /// Begins the same on a thread of its own. The handle tells how far it is, pauses it, cancels
    /// it and waits for it.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`; `Io` if the system has no thread left. What the compaction meets is
    /// told by [`CompactionHandle::wait`].
    pub fn compact_range_async(
        &self,
        options: &CompactRangeOptions,
        family: &ColumnFamily,
        begin: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> Result<CompactionHandle> {
        self.check_own(std::slice::from_ref(family))?;
        self.context().check_writable()?;
        let request = manual_request(options, family, begin, end);
        manual_compaction::spawn(self.context(), &self.core.write, request)
    }

    /// Empties the blob files of a family of which much is garbage: rewrites the tables that point to
    /// them, within their levels, and writes the values anew that are left. Returns when no such
    /// file that there was at the call has a pointer in a table below level 0; what tables of level
    /// 0 and memtables point to stays. Readers and snapshots keep the old files as long as they
    /// need them.
    ///
    /// Then what is dead in files that stay is given up as holes, every whole block of it, however little that is and whatever
    /// [`ColumnFamilyOptions::blob_hole_punching`] and the other settings say: who turned them off has asked for
    /// nothing by himself, and asks here. [`LiveBlobFile::given_up_bytes`] tells how much it was. Files with several names,
    /// such as those of a checkpoint, are left alone. What readers or a backup from before still need is waited for
    /// for a second, and given up in the background when they have ended.
    ///
    /// # Errors
    /// `InvalidArgument` for a ratio out of bounds; `ReadOnly`, `Closed`; `Aborted` if the family
    /// is dropped or manual compactions are disabled; damage in a table, `NoSpace`, `Io`. Steps done
    /// so far stay. A value that is damaged is left where it is, and is no error.
    pub fn collect_blob_garbage(
        &self,
        options: &CollectBlobGarbageOptions,
        family: &ColumnFamily,
    ) -> Result<()> {
        self.check_own(std::slice::from_ref(family))?;
        blob_collection::collect(self.context(), &family.0, options, &Arc::default())
    }

    /// Begins the same on a thread of its own. The handle tells how far it is, pauses it, cancels
    /// it and waits for it.
    ///
    /// # Errors
    /// `InvalidArgument`, `ReadOnly`, `Closed`; `Io` if the system has no thread left. What the
    /// collection meets is told by [`CompactionHandle::wait`].
    pub fn collect_blob_garbage_async(
        &self,
        options: &CollectBlobGarbageOptions,
        family: &ColumnFamily,
    ) -> Result<CompactionHandle> {
        self.check_own(std::slice::from_ref(family))?;
        self.context().check_writable()?;
        blob_collection::spawn(self.context(), &family.0, *options)
    }

    /// Brings the large values of a family where they are to be: from its tables to blob files, or back.
    /// First the family's settings are set so, and kept in the OPTIONS file: `enable_blob_files`,
    /// `blob_run_mode=kNormal` and, if it is given, `min_blob_size` for [`ConvertTo::Separated`];
    /// `blob_run_mode=kFallback` and no `enable_blob_files` for [`ConvertTo::Inline`]. Then memtables are
    /// flushed and the tables that need it are rewritten, within their levels, at the low priority of the
    /// rate limiter, a few at a time. Readers, writers and snapshots notice nothing; compaction filters have no
    /// say. Returns when no table is left that needs it, whatever was written meanwhile.
    ///
    /// It needs no state: after a failure or a crash the next call goes on where this one was. A damaged
    /// table, and one with pointers to what cannot be read, is left and told of in the answer;
    /// [`Converted::is_whole`] is true if there is none, and for [`ConvertTo::Inline`] no blob file either. Space
    /// for the values in both places may be needed for a time; files of either kind go as they are done with.
    ///
    /// # Errors
    /// `InvalidArgument` for options that do not belong together, or a family that was dropped; `ReadOnly`, `Closed`; `Aborted` if
    /// the family is dropped meanwhile, manual compactions are disabled, or somebody changes the settings to want something
    /// else; `NoSpace`, `Io`. Steps done so far stay, and so do the settings.
    pub fn convert_values(
        &self,
        family: &ColumnFamily,
        to: ConvertTo,
        options: &ConvertValuesOptions,
    ) -> Result<Converted> {
        let request = self.conversion(family, to, options)?;
        let core = &self.core;
        let (control, counts) = (Arc::default(), blob_conversion::Counts::default());
        blob_conversion::convert(&core.context, &core.write, &request, &control, &counts)
    }

    /// Sets the family's settings and begins the same on a thread of its own. The handle tells how far it is, pauses
    /// it, cancels it and waits for it.
    ///
    /// # Errors
    /// `InvalidArgument`, `ReadOnly`, `Closed`, those of [`Self::set_options`]; `Io` if the system has no thread left. What the
    /// conversion meets is told by [`ConversionHandle::wait`].
    pub fn convert_values_async(
        &self,
        family: &ColumnFamily,
        to: ConvertTo,
        options: &ConvertValuesOptions,
    ) -> Result<ConversionHandle> {
        let request = self.conversion(family, to, options)?;
        blob_conversion::spawn(self.context(), &self.core.write, request)
    }

    fn conversion(
        &self,
        family: &ColumnFamily,
        to: ConvertTo,
        options: &ConvertValuesOptions,
    ) -> Result<blob_conversion::Request> {
        self.check_own(std::slice::from_ref(family))?;
        self.context().check_writable()?;
        option_changes::set_blob_mode(&self.core, &family.0, to, options)?;
        Ok(blob_conversion::Request {
            family: family.0.clone(),
            to,
        })
    }

    /// Refuses manual compactions until [`Self::enable_manual_compaction`] was called as often,
    /// and gives up those that run or are paused: they fail with `Aborted`. Returns when none of them holds files any more.
    pub fn disable_manual_compaction(&self) {
        manual_compaction::disable(self.context());
    }

    /// Ends one [`Self::disable_manual_compaction`].
    pub fn enable_manual_compaction(&self) {
        manual_compaction::enable(self.context());
    }

    /// About the bytes that each of `ranges` takes on disk, and in memtables if asked for: by
    /// looking into the index of the few files that a range cuts, not by reading data.
    ///
    /// # Errors
    /// `InvalidArgument` if neither files nor memtables are asked for; `Corruption` or `Io` of
    /// an index.
    pub fn approximate_sizes(
        &self,
        options: &SizeApproximationOptions,
        family: &ColumnFamily,
        ranges: &[UserKeyRange<'_>],
    ) -> Result<Vec<u64>> {
        ranges::approximate_sizes(&family.0, options, ranges)
    }

    /// Drops the tables of a family that lie wholly inside one of `ranges`, in one step and
    /// without reading the values, and with them what blob files have for them alone; tells what went.
    /// With `include_end` (RocksDB's default) each range has its `end`, too. Calls for one family wait for each other.
    ///
    /// It frees space, it does not delete keys. Keys of the ranges remain where they are in
    /// memtables, in level 0, in tables that reach beyond a range or that a compaction reads;
    /// older versions of keys whose newer ones went may show again; and snapshots lose what the
    /// tables held, though not iterators that are open already. To be rid of the keys use
    /// [`Self::delete_range_opt`] as well.
    ///
    /// # Errors
    /// `ReadOnly`, `Closed`, `Io`, `NoSpace`; `Aborted` if the family is dropped meanwhile.
    pub fn delete_files_in_ranges(
        &self,
        family: &ColumnFamily,
        ranges: &[UserKeyRange<'_>],
        include_end: bool,
    ) -> Result<DeletedFiles> {
        self.check_own(std::slice::from_ref(family))?;
        ranges::delete_files(self.context(), &family.0, ranges, include_end)
            .inspect_err(|_| self.context().tell_failure())
    }

    /// Waits until no flush, no compaction and no collection of garbage in blob files is due, and files that nobody needs any more are
    /// deleted, but for those that readers hold, or a look of a background thread for a moment.
    ///
    /// # Errors
    /// The error that background work met.
    pub fn wait_for_background_work(&self) -> Result<()> {
        manual_compaction::wait_until_idle(self.context())
    }

    /// A property under RocksDB's name, such as `rocksdb.stats`; `None` if there is none of that
    /// name.
    #[must_use]
    pub fn property(&self, family: &ColumnFamily, name: &str) -> Option<String> {
        properties::text(self.context(), &family.0, name)
    }

    /// A property that is a number.
    #[must_use]
    pub fn int_property(&self, family: &ColumnFamily, name: &str) -> Option<u64> {
        properties::number(self.context(), &family.0, name)
    }

    /// The counters.
    #[must_use]
    pub fn statistics(&self) -> Arc<Statistics> {
        self.context().statistics.clone()
    }

    /// The sequence number of the newest write that readers see.
    #[must_use]
    pub fn latest_sequence_number(&self) -> SeqNo {
        self.context().sequence.visible()
    }

    /// The writes from sequence number `since` on that are in the logs, in their order; it
    /// follows the current log while it is written. The first one may begin before `since`. 0
    /// stands for the first write of all.
    ///
    /// Logs go when every memtable that they could rebuild is in a table, so old writes are
    /// gone soon, and at every open; [`crate::DbOptions::wal_ttl_seconds`] and
    /// [`crate::DbOptions::wal_size_limit_mb`] keep them longer. Writes without WAL are not in
    /// the logs. While the reader lives, the logs from its place on stay. What it gives was
    /// written, but not necessarily synced: a power loss may take it away again.
    ///
    /// # Errors
    /// `NotFound` if `since` is not in the logs any more, with the `oldest` number that is;
    /// `InvalidArgument` if it is beyond the next number to be written; `Corruption`, `Io`.
    pub fn get_updates_since(&self, since: SeqNo) -> Result<UpdatesIterator> {
        updates::since(self.context(), since)
    }

    /// The flushes and compactions that run, oldest first, and those that are due; property
    /// `orogen.jobs` is the same as text.
    #[must_use]
    pub fn jobs(&self) -> Vec<JobInfo> {
        report::jobs(self.context())
    }

    /// What keeps old things alive: snapshots, readers of memtables and tables that were replaced,
    /// and the tables that cannot be deleted for them; property `orogen.holders` is the same as
    /// text. Readers are found without being counted when they come and go; one that still sees
    /// the newest memtables and tables holds nothing, and is not told of.
    #[must_use]
    pub fn holders(&self) -> Holders {
        report::holders(self.context())
    }

    /// The blob files of every family, with what of them is garbage.
    #[must_use]
    pub fn live_blob_files(&self) -> Vec<LiveBlobFile> {
        blob_files::live(self.context())
    }

    /// Counts what the tables of a family point to, by reading them, and sets it against what the
    /// MANIFEST says of its blob files: one entry for each file, all of them
    /// [`BlobFileCheck::is_exact`] if nothing is wrong. With `follow` every value is read and
    /// verified too.
    ///
    /// # Errors
    /// `Corruption` with the file; `Io`.
    pub fn check_blob_files(&self, cf: &ColumnFamily, follow: bool) -> Result<Vec<BlobFileCheck>> {
        blob_files::check(&cf.0, follow)
    }

    /// [`Self::check_blob_files`], which goes on behind damage: all of it is in the answer, with what could be checked
    /// beside it.
    ///
    /// # Errors
    /// `Io`.
    pub fn examine_blob_files(&self, cf: &ColumnFamily, follow: bool) -> Result<BlobFilesFound> {
        blob_files::examine(&cf.0, follow)
    }

    /// The files of every family with their levels and key ranges.
    #[must_use]
    pub fn live_files(&self) -> Vec<properties::LiveFile> {
        properties::live_files(self.context())
    }

    /// [`Self::checkpoint_opt`] with the default options: everything is flushed first.
    ///
    /// # Errors
    /// See [`Self::checkpoint_opt`].
    pub fn checkpoint(&self, target: impl AsRef<Path>) -> Result<()> {
        self.checkpoint_opt(&CheckpointOptions::default(), target)
    }

    /// Makes `target` a database of its own that holds what this one holds now. Tables and blob
    /// files are linked, not copied, where the file system can; logs are copied as far as they are
    /// needed. When this returns it survives a power loss.
    ///
    /// # Errors
    /// `InvalidArgument` if `target` exists; `Busy` if somebody else makes it; `Io`, `NoSpace`: what was made of it is removed; what
    /// a flush met.
    pub fn checkpoint_opt(
        &self,
        options: &CheckpointOptions,
        target: impl AsRef<Path>,
    ) -> Result<()> {
        let context = self.context();
        let log_bytes = context.logs.total_bytes();
        let flushes = log_bytes >= options.log_size_for_flush || context.has_unlogged();
        if !context.read_only && flushes {
            self.flush_opt(&FlushOptions::default(), &self.column_families())?;
        }
        checkpoint::create(context, &self.core.write, target.as_ref())
    }

    /// Reads every block of every table and every value of every blob file and checks it.
    ///
    /// # Errors
    /// The first damage found, with file and offset.
    pub fn verify_checksums(&self) -> Result<()> {
        properties::verify_checksums(self.context(), &mut |_, _| {})
    }

    /// As [`Self::verify_checksums`]; calls `progress` with bytes done and bytes in all.
    ///
    /// # Errors
    /// The first damage found, with file and offset.
    pub fn verify_checksums_with(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        properties::verify_checksums(self.context(), progress)
    }

    /// Reads every block of every table and every value of every blob file, as slowly as `options` ask for, and goes on behind
    /// damage; `progress` is told of bytes done and bytes in all. Damaged files are marked as if
    /// a read had met the damage. Meant to run now and then on a thread of the caller's.
    ///
    /// # Errors
    /// `Aborted` if the database closes meanwhile; `Io`. Damage is in the answer.
    pub fn scrub(
        &self,
        options: &VerifyOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Scrubbed> {
        scrub::scrub(self.context(), options, progress)
    }

    /// The tables that turned out to be damaged since the database was opened, and where. No
    /// compaction takes them; reads of everything else go on. Property `orogen.damaged-files`
    /// tells the same.
    #[must_use]
    pub fn damaged_tables(&self) -> Vec<DamagedTable> {
        quarantine::list(self.context())
    }

    /// The blob files that turned out to be damaged since the database was opened, and where. Their
    /// other values are read. Property `orogen.damaged-files` tells the same.
    #[must_use]
    pub fn damaged_blob_files(&self) -> Vec<DamagedBlobFile> {
        quarantine::list_blob_files(self.context())
    }

    /// Compares every table with the checksum that was computed while it was written and that
    /// the MANIFEST keeps; see [`crate::DbOptions::file_checksum`].
    ///
    /// # Errors
    /// `Corruption` of the first table that differs, with file, size and checksums; `Io`.
    pub fn verify_file_checksums(&self) -> Result<FilesVerified> {
        self.verify_file_checksums_with(&VerifyOptions::default(), &mut |_, _| {})
    }

    /// As [`Self::verify_file_checksums`]; calls `progress` with bytes done and bytes in all.
    ///
    /// # Errors
    /// As [`Self::verify_file_checksums`].
    pub fn verify_file_checksums_with(
        &self,
        options: &VerifyOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<FilesVerified> {
        scrub::verify_file_checksums(self.context(), options, progress)
    }

    /// Closes the database: compactions are given up, flushes end, threads are joined. Later
    /// writes fail; open iterators and values stay readable. Dropping the last handle does the
    /// same without telling of errors.
    ///
    /// # Errors
    /// What a last flush met; the database is closed all the same.
    pub fn close(&self) -> Result<()> {
        self.core.close()
    }
}
