//! A map that threads share.
#![expect(
    unsafe_code,
    reason = "its memory is untyped, and owners get pieces of it for their own use"
)]

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::sync::atomic::AtomicU32;
use orogen_base::sync::{Mistake, Mutex, makes};
use orogen_base::{Error, Result, memory};
use orogen_env::memory::{PagePool, Reserved};

use crate::cell::Cell;
use crate::cursor::{Map, Root, Stamp, sealed::Sealed};
use crate::epoch::{Epochs, Inside};
use crate::event::Event;
use crate::find::find;
use crate::pieces::Ground;
use crate::view::{Ref, View, WORD};
use crate::writer::{Lanes, Writer};
use crate::{BLOCK_MAX, ROOTS_MAX, map_number};

/// When somebody is told of bytes that a map takes from the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// They are not counted yet.
    Before,
    /// They are in [`Trie::held`].
    After,
}

/// Told of bytes that a map begins to use, under a lock of the map: of the map it may ask what it holds, and no more.
pub type Growth = Box<dyn Fn(Moment, usize) + Send + Sync>;

/// Where the bytes of a map are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Taken from the block: all of the below together, in bytes.
    pub taken: u64,
    /// In nodes, leaves and what was allocated.
    pub used: u64,
    /// Freed, and somebody may still read it.
    pub waiting: u64,
    /// Freed, to be used again.
    pub listed: u64,
    /// Not cut yet.
    pub uncut: u64,
    /// Backed by the system.
    pub committed: u64,
}

/// An ordered map of byte strings to cells of a few words, in one block of memory. Any thread may
/// read and write at any time; keys are never taken away.
///
/// Readers take no lock and try nothing twice; what they write is one word of their own for each [`Reader`].
pub struct Trie {
    epochs: Epochs,
    lanes: Lanes,
    /// Words that were promised. Its lock is a leaf.
    promised: Mutex<u64>,
    /// Words that lanes have, from the start: raised under that lock.
    taken: AtomicU64,
    /// Words that the system has given, from the start: raised under that lock.
    backed: AtomicU64,
    capacity: u64,
    cell_words: usize,
    roots: u32,
    number: u64,
    /// Behind all that is in it.
    memory: Reserved,
    /// Told of memory that is committed, and by its end that there is none any more: last.
    grows: OnceLock<Growth>,
}

/// # Errors
/// `InvalidArgument` of what is out of bounds.
fn check_shape(capacity: usize, cell_words: usize, roots: u32) -> Result<()> {
    if !(64 << 10..=BLOCK_MAX).contains(&capacity) {
        return Err(Error::invalid_argument("capacity of a trie").with("bytes", capacity));
    }
    if cell_words > 64 || roots == 0 || roots > ROOTS_MAX {
        return Err(Error::invalid_argument("shape of a trie")
            .with("cell_words", cell_words)
            .with("roots", roots));
    }
    Ok(())
}

impl Trie {
    /// An empty map of up to `capacity` bytes, 64 KiB to [`BLOCK_MAX`], of which only what is used
    /// becomes memory; with so many words for each key, 0 to 64, and so many roots, 1 to [`ROOTS_MAX`].
    ///
    /// # Errors
    /// `InvalidArgument`; `NoMemory` if the system has not so many addresses, or no memory for the roots.
    pub fn new(capacity: usize, cell_words: usize, roots: u32) -> Result<Self> {
        check_shape(capacity, cell_words, roots)?;
        let memory = Reserved::new(capacity).ok_or_else(|| memory::refused("trie", capacity))?;
        Self::with(memory, capacity, cell_words, roots)
    }

    /// The same in memory that a map had before, if `pool` has any, and that goes back there.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn in_pool(
        pool: &PagePool,
        capacity: usize,
        cell_words: usize,
        roots: u32,
    ) -> Result<Self> {
        check_shape(capacity, cell_words, roots)?;
        let memory = pool.reserve(capacity);
        let memory = memory.ok_or_else(|| memory::refused("trie", capacity))?;
        Self::with(memory, capacity, cell_words, roots)
    }

    fn with(memory: Reserved, capacity: usize, cell_words: usize, roots: u32) -> Result<Self> {
        let refused = || memory::refused("trie", capacity);
        let taken = u64::from(roots) + 1;
        let capacity = Self::words_of(capacity);
        if taken > capacity || !memory.commit(taken as usize * WORD) {
            return Err(refused());
        }
        memory.use_up_to(taken as usize * WORD);
        let backed = AtomicU64::new((memory.committed() / WORD) as u64);
        let map = Self {
            epochs: Epochs::new(),
            lanes: Lanes::new(),
            promised: Mutex::new(0),
            taken: AtomicU64::new(taken),
            backed,
            capacity,
            cell_words,
            roots,
            number: map_number(),
            memory,
            grows: OnceLock::new(),
        };
        map.poison_behind(taken);
        // Whoever had the memory before has left something there.
        map.memory_view().clear(0, taken as usize);
        Ok(map)
    }

    /// The same in a file without a name in `dir`, for maps that may be larger than memory; see [`Reserved::in_dir`].
    ///
    /// # Errors
    /// As [`Self::new`], and `Io`, `NoSpace`.
    pub fn in_dir(dir: &Path, capacity: usize, cell_words: usize, roots: u32) -> Result<Self> {
        check_shape(capacity, cell_words, roots)?;
        let memory = Reserved::in_dir(capacity, dir)?;
        Self::with(memory, capacity, cell_words, roots)
    }

    /// Has `grows` told of memory that is used from now on; the first call counts.
    pub fn watch_growth(&self, grows: Growth) {
        let _ = self.grows.set(grows);
    }

    /// Takes less than so many bytes from the system ahead of what is wanted from now on; see [`Reserved::commit_ahead_at_most`].
    pub fn commit_ahead_at_most(&self, bytes: usize) {
        self.memory.commit_ahead_at_most(bytes);
    }

    /// Bytes of the block that are used, or made ready: what was promised and never taken is no memory yet. None in a file.
    #[must_use]
    pub fn held(&self) -> usize {
        self.memory.used()
    }

    /// Words that were allocated.
    ///
    /// # Safety
    /// `at` was given by [`Writer::allocate`] or [`Writer::allocate_bytes`], or is that of [`Writer::insert_beside`],
    /// of this map and for at least `len` words, and is never retired nor freed.
    #[inline]
    #[must_use]
    pub unsafe fn kept_words(&self, at: u32, len: usize) -> &[AtomicU32] {
        self.memory_view().words(at, len)
    }

    /// Bytes that were allocated, which nobody changes any more.
    ///
    /// # Safety
    /// As for [`Self::kept_words`], in bytes.
    #[inline]
    #[must_use]
    pub unsafe fn kept_bytes(&self, at: u32, skip: usize, len: usize) -> &[u8] {
        self.memory_view().bytes(at, skip, len)
    }

    /// Bytes of memory that are held beside the block, of any map.
    #[must_use]
    pub const fn bytes_beside() -> usize {
        Epochs::BYTES + Lanes::BYTES
    }

    /// Makes so many of the next bytes that lanes will take ready, so that no writer waits for the system: from any
    /// thread, while others write.
    ///
    /// # Errors
    /// `NoMemory`; what was ready before is.
    pub fn prepare(&self, bytes: usize) -> Result<()> {
        let promised = self.promised.lock();
        let start = self.taken();
        let end = (start + (bytes / WORD) as u64).min(self.capacity);
        if !self.commit(end) {
            return Err(memory::refused("trie", bytes));
        }
        self.use_up_to(end);
        drop(promised);
        self.memory
            .populate(start as usize * WORD, end as usize * WORD);
        Ok(())
    }

    /// Sees to it that so many words are memory. Under the lock.
    fn commit(&self, words: u64) -> bool {
        if words <= self.backed.load(Ordering::Relaxed) {
            return true;
        }
        let before = self.backed.load(Ordering::Relaxed);
        let is_there = self.memory.commit(words as usize * WORD);
        let backed = (self.memory.committed() / WORD) as u64;
        self.backed.store(backed, Ordering::Relaxed);
        self.memory_view()
            .poison(before as Ref, (backed - before) as usize);
        is_there
    }

    /// Tells the sanitizer of an empty map that has taken so many words.
    fn poison_behind(&self, taken: u64) {
        let view = self.memory_view();
        view.poison(0, self.backed.load(Ordering::Relaxed) as usize);
        view.unpoison(0, taken as usize);
    }

    /// Tells of words up to `end` that are used from now on; they are committed. Under the lock.
    fn use_up_to(&self, end: u64) {
        let end = end as usize * WORD;
        let more = end.saturating_sub(self.memory.used());
        let grows = self
            .grows
            .get()
            .filter(|_| more > 0 && !self.memory.is_file());
        let tell = |moment| {
            if let Some(grows) = grows {
                grows(moment, more);
            }
        };
        tell(Moment::Before);
        self.memory.use_up_to(end);
        tell(Moment::After);
    }

    /// Takes all keys away. The block and its memory are kept: filling it again costs no page of the system. Cursors
    /// that were at a key of it belong to another map.
    pub fn clear(&mut self) {
        let taken = self.roots + 1;
        *self.promised.get_mut() = 0;
        *self.taken.get_mut() = u64::from(taken);
        self.poison_behind(u64::from(taken));
        self.memory_view().clear(0, taken as usize);
        self.lanes = Lanes::new();
        self.number = map_number();
    }

    /// Lanes that were written with.
    pub(crate) fn lanes_in_use(&self) -> u64 {
        self.lanes.count_used()
    }

    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    #[inline(always)]
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.epochs.enter(self.epochs.now())
    }

    #[inline(always)]
    pub(crate) fn words_of_cell(&self) -> usize {
        self.cell_words
    }

    #[inline(always)]
    pub(crate) fn memory_view(&self) -> View<'_> {
        // SAFETY: committed memory is zeroed, and goes with the map.
        unsafe { View::new(self.memory.start()) }
    }

    #[inline(always)]
    pub(crate) fn root_slot(&self, root: Root) -> Ref {
        assert!(root.0 < self.roots, "a root of this map");
        root.0 + 1
    }

    /// A lane, for as long as it is wanted: a thread that writes much keeps it. Waits while as many others write.
    #[must_use]
    pub fn writer(&self) -> Writer<'_> {
        self.lanes.writer(self)
    }

    /// Goes in to read. What is freed meanwhile is not used again before it is dropped: it is not
    /// for holding.
    #[inline]
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader {
            trie: self,
            _inside: self.enter(),
        }
    }

    /// Sees to it that inserts find room that together take up to `words`, by
    /// [`Self::insert_words_max`], beside what was promised before; [`Self::release`] ends it.
    ///
    /// # Errors
    /// `NoMemory`; nothing is promised.
    pub fn promise(&self, words: u64) -> Result<()> {
        let mut promised = self.promised.lock();
        let end = self.taken() + *promised + words;
        if end > self.capacity || !self.commit(end) {
            return Err(memory::refused("trie", words as usize * WORD));
        }
        *promised += words;
        Ok(())
    }

    /// Words that one of so many bytes may take in all.
    #[must_use]
    pub fn words_of(capacity: usize) -> u64 {
        // The last word's number has to fit, too.
        ((capacity / WORD) as u64).min(u64::from(u32::MAX))
    }

    /// Words that it may take in all.
    #[must_use]
    pub fn capacity_words(&self) -> u64 {
        self.capacity
    }

    /// True if the system has given all that is taken and `words` beside: nothing more than that is promised.
    #[inline]
    #[must_use]
    pub fn backs(&self, words: u64) -> bool {
        self.taken() + words <= self.backed.load(Ordering::Relaxed)
    }

    /// Ends a promise.
    pub fn release(&self, words: u64) {
        *self.promised.lock() -= words;
    }

    /// Words that the insert of a key of so many bytes takes at most.
    #[must_use]
    pub fn insert_words_max(&self, key_bytes: usize) -> u64 {
        // The key; links of a path that is as long; a node of 256 with a path, or one of four; the cell.
        let key = key_bytes as u64;
        key / 4 + key / 3 + 400 + self.cell_words as u64
    }

    /// Where the bytes are: exact while nobody writes.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = Usage {
            taken: self.taken() * WORD as u64,
            committed: self.memory.committed() as u64,
            ..Usage::default()
        };
        self.lanes.add_usage(&mut usage);
        usage.used = usage
            .taken
            .saturating_sub(usage.listed + usage.uncut + usage.waiting);
        usage
    }

    /// Bytes that were taken from the block and cut: nodes, leaves, what was allocated, and what was freed of them.
    #[inline]
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.taken().saturating_sub(self.lanes.uncut_words()) * WORD as u64
    }

    /// How often each [`Event`] happened, by its number. Waits for those who write.
    #[must_use]
    pub fn events(&self) -> [u64; Event::COUNT] {
        self.lanes.events()
    }
}

impl Drop for Trie {
    fn drop(&mut self) {
        // Others get the memory, or what is mapped at these addresses next.
        let backed = *self.backed.get_mut() as usize;
        self.memory_view().unpoison(0, backed);
    }
}

impl Map for Trie {}

impl Sealed for Trie {
    #[inline]
    fn visit<R>(&self, stamp: Stamp, look: impl FnOnce(View<'_>, Stamp, bool) -> R) -> R {
        if stamp.map == self.number {
            let inside = self.epochs.enter(stamp.time);
            if self.epochs.now() == stamp.time || makes(Mistake::TrustOldNodes) {
                return look(self.memory_view(), stamp, true);
            }
            drop(inside);
        }
        let time = self.epochs.now();
        let inside = self.epochs.enter(time);
        let map = self.number;
        let result = look(self.memory_view(), Stamp { map, time }, false);
        drop(inside);
        result
    }

    fn keeps_cell(&self, stamp: Stamp) -> bool {
        stamp.map == self.number
    }

    fn root(&self, root: Root) -> Ref {
        self.root_slot(root)
    }

    fn cell_words(&self) -> usize {
        self.cell_words
    }

    fn view(&self) -> View<'_> {
        self.memory_view()
    }
}

/// Somebody who reads.
pub struct Reader<'a> {
    trie: &'a Trie,
    _inside: Inside<'a>,
}

impl<'a> Reader<'a> {
    /// The cell of `key`, which stays where it is as long as the map lives.
    ///
    /// # Panics
    /// If the map has no such root.
    #[inline]
    #[must_use]
    pub fn get(&self, root: Root, key: &[u8]) -> Option<Cell<'a>> {
        let view = self.trie.memory_view();
        let cell = find(view, self.trie.root_slot(root), key)?;
        Some(Cell(view.words(cell, self.trie.cell_words)))
    }

    /// Bytes that were allocated, from `skip` on, for as long as this reader is inside.
    ///
    /// # Safety
    /// `at` was given by [`Writer::allocate_bytes`] or is that of [`Writer::insert_beside`], of this map and
    /// for so many bytes, and was found by this reader in a cell, or is not retired.
    #[must_use]
    pub unsafe fn bytes(&self, at: u32, skip: usize, len: usize) -> &[u8] {
        self.trie.memory_view().bytes(at, skip, len)
    }

    /// Words that were allocated, for as long as this reader is inside.
    ///
    /// # Safety
    /// `at` was given by [`Writer::allocate`] of this map for at least `len` words, and was found by this reader in a
    /// cell, or is not retired.
    #[must_use]
    pub unsafe fn words(&self, at: u32, len: usize) -> &[AtomicU32] {
        self.trie.memory_view().words(at, len)
    }
}

impl Ground for &Trie {
    fn view(&self) -> View<'_> {
        self.memory_view()
    }

    fn take(&mut self, least: u32, wanted: u32) -> Result<(Ref, u32)> {
        let promised = self.promised.lock();
        let taken = self.taken();
        let unpromised = self.capacity.saturating_sub(taken + *promised);
        let least = u64::from(least);
        let mut len = u64::from(wanted).min(unpromised).max(least);
        // What a chunk takes is not taken from what was promised. Where there is no more than that, each piece
        // gets just its own words, so none are lost at the ends of chunks.
        if len > unpromised || !self.commit(taken + len + *promised) {
            len = least;
        }
        let end = taken + len;
        if end > self.capacity || !self.commit(end) {
            return Err(memory::refused("trie", least as usize * WORD));
        }
        self.use_up_to(end);
        self.taken.store(end, Ordering::Relaxed);
        Ok((taken as Ref, len as u32))
    }
}
