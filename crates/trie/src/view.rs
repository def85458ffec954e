//! Words of a block by their number: the one place where references become addresses.
//!
//! 1. Whoever asks for words passes numbers that an allocation of this block covers: references
//!    come from slots of published nodes, from allocations, and from nowhere else.
//! 2. Words that others may write meanwhile (heads, slots, labels behind the last full 16, cells) are read and
//!    written as atomics. All other bytes change only while one thread knows of them.
//!
//! Bytes of a word stand in memory with the lowest first: so do those of a reference, whichever the machine.
#![expect(unsafe_code, reason = "a block is untyped memory")]

use std::marker::PhantomData;
use std::ptr::NonNull;

use orogen_base::sync::atomic::{AtomicU32, Ordering};

use crate::poison;

/// Number of a word of its block; 0 is none, for there the block's own head lies.
pub(crate) type Ref = u32;

/// Bytes of a word.
pub(crate) const WORD: usize = 4;

/// A block's memory, for as long as nobody moves it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    base: NonNull<u8>,
    block: PhantomData<&'a AtomicU32>,
}

impl<'a> View<'a> {
    /// The block that begins at `base`.
    ///
    /// # Safety
    /// What was allocated of it is initialised or written before it is read, and stays where it is
    /// for `'a`; `base` is aligned to words.
    pub(crate) unsafe fn new(base: NonNull<u8>) -> Self {
        Self {
            base,
            block: PhantomData,
        }
    }

    #[inline(always)]
    fn address(self, at: Ref) -> *mut u8 {
        // SAFETY: the word was allocated in this block: rule 1.
        unsafe { self.base.as_ptr().add(at as usize * WORD) }
    }

    #[inline(always)]
    pub(crate) fn word(self, at: Ref) -> &'a AtomicU32 {
        debug_assert_ne!(at, 0, "no reference");
        // SAFETY: an allocated, aligned word: rule 1; it is used as an atomic while others see it: rule 2.
        unsafe { &*self.address(at).cast::<AtomicU32>() }
    }

    /// Words one after the other.
    #[inline]
    pub(crate) fn words(self, at: Ref, len: usize) -> &'a [AtomicU32] {
        debug_assert!(at != 0 || len == 0, "no reference");
        // SAFETY: allocated, aligned words: rule 1; used as atomics: rule 2.
        unsafe { std::slice::from_raw_parts(self.address(at).cast::<AtomicU32>(), len) }
    }

    #[inline(always)]
    pub(crate) fn load(self, at: Ref) -> u32 {
        u32::from_le(self.word(at).load(Ordering::Acquire))
    }

    /// The same where another word was read before that says it is there.
    #[inline(always)]
    pub(crate) fn load_relaxed(self, at: Ref) -> u32 {
        u32::from_le(self.word(at).load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn store(self, at: Ref, value: u32) {
        self.word(at).store(value.to_le(), Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn store_relaxed(self, at: Ref, value: u32) {
        self.word(at).store(value.to_le(), Ordering::Relaxed);
    }

    /// Replaces `old` by `new`; false if it is not `old`.
    #[inline(always)]
    pub(crate) fn exchange(self, at: Ref, old: u32, new: u32) -> bool {
        let (old, new) = (old.to_le(), new.to_le());
        self.word(at)
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// `len` bytes that do not change any more, from the one `skip` behind the start of a word.
    #[inline(always)]
    pub(crate) fn bytes(self, at: Ref, skip: usize, len: usize) -> &'a [u8] {
        // SAFETY: within what was allocated: rule 1.
        let start = unsafe { self.address(at).add(skip) };
        // SAFETY: initialised, and nobody writes them while they can be reached: rule 2.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Writes bytes that nobody else knows of yet.
    #[inline(always)]
    pub(crate) fn write(self, at: Ref, skip: usize, bytes: &[u8]) {
        // SAFETY: within what was allocated: rule 1.
        let start = unsafe { self.address(at).add(skip) };
        // SAFETY: both are valid, and what only one thread knows is not what it copies from.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// Writes a word that nobody else knows of yet.
    #[inline(always)]
    pub(crate) fn put(self, at: Ref, value: u32) {
        self.write(at, 0, &value.to_le_bytes());
    }

    /// Copies words that do not change into words that nobody else knows of yet.
    #[inline(always)]
    pub(crate) fn copy(self, from: Ref, to: Ref, words: usize) {
        let (from, to) = (self.address(from), self.address(to));
        // SAFETY: two pieces that were allocated apart: rule 1.
        unsafe { std::ptr::copy_nonoverlapping(from, to, words * WORD) };
    }

    /// Sets words that nobody else knows of yet to 0.
    #[inline(always)]
    pub(crate) fn clear(self, at: Ref, words: usize) {
        // SAFETY: allocated: rule 1.
        unsafe { std::ptr::write_bytes(self.address(at), 0, words * WORD) };
    }

    /// Tells the sanitizer that nobody may use these words: see `poison.rs`.
    #[inline(always)]
    pub(crate) fn poison(self, at: Ref, words: usize) {
        poison::poison(self.address(at), words * WORD);
    }

    /// Tells it that they may be used.
    #[inline(always)]
    pub(crate) fn unpoison(self, at: Ref, words: usize) {
        poison::unpoison(self.address(at), words * WORD);
    }

    /// Asks the processor for the cache line `skip` bytes behind the start of a word, which may be
    /// of another piece.
    #[inline(always)]
    pub(crate) fn prefetch(self, at: Ref, skip: usize) {
        let address = self
            .base
            .as_ptr()
            .wrapping_add((at as usize * WORD).wrapping_add(skip));
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a prefetch changes nothing and cannot fault.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = address;
    }
}
