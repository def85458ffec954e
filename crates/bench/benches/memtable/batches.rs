//! Indexed write batches: filled with keys of 16 bytes and values of 100, each looked up once, emptied, filled again. Beside
//! the batch of the transactions: the same batch with a skip list of RocksDB's layout for an index, the trie
//! alone, that skip list alone, and a `BTreeMap`. All but that keep their memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use orogen::txn::indexed_batch::{BatchLookup, IndexedBatch};
use orogen::{ColumnFamily, Db, DbOptions, Options, WriteBatch};
use orogen_env::MemFileSystem;
use orogen_trie::{LocalTrie, Root};

use crate::skip_list::SkipList;
use crate::{Keys, median, time};

const ROOT: Root = Root(0);
/// Keys of one turn, in all batches.
const KEYS: u64 = 1_000_000;
const VALUE: [u8; 100] = [b'v'; 100];

/// Something that is filled with keys, asked for each, and emptied.
trait Index {
    fn put(&mut self, key: &[u8], number: u64);
    fn has(&mut self, key: &[u8]) -> bool;
    fn clear(&mut self);
}

struct Batch {
    batch: IndexedBatch,
    family: ColumnFamily,
}

impl Index for Batch {
    fn put(&mut self, key: &[u8], _: u64) {
        self.batch.put(&self.family, key, &VALUE).expect("room");
    }

    fn has(&mut self, key: &[u8]) -> bool {
        let found = self.batch.lookup(&self.family, key).expect("no damage");
        matches!(found, BatchLookup::Value(_))
    }

    fn clear(&mut self) {
        self.batch.clear();
    }
}

struct ListBatch {
    batch: WriteBatch,
    index: SkipList,
}

impl Index for ListBatch {
    fn put(&mut self, key: &[u8], _: u64) {
        self.batch.put(0, key, &VALUE);
        self.index.insert(key);
    }

    fn has(&mut self, key: &[u8]) -> bool {
        self.index.get(key)
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.index.clear();
    }
}

impl Index for LocalTrie {
    fn put(&mut self, key: &[u8], number: u64) {
        self.insert(ROOT, key, &[number as u32]).expect("room");
    }

    fn has(&mut self, key: &[u8]) -> bool {
        self.get(ROOT, key).is_some()
    }

    fn clear(&mut self) {
        Self::clear(self);
    }
}

impl Index for SkipList {
    fn put(&mut self, key: &[u8], _: u64) {
        self.insert(key);
    }

    fn has(&mut self, key: &[u8]) -> bool {
        self.get(key)
    }

    fn clear(&mut self) {
        Self::clear(self);
    }
}

impl Index for BTreeMap<Vec<u8>, u64> {
    fn put(&mut self, key: &[u8], number: u64) {
        self.insert(key.to_vec(), number);
    }

    fn has(&mut self, key: &[u8]) -> bool {
        self.contains_key(key)
    }

    fn clear(&mut self) {
        Self::clear(self);
    }
}

fn turn(index: &mut impl Index, keys: Keys, count: u64) -> f64 {
    let mut buffer = [b'.'; 40];
    time(KEYS, || {
        for from in (0..KEYS / count).map(|i| i * count) {
            for i in from..from + count {
                index.put(keys.make(i, &mut buffer), i);
            }
            for i in from..from + count {
                assert!(index.has(keys.make(i, &mut buffer)));
            }
            index.clear();
        }
    })
}

pub(crate) fn measure(rounds: usize) {
    let keys = Keys {
        len: 16,
        common: 0,
        is_rising: false,
    };
    let options = Options {
        db: DbOptions {
            create_if_missing: true,
            fs: Arc::new(MemFileSystem::new()),
            ..DbOptions::default()
        },
        ..Options::default()
    };
    let db = Db::open("/db", &options).expect("nothing fails in memory");
    let mut batch = Batch {
        batch: IndexedBatch::new().expect("memory"),
        family: db.default_column_family(),
    };
    let mut list_batch = ListBatch {
        batch: WriteBatch::new(),
        index: SkipList::new(1 << 30),
    };
    let mut trie = LocalTrie::new(1 << 30, 1, 4).expect("memory");
    let mut list = SkipList::new(1 << 30);
    let mut tree = BTreeMap::new();
    const NAMES: [&str; 5] = ["batch", "list-batch", "trie", "skip-list", "BTreeMap"];
    println!(
        "ns a key, for put, get and its part of emptying: median (smallest..largest); x: list-batch / batch"
    );
    for count in [1, 3, 10, 100, 1000, 10_000] {
        let mut turns: Vec<[f64; NAMES.len()]> = Vec::new();
        for _ in 0..rounds {
            turns.push([
                turn(&mut batch, keys, count),
                turn(&mut list_batch, keys, count),
                turn(&mut trie, keys, count),
                turn(&mut list, keys, count),
                turn(&mut tree, keys, count),
            ]);
        }
        print!("batches of {count:<6}");
        for (i, name) in NAMES.into_iter().enumerate() {
            let (mid, low, high) = median(turns.iter().map(|t| t[i]).collect());
            print!("  {name} {mid:.0} ({low:.0}..{high:.0})");
        }
        let (mid, low, high) = median(turns.iter().map(|t| t[1] / t[0]).collect());
        println!("  {mid:.1}x ({low:.1}..{high:.1})");
    }
}
