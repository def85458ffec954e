//! The LSM engine: write, flush, read, compact.
