//! Appends to the newest file of a queue, and goes on to the next.
//!
//! Invariants:
//!
//! 1. `len` is where the last whole append ended. After one that failed the file is cut off there,
//!    and that is synced, before anything else is written: what was refused does not come back.
//! 2. A full file is synced, and its successor has a synced header and name, before the first
//!    record goes there. So is one that is left for the other directory.
//! 3. What is left of a file that could not be made, and holds what a spare file held, is gone before this one is written on; of any other,
//!    which has no record, before the next one is made.
//! 4. After a failed sync every call fails with `ReadOnly`: what the system has dropped cannot be
//!    known.
//! 5. Where records have an [alignment](crate::format), one that begins at a multiple is written when all before it was
//!    synced. Zeros behind the last record are none of the file: a full or closed one is cut off before them.
//! 6. A file that was not read, as its digest was in its place, is not written on: whoever reads it may end it at damage that nobody has seen.

use std::path::Path;
use std::sync::Arc;

use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_env::WritableFile;

use super::filling::Filling;
use super::{LogFile, NewFiles, Table, Unfinished};
use crate::dirs::Watch;
use crate::events::Listeners;
use crate::format::{ALIGNMENTS, FILE_HEADER_LEN_MAX, FileHeader, Record, filler, padding, sign};
use crate::metrics::Meters;
use crate::names::{FileId, Queue};

/// A file that is synced more often than once in so many bytes is not written through memory: behind each sync the system
/// has to be told of each page again, which costs more than calls.
/// More than [`SYNCED_BYTES_FEW_AT_FIRST`], as files that are filled for it are written by calls.
const SYNCED_OFTEN: u64 = 128 << 10;

/// A file that is not written through memory is made longer by so much at a time: a sync need not write its size then,
/// which is a quarter of what one costs.
const LENGTHENED: u64 = 8 << 20;

/// Where a sync has no more than so many bytes to write, on the average, zeros are written before the records. Blocks that
/// were reserved and never written have to be marked with each sync, which takes as
/// long again. It is at least a block for each sync; zeros are as many bytes as the records.
const SYNCED_BYTES_FEW: u64 = 32 << 10;

/// The same of a log that writes over its emptied files: there zeros are needed only until it has some. Longer syncs wait for the
/// disk to take their bytes, of which there would be twice as many.
const SYNCED_BYTES_FEW_AT_FIRST: u64 = 96 << 10;

/// Where a sync has more, on the average, whole files of zeros are made beforehand. Fewer are written together with zeros as quickly.
const FILLED_FROM: u64 = 24 << 10;

/// Syncs that show how many bytes those of a file have to write.
const SYNCS_SHOWING: u64 = 8;

/// Zeros that are written at a time.
const ZEROS: u64 = 256 << 10;

/// When so many bytes were appended and not synced the system is asked to write them out: the sync before the next file waits for what is
/// left, and so do all who write. Of fewer, a thread that writes them out and those that append come into each other's way.
const WRITEBACK_STEP: u64 = 16 << 20;

/// As many zeros as padding may have: to sync is not to need memory.
static PADDING: [u8; *ALIGNMENTS.end() as usize] = [0; *ALIGNMENTS.end() as usize];

/// Appends to the newest file of a queue.
pub(crate) struct Appender {
    new_files: NewFiles,
    table: Arc<Table>,
    file: Arc<LogFile>,
    /// None after a failed append, until the file is cut off where it was whole.
    writer: Option<Box<dyn WritableFile>>,
    len: u64,
    /// Where the next record begins: there, or behind zeros.
    next: u64,
    /// Of this file.
    alignment: u64,
    /// Up to here the file was made longer, or has bytes that are written over; it never is made longer if it is written
    /// through memory.
    room: u64,
    /// Up to here its blocks were written, with zeros or what is written over.
    zeroed: u64,
    /// Whether zeros are written before records.
    is_zeroed: bool,
    /// Up to here it was synced, or is being written out.
    written_out: u64,
    is_dirty: bool,
    /// The last append found no space.
    was_full: bool,
    /// Of this file.
    syncs: u64,
    /// Bytes that were appended to all files.
    appended: u64,
    /// The next spare file, if it has to be made.
    filling: Option<Filling>,
    /// It was looked for since this file was begun.
    has_looked: bool,
    /// What a file that could not be made may have left.
    unfinished: Option<Unfinished>,
    failed_sync: Option<Error>,
    /// The file was not read, and stays as it is.
    is_sealed: bool,
    pub(crate) is_closed: bool,
}

impl Appender {
    /// Goes on behind `newest`, a file of the table and where it ends, or makes the first one. One that `is_sealed` is to stay as it is, and so
    /// is its digest; what is in it was synced.
    pub(crate) fn open(
        new_files: NewFiles,
        table: Arc<Table>,
        queue: Queue,
        newest: Option<(Arc<LogFile>, u64)>,
        is_sealed: bool,
    ) -> Result<Self> {
        let (mut room, mut unfinished) = (0, None);
        let (file, writer, len, header) = match newest {
            Some((file, len)) => {
                let mut writer = new_files.fs.open_append(file.reader.path())?;
                if !is_sealed {
                    new_files.reserve(&mut *writer, len);
                }
                let mut header = Vec::new();
                file.reader.append_at(0, FILE_HEADER_LEN_MAX, &mut header)?;
                let place = |e: Error| e.with("file", file.id.name());
                let header = FileHeader::decode(&header).map_err(place)?;
                (file, writer, len, header)
            }
            None => {
                let (id, dirs) = (FileId::new(queue, 1), new_files.dirs_for(queue));
                let (file, writer, written) = new_files.make(id, &dirs, false, &mut unfinished)?;
                table.push(Arc::clone(&file));
                new_files.tell(file.id);
                let header = new_files.header;
                room = written;
                (file, writer, header.version.header_len() as u64, header)
            }
        };
        Ok(Self {
            new_files,
            table,
            file,
            len,
            next: writer.size(),
            alignment: header.alignment_kept(),
            writer: Some(writer),
            // A process that died may have left bytes that were read and not synced.
            is_dirty: !is_sealed,
            room,
            zeroed: room,
            is_zeroed: false,
            written_out: len,
            was_full: false,
            syncs: 0,
            appended: 0,
            filling: None,
            has_looked: false,
            unfinished,
            failed_sync: None,
            is_sealed,
            is_closed: false,
        })
    }

    /// Where the records of the newest file end.
    pub(crate) fn end(&self) -> u64 {
        self.len
    }

    fn has_records(&self) -> bool {
        self.len > self.file.version.header_len() as u64
    }

    /// Where the next record begins.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// What goes before a record of `len` bytes that begins at `at` and is not synced before the next one is written; signed.
    ///
    /// # Errors
    /// `NoMemory`.
    pub(crate) fn filler(&self, at: u64, len: u64) -> Result<Option<Record>> {
        let filler = filler(at, len, self.alignment)?;
        Ok(filler.map(|mut record| {
            sign(&mut record.bytes, self.file.signature());
            record
        }))
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

    /// Times a call to the file, if somebody wants to know.
    fn watch(&self) -> Option<Watch> {
        self.new_files.dirs.watch(|| self.file.dir())
    }

    /// Lets go of the writer, until the file is cut off.
    fn drop_writer(&mut self) {
        self.writer = None;
        self.next = self.len;
    }

    /// Cuts the file off where its records end. If the sync of that fails, the next one would not bring it to the disk.
    fn cut_off(&mut self) -> Result<Box<dyn WritableFile>> {
        let (fs, path) = (&*self.new_files.fs, self.file.reader.path());
        let _watch = self.watch();
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
        if self.is_closed {
            // Somebody else may have the directory open by now.
            return Err(Error::read_only("the log is closed"));
        }
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => {
                let mut writer = self.cut_off()?;
                if !self.is_sealed {
                    self.new_files.reserve(&mut *writer, self.len);
                }
                self.room = 0;
                self.zeroed = 0;
                writer
            }
        };
        Ok(&mut **self.writer.insert(writer))
    }

    /// Goes on to the next file if this one is full, or the directory where it lies stalls.
    ///
    /// # Errors
    /// Of the file system; this file is then still the one that is appended to.
    pub(crate) fn rotate_if_full(&mut self) -> Result<()> {
        if self.is_sealed || self.next >= self.new_files.target_size && self.has_records() {
            return self.rotate(None);
        }
        let (files, queue) = (&self.new_files, self.file.id.queue);
        if !files.dirs.is_stalled() {
            return Ok(());
        }
        let has_spare = |dir: &Path| files.has_spare(queue, dir);
        let (fs, size) = (&*files.fs, files.target_size);
        let second = files
            .dirs
            .is_to_be_left(fs, self.file.dir(), size, has_spare);
        if let Some(second) = second
            && self.rotate(Some(second)).is_err()
        {
            // A slow disk is better than none. Not again at once: each attempt takes two syncs.
            self.new_files.dirs.refused();
            self.check()?;
        }
        Ok(())
    }

    /// Goes on to the next file, unless this one is empty yet.
    ///
    /// # Errors
    /// As [`Self::rotate`].
    pub(crate) fn start_file(&mut self) -> Result<()> {
        if !self.has_records() {
            return Ok(());
        }
        self.rotate(None)
    }

    /// Appends with `append`, and again as long as it finds no space and some can be made: by going on to a file in the other directory, once
    /// and if it `may_leave` this one, or with that of a spare file. Records are to be signed anew each time.
    ///
    /// # Errors
    /// Those of `append`.
    pub(crate) fn find_space<T>(
        &mut self,
        mut may_leave: bool,
        mut append: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<T> {
        loop {
            let e = match append(self) {
                Err(e) if e.kind() == ErrorKind::NoSpace => e,
                appended => return appended,
            };
            match self.make_space(&mut may_leave) {
                Ok(true) => {}
                Ok(false) => return Err(e),
                Err(other) => return Err(e.with("other directory", other)),
            }
        }
    }

    fn make_space(&mut self, may_leave: &mut bool) -> Result<bool> {
        let files = &self.new_files;
        let queue = self.file.id.queue;
        let has_spare = |dir: &Path| files.has_spare(queue, dir);
        let (fs, dir) = (&*files.fs, self.file.dir());
        let other = files.dirs.after_full(fs, dir, files.target_size, has_spare);
        if let Some(other) = other.filter(|_| std::mem::take(may_leave)) {
            return self.rotate(Some(other)).map(|()| true);
        }
        if files.spares.give_up(fs, dir)? || self.give_up_filling() {
            return Ok(true);
        }
        // It may have been given to others just now.
        let (fs, dir) = (&*self.new_files.fs, self.file.dir());
        self.new_files.spares.give_up(fs, dir)
    }

    /// Removes the spare file that is being made, if there is one.
    fn give_up_filling(&mut self) -> bool {
        let filling = self.filling.take();
        filling.is_some_and(|filling| filling.give_up(&self.new_files))
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
        self.sync_file()?;
        self.drop_writer();
        if self.new_files.fs.metadata(self.file.reader.path())?.size > self.len {
            self.cut_off()?;
        }
        let id = FileId::new(self.file.id.queue, self.file.id.seq + 1);
        let is_mapped = self.syncs.saturating_mul(SYNCED_OFTEN) < self.len;
        if id.queue == Queue::Append {
            self.new_files.spares.set_mapped(is_mapped);
        }
        let is_stalled = self.new_files.dirs.is_stalled();
        let dirs = dir.map_or_else(|| self.new_files.dirs_for(id.queue), |dir| vec![dir]);
        let made = loop {
            let unfinished = &mut self.unfinished;
            match self.new_files.make(id, &dirs, is_mapped, unfinished) {
                Err(e) if e.kind() == ErrorKind::NoSpace && self.give_up_filling() => {}
                made => break made,
            }
        };
        let (file, writer, written) = made?;
        if is_stalled && self.new_files.dirs.second() != Some(file.dir()) {
            self.new_files.dirs.stay();
        }
        self.new_files.dirs.may_leave();
        self.syncs = 0;
        self.written_out = 0;
        self.filling.take_if(|filling| filling.is_over());
        self.has_looked = false;
        self.room = if is_mapped { u64::MAX } else { written };
        self.zeroed = written;
        self.table.push(Arc::clone(&file));
        self.tell_full();
        self.is_sealed = false;
        let header = self.new_files.header;
        self.len = header.version.header_len() as u64;
        self.next = writer.size();
        self.alignment = header.alignment_kept();
        self.writer = Some(writer);
        self.file = file;
        self.new_files.tell(id);
        Ok(())
    }

    fn tell_full(&self) {
        if self.file.id.queue == Queue::Append && !self.is_sealed {
            (self.new_files.on_full)(&self.file, self.len);
        }
    }

    /// Syncs, and ends the file where its records do: one that is written over has others behind them, which whoever opens
    /// it next would take for damage. Nothing is appended any more.
    ///
    /// # Errors
    /// As [`Self::sync`]; of the file system.
    pub(crate) fn close(&mut self) -> Result<()> {
        // Its length is synced, too.
        self.writer()?.seal();
        self.is_dirty = true;
        self.sync_file()?;
        self.is_closed = true;
        self.drop_writer();
        if self.new_files.fs.metadata(self.file.reader.path())?.size > self.len {
            self.cut_off()?;
        }
        self.tell_full();
        Ok(())
    }

    /// Gives up what was appended from `len` on and not synced, as if it had failed.
    pub(crate) fn give_up(&mut self, len: u64) {
        self.len = len;
        self.drop_writer();
        let _ = self.cut_off();
    }

    /// Appends records; where they begin. With `syncs` they are synced before anything else is appended, and padding is written with
    /// them.
    ///
    /// # Errors
    /// Of the file system; nothing of them is then in the file. `NoMemory`.
    pub(crate) fn append(&mut self, bytes: &mut Vec<u8>, syncs: bool) -> Result<u64> {
        let (at, len) = (self.next, bytes.len());
        let end = at + len as u64;
        let zeros = match syncs {
            true => padding(end, self.alignment),
            false => 0,
        };
        if self.alignment > 0 && at.is_multiple_of(self.alignment) && self.is_dirty {
            self.sync_file()?;
        }
        memory::reserve(bytes, zeros as usize, "padding of a log")?;
        bytes.resize(len + zeros as usize, 0);
        let appended = self.write(bytes);
        bytes.truncate(len);
        appended?;
        let is_first = !self.has_records();
        self.len = end;
        let queue = self.file.id.queue;
        self.meters().bytes.increase(queue, len as u64);
        self.meters().padding.increase(queue, zeros);
        if std::mem::take(&mut self.was_full) || is_first {
            self.new_files.dirs.found_space(self.file.dir());
        }
        Ok(at)
    }

    /// Writes records, and zeros behind them.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let _watch = self.watch();
        let at = self.next;
        let end = at + bytes.len() as u64;
        if let Some(left) = &self.unfinished {
            // Of one that holds what a spare file held: whoever opens the log would take it for the newest file, and this one, which
            // has room behind its end, for a damaged earlier one.
            let taken = self.new_files.take_back(&left.path);
            // Any other has no record: it is removed before the next file is made.
            match taken {
                Err(e) if left.has_old_bytes => return Err(e),
                Err(_) => {}
                Ok(()) => self.unfinished = None,
            }
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
            self.drop_writer();
            // If this fails too, it is tried before the next append.
            let _ = self.writer();
            return Err(e);
        }
        self.is_dirty = true;
        self.next = end;
        self.appended += bytes.len() as u64;
        if end.saturating_sub(self.written_out) >= WRITEBACK_STEP {
            self.write_out();
        }
        Ok(())
    }

    /// Has what was appended written out, but for the last page, which is still to be written to.
    fn write_out(&mut self) {
        const PAGE: u64 = 4 << 10;
        let (from, to) = (self.written_out, self.next / PAGE * PAGE);
        self.written_out = to;
        let (fs, path) = (
            Arc::clone(&self.new_files.fs),
            self.file.reader.path().to_owned(),
        );
        self.new_files.beside.ask(move || {
            // A file that was purged meanwhile needs it no more.
            let _ = fs.start_writeback_at(&path, from, to - from);
        });
    }

    /// Makes all that was appended survive a power loss, with padding behind it.
    ///
    /// # Errors
    /// Of the file system; nothing is written from then on.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let zeros = padding(self.next, self.alignment);
        if zeros > 0 && self.is_dirty {
            self.check()?;
            // Who finds no space for it goes on behind the last record, where the file is cut off.
            if self.write(&PADDING[..zeros as usize]).is_ok() {
                self.meters().padding.increase(self.file.id.queue, zeros);
            }
        }
        self.sync_file()
    }

    fn sync_file(&mut self) -> Result<()> {
        if self.is_closed {
            // All was synced then.
            return self.check();
        }
        let is_dirty = self.is_dirty;
        let (meters, watch) = (Arc::clone(self.meters()), self.watch());
        let writer = self.writer()?;
        if !is_dirty {
            return Ok(());
        }
        let timed = meters.sync.time();
        if let Err(e) = writer.sync() {
            self.failed_sync = Some(e.clone());
            return Err(e);
        }
        drop((timed, watch));
        meters.syncs.increase(self.file.id.queue, 1);
        self.is_dirty = false;
        self.written_out = self.next;
        self.syncs += 1;
        if self.syncs >= SYNCS_SHOWING {
            let few = match self.new_files.spares.are_kept() {
                true => SYNCED_BYTES_FEW_AT_FIRST,
                false => SYNCED_BYTES_FEW,
            };
            let each = self.len / self.syncs;
            self.is_zeroed = self.room < u64::MAX && each <= few;
            if self.is_zeroed && each >= FILLED_FROM && self.file.id.queue == Queue::Append {
                self.fill_next();
            }
        }
        Ok(())
    }

    /// Has the next spare file filled, if there is none.
    fn fill_next(&mut self) {
        if self.filling.is_none() && !std::mem::replace(&mut self.has_looked, true) {
            let files = self.table.count_of(Queue::Append);
            self.filling = Filling::begin(&self.new_files, self.file.dir(), files, self.appended);
        }
        if let Some(filling) = &mut self.filling {
            filling.go_on(&self.new_files, self.appended);
        }
    }
}

#[cfg(test)]
mod tests {
    use orogen_env::{FileSystem as _, MemFileSystem};

    use super::*;
    use crate::dirs::Dirs;
    use crate::options::Options;
    use crate::spares::Spares;

    #[test]
    fn zeros_are_written_where_syncs_have_little_to_write() {
        for (bytes, expected) in [(100_usize, true), (100_000, false)] {
            let (fs, dir) = (Arc::new(MemFileSystem::new()), Path::new("/log"));
            fs.create_dir_all(dir).unwrap();
            let dirs = Arc::new(Dirs::new(dir, None).unwrap());
            let files = NewFiles {
                fs: fs.clone(),
                dirs: Arc::clone(&dirs),
                header: Options::default().file_header(),
                target_size: 8 << 20,
                ahead: Arc::default(),
                beside: Arc::default(),
                spares: Arc::new(Spares::open(&*fs, &dirs, 10, true).unwrap()),
                listeners: Listeners::from([]),
                on_full: Arc::new(|_, _| {}),
                meters: Arc::new(Meters::new()),
            };
            let table = Arc::new(Table::default());
            let mut appender = Appender::open(files, table, Queue::Append, None, false).unwrap();
            let path = appender.file.reader.path().to_owned();
            let size = || fs.metadata(&path).unwrap().size;
            for _ in 0..SYNCS_SHOWING {
                appender.append(&mut vec![1; bytes], true).unwrap();
                assert_eq!(size(), appender.len, "nothing is known yet");
                appender.sync().unwrap();
            }
            let before = appender.len;
            appender.append(&mut vec![1; bytes], true).unwrap();
            assert_eq!(size() == before + ZEROS, expected);
            assert_eq!(size() == appender.len, !expected);
            appender.close().unwrap();
            assert_eq!(size(), appender.len);
        }
    }
}
