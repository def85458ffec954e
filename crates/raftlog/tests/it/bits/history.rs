//! Random batches whose entries the reader of the test can tell.

use std::collections::BTreeSet;
use std::sync::Arc;

use orogen_env::{FileSystem, MemFileSystem};
use orogen_raftlog::raw::{Command, Engine, LogBatch, Options};
use orogen_testkit::rng::Rng;

use super::reader::entry;
use crate::model::dir;

/// Writes random batches on a few groups.
pub(super) struct History {
    pub(super) engine: Engine,
    pub(super) rng: Rng,
    used: BTreeSet<(u64, u64, usize)>,
    len_max: usize,
    sync: bool,
}

const GROUPS: u64 = 5;

impl History {
    pub(super) fn on(fs: &MemFileSystem, options: Options, seed: u64, len_max: usize) -> Self {
        let fs: Arc<dyn FileSystem> = Arc::new(fs.clone());
        let sync = options.record_alignment > 0;
        Self {
            engine: Engine::open(&fs, dir(), options).unwrap(),
            rng: Rng::new(seed),
            used: BTreeSet::new(),
            len_max,
            sync,
        }
    }

    /// An entry that was never there before.
    fn entry(&mut self, group: u64, index: u64) -> Vec<u8> {
        loop {
            let len = 1 + self.rng.range(self.len_max / 8..self.len_max);
            if self.used.insert((group, index, len)) {
                return entry(group, index, len);
            }
        }
    }

    pub(super) fn step(&mut self, purges: bool) {
        let mut batch = LogBatch::default();
        let start = self.rng.below(GROUPS);
        for n in 0..1 + self.rng.below(3) {
            let group = 1 + (start + n) % GROUPS;
            let first = self.engine.first_index(group);
            let next = self.engine.last_index(group).map_or(1, |last| last + 1);
            match self.rng.below(12) {
                0..=6 => {
                    let at = match first {
                        Some(first) if self.rng.chance(1, 5) => {
                            first + self.rng.below(next - first)
                        }
                        _ => next,
                    };
                    let count = 1 + self.rng.below(3);
                    let entries: Vec<Vec<u8>> = (at..at + count)
                        .map(|index| self.entry(group, index))
                        .collect();
                    batch.add_entries(group, at, &entries).unwrap();
                }
                7 => {
                    let first = first.unwrap_or(next);
                    let index = first + self.rng.below(next - first + 1);
                    batch.add_command(group, Command::Compact { index });
                }
                8 | 9 => {
                    let key = vec![self.rng.below(4) as u8];
                    let value = self.rng.bytes(8);
                    batch.put(group, key, value).unwrap();
                }
                10 => batch.delete(group, vec![self.rng.below(4) as u8]),
                _ if self.rng.chance(1, 3) => batch.add_command(group, Command::Clean),
                _ => {}
            }
        }
        self.engine.write(&mut batch, self.sync).unwrap();
        if purges {
            self.engine.purge_expired_files().unwrap();
        }
    }
}
