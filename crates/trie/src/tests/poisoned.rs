//! Whether the sanitizer sees what is free in a block: children use what they must not, and die of its report.

use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;

use orogen_env::Ahead;
use orogen_env::memory::PagePool;

use crate::{LocalTrie, Root, Trie};

const ROOT: Root = Root(0);
/// Which use a child makes.
const USE: &str = "OROGEN_TRIE_USE";
/// Words of a piece.
const LEN: u32 = 8;
const CAPACITY: usize = 1 << 20;

/// Reads a word that shares no group of the sanitizer's with another piece.
fn read(map: &Trie, at: u32) {
    black_box(map.memory_view().load(at + 2));
}

fn read_all(map: &Trie, at: u32) {
    for word in at..at + LEN {
        black_box(map.memory_view().load(word));
    }
}

fn new() -> (Trie, u32) {
    let map = Trie::new(CAPACITY, 1, 1).unwrap();
    let at = map.writer().allocate(LEN).unwrap();
    (map, at)
}

/// Retires a piece, and others until it is looked which are free.
#[expect(unsafe_code, reason = "pieces are taken back")]
fn retire(map: &Trie, at: u32) {
    let mut writer = map.writer();
    // SAFETY: allocated with this length, and in no cell.
    unsafe { writer.retire(at, LEN) }.unwrap();
    for _ in 0..200 {
        let other = writer.allocate(2 * LEN).unwrap();
        // SAFETY: as above.
        unsafe { writer.retire(other, 2 * LEN) }.unwrap();
    }
}

type Use = fn();

/// What may be used.
const ALLOWED: [(&str, Use); 4] = [
    ("what another map left", || {
        let pool = PagePool::new(Arc::new(Ahead::new()));
        pool.keep_at_least(8 << 20);
        let map = Trie::in_pool(&pool, CAPACITY, 1, 1).unwrap();
        map.prepare(CAPACITY / 2).unwrap();
        drop(map);
        let memory = pool.reserve(CAPACITY).unwrap();
        assert!(memory.committed() > CAPACITY / 4, "it is the same");
        let read = memory.start().as_ptr().wrapping_add(CAPACITY / 4);
        #[expect(unsafe_code, reason = "the memory is read")]
        // SAFETY: committed.
        black_box(unsafe { read.read() });
    }),
    ("allocated", || {
        let (map, at) = new();
        read_all(&map, at);
    }),
    ("retired beside a reader", || {
        let (map, at) = new();
        let reader = map.reader();
        retire(&map, at);
        read(&map, at);
        drop(reader);
    }),
    ("used again", || {
        let (map, at) = new();
        retire(&map, at);
        let again = map.writer().allocate(LEN).unwrap();
        assert_eq!(again, at);
        read_all(&map, at);
    }),
];

/// What must not.
const FORBIDDEN: [(&str, Use); 8] = [
    ("freed", || {
        let (map, at) = new();
        #[expect(unsafe_code, reason = "a piece is taken back")]
        // SAFETY: allocated with this length, and in no cell.
        unsafe {
            map.writer().free(at, LEN);
        };
        read(&map, at);
    }),
    ("retired and free", || {
        let (map, at) = new();
        retire(&map, at);
        read(&map, at);
    }),
    ("written though free", || {
        let (map, at) = new();
        retire(&map, at);
        map.memory_view().store(at + 2, 7);
    }),
    ("not cut", || {
        let (map, at) = new();
        read(&map, at + LEN);
    }),
    ("not taken", || {
        let (map, _) = new();
        map.prepare(CAPACITY / 2).unwrap();
        read(&map, (map.usage().taken / 4) as u32 + 8);
    }),
    ("cleared", || {
        let (mut map, at) = new();
        map.clear();
        read(&map, at);
    }),
    ("removed from a map of one owner", || {
        let mut map = LocalTrie::new(CAPACITY, 8, 1).unwrap();
        let (cell, _) = map.insert(ROOT, b"key", &[7; 8]).unwrap();
        let cell: *const _ = &raw const cell.0[4];
        map.remove(ROOT, b"key");
        #[expect(unsafe_code, reason = "that is what is tried")]
        // SAFETY: memory of the map, which it keeps.
        black_box(unsafe { (*cell).load(std::sync::atomic::Ordering::Relaxed) });
    }),
    ("not cut of a map of one owner", || {
        let mut map = LocalTrie::new(CAPACITY, 0, 1).unwrap();
        let at = map.allocate(LEN).unwrap();
        #[expect(unsafe_code, reason = "that is what is tried")]
        // SAFETY: memory of the map, and the sanitizer ends it here.
        let words = unsafe { map.words(at, 2 * LEN as usize) };
        black_box(words[LEN as usize + 2].load(std::sync::atomic::Ordering::Relaxed));
    }),
];

/// True if a child lives, and what it says.
fn lives(which: &str) -> (bool, String) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "tests::poisoned::child"])
        .env(USE, which)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stderr).into_owned();
    (child.status.success(), told)
}

#[test]
#[ignore = "run by the tests below"]
fn child() {
    let which = std::env::var(USE).unwrap();
    let all = ALLOWED.iter().chain(&FORBIDDEN);
    let (_, make) = all.clone().find(|(name, _)| *name == which).unwrap();
    make();
}

#[test]
fn what_is_free_is_reported() {
    for (which, _) in FORBIDDEN {
        let (lives, told) = lives(which);
        assert!(!lives, "{which}: not seen");
        let name = "AddressSanitizer: use-after-poison";
        assert!(told.contains(name), "{which}: {told}");
    }
}

#[test]
fn what_is_in_use_is_not() {
    for (which, _) in ALLOWED {
        let (lives, told) = lives(which);
        assert!(lives, "{which}: {told}");
    }
}
