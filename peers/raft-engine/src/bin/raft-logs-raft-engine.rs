//! raft-engine under the workloads of raft logs.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use peers_driver::Result;
use peers_driver::raft_logs::{RaftLogs, Settings};
use peers_raft_engine::entry;
use raft::eraftpb::Entry;
use raft_engine::env::DefaultFileSystem;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize};

#[derive(Clone)]
struct Entries;

impl MessageExt for Entries {
    type Entry = Entry;

    fn index(entry: &Entry) -> u64 {
        entry.index
    }
}

struct RaftEngine(Engine<DefaultFileSystem>);

impl RaftLogs for RaftEngine {
    const NAME: &'static str = "raft-engine";

    type Batch = LogBatch;

    fn open(dir: &Path, settings: &Settings) -> Result<Self> {
        let config = Config {
            dir: dir.to_str().ok_or("a path that is no text")?.to_owned(),
            target_file_size: ReadableSize(settings.file_bytes),
            purge_threshold: ReadableSize(settings.purge_bytes),
            ..Config::default()
        };
        let fs = Arc::new(DefaultFileSystem);
        Ok(Self(Engine::open_with_file_system(config, fs)?))
    }

    fn add(&self, batch: &mut LogBatch, group: u64, first: u64, payloads: &[&[u8]]) -> Result<()> {
        let entries: Vec<Entry> = payloads
            .iter()
            .zip(first..)
            .map(|(payload, index)| entry(index, payload))
            .collect();
        Ok(batch.add_entries::<Entries>(group, &entries)?)
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
        Ok(self
            .0
            .fetch_entries_to::<Entries>(group, begin, end, None, &mut entries)?)
    }
}

fn main() -> ExitCode {
    peers_driver::raft_logs::main::<RaftEngine>()
}
