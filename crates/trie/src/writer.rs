//! Somebody who writes into a map that threads share: a lane with memory of its own, and what of it waits.
//! `Hot path`.
#![expect(
    unsafe_code,
    reason = "owners get pieces of untyped memory for their own use"
)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use orogen_base::sync::atomic::AtomicU32;
use orogen_base::sync::{Mistake, Mutex, MutexGuard, makes};
use orogen_base::{Error, Result, memory};

use crate::cell::Cell;
use crate::cursor::Root;
use crate::epoch::thread_number;
use crate::event::Event;
use crate::insert::{Host, LEN_MAX, Seed, insert, write_parts};
use crate::pieces::Pieces;
use crate::shared::{Trie, Usage};
use crate::view::{Ref, View, WORD};

/// Writers that can be at work at a time; others wait.
const LANES: usize = if cfg!(orogen_shuttle) { 2 } else { 16 };
/// Words that lanes let wait before they look which can be used again: so many together, or a share of what the map has taken if
/// that is more, within bounds for each. Where all threads are fenced for it, a look takes as long as hundreds of inserts on some
/// machines; the most is what one insert may have to free.
const LOOK_WORDS: u64 = (16 << 10) / WORD as u64;
const LOOK_SHARE: u64 = 128;
/// The same of one lane, at least and at most.
const LOOK_LANE_MIN: u64 = (4 << 10) / WORD as u64;
const LOOK_LANE_MAX: u64 = (512 << 10) / WORD as u64;
/// Pieces that there is room for at least to remember.
const BATCH: usize = 64;

/// A piece that somebody may still read.
struct Waiting {
    at: Ref,
    words: u32,
    tag: u64,
}

impl Waiting {
    /// Words that one takes beside those it is about.
    const WORDS: u64 = (size_of::<Self>() / WORD) as u64;
}

/// What one writer at a time has.
struct LaneState {
    pieces: Pieces,
    waiting: VecDeque<Waiting>,
    waiting_words: u64,
    /// Look again when so many words are held.
    look_at: u64,
    events: [u64; Event::COUNT],
}

/// Words that one of so many lanes lets wait, of a map that has taken so many.
fn look_words(taken: u64, lanes: u64) -> u64 {
    if cfg!(orogen_shuttle) {
        return 1;
    }
    let together = (taken / LOOK_SHARE).max(LOOK_WORDS);
    (together / lanes.max(1)).clamp(LOOK_LANE_MIN, LOOK_LANE_MAX)
}

impl LaneState {
    /// Words that wait, and those to remember them.
    #[inline(always)]
    fn held_words(&self) -> u64 {
        self.waiting_words + self.waiting.len() as u64 * Waiting::WORDS
    }
}

/// Words of a lane, as its last writer left them.
#[derive(Default)]
struct LaneUsage {
    listed: AtomicU64,
    uncut: AtomicU64,
    waiting: AtomicU64,
}

#[repr(align(128))]
struct Lane {
    state: Mutex<LaneState>,
    usage: LaneUsage,
}

/// All lanes of a map.
pub(crate) struct Lanes {
    lanes: Box<[Lane; LANES]>,
    /// A bit for each lane that was written with: the others hold nothing.
    used: AtomicU64,
}

impl Lanes {
    /// What they hold, without what their writers remember.
    pub(crate) const BYTES: usize = LANES * size_of::<Lane>();

    /// Lanes that have nothing.
    pub(crate) fn new() -> Self {
        let lane = |_| Lane {
            state: Mutex::new(LaneState {
                pieces: Pieces::new(),
                waiting: VecDeque::new(),
                waiting_words: 0,
                look_at: look_words(0, 1),
                events: [0; Event::COUNT],
            }),
            usage: LaneUsage::default(),
        };
        Self {
            lanes: Box::new(std::array::from_fn(lane)),
            used: AtomicU64::new(0),
        }
    }

    /// A free lane, from the thread's own on; waits if there is none.
    #[inline]
    pub(crate) fn writer<'a>(&'a self, trie: &'a Trie) -> Writer<'a> {
        let first = thread_number();
        let lanes = (0..LANES).map(|i| (first + i) % LANES);
        let mut free = lanes.filter_map(|i| Some((i, self.lanes[i].state.try_lock()?)));
        let (number, state) = match free.next() {
            Some(free) => free,
            None => {
                let own = first % LANES;
                (own, self.lanes[own].state.lock())
            }
        };
        let bit = 1 << number;
        if self.used.load(Ordering::Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
        let lane = &self.lanes[number];
        Writer { trie, lane, state }
    }

    /// Adds bytes that no key has.
    pub(crate) fn add_usage(&self, usage: &mut Usage) {
        for lane in self.used() {
            let bytes = |words: &AtomicU64| words.load(Ordering::Relaxed) * WORD as u64;
            usage.listed += bytes(&lane.usage.listed);
            usage.uncut += bytes(&lane.usage.uncut);
            usage.waiting += bytes(&lane.usage.waiting);
        }
    }

    /// Lanes that were written with.
    pub(crate) fn count_used(&self) -> u64 {
        u64::from(self.used.load(Ordering::Relaxed).count_ones())
    }

    /// Words that lanes have and have not cut.
    #[inline]
    pub(crate) fn uncut_words(&self) -> u64 {
        let uncut = |lane: &Lane| lane.usage.uncut.load(Ordering::Relaxed);
        self.used().map(uncut).sum()
    }

    #[inline]
    fn used(&self) -> impl Iterator<Item = &Lane> {
        let mut left = self.used.load(Ordering::Relaxed);
        std::iter::from_fn(move || {
            let number = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            self.lanes.get(number)
        })
    }

    /// Sums of events.
    pub(crate) fn events(&self) -> [u64; Event::COUNT] {
        let mut sums = [0; Event::COUNT];
        for lane in self.used() {
            let state = lane.state.lock();
            sums.iter_mut().zip(state.events).for_each(|(a, b)| *a += b);
        }
        sums
    }
}

/// Somebody who writes.
pub struct Writer<'a> {
    trie: &'a Trie,
    lane: &'a Lane,
    state: MutexGuard<'a, LaneState>,
}

impl<'a> Writer<'a> {
    /// The cell of `key`, and true if the key was added: with `init` in its cell then, as many words as the map
    /// has for each key. The cell stays where it is as long as the map lives.
    ///
    /// # Errors
    /// `NoMemory` if the block has no room, `InvalidArgument` of more than 2 GiB; nothing has changed.
    ///
    /// # Panics
    /// If `init` has another length, or the map has no such root.
    #[inline]
    pub fn insert(&mut self, root: Root, key: &[u8], init: &[u32]) -> Result<(Cell<'a>, bool)> {
        assert_eq!(init.len(), self.trie.words_of_cell(), "words of a cell");
        let seed = Seed {
            cell: init,
            beside: &[],
        };
        self.insert_seed(root, key, seed)
    }

    /// As [`Self::insert`] with `parts` one behind the other in the same piece as the key, mostly in the
    /// same cache line; the first word of a new cell tells where, whatever `init` says. They count as
    /// allocated: words of them may be retired as a piece.
    ///
    /// # Errors
    /// As [`Self::insert`].
    ///
    /// # Panics
    /// As [`Self::insert`]; if cells have no words.
    #[inline]
    pub fn insert_beside(
        &mut self,
        root: Root,
        key: &[u8],
        init: &[u32],
        parts: &[&[u8]],
    ) -> Result<(Cell<'a>, bool)> {
        assert_eq!(init.len(), self.trie.words_of_cell(), "words of a cell");
        assert!(!init.is_empty(), "a word to tell where they are");
        let seed = Seed {
            cell: init,
            beside: parts,
        };
        self.insert_seed(root, key, seed)
    }

    #[inline(always)]
    fn insert_seed(&mut self, root: Root, key: &[u8], seed: Seed<'_>) -> Result<(Cell<'a>, bool)> {
        let root = self.trie.root_slot(root);
        let trie = self.trie;
        let inside = trie.enter();
        let added = insert(self, root, key, seed);
        drop(inside);
        self.look_at_times();
        let (cell, is_new) = added?;
        let cell = trie.memory_view().words(cell, trie.words_of_cell());
        Ok((Cell(cell), is_new))
    }

    /// Bytes one part behind the other in a piece of its own, for whatever cells are to refer to; of as many words as hold them.
    ///
    /// # Errors
    /// `NoMemory`, `InvalidArgument` of more than 2 GiB; nothing has changed.
    pub fn allocate_bytes(&mut self, parts: &[&[u8]]) -> Result<u32> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if bytes > LEN_MAX {
            return Err(Error::invalid_argument("more than 2 GiB").with("bytes", bytes));
        }
        let at = self.allocate(bytes.div_ceil(WORD) as u32)?;
        write_parts(self.trie.memory_view(), at, parts);
        Ok(at)
    }

    /// `words` words of any content, at least one, for whatever cells are to refer to.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    pub fn allocate(&mut self, words: u32) -> Result<u32> {
        let mut trie = self.trie;
        self.state.pieces.allocate(&mut trie, words.max(1))
    }

    /// Words that were allocated.
    ///
    /// # Safety
    /// `at` was given by [`Self::allocate`] for at least `len` words, and is not retired nor freed
    /// while the result is used.
    #[must_use]
    pub unsafe fn words(&self, at: u32, len: usize) -> &'a [AtomicU32] {
        self.trie.memory_view().words(at, len)
    }

    /// Takes words back when nobody is inside any more who may have found them.
    ///
    /// # Errors
    /// `NoMemory` if there is none to remember them; they are not taken back then.
    ///
    /// # Safety
    /// They were allocated as one piece of this length, and no cell refers to them any more.
    pub unsafe fn retire(&mut self, at: u32, words: u32) -> Result<()> {
        self.make_room_to_wait()?;
        Host::retire(self, at, words.max(1));
        self.look_at_times();
        Ok(())
    }

    /// Takes words back at once.
    ///
    /// # Safety
    /// They were allocated as one piece of this length, and no cell ever referred to them.
    pub unsafe fn free(&mut self, at: u32, words: u32) {
        Host::free(self, at, words.max(1));
    }

    /// Makes room to remember one piece more.
    fn make_room_to_wait(&mut self) -> Result<()> {
        let waiting = &mut self.state.waiting;
        if waiting.len() == waiting.capacity() {
            let more = waiting.len().max(BATCH);
            if waiting.try_reserve(more).is_err() {
                // What waits may be free by now, and then there is room.
                self.state.look_at = 0;
                return Err(memory::refused("trie", more * size_of::<Waiting>()));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn look_at_times(&mut self) {
        if self.state.held_words() >= self.state.look_at {
            self.look_what_is_free();
        }
    }

    #[cold]
    fn look_what_is_free(&mut self) {
        self.count(Event::Looked);
        let epochs = self.trie.epochs();
        let first = self.state.waiting.front().map(|w| w.tag);
        if first == Some(epochs.now()) {
            epochs.advance();
        }
        let oldest = epochs.oldest();
        let view = self.trie.memory_view();
        let state = &mut *self.state;
        while let Some(waiting) = state.waiting.pop_front_if(|w| w.tag < oldest) {
            state.waiting_words -= u64::from(waiting.words);
            state.pieces.free(view, waiting.at, waiting.words);
        }
        state.look_at =
            state.held_words() + look_words(self.trie.taken(), self.trie.lanes_in_use());
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        let (listed, uncut) = self.state.pieces.free_words();
        let usage = &self.lane.usage;
        usage.listed.store(listed, Ordering::Relaxed);
        usage.uncut.store(uncut, Ordering::Relaxed);
        usage
            .waiting
            .store(self.state.waiting_words, Ordering::Relaxed);
    }
}

impl Host for Writer<'_> {
    const SHARED: bool = true;

    #[inline(always)]
    fn view(&self) -> View<'_> {
        self.trie.memory_view()
    }

    #[inline(always)]
    fn allocate(&mut self, words: u32) -> Result<Ref> {
        let mut trie = self.trie;
        self.state.pieces.allocate(&mut trie, words)
    }

    #[inline(always)]
    fn has(&self, words: u32) -> bool {
        self.state.pieces.has(words)
    }

    fn free(&mut self, at: Ref, words: u32) {
        self.state.pieces.free(self.trie.memory_view(), at, words);
    }

    fn prepare_retire(&mut self) -> Result<()> {
        // An insert that was promised its words must not fail here: the piece is lost to the map instead.
        let _ = self.make_room_to_wait();
        Ok(())
    }

    fn retire(&mut self, at: Ref, words: u32) {
        if makes(Mistake::ReuseAtOnce) {
            return Host::free(self, at, words);
        }
        if self.state.waiting.len() == self.state.waiting.capacity() {
            return;
        }
        let tag = self.trie.epochs().tag();
        self.state.waiting_words += u64::from(words);
        self.state.waiting.push_back(Waiting { at, words, tag });
    }

    #[inline(always)]
    fn count(&mut self, event: Event) {
        self.state.events[event as usize] += 1;
    }
}
