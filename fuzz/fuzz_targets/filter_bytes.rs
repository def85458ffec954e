//! Any bytes as a filter, whole or in partitions: what one way of asking is told, all are told;
//! a filter that is not understood and one with all bits set deny nothing.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::key::append_internal_key;
use orogen_base::{Result, ValueKind};
use orogen_fuzz::Choices;
use orogen_fuzz::raw_table::{LAST_KEY, RawTable, index_value, sorted_block, unchecked};
use orogen_sst::{
    BatchLookup, BlockCache, CompressionType, LookupKey, TableReader, TableReaderOptions, Visit,
};

const FULL: &str = "fullfilter.rocksdb.BuiltinBloomFilter";
const PARTITIONED: &str = "partitionedfilter.rocksdb.BuiltinBloomFilter";
const KEYS_MAX: usize = 40;

/// How the bytes become a filter.
#[derive(Clone, Copy)]
enum Shape {
    Whole,
    /// One partition behind a sound top.
    Partition,
    /// The bytes are the top; half of them are a partition, too.
    Top,
}

fn open(
    shape: Shape,
    filter: &[u8],
    keys: &[Vec<u8>],
    options: TableReaderOptions,
) -> Result<Arc<TableReader>> {
    let mut table = RawTable::default();
    let entries: Vec<_> = keys
        .iter()
        .map(|user_key| {
            let mut key = Vec::new();
            append_internal_key(&mut key, user_key, 7, ValueKind::Value);
            (key, user_key.clone())
        })
        .collect();
    let data = table.block(&sorted_block(&entries, 4), CompressionType::None);
    let index = table.index_of(data);
    match shape {
        Shape::Whole => table.meta_block(FULL, filter),
        Shape::Partition => {
            let part = table.block(filter, CompressionType::None);
            let top = sorted_block(&[(LAST_KEY.to_vec(), index_value(part, None))], 1);
            // The table's index has value lengths, so the filter's has them.
            table.meta_block(PARTITIONED, &top);
        }
        Shape::Top => {
            table.block(&filter[..filter.len() / 2], CompressionType::None);
            table.meta_block(PARTITIONED, filter);
        }
    }
    table.open(index, 5, options)
}

fn found(table: &TableReader, user_key: &[u8]) -> Option<usize> {
    let mut shown = 0;
    table
        .get(&unchecked(), user_key, u64::MAX >> 8, &mut |key, value| {
            assert_eq!((key.user_key, value.bytes()), (user_key, user_key));
            shown += 1;
            Visit::Continue
        })
        .is_ok()
        .then_some(shown)
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let shape = [Shape::Whole, Shape::Partition, Shape::Top][usize::from(choices.byte()) % 3];
    let mut keys: Vec<Vec<u8>> = (0..usize::from(choices.byte()) % KEYS_MAX)
        .map(|_| choices.key())
        .collect();
    keys.sort();
    keys.dedup();
    let filter = choices.rest();
    let Ok(table) = open(shape, filter, &keys, TableReaderOptions::default()) else {
        assert!(matches!(shape, Shape::Top), "a filter stops no table");
        return;
    };
    let cached = TableReaderOptions {
        block_cache: Some(Arc::new(BlockCache::new(1 << 20))),
        cache_index_and_filter_blocks: true,
        ..Default::default()
    };
    let cached = open(shape, filter, &keys, cached).expect("it opened before");

    let mut batch: Vec<_> = keys
        .iter()
        .map(|key| BatchLookup::new(&table, LookupKey::new(key), u64::MAX >> 8))
        .collect();
    BatchLookup::prepare(&mut batch, &unchecked());
    for (key, lookup) in keys.iter().zip(batch) {
        let may = table.may_contain(&unchecked(), key).ok();
        assert_eq!(cached.may_contain(&unchecked(), key).ok(), may);
        let want = may.map(usize::from);
        assert_eq!(found(&table, key), want, "{key:?}");
        assert_eq!(found(&cached, key), want, "{key:?}");
        let mut shown = 0;
        let told = lookup.finish(&unchecked(), &mut |_, _| {
            shown += 1;
            Visit::Continue
        });
        assert_eq!(told.is_ok().then_some(shown), want, "{key:?}");
    }
    if matches!(shape, Shape::Top) {
        return;
    }
    let Some((bits, metadata)) = filter.split_last_chunk::<5>() else {
        return;
    };
    if !bits.is_empty() && (metadata[0] == 0 || (0x80..0xfe).contains(&metadata[0])) {
        for key in &keys {
            assert!(table.may_contain(&unchecked(), key).expect("in memory"));
        }
    }
    if !bits.is_empty() && metadata[0] != 0xfe {
        let mut full = vec![0xff; bits.len()];
        full.extend_from_slice(metadata);
        let full = open(shape, &full, &keys, TableReaderOptions::default()).expect("as before");
        for key in &keys {
            assert_eq!(found(&full, key), Some(1), "{metadata:?} {key:?}");
        }
    }
});
