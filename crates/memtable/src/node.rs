//! An entry of the skip list: its links, its internal key and its value in one piece of memory.
//!
//! ```text
//! next[height-1] .. next[1] next[0] | prefix u64 | key_len u32 | value_len u32 | key | value
//!                                   ^ a node's address
//! ```
//! The links grow downwards from the address, so the height need not be kept: whoever stands on
//! a node came by a link of some level and uses only that level and those below. `key` is the
//! internal key. `prefix` orders most pairs of keys without touching their bytes.
//!
//! 1. All but the links is written before the node's address is published and never after.
//! 2. A link of level `n` is followed and set only by those who know that the height exceeds
//!    `n`.
#![expect(unsafe_code, reason = "nodes lie in arena memory at computed places")]

use orogen_base::sync::atomic::{AtomicPtr, Ordering};
use orogen_base::sync::{self, Mistake};
use std::marker::PhantomData;
use std::mem::size_of;
use std::ptr::NonNull;

use orogen_base::key::TRAILER_LEN;

use crate::arena::Arena;

#[repr(C)]
pub(crate) struct Header {
    prefix: u64,
    /// Of the internal key.
    key_len: u32,
    value_len: u32,
}

type Link = AtomicPtr<Header>;

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
    /// Writes a node of `height` levels whose links lead nowhere; `suffix` stands behind the value
    /// and counts as part of it.
    ///
    /// # Panics
    /// If key or value exceed 32-bit lengths; `limits.rs` forbids both.
    #[inline]
    pub(crate) fn allocate(
        arena: &'a Arena,
        height: usize,
        prefix: u64,
        user_key: &[u8],
        trailer: u64,
        value: &[u8],
        suffix: &[u8],
    ) -> Self {
        let key_len = u32::try_from(user_key.len() + TRAILER_LEN).expect("keys are bounded");
        let value_len = value.len() + suffix.len();
        let links = height * size_of::<Link>();
        let size = links + size_of::<Header>() + key_len as usize + value_len;
        let value_len = u32::try_from(value_len).expect("values are bounded");
        let memory = arena.allocate(size);
        for level in 0..height {
            // SAFETY: `height` links fit before the header.
            let link = unsafe { memory.add(level * size_of::<Link>()) };
            // SAFETY: the memory is ours alone, big enough, and aligned to 8.
            unsafe { link.cast::<Link>().write(AtomicPtr::default()) };
        }
        // SAFETY: the header follows the links within the piece.
        let header = unsafe { memory.add(links) }.cast::<Header>();
        // SAFETY: the memory is ours alone, big enough, and aligned to 8.
        unsafe {
            header.write(Header {
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

    /// # Safety
    /// The node is higher than `level`.
    #[inline]
    unsafe fn link(self, level: usize) -> &'a Link {
        // SAFETY: the caller knows that the link is there, below the header.
        let link = unsafe { self.header.cast::<Link>().sub(level + 1) };
        // SAFETY: written by `allocate`; only reached through the atomic since.
        unsafe { link.as_ref() }
    }

    /// The node after this one on `level`; what it holds is seen whole.
    ///
    /// # Safety
    /// The node is higher than `level`.
    #[inline]
    pub(crate) unsafe fn next(self, level: usize) -> Option<Self> {
        // SAFETY: the caller's promise.
        let link = unsafe { self.link(level) };
        NonNull::new(link.load(Ordering::Acquire)).map(|header| Self {
            header,
            arena: PhantomData,
        })
    }

    /// The next node in key order.
    #[inline]
    pub(crate) fn following(self) -> Option<Self> {
        // SAFETY: every node has level 0.
        unsafe { self.next(0) }
    }

    /// Sets a link of a node that nobody else follows on `level` yet.
    ///
    /// # Safety
    /// The node is higher than `level`.
    #[inline]
    pub(crate) unsafe fn set_next(self, level: usize, next: Option<Self>) {
        // SAFETY: the caller's promise.
        let link = unsafe { self.link(level) };
        // The compare-and-swap that publishes the node orders this store.
        link.store(pointer(next), Ordering::Relaxed);
    }

    /// Publishes `node` behind this one if `next` is still its successor on `level`.
    ///
    /// # Safety
    /// Both nodes are higher than `level`.
    #[inline]
    pub(crate) unsafe fn publish_next(self, level: usize, next: Option<Self>, node: Self) -> bool {
        // SAFETY: the caller's promise.
        let link = unsafe { self.link(level) };
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
