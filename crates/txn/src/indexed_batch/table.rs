//! A hash table of the newest entry of each key.
//!
//! Open addressing, linear probing, at most half full. A slot has the hash of the key in its upper half and the entry, plus one,
//! in its lower; 0 is empty. The keys themselves lie in the batch: who asks compares them.
//! Keys go in the reverse of the order in which they came, so the key that goes ends every run of slots that it is in, and its
//! slot is emptied without more. [`Table::grow`] puts them into the new table in the order in which they came, for that reason.

use orogen_base::{Result, memory};

use super::WHAT;

/// Slots of the smallest table.
const SLOTS_MIN: usize = 16;

#[derive(Default)]
pub(super) struct Table {
    /// None, or a power of two.
    slots: Vec<u64>,
    keys: usize,
}

/// A slot that has a key, or in which it would be.
#[derive(Clone, Copy)]
pub(super) struct Slot(usize);

impl Table {
    pub(super) fn memory_usage(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// Forgets everything and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.keys = 0;
    }

    /// True if one more key finds a slot.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        (self.keys + 1) * 2 <= self.slots.len()
    }

    /// Makes room for `keys` keys, at least one more than there are. `entries` gives hash, entry before and entry of all that is there,
    /// in the order in which it came; entries are given plus one.
    ///
    /// # Errors
    /// `NoMemory`; nothing has changed.
    pub(super) fn grow(
        &mut self,
        keys: usize,
        entries: impl Iterator<Item = (u32, u32, u32)>,
    ) -> Result<()> {
        let keys = keys.max(self.keys + 1);
        let wanted = (keys * 2).next_power_of_two().max(SLOTS_MIN);
        let more = wanted.saturating_sub(self.slots.len());
        memory::reserve(&mut self.slots, more, WHAT)?;
        self.slots.clear();
        self.slots.resize(wanted, 0);
        for (hash, before, entry) in entries {
            let at = match self.find(hash, |other| Ok(before != 0 && other == before))? {
                Ok((at, _)) | Err(at) => at,
            };
            self.set(at, hash, entry);
        }
        Ok(())
    }

    /// The slot of a key, and its newest entry; or the slot in which it would be. There is one if the table has any.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u32,
        mut is_it: impl FnMut(u32) -> Result<bool>,
    ) -> Result<std::result::Result<(Slot, u32), Slot>> {
        let Some(mask) = self.slots.len().checked_sub(1) else {
            return Ok(Err(Slot(0)));
        };
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Ok(Err(Slot(at)));
            }
            if (slot >> 32) as u32 == hash && is_it(slot as u32)? {
                return Ok(Ok((Slot(at), slot as u32)));
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a key that was not found, where there is room.
    #[inline]
    pub(super) fn add(&mut self, at: Slot, hash: u32, entry: u32) {
        self.keys += 1;
        self.set(at, hash, entry);
    }

    /// Makes an entry the newest of the key of this slot.
    #[inline]
    pub(super) fn set(&mut self, Slot(at): Slot, hash: u32, entry: u32) {
        self.slots[at] = u64::from(hash) << 32 | u64::from(entry);
    }

    /// Takes the key away that came last.
    pub(super) fn remove_last(&mut self, Slot(at): Slot) {
        self.keys -= 1;
        self.slots[at] = 0;
    }
}
