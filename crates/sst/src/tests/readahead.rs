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

#[test]
fn windows_get_smaller_where_memory_is_scarce() {
    let (bytes, keys) = many_blocks();
    // All of 256 KiB; of 64 KiB at most; block by block.
    for (capacity, window_max, reads) in [
        (8 << 20, 256 << 10, 8..=9),
        (128 << 10, 64 << 10, 10..=60),
        (8 << 10, 0, keys.len() / 200..=keys.len()),
    ] {
        for forward in [true, false] {
            let file = slow(&bytes, 0);
            let cache = Arc::new(BlockCache::new(capacity));
            let options = TableReaderOptions {
                block_cache: Some(cache.clone()),
                charge_readahead: true,
                ..TableReaderOptions::default()
            };
            let table = TableReader::open(file.clone(), bytes.len() as u64, options).unwrap();
            let opened_at = file.reads.load(Relaxed);
            for fixed in [false, true] {
                let read = TableReadOptions {
                    fill_cache: false,
                    readahead: if fixed {
                        Readahead::Fixed(2 << 20)
                    } else {
                        Readahead::Auto
                    },
                    ..TableReadOptions::default()
                };
                let mut it = table.iter(read);
                start(&mut it, forward);
                let mut n = 0;
                let mut most = 0;
                while it.valid() {
                    n += 1;
                    most = most.max(cache.reserved_usage());
                    if forward {
                        it.next();
                    } else {
                        it.prev();
                    }
                }
                it.status().unwrap();
                assert_eq!(n, keys.len());
                if fixed {
                    assert!(most <= capacity / 2);
                } else {
                    assert_eq!(most, window_max);
                    let seen = file.reads.load(Relaxed) - opened_at;
                    assert!(reads.contains(&seen), "{seen} reads, {reads:?} wanted");
                }
                drop(it);
                assert_eq!(cache.reserved_usage(), 0);
            }
        }
    }
}

#[test]
fn a_table_is_written_within_what_it_reserved() {
    let cache = Arc::new(BlockCache::new(16 << 20));
    let file = MemFile::default();
    let options = TableBuilderOptions {
        table: BlockBasedOptions {
            filter_bits_per_key: 10.0,
            ..BlockBasedOptions::default()
        },
        reserve_in: Some(cache.clone()),
        ..TableBuilderOptions::default()
    };
    let plain = MemFile::default();
    let mut other = TableBuilder::new(
        Box::new(plain.clone()),
        TableBuilderOptions {
            reserve_in: None,
            ..options.clone()
        },
    )
    .unwrap();
    let mut builder = TableBuilder::new(Box::new(file.clone()), options).unwrap();
    let early = cache.reserved_usage();
    assert!((256 << 10..512 << 10).contains(&early), "{early}");
    for n in 0..100_000u32 {
        let key = ikey(format!("key{n:08}").as_bytes(), 7);
        builder.add(&key, b"value").unwrap();
        other.add(&key, b"value").unwrap();
        // A block and a step may be ahead of it.
        let used = builder.memory_usage();
        assert!(used <= cache.reserved_usage() + (512 << 10), "{used}");
    }
    assert!(cache.reserved_usage() > 100_000 * 8 + early);
    builder.finish([]).unwrap();
    other.finish([]).unwrap();
    assert_eq!(cache.reserved_usage(), 0);
    assert_eq!(
        file.bytes(),
        plain.bytes(),
        "the buffer's size shows nowhere"
    );
}
