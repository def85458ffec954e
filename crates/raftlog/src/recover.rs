//! Reading what a directory holds: the rewrite queue, and the append queue on top.
//!
//! Full files of the append queue have [digests](crate::digest), which are read in their place. Else, of a record its header and footer are read; blocks only in the newest file of a queue, which is
//! the only one that a power loss may have left in pieces, or in all of them where any damage is an error. A file without records behind it
//! counts as newest, too: it may be there because its successor was being made.
//!
//! 1. Only damage is tolerated, and only as [`RecoveryMode`] says; an error of the file system never
//!    passes for the end of a file.
//! 2. A file is cut off, and that is synced, before anything is written behind the cut.
//! 3. A newest file without a record is made anew, its name too: a sync that failed may have lost the old one for good.

mod append_queue;
mod list;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use orogen_base::{Error, ErrorKind, Result, memory};
use orogen_env::{Access, FileSystem, RandomAccessFile};

use crate::digest;
use crate::dirs::{Dirs, Place};
use crate::files::{LogFile, Table, copy, cut, make};
use crate::format::{
    Compression, FILE_HEADER_LEN_MAX, FOOTER_START_LEN, FileHeader, FormatVersion, Part,
    RECORD_HEADER_LEN, RecordHeader, decode_block, decode_footer, may_be_footer, padding,
    signature_of, take_mark,
};
use crate::item::{Item, Op};
use crate::memtable::{Block, Memtables};
use crate::names::{FileId, Queue};
use crate::options::{Options, RecoveryMode};

pub(crate) use append_queue::{Digester, read_append_queue};
pub(crate) use list::list;
pub use list::log_files;
use list::{is_empty, list_to_open};

/// Bytes that are read at once where less is asked for.
const READ_LEN: usize = 64 << 10;

/// A part of a file in memory.
struct Window {
    file: Arc<dyn RandomAccessFile>,
    size: u64,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes that were read.
    read: u64,
}

impl Window {
    fn new(file: Arc<dyn RandomAccessFile>) -> Result<Self> {
        Ok(Self {
            size: file.size()?,
            start: 0,
            bytes: Vec::new(),
            read: 0,
            file,
        })
    }

    /// Where a part of the file is in `bytes`.
    fn find(&self, offset: u64, len: usize) -> Option<usize> {
        let at = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        (at.checked_add(len)? <= self.bytes.len()).then_some(at)
    }

    /// `len` bytes at `offset`, fewer at the end of the file.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8]> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left);
        let at = match self.find(offset, len) {
            Some(at) => at,
            None => {
                let wanted = len.max(READ_LEN).min(left);
                self.bytes.clear();
                memory::reserve(&mut self.bytes, wanted, "a part of a file")?;
                self.start = offset;
                self.file.append_exact_at(offset, wanted, &mut self.bytes)?;
                self.read += wanted as u64;
                0
            }
        };
        Ok(&self.bytes[at..at + len])
    }

    /// As [`Self::get`], of a few bytes, and what is in memory stays there.
    fn peek(&mut self, offset: u64, len: usize) -> Result<Cow<'_, [u8]>> {
        if let Some(at) = self.find(offset, len) {
            return Ok(Cow::Borrowed(&self.bytes[at..at + len]));
        }
        let mut bytes = Vec::new();
        self.file.append_at(offset, len, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    fn is_zero(&mut self, from: u64, to: u64) -> Result<bool> {
        Ok(self.not_zero(from, to)?.is_empty())
    }

    /// Where the first bytes are that are not zero, two of them at most.
    fn not_zero(&mut self, mut from: u64, to: u64) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        while from < to {
            let len = usize::try_from(to - from)
                .unwrap_or(usize::MAX)
                .min(READ_LEN);
            let bytes = self.get(from, len)?.iter().zip(from..);
            let others = bytes.filter(|(byte, _)| **byte != 0).map(|(_, at)| at);
            found.extend(others.take(2 - found.len()));
            if found.len() == 2 {
                break;
            }
            from += len as u64;
        }
        Ok(found)
    }
}

/// What stands behind the last record.
enum Ending {
    Nothing,
    /// Zeros to a multiple of the alignment, at which the file ends: raft-engine keeps them when it goes on with a file of a process that was
    /// killed.
    Padding,
    Zeros,
    Damage(Error),
}

#[cold]
fn zeros(path: &Path, offset: u64) -> Error {
    Error::corruption("an earlier file ends in zeros")
        .with("file", path.display())
        .with("offset", offset)
}

/// Tells damage from other errors.
fn damage<T>(result: Result<T>) -> Result<Result<T, Error>> {
    match result {
        Err(e) if e.kind() != ErrorKind::Corruption => Err(e),
        other => Ok(other),
    }
}

struct Scan<'a> {
    file: &'a LogFile,
    window: Window,
    alignment: u64,
    /// Whether blocks are looked at.
    verify: bool,
    /// The first padding that is not all zeros, and lost nothing.
    flipped: Option<Error>,
}

impl Scan<'_> {
    /// Gives every record to `each`; where the last one ends, and what is behind.
    fn run(
        &mut self,
        mut each: impl FnMut(Vec<Item>, Block) -> Result<()>,
    ) -> Result<(u64, Ending)> {
        let mut good = self.file.version.header_len() as u64;
        let mut offset = good;
        let size = self.window.size;
        loop {
            if offset >= size {
                let ending = match good >= size {
                    true => Ending::Nothing,
                    false => Ending::Padding,
                };
                return Ok((good, ending));
            }
            match damage(self.record(offset))? {
                Ok((header, items)) => {
                    let block = Block {
                        file: self.file.id,
                        offset: offset + RECORD_HEADER_LEN as u64,
                        len: header.block_len,
                        compression: header.compression,
                    };
                    each(items, block).map_err(|e| self.place(e, offset))?;
                    offset += header.len;
                    good = offset;
                }
                Err(e) => {
                    if let Some(next) = self.behind_padding(offset)? {
                        offset = next;
                    } else if self.window.is_zero(good, size)? {
                        return Ok((good, Ending::Zeros));
                    } else {
                        return Ok((good, Ending::Damage(self.place(e, offset))));
                    }
                }
            }
        }
    }

    /// Where the padding ends that begins at `offset`, where no record is; none if there is no padding.
    ///
    /// One byte of it may be another than zero, if a record is behind it: that began there when all before it was on the disk, and
    /// what is left of a damaged record has more such bytes.
    fn behind_padding(&mut self, offset: u64) -> Result<Option<u64>> {
        let size = self.window.size;
        let next = match self.alignment {
            0 => None,
            alignment => offset.checked_next_multiple_of(alignment),
        };
        let Some(next) = next.filter(|next| *next > offset && *next <= size) else {
            return Ok(None);
        };
        match self.window.not_zero(offset, next)?.as_slice() {
            [] => Ok(Some(next)),
            [at] if next < size && damage(self.record(next))?.is_ok() => {
                let flipped = Error::corruption("padding is not zero");
                let flipped = self.place(flipped, *at);
                self.flipped.get_or_insert(flipped);
                Ok(Some(next))
            }
            _ => Ok(None),
        }
    }

    fn place(&self, e: Error, offset: u64) -> Error {
        e.with("file", self.file.reader.path().display())
            .with("offset", offset)
    }

    fn record(&mut self, offset: u64) -> Result<(RecordHeader, Vec<Item>)> {
        let available = self.window.size - offset;
        let header = RecordHeader::decode(self.window.get(offset, RECORD_HEADER_LEN)?, available)?;
        let footer_len = usize::try_from(header.footer_len())
            .map_err(|_| Error::corruption("footer is out of bounds"))?;
        let footer = self.window.get(offset + header.footer_at(), footer_len)?;
        let items = decode_footer(footer, self.file.signature())?;
        let end = items.iter().rev().find_map(|item| match &item.op {
            Op::Entries(entries) => entries.ends.last().copied(),
            _ => None,
        });
        let end = end.unwrap_or(0) as usize;
        let raw_len = if self.verify {
            let at = offset + RECORD_HEADER_LEN as u64;
            let stored = self.window.get(at, header.block_len as usize)?;
            Some(decode_block(stored, header.compression, &mut Vec::new())?.len())
        } else if header.compression == Compression::None {
            Some((header.block_len as usize).saturating_sub(size_of::<u32>()))
        } else {
            None
        };
        if raw_len.is_some_and(|len| end > len) {
            return Err(Error::corruption("an entry ends behind its block"));
        }
        Ok((header, items))
    }
}

/// A record that takes effect with others.
type Stashed = (Vec<Item>, Block);

/// Records of atomic groups that are not complete, by the groups' numbers.
#[derive(Default)]
pub(crate) struct Atomic {
    stash: HashMap<u64, Vec<Stashed>>,
}

impl Atomic {
    /// The records that take effect now, with one whose [mark](take_mark) was taken out.
    pub(crate) fn take(
        &mut self,
        mark: Option<(u64, Part)>,
        items: Vec<Item>,
        block: Block,
    ) -> Vec<Stashed> {
        let Some((id, part)) = mark else {
            return vec![(items, block)];
        };
        match part {
            Part::Begin => {
                self.stash.insert(id, vec![(items, block)]);
                Vec::new()
            }
            // Without a first record it is the rest of what was collected.
            Part::Middle => {
                if let Some(records) = self.stash.get_mut(&id) {
                    records.push((items, block));
                }
                Vec::new()
            }
            Part::End => match self.stash.remove(&id) {
                Some(mut records) => {
                    records.push((items, block));
                    records
                }
                None => Vec::new(),
            },
        }
    }
}

/// What was found in a queue.
#[derive(Default)]
pub(crate) struct Found {
    /// The newest file and where it ends.
    pub(crate) newest: Option<(Arc<LogFile>, u64)>,
    /// Entries, and operations of other kinds, in each file. Of the rewrite queue only.
    pub(crate) items: BTreeMap<u64, u64>,
    /// From which file up to which an atomic group goes, of those that lie in several.
    pub(crate) together: Vec<Range<u64>>,
    /// A number that no atomic group has, complete or not: what a process that died has begun is not to be ended by another. Of the rewrite
    /// queue only.
    pub(crate) next_atomic: u64,
    /// Files whose records were read, and not their digests.
    pub(crate) files_read: u64,
    /// The newest file was not looked at, but for its end: it is not to be written on. Of the append queue only.
    pub(crate) is_newest_unread: bool,
}

/// From which file on all are the newest: the last one that has records, and those behind it.
pub(crate) fn newest_of(fs: &dyn FileSystem, places: &[Place]) -> Result<usize> {
    let mut newest = places.len();
    while newest > 0 {
        newest -= 1;
        if !is_empty(fs, &places[newest])? {
            break;
        }
    }
    Ok(newest)
}

/// Reads the rewrite queue into `memtables`.
///
/// # Errors
/// As [`read_file`].
pub(crate) fn read_rewrite_queue(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    options: &Options,
    table: &Table,
    memtables: &Memtables,
) -> Result<Found> {
    let places = list_to_open(fs, dirs, Queue::Rewrite)?;
    let newest = newest_of(fs, &places)?;
    let mut atomic = Atomic::default();
    let mut found = Found::default();
    for (at, place) in places.iter().enumerate() {
        let (file, end) = read_file(
            fs,
            dirs,
            place,
            at >= newest,
            options,
            |mut items, block| {
                let mark = take_mark(&mut items)?;
                if let Some((id, _)) = &mark {
                    found.next_atomic = found.next_atomic.max(id.wrapping_add(1));
                }
                let last = block.file.seq;
                for (items, block) in atomic.take(mark, items, block) {
                    let (seq, weight) =
                        (block.file.seq, items.iter().map(Item::weight).sum::<u64>());
                    *found.items.entry(seq).or_default() += weight;
                    if seq < last && found.together.last() != Some(&(seq..last)) {
                        found.together.push(seq..last);
                    }
                    memtables.replay(items, block);
                }
                Ok(())
            },
        )?;
        let file = Arc::new(file);
        table.push(Arc::clone(&file));
        found.files_read += 1;
        found.newest = Some((file, end));
    }
    if found.newest.is_some() {
        // raft-engine does not sync the name of the first file that it makes.
        dirs.sync(fs)?;
    }
    Ok(found)
}

/// Makes a file without records again: where it is, or in the other directory if there is no space for its header.
fn make_anew(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    place: &Place,
    options: &Options,
) -> Result<(LogFile, u64)> {
    let id = place.id;
    digest::remove(fs, &place.dir, id)?;
    let header = options.file_header();
    let mut dir = &place.dir;
    // Whoever has begun it may have failed to sync its name, which no later sync then brings to the disk: it is made again. It may have
    // other names, too.
    let made = renew_name(fs, place).and_then(|()| make(fs, dir, id, header, None));
    match made {
        Err(e) if e.kind() == ErrorKind::NoSpace => {
            let other = dirs.iter().find(|other| *other != dir).ok_or(e)?;
            fs.remove_file(&place.path())?;
            fs.sync_dir(dir)?;
            dir = other;
            make(fs, dir, id, header, None)?
        }
        made => made?,
    };
    let reader = fs.open(&dir.join(id.name()), Access::Random)?;
    let file = LogFile {
        id,
        version: header.version,
        reader,
    };
    // Padding behind the header is there for the first record, and none of the file.
    Ok((file, header.version.header_len() as u64))
}

/// True if a file whose header is damaged has no record, wherever one may begin. Its header is synced before the first one is written, so
/// a power loss may leave anything in a file that was being made, but no record.
fn was_being_made(id: FileId, reader: &Arc<dyn RandomAccessFile>) -> Result<bool> {
    let versions = [FormatVersion::V1, FormatVersion::V2];
    let signatures = versions.map(|version| version.signature(id.seq));
    Ok(!has_record(reader, &signatures)?.0)
}

/// Of what may be records only so many times the file is read and has its checksum made.
const LOOKS_MAX: u64 = 16;

/// Whether a file has a record with one of the signatures, wherever it begins, and how many bytes were read and had their checksum made for that.
///
/// Other records, which a file held before, lie one behind the other. Bytes that look like headers of records which cover each other
/// are made on purpose, if their footers begin as such do: what is behind is not looked at, and there may be a record.
fn has_record(reader: &Arc<dyn RandomAccessFile>, signatures: &[u32]) -> Result<(bool, u64)> {
    const STEP: usize = 4 << 10;
    let mut headers = Window::new(Arc::clone(reader))?;
    // Apart, as they may lie far behind.
    let mut footers = Window::new(Arc::clone(reader))?;
    let size = headers.size;
    let (mut at, mut hashed) = (0, 0);
    loop {
        let rest = size.saturating_sub(at);
        let bytes = headers.get(at, STEP)?;
        if bytes.len() < RECORD_HEADER_LEN {
            return Ok((false, hashed + footers.read));
        }
        let mut starts = bytes.windows(RECORD_HEADER_LEN);
        let Some(n) = starts.position(|header| RecordHeader::may_be(header, rest)) else {
            at += (bytes.len() - RECORD_HEADER_LEN + 1) as u64;
            continue;
        };
        at += n as u64;
        if let Ok(header) = RecordHeader::decode(&bytes[n..], size - at) {
            let (from, len) = (at + header.footer_at(), header.footer_len());
            let start = usize::try_from(len).unwrap_or(usize::MAX);
            let start = headers.peek(from, start.min(FOOTER_START_LEN))?;
            if may_be_footer(&start, len) {
                if hashed + footers.read > size.saturating_mul(LOOKS_MAX) {
                    return Ok((true, hashed + footers.read));
                }
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let footer = footers.get(from, len)?;
                hashed += footer.len() as u64;
                if let Some(signature) = signature_of(footer)
                    && signatures.contains(&signature)
                    && damage(decode_footer(footer, signature))?.is_ok()
                {
                    return Ok((true, hashed + footers.read));
                }
            }
        }
        at += 1;
    }
}

/// Whether a file is no longer than one that is just made, or has zeros behind the header, as one that was never written over.
fn is_without_content(reader: &Arc<dyn RandomAccessFile>, options: &Options) -> Result<bool> {
    let mut window = Window::new(Arc::clone(reader))?;
    let header = options.file_header();
    let len = header.version.header_len() as u64;
    let (size, made) = (window.size, len + padding(len, header.alignment_kept()));
    Ok(size <= made || window.is_zero(FILE_HEADER_LEN_MAX as u64, size)?)
}

/// Gives every record of a file to `each`, and cuts it off where that is tolerated; the file and where it ends.
///
/// # Errors
/// `Corruption` as [`Options::recovery_mode`] says; those of the file system and of `each`.
fn read_file(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    place: &Place,
    is_newest: bool,
    options: &Options,
    each: impl FnMut(Vec<Item>, Block) -> Result<()>,
) -> Result<(LogFile, u64)> {
    let (id, path) = (place.id, place.path());
    let mode = options.recovery_mode;
    let reader = fs.open(&path, Access::Sequential)?;
    let mut window = Window::new(Arc::clone(&reader))?;
    let decoded = FileHeader::decode(window.get(0, FILE_HEADER_LEN_MAX)?);
    let header = match damage(decoded)? {
        Ok(header) => header,
        Err(e) => {
            let may_be_lost = match mode {
                RecoveryMode::AbsoluteConsistency => is_without_content(&reader, options)?,
                _ => true,
            };
            let is_tolerated = mode == RecoveryMode::TolerateAnyCorruption
                || is_newest && may_be_lost && was_being_made(id, &reader)?;
            if !is_tolerated {
                return Err(e.with("file", path.display()));
            }
            return make_anew(fs, dirs, place, options);
        }
    };
    if is_newest && window.size <= header.version.header_len() as u64 {
        // A header whose sync has failed can be read, and may never reach the disk.
        return make_anew(fs, dirs, place, options);
    }
    let file = LogFile {
        id,
        version: header.version,
        reader: Arc::clone(&reader),
    };
    let mut scan = Scan {
        file: &file,
        window,
        alignment: header.alignment,
        verify: is_newest || mode == RecoveryMode::AbsoluteConsistency,
        flipped: None,
    };
    let (mut end, ending) = scan.run(each)?;
    if mode == RecoveryMode::AbsoluteConsistency
        && let Some(e) = scan.flipped.take()
    {
        return Err(e);
    }
    let must_cut = match ending {
        Ending::Nothing => false,
        Ending::Padding if is_newest => true,
        Ending::Padding => {
            end = scan.window.size;
            false
        }
        Ending::Zeros if is_newest => true,
        Ending::Zeros if mode == RecoveryMode::TolerateAnyCorruption => true,
        Ending::Zeros => {
            return Err(zeros(&path, end));
        }
        Ending::Damage(e) => {
            let is_tolerated = match mode {
                RecoveryMode::AbsoluteConsistency => false,
                RecoveryMode::TolerateTailCorruption => is_newest,
                RecoveryMode::TolerateAnyCorruption => true,
            };
            if !is_tolerated {
                return Err(e);
            }
            true
        }
    };
    if must_cut && is_newest && end <= header.version.header_len() as u64 {
        // As above, whatever its blocks held before: its name may never reach the disk either.
        return make_anew(fs, dirs, place, options);
    }
    if must_cut {
        digest::remove(fs, &place.dir, id)?;
        if has_other_names(fs, &path)? {
            own(fs, place, end)?;
            let reader = fs.open(&path, Access::Random)?;
            return Ok((LogFile { reader, ..file }, end));
        }
        cut(fs, &path, end)?;
    }
    reader.advise(Access::Random);
    Ok((file, end))
}

/// True if another directory may have the file as well: a fork, or a copy by links.
fn has_other_names(fs: &dyn FileSystem, path: &Path) -> Result<bool> {
    Ok(fs.metadata(path)?.links > 1)
}

/// Puts a file of its own, up to `len`, in the place of one that has other names, which keep what they have.
fn own(fs: &dyn FileSystem, place: &Place, len: u64) -> Result<()> {
    let path = place.path();
    let temporary = place.dir.join(place.id.temporary_name());
    copy(fs, &path, &temporary, len)?;
    fs.rename(&temporary, &path)?;
    fs.sync_dir(&place.dir)
}

/// Puts an empty file in the place of one without records.
fn renew_name(fs: &dyn FileSystem, place: &Place) -> Result<()> {
    let path = place.path();
    let temporary = place.dir.join(place.id.temporary_name());
    drop(fs.create(&temporary)?);
    if let Err(e) = fs.rename(&temporary, &path) {
        if !fs.exists(&path)? {
            return Err(e);
        }
        // A file system that keeps something by names, such as keys, may rename nothing to one that is taken.
        fs.remove_file(&path)?;
        fs.rename(&temporary, &path)?;
    }
    fs.sync_dir(&place.dir)
}

/// What [`look`] finds behind the records of a file.
pub(crate) enum Behind {
    Nothing,
    /// Only one of the newest files may end in them.
    Zeros(Error),
    Damage(Error),
    /// Damage before them, if there are any.
    Header {
        error: Error,
        id: FileId,
        reader: Arc<dyn RandomAccessFile>,
    },
}

impl Behind {
    /// The damage, of one of the newest files or of an earlier one.
    pub(crate) fn told(self, is_newest: bool) -> Option<Error> {
        match self {
            Self::Zeros(_) if is_newest => None,
            Self::Nothing => None,
            Self::Zeros(e) | Self::Damage(e) | Self::Header { error: e, .. } => Some(e),
        }
    }

    /// Whether a crash may leave that at the end of the newest files. For that a file is looked through whose header is damaged.
    ///
    /// # Errors
    /// Of the file system.
    pub(crate) fn may_be_torn(&self) -> Result<bool> {
        match self {
            Self::Header { id, reader, .. } => was_being_made(*id, reader),
            _ => Ok(true),
        }
    }
}

/// Gives every record of a file to `each` and changes nothing; what is behind them. With `verify` a damaged block is damage, too: who opens a log looks at those of newest files only.
///
/// # Errors
/// Those of the file system and of `each`.
pub(crate) fn look(
    fs: &dyn FileSystem,
    path: &Path,
    id: FileId,
    verify: bool,
    each: impl FnMut(Vec<Item>, Block) -> Result<()>,
) -> Result<Behind> {
    let reader = fs.open(path, Access::Sequential)?;
    let mut window = Window::new(Arc::clone(&reader))?;
    let header = match damage(FileHeader::decode(window.get(0, FILE_HEADER_LEN_MAX)?))? {
        Ok(header) => header,
        Err(e) => {
            let error = e.with("file", path.display());
            return Ok(Behind::Header { error, id, reader });
        }
    };
    let file = LogFile {
        id,
        version: header.version,
        reader,
    };
    let mut scan = Scan {
        file: &file,
        window,
        alignment: header.alignment,
        verify,
        flipped: None,
    };
    let (end, ending) = scan.run(each)?;
    let flipped = scan.flipped.take().map(Behind::Damage);
    Ok(match ending {
        Ending::Damage(e) => Behind::Damage(e),
        Ending::Zeros => flipped.unwrap_or_else(|| Behind::Zeros(zeros(path, end))),
        Ending::Nothing | Ending::Padding => flipped.unwrap_or(Behind::Nothing),
    })
}

#[cfg(test)]
mod tests;
