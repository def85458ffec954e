//! Where in the list to start a search: a B-link tree over some of its nodes.
//!
//! ```text
//!              inner  [ head . h . . . . q . . . ]
//!                       /       |         \
//!   leaf [ b d f ]--> [ h k l n ]--> [ q s v ]--> (right sibling)
//!          |   |        |
//!   list   b c d e f g  h i j k ...               every second node is in a leaf
//! ```
//! The list alone is the truth; the guide only has to lead to a node that stands before what is
//! looked for, and close to it. So readers take no lock and check nothing on the way: where they
//! meet a page while it changes they may be led somewhat too far left, and walk a little longer,
//! or too far right, which they see by comparing the node itself, and then look again. A writer
//! that finds the tree locked leaves its node out.
//!
//! A search compares 8-byte prefixes, side by side in a page, and touches a node only where
//! prefixes are equal: three or four pages that mostly lie in the processor's caches, where a
//! skip list's tower costs a dozen far nodes.
//!
//! 1. Pages live as long as the guide, in an arena of its own: what was promised to entries stays theirs, however many pages
//!    split. An entry once in a page moves right only, within it or to the new right sibling of a split.
//! 2. Entries of a page are sorted; the first one of a page that is not the leftmost of its level
//!    never changes, and is the separator in the page above. The first one of a leftmost page
//!    above the leaves counts as smaller than all.
//! 3. A split links the right page to the left one, then enters it above, then cuts the left one:
//!    whoever comes to the left page's end looks whether to go right.
//!
//! Source: Lehman and Yao, "Efficient locking for concurrent operations on B-trees", 1981, for
//! the right links; that searches need no validation is because nodes are never removed.
#![expect(unsafe_code, reason = "pages lie in arena memory and link each other")]

use std::mem::size_of;
use std::ptr::{NonNull, null_mut};

use orogen_base::sync::Mutex;
use orogen_base::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::arena::Arena;
use crate::node::Header;

/// Entries of a page; few in a model, so that pages split.
const WIDTH: usize = if cfg!(orogen_shuttle) { 2 } else { 64 };
/// Levels at most: pages are half full at least, but for the last of each level.
const DEPTH_MAX: usize = 8;
/// Looks without the lock before one with it.
const TRIES: usize = 8;

#[repr(C)]
struct Page {
    len: AtomicUsize,
    /// The right sibling.
    next: AtomicPtr<Page>,
    /// The pages below; null in a leaf. Set once.
    children: *const Children,
    prefixes: [AtomicU64; WIDTH],
    nodes: [AtomicPtr<Header>; WIDTH],
}

type Children = [AtomicPtr<Page>; WIDTH];

/// A node with its prefix, and the page whose first it is, if that is not a leaf's entry.
#[derive(Clone, Copy)]
struct Entry {
    prefix: u64,
    node: *mut Header,
    child: *mut Page,
}

impl Page {
    #[inline]
    fn len(&self) -> usize {
        self.len.load(Ordering::Acquire).min(WIDTH)
    }

    /// # Safety
    /// The arena of the page lives for `'a`.
    #[inline]
    unsafe fn next<'a>(&self) -> Option<&'a Page> {
        let next = self.next.load(Ordering::Acquire);
        // SAFETY: published whole, never freed before the arena.
        NonNull::new(next).map(|page| unsafe { page.as_ref() })
    }

    /// The pages below; `None` in a leaf.
    #[inline]
    fn children(&self) -> Option<&Children> {
        // SAFETY: null or right behind the page, and lives as long.
        unsafe { self.children.as_ref() }
    }

    fn entry(&self, at: usize) -> Entry {
        let child = self.children().map(|c| c[at].load(Ordering::Acquire));
        Entry {
            prefix: self.prefixes[at].load(Ordering::Relaxed),
            node: self.nodes[at].load(Ordering::Acquire),
            child: child.unwrap_or_default(),
        }
    }

    /// Only under the lock, or before the page is published.
    fn set(&self, at: usize, entry: Entry) {
        self.prefixes[at].store(entry.prefix, Ordering::Relaxed);
        self.nodes[at].store(entry.node, Ordering::Release);
        if let Some(children) = self.children() {
            children[at].store(entry.child, Ordering::Release);
        }
    }

    /// Makes room at `at` and puts `entry` there. Only under the lock, in a page that is not full.
    fn put(&self, at: usize, entry: Entry) {
        let len = self.len();
        for i in (at..len).rev() {
            self.set(i + 1, self.entry(i));
        }
        self.set(at, entry);
        self.len.store(len + 1, Ordering::Release);
    }

    /// True if the entry at `at` stands before what has `prefix`; `is_before` decides for nodes
    /// of the same prefix.
    #[inline]
    fn stands_before(
        &self,
        at: usize,
        prefix: u64,
        is_before: &impl Fn(NonNull<Header>) -> bool,
    ) -> bool {
        let own = self.prefixes[at].load(Ordering::Relaxed);
        if own != prefix {
            return own < prefix;
        }
        NonNull::new(self.nodes[at].load(Ordering::Acquire)).is_some_and(is_before)
    }

    /// The last entry that stands before; the first one where none does.
    #[inline]
    fn position(
        &self,
        len: usize,
        prefix: u64,
        is_before: &impl Fn(NonNull<Header>) -> bool,
    ) -> usize {
        // The last one of a smaller prefix, without branches that depend on keys.
        let mut low = 0;
        let mut count = len;
        while count > 1 {
            let half = count / 2;
            let is_less = self.prefixes[low + half].load(Ordering::Relaxed) < prefix;
            low = if is_less { low + half } else { low };
            count -= half;
        }
        // Then among those of the same prefix.
        if low + 1 < len && self.stands_before(low + 1, prefix, is_before) {
            let mut high = len;
            low += 1;
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if self.stands_before(middle, prefix, is_before) {
                    low = middle;
                } else {
                    high = middle;
                }
            }
        }
        low
    }
}

/// The tree.
pub(crate) struct Guide {
    root: AtomicPtr<Page>,
    /// The leftmost leaf, once there is one; for ever.
    first: AtomicPtr<Page>,
    /// Held by whoever changes pages. A leaf lock.
    growing: Mutex<()>,
    /// Where the pages are. Last, so that nothing outlives it.
    arena: Arena,
}

/// Pages from the root to a leaf, and the entry taken in each.
type Path<'a> = [Option<(&'a Page, usize)>; DEPTH_MAX];

/// Empty pages for the splits of one insert, by the level of the page that is split.
#[derive(Default)]
struct Fresh<'a> {
    right: [Option<&'a Page>; DEPTH_MAX],
    root: Option<&'a Page>,
}

impl Guide {
    pub(crate) fn new() -> Self {
        Self {
            root: AtomicPtr::new(null_mut()),
            first: AtomicPtr::new(null_mut()),
            growing: Mutex::new(()),
            arena: Arena::new(),
        }
    }

    pub(crate) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// A node that stands before what has `prefix`, the nearest one that is known; `None` if that
    /// is the head of the list. `is_before` tells of a node whether it stands before.
    #[inline]
    pub(crate) fn find(
        &self,
        prefix: u64,
        is_before: &impl Fn(NonNull<Header>) -> bool,
    ) -> Option<NonNull<Header>> {
        for _ in 0..TRIES {
            let root = NonNull::new(self.root.load(Ordering::Acquire))?;
            // SAFETY: published whole, never freed before the arena, which is ours.
            if let Ok(found) = self.descend(unsafe { root.as_ref() }, prefix, is_before) {
                return found;
            }
        }
        let _growing = self.growing.lock();
        let root = NonNull::new(self.root.load(Ordering::Acquire))?;
        // SAFETY: as above.
        let found = self.descend(unsafe { root.as_ref() }, prefix, is_before);
        found.unwrap_or_default()
    }

    /// `Err` if pages changed on the way and led too far right.
    #[inline]
    fn descend(
        &self,
        root: &Page,
        prefix: u64,
        is_before: &impl Fn(NonNull<Header>) -> bool,
    ) -> Result<Option<NonNull<Header>>, ()> {
        let mut page = root;
        loop {
            let len = page.len();
            let at = page.position(len, prefix, is_before);
            if at + 1 >= len
                // SAFETY: the arena outlives us.
                && let Some(next) = unsafe { page.next() }
                && next.stands_before(0, prefix, is_before)
            {
                page = next;
                continue;
            }
            let Some(children) = page.children() else {
                let node = NonNull::new(page.nodes[at].load(Ordering::Acquire)).ok_or(())?;
                if is_before(node) {
                    return Ok(Some(node));
                }
                let is_first = std::ptr::eq(page, self.first.load(Ordering::Relaxed));
                return if is_first && at == 0 {
                    Ok(None)
                } else {
                    Err(())
                };
            };
            let child = children[at].load(Ordering::Acquire);
            // SAFETY: published whole, never freed before the arena, which is ours.
            page = unsafe { NonNull::new(child).ok_or(())?.as_ref() };
        }
    }

    /// Adds a node, if nobody else changes the tree just now.
    pub(crate) fn add(
        &self,
        prefix: u64,
        node: NonNull<Header>,
        is_before: &impl Fn(NonNull<Header>) -> bool,
    ) {
        let Some(_growing) = self.growing.try_lock() else {
            return;
        };
        let entry = Entry {
            prefix,
            node: node.as_ptr(),
            child: null_mut(),
        };
        let Some(root) = NonNull::new(self.root.load(Ordering::Acquire)) else {
            let Some(page) = new_page(&self.arena, true) else {
                return;
            };
            page.put(0, entry);
            let page = std::ptr::from_ref(page).cast_mut();
            self.first.store(page, Ordering::Relaxed);
            self.root.store(page, Ordering::Release);
            return;
        };
        let mut path = Path::default();
        // SAFETY: published whole, never freed before the arena, which is ours.
        let mut page = unsafe { root.as_ref() };
        let mut depth = 0;
        loop {
            let at = page.position(page.len(), prefix, is_before);
            path[depth] = Some((page, at));
            let Some(children) = page.children() else {
                break;
            };
            depth += 1;
            if depth == DEPTH_MAX {
                return;
            }
            let child = children[at].load(Ordering::Acquire);
            // SAFETY: under the lock every entry of such a page has its child.
            page = unsafe { &*child };
        }
        // All at once, before anything is changed: half a split would hide a page from writers.
        // Without memory the node is left out.
        let mut fresh = Fresh::default();
        let mut level = depth;
        while let Some((page, _)) = path[level].filter(|(page, _)| page.len() == WIDTH) {
            let Some(right) = new_page(&self.arena, page.children().is_none()) else {
                return;
            };
            fresh.right[level] = Some(right);
            if level == 0 {
                fresh.root = new_page(&self.arena, false);
                if fresh.root.is_none() {
                    return;
                }
                break;
            }
            level -= 1;
        }
        self.insert(&fresh, &path, depth, entry, is_before);
    }

    /// Puts `entry` behind the place that `path` takes at `depth`, splitting full pages.
    fn insert(
        &self,
        fresh: &Fresh<'_>,
        path: &Path<'_>,
        depth: usize,
        entry: Entry,
        is_before: &impl Fn(NonNull<Header>) -> bool,
    ) {
        let Some((page, at)) = path[depth] else {
            return;
        };
        // Only the leftmost leaf gets what stands before its first; the first entries above it
        // are taken for smaller than all and never compared.
        let is_first =
            page.children().is_none() && !page.stands_before(at, entry.prefix, is_before);
        let at = at + usize::from(!is_first);
        let len = page.len();
        if len < WIDTH {
            page.put(at, entry);
            return;
        }
        let Some(right) = fresh.right[depth] else {
            return;
        };
        let next = page.next.load(Ordering::Relaxed);
        // Rising keys leave full pages behind them.
        let middle = if at == len && next.is_null() {
            right.put(0, entry);
            len
        } else {
            let middle = len / 2;
            for i in middle..len {
                right.set(i - middle, page.entry(i));
            }
            right.len.store(len - middle, Ordering::Relaxed);
            middle
        };
        right.next.store(next, Ordering::Relaxed);
        let address = std::ptr::from_ref(right).cast_mut();
        page.next.store(address, Ordering::Release);
        let separator = Entry {
            child: address,
            ..right.entry(0)
        };
        if depth > 0 {
            self.insert(fresh, path, depth - 1, separator, is_before);
        } else if let Some(root) = fresh.root {
            let left = Entry {
                child: std::ptr::from_ref(page).cast_mut(),
                ..page.entry(0)
            };
            root.put(0, left);
            root.put(1, separator);
            let root = std::ptr::from_ref(root).cast_mut();
            self.root.store(root, Ordering::Release);
        }
        if middle == len {
            return;
        }
        page.len.store(middle, Ordering::Release);
        if at > middle {
            right.put(at - middle, entry);
        } else {
            page.put(at, entry);
        }
    }

    /// Checks the order of every page and the separators of all.
    #[cfg(test)]
    pub(crate) fn check(&self, is_before: &impl Fn(NonNull<Header>, NonNull<Header>) -> bool) {
        let mut first = self.root.load(Ordering::Acquire);
        let mut above: Vec<(*mut Header, *mut Page)> = Vec::new();
        let mut is_root = true;
        while let Some(start) = NonNull::new(first) {
            let mut entries: Vec<(*mut Header, *mut Page)> = Vec::new();
            let mut pages = Vec::new();
            // SAFETY: published whole, never freed before the arena.
            let mut page = Some(unsafe { start.as_ref() });
            while let Some(p) = page {
                assert!((1..=WIDTH).contains(&p.len()));
                pages.push((p.nodes[0].load(Ordering::Relaxed), std::ptr::from_ref(p)));
                entries.extend((0..p.len()).map(|i| (p.entry(i).node, p.entry(i).child)));
                // SAFETY: as above.
                page = unsafe { p.next() };
            }
            let is_leaf = entries[0].1.is_null();
            for pair in entries[usize::from(!is_leaf)..].windows(2) {
                let [a, b] = [pair[0].0, pair[1].0].map(|n| NonNull::new(n).unwrap());
                assert!(is_before(a, b), "a level is not sorted");
            }
            if !is_root {
                let below: Vec<_> = pages.iter().map(|(_, p)| p.cast_mut()).collect();
                let named: Vec<_> = above.iter().map(|e| e.1).collect();
                assert_eq!(below, named, "every page is entered above, in order");
                for (page, entry) in pages.iter().zip(&above).skip(1) {
                    assert_eq!(page.0, entry.0, "a separator is its page's first");
                }
            }
            is_root = false;
            first = entries[0].1;
            above = entries;
        }
    }
}

/// An empty page; `None` if there is no memory for it.
fn new_page(arena: &Arena, is_leaf: bool) -> Option<&Page> {
    let below = if is_leaf { 0 } else { size_of::<Children>() };
    let page = arena
        .allocate(size_of::<Page>() + below)
        .ok()?
        .cast::<Page>();
    let mut children = std::ptr::null();
    if !is_leaf {
        // SAFETY: they follow the page within the piece.
        let place = unsafe { page.add(1) }.cast::<Children>();
        // SAFETY: the memory is ours alone and so long; the arena's alignment is theirs.
        unsafe { place.write(std::array::from_fn(|_| AtomicPtr::new(null_mut()))) };
        children = place.as_ptr();
    }
    let empty = Page {
        len: AtomicUsize::new(0),
        next: AtomicPtr::new(null_mut()),
        children,
        prefixes: std::array::from_fn(|_| AtomicU64::new(0)),
        nodes: std::array::from_fn(|_| AtomicPtr::new(null_mut())),
    };
    // SAFETY: as above.
    unsafe { page.write(empty) };
    // SAFETY: initialised above, and it lives as long as the arena.
    Some(unsafe { page.as_ref() })
}
