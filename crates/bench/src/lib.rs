//! Workload tool with db_bench's names, flags and output lines.
//!
//! The same command line measures RocksDB with `db_bench` and Orogen with `orogen bench`, and
//! one script reads both: keys and values are made the same way, a line has the same columns,
//! defaults are db_bench's.
//!
//! ```text
//! flags -> for each name: fresh or open database -> threads run a workload -> stats merged -> a line
//! ```
//! Invariants: (1) no clock is read per operation unless `--histogram` asks for it; (2) no
//! workload allocates per operation itself.

pub mod flags;
mod generate;
pub mod histogram;
mod stats;
mod workload;
mod write;
mod read;
mod report;
mod run;

pub use flags::Flags;
pub use report::BenchResult;
pub use run::{BenchError, run};
