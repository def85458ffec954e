//! Transactions over the engine.
//!
//! Floor 4. What is here is the ground of pessimistic transactions: locks of keys and ranges, with
//! fair queues, deadlines, expiry and detection of deadlocks.

pub mod lock_manager;
