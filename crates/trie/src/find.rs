//! Looking a key up. `Hot path`: no store, no second try.

use crate::node::{Head, Inner, Leaf};
use crate::view::{Ref, View};

/// Where the cell of `key` is, below the root at `root`.
#[inline]
pub(crate) fn find(view: View<'_>, root: Ref, key: &[u8]) -> Option<Ref> {
    let mut at = view.load(root);
    let (mut depth, mut is_far) = (0, false);
    loop {
        if at == 0 {
            return None;
        }
        let head = Head::of(view, at);
        if head.is_leaf() {
            let leaf = Leaf::new(view, at, head);
            return (leaf.rest(depth) == &key[depth..]).then(|| leaf.cell());
        }
        let node = Inner::new(view, at, head);
        let path = node.path(depth);
        if !path.is_empty() {
            if !key[depth..].starts_with(path) {
                return None;
            }
            depth += path.len();
        }
        let slot = match key.get(depth) {
            Some(&label) => {
                depth += 1;
                node.slot(label)?
            }
            None => node.end()?,
        };
        at = view.load(slot);
        head.ask_for_child(view, at);
        // The first of them has its children in a cache.
        if head.is_of_full() {
            if is_far && let Some(&label) = key.get(depth) {
                head.ask_for_slots_of_child(view, at, label);
            }
            is_far = true;
        }
    }
}
