//! The skip list: sorted, concurrent, only ever added to.
//!
//! Level 0 links all nodes in key order; each higher level a quarter of the one below. A writer
//! finds the place on every level, then links its node from level 0 upwards, each by one
//! compare-and-swap; one that lost looks again from the node it stood on. Readers only follow
//! links and never wait. Hot path.
//!
//! 1. A node on level `n` is on all levels below, and was linked there before.
//! 2. Nodes are never unlinked, so a place once found stays a correct start of a search.
//! 3. In a splice, `prev[n + 1] <= prev[n] < next[n] <= next[n + 1]`; its last level spans the
//!    whole list.
//!
//! Source: RocksDB `memtable/inlineskiplist.h` (splice hints); Herlihy and Shavit, "The Art of
//! Multiprocessor Programming", 14.
#![expect(
    unsafe_code,
    reason = "follows links whose level the search knows to exist"
)]

use orogen_base::sync::atomic::{AtomicUsize, Ordering};
use std::cell::Cell;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::ptr::NonNull;

use orogen_base::key;
use orogen_base::sync::Mutex;
use orogen_base::{SeqNo, UserComparator, ValueKind};

use crate::arena::Arena;
use crate::node::{Header, Node};

/// Levels at most: a quarter to the twelfth power serves 16 million entries.
const HEIGHT_MAX: usize = 12;

/// Splices that are kept between inserts; a thread always uses the same.
const HINTS: usize = 4;

/// What a search compares nodes with.
pub(crate) struct Probe<'a> {
    prefix: u64,
    user_key: &'a [u8],
    trailer: u64,
}

/// The neighbours of the last insert on every level, to start the next one from.
struct Splice {
    prev: [NonNull<Header>; HEIGHT_MAX + 1],
    next: [Option<NonNull<Header>>; HEIGHT_MAX + 1],
}

/// Aligned so that writers of different splices share no cache line.
#[repr(align(64))]
struct Hint(Mutex<Splice>);

/// A sorted set of entries in an arena.
pub(crate) struct SkipList {
    order: UserComparator,
    bytewise: bool,
    /// Address of a node without a key, before all others, as high as can be.
    head: NonNull<Header>,
    height: AtomicUsize,
    hints: [Hint; HINTS],
    /// Last, so that nothing outlives it.
    arena: Arena,
}

// SAFETY: the addresses point into `arena`, which moves with the list and is itself `Send`.
unsafe impl Send for SkipList {}
// SAFETY: nodes are immutable but for their atomic links; splices are locked.
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(crate) fn new(order: UserComparator) -> Self {
        let arena = Arena::new();
        let head = Node::allocate(&arena, HEIGHT_MAX, 0, &[], 0, &[], &[]).address();
        let splice = || Splice {
            prev: [head; HEIGHT_MAX + 1],
            next: [None; HEIGHT_MAX + 1],
        };
        Self {
            bytewise: order.is_bytewise(),
            order,
            head,
            height: AtomicUsize::new(1),
            hints: std::array::from_fn(|_| Hint(Mutex::new(splice()))),
            arena,
        }
    }

    pub(crate) fn order(&self) -> &UserComparator {
        &self.order
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.arena.memory_usage()
    }

    #[inline]
    fn head(&self) -> Node<'_> {
        // SAFETY: the head lies in our arena.
        unsafe { Node::at(self.head) }
    }

    /// The node at an address that a node of this list gave.
    ///
    /// # Safety
    /// `address` is that of a node of this list.
    #[inline]
    pub(crate) unsafe fn node(&self, address: NonNull<Header>) -> Node<'_> {
        // SAFETY: the arena lives as long as the list.
        unsafe { Node::at(address) }
    }

    /// A number that orders as the keys do, as far as it differs.
    #[inline]
    fn prefix(&self, user_key: &[u8]) -> u64 {
        if !self.bytewise {
            return 0;
        }
        if let Some(chunk) = user_key.first_chunk() {
            return u64::from_be_bytes(*chunk);
        }
        let mut bytes = [0; 8];
        bytes[..user_key.len()].copy_from_slice(user_key);
        u64::from_be_bytes(bytes)
    }

    /// What to search the entry with `trailer` of `user_key` by.
    #[inline]
    pub(crate) fn probe<'a>(&self, user_key: &'a [u8], trailer: u64) -> Probe<'a> {
        Probe {
            prefix: self.prefix(user_key),
            user_key,
            trailer,
        }
    }

    /// What to search an internal key by.
    #[inline]
    pub(crate) fn probe_internal<'a>(&self, key: &'a [u8]) -> Probe<'a> {
        self.probe(key::user_key(key), key::trailer(key))
    }

    /// True if `node` stands before what `probe` looks for.
    #[inline]
    fn is_before(&self, node: Node<'_>, probe: &Probe<'_>) -> bool {
        let prefix = node.prefix();
        if prefix != probe.prefix {
            return prefix < probe.prefix;
        }
        match self.order.compare(node.user_key(), probe.user_key) {
            Less => true,
            Greater => false,
            Equal => node.trailer() > probe.trailer,
        }
    }

    /// True if `node` is a version of the user key of `probe`.
    #[inline]
    pub(crate) fn has_user_key(&self, node: Node<'_>, probe: &Probe<'_>) -> bool {
        node.prefix() == probe.prefix
            && self.order.compare(node.user_key(), probe.user_key) == Equal
    }

    /// True if what `node` is ordered by belongs to its key.
    pub(crate) fn has_its_prefix(&self, node: Node<'_>) -> bool {
        node.prefix() == self.prefix(node.user_key())
    }

    /// True if `node` is exactly what `probe` looks for.
    pub(crate) fn is_exactly(&self, node: Node<'_>, probe: &Probe<'_>) -> bool {
        self.has_user_key(node, probe) && node.trailer() == probe.trailer
    }

    /// The neighbours of `probe` on level 0: the last node before it and the first one that is
    /// not before it.
    #[inline]
    pub(crate) fn find(&self, probe: &Probe<'_>) -> (Option<Node<'_>>, Option<Node<'_>>) {
        let mut prev = self.head();
        let mut after = None;
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            // SAFETY: `prev` is the head, or was reached on this level or a higher one.
            (prev, after) = unsafe { self.walk(level, prev, after, probe) };
        }
        ((prev != self.head()).then_some(prev), after)
    }

    pub(crate) fn first(&self) -> Option<Node<'_>> {
        self.head().following()
    }

    pub(crate) fn last(&self) -> Option<Node<'_>> {
        let mut last = self.head();
        for level in (0..self.height.load(Ordering::Relaxed)).rev() {
            // SAFETY: `last` is the head, or was reached on this level or a higher one.
            while let Some(next) = unsafe { last.next(level) } {
                last = next;
            }
        }
        (last != self.head()).then_some(last)
    }

    /// Goes along `level` from `prev`, which is before `probe`, to the pair of neighbours that
    /// has `probe` between them; `after` is known not to be before `probe`.
    ///
    /// # Safety
    /// `prev` is higher than `level`.
    #[inline]
    unsafe fn walk<'a>(
        &'a self,
        level: usize,
        mut prev: Node<'a>,
        after: Option<Node<'a>>,
        probe: &Probe<'_>,
    ) -> (Node<'a>, Option<Node<'a>>) {
        loop {
            // SAFETY: the caller's promise at first, then a node reached on this level.
            let next = unsafe { prev.next(level) };
            let Some(node) = next.filter(|_| next != after) else {
                return (prev, next);
            };
            // SAFETY: reached on this level.
            if let Some(ahead) = unsafe { node.next(level) } {
                ahead.prefetch();
            }
            if !self.is_before(node, probe) {
                return (prev, next);
            }
            prev = node;
        }
    }

    /// Adds an entry that is not here yet.
    #[inline]
    pub(crate) fn insert(
        &self,
        user_key: &[u8],
        seqno: SeqNo,
        kind: ValueKind,
        value: &[u8],
        suffix: &[u8],
    ) {
        let probe = self.probe(user_key, key::pack(seqno, kind));
        let (random, hint) = thread_random();
        // Two random bits for each level: a quarter goes on to the next.
        let height = 1 + (random.trailing_zeros() as usize / 2).min(HEIGHT_MAX - 1);
        let node = Node::allocate(
            &self.arena,
            height,
            probe.prefix,
            user_key,
            probe.trailer,
            value,
            suffix,
        );
        if let Some(mut splice) = self.hints[hint].0.try_lock() {
            self.link(node, height, &probe, &mut splice);
        } else {
            let mut splice = Splice {
                prev: [self.head; HEIGHT_MAX + 1],
                next: [None; HEIGHT_MAX + 1],
            };
            self.link(node, height, &probe, &mut splice);
        }
    }

    /// Links `node` on all its levels, starting from `splice` and leaving the place there.
    fn link<'a>(&'a self, node: Node<'a>, height: usize, probe: &Probe<'_>, splice: &mut Splice) {
        let list_height = self.height.fetch_max(height, Ordering::Relaxed).max(height);
        let fits_from = self.lowest_fitting_level(list_height, probe, splice);
        for level in (0..fits_from).rev() {
            let (prev, after) = self.neighbours(splice, level + 1);
            // SAFETY: a splice's `prev` of the level above is higher than `level`.
            let (prev, next) = unsafe { self.walk(level, prev, after, probe) };
            splice.prev[level] = prev.address();
            splice.next[level] = next.map(Node::address);
        }
        for level in 0..height {
            let (mut prev, mut next) = self.neighbours(splice, level);
            loop {
                // SAFETY: `level` is below the node's height, and nobody follows it there yet.
                unsafe { node.set_next(level, next) };
                // SAFETY: so it is below that of `prev`, which was found on this level.
                if unsafe { prev.publish_next(level, next, node) } {
                    break;
                }
                let (_, after) = self.neighbours(splice, level + 1);
                // SAFETY: `prev` was found on this level.
                (prev, next) = unsafe { self.walk(level, prev, after, probe) };
            }
            splice.prev[level] = node.address();
            splice.next[level] = next.map(Node::address);
        }
    }

    #[inline]
    fn neighbours(&self, splice: &Splice, level: usize) -> (Node<'_>, Option<Node<'_>>) {
        // SAFETY: splices hold addresses of nodes of this list.
        let prev = unsafe { self.node(splice.prev[level]) };
        // SAFETY: the same.
        let next = splice.next[level].map(|next| unsafe { self.node(next) });
        (prev, next)
    }

    /// The lowest level of `splice` whose neighbours are still neighbours and have `probe`
    /// between them: so do all levels above, by invariant 3.
    fn lowest_fitting_level(
        &self,
        list_height: usize,
        probe: &Probe<'_>,
        splice: &Splice,
    ) -> usize {
        let mut level = 0;
        while level < list_height {
            let (prev, next) = self.neighbours(splice, level);
            // SAFETY: a splice's `prev` of a level is higher than it.
            if unsafe { prev.next(level) } != next {
                level += 1;
            } else if prev != self.head() && !self.is_before(prev, probe) {
                // Levels with the same neighbour fail alike.
                while level < list_height && splice.prev[level] == prev.address() {
                    level += 1;
                }
            } else if let Some(next) = next.filter(|&n| self.is_before(n, probe)) {
                while level < list_height && splice.next[level] == Some(next.address()) {
                    level += 1;
                }
            } else {
                break;
            }
        }
        level
    }

    /// Checks the order on every level, and that each level is part of the one below.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut below: Vec<NonNull<Header>> = Vec::new();
        for level in 0..HEIGHT_MAX {
            let mut here = Vec::new();
            let mut node = self.head();
            // SAFETY: each node is reached on this level.
            while let Some(next) = unsafe { node.next(level) } {
                if node != self.head() {
                    let probe = self.probe_internal(next.key());
                    assert!(self.is_before(node, &probe), "level {level} is not sorted");
                }
                here.push(next.address());
                node = next;
            }
            let mut rest = below.iter();
            assert!(level == 0 || here.iter().all(|n| rest.any(|b| b == n)));
            below = here;
        }
    }
}

/// A random number from the thread's own sequence, and which hint the thread uses.
#[inline]
fn thread_random() -> (u64, usize) {
    // Of the process, not of a model's run.
    static THREADS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    thread_local! {
        static STATE: Cell<(u64, usize)> = const { Cell::new((0, 0)) };
    }
    STATE.with(|state| {
        let (mut x, mut hint) = state.get();
        if x == 0 {
            let thread = THREADS.fetch_add(1, Ordering::Relaxed);
            x = thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            hint = thread as usize % HINTS;
        }
        // Marsaglia's xorshift; the product's high half has the good bits.
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        state.set((x, hint));
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32, hint)
    })
}
