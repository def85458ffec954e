//! What only the trie has: versions behind a key, promises in words, accounting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orogen_base::key::{append_seek_key, seqno_of};
use orogen_base::{ErrorKind, UserComparator, ValueKind};

use super::{Rng, Table, get};
use crate::{MemTable, Moment, TrieMemTable, Visit};

const NEWEST: u64 = u64::MAX >> 8;

fn shuffled(n: u64, seed: u64) -> Vec<u64> {
    let mut rng = Rng(seed);
    let mut numbers: Vec<u64> = (1..=n).collect();
    for i in (1..numbers.len()).rev() {
        numbers.swap(i, rng.below(i as u64 + 1) as usize);
    }
    numbers
}

/// All sequence numbers of a table with one key, both ways.
fn walk(table: &Table) -> Vec<u64> {
    let mut iter = Arc::clone(table).iter();
    let mut forward = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        forward.push(seqno_of(iter.key()));
        iter.next();
    }
    let mut backward = Vec::new();
    iter.seek_to_last();
    while iter.valid() {
        backward.push(seqno_of(iter.key()));
        iter.prev();
    }
    backward.reverse();
    assert_eq!(forward, backward);
    forward
}

#[test]
fn versions_of_one_tag_are_all_kept_and_the_last_one_stands_first() {
    for table in [Table::trie(), Table::list(&UserComparator::BYTEWISE)] {
        let versions = [
            (5, "a"),
            (5, "b"),
            (9, "c"),
            (5, "d"),
            (9, "e"),
            (2, "f"),
            (2, "g"),
        ];
        for (seqno, value) in versions {
            table
                .insert(b"key", seqno, ValueKind::Value, value.as_bytes())
                .unwrap();
        }
        let mut iter = Arc::clone(&table).iter();
        let mut values = String::new();
        iter.seek_to_first();
        while iter.valid() {
            values.push_str(std::str::from_utf8(iter.value()).unwrap());
            iter.next();
        }
        assert_eq!(values, "ecdbagf");
        if table.list.is_none() {
            assert_eq!(walk(&table), [9, 9, 5, 5, 5, 2, 2]);
        }
    }
}

#[test]
fn versions_are_sorted_in_whatever_order_they_come() {
    for n in [1, 2, 3, 50, 1000] {
        let orders = [
            (1..=n).collect(),
            (1..=n).rev().collect(),
            shuffled(n, 1),
            // Mostly rising, as threads of one group bring them.
            (1..=n)
                .map(|i| if i ^ 1 > n || i ^ 1 == 0 { i } else { i ^ 1 })
                .collect::<Vec<u64>>(),
        ];
        for order in orders {
            let table = Table::trie();
            for &seqno in &order {
                let long = vec![seqno as u8; if seqno % 7 == 0 { 2000 } else { 10 }];
                table
                    .insert(b"key", 2 * seqno, ValueKind::Merge, &long)
                    .unwrap();
            }
            let want: Vec<u64> = (1..=n).rev().map(|i| 2 * i).collect();
            assert_eq!(walk(&table), want);
            for read in 0..=2 * n + 1 {
                let found = get(&table, b"key", read).map(|(seqno, value)| {
                    assert_eq!(value[0], (seqno / 2) as u8);
                    seqno
                });
                assert_eq!(found, (read >= 2).then_some(read / 2 * 2));
            }
            assert_eq!(get(&table, b"ke", NEWEST), None);
        }
    }
}

#[test]
fn an_old_version_among_many_is_found_in_few_steps() {
    let table = Table::trie();
    for seqno in 1..=1 << 20 {
        table.insert(b"key", seqno, ValueKind::Value, b"").unwrap();
    }
    // A million of a million steps each would not come to an end.
    for read in 0..100_000 {
        let read = 1 + read * 10;
        assert_eq!(get(&table, b"key", read), Some((read, Vec::new())));
    }
    let mut iter = Arc::clone(&table).iter();
    let mut target = Vec::new();
    append_seek_key(&mut target, b"key", 1000);
    iter.seek(&target);
    for seqno in 1000..100_000 {
        assert_eq!(seqno_of(iter.key()), seqno);
        iter.prev();
    }
}

#[test]
fn versions_of_one_key_by_four_threads_are_all_there() {
    let table = Table::trie();
    std::thread::scope(|scope| {
        for w in 0..4u64 {
            let table = &table;
            scope.spawn(move || {
                for i in 0..5000 {
                    let key = [b"a", b"b"][(i % 2) as usize];
                    let seqno = 1 + i * 4 + w;
                    table
                        .insert(key, seqno, ValueKind::Value, &seqno.to_le_bytes())
                        .unwrap();
                    let mut found = 0;
                    table
                        .get(key, seqno, &mut |k, v| {
                            assert_eq!(v, k.seqno.to_le_bytes());
                            found = k.seqno;
                            Visit::Stop
                        })
                        .unwrap();
                    assert_eq!(found, seqno, "its own version");
                }
            });
        }
    });
    let all = walk(&table);
    assert_eq!(all.len(), 20_000);
    assert!(all[..10_000].windows(2).all(|pair| pair[0] > pair[1]));
    assert!(all[10_000..].windows(2).all(|pair| pair[0] > pair[1]));
}

#[test]
fn what_was_promised_is_enough_and_not_much() {
    let mut rng = Rng(9);
    let table = TrieMemTable::new(1 << 30).unwrap();
    for group in 0..300u64 {
        let entries: Vec<(Vec<u8>, Vec<u8>)> = (0..rng.below(2000))
            .map(|i| {
                let mut key = match rng.below(4) {
                    0 => rng.key(),
                    1 => vec![b'p'; rng.below(700) as usize],
                    2 => rng.below(1 << 30).to_be_bytes().to_vec(),
                    _ => (group * 2000 + i).to_be_bytes().to_vec(),
                };
                key.push(rng.below(3) as u8);
                (
                    key,
                    vec![7; rng.below(if i % 100 == 0 { 5000 } else { 100 }) as usize],
                )
            })
            .collect();
        let bytes = entries.iter().map(|(k, v)| k.len() + v.len()).sum();
        table.promise(entries.len(), bytes).unwrap();
        let ready = table.memory_allocated();
        let (before, present) = (table.memory_usage(), table.entry_count());
        for (i, (key, value)) in entries.iter().enumerate() {
            let seqno = 1 + group * 2000 + i as u64;
            table.insert(key, seqno, ValueKind::Value, value).unwrap();
        }
        let taken = table.memory_usage() - before;
        let words = TrieMemTable::words_max(entries.len() as u64, bytes as u64, present);
        assert!(taken as u64 <= 4 * words, "{taken} of {words} words");
        // Chunks are taken beside what is promised, and committed a huge page ahead.
        assert!(table.memory_allocated() <= ready + taken + (3 << 20));
        table.release(entries.len(), bytes);
    }
    let small = TrieMemTable::new(64 << 20).unwrap();
    small.promise(10_000, 10_000 * 30).unwrap();
    assert!(
        small.memory_allocated() < 8 << 20,
        "{}",
        small.memory_allocated()
    );
    assert_eq!(
        small.promise(1, 3 << 30).unwrap_err().kind(),
        ErrorKind::TooLarge
    );
    assert!(TrieMemTable::new(11 << 30).is_err());
}

#[test]
fn growth_is_told_before_and_after_to_the_byte() {
    let table = TrieMemTable::new(64 << 20).unwrap();
    let told = Arc::new(AtomicUsize::new(table.memory_allocated()));
    let sum = told.clone();
    table.watch_growth(Box::new(move |moment, bytes| {
        match moment {
            Moment::Before => sum.fetch_add(bytes, Ordering::Relaxed),
            Moment::After => 0,
            Moment::Not => sum.fetch_sub(bytes, Ordering::Relaxed),
        };
    }));
    let empty = table.memory_usage();
    for i in 0..50_000u64 {
        let key = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
        table
            .insert(&key, i + 1, ValueKind::Value, &[3; 50])
            .unwrap();
        assert_eq!(told.load(Ordering::Relaxed), table.memory_allocated());
    }
    let used = table.memory_usage() - empty;
    assert!((50_000 * 75..50_000 * 100).contains(&used), "{used}");
    assert!(table.memory_allocated() >= table.memory_usage());
}
