//! Transactions over the engine.
//!
//! Floor 4: transactions that lock what they write ([`TransactionDb`]), on a batch that can be read before it is written, a
//! cursor over a database with such a batch in it, and locks of keys and ranges with fair queues, deadlines, expiry and detection of
//! deadlocks.

pub mod indexed_batch;
pub mod lock_manager;
mod own_writes;
mod pessimistic;

pub use own_writes::OwnWritesIterator;
pub use pessimistic::{
    Transaction, TransactionDb, TransactionDbOptions, TransactionOptions, TransactionState,
};
