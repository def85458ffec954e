//! An embedded key-value store in RocksDB's formats.
