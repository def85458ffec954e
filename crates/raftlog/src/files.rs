//! The files of a queue: all of them to read, the newest to append to.
//!
//! Invariants of the appender:
//!
//! 1. `len` is where the last whole append ended. After one that failed the file is cut off there,
//!    and that is synced, before anything else is written: what was refused does not come back.
//! 2. A full file is synced, and its successor has a synced header and name, before the first
//!    record goes there.
//! 3. A file that has failed to be made in one directory is durably gone there before it is made in another.
//! 4. After a failed sync every call fails with `ReadOnly`: what the system has dropped cannot be
//!    known.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use orogen_base::sync::RwLock;
use orogen_base::{Error, ErrorKind, Result};
use orogen_env::ahead::Ahead;
use orogen_env::{Access, FileSystem, LengthHint, RandomAccessFile, WritableFile};

use crate::dirs::Dirs;
use crate::events::Listeners;
use crate::format::{FileHeader, FormatVersion};
use crate::metrics::Meters;
use crate::names::{FileId, Queue};
use crate::spares::Spares;

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

    pub(crate) fn count(&self) -> u64 {
        (self.append.read().len() + self.rewrite.read().len()) as u64
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
    version: FormatVersion,
    mapped: Option<(u64, &Arc<Ahead>)>,
) -> Result<Box<dyn WritableFile>> {
    let path = dir.join(id.name());
    let writer = match mapped {
        None => fs.create(&path)?,
        Some((size, ahead)) => fs.create_mapped(&path, hint_of(size), Some(ahead))?,
    };
    begin(fs, dir, version, writer)
}

/// What is known of the length of a file that is full with `size` bytes.
fn hint_of(size: u64) -> LengthHint {
    LengthHint {
        expected: size,
        likely: size,
    }
}

/// Writes the header of a file; it and the file's name are synced.
fn begin(
    fs: &dyn FileSystem,
    dir: &Path,
    version: FormatVersion,
    mut writer: Box<dyn WritableFile>,
) -> Result<Box<dyn WritableFile>> {
    let header = FileHeader {
        version,
        alignment: 0,
    };
    writer.append(&header.encode())?;
    writer.sync()?;
    fs.sync_dir(dir)?;
    Ok(writer)
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

/// What new files are like.
#[derive(Clone)]
pub(crate) struct NewFiles {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) dirs: Arc<Dirs>,
    pub(crate) version: FormatVersion,
    pub(crate) target_size: u64,
    /// Makes room and pages before they are needed.
    pub(crate) ahead: Arc<Ahead>,
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
            let metadata = self.fs.metadata(&spare)?;
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
        unfinished: &mut Option<PathBuf>,
    ) -> Result<(Arc<LogFile>, Box<dyn WritableFile>, u64)> {
        let mut failed = None;
        for dir in dirs {
            let path = dir.join(id.name());
            if let Some(other) = unfinished.take_if(|other| *other != path)
                && let Err(e) = self.take_back(&other)
            {
                *unfinished = Some(other);
                return Err(failed.unwrap_or(e));
            }
            match self.make_at(id, &path, mapped) {
                Ok(made) => {
                    *unfinished = None;
                    return Ok(made);
                }
                Err(e) => {
                    *unfinished = Some(path);
                    failed.get_or_insert(e);
                }
            }
        }
        if let Some(path) = unfinished {
            // The next try makes it anew; without a record in it nobody is misled by it.
            let _ = self.fs.remove_file(path);
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

    fn make_at(
        &self,
        id: FileId,
        path: &Path,
        mapped: bool,
    ) -> Result<(Arc<LogFile>, Box<dyn WritableFile>, u64)> {
        let dir = dir_of(path);
        let spare = match id.queue {
            Queue::Append => self.spare_of_one_name(dir)?,
            Queue::Rewrite => None,
        };
        let mapped = mapped.then_some((self.target_size, &self.ahead));
        let mut written = 0;
        let mut writer = match spare {
            Some((spare, size)) => {
                written = size;
                self.meters.wrote_over();
                let writer = match mapped {
                    None => self.fs.reuse(&spare, path)?,
                    // Its pages are there, most likely: to wake a thread for them costs more than they do.
                    Some((size, _)) => self.fs.reuse_mapped(&spare, path, hint_of(size), None)?,
                };
                begin(&*self.fs, dir, self.version, writer)?
            }
            None => make(&*self.fs, dir, id, self.version, mapped)?,
        };
        let file = LogFile {
            id,
            version: self.version,
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

/// A file that is synced more often than once in so many bytes is not written through memory: behind each sync the system
/// has to be told of each page again, which costs more than calls.
const SYNCED_OFTEN: u64 = 64 << 10;

/// A file that is not written through memory is made longer by so much at a time: a sync need not write its size then,
/// which is a quarter of what one costs.
const LENGTHENED: u64 = 8 << 20;

/// Where a sync has no more than so many bytes to write, on the average, zeros are written before the records. Blocks that
/// were reserved and never written have to be marked with each sync, in the journal of the file system, which takes as
/// long again, and writes more than the zeros.
const SYNCED_BYTES_FEW: u64 = 32 << 10;

/// Syncs that show how many bytes those of a file have to write.
const SYNCS_SHOWING: u64 = 8;

/// Zeros that are written at a time.
const ZEROS: u64 = 256 << 10;

/// Appends to the newest file of a queue.
pub(crate) struct Appender {
    new_files: NewFiles,
    table: Arc<Table>,
    file: Arc<LogFile>,
    /// None after a failed append, until the file is cut off where it was whole.
    writer: Option<Box<dyn WritableFile>>,
    len: u64,
    /// Up to here the file was made longer, or has bytes that are written over; it never is made longer if it is written
    /// through memory.
    room: u64,
    /// Up to here its blocks were written, with zeros or what is written over.
    zeroed: u64,
    /// Whether zeros are written before records.
    is_zeroed: bool,
    is_dirty: bool,
    /// The last append found no space.
    was_full: bool,
    /// Of this file.
    syncs: u64,
    /// What a file that could not be made may have left.
    unfinished: Option<PathBuf>,
    failed_sync: Option<Error>,
    pub(crate) is_closed: bool,
}

impl Appender {
    /// Goes on behind `newest`, a file of the table and where it ends, or makes the first one.
    pub(crate) fn open(
        new_files: NewFiles,
        table: Arc<Table>,
        queue: Queue,
        newest: Option<(Arc<LogFile>, u64)>,
    ) -> Result<Self> {
        let (mut room, mut unfinished) = (0, None);
        let (file, writer, len) = match newest {
            Some((file, len)) => {
                let mut writer = new_files.fs.open_append(file.reader.path())?;
                new_files.reserve(&mut *writer, len);
                (file, writer, len)
            }
            None => {
                let (id, dirs) = (FileId::new(queue, 1), new_files.dirs_for(queue));
                let (file, writer, written) = new_files.make(id, &dirs, false, &mut unfinished)?;
                table.push(Arc::clone(&file));
                new_files.tell(file.id);
                let len = writer.size();
                room = written;
                (file, writer, len)
            }
        };
        Ok(Self {
            new_files,
            table,
            file,
            writer: Some(writer),
            len,
            // A process that died may have left bytes that were read and not synced.
            is_dirty: true,
            room,
            zeroed: room,
            is_zeroed: false,
            was_full: false,
            syncs: 0,
            unfinished,
            failed_sync: None,
            is_closed: false,
        })
    }

    /// Where the records of the newest file end.
    pub(crate) fn end(&self) -> u64 {
        self.len
    }

    /// Those who are told of records.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.new_files.listeners
    }

    pub(crate) fn meters(&self) -> &Arc<Meters> {
        &self.new_files.meters
    }

    /// The file that the next append goes to.
    pub(crate) fn file(&self) -> &LogFile {
        &self.file
    }

    /// # Errors
    /// `ReadOnly` after a failed sync.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.failed_sync {
            None => Ok(()),
            Some(e) => {
                Err(Error::read_only("a sync has failed: open the engine again")
                    .caused_by(e.clone()))
            }
        }
    }

    /// A sync of the file has failed that somebody else made.
    pub(crate) fn fail(&mut self, e: &Error) {
        self.failed_sync.get_or_insert_with(|| e.clone());
    }

    /// Cuts the file off where its records end. If the sync of that fails, the next one would not bring it to the disk.
    fn cut_off(&mut self) -> Result<Box<dyn WritableFile>> {
        let (fs, path) = (&*self.new_files.fs, self.file.reader.path());
        fs.truncate(path, self.len)?;
        let mut writer = fs.open_append(path)?;
        if let Err(e) = writer.sync() {
            self.fail(&e);
            return Err(e);
        }
        Ok(writer)
    }

    fn writer(&mut self) -> Result<&mut dyn WritableFile> {
        self.check()?;
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let mut writer = self.cut_off()?;
                self.new_files.reserve(&mut *writer, self.len);
                self.room = 0;
                self.zeroed = 0;
                writer
            }
        };
        Ok(&mut **self.writer.insert(writer))
    }

    /// Goes on to the next file if this one is full.
    ///
    /// # Errors
    /// Of the file system; this file is then still the one that is appended to.
    pub(crate) fn rotate_if_full(&mut self) -> Result<()> {
        if self.len < self.new_files.target_size {
            return Ok(());
        }
        self.rotate(None)
    }

    /// Goes on to the next file, unless this one is empty yet.
    ///
    /// # Errors
    /// As [`Self::rotate`].
    pub(crate) fn start_file(&mut self) -> Result<()> {
        if self.len <= self.file.version.header_len() as u64 {
            return Ok(());
        }
        self.rotate(None)
    }

    /// Goes on to a file in the other directory after an append that found no space, if that may have some: records are to be signed
    /// anew then.
    ///
    /// # Errors
    /// As [`Self::rotate`].
    pub(crate) fn spill(&mut self) -> Result<bool> {
        let files = &self.new_files;
        let queue = self.file.id.queue;
        let has_spare = |dir: &Path| files.has_spare(queue, dir);
        let (fs, dir) = (&*files.fs, self.file.dir());
        match files.dirs.after_full(fs, dir, files.target_size, has_spare) {
            Some(dir) => self.rotate(Some(dir)).map(|()| true),
            None => Ok(false),
        }
    }

    /// Goes on to the next file, in `dir` if it is given.
    ///
    /// # Errors
    /// Of the file system; this file is then still the one that is appended to.
    fn rotate(&mut self, dir: Option<Arc<Path>>) -> Result<()> {
        let meters = Arc::clone(self.meters());
        let _timed = meters.rotate.time();
        // Room behind the end would be damage in a file that is not the newest.
        self.writer()?.seal();
        self.is_dirty = true;
        self.sync()?;
        self.writer = None;
        if self.new_files.fs.metadata(self.file.reader.path())?.size > self.len {
            self.cut_off()?;
        }
        let id = FileId::new(self.file.id.queue, self.file.id.seq + 1);
        let is_mapped = self.syncs.saturating_mul(SYNCED_OFTEN) < self.len;
        if id.queue == Queue::Append {
            self.new_files.spares.set_mapped(is_mapped);
        }
        let dirs = dir.map_or_else(|| self.new_files.dirs_for(id.queue), |dir| vec![dir]);
        let unfinished = &mut self.unfinished;
        let (file, writer, written) = self.new_files.make(id, &dirs, is_mapped, unfinished)?;
        self.syncs = 0;
        self.room = if is_mapped { u64::MAX } else { written };
        self.zeroed = written;
        self.table.push(Arc::clone(&file));
        self.tell_full();
        self.len = writer.size();
        self.writer = Some(writer);
        self.file = file;
        self.new_files.tell(id);
        Ok(())
    }

    fn tell_full(&self) {
        if self.file.id.queue == Queue::Append {
            (self.new_files.on_full)(&self.file, self.len);
        }
    }

    /// Syncs, and ends the file where its records do: one that is written over has others behind them, which whoever opens
    /// it next would take for damage. Nothing is appended any more.
    ///
    /// # Errors
    /// As [`Self::sync`]; of the file system.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.sync()?;
        self.is_closed = true;
        if let Some(mut writer) = self.writer.take() {
            writer.seal();
        }
        if self.new_files.fs.metadata(self.file.reader.path())?.size > self.len {
            self.cut_off()?;
        }
        self.tell_full();
        Ok(())
    }

    /// Gives up what was appended from `len` on and not synced, as if it had failed.
    pub(crate) fn give_up(&mut self, len: u64) {
        self.len = len;
        self.writer = None;
        let _ = self.cut_off();
    }

    /// Appends records; where they begin.
    ///
    /// # Errors
    /// Of the file system; nothing of them is then in the file.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = self.len;
        let end = at + bytes.len() as u64;
        if let Some(path) = &self.unfinished {
            // It may hold what a spare file held. Whoever opens the log would take it for the newest file, and this one, which has
            // room behind its end, for a damaged earlier one.
            self.new_files.take_back(path)?;
            self.unfinished = None;
        }
        self.writer()?;
        if end > self.room {
            let left = self.new_files.target_size.saturating_sub(at);
            let more = LENGTHENED.min(left).max(end - at);
            let meters = Arc::clone(self.meters());
            let _timed = meters.allocate.time();
            // A matter of speed: who has no space is told by the append.
            let _ = self.writer()?.lengthen(more);
            self.room = at + more;
        }
        if self.is_zeroed && end > self.zeroed {
            let left = self.new_files.target_size.saturating_sub(at);
            let zeros = ZEROS.min(left).max(end - at);
            // A matter of speed, too.
            let _ = self.writer()?.write_zeros(zeros);
            self.zeroed = at + zeros;
        }
        if let Err(e) = self.writer()?.append(bytes) {
            self.was_full = e.kind() == ErrorKind::NoSpace;
            self.writer = None;
            // If this fails too, it is tried before the next append.
            let _ = self.writer();
            return Err(e);
        }
        self.is_dirty = true;
        self.len += bytes.len() as u64;
        let queue = self.file.id.queue;
        self.meters().bytes.increase(queue, bytes.len() as u64);
        let is_first = at <= self.file.version.header_len() as u64;
        if std::mem::take(&mut self.was_full) || is_first {
            self.new_files.dirs.found_space(self.file.dir());
        }
        Ok(at)
    }

    /// Makes all that was appended survive a power loss.
    ///
    /// # Errors
    /// Of the file system; nothing is written from then on.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let is_dirty = self.is_dirty;
        let meters = Arc::clone(self.meters());
        let writer = self.writer()?;
        if !is_dirty {
            return Ok(());
        }
        let timed = meters.sync.time();
        if let Err(e) = writer.sync() {
            self.failed_sync = Some(e.clone());
            return Err(e);
        }
        drop(timed);
        meters.syncs.increase(self.file.id.queue, 1);
        self.is_dirty = false;
        self.syncs += 1;
        if self.syncs >= SYNCS_SHOWING {
            self.is_zeroed = self.room < u64::MAX && self.len / self.syncs <= SYNCED_BYTES_FEW;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::MemFileSystem;

    use super::*;

    #[test]
    fn a_file_that_somebody_reads_is_not_written_over() {
        let (fs, dir) = (Arc::new(MemFileSystem::new()), Path::new("/log"));
        fs.create_dir_all(dir).unwrap();
        let dirs = Arc::new(Dirs::new(dir, None).unwrap());
        let files = NewFiles {
            fs: fs.clone(),
            dirs: Arc::clone(&dirs),
            version: FormatVersion::V2,
            target_size: 1000,
            ahead: Arc::default(),
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

    #[test]
    fn zeros_are_written_where_syncs_have_little_to_write() {
        for (bytes, expected) in [(100_usize, true), (100_000, false)] {
            let (fs, dir) = (Arc::new(MemFileSystem::new()), Path::new("/log"));
            fs.create_dir_all(dir).unwrap();
            let dirs = Arc::new(Dirs::new(dir, None).unwrap());
            let files = NewFiles {
                fs: fs.clone(),
                dirs: Arc::clone(&dirs),
                version: FormatVersion::V2,
                target_size: 8 << 20,
                ahead: Arc::default(),
                spares: Arc::new(Spares::open(&*fs, &dirs, 10, true).unwrap()),
                listeners: Listeners::from([]),
                on_full: Arc::new(|_, _| {}),
                meters: Arc::new(Meters::new()),
            };
            let table = Arc::new(Table::default());
            let mut appender = Appender::open(files, table, Queue::Append, None).unwrap();
            let path = appender.file.reader.path().to_owned();
            let size = || fs.metadata(&path).unwrap().size;
            for _ in 0..SYNCS_SHOWING {
                appender.append(&vec![1; bytes]).unwrap();
                assert_eq!(size(), appender.len, "nothing is known yet");
                appender.sync().unwrap();
            }
            let before = appender.len;
            appender.append(&vec![1; bytes]).unwrap();
            assert_eq!(size() == before + ZEROS, expected);
            assert_eq!(size() == appender.len, !expected);
            appender.close().unwrap();
            assert_eq!(size(), appender.len);
        }
    }
}
