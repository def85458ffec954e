//! Memtables under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! Two threads insert while one reads: (1) what was inserted before is found; (2) a scan is sorted
//! and has each entry once; (3) in the end all are there.

use std::sync::Arc;

use orogen_base::ValueKind;
use orogen_base::sync::{Mistake, explore, must_find, thread};

use crate::{GuidedListMemTable, MemTable, TrieMemTable, Visit};

fn keys(table: &Arc<dyn MemTable>) -> Vec<Vec<u8>> {
    let mut iter = table.clone().iter();
    let mut keys = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        keys.push(iter.key().to_vec());
        iter.next();
    }
    assert!(
        keys.windows(2).all(
            |pair| orogen_base::key::user_key(&pair[0]) <= orogen_base::key::user_key(&pair[1])
        ),
        "a scan is not sorted"
    );
    keys
}

fn list() {
    inserts(GuidedListMemTable::new(
        orogen_base::UserComparator::BYTEWISE,
    ));
}

fn trie() {
    inserts(TrieMemTable::new(1 << 20).unwrap());
}

fn inserts(table: Arc<dyn MemTable>) {
    for key in [b"c", b"m"] {
        table.insert(key, 1, ValueKind::Value, &[1]).unwrap();
    }
    let threads = [2u64, 3].map(|w| {
        let table = table.clone();
        let builder = thread::Builder::new().name("model".to_owned());
        let body = move || {
            for key in [b"c", b"k", b"x"] {
                // One key with two versions, and neighbours of each other.
                table
                    .insert(key, w, ValueKind::Value, &[w as u8; 40])
                    .unwrap();
                let mut found = 0;
                table
                    .get(key, w, &mut |k, v| {
                        assert_eq!(v[0], k.seqno as u8, "a value of another entry");
                        found = found.max(k.seqno);
                        Visit::Stop
                    })
                    .unwrap();
                assert_eq!(found, w, "own entry is not found");
            }
        };
        builder.spawn(body).unwrap()
    });
    let mut before = 0;
    for _ in 0..2 {
        let now = keys(&table);
        assert!(now.len() >= before, "an entry is gone");
        before = now.len();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(keys(&table).len(), 8);
    assert_eq!(table.entry_count(), 8);
}

#[test]
fn a_list_holds() {
    explore("memtable", list);
}

#[test]
fn a_trie_holds() {
    explore("trie memtable", trie);
}

#[test]
fn a_link_that_is_set_blindly_is_found() {
    must_find(Mistake::LinkWithoutLooking, list);
}

#[test]
fn a_version_that_is_put_above_blindly_is_found() {
    must_find(Mistake::LinkWithoutLooking, trie);
}
