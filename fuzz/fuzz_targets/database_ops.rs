//! Calls of a whole database against a map of versions: puts, merges, deletes of keys and ranges,
//! snapshots, flushes, compactions, checkpoints of the process (a new open), under drawn options of
//! tables. Every read gives what the map gives, from every snapshot, both ways and by key.

#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_engine::options::BottommostLevelCompaction;
use orogen_engine::plugin::merge_operator;
use orogen_engine::{CompactRangeOptions, Db, Options, ReadOptions, WriteBatch, WriteOptions};
use orogen_env::MemFileSystem;
use orogen_fuzz::Choices;
use orogen_sst::{BlockIndex, CompressionType};

const DIR: &str = "/db";
const OPERATIONS_MAX: usize = 60;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(choices: &mut Choices<'_>) -> Options {
    let mut options = Options::default();
    options.db.fs = Arc::new(MemFileSystem::new());
    options.db.info_log = false;
    options.cf.write_buffer_size = 64 << 10;
    options.db.create_if_missing = true;
    let flags = choices.byte();
    let table = &mut options.cf.table;
    table.block_size = 32 << (flags & 3);
    table.block_restart_interval = 1 + u32::from(flags >> 2 & 3);
    table.format_version = 2 + u32::from(choices.byte() % 5);
    if flags & 16 != 0 {
        table.index_type = BlockIndex::TwoLevel;
        table.partition_filters = flags & 32 != 0;
        table.metadata_block_size = 32;
    }
    table.filter_bits_per_key = if flags & 64 != 0 { 10.0 } else { 0.0 };
    options.cf.compression = match flags & 128 {
        0 => CompressionType::None,
        _ => CompressionType::Lz4,
    };
    options.cf.level0_file_num_compaction_trigger = 2 + usize::from(choices.byte() % 4);
    options.cf.merge_operator = merge_operator::by_name("StringAppendOperator");
    options
}

fn check(db: &Db, read: &ReadOptions, map: &Map) {
    let family = db.default_column_family();
    let mut iter = db.iter(read, &family).expect("memory");
    let mut found = Vec::new();
    iter.seek_to_first();
    while iter.valid() {
        found.push((iter.key().to_vec(), iter.value().to_vec()));
        iter.next();
    }
    let wanted: Vec<_> = map.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    assert_eq!(found, wanted, "forwards");
    iter.seek_to_last();
    for (key, value) in wanted.iter().rev() {
        assert!(iter.valid(), "ends early, read backwards");
        assert_eq!((iter.key(), iter.value()), (&key[..], &value[..]));
        iter.prev();
    }
    assert!(!iter.valid(), "goes on, read backwards");
    iter.status().expect("memory");
}

fn check_key(db: &Db, read: &ReadOptions, map: &Map, key: &[u8]) {
    let family = db.default_column_family();
    let got = db.get_opt(read, &family, key).expect("memory");
    assert_eq!(got.as_deref(), map.get(key).map(|v| &v[..]), "{key:?}");
    let mut iter = db.iter(read, &family).expect("memory");
    iter.seek(key);
    let next = map.range(key.to_vec()..).next();
    assert_eq!(iter.valid().then(|| iter.key()), next.map(|(k, _)| &k[..]));
    iter.seek_for_prev(key);
    let before = map.range(..=key.to_vec()).next_back();
    assert_eq!(
        iter.valid().then(|| iter.key()),
        before.map(|(k, _)| &k[..])
    );
}

fn write(choices: &mut Choices<'_>, batch: &mut WriteBatch, map: &mut Map) {
    let what = choices.byte();
    let key = choices.key();
    match what % 8 {
        0..3 => {
            let value = vec![what; usize::from(choices.byte() & 63)];
            batch.put(0, &key, &value);
            map.insert(key, value);
        }
        3..5 => {
            let operand = choices.key();
            batch.merge(0, &key, &operand);
            let merged = match map.get(&key) {
                Some(old) => [&old[..], b",", &operand].concat(),
                None => operand,
            };
            map.insert(key, merged);
        }
        5..7 => {
            batch.delete(0, &key);
            map.remove(&key);
        }
        _ => {
            let (mut begin, mut end) = (key, choices.key());
            if begin > end {
                std::mem::swap(&mut begin, &mut end);
            }
            if begin < end {
                batch.delete_range(0, &begin, &end);
                map.retain(|k, _| *k < begin || *k >= end);
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let options = options(&mut choices);
    let mut db = Db::open(DIR, &options).expect("memory");
    let mut map = Map::new();
    let mut snapshots = Vec::new();
    for _ in 0..OPERATIONS_MAX {
        if choices.is_empty() {
            break;
        }
        match choices.byte() % 16 {
            0..9 => {
                let mut batch = WriteBatch::new();
                for _ in 0..1 + choices.byte() % 5 {
                    write(&mut choices, &mut batch, &mut map);
                }
                db.write_opt(&WriteOptions::default(), &mut batch)
                    .expect("memory");
            }
            9 => db.flush().expect("memory"),
            10 => {
                let (begin, end) = (choices.key(), choices.key());
                let how = CompactRangeOptions {
                    bottommost_level_compaction: BottommostLevelCompaction::Force,
                    ..CompactRangeOptions::default()
                };
                let all = choices.byte() & 1 == 0;
                let range = (begin < end && !all).then_some((&begin[..], &end[..]));
                let (begin, end) = (range.map(|r| r.0), range.map(|r| r.1));
                db.compact_range(&how, &db.default_column_family(), begin, end)
                    .expect("memory");
            }
            11 if snapshots.len() < 4 => snapshots.push((db.snapshot(), map.clone())),
            12 if !snapshots.is_empty() => {
                let at = usize::from(choices.byte()) % snapshots.len();
                drop(snapshots.swap_remove(at));
            }
            13 => {
                snapshots.clear();
                db.close().expect("memory");
                db = Db::open(DIR, &options).expect("it was closed");
            }
            _ => check_key(&db, &ReadOptions::default(), &map, &choices.key()),
        }
    }
    check(&db, &ReadOptions::default(), &map);
    for (snapshot, map) in snapshots {
        let read = ReadOptions {
            snapshot: Some(snapshot),
            ..ReadOptions::default()
        };
        check(&db, &read, &map);
    }
    db.close().expect("memory");
});
