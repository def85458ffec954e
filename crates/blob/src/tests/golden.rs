//! Blob files written by RocksDB 9.8 (`crates/compat/py/make_blob.py`) hold what RocksDB was given,
//! and of the same records we write the same bytes.

use std::path::PathBuf;

use super::*;
use crate::format::FOOTER_LEN;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/blob")
}

fn fnv(h: u64, bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(h, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn rocksdbs_files_hold_what_it_was_given() {
    let index = std::fs::read_to_string(folder().join("index.txt")).unwrap();
    let mut files = 0;
    for line in index.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[name, count, digest] = &fields[..] else {
            panic!("{line}");
        };
        let bytes = std::fs::read(folder().join(name)).unwrap();
        let options = BlobFileReaderOptions {
            file_number: NUMBER,
            column_family_id: Some(0),
            ..BlobFileReaderOptions::default()
        };
        let file = file_of(&bytes);
        let reader = BlobFileReader::open(file, bytes.len() as u64, options).unwrap();
        assert_eq!(reader.record_count(), Some(count.parse().unwrap()));
        let codec = reader.header().codec;
        if !codec.can_read() {
            let e = walk(&reader).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotSupported, "{name}");
            continue;
        }
        let records: Records = walk(&reader)
            .unwrap()
            .into_iter()
            .map(|(_, k, v)| (k, v))
            .collect();
        let sum = records.iter().fold(0xcbf2_9ce4_8422_2325, |h, (k, v)| {
            fnv(h, format!("{} {}\n", hex(k), hex(v)).as_bytes())
        });
        assert_eq!(format!("{sum:016x}"), digest, "{name}");
        files += 1;
        if codec != CompressionType::None {
            continue;
        }
        // What the codecs make of a value may differ from release to release; the rest may not.
        let mut ours = self::options(codec);
        ours.column_family_id = 0;
        let (written, ..) = build(ours, &records);
        let (theirs, footer) = bytes.split_at(bytes.len() - FOOTER_LEN);
        assert!(written.starts_with(theirs));
        assert!(written.ends_with(footer));
    }
    let legacy = 2 * usize::from(CompressionType::Zlib.can_read());
    assert_eq!(files, 5 + legacy);
}
