//! The engine through its public API.

mod admission;
mod backup;
mod basic;
mod compaction;
mod due;
mod families;
mod file_checksums;
mod follower;
mod full_disk;
mod hazards;
mod logs;
mod manual_compaction;
mod memory;
mod mapped_logs;
mod option_changes;
mod pipeline;
mod quarantine;
mod ranges;
mod rate_limiter;
mod reads;
mod repair;
mod report;
mod scenarios;
mod steer;
mod support;
mod updates;
