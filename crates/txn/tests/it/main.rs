//! Transactions through their public API.

mod crash;
mod indexed_batch;
mod isolation;
mod metrics;
mod optimistic;
mod pessimistic;
mod spill;
mod too_large;
