//! A map with one owner.
#![expect(
    unsafe_code,
    reason = "its memory is untyped, and owners get pieces of it for their own use"
)]

use std::ptr::NonNull;

use orogen_base::{Error, Result, memory};

use crate::cell::Cell;
use crate::cursor::{Map, Root, Stamp, sealed::Sealed};
use crate::event::Event;
use crate::find::find;
use crate::insert::{Host, Seed, insert};
use crate::node::{Head, Inner, Leaf};
use crate::pieces::{Ground, Pieces};
use crate::view::{Ref, View, WORD};
use crate::{BLOCK_MAX, ROOTS_MAX, map_number};

/// Words of the first memory of a map.
const FIRST: usize = 1 << 10;

/// An ordered map of byte strings to cells of a few words, with one owner: no locks, no waiting for
/// readers. Its memory doubles as it grows, and is kept when it is emptied.
pub struct LocalTrie {
    memory: Memory,
    pieces: Pieces,
    cell_words: usize,
    roots: u32,
    number: u64,
    /// Rises with every change of nodes.
    changes: u64,
    events: [u64; Event::COUNT],
}

/// Words one after the other, which move when there are more.
struct Memory {
    words: Vec<u32>,
    /// Where they begin.
    base: NonNull<u8>,
    taken: usize,
    limit: usize,
}

// SAFETY: `base` is the start of `words`, which it owns.
unsafe impl Send for Memory {}
// SAFETY: who has a shared reference reads, and writes only cells, which are atomic.
unsafe impl Sync for Memory {}

impl LocalTrie {
    /// An empty map of up to `limit` bytes, at most [`BLOCK_MAX`]; with so many words for each key, 0 to
    /// 64, and so many roots, 1 to [`ROOTS_MAX`].
    ///
    /// # Errors
    /// `InvalidArgument`; `NoMemory`.
    pub fn new(limit: usize, cell_words: usize, roots: u32) -> Result<Self> {
        if limit > BLOCK_MAX || cell_words > 64 || roots == 0 || roots > ROOTS_MAX {
            return Err(Error::invalid_argument("shape of a trie")
                .with("limit", limit)
                .with("cell_words", cell_words)
                .with("roots", roots));
        }
        let mut trie = Self {
            memory: Memory {
                words: Vec::new(),
                base: NonNull::dangling(),
                taken: 0,
                limit: (limit / WORD).min(u32::MAX as usize),
            },
            pieces: Pieces::new(),
            cell_words,
            roots,
            number: map_number(),
            changes: 0,
            events: [0; Event::COUNT],
        };
        trie.memory.take(roots + 1, roots + 1)?;
        trie.clear();
        Ok(trie)
    }

    /// Takes all keys away. Memory is kept.
    pub fn clear(&mut self) {
        self.memory.taken = self.roots as usize + 1;
        let view = self.memory.view();
        view.poison(0, self.memory.words.len());
        view.unpoison(0, self.memory.taken);
        view.clear(0, self.memory.taken);
        self.pieces = Pieces::new();
        self.changes += 1;
    }

    #[inline(always)]
    fn root_slot(&self, root: Root) -> Ref {
        assert!(root.0 < self.roots, "a root of this map");
        root.0 + 1
    }

    /// The cell of `key`, and true if the key was added: with `init` in its cell then, as many words
    /// as the map has for each key.
    ///
    /// # Errors
    /// `NoMemory`, `InvalidArgument` of more than 2 GiB; nothing has changed.
    ///
    /// # Panics
    /// If `init` has another length, or the map has no such root.
    #[inline]
    pub fn insert(&mut self, root: Root, key: &[u8], init: &[u32]) -> Result<(Cell<'_>, bool)> {
        assert_eq!(init.len(), self.cell_words, "words of a cell");
        let root = self.root_slot(root);
        let seed = Seed {
            cell: init,
            beside: &[],
        };
        let (cell, is_new) = insert(self, root, key, seed)?;
        self.changes += u64::from(is_new);
        Ok((Cell(self.memory.view().words(cell, init.len())), is_new))
    }

    /// The cell of `key`.
    ///
    /// # Panics
    /// If the map has no such root.
    #[inline]
    #[must_use]
    pub fn get(&self, root: Root, key: &[u8]) -> Option<Cell<'_>> {
        let cell = find(self.memory.view(), self.root_slot(root), key)?;
        Some(Cell(self.memory.view().words(cell, self.cell_words)))
    }

    /// Takes a key away; true if it was there. Its leaf is used again; nodes above it stay, without
    /// it, until the map is emptied, so that putting it back costs only the leaf.
    ///
    /// # Panics
    /// If the map has no such root.
    pub fn remove(&mut self, root: Root, key: &[u8]) -> bool {
        let mut slot = self.root_slot(root);
        let mut depth = 0;
        let view = self.memory.view();
        let (leaf, words) = loop {
            let at = view.load(slot);
            if at == 0 {
                return false;
            }
            let head = Head::of(view, at);
            if head.is_leaf() {
                let leaf = Leaf::new(view, at, head);
                if leaf.rest(depth) != &key[depth..] {
                    return false;
                }
                break (at, leaf.cell() - at + self.cell_words as u32);
            }
            let node = Inner::new(view, at, head);
            let path = node.path(depth);
            if !key[depth..].starts_with(path) {
                return false;
            }
            depth += path.len();
            let next = match key.get(depth) {
                Some(&label) => node.slot(label),
                None => node.end(),
            };
            let Some(next) = next else { return false };
            depth = key.len().min(depth + 1);
            slot = next;
        };
        view.store(slot, 0);
        self.changes += 1;
        Host::free(self, leaf, words);
        true
    }

    /// `words` words of any content, at least one, for whatever cells are to refer to.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    pub fn allocate(&mut self, words: u32) -> Result<u32> {
        Host::allocate(self, words.max(1))
    }

    /// Takes words back.
    ///
    /// # Safety
    /// They were allocated as one piece of this length since the map was last emptied, and are not used any more.
    pub unsafe fn free(&mut self, at: u32, words: u32) {
        Host::free(self, at, words.max(1));
    }

    /// Words that were allocated.
    ///
    /// # Safety
    /// `at` was given by [`Self::allocate`] for at least `len` words since the map was last emptied, and was not freed.
    #[must_use]
    pub unsafe fn words(&self, at: u32, len: usize) -> &[orogen_base::sync::atomic::AtomicU32] {
        self.memory.view().words(at, len)
    }

    /// Bytes of memory held, and those in use.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let (listed, uncut) = self.pieces.free_words();
        let used = self.memory.taken - (listed + uncut) as usize;
        (self.memory.words.capacity() * WORD, used * WORD)
    }

    /// How often each [`Event`] happened, by its number.
    #[must_use]
    pub fn events(&self) -> [u64; Event::COUNT] {
        self.events
    }
}

impl Map for LocalTrie {}

impl Sealed for LocalTrie {
    #[inline]
    fn visit<R>(&self, stamp: Stamp, look: impl FnOnce(View<'_>, Stamp, bool) -> R) -> R {
        let now = Stamp {
            map: self.number,
            time: self.changes,
        };
        look(self.memory.view(), now, stamp == now)
    }

    fn keeps_cell(&self, stamp: Stamp) -> bool {
        stamp.map == self.number && stamp.time == self.changes
    }

    fn root(&self, root: Root) -> Ref {
        self.root_slot(root)
    }

    fn cell_words(&self) -> usize {
        self.cell_words
    }

    fn view(&self) -> View<'_> {
        self.memory.view()
    }
}

impl Ground for Memory {
    #[inline(always)]
    fn view(&self) -> View<'_> {
        // SAFETY: what is allocated lies in `words`, which move only while this is not borrowed.
        unsafe { View::new(self.base) }
    }

    fn take(&mut self, least: u32, wanted: u32) -> Result<(Ref, u32)> {
        let left = self.limit - self.taken;
        if left < least as usize {
            return Err(memory::refused("trie", least as usize * WORD));
        }
        let len = (wanted as usize).min(left);
        let (end, held) = (self.taken + len, self.words.len());
        if end > held {
            let wanted = end.max(2 * held).max(FIRST).min(self.limit);
            let refused = |_| memory::refused("trie", wanted * WORD);
            self.words
                .try_reserve_exact(wanted - held)
                .map_err(refused)?;
            // Zeroed, once: of what nobody has written yet, the ends of words are read.
            self.words.resize(wanted, 0);
            self.base = NonNull::from(self.words.as_mut_slice()).cast();
            // Of what moved with it the sanitizer knows no more what is free.
            self.view()
                .poison(self.taken as Ref, self.words.len() - self.taken);
        }
        let at = self.taken as Ref;
        self.taken = end;
        Ok((at, len as u32))
    }
}

impl Host for LocalTrie {
    const SHARED: bool = false;

    #[inline(always)]
    fn view(&self) -> View<'_> {
        self.memory.view()
    }

    #[inline(always)]
    fn allocate(&mut self, words: u32) -> Result<Ref> {
        self.pieces.allocate(&mut self.memory, words)
    }

    #[inline(always)]
    fn has(&self, words: u32) -> bool {
        self.pieces.has(words)
    }

    fn free(&mut self, at: Ref, words: u32) {
        self.pieces.free(self.memory.view(), at, words);
    }

    fn prepare_retire(&mut self) -> Result<()> {
        Ok(())
    }

    fn retire(&mut self, at: Ref, words: u32) {
        Host::free(self, at, words);
    }

    #[inline(always)]
    fn count(&mut self, event: Event) {
        self.events[event as usize] += 1;
    }
}
