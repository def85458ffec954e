//! Sharded cache counted in bytes.
