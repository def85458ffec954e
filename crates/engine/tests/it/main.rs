//! The engine through its public API.

mod basic;
mod compaction;
mod families;
mod logs;
mod reads;
mod scenarios;
mod support;
