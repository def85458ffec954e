//! The one place that changes which files are live.
//!
//! Every change is a version edit that is first made durable in the MANIFEST and then installed
//! in its family, with the memtables that it replaces, in one step for readers. Changes that
//! wait while another is being synced go into one write and one sync (group commit).
//!
//! Invariants: (1) a version is installed only after its edit is synced; (2) versions of a
//! family are installed in the order of their edits; (3) a file that leaves the newest version
//! is handed to [`VersionSet::take_removed`] and lives on until no version refers to it; (4) no
//! I/O happens under a family's lock; (5) files of a change that failed go, but not while the current MANIFEST may list
//! them.
//!
//! Lock rank 0: the MANIFEST's lock, held over its writes; families' locks are taken inside it. Only that of who drops tables of
//! ranges is taken before it.

use orogen_base::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use orogen_base::metrics::{HistogramKind, Statistics};
use orogen_base::sync::{Mutex, RwLock};
use orogen_base::{Error, FileNo, Result};
use orogen_env::{Clock, FileSystem};
use orogen_wal::Writer;

use crate::column_family::{ColumnFamilyData, FamilyState, Holes};
use crate::directory::Directory;
use crate::filename::{self, DataFile};
use crate::health::Health;
use crate::sequence::Sequence;
use crate::version::BlobFile;
use crate::version::builder::VersionBuilder;
use crate::version::edit::{ColumnFamilyChange, VersionEdit};
use crate::version::file_meta::FileMeta;
use crate::version::manifest::{self, FamilySnapshot};
use crate::version::version::Version;
use crate::version::wal_set::WalSet;

/// Changes memtables in the same step in which the version is installed.
pub(crate) type Install = Box<dyn FnOnce(&mut FamilyState) + Send>;

/// A change of one family.
pub(crate) struct Change {
    pub(crate) family: Arc<ColumnFamilyData>,
    pub(crate) edit: VersionEdit,
    pub(crate) install: Option<Install>,
}

/// A version, and the blob files that the one before had and it has not.
type Built = (Arc<Version>, Vec<Arc<BlobFile>>);

struct Request {
    changes: Vec<Change>,
    ticket: Arc<Mutex<Option<Result<()>>>>,
}

/// The families' state behind the requests built so far.
#[derive(Clone, Default)]
struct Newest {
    versions: HashMap<u32, Arc<Version>>,
    dropped: Vec<u32>,
}

struct ManifestFile {
    writer: Option<Writer>,
    number: FileNo,
    /// It may grow to this, whatever the option says: many times what it began with.
    grows_to: u64,
    /// Later ones that were not finished; CURRENT may name the last.
    doubtful: Vec<FileNo>,
    /// The database is closed: the directory may be somebody else's.
    closed: bool,
}

/// A MANIFEST may grow to so many times what it began with, however little `max_manifest_file_size` is; RocksDB's default of
/// `max_manifest_space_amp_pct`. Else one whose beginning is longer than that would be written anew with each change.
const MANIFEST_GROWS_TIMES: u64 = 6;

/// A MANIFEST that was not started.
struct NotStarted {
    error: Error,
    /// CURRENT may name it.
    may_be_current: bool,
}

/// The families by id.
#[derive(Default)]
pub(crate) struct Families {
    pub(crate) by_id: BTreeMap<u32, Arc<ColumnFamilyData>>,
    pub(crate) max_id: u32,
}

/// Versions of all families, and the MANIFEST.
pub(crate) struct VersionSet {
    dir: PathBuf,
    directory: Arc<Directory>,
    fs: Arc<dyn FileSystem>,
    clock: Arc<dyn Clock>,
    statistics: Arc<Statistics>,
    health: Arc<Health>,
    sequence: Arc<Sequence>,
    db_id: String,
    max_manifest_file_size: u64,
    next_file: AtomicU64,
    /// What the MANIFEST says. Not what the memtables say: while logs are replayed they hold
    /// what no table of the MANIFEST has, and tables that it does not list yet are no help.
    min_log_number_to_keep: AtomicU64,
    families: RwLock<Families>,
    queue: Mutex<Vec<Request>>,
    manifest: Mutex<ManifestFile>,
    removed: Mutex<Removed>,
}

/// What left the newest versions.
#[derive(Default)]
pub(crate) struct Removed {
    /// Tables; deletable once nothing else refers to the metadata.
    pub(crate) tables: Vec<Arc<FileMeta>>,
    /// Blob files; likewise.
    pub(crate) blobs: Vec<Arc<BlobFile>>,
    /// MANIFESTs that are no longer current.
    pub(crate) manifests: Vec<FileNo>,
    /// Files that no version ever listed.
    pub(crate) strays: Vec<DataFile>,
    /// Files that the current MANIFEST may list and no version does.
    doubtful: Vec<DataFile>,
}

/// What a version set is made of.
pub(crate) struct VersionSetParts {
    pub(crate) directory: Arc<Directory>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) statistics: Arc<Statistics>,
    pub(crate) health: Arc<Health>,
    pub(crate) sequence: Arc<Sequence>,
    pub(crate) db_id: String,
    pub(crate) max_manifest_file_size: u64,
    pub(crate) next_file: FileNo,
    pub(crate) min_log_number_to_keep: FileNo,
    pub(crate) manifest_number: FileNo,
}

impl VersionSet {
    pub(crate) fn new(parts: VersionSetParts) -> Self {
        Self {
            dir: parts.directory.path().to_owned(),
            fs: parts.directory.fs().clone(),
            directory: parts.directory,
            clock: parts.clock,
            statistics: parts.statistics,
            health: parts.health,
            sequence: parts.sequence,
            db_id: parts.db_id,
            max_manifest_file_size: parts.max_manifest_file_size,
            next_file: AtomicU64::new(parts.next_file.max(2)),
            min_log_number_to_keep: AtomicU64::new(parts.min_log_number_to_keep),
            families: RwLock::default(),
            queue: Mutex::default(),
            manifest: Mutex::new(ManifestFile {
                writer: None,
                grows_to: 0,
                number: parts.manifest_number,
                doubtful: Vec::new(),
                closed: false,
            }),
            removed: Mutex::default(),
        }
    }

    /// A file number that was never given out.
    pub(crate) fn new_file_number(&self) -> FileNo {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps `number` and all before it from being given out.
    pub(crate) fn mark_file_number_used(&self, number: FileNo) {
        self.next_file.fetch_max(number + 1, Ordering::Relaxed);
    }

    /// The database's id.
    pub(crate) fn db_id(&self) -> &str {
        &self.db_id
    }

    /// Logs before this one are not needed, as the MANIFEST says it.
    pub(crate) fn min_log_number_to_keep(&self) -> FileNo {
        self.min_log_number_to_keep.load(Ordering::Relaxed)
    }

    /// The number of the current MANIFEST.
    pub(crate) fn manifest_number(&self) -> FileNo {
        self.manifest.lock().number
    }

    /// The live families in the order of their ids.
    pub(crate) fn families(&self) -> Vec<Arc<ColumnFamilyData>> {
        self.families.read().by_id.values().cloned().collect()
    }

    /// A family by id.
    pub(crate) fn family(&self, id: u32) -> Option<Arc<ColumnFamilyData>> {
        self.families.read().by_id.get(&id).cloned()
    }

    /// A family by name.
    pub(crate) fn family_named(&self, name: &str) -> Option<Arc<ColumnFamilyData>> {
        self.families
            .read()
            .by_id
            .values()
            .find(|f| f.name == name)
            .cloned()
    }

    /// Registers a family that the MANIFEST knows already.
    pub(crate) fn register(&self, family: Arc<ColumnFamilyData>) {
        let mut families = self.families.write();
        families.max_id = families.max_id.max(family.id);
        families.by_id.insert(family.id, family);
    }

    /// Forgets a family that a follower's primary has dropped.
    pub(crate) fn forget(&self, id: u32) {
        self.families.write().by_id.remove(&id);
    }

    /// Keeps ids up to `id` from being used for new families.
    pub(crate) fn raise_max_family(&self, id: u32) {
        let mut families = self.families.write();
        families.max_id = families.max_id.max(id);
    }

    /// An id for a new family.
    pub(crate) fn next_family_id(&self) -> u32 {
        self.families.read().max_id + 1
    }

    /// Makes changes durable and installs them; all of one call happen together.
    ///
    /// # Errors
    /// `Corruption` if an edit does not fit its version: nothing has changed. `Io`: the database
    /// is read-only from here on. `NoSpace`: the same until [`Self::mend`]. In all cases new files of the
    /// changes are no longer the caller's: see [`Self::take_removed`].
    pub(crate) fn apply(&self, changes: Vec<Change>) -> Result<()> {
        let ticket = Arc::new(Mutex::new(None));
        self.queue.lock().push(Request {
            changes,
            ticket: ticket.clone(),
        });
        let mut manifest = self.manifest.lock();
        if let Some(result) = ticket.lock().take() {
            return result;
        }
        let requests = std::mem::take(&mut *self.queue.lock());
        self.commit(&mut manifest, requests);
        drop(manifest);
        ticket
            .lock()
            .take()
            .expect("a leader answers every request that it took")
    }

    /// Refuses all later changes.
    pub(crate) fn close(&self) {
        let mut manifest = self.manifest.lock();
        manifest.closed = true;
        manifest.writer = None;
    }

    fn commit(&self, manifest: &mut ManifestFile, requests: Vec<Request>) {
        let mut newest = Newest::default();
        let mut records = Vec::new();
        let mut built = Vec::new();
        for request in requests {
            match self.build(&request, &mut newest, &mut records) {
                Ok(versions) => built.push((request, versions)),
                Err(e) => {
                    self.give_up_files(manifest, &request.changes, false);
                    *request.ticket.lock() = Some(Err(e));
                }
            }
        }
        let mut may_be_written = false;
        let written = self
            .health
            .check_failed()
            .and_then(|()| match manifest.closed {
                true => Err(Error::closed("database is closed")),
                false => {
                    may_be_written = true;
                    self.write(manifest, &records)
                }
            });
        match written {
            Ok(()) => {
                for (request, versions) in built {
                    self.install(request.changes, versions);
                    *request.ticket.lock() = Some(Ok(()));
                }
            }
            Err(e) => {
                for (request, _) in built {
                    self.give_up_files(manifest, &request.changes, may_be_written);
                    *request.ticket.lock() = Some(Err(e.clone()));
                }
            }
        }
    }

    /// The versions after `request`, and its records.
    fn build(
        &self,
        request: &Request,
        newest: &mut Newest,
        records: &mut Vec<Vec<u8>>,
    ) -> Result<Vec<Built>> {
        let mut after = newest.clone();
        let mut versions = Vec::new();
        let mut encoded = Vec::new();
        let total = request.changes.len();
        for (i, change) in request.changes.iter().enumerate() {
            let family = &change.family;
            if family.is_dropped() || after.dropped.contains(&family.id) {
                return Err(
                    Error::aborted("column family was dropped").with("column_family", &family.name)
                );
            }
            let base = after
                .versions
                .get(&family.id)
                .cloned()
                .unwrap_or_else(|| family.state().version.clone());
            let mut edit = change.edit.clone();
            edit.column_family = family.id;
            // Of files that are gone there is nothing to tell.
            edit.blob_file_garbages.retain(|g| {
                g.given_up_bytes.is_none() || base.blob_files().contains_key(&g.number)
            });
            let (version, gone) = if edit.column_family_change.is_none() {
                let mut builder = VersionBuilder::new(&base);
                builder.apply(&edit)?;
                let (version, gone) = builder.build_and_tell()?;
                (Arc::new(version), gone)
            } else {
                (base, Vec::new())
            };
            edit.next_file_number = Some(self.next_file.load(Ordering::Relaxed));
            edit.last_sequence = Some(self.sequence.visible());
            if total > 1 {
                edit.atomic_group_remaining = Some((total - 1 - i) as u32);
            }
            encoded.push(edit.encode());
            if edit.column_family_change == Some(ColumnFamilyChange::Drop) {
                after.dropped.push(family.id);
            }
            after.versions.insert(family.id, version.clone());
            versions.push((version, gone));
        }
        *newest = after;
        records.append(&mut encoded);
        Ok(versions)
    }

    fn write(&self, manifest: &mut ManifestFile, records: &[Vec<u8>]) -> Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let full = manifest
            .writer
            .as_ref()
            .is_none_or(|w| w.size() > self.max_manifest_file_size.max(manifest.grows_to));
        let start = self.clock.now_micros();
        let result = if full {
            self.start_manifest(manifest)
                .and_then(|()| self.append(manifest, records))
        } else {
            self.append(manifest, records)
        };
        let micros = self.clock.now_micros().saturating_sub(start);
        self.statistics
            .record(HistogramKind::ManifestFileSyncMicros, micros);
        if let Err(e) = &result {
            // What is in it nobody knows. The next change starts a new one.
            self.health.note(e);
            manifest.writer = None;
        }
        result
    }

    fn append(&self, manifest: &mut ManifestFile, records: &[Vec<u8>]) -> Result<()> {
        let Some(writer) = manifest.writer.as_mut() else {
            return Err(Error::closed("no MANIFEST is open"));
        };
        for record in records {
            writer.add_record(record)?;
            // Each by itself: of two that are not synced a power loss may keep the second
            // only, and then a torn tail could not be told from damage in the middle.
            writer.sync()?;
        }
        Ok(())
    }

    /// Starts a new MANIFEST that holds the state of all families, and makes it the current one.
    ///
    /// # Errors
    /// `Io`, `NoSpace`: the old MANIFEST is still current, or the new one is complete; no change is taken until one was made.
    pub(crate) fn roll_manifest(&self) -> Result<()> {
        let mut manifest = self.manifest.lock();
        self.start_manifest(&mut manifest).inspect_err(|e| {
            self.health.note(e);
        })
    }

    /// Starts a new MANIFEST if a change may have been left half written in the current one: a
    /// family that was not dropped after all must not be written to before.
    ///
    /// # Errors
    /// As for [`Self::roll_manifest`].
    pub(crate) fn mend(&self) -> Result<()> {
        let mut manifest = self.manifest.lock();
        if manifest.writer.is_some() || manifest.closed {
            return Ok(());
        }
        self.start_manifest(&mut manifest).inspect_err(|e| {
            self.health.note(e);
        })
    }

    /// Gives up the files that changes would have brought in. Where the changes may be in the MANIFEST the files go when a
    /// new one is current, which does not list them. It is noted before anybody else gets at the MANIFEST: who makes the
    /// next one is to find them.
    fn give_up_files(&self, manifest: &ManifestFile, changes: &[Change], may_be_written: bool) {
        if manifest.closed {
            return;
        }
        let mut files = Vec::new();
        for change in changes {
            // A table that moves is there already.
            let version = change.family.version();
            let tables = change.edit.new_files.iter().map(|(_, f)| f.number);
            let tables = tables.filter(|&number| version.find(number).is_none());
            files.extend(tables.map(DataFile::table));
            let blobs = change.edit.blob_file_additions.iter().map(|b| b.number);
            let blobs = blobs.filter(|number| !version.blob_files().contains_key(number));
            files.extend(blobs.map(DataFile::blob));
        }
        let mut removed = self.removed.lock();
        match may_be_written {
            true => removed.doubtful.append(&mut files),
            false => removed.strays.append(&mut files),
        }
    }

    fn start_manifest(&self, manifest: &mut ManifestFile) -> Result<()> {
        let number = self.new_file_number();
        let doubtful = std::mem::take(&mut self.removed.lock().doubtful);
        let started = self.write_manifest(number);
        let mut removed = self.removed.lock();
        let writer = match started {
            Ok(writer) => writer,
            Err(NotStarted {
                error,
                may_be_current,
            }) => {
                removed.doubtful.extend(doubtful);
                manifest.writer = None;
                if may_be_current {
                    // What went to the old one from here on could be lost at the next open.
                    manifest.doubtful.push(number);
                } else {
                    // At once: each of many tries would take some of the space that the next one needs.
                    let path = filename::manifest_path(&self.dir, number);
                    let _ = self.fs.remove_file(&path);
                }
                return Err(error);
            }
        };
        removed.strays.extend(doubtful);
        removed.manifests.append(&mut manifest.doubtful);
        if manifest.number != 0 {
            removed.manifests.push(manifest.number);
        }
        manifest.grows_to = writer.size().saturating_mul(MANIFEST_GROWS_TIMES);
        manifest.writer = Some(writer);
        manifest.number = number;
        Ok(())
    }

    /// Writes the state of all families to a new MANIFEST, and makes that the current one.
    fn write_manifest(&self, number: FileNo) -> Result<Writer, NotStarted> {
        let not_current = |error| NotStarted {
            error,
            may_be_current: false,
        };
        let writer = self.write_to_manifest(number).map_err(not_current)?;
        let named = manifest::write_current_temporary(&*self.fs, &self.dir, number);
        let temporary = named.map_err(not_current)?;
        let current = self
            .fs
            .rename(&temporary, &filename::current_path(&self.dir));
        let current = current.and_then(|()| self.directory.sync());
        current.map(|()| writer).map_err(|error| NotStarted {
            error,
            may_be_current: true,
        })
    }

    fn write_to_manifest(&self, number: FileNo) -> Result<Writer> {
        let path = filename::manifest_path(&self.dir, number);
        let mut writer = Writer::new(self.fs.create(&path)?, number, false);
        self.write_snapshot(&mut writer)?;
        writer.sync()?;
        // Its name first, else CURRENT could survive a power loss that the MANIFEST does not.
        self.directory.sync()?;
        Ok(writer)
    }

    /// Writes the state of all families.
    fn write_snapshot(&self, writer: &mut Writer) -> Result<()> {
        let families = self.families.read();
        let pinned: Vec<_> = families
            .by_id
            .values()
            .map(|family| {
                let state = family.state();
                (family, state.version.clone(), state.log_number)
            })
            .collect();
        let families_snapshot = pinned
            .iter()
            .map(|(family, version, log_number)| FamilySnapshot {
                id: family.id,
                name: &family.name,
                comparator: family.icmp.user.name(),
                log_number: *log_number,
                version,
                full_history_ts_low: None,
            })
            .collect();
        let snapshot = manifest::Snapshot {
            db_id: Some(&self.db_id),
            next_file_number: self.next_file.load(Ordering::Relaxed),
            last_sequence: self.sequence.visible(),
            min_log_number_to_keep: self.min_log_number_to_keep.load(Ordering::Relaxed),
            max_column_family: families.max_id,
            wals: WalSet::default(),
            filled_blob_files: BTreeSet::new(),
            families: families_snapshot,
        };
        snapshot.write(writer)
    }

    fn install(&self, changes: Vec<Change>, versions: Vec<Built>) {
        for (change, (version, gone)) in changes.into_iter().zip(versions) {
            let Change {
                family,
                edit,
                install,
            } = change;
            if let Some(number) = edit.min_log_number_to_keep {
                self.min_log_number_to_keep
                    .fetch_max(number, Ordering::Relaxed);
            }
            match edit.column_family_change {
                Some(ColumnFamilyChange::Add(_)) => self.register(family.clone()),
                Some(ColumnFamilyChange::Drop) => {
                    family.dropped.store(true, Ordering::Release);
                    self.families.write().by_id.remove(&family.id);
                }
                None => {}
            }
            let mut state = family.state();
            if let Holes::Waiting { era, files, .. } = &mut state.holes {
                // What goes as a whole needs no holes.
                files.retain(|f| version.blob_files().contains_key(&f.number));
                if family.is_dropped() || (files.is_empty() && era.is_over()) {
                    state.holes = Holes::Idle;
                }
            }
            let old = std::mem::replace(&mut state.version, version.clone());
            if let Some(log_number) = edit.log_number {
                state.log_number = state.log_number.max(log_number);
            }
            if let Some(install) = install {
                install(&mut state);
            }
            family.publish(&state);
            drop(state);
            if family.is_dropped() {
                let mut removed = self.removed.lock();
                let all = old.levels().iter().flat_map(|l| l.files().iter().cloned());
                removed.tables.extend(all);
                let blobs = old.blob_files().values();
                removed.blobs.extend(blobs.map(|b| b.file.clone()));
            } else {
                self.note_removed(&edit, &old, gone);
            }
        }
    }

    fn note_removed(&self, edit: &VersionEdit, old: &Version, blobs: Vec<Arc<BlobFile>>) {
        let moved: HashSet<FileNo> = edit.new_files.iter().map(|(_, f)| f.number).collect();
        let mut gone: BTreeMap<usize, HashSet<FileNo>> = BTreeMap::new();
        for &(level, number) in edit.deleted_files.iter().filter(|d| !moved.contains(&d.1)) {
            gone.entry(level).or_default().insert(number);
        }
        let mut removed = self.removed.lock();
        for (level, numbers) in gone {
            let files = old.levels().get(level).map_or(&[][..], |l| l.files());
            let files = files.iter().filter(|f| numbers.contains(&f.number));
            removed.tables.extend(files.cloned());
        }
        removed.blobs.extend(blobs);
    }

    /// Files that no version refers to, for `obsolete.rs`. Those that somebody still holds stay in
    /// the list.
    pub(crate) fn take_removed(&self) -> Removed {
        let mut removed = self.removed.lock();
        // Nobody gets at a file of this list that only the list holds.
        let tables = removed.tables.extract_if(.., |f| Arc::strong_count(f) == 1);
        let tables = tables.collect();
        let blobs = removed.blobs.extract_if(.., |f| Arc::strong_count(f) == 1);
        Removed {
            tables,
            blobs: blobs.collect(),
            manifests: std::mem::take(&mut removed.manifests),
            strays: std::mem::take(&mut removed.strays),
            doubtful: Vec::new(),
        }
    }

    /// Tells of the tables that wait to be deleted: number, bytes, and how many others hold them.
    pub(crate) fn removed_tables<T>(&self, tell: impl Fn(FileNo, u64, usize) -> T) -> Vec<T> {
        let removed = self.removed.lock();
        let tables = removed.tables.iter();
        tables
            .map(|f| tell(f.number, f.size, Arc::strong_count(f) - 1))
            .collect()
    }

    /// Tells of the blob files that wait to be deleted: number, bytes, and how often each is held.
    pub(crate) fn removed_blobs<T>(&self, tell: impl Fn(FileNo, u64, usize) -> T) -> Vec<T> {
        let removed = self.removed.lock();
        let blobs = removed.blobs.iter().map(|f| (&f.addition, f));
        blobs
            .map(|(a, f)| tell(a.number, a.file_size(), Arc::strong_count(f) - 1))
            .collect()
    }

    /// True if files wait to be deleted.
    pub(crate) fn has_removed(&self) -> bool {
        let removed = self.removed.lock();
        !(removed.tables.is_empty()
            && removed.blobs.is_empty()
            && removed.manifests.is_empty()
            && removed.strays.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Db, Options};
    use orogen_env::fs::write_file;
    use orogen_env::{Fault, FaultFileSystem, MemFileSystem, OpKind};
    use std::path::Path;

    /// A database whose disk has faults, and a table that is in no version.
    fn with_a_table() -> (Db, FaultFileSystem, FileNo) {
        let fs = FaultFileSystem::new(Arc::new(MemFileSystem::new()));
        let mut options = Options::default();
        options.db.fs = Arc::new(fs.clone());
        options.db.create_if_missing = true;
        let db = Db::open("/db", &options).unwrap();
        let number = db.core().context.set.new_file_number();
        write_file(&fs, &filename::table_path(Path::new("/db"), number), b"t").unwrap();
        (db, fs, number)
    }

    /// Adds the table to level 6, or takes one away that is not there.
    fn apply(db: &Db, number: FileNo, is_refused: bool) -> Result<()> {
        let set = &db.core().context.set;
        let family = set.families().remove(0);
        let mut edit = VersionEdit::of_column_family(family.id);
        let file = FileMeta {
            number,
            smallest: vec![b'a'; 9],
            largest: vec![b'b'; 9],
            ..FileMeta::default()
        };
        edit.add_file(6, Arc::new(file));
        if is_refused {
            edit.delete_file(5, number + 1000);
        }
        set.apply(vec![Change {
            family,
            edit,
            install: None,
        }])
    }

    fn is_there(db: &Db, number: FileNo) -> bool {
        let context = &db.core().context;
        crate::obsolete::purge(context);
        let path = filename::table_path(&context.dir, number);
        context.fs.exists(&path).unwrap()
    }

    #[test]
    fn a_manifest_may_grow_to_many_times_what_it_began_with() {
        let mut options = Options::default();
        options.db.fs = Arc::new(MemFileSystem::new());
        options.db.create_if_missing = true;
        options.db.max_manifest_file_size = 1;
        options.cf.disable_auto_compactions = true;
        let db = Db::open("/db", &options).unwrap();
        let set = &db.core().context.set;
        let mut manifests = HashSet::new();
        for n in 0..40u8 {
            db.put(&[n], b"v").unwrap();
            db.flush().unwrap();
            manifests.insert(set.manifest_number());
        }
        assert!((2..8).contains(&manifests.len()), "{manifests:?}");
    }

    #[test]
    fn a_manifest_that_was_not_finished_takes_no_space() {
        let (db, fs, _) = with_a_table();
        let manifests = || {
            let all = fs.list(Path::new("/db")).unwrap();
            all.iter().filter(|n| n.starts_with("MANIFEST")).count()
        };
        for (kind, part) in [(OpKind::Sync, "MANIFEST"), (OpKind::Sync, ".dbtmp")] {
            for _ in 0..5 {
                let fault = Fault::no_space().on(&[kind]).path_with(part);
                fs.faults().add(fault);
                db.core().context.set.roll_manifest().unwrap_err();
                assert_eq!(manifests(), 1);
            }
        }
        let left = fs.list(Path::new("/db")).unwrap();
        assert!(left.iter().all(|n| !n.ends_with(".dbtmp")), "{left:?}");
    }

    #[test]
    fn files_of_a_refused_change_go_at_once() {
        let (db, _, number) = with_a_table();
        let refused = apply(&db, number, true).unwrap_err();
        assert_eq!(refused.kind(), orogen_base::ErrorKind::Corruption);
        assert!(!is_there(&db, number));
        db.close().unwrap();
    }

    #[test]
    fn files_of_a_change_that_may_be_written_go_with_the_next_manifest_whoever_makes_it() {
        let (db, fs, number) = with_a_table();
        let fault = Fault::no_space().on(&[OpKind::Sync]).path_with("MANIFEST");
        fs.faults().add(fault);
        apply(&db, number, false).unwrap_err();
        // The change may be in the MANIFEST that is current.
        assert!(is_there(&db, number));
        // Who failed has not even been told.
        db.core().context.set.roll_manifest().unwrap();
        assert!(!is_there(&db, number));
    }
}
