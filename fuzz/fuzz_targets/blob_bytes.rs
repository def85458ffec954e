//! Any bytes as a blob file, also put together so that all checksums hold: whatever is asked of it
//! is answered within its bytes. And any bytes as a pointer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use orogen_base::coding::put_length_prefixed;
use orogen_blob::dump::{Piece, dump};
use orogen_blob::format::{
    FileFooter, FileHeader, Locator, META_MARK, RecordHeader, VERSION, VERSION_WITH_DICTIONARY,
};
use orogen_blob::{
    BlobFileReader, BlobFileReaderOptions, BlobIndex, BlobPointer, BlobRead, Coalesce,
};
use orogen_codec::CompressionType;
use orogen_fuzz::{Choices, file};

/// Bytes that a value may expand to, and is asked for all the same.
const VALUE_LEN_MAX: u64 = 64 << 20;

fn pointer(bytes: &[u8]) {
    let Ok(index) = BlobIndex::decode(bytes) else {
        assert!(BlobPointer::decode(bytes).is_err());
        return;
    };
    let mut again = Vec::new();
    index.encode(&mut again);
    assert!(again.len() <= bytes.len());
    assert_eq!(BlobIndex::decode(&again).expect("it was encoded"), index);
    if let Ok(pointer) = BlobPointer::decode(bytes) {
        assert_eq!(index, BlobIndex::Blob(pointer));
        if let Some(at) = pointer.record_offset(bytes.len()) {
            let end = at.checked_add(pointer.record_len(bytes.len()));
            assert_eq!(end, Some(pointer.offset + pointer.size));
        }
    }
}

fn record(out: &mut Vec<u8>, key: &[u8], stored: &[u8], expiration: u64) {
    out.extend_from_slice(&RecordHeader::new(key, stored, expiration).encode());
    out.extend_from_slice(key);
    out.extend_from_slice(stored);
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (head, tail) = rest.split_at(len.min(rest.len()));
    *rest = tail;
    head
}

/// A file of records and meta records of any content, whose checksums hold.
fn put_together(data: &[u8]) -> Vec<u8> {
    let mut rest = data;
    let mut byte = || take(&mut rest, 1).first().copied().unwrap_or(0);
    let codec = CompressionType::ALL[usize::from(byte()) % CompressionType::ALL.len()];
    let version = match byte() % 4 {
        0 => VERSION_WITH_DICTIONARY,
        _ => VERSION,
    };
    let mut out = Vec::new();
    FileHeader {
        version,
        column_family_id: 0,
        codec,
    }
    .encode(&mut out);
    let mut records = 0;
    while let Some((&what, after)) = rest.split_first() {
        rest = after;
        let len = |rest: &mut &[u8]| usize::from(take(rest, 1).first().copied().unwrap_or(0));
        match what % 8 {
            0..=2 => {
                let (key_len, value_len) = (len(&mut rest), len(&mut rest));
                let key = take(&mut rest, key_len);
                let stored = take(&mut rest, value_len);
                record(&mut out, key, stored, u64::from(what == 2));
                records += 1;
            }
            3 => out.resize(out.len() + len(&mut rest), 0),
            4 => {
                let n = len(&mut rest);
                out.extend_from_slice(take(&mut rest, n));
            }
            _ => {
                let names = [
                    "orogen.dictionary",
                    "orogen.records",
                    "orogen.properties",
                    "orogen.tail",
                ];
                let name = names[len(&mut rest) % names.len()];
                let n = len(&mut rest);
                let content = take(&mut rest, n);
                let mut key = Vec::new();
                put_length_prefixed(&mut key, name.as_bytes());
                key.extend_from_slice(content);
                let offset = out.len() as u64;
                if name == "orogen.tail" {
                    let size = (32 + key.len() + 32 + empty(codec).len()) as u64;
                    Locator { offset, size }.encode(&mut key);
                }
                record(&mut out, &key, empty(codec), META_MARK);
            }
        }
    }
    FileFooter { records }.encode(&mut out);
    out
}

fn empty(codec: CompressionType) -> &'static [u8] {
    match codec {
        CompressionType::Snappy => &[0],
        CompressionType::Lz4 | CompressionType::Lz4hc => &[0, 0],
        CompressionType::Zstd => &[0, 0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0],
        _ => &[],
    }
}

fn explore(reader: &BlobFileReader, len: u64) {
    let _ = reader.properties();
    if let Ok(Some(mut places)) = reader.places() {
        let mut end = 0;
        while let Ok(Some(place)) = places.next() {
            assert!(place.offset >= end);
            end = place.end().expect("it is inside the file");
            assert!(end <= len);
        }
    }
    let mut next = 30;
    let mut found = Vec::new();
    let summary = dump(reader, true, &mut |piece| {
        let (offset, size) = match piece {
            Piece::Record(r) => {
                let stored = r.stored().expect("values are read");
                let raw = orogen_codec::decompressed_len(reader.header().codec, stored);
                if raw.is_ok_and(|n| n <= VALUE_LEN_MAX) {
                    let value = r.value().map(|v| v.expect("values are read"));
                    found.push((r.pointer(), r.user_key.to_vec(), value));
                }
                (r.offset, r.record_len())
            }
            Piece::Meta { extent, .. }
            | Piece::Zeros(extent)
            | Piece::Hole(extent)
            | Piece::Damage { extent, .. } => (extent.offset, extent.size),
        };
        assert_eq!(offset, next);
        next += size;
        Ok(())
    })
    .expect("memory can be read");
    assert!(summary.records >= found.len() as u64);
    assert!(next <= len);
    let mut reads: Vec<_> = found
        .iter()
        .map(|(pointer, key, _)| BlobRead::new(reader, *pointer, key))
        .collect();
    BlobRead::read_many(&mut reads, true, Coalesce::default());
    for (read, (pointer, key, value)) in reads.iter().zip(&found) {
        let one = reader.get(*pointer, key, false);
        match (read.outcome.as_ref().expect("each has one"), value) {
            (Ok(many), Ok(value)) => {
                let many = orogen_base::pinned::Pin::bytes(many);
                let one = one.expect("it was read with checksums");
                assert!(many == &value[..] && one == value[..]);
            }
            // Not the user's, as its expiration says, or what a codec does not take.
            (Err(_), _) => {}
            (Ok(_), Err(e)) => panic!("one way gives a value, the other {e}"),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let mut choices = Choices::new(data);
    let what = choices.byte();
    let rest = choices.rest();
    let bytes = match what % 3 {
        0 => return pointer(rest),
        1 => rest.to_vec(),
        _ => put_together(rest),
    };
    let len = bytes.len() as u64;
    let options = BlobFileReaderOptions {
        file_number: 7,
        ..BlobFileReaderOptions::default()
    };
    let unfinished = BlobFileReader::open_unfinished(file(&bytes[..]), len, options.clone());
    let finished = BlobFileReader::open(file(bytes), len, options);
    for reader in [unfinished, finished].into_iter().flatten() {
        explore(&reader, len);
    }
});
