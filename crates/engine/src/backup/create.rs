//! The way into a backup: which files, under which names, and the list last.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use orogen_base::checksum::crc32c_extend;
use orogen_base::{Error, FileNo, Result, memory};
use orogen_env::fs::write_file;
use orogen_env::{Access, BufferedFile, FileSystem, WritableFile};

use super::meta::{BackupFile, LIST, META, Meta, PRIVATE, SHARED};
use super::{BackupCreated, BackupEngine, BackupInfo, Progress, remove_all};
use crate::checkpoint::{self, Moment, check_copied_log};
use crate::column_family::ColumnFamilyData;
use crate::context::Context;
use crate::core::Core;
use crate::filename;
use crate::scrub::file_crc32c;
use crate::version::BlobFileMeta;
use crate::version::file_meta::FileMeta;

/// Bytes copied at a time.
const COPY_LEN: usize = 1 << 20;

/// A file of the database on its way into a backup.
struct Source {
    from: PathBuf,
    bytes: u64,
    /// Where it goes, from the backups' directory.
    to: String,
    /// What the MANIFEST says of it.
    wanted: Option<u32>,
}

/// Of a log in a backup.
fn log_name(private: &str, log: FileNo) -> String {
    format!("{private}/{log:06}.log")
}

impl BackupEngine {
    /// Makes backup `id`; `metas` are the lists of those that are there.
    ///
    /// # Errors
    /// See [`Self::create_backup_with`].
    pub(super) fn create(
        &self,
        core: &Core,
        id: u32,
        metas: &BTreeMap<u32, Result<Meta>>,
        progress: Progress<'_>,
    ) -> Result<BackupCreated> {
        let context = &*core.context;
        let fs = self.fs();
        let moment = core.write.exclusive(|| checkpoint::fix(context));
        let private = format!("{PRIVATE}/{id}");
        let own = self.dir.join(&private);
        if fs.exists(&own)? {
            // Of one that failed, and could not be removed.
            remove_all(fs, &own)?;
        }
        fs.create_dir_all(&own)?;
        let mut known: HashMap<&str, &BackupFile> = HashMap::new();
        for meta in metas.values().flatten() {
            known.try_reserve(meta.files.len()).map_err(|_| {
                memory::refused(LIST, meta.files.len() * size_of::<(&str, &BackupFile)>())
            })?;
            known.extend(meta.files.iter().map(|f| (f.path.as_str(), f)));
        }
        let mut files = Vec::new();
        let mut sources = Vec::new();
        for source in self.sources(context, &moment, &private)? {
            match known.get(source.to.as_str()) {
                Some(&file) if self.is_there(file, &source)? => {
                    memory::push(&mut files, file.clone(), LIST)?;
                }
                _ => memory::push(&mut sources, source, LIST)?,
            }
        }
        let total: u64 = sources.iter().map(|s| s.bytes).sum();
        let mut done = 0;
        progress(0, total);
        for source in &sources {
            let crc = self.copy_in(&*context.fs, source, &mut |n| {
                done += n;
                progress(done, total);
            })?;
            let file = BackupFile {
                path: source.to.clone(),
                crc,
                size: Some(source.bytes),
            };
            memory::push(&mut files, file, LIST)?;
        }
        for (log, bytes) in moment.needed_logs() {
            let copy = self.dir.join(log_name(&private, log));
            check_copied_log(context, (log, bytes), fs, &copy)?;
        }
        if context.read_only || context.is_closing() {
            // Beside a writer, or one that has opened the directory since, a value may be a hole once the tables that point to it are gone, those that an earlier backup has, too.
            for (_, version, _) in &moment.families {
                for (_, file) in version.iter_files() {
                    let path = filename::find_table(&*context.fs, &context.dir, file.number)?;
                    context.fs.metadata(&path)?;
                }
            }
        }
        fs.sync_dir(&self.dir.join(SHARED))?;
        let head = self.write_head(context, &moment, &private)?;
        let head_bytes: u64 = head.iter().filter_map(|f| f.size).sum();
        memory::reserve(&mut files, head.len(), LIST)?;
        files.extend(head);
        fs.sync_dir(&own)?;
        fs.sync_dir(&self.dir.join(PRIVATE))?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let meta = Meta {
            timestamp: self.options.clock.unix_secs(),
            sequence: moment.last_sequence,
            files,
        };
        let temporary = self.temporary_meta_path(id);
        write_file(fs, &temporary, meta.encode()?.as_bytes())?;
        fs.rename(&temporary, &self.meta_path(id))?;
        if let Err(e) = fs.sync_dir(&self.dir.join(META)) {
            // A later sync may succeed without the name: it must not count as a backup.
            let _ = self.forget(&[id]);
            return Err(e);
        }
        let shared = |f: &&BackupFile| known.contains_key(f.path.as_str());
        let size = |f: &BackupFile| f.size.unwrap_or(0);
        let bytes: u64 = meta.files.iter().map(size).sum();
        let shared_bytes: u64 = meta.files.iter().filter(shared).map(size).sum();
        Ok(BackupCreated {
            info: BackupInfo {
                id,
                timestamp: meta.timestamp,
                sequence: meta.sequence,
                files: meta.files.len(),
                bytes,
                own_bytes: bytes - shared_bytes,
            },
            bytes_copied: total + head_bytes,
        })
    }

    /// Tables and logs of the moment, with the names that they get.
    fn sources(&self, context: &Context, moment: &Moment, private: &str) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        // As in a checkpoint: what tables point to before the tables.
        for (_, version, _) in &moment.families {
            for blob in version.blob_files().values() {
                memory::push(&mut sources, self.blob_source(context, blob)?, LIST)?;
            }
        }
        for (family, version, _) in &moment.families {
            for (_, file) in version.iter_files() {
                let wanted = file.file_checksum.as_ref().and_then(|c| c.crc32c());
                let from = filename::find_table(&*context.fs, &context.dir, file.number)?;
                let source = Source {
                    to: self.shared_name(context, family, file, &from, wanted)?,
                    from,
                    bytes: file.size,
                    wanted,
                };
                memory::push(&mut sources, source, LIST)?;
            }
        }
        for (log, bytes) in moment.needed_logs() {
            let from = filename::wal_path(&context.dir, log);
            let source = Source {
                to: log_name(private, log),
                from,
                bytes,
                wanted: None,
            };
            memory::push(&mut sources, source, LIST)?;
        }
        Ok(sources)
    }

    /// A blob file, which is shared by its checksum, as RocksDB does it.
    fn blob_source(&self, context: &Context, blob: &BlobFileMeta) -> Result<Source> {
        let number: FileNo = blob.addition().number;
        let from = filename::blob_path(&context.dir, number);
        let wanted = blob.checksum().and_then(|c| c.crc32c());
        let (bytes, crc) = match wanted {
            Some(crc) => (context.fs.metadata(&from)?.size, crc),
            None => file_crc32c(&*context.fs, &from, &self.limiter, &mut |_| {})?,
        };
        Ok(Source {
            to: format!("{SHARED}/{number:06}_{crc}_{bytes}.blob"),
            from,
            bytes,
            wanted: Some(crc),
        })
    }

    fn shared_name(
        &self,
        context: &Context,
        family: &ColumnFamilyData,
        file: &FileMeta,
        path: &Path,
        crc: Option<u32>,
    ) -> Result<String> {
        let number: FileNo = file.number;
        let properties = family.tables.reader(file)?.properties();
        let session = &properties.db_session_id;
        // A table that was taken in from elsewhere has the session of its maker, where the
        // number was another one.
        if !session.is_empty() && properties.original_file_number == number {
            let plain = session.bytes().all(|b| b.is_ascii_alphanumeric());
            if plain {
                return Ok(format!("{SHARED}/{number:06}_s{session}_{}.sst", file.size));
            }
        }
        let crc = match crc {
            Some(crc) => crc,
            None => file_crc32c(&*context.fs, path, &self.limiter, &mut |_| {})?.1,
        };
        Ok(format!("{SHARED}/{number:06}_{crc}_{}.sst", file.size))
    }

    /// True if the file of an earlier backup is the source.
    fn is_there(&self, file: &BackupFile, source: &Source) -> Result<bool> {
        if source.wanted.is_some_and(|wanted| wanted != file.crc) {
            return Err(Error::corruption(
                "table of an earlier backup has the same name and differs",
            )
            .with("file", self.dir.join(&file.path).display())
            .with("table", source.from.display()));
        }
        match self.fs().metadata(&self.dir.join(&file.path)) {
            Ok(found) => Ok(found.size == source.bytes),
            Err(e) if e.is_file_not_found() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Copies a file into the backups; returns its checksum.
    fn copy_in(
        &self,
        from: &dyn FileSystem,
        source: &Source,
        advance: &mut dyn FnMut(u64),
    ) -> Result<u32> {
        let target = self.dir.join(&source.to);
        let temporary = temporary_of(&target);
        let crc = self.copy(
            (from, &source.from),
            (self.fs(), &temporary),
            source.bytes,
            advance,
        )?;
        if let Some(wanted) = source.wanted.filter(|&wanted| wanted != crc) {
            return Err(
                Error::corruption("table is not what was written: its checksum differs")
                    .with("file", source.from.display())
                    .with("crc32c", format_args!("{crc:08x}"))
                    .with("crc32c_wanted", format_args!("{wanted:08x}")),
            );
        }
        self.fs().rename(&temporary, &target)?;
        Ok(crc)
    }

    /// Copies the first `bytes` of a file and syncs the copy; returns the checksum.
    pub(super) fn copy(
        &self,
        (from_fs, from): (&dyn FileSystem, &Path),
        (to_fs, to): (&dyn FileSystem, &Path),
        bytes: u64,
        advance: &mut dyn FnMut(u64),
    ) -> Result<u32> {
        let source = from_fs.open(from, Access::Sequential)?;
        let mut target = BufferedFile::with_capacity(to_fs.create(to)?, 0);
        let mut chunk = memory::zeroed(
            COPY_LEN.min(usize::try_from(bytes).unwrap_or(COPY_LEN)),
            "copy buffer",
        )?;
        let (mut at, mut crc) = (0, 0);
        while at < bytes {
            let n = (bytes - at).min(chunk.len() as u64) as usize;
            self.limiter.request(n as u64);
            source.read_exact_at(at, &mut chunk[..n])?;
            crc = crc32c_extend(crc, &chunk[..n]);
            target.append(&chunk[..n])?;
            at += n as u64;
            advance(n as u64);
        }
        target.sync()?;
        Ok(crc)
    }

    /// Writes what is neither table nor log, and lists it.
    fn write_head(
        &self,
        context: &Context,
        moment: &Moment,
        private: &str,
    ) -> Result<Vec<BackupFile>> {
        let dir = self.dir.join(private);
        let versions = moment.families.iter().map(|(_, version, _)| version);
        let copied = versions.flat_map(|v| v.blob_files().keys().copied());
        checkpoint::write_head(context, moment, (self.fs(), &dir), copied.collect())?;
        let mut files = Vec::new();
        for name in self.fs().list(&dir)? {
            if name.ends_with(".log") {
                continue;
            }
            let (size, crc) = file_crc32c(self.fs(), &dir.join(&name), &self.limiter, &mut |_| {})?;
            files.push(BackupFile {
                path: format!("{private}/{name}"),
                crc,
                size: Some(size),
            });
        }
        Ok(files)
    }
}

/// The name under which a file is written before it gets its own.
fn temporary_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}
