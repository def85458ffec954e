//! Tests of the public API, in one binary.
#![expect(clippy::unwrap_used, reason = "what the tests share is no less a test")]

mod between;
mod calls;
mod crash;
mod digests;
mod durable;
mod metrics;
mod model;
mod purge;
mod read_cache;
mod spares;
