//! Index and filter in partitions.

use super::*;
use crate::builder::AS_ROCKSDB_BEFORE_9_8;

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
    for (whole_key_filtering, as_old_rocksdb) in [(false, false), (true, false), (true, true)] {
        AS_ROCKSDB_BEFORE_9_8.set(as_old_rocksdb);
        let mut model = Model::new();
        // Few of each prefix: partitions end where prefixes do.
        for _ in 0..if as_old_rocksdb { 200 } else { 800 } {
            let key = format!("{:02}{:03}", rng.below(60), rng.below(1000)).into_bytes();
            model.insert((key, std::cmp::Reverse(1 << 8 | 1)), b"v".to_vec());
        }
        let mut options = options();
        options.prefix_extractor = Some(Arc::new(FixedPrefix::new(2)));
        options.table.whole_key_filtering = whole_key_filtering;
        options.table.metadata_block_size = 64;
        let (bytes, _) = build_with(options, &model);
        AS_ROCKSDB_BEFORE_9_8.set(false);
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

#[test]
fn a_damaged_partition_of_a_filter_is_found_by_checks_and_denies_nothing() {
    let model = model(5000);
    let (bytes, summary) = build_with(options(), &model);
    let mut bad = bytes;
    // The tail begins with the first partition.
    bad[summary.properties.data_size as usize + 3] ^= 1;
    let table = open(&bad, TableReaderOptions::default()).unwrap();
    let told = table.verify_checksums().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Corruption);
    let read = TableReadOptions::default();
    let mut found = 0;
    let mut visit = |_: ParsedInternalKey<'_>, _: ValueSource<'_>| {
        found += 1;
        Visit::Stop
    };
    table.get(&read, b"key000000", 10, &mut visit).unwrap();
    assert_eq!(found, 1);
    for cache in [None, Some(Arc::new(BlockCache::new(8 << 20)))] {
        let options = TableReaderOptions {
            block_cache: cache,
            ..Default::default()
        };
        let table = open(&bad, options).unwrap();
        let unchecked = TableReadOptions {
            verify_checksums: false,
            ..Default::default()
        };
        // All that the damaged part is of.
        for n in 0..200 {
            let key = format!("key{n:06}");
            assert!(table.may_contain(&unchecked, key.as_bytes()).unwrap());
        }
    }
    let salvaged = salvage::salvage(
        &MemTable::open(bad.clone()),
        bad.len() as u64,
        &TableReaderOptions::default(),
        &mut |_, _| Ok(()),
    );
    let salvaged = salvaged.unwrap();
    assert!(!salvaged.is_whole() && salvaged.lost.is_empty());
    assert_eq!(salvaged.entries, 5000);
}

#[test]
fn checks_read_the_parts_of_an_index_from_the_file() {
    let (bytes, _) = build_with(options(), &model(5000));
    let file = Arc::new(Changing(std::sync::Mutex::new(bytes.clone())));
    let with_cache = TableReaderOptions {
        block_cache: Some(Arc::new(BlockCache::new(8 << 20))),
        ..Default::default()
    };
    let table = TableReader::open(file.clone(), bytes.len() as u64, with_cache).unwrap();
    let read = TableReadOptions::default();
    table
        .get(&read, b"key000000", 10, &mut |_, _| Visit::Stop)
        .unwrap();
    let blocks = table.blocks().collect::<Result<Vec<_>>>().unwrap();
    let parts = blocks.iter().filter(|b| b.kind == BlockKind::Index);
    assert!(parts.clone().count() > 2);
    let first = parts.map(|b| b.handle.offset).min().unwrap();
    file.0.lock().unwrap()[first as usize + 2] ^= 1;
    assert!(table.verify_checksums().is_err());
}

/// A file in memory that is damaged after it was opened.
struct Changing(std::sync::Mutex<Vec<u8>>);

impl orogen_env::RandomAccessFile for Changing {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let bytes = self.0.lock().unwrap();
        let from = (offset as usize).min(bytes.len());
        let n = buf.len().min(bytes.len() - from);
        buf[..n].copy_from_slice(&bytes[from..from + n]);
        Ok(n)
    }
    fn size(&self) -> Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }
    fn path(&self) -> &std::path::Path {
        std::path::Path::new("changing.sst")
    }
}
