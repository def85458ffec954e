//! The engine through its public API.

mod basic;
mod compaction;
mod families;
mod reads;
mod support;
