//! The engine through its public API.

mod basic;
mod compaction;
mod families;
mod hazards;
mod logs;
mod pipeline;
mod reads;
mod scenarios;
mod steer;
mod support;
