//! An entry of the list: its link, its internal key and its value in one piece of memory.
//!
//! ```text
//! next | prefix u64 | key_len u32 | value_len u32 | key | value
//! ```
//! `key` is the internal key. `prefix` orders most pairs of keys without touching their bytes.
//! All but the link is written before the node's address is published and never after.
#![expect(unsafe_code, reason = "nodes lie in arena memory at computed places")]

use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;

use orogen_base::key::TRAILER_LEN;
use orogen_base::sync::atomic::{AtomicPtr, Ordering};
use orogen_base::sync::{self, Mistake};

use crate::arena::Arena;

#[repr(C)]
pub(crate) struct Header {
    next: AtomicPtr<Header>,
    prefix: u64,
    /// Of the internal key.
    key_len: u32,
    value_len: u32,
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
    /// # Panics
    /// If key or value exceed 32-bit lengths; `limits.rs` forbids both.
    #[inline]
    pub(crate) fn allocate(
        arena: &'a Arena,
        prefix: u64,
        user_key: &[u8],
        trailer: u64,
        value: &[u8],
        suffix: &[u8],
    ) -> Self {
        let key_len = u32::try_from(user_key.len() + TRAILER_LEN).expect("keys are bounded");
        let value_len = value.len() + suffix.len();
        let size = size_of::<Header>() + key_len as usize + value_len;
        let value_len = u32::try_from(value_len).expect("values are bounded");
        let header = arena.allocate(size).cast::<Header>();
        // SAFETY: the memory is ours alone, big enough, and aligned to 8.
        unsafe {
            header.write(Header {
                next: AtomicPtr::new(std::ptr::null_mut()),
                prefix,
                key_len,
                value_len,
            })
        };
        // SAFETY: the key follows the header within the piece.
        let key = unsafe { header.add(1) }.cast::<u8>();
        // SAFETY: `key_len` bytes are there and they are ours alone.
        unsafe { key.copy_from_nonoverlapping(NonNull::from(user_key).cast(), user_key.len()) };
        let trailer = trailer.to_le_bytes();
        // SAFETY: the trailer follows the user key within the piece.
        let place = unsafe { key.add(user_key.len()) };
        // SAFETY: eight bytes of the key are left there.
        unsafe { place.cast::<[u8; TRAILER_LEN]>().write(trailer) };
        // SAFETY: the value follows the key within the piece.
        let place = unsafe { key.add(key_len as usize) };
        // SAFETY: `value_len` bytes are there and they are ours alone.
        unsafe { place.copy_from_nonoverlapping(NonNull::from(value).cast(), value.len()) };
        if !suffix.is_empty() {
            // SAFETY: the suffix follows the value within the piece.
            let place = unsafe { place.add(value.len()) };
            // SAFETY: `suffix.len()` bytes are left there and they are ours alone.
            unsafe { place.copy_from_nonoverlapping(NonNull::from(suffix).cast(), suffix.len()) };
        }
        Self {
            header,
            arena: PhantomData,
        }
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
    fn header(self) -> &'a Header {
        // SAFETY: written by `allocate` before the address was known, never changed after.
        unsafe { self.header.as_ref() }
    }

    #[inline]
    pub(crate) fn prefix(self) -> u64 {
        self.header().prefix
    }

    /// The internal key.
    #[inline]
    pub(crate) fn key(self) -> &'a [u8] {
        // SAFETY: the key follows the header.
        let start = unsafe { self.header.add(1) }.cast::<u8>();
        let bytes = NonNull::slice_from_raw_parts(start, self.header().key_len as usize);
        // SAFETY: written by `allocate` before the address was known, never changed after.
        unsafe { bytes.as_ref() }
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
        let header = self.header();
        // SAFETY: the key follows the header.
        let key = unsafe { self.header.add(1) }.cast::<u8>();
        // SAFETY: the value follows the key.
        let start = unsafe { key.add(header.key_len as usize) };
        let bytes = NonNull::slice_from_raw_parts(start, header.value_len as usize);
        // SAFETY: written by `allocate` before the address was known, never changed after.
        unsafe { bytes.as_ref() }
    }

    /// The next node in key order; what it holds is seen whole.
    #[inline]
    pub(crate) fn following(self) -> Option<Self> {
        NonNull::new(self.header().next.load(Ordering::Acquire)).map(|header| Self {
            header,
            arena: PhantomData,
        })
    }

    /// Sets the link of a node that is not published yet.
    #[inline]
    pub(crate) fn set_following(self, next: Option<Self>) {
        // The compare-and-swap that publishes the node orders this store.
        self.header().next.store(pointer(next), Ordering::Relaxed);
    }

    /// Publishes `node` behind this one if `next` still follows it.
    #[inline]
    pub(crate) fn publish_following(self, next: Option<Self>, node: Self) -> bool {
        let link = &self.header().next;
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

    /// Asks the processor to fetch the node's header.
    #[inline]
    pub(crate) fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch reads nothing.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.header.as_ptr().cast()) };
        }
    }
}

#[inline]
fn pointer(node: Option<Node<'_>>) -> *mut Header {
    node.map_or(std::ptr::null_mut(), |n| n.header.as_ptr())
}
