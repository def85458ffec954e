//! Files written here and read here, intact and damaged.

mod ahead;
mod damage;
mod golden;
mod rocksdb_tools;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use orogen_base::{ErrorKind, PinnedValue, UserComparator};
use orogen_codec::{CompressionOptions, CompressionType, make_dictionary};
use orogen_env::{Access, Fault, FaultFileSystem, FileSystem, MemFileSystem, RandomAccessFile};
use orogen_testkit::{Rng, compressible};

use super::*;

pub(super) const WRITABLE: [CompressionType; 5] = [
    CompressionType::None,
    CompressionType::Snappy,
    CompressionType::Lz4,
    CompressionType::Lz4hc,
    CompressionType::Zstd,
];

pub(super) const NUMBER: u64 = 7;

pub(super) fn options(codec: CompressionType) -> BlobFileBuilderOptions {
    BlobFileBuilderOptions {
        file_number: NUMBER,
        compression: codec,
        column_family_id: 3,
        column_family_name: "values".to_owned(),
        creation_time: 1_700_000_000,
        ..BlobFileBuilderOptions::default()
    }
}

pub(super) type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// A file's bytes, its pointers and what was told of it.
pub(super) fn build(
    options: BlobFileBuilderOptions,
    records: &Records,
) -> (Vec<u8>, Vec<BlobPointer>, BlobFileSummary) {
    let fs = MemFileSystem::new();
    let path = Path::new("/000007.blob");
    let mut builder = BlobFileBuilder::new(fs.create(path).unwrap(), options).unwrap();
    let pointers = records
        .iter()
        .map(|(key, value)| builder.add(key, value).unwrap())
        .collect();
    let summary = builder.finish().unwrap();
    let bytes = orogen_env::fs::read_file(&fs, path).unwrap();
    assert_eq!(bytes.len() as u64, summary.file_size);
    (bytes, pointers, summary)
}

pub(super) fn file_of(bytes: &[u8]) -> Arc<dyn RandomAccessFile> {
    let fs = MemFileSystem::new();
    let path = Path::new("/000007.blob");
    fs.create(path).unwrap().append(bytes).unwrap();
    fs.open(path, Access::Random).unwrap()
}

pub(super) fn reader_options() -> BlobFileReaderOptions {
    BlobFileReaderOptions {
        file_number: NUMBER,
        column_family_id: Some(3),
        ..BlobFileReaderOptions::default()
    }
}

pub(super) fn open(bytes: &[u8]) -> orogen_base::Result<BlobFileReader> {
    BlobFileReader::open(file_of(bytes), bytes.len() as u64, reader_options())
}

pub(super) fn records(rng: &mut Rng, count: usize, value_len: u64) -> Records {
    (0..count)
        .map(|i| {
            let pad = rng.below(20) as usize;
            let key = format!("key{i:06}{}", "x".repeat(pad)).into_bytes();
            let len = rng.below(value_len + 1) as usize;
            let value = match rng.below(3) {
                0 => rng.bytes(len),
                _ => compressible(rng, len, 30),
            };
            (key, value)
        })
        .collect()
}

/// Offset, key and value of each record.
pub(super) type Walked = Vec<(u64, Vec<u8>, Vec<u8>)>;

/// All records of the cursor.
pub(super) fn walk(reader: &BlobFileReader) -> orogen_base::Result<Walked> {
    let mut all = Vec::new();
    let mut cursor = reader.records();
    while let Some(record) = cursor.next()? {
        let value = record.value()?.expect("the cursor reads values");
        all.push((record.offset, record.user_key.to_vec(), value));
    }
    Ok(all)
}

fn check(options: &BlobFileBuilderOptions, records: &Records) {
    let (bytes, pointers, summary) = build(options.clone(), records);
    let reader = open(&bytes).unwrap();
    assert_eq!(reader.record_count(), Some(records.len() as u64));
    assert_eq!(summary.total_blob_count, records.len() as u64);
    let alignment = u64::from(options.alignment.max(1));
    let mut total = 0;
    for ((key, value), pointer) in records.iter().zip(&pointers) {
        for verify in [true, false] {
            let got = reader.get(*pointer, key, verify).unwrap();
            assert!(got == value[..], "{:?}", options.compression);
        }
        assert_eq!(pointer.codec, options.compression);
        assert_eq!(pointer.file, NUMBER);
        let at = pointer.record_offset(key.len()).unwrap();
        assert_eq!(at % alignment, 0);
        total += pointer.record_len(key.len());
    }
    assert_eq!(summary.total_blob_bytes, total);

    let walked = walk(&reader).unwrap();
    let want: Vec<_> = records
        .iter()
        .zip(&pointers)
        .map(|((k, v), p)| (p.record_offset(k.len()).unwrap(), k.clone(), v.clone()))
        .collect();
    assert!(walked == want);

    let mut places = reader.places().unwrap().unwrap();
    let mut keys = reader.keys();
    for ((key, _), pointer) in records.iter().zip(&pointers) {
        let place = places.next().unwrap().unwrap();
        assert_eq!(place.value_offset(), pointer.offset);
        assert_eq!(place.value_len, pointer.size);
        assert_eq!(place.key_len, key.len() as u64);
        let record = keys.next().unwrap().unwrap();
        assert_eq!((record.user_key, record.pointer()), (&key[..], *pointer));
        assert!(record.stored().is_none() && record.value().unwrap().is_none());
    }
    assert!(places.next().unwrap().is_none() && keys.next().unwrap().is_none());

    let properties = reader.properties().unwrap().unwrap();
    assert_eq!(properties, summary.properties);
    assert_eq!(properties.record_bytes, total);
    let raw: usize = records.iter().map(|(_, v)| v.len()).sum();
    assert_eq!(properties.raw_value_size, raw as u64);
    let smallest = records.iter().map(|(k, _)| k).min().cloned();
    assert_eq!(properties.smallest_key, smallest.unwrap_or_default());
    let largest = records.iter().map(|(k, _)| k).max().cloned();
    assert_eq!(properties.largest_key, largest.unwrap_or_default());

    let mut reads: Vec<_> = records
        .iter()
        .zip(&pointers)
        .rev()
        .map(|((key, _), &pointer)| BlobRead::new(&reader, pointer, key))
        .collect();
    BlobRead::read_many(&mut reads, true, Coalesce::default());
    for (read, (_, value)) in reads.into_iter().zip(records.iter().rev()) {
        let got = PinnedValue::from(read.outcome.unwrap().unwrap());
        assert!(got == value[..]);
    }
}

#[test]
fn records_come_back_by_pointer_by_cursor_and_by_index() {
    let mut rng = Rng::new(1);
    for codec in WRITABLE {
        for alignment in [0, 1, 64, 100, 4096] {
            for (count, len) in [(0, 0), (1, 0), (3, 10), (60, 3000), (3, 300_000)] {
                let mut options = options(codec);
                options.alignment = alignment;
                check(&options, &records(&mut rng, count, len));
            }
        }
    }
}

#[test]
fn a_value_larger_than_all_buffers_comes_back() {
    let mut rng = Rng::new(2);
    let mut values = records(&mut rng, 3, 100);
    values[1].1 = rng.bytes(3 << 20);
    for codec in WRITABLE {
        check(&options(codec), &values);
    }
}

#[test]
fn the_file_gets_whole_multiples_of_the_buffer_until_it_ends() {
    const UNIT: u64 = 64 << 10;
    let mut rng = Rng::new(9);
    let fs = MemFileSystem::new();
    let path = Path::new("/000007.blob");
    let options = BlobFileBuilderOptions {
        write_buffer_len: UNIT as usize + 4321,
        ..options(CompressionType::None)
    };
    let mut builder = BlobFileBuilder::new(fs.create(path).unwrap(), options).unwrap();
    let mut ends = HashSet::new();
    for i in 0..400 {
        let len = rng.below(20_000) as usize;
        let pointer = builder.add(&[0, i as u8], &rng.bytes(len)).unwrap();
        let written = fs.metadata(path).unwrap().size;
        assert_eq!(written % UNIT, 0);
        assert!(pointer.offset + pointer.size - written < 2 * (UNIT + 4321));
        ends.insert(written);
    }
    assert!(ends.len() > 20, "{ends:?}");
    builder.finish().unwrap();
}

#[test]
fn values_that_do_not_shrink_are_stored_with_the_codec_all_the_same() {
    let noise = Rng::new(3).bytes(5000);
    for codec in WRITABLE {
        let (bytes, pointers, _) = build(options(codec), &vec![(b"k".to_vec(), noise.clone())]);
        assert_eq!(pointers[0].codec, codec);
        let reader = open(&bytes).unwrap();
        assert_eq!(reader.header().codec, codec);
        if codec != CompressionType::None {
            assert!(pointers[0].size > noise.len() as u64);
        }
        assert!(reader.get(pointers[0], b"k", true).unwrap() == noise[..]);
    }
}

#[test]
fn keys_in_any_order_and_in_the_users_order_have_their_bounds() {
    let records: Records = [&b"m"[..], b"a", b"z", b"b"]
        .iter()
        .map(|k| (k.to_vec(), vec![1; 10]))
        .collect();
    let mut options = options(CompressionType::None);
    let (_, _, summary) = build(options.clone(), &records);
    let p = &summary.properties;
    assert_eq!(
        (&p.smallest_key[..], &p.largest_key[..]),
        (&b"a"[..], &b"z"[..])
    );
    options.comparator = UserComparator::REVERSE_BYTEWISE;
    let (_, _, summary) = build(options, &records);
    let p = &summary.properties;
    assert_eq!(
        (&p.smallest_key[..], &p.largest_key[..]),
        (&b"z"[..], &b"a"[..])
    );
}

#[test]
fn the_record_index_of_many_records_is_written_in_parts() {
    // Lengths of 2 bytes and 1: three bytes a record.
    let count = 2 * places::BLOCK_LEN / 3 + 1000;
    let records: Records = (0..count)
        .map(|i| (format!("{i:09}").into_bytes(), vec![b'v'; 200]))
        .collect();
    for alignment in [0, 256] {
        let mut options = options(CompressionType::None);
        options.alignment = alignment;
        let (bytes, pointers, _) = build(options, &records);
        let reader = open(&bytes).unwrap();
        let index = reader.meta_index().unwrap().unwrap();
        assert_eq!(index.named(meta::RECORDS).count(), 3);
        let mut places = reader.places().unwrap().unwrap();
        let mut keys = reader.keys();
        for pointer in &pointers {
            let place = places.next().unwrap().unwrap();
            assert_eq!(place.value_offset(), pointer.offset);
            assert_eq!(keys.next().unwrap().unwrap().pointer(), *pointer);
        }
        assert!(places.next().unwrap().is_none());
        // What is not the user's overlaps no record.
        let mut free = index.extents();
        let mut next = free.next();
        for (pointer, (key, _)) in pointers.iter().zip(&records) {
            let at = pointer.record_offset(key.len()).unwrap();
            while next.is_some_and(|e| e.end() <= at) {
                next = free.next();
            }
            assert!(next.is_none_or(|e| e.offset >= pointer.offset + pointer.size));
        }
    }
}

#[test]
fn stored_values_pass_from_file_to_file_unread() {
    let mut rng = Rng::new(4);
    for codec in WRITABLE {
        let records = records(&mut rng, 20, 2000);
        let (bytes, pointers, summary) = build(options(codec), &records);
        let reader = open(&bytes).unwrap();
        let fs = MemFileSystem::new();
        let path = Path::new("/000007.blob");
        let mut builder = BlobFileBuilder::new(fs.create(path).unwrap(), options(codec)).unwrap();
        let mut cursor = reader.records();
        while let Some(record) = cursor.next().unwrap() {
            let stored = record.stored().unwrap();
            let pointer = builder
                .add_stored(record.user_key, stored, &reader)
                .unwrap();
            assert_eq!(pointer, record.pointer());
        }
        let again = builder.finish().unwrap();
        assert_eq!(again.properties, summary.properties);
        assert!(orogen_env::fs::read_file(&fs, path).unwrap() == bytes);

        // By pointers, too.
        let mut builder = BlobFileBuilder::new(fs.create(path).unwrap(), options(codec)).unwrap();
        let mut ahead = BlobReadahead::new(64 << 10);
        for ((key, _), pointer) in records.iter().zip(&pointers) {
            let stored = reader.read_stored(&mut ahead, *pointer, key).unwrap();
            let stored = PinnedValue::from(stored);
            builder.add_stored(key, &stored, &reader).unwrap();
        }
        builder.finish().unwrap();
        assert!(orogen_env::fs::read_file(&fs, path).unwrap() == bytes);

        // But not into a file that stores otherwise.
        let mut others = vec![match codec {
            CompressionType::Snappy => options(CompressionType::None),
            _ => options(CompressionType::Snappy),
        }];
        if codec == CompressionType::Zstd {
            let mut with = options(codec);
            with.dictionary = Some(b"a dictionary of some bytes"[..].into());
            others.push(with);
        }
        for other in others {
            let mut builder = BlobFileBuilder::new(fs.create(path).unwrap(), other).unwrap();
            assert!(!builder.takes_stored_of(&reader));
            let e = builder.add_stored(b"k", b"stored", &reader).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        }
    }
}

#[test]
fn what_the_codec_does_not_understand_is_passed_on_as_it_is() {
    let fs = MemFileSystem::new();
    let write = |name: &str, options: BlobFileBuilderOptions| {
        let path = Path::new(name);
        BlobFileBuilder::new(fs.create(path).unwrap(), options).unwrap()
    };
    let read = |name: &str| {
        let file = fs.open(Path::new(name), Access::Random).unwrap();
        let size = file.size().unwrap();
        let options = BlobFileReaderOptions {
            file_number: 7,
            ..BlobFileReaderOptions::default()
        };
        BlobFileReader::open(file, size, options).unwrap()
    };
    for codec in [
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ] {
        // The head of its size does not end, and its checksum holds.
        let stored = [0xff; 20];
        let empty = write("/empty", options(codec));
        empty.finish().unwrap();
        let same = read("/empty");
        let mut first = write("/first", options(codec));
        first.add(b"a", b"well").unwrap();
        let pointer = first.add_stored(b"k", &stored, &same).unwrap();
        first.finish().unwrap();
        let first = read("/first");
        assert_eq!(
            first.get(pointer, b"k", true).unwrap_err().kind(),
            ErrorKind::Corruption
        );
        let found = first
            .read_stored(&mut BlobReadahead::new(0), pointer, b"k")
            .unwrap();
        let mut second = write("/second", options(codec));
        let moved = second
            .add_stored(b"k", &PinnedValue::from(found), &first)
            .unwrap();
        let summary = second.finish().unwrap();
        assert_eq!(summary.properties.raw_value_size, 20);
        let second = read("/second");
        assert_eq!(
            second.get(moved, b"k", true).unwrap_err().kind(),
            ErrorKind::Corruption
        );
        let found = second
            .read_stored(&mut BlobReadahead::new(0), moved, b"k")
            .unwrap();
        assert_eq!(*PinnedValue::from(found), stored);
    }
}

#[test]
fn a_dictionary_shrinks_small_values_and_marks_the_file() {
    let values: Vec<Vec<u8>> = (0..500)
        .map(|i| {
            format!("{{\"user\":{i},\"city\":\"paris\",\"name\":\"x{i}\",\"active\":true}}")
                .into_bytes()
        })
        .collect();
    let train = CompressionOptions {
        max_dict_bytes: 2048,
        zstd_max_train_bytes: 1 << 16,
        ..CompressionOptions::default()
    };
    let dictionary = make_dictionary(&values, &train).unwrap();
    assert!(!dictionary.is_empty());
    let records: Records = values
        .iter()
        .enumerate()
        .map(|(i, v)| (format!("{i:04}").into_bytes(), v.clone()))
        .collect();
    for alignment in [0, 512] {
        let mut plain = options(CompressionType::Zstd);
        plain.alignment = alignment;
        let mut with = plain.clone();
        with.dictionary = Some(dictionary.clone().into());
        check(&with, &records);
        let (bytes, pointers, summary) = build(with, &records);
        let (_, _, without) = build(plain, &records);
        assert!(summary.total_blob_bytes < without.total_blob_bytes);
        let reader = open(&bytes).unwrap();
        assert_eq!(reader.header().version, format::VERSION_WITH_DICTIONARY);
        // Also of a file that was cut off.
        let cut = &bytes[..bytes.len() * 2 / 3];
        let reader =
            BlobFileReader::open_unfinished(file_of(cut), cut.len() as u64, reader_options())
                .unwrap();
        let walked = walk(&reader).unwrap();
        assert!(walked.len() > 100 && walked.len() < 500);
        for (i, (_, _, value)) in walked.iter().enumerate() {
            assert!(*value == values[i]);
        }
        assert!(reader.get(pointers[0], b"0000", true).unwrap() == values[0][..]);
    }
    let mut wrong = options(CompressionType::Lz4);
    wrong.dictionary = Some(dictionary.into());
    let file = MemFileSystem::new().create(Path::new("/1.blob")).unwrap();
    let e = BlobFileBuilder::new(file, wrong).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_pointer_to_anything_else_than_the_record_of_its_key_is_refused() {
    let mut rng = Rng::new(5);
    for codec in WRITABLE {
        let mut records = records(&mut rng, 5, 300);
        // Two keys of one length.
        records[1].0 = b"same".to_vec();
        records[2].0 = b"samf".to_vec();
        let (bytes, pointers, _) = build(options(codec), &records);
        let reader = open(&bytes).unwrap();
        let good = pointers[1];
        let wrong = [
            BlobPointer { file: 8, ..good },
            BlobPointer {
                codec: match codec {
                    CompressionType::Zstd => CompressionType::None,
                    _ => CompressionType::Zstd,
                },
                ..good
            },
            BlobPointer {
                offset: good.offset + 1,
                ..good
            },
            BlobPointer {
                offset: good.offset - 1,
                ..good
            },
            BlobPointer {
                size: good.size + 1,
                ..good
            },
            BlobPointer {
                size: good.size.wrapping_sub(1),
                ..good
            },
            BlobPointer { offset: 0, ..good },
            BlobPointer {
                offset: 61 + 4,
                ..good
            },
            BlobPointer {
                offset: u64::MAX,
                ..good
            },
            BlobPointer {
                size: u64::MAX,
                ..good
            },
            BlobPointer {
                size: bytes.len() as u64,
                ..good
            },
            BlobPointer {
                offset: bytes.len() as u64,
                ..good
            },
            pointers[2],
        ];
        for pointer in wrong {
            for verify in [true, false] {
                let e = reader.get(pointer, b"same", verify).unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Corruption, "{pointer:?}");
                assert!(e.context("file").unwrap().ends_with("000007.blob"));
                assert!(e.context("offset").is_some());
            }
        }
        for key in [&b""[..], b"sam", b"same1", b"samf"] {
            assert!(reader.get(good, key, true).is_err());
        }
        // Meta records are nobody's values.
        let index = reader.meta_index().unwrap().unwrap();
        for extent in index.extents() {
            let empty = format::empty_value(codec).len() as u64;
            let key_at = (extent.offset + 32) as usize;
            let key = &bytes[key_at..(extent.end() - empty) as usize];
            let pointer = BlobPointer {
                offset: extent.end() - empty,
                size: empty,
                ..good
            };
            assert!(reader.get(pointer, key, true).is_err());
        }
    }
}

#[test]
fn each_read_of_many_has_its_own_outcome_whatever_is_read_together() {
    let mut rng = Rng::new(6);
    for codec in WRITABLE {
        let records = records(&mut rng, 40, 2000);
        let (mut bytes, pointers, _) = build(options(codec), &records);
        // Two records are damaged, and one pointer leads nowhere.
        for i in [3, 20] {
            bytes[pointers[i].offset as usize - 1] ^= 1;
        }
        let reader = open(&bytes).unwrap();
        for coalesce in [
            Coalesce {
                gap_max: 0,
                run_max: 0,
            },
            Coalesce {
                gap_max: 0,
                run_max: 5000,
            },
            Coalesce {
                gap_max: 1 << 20,
                run_max: 1 << 30,
            },
            Coalesce::default(),
        ] {
            let mut order: Vec<usize> = (0..records.len()).collect();
            rng.shuffle(&mut order);
            // A few are left out, a few are asked for twice.
            order.truncate(30);
            order.extend_from_within(..5);
            order.extend([3, 20, 30]);
            let mut reads: Vec<_> = order
                .iter()
                .map(|&i| BlobRead::new(&reader, pointers[i], &records[i].0))
                .collect();
            let last = reads.len() - 1;
            reads[last].pointer.size += 1 << 40;
            BlobRead::read_many(&mut reads, true, coalesce);
            for (n, (read, &i)) in reads.into_iter().zip(&order).enumerate() {
                let outcome = read.outcome.expect("each has one");
                if n == last || i == 3 || i == 20 {
                    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Corruption);
                } else {
                    assert!(PinnedValue::from(outcome.unwrap()) == records[i].1[..]);
                }
            }
        }
    }
}

#[test]
fn what_nothing_points_to_is_dead_and_nothing_else() {
    let mut rng = Rng::new(10);
    for alignment in [0, 64] {
        for is_ours in [true, false] {
            let records = records(&mut rng, 60, 300);
            let mut options = options(CompressionType::None);
            options.alignment = alignment;
            let (mut bytes, pointers, _) = build(options, &records);
            if !is_ours {
                let index = open(&bytes).unwrap().meta_index().unwrap().unwrap();
                let start = index.extents().next().unwrap().offset as usize;
                bytes.drain(start..bytes.len() - format::FOOTER_LEN);
            }
            let reader = open(&bytes).unwrap();
            let extent = |i: usize| pointers[i].record_extent(records[i].0.len()).unwrap();
            let lives: Vec<usize> = (0..60).filter(|_| rng.chance(1, 2)).collect();
            let mut live: Vec<Extent> = lives.iter().map(|&i| extent(i)).collect();
            rng.shuffle(&mut live);
            let dead = extents::dead_extents(&reader, &mut live).unwrap();
            // What is dead can be anything: all that lives is still there, and so is the index.
            let mut punched = bytes.clone();
            for e in &dead {
                punched[e.offset as usize..e.end() as usize].fill(0);
            }
            let reader = open(&punched).unwrap();
            for (i, (key, value)) in records.iter().enumerate() {
                match reader.get(pointers[i], key, true) {
                    Ok(got) => assert!(got == value[..] && lives.contains(&i)),
                    Err(_) => assert!(!lives.contains(&i)),
                }
            }
            assert_eq!(walk(&reader).unwrap().len(), lives.len());
            assert_eq!(reader.places().unwrap().is_some(), is_ours);
            // And nothing dead was left out: each byte belongs to one or the other.
            let kept: u64 = reader
                .meta_index()
                .unwrap()
                .map_or(0, |i| i.extents().map(|e| e.size).sum());
            let all = live.iter().chain(&dead).map(|e| e.size).sum::<u64>() + kept;
            assert_eq!(all + 62, bytes.len() as u64);

            let mut twice = vec![extent(3), extent(3)];
            assert!(extents::dead_extents(&reader, &mut twice).is_err());
            let mut outside = vec![Extent {
                offset: bytes.len() as u64 - 40,
                size: 10,
            }];
            assert!(extents::dead_extents(&reader, &mut outside).is_err());
        }
    }
}

#[test]
fn of_a_file_with_a_dictionary_nothing_is_dead_without_its_index() {
    let mut rng = Rng::new(12);
    let records = records(&mut rng, 8, 300);
    let mut options = options(CompressionType::Zstd);
    options.dictionary = Some(b"fox jumps over the lazy dog".to_vec().into());
    let (whole, pointers, _) = build(options, &records);
    let live = pointers[5].record_extent(records[5].0.len()).unwrap();
    let reader = open(&whole).unwrap();
    assert!(extents::dead_extents(&reader, &mut [live]).is_ok());
    let end = whole.len() - format::FOOTER_LEN - 10 - format::LOCATOR_LEN;
    for bit in 20 * 8..28 * 8 {
        let mut bad = whole.clone();
        bad[end + bit / 8] ^= 1 << (bit % 8);
        let reader = open(&bad).unwrap();
        // Values are read: the dictionary is the first record.
        let got = reader.get(pointers[5], &records[5].0, true).unwrap();
        assert!(got == records[5].1[..]);
        let error = extents::dead_extents(&reader, &mut [live]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{bit}: {error}");
        assert!(error.context("file").is_some() && error.context("offset").is_some());
    }
}

#[test]
fn records_without_their_middle_are_told_from_damage() {
    let mut rng = Rng::new(11);
    for is_ours in [true, false] {
        let records = records(&mut rng, 80, 30_000);
        let (mut bytes, pointers, _) = build(options(CompressionType::None), &records);
        if !is_ours {
            let index = open(&bytes).unwrap().meta_index().unwrap().unwrap();
            let start = index.extents().next().unwrap().offset as usize;
            bytes.drain(start..bytes.len() - format::FOOTER_LEN);
        }
        let lives: Vec<usize> = (0..80).filter(|_| rng.chance(1, 2)).collect();
        let extent = |i: usize| pointers[i].record_extent(records[i].0.len()).unwrap();
        let mut live: Vec<Extent> = lives.iter().map(|&i| extent(i)).collect();
        let dead = extents::dead_extents(&open(&bytes).unwrap(), &mut live).unwrap();
        let mut given_up = 0;
        for e in dead.iter().filter_map(|e| e.whole_blocks(HOLE_BLOCK)) {
            assert!(e.offset % HOLE_BLOCK == 0 && e.size % HOLE_BLOCK == 0);
            bytes[e.offset as usize..e.end() as usize].fill(0);
            given_up += e.size;
        }
        assert!(given_up > 100_000);
        let found = |bytes: &[u8]| {
            let (mut damages, mut seen) = (0, HashSet::new());
            let reader = open(bytes).unwrap();
            let summary = dump::dump(&reader, true, &mut |piece| {
                match piece {
                    dump::Piece::Record(record) => drop(seen.insert(record.offset)),
                    dump::Piece::Damage { .. } => damages += 1,
                    _ => {}
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(damages, summary.damages);
            (seen, summary)
        };
        let (seen, summary) = found(&bytes);
        assert_eq!(summary.damages, 0);
        assert!(summary.hole_bytes + summary.zero_bytes >= given_up);
        assert!(live.iter().all(|e| seen.contains(&e.offset)));
        // The records that live are found one by one, too.
        let reader = open(&bytes).unwrap();
        let mut cursor = reader.records();
        for &i in &lives {
            cursor.seek(extent(i).offset);
            let record = cursor.next().unwrap().unwrap();
            assert_eq!(record.pointer(), pointers[i]);
            assert!(*record.value().unwrap().unwrap() == records[i].1[..]);
        }
        // A bit in one that lives is damage all the same.
        let hurt = extent(lives[3]);
        bytes[hurt.end() as usize - 1] ^= 1;
        let (seen, summary) = found(&bytes);
        assert_eq!(summary.damages, 1);
        assert!(!seen.contains(&hurt.offset));
    }
}

#[test]
fn where_no_file_can_end_there_is_no_hole() {
    let records = records(&mut Rng::new(3), 3, 100);
    let (bytes, _, _) = build(options(CompressionType::None), &records);
    let reader = open(&bytes).unwrap();
    for offset in [bytes.len() as u64, u64::MAX - 4096, u64::MAX - 1] {
        let extent = Extent { offset, size: 1 };
        assert!(!reader.has_hole(extent).unwrap(), "{offset}");
    }
}

#[test]
fn values_of_several_files_are_read_at_once() {
    let mut rng = Rng::new(7);
    let files: Vec<_> = WRITABLE
        .iter()
        .map(|&codec| {
            let records = records(&mut rng, 12, 500);
            let (bytes, pointers, _) = build(options(codec), &records);
            (open(&bytes).unwrap(), pointers, records)
        })
        .collect();
    let mut order: Vec<(usize, usize)> = (0..files.len())
        .flat_map(|f| (0..12).map(move |i| (f, i)))
        .collect();
    rng.shuffle(&mut order);
    let mut reads: Vec<_> = order
        .iter()
        .map(|&(f, i)| BlobRead::new(&files[f].0, files[f].1[i], &files[f].2[i].0))
        .collect();
    BlobRead::read_many(&mut reads, true, Coalesce::default());
    for (read, (f, i)) in reads.into_iter().zip(order) {
        let value = PinnedValue::from(read.outcome.unwrap().unwrap());
        assert!(value == files[f].2[i].1[..]);
    }
}

/// A file that never has anything in memory, and counts its reads, what it is told to read ahead,
/// the bytes that it reads, and those that it is told of.
struct Counted(
    Arc<dyn RandomAccessFile>,
    AtomicU64,
    AtomicU64,
    AtomicU64,
    AtomicU64,
);

impl RandomAccessFile for Counted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> orogen_base::Result<usize> {
        self.1.fetch_add(1, Relaxed);
        self.3.fetch_add(buf.len() as u64, Relaxed);
        self.0.read_at(offset, buf)
    }
    fn read_at_without_waiting(&self, _: u64, _: &mut [u8]) -> orogen_base::Result<Option<usize>> {
        Ok(None)
    }
    fn size(&self) -> orogen_base::Result<u64> {
        self.0.size()
    }
    fn prefetch(&self, _: u64, len: u64) {
        self.2.fetch_add(1, Relaxed);
        self.4.fetch_add(len, Relaxed);
    }
    fn path(&self) -> &Path {
        self.0.path()
    }
}

fn counted(bytes: &[u8]) -> (Arc<Counted>, BlobFileReader) {
    let zero = AtomicU64::default;
    let file = Arc::new(Counted(file_of(bytes), zero(), zero(), zero(), zero()));
    let reader = BlobFileReader::open(file.clone(), bytes.len() as u64, reader_options()).unwrap();
    file.1.store(0, Relaxed);
    file.3.store(0, Relaxed);
    (file, reader)
}

#[test]
fn the_device_is_told_of_all_runs_before_anybody_waits() {
    let records: Records = (0..10u8).map(|i| (vec![i; 8], vec![i; 10_000])).collect();
    let (bytes, pointers, _) = build(options(CompressionType::None), &records);
    let (file, reader) = counted(&bytes);
    // Two runs of two, and one that is alone.
    let mut reads: Vec<_> = [0, 1, 4, 5, 9]
        .map(|i: usize| BlobRead::new(&reader, pointers[i], &records[i].0))
        .into();
    BlobRead::read_many(&mut reads, true, Coalesce::default());
    assert!(reads.iter().all(|r| matches!(r.outcome, Some(Ok(_)))));
    assert_eq!((file.1.load(Relaxed), file.2.load(Relaxed)), (3, 3));
    // One run by itself just waits.
    let mut reads: Vec<_> = [2, 3]
        .map(|i: usize| BlobRead::new(&reader, pointers[i], &records[i].0))
        .into();
    BlobRead::read_many(&mut reads, true, Coalesce::default());
    assert!(reads.iter().all(|r| matches!(r.outcome, Some(Ok(_)))));
    assert_eq!((file.1.load(Relaxed), file.2.load(Relaxed)), (4, 3));
}

#[test]
fn keys_are_found_without_reading_large_values() {
    let records: Records = (0..50u8).map(|i| (vec![i; 8], vec![i; 100_000])).collect();
    let (bytes, ..) = build(options(CompressionType::None), &records);
    let (file, reader) = counted(&bytes);
    let mut keys = reader.keys();
    let mut seen = Vec::new();
    while let Some(record) = keys.next().unwrap() {
        seen.push(record.user_key.to_vec());
    }
    assert!(seen.iter().eq(records.iter().map(|(key, _)| key)));
    let read = file.3.load(Relaxed);
    assert!(read < 50 * 5000 + (256 << 10), "{read} bytes");
}

#[test]
fn the_checksum_of_the_file_is_that_of_its_bytes() {
    let mut rng = Rng::new(8);
    let mut records = records(&mut rng, 50, 5000);
    records[7].1 = rng.bytes(2 << 20);
    let mut options = options(CompressionType::Lz4);
    options.alignment = 4096;
    options.file_checksum = true;
    let (bytes, _, summary) = build(options.clone(), &records);
    assert_eq!(
        summary.file_checksum,
        Some(orogen_base::checksum::crc32c(&bytes))
    );
    let (again, _, _) = build(options, &records);
    assert!(again == bytes, "the same records give the same bytes");
}

#[test]
fn any_failing_operation_is_told_and_a_later_try_succeeds() {
    let mut rng = Rng::new(15);
    let mut records = records(&mut rng, 20, 2000);
    records[5].1 = rng.bytes(300_000);
    let path = Path::new("/000007.blob");
    let mut failed = 0;
    for n in 1.. {
        let fs = FaultFileSystem::over_memory(MemFileSystem::new());
        fs.faults().add(Fault::no_space().nth(n));
        let run = || -> orogen_base::Result<()> {
            let mut options = options(CompressionType::Lz4);
            options.alignment = 512;
            let mut builder = BlobFileBuilder::new(fs.create(path)?, options)?;
            let mut pointers = Vec::new();
            for (key, value) in &records {
                pointers.push(builder.add(key, value)?);
            }
            let size = builder.finish()?.file_size;
            let reader =
                BlobFileReader::open(fs.open(path, Access::Random)?, size, reader_options())?;
            for ((key, value), pointer) in records.iter().zip(&pointers) {
                assert!(reader.get(*pointer, key, true)? == value[..]);
            }
            reader.properties()?;
            let mut cursor = reader.records();
            while cursor.next()?.is_some() {}
            let mut ahead = BlobReadahead::new(64 << 10);
            for ((key, _), pointer) in records.iter().zip(&pointers) {
                reader.read_ahead(&mut ahead, *pointer, key, true)?;
            }
            let mut reads: Vec<_> = records
                .iter()
                .zip(&pointers)
                .map(|((key, _), pointer)| BlobRead::new(&reader, *pointer, key))
                .collect();
            BlobRead::read_many(&mut reads, true, Coalesce::default());
            reads
                .into_iter()
                .try_for_each(|r| r.outcome.unwrap().map(drop))
        };
        match run() {
            Ok(()) if fs.faults().injected() == 0 => break,
            // A run of values is read one by one where it fails.
            Ok(()) => {}
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                failed += 1;
            }
        }
        run().unwrap();
    }
    assert!(failed > 30, "{failed}");
}

#[test]
fn files_of_other_families_and_kinds_are_refused() {
    let (bytes, _, _) = build(options(CompressionType::None), &Records::new());
    let other = BlobFileReaderOptions {
        column_family_id: Some(4),
        ..reader_options()
    };
    let file = file_of(&bytes);
    let e = BlobFileReader::open(file, bytes.len() as u64, other).err();
    assert_eq!(e.unwrap().kind(), ErrorKind::Corruption);
    for (at, value, kind) in [
        (0, 0xff, ErrorKind::Corruption),
        (4, 3, ErrorKind::NotSupported),
        (12, 1, ErrorKind::NotSupported),
        (12, 2, ErrorKind::NotSupported),
        (13, 0x55, ErrorKind::Corruption),
        (14, 1, ErrorKind::Corruption),
        (29, 1, ErrorKind::Corruption),
    ] {
        let mut bad = bytes.clone();
        bad[at] = value;
        let e = open(&bad).err().unwrap();
        assert_eq!(e.kind(), kind, "{at}: {e}");
        assert!(e.context("file").is_some());
        let listed = BlobFileReaderOptions {
            is_listed: true,
            ..reader_options()
        };
        let size = bad.len() as u64;
        let damage = BlobFileReader::open(file_of(&bad), size, listed)
            .err()
            .unwrap();
        assert_eq!(damage.kind(), ErrorKind::Corruption, "{at}: {damage}");
        assert!(damage.context("file").is_some() && damage.context("offset") == Some("0"));
        // What is not known is told all the same.
        assert!(damage.to_string().contains(e.message()), "{damage}");
    }
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let refused = |change: fn(&mut BlobFileBuilderOptions)| {
        let mut options = options(CompressionType::None);
        change(&mut options);
        let file = MemFileSystem::new().create(Path::new("/1.blob")).unwrap();
        BlobFileBuilder::new(file, options).err().unwrap().kind()
    };
    let invalid = ErrorKind::InvalidArgument;
    assert_eq!(refused(|o| o.file_number = 0), invalid);
    assert_eq!(refused(|o| o.alignment = u32::MAX), invalid);
    assert_eq!(
        refused(|o| o.compression = CompressionType::Zlib),
        ErrorKind::NotSupported
    );
}
