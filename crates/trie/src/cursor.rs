//! Going through the keys of a map in order.
//!
//! A cursor holds no lock and stays inside of nothing: between two calls it has the bytes of its
//! key and the way from the root to it. The way counts only while no memory of the map was used again;
//! else the next call looks its key up anew, and goes on from there.
//!
//! 1. Labels of the way are passed in their order, so keys are told strictly rising, or falling.
//! 2. Keys that were there when the cursor was last placed by `seek`, `seek_for_prev`, `first` or `last`, and stayed, are all
//!    told. Of those that came later it tells some.

use crate::cell::Cell;
use crate::find::find;
use crate::node::{Head, Inner, Leaf};
use crate::view::{Ref, View};

/// Where the roots of a map are. Each root is a map of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root(pub u32);

/// What tells whether nodes are still those that they were: whose, and when.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp {
    pub(crate) map: u64,
    pub(crate) time: u64,
}

/// A map that a [`Cursor`] can go through.
pub trait Map: sealed::Sealed {}

pub(crate) mod sealed {
    use super::{Ref, Root, Stamp, View};

    pub trait Sealed {
        /// Calls `look` with the memory, held still meanwhile, with the stamp of this visit, and
        /// with true if nodes of a visit with `stamp` are still what they were.
        fn visit<R>(&self, stamp: Stamp, look: impl FnOnce(View<'_>, Stamp, bool) -> R) -> R;

        /// True if a cell that was found in the visit with `stamp` is still that key's.
        fn keeps_cell(&self, stamp: Stamp) -> bool;

        /// The slot of a root.
        fn root(&self, root: Root) -> Ref;

        /// Words of a cell.
        fn cell_words(&self) -> usize;

        /// The memory of a cell, for as long as the map is borrowed.
        fn view(&self) -> View<'_>;
    }
}

/// A node on the way.
#[derive(Clone, Copy)]
struct Step {
    at: Ref,
    /// Bytes of the key before the node's path, and before the child's label.
    depth: u32,
    label_at: u32,
    /// Which child the way takes: `END`, or the label and 1.
    child: i16,
    /// Where in `orders` the node's children stand in order, and how many; `NO_ORDER` if they do not.
    order: u32,
    order_len: u16,
    /// How many of them come before `child`.
    before: u16,
}

const NO_ORDER: u32 = u32::MAX;
/// So far ahead children are asked for, and so far ahead are those of small nodes.
const AHEAD: usize = 6;
const AHEAD_BELOW: usize = 3;

/// The key that ends at a node comes before its other children.
const END: i16 = 0;
const BEFORE_ALL: i16 = -1;
const BEHIND_ALL: i16 = 257;

/// A place in a map, or none.
#[derive(Default)]
pub struct Cursor {
    key: Vec<u8>,
    way: Vec<Step>,
    /// Children of nodes of the way in the order of their labels, for those that were asked.
    orders: Vec<u8>,
    /// Where the key's cell is; 0 if there is no key.
    cell: Ref,
    root: Root,
    /// The root's slot.
    start: Ref,
    stamp: Stamp,
}

/// Which way to go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Next,
    Prev,
}

impl Cursor {
    /// A cursor at no key.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// True if it is at a key.
    #[inline]
    #[must_use]
    pub fn valid(&self) -> bool {
        self.cell != 0
    }

    /// The key that it is at; of no meaning if it is at none.
    #[inline]
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The cell of the key that it is at; `None` if it is at none, or the key was taken away.
    ///
    /// # Panics
    /// If it is at a key of another map, which has more roots.
    #[inline]
    #[must_use]
    pub fn cell<'a, M: Map>(&self, map: &'a M) -> Option<Cell<'a>> {
        if self.cell == 0 {
            return None;
        }
        let cell = if map.keeps_cell(self.stamp) {
            self.cell
        } else {
            let start = map.root(self.root);
            map.visit(self.stamp, |view, _, _| find(view, start, &self.key))?
        };
        Some(Cell(map.view().words(cell, map.cell_words())))
    }

    /// Goes to the first key of `root` that is not before `key`.
    pub fn seek<M: Map>(&mut self, map: &M, root: Root, key: &[u8]) {
        self.visit(map, root, |cursor, view| cursor.seek_in(view, key));
    }

    /// Goes to the last key of `root` that is not after `key`.
    pub fn seek_for_prev<M: Map>(&mut self, map: &M, root: Root, key: &[u8]) {
        self.visit(map, root, |cursor, view| {
            cursor.seek_in(view, key);
            if cursor.cell == 0 {
                cursor.start(view, To::Prev);
            } else if cursor.key != key {
                cursor.step(view, To::Prev);
            }
            // Keys may have come between it and where it first went.
            while cursor.cell != 0 && cursor.key.as_slice() > key {
                cursor.step(view, To::Prev);
            }
        });
    }

    /// Goes to the first key of `root`.
    pub fn first<M: Map>(&mut self, map: &M, root: Root) {
        self.visit(map, root, |cursor, view| cursor.start(view, To::Next));
    }

    /// Goes to the last key of `root`.
    pub fn last<M: Map>(&mut self, map: &M, root: Root) {
        self.visit(map, root, |cursor, view| cursor.start(view, To::Prev));
    }

    fn visit<M: Map>(&mut self, map: &M, root: Root, go: impl FnOnce(&mut Self, View<'_>)) {
        self.root = root;
        self.start = map.root(root);
        map.visit(Stamp::default(), |view, now, _| {
            self.stamp = now;
            go(self, view);
        });
    }

    /// Goes to the next key; to none behind the last.
    ///
    /// # Panics
    /// If it is at none, or at one of another map.
    pub fn next<M: Map>(&mut self, map: &M) {
        self.go(map, To::Next);
    }

    /// Goes to the key before; to none before the first.
    ///
    /// # Panics
    /// If it is at none, or at one of another map.
    pub fn prev<M: Map>(&mut self, map: &M) {
        self.go(map, To::Prev);
    }

    fn go<M: Map>(&mut self, map: &M, to: To) {
        assert!(self.valid(), "the cursor is at a key");
        map.visit(self.stamp, |view, now, is_same| {
            assert_eq!(self.stamp.map, now.map, "the cursor's map");
            if is_same {
                return self.step(view, to);
            }
            self.stamp = now;
            let key = std::mem::take(&mut self.key);
            self.seek_in(view, &key);
            match to {
                // The key itself may have been taken away.
                To::Next if self.cell == 0 || self.key != key => {}
                To::Prev if self.cell == 0 => self.start(view, To::Prev),
                _ => self.step(view, to),
            }
        });
    }

    /// Goes to the first or last key of all.
    fn start(&mut self, view: View<'_>, to: To) {
        self.way.clear();
        self.orders.clear();
        self.key.clear();
        self.cell = 0;
        let _ = self.enter_slot(view, self.start, to) || self.advance(view, to);
    }

    fn step(&mut self, view: View<'_>, to: To) {
        self.cell = 0;
        self.advance(view, to);
    }

    /// Takes what is in a slot: true if it is a leaf, where the cursor then is. A node becomes the
    /// end of the way, before its first or behind its last child.
    #[inline]
    fn enter_slot(&mut self, view: View<'_>, slot: Ref, to: To) -> bool {
        let at = view.load(slot);
        if at == 0 {
            return false;
        }
        let head = Head::of(view, at);
        if head.is_leaf() {
            self.arrive(Leaf::new(view, at, head));
            return true;
        }
        let child = match to {
            To::Next => BEFORE_ALL,
            To::Prev => BEHIND_ALL,
        };
        self.enter(&Inner::new(view, at, head), child);
        false
    }

    fn arrive(&mut self, leaf: Leaf<'_>) {
        self.key.extend_from_slice(leaf.rest(self.key.len()));
        self.cell = leaf.cell();
    }

    /// Puts a node behind the way, and its path behind the key.
    fn enter(&mut self, node: &Inner<'_>, child: i16) {
        let depth = self.key.len();
        self.key.extend_from_slice(node.path(depth));
        self.way.push(Step {
            at: node.at,
            depth: depth as u32,
            label_at: self.key.len() as u32,
            child,
            order: NO_ORDER,
            order_len: 0,
            before: 0,
        });
    }

    /// Goes to the nearest key beside where the way ends; false if there is none.
    fn advance(&mut self, view: View<'_>, to: To) -> bool {
        while let Some(step) = self.way.last_mut() {
            let node = Inner::new(view, step.at, Head::of(view, step.at));
            if step.order == NO_ORDER {
                take_order(&node, step, &mut self.orders, view, to);
            }
            let found = if step.order_len == 0 {
                beside(&node, step.child, to)
            } else {
                let order = &self.orders[step.order as usize..];
                beside_in(&node, step, order, view, to)
            };
            let Some((child, slot)) = found else {
                self.key.truncate(step.depth as usize);
                self.orders.truncate(step.order as usize);
                self.way.pop();
                continue;
            };
            step.child = child;
            self.key.truncate(step.label_at as usize);
            if child != END {
                let label = (child - 1) as u8;
                self.key.push(label);
                node.ask_ahead(label, to == To::Next);
            }
            if self.enter_slot(view, slot, to) {
                return true;
            }
        }
        false
    }

    fn seek_in(&mut self, view: View<'_>, key: &[u8]) {
        self.way.clear();
        self.orders.clear();
        self.key.clear();
        self.cell = 0;
        let mut slot = self.start;
        loop {
            let at = view.load(slot);
            if at == 0 {
                break;
            }
            let head = Head::of(view, at);
            let depth = self.key.len();
            let ours = &key[depth..];
            if head.is_leaf() {
                let leaf = Leaf::new(view, at, head);
                if leaf.rest(depth) >= ours {
                    return self.arrive(leaf);
                }
                break;
            }
            let node = Inner::new(view, at, head);
            let path = node.path(depth);
            if !ours.starts_with(path) {
                if path > ours {
                    self.enter(&node, BEFORE_ALL);
                }
                break;
            }
            let label = ours.get(path.len()).copied();
            self.enter(&node, label.map_or(END, |label| i16::from(label) + 1));
            let next = match label {
                Some(label) => node.slot(label),
                None => node.end(),
            };
            let Some(next) = next else { break };
            self.key.extend(label);
            slot = next;
        }
        self.advance(view, To::Next);
    }
}

/// The first child of a node behind `child`, or the last one before it, and its slot.
#[inline]
fn beside(node: &Inner<'_>, child: i16, to: To) -> Option<(i16, Ref)> {
    let numbered = |(label, slot)| (i16::from(label) + 1, slot);
    if to == To::Next {
        if child == BEFORE_ALL
            && let Some(end) = node.end()
        {
            return Some((END, end));
        }
        let low = u8::try_from(child.max(0)).ok()?;
        return node.first_from(low).map(numbered);
    }
    if child > END {
        let high = u8::try_from(child - 2).ok();
        if let Some(found) = high.and_then(|high| node.last_to(high)) {
            return Some(numbered(found));
        }
        return Some((END, node.end()?));
    }
    None
}

/// Puts the children of a node in order, the first time it is asked which comes next.
fn take_order(node: &Inner<'_>, step: &mut Step, orders: &mut Vec<u8>, view: View<'_>, to: To) {
    step.order = orders.len() as u32;
    if !node.add_order(orders) {
        node.ask_for_children();
        return;
    }
    let order = &orders[step.order as usize..];
    let is_before = |&index: &u8| i16::from(node.nth(index).0) + 1 < step.child;
    step.before = order.partition_point(is_before) as u16;
    step.order_len = order.len() as u16;
    for distance in 1..AHEAD {
        ask_for(node, step, order, view, to, distance);
    }
}

/// Asks for the child so far ahead.
#[inline(always)]
fn ask_for(
    node: &Inner<'_>,
    step: &Step,
    order: &[u8],
    view: View<'_>,
    to: To,
    distance: usize,
) -> Option<Ref> {
    let at = match to {
        To::Next => usize::from(step.before) + distance,
        To::Prev => usize::from(step.before).checked_sub(distance)?,
    };
    let child = view.load(node.nth(*order.get(at)?).1);
    view.prefetch(child, 0);
    view.prefetch(child, 36);
    (child != 0).then_some(child)
}

/// As [`beside`], of a node whose children stand in order.
#[inline]
fn beside_in(
    node: &Inner<'_>,
    step: &mut Step,
    order: &[u8],
    view: View<'_>,
    to: To,
) -> Option<(i16, Ref)> {
    let order = &order[..usize::from(step.order_len)];
    let index = match to {
        To::Next => {
            if step.child == BEFORE_ALL
                && let Some(end) = node.end()
            {
                return Some((END, end));
            }
            // The child that the way takes now may be among them.
            let at = order.get(usize::from(step.before))?;
            let is_this = i16::from(node.nth(*at).0) + 1 == step.child;
            let next = step.before + u16::from(is_this);
            let index = *order.get(usize::from(next))?;
            step.before = next;
            index
        }
        To::Prev => {
            if step.before == 0 {
                return (step.child > END).then(|| Some((END, node.end()?)))?;
            }
            step.before -= 1;
            order[usize::from(step.before)]
        }
    };
    ask_for(node, step, order, view, to, AHEAD);
    if let Some(at) = ask_for(node, step, order, view, to, AHEAD_BELOW) {
        let head = Head::of(view, at);
        if !head.is_leaf() {
            Inner::new(view, at, head).ask_for_children();
        }
    }
    let (label, slot) = node.nth(index);
    Some((i16::from(label) + 1, slot))
}
