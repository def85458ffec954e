//! The power goes at any call while transactions of two phases are on their way. What was acknowledged is there, what was not is there
//! whole or not at all, and what is prepared holds its locks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use orogen_base::{ErrorKind, Result};
use orogen_engine::{ColumnFamily, Options, ReadOptions, WriteOptions};
use orogen_env::{MemFileSystem, PowerCut};
use orogen_testkit::{Rng, tell};
use orogen_txn::{Transaction, TransactionDb, TransactionDbOptions, TransactionOptions};

const DIR: &str = "/db";
const KEYS: u64 = 24;
const STEPS: usize = 60;
const SEEDS: u64 = 4;
/// Of so many calls one is the last; with the first seed it is each of them.
const STRIDE: usize = 5;

type Key = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Write {
    Put(Key, Vec<u8>),
    Delete(Key),
    DeleteRange(Key, Key),
}

impl Write {
    fn keys(&self) -> Vec<Key> {
        match self {
            Self::Put(key, _) | Self::Delete(key) => vec![key.clone()],
            Self::DeleteRange(start, end) => {
                let all = (0..KEYS).map(key_of);
                all.filter(|key| start <= key && key < end).collect()
            }
        }
    }
}

/// What has to be there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    pairs: BTreeMap<Key, Vec<u8>>,
    prepared: BTreeMap<Vec<u8>, Vec<Write>>,
}

impl Model {
    fn apply(&mut self, writes: &[Write]) {
        for write in writes {
            match write {
                Write::Put(key, value) => {
                    self.pairs.insert(key.clone(), value.clone());
                }
                Write::Delete(_) | Write::DeleteRange(..) => {
                    for key in write.keys() {
                        self.pairs.remove(&key);
                    }
                }
            }
        }
    }

    fn end(&mut self, name: &[u8], commits: bool) {
        let writes = self.prepared.remove(name).expect("it is prepared");
        if commits {
            self.apply(&writes);
        }
    }
}

fn key_of(n: u64) -> Key {
    format!("key{n:02}").into_bytes()
}

fn options(fs: &MemFileSystem) -> Options {
    let mut options = Options::default();
    options.db.fs = Arc::new(fs.clone());
    options.db.create_if_missing = true;
    options.db.info_log = false;
    options.cf.write_buffer_size = 4 << 10;
    options
}

fn open(fs: &MemFileSystem) -> Result<TransactionDb> {
    TransactionDb::open(DIR, &options(fs), TransactionDbOptions::default())
}

/// Who finds a key locked goes without it.
fn synced() -> TransactionOptions {
    TransactionOptions {
        lock_timeout: Some(Duration::ZERO),
        write: WriteOptions {
            sync: true,
            ..WriteOptions::default()
        },
        ..TransactionOptions::default()
    }
}

fn begin(db: &TransactionDb) -> Result<Transaction> {
    db.begin(synced())
}

/// One that is on its way, and what it has.
struct Live {
    txn: Transaction,
    writes: Vec<Write>,
}

struct Script {
    db: TransactionDb,
    family: ColumnFamily,
    rng: Rng,
    live: Vec<Live>,
    names: u32,
}

impl Script {
    fn new(fs: &MemFileSystem, seed: u64) -> Result<Self> {
        let db = open(fs)?;
        Ok(Self {
            family: db.db().default_column_family(),
            db,
            rng: Rng::new(seed),
            live: Vec::new(),
            names: 0,
        })
    }

    fn draw_write(&mut self) -> Write {
        let rng = &mut self.rng;
        let n = rng.below(KEYS);
        match rng.below(8) {
            0 => Write::DeleteRange(key_of(n), key_of((n + 1 + rng.below(4)).min(KEYS))),
            1 | 2 => Write::Delete(key_of(n)),
            _ => {
                let len = 1 + rng.below(200) as usize;
                Write::Put(key_of(n), rng.bytes(len))
            }
        }
    }

    /// Adds to a transaction, unless others have locked it.
    fn add(&mut self, at: usize, write: Write) -> Result<()> {
        let live = &mut self.live[at];
        let done = match &write {
            Write::Put(key, value) => live.txn.put(&self.family, key, value),
            Write::Delete(key) => live.txn.delete(&self.family, key),
            Write::DeleteRange(start, end) => live.txn.delete_range(&self.family, start, end),
        };
        match done {
            Ok(()) => live.writes.push(write),
            Err(e) if e.kind() == ErrorKind::LockTimeout => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        let mut txn = begin(&self.db)?;
        self.names += 1;
        txn.set_name(format!("txn{}", self.names).as_bytes())?;
        let writes = Vec::new();
        self.live.push(Live { txn, writes });
        let at = self.live.len() - 1;
        for _ in 0..1 + self.rng.below(5) {
            let write = self.draw_write();
            self.add(at, write)?;
        }
        if self.rng.chance(1, 4) {
            self.live[at].txn.set_save_point();
            let kept = self.live[at].writes.len();
            let write = self.draw_write();
            self.add(at, write)?;
            self.live[at].txn.rollback_to_save_point()?;
            self.live[at].writes.truncate(kept);
        }
        Ok(())
    }

    /// What it makes of `model` if it is done.
    fn step(&mut self, model: &mut Model) -> Result<()> {
        if self.live.len() < 3 {
            self.begin()?;
        }
        let at = self.rng.below(self.live.len() as u64) as usize;
        let prepared: Vec<_> = model.prepared.keys().cloned().collect();
        match self.rng.below(10) {
            0..=2 => {
                let mut live = self.live.swap_remove(at);
                model.apply(&live.writes);
                live.txn.commit()
            }
            3 => self.live.swap_remove(at).txn.rollback(),
            4 | 5 if prepared.len() < 4 => {
                // Dropped behind it, it goes back to its database.
                let mut live = self.live.swap_remove(at);
                let name = live.txn.name().expect("it has one").to_vec();
                model.prepared.insert(name, live.writes);
                live.txn.prepare()
            }
            6 | 7 if !prepared.is_empty() => {
                let name = self.rng.pick(&prepared);
                let commits = self.rng.chance(2, 3);
                model.end(name, commits);
                end(&self.db, name, commits)
            }
            8 => self.db.db().flush(),
            _ => {
                let key = key_of(self.rng.below(KEYS));
                let mut txn = begin(&self.db)?;
                match txn.put(&self.family, &key, b"alone") {
                    Err(e) if e.kind() == ErrorKind::LockTimeout => return Ok(()),
                    other => other?,
                }
                model.apply(&[Write::Put(key, b"alone".to_vec())]);
                txn.commit()
            }
        }
    }
}

fn end(db: &TransactionDb, name: &[u8], commits: bool) -> Result<()> {
    let mut txn = db.take_prepared(name, synced())?;
    if commits {
        txn.commit()
    } else {
        txn.rollback()
    }
}

/// What is there.
fn seen(db: &TransactionDb) -> BTreeMap<Key, Vec<u8>> {
    let family = db.db().default_column_family();
    let mut iter = db
        .db()
        .iter(&ReadOptions::default(), &family)
        .expect("it reads");
    let mut pairs = BTreeMap::new();
    iter.seek_to_first();
    while iter.valid() {
        pairs.insert(iter.key().to_vec(), iter.value().to_vec());
        iter.next();
    }
    iter.status().expect("it reads");
    pairs
}

/// Runs it until the power goes; gives what has to be there, before or behind the step that was cut.
fn run(fs: &MemFileSystem, seed: u64) -> (Model, Model) {
    let mut model = Model::default();
    let Ok(mut script) = Script::new(fs, seed) else {
        return (model.clone(), model);
    };
    for _ in 0..STEPS {
        let mut behind = model.clone();
        if script.step(&mut behind).is_err() {
            assert!(fs.is_power_off(), "nothing else goes wrong");
            return (model, behind);
        }
        model = behind;
    }
    (model.clone(), model)
}

/// Locks are those of what is prepared, and no others.
fn assert_locked(db: &TransactionDb, model: &Model) {
    let family = db.db().default_column_family();
    let locked: Vec<Key> = model
        .prepared
        .values()
        .flatten()
        .flat_map(Write::keys)
        .collect();
    for key in (0..KEYS).map(key_of) {
        let got = begin(db).expect("memory").put(&family, &key, b"");
        let is_locked = matches!(got, Err(e) if e.kind() == ErrorKind::LockTimeout);
        assert_eq!(is_locked, locked.contains(&key), "{}", key.escape_ascii());
    }
}

fn recover(fs: &MemFileSystem, before: &Model, behind: &Model, rng: &mut Rng) {
    let db = open(fs).expect("it opens");
    let mut names = db.prepared_transactions();
    names.sort();
    let is = |model: &Model| model.pairs == seen(&db) && model.prepared.keys().eq(names.iter());
    let mut model = [before, behind]
        .into_iter()
        .find(|model| is(model))
        .unwrap_or_else(|| {
            panic!(
                "{:?} {names:?}: neither {before:?} nor {behind:?}",
                seen(&db)
            )
        })
        .clone();
    assert_locked(&db, &model);
    for name in names {
        let commits = rng.chance(1, 2);
        end(&db, &name, commits).expect("it ends");
        model.end(&name, commits);
    }
    assert_locked(&db, &model);
    assert_eq!(seen(&db), model.pairs);
    drop(db);
    let db = open(&fs.crash(PowerCut::KeepAll)).expect("it opens again");
    assert_eq!(
        (seen(&db), db.prepared_transactions().len()),
        (model.pairs, 0)
    );
}

#[test]
fn the_power_goes_at_any_call() {
    let (mut points, mut cut_steps, mut prepared) = (0, 0, 0);
    for n in 0..SEEDS {
        let seed = Rng::seed_or(1) + n;
        let stride = if n == 0 { 1 } else { STRIDE };
        let fs = MemFileSystem::new();
        let before = fs.op_count();
        run(&fs, seed);
        let calls = fs.op_count() - before;
        for at in (seed % stride as u64..calls).step_by(stride) {
            let fs = MemFileSystem::new();
            fs.crash_after(at);
            let (before, behind) = run(&fs, seed);
            points += 1;
            cut_steps += usize::from(before != behind);
            prepared += before.prepared.len();
            for cut in [
                PowerCut::KeepAll,
                PowerCut::DropUnsynced,
                PowerCut::Torn { seed: at },
            ] {
                recover(&fs.crash(cut), &before, &behind, &mut Rng::new(at));
            }
        }
    }
    tell(format_args!(
        "two-phase commit: {points} crash points, {cut_steps} of them within a step, {prepared} prepared transactions found again"
    ));
    assert!(cut_steps > 20 && prepared > 100);
}
