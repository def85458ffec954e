//! Sorted string tables in RocksDB's block-based format.
