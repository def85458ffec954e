//! Reading blocks of entries: from the cache, and those that are neighbours at once.
//!
//! Between the blocks of two records lie a footer and a header, some 50 bytes, and maybe what others have
//! written. A call to the system costs as much as to copy a few KiB. So who wants several blocks says so
//! in advance, and those that follow closely on one another come with one call. What costs more to read again
//! than to keep goes to the cache; small blocks that came with many others do not. Invariants:
//!
//! 1. Only what is asked for is looked at: damage in a block that nobody wants is no error.
//! 2. No read is longer than [`READ_MAX`], unless one block is.
//! 3. Room is that of the longest read so far, and is used again by the next ones.
//! 4. The cache gets what was verified, and nothing else.
//!
//! `Hot path`.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use orogen_base::{Error, Result, memory};
use orogen_cache::prefetch_bytes;

use crate::files::{LogFile, Table};
use crate::format::{Compression, decode_block};
use crate::memtable::Block;
use crate::read_cache::{Kept, ReadCache};

/// Bytes between two blocks that are read rather than left out.
const GAP_MAX: u64 = 4 << 10;

/// Bytes of several blocks that are read at once: more would not stay in the processor's caches.
const READ_MAX: u64 = 64 << 10;

/// Bytes that could be read while a call to the system is made.
const CALL_COST: u64 = 4 << 10;

/// Bytes to read for each block from which on blocks are kept: to find one in the cache takes as long as to read and verify
/// half as many, and so does to put it there.
const KEPT_COST_MIN: u64 = 1 << 10;

/// So many bytes behind an entry the processor is asked for as many when it is read: blocks of the cache are scattered over memory,
/// and to wait for its first bytes takes as long as to copy an entry.
const AHEAD: usize = 2 << 10;

/// Where the block is that was asked for last.
enum Place {
    /// In `bytes`.
    Read(Range<usize>),
    Unpacked,
    Kept(Arc<Kept>),
}

/// The raw bytes of a block.
pub(crate) struct Found<'b> {
    block: Block,
    pub(crate) raw: &'b [u8],
    /// Those of the next block, if it is in the cache.
    next: &'b [u8],
}

impl<'b> Found<'b> {
    /// Bytes of the block, which those behind them will soon follow.
    ///
    /// # Errors
    /// `Corruption` if there are not so many.
    #[inline]
    pub(crate) fn entry(&self, start: u32, end: u32) -> Result<&'b [u8]> {
        let (start, end, len) = (start as usize, end as usize, self.raw.len());
        let (from, to) = (start + AHEAD, end + AHEAD);
        if let Some(later) = self.raw.get(from..to.min(len)) {
            prefetch_bytes(later);
        }
        let next = from.saturating_sub(len)..to.saturating_sub(len).min(self.next.len());
        if let Some(later) = self.next.get(next) {
            prefetch_bytes(later);
        }
        self.raw.get(start..end).ok_or_else(|| behind(&self.block))
    }
}

#[cold]
fn behind(block: &Block) -> Error {
    Error::corruption("an entry ends behind its block")
        .with("file", block.file.name())
        .with("offset", block.offset)
}

/// Reads blocks one after the other.
pub(crate) struct Blocks<'t> {
    table: &'t Table,
    cache: Option<&'t ReadCache>,
    file: Option<Arc<LogFile>>,
    /// What was read last, and maybe bytes of longer reads behind it.
    bytes: Vec<u8>,
    /// Where that stands in `file`.
    span: Range<u64>,
    /// Whether the blocks in it are worth keeping.
    is_dear: bool,
    /// The raw bytes of a block that was compressed.
    unpacked: Vec<u8>,
    /// The buffer of a block that left the cache.
    spare: Kept,
    last: Option<(Block, Place)>,
    /// The block behind it, if it is in the cache.
    next: Option<(Block, Arc<Kept>)>,
    hits: u64,
    misses: u64,
}

impl<'t> Blocks<'t> {
    /// Without a cache each block is read, and none is kept.
    pub(crate) fn new(table: &'t Table, cache: Option<&'t ReadCache>) -> Self {
        Self {
            table,
            cache,
            file: None,
            bytes: Vec::new(),
            span: 0..0,
            is_dear: false,
            unpacked: Vec::new(),
            spare: Vec::new(),
            last: None,
            next: None,
            hits: 0,
            misses: 0,
        }
    }

    /// The raw entries of a record; none if its file was deleted meanwhile. `ahead` are the blocks that
    /// will be asked for next.
    ///
    /// # Errors
    /// `Corruption` with file and offset; `NoMemory`; those of the file system.
    pub(crate) fn get(
        &mut self,
        block: Block,
        ahead: impl Iterator<Item = Block>,
    ) -> Result<Option<Found<'_>>> {
        if block.len == 0 {
            let (raw, next): (&[u8], &[u8]) = (&[], &[]);
            return Ok(Some(Found { block, raw, next }));
        }
        if !matches!(&self.last, Some((last, _)) if *last == block) {
            self.last = None;
            let place = self.find(&block, ahead)?;
            self.last = place.map(|place| (block, place));
        }
        let next = self.next.as_ref().map_or(&[][..], |(_, next)| next);
        Ok(self.last.as_ref().map(|(_, place)| {
            let raw = match place {
                Place::Read(range) => &self.bytes[range.clone()],
                Place::Unpacked => self.unpacked.as_slice(),
                Place::Kept(raw) => raw.as_slice(),
            };
            Found { block, raw, next }
        }))
    }

    /// Whether a block is kept, and so may be found, that is in `bytes` or will be.
    fn is_dear(&self, block: &Block) -> bool {
        self.is_dear || block.compression != Compression::None
    }

    fn find(
        &mut self,
        block: &Block,
        mut ahead: impl Iterator<Item = Block>,
    ) -> Result<Option<Place>> {
        let is_covered = self.covers(block);
        if let Some(cache) = self.cache
            && (!is_covered || self.is_dear(block))
            && let Some(raw) = self.take_next(block).or_else(|| cache.get(block))
        {
            self.hits += 1;
            self.next = ahead
                .find(|next| next != block)
                .and_then(|next| Some((next, cache.get(&next)?)));
            return Ok(Some(Place::Kept(raw)));
        }
        if !is_covered {
            if self.file.as_ref().is_none_or(|file| file.id != block.file) {
                self.span = 0..0;
                self.file = self.table.find(block.file);
            }
            let Some(file) = &self.file else {
                return Ok(None);
            };
            self.misses += 1;
            let read = Stretch::new(block, ahead);
            if let Some(cache) = self.cache
                && read.is_dear()
                && read.blocks == 1
                && block.compression == Compression::None
                && cache.takes(block.len as usize)
                && let Some(raw) = buffer(&mut self.spare, block.len as usize)
            {
                let raw = read_alone(file, block, raw)?;
                return Ok(Some(self.keep(cache, block, raw)));
            }
            let file = Arc::clone(file);
            self.read(&file, &read)?;
        } else {
            self.misses += 1;
        }
        let place = self.decode(block)?;
        Ok(Some(match self.cache {
            Some(cache) if self.is_dear(block) => self.keep_read(cache, block, place),
            _ => place,
        }))
    }

    fn take_next(&mut self, block: &Block) -> Option<Arc<Kept>> {
        let next = self.next.take();
        next.filter(|(next, _)| next == block).map(|(_, raw)| raw)
    }

    fn covers(&self, block: &Block) -> bool {
        self.file.as_ref().is_some_and(|file| file.id == block.file)
            && self.span.start <= block.offset
            && end_of(block) <= self.span.end
    }

    fn read(&mut self, file: &LogFile, read: &Stretch) -> Result<()> {
        self.span = 0..0;
        self.is_dear = read.is_dear();
        let (start, len) = (read.start, (read.end - read.start) as usize);
        match self.bytes.get_mut(..len) {
            Some(bytes) => file.reader.read_exact_at(start, bytes)?,
            None => {
                self.bytes = memory::with_capacity(len, "blocks of entries")?;
                file.reader.append_exact_at(start, len, &mut self.bytes)?;
            }
        }
        self.span = start..read.end;
        Ok(())
    }

    /// Checks a block that was read and unpacks it.
    fn decode(&mut self, block: &Block) -> Result<Place> {
        let at = (block.offset - self.span.start) as usize;
        let stored = &self.bytes[at..at + block.len as usize];
        match decode_block(stored, block.compression, &mut self.unpacked) {
            Ok(raw) => Ok(match block.compression {
                Compression::None => Place::Read(at..at + raw.len()),
                Compression::Lz4 => Place::Unpacked,
            }),
            Err(e) => Err(match &self.file {
                Some(file) => placed(e, file, block),
                None => e,
            }),
        }
    }

    /// Keeps a block that was decoded, if there is room and memory for it.
    fn keep_read(&mut self, cache: &ReadCache, block: &Block, place: Place) -> Place {
        let raw = match &place {
            Place::Read(range) if cache.takes(range.len()) => {
                let raw = buffer(&mut self.spare, range.len());
                raw.map(|mut raw| {
                    raw.extend_from_slice(&self.bytes[range.clone()]);
                    raw
                })
            }
            // It was made for this block, or is not much larger.
            Place::Unpacked if cache.takes(self.unpacked.capacity()) => {
                Some(mem::take(&mut self.unpacked))
            }
            _ => None,
        };
        match raw {
            Some(raw) => self.keep(cache, block, raw),
            None => place,
        }
    }

    fn keep(&mut self, cache: &ReadCache, block: &Block, raw: Kept) -> Place {
        let (raw, gone) = cache.insert(block, raw);
        self.spare = gone.unwrap_or_default();
        Place::Kept(raw)
    }
}

impl Drop for Blocks<'_> {
    fn drop(&mut self) {
        if let Some(cache) = self.cache {
            cache.count(self.hits, self.misses);
        }
    }
}

/// An empty buffer for a block that is to be kept: the spare one if it is about as large. None if there is no memory.
fn buffer(spare: &mut Kept, len: usize) -> Option<Kept> {
    let mut spare = mem::take(spare);
    if (len..=len + len / 8).contains(&spare.capacity()) {
        spare.clear();
        return Some(spare);
    }
    memory::with_capacity(len, "a block to keep").ok()
}

/// Reads a block that is not compressed, and verifies it.
fn read_alone(file: &LogFile, block: &Block, mut raw: Kept) -> Result<Kept> {
    file.reader
        .append_exact_at(block.offset, block.len as usize, &mut raw)?;
    let len = decode_block(&raw, Compression::None, &mut Vec::new())
        .map_err(|e| placed(e, file, block))?
        .len();
    raw.truncate(len);
    Ok(raw)
}

#[cold]
fn placed(e: Error, file: &LogFile, block: &Block) -> Error {
    e.with("file", file.reader.path().display())
        .with("offset", block.offset)
}

/// The offset behind a block.
fn end_of(block: &Block) -> u64 {
    block.offset.saturating_add(u64::from(block.len))
}

/// What is read with one call.
struct Stretch {
    start: u64,
    end: u64,
    /// Those that are wanted.
    blocks: u64,
}

impl Stretch {
    /// A read that begins with `block`.
    fn new(block: &Block, ahead: impl Iterator<Item = Block>) -> Self {
        let (mut last, mut blocks) = (*block, 1);
        for next in ahead {
            if next == last {
                continue;
            }
            let gap = next.offset.checked_sub(end_of(&last));
            let is_near = next.file == block.file && gap.is_some_and(|gap| gap <= GAP_MAX);
            if !is_near || end_of(&next) - block.offset > READ_MAX {
                break;
            }
            last = next;
            blocks += 1;
        }
        Self {
            start: block.offset,
            end: end_of(&last),
            blocks,
        }
    }

    /// Whether to read it again would cost more than to keep its blocks.
    fn is_dear(&self) -> bool {
        CALL_COST + (self.end - self.start) >= self.blocks * KEPT_COST_MIN
    }
}

#[cfg(test)]
mod tests;
