//! The first bytes of an index's keys, apart from the index: a search touches few cache lines.
//!
//! A binary search of an index block waits for two lines of memory at each step, the restart
//! array's and the key's. Here each key is one word, its first eight bytes behind what all keys
//! begin with, and every 64th word stands once more in a small array that stays in the cache.
//! The words narrow the search down to the few keys that share their word with the target.
//! Only for the plain order of bytes. `Hot path`.

use super::index::restart_key;
use super::{Block, IndexFormat, KeyOrder};

/// Below so many keys the block itself is as fast.
const KEYS_MIN: u32 = 64;
const STRIDE: usize = 64;

/// The words of an index's keys.
pub(crate) struct IndexDigest {
    prefix: Vec<u8>,
    /// Each 64th word.
    tops: Vec<u64>,
    words: Vec<u64>,
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
        let mut words = Vec::with_capacity(n as usize);
        for i in 0..n {
            // A key without the prefix is damage; the search in the block will meet it.
            words.push(word(key(i)?.strip_prefix(&prefix[..])?));
        }
        if !words.is_sorted() {
            return None;
        }
        let tops = words.iter().step_by(STRIDE).copied().collect();
        Some(Self {
            prefix,
            tops,
            words,
        })
    }

    /// The restart points among which the last one before `user_key` is, or the first if there
    /// is none before.
    #[inline]
    pub(crate) fn narrow(&self, user_key: &[u8]) -> (u32, u32) {
        let last = self.words.len() - 1;
        let Some(rest) = user_key.strip_prefix(&self.prefix[..]) else {
            let at = if *user_key < self.prefix[..] { 0 } else { last };
            return (at as u32, at as u32);
        };
        let target = word(rest);
        let top = self.tops.partition_point(|&w| w < target).saturating_sub(1) * STRIDE;
        let end = (top + STRIDE).min(self.words.len());
        let below = top + self.words[top..end].partition_point(|&w| w < target);
        let mut upto = below;
        while upto < self.words.len() && self.words[upto] == target {
            upto += 1;
        }
        let low = below.saturating_sub(1);
        (low as u32, upto.saturating_sub(1).max(low) as u32)
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.prefix.len() + 8 * (self.tops.len() + self.words.len())
    }
}
