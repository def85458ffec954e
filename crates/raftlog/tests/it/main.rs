//! Tests of the public API, in one binary.
#![expect(clippy::unwrap_used, reason = "what the tests share is no less a test")]
#![expect(clippy::print_stdout, reason = "each run tells its figures")]

mod aligned;
mod between;
mod bits;
mod calls;
mod crash;
mod digests;
mod durable;
mod emptying;
mod filling;
mod forks;
mod full;
mod long;
mod manager;
mod many;
mod metrics;
mod model;
mod purge;
mod read_cache;
mod spares;
mod spill;
mod stall;
mod writeback;
