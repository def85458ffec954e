//! Any sorted entries under any options, written by a builder: lookups, misses, seeks and scans
//! both ways tell what went in.

#![no_main]

use std::cmp::Ordering;
use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use orogen_base::checksum::ChecksumType;
use orogen_base::key::{InternalKeyComparator, append_seek_key, user_key};
use orogen_base::{
    InternalIterator, ParsedInternalKey, UserComparator, ValueKind, slice_transform,
};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::{Choices, file};
use orogen_sst::{
    BlockBasedOptions, BlockIndex, CompressionOptions, CompressionType, TableBuilder,
    TableBuilderOptions, TableReadOptions, TableReader, TableReaderOptions, Visit,
};

type Entries = Vec<(Vec<u8>, Vec<u8>)>;

const SEQNO_MAX: u64 = u64::MAX >> 8;

fn options(choices: &mut Choices<'_>) -> TableBuilderOptions {
    let checksums = [
        ChecksumType::None,
        ChecksumType::Crc32c,
        ChecksumType::XxHash,
        ChecksumType::XxHash64,
        ChecksumType::Xxh3,
    ];
    let codecs = [
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Lz4hc,
        CompressionType::Zstd,
    ];
    let flags = choices.byte();
    let is_set = |bit: u8| flags & 1 << bit != 0;
    let (sizes, kinds, prefix) = (choices.byte(), choices.byte(), choices.byte());
    TableBuilderOptions {
        table: BlockBasedOptions {
            block_size: 16 << (sizes % 8),
            block_size_deviation: sizes >> 4,
            block_restart_interval: 1 + u32::from(choices.byte() % 40),
            index_block_restart_interval: 1 + u32::from(choices.byte() % 10),
            format_version: 2 + u32::from(choices.byte() % 5),
            checksum: checksums[usize::from(kinds) % checksums.len()],
            filter_bits_per_key: f64::from(choices.byte() % 24),
            whole_key_filtering: !is_set(0),
            index_type: if is_set(1) {
                BlockIndex::TwoLevel
            } else {
                BlockIndex::BinarySearch
            },
            partition_filters: is_set(1) && is_set(2),
            metadata_block_size: 16 << (sizes >> 5),
            enable_index_compression: is_set(3),
            verify_compression: is_set(4),
            ..Default::default()
        },
        compression: codecs[usize::from(kinds >> 4) % codecs.len()],
        compression_options: CompressionOptions {
            max_dict_bytes: u32::from(is_set(5)) * 512,
            zstd_max_train_bytes: u32::from(prefix >> 7) * 4096,
            max_compressed_bytes_per_kb: 1024,
            checksum: is_set(6),
            ..Default::default()
        },
        comparator: if is_set(7) {
            UserComparator::REVERSE_BYTEWISE
        } else {
            UserComparator::BYTEWISE
        },
        prefix_extractor: match prefix % 4 {
            0 => None,
            1 => slice_transform::by_name("fixed:2"),
            2 => slice_transform::by_name("capped:3"),
            _ => slice_transform::by_name("noop"),
        },
        ..Default::default()
    }
}

/// Entries as they are added: of several versions, each of another sequence number.
fn entries(choices: &mut Choices<'_>, order: &InternalKeyComparator) -> Entries {
    let kinds = [
        ValueKind::Value,
        ValueKind::Deletion,
        ValueKind::Merge,
        ValueKind::SingleDeletion,
    ];
    let mut all = Entries::new();
    while !choices.is_empty() && all.len() < 100 {
        let flags = choices.byte();
        let mut user_key = choices.key();
        if flags & 0xc0 == 0xc0 {
            user_key.resize(user_key.len() + 200, flags);
        }
        let key = ParsedInternalKey {
            user_key: &user_key,
            seqno: u64::from(choices.byte()),
            kind: kinds[usize::from(flags % 4)],
        };
        let value = vec![choices.byte(); usize::from(choices.byte()) << (flags >> 2 & 3)];
        all.push((key.encode(), value));
    }
    all.sort_by(|a, b| order.compare(&a.0, &b.0));
    // One entry a sequence number.
    all.dedup_by(|b, a| b.0[..b.0.len() - 8] == a.0[..a.0.len() - 8] && seqno(&a.0) == seqno(&b.0));
    all
}

fn seqno(key: &[u8]) -> u64 {
    orogen_base::key::seqno_of(key)
}

fn build(options: TableBuilderOptions, entries: &Entries) -> Vec<u8> {
    let fs = MemFileSystem::new();
    let path = Path::new("/table");
    let file = fs.create(path).expect("memory");
    let mut builder = TableBuilder::new(file, options).expect("options are in range");
    for (key, value) in entries {
        builder.add(key, value).expect("keys rise");
    }
    let summary = builder.finish([]).expect("memory");
    assert_eq!(summary.properties.num_entries, entries.len() as u64);
    assert_eq!(summary.smallest.as_ref(), entries.first().map(|e| &e.0));
    assert_eq!(summary.largest.as_ref(), entries.last().map(|e| &e.0));
    let bytes = read_file(&fs, path).expect("it was just written");
    assert_eq!(bytes.len() as u64, summary.file_size);
    bytes
}

fn here(iter: &impl InternalIterator) -> Option<(&[u8], &[u8])> {
    iter.status().expect("nothing is damaged");
    iter.valid().then(|| (iter.key(), iter.value()))
}

fn check_scans(table: &Arc<TableReader>, entries: &Entries) {
    let want = |i: Option<usize>| Some(entries.get(i?)?).map(|(k, v)| (&k[..], &v[..]));
    let mut iter = table.iter(TableReadOptions::default());
    iter.seek_to_first();
    for i in 0..=entries.len() {
        assert_eq!(here(&iter), want(Some(i)), "forwards at {i}");
        if iter.valid() {
            iter.next();
        }
    }
    iter.seek_to_last();
    for i in (0..=entries.len()).rev() {
        assert_eq!(here(&iter), want(i.checked_sub(1)), "backwards at {i}");
        if iter.valid() {
            iter.prev();
        }
    }
}

fn check_key(
    table: &Arc<TableReader>,
    entries: &Entries,
    order: &InternalKeyComparator,
    sought: &[u8],
    read_seqno: u64,
) {
    let mut target = Vec::new();
    append_seek_key(&mut target, sought, read_seqno);
    let at = entries.partition_point(|(key, _)| order.compare(key, &target) == Ordering::Less);
    let mut iter = table.iter(TableReadOptions::default());
    iter.seek(&target);
    let want = entries.get(at).map(|(k, v)| (&k[..], &v[..]));
    assert_eq!(here(&iter), want, "{target:?}");
    iter.seek_for_prev(&target);
    let before = at.checked_sub(1).map(|i| &entries[i]);
    assert_eq!(
        here(&iter),
        before.map(|(k, v)| (&k[..], &v[..])),
        "{target:?}"
    );

    let read = TableReadOptions::default();
    let mut got = Entries::new();
    table
        .get(&read, sought, read_seqno, &mut |key, value| {
            got.push((key.encode(), value.bytes().to_vec()));
            Visit::Continue
        })
        .expect("nothing is damaged");
    let versions = entries[at..].iter();
    let want: Entries = versions
        .take_while(|(key, _)| user_key(key) == sought)
        .cloned()
        .collect();
    assert_eq!(got, want, "{sought:?} at {read_seqno}");
    if !want.is_empty() {
        assert!(table.may_contain(&read, sought).expect("not damaged"));
        assert!(table.prefix_may_match(&read, sought).expect("not damaged"));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let options = options(&mut choices);
    let reader = TableReaderOptions {
        comparator: options.comparator.clone(),
        prefix_extractor: options.prefix_extractor.clone(),
        ..Default::default()
    };
    let order = InternalKeyComparator::new(options.comparator.clone());
    let entries = entries(&mut choices, &order);
    let bytes = build(options, &entries);
    let len = bytes.len() as u64;
    let table = TableReader::open(file(bytes), len, reader).expect("it was just written");
    table.verify_checksums().expect("nothing is damaged");
    check_scans(&table, &entries);
    for (key, _) in &entries {
        let found = user_key(key);
        check_key(&table, &entries, &order, found, SEQNO_MAX);
        check_key(&table, &entries, &order, found, seqno(key));
        let mut absent = found.to_vec();
        absent.push(0);
        check_key(&table, &entries, &order, &absent, SEQNO_MAX);
    }
    check_key(&table, &entries, &order, b"", 3);
});
