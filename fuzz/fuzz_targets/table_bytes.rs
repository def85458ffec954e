//! Any bytes as a table, with checksums looked away from: every way of reading ends, in bounds.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::{InternalIterator, UserComparator};
use orogen_fuzz::{Choices, file};
use orogen_sst::{TableReadOptions, TableReader, TableReaderOptions, Visit};

/// Hostile indexes may lead to one block again and again; enough is enough.
const MOVES_MAX: usize = 20_000;
const KEYS_MAX: usize = 20;

fn scan(table: &Arc<TableReader>, read: TableReadOptions) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut iter = table.iter(read);
    iter.seek_to_first();
    for _ in 0..MOVES_MAX {
        if !iter.valid() {
            break;
        }
        if keys.len() < KEYS_MAX {
            keys.push(iter.key().to_vec());
        }
        let _ = iter.value();
        iter.next();
    }
    let _ = iter.status();
    iter.seek_to_last();
    for _ in 0..MOVES_MAX {
        if !iter.valid() {
            break;
        }
        iter.prev();
    }
    for key in &keys {
        iter.seek(key);
        iter.seek_for_prev(key);
    }
    keys
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let flags = choices.byte();
    let bytes = choices.rest();
    let options = TableReaderOptions {
        skip_checksums_at_open: true,
        comparator: if flags & 1 == 0 {
            UserComparator::BYTEWISE
        } else {
            UserComparator::REVERSE_BYTEWISE
        },
        tail_size: if flags & 2 == 0 {
            0
        } else {
            bytes.len() as u64 / 2
        },
        ..Default::default()
    };
    let read = TableReadOptions {
        verify_checksums: false,
        ..Default::default()
    };
    let Ok(table) = TableReader::open(file(bytes), bytes.len() as u64, options) else {
        return;
    };
    let keys = scan(&table, read);
    for key in keys {
        let Some(user_key) = key.len().checked_sub(8).map(|n| &key[..n]) else {
            continue;
        };
        let mut shown = 0;
        let _ = table.get(&read, user_key, u64::MAX >> 8, &mut |_, value| {
            shown += value.bytes().len() & 1;
            Visit::Continue
        });
        let _ = table.approximate_offset_of(&key);
        let _ = table.may_contain(&read, user_key);
    }
    let _ = table.may_contain(&read, b"absent");
    let _ = table.anchors(8);
    let _ = table.verify_checksums();
    for block in table.blocks().take(MOVES_MAX) {
        if block.is_err() {
            break;
        }
    }
    let _ = table.range_tombstones().count();
    let _ = table.properties().to_entries();
});
