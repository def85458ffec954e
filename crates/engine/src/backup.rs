//! Incremental backups of a database that goes on being written.
//!
//! ```text
//! backups/
//!   meta/<id>                     the list of a backup's files (see `backup/meta.rs`)
//!   private/<id>/                 CURRENT, MANIFEST, OPTIONS, IDENTITY, logs
//!   shared_checksum/NNNNNN_sSESSION_SIZE.sst    tables, shared by all backups that hold them
//!   shared_checksum/NNNNNN_CRC_SIZE.blob        blob files, likewise
//! ```
//! The layout is RocksDB's: its tools list, verify and restore what is made here, and the other
//! way round. A table's name holds the session that wrote it, so equal names are equal tables
//! whatever database they come from; a table that does not know its session has its checksum in
//! the name instead.
//!
//! Invariants: (1) a backup is there when its list is, and the list gets its name last, after
//! everything that it lists was synced; (2) it goes by losing its list first; (3) a file goes
//! only if every list was read and none names it; (4) no file of a backup is ever written over;
//! (5) every byte is compared with its checksum on the way in, where the MANIFEST has one, and on
//! the way out. Source: RocksDB `utilities/backup/backup_engine.cc`.

mod meta;
mod create;
mod restore;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::sync::{Mutex, MutexGuard};
use orogen_base::{Error, ErrorKind, Result, SeqNo};
use orogen_env::fs::{make_dir, read_file};
use orogen_env::{Clock, FileLock, FileSystem, PosixFileSystem, RateLimiter, SystemClock};

use crate::db::Db;
use crate::filename;
use crate::jobs::manual_flush;
use crate::obsolete;
use crate::options::FlushOptions;
use crate::quarantine;
use meta::{BackupFile, META, Meta, PRIVATE, SHARED, SHARED_PLAIN};

/// Settings of a backup engine.
#[derive(Clone)]
pub struct BackupOptions {
    /// Where the backups are.
    pub fs: Arc<dyn FileSystem>,
    /// What time it is.
    pub clock: Arc<dyn Clock>,
    /// Bytes read in a second at most; 0, the default: no limit.
    pub bytes_per_second: u64,
    /// Flush all memtables before a backup instead of copying logs. Default false; it is done
    /// all the same if there were writes without WAL.
    pub flush_before_backup: bool,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self {
            fs: Arc::new(PosixFileSystem::new()),
            clock: Arc::new(SystemClock),
            bytes_per_second: 0,
            flush_before_backup: false,
        }
    }
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupInfo {
    /// Its number; later backups have higher ones.
    pub id: u32,
    /// When it was made, in seconds since 1970.
    pub timestamp: u64,
    /// The newest write in it.
    pub sequence: SeqNo,
    /// How many files it has.
    pub files: usize,
    /// Bytes of its files, those that it shares included.
    pub bytes: u64,
    /// Bytes of files that no other backup shares with it.
    pub own_bytes: u64,
}

/// What [`BackupEngine::create_backup_with`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupCreated {
    /// The backup.
    pub info: BackupInfo,
    /// Bytes that were copied for it; the rest was there.
    pub bytes_copied: u64,
}

/// A directory of backups, held by this engine until it is dropped, or only looked at.
pub struct BackupEngine {
    dir: PathBuf,
    options: BackupOptions,
    limiter: RateLimiter,
    /// Held by whoever changes what is there.
    work: Mutex<()>,
    /// None: it only looks, and changes nothing.
    lock: Option<Box<dyn FileLock>>,
}

type Progress<'a> = &'a mut dyn FnMut(u64, u64);

impl BackupEngine {
    /// Opens a directory of backups, making it if it is not there, and removes what a crash left
    /// half done.
    ///
    /// # Errors
    /// `Busy` if somebody else has it open; `Io`, `NoSpace`.
    pub fn open(dir: impl AsRef<Path>, options: BackupOptions) -> Result<Self> {
        let dir = dir.as_ref().to_owned();
        let fs = &options.fs;
        make_dir(&**fs, &dir)?;
        let lock = fs.lock(&filename::lock_path(&dir))?;
        make_folders(&**fs, &dir)?;
        let engine = Self::with(dir, options, Some(lock));
        // In a directory without any backup nothing is known to be ours.
        engine.collect(false)?;
        Ok(engine)
    }

    /// Opens a directory of backups to list, verify and restore them. Nothing is made, locked or removed: another engine, or
    /// RocksDB, may be making a backup there, and what it deletes meanwhile is missing here.
    ///
    /// # Errors
    /// `NotFound` if there are no backups; `Io`.
    pub fn open_read_only(dir: impl AsRef<Path>, options: BackupOptions) -> Result<Self> {
        let dir = dir.as_ref().to_owned();
        if !options.fs.exists(&dir.join(META))? {
            return Err(Error::not_found("there are no backups here").with("path", dir.display()));
        }
        Ok(Self::with(dir, options, None))
    }

    fn with(dir: PathBuf, options: BackupOptions, lock: Option<Box<dyn FileLock>>) -> Self {
        let limiter = RateLimiter::new(options.bytes_per_second, options.clock.clone());
        Self {
            dir,
            options,
            limiter,
            work: Mutex::new(()),
            lock,
        }
    }

    /// Enters what changes something.
    fn enter_work(&self) -> Result<MutexGuard<'_, ()>> {
        match self.lock {
            Some(_) => Ok(self.work.lock()),
            None => Err(Error::read_only("backups were opened to be looked at")
                .with("path", self.dir.display())),
        }
    }

    fn fs(&self) -> &dyn FileSystem {
        &*self.options.fs
    }

    fn meta_path(&self, id: u32) -> PathBuf {
        self.dir.join(META).join(id.to_string())
    }

    /// Of one that is being made, or deleted.
    fn temporary_meta_path(&self, id: u32) -> PathBuf {
        self.dir.join(META).join(format!(".{id}.tmp"))
    }

    /// Every backup's list by id, as far as it can be read.
    fn metas(&self) -> Result<BTreeMap<u32, Result<Meta>>> {
        let mut found = BTreeMap::new();
        for name in self.fs().list(&self.dir.join(META))? {
            let Some(id) = parse_id(&name) else { continue };
            let bytes = match read_file(self.fs(), &self.meta_path(id)) {
                Ok(bytes) => bytes,
                Err(e) => {
                    found.insert(id, Err(e));
                    continue;
                }
            };
            let path = self.meta_path(id);
            let meta = Meta::decode(&bytes).map_err(|e| e.with("file", path.display()));
            found.insert(id, meta);
        }
        Ok(found)
    }

    /// The list of a backup.
    fn meta(&self, id: u32) -> Result<Meta> {
        let path = self.meta_path(id);
        let bytes = read_file(self.fs(), &path).map_err(|e| {
            if e.is_file_not_found() {
                Error::not_found("there is no such backup").with("backup", id)
            } else {
                e
            }
        })?;
        Meta::decode(&bytes).map_err(|e| e.with("file", path.display()))
    }

    /// The backups, oldest first. One whose list is damaged or lacks a file is not among them:
    /// see [`Self::damaged`].
    ///
    /// # Errors
    /// `Io` if it cannot be told of one whether it is damaged.
    pub fn list(&self) -> Result<Vec<BackupInfo>> {
        let mut good: Vec<(u32, Meta)> = Vec::new();
        for (id, meta) in self.metas()? {
            match meta.and_then(|meta| self.check_sizes(&meta).map(|()| meta)) {
                Ok(meta) => good.push((id, meta)),
                Err(e) if is_damage(&e) => {}
                Err(e) => return Err(e.with("backup", id)),
            }
        }
        let mut users: HashMap<&str, usize> = HashMap::new();
        for (_, meta) in &good {
            for file in &meta.files {
                *users.entry(&file.path).or_default() += 1;
            }
        }
        let mut infos = Vec::new();
        for (id, meta) in &good {
            let mut info = BackupInfo {
                id: *id,
                timestamp: meta.timestamp,
                sequence: meta.sequence,
                files: meta.files.len(),
                bytes: 0,
                own_bytes: 0,
            };
            for file in &meta.files {
                let size = self.size_of(file)?;
                info.bytes += size;
                if users[file.path.as_str()] == 1 {
                    info.own_bytes += size;
                }
            }
            infos.push(info);
        }
        Ok(infos)
    }

    /// The backups that cannot be restored as they are, or not be looked at, and why.
    ///
    /// # Errors
    /// `Io`.
    pub fn damaged(&self) -> Result<Vec<(u32, Error)>> {
        let metas = self.metas()?;
        Ok(metas
            .into_iter()
            .filter_map(|(id, meta)| {
                let checked = meta.and_then(|meta| self.check_sizes(&meta));
                Some((id, checked.err()?))
            })
            .collect())
    }

    fn size_of(&self, file: &BackupFile) -> Result<u64> {
        match file.size {
            Some(size) => Ok(size),
            None => Ok(self.fs().metadata(&self.dir.join(&file.path))?.size),
        }
    }

    /// Every file is there with its size.
    fn check_sizes(&self, meta: &Meta) -> Result<()> {
        for file in &meta.files {
            let path = self.dir.join(&file.path);
            let found = self.fs().metadata(&path).map_err(|e| {
                if e.is_file_not_found() {
                    Error::corruption("file of a backup is missing")
                        .with("file", path.display())
                        .caused_by(e)
                } else {
                    e
                }
            })?;
            if file.size.is_some_and(|size| size != found.size) {
                return Err(Error::corruption("file of a backup has another size")
                    .with("file", path.display())
                    .with("size", found.size));
            }
        }
        Ok(())
    }

    /// Makes a backup of what `db` holds now, while it goes on being written.
    ///
    /// # Errors
    /// See [`Self::create_backup_with`].
    pub fn create_backup(&self, db: &Db) -> Result<BackupInfo> {
        Ok(self.create_backup_with(db, &mut |_, _| {})?.info)
    }

    /// Makes a backup of what `db` holds now; calls `progress` with bytes done and bytes in all.
    /// Tables that an earlier backup holds are shared with it and not copied. When this returns,
    /// the backup survives a power loss.
    ///
    /// # Errors
    /// `Closed`; `Corruption` if a table is not what the MANIFEST says; `Io`, `NoSpace`; what a flush met.
    /// There is then no new backup, and what was copied for it is removed.
    pub fn create_backup_with(&self, db: &Db, progress: Progress<'_>) -> Result<BackupCreated> {
        let core = db.core();
        let context = &core.context;
        context.check_not_following("create_backup")?;
        if context.is_closing() {
            // The files may be those of who opened the directory since.
            return Err(Error::closed("database is closed"));
        }
        let flushes = self.options.flush_before_backup || context.has_unlogged();
        if !context.read_only && flushes {
            let families = context.set.families();
            let wait = FlushOptions { wait: true };
            manual_flush::flush(context, &core.write, &wait, &families)?;
        }
        let _work = self.enter_work()?;
        let metas = self.metas()?;
        let id = self.next_id(&metas)?;
        self.clear_lists()?;
        let held = context.hold_files();
        let result = self.create(core, id, &metas, progress);
        drop(held);
        // Logs that it kept.
        obsolete::purge(context);
        let created = result.inspect_err(|e| {
            quarantine::note(context, e);
            // The first error is the one that matters; the next open removes what stays.
            let _ = self.collect(true);
        })?;
        context.log.info(format_args!(
            "backup {id} made in {}: files={} bytes={} bytes_copied={}",
            self.dir.display(),
            created.info.files,
            created.info.bytes,
            created.bytes_copied
        ));
        Ok(created)
    }

    fn next_id(&self, metas: &BTreeMap<u32, Result<Meta>>) -> Result<u32> {
        let newest = metas.last_key_value().map_or(0, |(id, _)| *id);
        newest.checked_add(1).ok_or_else(|| {
            Error::invalid_argument("there is no number left for another backup")
                .with("path", self.dir.display())
        })
    }

    /// Deletes a backup, and the files that no other one needs.
    ///
    /// # Errors
    /// `ReadOnly`; `NotFound` if there is none of this number; `Io`: it may be gone all the same.
    pub fn delete(&self, id: u32) -> Result<()> {
        let _work = self.enter_work()?;
        self.forget(&[id])?;
        self.collect(true).map(|_| ())
    }

    /// Deletes all but the newest `keep` backups; returns the numbers of those deleted. Damaged
    /// ones do not count as kept, and stay.
    ///
    /// # Errors
    /// `ReadOnly`; `Io`: some may be gone all the same.
    pub fn purge_old(&self, keep: usize) -> Result<Vec<u32>> {
        let _work = self.enter_work()?;
        let ids: Vec<u32> = self.list()?.into_iter().map(|b| b.id).collect();
        let old = &ids[..ids.len().saturating_sub(keep)];
        self.forget(old)?;
        self.collect(!old.is_empty())?;
        Ok(old.to_vec())
    }

    /// Takes lists away: those backups are no more.
    fn forget(&self, ids: &[u32]) -> Result<()> {
        for &id in ids {
            // A list whose removal a failed sync has lost would come back with the power. Under this name it is no list, and it goes
            // before what it names.
            let aside = self.temporary_meta_path(id);
            self.fs().rename(&self.meta_path(id), &aside).map_err(|e| {
                if e.is_file_not_found() {
                    Error::not_found("there is no such backup").with("backup", id)
                } else {
                    e
                }
            })?;
        }
        // Before their files go: a list that came back with the power would name them.
        self.fs().sync_dir(&self.dir.join(META))
    }

    /// Removes files that belong to no backup; returns how many. Where a list cannot be read,
    /// nothing that it may name is touched; nor is anything where there is no backup at all.
    ///
    /// # Errors
    /// `ReadOnly`, `Io`.
    pub fn collect_garbage(&self) -> Result<usize> {
        let _work = self.enter_work()?;
        self.collect(false)
    }

    /// Removes lists that were not finished, or are of backups that were deleted, for good: what they name may be deleted then, or
    /// written anew under the same names. Returns how many.
    fn clear_lists(&self) -> Result<usize> {
        let (fs, lists) = (self.fs(), self.dir.join(META));
        let mut removed = 0;
        for name in fs.list(&lists)? {
            if is_temporary(&name) {
                fs.remove_file(&lists.join(&name))?;
                removed += 1;
            }
        }
        if removed > 0 {
            fs.sync_dir(&lists)?;
        }
        Ok(removed)
    }

    /// `is_ours`: this engine has written or deleted here, so that what no list names was a backup's.
    fn collect(&self, is_ours: bool) -> Result<usize> {
        let fs = self.fs();
        let metas = self.metas()?;
        if metas.is_empty() && !is_ours {
            return Ok(0);
        }
        let mut removed = self.clear_lists()?;
        let private = self.dir.join(PRIVATE);
        for name in fs.list(&private)? {
            if parse_id(&name).is_some_and(|id| !metas.contains_key(&id)) {
                let dir = private.join(&name);
                removed += fs.list(&dir)?.len();
                remove_all(fs, &dir)?;
            }
        }
        let all_read = metas.values().all(Result::is_ok);
        let named: BTreeSet<String> = metas
            .into_values()
            .flatten()
            .flat_map(|meta| meta.files)
            .map(|file| file.path)
            .collect();
        for folder in [SHARED, SHARED_PLAIN] {
            let shared = self.dir.join(folder);
            // Only RocksDB makes the other one.
            if !fs.exists(&shared)? {
                continue;
            }
            for name in fs.list(&shared)?.into_iter().filter(|n| is_shared(n)) {
                let unnamed = all_read && !named.contains(&format!("{folder}/{name}"));
                if is_temporary(&name) || unnamed {
                    fs.remove_file(&shared.join(&name))?;
                    removed += 1;
                }
            }
        }
        Ok(removed)
    }
}

impl std::fmt::Debug for BackupEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BackupEngine({})", self.dir.display())
    }
}

/// Makes the folders that are not there, so that their names survive a power loss.
///
/// # Errors
/// `NoSpace` or `Io`. What was made is removed where it cannot be synced, for a later sync may succeed without the names.
fn make_folders(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    let mut made = Vec::new();
    for folder in [META, PRIVATE, SHARED].map(|folder| dir.join(folder)) {
        if !fs.exists(&folder)? {
            fs.create_dir_all(&folder)?;
            made.push(folder);
        }
    }
    fs.sync_dir(dir).inspect_err(|_| {
        for folder in &made {
            let _ = fs.remove_dir(folder);
        }
    })
}

/// True for what is in a list or missing, false for what kept us from looking.
fn is_damage(e: &Error) -> bool {
    e.is_file_not_found() || matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NotSupported)
}

fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

/// True for a name that a backup gives to what it shares, or writes it under: others are nobody's garbage.
fn is_shared(name: &str) -> bool {
    let own = name.strip_suffix(".tmp").unwrap_or(name);
    let own = own.strip_prefix('.').unwrap_or(own);
    let stem = own
        .strip_suffix(".sst")
        .or_else(|| own.strip_suffix(".blob"));
    let number = stem.and_then(|stem| stem.split('_').next());
    number.is_some_and(|n| n.len() >= 6 && n.bytes().all(|b| b.is_ascii_digit()))
}

fn parse_id(name: &str) -> Option<u32> {
    let id: u32 = name.parse().ok()?;
    (id.to_string() == name).then_some(id)
}

/// Removes a directory and the files in it.
fn remove_all(fs: &dyn FileSystem, dir: &Path) -> Result<()> {
    for name in fs.list(dir)? {
        fs.remove_file(&dir.join(name))?;
    }
    fs.remove_dir(dir)
}
