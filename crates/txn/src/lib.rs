//! Transactions over the engine.
//!
//! Floor 4: transactions that lock what they write ([`TransactionDb`]) or find out at their end whether it was written meanwhile
//! ([`OptimisticTransactionDb`]), on a batch that can be read before it is written, a
//! cursor over a database with such a batch in it, and locks of keys and ranges with fair queues, deadlines, expiry and detection of
//! deadlocks.
//!
//! # What others can do to a transaction
//!
//! That is a matter of how it reads. "no" is what cannot happen; random histories are checked for it, row by row, and have what is not "no".
//!
//! | | how | dirty write, dirty read | lost update | read skew | write skew | phantom |
//! |---|---|---|---|---|---|---|
//! | read committed | `get`, `put`, no snapshot | no | yes | yes | yes | yes |
//! | snapshot isolation | a snapshot, all reads at it | no | no | no | yes | yes |
//! | repeatable read | `get_for_update` of all that is read, no snapshot | no | no | by scans | no | yes |
//! | serializable | that, and `lock_range` before each scan | no | no | no | no | no |
//! | serializable at a snapshot | a snapshot, all reads at it, each behind a `get_for_update` or `lock_range` of what is read | no | no | no | no | no |
//! | optimistic read committed | as read committed | no | yes | yes | yes | yes |
//! | optimistic snapshot isolation | as snapshot isolation | no | no | no | yes | yes |
//! | optimistic repeatable read | a snapshot, `get_for_update` at it of all that is read | no | no | no | no | yes |
//!
//! Dirty writes and reads are G0 and G1 of Adya's "Weak Consistency" (1999), read skew is G-single (two reads of one key may differ),
//! write skew G2-item, and a phantom G2: write skew through a scan. A key that is read with `get_for_update` before it is written has no lost
//! update on any row. Serializable transactions are so in an order that agrees with the clock: who begins after another one has
//! committed comes behind it. Who writes to the database beside its transactions is not waited for and not kept apart.
//!
//! `docs/guide/transactions.md` has an example for each way; [`lock_manager`] tells what locks of keys and ranges are.

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
