//! What purge writes: parts of groups, put together into records, and written several at once.

use std::collections::{BTreeSet, HashMap};
use std::iter;

use orogen_base::{Error, ErrorKind, Result, memory};

use super::Run;
use crate::blocks::Blocks;
use crate::events::FileBlockHandle;
use crate::files::{Appender, gone};
use crate::format::{
    self, BLOCK_LEN_MAX, RECORD_HEADER_LEN, RESERVED_KEY, Record, encode_record, sign,
};
use crate::item::{Entries, Item, Op};
use crate::memtable::{Block, ENTRY_COST, Pair, Piece, Written};
use crate::names::{FileId, Queue};

/// Bytes of a record, as long as one entry or key is not longer: who reads an entry reads its block.
const RECORD_BYTES: u64 = 128 << 10;

/// Bytes that are read, written and synced at once.
const WRITE_BYTES: u64 = 4 << 20;

/// Bytes to move that are looked at before what was seen is synced. A sync of the append queue takes as long as several
/// writes, and has who appends through memory meet each page again that is ready for it.
const LOOK_BYTES: u64 = 64 << 20;

/// What a part counts at least in that: memory is kept for each.
const PART_COST: usize = 512;

/// What is written of a group.
pub(super) enum What {
    Tombstone(Op),
    Entries(Piece),
    Pair(Pair),
}

/// Something of a group, which is not divided over records.
pub(super) struct Part {
    pub(super) group: u64,
    pub(super) what: What,
}

impl Part {
    /// Bytes that it takes, more or less.
    pub(super) fn size(&self) -> usize {
        ENTRY_COST
            + match &self.what {
                What::Tombstone(Op::Delete { key }) => key.len(),
                What::Tombstone(_) => 0,
                What::Entries(piece) => piece.bytes() + piece.ends.len() * ENTRY_COST,
                What::Pair(pair) => pair.key.len() + pair.value.len(),
            }
    }
}

/// A record to be made.
#[derive(Default)]
struct Draft {
    parts: Vec<Part>,
    size: usize,
    /// Which part of which atomic group it is.
    mark: Option<(u64, format::Part)>,
}

impl Draft {
    fn push(&mut self, part: Part) {
        self.size += part.size();
        self.parts.push(part);
    }
}

/// Records that are written together.
pub(super) struct Batch {
    drafts: Vec<Draft>,
    /// Bytes that were looked at.
    size: usize,
    record_bytes: usize,
    write_bytes: usize,
    look_bytes: usize,
    /// Entries in files up to this one have moved when they are written.
    pub(super) limit: FileId,
    /// Files that cut off what the rewrite queue shows of groups, by group.
    pub(super) cuts: HashMap<u64, u64>,
    /// Their entries are not written any more: they move from the front of a group on, none behind one that stays.
    unread: Unread,
}

/// Groups of which an entry that is to be moved cannot be read.
#[derive(Default)]
struct Unread {
    groups: BTreeSet<u64>,
    /// The first error.
    error: Option<Error>,
    /// The newest file in which damage was met.
    file: u64,
}

impl Unread {
    /// Whether a part is to stay where it is.
    fn has(&self, part: &Part) -> bool {
        matches!(part.what, What::Entries(_)) && self.groups.contains(&part.group)
    }

    fn add(&mut self, group: u64, file: FileId, e: Error) {
        self.groups.insert(group);
        self.file = self.file.max(file.seq);
        self.error.get_or_insert_with(|| e.with("group", group));
    }
}

impl Batch {
    /// Adds a part to the last record, or a new one if that is full.
    pub(super) fn add(&mut self, part: Part) {
        let size = part.size();
        self.make_room(size);
        self.size += size.max(PART_COST);
        if let Some(draft) = self.drafts.last_mut() {
            draft.push(part);
        }
    }

    /// Adds parts of `size` bytes that take effect at once.
    pub(super) fn add_together(&mut self, parts: Vec<Part>, size: usize) {
        if parts.is_empty() {
            return;
        }
        self.make_room(size);
        self.size += size.max(parts.len() * PART_COST);
        if let Some(draft) = self.drafts.last_mut() {
            parts.into_iter().for_each(|part| draft.push(part));
        }
    }

    fn make_room(&mut self, size: usize) {
        let has_room = |draft: &Draft| draft.size + size <= self.record_bytes;
        if !self.drafts.last().is_some_and(has_room) {
            self.drafts.push(Draft::default());
        }
    }

    /// Whether an entry of a group could not be read.
    pub(super) fn is_unread(&self, group: u64) -> bool {
        self.unread.groups.contains(&group)
    }

    /// # Errors
    /// `Corruption` if an entry could not be read.
    pub(super) fn check(&self) -> Result<()> {
        match &self.unread.error {
            None => Ok(()),
            Some(e) => Err(e.clone()),
        }
    }

    pub(super) fn is_one_record(&self, size: usize) -> bool {
        size <= self.record_bytes
    }

    /// Bytes to look at next.
    pub(super) fn room(&self) -> usize {
        let left = self.look_bytes.saturating_sub(self.size);
        left.min(self.write_bytes).max(1)
    }

    fn is_full(&self) -> bool {
        self.size >= self.look_bytes
    }

    fn take(&mut self) -> Vec<Draft> {
        self.size = 0;
        std::mem::take(&mut self.drafts)
    }
}

/// A record and what memory will know of it when it is written. Blocks have no place yet.
struct Made {
    record: Record,
    written: Vec<(u64, Written)>,
    items: u64,
    /// Where it begins, once it is written.
    at: u64,
}

/// What was written.
#[derive(Default)]
struct Records {
    /// What memory is to know.
    written: Vec<(u64, Written)>,
    /// The file of each record.
    files: Vec<FileId>,
}

/// The first drafts of those that are left, as many as are written at once; none if none are left.
fn split<'d>(rest: &mut &'d [Draft], write_bytes: usize) -> Option<&'d [Draft]> {
    let mut size = 0;
    let is_room = |draft: &&Draft| {
        let is_room = size < write_bytes;
        size += draft.size;
        is_room
    };
    let count = rest.iter().take_while(is_room).count();
    let (now, later) = rest.split_at(count);
    *rest = later;
    (count > 0).then_some(now)
}

impl Run<'_> {
    pub(super) fn record_bytes(&self) -> usize {
        (self.options.target_file_size / 4).clamp(1, RECORD_BYTES) as usize
    }

    pub(super) fn batch(&self, limit: FileId) -> Batch {
        let file = self.options.target_file_size;
        Batch {
            drafts: Vec::new(),
            size: 0,
            record_bytes: self.record_bytes(),
            write_bytes: (file / 8).clamp(1, WRITE_BYTES) as usize,
            look_bytes: file.saturating_mul(2).clamp(1, LOOK_BYTES) as usize,
            limit,
            cuts: HashMap::new(),
            unread: Unread::default(),
        }
    }

    pub(super) fn write_if_full(&mut self, batch: &mut Batch) -> Result<()> {
        if batch.is_full() {
            self.write(batch)?;
        }
        Ok(())
    }

    /// Writes all that was added and tells memory. Entries of the append queue that cannot be read are left where they are, and so are those of
    /// their group that were to be written with them, or later.
    pub(super) fn write(&mut self, batch: &mut Batch) -> Result<()> {
        let drafts = batch.take();
        if drafts.is_empty() {
            return Ok(());
        }
        self.sync_appends()?;
        let mut rest = drafts.as_slice();
        while let Some(drafts) = split(&mut rest, batch.write_bytes) {
            let records = self.write_drafts(drafts, batch)?;
            self.tell(records, batch);
        }
        Ok(())
    }

    /// Writes parts of one group, more than a record takes, so that they take effect at once.
    pub(super) fn write_atomic(&mut self, batch: &mut Batch, parts: Vec<Part>) -> Result<()> {
        for part in parts {
            batch.add(part);
        }
        let mut drafts = batch.take();
        let last = drafts.len().saturating_sub(1);
        if last > 0 {
            let id = self.purge.atomic;
            self.purge.atomic = id.wrapping_add(1);
            for (at, draft) in drafts.iter_mut().enumerate() {
                let part = match at {
                    0 => format::Part::Begin,
                    at if at == last => format::Part::End,
                    _ => format::Part::Middle,
                };
                draft.mark = Some((id, part));
            }
        }
        self.sync_appends()?;
        let mut all = Records::default();
        let mut rest = drafts.as_slice();
        while let Some(drafts) = split(&mut rest, batch.write_bytes) {
            let records = self.write_drafts(drafts, batch)?;
            all.files.extend(records.files);
            all.written.extend(records.written);
        }
        if let (Some(first), Some(last)) = (all.files.first(), all.files.last()) {
            self.purge.together.push(first.seq..last.seq);
        }
        self.tell(all, batch);
        Ok(())
    }

    fn tell(&self, records: Records, batch: &mut Batch) {
        let mut written = records.written.into_iter().peekable();
        while let Some((group, first)) = written.next() {
            let mut of_group = vec![first];
            while let Some((_, next)) = written.next_if(|(id, _)| *id == group) {
                of_group.push(next);
            }
            self.memtables.wrote(group, &of_group, batch.limit);
            if of_group.iter().any(|w| matches!(w, Written::Entries(_))) {
                // They stand where the shadow was cut off.
                batch.cuts.remove(&group);
            }
        }
        // As often as they were told of records of the file.
        for file in records.files {
            let listeners = &self.purge.new_files.listeners;
            listeners.iter().for_each(|l| l.post_apply_memtables(file));
        }
    }

    /// Makes records of what is in files of a queue and writes them; what memory is to know.
    fn write_drafts(&mut self, drafts: &[Draft], batch: &mut Batch) -> Result<Records> {
        let from = batch.limit.queue;
        if let Some(limiter) = &self.purge.limiter {
            let bytes = drafts.iter().map(|draft| draft.size as u64).sum();
            limiter.request(bytes);
        }
        let blocks = loop {
            let before = batch.unread.groups.len();
            let blocks = self.read(drafts, &mut batch.unread)?;
            if batch.unread.groups.len() == before {
                break blocks;
            }
            if from == Queue::Rewrite {
                // It is written anew as a whole or in vain.
                self.note_damage(batch.unread.file);
                batch.check()?;
            }
        };
        let mut made = Vec::with_capacity(drafts.len());
        for (draft, block) in drafts.iter().zip(&blocks) {
            made.extend(make(draft, block, &batch.unread, self.options.lz4())?);
        }
        drop(blocks);
        if made.is_empty() {
            return Ok(Records::default());
        }
        let rewriter = self.rewriter()?;
        rewriter.rotate_if_full()?;
        rewriter.find_space(true, |rewriter| append(rewriter, &mut made))?;
        let file = rewriter.file().id;
        let mut all = Records::default();
        for made in made {
            let header = made.record.header;
            *self.purge.items.entry(file.seq).or_default() += made.items;
            for (group, mut written) in made.written {
                match &mut written {
                    Written::Entries(piece) => {
                        piece.block = Block {
                            file,
                            offset: made.at + RECORD_HEADER_LEN as u64,
                            len: header.block_len,
                            compression: header.compression,
                        };
                    }
                    Written::Key { to, .. } => *to = file,
                    Written::Tombstone(_, to) => *to = file,
                }
                all.written.push((group, written));
            }
            all.files.push(file);
            let handle = FileBlockHandle {
                id: file,
                offset: made.at,
                len: made.record.bytes.len(),
            };
            let new_files = &self.purge.new_files;
            new_files.meters.moved_record(from, handle.len);
            let listeners = &new_files.listeners;
            listeners.iter().for_each(|l| l.on_append_log_file(handle));
        }
        Ok(all)
    }

    /// The entries of each draft, one behind the other, but for those of groups that are unread, among which come those of which one is damaged. Each
    /// block is read once, in the order of the files.
    fn read(&self, drafts: &[Draft], unread: &mut Unread) -> Result<Vec<Vec<u8>>> {
        let mut out: Vec<Vec<u8>> = Vec::with_capacity(drafts.len());
        let mut pieces = Vec::new();
        for (d, draft) in drafts.iter().enumerate() {
            let mut at = 0;
            for part in draft.parts.iter().filter(|part| !unread.has(part)) {
                if let What::Entries(piece) = &part.what {
                    pieces.push((piece, part, d, at));
                    at += piece.bytes();
                }
            }
            if at > BLOCK_LEN_MAX {
                return Err(format::full(at));
            }
            let mut block = memory::with_capacity(at, "entries to move")?;
            block.resize(at, 0);
            out.push(block);
        }
        pieces.sort_unstable_by_key(|(piece, ..)| (piece.block.file, piece.block.offset));
        // What is moved is read once, and is the oldest.
        let mut blocks = Blocks::new(self.table, None);
        for (n, (piece, part, d, at)) in pieces.iter().enumerate() {
            if unread.has(part) {
                continue;
            }
            let mut read = |ahead: &mut dyn Iterator<Item = Block>| {
                let found = blocks.get(piece.block, ahead)?;
                let found = found.ok_or_else(|| gone(piece.block.file))?;
                let end = piece.ends.last().map_or(piece.start, |end| *end);
                let found = found.entry(piece.start, end)?;
                out[*d][*at..*at + found.len()].copy_from_slice(found);
                Ok(())
            };
            let is_damaged = |read: &Result<()>| {
                let error = read.as_ref().err();
                error.is_some_and(|e| e.kind() == ErrorKind::Corruption)
            };
            let ahead = pieces[n + 1..].iter().map(|(piece, ..)| piece.block);
            let mut found = read(&mut ahead.into_iter());
            if is_damaged(&found) {
                // A file that ends too early may be read up to there.
                found = read(&mut iter::empty());
            }
            match found {
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    unread.add(part.group, piece.block.file, e);
                }
                found => found?,
            }
        }
        Ok(out)
    }
}

/// Appends records and syncs them.
///
/// # Errors
/// Of the file system. Nothing of them is then in the file, and they are not signed.
fn append(rewriter: &mut Appender, made: &mut [Made]) -> Result<()> {
    let (end, signature) = (rewriter.end(), rewriter.file().signature());
    let mut append = || {
        let last = made.len().saturating_sub(1);
        for (at, made) in made.iter_mut().enumerate() {
            let is_last = at == last;
            let bytes = &mut made.record.bytes;
            if !is_last
                && let Some(mut filler) = rewriter.filler(rewriter.next(), bytes.len() as u64)?
            {
                rewriter.append(&mut filler.bytes, false)?;
            }
            sign(bytes, signature);
            let appended = rewriter.append(bytes, is_last);
            sign(bytes, signature);
            made.at = appended?;
        }
        rewriter.sync()
    };
    let appended = append();
    if appended.is_err() {
        rewriter.give_up(end);
    }
    appended
}

/// Makes a record of parts, but for entries of groups that are unread, and the block of those entries; none of nothing.
fn make(
    draft: &Draft,
    block: &[u8],
    unread: &Unread,
    policy: format::Lz4Policy,
) -> Result<Option<Made>> {
    let mut items: Vec<Item> = Vec::with_capacity(draft.parts.len() + 1);
    let mut at = 0;
    let mut written: Vec<(u64, Written)> = Vec::with_capacity(draft.parts.len());
    for part in draft.parts.iter().filter(|part| !unread.has(part)) {
        let group = part.group;
        let (op, known) = match &part.what {
            What::Tombstone(op) => {
                let nowhere = FileId::new(Queue::Rewrite, 0);
                (op.clone(), Written::Tombstone(op.clone(), nowhere))
            }
            What::Pair(Pair { key, value, file }) => {
                let op = Op::Put {
                    key: key.clone(),
                    value: value.clone(),
                };
                let (key, from, to) = (key.clone(), *file, *file);
                (op, Written::Key { key, from, to })
            }
            What::Entries(piece) => {
                let start = at as u32;
                at += piece.bytes();
                let ends = piece.ends.iter().map(|end| end - piece.start + start);
                if let Some((last, Written::Entries(before))) = written.last_mut()
                    && *last == group
                    && before.next() == piece.first
                    && let Some(Item {
                        op: Op::Entries(entries),
                        ..
                    }) = items.last_mut()
                {
                    before.ends.extend(ends.clone());
                    entries.ends.extend(ends);
                    continue;
                }
                let ends: Vec<u32> = ends.collect();
                let first = piece.first;
                let known = Piece {
                    first,
                    block: piece.block,
                    start,
                    ends: ends.clone(),
                };
                let op = Op::Entries(Entries { first, start, ends });
                (op, Written::Entries(known))
            }
        };
        items.push(Item { group, op });
        written.push((group, known));
    }
    if items.is_empty() {
        return Ok(None);
    }
    let weight = items.iter().map(Item::weight).sum();
    if let Some((group, part)) = draft.mark {
        let (key, value) = (RESERVED_KEY.to_vec(), vec![part as u8]);
        let op = Op::Put { key, value };
        items.push(Item { group, op });
    }
    Ok(Some(Made {
        record: encode_record(block, &items, policy)?,
        written,
        items: weight,
        at: 0,
    }))
}
