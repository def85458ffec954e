//! A database and what it must hold.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use orogen_env::{Clock, MemFileSystem, PowerCut, SystemClock};
use orogen_testkit::Rng;

use super::cursor::Cursor;
use super::family::Family;
use super::setup::{self, Fixed};
use crate::content;
use crate::engine::{ColumnFamily, Db, DbIterator, Options, ReadOptions, Snapshot};
use crate::model::Pairs;

/// Where the database is.
pub(super) const DIR: &str = "/db";

/// What all families hold at some moment.
pub(super) type View = BTreeMap<String, Arc<Pairs>>;

/// A snapshot and what all families held then.
pub(super) struct Taken {
    pub(super) snapshot: Snapshot,
    pub(super) view: View,
}

/// A cursor that stays open, beside what it must show.
pub(super) struct Opened {
    pub(super) iter: DbIterator,
    pub(super) cursor: Cursor,
    /// Family and read options, for messages.
    pub(super) how: String,
}

/// The database under test and its model.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) fs: MemFileSystem,
    /// Always there but while it is opened again.
    db: Option<Db>,
    pub(super) families: BTreeMap<String, Family>,
    /// Follows the database, and knows these families.
    follower: Option<(Db, Vec<u32>)>,
    pub(super) snapshots: Vec<Taken>,
    pub(super) cursors: Vec<Opened>,
    /// Counts values and checkpoints.
    pub(super) count: u64,
    keys: u64,
    /// What was called, a line each, if anybody wants to know.
    pub(super) trace: Option<String>,
    /// The disk before it was opened last.
    pub(super) before_open: MemFileSystem,
}

impl World {
    pub(super) fn new(seed: u64, traced: bool) -> Result<Self, String> {
        let mut rng = Rng::new(seed);
        let keys = *rng.pick(&[10, 40, 40, 150]);
        let fixed = Fixed::draw(&mut rng);
        let options = setup::family(&mut rng, &fixed);
        let default = Family::new(fixed, options);
        let mut world = Self {
            rng,
            fs: MemFileSystem::new(),
            db: None,
            families: BTreeMap::from([("default".to_owned(), default)]),
            follower: None,
            snapshots: Vec::new(),
            cursors: Vec::new(),
            count: 0,
            keys,
            trace: traced.then(String::new),
            before_open: MemFileSystem::new(),
        };
        world.open()?;
        Ok(world)
    }

    pub(super) fn db(&self) -> &Db {
        self.db
            .as_ref()
            .expect("the database is open between calls")
    }

    /// Notes a call.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push_str(&line());
            trace.push('\n');
        }
    }

    /// The engine's handle of a family.
    pub(super) fn handle(&self, name: &str) -> Result<ColumnFamily, String> {
        self.db()
            .column_family(name)
            .ok_or_else(|| format!("family {name} is gone"))
    }

    /// Draws new settings for all that may change.
    pub(super) fn draw_options(&mut self) -> Options {
        let mut options = Options {
            db: setup::database(&mut self.rng),
            ..Options::default()
        };
        options.db.fs = Arc::new(self.fs.clone());
        for (name, family) in &self.families {
            let drawn = setup::family(&mut self.rng, &family.fixed);
            options.families.insert(name.clone(), drawn);
        }
        options
    }

    fn open(&mut self) -> Result<(), String> {
        let options = self.draw_options();
        for (name, family) in &mut self.families {
            family.options = options.family(name).clone();
        }
        self.note(|| {
            let d = &options.db;
            format!(
                "open jobs={} wal={} recycle={} manifest={} lazy={} buffer={} {:#?}",
                d.max_background_jobs,
                d.max_total_wal_size,
                d.recycle_log_file_num,
                d.max_manifest_file_size,
                d.avoid_flush_during_recovery,
                d.db_write_buffer_size,
                options.families
            )
        });
        self.before_open = self.fs.fork();
        let db = Db::open(DIR, &options).map_err(|e| format!("open failed: {e}"))?;
        self.db = Some(db);
        self.compare_all()
    }

    /// Closes and opens with other options. Cursors may outlive the database.
    pub(super) fn reopen(&mut self) -> Result<(), String> {
        self.snapshots.clear();
        self.db()
            .close()
            .map_err(|e| format!("close failed: {e}"))?;
        self.db = None;
        self.step_cursors()?;
        self.cursors.clear();
        self.open()
    }

    /// Goes on with the disk as it would be found after a crash of the process, or after a power
    /// cut where all was synced.
    pub(super) fn crash(&mut self, cut: PowerCut) -> Result<(), String> {
        if cut != PowerCut::KeepAll {
            self.db()
                .sync_wal()
                .map_err(|e| format!("sync failed: {e}"))?;
        }
        self.snapshots.clear();
        self.cursors.clear();
        let after = self.fs.crash(cut);
        self.fs.power_off();
        self.follower = None;
        self.db = None;
        self.fs = after;
        self.open()
    }

    /// Lets a follower catch up and compares what it shows.
    pub(super) fn follow(&mut self) -> Result<(), String> {
        self.note(|| "follow".to_owned());
        let families = self.db().column_families();
        let ids: Vec<u32> = families.iter().map(ColumnFamily::id).collect();
        // A new family has settings of its own, which only a new one is told of.
        let known = self.follower.take().filter(|(_, known)| *known == ids);
        let follower = match known {
            Some((follower, _)) => {
                let caught_up = follower.try_catch_up_with_primary();
                caught_up.map_err(|e| format!("a follower cannot catch up: {e}"))?;
                follower
            }
            None => Db::open_as_secondary(DIR, None, &self.draw_options())
                .map_err(|e| format!("a follower cannot open: {e}"))?,
        };
        same(&follower, &self.current()).map_err(|e| format!("a follower: {e}"))?;
        self.follower = Some((follower, ids));
        Ok(())
    }

    /// Compares all that the database holds.
    pub(super) fn compare_all(&self) -> Result<(), String> {
        same(self.db(), &self.current())
    }

    /// What all families hold now.
    pub(super) fn current(&self) -> View {
        self.families
            .iter()
            .map(|(name, f)| (name.clone(), f.pairs.clone()))
            .collect()
    }

    /// Opens a checkpoint, compares it and removes it.
    pub(super) fn compare_checkpoint(&mut self, dir: &str, read_only: bool) -> Result<(), String> {
        let options = self.draw_options();
        let opened = if read_only {
            Db::open_read_only(dir, &options)
        } else {
            Db::open(dir, &options)
        };
        let db = opened.map_err(|e| format!("cannot open the checkpoint: {e}"))?;
        same(&db, &self.current())?;
        db.close()
            .map_err(|e| format!("cannot close the checkpoint: {e}"))?;
        drop(db);
        Db::destroy(dir, &options).map_err(|e| format!("cannot destroy the checkpoint: {e}"))
    }

    /// Opens what repair made of tables alone, compares it and removes it. A family without a
    /// pair has no table that knows its name; of a family that was dropped a log may know.
    pub(super) fn compare_salvaged(&mut self, dir: &str) -> Result<(), String> {
        let mut options = self.draw_options();
        options.db.create_missing_column_families = true;
        let opened = Db::open(dir, &options);
        let db = opened.map_err(|e| format!("cannot open what was repaired: {e}"))?;
        // What the logs hold of a family that was dropped has no name, and no merge operator to read it with.
        let mut found = content::pairs_where(&db, |name| !name.starts_with("recovered_"))
            .map_err(|e| format!("cannot read all: {e}"))?;
        for (name, expected) in self.current() {
            let pairs = found.remove(&name).unwrap_or_default();
            if pairs != *expected {
                let (n, of) = (pairs.len(), expected.len());
                return Err(format!(
                    "family {name}: {n} pairs instead of {of} after repair"
                ));
            }
        }
        if let Some(name) = found.keys().next() {
            return Err(format!("family {name} comes from nowhere"));
        }
        db.close()
            .map_err(|e| format!("cannot close what was repaired: {e}"))?;
        drop(db);
        Db::destroy(dir, &options).map_err(|e| format!("cannot destroy what was repaired: {e}"))
    }

    pub(super) fn step_cursors(&mut self) -> Result<(), String> {
        for i in 0..self.cursors.len() {
            let target = self.draw_key();
            self.cursors[i].walk(&mut self.rng, &target, 6)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<(), String> {
        self.step_cursors()?;
        self.compare_all()?;
        self.db()
            .verify_checksums()
            .map_err(|e| format!("checksums: {e}"))?;
        self.reopen()?;
        self.db()
            .wait_for_background_work()
            .map_err(|e| format!("background work: {e}"))?;
        let mut stray = Vec::new();
        // The last files may go a moment after the work.
        for _ in 0..200 {
            let strays = content::strays(self.db(), &self.fs, Path::new(DIR), usize::MAX, true)
                .map_err(|e| e.to_string())?;
            if strays.is_empty() {
                return Ok(());
            }
            stray = strays;
            SystemClock.sleep(Duration::from_millis(5));
        }
        Err(format!("stray files {stray:?}"))
    }

    /// One of the family names.
    pub(super) fn draw_family(&mut self) -> String {
        let names: Vec<&String> = self.families.keys().collect();
        (*self.rng.pick(&names)).clone()
    }

    /// A key: mostly one of a few, so that they meet.
    pub(super) fn draw_key(&mut self) -> Vec<u8> {
        match self.rng.below(40) {
            0 => Vec::new(),
            1 => vec![0xff; self.rng.range(1..4)],
            2 => {
                let len = self.rng.range(1..4);
                self.rng.bytes(len)
            }
            3 => {
                let mut key = self.common_key();
                key.resize(self.rng.range(100..300), b'x');
                key
            }
            4 => {
                let mut key = self.common_key();
                key.push(0);
                key
            }
            _ => self.common_key(),
        }
    }

    fn common_key(&mut self) -> Vec<u8> {
        let letter = *self.rng.pick(b"abcdes");
        let number = self.rng.below(self.keys);
        format!("{}{number:02}", char::from(letter)).into_bytes()
    }

    /// A value that was never drawn before; of eight bytes in half of the cases, for the operator
    /// that adds numbers.
    pub(super) fn draw_value(&mut self) -> Vec<u8> {
        self.count += 1;
        if self.rng.chance(1, 2) {
            return self.count.to_le_bytes().to_vec();
        }
        let mut value = format!("{}:", self.count).into_bytes();
        let len = match self.rng.below(10) {
            0..=5 => self.rng.range(0..20),
            6..=8 => self.rng.range(0..300),
            _ => self.rng.range(0..3000),
        };
        if self.rng.chance(1, 2) {
            value.resize(value.len() + len, b'z');
        } else {
            value.extend(self.rng.bytes(len));
        }
        value
    }

    /// How a read is done, and what it must find.
    pub(super) fn draw_view(&mut self) -> (ReadOptions, View) {
        let mut options = ReadOptions {
            fill_cache: self.rng.chance(3, 4),
            verify_checksums: self.rng.chance(3, 4),
            readahead_size: *self.rng.pick(&[0, 0, 100, 10_000]),
            total_order_seek: self.rng.chance(1, 4),
            ..ReadOptions::default()
        };
        if !self.snapshots.is_empty() && self.rng.chance(1, 3) {
            let i = self.rng.range(0..self.snapshots.len());
            options.snapshot = Some(self.snapshots[i].snapshot.clone());
            return (options, self.snapshots[i].view.clone());
        }
        (options, self.current())
    }
}

impl Opened {
    /// Moves both at random and compares.
    pub(super) fn walk(&mut self, rng: &mut Rng, target: &[u8], moves: u64) -> Result<(), String> {
        let Self { iter, cursor, .. } = self;
        for _ in 0..=rng.below(moves) {
            let name = match rng.below(if cursor.get().is_some() { 14 } else { 4 }) {
                0 => {
                    iter.seek(target);
                    cursor.seek(target);
                    "seek"
                }
                1 => {
                    iter.seek_for_prev(target);
                    cursor.seek_for_prev(target);
                    "seek_for_prev"
                }
                2 => {
                    iter.seek_to_first();
                    cursor.seek_to_first();
                    "seek_to_first"
                }
                3 => {
                    iter.seek_to_last();
                    cursor.seek_to_last();
                    "seek_to_last"
                }
                4..=9 => {
                    iter.next();
                    cursor.next();
                    "next"
                }
                _ => {
                    iter.prev();
                    cursor.prev();
                    "prev"
                }
            };
            let found = iter.valid().then(|| (iter.key(), iter.value()));
            if found != cursor.get() {
                return Err(format!(
                    "cursor of {} after {name} (target {}): found {}, expected {}, status {:?}",
                    self.how,
                    target.escape_ascii(),
                    show(found),
                    show(cursor.get()),
                    iter.status().err().map(|e| e.to_string()),
                ));
            }
        }
        Ok(())
    }
}

fn show(pair: Option<(&[u8], &[u8])>) -> String {
    pair.map_or_else(
        || "nothing".to_owned(),
        |(k, v)| {
            format!(
                "{}={}",
                k.escape_ascii(),
                v[..v.len().min(40)].escape_ascii()
            )
        },
    )
}

/// Compares all that a database holds.
fn same(db: &Db, expected: &View) -> Result<(), String> {
    let found = content::pairs(db).map_err(|e| format!("cannot read all: {e}"))?;
    if !found.keys().eq(expected.keys()) {
        return Err(format!(
            "families are {:?}, not {:?}",
            found.keys(),
            expected.keys()
        ));
    }
    for (name, pairs) in &found {
        let expected = &*expected[name];
        let differs = |k: &&Vec<u8>| pairs.get(*k) != expected.get(*k);
        let Some(key) = pairs.keys().chain(expected.keys()).find(differs) else {
            continue;
        };
        let value = |m: &Pairs| show(m.get(key).map(|v| (key.as_slice(), v.as_slice())));
        return Err(format!(
            "family {name} holds {}, not {} ({} pairs instead of {})",
            value(pairs),
            value(expected),
            pairs.len(),
            expected.len()
        ));
    }
    Ok(())
}
