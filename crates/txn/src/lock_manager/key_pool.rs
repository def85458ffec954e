//! Bytes of locked keys: one growing block, freed pieces in lists by size.
//!
//! 1. A piece is a whole number of units of 8 bytes and begins at one; a key knows its length.
//! 2. A freed piece holds the place of the next free one of its size in its first four bytes.
//! 3. Sizes up to [`EXACT`] units have a list each; larger ones are rounded up to powers of two.
//!
//! `Hot path`: a piece is taken from its list or from the end, without a search.

use orogen_base::{Result, memory};

/// Bytes of a unit.
const UNIT: usize = 8;
/// Units of the largest pieces that have a list for their very size.
const EXACT: usize = 32;
/// Lists: exact sizes from 1 on, then powers of two up to 2^29 units, the longest key.
const LISTS: usize = EXACT + 24;
const NONE: u32 = u32::MAX;
/// A pool of more bytes gives them back when it is cleared.
const KEPT_BYTES_MAX: usize = 64 << 10;

pub(crate) struct KeyPool {
    bytes: Vec<u8>,
    free: [u32; LISTS],
}

/// The list for keys of `len` bytes, and the units of its pieces.
fn class(len: usize) -> (usize, usize) {
    let units = len.div_ceil(UNIT).max(1);
    if units <= EXACT {
        return (units - 1, units);
    }
    let rounded = units.next_power_of_two();
    let above = (rounded / EXACT).trailing_zeros() as usize;
    (EXACT + above - 1, rounded)
}

impl KeyPool {
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::new(),
            free: [NONE; LISTS],
        }
    }

    /// Bytes that a key takes here.
    pub(crate) fn cost(len: usize) -> usize {
        class(len).1 * UNIT
    }

    /// Copies a key; gives the place in units.
    ///
    /// # Errors
    /// `NoMemory`, also for more than 32 GiB; nothing has changed.
    pub(crate) fn add(&mut self, key: &[u8]) -> Result<u32> {
        let (list, units) = class(key.len());
        let place = self.free[list];
        let at = if place == NONE {
            let at = self.bytes.len();
            if at / UNIT >= NONE as usize {
                return Err(memory::refused("keys of locks", at));
            }
            memory::reserve(&mut self.bytes, units * UNIT, "keys of locks")?;
            self.bytes.resize(at + units * UNIT, 0);
            at
        } else {
            let at = place as usize * UNIT;
            self.free[list] = link(&self.bytes[at..]);
            at
        };
        self.bytes[at..at + key.len()].copy_from_slice(key);
        Ok((at / UNIT) as u32)
    }

    /// The key of `len` bytes at `place`.
    pub(crate) fn get(&self, place: u32, len: u32) -> &[u8] {
        &self.bytes[place as usize * UNIT..][..len as usize]
    }

    /// Frees the piece of a key of `len` bytes.
    pub(crate) fn free(&mut self, place: u32, len: u32) {
        let list = class(len as usize).0;
        let next = self.free[list].to_le_bytes();
        self.bytes[place as usize * UNIT..][..next.len()].copy_from_slice(&next);
        self.free[list] = place;
    }

    /// Bytes that it has allocated.
    pub(crate) fn capacity_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets all pieces, if there are so many that their memory is worth giving back.
    pub(crate) fn clear_if_large(&mut self) {
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            *self = Self::new();
        }
    }
}

fn link(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(NONE, |next| u32::from_le_bytes(*next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_has_a_list_whose_pieces_hold_it() {
        for len in (0..5000).chain([1 << 20, (1 << 20) + 1, u32::MAX as usize]) {
            let (list, units) = class(len);
            assert!(list < LISTS && units * UNIT >= len && units > 0, "{len}");
            assert!(len <= EXACT * UNIT || units * UNIT < 2 * len + UNIT);
        }
        // Keys of one list fit each other's pieces.
        let mut sizes = [0; LISTS];
        for len in 0..100_000 {
            let (list, units) = class(len);
            assert!(sizes[list] == 0 || sizes[list] == units);
            sizes[list] = units;
        }
    }

    #[test]
    fn freed_pieces_are_used_again_and_keys_stay_whole() {
        let mut pool = KeyPool::new();
        let mut live: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut seed = 1u64;
        let mut grown = 0;
        for round in 0..20_000u32 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (seed >> 33) as usize;
            if live.len() > 200 || (draw.is_multiple_of(3) && !live.is_empty()) {
                let (place, key) = live.swap_remove(draw % live.len());
                assert_eq!(pool.get(place, key.len() as u32), key);
                pool.free(place, key.len() as u32);
            } else {
                let key = vec![round as u8; draw % 700];
                live.push((pool.add(&key).unwrap(), key));
            }
            if round == 10_000 {
                grown = pool.bytes.len();
            }
        }
        for (place, key) in &live {
            assert_eq!(pool.get(*place, key.len() as u32), *key);
        }
        assert!(pool.bytes.len() < grown * 2, "freed pieces are not used");
    }
}
