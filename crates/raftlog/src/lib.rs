//! Logs of many Raft groups in one sequence of files, in raft-engine's format.
//!
//! A group is a number with a run of entries (consecutive indexes, bytes we do not look into) and
//! a small map of keys. Callers write batches over any groups; a batch is there whole after a
//! crash or not at all.
//!
//! There are two ways in. [`raw`] takes and gives entries as bytes. The names of the crate's root, with
//! the feature `protobuf`, which is on by default, are those of raft-engine 0.4.2, whose entries are
//! messages: `raft-engine = { package = "orogen-raftlog", .. }` is all that a program has to change.
//! They are thin: what they do is done by the other.
//!
//! The flow of a write: [`raw::LogBatch`] collects operations, `format` makes a record of it, the
//! write queue puts records together for one append and at most one sync, and the memtables
//! learn where entries lie. Keys are kept in memory, entries are read from the files, and blocks that were read
//! stay in a cache. Opening
//! reads the rewrite queue, which holds what purge moved out of old files, and then the append
//! queue on top. Full files of that have digests beside them, which are read in their place. Files go away when the caller purges, and not by themselves.
//!
//! Invariants:
//!
//! 1. What would leave a hole between entries, or lies below the first entry, is refused before
//!    a byte of it is written.
//!    Where a directory has such a hole all the same, entries of that group are neither given nor added, and nothing is purged.
//! 2. Records are applied to memory in the order in which they stand in the append queue.
//! 3. A file that is not the newest of its queue was synced before the next one was made.
//! 4. After a failed sync of a queue nothing is written to it until the engine is opened again.
//! 5. What is gone stays gone, and what lives stays, whatever part of a purge a power loss leaves.
//!
//! Format: `docs/format/raftlog.md`. It is that of the crate raft-engine 0.4.2, and directories
//! go both ways.

mod names;
mod item;
mod format;
mod events;
mod perf;
mod metrics;
mod dirs;
mod batch;
mod memtable;
mod places;
mod options;
mod spares;
mod files;
mod digest;
mod read_cache;
mod watched;
mod blocks;
mod recover;
mod check;
mod fork;
mod repair;
#[cfg(feature = "scripting")]
mod script;
mod write_queue;
mod durable;
mod purge;
mod engine;
pub mod raw;

#[cfg(feature = "protobuf")]
mod api;
#[cfg(feature = "protobuf")]
pub use api::*;

#[cfg(all(test, orogen_shuttle))]
mod model;
