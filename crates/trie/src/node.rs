//! Nodes as they lie in the block. `Hot path`.
//!
//! ```text
//! leaf       kind+flags 1 | length 1 | depth 1 | rest of the key, padded | cell
//! long leaf  kind+flags 4 | length 4 | depth 4 | rest of the key, padded | cell      rest > 255
//! one        kind+flags 1 | path length 1 | depth 1 | label 1 | path | [end] | child
//! two        kind+flags 1 | path length, depth, 4 bits each | 2 labels | path | [end] | 2 children
//! 4 to 128   kind+flags 1 | path length 1 | depth 1 | count 1 | path | labels | [end] | children
//! full       kind+flags 1 | path length 1 | depth 1 | lines 1 | path | end | 256 children
//! ```
//! A child is a reference of 4 bytes, 0 if there is none. `end` is the leaf of the key that ends at the node: cells are in leaves
//! only, and a leaf never moves. Labels of 4 to 128 stand in the order in which they came.
//!
//! Depth is the length of the key before the path, or before the leaf's rest, when the node was
//! made: its low bits. A node that is put below a new one keeps its path; what of it was passed
//! above is the depth at which one arrives less this one, which is at most the path's length, so the low bits tell.
//!
//! Lines of a full node: cache lines of its largest child that is not full itself, as far as children grew below it. Nothing depends on it but
//! what readers ask memory for ahead.

use crate::labels::Labels;
use crate::view::{Ref, View, WORD};

pub(crate) const LEAF: u32 = 1;
pub(crate) const LONG_LEAF: u32 = 2;
pub(crate) const ONE: u32 = 3;
pub(crate) const TWO: u32 = 4;
pub(crate) const FOUR: u32 = 5;
pub(crate) const FULL: u32 = 15;

/// Children of each kind that has some.
const ROOM: [u32; 16] = [0, 0, 0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256];

/// Longest rest of a key in a leaf, and longest path.
pub(crate) const SHORT_MAX: usize = 255;
/// Longest path of a node of two children.
const TWO_PATH_MAX: usize = 15;

/// Slots of a full node that a cursor asks for what is in them before it comes there.
const FAR: u8 = 10;

/// Bytes of a cache line.
const LINE: usize = 64;
/// A writer changes the node.
const LOCKED: u32 = 1 << 4;
/// The node was replaced by another one; never taken back.
const REPLACED: u32 = 1 << 5;
/// The node has a word for the leaf of the key that ends at it.
const END: u32 = 1 << 6;
/// A child more.
const COUNT_ONE: u32 = 1 << 24;

/// The first word of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head(pub(crate) u32);

impl Head {
    #[inline(always)]
    pub(crate) fn of(view: View<'_>, at: Ref) -> Self {
        Self(view.load(at))
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> u32 {
        self.0 & 15
    }

    #[inline(always)]
    pub(crate) fn is_leaf(self) -> bool {
        self.kind() <= LONG_LEAF
    }

    pub(crate) fn is_locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    pub(crate) fn is_replaced(self) -> bool {
        self.0 & REPLACED != 0
    }

    #[inline(always)]
    pub(crate) fn has_end(self) -> bool {
        self.0 & END != 0
    }

    pub(crate) fn locked(self) -> Self {
        Self(self.0 | LOCKED)
    }

    pub(crate) fn unlocked(self) -> Self {
        Self(self.0 & !LOCKED)
    }

    pub(crate) fn replaced(self) -> Self {
        Self(self.unlocked().0 | REPLACED)
    }

    pub(crate) fn with_one_more(self) -> Self {
        Self(self.0 + COUNT_ONE)
    }

    /// Bytes of the path, or of a short leaf's rest of the key.
    #[inline(always)]
    fn len(self) -> usize {
        let bits = if self.kind() == TWO { 15 } else { 255 };
        (self.0 >> 8) as usize & bits
    }

    /// How many bytes of path or rest were passed before `depth`.
    #[inline(always)]
    fn passed(self, depth: usize) -> usize {
        if self.kind() == TWO {
            depth.wrapping_sub((self.0 >> 12) as usize) & 15
        } else {
            depth.wrapping_sub((self.0 >> 16) as usize) & 255
        }
    }

    /// Children, those that were taken away included.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        match self.kind() {
            FULL => 256,
            ONE => 1,
            TWO => 2,
            _ => (self.0 >> 24) as usize,
        }
    }

    /// Asks for what a child of this node has behind its first cache line: it is far away, and may lie in two: leaves
    /// begin anywhere, and labels below a full node are many.
    #[inline(always)]
    pub(crate) fn ask_for_child(self, view: View<'_>, child: Ref) {
        if self.kind() == FULL {
            view.prefetch(child, LINE);
            view.prefetch(child, 2 * LINE);
        } else {
            view.prefetch(child, 36);
        }
    }

    /// The same of a full node far down, below whose child `label` is looked for. Which slot that is will be known only when the
    /// child's labels are here, and slots are as far away as these. So all of them are asked for; of a full child it
    /// is known already.
    #[inline(always)]
    pub(crate) fn ask_for_slots_of_child(self, view: View<'_>, child: Ref, label: u8) {
        for line in 3..=self.child_lines() {
            view.prefetch(child, line as usize * LINE);
        }
        view.prefetch(child, (2 + usize::from(label)) * WORD);
    }

    #[inline(always)]
    pub(crate) fn is_of_full(self) -> bool {
        self.kind() == FULL
    }

    /// Cache lines of a full node's largest child that is not full.
    #[inline(always)]
    pub(crate) fn child_lines(self) -> u32 {
        self.0 >> 24
    }

    /// True if no label finds room.
    #[inline]
    pub(crate) fn is_full(self) -> bool {
        self.count() as u32 == ROOM[self.kind() as usize]
    }
}

#[inline(always)]
fn words_of(bytes: usize) -> u32 {
    bytes.div_ceil(WORD) as u32
}

/// A leaf.
#[derive(Clone, Copy)]
pub(crate) struct Leaf<'a> {
    view: View<'a>,
    at: Ref,
    head: Head,
}

impl<'a> Leaf<'a> {
    #[inline(always)]
    pub(crate) fn new(view: View<'a>, at: Ref, head: Head) -> Self {
        debug_assert!(head.kind() == LEAF || head.kind() == LONG_LEAF, "a leaf");
        Self { view, at, head }
    }

    /// The key's bytes from `depth` on.
    #[inline(always)]
    pub(crate) fn rest(self, depth: usize) -> &'a [u8] {
        if self.head.kind() == LEAF {
            let passed = self.head.passed(depth);
            debug_assert!(passed <= self.head.len(), "passed by");
            return self
                .view
                .bytes(self.at, 3 + passed, self.head.len() - passed);
        }
        let len = self.view.load_relaxed(self.at + 1) as usize;
        let passed = depth - self.view.load_relaxed(self.at + 2) as usize;
        self.view.bytes(self.at + 3, passed, len - passed)
    }

    /// Where its cell is.
    #[inline(always)]
    pub(crate) fn cell(self) -> Ref {
        if self.head.kind() == LEAF {
            return self.at + 1 + (self.head.len() as u32 + 2) / 4;
        }
        self.at + 3 + words_of(self.view.load_relaxed(self.at + 1) as usize)
    }

    /// Words that a leaf of so many bytes takes, without its cell.
    pub(crate) fn words(rest: usize) -> u32 {
        if rest <= SHORT_MAX {
            1 + (rest as u32 + 2) / 4
        } else {
            3 + words_of(rest)
        }
    }

    /// Makes the leaf of a key with `rest` behind `depth` bytes, but for its cell.
    #[inline]
    pub(crate) fn make(view: View<'_>, at: Ref, rest: &[u8], depth: usize) {
        if rest.len() <= SHORT_MAX {
            view.write(at, 0, &[LEAF as u8, rest.len() as u8, depth as u8]);
            view.write(at, 3, rest);
        } else {
            view.put(at, LONG_LEAF);
            view.put(at + 1, rest.len() as u32);
            view.put(at + 2, depth as u32);
            view.write(at + 3, 0, rest);
        }
    }
}

/// What an inner node is to be.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    kind: u32,
    path: usize,
    has_end: bool,
}

impl Shape {
    /// With room for so many children and a path of so many bytes.
    pub(crate) fn new(children: usize, path: usize, has_end: bool) -> Self {
        debug_assert!(path <= SHORT_MAX, "a path fits into one node");
        let mut kind = ONE;
        while (ROOM[kind as usize] as usize) < children {
            kind += 1;
        }
        if kind == TWO && path > TWO_PATH_MAX {
            kind = FOUR;
        }
        // In a model nine children are many.
        if cfg!(orogen_shuttle) && children > 8 {
            kind = FULL;
        }
        Self {
            kind,
            path,
            has_end: has_end || kind == FULL,
        }
    }

    pub(crate) fn kind(self) -> u32 {
        self.kind
    }

    fn label_words(self) -> u32 {
        match self.kind {
            ONE | TWO | FULL => 0,
            kind => ROOM[kind as usize] / 4,
        }
    }

    pub(crate) fn words(self) -> u32 {
        1 + words_of(self.path)
            + self.label_words()
            + u32::from(self.has_end)
            + ROOM[self.kind as usize]
    }

    /// Makes the node with its path, before which keys have `depth` bytes, and without children.
    /// Those of kinds `ONE` and `TWO` have to be set then.
    pub(crate) fn make<'a>(self, view: View<'a>, at: Ref, path: &[u8], depth: usize) -> Inner<'a> {
        debug_assert_eq!(path.len(), self.path, "the path it was shaped for");
        let end = if self.has_end { END } else { 0 };
        let low = if self.kind == TWO {
            (path.len() as u32) << 8 | (depth as u32 & 15) << 12
        } else {
            (path.len() as u32) << 8 | (depth as u32 & 255) << 16
        };
        let head = Head(self.kind | end | low);
        view.put(at, head.0);
        view.write(at + 1, 0, path);
        let node = Inner::new(view, at, head);
        if self.kind == FULL {
            view.clear(node.children, ROOM[FULL as usize] as usize);
        }
        if let Some(end) = node.end() {
            view.put(end, 0);
        }
        node
    }
}

/// An inner node as its head was when it was read.
#[derive(Clone, Copy)]
pub(crate) struct Inner<'a> {
    view: View<'a>,
    pub(crate) at: Ref,
    pub(crate) head: Head,
    /// First word of the labels.
    labels: Ref,
    /// Word of the first child.
    children: Ref,
}

impl<'a> Inner<'a> {
    #[inline(always)]
    pub(crate) fn new(view: View<'a>, at: Ref, head: Head) -> Self {
        debug_assert!(!head.is_leaf(), "inner");
        let kind = head.kind();
        let labels = at + 1 + words_of(head.len());
        let label_words = match kind {
            ONE | TWO | FULL => 0,
            _ => ROOM[kind as usize] / 4,
        };
        let children = labels + label_words + u32::from(head.has_end());
        Self {
            view,
            at,
            head,
            labels,
            children,
        }
    }

    /// What of the path is behind `depth`.
    #[inline(always)]
    pub(crate) fn path(&self, depth: usize) -> &'a [u8] {
        let len = self.head.len();
        if len == 0 {
            return &[];
        }
        let passed = self.head.passed(depth);
        debug_assert!(passed <= len, "passed by");
        self.view.bytes(self.at + 1, passed, len - passed)
    }

    /// The slot of the key that ends here.
    #[inline(always)]
    pub(crate) fn end(&self) -> Option<Ref> {
        self.head.has_end().then(|| self.children - 1)
    }

    pub(crate) fn words(&self) -> u32 {
        self.children - self.at + ROOM[self.head.kind() as usize]
    }

    /// Remembers in this full node that a child has got this shape. Two who do so at once may lose one of the two: all else in the head
    /// of a full node never changes.
    #[inline]
    pub(crate) fn remember_child(&self, child: Shape) {
        debug_assert!(self.head.is_of_full(), "a node that remembers");
        let lines = (child.words() as usize * WORD).div_ceil(LINE) as u32;
        if child.kind != FULL && (self.head.child_lines() + 1..256).contains(&lines) {
            let without = self.head.0 & (COUNT_ONE - 1);
            let head = without | (lines << 24);
            self.view.store_relaxed(self.at, head);
        }
    }

    #[inline(always)]
    fn labels(&self) -> Labels<'a> {
        Labels {
            view: self.view,
            at: self.labels,
            count: self.head.count(),
        }
    }

    /// Label of one of a node with two, or the one of a node with one.
    #[inline(always)]
    fn own_label(&self, index: usize) -> u8 {
        match self.head.kind() {
            ONE => (self.head.0 >> 24) as u8,
            _ => (self.head.0 >> (16 + 8 * index)) as u8,
        }
    }

    /// The slot of the child with `label`.
    #[inline(always)]
    pub(crate) fn slot(&self, label: u8) -> Option<Ref> {
        let index = match self.head.kind() {
            FULL => usize::from(label),
            TWO if self.own_label(0) == label => 0,
            TWO if self.own_label(1) == label => 1,
            ONE if self.own_label(0) == label => 0,
            ONE | TWO => return None,
            _ => self.labels().find(label)?,
        };
        Some(self.children + index as u32)
    }

    /// Adds to `order` which of the counted children comes first, second, and so on by its label;
    /// false if the node has so few or so many that it tells that itself.
    pub(crate) fn add_order(&self, order: &mut Vec<u8>) -> bool {
        if !(FOUR..FULL).contains(&self.head.kind()) {
            return false;
        }
        let mut places = [0; 256];
        let mut labels = [0_u64; 4];
        let own = self.labels();
        for i in 0..own.count {
            let label = own.get(i);
            places[usize::from(label)] = i as u8;
            labels[usize::from(label) / 64] |= 1 << (label % 64);
        }
        for (i, mut labels) in labels.into_iter().enumerate() {
            while labels != 0 {
                order.push(places[i * 64 + labels.trailing_zeros() as usize]);
                labels &= labels - 1;
            }
        }
        true
    }

    /// Asks for what a cursor comes to some steps behind the child with `label` of a full node.
    #[inline]
    pub(crate) fn ask_ahead(&self, label: u8, up: bool) {
        if self.head.kind() != FULL {
            return;
        }
        let child = |distance: u8| {
            let label = if up {
                label.checked_add(distance)
            } else {
                label.checked_sub(distance)
            };
            Some(self.view.load(self.children + u32::from(label?)))
        };
        if let Some(far) = child(FAR) {
            self.view.prefetch(far, 0);
            self.view.prefetch(far, 36);
        }
        let near = child(FAR / 2).filter(|&at| at != 0);
        if let Some(at) = near {
            let head = Head::of(self.view, at);
            if !head.is_leaf() {
                Self::new(self.view, at, head).ask_for_children();
            }
        }
    }

    /// Asks for the children of a node that has one or two.
    #[inline]
    pub(crate) fn ask_for_children(&self) {
        if self.head.kind() <= TWO {
            for i in 0..self.head.count() as u32 {
                let child = self.view.load(self.children + i);
                self.view.prefetch(child, 0);
                self.view.prefetch(child, 36);
            }
        }
    }

    /// The label of a counted child, and its slot.
    #[inline]
    pub(crate) fn nth(&self, index: u8) -> (u8, Ref) {
        let label = self.labels().get(usize::from(index));
        (label, self.children + u32::from(index))
    }

    /// The child with the smallest label from `low` on, and its label. It may have been taken away.
    pub(crate) fn first_from(&self, low: u8) -> Option<(u8, Ref)> {
        self.extreme(low, true)
    }

    /// The child with the largest label up to `high`, and its label. It may have been taken away.
    pub(crate) fn last_to(&self, high: u8) -> Option<(u8, Ref)> {
        self.extreme(high, false)
    }

    #[inline]
    fn extreme(&self, bound: u8, up: bool) -> Option<(u8, Ref)> {
        let (label, index) = match self.head.kind() {
            FULL => {
                let is_there = |label: &u8| self.view.load(self.children + u32::from(*label)) != 0;
                let label = if up {
                    (bound..=u8::MAX).find(is_there)?
                } else {
                    (0..=bound).rev().find(is_there)?
                };
                (label, usize::from(label))
            }
            ONE | TWO => {
                let all = (0..self.head.count()).map(|i| (self.own_label(i), i));
                if up {
                    all.filter(|(label, _)| *label >= bound).min()?
                } else {
                    all.filter(|(label, _)| *label <= bound).max()?
                }
            }
            _ if up => self.labels().first_from(bound)?,
            _ => self.labels().last_to(bound)?,
        };
        Some((label, self.children + index as u32))
    }

    /// Adds a child behind the last one, where there is room: its word and its label, which nobody
    /// sees before the head counts it. Gives that head.
    pub(crate) fn append(&self, label: u8, child: Ref) -> Head {
        debug_assert!(!self.head.is_full(), "it has room");
        let labels = self.labels();
        labels.append(label);
        self.view
            .store_relaxed(self.children + labels.count as u32, child);
        self.head.with_one_more()
    }

    /// Sets all children of a node that nobody else knows of yet and that has room for them.
    pub(crate) fn fill(&self, children: impl Iterator<Item = (u8, Ref)>) {
        let mut head = self.head.0;
        for (i, (label, child)) in children.enumerate() {
            let slot = match self.head.kind() {
                FULL => u32::from(label),
                _ => i as u32,
            };
            self.view.put(self.children + slot, child);
            match self.head.kind() {
                FULL => {}
                ONE => head |= u32::from(label) << 24,
                TWO => head |= u32::from(label) << (16 + 8 * i),
                _ => {
                    self.view.write(self.labels, i, &[label]);
                    head += COUNT_ONE;
                }
            }
        }
        self.view.put(self.at, head);
    }

    /// Copies the children and the end of `old`, which nobody changes meanwhile, into this new node
    /// that nobody else knows of yet, and adds one if it is to. Full nodes are never copied.
    pub(crate) fn take_over(&self, old: &Inner<'_>, more: Option<(u8, Ref)>) {
        let view = self.view;
        if let (Some(from), Some(to)) = (old.end(), self.end()) {
            view.put(to, view.load_relaxed(from));
        }
        let count = old.head.count();
        if old.head.kind() >= FOUR && (FOUR..FULL).contains(&self.head.kind()) {
            view.copy(old.labels, self.labels, count.div_ceil(4));
            view.copy(old.children, self.children, count);
            let mut head = self.head.0 + COUNT_ONE * count as u32;
            if let Some((label, child)) = more {
                view.write(self.labels, count, &[label]);
                view.put(self.children + count as u32, child);
                head += COUNT_ONE;
            }
            view.put(self.at, head);
            return;
        }
        let children = (0..count).map(|i| {
            let label = if old.head.kind() >= FOUR {
                old.labels().get(i)
            } else {
                old.own_label(i)
            };
            (label, view.load_relaxed(old.children + i as u32))
        });
        self.fill(children.chain(more));
    }
}
