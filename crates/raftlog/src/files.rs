//! The files of both queues, all of them to read, and how new ones are made.
//!
//! A file that has failed to be made in one directory is durably gone there before it is made in another.

mod appender;
mod filling;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::sync::RwLock;
use orogen_base::{Error, ErrorKind, Result};
use orogen_env::ahead::Ahead;
use orogen_env::{Access, FileSystem, LengthHint, RandomAccessFile, WritableFile};

use crate::dirs::Dirs;
use crate::events::Listeners;
use crate::format::{FileHeader, FormatVersion, padding};
use crate::metrics::Meters;
use crate::names::{FileId, Queue};
use crate::spares::Spares;

pub(crate) use appender::Appender;

/// A file that is there to be read.
pub(crate) struct LogFile {
    pub(crate) id: FileId,
    pub(crate) version: FormatVersion,
    pub(crate) reader: Arc<dyn RandomAccessFile>,
}

impl LogFile {
    pub(crate) fn signature(&self) -> u32 {
        self.version.signature(self.id.seq)
    }

    /// The directory where it lies.
    pub(crate) fn dir(&self) -> &Path {
        dir_of(self.reader.path())
    }
}

fn dir_of(path: &Path) -> &Path {
    path.parent().unwrap_or_else(|| Path::new(""))
}

/// The files of both queues.
#[derive(Default)]
pub(crate) struct Table {
    append: RwLock<Vec<Arc<LogFile>>>,
    rewrite: RwLock<Vec<Arc<LogFile>>>,
}

impl Table {
    fn queue(&self, queue: Queue) -> &RwLock<Vec<Arc<LogFile>>> {
        match queue {
            Queue::Append => &self.append,
            Queue::Rewrite => &self.rewrite,
        }
    }

    /// Adds the file behind the newest of its queue.
    pub(crate) fn push(&self, file: Arc<LogFile>) {
        self.queue(file.id.queue).write().push(file);
    }

    /// The file, if it was not deleted.
    pub(crate) fn find(&self, id: FileId) -> Option<Arc<LogFile>> {
        let files = self.queue(id.queue).read();
        let first = files.first()?.id.seq;
        let at = usize::try_from(id.seq.checked_sub(first)?).ok()?;
        files.get(at).cloned()
    }

    /// Numbers of the oldest and the newest file.
    pub(crate) fn span(&self, queue: Queue) -> Option<(u64, u64)> {
        let files = self.queue(queue).read();
        Some((files.first()?.id.seq, files.last()?.id.seq))
    }

    /// How many files of both queues lie in a directory.
    pub(crate) fn count_in(&self, dir: &Path) -> u64 {
        let count = |files: &RwLock<Vec<Arc<LogFile>>>| {
            let files = files.read();
            files.iter().filter(|file| file.dir() == dir).count() as u64
        };
        count(&self.append) + count(&self.rewrite)
    }

    /// How many files a queue has.
    pub(crate) fn count_of(&self, queue: Queue) -> u64 {
        self.queue(queue).read().len() as u64
    }

    /// All files, those of the rewrite queue first, the older before the newer ones.
    pub(crate) fn ids(&self) -> Vec<FileId> {
        let queues = [&self.rewrite, &self.append];
        let files = queues.map(|queue| queue.read().clone());
        files.iter().flatten().map(|file| file.id).collect()
    }

    /// Deletes the files of a queue before number `end`, the oldest first, or makes them spare; the
    /// newest of them.
    ///
    /// A file that somebody reads just now is deleted, and stays readable to them. The names are synced at the end:
    /// if some come back after a power loss and others do not, those before the gap are not read, and those
    /// behind it are the newer ones.
    ///
    /// # Errors
    /// Of the file system. What could not be deleted is tried again the next time.
    pub(crate) fn delete_before(
        &self,
        files: &NewFiles,
        queue: Queue,
        end: u64,
    ) -> Result<Option<FileId>> {
        let fs = &*files.fs;
        let spares = (queue == Queue::Append).then_some(&*files.spares);
        let (mut last, mut renamed) = (None, Vec::new());
        let result = loop {
            // Out of the table first: nobody begins to read it from here on.
            let file = {
                let mut files = self.queue(queue).write();
                match files.first() {
                    Some(file) if file.id.seq < end => files.remove(0),
                    _ => break Ok(last),
                }
            };
            let path = file.reader.path().to_owned();
            let may_be_spare = file.version == FormatVersion::V2 && Arc::strong_count(&file) == 1;
            let spare = spares
                .filter(|s| may_be_spare && s.room(self.count_of(queue)) > renamed.len() as u64)
                .and_then(|s| s.rename(fs, &path).ok());
            let id = file.id;
            if let Some(number) = spare {
                files.meters.spared();
                renamed.push(number);
            } else if let Err(e) = fs.remove_file(&path)
                && !e.is_file_not_found()
            {
                self.queue(queue).write().insert(0, file);
                break Err(e);
            } else {
                files.meters.deleted.increase(queue, 1);
            }
            last = Some(id);
            if queue == Queue::Append {
                // One that stays here is removed at the next open.
                let _ = fs.remove_file(&path.with_file_name(id.digest_name()));
            }
        };
        if last.is_some() {
            files.dirs.sync(fs)?;
        }
        if let Some(spares) = spares {
            spares.add(renamed);
        }
        result
    }

    pub(crate) fn has(&self, id: FileId) -> bool {
        self.find(id).is_some()
    }
}

/// The error of who looks for an entry in a file that is not there and was not moved.
#[cold]
pub(crate) fn gone(id: FileId) -> Error {
    Error::corruption("file of an entry is not there").with("file", id.name())
}

/// Makes an empty file with a header; it and its name are synced. With `mapped`, bytes that it will have and who may make
/// room for them, it is written through memory where that can be.
pub(crate) fn make(
    fs: &dyn FileSystem,
    dir: &Path,
    id: FileId,
    header: FileHeader,
    mapped: Option<(u64, &Arc<Ahead>)>,
) -> Result<Box<dyn WritableFile>> {
    let path = dir.join(id.name());
    let writer = match mapped {
        None => fs.create(&path)?,
        Some((size, ahead)) => fs.create_mapped(&path, hint_of(size), Some(ahead))?,
    };
    begin(fs, dir, header, writer)
}

/// What is known of the length of a file that is full with `size` bytes.
fn hint_of(size: u64) -> LengthHint {
    LengthHint {
        expected: size,
        likely: size,
    }
}

/// Writes the header of a file, with its padding; it and the file's name are synced.
fn begin(
    fs: &dyn FileSystem,
    dir: &Path,
    header: FileHeader,
    mut writer: Box<dyn WritableFile>,
) -> Result<Box<dyn WritableFile>> {
    let mut bytes = header.encode();
    let zeros = padding(bytes.len() as u64, header.alignment_kept());
    bytes.resize(bytes.len() + zeros as usize, 0);
    writer.append(&bytes)?;
    writer.sync()?;
    fs.sync_dir(dir)?;
    Ok(writer)
}

/// Bytes that are copied at a time.
const CHUNK: u64 = 1 << 20;

/// Copies up to `len` bytes of a file to a new one, whose content is synced.
pub(crate) fn copy(fs: &dyn FileSystem, from: &Path, to: &Path, len: u64) -> Result<()> {
    let file = fs.open(from, Access::Sequential)?;
    let mut out = fs.create(to)?;
    let (mut at, mut chunk) = (0, Vec::new());
    while at < len {
        chunk.clear();
        let n = file.append_at(at, CHUNK.min(len - at) as usize, &mut chunk)?;
        if n == 0 {
            break;
        }
        out.append(&chunk)?;
        at += n as u64;
    }
    out.sync()
}

/// Cuts a file off at `len`, so that what was behind does not come back.
pub(crate) fn cut(fs: &dyn FileSystem, path: &Path, len: u64) -> Result<Box<dyn WritableFile>> {
    fs.truncate(path, len)?;
    let mut writer = fs.open_append(path)?;
    writer.sync()?;
    Ok(writer)
}

/// Told of each file of the append queue to which nothing is appended any more, and where its records end.
pub(crate) type OnFull = Arc<dyn Fn(&Arc<LogFile>, u64) + Send + Sync>;

/// A new file, who appends to it, and up to where it is written over.
type Made = (Arc<LogFile>, Box<dyn WritableFile>, u64);

/// What an attempt to make a file may have left.
pub(crate) struct Unfinished {
    path: PathBuf,
    /// It was to be made of a spare file: it may hold what that held.
    has_old_bytes: bool,
}

/// What new files are like.
#[derive(Clone)]
pub(crate) struct NewFiles {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) header: FileHeader,
    pub(crate) target_size: u64,
    /// Makes room and pages before they are needed.
    pub(crate) ahead: Arc<Ahead>,
    /// Writes what nobody waits for, which may take long.
    pub(crate) beside: Arc<Ahead>,
    /// Told of each new file, and of more by those who have this.
    pub(crate) listeners: Listeners,
    /// Files to be written over; none where they may not be.
    pub(crate) spares: Arc<Spares>,
    pub(crate) on_full: OnFull,
    pub(crate) meters: Arc<Meters>,
}

impl NewFiles {
    /// Room is a matter of speed: without it each append asks for its own.
    fn reserve(&self, writer: &mut dyn WritableFile, len: u64) {
        let _timed = self.meters.allocate.time();
        let _ = writer.preallocate(self.target_size.saturating_sub(len));
    }

    /// Tells of a new file.
    pub(crate) fn tell(&self, id: FileId) {
        self.listeners.iter().for_each(|l| l.post_new_log_file(id));
    }

    /// A spare file of a directory that has no other name, and its size. A fork of the directory or a copy of it may share some: of those our
    /// names are removed.
    fn spare_of_one_name(&self, dir: &Path) -> Result<Option<(PathBuf, u64)>> {
        while let Some(spare) = self.spares.take(dir) {
            let metadata = match self.fs.metadata(&spare) {
                // Somebody has taken it away: it is no spare file, and no reason for an error.
                Err(e) if e.is_file_not_found() => continue,
                metadata => metadata?,
            };
            if metadata.links == 1 {
                return Ok(Some((spare, metadata.size)));
            }
            self.fs.remove_file(&spare)?;
        }
        Ok(None)
    }

    fn has_spare(&self, queue: Queue, dir: &Path) -> bool {
        queue == Queue::Append && self.spares.has(dir)
    }

    /// The directories for the next file of a queue, the best first.
    fn dirs_for(&self, queue: Queue) -> Vec<Arc<Path>> {
        let has_spare = |dir: &Path| self.has_spare(queue, dir);
        self.dirs
            .for_new_file(&*self.fs, self.target_size, has_spare)
    }

    /// Makes the first or next file in the first of `dirs` that takes it, `mapped` to be written through memory; and up to where it is
    /// written over. `unfinished` is what an attempt has left in another directory.
    fn make(
        &self,
        id: FileId,
        dirs: &[Arc<Path>],
        mapped: bool,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Made> {
        loop {
            let made = self.make_once(id, dirs, mapped, unfinished);
            let is_full = |e: &Error| e.kind() == ErrorKind::NoSpace;
            if !made.as_ref().is_err_and(is_full) {
                return made;
            }
            let gives_up = |dir: &Arc<Path>| self.spares.give_up(&*self.fs, dir);
            if !dirs.iter().any(|dir| gives_up(dir).unwrap_or(false)) {
                return made;
            }
        }
    }

    fn make_once(
        &self,
        id: FileId,
        dirs: &[Arc<Path>],
        mapped: bool,
        unfinished: &mut Option<Unfinished>,
    ) -> Result<Made> {
        let mut failed = None;
        for dir in dirs {
            let path = dir.join(id.name());
            // One without old bytes is empty: of two files of one number the empty one does not count.
            if let Some(other) = unfinished.take_if(|other| other.path != path)
                && let Err(e) = self.take_back(&other.path)
                && other.has_old_bytes
            {
                *unfinished = Some(other);
                return Err(failed.unwrap_or(e));
            }
            // The sync of its name may have failed: then the next one brings only a new name to the disk.
            if unfinished.is_some()
                && let Err(e) = self.fs.remove_file(&path)
                && !e.is_file_not_found()
            {
                failed.get_or_insert(e);
                continue;
            }
            let mut has_old_bytes = false;
            match self.make_at(id, &path, mapped, &mut has_old_bytes) {
                Ok(made) => {
                    *unfinished = None;
                    return Ok(made);
                }
                Err(e) => {
                    // A directory that takes nothing gives nothing back either. The removal of one that was known may not be synced yet.
                    let known = unfinished.take();
                    if known.is_some() || self.fs.exists(&path).unwrap_or(true) {
                        has_old_bytes |= known.is_some_and(|known| known.has_old_bytes);
                        *unfinished = Some(Unfinished {
                            path,
                            has_old_bytes,
                        });
                    }
                    failed.get_or_insert(e);
                }
            }
        }
        if let Some(left) = unfinished {
            // The next try makes it anew; without a record in it nobody is misled by it.
            let _ = self.fs.remove_file(&left.path);
        }
        Err(failed.unwrap_or_else(|| Error::invalid_argument("a log has no directory")))
    }

    /// Removes what was to be a file, before another directory gets one of that name.
    fn take_back(&self, path: &Path) -> Result<()> {
        match self.fs.remove_file(path) {
            Err(e) if !e.is_file_not_found() => return Err(e),
            _ => {}
        }
        self.fs.sync_dir(dir_of(path))
    }

    /// `of_spare` tells, of a failure too, whether the file was to be made of a spare one.
    fn make_at(&self, id: FileId, path: &Path, mapped: bool, of_spare: &mut bool) -> Result<Made> {
        let dir = dir_of(path);
        let _watch = self.dirs.watch(|| dir);
        let spare = match id.queue {
            Queue::Append => self.spare_of_one_name(dir)?,
            Queue::Rewrite => None,
        };
        let mapped = mapped.then_some((self.target_size, &self.ahead));
        let mut written = 0;
        let mut writer = match spare {
            Some((spare, size)) => {
                *of_spare = true;
                written = size;
                self.meters.wrote_over();
                let mut writer = match mapped {
                    None => self.fs.reuse(&spare, path)?,
                    // Its pages are there, most likely: to wake a thread for them costs more than they do.
                    Some((size, _)) => self.fs.reuse_mapped(&spare, path, hint_of(size), None)?,
                };
                writer.give_up_old_bytes();
                begin(&*self.fs, dir, self.header, writer)?
            }
            None => make(&*self.fs, dir, id, self.header, mapped)?,
        };
        let file = LogFile {
            id,
            version: self.header.version,
            reader: self.fs.open(path, Access::Random)?,
        };
        self.meters.made.increase(id.queue, 1);
        if self.dirs.second() == Some(dir) {
            self.meters.spilled.increase(id.queue, 1);
        }
        let len = writer.size();
        if written < self.target_size {
            self.reserve(&mut *writer, len);
        }
        Ok((Arc::new(file), writer, written))
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::MemFileSystem;

    use super::*;
    use crate::options::Options;

    #[test]
    fn a_file_that_somebody_reads_is_not_written_over() {
        let (fs, dir) = (Arc::new(MemFileSystem::new()), Path::new("/log"));
        fs.create_dir_all(dir).unwrap();
        let dirs = Arc::new(Dirs::new(dir, None).unwrap());
        let files = NewFiles {
            fs: fs.clone(),
            dirs: Arc::clone(&dirs),
            header: Options::default().file_header(),
            target_size: 1000,
            ahead: Arc::default(),
            beside: Arc::default(),
            spares: Arc::new(Spares::open(&*fs, &dirs, 10, true).unwrap()),
            listeners: Listeners::from([]),
            on_full: Arc::new(|_, _| {}),
            meters: Arc::new(Meters::new()),
        };
        let table = Table::default();
        for seq in 1..=4 {
            let id = FileId::new(Queue::Append, seq);
            let made = files.make(id, &[Arc::from(dir)], false, &mut None);
            table.push(made.unwrap().0);
        }
        let reader = table.find(FileId::new(Queue::Append, 2)).unwrap();
        table.delete_before(&files, Queue::Append, 4).unwrap();
        let mut names = fs.list(dir).unwrap();
        names.sort();
        assert_eq!(
            names,
            [
                "0000000000000001.raftlog.reserved",
                "0000000000000002.raftlog.reserved",
                "0000000000000004.raftlog"
            ]
        );
        let mut header = Vec::new();
        reader.reader.append_exact_at(0, 69, &mut header).unwrap();
        assert!(FileHeader::decode(&header).is_ok(), "it is still there");
    }
}
