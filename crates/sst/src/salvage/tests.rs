use super::*;
use crate::builder::{TableBuilder, TableBuilderOptions};
use crate::dump::BlockKind;
use crate::options::{BlockBasedOptions, BlockIndex};
use crate::tests_support::{MemFile, MemTable};
use orogen_base::key::{append_internal_key, user_key};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn pairs() -> Pairs {
    (0..600u32)
        .map(|n| {
            let mut key = Vec::new();
            let user = format!("key{:05}", n * 3);
            append_internal_key(
                &mut key,
                user.as_bytes(),
                u64::from(n) + 1,
                ValueKind::Value,
            );
            (key, format!("value of {n} {}", n * n % 97).into_bytes())
        })
        .collect()
}

fn build(compression: CompressionType, table: &BlockBasedOptions) -> Vec<u8> {
    let file = MemFile::default();
    let options = TableBuilderOptions {
        table: BlockBasedOptions {
            block_size: 512,
            filter_bits_per_key: 10.0,
            ..table.clone()
        },
        compression,
        ..TableBuilderOptions::default()
    };
    let mut builder = TableBuilder::new(Box::new(file.clone()), options).expect("options hold");
    for (key, value) in pairs() {
        builder.add(&key, &value).expect("in order");
    }
    builder
        .add_range_tombstone(b"key1", b"key2", 1000)
        .expect("in order");
    builder.finish([]).expect("in memory");
    file.bytes()
}

fn all_shapes() -> Vec<Vec<u8>> {
    let formats = [2, 4, 5].map(|format_version| BlockBasedOptions {
        format_version,
        ..BlockBasedOptions::default()
    });
    let crc = BlockBasedOptions {
        checksum: ChecksumType::Crc32c,
        ..BlockBasedOptions::default()
    };
    let mut all: Vec<Vec<u8>> = formats
        .into_iter()
        .map(|table| build(CompressionType::None, &table))
        .collect();
    all.push(build(CompressionType::Lz4, &crc));
    all.push(build(CompressionType::Zstd, &BlockBasedOptions::default()));
    all.push(build(CompressionType::Lz4, &in_parts()));
    all
}

/// Index and filter in many parts.
fn in_parts() -> BlockBasedOptions {
    BlockBasedOptions {
        index_type: BlockIndex::TwoLevel,
        partition_filters: true,
        metadata_block_size: 64,
        ..BlockBasedOptions::default()
    }
}

fn run(bytes: Vec<u8>) -> (Salvaged, Pairs) {
    let size = bytes.len() as u64;
    let mut got = Pairs::new();
    let found = salvage(
        &MemTable::open(bytes),
        size,
        &TableReaderOptions::default(),
        &mut |key, value| {
            got.push((key.to_vec(), value.to_vec()));
            Ok(())
        },
    )
    .expect("reading from memory does not fail");
    assert_eq!(found.entries, got.len() as u64);
    (found, got)
}

/// What is not found lies in the ranges that are told as lost, and all else is found.
fn check(found: &Salvaged, got: &Pairs) {
    let want = pairs();
    let mut rest = got.iter().peekable();
    for pair in &want {
        if rest.peek() == Some(&pair) {
            rest.next();
            continue;
        }
        let user = user_key(&pair.0);
        let told = found.lost.iter().any(|lost| {
            lost.after.as_deref().is_none_or(|a| a <= user)
                && lost.up_to.as_deref().is_none_or(|b| user <= b)
        });
        assert!(told, "{} is missing", user.escape_ascii());
    }
    assert!(rest.next().is_none(), "entries from nowhere");
}

#[test]
fn a_whole_table_is_found_whole() {
    for bytes in all_shapes() {
        let (found, got) = run(bytes);
        assert!(found.is_whole());
        assert!(got == pairs());
        assert_eq!(found.range_tombstones.count(), 1);
    }
}

#[test]
fn a_flipped_bit_costs_one_block_at_most() {
    for bytes in all_shapes() {
        let table = TableReader::open(
            MemTable::open(bytes.clone()),
            bytes.len() as u64,
            TableReaderOptions::default(),
        )
        .unwrap();
        let data_end = table.data_end() as usize;
        for at in (0..bytes.len()).step_by(37) {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            let (found, got) = run(bad);
            check(&found, &got);
            if at < data_end {
                assert_eq!(found.lost.len(), 1, "{at}");
                assert!(found.tail_error.is_none(), "{at}");
                let lost = &found.lost[0];
                assert!((lost.offset..lost.offset + lost.bytes).contains(&(at as u64)));
                assert!(pairs().len() - got.len() < 40, "{at}");
                assert_eq!(found.range_tombstones.count(), 1);
            } else {
                // Data is whole: everything is found, with or without an index.
                assert!(got == pairs(), "{at}: {} found", got.len());
            }
        }
    }
}

#[test]
fn a_table_that_is_cut_off_gives_what_stands_before() {
    for bytes in all_shapes() {
        let mut last = usize::MAX;
        for len in (0..bytes.len()).rev().step_by(101) {
            let (found, got) = run(bytes[..len].to_vec());
            check(&found, &got);
            assert!(!found.is_whole());
            assert!(got.len() <= last);
            last = got.len();
            // What lies more than two blocks before the end is there.
            let least = (len / 600).saturating_sub(2);
            assert!(found.blocks as usize >= least.min(10), "{len} {found:?}");
        }
    }
}

#[test]
fn blocks_of_format_6_are_found_without_a_tail() {
    for (compression, checksum) in [
        (CompressionType::None, ChecksumType::Xxh3),
        (CompressionType::Lz4, ChecksumType::Crc32c),
        (CompressionType::Zstd, ChecksumType::Xxh3),
    ] {
        let table = BlockBasedOptions {
            format_version: 6,
            checksum,
            ..BlockBasedOptions::default()
        };
        let bytes = build(compression, &table);
        let (found, got) = run(bytes[..bytes.len() - 1].to_vec());
        assert!(got == pairs(), "{} found", got.len());
        assert!(found.tail_error.is_some());
        let (found, got) = run(bytes[..bytes.len() / 2].to_vec());
        check(&found, &got);
        assert!(found.blocks > 3, "{}", found.blocks);
        // What is not the table's is none of it.
        let mut bad = bytes[..bytes.len() - 1].to_vec();
        bad[3] ^= 4;
        let (found, got) = run(bad);
        check(&found, &got);
    }
}

/// A table of RocksDB's with `block_align`: blocks of 256 bytes and zeros between them.
fn aligned() -> (Vec<u8>, Pairs) {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/sst");
    let bytes = std::fs::read(dir.join("block_align.sst")).unwrap();
    let (found, all) = run(bytes.clone());
    assert!(found.is_whole() && found.blocks > 2);
    (bytes, all)
}

#[test]
fn aligned_blocks_are_found_without_a_tail() {
    let (bytes, all) = aligned();
    let (_, got) = run(bytes[..bytes.len() - 1].to_vec());
    assert!(got == all, "{} of {} found", got.len(), all.len());
    // A block that is zeros is no room between two others.
    let mut bad = bytes[..bytes.len() - 1].to_vec();
    bad[256..496].fill(0);
    let (found, got) = run(bad);
    assert!(got.len() < all.len());
    let zeros = &found.lost[0];
    assert_eq!((zeros.offset, zeros.bytes), (240, 272));
    let missing = all.iter().filter(|pair| !got.contains(pair));
    for user in missing.map(|pair| user_key(&pair.0)) {
        assert!(zeros.after.as_deref().is_none_or(|after| after < user));
        assert!(zeros.up_to.as_deref().is_none_or(|up_to| user < up_to));
    }
}

#[test]
fn a_block_without_entries_is_passed_by() {
    let table = BlockBasedOptions {
        checksum: ChecksumType::Crc32c,
        format_version: 5,
        ..in_parts()
    };
    let mut bytes = build(CompressionType::None, &table);
    let open = |bytes: &[u8]| {
        let (file, size) = (MemTable::open(bytes.to_vec()), bytes.len() as u64);
        TableReader::open(file, size, TableReaderOptions::default()).unwrap()
    };
    let blocks: Vec<_> = open(&bytes).blocks().map(Result::unwrap).collect();
    let mut parts = blocks.iter().filter(|b| b.kind == BlockKind::Index);
    // The first part of the index leads nowhere, and where its first block was is one that no writer makes.
    bytes[parts.next().unwrap().handle.offset as usize] ^= 1;
    let mut empty = vec![0, 0, 0, 0, 1, 0, 0, 0, 0];
    let checksum = orogen_base::checksum::mask(orogen_base::checksum::crc32c(&empty));
    empty.extend(checksum.to_le_bytes());
    bytes[..empty.len()].copy_from_slice(&empty);
    let (found, got) = run(bytes);
    check(&found, &got);
    assert!(!found.lost.is_empty() && !got.is_empty());
}

#[test]
fn garbage_gives_nothing_and_ends() {
    for len in [0, 1, 5, 53, 1000, 70_000] {
        let bytes: Vec<u8> = (0..len).map(|n: u64| (n * n % 251) as u8).collect();
        let (found, got) = run(bytes);
        assert!(got.is_empty());
        assert!(found.tail_error.is_some());
    }
}

/// Gives each place of the file damaged the first time that it is read.
struct FlakyFile {
    file: Arc<dyn RandomAccessFile>,
    seen: std::sync::Mutex<std::collections::HashSet<u64>>,
}

impl RandomAccessFile for FlakyFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let n = self.file.read_at(offset, buf)?;
        // Small reads only: the tail at open has no second chance as a whole.
        if n < 1200 && n > 0 && self.seen.lock().unwrap().insert(offset) {
            buf[n / 2] ^= 1;
        }
        Ok(n)
    }
    fn size(&self) -> Result<u64> {
        self.file.size()
    }
    fn path(&self) -> &std::path::Path {
        self.file.path()
    }
}

#[test]
fn a_block_that_is_right_the_second_time_is_no_damage() {
    use orogen_base::metrics::{Statistics, Ticker};
    let bytes = build(CompressionType::None, &BlockBasedOptions::default());
    let size = bytes.len() as u64;
    let statistics = Arc::new(Statistics::new());
    let options = TableReaderOptions {
        statistics: Some(statistics.clone()),
        ..TableReaderOptions::default()
    };
    let flaky = FlakyFile {
        file: MemTable::open(bytes),
        seen: std::sync::Mutex::default(),
    };
    let table = TableReader::open(Arc::new(flaky), size, options).unwrap();
    let mut index = table
        .held_index_position(&TableReadOptions::default())
        .unwrap();
    let read = TableReadOptions::default();
    let mut blocks = 0;
    let mut on = index.seek_to_first(&table, &read).unwrap();
    while on {
        table
            .read_block(index.handle(), BlockKind::Data, &read, None)
            .unwrap();
        blocks += 1;
        on = index.next(&table, &read).unwrap();
    }
    assert!(blocks > 10);
    assert_eq!(statistics.get(Ticker::FileReadCorruptionRetry), blocks);
    assert_eq!(
        statistics.get(Ticker::FileReadCorruptionRetrySuccess),
        blocks
    );
    assert_eq!(statistics.get(Ticker::BlockChecksumMismatch), 0);
}
