//! Ordered maps of byte strings in one block of memory with relative addresses.
//!
//! A radix tree with nodes by fan-out and compressed paths. [`Trie`] is read and written by many threads at a time;
//! [`LocalTrie`] has one owner, costs next to nothing to make and to empty, and lets keys be taken away.
//! Both lay out nodes the same way (`node.rs`), and a [`Cursor`] goes through either.
//!
//! ```text
//! insert -> go down -> prepare apart -> publish by one store      (insert.rs)
//! get    -> go down: no store, no second try                       (find.rs)
//! memory -> reserved block -> chunks of lanes -> pieces; freed ones wait for who is inside (pieces.rs, epoch.rs)
//! ```
//! 1. A node that can be reached changes only where a child is added behind the last one, or a slot
//!    is set. So a reader sees a whole tree at any moment, old or new.
//! 2. A key's cell never moves while the key is there: leaves are put below new nodes, never copied.
//!
//! What it costs, for 10 million random keys of 16 bytes: nodes of the first two levels are full and take 260 KiB, which
//! the second cache holds; the 65,536 of the third have 115 children each, and take 42 MiB: one
//! line for their labels, which is asked for ahead, one for the slot. 55 of 100 keys have their leaf there; the others share
//! a small node, made together with one of its leaves. Then the leaf: 3 bytes and the rest of the key and the cell, in one or two lines.
//! So four misses, where a skip list has fifteen to twenty. Bytes a key: 16 for the leaf, 4 for its reference, 3 for small nodes.
//!
//! ADR: docs/adr/2026-11-22-trie.md.

mod poison;
mod view;
mod labels;
mod node;
mod event;
mod pieces;
mod epoch;
mod find;
mod insert;
mod cell;
mod cursor;
mod shared;
mod writer;
mod local;

#[cfg(all(test, orogen_shuttle))]
mod model;
#[cfg(test)]
mod tests;

pub use cell::Cell;
pub use cursor::{Cursor, Map, Root};
pub use event::Event;
pub use local::LocalTrie;
pub use shared::{Growth, Moment, Reader, Trie, Usage};
pub use writer::Writer;

use std::sync::atomic::{AtomicU64, Ordering};

/// Roots of a map: their slots are behind the block's first word.
pub const ROOTS_MAX: u32 = 1 << 16;

/// Bytes that references of 32 bits reach.
pub const BLOCK_MAX: usize = 16 << 30;

/// A number that no other map has, nor this one before it was emptied.
fn map_number() -> u64 {
    static MAPS: AtomicU64 = AtomicU64::new(1);
    MAPS.fetch_add(1, Ordering::Relaxed)
}
