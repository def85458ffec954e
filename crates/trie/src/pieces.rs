//! Cutting pieces from a block, and using again those that are free. One thread at a time. `Hot path`.
//!
//! A lane has two ranges of its own: what is wide is cut from the chunk that it last got from the
//! block, what is small from whatever is free. A free piece of up to 64 words waits in the list of its
//! size, a larger one in one list for all; both go through the first words of the pieces. When a small range ends, the largest
//! free piece becomes the next one: nodes grow away from their sizes, leaves are always wanted.
//!
//! 1. Each word that was taken from the block is in a range, in a list, or in use. Only what is in use is not poisoned
//!    (`poison.rs`), but for the words of a list while they are read or written.

use orogen_base::Result;

use crate::view::{Ref, View, WORD};

/// Pieces of up to so many words have lists by size.
const LISTED: usize = 64;
/// Pieces of up to so many words are cut from what is free.
const SMALL: u32 = 32;
/// Free pieces of at least so many words become small ranges.
const RANGE_MIN: u32 = 8;
/// Words that a small range gets from a wide one, where nothing is free.
const STRETCH: u32 = 256;
/// First chunk of a lane, and the largest one, in words. They double.
const CHUNK_MIN: u32 = (4 << 10) / WORD as u32;
const CHUNK_MAX: u32 = (256 << 10) / WORD as u32;

/// Where chunks come from.
pub(crate) trait Ground {
    /// The memory as it lies now.
    fn view(&self) -> View<'_>;

    /// A piece of at least `least` words, of `wanted` if there is room; and its length.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    fn take(&mut self, least: u32, wanted: u32) -> Result<(Ref, u32)>;
}

/// Words from `at` to before `end`.
#[derive(Clone, Copy, Default)]
struct Range {
    at: Ref,
    end: Ref,
}

impl Range {
    #[inline(always)]
    fn cut(&mut self, words: u32) -> Option<Ref> {
        let at = self.at;
        (self.end - at >= words).then(|| {
            self.at += words;
            at
        })
    }
}

/// A lane's free memory.
pub(crate) struct Pieces {
    small: Range,
    wide: Range,
    /// First free piece of each size.
    lists: [Ref; LISTED + 1],
    /// A bit for each list that has one, from the one of 1 word.
    sizes: u64,
    /// First free piece of more than `LISTED` words; its second word is its length.
    large: Ref,
    listed: u64,
    next_chunk: u32,
}

impl Pieces {
    pub(crate) const fn new() -> Self {
        Self {
            small: Range { at: 0, end: 0 },
            wide: Range { at: 0, end: 0 },
            lists: [0; LISTED + 1],
            sizes: 0,
            large: 0,
            listed: 0,
            next_chunk: CHUNK_MIN,
        }
    }

    /// Words in lists and in ranges.
    pub(crate) fn free_words(&self) -> (u64, u64) {
        let left = |range: Range| u64::from(range.end - range.at);
        (self.listed, left(self.small) + left(self.wide))
    }

    #[inline(always)]
    fn pop(&mut self, view: View<'_>, words: usize) -> Option<Ref> {
        let at = self.lists[words];
        if at == 0 {
            return None;
        }
        view.unpoison(at, words);
        let next = view.load_relaxed(at);
        self.lists[words] = next;
        if next == 0 {
            self.sizes &= !(1 << (words - 1));
        }
        self.listed -= words as u64;
        Some(at)
    }

    /// True if a piece of just this size, up to 64 words, is free.
    #[inline(always)]
    pub(crate) fn has(&self, words: u32) -> bool {
        self.lists[words as usize] != 0
    }

    /// `words` words of any content, at least one.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    #[inline(always)]
    pub(crate) fn allocate<G: Ground>(&mut self, ground: &mut G, words: u32) -> Result<Ref> {
        if words as usize <= LISTED
            && let Some(at) = self.pop(ground.view(), words as usize)
        {
            return Ok(at);
        }
        if words <= SMALL
            && let Some(at) = self.small.cut(words)
        {
            ground.view().unpoison(at, words as usize);
            return Ok(at);
        }
        self.allocate_slowly(ground, words)
    }

    #[cold]
    #[inline(never)]
    fn allocate_slowly<G: Ground>(&mut self, ground: &mut G, words: u32) -> Result<Ref> {
        let at = self.cut_slowly(ground, words)?;
        ground.view().unpoison(at, words as usize);
        Ok(at)
    }

    #[inline]
    fn cut_slowly<G: Ground>(&mut self, ground: &mut G, words: u32) -> Result<Ref> {
        if words <= SMALL {
            if self.small_from_free(ground.view(), words) {
                return Ok(self.small.cut(words).expect("it holds it"));
            }
            let len = STRETCH.max(words);
            let at = self.cut_wide(ground, words, len)?;
            self.end_range(ground.view(), self.small);
            let end = at + len.min(self.wide.end - at);
            self.wide.at = end;
            self.small = Range { at, end };
            return Ok(self.small.cut(words).expect("it holds it"));
        }
        if let Some(at) = self.cut_large(ground.view(), words) {
            return Ok(at);
        }
        let at = self.cut_wide(ground, words, words)?;
        self.wide.at = at + words;
        Ok(at)
    }

    /// The first large piece, if it is just so large or much larger.
    fn cut_large(&mut self, view: View<'_>, words: u32) -> Option<Ref> {
        let at = self.large;
        if at == 0 {
            return None;
        }
        view.unpoison(at, 2);
        let len = view.load_relaxed(at + 1);
        if len != words && len / 4 < words {
            view.poison(at, len as usize);
            return None;
        }
        self.large = view.load_relaxed(at);
        self.listed -= u64::from(len);
        if len > words {
            self.free(view, at + words, len - words);
        }
        Some(at)
    }

    /// Makes a free piece the small range.
    fn small_from_free(&mut self, view: View<'_>, words: u32) -> bool {
        let least = words.max(RANGE_MIN);
        let (at, len) = if self.large != 0 {
            let at = self.large;
            view.unpoison(at, 2);
            let len = view.load_relaxed(at + 1);
            self.large = view.load_relaxed(at);
            self.listed -= u64::from(len);
            (at, len)
        } else {
            let largest = u64::BITS - self.sizes.leading_zeros();
            if largest < least {
                return false;
            }
            let at = self.pop(view, largest as usize);
            (at.expect("a list with a bit has a piece"), largest)
        };
        view.poison(at, len as usize);
        self.end_range(view, self.small);
        self.small = Range { at, end: at + len };
        true
    }

    /// Where the wide range has `least` words; if that is a new chunk, of `wanted` and more if
    /// there is room.
    fn cut_wide<G: Ground>(&mut self, ground: &mut G, least: u32, wanted: u32) -> Result<Ref> {
        if self.wide.end - self.wide.at < least {
            let wanted = wanted.max(self.next_chunk);
            let (at, len) = ground.take(least, wanted)?;
            self.next_chunk = (self.next_chunk * 2).min(CHUNK_MAX);
            if self.wide.end == at {
                self.wide.end += len;
            } else {
                self.end_range(ground.view(), self.wide);
                self.wide = Range { at, end: at + len };
            }
        }
        Ok(self.wide.at)
    }

    fn end_range(&mut self, view: View<'_>, range: Range) {
        if range.end > range.at {
            self.free(view, range.at, range.end - range.at);
        }
    }

    /// Takes a piece back that nobody can reach any more.
    #[inline]
    pub(crate) fn free(&mut self, view: View<'_>, at: Ref, words: u32) {
        debug_assert!(at != 0 && words != 0, "a piece");
        self.listed += u64::from(words);
        view.unpoison(at, words.min(2) as usize);
        if words as usize <= LISTED {
            view.store_relaxed(at, self.lists[words as usize]);
            self.lists[words as usize] = at;
            self.sizes |= 1 << (words - 1);
        } else {
            view.store_relaxed(at, self.large);
            view.store_relaxed(at + 1, words);
            self.large = at;
        }
        view.poison(at, words as usize);
    }
}
