//! The list: sorted, concurrent, only ever added to.
//!
//! All nodes are linked in key order. A search asks the guide for a node shortly before the place
//! and walks from there; a writer then links its node by one compare-and-swap, and if it lost
//! walks on from where it stood. Every other node is added to the guide. Readers only follow
//! links and never wait. Hot path.
//!
//! Nodes are never unlinked, so a node before the place stays a correct start of a search.
//!
//! Source: Herlihy and Shavit, "The Art of Multiprocessor Programming", 9.8 (lock-free list).
#![expect(
    unsafe_code,
    reason = "goes from addresses to the nodes that the arena keeps there"
)]

use std::cell::Cell;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::ptr::NonNull;
use std::sync::Arc;

use orogen_base::key;
use orogen_base::sync::atomic::{AtomicPtr, Ordering};
use orogen_base::{Result, SeqNo, UserComparator, ValueKind};
use orogen_env::memory::PagePool;

use crate::Growth;
use crate::arena::Arena;
use crate::guide::Guide;
use crate::node::{Header, Node};
use crate::prefix::prefix;

/// Last inserts that are remembered; a thread always uses the same place.
const HINTS: usize = 4;
/// Of so many nodes the guide gets one; in a model all, and few make a page.
const GUIDED: u64 = if cfg!(orogen_shuttle) { 1 } else { 2 };

/// Of what may be taken ahead for entries, one part in so many is taken for the guide.
const GUIDE_PART: usize = 8;

/// What a search compares nodes with.
pub(crate) struct Probe<'a> {
    prefix: u64,
    user_key: &'a [u8],
    trailer: u64,
}

/// Aligned so that writers of different ones share no cache line.
#[repr(align(64))]
struct Hint(AtomicPtr<Header>);

/// A sorted set of entries in an arena.
pub(crate) struct List {
    order: UserComparator,
    bytewise: bool,
    /// Address of a node without a key, before all others.
    head: NonNull<Header>,
    guide: Guide,
    hints: [Hint; HINTS],
    /// Last, so that nothing outlives it.
    arena: Arena,
}

// SAFETY: the addresses point into `arena`, which moves with the list and is itself `Send`.
unsafe impl Send for List {}
// SAFETY: nodes are immutable but for their atomic links; the guide's pages are atomic.
unsafe impl Sync for List {}

impl List {
    pub(crate) fn new(order: UserComparator) -> Self {
        let arena = Arena::new();
        let head = Node::allocate(&arena, &[], 0, &[], &[]);
        let head = head.expect("the first chunk holds it").address();
        Self {
            bytewise: order.is_bytewise(),
            order,
            head,
            guide: Guide::new(),
            hints: std::array::from_fn(|_| Hint(AtomicPtr::new(std::ptr::null_mut()))),
            arena,
        }
    }

    pub(crate) fn order(&self) -> &UserComparator {
        &self.order
    }

    /// That of the entries, to which all is promised, and that of the guide.
    fn arenas(&self) -> [&Arena; 2] {
        [&self.arena, self.guide.arena()]
    }

    pub(crate) fn memory_usage(&self) -> usize {
        self.arenas().map(Arena::memory_usage).iter().sum()
    }

    #[inline]
    pub(crate) fn promise(&self, bytes: usize) -> Result<()> {
        self.arena.promise(bytes)
    }

    #[inline]
    pub(crate) fn release(&self, bytes: usize) {
        self.arena.release(bytes);
    }

    pub(crate) fn watch_growth(&self, grows: Growth) {
        let grows = Arc::new(grows);
        for arena in self.arenas() {
            let grows = grows.clone();
            arena.watch_growth(Box::new(move |moment, bytes| grows(moment, bytes)));
        }
    }

    pub(crate) fn allocate_ahead_at_most(&self, bytes: usize) {
        self.arena.allocate_ahead_at_most(bytes);
        self.guide
            .arena()
            .allocate_ahead_at_most(bytes / GUIDE_PART);
    }

    pub(crate) fn use_pages(&self, pool: &Arc<PagePool>) {
        for arena in self.arenas() {
            arena.use_pages(pool.clone());
        }
    }

    pub(crate) fn memory_allocated(&self) -> usize {
        self.arenas().map(Arena::memory_allocated).iter().sum()
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

    #[inline]
    fn prefix(&self, user_key: &[u8]) -> u64 {
        prefix(self.bytewise, user_key)
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
        let user_key = node.user_key();
        let prefix = self.prefix(user_key);
        if prefix != probe.prefix {
            return prefix < probe.prefix;
        }
        match self.order.compare(user_key, probe.user_key) {
            Less => true,
            Greater => false,
            Equal => node.trailer() > probe.trailer,
        }
    }

    /// True if `node` is a version of the user key of `probe`.
    #[inline]
    pub(crate) fn has_user_key(&self, node: Node<'_>, probe: &Probe<'_>) -> bool {
        let user_key = node.user_key();
        self.prefix(user_key) == probe.prefix
            && self.order.compare(user_key, probe.user_key) == Equal
    }

    /// True if `node` is exactly what `probe` looks for.
    pub(crate) fn is_exactly(&self, node: Node<'_>, probe: &Probe<'_>) -> bool {
        self.has_user_key(node, probe) && node.trailer() == probe.trailer
    }

    /// The neighbours of `probe`: the last node before it and the first one that is not before
    /// it.
    #[inline]
    pub(crate) fn find(&self, probe: &Probe<'_>) -> (Option<Node<'_>>, Option<Node<'_>>) {
        let (prev, next) = self.walk(self.start(probe), probe);
        ((prev != self.head()).then_some(prev), next)
    }

    pub(crate) fn first(&self) -> Option<Node<'_>> {
        self.head().following()
    }

    pub(crate) fn last(&self) -> Option<Node<'_>> {
        let mut last = self.known_or_head(self.guide.find(u64::MAX, &|_| true));
        while let Some(next) = last.following() {
            last = next;
        }
        (last != self.head()).then_some(last)
    }

    /// A node before `probe`, not far from it.
    #[inline]
    fn start(&self, probe: &Probe<'_>) -> Node<'_> {
        // SAFETY: the guide has nodes of this list.
        let is_before = |node| self.is_before(unsafe { self.node(node) }, probe);
        self.known_or_head(self.guide.find(probe.prefix, &is_before))
    }

    #[inline]
    fn known_or_head(&self, known: Option<NonNull<Header>>) -> Node<'_> {
        // SAFETY: both are nodes of this list.
        unsafe { self.node(known.unwrap_or(self.head)) }
    }

    /// Goes on from `prev`, which is before `probe`, to the pair of neighbours that has `probe`
    /// between them.
    #[inline]
    fn walk<'a>(&'a self, mut prev: Node<'a>, probe: &Probe<'_>) -> (Node<'a>, Option<Node<'a>>) {
        loop {
            let next = prev.following();
            let Some(node) = next else {
                return (prev, None);
            };
            if let Some(ahead) = node.following() {
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
    ) -> Result<()> {
        let probe = self.probe(user_key, key::pack(seqno, kind));
        let (random, hint) = thread_random();
        let node = Node::allocate(&self.arena, user_key, probe.trailer, value, suffix)?;
        let hint = &self.hints[hint].0;
        let (mut prev, mut next) = match self.neighbours_of_last(hint, &probe) {
            Some(neighbours) => neighbours,
            None => self.walk(self.start(&probe), &probe),
        };
        loop {
            node.set_following(next);
            if prev.publish_following(next, node) {
                break;
            }
            (prev, next) = self.walk(prev, &probe);
        }
        hint.store(node.address().as_ptr(), Ordering::Release);
        if random % GUIDED == 0 {
            // SAFETY: the guide has nodes of this list.
            let is_before = |node| self.is_before(unsafe { self.node(node) }, &probe);
            self.guide.add(probe.prefix, node.address(), &is_before);
        }
        Ok(())
    }

    /// The place of `probe` if it is right behind the node of the last insert: keys often rise.
    #[inline]
    fn neighbours_of_last(
        &self,
        hint: &AtomicPtr<Header>,
        probe: &Probe<'_>,
    ) -> Option<(Node<'_>, Option<Node<'_>>)> {
        let last = NonNull::new(hint.load(Ordering::Acquire))?;
        // SAFETY: a hint holds the address of a node of this list.
        let last = unsafe { self.node(last) };
        if !self.is_before(last, probe) {
            return None;
        }
        let next = last.following();
        let is_between = next.is_none_or(|n| !self.is_before(n, probe));
        is_between.then_some((last, next))
    }

    /// Checks the order of the list and of the guide.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let mut node = self.head();
        while let Some(next) = node.following() {
            if node != self.head() {
                let probe = self.probe_internal(next.key());
                assert!(self.is_before(node, &probe), "the list is not sorted");
            }
            node = next;
        }
        // SAFETY: the guide has nodes of this list.
        let node = |address| unsafe { self.node(address) };
        self.guide
            .check(&|a, b| self.is_before(node(a), &self.probe_internal(node(b).key())));
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

#[cfg(all(test, not(orogen_shuttle)))]
mod tests {
    use super::*;
    use crate::guided_list::arena_bytes;

    #[test]
    fn pages_of_the_guide_take_nothing_that_was_promised() {
        let list = List::new(UserComparator::BYTEWISE);
        list.allocate_ahead_at_most(0);
        let insert = |n: u64| {
            let key = n.to_be_bytes();
            list.insert(&key, 1, ValueKind::Value, b"", b"").unwrap();
        };
        // Rising keys leave full pages behind them.
        let len = 100_000;
        (0..len).for_each(|n| insert(2 * n));
        let mut others = (0..len).map(|n| n * 7919 % len * 2 + 1);
        for group in [1, 1, 10, 100, 1000] {
            let promised = arena_bytes(group, 8 * group);
            list.promise(promised).unwrap();
            let before = list.arena.memory_allocated();
            others.by_ref().take(group).for_each(insert);
            assert_eq!(list.arena.memory_allocated(), before, "{group} entries");
            list.release(promised);
        }
        list.check();
    }
}
