//! Any bytes as what a codec has written, with and without a dictionary: they are refused, or give
//! a block of a size that the codec can reach. What a codec has written comes back as it was.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use orogen_base::key::append_internal_key;
use orogen_base::{InternalIterator, ValueKind};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::raw_table::{RawTable, unchecked};
use orogen_fuzz::{Choices, file};
use orogen_sst::dump::BlockKind;
use orogen_sst::{
    BlockBasedOptions, CompressionOptions, CompressionType, TableBuilder, TableBuilderOptions,
    TableReadOptions, TableReader, TableReaderOptions,
};

const DICTIONARY: &str = "rocksdb.compression_dict";

/// Bytes that one byte may become.
fn expansion_max(codec: CompressionType) -> usize {
    match codec {
        CompressionType::None => 1,
        CompressionType::Snappy => 24,
        CompressionType::Lz4 | CompressionType::Lz4hc => 256,
        CompressionType::Bzip2 => 2 << 20,
        _ => 48 << 10,
    }
}

fn decompress(codec: CompressionType, format_version: u32, dictionary: &[u8], body: &[u8]) {
    let mut table = RawTable::default();
    let data = table.block(body, codec);
    let index = table.index_of(data);
    if !dictionary.is_empty() {
        table.meta_block(DICTIONARY, dictionary);
    }
    let Ok(table) = table.open(index, format_version, TableReaderOptions::default()) else {
        return;
    };
    let raw_size = table
        .blocks()
        .take(1)
        .find_map(|block| block.ok().filter(|b| b.kind == BlockKind::Data))
        .map(|block| block.raw_size);
    if let Some(size) = raw_size {
        assert!(
            size <= body.len() * expansion_max(codec) + 64,
            "{codec:?} made {size} of {}",
            body.len()
        );
    }
    let mut iter = table.iter(unchecked());
    iter.seek_to_first();
    let mut held = 0;
    while iter.valid() {
        held += iter.value().len();
        iter.next();
    }
    if iter.status().is_ok() {
        assert!(held <= raw_size.expect("it was read"));
    }
}

fn compress(codec: CompressionType, options: CompressionOptions, values: &[&[u8]]) {
    let fs = MemFileSystem::new();
    let path = Path::new("/table");
    let target = TableBuilderOptions {
        table: BlockBasedOptions {
            block_size: 256,
            ..Default::default()
        },
        compression: codec,
        compression_options: options,
        ..Default::default()
    };
    let mut builder = TableBuilder::new(fs.create(path).expect("memory"), target).expect("sound");
    for (i, value) in values.iter().enumerate() {
        let mut key = Vec::new();
        append_internal_key(&mut key, &(i as u32).to_be_bytes(), 1, ValueKind::Value);
        builder.add(&key, value).expect("keys rise");
    }
    builder.finish([]).expect("memory");
    let bytes = read_file(&fs, path).expect("it was just written");
    let len = bytes.len() as u64;
    let table = TableReader::open(file(bytes), len, TableReaderOptions::default()).expect("ours");
    let mut iter = table.iter(TableReadOptions::default());
    iter.seek_to_first();
    for value in values {
        iter.status().expect("nothing is damaged");
        assert!(iter.valid());
        assert_eq!(iter.value(), *value);
        iter.next();
    }
    iter.status().expect("nothing is damaged");
    assert!(!iter.valid());
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let (flags, version, cut) = (choices.byte(), choices.byte(), choices.byte());
    let codec = CompressionType::ALL[usize::from(flags) % CompressionType::ALL.len()];
    let body = choices.rest();
    let dictionary = if flags & 128 == 0 {
        &[][..]
    } else {
        &body[..body.len().min(usize::from(cut))]
    };
    decompress(codec, 1 + u32::from(version % 5), dictionary, body);
    if codec.can_write() {
        let options = CompressionOptions {
            level: if version & 128 == 0 {
                CompressionOptions::default().level
            } else {
                i32::from(cut % 16) - 4
            },
            max_dict_bytes: u32::from(flags >> 7) * 300,
            max_compressed_bytes_per_kb: 1024,
            checksum: version & 64 != 0,
            ..Default::default()
        };
        let values: Vec<&[u8]> = body.chunks(1 + usize::from(cut) * 8).take(100).collect();
        compress(codec, options, &values);
    }
});
