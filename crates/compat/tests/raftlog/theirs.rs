//! The crate raft-engine, with entries of our making.

use std::path::Path;
use std::sync::Arc;

use orogen_raftlog::raw::{FormatVersion, Options, RecoveryMode};
use protobuf::Message as _;
use protobuf::well_known_types::Any;
use raft_engine::env::DefaultFileSystem;
use raft_engine::internals::LogQueue;
use raft_engine::{Command, Config, Engine, LogBatch, MessageExt, ReadableSize, Version};

use crate::histories::{Batch, Op};

/// An entry is any message; this one says its index in the place of its type.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Entries;

impl MessageExt for Entries {
    type Entry = Any;

    fn index(entry: &Any) -> u64 {
        entry.get_type_url().parse().expect("an index stands there")
    }
}

fn message(index: u64, payload: &[u8]) -> Any {
    let mut any = Any::new();
    any.set_type_url(index.to_string());
    any.set_value(payload.to_vec());
    any
}

/// An entry as it stands in a file.
pub(crate) fn encoded(index: u64, payload: &[u8]) -> Vec<u8> {
    message(index, payload)
        .write_to_bytes()
        .expect("it is whole")
}

pub(crate) struct Theirs(Engine<DefaultFileSystem>);

fn config(dir: &Path, options: &Options) -> Config {
    Config {
        dir: dir.to_str().expect("ours are").to_owned(),
        spill_dir: options
            .spill_dir
            .as_ref()
            .map(|dir| dir.to_str().expect("ours are").to_owned()),
        recovery_mode: match options.recovery_mode {
            RecoveryMode::AbsoluteConsistency => raft_engine::RecoveryMode::AbsoluteConsistency,
            RecoveryMode::TolerateTailCorruption => {
                raft_engine::RecoveryMode::TolerateTailCorruption
            }
            RecoveryMode::TolerateAnyCorruption => raft_engine::RecoveryMode::TolerateAnyCorruption,
        },
        target_file_size: ReadableSize(options.target_file_size),
        batch_compression_threshold: ReadableSize(options.batch_compression_threshold as u64),
        format_version: match options.format_version {
            FormatVersion::V1 => Version::V1,
            FormatVersion::V2 => Version::V2,
        },
        purge_threshold: ReadableSize(options.purge_threshold),
        purge_rewrite_threshold: options.purge_rewrite_threshold.map(ReadableSize),
        purge_rewrite_garbage_ratio: options.purge_rewrite_garbage_ratio,
        enable_log_recycle: false,
        // With more of them it forgets that entries were dropped, or panics because of a hole that is none, where an entry and what
        // drops it are read by different threads.
        recovery_threads: 1,
        ..Config::default()
    }
}

impl Theirs {
    /// Why it does not open.
    pub(crate) fn refusal(dir: &Path, options: &Options) -> String {
        let fs = Arc::new(DefaultFileSystem);
        match Engine::<DefaultFileSystem>::open_with_file_system(config(dir, options), fs) {
            Ok(_) => "it opens".to_owned(),
            Err(e) => e.to_string(),
        }
    }

    pub(crate) fn open(dir: &Path, options: &Options) -> Self {
        let fs = Arc::new(DefaultFileSystem);
        let config = config(dir, options);
        Self(Engine::open_with_file_system(config, fs).expect("what was written opens"))
    }

    /// With as many threads as it takes by default.
    pub(crate) fn open_by_threads(dir: &Path, options: &Options) -> Self {
        let config = Config {
            recovery_threads: Config::default().recovery_threads,
            ..config(dir, options)
        };
        let fs = Arc::new(DefaultFileSystem);
        Self(Engine::open_with_file_system(config, fs).expect("what was written opens"))
    }

    /// With bounds that make it collect, and write files over where it may, those that it fills when it is opened included.
    pub(crate) fn open_to_purge(dir: &Path, options: &Options, prefills: bool) -> Self {
        let config = Config {
            purge_threshold: ReadableSize(options.target_file_size * 4),
            purge_rewrite_threshold: Some(ReadableSize(options.target_file_size)),
            purge_rewrite_garbage_ratio: 0.3,
            enable_log_recycle: options.format_version == FormatVersion::V2,
            prefill_for_recycle: prefills && options.format_version == FormatVersion::V2,
            ..config(dir, options)
        };
        let fs = Arc::new(DefaultFileSystem);
        Self(Engine::open_with_file_system(config, fs).expect("what was written opens"))
    }

    pub(crate) fn write(&self, batch: &Batch, sync: bool) {
        let mut theirs = LogBatch::default();
        for (group, op) in &batch.0 {
            let done = match op {
                Op::Entries(first, payloads) => {
                    let entries: Vec<Any> = payloads
                        .iter()
                        .zip(*first..)
                        .map(|(payload, index)| message(index, payload))
                        .collect();
                    theirs.add_entries::<Entries>(*group, &entries)
                }
                Op::Compact(index) => {
                    theirs.add_command(*group, Command::Compact { index: *index });
                    Ok(())
                }
                Op::Clean => {
                    theirs.add_command(*group, Command::Clean);
                    Ok(())
                }
                Op::Put(key, value) => theirs.put(*group, key.clone(), value.clone()),
                Op::Delete(key) => {
                    theirs.delete(*group, key.clone());
                    Ok(())
                }
            };
            done.expect("it fits");
        }
        self.0.write(&mut theirs, sync).expect("the disk is well");
    }

    /// The groups that it asks for, in the order of their numbers.
    pub(crate) fn purge(&self) -> Vec<u64> {
        let mut groups = self.0.purge_expired_files().expect("the disk is well");
        groups.sort_unstable();
        groups
    }

    /// Numbers of the oldest and the newest file of the append queue.
    pub(crate) fn append_files(&self) -> (u64, u64) {
        self.0.file_span(LogQueue::Append)
    }

    /// Files of the rewrite queue that were begun.
    pub(crate) fn rewritten_files(&self) -> u64 {
        self.0.file_span(LogQueue::Rewrite).1
    }

    pub(crate) fn groups(&self) -> Vec<u64> {
        let mut groups = self.0.raft_groups();
        groups.sort_unstable();
        groups
    }

    pub(crate) fn span(&self, group: u64) -> Option<(u64, u64)> {
        Some((self.0.first_index(group)?, self.0.last_index(group)?))
    }

    /// The entries as they stand in files.
    pub(crate) fn entries(&self, group: u64, first: u64, last: u64) -> Vec<Vec<u8>> {
        let mut entries: Vec<Any> = Vec::new();
        self.0
            .fetch_entries_to::<Entries>(group, first, last + 1, None, &mut entries)
            .expect("they are whole");
        let encoded = |entry: &Any| entry.write_to_bytes().expect("it is whole");
        entries.iter().map(encoded).collect()
    }

    pub(crate) fn keys(&self, group: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut keys = Vec::new();
        let each = |key: &[u8], value: &[u8]| {
            keys.push((key.to_vec(), value.to_vec()));
            true
        };
        self.0
            .scan_raw_messages(group, None, None, false, each)
            .expect("they are in memory");
        keys
    }
}
