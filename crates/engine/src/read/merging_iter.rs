//! Many cursors as one: entries of all places in internal key order, both ways.
//!
//! Children are ordered newest place to oldest. The children that stand on an entry are in a
//! binary heap whose slots carry the first eight bytes of the user key, so most comparisons touch
//! neither a child nor its key. While the same child stays first, a step costs one comparison
//! with the runner-up.
//!
//! Invariants: (1) going forward, each child stands on its first entry that is not before the
//! merged position, or after its last; going backward the mirror image; (2) the heap holds the
//! valid children that are not excluded, each once; (3) equal internal keys of two children come in the children's
//! order, reversed going backward, so turning around neither repeats nor loses one; (4) an error
//! of any child makes the merge invalid: the keys it hides may not pass unnoticed.
//! Source: RocksDB `table/merging_iterator.cc`. `Hot path`.

use std::cmp::Ordering;
use std::mem;

use orogen_base::key::{InternalKeyComparator, TRAILER_LEN};
use orogen_base::{Error, InternalIterator, PinnedValue, Result};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// Entries that are looked at ahead of several children together.
const PEEKED: usize = 256;
/// Bytes that a pointer to a value has at most.
const POINTER_LEN_MAX: usize = 64;
/// Entries that are looked at ahead of each.
const PEEKED_OF_EACH_MIN: usize = 8;

/// A child in the heap.
#[derive(Clone, Copy)]
struct Slot {
    /// The start of the child's user key as a number, 0 in orders that are not bytewise.
    prefix: u64,
    child: usize,
}

/// The merge of its children.
pub struct MergingIter<I> {
    order: InternalKeyComparator,
    bytewise: bool,
    children: Vec<I>,
    /// Children that have nothing to give until told otherwise; they are not even moved.
    excluded: Vec<bool>,
    heap: Vec<Slot>,
    /// The heap position of the best slot but the top; 0 while it is not known.
    runner_up: usize,
    direction: Direction,
    error: Option<Error>,
    /// The key at which the direction changes.
    turn: Vec<u8>,
}

impl<I: InternalIterator> MergingIter<I> {
    /// Merges `children`, ordered newest place to oldest. Not valid before a seek.
    #[must_use]
    pub fn new(order: InternalKeyComparator, children: Vec<I>) -> Self {
        Self {
            bytewise: order.user.is_bytewise(),
            order,
            heap: Vec::with_capacity(children.len()),
            excluded: vec![false; children.len()],
            children,
            runner_up: 0,
            direction: Direction::Forward,
            error: None,
            turn: Vec::new(),
        }
    }

    /// Which child the entry here is from.
    ///
    /// # Panics
    /// If the cursor is not valid.
    #[inline]
    #[must_use]
    pub fn child(&self) -> usize {
        self.heap[0].child
    }

    /// The children.
    #[must_use]
    pub fn children(&self) -> &[I] {
        &self.children
    }

    /// Says whether a child has nothing to give from the next seek on.
    pub fn set_excluded(&mut self, child: usize, is_excluded: bool) {
        self.excluded[child] = is_excluded;
    }

    /// [`InternalIterator::peek`] with several children: up to where the first of them does not tell more.
    #[cold]
    fn peek_all(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let of_each = (PEEKED / self.heap.len()).max(PEEKED_OF_EACH_MIN);
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut end: Option<Vec<u8>> = None;
        for (i, slot) in self.heap.iter().enumerate() {
            let child = &self.children[slot.child];
            let mut add = |key: &[u8], value: &[u8]| {
                // Large ones are no pointers.
                let value = value.get(..POINTER_LEN_MAX.min(value.len()));
                entries.push((key.to_vec(), value.unwrap_or_default().to_vec()));
            };
            if i > 0 {
                add(child.key(), child.value());
            }
            let mut last = child.key().to_vec();
            let mut left = of_each;
            let told = child.peek(&mut |key, value| {
                add(key, value);
                last.clear();
                last.extend_from_slice(key);
                left -= 1;
                left > 0
            });
            let is_first = |end: &Vec<u8>| self.order.compare(&last, end).is_lt();
            if told && end.as_ref().is_none_or(is_first) {
                end = Some(last);
            }
        }
        entries.sort_by(|a, b| self.order.compare(&a.0, &b.0));
        for (key, value) in &entries {
            let is_behind = |end: &Vec<u8>| self.order.compare(key, end).is_gt();
            if end.as_ref().is_some_and(is_behind) || !visit(key, value) {
                break;
            }
        }
    }

    fn included(&mut self) -> impl Iterator<Item = (usize, &mut I)> {
        self.children
            .iter_mut()
            .enumerate()
            .zip(&self.excluded)
            .filter(|c| !c.1)
            .map(|c| c.0)
    }

    /// Moves every child after `newer` that stands before the internal key `target` to it.
    ///
    /// Going forward only. The others stay, so the merge may stay where it is.
    pub fn seek_older(&mut self, newer: usize, target: &[u8]) {
        debug_assert!(self.direction == Direction::Forward);
        let order = self.order.clone();
        for (_, child) in self.included().filter(|c| c.0 > newer) {
            if child.valid() && order.compare(child.key(), target).is_lt() {
                child.seek(target);
            }
        }
        self.rebuild();
    }

    /// Moves every child after `newer` that stands after the internal key `target` back to it.
    ///
    /// Going backward only. The others stay, so the merge may stay where it is.
    pub fn seek_older_for_prev(&mut self, newer: usize, target: &[u8]) {
        debug_assert!(self.direction == Direction::Backward);
        let order = self.order.clone();
        for (_, child) in self.included().filter(|c| c.0 > newer) {
            if child.valid() && order.compare(child.key(), target).is_gt() {
                child.seek_for_prev(target);
            }
        }
        self.rebuild();
    }

    #[inline]
    fn prefix(&self, child: usize) -> u64 {
        if self.bytewise {
            prefix_of(self.children[child].key())
        } else {
            0
        }
    }

    /// True if slot `a` comes before slot `b` in the direction of travel.
    #[inline]
    fn before(&self, a: Slot, b: Slot) -> bool {
        let ordering = a
            .prefix
            .cmp(&b.prefix)
            .then_with(|| self.compare_whole(a, b));
        match self.direction {
            Direction::Forward => ordering.is_lt(),
            Direction::Backward => ordering.is_gt(),
        }
    }

    fn compare_whole(&self, a: Slot, b: Slot) -> Ordering {
        let (x, y) = (self.children[a.child].key(), self.children[b.child].key());
        self.order.compare(x, y).then(a.child.cmp(&b.child))
    }

    /// Fills the heap with the children that are valid.
    fn rebuild(&mut self) {
        self.heap.clear();
        for i in 0..self.children.len() {
            if self.excluded[i] {
                continue;
            }
            if self.children[i].valid() {
                let prefix = self.prefix(i);
                self.heap.push(Slot { prefix, child: i });
            } else {
                self.note_error(i);
            }
        }
        for i in (0..self.heap.len() / 2).rev() {
            self.sift_down(i);
        }
        self.runner_up = 0;
    }

    fn note_error(&mut self, child: usize) {
        if let (None, Err(error)) = (&self.error, self.children[child].status()) {
            self.error = Some(error);
        }
    }

    fn sift_down(&mut self, mut i: usize) {
        let n = self.heap.len();
        loop {
            let mut best = 2 * i + 1;
            if best >= n {
                return;
            }
            if best + 1 < n && self.before(self.heap[best + 1], self.heap[best]) {
                best += 1;
            }
            if !self.before(self.heap[best], self.heap[i]) {
                return;
            }
            self.heap.swap(i, best);
            i = best;
        }
    }

    /// Puts the heap in order after its top child moved.
    #[inline]
    fn top_moved(&mut self) {
        let top = self.heap[0].child;
        if !self.children[top].valid() {
            self.top_ended(top);
            return;
        }
        let n = self.heap.len();
        if n == 1 {
            return;
        }
        self.heap[0].prefix = self.prefix(top);
        if self.runner_up == 0 {
            let second_is_best = n > 2 && self.before(self.heap[2], self.heap[1]);
            self.runner_up = 1 + usize::from(second_is_best);
        }
        if self.before(self.heap[self.runner_up], self.heap[0]) {
            self.heap.swap(0, self.runner_up);
            self.sift_down(self.runner_up);
            self.runner_up = 0;
        }
    }

    #[cold]
    fn top_ended(&mut self, top: usize) {
        self.note_error(top);
        self.heap.swap_remove(0);
        self.sift_down(0);
        self.runner_up = 0;
    }

    /// Turns around and steps: each other child goes to the far side of the entry here.
    #[cold]
    fn turn(&mut self, direction: Direction) {
        let top = self.heap[0].child;
        let mut turn = mem::take(&mut self.turn);
        turn.clear();
        turn.extend_from_slice(self.children[top].key());
        self.direction = direction;
        let order = self.order.clone();
        for (i, child) in self.included() {
            let stands_on_turn =
                |c: &I| c.valid() && order.compare(c.key(), &turn) == Ordering::Equal;
            match direction {
                Direction::Forward if i == top => child.next(),
                Direction::Forward => {
                    child.seek(&turn);
                    if i < top && stands_on_turn(child) {
                        child.next();
                    }
                }
                Direction::Backward if i == top => child.prev(),
                Direction::Backward => {
                    child.seek_for_prev(&turn);
                    if i > top && stands_on_turn(child) {
                        child.prev();
                    }
                }
            }
        }
        self.turn = turn;
        self.rebuild();
    }

    fn reset(&mut self, direction: Direction) {
        self.direction = direction;
        self.error = None;
    }
}

impl<I: InternalIterator> InternalIterator for MergingIter<I> {
    #[inline]
    fn valid(&self) -> bool {
        !self.heap.is_empty() && self.error.is_none()
    }

    fn seek_to_first(&mut self) {
        self.reset(Direction::Forward);
        self.included().for_each(|c| c.1.seek_to_first());
        self.rebuild();
    }

    fn seek_to_last(&mut self) {
        self.reset(Direction::Backward);
        self.included().for_each(|c| c.1.seek_to_last());
        self.rebuild();
    }

    fn seek(&mut self, target: &[u8]) {
        self.reset(Direction::Forward);
        self.included().for_each(|c| c.1.seek(target));
        self.rebuild();
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        self.reset(Direction::Backward);
        self.included().for_each(|c| c.1.seek_for_prev(target));
        self.rebuild();
    }

    #[inline]
    fn next(&mut self) {
        if self.direction == Direction::Backward {
            return self.turn(Direction::Forward);
        }
        let top = self.heap[0].child;
        self.children[top].next();
        self.top_moved();
    }

    #[inline]
    fn prev(&mut self) {
        if self.direction == Direction::Forward {
            return self.turn(Direction::Backward);
        }
        let top = self.heap[0].child;
        self.children[top].prev();
        self.top_moved();
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.children[self.heap[0].child].key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.children[self.heap[0].child].value()
    }

    fn pinned_value(&self) -> Result<PinnedValue> {
        self.children[self.heap[0].child].pinned_value()
    }

    fn peek(&self, visit: &mut dyn FnMut(&[u8], &[u8]) -> bool) -> bool {
        if let [only] = self.heap[..] {
            return self.children[only.child].peek(visit);
        }
        self.peek_all(visit);
        true
    }

    fn status(&self) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        // One that stands on an entry may know that it is not to be believed.
        let mut standing = self.children.iter().filter(|child| child.valid());
        standing.try_for_each(I::status)
    }
}

/// The first eight bytes of the user key, zeros where it is shorter: if two prefixes differ, the
/// keys compare as they do.
#[inline]
fn prefix_of(internal_key: &[u8]) -> u64 {
    let n = internal_key.len() - TRAILER_LEN;
    if n >= 8
        && let Some(head) = internal_key.first_chunk::<8>()
    {
        return u64::from_be_bytes(*head);
    }
    let mut head = [0; 8];
    head[..n].copy_from_slice(&internal_key[..n]);
    u64::from_be_bytes(head)
}

#[cfg(test)]
mod tests;
