//! Runs that try to break the engine, each against what it promises.
//!
//! ```text
//! crash        the power goes after each call of the file system; what the disk then holds is opened
//! fault        the n-th call of a kind fails, for n = 1, 2, ... until none does
//! metamorphic  random calls under random options, against a map
//! concurrent   many threads, invariants of every snapshot
//! damage       flipped bits, cut and exchanged pieces of the files
//! repair       of whole and of damaged directories
//! flips        bits that turn over in memory
//! determinism  tables that are built twice
//! full-disk    a real file system of 16 MiB, filled and freed again and again
//! stalls       how long writers wait that are faster than compactions
//! memory       what a budget counts, and what the process really takes
//! allocations  the n-th big allocation gets nothing
//! short-calls  system calls that do a part of their work, or are interrupted
//! open         many tables, a long log: how long an open takes
//! ```
//! A run gives a [`report::Figure`]: what was tried, how often, in what time; and for a failure one
//! line that repeats it. Scripts and random calls come from seeds; background threads do not, so
//! a failure may need several tries (`--repeat`).

pub mod engine;
pub mod report;
pub mod guard;
pub mod model;
pub mod script;
pub mod scripts;
pub mod content;
pub mod crash;
pub mod fault;
pub mod kill;
pub mod metamorphic;
pub mod concurrent;
pub mod damage;
pub mod repair;
pub mod flips;
pub mod determinism;
pub mod full_disk;
pub mod heap;
pub mod memory;
pub mod allocations;
pub mod stalls;
pub mod open;
pub mod short_calls;
pub mod parts;
