//! A plain skip list to compare with: a node is one piece of an arena, towers before the key, heights
//! with branching 4 up to 12, links set by compare-and-swap from below. The layout is that of
//! RocksDB's InlineSkipList: internal keys with their lengths before them, then the value's length.
#![expect(unsafe_code, reason = "nodes are raw memory of the arena")]

use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use orogen_env::memory::Reserved;

const HEIGHT_MAX: usize = 12;
/// Length of the key, sequence number and kind, length of the value.
const EXTRA: usize = 1 + 8 + 1;

type Link = AtomicPtr<u8>;

/// A node is the address of its length byte; link of level n stands n + 1 links before it.
pub(crate) struct SkipList {
    memory: Reserved,
    used: AtomicUsize,
    head: *mut u8,
    height: AtomicUsize,
}

// SAFETY: nodes are immutable but for their atomic links.
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

fn link<'a>(node: *mut u8, level: usize) -> &'a Link {
    // SAFETY: a node has links of all levels up to its height, and only those are asked for.
    let link = unsafe { node.cast::<Link>().sub(level + 1) };
    // SAFETY: it was written before the node was linked.
    unsafe { &*link }
}

fn key<'a>(node: *mut u8) -> &'a [u8] {
    // SAFETY: a node begins with the length of its key.
    let len = unsafe { *node } as usize;
    // SAFETY: the key stands behind it.
    let start = unsafe { node.add(1) };
    // SAFETY: written before the node was linked.
    unsafe { std::slice::from_raw_parts(start, len) }
}

fn random_height() -> usize {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
    }
    STATE.with(|state| {
        let mut x = state.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set(x);
        let bits = x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        (1 + bits.trailing_zeros() as usize / 2).min(HEIGHT_MAX)
    })
}

impl SkipList {
    pub(crate) fn new(bytes: usize) -> Self {
        let memory = Reserved::new(bytes).expect("addresses");
        assert!(memory.commit(1 << 20), "memory");
        let mut list = Self {
            memory,
            used: AtomicUsize::new(0),
            head: null_mut(),
            height: AtomicUsize::new(1),
        };
        list.head = list.node(&[], HEIGHT_MAX);
        list
    }

    /// Takes all keys away; memory is kept.
    pub(crate) fn clear(&mut self) {
        *self.used.get_mut() = 0;
        *self.height.get_mut() = 1;
        self.head = self.node(&[], HEIGHT_MAX);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn node(&self, key: &[u8], height: usize) -> *mut u8 {
        let links = height * size_of::<Link>();
        let len = (links + key.len() + EXTRA).next_multiple_of(8);
        let at = self.used.fetch_add(len, Ordering::Relaxed);
        if (at ^ (at + len)) >> 16 != 0 {
            assert!(self.memory.commit(at + len + (1 << 20)), "memory");
        }
        // SAFETY: within what is reserved, and committed just now or before.
        let start = unsafe { self.memory.start().as_ptr().add(at) };
        for level in 0..height {
            // SAFETY: the links lie in the node.
            let link = unsafe { start.cast::<Link>().add(level) };
            // SAFETY: the memory is ours.
            unsafe { link.write(Link::new(null_mut())) };
        }
        // SAFETY: behind the links.
        let node = unsafe { start.add(links) };
        // SAFETY: the node has room for it.
        unsafe { node.write(key.len() as u8) };
        // SAFETY: as above.
        let bytes = unsafe { node.add(1) };
        // SAFETY: as above; the sequence number and the empty value are not written.
        unsafe { std::ptr::copy_nonoverlapping(key.as_ptr(), bytes, key.len()) };
        node
    }

    /// The last node before `wanted` from `from` on, and the one behind it.
    fn neighbours(&self, wanted: &[u8], from: *mut u8, level: usize) -> (*mut u8, *mut u8) {
        let mut before = from;
        loop {
            let next = link(before, level).load(Ordering::Acquire);
            if next.is_null() {
                return (before, next);
            }
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                let ahead = link(next, level).load(Ordering::Relaxed);
                // SAFETY: a prefetch changes nothing and cannot fault.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
            }
            if key(next) >= wanted {
                return (before, next);
            }
            before = next;
        }
    }

    pub(crate) fn insert(&self, wanted: &[u8]) {
        let height = random_height();
        let node = self.node(wanted, height);
        let top = self.height.fetch_max(height, Ordering::Relaxed).max(height);
        let mut splice = [(null_mut(), null_mut()); HEIGHT_MAX];
        let mut before = self.head;
        for level in (0..top).rev() {
            splice[level] = self.neighbours(wanted, before, level);
            before = splice[level].0;
        }
        for (level, place) in splice.iter_mut().enumerate().take(height) {
            loop {
                let (before, next) = *place;
                link(node, level).store(next, Ordering::Relaxed);
                let slot = link(before, level);
                let set = slot.compare_exchange(next, node, Ordering::AcqRel, Ordering::Acquire);
                if set.is_ok() {
                    break;
                }
                *place = self.neighbours(wanted, before, level);
            }
        }
    }

    pub(crate) fn get(&self, wanted: &[u8]) -> bool {
        let mut before = self.head;
        let mut next = null_mut();
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            (before, next) = self.neighbours(wanted, before, level);
        }
        !next.is_null() && key(next) == wanted
    }

    pub(crate) fn scan(&self, mut each: impl FnMut(&[u8])) {
        let mut node = link(self.head, 0).load(Ordering::Acquire);
        while !node.is_null() {
            each(key(node));
            node = link(node, 0).load(Ordering::Acquire);
        }
    }
}
