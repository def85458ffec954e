//! The map under a scheduler that takes turns with its threads: see `orogen_base::sync`.
//!
//! Two threads insert while one reads: (1) what was there before is found, by readers and by
//! cursors that stood while nodes were replaced and used again; (2) a thread finds its own keys; (3) in the end all
//! are there, once, in order.

use std::sync::Arc;
// Of the process, not of the model.
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use orogen_base::sync::{Mistake, explore, must_find, thread};

use crate::{Cursor, Event, Root, Trie};

const ROOT: Root = Root(0);

fn insert(map: &Trie, key: &str) {
    let mut writer = map.writer();
    writer.insert(ROOT, key.as_bytes(), &[1]).unwrap();
}

fn has(map: &Trie, key: &str) -> bool {
    let reader = map.reader();
    reader.get(ROOT, key.as_bytes()).is_some()
}

fn spawn(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    let builder = thread::Builder::new().name("model".to_owned());
    builder.spawn(body).unwrap()
}

fn keys(map: &Trie) -> Vec<String> {
    let (mut cursor, mut keys) = (Cursor::new(), Vec::new());
    cursor.first(map, ROOT);
    while cursor.valid() {
        keys.push(String::from_utf8(cursor.key().to_vec()).unwrap());
        cursor.next(map);
    }
    assert!(
        keys.windows(2).all(|pair| pair[0] < pair[1]),
        "not in order"
    );
    keys
}

/// What happened in all schedules of a model that runs on this thread.
type Sums = Arc<[AtomicU64; Event::COUNT]>;

fn sums() -> Sums {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

fn add(sums: &Sums, map: &Trie) {
    for (sum, events) in sums.iter().zip(map.events()) {
        sum.fetch_add(events, Relaxed);
    }
}

fn assert_happened(sums: &Sums, events: &[Event]) {
    for &event in events {
        assert!(sums[event as usize].load(Relaxed) > 0, "{event:?}");
    }
}

/// Writers insert two lists into a map that has `before`, each key of which a reader looks for.
fn run(before: &'static [&str], lists: [&'static [&str]; 2]) -> Arc<Trie> {
    let map = Arc::new(Trie::new(1 << 20, 1, 1).unwrap());
    before.iter().for_each(|key| insert(&map, key));
    let writers = lists.map(|list| {
        let map = map.clone();
        spawn(move || {
            for key in list {
                insert(&map, key);
                assert!(has(&map, key), "own key is not found");
            }
        })
    });
    for key in before {
        assert!(has(&map, key), "a key is gone");
    }
    for writer in writers {
        writer.join().unwrap();
    }
    let mut all: Vec<&str> = [before, lists[0], lists[1]].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(keys(&map), all);
    map
}

/// Appending, growing and putting above at one node, which becomes full twice.
fn one_node() -> Arc<Trie> {
    run(
        &["a", "b", "c", "d"],
        [&["e", "bx", "h"], &["by", "f", "g", "h"]],
    )
}

/// The same where the node ends up with 256 slots, which are set without a lock.
fn a_full_node() -> Arc<Trie> {
    let before = &["a", "b", "c", "d", "e", "f", "g", "h"];
    run(before, [&["i", "ax", "j"], &["k", "ay", "az", "j"]])
}

/// Parent and child are replaced by different writers, and a key ends at one of them.
fn parent_and_child() -> Arc<Trie> {
    let before = &["a", "b", "c", "dpa", "dpb"];
    run(before, [&["dpc", "dq", "d"], &["e", "dpd", "f"]])
}

/// Keys end where others go on, at nodes that are put above them and grow from one child on.
fn nested_keys() -> Arc<Trie> {
    run(&["a", "xyz"], [&["ab", "x", "ad"], &["ac", "ae", "xy"]])
}

const fn ending_in<const N: usize>(path: u8, last: u8) -> [u8; N] {
    let mut key = [path; N];
    key[N - 1] = last;
    key
}

macro_rules! long_key {
    ($name:ident, $len:literal, $path:literal, $last:literal) => {
        static $name: &str = {
            static KEY: [u8; $len] = ending_in($path, $last);
            match std::str::from_utf8(&KEY) {
                Ok(key) => key,
                Err(_) => panic!("ASCII"),
            }
        };
    };
}

long_key!(Q, 20, b'q', b'q');
long_key!(QA, 21, b'q', b'a');
long_key!(QB, 21, b'q', b'b');
long_key!(RA, 300, b'r', b'a');
long_key!(RB, 300, b'r', b'b');
long_key!(RC, 300, b'r', b'c');
long_key!(SA, 20, b's', b'a');
long_key!(SB, 20, b's', b'b');
long_key!(SC, 20, b's', b'c');

/// Paths that do not fit into a node of two children, or not into one node at all.
fn long_keys() -> Arc<Trie> {
    static BEFORE: [&str; 3] = [Q, RA, SA];
    static LISTS: [[&str; 3]; 2] = [[QA, RB, SB], [QB, SC, RC]];
    run(&BEFORE, [&LISTS[0], &LISTS[1]])
}

/// A cursor goes on from nodes that are replaced and whose memory becomes other nodes.
fn a_cursor_that_stands() {
    let before = ["pa", "pb", "pc", "pd", "qa", "qb"];
    let map = Arc::new(Trie::new(1 << 20, 1, 1).unwrap());
    before.iter().for_each(|key| insert(&map, key));
    let writer = {
        let map = map.clone();
        spawn(move || {
            ["pe", "qc", "ra", "rb", "rc"]
                .iter()
                .for_each(|key| insert(&map, key))
        })
    };
    let reader = {
        let map = map.clone();
        spawn(move || {
            before
                .iter()
                .for_each(|key| assert!(has(&map, key), "a key is gone"))
        })
    };
    let found = keys(&map);
    for key in before {
        assert!(found.iter().any(|k| k == key), "{key} was passed over");
    }
    writer.join().unwrap();
    reader.join().unwrap();
    assert_eq!(keys(&map).len(), 11);
    assert!(map.events()[Event::FourGrown as usize] > 0);
    assert!(map.usage().waiting <= 1 << 10);
}

/// A cursor that goes to the last key not after another, which was never there, while a key comes between.
fn a_cursor_that_goes_back() {
    let map = Arc::new(Trie::new(1 << 20, 1, 1).unwrap());
    ["a1", "b"].iter().for_each(|key| insert(&map, key));
    let writer = {
        let map = map.clone();
        spawn(move || ["a7", "c"].iter().for_each(|key| insert(&map, key)))
    };
    for target in ["a5", "bb"] {
        let mut cursor = Cursor::new();
        cursor.seek_for_prev(&*map, ROOT, target.as_bytes());
        let expected = if target == "a5" { "a1" } else { "b" };
        assert_eq!(cursor.key(), expected.as_bytes());
    }
    writer.join().unwrap();
}

#[test]
fn a_cursor_that_goes_back_holds() {
    explore("trie: cursor back", a_cursor_that_goes_back);
}

#[test]
fn one_node_holds() {
    let sums = sums();
    let counted = sums.clone();
    explore("trie: one node", move || add(&counted, &one_node()));
    let lost = [Event::LostSlot, Event::LostHead, Event::Waited];
    assert_happened(&sums, &lost);
    assert_happened(&sums, &[Event::Appended, Event::FourGrown, Event::AboveTwo]);
}

#[test]
fn a_full_node_holds() {
    let sums = sums();
    let counted = sums.clone();
    explore("trie: full node", move || add(&counted, &a_full_node()));
    let free = [Event::ToFull, Event::SetFree, Event::Found, Event::LostSlot];
    assert_happened(&sums, &free);
}

#[test]
fn parent_and_child_hold() {
    let sums = sums();
    let counted = sums.clone();
    explore("trie: parent and child", move || {
        add(&counted, &parent_and_child());
    });
    let both = [Event::EndAdded, Event::LostSlot, Event::LostHead];
    assert_happened(&sums, &both);
}

#[test]
fn nested_keys_hold() {
    let sums = sums();
    let counted = sums.clone();
    explore("trie: nested keys", move || add(&counted, &nested_keys()));
    let above = [Event::AboveShorter, Event::AboveLonger];
    assert_happened(&sums, &above);
    let grown = [Event::OneToTwo, Event::TwoToFour, Event::LostSlot];
    assert_happened(&sums, &grown);
}

#[test]
fn long_keys_hold() {
    let sums = sums();
    let counted = sums.clone();
    explore("trie: long keys", move || add(&counted, &long_keys()));
    let above = [Event::AboveFour, Event::AboveLinked, Event::AboveShorter];
    assert_happened(&sums, &above);
    assert_happened(&sums, &[Event::OneToFour, Event::LostSlot]);
}

#[test]
fn a_standing_cursor_holds() {
    explore("trie: cursor", a_cursor_that_stands);
}

#[test]
fn a_copy_without_a_mark_is_found() {
    must_find(Mistake::ReplaceWithoutMark, || drop(one_node()));
}

#[test]
fn an_append_without_the_lock_is_found() {
    must_find(Mistake::AppendWithoutLock, || drop(one_node()));
}

#[test]
fn a_node_used_again_at_once_is_found() {
    must_find(Mistake::ReuseAtOnce, a_cursor_that_stands);
}

#[test]
fn a_cursor_that_trusts_its_nodes_is_found() {
    must_find(Mistake::TrustOldNodes, a_cursor_that_stands);
}
