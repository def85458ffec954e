//! Titan's bytes, as a writer that knows only the byte tables makes them, whole and damaged.

use std::path::Path;
use std::sync::Arc;

use orogen_base::ErrorKind;
use orogen_env::fs::write_file;
use orogen_env::{Access, FileSystem, MemFileSystem, RandomAccessFile};
use orogen_testkit::Rng;
use orogen_testkit::titan::{AddedAs, BlobFile, Stored, crc32c, edit, pointer, prefixed, varint};

use super::*;

fn file_of(bytes: &[u8]) -> Arc<dyn RandomAccessFile> {
    let fs = MemFileSystem::new();
    let path = Path::new("/000007.blob");
    write_file(&fs, path, bytes).expect("memory");
    fs.open(path, Access::Random).expect("is there")
}

fn open(bytes: &[u8]) -> orogen_base::Result<TitanFile> {
    TitanFile::open(file_of(bytes), 7)
}

type Records = Vec<(Vec<u8>, Vec<u8>, TitanPointer)>;

fn build(version: u32, block_size: usize, rng: &mut Rng) -> (Vec<u8>, Records) {
    let mut file = BlobFile::new(version, block_size);
    let mut records = Records::new();
    for n in 0..60u32 {
        let key = format!("key{n:05}").into_bytes();
        let len = rng.below(3000) as usize + usize::from(n == 30) * 400_000;
        let value = rng.bytes(len);
        let stored = [Stored::Plain, Stored::Lz4, Stored::Snappy][n as usize % 3];
        let (offset, size) = file.add(&key, &value, stored);
        let file = 7;
        records.push((key, value, TitanPointer { file, offset, size }));
    }
    (file.finish(), records)
}

#[test]
fn values_of_all_versions_are_read_in_a_row_and_here_and_there() {
    let mut rng = Rng::new(1);
    for (version, block_size) in [(1, 0), (2, 0), (3, 0), (3, 512), (3, 4096)] {
        let (bytes, records) = build(version, block_size, &mut rng);
        let file = open(&bytes).unwrap();
        assert_eq!(file.header().version, version);
        assert_eq!(file.header().block_size, block_size as u64);
        assert_eq!(file.size(), bytes.len() as u64);
        assert_eq!(
            file.first_codec().unwrap(),
            Some(orogen_codec::CompressionType::None)
        );
        let mut order: Vec<usize> = (0..records.len()).collect();
        for window_len in [128 << 10, 1000, 0] {
            let mut window = TitanWindow::new(window_len);
            for &i in &order {
                let (key, value, at) = &records[i];
                assert!(
                    file.read(&mut window, at, key).unwrap() == &value[..],
                    "{i}"
                );
            }
            rng.shuffle(&mut order);
        }
        let (_, value, at) = &records[3];
        let mut window = TitanWindow::new(0);
        let e = file.read(&mut window, at, b"key00004").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert_eq!(e.context("offset"), Some(&*at.offset.to_string()));
        assert!(e.context("file").is_some());
        assert!(file.read(&mut window, at, b"key00003").unwrap() == &value[..]);
    }
}

#[test]
fn every_byte_that_changes_is_noticed_or_without_meaning() {
    let mut rng = Rng::new(2);
    let mut file = BlobFile::new(3, 64);
    let mut records = Records::new();
    for n in 0..4u8 {
        let (key, value) = (vec![b'k', n], rng.bytes(40 + usize::from(n) * 30));
        let stored = if n % 2 == 0 {
            Stored::Plain
        } else {
            Stored::Lz4
        };
        let (offset, size) = file.add(&key, &value, stored);
        let at = TitanPointer {
            file: 7,
            offset,
            size,
        };
        records.push((key, value, at));
    }
    let bytes = file.finish();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << rng.below(8);
        let Ok(file) = open(&bad) else {
            assert!(at < 12 || at >= bytes.len() - 32, "{at}");
            continue;
        };
        for (key, value, pointer) in &records {
            let mut window = TitanWindow::new(4096);
            let inside = pointer.offset..pointer.offset + pointer.size;
            match file.read(&mut window, pointer, key) {
                Ok(found) => assert!(found == &value[..] && !inside.contains(&(at as u64))),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption);
                    assert!(inside.contains(&(at as u64)), "{at}: {e}");
                }
            }
        }
    }
    for len in 0..bytes.len() {
        assert!(open(&bytes[..len]).is_err(), "{len}");
    }
    // A hole where the third record was.
    let mut punched = bytes;
    let (start, end) = (records[2].2.offset as usize, records[3].2.offset as usize);
    punched[start..end].fill(0);
    let file = open(&punched).unwrap();
    let mut window = TitanWindow::new(4096);
    for (i, (key, value, pointer)) in records.iter().enumerate() {
        match file.read(&mut window, pointer, key) {
            Ok(found) => assert!(found == &value[..] && i != 2),
            Err(e) => assert!(i == 2 && e.to_string().contains("hole"), "{e}"),
        }
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let bytes = BlobFile::new(3, 0).finish();
    for (at, value, kind) in [
        (0, 0x15, ErrorKind::Corruption),
        (4, 4, ErrorKind::NotSupported),
        (8, 2, ErrorKind::NotSupported),
        // A dictionary that is not there.
        (8, 1, ErrorKind::Corruption),
    ] {
        let mut bad = bytes.clone();
        bad[at] = value;
        let e = open(&bad).err().unwrap();
        assert_eq!(e.kind(), kind, "{at}: {e}");
        assert!(e.context("file").is_some() && e.context("offset").is_some());
    }
    assert_eq!(open(&bytes).unwrap().first_codec().unwrap(), None);
}

fn with_footer(mut bytes: Vec<u8>, offset: u64, size: u64) -> Vec<u8> {
    let mut footer = Vec::new();
    varint(&mut footer, offset);
    varint(&mut footer, size);
    footer.resize(20, 0);
    footer.extend_from_slice(&0x2be0_a614_8e39_edc6_u64.to_le_bytes());
    let crc = crc32c(&[&footer]);
    bytes.extend_from_slice(&footer);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

fn block(out: &mut Vec<u8>, content: &[u8]) -> (u64, u64) {
    let at = (out.len() as u64, content.len() as u64);
    out.extend_from_slice(content);
    out.push(0);
    let masked = crc32c(&[content, &[0]])
        .rotate_right(15)
        .wrapping_add(0xa282_ead8);
    out.extend_from_slice(&masked.to_le_bytes());
    at
}

#[test]
fn a_dictionary_is_found_by_way_of_the_meta_index() {
    let mut file = BlobFile::new(2, 0);
    let (offset, size) = file.add(b"key", &[b'v'; 500], Stored::Lz4);
    let mut bytes = file.finish();
    bytes.truncate(bytes.len() - 32);
    bytes[8] = 1;
    let records_end = bytes.len() as u64;
    let (at, len) = block(&mut bytes, &[b'd'; 300]);
    let mut index = vec![0, 24];
    let mut handle = Vec::new();
    varint(&mut handle, at);
    varint(&mut handle, len);
    index.push(handle.len() as u8);
    index.extend_from_slice(b"rocksdb.compression_dict");
    index.extend_from_slice(&handle);
    index.extend_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
    let (at, len) = block(&mut bytes, &index);
    let whole = with_footer(bytes.clone(), at, len);
    let file = open(&whole).unwrap();
    let found = TitanPointer {
        file: 7,
        offset,
        size,
    };
    let mut window = TitanWindow::new(4096);
    assert_eq!(
        file.read(&mut window, &found, b"key").unwrap(),
        &[b'v'; 500][..]
    );
    let beyond = TitanPointer {
        offset: records_end - 5,
        ..found
    };
    assert!(file.read(&mut window, &beyond, b"key").is_err());
    for at in records_end as usize..whole.len() - 32 {
        let mut bad = whole.clone();
        bad[at] ^= 0x40;
        let e = open(&bad).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{at}: {e}");
    }
    for (at, len) in [
        (0, 5),
        (at, len + 1),
        (at, u64::MAX),
        (u64::MAX, 1),
        (at + 1, len),
    ] {
        assert!(open(&with_footer(bytes.clone(), at, len)).is_err());
    }
}

#[test]
fn pointers_are_those_of_titan_and_not_ours() {
    let bytes = pointer(300, 70_000, 4096);
    assert_eq!(bytes, b"\x01\xac\x02\xf0\xa2\x04\x80\x20");
    let found = TitanPointer::decode(&bytes).unwrap();
    assert_eq!((found.file, found.offset, found.size), (300, 70_000, 4096));
    let mut again = Vec::new();
    found.encode(&mut again);
    assert_eq!(again, bytes);
    assert!(crate::BlobPointer::decode(&bytes).is_err());
    // The size before compression, as it stood there for some weeks.
    let mut longer = bytes.clone();
    varint(&mut longer, 9000);
    assert_eq!(TitanPointer::decode(&longer).unwrap(), found);
    longer.push(0);
    assert!(TitanPointer::decode(&longer).is_err());
    for n in 0..bytes.len() {
        assert!(TitanPointer::decode(&bytes[..n]).is_err(), "{n}");
    }
    assert!(
        TitanPointer::decode(&pointer(0, 0, 0))
            .unwrap()
            .is_deletion()
    );
    for (file, offset, size) in [(0, 20, 20), (1, 7, 20), (1, 20, 8), (1, u64::MAX, 20)] {
        assert!(TitanPointer::decode(&pointer(file, offset, size)).is_err());
    }
    let mut other = bytes;
    other[0] = 0;
    assert!(TitanPointer::decode(&other).is_err());
}

#[test]
fn edits_of_all_forms_come_to_the_live_files() {
    let mut live = TitanLive::default();
    let first = edit(Some(4), 0, AddedAs::V1, &[], &[]);
    live.apply(TitanEdit::decode(&first).unwrap());
    assert!(live.clone().finish().unwrap().is_empty());
    for (n, form) in [AddedAs::V1, AddedAs::V2, AddedAs::V3]
        .into_iter()
        .enumerate()
    {
        let n = n as u64;
        let files: [(u64, u64, &[u8], &[u8]); 2] =
            [(n * 2, 100, b"a", b"f"), (n * 2 + 1, 50, b"b", b"b")];
        let bytes = edit(None, n as u32, form, &files, &[]);
        let decoded = TitanEdit::decode(&bytes).unwrap();
        assert_eq!(decoded.column_family, n as u32);
        assert_eq!(decoded.added.len(), 2);
        let has_keys = form != AddedAs::V1;
        assert_eq!(decoded.added[0].largest == b"f", has_keys);
        assert_eq!(decoded.added[0].level, if has_keys { 6 } else { 0 });
        for len in 0..bytes.len() {
            // It ends at a border of fields or is an error.
            let _ = TitanEdit::decode(&bytes[..len]);
        }
        live.apply(decoded);
    }
    // Twice, as Titan has noted it.
    for _ in 0..2 {
        live.apply(TitanEdit::decode(&edit(Some(9), 2, AddedAs::V3, &[], &[4])).unwrap());
    }
    let found: Vec<_> = live.clone().finish().unwrap().into_keys().collect();
    assert_eq!(found, [(0, 0), (0, 1), (1, 2), (1, 3), (2, 5)]);
    live.apply(TitanEdit::decode(&edit(None, 1, AddedAs::V3, &[], &[77])).unwrap());
    assert_eq!(live.finish().unwrap_err().kind(), ErrorKind::Corruption);
    assert!(TitanLive::default().finish().is_err());
}

#[test]
fn unknown_fields_are_passed_over_if_they_may_be() {
    let mut bytes = edit(Some(3), 1, AddedAs::V3, &[], &[8]);
    let before = TitanEdit::decode(&bytes).unwrap();
    varint(&mut bytes, 1 << 13 | 5);
    prefixed(&mut bytes, b"something new");
    assert_eq!(TitanEdit::decode(&bytes).unwrap(), before);
    varint(&mut bytes, 15);
    let e = TitanEdit::decode(&bytes).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotSupported);
    assert_eq!(e.context("tag"), Some("15"));
}

#[test]
fn the_note_of_a_table_tells_bytes_by_file() {
    let mut bytes = Vec::new();
    for v in [2, 7, 1000, 300, 5] {
        varint(&mut bytes, v);
    }
    assert_eq!(referenced_sizes(&bytes).unwrap(), [(7, 1000), (300, 5)]);
    for n in 0..bytes.len() {
        assert!(referenced_sizes(&bytes[..n]).is_err(), "{n}");
    }
    bytes.push(0);
    assert!(referenced_sizes(&bytes).is_err());
}
