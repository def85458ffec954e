//! Blocks that run full, and what is promised.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use orogen_base::ErrorKind;

use super::keys::{Random, SHAPES};
use crate::event::Event;
use crate::node::{Head, Inner};
use crate::view::{Ref, View};
use crate::{Cursor, LocalTrie, Moment, Root, Trie};

const ROOT: Root = Root(0);

#[test]
fn a_full_block_is_an_error_and_nothing_changes() {
    for shape in SHAPES {
        for capacity in [64 << 10, 72 << 10, 100 << 10] {
            let map = Trie::new(capacity, 1, 1).unwrap();
            let mut random = Random::new(capacity as u64);
            let mut keys = std::collections::BTreeSet::new();
            let mut refused = 0;
            for i in 0..20_000 {
                let key = shape.draw(&mut random, i);
                match map.writer().insert(ROOT, &key, &[i as u32]) {
                    Ok((_, is_new)) => assert_eq!(is_new, keys.insert(key)),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NoMemory);
                        assert!(!keys.contains(&key));
                        refused += 1;
                        if refused == 100 {
                            break;
                        }
                    }
                }
            }
            let mut cursor = Cursor::new();
            cursor.first(&map, ROOT);
            for key in &keys {
                assert_eq!(cursor.key(), key);
                assert!(map.reader().get(ROOT, key).is_some());
                cursor.next(&map);
            }
            assert!(!cursor.valid());
            let usage = map.usage();
            assert!(usage.taken <= capacity as u64);
            if refused == 100 {
                assert!(usage.used > capacity as u64 / 2, "{shape:?} {usage:?}");
            }
        }
    }
}

/// What each full node says of its children against what they are; how many full nodes below full ones said it.
fn check_child_lines(view: View<'_>, at: Ref, is_below_full: bool) -> usize {
    let head = Head::of(view, at);
    if head.is_leaf() {
        return 0;
    }
    let node = Inner::new(view, at, head);
    let children: Vec<_> = (0..=u8::MAX)
        .filter_map(|label| Some(view.load(node.slot(label)?)))
        .filter(|&child| child != 0)
        .collect();
    let mut lines_max = 0;
    for &child in &children {
        let head = Head::of(view, child);
        if !head.is_leaf() && !head.is_of_full() {
            let bytes = Inner::new(view, child, head).words() * 4;
            lines_max = lines_max.max(bytes.div_ceil(64));
        }
    }
    if head.is_of_full() && is_below_full {
        assert_eq!(head.child_lines(), lines_max);
    }
    let below = children
        .iter()
        .map(|&child| check_child_lines(view, child, head.is_of_full()));
    usize::from(head.is_of_full() && is_below_full) + below.sum::<usize>()
}

#[test]
fn full_nodes_know_how_large_their_children_are() {
    let map = Trie::new(64 << 20, 0, 1).unwrap();
    let mut random = Random::new(1);
    let mut writer = map.writer();
    // Some thousand keys below each node of the second level.
    for _ in 0..400_000 {
        let key = (u128::from(random.next()) << 64 | u128::from(random.next())).to_be_bytes();
        writer.insert(ROOT, &key, &[]).unwrap();
    }
    let view = map.memory_view();
    let root = view.load(map.root_slot(ROOT));
    assert_eq!(check_child_lines(view, root, false), 256);
}

#[test]
fn a_full_map_of_one_owner_is_an_error_too() {
    let mut map = LocalTrie::new(10_000, 1, 1).unwrap();
    let mut count = 0u64;
    while map.insert(ROOT, &count.to_be_bytes(), &[1]).is_ok() {
        count += 1;
    }
    assert!(count > 300);
    for i in 0..count {
        assert!(map.get(ROOT, &i.to_be_bytes()).is_some());
    }
    assert!(map.get(ROOT, &count.to_be_bytes()).is_none());
    map.clear();
    map.insert(ROOT, b"again", &[1]).unwrap();
}

#[test]
fn what_was_promised_finds_room() {
    let mut full = 0;
    for shape in SHAPES {
        let map = Trie::new(1 << 20, 1, 1).unwrap();
        let mut random = Random::new(5);
        for group in 0..5000 {
            let numbers = group * 20..(group + 1) * 20;
            let group: Vec<_> = numbers.map(|i| shape.draw(&mut random, i)).collect();
            let words = group.iter().map(|k| map.insert_words_max(k.len())).sum();
            if map.promise(words).is_err() {
                full += 1;
                break;
            }
            std::thread::scope(|scope| {
                for half in group.chunks(10) {
                    let map = &map;
                    scope.spawn(move || {
                        for key in half {
                            map.writer().insert(ROOT, key, &[7]).unwrap();
                        }
                    });
                }
            });
            map.release(words);
        }
    }
    assert!(full >= 3, "the others have few keys");
}

#[test]
fn shapes_that_make_no_sense_are_refused() {
    for (capacity, cell, roots) in [
        (1 << 10, 0, 1),
        (17 << 30, 0, 1),
        (1 << 20, 65, 1),
        (1 << 20, 1, 0),
        (64 << 10, 1, 1 << 16),
    ] {
        assert!(Trie::new(capacity, cell, roots).is_err());
    }
    assert!(LocalTrie::new(17 << 30, 0, 1).is_err());
    assert!(LocalTrie::new(64, 0, 1000).is_err());
}

#[test]
fn what_is_freed_is_used_again_and_told() {
    let map = Trie::new(64 << 20, 0, 1).unwrap();
    let mut random = Random::new(3);
    let mut writer = map.writer();
    for i in 0..200_000 {
        let key = super::keys::Shape::Random.draw(&mut random, i);
        writer.insert(ROOT, &key, &[]).unwrap();
    }
    drop(writer);
    let usage = map.usage();
    assert!(usage.waiting <= usage.taken / 64, "{usage:?}");
    // Each look may have the system fence all threads.
    let looks = map.events()[Event::Looked as usize];
    assert!((1..=200).contains(&looks), "{looks}");
    assert!(usage.listed < usage.used / 20, "{usage:?}");
    assert!(usage.uncut <= 300 << 10, "{usage:?}");
}

#[test]
fn many_writers_let_no_more_wait_than_one() {
    let map = Trie::new(256 << 20, 0, 1).unwrap();
    // Values, which are most of a map.
    map.writer().allocate(16 << 20).unwrap();
    let mut random = Random::new(3);
    for _ in 0..400 {
        let mut writers: Vec<_> = (0..8).map(|_| map.writer()).collect();
        for i in 0..1000 {
            let key = super::keys::Shape::Random.draw(&mut random, i);
            writers[i % 8].insert(ROOT, &key, &[]).unwrap();
        }
        drop(writers);
        let usage = map.usage();
        assert!(usage.waiting <= usage.taken / 100, "{usage:?}");
    }
}

#[test]
fn growth_is_told_to_the_byte() {
    let map = Arc::new(Trie::new(8 << 20, 0, 1).unwrap());
    let told = Arc::new(AtomicUsize::new(map.held()));
    let (sum, watched) = (told.clone(), Arc::downgrade(&map));
    map.watch_growth(Box::new(move |moment, bytes| {
        let is = watched.upgrade().map(|map| map.held());
        let known = sum.load(Ordering::Relaxed);
        if moment == Moment::Before {
            assert_eq!(is, Some(known), "nothing is counted yet");
            sum.fetch_add(bytes, Ordering::Relaxed);
        } else {
            assert_eq!(is, Some(known));
        }
    }));
    let mut random = Random::new(3);
    for i in 0..40_000 {
        let key = super::keys::Shape::Random.draw(&mut random, i);
        map.writer().insert(ROOT, &key, &[]).unwrap();
        assert_eq!(told.load(Ordering::Relaxed), map.held());
    }
    let before = map.held();
    map.prepare(3 << 20).unwrap();
    assert!(map.held() > before);
    assert_eq!(told.load(Ordering::Relaxed), map.held());
    let held = map.held();
    map.promise(100_000).unwrap();
    assert!(map.backs(100_000));
    assert!(map.promise(10 << 20).is_err());
    assert_eq!(map.held(), held, "nobody uses it yet");
    assert_eq!(told.load(Ordering::Relaxed), map.held());
    let ready = map.usage();
    for i in 0..10_000 {
        let key = super::keys::Shape::Random.draw(&mut random, i);
        map.writer().insert(ROOT, &key, &[]).unwrap();
    }
    assert_eq!(map.usage().committed, ready.committed, "it was ready");
}
