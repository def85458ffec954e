//! The keys of one stripe and who holds them: the table behind a stripe's mutex.
//!
//! 1. An entry exists as long as somebody holds its key or waits for it; its number does not change.
//! 2. `holder` is 0 only where somebody waits and nobody holds, and where the entry is free: who has
//!    its number still, of a lock that was stolen, is not taken for a holder.
//! 3. An exclusive entry has one holder, and no list of further ones.
//! 4. Which entry a key has is found by its hash, of which 32 bits are kept: growing hashes nothing.
//!
//! `Hot path`.

use orogen_base::{Result, memory};

use super::key_pool::KeyPool;
use super::owner::Record;
use super::tally::Tally;
use super::{LockMode, TxnId};

/// No entry, no node.
pub(crate) const NONE: u32 = u32::MAX;
const EXCLUSIVE: u32 = 1 << 31;
/// Bytes of an entry, its bucket and its record in the list of the transaction that holds it.
const ENTRY_COST: usize = size_of::<Entry>() + 4 + size_of::<Record>();
/// Bytes of a further holder, and of its record.
const SHARER_COST: usize = size_of::<Sharer>() + size_of::<Record>();
/// An empty table of more entries gives their memory back.
const KEPT_ENTRIES_MAX: usize = 1024;

struct Entry {
    hash: u32,
    /// The next entry in the same bucket, or in the list of free ones.
    next: u32,
    key_place: u32,
    key_len: u32,
    holder: TxnId,
    /// List of further holders.
    sharers: u32,
    /// Top bit: held exclusively. The others: the queue, 0 if nobody waits.
    state: u32,
}

const _: () = assert!(size_of::<Entry>() == 32);

struct Sharer {
    holder: TxnId,
    next: u32,
}

/// What came of a request that touches one stripe only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fast {
    /// Held in this mode or a stronger one already.
    Held,
    /// Granted; nobody had it, or those who have it share it.
    Granted(u32),
    /// It can be granted beside those who share it.
    Shareable(u32),
    /// It was held shared by this transaction alone, and is exclusive now.
    Upgraded(u32),
    /// Nobody has this key.
    Absent,
    /// It is contended: to be decided under the mutex of the waits.
    Contended,
}

/// A table of keys.
pub(crate) struct Stripe {
    buckets: Vec<u32>,
    entries: Vec<Entry>,
    free_entries: u32,
    live: u32,
    free_sharers: u32,
    sharers: Vec<Sharer>,
    /// Of its keys: who holds them, and who waits.
    tally: Tally,
    keys: KeyPool,
}

impl Stripe {
    pub(crate) fn new() -> Self {
        Self {
            buckets: Vec::new(),
            entries: Vec::new(),
            free_entries: NONE,
            live: 0,
            sharers: Vec::new(),
            free_sharers: NONE,
            keys: KeyPool::new(),
            tally: Tally::default(),
        }
    }

    /// Bytes that an entry for a key of so many counts.
    pub(crate) fn cost(key_len: usize) -> usize {
        ENTRY_COST + KeyPool::cost(key_len)
    }

    /// Keys in the table.
    pub(crate) fn len(&self) -> usize {
        self.live as usize
    }

    /// What its keys count, with those who wait for them.
    #[inline]
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// What it counts more once a transaction is granted an entry in any mode.
    #[inline]
    pub(crate) fn cost_of_grant(&self, at: u32, txn: TxnId) -> Tally {
        match self.entries[at as usize].holder {
            0 => Tally::lock(0),
            _ if self.holds(at, txn) => Tally::default(),
            _ => Tally::lock(SHARER_COST),
        }
    }

    /// Counts one that waits for an entry.
    pub(crate) fn add_wait(&mut self, cost: Tally) {
        self.tally.add(cost);
    }

    /// Undoes [`Self::add_wait`].
    pub(crate) fn remove_wait(&mut self, cost: Tally) {
        self.tally.sub(cost);
    }

    /// Bytes that its lists have allocated.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<u32>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.sharers.capacity() * size_of::<Sharer>()
            + self.keys.capacity_bytes()
    }

    #[inline]
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The entry of a key.
    #[inline]
    pub(crate) fn find(&self, hash: u32, key: &[u8]) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let mut at = self.buckets[self.bucket(hash)];
        while at != NONE {
            let entry = &self.entries[at as usize];
            if entry.hash == hash && self.keys.get(entry.key_place, entry.key_len) == key {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    /// Makes an entry that `holder` (0: nobody) holds in `mode`; the key must have none.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    #[inline]
    pub(crate) fn insert(
        &mut self,
        hash: u32,
        key: &[u8],
        holder: TxnId,
        mode: LockMode,
    ) -> Result<u32> {
        if self.live as usize == self.buckets.len() {
            self.grow()?;
        }
        if self.free_entries == NONE {
            memory::reserve(&mut self.entries, 1, "locks")?;
        }
        let key_place = self.keys.add(key)?;
        let bucket = self.bucket(hash);
        let entry = Entry {
            hash,
            next: self.buckets[bucket],
            key_place,
            key_len: key.len() as u32,
            holder,
            sharers: NONE,
            state: if mode == LockMode::Exclusive && holder != 0 {
                EXCLUSIVE
            } else {
                0
            },
        };
        let at = self.free_entries;
        let at = if at == NONE {
            self.entries.push(entry);
            self.entries.len() as u32 - 1
        } else {
            let slot = &mut self.entries[at as usize];
            self.free_entries = slot.next;
            *slot = entry;
            at
        };
        self.buckets[bucket] = at;
        self.live += 1;
        self.tally.add(Tally {
            locks: usize::from(holder != 0),
            bytes: Self::cost(key.len()),
        });
        Ok(at)
    }

    #[cold]
    fn grow(&mut self) -> Result<()> {
        let count = (self.buckets.len() * 2).max(16);
        let mut buckets = Vec::new();
        memory::reserve(&mut buckets, count, "locks")?;
        buckets.resize(count, NONE);
        for &head in &self.buckets {
            let mut at = head;
            while at != NONE {
                let entry = &mut self.entries[at as usize];
                let next = entry.next;
                let bucket = &mut buckets[entry.hash as usize & (count - 1)];
                entry.next = *bucket;
                *bucket = at;
                at = next;
            }
        }
        self.buckets = buckets;
        Ok(())
    }

    /// Frees the entry if nobody holds it and nobody waits.
    #[inline]
    pub(crate) fn remove_if_unused(&mut self, at: u32) {
        let entry = &self.entries[at as usize];
        if entry.holder != 0 || entry.state & !EXCLUSIVE != 0 {
            return;
        }
        let (next, place, len) = (entry.next, entry.key_place, entry.key_len);
        let bucket = self.bucket(entry.hash);
        let mut before = self.buckets[bucket];
        if before == at {
            self.buckets[bucket] = next;
        } else {
            while self.entries[before as usize].next != at {
                before = self.entries[before as usize].next;
            }
            self.entries[before as usize].next = next;
        }
        self.keys.free(place, len);
        let slot = &mut self.entries[at as usize];
        slot.next = self.free_entries;
        self.free_entries = at;
        self.live -= 1;
        self.tally.sub(Tally::bytes(Self::cost(len as usize)));
        if self.live == 0 && self.entries.capacity() > KEPT_ENTRIES_MAX {
            *self = Self::new();
        } else if self.live == 0 {
            self.keys.clear_if_large();
        }
    }

    /// Decides what needs nobody else: see [`Fast`].
    #[inline]
    pub(crate) fn try_fast(&mut self, hash: u32, key: &[u8], txn: TxnId, mode: LockMode) -> Fast {
        let Some(at) = self.find(hash, key) else {
            return Fast::Absent;
        };
        let (free, exclusive) = (self.queue(at) == 0, self.is_exclusive(at));
        if self.holds(at, txn) {
            if exclusive || mode == LockMode::Shared {
                return Fast::Held;
            }
            let alone = self.entries[at as usize].sharers == NONE;
            if alone && free {
                self.entries[at as usize].state |= EXCLUSIVE;
                return Fast::Upgraded(at);
            }
        } else if free && !exclusive && mode == LockMode::Shared {
            return Fast::Shareable(at);
        }
        Fast::Contended
    }

    /// True if the entry is there and held exclusively.
    pub(crate) fn is_exclusive(&self, at: u32) -> bool {
        self.entries[at as usize].state & EXCLUSIVE != 0
    }

    /// The number of the queue of those who wait, 0 if nobody does.
    pub(crate) fn queue(&self, at: u32) -> u32 {
        self.entries[at as usize].state & !EXCLUSIVE
    }

    pub(crate) fn set_queue(&mut self, at: u32, queue: u32) {
        let state = &mut self.entries[at as usize].state;
        *state = *state & EXCLUSIVE | queue;
    }

    /// The key of an entry.
    pub(crate) fn key(&self, at: u32) -> &[u8] {
        let entry = &self.entries[at as usize];
        self.keys.get(entry.key_place, entry.key_len)
    }

    /// Who holds the entry.
    pub(crate) fn holders(&self, at: u32) -> impl Iterator<Item = TxnId> + '_ {
        let entry = &self.entries[at as usize];
        let mut next = entry.sharers;
        let first = (entry.holder != 0).then_some(entry.holder);
        first.into_iter().chain(std::iter::from_fn(move || {
            let sharer = self.sharers.get(next as usize)?;
            next = sharer.next;
            Some(sharer.holder)
        }))
    }

    /// True if `txn` holds the entry. The number may be that of a lock that was stolen.
    #[inline]
    pub(crate) fn holds(&self, at: u32, txn: TxnId) -> bool {
        let Some(entry) = self.entries.get(at as usize) else {
            return false;
        };
        entry.holder == txn
            || (entry.sharers != NONE && self.holders(at).skip(1).any(|holder| holder == txn))
    }

    fn add_sharer(&mut self, at: u32, txn: TxnId) -> Result<()> {
        let node = Sharer {
            holder: txn,
            next: self.entries[at as usize].sharers,
        };
        let free = self.free_sharers;
        let place = if free == NONE {
            memory::push(&mut self.sharers, node, "locks")?;
            self.sharers.len() as u32 - 1
        } else {
            let slot = &mut self.sharers[free as usize];
            self.free_sharers = slot.next;
            *slot = node;
            free
        };
        self.entries[at as usize].sharers = place;
        self.tally.add(Tally::lock(SHARER_COST));
        Ok(())
    }

    /// Makes `txn` a holder in `mode`, or makes its lock exclusive. Nobody may hold it who conflicts.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    pub(crate) fn grant(&mut self, at: u32, txn: TxnId, mode: LockMode) -> Result<()> {
        let entry = &mut self.entries[at as usize];
        if entry.holder == 0 {
            entry.holder = txn;
            self.tally.add(Tally::lock(0));
        } else if !self.holds(at, txn) {
            self.add_sharer(at, txn)?;
        }
        if mode == LockMode::Exclusive {
            debug_assert_eq!(self.entries[at as usize].sharers, NONE);
            self.entries[at as usize].state |= EXCLUSIVE;
        }
        Ok(())
    }

    /// Takes a holder away; false if it is none.
    #[inline]
    pub(crate) fn release(&mut self, at: u32, txn: TxnId) -> bool {
        let Some(entry) = self.entries.get_mut(at as usize) else {
            return false;
        };
        let first = entry.sharers;
        if entry.holder == txn {
            if first == NONE {
                entry.holder = 0;
                entry.state &= !EXCLUSIVE;
                self.tally.sub(Tally::lock(0));
            } else {
                entry.holder = self.sharers[first as usize].holder;
                entry.sharers = self.sharers[first as usize].next;
                self.free_sharer(first);
            }
            return true;
        }
        let (mut before, mut node) = (NONE, first);
        while node != NONE {
            let next = self.sharers[node as usize].next;
            if self.sharers[node as usize].holder == txn {
                if before == NONE {
                    self.entries[at as usize].sharers = next;
                } else {
                    self.sharers[before as usize].next = next;
                }
                self.free_sharer(node);
                return true;
            }
            (before, node) = (node, next);
        }
        false
    }

    fn free_sharer(&mut self, node: u32) {
        self.sharers[node as usize].next = self.free_sharers;
        self.free_sharers = node;
        self.tally.sub(Tally::lock(SHARER_COST));
    }

    /// Makes an exclusive lock shared; false if `txn` does not hold it so.
    pub(crate) fn downgrade(&mut self, at: u32, txn: TxnId) -> bool {
        let Some(entry) = self.entries.get_mut(at as usize) else {
            return false;
        };
        let held = entry.holder == txn && entry.state & EXCLUSIVE != 0;
        if held {
            entry.state &= !EXCLUSIVE;
        }
        held
    }

    /// All entries, in no order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = u32> + '_ {
        self.buckets.iter().flat_map(move |&head| {
            let mut at = head;
            std::iter::from_fn(move || {
                let entry = self.entries.get(at as usize)?;
                let found = at;
                at = entry.next;
                Some(found)
            })
        })
    }
}
