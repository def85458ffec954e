//! Write-ahead log in RocksDB's format: the place where a write is safe first.
//!
//! A write group's leader appends the group's batch as one record and syncs for all who asked;
//! recovery reads the records back. The MANIFEST is a log of the same format. This crate knows
//! records, not what is in them, and reports damage without judging it: how much of a damaged
//! log may be used is decided by the engine's recovery mode.
//!
//! Source: RocksDB `db/log_format.h`, `db/log_writer.cc`, `db/log_reader.cc`; byte tables in
//! `docs/format/wal.md`.

pub mod format;
pub mod writer;
mod physical;
pub mod reader;

pub use reader::{Damage, DamageReason, ReadOutcome, Reader};
pub use writer::Writer;
