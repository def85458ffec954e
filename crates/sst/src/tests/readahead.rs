//! Cursors read ahead of themselves, both ways and from one table to the next.

use std::sync::atomic::Ordering::Relaxed;

use super::batch::{SlowFile, many_blocks, slow};
use super::*;

struct Counted {
    file: Arc<SlowFile>,
    table: Arc<TableReader>,
    opened_at: usize,
}

fn counted(bytes: &[u8]) -> Counted {
    let file = slow(bytes, 0);
    let options = TableReaderOptions::default();
    let table = TableReader::open(file.clone(), bytes.len() as u64, options).unwrap();
    let opened_at = file.reads.load(Relaxed);
    Counted {
        file,
        table,
        opened_at,
    }
}

impl Counted {
    fn reads(&self) -> usize {
        self.file.reads.load(Relaxed) - self.opened_at
    }
}

/// Goes to the end; gives the number of entries.
fn go(it: &mut TableIter, forward: bool) -> usize {
    let mut n = 0;
    while it.valid() {
        n += 1;
        if forward {
            it.next();
        } else {
            it.prev();
        }
    }
    it.status().unwrap();
    n
}

fn start(it: &mut TableIter, forward: bool) {
    if forward {
        it.seek_to_first();
    } else {
        it.seek_to_last();
    }
}

#[test]
fn a_scan_reads_few_large_pieces_either_way() {
    let (bytes, keys) = many_blocks();
    for forward in [true, false] {
        let counted = counted(&bytes);
        let mut it = counted.table.iter(TableReadOptions::default());
        start(&mut it, forward);
        assert_eq!(go(&mut it, forward), keys.len());
        // Two blocks, then 8, 16, ... 256 KiB of about 480, then the rest.
        assert!((8..=9).contains(&counted.reads()), "{}", counted.reads());
    }
}

#[test]
fn what_a_scan_learned_holds_in_the_table_that_follows() {
    let (bytes, keys) = many_blocks();
    for forward in [true, false] {
        let [first, second, far] = [(); 3].map(|()| counted(&bytes));
        let mut it = first.table.iter(TableReadOptions::default());
        start(&mut it, forward);
        go(&mut it, forward);
        let mut it = it.into_next(second.table.clone(), true);
        assert!(!it.valid());
        start(&mut it, forward);
        assert_eq!(go(&mut it, forward), keys.len());
        assert!(second.reads() <= 3, "{}", second.reads());
        // Whoever was led elsewhere begins anew.
        let mut it = it.into_next(far.table.clone(), false);
        it.seek(&ikey(&keys[2000], u64::MAX));
        assert!(it.valid() && far.reads() == 1);
        assert!(far.file.reads.load(Relaxed) > 0);
    }
}

#[test]
fn a_scan_that_turns_round_reads_no_more_than_it_must() {
    let (bytes, keys) = many_blocks();
    let counted = counted(&bytes);
    let mut it = counted.table.iter(TableReadOptions::default());
    it.seek_to_first();
    for _ in 0..3000 {
        it.next();
    }
    let before = counted.reads();
    let mut n = 0;
    while it.valid() {
        n += 1;
        it.prev();
    }
    it.status().unwrap();
    assert_eq!(n, 3001);
    assert!(counted.reads() - before <= 9, "{}", counted.reads());
    assert_eq!(keys.len(), 4000);
}
