//! Write-ahead log in RocksDB's format.
