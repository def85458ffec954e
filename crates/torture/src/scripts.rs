//! The scripts. Each is about one thing that a crash can meet half done; those of
//! [`random()`] mix all of them.

mod blobs;
mod random;

use std::sync::Arc;

use orogen_engine::options::MemTableKind;
use orogen_testkit::Rng;

pub use random::random;

use crate::engine::Options;
use crate::model::{Family, Op};
use crate::script::{COLD, Script, Step, small_options};

/// Builds the steps of a script.
struct Writer {
    steps: Vec<Step>,
    rng: Rng,
    count: u64,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self {
            steps: Vec::new(),
            rng: Rng::new(seed),
            count: 0,
        }
    }

    fn key(&mut self) -> Vec<u8> {
        format!("key{:03}", self.rng.below(60)).into_bytes()
    }

    /// A value that was never written before.
    fn value(&mut self) -> Vec<u8> {
        self.count += 1;
        let mut value = format!("v{}-", self.count).into_bytes();
        let len = self.rng.range(10..90);
        value.extend(self.rng.bytes(len));
        value
    }

    fn put(&mut self, family: Family) -> Op {
        Op::Put(family, self.key(), self.value())
    }

    fn write(&mut self, ops: Vec<Op>, sync: bool) {
        self.steps.push(Step::Write {
            ops,
            sync,
            disable_wal: false,
        });
    }

    /// Single puts, every `sync_every`-th with sync (0: none).
    fn puts(&mut self, family: Family, n: usize, sync_every: usize) {
        for i in 1..=n {
            let op = self.put(family);
            self.write(vec![op], sync_every > 0 && i % sync_every == 0);
        }
    }

    /// Three puts and two operands for each family.
    fn prepare(&mut self, name: &'static str, families: &[Family], sync: bool) {
        let mut ops = Vec::new();
        for &family in families {
            ops.extend((0..3).map(|_| self.put(family)));
            let operand = self.value();
            ops.extend((0..2).map(|n| Op::Merge(family, vec![b'm', n], operand.clone())));
        }
        self.steps.push(Step::Prepare { name, ops, sync });
    }

    /// Values of two to four blocks under some keys of `families`.
    fn large(&mut self, families: &[Family], keys: &[usize]) {
        for &n in keys {
            let ops = families.iter().map(|&family| {
                let mut value = self.value();
                let len = 8200 + self.rng.below(8000) as usize;
                value.resize(len, b'a' + self.rng.below(26) as u8);
                Op::Put(family, format!("large{n}").into_bytes(), value)
            });
            let ops = ops.collect();
            self.write(ops, n % 2 == 0);
        }
    }

    fn unlogged(&mut self, family: Family, n: usize) {
        for _ in 0..n {
            let ops = vec![self.put(family)];
            self.steps.push(Step::Write {
                ops,
                sync: false,
                disable_wal: true,
            });
        }
    }

    /// Batches over `families`; the value of the first key is in all of them.
    fn batches(&mut self, families: &[Family], n: usize, sync_every: usize) {
        for i in 1..=n {
            let mut ops = Vec::new();
            for &family in families {
                ops.push(self.put(family));
                ops.push(self.put(family));
            }
            if i % 5 == 0 {
                let key = self.key();
                ops.push(Op::Delete(families[0], key));
            }
            self.write(ops, sync_every > 0 && i % sync_every == 0);
        }
    }

    /// Drops the tables of a third of the keys.
    fn drop_range(&mut self, family: Family) {
        let first = self.rng.below(40);
        let key = |n: u64| format!("key{n:03}").into_bytes();
        self.step(Step::DropRange(family, key(first), key(first + 20)));
    }

    fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// A script in which not every call is made to fail.
    fn long_script(self, name: &str, options: fn() -> Options) -> Script {
        Script {
            fault_stride: 5,
            ..self.script(name, options)
        }
    }

    fn script(self, name: &str, options: fn() -> Options) -> Script {
        Script {
            name: name.to_owned(),
            options: Arc::new(options),
            steps: self.steps,
            unlogged: &[],
            fault_stride: 1,
        }
    }
}

/// Puts with and without sync; memtables fill up and are flushed in the background.
fn puts() -> Script {
    let mut w = Writer::new(1);
    w.puts("default", 140, 7);
    w.puts("default", 140, 0);
    w.step(Step::SyncWal);
    w.puts("default", 140, 3);
    w.long_script("puts", small_options)
}

/// Every write synced: nothing may ever be lost.
fn synced() -> Script {
    let mut w = Writer::new(2);
    w.puts("default", 520, 1);
    w.long_script("synced", small_options)
}

/// Batches over three families, and flushes of some of them.
fn batches() -> Script {
    let mut w = Writer::new(3);
    w.step(Step::Create("a"));
    w.step(Step::Create("b"));
    for round in 0..5 {
        w.batches(&["default", "a", "b"], 12, 5);
        w.step(Step::Flush(vec![["a", "default", "b"][round % 3]]));
    }
    w.batches(&["default", "a", "b"], 8, 0);
    w.script("batches", small_options)
}

/// Flushes by hand.
fn flush() -> Script {
    let mut w = Writer::new(4);
    for _ in 0..24 {
        w.puts("default", 8, 5);
        w.step(Step::Flush(vec!["default"]));
    }
    w.script("flush", small_options)
}

/// Compactions by hand and by themselves, over several levels.
fn compaction() -> Script {
    let mut w = Writer::new(5);
    for _ in 0..3 {
        w.puts("default", 70, 9);
        w.step(Step::Compact("default"));
        w.puts("default", 30, 0);
        w.step(Step::Wait);
    }
    w.script("compaction", small_options)
}

/// Range deletions, merges, deletions and compactions of them.
fn tombstones() -> Script {
    let mut w = Writer::new(6);
    for round in 0..6 {
        for i in 0..16 {
            let (key, value) = (w.key(), w.value());
            let op = match w.rng.below(10) {
                0 | 1 => {
                    let end = format!("key{:03}", w.rng.below(60)).into_bytes();
                    let (from, to) = if key < end { (key, end) } else { (end, key) };
                    Op::DeleteRange("default", from, to)
                }
                2 => Op::Delete("default", key),
                3..=5 => Op::Merge("default", key, value),
                _ => Op::Put("default", key, value),
            };
            w.write(vec![op], i % 6 == 0);
        }
        // A key of its own that is put once and deleted so.
        let once = format!("once{round}").into_bytes();
        let value = w.value();
        w.write(vec![Op::Put("default", once.clone(), value)], false);
        w.step(Step::Flush(vec!["default"]));
        w.write(vec![Op::SingleDelete("default", once)], true);
        if round % 2 == 1 {
            w.step(Step::Compact("default"));
        }
    }
    w.script("tombstones", small_options)
}

/// Families come and go, one of them twice.
fn families() -> Script {
    let mut w = Writer::new(7);
    w.puts("default", 5, 2);
    for round in 0..3 {
        w.step(Step::Create("a"));
        w.batches(&["default", "a"], 10, 4);
        if round == 1 {
            w.step(Step::Flush(vec!["a"]));
        }
        w.step(Step::Create("b"));
        w.batches(&["a", "b"], 10, 4);
        w.step(Step::Drop("a"));
        w.batches(&["default", "b"], 6, 3);
        w.step(Step::Drop("b"));
    }
    w.step(Step::Compact("default"));
    w.script("families", small_options)
}

fn few_log_bytes() -> Options {
    let mut options = small_options();
    options.db.max_total_wal_size = 8 << 10;
    options
}

/// Logs grow until the family that pins the oldest (see [`crate::script::COLD`]) is flushed.
fn rotation() -> Script {
    let mut w = Writer::new(8);
    w.step(Step::Create("hot"));
    w.step(Step::Create(COLD));
    for _ in 0..4 {
        w.batches(&["default", "hot", COLD], 1, 0);
        w.puts("hot", 40, 11);
        w.puts("default", 15, 0);
        w.batches(&[COLD], 2, 2);
    }
    w.script("rotation", few_log_bytes)
}

/// Checkpoints between writes.
fn checkpoint() -> Script {
    let mut w = Writer::new(9);
    w.step(Step::Create("a"));
    for n in 0..4 {
        w.batches(&["default", "a"], 12, 5);
        w.step(Step::Checkpoint(n));
    }
    w.puts("default", 10, 4);
    w.script("checkpoint", small_options)
}

/// Opened again and again, with writes in the log each time.
fn reopen() -> Script {
    let mut w = Writer::new(10);
    w.step(Step::Create("a"));
    for round in 0..6 {
        w.batches(&["default", "a"], 8, if round % 2 == 0 { 3 } else { 0 });
        w.step(Step::Reopen);
    }
    w.puts("default", 5, 2);
    w.script("reopen", small_options)
}

fn lazy_recovery() -> Options {
    let mut options = small_options();
    options.db.avoid_flush_during_recovery = true;
    options.db.max_background_jobs = 4;
    options.db.max_subcompactions = 2;
    options
}

/// As `reopen`, but what the logs held stays in memory.
fn lazy() -> Script {
    let mut w = Writer::new(11);
    w.step(Step::Create("a"));
    for round in 0..6 {
        w.batches(&["default", "a"], 7, if round % 2 == 0 { 3 } else { 0 });
        w.step(Step::Reopen);
    }
    w.batches(&["default", "a"], 20, 6);
    w.script("lazy", lazy_recovery)
}

/// One family without WAL among others with it.
fn unlogged() -> Script {
    let mut w = Writer::new(12);
    w.step(Step::Create("u"));
    for round in 0..5 {
        w.puts("default", 8, 3);
        w.unlogged("u", 14);
        if round % 2 == 0 {
            w.step(Step::Flush(vec!["u"]));
        }
        w.puts("default", 8, 0);
        if round == 3 {
            w.step(Step::Reopen);
        }
    }
    Script {
        unlogged: &["u"],
        ..w.script("unlogged", small_options)
    }
}

fn recycled_logs() -> Options {
    let mut options = small_options();
    options.db.recycle_log_file_num = 2;
    options
}

/// Logs are written over instead of made anew.
fn recycle() -> Script {
    let mut w = Writer::new(13);
    w.puts("default", 100, 6);
    w.step(Step::Flush(vec!["default"]));
    w.puts("default", 60, 4);
    w.step(Step::Reopen);
    w.puts("default", 60, 0);
    w.script("recycle", recycled_logs)
}

fn tiny_manifests() -> Options {
    let mut options = small_options();
    options.db.max_manifest_file_size = 600;
    options
}

/// A new MANIFEST every few edits.
fn manifests() -> Script {
    let mut w = Writer::new(14);
    w.step(Step::Create("a"));
    for _ in 0..8 {
        w.batches(&["default", "a"], 6, 4);
        w.step(Step::Flush(vec!["default", "a"]));
    }
    w.step(Step::Compact("a"));
    w.script("manifests", tiny_manifests)
}

/// Backups between writes, some deleted, some restored.
fn backup() -> Script {
    let mut w = Writer::new(15);
    w.step(Step::Create("a"));
    for round in 0..5 {
        w.batches(&["default", "a"], 10, 4);
        w.step(Step::Backup);
        if round % 2 == 1 {
            w.step(Step::Purge(1));
            w.step(Step::Restore(round));
        }
    }
    w.long_script("backup", small_options)
}

fn no_compactions() -> Options {
    let mut options = small_options();
    options.cf.disable_auto_compactions = true;
    options
}

/// All tables of a family dropped at once, again and again.
fn drop_files() -> Script {
    let mut w = Writer::new(16);
    for _ in 0..7 {
        w.puts("default", 40, 6);
        w.step(Step::DropFiles("default"));
        w.puts("default", 4, 2);
        w.step(Step::DropFiles("default"));
    }
    w.puts("default", 10, 0);
    w.long_script("drop-files", no_compactions)
}

/// Manual compactions that are paused, and some that are given up.
fn paused() -> Script {
    let mut w = Writer::new(17);
    for _ in 0..5 {
        w.puts("default", 50, 9);
        w.step(Step::CompactPaused("default"));
        w.puts("default", 40, 0);
        w.step(Step::CompactCancelled("default"));
    }
    w.long_script("paused", small_options)
}

fn archived_logs() -> Options {
    let mut options = small_options();
    options.db.wal_ttl_seconds = 1_000_000;
    options
}

/// Logs that are archived, and read back.
fn archive() -> Script {
    let mut w = Writer::new(18);
    for round in 0..8 {
        w.puts("default", 35, 5);
        w.step(Step::Updates);
        w.step(Step::Flush(vec!["default"]));
        if round % 3 == 2 {
            w.step(Step::Reopen);
        }
    }
    w.step(Step::Updates);
    w.long_script("archive", archived_logs)
}

fn mapped_logs() -> Options {
    let mut options = small_options();
    options.db.allow_mmap_writes = true;
    options
}

/// Logs that are longer than what is in them until they are closed.
fn mapped() -> Script {
    let mut w = Writer::new(19);
    w.step(Step::Create("a"));
    for round in 0..6 {
        w.puts("default", 40, 5);
        w.batches(&["default", "a"], 15, 4);
        w.step(Step::Flush(vec!["a"]));
        if round % 2 == 1 {
            w.step(Step::Reopen);
        }
    }
    w.puts("default", 60, 0);
    w.long_script("mapped", mapped_logs)
}

fn many_jobs() -> Options {
    let mut options = small_options();
    options.db.max_background_jobs = 4;
    options.db.max_subcompactions = 3;
    options
}

/// Flushes of several families at once, with several jobs in the background.
fn together() -> Script {
    let mut w = Writer::new(20);
    for name in ["a", "b", "c"] {
        w.step(Step::Create(name));
    }
    for _ in 0..7 {
        w.batches(&["default", "a", "b", "c"], 8, 3);
        w.step(Step::Flush(vec!["default", "a", "b", "c"]));
        w.puts("a", 10, 0);
    }
    w.step(Step::Compact("a"));
    w.long_script("together", many_jobs)
}

/// Prepared batches that are committed and rolled back in the log that has them, in a later one, and
/// after an open.
fn prepared() -> Script {
    let mut w = Writer::new(27);
    w.step(Step::Create("side"));
    let both: &[Family] = &["default", "side"];
    w.puts("default", 3, 2);
    w.prepare("here", both, true);
    w.prepare("dropped", both, false);
    w.batches(both, 2, 0);
    w.step(Step::CommitPrepared("here", false));
    w.step(Step::RollbackPrepared("dropped", false));
    w.prepare("later", both, true);
    w.prepare("much later", &["side"], true);
    w.prepare("after", both, false);
    w.prepare("beside", &["side"], true);
    w.step(Step::Flush(vec!["default"]));
    w.batches(both, 3, 2);
    // Their sections are in the log before.
    w.step(Step::CommitPrepared("later", false));
    w.step(Step::CommitPrepared("beside", false));
    w.step(Step::RollbackPrepared("after", false));
    w.step(Step::CommitPrepared("much later", false));
    w.prepare("after", both, false);
    // The first log goes, and the entries of these are in no table.
    w.step(Step::Flush(vec!["default"]));
    w.puts("side", 2, 0);
    w.prepare("much later", &["side"], true);
    w.step(Step::Flush(vec!["side", "default"]));
    // Enough for what is held back to be written anew.
    for _ in 0..3 {
        w.puts("default", 25, 0);
        w.step(Step::Flush(vec!["default", "side"]));
    }
    w.puts("default", 2, 0);
    w.step(Step::RollbackPrepared("after", true));
    w.prepare("open", both, true);
    w.step(Step::Reopen);
    w.batches(both, 2, 2);
    w.step(Step::CommitPrepared("open", false));
    // The name once more.
    w.prepare("open", both, true);
    w.step(Step::Checkpoint(1));
    w.step(Step::Reopen);
    w.step(Step::RollbackPrepared("open", false));
    w.step(Step::CommitPrepared("much later", false));
    w.puts("side", 3, 0);
    w.step(Step::Compact("default"));
    // The log of the section goes while only a memtable has what it wrote.
    w.step(Step::Flush(vec!["default", "side"]));
    w.puts("default", 2, 0);
    w.prepare("side only", &["side"], true);
    w.step(Step::Flush(vec!["default"]));
    w.step(Step::CommitPrepared("side only", false));
    w.puts("default", 2, 0);
    w.step(Step::Flush(vec!["default"]));
    w.puts("default", 2, 0);
    w.script("prepared", small_options)
}

/// The same with one family: a flush of it is newer than what only logs have.
fn prepared_alone() -> Script {
    let mut w = Writer::new(28);
    for (first, second) in [("a", "b"), ("c", "a")] {
        w.prepare(first, &["default"], true);
        w.puts("default", 2, 0);
        w.step(Step::RollbackPrepared(first, false));
        w.prepare(second, &["default"], false);
        w.puts("default", 2, 0);
        w.step(Step::Flush(vec!["default"]));
        w.puts("default", 2, 0);
        w.step(Step::CommitPrepared(second, false));
        w.puts("default", 2, 0);
        w.step(Step::Flush(vec!["default"]));
    }
    w.script("prepared-alone", small_options)
}

/// Prepared batches that are rolled back while no memtable has anything, until logs are given up for that alone.
fn prepared_idle() -> Script {
    let mut w = Writer::new(31);
    w.step(Step::Create("side"));
    w.puts("side", 2, 2);
    w.step(Step::Flush(vec!["side"]));
    w.prepare("stays", &["side"], true);
    w.prepare("ends", &["default"], false);
    for round in 0..3 {
        for n in 0..8 {
            w.prepare("goes", &["default", "side"], n % 3 == 0);
            w.step(Step::RollbackPrepared("goes", n % 4 == 0));
        }
        match round {
            0 => w.step(Step::CommitPrepared("ends", false)),
            1 => w.step(Step::Reopen),
            _ => w.puts("side", 1, 0),
        }
    }
    w.step(Step::CommitPrepared("stays", true));
    w.script("prepared-idle", || {
        let mut options = small_options();
        options.db.max_total_wal_size = 1 << 10;
        options
    })
}

/// Synced batches and flushes, for long.
fn long() -> Script {
    let mut w = Writer::new(21);
    for _ in 0..9 {
        w.puts("default", 60, 1);
        w.step(Step::Flush(vec!["default"]));
    }
    Script {
        fault_stride: 0,
        ..w.script("long", small_options)
    }
}

/// All scripts.
#[must_use]
pub fn all() -> Vec<Script> {
    let all = [
        puts(),
        synced(),
        batches(),
        flush(),
        compaction(),
        tombstones(),
        families(),
        rotation(),
        checkpoint(),
        reopen(),
        lazy(),
        unlogged(),
        recycle(),
        manifests(),
        backup(),
        drop_files(),
        paused(),
        archive(),
        mapped(),
        together(),
        prepared(),
        prepared_alone(),
        long(),
        blobs::blobs(),
        blobs::holes(),
        blobs::blob_gc(),
        blobs::blob_convert(),
        blobs::blob_order(),
        blobs::blob_drop_files(),
        blobs::blob_modes(),
        prepared_idle(),
        blobs::blob_halves(),
    ];
    let numbered = all.into_iter().enumerate();
    numbered
        .map(|(n, script)| with_memtables(script, n as u64))
        .collect()
}

/// The script with memtables of the `n`-th kind, which take turns.
fn with_memtables(script: Script, n: u64) -> Script {
    const KINDS: [MemTableKind; 3] = [
        MemTableKind::Trie,
        MemTableKind::GuidedList,
        MemTableKind::Adaptive,
    ];
    let kind = KINDS[(n % KINDS.len() as u64) as usize];
    let options = script.options.clone();
    Script {
        options: Arc::new(move || {
            let mut options = options();
            options.cf.memtable_factory = kind.factory();
            options
        }),
        ..script
    }
}

/// The scripts of these names, of which `random-7` is [`random()`] of 7; all but those for none.
///
/// # Errors
/// The name that is not there.
pub fn named(names: &[String]) -> Result<Vec<Script>, String> {
    let all = all();
    if names.is_empty() {
        return Ok(all);
    }
    let find = |name: &String| {
        let seed = name.strip_prefix(random::PREFIX).map(str::parse);
        if let Some(Ok(seed)) = seed {
            return Ok(random(seed));
        }
        all.iter()
            .find(|s| s.name == *name)
            .cloned()
            .ok_or_else(|| {
                let known: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
                format!(
                    "no script `{name}`; there are {}, random-N",
                    known.join(", ")
                )
            })
    };
    names.iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_the_same_every_time_and_have_names_of_their_own() {
        let (one, two) = (all(), all());
        for (a, b) in one.iter().zip(&two) {
            assert_eq!(format!("{:?}", a.steps), format!("{:?}", b.steps));
            assert_eq!(one.iter().filter(|s| s.name == a.name).count(), 1);
        }
        assert!(named(&["nothing".to_owned()]).is_err());
        assert!(named(&["random-x".to_owned()]).is_err());
        let some = named(&["flush".to_owned(), "random-3".to_owned()]).unwrap();
        assert_eq!(
            (some[0].name.as_str(), some[1].name.as_str()),
            ("flush", "random-3")
        );
    }
}
