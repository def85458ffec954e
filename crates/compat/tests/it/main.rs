//! Interchange with RocksDB: each reads, writes and verifies what the other wrote.

#![expect(clippy::unwrap_used, reason = "a test ends at its first error")]

mod files;
mod programs;
mod store;
mod open;
mod exchange;
mod create;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use orogen_compat::Case;

/// A folder for one test, emptied.
fn scratch(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("compat")
        .join(name);
    if dir.exists() {
        std::fs::remove_dir_all(&dir).unwrap();
    }
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// What RocksDB wrote, once for all tests.
fn written_by_rocksdb() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("written-by-rocksdb");
        orogen_compat::programs::written_by_rocksdb(&dir).unwrap()
    })
}

fn case(name: &str) -> &'static Case {
    written_by_rocksdb()
        .iter()
        .find(|c| c.name() == name)
        .unwrap()
}
