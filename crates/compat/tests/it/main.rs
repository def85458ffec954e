//! Interchange with RocksDB: each reads, writes and verifies what the other wrote.

#![expect(clippy::unwrap_used, reason = "a test ends at its first error")]

mod files;
mod programs;
mod store;
mod open;
mod exchange;
mod follow;
mod create;
mod combinations;
mod tools;
mod blobs;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use orogen_base::UserComparator;
use orogen_base::key::InternalKeyComparator;
use orogen_compat::Case;
use orogen_engine::version::manifest;
use orogen_env::PosixFileSystem;

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

/// Works on some items at a time: most of the time each waits for the disk.
fn several_at_once<T: Send>(items: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    const THREADS: usize = 4;
    let items = Mutex::new(items);
    let take = || items.lock().unwrap().next();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(item) = take() {
                    work(item);
                }
            });
        }
    });
}

/// What RocksDB wrote, once for all tests.
fn written_by_rocksdb() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("written-by-rocksdb");
        orogen_compat::programs::written_by_rocksdb(&dir).unwrap()
    })
}

/// The tables that the MANIFEST lists. A killed process may leave others, begun and not finished.
fn live_tables(case: &Case) -> HashSet<u64> {
    let comparator = UserComparator::by_name(case.comparator()).unwrap();
    let icmp = InternalKeyComparator::new(comparator);
    let (_, recovered) = manifest::recover_current(&PosixFileSystem::new(), &case.db()).unwrap();
    recovered
        .families
        .values()
        .map(|f| f.version(&icmp, 64).unwrap())
        .flat_map(|v| v.iter_files().map(|(_, f)| f.number).collect::<Vec<_>>())
        .collect()
}

fn case(name: &str) -> &'static Case {
    written_by_rocksdb()
        .iter()
        .find(|c| c.name() == name)
        .unwrap()
}
