//! Taking operations out of the files of a directory that cannot be read, or says what it should not.
//!
//! Operations are replayed, the append queue first and then the other, and somebody decides of each whether it stays: a
//! script ([`RepairScript`](crate::raw::RepairScript)) or any code. Keys and their values are never asked about. Files of which nothing is taken away
//! are left as they are, damage behind their last record included; the others are written anew, each with what came before its damage:
//! then the original stays beside it, for nobody can tell what is behind.
//!
//! ```text
//! decide and write:  0000000000000003.raftlog           0000000000000003.raftlog.repaired, synced
//! put in place:      ..3.raftlog -> ..3.raftlog.bak     ..3.raftlog.repaired -> ..3.raftlog     for each file
//! end:               names synced, then every .bak is removed, but of a damaged file, which becomes ..3.raftlog.damaged
//! ```
//! 1. No file has its name taken before all are decided, written and synced.
//! 2. After an error every file has its name and its bytes again; if that fails, too, the error names the `.bak`.
//! 3. In memory are the operations of one file, without the bytes of entries, and what is known of each group.
//! 4. A record of an atomic group stays one, with its mark.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use orogen_base::{Error, Result, memory};
use orogen_env::{Access, FileSystem, WritableFile};

use crate::digest;
use crate::dirs::{Dirs, Place};
use crate::format::{
    FILE_HEADER_LEN_MAX, FileHeader, FormatVersion, Lz4Policy, RESERVED_KEY, decode_block,
    encode_record, sign,
};
use crate::item::{Entries, Item, Op};
use crate::memtable::Block;
use crate::names::{FileId, Queue};
use crate::recover::{Behind, list, look, newest_of};

/// Bytes of entries and operations from which on a record is written.
const RECORD_BYTES: usize = 64 << 10;

/// Entries are written as they are.
const PLAIN: Lz4Policy = Lz4Policy {
    threshold: 0,
    acceleration: 1,
};

/// What is to be done to a group, and what was replayed of the group before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// The group.
    pub group: u64,
    /// Index of its first entry; 0 if it has none.
    pub first: u64,
    /// How many entries it has.
    pub count: u64,
    /// How many of them, the first ones, came from the rewrite queue.
    pub rewrite_count: u64,
    /// Where this comes from.
    pub queue: Queue,
    /// What it is.
    pub change: Change,
}

/// A change of a group that a repair decides about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Entries are added, perhaps over others.
    Entries {
        /// Index of the first one.
        first: u64,
        /// Index of the last one.
        last: u64,
    },
    /// Entries below an index are dropped.
    Compact {
        /// The index.
        index: u64,
    },
    /// The group is dropped.
    Clean,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is applied.
    Apply,
    /// It is taken out.
    DropIncoming,
    /// It is applied, and all entries of the group before it are dropped: a command for that is put before it.
    DropExisting,
}

/// What a repair has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// Files that were written anew.
    pub files: Vec<FileId>,
    /// Operations that were taken out.
    pub dropped: u64,
    /// Commands that were put in, to drop entries.
    pub added: u64,
    /// Originals that could not be removed at the end.
    pub left: Vec<PathBuf>,
    /// Originals that are kept under another name, `.damaged` at its end: what is behind the damage in them is in no other file.
    pub damaged: Vec<PathBuf>,
}

/// What was replayed of a group.
#[derive(Clone, Copy, Default)]
struct State {
    first: u64,
    count: u64,
    rewrite_count: u64,
}

impl State {
    fn next(self) -> u64 {
        self.first.saturating_add(self.count)
    }

    fn apply(&mut self, queue: Queue, change: Change) -> Result<()> {
        match change {
            Change::Entries { first, last } => self.append(queue, first, last)?,
            // The last entry is not kept alone: so does the original, and scripts are told what it tells.
            Change::Compact { index } if self.count > 0 && index > self.first => {
                if index < self.next() - 1 {
                    let deleted = index - self.first;
                    self.first = index;
                    self.count -= deleted;
                    self.rewrite_count = self.rewrite_count.saturating_sub(deleted);
                } else {
                    *self = Self::default();
                }
            }
            Change::Compact { .. } => {}
            Change::Clean => *self = Self::default(),
        }
        Ok(())
    }

    fn append(&mut self, queue: Queue, first: u64, last: u64) -> Result<()> {
        if self.count > 0 && (first > self.next() || first < self.first) {
            if queue == Queue::Append {
                let why = match first < self.first {
                    true => "entries lie below the first one",
                    false => "entries leave a hole",
                };
                return Err(Error::corruption(why)
                    .with("index", first)
                    .with("first", self.first)
                    .with("next", self.next()));
            }
            *self = Self::default();
        }
        if self.count == 0 {
            self.first = first;
            self.rewrite_count = 0;
        } else if queue == Queue::Rewrite && self.first.saturating_add(self.rewrite_count) < first {
            return Err(Error::corruption("rewritten entries leave a hole")
                .with("index", first)
                .with("first", self.first)
                .with("rewritten", self.rewrite_count));
        }
        self.count = last.saturating_sub(self.first).saturating_add(1);
        self.rewrite_count = match queue {
            Queue::Rewrite => self.count,
            Queue::Append => first - self.first,
        };
        Ok(())
    }
}

fn change_of(op: &Op) -> Option<Change> {
    match op {
        Op::Entries(entries) => {
            let more = (entries.ends.len() as u64).checked_sub(1)?;
            Some(Change::Entries {
                first: entries.first,
                last: entries.first.saturating_add(more),
            })
        }
        Op::Compact { index } => Some(Change::Compact { index: *index }),
        Op::Clean => Some(Change::Clean),
        Op::Put { .. } | Op::Delete { .. } => None,
    }
}

/// What is kept of a file.
#[derive(Default)]
struct Kept {
    records: Vec<(Vec<Item>, Block)>,
    dropped: u64,
    added: u64,
    /// Records may be behind the last one that is kept. A crash leaves the newest file so.
    is_cut: bool,
}

type Decide<'d> = &'d mut dyn FnMut(&Incoming) -> Result<Verdict>;

fn decide_file(
    fs: &dyn FileSystem,
    path: &Path,
    id: FileId,
    is_newest: bool,
    states: &mut HashMap<u64, State>,
    decide: Decide<'_>,
) -> Result<Kept> {
    let mut kept = Kept::default();
    // Damage ends the file here as it does when a directory is opened that tolerates any. A damaged block of an earlier file is
    // none there: if entries in it are to be kept writing them anew fails, and nothing is changed.
    let behind = look(fs, path, id, is_newest, |items, block| {
        let mut staying = Vec::with_capacity(items.len());
        for item in items {
            let Some(change) = change_of(&item.op) else {
                staying.push(item);
                continue;
            };
            let state = states.entry(item.group).or_default();
            let incoming = Incoming {
                group: item.group,
                first: state.first,
                count: state.count,
                rewrite_count: state.rewrite_count,
                queue: id.queue,
                change,
            };
            let place = |e: Error| e.with("group", item.group);
            match decide(&incoming).map_err(place)? {
                Verdict::Apply => {}
                Verdict::DropIncoming => {
                    kept.dropped += 1;
                    continue;
                }
                Verdict::DropExisting => {
                    kept.added += 1;
                    *state = State::default();
                    let (group, index) = (item.group, u64::MAX);
                    let op = Op::Compact { index };
                    staying.push(Item { group, op });
                }
            }
            state.apply(id.queue, change).map_err(place)?;
            staying.push(item);
        }
        kept.records.push((staying, block));
        Ok(())
    })?;
    kept.is_cut = !is_newest && !matches!(behind, Behind::Nothing | Behind::Zeros(_));
    Ok(kept)
}

fn is_mark(item: &Item) -> bool {
    matches!(&item.op, Op::Put { key, .. } if key == RESERVED_KEY)
}

/// Writes records of a file.
struct Output {
    writer: Box<dyn WritableFile>,
    signature: u32,
    block: Vec<u8>,
    items: Vec<Item>,
    size: usize,
}

impl Output {
    fn push(&mut self, mut item: Item, raw: &[u8]) -> Result<()> {
        self.size += crate::format::item_len(&item);
        if let Op::Entries(entries) = &mut item.op {
            let (start, end) = (entries.start, entries.ends.last().copied());
            let bytes = raw
                .get(start as usize..end.unwrap_or(start) as usize)
                .ok_or_else(|| Error::corruption("an entry ends behind its block"))?;
            let base = u32::try_from(self.block.len())
                .map_err(|_| crate::format::full(self.block.len()))?;
            memory::append(&mut self.block, bytes, "entries of a repair")?;
            let ends = entries.ends.iter().map(|end| end - start + base).collect();
            item.op = Op::Entries(Entries {
                first: entries.first,
                start: base,
                ends,
            });
            self.size += bytes.len();
        }
        self.items.push(item);
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let mut record = encode_record(&self.block, &self.items, PLAIN)?;
        sign(&mut record.bytes, self.signature);
        self.writer.append(&record.bytes)?;
        self.block.clear();
        self.items.clear();
        self.size = 0;
        Ok(())
    }
}

/// Writes what is kept of a file under another name, synced.
fn write_kept(
    fs: &dyn FileSystem,
    path: &Path,
    id: FileId,
    target: &Path,
    kept: Kept,
) -> Result<()> {
    let file = fs.open(path, Access::Sequential)?;
    let mut header = Vec::new();
    file.append_at(0, FILE_HEADER_LEN_MAX, &mut header)?;
    let version: FormatVersion = FileHeader::decode(&header)?.version;
    let mut output = Output {
        writer: fs.create(target)?,
        signature: version.signature(id.seq),
        block: Vec::new(),
        items: Vec::new(),
        size: 0,
    };
    // Packed, as all of it is synced at once.
    let header = FileHeader {
        version,
        alignment: 0,
    };
    output.writer.append(&header.encode())?;
    let (mut stored, mut room) = (Vec::new(), Vec::new());
    for (items, block) in kept.records {
        let is_marked = items.iter().any(is_mark);
        if is_marked {
            output.write()?;
        }
        let has_entries = items.iter().any(|i| matches!(i.op, Op::Entries(_)));
        stored.clear();
        if has_entries {
            let len = block.len as usize;
            memory::reserve(&mut stored, len, "a block of entries")?;
            file.append_exact_at(block.offset, len, &mut stored)?;
        }
        let raw = decode_block(&stored, block.compression, &mut room)?;
        for item in items {
            output.push(item, raw)?;
            if !is_marked && output.size >= RECORD_BYTES {
                output.write()?;
            }
        }
        if is_marked {
            output.write()?;
        }
    }
    output.write()?;
    output.writer.sync()
}

/// A file, what takes its place, and where it is meanwhile.
struct Swap {
    original: PathBuf,
    repaired: PathBuf,
    backup: PathBuf,
    /// The original has what is in no other file.
    is_kept: bool,
}

impl Swap {
    /// Gives the original a name to stay under.
    fn keep(&self, fs: &dyn FileSystem) -> Result<PathBuf> {
        let mut at = 0;
        loop {
            let name = match at {
                0 => self.original.with_added_extension("damaged"),
                _ => self.original.with_added_extension(format!("damaged.{at}")),
            };
            if !fs.exists(&name)? {
                fs.rename(&self.backup, &name)?;
                return Ok(name);
            }
            at += 1;
        }
    }

    fn new(place: &Place) -> Self {
        let (dir, id) = (&place.dir, place.id);
        Self {
            original: place.path(),
            repaired: dir.join(format!("{}.repaired", id.name())),
            backup: dir.join(format!("{}.bak", id.name())),
            is_kept: false,
        }
    }

    fn put_in_place(&self, fs: &dyn FileSystem) -> Result<()> {
        // With a second name the file is never without its first.
        if fs.hard_link(&self.original, &self.backup).is_err() {
            fs.rename(&self.original, &self.backup)?;
        }
        fs.rename(&self.repaired, &self.original)
    }

    fn put_back(&self, fs: &dyn FileSystem) -> Result<()> {
        if fs.exists(&self.backup)? {
            let place = |e: Error| e.with("original", self.backup.display());
            fs.rename(&self.backup, &self.original).map_err(place)?;
            // Two names of one file are not made one by that.
            if fs.exists(&self.backup)? {
                fs.remove_file(&self.backup)?;
            }
        }
        if fs.exists(&self.repaired)? {
            fs.remove_file(&self.repaired)?;
        }
        Ok(())
    }
}

fn repair_all(
    fs: &dyn FileSystem,
    dirs: &Dirs,
    queue: Option<Queue>,
    decide: Decide<'_>,
    swaps: &mut Vec<Swap>,
) -> Result<Repaired> {
    let mut states = HashMap::new();
    let mut repaired = Repaired::default();
    for of in [Queue::Append, Queue::Rewrite] {
        if queue.is_some_and(|wanted| wanted != of) {
            continue;
        }
        let places = list(fs, dirs, of)?;
        // As an open has it.
        let newest = newest_of(fs, &places)?;
        for (at, place) in places.iter().enumerate() {
            let (id, mut swap) = (place.id, Swap::new(place));
            let is_newest = at >= newest;
            let place = |e: Error| e.with("file", id.name());
            let kept = decide_file(fs, &swap.original, id, is_newest, &mut states, decide)
                .map_err(place)?;
            if kept.dropped + kept.added == 0 {
                continue;
            }
            repaired.files.push(id);
            repaired.dropped += kept.dropped;
            repaired.added += kept.added;
            swap.is_kept = kept.is_cut;
            swaps.push(swap);
            if let Some(swap) = swaps.last() {
                write_kept(fs, &swap.original, id, &swap.repaired, kept).map_err(place)?;
            }
        }
    }
    if swaps.is_empty() {
        return Ok(repaired);
    }
    // What they tell is not what will be there.
    for id in repaired.files.iter().filter(|id| id.queue == Queue::Append) {
        for dir in dirs.iter() {
            digest::remove(fs, dir, *id)?;
        }
    }
    for swap in swaps.iter() {
        swap.put_in_place(fs)?;
    }
    dirs.sync(fs)?;
    Ok(repaired)
}

/// Replays the files of a queue, or of both, of a directory that is not open, and of its second one if it has one, and takes out what `decide` says.
///
/// What this does to the logs is the caller's affair: entries that others count on may be gone.
///
/// # Errors
/// `InvalidArgument` if there is no such directory, or a repair was interrupted there, whose `.bak` files are to be put back or
/// removed first; `Busy` if it is open; `Corruption` for entries of the append queue that leave a hole or lie below the first one, and for such
/// a hole between rewritten ones, unless they are decided upon; those of `decide` and of the file system. Every file
/// is then as it was.
pub fn repair(
    fs: &dyn FileSystem,
    dir: &Path,
    spill_dir: Option<&Path>,
    queue: Option<Queue>,
    mut decide: impl FnMut(&Incoming) -> Result<Verdict>,
) -> Result<Repaired> {
    let dirs = Dirs::new(dir, spill_dir)?;
    let _locks = dirs.lock(fs)?;
    for dir in dirs.iter() {
        if let Some(name) = fs.list(dir)?.iter().find(|name| name.ends_with(".bak")) {
            return Err(
                Error::invalid_argument("an original of an interrupted repair is there")
                    .with("file", dir.join(name).display()),
            );
        }
    }
    let mut swaps = Vec::new();
    match repair_all(fs, &dirs, queue, &mut decide, &mut swaps) {
        Ok(mut repaired) => {
            for swap in swaps {
                if swap.is_kept {
                    // It stays in any case.
                    repaired.damaged.push(swap.keep(fs).unwrap_or(swap.backup));
                } else if fs.remove_file(&swap.backup).is_err() {
                    repaired.left.push(swap.backup);
                }
            }
            Ok(repaired)
        }
        Err(e) => {
            let mut failed = None;
            for swap in swaps.iter().rev() {
                let back = swap.put_back(fs).err();
                failed = failed.or(back);
            }
            let failed = failed.or_else(|| dirs.sync(fs).err());
            Err(match failed {
                None => e,
                Some(back) => e.with("not put back", back),
            })
        }
    }
}

#[cfg(feature = "scripting")]
#[cfg(test)]
mod tests;
