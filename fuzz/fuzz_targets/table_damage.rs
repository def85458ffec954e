//! A table that was written reads back as it was; after one changed byte it reads back the same,
//! or says that it is damaged. Salvage gives nothing that was not there, and what it does not give
//! lies in a range that it tells as lost.

#![no_main]

use std::collections::BTreeMap;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use orogen_base::checksum::ChecksumType;
use orogen_base::{ErrorKind, InternalIterator, ParsedInternalKey, Result, ValueKind};
use orogen_env::fs::read_file;
use orogen_env::{FileSystem, MemFileSystem};
use orogen_fuzz::{Choices, file};
use orogen_sst::salvage::salvage;
use orogen_sst::{
    BlockBasedOptions, BlockIndex, CompressionOptions, CompressionType, TableBuilder,
    TableBuilderOptions, TableReadOptions, TableReader, TableReaderOptions, Visit,
};

/// Of one version each: user key to sequence number and value.
type Model = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

fn options(choices: &mut Choices<'_>) -> TableBuilderOptions {
    let one_of = |choices: &mut Choices<'_>, n: u8| choices.byte() % n;
    let checksums = [
        ChecksumType::Crc32c,
        ChecksumType::XxHash,
        ChecksumType::XxHash64,
        ChecksumType::Xxh3,
    ];
    let codecs = [
        CompressionType::None,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ];
    let parts = one_of(choices, 4);
    TableBuilderOptions {
        table: BlockBasedOptions {
            index_type: match parts {
                0 | 1 => BlockIndex::BinarySearch,
                _ => BlockIndex::TwoLevel,
            },
            partition_filters: parts == 3,
            metadata_block_size: 64,
            block_size: 16 << one_of(choices, 6),
            block_restart_interval: 1 + u32::from(one_of(choices, 20)),
            index_block_restart_interval: 1 + u32::from(one_of(choices, 4)),
            format_version: 2 + u32::from(one_of(choices, 5)),
            checksum: checksums[usize::from(one_of(choices, 4))],
            filter_bits_per_key: f64::from(one_of(choices, 2) * 10),
            enable_index_compression: one_of(choices, 2) == 1,
            ..Default::default()
        },
        compression: codecs[usize::from(one_of(choices, 4))],
        compression_options: CompressionOptions {
            max_dict_bytes: u32::from(one_of(choices, 2)) * 256,
            ..Default::default()
        },
        ..Default::default()
    }
}

fn entries(choices: &mut Choices<'_>) -> Model {
    let mut model = Model::new();
    for _ in 0..choices.byte() {
        let key = choices.key();
        let seqno = u64::from(choices.byte());
        let value = vec![choices.byte(); usize::from(choices.byte())];
        model.insert(key, (seqno, value));
    }
    model
}

fn build(options: TableBuilderOptions, model: &Model) -> Vec<u8> {
    let fs = MemFileSystem::new();
    let path = Path::new("/table");
    let file = fs.create(path).expect("memory has room");
    let mut builder = TableBuilder::new(file, options).expect("options are in range");
    for (user_key, (seqno, value)) in model {
        let key = ParsedInternalKey {
            user_key,
            seqno: *seqno,
            kind: ValueKind::Value,
        }
        .encode();
        builder.add(&key, value).expect("keys rise");
    }
    builder
        .add_range_tombstone(b"a", b"c", 9)
        .expect("in order");
    let summary = builder.finish([]).expect("memory has room");
    let bytes = read_file(&fs, path).expect("it was just written");
    assert_eq!(bytes.len() as u64, summary.file_size);
    bytes
}

/// Everything that the table holds, by a scan and by lookups.
fn read(bytes: Vec<u8>, keys: &Model) -> Result<(Model, usize)> {
    let len = bytes.len() as u64;
    let table = TableReader::open(file(bytes), len, TableReaderOptions::default())?;
    let read = TableReadOptions::default();
    let mut model = Model::new();
    let mut iter = table.iter(read);
    iter.seek_to_first();
    while iter.valid() {
        let key = ParsedInternalKey::parse(iter.key())?;
        model.insert(key.user_key.to_vec(), (key.seqno, iter.value().to_vec()));
        iter.next();
    }
    iter.status()?;
    for (key, (_, want)) in keys {
        let mut found = None;
        table.get(&read, key, u64::MAX >> 8, &mut |_, value| {
            found = Some(value.bytes().to_vec());
            Visit::Stop
        })?;
        assert_eq!(
            found.as_ref(),
            Some(want),
            "a lookup does not find what a scan finds"
        );
    }
    Ok((model, table.range_tombstones().count()))
}

fn check_salvage(bytes: Vec<u8>, want: &Model) {
    let len = bytes.len() as u64;
    let mut got = Model::new();
    let found = salvage(
        &file(bytes),
        len,
        &TableReaderOptions::default(),
        &mut |key, value| {
            let key = ParsedInternalKey::parse(key)?;
            got.insert(key.user_key.to_vec(), (key.seqno, value.to_vec()));
            Ok(())
        },
    );
    let found = match found {
        Ok(found) => found,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
            return;
        }
    };
    for (key, pair) in want {
        let told = || {
            found.lost.iter().any(|lost| {
                lost.after.as_ref().is_none_or(|a| a <= key)
                    && lost.up_to.as_ref().is_none_or(|b| key <= b)
            })
        };
        match got.remove(key) {
            Some(it) => assert_eq!(&it, pair, "salvage changed an entry"),
            None => assert!(told(), "an entry is lost and not told of"),
        }
    }
    assert!(got.is_empty(), "salvage found what was never there");
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let options = options(&mut choices);
    let (place, mask) = (choices.short(), choices.byte());
    let model = entries(&mut choices);
    let mut bytes = build(options, &model);
    let want = (model, 1);
    assert_eq!(
        read(bytes.clone(), &want.0).expect("nothing is damaged"),
        want
    );

    let place = place % bytes.len();
    bytes[place] ^= mask;
    check_salvage(bytes.clone(), &want.0);
    match read(bytes, &want.0) {
        Ok(got) => assert_eq!(got, want, "a changed byte at {place} was believed"),
        Err(e) => assert!(
            matches!(
                e.kind(),
                ErrorKind::Corruption | ErrorKind::NotSupported | ErrorKind::InvalidArgument
            ),
            "{e}"
        ),
    }
});
