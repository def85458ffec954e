//! The maps that are compared, behind one face.

use std::sync::Arc;

use crossbeam_skiplist::SkipSet;
use orogen_base::{UserComparator, ValueKind};
use orogen_memtable::{GuidedListMemTable, MemTable, TrieMemTable, Visit};
use orogen_trie::{Cursor, Root, Trie};

use crate::skip_list::SkipList;
use crate::{Keys, counted};

pub(crate) const KINDS: [&str; 6] = [
    "trie",
    "trie-ref",
    "skip-list",
    "crossbeam",
    "guided-list",
    "trie-memtable",
];

const ROOT: Root = Root(0);

pub(crate) enum Contender {
    Trie(Trie, usize),
    SkipList(SkipList),
    Crossbeam16(SkipSet<[u8; 16]>),
    Crossbeam40(SkipSet<[u8; 40]>),
    /// With values of so many bytes.
    MemTable(Arc<dyn MemTable>, usize),
}

/// What a scan reads of each key.
fn touch(sum: &mut u64, key: &[u8]) {
    *sum = sum.wrapping_add(u64::from(key[key.len() - 1]));
}

impl Contender {
    pub(crate) fn new(kind: &str, num: u64, key_len: usize, value_len: usize) -> Self {
        let capacity = (num as usize * (key_len + 100)).clamp(64 << 20, 16 << 30);
        let trie = |cell| Trie::new(capacity, cell, 1).expect("addresses");
        match kind {
            "trie" => Self::Trie(trie(0), 0),
            "trie-ref" => Self::Trie(trie(1), 1),
            "skip-list" => Self::SkipList(SkipList::new(capacity)),
            "crossbeam" if key_len == 16 => Self::Crossbeam16(SkipSet::new()),
            "crossbeam" => Self::Crossbeam40(SkipSet::new()),
            "trie-memtable" => {
                let bytes = num * (key_len + value_len + 100) as u64;
                Self::MemTable(TrieMemTable::new(bytes).expect("addresses"), value_len)
            }
            _ => {
                let list = GuidedListMemTable::new(UserComparator::BYTEWISE);
                Self::MemTable(list, value_len)
            }
        }
    }

    pub(crate) fn insert_all(&self, numbers: impl Iterator<Item = u64>, keys: Keys) {
        let mut buffer = [b'.'; 40];
        match self {
            Self::Trie(trie, cell) => {
                let mut writer = trie.writer();
                for i in numbers {
                    let key = keys.make(i, &mut buffer);
                    let added = writer.insert(ROOT, key, &[7][..*cell]);
                    assert!(added.expect("room").1, "keys are new");
                }
            }
            Self::SkipList(list) => {
                numbers.for_each(|i| list.insert(keys.make(i, &mut buffer)));
            }
            Self::Crossbeam16(set) => numbers.for_each(|i| {
                let key = keys.make(i, &mut buffer);
                set.insert(key.try_into().expect("16 bytes"));
            }),
            Self::Crossbeam40(set) => numbers.for_each(|i| {
                let key = keys.make(i, &mut buffer);
                set.insert(key.try_into().expect("40 bytes"));
            }),
            Self::MemTable(table, value_len) => {
                let value = vec![b'v'; *value_len];
                numbers.for_each(|i| {
                    let key = keys.make(i, &mut buffer);
                    let added = table.insert(key, i + 1, ValueKind::Value, &value);
                    added.expect("memory");
                });
            }
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> bool {
        match self {
            Self::Trie(trie, _) => trie.reader().get(ROOT, key).is_some(),
            Self::SkipList(list) => list.get(key),
            Self::Crossbeam16(set) => set.contains::<[u8]>(key),
            Self::Crossbeam40(set) => set.contains::<[u8]>(key),
            Self::MemTable(table, _) => {
                let mut found = false;
                let shown = table.get(key, u64::MAX >> 8, &mut |_, _| {
                    found = true;
                    Visit::Stop
                });
                shown.expect("memory is as it was");
                found
            }
        }
    }

    /// Reads all keys in order; how many there are.
    pub(crate) fn scan(&self) -> u64 {
        let (mut count, mut sum) = (0, 0);
        match self {
            Self::Trie(trie, _) => {
                let mut cursor = Cursor::new();
                cursor.first(trie, ROOT);
                while cursor.valid() {
                    touch(&mut sum, cursor.key());
                    count += 1;
                    cursor.next(trie);
                }
            }
            Self::SkipList(list) => list.scan(|key| {
                touch(&mut sum, key);
                count += 1;
            }),
            Self::Crossbeam16(set) => {
                for entry in set {
                    touch(&mut sum, entry.value());
                    count += 1;
                }
            }
            Self::Crossbeam40(set) => {
                for entry in set {
                    touch(&mut sum, entry.value());
                    count += 1;
                }
            }
            Self::MemTable(table, value_len) => {
                let mut iter = table.clone().iter();
                iter.seek_to_first();
                while iter.valid() {
                    touch(&mut sum, &iter.key()[..8]);
                    if *value_len > 0 {
                        touch(&mut sum, iter.value());
                    }
                    count += 1;
                    iter.next();
                }
            }
        }
        std::hint::black_box(sum);
        count
    }

    /// Bytes that it holds; `before` were out before it was made.
    pub(crate) fn bytes(&self, before: usize) -> usize {
        match self {
            Self::Trie(trie, _) => trie.usage().taken as usize,
            Self::SkipList(list) => list.bytes(),
            Self::Crossbeam16(_) | Self::Crossbeam40(_) => counted::bytes() - before,
            Self::MemTable(table, _) => table.memory_usage(),
        }
    }
}
