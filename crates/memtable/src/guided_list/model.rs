//! The memtable under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! Two threads insert while one reads: (1) what was inserted before is found; (2) a scan is sorted
//! and has each entry once; (3) in the end all are there.

use std::sync::Arc;

use orogen_base::ValueKind;
use orogen_base::sync::{Mistake, explore, must_find, thread};

use super::GuidedListMemTable;
use crate::{MemTable, Visit};

fn keys(table: &Arc<GuidedListMemTable>) -> Vec<Vec<u8>> {
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

fn inserts() {
    let table = GuidedListMemTable::new(orogen_base::UserComparator::BYTEWISE);
    table.insert(b"m", 1, ValueKind::Value, b"first").unwrap();
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
    assert_eq!(keys(&table).len(), 7);
    assert_eq!(table.entry_count(), 7);
}

#[test]
fn holds() {
    explore("memtable", inserts);
}

#[test]
fn a_link_that_is_set_blindly_is_found() {
    must_find(Mistake::LinkWithoutLooking, inserts);
}
