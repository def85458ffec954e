//! Put in: commit, log, memtable.

pub(crate) mod apply;
mod order;
pub(crate) mod commit;
pub(crate) mod switch;
mod two_phase;
