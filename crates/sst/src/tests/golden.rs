//! Tables written by RocksDB 7.8 and 9.8 (`crates/compat/py/make_sst.py`) say what RocksDB
//! says they hold, and from the same entries we write the same bytes.

use std::path::{Path, PathBuf};

use orogen_base::ParsedInternalKey;

use super::*;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/sst")
}

fn bytes_of(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

fn fnv(h: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(h, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn entries(table: &Arc<TableReader>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut it = table.iter(TableReadOptions::default());
    let mut all = Vec::new();
    it.seek_to_first();
    while it.valid() {
        all.push((it.key().to_vec(), it.value().to_vec()));
        it.next();
    }
    it.status().unwrap();
    all
}

fn digest(entries: &[(Vec<u8>, Vec<u8>)], full: bool) -> u64 {
    entries
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, (key, value)| {
            let k = ParsedInternalKey::parse(key).unwrap();
            let (user_key, value) = (hex(k.user_key), hex(value));
            let line = if full {
                format!("{user_key} {} {} {value}\n", k.seqno, k.kind as u8)
            } else {
                format!("{user_key} {value}\n")
            };
            fnv(h, line.as_bytes())
        })
}

#[test]
fn rocksdbs_tables_hold_what_rocksdb_says() {
    let index = std::fs::read_to_string(folder().join("index.txt")).unwrap();
    let mut tables = 0;
    for line in index.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[name, kind, count, want] = &fields[..] else {
            panic!("{line}")
        };
        let bytes = bytes_of(name);
        let legacy = name.contains("zlib") || name.contains("bzip2");
        if legacy && !cfg!(feature = "legacy-codecs") {
            let error = match open(&bytes, TableReaderOptions::default()) {
                Ok(table) => table.verify_checksums().unwrap_err(),
                Err(e) => e,
            };
            assert_eq!(error.kind(), ErrorKind::NotSupported, "{name}");
            continue;
        }
        for cached in [false, true] {
            let options = TableReaderOptions {
                block_cache: cached.then(|| Arc::new(BlockCache::new(4 << 20))),
                cache_index_and_filter_blocks: cached,
                ..Default::default()
            };
            let table = open(&bytes, options).unwrap_or_else(|e| panic!("{name}: {e}"));
            let all = entries(&table);
            assert_eq!(all.len().to_string(), count, "{name}");
            assert_eq!(
                format!("{:016x}", digest(&all, kind == "full")),
                want,
                "{name}"
            );
            let p = table.properties();
            assert_eq!(
                p.num_entries - p.num_range_deletions,
                all.len() as u64,
                "{name}"
            );
            check_moves(&table, &all, name);
            table.verify_checksums().unwrap();
        }
        tables += 1;
    }
    assert!(tables > 40, "{tables}");
}

fn check_moves(table: &Arc<TableReader>, all: &[(Vec<u8>, Vec<u8>)], name: &str) {
    let read = TableReadOptions::default();
    let mut it = table.iter(read);
    it.seek_to_last();
    for (key, value) in all.iter().rev() {
        assert_eq!((it.key(), it.value()), (&key[..], &value[..]), "{name}");
        it.prev();
    }
    assert!(!it.valid());
    for (key, value) in all {
        it.seek(key);
        assert_eq!((it.key(), it.value()), (&key[..], &value[..]), "{name}");
        let parsed = ParsedInternalKey::parse(key).unwrap();
        let mut got = None;
        table
            .get(&read, parsed.user_key, parsed.seqno, &mut |k, v| {
                got = Some((k.encode(), v.bytes().to_vec()));
                Visit::Stop
            })
            .unwrap();
        assert_eq!(got, Some((key.clone(), value.clone())), "{name}");
        assert!(
            table.prefix_may_match(&read, parsed.user_key).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn no_flip_in_rocksdbs_tables_gives_wrong_answers_in_silence() {
    let index = std::fs::read_to_string(folder().join("index.txt")).unwrap();
    let mut rng = Rng::new(31);
    let mut refused = 0;
    for name in index.lines().filter_map(|l| l.split(' ').next()) {
        let bytes = bytes_of(name);
        let read_all = |bytes: &[u8]| -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
            let table = open(bytes, TableReaderOptions::default())?;
            let mut it = table.iter(TableReadOptions::default());
            let mut all = Vec::new();
            it.seek_to_first();
            while it.valid() {
                all.push((it.key().to_vec(), it.value().to_vec()));
                it.next();
            }
            it.status()?;
            for (key, _) in all.iter().step_by(20) {
                it.seek(key);
                it.status()?;
                if key.len() >= 8 {
                    let user_key = &key[..key.len() - 8];
                    let read = TableReadOptions::default();
                    table.get(&read, user_key, 1 << 50, &mut |_, _| Visit::Continue)?;
                }
            }
            Ok(all)
        };
        let Ok(want) = read_all(&bytes) else { continue };
        for _ in 0..40 {
            let mut bad = bytes.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            bad[at] ^= 1 << rng.below(8);
            match read_all(&bad) {
                Ok(got) if name == "checksum_none.sst" => drop(got),
                Ok(got) => assert!(got == want, "{name} byte {at}"),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn rocksdbs_filters_deny_most_absent_keys() {
    for name in [
        "format4_bloom",
        "format5_bloom",
        "bloom_20_bits",
        "ribbon",
        "prefix_bloom",
        "prefix_only_bloom",
        "all_partitioned",
        "format6_partitioned",
        "format6_crc32c",
    ] {
        let table = open(
            &bytes_of(&format!("{name}.sst")),
            TableReaderOptions::default(),
        )
        .unwrap();
        let read = TableReadOptions::default();
        let first = entries(&table)[0].0.clone();
        let len = first.len() - 8;
        let mut hits = 0;
        for i in 0..1000u64 {
            // Another prefix and another key, of the same length.
            let mut key = (0x7777_0000_0000 + i * 0x1_0001).to_be_bytes().to_vec();
            key.extend_from_slice(&i.to_be_bytes());
            key.truncate(len.max(8));
            hits += usize::from(table.may_contain(&read, &key).unwrap());
        }
        assert!(hits < 60, "{name}: {hits} of 1000");
    }
}

/// The blocks of a table as they are stored, by kind, without their trailers.
fn stored_blocks(bytes: &[u8]) -> Vec<(BlockKind, Vec<u8>)> {
    let table = open(bytes, TableReaderOptions::default()).unwrap();
    let blocks: Vec<_> = table.blocks().collect::<Result<_>>().unwrap();
    let stored = |h: BlockHandle| bytes[h.offset as usize..][..h.size as usize].to_vec();
    blocks
        .into_iter()
        .map(|b| (b.kind, stored(b.handle)))
        .collect()
}

#[test]
fn the_same_entries_give_rocksdbs_bytes() {
    let base = BlockBasedOptions {
        block_size: 256,
        ..Default::default()
    };
    let bloom = |bits| BlockBasedOptions {
        filter_bits_per_key: bits,
        ..base.clone()
    };
    let version = |v| BlockBasedOptions {
        format_version: v,
        ..base.clone()
    };
    let cases = [
        ("plain", base.clone()),
        ("format3", version(3)),
        (
            "format4",
            BlockBasedOptions {
                index_block_restart_interval: 4,
                ..version(4)
            },
        ),
        (
            "format4_bloom",
            BlockBasedOptions {
                format_version: 4,
                ..bloom(10.0)
            },
        ),
        ("format5_bloom", bloom(10.0)),
        ("bloom_20_bits", bloom(20.0)),
        (
            "data_restart_1",
            BlockBasedOptions {
                block_restart_interval: 1,
                ..base.clone()
            },
        ),
        (
            "index_restart_16",
            BlockBasedOptions {
                index_block_restart_interval: 16,
                ..base.clone()
            },
        ),
        ("empty_values", base),
    ];
    for (name, table) in cases {
        let golden = bytes_of(&format!("{name}.sst"));
        let all = entries(&open(&golden, TableReaderOptions::default()).unwrap());
        let file = MemFile::default();
        let options = TableBuilderOptions {
            table,
            ..Default::default()
        };
        let mut b = TableBuilder::new(Box::new(file.clone()), options).unwrap();
        for (k, v) in &all {
            b.add(k, v).unwrap();
        }
        b.finish([]).unwrap();
        let same = |kind| {
            let pick = |bytes: &[u8]| -> Vec<Vec<u8>> {
                stored_blocks(bytes)
                    .into_iter()
                    .filter(|b| b.0 == kind)
                    .map(|b| b.1)
                    .collect()
            };
            assert!(pick(&golden) == pick(&file.bytes()), "{name} {kind:?}");
        };
        same(BlockKind::Data);
        same(BlockKind::Filter);
        same(BlockKind::Index);
    }
}

#[test]
fn rocksdbs_properties_are_understood() {
    let open_named = |name: &str| {
        open(&bytes_of(name), TableReaderOptions::default())
            .unwrap()
            .properties()
    };
    let p = open_named("prefix_bloom.sst");
    assert_eq!(p.prefix_extractor_name(), Some("rocksdb.FixedPrefix.8"));
    assert_eq!(
        (p.whole_key_filtering(), p.prefix_filtering()),
        (true, true)
    );
    assert!(!open_named("prefix_only_bloom.sst").whole_key_filtering());
    assert_eq!(
        open_named("index_hash.sst").index_type().unwrap(),
        IndexType::HashSearch
    );
    assert_eq!(
        open_named("all_partitioned.sst").index_type().unwrap(),
        IndexType::TwoLevel
    );
    assert_eq!(open_named("lz4.sst").compression, "LZ4");
    assert!(open_named("external_format5.sst").is_external());
    let p = open_named("range_tombstones.sst");
    let table = open(
        &bytes_of("range_tombstones.sst"),
        TableReaderOptions::default(),
    )
    .unwrap();
    assert!(p.num_range_deletions > 0);
    assert!(!table.range_tombstones().fragments().is_empty());
}
