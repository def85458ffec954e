//! Index and filter in partitions.

use super::*;

fn options() -> TableBuilderOptions {
    TableBuilderOptions {
        table: BlockBasedOptions {
            block_size: 256,
            filter_bits_per_key: 10.0,
            index_type: BlockIndex::TwoLevel,
            partition_filters: true,
            metadata_block_size: 256,
            ..Default::default()
        },
        ..Default::default()
    }
}

fn model(n: u64) -> Model {
    let key = |i| format!("key{i:06}").into_bytes();
    (0..n)
        .map(|i| ((key(i), std::cmp::Reverse(1 << 8 | 1)), vec![b'v'; 20]))
        .collect()
}

#[test]
fn an_open_table_holds_only_the_tops() {
    let model = model(5000);
    let flat = TableBuilderOptions {
        table: BlockBasedOptions {
            index_type: BlockIndex::BinarySearch,
            partition_filters: false,
            ..options().table
        },
        ..options()
    };
    let (flat_bytes, _) = build_with(flat, &model);
    let (bytes, summary) = build_with(options(), &model);
    let p = &summary.properties;
    assert!(p.index_partitions > 20, "{}", p.index_partitions);
    assert!(p.top_level_index_size > 0 && p.top_level_index_size < p.index_size / 4);
    assert_eq!(p.num_filter_entries, 5000);
    let held = |bytes: &[u8], cached: bool| {
        let cache = Arc::new(BlockCache::new(1 << 20));
        let options = TableReaderOptions {
            block_cache: Some(cache),
            cache_index_and_filter_blocks: cached,
            ..Default::default()
        };
        open(bytes, options).unwrap().memory_usage()
    };
    assert!(held(&bytes, false) < held(&flat_bytes, false) / 4);
    // Every lookup goes through the tops: they are not pushed out of the cache.
    assert_eq!(held(&bytes, true), held(&bytes, false));
}

#[test]
fn partitions_are_read_through_the_cache_once() {
    let (bytes, _) = build_with(options(), &model(5000));
    let statistics = Arc::new(Statistics::new());
    let table = open(
        &bytes,
        TableReaderOptions {
            block_cache: Some(Arc::new(BlockCache::new(1 << 20))),
            statistics: Some(statistics.clone()),
            ..Default::default()
        },
    )
    .unwrap();
    let read = TableReadOptions::default();
    for round in 0..3 {
        let mut found = 0;
        table
            .get(&read, b"key001234", 10, &mut |_, _| {
                found += 1;
                Visit::Stop
            })
            .unwrap();
        assert_eq!(found, 1);
        for ticker in [
            Ticker::BlockCacheIndexMiss,
            Ticker::BlockCacheFilterMiss,
            Ticker::BlockCacheDataMiss,
        ] {
            assert_eq!(statistics.get(ticker), 1, "{round}");
        }
    }
    assert_eq!(statistics.get(Ticker::BlockCacheIndexHit), 2);
    assert_eq!(statistics.get(Ticker::BlockCacheFilterHit), 2);
}

#[test]
fn no_partition_denies_a_prefix_that_a_neighbour_has() {
    // What a seek wants may be in the partition before or behind the one that it lands in.
    let mut rng = Rng::new(5);
    for whole_key_filtering in [false, true] {
        let mut model = Model::new();
        for _ in 0..800 {
            let key = format!("{:02}{:03}", rng.below(60), rng.below(1000)).into_bytes();
            model.insert((key, std::cmp::Reverse(1 << 8 | 1)), b"v".to_vec());
        }
        let mut options = options();
        options.prefix_extractor = Some(Arc::new(FixedPrefix::new(2)));
        options.table.whole_key_filtering = whole_key_filtering;
        options.table.metadata_block_size = 64;
        let (bytes, _) = build_with(options, &model);
        let table = open(&bytes, TableReaderOptions::default()).unwrap();
        let read = TableReadOptions::default();
        let held: std::collections::HashSet<_> =
            model.keys().map(|(k, _)| k[..2].to_vec()).collect();
        let mut denied = 0;
        for n in 0..100_000u32 {
            let target = format!("{n:05}").into_bytes();
            let may = table.prefix_may_match(&read, &target).unwrap();
            assert!(may || !held.contains(&target[..2]), "{n:05}");
            denied += u32::from(!may);
        }
        assert!(denied > 20_000, "{denied}");
    }
}

#[test]
fn filters_in_partitions_need_an_index_in_partitions() {
    let mut options = options();
    options.table.index_type = BlockIndex::BinarySearch;
    let refused = TableBuilder::new(Box::new(MemFile::default()), options).err();
    let kind = ErrorKind::InvalidArgument;
    assert_eq!(refused.map(|e| e.kind()), Some(kind));
}
