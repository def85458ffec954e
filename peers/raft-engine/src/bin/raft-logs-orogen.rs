//! Orogen's raft log under the same workloads.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use orogen_env::{FileSystem, PosixFileSystem};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options};
use peers_driver::Result;
use peers_driver::raft_logs::{RaftLogs, Settings};
use peers_raft_engine::entry;
use protobuf::Message as _;
use raft::eraftpb::Entry;

struct Orogen(Engine);

impl RaftLogs for Orogen {
    const NAME: &'static str = "orogen";

    type Batch = LogBatch;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let default = Options::default();
        let options = Options {
            target_file_size: settings.file_bytes,
            purge_threshold: settings.purge_bytes,
            record_alignment: settings.record_alignment,
            enable_log_digests: settings.digests,
            read_cache_bytes: settings.cache_bytes.unwrap_or(default.read_cache_bytes),
            ..default
        };
        let fs: Arc<dyn FileSystem> = Arc::new(PosixFileSystem::new());
        Ok(Self(Engine::open(&fs, dir, options)?))
    }

    /// Made into messages and these into bytes, as for the other.
    fn add(&self, batch: &mut LogBatch, group: u64, first: u64, payloads: &[&[u8]]) -> Result<()> {
        let entries = payloads.iter().zip(first..);
        let entries = entries.map(|(payload, index)| entry(index, payload).write_to_bytes());
        let entries: Vec<Vec<u8>> = entries.collect::<std::result::Result<_, _>>()?;
        Ok(batch.add_entries(group, first, &entries)?)
    }

    fn put(&self, batch: &mut LogBatch, group: u64, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(batch.put(group, key.to_vec(), value.to_vec())?)
    }

    fn compact(&self, batch: &mut LogBatch, group: u64, index: u64) {
        batch.add_command(group, Command::Compact { index });
    }

    fn write(&self, batch: &mut LogBatch, sync: bool) -> Result<()> {
        self.0.write(batch, sync)?;
        Ok(())
    }

    fn purge(&self) -> Result<Vec<u64>> {
        Ok(self.0.purge_expired_files()?)
    }

    fn span(&self, group: u64) -> Option<(u64, u64)> {
        Some((self.0.first_index(group)?, self.0.last_index(group)? + 1))
    }

    fn read(&self, group: u64, begin: u64, end: u64) -> Result<usize> {
        let mut entries: Vec<Entry> = Vec::new();
        let make = |_, bytes: &[u8]| -> Result<Entry> { Ok(Entry::parse_from_bytes(bytes)?) };
        let log = &self.0;
        log.fetch_entries_as(group, begin, end, None, &mut entries, make)
    }
}

fn main() -> ExitCode {
    peers_driver::raft_logs::main::<Orogen>()
}
