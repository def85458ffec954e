//! Writers, readers and cursors of several threads at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::histories::assert_all_happened;
use super::keys::{Random, SHAPES, Shape};
use crate::{Cursor, Event, Root, Trie};

const ROOT: Root = Root(0);

fn draw(shape: Shape, writer: usize, count: usize) -> Vec<Vec<u8>> {
    // Writers draw half of their keys from the same sequence.
    let (mut own, mut common) = (Random::new(writer as u64 + 10), Random::new(3));
    let draw = |i: usize| match i % 2 {
        0 => shape.draw(&mut own, i),
        _ => shape.draw(&mut common, i),
    };
    (0..count).map(draw).collect()
}

/// Writers count what they published; whoever reads the count first must find all of that.
fn work(map: &Trie, shape: Shape, count: usize) {
    let lists: Vec<_> = (0..2).map(|w| draw(shape, w, count)).collect();
    let published = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|w| {
                let (lists, published) = (&lists, &published);
                scope.spawn(move || {
                    for (i, key) in lists[w].iter().enumerate() {
                        let mut writer = map.writer();
                        let (cell, _) = writer.insert(ROOT, key, &[0]).unwrap();
                        // Each insert leaves its mark, whoever added the key.
                        loop {
                            let marks = cell.load(0);
                            if cell.compare_exchange(0, marks, marks + 1).is_ok() {
                                break;
                            }
                        }
                        published[w].store(i + 1, Ordering::Release);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut random = Random::new(99);
            while !is_done.load(Ordering::Relaxed) {
                for w in 0..2 {
                    let len = published[w].load(Ordering::Acquire);
                    if len > 0 {
                        let key = &lists[w][random.below(len)];
                        let reader = map.reader();
                        let cell = reader.get(ROOT, key).expect("it was published");
                        assert!(cell.load(0) > 0);
                    }
                }
            }
        });
        scope.spawn(|| {
            let mut random = Random::new(77);
            let mut cursor = Cursor::new();
            while !is_done.load(Ordering::Relaxed) {
                go_through(map, &mut cursor, &mut random, &lists, &published);
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let mut counts = std::collections::BTreeMap::new();
    for key in lists.iter().flatten() {
        *counts.entry(key).or_insert(0) += 1;
    }
    let mut cursor = Cursor::new();
    cursor.first(map, ROOT);
    for (key, count) in counts {
        assert_eq!(cursor.key(), key);
        assert_eq!(cursor.cell(map).unwrap().load(0), count);
        cursor.next(map);
    }
    assert!(!cursor.valid());
}

/// A scan from some published key on: strictly rising or falling, with every key in it that was
/// published before.
fn go_through(
    map: &Trie,
    cursor: &mut Cursor,
    random: &mut Random,
    lists: &[Vec<Vec<u8>>],
    published: &[AtomicUsize; 2],
) {
    let lens = published.each_ref().map(|p| p.load(Ordering::Acquire));
    if lens[0] == 0 {
        return;
    }
    let start = &lists[0][random.below(lens[0])];
    let up = random.below(2) == 0;
    if up {
        cursor.seek(map, ROOT, start);
    } else {
        cursor.seek_for_prev(map, ROOT, start);
    }
    assert_eq!(cursor.key(), start, "it was published");
    let mut seen = vec![cursor.key().to_vec()];
    for _ in 0..random.below(2000) {
        if up {
            cursor.next(map);
        } else {
            cursor.prev(map);
        }
        if !cursor.valid() {
            break;
        }
        assert!(cursor.cell(map).is_some());
        let last = seen.last().unwrap();
        assert!(if up {
            cursor.key() > &last[..]
        } else {
            cursor.key() < &last[..]
        });
        seen.push(cursor.key().to_vec());
    }
    let (low, high) = (&seen[0], seen.last().unwrap());
    let (low, high) = if up { (low, high) } else { (high, low) };
    let sorted: std::collections::BTreeSet<&Vec<u8>> = seen.iter().collect();
    let before = lists.iter().zip(lens).flat_map(|(list, len)| &list[..len]);
    for key in before {
        let is_between = key >= low && key <= high;
        assert!(!is_between || sorted.contains(key), "a key was passed over");
    }
}

#[test]
fn what_is_published_is_found_and_in_order() {
    let mut sums = [0; Event::COUNT];
    for shape in SHAPES {
        for _ in 0..3 {
            let map = Trie::new(256 << 20, 1, 1).unwrap();
            let count = if matches!(shape, Shape::Long) {
                1000
            } else {
                6000
            };
            work(&map, shape, count);
            let usage = map.usage();
            assert_eq!(
                usage.taken,
                usage.used + usage.waiting + usage.listed + usage.uncut
            );
            sums.iter_mut().zip(map.events()).for_each(|(a, b)| *a += b);
        }
    }
    // What threads lose to each other hangs on their turns; the models see to that.
    assert_all_happened(sums);
}

#[test]
fn what_waits_is_bounded_while_cursors_stand() {
    let map = Trie::new(256 << 20, 0, 1).unwrap();
    let mut random = Random::new(1);
    map.writer().insert(ROOT, b"first", &[]).unwrap();
    let mut cursors: Vec<Cursor> = (0..100).map(|_| Cursor::new()).collect();
    for cursor in &mut cursors {
        cursor.first(&map, ROOT);
    }
    for i in 0..100_000 {
        let key = Shape::Random.draw(&mut random, i);
        map.writer().insert(ROOT, &key, &[]).unwrap();
        assert!(map.usage().waiting < 128 << 10);
    }
    for cursor in &mut cursors {
        assert_eq!(cursor.key(), b"first");
        cursor.next(&map);
        assert!(cursor.key() > &b"first"[..]);
    }
}

#[test]
fn more_readers_than_places() {
    let map = Trie::new(16 << 20, 1, 1).unwrap();
    let mut random = Random::new(1);
    let readers: Vec<_> = (0..200).map(|_| map.reader()).collect();
    for i in 0..20_000u32 {
        let key = Shape::Random.draw(&mut random, 0);
        map.writer().insert(ROOT, &key, &[i]).unwrap();
        assert!(readers[199].get(ROOT, &key).is_some());
    }
    let waiting = map.usage().waiting;
    assert!(
        waiting > 100 << 10,
        "nothing is used again while they are inside"
    );
    drop(readers);
    for i in 0..20_000u32 {
        let key = Shape::Random.draw(&mut random, 0);
        map.writer().insert(ROOT, &key, &[i]).unwrap();
    }
    assert!(map.usage().waiting < 128 << 10);
}
