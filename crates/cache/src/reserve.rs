//! Memory beside the cache that is taken from its capacity.
//!
//! What one bound is to hold but is no cached value, such as a window that is read ahead or a
//! table that is being written, is reserved here before it is used, and the cache gives way.
//!
//! 1. `reserved` is the sum of all reservations; the shards share what the capacity has beyond
//!    `withdrawn`, and `withdrawn >= reserved` whenever a reservation returns.
//! 2. `withdrawn` is a little more than is reserved, and falls only when much was given back: so
//!    reservations that come and go touch no shard.
//! 3. Who can do with less asks by [`Reservation::try_grow`], and is refused what would take half of
//!    the capacity; who cannot asks by [`Reservation::set`].

use std::sync::Arc;

use orogen_base::sync::atomic::Ordering;

use crate::resident::Leaving;
use crate::{Cache, SHARDS_MAX};

/// One part in so many of the capacity is withdrawn beyond what is reserved.
const MARGIN_PART: usize = 256;

/// Times that shares are told anew while what is held changes by that.
const SIZINGS_MAX: usize = 4;

/// Where only what is held stands in the way, it is looked at for each so many who are refused.
const REFUSED_LOOK_EVERY: usize = 16;

impl<V: Send + Sync + 'static> Cache<V> {
    /// Bytes that are reserved beside the cache.
    #[must_use]
    pub fn reserved_usage(&self) -> usize {
        self.reserved.load(Ordering::Relaxed)
    }

    /// True if `more` bytes leave half of the capacity to cached values.
    fn has_room(&self, more: usize) -> bool {
        let taken = self.reserved_usage().saturating_add(more);
        let half = self.capacity() / 2;
        // Whoever holds values that left the cache takes from the same bound.
        let fits = |held: usize| taken.saturating_add(held) <= half;
        let looks = || {
            let refused = self.refused.fetch_add(1, Ordering::Relaxed);
            refused.is_multiple_of(REFUSED_LOOK_EVERY)
        };
        fits(self.held_about()) || (taken <= half && looks() && fits(self.held_usage()))
    }

    /// [`Self::held_usage`] as of the last look at what is held, which may be more; cheaper.
    #[must_use]
    pub fn held_about(&self) -> usize {
        self.shards.iter().map(|s| s.held_about()).sum()
    }

    fn reserve(&self, bytes: usize) {
        let reserved = self.reserved.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if reserved > self.withdrawn.load(Ordering::SeqCst) {
            self.size_shards();
        }
    }

    fn give_back(&self, bytes: usize) {
        let reserved = self.reserved.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if !self.is_little_withdrawn(reserved) {
            self.size_shards();
        }
    }

    /// True if not much more is withdrawn than is `reserved`.
    fn is_little_withdrawn(&self, reserved: usize) -> bool {
        let margin = self.capacity() / MARGIN_PART;
        reserved + 4 * margin >= self.withdrawn.load(Ordering::SeqCst)
    }

    /// Tells the shards what is theirs.
    pub(crate) fn size_shards(&self) {
        let mut leaving = Leaving::new();
        let sizing = self.sizing.lock();
        // Who reserves goes on where enough is withdrawn: that is said after the shards have given it up, and taken back before
        // they have it.
        loop {
            let capacity = self.capacity();
            let withdrawn = match self.reserved.load(Ordering::SeqCst) {
                // All is the shards'.
                0 => 0,
                reserved => reserved + capacity / MARGIN_PART,
            };
            let rest = capacity.saturating_sub(withdrawn);
            if withdrawn > self.withdrawn.load(Ordering::SeqCst) {
                self.share_out(rest, &mut leaving);
                self.withdrawn.store(withdrawn, Ordering::SeqCst);
                // Who gave much back before this was said has left it to us.
                if self.is_little_withdrawn(self.reserved.load(Ordering::SeqCst)) {
                    break;
                }
                continue;
            }
            self.withdrawn.store(withdrawn, Ordering::SeqCst);
            // Somebody may have found enough the moment before.
            if self.reserved.load(Ordering::SeqCst) <= withdrawn {
                self.share_out(rest, &mut leaving);
                break;
            }
        }
        drop(sizing);
        // That may take long, and ask the cache for something.
        drop(leaving);
    }

    /// Gives each shard its share of `rest` bytes; under the lock. `leaving` gets what had to go.
    fn share_out(&self, rest: usize, leaving: &mut Leaving<V>) {
        let mut share = None;
        for _ in 0..SIZINGS_MAX {
            // What a shard gives up may be held.
            let fair = self.fair_share(rest);
            if share == Some(fair) {
                break;
            }
            for shard in &self.shards {
                shard.set_capacity(fair, leaving);
            }
            share = Some(fair);
        }
    }

    /// Has the other shards give way to what one holds beyond its share, if that `changed`.
    pub(crate) fn spread_overdraft(&self, changed: bool) {
        if changed && self.shards.len() > 1 {
            self.size_shards();
        }
    }

    /// What each shard may have of `rest` bytes, where those of which more is held get nothing for cached
    /// values.
    fn fair_share(&self, rest: usize) -> usize {
        let mut held = [0; SHARDS_MAX];
        let held = &mut held[..self.shards.len()];
        for (held, shard) in held.iter_mut().zip(&self.shards) {
            *held = shard.held_about();
        }
        held.sort_unstable_by(|a, b| b.cmp(a));
        let (mut left, mut shards) = (rest, held.len());
        for &held in &*held {
            if held <= left / shards || shards == 1 {
                break;
            }
            left = left.saturating_sub(held);
            shards -= 1;
        }
        left / shards
    }
}

/// Bytes beside a cache that are taken from its capacity until this is dropped.
pub struct Reservation<V: Send + Sync + 'static> {
    cache: Arc<Cache<V>>,
    bytes: usize,
}

impl<V: Send + Sync + 'static> Reservation<V> {
    /// Nothing yet.
    #[must_use]
    pub fn new(cache: Arc<Cache<V>>) -> Self {
        Self { cache, bytes: 0 }
    }

    /// Bytes that are reserved.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `bytes` in all, more or less than before, whatever the cache has left.
    pub fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.cache.reserve(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.cache.give_back(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Reserves `bytes` in all if that leaves half of the capacity to cached values; else changes
    /// nothing. At once granted to several who ask at the same moment, it may be a little more.
    #[must_use]
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let granted = bytes <= self.bytes || self.cache.has_room(bytes - self.bytes);
        if granted && bytes > self.bytes {
            self.set(bytes);
        }
        granted
    }

    /// False if by now more is taken than [`Self::try_grow`] would grant: give some back.
    #[must_use]
    pub fn is_granted_still(&self) -> bool {
        self.cache.has_room(0)
    }
}

impl<V: Send + Sync + 'static> Drop for Reservation<V> {
    fn drop(&mut self) {
        self.set(0);
    }
}
