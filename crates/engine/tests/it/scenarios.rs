//! Scenarios as text: `tests/data/*.txt`, one database in memory for each file.
//!
//! ```text
//! write | batch               operations in the input, one a line: put K V, delete K,
//!                             single-delete K, merge K V, delete-range K K
//! get K... [at=NAME]          what a reader finds, now or at a snapshot
//! scan [at=NAME] [from=K] [to=K] [backwards]
//! snapshot NAME | release NAME
//! flush | compact | files     files: the tables by level
//! reopen | kill               kill: as a process that ends without closing
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use orogen_engine::plugin::merge_operator::StringAppend;
use orogen_engine::{
    BottommostLevelCompaction, CompactRangeOptions, Db, Options, ReadOptions, Snapshot, WriteBatch,
};
use orogen_env::{MemFileSystem, PowerCut};
use orogen_testkit::datadriven::{self, Command};

use crate::support::{DIR, small};

struct Scenario {
    fs: MemFileSystem,
    db: Db,
    snapshots: BTreeMap<String, Snapshot>,
}

fn options(fs: &MemFileSystem) -> Options {
    let mut options = small(fs);
    // Only what the file says makes tables and moves them.
    options.cf.disable_auto_compactions = true;
    options.cf.write_buffer_size = 1 << 20;
    options.cf.merge_operator = Some(Arc::new(StringAppend::default()));
    options.db.avoid_flush_during_recovery = true;
    options
}

impl Scenario {
    fn new() -> Self {
        let fs = MemFileSystem::new();
        let db = Db::open(DIR, &options(&fs)).expect("memory has room");
        Self {
            fs,
            db,
            snapshots: BTreeMap::new(),
        }
    }

    fn execute(&mut self, command: &Command) -> orogen_base::Result<String> {
        let family = self.db.default_column_family();
        match command.name.as_str() {
            "write" => {
                for line in command.input.lines() {
                    let mut batch = WriteBatch::new();
                    add(&mut batch, line, command);
                    self.db.write(batch)?;
                }
                Ok(format!("seqno {}", self.db.latest_sequence_number()))
            }
            "batch" => {
                let mut batch = WriteBatch::new();
                for line in command.input.lines() {
                    add(&mut batch, line, command);
                }
                self.db.write(batch)?;
                Ok(format!("seqno {}", self.db.latest_sequence_number()))
            }
            "get" => self.get(command),
            "scan" => self.scan(command),
            "snapshot" => {
                let snapshot = self.db.snapshot();
                let seqno = snapshot.seqno();
                self.snapshots.insert(command.args[0].clone(), snapshot);
                Ok(format!("seqno {seqno}"))
            }
            "release" => {
                let was_held = self.snapshots.remove(&command.args[0]).is_some();
                assert!(was_held, "{}: no such snapshot", command.place);
                Ok(String::new())
            }
            "flush" => self.db.flush().map(|()| self.files()),
            "compact" => {
                let options = CompactRangeOptions {
                    bottommost_level_compaction: BottommostLevelCompaction::Force,
                    ..CompactRangeOptions::default()
                };
                self.db.compact_range(&options, &family, None, None)?;
                Ok(self.files())
            }
            "files" => Ok(self.files()),
            "reopen" => {
                self.snapshots.clear();
                self.db.close()?;
                self.db = Db::open(DIR, &options(&self.fs))?;
                Ok(self.files())
            }
            "kill" => {
                self.snapshots.clear();
                self.fs = self.fs.crash(PowerCut::KeepAll);
                self.db = Db::open(DIR, &options(&self.fs))?;
                Ok(self.files())
            }
            _ => command.unknown(),
        }
    }

    fn read_options(&self, command: &Command) -> ReadOptions {
        let at: Option<String> = command.arg("at");
        ReadOptions {
            snapshot: at.map(|name| self.snapshots[&name].clone()),
            iterate_lower_bound: command.arg::<String>("from").map(String::into_bytes),
            iterate_upper_bound: command.arg::<String>("to").map(String::into_bytes),
            ..ReadOptions::default()
        }
    }

    fn get(&self, command: &Command) -> orogen_base::Result<String> {
        let family = self.db.default_column_family();
        let options = self.read_options(command);
        let mut out = String::new();
        for key in command.args.iter().filter(|a| !a.contains('=')) {
            let line = match self.db.get_opt(&options, &family, key.as_bytes())? {
                Some(value) => format!("{key}={}", text(&value)),
                None => format!("{key} is not there"),
            };
            writeln!(out, "{line}").expect("a string takes it");
        }
        Ok(out)
    }

    fn scan(&self, command: &Command) -> orogen_base::Result<String> {
        let family = self.db.default_column_family();
        let mut iter = self.db.iter(&self.read_options(command), &family)?;
        let backwards = command.has("backwards");
        let mut found = Vec::new();
        if backwards {
            iter.seek_to_last();
        } else {
            iter.seek_to_first();
        }
        while iter.valid() {
            found.push(format!("{}={}", text(iter.key()), text(iter.value())));
            if backwards {
                iter.prev();
            } else {
                iter.next();
            }
        }
        iter.status()?;
        Ok(found.join(" "))
    }

    /// Levels with the key range and the sequence numbers of each table.
    fn files(&self) -> String {
        let mut out = String::new();
        for file in self.db.live_files() {
            writeln!(
                out,
                "L{} {}..{} seqno {}..{}",
                file.level,
                text(&file.smallest),
                text(&file.largest),
                file.smallest_seqno,
                file.largest_seqno
            )
            .expect("a string takes it");
        }
        out
    }
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn add(batch: &mut WriteBatch, line: &str, command: &Command) {
    let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
    match words[..] {
        [b"put", key, value] => batch.put(0, key, value),
        [b"delete", key] => batch.delete(0, key),
        [b"single-delete", key] => batch.single_delete(0, key),
        [b"merge", key, operand] => batch.merge(0, key, operand),
        [b"delete-range", start, end] => batch.delete_range(0, start, end),
        _ => panic!("{}: unknown operation `{line}`", command.place),
    }
}

#[test]
fn scenarios_go_as_written() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/scenarios");
    let mut scenarios: BTreeMap<_, Scenario> = BTreeMap::new();
    datadriven::run_all(&dir, |file, command| {
        let scenario = scenarios
            .entry(file.to_path_buf())
            .or_insert_with(Scenario::new);
        match scenario.execute(command) {
            Ok(out) => out,
            Err(e) => format!("error: {e}"),
        }
    });
}
