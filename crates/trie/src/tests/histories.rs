//! Random histories of one thread against a `BTreeMap`: both kinds of map, all shapes of keys.

use std::collections::BTreeMap;
use std::ops::Bound;

use orogen_base::Result;

use super::keys::{Random, SHAPES, Shape};
use crate::cursor::Map;
use crate::{Cursor, Event, LocalTrie, Root, Trie};

/// Both kinds of map as one.
trait Tested: Map {
    fn add(&mut self, key: &[u8], value: u32) -> Result<(u32, bool)>;
    fn find(&self, key: &[u8]) -> Option<u32>;
}

const ROOT: Root = Root(1);

impl Tested for Trie {
    fn add(&mut self, key: &[u8], value: u32) -> Result<(u32, bool)> {
        let mut writer = self.writer();
        let (cell, is_new) = writer.insert(ROOT, key, &[value, !value])?;
        Ok((cell.load(0), is_new))
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.reader().get(ROOT, key).map(|cell| {
            assert_eq!(cell.load(0), !cell.load(1));
            cell.load(0)
        })
    }
}

impl Tested for LocalTrie {
    fn add(&mut self, key: &[u8], value: u32) -> Result<(u32, bool)> {
        let (cell, is_new) = self.insert(ROOT, key, &[value, !value])?;
        Ok((cell.load(0), is_new))
    }

    fn find(&self, key: &[u8]) -> Option<u32> {
        self.get(ROOT, key).map(|cell| {
            assert_eq!(cell.load(0), !cell.load(1));
            cell.load(0)
        })
    }
}

type Model = BTreeMap<Vec<u8>, u32>;

/// The cursor is where the model says.
fn assert_at<M: Map>(map: &M, cursor: &Cursor, wanted: Option<(&Vec<u8>, &u32)>) {
    assert_eq!(
        cursor.valid().then(|| cursor.key()),
        wanted.map(|w| &w.0[..])
    );
    let cell = cursor.cell(map).map(|cell| cell.load(0));
    assert_eq!(cell, wanted.map(|w| *w.1));
}

fn compare_all<M: Tested>(map: &M, model: &Model) {
    let mut cursor = Cursor::new();
    cursor.first(map, ROOT);
    for wanted in model {
        assert_at(map, &cursor, Some(wanted));
        cursor.next(map);
    }
    assert_at(map, &cursor, None);
    cursor.last(map, ROOT);
    for wanted in model.iter().rev() {
        assert_at(map, &cursor, Some(wanted));
        cursor.prev(map);
    }
    assert_at(map, &cursor, None);
    for (key, value) in model {
        assert_eq!(map.find(key), Some(*value));
    }
}

/// Seeks to `key` and walks a little.
fn compare_near<M: Tested>(map: &M, model: &Model, key: &[u8], random: &mut Random) {
    assert_eq!(map.find(key), model.get(key).copied());
    let mut cursor = Cursor::new();
    let mut wanted: Option<Vec<u8>>;
    if random.below(2) == 0 {
        cursor.seek(map, ROOT, key);
        let from = (Bound::Included(key), Bound::Unbounded);
        wanted = model.range::<[u8], _>(from).next().map(|w| w.0.clone());
    } else {
        cursor.seek_for_prev(map, ROOT, key);
        let to = (Bound::Unbounded, Bound::Included(key));
        wanted = model.range::<[u8], _>(to).next_back().map(|w| w.0.clone());
    }
    for _ in 0..6 {
        let entry = wanted.as_ref().and_then(|key| model.get_key_value(key));
        assert_at(map, &cursor, entry);
        let Some(at) = wanted else { return };
        if random.below(2) == 0 {
            cursor.next(map);
            let behind = (Bound::Excluded(&at[..]), Bound::Unbounded);
            wanted = model.range::<[u8], _>(behind).next().map(|w| w.0.clone());
        } else {
            cursor.prev(map);
            let before = (Bound::Unbounded, Bound::Excluded(&at[..]));
            wanted = model
                .range::<[u8], _>(before)
                .next_back()
                .map(|w| w.0.clone());
        }
    }
}

fn history<M: Tested>(map: &mut M, shape: Shape, seed: u64, steps: usize) -> Model {
    let mut model = Model::new();
    let mut random = Random::new(seed);
    for i in 0..steps {
        let key = shape.draw(&mut random, i);
        let value = random.next() as u32;
        let (found, is_new) = map.add(&key, value).unwrap();
        assert_eq!(is_new, !model.contains_key(&key));
        assert_eq!(found, *model.entry(key).or_insert(value));
        if random.below(4) == 0 {
            let key = shape.draw(&mut random, i);
            compare_near(map, &model, &key, &mut random);
        }
    }
    compare_all(map, &model);
    model
}

fn add(sums: &mut [u64; Event::COUNT], events: [u64; Event::COUNT]) {
    sums.iter_mut().zip(events).for_each(|(a, b)| *a += b);
}

/// What one thread cannot lose.
fn is_of_threads(event: Event) -> bool {
    matches!(event, Event::LostSlot | Event::LostHead | Event::Waited)
}

pub(super) fn assert_all_happened(sums: [u64; Event::COUNT]) {
    for event in Event::ALL {
        let is_of_one = !is_of_threads(event) && ![Event::SetHeld, Event::Looked].contains(&event);
        assert!(!is_of_one || sums[event as usize] > 0, "{event:?}");
    }
}

#[test]
fn a_shared_map_is_as_the_model_in_all_histories() {
    let mut sums = [0; Event::COUNT];
    for shape in SHAPES {
        for seed in 0..3 {
            let mut map = Trie::new(64 << 20, 2, 3).unwrap();
            history(&mut map, shape, seed, 4000);
            add(&mut sums, map.events());
            let usage = map.usage();
            assert_eq!(
                usage.taken,
                usage.used + usage.waiting + usage.listed + usage.uncut
            );
        }
    }
    assert_all_happened(sums);
}

#[test]
fn a_map_of_one_owner_is_as_the_model_and_so_when_it_is_emptied() {
    let mut sums = [0; Event::COUNT];
    let mut map = LocalTrie::new(64 << 20, 2, 3).unwrap();
    for shape in SHAPES {
        for seed in 0..3 {
            history(&mut map, shape, seed, 3000);
            map.clear();
            compare_all(&map, &Model::new());
        }
    }
    add(&mut sums, map.events());
    assert_all_happened(sums);
}

#[test]
fn keys_are_taken_away_and_put_back() {
    let mut events = [0; Event::COUNT];
    for shape in SHAPES {
        let mut map = LocalTrie::new(64 << 20, 2, 3).unwrap();
        let mut model = history(&mut map, shape, 7, 800);
        let mut random = Random::new(8);
        for i in 0..6000 {
            let key = if random.below(2) == 0 && !model.is_empty() {
                model.keys().nth(random.below(model.len())).unwrap().clone()
            } else {
                shape.draw(&mut random, i)
            };
            if random.below(100) < 55 {
                assert_eq!(map.remove(ROOT, &key), model.remove(&key).is_some());
            } else {
                let value = random.next() as u32;
                map.insert(ROOT, &key, &[value, !value]).unwrap();
                model.entry(key.clone()).or_insert(value);
            }
            if i % 16 == 0 {
                compare_near(&map, &model, &key, &mut random);
            }
            if i % 1000 == 0 {
                compare_all(&map, &model);
            }
        }
        for key in model.keys() {
            assert!(map.remove(ROOT, key));
        }
        compare_all(&map, &Model::new());
        add(&mut events, map.events());
    }
    assert!(events[Event::SetHeld as usize] > 0);
}

#[test]
fn a_cursor_lives_through_changes() {
    let mut map = LocalTrie::new(1 << 20, 2, 3).unwrap();
    let mut cursor = Cursor::new();
    for key in ["b", "d", "f"] {
        map.insert(ROOT, key.as_bytes(), &[1, !1]).unwrap();
    }
    cursor.seek(&map, ROOT, b"c");
    map.insert(ROOT, b"e", &[2, !2]).unwrap();
    assert_eq!(cursor.key(), b"d");
    assert!(map.remove(ROOT, b"d"));
    assert!(cursor.cell(&map).is_none(), "it was taken away");
    cursor.next(&map);
    assert_eq!(cursor.key(), b"e");
    assert!(map.remove(ROOT, b"e"));
    cursor.prev(&map);
    assert_eq!(cursor.key(), b"b");
    map.clear();
    cursor.next(&map);
    assert!(!cursor.valid());
}

#[test]
fn roots_are_apart() {
    let map = Trie::new(1 << 20, 0, 3).unwrap();
    let mut writer = map.writer();
    for root in 0..3u32 {
        for i in 0..=root {
            let key = [root as u8, i as u8];
            assert!(writer.insert(Root(root), &key, &[]).unwrap().1);
        }
    }
    for root in 0..3u32 {
        let mut cursor = Cursor::new();
        cursor.first(&map, Root(root));
        for i in 0..=root {
            assert_eq!(cursor.key(), [root as u8, i as u8]);
            cursor.next(&map);
        }
        assert!(!cursor.valid());
    }
}

#[test]
#[should_panic(expected = "the cursor's map")]
fn a_cursor_goes_on_in_its_own_map_only() {
    let maps = [(); 2].map(|()| Trie::new(1 << 20, 0, 1).unwrap());
    for map in &maps {
        map.writer().insert(Root(0), b"key", &[]).unwrap();
    }
    let mut cursor = Cursor::new();
    cursor.first(&maps[0], Root(0));
    assert!(cursor.cell(&maps[1]).is_some(), "looked up there");
    cursor.next(&maps[1]);
}
