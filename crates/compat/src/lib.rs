//! Interchange with RocksDB's own programs.
//!
//! RocksDB 7.8.3 (`db_bench`, `ldb`, `sst_dump`) and 9.8.4 (the Python binding) are driven by the
//! scripts in `py/`: one writes directories under many combinations of options, the other judges
//! directories, writes them on and dumps what they hold. A [`Case`] is such a directory with what
//! is expected of it. The tests of this crate put Orogen on one side of the exchange.

pub mod case;
pub mod covering;
pub mod programs;

pub use case::{Case, Pair};
