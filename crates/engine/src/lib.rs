//! The LSM engine: write, flush, read, compact.
//!
//! Modules are listed in the order of the flow; each imports only from those above itself.

pub mod options;
pub mod filename;
pub mod version;
