//! The log whose entries are bytes, over any file system of `orogen_env`.
//!
//! Nothing of it needs messages or a configuration file, and but for repairs by script no feature of this crate.

pub use crate::batch::{Command, LogBatch};
pub use crate::check::{Checked, CheckedFile, check};
pub use crate::engine::{Engine, RewriteSteps};
pub use crate::events::{EventListener, FileBlockHandle};
pub use crate::fork::{Forked, fork};
pub use crate::format::FormatVersion;
pub use crate::memtable::Fenced;
pub use crate::metrics::{Distribution, Metrics, PerQueue, SAMPLE_EVERY};
pub use crate::names::{FileId, Queue};
pub use crate::options::{Options, RecoveryMode};
pub use crate::perf::{PerfContext, get_perf_context, set_perf_context, take_perf_context};
pub use crate::recover::log_files;
pub use crate::repair::{Change, Incoming, Repaired, Verdict, repair};
#[cfg(feature = "scripting")]
pub use crate::script::RepairScript;
pub use crate::watched::process_metrics;
