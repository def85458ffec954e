//! What a memtable is to do with cells: versions of a key in an array behind its cell, sorted by
//! number, newest last; the first one beside the key. Two threads insert in any order of numbers,
//! one reads.
#![expect(
    unsafe_code,
    reason = "allocated words are the owner's to take care of"
)]

use std::sync::atomic::{AtomicBool, Ordering};

use super::keys::{Random, Shape};
use crate::cell::Cell;
use crate::{Reader, Root, Trie, Writer};

const ROOT: Root = Root(0);
/// In the count's word: a writer replaces the array.
const LOCKED: u32 = 1 << 31;

/// Words of an array: its length, then the numbers.
fn array(numbers: &[u32]) -> Vec<u8> {
    let words = std::iter::once(numbers.len() as u32).chain(numbers.iter().copied());
    words.flat_map(u32::to_le_bytes).collect()
}

fn parse(bytes: &[u8]) -> Vec<u32> {
    let words = bytes
        .chunks(4)
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()));
    words.collect()
}

/// The numbers of a cell's array.
fn numbers(reader: &Reader<'_>, cell: Cell<'_>) -> Vec<u32> {
    let at = cell.load(0);
    // SAFETY: found in the cell; an array begins with its length.
    let len = parse(unsafe { reader.bytes(at, 0, 4) })[0] as usize;
    // SAFETY: as above.
    parse(unsafe { reader.bytes(at, 4, 4 * len) })
}

fn add(map: &Trie, writer: &mut Writer<'_>, key: &[u8], number: u32) {
    let first = array(&[number]);
    let (cell, is_new) = writer.insert_beside(ROOT, key, &[0, 1], &[&first]).unwrap();
    if is_new {
        return;
    }
    // The second word counts, and is the lock of those who write.
    let count = loop {
        let count = cell.load(1);
        if count & LOCKED == 0 && cell.compare_exchange(1, count, count | LOCKED).is_ok() {
            break count;
        }
        std::thread::yield_now();
    };
    let old = cell.load(0);
    let mut all = numbers(&map.reader(), cell);
    assert_eq!(all.len(), count as usize);
    let place = all.partition_point(|&n| n < number);
    all.insert(place, number);
    let new = writer.allocate_bytes(&[&array(&all)]).unwrap();
    cell.store(0, new);
    cell.store(1, count + 1);
    // SAFETY: the old array has a word more than numbers, and the cell refers to the new one.
    unsafe { writer.retire(old, count + 1) }.unwrap();
}

#[test]
fn versions_of_keys_are_all_there_and_sorted() {
    let map = Trie::new(64 << 20, 2, 1).unwrap();
    let is_done = AtomicBool::new(false);
    let keys: Vec<_> = (0..40)
        .map(|i| Shape::Nested.draw(&mut Random::new(i), 0))
        .collect();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2u32)
            .map(|w| {
                let (map, keys) = (&map, &keys);
                scope.spawn(move || {
                    let mut random = Random::new(u64::from(w));
                    for i in 0..3000u32 {
                        // Numbers are new, and come in no order.
                        let number = (2 * i + w) * 7919 % 6000;
                        let key = &keys[random.below(keys.len())];
                        add(map, &mut map.writer(), key, number);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = Random::new(5);
            while !is_done.load(Ordering::Relaxed) {
                let reader = map.reader();
                let key = &keys[random.below(keys.len())];
                if let Some(cell) = reader.get(ROOT, key) {
                    let numbers = numbers(&reader, cell);
                    assert!(!numbers.is_empty());
                    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]));
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let reader = map.reader();
    let mut unique = keys;
    unique.sort_unstable();
    unique.dedup();
    let cells = unique.iter().filter_map(|key| reader.get(ROOT, key));
    let mut all: Vec<u32> = cells.flat_map(|cell| numbers(&reader, cell)).collect();
    all.sort_unstable();
    assert_eq!(all, (0..6000).collect::<Vec<u32>>());
    let usage = map.usage();
    assert!(usage.taken < 8 << 20, "arrays are used again: {usage:?}");
}

#[test]
fn a_map_is_emptied_and_filled_again() {
    let mut map = Trie::new(8 << 20, 1, 2).unwrap();
    let mut committed = 0;
    for round in 0..5u64 {
        let mut random = Random::new(round);
        let keys: Vec<_> = (0..20_000)
            .map(|i| Shape::Random.draw(&mut random, i))
            .collect();
        for key in &keys {
            assert!(map.writer().insert(Root(1), key, &[7]).unwrap().1);
        }
        assert!(
            keys.iter()
                .all(|key| map.reader().get(Root(1), key).is_some())
        );
        if round > 0 {
            assert_eq!(map.usage().committed, committed);
        }
        committed = map.usage().committed;
        map.clear();
        assert!(
            keys.iter()
                .all(|key| map.reader().get(Root(1), key).is_none())
        );
        assert_eq!(map.usage().used, 12);
    }
}

#[test]
fn words_are_allocated_freed_and_counted() {
    let map = Trie::new(1 << 20, 1, 1).unwrap();
    let before = map.usage().used;
    let mut writer = map.writer();
    let at = writer.allocate(10).unwrap();
    // SAFETY: allocated just now.
    let words = unsafe { writer.words(at, 10) };
    words.iter().enumerate().for_each(|(i, word)| {
        word.store(i as u32, Ordering::Relaxed);
    });
    drop(writer);
    assert_eq!(map.usage().used - before, 40);
    let mut writer = map.writer();
    // SAFETY: no cell refers to it.
    unsafe { writer.free(at, 10) };
    assert_eq!(writer.allocate(10).unwrap(), at, "the same piece");
    // SAFETY: no cell refers to it.
    unsafe { writer.retire(at, 10) }.unwrap();
    drop(writer);
    assert_eq!(map.usage().waiting, 40);
    assert_eq!(map.usage().used, before);
}
