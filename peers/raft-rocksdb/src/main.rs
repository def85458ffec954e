//! RocksDB under the workloads of raft logs, as TiKV had it before raft-engine.
//!
//! ```text
//! entry:          group, 8 bytes big-endian | 1 | index, 8 bytes big-endian
//! key of a group: group, 8 bytes big-endian | 2 | key
//! ```
//! What is compacted goes by a range delete. Nothing needs to be purged: the tree does that by itself.

mod library;

use std::path::Path;
use std::process::ExitCode;

use library::{Batch, Db, Kept};
use peers_driver::Result;
use peers_driver::raft_logs::{RaftLogs, Settings};
use peers_raft_engine::entry;
use protobuf::Message as _;
use raft::eraftpb::Entry;

const ENTRY: u8 = 1;
const KEY: u8 = 2;

fn entry_key(group: u64, index: u64) -> [u8; 17] {
    let mut key = [ENTRY; 17];
    key[..8].copy_from_slice(&group.to_be_bytes());
    key[9..].copy_from_slice(&index.to_be_bytes());
    key
}

/// The index of an entry of a group.
fn index_of(group: u64, key: &[u8]) -> Option<u64> {
    let index = key.strip_prefix(&entry_key(group, 0)[..9])?;
    index.try_into().ok().map(u64::from_be_bytes)
}

struct RocksDb(Db);

impl RaftLogs for RocksDb {
    const NAME: &'static str = "rocksdb";

    type Batch = Batch;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let default = Kept::default();
        let cache_bytes = settings.cache_bytes.unwrap_or(default.cache_bytes);
        let kept = Kept {
            cache_bytes,
            ..default
        };
        Ok(Self(Db::open(dir, &kept)?))
    }

    fn add(&self, batch: &mut Batch, group: u64, first: u64, payloads: &[&[u8]]) -> Result<()> {
        for (payload, index) in payloads.iter().zip(first..) {
            let bytes = entry(index, payload).write_to_bytes()?;
            batch.put(&entry_key(group, index), &bytes);
        }
        Ok(())
    }

    fn put(&self, batch: &mut Batch, group: u64, key: &[u8], value: &[u8]) -> Result<()> {
        let key = [&group.to_be_bytes(), &[KEY][..], key].concat();
        batch.put(&key, value);
        Ok(())
    }

    fn compact(&self, batch: &mut Batch, group: u64, index: u64) {
        batch.delete_range(&entry_key(group, 0), &entry_key(group, index));
    }

    fn write(&self, batch: &mut Batch, sync: bool) -> Result<()> {
        self.0.write(batch, sync)
    }

    fn purge(&self) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    fn span(&self, group: u64) -> Option<(u64, u64)> {
        let mut cursor = self.0.cursor();
        cursor.seek(&entry_key(group, 0));
        let first = index_of(group, cursor.key()?)?;
        cursor.seek_for_prev(&entry_key(group, u64::MAX));
        let last = index_of(group, cursor.key()?)?;
        Some((first, last + 1))
    }

    fn read(&self, group: u64, begin: u64, end: u64) -> Result<usize> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut cursor = self.0.cursor();
        cursor.seek(&entry_key(group, begin));
        for index in begin..end {
            if cursor.key().and_then(|key| index_of(group, key)) != Some(index) {
                cursor.check()?;
                return Err(format!("entry {index} of group {group} is not there").into());
            }
            let bytes = cursor.value().ok_or("a key without a value")?;
            entries.push(Entry::parse_from_bytes(bytes)?);
            cursor.next();
        }
        Ok(entries.len())
    }
}

fn main() -> ExitCode {
    peers_driver::raft_logs::main::<RocksDb>()
}
