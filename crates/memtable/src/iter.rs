//! The cursor over the skip list.
//!
//! It stands on a node and keeps the memtable alive. Forwards it follows links; backwards it
//! searches, since links lead only forwards.
#![expect(
    unsafe_code,
    reason = "remembers the address of a node beside its owner"
)]

use std::ptr::NonNull;
use std::sync::Arc;

use orogen_base::{InternalIterator, Result};

use crate::node::{Header, Node};
use crate::skiplist::SkipListMemTable;

pub(crate) struct Iter {
    /// Of a node of `table`'s list.
    here: Option<NonNull<Header>>,
    table: Arc<SkipListMemTable>,
}

// SAFETY: the address is of an immutable node that `table` keeps alive wherever both are moved.
unsafe impl Send for Iter {}

impl Iter {
    pub(crate) fn new(table: Arc<SkipListMemTable>) -> Self {
        Self { here: None, table }
    }

    #[inline]
    fn node(&self) -> Option<Node<'_>> {
        // SAFETY: `here` was set from a node of this list.
        self.here
            .map(|address| unsafe { self.table.list().node(address) })
    }

    /// The node here.
    fn standing(&self) -> Node<'_> {
        self.node()
            .expect("the cursor is valid, as the caller promised")
    }
}

impl InternalIterator for Iter {
    #[inline]
    fn valid(&self) -> bool {
        self.here.is_some()
    }

    fn seek_to_first(&mut self) {
        self.here = self.table.list().first().map(Node::address);
    }

    fn seek_to_last(&mut self) {
        self.here = self.table.list().last().map(Node::address);
    }

    fn seek(&mut self, target: &[u8]) {
        let list = self.table.list();
        let (_, not_before) = list.find(&list.probe_internal(target));
        self.here = not_before.map(Node::address);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let list = self.table.list();
        let probe = list.probe_internal(target);
        let (before, not_before) = list.find(&probe);
        let exact = not_before.filter(|&node| list.is_exactly(node, &probe));
        self.here = exact.or(before).map(Node::address);
    }

    #[inline]
    fn next(&mut self) {
        let next = self.standing().following();
        if let Some(ahead) = next.and_then(Node::following) {
            ahead.prefetch();
        }
        self.here = next.map(Node::address);
    }

    fn prev(&mut self) {
        let list = self.table.list();
        let (before, _) = list.find(&list.probe_internal(self.standing().key()));
        self.here = before.map(Node::address);
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.standing().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        self.standing().value()
    }

    fn status(&self) -> Result<()> {
        Ok(())
    }
}
