//! The engine, with messages for entries.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::FileSystem as OwnFileSystem;
use protobuf::Message;

use super::env::{DefaultFileSystem, FileSystem, adapted, forget};
use super::fork::{CopyDetails, fork};
use super::internals::{EventListener, FilePipeLog, LogItemReader, LogQueue, PurgeManager};
use super::{Config, Error, LogBatch, MessageExt, Result};
use crate::batch::Command;
use crate::check::check_dirs;
use crate::dirs::Dirs;
use crate::engine::Engine as RawEngine;
use crate::memtable::Fenced;
use crate::metrics::Metrics;
use crate::names::FileId;
#[cfg(feature = "scripting")]
use crate::repair::repair;
#[cfg(feature = "scripting")]
use crate::script::RepairScript;

/// An open directory of logs.
///
/// All calls may be made from any thread. One group may also be written by many: its batches are applied in the order
/// in which they stand in the file.
///
/// The second parameter is there for those who spell it; there is one way to write files.
pub struct Engine<F = DefaultFileSystem, P = FilePipeLog<F>> {
    manager: PurgeManager<P>,
    dir: String,
    marker: PhantomData<fn() -> F>,
}

impl<F, P> fmt::Debug for Engine<F, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// A message out of its bytes.
fn decode<M: Message>(bytes: &[u8]) -> Result<M> {
    Ok(M::parse_from_bytes(bytes)?)
}

fn decode_entry<M: MessageExt>(index: u64, bytes: &[u8]) -> Result<M::Entry> {
    let entry: M::Entry = decode(bytes)?;
    let found = M::index(&entry);
    if found != index {
        return Err(Error::Corruption(format!(
            "an entry has another index expected={index} found={found}"
        )));
    }
    Ok(entry)
}

impl Engine<DefaultFileSystem> {
    /// Opens a directory, which is made if it is not there, and reads what it holds.
    ///
    /// # Errors
    /// [`Error::Other`] for settings that cannot be, and if it is open already;
    /// [`Error::InvalidArgument`] if both directories are the same; [`Error::Corruption`] as
    /// [`Config::recovery_mode`] says; [`Error::Io`].
    pub fn open(cfg: Config) -> Result<Self> {
        Self::open_with_listeners(cfg, Vec::new())
    }

    /// As [`Self::open`], and listeners are told of what happens.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_listeners(
        cfg: Config,
        listeners: Vec<Arc<dyn EventListener>>,
    ) -> Result<Self> {
        Self::open_with(cfg, Arc::new(DefaultFileSystem), listeners)
    }

    /// As [`Self::consistency_check_with_file_system`], for files of the system.
    ///
    /// # Errors
    /// The same.
    pub fn consistency_check(path: &Path) -> Result<Vec<(u64, u64)>> {
        Self::consistency_check_with_file_system(path, Arc::new(DefaultFileSystem))
    }

    /// As [`Self::unsafe_repair_with_file_system`], for files of the system. Needs the feature `scripting`.
    ///
    /// # Errors
    /// The same.
    #[cfg(feature = "scripting")]
    pub fn unsafe_repair(path: &Path, queue: Option<LogQueue>, script: String) -> Result<()> {
        Self::unsafe_repair_with_file_system(path, queue, script, Arc::new(DefaultFileSystem))
    }

    /// As [`Self::dump_with_file_system`], for files of the system.
    ///
    /// # Errors
    /// The same.
    pub fn dump(path: &Path) -> Result<LogItemReader<DefaultFileSystem>> {
        Self::dump_with_file_system(path, Arc::new(DefaultFileSystem))
    }
}

fn holes(fs: &dyn OwnFileSystem, dirs: &Dirs) -> Result<Vec<(u64, u64)>> {
    let checked = check_dirs(fs, dirs, |_, _| {})?;
    for damage in checked.files.iter().filter_map(|file| file.damage.as_ref()) {
        tracing::warn!(error = %damage, "a file is damaged");
    }
    Ok(checked.holes)
}

impl<F: FileSystem> Engine<F> {
    /// As [`Engine::open`], with another file system.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with_file_system(cfg: Config, file_system: Arc<F>) -> Result<Self> {
        Self::open_with(cfg, file_system, Vec::new())
    }

    /// As [`Engine::open`], with another file system and with listeners.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn open_with(
        mut cfg: Config,
        file_system: Arc<F>,
        listeners: Vec<Arc<dyn EventListener>>,
    ) -> Result<Self> {
        cfg.sanitize()?;
        let (dir, options) = cfg.options();
        let theirs = Arc::clone(&file_system);
        let fs = adapted(file_system);
        let raw = RawEngine::open_with_listeners(&fs, &dir, options, listeners)?;
        for fenced in raw.fenced_groups() {
            let (group, before) = (fenced.group, fenced.missing_before);
            tracing::warn!(
                group,
                missing_before = before,
                "entries of a group are missing: it is fenced"
            );
        }
        for queue in [LogQueue::Append, LogQueue::Rewrite] {
            if let Some((first, _)) = raw.file_span(queue) {
                forget(&*theirs, &cfg.dirs()?, FileId::new(queue, first));
            }
        }
        Ok(Self {
            manager: PurgeManager::new(raw),
            dir: cfg.dir,
            marker: PhantomData,
        })
    }

    /// Groups of a directory that is not open of which entries are missing between others, and the
    /// last index before that. What was compacted is not missing. Damaged files count up to their damage.
    /// Nothing is changed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such directory; [`Error::Other`] if it is open;
    /// [`Error::Io`].
    pub fn consistency_check_with_file_system(
        path: &Path,
        file_system: Arc<F>,
    ) -> Result<Vec<(u64, u64)>> {
        holes(&*adapted(file_system), &Dirs::new(path, None)?)
    }

    /// As [`Self::consistency_check_with_file_system`], of both directories of a configuration.
    ///
    /// # Errors
    /// The same.
    pub fn consistency_check_with_config(
        cfg: &Config,
        file_system: Arc<F>,
    ) -> Result<Vec<(u64, u64)>> {
        holes(&*adapted(file_system), &cfg.dirs()?)
    }

    /// Takes operations out of the files of a queue, or of both, of a directory that is not open, as a script says. What
    /// its functions are: [`RepairScript::compile`](crate::raw::RepairScript::compile). Other code than a script can decide with
    /// [`raw::repair`](crate::raw::repair). Needs the feature `scripting`, as there.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for what is no such script, and if there is no such directory; [`Error::Corruption`] for entries that do not follow
    /// each other where the script lets them pass; [`Error::Other`] if it is open; [`Error::Io`]. Every file is then as it was.
    #[cfg(feature = "scripting")]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "raft-engine's signature has it so"
    )]
    pub fn unsafe_repair_with_file_system(
        path: &Path,
        queue: Option<LogQueue>,
        script: String,
        file_system: Arc<F>,
    ) -> Result<()> {
        let script = RepairScript::compile(&script)?;
        let fs: Arc<dyn OwnFileSystem> = adapted(file_system);
        repair(&*fs, path, None, queue, |incoming| script.decide(incoming))?;
        Ok(())
    }

    /// The operations in a file, or in all files of a directory. Nothing is locked or changed. A file by itself is taken for the newest, which may
    /// end in zeros.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the name is none of a log file; [`Error::Io`].
    pub fn dump_with_file_system(path: &Path, file_system: Arc<F>) -> Result<LogItemReader<F>> {
        LogItemReader::new(adapted(file_system), path)
    }

    /// The operations in all files of both directories of a configuration. Nothing is locked or changed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn dump_with_config(cfg: &Config, file_system: Arc<F>) -> Result<LogItemReader<F>> {
        LogItemReader::of(adapted(file_system), &cfg.dirs()?)
    }

    /// Makes a directory with what that of `source` has, or both of them, which must not be open. Files that are not
    /// written any more are shared where the file system can. Both may be opened afterwards, as long as `source`'s
    /// settings are those given here.
    ///
    /// # Errors
    /// A text; for `enable_log_recycle`, and for a mode that tolerates any corruption, since those write to files that
    /// are shared; if `target` has files, or is a fork that is not finished; those of the file system.
    pub fn fork<T: AsRef<Path>>(
        source: &Config,
        fs: Arc<F>,
        target: T,
    ) -> Result<CopyDetails, String> {
        let fs: Arc<dyn OwnFileSystem> = adapted(fs);
        fork(source, &fs, target.as_ref()).map_err(|e| e.to_string())
    }
}

impl<F, P> Engine<F, P> {
    /// Writes a batch, which is then empty; the bytes of its record, 0 for an empty batch.
    ///
    /// With `sync` it, and all that was written before, survives a power loss when this returns; an empty batch
    /// syncs, too. Without it survives the end of the process.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if entries would leave a hole or lie below a group's first entry;
    /// [`Error::Io`]. Nothing of the batch is then seen, and it can be written again. After a failed sync
    /// [`Error::Other`] until the directory is opened again.
    pub fn write(&self, log_batch: &mut LogBatch, sync: bool) -> Result<usize> {
        Ok(self.manager.raw.write(&mut log_batch.0, sync)?)
    }

    /// Writes a batch as [`Self::write`] does without `sync`, and calls `on_durable` once it survives a power loss, or with the error
    /// of the sync that should have done that. raft-engine has no such call. Who calls it, when, and what it may do:
    /// [`raw::Engine::write_async`](crate::raw::Engine::write_async).
    ///
    /// # Errors
    /// As [`Self::write`]; [`Error::Other`] if the system has no thread left. `on_durable` is not called then.
    pub fn write_async(
        &self,
        log_batch: &mut LogBatch,
        on_durable: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<usize> {
        let on_durable = |synced: orogen_base::Result<()>| on_durable(synced.map_err(Error::from));
        Ok(self.manager.raw.write_async(&mut log_batch.0, on_durable)?)
    }

    /// Makes all that was written survive a power loss.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Other`] if an earlier sync failed.
    pub fn sync(&self) -> Result<()> {
        Ok(self.manager.raw.sync()?)
    }

    /// The message that is the value of a key.
    ///
    /// # Errors
    /// [`Error::Protobuf`] if it is none of this type.
    pub fn get_message<S: Message>(&self, region_id: u64, key: &[u8]) -> Result<Option<S>> {
        let value = self.manager.raw.get_as_value(region_id, key, decode);
        value.transpose()
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, region_id: u64, key: &[u8]) -> Option<Vec<u8>> {
        self.manager.raw.get(region_id, key)
    }

    /// Shows the keys of a group from `start_key` up to, and without, `end_key`, whose values are
    /// messages of this type, until `callback` says false. Nothing is locked meanwhile, so `callback` may ask the engine
    /// and write to it; unlike in raft-engine, what is shown is of one moment only for up to 256 keys, or 64 KiB.
    ///
    /// # Errors
    /// None so far.
    pub fn scan_messages<S, C>(
        &self,
        region_id: u64,
        start_key: Option<&[u8]>,
        end_key: Option<&[u8]>,
        reverse: bool,
        mut callback: C,
    ) -> Result<()>
    where
        S: Message,
        C: FnMut(&[u8], S) -> bool,
    {
        self.scan_raw_messages(region_id, start_key, end_key, reverse, |key, value| {
            decode(value).map_or(true, |message| callback(key, message))
        })
    }

    /// As [`Self::scan_messages`], for values of any kind.
    ///
    /// # Errors
    /// None so far.
    pub fn scan_raw_messages<C>(
        &self,
        region_id: u64,
        start_key: Option<&[u8]>,
        end_key: Option<&[u8]>,
        reverse: bool,
        callback: C,
    ) -> Result<()>
    where
        C: FnMut(&[u8], &[u8]) -> bool,
    {
        self.manager
            .raw
            .scan(region_id, start_key, end_key, reverse, callback);
        Ok(())
    }

    /// The entry, if it is there.
    ///
    /// # Errors
    /// [`Error::Corruption`]; [`Error::Protobuf`]; [`Error::Io`].
    pub fn get_entry<M: MessageExt>(
        &self,
        region_id: u64,
        log_idx: u64,
    ) -> Result<Option<M::Entry>> {
        self.manager.raw.get_as(region_id, log_idx, |bytes| {
            decode_entry::<M>(log_idx, bytes)
        })
    }

    /// Adds the entries from `begin` up to, and without, `end` to `vec`, as long as they are
    /// `max_size` bytes together, but at least one; how many. An unknown group has none.
    ///
    /// # Errors
    /// [`Error::EntryCompacted`] if the first is; [`Error::EntryNotFound`] if `end` is behind the last one, or the group
    /// has none; [`Error::InvalidArgument`] if `end` is before `begin`; [`Error::Corruption`];
    /// [`Error::Protobuf`]; [`Error::Io`]. `vec` is then as it was.
    pub fn fetch_entries_to<M: MessageExt>(
        &self,
        region_id: u64,
        begin: u64,
        end: u64,
        max_size: Option<usize>,
        vec: &mut Vec<M::Entry>,
    ) -> Result<usize> {
        if end < begin {
            return Err(Error::InvalidArgument(format!(
                "range ends before it begins begin={begin} end={end}"
            )));
        }
        let make = |index, bytes: &[u8]| decode_entry::<M>(index, bytes).map_err(Fetch::Decode);
        let fetched = self
            .manager
            .raw
            .fetch_entries_as(region_id, begin, end, max_size, vec, make);
        fetched.map_err(|e| match e {
            Fetch::Decode(e) => e,
            Fetch::Raw(e) if e.kind() == ErrorKind::NotFound => Error::EntryCompacted,
            Fetch::Raw(e) if e.kind() == ErrorKind::InvalidArgument => Error::EntryNotFound,
            Fetch::Raw(e) => e.into(),
        })
    }

    /// Index of the first entry.
    #[must_use]
    pub fn first_index(&self, region_id: u64) -> Option<u64> {
        self.manager.raw.first_index(region_id)
    }

    /// Index of the last entry.
    #[must_use]
    pub fn last_index(&self, region_id: u64) -> Option<u64> {
        self.manager.raw.last_index(region_id)
    }

    /// Drops the entries below `index`, without a sync; how many those were. An error is logged, and
    /// nothing is dropped then.
    pub fn compact_to(&self, region_id: u64, index: u64) -> u64 {
        match self.manager.raw.compact_to(region_id, index) {
            Ok(count) => count,
            Err(e) => {
                let command = Command::Compact { index };
                tracing::error!(error = %e, region_id, ?command, "cannot compact a log");
                0
            }
        }
    }

    /// Groups of which entries are missing between others, as [`raw::Engine::fenced_groups`](crate::raw::Engine::fenced_groups) tells.
    #[must_use]
    pub fn fenced_groups(&self) -> Vec<Fenced> {
        self.manager.raw.fenced_groups()
    }

    /// Every group that anything was written of, those included that are empty now.
    #[must_use]
    pub fn raft_groups(&self) -> Vec<u64> {
        self.manager.raw.raft_groups()
    }

    /// True if there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.manager.raw.is_empty()
    }

    /// Numbers of the oldest and the newest file of a queue; twice 1 if it has none yet.
    #[must_use]
    pub fn file_span(&self, queue: LogQueue) -> (u64, u64) {
        self.manager.raw.file_span(queue).unwrap_or((1, 1))
    }

    /// Bytes that the files would take if each were as long as a full one. A queue without a file counts as one.
    #[must_use]
    pub fn get_used_size(&self) -> usize {
        usize::try_from(self.manager.raw.get_used_size()).unwrap_or(usize::MAX)
    }

    /// Deletes files that are not needed any more, and makes those needed no more that hold little. Returns the groups
    /// that the caller should compact, whose entries hold old files. See [`crate::raw::Engine::purge_expired_files`].
    ///
    /// # Errors
    /// [`Error::Corruption`]; [`Error::Io`]. Nothing is lost then.
    pub fn purge_expired_files(&self) -> Result<Vec<u64>> {
        Ok(self.manager.raw.purge_expired_files()?)
    }

    /// Purges that do not ask whether they pay.
    #[must_use]
    pub fn purge_manager(&self) -> &PurgeManager<P> {
        &self.manager
    }

    /// What it has counted and what it has: see [`crate::raw::Engine::metrics`].
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.manager.raw.metrics()
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.dir
    }

    /// Syncs and closes. To drop an engine does the same and tells nobody what it met; raft-engine has no such call.
    ///
    /// # Errors
    /// As [`Self::sync`]; it is closed in any case.
    pub fn close(self) -> Result<()> {
        Ok(self.manager.raw.close()?)
    }
}

/// Why a fetch failed.
enum Fetch {
    Raw(orogen_base::Error),
    Decode(Error),
}

impl From<orogen_base::Error> for Fetch {
    fn from(e: orogen_base::Error) -> Self {
        Self::Raw(e)
    }
}

#[cfg(test)]
mod tests;
