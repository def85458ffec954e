//! Put in: commit, log, memtable.

pub(crate) mod apply;
pub(crate) mod commit;
pub(crate) mod switch;
