//! Small maps of one owner, as write batches need them: filled with keys of 16 bytes, each looked up
//! once, emptied, filled again. The trie's memory is kept; a `BTreeMap` has none to keep.

use std::collections::BTreeMap;

use orogen_trie::{LocalTrie, Root};

use crate::{Keys, median, time};

const ROOT: Root = Root(0);
/// Keys of one turn, in all batches.
const KEYS: u64 = 1_000_000;

fn trie(map: &mut LocalTrie, keys: Keys, from: u64, count: u64) {
    let mut buffer = [b'.'; 40];
    for i in from..from + count {
        let key = keys.make(i, &mut buffer);
        map.insert(ROOT, key, &[i as u32]).expect("room");
    }
    for i in from..from + count {
        let key = keys.make(i, &mut buffer);
        assert!(map.get(ROOT, key).is_some());
    }
    map.clear();
}

fn tree(keys: Keys, from: u64, count: u64) {
    let mut map: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut buffer = [b'.'; 40];
    for i in from..from + count {
        map.insert(keys.make(i, &mut buffer).to_vec(), i as u32);
    }
    for i in from..from + count {
        assert!(map.contains_key(keys.make(i, &mut buffer)));
    }
}

pub(crate) fn measure(rounds: usize) {
    let keys = Keys { len: 16, common: 0 };
    println!("ns a key, for insert, get and its part of emptying: median (smallest..largest)");
    for count in [1, 3, 10, 100, 1000, 10_000] {
        let mut figures = [const { Vec::new() }; 2];
        let mut map = LocalTrie::new(1 << 30, 1, 4).expect("memory");
        for _ in 0..rounds {
            figures[0].push(time(KEYS, || {
                let starts = (0..KEYS / count).map(|i| i * count);
                starts.for_each(|from| trie(&mut map, keys, from, count));
            }));
            figures[1].push(time(KEYS, || {
                let starts = (0..KEYS / count).map(|i| i * count);
                starts.for_each(|from| tree(keys, from, count));
            }));
        }
        print!("batches of {count:<6}");
        for (name, figures) in ["trie", "BTreeMap"].into_iter().zip(figures) {
            let (mid, low, high) = median(figures);
            print!("  {name} {mid:.0} ({low:.0}..{high:.0})");
        }
        println!();
    }
}
