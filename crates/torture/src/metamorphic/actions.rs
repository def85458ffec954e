//! The calls.

use std::sync::Arc;

use orogen_env::PowerCut;

use super::cursor::{Cursor, compare};
use super::family::Family;
use super::setup::{self, Fixed};
use super::world::{DIR, Opened, Taken, World};
use crate::engine::{
    BottommostLevelCompaction, CheckpointOptions, CollectBlobGarbageOptions, ColumnFamily,
    CompactRangeOptions, CompactionHandle, ConvertTo, ConvertValuesOptions, Db, ErrorKind,
    FlushOptions, Options, Result as EngineResult, WriteBatch, WriteOptions,
};

/// Families at most.
const FAMILIES_MAX: usize = 4;

/// What can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Put,
    Delete,
    SingleDelete,
    Merge,
    DeleteRange,
    Batch,
    Get,
    MultiGet,
    Scan,
    OpenCursor,
    StepCursors,
    CloseCursor,
    TakeSnapshot,
    ReleaseSnapshot,
    Flush,
    FlushWithoutWaiting,
    CompactRange,
    CollectBlobs,
    ConvertValues,
    Wait,
    SyncWal,
    Reopen,
    CrashProcess,
    CutPower,
    Checkpoint,
    Backup,
    Repair,
    Updates,
    Scrub,
    CreateFamily,
    DropFamily,
    ChangeOptions,
    Properties,
    VerifyChecksums,
    ReadOnlyOpen,
    Follow,
    Refused,
    CompareAll,
}

/// Each with how often it is drawn.
const WEIGHTS: [(Action, u64); 38] = [
    (Action::Put, 260),
    (Action::Delete, 60),
    (Action::SingleDelete, 40),
    (Action::Merge, 80),
    (Action::DeleteRange, 30),
    (Action::Batch, 120),
    (Action::Get, 120),
    (Action::MultiGet, 40),
    (Action::Scan, 80),
    (Action::OpenCursor, 12),
    (Action::StepCursors, 40),
    (Action::CloseCursor, 10),
    (Action::TakeSnapshot, 14),
    (Action::ReleaseSnapshot, 13),
    (Action::Flush, 12),
    (Action::FlushWithoutWaiting, 6),
    (Action::CompactRange, 7),
    (Action::CollectBlobs, 5),
    (Action::ConvertValues, 3),
    (Action::Wait, 4),
    (Action::SyncWal, 8),
    (Action::Reopen, 3),
    (Action::CrashProcess, 2),
    (Action::CutPower, 2),
    (Action::Checkpoint, 2),
    (Action::Backup, 2),
    (Action::Repair, 2),
    (Action::Updates, 6),
    (Action::Scrub, 1),
    (Action::CreateFamily, 4),
    (Action::DropFamily, 2),
    (Action::ChangeOptions, 8),
    (Action::Properties, 10),
    (Action::VerifyChecksums, 1),
    (Action::ReadOnlyOpen, 1),
    (Action::Follow, 8),
    (Action::Refused, 8),
    (Action::CompareAll, 3),
];

/// What an operation of a batch does.
#[derive(Clone, Copy, Debug)]
enum Write {
    Put,
    Delete,
    SingleDelete,
    Merge,
    DeleteRange,
}

fn fine<T>(result: EngineResult<T>) -> Result<T, String> {
    result.map_err(|e| format!("failed: {e}"))
}

pub(super) fn must_be<T>(result: EngineResult<T>, kind: ErrorKind) -> Result<(), String> {
    match result {
        Ok(_) => Err(format!("was not refused as {kind:?}")),
        Err(e) if e.kind() == kind => Ok(()),
        Err(e) => Err(format!("was refused, but not as {kind:?}: {e}")),
    }
}

impl World {
    pub(super) fn draw_action(&mut self) -> Action {
        let sum: u64 = WEIGHTS.iter().map(|w| w.1).sum();
        let mut at = self.rng.below(sum);
        for (action, weight) in WEIGHTS {
            if at < weight {
                return action;
            }
            at -= weight;
        }
        Action::CompareAll
    }

    pub(super) fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Put => self.write_some(1, Some(Write::Put)),
            Action::Delete => self.write_some(1, Some(Write::Delete)),
            Action::SingleDelete => self.write_some(1, Some(Write::SingleDelete)),
            Action::Merge => self.write_some(1, Some(Write::Merge)),
            Action::DeleteRange => self.write_some(1, Some(Write::DeleteRange)),
            Action::Batch => {
                let n = self.rng.below(12) + 1;
                self.write_some(n, None)
            }
            Action::Get => self.get(),
            Action::MultiGet => self.multi_get(),
            Action::Scan => {
                let mut opened = self.new_cursor()?;
                let target = self.draw_key();
                opened.walk(&mut self.rng, &target, 30)
            }
            Action::OpenCursor => {
                if self.cursors.len() < 4 {
                    let opened = self.new_cursor()?;
                    self.cursors.push(opened);
                }
                Ok(())
            }
            Action::StepCursors => self.step_cursors(),
            Action::CloseCursor => {
                let n = self.rng.range(0..4);
                if n < self.cursors.len() {
                    self.cursors.remove(n);
                }
                Ok(())
            }
            Action::TakeSnapshot => {
                if self.snapshots.len() < 6 {
                    let (snapshot, view) = (self.db().snapshot(), self.current());
                    self.snapshots.push(Taken { snapshot, view });
                }
                Ok(())
            }
            Action::ReleaseSnapshot => {
                let n = self.rng.range(0..6);
                if n < self.snapshots.len() {
                    self.snapshots.remove(n);
                }
                Ok(())
            }
            Action::Flush => self.flush(true),
            Action::FlushWithoutWaiting => self.flush(false),
            Action::CompactRange => self.compact_range(),
            Action::CollectBlobs => self.collect_blobs(),
            Action::ConvertValues => self.convert_values(),
            Action::Wait => fine(self.db().wait_for_background_work()),
            Action::SyncWal => fine(self.db().sync_wal()),
            Action::Reopen => self.reopen(),
            Action::CrashProcess => self.crash(PowerCut::KeepAll),
            Action::CutPower => self.cut_power(),
            Action::Checkpoint => self.checkpoint(),
            Action::Backup => self.backup(),
            Action::Repair => self.repair(),
            Action::Updates => self.updates(),
            Action::Scrub => self.scrub(),
            Action::CreateFamily => self.create_family(),
            Action::DropFamily => self.drop_family(),
            Action::ChangeOptions => self.change_options(),
            Action::Properties => self.properties(),
            Action::VerifyChecksums => fine(self.db().verify_checksums()),
            Action::Follow => self.follow(),
            Action::ReadOnlyOpen => self.read_only_open(),
            Action::Refused => self.refused(),
            Action::CompareAll => self.compare_all(),
        }
    }

    /// Writes `n` operations; `kind` fixes what they are.
    fn write_some(&mut self, n: u64, kind: Option<Write>) -> Result<(), String> {
        const MIX: [Write; 9] = [
            Write::Put,
            Write::Put,
            Write::Put,
            Write::Put,
            Write::Delete,
            Write::SingleDelete,
            Write::Merge,
            Write::Merge,
            Write::DeleteRange,
        ];
        let mut batch = WriteBatch::new();
        for _ in 0..n {
            let name = self.draw_family();
            let id = self.handle(&name)?.id();
            let kind = kind.unwrap_or_else(|| *self.rng.pick(&MIX));
            self.add_operation(&mut batch, &name, id, kind);
            if self.rng.chance(1, 20) {
                batch.put_log_data(b"a note");
            }
        }
        let options = WriteOptions {
            sync: self.rng.chance(1, 12),
            protection_bytes_per_key: *self.rng.pick(&[0, 0, 8]),
            ..WriteOptions::default()
        };
        fine(self.db().write_opt(&options, &mut batch))
    }

    fn add_operation(&mut self, batch: &mut WriteBatch, name: &str, id: u32, kind: Write) {
        let (key, other, value) = (self.draw_key(), self.draw_key(), self.draw_value());
        self.note(|| {
            let (k, o, v) = (
                key.escape_ascii(),
                other.escape_ascii(),
                value.escape_ascii(),
            );
            format!("  {kind:?} {name} {k} {o} {v:.60}")
        });
        let family = self.families.get_mut(name).expect("it was drawn from them");
        match kind {
            // Keys of the letter s are put and single-deleted by turns.
            Write::Put | Write::Merge if key.first() == Some(&b's') => {
                if family.pairs.contains_key(&key) && family.may_single_delete(&key) {
                    batch.single_delete(id, &key);
                    family.single_delete(&key);
                }
                batch.put(id, &key, &value);
                family.put(&key, &value);
            }
            Write::Put => {
                batch.put(id, &key, &value);
                family.put(&key, &value);
            }
            Write::Delete | Write::SingleDelete if key.first() == Some(&b's') => {
                if family.may_single_delete(&key) {
                    batch.single_delete(id, &key);
                    family.single_delete(&key);
                }
            }
            Write::SingleDelete if family.may_single_delete(&key) => {
                batch.single_delete(id, &key);
                family.single_delete(&key);
            }
            Write::Delete | Write::SingleDelete => {
                batch.delete(id, &key);
                family.delete(&key);
            }
            Write::Merge => {
                batch.merge(id, &key, &value);
                family.merge(&key, &value);
            }
            Write::DeleteRange => {
                let wrong = compare(family.fixed.reverse, &key, &other).is_gt();
                let (start, end) = if wrong {
                    (&other, &key)
                } else {
                    (&key, &other)
                };
                batch.delete_range(id, start, end);
                family.delete_range(start, end);
            }
        }
    }

    fn get(&mut self) -> Result<(), String> {
        let (options, view) = self.draw_view();
        let (name, key) = (self.draw_family(), self.draw_key());
        // A family made after the snapshot holds nothing in it.
        let expected = view.get(&name).and_then(|pairs| pairs.get(&key));
        let found = fine(self.db().get_opt(&options, &self.handle(&name)?, &key))?;
        if found.as_deref() != expected.map(Vec::as_slice) {
            return Err(format!(
                "get {name} {}: found {:?}, expected {:?}",
                key.escape_ascii(),
                found.map(|v| v.escape_ascii().to_string()),
                expected.map(|v| v.escape_ascii().to_string())
            ));
        }
        Ok(())
    }

    fn multi_get(&mut self) -> Result<(), String> {
        let (options, view) = self.draw_view();
        let name = self.draw_family();
        let keys: Vec<Vec<u8>> = (0..self.rng.below(20)).map(|_| self.draw_key()).collect();
        let asked: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let found = self.db().multi_get(&options, &self.handle(&name)?, &asked);
        if found.len() != keys.len() {
            return Err(format!("{} answers for {} keys", found.len(), keys.len()));
        }
        for (key, found) in keys.iter().zip(found) {
            let expected = view.get(&name).and_then(|pairs| pairs.get(key));
            if fine(found)?.as_deref() != expected.map(Vec::as_slice) {
                return Err(format!("multi_get {name} {} is wrong", key.escape_ascii()));
            }
        }
        Ok(())
    }

    fn new_cursor(&mut self) -> Result<Opened, String> {
        let (mut options, view) = self.draw_view();
        let name = self.draw_family();
        if self.rng.chance(1, 3) {
            options.iterate_lower_bound = Some(self.draw_key());
        }
        if self.rng.chance(1, 3) {
            options.iterate_upper_bound = Some(self.draw_key());
        }
        options.prefix_same_as_start = self.rng.chance(1, 3);
        // Where none was given at open, the one of the directory holds.
        let extractor = self.handle(&name)?.options().prefix_extractor.clone();
        let empty = Arc::default();
        let cursor = Cursor::new(
            self.families[&name].fixed.reverse,
            view.get(&name).unwrap_or(&empty).iter(),
            options.iterate_lower_bound.as_deref(),
            options.iterate_upper_bound.as_deref(),
            extractor.filter(|_| options.prefix_same_as_start),
        );
        let iter = fine(self.db().iter(&options, &self.handle(&name)?))?;
        let show = |bound: &Option<Vec<u8>>| bound.as_ref().map(|b| b.escape_ascii().to_string());
        let how = format!(
            "{name} [{:?}, {:?}) prefix mode {:?} snapshot {}",
            show(&options.iterate_lower_bound),
            show(&options.iterate_upper_bound),
            cursor.extractor_name(),
            options.snapshot.is_some()
        );
        Ok(Opened { iter, cursor, how })
    }

    fn some_handles(&mut self) -> Result<Vec<ColumnFamily>, String> {
        let names: Vec<String> = self.families.keys().cloned().collect();
        let mut handles = Vec::new();
        for name in names {
            if self.rng.chance(1, 2) {
                handles.push(self.handle(&name)?);
            }
        }
        Ok(handles)
    }

    fn flush(&mut self, wait: bool) -> Result<(), String> {
        let handles = self.some_handles()?;
        self.note(|| format!("  flush {handles:?}"));
        fine(self.db().flush_opt(&FlushOptions { wait }, &handles))
    }

    fn compact_range(&mut self) -> Result<(), String> {
        let name = self.draw_family();
        let begin = self.rng.chance(1, 2).then(|| self.draw_key());
        let end = self.rng.chance(1, 2).then(|| self.draw_key());
        let options = CompactRangeOptions {
            bottommost_level_compaction: *self.rng.pick(&[
                BottommostLevelCompaction::Skip,
                BottommostLevelCompaction::IfHaveCompactionFilter,
                BottommostLevelCompaction::Force,
            ]),
            max_subcompactions: self.rng.range(0..4),
            exclusive_manual_compaction: self.rng.chance(1, 4),
        };
        let family = self.handle(&name)?;
        self.note(|| format!("  compact {name} {begin:?} {end:?} {options:?}"));
        let (begin, end) = (begin.as_deref(), end.as_deref());
        if self.rng.chance(1, 2) {
            return fine(self.db().compact_range(&options, &family, begin, end));
        }
        let handle = self
            .db()
            .compact_range_async(&options, &family, begin, end)
            .map_err(|e| e.to_string())?;
        self.steer(&handle)
    }

    fn collect_blobs(&mut self) -> Result<(), String> {
        let name = self.draw_family();
        let options = CollectBlobGarbageOptions {
            discardable_ratio: *self.rng.pick(&[0.0, 0.2, 0.5]),
            merge_small_files: self.rng.chance(1, 2),
        };
        let family = self.handle(&name)?;
        self.note(|| format!("  collect {name} {options:?}"));
        if self.rng.chance(1, 2) {
            return fine(self.db().collect_blob_garbage(&options, &family));
        }
        let handle = self
            .db()
            .collect_blob_garbage_async(&options, &family)
            .map_err(|e| e.to_string())?;
        self.steer(&handle)
    }

    fn convert_values(&mut self) -> Result<(), String> {
        let name = self.draw_family();
        let to = *self.rng.pick(&[ConvertTo::Separated, ConvertTo::Inline]);
        let options = ConvertValuesOptions {
            min_blob_size: match to {
                ConvertTo::Separated if self.rng.chance(1, 2) => Some(*self.rng.pick(&[0, 10, 50])),
                _ => None,
            },
        };
        let family = self.handle(&name)?;
        self.note(|| format!("  convert {name} {to:?} {options:?}"));
        let result = if self.rng.chance(1, 2) {
            let converted = fine(self.db().convert_values(&family, to, &options))?;
            // Nobody changes its settings meanwhile, and nothing is damaged.
            let blobs = self.db().live_blob_files();
            let has_blobs = blobs.iter().any(|b| b.column_family == name);
            match converted.is_whole() && !(to == ConvertTo::Inline && has_blobs) {
                true => Ok(()),
                false => Err(format!("values were left: {converted:?}")),
            }
        } else {
            let handle = self
                .db()
                .convert_values_async(&family, to, &options)
                .map_err(|e| e.to_string())?;
            self.steer(handle.job())
        };
        let now = family.options();
        if let Some(family) = self.families.get_mut(&name) {
            family.options = (*now).clone();
        }
        result
    }

    /// Waits for what was begun, or stops it, or leaves it alone.
    fn steer(&mut self, handle: &CompactionHandle) -> Result<(), String> {
        match self.rng.below(4) {
            0 => {
                handle.pause();
                handle.resume();
            }
            1 => handle.cancel(),
            // It goes on beside whatever comes next.
            2 => return Ok(()),
            _ => {}
        }
        match handle.wait() {
            Err(e) if e.kind() == ErrorKind::Aborted => Ok(()),
            other => fine(other),
        }
    }

    fn cut_power(&mut self) -> Result<(), String> {
        let seed = self.rng.u64();
        let cut = if self.rng.chance(1, 2) {
            PowerCut::DropUnsynced
        } else {
            PowerCut::Torn { seed }
        };
        self.crash(cut)
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        self.count += 1;
        let dir = format!("/checkpoint{}", self.count);
        let options = CheckpointOptions {
            log_size_for_flush: *self.rng.pick(&[0, 20_000, u64::MAX]),
        };
        fine(self.db().checkpoint_opt(&options, &dir))?;
        let read_only = self.rng.chance(1, 2);
        self.compare_checkpoint(&dir, read_only)
    }

    fn create_family(&mut self) -> Result<(), String> {
        if self.families.len() >= FAMILIES_MAX {
            return Ok(());
        }
        // Names come again.
        let name = format!("family{}", self.rng.below(6));
        let fixed = Fixed::draw(&mut self.rng);
        let options = setup::family(&mut self.rng, &fixed);
        let made = self.db().create_column_family(&name, options.clone());
        if self.families.contains_key(&name) {
            return must_be(made, ErrorKind::InvalidArgument);
        }
        fine(made)?;
        self.families.insert(name, Family::new(fixed, options));
        Ok(())
    }

    fn drop_family(&mut self) -> Result<(), String> {
        let name = self.draw_family();
        let dropped = self.db().drop_column_family(&self.handle(&name)?);
        if name == "default" {
            return must_be(dropped, ErrorKind::InvalidArgument);
        }
        fine(dropped)?;
        self.families.remove(&name);
        for taken in &mut self.snapshots {
            taken.view.remove(&name);
        }
        Ok(())
    }

    /// Changes some settings while the database is open; whatever they are, nothing else changes.
    fn change_options(&mut self) -> Result<(), String> {
        let name = self.draw_family();
        let family = self.handle(&name)?;
        let mut changes = Vec::new();
        for _ in 0..self.rng.range(1..5) {
            let (option, values) = *self.rng.pick(&setup::CHANGES);
            changes.push((option, *self.rng.pick(values)));
        }
        let jobs = ["1", "2", "4"];
        let collections = ["0", "1", "2"];
        let sync = ["0", "512", "1m"];
        let of_db = [
            ("max_background_jobs", *self.rng.pick(&jobs)),
            ("bytes_per_sync", *self.rng.pick(&sync)),
            ("max_background_gc", *self.rng.pick(&collections)),
        ];
        self.note(|| format!("change options of {name}: {changes:?}, of all: {of_db:?}"));
        let db = self.db();
        fine(db.set_options(&family, &changes))?;
        fine(db.set_db_options(&of_db))?;
        let fixed = [("write_buffer_size", "1m"), ("num_levels", "9")];
        must_be(db.set_options(&family, &fixed), ErrorKind::InvalidArgument)?;
        let now = family.options();
        let mut base = Options::default();
        base.db.fs = Arc::new(self.fs.clone());
        let stored = fine(Db::load_latest_options(DIR, &base))?;
        let of_file = stored.family(&name);
        let differs = of_file.write_buffer_size != now.write_buffer_size
            || of_file.table != now.table
            || setup::blob_settings(of_file) != setup::blob_settings(&now);
        if differs {
            return Err("the OPTIONS file does not hold the settings".to_owned());
        }
        if let Some(family) = self.families.get_mut(&name) {
            family.options = (*now).clone();
        }
        Ok(())
    }

    fn properties(&mut self) -> Result<(), String> {
        let name = self.draw_family();
        let family = self.handle(&name)?;
        let db = self.db();
        for property in ["rocksdb.stats", "rocksdb.levelstats", "rocksdb.sstables"] {
            if db.property(&family, property).is_none() {
                return Err(format!("there is no property {property}"));
            }
        }
        let number = |property: &str| {
            db.int_property(&family, property)
                .ok_or_else(|| format!("there is no {property}"))
        };
        number("rocksdb.estimate-num-keys")?;
        number("rocksdb.cur-size-all-mem-tables")?;
        number("rocksdb.estimate-pending-compaction-bytes")?;
        if number("rocksdb.background-errors")? != 0 {
            return Err("there was a background error".to_owned());
        }
        let snapshots = number("rocksdb.num-snapshots")?;
        if snapshots != self.snapshots.len() as u64 {
            return Err(format!("{snapshots} snapshots are counted"));
        }
        let live = db.live_files();
        if live
            .iter()
            .any(|f| !self.families.contains_key(&f.column_family))
        {
            return Err("a live file is of no family".to_owned());
        }
        Ok(())
    }

    fn read_only_open(&mut self) -> Result<(), String> {
        let mut options = Options::default();
        options.db.fs = Arc::new(self.fs.clone());
        for (name, family) in &self.families {
            options
                .families
                .insert(name.clone(), family.options.clone());
        }
        must_be(Db::open(DIR, &options).map(|_| ()), ErrorKind::Busy)?;
        // Files may go while it opens; if it opens, it refuses writes.
        if let Ok(db) = Db::open_read_only(DIR, &options) {
            must_be(db.put(b"a", b"b"), ErrorKind::ReadOnly)?;
        }
        Ok(())
    }

    /// Calls that must be refused, and change nothing.
    fn refused(&mut self) -> Result<(), String> {
        let (key, other) = (self.draw_key(), self.draw_key());
        let name = self.draw_family();
        let family = self.handle(&name)?;
        let reverse = self.families[&name].fixed.reverse;
        let db = self.db();
        if compare(reverse, &other, &key).is_lt() {
            let mut batch = WriteBatch::new();
            batch.put(0, &key, b"never seen");
            batch.delete_range(family.id(), &key, &other);
            must_be(db.write(batch), ErrorKind::InvalidArgument)?;
        }
        let mut batch = WriteBatch::new();
        batch.put(0, &key, b"never seen");
        batch.put(4242, &key, b"never seen");
        must_be(db.write(batch), ErrorKind::InvalidArgument)?;
        let four = WriteOptions {
            protection_bytes_per_key: 4,
            ..WriteOptions::default()
        };
        must_be(
            db.put_opt(&four, &family, &key, b"never seen"),
            ErrorKind::InvalidArgument,
        )?;
        let both = WriteOptions {
            sync: true,
            disable_wal: true,
            ..WriteOptions::default()
        };
        must_be(
            db.put_opt(&both, &family, &key, b"never seen"),
            ErrorKind::InvalidArgument,
        )
    }
}
