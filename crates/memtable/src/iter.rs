//! The cursor over the list.
//!
//! It stands on a node and keeps the memtable alive. Forwards it follows links; backwards it
//! searches, since links lead only forwards.
#![expect(
    unsafe_code,
    reason = "remembers the address of a node beside its owner"
)]

use std::ptr::NonNull;
use std::sync::Arc;

use orogen_base::protection::PROTECTION_LEN;
use orogen_base::{Error, InternalIterator, Result};

use crate::guided_list::GuidedListMemTable;
use crate::node::{Header, Node};

pub(crate) struct Iter {
    /// Of a node of `table`'s list.
    here: Option<NonNull<Header>>,
    table: Arc<GuidedListMemTable>,
    /// An entry that is not what was inserted ended the walk.
    damage: Option<Error>,
}

// SAFETY: the address is of an immutable node that `table` keeps alive wherever both are moved.
unsafe impl Send for Iter {}

impl Iter {
    pub(crate) fn new(table: Arc<GuidedListMemTable>) -> Self {
        Self {
            here: None,
            table,
            damage: None,
        }
    }

    #[inline]
    fn node(&self) -> Option<Node<'_>> {
        // SAFETY: `here` was set from a node of this list.
        self.here
            .map(|address| unsafe { self.table.list().node(address) })
    }

    /// Goes to a node, and looks at it where entries have checksums.
    #[inline]
    fn go(&mut self, to: Option<NonNull<Header>>) {
        self.here = to;
        if self.table.is_protected() {
            self.verify();
        }
    }

    fn verify(&mut self) {
        let found = self.node().map(|node| self.table.entry(node).map(|_| ()));
        self.damage = found.and_then(Result::err);
        if self.damage.is_some() {
            self.here = None;
        }
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
        self.go(self.table.list().first().map(Node::address));
    }

    fn seek_to_last(&mut self) {
        self.go(self.table.list().last().map(Node::address));
    }

    fn seek(&mut self, target: &[u8]) {
        let list = self.table.list();
        let (_, not_before) = list.find(&list.probe_internal(target));
        let to = not_before.map(Node::address);
        self.go(to);
    }

    fn seek_for_prev(&mut self, target: &[u8]) {
        let list = self.table.list();
        let probe = list.probe_internal(target);
        let (before, not_before) = list.find(&probe);
        let exact = not_before.filter(|&node| list.is_exactly(node, &probe));
        let to = exact.or(before).map(Node::address);
        self.go(to);
    }

    #[inline]
    fn next(&mut self) {
        let next = self.standing().following();
        if let Some(ahead) = next.and_then(Node::following) {
            ahead.prefetch();
        }
        let to = next.map(Node::address);
        self.go(to);
    }

    fn prev(&mut self) {
        let list = self.table.list();
        let (before, _) = list.find(&list.probe_internal(self.standing().key()));
        let to = before.map(Node::address);
        self.go(to);
    }

    #[inline]
    fn key(&self) -> &[u8] {
        self.standing().key()
    }

    #[inline]
    fn value(&self) -> &[u8] {
        let value = self.standing().value();
        if self.table.is_protected() {
            return &value[..value.len() - PROTECTION_LEN];
        }
        value
    }

    fn status(&self) -> Result<()> {
        self.damage.clone().map_or(Ok(()), Err)
    }
}
