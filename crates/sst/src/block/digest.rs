//! The first bytes of an index's keys, apart from the index: a search touches few cache lines.
//!
//! A binary search of an index block waits for two lines of memory at each step, the restart
//! array's and the key's. Here each key is one word, its first eight bytes behind what all keys
//! begin with, and every 64th word stands once more in a small array that stays in the cache.
//! The words narrow the search down to the few keys that share their word with the target: most
//! often there is none, and the words alone say which block it is. Where the blocks stand one
//! behind the other, as they do in most tables, a word of half the size tells where each begins,
//! and a lookup does not touch the index at all. Only for the plain order of bytes. `Hot path`.

use orogen_base::memory;
use orogen_base::search::leading;

use super::index::{IndexCursor, restart_key};
use super::{Block, IndexFormat, KeyOrder};
use crate::footer::{BLOCK_TRAILER_LEN, BlockHandle};
use crate::prefetch::prefetch;

/// Below so many keys the block itself is as fast.
const KEYS_MIN: u32 = 64;
const STRIDE: usize = 64;
/// Words in a line of memory.
const LINE_WORDS: usize = 8;

/// The words of an index's keys.
pub(crate) struct IndexDigest {
    prefix: Vec<u8>,
    /// Each 64th word.
    tops: Vec<u64>,
    words: Vec<u64>,
    /// Where each block begins, and behind them where the next one would; empty where that does
    /// not say it all.
    offsets: Vec<u32>,
}

/// What the words tell of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// The number of the first entry of the index that is not before the key.
    Entry(u32),
    /// All entries are before the key.
    AfterAll,
    /// The restart points among which the last one before the key is, or the first if there is
    /// none before.
    Among(u32, u32),
}

/// The first eight bytes as a number that orders as they do; zeros where there are fewer.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match bytes.first_chunk() {
        Some(b) => u64::from_be_bytes(*b),
        None => bytes
            .iter()
            .enumerate()
            .fold(0, |w, (i, &b)| w | u64::from(b) << (56 - 8 * i)),
    }
}

impl IndexDigest {
    /// The digest of an index, if it can have one.
    pub(crate) fn new(block: &Block, format: &IndexFormat) -> Option<Self> {
        let (order, trailer) = match &format.order {
            KeyOrder::User(order) => (order, 0),
            KeyOrder::Internal(order) => (order, orogen_base::key::TRAILER_LEN),
        };
        let n = block.num_restarts();
        if n < KEYS_MIN || !order.is_bytewise() {
            return None;
        }
        let key = |i| {
            let key = restart_key(block, block.restart(i), format.delta_values)?;
            key.len().checked_sub(trailer).map(|len| &key[..len])
        };
        // Keys rise, so what the first and the last share all share.
        let (first, last) = (key(0)?, key(n - 1)?);
        let prefix = first[..super::builder::shared_prefix(first, last)].to_vec();
        // Without it searches go the long way.
        let mut words = memory::with_capacity(n as usize, "index digest").ok()?;
        for i in 0..n {
            // A key without the prefix is damage; the search in the block will meet it.
            words.push(word(key(i)?.strip_prefix(&prefix[..])?));
        }
        if !words.is_sorted() {
            return None;
        }
        let mut tops = memory::with_capacity(words.len().div_ceil(STRIDE), "index digest").ok()?;
        tops.extend(words.iter().step_by(STRIDE));
        let offsets = block_offsets(block, format).unwrap_or_default();
        Some(Self {
            prefix,
            tops,
            words,
            offsets,
        })
    }

    /// The group of words in which `target` is, and asks the processor for it.
    #[inline]
    fn group(&self, target: u64) -> std::ops::Range<usize> {
        let start = self.tops.partition_point(|&w| w < target).saturating_sub(1) * STRIDE;
        let end = (start + STRIDE).min(self.words.len());
        // All at once: a search that asks for one line after the other waits for each.
        for at in (start..end).step_by(LINE_WORDS) {
            prefetch(&self.words, at);
        }
        for at in (start..end).step_by(2 * LINE_WORDS) {
            prefetch(&self.offsets, at);
        }
        start..end
    }

    /// Asks the processor for what `locate` will look at.
    #[inline]
    pub(crate) fn prefetch(&self, user_key: &[u8]) {
        if let Some(rest) = user_key.strip_prefix(&self.prefix[..]) {
            self.group(word(rest));
        }
    }

    /// What the words tell of a user key.
    #[inline]
    pub(crate) fn locate(&self, user_key: &[u8]) -> Located {
        let len = self.words.len();
        let Some(rest) = user_key.strip_prefix(&self.prefix[..]) else {
            return match *user_key < self.prefix[..] {
                true if self.is_one_each() => Located::Entry(0),
                false if self.is_one_each() => Located::AfterAll,
                true => Located::Among(0, 0),
                false => Located::Among(len as u32 - 1, len as u32 - 1),
            };
        };
        let target = word(rest);
        let group = self.group(target);
        let below = group.start + self.words[group].partition_point(|&w| w < target);
        let upto = below + leading(&self.words[below..], target);
        if below == upto && self.is_one_each() {
            return match below < len {
                true => Located::Entry(below as u32),
                false => Located::AfterAll,
            };
        }
        let low = below.saturating_sub(1);
        Located::Among(low as u32, upto.saturating_sub(1).max(low) as u32)
    }

    /// True if each entry of the index is a restart point.
    #[inline]
    fn is_one_each(&self) -> bool {
        !self.offsets.is_empty()
    }

    /// The block of an entry that [`Self::locate`] gave.
    #[inline]
    pub(crate) fn block(&self, entry: u32) -> BlockHandle {
        let at = entry as usize;
        match self.offsets.get(at..at + 2) {
            Some(&[start, next]) => BlockHandle {
                offset: u64::from(start),
                size: u64::from(next - start) - BLOCK_TRAILER_LEN as u64,
            },
            _ => BlockHandle::default(),
        }
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.prefix.len() + 8 * (self.tops.len() + self.words.len()) + 4 * self.offsets.len()
    }
}

/// Where the blocks of an index begin and the last one ends, if each entry is a restart point
/// and each block stands right behind the one before.
fn block_offsets(block: &Block, format: &IndexFormat) -> Option<Vec<u32>> {
    let entries = block.num_restarts() as usize;
    let mut offsets = memory::with_capacity(entries + 1, "index digest").ok()?;
    let mut cursor = IndexCursor::with_buffer(Vec::new());
    let mut end = None;
    let mut on = cursor.seek_to_first(block, format).ok()?;
    while on {
        let handle = cursor.handle();
        if end.is_some_and(|end| end != handle.offset) {
            return None;
        }
        offsets.push(u32::try_from(handle.offset).ok()?);
        end = handle.end();
        on = cursor.next(block, format).ok()?;
    }
    offsets.push(u32::try_from(end?).ok()?);
    (offsets.len() == block.num_restarts() as usize + 1).then_some(offsets)
}
