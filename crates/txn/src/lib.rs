//! Transactions over the engine.
//!
//! Floor 4: transactions that lock what they write ([`TransactionDb`]) or find out at their end whether it was written meanwhile
//! ([`OptimisticTransactionDb`]), on a batch that can be read before it is written, a
//! cursor over a database with such a batch in it, and locks of keys and ranges with fair queues, deadlines, expiry and detection of
//! deadlocks.

pub mod indexed_batch;
pub mod lock_manager;
mod lock_order;
mod optimistic;
mod own_writes;
mod pessimistic;
mod spill;

pub use optimistic::{
    OptimisticTransaction, OptimisticTransactionDb, OptimisticTransactionDbOptions,
    OptimisticTransactionOptions,
};
pub use orogen_engine::batch::SpillOptions;
pub use own_writes::OwnWritesIterator;
pub use pessimistic::{
    Transaction, TransactionDb, TransactionDbOptions, TransactionOptions, TransactionState,
};
