//! Interchange with RocksDB's own programs.
