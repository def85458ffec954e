//! An entry of the list: its link, its internal key and its value in one piece of memory.
//!
//! ```text
//! next 8 | lengths 4 | key | value                              key < 2 KiB and value < 1 MiB
//! next 8 | LONG 4 | key length 4 | value length 4 | key | value           else
//! ```
//! `key` is the internal key. `lengths` has that of the key in its low 11 bits and that of the
//! value in the 20 above; `LONG` is the bit that is left. So an entry of 16 + 100 bytes takes 136,
//! and a search mostly needs the first line of the processor's cache only. All but the link is
//! written before the node's address is published and never after.
#![expect(unsafe_code, reason = "nodes lie in arena memory at computed places")]

use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;

use orogen_base::Result;
use orogen_base::key::TRAILER_LEN;
use orogen_base::sync::atomic::{AtomicPtr, Ordering};
use orogen_base::sync::{self, Mistake};

use crate::arena::Arena;

/// The link; lengths, key and value follow it.
#[repr(transparent)]
pub(crate) struct Header(AtomicPtr<Header>);

const KEY_BITS: u32 = 11;
const VALUE_BITS: u32 = 20;
/// Lengths that do not fit follow.
const LONG: u32 = 1 << (KEY_BITS + VALUE_BITS);

/// Bytes before the key.
const SHORT_LEN: usize = size_of::<Header>() + 4;
pub(crate) const LONG_LEN: usize = SHORT_LEN + 8;

/// Where key and value stand, from the node's address on.
#[derive(Clone, Copy)]
struct Place {
    key: usize,
    key_len: usize,
    value_len: usize,
}

/// A node in an arena that lives for `'a`.
pub(crate) struct Node<'a> {
    header: NonNull<Header>,
    arena: PhantomData<&'a Arena>,
}

impl Clone for Node<'_> {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Node<'_> {}

impl PartialEq for Node<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.header == other.header
    }
}

impl<'a> Node<'a> {
    /// Writes a node whose link leads nowhere; `suffix` stands behind the value and counts as part
    /// of it.
    ///
    /// # Errors
    /// `NoMemory`.
    ///
    /// # Panics
    /// If key or value exceed 32-bit lengths; `limits.rs` forbids both.
    #[inline]
    pub(crate) fn allocate(
        arena: &'a Arena,
        user_key: &[u8],
        trailer: u64,
        value: &[u8],
        suffix: &[u8],
    ) -> Result<Self> {
        let key_len = u32::try_from(user_key.len() + TRAILER_LEN).expect("keys are bounded");
        let value_len = value.len() + suffix.len();
        let total_len = u32::try_from(value_len).expect("values are bounded");
        let is_long = key_len >= 1 << KEY_BITS || total_len >= 1 << VALUE_BITS;
        let start = if is_long { LONG_LEN } else { SHORT_LEN };
        let memory = arena.allocate(start + key_len as usize + value_len)?;
        let header = memory.cast::<Header>();
        // SAFETY: the memory is ours alone, big enough, and aligned to 8.
        unsafe { header.write(Header(AtomicPtr::new(std::ptr::null_mut()))) };
        let write = |at: usize, bytes: &[u8]| {
            // SAFETY: all that is written below lies within the piece.
            let place = unsafe { memory.add(at) };
            // SAFETY: as above, and the piece is ours alone.
            unsafe { place.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        };
        if is_long {
            write(size_of::<Header>(), &LONG.to_le_bytes());
            write(SHORT_LEN, &key_len.to_le_bytes());
            write(SHORT_LEN + 4, &total_len.to_le_bytes());
        } else {
            let lengths = key_len | total_len << KEY_BITS;
            write(size_of::<Header>(), &lengths.to_le_bytes());
        }
        write(start, user_key);
        write(start + user_key.len(), &trailer.to_le_bytes());
        write(start + key_len as usize, value);
        write(start + key_len as usize + value.len(), suffix);
        Ok(Self {
            header,
            arena: PhantomData,
        })
    }

    /// The node at an address that [`Self::address`] gave.
    ///
    /// # Safety
    /// The node's arena lives for `'a`.
    #[inline]
    pub(crate) unsafe fn at(address: NonNull<Header>) -> Self {
        Self {
            header: address,
            arena: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn address(self) -> NonNull<Header> {
        self.header
    }

    #[inline]
    fn link(self) -> &'a AtomicPtr<Header> {
        // SAFETY: written by `allocate` before the address was known; lives as long as the arena.
        unsafe { &self.header.as_ref().0 }
    }

    /// Four bytes that [`Self::allocate`] wrote.
    ///
    /// # Safety
    /// They lie before the key.
    #[inline]
    unsafe fn length_at(self, at: usize) -> u32 {
        // SAFETY: within the piece, as the caller says.
        let place = unsafe { self.header.cast::<u8>().add(at) };
        // SAFETY: written before the address was known, never changed after.
        u32::from_le(unsafe { place.cast::<u32>().read_unaligned() })
    }

    #[inline]
    fn place(self) -> Place {
        // SAFETY: every node has these.
        let lengths = unsafe { self.length_at(size_of::<Header>()) };
        if lengths & LONG == 0 {
            return Place {
                key: SHORT_LEN,
                key_len: (lengths & ((1 << KEY_BITS) - 1)) as usize,
                value_len: (lengths >> KEY_BITS) as usize,
            };
        }
        Place {
            key: LONG_LEN,
            // SAFETY: a long node has both.
            key_len: unsafe { self.length_at(SHORT_LEN) } as usize,
            // SAFETY: as above.
            value_len: unsafe { self.length_at(SHORT_LEN + 4) } as usize,
        }
    }

    /// # Safety
    /// The piece has `len` bytes at `at`.
    #[inline]
    unsafe fn bytes(self, at: usize, len: usize) -> &'a [u8] {
        // SAFETY: within the piece, as the caller says.
        let start = unsafe { self.header.cast::<u8>().add(at) };
        let bytes = NonNull::slice_from_raw_parts(start, len);
        // SAFETY: written by `allocate` before the address was known, never changed after.
        unsafe { bytes.as_ref() }
    }

    /// The internal key.
    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        let place = self.place();
        // SAFETY: there the key is.
        unsafe { self.bytes(place.key, place.key_len) }
    }

    #[inline]
    pub(crate) fn user_key(self) -> &'a [u8] {
        orogen_base::key::user_key(self.key())
    }

    #[inline]
    pub(crate) fn trailer(self) -> u64 {
        orogen_base::key::trailer(self.key())
    }

    #[inline]
    pub(crate) fn value(self) -> &'a [u8] {
        let place = self.place();
        // SAFETY: the value follows the key.
        unsafe { self.bytes(place.key + place.key_len, place.value_len) }
    }

    /// The next node in key order; what it holds is seen whole.
    #[inline]
    pub(crate) fn following(self) -> Option<Self> {
        NonNull::new(self.link().load(Ordering::Acquire)).map(|header| Self {
            header,
            arena: PhantomData,
        })
    }

    /// Sets the link of a node that is not published yet.
    #[inline]
    pub(crate) fn set_following(self, next: Option<Self>) {
        // The compare-and-swap that publishes the node orders this store.
        self.link().store(pointer(next), Ordering::Relaxed);
    }

    /// Publishes `node` behind this one if `next` still follows it.
    #[inline]
    pub(crate) fn publish_following(self, next: Option<Self>, node: Self) -> bool {
        let link = self.link();
        if sync::makes(Mistake::LinkWithoutLooking) {
            link.store(node.header.as_ptr(), Ordering::Release);
            return true;
        }
        link.compare_exchange(
            pointer(next),
            node.header.as_ptr(),
            Ordering::Release,
            Ordering::Relaxed,
        )
        .is_ok()
    }

    /// Asks the processor to fetch the link and, mostly, the first bytes of the key.
    #[inline]
    pub(crate) fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let start = self.header.as_ptr().cast::<i8>();
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start) };
        }
    }
}

#[inline]
fn pointer(node: Option<Node<'_>>) -> *mut Header {
    node.map_or(std::ptr::null_mut(), |n| n.header.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_what_was_written_at_every_border_of_lengths() {
        let arena = Arena::new();
        let keys = [0, 1, 16, 2039, 2040, 2041, 70_000];
        let values = [0, 1, 100, (1 << 20) - 1, 1 << 20, (1 << 20) + 1];
        for (key_len, value_len) in keys.iter().flat_map(|k| values.map(|v| (*k, v))) {
            let (key, value) = (vec![7; key_len], vec![9; value_len]);
            for suffix in [&b""[..], b"sum"] {
                let node =
                    Node::allocate(&arena, &key, 0x0123_4567_89ab_cdef, &value, suffix).unwrap();
                assert!(node.user_key() == key, "{key_len} {value_len}");
                assert_eq!(node.trailer(), 0x0123_4567_89ab_cdef);
                assert!(node.value() == [&value, suffix].concat());
                assert!(node.following().is_none());
            }
        }
    }

    #[test]
    fn a_small_entry_takes_twelve_bytes_more_than_its_key_and_value() {
        let arena = Arena::new();
        let before = arena.memory_usage();
        Node::allocate(&arena, &[1; 16], 1, &[2; 100], &[]).unwrap();
        assert_eq!(arena.memory_usage() - before, 12 + 16 + 8 + 100);
    }
}
