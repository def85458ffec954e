//! A place among the entries of a block.
//!
//! The cursor holds no block: whoever holds the block passes it in, so that a cursor can move
//! over a borrowed block as well as over one of the cache. `Hot path`: the current key is kept
//! in one buffer that is reused; stepping back keeps the entries it had to pass.

use std::cmp::Ordering;

use orogen_base::coding::{get_varint32, get_varint64};
use orogen_base::key::TRAILER_LEN;
use orogen_base::{Result, UserComparator, memory};

use super::builder::shared_prefix;
use super::{Block, bad_entry};

/// How the keys of a block are ordered.
#[derive(Clone, Debug)]
pub(crate) enum KeyOrder {
    /// Internal keys over an order of user keys.
    Internal(UserComparator),
    /// User keys alone.
    User(UserComparator),
}

impl KeyOrder {
    /// The shortest key that may stand in the block.
    #[inline]
    pub(crate) fn key_len_min(&self) -> usize {
        match self {
            Self::Internal(_) => TRAILER_LEN,
            Self::User(_) => 0,
        }
    }

    #[inline]
    pub(crate) fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Internal(order) => compare_internal(order, a, b),
            Self::User(order) => order.compare(a, b),
        }
    }
}

/// Orders two internal keys; a key without a trailer is before all that have one.
#[inline]
pub(crate) fn compare_internal(order: &UserComparator, a: &[u8], b: &[u8]) -> Ordering {
    match (a.split_last_chunk::<8>(), b.split_last_chunk::<8>()) {
        (Some((a, s)), Some((b, t))) => order
            .compare(a, b)
            .then_with(|| u64::from_le_bytes(*t).cmp(&u64::from_le_bytes(*s))),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

/// An entry's parts as places in the block.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) shared: u32,
    pub(super) key: u32,
    pub(super) value: u32,
    pub(super) next: u32,
}

/// Reads the head of an entry that has a value length.
#[inline]
pub(super) fn decode_entry(entries: &[u8], at: u32) -> Option<Entry> {
    let head = entries.get(at as usize..)?;
    let (shared, unshared, value_len, n) = match head.first_chunk::<3>() {
        Some(&[a, b, c]) if (a | b | c) < 0x80 => (u32::from(a), u32::from(b), u32::from(c), 3),
        _ => {
            let (shared, i) = get_varint32(head)?;
            let (unshared, j) = get_varint32(&head[i..])?;
            let (value_len, k) = get_varint64(&head[i + j..])?;
            (shared, unshared, u32::try_from(value_len).ok()?, i + j + k)
        }
    };
    let key = at as usize + n;
    let value = key.checked_add(unshared as usize)?;
    let next = value.checked_add(value_len as usize)?;
    if next > entries.len() {
        return None;
    }
    // No overflow: all are at most the length of a block, which fits 32 bits.
    Some(Entry {
        shared,
        key: key as u32,
        value: value as u32,
        next: next as u32,
    })
}

/// An entry that was passed on the way to the one before.
#[derive(Clone, Copy)]
struct Passed {
    at: u32,
    next: u32,
    value: u32,
    key: (u32, u32),
}

const NOWHERE: u32 = u32::MAX;

/// Bytes of the keys that are kept for going back, at most, beside the last one.
const PASSED_BYTES_MAX: usize = 16 << 20;

/// A place among the entries of a block of keys and values.
pub(crate) struct BlockCursor {
    key: Vec<u8>,
    at: u32,
    value: u32,
    next: u32,
    passed: Vec<Passed>,
    passed_keys: Vec<u8>,
}

impl BlockCursor {
    pub(crate) fn new() -> Self {
        Self::with_buffer(Vec::new())
    }

    /// A cursor that keeps its key in `buffer`.
    pub(crate) fn with_buffer(buffer: Vec<u8>) -> Self {
        Self {
            key: buffer,
            at: NOWHERE,
            value: 0,
            next: 0,
            passed: Vec::new(),
            passed_keys: Vec::new(),
        }
    }

    /// The buffer back, for the next cursor.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.key
    }

    #[inline]
    pub(crate) fn valid(&self) -> bool {
        self.at != NOWHERE
    }

    #[inline]
    pub(crate) fn invalidate(&mut self) {
        self.at = NOWHERE;
        self.passed.clear();
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    #[inline]
    pub(crate) fn value_range(&self) -> std::ops::Range<usize> {
        self.value as usize..self.next as usize
    }

    #[inline]
    pub(crate) fn value<'a>(&self, block: &'a Block) -> &'a [u8] {
        block.bytes().get(self.value_range()).unwrap_or_default()
    }

    /// Reads the entry at `at`, whose key follows the key held now.
    #[inline]
    fn enter(&mut self, block: &Block, at: u32, key_len_min: usize) -> Result<bool> {
        let entries = block.entries();
        if at as usize >= entries.len() {
            self.at = NOWHERE;
            return Ok(false);
        }
        let entry = match decode_entry(entries, at) {
            Some(e) if e.shared as usize <= self.key.len() => e,
            _ => return self.damaged(at),
        };
        let suffix = &entries[entry.key as usize..entry.value as usize];
        self.key.truncate(entry.shared as usize);
        self.key.extend_from_slice(suffix);
        if self.key.len() < key_len_min {
            return self.damaged(at);
        }
        self.at = at;
        self.value = entry.value;
        self.next = entry.next;
        Ok(true)
    }

    #[cold]
    fn damaged(&mut self, at: u32) -> Result<bool> {
        self.invalidate();
        Err(bad_entry(at))
    }

    pub(crate) fn seek_to_first(&mut self, block: &Block, order: &KeyOrder) -> Result<bool> {
        self.passed.clear();
        self.key.clear();
        self.enter(block, 0, order.key_len_min())
    }

    pub(crate) fn seek_to_last(&mut self, block: &Block, order: &KeyOrder) -> Result<bool> {
        self.passed.clear();
        self.key.clear();
        if block.num_restarts() == 0 {
            self.at = NOWHERE;
            return Ok(false);
        }
        let end = block.entries().len() as u32;
        let mut at = block.restart(block.num_restarts() - 1);
        if at >= end && at != 0 {
            return self.damaged(at);
        }
        while self.enter(block, at, order.key_len_min())? && self.next < end {
            at = self.next;
        }
        Ok(self.valid())
    }

    /// Moves to the next entry; false at the end.
    #[inline]
    pub(crate) fn next(&mut self, block: &Block, order: &KeyOrder) -> Result<bool> {
        debug_assert!(self.valid());
        if !self.passed.is_empty() {
            self.passed.clear();
        }
        self.enter(block, self.next, order.key_len_min())
    }

    /// Shows the entries behind this one until `visit` gives false, or to what is not whole.
    pub(crate) fn peek(
        &self,
        block: &Block,
        order: &KeyOrder,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) {
        if !self.valid() {
            return;
        }
        let mut ahead = Self::with_buffer(self.key.clone());
        ahead.next = self.next;
        while let Ok(true) = ahead.enter(block, ahead.next, order.key_len_min()) {
            if !visit(&ahead.key, ahead.value(block)) {
                break;
            }
        }
    }

    /// Moves to the entry before; false at the start.
    pub(crate) fn prev(&mut self, block: &Block, order: &KeyOrder) -> Result<bool> {
        debug_assert!(self.valid());
        if self.passed.is_empty() {
            self.pass_entries_before(block, order)?;
        }
        let Some(p) = self.passed.pop() else {
            self.at = NOWHERE;
            return Ok(false);
        };
        self.key.clear();
        self.key
            .extend_from_slice(&self.passed_keys[p.key.0 as usize..p.key.1 as usize]);
        (self.at, self.value, self.next) = (p.at, p.value, p.next);
        Ok(true)
    }

    /// Bytes of keys that are kept for going back.
    #[cfg(test)]
    pub(super) fn passed_bytes(&self) -> usize {
        self.passed_keys.capacity()
    }

    /// Lists the entries from the restart point before this entry up to this entry.
    fn pass_entries_before(&mut self, block: &Block, order: &KeyOrder) -> Result<()> {
        let here = self.at;
        let (mut low, mut high) = (0, block.num_restarts());
        while low < high {
            let mid = low + (high - low) / 2;
            if block.restart(mid) < here {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        if low == 0 {
            return Ok(());
        }
        let mut at = block.restart(low - 1);
        self.key.clear();
        self.passed_keys.clear();
        while at < here {
            if !self.enter(block, at, order.key_len_min())? {
                break;
            }
            if self.passed_keys.len() + self.key.len() > PASSED_BYTES_MAX {
                // Those before are listed anew when they are needed.
                self.passed.clear();
                self.passed_keys.clear();
            }
            let start = self.passed_keys.len() as u32;
            memory::append(&mut self.passed_keys, &self.key, "keys of a block")?;
            let key = (start, self.passed_keys.len() as u32);
            self.passed.push(Passed {
                at,
                next: self.next,
                value: self.value,
                key,
            });
            at = self.next;
        }
        Ok(())
    }

    /// Moves to the first entry that is not before `target`; false if there is none.
    pub(crate) fn seek(&mut self, block: &Block, target: &[u8], order: &KeyOrder) -> Result<bool> {
        self.passed.clear();
        self.key.clear();
        let n = block.num_restarts();
        if n == 0 {
            self.at = NOWHERE;
            return Ok(false);
        }
        let entries = block.entries();
        let (mut low, mut high) = (0, n - 1);
        while low < high {
            let mid = low + (high - low).div_ceil(2);
            let at = block.restart(mid);
            let key = match decode_entry(entries, at) {
                Some(e) if e.shared == 0 => &entries[e.key as usize..e.value as usize],
                _ => return self.damaged(at),
            };
            match order.compare(key, target) {
                Ordering::Less => low = mid,
                Ordering::Equal => (low, high) = (mid, mid),
                Ordering::Greater => high = mid - 1,
            }
        }
        let start = block.restart(low);
        if let KeyOrder::Internal(user_order) = order
            && user_order.is_bytewise()
        {
            match self.scan_bytes(block, start, target)? {
                Scanned::At => return Ok(true),
                Scanned::End => return Ok(false),
                Scanned::Newer => return self.scan(block, self.next, target, order),
                Scanned::Unknown => self.key.clear(),
            }
        }
        self.scan(block, start, target, order)
    }

    /// Moves to the first entry from `at` on that is not before `target`; the key held is that
    /// of the entry before `at`.
    fn scan(
        &mut self,
        block: &Block,
        mut at: u32,
        target: &[u8],
        order: &KeyOrder,
    ) -> Result<bool> {
        while self.enter(block, at, order.key_len_min())? {
            if order.compare(&self.key, target) != Ordering::Less {
                return Ok(true);
            }
            at = self.next;
        }
        Ok(false)
    }

    /// As `scan` from a restart point, for internal keys in the order of bytes: without putting
    /// together the keys that are passed.
    ///
    /// Of the user key before, all that is kept is how many bytes it has in common with the one
    /// that is sought, `matched`; it is before it, so its next byte is smaller, or there is none.
    /// A key that shares more than `matched` bytes with the one before has that smaller byte
    /// too. Any other begins as the sought one does, and the bytes of its own decide.
    fn scan_bytes(&mut self, block: &Block, mut at: u32, target: &[u8]) -> Result<Scanned> {
        let Some((sought, trailer)) = target.split_last_chunk::<TRAILER_LEN>() else {
            return Ok(Scanned::Unknown);
        };
        let entries = block.entries();
        let (mut matched, mut user_len_before, mut len_before) = (0, 0, 0);
        while (at as usize) < entries.len() {
            let entry = match decode_entry(entries, at) {
                Some(e) if e.shared as usize <= len_before => e,
                _ => return self.damaged(at).map(|_| Scanned::End),
            };
            let shared = entry.shared as usize;
            let own = &entries[entry.key as usize..entry.value as usize];
            len_before = shared + own.len();
            let Some(user_len) = len_before.checked_sub(TRAILER_LEN) else {
                return self.damaged(at).map(|_| Scanned::End);
            };
            if shared > matched {
                if matched == user_len_before {
                    // It shares bytes of a trailer.
                    return Ok(Scanned::Unknown);
                }
                matched = matched.min(user_len);
            } else {
                let from = shared.min(user_len);
                let (own_user, rest) = (&own[..user_len - from], &sought[from..]);
                let common = shared_prefix(own_user, rest);
                matched = from + common;
                let is_before = match (own_user.get(common), rest.get(common)) {
                    (Some(a), Some(b)) => a < b,
                    (a, b) => a.is_none() && b.is_some(),
                };
                if !is_before {
                    // What it shares is shared with the sought key too.
                    self.key.clear();
                    self.key.extend_from_slice(&sought[..shared]);
                    self.key.extend_from_slice(own);
                    (self.at, self.value, self.next) = (at, entry.value, entry.next);
                    let is_newer = user_len == sought.len()
                        && common == rest.len()
                        && orogen_base::key::trailer(&self.key) > u64::from_le_bytes(*trailer);
                    return Ok(if is_newer {
                        Scanned::Newer
                    } else {
                        Scanned::At
                    });
                }
            }
            user_len_before = user_len;
            at = entry.next;
        }
        self.at = NOWHERE;
        Ok(Scanned::End)
    }
}

/// How `scan_bytes` ended.
enum Scanned {
    /// On the first entry that is not before the target.
    At,
    /// On a version of the sought key that is too new: the target is behind it.
    Newer,
    /// Behind all entries.
    End,
    /// It cannot tell.
    Unknown,
}
