//! Files to better files: compaction.
//!
//! ```text
//! Version --score--> which level --leveled--> Plan (files in, level out) --job--> run --> edit
//! ```
//! `score` and `leveled` are pure: a version and settings in, a decision out. `run` is pure too:
//! cursors in, tables out. Who owns the files meanwhile and installs the result is the job.

pub mod plan;
pub mod score;
pub mod marks;
pub mod leveled;
pub mod collect;
pub mod convert;
pub mod blobs;
pub mod locality;
pub mod run;

pub use leveled::{RangePick, pick, pick_in_place, pick_range};
pub use marks::Moment;
pub use plan::{Plan, Reason, Running};
pub use score::{LevelTargets, Scores};
