//! Tables as a whole: what goes in comes out, under every combination of options.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_base::checksum::ChecksumType;
use orogen_base::key::{InternalKeyComparator, append_internal_key, append_seek_key};
use orogen_base::metrics::{Statistics, Ticker};
use orogen_base::slice_transform::FixedPrefix;
use orogen_base::{Error, InternalIterator, ParsedInternalKey, Result, UserComparator, ValueKind};

use crate::dump::BlockKind;
use crate::tests_support::{MemFile, MemTable, Rng};
use crate::*;

mod batch;
mod golden;
mod partitioned;
mod readahead;
mod rocksdb_tools;

/// Internal keys in their order, as a map's key: the user key, then the trailer falling.
type Model = BTreeMap<(Vec<u8>, std::cmp::Reverse<u64>), Vec<u8>>;

fn ikey(user_key: &[u8], trailer: u64) -> Vec<u8> {
    let mut k = user_key.to_vec();
    k.extend_from_slice(&trailer.to_le_bytes());
    k
}

fn random_model(rng: &mut Rng, n: usize, value_len: u64) -> Model {
    let kinds = [
        ValueKind::Value,
        ValueKind::Deletion,
        ValueKind::Merge,
        ValueKind::BlobIndex,
    ];
    let mut model = Model::new();
    for seqno in 1..=n as u64 {
        let mut key = rng.key(6, 4);
        if rng.below(3) == 0 {
            key.extend_from_slice(format!("{:06}", rng.below(10_000)).as_bytes());
        }
        let kind = kinds[rng.below(4) as usize];
        let mut value = rng.bytes(value_len);
        if rng.below(2) == 0 {
            value.fill(b'v');
        }
        model.insert((key, std::cmp::Reverse(seqno << 8 | kind as u64)), value);
    }
    model
}

fn build_with(options: TableBuilderOptions, model: &Model) -> (Vec<u8>, TableSummary) {
    let file = MemFile::default();
    let mut b = TableBuilder::new(Box::new(file.clone()), options).unwrap();
    for ((k, t), v) in model {
        b.add(&ikey(k, t.0), v).unwrap();
    }
    let summary = b.finish([("mine".to_owned(), vec![1, 2])]).unwrap();
    let bytes = file.bytes();
    assert_eq!(summary.file_size, bytes.len() as u64);
    (bytes, summary)
}

fn open(bytes: &[u8], options: TableReaderOptions) -> Result<Arc<TableReader>> {
    TableReader::open(MemTable::open(bytes.to_vec()), bytes.len() as u64, options)
}

fn all_options(rng: &mut Rng) -> TableBuilderOptions {
    let pick = |rng: &mut Rng, all: &[u64]| all[rng.below(all.len() as u64) as usize];
    let compressions = [
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ];
    let two_level = rng.below(2) == 0;
    TableBuilderOptions {
        table: BlockBasedOptions {
            index_type: if two_level {
                BlockIndex::TwoLevel
            } else {
                BlockIndex::BinarySearch
            },
            partition_filters: two_level && rng.below(3) > 0,
            metadata_block_size: pick(rng, &[1, 30, 100, 300, 4096]) as usize,
            block_size: pick(rng, &[1, 64, 300, 4096]) as usize,
            block_restart_interval: pick(rng, &[1, 2, 16]) as u32,
            index_block_restart_interval: pick(rng, &[1, 3, 16]) as u32,
            format_version: pick(rng, &[2, 3, 4, 5, 6]) as u32,
            checksum: ChecksumType::from_u8(pick(rng, &[0, 1, 2, 3, 4]) as u8).unwrap(),
            filter_bits_per_key: pick(rng, &[0, 1, 10]) as f64,
            whole_key_filtering: rng.below(2) == 0,
            enable_index_compression: rng.below(2) == 0,
            verify_compression: rng.below(2) == 0,
            ..Default::default()
        },
        compression: compressions[rng.below(5) as usize],
        compression_options: CompressionOptions {
            max_dict_bytes: pick(rng, &[0, 500]) as u32,
            zstd_max_train_bytes: pick(rng, &[0, 5000]) as u32,
            max_dict_buffer_bytes: pick(rng, &[0, 1000]),
            ..Default::default()
        },
        prefix_extractor: match rng.below(2) {
            0 => None,
            _ => Some(Arc::new(FixedPrefix::new(2))),
        },
        db_session_id: "SESSION".into(),
        file_number: 7,
        ..Default::default()
    }
}

#[test]
fn a_table_answers_as_the_entries_it_was_made_of() {
    let mut rng = Rng::new(11);
    for round in 0..120 {
        let n = [0, 1, 5, 40, 400][round % 5];
        let model = random_model(&mut rng, n, [0, 10, 100][round % 3]);
        let options = all_options(&mut rng);
        let (bytes, summary) = build_with(options.clone(), &model);
        let p = &summary.properties;
        assert_eq!(p.num_entries, model.len() as u64);
        let cache = Arc::new(BlockCache::new(1 << 20));
        let reader_options = TableReaderOptions {
            block_cache: (rng.below(2) == 0).then(|| cache.clone()),
            prefix_extractor: options.prefix_extractor.clone(),
            cache_index_and_filter_blocks: rng.below(2) == 0,
            tail_size: if rng.below(2) == 0 {
                summary.tail_size
            } else {
                0
            },
            ..Default::default()
        };
        let table = open(&bytes, reader_options).unwrap();
        assert_eq!(*table.properties(), *p);
        assert_eq!(p.user_collected["mine"], [1, 2]);
        check_scan(&table, &model, &mut rng);
        check_gets(&table, &model, &mut rng, n as u64);
        table.verify_checksums().unwrap();
        assert!(
            build_with(options, &model).0 == bytes,
            "the same entries give the same bytes"
        );
    }
}

fn entry(it: &TableIter) -> Option<(Vec<u8>, Vec<u8>)> {
    it.status().unwrap();
    if !it.valid() {
        return None;
    }
    assert_eq!(&*it.pinned_value().unwrap(), it.value());
    Some((it.key().to_vec(), it.value().to_vec()))
}

fn check_scan(table: &Arc<TableReader>, model: &Model, rng: &mut Rng) {
    let read = TableReadOptions {
        readahead: [Readahead::Auto, Readahead::Off, Readahead::Fixed(700)][rng.below(3) as usize],
        fill_cache: rng.below(2) == 0,
        ..Default::default()
    };
    let flat: Vec<(Vec<u8>, Vec<u8>)> = model
        .iter()
        .map(|((k, t), v)| (ikey(k, t.0), v.clone()))
        .collect();
    let mut it = table.iter(read);
    it.seek_to_first();
    for want in &flat {
        assert_eq!(entry(&it).as_ref(), Some(want));
        it.next();
    }
    assert_eq!(entry(&it), None);
    it.seek_to_last();
    for want in flat.iter().rev() {
        assert_eq!(entry(&it).as_ref(), Some(want));
        it.prev();
    }
    assert_eq!(entry(&it), None);
    let order = InternalKeyComparator::default();
    for _ in 0..60 {
        let target = match flat.len() {
            n if n > 0 && rng.below(2) == 0 => flat[rng.below(n as u64) as usize].0.clone(),
            _ => ikey(&rng.key(6, 4), rng.below(100_000)),
        };
        let at = flat.partition_point(|(k, _)| order.compare(k, &target).is_lt());
        it.seek(&target);
        assert_eq!(entry(&it).as_ref(), flat.get(at));
        it.seek_for_prev(&target);
        let upto = flat.partition_point(|(k, _)| order.compare(k, &target).is_le());
        let mut here = upto.checked_sub(1);
        assert_eq!(entry(&it).as_ref(), here.map(|i| &flat[i]));
        for _ in 0..8 {
            let Some(i) = here else { break };
            if rng.below(2) == 0 {
                it.next();
                here = Some(i + 1).filter(|&i| i < flat.len());
            } else {
                it.prev();
                here = i.checked_sub(1);
            }
            assert_eq!(entry(&it).as_ref(), here.map(|i| &flat[i]));
        }
    }
}

fn check_gets(table: &TableReader, model: &Model, rng: &mut Rng, n: u64) {
    let read = TableReadOptions::default();
    for _ in 0..80 {
        let key = match model.len() {
            n if n > 0 && rng.below(2) == 0 => model
                .keys()
                .nth(rng.below(n as u64) as usize)
                .unwrap()
                .0
                .clone(),
            _ => rng.key(6, 4),
        };
        let seqno = rng.below(n + 2);
        let stop_after = 1 + rng.below(4) as usize;
        let from = (key.clone(), std::cmp::Reverse(seqno << 8 | 0xff));
        let want: Vec<_> = model
            .range((Bound::Included(from), Bound::Unbounded))
            .take_while(|((k, _), _)| *k == key)
            .take(stop_after)
            .map(|((_, t), v)| (t.0 >> 8, t.0 as u8, v.clone()))
            .collect();
        let mut got = Vec::new();
        table
            .get(&read, &key, seqno, &mut |k, v| {
                assert_eq!(k.user_key, key);
                assert_eq!(&*v.pin(), v.bytes());
                got.push((k.seqno, k.kind as u8, v.bytes().to_vec()));
                if got.len() == stop_after {
                    Visit::Stop
                } else {
                    Visit::Continue
                }
            })
            .unwrap();
        assert_eq!(got, want);
        if !want.is_empty() {
            assert!(table.may_contain(&read, &key).unwrap());
            assert!(table.prefix_may_match(&read, &key).unwrap());
        }
    }
}

#[test]
fn entries_that_do_not_rise_are_refused() {
    let new =
        || TableBuilder::new(Box::new(MemFile::default()), TableBuilderOptions::default()).unwrap();
    for (a, b) in [
        (ikey(b"b", 5 << 8 | 1), ikey(b"a", 9 << 8 | 1)),
        (ikey(b"b", 5 << 8 | 1), ikey(b"b", 5 << 8 | 1)),
        (ikey(b"b", 5 << 8 | 1), ikey(b"b", 6 << 8 | 1)),
        (ikey(b"a", 5 << 8 | 1), b"short".to_vec()),
        (ikey(b"a", 5 << 8 | 1), ikey(b"b", 5 << 8 | 0xf)),
        (ikey(b"a", 5 << 8 | 1), ikey(b"b", 5 << 8 | 0x55)),
    ] {
        let mut builder = new();
        builder.add(&a, b"v").unwrap();
        let kind = builder.add(&b, b"v").unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidArgument);
        builder.abandon();
    }
}

#[test]
fn range_tombstones_come_back_cut_into_fragments() {
    let file = MemFile::default();
    let mut b = TableBuilder::new(Box::new(file.clone()), TableBuilderOptions::default()).unwrap();
    b.add_range_tombstone(b"m", b"z", 30).unwrap();
    b.add(&ikey(b"k", 20 << 8 | 1), b"v").unwrap();
    b.add_range_tombstone(b"c", b"p", 10).unwrap();
    b.add_range_tombstone(b"q", b"q", 50).unwrap();
    let summary = b.finish([]).unwrap();
    assert_eq!(summary.properties.num_range_deletions, 3);
    assert_eq!((summary.smallest_seqno, summary.largest_seqno), (10, 50));
    let mut smallest = Vec::new();
    append_internal_key(&mut smallest, b"c", 10, ValueKind::RangeDeletion);
    assert_eq!(summary.smallest, Some(smallest));
    let mut largest = Vec::new();
    let seqno = orogen_base::seqno::SEQNO_MAX;
    append_internal_key(&mut largest, b"z", seqno, ValueKind::RangeDeletion);
    assert_eq!(summary.largest, Some(largest));
    let table = open(&file.bytes(), TableReaderOptions::default()).unwrap();
    let tombstones = table.range_tombstones();
    let order = UserComparator::BYTEWISE;
    for (key, seqno) in [
        (b"b", 0),
        (b"c", 10),
        (b"l", 10),
        (b"n", 30),
        (b"q", 30),
        (b"z", 0),
    ] {
        assert_eq!(tombstones.max_covering_seqno(&order, key, 100), seqno);
    }
}

#[test]
fn other_key_orders_work_and_must_match() {
    let order = UserComparator::REVERSE_BYTEWISE;
    let file = MemFile::default();
    let options = TableBuilderOptions {
        comparator: order.clone(),
        table: BlockBasedOptions {
            block_size: 100,
            ..Default::default()
        },
        ..Default::default()
    };
    let mut b = TableBuilder::new(Box::new(file.clone()), options).unwrap();
    for i in (0..500).rev() {
        b.add(&ikey(format!("{i:04}").as_bytes(), 1 << 8 | 1), b"value")
            .unwrap();
    }
    b.finish([]).unwrap();
    let wrong = open(&file.bytes(), TableReaderOptions::default())
        .err()
        .unwrap();
    assert_eq!(wrong.kind(), ErrorKind::InvalidArgument);
    let right = TableReaderOptions {
        comparator: order,
        ..Default::default()
    };
    let table = open(&file.bytes(), right).unwrap();
    let mut it = table.iter(TableReadOptions::default());
    let mut target = Vec::new();
    append_seek_key(&mut target, b"0123x", 9);
    it.seek(&target);
    assert_eq!(it.key()[..4], *b"0123");
    it.next();
    assert_eq!(it.key()[..4], *b"0122");
}

#[test]
fn many_nested_tombstones_of_an_ingested_table_are_one_in_each_place() {
    let file = MemFile::default();
    let mut b = TableBuilder::new(Box::new(file.clone()), TableBuilderOptions::default()).unwrap();
    let count = 8_200u32;
    let ends = |n: u32| (n.to_be_bytes(), (3 * count - n).to_be_bytes());
    for n in 0..count {
        let (start, end) = ends(n);
        b.add_range_tombstone(&start, &end, 0).unwrap();
    }
    let version = properties::EXTERNAL_SST_FILE_VERSION.to_owned();
    let seqno = properties::EXTERNAL_SST_FILE_GLOBAL_SEQNO.to_owned();
    b.finish([(version, vec![2, 0, 0, 0]), (seqno, vec![0; 8])])
        .unwrap();
    let options = TableReaderOptions {
        largest_seqno: Some(77),
        ..Default::default()
    };
    let table = open(&file.bytes(), options).unwrap();
    let tombstones = table.range_tombstones();
    assert_eq!(tombstones.fragments().len(), 2 * count as usize - 1);
    assert!(tombstones.fragments().iter().all(|f| f.seqnos == [77]));
}

#[test]
fn ingested_tables_carry_one_sequence_number() {
    let file = MemFile::default();
    let mut b = TableBuilder::new(Box::new(file.clone()), TableBuilderOptions::default()).unwrap();
    // User keys that are alike in what the trailer shares with the next key.
    let keys: [&[u8]; 5] = [b"a", b"a\x01", b"a\x01\0", b"a\x01\0\0\0\0\0\0\0", b"b"];
    for key in keys {
        b.add(&ikey(key, 1), b"v").unwrap();
    }
    b.add_range_tombstone(b"x", b"y", 0).unwrap();
    let version = properties::EXTERNAL_SST_FILE_VERSION.to_owned();
    let seqno = properties::EXTERNAL_SST_FILE_GLOBAL_SEQNO.to_owned();
    b.finish([(version, vec![2, 0, 0, 0]), (seqno, vec![0; 8])])
        .unwrap();
    let options = TableReaderOptions {
        largest_seqno: Some(77),
        ..Default::default()
    };
    let table = open(&file.bytes(), options).unwrap();
    assert_eq!(table.global_seqno(), Some(77));
    assert_eq!(table.range_tombstones().fragments()[0].seqnos, [77]);
    let mut it = table.iter(TableReadOptions::default());
    it.seek_to_first();
    for key in keys {
        assert_eq!(it.key(), ikey(key, 77 << 8 | 1));
        it.next();
    }
    it.seek_to_last();
    for key in keys.iter().rev() {
        assert_eq!(it.key(), ikey(key, 77 << 8 | 1));
        it.prev();
    }
    let seek = |seqno| {
        let mut it = table.iter(TableReadOptions::default());
        let mut target = Vec::new();
        append_seek_key(&mut target, b"a\x01", seqno);
        it.seek(&target);
        it.key()[..it.key().len() - 8].to_vec()
    };
    assert_eq!(
        (seek(77), seek(76)),
        (b"a\x01".to_vec(), b"a\x01\0".to_vec())
    );
    let get = |seqno| {
        let mut seen = None;
        let read = TableReadOptions::default();
        table
            .get(&read, b"a\x01", seqno, &mut |k, _| {
                seen = Some(k.seqno);
                Visit::Continue
            })
            .unwrap();
        seen
    };
    assert_eq!((get(77), get(76)), (Some(77), None));
}

#[test]
fn no_flip_in_a_table_gives_wrong_answers_in_silence() {
    let mut rng = Rng::new(5);
    for (version, in_parts) in [(5, false), (6, false), (5, true)] {
        let model = random_model(&mut rng, 30, 20);
        let index_type = match in_parts {
            true => BlockIndex::TwoLevel,
            false => BlockIndex::BinarySearch,
        };
        let options = TableBuilderOptions {
            table: BlockBasedOptions {
                block_size: 200,
                format_version: version,
                filter_bits_per_key: 10.0,
                index_type,
                partition_filters: in_parts,
                metadata_block_size: 64,
                ..Default::default()
            },
            compression: CompressionType::Lz4,
            db_session_id: "S".into(),
            ..Default::default()
        };
        let (bytes, _) = build_with(options, &model);
        let scan = |bytes: &[u8]| -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
            let table = open(bytes, TableReaderOptions::default())?;
            let mut it = table.iter(TableReadOptions::default());
            let mut all = Vec::new();
            it.seek_to_first();
            while it.valid() {
                all.push((it.key().to_vec(), it.value().to_vec()));
                it.next();
            }
            it.status()?;
            for (key, value) in &all {
                let parsed = ParsedInternalKey::parse(key)?;
                let mut found = false;
                table.get(
                    &TableReadOptions::default(),
                    parsed.user_key,
                    parsed.seqno,
                    &mut |_, v| {
                        found = v.bytes() == &value[..];
                        Visit::Stop
                    },
                )?;
                if !found {
                    return Err(Error::corruption("an entry of the scan is not found"));
                }
            }
            Ok(all)
        };
        let want = scan(&bytes).unwrap();
        let mut unseen = 0;
        let mut without_filter = 0;
        for i in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[i] ^= 1 << rng.below(8);
            match scan(&bad) {
                Ok(got) => {
                    assert_eq!(got, want, "format {version} byte {i}");
                    let table = open(&bad, TableReaderOptions::default()).unwrap();
                    match table.verify_checksums() {
                        // Who looks is told.
                        Err(e) => {
                            assert!(e.context("offset").is_some(), "{e}");
                            without_filter += 1;
                        }
                        Ok(()) => unseen += 1,
                    }
                }
                Err(e) => assert!(e.context("file").is_some(), "{e}"),
            }
        }
        // The padding of the footer is not checked in format 5.
        assert!(unseen < 50, "{unseen}");
        // Its top, or all of it.
        assert!(without_filter > 50, "{without_filter}");
        for n in 0..bytes.len() {
            assert!(scan(&bytes[..n]).is_err());
        }
    }
}

#[test]
fn a_footer_that_says_none_does_not_turn_checksums_off() {
    let mut rng = Rng::new(8);
    let model = random_model(&mut rng, 40, 50);
    for checksum in 1..=4 {
        let mut options = all_options(&mut rng);
        options.table.format_version = 5;
        options.table.checksum = ChecksumType::from_u8(checksum).unwrap();
        let (mut bytes, _) = build_with(options, &model);
        let footer = bytes.len() - 53;
        assert_eq!(bytes[footer], checksum);
        bytes[footer] = 0;
        let told = open(&bytes, TableReaderOptions::default()).map(|_| ());
        let told = told.unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Corruption, "{checksum}");
    }
}

#[test]
fn the_cache_is_asked_first_and_counted() {
    let mut rng = Rng::new(6);
    let model = random_model(&mut rng, 300, 50);
    let table_options = BlockBasedOptions {
        block_size: 500,
        filter_bits_per_key: 10.0,
        ..Default::default()
    };
    let (bytes, _) = build_with(
        TableBuilderOptions {
            table: table_options,
            ..Default::default()
        },
        &model,
    );
    let statistics = Arc::new(Statistics::new());
    let options = TableReaderOptions {
        block_cache: Some(Arc::new(BlockCache::new(8 << 20))),
        statistics: Some(statistics.clone()),
        ..Default::default()
    };
    let table = open(&bytes, options).unwrap();
    let blocks = table.properties().num_data_blocks;
    let scan = |read: TableReadOptions| {
        let mut it = table.iter(read);
        it.seek_to_first();
        while it.valid() {
            it.next();
        }
        it.status().unwrap();
    };
    scan(TableReadOptions::compaction());
    assert_eq!(statistics.get(Ticker::BlockCacheAdd), 0);
    scan(TableReadOptions::default());
    assert_eq!(statistics.get(Ticker::BlockCacheAdd), blocks);
    let misses = statistics.get(Ticker::BlockCacheDataMiss);
    scan(TableReadOptions::default());
    assert_eq!(statistics.get(Ticker::BlockCacheDataMiss), misses);
    assert_eq!(statistics.get(Ticker::BlockCacheDataHit), blocks);
    for i in 0..100u32 {
        let key = format!("absent{i}");
        table
            .get(
                &TableReadOptions::default(),
                key.as_bytes(),
                1000,
                &mut |_, _| Visit::Continue,
            )
            .unwrap();
    }
    assert!(statistics.get(Ticker::BloomFilterUseful) > 80);
}

#[test]
fn what_came_to_the_cache_as_a_filter_is_not_taken_for_entries() {
    let model = random_model(&mut Rng::new(3), 50, 20);
    let (bytes, _) = build_with(TableBuilderOptions::default(), &model);
    let options = TableReaderOptions {
        block_cache: Some(Arc::new(BlockCache::new(8 << 20))),
        ..Default::default()
    };
    let table = open(&bytes, options).unwrap();
    let read = TableReadOptions::default();
    // As the top of a filter would have it whose handles are damaged.
    for block in table.blocks().map(Result::unwrap) {
        if block.kind == BlockKind::Data {
            table.block(block.handle, BlockKind::Filter, &read).unwrap();
        }
    }
    for (key, _) in model.keys() {
        let mut shown = 0;
        let got = table.get(&read, key, 1000, &mut |_, _| {
            shown += 1;
            Visit::Continue
        });
        got.unwrap();
        assert!(shown > 0, "{key:?}");
    }
}

#[test]
fn offsets_and_anchors_divide_the_table_evenly() {
    let file = MemFile::default();
    let mut b = TableBuilder::new(Box::new(file.clone()), TableBuilderOptions::default()).unwrap();
    for i in 0..5000u32 {
        b.add(&ikey(format!("{i:08}").as_bytes(), 1 << 8 | 1), &[7; 100])
            .unwrap();
    }
    let estimate = b.estimated_file_size();
    let summary = b.finish([]).unwrap();
    assert!(estimate.abs_diff(summary.file_size) < 5000);
    let table = open(&file.bytes(), TableReaderOptions::default()).unwrap();
    let size = summary.properties.data_size;
    for i in [0u32, 1000, 2500, 4999] {
        let at = table
            .approximate_offset_of(&ikey(format!("{i:08}").as_bytes(), 1 << 8))
            .unwrap();
        assert!(at.abs_diff(size * u64::from(i) / 5000) < 5000, "{i} {at}");
    }
    assert_eq!(table.approximate_offset_of(&ikey(b"9", 1)).unwrap(), size);
    let anchors = table.anchors(10).unwrap();
    assert!((9..=10).contains(&anchors.len()));
    assert!(anchors.windows(2).all(|w| w[0].user_key < w[1].user_key));
    assert!(
        anchors
            .iter()
            .take(8)
            .all(|a| a.weight_bytes.abs_diff(size / 10) < 5000)
    );
    let blocks: Vec<_> = table.blocks().collect::<Result<_>>().unwrap();
    let data = blocks.iter().filter(|b| b.kind == BlockKind::Data).count() as u64;
    assert_eq!(data, summary.properties.num_data_blocks);
    for kind in [
        BlockKind::Index,
        BlockKind::Properties,
        BlockKind::MetaIndex,
    ] {
        assert_eq!(
            blocks.iter().filter(|b| b.kind == kind).count(),
            1,
            "{kind:?}"
        );
    }
    assert!(
        blocks
            .windows(2)
            .all(|w| w[0].handle.end() == Some(w[1].handle.offset))
    );
}

#[test]
fn a_block_that_nobody_checked_is_given_to_nobody_else() {
    let model = Model::from([(
        (b"key".to_vec(), std::cmp::Reverse(1 << 8 | 1)),
        vec![b'v'; 100],
    )]);
    let plain = TableBuilderOptions {
        compression: CompressionType::None,
        ..Default::default()
    };
    let (mut bytes, _) = build_with(plain, &model);
    let at = bytes.windows(9).position(|w| w == [b'v'; 9]).unwrap();
    bytes[at + 50] = b'w';
    let with_cache = TableReaderOptions {
        block_cache: Some(Arc::new(BlockCache::new(1 << 20))),
        ..Default::default()
    };
    let table = open(&bytes, with_cache).unwrap();
    let unchecked = TableReadOptions {
        verify_checksums: false,
        ..Default::default()
    };
    for _ in 0..2 {
        let mut seen = Vec::new();
        let mut visit = |_: ParsedInternalKey<'_>, value: ValueSource<'_>| {
            seen = value.bytes().to_vec();
            Visit::Stop
        };
        table.get(&unchecked, b"key", 10, &mut visit).unwrap();
        assert_eq!((seen.len(), seen[50]), (100, b'w'));
        let read = TableReadOptions::default();
        let told = table.get(&read, b"key", 10, &mut |_, _| Visit::Stop);
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Corruption);
        let mut iter = TableIter::new(table.clone(), TableReadOptions::compaction());
        iter.seek_to_first();
        assert!(!iter.valid() && iter.status().is_err());
    }
}

#[test]
fn what_fits_into_no_block_is_refused_before_it_is_copied() {
    let mut builder =
        TableBuilder::new(Box::new(MemFile::default()), TableBuilderOptions::default()).unwrap();
    builder.add(&ikey(b"a", 1 << 8 | 1), b"small").unwrap();
    let value = vec![0; u32::MAX as usize - 50];
    let told = builder.add(&ikey(b"b", 1 << 8 | 1), &value).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::InvalidArgument);
}
