//! Transactions through their public API.

mod indexed_batch;
mod isolation;
mod optimistic;
mod pessimistic;
