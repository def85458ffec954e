//! The user's own code inside the engine.

pub mod merge_operator;
pub mod compaction_filter;
