//! Put in: batch, commit, log, memtable.

pub mod batch;
pub(crate) mod apply;
pub(crate) mod commit;
pub(crate) mod switch;
