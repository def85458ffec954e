//! The API of raft-engine 0.4.2: its names, and what they mean there.
//!
//! Thin: messages are made into bytes and back, errors get the kinds that they have there, and the
//! rest is done by [`crate::raw`]. What differs on purpose is told at each item and in the guide.
//! Decision: `docs/adr/2026-11-23-raft-log-api.md`.

mod size;
mod error;
mod version;
mod config;
mod batch;
pub mod env;
pub mod internals;
mod look;
mod fork;
mod engine;

pub use batch::{LogBatch, MessageExt};
pub use config::Config;
pub use engine::Engine;
pub use error::{Error, Result};
pub use size::ReadableSize;
pub use version::Version;

pub use crate::batch::Command;
pub use crate::options::RecoveryMode;
pub use crate::perf::{PerfContext, get_perf_context, set_perf_context, take_perf_context};

pub use internals::GlobalStats;
